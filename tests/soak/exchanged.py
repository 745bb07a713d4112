"""Who owns a directory on the PFS exchanges root's private file there with their own, while changing their own through the mount."""

import multiprocessing
import os
import random
import stat
import time

from between import attributes, exchange
from ledger import Loss

USER = 4711
MINE = b"mine " * 2000
NEWER = b"newer " * 900
PAUSE_S = 0.00006


def become(user):
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)


def swap(folder, until, swaps):
    """Body of the outsider."""
    become(USER)
    while time.monotonic() < until:
        exchange(folder / "own", folder / "secret")
        swaps.value += 1
        pause = time.perf_counter() + PAUSE_S
        while time.perf_counter() < pause:
            pass


def change(folder, until, seed, secret, done, leaked):
    """Body of the user's program on the mount. Most of what it asks for is refused, as it is where a name leads to another's file."""
    become(USER)
    source, path, links = random.Random(seed), folder / "own", 0
    while time.monotonic() < until:
        what = source.choice(["chmod", "truncate", "attribute", "link", "write", "read"])
        try:
            if what == "chmod":
                os.chmod(path, source.choice([0o604, 0o644]))
            elif what == "truncate":
                os.truncate(path, source.choice([0, 100]))
            elif what == "attribute":
                os.setxattr(path, "user.mine", b"1")
            elif what == "link":
                links += 1
                os.link(path, folder / f"link-{links % 20}")
            elif what == "write":
                with open(path, "r+b") as file:
                    file.write(NEWER)
            else:
                leaked.value |= secret[:4096] in path.read_bytes()
            done.value += 1
        except OSError:
            pass
        if what == "link" and source.random() < 0.3:
            for one in folder.glob("link-*"):
                # The link of root's file, were there one, is to be found.
                if one.stat().st_uid == USER:
                    one.unlink(missing_ok=True)


class Exchanged:
    def __init__(self, campaign):
        self.buffer, self.random = campaign.buffer, campaign.random
        self.rounds = 0

    def go(self):
        """Answers with how many changes were made while the names were exchanged."""
        self.rounds += 1
        name = f"exchanged-{self.rounds}"
        mnt, pfs = self.buffer.mnt / name, self.buffer.pfs / name
        pfs.mkdir()
        secret = self.random.randbytes(100_000)
        (pfs / "own").write_bytes(MINE)
        os.chown(pfs / "own", USER, USER)
        (pfs / "secret").write_bytes(secret)
        (pfs / "secret").chmod(0o600)
        os.chown(pfs, USER, USER)
        # A directory that somebody makes on the PFS shows within a second.
        time.sleep(1.1)
        if self.random.random() < 0.5:
            (mnt / "own").read_bytes()
        until = time.monotonic() + self.random.uniform(0.5, 1.5)
        swaps, done, leaked = (multiprocessing.Value("Q", 0, lock=False) for _ in range(3))
        bodies = [(swap, (pfs, until, swaps)), (change, (mnt, until, self.random.getrandbits(48), secret, done, leaked))]
        processes = [multiprocessing.Process(target=body, args=args, daemon=True) for body, args in bodies]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        if ended := [process.exitcode for process in processes if process.exitcode != 0]:
            raise RuntimeError(f"{name}: a program ended with {ended}")
        if leaked.value:
            raise Loss(f"{name}: root's private file was read by its name's new owner")
        self.buffer.drain()
        time.sleep(1.1)
        for folder in (pfs, mnt):
            self.judge(folder, secret)
        self.buffer.remove(name)
        return min(swaps.value, done.value)

    def judge(self, folder, secret):
        """Root's file is as it was, and nobody else's has anything of it."""
        roots = []
        for path in folder.iterdir():
            found, data = path.stat(), path.read_bytes()
            if found.st_uid == 0:
                roots.append(path)
                kept = (stat.S_IMODE(found.st_mode), found.st_nlink, attributes(path)) == (0o600, 1, [])
                if data != secret or not kept:
                    raise Loss(f"{path}, root's, has {len(data)} bytes, mode {found.st_mode:o}, {found.st_nlink} links, {attributes(path)}")
            elif secret[:4096] in data:
                raise Loss(f"{path}, the user's, has what is root's")
        if len(roots) != 1:
            raise Loss(f"{folder}: root's file has the names {roots}")
