#!/usr/bin/env python3
"""How nodes drain side by side: a cluster of 1, 2 and 4 data servers, the flash of each read no faster than a limit, and a PFS in memory that
is no bottleneck. Each node's program writes files there; then all are drained. Prints the rates, and each as a multiple of one node's.

Needs root, and cgroup v1 blkio. `sudo python3 bench/nodes/drain.py`
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "mulconn"))

from fleet import START_PATIENCE_S, end_process, pid_in, unmount_below  # noqa: E402
from nodes import Failure, nodes, run  # noqa: E402

BLKIO = Path("/sys/fs/cgroup/blkio")
MIB = 1 << 20
# Files on each node.
FILES = 4


@contextlib.contextmanager
def flash(base, number, size_bytes, most_bps, way="read"):
    """A file system of its own whose device gives, or takes, no more than so much."""
    image, point = base / f"flash{number}.img", base / f"flash{number}"
    point.mkdir()
    with image.open("wb") as file:
        file.truncate(size_bytes)
    run(["mkfs.ext4", "-q", image])
    device = run(["losetup", "--find", "--show", image]).stdout.strip()
    limit = BLKIO / f"blkio.throttle.{way}_bps_device"
    major_minor = Path(f"/sys/block/{Path(device).name}/dev").read_text(encoding="ascii").strip()
    try:
        run(["mount", device, point])
        limit.write_text(f"{major_minor} {most_bps}\n", encoding="ascii")
        (point / "tier").mkdir()
        yield point / "tier"
    finally:
        limit.write_text(f"{major_minor} 0\n", encoding="ascii")
        run(["umount", point], check=False)
        run(["losetup", "--detach", device], check=False)


class Cluster:
    """A metadata server without tiers on the first node, and a data server on each of the others."""

    def __init__(self, binary, base, all_nodes, flashes, capacity_bytes, settings=""):
        self.binary, self.base, self.nodes, self.config = binary, base, all_nodes, base / "cluster.toml"
        text = f'[cluster]\nname = "bench"\npfs = "{base}/pfs"\nkey = "{base}/key"\n[demotion]\nidle = false\nstart = 0.94\n{settings}'
        for number, node in enumerate(all_nodes, 1):
            role = "metadata" if number == 1 else "data"
            text += f'[[server]]\nid = {number}\nroles = ["{role}"]\naddresses = ["{node.address}:7070"]\nstate = "{base}/state{number}"\n'
            if number > 1:
                text += f'ssd = ["{flashes[number - 2]}:{capacity_bytes}"]\n'
        self.config.write_text(text, encoding="utf-8")
        run([binary, "keygen", base / "key"])

    def __enter__(self):
        try:
            self.start()
            for number in range(2, len(self.nodes) + 1):
                self.mount(number)
        except BaseException:
            self.__exit__()
            raise
        return self

    def start(self):
        """The servers alone; the metadata server last."""
        for number in [*range(2, len(self.nodes) + 1), 1]:
            words = (self.binary, "server", "--config", self.config, "--id", str(number), "--detach")
            self.nodes[number - 1].run(*words, timeout_s=START_PATIENCE_S)

    def mount(self, number):
        """A mount on this node; where it is."""
        point = self.base / f"on{number}"
        point.mkdir()
        self.nodes[number - 1].run(self.binary, "mount", "--config", self.config, point, "--detach", timeout_s=START_PATIENCE_S)
        return point

    def __exit__(self, *_):
        for number in range(2, len(self.nodes) + 1):
            unmount_below(self.base / f"on{number}")
        for number in range(1, len(self.nodes) + 1):
            run([self.binary, "down", "--state", self.base / f"state{number}"], check=False)
            pid = pid_in(self.base / f"state{number}" / "forebay.pid", self.config)
            if pid:
                end_process(pid)
            unmount_below(self.base / f"state{number}")


def measure(binary, work, count, args):
    """Bytes per second at which so many nodes are drained."""
    with contextlib.ExitStack() as stack:
        base = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="forebay-nodes-", dir=work)))
        base.chmod(0o755)
        (base / "pfs").mkdir()
        run(["mount", "-t", "tmpfs", "none", base / "pfs"])
        stack.callback(run, ["umount", "-l", base / "pfs"], check=False)
        capacity = args.per_node * 2
        flashes = [stack.enter_context(flash(base, number, capacity + 256 * MIB, args.limit)) for number in range(count)]
        all_nodes = stack.enter_context(nodes(count + 1))
        stack.enter_context(Cluster(binary, base, all_nodes, flashes, capacity))
        count_mib = args.per_node // FILES // MIB
        dd = ["dd", "if=/dev/urandom", "bs=1M", f"count={count_mib}", "conv=fsync", "status=none"]
        points = [base / f"on{number}" for number in range(2, count + 2)]
        writers = [subprocess.Popen([*dd, f"of={point / f'{point.name}-{at}'}"]) for point in points for at in range(FILES)]
        if any(writer.wait() for writer in writers):
            raise Failure("a writer failed")
        os.sync()
        Path("/proc/sys/vm/drop_caches").write_text("3\n", encoding="ascii")
        begun = time.monotonic()
        run([binary, "stage-out", "--wait", base / "on2"], timeout_s=600)
        took_s = time.monotonic() - begun
        found = sum(file.stat().st_size for file in (base / "pfs").iterdir())
        if found != count * args.per_node:
            raise Failure(f"{found} bytes are on the PFS instead of {count * args.per_node}")
        return found / took_s


def arguments(script, doc, per_node, limit, does, work):
    """What such a script is asked for, sizes in bytes; ends it where it cannot run here. `does`: what the flash is held to."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--forebay", default="target/release/forebay", type=Path)
    parser.add_argument("--nodes", default="1,2,4", help="how many, one after the other (default: 1,2,4)")
    parser.add_argument("--per-node", default=per_node, type=int, metavar="MIB", help=f"data on each node (default: {per_node})")
    parser.add_argument("--limit", default=limit, type=int, metavar="MIB", help=f"most that the flash of a node {does} in a second (default: {limit})")
    parser.add_argument("--repeat", default=3, type=int, help="the medians of so many turns (default: 3)")
    parser.add_argument("--work", default=work, help=f"where everything is made, and removed; no bottleneck (default: {work})")
    parser.add_argument("--json", type=Path, help="write the figures there, too")
    args = parser.parse_args()
    args.per_node, args.limit = args.per_node * MIB, args.limit * MIB
    if os.geteuid() != 0 or not BLKIO.is_dir():
        sys.exit(f"{script}: needs root, and cgroup v1 blkio")
    args.counts = [int(word) for word in args.nodes.split(",")]
    return args


def report(args, found, rates, column, shown):
    """Prints the rate of each number of nodes, and what `shown` says of it; keeps all that was found where that is wanted."""
    print(f"{'nodes':>5}  {'MiB/s':>8}  {'of one node':>11}  {column:>19}")
    for count in args.counts:
        print(f"{count:>5}  {rates[count] / MIB:>8.1f}  {rates[count] / rates[args.counts[0]]:>11.2f}  {shown(found[count]):>19}")
    if args.json:
        args.json.write_text(json.dumps({str(count): turns for count, turns in found.items()}) + "\n", encoding="utf-8")


def median(values):
    return sorted(values)[len(values) // 2]


def main():
    args = arguments("drain.py", __doc__, per_node=256, limit=50, does="gives", work="/var/tmp")
    found = {count: [] for count in args.counts}
    for _ in range(args.repeat):
        for count in args.counts:
            found[count].append(measure(args.forebay.resolve(), args.work, count, args))
    rates = {count: median(turns) for count, turns in found.items()}
    report(args, found, rates, "least and most", lambda turns: f"{min(turns) / MIB:.1f} .. {max(turns) / MIB:.1f}")


if __name__ == "__main__":
    try:
        main()
    except Failure as failure:
        sys.exit(f"drain.py: {failure}")
