"""JuiceFS as it ships: names in a Redis on a node, data in a directory that all nodes see, mounts on others."""

import contextlib
import time
from pathlib import Path

from fleet import end_process, pid_in
from nodes import Failure, run
from systems import is_mounted, unmount_below

PORT = 6379
VOLUME = "bench"
PATIENCE_S = 30.0


class Juice:
    """A Redis with files of its own below `base`, which keeps nothing on disk, and data on a tmpfs."""

    def __init__(self, node, base, store_bytes):
        self.node, self.base, self.store_bytes = node, Path(base), store_bytes
        self.store, self.pid_file = self.base / "store", self.base / "redis.pid"
        self.names = f"redis://{node.address}:{PORT}/0"

    def __enter__(self):
        self.store.mkdir(parents=True)
        try:
            run(["mount", "-t", "tmpfs", "-o", f"size={self.store_bytes},mode=0755,huge=within_size", "juice-bench", self.store])
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start(self):
        self.node.run("redis-server", "--port", str(PORT), "--bind", self.node.address, "--protected-mode", "no", "--save", "",
                      "--appendonly", "no", "--daemonize", "yes", "--dir", self.base, "--pidfile", self.pid_file,
                      "--logfile", self.base / "redis.log", timeout_s=PATIENCE_S)
        deadline = time.monotonic() + PATIENCE_S
        words = self.node.words("redis-cli", "-h", self.node.address, "-p", str(PORT), "ping")
        while run(words, check=False).returncode:
            if time.monotonic() > deadline:
                raise Failure(f"redis-server does not answer; see {self.base / 'redis.log'}")
            time.sleep(0.05)
        self.node.run("juicefs", "format", self.names, VOLUME, "--storage", "file", "--bucket", f"{self.store}/", timeout_s=PATIENCE_S)

    @contextlib.contextmanager
    def mount(self, node, name):
        point = self.base / f"mount-{name}"
        point.mkdir()
        try:
            node.run("juicefs", "mount", self.names, point, "--background", "--no-usage-report", "--no-bgjob", "--cache-dir",
                     self.base / f"cache-{name}", "--log", self.base / f"mount-{name}.log", timeout_s=PATIENCE_S)
            if not is_mounted(point):
                raise Failure(f"juicefs does not mount; see {self.base / f'mount-{name}.log'}")
            yield point
        finally:
            unmount_below(point)

    def __exit__(self, *_):
        # Redis writes how it was called over its command line.
        pid = pid_in(self.pid_file, None)
        if pid:
            end_process(pid)
        unmount_below(self.base)
