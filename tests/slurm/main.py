#!/usr/bin/env python3
"""Forebay's plugin for Slurm, in a Slurm of its own: Debian's slurmctld, slurmd and munge, on the loopback of namespaces
that end with this test. Needs root; skips, with a line, where that or a program is missing.

    make test-slurm [ONLY=stage,cancel]
"""

import argparse
import os
import shutil
import socket
import sys
import tempfile
import time
from pathlib import Path

import cases
import faults
from slurm_site import HOST, ROOT, Site

from loopext4 import loop_ext4, say
from machine import MIB, Failure, run, skip, unmount_below

NEEDED = ("slurmctld", "slurmd", "sbatch", "munged", "unshare", "setpriv", "mkfs.ext4", "sudo")
PFS_BYTES = 160 * MIB
# Of --quick: what a user sees of it, and the worst that a PFS does in a moment.
QUICK = ("stage_in_then_run_then_stage_out", "a_job_has_a_directory_that_goes_with_it", "wrong_directives_are_refused_at_submission",
         "killed_and_failed_jobs_are_staged_out_and_cleaned_up", "a_full_pfs_holds_the_job_and_names_the_file", "scripts_of_datawarp_run")
INSIDE = "FOREBAY_TEST_SLURM_INSIDE"


def go_inside():
    """Runs this program again as the first process of new namespaces: nothing that it starts outlives it."""
    # Administrators' tools are not in everybody's PATH.
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    if os.geteuid() != 0:
        skip("tests/slurm", "it needs root")
    if missing := [name for name in NEEDED if not shutil.which(name, path=path)]:
        skip("tests/slurm", f"missing: {', '.join(missing)} (scripts/setup.sh slurm installs them)")
    if not any(Path("/usr/lib").glob("*/slurm*/burst_buffer_lua.so")):
        skip("tests/slurm", "this Slurm was built without burst_buffer/lua")
    base = tempfile.mkdtemp(prefix="forebay-slurm-")
    os.chmod(base, 0o755)
    os.environ.update({INSIDE: base, "PATH": path})
    child = os.spawnvp(os.P_WAIT, "unshare", ["unshare", "--mount", "--net", "--uts", "--ipc", "--pid", "--fork", "--kill-child",
                                             "--mount-proc", sys.executable, *sys.argv])
    if child == 0 or "--keep" not in sys.argv:
        shutil.rmtree(base)
    else:
        print(f"logs: {base}/run", file=sys.stderr)
    sys.exit(1 if child else 0)


def run_cases(site, names, chosen):
    failed = []
    for name in names:
        if chosen and not any(word in name for word in chosen):
            continue
        begin = time.monotonic()
        try:
            (getattr(cases, name, None) or getattr(faults, name))(site)
        except (Failure, AssertionError, OSError, ValueError) as failure:
            failed.append(name)
            say(f"FAILED {name}: {failure}")
        else:
            say(f"passed {name} ({time.monotonic() - begin:.1f} s)")
    return failed


def inside(base, args):
    socket.sethostname(HOST)
    run(["ip", "link", "set", "lo", "up"])
    # Names are looked up with AI_ADDRCONFIG: addresses of 127.0.0.0/8 alone do not count.
    run(["ip", "address", "add", "10.77.77.1/32", "dev", "lo"])
    failed = []
    with loop_ext4(base, "pfs", PFS_BYTES) as pfs:
        pfs.chmod(0o755)
        # slurmctld as root, the plugin's own keyword; then a user of its own, DataWarp's.
        for slurm_user, directive, names in (("root", None, cases.AS_ROOT + faults.AS_ROOT),
                                             ("slurmy", "DW", cases.BY_SUDO + faults.BY_SUDO)):
            site = Site(base, args.forebay, slurm_user, directive)
            if not (site.home).exists():
                site.users()
                site.burst_buffer()
            site.configure()
            if slurm_user != "root":
                site.sudo()
            try:
                site.munge()
                site.controller()
                site.nodes()
                say(f"Slurm runs as {slurm_user}")
                failed += run_cases(site, names, args.only)
            finally:
                site.close()
        run([site.forebay, "down", "--state", site.state], timeout_s=60)
        unmount_below(site.mount)
    return failed


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--forebay", type=Path, default=ROOT / "target/release/forebay", help="the binary to test")
    parser.add_argument("--only", type=lambda text: text.split(","), help="cases whose names have one of these words")
    parser.add_argument("--quick", action="store_true", help="a few cases, in some seconds")
    parser.add_argument("--keep", action="store_true", help="keep the logs of a run that failed")
    args = parser.parse_args()
    args.only = QUICK if args.quick else args.only
    args.forebay = args.forebay.resolve()
    if not args.forebay.exists():
        sys.exit(f"{args.forebay} is missing: make build")
    if not os.environ.get(INSIDE):
        go_inside()
    failed = inside(Path(os.environ[INSIDE]), args)
    if failed:
        sys.exit(f"tests/slurm: failed: {', '.join(failed)}")
    print("tests/slurm: all passed")


if __name__ == "__main__":
    try:
        main()
    except Failure as failure:
        sys.exit(f"tests/slurm: {failure}")
