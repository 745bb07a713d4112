"""A drain of very many small files, beside one of few: its rate, and how long `status` takes meanwhile."""

import os
import shutil
import statistics
import subprocess
import time

from report import GIB, Series, verdict
from systems import Failure, say

FEW_FILES = 10_000
SMALL_FILE_BYTES = 4096
LEAST_RATIO = 0.8
STATUS_MS_MAX = 50.0
# Between two looks at the status.
LOOK_S = 0.2


def many(bench):
    """Undrained files of 4 KiB, drained at once: 1,000,000 against 10,000, and `status` meanwhile."""
    if not bench.args.forebay:
        return
    total = bench.args.many_files
    series = Series("drain of many files", "files/s", 1.0, {("many", "few"): LEAST_RATIO})
    looks = []
    for turn in range(bench.args.repeat if bench.args.quick else 1):
        for name, files in (("few", FEW_FILES), ("many", total)):
            rate, took_ms = drain(bench, f"{name}-{turn}", files)
            say(f"{files:,} files: {rate:,.0f} files/s; status {len(took_ms)} times, "
                f"median {statistics.median(took_ms):.1f} ms, most {max(took_ms):.1f} ms")
            series.add(name, rate)
            if name == "many":
                looks += took_ms
    bench.add(series)
    looks.sort()
    ninth = looks[len(looks) * 9 // 10]
    bench.results["verdicts"].append(
        verdict(f"status while {total:,} files drain", f"median {statistics.median(looks):.1f} ms, nine of ten "
                f"within {ninth:.1f} ms", f"<= {STATUS_MS_MAX:.0f} ms", ninth <= STATUS_MS_MAX))


def drain(bench, name, files):
    """Fills a burst buffer, then drains it with `down --drain`: files per second, and what each `status` took, ms."""
    product = bench.product(f"many-{name}", files * SMALL_FILE_BYTES * 3 + GIB)
    with product:
        bench.programs.load("meta", product.path, procs=2, files=files // 2, phases="create", bytes=SMALL_FILE_BYTES)
        queued = product.status()["drain"]["queued_files"]
        if queued != files:
            raise Failure(f"{queued} files are undrained; expected {files}")
        took_ms = []
        begin = time.monotonic()
        with subprocess.Popen([product.binary, "down", "--state", product.state, "--drain"],
                              stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as down:
            left = files
            while left:
                time.sleep(LOOK_S)
                asked = time.monotonic()
                try:
                    left = product.status()["drain"]["queued_files"]
                except Failure:
                    # It has drained, and is gone.
                    break
                took_ms.append(1e3 * (time.monotonic() - asked))
            elapsed = time.monotonic() - begin
            words = down.stderr.read().decode(errors="replace")
        if down.returncode:
            raise Failure(f"down --drain: exit {down.returncode}: {words.strip()}")
        product.is_up = False
    arrived = sum(len(names) for _, _, names in os.walk(product.pfs))
    if arrived != files:
        raise Failure(f"{arrived} files on the PFS; expected {files}")
    shutil.rmtree(product.pfs)
    return files / elapsed, took_ms or [0.0]
