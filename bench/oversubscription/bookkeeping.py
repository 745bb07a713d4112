"""What learning and planning cost: the engine's thread with many applications that write all the time."""

import os
import resource
import tempfile
import time
from pathlib import Path

from devices import Failure, run

APPLICATIONS = 1000
SPAN_S = 20.0
RATES = "bw_max = 4000000000\nbw_min = 3000000000\nbr_max = 1600000000\nbr_min = 80000000\n"


def thread_cpu_s(pid, name):
    """Time that the threads of this name have spent on a processor."""
    total = 0.0
    for task in Path(f"/proc/{pid}/task").iterdir():
        if (task / "comm").read_text().strip() == name:
            fields = (task / "stat").read_text().rsplit(")", 1)[1].split()
            total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


def measure(program):
    """Share of a processor: every application has a file open and appends to it once a second."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with tempfile.TemporaryDirectory(prefix="forebay-book-") as work:
        base, files = Path(work), []
        for name in ("pfs", "mnt"):
            (base / name).mkdir()
        (base / "bb.toml").write_text(
            f'pfs = "{base}/pfs"\nmount = "{base}/mnt"\nstate = "{base}/state"\ndram = "2GiB"\n'
            f'[demotion]\nidle = false\n[engine]\nperiod = "5s"\n{RATES}')
        run(program, "up", "--config", base / "bb.toml", "--detach")
        try:
            pid = int((base / "state/forebay.pid").read_text())
            for app in range(APPLICATIONS):
                (base / f"mnt/app{app}").mkdir()
                files.append(open(base / f"mnt/app{app}/ckpt-1.dat", "wb", buffering=0))
            before_s, begun_s = thread_cpu_s(pid, "fb-engine"), time.monotonic()
            while (passed_s := time.monotonic() - begun_s) < SPAN_S:
                for file in files:
                    file.write(b"x" * 4096)
                time.sleep(max(0.0, begun_s + int(passed_s) + 1 - time.monotonic()))
            spent_s = thread_cpu_s(pid, "fb-engine") - before_s
            if spent_s == 0.0:
                raise Failure("the engine's thread is not there")
            return {"applications": APPLICATIONS, "core_share": spent_s / (time.monotonic() - begun_s)}
        finally:
            for file in files:
                file.close()
            run(program, "down", "--drain", "--state", base / "state", timeout=120)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
