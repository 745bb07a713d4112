"""A Slurm of its own: munge, slurmctld, two slurmd and a burst buffer, in namespaces that end with the test."""

import contextlib
import os
import re
import secrets
import shlex
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

from loopext4 import say
from machine import Failure, run

PLUGIN = ROOT / "integrations/slurm"
PARTS = ("burst_buffer.lua", "forebay_directives.lua", "forebay_records.lua", "forebay-bb")
HOST = "forebay-slurm"
NODES = ("n1", "n2")
USERS = {"alice": 47001, "bob": 47002, "slurmy": 47010}
PATIENCE_S = 40

SLURM_CONF = """\
ClusterName=forebay
SlurmctldHost={host}(127.0.0.1)
SlurmUser={slurm_user}
AuthType=auth/munge
AuthInfo=socket={munge}
CredType=cred/munge
SlurmctldPort=26817
SlurmctldPidFile={run}/slurmctld.pid
SlurmdPidFile={run}/slurmd-%n.pid
SlurmctldLogFile={run}/slurmctld.log
SlurmdLogFile={run}/slurmd-%n.log
StateSaveLocation={run}/save
SlurmdSpoolDir={run}/spool-%n
SlurmctldDebug=verbose
SlurmdDebug=verbose
DebugFlags=BurstBuffer
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_interval=1,sched_min_interval=100000,batch_sched_delay=1
MpiDefault=none
SwitchType=switch/none
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=15
CompleteWait=0
MailProg=/bin/true
BurstBufferType=burst_buffer/lua
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port=26818 CPUs=4
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port=26819 CPUs=4
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE
"""


def until(what, condition, patience_s=PATIENCE_S):
    """Waits for a condition, and returns what it gave."""
    end = time.monotonic() + patience_s
    while not (found := condition()):
        if time.monotonic() > end:
            raise Failure(f"not within {patience_s} s: {what}")
        time.sleep(0.1)
    return found


class Site:
    """All that one Slurm needs. What it starts ends with the PID namespace that it runs in."""

    def __init__(self, base, forebay, slurm_user="root", directive=None):
        self.base, self.directive, self.slurm_user = base, directive, slurm_user
        # A path that all users may follow and nobody exchanges.
        self.forebay = base / "forebay"
        if not self.forebay.exists():
            shutil.copy(forebay, self.forebay)
        self.pfs, self.mount, self.state = base / "pfs", base / "bb", base / "state"
        self.etc, self.run, self.home = base / f"etc-{slurm_user}", base / f"run-{slurm_user}", base / "home"
        self.local = base / "local"
        self.env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "SLURM_CONF": str(self.etc / "slurm.conf"), "LC_ALL": "C"}
        self.children = {}

    def start(self, name, argv, **options):
        log = open(self.run / f"{name}.out", "ab")
        options.setdefault("env", self.env)
        self.children[name] = subprocess.Popen([str(word) for word in argv], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                               start_new_session=True, **options)

    def stop(self, name, patience_s=20):
        child = self.children.pop(name)
        child.terminate()
        try:
            child.wait(patience_s)
        except subprocess.TimeoutExpired:
            child.kill()
            raise Failure(f"{name} did not end within {patience_s} s") from None

    def users(self):
        """Users of this test, in a mount namespace of its own: the machine has them not."""
        for name, line in (("passwd", "{0}:x:{1}:{1}::{2}:/bin/sh\n"), ("group", "{0}:x:{1}:\n")):
            copy = self.base / name
            copy.write_text(Path(f"/etc/{name}").read_text(encoding="utf-8")
                            + "".join(line.format(user, uid, self.home / user) for user, uid in USERS.items()), encoding="utf-8")
            copy.chmod(0o644)
            run(["mount", "--bind", copy, f"/etc/{name}"])
        # Of these users alone: sudo asks whether an account is locked.
        shadow = self.base / "shadow"
        shadow.write_text("".join(f"{user}:*:20000::::::\n" for user in ("root", *USERS)), encoding="utf-8")
        shadow.chmod(0o600)
        run(["mount", "--bind", shadow, "/etc/shadow"])
        # As on a usual machine; a container's is root's.
        fuse = self.base / "fuse"
        os.mknod(fuse, 0o666 | stat.S_IFCHR, os.stat("/dev/fuse").st_rdev)
        fuse.chmod(0o666)
        run(["mount", "--bind", fuse, "/dev/fuse"])
        hosts = self.base / "hosts"
        hosts.write_text(f"127.0.0.1 localhost {HOST} n1\n127.0.0.2 n2\n", encoding="utf-8")
        hosts.chmod(0o644)
        run(["mount", "--bind", hosts, "/etc/hosts"])
        for user, uid in USERS.items():
            (self.home / user).mkdir(parents=True)
            os.chown(self.home / user, uid, uid)

    def sudo(self):
        """What README.md has the administrator write, in the place of the machine's own rules."""
        rules = self.base / "sudoers"
        rules.write_text(f"{self.slurm_user} ALL = (ALL, !root) NOPASSWD: {self.etc}/forebay-bb\n", encoding="utf-8")
        rules.chmod(0o440)
        run(["mount", "--bind", rules, "/etc/sudoers"])

    def burst_buffer(self):
        for folder in (self.mount, self.base / "ssd"):
            folder.mkdir(exist_ok=True)
        run([self.forebay, "up", "--pfs", self.pfs, "--mount", self.mount, "--state", self.state, "--dram", "64MiB",
             "--ssd", f"{self.base}/ssd:256MiB", "--detach"], timeout_s=60)
        for user, uid in USERS.items():
            (self.mount / user).mkdir(exist_ok=True)
            os.chown(self.mount / user, uid, uid)
        for name in (".jobs", "persistent"):
            (self.mount / name).mkdir(exist_ok=True)
            (self.mount / name).chmod(0o1777)

    def configure(self):
        for folder in (self.etc, self.run):
            folder.mkdir(exist_ok=True)
        for part in PARTS:
            shutil.copy(PLUGIN / part, self.etc)
        owner = 0 if self.slurm_user == "root" else USERS[self.slurm_user]
        for name in ("records", "save"):
            (self.run / name).mkdir(mode=0o700, exist_ok=True)
            os.chown(self.run / name, owner, owner)
        (self.run / "slurmctld.log").touch()
        os.chown(self.run / "slurmctld.log", owner, owner)
        become = "setpriv" if self.slurm_user == "root" else "sudo"
        (self.etc / "forebay_bb.conf").write_text(
            f"# of the test\nmount = {self.mount}\npfs = {self.pfs}\nburst_buffer = {self.state}\nforebay = {self.forebay}\n"
            f"become = {become}\nrecords = {self.run}/records\njobs = {self.mount}/.jobs\npersistent = {self.mount}/persistent\n"
            f"stage_out_timeout = 60\nstage_in_timeout = 60\nother_timeout = 40\n", encoding="utf-8")
        (self.etc / "burst_buffer.conf").write_text(
            "StageInTimeout=120\nStageOutTimeout=120\nOtherTimeout=60\n"
            + (f"Directive={self.directive}\n" if self.directive else ""), encoding="utf-8")
        self.write_slurm_conf()

    def write_slurm_conf(self, more=""):
        (self.etc / "slurm.conf").write_text(
            SLURM_CONF.format(host=HOST, run=self.run, munge=self.base / "munge/socket", slurm_user=self.slurm_user) + more,
            encoding="utf-8")

    def munge(self):
        folder = self.base / "munge"
        if not folder.exists():
            folder.mkdir(mode=0o755)
            (folder / "key").write_bytes(secrets.token_bytes(128))
            (folder / "key").chmod(0o400)
        # Its log and its pid are root's; its socket is for all.
        self.start("munged", ["munged", "--foreground", "--force", f"--key-file={folder}/key", f"--socket={folder}/socket",
                              f"--log-file={folder}/log", f"--pid-file={folder}/pid", f"--seed-file={folder}/seed"])
        until("munged's socket", (folder / "socket").exists)

    def controller(self):
        self.start("slurmctld", ["slurmctld", "-D"])
        until("slurmctld", lambda: self.ask("scontrol", "ping").returncode == 0)

    def nodes(self):
        self.local.mkdir(exist_ok=True)
        for node in NODES:
            # Each node has mounts and a folder of its own, as on real nodes.
            self.start(f"slurmd-{node}", ["unshare", "--mount", "--propagation", "private", "sh", "-c",
                                          'mount -t tmpfs -o mode=1777 node "$1" && exec slurmd -D -N "$2"', "sh", self.local, node])
        until("the nodes", lambda: self.ask("sinfo", "-h", "-t", "idle", "-o", "%D").stdout.strip() == str(len(NODES)))

    def ask(self, *argv, user=None, env=None, check=False, text_in=None):
        argv = [str(word) for word in argv]
        if user:
            argv = ["setpriv", f"--reuid={USERS[user]}", f"--regid={USERS[user]}", "--init-groups", "--", *argv]
        home = self.home / user if user else self.base
        done = subprocess.run(argv, env={**self.env, "HOME": str(home), **(env or {})}, cwd=home, text=True, input=text_in,
                              capture_output=True, timeout=60, check=False, errors="backslashreplace")
        if check and done.returncode:
            raise Failure(f"{shlex.join(argv)}: exit {done.returncode}: {done.stderr.strip() or done.stdout.strip()}")
        return done

    # ---- jobs

    def submit(self, head, body="true", user="alice", options=()):
        """What sbatch has said."""
        script = "#!/bin/sh\n" + head + "\n" + body + "\n"
        return self.ask("sbatch", "--parsable", "--output=job-%j.out", *options, user=user, text_in=script)

    def job(self, *args, **named):
        """The number of a job that was taken."""
        done = self.submit(*args, **named)
        if done.returncode:
            raise Failure(f"sbatch: {done.stderr.strip()}")
        return done.stdout.strip()

    def show(self, job):
        """The fields of `scontrol show job` as text; reasons may have blanks."""
        return self.ask("scontrol", "show", "job", job).stdout

    def in_state(self, job, *states):
        found = re.search(r"JobState=(\S+)", self.show(job))
        return bool(found) and found[1] in states

    def waits_for(self, job, *states, patience_s=PATIENCE_S):
        try:
            until(f"job {job} {' or '.join(states)}", lambda: self.in_state(job, *states), patience_s)
        except Failure as failure:
            raise Failure(f"{failure}\n{self.show(job)}\n{self.log_of(job)}") from None

    def ends(self, job, state="COMPLETED", patience_s=PATIENCE_S):
        """The job has come to this end, and its teardown was."""
        self.waits_for(job, state, patience_s=patience_s)
        until(f"the teardown of job {job}", lambda: not self.record(job).exists(), patience_s)

    def reason(self, job, pattern, patience_s=PATIENCE_S):
        """Waits for words that the user sees."""
        try:
            until(f"job {job} says {pattern!r}", lambda: re.search(pattern, self.show(job)), patience_s)
        except Failure as failure:
            raise Failure(f"{failure}\n{self.show(job)}\n{self.log_of(job)}") from None

    def record(self, job):
        return self.run / "records" / f"job-{job}"

    def output(self, job, user="alice"):
        return (self.home / user / f"job-{job}.out").read_text(encoding="utf-8", errors="backslashreplace")

    def whole_log(self):
        return (self.run / "slurmctld.log").read_text(encoding="utf-8", errors="backslashreplace")

    def log_of(self, job):
        lines = self.whole_log().splitlines()
        return "\n".join(line for line in lines if str(job) in line or "forebay:" in line)[-6000:]

    # ---- the burst buffer

    def where(self, path):
        return self.ask(self.forebay, "where", path).stdout

    def put(self, path, content, user="alice", on="pfs"):
        """A file of a user on the PFS."""
        file = getattr(self, on) / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
        for one in (file, file.parent):
            os.chown(one, USERS[user], USERS[user])
        return file

    def close(self):
        """In order, so that a daemon that does not end is seen; what is left goes with the namespace."""
        for name in reversed(list(self.children)):
            with contextlib.suppress(Failure):
                self.stop(name)
