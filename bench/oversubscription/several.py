"""A burst buffer of several nodes: a data server with a limited device of its own and a mount on each, and one PFS."""

import contextlib
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "mulconn"))

from devices import Forebay, run  # noqa: E402
from fleet import PORT, end_process, pid_in, unmount_below  # noqa: E402
from nodes import nodes  # noqa: E402


class Several(Forebay):
    """As `Forebay`, on so many nodes; rates and capacity are of all together. The metadata server has a node to itself, and no tiers."""

    def __init__(self, count, *args, **options):
        self.count, self.stack = count, contextlib.ExitStack()
        super().__init__(*args, **options)

    def _names(self):
        return [f"bb{number}" for number in range(2, self.count + 2)]

    def _start(self, capacity, settings, rules):
        self.of_nodes = self.stack.enter_context(nodes(self.count + 1))
        self.config = self.work / "cluster.toml"
        servers = ""
        for number, node in enumerate(self.of_nodes, 1):
            tiers = f'ssd = ["{self.buffers[number - 2].point}/tier:{int(capacity)}"]\n' if number > 1 else ""
            servers += (f'[[server]]\nid = {number}\nroles = ["{"data" if number > 1 else "metadata"}"]\n'
                        f'addresses = ["{node.address}:{PORT}"]\nstate = "{self._state(number)}"\n{tiers}')
        self.config.write_text(f'wait_for_space = "30m"\n[cluster]\nname = "bench"\npfs = "{self.pfs.point}"\nkey = "{self.work}/key"\n'
                               f"{settings}{servers}{rules}")
        run(self.program, "keygen", self.work / "key")
        self.mounts = []
        try:
            for number in [*range(2, self.count + 2), 1]:
                self._on(number, "server", "--config", self.config, "--id", number, "--detach")
            for number in range(2, self.count + 2):
                point = self.work / f"mnt{number}"
                point.mkdir()
                self.mounts.append(point)
                self._on(number, "mount", "--config", self.config, point, "--detach")
        except BaseException:
            self._stop()
            raise

    def _state(self, number):
        return self.state if number == 1 else self.work / f"state{number}"

    def _on(self, number, *command):
        return run(*self.of_nodes[number - 1].words(self.program, *command))

    def _stop(self):
        with self.stack:
            for point in self.mounts:
                unmount_below(point)
            for number in range(1, self.count + 2):
                pid = pid_in(self._state(number) / "forebay.pid", self.config)
                if pid:
                    end_process(pid, patience_s=30.0)
