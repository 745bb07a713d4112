"""Programs that people run, on the mount: h5py's own tests, sqlite with its log, git and a build."""

import contextlib
import re
import shutil
import sqlite3
import subprocess
import sys

from machine import ROOT, Failure, run

SQLITE_WRITERS, SQLITE_ROWS = 3, 400
WRITER = ROOT / "tests/posix/sqlite_writer.py"


def h5py(here, args):
    """h5py's own tests, with their files on the mount."""
    folder, _ = here.folder("h5py")
    left_out = " ".join(f"--deselect {name}" for name in args.exclusions["h5py"])
    # The package from PyPI is built without MPI.
    code = f"import h5py, sys; sys.exit(h5py.run_tests('-q -p no:cacheprovider -m \"not mpi\" {left_out}'))"
    done = run([args.python, "-c", code], check=False, timeout_s=900, cwd=here.other, env=args.environment(TMPDIR=folder))
    counts = {word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|error)", done.stdout)}
    if done.returncode or not counts.get("passed"):
        raise Failure(f"exit {done.returncode}: {done.stdout[-1500:].strip()} {done.stderr[-300:].strip()}")
    return {"passed": counts["passed"]}


def sqlite(here, args):
    """A database in WAL mode with several writers; then its integrity, here and on the PFS."""
    folder, on_pfs = here.folder("sqlite")
    path = folder / "base.db"
    with contextlib.closing(sqlite3.connect(path)) as base:
        mode = base.execute("pragma journal_mode=wal").fetchone()[0]
        if mode != "wal":
            raise Failure(f"the journal mode is {mode}: shared mappings do not work")
        base.execute("create table rows (writer integer, row integer, text blob, primary key (writer, row))")
        base.commit()
    rows = SQLITE_ROWS // 8 if args.quick else SQLITE_ROWS
    writers = [subprocess.Popen([sys.executable, WRITER, path, str(writer), str(rows)], stderr=subprocess.PIPE, text=True)
               for writer in range(SQLITE_WRITERS)]
    try:
        for writer in writers:
            _, errors = writer.communicate(timeout=600)
            if writer.returncode:
                raise Failure(f"a writer: exit {writer.returncode}: {errors.strip()[-300:]}")
    finally:
        for writer in writers:
            writer.kill()
            writer.wait()
    check_database(path, rows)
    here.drain(folder)
    here.release(folder)
    check_database(path, rows)
    here.drain(folder)
    copy = here.other / "copy.db"
    shutil.copyfile(on_pfs / path.name, copy)
    check_database(copy, rows)
    return {"writers": SQLITE_WRITERS, "rows": SQLITE_WRITERS * rows}


def check_database(path, rows):
    with contextlib.closing(sqlite3.connect(path, timeout=60)) as base:
        base.execute("pragma wal_checkpoint(truncate)")
        verdict = base.execute("pragma integrity_check").fetchall()
        count = base.execute("select count(*) from rows").fetchone()[0]
    if verdict != [("ok",)] or count != SQLITE_WRITERS * rows:
        raise Failure(f"{path}: integrity {verdict}, {count} rows of {SQLITE_WRITERS * rows}")


def git(here, args):
    """A repository cloned, built, changed, packed and checked."""
    source = here.other / "source"
    make_project(source, args, files=10 if args.quick else 120)
    folder, on_pfs = here.folder("git")
    clone = folder / "clone"

    def repeat(*words, cwd=clone):
        return run(words, cwd=cwd, timeout_s=300, env=args.environment()).stdout

    repeat("git", "clone", "--quiet", "--no-local", source, clone, cwd=here.other)
    repeat("make", "-j2", "--silent")
    if repeat("./program").strip() != repeat("cat", "expected").strip():
        raise Failure("the program that was built says something else")
    for round_ in range(3):
        (clone / f"file-{round_}.c").write_text(f"/* changed {round_} */\n" + (clone / f"file-{round_}.c").read_text())
        repeat("git", *IDENTITY, "commit", "--quiet", "-am", f"round {round_}")
    repeat("git", "gc", "--quiet")
    repeat("git", "fsck", "--strict")
    here.drain(folder)
    here.release(folder)
    repeat("git", "fsck", "--strict")
    if status := repeat("git", "status", "--porcelain").strip():
        raise Failure(f"after the drain git finds changes: {status[:200]}")
    here.drain(folder)
    repeat("git", "-c", "safe.directory=*", "fsck", "--strict", cwd=on_pfs / "clone")
    return {"files": len(list(clone.rglob("*")))}


IDENTITY = ("-c", "user.name=nobody", "-c", "user.email=nobody@localhost")


def make_project(folder, args, files):
    """A small C program of many files, with a Makefile, in a repository."""
    folder.mkdir()
    names = [f"file-{number}" for number in range(files)]
    for number, name in enumerate(names):
        (folder / f"{name}.c").write_text(f"int part_{number}(void) {{ return {number}; }}\n")
    declared = "".join(f"int part_{number}(void);\n" for number in range(files))
    total = " + ".join(f"part_{number}()" for number in range(files))
    (folder / "main.c").write_text(
        f'#include <stdio.h>\n{declared}int main(void) {{ printf("%d\\n", {total}); return 0; }}\n')
    objects = " ".join(f"{name}.o" for name in [*names, "main"])
    (folder / "Makefile").write_text(f"program: {objects}\n\tcc -o $@ $^\n%.o: %.c\n\tcc -c -o $@ $<\n")
    (folder / ".gitignore").write_text("*.o\nprogram\n")
    (folder / "expected").write_text(f"{sum(range(files))}\n")
    for words in (["init", "--quiet"], ["add", "."], [*IDENTITY, "commit", "--quiet", "-m", "first"]):
        run(["git", *words], cwd=folder, env=args.environment())
