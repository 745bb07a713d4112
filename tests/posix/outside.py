"""Suites that are built elsewhere: xfstests and LTP, from the folders given. What they are told to leave out is in exclusions.toml."""

import fnmatch
import os
import re
import shlex
import shutil

from place import options_of, say

from machine import Failure, is_mounted, remove_tree, run, unmount_below

ONE_CASE_S = 300
ALL_CASES_S = 4 * 3600


def xfstests(here, args):
    """xfstests, the generic quick ones: on a burst buffer of its own for each of its two devices."""
    folder = args.xfstests.resolve()
    if not (folder / "check").exists() or not (folder / "ltp/fsstress").exists():
        raise Failure(f"{folder} is no xfstests that has been built")
    excluded = matching(args.exclusions["xfstests"], [f"generic/{path.name}" for path in (folder / "tests/generic").iterdir()
                                                      if path.name.isdigit()], here.way)
    base = here.other.parent / "x"
    base.mkdir()
    try:
        environment = xfstests_environment(here, base, args)
        (base / "left-out").write_text("".join(f"{name}\n" for name in excluded), encoding="ascii")
        which = args.cases or ["-g", "generic/quick"]
        done = run([folder / "check", "-fuse", "-E", base / "left-out", *which], check=False, cwd=folder,
                   timeout_s=ALL_CASES_S, env=environment)
    finally:
        for point in ("test", "scratch"):
            leave(base, point)
        remove_tree(base)
    return judge_xfstests(done, excluded)


def judge_xfstests(done, excluded):
    def named(what):
        found = re.search(rf"^{what}: (.*)$", done.stdout, re.M)
        return found[1].split() if found else []

    ran, skipped, failed = named("Ran"), named("Not run"), named("Failures")
    if not ran:
        raise Failure(f"xfstests: exit {done.returncode}, nothing ran: {(done.stderr or done.stdout)[-400:].strip()}")
    if failed:
        raise Failure(f"{len(failed)} of {len(ran)} fail: {' '.join(failed)}")
    return {"passed": len(set(ran) - set(skipped)), "skipped": len(skipped), "left_out": len(excluded)}


def xfstests_environment(here, base, args):
    """Its devices are state folders; `mount`, `umount` and `df` that know these stand before the system's."""
    tools = base / "bin"
    tools.mkdir()
    for point in ("test", "scratch"):
        for folder in (base / point, here.pfs / f"x-{point}", base / f"{point}-state"):
            folder.mkdir()
    flash = here.pfs.parent / "flash"
    options = {point: flash / f"x-{point}" for point in ("test", "scratch")}
    lines = ["#!/bin/sh", f"base={shlex.quote(str(base))}", f"forebay={shlex.quote(str(args.forebay))}"]
    mount = shutil.which("mount")
    # The system's own: what the kernel remounts needs no help.
    up = [*lines, 'for last; do :; done', 'case "$*" in', f'*remount*) exec {mount} -i "$@";;']
    for point, where in options.items():
        where.mkdir()
        words = shlex.join(str(word) for word in options_of(here.way, where))
        # Some cases run programs with set-user-id bits, or use devices.
        up.append(f'*"-t fuse.forebay"*" $base/{point}") "$forebay" up --pfs {shlex.quote(str(here.pfs))}/x-{point} '
                  f'--mount "$base/{point}" --state "$base/{point}-state" {words} --detach >/dev/null && '
                  f'exec {mount} -i -o remount,dev,suid "$base/{point}"; exit 32;;')
    up += ['esac', f'exec {mount} "$@"']
    # The daemon ends by itself; another one may be started as soon as it has.
    down = [*lines, 'for last; do :; done', 'case "$last" in']
    for point in options:
        down.append(f'"$base/{point}"|"$base/{point}-state") pid=$(cat "$base/{point}-state/forebay.pid" 2>/dev/null); '
                    f'{shutil.which("umount")} "$base/{point}" || exit; '
                    'while [ -n "$pid" ] && kill -0 "$pid" 2>/dev/null; do sleep 0.1; done; exit 0;;')
    down += ['esac', f'exec {shutil.which("umount")} "$@"']
    df = ["#!/bin/sh", f'{shutil.which("df")} "$@" | sed "s/fuse\\.forebay/fuse/"']
    for name, text in (("mount", up), ("umount", down), ("df", df)):
        (tools / name).write_text("\n".join(text) + "\n", encoding="utf-8")
        (tools / name).chmod(0o755)
    return args.environment(
        PATH=f"{tools}:/usr/sbin:/sbin:{os.environ['PATH']}", HOST_OPTIONS=base / "no-options", RESULT_BASE=base / "results",
        FSTYP="fuse", FUSE_SUBTYP=".forebay", TEST_DEV=base / "test-state", TEST_DIR=base / "test",
        SCRATCH_DEV=base / "scratch-state", SCRATCH_MNT=base / "scratch", LC_ALL="C")


def leave(base, point):
    if is_mounted(base / point):
        unmount_below(base / point)


def matching(patterns, names, way):
    """Names that are left out on this way, which `@WAY` after a pattern may name; a pattern that matches none is out of date."""
    split = [pattern.partition("@") for pattern in patterns]
    matched = {pattern: fnmatch.filter(names, pattern) for pattern, _, only in split if only in ("", way)}
    if unused := [pattern for pattern, found in matched.items() if not found]:
        raise Failure(f"excluded, but not there: {', '.join(unused)}")
    return sorted({name for found in matched.values() for name in found})


# Lists of cases in its folder `runtest`.
LTP_LISTS = ("syscalls", "fs", "dio")
# Of its exit status: something was not as it should be, or could not be tried at all.
LTP_FAILED, LTP_BROKEN, LTP_NOT_FOR_HERE = 1, 2, 32


def ltp(here, args):
    """LTP's system calls, fs and dio; what fails on the PFS itself, too, is named and does not count."""
    root = args.ltp.resolve()
    cases = {}
    for name in LTP_LISTS:
        if not (path := root / "runtest" / name).exists():
            raise Failure(f"{root} is no folder that LTP was installed into: no runtest/{name}")
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.strip() and not line.startswith("#"):
                case, command = line.split(None, 1)
                cases[case] = command
    excluded = set(matching(args.exclusions["ltp"], list(cases), here.way))
    chosen = [case for case in cases if case not in excluded]
    if args.cases:
        chosen = [case for case in chosen if any(fnmatch.fnmatch(case, pattern) for pattern in args.cases)]
    folder, on_pfs = here.folder("ltp")[0], here.pfs / "ltp-bare"
    folder.chmod(0o1777)
    on_pfs.mkdir()
    on_pfs.chmod(0o1777)
    failed, as_on_pfs, skipped = [], [], 0
    for case in chosen:
        status = run_ltp(root, cases[case], folder, args)
        skipped += status == LTP_NOT_FOR_HERE
        if status is not None and not status & (LTP_FAILED | LTP_BROKEN):
            continue
        bare = run_ltp(root, cases[case], on_pfs, args)
        if bare == status:
            as_on_pfs.append(case)
        else:
            failed.append(f"{case} ({'no end' if status is None else status}, {bare} on the PFS)")
            say(f"{here.way}: ltp: {failed[-1]}")
    if failed:
        raise Failure(f"{len(failed)} of {len(chosen)} fail: {', '.join(failed)}")
    return {"passed": len(chosen) - skipped - len(as_on_pfs), "skipped": skipped, "as_on_the_pfs": as_on_pfs,
            "left_out": len(excluded)}


def run_ltp(root, command, folder, args):
    """Its exit status; `None` if it came to no end."""
    environment = args.environment(LTPROOT=root, TMPDIR=folder, TMP=folder, LTP_COLORIZE_OUTPUT="n",
                                   PATH=f"{root}/testcases/bin:{os.environ['PATH']}")
    try:
        return run(["sh", "-c", command], check=False, cwd=folder, timeout_s=ONE_CASE_S, env=environment).returncode
    except Failure:
        return None
