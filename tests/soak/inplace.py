"""Files that are changed where they are on the PFS, which cannot flush them, while their names change."""

import os
import time

from between import exchange
from buffer import run
from ledger import BLOCK, Loss, block

FILES, BLOCKS = 6, 3
LARGE = 65 << 20  # larger ones are not brought in to be changed


class File:
    """Large, or one of several links: such a file is changed in place."""

    def __init__(self, number):
        self.number, self.names, self.versions, self.is_changed = number, {f"f{number}"}, [0] * BLOCKS, False
        self.is_large = number % 2 == 0

    def content(self):
        return b"".join(block(self.number, self.number, at, version) for at, version in enumerate(self.versions))


class InPlace:
    def __init__(self, campaign):
        self.campaign, self.buffer, self.random = campaign, campaign.buffer, campaign.random
        self.rounds, self.version = 0, 0

    def go(self):
        """Answers with how many files the PFS could not flush. Nobody else uses the mount meanwhile."""
        self.rounds += 1
        name = f"inplace-{self.rounds}"
        self.folder, self.fresh = self.buffer.mnt / name, 0
        behind = self.buffer.pfs / name
        behind.mkdir()
        self.files = [File(number) for number in range(FILES)]
        for file in self.files:
            (behind / f"f{file.number}").write_bytes(file.content())
            if file.is_large:
                os.truncate(behind / f"f{file.number}", LARGE)
            else:
                file.names.add(f"g{file.number}")
                os.link(behind / f"f{file.number}", behind / f"g{file.number}")
        # What somebody makes on the PFS shows within a second.
        time.sleep(1.1)
        self.buffer.drain()
        self.buffer.hanging.fail("fsync", "before")
        try:
            self.change_all()
            # Forebay flushes by itself after a while, or is asked to.
            time.sleep(self.random.choice([0, 0.5, 2.5]))
            self.judge_told("while the PFS fails", run(self.buffer.forebay, "stage-out", "--wait", self.folder, check=False))
        finally:
            self.buffer.hanging.heal()
        changed = [file for file in self.files if file.is_changed]
        self.judge_told("when the PFS has failed", run(self.buffer.forebay, "stage-out", "--wait", self.folder, check=False))
        self.buffer.drain()
        for file in self.files:
            for folder in (self.folder, behind):
                for one in file.names:
                    with open(folder / one, "rb") as opened:
                        found, size = opened.read(BLOCKS * BLOCK), os.fstat(opened.fileno()).st_size
                    if found != file.content() or size != (LARGE if file.is_large else BLOCKS * BLOCK):
                        raise Loss(f"{folder / one} is not what was written in place")
        self.buffer.remove(name)
        return len(changed)

    def change_all(self):
        acts = [self.store] * 4 + [self.rename, self.swap, self.swap, self.replace, self.fsync]
        for _ in range(self.random.randrange(5, 40)):
            self.random.choice(acts)(self.random.choice(self.files))

    def path(self, name):
        return self.folder / name

    def some_name(self, file):
        return self.random.choice(sorted(file.names))

    def store(self, file):
        at = self.random.randrange(BLOCKS)
        self.version += 1
        fd = os.open(self.path(self.some_name(file)), os.O_RDWR)
        os.pwrite(fd, block(file.number, file.number, at, self.version), at * BLOCK)
        os.close(fd)
        file.versions[at] = self.version
        file.is_changed = True

    def fsync(self, file):
        """A flush that succeeds while none can is a lie."""
        fd = os.open(self.path(self.some_name(file)), os.O_RDWR)
        try:
            os.fsync(fd)
        except OSError:
            return
        finally:
            os.close(fd)
        if file.is_changed:
            raise Loss(f"fsync of {sorted(file.names)} succeeded on a PFS that flushes nothing")

    def rename(self, file):
        old, self.fresh = self.some_name(file), self.fresh + 1
        os.rename(self.path(old), self.path(f"n{self.fresh}"))
        file.names = file.names - {old} | {f"n{self.fresh}"}

    def swap(self, file):
        other = self.random.choice([one for one in self.files if one is not file])
        one, two = self.some_name(file), self.some_name(other)
        exchange(self.path(one), self.path(two))
        file.names, other.names = file.names - {one} | {two}, other.names - {two} | {one}

    def replace(self, file):
        """Another file loses one of its names, and gets a new one first: it stays one with several links."""
        other = self.random.choice([one for one in self.files if one is not file])
        self.fresh += 1
        old, gone = self.some_name(file), self.some_name(other)
        os.link(self.path(gone), self.path(f"n{self.fresh}"))
        other.names.add(f"n{self.fresh}")
        self.fresh += 1
        os.link(self.path(old), self.path(f"n{self.fresh}"))
        file.names.add(f"n{self.fresh}")
        os.rename(self.path(old), self.path(gone))
        file.names, other.names = file.names - {old} | {gone}, other.names - {gone}

    def judge_told(self, when, done):
        """All that was changed is named, by one of its names."""
        changed = [file for file in self.files if file.is_changed]
        for file in changed:
            if not any(f"{self.path(name)}:" in done.stderr for name in file.names):
                raise Loss(f"{when}: {sorted(file.names)} in {self.folder} was changed in place and never flushed, and stage-out "
                           f"({done.returncode}) does not say so: {done.stderr}")
        if changed and done.returncode != 3:
            raise Loss(f"{when}: stage-out ended with {done.returncode}: {done.stderr}")
