"""A program that keeps the tiers full: it writes files that are about as large as a tier, reads them again, and removes them.

    ballast.py FOLDER SEED TIER_BYTES LOSES

What an fsync has promised is whole whenever it is looked at; what was not is as it was written, or with LOSES 1 (where nodes lose
power) zeros, shorter or gone. It says one line for what is wrong, and ends; else it ends when it is told to.
"""

import collections
import errno
import hashlib
import os
import random
import signal
import sys
import time

BLOCK = 64 << 10
FILES_MAX = 5
REST_S = 0.3
# What a restart of the server, or a fenced client, may say; the file is not used any more then.
EXCUSABLE = (errno.ESTALE, errno.EIO, errno.ENOTCONN, errno.ECONNABORTED)


def block(path, at):
    return (hashlib.blake2b(f"{path} {at}".encode()).digest() * (BLOCK // 64))[:BLOCK]


class Wrong(Exception):
    """Something is not as it was written."""


class Ballast:
    def __init__(self, folder, seed, tier_bytes, loses):
        self.folder, self.random, self.tier_bytes, self.loses = folder, random.Random(seed), tier_bytes, loses
        self.files = collections.OrderedDict()  # blocks, and how many of them an fsync has promised
        self.left, self.number, self.counts = [], 0, collections.Counter()

    def step(self):
        os.makedirs(self.folder, exist_ok=True)
        if len(self.files) >= FILES_MAX:
            self.remove(next(iter(self.files)))
        self.write()
        if self.files:
            self.look(self.random.choice(list(self.files)))
        while self.left:
            try:
                os.unlink(self.left[-1])
            except FileNotFoundError:
                pass
            self.left.pop()

    def write(self):
        self.number += 1
        path = f"{self.folder}/{os.getpid()}-{self.number}"
        count, syncs = self.random.randrange(1, max(self.tier_bytes // BLOCK, 2)), self.random.random() < 0.5
        self.left.append(path)
        with open(path, "xb", buffering=0) as file:
            for at in range(count):
                file.write(block(path, at))
            if syncs:
                os.fsync(file.fileno())
        self.left.remove(path)
        self.files[path] = (count, syncs)
        self.counts["written"] += 1

    def look(self, path):
        count, syncs = self.files[path]
        try:
            with open(path, "rb", buffering=0) as file:
                data = b"".join(iter(lambda: file.read(1 << 20), b""))
        except FileNotFoundError:
            if syncs or not self.loses:
                raise Wrong(f"{path} is gone, {'fsynced' if syncs else 'never fsynced'}") from None
            del self.files[path]
            return
        whole = all(data[at * BLOCK:(at + 1) * BLOCK] == block(path, at) for at in range(count)) and len(data) == count * BLOCK
        if not whole:
            self.judge_part(path, data)
        self.counts["read"] += 1

    def judge_part(self, path, data):
        count, syncs = self.files[path]
        bad = [at for at in range(count) if data[at * BLOCK:(at + 1) * BLOCK] != block(path, at)]
        foreign = [at for at in bad if any(byte not in (0, want) for byte, want in zip(data[at * BLOCK:(at + 1) * BLOCK], block(path, at)))]
        if syncs or not self.loses or foreign or len(data) > count * BLOCK:
            raise Wrong(f"{path} ({'fsynced' if syncs else 'never fsynced'}): {len(data)} bytes of {count * BLOCK}, {len(bad)} of {count} blocks are not "
                        f"what was written, from {bad[:1]}, {len(foreign)} are something else")
        self.remove(path)

    def remove(self, path):
        # Whatever comes of it, it is not looked at any more.
        del self.files[path]
        self.left.append(path)


def main():
    folder, seed, tier_bytes, loses = sys.argv[1:]
    ballast = Ballast(folder, seed, int(tier_bytes), loses == "1")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    while True:
        try:
            ballast.step()
        except Wrong as wrong:
            print(wrong, flush=True)
            return
        except FileExistsError as error:
            # Of a create that a restart met half-way it is not known whether it has happened.
            ballast.left.append(error.filename)
        except OSError as error:
            if error.errno not in EXCUSABLE:
                print(f"{error}", flush=True)
                return
            ballast.counts["errors"] += 1
            time.sleep(REST_S)


if __name__ == "__main__":
    main()
