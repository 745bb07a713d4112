#!/usr/bin/env python3
"""Random operations on one file through two mounts of one burst buffer, against a model in memory.

    python3 tests/posix/lockstep.py [--forebay BIN] [--seeds 10] [--seed 1] [--operations 20000] [--nodes]

One operation at a time, each on a mount of its own choice: what one mount has done, the other must show at once. The
mounts reach the server by TCP, as those of two nodes do. Meanwhile the file is drained, evicted and brought back.
With `--nodes` there are three nodes with a mount and a data server each. `--folders A,B` compares two folders that are there already. Needs root. Exits 3 at the first difference, which it names
with its seed and the operations before it.
"""

import argparse
import collections
import ctypes
import mmap
import os
import random
import signal
import sys
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[2] / "scripts"), str(Path(__file__).resolve().parents[1] / "cluster")]

from cluster import cluster  # noqa: E402
from machine import GIB, KIB, ROOT, Failure, Network, clean_exit_on_signals, run, unmount_below, workspace  # noqa: E402

FILE_BYTES_MAX = 512 * KIB
OPERATION_BYTES_MAX = 64 * KIB
PUNCH_HOLE_KEEP_SIZE = 0x03
ZERO_RANGE = 0x10
# Of a seed; a debug build on a machine that does other work, too.
SEED_SECONDS_MAX = 1800
TOLD_OPERATIONS = 24
PAGE = mmap.PAGESIZE

libc = ctypes.CDLL(None, use_errno=True)
libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]


def fallocate(fd, mode, offset, length):
    if libc.fallocate(fd, mode, offset, length):
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), "fallocate")


class Side:
    """One mount's view of the file: a descriptor that stays open for a while, and one that appends."""

    def __init__(self, folder, name):
        self.folder, self.name = folder, name
        self.fd = self.appends = None

    def open(self):
        self.close()
        self.fd = os.open(self.path(), os.O_RDWR)
        self.appends = os.open(self.path(), os.O_WRONLY | os.O_APPEND)

    def close(self):
        for fd in (self.fd, self.appends):
            if fd is not None:
                os.close(fd)
        self.fd = self.appends = None

    def path(self):
        return self.folder / self.name


class Lockstep:
    def __init__(self, folders, seed, move):
        self.random, self.model = random.Random(seed), bytearray()
        self.name, self.names, self.move = f"file-{seed}", 0, move
        self.told = collections.deque(maxlen=TOLD_OPERATIONS)
        self.counts = collections.Counter()
        self.sides = [Side(folder, self.name) for folder in folders]
        self.make(0)

    def make(self, at):
        path = self.sides[at].path()
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))
        for side in self.sides:
            side.open()

    # The operations. Each gets the side that it is done on, and answers with what is to be told of it.

    def do_read(self, side):
        offset, length = self.range(len(self.model) + PAGE)
        found = os.pread(side.fd, length, offset)
        self.compare(found, offset, length)
        return offset, length

    def do_load(self, side):
        if not self.model:
            return None
        offset, length = self.range(len(self.model))
        length = min(length, len(self.model) - offset)
        with mmap.mmap(side.fd, len(self.model), mmap.MAP_SHARED, mmap.PROT_READ) as pages:
            self.compare(pages[offset:offset + length], offset, length)
        return offset, length

    def do_write(self, side):
        offset, length = self.range(FILE_BYTES_MAX)
        data = self.bytes(min(length, FILE_BYTES_MAX - offset))
        self.wrote(os.pwrite(side.fd, data, offset), data)
        self.put(offset, data)
        return offset, len(data)

    def do_append(self, side):
        room = FILE_BYTES_MAX - len(self.model)
        if not room:
            return None
        data = self.bytes(self.random.randrange(1, min(room, OPERATION_BYTES_MAX) + 1))
        offset = len(self.model)
        self.wrote(os.write(side.appends, data), data)
        self.put(offset, data)
        return offset, len(data)

    def do_store(self, side):
        """With msync, or told to the file system by the end of the mapping and of its descriptor."""
        if not self.model:
            return None
        offset, length = self.range(len(self.model))
        data = self.bytes(min(length, len(self.model) - offset))
        flush = self.random.random() < 0.7
        fd = side.fd if flush else os.open(side.path(), os.O_RDWR)
        with mmap.mmap(fd, len(self.model), mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE) as pages:
            pages[offset:offset + len(data)] = data
            if flush:
                pages.flush()
        if not flush:
            os.fsync(fd)
            os.close(fd)
        self.put(offset, data)
        return offset, len(data), "msync" if flush else "fsync"

    def do_truncate(self, side):
        size = self.random.randrange(FILE_BYTES_MAX + 1)
        if self.random.random() < 0.5:
            os.ftruncate(side.fd, size)
        else:
            os.truncate(side.path(), size)
        self.resize(size)
        return (size,)

    def do_empty(self, side):
        os.close(os.open(side.path(), os.O_WRONLY | os.O_TRUNC))
        self.model.clear()
        return ()

    def do_punch(self, side):
        offset, length = self.range(FILE_BYTES_MAX)
        fallocate(side.fd, PUNCH_HOLE_KEEP_SIZE, offset, length)
        end = min(offset + length, len(self.model))
        if offset < end:
            self.model[offset:end] = bytes(end - offset)
        return offset, length

    def do_zero(self, side):
        offset, length = self.range(FILE_BYTES_MAX)
        length = min(length, FILE_BYTES_MAX - offset)
        fallocate(side.fd, ZERO_RANGE, offset, length)
        self.put(offset, bytes(length))
        return offset, length

    def do_allocate(self, side):
        offset, length = self.range(FILE_BYTES_MAX)
        length = min(length, FILE_BYTES_MAX - offset)
        fallocate(side.fd, 0, offset, length)
        self.resize(max(len(self.model), offset + length))
        return offset, length

    def do_fsync(self, side):
        os.fsync(side.fd)
        return ()

    def do_reopen(self, side):
        side.open()
        return ()

    def do_rename(self, side):
        self.names += 1
        name = f"{self.name}.{self.names}"
        os.rename(side.path(), side.folder / name)
        for each in self.sides:
            each.name = name
        return (name,)

    def do_replace(self, side):
        """Another file takes the name, and every descriptor goes to that."""
        if self.random.random() < 0.5:
            os.unlink(side.path())
            self.make(self.sides.index(side))
        else:
            temporary = side.folder / f"{self.name}.new"
            temporary.write_bytes(b"")
            other = self.random.choice(self.sides)
            os.rename(other.folder / temporary.name, other.path())
            for each in self.sides:
                each.open()
        self.model.clear()
        return ()

    def do_move(self, side):
        return (self.move(self.random, side.path()),)

    WEIGHTS = {"read": 20, "load": 12, "write": 16, "append": 10, "store": 12, "truncate": 5, "empty": 0.5, "punch": 4,
               "zero": 2, "allocate": 2, "fsync": 1, "reopen": 3, "rename": 0.5, "replace": 0.2, "move": 0.2}

    def go(self, operations):
        names, weights = zip(*self.WEIGHTS.items())
        for number in range(operations):
            name, at = self.random.choices(names, weights)[0], self.random.randrange(len(self.sides))
            # It is told of also if it fails.
            self.told.append((number, at + 1, name))
            done = getattr(self, f"do_{name}")(self.sides[at])
            if done is None:
                continue
            self.told[-1] += done
            self.counts[name] += 1
            for each in self.sides:
                self.compare_size(each)
        for side in self.sides:
            self.told.append((operations, self.sides.index(side) + 1, "whole"))
            self.compare(side.path().read_bytes(), 0, FILE_BYTES_MAX)
            side.close()

    # The model.

    def range(self, end):
        """Somewhere before `end`, now and then at the edges of pages; the length is not zero."""
        offset, length = self.random.randrange(max(end, 1)), self.random.randrange(1, OPERATION_BYTES_MAX + 1)
        if self.random.random() < 0.3:
            offset -= offset % PAGE
        if self.random.random() < 0.3:
            length += -length % PAGE
        return offset, length

    def bytes(self, length):
        return self.random.randbytes(length)

    def put(self, offset, data):
        self.resize(max(len(self.model), offset + len(data)))
        self.model[offset:offset + len(data)] = data

    def resize(self, size):
        if size > len(self.model):
            self.model.extend(bytes(size - len(self.model)))
        del self.model[size:]

    # What is judged.

    def wrote(self, count, data):
        if count != len(data):
            raise Failure(f"{count} bytes of {len(data)} were written")

    def compare(self, found, offset, length):
        wanted = bytes(self.model[offset:offset + length])
        if found == wanted:
            return
        if len(found) != len(wanted):
            raise Failure(f"{len(found)} bytes at {offset}, not {len(wanted)}")
        wrong = [at for at, (one, other) in enumerate(zip(found, wanted)) if one != other]
        raise Failure(f"{len(wrong)} bytes from {offset + wrong[0]} to {offset + wrong[-1]} differ: "
                      f"{found[wrong[0]]:#x} and not {wanted[wrong[0]]:#x}")

    def compare_size(self, side):
        for way, size in (("stat", os.stat(side.path()).st_size), ("fstat", os.fstat(side.fd).st_size)):
            if size != len(self.model):
                raise Failure(f"{way} of mount {self.sides.index(side) + 1}: {size} bytes, not {len(self.model)}")


def mover(forebay):
    """Of what the order is refused (exit 3), such as the release of an open file, the file stays as it is."""
    def move(chance, path):
        order = chance.choice([["stage-out"], ["stage-out", "--wait"], ["release"], ["stage-in"]])
        done = run([forebay, *order, path], check=False, timeout_s=120)
        if done.returncode not in (0, 3):
            raise Failure(f"{order[0]}: exit {done.returncode}: {done.stderr.strip()}")
        return order[0]
    return move


def compare(folders, args, move):
    for seed in range(args.seed, args.seed + args.seeds):
        began = time.monotonic()
        steps = Lockstep(folders, seed, move)
        signal.alarm(SEED_SECONDS_MAX)
        try:
            steps.go(args.operations)
        except (Failure, OSError) as error:
            for told in steps.told:
                print("  ", *told, file=sys.stderr)
            raise Failure(f"seed {seed}: {error}") from error
        finally:
            signal.alarm(0)
        counts = ", ".join(f"{name} {count}" for name, count in sorted(steps.counts.items()))
        print(f"lockstep: seed {seed}: no difference in {time.monotonic() - began:.0f} s ({counts})", flush=True)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--forebay", type=Path, default=ROOT / "target/debug/forebay", help="the binary to test")
    parser.add_argument("--seed", type=int, default=1, help="the first seed (1)")
    parser.add_argument("--seeds", type=int, default=10, help="how many (10)")
    parser.add_argument("--operations", type=int, default=20_000, help="of each seed (20000)")
    parser.add_argument("--folders", type=lambda text: [Path(part) for part in text.split(",")], metavar="A,B",
                        help="two folders that show the same, instead of mounts")
    parser.add_argument("--nodes", action="store_true", help="three nodes with a mount and a data server each")
    args = parser.parse_args()
    args.forebay = args.forebay.resolve()
    return args


def on_mounts(args):
    if os.geteuid() != 0:
        raise Failure("it mounts file systems of its own, which only root may")
    if args.nodes:
        on_nodes(args)
        return
    with workspace("lockstep-") as base:
        pfs = base / "pfs"
        pfs.mkdir()
        image = base / "pfs.img"
        with open(image, "wb") as file:
            file.truncate(2 * GIB)
        run(["mkfs.ext4", "-q", "-F", image])
        run(["mount", "-t", "ext4", "-o", "loop", image, pfs])
        try:
            network = Network(args.forebay, pfs, [base / "one", base / "two"], base, tiers='dram = "64MiB"')
            with network:
                compare(network.mounts, args, mover(args.forebay))
                if errors := network.status()["errors"]:
                    raise Failure(f"status shows {errors[:3]}")
                network.finish()
        finally:
            unmount_below(pfs)


def on_nodes(args):
    """Which node has the file is who made it, or who wrote when there was room."""
    with workspace("lockstep-") as base, cluster(args.forebay, base, 3, "64MiB", "256MiB", data_servers=True) as running:
        compare(running.mounts, args, mover(args.forebay))
        if errors := running.status()["errors"]:
            raise Failure(f"status shows {errors[:3]}")
        running.finish()


def too_long(_signal, _frame):
    raise Failure(f"not done within {SEED_SECONDS_MAX} s")


def main():
    args = arguments()
    signal.signal(signal.SIGALRM, too_long)
    try:
        with clean_exit_on_signals():
            if args.folders:
                compare(args.folders, args, lambda *_: "nothing")
            else:
                on_mounts(args)
    except KeyboardInterrupt:
        return 130
    except (Failure, OSError) as error:
        print(f"lockstep: {error}", file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
