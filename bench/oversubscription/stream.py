"""A writer that never stops: files of some MiB with fsync, of which it keeps two.

Usage: stream.py DIRECTORY NUMBER SPAN_S FILE_MIB
"""

import os
import sys
import time
from pathlib import Path


def main():
    directory, number, span_s = Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])
    file_mib = int(sys.argv[4])
    chunk, end_s, file = os.urandom(1 << 20), time.monotonic() + span_s, 0
    path = lambda at: directory / f"stream-{number}-{at:06d}.dat"
    while time.monotonic() < end_s:
        with open(path(file), "wb", buffering=0) as out:
            for _ in range(file_mib):
                out.write(chunk)
            os.fsync(out.fileno())
        if file >= 2:
            path(file - 2).unlink()
        file += 1


if __name__ == "__main__":
    main()
