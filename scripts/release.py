#!/usr/bin/env python3
"""Makes dist/: the stripped binary with what belongs to it in one archive, checksums, the licences of all that is in the binary.

The version is that of Cargo.toml. Where HEAD is not tagged `v<version>`, or something is changed, the archive's name says so.
"""

import argparse
import gzip
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

from machine import Failure, ROOT, run

TARGET = "x86_64-unknown-linux-gnu"
BESIDE_THE_BINARY = ("README.md", "CHANGELOG.md", "LICENSE-APACHE", "LICENSE-MIT")
LICENCE_FILE = re.compile(r"(?i)^((un)?licen[cs]e|copying|copyright|notice|ofl|ufl)(?!.*\.rs$)")
CARGO = os.environ.get("CARGO", "cargo")


def git(*words):
    return run(["git", *words], cwd=ROOT).stdout.strip()


def metadata():
    words = ["metadata", "--format-version", "1", "--locked", "--filter-platform", TARGET]
    return json.loads(run([CARGO, *words], cwd=ROOT).stdout)


def version_of(cargo):
    """The version in Cargo.toml, and what the archive is called."""
    version = next(package["version"] for package in cargo["packages"] if package["name"] == "forebay")
    if f"v{version}" in git("tag", "--points-at", "HEAD").split():
        check_changelog(version)
        name = version
    else:
        name = f"{version}+git.{git('rev-parse', '--short=10', 'HEAD')}"
    return version, name + (".changed" if git("status", "--porcelain") else "")


def check_changelog(version):
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    if not re.search(rf"(?m)^## {re.escape(version)}\b", text):
        raise Failure(f"HEAD is tagged v{version}, and CHANGELOG.md has no section '## {version}'")


def contained(cargo):
    """Packages whose code is in the binary: what `forebay` needs, and what that needs, tests and build scripts left out."""
    nodes = {node["id"]: node for node in cargo["resolve"]["nodes"]}
    packages = {package["id"]: package for package in cargo["packages"]}
    waiting = [id_ for id_, package in packages.items() if package["name"] == "forebay"]
    found = set()
    while waiting:
        here = waiting.pop()
        if here in found:
            continue
        found.add(here)
        for dependency in nodes[here]["deps"]:
            if any(kind["kind"] is None for kind in dependency["dep_kinds"]):
                waiting.append(dependency["pkg"])
    return sorted((packages[id_] for id_ in found), key=lambda package: (package["name"], package["version"]))


def is_ours(package):
    folder = Path(package["manifest_path"]).parent
    return ROOT in folder.parents and ROOT / "vendor" not in folder.parents


def licence_files(folder):
    """In the package's folder and one below: fonts have theirs beside them."""
    return sorted(path for path in [*folder.glob("*"), *folder.glob("*/*")] if path.is_file() and LICENCE_FILE.match(path.name))


def texts_of(package):
    """Licence texts of a package."""
    files = licence_files(Path(package["manifest_path"]).parent)
    if named := package.get("license_file"):
        files.append(Path(package["manifest_path"]).parent / named)
    return [path.read_text(encoding="utf-8", errors="replace").strip() for path in dict.fromkeys(files)]


def licences(packages):
    """One text: who is in it under which licence, then every licence text once, with the packages that bring it."""
    lines = ["What is in the binary, under which licence. The texts follow, each once, with the packages that it comes from.",
             "The standard library of Rust is in it, too: Apache-2.0 OR MIT, the Rust Project Developers.", ""]
    by_text, bare = {}, []
    for package in packages:
        title = f"{package['name']} {package['version']}"
        licence = package["license"] or "see its text"
        lines.append(f"{title}: {licence}" + (f" ({', '.join(package['authors'])})" if package["authors"] else ""))
        if not package["license"] and not package.get("license_file"):
            raise Failure(f"{title} says no licence")
        texts = texts_of(package)
        for text in texts:
            by_text.setdefault(text, []).append(title)
        if not texts:
            bare.append(title)
    if bare:
        lines += ["", "Without a text in the package (that of the licence named above holds; those of Apache-2.0 and MIT are below): "
                  + ", ".join(bare)]
    for text, titles in by_text.items():
        lines += ["", "=" * 100, ", ".join(titles), "-" * 100, "", text]
    return "\n".join(lines) + "\n", bare


def build(version):
    """The release binary; it says the version that the archive is named after."""
    print(f"building forebay {version}", flush=True)
    subprocess.run([CARGO, "build", "--release", "--locked", "-p", "forebay"], cwd=ROOT, check=True)
    return Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release/forebay"


def check_binary(binary, version):
    said = run([binary, "--version"]).stdout.strip()
    if said != f"forebay {version}":
        raise Failure(f"{binary} calls itself '{said}', not forebay {version}")


def tidy(info):
    """The same archive from the same commit, whoever makes it."""
    info.uid = info.gid = 0
    info.uname = info.gname = "root"
    info.mtime = int(os.environ.get("SOURCE_DATE_EPOCH", 0)) or int(git("log", "-1", "--format=%ct"))
    return info


def pack(dist, name, binary, version, packages):
    top = dist / f"forebay-{name}-{TARGET}"
    top.mkdir()
    run(["strip", "--strip-all", "-o", top / "forebay", binary])
    check_binary(top / "forebay", version)
    for file in BESIDE_THE_BINARY:
        shutil.copy(ROOT / file, top / file)
    text, bare = licences([package for package in packages if not is_ours(package)])
    (top / "LICENSES-THIRD-PARTY.txt").write_text(text, encoding="utf-8")
    for title in bare:
        print(f"no licence text in the package: {title}")
    archive = dist / f"{top.name}.tar.gz"
    with (archive.open("wb") as file, gzip.GzipFile("", "wb", fileobj=file, mtime=0) as zipped,
          tarfile.open(fileobj=zipped, mode="w") as tar):
        tar.add(top, top.name, filter=tidy)
    checksums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(dist)}\n"
                 for path in [archive, *sorted(top.iterdir())]]
    (dist / "SHA256SUMS").write_text("".join(checksums), encoding="utf-8")
    return archive


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", type=Path, help="pack this one instead of building it")
    args = parser.parse_args()
    try:
        cargo = metadata()
        version, name = version_of(cargo)
        binary = args.binary or build(version)
        dist = ROOT / "dist"
        if dist.exists():
            shutil.rmtree(dist)
        dist.mkdir()
        archive = pack(dist, name, binary, version, contained(cargo))
    except (Failure, OSError) as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    except subprocess.CalledProcessError as error:
        print(f"release: {' '.join(error.cmd)}: exit {error.returncode}", file=sys.stderr)
        return 1
    print(f"{archive.relative_to(ROOT)}: {archive.stat().st_size / 1e6:.1f} MB; dist/SHA256SUMS")
    return 0


if __name__ == "__main__":
    sys.exit(main())
