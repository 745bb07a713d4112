"""What goes wrong, as exceptions.

Every one is an OSError, so ``errno``, ``strerror`` and ``filename`` say what any file error says.
"""

from __future__ import annotations

import errno as numbers
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Optional

if TYPE_CHECKING:
    from ._types import Result


@dataclass(frozen=True)
class Failure:
    """One path that failed, and why."""

    path: str
    """As `open` takes it: bytes that are not UTF-8 are surrogates (`os.fsencode` gives them back)."""
    errno: int
    reason: str

    @property
    def errno_name(self) -> str:
        """The name of the number, such as ``ENOSPC``."""
        return numbers.errorcode.get(self.errno, str(self.errno))

    def as_error(self) -> OSError:
        """The same as Python's own exception, such as FileNotFoundError."""
        return OSError(self.errno, self.reason, self.path)


class ForebayError(OSError):
    """Something that Forebay could not do. All others derive from this."""

    def __init__(
        self,
        errno: int,
        message: str,
        *,
        exit_code: Optional[int] = None,
        failures: tuple[Failure, ...] = (),
        left: tuple[str, ...] = (),
        result: Optional[Result] = None,
    ) -> None:
        filename = failures[0].path if failures else None
        # OSError takes a file name as a third argument only where there is one.
        super().__init__(*((errno, message, filename) if filename is not None else (errno, message)))
        self.exit_code = exit_code
        """Of the command: 1 fatal, 3 partial, 4 timed out, 5 verification failed, 130 stopped."""
        self.failures = failures
        """Each path that failed, 256 at most; ``result.files_failed`` counts all."""
        self.left = left
        """Paths that are not done yet, 256 at most."""
        self.result = result
        """How far a movement came; None where none began."""

    def __str__(self) -> str:
        message = self.strerror or os.strerror(self.errno or 0)
        if not self.failures:
            return message
        named = [f"{_shown(one.path)}: {one.reason}" for one in self.failures[:20]]
        more = len(self.failures) - len(named)
        if more > 0:
            named.append(f"and {more} more")
        return "\n  ".join([message, *named])

    def __reduce__(self) -> Any:
        keywords = {
            "exit_code": self.exit_code,
            "failures": self.failures,
            "left": self.left,
            "result": self.result,
        }
        return _rebuild, (type(self), self.errno, self.strerror, keywords)


class NotInstalledError(ForebayError):
    """The program ``forebay`` is not where it was looked for."""


class NotRunningError(ForebayError):
    """No burst buffer answers."""


class PathsError(ForebayError):
    """Some paths failed, or all; each is in ``failures``. The others are done."""


class TimedOutError(ForebayError, TimeoutError):
    """The time was up. What is done stays done; what is not is in ``left``."""


class CancelledError(ForebayError):
    """The movement was stopped before its end. What is done stays done."""


class VerificationError(ForebayError):
    """Content does not match its checksum."""


def _rebuild(kind: type[ForebayError], errno: int, message: str, keywords: dict[str, Any]) -> ForebayError:
    return kind(errno, message, **keywords)


def _shown(path: str) -> str:
    """A path on one line that any terminal takes."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in path)
