"""Bits that flip at rest on flash."""

import errno
import os

from buffer import run
from ledger import BLOCK, Loss


def flip(path, at, bit):
    """As a medium does it: without a trace in the times."""
    times = path.stat()
    with open(path, "r+b") as data:
        data.seek(at)
        old = data.read(1)
        data.seek(at)
        data.write(bytes([old[0] ^ (1 << bit)]))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


class Damage:
    def __init__(self, campaign):
        self.buffer, self.random = campaign.buffer, campaign.random

    def happen(self):
        """Answers whether it has."""
        if self.random.random() < 0.5:
            return self.undrained()
        return self.drained()

    def undrained(self):
        """A bit flips in data that only the buffer has, for the PFS is full: neither handed out nor drained; put right, it is whole."""
        path, drained = self.buffer.mnt / "undrained", self.buffer.pfs / "undrained"
        content = self.random.randbytes(self.random.randrange(BLOCK, 300_000))
        # What others give up now is free only after a while.
        self.buffer.drain()
        run("sync", "-f", self.buffer.pfs)
        ballast = self.buffer.disks["pfs"].fill(0)
        with open(path, "wb") as file:
            file.write(content)
            os.fsync(file.fileno())
        # Out of memory, to flash.
        self.buffer.down()
        self.buffer.start()
        entry = lambda: self.buffer.where(path)[0]
        self.buffer.wait_for("its checksum", lambda: entry()["crc32c"] and entry()["state"] != "demoting")
        if entry()["state"] != "dirty":
            # The PFS had room all the same.
            ballast.unlink()
            path.unlink()
            return False
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
        if run(self.buffer.forebay, "stage-out", "--wait", path, check=False).returncode == 0 or drained.exists():
            raise Loss(f"a flipped bit in {victims[0]} was drained")
        flip(victims[0], place, bit)
        if path.read_bytes() != content:
            raise Loss(f"{path} is not what was written, though its object is")
        self.buffer.drain()
        if drained.read_bytes() != content:
            raise Loss(f"{drained} is not what was written")
        path.unlink()
        return True

    def drained(self):
        """Bits flip at rest in a clean copy, found by fsck, which takes the good one on the PFS."""
        run(self.buffer.forebay, "stage-out", "--wait", self.buffer.mnt)
        clean = [entry for entry in self.buffer.where(self.buffer.mnt) if entry["state"] == "clean" and entry.get("size_bytes", 0) > 0]
        self.buffer.down()
        objects = [path for path in self.buffer.objects() if path.stat().st_size > 0]
        if not clean or not objects:
            self.buffer.start()
            return False
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
            return True
        code = self.buffer.command("fsck", "--checksums", check=False).returncode
        if code != 5:
            raise Loss(f"fsck did not find and mend a flipped bit in {victim}: exit {code}")
        self.buffer.start()
        return True
