"""Writes a checkpoint with h5py, has it published as a whole, and reads it back.

    python h5py_checkpoint.py /bb/me/run7

The directory needs a path rule: path = "/me/run7/ckpt-{version}", group = "commit".
"""

import os
import sys

import h5py
import numpy

import forebay


def main(run: str) -> None:
    version = os.path.join(run, "ckpt-000120")
    os.makedirs(version)
    path = os.path.join(version, "field.h5")
    field = numpy.random.default_rng(7).random((512, 512))
    with h5py.File(path, "w") as file:
        file.create_dataset("temperature", data=field, chunks=(64, 512))
        file.attrs["step"] = 120

    # On stable storage when it returns; on the PFS, as a whole, with `wait`.
    done = forebay.commit(version, wait=True, progress=lambda now: print(f"{now.fraction:.0%} drained"))
    print(f"published: {done.files_done} files, {done.bytes_done} bytes")
    for file in forebay.where(version):
        print(f"{file.path}: {file.state} in {'+'.join(file.tiers)}, version {file.version}")

    # Ahead of a restart: into memory.
    forebay.prefetch(version)
    with h5py.File(path, "r") as file:
        assert file.attrs["step"] == 120
        assert numpy.array_equal(file["temperature"][:], field)
    print("read back: the same")


if __name__ == "__main__":
    main(sys.argv[1])
