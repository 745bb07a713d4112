#!/usr/bin/env python3
"""Forebay's main job on real input, from start to end.

A simulation (examples/heat) runs once straight on a slow file system, and once through Forebay, where it is killed
half-way and restarted. Both must end with the same bytes; the table at the end says what the program waited for.
"""

import argparse
import contextlib
import filecmp
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from machine import (GIB, MIB, ROOT, Failure, Forebay, clean_exit_on_signals, last_line, run, stop, workspace)
from slowpfs import slow_pfs

POLL_S = 0.002  # a checkpoint through Forebay takes some ten milliseconds, and the kill shall fall into it
DRAIN_TIMEOUT = "120s"


class Progress:
    """One bar for the whole demo; plain lines where the output is no terminal."""

    WIDTH = 32
    LINE_EVERY = 0.1

    def __init__(self, shares):
        self._shares = shares  # stage: its share of the whole; in order
        self._done, self._stage, self._shown = 0.0, None, -1.0
        self._is_tty = sys.stdout.isatty()

    def __call__(self, stage, fraction, text=""):
        if stage != self._stage:
            names = list(self._shares)
            self._done = sum(self._shares[name] for name in names[:names.index(stage)])
            self._stage, self._shown = stage, -1.0
        whole = (self._done + self._shares[stage] * min(fraction, 1.0)) / sum(self._shares.values())
        if self._is_tty:
            filled = round(whole * self.WIDTH)
            bar = "#" * filled + "." * (self.WIDTH - filled)
            line = f"[{bar}] {whole:4.0%}  {stage}  {text}"
            columns = shutil.get_terminal_size().columns - 1
            print(f"\r{line[:columns]:<{columns}}", end="", flush=True)
        elif whole - self._shown >= self.LINE_EVERY or self._shown < 0.0:
            self._shown = whole
            print(f"{whole:4.0%}  {stage}  {text}".rstrip(), flush=True)

    def clear(self):
        if self._is_tty:
            print("\r" + " " * (shutil.get_terminal_size().columns - 1) + "\r", end="", flush=True)


class Simulation:
    """One run of heat.py, watched through its log."""

    def __init__(self, args, folder, log, result, *options):
        self.args, self.log, self.events = args, log, []
        self._errors = log.with_suffix(".err")
        self._read_from = log.stat().st_size if log.exists() else 0
        command = [args.python, ROOT / "examples/heat/heat.py", "--dir", folder, "--log", log, "--result", result,
                   "--steps", args.steps, "--every", args.every, "--size", args.size, "--pace", args.pace, *options]
        with open(self._errors, "a", encoding="utf-8") as errors:
            self.process = subprocess.Popen([str(word) for word in command], stdout=subprocess.DEVNULL, stderr=errors,
                                            start_new_session=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        stop(self.process)

    def watch(self):
        """New events, until the program has ended."""
        while True:
            running = self.process.poll() is None
            yield from self._new_events()
            if not running:
                return
            time.sleep(POLL_S)

    def _new_events(self):
        if not self.log.exists():
            return
        with open(self.log, "rb") as file:
            file.seek(self._read_from)
            # A line that is still being written is read the next time.
            lines = [line for line in file.read().splitlines(keepends=True) if line.endswith(b"\n")]
        for line in lines:
            self._read_from += len(line)
            self.events.append(json.loads(line))
            yield self.events[-1]

    def follow(self, progress, stage):
        """Shows the steps until the program has ended well."""
        for event in self.watch():
            if event["event"] == "step":
                progress(stage, event["step"] / self.args.steps, f"step {event['step']} of {self.args.steps}")
        if self.process.returncode:
            errors = self._errors.read_text(encoding="utf-8")
            raise Failure(f"the simulation ended with exit {self.process.returncode}: {last_line(errors)}")

    def kill_in_checkpoint(self, step, progress, stage):
        """Follows the program and kills it without warning as it begins to write the checkpoint of `step`."""
        for event in self.watch():
            if event["event"] == "step":
                progress(stage, event["step"] / self.args.steps, f"step {event['step']} of {self.args.steps}")
            if event["event"] == "checkpoint_begin" and event["step"] >= step:
                os.kill(self.process.pid, signal.SIGKILL)
                self.process.wait()
                return
        raise Failure(f"the simulation ended before it could be killed (exit {self.process.returncode})")


def waits(*runs):
    """Seconds that the program waited for each checkpoint it finished."""
    return [event["wait_s"] for each in runs for event in each.events if event["event"] == "checkpoint_end"]


def one(events, name):
    return next((event for event in events if event["event"] == name), None)


def run_plain(args, base, pfs, progress):
    stage = "without Forebay"
    progress(stage, 0.0)
    with Simulation(args, pfs / "plain", base / "plain.log", base / "plain.npy") as simulation:
        simulation.follow(progress, stage)
    shutil.rmtree(pfs / "plain")
    return {"waits": waits(simulation)}


def run_buffered(args, base, mount, progress):
    folder, log, result = mount / "heat", base / "buffered.log", base / "buffered.npy"
    half = args.steps // args.every // 2 * args.every
    stage = "with Forebay, killed half-way"
    with Simulation(args, folder, log, result) as first:
        first.kill_in_checkpoint(half, progress, stage)
    stage = "with Forebay, restarted"
    with Simulation(args, folder, log, result, "--resume") as second:
        second.follow(progress, stage)
    resumed = one(second.events, "resumed")
    if not resumed:
        raise Failure("the restart found no complete checkpoint")
    return {"waits": waits(first, second), "killed_at": half, "resumed": resumed}


def checkpoints(folder):
    return sorted(folder.glob("ckpt-*/field.h5"))


def drain(args, forebay, progress):
    """`down --drain`, with the dirty bytes that are left as progress. Returns the bytes demoted in all."""
    def dirty(status):
        return sum(tier["dirty_bytes"] for tier in status["tiers"])

    status = forebay.status()
    first = max(dirty(status), 1)
    with open(forebay.state.parent / "down.err", "w+", encoding="utf-8") as errors:
        command = [forebay.binary, "down", "--state", forebay.state, "--drain", "--timeout", DRAIN_TIMEOUT]
        down = subprocess.Popen([str(word) for word in command], stdout=subprocess.DEVNULL, stderr=errors)
        try:
            while down.poll() is None:
                # The daemon may be gone between two looks; then `down` says how it went.
                with contextlib.suppress(Failure):
                    status = forebay.status()
                left = dirty(status)
                progress("draining", 1.0 - left / first, f"{left / MIB:.0f} MiB left")
                time.sleep(0.1)
        finally:
            stop(down)
        errors.seek(0)
        if down.returncode:
            raise Failure(f"forebay down --drain: exit {down.returncode}: {last_line(errors.read())}")
    forebay.is_up = False
    return status["demoted_bytes_total"]


def verify(args, base, folder, progress):
    """On the PFS alone: the newest complete checkpoint is the last one, and holds the same fields."""
    progress("verifying", 0.0)
    log, result = base / "verify.log", base / "verify.npy"
    with Simulation(args, folder, log, result, "--resume") as simulation:
        simulation.follow(progress, "verifying")
    resumed = one(simulation.events, "resumed")
    if not resumed or resumed["step"] != args.steps // args.every * args.every:
        raise Failure(f"the newest complete checkpoint on the PFS is {resumed and resumed['step']}")
    must_be_equal(base / "plain.npy", result, "the newest checkpoint on the PFS")
    progress("verifying", 1.0)


def must_be_equal(expected, found, what):
    if not filecmp.cmp(expected, found, shallow=False):
        raise Failure(f"{what} differs from the uninterrupted run: {found} is not {expected}")


def print_table(facts):
    plain, buffered = facts["plain"]["waits"], facts["buffered"]["waits"]
    rows = [("waiting for checkpoints", "without Forebay", "with Forebay")]
    for name, of in (("total", sum), ("per checkpoint, mean", lambda each: sum(each) / len(each)),
                     ("per checkpoint, longest", max)):
        rows.append((name, f"{of(plain):.2f} s", f"{of(buffered):.2f} s"))
    rows.append(("checkpoints written", str(len(plain)), str(len(buffered))))
    speed_up = (sum(plain) / len(plain)) / (sum(buffered) / len(buffered))
    rows.append(("shorter wait by a factor of", "", f"{speed_up:.1f}"))
    resumed = facts["buffered"]["resumed"]
    rows.append(("killed while writing the checkpoint of step", "", str(facts["buffered"]["killed_at"])))
    rows.append(("restarted from step", "", f"{resumed['step']}, read in {resumed['wait_s']:.2f} s"))
    rows.append(("final field, byte for byte", "", "the same"))
    rows.append(("drained to the slow file system", "", f"{facts['demoted_bytes'] / MIB:.0f} MiB"))
    rows.append(("where each version is", "program's end", "after down --drain"))
    for before in facts["where"]:
        place = f"{'+'.join(before['tiers'])}, {before['state']}"
        rows.append((f"version {before['version']}", place, "pfs, whole"))
    widths = [max(len(row[place]) for row in rows) for place in range(3)]
    rule = "-+-".join("-" * width for width in widths)
    for index, row in enumerate(rows):
        print(" | ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())
        if index == 0:
            print(rule)


def demo(args, base, progress):
    with slow_pfs(base, args.pfs_write * MIB, args.pfs_read * MIB) as (pfs, description):
        print(f"slow file system: {description}", flush=True)
        facts = {"plain": run_plain(args, base, pfs, progress)}
        options = ["--dram", args.dram, "--ssd", base / "ssd"]
        (base / "ssd").mkdir()
        with Forebay(args.forebay, pfs, base / "bb", base / "state", options) as forebay:
            facts["buffered"] = run_buffered(args, base, forebay.mount, progress)
            must_be_equal(base / "plain.npy", base / "buffered.npy", "the field of the restarted run")
            facts["where"] = forebay.facts("where", *checkpoints(forebay.mount / "heat"))
            facts["demoted_bytes"] = drain(args, forebay, progress)
        on_pfs = [path.stat().st_size for path in checkpoints(pfs / "heat")]
        if on_pfs != [each["size_bytes"] for each in facts["where"]]:
            raise Failure(f"after down --drain the PFS has {on_pfs}, not every checkpoint whole")
        verify(args, base, pfs / "heat", progress)
    return facts


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--forebay", type=Path, default=ROOT / "target/release/forebay", help="the binary")
    parser.add_argument("--python", type=Path, default=ROOT / ".cache/venv/bin/python",
                        help="an interpreter with numpy and h5py (scripts/setup.sh python makes one)")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--every", type=int, default=20, help="steps from one checkpoint to the next")
    parser.add_argument("--size", type=int, default=2048, help="points along an edge; 2048 makes 64 MiB per checkpoint")
    parser.add_argument("--pace", type=float, default=0.05, help="least seconds of a step")
    parser.add_argument("--dram", default="1GiB", help="memory that Forebay may take")
    parser.add_argument("--pfs-write", type=int, default=60, metavar="MIB", help="MiB/s of the slow file system")
    parser.add_argument("--pfs-read", type=int, default=100, metavar="MIB", help="MiB/s of the slow file system")
    parser.add_argument("--work", type=Path, help="where the temporary directory goes")
    args = parser.parse_args()
    if args.every < 1 or args.steps < 2 * args.every or args.steps % args.every:
        parser.error("--steps must be a multiple of --every, at least twice")
    for program, remedy in ((args.forebay, "build it: cargo build --release"), (args.python, "scripts/setup.sh python")):
        if not program.exists():
            parser.error(f"{program} is not there - {remedy}")
    args.forebay = args.forebay.resolve()
    return args


def main():
    args = arguments()
    # In seconds, about.
    shares = {"without Forebay": 22, "with Forebay, killed half-way": 6, "with Forebay, restarted": 7,
              "draining": 6, "verifying": 2}
    progress = Progress(shares)
    try:
        with clean_exit_on_signals(), workspace("forebay-demo-", args.work) as base:
            if shutil.disk_usage(base).free < 3 * GIB:
                raise Failure(f"{base.parent}: less than 3 GiB free")
            facts = demo(args, base, progress)
            progress.clear()
            print_table(facts)
    except KeyboardInterrupt:
        progress.clear()
        print("demo: interrupted; everything cleaned up", file=sys.stderr)
        return 130
    except (Failure, OSError) as error:
        progress.clear()
        print(f"demo: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
