"""Demotion, eviction and stage-in of a file and its neighbours, all the time, beside whoever uses it."""

import os
import threading

from machine import MIB, Failure, run

NEIGHBOURS = 4
NEIGHBOUR_BYTES = 6 * MIB
# Exit 3: refused for some paths, such as the release of a file that is not drained.
FINE = (0, 3)


class Churn:
    """Moves files in a thread of its own, from the beginning of the block to its end."""

    def __init__(self, here, path):
        # Whoever uses the file is on the first node, where there are several.
        self._here, self._path = here, here.elsewhere(path)
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._work, name="churn")
        self._error = None
        self.rounds = 0
        self.moved = {"stage-out": 0, "release": 0, "stage-in": 0}

    def __enter__(self):
        self._before = self._here.forebay.status()["demoted_bytes_total"]
        self._thread.start()
        return self

    def __exit__(self, kind, *_):
        self._end.set()
        self._thread.join()
        if kind is None and self._error:
            raise self._error

    def demoted_bytes(self):
        return self._here.forebay.status()["demoted_bytes_total"] - self._before

    def _work(self):
        try:
            while not self._end.wait(0.01):
                self._round()
                self.rounds += 1
        except (Failure, OSError) as error:
            self._error = error

    def _round(self):
        neighbour = self._path.with_name(f"neighbour-{self.rounds % NEIGHBOURS}")
        content = os.urandom(64) * (NEIGHBOUR_BYTES // 64)
        neighbour.write_bytes(content)
        # A file that is open for writing is demoted when it is closed; to wait for that would be to do nothing.
        self._move(["stage-out"], self._path)
        for command in (["release"], ["stage-in"]):
            self._move(command, self._path)
        for command in (["stage-out", "--wait"], ["release"], ["stage-in"]):
            self._move(command, neighbour)
        from_another = self._here.mounts[-1] / neighbour.relative_to(self._here.mounts[1 % len(self._here.mounts)])
        if from_another.read_bytes() != content:
            raise Failure(f"{neighbour} has not the content that was written")

    def _move(self, command, path):
        done = run([self._here.forebay.binary, *command, path], check=False, timeout_s=120)
        if done.returncode not in FINE:
            raise Failure(f"{command[0]} {path}: exit {done.returncode}: {done.stderr.strip()}")
        if path == self._path and done.returncode == 0:
            self.moved[command[0]] += 1
