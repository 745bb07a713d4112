#!/usr/bin/env python3
"""The first read of a large drained file after a start, against the reads after it.

At its first read every piece of the file is compared with its checksum, and it goes through the server; then the kernel reads the object by
itself. Compared with that, and with a file that is compared as a whole when it is opened (`verify_on_open`). Flash is asked, not memory: the
object is dropped from the page cache before each read.
"""

import argparse
import os
import statistics
import sys
import time
from pathlib import Path

from systems import Failure, Forebay, ROOT, say, workspace

CHUNK_BYTES = 1 << 20


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--forebay", type=Path, default=ROOT / "target/release/forebay")
    parser.add_argument("--mib", type=int, default=1024, help="size of the file")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--work", type=Path, help="where the flash directory goes: the file system that is measured")
    return parser.parse_args()


def drop(path):
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read(path, size):
    """GB/s, the open included."""
    begun_s, left = time.monotonic(), size
    with open(path, "rb", buffering=0) as file:
        while chunk := file.read(CHUNK_BYTES):
            left -= len(chunk)
    if left:
        raise Failure(f"{path}: {left} bytes are missing")
    return size / 1e9 / (time.monotonic() - begun_s)


def start(args, base, limit):
    config = base / "first-read.toml"
    config.write_text(f'[scrub]\nverify_on_open = "{limit}"\n')
    flash = f"{base / 'flash'}:{2 * args.mib + 64}MiB"
    return Forebay(args.forebay, base / "pfs", base / "mnt", base / "state", ["--ssd", flash, "--config", config])


def write(args, base):
    """The file, drained, and its object."""
    with start(args, base, "16MiB") as forebay:
        with open(forebay.mount / "large", "wb") as file:
            for _ in range(args.mib):
                file.write(os.urandom(CHUNK_BYTES))
        forebay.command("stage-out", "--wait", forebay.mount / "large")
    return next(path for path in (base / "flash/objects").rglob("*") if path.is_file() and path.stat().st_size == args.mib << 20)


def main():
    args = arguments()
    size, found = args.mib << 20, {"by piece": [], "whole": [], "kernel": []}
    with workspace("forebay-first-read-", args.work) as base:
        for name in ("pfs", "flash"):
            (base / name).mkdir()
        item = write(args, base)
        for turn in range(args.turns):
            for name, limit in (("by piece", "16MiB"), ("whole", f"{args.mib}MiB")):
                with start(args, base, limit) as forebay:
                    drop(item)
                    found[name].append(read(forebay.mount / "large", size))
                    if name == "by piece":
                        drop(item)
                        found["kernel"].append(read(forebay.mount / "large", size))
            say(", ".join(f"{name} {values[-1]:.2f} GB/s" for name, values in found.items()))
    print("| first read | GB/s, median | against the kernel's |\n| --- | --- | --- |")
    for name, values in found.items():
        ratios = [value / kernel for value, kernel in zip(values, found["kernel"])]
        print(f"| {name} | {statistics.median(values):.2f} | {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}) |")


if __name__ == "__main__":
    try:
        main()
    except Failure as failure:
        sys.exit(f"first_read: {failure}")
