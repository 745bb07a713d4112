"""Somebody who changes the PFS behind the mounts: what is there then, and that nothing of ours is lost (docs/semantics.md, 1.5 to 1.6.4)."""

import ctypes
import errno
import os
import time

from account import BESIDE, CELLS_MAX, File, Violation, cell, parse_cells, summary
from machine import Failure, run

THEIRS = "theirs"  # a directory of the outsider's own on the PFS
KINDS = ("replace", "replace", "in-place", "remove", "rename")
AT_FDCWD, NOREPLACE, EXCHANGE = -100, 1, 2
LIBC = ctypes.CDLL(None, use_errno=True)
DRAINED_WITHIN_S = 60.0
# What somebody does on the PFS shows within a second.
SHOWS_WITHIN_S = 1.3
COMMAND_S = 60.0
AFTER_KILL_S = 5.0


def rename(old, new, flags):
    if LIBC.renameat2(AT_FDCWD, os.fsencode(old), AT_FDCWD, os.fsencode(new), flags) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(new))


def read(path):
    """Cells of a file on the PFS; None of nothing."""
    try:
        return parse_cells(path.read_bytes())
    except FileNotFoundError:
        return None


class Deed:
    """One change by the outsider. Programs leave the names and the file alone until it is known what came of it; everybody may look."""

    def __init__(self, planner, kind, name, file, names, pfs, other=None):
        self.planner, self.account, self.kind, self.name, self.file, self.pfs, self.other = planner, planner.account, kind, name, file, pfs, other
        self.locked = [*{name, *names, *([other] if other else ()), *([file] if file else ())}]
        self.has_more_names = len(names) > 1
        self.ours = [told_cell(file.number, at, file.cells[at].only()) for at in range(file.size())] if file else None
        self.taken, self.theirs, self.is_unsure = None, None, False
        self.changes = []
        for one in self.locked:
            one.busy = self
        self.account.disputed.update(self.keys())

    def keys(self):
        return {one.number if isinstance(one, File) else one.path for one in self.locked} | ({self.theirs[0][0]} if self.theirs else set())

    def numbers(self):
        return {key for key in self.keys() if isinstance(key, int)}

    def paths(self):
        return [self.name.path, *([self.other.path] if self.other else ())]

    def note(self, text):
        for one in self.locked:
            one.story.note(f"[{self.account.tick}] an outsider on the PFS: {self.kind} {' to '.join(self.paths())}: {text}")

    def begin(self, lock):
        """Says what may be seen from now on."""
        with lock:
            getattr(self, f"begin_{self.kind.replace('-', '_')}")()
            self.note("begins")
            self.account.begin(self.changes)

    def act(self, aside):
        getattr(self, f"act_{self.kind.replace('-', '_')}")(self.pfs / self.name.path, aside)

    def count_cells(self):
        """Not as many as there are: a change of the same length may show later."""
        count = self.planner.random.randrange(1, CELLS_MAX // 2)
        return count + (self.ours is not None and count == len(self.ours))

    # -- each of them -----------------------------------------------------------------------------------------------

    def begin_replace(self):
        self.planner.file_numbers += 1
        file = self.account.files[self.planner.file_numbers] = File(self.planner.file_numbers)
        version = self.planner.version()
        self.theirs = [(file.number, at, version) for at in range(self.count_cells())]
        self.account.end(self.account.begin([(file.cell(at), version) for _, at, version in self.theirs]))
        file.promise()
        file.busy = self
        self.locked.append(file)
        self.account.disputed.add(file.number)
        self.changes = [(self.name.value, file.number)]

    def act_replace(self, path, aside):
        aside.write_bytes(b"".join(cell(*one) for one in self.theirs))
        while True:
            try:
                rename(aside, path, NOREPLACE)
                return
            except FileExistsError:
                try:
                    rename(aside, path, EXCHANGE)
                    break
                except FileNotFoundError:
                    continue  # it is gone again
        self.taken = read(aside)
        aside.unlink()

    def begin_in_place(self):
        version = self.planner.version()
        self.theirs = [(self.file.number, at, version) for at in range(self.count_cells())]
        values = [version] * len(self.theirs) + [None] * max(len(self.file.cells) - len(self.theirs), 0)
        self.changes = [(self.file.cell(at), value) for at, value in enumerate(values) if self.file.cell(at).now() != {value}]

    def act_in_place(self, path, _aside):
        with open(path, "r+b", buffering=0) as file:
            self.taken = parse_cells(file.read())
            file.truncate(0)
            os.pwrite(file.fileno(), b"".join(cell(*one) for one in self.theirs), 0)
            try:
                self.is_unsure = os.stat(path).st_ino != os.fstat(file.fileno()).st_ino
            except FileNotFoundError:
                self.is_unsure = True
        if self.is_unsure:
            # A drain has put another one there meanwhile, and this has gone to what was replaced (not promised).
            self.note("met a drain")

    def begin_remove(self):
        self.changes = [(self.name.value, None)]

    def act_remove(self, path, aside):
        # What is taken away is looked at once nobody else can change it.
        path.rename(aside)
        self.taken = read(aside)
        aside.unlink()

    def begin_rename(self):
        prior = read(self.pfs / self.name.path) or []
        self.changes = [(self.name.value, None), (self.other.value, self.file.number)]
        self.changes += [(self.file.cell(at), value_of(prior, at)) for at in range(max(len(prior), len(self.file.cells)))
                         if self.file.cell(at).now() != {value_of(prior, at)}]

    def act_rename(self, path, _aside):
        rename(path, self.pfs / self.other.path, NOREPLACE)
        self.taken = read(self.pfs / self.other.path)

    # -- what came of it --------------------------------------------------------------------------------------------

    def beside(self):
        """The second versions, by path."""
        found = {}
        for path in self.paths():
            folder, _, short = path.rpartition("/")
            found |= {f"{folder}/{one}": read(self.pfs / folder / one) for one in os.listdir(self.pfs / folder) if one.startswith(short + BESIDE)}
        return found

    def judge(self):
        """All is drained. Answers with the names to take away: what is not a file of one number is of no use to the account."""
        there, beside = read(self.pfs / self.name.path), self.beside()
        strange = [path for path, seen in beside.items() if self.ours is None or seen != self.ours]
        if strange:
            raise self.violation(f"{strange[0]} is not what was written last", there, beside)
        gone = self.ours if self.is_unsure else None
        wanted = {"replace": self.theirs, "in-place": self.theirs, "remove": None, "rename": None}[self.kind]
        if there != wanted and (gone is None or there != gone):
            raise self.violation("what the outsider did is not so", there, beside)
        moved = read(self.pfs / self.other.path) if self.other else None
        if self.other and moved != self.taken:
            raise self.violation(f"{self.other.path} is not what it was on the PFS, but {told(moved)}", there, beside)
        is_kept = self.ours is None or self.has_more_names or beside or self.ours in (self.taken, there, moved)
        if not is_kept:
            raise self.violation("what was written through a mount is lost", there, beside)
        self.note(f"done, {len(beside)} beside, {'all was drained' if self.ours == self.taken else 'not all was drained'}")
        return list(beside) + self.settle(there, moved, bool(beside))

    def settle(self, there, moved, was_beside):
        """Enters in the account what is so from now on."""
        removed = []
        if self.kind == "in-place":
            stays = self.ours if there == self.ours else self.theirs
            self.account.end([(register, value_of(stays, at)) for at, register in enumerate(self.file.cells)])
            self.file.promise()
        elif self.kind == "rename":
            is_ours = moved == self.ours and not was_beside
            removed = [] if is_ours else [self.other.path]
            self.account.end([(register, value_of(self.ours, at)) for at, register in enumerate(self.file.cells)])
            self.account.end([(self.name.value, None), (self.other.value, self.file.number if is_ours else None)])
        else:
            self.account.end(self.changes)
        for one in self.locked:
            one.busy = None
            if one in (self.name, self.other):
                # What is on the PFS nobody else's loss takes back.
                one.value.promise()
        self.account.disputed -= self.keys()
        return removed

    def violation(self, what, there, beside):
        more = "".join(f"; {path}: {told(seen)}" for path, seen in beside.items())
        stories = "".join(one.story.told(getattr(one, "path", None) or f"file {one.number}") for one in self.locked)
        return Violation(f"an outsider on the PFS ({self.kind} {' to '.join(self.paths())}): {what}\n  there: {told(there)}; ours: {told(self.ours)}; "
                         f"theirs: {told(self.theirs)}; the PFS had: {told(self.taken)}{more}{stories}")


def told_cell(number, at, value):
    return (number, at, value) if value else value


def value_of(cells, at):
    if at >= len(cells):
        return None
    return cells[at][2] if isinstance(cells[at], tuple) else cells[at]


def told(cells):
    if cells is None:
        return "nothing"
    return f"file {sorted({one[0] for one in cells if isinstance(one, tuple)})}: {summary(cells) or 'empty'}"


class Outsider:
    """A fault of `Faults`."""

    def do_outsider(self):
        """Some changes, alone, while the server is away, or right before its end."""
        kills = self.random.choice([None, None, "first", "last"])
        excuses = []
        self.under_way = kills is not None
        if kills:
            excuses = self.excused([None], "the server was killed")
        if kills == "first":
            self.cluster.kill_server()
            self.undo.append(self.cluster.start_server)
        done = []
        try:
            for _ in range(self.random.randrange(1, 7)):
                if deed := self.do_deed():
                    done.append(f"{deed.kind} {' to '.join(deed.paths())}")
                self.campaign.wait(self.random.uniform(0, 0.6))
            if kills == "last":
                self.cluster.kill_server()
                self.undo.append(self.cluster.start_server)
        finally:
            self.tell(f"an outsider on the PFS{f', the server killed {kills}' if kills else ''}: {', '.join(done) or 'nothing'}")
            self.all_back()
        if kills:
            self.cluster.follow()
            self.campaign.wait(AFTER_KILL_S)
            self.over(excuses)

    def do_deed(self):
        with self.lock:
            deed = self.choose_deed()
        if not deed:
            return None
        self.deeds.append(deed)
        deed.begin(self.lock)
        deed.act(self.cluster.pfs / THEIRS / f"aside-{len(self.deeds)}")
        with self.lock:
            deed.note("is there")
            self.planner.hot.append((deed.name, None))
        self.campaign.counts[f"outsider: {deed.kind}"] += 1
        return deed

    def choose_deed(self):
        names, pfs = self.planner.account.names, self.cluster.pfs
        for _ in range(20):
            kind, name = self.random.choice(KINDS), self.random.choice(list(names.values()))
            if name.busy or not name.value.sure():
                continue
            number = name.value.only()
            of_file = [one for one in names.values() if number is not None and number in one.value.now()]
            file = self.planner.account.files[number] if number is not None else None
            if file and (file.busy or not file.sure() or not file.size() or any(one.busy or not one.value.sure() for one in of_file)):
                continue
            if kind == "replace":
                return Deed(self.planner, kind, name, file, of_file, pfs)
            seen = read(pfs / name.path)
            if not file or not seen or {one[0] for one in seen if isinstance(one, tuple)} != {number}:
                continue  # the PFS does not have it yet
            if kind == "remove":
                return Deed(self.planner, kind, name, file, of_file, pfs)
            if len(of_file) > 1 or (pfs / name.path).stat().st_nlink > 1:
                continue
            if kind == "in-place":
                return Deed(self.planner, kind, name, file, of_file, pfs)
            others = [one for one in names.values() if not one.busy and one.value.now() == {None} and not (pfs / one.path).exists()]
            if others:
                return Deed(self.planner, kind, name, file, of_file, pfs, self.random.choice(others))
        return None

    def settle_deeds(self):
        """Nothing is under way. What came of the outsider's doing, after all of it was drained."""
        if not self.deeds:
            return
        with self.lock:
            self.planner.leaving = set().union(*(deed.numbers() for deed in self.deeds))
        self.campaign.until("nobody has open what an outsider has changed", self.all_have_left)
        self.drain_deeds()
        removed = []
        with self.lock:
            for deed in self.deeds:
                try:
                    removed += deed.judge()
                except Violation as violation:
                    self.planner.violations.append(str(violation))
            self.planner.leaving = set()
        self.campaign.check()
        self.campaign.counts["outsider: second versions"] += sum(BESIDE in path for path in removed)
        self.deeds = []
        self.campaign.remove(removed)

    def all_have_left(self):
        left = any(held[0] in self.planner.leaving for program in self.planner.programs.values() for held in program.held.values())
        return not left and self.planner.quiet()

    def drain_deeds(self):
        deadline = time.monotonic() + DRAINED_WITHIN_S
        mount = self.random.choice(self.cluster.mounts)
        for path in [path for deed in self.deeds for path in deed.paths()]:
            # A conflict is named once; what is beside then drains as any file.
            while (told := self.drained(mount, path)) is not None:
                if time.monotonic() > deadline:
                    raise Failure(f"what an outsider has changed does not drain: {told}")
                self.campaign.wait(0.2)
        self.campaign.wait(SHOWS_WITHIN_S)
        beside = [path for deed in self.deeds for path in deed.beside()]
        for path in beside:
            while (told := self.drained(mount, path)) is not None:
                if time.monotonic() > deadline:
                    raise Failure(f"what was put beside does not drain: {told}")
                self.campaign.wait(0.2)

    def drained(self, mount, path):
        """None, or why it is not."""
        done = run([self.cluster.binary, "stage-out", "--wait", mount / path], check=False, timeout_s=COMMAND_S)
        if done.returncode == 0 or os.strerror(errno.ENOENT) in done.stderr:
            return None
        return f"{path}: exit {done.returncode}: {done.stderr.strip()[-300:]}"

