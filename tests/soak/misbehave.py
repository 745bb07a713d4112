"""A PFS that hangs, and one that gives errors."""

import time

# What fails, and whether it is done before.
ERRORS = (("write", "before"), ("fsync", "before"), ("fsync", "after"), ("create", "before"), ("link", "before"), ("link", "after"),
          ("rename", "before"), ("rename", "after"), ("unlink", "before"), ("lookup", "before"), ("getattr", "before"))


class Misbehave:
    def __init__(self, campaign):
        self.buffer, self.random = campaign.buffer, campaign.random

    def hang(self):
        """No call on the PFS returns for a while, shorter or longer than Forebay waits; answers whether it noticed, and whether the
        daemon was killed meanwhile."""
        long, killed = self.random.random() < 0.6, self.random.random() < 0.3
        until = time.monotonic() + (self.random.uniform(6, 9) if long else self.random.uniform(0.2, 2))
        noticed = False
        self.buffer.hanging.hang()
        try:
            while time.monotonic() < until:
                noticed = noticed or self.buffer.status()["pfs_silent_s"] is not None
                time.sleep(0.1)
            if killed:
                # It ends when the calls that it is in return.
                self.buffer.process.kill()
        finally:
            self.buffer.hanging.go_on()
        if killed:
            self.buffer.kill()
        else:
            self.buffer.wait_for("the PFS answers", lambda: self.buffer.status()["pfs_silent_s"] is None)
        return noticed, killed

    def fail(self):
        """Some operations on the PFS fail for a while; answers with how many have."""
        for operation, when in self.random.sample(ERRORS, self.random.randrange(1, 4)):
            self.buffer.hanging.fail(operation, when)
        time.sleep(self.random.uniform(0.5, 3))
        return self.buffer.hanging.heal()
