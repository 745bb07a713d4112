"""Load on several directories at once."""

import json
import shutil
from concurrent.futures import ThreadPoolExecutor

from report import MIB
from systems import run

BLOCK_BYTES = MIB
LOAD_PATIENCE_S = 300


def load(programs, mode, folders, **options):
    """Runs the load generator on all directories at once; all of their figures, one per directory."""
    words = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    if mode in ("write", "read"):
        # As IOR and fio do. A request of 1 MiB from elsewhere in memory is two requests of the kernel.
        words.append("--aligned")

    def one(folder):
        done = run([programs.load_generator, mode, folder, *words], timeout_s=LOAD_PATIENCE_S)
        return json.loads(done.stdout)

    with ThreadPoolExecutor(len(folders)) as threads:
        return list(threads.map(one, folders))


def rate(found, phase, amount):
    """What all together did per second: `amount` is "bytes" or "files". The slowest ends the time."""
    return sum(each[phase][amount] for each in found) / max(each[phase]["seconds"] for each in found)


def fresh(point, name):
    folder = point / name
    folder.mkdir()
    return folder


def remove(folder):
    shutil.rmtree(folder)


def warm(tier, size):
    """Takes memory and gives it back: what a virtual machine has not used for a while its host has taken away, and the next to use it
    waits for it. So no system waits for what the one before it did not."""
    block, path = b"\xa5" * BLOCK_BYTES, tier / "warm"
    with open(path, "wb", buffering=0) as file:
        for _ in range(size // BLOCK_BYTES):
            file.write(block)
    path.unlink()
