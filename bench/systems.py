"""The systems that are measured, and the load they are put under."""

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))

from machine import Failure, Forebay, ROOT, is_mounted, run, stop, unmount_below, workspace  # noqa: E402

# Automatic demotion off: what is measured is the write, or the explicit stage-out, and not both at once.
QUIET_CONFIG = "[demotion]\nidle = false\n"
MOUNT_PATIENCE_S = 10.0

START = time.monotonic()


def say(text):
    """A progress line; results go to standard output."""
    print(f"[{time.monotonic() - START:6.1f} s] {text}", file=sys.stderr, flush=True)


class Programs:
    """The reference file system and the load generator, built when they are missing."""

    def __init__(self, folder):
        target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
        folder = Path(folder) if folder else target / "release"
        self.bare, self.load_generator = folder / "bare-passthrough", folder / "bench-load"
        if not (self.bare.exists() and self.load_generator.exists()):
            say("building bare-passthrough and bench-load")
            run(["cargo", "build", "--release", "--quiet", "-p", "bare-passthrough"], cwd=ROOT)

    def load(self, mode, folder, **options):
        """Runs the load generator on a directory: {phase: figures}."""
        words = [word for name, value in options.items() for word in option_words(name, value)]
        return json.loads(run([self.load_generator, mode, folder, *words]).stdout)


def option_words(name, value):
    name = "--" + name.replace("_", "-")
    if value is True:
        return [name]
    return [] if value is False else [name, str(value)]


class Native:
    """The tier's own directory."""

    name = "native"

    def __init__(self, folder):
        self.path = Path(folder)

    def __enter__(self):
        self.path.mkdir(parents=True)
        return self

    def __exit__(self, *_):
        pass


class Bare:
    """The bare pass-through over a directory of the same kind."""

    name = "bare"

    def __init__(self, programs, source, mount, options=()):
        self.source, self.path = Path(source), Path(mount)
        self._command = [str(programs.bare), *options, str(source), str(mount)]
        self.process = None

    def __enter__(self):
        self.source.mkdir(parents=True)
        self.path.mkdir(parents=True)
        self.process = subprocess.Popen(self._command, start_new_session=True)
        try:
            self._wait_for_mount()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _wait_for_mount(self):
        deadline = time.monotonic() + MOUNT_PATIENCE_S
        while not is_mounted(self.path):
            if self.process.poll() is not None:
                raise Failure(f"bare-passthrough ended with exit {self.process.returncode}")
            if time.monotonic() > deadline:
                raise Failure("bare-passthrough does not mount")
            time.sleep(0.02)

    def __exit__(self, *_):
        stop(self.process)
        unmount_below(self.path)

    def pid(self):
        return self.process.pid


class Product(Forebay):
    """Forebay itself, with automatic demotion off."""

    name = "forebay"

    def __init__(self, binary, base, pfs, dram_bytes, options=()):
        config = Path(base) / "bench.toml"
        words = ["--dram", str(dram_bytes), "--config", config, *options]
        super().__init__(binary, pfs, Path(base) / "mount", Path(base) / "state", words)
        self._config = config
        self.path = self.mount

    def __enter__(self):
        self._config.parent.mkdir(parents=True, exist_ok=True)
        self._config.write_text(QUIET_CONFIG, encoding="utf-8")
        self.pfs.mkdir(parents=True, exist_ok=True)
        return super().__enter__()


@contextlib.contextmanager
def tier_directory(base, size_bytes):
    """A directory in memory: a tmpfs of our own, or for users without that right one in /dev/shm."""
    if os.geteuid() == 0:
        tier = Path(base) / "tier"
        with mounted(tier, "-t", "tmpfs", "-o", f"size={size_bytes},mode=0700,huge=within_size", "forebay-bench"):
            yield tier
    else:
        with workspace("forebay-bench-", "/dev/shm") as tier:
            yield tier


@contextlib.contextmanager
def pfs_directory(base, size_bytes):
    """A PFS of our own: an ext4 image, so that a sync waits for these measurements' bytes and no other program's.

    Users without the right to mount get a plain directory.
    """
    pfs = Path(base) / "pfs"
    if os.geteuid() != 0:
        pfs.mkdir()
        yield pfs
        return
    image = Path(base) / "pfs.img"
    with open(image, "wb") as file:
        file.truncate(size_bytes)
    run(["mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0", image])
    with mounted(pfs, "-o", "loop", image):
        yield pfs


@contextlib.contextmanager
def mounted(point, *how):
    point.mkdir()
    run(["mount", *how, point])
    try:
        yield
    finally:
        unmount_below(point)


def memory_kib(pid):
    """Resident memory of a process: all, its own, of files mapped, shared."""
    facts = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text("ascii").splitlines())
    names = {"rss": "VmRSS", "anonymous": "RssAnon", "file": "RssFile", "shared": "RssShmem"}
    return {ours: int(facts[name].split()[0]) for ours, name in names.items()}
