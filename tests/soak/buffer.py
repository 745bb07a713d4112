"""The burst buffer under test, and the disks and the PFS that misbehave below it."""

import errno
import fcntl
import json
import os
import shutil
import signal
import struct
import subprocess
import time
from pathlib import Path

from ledger import BLOCK, Loss

MIB = 1 << 20
SHUTDOWN = 0x8004587D  # EXT4_IOC_SHUTDOWN and XFS_IOC_GOINGDOWN: _IOR('X', 125, u32)
NO_LOG_FLUSH = 2
PATIENCE_S = 120
GIVEN_UP_AFTER = "5s"  # a PFS that hangs
# What a stage-out says of a file until it is cut to nothing.
LOST = (": was stored into through a mapping, and that could not be written", ": was changed in place on the PFS, which could not put it on")
MAY_BE_LOST = "forebay: may be lost: "
# Of memory and flash: files have to move, or the kernel writes them by itself, for which room is set aside.
SMALL, LARGE = ("24MiB", "64MiB"), ("96MiB", "192MiB")
CONFIG = """
wait_for_space = "3s"
overrun = "64MiB"
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


class Disk:
    """A small file system in a file, whose power can be cut."""

    def __init__(self, base, name, size, kind, point=None):
        self.image, self.point, self.kind = base / f"{name}.img", point or base / name, kind
        self.point.mkdir()
        with open(self.image, "wb") as image:
            image.truncate(size)
        options = ["-q", "-m", "0"] if kind == "ext4" else ["-q"]
        run(f"mkfs.{kind}", *options, self.image)
        self.mount()

    def mount(self):
        self.leave_copies()
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

    def leave_copies(self):
        """Where others have a copy of the tree of mounts, of before the power was cut, the file system is still mounted there, with its errors:
        it keeps the file, and another one has what is in it."""
        deadline = time.monotonic() + 1.0
        while run("losetup", "--noheadings", "--associated", self.image).stdout.strip():
            if time.monotonic() < deadline:
                time.sleep(0.05)
                continue
            other = self.image.with_suffix(".other")
            run("cp", "--sparse=always", self.image, other)
            os.replace(other, self.image)
            return

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


class HangingPfs:
    """Shows a folder as a FUSE file system whose operations can hang and fail."""

    def __init__(self, program, base, source, point):
        self.point, self.faults = point, base / "pfs-faults"
        self.faults.mkdir()
        self.process = subprocess.Popen([program, "--plain", "--permissions", "--threads", "8", "--faults", self.faults, source, point],
                                        stdin=subprocess.DEVNULL)
        deadline = time.monotonic() + PATIENCE_S
        while f" {point} " not in Path("/proc/self/mountinfo").read_text():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{program} does not mount")
            time.sleep(0.02)

    def hang(self):
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self):
        self.process.send_signal(signal.SIGCONT)

    def fail(self, operation, when):
        """From now on such operations get EIO, "before" or "after" they are done."""
        aside = self.faults / f"{operation}.new"
        aside.write_text(f"{when} {errno.EIO} ")
        aside.rename(self.faults / f"{operation}.error")

    def heal(self):
        """Nothing fails any more; answers with how many operations have."""
        for order in self.faults.glob("*.error"):
            order.unlink()
        met = list(self.faults.glob("*.failed"))
        count = sum(file.stat().st_size for file in met)
        for file in met:
            file.unlink()
        return count

    def end(self):
        self.process.kill()
        self.go_on()
        self.process.wait(PATIENCE_S)
        run("umount", "-l", self.point, check=False)


class Buffer:
    """The burst buffer under test."""

    def __init__(self, forebay, base, kind, sizes, hanging=None, inner=None):
        """hanging: the program that shows the PFS, if it is to hang and fail; inner: the directory of the PFS that is a file system of
        its own."""
        self.forebay, self.base, self.sizes = forebay, base, sizes
        self.disks = {"pfs": Disk(base, "pfs-disk", 512 * MIB, "ext4"), "ssd": Disk(base, "ssd", 384 * MIB, kind),
                      "state": Disk(base, "state", 384 * MIB, "ext4")}
        self.mnt, self.state = base / "mnt", base / "state" / "forebay"
        self.mnt.mkdir()
        self.pfs = self.disks["pfs"].point / "data"
        self.pfs.mkdir()
        if inner:
            self.disks["inner"] = Disk(base, "inner", 512 * MIB, "xfs", self.pfs / inner)
        self.hanging = None
        self.refused = 0  # files whose stores or flushes the PFS has refused
        if hanging:
            shown = base / "pfs"
            shown.mkdir()
            self.hanging = HangingPfs(hanging, base, self.pfs, shown)
            self.pfs = shown
        (base / "ssd" / "tier").mkdir()
        (base / "bb.toml").write_text(CONFIG)
        self.process, self.starts, self.boots = None, 0, 1
        # Memory is borrowed, and given back when somebody orders that.
        self.borrows = False

    def start(self, borrows=False):
        self.borrows = borrows
        memory = ["--dram", "auto", "--dram-max", self.sizes[0]] if borrows else ["--dram", self.sizes[0]]
        log = self.base / f"up-{self.starts}.log"
        self.starts += 1
        # Every other time whatever is read is compared piece by piece.
        env = os.environ | ({"FOREBAY_SCRUB_VERIFY_ON_OPEN": "0"} if self.starts % 2 else {})
        # The kernel does not start anew when only the disks lose their power.
        env["FOREBAY_BOOT_ID"] = f"boot {self.boots}"
        env |= {"FOREBAY_PFS_TIMEOUT": GIVEN_UP_AFTER} if self.hanging else {}
        with open(log, "wb") as stderr:
            self.process = subprocess.Popen(
                [self.forebay, "up", "--pfs", self.pfs, "--mount", self.mnt, "--state", self.state, *memory,
                 "--ssd", f"{self.base}/ssd/tier:{self.sizes[1]}", "--config", self.base / "bb.toml"],
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
        """What the PFS has refused to flush stays named, and a stop says so each time. This PFS loses no power, so that nothing is lost."""
        done = self.command("down", *flags, check=False)
        refused = sum(line.startswith(MAY_BE_LOST) for line in done.stderr.splitlines())
        if done.returncode != (3 if refused else 0):
            raise Loss(f"down {flags} ended with {done.returncode}: {done.stderr}")
        self.refused += refused
        self.process.wait(PATIENCE_S)

    def where(self, path):
        return json.loads(run(self.forebay, "where", "--json", path).stdout)

    def objects(self):
        found = (self.base / "ssd/tier/objects").rglob("*")
        return [path for path in found if path.is_file() and path.suffix == ""]

    def status(self):
        return json.loads(self.command("status", "--json").stdout)

    def drain(self):
        """Some file systems give room back only after a while."""
        deadline = time.monotonic() + PATIENCE_S
        try:
            while (done := run(self.forebay, "stage-out", "--wait", self.mnt, check=False)).returncode != 0:
                if time.monotonic() > deadline:
                    raise Loss(f"it does not drain: {done.stderr}")
                self.write_anew(done.stderr)
                time.sleep(0.2)
        except subprocess.TimeoutExpired:
            held = [one for one in json.loads(run(self.forebay, "where", "--json", self.mnt, check=False).stdout) if one["state"] != "clean"]
            raise Loss(f"a drain hangs, of {held}, status {self.status()}, threads: {self.threads()}") from None

    def write_anew(self, said):
        """What the PFS has refused is lost, and its program has heard of it or hears of it by fsync. The file stays named until it is cut to
        nothing, so it is written anew as it is seen: each block as it was or as it was to be."""
        for line in said.splitlines():
            path, why, _ = line.removeprefix("forebay: ").partition(next((one for one in LOST if one in line), "\0"))
            if not why:
                continue
            self.refused += 1
            with open(path, "r+b") as file:
                content = file.read()
                file.truncate(0)
                file.seek(0)
                file.write(content)

    def threads(self):
        """Where the threads of the daemon are."""
        tasks = Path(f"/proc/{self.process.pid}/task").iterdir()
        return [" ".join((task / name).read_text().strip() for name in ("comm", "wchan", "syscall")) for task in tasks]

    def wait_for(self, what, is_so, patience_s=PATIENCE_S):
        deadline = time.monotonic() + patience_s
        while not is_so():
            if time.monotonic() > deadline:
                raise Loss(f"{what}: waited for in vain")
            time.sleep(0.05)

    def remove(self, name):
        """A directory with all that is in it, through the mount: nothing is left that would keep it."""
        try:
            shutil.rmtree(self.mnt / name)
        except OSError as error:
            left = {str(path): sorted(os.listdir(path)) for top in (self.mnt, self.pfs) for path in (top / name, *(top / name).rglob("*")) if path.is_dir()}
            time.sleep(1)
            again = run("rm", "-r", self.mnt / name, check=False)
            raise Loss(f"{name} cannot be removed: {error}; left: {left}; a second later: {again.stderr or 'it can'}") from error

    def clean_up(self):
        if self.hanging:
            self.hanging.go_on()
        if self.process and self.process.poll() is None:
            self.kill()
        run("umount", "-l", self.mnt, check=False)
        run("umount", "-l", self.state / "dram", check=False)
        if self.hanging:
            self.hanging.end()
        for disk in reversed(self.disks.values()):
            run("umount", "-l", disk.point, check=False)
