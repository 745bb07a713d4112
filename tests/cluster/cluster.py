"""A server and mounts of it, each on a node with a network of its own, on one machine."""

import collections
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
sys.path.append(str(ROOT / "tests" / "soak"))

from buffer import Disk  # noqa: E402
from loopext4 import loop_ext4, say  # noqa: E402, F401
from machine import MIB, Failure, Network, mounts_below, run, stop, unmount_below  # noqa: E402
from nodes import nodes  # noqa: E402

PORT = 7070
ETCD_PORT, ETCD_PEER_PORT = 2379, 2380
STANDBY = 20  # id of the second metadata server
PATIENCE_S = 60.0
# Sparse: they take what is written.
PFS_BYTES = 8192 * MIB
FLASH_BYTES = 2048 * MIB
STATE_BYTES = 384 * MIB


class Cluster(Network):
    """The server is on the first node, and each further one has a mount, over TCP, and a data server, if the tiers of
    one are given: `data`, lines with `{}` in the place of the node's number."""

    def __init__(self, binary, pfs, base, of_nodes, tiers, settings="", lease="30s", behind="", data="", replicas=1, standby=False,
                 disks=None):
        """`tiers`, `settings` and `behind` are lines of the configuration file: of the server's section, at the
        beginning, and at the end. With `standby` the last node has a second metadata server, and neither holds data.
        `disks` are those that lose their power with a server, by its id; the state folder is on the first."""
        self.data_states, self.etcd, self.disks = {}, None, disks
        self.boots = collections.Counter()
        self.kept, self.cuts = base / "cut", 0
        self.metadata = {1: (of_nodes[0], self.state_on_disk(1))}
        if standby:
            self.metadata[STANDBY] = (of_nodes.pop(), self.state_on_disk(STANDBY))
            node, state = self.metadata[STANDBY]
            behind += f'\n[[server]]\nid = {STANDBY}\nroles = ["metadata"]\naddresses = ["{node.address}:{PORT}"]\nstate = "{state}"\n'
        for number, node in enumerate(of_nodes[1:], 2):
            if not data:
                break
            self.data_states[number] = self.state_on_disk(number)
            behind += (f'\n[[server]]\nid = {number}\nroles = ["data"]\naddresses = ["{node.address}:{PORT}"]\n'
                       f'state = "{self.data_states[number]}"\n{data.format(number)}\n')
        self.server_node, *self.clients = of_nodes
        mounts = [base / f"mnt{number}" for number in range(1, len(of_nodes))]
        super().__init__(binary, pfs, mounts, base, settings=settings, tiers=f"{tiers}\n{behind}", cluster=f'lease = "{lease}"\nreplicas = {replicas}')
        text = self.config.read_text(encoding="utf-8").replace(f"127.0.0.1:{self.port}", f"{self.server_node.address}:{PORT}")
        if standby:
            text = text.replace('roles = ["metadata", "data"]', 'roles = ["metadata"]')
            text = text.replace("replicas =", f'store = "etcd://{self.server_node.address}:{ETCD_PORT}"\nreplicas =')
        self.state = self.metadata[1][1]
        self.config.write_text(text.replace(str(base / "state") + '"', f'{self.state}"'), encoding="utf-8")
        self.starts = 0

    def state_on_disk(self, number):
        """A folder below the root of its disk, where a file system keeps things of its own."""
        return self.disks[number][0].point / "state"

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
        self.run_server(self.clients[number - 2], number)

    def run_server(self, node, number):
        node.run(self.binary, "server", "--config", self.config, "--id", str(number), "--detach", timeout_s=PATIENCE_S,
                 env={**os.environ, "FOREBAY_BOOT_ID": f"start {self.boots[number]} of {number}"})

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
                self.run_server(node, number)

    def cut_power(self, number):
        """Of the node of a server: what it had in memory is gone, and of its disks what was not flushed."""
        state = self.data_states.get(number) or self.metadata[number][1]
        pid = int((state / "forebay.pid").read_text(encoding="ascii"))
        # Nothing goes on between the end of one disk and that of the other.
        os.kill(pid, signal.SIGSTOP)
        self.keep_aside(state)
        for disk in self.disks[number]:
            disk.cut()
        kill(pid)
        self.forget_memory(state)
        for disk in self.disks[number]:
            disk.unmount()
            disk.mount()
        # The kernel does not start anew when only the disks lose their power.
        self.boots[number] += 1

    def empty_state(self, number):
        """Of a data server: it is killed, and its state folder is lost, with the memory that is mounted there."""
        state = self.data_states[number]
        self.kill_data(number)
        self.keep_aside(state)
        self.forget_memory(state)
        shutil.rmtree(state)

    def forget_memory(self, state):
        if (state / "dram") in map(Path, mounts_below(state)):
            run(["umount", "-l", state / "dram"])

    def keep_aside(self, state):
        """Its logs, which a cut takes along."""
        self.cuts += 1
        folder = self.kept / f"{self.cuts}-{state.parent.name}"
        folder.mkdir(parents=True)
        for path in state.glob("*.log*"):
            shutil.copy(path, folder)

    def is_in_reach(self):
        """Whether the metadata server that leads has taken in all data servers."""
        self.follow()
        done = run([self.binary, "status", "--state", self.state, "--json"], check=False, timeout_s=PATIENCE_S)
        if done.returncode:
            return False
        status = json.loads(done.stdout)
        return not any(tier["out_of_reach"] for tier in status.get("tiers", ())) and all(node["answers"] for node in status.get("nodes", ()) if node["data"])

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
        own = [path for _, state in self.metadata.values() for path in state.glob("*.log*")]
        for path in [*own, *self.run_base.rglob("*.log*"), *data, *self.kept.rglob("*.log*"), self.config]:
            try:
                shutil.copy(path, folder / "-".join(path.relative_to(self.config.parent).parts))
            except OSError as error:
                # On a disk that was cut, say. It must not hide why the run has failed.
                say(f"{path} is not kept: {error}")


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
    holders = [] if standby else [1]
    holders += range(2, clients + 2) if data_servers else ()
    with contextlib.ExitStack() as stack:
        share_mounts(stack, base)
        pfs = stack.enter_context(loop_ext4(base, "pfs", PFS_BYTES))
        disks = {number: [disk(stack, base, f"state{number}", STATE_BYTES)] for number in [*holders, *((1, STANDBY) if standby else ())]}
        for number in holders:
            disks[number].append(disk(stack, base, f"flash{number}", FLASH_BYTES))
            (base / f"flash{number}" / "tier").mkdir()
        made = stack.enter_context(nodes(count))
        tiers = f'rack = "r{{0}}"\ndram = "{dram}"\nssd = ["{base}/flash{{0}}/tier:{flash_size}"]'
        running = None
        try:
            own = "" if standby else tiers.format(1)
            running = Cluster(binary, pfs, base, made, own, data=tiers if data_servers else "", standby=standby, disks=disks, **more)
            for state in (*running.data_states.values(), *(state for _, state in running.metadata.values())):
                state.mkdir()
            if standby:
                running.start_etcd(base)
            with running:
                yield running
        finally:
            if running and running.etcd:
                stop(running.etcd)


def share_mounts(stack, base):
    """What is unmounted below `base` is unmounted in the copies, too, that others have made of the tree of mounts meanwhile (`ip netns exec`): else a
    disk whose power is cut is still mounted there, and comes back with the errors of before."""
    run(["mount", "--bind", base, base])
    stack.callback(run, ["umount", "-l", base])
    run(["mount", "--make-shared", base])


def disk(stack, base, name, size):
    """One whose power can be cut; it goes with the stack."""
    made = Disk(base, name, size, "ext4")

    def remove():
        unmount_below(made.point)
        made.image.unlink()
    stack.callback(remove)
    return made
