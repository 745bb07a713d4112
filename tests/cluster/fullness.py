"""How full the tiers are while a campaign runs, as `status` says."""

import collections
import json
import threading

from machine import Failure, run

BETWEEN_S = 1.0
COMMAND_S = 60.0
# Of a tier: in use or set aside for writers. No more than this is left for a file of some blocks.
FULL = 0.95


class Fullness:
    def __init__(self, campaign):
        self.campaign, self.is_over = campaign, threading.Event()
        self.thread = threading.Thread(target=self.look_on, daemon=True)
        self.looks, self.times_full, self.waited, self.by_tier = 0, 0, 0, collections.Counter()

    def start(self):
        self.thread.start()

    def stop(self):
        self.is_over.set()
        self.thread.join(COMMAND_S)

    def look_on(self):
        while not self.is_over.wait(BETWEEN_S):
            cluster = self.campaign.cluster
            try:
                done = run([cluster.binary, "status", "--state", cluster.state, "--json"], check=False, timeout_s=COMMAND_S)
            except Failure:
                continue  # the server stands still
            if done.returncode == 0:
                self.look(json.loads(done.stdout))

    def look(self, status):
        if "standby" in status:
            return
        self.looks += 1
        full = [tier["name"] for tier in status["tiers"] if tier["capacity_bytes"] and not tier["out_of_reach"]
                and tier["used_bytes"] + tier["reserved_bytes"] >= FULL * tier["capacity_bytes"]]
        self.times_full += bool(full)
        self.by_tier.update(full)
        self.waited = max(self.waited, status["waited_writes_total"])

    def judge(self, least):
        """Where tiers were to be full, they have to have been."""
        if self.times_full < least:
            raise Failure(f"tiers were found full {self.times_full} times only, not {least}: this run says nothing of full tiers")

    def told(self):
        tiers = ", ".join(f"{name} {count}" for name, count in sorted(self.by_tier.items())) or "none"
        return f"{self.times_full} of {self.looks} looks found one full ({tiers}); {self.waited} writes waited for space"
