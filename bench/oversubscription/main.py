#!/usr/bin/env python3
"""Over-subscription live: real processes checkpoint through real mounts over pairs of limited loop devices.

DWPP 1.3/1.6/1.9 S, low/medium/high congestion, four policies; restart hits of three placements; direct checkpoints; how rates are
held. Needs root, loop devices and the cgroup v1 blkio controller. Writes results.json, tables.md and figures. See README.md.
"""

import argparse
import json
import os
import re
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock

import bookkeeping
import experiment
from experiment import CONGESTION, Setting, say
from figures import draw, tables
from devices import Awake, Failure

ROOT = Path(__file__).resolve().parent.parent.parent
# In this order on one burst buffer.
POLICIES = ["bbos", "maxeff", "maxbw", "dedicated"]
PLACEMENTS = ["bbos", "fifo", "lru"]
MTBF_MAX_MIN = [20, 50, 100]
PARTS = ["matrix", "restarts", "direct", "rates", "bookkeeping"]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--forebay", type=Path, default=ROOT / "target/release/forebay")
    parser.add_argument("--capacity-mib", type=int, default=1024, help="S of the matrix; a quarter of it for restarts and direct checkpoints")
    parser.add_argument("--nodes", type=int, default=1, help="data servers, each with a device and a mount; S of --capacity-mib is of one of them")
    parser.add_argument("--period", type=float, default=120.0, help="seconds; bandwidths follow, so that their ratios are the papers'")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="a small S and only the cells that the papers' claims rest on")
    parser.add_argument("--only", help=f"parts ({', '.join(PARTS)}) or cells such as 1.9/medium/bbos, separated by commas")
    parser.add_argument("--side-by-side", type=int, default=3, help="burst buffers at a time")
    parser.add_argument("--work", type=Path, help="where the images of the devices go")
    parser.add_argument("--sparse", action="store_true", help="images take only what is in them: for a --work in memory")
    parser.add_argument("--out", type=Path, default=Path("oversubscription-results"))
    args = parser.parse_args()
    args.forebay = args.forebay.resolve()
    if not args.forebay.is_file():
        parser.error(f"{args.forebay} is not there: `make build` makes it, --forebay names another")
    for name in args.only.split(",") if args.only else []:
        if name not in PARTS and not is_cell(name):
            parser.error(f"--only {name}: neither a part ({', '.join(PARTS)}) nor a cell such as 1.9/medium/bbos "
                         f"({', '.join(CONGESTION)}; {', '.join(POLICIES)})")
    if os.geteuid() != 0:
        parser.error("the experiment makes and limits devices: it needs root")
    if args.quick:
        # Several nodes have as many processors as one.
        args.capacity_mib, args.period = 512, 45.0 if args.nodes == 1 else 90.0
    if args.nodes > 1:
        refuse = [name for name in (args.only or "").split(",") if name in ("direct", "bookkeeping") or name.endswith("/dedicated")]
        if refuse:
            parser.error(f"--nodes: of several nodes there is no {', '.join(refuse)}")
    return args


def is_cell(name):
    load, *rest = name.split("/")
    return re.fullmatch(r"[0-9]+(\.[0-9]+)?", load) and len(rest) == 2 and rest[0] in CONGESTION and rest[1] in POLICIES


def cells(args):
    """By DWPP: congestions and policies."""
    names = [name.split("/") for name in (args.only or "").split(",") if "/" in name]
    if names:
        loads = sorted({float(name[0]) for name in names}, reverse=True)
        pick = lambda load, at, all_: [x for x in all_ if any(float(n[0]) == load and n[at] == x for n in names)]
        return {load: (pick(load, 1, CONGESTION), pick(load, 2, POLICIES)) for load in loads}
    if args.quick:
        return {1.9: (["medium"], POLICIES[:3] if args.nodes == 1 else POLICIES[:1])}
    return {load: (list(CONGESTION), POLICIES if args.nodes == 1 else POLICIES[:3]) for load in (1.9, 1.6, 1.3)}


def tasks(args):
    """What is to be done: part, and what to call."""
    wanted = args.only.split(",") if args.only else PARTS if args.nodes == 1 else PARTS[:2]
    large = Setting(args, args.capacity_mib, args.period)
    small = Setting(args, max(args.capacity_mib // 4, 128), args.period / 2)
    if any(name == "matrix" or "/" in name for name in wanted):
        for load, (congestions, policies) in cells(args).items():
            yield "cells", lambda c=congestions, p=policies, d=load: experiment.matrix(large, d, c, p)
    if "restarts" in wanted:
        for load in [1.9] if args.quick else [2.1, 1.9, 1.7, 1.5]:
            yield "restarts", lambda d=load: experiment.restarts(small, d, PLACEMENTS if args.nodes == 1 else PLACEMENTS[:1], MTBF_MAX_MIN)
    if "direct" in wanted:
        for enabled in (True, False):
            yield "direct", lambda e=enabled: [experiment.direct(small, e)]
    if "rates" in wanted:
        yield "held_rates", lambda: [experiment.held_rates(large)]
    if "bookkeeping" in wanted:
        yield "bookkeeping", lambda: [bookkeeping.measure(args.forebay)]


def main():
    args = arguments()
    for path in filter(None, [args.out, args.work]):
        path.mkdir(parents=True, exist_ok=True)
    setting = Setting(args, args.capacity_mib, args.period)
    say(f"S {args.capacity_mib} MiB, period {args.period} s, "
        + ", ".join(f"{name} {rate / 1e6:.1f} MB/s" for name, rate in setting.rates.items()))
    begun_s = time.monotonic()
    report = {"format": 3, "parameters": {**setting.facts(), "seed": args.seed, "checkpoints_in_s": experiment.CHECKPOINTS_PER_S,
                                          "gap_by_congestion": CONGESTION, "options": setting.options()}}
    lock = Lock()

    def collect(part, call):
        for result in call():
            with lock:
                report.setdefault(part, []).append(result)
                save(report, args.out)

    with Awake(), ThreadPoolExecutor(args.side_by_side) as pool:
        under_way = [pool.submit(collect, part, call) for part, call in tasks(args)]
        try:
            for future in under_way:
                future.result()
        except BaseException:
            for future in under_way:
                future.cancel()
            experiment.interrupt()
            raise
    say(f"{(time.monotonic() - begun_s) / 60:.1f} minutes")
    say((args.out / "tables.md").read_text())


def save(report, out):
    place = lambda cell: (-cell["dwpp"], POLICIES.index(cell["policy"]), list(CONGESTION).index(cell["congestion"]))
    report.get("cells", []).sort(key=place)
    report.get("restarts", []).sort(key=lambda found: -found["dwpp"])
    (out / "results.json").write_text(json.dumps(report, indent=1))
    (out / "tables.md").write_text(tables(report))
    draw(report, out)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        main()
    except Failure as failure:
        sys.exit(f"oversubscription: {failure}")
    except KeyboardInterrupt:
        say("interrupted; cleaned up")
        sys.exit(130)
