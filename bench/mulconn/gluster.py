"""GlusterFS as its package ships it: one volume of one brick on a node, mounts on others."""

import contextlib
import time
from pathlib import Path

from fleet import end_process
from nodes import Failure, run
from systems import is_mounted, unmount_below

VOLUME = "bench"
PATIENCE_S = 30.0


class Gluster:
    """glusterd with files of its own below `base`, and a brick on a tmpfs like that of Forebay's memory tier."""

    def __init__(self, node, base, brick_bytes):
        self.node, self.base, self.brick_bytes = node, Path(base), brick_bytes
        self.socket, self.brick = self.base / "glusterd.socket", self.base / "brick"

    def command(self, *words):
        return self.node.run("gluster", "--mode=script", f"--glusterd-sock={self.socket}", *words, timeout_s=120)

    def __enter__(self):
        for folder in (self.brick, self.base / "work", self.base / "run"):
            folder.mkdir(parents=True)
        try:
            run(["mount", "-t", "tmpfs", "-o", f"size={self.brick_bytes},mode=0755,huge=within_size", "gluster-bench", self.brick])
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start(self):
        words = {"working-directory": self.base / "work", "run-directory": self.base / "run", "transport-type": "socket",
                 "glusterd-sockfile": self.socket, "transport.socket.listen-port": 24007, "ping-timeout": 0, "event-threads": 1,
                 "max-port": 60999}
        options = "".join(f"    option {name} {value}\n" for name, value in words.items())
        (self.base / "glusterd.vol").write_text(f"volume management\n    type mgmt/glusterd\n{options}end-volume\n", encoding="utf-8")
        self.node.run("glusterd", "-f", self.base / "glusterd.vol", "-p", self.base / "glusterd.pid", "-l", self.base / "glusterd.log",
                      timeout_s=PATIENCE_S)
        deadline = time.monotonic() + PATIENCE_S
        while not self.socket.exists():
            if time.monotonic() > deadline:
                raise Failure(f"glusterd does not answer; see {self.base / 'glusterd.log'}")
            time.sleep(0.1)
        # Refused while the brick is the root of a mount, unless forced.
        self.command("volume", "create", VOLUME, f"{self.node.address}:{self.brick}", "force")
        self.command("volume", "start", VOLUME)

    @contextlib.contextmanager
    def mount(self, node, name):
        point = self.base / f"mount-{name}"
        point.mkdir()
        try:
            node.run("glusterfs", f"--volfile-server={self.node.address}", f"--volfile-id={VOLUME}",
                     f"--log-file={self.base / f'mount-{name}.log'}", point, timeout_s=PATIENCE_S)
            deadline = time.monotonic() + PATIENCE_S
            while not is_mounted(point):
                if time.monotonic() > deadline:
                    raise Failure(f"glusterfs does not mount; see {self.base / f'mount-{name}.log'}")
                time.sleep(0.05)
            yield point
        finally:
            unmount_below(point)

    def __exit__(self, *_):
        # Its processes are the node's, and end with it or here.
        run(self.node.words("gluster", "--mode=script", f"--glusterd-sock={self.socket}", "volume", "stop", VOLUME, "force"),
            check=False, timeout_s=60)
        for pid in self.node.pids():
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes()
                if str(self.base).encode() in words:
                    end_process(pid)
        unmount_below(self.base)
