"""Stores through mappings of files that the kernel does not write by itself: until it writes them back, nobody else knows."""

import mmap
import multiprocessing
import os

from buffer import PATIENCE_S, run
from ledger import BLOCK, Loss, block

BLOCKS = 12
# Both are served by requests: what is only on the PFS, and set-id files.
KINDS = ("on-pfs", "set-id")
WAYS = ("stage-out", "drain", "down")


def keep_storing(number, path, pipe):
    """Body of a program: maps the file, closes it, and stores where it is told to, until it is told nothing more."""
    fd = os.open(path, os.O_RDWR)
    pages = mmap.mmap(fd, 0)
    os.close(fd)
    pipe.send("mapped")
    while order := pipe.recv():
        at, version = order
        pages[at * BLOCK:(at + 1) * BLOCK] = block(number, number, at, version)
        pipe.send("stored")
    pages.close()
    pipe.send("unmapped")


class Program:
    """Such a program, from outside, with what it has stored."""

    def __init__(self, number, path):
        self.number, self.path, self.versions = number, path, [0] * BLOCKS
        self.pipe, theirs = multiprocessing.Pipe()
        self.process = multiprocessing.Process(target=keep_storing, args=(number, path, theirs), daemon=True)
        self.process.start()
        theirs.close()
        self.hear("mapped")

    def hear(self, what):
        if not self.pipe.poll(PATIENCE_S) or self.pipe.recv() != what:
            raise Loss(f"the program with {self.path} hangs")

    def store(self, at, version):
        self.pipe.send((at, version))
        self.hear("stored")
        self.versions[at] = version

    def is_refused(self, at, version):
        """A store that nobody would take in kills the program."""
        self.pipe.send((at, version))
        try:
            self.hear("stored")
        except (EOFError, ConnectionResetError):
            return True
        return False

    def end(self):
        if self.process.is_alive():
            self.pipe.send(None)
            self.hear("unmapped")
        self.process.join()

    def content(self):
        return b"".join(block(self.number, self.number, at, version) for at, version in enumerate(self.versions))

    def judge(self, path, when):
        if path.read_bytes() != self.content():
            raise Loss(f"{path}: a store through a mapping is lost: {when}")


class Unheard:
    def __init__(self, campaign):
        self.buffer, self.random = campaign.buffer, campaign.random
        self.rounds, self.version = 0, 0

    def go(self):
        """Answers with how many stores there were. Nobody else uses the mount meanwhile."""
        self.rounds += 1
        name = f"unheard-{self.rounds}"
        folder, drained = self.buffer.mnt / name, self.buffer.pfs / name
        folder.mkdir()
        for number, kind in enumerate(KINDS):
            path = folder / f"{kind}-{number}"
            path.write_bytes(b"".join(block(number, number, at, 0) for at in range(BLOCKS)))
            path.chmod(0o4755 if kind == "set-id" else 0o644)
        self.buffer.drain()
        run(self.buffer.forebay, "release", folder / "on-pfs-0", check=False)
        programs = [Program(number, folder / f"{kind}-{number}") for number, kind in enumerate(KINDS)]
        stores = sum(self.some_stores(program) for program in programs)
        for way in self.random.sample(WAYS, self.random.randrange(1, len(WAYS) + 1)):
            if not self.happens(way, folder, drained, programs):
                break
            stores += sum(self.some_stores(program) for program in programs)
        for program in programs:
            program.end()
        self.buffer.drain()
        for program in programs:
            program.judge(program.path, "in the mount")
            program.judge(drained / program.path.name, "on the PFS")
        self.buffer.remove(name)
        return stores

    def some_stores(self, program):
        ats = self.random.sample(range(BLOCKS), self.random.randrange(1, 5))
        for at in ats:
            self.version += 1
            program.store(at, self.version)
        return len(ats)

    def happens(self, way, folder, drained, programs):
        """Whether the programs can go on."""
        if way == "stage-out":
            for program in programs:
                code = run(self.buffer.forebay, "stage-out", "--wait", program.path, check=False).returncode
                if code == 0:
                    # It may have been changed where it is.
                    program.judge(drained / program.path.name, "after a stage-out that was complete")
                elif code != 3:
                    raise Loss(f"stage-out of {program.path} ended with {code}")
        elif way == "drain":
            code = self.buffer.command("down", "--drain", "--timeout", "500ms", check=False).returncode
            if code != 4:
                raise Loss(f"down --drain ended with {code} while programs can store into {folder}")
        else:
            self.buffer.down()
            self.version += 1
            for program in programs:
                if not program.is_refused(self.random.randrange(BLOCKS), self.version):
                    raise Loss(f"{program.path}: a store that nobody took in was not refused")
            self.buffer.start()
        return way != "down"
