"""What takes things along: power cuts and state folders that are lost. And what is allowed to be lost then."""

import time

from account import FILES, RECORDS
from machine import Failure

COMES_BACK_WITHIN_S = 90.0


class Losses:
    """Faults of `Faults`."""

    def lose(self, what):
        """From now on what was not promised may be lost."""
        with self.lock:
            self.planner.nodes_go(what)
        self.campaign.until("nothing is under way that would meet another file", lambda: not self.planner.would_go_wrong())

    def back(self, what, excuses):
        """Until all servers are in reach again, and have said what is lost."""
        deadline = time.monotonic() + COMES_BACK_WITHIN_S
        while not self.cluster.is_in_reach():
            if time.monotonic() > deadline:
                raise Failure(f"not all servers are in reach after {COMES_BACK_WITHIN_S:.0f} s")
            self.campaign.wait(0.3)
        self.afterwards(what=what)
        self.over(excuses)

    def do_power(self, server=None):
        """A data server's node loses its power: its memory, and what was not flushed to its disks."""
        server, seconds = server or self.random.choice(sorted(self.cluster.data_states)), self.random.choice([0.0, self.random.uniform(0.1, 12.0)])
        self.tell(f"power of data server {server} cut, back after {seconds:.1f} s")
        self.under_way = True
        excuses = self.excused([None], "a data server has lost its power")
        self.lose(FILES)
        self.cluster.cut_power(server)
        self.undo.append(lambda: self.cluster.start_data(server))
        self.lasting(seconds)
        self.back(FILES, excuses)

    def do_emptied(self):
        """A data server's state folder is lost, with its memory."""
        server, seconds = self.random.choice(sorted(self.cluster.data_states)), self.random.choice([0.0, self.random.uniform(0.1, 12.0)])
        self.tell(f"state folder of data server {server} lost, back after {seconds:.1f} s")
        self.under_way = True
        excuses = self.excused([None], "a data server has lost its state folder")
        self.lose(FILES)
        self.cluster.empty_state(server)
        self.undo.append(lambda: self.cluster.start_data(server))
        self.lasting(seconds)
        self.back(FILES, excuses)

    def do_blackout(self):
        """The metadata server's node loses its power. With the records in etcd, which has its own, it has nothing to lose but
        its process."""
        seconds = self.random.choice([0.0, self.random.uniform(0.1, 12.0)])
        self.cluster.follow()
        server = next(number for number, (_, state) in self.cluster.metadata.items() if state == self.cluster.state)
        self.tell(f"power of the metadata server {server} cut, back after {seconds:.1f} s")
        self.under_way = True
        excuses = self.excused([None], "the metadata server has lost its power")
        if self.cluster.etcd:
            self.nodes_go()
        else:
            self.lose(RECORDS)
        self.cluster.cut_power(server)
        self.undo.append(self.cluster.start_server)
        self.lasting(seconds)
        if self.cluster.etcd:
            self.afterwards(self.takes_over_within_s)
            self.over(excuses)
        else:
            self.back(RECORDS, excuses)
