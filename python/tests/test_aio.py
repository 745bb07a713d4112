"""The functions for asyncio: they do not block the loop, and a cancelled task ends its command."""

import asyncio
import errno
import os
import signal
import threading
import time

import pytest

import forebay
from conftest import GROUP, LAZY, MIB, commands_left
from forebay import _command, aio


def test_they_answer_as_the_others_do(start):
    bb = start(LAZY + GROUP)
    file = bb.write("d/new\nline", 5000)
    version = bb.write("run/ckpt-7/x").parent

    async def main():
        assert (await aio.status(bb.state)).pid == forebay.status(bb.state).pid
        assert await aio.where(bb.mount) == forebay.where(bb.mount)
        assert [one.path async for one in aio.where_iter(file)] == [str(file)]
        [named] = await aio.set_application(file, "climate", 3)
        assert (named.application, named.version) == ("climate", 3)
        seen = []
        done = await aio.stage_out(bb.mount / "d", progress=seen.append)
        assert done.files_done == 1 and seen and bb.states(file) == {"clean"}
        assert (await aio.release(file)).files_done == 1
        assert (await aio.stage_in(file)).files_done == 1
        assert (await aio.prefetch(file)).files_done == 1
        assert (await aio.commit(version, wait=True)).outcome == "finished"
        assert (bb.pfs / "run/ckpt-7/x").exists()

    asyncio.run(main())


def test_failures_are_the_same_exceptions(bb, tmp_path, monkeypatch):
    dirty = bb.write("x")

    async def main():
        for wrong in (aio.where(tmp_path), aio.stage_out(tmp_path), aio.stage_in([tmp_path, bb.mount / "gone"])):
            with pytest.raises(forebay.PathsError) as caught:
                await wrong
            assert caught.value.filename == str(tmp_path) and caught.value.errno == errno.EXDEV
        with pytest.raises(forebay.PathsError) as caught:
            await aio.release(dirty)
        assert caught.value.errno == errno.EBUSY
        with pytest.raises(forebay.NotRunningError):
            await aio.status(tmp_path)
        monkeypatch.setenv("FOREBAY_BIN", "/nowhere/forebay")
        for wrong in (aio.status(), aio.where("/x"), aio.stage_out("/x")):
            with pytest.raises(forebay.NotInstalledError):
                await wrong

    asyncio.run(main())


def test_the_loop_goes_on_meanwhile(slow):
    files = [slow.write(f"{n}", 4 * MIB) for n in range(2)]

    async def main():
        longest, last = 0.0, time.monotonic()
        moving = asyncio.ensure_future(asyncio.gather(*(aio.stage_out(file) for file in files)))
        ticks = 0
        while not moving.done():
            await asyncio.sleep(0.005)
            now = time.monotonic()
            longest, last, ticks = max(longest, now - last), now, ticks + 1
        done = await moving
        assert [one.files_done for one in done] == [1, 1] and ticks > 50
        assert sum(one.elapsed_s for one in done) > 1 > longest

    asyncio.run(main())


def test_progress_comes_as_an_iterator(slow):
    file = slow.write("x", 8 * MIB)

    async def main():
        async with aio.stage_out_iter(file) as movement:
            steps = [now async for now in movement]
            assert len({now.bytes_done for now in steps}) > 2
            assert (await movement.result()).bytes_done == 8 * MIB
            assert await movement.result() is await movement.result()

    asyncio.run(main())


@pytest.mark.parametrize("times", [1, 2])
def test_a_cancelled_task_ends_its_command(slow, times):
    file = slow.write("x", 60 * MIB)

    async def main():
        begun = asyncio.Event()
        task = asyncio.ensure_future(aio.stage_out(file, progress=lambda now: begun.set()))
        await begun.wait()
        for _ in range(times):
            task.cancel()
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not commands_left()
        # At each moment of its start, too.
        for after_s in (0, 0.001, 0.003, 0.01, 0.03):
            for ask in (aio.stage_out(file), aio.where(slow.mount), aio.status(slow.state)):
                task = asyncio.ensure_future(ask)
                await asyncio.sleep(after_s)
                task.cancel()
                await asyncio.wait([task])
                assert task.cancelled() or task.result()
                assert not commands_left()

    asyncio.run(main())
    assert slow.states(file) != {"clean"}


def test_another_task_cancels_it(slow):
    file = slow.write("x", 60 * MIB)

    async def main():
        movement = aio.stage_out_iter(file)
        begun = asyncio.Event()

        async def follow():
            async for now in movement:
                begun.set()

        following = [asyncio.ensure_future(follow())]
        await begun.wait()
        following.append(asyncio.ensure_future(follow()))
        # Both wait for the next line now.
        await asyncio.sleep(0.01)
        await asyncio.gather(movement.cancel(), movement.cancel())
        ends = await asyncio.gather(*following, return_exceptions=True)
        for end in (*ends, *await asyncio.gather(movement.result(), return_exceptions=True)):
            assert isinstance(end, forebay.CancelledError), end
            assert end.left == (str(file),) and end.exit_code == 130
        assert not commands_left()

    asyncio.run(main())
    assert slow.states(file) != {"clean"}


def test_a_path_that_hangs_does_not_hold_the_loop_up(bb, tmp_path, monkeypatch):
    link = tmp_path / "link"
    link.symlink_to(bb.mount / "not looked up yet")
    pid = int((bb.state / "forebay.pid").read_text())

    async def main():
        ticks = 0
        asking = asyncio.ensure_future(aio.status(path=link))
        while not asking.done():
            await asyncio.sleep(0.01)
            ticks += 1
        with pytest.raises(forebay.TimedOutError):
            await asking
        assert ticks > 20

    monkeypatch.setattr(_command, "STATUS_LIMIT_S", 1.0)
    # Whoever waits for the stopped one in this thread could not wake it.
    waker = threading.Timer(20, os.kill, (pid, signal.SIGCONT))
    waker.start()
    os.kill(pid, signal.SIGSTOP)
    try:
        began = time.monotonic()
        asyncio.run(main())
        # By its name alone, it asks the file system nothing.
        assert str(bb.state) in _command.status_words(None, bb.mount / "nor this", None)
        assert time.monotonic() - began < 10
    finally:
        os.kill(pid, signal.SIGCONT)
        waker.cancel()
    assert asyncio.run(aio.status(path=link)).pid == pid
    assert asyncio.run(aio.status(path=bb.mount / "x/../y")).pid == pid


def test_out_of_time(slow):
    file = slow.write("x", 40 * MIB)

    async def main():
        with pytest.raises(forebay.TimedOutError) as caught:
            await aio.stage_out(file, timeout=0.3)
        assert caught.value.left == (str(file),)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(aio.stage_out(file), 0.3)
        assert not commands_left()
        async with aio.stage_out_iter(file) as movement:
            async for now in movement:
                break
        assert not commands_left()
        with pytest.raises(forebay.CancelledError):
            await movement.result()

    asyncio.run(main())
