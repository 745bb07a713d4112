#!/usr/bin/env python3
"""What two nodes may do at the same moment, each thing by itself, thousands of times.

    python3 tests/cluster/races.py [--forebay BIN] [--only create,replace,renamed,...] [--seconds 10]

`create`: all open one name with O_CREAT and without O_EXCL; each gets the file. `replace`: a name that is replaced by
rename all the time is there for everybody who opens or cuts it; ESTALE, where it is replaced twice in the midst of one
open, is told and not judged. `renamed`: a file that was drained, and changed since, gets another name; who opens that
on other nodes at this moment finds nothing or the change, and not what is on the PFS. `stored`: a file grows within its last page on one node, and another one, which has it
mapped, stores into what is new; after msync everybody reads it. `mapped`: a file grows on one node, and another one, which
has it mapped, loads its last byte as soon as the write has returned: no SIGBUS. Needs root. Exits 3 if anything went wrong.
"""

import argparse
import collections
import contextlib
import ctypes
import errno
import multiprocessing
import os
import sys
from pathlib import Path

from cluster import ROOT, Failure, cluster, say
from machine import clean_exit_on_signals, workspace
from program import MAPPED_BYTES, MS_SYNC, PAGE, Held, libc

CLIENTS = 4
PATIENCE_S = 150
MAPPED_ROUND = 1 << 32
BEHIND = """
[[rule]]
path = "/safe/**"
durability = "pfs"
"""


def creator(mount, barrier, rounds):
    wrong = collections.Counter()
    for number in range(rounds):
        barrier.wait(PATIENCE_S)
        try:
            os.close(os.open(mount / f"create-{number}", os.O_RDWR | os.O_CREAT, 0o644))
        except OSError as error:
            wrong[f"open: {errno.errorcode[error.errno]}"] += 1
    return rounds, wrong


def replacer(mount, stop):
    count = 0
    while not stop.is_set():
        count += 1
        (mount / "new").write_bytes(b"x" * (count % 100 + 1))
        os.rename(mount / "new", mount / "replaced")
    return count, collections.Counter()


def finder(mount, stop):
    count, wrong = 0, collections.Counter()
    path = mount / "replaced"
    looks = {"open": lambda: os.close(os.open(path, os.O_RDONLY)), "truncate": lambda: os.truncate(path, 5), "stat": lambda: os.stat(path)}
    while not stop.is_set():
        count += 1
        for what, look in looks.items():
            try:
                look()
            except OSError as error:
                wrong[f"{what}: {errno.errorcode[error.errno]}"] += 1
    return count, wrong


def grower(mount, stop, end):
    """Says how long the file is once the write has returned, and in which round."""
    fd = os.open(mount / "mapped", os.O_RDWR)
    count, pages = 0, MAPPED_BYTES // PAGE
    while not stop.is_set():
        turn, at = divmod(count, pages)
        if at == 0:
            end.value = turn * MAPPED_ROUND
            os.ftruncate(fd, 0)
        os.pwrite(fd, b"y" * PAGE, at * PAGE)
        end.value = turn * MAPPED_ROUND + (at + 1) * PAGE
        count += 1
    os.close(fd)
    return count, collections.Counter()


def loader(mount, stop, end):
    held, aside = Held(os.open(mount / "mapped", os.O_RDWR), True), os.memfd_create("aside")
    count, wrong = 0, collections.Counter()
    while not stop.is_set():
        turn, wanted = divmod(end.value, MAPPED_ROUND)
        if not wanted:
            continue
        count += 1
        # A program would get SIGBUS; the kernel's own copy says EFAULT.
        if libc.pwrite(aside, held.address + wanted - 1, 1, 0) != 1:
            error, now = ctypes.get_errno(), divmod(end.value, MAPPED_ROUND)
            if now[0] == turn and now[1] >= wanted:
                wrong[f"load within the size: {errno.errorcode[error]}"] += 1
    held.close()
    return count, wrong


def renamer(mount, stop):
    count = 0
    (mount / "safe").mkdir()
    old, new = mount / "safe" / "renamed", mount / "renamed"
    while not stop.is_set():
        count += 1
        fd = os.open(old, os.O_RDWR | os.O_CREAT)
        # Its level is `pfs`: what is fsynced is there.
        os.pwrite(fd, b"older", 0)
        os.fsync(fd)
        os.pwrite(fd, b"newer", 0)
        os.close(fd)
        os.rename(old, new)
        os.unlink(new)
    return count, collections.Counter()


def reader(mount, stop):
    count, wrong = 0, collections.Counter()
    while not stop.is_set():
        with contextlib.suppress(FileNotFoundError):
            fd = os.open(mount / "renamed", os.O_RDONLY)
            try:
                if os.pread(fd, 10, 0) == b"older":
                    wrong["read: what was overwritten before the rename"] += 1
            finally:
                os.close(fd)
            count += 1
    return count, wrong


def store(mounts, asks, rounds):
    """One after the other, in one process: nothing here happens at the same moment."""
    name = f"stored-{asks}"
    (mounts[0] / name).write_bytes(b"")
    held, other = Held(os.open(mounts[0] / name, os.O_RDWR), True), os.open(mounts[1] / name, os.O_RDWR)
    wrong = collections.Counter()
    for _ in range(rounds):
        os.ftruncate(other, 0)
        os.pwrite(other, b"o" * 100, 0)
        os.fstat(held.fd)
        ctypes.string_at(held.address, 100)
        os.pwrite(other, b"n" * 200, 100)
        if asks:
            os.fstat(held.fd)
        if ctypes.string_at(held.address + 100, 200) != b"n" * 200:
            wrong["load: not what the other node has written"] += 1
        # Within the page that is there: no SIGBUS in any case.
        ctypes.memmove(held.address + 150, b"s" * 100, 100)
        if libc.msync(held.address, PAGE, MS_SYNC):
            wrong[f"msync: {errno.errorcode[ctypes.get_errno()]}"] += 1
        if os.pread(other, 300, 0) != b"o" * 100 + b"n" * 50 + b"s" * 100 + b"n" * 50:
            wrong[f"store lost after msync, fstat before it: {'yes' if asks else 'no'}"] += 1
    held.close()
    os.close(other)
    return rounds, wrong


def call(results, name, body, words):
    results.put((name, *body(*words)))


def together(name, bodies, stop=None, seconds=0):
    """Runs all at once; answers how often, and what went wrong."""
    results = multiprocessing.Queue()
    programs = [multiprocessing.Process(target=call, args=(results, name, body, words), daemon=True) for body, *words in bodies]
    for program in programs:
        program.start()
    if stop is not None:
        stop.wait(seconds)
        stop.set()
    total, wrong = 0, collections.Counter()
    for _ in programs:
        _, count, found = results.get(timeout=PATIENCE_S)
        total, wrong = total + count, wrong + found
    for program in programs:
        program.join()
    told = ", ".join(f"{count} {what}" for what, count in sorted(wrong.items())) or "nothing wrong"
    print(f"races: {name}: {total} times: {told}", flush=True)
    return wrong


def of_create(mounts, _seconds):
    barrier = multiprocessing.Barrier(len(mounts))
    return together("create", [(creator, mount, barrier, 500) for mount in mounts])


def of_replace(mounts, seconds):
    (mounts[0] / "replaced").write_bytes(b"x")
    stop = multiprocessing.Event()
    wrong = together("replace", [(replacer, mounts[0], stop), *((finder, mount, stop) for mount in mounts)], stop, seconds)
    return {what: count for what, count in wrong.items() if not what.endswith("ESTALE")}


def of_renamed(mounts, seconds):
    stop = multiprocessing.Event()
    return together("renamed", [(renamer, mounts[0], stop), *((reader, mount, stop) for mount in mounts[1:])], stop, seconds)


def of_stored(mounts, _seconds):
    return together("stored", [(store, mounts, asks, 500) for asks in (False, True)])


def of_mapped(mounts, seconds):
    (mounts[0] / "mapped").write_bytes(b"")
    stop, end = multiprocessing.Event(), multiprocessing.Value("l", 0)
    return together("mapped", [(grower, mounts[0], stop, end), (loader, mounts[1], stop, end)], stop, seconds)


RACES = {"create": of_create, "replace": of_replace, "renamed": of_renamed, "stored": of_stored, "mapped": of_mapped}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--forebay", type=Path, default=ROOT / "target/release/forebay", help="the binary to test")
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(RACES), help=f"some of {', '.join(RACES)}")
    parser.add_argument("--seconds", type=float, default=10, help="of each that has no number of rounds (10)")
    args = parser.parse_args()
    if unknown := set(args.only) - set(RACES):
        parser.error(f"no such races: {', '.join(sorted(unknown))}; there are {', '.join(RACES)}")
    try:
        with clean_exit_on_signals(), workspace("forebay-races-") as base:
            with cluster(args.forebay.resolve(), base, CLIENTS, "64MiB", "256MiB", behind=BEHIND) as running:
                wrong = [name for name in args.only if RACES[name](running.mounts, args.seconds)]
    except KeyboardInterrupt:
        return 130
    except (Failure, OSError) as error:
        say(f"races: {error}")
        return 3
    if wrong:
        say(f"races: wrong: {', '.join(wrong)}")
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
