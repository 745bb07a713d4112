#!/usr/bin/env python3
"""A random campaign against a burst buffer: load, kills, power cuts, full disks, damage at rest, outsiders, a PFS that
hangs and fails, programs that write behind the daemon's back.

    make soak SECONDS=600 [SEED=n] [FAULTS=kill,cut,...]

Programs work on the mount and keep account of what they asked for and were answered. After every fault the burst
buffer is started again, and all that it shows is judged by that account: what was answered survives the daemon, what
was fsynced survives the machine, what was not may be old or new, nothing is damaged and nothing comes back. The seed
decides faults, their times and what every program does; what the scheduler makes of it differs from run to run.
In one half of the time the tiers are so small that files have to move, in the other so large that the kernel writes
files by itself; in the second half the PFS is a FUSE file system that can hang and fail, if it is to.
Needs root: it mounts loop file systems. Exits 1 at the first loss, and keeps the folder.
"""

import argparse
import collections
import contextlib
import json
import multiprocessing
import os
import random
import shutil
import sys
import tempfile
import time
import typing
from pathlib import Path

from between import Between
from buffer import LARGE, PATIENCE_S, SMALL, Buffer, run
from damage import Damage
from exchanged import Exchanged
from inplace import InPlace
from ledger import Ledger, Loss
from lend import Lend
from links import Links
from misbehave import Misbehave
from outlive import Outlive
from thin import Thin
from unheard import Unheard
from worker import RECORD_BYTES, SHARED, How, parse_record, work

WORKERS = 3
OF_THE_PFS = ("hang", "eio")
BEHIND_FUSE = (*OF_THE_PFS, "inplace")
# In rounds of their own, and in the load of all others.
OF_WORKERS = {"store": "store", "mapping": "hold"}
FAULTS = ("kill", "cut", "full-ssd", "full-state", "full-pfs", "damage", "outside", "restart", *OF_WORKERS, "outlive", "links",
          "between", "exchanged", "unheard", "thin", "lend", *BEHIND_FUSE)
QUIET = ("damage", "outside", "restart", "links", "exchanged", "unheard", "thin", "inplace", *OF_WORKERS)
# Outsiders work in these directories: what goes beside is as it should be.
OF_OUTSIDERS = ("links-", "between-", "exchanged-", "inplace-")


class Campaign:
    def __init__(self, args, base, phase):
        self.args, self.seconds, self.faults = args, phase.seconds, phase.faults
        self.random = random.Random(f"{args.seed} {phase.sizes}")
        kind = self.random.choice(["ext4", "xfs"])
        # The last program's directory is a file system of its own inside the PFS.
        inner = None if phase.hanging else f"w{WORKERS}"
        self.buffer = Buffer(args.forebay, base, kind, phase.sizes, phase.hanging, inner)
        self.ledgers = [Ledger(worker) for worker in range(1, WORKERS + 1)]
        self.counts = collections.Counter()
        # What shows that a fault has met something.
        self.fired = collections.Counter()
        self.damage, self.links, self.outlive = Damage(self), Links(self), Outlive(self)
        self.misbehave, self.between, self.exchanged = Misbehave(self), Between(self), Exchanged(self)
        self.unheard, self.thin, self.inplace, self.lend = Unheard(self), Thin(self), InPlace(self), Lend(self)
        self.outside, self.failed_operations, self.rounds = {}, 0, 0
        print(f"soak: seed {args.seed}, {phase.seconds} s, faults {','.join(phase.faults)}; {phase.sizes[0]} of memory, "
              f"{phase.sizes[1]} of flash on {kind}, the PFS {'behind FUSE' if phase.hanging else 'on ext4, a part of it on XFS'}", flush=True)

    def go(self):
        begun = time.monotonic()
        self.buffer.start()
        while time.monotonic() - begun < self.seconds:
            self.rounds += 1
            fault = self.random.choice(self.faults)
            before = self.all_fired()
            try:
                self.round(fault)
            except Loss as loss:
                raise Loss(f"{loss} (round {self.rounds}: {fault})") from loss
            self.counts[fault] += 1
            met = self.all_fired() - before
            print(f"{time.monotonic() - begun:6.0f} s  round {self.rounds}: {fault}; {self.operations()} operations so far, "
                  f"{sum(len(ledger.living()) for ledger in self.ledgers)} files; {told(met)}", flush=True)
        self.end()
        fired = self.all_fired()
        print(f"soak: no loss in {time.monotonic() - begun:.0f} s, seed {self.args.seed}: {self.operations()} operations, "
              f"{self.rounds} rounds ({told(self.counts)}), {self.failed_operations} programs met an error, "
              f"{self.buffer.refused} files with something that the PFS refused; {told(fired)}", flush=True)

    def operations(self):
        return sum(ledger.operations for ledger in self.ledgers)

    def all_fired(self):
        return sum((ledger.fired for ledger in self.ledgers), start=+self.fired)

    def round(self, fault):
        if fault in OF_WORKERS:
            # What is clean is what a store could be lost in.
            self.buffer.drain()
        if fault == "lend":
            self.lend.prepare()
        workers = self.start_workers(fault)
        until = time.monotonic() + self.random.uniform(0.3, 2.5)
        while fault in OF_WORKERS and time.monotonic() < until:
            # What is called clean leaves while it may be mapped.
            run(self.args.forebay, "release", self.buffer.mnt, check=False)
        time.sleep(max(until - time.monotonic(), 0))
        strict, ballast, must_start = True, None, fault in ("kill", "cut", "full-state")
        self.fired[fault] += fault in ("kill", "restart")
        if fault == "kill":
            self.buffer.kill()
        elif fault == "cut":
            self.buffer.cut()
            strict = False
            self.fired[fault] += 1
        elif fault.startswith("full-"):
            disk = self.buffer.disks[fault.removeprefix("full-")]
            ballast = disk.fill(self.random.choice([0, 64 << 10, 1 << 20]))
            self.fired[fault] += 1
            time.sleep(self.random.uniform(0.5, 2.0))
        elif fault == "outside":
            self.write_outside()
        elif fault == "links":
            must_start = self.links.begin()
        elif fault == "between":
            self.between.begin()
            must_start = True
        elif fault == "exchanged":
            self.fired[fault] += self.exchanged.go()
        elif fault == "lend":
            met, must_start = self.lend.go()
            self.fired[fault] += met
        elif fault == "outlive":
            self.outlive.begin()
            self.outlive.daemon_ends()
            must_start = True
        elif fault == "hang":
            noticed, must_start = self.misbehave.hang()
            self.fired[fault] += noticed
        elif fault == "eio":
            self.fired[fault] += self.misbehave.fail()
        self.stop_workers(workers, may_fail=must_start or fault not in QUIET)
        if fault.startswith("full-") or fault in OF_THE_PFS:
            for ledger in self.ledgers:
                ledger.doubt_unflushed()
        if ballast:
            ballast.unlink(missing_ok=True)
        if fault == "full-state":
            # A store that could not write is read-only until it is opened again.
            self.buffer.kill()
        if must_start:
            # Of an order that is not ended some starts know, and some have memory of a fixed size again.
            self.buffer.start(borrows=self.buffer.borrows and self.random.random() < 0.5)
        self.after(fault)
        self.judge(strict)

    def after(self, fault):
        """What belongs to a fault once the programs have ended, and the daemon is up again."""
        if fault in ("full-pfs", *OF_THE_PFS):
            # An error of a drain reaches the next fsync of the file; what has been drained since has none.
            self.buffer.drain()
            self.take_errors()
        elif fault == "restart":
            self.buffer.down()
            self.buffer.start()
        elif fault == "damage":
            self.fired[fault] += self.damage.happen()
        elif fault == "outlive":
            self.fired[fault] += self.outlive.go_on()
        elif fault == "unheard":
            self.fired[fault] += self.unheard.go()
        elif fault == "thin":
            self.fired[fault] += self.thin.go()
        elif fault == "inplace":
            self.fired[fault] += self.inplace.go()
        elif fault == "links":
            self.fired[fault] += self.links.judge()
        elif fault == "between":
            self.fired[fault] += self.between.judge()
        elif fault in OF_WORKERS:
            # What the PFS has is what is read.
            self.buffer.drain()
            run(self.args.forebay, "release", self.buffer.mnt)

    def take_errors(self):
        """An error that a store met and no msync asked for is the next fsync's, whoever calls that."""
        for ledger in self.ledgers:
            # Where a rename met an error, only the PFS knows which name a file has.
            root = self.buffer.mnt / f"w{ledger.worker}"
            for path in filter(Path.is_file, root.rglob("*") if ledger.unflushed else ()):
                with contextlib.suppress(OSError), open(path, "rb+") as file:
                    os.fsync(file.fileno())

    def start_workers(self, fault):
        more = {OF_WORKERS[name]: 30 if name == fault else 4 for name in self.args.faults if name in OF_WORKERS}
        how = How(self.args.large_blocks, str(self.args.forebay), more)
        workers = []
        (self.buffer.mnt / SHARED).parent.mkdir(exist_ok=True)
        for ledger in self.ledgers:
            ours, theirs = multiprocessing.Pipe()
            root = self.buffer.mnt / f"w{ledger.worker}"
            root.mkdir(exist_ok=True)
            args = (ledger, str(root), str(self.buffer.pfs / root.name), self.random.getrandbits(48), how, theirs)
            process = multiprocessing.Process(target=work, args=args, daemon=True)
            process.start()
            theirs.close()
            workers.append((process, ours))
        return workers

    def stop_workers(self, workers, may_fail):
        for _, pipe in workers:
            try:
                pipe.send("end")
            except OSError:
                pass  # it has ended by itself
        for at, (process, pipe) in enumerate(workers):
            if not pipe.poll(PATIENCE_S):
                raise Loss(f"program {at + 1} hangs")
            try:
                ledger, error, loss = pipe.recv()
            except EOFError:
                raise RuntimeError(f"program {at + 1} ended without a word") from None
            process.join()
            if loss:
                raise Loss(loss)
            if error and not may_fail:
                raise Loss(f"program {at + 1}: {error}; status says {json.dumps(self.buffer.status()['errors'][-8:])}")
            self.failed_operations += error is not None
            self.ledgers[at] = ledger

    def judge(self, strict):
        status = self.buffer.status()
        of_outsiders = tuple(f"{self.buffer.mnt}/{name}" for name in OF_OUTSIDERS)
        for told in status["errors"] + status["conflicts"]:
            if "forebay-conflict" in json.dumps(told) and not told["path"].startswith(of_outsiders):
                raise Loss(f"a conflict without an outsider: {told}")
        for ledger in self.ledgers:
            root = self.buffer.mnt / f"w{ledger.worker}"
            found, by_file = ledger.judge(str(root), strict)
            ledger.rebase(str(root), found, by_file)
        self.judge_shared(strict)
        for name, content in self.outside.items():
            if (self.buffer.mnt / "outside" / name).read_bytes() != content:
                raise Loss(f"outside/{name} is not as the outsider left it")

    def judge_shared(self, strict):
        path = self.buffer.mnt / SHARED
        raw = path.read_bytes() if path.exists() else b""
        seen = {ledger.worker: [] for ledger in self.ledgers}
        torn = 0
        for at in range(0, len(raw), RECORD_BYTES):
            found = parse_record(raw[at:at + RECORD_BYTES])
            if found is None:
                torn += 1
            else:
                seen[found[0]].append(found[1])
        unsure = sum(ledger.append_unsure for ledger in self.ledgers)
        if strict and torn > unsure:
            raise Loss(f"{torn} torn records in the file that all append to")
        for ledger in self.ledgers:
            counts = seen[ledger.worker]
            if len(set(counts)) != len(counts) and strict:
                raise Loss(f"program {ledger.worker}: an append was done twice")
            must = ledger.appended if strict else ledger.appended_synced
            missing = set(range(1, must + 1)) - set(counts)
            if missing:
                raise Loss(f"program {ledger.worker}: {len(missing)} of {must} appends are lost, such as {min(missing)}")
            if max(counts, default=0) > ledger.appended + 1:
                raise Loss(f"program {ledger.worker}: an append that was never made")
        # It starts afresh: what a cut left in the middle is hard to go on from.
        if path.exists():
            path.unlink()
        for ledger in self.ledgers:
            ledger.appended = ledger.appended_synced = 0
            ledger.append_unsure = False

    def write_outside(self):
        """Somebody works on the PFS itself, in a directory that our programs leave alone."""
        folder = self.buffer.pfs / "outside"
        folder.mkdir(exist_ok=True)
        for _ in range(self.random.randrange(1, 6)):
            name = f"o{self.random.randrange(6)}"
            if name in self.outside and self.random.random() < 0.3:
                (folder / name).unlink()
                del self.outside[name]
                continue
            # Through the mount before and after, so that there may be a copy in the buffer.
            seen = self.buffer.mnt / "outside" / name
            if seen.exists():
                seen.read_bytes()
            content = self.random.randbytes(self.random.randrange(1, 300_000))
            aside = folder / f"{name}.aside"
            aside.write_bytes(content)
            aside.rename(folder / name)
            self.outside[name] = content
            self.fired["outside"] += 1
        run(self.args.forebay, "stage-in", self.buffer.mnt / "outside", check=False)
        time.sleep(1.1)

    def end(self):
        """All drains, and the PFS alone holds what the mount showed."""
        # A start takes away what could not be taken away while the PFS failed.
        self.buffer.down()
        self.buffer.start()
        self.buffer.down("--drain", "--timeout", "100s")
        for ledger in self.ledgers:
            ledger.judge(str(self.buffer.pfs / f"w{ledger.worker}"), strict=True)
        left = [path for path in self.buffer.pfs.rglob(".forebay*")]
        if left:
            raise Loss(f"left on the PFS: {left}")


def told(counter):
    return ", ".join(f"{count} {name}" for name, count in sorted(counter.items()) if count) or "nothing met"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--forebay", type=Path, required=True, help="the program")
    parser.add_argument("--passthrough", type=Path, help="the program bare-passthrough, which the PFS is behind when it hangs")
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--faults", default=",".join(FAULTS), help="a comma-separated list")
    parser.add_argument("--trace", action="store_true", help="logs say all that happens to the records of files")
    parser.add_argument("--large-blocks", type=int, default=2500, help="blocks of 4 KiB in the largest files")
    args = parser.parse_args()
    args.faults = [name for name in args.faults.split(",") if name]
    unknown = set(args.faults) - set(FAULTS)
    if unknown or not args.faults:
        parser.error(f"unknown faults: {', '.join(sorted(unknown)) or 'none given'}; known: {', '.join(FAULTS)}")
    if os.geteuid() != 0:
        sys.exit("soak: needs root, for it mounts loop file systems")
    args.forebay = args.forebay.resolve()
    if not args.forebay.is_file():
        parser.error(f"{args.forebay} is not there: make build")
    if set(args.faults) & set(BEHIND_FUSE) and not (args.passthrough and args.passthrough.is_file()):
        parser.error(f"{', '.join(BEHIND_FUSE)} need --passthrough: cargo build -p bare-passthrough")
    args.seed = random.SystemRandom().getrandbits(32) if args.seed is None else args.seed
    for name in [name for name in os.environ if name.startswith("FOREBAY_")]:
        del os.environ[name]
    if args.trace:
        os.environ["FOREBAY_LOG"] = "trace"
    counts, fired = collections.Counter(), collections.Counter()
    for phase in phases(args):
        campaign = run_phase(args, phase)
        counts, fired = counts + campaign.counts, fired + campaign.all_fired()
    # A round or two may have had nothing to meet.
    if idle := [fault for fault in args.faults if not fired[fault] and counts[fault] > 2]:
        sys.exit(f"soak: these faults have met nothing: {', '.join(idle)}")


class Phase(typing.NamedTuple):
    faults: list
    seconds: int
    sizes: tuple  # of memory and flash
    hanging: Path | None  # the program that the PFS is behind


def phases(args):
    sizes = random.Random(args.seed).sample([SMALL, LARGE], 2)
    of_any = [name for name in args.faults if name not in BEHIND_FUSE]
    behind = None if of_any == args.faults else args.passthrough.resolve()
    first = Phase(of_any, args.seconds // 2, sizes[0], None) if of_any else Phase(args.faults, args.seconds // 2, sizes[0], behind)
    return [first, Phase(args.faults, args.seconds - args.seconds // 2, sizes[1], behind)]


def run_phase(args, phase):
    base = Path(tempfile.mkdtemp(prefix="forebay-soak-"))
    base.chmod(0o755)
    campaign = None
    try:
        campaign = Campaign(args, base, phase)
        campaign.go()
    except Loss as loss:
        print(f"soak: LOSS with seed {args.seed}: {loss}\nsoak: logs are in {base}", flush=True)
        sys.exit(1)
    finally:
        if campaign:
            campaign.buffer.clean_up()
    shutil.rmtree(base, ignore_errors=True)
    return campaign


if __name__ == "__main__":
    main()
