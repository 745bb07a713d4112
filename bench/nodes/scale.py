#!/usr/bin/env python3
"""What grows with nodes, files and clients: one metadata server, and at each count as many nodes with a data server and a mount each. Counts the
requests and messages of each operation, and looks at the metadata server's memory, threads, sockets and descriptors, and how many files all mounts
make in a second. Prints a table, with ratios to the first count, and what docs/scale.md reckons with: what one more client, data server or file costs.

Needs root. `sudo python3 bench/nodes/scale.py`
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import re
import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "mulconn"))

from drain import MIB, Cluster  # noqa: E402
from fleet import PORT, pid_in  # noqa: E402
from nodes import Failure, nodes, run  # noqa: E402
from report import table  # noqa: E402
from systems import memory_kib, say  # noqa: E402

FILE_BYTES = 4096
# What is let pass before counters are read: closes travel together, records are written, leases are renewed.
SETTLE_S = 1.0
# A look at a name that a client was shown counts for so long; a change within it recalls (`limits::SHOWN_FOR`).
SHOWN_FOR_S = 1.25
RECALLED_AT_A_TIME = 10
CARRIED_BYTES = 64 * MIB
SEGMENTS = re.compile(r"data_segs_(?:out|in):(\d+)")


def make(folder, count):
    for at in range(count):
        with open(folder / f"f{at}", "wb", buffering=0) as file:
            file.write(bytes(FILE_BYTES))


def make_empty(folder, count):
    for at in range(count):
        open(folder / f"e{at}", "wb", buffering=0).close()


def read(folder, count):
    for at in range(count):
        with open(folder / f"f{at}", "rb", buffering=0) as file:
            file.read(FILE_BYTES)


def look(folder, count):
    for at in range(count):
        os.stat(folder / f"f{at}")


def rename(folder, count):
    for at in range(count):
        os.rename(folder / f"f{at}", folder / f"g{at}")


def remove(folder, count):
    for at in range(count):
        os.unlink(folder / f"g{at}")


def in_processes(action, folders, count):
    """One process for each folder, all at once; seconds until the last one was done."""
    fork = multiprocessing.get_context("fork")
    gate, done = fork.Barrier(len(folders) + 1), fork.Queue()

    def one(folder):
        gate.wait()
        action(folder, count)
        done.put(time.monotonic())

    workers = [fork.Process(target=one, args=(folder,)) for folder in folders]
    for worker in workers:
        worker.start()
    gate.wait()
    begun = time.monotonic()
    for worker in workers:
        worker.join()
    if any(worker.exitcode for worker in workers):
        raise Failure(f"{action.__name__}: a process failed")
    return max(done.get() for _ in workers) - begun


class Watched:
    """A cluster with nothing mounted yet, and what is to be seen of its processes."""

    def __init__(self, cluster):
        self.cluster, self.base, self.count = cluster, cluster.base, len(cluster.nodes) - 1
        self.servers = [self._pid(number) for number in range(1, self.count + 2)]
        self.points = []

    def _pid(self, number):
        pid = pid_in(self.base / f"state{number}" / "forebay.pid", self.cluster.config)
        if pid is None:
            raise Failure(f"server {number} has no process")
        return pid

    def mount_all(self):
        self.points = [self.cluster.mount(number) for number in range(2, self.count + 2)]

    def mounts(self):
        """Their processes: what runs on a node and is no server."""
        found = (pid for node in self.cluster.nodes[1:] for pid in node.pids())
        return [pid for pid in found if pid not in self.servers and Path(f"/proc/{pid}/comm").read_text("ascii") == "forebay\n"]

    def requests(self):
        """Of all clients, as the metadata server has counted them."""
        words = [self.cluster.binary, "status", "--json", "--state", self.base / "state1"]
        return sum(client["requests_total"] for client in json.loads(run(words).stdout)["network"]["clients"])

    def messages(self):
        """TCP segments with data, both directions: of the clients' sockets to the metadata server, of its own to data servers, and of what
        else arrives at data servers. A request or reply that is small is one, and two that leave at once may share one."""
        found = {"clients": 0, "holders": 0, "peers": 0}
        for number, node in enumerate(self.cluster.nodes):
            lines = node.run("ss", "-tinHO", "state", "established").stdout.splitlines()
            for line in lines:
                local, peer = (word.rpartition(":") for word in line.split()[2:4])
                segments = sum(map(int, SEGMENTS.findall(line)))
                if number == 0:
                    found["clients" if local[2] == str(PORT) else "holders"] += segments
                elif local[2] == str(PORT) and peer[0] != self.cluster.nodes[0].address:
                    found["peers"] += segments
        return found

    def network_bytes(self):
        """In and out of the metadata server's node."""
        line = next(line for line in self.cluster.nodes[0].run("cat", "/proc/net/dev").stdout.splitlines() if "eth0:" in line)
        fields = line.partition(":")[2].split()
        return int(fields[0]) + int(fields[8])

    def looks(self):
        """Of the metadata server, and of the first data server."""
        return {name: facts(pid) for name, pid in (("metadata", self.servers[0]), ("data", self.servers[1]))}

    def cpu_s(self):
        return {"metadata": cpu_s(self.servers[:1]), "data": cpu_s(self.servers[1:]), "mounts": cpu_s(self.mounts())}


def facts(pid):
    names = [os.readlink(file) for file in Path(f"/proc/{pid}/fd").iterdir()]
    memory = memory_kib(pid)
    return {"rss_kib": memory["rss"], "anonymous_kib": memory["anonymous"], "threads": len(os.listdir(f"/proc/{pid}/task")),
            "descriptors": len(names), "sockets": sum(name.startswith("socket:") for name in names)}


def cpu_s(pids):
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def counted(watched, action, folder, count):
    """Requests and messages of one of so many operations, less what passes while nobody does anything."""
    def totals():
        return {"requests": watched.requests(), **watched.messages()}

    def passed(during):
        before, begun = totals(), time.monotonic()
        during()
        time.sleep(SETTLE_S)
        return {name: total - before[name] for name, total in totals().items()}, time.monotonic() - begun

    time.sleep(SETTLE_S)
    idle, idle_s = passed(lambda: time.sleep(SETTLE_S))
    found, found_s = passed(lambda: action(folder, count))
    return {name: max(0.0, found[name] - idle[name] / idle_s * found_s) / count for name in found}


def rename_seen(watched, folder, count):
    """Renames of names that every mount has looked at just before: what the renames alone send, for one."""
    others = [point / folder.name for point in watched.points[1:]]
    sent, begun = dict.fromkeys(("requests", *watched.messages()), 0), 0
    for first in range(0, count, RECALLED_AT_A_TIME):
        batch = range(first, first + RECALLED_AT_A_TIME)
        for other in others:
            for at in batch:
                os.stat(other / f"f{at}")
        before = {"requests": watched.requests(), **watched.messages()}
        begun = time.monotonic()
        for at in batch:
            os.rename(folder / f"f{at}", folder / f"g{at}")
        if time.monotonic() - begun > SHOWN_FOR_S / 2:
            raise Failure("the machine is too slow for names to be recalled")
        for name, total in {"requests": watched.requests(), **watched.messages()}.items():
            sent[name] += total - before[name]
    return {name: total / count for name, total in sent.items()}


def operations(watched, count):
    """Each once with names of the mount's own, and where another mount looks."""
    own, far = watched.points[0] / "counted", watched.points[1] / "counted"
    own.mkdir()
    found = {"create+close": counted(watched, make_empty, own, count)}
    found["create+write+close"] = counted(watched, make, own, count)
    found["open+read+close, same node"] = counted(watched, read, own, count)
    found["open+read+close, other node"] = counted(watched, read, far, count)
    found["stat, same node"] = counted(watched, look, own, count)
    found["stat, other node"] = counted(watched, look, far, count)
    found["stat, other node, again"] = counted(watched, look, far, count)
    found["rename"] = counted(watched, rename, own, count)
    found["unlink"] = counted(watched, remove, own, count)
    make(own, count)
    found["rename, all looked"] = rename_seen(watched, own, count - count % RECALLED_AT_A_TIME)
    return found


def carried(watched):
    """Bytes through the metadata server's network card for each byte that programs write on their own node, and that others read there."""
    own, far = watched.points[0] / "carried", watched.points[1] / "carried"
    block = os.urandom(MIB)
    found = {}

    def write():
        with open(own, "wb", buffering=0) as file:
            for _ in range(CARRIED_BYTES // MIB):
                file.write(block)
            os.fsync(file.fileno())

    def read_all():
        with open(far, "rb", buffering=0) as file:
            while file.read(MIB):
                pass

    for name, during in (("written on the own node", write), ("read on another node", read_all)):
        before = watched.network_bytes()
        during()
        found[name] = (watched.network_bytes() - before) / CARRIED_BYTES
    return found


def files_held(watched, total):
    """What the servers have of so many files: closed, twice as many, known to another mount, and open."""
    each = total // watched.count
    folders = [point / f"held-{point.name}" for point in watched.points]
    for folder in folders:
        folder.mkdir()
    # What the first files cost that later ones do not, for threads and tables are made once, is not of files.
    in_processes(make, folders, 256)
    time.sleep(2 * SETTLE_S)
    looks = [watched.looks()]
    for turn in ("1", "2"):
        more = [folder / turn for folder in folders]
        for folder in more:
            folder.mkdir()
        in_processes(make, more, each)
        time.sleep(2 * SETTLE_S)
        looks.append(watched.looks())
    in_processes(look, [watched.points[0] / folder.name / "2" for folder in folders[1:]], each)
    time.sleep(SETTLE_S)
    looks.append(watched.looks())
    with contextlib.ExitStack() as stack:
        for folder in folders:
            for at in range(each):
                stack.enter_context(open(folder / "1" / f"f{at}", "rb", buffering=0))
        time.sleep(SETTLE_S)
        looks.append(watched.looks())
    return {"made_files": 2 * each * watched.count, "opened_files": each * watched.count, "known_files": each * (watched.count - 1),
            **dict(zip(("before", "closed", "twice", "known", "open"), looks))}


def rates(watched, count, repeat):
    """Files that all mounts make in a second, and what a file takes of processors."""
    found = []
    for turn in range(repeat):
        folders = [point / f"rate-{turn}-{point.name}" for point in watched.points]
        for folder in folders:
            folder.mkdir()
        time.sleep(SETTLE_S)
        before = watched.cpu_s()
        took_s = in_processes(make, folders, count)
        time.sleep(SETTLE_S)
        after, files = watched.cpu_s(), count * len(folders)
        found.append({"creates_per_s": files / took_s, **{f"{name}_us": (after[name] - before[name]) / files * 1e6 for name in after}})
    return found


def measure(binary, work, count, args):
    with contextlib.ExitStack() as stack:
        base = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="forebay-scale-", dir=work)))
        base.chmod(0o755)
        for name in ("pfs", "flash"):
            (base / name).mkdir()
            run(["mount", "-t", "tmpfs", "none", base / name])
            stack.callback(run, ["umount", "-l", base / name], check=False)
        flashes = [base / "flash" / str(number) for number in range(count)]
        for flash in flashes:
            flash.mkdir()
        all_nodes = stack.enter_context(nodes(count + 1))
        # Nothing is sealed meanwhile: that asks data servers.
        cluster = Cluster(binary, base, all_nodes, flashes, 1024 * MIB, '[scrub]\nenabled = false\nseal_after = "1h"\n')
        stack.callback(cluster.__exit__)
        cluster.start()
        watched = Watched(cluster)
        time.sleep(SETTLE_S)
        found = {"nodes": count, "servers": watched.looks()}
        watched.mount_all()
        time.sleep(SETTLE_S)
        found["mounted"] = watched.looks()
        say(f"{count} nodes: {found['mounted']['metadata']}")
        found["operations"] = operations(watched, args.operations)
        say(f"{count} nodes: operations counted")
        found["carried"] = carried(watched)
        found["files"] = files_held(watched, args.files)
        say(f"{count} nodes: files looked at")
        found["rates"] = rates(watched, args.creates, args.repeat)
        return found


def per(found, amount, after, before, key="anonymous_kib"):
    """Bytes of the metadata server for one of so many."""
    return (found[after]["metadata"][key] - found[before]["metadata"][key]) * 1024 / found[amount]


def slope(all_found, stage, server, key):
    """What one more node adds: the straight line through all counts."""
    counts = [found["nodes"] for found in all_found]
    values = [found[stage][server][key] for found in all_found]
    return statistics.linear_regression(counts, values) if len(counts) > 1 else (float("nan"), float("nan"))


def show(all_found):
    first = all_found[0]
    rows = []
    for stage in ("servers", "mounted"):
        for server in ("metadata", "data"):
            for key in ("rss_kib", "anonymous_kib", "threads", "sockets", "descriptors"):
                values = [found[stage][server][key] for found in all_found]
                line = slope(all_found, stage, server, key)
                rows.append([f"{server} server, {'with mounts' if stage == 'mounted' else 'no mount'}: {key}",
                             *(f"{value} ({value / values[0]:.2f})" for value in values), f"{line[1]:,.0f} + {line[0]:,.1f} n"])
    for name in first["operations"]:
        for key, words in (("requests", "requests"), ("clients", "messages with clients"), ("holders", "messages with data servers"),
                           ("peers", "messages of mounts with data servers")):
            values = [found["operations"][name][key] for found in all_found]
            if max(values) >= 0.05:
                rows.append([f"{name}: {words}", *(f"{value:.2f}" for value in values), ""])
    for name in first["carried"]:
        values = [found["carried"][name] for found in all_found]
        rows.append([f"bytes through the metadata server's node, of one {name}", *(f"{value:.2f}" for value in values), ""])
    for words, after, before, amount in (("closed", "twice", "before", "made_files"), ("that another mount knows", "known", "twice", "known_files"),
                                         ("open", "open", "known", "opened_files")):
        rows.append([f"bytes of a file {words}", *(f"{per(found['files'], amount, after, before):,.0f}" for found in all_found), ""])
    for server in ("metadata", "data"):
        opened = [found["files"]["open"][server]["descriptors"] - found["files"]["known"][server]["descriptors"] for found in all_found]
        rows.append([f"descriptors of the {server} server for open files", *(f"{value}" for value in opened), ""])
    medians = {key: [statistics.median(turn[key] for turn in found["rates"]) for found in all_found] for key in first["rates"][0]}
    for key, values in medians.items():
        rows.append([f"creates: {key}", *(f"{value:,.0f} ({value / values[0]:.2f})" for value in values), ""])
    print(table(["", *(f"{found['nodes']} nodes" for found in all_found), "of n nodes"], rows))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--forebay", default="target/release/forebay", type=Path)
    parser.add_argument("--nodes", default="2,4,8", help="how many, one after the other; 2 or more (default: 2,4,8)")
    parser.add_argument("--operations", default=200, type=int, metavar="N", help="operations of a kind that are counted (default: 200)")
    parser.add_argument("--files", default=10000, type=int, metavar="N", help="files for memory, twice (default: 10000)")
    parser.add_argument("--creates", default=2000, type=int, metavar="N", help="files that each mount makes for the rate (default: 2000)")
    parser.add_argument("--repeat", default=3, type=int, help="turns of the rate; medians are printed (default: 3)")
    parser.add_argument("--work", default="/dev/shm", help="where everything is made, and removed (default: /dev/shm)")
    parser.add_argument("--json", type=Path, help="write the figures there, too")
    args = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("scale.py: needs root")
    counts = [int(word) for word in args.nodes.split(",")]
    if min(counts) < 2:
        parser.error("--nodes: 2 or more, for one mount looks at what another one made")
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    all_found = [measure(args.forebay.resolve(), args.work, count, args) for count in counts]
    show(all_found)
    if args.json:
        args.json.write_text(json.dumps(all_found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    try:
        main()
    except Failure as failure:
        sys.exit(f"scale.py: {failure}")
