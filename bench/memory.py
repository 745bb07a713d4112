#!/usr/bin/env python3
"""Memory that is borrowed (`--dram auto`), in a control group that stands for a node: what jobs notice of it, and what becomes of the files.

    job      a program takes 80 % of the node's memory in 10 s while the tier holds 60 %: its time against the same without Forebay,
             kills for memory, the least that was available, files that differ, and how soon the tier is back when the memory is idle
    rounds   stress-ng takes and leaves memory again and again beside fsx and programs that write files and read them back
    moving   a file that a program writes all the while moves from memory to flash: how long that takes, and what the program notices
    small    2,000 closed files of 16 KiB move from memory to flash: against one file with as many bytes, which is the cost of the bytes
    idle     what a mounted burst buffer that nobody uses takes of a core

Needs root, and a hierarchy of control groups with memory (version 1 or 2). fsx and stress-ng: `scripts/setup.sh posix`.
"""

import argparse
import json
import mmap
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from systems import Failure, Forebay, ROOT, say, stop, workspace

from machine import clean_exit_on_signals  # noqa: E402 isort:skip: `systems` knows the way to it

MIB = 1 << 20
# What the writer of `moving` writes at once.
PART = 64 << 10
# The files of `small`.
SMALL_FILES, SMALL_BYTES = 2000, 16 << 10
# Of the node's memory: what the tier may have, what the program takes.
TIER_SHARE, JOB_SHARE, JOB_S = 0.6, 0.8, 10.0
# One round: so many takers, one after the other, so that memory goes at a rate that a program reaches.
TAKERS, TAKER_EVERY_S, TAKER_SHARE, TAKEN_S = 4, 0.15, 0.17, 1
# fsx keeps its mappings, also on other file systems: beyond 65,530 of them it gets no memory any more.
FSX_OPERATIONS = 20_000
# The tier does not grow for some seconds after pressure: after so many rounds it has the time for that.
REST_EVERY, REST_S = 10, 12


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--forebay", type=Path, default=ROOT / "target/release/forebay")
    parser.add_argument("--fsx", type=Path, default=ROOT / ".cache/bin/fsx")
    parser.add_argument("--ior", type=Path, help="rounds: a built IOR, which runs with -R beside the others")
    parser.add_argument("--node-mib", type=int, default=4096, help="memory of the node")
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--idle-s", type=int, default=60)
    parser.add_argument("--only", choices=["job", "rounds", "moving", "small", "idle"])
    parser.add_argument("--work", type=Path)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    # What this script starts in the group.
    parser.add_argument("--inside", nargs="+", help=argparse.SUPPRESS)
    return parser.parse_args()


class Node:
    """A control group with so much memory."""

    def __init__(self, size):
        self.size = size
        self.path = self._hierarchy() / f"forebay-bench-{os.getpid()}"
        self._is_v2 = (self.path.parent / "cgroup.controllers").exists()

    @staticmethod
    def _hierarchy():
        for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines():
            _, point, kind, options, *_ = line.split(" ")
            if kind == "cgroup" and "memory" in options.split(","):
                return Path(point)
            if kind == "cgroup2" and "memory" in (Path(point) / "cgroup.subtree_control").read_text(encoding="ascii").split():
                return Path(point)
        raise Failure("no hierarchy of control groups with memory is mounted here")

    def __enter__(self):
        self.path.mkdir()
        limit = "memory.max" if self._is_v2 else "memory.limit_in_bytes"
        (self.path / limit).write_text(str(self.size), encoding="ascii")
        return self

    def __exit__(self, *_):
        deadline_s = time.monotonic() + 10
        while (self.path / "cgroup.procs").read_text(encoding="ascii"):
            if time.monotonic() > deadline_s:
                raise Failure(f"still in {self.path}: what was started there")
            time.sleep(0.05)
        self.path.rmdir()

    def command(self, words):
        """So that the program is in the group from its first page on."""
        return ["sh", "-c", f"echo $$ >{self.path}/cgroup.procs && exec \"$@\"", "sh", *map(str, words)]

    def start(self, words, **more):
        return subprocess.Popen(self.command(words), **more)

    def _table(self, name):
        lines = (self.path / name).read_text(encoding="ascii").splitlines()
        return {key: int(value) for key, value in (line.split() for line in lines)}

    def killed(self):
        return self._table("memory.events" if self._is_v2 else "memory.oom_control")["oom_kill"]

    def available(self):
        """As Forebay reckons: what is not taken, and pages of files. Bytes."""
        used = int((self.path / ("memory.current" if self._is_v2 else "memory.usage_in_bytes")).read_text(encoding="ascii"))
        stat = self._table("memory.stat")
        names = ("inactive_file", "active_file") if self._is_v2 else ("total_inactive_file", "total_active_file")
        return self.size - used + sum(stat[name] for name in names)


class Beside(Forebay):
    """A burst buffer in the group."""

    def __init__(self, node, binary, base, options):
        super().__init__(binary, base / "pfs", base / "mnt", base / "state", options)
        self.node = node

    def __enter__(self):
        for folder in (self.pfs, self.mount, self.state):
            folder.mkdir(parents=True, exist_ok=True)
        self.is_up = True
        words = [self.binary, "up", "--pfs", self.pfs, "--mount", self.mount, "--state", self.state, *self.options, "--detach"]
        done = subprocess.run(self.node.command(words), capture_output=True, text=True)
        if done.returncode:
            raise Failure(f"forebay up: {done.stderr}")
        return self

    def lending(self):
        return self.status()["lending"]

    def wait_for_ceiling(self, limit_s=60):
        """Seconds until the tier may hold as much as it ever may."""
        begun_s = time.monotonic()
        while True:
            now = self.lending()
            if now["borrowed_bytes"] >= now["ceiling_bytes"]:
                return time.monotonic() - begun_s
            if time.monotonic() - begun_s > limit_s:
                raise Failure(f"the tier is not at its ceiling after {limit_s} s: {now}")
            time.sleep(0.1)


def take(size, span_s, hold_s):
    """Takes memory at an even rate; the seconds of all of it, and of the taking without the pauses."""
    memory = mmap.mmap(-1, size)
    part = b"x" * MIB
    begun_s, busy_s = time.monotonic(), 0.0
    for at in range(0, size, MIB):
        before_s = time.monotonic()
        memory[at:at + MIB] = part[:min(MIB, size - at)]
        busy_s += time.monotonic() - before_s
        time.sleep(max(0.0, begun_s + span_s * (at + MIB) / size - time.monotonic()))
    print(json.dumps([time.monotonic() - begun_s, busy_s]), flush=True)
    time.sleep(hold_s)


def took(node, watch=lambda: None):
    """One such program; `watch` is called again and again meanwhile."""
    words = [sys.executable, __file__, "--inside", "take", int(JOB_SHARE * node.size), JOB_S, 1]
    job = node.start(words, stdout=subprocess.PIPE, text=True)
    while job.poll() is None:
        watch()
        time.sleep(0.1)
    if job.returncode:
        raise Failure(f"the program that takes memory ended with {job.returncode}")
    return json.loads(job.stdout.read())


def content(name, size):
    part = random.Random(name).randbytes(MIB)
    return part * (size // MIB)


def job(args, base):
    figures = {}
    for kind in ("clean", "undrained"):
        with Node(args.node_mib * MIB) as node:
            alone = took(node)
            rules = "" if kind == "clean" else "[demotion]\nidle = false\nstart = \"100%\"\ndirty_cap = \"100%\"\n"
            (base / "bb.toml").write_text(rules)
            options = ["--dram-max-share", TIER_SHARE, "--ssd", f"{base / kind / 'ssd'}:{node.size}", "--config", base / "bb.toml"]
            (base / kind / "ssd").mkdir(parents=True)
            with Beside(node, args.forebay, base / kind, options) as forebay:
                forebay.wait_for_ceiling()
                count = 16
                size = int(0.95 * TIER_SHARE * node.size / count) // MIB * MIB
                for n in range(count):
                    (forebay.mount / f"f{n}").write_bytes(content(f"f{n}", size))
                if kind == "clean":
                    forebay.command("stage-out", "--wait", forebay.mount)
                held = forebay.lending()["used_bytes"]
                least, wrong, reads = node.available(), 0, 0

                def watch():
                    nonlocal least, wrong, reads
                    least = min(least, node.available())
                    name = f"f{reads % count}"
                    wrong += (forebay.mount / name).read_bytes() != content(name, size)
                    reads += 1
                beside = took(node, watch)
                back_s = forebay.wait_for_ceiling()
                for n in range(count):
                    wrong += (forebay.mount / f"f{n}").read_bytes() != content(f"f{n}", size)
                figures[kind] = {
                    "held_share": held / node.size, "time": beside[0] / alone[0], "time_without_pauses": beside[1] / alone[1], "killed": node.killed(),
                    "least_available_mib": least // MIB, "reads_meanwhile": reads, "differ": wrong, "at_ceiling_after_s": back_s}
                say(f"{kind}: {figures[kind]}")
    return figures


def write_and_read(folder, seed):
    """Writes files, reads them back and compares, for ever. Ends with 1 at a difference."""
    folder, chosen = Path(folder), random.Random(seed)
    sizes = {}
    passes = 0
    while not (folder / "stop").exists():
        name = f"w{chosen.randrange(24)}"
        if name in sizes and chosen.random() < 0.6:
            found = (folder / name).read_bytes()
            if found != content(*sizes[name]):
                same = next(at for at, pair in enumerate(zip(found, content(*sizes[name]))) if pair[0] != pair[1])
                sys.exit(f"{name}: {len(found)} bytes, differs from byte {same} on")
        else:
            passes += 1
            # A file that is written again stays on flash: some are new.
            if chosen.random() < 0.7:
                (folder / name).unlink(missing_ok=True)
            sizes[name] = (f"{seed}-{name}-{passes}", chosen.randrange(1, 33) * MIB)
            with open(folder / name, "wb") as file:
                file.write(content(*sizes[name]))
                # What is fsynced goes to flash at once, and so does what is written by that name later: the other program's files stay in memory.
                if seed % 2 and chosen.random() < 0.3:
                    os.fsync(file.fileno())
    print(passes)


def beside_pressure(args, node, forebay):
    """What runs for as long as the rounds do: names and processes."""
    running = {}
    for number in range(2):
        folder = forebay.mount / f"written{number}"
        folder.mkdir()
        words = [sys.executable, __file__, "--inside", "write_and_read", folder, args.seed + number]
        running[f"written{number}"] = node.start(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    for number in range(2):
        file, seed = forebay.mount / f"fsx{number}", args.seed + 100_000 * number
        once = f"{args.fsx} -q -f {ROOT}/tests/posix/fsx.toml -S $seed -N {FSX_OPERATIONS} -P {forebay.state} {file}"
        again = f"seed={seed}; while :; do {once} || exit 1; seed=$((seed + 1)); done"
        running[f"fsx{number}"] = node.start(["sh", "-c", again], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)
    if args.ior:
        again = f"while :; do {args.ior} -w -r -R -e -t 1m -b 96m -o {forebay.mount}/ior || exit 1; done"
        running["IOR"] = node.start(["sh", "-c", again], stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT, text=True, start_new_session=True)
    return running


def stop_loop(process):
    """A shell and what it has started."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)
    stop(process)


def pressure(node):
    """One round. How many takers were killed for memory shows in the group."""
    words = ["stress-ng", "--quiet", "--vm", 1, "--vm-bytes", int(TAKER_SHARE * node.size), "--vm-keep", "--vm-method", "zero-one", "--timeout", TAKEN_S]
    takers = []
    for _ in range(TAKERS):
        takers.append(node.start(words))
        time.sleep(TAKER_EVERY_S)
    for taker in takers:
        taker.wait()


def rounds(args, base):
    say(f"seed {args.seed}")
    with Node(args.node_mib * MIB) as node:
        (base / "ssd").mkdir()
        # Much of what is written is not drained yet when memory goes: it has to move.
        (base / "bb.toml").write_text("[demotion]\nidle = false\nstart = \"50%\"\n")
        options = ["--dram-max-share", TIER_SHARE, "--ssd", f"{base / 'ssd'}:{2 * node.size}", "--config", base / "bb.toml"]
        with Beside(node, args.forebay, base, options) as forebay:
            forebay.wait_for_ceiling()
            running = beside_pressure(args, node, forebay)
            smallest, begun_s = node.size, time.monotonic()
            try:
                for number in range(1, args.rounds + 1):
                    pressure(node)
                    smallest = min(smallest, forebay.lending()["borrowed_bytes"])
                    for name, process in running.items():
                        if process.poll() is not None:
                            said = process.stdout.read() if process.stdout else ""
                            raise Failure(f"round {number}, seed {args.seed}: {name} ended with {process.returncode}: {said[-2000:]}")
                    if number % REST_EVERY == 0:
                        time.sleep(REST_S)
                    if number % 50 == 0:
                        say(f"round {number}: {time.monotonic() - begun_s:.0f} s, killed {node.killed()}, {forebay.lending()}")
            finally:
                for name in ("written0", "written1"):
                    (forebay.mount / name / "stop").touch()
                for name, process in running.items():
                    if name.startswith("written"):
                        process.wait()
                    else:
                        stop_loop(process)
            differ = [name for name, process in running.items() if name.startswith("written") and process.returncode]
            now, errors = forebay.lending(), forebay.status()["errors_total"]
            return {"rounds": args.rounds, "seconds": time.monotonic() - begun_s, "differ": len(differ), "errors": errors, "killed": node.killed(),
                    "smallest_mib": smallest // MIB, "moved_gib": now["moved_bytes_total"] / (1 << 30)}


class Writer(threading.Thread):
    """Writes 64 KiB at random places of a file, at a rate or as fast as it can; when each write ended, and what it took."""

    def __init__(self, file, size, rate):
        super().__init__()
        self.writes, self._file, self._size, self._rate, self._is_over = [], file, size, rate, threading.Event()

    def run(self):
        part, begun_s = os.urandom(PART), time.monotonic()
        while not self._is_over.is_set():
            before_s = time.monotonic()
            os.pwrite(self._file, part, random.randrange(self._size // PART) * PART)
            self.writes.append((time.monotonic(), time.monotonic() - before_s))
            if self._rate:
                time.sleep(max(0.0, begun_s + len(self.writes) * PART / self._rate - time.monotonic()))

    def end(self):
        self._is_over.set()
        self.join()

    def between(self, from_s, to_s):
        """MiB/s, and the longest write in ms."""
        found = [took_s for ended_s, took_s in self.writes if from_s <= ended_s < to_s]
        return len(found) * PART / MIB / (to_s - from_s), 1000 * max(found, default=0.0)


def moving(args, base):
    size, figures = 512 * MIB, {}
    (base / "ssd").mkdir()
    (base / "bb.toml").write_text("[demotion]\nidle = false\nstart = \"100%\"\ndirty_cap = \"100%\"\n")
    options = ["--dram-max", "1GiB", "--ssd", f"{base / 'ssd'}:{4 * size}", "--no-passthrough", "--config", base / "bb.toml"]
    with Node(args.node_mib * MIB) as node, Beside(node, args.forebay, base, options) as forebay:
        for rate in (0, 50 * MIB, 5 * MIB):
            forebay.wait_for_ceiling()
            file = os.open(forebay.mount / f"f{rate}", os.O_RDWR | os.O_CREAT)
            for at in range(0, size, MIB):
                os.pwrite(file, os.urandom(MIB), at)
            writer = Writer(file, size, rate)
            writer.start()
            try:
                time.sleep(3)
                ordered_s = time.monotonic()
                forebay.command("lend", "--state", forebay.state, "--wait", "60s", "1GiB")
                moved_s = time.monotonic()
            finally:
                writer.end()
            before, during = writer.between(ordered_s - 3, ordered_s), writer.between(ordered_s, moved_s)
            key = f"{rate // MIB} MiB/s" if rate else "as fast as it can"
            figures[key] = {"before_mib_s": before[0], "during_mib_s": during[0], "moved_after_s": moved_s - ordered_s,
                            "longest_before_ms": before[1], "longest_during_ms": during[1]}
            say(f"a writer of {key}: {figures[key]}")
            os.close(file)
            forebay.command("lend", "--state", forebay.state, "--end")
    return figures


def small(args, base):
    figures = {}
    (base / "ssd").mkdir()
    (base / "bb.toml").write_text("[demotion]\nidle = false\nstart = \"100%\"\ndirty_cap = \"100%\"\n")
    options = ["--dram-max", "256MiB", "--ssd", f"{base / 'ssd'}:1GiB", "--no-passthrough", "--config", base / "bb.toml"]
    with Node(args.node_mib * MIB) as node, Beside(node, args.forebay, base, options) as forebay:
        for key, files in (("one", 1), ("small", SMALL_FILES)):
            forebay.wait_for_ceiling()
            size = SMALL_FILES * SMALL_BYTES // files
            written = {forebay.mount / f"{key}{n}": os.urandom(size) for n in range(files)}
            for path, data in written.items():
                path.write_bytes(data)
            before_mib = forebay.lending()["moved_bytes_total"] // MIB
            ordered_s = time.monotonic()
            forebay.command("lend", "--state", forebay.state, "--wait", "300s", "256MiB")
            figures[f"{key}_s"] = time.monotonic() - ordered_s
            figures[f"{key}_moved_mib"] = forebay.lending()["moved_bytes_total"] // MIB - before_mib
            figures[f"{key}_differ"] = sum(path.read_bytes() != data for path, data in written.items())
            forebay.command("lend", "--state", forebay.state, "--end")
    figures["ratio"] = figures["small_s"] / figures["one_s"]
    return figures


def idle(args, base):
    (base / "idle/ssd").mkdir(parents=True)
    with Node(args.node_mib * MIB) as node, Beside(node, args.forebay, base / "idle", ["--ssd", base / "idle/ssd"]) as forebay:
        for n in range(100):
            (forebay.mount / f"f{n}").write_bytes(bytes(MIB))
        forebay.command("stage-out", "--wait", forebay.mount)
        forebay.wait_for_ceiling()
        time.sleep(5)

        def used_s():
            """Of each thread, by name."""
            used = {}
            for thread in Path(f"/proc/{forebay.pid()}/task").iterdir():
                name = (thread / "comm").read_text(encoding="utf-8").strip()
                used[name] = used.get(name, 0.0) + int((thread / "schedstat").read_text(encoding="ascii").split()[0]) / 1e9
            return used
        before, begun_s = used_s(), time.monotonic()
        time.sleep(args.idle_s)
        shares = {name: (s - before.get(name, 0.0)) / (time.monotonic() - begun_s) for name, s in used_s().items()}
        return {"of_a_core": sum(shares.values()), "most": dict(sorted(shares.items(), key=lambda pair: -pair[1])[:5])}


def inside(words):
    """A program that this script runs in the group."""
    if words[0] == "take":
        take(int(words[1]), float(words[2]), float(words[3]))
    else:
        write_and_read(words[1], int(words[2]))


def main():
    args = arguments()
    if args.inside:
        inside(args.inside)
        return
    if os.geteuid():
        raise Failure("needs root, for control groups")
    figures = {}
    for section in (job, rounds, moving, small, idle):
        if args.only in (None, section.__name__):
            with workspace("forebay-memory-", args.work) as base:
                figures[section.__name__] = section(args, base)
    print(json.dumps(figures, indent=2))
    if args.json:
        args.json.write_text(json.dumps(figures))


if __name__ == "__main__":
    try:
        with clean_exit_on_signals():
            main()
    except Failure as failure:
        sys.exit(f"memory.py: {failure}")
