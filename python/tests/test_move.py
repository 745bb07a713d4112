"""Movements: to the end, with progress, in part, out of time, interrupted."""

import asyncio
import errno
import os
import pickle
import resource
import signal
import subprocess
import sys
import time

import pytest

import forebay
from conftest import GROUP, LAZY, MIB, commands_left, wait_until
from forebay import aio


def test_out_away_in_and_to_memory(bb):
    file = bb.write("d/x", 3 * MIB)
    content = file.read_bytes()
    assert bb.states(file) == {"dirty"}
    done = forebay.stage_out(bb.mount / "d")
    assert (done.outcome, done.files_done, done.bytes_done) == ("finished", 1, 3 * MIB)
    assert (bb.pfs / "d/x").read_bytes() == content and done.failures == () and done.left == ()
    assert forebay.release(file).files_done == 1
    assert bb.states(file) == {"pfs"}
    assert forebay.stage_in(file).bytes_done == 3 * MIB
    assert bb.states(file) == {"clean"}
    forebay.release(file)
    assert forebay.prefetch(file).files_done == 1
    assert forebay.where(file)[0].tiers == ("dram", "pfs")
    again = forebay.prefetch(file)
    assert (again.files_done, again.files_skipped) == (1, 1)
    assert file.read_bytes() == content


def test_stage_out_without_wait_is_queued(bb):
    file = bb.write("x", MIB)
    assert forebay.stage_out(file, wait=False).outcome in ("queued", "finished")
    wait_until("it is drained", lambda: bb.states(file) == {"clean"})


def test_nothing_to_move_is_complete(bb):
    (bb.mount / "empty").mkdir()
    done = forebay.stage_out(bb.mount / "empty")
    assert (done.files_total, done.fraction) == (0, 0.0)


def test_progress_by_a_callback_and_by_an_iterator(slow):
    files = [slow.write(f"a/{n}", 4 * MIB) for n in range(4)]
    seen = []
    main = __import__("threading").get_ident()
    done = forebay.stage_out(files[:2], progress=lambda now: seen.append((now, __import__("threading").get_ident())))
    assert {thread for _, thread in seen} == {main}
    _is_a_course([now for now, _ in seen], done)
    with forebay.stage_out_iter(files[2:]) as movement:
        steps = list(movement)
        _is_a_course(steps, movement.result())
    assert movement.done and movement.result() is movement.result()


def _is_a_course(steps, done):
    assert done.bytes_done == done.bytes_total == 8 * MIB and done.elapsed_s > 0.5
    assert [now.bytes_done for now in steps] == sorted(now.bytes_done for now in steps)
    assert [now.elapsed_s for now in steps] == sorted(now.elapsed_s for now in steps)
    assert len({now.bytes_done for now in steps}) > 2, "it was seen on its way"
    assert all(0 <= now.fraction <= 1 for now in steps) and done.fraction == 1
    assert any(now.eta_s is not None and now.eta_s > 0 for now in steps)


def test_a_callback_that_raises_stops_the_movement(slow):
    file = slow.write("x", 32 * MIB)

    def fail(now):
        if now.bytes_done:
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        forebay.stage_out(file, progress=fail)
    assert not commands_left() and slow.states(file) != {"clean"}


def test_a_full_pfs_names_each_file(start, small_pfs):
    bb = start(LAZY + 'retry_after = "1h"\n', pfs=small_pfs)
    files = [bb.write(f"d/{n}", 3 * MIB) for n in range(3)]
    with pytest.raises(forebay.PathsError) as caught:
        forebay.stage_out(bb.mount / "d")
    error = caught.value
    assert (error.exit_code, error.errno) == (3, errno.ENOSPC)
    assert error.result.files_done == 1 and error.result.files_failed == 2
    failed = {one.path: one.errno_name for one in error.failures}
    done = [file for file in files if bb.states(file) == {"clean"}]
    assert failed == {str(file): "ENOSPC" for file in files if file not in done} and len(done) == 1
    assert all(path in str(error) for path in failed)
    assert {one.path for one in forebay.status(bb.state).errors} == set(failed)
    # An iterator raises, too: nobody has to ask for the result to hear of it.
    with pytest.raises(forebay.PathsError):
        for _ in forebay.stage_out_iter(bb.mount / "d"):
            pass
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is forebay.PathsError and str(again) == str(error)
    assert (again.failures, again.result, again.errno) == (error.failures, error.result, error.errno)


def test_release_of_what_is_not_drained_is_a_failure(bb):
    dirty = bb.write("d/dirty")
    clean = bb.write("d/clean")
    forebay.stage_out(clean)
    with pytest.raises(forebay.PathsError) as caught:
        forebay.release(bb.mount / "d")
    assert [one.path for one in caught.value.failures] == [str(dirty)]
    assert caught.value.errno == errno.EBUSY
    assert bb.states(clean) == {"pfs"} and bb.states(dirty) == {"dirty"}


def test_out_of_time_names_what_is_left(slow):
    files = [slow.write(f"d/{n}", 10 * MIB) for n in range(4)]
    began = time.monotonic()
    with pytest.raises(forebay.TimedOutError) as caught:
        forebay.stage_out(slow.mount / "d", timeout=0.5)
    assert time.monotonic() - began < 10
    error = caught.value
    assert isinstance(error, TimeoutError) and error.exit_code == 4 and error.errno == errno.ETIMEDOUT
    assert error.left and set(error.left) <= {str(file) for file in files}
    assert error.result.outcome == "timed-out"
    for wrong in (0, -1, float("nan")):
        with pytest.raises(ValueError):
            forebay.stage_out(files, timeout=wrong)


def test_cancel_stops_it_and_says_what_is_left(slow):
    file = slow.write("x", 40 * MIB)
    movement = forebay.stage_out_iter(file)
    next(movement)
    movement.cancel()
    movement.cancel()
    for _ in range(2):
        with pytest.raises(forebay.CancelledError) as caught:
            movement.result()
    assert caught.value.left == (str(file),) and caught.value.exit_code == 130
    assert not commands_left()
    # A block that is left early cancels, an iterator that nobody has any more does, too.
    with forebay.stage_out_iter(file) as movement:
        next(movement)
    assert not commands_left()
    movement = forebay.stage_out_iter(file)
    next(movement)
    del movement
    wait_until("the command has ended", lambda: not commands_left())
    assert slow.states(file) != {"clean"}


PROGRAM = """
import sys, forebay
try:
    forebay.stage_out(sys.argv[1], progress=lambda now: print(now.bytes_done, flush=True))
except KeyboardInterrupt:
    print("interrupted", flush=True)
    raise
"""


@pytest.mark.parametrize("group", [False, True], ids=["this process", "the terminal's group"])
def test_ctrl_c_in_the_midst_of_a_wait(slow, group):
    file = slow.write("x", 60 * MIB)
    child = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, file], stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )
    child.stdout.readline()
    began = time.monotonic()
    if group:
        os.killpg(child.pid, signal.SIGINT)
    else:
        child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=30)
    assert time.monotonic() - began < 12
    assert out.splitlines()[-1] == b"interrupted" and b"KeyboardInterrupt" in err
    assert child.returncode == -signal.SIGINT
    # The job is not only left alone: it has ended.
    assert not _commands_of(file)
    assert slow.states(file) != {"clean"}


def _commands_of(file):
    asked = subprocess.run(["pgrep", "-f", "forebay stage-out"], capture_output=True, text=True, timeout=10)
    return asked.stdout.split()


@pytest.fixture
def deaf():
    """A program that ignores SIGCHLD, as some batch systems leave it: exit codes are lost."""
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGCHLD, before)


def test_a_failure_is_one_where_the_exit_code_is_lost(bb, deaf):
    file = bb.write("d/x")
    for ask in (forebay.commit, lambda path: asyncio.run(aio.commit(path))):
        with pytest.raises(forebay.PathsError) as caught:
            ask(bb.mount / "d")
        assert caught.value.errno == errno.EINVAL and caught.value.filename == str(bb.mount / "d")
    with pytest.raises(forebay.PathsError):
        forebay.where([file, bb.mount / "gone"])
    assert forebay.where(file)[0].path == str(file) and forebay.status(bb.state).raw["files"] == 1
    assert forebay.stage_out(file).files_done == 1
    assert asyncio.run(aio.release(file)).files_done == 1


def test_a_command_that_is_killed_is_no_success(slow, deaf):
    file = slow.write("x", 40 * MIB)
    with forebay.stage_out_iter(file) as movement:
        next(movement)
        os.kill(movement._process._child.pid, signal.SIGKILL)
        with pytest.raises(forebay.ForebayError, match="exit code is lost"):
            movement.result()


def test_a_program_with_many_open_files(slow):
    file = slow.write("x", 40 * MIB)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, max(4096, before[1])))
    held = [os.open("/dev/null", os.O_RDONLY) for _ in range(1100)]
    try:
        with forebay.stage_out_iter(file) as movement:
            next(movement)
            assert movement._process._stdout.fileno() >= 1024
            movement.cancel()
            with pytest.raises(forebay.CancelledError) as caught:
                movement.result()
        assert caught.value.left == (str(file),) and caught.value.exit_code == 130
    finally:
        for one in held:
            os.close(one)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert not commands_left()


def test_a_burst_buffer_that_dies_meanwhile(slow):
    file = slow.write("x", 40 * MIB)
    with forebay.stage_out_iter(file) as movement:
        next(movement)
        slow.kill()
        with pytest.raises(forebay.NotRunningError) as caught:
            movement.result()
    assert caught.value.errno == errno.ENOTCONN


def test_a_version_is_published_as_a_whole(start):
    bb = start(LAZY + GROUP)
    version = bb.write("run/ckpt-7/rank-0", MIB).parent
    bb.write("run/ckpt-7/rank-1", MIB)
    assert {one.path for one in forebay.status(bb.state).unpublished} == {str(version)}
    assert all(file.unpublished for file in forebay.where(version))
    # Without a wait: the order is given, and the files are on flash.
    done = forebay.commit(version)
    assert done.outcome in ("queued", "finished")
    assert all({"ssd", "pfs"} & set(file.tiers) for file in forebay.where(version))
    assert forebay.commit(version, wait=True).outcome == "finished"
    assert sorted(os.listdir(bb.pfs / "run/ckpt-7")) == ["rank-0", "rank-1"]
    assert forebay.status(bb.state).unpublished == ()
    # Again: it is.
    assert forebay.commit(version, wait=True).outcome == "finished"


def test_what_is_no_version_cannot_be_committed(start):
    bb = start(LAZY + GROUP)
    other = bb.write("other/x").parent
    for path in (other, bb.mount / "gone"):
        with pytest.raises(forebay.PathsError) as caught:
            forebay.commit(path)
        assert caught.value.filename == str(path) and caught.value.exit_code == 1
    version = bb.write("run/ckpt-1/x").parent
    with open(version / "open", "wb") as held:
        held.write(b"half")
        with pytest.raises((forebay.PathsError, forebay.TimedOutError)) as caught:
            forebay.commit(version, wait=True, timeout=1)
        assert not (bb.pfs / "run/ckpt-1").exists()
    assert forebay.commit(version, wait=True).outcome == "finished"


def test_an_application_is_named(bb):
    first, second = bb.write("somewhere/a"), bb.write("somewhere/deep/b")
    os.symlink("/etc/passwd", bb.mount / "somewhere/link")
    found = forebay.set_application(bb.mount / "somewhere", "climate", 12)
    assert {one.path for one in found} == {str(first), str(second)}
    assert {(one.application, one.version) for one in found} == {("climate", 12)}
    assert [(one.application, one.version) for one in forebay.set_application(first, version=13)] == [("climate", 13)]
    assert os.getxattr(first, "user.forebay.app") == b"climate"
    assert "climate" in {one.name for one in forebay.status(bb.state).applications}
    # Too late.
    forebay.stage_out(second)
    with pytest.raises(forebay.PathsError) as caught:
        forebay.set_application(second, "weather")
    assert caught.value.filename == str(second) and "drained" in str(caught.value)


def test_an_application_of_what_is_not_there(bb, tmp_path):
    with pytest.raises(FileNotFoundError):
        forebay.set_application(bb.mount / "gone", "climate")
    outside = tmp_path / "x"
    outside.touch()
    with pytest.raises(forebay.PathsError) as caught:
        forebay.set_application(outside, "climate")
    assert caught.value.errno == errno.EXDEV and os.listxattr(outside) == []
    for wrong in ({}, {"name": ""}, {"version": -1}, {"version": 1 << 64}):
        with pytest.raises(ValueError):
            forebay.set_application(bb.mount, **wrong)
    (bb.mount / "empty").mkdir()
    assert forebay.set_application(bb.mount / "empty", "climate") == []
