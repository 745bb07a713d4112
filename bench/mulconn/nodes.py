"""Nodes with networks of their own on one machine: a network namespace each, joined by a bridge in one more."""

import contextlib
import os
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from systems import Failure, run  # noqa: E402

NETWORK = "10.79.0"
PATIENCE_S = 10.0


class Node:
    """A node: what it runs is placed by `words`, and shares all files with the machine."""

    def __init__(self, name, number, switch=None):
        self.name, self.address = name, f"{NETWORK}.{number}"
        self._switch, self._port = switch, f"p{number}"

    def words(self, *command):
        # Not `ip netns exec`: that divides mounts as well, and what a node mounts would be seen by nobody else.
        return ["nsenter", f"--net=/run/netns/{self.name}", "--", *command]

    def run(self, *command, **options):
        return run(self.words(*command), **options)

    def cut(self):
        """Pulls its cable: nothing arrives and nothing leaves, and nobody is told."""
        run(["ip", "-n", self._switch, "link", "set", self._port, "down"])

    def heal(self):
        run(["ip", "-n", self._switch, "link", "set", self._port, "up"])
        await_cable(self._switch, self._port)

    def reset_sockets(self):
        """Ends its TCP connections, as a failing switch does; how many."""
        return len(self.run("ss", "-K", "-H", "-n", "-t", "state", "connected").stdout.splitlines())

    def pids(self):
        return [int(word) for word in run(["ip", "netns", "pids", self.name], check=False).stdout.split()]

    def end(self):
        """Ends what still runs on it: processes that this bench has started, for nobody else knows the namespace."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            for pid in self.pids():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            deadline = time.monotonic() + 5.0
            while self.pids() and time.monotonic() < deadline:
                time.sleep(0.05)
        run(["ip", "netns", "del", self.name])


def make(name):
    run(["ip", "netns", "add", name])
    run(["ip", "-n", name, "link", "set", "lo", "up"])


def await_cable(switch, port):
    """A bridge looks at its cables a moment after they are up, and loses packets until then."""
    deadline = time.monotonic() + PATIENCE_S
    while " state forwarding " not in run(["ip", "-n", switch, "-o", "-d", "link", "show", "dev", port]).stdout:
        if time.monotonic() > deadline:
            raise Failure(f"{port} carries no packets")
        time.sleep(0.02)


@contextlib.contextmanager
def nodes(count):
    """So many nodes; the first is the server's. All that runs on them ends with this."""
    prefix = f"fbmc{os.getpid()}"
    with contextlib.ExitStack() as stack:
        switch = f"{prefix}s"
        make(switch)
        stack.callback(run, ["ip", "netns", "del", switch], check=False)
        run(["ip", "-n", switch, "link", "add", "br0", "type", "bridge", "stp_state", "0", "mcast_snooping", "0"])
        run(["ip", "-n", switch, "link", "set", "br0", "up"])
        made = []
        for number in range(1, count + 1):
            node = Node(f"{prefix}n{number}", number, switch)
            make(node.name)
            stack.callback(node.end)
            run(["ip", "-n", switch, "link", "add", f"p{number}", "type", "veth", "peer", "name", "eth0", "netns", node.name])
            run(["ip", "-n", switch, "link", "set", f"p{number}", "master", "br0", "up"])
            run(["ip", "-n", node.name, "addr", "add", f"{node.address}/24", "dev", "eth0"])
            run(["ip", "-n", node.name, "link", "set", "eth0", "up"])
            await_cable(switch, f"p{number}")
            made.append(node)
        yield made
