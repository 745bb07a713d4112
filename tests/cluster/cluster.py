"""A server and mounts of it, each on a node with a network of its own, on one machine."""

import contextlib
import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "bench" / "mulconn"), str(ROOT / "scripts")]

from loopext4 import loop_ext4, say  # noqa: E402, F401
from machine import MIB, Failure, Network, run  # noqa: E402
from nodes import nodes  # noqa: E402

PORT = 7070
PATIENCE_S = 60.0
# Sparse: they take what is written.
PFS_BYTES = 8192 * MIB
FLASH_BYTES = 2048 * MIB


class Cluster(Network):
    """The server is on the first node, and each further one has a mount, over TCP, and a data server, if the tiers of
    one are given: `data`, lines with `{}` in the place of the node's number."""

    def __init__(self, binary, pfs, base, of_nodes, tiers, settings="", lease="30s", behind="", data=""):
        """`tiers`, `settings` and `behind` are lines of the configuration file: of the server's section, at the
        beginning, and at the end."""
        self.data_states = {}
        for number, node in enumerate(of_nodes[1:], 2):
            if not data:
                break
            self.data_states[number] = base / f"data{number}"
            behind += (f'\n[[server]]\nid = {number}\nroles = ["data"]\naddresses = ["{node.address}:{PORT}"]\n'
                       f'state = "{self.data_states[number]}"\n{data.format(number)}\n')
        self.server_node, *self.clients = of_nodes
        mounts = [base / f"mnt{number}" for number in range(1, len(of_nodes))]
        super().__init__(binary, pfs, mounts, base, settings=settings, tiers=f"{tiers}\n{behind}", cluster=f'lease = "{lease}"')
        text = self.config.read_text(encoding="utf-8")
        listens = f"127.0.0.1:{self.port}"
        self.config.write_text(text.replace(listens, f"{self.server_node.address}:{PORT}"), encoding="utf-8")
        self.starts = 0

    def start_data(self, number):
        """The data server with this id."""
        node = self.clients[number - 2]
        node.run(self.binary, "server", "--config", self.config, "--id", str(number), "--detach", timeout_s=PATIENCE_S)

    def data_pid(self, number):
        return int((self.data_states[number] / "forebay.pid").read_text(encoding="ascii"))

    def kill_data(self, number):
        """SIGKILL, and waits for its end."""
        kill(self.data_pid(number))

    def start_server(self):
        if not self.starts:
            for number in self.data_states:
                self.start_data(number)
        self.starts += 1
        self.server_node.run(self.binary, "server", "--config", self.config, "--id", "1", "--detach", timeout_s=PATIENCE_S)

    def show(self, mount, *options):
        node = self.clients[self.mounts.index(mount)]
        node.run(self.binary, "mount", "--config", self.config, mount, "--no-local", "--detach", *self.options, *options,
                 timeout_s=PATIENCE_S, env={**os.environ, "FOREBAY_RUN": str(self.run_base)})

    def kill_server(self):
        """SIGKILL, and waits for its end."""
        pid = self.pid()
        if pid is None:
            raise Failure("the server has ended by itself")
        kill(pid)

    def knows(self, pid):
        """Whether the server still has a client of this process."""
        status = json.loads(run([self.binary, "status", "--state", self.state, "--json"]).stdout)
        return any(client["pid"] == pid for client in status["network"]["clients"])

    def keep_logs(self, folder):
        """What a person wants to see of a failed run."""
        data = [path for state in self.data_states.values() for path in state.glob("*.log*")]
        for path in [*self.state.glob("*.log*"), *self.run_base.rglob("*.log*"), *data]:
            shutil.copy(path, folder / "-".join(path.relative_to(self.config.parent).parts))


def kill(pid):
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + PATIENCE_S
    while Path(f"/proc/{pid}/mem").exists() and not is_zombie(pid):
        if time.monotonic() > deadline:
            raise Failure("the server does not end by SIGKILL")
        time.sleep(0.01)


def is_zombie(pid):
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return True
    return stat.rpartition(")")[2].split()[0] == "Z"


@contextlib.contextmanager
def cluster(binary, base, clients, dram, flash_size, data_servers=False, **more):
    """A cluster with so many clients on a PFS and a flash directory of its own; with data servers, each client's node has
    as much memory and flash as the server."""
    if os.geteuid() != 0:
        raise Failure("it makes networks and mounts file systems, which only root may")
    with loop_ext4(base, "pfs", PFS_BYTES) as pfs, loop_ext4(base, "flash", FLASH_BYTES) as flash, nodes(clients + 1) as made:
        data = f'dram = "{dram}"\nssd = ["{flash}/{{}}:{flash_size}"]' if data_servers else ""
        own = flash / "1"
        for number in range(1, clients + 2):
            (flash / str(number)).mkdir()
        try:
            with Cluster(binary, pfs, base, made, f'dram = "{dram}"\nssd = ["{own}:{flash_size}"]', data=data, **more) as running:
                yield running
        finally:
            for number in range(2, clients + 2) if data_servers else ():
                run(["umount", "-l", base / f"data{number}" / "dram"], check=False)
