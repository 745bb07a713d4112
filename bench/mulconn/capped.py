"""Sockets of a fixed rate: how much of it several of them carry together."""

import contextlib
from dataclasses import dataclass, field

import iperf
from fleet import Cluster
from load import BLOCK_BYTES, fresh, load, rate, remove, warm
from nodes import nodes
from report import GIB, MIB, Series, verdict
from systems import say

CONNECTIONS = [1, 2, 4, 8]
DISTRIBUTIONS = ["ttos", "ttom", "auto"]
THREADS = [1, 4, 8, 16]
# A measurement is as long as that if all connections that can be busy are.
SPAN_S = 0.8
LEAST_BYTES = 8 * MIB
ALL_RATIO_MIN = 7.2
ONE_READER_RATIO_MIN = 3.0


@dataclass
class Capped:
    """Rates in bytes per second, by (phase, distribution, threads, connections), turn by turn. `limit`: of a socket."""

    limit: int
    rates: dict = field(default_factory=dict)
    reference: dict = field(default_factory=dict)

    def series(self):
        """The ratio of each number of connections to one, of the same phase, distribution and threads."""
        made = {}
        for (phase, distribution, threads, connections), values in self.rates.items():
            key = (phase, distribution, threads)
            series = made.setdefault(key, Series(f"{phase} {distribution}, {threads} threads, {8 * self.limit / 1e6:g} Mbit/s a socket", "MB/s", 1e-6))
            for value in values:
                series.add(f"{connections} connections", value)
        return made

    def verdicts(self):
        made = self.series()
        goals = [("write", "auto", 8, 8, ALL_RATIO_MIN), ("read", "auto", 8, 8, ALL_RATIO_MIN),
                 ("read", "auto", 1, 4, ONE_READER_RATIO_MIN)]
        for phase, distribution, threads, connections, least in goals:
            series = made.get((phase, distribution, threads))
            if series and {"1 connections", f"{connections} connections"} <= series.values.keys():
                ratio = series.ratio(f"{connections} connections", "1 connections")
                yield verdict(f"{connections} connections/1, {threads} threads {phase}, {distribution}",
                              f"{ratio['ratio']:.2f} ({ratio['min']:.2f}-{ratio['max']:.2f})", f">= {least}", ratio["ratio"] >= least)


def busy(phase, distribution, threads, connections):
    """Connections that can be busy at once."""
    stays = distribution == "ttos" or (distribution == "auto" and phase == "write")
    # A thread writes one request at a time, and a read that is cut fills all.
    return min(threads, connections) if stays or phase == "write" else connections


def measure(bench):
    """All combinations, the mounts taking turns."""
    args = bench.args
    found = Capped(args.rate)
    with contextlib.ExitStack() as stack:
        server, client = stack.enter_context(nodes(2))
        for node in (server, client):
            stack.enter_context(iperf.server(node))
        cluster = stack.enter_context(Cluster(args.forebay, server, bench.base / "capped", 4 * GIB, args.rate))
        # On the server's node no socket is limited.
        writer = stack.enter_context(cluster.mount(server, "writer"))
        mounts = {(distribution, connections): stack.enter_context(cluster.mount(
            client, f"{distribution}-{connections}", "--connections", connections, "--distribution", distribution))
            for distribution in DISTRIBUTIONS for connections in args.connections}
        for turn in bench.turns("capped"):
            for phase, way in (("write", (client, server)), ("read", (server, client))):
                for streams in args.connections:
                    value = iperf.measure(*way, 1, streams, args.rate)
                    keep(found.reference, (phase, streams), turn, value)
            for threads in args.threads:
                for (distribution, connections), point in mounts.items():
                    one(bench, found, turn, writer, point, (distribution, threads, connections))
    return found


def one(bench, found, turn, writer, point, how):
    """Writes through a mount, and reads what a mount that has no limit has written."""
    distribution, threads, connections = how
    values = {}
    for phase, written_through in (("write", point), ("read", writer)):
        total = SPAN_S * bench.args.rate * busy(phase, *how)
        size = max(LEAST_BYTES, int(total / threads) // BLOCK_BYTES * BLOCK_BYTES)
        warm(bench.tier, size * threads)
        folder = fresh(written_through, f"{phase}-{distribution}-{threads}-{connections}-{turn}")
        done = load(bench.programs, "write", [folder], procs=threads, bytes=size)
        if phase == "read":
            done = load(bench.programs, "read", [point / folder.name], procs=threads, bytes=size)
        remove(folder)
        values[phase] = rate(done, phase, "bytes")
        keep(found.rates, (phase, distribution, threads, connections), turn, values[phase])
    say(f"  {distribution}, {threads} threads, {connections} connections: "
        + ", ".join(f"{phase} {value / 1e6:,.0f} MB/s" for phase, value in values.items()))


def keep(rates, key, turn, value):
    if turn >= 0:
        rates.setdefault(key, []).append(value)
