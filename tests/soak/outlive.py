"""Programs whose descriptors and mappings outlive the daemon."""

import mmap
import multiprocessing
import os
import time

from buffer import PATIENCE_S
from ledger import BLOCK, Loss, block, parse
from worker import RECORD_BYTES, parse_record, record

BLOCKS = 24
WAYS = ("append", "in-place", "mapped")
PAUSE_S = 0.002


def keep_writing(way, number, path, pipe, told):
    """Body of a writer's process: one write after the other until told to end, or until one fails. `told` counts those that did not."""
    error = None
    fd = os.open(path, os.O_RDWR | (os.O_APPEND if way == "append" else 0))
    if way == "mapped":
        pages = mmap.mmap(fd, 0)
        os.close(fd)
    pipe.send("open")
    try:
        while not pipe.poll():
            count = told.value + 1
            at = count % BLOCKS
            if way == "append":
                done = os.write(fd, record(number, count)) == RECORD_BYTES
            elif way == "in-place":
                done = os.pwrite(fd, block(number, number, at, count), at * BLOCK) == BLOCK
            else:
                pages[at * BLOCK:(at + 1) * BLOCK] = block(number, number, at, count)
                # It says what became of the store.
                done = pages.flush() is None
            if not done:
                raise OSError("a short write")
            told.value = count
            time.sleep(PAUSE_S)
    except OSError as found:
        error = str(found)
    while not pipe.poll(PATIENCE_S):
        pass
    if way == "mapped":
        pages.close()
    else:
        os.close(fd)
    pipe.send(error)


class Writer:
    """Such a program, from outside."""

    def __init__(self, number, way, folder, pfs):
        self.number, self.way = number, way
        name = f"{way}-{number}"
        # With files of known size before it the kernel writes it by itself.
        for run in range(3):
            (folder / f"{name}-{run}").write_bytes(self.first())
        self.path, self.drained = folder / f"{name}-2", pfs / f"{name}-2"
        self.told = multiprocessing.Value("Q", 0, lock=False)
        self.pipe, theirs = multiprocessing.Pipe()
        self.process = multiprocessing.Process(target=keep_writing, args=(way, number, self.path, theirs, self.told), daemon=True)
        self.process.start()
        theirs.close()
        self.hear()
        self.error = None

    def first(self):
        if self.way == "append":
            return b""
        return b"".join(block(self.number, self.number, at, 0) for at in range(BLOCKS))

    def hear(self):
        if not self.pipe.poll(PATIENCE_S):
            raise Loss(f"the writer of {self.path} hangs")
        try:
            return self.pipe.recv()
        except EOFError:
            return "it got a signal"

    def end(self):
        try:
            self.pipe.send("end")
        except OSError:
            pass  # it has ended by itself
        self.error = self.hear()
        self.process.join()

    def judge(self, path, told):
        """What is below `path` has all that the writer was `told` is written."""
        raw, said = path.read_bytes(), f"{path}, {told} writes told"
        last = self.told.value + 1
        if self.way == "append":
            found = [parse_record(raw[at:at + RECORD_BYTES]) for at in range(0, len(raw), RECORD_BYTES)]
            whole = found[:told] == [(self.number, count) for count in range(1, told + 1)]
            if not whole or len(found) > last:
                raise Loss(f"{said}: it has {len(found)} records, the last {found[-3:]}")
            return
        if len(raw) != BLOCKS * BLOCK:
            raise Loss(f"{said}: it has {len(raw)} bytes")
        for at in range(BLOCKS):
            # The newest version of this block that the writer was told of.
            must = max((count for count in range(told, max(told - BLOCKS, 0), -1) if count % BLOCKS == at), default=0)
            found = parse(raw[at * BLOCK:(at + 1) * BLOCK])
            is_ours = found is not None and found[:3] == (self.number, self.number, at)
            if not is_ours or not must <= found[3] <= last:
                raise Loss(f"{said}: block {at} is {found}, not version {must} or later")


class Outlive:
    def __init__(self, campaign):
        self.buffer, self.random = campaign.buffer, campaign.random
        self.rounds = 0

    def begin(self):
        self.rounds += 1
        name = f"outlive-{self.rounds}"
        self.folder, self.pfs = self.buffer.mnt / name, self.buffer.pfs / name
        self.folder.mkdir()
        self.writers = [Writer(number, self.random.choice(WAYS), self.folder, self.pfs)
                        for number in range(101, 101 + self.random.randrange(2, 5))]
        time.sleep(self.random.uniform(0.1, 1.0))

    def daemon_ends(self):
        if self.random.random() < 0.5:
            self.buffer.kill()
        else:
            self.buffer.down()
        time.sleep(self.random.uniform(0, 0.3))

    def go_on(self):
        """The daemon is up again; answers with how many writes were taken since."""
        if self.random.random() < 0.3:
            self.daemon_ends()
            self.buffer.start()
        before = [writer.told.value for writer in self.writers]
        time.sleep(self.random.uniform(0.2, 1.5))
        for writer in self.writers:
            told = writer.told.value
            writer.judge(writer.path, told)
        since = [writer.told.value - told for writer, told in zip(self.writers, before)]
        if any(since) and self.random.random() < 0.5:
            self.drains_not()
        if self.random.random() < 0.3:
            self.daemon_ends()
            for writer in self.writers:
                writer.end()
            self.buffer.start()
        else:
            for writer in self.writers:
                writer.end()
        self.buffer.drain()
        for writer in self.writers:
            writer.judge(writer.drained, writer.told.value)
            writer.judge(writer.path, writer.told.value)
        self.buffer.remove(self.folder.name)
        return sum(since)

    def drains_not(self):
        """As long as they write, nobody says that all is on the PFS."""
        code = self.buffer.command("down", "--drain", "--timeout", "500ms", check=False).returncode
        if code != 4:
            raise Loss(f"down --drain exits with {code} while files are being written")
