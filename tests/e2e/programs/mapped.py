"""Programs as they are: most write through mappings in ways of their own, git reads its packs so.

    mapped.py make|change|check DIR    files of three runs; changes those of the last; says whether they are as changed
"""

import os
import pathlib
import sqlite3
import subprocess
import sys

import h5py
import lmdb
import numpy as np

COUNT = 100_000
RUNS = (1, 2, 3)


def lmdb_at(folder, run, **options):
    return lmdb.open(str(folder / f"keys-{run}.lmdb"), map_size=2 << 20, subdir=False, **options)


def git(folder, *words):
    """Neither the user's settings nor who owns the files counts."""
    plain = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null", "HOME": str(folder)}
    who = ("-c", "user.name=nobody", "-c", "user.email=nobody@localhost", "-c", "safe.directory=*")
    done = subprocess.run(["git", *who, "-C", str(folder / "repository"), *words], env={**os.environ, **plain},
                          capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, f"git {words}: {done.stdout} {done.stderr}"
    return done.stdout


def commit(folder, text):
    for number in range(20):
        (folder / "repository" / f"file-{number}").write_text(f"{text} {number}\n")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "-m", text)


def make(folder):
    (folder / "repository").mkdir()
    git(folder, "init", "--quiet", "-b", "main")
    commit(folder, "old")
    git(folder, "gc", "--quiet")
    for run in RUNS:
        zeros = np.zeros(COUNT, dtype=np.int64)
        zeros.tofile(folder / f"raw-{run}.bin")
        np.save(folder / f"array-{run}.npy", zeros)
        with h5py.File(folder / f"tables-{run}.h5", "w") as file:
            file["zeros"] = zeros
        with lmdb_at(folder, run, writemap=True) as db, db.begin(write=True) as transaction:
            transaction.put(b"key", b"old")
        with sqlite3.connect(folder / f"rows-{run}.sqlite") as db:
            db.execute("create table rows (number integer, text text)")
            db.executemany("insert into rows values (?, 'old')", [(n,) for n in range(5000)])
        db.close()


def change(folder):
    run = RUNS[-1]
    commit(folder, "new")
    git(folder, "gc", "--quiet", "--prune=now")
    raw = np.memmap(folder / f"raw-{run}.bin", dtype=np.int64, mode="r+")
    # Read first: on tmpfs the page is then there, and a store leaves no trace.
    assert raw[1000] == 0
    raw[1000] = 1
    raw.flush()
    del raw
    array = np.load(folder / f"array-{run}.npy", mmap_mode="r+")
    assert array[2000] == 0
    array[2000] = 2
    array.flush()
    del array
    with h5py.File(folder / f"tables-{run}.h5", "r+") as file:
        file["zeros"][3000] = 3
    with lmdb_at(folder, run, writemap=True) as db, db.begin(write=True) as transaction:
        assert transaction.get(b"key") == b"old"
        transaction.put(b"key", b"new")
    db = sqlite3.connect(folder / f"rows-{run}.sqlite")
    db.execute("pragma mmap_size = 67108864")
    with db:
        db.execute("update rows set text = 'new' where number = 4000")
    db.close()


def check(folder):
    run = RUNS[-1]
    raw = np.fromfile(folder / f"raw-{run}.bin", dtype=np.int64)
    assert (raw[1000], raw.sum(), len(raw)) == (1, 1, COUNT), "numpy.memmap"
    array = np.load(folder / f"array-{run}.npy")
    assert (array[2000], array.sum(), len(array)) == (2, 2, COUNT), "numpy.load"
    with h5py.File(folder / f"tables-{run}.h5", "r") as file:
        assert (file["zeros"][3000], file["zeros"][:].sum()) == (3, 3), "h5py"
    with lmdb_at(folder, run, readonly=True, lock=False) as db, db.begin() as transaction:
        assert transaction.get(b"key") == b"new", "lmdb"
    db = sqlite3.connect(f"file:{folder}/rows-{run}.sqlite?mode=ro&immutable=1", uri=True)
    assert db.execute("pragma integrity_check").fetchone() == ("ok",), "sqlite"
    assert db.execute("select number from rows where text = 'new'").fetchall() == [(4000,)], "sqlite"
    git(folder, "fsck", "--strict", "--full")
    assert git(folder, "log", "--format=%s").split() == ["new", "old"], "git"
    assert git(folder, "show", "HEAD:file-7") == "new 7\n", "git"
    assert git(folder, "--no-optional-locks", "status", "--porcelain") == "", "git"


{"make": make, "change": change, "check": check}[sys.argv[1]](pathlib.Path(sys.argv[2]))
