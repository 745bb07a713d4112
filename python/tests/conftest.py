"""A real burst buffer for each test that asks for one: `forebay up` on a temporary directory.

FOREBAY_BIN names the program. Needs root, for kernel passthrough and throttled devices, and /dev/fuse.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import forebay

ROOT = Path(__file__).resolve().parents[2]
MIB = 1 << 20

LAZY = "[demotion]\nidle = false\n"
"""Nothing drains unless it is told to."""
EAGER = '[demotion]\nidle_after = "50ms"\nretry_after = "100ms"\n'
GROUP = '[[rule]]\npath = "/run/ckpt-{version}"\ngroup = "commit"\n'


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="without the tests that wait for a slow PFS")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--quick"):
        slow = [item for item in items if "slow" in getattr(item, "fixturenames", ())]
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if item not in slow]


class BurstBuffer:
    """A burst buffer, its folders, and its end."""

    def __init__(self, base: Path, config: str, pfs: Path, dram: str = "64MiB", ssd: str = "256MiB") -> None:
        self.base, self.pfs = base, pfs
        self.mount, self.state, self.ssd = base / "bb", base / "state", base / "ssd"
        self.config = base / "forebay.toml"
        self.sizes = (dram, ssd)
        self.config.write_text(config)
        for folder in (self.mount, self.ssd):
            folder.mkdir()
        pfs.mkdir(exist_ok=True)

    def up(self) -> None:
        dram, ssd = self.sizes
        words = ["up", "--pfs", self.pfs, "--mount", self.mount, "--state", self.state, "--config", self.config]
        words += ["--dram", dram or "none", "--ssd", f"{self.ssd}:{ssd}", "--detach"]
        done = subprocess.run([os.environ["FOREBAY_BIN"], *words], timeout=60, capture_output=True)
        assert done.returncode == 0, done.stderr

    def down(self) -> None:
        words = ["down", "--state", self.state, "--timeout", "60s"]
        subprocess.run([os.environ["FOREBAY_BIN"], *words], timeout=90, capture_output=True)
        for point in (self.mount, self.state / "dram"):
            while os.path.ismount(point):
                subprocess.run(["umount", "-l", point], check=True, timeout=30)

    def kill(self) -> None:
        """As a crash ends it."""
        os.kill(int((self.state / "forebay.pid").read_text()), signal.SIGKILL)

    def write(self, name: str, size: int = 1000) -> Path:
        path = self.mount / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(size))
        return path

    def states(self, path: Path) -> set[str]:
        return {file.state for file in forebay.where(path)}


def _skip(reason: str) -> None:
    if os.environ.get("FOREBAY_NO_SKIP") == "1":
        pytest.fail(f"would be skipped: {reason}")
    if listed := os.environ.get("FOREBAY_SKIPPED"):
        with open(listed, "a", encoding="utf-8") as file:
            file.write(f"python: skipped: {reason}\n")
    pytest.skip(reason)


@pytest.fixture(scope="session", autouse=True)
def _place() -> None:
    """A mount namespace of these tests' own, without other burst buffers."""
    if "FOREBAY_BIN" not in os.environ:
        pytest.exit("FOREBAY_BIN has to name the program forebay", 2)
    if os.geteuid() != 0 or not os.path.exists("/dev/fuse"):
        _skip("needs root and /dev/fuse")
    before = os.readlink("/proc/self/ns/mnt")
    libc = ctypes.CDLL(None, use_errno=True)
    clone_newns = 0x00020000
    if libc.unshare(clone_newns) != 0 or os.readlink("/proc/self/ns/mnt") == before:
        pytest.exit(f"no mount namespace: {os.strerror(ctypes.get_errno())}", 2)
    subprocess.run(["mount", "--make-rprivate", "/"], check=True, timeout=30)
    others = [line.split() for line in Path("/proc/self/mounts").read_bytes().splitlines()]
    for point in [fields[1] for fields in others if fields[2] == b"fuse.forebay"]:
        subprocess.run(["umount", "-l", point.decode("unicode_escape").encode("latin-1")], check=True, timeout=30)


@pytest.fixture
def start() -> Iterator[object]:
    """Starts burst buffers; all end with the test."""
    with contextlib.ExitStack() as stack:

        def begin(config: str = LAZY, **given: object) -> BurstBuffer:
            base = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="forebay-python-")))
            pfs = Path(given.pop("pfs", base / "pfs"))  # type: ignore[arg-type]
            one = BurstBuffer(base, config, pfs, **given)  # type: ignore[arg-type]
            stack.callback(one.down)
            one.up()
            return one

        yield begin


@pytest.fixture
def bb(start) -> BurstBuffer:  # type: ignore[no-untyped-def]
    """One on which nothing drains by itself."""
    return start()  # type: ignore[no-any-return]


@pytest.fixture
def small_pfs() -> Iterator[Path]:
    """A PFS of 4 MiB."""
    with tempfile.TemporaryDirectory(prefix="forebay-python-") as base:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "forebay-test", base], check=True, timeout=30)
        try:
            yield Path(base)
        finally:
            subprocess.run(["umount", "-l", base], check=True, timeout=30)


@pytest.fixture
def slow(start) -> Iterator[BurstBuffer]:  # type: ignore[no-untyped-def]
    """One whose PFS takes 3 MiB/s: on a loaded machine, too, a program is done before it is."""
    sys.path.insert(0, str(ROOT / "scripts"))
    from slowpfs import slow_pfs

    with contextlib.ExitStack() as stack:
        base = stack.enter_context(tempfile.TemporaryDirectory(prefix="forebay-python-"))
        pfs, description = stack.enter_context(slow_pfs(base, 3 * MIB, 64 * MIB))
        if "not slowed down" in description:
            _skip(description)
        one = start(pfs=pfs)
        yield one
        one.down()


def commands_left() -> list[str]:
    """Commands of this process that still run."""
    children = Path(f"/proc/{os.getpid()}/task").glob("*/children")
    pids = [pid for file in children for pid in file.read_text().split()]
    lines = []
    for pid in pids:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            lines.append(Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return [line for line in lines if "--json" in line]


def wait_until(what: str, true, limit_s: float = 30.0) -> None:  # type: ignore[no-untyped-def]
    """Until something holds that is not this test's own doing."""
    end = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < end, f"not within {limit_s} s: {what}"
        time.sleep(0.02)


