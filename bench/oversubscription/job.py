"""One application: writes one checkpoint with fsync for every line on its standard input, and says how long each part took.

Usage: job.py CHUNK_BYTES BW_MIN. A line is a JSON object: `path`, `bytes`, `start_s` of the monotonic clock. Answers one JSON object a line:
wait_s until the first request was through (the wait for its turn), execution_s at most what the bytes take at BW_MIN, stall_s what it
took beyond that.
"""

import json
import os
import sys
import time


def checkpoint(order, chunk, bw_min):
    time.sleep(max(0.0, order["start_s"] - time.monotonic()))
    arrive_s = time.monotonic()
    descriptor = os.open(order["path"], os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o644)
    left, wait_s = order["bytes"], None
    while left > 0:
        left -= os.write(descriptor, chunk[: min(left, len(chunk))])
        if wait_s is None:
            wait_s = time.monotonic() - arrive_s
    os.fsync(descriptor)
    os.close(descriptor)
    latency_s = time.monotonic() - arrive_s
    execution_s = min(latency_s - wait_s, order["bytes"] / bw_min)
    return {"arrive_s": arrive_s, "wait_s": wait_s, "stall_s": latency_s - wait_s - execution_s, "execution_s": execution_s,
            "latency_s": latency_s, "throughput_bytes_per_s": order["bytes"] / latency_s, "bytes": order["bytes"]}


def main():
    chunk, bw_min = os.urandom(int(sys.argv[1])), float(sys.argv[2])
    for line in sys.stdin:
        print(json.dumps(checkpoint(json.loads(line), chunk, bw_min)), flush=True)


if __name__ == "__main__":
    main()
