"""Loop devices limited by the block-I/O controller, that of a burst buffer and that of a PFS, and a Forebay between them."""

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections import deque
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from machine import Failure  # noqa: E402

BLKIO = Path("/sys/fs/cgroup/blkio")
# The model of the device is looked at so often, in seconds.
STEP_S = 0.2
# What the PFS's device wrote counts as a mean over so many looks.
LOOKS = 3
# The write limit follows by steps of this share. Every change begins a slice of the controller anew, and with it what a slice lets
# through at once: a limit that changes with every look lets through a tenth too much.
CHANGE = 0.03
# A directory that changed so lately may change again with the same time.
FRESH_NS = 100_000_000


INTERRUPTED = threading.Event()


def pause(seconds):
    """Sleeps, unless the user wants everything to end."""
    if INTERRUPTED.wait(max(0.0, seconds)):
        raise Failure("interrupted")


def run(*command, timeout=120):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=timeout)
    if done.returncode != 0:
        raise Failure(f"{' '.join(map(str, command))}: {done.stderr.strip() or done.returncode}")
    return done.stdout


def unmount(point, patience_s=30):
    """A daemon that has just ended may still hold descriptors for a moment."""
    deadline_s = time.monotonic() + patience_s
    while True:
        try:
            return run("umount", point)
        except Failure:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.2)


class Device:
    """A file as a block device with ext4 on it, mounted. A sparse one takes only what is in it."""

    def __init__(self, work, name, size, sparse):
        self.image, self.point = work / f"{name}.img", work / name
        self.point.mkdir()
        with open(self.image, "wb") as image:
            if sparse:
                image.truncate(size)
            else:
                os.posix_fallocate(image.fileno(), 0, size)
        self.device = run("losetup", "--find", "--show", "--direct-io=on", self.image).strip()
        self.limits = {}
        self.mounted = False
        try:
            run("mkfs.ext4", "-q", "-F", "-m", "0", "-O", "^has_journal", self.device)
            run("mount", "-o", "noatime,discard" if sparse else "noatime", self.device, self.point)
            self.mounted = True
            status = os.stat(self.device)
            self.number = f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"
        except Exception:
            self.close()
            raise

    def limit(self, kind, bytes_per_s):
        """Limits `read` or `write`; 0 lifts the limit."""
        value = max(int(bytes_per_s), 1) if bytes_per_s else 0
        before = self.limits.get(kind, 0)
        if abs(value - before) > CHANGE * before or not value and before:
            (BLKIO / f"blkio.throttle.{kind}_bps_device").write_text(f"{self.number} {value}\n")
            self.limits[kind] = value

    def written_bytes(self):
        fields = Path(f"/sys/block/{Path(self.device).name}/stat").read_text().split()
        return int(fields[6]) * 512

    def close(self):
        for kind in list(self.limits):
            self.limit(kind, 0)
        if self.mounted:
            unmount(self.point)
        run("losetup", "--detach", self.device)
        self.image.unlink()


class Straight:
    """What goes to the PFS without having been in the burst buffer: checkpoints whose objects are in the overflow there. The PFS's
    device writes it, but the burst buffer's is not disturbed by it."""

    def __init__(self, pfs):
        self.pfs, self.shelves, self.sizes, self.owed = pfs, {}, {}, 0

    def _objects(self):
        """A shelf is listed only if it may have changed since it was."""
        for shelf in self.pfs.glob(".forebay-*/objects/*"):
            with contextlib.suppress(FileNotFoundError):
                changed_ns = shelf.stat().st_mtime_ns
                if self.shelves.get(shelf, (0, []))[0] != changed_ns or time.time_ns() - changed_ns < FRESH_NS:
                    self.shelves[shelf] = (changed_ns, list(shelf.iterdir()))
                yield from self.shelves[shelf][1]

    def of(self, written):
        """How much of what the device has just written."""
        for path in self._objects():
            with contextlib.suppress(FileNotFoundError):
                size = path.stat().st_size
                self.owed += max(0, size - self.sizes.get(path.name, 0))
                self.sizes[path.name] = size
        part = min(written, self.owed)
        self.owed -= part
        return part


class Awake:
    """Processes that spin whenever nobody else wants a processor. The host of a virtual machine takes away processors that sleep, and
    gives them back late: what runs by the clock, as everything here, then finds its hundredths of a second stretched."""

    SPIN = """
import os, sys
os.sched_setaffinity(0, {int(sys.argv[1])})
os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
if os.path.exists("/proc/self/autogroup"):
    # Else the group of this session would get as much as any other.
    with open("/proc/self/autogroup", "w") as group:
        group.write("19")
while os.getppid() == int(sys.argv[2]):
    for _ in range(1 << 20):
        pass
"""

    def __enter__(self):
        is_virtual = "hypervisor" in Path("/proc/cpuinfo").read_text()
        command = lambda cpu: [sys.executable, "-c", self.SPIN, str(cpu), str(os.getpid())]
        self.spinners = [subprocess.Popen(command(cpu), start_new_session=True) for cpu in os.sched_getaffinity(0) if is_virtual]
        return self

    def __exit__(self, *_error):
        for spinner in self.spinners:
            spinner.kill()
            spinner.wait()


class Forebay:
    """A running burst buffer over two devices, and the model of how they disturb each other.

    Independent devices do not disturb each other, so the interference line of the papers is imposed: the write limit of the burst
    buffer's device follows `Bwmax - (Bwmax - Bwmin) * BWr / Brmax`, where BWr is what the PFS's device really wrote of demotions in
    the last 0.6 s.
    """

    def __init__(self, program, work, rates, capacity, options, mtbfs, devices=None, pfs_capacities=4, sparse=False):
        if not BLKIO.is_dir():
            raise Failure("no cgroup v1 blkio controller here: the devices cannot be limited")
        self.program, self.rates, self.work = program, rates, work
        self.devices = devices or rates
        self.samples, self.ending, self.is_unlimited = [], threading.Event(), False
        self.parts = []
        try:
            self.buffers = [self._device(name, capacity * 1.12, sparse) for name in self._names()]
            for buffer in self.buffers:
                (buffer.point / "tier").mkdir()
            self.pfs = self._device("pfs", capacity * len(self.buffers) * pfs_capacities, sparse)
            self.state = work / "state"
            self._start(capacity, self._settings(options), self._rules(mtbfs))
        except Exception:
            self._release()
            raise
        self.thread = threading.Thread(target=self._follow, daemon=True)
        self.thread.start()

    def _names(self):
        """Of the burst buffer's devices."""
        return ["bb"]

    def _device(self, name, size, sparse):
        device = Device(self.work, name, int(size) + (64 << 20), sparse)
        self.parts.append(device)
        return device

    def _settings(self, options):
        rates = "".join(f"{name} = {int(value)}\n" for name, value in self.rates.items())
        lines = lambda table: "".join(f"{key} = {json.dumps(value)}\n" for key, value in table.items())
        return f'[demotion]\n{lines(options.get("demotion", {}))}[engine]\n{rates}{lines(options.get("engine", {}))}'

    def _rules(self, mtbfs):
        return "".join(f'[[rule]]\npath = "/{name}/**"\nmtbf = "{mtbf_s}s"\n' for name, mtbf_s in mtbfs.items())

    def _start(self, capacity, settings, rules):
        mount = self.work / "mnt"
        mount.mkdir()
        self.mounts = [mount]
        (self.work / "bb.toml").write_text(
            f'pfs = "{self.pfs.point}"\nmount = "{mount}"\nstate = "{self.state}"\n'
            f'ssd = ["{self.buffers[0].point}/tier:{int(capacity)}"]\nwait_for_space = "30m"\n{settings}{rules}')
        run(self.program, "up", "--config", self.work / "bb.toml", "--detach")

    def _stop(self):
        run(self.program, "down", "--state", self.state, timeout=120)

    def _follow(self):
        before = self.pfs.written_bytes()
        looks, straight, demoted = deque([(time.monotonic(), 0)], maxlen=LOOKS), Straight(self.pfs.point), 0
        rates = self.devices
        while not self.ending.wait(STEP_S):
            now_s, now = time.monotonic(), self.pfs.written_bytes()
            own = sum(buffer.written_bytes() for buffer in self.buffers)
            demoted += now - before - straight.of(now - before)
            before = now
            begin_s, begin = looks[0]
            demotion = min((demoted - begin) / (now_s - begin_s), rates["br_max"])
            beside = rates["bw_max"] - (rates["bw_max"] - rates["bw_min"]) * demotion / rates["br_max"]
            for buffer in self.buffers:
                # Who of them demotes is not seen from here: each is taken to have an even part.
                buffer.limit("write", 0 if self.is_unlimited else beside / len(self.buffers))
            self.pfs.limit("write", 0 if self.is_unlimited else rates["br_max"])
            self.samples.append({"at_s": now_s, "pfs_bytes": now, "buffer_bytes": own})
            looks.append((now_s, demoted))

    def status(self):
        return json.loads(run(self.program, "status", "--json", "--state", self.state))

    def settle(self, patience_s=600):
        """Waits until all is on the PFS and the period is over, without limits meanwhile."""
        deadline_s = time.monotonic() + patience_s
        self.is_unlimited = True
        while (status := self.status())["dirty_bytes"] > 0 or status["dwsf_bytes"] > 0:
            if time.monotonic() > deadline_s:
                raise Failure("the burst buffer does not become clean")
            pause(0.3)
        self.is_unlimited = False
        pause(2 * STEP_S)

    def log(self):
        return (self.state / "forebay.log").read_text(errors="replace")[-4000:]

    def policy(self, name, placement="bbos"):
        run(self.program, "policy", name, "--placement", placement, "--state", self.state)

    def where(self, *paths):
        return json.loads(run(self.program, "where", "--json", *paths))

    def close(self):
        self.ending.set()
        self.thread.join()
        for device in self.parts:
            device.limit("write", 0)
        try:
            self._stop()
        finally:
            self._release()

    def _release(self):
        for device in reversed(self.parts):
            device.close()
        self.parts = []
