"""A slow parallel file system for the demo: an ext4 image on a loop device that is throttled by the kernel.

Mounted with `-o sync`, so that a write takes as long as the device takes, as on a file system behind a network.
"""

import contextlib
import os
import time
from pathlib import Path

from machine import MIB, Failure, run, unmount_below

IMAGE_BYTES = 3 << 30  # sparse: what is written is what it takes
PROBE_BYTES = 24 * MIB
# Twice the wanted speed still makes a slow file system; more means that the limit has no effect.
PROBE_TOLERANCE = 2.0


class NoThrottle(Exception):
    """Why there is no slow file system on this machine."""


@contextlib.contextmanager
def slow_pfs(base, write_bytes_per_s, read_bytes_per_s):
    """Yields (directory, description). Falls back to a plain directory, and the description says so."""
    with contextlib.ExitStack() as stack:
        try:
            path = stack.enter_context(_throttled_ext4(base, write_bytes_per_s, read_bytes_per_s))
            speed = _probe(path)
            if speed > PROBE_TOLERANCE * write_bytes_per_s:
                raise NoThrottle(f"the limit has no effect ({speed / MIB:.0f} MiB/s)")
        except NoThrottle as reason:
            stack.close()
            path = Path(base) / "pfs-plain"
            path.mkdir()
            yield path, f"a plain directory, not slowed down: {reason}"
        else:
            yield path, (f"ext4 on a loop device limited to {write_bytes_per_s // MIB} MiB/s write and "
                         f"{read_bytes_per_s // MIB} MiB/s read; measured {speed / MIB:.0f} MiB/s write")


@contextlib.contextmanager
def _throttled_ext4(base, write_bytes_per_s, read_bytes_per_s):
    if os.geteuid() != 0:
        raise NoThrottle("only root can limit a device")
    throttle = _find_throttle()
    image, path = Path(base) / "pfs.img", Path(base) / "pfs"
    with open(image, "wb") as file:
        file.truncate(IMAGE_BYTES)
    path.mkdir()
    with contextlib.ExitStack() as stack:
        try:
            run(["mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0", image])
            device = run(["losetup", "--find", "--show", image]).stdout.strip()
            stack.callback(run, ["losetup", "--detach", device])
            run(["mount", "-o", "sync,nodev,nosuid", device, path])
        except Failure as error:
            raise NoThrottle(str(error)) from error
        stack.callback(unmount_below, path)
        number = Path(f"/sys/class/block/{Path(device).name}/dev").read_text(encoding="ascii").strip()
        stack.enter_context(throttle(number, write_bytes_per_s, read_bytes_per_s))
        yield path


def _probe(path):
    """The speed at which a program's writes really arrive."""
    file = path / ".probe"
    begin = time.monotonic()
    with open(file, "wb", buffering=0) as output:
        output.write(bytes(PROBE_BYTES))
        os.fsync(output.fileno())
    elapsed = time.monotonic() - begin
    file.unlink()
    return PROBE_BYTES / elapsed


def _find_throttle():
    """The kernel's throttle on this machine, of cgroup version 1 or 2."""
    with open("/proc/self/mountinfo", encoding="utf-8") as table:
        for line in table:
            before, after = line.split(" - ")
            point, kind, options = Path(before.split()[4]), after.split()[0], after.split()[2]
            if kind == "cgroup" and "blkio" in options.split(","):
                if (point / "blkio.throttle.write_bps_device").exists():
                    return lambda *limits: _throttle_v1(point, *limits)
            if kind == "cgroup2" and "io" in (point / "cgroup.controllers").read_text(encoding="ascii").split():
                return lambda *limits: _throttle_v2(point, *limits)
    raise NoThrottle("this kernel offers no blkio or io control group")


@contextlib.contextmanager
def _throttle_v1(point, device, write_bytes_per_s, read_bytes_per_s):
    """A limit in the root group holds for everybody, the kernel's own writers too; and the device is ours alone."""
    limits = {"write": write_bytes_per_s, "read": read_bytes_per_s}
    files = {point / f"blkio.throttle.{kind}_bps_device": limit for kind, limit in limits.items()}
    try:
        for file, limit in files.items():
            _write(file, f"{device} {limit}")
        yield
    finally:
        for file in files:
            _write(file, f"{device} 0")


@contextlib.contextmanager
def _throttle_v2(point, device, write_bytes_per_s, read_bytes_per_s):
    """A group of our own with the limit; this process and those it starts from now on live there."""
    with open("/proc/self/cgroup", encoding="ascii") as file:
        home = next(line.strip().split("::", 1)[1] for line in file if line.startswith("0::"))
    control = point / "cgroup.subtree_control"
    was_on = "io" in control.read_text(encoding="ascii").split()
    group = point / f"forebay-demo-{os.getpid()}"
    with contextlib.ExitStack() as stack:
        if not was_on:
            _write(control, "+io")
            stack.callback(_write, control, "-io")
        group.mkdir()
        stack.callback(group.rmdir)
        _write(group / "io.max", f"{device} rbps={read_bytes_per_s} wbps={write_bytes_per_s}")
        stack.callback(_write, point / home.lstrip("/") / "cgroup.procs", str(os.getpid()))
        _write(group / "cgroup.procs", str(os.getpid()))
        yield


def _write(file, text):
    try:
        file.write_text(text + "\n", encoding="ascii")
    except OSError as error:
        raise NoThrottle(f"{file}: {error.strerror}") from error
