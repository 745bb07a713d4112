#!/usr/bin/env python3
"""Measures Forebay against the tier's own directory and a bare pass-through FUSE file system, in one run.

Every measurement alternates between the systems; what counts is the ratios. See README.md beside this file.
"""

import argparse
import json
import os
import re
import sys
from pathlib import Path

import ratios
from many import many
from report import GIB, MIB, print_report
from sections import ALL as SECTIONS, Bench
from systems import Failure, Programs, ROOT, pfs_directory, say, tier_directory

from machine import clean_exit_on_signals, workspace

ALL = {**SECTIONS, "many": many}
# Takes minutes and 10 GiB of memory: only where it is asked for.
USUAL = list(SECTIONS)
UNITS = {"": 1, "KiB": 1 << 10, "MiB": MIB, "GiB": GIB, "KB": 10**3, "MB": 10**6, "GB": 10**9}


def size(text):
    match = re.fullmatch(r"(\d+)\s*([KMG]i?B)?", text)
    if not match:
        raise argparse.ArgumentTypeError(f"not a size: {text!r} (such as 512MiB)")
    return int(match[1]) * UNITS[match[2] or ""]


def sections(text):
    names = text.split(",")
    if wrong := [name for name in names if name not in ALL]:
        raise argparse.ArgumentTypeError(f"no such section: {', '.join(wrong)} (there are {', '.join(ALL)})")
    return names


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    product = parser.add_mutually_exclusive_group()
    product.add_argument("--forebay", type=Path, default=ROOT / "target/release/forebay", help="the binary to measure")
    product.add_argument("--without-forebay", dest="forebay", action="store_const", const=None,
                         help="the references only")
    parser.add_argument("--only", type=sections, default=USUAL, metavar="A,B",
                        help=f"of {', '.join(ALL)} (all but many)")
    parser.add_argument("--quick", action="store_true", help="small amounts, twice each: does it work?")
    parser.add_argument("--repeat", type=int, help="repetitions of each measurement (5)")
    parser.add_argument("--procs", type=int, default=2, help="load processes (2)")
    parser.add_argument("--bytes", type=size, help="bandwidth: bytes per process (1GiB)")
    parser.add_argument("--files", type=int, help="metadata: files per process (20000)")
    parser.add_argument("--drain-bytes", type=size, help="draining: bytes in big files (1GiB)")
    parser.add_argument("--drain-files", type=int, help="draining: small files (10000)")
    parser.add_argument("--many-files", type=int, default=1_000_000, help="many: undrained small files (1000000)")
    parser.add_argument("--work", type=Path, help="where temporary directories go, and with them the PFS of the runs")
    parser.add_argument("--bin-dir", help="where bare-passthrough and bench-load are (target/release)")
    parser.add_argument("--bare-options", type=str.split, default=[], metavar="'OPTIONS'",
                        help="of bare-passthrough, such as '--permissions'")
    parser.add_argument("--forebay-options", type=str.split, default=[], metavar="'OPTIONS'", help="of forebay up")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there too")
    parser.add_argument("--ratios", type=Path, metavar="FILE", help="write the ratios there, such as bench/baseline.json")
    parser.add_argument("--compare", type=Path, metavar="FILE", help="compare the ratios with those; exit 2 where one is worse")
    args = parser.parse_args()
    usual = (2, 64 * MIB, 2000, 128 * MIB, 1000) if args.quick else (5, GIB, 20_000, GIB, 10_000)
    for name, value in zip(("repeat", "bytes", "files", "drain_bytes", "drain_files"), usual):
        given = getattr(args, name)
        if given is not None and given < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1")
        setattr(args, name, given or value)
    if args.compare and not args.compare.exists():
        parser.error(f"{args.compare} is not there; make bench-baseline makes bench/baseline.json on a quiet machine")
    if args.forebay and not args.forebay.exists():
        parser.error(f"{args.forebay} is not there; build it, or use --without-forebay")
    return args


def machine_facts():
    system = os.uname()
    return {"kernel": system.release, "cpus": os.cpu_count(), "load_average": os.getloadavg(),
            "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")}


def measure(args):
    programs = Programs(args.bin_dir)
    # Native, bare and the source of the copy are never full at the same time.
    tier_bytes = max(2 * args.procs * args.bytes, 2 * args.drain_bytes, 2 * GIB)
    # Sparse: it takes what is written. With room for what Forebay may write through when its memory is full.
    pfs_bytes = 4 * GIB + 2 * tier_bytes
    if "many" in args.only:
        # An inode for each 16 KiB.
        pfs_bytes = max(pfs_bytes, 32 * 1024 * args.many_files)
    with (workspace("forebay-bench-", args.work) as base, tier_directory(base, tier_bytes) as tier,
          pfs_directory(base, pfs_bytes) as pfs):
        bench = Bench(args, base, tier, pfs, programs)
        for name in args.only:
            say(f"{name}: {ALL[name].__doc__.splitlines()[0]}")
            ALL[name](bench)
    return bench.results


def main():
    args = arguments()
    facts = machine_facts()
    say(f"{facts['cpus']} processors, kernel {facts['kernel']}, load {facts['load_average'][0]:.2f}")
    try:
        with clean_exit_on_signals():
            results = measure(args)
    except KeyboardInterrupt:
        say("interrupted; cleaned up")
        return 130
    except (Failure, OSError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    print_report(results)
    found = ratios.of(results, args, facts)
    worse = ratios.print_comparison(args.compare, found) if args.compare else []
    if args.ratios:
        ratios.write(args.ratios, found)
    if args.json:
        results["series"] = [series.facts() for series in results["series"]]
        args.json.write_text(json.dumps({"machine": facts, **results}, indent=1) + "\n", encoding="utf-8")
    return 2 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
