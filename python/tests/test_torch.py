"""Checkpoints of torch.distributed.checkpoint: each rung, what a kill leaves, and the example."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import forebay
from conftest import EAGER, GROUP, LAZY, MIB, wait_until

torch = pytest.importorskip("torch")

import torch.distributed.checkpoint as dcp  # noqa: E402
from torch.distributed.checkpoint.api import CheckpointException  # noqa: E402

from forebay.torch import RUNGS, ForebayReader, ForebayWriter, is_complete, latest  # noqa: E402

EXAMPLE = Path(__file__).parents[1] / "examples" / "torch_resume.py"
pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


def _state(seed):
    generator = torch.Generator().manual_seed(seed)
    return {"weights": torch.rand(64, 1024, generator=generator), "step": seed}


def _save(path, seed, **given):
    writer = ForebayWriter(path, **given)
    dcp.save(_state(seed), storage_writer=writer, no_dist=True)
    return writer


def _assert_holds(path, seed, **given):
    state = {"weights": torch.zeros(64, 1024), "step": -1}
    reader = ForebayReader(path, **given)
    dcp.load(state, storage_reader=reader, no_dist=True)
    assert torch.equal(state["weights"], _state(seed)["weights"]) and state["step"] == seed
    return reader


@pytest.mark.parametrize("rung", RUNGS)
def test_a_save_returns_when_it_is_as_safe_as_was_asked_for(start, rung):
    bb = start(LAZY + GROUP)
    (bb.mount / "run").mkdir()
    version = bb.mount / "run/ckpt-7"
    writer = _save(version, 7, durability=rung)
    files = forebay.where(version)
    [unpublished] = forebay.status(bb.state).unpublished or [None]
    assert len(files) == 2
    if rung == "memory":
        writer.wait()
        [unpublished] = forebay.status(bb.state).unpublished or [None]
        assert unpublished is None or unpublished.committed
    elif rung == "ssd":
        assert unpublished is None or unpublished.committed
        assert all({"ssd", "pfs"} & set(file.tiers) for file in files)
    elif rung == "replica":
        # One server: the next rung stands for it.
        assert all(file.on_pfs for file in files)
    else:
        assert unpublished is None and all(file.on_pfs and not file.unpublished for file in files)
        assert sorted(os.listdir(bb.pfs / "run/ckpt-7")) == sorted(os.path.basename(file.path) for file in files)
    assert is_complete(version) and latest(bb.mount / "run") == str(version)
    _assert_holds(version, 7)
    wait_until("it is published", lambda: (bb.pfs / "run/ckpt-7/.metadata").exists())
    assert all({".metadata", "__0_0.distcp"} == set(os.listdir(at / "run/ckpt-7")) for at in (bb.mount, bb.pfs))


def test_what_was_saved_on_flash_outlives_the_memory(start):
    bb = start(LAZY + GROUP)
    (bb.mount / "run").mkdir()
    _save(bb.mount / "run/ckpt-7", 7, durability="ssd")
    bb.kill()
    subprocess.run(["umount", "-l", bb.state / "dram"], check=True, timeout=30)
    bb.up()
    assert latest(bb.mount / "run") == str(bb.mount / "run/ckpt-7")
    _assert_holds(bb.mount / "run/ckpt-7", 7)
    wait_until("it is published", lambda: (bb.pfs / "run/ckpt-7/.metadata").exists())


def test_one_writer_saves_version_after_version(start):
    bb = start(EAGER + GROUP)
    (bb.mount / "run").mkdir()
    writer = ForebayWriter(bb.mount / "run/ckpt-0", durability="memory")
    for step in range(1, 4):
        dcp.save(_state(step), checkpoint_id=bb.mount / f"run/ckpt-{step}", storage_writer=writer, no_dist=True)
    writer.wait()
    assert latest(bb.mount / "run") == str(bb.mount / "run/ckpt-3")
    wait_until("all are published", lambda: len(os.listdir(bb.pfs / "run")) == 3)
    forebay.release(bb.mount / "run/ckpt-2")
    reader = _assert_holds(bb.mount / "run/ckpt-2", 2, prefetch=True)
    assert reader.prefetch_error is None
    assert {file.tiers[0] for file in forebay.where(bb.mount / "run/ckpt-2")} == {"dram"}


def test_what_is_no_version_is_refused_before_anything_is_written(start):
    bb = start(LAZY + GROUP)
    with pytest.raises(CheckpointException) as caught:
        _save(bb.mount / "other/ckpt-1", 1)
    error = caught.value.failures[0][0]
    assert isinstance(error, forebay.PathsError) and "group" in str(error)
    assert not (bb.mount / "other/ckpt-1").exists()
    for rung, states in (("ssd", {"dirty"}), ("pfs", {"clean"}), ("replica", {"clean"}), ("memory", {"dirty"})):
        path = bb.mount / f"other/{rung}-1"
        _save(path, 1, durability=rung, group=False)
        assert bb.states(path) == states
        assert rung != "ssd" or all("ssd" in file.tiers for file in forebay.where(path))
        _assert_holds(path, 1)
    with pytest.raises(ValueError):
        ForebayWriter(bb.mount / "x", durability="flash")


def test_fsync_that_promises_memory_only_is_not_taken_for_flash(start):
    bb = start('durability = "memory"\n' + LAZY)
    _save(bb.mount / "ckpt-1", 1, durability="ssd", group=False)
    assert bb.states(bb.mount / "ckpt-1") == {"clean"}


def test_a_complete_version_is_replaced_by_order_only_and_half_a_one_is_removed(start):
    bb = start(LAZY + GROUP)
    version = bb.mount / "run/ckpt-7"
    (bb.mount / "run").mkdir()
    _save(version, 7, durability="pfs")
    with pytest.raises(CheckpointException, match="already exists"):
        _save(version, 8, durability="pfs")
    _assert_holds(version, 7)
    _save(version, 8, durability="pfs", overwrite=True)
    _assert_holds(version, 8)
    _assert_holds(bb.pfs / "run/ckpt-7", 8)
    # What a killed run has left: a part without an index, an index without its part.
    half = bb.write("run/ckpt-9/__3_0.distcp", 1000).parent
    other = bb.mount / "run/ckpt-10"
    _save(other, 10)
    os.truncate(other / "__0_0.distcp", 5)
    torn = bb.mount / "run/ckpt-11"
    _save(torn, 11)
    os.truncate(torn / ".metadata", 20)
    bb.write("run/notes-12")
    assert not any(is_complete(path) for path in (half, other, torn))
    assert latest(bb.mount / "run") == str(version)
    _save(half, 9, durability="pfs")
    assert sorted(os.listdir(bb.pfs / "run/ckpt-9")) == [".metadata", "__0_0.distcp"]
    assert latest(bb.mount / "run") == str(half)
    assert latest(bb.mount / "gone") is None and latest(bb.mount / "run/ckpt-9") is None


def test_a_full_pfs_is_told_and_the_version_is_kept(start, small_pfs):
    bb = start(LAZY + 'retry_after = "100ms"\n' + GROUP, pfs=small_pfs)
    (bb.mount / "run").mkdir()
    filler = small_pfs / "filler"
    filler.write_bytes(bytes(4 * MIB - (200 << 10)))
    with pytest.raises(CheckpointException) as caught:
        _save(bb.mount / "run/ckpt-1", 1, durability="pfs", timeout=3)
    assert isinstance(caught.value.failures[0][0], (forebay.PathsError, forebay.TimedOutError))
    _assert_holds(bb.mount / "run/ckpt-1", 1)
    filler.unlink()
    wait_until("it is published after all", lambda: (small_pfs / "run/ckpt-1/.metadata").exists())


def test_what_went_wrong_in_the_background_is_raised_later(start):
    bb = start(LAZY + GROUP)
    (bb.mount / "run").mkdir()
    writer = ForebayWriter(bb.mount / "run/ckpt-1", durability="memory")
    program = os.environ["FOREBAY_BIN"]
    finish = writer.finish

    def break_first(metadata, results):
        # The files are written through the mount; only the order needs the program.
        os.environ["FOREBAY_BIN"] = "/nowhere/forebay"
        finish(metadata, results)

    writer.finish = break_first
    try:
        dcp.save(_state(1), storage_writer=writer, no_dist=True)
        with pytest.raises(forebay.NotInstalledError):
            writer.wait()
    finally:
        os.environ["FOREBAY_BIN"] = program
    writer.wait()
    assert is_complete(bb.mount / "run/ckpt-1")


RANKS = """
import sys, torch, torch.distributed as dist, torch.distributed.checkpoint as dcp, torch.multiprocessing as mp
from forebay.torch import ForebayReader, ForebayWriter

def run(rank, path, meeting):
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    state = {f"rank{rank}": torch.full((1000,), float(rank)), "same": torch.arange(10)}
    dcp.save(state, storage_writer=ForebayWriter(path, durability="pfs"))
    back = {f"rank{rank}": torch.zeros(1000), "same": torch.zeros(10, dtype=torch.int64)}
    dcp.load(back, storage_reader=ForebayReader(path, prefetch=True))
    assert torch.equal(back[f"rank{rank}"], state[f"rank{rank}"]) and torch.equal(back["same"], state["same"])
    try:
        dcp.save(state, storage_writer=ForebayWriter(path.replace("run/ckpt-7", "other-7")))
    except dcp.api.CheckpointException as error:
        assert "group" in str(error), error
    else:
        raise AssertionError("no version was taken for one")
    dist.destroy_process_group()

if __name__ == "__main__":
    mp.spawn(run, args=tuple(sys.argv[1:]), nprocs=2)
"""


def test_ranks_write_one_version(start, tmp_path):
    bb = start(LAZY + GROUP)
    half = bb.write("run/ckpt-7/__9_0.distcp").parent
    program = tmp_path / "ranks.py"
    program.write_text(RANKS)
    done = subprocess.run(
        [sys.executable, program, half, tmp_path / "meeting"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert sorted(os.listdir(bb.pfs / "run/ckpt-7")) == [".metadata", "__0_0.distcp", "__1_0.distcp"]


LATE = """
import os, sys, torch, torch.distributed as dist, torch.distributed.checkpoint as dcp, torch.multiprocessing as mp
from forebay import NotInstalledError
from forebay.torch import ForebayWriter, is_complete

def run(rank, folder, meeting):
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    state = {f"rank{rank}": torch.full((1000,), float(rank))}
    writer = ForebayWriter(f"{folder}/ckpt-1", durability="memory")
    finish, program = writer.finish, os.environ["FOREBAY_BIN"]

    def break_order(metadata, results):
        # Only the coordinator gives the order.
        os.environ["FOREBAY_BIN"] = "/nowhere/forebay"
        finish(metadata, results)

    writer.finish = break_order
    dcp.save(state, storage_writer=writer)
    writer.finish = finish
    try:
        dcp.save(state, checkpoint_id=f"{folder}/ckpt-2", storage_writer=writer)
    except dcp.api.CheckpointException as error:
        assert isinstance(error.failures[0][0], NotInstalledError), error
    else:
        raise AssertionError("nobody has told of the order that failed")
    os.environ["FOREBAY_BIN"] = program
    assert not os.path.exists(f"{folder}/ckpt-2/.metadata")
    dcp.save(state, checkpoint_id=f"{folder}/ckpt-2", storage_writer=writer)
    writer.wait()
    assert is_complete(f"{folder}/ckpt-1") and is_complete(f"{folder}/ckpt-2")
    dist.destroy_process_group()

if __name__ == "__main__":
    mp.spawn(run, args=tuple(sys.argv[1:]), nprocs=2)
"""


def test_what_went_wrong_in_the_background_all_ranks_hear_of(start, tmp_path):
    bb = start(LAZY + GROUP)
    (bb.mount / "run").mkdir()
    program = tmp_path / "late.py"
    program.write_text(LATE)
    done = subprocess.run(
        [sys.executable, program, bb.mount / "run", tmp_path / "meeting"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "no order to publish it was given" in done.stderr and "ckpt-1" in done.stderr


def test_a_save_removes_nothing_but_a_checkpoint(start, tmp_path):
    bb = start(LAZY + GROUP)
    version = bb.write("run/ckpt-1/__0_0.distcp").parent
    own = bb.write("run/ckpt-1/rng.pt")
    with pytest.raises(CheckpointException) as caught:
        _save(version, 1)
    assert isinstance(caught.value.failures[0][0], forebay.PathsError) and "rng.pt" in str(caught.value)
    assert sorted(os.listdir(version)) == ["__0_0.distcp", "rng.pt"]
    own.unlink()
    _save(version, 1)
    # The folder of all versions instead of one of them.
    for given in ({}, {"overwrite": True}):
        with pytest.raises(CheckpointException, match="group"):
            _save(bb.mount / "run", 2, **given)
    assert os.listdir(bb.mount / "run") == ["ckpt-1"] and is_complete(version)
    for given in ({}, {"group": False}):
        with pytest.raises(CheckpointException, match="not below the mount"):
            _save(tmp_path / "outside", 1, **given)
    assert os.listdir(tmp_path) == []


def test_a_version_that_is_lost_in_part_is_saved_again(start, caplog):
    bb = start(LAZY + GROUP)
    (bb.mount / "run").mkdir()
    version = bb.mount / "run/ckpt-7"
    _save(version, 7, durability="pfs")
    (version / "__0_0.distcp").unlink()
    assert latest(bb.mount / "run") is None and str(version) in caplog.text
    _save(version, 7, durability="pfs")
    _assert_holds(version, 7)
    # Nor does an index that cannot be understood hide an older version.
    _save(bb.mount / "run/ckpt-8", 8)
    (bb.mount / "run/ckpt-8/.metadata").write_bytes(b"\x80\x04\x8c\x07nowhere\x8c\x01x\x93.")
    assert latest(bb.mount / "run") == str(version)


def test_an_asynchronous_save(start):
    bb = start(LAZY + GROUP)
    (bb.mount / "run").mkdir()
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        writer = ForebayWriter(bb.mount / "run/ckpt-7", durability="pfs")
        dcp.async_save(_state(7), storage_writer=writer).result()
        assert is_complete(bb.pfs / "run/ckpt-7")
        _assert_holds(bb.mount / "run/ckpt-7", 7)
        refused = dcp.async_save(_state(8), storage_writer=ForebayWriter(bb.mount / "other-7"))
        with pytest.raises(CheckpointException, match="group"):
            refused.result()
    finally:
        torch.distributed.destroy_process_group()


def _train(run, rung, pause):
    words = [sys.executable, "-u", EXAMPLE, run, "--steps", "60", "--every", "5", "--durability", rung]
    words += ["--pause", str(pause)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@pytest.mark.parametrize("rung", ["memory", "ssd", "pfs"])
def test_the_example_is_killed_and_resumes(start, rung):
    bb = start(EAGER + GROUP.replace("/run/", "/*/"))
    whole = _train(bb.mount / "whole", rung, 0)
    end = whole.communicate(timeout=120)[0].splitlines()[-1]
    assert end.startswith("end at step 60: loss ")
    began_at = []
    for kill_after in (3, 7, None):
        child = _train(bb.mount / "killed", rung, 0.02)
        saved = 0
        for line in child.stdout:
            if line.startswith("from step "):
                began_at.append(int(line.split()[-1]))
            saved += line.startswith("step ")
            if kill_after is not None and saved == kill_after - (began_at[-1] > 0):
                # In the midst of what comes next: a step, or a save.
                time.sleep(0.09)
                child.send_signal(signal.SIGKILL)
                break
        rest = child.stdout.read()
        code = child.wait(60)
        assert code == (0 if kill_after is None else -signal.SIGKILL), rest
    # From the last version that was said to be saved, or one that was whole and not said yet.
    assert began_at[0] == 0 and began_at[1] >= 15 and began_at[2] >= began_at[1] + 25, began_at
    assert (line if kill_after is None else rest.splitlines()[-1]).strip() == end
    names = sorted(path.name for path in (bb.mount / "killed").iterdir())
    assert names == [f"ckpt-{step:06}" for step in range(5, 65, 5)]
    wait_until("all versions are published", lambda: sorted(os.listdir(bb.pfs / "killed")) == names)
    assert all(is_complete(bb.pfs / "killed" / name) for name in names)
