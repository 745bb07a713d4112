"""`status` and `where`."""

import errno
import os
import threading
from pathlib import Path

import pytest

import forebay
from conftest import EAGER, LAZY, MIB, commands_left, wait_until

ODD = [b"new\nline", b"not utf-8 \xff\xfe", b"tab\tand ' \" $x", "ä ö 漢字".encode(), b"-0", b" "]


def test_status_says_what_the_command_says(bb):
    bb.write("a/x", 5000)
    status = forebay.status(bb.state)
    assert (status.mount, status.pfs, status.state) == (str(bb.mount), str(bb.pfs), str(bb.state))
    assert status.durability == "ssd" and status.policy == "bbos" and status.errors == ()
    assert [tier.name for tier in status.tiers] == ["dram", "ssd", "pfs"]
    assert status.dirty_bytes >= 5000 and status.raw["files"] == 1
    [application] = status.applications
    assert application.files == 1 and application.dirty_bytes == status.dirty_bytes


def test_status_has_limits_and_the_version_of_its_schema(start):
    bb = start(LAZY + '[[limit]]\nuser = 0\ncapacity = "8MiB"\nbeyond = "direct"\n')
    assert forebay.status(bb.state).limits_total == 0
    bb.write("x", 5000)
    status = forebay.status(bb.state)
    assert status.schema_version == status.raw["schema_version"] >= 1
    [limit] = status.limits
    assert status.limits_total == 1 and limit == forebay.Limit(
        kind="user",
        id=0,
        name="root",
        used_bytes=limit.used_bytes,
        capacity_bytes=8 * MIB,
        dirty_bytes=limit.dirty_bytes,
        undrained_bytes=None,
        beyond="direct",
    )
    assert limit.used_bytes >= limit.dirty_bytes >= 5000


def test_status_finds_the_only_one_or_takes_the_one_of_a_path(start, monkeypatch):
    first = start()
    assert forebay.status().state == str(first.state)
    second = start()
    with pytest.raises(forebay.ForebayError) as caught:
        forebay.status()
    assert caught.value.errno == errno.EINVAL and not isinstance(caught.value, forebay.NotRunningError)
    assert str(first.state) in str(caught.value) and str(second.state) in str(caught.value)
    for one in (first, second):
        inside = one.write("deep/down/x")
        assert forebay.status(path=inside).state == str(one.state)
        assert forebay.status(path=os.fsencode(one.mount)).state == str(one.state)
    monkeypatch.setenv("FOREBAY_STATE", str(second.state))
    assert forebay.status().state == str(second.state)
    with pytest.raises(ValueError):
        forebay.status(first.state, path=first.mount)


def test_status_of_nothing_is_not_running(tmp_path):
    with pytest.raises(forebay.NotRunningError, match="no burst buffer is mounted here"):
        forebay.status()
    with pytest.raises(forebay.NotRunningError):
        forebay.status(tmp_path / "gone")
    with pytest.raises(forebay.NotRunningError) as caught:
        forebay.status(tmp_path)
    assert caught.value.errno == errno.ENOTCONN and caught.value.exit_code == 1
    assert "not a state folder" in str(caught.value)
    with pytest.raises(forebay.PathsError) as caught:
        forebay.status(path=tmp_path)
    assert caught.value.errno == errno.EXDEV and caught.value.filename == str(tmp_path)


def test_a_mount_point_with_odd_bytes_is_found(start, tmp_path):
    one = start()
    one.down()
    odd = os.path.join(os.fsencode(one.base), "b b\n\\040 ä".encode())
    os.rename(one.mount, odd)
    one.mount = Path(os.fsdecode(odd))
    one.up()
    inside = one.write("x")
    assert forebay.status(path=inside).state == str(one.state)
    assert forebay.status(one.state).mount == os.fsdecode(odd)
    assert forebay.where(inside)[0].path == str(inside)


def test_the_state_after_a_kill_is_not_running(bb):
    file = bb.write("x")
    bb.kill()
    wait_until("the mount is dead", lambda: _is_dead(bb.mount))
    with pytest.raises(forebay.NotRunningError) as caught:
        forebay.status(bb.state)
    assert "has died" in str(caught.value)
    for ask in (forebay.where, forebay.stage_out, forebay.release):
        with pytest.raises(forebay.NotRunningError) as caught:
            ask(file)
        assert caught.value.errno == errno.ENOTCONN and str(bb.base) in str(caught.value)
    bb.up()
    assert bb.states(file) == {"dirty"}


def _is_dead(mount):
    try:
        os.listdir(mount)
    except OSError as error:
        # The answer to its last request is the other of the two.
        return error.errno in (errno.ENOTCONN, errno.ECONNABORTED)
    return False


def test_no_program_is_not_installed(monkeypatch):
    for name in ("/nowhere/forebay", "/dev/null"):
        monkeypatch.setenv("FOREBAY_BIN", name)
        for ask in (forebay.status, lambda: forebay.where("/x"), lambda: forebay.stage_in("/x")):
            with pytest.raises(forebay.ForebayError) as caught:
                ask()
            assert name in str(caught.value)
            assert isinstance(caught.value, forebay.NotInstalledError) == (name != "/dev/null")
    monkeypatch.delenv("FOREBAY_BIN")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(forebay.NotInstalledError):
        forebay.status()


def test_where_lists_files_and_what_is_known_of_them(start):
    bb = start(EAGER)
    file = bb.write("me/run7/ckpt-000120/rank-0", 5000)
    (bb.mount / "empty").mkdir()
    wait_until("it is drained", lambda: bb.states(file) == {"clean"})
    [found] = forebay.where(bb.mount / "me")
    assert found.path == str(file) and found.size_bytes == 5000 and found.version == 120
    assert found.tiers[-1] == "pfs" and found.on_pfs and found.error is None and not found.unpublished
    assert found.crc32c is not None and len(found.crc32c) == 8
    assert forebay.where(bb.mount / "empty") == []
    # By its name on the PFS, as bytes, through a link, in a list with another.
    link = bb.base / "link"
    link.symlink_to(file)
    other = bb.write("b")
    assert forebay.where(bb.pfs / "me/run7")[0] == found
    assert forebay.where(os.fsencode(file)) == [found]
    assert [one.path for one in forebay.where([link, other])] == [str(file), str(other)]


def test_where_gives_any_bytes_back(bb):
    for name in ODD:
        with open(os.path.join(os.fsencode(bb.mount), name), "wb") as file:
            file.write(name)
    found = forebay.where(bb.mount)
    assert sorted(os.path.basename(os.fsencode(one.path)) for one in found) == sorted(ODD)
    for one in found:
        with open(one.path, "rb") as file:
            assert file.read() == os.path.basename(os.fsencode(one.path))
        assert forebay.where(one.path) == [one]
    assert forebay.stage_out(one.path for one in found).files_done == len(ODD)
    missing = os.fsdecode(os.path.join(os.fsencode(bb.mount), b"gone\n\xff"))
    with pytest.raises(forebay.PathsError) as caught:
        forebay.where(missing)
    assert caught.value.failures[0].path == missing and "\n" not in str(caught.value).split("\n", 1)[1]


def test_where_names_each_path_that_leads_nowhere(bb, tmp_path):
    here = bb.write("here")
    wrong = [bb.mount / "gone", tmp_path, here / "below a file"]
    seen = []
    with pytest.raises(forebay.PathsError) as caught:
        for one in forebay.where_iter([wrong[0], here, *wrong[1:]]):
            seen.append(one.path)
    assert seen == [str(here)]
    failed = {one.path: one.errno for one in caught.value.failures}
    assert failed == dict(zip(map(str, wrong), (errno.ENOENT, errno.EXDEV, errno.ENOTDIR)))
    assert caught.value.exit_code == 3
    with pytest.raises(FileNotFoundError):
        raise next(one for one in caught.value.failures if one.errno == errno.ENOENT).as_error()
    for none, number in ((wrong[0], errno.ENOENT), (tmp_path, errno.EXDEV)):
        with pytest.raises(forebay.PathsError) as caught:
            forebay.where(none)
        assert (caught.value.errno, caught.value.filename) == (number, str(none))
        assert caught.value.exit_code == 1


def test_paths_that_cannot_be_names_are_refused_before_anything_runs(monkeypatch):
    monkeypatch.setenv("FOREBAY_BIN", "/nowhere")
    for path in ("", "a\0b", ["x", b""]):
        with pytest.raises(forebay.PathsError) as caught:
            forebay.where(path)
        assert caught.value.errno == errno.EINVAL
    with pytest.raises(forebay.ForebayError):
        forebay.where([])
    with pytest.raises(TypeError):
        forebay.where(7)


def test_no_paths_are_wrong_usage(bb):
    for ask in (forebay.where, forebay.stage_in):
        with pytest.raises(forebay.ForebayError) as caught:
            ask([])
        assert caught.value.errno == errno.EINVAL and "no paths given" in str(caught.value)


def test_a_list_longer_than_any_pipe(bb):
    names = [f"many/{number:05}-" + "x" * 200 for number in range(1500)]
    for name in names:
        bb.write(name, 1)
    assert sum(len(name) for name in names) > 4 * (64 << 10)
    found = forebay.where([bb.mount / name for name in names])
    assert [one.path for one in found] == [str(bb.mount / name) for name in names]
    # Who leaves early leaves no process behind, though its pipe is full.
    for one in forebay.where_iter(bb.mount):
        break
    wait_until("the command has ended", lambda: not commands_left())


def test_paths_of_two_burst_buffers_are_for_two_calls(start):
    one, two = start(), start()
    files = [one.write("x"), two.write("x")]
    for ask in (forebay.where, forebay.stage_out, forebay.prefetch):
        with pytest.raises(forebay.ForebayError) as caught:
            ask(files)
        assert caught.value.errno == errno.EXDEV and "give them to two commands" in str(caught.value)
    assert [forebay.stage_out(file).files_done for file in files] == [1, 1]


def test_threads_ask_and_move_at_the_same_time(start):
    buffers = [start(), start()]
    files = [[one.write(f"t{thread}/{n}", 2000) for n in range(5)] for one in buffers for thread in range(4)]
    errors = []

    def work(mine):
        try:
            for path in mine:
                assert [one.path for one in forebay.where(path)] == [str(path)]
                with pytest.raises(forebay.PathsError) as caught:
                    forebay.where(f"{path}-not")
                assert caught.value.filename == f"{path}-not"
                assert forebay.stage_out(path).files_done == 1
                assert forebay.status(path=path).mount == str(path.parents[1])
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(mine,)) for mine in files]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not errors and not any(thread.is_alive() for thread in threads)
    assert all(one.states(one.mount) == {"clean"} for one in buffers)
