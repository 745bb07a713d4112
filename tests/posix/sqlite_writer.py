"""One of several writers of a database: sqlite_writer.py DATABASE NUMBER ROWS."""

import contextlib
import os
import sqlite3
import sys


def write_rows(path, writer, rows):
    """One writer: rows one by one, a few taken back."""
    with contextlib.closing(sqlite3.connect(path, timeout=120)) as base:
        for row in range(rows):
            base.execute("insert into rows values (?, ?, ?)", (writer, row, os.urandom(2000)))
            if row % 7 == 0:
                base.rollback()
                base.execute("insert into rows values (?, ?, ?)", (writer, row, b"again"))
            base.commit()


if __name__ == "__main__":
    write_rows(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
