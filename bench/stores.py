#!/usr/bin/env python3
"""What a store on a server costs: creates, renames and unlinks of empty files through a mount, with the records embedded, in Redis and in etcd.

Starts everything itself, on this machine: the store with a folder of its own, `forebay server`, one `forebay mount`. Each round runs all stores
one after another, and has a server of its own; ratios are to the embedded store of the same round.
"""

import argparse
import concurrent.futures
import contextlib
import os
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path

from systems import Failure, QUIET_CONFIG, ROOT, is_mounted, run, say, stop, unmount_below, workspace
from machine import clean_exit_on_signals

STORES = ("embedded", "redis", "redis-1s", "etcd")
SHOWN = {"embedded": "embedded", "redis": "Redis, `always`", "redis-1s": "Redis, `everysec`", "etcd": "etcd"}
PHASES = ("create", "rename", "unlink")
PATIENCE_S = 30.0


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--forebay", type=Path, default=ROOT / "target/release/forebay")
    parser.add_argument("--files", type=int, default=4000, help="of all processes together")
    parser.add_argument("--processes", default="1,8")
    parser.add_argument("--stores", default=",".join(STORES))
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--work", type=Path, help="where records and flash go: the file system that is measured")
    return parser.parse_args()


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def wait(what, holds):
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        if time.monotonic() > deadline:
            raise Failure(f"waited in vain: {what}")
        time.sleep(0.02)


def listens(port):
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


@contextlib.contextmanager
def process(words, folder, name):
    with open(folder / f"{name}.log", "ab") as log:
        child = subprocess.Popen([str(word) for word in words], stdout=log, stderr=log, cwd=folder)
    try:
        yield child
    finally:
        stop(child)


@contextlib.contextmanager
def store(kind, folder):
    """The URL of a running store."""
    if kind == "embedded":
        yield "embedded"
        return
    port, peer = free_port(), free_port()
    if kind == "etcd":
        client, peers = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{peer}"
        words = ["etcd", "--name", "a", "--data-dir", folder / "etcd", "--logger", "zap"]
        words += ["--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peers]
        words += ["--initial-advertise-peer-urls", peers, "--initial-cluster", f"a={peers}"]
        url = f"etcd://127.0.0.1:{port}"
    else:
        flush = {"redis": "always", "redis-1s": "everysec"}[kind]
        words = ["redis-server", "--bind", "127.0.0.1", "--port", port, "--save", "", "--appendonly", "yes", "--appendfsync", flush]
        url = f"redis://127.0.0.1:{port}/0?durability={flush}"
    with process(words, folder, "store"):
        wait(f"{kind} listens", lambda: listens(port))
        yield url


@contextlib.contextmanager
def mounted(args, kind, base):
    """The mount of a server with this store."""
    for name in ("pfs", "flash", "mnt", "run"):
        (base / name).mkdir()
    config, key = base / "cluster.toml", base / "key"
    run([args.forebay, "keygen", key])
    os.environ["FOREBAY_RUN"] = str(base / "run")
    with contextlib.ExitStack() as stack:
        url = stack.enter_context(store(kind, base))
        config.write_text(
            f'[cluster]\nname = "bench"\npfs = "{base}/pfs"\nkey = "{key}"\nstore = "{url}"\n'
            f'[[server]]\nid = 1\nroles = ["metadata", "data"]\naddresses = ["127.0.0.1:{free_port()}"]\n'
            f'state = "{base}/state"\nssd = ["{base}/flash:1GiB"]\n{QUIET_CONFIG}'
        )
        server = stack.enter_context(process([args.forebay, "server", "--config", config, "--id", 1], base, "server"))
        wait("the server serves", lambda: (base / "state/mounts.sock").exists() or server.poll() is not None)
        stack.callback(unmount_below, base)
        mount = stack.enter_context(process([args.forebay, "mount", "--config", config, "--no-local", base / "mnt"], base, "mount"))
        wait("the mount is there", lambda: is_mounted(base / "mnt") or mount.poll() is not None)
        if not is_mounted(base / "mnt"):
            raise Failure((base / "mount.log").read_text() + (base / "server.log").read_text())
        yield base / "mnt"


def work(folder, phase, count):
    """What one process does; its files are in a directory of its own."""
    for number in range(count):
        path = f"{folder}/{number}"
        if phase == "create":
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
        elif phase == "rename":
            os.rename(path, f"{path}.new")
        else:
            os.unlink(f"{path}.new")


def measure(mount, processes, files, pool):
    """Operations a second of each phase, all processes together. A directory is flushed at the end: then all is on record."""
    folders = [mount / f"{processes}-{number}" for number in range(processes)]
    for folder in folders:
        folder.mkdir()
    rates = {}
    for phase in PHASES:
        begun_s = time.monotonic()
        for done in [pool.submit(work, folder, phase, files // processes) for folder in folders]:
            done.result()
        fd = os.open(folders[0], os.O_RDONLY | os.O_DIRECTORY)
        os.fsync(fd)
        os.close(fd)
        rates[phase] = files // processes * processes / (time.monotonic() - begun_s)
    return rates


def shown(values):
    middle = statistics.median(values)
    return f"{middle:,.0f} ({min(values):,.0f}–{max(values):,.0f})" if len(values) > 1 else f"{middle:,.0f}"


def table(found, stores, processes):
    print(f"| | {' | '.join(f'{phase}s/s, {count} proc.' for count in processes for phase in PHASES)} |")
    print("| --- |" + " --- |" * (len(processes) * len(PHASES)))
    for kind in stores:
        cells = []
        for count in processes:
            for phase in PHASES:
                values, reference = found[kind, count, phase], found.get(("embedded", count, phase))
                cell = shown(values)
                if reference and kind != "embedded":
                    cell += f"; {statistics.median(a / b for a, b in zip(values, reference)):.2f}"
                cells.append(cell)
        print(f"| {SHOWN[kind]} | {' | '.join(cells)} |")


def main():
    args = arguments()
    stores, processes = args.stores.split(","), [int(count) for count in args.processes.split(",")]
    found = {}
    with concurrent.futures.ProcessPoolExecutor(max(processes)) as pool:
        # Started before anything is mounted: a process that is forked has what its parent has open.
        list(pool.map(abs, range(max(processes))))
        for turn in range(args.repeat):
            for kind in stores:
                with workspace("forebay-stores-", args.work) as base, mounted(args, kind, base) as mount:
                    for count in processes:
                        rates = measure(mount, count, args.files, pool)
                        say(f"round {turn + 1}, {kind}, {count} processes: {', '.join(f'{p} {r:,.0f}/s' for p, r in rates.items())}")
                        for phase, rate in rates.items():
                            found.setdefault((kind, count, phase), []).append(rate)
    table(found, stores, processes)


if __name__ == "__main__":
    try:
        with clean_exit_on_signals():
            main()
    except Failure as failure:
        sys.exit(f"stores: {failure}")
