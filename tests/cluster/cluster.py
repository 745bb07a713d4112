"""A server and mounts of it, each on a node with a network of its own, on one machine."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "bench" / "mulconn"), str(ROOT / "scripts")]

from loopext4 import loop_ext4, say  # noqa: E402, F401
from machine import MIB, Failure, Network, run, stop  # noqa: E402
from nodes import nodes  # noqa: E402

PORT = 7070
ETCD_PORT, ETCD_PEER_PORT = 2379, 2380
STANDBY = 20  # id of the second metadata server
PATIENCE_S = 60.0
# Sparse: they take what is written.
PFS_BYTES = 8192 * MIB
FLASH_BYTES = 2048 * MIB


class Cluster(Network):
    """The server is on the first node, and each further one has a mount, over TCP, and a data server, if the tiers of
    one are given: `data`, lines with `{}` in the place of the node's number."""

    def __init__(self, binary, pfs, base, of_nodes, tiers, settings="", lease="30s", behind="", data="", replicas=1, standby=False):
        """`tiers`, `settings` and `behind` are lines of the configuration file: of the server's section, at the
        beginning, and at the end. With `standby` the last node has a second metadata server, and neither holds data."""
        self.data_states, self.etcd = {}, None
        self.metadata = {1: (of_nodes[0], base / "state")}
        if standby:
            self.metadata[STANDBY] = (of_nodes.pop(), base / f"state{STANDBY}")
            node, state = self.metadata[STANDBY]
            behind += f'\n[[server]]\nid = {STANDBY}\nroles = ["metadata"]\naddresses = ["{node.address}:{PORT}"]\nstate = "{state}"\n'
        for number, node in enumerate(of_nodes[1:], 2):
            if not data:
                break
            self.data_states[number] = base / f"data{number}"
            behind += (f'\n[[server]]\nid = {number}\nroles = ["data"]\naddresses = ["{node.address}:{PORT}"]\n'
                       f'state = "{self.data_states[number]}"\n{data.format(number)}\n')
        self.server_node, *self.clients = of_nodes
        mounts = [base / f"mnt{number}" for number in range(1, len(of_nodes))]
        super().__init__(binary, pfs, mounts, base, settings=settings, tiers=f"{tiers}\n{behind}", cluster=f'lease = "{lease}"\nreplicas = {replicas}')
        text = self.config.read_text(encoding="utf-8").replace(f"127.0.0.1:{self.port}", f"{self.server_node.address}:{PORT}")
        if standby:
            text = text.replace('roles = ["metadata", "data"]', 'roles = ["metadata"]')
            text = text.replace("replicas =", f'store = "etcd://{self.server_node.address}:{ETCD_PORT}"\nreplicas =')
        self.config.write_text(text, encoding="utf-8")
        self.starts = 0

    def start_etcd(self, base):
        """On the first node; it has to outlive all servers."""
        own, peer = (f"http://{self.server_node.address}:{port}" for port in (ETCD_PORT, ETCD_PEER_PORT))
        words = ["etcd", "--name", "a", "--data-dir", base / "etcd", "--listen-client-urls", own, "--advertise-client-urls", own,
                 "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"a={peer}"]
        with open(base / "etcd.log", "wb") as log:
            self.etcd = subprocess.Popen([str(word) for word in self.server_node.words(*words)], stdout=log, stderr=log,
                                         stdin=subprocess.DEVNULL, start_new_session=True)

    def follow(self):
        """From here on `state` is that of the metadata server that leads."""
        deadline = time.monotonic() + PATIENCE_S
        while len(self.metadata) > 1:
            for _, state in self.metadata.values():
                done = run([self.binary, "status", "--state", state, "--json"], check=False, timeout_s=PATIENCE_S)
                if done.returncode == 0 and "standby" not in json.loads(done.stdout):
                    self.state = state
                    return
            if time.monotonic() > deadline:
                raise Failure("no metadata server leads")
            time.sleep(0.2)

    def status(self):
        self.follow()
        return super().status()

    def finish(self, timeout="120s"):
        self.follow()
        self.unmount()
        for _, state in self.metadata.values():
            if state != self.state:
                self.command("down", "--state", state)
        super().finish(timeout)

    def _end(self):
        for _, self.state in self.metadata.values():
            super()._end()

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
        for number, (node, self.state) in self.metadata.items():
            if self.pid() is None or is_zombie(self.pid()):
                node.run(self.binary, "server", "--config", self.config, "--id", str(number), "--detach", timeout_s=PATIENCE_S,
                         env={**os.environ, "FOREBAY_BOOT_ID": f"boot of {number}"} if len(self.metadata) > 1 else None)

    def show(self, mount, *options):
        node = self.clients[self.mounts.index(mount)]
        node.run(self.binary, "mount", "--config", self.config, mount, "--no-local", "--detach", *self.options, *options,
                 timeout_s=PATIENCE_S, env={**os.environ, "FOREBAY_RUN": str(self.run_base)})

    def kill_server(self):
        """SIGKILL of the one that leads, and waits for its end."""
        self.follow()
        pid = self.pid()
        if pid is None:
            raise Failure("the server has ended by itself")
        kill(pid)

    def knows(self, pid):
        """Whether the server still has a client of this process."""
        return any(client["pid"] == pid for client in self.status()["network"]["clients"])

    def keep_logs(self, folder):
        """What a person wants to see of a failed run."""
        data = [path for state in self.data_states.values() for path in state.glob("*.log*")]
        for path in [*(path for _, state in self.metadata.values() for path in state.glob("*.log*")), *self.run_base.rglob("*.log*"), *data]:
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
def cluster(binary, base, clients, dram, flash_size, data_servers=False, standby=False, **more):
    """A cluster with so many clients on a PFS and a flash directory of its own; with data servers, each client's node has
    as much memory and flash as the server, and each node is a rack."""
    count = clients + (2 if standby else 1)
    if os.geteuid() != 0:
        raise Failure("it makes networks and mounts file systems, which only root may")
    with loop_ext4(base, "pfs", PFS_BYTES) as pfs, loop_ext4(base, "flash", FLASH_BYTES) as flash, nodes(count) as made:
        tiers = f'rack = "r{{0}}"\ndram = "{dram}"\nssd = ["{flash}/{{0}}:{flash_size}"]'
        for number in range(1, clients + 2):
            (flash / str(number)).mkdir()
        running = None
        try:
            own = "" if standby else tiers.format(1)
            running = Cluster(binary, pfs, base, made, own, data=tiers if data_servers else "", standby=standby, **more)
            if standby:
                running.start_etcd(base)
                running.metadata[STANDBY][1].mkdir()
            with running:
                yield running
        finally:
            if running and running.etcd:
                stop(running.etcd)
            for number in range(2, clients + 2) if data_servers else ():
                run(["umount", "-l", base / f"data{number}" / "dram"], check=False)
