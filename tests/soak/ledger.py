"""What a worker has asked for and been answered: the manifest that a burst buffer is judged by.

Files consist of blocks that say what they are: worker, file, number, version. So what is found says of itself where it
comes from, and every block is old, new or damaged, never a matter of opinion.
"""

import collections
import datetime
import hashlib
import os
import struct

BLOCK = 4096
HEAD = struct.Struct("<4sIIII")
MAGIC = b"FbSk"


def block(worker, file, number, version):
    head = HEAD.pack(MAGIC, worker, file, number, version)
    return head + (hashlib.blake2b(head).digest() * 64)[:BLOCK - HEAD.size]


def parse(data):
    """(worker, file, number, version) of a whole block; None of anything else."""
    if len(data) != BLOCK or data[:4] != MAGIC:
        return None
    found = HEAD.unpack_from(data)[1:]
    return found if block(*found) == data else None


class Loss(Exception):
    """Something that was promised is not there, or something is there that nobody wrote."""


class File:
    """One file of a worker, with all states that a power cut may leave."""

    def __init__(self, worker, number, names):
        self.worker, self.number = worker, number
        self.now = []  # versions of its blocks
        self.synced = None  # the same when it was last fsynced
        self.pending = {}  # block: versions written since
        self.names = set(names)
        self.synced_names = set()
        self.ever = set(names)  # names since the last sync of them
        self.alive = True
        self.gone_synced = False
        self.going = False  # its last name is being taken away
        self.unsure = True  # an operation on it has not been answered
        self.taken_by = {}  # its names that another file took over in one step: that file's number
        self.history = collections.deque(maxlen=40)  # what was done with it last, for whoever looks into a loss

    def note(self, what):
        self.history.append(f"{datetime.datetime.now(datetime.UTC):%H:%M:%S.%f} {what}")

    def told(self):
        return "".join(f"\n    {line}" for line in self.history)

    def write(self, at, version):
        self.now += [None] * (at + 1 - len(self.now))
        self.now[at] = version
        self.pending.setdefault(at, set()).add(version)

    def sync(self):
        self.synced, self.pending = list(self.now), {}
        self.note(f"{len(self.now)} blocks are synced as {sorted(self.names)}")
        self.sync_names()

    def sync_names(self):
        self.synced_names, self.ever = set(self.names), set(self.names)
        self.gone_synced = not self.alive

    def must_be_there(self):
        return self.alive and self.synced is not None and bool(self.synced_names)

    def allowed(self, at):
        """Versions that a block may have after a power cut; None: it may be missing."""
        old = self.synced[at] if self.synced is not None and at < len(self.synced) else None
        return {old} | self.pending.get(at, set())


class Ledger:
    """All files of one worker, in directories of its own."""

    def __init__(self, worker):
        self.worker, self.files, self.next_file, self.next_version = worker, {}, 1, 1
        self.appended, self.appended_synced, self.append_unsure = 0, 0, False
        self.operations = 0
        self.fired = collections.Counter()  # what the workers did of the faults that are theirs
        self.unflushed = set()  # files that were stored into since it was last judged, without msync

    def version(self):
        self.next_version += 1
        return self.next_version

    def new_file(self, names):
        number, self.next_file = self.next_file, self.next_file + 1
        self.files[number] = File(self.worker, number, names)
        return self.files[number]

    def doubt_unflushed(self):
        """Only msync would have told the program that a store met an error."""
        for number in self.unflushed & self.files.keys():
            self.files[number].unsure = True

    def living(self):
        return [file for file in self.files.values() if file.alive and file.names and not file.unsure]

    def at(self, name):
        return next((file for file in self.files.values() if file.alive and name in file.names), None)

    # -- judging ---------------------------------------------------------------------------------------------------

    def judge(self, root, strict):
        """Compares with what is below `root`. strict: the power was not cut, all that was answered is there."""
        found = self._read(root)
        if not strict:
            # On the level `memory` a cut may leave whatever the PFS had under these names or the ones before.
            found = {name: one for name, one in found.items() if not name.startswith("mem/")}
        by_file = {}
        for name, (file, blocks) in found.items():
            if file is not None:
                by_file.setdefault(file, {})[name] = blocks
        for number, file in self.files.items():
            try:
                self._judge_file(file, by_file.get(number, {}), strict and not file.unsure)
            except Loss as loss:
                raise Loss(f"{loss}{file.told()}") from None
        for name, (number, _) in found.items():
            if number is None:
                holders = [f for f in self.files.values() if name in f.ever | f.names | f.synced_names]
                if not any(f.unsure or f.synced is None or not f.alive or (not strict and None in f.allowed(0))
                           for f in holders):
                    raise Loss(f"{name} is empty or holds nothing of ours")
            elif number not in self.files:
                raise Loss(f"{name} holds file {number}, which was never written")
        if not strict:
            self._judge_replaced(found)
            self._forget_memory(root)
        return found, by_file

    def _forget_memory(self, root):
        folder = os.path.join(root, "mem")
        for name in os.listdir(folder) if os.path.isdir(folder) else []:
            os.unlink(os.path.join(folder, name))

    def _judge_file(self, file, names, strict):
        what = f"worker {self.worker} file {file.number} ({sorted(file.ever | file.names)})"
        if strict:
            wanted = file.names if file.alive else set()
            if set(names) != wanted:
                raise Loss(f"{what}: found under {sorted(names)}, not {sorted(wanted)}")
            for name, blocks in names.items():
                if blocks != file.now:
                    raise Loss(f"{what}: {name} has {difference(blocks, file.now)}")
            return
        if file.gone_synced and not file.unsure and names:
            raise Loss(f"{what}: has come back as {sorted(names)}")
        if any(name.startswith("mem/") for name in file.ever | file.names | file.synced_names) and not names:
            return
        if file.must_be_there() and not file.unsure and not names:
            raise Loss(f"{what}: is lost")
        if file.unsure and not file.going and file.must_be_there() and not names:
            raise Loss(f"{what}: is lost while it was worked on")
        for name, blocks in names.items():
            if name not in file.ever | file.names | file.synced_names:
                raise Loss(f"{what}: found under {name}, which it never had")
            for at in range(max(len(blocks), len(file.synced or []))):
                version = blocks[at] if at < len(blocks) else None
                if version not in file.allowed(at) and not (version == "torn" and None in file.allowed(at)):
                    raise Loss(f"{what}: block {at} of {name} is {version}, not one of {file.allowed(at)}")

    def _judge_replaced(self, found):
        """A synced file whose name was taken over by another synced one: one of them has it."""
        for file in self.files.values():
            if file.synced is None:
                continue
            for name, number in file.taken_by.items():
                taker = self.at(name)
                direct = taker and taker.number == number and name in file.synced_names
                if direct and taker.synced is not None and not taker.unsure and name not in found:
                    raise Loss(f"{name}: neither the old file ({file.number}) nor the new one ({taker.number}) is there"
                               f"{file.told()}\n{taker.told()}")

    def _read(self, root):
        found = {}
        for folder, _, names in os.walk(root):
            for name in names:
                path = os.path.join(folder, name)
                if self.is_recovered(path, name):
                    continue
                short = os.path.relpath(path, root)
                if ".forebay-conflict-" in name:
                    raise Loss(f"{short}: a conflict without an outsider")
                if name.startswith(".forebay-"):
                    raise Loss(f"{short}: a file of Forebay's own is visible")
                with open(path, "rb") as data:
                    raw = data.read()
                found[short] = self._blocks(short, raw)
        return found

    def is_recovered(self, path, name):
        """What fsck found without a record, after a power cut, is beside what we know: ours at least."""
        if ".forebay-recovered-" not in name:
            return False
        with open(path, "rb") as data:
            self._blocks(name, data.read())
        os.unlink(path)
        return True

    def _blocks(self, name, raw):
        """The file that the blocks belong to, and their versions: None for zeros, "torn" for what is no block."""
        file, versions = None, []
        for at in range(0, len(raw), BLOCK):
            data = raw[at:at + BLOCK]
            head = parse(data)
            if head is None:
                versions.append("torn" if data.strip(b"\0") else None)
                continue
            worker, number, place, version = head
            if worker != self.worker or place != at // BLOCK or file not in (None, number):
                raise Loss(f"{name}: block {at // BLOCK} is of worker {worker}, file {number}, block {place}")
            file = number
            versions.append(version)
        return file, versions

    def rebase(self, root, found, by_file):
        """What was found is what the next round starts from; what is not whole is taken away."""
        self.unflushed = set()
        for number, file in list(self.files.items()):
            names = by_file.get(number, {})
            blocks = next(iter(names.values()), None)
            file.note(f"judged: found as {sorted(names)}")
            if blocks is None:
                # What has taken its name may be lost to a power cut that is still to come: then it is there again.
                file.unsure = file.going = False
                if file.alive or file.gone_synced:
                    del self.files[number]
            elif not all(isinstance(version, int) for version in blocks):
                for name in names:
                    os.unlink(os.path.join(root, name))
                file.alive, file.names = False, set()
                file.ever |= set(names)
                file.unsure = False
            else:
                file.alive, file.unsure, file.going, file.gone_synced = True, False, False, False
                file.ever |= set(names) | file.synced_names
                file.names, file.taken_by = set(names), {}
                for at, version in enumerate(blocks):
                    if version not in (file.synced or [])[at:at + 1]:
                        file.pending.setdefault(at, set()).add(version)
                file.now = list(blocks)
        for name, (number, _) in found.items():
            if number is None:
                os.unlink(os.path.join(root, name))


def difference(found, wanted):
    at = next((i for i, pair in enumerate(zip(found, wanted)) if pair[0] != pair[1]), min(len(found), len(wanted)))
    return (f"{len(found)} blocks instead of {len(wanted)}; block {at} is {found[at:at + 1]} instead of "
            f"{wanted[at:at + 1]}")
