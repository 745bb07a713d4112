#!/usr/bin/env python3
"""Rounds of take-overs: two metadata servers with etcd, data servers and mounts, under load.

Each round ends the metadata server that leads, by SIGKILL or (one in --stop-every) by SIGSTOP, waits
until the other one serves, and looks at everything: each line and each file that an fsync has promised
is there, once, and no writer waited longer than --within. Who was killed is started again and stands by;
who was stopped is continued, and has to find by itself that it does not lead.

All is on this machine, on loopback addresses. It needs root, fuse and etcd (apt-get install etcd-server).
"""

import argparse
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
PROGRAM = os.path.join(HERE, "../../target/release/forebay")
START_S = 60
IDS = [1, 2]


class Wrong(Exception):
    """What must not be."""


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def wait_until(what, condition, limit_s=START_S):
    begun = time.monotonic()
    while not condition():
        if time.monotonic() - begun > limit_s:
            raise Wrong(f"not within {limit_s} s: {what}")
        time.sleep(0.05)
    return time.monotonic() - begun


class Site:
    """All processes, in one folder."""

    def __init__(self, program, base, nodes):
        self.program, self.base, self.nodes = program, base, nodes
        self.env = dict(os.environ, FOREBAY_RUN=f"{base}/run")
        self.running = {}
        for name in ["pfs", "run", "etcd"]:
            os.mkdir(f"{base}/{name}")
        ports = [free_port() for _ in range(2 + len(IDS) + nodes)]
        client, peer = (f"http://127.0.0.1:{port}" for port in ports[:2])
        self.start("etcd", ["etcd", "--name", "a", "--data-dir", f"{base}/etcd/data", "--listen-client-urls", client,
                            "--advertise-client-urls", client, "--listen-peer-urls", peer,
                            "--initial-advertise-peer-urls", peer, "--initial-cluster", f"a={peer}"])
        wait_until("etcd listens", lambda: socket.socket().connect_ex(("127.0.0.1", ports[0])) == 0)
        subprocess.run([program, "keygen", f"{base}/key"], check=True, stdout=subprocess.DEVNULL)
        text = (f'[cluster]\nname = "rounds"\npfs = "{base}/pfs"\nkey = "{base}/key"\n'
                f'store = "etcd://127.0.0.1:{ports[0]}"\n[demotion]\nidle_after = "2s"\n')
        for server, port in zip(IDS, ports[2:]):
            text += (f'[[server]]\nid = {server}\nroles = ["metadata"]\naddresses = ["127.0.0.{server}:{port}"]\n'
                     f'state = "{base}/state{server}"\n')
        for node, port in enumerate(ports[2 + len(IDS):]):
            os.makedirs(f"{base}/flash{node}")
            os.mkdir(f"{base}/mnt{node}")
            text += (f'[[server]]\nid = {10 + node}\nroles = ["data"]\naddresses = ["127.0.0.{10 + node}:{port}"]\n'
                     f'state = "{base}/data{node}"\ndram = "64MiB"\nssd = ["{base}/flash{node}:1GiB"]\n')
        self.config = f"{base}/cluster.toml"
        with open(self.config, "w") as file:
            file.write(text)

    def start(self, name, line, **env):
        log = open(f"{self.base}/{name}.log", "a")
        self.running[name] = subprocess.Popen(line, env=dict(self.env, **env), stdin=subprocess.DEVNULL,
                                              stdout=log, stderr=log)
        return self.running[name]

    def serve(self, name, server, state):
        process = self.start(name, [self.program, "server", "--config", self.config, "--id", str(server)],
                             FOREBAY_BOOT_ID=f"boot of {name}")
        def says_so():
            if process.poll() is not None:
                raise Wrong(f"{name} ended: see {name}.log")
            try:
                with open(f"{self.base}/{state}/forebay.pid") as file:
                    return file.read().strip() == str(process.pid)
            except FileNotFoundError:
                return False
        wait_until(f"{name} serves, or stands by", says_so)

    def metadata(self, server):
        self.serve(f"metadata{server}", server, f"state{server}")

    def mount(self, node):
        point = f"{self.base}/mnt{node}"
        self.start(f"mount{node}", [self.program, "mount", "--config", self.config, "--no-local", point])
        wait_until(f"mount {node} answers", lambda: f"{point} shows" in self.log(f"mount{node}"))

    def log(self, name):
        with open(f"{self.base}/{name}.log", errors="replace") as file:
            return file.read()

    def leads(self, server):
        said = subprocess.run([self.program, "status", "--json", "--state", f"{self.base}/state{server}"],
                              env=self.env, capture_output=True, timeout=60)
        return said.returncode == 0 and "standby" not in json.loads(said.stdout)

    def end(self):
        for node in range(self.nodes):
            subprocess.run(["umount", "-l", f"{self.base}/mnt{node}"], stderr=subprocess.DEVNULL)
        # etcd goes last: who stops in order gives the records back.
        for name in sorted(self.running, key=lambda name: (name == "etcd", not name.startswith("mount"))):
            self.running[name].kill()
            self.running[name].wait()
        for node in range(self.nodes):
            subprocess.run(["umount", "-l", f"{self.base}/data{node}/dram"], stderr=subprocess.DEVNULL)


class Writer(threading.Thread):
    """Lines of a log with an fsync each, and a file and a rename with each."""

    def __init__(self, folder, seed):
        super().__init__(daemon=True)
        self.folder, self.random = folder, random.Random(seed)
        self.lines, self.files, self.unclear = 0, {}, set()
        self.longest_s, self.error = 0.0, None
        self.is_over = threading.Event()
        os.mkdir(folder)

    def run(self):
        try:
            with open(f"{self.folder}/log", "xb", buffering=0) as log:
                last = time.monotonic()
                while not self.is_over.is_set():
                    log.write(f"line {self.lines}\n".encode())
                    os.fsync(log.fileno())
                    self.lines += 1
                    self.make()
                    now = time.monotonic()
                    self.longest_s, last = max(self.longest_s, now - last), now
        except Exception as error:
            self.error = error

    def make(self):
        name, content = f"file{len(self.files) + len(self.unclear)}", self.random.randbytes(2000)
        try:
            with open(f"{self.folder}/{name}.new", "wb", buffering=0) as file:
                file.write(content)
                os.fsync(file.fileno())
            os.rename(f"{self.folder}/{name}.new", f"{self.folder}/{name}")
            self.files[name] = content
        except OSError as error:
            # Of a change of names that was under way it is not known whether it has happened.
            if error.errno != 5:
                raise
            self.unclear.add(name)

    def check(self, folder, within_s):
        if self.error:
            raise Wrong(f"{self.folder}: {self.error!r}")
        if self.longest_s > within_s:
            raise Wrong(f"{self.folder}: waited {self.longest_s:.1f} s")
        with open(f"{folder}/log") as file:
            found = file.read()
        if found != "".join(f"line {n}\n" for n in range(self.lines)):
            raise Wrong(f"{folder}/log: {len(found.splitlines())} lines of {self.lines}, or others")
        for name, content in self.files.items():
            with open(f"{folder}/{name}", "rb") as file:
                if file.read() != content:
                    raise Wrong(f"{folder}/{name}: another content")
        more = {name.removesuffix(".new") for name in os.listdir(folder)} - set(self.files) - {"log"}
        if more - self.unclear:
            raise Wrong(f"{folder}: {more} too many")


def one_round(site, leader, number, args, chance):
    """Who leads then, and the longest wait."""
    other = IDS[1 - IDS.index(leader)]
    stops = args.stop_every and number % args.stop_every == 0
    names = [f"round{number}-{node}" for node in range(site.nodes)]
    writers = [Writer(f"{site.base}/mnt{node}/{name}", chance.random()) for node, name in enumerate(names)]
    for writer in writers:
        writer.start()
    time.sleep(chance.uniform(0.2, 2.0))
    process = site.running[f"metadata{leader}"]
    process.send_signal(signal.SIGSTOP if stops else signal.SIGKILL)
    begun = time.monotonic()
    counts = [0] * len(writers)
    wait_until("the other one leads", lambda: site.leads(other), args.within + 30)
    led_s, counts = time.monotonic() - begun, [writer.lines for writer in writers]
    wait_until("all writers go on",
               lambda: all(w.lines > n or w.error for w, n in zip(writers, counts)), args.within + 30)
    if stops:
        time.sleep(chance.uniform(0, args.stopped))
        before = site.log(f"metadata{leader}").count("does not lead any more")
        process.send_signal(signal.SIGCONT)
        wait_until("it finds that it does not lead",
                   lambda: site.log(f"metadata{leader}").count("does not lead any more") > before)
    else:
        process.wait()
        site.metadata(leader)
    time.sleep(chance.uniform(0, 1.0))
    for writer in writers:
        writer.is_over.set()
    for writer in writers:
        writer.join(60)
        if writer.is_alive():
            raise Wrong(f"{writer.folder}: hangs")
    # A client finds out by silence that a server stands still: that takes a third of its lease.
    within_s = args.within + (args.within if stops else 0)
    for writer, name in zip(writers, names):
        for node in range(site.nodes):
            writer.check(f"{site.base}/mnt{node}/{name}", within_s)
    longest_s = max(writer.longest_s for writer in writers)
    lines = sum(writer.lines for writer in writers)
    print(f"round {number}: {'stopped' if stops else 'killed'} {leader}, {other} leads after {led_s:.1f} s, longest wait "
          f"{longest_s:.1f} s, {lines} lines", flush=True)
    for name in names:
        shutil.rmtree(f"{site.base}/mnt0/{name}")
    return other, longest_s, lines, stops


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 30))
    parser.add_argument("--within", type=float, default=15, help="longest wait of a writer, seconds (default 15)")
    parser.add_argument("--stop-every", type=int, default=0, help="every so many rounds SIGSTOP, not SIGKILL (default 0: never)")
    parser.add_argument("--stopped", type=float, default=60, help="longest time to stand still after the take-over, seconds")
    parser.add_argument("--nodes", type=int, default=2, help="nodes with a data server and a mount each")
    parser.add_argument("--forebay", default=PROGRAM)
    parser.add_argument("--keep", action="store_true", help="leave the folder with the logs")
    args = parser.parse_args()
    print(f"seed {args.seed}", flush=True)
    chance = random.Random(args.seed)
    base = tempfile.mkdtemp(prefix="forebay-standby-")
    site, done, longest_s, total, outcome = None, 0, 0.0, 0, 0
    try:
        site = Site(os.path.abspath(args.forebay), base, args.nodes)
        for node in range(args.nodes):
            site.serve(f"data{node}", 10 + node, f"data{node}")
        for server in IDS:
            site.metadata(server)
        for node in range(args.nodes):
            site.mount(node)
        leader = IDS[0]
        for number in range(1, args.rounds + 1):
            leader, waited_s, lines, stopped = one_round(site, leader, number, args, chance)
            done, total = number, total + lines
            longest_s = max(longest_s, 0 if stopped else waited_s)
        left = [os.path.join(at, name) for at, _, names in os.walk(f"{base}/pfs") for name in names if "conflict" in name]
        if left:
            raise Wrong(f"conflicts: {left}")
    except (Wrong, OSError, subprocess.SubprocessError) as error:
        print(f"WRONG in round {done + 1}, seed {args.seed}: {error}; logs in {base}", file=sys.stderr)
        outcome, args.keep = 1, True
    finally:
        if site:
            site.end()
        if not args.keep:
            shutil.rmtree(base, ignore_errors=True)
    print(f"{done} of {args.rounds} rounds, {total} fsyncs: {'nothing lost, nothing twice' if not outcome else 'WRONG'}; "
          f"longest wait after a kill {longest_s:.1f} s (seed {args.seed})")
    return outcome


if __name__ == "__main__":
    sys.exit(main())
