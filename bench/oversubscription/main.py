#!/usr/bin/env python3
"""Over-subscription live: real processes checkpoint through a real mount over two limited loop devices.

DWPP 1.3/1.6/1.9 S, low/medium/high congestion, four policies; restart hits of three placements; direct checkpoints. Needs root, loop
devices and the cgroup v1 blkio controller. Writes results.json, tables.md and figures. See README.md beside this file.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from figures import draw, tables
from machine import Failure, Forebay

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
POLICIES = ["bbos", "maxbw", "maxeff", "dedicated"]
# Mean gap between arrivals against an even spread over the period.
CONGESTION = {"low": 1.0, "medium": 0.5, "high": 0.1}
# Of the papers, bytes/s, bytes and seconds; only their ratios are kept.
PAPER = {"bw_max": 3.56e9, "bw_min": 3e9, "br_max": 1.6e9, "br_min": 0.08e9}
PAPER_S, PAPER_PERIOD_S, CHECKPOINTS_PER_S = 3.2e12, 3800.0, 40
CHUNK_BYTES = 1 << 20


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--forebay", type=Path, default=ROOT / "target/release/forebay")
    parser.add_argument("--capacity-mib", type=int, default=2048, help="S")
    parser.add_argument("--period", type=float, default=60.0, help="seconds; bandwidths follow, so that their ratios are the papers'")
    parser.add_argument("--periods", type=int, default=1, help="measured, after one in which DWPP is learned")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="a small S and only the cells that the papers' claims rest on")
    parser.add_argument("--only", help="cells such as 1.9/medium/bbos, separated by commas; or restarts, direct, rates")
    parser.add_argument("--work", type=Path, help="where the images of the devices go")
    parser.add_argument("--out", type=Path, default=Path("oversubscription-results"))
    args = parser.parse_args()
    if args.quick:
        args.capacity_mib, args.period = 640, 20.0
    return args


def scaled(args):
    capacity = args.capacity_mib << 20
    factor = capacity / PAPER_S * PAPER_PERIOD_S / args.period
    return capacity, {name: value * factor for name, value in PAPER.items()}


def cells(args):
    if args.only:
        names = [name.split("/") for name in args.only.split(",") if "/" in name]
        return [(float(d), c, p) for d, c, p in names]
    if args.quick:
        return [(1.9, "medium", p) for p in ("bbos", "maxbw", "maxeff")]
    return [(d, c, p) for d in (1.3, 1.6, 1.9) for c in CONGESTION for p in POLICIES]


def wants(args, what):
    return what in args.only.split(",") if args.only else True


def checkpoint(args, forebay, period, jobs, size, congestion, rates):
    """One period: every application writes one version. Returns what each measured."""
    gap_s = args.period / jobs * CONGESTION[congestion]
    start_s = time.monotonic() + 2.0 + jobs * 0.04
    children = []
    for job in range(jobs):
        directory = forebay.mount / f"app{job:03d}"
        directory.mkdir(exist_ok=True)
        command = [sys.executable, HERE / "job.py", directory / f"ckpt-{period:04d}.dat", size, start_s + job * gap_s,
                   CHUNK_BYTES, rates["bw_min"]]
        children.append(subprocess.Popen([str(c) for c in command], stdout=subprocess.PIPE, start_new_session=True))
    results = []
    for job, child in enumerate(children):
        out, _ = child.communicate(timeout=1200)
        if child.returncode != 0:
            raise Failure(f"job {job} failed")
        results.append({"application": f"app{job:03d}", "version": period, **json.loads(out)})
        results[-1]["arrive_s"] -= start_s
    left_s = start_s + args.period - time.monotonic()
    time.sleep(max(0.0, left_s))
    return results


def mtbfs(jobs, seed):
    """Uniform in 0 to 50 minutes as in the papers, but at least one: the rank is what matters."""
    draw_ = random.Random(seed)
    return {f"app{job:03d}": round(draw_.uniform(60, 3000)) for job in range(jobs)}


def window_errors(samples, key, limits, name):
    """Relative errors over every 10 s in which one limit was in force throughout: what reached the device against the limit."""
    errors = []
    for i, first in enumerate(limits):
        same = [s for s in limits[i:] if s["at_s"] - first["at_s"] <= 10.6]
        if same[-1]["at_s"] - first["at_s"] < 9.6 or any(s[name] is None or s[name] != first[name] for s in same) or not first[name]:
            continue
        near = lambda at_s: min(samples, key=lambda s: abs(s["at_s"] - at_s))
        begin, end = near(first["at_s"]), near(first["at_s"] + 10)
        seen = (end[key] - begin[key]) / (end["at_s"] - begin["at_s"])
        errors.append(seen / first[name] - 1)
    return errors


def held_rates(args):
    """How well limits are held where the devices could do three times as much: more is expected than can be served, so that both are
    constant, and three writers never stop."""
    capacity, rates = scaled(args)
    slack = {name: value * 3 for name, value in rates.items()}
    limits = []
    with tempfile.TemporaryDirectory(prefix="forebay-oversub-", dir=args.work) as work:
        options = {"engine": {"period": f"{args.period}s"}}
        forebay = Forebay(args.forebay, Path(work), rates, capacity, options, {}, devices=slack)
        try:
            span_s = args.period * 3.2
            command = [sys.executable, HERE / "stream.py", forebay.mount]
            writers = [subprocess.Popen([str(c) for c in (*command, n, span_s)]) for n in range(3)]
            while any(writer.poll() is None for writer in writers):
                time.sleep(0.5)
                plan = forebay.status()["plan"]
                limits.append({"at_s": time.monotonic(), "checkpoint": plan["checkpoint_limit_bytes_per_s"],
                               "demotion": plan["demotion_limit_bytes_per_s"]})
        finally:
            forebay.close()
    result = {kind: window_errors(forebay.samples, key, limits, kind)
              for kind, key in (("checkpoint", "buffer_bytes"), ("demotion", "pfs_bytes"))}
    for kind, errors in result.items():
        worst = max(map(abs, errors), default=float("nan"))
        say(f"{kind}: {len(errors)} windows of 10 s, worst error {worst:.1%}")
    return result


def measure(args, dwpp, congestion, policy, extra=None, watch=None):
    capacity, rates = scaled(args)
    size = capacity // CHECKPOINTS_PER_S
    jobs = round(dwpp * CHECKPOINTS_PER_S)
    options = {"policy": policy, "engine": {"period": f"{args.period}s", "share": size, **(extra or {})}}
    with tempfile.TemporaryDirectory(prefix="forebay-oversub-", dir=args.work) as work:
        forebay = Forebay(args.forebay, Path(work), rates, capacity, options, mtbfs(jobs, args.seed))
        try:
            checkpoint(args, forebay, 0, jobs, size, congestion, rates)
            forebay.settle()
            before = forebay.status()
            results = []
            for period in range(1, args.periods + 1):
                results += checkpoint(args, forebay, period, jobs, size, congestion, rates)
            status = forebay.status()
            cell = {"dwpp": dwpp, "congestion": congestion, "policy": policy, "jobs": results,
                    "plan": before["plan"], "capacity_bytes": capacity, "rates": rates,
                    "demoted_bytes": status["demoted_bytes_total"] - before["demoted_bytes_total"],
                    "waited_writes": status["waited_writes_total"] - before["waited_writes_total"],
                    "direct_files": status["direct_files_total"] - before["direct_files_total"]}
            if watch:
                cell.update(watch(forebay, jobs))
        except BaseException:
            print(forebay.log(), file=sys.stderr)
            raise
        finally:
            forebay.close()
    total = lambda key: sum(j[key] for j in results)
    say(f"{dwpp} S {congestion:6} {policy:9}: wait {total('wait_s'):7.1f} s, stall {total('stall_s'):7.1f} s, "
        f"execution {total('execution_s'):7.1f} s, {cell['waited_writes']} writes waited for space")
    return cell


def restarts(args):
    """Failures with probability ∝ 1/MTBF, restarted from the newest version: found in the buffer or not."""
    def fail(forebay, jobs):
        known = mtbfs(jobs, args.seed)
        names = list(known)
        dice, hits, count = random.Random(args.seed + 1), 0, 200
        newest = {n: sorted((forebay.mount / n).iterdir())[-1] for n in names}
        resident = {n: any(t.startswith("ssd") for t in forebay.where(newest[n])[0]["tiers"]) for n in names}
        for name in dice.choices(names, weights=[1 / known[n] for n in names], k=count):
            hits += resident[name]
        return {"hit_ratio": hits / count}
    return {placement: measure(args, 1.9, "low", "bbos", {"placement": placement}, fail)["hit_ratio"]
            for placement in ("bbos", "fifo", "lru")}


def say(text):
    print(text, flush=True)


def main():
    args = arguments()
    args.out.mkdir(parents=True, exist_ok=True)
    args.forebay = args.forebay.resolve()
    capacity, rates = scaled(args)
    say(f"S {capacity >> 20} MiB, period {args.period} s, " + ", ".join(f"{n} {r / 1e6:.1f} MB/s" for n, r in rates.items()))
    measured = [measure(args, *cell) for cell in cells(args)]
    report = {"parameters": {"capacity_bytes": capacity, "period_s": args.period, "seed": args.seed, **rates}, "cells": measured,
              "jobs": [{"cell": f"{c['dwpp']}/{c['congestion']}/{c['policy']}", **j} for c in measured for j in c["jobs"]]}
    if wants(args, "direct"):
        pair = {name: measure(args, 1.9, "medium", "bbos", {"direct": on}) for name, on in (("with", True), ("without", False))}
        report["direct"] = {n: {"demoted_bytes": c["demoted_bytes"], "direct_files": c["direct_files"]} for n, c in pair.items()}
    if wants(args, "rates"):
        report["held_rates"] = held_rates(args)
    if wants(args, "restarts"):
        report["hit_ratios"] = restarts(args)
        report["hit_ratio"] = report["hit_ratios"]["bbos"]
    (args.out / "results.json").write_text(json.dumps(report, indent=1))
    (args.out / "tables.md").write_text(tables(report))
    draw(report, args.out)
    say((args.out / "tables.md").read_text())


if __name__ == "__main__":
    try:
        main()
    except Failure as failure:
        sys.exit(f"oversubscription: {failure}")
