"""`forebay://` of fsspec."""

import pytest

fsspec = pytest.importorskip("fsspec")


def test_the_entry_point_reads_writes_and_moves(bb):
    root = f"forebay://{bb.mount}"
    with fsspec.open(f"{root}/d/x", "wb", auto_mkdir=True) as file:
        file.write(b"through fsspec")
    assert (bb.mount / "d/x").read_bytes() == b"through fsspec"
    fs, path = fsspec.core.url_to_fs(f"{root}/d/x")
    assert type(fs).__name__ == "ForebayFileSystem" and path == str(bb.mount / "d/x")
    assert fs.cat(path) == b"through fsspec" and fs.unstrip_protocol(path) == f"{root}/d/x"
    assert fs.ls(f"{root}/d", detail=False) == [path]
    assert fs.where(f"{root}/d/x")[0].state == "dirty"
    assert fs.stage_out(f"{root}/d").files_done == 1
    assert (bb.pfs / "d/x").read_bytes() == b"through fsspec"
    fs.mv(f"{root}/d/x", f"{root}/d/y")
    assert fs.exists(f"{root}/d/y") and not fs.exists(f"{root}/d/x")
    # Another protocol is another file system.
    assert type(fsspec.filesystem("file")).__name__ == "LocalFileSystem"
