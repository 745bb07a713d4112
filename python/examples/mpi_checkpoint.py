"""Each rank writes its part of a checkpoint; rank 0 has the version published as a whole.

    mpiexec -n 4 python mpi_checkpoint.py /bb/me/run7

The directory needs a path rule: path = "/me/run7/ckpt-{version}", group = "commit".
"""

import os
import sys

import numpy
from mpi4py import MPI

import forebay


def main(run: str) -> None:
    comm = MPI.COMM_WORLD
    version = os.path.join(run, "ckpt-000120")
    if comm.rank == 0:
        os.makedirs(version)
    comm.Barrier()

    part = numpy.full(1 << 17, comm.rank, dtype=numpy.float64)
    part.tofile(os.path.join(version, f"rank-{comm.rank}"))

    # A version is whole when all have closed their files.
    comm.Barrier()
    # One asks for all: a command on each rank would ask the same thing as often as there are ranks.
    error = None
    if comm.rank == 0:
        try:
            forebay.commit(version)
        except forebay.ForebayError as failed:
            error = failed
    error = comm.bcast(error)
    if error is not None:
        raise error

    # Computing goes on here while the version drains; the end of the run waits for it.
    if comm.rank == 0:
        done = forebay.commit(version, wait=True)
        files = forebay.where(version)
        assert len(files) == comm.size and all(file.on_pfs for file in files)
        print(f"published: {len(files)} files of {comm.size} ranks ({done.outcome})")


if __name__ == "__main__":
    main(sys.argv[1])
