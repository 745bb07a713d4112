"""Forebay as nodes use it: `forebay server` on one node, `forebay mount` on others."""

import contextlib
import os
import signal
import time
from pathlib import Path

from nodes import Failure, run
from systems import is_mounted, unmount_below

PORT = 7070
START_PATIENCE_S = 60.0


class Cluster:
    """One server, and the mounts of it that are asked for. Automatic demotion is off."""

    def __init__(self, binary, node, base, dram_bytes, rate=None, port=PORT):
        self.binary, self.node, self.base = Path(binary), node, Path(base)
        self.state, self.pfs, self.config = self.base / "state", self.base / "pfs", self.base / "cluster.toml"
        self._text = f"""
[cluster]
name = "bench"
pfs = "{self.pfs}"
key = "{self.base / 'key'}"
{f'connection_rate = "{rate}B/s"' if rate else ''}

[[server]]
id = 1
roles = ["metadata", "data"]
addresses = ["{node.address}:{port}"]
state = "{self.state}"
dram = "{dram_bytes}"

[demotion]
idle = false
"""

    def __enter__(self):
        self.pfs.mkdir(parents=True)
        self.config.write_text(self._text, encoding="utf-8")
        run([self.binary, "keygen", self.base / "key"])
        try:
            self.node.run(self.binary, "server", "--config", self.config, "--id", "1", "--detach", timeout_s=START_PATIENCE_S)
        except BaseException:
            self._clean()
            raise
        return self

    def __exit__(self, *_):
        done = run([self.binary, "down", "--state", self.state, "--timeout", "30s"], check=False)
        if done.returncode:
            print(f"forebay down: exit {done.returncode}: {done.stderr.strip()}")
        self._clean()

    def _clean(self):
        pid = pid_in(self.state / "forebay.pid", self.config)
        if pid:
            end_process(pid)
        unmount_below(self.state)

    def pid(self):
        return pid_in(self.state / "forebay.pid", self.config)

    @contextlib.contextmanager
    def mount(self, node, name, *options):
        """A mount on a node; the directory where it is."""
        point = self.base / f"mount-{name}"
        point.mkdir()
        try:
            node.run(self.binary, "mount", "--config", self.config, point, "--detach", *options, timeout_s=START_PATIENCE_S)
            if not is_mounted(point):
                raise Failure(f"{point}: not mounted")
            yield point
        finally:
            unmount_below(point)


def pid_in(file, word):
    """The process of a pid file, if it is one whose command names `word`, where one is given."""
    try:
        pid = int(file.read_text(encoding="ascii"))
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (OSError, ValueError):
        return None
    return pid if word is None or os.fsencode(str(word)) in words else None


def end_process(pid, patience_s=5.0):
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        deadline = time.monotonic() + patience_s
        while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
