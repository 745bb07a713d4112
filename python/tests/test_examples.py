"""The examples run as they are."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import GROUP, LAZY

EXAMPLES = Path(__file__).parents[1] / "examples"


def _run(*words):
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_h5py(start):
    pytest.importorskip("h5py")
    bb = start(LAZY + GROUP)
    said = _run(sys.executable, EXAMPLES / "h5py_checkpoint.py", bb.mount / "run")
    assert "published: 1 files" in said and "read back: the same" in said and "version 120" in said
    assert (bb.pfs / "run/ckpt-000120/field.h5").stat().st_size > 512 * 512 * 8


def test_mpi4py(start):
    pytest.importorskip("mpi4py")
    mpiexec = Path(sys.executable).with_name("mpiexec")
    launcher = str(mpiexec) if mpiexec.exists() else shutil.which("mpiexec")
    assert launcher, "mpi4py is here, and no mpiexec"
    bb = start(LAZY + GROUP)
    said = _run(launcher, "-n", "3", sys.executable, EXAMPLES / "mpi_checkpoint.py", bb.mount / "run")
    assert "published: 3 files of 3 ranks" in said
    for rank in range(3):
        assert (bb.pfs / f"run/ckpt-000120/rank-{rank}").stat().st_size == 8 << 17
