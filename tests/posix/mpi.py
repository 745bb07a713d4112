"""MPI-IO on the mount: the tests of MPICH's ROMIO and of its MPI-IO, by MPICH and by Open MPI, and IOR from a folder that is given.

Where there are several mounts, each rank is on one of them, in a mount namespace of its own that has it under the one path.
"""

import functools
import os
import re
import shutil
import signal
import subprocess
import time
import typing

from place import say

from machine import Failure, remove_tree, run

# Tests that write 4 bytes at a time to another node, each of them a request of a debug build, take minutes.
ONE_CASE_S = 600
# Those that write gigabytes, or compute on as much.
LONG_CASE_S = 900
# What takes longer is told.
SLOW_S = 10
# A program that fails on the mount has so many tries on the PFS itself to fail there, too: some fail now and then.
TRIES_ON_PFS = 3
RANKS = 4
# How each is started; more ranks than processors have to give way to each other.
OPENMPI = ["mpiexec.openmpi", "--allow-run-as-root", "--oversubscribe", "--mca", "btl", "self,vader", "--mca",
           "mpi_yield_when_idle", "1", "--mca", "io"]
LIBRARIES = {"romio": ("mpich", ["mpiexec.mpich"]), "ompio": ("openmpi", [*OPENMPI, "ompio"]),
             "romio321": ("openmpi", [*OPENMPI, "romio321"])}
# $1: the mounts, $2: where each rank has its own, $3: the folder in it.
ON_ITS_NODE = """mounts=$1 point=$2 folder=$3 && shift 3
if [ "$mounts" != "$point" ]; then
    set -f; IFS=:; words=$mounts; number=$((${PMI_RANK:-$OMPI_COMM_WORLD_RANK}))
    count=0; for mount in $words; do count=$((count + 1)); done
    own=0; for mount in $words; do [ $own = $((number % count)) ] && break; own=$((own + 1)); done
    mount --make-rprivate / && mount --bind "$mount" "$point" || exit
fi
cd "$point/$folder" && exec "$@"
"""


class Case(typing.NamedTuple):
    """A program of MPICH's source, its number of ranks, and its arguments; `{}` is a new file."""

    program: str
    ranks: int = RANKS
    words: tuple = ("-fname", "{}")
    # What the program says when all is well, small or large letters.
    well: str = "No Errors"
    long: bool = False


FILE_ONLY = ("{}",)
# As `runtests` of src/mpi/romio/test calls them, and those it does not call.
OF_ROMIO = [
    Case("simple"), Case("async"), Case("async-multiple"), Case("atomicity"), Case("coll_test"), Case("excl"), Case("file_info"),
    Case("i_noncontig", 2), Case("noncontig", 2), Case("noncontig_coll", 2), Case("noncontig_coll2"),
    Case("aggregation1", words=("-h", "-f", "{}")), Case("aggregation2", words=FILE_ONLY), Case("hindexed", words=FILE_ONLY),
    Case("misc"), Case("shared_fp"), Case("ordered_fp"), Case("split_coll"), Case("psimple"), Case("error", 1), Case("status", 1),
    Case("types_with_zeros", 2, FILE_ONLY), Case("darray_read", words=FILE_ONLY), Case("fmisc"), Case("fcoll_test"),
    Case("pfcoll_test"), Case("creat_excl"), Case("perf", well="Write bandwidth"), Case("coll_perf", well="Collective read bandwidth"),
    Case("fperf", well="Write bandwidth"), Case("external32", words=(), well="external32 datarep is BIG ENDIAN"),
    Case("big_extents", 1, FILE_ONLY, long=True), Case("large_file", 1, well="Data read back is correct", long=True),
]
# As `testlist` of test/mpi/io calls them: their files are in the folder they run in.
OF_MPI_IO = [Case(name, int(ranks), ()) for name, ranks in (pair.split(":") for pair in (
    "rdwrord:4 rdwrzero:4 getextent:2 setinfo:4 setviewcur:4 io_i_noncontig:2 io_async:4 async_any:4 userioerr:1 resized:1 "
    "resized2:1 hindexed_io:1 tst_fileview:1 zero_count:4 external32_derived_dtype:1 i_hindexed_io:1 i_rdwrord:4 "
    "i_setviewcur:4 i_aggregation1:4 i_aggregation2:4 i_coll_test:4 i_darray_read:4 i_hindexed:4 i_noncontig_coll:2 "
    "i_noncontig_coll2:4 i_types_with_zeros:2").split())]
OF_MPI_IO.append(Case("simple_collective", 1, FILE_ONLY))
# Of ROMIO: how it gathers small pieces. By itself it decides for each call.
HINTS = {
    "as they are": {},
    "sieved": {"romio_cb_write": "disable", "romio_cb_read": "disable", "romio_ds_write": "enable", "romio_ds_read": "enable"},
    # Two of the ranks gather, although all are on one machine.
    "collective": {"romio_cb_write": "enable", "romio_cb_read": "enable", "cb_nodes": "2", "cb_config_list": "*:2", "cb_buffer_size": "1048576"},
    "piece by piece": {"romio_cb_write": "disable", "romio_cb_read": "disable", "romio_ds_write": "disable", "romio_ds_read": "disable"},
}


class Runner:
    """Starts programs of MPI in a folder on the mounts, or on the PFS itself."""

    def __init__(self, here, args, name, mounts):
        self.here, self.args = here, args
        self.folder, _ = here.folder(name)
        self.point, self.mounts = here.mount, mounts
        if len(mounts) > 1:
            self.point = here.other / "bb"
            self.point.mkdir(exist_ok=True)
        self.bare = here.pfs / f"{name}-bare"
        self.bare.mkdir()
        self.hints_file = here.other / "hints"

    def run(self, starter, case, program, hints, bare=False, look=None):
        """Its exit code and all it said; the code is `None` if it came to no end. `look` gets its folder afterwards."""
        # The same name again and again, and a folder of its own: what a program left behind helps or harms no other.
        where = (self.bare if bare else self.folder) / f"{case.program}"
        where.mkdir()
        environment = self.args.environment(HOME=self.here.other)
        if hints:
            self.hints_file.write_text("".join(f"{name} {text}\n" for name, text in hints.items()), encoding="ascii")
            environment["ROMIO_HINTS"] = str(self.hints_file)
        point = self.bare.parent if bare else self.point
        mounts = [point] if bare or len(self.mounts) == 1 else self.mounts
        alone = [] if len(mounts) == 1 else ["unshare", "--mount"]
        words = [*starter, "-n", case.ranks, *alone, "sh", "-c", ON_ITS_NODE, "rank", ":".join(str(mount) for mount in mounts), point,
                 f"{where.parent.name}/{where.name}", program, *(word.format("file") for word in case.words)]
        try:
            answer = ended(words, environment, ONE_CASE_S if not case.long else LONG_CASE_S)
            if look:
                look(where)
            return answer
        finally:
            remove_tree(where)


def ended(words, environment, seconds_max):
    """Runs a program of MPI; all its ranks end with it."""
    child = subprocess.Popen([str(word) for word in words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                             text=True, errors="replace", env=environment, cwd="/", start_new_session=True)
    try:
        told, _ = child.communicate(timeout=seconds_max)
        return child.returncode, told
    except subprocess.TimeoutExpired:
        return None, "no end"
    finally:
        if child.poll() is None:
            # It ends its ranks by itself, wherever they are.
            child.send_signal(signal.SIGTERM)
            try:
                child.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
        child.stdout.close()


def is_well(case, answer):
    code, told = answer
    return code == 0 and case.well.lower() in told.lower()


def first_wrong(attempt, is_right):
    """What the PFS itself answers when it fails, too; `None` where it does not."""
    return next((answer for answer in (attempt(bare=True) for _ in range(TRIES_ON_PFS)) if not is_right(answer)), None)


def short(answer):
    code, told = answer
    lines = [line.strip() for line in told.splitlines() if line.strip() and "Sorry!" not in line]
    return f"{'no end' if code is None else f'exit {code}'}: {'; '.join(lines[:3])[:300]}"


def several(here):
    """The mounts of the place; of a server on this machine, a second one."""
    if here.way == "network" and len(here.mounts) == 1:
        second = here.mount.parent / "mnt2"
        second.mkdir()
        here.forebay.mounts.append(second)
        here.forebay.show(second)
        here.mounts.append(second)
    return here.mounts


def prove_ranks_are_apart(runner, starter):
    """Each rank says on which device its folder is: that many mounts are used."""
    say_device = Case("devices", RANKS, ("-c", "%d", "."))
    code, told = runner.run(starter, say_device, shutil.which("stat"), {})
    devices = {line for line in told.split() if line.isdigit()}
    if code or len(devices) != len(runner.mounts):
        raise Failure(f"ranks on {len(runner.mounts)} mounts see the devices {devices}: exit {code}: {told[:300]}")


def programs_of(args, library):
    folder = args.mpi / LIBRARIES[library][0]
    if not (folder / "simple").exists():
        raise Failure(f"{folder} has no programs: scripts/setup.sh mpi")
    return folder


def hints_for(library, args):
    """All of them take long. OMPIO knows none, and the ROMIO in Open MPI is an older one of the same."""
    return {"as they are": {}} if args.quick or library != "romio" else HINTS


def perform(library, here, args):
    """All cases with one library; what fails on the PFS itself, too, is named and does not count."""
    folder = programs_of(args, library)
    left_out = args.exclusions["mpi"]
    runner = Runner(here, args, library, several(here))
    prove_ranks_are_apart(runner, LIBRARIES[library][1])
    passed, failed, as_on_pfs, missing = 0, [], [], []
    for kind, these in hints_for(library, args).items():
        for case in OF_ROMIO + OF_MPI_IO:
            name = case.program if kind == "as they are" else f"{case.program} ({kind})"
            if case.long and (args.quick or kind != "as they are"):
                continue
            if args.cases and case.program not in args.cases:
                continue
            if not (folder / case.program).exists():
                missing.append(case.program)
                continue
            attempt = functools.partial(runner.run, LIBRARIES[library][1], case, folder / case.program, these)
            began = time.monotonic()
            answer = attempt()
            if time.monotonic() - began > SLOW_S:
                say(f"{here.way}: {library}: {name}: {time.monotonic() - began:.0f} s")
            if is_well(case, answer):
                passed += 1
                continue
            if bare := first_wrong(attempt, functools.partial(is_well, case)):
                as_on_pfs.append(f"{name} ({short(bare)})")
            else:
                failed.append(f"{name}: {short(answer)}")
            say(f"{here.way}: {library}: {name} fails, {'and on the PFS' if bare else 'not on the PFS'}: {short(answer)}")
    passed += strided(library, runner, folder / "strided")
    unknown = sorted(set(missing) ^ {name.partition("@")[0] for name in left_out if name.endswith(f"@{LIBRARIES[library][0]}")})
    if unknown and not args.cases:
        failed.append(f"not built, or left out and built: {', '.join(unknown)}")
    if not passed:
        failed.append("nothing passed")
    if failed:
        raise Failure("; ".join(failed))
    return {"passed": passed, "mounts": len(runner.mounts), "as_on_the_pfs": as_on_pfs, "left_out": sorted(set(missing))}


BLOCK_BYTES, BLOCKS = 520, 400


def strided(library, runner, program):
    """One file of all ranks, block by block (examples/mpi-io): MPI_File_sync is an fsync, and the drained file is right."""
    # Open MPI's OMPIO takes no locks for its atomic mode, and the test of ROMIO that finds this fails on every file system.
    ways = [("together",), ("alone",)] + ([] if library == "ompio" else [("alone", "atomic")])
    expected = bytearray(RANKS * BLOCKS * BLOCK_BYTES)
    for at in range(BLOCKS * BLOCK_BYTES):
        block, rest = divmod(at, BLOCK_BYTES)
        for rank in range(RANKS):
            expected[(block * RANKS + rank) * BLOCK_BYTES + rest] = at * 31 + at // 251 + rank * 89 + 1 & 255

    def look(where, is_synced):
        path, on_pfs = where / "file", runner.here.pfs / where.relative_to(runner.here.mount) / "file"
        # Everywhere but by passthrough the level of the burst buffer is `pfs`.
        if is_synced and runner.here.way != "passthrough" and on_pfs.read_bytes() != expected:
            raise Failure(f"{path}: synced, and not so on the PFS")
        runner.here.drain(path)
        if on_pfs.read_bytes() != expected:
            raise Failure(f"{path}: the PFS has another content after the drain")

    for way in ways:
        case = Case("strided", RANKS, ("{}", f"{BLOCK_BYTES}", f"{BLOCKS}", *way))
        answer = runner.run(LIBRARIES[library][1], case, program, {}, look=functools.partial(look, is_synced="atomic" not in way))
        if not is_well(case, answer):
            raise Failure(f"strided {' '.join(way)}: {short(answer)}")
    return len(ways)


def romio(here, args):
    """The tests of ROMIO and of MPI-IO, by MPICH."""
    return perform("romio", here, args)


def ompio(here, args):
    """The same by Open MPI's own OMPIO."""
    return perform("ompio", here, args)


def romio321(here, args):
    """The same by the ROMIO in Open MPI."""
    return perform("romio321", here, args)


ALIGNED = ("-t", "1m", "-b", "4m", "-s", "2")
UNALIGNED = ("-t", "47008", "-b", "611104", "-s", "5")
SMALL = ("-t", "520", "-b", "26000", "-s", "4")
# Written, read and compared by who has written it, and once more by another rank.
CHECKED = ("-a", "MPIIO", "-w", "-W", "-r", "-R", "-C", "-e", "-o", "{}")
OF_IOR = {
    f"{cut}-{way}": Case("ior", RANKS, (*CHECKED, *of_cut, *of_way), well="Finished ")
    for cut, of_cut in (("aligned", ALIGNED), ("unaligned", UNALIGNED), ("small", SMALL))
    for way, of_way in (("alone", ()), ("together", ("-c",)), ("view", ("--mpiio.useFileView", "-c")), ("own", ("-F",)),
                        ("preallocated", ("--mpiio.preallocate", "-c")))
}
# No strided types: what IOR 4.0 compares there is wrong on every file system.
IOR_WRONG = re.compile(r"WARNING|ERROR|incorrect|[1-9][0-9]* errors", re.IGNORECASE)


def ior(here, args):
    """IOR by MPI-IO: shared files and own ones, each rank's part by itself and together, everything compared."""
    facts, failed = {}, []
    for program in args.ior:
        linked = run(["ldd", program]).stdout
        libraries = ["romio"] if "libmpich" in linked else ["ompio", "romio321"]
        if "libmpi" not in linked or libraries[0] in facts:
            raise Failure(f"{program} is built with neither MPICH nor Open MPI, or is a second one of these")
        for library in libraries:
            facts[library], wrong = ior_by(library, Runner(here, args, f"ior-{library}", several(here)), program.resolve(), args)
            failed += wrong
    if failed:
        raise Failure("; ".join(failed))
    return facts


def ior_by(library, runner, program, args):
    """What passed, and what fails on the PFS, too; and what failed here alone."""
    passed, failed, as_on_pfs = 0, [], []

    def is_right(answer):
        return is_well(next(iter(OF_IOR.values())), answer) and not IOR_WRONG.search(answer[1])

    prove_ranks_are_apart(runner, LIBRARIES[library][1])
    for kind, hints in hints_for(library, args).items():
        for name, case in OF_IOR.items():
            if args.cases and name not in args.cases:
                continue
            attempt = functools.partial(runner.run, LIBRARIES[library][1], case, program, hints)
            answer = attempt()
            if is_right(answer):
                passed += 1
                continue
            bare = first_wrong(attempt, is_right)
            wrong = [line.strip() for line in answer[1].splitlines() if IOR_WRONG.search(line)]
            problem = f"{library}: {name} ({kind}): exit {answer[0]}: {'; '.join(wrong[:3]) or answer[1][-300:].strip()}"
            (as_on_pfs if bare else failed).append(problem)
            say(f"{runner.here.way}: ior: fails, {'and on the PFS' if bare else 'not on the PFS'}: {problem}")
    return {"passed": passed, "mounts": len(runner.mounts), "as_on_the_pfs": as_on_pfs}, failed
