#!/usr/bin/env python3
"""How fast nodes write on themselves: a cluster of 1, 2 and 4 data servers, the flash of each written no faster than a limit. Each node's program
writes and fsyncs a checkpoint of a series through the mount of its node, all at once; the same is then written to the file systems below. Prints the
rates, each as a multiple of one node's, and as a part of what the file systems take.

Needs root, and cgroup v1 blkio. `sudo python3 bench/nodes/local.py`
"""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from drain import MIB, Cluster, Failure, arguments, flash, median, nodes, report, run

# Writers on each node.
RANKS = 4
# What the file system of a node has beyond its tier: the kernel writes without asking, so it must not be full.
BEYOND = 6 << 30
# Versions before the one that is measured: from the second on the size is foreseen.
LEARNED = 2


def write_all(paths, each_bytes):
    """Seconds in which all of them are written, at once, and on stable storage."""
    begun = time.monotonic()
    dd = ["dd", "if=/dev/zero", "bs=1M", f"count={each_bytes // MIB}", "conv=fsync", "status=none"]
    writers = [subprocess.Popen([*dd, f"of={path}"]) for path in paths]
    if any([writer.wait() for writer in writers]):
        raise Failure("a writer failed")
    return time.monotonic() - begun


def measure(binary, work, count, args):
    """Bytes per second that so many nodes write on themselves through Forebay, and on their file systems."""
    with contextlib.ExitStack() as stack:
        base = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="forebay-nodes-", dir=work)))
        base.chmod(0o755)
        (base / "pfs").mkdir()
        run(["mount", "-t", "tmpfs", "none", base / "pfs"])
        stack.callback(run, ["umount", "-l", base / "pfs"], check=False)
        capacity = args.per_node * 4
        limited = lambda number: flash(base, number, capacity + BEYOND, args.limit, "write")
        flashes = [stack.enter_context(limited(number)) for number in range(count)]
        all_nodes = stack.enter_context(nodes(count + 1))
        stack.enter_context(Cluster(binary, base, all_nodes, flashes, capacity))
        points = [base / f"on{number}" for number in range(2, count + 2)]
        each_bytes = args.per_node // RANKS
        for version in range(1, LEARNED + 2):
            paths = [point / f"{point.name}-rank{rank}.ckpt.{version:04}" for point in points for rank in range(RANKS)]
            took_s = write_all(paths, each_bytes)
        for path in paths:
            (place,) = json.loads(run([binary, "where", "--json", path]).stdout)
            if not any(tier.startswith(f"server-{path.parent.name.removeprefix('on')}:") for tier in place["tiers"]):
                raise Failure(f"{path} is not on its writer's node: {place['tiers']}")
        os.sync()
        below_s = write_all([place.parent / f"below{rank}" for place in flashes for rank in range(RANKS)], each_bytes)
        total = count * args.per_node
        return total / took_s, total / below_s


def main():
    args = arguments("local.py", __doc__, per_node=512, limit=200, does="takes", work="/dev/shm")
    found = {count: [measure(args.forebay.resolve(), args.work, count, args) for _ in range(args.repeat)] for count in args.counts}
    rates = {count: median([ours for ours, _ in turns]) for count, turns in found.items()}
    report(args, found, rates, "of the file systems", lambda turns: f"{median([ours / below for ours, below in turns]):.2f}")


if __name__ == "__main__":
    try:
        main()
    except Failure as failure:
        sys.exit(f"local.py: {failure}")
