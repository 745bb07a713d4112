#!/usr/bin/env python3
"""A random campaign against a burst buffer: load, kills, power cuts, full disks, damage at rest, outsiders.

    make soak SECONDS=600 [SEED=n] [FAULTS=kill,cut,...]

Programs work on the mount and keep account of what they asked for and were answered. After every fault the burst
buffer is started again, and all that it shows is judged by that account: what was answered survives the daemon, what
was fsynced survives the machine, what was not may be old or new, nothing is damaged and nothing comes back. The seed
decides faults, their times and what every program does; what the scheduler makes of it differs from run to run.
Needs root: it mounts loop file systems. Exits 1 at the first loss, and keeps the folder.
"""

import argparse
import errno
import fcntl
import json
import multiprocessing
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from ledger import BLOCK, Ledger, Loss
from worker import RECORD_BYTES, parse_record, work

MIB = 1 << 20
SHUTDOWN = 0x8004587D  # EXT4_IOC_SHUTDOWN and XFS_IOC_GOINGDOWN: _IOR('X', 125, u32)
NO_LOG_FLUSH = 2
PATIENCE_S = 120
WORKERS = 3
FAULTS = ("kill", "cut", "full-ssd", "full-state", "full-pfs", "damage", "outside", "restart")
CONFIG = """
wait_for_space = "500ms"
[demotion]
idle_after = "100ms"
retry_after = "100ms"
[scrub]
pass = "1s"
seal_after = "0s"
calm = "0s"
[[rule]]
path = "/*/safe/**"
durability = "pfs"
[[rule]]
path = "/*/mem/**"
durability = "memory"
"""


def run(*words, check=True):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=PATIENCE_S)
    if check and done.returncode != 0:
        raise RuntimeError(f"{words}: {done.returncode} {done.stdout} {done.stderr}")
    return done


def flip(path, at, bit):
    """As a medium does it: without a trace in the times."""
    times = path.stat()
    with open(path, "r+b") as data:
        data.seek(at)
        old = data.read(1)
        data.seek(at)
        data.write(bytes([old[0] ^ (1 << bit)]))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


class Disk:
    """A small file system in a file, whose power can be cut."""

    def __init__(self, base, name, size, kind):
        self.image, self.point, self.kind = base / f"{name}.img", base / name, kind
        self.point.mkdir()
        with open(self.image, "wb") as image:
            image.truncate(size)
        options = ["-q", "-m", "0"] if kind == "ext4" else ["-q"]
        run(f"mkfs.{kind}", *options, self.image)
        self.mount()

    def mount(self):
        run("mount", "-t", self.kind, "-o", "loop", self.image, self.point)
        shutil.rmtree(self.point / "lost+found", ignore_errors=True)

    def cut(self):
        fd = os.open(self.point, os.O_RDONLY)
        try:
            fcntl.ioctl(fd, SHUTDOWN, struct.pack("I", NO_LOG_FLUSH))
        finally:
            os.close(fd)

    def unmount(self):
        # A dying process may hold it for a moment.
        deadline = time.monotonic() + PATIENCE_S
        while run("umount", self.point, check=False).returncode != 0:
            # Not os.path.ismount: it takes the errors of a file system that was cut for an answer.
            if f" {self.point} " not in Path("/proc/self/mountinfo").read_text():
                return
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self.point} is busy")
            time.sleep(0.05)

    def fill(self, left):
        """Takes all but about `left` bytes, while others take some too."""
        ballast = self.point / "ballast"
        with open(ballast, "wb") as file:
            held = 0
            for _ in range(20):
                free = os.statvfs(self.point)
                take = free.f_bavail * free.f_frsize - left
                if take < BLOCK:
                    break
                try:
                    os.posix_fallocate(file.fileno(), held, take)
                    held += take
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    left += take // 16
        return ballast


class Buffer:
    """The burst buffer under test."""

    def __init__(self, forebay, base, kind):
        self.forebay, self.base = forebay, base
        self.disks = {"pfs": Disk(base, "pfs", 512 * MIB, "ext4"), "ssd": Disk(base, "ssd", 384 * MIB, kind),
                      "state": Disk(base, "state", 384 * MIB, "ext4")}
        self.mnt, self.pfs, self.state = base / "mnt", base / "pfs" / "data", base / "state" / "forebay"
        self.mnt.mkdir()
        self.pfs.mkdir()
        (base / "ssd" / "tier").mkdir()
        (base / "bb.toml").write_text(CONFIG)
        self.process, self.starts, self.boots = None, 0, 1

    def start(self):
        log = self.base / f"up-{self.starts}.log"
        self.starts += 1
        # Every other time whatever is read is compared piece by piece.
        env = os.environ | ({"FOREBAY_SCRUB_VERIFY_ON_OPEN": "0"} if self.starts % 2 else {})
        # The kernel does not start anew when only the disks lose their power.
        env["FOREBAY_BOOT_ID"] = f"boot {self.boots}"
        with open(log, "wb") as stderr:
            self.process = subprocess.Popen(
                [self.forebay, "up", "--pfs", self.pfs, "--mount", self.mnt, "--state", self.state, "--dram", "24MiB",
                 "--ssd", f"{self.base}/ssd/tier:64MiB", "--config", self.base / "bb.toml"],
                env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=stderr)
        deadline = time.monotonic() + PATIENCE_S
        while b" is up in front of " not in log.read_bytes():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise Loss(f"it does not start: {log.read_text()}")
            time.sleep(0.02)

    def kill(self):
        self.process.kill()
        self.process.wait(PATIENCE_S)

    def cut(self):
        """The machine loses its power; the PFS is elsewhere."""
        self.boots += 1
        # Nothing goes on between one disk's end and the other's.
        self.process.send_signal(signal.SIGSTOP)
        for name in ("ssd", "state"):
            self.disks[name].cut()
        self.kill()
        run("umount", "-l", self.mnt, check=False)
        run("umount", "-l", self.state / "dram", check=False)
        for name in ("ssd", "state"):
            self.disks[name].unmount()
            self.disks[name].mount()

    def command(self, *words, check=True):
        return run(self.forebay, *words, "--state", self.state, check=check)

    def down(self, *flags):
        self.command("down", *flags)
        self.process.wait(PATIENCE_S)

    def where(self, path):
        return json.loads(run(self.forebay, "where", "--json", path).stdout)

    def objects(self):
        found = (self.base / "ssd/tier/objects").rglob("*")
        return [path for path in found if path.is_file() and path.suffix == ""]

    def errors(self):
        return json.loads(self.command("status", "--json").stdout)["errors"]

    def clean_up(self):
        if self.process and self.process.poll() is None:
            self.kill()
        run("umount", "-l", self.mnt, check=False)
        run("umount", "-l", self.state / "dram", check=False)
        for disk in self.disks.values():
            run("umount", "-l", disk.point, check=False)


class Campaign:
    def __init__(self, args, base):
        self.args, self.random = args, random.Random(args.seed)
        kind = self.random.choice(["ext4", "xfs"])
        self.buffer = Buffer(args.forebay, base, kind)
        self.ledgers = [Ledger(worker) for worker in range(1, WORKERS + 1)]
        self.counts = {name: 0 for name in args.faults}
        self.outside, self.failed_operations, self.rounds = {}, 0, 0
        print(f"soak: seed {args.seed}, {args.seconds} s, faults {','.join(args.faults)}, flash on {kind}", flush=True)

    def go(self):
        begun = time.monotonic()
        self.buffer.start()
        while time.monotonic() - begun < self.args.seconds:
            self.rounds += 1
            fault = self.random.choice(self.args.faults)
            self.round(fault)
            self.counts[fault] += 1
            operations = sum(ledger.operations for ledger in self.ledgers)
            elapsed = time.monotonic() - begun
            print(f"{elapsed:6.0f} s  round {self.rounds}: {fault}; {operations} operations so far, "
                  f"{sum(len(ledger.living()) for ledger in self.ledgers)} files", flush=True)
        self.end()
        counts = ", ".join(f"{count} {name}" for name, count in self.counts.items())
        print(f"soak: no loss in {time.monotonic() - begun:.0f} s, seed {self.args.seed}: "
              f"{sum(ledger.operations for ledger in self.ledgers)} operations, {self.rounds} rounds ({counts}), "
              f"{self.failed_operations} programs met an error", flush=True)

    def round(self, fault):
        workers = self.start_workers()
        time.sleep(self.random.uniform(0.3, 2.5))
        strict, ballast = True, None
        if fault == "kill":
            self.buffer.kill()
        elif fault == "cut":
            self.buffer.cut()
            strict = False
        elif fault.startswith("full-"):
            disk = self.buffer.disks[fault.removeprefix("full-")]
            ballast = disk.fill(self.random.choice([0, 64 << 10, 1 << 20]))
            time.sleep(self.random.uniform(0.5, 2.0))
        elif fault == "outside":
            self.write_outside()
        quiet = fault in ("damage", "outside", "restart")
        self.stop_workers(workers, may_fail=not quiet)
        if ballast:
            ballast.unlink(missing_ok=True)
        if fault in ("kill", "cut"):
            self.buffer.start()
        elif fault == "full-state":
            # A store that could not write is read-only until it is opened again.
            self.buffer.kill()
            self.buffer.start()
        elif fault == "full-pfs":
            # An error of a drain reaches the next fsync of the file; what has been drained since has none.
            self.drain()
        elif fault == "restart":
            self.buffer.down()
            self.buffer.start()
        elif fault == "damage":
            self.damage()
        self.judge(strict)

    def drain(self):
        """Some file systems give room back only after a while."""
        deadline = time.monotonic() + PATIENCE_S
        while run(self.args.forebay, "stage-out", "--wait", self.buffer.mnt, check=False).returncode != 0:
            if time.monotonic() > deadline:
                raise Loss("it does not drain")
            time.sleep(0.2)

    def start_workers(self):
        workers = []
        for ledger in self.ledgers:
            ours, theirs = multiprocessing.Pipe()
            root = self.buffer.mnt / f"w{ledger.worker}"
            root.mkdir(exist_ok=True)
            args = (ledger, str(root), str(self.buffer.pfs / root.name), self.random.getrandbits(48),
                    self.args.large_blocks, theirs)
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
                raise Loss(f"program {at + 1}: {error}")
            self.failed_operations += error is not None
            self.ledgers[at] = ledger

    def judge(self, strict):
        for error in self.buffer.errors():
            if "forebay-conflict" in json.dumps(error):
                raise Loss(f"a conflict without an outsider: {error}")
        for ledger in self.ledgers:
            root = self.buffer.mnt / f"w{ledger.worker}"
            found, by_file = ledger.judge(str(root), strict)
            ledger.rebase(str(root), found, by_file)
        self.judge_shared(strict)
        for name, content in self.outside.items():
            if (self.buffer.mnt / "outside" / name).read_bytes() != content:
                raise Loss(f"outside/{name} is not as the outsider left it")

    def judge_shared(self, strict):
        path = self.buffer.mnt / "shared"
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
        run(self.args.forebay, "stage-in", self.buffer.mnt / "outside", check=False)
        time.sleep(1.1)

    def damage(self):
        if self.random.random() < 0.5:
            self.damage_undrained()
        else:
            self.damage_drained()

    def damage_undrained(self):
        """A bit flips in data that only the buffer has, for the PFS is full: neither handed out nor drained; put right, it is whole."""
        path, drained = self.buffer.mnt / "undrained", self.buffer.pfs / "undrained"
        content = self.random.randbytes(self.random.randrange(BLOCK, 300_000))
        # What others give up now is free only after a while.
        self.drain()
        run("sync", "-f", self.buffer.pfs)
        ballast = self.buffer.disks["pfs"].fill(0)
        with open(path, "wb") as file:
            file.write(content)
            os.fsync(file.fileno())
        # Out of memory, to flash.
        self.buffer.down()
        self.buffer.start()
        entry = lambda: self.buffer.where(path)[0]
        self.wait_for("its checksum", lambda: entry()["crc32c"] and entry()["state"] != "demoting")
        if entry()["state"] != "dirty":
            # The PFS had room all the same.
            ballast.unlink()
            path.unlink()
            return
        self.buffer.kill()
        victims = [one for one in self.buffer.objects() if one.stat().st_size == len(content) and one.read_bytes() == content]
        if len(victims) != 1:
            raise Loss(f"{len(victims)} objects hold what was written to {path}")
        place, bit = self.random.randrange(len(content)), self.random.randrange(8)
        flip(victims[0], place, bit)
        self.buffer.start()
        try:
            path.read_bytes()
            raise Loss(f"a flipped bit in {victims[0]} was handed out, undrained")
        except OSError as error:
            if error.errno != errno.EIO:
                raise
        ballast.unlink()
        if run(self.args.forebay, "stage-out", "--wait", path, check=False).returncode == 0 or drained.exists():
            raise Loss(f"a flipped bit in {victims[0]} was drained")
        flip(victims[0], place, bit)
        if path.read_bytes() != content:
            raise Loss(f"{path} is not what was written, though its object is")
        self.drain()
        if drained.read_bytes() != content:
            raise Loss(f"{drained} is not what was written")
        path.unlink()

    def wait_for(self, what, is_so):
        deadline = time.monotonic() + PATIENCE_S
        while not is_so():
            if time.monotonic() > deadline:
                raise Loss(f"{what}: waited for in vain")
            time.sleep(0.05)

    def damage_drained(self):
        """Bits flip at rest in a clean copy, found by fsck, which takes the good one on the PFS."""
        run(self.args.forebay, "stage-out", "--wait", self.buffer.mnt)
        clean = [entry for entry in self.buffer.where(self.buffer.mnt) if entry["state"] == "clean" and entry.get("size_bytes", 0) > 0]
        self.buffer.down()
        objects = [path for path in self.buffer.objects() if path.stat().st_size > 0]
        if not clean or not objects:
            self.buffer.start()
            return
        victim = self.random.choice(sorted(objects))
        at = self.random.randrange(victim.stat().st_size)
        flip(victim, at, self.random.randrange(8))
        if self.random.random() < 0.5:
            # Whoever reads it first finds it.
            self.buffer.start()
            for path in (self.buffer.mnt / entry["path"] for entry in clean):
                original = self.buffer.pfs / path.relative_to(self.buffer.mnt)
                if path.read_bytes() != original.read_bytes():
                    raise Loss(f"a flipped bit in {victim} was handed out in {path}")
            return
        code = self.buffer.command("fsck", "--checksums", check=False).returncode
        if code != 5:
            raise Loss(f"fsck did not find and mend a flipped bit in {victim}: exit {code}")
        self.buffer.start()

    def end(self):
        """All drains, and the PFS alone holds what the mount showed."""
        self.buffer.down("--drain", "--timeout", "100s")
        for ledger in self.ledgers:
            ledger.judge(str(self.buffer.pfs / f"w{ledger.worker}"), strict=True)
        left = [path for path in self.buffer.pfs.rglob(".forebay*")]
        if left:
            raise Loss(f"left on the PFS: {left}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--forebay", type=Path, required=True, help="the program")
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
    args.seed = random.SystemRandom().getrandbits(32) if args.seed is None else args.seed
    for name in [name for name in os.environ if name.startswith("FOREBAY_")]:
        del os.environ[name]
    if args.trace:
        os.environ["FOREBAY_LOG"] = "trace"
    base = Path(tempfile.mkdtemp(prefix="forebay-soak-"))
    base.chmod(0o755)
    campaign = None
    try:
        campaign = Campaign(args, base)
        campaign.go()
    except Loss as loss:
        print(f"soak: LOSS with seed {args.seed}: {loss}\nsoak: logs are in {base}", flush=True)
        sys.exit(1)
    finally:
        if campaign:
            campaign.buffer.clean_up()
    shutil.rmtree(base, ignore_errors=True)


if __name__ == "__main__":
    main()
