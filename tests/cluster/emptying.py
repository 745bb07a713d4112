"""Nodes that are emptied by order while programs work and have files open (docs/semantics.md, 14.14.11): nothing of it is lost or torn, and
an empty node may go."""

import subprocess
import time

from account import Violation
from machine import Failure, run

# Files that stay open may need longer (exit 4).
EMPTY_WITHIN_S = (2, 20)
# For a command's end: beyond that time it asks for up to 90 s where the server is away.
COMMAND_S = 120.0
EMPTY, TIMED_OUT = 0, 4
# What may happen in the middle, of the faults that the campaign has, and what an empty node may meet.
IN_THE_MIDDLE = ("reset", "links", "kill", "holder", "silent", "power")
WHEN_EMPTY = ("holder", "power", "emptied")
STAYS_EMPTY_S = (1.0, 5.0)
# The metadata server begins anew for a data server that is back.
BACK_WITHIN_S = 90.0


def judge_command(server, code, said, met):
    """How `drain-node` has ended. met: a fault met it, and the server that was asked may be gone."""
    if code not in (EMPTY, TIMED_OUT) and not met:
        raise Violation(f"drain-node {server} has ended with {code}, without a reason: {said[-300:]}")
    return code == EMPTY


def judge_order(server, node):
    """What `status` says of a node that was ordered to be emptied: the order holds until it is taken back."""
    if node["emptying"] is None:
        raise Violation(f"the order to empty node {server} is forgotten")


def judge_empty(server, node):
    """The same once the command has said that the node is empty."""
    judge_order(server, node)
    if node["emptying"]["files"] or node["used_bytes"]:
        raise Violation(f"node {server} was empty, and holds {node['emptying']['files']} files ({node['used_bytes']} bytes) before it is used again")


class Emptying:
    """A fault of `Faults`."""

    def do_drained(self):
        """A node is emptied; something else may happen in the middle. If it is empty in time, it may go as well."""
        servers = [*sorted(self.cluster.data_states), *([] if self.campaign.args.standby else [1])]
        server, seconds = self.random.choice(servers), self.random.randrange(*EMPTY_WITHIN_S)
        middles = self.among(IN_THE_MIDDLE)
        middle = self.random.choice(middles) if middles and self.random.random() < 0.5 else None
        self.tell(f"node {server} emptied, for {seconds} s at most")
        command = self.begin_emptying(server, seconds)
        told = [self.told]
        try:
            if middle:
                told.append(self.meet(server, middle))
            code, said = self.end_of(command)
        finally:
            command.kill()
            command.wait()
        is_empty = judge_or_note(self, judge_command, server, code, said, bool(middle))
        if middle:
            self.reach()
            judge_or_note(self, judge_order, server, self.node(server))
            code, said = self.end_of(self.begin_emptying(server, seconds))
            is_empty = judge_or_note(self, judge_command, server, code, said, False)
        told.append("then it was empty" if is_empty else f"then {self.left(server)} were left")
        self.campaign.counts["nodes that were empty in time" if is_empty else "nodes that were not empty in time"] += 1
        if is_empty:
            told += self.stay_empty(server)
        self.cluster.follow()
        used = run([self.cluster.binary, "cluster", "use-node", str(server), "--state", self.cluster.state], check=False, timeout_s=COMMAND_S)
        if used.returncode:
            self.violate(f"use-node {server} has ended with {used.returncode}: {used.stderr.strip()[-300:]}")
        self.tell("; ".join(told))

    def among(self, faults):
        """Those that the campaign has."""
        return [fault for fault in faults if fault in self.campaign.args.faults]

    def meet(self, server, fault):
        """Another fault in the middle, most often of the node that is emptied."""
        self.campaign.wait(self.random.uniform(0.0, 3.0))
        on_it = self.random.random() < 0.7 and server in self.cluster.data_states
        words = {} if not on_it else {"holder": {"servers": [server]}, "silent": {"servers": [server]}, "power": {"server": server}}.get(fault, {})
        self.campaign.counts[fault] += 1
        getattr(self, f"do_{fault}")(**words)
        return f"meanwhile {self.told}"

    def begin_emptying(self, server, seconds):
        self.cluster.follow()
        words = [self.cluster.binary, "cluster", "drain-node", str(server), "--state", self.cluster.state, "--timeout", f"{seconds}s", "--json"]
        return subprocess.Popen([str(word) for word in words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)

    def end_of(self, command):
        """Its exit code and what it has said. One that does not end is ended."""
        deadline = time.monotonic() + COMMAND_S
        while command.poll() is None:
            if time.monotonic() > deadline:
                command.kill()
            self.campaign.wait(0.2)
        return command.returncode, command.communicate()[0]

    def stay_empty(self, server):
        """Nothing goes there, and nobody misses the node."""
        self.look_empty(server)
        ways = [None, *self.among(WHEN_EMPTY)] if server in self.cluster.data_states else [None]
        way = self.random.choice(ways)
        if not way:
            return []
        seconds = self.random.choice([0.0, self.random.uniform(0.1, 12.0)])
        self.campaign.counts[f"empty nodes that met {way}"] += 1
        self.under_way = True
        # What was under way is told of it; no content and no name goes back.
        excuses = self.excused([None], "an empty data server has ended")
        {"holder": self.cluster.kill_data, "power": self.cluster.cut_power, "emptied": self.cluster.empty_state}[way](server)
        self.undo.append(lambda: self.cluster.start_data(server))
        self.lasting(seconds)
        self.reach()
        self.campaign.wait(self.random.uniform(*STAYS_EMPTY_S))
        self.over(excuses)
        self.look_empty(server)
        ended = {"holder": "killed", "power": "without power", "emptied": "without its state folder"}[way]
        return [f"empty it was {ended} for {seconds:.1f} s"]

    def look_empty(self, server):
        self.campaign.wait(self.random.uniform(*STAYS_EMPTY_S))
        judge_or_note(self, judge_empty, server, self.node(server))

    def reach(self):
        """Until all servers are in reach again."""
        deadline = time.monotonic() + BACK_WITHIN_S
        while not self.cluster.is_in_reach():
            if time.monotonic() > deadline:
                raise Failure(f"not all servers are in reach after {BACK_WITHIN_S:.0f} s")
            self.campaign.wait(0.3)

    def node(self, server):
        return next(node for node in self.cluster.status()["nodes"] if node["id"] == server)

    def left(self, server):
        left = self.node(server)["emptying"] or {}
        return f"{left.get('files')} files, {left.get('open_files')} of them open,"

    def violate(self, text):
        with self.lock:
            self.planner.violations.append(text)


def judge_or_note(faults, judge, *what):
    """What it answers; a violation ends the campaign."""
    try:
        return judge(*what)
    except Violation as violation:
        faults.violate(str(violation))
        return None
