"""Checkpoints of torch.distributed.checkpoint that are published as one group.

    from forebay.torch import ForebayReader, ForebayWriter, latest
    dcp.save(state, storage_writer=ForebayWriter("/bb/run7/ckpt-120", durability="ssd"))
    dcp.load(state, storage_reader=ForebayReader(latest("/bb/run7")))
"""

from __future__ import annotations

import errno as _numbers
import os
import pickle
import re
import shutil
import threading
from typing import Any, Optional

from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan

import forebay

from ._errors import Failure, ForebayError, PathsError

__all__ = ["RUNGS", "ForebayReader", "ForebayWriter", "is_complete", "latest"]

RUNGS = ("memory", "ssd", "replica", "pfs")
"""The durability ladder, weakest first."""

_METADATA = ".metadata"


class ForebayWriter(FileSystemWriter):
    """Writes a checkpoint into `path`, a version, and has it published as a whole.

    `dcp.save` returns when the checkpoint is as safe as `durability` says, or safer:

    - ``"memory"``: all files are closed. The version is published in the background; `wait` waits
      for that, and it, or the next save, raises what went wrong.
    - ``"ssd"``: the order to publish, and all files, are on flash, flushed. Where there is no flash,
      the files are on the PFS.
    - ``"replica"``: likewise, and two servers have each file, or the PFS has it.
    - ``"pfs"``: the version is on the PFS under its name, verified.

    Only a directory made under a path rule with `group` is published as a whole. Where it is none,
    the save fails before anything is written; with `group=False` its files appear one by one.

    An incomplete version of the same name, which a killed run has left, is removed first. A complete
    one is replaced only with `overwrite=True`. `timeout` bounds, in seconds, the wait after the
    last byte is written. Further arguments are those of FileSystemWriter.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        durability: str = "ssd",
        group: bool = True,
        overwrite: bool = False,
        timeout: Optional[float] = None,
        **arguments: Any,
    ) -> None:
        if durability not in RUNGS:
            raise ValueError(f"durability is one of {', '.join(RUNGS)}, not {durability!r}")
        # In memory nothing is flushed; the commit does that for a group, but fsync makes replicas.
        arguments.setdefault("sync_files", durability != "memory")
        super().__init__(path, overwrite=overwrite, **arguments)
        self.durability = durability
        self.group = group
        self.timeout = timeout
        self._publication: Optional[_Publication] = None

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Begins another checkpoint."""
        # One at a time: and what went wrong with the last one is not lost.
        self.wait()
        super().reset(checkpoint_id)

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Refuses what is no version as a whole."""
        if not kwargs.get("use_collectives", True):
            raise ValueError("ForebayWriter publishes all ranks' files as one version: use_collectives=True")
        super().set_up_storage_writer(is_coordinator, *args, **kwargs)

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """On the coordinator, when all ranks have planned and none has written: a fresh directory."""
        if os.listdir(self.path):
            self._begin_anew()
        if self.group and not _is_unpublished(self.path):
            # It may have been made before its rule was there.
            self._begin_anew()
            if not _is_unpublished(self.path):
                os.rmdir(self.path)
                raise _no_version(os.fspath(self.path))
        return super().prepare_global_plan(plans)

    def _begin_anew(self) -> None:
        shutil.rmtree(self.path)
        os.mkdir(self.path)

    def finish(self, metadata: Metadata, results: Any) -> None:
        """On the coordinator, when all ranks have written."""
        super().finish(metadata, results)
        path = os.fspath(self.path)
        if self.durability == "memory":
            if self.group:
                self._publication = _Publication(path)
            return
        if not self.group:
            _sync_directory(path)
            _settle(path, self.durability, self.timeout)
        elif self.durability == "pfs":
            forebay.commit(path, wait=True, timeout=self.timeout)
        else:
            forebay.commit(path, timeout=self.timeout)
            if self.durability == "replica":
                _settle(path, self.durability, self.timeout)

    def wait(self) -> None:
        """Waits until the order to publish the last checkpoint is given (durability "memory"), and
        raises what went wrong with it."""
        publication, self._publication = self._publication, None
        if publication is not None:
            publication.wait()


class _Publication:
    """The order to publish a version, given behind the program's back."""

    def __init__(self, path: str) -> None:
        self._error: Optional[BaseException] = None
        # No daemon: a program that ends in order has given the order.
        self._thread = threading.Thread(target=self._run, args=(path,), name="forebay-commit")
        self._thread.start()

    def _run(self, path: str) -> None:
        try:
            forebay.commit(path)
        except ForebayError as error:
            self._error = error

    def wait(self) -> None:
        self._thread.join()
        if self._error is not None:
            raise self._error


def _no_version(path: str) -> PathsError:
    reason = (
        "not published as a whole: give its directory a path rule with group = \"commit\" "
        "(docs/operations.md), or group=False"
    )
    return PathsError(_numbers.EINVAL, "no version", failures=(Failure(path, _numbers.EINVAL, reason),))


def _is_unpublished(path: str | os.PathLike[str]) -> bool:
    """Whether the PFS does not show the directory yet. Of files Forebay tells that to every user."""
    probe = os.path.join(path, ".probe")
    with open(probe, "xb"):
        pass
    try:
        return all(file.unpublished for file in forebay.where(probe))
    finally:
        os.unlink(probe)


def _settle(path: str, durability: str, timeout: Optional[float]) -> None:
    """Brings to the PFS what is not as safe as it should be: the strongest rung stands for all."""
    files = forebay.where(path)
    if durability == "replica":
        behind = [file.path for file in files if not file.on_pfs and _servers(file) < 2]
    elif durability == "ssd" and forebay.status(path=path).durability != "memory":
        # What fsync has flushed to flash has its place there.
        behind = [file.path for file in files if not file.on_pfs and not _on_flash(file)]
    else:
        behind = [file.path for file in files if not file.on_pfs]
    if behind:
        forebay.stage_out(behind, timeout=timeout)


def _servers(file: forebay.Location) -> int:
    """On how many servers a file is; a tier without a server's name is the metadata server's."""
    names = (tier.partition(":")[0] if tier.startswith("server-") else "" for tier in file.tiers if tier != "pfs")
    return len(set(names))


def _on_flash(file: forebay.Location) -> bool:
    return any(tier.rpartition(":")[2] not in ("dram", "pfs") for tier in file.tiers)


def _sync_directory(path: str) -> None:
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


class ForebayReader(FileSystemReader):
    """Reads a checkpoint from where it is fastest.

    With `prefetch` the coordinator first brings what is only on the PFS into memory. A prefetch that
    fails, as for lack of room, fails no load: the files are read from where they are.
    """

    def __init__(self, path: str | os.PathLike[str], *, prefetch: bool = False, **arguments: Any) -> None:
        super().__init__(path, **arguments)
        self.prefetch = prefetch
        self.prefetch_error: Optional[ForebayError] = None
        """Why the last prefetch was not complete."""

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Brings the files in."""
        super().set_up_storage_reader(metadata, is_coordinator, *args, **kwargs)
        self.prefetch_error = None
        if self.prefetch and is_coordinator:
            try:
                forebay.prefetch(os.fspath(self.path))
            except ForebayError as error:
                self.prefetch_error = error


def is_complete(path: str | os.PathLike[str]) -> bool:
    """Whether a checkpoint has its index, and all files as long as the index says."""
    if not os.path.exists(os.path.join(path, _METADATA)):
        return False
    try:
        metadata = FileSystemReader(path).read_metadata()
    except (EOFError, pickle.UnpicklingError):
        # Half an index, of which a loss of power took the rest.
        return False
    ends: dict[str, int] = {}
    for part in (metadata.storage_data or {}).values():
        ends[part.relative_path] = max(ends.get(part.relative_path, 0), part.offset + part.length)
    return all(_size_bytes(os.path.join(path, name)) >= end for name, end in ends.items())


def latest(folder: str | os.PathLike[str]) -> Optional[str]:
    """The newest complete checkpoint in a folder, by the last number in its name; None if there is
    none. What a killed run has left half written is passed over."""
    if not os.path.isdir(folder):
        return None
    versions = []
    for entry in os.scandir(folder):
        numbers = re.findall(r"\d+", entry.name)
        if numbers and entry.is_dir():
            versions.append((int(numbers[-1]), entry.path))
    for _, path in sorted(versions, reverse=True):
        if is_complete(path):
            return path
    return None


def _size_bytes(path: str) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return -1
