#!/usr/bin/env python3
"""Runs POSIX suites against a real Forebay in front of an ext4 of its own, in the ways it serves files.

`passthrough`: the kernel reads and writes the objects by itself. `requests`: every read and write is a request, and the
tiers are so small that files have to move. `network`: the same behind a server that the mount reaches by TCP. `nodes`: three
nodes with a mount and a data server each; cases of pjdfstest go round the mounts, and fsx is beside steps on all three. Needs root;
README.md beside this file says what runs and how it is judged.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

from mpi import ior
from outside import ltp, xfstests
from place import place, say
from suites import ALL, HERE, SHORT

from machine import ROOT, Failure, clean_exit_on_signals, workspace

WAYS = ("passthrough", "requests", "network", "nodes")
# Without being told: on one node.
USUAL_WAYS = WAYS[:2]
# Built elsewhere; they run only where their folder is given.
OUTSIDE = {"xfstests": xfstests, "ltp": ltp, "ior": ior}


def names(known):
    def parse(text):
        given = text.split(",")
        if wrong := [name for name in given if name not in known]:
            raise argparse.ArgumentTypeError(f"no such name: {', '.join(wrong)} (there are {', '.join(known)})")
        return given
    return parse


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--forebay", type=Path, default=ROOT / "target/debug/forebay", help="the binary to test")
    parser.add_argument("--only", type=names(ALL), metavar="A,B", help=f"of {', '.join(ALL)}")
    parser.add_argument("--ways", type=names(WAYS), metavar="A,B", help=f"of {', '.join(WAYS)} (the first two)")
    parser.add_argument("--network", action="store_true", help="as --ways network: a server, and a mount that reaches it by TCP")
    parser.add_argument("--serial", action="store_true", help="one way after the other, not both at once")
    parser.add_argument("--quick", action="store_true", help="small amounts, and without --only the short suites only")
    parser.add_argument("--seed", type=int, default=1, help="the first seed of random operations (1)")
    parser.add_argument("--fsx-seeds", type=int, help="how many seeds (10)")
    parser.add_argument("--fsx-operations", type=int, help="operations for each (100000)")
    parser.add_argument("--tools", type=Path, default=ROOT / ".cache/bin", help="where pjdfstest and fsx are")
    parser.add_argument("--python", type=Path, default=ROOT / ".cache/venv-posix/bin/python", help="one with h5py and pytest")
    parser.add_argument("--work", type=Path, help="where temporary directories go")
    parser.add_argument("--xfstests", type=Path, metavar="DIR", help="run xfstests, which was built there")
    parser.add_argument("--ltp", type=Path, metavar="DIR", help="run LTP, which was installed there")
    parser.add_argument("--ior", type=lambda text: [Path(each) for each in text.split(",")], metavar="A,B",
                        help="run these programs ior, each built with MPICH or Open MPI, with MPI-IO")
    parser.add_argument("--cases", type=lambda text: text.split(","), metavar="A,B", help="of xfstests, LTP or MPI-IO, these only")
    parser.add_argument("--mpi", type=Path, default=ROOT / ".cache/mpi", help="where the tests of MPI-IO are")
    parser.add_argument("--json", action="store_true", help="results as JSON on standard output")
    args = parser.parse_args()
    if args.network and args.ways:
        parser.error("--network is a way: name it among --ways")
    args.ways = args.ways or (["network"] if args.network else list(USUAL_WAYS))
    outside = [name for name in OUTSIDE if getattr(args, name)]
    if args.only or not outside:
        args.only = args.only or list(SHORT if args.quick else ALL)
    args.only = (args.only or []) + outside
    args.suites = {**ALL, **OUTSIDE}
    args.fsx_seeds = args.fsx_seeds or (1 if args.quick else 10)
    args.fsx_operations = args.fsx_operations or (2000 if args.quick else 100_000)
    args.exclusions = tomllib.loads((HERE / "exclusions.toml").read_text(encoding="utf-8"))
    args.environment = environment
    args.forebay, args.tools = args.forebay.resolve(), args.tools.resolve()
    if not args.forebay.exists():
        parser.error(f"{args.forebay} is not there: make build, or --forebay")
    return args


def environment(**more):
    """Of the suites: the user's, without Forebay's settings and without colours."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith(("FOREBAY_", "GIT_"))}
    return {**kept, "NO_COLOR": "1", "LC_ALL": "C.UTF-8", **{name: str(text) for name, text in more.items()}}


def run_one(here, name, args):
    began = time.monotonic()
    result = {"way": here.way, "suite": name}
    try:
        result.update(ok=True, facts=args.suites[name](here, args))
    except (Failure, OSError) as error:
        result.update(ok=False, problem=str(error))
    result["seconds"] = round(time.monotonic() - began, 1)
    say(f"{here.way}: {name}: {line(result)} ({result['seconds']} s)")
    return result


def line(result):
    if not result["ok"]:
        return f"FAILED: {result['problem']}"
    return "ok: " + ", ".join(f"{name} {value}" for name, value in result["facts"].items())


def run_way(base, way, args):
    results = []
    with place(base, args.forebay, way) as here:
        for name in args.only:
            say(f"{way}: {name}: {args.suites[name].__doc__.splitlines()[0]}")
            results.append(run_one(here, name, args))
        began = time.monotonic()
        errors = here.forebay.status()["errors"]
        result = {"way": way, "suite": "no errors", "ok": not errors, "facts": {}, "seconds": 0.0}
        if errors:
            result["problem"] = f"status shows {errors[:3]}"
        result["seconds"] = round(time.monotonic() - began, 1)
        results.append(result)
    return results


def side_by_side(ways):
    """A process for each way, with these very arguments."""
    mine = [sys.executable, __file__, *sys.argv[1:], "--json", "--ways"]
    children = [subprocess.Popen([*mine, way], stdout=subprocess.PIPE) for way in ways]
    try:
        answers = [child.communicate()[0] for child in children]
    except BaseException:
        # Those who have not heard of it themselves; they clean up, which takes a moment.
        for child in children:
            child.send_signal(signal.SIGTERM)
        for child in children:
            child.wait()
        raise
    codes = {child.returncode for child in children}
    if not codes <= {0, 3}:
        raise Failure(f"a way came to no result (exit codes {sorted(codes)}); see above")
    return [result for answer in answers for result in json.loads(answer)]


def one_by_one(args):
    results = []
    with workspace("posix-", args.work) as base:
        base.chmod(0o755)
        for way in args.ways:
            results += run_way(base, way, args)
    return results


def skipped(reason):
    """As the tests in Rust say so (crates/testkit/src/skip.rs)."""
    print(f"posix: skipped: {reason}", file=sys.stderr)
    if path := os.environ.get("FOREBAY_SKIPPED"):
        with open(path, "a", encoding="utf-8") as file:
            file.write(f"tests/posix: {reason}\n")
    return 3 if os.environ.get("FOREBAY_NO_SKIP") == "1" else 0


def main():
    args = arguments()
    if os.geteuid() != 0:
        return skipped("it mounts file systems of its own, which only root may")
    try:
        with clean_exit_on_signals():
            apart = args.serial or len(args.ways) == 1
            results = one_by_one(args) if apart else side_by_side(args.ways)
    except KeyboardInterrupt:
        say("interrupted; cleaned up")
        return 130
    except (Failure, OSError) as error:
        print(f"posix: {error}", file=sys.stderr)
        return 1
    if args.json:
        print(json.dumps(results, indent=1))
    else:
        for result in results:
            print(f"{result['way']:<12} {result['suite']:<10} {result['seconds']:7.1f} s  {line(result)}")
    return 0 if all(result["ok"] for result in results) else 3


if __name__ == "__main__":
    sys.exit(main())
