#!/usr/bin/env python3
"""Measures `forebay server` and `forebay mount` over a network: several sockets, beside iperf3, GlusterFS and JuiceFS, in one run.

The nodes are network namespaces of this machine. See ../README.md. Needs root, ip(8), iperf3 and, for the comparison, GlusterFS, JuiceFS and Redis.
"""

import argparse
import json
import os
import shutil
import statistics
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(1, str(HERE.parent))

import capped  # noqa: E402
import figure  # noqa: E402
import uncapped  # noqa: E402
from report import GIB, MIB, print_report, table  # noqa: E402
from systems import Failure, Programs, ROOT, say, tier_directory, workspace  # noqa: E402

from machine import clean_exit_on_signals  # noqa: E402

SECTIONS = ["capped", "bandwidth", "again", "creates", "local"]
WARM_UP_TURNS = 1


def numbers(text):
    try:
        found = [int(word) for word in text.split(",")]
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"no numbers: {text!r} (such as 1,8)") from error
    if min(found) < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1: {text!r}")
    return found


def sections(text):
    names = text.split(",")
    if wrong := [name for name in names if name not in SECTIONS]:
        raise argparse.ArgumentTypeError(f"no such section: {', '.join(wrong)} (there are {', '.join(SECTIONS)})")
    return names


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--forebay", type=Path, default=ROOT / "target/release/forebay", help="the binary to measure")
    parser.add_argument("--only", type=sections, default=SECTIONS, metavar="A,B", help=f"of {', '.join(SECTIONS)}")
    parser.add_argument("--repeat", type=int, default=5, help="repetitions of each measurement (5)")
    parser.add_argument("--connections", type=numbers, default=capped.CONNECTIONS, metavar="N,N", help="capped: (1,2,4,8)")
    parser.add_argument("--threads", type=numbers, default=capped.THREADS, metavar="N,N", help="capped: processes (1,4,8,16)")
    parser.add_argument("--rate-mbit", type=int, default=1000, help="capped: Mbit/s of a socket in each direction, 8 at least (1000)")
    parser.add_argument("--mib", type=int, default=256, help="uncapped: MiB per client or process (256)")
    parser.add_argument("--files", type=int, default=4000, help="creates: files per client (4000)")
    parser.add_argument("--work", type=Path, help="where temporary directories go, and with them the PFS")
    parser.add_argument("--bin-dir", help="where bench-load is (target/release)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="write bandwidth over connections there")
    args = parser.parse_args()
    if min(args.repeat, args.mib, args.files) < 1:
        parser.error("--repeat, --mib and --files must be at least 1")
    if args.rate_mbit < 8:
        parser.error("--rate-mbit must be at least 8")
    args.bytes, args.rate = args.mib * MIB, args.rate_mbit * 1_000_000 // 8
    return args


class Bench:
    """One run: where it works and what it has found."""

    def __init__(self, args, base, tier, programs):
        self.args, self.base, self.tier, self.programs = args, base, tier, programs
        self.has_gluster = all(shutil.which(name) for name in ("glusterd", "gluster", "glusterfs"))
        self.has_juice = all(shutil.which(name) for name in ("juicefs", "redis-server", "redis-cli"))
        self.results = {"series": [], "memory": [], "verdicts": []}
        self.capped = None

    def turns(self, section, times=1):
        """The numbers of the repetitions; below zero for those that do not count."""
        for turn in range(-WARM_UP_TURNS, self.args.repeat * times):
            load = os.getloadavg()[0]
            say(f"{section}: " + (f"{turn + 1} of {self.args.repeat * times}" if turn >= 0 else "warm-up") + f", load {load:.1f}")
            yield turn

    def add(self, *series):
        self.results["series"] += series
        for each in series:
            self.results["verdicts"] += each.verdicts()


def check(args):
    if os.geteuid() != 0:
        raise Failure("it makes network namespaces and mounts; run it as root")
    for program in ("ip", "nsenter", "iperf3", "ss"):
        if not shutil.which(program):
            raise Failure(f"{program} is missing: apt-get install iproute2 util-linux iperf3")
    if not args.forebay.exists():
        raise Failure(f"{args.forebay} is missing: cargo build --release -p forebay")


def measure(args):
    check(args)
    programs = Programs(args.bin_dir)
    with workspace("forebay-mulconn-", args.work) as base, tier_directory(base, 4 * GIB) as tier:
        bench = Bench(args, base, tier, programs)
        if not bench.has_gluster:
            say("GlusterFS is missing (apt-get install glusterfs-server glusterfs-client): measured without it")
        if "creates" in args.only and not bench.has_juice:
            say("JuiceFS or Redis is missing (../README.md says where from): creates are measured without it")
        for name in args.only:
            if name == "capped":
                bench.capped = capped.measure(bench)
                bench.results["verdicts"] += bench.capped.verdicts()
            else:
                getattr(uncapped, name)(bench)
    return bench


def print_capped(found):
    """Medians in MB/s, a column for each number of connections, and the ratio of the most to one."""
    across = sorted({key[3] for key in found.rates})
    rows = []
    for phase in ("write", "read"):
        streams = [statistics.median(found.reference[phase, count]) for count in across]
        rows.append([phase, "iperf3, a stream each", "-", *(f"{value / 1e6:,.0f}" for value in streams), f"{streams[-1] / streams[0]:.2f}"])
        for distribution in capped.DISTRIBUTIONS:
            for threads in sorted({key[2] for key in found.rates}):
                values = [statistics.median(found.rates[phase, distribution, threads, count]) for count in across]
                rows.append([phase, distribution, threads, *(f"{value / 1e6:,.0f}" for value in values), f"{values[-1] / values[0]:.2f}"])
    head = ["MB/s", "distribution", "threads", *(f"{count} conn." for count in across), f"{across[-1]}/{across[0]}"]
    print(table(head, rows))


def facts_of(bench, machine):
    found = {"machine": machine, **bench.results, "series": [series.facts() for series in bench.results["series"]]}
    if bench.capped:
        found["capped"] = [{"phase": phase, "distribution": distribution, "threads": threads, "connections": count, "bytes_per_s": values}
                           for (phase, distribution, threads, count), values in bench.capped.rates.items()]
        found["capped_reference"] = [{"phase": phase, "streams": count, "bytes_per_s": values}
                                     for (phase, count), values in bench.capped.reference.items()]
    return found


def main():
    args = arguments()
    system = os.uname()
    machine = {"kernel": system.release, "cpus": os.cpu_count(), "load_average_before": os.getloadavg()}
    try:
        with clean_exit_on_signals():
            bench = measure(args)
    except KeyboardInterrupt:
        say("interrupted; cleaned up")
        return 130
    except (Failure, OSError) as error:
        print(f"mulconn: {error}", file=sys.stderr)
        return 1
    machine["load_average_after"] = os.getloadavg()
    if bench.capped:
        print_capped(bench.capped)
        if args.svg:
            args.svg.write_text(figure.draw(bench.capped), encoding="utf-8")
    print_report(bench.results)
    if args.json:
        args.json.write_text(json.dumps(facts_of(bench, machine), indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
