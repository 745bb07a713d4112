"""Where the suites run: a PFS and a flash directory on loop devices, and a burst buffer in front of them."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from loopext4 import loop_ext4, say  # noqa: E402, F401
from machine import GIB, Failure, Forebay, Network  # noqa: E402

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "cluster"))

from cluster import cluster  # noqa: E402

# Sparse: they take what is written.
PFS_BYTES = 16 * GIB
FLASH_BYTES = 48 * GIB
# With less available, a file of which nothing is known would not get the kernel's passthrough.
FLASH_FOR_PASSTHROUGH = "40GiB"


class Place:
    """A burst buffer served in one way, the PFS behind it, and room outside of both."""

    def __init__(self, way, forebay, pfs, other):
        self.way, self.forebay, self.pfs, self.other = way, forebay, pfs, other
        self.mount = forebay.mount
        self.mounts = [self.mount]

    def folder(self, name):
        """A new folder, through the mount and on the PFS, open to everybody."""
        folder = self.mount / name
        folder.mkdir()
        folder.chmod(0o755)
        return folder, self.pfs / name

    def elsewhere(self, path, steps=1):
        """The same as another node sees it; with one mount, the path itself."""
        other = self.mounts[steps % len(self.mounts)]
        return other / path.relative_to(self.mount)

    def drain(self, path):
        self.forebay.command("stage-out", "--wait", path)

    def release(self, path):
        """Lets the clean copies go, so that what is read next comes from the PFS."""
        self.forebay.command("release", path)


def options_of(way, flash):
    if way == "passthrough":
        return ["--dram", "none", "--ssd", f"{flash}:{FLASH_FOR_PASSTHROUGH}"]
    # Small enough that what the suites write has to move; and each fsync demotes a file while it is open.
    return ["--no-passthrough", "--dram", "96MiB", "--ssd", f"{flash}:256MiB", "--durability", "pfs"]


def network(binary, base, pfs, flash):
    """The tiers of `requests`, behind a server; every request of the mount goes to it by TCP."""
    return Network(binary, pfs, [base / "mnt"], base, settings='durability = "pfs"',
                   tiers=f'dram = "96MiB"\nssd = ["{flash}:256MiB"]')


# Beside the metadata server; on each of them a mount and a data server.
NODES = 3


@contextlib.contextmanager
def on_nodes(base, binary, other):
    """Three nodes with a mount and a data server each, and a metadata server; the suites see the mount of the first node.

    The files lie on the nodes of who writes them, where the tiers of a node have room."""
    tiers = {"dram": "96MiB", "flash_size": "256MiB"}
    with cluster(binary, base, NODES, **tiers, settings='durability = "pfs"', data_servers=True) as running:
        here = Place("nodes", running, running.pfs, other)
        here.mounts = running.mounts
        yield here
        running.finish()


@contextlib.contextmanager
def place(base, binary, way):
    """A burst buffer that serves in this way, until the end of the block; then everything is on the PFS."""
    # Short names: the path of a socket has 107 bytes at most.
    base = base / way[:2]
    base.mkdir()
    other = base / "other"
    other.mkdir()
    if way == "nodes":
        base = base / "n"
        base.mkdir()
        with on_nodes(base, binary, other) as here:
            yield here
        return
    with loop_ext4(base, "pfs", PFS_BYTES) as pfs, loop_ext4(base, "flash", FLASH_BYTES) as flash:
        if way == "network":
            forebay = network(binary, base, pfs, flash)
        else:
            forebay = Forebay(binary, pfs, base / "mnt", base / "state", options_of(way, flash))
        with forebay:
            here = Place(way, forebay, pfs, other)
            if way == "passthrough":
                prove_passthrough(here)
            yield here
            forebay.finish()


def prove_passthrough(here):
    """Writes through an open file while the daemon is stopped: only the kernel itself can have written it."""
    # Only files of a known size are written so: the first ones of the series tell it.
    for number in (1, 2):
        (here.mount / f"proof.000{number}").write_bytes(b"written through")
    time.sleep(1)
    path = here.mount / "proof.0003"
    with open(path, "wb", buffering=0) as file:
        pid = here.forebay.pid()
        if pid is None:
            raise Failure("the daemon is not there")
        # With the first write the kernel asks whether there are privileges to drop.
        file.write(b"written ")
        os.kill(pid, signal.SIGSTOP)
        try:
            # A shell, because many programs ask for a file's attributes first.
            done = subprocess.run(["sh", "-c", "printf through"], stdout=file, timeout=30, check=False)
        except subprocess.TimeoutExpired as error:
            raise Failure("the kernel does not write by itself: this is no passthrough") from error
        finally:
            os.kill(pid, signal.SIGCONT)
    if done.returncode or path.read_bytes() != b"written through":
        raise Failure("what was written while the daemon was stopped is not there")
    path.unlink()
