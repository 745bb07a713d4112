#!/usr/bin/env python3
"""Nobody reads old bytes: files are changed in every way while others read them anew.

Each file has one process that changes it, and one that opens and reads it. A block says which change it is of. The writer says, in shared memory, from
which change on a block must be at least as soon as that is promised: when the call is done, or a second after a change on the PFS. The reader takes what is
said before its open, and looks whether what it has read is older.

    pages.py --forebay target/release/forebay --seconds 300 [--seed N] [--passthrough] [--ways write cut]
"""

import argparse
import ctypes
import mmap
import multiprocessing
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BLOCK = 4096
BLOCKS = 64
# Where, behind what is promised of each block, it stands how often that was taken back.
TAKEN_BACK = BLOCKS
HEAD = struct.Struct("<QQ")
# For so long the kernel may believe what it has been told of a file, and a little more.
REVALIDATION_S = 1.3
COMMAND_LIMIT_S = 120

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.mmap.restype = ctypes.c_void_p
LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
LIBC.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
LIBC.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
LIBC.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]


def block(at, version):
    return HEAD.pack(at, version) * (BLOCK // HEAD.size)


def is_cached(fd):
    """Whether the kernel has all pages of a file that is this long."""
    size = BLOCK * BLOCKS
    if os.fstat(fd).st_size != size:
        return False
    at = LIBC.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
    if at in (None, ctypes.c_void_p(-1).value):
        raise OSError(ctypes.get_errno(), "mmap")
    has = ctypes.create_string_buffer(BLOCKS)
    asked = LIBC.mincore(at, size, has)
    LIBC.munmap(at, size)
    if asked:
        raise OSError(ctypes.get_errno(), "mincore")
    return all(page & 1 for page in has.raw)


class Stale(Exception):
    """Somebody has read what was there before."""


class Writer:
    """Changes one file."""

    def __init__(self, args, number, floors, told):
        self.args, self.number, self.floors, self.told = args, number, floors, told
        self.random = random.Random(f"{args.seed} writer {number}")
        self.name = f"f-{number}"
        self.mnt, self.pfs = args.base / "mnt" / self.name, args.base / "pfs" / self.name
        self.version = 0
        self.content = [0] * BLOCKS
        self.done = {}

    def promise(self, blocks, version):
        for at in blocks:
            self.floors[at] = version

    def take_back(self, blocks):
        """They are about to be nothing, or anything. Who reads meanwhile believes nothing."""
        self.promise(blocks, 0)
        self.floors[TAKEN_BACK] += 1

    def some(self):
        first = self.random.randrange(BLOCKS)
        return range(first, min(BLOCKS, first + self.random.choice([1, 1, 2, 8, BLOCKS])))

    def next_of(self, blocks):
        self.version += 1
        for at in blocks:
            self.content[at] = self.version
        return b"".join(block(at, self.version) for at in blocks)

    def put(self, path, blocks, flags=0):
        data = self.next_of(blocks)
        fd = os.open(path, os.O_WRONLY | flags)
        if flags & os.O_DIRECT:
            with mmap.mmap(-1, len(data)) as aligned:
                aligned.write(data)
                os.pwritev(fd, [aligned], blocks.start * BLOCK)
        else:
            os.pwrite(fd, data, blocks.start * BLOCK)
        if self.random.random() < 0.2:
            self.promise(blocks, self.version)  # also before the close
            time.sleep(0.002)
        os.close(fd)

    def write(self):
        blocks = self.some()
        self.put(self.mnt, blocks)
        self.promise(blocks, self.version)

    def write_direct(self):
        blocks = self.some()
        self.put(self.mnt, blocks, os.O_DIRECT)
        self.promise(blocks, self.version)

    def store(self):
        blocks = self.some()
        fd = os.open(self.mnt, os.O_RDWR)
        pages = mmap.mmap(fd, 0)
        os.close(fd)
        pages[blocks.start * BLOCK:blocks.stop * BLOCK] = self.next_of(blocks)
        if self.random.random() < 0.3:
            pages.flush()
        self.promise(blocks, self.version)
        time.sleep(self.random.choice([0, 0.003]))
        pages.close()

    def cut(self):
        """By name, then long again, then written."""
        blocks = range(self.random.randrange(BLOCKS), BLOCKS)
        self.take_back(blocks)
        os.truncate(self.mnt, blocks.start * BLOCK)
        os.truncate(self.mnt, BLOCKS * BLOCK)
        self.put(self.mnt, blocks)
        self.promise(blocks, self.version)

    def punch(self):
        blocks = self.some()
        self.take_back(blocks)
        fd = os.open(self.mnt, os.O_WRONLY)
        if LIBC.fallocate(fd, 3, blocks.start * BLOCK, len(blocks) * BLOCK):
            raise OSError(ctypes.get_errno(), "fallocate")
        os.close(fd)
        self.put(self.mnt, blocks)
        self.promise(blocks, self.version)

    def make(self, path):
        with open(path, "wb") as file:
            file.write(self.next_of(range(BLOCKS)))

    def replace(self):
        aside = self.mnt.with_name(f"aside-{self.number}")
        self.make(aside)
        os.rename(aside, self.mnt)
        self.promise(range(BLOCKS), self.version)

    def make_anew(self):
        self.take_back(range(BLOCKS))
        os.unlink(self.mnt)
        self.make(self.mnt)
        self.promise(range(BLOCKS), self.version)

    def rewrite(self):
        self.take_back(range(BLOCKS))
        self.make(self.mnt)
        self.promise(range(BLOCKS), self.version)

    def open_only(self):
        os.close(os.open(self.mnt, self.random.choice([os.O_WRONLY, os.O_RDWR])))

    def touch(self):
        at = time.time() - self.random.randrange(1000)
        os.utime(self.mnt, (at, at))

    def chmod(self):
        os.chmod(self.mnt, self.random.choice([0o644, 0o4755, 0o600]))

    def command(self, *words):
        words = [self.args.forebay, *words, self.mnt]
        done = subprocess.run(words, capture_output=True, text=True, timeout=COMMAND_LIMIT_S, check=False)
        # What is busy or changes just then stays where it is.
        if done.returncode not in (0, 3):
            raise Stale(f"{words}: {done.stdout} {done.stderr}")
        return done.returncode == 0

    def drain(self):
        return self.command("stage-out", "--wait")

    def release(self):
        if self.drain():
            self.command("release")

    def stage_in(self):
        self.command("stage-in")

    def outside(self):
        """On the PFS, of what is drained."""
        if not self.drain():
            return
        if self.random.random() < 0.5:
            self.command("release")
        for _ in range(self.random.choice([1, 1, 3])):
            blocks = self.some()
            before = os.stat(self.pfs)
            self.put_outside(blocks)
            if self.random.random() < 0.3:
                os.utime(self.pfs, ns=(before.st_atime_ns, before.st_mtime_ns))
            time.sleep(self.random.choice([0, 0.001, 0.02]))
        time.sleep(REVALIDATION_S)
        for at in range(BLOCKS):
            self.floors[at] = self.content[at]

    def put_outside(self, blocks):
        data = self.next_of(blocks)
        fd = os.open(self.pfs, os.O_WRONLY)
        os.pwrite(fd, data, blocks.start * BLOCK)
        os.close(fd)

    def quiet(self):
        time.sleep(0.1 * self.random.random())

    def run(self, end):
        ways = [self.write, self.write, self.write_direct, self.store, self.store, self.cut, self.punch, self.replace, self.make_anew, self.rewrite,
                self.open_only, self.touch, self.chmod, self.drain, self.release, self.release, self.stage_in, self.outside, self.outside]
        ways = [way for way in ways if not self.args.ways or way.__name__ in self.args.ways]
        self.make(self.mnt)
        self.promise(range(BLOCKS), self.version)
        while time.monotonic() < end:
            way = self.random.choice(ways)
            self.told.value = f"{way.__name__} after {self.told.value.decode()}"[:200].encode()
            way()
            self.done[way.__name__] = self.done.get(way.__name__, 0) + 1
            self.check()
            self.quiet()

    def check(self):
        """What it is, exactly: nobody else changes it."""
        found = self.mnt.read_bytes()
        for at in range(BLOCKS):
            if found[at * BLOCK:(at + 1) * BLOCK] != block(at, self.content[at]):
                seen = HEAD.unpack_from(found, at * BLOCK) if len(found) >= (at + 1) * BLOCK else "nothing"
                raise Stale(f"{self.name}, block {at}: {seen}, not version {self.content[at]}, after {self.done}")


def read(args, number, floors, told, end):
    """Reads one file anew until the end. How often, and how often from the cache."""
    path = args.base / "mnt" / f"f-{number}"
    opens = kept = 0
    while time.monotonic() < end:
        # In this order: whoever takes something back counts that last, and before the change.
        taken_back, promised = floors[TAKEN_BACK], floors[:BLOCKS]
        try:
            fd = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            time.sleep(0.001)
            continue
        kept += is_cached(fd)
        found = b"".join(iter(lambda: os.read(fd, 64 * BLOCK), b""))
        os.close(fd)
        opens += 1
        if floors[TAKEN_BACK] != taken_back:
            continue
        for at, least in enumerate(promised):
            # Every piece of a block: half of it may have been read before a change, the other after it.
            for place in range(at * BLOCK, (at + 1) * BLOCK, 512):
                if least and (len(found) < place + 512 or HEAD.unpack_from(found, place) < (at, least)):
                    seen = HEAD.unpack_from(found, place) if len(found) >= place + 512 else "nothing"
                    raise Stale(f"f-{number}, block {at}, byte {place}: {seen} of {len(found)} bytes, promised was {least}; {told.value.decode()}")
        time.sleep(0.003)
    return opens, kept


def reported(results, what, work):
    """Runs in a process of its own; the result, or what was wrong, goes into the queue."""
    try:
        results.put((what, work(), None))
    except (Stale, OSError, subprocess.SubprocessError) as error:
        results.put((what, None, f"{type(error).__name__}: {error}"))


def write(args, number, floors, told, end):
    writer = Writer(args, number, floors, told)
    writer.run(end)
    return writer.done


def start(args):
    for name in ("pfs", "mnt"):
        (args.base / name).mkdir()
    (args.base / "bb.toml").write_text("[demotion]\nidle = false\n")
    words = [args.forebay, "up", "--pfs", args.base / "pfs", "--mount", args.base / "mnt", "--state", args.base / "state", "--dram", "256MiB",
             "--config", args.base / "bb.toml", "--detach"]
    subprocess.run(words + ([] if args.passthrough else ["--no-passthrough"]), check=True, timeout=COMMAND_LIMIT_S)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--forebay", type=Path, default=Path("target/release/forebay"))
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--files", type=int, default=6)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--ways", nargs="*", help="only these: names of methods of `Writer`")
    parser.add_argument("--passthrough", action="store_true")
    args = parser.parse_args()
    args.forebay = args.forebay.resolve()
    print(f"seed {args.seed}", flush=True)
    args.base = Path(tempfile.mkdtemp(prefix="forebay-pages-"))
    start(args)
    results, workers, end = multiprocessing.Queue(), [], time.monotonic() + args.seconds
    failures, sums = [], {"opens": 0, "kept": 0}
    # Shared memory that nobody here refers to is given to the next who asks for some.
    shared = []
    try:
        for number in range(args.files):
            floors, told = multiprocessing.RawArray(ctypes.c_uint64, BLOCKS + 1), multiprocessing.Array(ctypes.c_char, 256)
            shared.append((floors, told))
            for what, work in (("reader", read), ("writer", write)):
                def task(work=work, number=number, floors=floors, told=told):
                    return work(args, number, floors, told, end)
                workers.append(multiprocessing.Process(target=reported, args=(results, what, task)))
                workers[-1].start()
        for _ in workers:
            what, result, failure = results.get(timeout=args.seconds + 2 * COMMAND_LIMIT_S)
            if failure:
                failures.append(failure)
                break
            if what == "reader":
                sums["opens"] += result[0]
                sums["kept"] += result[1]
            else:
                for way, count in result.items():
                    sums[way] = sums.get(way, 0) + count
    finally:
        for worker in workers:
            if failures and worker.is_alive():
                os.kill(worker.pid, signal.SIGKILL)
            worker.join()
        down = subprocess.run([args.forebay, "down", "--drain", "--state", args.base / "state"], capture_output=True, text=True, timeout=COMMAND_LIMIT_S, check=False)
        if down.returncode:
            failures.append(f"down: {down.stderr}")
    print(sums)
    for failure in failures:
        print(f"FAILED (seed {args.seed}): {failure}")
    if not failures:
        shutil.rmtree(args.base)
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
