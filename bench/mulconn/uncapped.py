"""As fast as it goes: bandwidth beside iperf3 and GlusterFS, creates, and the mount on the server's own node."""

import contextlib

import iperf
from fleet import Cluster
from gluster import Gluster
from juice import Juice
from load import fresh, load, rate, remove, warm
from nodes import nodes
from report import GIB, MIB, Series
from sections import note
from systems import Native, Product

IPERF_S = 2
CLIENTS = 2
TIER_BYTES = 4 * GIB


@contextlib.contextmanager
def beside_others(bench, name, with_juice=False):
    """Server and client nodes, and of each system the mounts of the clients."""
    with contextlib.ExitStack() as stack:
        server, *clients = stack.enter_context(nodes(1 + CLIENTS))
        for node in (server, clients[0]):
            stack.enter_context(iperf.server(node))
        systems = {}
        if bench.has_gluster:
            gluster = stack.enter_context(Gluster(server, bench.base / f"gluster-{name}", TIER_BYTES))
            systems["gluster"] = [stack.enter_context(gluster.mount(node, node.name)) for node in clients]
        if with_juice and bench.has_juice:
            juice = stack.enter_context(Juice(server, bench.base / f"juice-{name}", TIER_BYTES))
            systems["juicefs"] = [stack.enter_context(juice.mount(node, node.name)) for node in clients]
        cluster = stack.enter_context(Cluster(bench.args.forebay, server, bench.base / name, TIER_BYTES))
        systems["forebay"] = [stack.enter_context(cluster.mount(node, node.name)) for node in clients]
        yield server, clients, systems


def bandwidth(bench):
    """1 and 2 clients, a writer each, 1 MiB requests; each client reads what another one has written."""
    size = bench.args.bytes
    goals = {("forebay", "gluster"): 1.5, ("forebay", "iperf3"): 0.5}
    series = {(phase, count): Series(f"{phase}, {count} clients x {size // MIB} MiB over veth", "MB/s", 1e-6, goals)
              for phase in ("write", "read") for count in (1, CLIENTS)}
    with beside_others(bench, "bandwidth") as (server, clients, systems):
        for turn in bench.turns("bandwidth"):
            streams = {"write": iperf.measure(clients[0], server, IPERF_S), "read": iperf.measure(server, clients[0], IPERF_S)}
            for count in (1, CLIENTS):
                note_all(series, turn, "iperf3", count, streams)
                for name, points in systems.items():
                    note_all(series, turn, name, count, stream(bench, points, count, size))
    bench.add(*series.values())


def note_all(series, turn, system, count, values):
    note({phase: series[phase, count] for phase in values}, turn, system, values)


def stream(bench, points, count, size):
    warm(bench.tier, 2 * count * size)
    writers = [fresh(point, f"by-{at}") for at, point in enumerate(points[:count])]
    written = load(bench.programs, "write", writers, procs=1, bytes=size)
    # The reader's node has none of it in memory.
    others = [points[(at + 1) % len(points)] / folder.name for at, folder in enumerate(writers)]
    read = load(bench.programs, "read", others, procs=1, bytes=size)
    for folder in writers:
        remove(folder)
    return {"write": rate(written, "write", "bytes"), "read": rate(read, "read", "bytes")}


def again(bench):
    """What one client has read twice, and nobody writes, read once more: out of the page cache of its node."""
    size = bench.args.bytes
    series = Series(f"read again, 1 client, {size // MIB} MiB", "GB/s", 1e-9)
    with beside_others(bench, "again") as (_, _, systems):
        folders = {name: fresh(points[0], "again") for name, points in systems.items()}
        with Native(bench.tier / "native-again") as native:
            folders = {"native": fresh(native.path, "again"), **folders}
            for folder in folders.values():
                load(bench.programs, "write", [folder], procs=1, bytes=size)
                for _ in range(2):
                    load(bench.programs, "read", [folder], procs=1, bytes=size)
            for turn in bench.turns("again"):
                for name, folder in folders.items():
                    found = load(bench.programs, "read", [folder], procs=1, bytes=size)
                    note({"read": series}, turn, name, {"read": rate(found, "read", "bytes")})
            for folder in folders.values():
                remove(folder)
    bench.add(series)


def creates(bench):
    """Empty files, two clients with a directory each."""
    files = bench.args.files
    series = {"create": Series(f"creates, {CLIENTS} clients x {files:,} empty files", "1000/s", 1e-3,
                               {("forebay", "gluster"): 3.0, ("forebay", "juicefs"): 3.0})}
    with beside_others(bench, "creates", with_juice=True) as (_, _, systems):
        for turn in bench.turns("creates"):
            for name, points in systems.items():
                folders = [fresh(point, f"by-{at}") for at, point in enumerate(points)]
                found = load(bench.programs, "meta", folders, procs=1, files=files, bytes=0, phases="create,unlink")
                for folder in folders:
                    remove(folder)
                note(series, turn, name, {"create": rate(found, "create", "files")})
    bench.add(*series.values())


def local(bench):
    """On the server's own node: kernel passthrough through the Unix socket, against `forebay up`."""
    size = bench.args.bytes
    goals = {("server + mount", "up"): 0.95}
    series = {phase: Series(f"{phase} on the server's node, 2 x {size // MIB} MiB", "GB/s", 1e-9, goals) for phase in ("write", "read")}
    with contextlib.ExitStack() as stack:
        [server] = stack.enter_context(nodes(1))
        native = stack.enter_context(Native(bench.tier / "native"))
        up = stack.enter_context(Product(bench.args.forebay, bench.base / "up", bench.base / "up-pfs", TIER_BYTES))
        cluster = stack.enter_context(Cluster(bench.args.forebay, server, bench.base / "local", TIER_BYTES))
        mounted = stack.enter_context(cluster.mount(server, "local"))
        systems = {"native": native.path, "up": up.path, "server + mount": mounted}
        # The first turn does not count, and lets the servers learn how large the files of the series become.
        for turn in bench.turns("local", 3):
            for name, point in systems.items():
                warm(bench.tier, 4 * size)
                folder = fresh(point, f"turn-{turn}")
                found = {phase: rate(load(bench.programs, phase, [folder], procs=2, bytes=size), phase, "bytes") for phase in series}
                remove(folder)
                note(series, turn, name, found)
    bench.add(*series.values())
