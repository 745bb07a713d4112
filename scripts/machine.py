"""What the demo and the benchmark share: commands, mounts, one running Forebay, and cleaning up. Standard library only."""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


class Failure(Exception):
    """Something that the user should read as one line."""


def skip(tests, why):
    """Ends these tests, which cannot run here; scripts/test.sh says so at its end. With FOREBAY_NO_SKIP they fail."""
    line = f"{tests}: skipped: {why}"
    if os.environ.get("FOREBAY_NO_SKIP"):
        sys.exit(f"{line}, and FOREBAY_NO_SKIP is set")
    print(line)
    if path := os.environ.get("FOREBAY_SKIPPED"):
        with open(path, "a", encoding="utf-8") as file:
            file.write(line + "\n")
    sys.exit(0)


def run(argv, check=True, timeout_s=None, **options):
    """Runs a command to its end and returns it with its output; a failure names the command and its last words.

    Ctrl-C reaches only this process, which then ends the command itself.
    """
    argv = [str(word) for word in argv]
    try:
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="backslashreplace",
                                   start_new_session=True, **options)
    except OSError as error:
        raise Failure(f"{argv[0]}: {error.strerror}") from error
    try:
        output, errors = process.communicate(timeout=timeout_s)
    except BaseException as error:
        # The session is the command's own: it and its children, nobody else.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if isinstance(error, subprocess.TimeoutExpired):
            raise Failure(f"{' '.join(argv)}: not done within {timeout_s} s") from error
        raise
    done = subprocess.CompletedProcess(argv, process.returncode, output, errors)
    if check and done.returncode:
        raise Failure(f"{' '.join(argv)}: exit {done.returncode}: {last_line(errors or output)}")
    return done


def last_line(text):
    lines = text.strip().splitlines()
    return lines[-1] if lines else "no message"


def stop(process, grace_s=5.0):
    """Ends a process that this one started."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(grace_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def mounts_below(base):
    """Mount points at or below `base`, the last mounted first. Works on dead mounts too."""
    base = os.path.realpath(base)
    found = []
    with open("/proc/self/mountinfo", encoding="utf-8") as table:
        for line in table:
            point = re.sub(r"\\(\d{3})", lambda octal: chr(int(octal[1], 8)), line.split()[4])
            if point == base or point.startswith(base + "/"):
                found.append(point)
    return found[::-1]


def is_mounted(path):
    return os.path.realpath(path) in mounts_below(path)


def unmount_below(base, patience_s=3.0):
    """Unmounts all below `base`: properly while that is possible, else detached."""
    for point in mounts_below(base):
        deadline = time.monotonic() + patience_s
        while (done := unmount(point)).returncode and time.monotonic() < deadline:
            time.sleep(0.1)
        if done.returncode and os.path.realpath(point) in mounts_below(base):
            print(f"still in use, detached: {point} ({last_line(done.stderr)})", file=sys.stderr)
            unmount(point, "-l" if os.geteuid() == 0 else "-z")


def unmount(point, *options):
    command = ["umount"] if os.geteuid() == 0 else ["fusermount3", "-u"]
    return run([*command, *options, point], check=False)


def remove_tree(base):
    """Removes a temporary directory, and never reaches into something still mounted there."""
    unmount_below(base)
    if left := mounts_below(base):
        raise Failure(f"not removed, since still mounted: {', '.join(left)}")
    shutil.rmtree(base)


@contextlib.contextmanager
def workspace(prefix, parent=None):
    """A temporary directory; whatever is mounted below is unmounted at the end."""
    if parent is not None:
        parent.mkdir(parents=True, exist_ok=True)
    base = Path(tempfile.mkdtemp(prefix=prefix, dir=parent)).resolve()
    try:
        yield base
    finally:
        remove_tree(base)


@contextlib.contextmanager
def clean_exit_on_signals():
    """SIGTERM and SIGHUP end the program as Ctrl-C does: through every clean-up. A second signal does not cut it short."""
    def interrupt(_signal, _frame):
        for number in numbers:
            # Not SIG_IGN: commands started by the clean-up would inherit it.
            signal.signal(number, lambda *_: None)
        raise KeyboardInterrupt

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Forebay:
    """A burst buffer started with `forebay up --detach` and stopped with `forebay down`."""

    def __init__(self, binary, pfs, mount, state, options=()):
        self.binary, self.pfs, self.mount, self.state = Path(binary), Path(pfs), Path(mount), Path(state)
        self.options = list(options)
        self.is_up = False

    def __enter__(self):
        for folder in (self.mount, self.state):
            folder.mkdir(parents=True, exist_ok=True)
        self.is_up = True
        try:
            run([self.binary, "up", "--pfs", self.pfs, "--mount", self.mount, "--state", self.state,
                 *self.options, "--detach"])
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_):
        if self.is_up:
            done = run([self.binary, "down", "--state", self.state, "--timeout", "30s"], check=False)
            if done.returncode:
                print(f"forebay down: exit {done.returncode}: {last_line(done.stderr)}", file=sys.stderr)
            self._end()

    def finish(self, timeout="120s"):
        """Drains and stops: then everything is on the PFS."""
        self.command("down", "--state", self.state, "--drain", "--timeout", timeout)
        self.is_up = False

    def command(self, *words):
        return run([self.binary, *words])

    def facts(self, *words):
        """What a command prints with --json."""
        done = self.command(*words, "--json")
        try:
            return json.loads(done.stdout)
        except ValueError as error:
            raise Failure(f"forebay {words[0]} --json prints no JSON: {error}") from error

    def status(self):
        return self.facts("status", "--state", self.state)

    def pid(self):
        """The daemon's process id, when the process of that id is this very instance; else None."""
        try:
            pid = int((self.state / "forebay.pid").read_text(encoding="ascii"))
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except (OSError, ValueError):
            return None
        return pid if os.fsencode(self.state) in words else None

    def _end(self):
        """After a `down`, or instead of it: nothing of this instance is left running or mounted."""
        self.is_up = False
        for number in (signal.SIGTERM, signal.SIGKILL):
            deadline = time.monotonic() + 5.0
            if pid := self.pid():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            while self.pid() and time.monotonic() < deadline:
                time.sleep(0.05)
        for folder in (self.mount, self.state):
            unmount_below(folder)


class Network(Forebay):
    """A burst buffer started with `forebay server`, and one mount or several, each of which reaches it by TCP as another node does."""

    def __init__(self, binary, pfs, mounts, base, settings="", tiers="", cluster="", options=()):
        """`settings`, `tiers` and `cluster` are lines of the configuration file; `options` go to each mount."""
        base = Path(base)
        super().__init__(binary, pfs, mounts[0], base / "state", options)
        self.mounts, self.run_base = [Path(mount) for mount in mounts], base / "run"
        self.config, self.key = base / "cluster.toml", base / "key"
        self.port = free_port()
        self.config.write_text(f"""{settings}
[cluster]
name = "test"
pfs = "{self.pfs}"
key = "{self.key}"
{cluster}

[[server]]
id = 1
roles = ["metadata", "data"]
addresses = ["127.0.0.1:{self.port}"]
state = "{self.state}"
{tiers}
""", encoding="utf-8")

    def __enter__(self):
        for folder in (*self.mounts, self.state, self.run_base):
            folder.mkdir(parents=True, exist_ok=True)
        self.is_up = True
        try:
            run([self.binary, "keygen", self.key])
            self.start_server()
            for mount in self.mounts:
                self.show(mount)
        except BaseException:
            self._end()
            raise
        return self

    def start_server(self):
        run([self.binary, "server", "--config", self.config, "--id", "1", "--detach"])

    def show(self, mount, *options):
        """Mounts at one of the folders. Its files are the server's own, and yet they go over the network."""
        run([self.binary, "mount", "--config", self.config, mount, "--no-local", "--detach", *self.options, *options],
            env={**os.environ, "FOREBAY_RUN": str(self.run_base)})

    def unmount(self):
        for mount in self.mounts:
            unmount_below(mount)

    def finish(self, timeout="120s"):
        """Unmounts, and then as of any burst buffer."""
        self.unmount()
        super().finish(timeout)

    def pid(self):
        """As of any burst buffer; a server has the configuration on its command line."""
        try:
            pid = int((self.state / "forebay.pid").read_text(encoding="ascii"))
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except (OSError, ValueError):
            return None
        return pid if os.fsencode(self.config) in words else None

    def mount_pid(self, mount):
        """The process that serves a mount; None if there is none. It does not ask the mount, which may hang."""
        for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
            words = line.split()
            point, source = (re.sub(r"\\(\d{3})", lambda octal: chr(int(octal[1], 8)), word)
                             for word in (words[4], words[words.index("-") + 2]))
            if point != os.path.abspath(mount):
                continue
            with contextlib.suppress(OSError, ValueError):
                return int((Path(source) / "forebay.pid").read_text(encoding="ascii"))
        return None

    def __exit__(self, *_):
        # Whoever still has a file open would wait for a server that has gone.
        self.unmount()
        super().__exit__()

    def _end(self):
        self.unmount()
        super()._end()


def free_port():
    """Nobody has it at this moment."""
    with socket.socket() as asked:
        asked.bind(("127.0.0.1", 0))
        return asked.getsockname()[1]
