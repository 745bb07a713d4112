"""The command `forebay`: its words, and what its answers mean. Nothing here waits."""

from __future__ import annotations

import errno as numbers
import json
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from typing import IO, Any, Optional, Union

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
from ._types import PathLike, Progress, Result, Status, failure_of, number_of, progress_of, result_of, status_of

Paths = Union[PathLike, Iterable[PathLike]]

STATUS_LIMIT_S = 60.0
"""A status that has not come by then does not come: the command's own limits are shorter."""

LOST_CODE = 255
"""The exit code of a command that somebody else has waited for, or nobody, as where SIGCHLD is
ignored: asyncio's own word for it. The command itself has no such code."""

STOP_LIMIT_S = 15.0
"""A command that was told to stop gives its jobs ten seconds to say what is left."""


def program() -> str:
    """The path of the program: FOREBAY_BIN, else `forebay` in PATH."""
    named = os.environ.get("FOREBAY_BIN")
    if named:
        return named
    found = shutil.which("forebay")
    if found is None:
        raise _not_installed("forebay")
    return found


def _not_installed(what: str) -> NotInstalledError:
    return NotInstalledError(
        numbers.ENOENT, f"{what}: no such program; put `forebay` into PATH, or its path into FOREBAY_BIN"
    )


def unstartable(argv: Sequence[str], error: OSError) -> ForebayError:
    """A program that cannot be started."""
    if isinstance(error, FileNotFoundError):
        return _not_installed(argv[0])
    return ForebayError(error.errno or numbers.EIO, f"{argv[0]}: {error.strerror}")


def as_list(paths: Paths) -> list[bytes]:
    """Paths as bytes; one may stand for a list of one."""
    if isinstance(paths, (str, bytes, os.PathLike)):
        paths = [paths]
    given = [os.fsencode(path) for path in paths]
    for path in given:
        if not path or b"\0" in path:
            what = "an empty path" if not path else "a path with a NUL byte"
            raise PathsError(
                numbers.EINVAL,
                f"{what} names no file",
                failures=(Failure(os.fsdecode(path), numbers.EINVAL, what),),
            )
    return given


def as_input(paths: list[bytes]) -> IO[bytes]:
    """The list as a file for the command's standard input: any number of paths, any bytes in them."""
    file = scratch("forebay-paths")
    file.write(b"".join(path + b"\0" for path in paths))
    file.seek(0)
    return file


def scratch(name: str) -> IO[bytes]:
    """A file in memory without a name; unlike a pipe it never holds its writer up."""
    return os.fdopen(os.memfd_create(name), "w+b")


def duration(seconds: float) -> str:
    """As `--timeout` takes it."""
    if not seconds > 0:
        raise ValueError(f"a timeout is more than 0 seconds, not {seconds}")
    return f"{max(1, round(seconds * 1000))}ms"


def words(verb: str, timeout: Optional[float] = None, wait: bool = False) -> list[str]:
    """A command with its paths on standard input and lines of JSON on standard output."""
    argv = [program(), verb, "--json-lines", "--null", "--from-file", "-"]
    if wait:
        argv.append("--wait")
    if timeout is not None:
        argv += ["--timeout", duration(timeout)]
    return argv


def status_words(state: Optional[PathLike], path: Optional[PathLike], config: Optional[PathLike]) -> list[str]:
    """`forebay status` of whom the arguments name, one at most."""
    if sum(given is not None for given in (state, path, config)) > 1:
        raise ValueError("status takes one of state, path and config")
    argv = [program(), "status", "--json-lines"]
    if path is not None:
        state = _state_by_name(path) or state_of(path)
    if state is not None:
        argv += ["--state", os.fsdecode(state)]
    if config is not None:
        argv += ["--config", os.fsdecode(config)]
    return argv


def state_of(path: PathLike) -> bytes:
    """The state folder of the burst buffer that a path below its mount lies in."""
    given = os.fsencode(path)
    state = _state_at(os.path.realpath(given))
    if state is None:
        why = "not below the mount of a burst buffer"
        raise PathsError(numbers.EXDEV, why, failures=(Failure(os.fsdecode(given), numbers.EXDEV, why),))
    return state


def _state_by_name(path: PathLike) -> Optional[bytes]:
    """The same by the name alone, which no file system can hold up. None where it takes a look."""
    given = os.fsencode(path)
    if b".." in given.split(b"/"):
        return None
    return _state_at(os.path.abspath(given))


def _state_at(full: bytes) -> Optional[bytes]:
    """The state folder of what is mounted over a path; None if that is no burst buffer."""
    best = (b"", b"", b"")
    with open("/proc/self/mountinfo", "rb") as table:
        for line in table:
            before, _, after = line.partition(b" - ")
            point, kind, source = _unescape(before.split(b" ")[4]), *after.split(b" ")[:2]
            inside = full == point or full.startswith(point.rstrip(b"/") + b"/")
            if inside and len(point) >= len(best[0]):
                best = (point, kind, _unescape(source))
    return best[2] if best[1] == b"fuse.forebay" else None


def _unescape(field: bytes) -> bytes:
    """Undoes the mount table's octal numbers, such as `\\040` for a blank."""
    head, *rest = field.split(b"\\")
    return head + b"".join(bytes([int(part[:3], 8)]) + part[3:] for part in rest)


def status_from(code: int, stdout: bytes, stderr: bytes) -> Status:
    """The answer of `forebay status`, or its exception."""
    try:
        value = json.loads(stdout)
    except ValueError:
        raise _unexplained("status", code, stderr) from None
    if "fatal" in value:
        raise _of_fatal(value["fatal"], code, nobody=(None, numbers.ENOTCONN, numbers.ENOENT))
    if "drain" not in value:
        raise ForebayError(
            numbers.EOPNOTSUPP, "this server knows of no files: it holds data only, or stands by", exit_code=code
        )
    return status_of(value)


class Answers:
    """Reads the lines of one command, and says at its end what they mean."""

    def __init__(self, verb: str) -> None:
        self.verb = verb
        self.failures: list[Failure] = []
        self.result: Optional[Result] = None
        self._fatal: Optional[Mapping[str, Any]] = None

    def movement(self, line: bytes) -> Optional[Progress]:
        """A line of a movement; None where it is the end."""
        value = json.loads(line)
        if "fatal" in value:
            self._fatal = value["fatal"]
        elif value["outcome"] is None:
            return progress_of(value)
        else:
            self.result = result_of(value)
            self.failures = list(self.result.failures)
        return None

    def file(self, line: bytes) -> Optional[Mapping[str, Any]]:
        """A line of `where`; None where it is a failure."""
        value: Mapping[str, Any] = json.loads(line)
        if "fatal" in value:
            self._fatal = value["fatal"]
        elif "failure" in value:
            self.failures.append(failure_of(value["failure"]))
        else:
            return value
        return None

    def error(self, code: int, stderr: bytes) -> Optional[ForebayError]:
        """The exception that a command's end means; None if it is complete. Its lines and its exit
        code both have to say so: a code that is lost looks like that of a success to Popen."""
        if self._fatal is not None:
            return _of_fatal(self._fatal, code)
        said = self._said_code()
        if said is None:
            # `where` has no last line.
            is_silent = code == 0 or (code == LOST_CODE and not stderr.strip())
            return None if is_silent and self.verb == "where" else _unexplained(self.verb, code, stderr)
        if code in (0, LOST_CODE):
            code = said
        if code == 0:
            return None
        if said == 0:
            return _unexplained(self.verb, code, stderr)
        kind, errno, message = self._of_code(code)
        return kind(
            errno,
            message,
            exit_code=code,
            failures=tuple(self.failures),
            left=self.result.left if self.result else (),
            result=self.result,
        )

    def _said_code(self) -> Optional[int]:
        """The exit code that the lines mean; None where they say nothing."""
        outcome = self.result.outcome if self.result else None
        by_outcome = {"timed-out": 4, "interrupted": 130, "cancelled": 3}
        if outcome in by_outcome:
            return by_outcome[outcome]
        if any(one.errno == numbers.EBADMSG for one in self.failures):
            return 5
        if self.failures or (self.result and self.result.files_failed):
            return 3
        return 0 if self.result else None

    def _of_code(self, code: int) -> tuple[type[ForebayError], int, str]:
        left = len(self.result.left) if self.result else 0
        if code == 4:
            return TimedOutError, numbers.ETIMEDOUT, f"{self.verb} timed out; {left} paths named in `left`"
        if code == 5:
            return VerificationError, numbers.EBADMSG, f"{self.verb}: content does not match its checksum"
        if code == 130:
            return CancelledError, numbers.ECANCELED, f"{self.verb} was stopped"
        if self.result is not None and self.result.outcome == "cancelled":
            return CancelledError, numbers.ECANCELED, f"{self.verb} was ended by somebody else, or a stop"
        count = max(len(self.failures), self.result.files_failed if self.result else 0)
        errno = self.failures[0].errno if self.failures else numbers.EIO
        if self.failures and all(one.errno == numbers.ENOTCONN for one in self.failures):
            return NotRunningError, numbers.ENOTCONN, f"{self.verb}: no burst buffer answers"
        what = "1 path" if count == 1 else f"{count} paths"
        return PathsError, errno, f"{self.verb}: {what} failed"


def _of_fatal(
    fatal: Mapping[str, Any], code: int, nobody: tuple[Optional[int], ...] = (numbers.ENOTCONN,)
) -> ForebayError:
    """From ``{"errno", "error"}``; with a number in `nobody`, nobody was there to ask."""
    errno = None if fatal["errno"] is None else number_of(fatal["errno"])
    if errno in nobody:
        return NotRunningError(numbers.ENOTCONN, fatal["error"], exit_code=code)
    # What has no number of its own is wrong usage.
    return ForebayError(errno or numbers.EINVAL, fatal["error"], exit_code=code)


def _unexplained(verb: str, code: int, stderr: bytes) -> ForebayError:
    """A command that gave no answer: wrong usage, as of an older program, or a signal."""
    ended = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
    if code == LOST_CODE:
        ended = "ended, and its exit code is lost: SIGCHLD is ignored, or somebody else waits for processes"
    return ForebayError(numbers.EIO, f"{_message(stderr, verb)} ({ended})", exit_code=code)


def _message(stderr: bytes, verb: str) -> str:
    """The last line that a command has said."""
    lines = [line for line in stderr.decode(errors="replace").splitlines() if line.strip()]
    last = lines[-1] if lines else f"forebay {verb} said nothing"
    return last[len("forebay: ") :] if last.startswith("forebay: ") else last
