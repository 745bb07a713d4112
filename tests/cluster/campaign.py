#!/usr/bin/env python3
"""A random campaign against a server and the mounts of several nodes: programs on all of them change and look at the
same files, while links are cut, sockets reset, clients stopped and killed, and the server killed and started again. With
data servers nodes lose their power or their state folder, and are emptied by order (`drained`): files leave a node while
programs have them open, other faults may meet that half-way, and a node that is empty may end. Nothing is lost or torn by it.

    python3 tests/cluster/campaign.py [--seconds 1800] [--clients 4] [--seed N] [--faults links,kill,...]
    python3 tests/cluster/campaign.py --self-test

An account outside of the file system (account.py) says what each look may show: what was answered is seen by everybody
from then on, through a restart of the server as well; a record that was appended is there once; a name is what it was
made. After each fault everybody looks at everything, and at the end the PFS alone is compared. The seed decides what
is done and when; what the scheduler makes of it differs from run to run. Needs root. Exits 1 if anything was seen that
nothing allows, with the story of the files concerned, and keeps the logs; 2 if it could not run.
"""

import argparse
import collections
import contextlib
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path

from account import BESIDE, Violation, parse_cells, parse_records
from cluster import ROOT, Failure, cluster, say
from faults import DATA_FAULTS, FAULTS, STANDBY_FAULTS, Faults
from fullness import Fullness
from machine import MIB, clean_exit_on_signals, run, workspace
from outsider import THEIRS
from planner import FOLDERS, LOG_FOLDER, SLOT_FOLDER, Planner
from selftest import self_test

PROGRAMS_OF_EACH = 3
PATIENCE_S = 150
COPIES, COPIED_WITHIN_S = "(second copies)", 60
LEASE_S = 8
# Files have to move: less memory than the programs write, and not much flash.
DRAM, FLASH = "24MiB", "96MiB"
# The least that there is: what a node's programs write moves all the time.
TIGHT_DRAM, TIGHT_FLASH = "4MiB", "4MiB"
TIGHT_TIER_BYTES = 4 * MIB
BULK_FOLDER = "bulk"
# Faults that take along what was not fsynced.
LOSING_FAULTS = {"power", "emptied", "blackout"}
BEHIND = """
[demotion]
idle_after = "500ms"
[[rule]]
path = "/safe/**"
durability = "pfs"
[[rule]]
path = "/mem/**"
durability = "memory"
"""


class Worker:
    """A program's process, and the thread that gives it its plans."""

    def __init__(self, campaign, number, client, first):
        self.campaign, self.number, self.client, self.first = campaign, number, client, first
        ours, theirs = multiprocessing.Pipe()
        campaign.planner.join(number, client, first)
        words = [sys.executable, Path(__file__).with_name("program.py"), str(theirs.fileno()), campaign.cluster.mounts[client]]
        self.process = subprocess.Popen(words, pass_fds=[theirs.fileno()], start_new_session=True)
        theirs.close()
        self.heard = time.monotonic()
        self.thread = threading.Thread(target=self.serve, args=(ours,), daemon=True)
        self.thread.start()

    def serve(self, pipe):
        planner, lock = self.campaign.planner, self.campaign.lock
        try:
            with pipe:
                self.answer(pipe)
        except Exception:
            # Nobody else would hear of it: the account is not to be trusted from here on.
            planner.violations.append(f"the campaign itself is wrong: {traceback.format_exc()}")
        # Only the end of the process is the end of what its mappings had under way.
        code = self.process.wait()
        with lock:
            if planner.programs[self.number].ticket or code:
                planner.died(self.number, signal.Signals(-code).name if code < 0 else f"exit {code}")
            elif planner.mode != "end" and not planner.violations:
                planner.violations.append(f"program {self.number} ended by itself")
            planner.leave(self.number)

    def answer(self, pipe):
        """Gives it one plan after the other, until its end."""
        planner, lock = self.campaign.planner, self.campaign.lock
        with contextlib.suppress(EOFError, ConnectionError):
            while True:
                outcome = pipe.recv()
                with lock:
                    self.heard = time.monotonic()
                    if outcome is not None:
                        planner.done(self.number, outcome)
                    plan = planner.next(self.number)
                pipe.send(plan)


class Campaign:
    def __init__(self, args, running):
        self.args, self.cluster = args, running
        self.planner, self.lock = Planner(args.seed, args.grow_mapped, args.spare_replaced), threading.RLock()
        self.random = random.Random(f"{args.seed} faults")
        self.workers, self.numbers = [], 0
        self.ballast, self.fullness = {}, Fullness(self)
        self.faults = Faults(self)
        self.counts = collections.Counter()
        self.moves = collections.Counter()
        self.begun = time.monotonic()

    def go(self):
        for folder in (*FOLDERS, SLOT_FOLDER, LOG_FOLDER):
            (self.cluster.mounts[0] / folder).mkdir(parents=True)
        (self.cluster.pfs / THEIRS).mkdir()
        for client in range(self.args.clients):
            for at in range(PROGRAMS_OF_EACH):
                self.start_worker(client, at == 0)
            self.start_ballast(client)
        mover = threading.Thread(target=self.move, daemon=True)
        mover.start()
        self.fullness.start()
        rounds = 0
        while time.monotonic() - self.begun < self.args.seconds:
            rounds += 1
            fault = self.random.choice(self.args.faults)
            self.wait(self.random.uniform(0.5, 4.0))
            getattr(self.faults, f"do_{fault}")()
            self.counts[fault] += 1
            self.wait(self.random.uniform(0.5, 2.5))
            self.look_at_all()
            with self.lock:
                told = sum(self.planner.operations.values())
                unknown = sum(self.planner.unknown.values())
            print(f"{time.monotonic() - self.begun:6.0f} s  round {rounds}: {self.faults.told}; {told} operations answered, "
                  f"{unknown} with an answer that was lost", flush=True)
        self.end(mover)

    def start_worker(self, client, first):
        self.numbers += 1
        with self.lock:
            self.workers.append(Worker(self, self.numbers, client, first))

    def start_ballast(self, client):
        """What fills tiers that are tight."""
        if self.args.tight:
            # A part of what was written to may go with any node where copies are kept.
            loses = LOSING_FAULTS & set(self.args.faults) or self.args.replicas > 1
            words = [sys.executable, Path(__file__).with_name("ballast.py"), self.cluster.mounts[client] / BULK_FOLDER / str(client),
                     f"{self.args.seed} {client}", TIGHT_TIER_BYTES, int(bool(loses))]
            self.ballast[client] = subprocess.Popen([str(word) for word in words], stdout=subprocess.PIPE, text=True, start_new_session=True)

    def stop_ballast(self, client):
        if process := self.ballast.pop(client, None):
            process.kill()
            try:
                told, _ = process.communicate(timeout=PATIENCE_S)
            except subprocess.TimeoutExpired:
                told = f"the program that fills the tiers on client {client} does not end: {stack(process.pid)}"
            if told.strip():
                self.planner.violations.append(told.strip())

    def wait(self, seconds):
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.check()
            time.sleep(0.05)

    def check(self):
        """Ends the campaign at a violation; starts programs anew that a dead mapping has ended."""
        with self.lock:
            if self.planner.violations:
                raise Failure("violated")
            hanging = [worker for worker in self.workers if time.monotonic() - worker.heard > PATIENCE_S]
            if hanging:
                for worker in hanging:
                    program = self.planner.programs.get(worker.number)
                    ticket = program and program.ticket
                    self.planner.violations.append(f"program {worker.number} on client {worker.client} hangs for {PATIENCE_S} s: "
                                                   f"{ticket and ticket.plan}; {stack(worker.process.pid)}")
                raise Failure("violated")
            ended = [worker for worker in self.workers if not worker.thread.is_alive()]
            for worker in ended:
                self.workers.remove(worker)
                self.counts["programs that a mapping ended"] += 1
        for worker in ended:
            self.start_worker(worker.client, worker.first)
        for client, process in list(self.ballast.items()):
            if process.poll() is not None:
                self.planner.violations.append(f"client {client}: {process.communicate()[0].strip() or process.returncode}")
                del self.ballast[client]

    def until(self, what, done):
        deadline = time.monotonic() + PATIENCE_S
        while True:
            self.check()
            with self.lock:
                if done():
                    return
                if time.monotonic() > deadline:
                    under_way = [program.ticket.plan for program in self.planner.programs.values() if program.ticket]
                    self.planner.violations.append(f"{what}: not within {PATIENCE_S} s; under way: {under_way}")
            time.sleep(0.02)

    def look_at_all(self):
        """With nothing under way everybody sees the same: what was answered."""
        with self.lock:
            self.planner.mode = "rest"
        self.until("no operation is under way", self.planner.quiet)
        self.faults.settle_deeds()
        with self.lock:
            self.planner.audit()
        self.until("everybody has looked at everything", self.planner.audited)
        with self.lock:
            try:
                self.planner.account.judge_lost()
            except Violation as violation:
                self.planner.violations.append(str(violation))
            if self.random.random() < 0.3 or any(log.bytes > 200_000 for log in self.planner.account.logs.values()):
                old = list(self.planner.account.logs)
                self.planner.new_logs()
            else:
                old = []
        self.remove(old)
        with self.lock:
            self.planner.mode = "run"

    def remove(self, paths):
        """By a process of its own: the driver never waits for a mount."""
        mount = self.random.choice(self.cluster.mounts)
        if paths:
            run(["rm", "-f", *(mount / path for path in paths)], timeout_s=PATIENCE_S)

    def move(self):
        """Orders of people, by mounts that nothing happens to."""
        chance = random.Random(f"{self.args.seed} moves")
        while self.planner.mode != "end" and not self.planner.violations:
            time.sleep(chance.uniform(0.1, 1.0))
            client, order = chance.randrange(self.args.clients), chance.choice(["stage-out", "release", "stage-in", "prefetch"])
            if self.faults.under_way:
                continue
            self.moves[order] += 1
            path = self.cluster.mounts[client] / chance.choice(FOLDERS)
            try:
                done = run([self.cluster.binary, order, path], check=False, timeout_s=PATIENCE_S)
            except Failure as failure:
                done = None
                told = str(failure)
            if (done is None or done.returncode not in (0, 3)) and not self.faults.under_way and not self.planner.violations:
                # A restart may have met it: that one is begun anew.
                told = told if done is None else f"exit {done.returncode}: {done.stderr.strip()[-200:]}"
                self.moves[f"{order} failed"] += 1
                say(f"{order} {path}: {told}")

    def end(self, mover):
        with self.lock:
            self.planner.mode = "end"
        for worker in self.workers:
            worker.thread.join(PATIENCE_S)
            if worker.thread.is_alive():
                self.planner.violations.append(f"program {worker.number} does not end: {stack(worker.process.pid)}")
                raise Failure("violated")
        mover.join(PATIENCE_S)
        for client in list(self.ballast):
            self.stop_ballast(client)
        self.fullness.stop()
        if self.planner.violations:
            raise Failure("violated")
        deadline = time.monotonic() + COPIED_WITHIN_S
        # Second copies that are made again are named until they are there.
        while (errors := self.errors()) and time.monotonic() < deadline and all(COPIES in error["path"] for error in errors):
            time.sleep(0.5)
        if errors:
            self.planner.violations.append(f"status shows errors: {errors[:4]}")
        self.cluster.finish(timeout="100s")
        try:
            self.judge_pfs()
        except Violation as violation:
            self.planner.violations.append(f"on the PFS, after all was drained: {violation}")
        if self.planner.violations:
            raise Failure("violated")

    def errors(self):
        return [error for error in self.cluster.status()["errors"] if not self.is_allowed(error)]

    def is_allowed(self, error):
        """Whether it names what was never fsynced and has gone with a node, or what an outsider has changed. Whether that was allowed
        the account says."""
        if self.counts["outsider"] and error["errno"] == "EEXIST" and BESIDE in error["error"]:
            return True
        return bool(LOSING_FAULTS & set(self.counts) or self.args.replicas > 1) and "lost" in error["error"]

    def judge_pfs(self):
        """What is on the PFS when all is drained is what was answered."""
        account, pfs = self.planner.account, self.cluster.pfs
        since = account.tick
        for path, name in account.names.items():
            there = pfs / path
            account.judge_name(name, parse_cells(there.read_bytes()) if there.exists() else None, since)
        for folder in (*FOLDERS, SLOT_FOLDER):
            account.judge_folder(folder, os.listdir(pfs / folder), since)
        for path, log in account.logs.items():
            if log.answered:
                account.judge_log(log, *parse_records((pfs / path).read_bytes()), since)

    def kill_programs(self):
        """What is left of them; one that waits for a mount ends with that."""
        for process in [*(worker.process for worker in self.workers), *self.ballast.values()]:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

    def figures(self):
        planner = self.planner
        lines = [f"operations: {counted(planner.operations)}", f"answers lost: {counted(planner.unknown)}",
                 f"looks: {counted(planner.account.counts)}", f"faults: {counted(self.counts)}", f"orders: {counted(self.moves)}"]
        lines.append(f"tiers: {self.fullness.told()}")
        if planner.refused:
            lines.append(f"refused at first, as documented: {counted(planner.refused)}")
        return "\n".join(f"campaign: {line}" for line in lines)


def counted(counter):
    return ", ".join(f"{count} {name}" for name, count in sorted(counter.items())) or "none"


def stack(pid):
    try:
        return Path(f"/proc/{pid}/stack").read_text(encoding="ascii").replace("\n", "; ")
    except OSError as error:
        return f"no stack ({error.strerror})"


def perform(args):
    with workspace("forebay-campaign-") as base:
        base.chmod(0o755)
        print(f"campaign: seed {args.seed}, {args.seconds} s, {args.clients} clients with {PROGRAMS_OF_EACH} programs each, "
              f"faults {','.join(args.faults)}", flush=True)
        dram, flash = (TIGHT_DRAM, TIGHT_FLASH) if args.tight else (DRAM, FLASH)
        with cluster(args.forebay, base, args.clients, dram, flash, lease=f"{LEASE_S}s", behind=BEHIND,
                     data_servers=args.data_servers, replicas=args.replicas, standby=args.standby) as running:
            campaign = Campaign(args, running)
            try:
                campaign.go()
            except BaseException as error:
                campaign.faults.all_back()
                campaign.planner.mode = "end"
                campaign.kill_programs()
                kept = Path(tempfile.mkdtemp(prefix="forebay-campaign-logs-"))
                running.keep_logs(kept)
                for folder in (*FOLDERS, LOG_FOLDER):
                    shutil.copytree(running.pfs / folder, kept / "pfs" / folder, dirs_exist_ok=True)
                kept.joinpath("lists").write_text(run(["ls", "-laRi", "--time-style=full-iso", running.pfs]).stdout, encoding="utf-8")
                print(campaign.figures())
                if str(error) != "violated":
                    print(f"campaign: ended by {type(error).__name__}: {error}")
                for violation in campaign.planner.violations:
                    print(f"campaign: VIOLATION with seed {args.seed}: {violation}")
                print("\n".join(["campaign: the last faults:", *campaign.faults.history]))
                print(f"campaign: logs are in {kept}", flush=True)
                if campaign.planner.violations:
                    return 1
                raise error
            print(campaign.figures())
            campaign.fullness.judge(args.full if args.tight else 0)
            print(f"campaign: no violation in {time.monotonic() - campaign.begun:.0f} s, seed {args.seed}", flush=True)
    return 0


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--forebay", type=Path, default=ROOT / "target/release/forebay", help="the binary to test")
    parser.add_argument("--seconds", type=int, default=1800, help="for how long (1800)")
    parser.add_argument("--clients", type=int, default=4, help="nodes with a mount (4)")
    parser.add_argument("--seed", type=int, help="decides faults and operations")
    parser.add_argument("--faults", help=f"a comma-separated list of {', '.join(FAULTS)}, with data servers also {', '.join(DATA_FAULTS)}, with --standby also {', '.join(STANDBY_FAULTS)}, or none (all)")
    parser.add_argument("--data-servers", action="store_true", help="each node holds data, too, and its data server is killed or stands still")
    parser.add_argument("--replicas", type=int, default=1, choices=(1, 2), help="2: data servers in racks of their own, and the level replica (1)")
    parser.add_argument("--standby", action="store_true", help="data servers, etcd, and a second metadata server that takes over")
    parser.add_argument("--tight", action="store_true", help="tiers as small as they may be, and programs that keep them full")
    parser.add_argument("--full", type=int, default=20, help="with --tight, how often a tier has to have been found full (20)")
    parser.add_argument("--soak", action="store_true", help="all faults, --replicas 2 and --tight, on --clients nodes")
    parser.add_argument("--grow-mapped", action="store_true", help="also make files longer and shorter that another node has mapped")
    parser.add_argument("--spare-replaced", action="store_true", help="nobody writes to a file while another one is renamed over it")
    parser.add_argument("--self-test", action="store_true", help="wrong histories, each of which must be found")
    args = parser.parse_args()
    args.forebay = args.forebay.resolve()
    if args.soak:
        args.replicas, args.tight = 2, True
    args.data_servers |= args.replicas > 1 or args.standby
    known = [*FAULTS, *(STANDBY_FAULTS if args.standby else ()), *(DATA_FAULTS if args.data_servers else ())]
    args.faults = args.faults.split(",") if args.faults else known
    if unknown := set(args.faults) - {*known, "none"}:
        parser.error(f"no such faults: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    if not args.self_test and not args.forebay.is_file():
        parser.error(f"{args.forebay} is not there: make build")
    if args.seed is None:
        args.seed = random.SystemRandom().getrandbits(32)
    return args


def main():
    args = arguments()
    if args.self_test:
        return self_test()
    try:
        with clean_exit_on_signals():
            return perform(args)
    except KeyboardInterrupt:
        return 130
    except (Failure, OSError) as error:
        say(f"campaign: {error}")
        return 2


if __name__ == "__main__":
    sys.exit(main())
