"""Checkpoints of torch.distributed.checkpoint that are published as one group.

    from forebay.torch import ForebayReader, ForebayWriter, latest
    dcp.save(state, storage_writer=ForebayWriter("/bb/run7/ckpt-120", durability="ssd"))
    dcp.load(state, storage_reader=ForebayReader(latest("/bb/run7")))
"""

from __future__ import annotations

import os
from typing import Any, Optional

from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan

import forebay

from . import _versions
from ._errors import ForebayError

__all__ = ["RUNGS", "ForebayReader", "ForebayWriter", "is_complete", "latest"]

RUNGS = ("memory", "ssd", "replica", "pfs")
"""The durability ladder, weakest first."""


class ForebayWriter(FileSystemWriter):
    """Writes a checkpoint into `path`, a version, and has it published as a whole.

    `dcp.save` returns when the checkpoint is as safe as `durability` says, or safer:

    - ``"memory"``: all files are closed. The version is published in the background; `wait` waits
      for that, and it, or the next save on all ranks, raises what went wrong; the log has it, too.
    - ``"ssd"``: the order to publish, and all files, are on flash, flushed. Where there is no flash,
      the files are on the PFS.
    - ``"replica"``: likewise, and two servers have each file, or the PFS has it.
    - ``"pfs"``: the version is on the PFS under its name, verified.

    Only a directory made under a path rule with `group` is published as a whole. Where it is none,
    the save fails before anything is written; with `group=False` its files appear one by one. A path
    that is not below the mount of a burst buffer is refused in any case.

    An incomplete version of the same name, which a killed run or a lost node has left, is removed
    first. A complete one is replaced only with `overwrite=True`. Only files of a checkpoint are
    removed: where others lie beside them, the save fails. `timeout` bounds, in seconds, the wait after the
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
        self._publication: Optional[_versions.Publication] = None
        self._late_error: Optional[BaseException] = None

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Begins another checkpoint."""
        # One at a time. What went wrong with the last one all ranks hear of when they plan: here
        # the others would wait for ever for the one that raises.
        self._late_error = self._publication_error() or self._late_error
        super().reset(checkpoint_id)

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Refuses what is no version as a whole."""
        if not kwargs.get("use_collectives", True):
            raise ValueError("ForebayWriter publishes all ranks' files as one version: use_collectives=True")
        super().set_up_storage_writer(is_coordinator, *args, **kwargs)

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Raises what went wrong with the last checkpoint, and what is no burst buffer."""
        error, self._late_error = self._late_error, None
        if error is not None:
            raise error
        _versions.require_mount(os.fspath(self.path))
        # Not FileSystemWriter's own: on each rank it refuses a version of which a part is lost, too.
        self.fs.mkdir(self.path)
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """On the coordinator, when all ranks have planned and none has written: a fresh directory."""
        _versions.prepare(os.fspath(self.path), group=self.group, overwrite=self.overwrite, damage=_damage_of)
        return super().prepare_global_plan(plans)

    def finish(self, metadata: Metadata, results: Any) -> None:
        """On the coordinator, when all ranks have written."""
        super().finish(metadata, results)
        path = os.fspath(self.path)
        if self.durability == "memory":
            if self.group:
                self._publication = _versions.Publication(path)
            return
        if not self.group:
            _versions.sync(path)
            _versions.settle(path, self.durability, self.timeout)
        elif self.durability == "pfs":
            forebay.commit(path, wait=True, timeout=self.timeout)
        else:
            if self.durability == "replica":
                # What was written after a rank's own fsync is not in the second copy.
                _versions.sync(path)
            forebay.commit(path, timeout=self.timeout)
            if self.durability == "replica":
                _versions.settle(path, self.durability, self.timeout)

    def wait(self) -> None:
        """Waits until the order to publish the last checkpoint is given (durability "memory"), and
        raises what went wrong with it. The coordinator gives the order: other ranks do not wait, and
        hear of it in their next save."""
        error = self._publication_error()
        if error is not None:
            raise error

    def _publication_error(self) -> Optional[BaseException]:
        if self._publication is None:
            return None
        error = self._publication.ended()
        self._publication = None
        return error


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
    """Whether a checkpoint has its index, and all files as long as the index says. What cannot be
    read is not complete; the log (`forebay.torch`) says why."""
    return _versions.is_complete(os.fspath(path), _read_index)


def latest(folder: str | os.PathLike[str]) -> Optional[str]:
    """The newest complete checkpoint in a folder, by the last number in its name; None if there is
    none. What a killed run has left half written, what is damaged, and what Forebay has put beside
    another (`.forebay-conflict-`) is passed over."""
    if not os.path.isdir(folder):
        return None
    return next((path for path in _versions.newest_first(os.fspath(folder)) if is_complete(path)), None)


def _damage_of(path: str) -> Optional[str]:
    return _versions.damage_of(path, _read_index)


def _read_index(path: str) -> Metadata:
    return FileSystemReader(path).read_metadata()
