"""Movements that are followed by an iterator, and `where` line by line: one process each."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from types import TracebackType
from typing import IO, Optional

from . import _command
from ._command import Answers, Paths
from ._errors import ForebayError
from ._types import Location, Progress, Result, location_of

_PIECE_BYTES = 64 << 10
"""What a pipe holds."""


class Process:
    """One command, its lines, and its end."""

    def __init__(self, argv: list[str], stdin: IO[bytes]) -> None:
        self.code: Optional[int] = None
        self.said = b""
        self._rest = b""
        self._stderr = _command.scratch("forebay-errors")
        try:
            with stdin:
                # A session of its own: Ctrl-C at a terminal reaches this process, which passes it
                # on once. Two of them would end the command before it has cancelled its job.
                self._child = subprocess.Popen(
                    argv, bufsize=0, stdin=stdin, stdout=subprocess.PIPE, stderr=self._stderr, start_new_session=True
                )
        except OSError as error:
            self._stderr.close()
            raise _command.unstartable(argv, error) from error
        assert self._child.stdout is not None
        self._stdout = self._child.stdout

    def line(self) -> bytes:
        """The next line; empty at the end, when the process has ended, too."""
        while b"\n" not in self._rest:
            if self.code is not None:
                return b""
            piece = self._stdout.read(_PIECE_BYTES)
            if not piece:
                self._ended()
                return b""
            self._rest += piece
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def _ended(self) -> None:
        code = _code_of(self._child)
        self._stderr.seek(0)
        self.said = self._stderr.read()
        self._stderr.close()
        self._stdout.close()
        self.code = code

    def stop(self) -> None:
        """Has the command cancel what it has begun. Its last lines can be read after it."""
        if self.code is not None:
            return
        try:
            self._child.send_signal(signal.SIGINT)
            deadline = time.monotonic() + _command.STOP_LIMIT_S
            # A pipe that nobody reads would hold the command up.
            # `select` takes no descriptor from 1024 on.
            ready = select.poll()
            ready.register(self._stdout, select.POLLIN)
            while ready.poll(max(0.0, deadline - time.monotonic()) * 1000):
                piece = self._stdout.read(_PIECE_BYTES)
                if not piece:
                    break
                self._rest += piece
            else:
                self._child.kill()
        except BaseException:
            # A second Ctrl-C.
            self._child.kill()
            raise
        finally:
            self._ended()

    def abandon(self) -> None:
        """For a collector of garbage, which must not wait."""
        if self.code is None:
            self._child.send_signal(signal.SIGINT)
            self._stdout.close()
            self._stderr.close()


def _code_of(child: subprocess.Popen[bytes]) -> int:
    """Waits for a process. Its exit code, which Popen takes for 0 where it is lost."""
    is_lost = False
    if child.returncode is None:
        try:
            os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        except ChildProcessError:
            is_lost = True
    code = child.wait()
    return _command.LOST_CODE if is_lost else code


class Movement(Iterator[Progress]):
    """A movement under way.

    Iterating gives its progress, and ends with the movement; a failure is raised there. `result`
    waits for the end. As a context manager it cancels what is left when the block is left early.
    For one thread at a time.
    """

    def __init__(self, verb: str, paths: Paths, timeout: Optional[float] = None, wait: bool = False) -> None:
        self._process: Optional[Process] = None
        self._answers = Answers(verb)
        self._error: Optional[ForebayError] = None
        argv = _command.words(verb, timeout, wait)
        self._process = Process(argv, _command.as_input(_command.as_list(paths)))

    def __iter__(self) -> Movement:
        return self

    def __next__(self) -> Progress:
        progress = self._next()
        if progress is None:
            self.result()
            raise StopIteration
        return progress

    def _next(self) -> Optional[Progress]:
        """What comes next; None when the command has ended."""
        process = self._process
        assert process is not None
        try:
            while True:
                line = process.line()
                if not line:
                    break
                progress = self._answers.movement(line)
                if progress is not None:
                    return progress
        except BaseException:
            process.stop()
            raise
        if self._error is None and process.code is not None:
            self._error = self._answers.error(process.code, process.said)
        return None

    def result(self) -> Result:
        """Waits for the end. Raises what went wrong, each time it is asked."""
        while self._next() is not None:
            pass
        if self._error is not None:
            raise self._error
        result = self._answers.result
        assert result is not None
        return result

    @property
    def done(self) -> bool:
        """Whether its end has been read."""
        return self._process is not None and self._process.code is not None

    def cancel(self) -> None:
        """Stops it, and returns when it has stopped: what is done stays done. `result` raises
        CancelledError then, which names what is left."""
        assert self._process is not None
        self._process.stop()

    def __enter__(self) -> Movement:
        return self

    def __exit__(
        self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self.cancel()

    def __del__(self) -> None:
        process = getattr(self, "_process", None)
        if process is not None:
            process.abandon()


def where_lines(paths: Paths) -> Iterator[Location]:
    """The files below the paths as they come; what failed is raised at the end."""
    answers = Answers("where")
    argv = _command.words("where")
    process = Process(argv, _command.as_input(_command.as_list(paths)))
    try:
        while True:
            line = process.line()
            if not line:
                break
            value = answers.file(line)
            if value is not None:
                yield location_of(value)
    finally:
        process.stop()
    assert process.code is not None
    error = answers.error(process.code, process.said)
    if error is not None:
        raise error

