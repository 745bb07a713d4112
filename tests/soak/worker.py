"""A program that uses the mount, and keeps its own account of it. It ends when told to, or at the first error, for after
that it cannot know what was done."""

import mmap
import os
import random
import struct
import time
import traceback
import typing
import zlib

from ledger import BLOCK, Loss, block, parse
from mapped import Mappings

FOLDERS = ("", "safe", "mem", "deep/er")
RECORD = struct.Struct("<4sIII")  # of the file that all append to: magic, worker, count, checksum
RECORD_BYTES = 64
SHARED = "all/shared"  # in a directory: where nothing is mounted, there is none
FILES_MAX = 40
ASKED_AGAIN_S = 1.2  # after that the kernel asks for attributes again


def record(worker, count):
    head = struct.pack("<4sII", b"FbAp", worker, count)
    return (head + struct.pack("<I", zlib.crc32(head))).ljust(RECORD_BYTES, b".")


def parse_record(data):
    """(worker, count) of a whole record; None of anything else."""
    if len(data) != RECORD_BYTES:
        return None
    _, worker, count, _ = RECORD.unpack_from(data)
    return (worker, count) if record(worker, count) == data else None


class Worker(Mappings):
    files_max = FILES_MAX

    def __init__(self, ledger, root, pfs, seed, how):
        self.ledger, self.root, self.pfs = ledger, root, pfs
        self.random, self.large_blocks = random.Random(seed), how.large_blocks
        self.forebay, self.more = how.forebay, how.more
        self.held = []

    def path(self, name):
        return os.path.join(self.root, name)

    def name(self):
        """One that no held mapping has."""
        while True:
            name = os.path.join(self.random.choice(FOLDERS), f"f{self.random.randrange(24)}")
            if all(name not in held.file.names for held in self.held):
                return name

    def run(self, ending):
        """Works until `ending()`; answers with the error that ended it, or None."""
        for folder in FOLDERS:
            os.makedirs(self.path(folder), exist_ok=True)
        weights = {self.create: 30, self.overwrite: 14, self.append: 10, self.rename: 10, self.unlink: 8, self.link: 6,
                   self.fsync: 8, self.map: 5, self.shared_append: 8, self.sync_folder: 4, self.read: 10}
        weights |= {getattr(self, what): odds for what, odds in self.more.items()}
        acts, odds = list(weights), list(weights.values())
        error = None
        try:
            while not ending() and not error:
                try:
                    self.random.choices(acts, odds)[0]()
                    self.ledger.operations += 1
                except OSError as found:
                    error = found
        finally:
            error = self.let_all_go() or error
        return error and f"{type(error).__name__}: {error}{where(error)}"

    # -- operations ------------------------------------------------------------------------------------------------

    def some(self):
        living = self.ledger.living()
        return self.random.choice(living) if living else None

    def write_blocks(self, fd, file, ats):
        version = self.ledger.version()
        ats = list(ats)
        file.note(f"version {version} into blocks {ats[0]}..={ats[-1]}")
        for at in ats:
            # Said before it is done: from here on a power cut may leave either.
            file.write(at, version)
            data = block(self.ledger.worker, file.number, at, version)
            written = os.pwrite(fd, data, at * BLOCK)
            while written < BLOCK:
                written += os.pwrite(fd, data[written:], at * BLOCK + written)

    def synced(self, file):
        """What fsync promises where the file is now."""
        if any(name.startswith("mem/") for name in file.names):
            return
        file.sync()
        for name in file.names:
            if name.startswith("safe/"):
                self.compare_pfs(file, name)

    def compare_pfs(self, file, name):
        path = os.path.join(self.pfs, name)
        try:
            with open(path, "rb") as data:
                raw = data.read()
        except FileNotFoundError:
            time.sleep(0.2)
            raise Loss(f"the PFS has no {name} after its fsync; a moment later: {os.path.exists(path)}{file.told()}") from None
        want = b"".join(block(self.ledger.worker, file.number, at, v) for at, v in enumerate(file.now))
        if raw != want:
            raise Loss(f"{name} is not on the PFS as fsync said{file.told()}")

    def create(self):
        """A new file under a temporary name, renamed over the old one: what checkpointing programs do."""
        name, large = self.name(), self.random.random() < 0.05
        temporary = f"{name}.new"
        if self.ledger.at(temporary):
            return
        if len(self.ledger.living()) >= FILES_MAX and not self.ledger.at(name):
            return
        file = self.ledger.new_file([temporary])
        blocks = self.random.randrange(1, self.large_blocks if large else 64)
        fd = os.open(self.path(temporary), os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            self.write_blocks(fd, file, range(blocks))
            fsynced = self.random.random() < 0.5
            if fsynced:
                os.fsync(fd)
        finally:
            os.close(fd)
        file.note("made, closed")
        file.unsure = False
        if fsynced:
            self.synced(file)
        self.move(file, temporary, name)

    def move(self, file, old, new):
        taken = self.ledger.at(new)
        if taken is file:
            return
        file.unsure = True
        file.ever.add(new)
        file.note(f"rename {old} to {new}")
        if taken:
            taken.note(f"file {file.number} takes its name {new}")
            taken.going = taken.names == {new}
            taken.unsure = True
        os.rename(self.path(old), self.path(new))
        file.names = (file.names - {old}) | {new}
        file.unsure = False
        if taken:
            taken.unsure = taken.going = False
            taken.taken_by[new] = file.number
            taken.names -= {new}
            taken.alive = bool(taken.names)

    def rename(self):
        file = self.some()
        if file:
            self.move(file, self.random.choice(sorted(file.names)), self.name())

    def change(self, ats):
        file = self.some()
        if not file:
            return
        file.unsure = True
        fd = os.open(self.path(self.random.choice(sorted(file.names))), os.O_RDWR)
        try:
            self.write_blocks(fd, file, ats(len(file.now)))
            fsynced = self.random.random() < 0.4
            if fsynced:
                os.fsync(fd)
        except OSError as error:
            error.add_note(f"{sorted(file.names)}{file.told()}")
            raise
        finally:
            os.close(fd)
        file.note("changed, closed")
        file.unsure = False
        if fsynced:
            self.synced(file)

    def overwrite(self):
        self.change(lambda n: sorted(self.random.sample(range(n), self.random.randrange(1, min(n, 16) + 1))))

    def append(self):
        self.change(lambda n: range(n, n + self.random.randrange(1, 16)))

    def map(self):
        """Through a mapping, in a process of its own: where the mount dies, it gets SIGBUS."""
        file = self.some()
        if not file:
            return
        path, at = self.path(self.random.choice(sorted(file.names))), self.random.randrange(len(file.now))
        version = self.ledger.version()
        file.unsure = True
        file.note(f"version {version} into block {at}, mapped")
        file.write(at, version)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                fd = os.open(path, os.O_RDWR)
                with mmap.mmap(fd, 0) as pages:
                    pages[at * BLOCK:(at + 1) * BLOCK] = block(self.ledger.worker, file.number, at, version)
                    pages.flush()
                # Under passthrough the kernel flushes the object by itself; the level is asked for by fsync.
                os.fsync(fd)
                os.close(fd)
                code = 0
            except OSError as error:
                code = error.errno
            finally:
                os._exit(code)
        self.wait_for(child)
        file.unsure = False
        self.synced(file)

    def unlink(self):
        file = self.some()
        if not file:
            return
        name = self.random.choice(sorted(file.names))
        file.unsure = True
        file.note(f"unlink {name}")
        file.going = file.names == {name}
        os.unlink(self.path(name))
        file.names -= {name}
        file.alive = bool(file.names)
        file.unsure = file.going = False

    def link(self):
        file, name = self.some(), self.name()
        if not file or self.ledger.at(name) or len(file.names) > 3:
            return
        # Names on several levels would make it hard to say what fsync promises.
        if {n.startswith(("safe/", "mem/")) for n in file.names | {name}} != {False}:
            return
        file.unsure = True
        file.ever.add(name)
        file.note(f"link {name}")
        first = self.path(sorted(file.names)[0])
        try:
            os.link(first, self.path(name))
        except FileNotFoundError:
            # The kernel counts a name that goes twice, if somebody looks at the file at that moment, and refuses
            # links until it asks for the attributes again (docs/semantics.md, limits).
            time.sleep(ASKED_AGAIN_S)
            file.note(f"links known: {os.stat(first).st_nlink}")
            os.link(first, self.path(name))
        file.names.add(name)
        file.unsure = False

    def fsync(self):
        file = self.some()
        if not file:
            return
        fd = os.open(self.path(sorted(file.names)[0]), os.O_RDWR)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
        self.synced(file)

    def sync_folder(self):
        """fsync of a directory covers the names in it."""
        folder = self.random.choice([folder for folder in FOLDERS if folder != "mem"])
        fd = os.open(self.path(folder), os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
        for file in self.ledger.files.values():
            here = {os.path.dirname(name) for name in file.ever | file.names}
            if here == {folder} and not file.unsure:
                file.note("its directory is synced")
                file.sync_names()

    def shared_append(self):
        fd = os.open(os.path.join(os.path.dirname(self.root), SHARED), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            for _ in range(self.random.randrange(1, 8)):
                self.ledger.append_unsure = True
                os.write(fd, record(self.ledger.worker, self.ledger.appended + 1))
                self.ledger.appended += 1
                self.ledger.append_unsure = False
            if self.random.random() < 0.3:
                os.fsync(fd)
                self.ledger.appended_synced = self.ledger.appended
        finally:
            os.close(fd)

    def read(self):
        file = self.some()
        if not file:
            return
        name = self.random.choice(sorted(file.names))
        with open(self.path(name), "rb") as data:
            raw = data.read()
        want = b"".join(block(self.ledger.worker, file.number, at, v) for at, v in enumerate(file.now))
        if raw != want:
            raise Loss(f"{name} reads {len(raw)} bytes that differ from the {len(want)} written: "
                       f"{self.told(raw)}{file.told()}")

    def told(self, raw):
        blocks = {parse(raw[at:at + BLOCK]) for at in range(0, len(raw), BLOCK)}
        files = {(found[0], found[1]) if found else "no block" for found in blocks}
        return f"it has blocks of (worker, file) {files}"


class How(typing.NamedTuple):
    """What workers do."""
    large_blocks: int
    forebay: str
    more: dict  # operations and their odds beside the usual ones


def where(error):
    """The calls that led to an error, innermost last."""
    calls = traceback.extract_tb(error.__traceback__)
    notes = "".join(getattr(error, "__notes__", ()))
    return f" {notes} ({', '.join(f'{call.name}: {call.line}' for call in calls[-3:])})"


def work(ledger, root, pfs, seed, how, pipe):
    """Body of a worker's process."""
    worker = Worker(ledger, root, pfs, seed, how)
    loss = error = None
    try:
        error = worker.run(pipe.poll)
    except Loss as found:
        loss = str(found)
    pipe.send((ledger, error, loss))
