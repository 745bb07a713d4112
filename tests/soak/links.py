"""Files with several hard links, one of whose names an outsider takes on the PFS while the file is dirty."""

import os
import time

from buffer import run
from ledger import Loss

DEEDS = ("replace", "unlink", "rename")


class Case:
    """One file with its names, below one directory."""

    def __init__(self, random, mnt, pfs):
        self.random, self.mnt, self.pfs = random, mnt, pfs
        self.names = ["f", "s", "sub/t"][:random.randrange(2, 4)]
        self.victim, self.deed = random.choice(self.names), random.choice(DEEDS)
        self.old, self.ours, self.theirs = (random.randbytes(random.randrange(1, 200_000)) for _ in range(3))
        (mnt / "sub").mkdir(parents=True)
        (mnt / "f").write_bytes(self.old)
        for name in self.names[1:]:
            os.link(mnt / "f", mnt / name)
        self.was_dirty = False

    def change(self):
        """A newer version through the mount, and the outsider before it is drained: while it is written, or just then."""
        fd = os.open(self.mnt / self.random.choice(self.names), os.O_RDWR)
        try:
            os.pwrite(fd, self.ours[:len(self.ours) // 2], 0)
            early = self.random.random() < 0.5
            if early:
                self.act()
            os.pwrite(fd, self.ours[len(self.ours) // 2:], len(self.ours) // 2)
            os.ftruncate(fd, len(self.ours))
        finally:
            os.close(fd)
        if not early:
            time.sleep(self.random.choice([0, 0, 0.05, 0.1, 0.15, 0.2]))
            self.act()

    def act(self):
        victim = self.pfs / self.victim
        if self.deed == "replace":
            aside = self.pfs / "aside"
            aside.write_bytes(self.theirs)
            aside.rename(victim)
        elif self.deed == "unlink":
            victim.unlink()
        else:
            victim.rename(self.pfs / "away")
        left = [name for name in self.names if name != self.victim]
        self.was_dirty = all((self.pfs / name).read_bytes() == self.old for name in left)

    def judge(self, conflicts):
        """Answers whether the outsider came before the drain."""
        what = f"{self.mnt}: {self.names}, the outsider's deed: {self.deed} {self.victim}, dirty: {self.was_dirty}"
        for root in (self.pfs, self.mnt):
            for name in self.names:
                self.judge_name(f"{what}: {name} below {root}", root, name)
        beside = [path for path in self.pfs.rglob("*.forebay-conflict-*")]
        for path in beside:
            if path.read_bytes() != self.ours:
                raise Loss(f"{what}: {path} is not what was written")
        told = [entry for entry in conflicts if entry["path"].startswith(f"{self.mnt}/")]
        if len(told) != len(beside) or (self.deed == "replace" and self.was_dirty and not told):
            raise Loss(f"{what}: there are {beside}, reported are {told}")
        return self.was_dirty

    def judge_name(self, what, root, name):
        path = root / name
        if name != self.victim:
            if path.read_bytes() != self.ours:
                raise Loss(f"{what}: is not what was written")
        elif self.deed == "replace":
            if path.read_bytes() != self.theirs:
                raise Loss(f"{what}: is not as the outsider left it")
        elif path.exists():
            raise Loss(f"{what}: has come back")


class Links:
    def __init__(self, campaign):
        self.buffer, self.random = campaign.buffer, campaign.random
        self.rounds = 0

    def begin(self):
        """Answers whether the daemon has ended meanwhile."""
        self.rounds += 1
        name = f"links-{self.rounds}"
        self.mnt, pfs = self.buffer.mnt / name, self.buffer.pfs / name
        self.mnt.mkdir()
        self.cases = [Case(self.random, self.mnt / f"case-{n}", pfs / f"case-{n}") for n in range(self.random.randrange(1, 5))]
        run(self.buffer.forebay, "stage-out", "--wait", self.mnt)
        for case in self.cases:
            case.change()
        then = self.random.choice(["nothing", "nothing", "kill", "down"])
        if then != "nothing":
            getattr(self.buffer, then)()
        return then != "nothing"

    def judge(self):
        """Answers with how many files an outsider met dirty."""
        self.buffer.drain()
        # What somebody does on the PFS shows within a second.
        time.sleep(1.1)
        conflicts = self.buffer.status()["conflicts"]
        met = sum(case.judge(conflicts) for case in self.cases)
        self.buffer.remove(self.mnt.name)
        return met
