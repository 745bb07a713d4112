"""Flash that takes what is written, and loses it when the kernel writes it back: with a burst buffer of its own, for what it loses is lost to all."""

import json
import mmap
import os
import subprocess
import time
from pathlib import Path

from buffer import MIB, PATIENCE_S, run
from ledger import Loss

FILES = 8
PAGE = 4096
BYTES = 3 * MIB
SIZE_MIB, ROOM_MIB = 160, 200
THIN_MIB = range(6, 24)
OLDER = b"the version before"
CONFIG = """
[demotion]
idle = false
retry_after = "100ms"
[scrub]
enabled = false
"""
ENDS = ("close", "fsync", "msync", "sync-write")


class Flash:
    """A disk that has less room than it says."""

    def __init__(self, base):
        self.memory, self.point = base / "memory", base / "flash"
        self.memory.mkdir()
        self.point.mkdir()
        run("mount", "-t", "tmpfs", "-o", f"size={ROOM_MIB}m", "thin", self.memory)
        image = self.memory / "image"
        with open(image, "wb") as file:
            file.truncate(SIZE_MIB * MIB)
        # With a journal one error makes it read-only, which all hear of.
        run("mkfs.ext4", "-q", "-m", "0", "-b", str(PAGE), "-O", "^has_journal", image)
        run("mount", "-o", "loop", image, self.point)
        # A loop device takes a request that its file could do in part for done. So each is one page.
        device = os.stat(self.point).st_dev
        queue = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/queue/max_sectors_kb")
        queue.write_text(str(PAGE // 1024), encoding="ascii")

    def back(self, mib):
        run("mount", "-o", f"remount,size={mib}m", self.memory)

    def end(self):
        run("umount", "-l", self.point, check=False)
        run("umount", "-l", self.memory, check=False)


def drop_pages(flash):
    """The kernel writes back what is on flash, and has no room for it in memory any longer."""
    subprocess.run(["sync", "-f", str(flash.point)], check=False, capture_output=True)
    for path in flash.point.rglob("*"):
        if path.is_file():
            fd = os.open(path, os.O_RDONLY)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)
    for _ in range(3):
        with open("/proc/sys/vm/drop_caches", "w", encoding="ascii") as caches:
            caches.write("2")


class Thin:
    def __init__(self, campaign):
        self.campaign, self.random, self.rounds = campaign, campaign.random, 0

    def go(self):
        """Answers with how many files flash has lost."""
        self.rounds += 1
        base = self.campaign.buffer.base / f"thin-{self.rounds}"
        base.mkdir()
        self.pfs, self.mnt, self.state = base / "pfs", base / "mnt", base / "state"
        self.pfs.mkdir()
        self.mnt.mkdir()
        (base / "bb.toml").write_text(CONFIG)
        self.flash, self.process, self.log = Flash(base), None, base / "up.log"
        try:
            (self.flash.point / "tier").mkdir()
            return self.happen(base)
        finally:
            if self.process and self.process.poll() is None:
                self.process.kill()
                self.process.wait(PATIENCE_S)
            run("umount", "-l", self.mnt, check=False)
            self.flash.end()

    def start(self, base):
        with open(self.log, "ab") as log:
            at = log.tell()
            self.process = subprocess.Popen(
                [self.campaign.args.forebay, "up", "--pfs", self.pfs, "--mount", self.mnt, "--state", self.state,
                 "--dram", "none", "--ssd", f"{self.flash.point}/tier:96MiB", "--config", base / "bb.toml"],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log)
        deadline = time.monotonic() + PATIENCE_S
        while b" is up in front of " not in self.log.read_bytes()[at:]:
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise Loss(f"it does not start on thin flash: {self.log.read_text()[at:]}")
            time.sleep(0.02)

    def command(self, *words):
        return run(self.campaign.args.forebay, *words, "--state", self.state, check=False)

    def write(self, name, content, end):
        """Whether the program that wrote it was told that it is safe, or nothing (None), or has met an error (False)."""
        path = self.mnt / name
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | (os.O_SYNC if end == "sync-write" else 0))
            try:
                if end == "msync":
                    os.truncate(fd, len(content))
                    with mmap.mmap(fd, len(content)) as pages:
                        pages[:] = content
                        pages.flush()
                    return None  # the level is asked for by fsync
                for at in range(0, len(content), MIB):
                    os.write(fd, content[at:at + MIB])
                if end == "fsync":
                    os.fsync(fd)
                return True if end in ("fsync", "sync-write") else None
            finally:
                os.close(fd)
        except OSError:
            return False

    def happen(self, base):
        names = [f"f{number}" for number in range(FILES)]
        for name in names:
            (self.pfs / name).write_bytes(OLDER)
        self.start(base)
        for name in names:
            # Without a journal nobody is told when flash loses what it says of its own files: that has its room already.
            (self.mnt / name).write_bytes(b"x")
        run("sync", "-f", self.flash.point)
        self.flash.back(self.random.choice(THIN_MIB))
        contents = {name: self.random.randbytes(BYTES) for name in names}
        ends = {name: self.random.choice(ENDS) for name in names}
        safe = {name: self.write(name, contents[name], ends[name]) for name in names}
        drop_pages(self.flash)
        self.flash.back(ROOM_MIB)
        if self.random.random() < 0.3:
            self.command("down")
            self.process.wait(PATIENCE_S)
            self.start(base)
        drained = run(self.campaign.args.forebay, "stage-out", "--wait", self.mnt, check=False)
        errors = json.loads(self.command("status", "--json").stdout)["errors"]
        lost = [name for name in names if (self.pfs / name).read_bytes() != contents[name]]
        for name in lost:
            if (found := (self.pfs / name).read_bytes()) not in (OLDER, b"x"):
                wrong = [at for at in range(0, len(found), PAGE) if found[at:at + PAGE] != contents[name][at:at + PAGE]]
                raise Loss(f"thin flash: {name} has {len(found)} bytes on the PFS that nobody wrote: {len(wrong)} pages from {wrong[:4]}, "
                           f"{sum(any(found[at:at + PAGE]) for at in wrong)} of them not zeros, ends {ends}, safe {safe}, "
                           f"{drained.returncode} {drained.stderr}")
            if safe[name]:
                raise Loss(f"thin flash: {name} was called safe and is not on the PFS ({safe}): {drained.stderr}")
            if not any(error["path"].endswith(f"/{name}") for error in errors):
                raise Loss(f"thin flash: {name} is lost, and status does not say so ({safe}): {errors}")
        if (drained.returncode == 0) != (not lost):
            raise Loss(f"thin flash: stage-out ended with {drained.returncode}, lost {lost} ({safe}): {drained.stderr}")
        # Written again, all is well.
        for name in lost:
            (self.mnt / name).write_bytes(contents[name])
        self.campaign.buffer.wait_for("thin flash drains", lambda: self.command("down", "--drain", "--timeout", "30s").returncode == 0)
        self.process.wait(PATIENCE_S)
        if wrong := [name for name in names if (self.pfs / name).read_bytes() != contents[name]]:
            raise Loss(f"thin flash: after all were written anew {wrong} are not on the PFS")
        return len(lost)
