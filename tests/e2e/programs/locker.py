"""Locks files as a program does, by orders of one line each; the answer to each is one line.

    open NAME PATH              opens a file, or makes it
    lock|try NAME ex|sh A B     locks bytes A to B of it by fcntl(2); lock waits
    unlock NAME A B
    flock|tryflock NAME ex|sh   locks all of it by flock(2)
    funlock NAME
    holder NAME A B             who is in the way of an exclusive lock by fcntl(2)
    close NAME
    count NAME TIMES            adds 1 to the number in the file, under a lock of its first byte
    fcount NAME TIMES           the same under flock(2)
"""

import fcntl
import os
import signal
import struct
import sys

FLOCK = "hhqqi4x"
files = {}




def record(name, command, kind, first, last):
    asked = struct.pack(FLOCK, kind, os.SEEK_SET, first, last - first + 1, 0)
    return struct.unpack(FLOCK, fcntl.fcntl(files[name], command, asked))


def add(name):
    number = int(os.pread(files[name], 20, 0) or b"0") + 1
    os.pwrite(files[name], str(number).encode(), 0)


def obey(order, name, *rest):
    kinds = {"ex": fcntl.F_WRLCK, "sh": fcntl.F_RDLCK}
    if order == "open":
        files[name] = os.open(rest[0], os.O_RDWR | os.O_CREAT, 0o666)
    elif order in ("lock", "try"):
        command = fcntl.F_SETLKW if order == "lock" else fcntl.F_SETLK
        record(name, command, kinds[rest[0]], int(rest[1]), int(rest[2]))
    elif order == "unlock":
        record(name, fcntl.F_SETLK, fcntl.F_UNLCK, int(rest[0]), int(rest[1]))
    elif order in ("flock", "tryflock"):
        mode = fcntl.LOCK_EX if rest[0] == "ex" else fcntl.LOCK_SH
        fcntl.flock(files[name], mode | (fcntl.LOCK_NB if order == "tryflock" else 0))
    elif order == "funlock":
        fcntl.flock(files[name], fcntl.LOCK_UN)
    elif order == "holder":
        kind, _, first, length, pid = record(name, fcntl.F_GETLK, fcntl.F_WRLCK, int(rest[0]), int(rest[1]))
        names = {fcntl.F_WRLCK: "ex", fcntl.F_RDLCK: "sh", fcntl.F_UNLCK: "nobody"}
        where = "" if kind == fcntl.F_UNLCK else f" {first} {first + length - 1} {pid}"
        return names[kind] + where
    elif order == "close":
        os.close(files.pop(name))
    elif order == "count":
        for _ in range(int(rest[0])):
            record(name, fcntl.F_SETLKW, fcntl.F_WRLCK, 0, 0)
            add(name)
            record(name, fcntl.F_SETLK, fcntl.F_UNLCK, 0, 0)
    elif order == "fcount":
        for _ in range(int(rest[0])):
            fcntl.flock(files[name], fcntl.LOCK_EX)
            add(name)
            fcntl.flock(files[name], fcntl.LOCK_UN)
    return "done"


class Interrupted(Exception):
    pass


def interrupt(*_):
    raise Interrupted


# Python begins a call again that a signal has interrupted, unless the handler raises.
signal.signal(signal.SIGUSR1, interrupt)
for line in sys.stdin:
    try:
        print(obey(*line.split()), flush=True)
    except Interrupted:
        print("interrupted", flush=True)
    except OSError as error:
        print(f"errno {error.errno}", flush=True)
