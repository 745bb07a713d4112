"""What `forebay.torch` does with versions on disk, without torch: an index is any pickle here."""

import errno
import logging
import os
import pickle
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

import forebay
from conftest import GROUP, LAZY
from forebay import _versions


def _read_index(path):
    return pickle.loads(Path(path, ".metadata").read_bytes())


def _damage(path):
    return _versions.damage_of(path, _read_index)


def _make(version, sizes=(1000,)):
    """A checkpoint with so many bytes in its parts."""
    version.mkdir(parents=True, exist_ok=True)
    parts = {}
    for rank, size in enumerate(sizes):
        name = f"__{rank}_0.distcp"
        (version / name).write_bytes(os.urandom(size))
        parts[rank] = SimpleNamespace(relative_path=name, offset=0, length=size)
    (version / ".metadata").write_bytes(pickle.dumps(SimpleNamespace(storage_data=parts)))
    return version


def _prepare(path, group=True, overwrite=False):
    _versions.prepare(str(path), group=group, overwrite=overwrite, damage=_damage)


def _is_complete(path):
    return _versions.is_complete(str(path), _read_index)


def _names(path):
    return sorted(os.listdir(path))


def test_only_what_a_checkpoint_has_is_removed(start):
    bb = start(LAZY + GROUP)
    half = bb.write("run/ckpt-9/__3_0.distcp").parent
    for name in (".metadata.tmp", ".probe"):
        (half / name).touch()
    _prepare(half)
    assert _names(half) == [] and _versions.is_unpublished(str(half))
    # Whatever else is there: nothing is removed.
    for make in (
        lambda path: path.write_bytes(b"random state"),
        lambda path: path.mkdir(),
        lambda path: path.symlink_to("__3_0.distcp"),
    ):
        part = bb.write("run/ckpt-9/__3_0.distcp")
        other = half / "rng.pt"
        make(other)
        with pytest.raises(forebay.PathsError, match="rng.pt") as caught:
            _prepare(half)
        assert (caught.value.errno, caught.value.filename) == (errno.ENOTEMPTY, str(half))
        assert _names(half) == ["__3_0.distcp", "rng.pt"]
        os.rmdir(other) if other.is_dir() and not other.is_symlink() else other.unlink()
        part.unlink()
    # A name alone makes no part of a checkpoint.
    (half / "__3_0.distcp").mkdir()
    bb.write("run/ckpt-9/__4_0.distcp")
    with pytest.raises(forebay.PathsError, match="__3_0.distcp"):
        _prepare(half)
    assert _names(half) == ["__3_0.distcp", "__4_0.distcp"]


def test_what_lies_in_a_new_version_stays_there(start):
    bb = start(LAZY + GROUP)
    state = bb.write("run/ckpt-1/rng.pt")
    _prepare(state.parent)
    assert _names(state.parent) == ["rng.pt"]


def test_a_folder_that_is_no_version_keeps_what_it_has(start):
    bb = start(LAZY + GROUP)
    run = _make(bb.mount / "run/ckpt-1").parent
    notes = bb.write("run/notes.txt")
    for folder in (run, bb.mount):
        with pytest.raises(forebay.PathsError, match="group"):
            _prepare(folder)
    assert _names(run) == ["ckpt-1", "notes.txt"] and notes.exists() and _is_complete(run / "ckpt-1")
    # Also what looks like a version, in the wrong place: by order, too.
    other = _make(bb.mount / "other-1")
    with pytest.raises(forebay.PathsError, match="group"):
        _prepare(other, overwrite=True)
    assert _is_complete(other)
    (bb.mount / "empty-1").mkdir()
    with pytest.raises(forebay.PathsError, match="group"):
        _prepare(bb.mount / "empty-1")
    assert not (bb.mount / "empty-1").exists()


def test_a_path_outside_of_every_mount_is_refused(bb, tmp_path):
    for path in (tmp_path, bb.pfs / "run/ckpt-1"):
        with pytest.raises(forebay.PathsError) as caught:
            _versions.require_mount(str(path))
        assert caught.value.errno == errno.EXDEV
    _versions.require_mount(str(bb.mount / "not there yet"))


def test_a_complete_version_stays_without_an_order_and_half_a_one_does_not(start):
    bb = start(LAZY + GROUP)
    for publish in (False, True):
        version = _make(bb.mount / f"run/ckpt-{publish:d}")
        if publish:
            forebay.commit(version, wait=True)
        with pytest.raises(FileExistsError, match="overwrite"):
            _prepare(version)
        assert _is_complete(version)
        # A part is lost: without an order it makes way for the next one.
        os.unlink(version / "__0_0.distcp")
        _prepare(version)
        assert _names(version) == [] and _versions.is_unpublished(str(version))
        _make(version)
        forebay.commit(version, wait=publish)
        _prepare(version, overwrite=True)
        assert _names(version) == []
    one_by_one = _make(bb.mount / "other-1")
    os.truncate(one_by_one / ".metadata", 5)
    _prepare(one_by_one, group=False)
    assert _names(one_by_one) == []


def test_a_version_that_was_made_before_its_rule_becomes_one(start):
    bb = start(LAZY)
    half = bb.write("run/ckpt-1/__0_0.distcp").parent
    (bb.mount / "run/ckpt-2").mkdir()
    bb.down()
    bb.config.write_text(LAZY + GROUP)
    bb.up()
    for version in (half, bb.mount / "run/ckpt-2"):
        _prepare(version)
        assert _names(version) == [] and _versions.is_unpublished(str(version))


def test_what_leaves_open_whether_it_is_complete_is_not_removed(start):
    bb = start(LAZY + GROUP)
    version = _make(bb.mount / "run/ckpt-1")
    # As of another version of torch: a class that is not there.
    (version / ".metadata").write_bytes(b"\x80\x04\x8c\x07nowhere\x8c\x01x\x93.")
    with pytest.raises(ModuleNotFoundError):
        _prepare(version)
    assert _names(version) == [".metadata", "__0_0.distcp"]
    _prepare(version, overwrite=True)
    assert _names(version) == []


def test_what_forebay_puts_beside_a_version_is_never_the_newest(tmp_path):
    for name in (
        "ckpt-7",
        "ckpt-12",
        "ckpt-7.forebay-conflict-1700000000",
        ".forebay-0123456789abcdef-99.version",
        "ckpt-8.forebay-recovered-500",
        "none",
    ):
        (tmp_path / name).mkdir()
    (tmp_path / "notes-13").touch()
    (tmp_path / "link-14").symlink_to(tmp_path / "nowhere")
    assert [Path(path).name for path in _versions.newest_first(str(tmp_path))] == ["ckpt-12", "ckpt-7"]


def test_a_damaged_version_is_passed_over_with_a_warning(tmp_path, caplog):
    whole = _make(tmp_path / "ckpt-1", (1000, 2000))
    assert _is_complete(whole) and not caplog.records
    assert not _is_complete(tmp_path / "ckpt-2") and not _is_complete(whole / "__0_0.distcp")
    assert not caplog.records, "it was never finished"
    index = (whole / ".metadata").read_bytes()
    for wrong in (b"", index[:20], b"\x80\x04\x8c\x07nowhere\x8c\x01x\x93.", b"\x80\x04]\x94K\x01.", b"\xff" * 50, b"0."):
        (whole / ".metadata").write_bytes(wrong)
        caplog.clear()
        assert not _is_complete(whole)
        [record] = caplog.records
        assert record.name == "forebay.torch" and record.levelno == logging.WARNING
        assert str(whole) in record.getMessage()
    (whole / ".metadata").write_bytes(index)
    os.truncate(whole / "__1_0.distcp", 1999)
    caplog.clear()
    assert not _is_complete(whole) and "1999 of 2000 bytes" in caplog.text
    os.unlink(whole / "__1_0.distcp")
    assert not _is_complete(whole)
    # A link to itself is ELOOP for whoever looks.
    (whole / "__1_0.distcp").symlink_to("__1_0.distcp")
    caplog.clear()
    assert not _is_complete(whole) and "cannot be told" in caplog.text


def test_an_index_that_cannot_be_read_is_damaged(tmp_path, caplog):
    def fails_with(number):
        def read_index(path):
            raise OSError(number, os.strerror(number), path)

        return read_index

    for number in (errno.EIO, errno.ENODATA):
        assert _versions.damage_of(str(tmp_path), fails_with(number)) is not None
        assert not _versions.is_complete(str(tmp_path), fails_with(number))
    # That says nothing of the index: it is raised where something would be removed.
    with pytest.raises(PermissionError):
        _versions.damage_of(str(tmp_path), fails_with(errno.EACCES))
    assert not _versions.is_complete(str(tmp_path), fails_with(errno.EACCES))
    assert len(caplog.records) == 3


def test_an_order_in_the_background_that_fails_is_told_and_kept(start, caplog):
    bb = start(LAZY + GROUP)
    version = _make(bb.mount / "run/ckpt-1")
    good = _versions.Publication(str(version))
    assert good.ended() is None and not caplog.records
    assert [one.committed for one in forebay.status(bb.state).unpublished] in ([True], [])
    bad = _versions.Publication(str(bb.mount / "run"))
    assert isinstance(bad.ended(), forebay.PathsError) and bad.ended() is bad.ended()
    assert "no order to publish it was given" in caplog.text and str(bb.mount / "run") in caplog.text
    # Not only what Forebay raises.
    assert isinstance(_versions.Publication(7).ended(), TypeError)


def test_copies_count_only_where_they_are_the_file():
    def file(tiers, durability="ssd", state="dirty", stale=()):
        return forebay.Location("/bb/x", tiers, state, 1, "", None, None, None, False, durability, stale)

    def safe(one):
        return [rung for rung in ("ssd", "replica", "pfs") if _versions.is_safe(one, rung)]

    assert safe(file(("dram",))) == []
    assert safe(file(("dram", "ssd"))) == ["ssd"]
    assert safe(file(("dram",), stale=("ssd",))) == []
    assert safe(file(("ssd",))) == ["ssd"]
    # fsync has flushed nothing there.
    assert safe(file(("ssd",), "memory")) == [] and safe(file(("ssd",), None)) == []
    assert safe(file(("server-2:ssd", "server-3:ssd"), "replica")) == ["ssd", "replica"]
    assert safe(file(("server-2:ssd",), "replica", stale=("server-3:ssd",))) == ["ssd"]
    assert safe(file(("server-2:dram", "server-2:ssd"), "replica")) == ["ssd"]
    assert safe(file(("dram", "pfs"), state="clean")) == ["ssd", "replica", "pfs"]
    assert safe(file(("pfs",), None, "pfs")) == ["ssd", "replica", "pfs"]


def test_files_that_were_written_again_are_flushed_again(start):
    rules = '[[rule]]\npath = "/fast/**"\ndurability = "memory"\n'
    bb = start(LAZY + rules)
    slow, fast = (_make(bb.mount / name, (1000, 2000)) for name in ("slow-1", "fast/1"))
    for version in (slow, fast):
        assert {file.tiers for file in forebay.where(version)} == {("dram",)}
        _versions.sync(str(version))
        _versions.settle(str(version), "ssd", None)
    assert {file.durability for file in forebay.where(slow)} == {"ssd"}
    assert all("ssd" in file.tiers for file in forebay.where(slow)) and bb.states(slow) == {"dirty"}
    # The level of the file, not that of the burst buffer, says what its fsync was worth.
    assert {file.durability for file in forebay.where(fast)} == {"memory"}
    assert bb.states(fast) == {"clean"}
    # Written after it was flushed, by who does not flush.
    with open(slow / "__0_0.distcp", "ab") as part:
        part.write(b"more")
    _versions.sync(str(slow))
    _versions.settle(str(slow), "ssd", None)
    assert all("ssd" in file.tiers and not file.stale_tiers for file in forebay.where(slow))
    content = (slow / "__0_0.distcp").read_bytes()
    bb.kill()
    subprocess.run(["umount", "-l", bb.state / "dram"], check=True, timeout=30)
    bb.up()
    assert (slow / "__0_0.distcp").read_bytes() == content and len(content) == 1004
