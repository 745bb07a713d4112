#!/usr/bin/env python3
"""Heat in a plate under a moving laser, by finite differences, with HDF5 checkpoints.

Two fields evolve: the temperature, and the peak temperature each point has seen (what decides how a weld hardens).
Every step is element-wise arithmetic in a fixed order, so that an interrupted and restarted run ends with the same
bytes as an uninterrupted one. Checkpoints are written as plain programs write them: straight to their final name,
then closed. A restart takes the newest one that is complete.
"""

import argparse
import json
import os
import re
import sys
import time
import zlib
from pathlib import Path

import h5py
import numpy as np

DIFFUSION = 0.2  # below the explicit scheme's limit of 0.25
COOLING = 1e-4  # share of the excess over AMBIENT that a point loses to the air in a step
AMBIENT = 293.15
LASER_HEAT = 40.0  # kelvin per step in the middle of the spot
LASER_WIDTH = 0.03  # of the plate's width
LASER_PERIOD = 400  # steps for once round the plate
ROWS_AT_ONCE = 64  # rows whose temporaries fit into a core's cache
FIELDS = ("temperature", "peak")


class Plate:
    """The state of the simulation after `step` steps."""

    def __init__(self, size):
        self.step = 0
        self.temperature = np.full((size, size), AMBIENT)
        self.peak = self.temperature.copy()
        self._next = self.temperature.copy()
        self._axis = np.arange(size, dtype=np.float64) / size

    def advance(self):
        """One explicit step; the rim stays at the ambient temperature."""
        now, new = self.temperature, self._next
        last = len(now) - 1
        for top in range(1, last, ROWS_AT_ONCE):
            end = min(top + ROWS_AT_ONCE, last)
            inner = now[top:end, 1:-1]
            change = now[top - 1 : end - 1, 1:-1] + now[top + 1 : end + 1, 1:-1]
            change += now[top:end, :-2]
            change += now[top:end, 2:]
            change -= 4.0 * inner
            change *= DIFFUSION
            change -= COOLING * (inner - AMBIENT)
            np.add(inner, change, out=new[top:end, 1:-1])
        self._shine(new)
        self.temperature, self._next = new, now
        np.maximum(self.peak, new, out=self.peak)
        self.step += 1

    def _shine(self, field):
        angle = 2.0 * np.pi * (self.step % LASER_PERIOD) / LASER_PERIOD
        centre = (0.5 + 0.3 * np.cos(angle), 0.5 + 0.3 * np.sin(angle))
        near = [np.flatnonzero(np.abs(self._axis - middle) < 4.0 * LASER_WIDTH) for middle in centre]
        rows, columns = (
            np.exp(-(((self._axis[part] - middle) / LASER_WIDTH) ** 2))
            for part, middle in zip(near, centre)
        )
        spot = np.s_[near[0][0] : near[0][-1] + 1, near[1][0] : near[1][-1] + 1]
        field[spot] += LASER_HEAT * np.outer(rows, columns)

    def checksums(self):
        return np.array([zlib.crc32(getattr(self, name)) for name in FIELDS], dtype=np.uint32)


class Log:
    """One JSON object per line, for whoever watches the run."""

    def __init__(self, path):
        self._file = open(path, "a", encoding="utf-8") if path else None

    def __call__(self, event, **facts):
        if self._file:
            print(json.dumps({"event": event, **facts}), file=self._file, flush=True)


def checkpoint_path(folder, step):
    return Path(folder) / f"ckpt-{step:06}" / "field.h5"


def save(plate, folder, log):
    """Writes a checkpoint and logs how long the program had to wait for it, from open to closed."""
    path = checkpoint_path(folder, plate.step)
    checksums = plate.checksums()
    log("checkpoint_begin", step=plate.step, path=str(path))
    begin = time.monotonic()
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        for name in FIELDS:
            file.create_dataset(name, data=getattr(plate, name))
        file.create_dataset("checksums", data=checksums)
        file.attrs["step"] = plate.step
        file.flush()
        file.attrs["complete"] = True
    wait_s = time.monotonic() - begin
    log("checkpoint_end", step=plate.step, path=str(path), wait_s=wait_s, bytes=path.stat().st_size)


def load(path, plate):
    """Fills `plate` from a checkpoint; raises OSError, KeyError or ValueError when it is not complete."""
    with h5py.File(path, "r") as file:
        if not file.attrs["complete"]:
            raise ValueError("not marked complete")
        for name in FIELDS:
            file[name].read_direct(getattr(plate, name))
        plate.step = int(file.attrs["step"])
        expected = file["checksums"][:]
    if not np.array_equal(plate.checksums(), expected):
        raise ValueError("checksum mismatch")


def resume(folder, size, log):
    """The newest complete checkpoint in `folder`, or a fresh plate."""
    found = [(int(match[1]), path) for path in Path(folder).glob("ckpt-*/field.h5")
             if (match := re.fullmatch(r"ckpt-(\d+)", path.parent.name))]
    for step, path in sorted(found, reverse=True):
        plate = Plate(size)
        begin = time.monotonic()
        try:
            load(path, plate)
        except (OSError, KeyError, ValueError, TypeError) as error:
            print(f"heat: {path} is not complete ({error}); trying an older one", file=sys.stderr)
            log("checkpoint_skipped", step=step, path=str(path), reason=str(error))
            continue
        log("resumed", step=plate.step, path=str(path), wait_s=time.monotonic() - begin)
        return plate
    log("started")
    return Plate(size)


def write_result(plate, path):
    """The final state as one array; byte for byte comparable."""
    temporary = f"{path}.part"
    with open(temporary, "wb") as file:
        np.save(file, np.stack([getattr(plate, name) for name in FIELDS]))
    os.replace(temporary, path)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dir", required=True, help="where the checkpoints go")
    parser.add_argument("--steps", type=int, default=200, help="steps to simulate (200)")
    parser.add_argument("--every", type=int, default=20, help="steps from one checkpoint to the next (20)")
    parser.add_argument("--size", type=int, default=2048, help="points along an edge (2048: 64 MiB per checkpoint)")
    parser.add_argument("--resume", action="store_true", help="start from the newest complete checkpoint, if any")
    parser.add_argument("--result", help="write the final fields here, as .npy")
    parser.add_argument("--pace", type=float, default=0.0, metavar="SECONDS", help="make each step last at least this")
    parser.add_argument("--log", help="append a JSON line per event here")
    args = parser.parse_args()
    if args.steps < 0 or args.every < 1 or args.size < 64 or args.pace < 0:
        parser.error("needs --steps >= 0, --every >= 1, --size >= 64, --pace >= 0")
    return args


def main():
    args = arguments()
    log = Log(args.log)
    plate = resume(args.dir, args.size, log) if args.resume else Plate(args.size)
    while plate.step < args.steps:
        begin = time.monotonic()
        plate.advance()
        time.sleep(max(0.0, args.pace - (time.monotonic() - begin)))
        log("step", step=plate.step)
        if plate.step % args.every == 0:
            save(plate, args.dir, log)
    if args.result:
        write_result(plate, args.result)
    log("finished", step=plate.step)


if __name__ == "__main__":
    main()
