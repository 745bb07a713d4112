"""Memory is given back beside the load, by orders that come and go, and a kill in the midst of it."""

import time

MIB = 1 << 20
GROWS_S = 40


class Lend:
    def __init__(self, campaign):
        self.campaign, self.buffer, self.random = campaign, campaign.buffer, campaign.random

    def prepare(self):
        """From here on memory is borrowed, until a start chooses anew; the tier is as large as it may be, if nothing else keeps it small."""
        if not self.buffer.borrows:
            self.buffer.down()
            self.buffer.start(borrows=True)
        self.buffer.command("lend", "--end")
        deadline = time.monotonic() + GROWS_S
        while self._lending()["borrowed_bytes"] < self._lending()["ceiling_bytes"] and time.monotonic() < deadline:
            time.sleep(0.2)

    def go(self):
        """Whether it met something, and whether the daemon was killed."""
        before = self._left()
        for _ in range(self.random.randrange(1, 5)):
            ceiling = self._lending()["memory_bytes"]
            self.buffer.command("lend", str(self.random.choice([ceiling, self.random.randrange(64 * MIB)])), "--for", "soak")
            time.sleep(self.random.uniform(0.0, 0.6))
            if self.random.random() < 0.4:
                self.buffer.command("lend", "--end", "--for", "soak")
        met = self._left() > before
        is_killed = self.random.random() < 0.5
        if is_killed:
            self.buffer.command("lend", "1TiB")
            time.sleep(self.random.uniform(0.0, 0.2))
            self.buffer.kill()
        return met, is_killed

    def _lending(self):
        return self.buffer.status()["lending"]

    def _left(self):
        now = self._lending()
        return now["moved_bytes_total"] + now["dropped_bytes_total"]
