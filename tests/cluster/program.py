"""A program on a node: does what the driver tells it, and says what it was answered. It knows nothing of what is right."""

import contextlib
import ctypes
import multiprocessing.connection
import os
import sys
import time

from account import CELL, CELLS_MAX, cell, parse_cells, parse_records, record

REST_S = 0.02
PAGE = 4096
MAPPED_BYTES = -(-CELLS_MAX * CELL // PAGE) * PAGE
PROT_READ, PROT_WRITE, MAP_SHARED, MS_SYNC = 1, 2, 1, 4
LATE_MAX = 3
FAILED = ctypes.c_void_p(-1).value

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
libc.msync.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
for copies in (libc.pread, libc.pwrite):
    copies.restype, copies.argtypes = ctypes.c_ssize_t, [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_long]


class Held:
    """A file that stays open. The mapping is longer than the file: what is beyond its end is not touched."""

    def __init__(self, fd, mapped):
        self.fd, self.address = fd, None
        if mapped:
            self.address = libc.mmap(None, MAPPED_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)
            if self.address == FAILED:
                self.address = None
                raise OSError(ctypes.get_errno(), "mmap")

    def close(self):
        if self.address is not None:
            libc.munmap(self.address, MAPPED_BYTES)
            self.address = None
        fd, self.fd = self.fd, None
        if fd is not None:
            os.close(fd)


class Program:
    def __init__(self, root):
        self.root, self.held, self.call = root, {}, ""
        self.aside = os.memfd_create("aside")

    def path(self, name):
        return os.path.join(self.root, name)

    def perform(self, plan):
        """What a plan's operation was answered."""
        self.call = plan["do"]
        try:
            return {"ok": getattr(self, f"do_{plan['do']}")(plan)}
        except OSError as error:
            if (held := self.held.pop(plan.get("slot"), None)) is not None:
                # Its descriptor is good for nothing any more, and the end of it says so once more.
                with contextlib.suppress(OSError):
                    held.close()
            return {"errno": error.errno, "call": self.call}

    @contextlib.contextmanager
    def opened(self, name, flags):
        self.call = "open"
        fd = os.open(self.path(name), flags, 0o644)
        try:
            yield fd
        finally:
            call, self.call = self.call, "close"
            os.close(fd)
            self.call = call

    def write(self, fd, plan):
        """All cells in one call."""
        data = b"".join(cell(plan["file"], at, plan["version"]) for at in range(plan["first"], plan["first"] + plan["cells"]))
        self.call, at = "pwrite", plan["first"] * CELL
        while data:
            count = os.pwrite(fd, data, at)
            data, at = data[count:], at + count
        self.sync(fd, plan)

    def sync(self, fd, plan):
        if plan.get("sync"):
            self.call = "fsync"
            os.fsync(fd)

    def read(self, fd, first=0, cells=CELLS_MAX + 1):
        self.call, at, end, data = "pread", first * CELL, (first + cells) * CELL, b""
        # A read of what the server has may be answered in part; the end is where nothing comes.
        while at < end:
            part = os.pread(fd, end - at, at)
            if not part:
                break
            data, at = data + part, at + len(part)
        return parse_cells(data)

    # -- by name -----------------------------------------------------------------------------------------------------

    def do_create(self, plan):
        with self.opened(plan["path"], os.O_RDWR | os.O_CREAT | os.O_EXCL) as fd:
            self.write(fd, {**plan, "first": 0})

    def do_write(self, plan):
        with self.opened(plan["path"], os.O_RDWR) as fd:
            self.write(fd, plan)

    def do_rewrite(self, plan):
        with self.opened(plan["path"], os.O_RDWR) as fd:
            self.write(fd, {**plan, "first": 0})
            self.call = "ftruncate"
            os.ftruncate(fd, plan["cells"] * CELL)

    def do_append(self, plan):
        data = b"".join(cell(plan["file"], at, plan["version"]) for at in range(plan["first"], plan["first"] + plan["cells"]))
        with self.opened(plan["path"], os.O_WRONLY | os.O_APPEND) as fd:
            self.append(fd, data)
            self.sync(fd, plan)

    def append(self, fd, data):
        self.call = "append"
        while data:
            data = data[os.write(fd, data):]

    def do_log(self, plan):
        """Records of one write, behind whatever others append at the same time."""
        data = b"".join(record(plan["stream"], plan["first"] + at, at, plan["count"]) for at in range(plan["count"]))
        with self.opened(plan["path"], os.O_WRONLY | os.O_APPEND | os.O_CREAT) as fd:
            self.append(fd, data)
            self.sync(fd, plan)

    def do_read_log(self, plan):
        with self.opened(plan["path"], os.O_RDONLY) as fd:
            self.call, data = "pread", b""
            while part := os.pread(fd, 1 << 20, len(data)):
                data += part
        records, other = parse_records(data)
        return {"records": records, "other": other}

    def do_truncate(self, plan):
        self.call = "truncate"
        os.truncate(self.path(plan["path"]), plan["cells"] * CELL)

    def do_rename(self, plan):
        os.rename(self.path(plan["path"]), self.path(plan["new"]))

    def do_unlink(self, plan):
        os.unlink(self.path(plan["path"]))

    def do_link(self, plan):
        os.link(self.path(plan["path"]), self.path(plan["new"]))

    def do_mkdir(self, plan):
        os.mkdir(self.path(plan["path"]))

    def do_rmdir(self, plan):
        os.rmdir(self.path(plan["path"]))

    def do_stat_folder(self, plan):
        try:
            os.stat(self.path(plan["path"]))
        except FileNotFoundError:
            return {"there": False}
        return {"there": True}

    def do_list(self, plan):
        return {"names": os.listdir(self.path(plan["path"]))}

    def do_stat(self, plan):
        try:
            found = os.stat(self.path(plan["path"]))
        except FileNotFoundError:
            return {"size": None, "links": 0}
        return {"size": found.st_size, "links": found.st_nlink}

    def do_read(self, plan):
        try:
            with self.opened(plan["path"], os.O_RDONLY) as fd:
                return {"seen": self.read(fd)}
        except FileNotFoundError:
            return {"seen": None}

    do_settle = do_read

    # -- by descriptors that stay open -------------------------------------------------------------------------------

    def do_hold(self, plan):
        self.call = "open"
        try:
            fd = os.open(self.path(plan["path"]), os.O_RDWR)
        except FileNotFoundError:
            return {"seen": None}
        try:
            held = self.held[plan["slot"]] = Held(fd, plan["mapped"])
        except OSError:
            os.close(fd)
            raise
        seen = self.read(held.fd)
        if not any(isinstance(one, tuple) for one in seen):
            # Nothing says which file it is: of no use later.
            self.held.pop(plan["slot"]).close()
        return {"seen": seen}

    def do_drop(self, plan):
        self.call = "close"
        self.held.pop(plan["slot"]).close()

    def do_read_held(self, plan):
        return {"seen": self.read(self.held[plan["slot"]].fd, plan["first"], plan["cells"])}

    def do_write_held(self, plan):
        self.write(self.held[plan["slot"]].fd, plan)

    def do_fsync(self, plan):
        os.fsync(self.held[plan["slot"]].fd)

    def do_truncate_held(self, plan):
        self.call = "ftruncate"
        os.ftruncate(self.held[plan["slot"]].fd, plan["cells"] * CELL)

    def copied(self, plan, copies):
        """Copies between a mapping and memory by the kernel, which says how far it came where a program gets SIGBUS.

        The size is asked for first, as of a file that others change, and once more where the kernel does not believe it
        (docs/semantics.md, not promised yet). Answers how often that was."""
        held, length = self.held[plan["slot"]], plan["cells"] * CELL
        address, done, late = held.address + plan["first"] * CELL, 0, 0
        while done < length:
            self.call = "fstat"
            size = os.fstat(held.fd).st_size
            self.call = f"{plan['do']} at {plan['first'] * CELL + done} of {size} bytes"
            count = copies(self.aside, address + done, length - done, done)
            if count > 0:
                done += count
            elif late < LATE_MAX:
                late += 1
            else:
                raise OSError(ctypes.get_errno(), "a page of a mapping cannot be had")
        return address, length, late

    def do_load(self, plan):
        os.ftruncate(self.aside, 0)
        _, length, late = self.copied(plan, libc.pwrite)
        return {"seen": parse_cells(os.pread(self.aside, length, 0)), "late": late}

    def do_store(self, plan):
        data = b"".join(cell(plan["file"], at, plan["version"]) for at in range(plan["first"], plan["first"] + plan["cells"]))
        os.pwrite(self.aside, data, 0)
        address, length, late = self.copied(plan, libc.pread)
        self.call, begin = "msync", address - address % PAGE
        if libc.msync(begin, address + length - begin, MS_SYNC):
            raise OSError(ctypes.get_errno(), "msync")
        return {"late": late}


def main():
    """program.py DESCRIPTOR ROOT: the descriptor is a socket to the driver."""
    driver = multiprocessing.connection.Connection(int(sys.argv[1]))
    program = Program(sys.argv[2])
    outcome = None
    while True:
        try:
            driver.send(outcome)
            plan = driver.recv()
        except (EOFError, ConnectionError):
            return  # the driver has gone
        outcome = None
        if plan is None:
            time.sleep(REST_S)
        elif plan["do"] == "end":
            return
        else:
            outcome = program.perform(plan)


if __name__ == "__main__":
    main()
