#!/usr/bin/env python3
"""Files that come in before a program asks for them, against the slow PFS itself.

    epoch   a folder of small files on a PFS that is far away (a delay for each lookup, open and read): a training run reads all of it, twice,
            in the order of their names and, once more, in no order, each with and without a rule that trusts the copies (`trust`)
    list    files of a PFS that is narrow (a limited device): a program reads a list of them and computes in between, without Forebay, with
            `prefetch --list`, and with all of them in memory before
    runs    files of the same narrow PFS: a program reads them every so often, five times, and in between they are dropped from the burst buffer
"""

import argparse
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

from systems import Failure, Forebay, Programs, ROOT, is_mounted, run, say, stop, workspace

from slowpfs import slow_pfs  # noqa: E402 isort:skip: `systems` knows the way to it

MIB = 1 << 20


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--forebay", type=Path, default=ROOT / "target/release/forebay")
    parser.add_argument("--programs", type=Path, help="folder with bare-passthrough")
    parser.add_argument("--files", type=int, default=20_000, help="files of an epoch")
    parser.add_argument("--file-kib", type=int, default=100)
    parser.add_argument("--latency-ms", type=int, default=2)
    parser.add_argument("--list-files", type=int, default=200)
    parser.add_argument("--only", choices=["epoch", "list", "runs"])
    parser.add_argument("--period-s", type=float, default=60.0, help="between two starts of a run")
    parser.add_argument("--run-files", type=int, default=25, help="files of a run, 8 MiB each")
    parser.add_argument("--work", type=Path)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    return parser.parse_args()


def drop_caches():
    """What the kernel remembers of names and pages is not what is measured."""
    Path("/proc/sys/vm/drop_caches").write_text("3")


def read_all(folder, names, size, compute_s=0.0):
    """Seconds."""
    begun_s = time.monotonic()
    for name in names:
        with open(folder / name, "rb", buffering=0) as file:
            found = 0
            while part := file.read(MIB):
                found += len(part)
        if found != size:
            raise Failure(f"{name}: {found} bytes, not {size}")
        if compute_s:
            time.sleep(compute_s)
    return time.monotonic() - begun_s


def ahead(forebay):
    return forebay.status()["ahead"]


class FarAway:
    """A PFS with a delay."""

    def __init__(self, programs, source, mount, latency_ms):
        self.path = mount
        mount.mkdir()
        self._process = subprocess.Popen(
            [str(programs.bare), "--plain", "--permissions", "--threads", "32", "--latency", str(latency_ms), str(source), str(mount)],
            start_new_session=True)

    def __enter__(self):
        deadline_s = time.monotonic() + 10
        while not is_mounted(self.path):
            if time.monotonic() > deadline_s or self._process.poll() is not None:
                raise Failure("the slow file system does not start")
            time.sleep(0.02)
        return self

    def __exit__(self, *_):
        stop(self._process)


def epoch(args, programs, base):
    size = args.file_kib << 10
    source = base / "far-source"
    (source / "data").mkdir(parents=True)
    names = [f"{n:06}.bin" for n in range(args.files)]
    for name in names:
        (source / "data" / name).write_bytes(os.urandom(size))
    mixed = names[:]
    random.Random(7).shuffle(mixed)
    figures = {}
    with FarAway(programs, source, base / "far", args.latency_ms) as far:
        sample = names[: max(len(names) // 20, 200)]
        drop_caches()
        pfs_s = read_all(far.path / "data", sample, size) * len(names) / len(sample)
        say(f"the PFS itself: {pfs_s:.1f} s per epoch (from {len(sample)} files)")
        trusted = "[[rule]]\npath = \"/**\"\ntrust = \"1h\"\n"
        for order, files, rules in [("by name", names, ""), ("in no order", mixed, ""), ("by name, trusted", names, trusted), ("in no order, trusted", mixed, trusted)]:
            config = base / "ahead.toml"
            config.write_text(f"[demotion]\nidle = false\n{rules}")
            capacity = 5 * len(names) * size // MIB
            with Forebay(args.forebay, far.path, base / "mnt", base / f"state-{len(figures)}", ["--dram", f"{capacity}MiB", "--config", config]) as forebay:
                spans_s = []
                for number in (1, 2):
                    drop_caches()
                    spans_s.append(read_all(forebay.mount / "data", files, size))
                    say(f"{order}, epoch {number}: {spans_s[-1]:.1f} s, {pfs_s / spans_s[-1]:.1f} x the PFS; {ahead(forebay)}")
                    time.sleep(2)
                worth = ahead(forebay)
            figures[order] = {"first": pfs_s / spans_s[0], "second": pfs_s / spans_s[1], "wasted": worth["wasted_bytes"] / max(worth["guessed_bytes"], 1)}
    return figures


def listed(args, base):
    size, count = 4 * MIB, args.list_files
    names = [f"{n * 7919 % count:04}.bin" for n in range(count)]
    with slow_pfs(base, 100 * MIB, 100 * MIB) as (pfs, what):
        say(what)
        (pfs / "data").mkdir()
        for name in names:
            with open(pfs / "data" / name, "wb") as file:
                file.write(os.urandom(size))
        # Reading takes less than computing: 40 ms at 100 MiB/s.
        compute_s = 0.06
        drop_caches()
        alone_s = read_all(pfs / "data", names, size, compute_s)
        say(f"the PFS itself: {alone_s:.1f} s")
        spans_s = {}
        for how in ("list", "memory"):
            config = base / "ahead.toml"
            config.write_text("[engine]\nread_ahead = \"0%\"\n")
            with Forebay(args.forebay, pfs, base / "mnt", base / f"state-{how}", ["--dram", f"{3 * count * size // MIB}MiB", "--config", config]) as forebay:
                drop_caches()
                if how == "list":
                    order = base / "order.txt"
                    order.write_text("".join(f"{forebay.mount / 'data' / name}\n" for name in names))
                    run([args.forebay, "prefetch", "--list", order])
                else:
                    run([args.forebay, "prefetch", forebay.mount / "data"])
                spans_s[how] = read_all(forebay.mount / "data", names, size, compute_s)
                say(f"{how}: {spans_s[how]:.1f} s; {ahead(forebay)}")
    return {"of memory": spans_s["memory"] / spans_s["list"], "of the PFS": alone_s / spans_s["list"]}


def here(forebay, program, names, size):
    """The share of the files' bytes that is in the burst buffer."""
    listed = json.loads(run([program, "where", "--json", *[forebay.mount / "data" / name for name in names]]).stdout)
    return sum(entry["size_bytes"] for entry in listed if entry["state"] == "clean") / (len(names) * size)


def runs(args, base):
    size, count = 8 * MIB, args.run_files
    names = [f"{n * 7 % count:04}.bin" for n in range(count)]
    shares, spans_s = [], []
    with slow_pfs(base, 100 * MIB, 100 * MIB) as (pfs, what):
        say(what)
        (pfs / "data").mkdir()
        for name in names:
            (pfs / "data" / name).write_bytes(os.urandom(size))
        drop_caches()
        alone_s = read_all(pfs / "data", names, size)
        with Forebay(args.forebay, pfs, base / "mnt", base / "state-runs", ["--dram", f"{5 * count * size // MIB}MiB"]) as forebay:
            drop = lambda: run([args.forebay, "release", forebay.mount / "data"])
            say(f"the PFS itself: {alone_s:.2f} s")
            drop_caches()
            begun_s = time.monotonic()
            for number in range(1, 6):
                time.sleep(max(begun_s + (number - 1) * args.period_s - 1 - time.monotonic(), 0))
                shares.append(here(forebay, args.forebay, names, size))
                time.sleep(max(begun_s + (number - 1) * args.period_s - time.monotonic(), 0))
                spans_s.append(read_all(forebay.mount / "data", names, size))
                say(f"run {number}: {shares[-1]:.0%} there before it, {spans_s[-1]:.2f} s, {alone_s / spans_s[-1]:.2f} x the PFS")
                time.sleep(2)
                drop()
                drop_caches()
            worth = ahead(forebay)["runs"]
            time.sleep(1.6 * args.period_s)
            missed = ahead(forebay)["runs"]
            run([args.forebay, "prefetch", forebay.mount / "data"])
            memory_s = min(read_all(forebay.mount / "data", names, size) for _ in range(3))
            say(f"from memory: {memory_s:.2f} s")
    share = lambda worth: worth["wasted_bytes"] / max(worth["guessed_bytes"], 1)
    say(f"{worth['guessed_bytes'] // MIB} MiB brought in, {share(worth):.0%} of that in vain; {share(missed):.0%} after a sixth run that has not come")
    return {"there": shares, "of the PFS": [alone_s / s for s in spans_s], "of memory": [memory_s / s for s in spans_s],
            "wasted": share(worth), "wasted after one that has not come": share(missed)}


def main():
    args = arguments()
    figures = {}
    with workspace("forebay-ahead-", args.work) as base:
        if args.only in (None, "epoch"):
            figures["epoch"] = epoch(args, Programs(args.programs), base)
        if args.only in (None, "list"):
            figures["list"] = listed(args, base)
        if args.only in (None, "runs"):
            figures["runs"] = runs(args, base)
    print(json.dumps(figures, indent=2))
    if args.json:
        args.json.write_text(json.dumps(figures))


if __name__ == "__main__":
    try:
        main()
    except Failure as failure:
        sys.exit(f"ahead.py: {failure}")
