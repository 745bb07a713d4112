#!/usr/bin/env python3
"""IOR with a rank on each of several nodes: shared files and one of each rank, and all that is written is compared.

    python3 tests/cluster/ior.py --ior DIR/src/ior [--forebay BIN] [--ranks 4] [--only NAME,...] [--mpiio]

Each rank sees the mount of its own node under one and the same path: it runs in a mount namespace of its own. Every
case is `ior -w -W -r -R`: written, read and compared by who has written it, and read and compared once more, with `-C`
by another rank. Needs root and Open MPI's mpirun. Exits 3 if IOR finds an error or a warning. What MPI-IO does
(`--mpiio`) is reported and not judged.
"""

import argparse
import re
import shutil
import sys
import time
import typing
from pathlib import Path

from cluster import ROOT, Failure, cluster, say
from machine import clean_exit_on_signals, run, workspace

CASE_SECONDS_MAX = 170
UNALIGNED = ["-t", "47008", "-b", "611104", "-s", "5"]
SMALL = ["-t", "520", "-b", "26000", "-s", "4"]
ALIGNED = ["-t", "1m", "-b", "8m", "-s", "2"]
RANK = """mount --make-rprivate / && mount --bind "$1$((OMPI_COMM_WORLD_RANK + 1))" "$2" && shift 2 && exec "$@" """
WRONG = re.compile(r"WARNING|ERROR|incorrect|[1-9][0-9]* errors", re.IGNORECASE)
# IOR says so of each call that its way by mappings leaves to the file system.
NO_MATTER = "assuming POSIX-based backend"
RATE = re.compile(r"^(write|read) +([0-9.]+)", re.MULTILINE)


class Case(typing.NamedTuple):
    name: str
    words: list
    judged: bool = True


def cases():
    """Names say what is shared, how it is cut, and who reads."""
    made = []
    for kind, of_kind in (("shared", []), ("own", ["-F"])):
        for cut, of_cut in (("aligned", ALIGNED), ("unaligned", UNALIGNED), ("small", SMALL)):
            for reader, of_reader in (("same", []), ("shifted", ["-C"])):
                made.append(Case(f"{kind}-{cut}-{reader}", ["-a", "POSIX", *of_kind, *of_cut, *of_reader]))
    for reader, of_reader in (("fsync", ["-e"]), ("random", ["-Z", "-X", "7"]), ("direct", ["--posix.odirect", "-C"])):
        made.append(Case(f"shared-aligned-{reader}", ["-a", "POSIX", *ALIGNED, *of_reader]))
    made.append(Case("shared-unaligned-offsets", ["-a", "POSIX", "-z", "--random-offset-seed=5", *UNALIGNED]))
    # A page that two ranks store into may lose one of the two (docs/semantics.md, not promised yet): no unaligned one.
    made.append(Case("shared-aligned-mapped", ["-a", "MMAP", "-e", "-C", *ALIGNED]))
    return made


def of_mpiio():
    made = []
    for cut, of_cut in (("aligned", ALIGNED), ("unaligned", UNALIGNED)):
        for way, of_way in (("alone", []), ("together", ["-c"])):
            made.append(Case(f"mpiio-{cut}-{way}", ["-a", "MPIIO", "-C", *of_way, *of_cut], judged=False))
    return made


def perform(case, args, mounts, point):
    """What IOR says of a case; raises if it finds anything wrong."""
    # Of another path than the ranks' own, nothing is shared but the mounts.
    file = point / case.name
    ranks = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--mca", "btl", "self,vader", "--mca", "io", "romio321",
             "-n", str(args.ranks), "unshare", "--mount", "sh", "-c", RANK, "rank", f"{mounts}", point]
    words = [args.ior, "-w", "-W", "-r", "-R", "-g", "-i", str(args.repetitions), *case.words, "-o", file]
    began = time.monotonic()
    done = run([*ranks, *words], check=False, timeout_s=CASE_SECONDS_MAX, cwd="/")
    told = done.stdout + done.stderr
    wrong = [line.strip() for line in told.splitlines() if WRONG.search(line) and NO_MATTER not in line]
    if done.returncode or wrong:
        raise Failure(f"{case.name}: exit {done.returncode}: {' '.join(str(word) for word in words)}: "
                      f"{'; '.join(wrong[:4]) or told.strip()[-300:]}")
    rates = {}
    for way, rate in RATE.findall(done.stdout):
        rates[way] = max(rates.get(way, 0.0), float(rate))
    if set(rates) != {"write", "read"}:
        raise Failure(f"{case.name}: IOR tells no figures: {told.strip()[-300:]}")
    print(f"ior: {case.name}: no error in {time.monotonic() - began:.0f} s; written {rates['write']:.0f} MiB/s, "
          f"read {rates['read']:.0f} MiB/s", flush=True)


def go(args):
    chosen = [case for case in cases() + (of_mpiio() if args.mpiio else []) if not args.only or case.name in args.only]
    failed = []
    with workspace("forebay-ior-") as base:
        point = base / "bb"
        point.mkdir()
        with cluster(args.forebay, base, args.ranks, args.dram, "1GiB") as running:
            for case in chosen:
                try:
                    perform(case, args, base / "mnt", point)
                except Failure as error:
                    print(f"ior: {'WRONG' if case.judged else 'not judged'}: {error}", flush=True)
                    failed += [case.name] if case.judged else []
            if errors := running.status()["errors"]:
                failed.append(f"status shows {errors[:3]}")
            running.finish()
            left = sorted(path.name for path in (base / "pfs").iterdir())
            if left:
                failed.append(f"left on the PFS: {left[:5]}")
    if failed:
        raise Failure(f"{len(failed)} of {len(chosen)} cases are wrong: {', '.join(failed)}")
    print(f"ior: {len(chosen)} cases on {args.ranks} nodes, no error", flush=True)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ior", type=Path, required=True, help="the program, built from github.com/hpc/ior")
    parser.add_argument("--forebay", type=Path, default=ROOT / "target/release/forebay", help="the binary to test")
    parser.add_argument("--ranks", type=int, default=4, help="nodes, with a rank each (4)")
    parser.add_argument("--repetitions", type=int, default=2, help="of each case (2)")
    parser.add_argument("--dram", default="64MiB", help="memory of the server: less than a case writes (64MiB)")
    parser.add_argument("--only", type=lambda text: text.split(","), help="names of cases")
    parser.add_argument("--mpiio", action="store_true", help="also the cases of MPI-IO, which are not judged")
    args = parser.parse_args()
    known = {case.name for case in cases() + of_mpiio()}
    if unknown := set(args.only or []) - known:
        parser.error(f"no such case: {', '.join(sorted(unknown))}; there are {', '.join(sorted(known))}")
    args.ior, args.forebay = args.ior.resolve(), args.forebay.resolve()
    for program in (args.ior, args.forebay):
        if not program.is_file():
            parser.error(f"{program} is not there")
    if not shutil.which("mpirun"):
        parser.error("mpirun is not there: apt-get install openmpi-bin")
    return args


def main():
    args = arguments()
    try:
        with clean_exit_on_signals():
            go(args)
    except KeyboardInterrupt:
        return 130
    except Failure as error:
        say(f"ior: {error}")
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
