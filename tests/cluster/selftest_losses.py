"""Histories of power cuts, lost state folders, emptied nodes, outsiders and tiers that are full: right ones, and wrong ones that have to be found."""

import contextlib
import os
import tempfile
from pathlib import Path

from account import BESIDE, FILES, RECORDS, File, Violation, cell
from ballast import BLOCK, Ballast, Wrong, block
from emptying import EMPTY, TIMED_OUT, judge_command, judge_empty, judge_order
from fullness import Fullness
from machine import Failure
from outsider import THEIRS, Deed
from planner import Planner


def content(number, *versions):
    return b"".join(cell(number, at, version) for at, version in enumerate(versions))


class Site:
    """A planner with its account, and a PFS. `a/f0` is file 1, of two cells of version 1."""

    def __init__(self, base):
        self.pfs, self.planner = base, Planner(1)
        self.account, self.names = self.planner.account, self.planner.account.names
        for folder in ("a", "safe", THEIRS):
            (base / folder).mkdir()
        self.make("a/f0", 1, 1)

    def make(self, path, *versions):
        self.planner.file_numbers += 1
        number = self.planner.file_numbers
        file = self.account.files[number] = File(number)
        self.change((self.names[path].value, number), *((file.cell(at), version) for at, version in enumerate(versions)))
        return file

    def change(self, *changes):
        self.account.end(self.account.begin(changes))

    def write(self, path, at, version):
        self.change((self.file(path).cell(at), version))

    def file(self, path):
        return self.account.files[self.names[path].value.only()]

    def fsync(self, path):
        self.planner.note_fsync(self.names[path].value.only(), self.account.tick)

    def rename(self, old, new):
        self.change((self.names[new].value, self.names[old].value.only()), (self.names[old].value, None))

    def link(self, old, new):
        self.change((self.names[new].value, self.names[old].value.only()))

    def unlink(self, path):
        self.change((self.names[path].value, None))

    def lose(self, what):
        self.planner.nodes_go(what)
        self.planner.nodes_are_back(what)

    def look(self, path, *versions, number=1):
        """What somebody reads there: cells of these versions, or nothing."""
        seen = [(number, at, version) for at, version in enumerate(versions)] or None
        self.account.judge_name(self.names[path], seen, self.account.tick)

    # -- outsiders ---------------------------------------------------------------------------------------------------

    def drain(self, path):
        """The PFS has what was written."""
        file = self.file(path)
        (self.pfs / path).write_bytes(content(file.number, *(file.cells[at].only() for at in range(file.size()))))

    def deed(self, kind, path="a/f0", other=None):
        name = self.names[path]
        file = self.file(path) if name.value.only() is not None else None
        deed = Deed(self.planner, kind, name, file, [name] if file else [], self.pfs, other and self.names[other])
        deed.begin(contextlib.nullcontext())
        deed.act(self.pfs / THEIRS / "aside")
        return deed

    def beside(self, path, data):
        (self.pfs / f"{path}{BESIDE}1").write_bytes(data)


# -- what power cuts and lost state folders take, and what not ----------------------------------------------------------

def never_fsynced_and_gone(site):
    site.lose(FILES)
    site.look("a/f0")


def older_one_shows_again(site):
    """What was renamed over it was never fsynced."""
    site.fsync("a/f0")
    site.make("a/f1", 2)
    site.rename("a/f1", "a/f0")
    site.lose(FILES)
    site.look("a/f0", 1, 1)


def back_to_what_was_fsynced(site):
    site.fsync("a/f0")
    site.write("a/f0", 1, 2)
    site.lose(FILES)
    site.look("a/f0", 1, 1)


def rename_not_flushed(site):
    site.fsync("a/f0")
    site.rename("a/f0", "a/f1")
    site.lose(RECORDS)
    site.look("a/f0", 1, 1)
    site.look("a/f1")
    site.account.judge_lost()


def fsynced_and_gone(site):
    site.fsync("a/f0")
    site.lose(FILES)
    site.look("a/f0")


def fsynced_and_shorter(site):
    site.fsync("a/f0")
    site.lose(FILES)
    site.look("a/f0", 1)


def fsynced_and_an_older_version(site):
    site.write("a/f0", 1, 2)
    site.fsync("a/f0")
    site.lose(FILES)
    site.look("a/f0", 1, 1)


def fsynced_and_the_one_below_it(site):
    site.make("a/f1", 2)
    site.rename("a/f1", "a/f0")
    site.fsync("a/f0")
    site.lose(FILES)
    site.look("a/f0", 1, 1)


def neither_one(site):
    """The file that was fsynced was replaced by one that was not: one of them is there."""
    site.fsync("a/f0")
    site.make("a/f1", 2)
    site.rename("a/f1", "a/f0")
    site.lose(FILES)
    site.look("a/f0")


def neither_one_of_several_links(site):
    """The same where the PFS parts with the name at once: the new file was flushed before."""
    site.fsync("a/f0")
    site.link("a/f0", "a/f2")
    site.make("a/f1", 2)
    site.rename("a/f1", "a/f0")
    site.lose(FILES)
    site.look("a/f2", 1, 1)
    site.look("a/f0")


def neither_one_in_memory(site):
    """The level `memory` promises nothing."""
    site.make("mem/f0", 1)
    site.fsync("mem/f0")
    site.link("mem/f0", "mem/f2")
    site.make("mem/f1", 2)
    site.rename("mem/f1", "mem/f0")
    site.lose(FILES)
    site.look("mem/f0")


def unlinked_and_back_with_a_data_server(site):
    """The metadata server has lost nothing."""
    site.unlink("a/f0")
    site.lose(FILES)
    site.look("a/f0", 1, 1)


def lost_and_back_again(site):
    site.lose(FILES)
    site.look("a/f0")
    site.look("a/f0", 1, 1)


def gone_with_a_kill(site):
    """No loss: a content that goes back takes no names along."""
    site.planner.nodes_go()
    site.planner.nodes_are_back()
    site.look("a/f0")


def under_no_name(site):
    """Neither under the name of before the rename nor under that of after."""
    site.fsync("a/f0")
    site.rename("a/f0", "a/f1")
    site.lose(RECORDS)
    site.look("a/f0")
    site.look("a/f1")
    site.account.judge_lost()


def under_the_old_name_though_fsynced(site):
    site.fsync("a/f0")
    site.rename("a/f0", "a/f1")
    site.fsync("a/f1")
    site.lose(RECORDS)
    site.look("a/f0", 1, 1)


def record_lost_with_its_state_folder(site):
    log = next(iter(site.account.logs.values()))
    log.begun[7, 0] = log.answered[7, 0] = site.account.next_tick()
    log.promise([(7, 0)], site.account.tick)
    site.lose(FILES)
    site.account.judge_log(log, [], 0, site.account.tick)


# -- nodes that are emptied ---------------------------------------------------------------------------------------------

def ordered(files=0, used=0):
    return {"id": 2, "used_bytes": used, "emptying": {"files": files, "open_files": files}}


def emptied_in_time(_site):
    assert judge_command(2, EMPTY, "", False)
    judge_empty(2, ordered())


def not_emptied_in_time(_site):
    assert not judge_command(2, TIMED_OUT, "", False)
    judge_order(2, ordered(1, 4096))


def not_emptied_with_the_server_away(_site):
    assert not judge_command(2, 1, "", True)


def not_emptied_without_a_reason(_site):
    judge_command(2, 1, "", False)


def order_forgotten(_site):
    judge_order(2, {"id": 2, "used_bytes": 4096, "emptying": None})


def empty_and_order_forgotten(_site):
    judge_empty(2, {"id": 2, "used_bytes": 0, "emptying": None})


def empty_and_files_there(_site):
    judge_empty(2, ordered(files=1))


def empty_and_bytes_there(_site):
    judge_empty(2, ordered(used=4096))


def gone_with_an_empty_node(site):
    """Nothing is allowed to be lost then, though it was never fsynced."""
    site.planner.excuse(None, "an empty data server has ended")
    site.look("a/f0")


def older_with_an_empty_node(site):
    site.fsync("a/f0")
    site.write("a/f0", 1, 2)
    site.planner.excuse(None, "an empty data server has ended")
    site.look("a/f0", 1, 1)


# -- outsiders ----------------------------------------------------------------------------------------------------------

def drained_and_replaced(site):
    site.drain("a/f0")
    deed = site.deed("replace")
    site.look("a/f0", 1, 1)
    site.look("a/f0", *(version for _, _, version in deed.theirs), number=2)
    assert not deed.judge()
    site.look("a/f0", *(version for _, _, version in deed.theirs), number=2)


def undrained_and_beside(site):
    for kind in ("replace", "in-place", "remove"):
        path = f"a/f{['replace', 'in-place', 'remove'].index(kind)}"
        if site.names[path].value.only() is None:
            site.make(path, 1, 1)
        site.drain(path)
        site.write(path, 1, 2)
        ours = content(site.file(path).number, 1, 2)
        deed = site.deed(kind, path)
        site.beside(path, ours)
        assert deed.judge() == [f"{path}{BESIDE}1"]


def taken_elsewhere(site):
    site.drain("a/f0")
    assert not site.deed("rename", other="safe/f0").judge()
    site.look("a/f0")
    site.look("safe/f0", 1, 1)


def replaced_and_undrained_lost(site):
    site.drain("a/f0")
    site.write("a/f0", 1, 2)
    site.deed("replace").judge()


def removed_and_undrained_lost(site):
    site.drain("a/f0")
    site.write("a/f0", 1, 2)
    site.deed("remove").judge()


def changed_in_place_and_undrained_lost(site):
    site.drain("a/f0")
    site.write("a/f0", 1, 2)
    site.deed("in-place").judge()


def taken_elsewhere_and_undrained_lost(site):
    site.drain("a/f0")
    site.write("a/f0", 1, 2)
    site.deed("rename", other="safe/f0").judge()


def theirs_overwritten(site):
    deed = site.deed("replace")
    (site.pfs / "a/f0").write_bytes(content(1, 1, 1))
    deed.judge()


def theirs_new_and_overwritten(site):
    """Nobody had a file there."""
    deed = site.deed("replace", "a/f3")
    os.unlink(site.pfs / "a/f3")
    deed.judge()


def removed_and_back(site):
    site.drain("a/f0")
    deed = site.deed("remove")
    (site.pfs / "a/f0").write_bytes(content(1, 1, 1))
    deed.judge()


def beside_is_half(site):
    site.drain("a/f0")
    site.write("a/f0", 1, 2)
    deed = site.deed("replace")
    site.beside("a/f0", content(1, 1))
    deed.judge()


def beside_of_nobody(site):
    """A second version where no outsider was."""
    site.account.judge_folder("a", ["f0", f"f0{BESIDE}1"], site.account.tick)


def still_ours_a_while_later(site):
    site.drain("a/f0")
    site.deed("replace").judge()
    site.look("a/f0", 1, 1)


# -- what fills the tiers -----------------------------------------------------------------------------------------------

def ballast(site, loses, fsynced, change):
    one = Ballast(str(site.pfs), "1", 4 * BLOCK, loses)
    path = str(site.pfs / "ballast")
    Path(path).write_bytes(b"".join(block(path, at) for at in range(3)))
    one.files[path] = (3, fsynced)
    change(Path(path))
    try:
        one.look(path)
    except Wrong as wrong:
        raise Violation(str(wrong)) from None


def ballast_whole(site):
    ballast(site, False, True, lambda path: None)


def ballast_lost_and_never_fsynced(site):
    ballast(site, True, False, lambda path: os.truncate(path, BLOCK))
    ballast(site, True, False, Path.unlink)


def ballast_lost_without_a_loss(site):
    ballast(site, False, False, Path.unlink)


def ballast_fsynced_and_gone(site):
    ballast(site, True, True, Path.unlink)


def ballast_fsynced_and_shorter(site):
    ballast(site, True, True, lambda path: os.truncate(path, BLOCK))


def ballast_of_somebody_else(site):
    ballast(site, True, False, lambda path: path.write_bytes(b"x" * 3 * BLOCK))


def fullness(*used):
    looks = Fullness(None)
    for one in used:
        tier = {"name": "dram", "capacity_bytes": 100, "used_bytes": one, "reserved_bytes": 5, "out_of_reach": False}
        looks.look({"tiers": [tier], "waited_writes_total": 0})
    try:
        looks.judge(2)
    except Failure as failure:
        raise Violation(str(failure)) from None


def tiers_full(_site):
    fullness(95, 10, 90)


def tiers_not_full(_site):
    fullness(95, 89, 10)


RIGHT = (never_fsynced_and_gone, older_one_shows_again, back_to_what_was_fsynced, rename_not_flushed, neither_one_in_memory, drained_and_replaced, undrained_and_beside,
         taken_elsewhere, emptied_in_time, not_emptied_in_time, not_emptied_with_the_server_away, ballast_whole, ballast_lost_and_never_fsynced, tiers_full)
WRONG = (fsynced_and_gone, fsynced_and_shorter, fsynced_and_an_older_version, fsynced_and_the_one_below_it, neither_one, neither_one_of_several_links, unlinked_and_back_with_a_data_server,
         lost_and_back_again, gone_with_a_kill, under_no_name, under_the_old_name_though_fsynced, record_lost_with_its_state_folder,
         not_emptied_without_a_reason, order_forgotten, empty_and_order_forgotten, empty_and_files_there, empty_and_bytes_there, gone_with_an_empty_node,
         older_with_an_empty_node, replaced_and_undrained_lost, removed_and_undrained_lost, changed_in_place_and_undrained_lost, taken_elsewhere_and_undrained_lost,
         theirs_overwritten, theirs_new_and_overwritten, removed_and_back, beside_is_half, beside_of_nobody, still_ours_a_while_later,
         ballast_lost_without_a_loss, ballast_fsynced_and_gone, ballast_fsynced_and_shorter, ballast_of_somebody_else, tiers_not_full)


@contextlib.contextmanager
def site():
    with tempfile.TemporaryDirectory(prefix="forebay-selftest-") as base:
        yield Site(Path(base))
