"""Writes the files of a recipe (docs/recipes) as the program of that recipe does: names, order, renames, fsync.

    patterns.py pytorch|lammps|amrex|dmtcp MOUNT
"""

import os
import pathlib
import sys

SIZE = 200_000


def write(path, fsync=False):
    """A file that is opened, written and closed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb") as file:
        file.write(os.urandom(SIZE))
        if fsync:
            file.flush()
            os.fsync(file.fileno())


def renamed(path, behind, fsync=False):
    """A file that has another name while it is written."""
    before = path.with_name(path.name + behind)
    write(before, fsync)
    before.rename(path)


def pytorch(mount):
    version = mount / "me/run7/ckpt-000120"
    for rank in (0, 1):
        write(version / f"__{rank}_0.distcp", fsync=True)
    renamed(version / ".metadata", ".tmp", fsync=True)
    renamed(mount / "me/single/model_000120.pt", ".tmp", fsync=True)


def lammps(mount):
    for step in (1000, 2000):
        for rank in ("base", 0, 1):
            write(mount / f"me/lj/restart.{step}.{rank}")
            write(mount / f"me/by-rank/restart.{rank}.{step}")
    # The third goes over the first.
    for name in "aba":
        write(mount / f"me/toggle/{name}.restart")


def amrex_directory(path):
    for name in ("Header", "job_info", "Level_0/Cell_H", "Level_0/Cell_D_00000", "Level_0/Cell_D_00001"):
        write(path / name)


def amrex(mount):
    # The class Amr renames; WriteMultiLevelPlotfile does not.
    flow = mount / "me/flow"
    for name in ("plt00010", "plt00020", "chk00020", "plt00030"):
        amrex_directory(flow / (name + ".temp"))
        (flow / (name + ".temp")).rename(flow / name)
    for name in ("plt00010", "plt00020"):
        amrex_directory(mount / "me/direct" / name)


def dmtcp(mount):
    folder = mount / "me/dmtcp"
    for _ in range(2):
        renamed(folder / "ckpt_heat_1a2b3c4d5e6f7a8b-40000-65f1c2d3e4a5b6.dmtcp", ".temp", fsync=True)
    script = folder / "dmtcp_restart_script_1a2b3c4d5e6f7a8b-40000-65f1c2d2.sh"
    script.write_text("#!/bin/bash\n")
    script.chmod(0o755)
    (folder / "dmtcp_restart_script.sh").symlink_to(script.name)


if __name__ == "__main__":
    {"pytorch": pytorch, "lammps": lammps, "amrex": amrex, "dmtcp": dmtcp}[sys.argv[1]](pathlib.Path(sys.argv[2]))
