"""What `forebay.torch` knows of checkpoint versions on disk. Nothing here needs torch."""

from __future__ import annotations

import errno as _numbers
import logging
import os
import pickle
import re
import threading
from collections.abc import Callable
from typing import Any, Optional

import forebay

from ._command import state_of
from ._errors import Failure, PathsError

INDEX = ".metadata"
PROBE = ".probe"

_log = logging.getLogger("forebay.torch")

_OWN_NAME = re.compile(r"__.*_.*\.distcp|\.metadata|\.metadata\.tmp|\.probe", re.DOTALL)
"""What FileSystemWriter and `is_unpublished` make in a version."""

_RESERVED = ".forebay-"
"""In names that Forebay gives: of what was put beside something else, and of what it hides."""

_LOST = (_numbers.EIO, _numbers.ENODATA, _numbers.EBADMSG)
"""What a read of content says that is gone, or not what it was."""


def require_mount(path: str) -> None:
    """Raises PathsError for a path that no burst buffer has."""
    state_of(path)


def prepare(path: str, *, group: bool, overwrite: bool, damage: Callable[[str], Optional[str]]) -> None:
    """Makes a directory ready for a new checkpoint: an incomplete one, or with `overwrite` any, goes.

    Nothing is removed before it is known that the directory may be a version, and nothing but what
    a checkpoint has. `damage` is `damage_of`, which may raise, and then nothing is removed either.
    """
    names = os.listdir(path)
    own = [name for name in names if _is_own(path, name)]
    others = sorted(set(names) - set(own))
    if INDEX in own and not overwrite and damage(path) is None:
        raise FileExistsError(_numbers.EEXIST, "the checkpoint already exists, complete; overwrite=True replaces it", path)
    if own:
        if others:
            raise _not_alone(path, others)
        if group and not is_unpublished(path) and not _may_be_version(path):
            raise _no_version(path)
        _remove(path, own)
        if group:
            _make_anew(path)
    if group and not is_unpublished(path):
        # It may have been made before its rule was there.
        if others:
            raise _no_version(path)
        _make_anew(path)
        if not is_unpublished(path):
            os.rmdir(path)
            raise _no_version(path)


def _is_own(path: str, name: str) -> bool:
    full = os.path.join(path, name)
    return _OWN_NAME.fullmatch(name) is not None and os.path.isfile(full) and not os.path.islink(full)


def _remove(path: str, names: list[str]) -> None:
    # The index first: who is killed here leaves no version that looks complete.
    for name in sorted(names, key=lambda name: name != INDEX):
        os.unlink(os.path.join(path, name))


def _make_anew(path: str) -> None:
    os.rmdir(path)
    os.mkdir(path)


def is_unpublished(path: str) -> bool:
    """Whether the PFS does not show a directory yet. Of files Forebay tells that to every user."""
    files = [entry.path for entry in os.scandir(path) if entry.is_file(follow_symlinks=False)]
    if files:
        return all(file.unpublished for file in forebay.where(files))
    probe = os.path.join(path, PROBE)
    with open(probe, "xb"):
        pass
    try:
        return all(file.unpublished for file in forebay.where(probe))
    finally:
        os.unlink(probe)


def _may_be_version(path: str) -> bool:
    """Whether a rule makes it one, of a directory that the PFS shows: an order changes nothing there."""
    try:
        forebay.commit(path)
    except PathsError as error:
        if error.errno == _numbers.EINVAL:
            return False
        raise
    return True


def _no_version(path: str) -> PathsError:
    reason = (
        "not published as a whole: give its directory a path rule with group = \"commit\" "
        "(docs/operations.md), or group=False"
    )
    return PathsError(_numbers.EINVAL, "no version", failures=(Failure(path, _numbers.EINVAL, reason),))


def _not_alone(path: str, others: list[str]) -> PathsError:
    number = _numbers.ENOTEMPTY
    more = f" and {len(others) - 3} more" if len(others) > 3 else ""
    reason = (
        f"an earlier checkpoint is there, and beside it {', '.join(map(repr, others[:3]))}{more}, which "
        "is no part of one: move that away, or remove the directory"
    )
    return PathsError(number, "nothing was removed", failures=(Failure(path, number, reason),))


def damage_of(path: str, read_index: Callable[[str], Any]) -> Optional[str]:
    """Why a checkpoint is not complete; None if it is. What leaves that open is raised, such as an
    index of another version of torch."""
    try:
        metadata = read_index(path)
    except (FileNotFoundError, NotADirectoryError):
        return NO_INDEX
    except (EOFError, pickle.UnpicklingError) as error:
        # Half an index, of which a loss of power took the rest.
        return f"its index is damaged: {error}"
    except OSError as error:
        if error.errno not in _LOST:
            raise
        return f"its index cannot be read: {error.strerror}"
    ends: dict[str, int] = {}
    for part in (metadata.storage_data or {}).values():
        ends[part.relative_path] = max(ends.get(part.relative_path, 0), part.offset + part.length)
    for name, end in ends.items():
        try:
            size = os.stat(os.path.join(path, name)).st_size
        except OSError as error:
            if error.errno not in (_numbers.ENOENT, *_LOST):
                raise
            return f"{name}: {error.strerror}"
        if size < end:
            return f"{name} has {size} of {end} bytes"
    return None


NO_INDEX = "it has no index"
"""The damage of a checkpoint that was never finished."""


def is_complete(path: str, read_index: Callable[[str], Any]) -> bool:
    """Whether nothing is known to be wrong with a checkpoint, and all could be looked at."""
    try:
        damage = damage_of(path, read_index)
    except Exception as error:
        # A pickle that is damaged raises anything.
        damage = f"it cannot be told whether it is complete: {type(error).__name__}: {error}"
    if damage is not None and damage != NO_INDEX:
        _log.warning("%s is passed over: %s", path, damage)
    return damage is None


def newest_first(folder: str) -> list[str]:
    """Directories with a number in their names, by the last number in it. What Forebay has put
    beside one (`ckpt-7.forebay-conflict-1700000000`), and what it hides, are none."""
    versions = []
    with os.scandir(folder) as entries:
        for entry in entries:
            numbers = re.findall(r"\d+", entry.name)
            if numbers and _RESERVED not in entry.name and entry.is_dir():
                versions.append((int(numbers[-1]), entry.path))
    return [path for _, path in sorted(versions, reverse=True)]


class Publication:
    """The order to publish a version, given behind the program's back."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._error: Optional[BaseException] = None
        # No daemon: a program that ends in order has given the order.
        self._thread = threading.Thread(target=self._run, name="forebay-commit")
        self._thread.start()

    def _run(self) -> None:
        try:
            forebay.commit(self._path)
        except BaseException as error:
            self._error = error
            # It may be that nobody waits for it, ever.
            _log.error("%s: no order to publish it was given: %s", self._path, error)

    def ended(self) -> Optional[BaseException]:
        """Waits for its end. What went wrong."""
        self._thread.join()
        return self._error


def sync(path: str) -> None:
    """Flushes each file of a directory, and the directory, as far as their levels promise."""
    with os.scandir(path) as entries:
        names = [entry.path for entry in entries if entry.is_file(follow_symlinks=False)]
    for name in names:
        _sync(name, os.O_RDONLY)
    _sync(path, os.O_RDONLY | os.O_DIRECTORY)


def _sync(path: str, flags: int) -> None:
    file = os.open(path, flags | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def settle(path: str, durability: str, timeout: Optional[float]) -> None:
    """Brings to the PFS what is not as safe as it should be: the strongest rung stands for all."""
    behind = [file.path for file in forebay.where(path) if not is_safe(file, durability)]
    if behind:
        forebay.stage_out(behind, timeout=timeout)


def is_safe(file: forebay.Location, durability: str) -> bool:
    """Whether a file that was flushed is as safe as a rung says. Stale copies are no copies."""
    if file.on_pfs:
        return True
    if durability == "replica":
        return _servers(file) >= 2
    if durability == "ssd":
        # At the level `memory` fsync flushes nothing, wherever the file is.
        return file.durability not in (None, "memory") and _on_flash(file)
    return False


def _current(file: forebay.Location) -> list[str]:
    """Its tiers but for those with an older copy."""
    return [tier for tier in file.tiers if tier not in file.stale_tiers]


def _servers(file: forebay.Location) -> int:
    """On how many servers a file is; a tier without a server's name is the metadata server's."""
    names = (tier.partition(":")[0] if tier.startswith("server-") else "" for tier in _current(file) if tier != "pfs")
    return len(set(names))


def _on_flash(file: forebay.Location) -> bool:
    return any(tier.rpartition(":")[2] not in ("dram", "pfs") for tier in _current(file))
