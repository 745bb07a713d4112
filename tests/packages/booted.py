"""A throw-away copy of this machine with a systemd of its own: an overlay over its root, in namespaces that end with it."""

import contextlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
from machine import Failure, run  # noqa: E402

BOOT = Path(__file__).resolve().parent / "booted.sh"
PATIENCE_S = 60.0


def until(what, look, patience_s=PATIENCE_S):
    end = time.monotonic() + patience_s
    while not (found := look()):
        if time.monotonic() > end:
            raise Failure(f"not within {patience_s:.0f} s: {what}")
        time.sleep(0.1)
    return found


class Booted:
    """The copy, from its boot on. `files` are in its folder /pkgs."""

    def __init__(self, base, files):
        self.base, self.files = base, files
        self.outer = self.init = self.group = None
        self.boots = 0

    def __enter__(self):
        try:
            self.prepare()
            self.boot()
        except BaseException:
            self.__exit__()
            raise
        return self

    def prepare(self):
        run(["mount", "-t", "tmpfs", "tmpfs", self.base])
        (self.base / "upper/pkgs").mkdir(parents=True)
        for file in self.files:
            shutil.copy(file, self.base / "upper/pkgs")

    def boot(self):
        self.boots += 1
        self.group = cgroup2() / f"forebay-packages-{os.getpid()}-{self.boots}"
        self.group.mkdir()
        log = open(self.base / "boot.log", "ab")
        # In a control group of its own before there is a namespace of them: systemd takes the one it finds itself in.
        enter = f"echo $$ >{self.group}/cgroup.procs && exec \"$@\""
        self.outer = subprocess.Popen(
            ["sh", "-c", enter, "sh", "unshare", "--mount", "--pid", "--fork", "--kill-child", "--cgroup", "--uts", "--ipc", "--net",
             "--propagation", "private", BOOT, self.base], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        log.close()
        until("systemd has booted", self.is_booted)

    def reboot(self):
        """systemd stops the copy in order, and a new one boots on the same files. What was in memory, in any tmpfs, is gone."""
        # What asks ends with the rest, sooner or later.
        self.run("systemctl", "--no-block", "reboot", check=False)
        until("the copy has stopped", lambda: self.outer.poll() is not None, 3 * PATIENCE_S)
        self.outer = self.init = None
        self.remove_group()
        self.boot()

    def is_booted(self):
        if self.outer.poll() is not None:
            text = (self.base / "boot.log").read_text(encoding="utf-8", errors="replace")
            raise Failure(f"the copy of this machine did not boot: {text.strip()}")
        if not self.init:
            children = Path(f"/proc/{self.outer.pid}/task/{self.outer.pid}/children").read_text(encoding="ascii").split()
            self.init = int(children[0]) if children else None
        with contextlib.suppress(OSError):
            if self.init and Path(f"/proc/{self.init}/comm").read_text(encoding="ascii").strip() == "systemd":
                return self.run("systemctl", "is-active", "packages.target", check=False).returncode == 0
        return False

    def run(self, *words, check=True, timeout_s=PATIENCE_S, **options):
        """A command in the copy, as root."""
        enter = ["nsenter", "--target", self.init, "--mount", "--pid", "--cgroup", "--uts", "--ipc", "--net", "--root", "--wd"]
        return run([*enter, "env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "TERM=dumb", "LC_ALL=C.UTF-8", *words],
                   check=check, timeout_s=timeout_s, **options)

    def sh(self, line, **options):
        return self.run("bash", "-c", line, **options)

    def __exit__(self, *_):
        if self.init:
            with contextlib.suppress(ProcessLookupError):
                # The first process of a namespace: all others end with it.
                os.kill(self.init, 9)
        if self.outer:
            if not self.init:
                self.outer.kill()
            self.outer.wait()
        run(["umount", "-l", self.base], check=False)
        self.remove_group()

    def remove_group(self):
        if self.group:
            for folder, _, _ in sorted(os.walk(self.group), reverse=True):
                until(f"{folder} is empty", lambda folder=folder: removed(folder))
        self.group = None


def removed(folder):
    try:
        os.rmdir(folder)
    except OSError:
        return False
    return True


def cgroup2():
    for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines():
        _, point, kind, *_ = line.split()
        if kind == "cgroup2":
            return Path(point)
    raise Failure("no cgroup2 is mounted here, which systemd needs")
