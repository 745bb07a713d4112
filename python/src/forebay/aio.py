"""The functions of `forebay` for asyncio. They do not block the loop.

A task that is cancelled stops its command, which cancels what it has begun; the task ends when that
has ended, 15 seconds later at most.
"""

from __future__ import annotations

import asyncio
import errno as _numbers
import signal
import subprocess
import threading
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import IO, Any, Optional

from . import _command
from . import set_application as _set_application
from ._command import Answers, Paths
from ._errors import ForebayError, TimedOutError
from ._types import Location, PathLike, Progress, Result, Status, location_of

__all__ = [
    "AsyncMovement",
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

_LINE_BYTES_MAX = 64 << 20
"""The longest line names 512 paths of 4 KiB, each byte of which may take six characters."""

OnProgress = Optional[Callable[[Progress], object]]


class _Process:
    """One command, its lines, and its end."""

    def __init__(self, argv: list[str], paths: Optional[list[bytes]]) -> None:
        self._argv = argv
        self._paths = paths
        self._stderr: Optional[IO[bytes]] = None
        self._child: Optional[asyncio.subprocess.Process] = None
        self.code: Optional[int] = None
        self.said = b""
        self._kept: list[bytes] = []
        self._reading: Optional[asyncio.Lock] = None

    async def start(self) -> None:
        """Once, before anything else."""
        # One task at a time reads the pipe, also where another one stops the command.
        self._reading = asyncio.Lock()
        self._stderr = _command.scratch("forebay-errors")
        stdin = _command.as_input(self._paths) if self._paths is not None else None
        starting = asyncio.ensure_future(
            asyncio.create_subprocess_exec(
                *self._argv,
                stdin=stdin if stdin is not None else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                start_new_session=True,
                limit=_LINE_BYTES_MAX,
            )
        )
        try:
            # Half a start would leave a process that nobody stops.
            self._child = await asyncio.shield(starting)
        except asyncio.CancelledError:
            self._child = await starting
            await self.stop()
            raise
        except OSError as error:
            raise _command.unstartable(self._argv, error) from error
        finally:
            if stdin is not None:
                stdin.close()
            if self._child is None:
                self._stderr.close()

    async def line(self) -> bytes:
        """The next line; empty at the end, when the process has ended, too."""
        assert self._reading is not None
        async with self._reading:
            if self._kept:
                return self._kept.pop(0)
            if self.code is not None:
                return b""
            line = await self._read_line()
            if not line:
                await self._ended()
            return line

    async def _read_line(self) -> bytes:
        assert self._child is not None and self._child.stdout is not None
        line = await self._child.stdout.readline()
        # Half a line is the last word of a command that was killed.
        return line if line.endswith(b"\n") else b""

    async def all(self) -> bytes:
        """All that comes until the end."""
        assert self._child is not None and self._child.stdout is not None and self._reading is not None
        async with self._reading:
            output = await self._child.stdout.read()
            await self._ended()
        return output

    async def _ended(self) -> None:
        if self.code is not None:
            return
        assert self._child is not None and self._stderr is not None
        code = await self._child.wait()
        if self.code is None:
            self._stderr.seek(0)
            self.said = self._stderr.read()
            self._stderr.close()
            self.code = code

    async def stop(self) -> None:
        """Has the command cancel what it has begun, and waits for its end, also if cancelled again."""
        if self.code is not None or self._child is None:
            return
        self._signal(signal.SIGINT)
        stopping = asyncio.ensure_future(self._stopped())
        try:
            await asyncio.shield(stopping)
        except asyncio.CancelledError:
            self._signal(signal.SIGKILL)
            await stopping
            raise

    async def _stopped(self) -> None:
        try:
            await asyncio.wait_for(self._keep_rest(), _command.STOP_LIMIT_S)
        except asyncio.TimeoutError:
            self._signal(signal.SIGKILL)
            await self._keep_rest()
        await self._ended()

    async def _keep_rest(self) -> None:
        assert self._reading is not None
        async with self._reading:
            while line := await self._read_line():
                self._kept.append(line)

    def _signal(self, number: int) -> None:
        assert self._child is not None
        try:
            self._child.send_signal(number)
        except ProcessLookupError:
            # It has ended; `_ended` hears of it.
            pass


class AsyncMovement(AsyncIterator[Progress]):
    """A movement under way, as `forebay.Movement`. It begins with the first `async for`, `result`,
    or `async with`."""

    def __init__(self, verb: str, paths: Paths, timeout: Optional[float] = None, wait: bool = False) -> None:
        self._process = _Process(_command.words(verb, timeout, wait), _command.as_list(paths))
        self._answers = Answers(verb)
        self._error: Optional[ForebayError] = None
        self._is_started = False

    def __aiter__(self) -> AsyncMovement:
        return self

    async def __anext__(self) -> Progress:
        progress = await self._next()
        if progress is None:
            await self.result()
            raise StopAsyncIteration
        return progress

    async def _start(self) -> None:
        if not self._is_started:
            self._is_started = True
            await self._process.start()

    async def _next(self) -> Optional[Progress]:
        await self._start()
        try:
            while True:
                line = await self._process.line()
                if not line:
                    break
                progress = self._answers.movement(line)
                if progress is not None:
                    return progress
        except BaseException:
            await self._process.stop()
            raise
        if self._error is None and self._process.code is not None:
            self._error = self._answers.error(self._process.code, self._process.said)
        return None

    async def result(self) -> Result:
        """Waits for the end. Raises what went wrong, each time it is asked."""
        while await self._next() is not None:
            pass
        if self._error is not None:
            raise self._error
        result = self._answers.result
        assert result is not None
        return result

    async def cancel(self) -> None:
        """Stops it, and returns when it has stopped: what is done stays done."""
        await self._process.stop()

    async def __aenter__(self) -> AsyncMovement:
        await self._start()
        return self

    async def __aexit__(
        self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        await self.cancel()


async def status(
    state: Optional[PathLike] = None, *, path: Optional[PathLike] = None, config: Optional[PathLike] = None
) -> Status:
    """`forebay.status`."""
    loop = asyncio.get_running_loop()
    end = loop.time() + _command.STATUS_LIMIT_S
    try:
        # Links in a path are looked up, which a file system may hold up.
        looking = _in_thread(_command.status_words, state, path, config)
        words = await asyncio.wait_for(looking, _command.STATUS_LIMIT_S)
        process = _Process(words, None)
        await process.start()
        try:
            output = await asyncio.wait_for(process.all(), end - loop.time())
        finally:
            await process.stop()
    except asyncio.TimeoutError as error:
        raise TimedOutError(_numbers.ETIMEDOUT, "status: no answer came") from error
    assert process.code is not None
    return _command.status_from(process.code, output, process.said)


def _in_thread(function: Callable[..., Any], *arguments: Any) -> asyncio.Future[Any]:
    """Calls a function in a thread that nobody waits for at the end of the program or the loop, as
    they do for threads of an executor."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Any] = loop.create_future()

    def tell(take: Callable[[Any], None], value: Any) -> None:
        if not answer.done():
            take(value)

    def run() -> None:
        try:
            told = (answer.set_result, function(*arguments))
        except BaseException as error:
            told = (answer.set_exception, error)
        try:
            loop.call_soon_threadsafe(tell, *told)
        except RuntimeError:
            # The loop is closed: nobody waits any more.
            pass

    threading.Thread(target=run, name="forebay-path", daemon=True).start()
    return answer


async def where(paths: Paths) -> list[Location]:
    """`forebay.where`."""
    return [location async for location in where_iter(paths)]


async def where_iter(paths: Paths) -> AsyncIterator[Location]:
    """`forebay.where_iter`. Who leaves the loop early calls `aclose` of the iterator."""
    answers = Answers("where")
    process = _Process(_command.words("where"), _command.as_list(paths))
    await process.start()
    try:
        while True:
            line = await process.line()
            if not line:
                break
            value = answers.file(line)
            if value is not None:
                yield location_of(value)
    finally:
        await process.stop()
    assert process.code is not None
    error = answers.error(process.code, process.said)
    if error is not None:
        raise error


async def stage_in(paths: Paths, *, timeout: Optional[float] = None, progress: OnProgress = None) -> Result:
    """`forebay.stage_in`."""
    return await _follow(stage_in_iter(paths, timeout=timeout), progress)


def stage_in_iter(paths: Paths, *, timeout: Optional[float] = None) -> AsyncMovement:
    """`forebay.stage_in_iter`."""
    return AsyncMovement("stage-in", paths, timeout)


async def stage_out(
    paths: Paths, *, wait: bool = True, timeout: Optional[float] = None, progress: OnProgress = None
) -> Result:
    """`forebay.stage_out`."""
    return await _follow(stage_out_iter(paths, wait=wait, timeout=timeout), progress)


def stage_out_iter(paths: Paths, *, wait: bool = True, timeout: Optional[float] = None) -> AsyncMovement:
    """`forebay.stage_out_iter`."""
    return AsyncMovement("stage-out", paths, timeout, wait)


async def prefetch(paths: Paths, *, timeout: Optional[float] = None, progress: OnProgress = None) -> Result:
    """`forebay.prefetch`."""
    return await _follow(prefetch_iter(paths, timeout=timeout), progress)


def prefetch_iter(paths: Paths, *, timeout: Optional[float] = None) -> AsyncMovement:
    """`forebay.prefetch_iter`."""
    return AsyncMovement("prefetch", paths, timeout)


async def release(paths: Paths, *, timeout: Optional[float] = None, progress: OnProgress = None) -> Result:
    """`forebay.release`."""
    return await _follow(release_iter(paths, timeout=timeout), progress)


def release_iter(paths: Paths, *, timeout: Optional[float] = None) -> AsyncMovement:
    """`forebay.release_iter`."""
    return AsyncMovement("release", paths, timeout)


async def commit(
    versions: Paths, *, wait: bool = False, timeout: Optional[float] = None, progress: OnProgress = None
) -> Result:
    """`forebay.commit`."""
    return await _follow(commit_iter(versions, wait=wait, timeout=timeout), progress)


def commit_iter(versions: Paths, *, wait: bool = False, timeout: Optional[float] = None) -> AsyncMovement:
    """`forebay.commit_iter`."""
    return AsyncMovement("commit", versions, timeout, wait)


async def set_application(path: PathLike, name: Optional[str] = None, version: Optional[int] = None) -> list[Location]:
    """`forebay.set_application`, in a thread: it sets attributes, which nothing cancels."""
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(None, _set_application, path, name, version)


async def _follow(movement: AsyncMovement, progress: OnProgress) -> Result:
    async with movement:
        async for now in movement:
            if progress is not None:
                progress(now)
        return await movement.result()
