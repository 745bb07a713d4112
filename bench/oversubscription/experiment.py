"""The parts of the experiment: what is measured on one burst buffer, by processes that checkpoint through its mount."""

import bisect
import contextlib
import json
import random
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from figures import held
from devices import INTERRUPTED, STEP_S, Failure, Forebay, pause
from several import Several

HERE = Path(__file__).resolve().parent
# Gap between arrivals against an even spread over the period. Not all of it for "low": a checkpoint that ends in the next
# period would count there.
CONGESTION = {"low": 0.95, "medium": 0.5, "high": 0.1}
# Of the papers, bytes/s, bytes and seconds; only their ratios are kept.
PAPER = {"bw_max": 3.56e9, "bw_min": 3e9, "br_max": 1.6e9, "br_min": 0.08e9}
PAPER_S, PAPER_PERIOD_S, CHECKPOINTS_PER_S = 3.2e12, 3800.0, 40
CHUNK_BYTES = 1 << 20
# Periods in which DWPP is learned before anything is measured.
LEARNED_PERIODS = 2
# Of one placement: the first of its periods begins with what another one left.
PLACEMENT_PERIODS = 3
# Looks at who is in the burst buffer in a period.
LOOKS = 12
# DWPP is learned anew where the prediction is off by more than this.
PREDICTED = (0.97, 1.13)


class Setting:
    """S, the period, and what follows from them."""

    def __init__(self, args, capacity_mib, period_s):
        self.args, self.period_s, self.nodes = args, period_s, args.nodes
        # Of all nodes, as the rates.
        self.capacity = (capacity_mib << 20) * self.nodes
        factor = self.capacity / PAPER_S * PAPER_PERIOD_S / period_s
        self.rates = {name: value * factor for name, value in PAPER.items()}
        self.size = (capacity_mib << 20) // CHECKPOINTS_PER_S
        # Of one node. As many find room with what a file system takes beyond their bytes, as the servers reckon for the shares of `dedicated`.
        self.tier_bytes = CHECKPOINTS_PER_S * (self.size + max(64 << 10, self.size >> 10))

    def jobs(self, dwpp):
        return round(dwpp * CHECKPOINTS_PER_S * self.nodes)

    def options(self, **engine):
        """Times of the servers' defaults are of hours: those that would matter here are scaled down with the period."""
        scale = self.period_s / PAPER_PERIOD_S
        return {
            "demotion": {"dirty_cap": "100%", "workers": 2, "idle_after": "100ms"},
            "engine": {"period": f"{self.period_s}s", "share": self.size, "turn": "30m", "max_wait": "30m", "quiet": f"{30 * scale:.3f}s", **engine},
        }

    def facts(self):
        return {"nodes": self.nodes, "capacity_bytes": self.capacity, "period_s": self.period_s, "checkpoint_bytes": self.size,
                **{f"{name}_bytes_per_s": rate for name, rate in self.rates.items()}}


def shares(jobs, seed):
    """Of the greatest MTBF: uniform, as in the papers."""
    draw = random.Random(seed)
    return [draw.random() for _ in range(jobs)]


def mtbf_s(share, max_min):
    """In minutes from one, as the twin takes it."""
    return 60.0 * max(1.0, share * max_min)


LANES = set()


def interrupt():
    """Ends what is under way on all burst buffers; they are taken down by those who use them."""
    INTERRUPTED.set()
    for lane in list(LANES):
        for worker in lane.workers:
            worker.terminate()


class Lane:
    """One burst buffer and its applications, whose processes live as long."""

    def __init__(self, setting, dwpp, options, slack=1.0, pfs_capacities=4):
        self.setting, self.dwpp, self.version = setting, dwpp, 0
        args, self.count = setting.args, setting.jobs(dwpp)
        self.shares = shares(self.count, args.seed)
        self.names = [f"app{job:03d}" for job in range(self.count)]
        self.work = tempfile.TemporaryDirectory(prefix="forebay-oversub-", dir=args.work)
        known = {name: f"{mtbf_s(share, 50):.0f}" for name, share in zip(self.names, self.shares)}
        devices = {name: rate * slack for name, rate in setting.rates.items()}
        self.forebay, self.workers = None, []
        try:
            start = Forebay if setting.nodes == 1 else partial(Several, setting.nodes)
            self.forebay = start(args.forebay, Path(self.work.name), setting.rates, setting.tier_bytes, options, known, devices,
                                 pfs_capacities, args.sparse)
            for job, name in enumerate(self.names):
                (self.mount(job) / name).mkdir()
        except BaseException:
            self.close()
            raise
        LANES.add(self)

    def __enter__(self):
        return self

    def __exit__(self, kind, error, _trace):
        if error is not None and self.forebay is not None:
            if not INTERRUPTED.is_set():
                print(self.forebay.log(), file=sys.stderr)
            for worker in self.workers:
                worker.terminate()
        self.close()

    def close(self):
        LANES.discard(self)
        for worker in self.workers:
            with contextlib.suppress(BrokenPipeError):
                worker.stdin.close()
        for worker in self.workers:
            worker.wait(timeout=600)
        self.workers = []
        if self.forebay is not None:
            self.forebay.close()
        self.work.cleanup()

    def start_workers(self):
        command = [sys.executable, str(HERE / "job.py"), str(CHUNK_BYTES), str(self.setting.rates["bw_min"] / self.setting.nodes)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1, "start_new_session": True}
        self.workers = [subprocess.Popen(command, **pipes) for _ in self.names]

    def mount(self, job):
        """Of the node that the job runs on."""
        return self.forebay.mounts[job % self.setting.nodes]

    def path(self, job, version):
        return self.mount(job) / self.names[job] / f"ckpt-{version:04d}.dat"

    def starts(self, congestion):
        gap_s = self.setting.period_s / self.count * CONGESTION[congestion]
        return [job * gap_s for job in range(self.count)]

    def period(self, congestion, watch=None):
        """Every application writes one version. What each measured, in the order of arrival."""
        if not self.workers:
            self.start_workers()
        self.version += 1
        begin_s = time.monotonic() + 1.0
        for job, (worker, start_s) in enumerate(zip(self.workers, self.starts(congestion))):
            order = {"path": str(self.path(job, self.version)), "bytes": self.setting.size, "start_s": begin_s + start_s}
            worker.stdin.write(json.dumps(order) + "\n")
        if watch:
            watch(begin_s)
        results = []
        for job, worker in enumerate(self.workers):
            answer = worker.stdout.readline()
            if not answer:
                raise Failure(f"{self.names[job]} failed")
            results.append({"application": job, "version": self.version, **json.loads(answer)})
            results[-1]["arrive_s"] -= begin_s
        pause(begin_s + self.setting.period_s - time.monotonic())
        return results

    def learn(self):
        """Periods until what comes is predicted."""
        for _ in range(4 * LEARNED_PERIODS):
            self.forebay.settle()
            predicted = self.forebay.status()["dwpp_bytes"] / (self.count * self.setting.size)
            if self.version >= LEARNED_PERIODS and PREDICTED[0] <= predicted <= PREDICTED[1]:
                return
            self.period("medium")
            self.delete(keep=0)
        raise Failure("what a period brings is not predicted")

    def delete(self, keep):
        """Applications delete all but their last versions."""
        for job in range(self.count):
            for version in range(max(1, self.version - 3), self.version + 1 - keep):
                self.path(job, version).unlink(missing_ok=True)

    def cell(self, congestion, policy):
        """One period of one policy from an empty burst buffer."""
        forebay = self.forebay
        forebay.settle()
        self.delete(keep=0)
        forebay.policy(policy)
        self.learn()
        before, plan = forebay.status(), []
        results = self.period(congestion, lambda begin_s: plan.append(self.plan_in_force(begin_s)))
        status = forebay.status()
        grown = lambda key: status[key] - before[key]
        for result in results:
            result["file_version"], result["version"] = result["version"], 1
        cell = {"dwpp": self.dwpp, "congestion": congestion, "policy": policy, "placement": status["placement"], **self.setting.facts(),
                "dwpp_predicted_bytes": before["dwpp_bytes"], "plan": plan[0], "applications": self.applications(congestion),
                "demoted_bytes": grown("demoted_bytes_total"), "direct_files": grown("direct_files_total"),
                "waited_writes": grown("waited_writes_total"), "space_wait_s": grown("space_wait_s_total"), "jobs": results}
        say_cell(cell)
        return cell

    def plan_in_force(self, begin_s):
        """As it was early in the period."""
        pause(begin_s + 0.05 * self.setting.period_s - time.monotonic())
        return self.forebay.status()["plan"]

    def applications(self, congestion):
        return [{"application": job, "name": name, "bytes": self.setting.size, "period_s": self.setting.period_s,
                 "mtbf_s": float(f"{mtbf_s(self.shares[job], 50):.0f}"), "start_s": start_s}
                for job, (name, start_s) in enumerate(zip(self.names, self.starts(congestion)))]

    def resident(self):
        """Whether the newest version of each application that is on record as written is in the burst buffer."""
        newest = {}
        for entry in self.forebay.where(self.forebay.mounts[0]):
            name = Path(entry["path"]).parent.name
            done = entry["size_bytes"] == self.setting.size
            if name in self.names and done and entry["version"] >= newest.get(name, (0, False))[0]:
                newest[name] = (entry["version"], any(tier != "pfs" for tier in entry["tiers"]))
        return [newest.get(name, (0, False)) for name in self.names]


def matrix(setting, dwpp, congestions, policies):
    """All cells of one DWPP, one by one. Policies that stall teach a DWPP that is cut in two: `bbos`, which plans by it, goes first."""
    # Two periods' files are never there at a time.
    with Lane(setting, dwpp, setting.options(), pfs_capacities=2.5) as lane:
        lane.learn()
        for policy in policies:
            for congestion in congestions:
                yield lane.cell(congestion, policy)


def restarts(setting, dwpp, placements, max_mins):
    """Hit ratios: at times spread over the periods after the first of each placement, who would find its newest checkpoint in the
    burst buffer, weighted by failure rates ∝ 1/MTBF; the failed then read it, which `lru` sees."""
    found = []
    with Lane(setting, dwpp, setting.options(), pfs_capacities=3 * dwpp + 1) as lane:
        lane.learn()
        dice = random.Random(setting.args.seed + 1)
        for placement in placements:
            lane.forebay.policy("bbos", placement)
            looks = []
            for period in range(PLACEMENT_PERIODS):
                lane.period("low", lambda begin_s: looks.extend(watch_restarts(lane, begin_s, dice, period > 0)))
                lane.delete(keep=2)
            for max_min in max_mins:
                weights = [1 / mtbf_s(share, max_min) for share in lane.shares]
                hits = [sum(w * hit for w, (_, hit) in zip(weights, look)) / sum(weights) for look in looks]
                found.append({"dwpp": dwpp, "placement": placement, "mtbf_max_min": max_min, "looks": len(looks),
                              "reads_per_period": LOOKS * readers(lane), "hit_ratio": sum(hits) / len(hits)})
                say(f"{dwpp} S {placement:5} MTBF up to {max_min:3} min: {found[-1]['hit_ratio']:.3f} of restarts from the burst buffer")
    return found


def readers(lane):
    """Applications that fail between two looks, and read their newest checkpoint."""
    return lane.count // 8


def watch_restarts(lane, begin_s, dice, counts):
    looks, weights = [], [1 / mtbf_s(share, 50) for share in lane.shares]
    sums = [sum(weights[: n + 1]) for n in range(lane.count)]
    for at in range(LOOKS):
        pause(begin_s + (at + 0.5) * lane.setting.period_s / LOOKS - time.monotonic())
        looks.append(lane.resident())
        for _ in range(readers(lane)):
            job = bisect.bisect(sums, dice.random() * sums[-1])
            version = looks[-1][min(job, lane.count - 1)][0]
            if version:
                with open(lane.path(min(job, lane.count - 1), version), "rb") as file:
                    file.read(4096)
    return looks if counts else []


def direct(setting, enabled, periods=3):
    """Demoted bytes over some periods at 1.9 S with or without direct checkpoints."""
    with Lane(setting, 1.9, setting.options(direct=enabled), pfs_capacities=3 * 1.9 + 1) as lane:
        lane.learn()
        before = lane.forebay.status()
        for _ in range(periods):
            lane.period("low")
            lane.delete(keep=2)
        after = lane.forebay.status()
    grown = lambda key: after[key] - before[key]
    result = {"direct": enabled, "dwpp": 1.9, "periods": periods, "demoted_bytes": grown("demoted_bytes_total"),
              "direct_files": grown("direct_files_total"), **setting.facts()}
    # What went straight to the PFS is counted as it gets there, but it was never in the burst buffer.
    result["demoted_from_buffer_bytes"] = result["demoted_bytes"] - result["direct_files"] * setting.size
    say(f"direct {'on' if enabled else 'off'}: {result['demoted_from_buffer_bytes'] >> 20} MiB demoted, "
        f"{result['direct_files']} files straight to the PFS")
    return result


def windows(samples, key, limits, name, until_s):
    """Every 10 s of demand in which one limit was in force throughout: the relative error of what reached the device against it, and
    by how much the latest look of the bench itself came too late, seconds."""
    found = []
    for i, first in enumerate(limits):
        same = [s for s in limits[i:] if s["at_s"] - first["at_s"] <= 10.6]
        spans = same[-1]["at_s"] - first["at_s"] >= 9.6 and same[-1]["at_s"] <= until_s
        if not spans or not first[name] or any(s[name] is None or s[name] != first[name] for s in same):
            continue
        near = lambda at_s: min(samples, key=lambda s: abs(s["at_s"] - at_s))
        begin, end = near(first["at_s"]), near(first["at_s"] + 10)
        seen = (end[key] - begin[key]) / (end["at_s"] - begin["at_s"])
        looks = [s["at_s"] for s in samples if begin["at_s"] <= s["at_s"] <= end["at_s"]]
        late_s = max(after - before for before, after in zip(looks, looks[1:])) - STEP_S
        found.append({"begin_s": first["at_s"] - limits[0]["at_s"], "error": seen / first[name] - 1, "late_s": late_s})
    return found


def held_rates(setting):
    """How well limits are held where the devices could do three times as much: more is expected than can be served, so that both are
    constant, and three writers, or one on each node, never stop. Windows that reach beyond the end of the first writer do not count."""
    limits = []
    with Lane(setting, 2.1, setting.options(), slack=3.0) as lane:
        # Nine files are there at a time: far less than fits, for whoever waits for space lifts all limits.
        span_s, file_mib = max(90.0, setting.period_s * 3.2), max(1, setting.capacity >> 26)
        command = [sys.executable, HERE / "stream.py"]
        writers = [subprocess.Popen([str(c) for c in (*command, lane.mount(n), n, span_s, file_mib)]) for n in range(max(3, setting.nodes))]
        # What was let through before a window and is still in the page cache reaches the device in it: let that be as much at its
        # beginning as at its end.
        pause(2.0)
        while all(writer.poll() is None for writer in writers):
            pause(0.5)
            plan = lane.forebay.status()["plan"]
            limits.append({"at_s": time.monotonic(), "checkpoint": plan["checkpoint_limit_bytes_per_s"],
                           "demotion": plan["demotion_limit_bytes_per_s"]})
        until_s = time.monotonic() - 1.0
        for writer in writers:
            writer.wait()
        samples = lane.forebay.samples
    result = {kind: windows(samples, key, limits, kind, until_s)
              for kind, key in (("checkpoint", "buffer_bytes"), ("demotion", "pfs_bytes"))}
    for kind, found in result.items():
        say(f"{kind}: {held(found)}")
    return result


def say_cell(cell):
    total = lambda key: sum(job[key] for job in cell["jobs"]) / len(cell["jobs"])
    say(f"{cell['dwpp']} S {cell['congestion']:6} {cell['policy']:9}: wait {total('wait_s'):6.2f} s, stall {total('stall_s'):6.2f} s, "
        f"execution {total('execution_s'):6.2f} s a job; {cell['waited_writes']} writes waited {cell['space_wait_s']:.1f} s for space")


def say(text):
    print(text, flush=True)
