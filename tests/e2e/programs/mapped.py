"""Programs' own ways to write through mappings.

    mapped.py make|change|check DIR    files of three runs; changes those of the last; says whether they are as changed
"""

import pathlib
import sqlite3
import sys

import h5py
import lmdb
import numpy as np

COUNT = 300_000
RUNS = (1, 2, 3)


def lmdb_at(folder, run, **options):
    return lmdb.open(str(folder / f"lmdb-{run}"), map_size=8 << 20, **options)


def make(folder):
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


{"make": make, "change": change, "check": check}[sys.argv[1]](pathlib.Path(sys.argv[2]))
