"""The suites, and how each is judged. Every one gets a place and says what it found; `Failure` means that it failed."""

import concurrent.futures
import contextlib
import os
import re
import shutil
import threading
import time

from churn import Churn
from machine import MIB, ROOT, Failure, run
from mpi import ompio, romio, romio321
from place import say
from programs import git, h5py, sqlite

HERE = ROOT / "tests/posix"
SOCKET_PATH_BYTES_MAX = 107
# What the suite adds to the folder: a directory each for the run and the case, and names of 32 bytes.
PJDFSTEST_ADDS_BYTES = 60
PJDFSTEST_LINE = re.compile(r"^(\S+::\S+)\s+(ok|skipped|FAILED|PASSED UNEXPECTEDLY|failed as expected)$", re.M)


def pjdfstest(here, args):
    """The POSIX rules of single calls, against the same run on the PFS itself."""
    bare = here.pfs / "bare"
    bare.mkdir(mode=0o755)
    if len(str(here.mount)) + PJDFSTEST_ADDS_BYTES > SOCKET_PATH_BYTES_MAX:
        raise Failure(f"{here.mount} is too long for sockets in it: choose a shorter --work")
    folder, _ = here.folder("pjd")
    expected = run_pjdfstest(here, args, bare)
    # On each node, side by side, while the other ones look at all there is: what they believe has to be recalled.
    folders = [folder] if len(here.mounts) == 1 else own_folders(here, folder)
    with looked_at(here, folder), concurrent.futures.ThreadPoolExecutor(len(folders)) as each:
        all_found = list(each.map(lambda path: run_pjdfstest(here, args, path), folders))
    problems = [f"{case}: {text}" for found in all_found for case, text in sorted(found.items()) if text not in ("ok", "skipped")]
    found = all_found[0]
    skipped = {case for case, text in found.items() if text == "skipped" and expected.get(case) != "skipped"}
    excluded = args.exclusions["pjdfstest"]
    problems += [f"{case}: skipped here, but not on the PFS itself" for case in sorted(skipped - set(excluded))]
    problems += [f"{case}: excluded, but it is not skipped" for case in excluded if case not in skipped]
    problems += [f"{case}: not run" for case in expected.keys() - found.keys()]
    if problems:
        raise Failure("; ".join(problems))
    count = {text: sum(1 for each in found.values() if each == text) for text in ("ok", "skipped")}
    bare_ok = sum(1 for each in expected.values() if each == "ok")
    return {"passed": count["ok"], "skipped": count["skipped"], "passed_on_pfs": bare_ok, "nodes": len(folders)}


def own_folders(here, folder):
    """One for each node, as that sees it."""
    found = []
    for number, mount in enumerate(here.mounts):
        (folder / f"{number}").mkdir(mode=0o755)
        found.append(mount / folder.name / f"{number}")
    return found


@contextlib.contextmanager
def looked_at(here, folder):
    """Each node but the first lists the folder, and asks for the attributes of what is there, all the time."""
    over = threading.Event()

    def look(at):
        while not over.wait(0.05):
            for parent, dirs, files in os.walk(at, onerror=lambda _: None):
                for name in (*dirs, *files):
                    # Most of it is gone again, or may not be seen.
                    with contextlib.suppress(OSError):
                        os.lstat(os.path.join(parent, name))

    lookers = [threading.Thread(target=look, args=(mount / folder.name,)) for mount in here.mounts[1:]]
    for looker in lookers:
        looker.start()
    try:
        yield
    finally:
        over.set()
        for looker in lookers:
            looker.join()


def run_pjdfstest(here, args, path):
    done = run([args.tools / "pjdfstest", "-c", HERE / "pjdfstest.toml", "-p", path, "-s", here.other],
               check=False, timeout_s=300, env=args.environment())
    cases = dict(PJDFSTEST_LINE.findall(done.stdout))
    total = re.search(r"(\d+) total", done.stdout)
    if not cases or not total or int(total[1]) != len(cases):
        raise Failure(f"pjdfstest on {path}: exit {done.returncode}, {len(cases)} cases understood: "
                      f"{(done.stderr or done.stdout)[-300:].strip()}")
    return cases


def fsx(here, args):
    """Random operations on one file, every read compared, while it is demoted, evicted and staged in."""
    folder, on_pfs = here.folder("fsx")
    seeds = range(args.seed, args.seed + args.fsx_seeds)
    moved = {}
    for seed in seeds:
        began = time.monotonic()
        path = folder / f"file-{seed}"
        path.touch()
        with Churn(here, path) as churn:
            done = run([args.tools / "fsx", "-f", HERE / "fsx.toml", "-N", args.fsx_operations, "-S", seed,
                        "-P", here.other, path], check=False, timeout_s=7200)
            if done.returncode:
                # What went wrong comes first, then the last operations.
                raise Failure(f"seed {seed}: exit {done.returncode}: {done.stderr[:800].strip()} ... "
                              f"{done.stderr[-800:].strip()}")
        demoted_bytes = churn.demoted_bytes()
        if not churn.rounds or not demoted_bytes:
            raise Failure(f"seed {seed}: nothing was moved meanwhile: it proves too little")
        same_after_drain(here, path, on_pfs / path.name)
        for name, count in {"rounds": churn.rounds, "demoted_bytes": demoted_bytes, **churn.moved}.items():
            moved[name] = moved.get(name, 0) + count
        say(f"{here.way}: fsx: seed {seed}: {args.fsx_operations} operations in {time.monotonic() - began:.0f} s "
            f"beside {churn.rounds} rounds of moving ({churn.moved})")
    return {"seeds": list(seeds), "operations": args.fsx_operations * len(seeds), **moved}


def same_after_drain(here, path, on_pfs):
    """The file has the same content through the mount and, drained, on the PFS, and once more read from there."""
    content = path.read_bytes()
    for steps in range(1, len(here.mounts)):
        if here.elsewhere(path, steps).read_bytes() != content:
            raise Failure(f"{path.name}: node {steps + 1} sees another content")
    here.drain(path)
    if on_pfs.read_bytes() != content:
        raise Failure(f"{path.name}: the PFS has another content after the drain")
    here.release(path)
    if path.read_bytes() != content:
        raise Failure(f"{path.name}: another content after it was released")


STRESS_FAILED = re.compile(r"stress-ng: (?:fail|error): \[\d+\] (\S+?):")


def stress_ng(here, args):
    """Every stressor of the class `filesystem` with its own verification."""
    folder, _ = here.folder("stress-ng")
    excluded = args.exclusions["stress-ng"]
    names = [name for name in stressors() if name not in excluded]
    if args.quick:
        names = names[::8]
    failed, skipped = {}, []
    for name in names:
        done = run(["stress-ng", f"--{name}", "1", "--timeout", "1s", "--verify", "--temp-path", folder,
                    "--oom-avoid"], check=False, timeout_s=120)
        text = done.stdout + done.stderr
        if done.returncode in (3, 4) or f"skipped: 1: {name}" in text:
            skipped.append(name)
        elif done.returncode:
            lines = [line for line in text.splitlines() if "fail:" in line or "error:" in line]
            failed[name] = " / ".join(lines[:3]) or f"exit {done.returncode}"
    for name in list(failed):
        bare = here.pfs / f"bare-{name}"
        bare.mkdir()
        done = run(["stress-ng", f"--{name}", "1", "--timeout", "1s", "--verify", "--temp-path", bare], check=False,
                   timeout_s=120)
        shutil.rmtree(bare)
        if done.returncode:
            say(f"{here.way}: stress-ng: {name} fails on the PFS itself, too")
            skipped.append(name)
            del failed[name]
    if failed:
        raise Failure("; ".join(f"{name}: {why}" for name, why in failed.items()))
    return {"stressors": len(names) - len(skipped), "not_for_this_machine": skipped, "excluded": list(excluded)}


def stressors():
    """Names of the class, from the program itself."""
    done = run(["stress-ng", "--class", "filesystem?"], check=False)
    names = re.search(r"class 'filesystem' stressors: (.*)", done.stdout + done.stderr)
    if not names:
        raise Failure(f"stress-ng does not list its class filesystem: {done.stderr.strip()}")
    return names[1].split()


# Shapes of I/O; each file is verified as it is written, and again read from the PFS.
FIO = {
    "sequential": "--rw=write --bs=1m --ioengine=psync",
    "random": "--rw=randrw --bs=4k --ioengine=libaio --iodepth=8",
    "unaligned": "--rw=randwrite --bsrange=512-64k --bs_unaligned=1 --fsync=16 --ioengine=psync",
    "direct": "--rw=randwrite --bs=16k --direct=1 --ioengine=libaio --iodepth=16",
    "mmap": "--rw=randwrite --bs=4k --ioengine=mmap",
    "several": "--rw=randwrite --bs=32k --numjobs=3 --ioengine=psync --end_fsync=1",
}


def fio(here, args):
    """Checksums of every block, in several shapes."""
    folder, _ = here.folder("fio")
    size = "4m" if args.quick else "48m"
    for name, shape in FIO.items():
        common = [f"--name={name}", f"--directory={folder}", f"--size={size}", *shape.split(), "--verify=crc32c",
                  "--verify_fatal=1", f"--randseed={args.seed}", "--group_reporting", "--output-format=terse"]
        run(["fio", *common, "--do_verify=1"], cwd=here.other, timeout_s=600)
        here.drain(folder)
        here.release(folder)
        reread = [word for word in common if not word.startswith("--fsync")]
        run(["fio", *reread, "--verify_only=1"], cwd=here.other, timeout_s=600)
    return {"shapes": list(FIO), "bytes_each": size}



ALL = {"pjdfstest": pjdfstest, "fsx": fsx, "stress-ng": stress_ng, "fio": fio, "h5py": h5py, "sqlite": sqlite, "git": git,
       "romio": romio, "ompio": ompio, "romio321": romio321}
# Those that fit into `make test`.
SHORT = ("pjdfstest", "fsx")
