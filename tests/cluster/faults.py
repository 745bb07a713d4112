"""What happens to nodes, links and the server while programs work, and for what it excuses."""

import collections
import os
import signal
import time

from account import CONTENT
from emptying import Emptying
from losses import Losses
from machine import Failure, run
from outsider import Outsider

FAULTS = ("links", "reset", "stop", "kill", "fence", "client", "outsider", "blackout")
# The same where each node holds data.
DATA_FAULTS = ("holder", "silent", "both", "power", "emptied", "drained")
# And with a metadata server that stands by.
STANDBY_FAULTS = ("replaced",)
# A client's session lives on: longest time without a word, against a lease of 8 s.
WITHIN_LEASE_S = 3.0
# Far from the 4 s after which a data server is given up where files have second copies.
WITHIN_PATIENCE_S = 2.0
BEYOND_LEASE_S = (9.0, 14.0)
# After the fault: the client finds out that its session is gone, and begins anew.
AFTERWARDS_S = 5.0
# The same where a data server is given up meanwhile, or another metadata server takes over.
GIVEN_UP_WITHIN_S = 10.0
TAKES_OVER_WITHIN_S = 20.0
STOOD_STILL_S = (12.0, 40.0)
# A dead client: its lease, and what it had asked for.
FORGETS_WITHIN_S = 60.0
HISTORY = 30


class Faults(Losses, Emptying, Outsider):
    takes_over_within_s = TAKES_OVER_WITHIN_S

    def __init__(self, campaign):
        self.campaign, self.cluster, self.random = campaign, campaign.cluster, campaign.random
        self.planner, self.lock = campaign.planner, campaign.lock
        self.under_way, self.told = False, ""
        self.history = collections.deque(maxlen=HISTORY)
        self.undo = []  # what brings everything back
        self.deeds = []  # of outsiders, of which it is not known yet what came of them

    def tell(self, text):
        self.told = text
        with self.lock:
            self.history.append(f"{time.strftime('%H:%M:%S')} [{self.planner.account.tick}] {text}")

    def some(self):
        """A client or several."""
        count = 1 if self.random.random() < 0.7 else self.random.randrange(1, self.campaign.args.clients + 1)
        return self.random.sample(range(self.campaign.args.clients), count)

    def all_back(self):
        while self.undo:
            self.undo.pop()()
        self.under_way = False

    def lasting(self, seconds):
        try:
            self.campaign.wait(seconds)
        finally:
            self.all_back()

    def excused(self, clients, why):
        with self.lock:
            return [self.planner.excuse(client, why) for client in clients]

    def over(self, excuses):
        with self.lock:
            for excuse in excuses:
                self.planner.excuse_ends(excuse)

    def nodes_go(self):
        """With second copies a data server that is silent is given up, and then files go back to what fsync has promised. An
        append that is under way would go behind that."""
        if self.campaign.args.replicas > 1:
            with self.lock:
                self.planner.nodes_go()
            self.campaign.until("nothing is under way that would meet another file", lambda: not self.planner.would_go_wrong())

    def afterwards(self, seconds=AFTERWARDS_S, what=CONTENT):
        """Until nothing comes of the fault any more."""
        self.cluster.follow()
        self.campaign.wait(seconds + (GIVEN_UP_WITHIN_S if self.campaign.args.replicas > 1 else 0.0))
        with self.lock:
            if self.campaign.args.replicas > 1 or what != CONTENT:
                self.planner.nodes_are_back(what)

    # -- each of them -----------------------------------------------------------------------------------------------

    def do_none(self):
        self.tell("nothing")

    def do_links(self, seconds=None, clients=None):
        """For less than the lease: nobody is told anything. Sockets may be reset meanwhile."""
        clients = clients or self.some()
        seconds = seconds or self.random.uniform(0.1, WITHIN_LEASE_S if self.campaign.args.replicas == 1 else WITHIN_PATIENCE_S)
        self.tell(f"links of clients {clients} cut for {seconds:.1f} s")
        self.under_way = True
        for client in clients:
            self.cut(self.cluster.clients[client])
        self.lasting(seconds)

    def cut(self, node):
        node.cut()
        self.undo.append(node.heal)

    def do_reset(self):
        count = self.random.randrange(1, 6)
        ended = 0
        for _ in range(count):
            for client in self.some():
                ended += self.cluster.clients[client].reset_sockets()
            self.campaign.wait(self.random.uniform(0.05, 0.8))
        self.tell(f"{ended} sockets reset, {count} times")

    def do_stop(self):
        """A client's process stands still, or the server's, for less than the lease."""
        seconds = self.random.uniform(0.2, WITHIN_LEASE_S)
        if self.random.random() < 0.25:
            self.tell(f"the server stopped for {seconds:.1f} s")
            self.cluster.follow()
            pids = [self.cluster.pid()]
        else:
            clients = self.some()
            self.tell(f"clients {clients} stopped for {seconds:.1f} s")
            pids = [self.cluster.mount_pid(self.cluster.mounts[client]) for client in clients]
        self.under_way = True
        self.stop(pids)
        self.lasting(seconds)

    def stop(self, pids):
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
            self.undo.append(lambda pid=pid: os.kill(pid, signal.SIGCONT))

    def do_kill(self):
        """The server's process, which is started again; now and then while a link is cut."""
        seconds = self.random.choice([0.0, 0.0, self.random.uniform(0.1, 3.0)])
        clients = self.some() if self.random.random() < 0.3 else []
        self.tell(f"the server killed and started after {seconds:.1f} s{f', links of {clients} cut' if clients else ''}")
        self.under_way = True
        if clients and self.cluster.data_states:
            # A start takes a node that it cannot reach for one that is away.
            self.nodes_go()
        for client in clients:
            self.cut(self.cluster.clients[client])
        excuses = self.excused([None], "the server was killed")
        self.cluster.kill_server()
        self.undo.append(self.cluster.start_server)
        self.lasting(seconds)
        if clients and self.cluster.data_states:
            self.afterwards()
        else:
            self.cluster.follow()
            self.campaign.wait(AFTERWARDS_S)
        self.over(excuses)

    def some_data(self):
        servers = sorted(self.cluster.data_states)
        return self.random.sample(servers, self.random.choice([1, 1, 1, 2]))

    def do_holder(self, servers=None):
        """Data servers are killed, and started again."""
        servers, seconds = servers or self.some_data(), self.random.choice([0.0, self.random.uniform(0.1, 12.0)])
        self.tell(f"data servers {servers} killed and started after {seconds:.1f} s")
        self.under_way = True
        # Whether an append under way has happened is not known.
        excuses = self.excused([None], "a data server was killed")
        self.nodes_go()
        for server in servers:
            self.cluster.kill_data(server)
            self.undo.append(lambda server=server: self.cluster.start_data(server))
        self.lasting(seconds)
        self.afterwards()
        self.over(excuses)

    def do_silent(self, servers=None):
        """A data server stands still, for less than the lease or longer."""
        servers, seconds = servers or self.some_data(), self.random.choice([WITHIN_LEASE_S, self.random.uniform(*BEYOND_LEASE_S)])
        self.tell(f"data servers {servers} stopped for {seconds:.1f} s")
        self.under_way = True
        excuses = self.excused([None], "a data server was silent")
        self.nodes_go()
        self.stop([self.cluster.data_pid(server) for server in servers])
        self.lasting(seconds)
        self.afterwards()
        self.over(excuses)

    def do_both(self):
        """A data server and the metadata server are killed; which is back first is chance, and the metadata server may have to do
        without."""
        servers, seconds = self.some_data(), self.random.choice([0.0, 3.0, 15.0])
        first = self.random.random() < 0.5
        self.tell(f"data servers {servers} and the server killed; {'data servers' if first else 'the server'} started first, then after {seconds} s")
        self.under_way = True
        excuses = self.excused([None], "the server was killed")
        self.nodes_go()
        for server in servers:
            self.cluster.kill_data(server)
        self.cluster.kill_server()
        back = [lambda server=server: self.cluster.start_data(server) for server in servers]
        self.undo += [self.cluster.start_server] if first else back
        for start in back if first else [self.cluster.start_server]:
            start()
        self.lasting(seconds)
        self.afterwards(AFTERWARDS_S + 5.0)
        self.over(excuses)

    def do_replaced(self):
        """The metadata server that leads stands still until the other one leads, and for a while longer."""
        seconds = self.random.uniform(*STOOD_STILL_S)
        self.cluster.follow()
        pid = self.cluster.pid()
        self.tell(f"the metadata server in {self.cluster.state.name} stopped, and continued after {seconds:.1f} s")
        self.under_way = True
        excuses = self.excused([None], "the server was replaced")
        self.stop([pid])
        self.lasting(seconds)
        self.afterwards(TAKES_OVER_WITHIN_S)
        # Right after it was continued, the old one does not know yet that it does not lead.
        self.cluster.follow()
        if self.cluster.pid() == pid:
            raise Failure(f"nobody has taken over within {seconds:.1f} s")
        self.over(excuses)

    def do_fence(self):
        """A client is silent for longer than the lease: what it had open is gone."""
        client, seconds = self.random.randrange(self.campaign.args.clients), self.random.uniform(*BEYOND_LEASE_S)
        stops = self.random.random() < 0.5
        self.tell(f"client {client} {'stopped' if stops else 'cut off'} for {seconds:.1f} s, which is longer than the lease")
        self.under_way = True
        # With its node, who uses files there loses a data server.
        concerns = [None] if self.campaign.args.data_servers and not stops else [client]
        excuses = self.excused(concerns, "it was silent for longer than the lease")
        if concerns == [None]:
            self.nodes_go()
        if stops:
            self.stop([self.cluster.mount_pid(self.cluster.mounts[client])])
        else:
            self.cut(self.cluster.clients[client])
        self.lasting(seconds)
        if concerns == [None]:
            self.afterwards()
        else:
            self.campaign.wait(AFTERWARDS_S)
        self.over(excuses)

    def do_client(self):
        """The process of a mount is killed; another one takes its place once its programs have heard of it."""
        client = self.random.randrange(self.campaign.args.clients)
        self.tell(f"the mount of client {client} killed and made anew")
        mount = self.cluster.mounts[client]
        self.under_way = True
        self.campaign.stop_ballast(client)
        excuses = self.excused([client], "its mount was killed")
        pid = self.cluster.mount_pid(mount)
        with self.lock:
            self.planner.dead[client] = []
        os.kill(pid, signal.SIGKILL)
        with self.lock:
            # What they did in the bare directory below would be seen by nobody.
            self.planner.resting.add(client)
        self.campaign.until(f"programs of the dead client {client} are answered", lambda: self.planner.quiet(client))
        self.campaign.wait(self.random.uniform(0.0, 3.0))
        run(["umount", "-l", mount])
        self.cluster.show(mount)
        # What it had asked for the server may still do.
        deadline = time.monotonic() + FORGETS_WITHIN_S
        while self.cluster.knows(pid):
            if time.monotonic() > deadline:
                raise Failure(f"the server still has client {client}, which is dead")
            self.campaign.wait(0.3)
        with self.lock:
            self.planner.buried(client)
            self.planner.resting.discard(client)
        self.campaign.start_ballast(client)
        self.all_back()
        self.campaign.wait(AFTERWARDS_S)
        self.over(excuses)
