"""Forebay from Python: ask where files are, move them, publish checkpoints.

Every function runs the command `forebay` (FOREBAY_BIN, else the one in PATH) and gives its answer
as plain values. They may be called from any thread. `forebay.aio` has the same for asyncio.
"""

from __future__ import annotations

import errno as _numbers
import os
import subprocess
from collections.abc import Callable, Iterator
from typing import Optional

from . import _command
from ._command import Paths
from ._errors import (
    CancelledError,
    Failure,
    ForebayError,
    NotInstalledError,
    NotRunningError,
    PathsError,
    TimedOutError,
    VerificationError,
)
from ._movement import Movement, where_lines
from ._types import (
    Application,
    Drain,
    Limit,
    Location,
    PathLike,
    Progress,
    Result,
    Status,
    Tier,
    Unpublished,
)

__all__ = [
    "Application",
    "CancelledError",
    "Drain",
    "Failure",
    "ForebayError",
    "Limit",
    "Location",
    "Movement",
    "NotInstalledError",
    "NotRunningError",
    "PathLike",
    "Paths",
    "PathsError",
    "Progress",
    "Result",
    "Status",
    "Tier",
    "TimedOutError",
    "Unpublished",
    "VerificationError",
    "commit",
    "commit_iter",
    "prefetch",
    "prefetch_iter",
    "release",
    "release_iter",
    "set_application",
    "stage_in",
    "stage_in_iter",
    "stage_out",
    "stage_out_iter",
    "status",
    "where",
    "where_iter",
]

OnProgress = Optional[Callable[[Progress], object]]
"""Called in the caller's own thread, at most some times a second."""


def status(
    state: Optional[PathLike] = None, *, path: Optional[PathLike] = None, config: Optional[PathLike] = None
) -> Status:
    """Tiers, undrained bytes, the drain, applications and errors.

    Of the only burst buffer mounted here; of the one with the folder `state` (or FOREBAY_STATE); of
    the one that `path` lies in; or of the cluster whose file is `config`.
    """
    argv = _command.status_words(state, path, config)
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=_command.STATUS_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise TimedOutError(_numbers.ETIMEDOUT, "status: no answer came") from error
    except OSError as error:
        raise _command.unstartable(argv, error) from error
    return _command.status_from(done.returncode, done.stdout, done.stderr)


def where(paths: Paths) -> list[Location]:
    """Where files are; directories recurse. Raises PathsError where a path leads nowhere."""
    return list(where_lines(paths))


def where_iter(paths: Paths) -> Iterator[Location]:
    """The same, file by file: a large tree needs little memory. What failed is raised at the end."""
    return where_lines(paths)


def stage_in(paths: Paths, *, timeout: Optional[float] = None, progress: OnProgress = None) -> Result:
    """Copies files from the PFS into the burst buffer; directories recurse."""
    return _follow(stage_in_iter(paths, timeout=timeout), progress)


def stage_in_iter(paths: Paths, *, timeout: Optional[float] = None) -> Movement:
    """The same as an iterator over its progress."""
    return Movement("stage-in", paths, timeout)


def stage_out(
    paths: Paths, *, wait: bool = True, timeout: Optional[float] = None, progress: OnProgress = None
) -> Result:
    """Copies to the PFS what is not there yet. Returns when all is there, verified; without `wait`
    when the files are queued ahead of the ordinary drain."""
    return _follow(stage_out_iter(paths, wait=wait, timeout=timeout), progress)


def stage_out_iter(paths: Paths, *, wait: bool = True, timeout: Optional[float] = None) -> Movement:
    """The same as an iterator over its progress."""
    return Movement("stage-out", paths, timeout, wait)


def prefetch(paths: Paths, *, timeout: Optional[float] = None, progress: OnProgress = None) -> Result:
    """Brings files into memory, ahead of a restart."""
    return _follow(prefetch_iter(paths, timeout=timeout), progress)


def prefetch_iter(paths: Paths, *, timeout: Optional[float] = None) -> Movement:
    """The same as an iterator over its progress."""
    return Movement("prefetch", paths, timeout)


def release(paths: Paths, *, timeout: Optional[float] = None, progress: OnProgress = None) -> Result:
    """Drops clean copies from the burst buffer. What is not on the PFS stays, and is a failure."""
    return _follow(release_iter(paths, timeout=timeout), progress)


def release_iter(paths: Paths, *, timeout: Optional[float] = None) -> Movement:
    """The same as an iterator over its progress."""
    return Movement("release", paths, timeout)


def commit(
    versions: Paths, *, wait: bool = False, timeout: Optional[float] = None, progress: OnProgress = None
) -> Result:
    """Orders checkpoint versions to be published: all files of one appear on the PFS together.

    When it returns, the order and what the files hold are on stable storage; with `wait` the version
    is on the PFS under its name. A version is a directory made under a path rule with `group`.
    """
    return _follow(commit_iter(versions, wait=wait, timeout=timeout), progress)


def commit_iter(versions: Paths, *, wait: bool = False, timeout: Optional[float] = None) -> Movement:
    """The same as an iterator over its progress."""
    return Movement("commit", versions, timeout, wait)


def _follow(movement: Movement, progress: OnProgress) -> Result:
    with movement:
        for now in movement:
            if progress is not None:
                progress(now)
        return movement.result()


def set_application(path: PathLike, name: Optional[str] = None, version: Optional[int] = None) -> list[Location]:
    """Says which application and checkpoint version a file belongs to; of a directory, the files in it.

    It sets the attributes `user.forebay.app` and `user.forebay.version`, which go before path rules
    and before what Forebay reads off the path. They count from the moment they are set, and only
    on files that are not drained yet: set them right after the files are made. Files of which they
    do not count are failures (PathsError). Returns where the files are.
    """
    files = _attribute_files(path, name, version)
    if not files:
        return []
    found = where(files)
    ignored = tuple(
        Failure(file.path, _numbers.EALREADY, "drained before it was named: name files before they are drained")
        for file in found
        if (name is not None and file.application != name) or (version is not None and file.version != version)
    )
    if ignored:
        raise PathsError(
            _numbers.EALREADY, f"set_application: too late for {_files(len(ignored))}, drained before", failures=ignored
        )
    return found


def _files(count: int) -> str:
    return f"{count} file{'' if count == 1 else 's'}"


def _attribute_files(path: PathLike, name: Optional[str], version: Optional[int]) -> list[bytes]:
    """Sets the attributes; the files that have them now."""
    attributes: dict[str, bytes] = {}
    if name is not None:
        if not name:
            raise ValueError("an application has a name")
        attributes["user.forebay.app"] = name.encode()
    if version is not None:
        if not 0 <= version < 1 << 64:
            raise ValueError(f"a version is a number from 0 on, not {version}")
        attributes["user.forebay.version"] = str(version).encode()
    if not attributes:
        raise ValueError("set_application takes a name, a version, or both")
    [root] = _command.as_list(path)
    # Nothing but a burst buffer gives these attributes a meaning.
    _command.state_of(root)
    files = _regular_files(root)
    for file in files:
        for attribute, value in attributes.items():
            os.setxattr(file, attribute, value, follow_symlinks=True)
    return files


def _regular_files(root: bytes) -> list[bytes]:
    """The file itself, or the files below a directory; links in it are not followed."""
    if not os.path.isdir(root):
        os.stat(root)
        return [root]

    def fail(error: OSError) -> None:
        raise error

    found: list[bytes] = []
    for folder, _, names in os.walk(root, onerror=fail):
        paths = (os.path.join(folder, name) for name in names)
        found += [path for path in paths if os.path.isfile(path) and not os.path.islink(path)]
    return found
