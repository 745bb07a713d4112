#!/usr/bin/env python3
"""The Debian package, on a throw-away copy of this machine with a systemd of its own: installed, started, mounted from fstab, upgraded and
removed with data that is not on the PFS. Needs root; skips, with a line, where that or a program is missing.

    make test-package [ONLY=words]
"""

import argparse
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

import cases
import content
from booted import ROOT, Booted

from loopext4 import say
from machine import Failure, remove_tree, run, skip

NEEDED = ("dpkg-deb", "unshare", "nsenter", "systemd-analyze", "man", "mandoc", "zsh", "fish", "strip")
NEEDED_QUICK = ("dpkg-deb", "strip")


def first(base, binary, fast):
    """Version 1.0 as it is made (`fast`: but for its compression): the Debian package, and the archive."""
    words = [sys.executable, ROOT / "scripts/package.py", "--binary", binary, "--out", base, "--version", "1.0", *(["--fast"] if fast else [])]
    nobody = {name: value for name, value in os.environ.items() if name != "MAINTAINER"}
    for env in (nobody, {**nobody, "MAINTAINER": "nobody"}):
        refused = run(words, check=False, env=env, timeout_s=300)
        if not refused.returncode or "MAINTAINER" not in refused.stderr:
            raise Failure(f"a release without a maintainer: {refused.returncode}, {refused.stderr}")
    run(words, env={**nobody, "MAINTAINER": "A Centre <hpc@example.org>"}, timeout_s=300)
    return [base / "forebay_1.0_amd64.deb", base / "forebay-1.0-x86_64-linux.tar.gz"]


def later(base, deb):
    """The same program as 2.0, and as 3.0, which says that it keeps its state in another form."""
    made = []
    other = base / "other"
    run(["dpkg-deb", "-R", deb, other])
    for version, changes in (("2.0", [("control", "Version: 1.0", "Version: 2.0")]),
                             ("3.0", [("control", "Version: 2.0", "Version: 3.0"), ("preinst", "records ", "records 1")])):
        for name, old, new in changes:
            file = other / "DEBIAN" / name
            text = file.read_text(encoding="utf-8")
            if old not in text:
                raise Failure(f"{name} of the package has no '{old}'")
            file.write_text(text.replace(old, new), encoding="utf-8")
        made.append(base / f"forebay_{version}_amd64.deb")
        run(["dpkg-deb", "-Zgzip", "-z1", "-b", other, made[-1]])
    shutil.rmtree(other)
    return made


def run_cases(there, chosen):
    failed = []
    for name in cases.ALL:
        if chosen and not any(word in name for word in chosen):
            continue
        begin = time.monotonic()
        try:
            getattr(cases, name)(there)
        except (Failure, AssertionError, OSError, ValueError) as failure:
            failed.append(name)
            say(f"FAILED {name}: {failure}")
            break
        else:
            say(f"passed {name} ({time.monotonic() - begin:.1f} s)")
    return failed


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--forebay", type=Path, default=ROOT / "target/release/forebay", help="the binary to pack")
    parser.add_argument("--only", type=lambda text: text.split(","), help="cases whose names have one of these words; each needs those before it")
    parser.add_argument("--made", type=Path, help="folder for the packages; those that are there are used")
    parser.add_argument("--quick", action="store_true", help="look into the packages only: nothing is booted, nothing installed")
    args = parser.parse_args()
    os.environ["PATH"] = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    if os.geteuid() != 0 and not args.quick:
        skip("tests/packages", "it needs root")
    if missing := [name for name in (NEEDED_QUICK if args.quick else NEEDED) if not shutil.which(name)]:
        skip("tests/packages", f"missing: {', '.join(missing)} (scripts/setup.sh package installs them)")
    if not args.quick and not Path("/lib/systemd/systemd").exists():
        skip("tests/packages", "missing: systemd (scripts/setup.sh package installs it)")
    base = Path(tempfile.mkdtemp(prefix="forebay-packages-"))
    try:
        (base / "machine").mkdir()
        folder = args.made or base / "made"
        folder.mkdir(exist_ok=True)
        made = sorted(folder.glob("*_1.0_*.deb")) + sorted(folder.glob("*.tar.gz")) or first(folder.resolve(), args.forebay.resolve(), args.quick)
        say("packages are made")
        content.look(*made, base)
        say("passed content")
        if args.quick:
            print("tests/packages: quick: all passed")
            return
        made += sorted(set(folder.glob("*.deb")) - set(made)) or later(folder.resolve(), made[0])
        with Booted(base / "machine", made) as there:
            say("systemd has booted")
            failed = run_cases(there, args.only)
            if failed:
                print(there.sh("journalctl -n 30 --no-pager -o short-precise", check=False).stdout, file=sys.stderr)
    finally:
        remove_tree(base)
    if failed:
        sys.exit(f"tests/packages: failed: {', '.join(failed)}")
    print("tests/packages: all passed")


if __name__ == "__main__":
    try:
        main()
    except Failure as failure:
        sys.exit(f"tests/packages: {failure}")
