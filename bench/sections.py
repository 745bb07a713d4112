"""What is measured: bandwidth, metadata, draining, memory. Each section takes a `Bench` and adds to its results."""

import contextlib
import os
import random
import shutil
import string
import time

from report import GIB, MIB, Series, verdict
from systems import Bare, Failure, Native, Product, memory_kib, run, say

# The kernel may answer from its own memory for a second; a pause longer than that makes every system answer itself.
SETTLE_MS = 1100
IDLE_SETTLE_S = 2.0
FILES_IN_MEMORY_TEST = 100_000
SMALL_FILE_BYTES = 4096
IDLE_KIB_MAX = 100 * 1024
BYTES_PER_FILE_MAX = 1024
# Forebay keeps room free and caps dirty bytes; the measurements shall meet neither limit.
DRAM_HEADROOM = 2.5
# Before the first counted turn, so that no system pays for memory that the machine has not touched yet.
WARM_UP_TURNS = 1
# Bandwidth takes a second a turn and suffers most from whatever else uses the memory bus: more turns.
BANDWIDTH_TIMES = 3


class Bench:
    """One run: where it works, what it measures, and what it has found."""

    def __init__(self, args, base, tier, pfs, programs):
        self.args, self.base, self.tier, self.pfs, self.programs = args, base, tier, pfs, programs
        self.results = {"series": [], "memory": [], "verdicts": []}

    @contextlib.contextmanager
    def systems(self, section, dram_bytes):
        """Native, bare and Forebay, all up at once, so that their repetitions can alternate."""
        with contextlib.ExitStack() as stack:
            yield [stack.enter_context(system) for system in self._make(section, dram_bytes)]
        shutil.rmtree(self.tier / section)

    def _make(self, section, dram_bytes):
        tier, base = self.tier / section, self.base / section
        yield Native(tier / "native")
        yield Bare(self.programs, tier / "bare", base / "bare", self.args.bare_options)
        if self.args.forebay:
            yield self.product(section, dram_bytes)

    def product(self, section, dram_bytes):
        return Product(self.args.forebay, self.base / section / "forebay", self.pfs / section,
                       int(dram_bytes), self.args.forebay_options)

    def turns(self, section, times=1):
        """The numbers of the repetitions; below zero for those that do not count."""
        count = self.args.repeat * times
        for turn in range(-WARM_UP_TURNS, count):
            say(f"{section}: " + (f"{turn + 1} of {count}" if turn >= 0 else "warm-up"))
            yield turn

    def add(self, *series):
        self.results["series"] += series
        for each in series:
            self.results["verdicts"] += each.verdicts()


def note(series, turn, system, values):
    """Shows what a system did in a turn, and keeps it when the turn counts."""
    say(f"  {system}: " + ", ".join(
        f"{name} {value * series[name].scale:,.2f} {series[name].unit}" for name, value in values.items()))
    if turn >= 0:
        for name, value in values.items():
            series[name].add(system, value)


def bandwidth(bench):
    """Two writers, a file each, 1 MiB requests, fresh files; then the same files read."""
    bytes_each, procs = bench.args.bytes, bench.args.procs
    goals = {("forebay", "bare"): 0.95}
    series = {phase: Series(f"{phase}, {procs} x {bytes_each / GIB:g} GiB", "GB/s", 1e-9, goals)
              for phase in ("write", "read")}
    with bench.systems("bandwidth", procs * bytes_each * DRAM_HEADROOM) as systems:
        for turn in bench.turns("bandwidth", BANDWIDTH_TIMES):
            for system in systems:
                folder = system.path / f"turn-{turn}"
                folder.mkdir()
                found = {}
                for phase in series:
                    found |= bench.programs.load(phase, folder, procs=procs, bytes=bytes_each)
                shutil.rmtree(folder)
                note(series, turn, system.name, {phase: each["bytes_per_s"] for phase, each in found.items()})
    bench.add(*series.values())


def metadata(bench):
    """Create + write 4 KiB + close, stat, unlink, in a directory per process."""
    files, procs = bench.args.files, bench.args.procs
    titles = {"create": "create + 4 KiB + close", "stat": "stat", "unlink": "unlink"}
    goals = {("forebay", "bare"): 0.5}
    series = {phase: Series(f"{title}, {procs} x {files:,}", "1000/s", 1e-3, goals)
              for phase, title in titles.items()}
    with bench.systems("metadata", max(GIB, procs * files * SMALL_FILE_BYTES * DRAM_HEADROOM)) as systems:
        for turn in bench.turns("metadata"):
            for system in systems:
                folder = system.path / f"turn-{turn}"
                folder.mkdir()
                found = bench.programs.load("meta", folder, procs=procs, files=files, settle_ms=SETTLE_MS)
                folder.rmdir()
                note(series, turn, system.name, {phase: each["ops_per_s"] for phase, each in found.items()})
    bench.add(*series.values())


def draining(bench):
    """From "all files closed" to "all on the PFS, durable", against `cp -a` + `sync` of the same files."""
    args = bench.args
    per_file = 128 * MIB if args.drain_bytes >= 512 * MIB else 16 * MIB
    big = {"procs": 2, "files": max(1, args.drain_bytes // (2 * per_file)), "bytes": per_file}
    small = {"procs": 2, "files": args.drain_files // 2, "bytes": SMALL_FILE_BYTES}
    total = {name: set_["procs"] * set_["files"] for name, set_ in (("big", big), ("small", small))}
    goals = {("forebay", "cp + sync"): 0.9}
    series = {
        "big": Series(f"drain {total['big']} x {per_file // MIB} MiB", "MB/s", per_file * total["big"] * 1e-6, goals),
        "small": Series(f"drain {total['small']:,} x 4 KiB", "files/s", total["small"], goals),
    }
    room = max(GIB, args.drain_bytes * DRAM_HEADROOM)
    with contextlib.ExitStack() as stack:
        source = stack.enter_context(Native(bench.tier / "draining"))
        product = stack.enter_context(bench.product("draining", room)) if args.forebay else None
        for turn in bench.turns("draining"):
            for kind, options in (("big", big), ("small", small)):
                name = f"{kind}-{turn}"
                elapsed = {"cp + sync": copy(bench, source.path, name, options)}
                if product:
                    elapsed[product.name] = stage_out(bench, product, name, options)
                for system, seconds in elapsed.items():
                    note(series, turn, system, {kind: 1.0 / seconds})
    shutil.rmtree(bench.tier / "draining")
    bench.add(*series.values())


def fill(bench, folder, options):
    folder.mkdir()
    if options["bytes"] > SMALL_FILE_BYTES:
        bench.programs.load("write", folder, **options)
    else:
        bench.programs.load("meta", folder, phases="create", **options)


def sync_target(bench):
    run(["sync", "-f", bench.pfs])


def check_copy(target, options):
    """Every file is there with all its bytes; else the time means nothing."""
    sizes = [os.path.getsize(os.path.join(folder, name)) for folder, _, names in os.walk(target) for name in names]
    expected = options["procs"] * options["files"]
    if sizes != [options["bytes"]] * expected:
        raise Failure(f"{target}: {len(sizes)} files, {sum(sizes)} bytes; expected {expected} of {options['bytes']}")


def copy(bench, source, name, options):
    fill(bench, source / name, options)
    target = bench.pfs / f"cp-{name}"
    sync_target(bench)
    begin = time.monotonic()
    run(["cp", "-a", source / name, target])
    sync_target(bench)
    elapsed = time.monotonic() - begin
    check_copy(target, options)
    shutil.rmtree(target)
    shutil.rmtree(source / name)
    sync_target(bench)
    return elapsed


def stage_out(bench, product, name, options):
    sync_target(bench)
    fill(bench, product.path / name, options)
    begin = time.monotonic()
    product.command("stage-out", "--wait", product.path / name)
    elapsed = time.monotonic() - begin
    check_copy(product.pfs / name, options)
    shutil.rmtree(product.path / name)
    sync_target(bench)
    return elapsed


def memory(bench):
    """Resident memory of the daemons: idle, and with many files in the burst buffer."""
    files = FILES_IN_MEMORY_TEST // (10 if bench.args.quick else 1)
    room = max(GIB, files * SMALL_FILE_BYTES * DRAM_HEADROOM)
    with bench.systems("memory", room) as systems:
        for system in systems:
            if system.name == "native":
                continue
            time.sleep(IDLE_SETTLE_S)
            idle = note_memory(bench, system, "idle", 0)
            bench.programs.load("meta", system.path, procs=2, files=files // 2, phases="create")
            time.sleep(IDLE_SETTLE_S)
            full = note_memory(bench, system, "full", files)
            per_file = (full["rss"] - idle["rss"]) * 1024 / files
            say(f"memory {system.name}: idle {idle['rss']:,} KiB, {per_file:,.0f} bytes per file")
            if system.name == "forebay":
                bench.results["verdicts"] += [
                    verdict("memory: forebay idle", f"{idle['rss']:,} KiB", f"<= {IDLE_KIB_MAX:,} KiB",
                            idle["rss"] <= IDLE_KIB_MAX),
                    verdict("memory: forebay per file", f"{per_file:,.0f} bytes", f"<= {BYTES_PER_FILE_MAX:,} bytes",
                            per_file <= BYTES_PER_FILE_MAX)]
            for rank in range(2):
                shutil.rmtree(system.path / f"rank-{rank}")
            memory_of_names(bench, system, files)


def memory_of_names(bench, system, files):
    """The same with names as programs make them: those of mktemp and of git's objects, all different."""
    time.sleep(IDLE_SETTLE_S)
    before = note_memory(bench, system, "before names", 0)
    names = random.Random(1)
    made = system.path / "names"
    made.mkdir()
    letters = string.ascii_letters + string.digits
    for number in range(files):
        if number % 2:
            name = "tmp." + "".join(names.choices(letters, k=10))
        else:
            digits = "".join(names.choices("0123456789abcdef", k=40))
            (made / digits[:2]).mkdir(exist_ok=True)
            name = f"{digits[:2]}/{digits[2:]}"
        (made / name).write_bytes(b"x" * SMALL_FILE_BYTES)
    time.sleep(IDLE_SETTLE_S)
    full = note_memory(bench, system, "names", files)
    per_file = (full["rss"] - before["rss"]) * 1024 / files
    say(f"memory {system.name}: {per_file:,.0f} bytes per file with names as programs make them")
    if system.name == "forebay":
        bench.results["verdicts"].append(
            verdict("memory: forebay per file, names of programs", f"{per_file:,.0f} bytes",
                    f"<= {BYTES_PER_FILE_MAX:,} bytes", per_file <= BYTES_PER_FILE_MAX))
    shutil.rmtree(made)


def note_memory(bench, system, state, files):
    pid = system.pid()
    if pid is None:
        raise Failure(f"{system.name}: no process id (STATE/forebay.pid) to look at")
    found = memory_kib(pid)
    bench.results["memory"].append({"system": system.name, "state": state, "files": files, **found})
    return found


ALL = {"bandwidth": bandwidth, "metadata": metadata, "draining": draining, "memory": memory}
