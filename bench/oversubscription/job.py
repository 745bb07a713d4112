"""One application: waits for its time, writes one checkpoint with fsync, says how long each part took.

Usage: job.py PATH BYTES START_S CHUNK_BYTES BW_MIN; START_S is of the monotonic clock. Prints one JSON object: wait_s until the first
request was through, execution_s at most what the bytes take at BW_MIN, stall_s what it took beyond that.
"""

import json
import os
import sys
import time


def main():
    path, size, start_s, chunk_bytes, bw_min = sys.argv[1], *map(float, sys.argv[2:])
    chunk = os.urandom(int(chunk_bytes))
    time.sleep(max(0.0, start_s - time.monotonic()))
    arrive_s = time.monotonic()
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o644)
    left, wait_s, first = int(size), 0.0, True
    while left > 0:
        before_s = time.monotonic()
        written = os.write(descriptor, chunk[: min(left, len(chunk))])
        took_s = time.monotonic() - before_s
        left -= written
        if first:
            # Until the first request is through: the wait for the application's turn.
            wait_s, first = took_s, False
    os.fsync(descriptor)
    os.close(descriptor)
    after_s = time.monotonic() - arrive_s - wait_s
    execution_s = min(after_s, size / bw_min)
    print(json.dumps({"arrive_s": arrive_s, "wait_s": wait_s, "stall_s": after_s - execution_s,
                      "execution_s": execution_s, "bytes": int(size)}))


if __name__ == "__main__":
    main()
