"""Decides what each program does next, and enters in the account what became of it."""

import collections
import errno
import random
import time

from account import CELL, CELLS_MAX, CONTENT, RECORD, Account, File, Log, Name, Violation, told_files

FOLDERS = ("a", "safe", "mem", "deep/er")
NAMES_IN_EACH = 9
SLOT_FOLDER, LOG_FOLDER, SLOTS, LOGS = "slots", "logs", 5, 2
LOG_BYTES_MAX = 300_000
HELD_MAX = 4
# What a program may be told when its client was fenced or killed, or its server has restarted. EFAULT stands for SIGBUS.
EXCUSABLE = (errno.ESTALE, errno.EIO, errno.EFAULT, errno.ENOTCONN, errno.ECONNABORTED)
# And of a change of names that a restart met half-way, and that was sent again.
MET_HALFWAY = (errno.ENOENT, errno.EEXIST, errno.ENOTEMPTY)
WEIGHTS = {"create": 12, "write": 14, "append": 10, "truncate": 5, "rename": 9, "unlink": 6, "link": 5, "folder": 4, "log": 12,
           "read": 26, "stat": 12, "list": 4, "read_log": 1, "hold": 7, "drop": 3, "read_held": 12, "write_held": 8, "store": 8,
           "load": 8, "fsync": 6, "truncate_held": 2}

BY_NAME = ("write", "rewrite", "truncate", "rename", "unlink", "link")


class Ticket:
    """One operation of one program."""

    def __init__(self, number, program, plan, since):
        self.number, self.program, self.plan, self.since = number, program, plan, since
        self.changes, self.before, self.locked, self.stories = [], [], [], []
        self.finish = None  # what an answer means beside its changes


class Program:
    def __init__(self, number, client, first, audited):
        self.number, self.client, self.first, self.audited = number, client, first, audited
        self.ticket, self.left = None, []  # what is left to look at
        self.held = {}  # slot: (file, since when, whether it is mapped)


class Excuse:
    """A time in which a client, or each, may be told that what it had is gone."""

    def __init__(self, client, tick, why):
        self.client, self.begun, self.ended, self.why = client, tick, None, why

    def covers(self, client, since):
        return self.client in (None, client) and (self.ended is None or self.ended >= since)


class Planner:
    def __init__(self, seed, grow_mapped=False, spare_replaced=False):
        self.random, self.account, self.grow_mapped = random.Random(seed), Account(), grow_mapped
        self.spare_replaced = spare_replaced
        self.programs, self.excuses, self.violations = {}, [], []
        self.settled_since = -1  # fsyncs from before say nothing; for ever, while a node is away
        self.mode = "run"  # or "rest", "audit", "end"
        self.resting = set()  # clients without a mount
        self.leaving = set()  # files that nobody is to have open
        self.dead = {}  # what was asked by mounts that were killed, and may still happen
        self.audits = 0
        self.operations, self.unknown, self.refused = collections.Counter(), collections.Counter(), collections.Counter()
        self.tickets = self.versions = self.file_numbers = self.slots = self.generation = 0
        self.records = collections.Counter()
        self.hot = collections.deque(maxlen=12)  # what was changed last, and by whom
        for folder in FOLDERS:
            for at in range(NAMES_IN_EACH):
                path = f"{folder}/f{at}"
                self.account.names[path] = Name(path)
        for at in range(SLOTS):
            path = f"{SLOT_FOLDER}/d{at}"
            self.account.folders[path] = Name(path, is_on_pfs=True)
        self.new_logs()

    def new_logs(self):
        self.generation += 1
        paths = [f"{LOG_FOLDER}/log{at}.{self.generation}" for at in range(LOGS)]
        self.account.logs = {path: Log(path) for path in paths}

    # -- what the driver says ---------------------------------------------------------------------------------------

    def excuse(self, client, why):
        self.excuses.append(Excuse(client, self.account.next_tick(), why))
        return self.excuses[-1]

    def excuse_ends(self, excuse):
        excuse.ended = self.account.next_tick()

    def excused(self, program, since):
        return any(excuse.covers(program.client, since) for excuse in self.excuses)

    def quiet(self, client=None):
        """Nothing is under way, on one client or on any."""
        return all(program.ticket is None for program in self.programs.values() if client in (None, program.client))

    def audit(self):
        """Everybody looks at everything once nothing is under way; over when `audited`."""
        self.account.forget([held[0] for program in self.programs.values() for held in program.held.values()])
        self.audits += 1
        self.mode = "audit"

    def audited(self):
        return self.quiet() and all(program.audited >= self.audits for program in self.programs.values() if program.first)

    # -- what programs ask ------------------------------------------------------------------------------------------

    def join(self, number, client, first):
        """A program begins. The first of each client audits."""
        self.programs[number] = Program(number, client, first, self.audits)

    def next(self, number):
        """What it is to do: a plan, or None for a moment's rest."""
        program = self.programs[number]
        if self.mode == "end" or self.violations:
            return {"do": "end"}
        if self.mode == "audit":
            return self.of_audit(program)
        if program.client in self.resting:
            return None
        if self.mode == "rest":
            slot = next((slot for slot, held in program.held.items() if held[0] in self.leaving), None)
            return None if slot is None else self.issue(program, self.drop(program, slot))
        for _ in range(6):
            what = self.random.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
            ticket = getattr(self, f"plan_{what}")(program)
            if ticket:
                return self.issue(program, ticket)
        return None

    def ticket(self, program, do, **words):
        self.tickets += 1
        return Ticket(self.tickets, program, {"do": do, "ticket": self.tickets, **words}, self.account.tick)

    def issue(self, program, ticket):
        program.ticket = ticket
        for one in ticket.locked:
            one.busy = ticket
        if ticket.changes:
            ticket.before = [register.now() for register, _ in ticket.changes]
            self.account.begin(ticket.changes)
        ticket.since = self.account.tick
        self.account.looks[ticket.number] = ticket.since
        self.tell(ticket, "begins")
        return ticket.plan

    def tell(self, ticket, text):
        plan = ", ".join(f"{key} {value}" for key, value in ticket.plan.items() if key not in ("do", "ticket"))
        for one in ticket.stories:
            one.story.note(f"[{self.account.tick}] program {ticket.program.number} on client {ticket.program.client}: "
                           f"{ticket.plan['do']} {plan}: {text}")

    def done(self, number, outcome):
        """What became of its operation. Outcome: {"ok": ...} or {"errno": ..., "call": ...}."""
        program = self.programs[number]
        ticket, program.ticket = program.ticket, None
        self.account.looks.pop(ticket.number, None)
        if "errno" in outcome and program.client in self.dead:
            self.dead[program.client].append(ticket)
        else:
            self.free(ticket)
        try:
            if "ok" in outcome:
                self.answered(ticket, outcome["ok"])
            else:
                self.failed(ticket, outcome)
        except Violation as violation:
            self.violations.append(f"program {number} on client {program.client}, {ticket.plan}, begun at {ticket.since}, "
                                   f"now {self.account.tick}: {violation}")

    def free(self, ticket):
        for one in ticket.locked:
            one.busy = None

    def buried(self, client):
        """The server has ended all that its mount had asked for."""
        for ticket in self.dead.pop(client):
            self.free(ticket)

    def answered(self, ticket, told):
        self.operations[ticket.plan["do"]] += 1
        if told and told.get("late"):
            self.refused[f"{ticket.plan['do']} beyond the size that the kernel believed"] += 1
        if ticket.changes:
            self.account.end(ticket.changes)
            self.tell(ticket, "answered")
            for one in ticket.stories:
                if isinstance(one, Name):
                    self.hot.append((one, ticket.program.client))
        if ticket.finish:
            ticket.finish(ticket, told)

    def failed(self, ticket, outcome):
        number, call = outcome["errno"], outcome["call"]
        program, what = ticket.program, f"{call}: {errno.errorcode.get(number, number)}"
        self.tell(ticket, f"failed ({what})")
        since = ticket.since
        slot = ticket.plan.get("slot")
        if slot in program.held:
            since, held = min(since, program.held[slot][1]), program.held[slot][0]
            del program.held[slot]
            if held in self.account.disputed and number in EXCUSABLE and not ticket.changes:
                # It was there to be read, and what it was has left the PFS by an outsider's doing.
                self.unknown[f"{ticket.plan['do']} {errno.errorcode[number]}"] += 1
                return
        if number == errno.ENOENT and call == "link" and not self.excused(program, since):
            # The kernel counts links by itself, and may be wrong for a second (docs/semantics.md, not promised yet).
            self.account.undone(ticket.changes, ticket.before)
            self.refused["link"] += 1
            return
        excusable = EXCUSABLE + (MET_HALFWAY if ticket.changes else ())
        if number not in excusable or not self.excused(program, since):
            stories = "".join(one.story.told(getattr(one, "path", None) or f"file {one.number}") for one in ticket.stories)
            raise Violation(f"{what}, which nothing excuses{stories}")
        self.unknown[f"{ticket.plan['do']} {errno.errorcode[number]}"] += 1
        if ticket.plan["do"] == "log":
            self.account.logs[ticket.plan["path"]].unanswered += 1

    def died(self, number, how):
        """A program has ended by a signal: its mapping had nothing behind it any more."""
        program = self.programs[number]
        if self.violations or self.mode == "end":
            return  # the campaign has ended, and its programs were killed
        if program.ticket is None:
            self.violations.append(f"program {number} on client {program.client} ended by itself ({how})")
            return
        self.done(number, {"errno": errno.EIO, "call": f"a mapping ({how})"})

    def leave(self, number):
        """A program has ended, and what it had open is closed."""
        del self.programs[number]

    # -- choosing ----------------------------------------------------------------------------------------------------

    def version(self):
        self.versions += 1
        return self.versions

    def free_name(self, wanted):
        """A name that nobody works on: with a file, without one, or None where none was found."""
        names = list(self.account.names.values())
        for _ in range(8):
            name = self.random.choice(names)
            if wanted and not name.is_one_file():
                continue
            if name.busy is None and (not name.value.sure() or (name.value.only() is not None) == wanted):
                return name
        return None

    def free_file(self, name):
        """The file of a name, if nobody works on it."""
        file = self.account.files[name.value.only()]
        return file if file.busy is None else None

    def settled(self, program, name):
        """None where a name and its file are sure, else the operation that makes them so."""
        if name.value.sure() and (name.value.only() is None or self.account.files[name.value.only()].sure()):
            return None
        return self.plan_settle(program, name)

    def plan_settle(self, program, name):
        files = [self.account.files[number] for number in name.value.now() - {None}]
        if any(file.busy for file in files):
            return None
        ticket = self.ticket(program, "settle", path=name.path)
        ticket.locked = ticket.stories = [name, *files]
        ticket.finish = lambda ticket, told: self.finish_settle(ticket, name, told)
        return ticket

    def finish_settle(self, ticket, name, told):
        """What is seen is so from now on; cells that are torn are written anew by another operation."""
        # `changes` of a repair were ended already: only the look counts.
        self.account.judge_name(name, told["seen"], ticket.since)
        self.tell(ticket, f"seen: {told_files(name.value.now())}")

    def name_with_file(self, program):
        """A name, its file; or an operation that has to come before."""
        name = self.free_name(True)
        if not name:
            return None, None, None
        if name.value.sure() and self.free_file(name) is None:
            return None, None, None
        before = self.settled(program, name)
        if before or not name.value.sure():
            return None, None, self.repair(program, name) or before
        return name, self.free_file(name), None

    def repair(self, program, name):
        """Where a look did not tell, for a cell is torn, the whole of the file is written anew."""
        if not name.value.sure():
            return None
        file = self.free_file(name)
        if not file or not self.may_resize(program, file) or self.random.random() < 0.5:
            return None
        ticket = self.ticket(program, "rewrite", path=name.path, file=file.number, version=self.version(),
                             cells=self.random.randrange(1, 24))
        ticket.locked = ticket.stories = [name, file]
        self.will_be(ticket, file, [ticket.plan["version"]] * ticket.plan["cells"])
        return ticket

    def will_be(self, ticket, file, values):
        """The whole content of a file after a change."""
        values = values + [None] * max(len(file.cells) - len(values), 0)
        ticket.changes += [(file.cell(at), value) for at, value in enumerate(values)
                           if file.cell(at).now() != {value}]

    def will_write(self, ticket, file, first, count, version):
        size = file.size()
        ticket.changes += [(file.cell(at), 0) for at in range(size, first)]
        ticket.changes += [(file.cell(at), version) for at in range(first, first + count)]
        ticket.locked.append(file)
        ticket.stories.append(file)

    def may_resize(self, program, file):
        """A kernel that has a file mapped does not always hear that another node has made it longer or shorter, and then
        loses what is stored behind the old end (races.py, `stored`)."""
        others = (other for other in self.programs.values() if other.client != program.client)
        return self.grow_mapped or not any(held[0] == file.number and held[2] for other in others for held in other.held.values())

    def extent_in(self, program, file):
        """Some cells to write; behind the end only where that may be."""
        first, count = self.extent(file.size())
        if first + count <= file.size() or self.may_resize(program, file):
            return first, count
        first = self.random.randrange(max(file.size(), 1))
        return first, min(count, file.size() - first)

    def extent(self, size):
        first = self.random.randrange(min(size + 4, CELLS_MAX))
        return first, self.random.randrange(1, min(CELLS_MAX - first, self.random.choice([2, 8, 40])) + 1)

    # -- changes of names --------------------------------------------------------------------------------------------

    def plan_create(self, program):
        name = self.free_name(False)
        if not name:
            return None
        if before := self.settled(program, name):
            return before
        if not name.value.sure() or name.value.only() is not None:
            return None
        self.file_numbers += 1
        file = self.account.files[self.file_numbers] = File(self.file_numbers)
        count, version = self.random.randrange(1, self.random.choice([3, 20, 60])), self.version()
        ticket = self.ticket(program, "create", path=name.path, file=file.number, cells=count, version=version,
                             sync=self.random.random() < 0.4)
        ticket.locked, ticket.stories = [name], [name]
        ticket.changes = [(name.value, file.number)]
        self.will_write(ticket, file, 0, count, version)
        ticket.finish = self.finish_written
        return ticket

    def finish_written(self, ticket, _told):
        if ticket.plan.get("sync"):
            self.note_fsync(ticket.plan["file"], ticket.since, ticket.locked)

    def note_fsync(self, number, since, own=()):
        file = self.account.files.get(number)
        if not file or not file.sure():
            return
        file.fsynced = {at: register.only() for at, register in enumerate(file.cells)}
        names = [name.path for name in self.account.names.values() if number in name.window(since)]
        # The level `memory` promises nothing against the loss of a node; who had the file meanwhile, an answer does not say.
        if names and not any(path.startswith("mem/") for path in names) and self.settled_since < since:
            file.promise()
            self.account.promise_names(number, since, own)

    def nodes_go(self, what=CONTENT):
        """From now on this may be lost, and files go back to what was fsynced."""
        File.goes_back, self.settled_since = True, float("inf")
        Name.goes_back = None if what == CONTENT else what

    def nodes_are_back(self, what=CONTENT):
        File.goes_back, Name.goes_back = False, None
        self.account.take_back(what)
        self.settled_since = self.account.next_tick()

    def would_go_wrong(self):
        """Whether something is under way that would meet what the account does not believe to be there: an append another end, or a change
        by name another file."""
        return any(program.ticket and self.would_meet_another(program.ticket) for program in self.programs.values())

    def would_meet_another(self, ticket):
        if ticket.plan["do"] == "append":
            return True
        return ticket.plan["do"] in BY_NAME and any(isinstance(one, Name) and not one.is_one_file() for one in ticket.locked)

    def plan_rename(self, program):
        old, file, before = self.name_with_file(program)
        if before or not old:
            return before
        new = self.random.choice(list(self.account.names.values()))
        if new is old or new.busy or not new.value.sure() or new.value.only() == file.number:
            return None
        ticket = self.ticket(program, "rename", path=old.path, new=new.path, file=file.number)
        ticket.locked, ticket.stories = [old, new], [old, new]
        if self.spare_replaced and new.value.only() is not None:
            replaced = self.account.files[new.value.only()]
            if replaced.busy:
                return None
            ticket.locked.append(replaced)
        ticket.changes = [(new.value, file.number), (old.value, None)]
        return ticket

    def plan_unlink(self, program):
        name, file, before = self.name_with_file(program)
        if before or not name:
            return before
        ticket = self.ticket(program, "unlink", path=name.path, file=file.number)
        ticket.locked, ticket.stories, ticket.changes = [name], [name], [(name.value, None)]
        return ticket

    def plan_link(self, program):
        old, file, before = self.name_with_file(program)
        if before or not old:
            return before
        new = self.free_name(False)
        # Names on several levels would make it hard to say what fsync promises.
        if not new or not new.value.sure() or new.value.only() is not None or new.path.split("/")[0] != old.path.split("/")[0]:
            return None
        ticket = self.ticket(program, "link", path=old.path, new=new.path, file=file.number)
        ticket.locked, ticket.stories, ticket.changes = [old, new], [old, new], [(new.value, file.number)]
        return ticket

    def plan_folder(self, program):
        name = self.random.choice(list(self.account.folders.values()))
        if name.busy:
            return None
        if self.random.random() < 0.5 or not name.value.sure():
            ticket = self.ticket(program, "stat_folder", path=name.path)
            ticket.finish = lambda ticket, told: self.account.judge_folder_there(name, told["there"], ticket.since)
            return ticket
        there = name.value.only()
        ticket = self.ticket(program, "rmdir" if there else "mkdir", path=name.path)
        ticket.locked, ticket.stories, ticket.changes = [name], [name], [(name.value, None if there else True)]
        return ticket

    # -- changes of content ------------------------------------------------------------------------------------------

    def plan_write(self, program):
        name, file, before = self.name_with_file(program)
        if before or not name:
            return before
        first, count = self.extent_in(program, file)
        if count < 1:
            return None
        version = self.version()
        ticket = self.ticket(program, "write", path=name.path, file=file.number, first=first, cells=count, version=version,
                             sync=self.random.random() < 0.3)
        ticket.locked, ticket.stories, ticket.finish = [name], [name], self.finish_written
        self.will_write(ticket, file, first, count, version)
        return ticket

    def plan_append(self, program):
        name, file, before = self.name_with_file(program)
        if before or not name:
            return before
        size, version = file.size(), self.version()
        count = min(self.random.randrange(1, 20), CELLS_MAX - size)
        if count < 1 or File.goes_back or not self.may_resize(program, file):
            return None
        ticket = self.ticket(program, "append", path=name.path, file=file.number, first=size, cells=count, version=version,
                             sync=self.random.random() < 0.3)
        ticket.locked, ticket.stories, ticket.finish = [name], [name], self.finish_written
        self.will_write(ticket, file, size, count, version)
        return ticket

    def plan_truncate(self, program):
        name, file, before = self.name_with_file(program)
        if before or not name:
            return before
        if not self.may_resize(program, file):
            return None
        ticket = self.ticket(program, "truncate", path=name.path, file=file.number, cells=self.random.randrange(CELLS_MAX // 2))
        ticket.locked, ticket.stories = [name, file], [name, file]
        self.will_have(ticket, file)
        return ticket

    def will_have(self, ticket, file):
        size, cells = file.size(), ticket.plan["cells"]
        ticket.changes += [(file.cell(at), None) for at in range(cells, size)]
        ticket.changes += [(file.cell(at), 0) for at in range(size, cells)]

    # -- appends that nobody puts in order ---------------------------------------------------------------------------

    def plan_log(self, program):
        log = self.random.choice(list(self.account.logs.values()))
        if log.bytes > LOG_BYTES_MAX:
            return None
        count = self.random.choice([1, 1, 2, 5, 30])
        first = self.records[program.number]
        self.records[program.number] += count
        keys = [(program.number, number) for number in range(first, first + count)]
        for key in keys:
            log.begun[key] = self.account.tick
        log.bytes += count * RECORD
        ticket = self.ticket(program, "log", path=log.path, stream=program.number, first=first, count=count,
                             sync=self.random.random() < 0.1)

        def finish(ticket, _told):
            tick = self.account.next_tick()
            for key in keys:
                log.answered[key] = tick
            if ticket.plan["sync"] and not File.goes_back and self.settled_since < ticket.since:
                log.promise(keys, ticket.since)
        ticket.finish = finish
        return ticket

    def plan_read_log(self, program):
        log = self.random.choice(list(self.account.logs.values()))
        return self.look_at_log(program, log) if log.answered else None

    def look_at_log(self, program, log):
        ticket = self.ticket(program, "read_log", path=log.path)
        ticket.finish = lambda ticket, told: self.account.judge_log(log, told["records"], told["other"], ticket.since)
        return ticket

    # -- looks -------------------------------------------------------------------------------------------------------

    def to_look_at(self, program):
        """Most often what another node has changed just now."""
        if self.hot and self.random.random() < 0.65:
            name, client = self.random.choice(list(self.hot)[-4:])
            if client != program.client:
                return name
        return self.random.choice(list(self.account.names.values()))

    def plan_read(self, program, name=None):
        name = name or self.to_look_at(program)
        if name.path not in self.account.names:
            return None
        ticket = self.ticket(program, "read", path=name.path)

        def finish(ticket, told):
            self.account.judge_name(name, told["seen"], ticket.since)
        ticket.finish = finish
        return ticket

    def plan_stat(self, program, name=None):
        name = name or self.to_look_at(program)
        if name.path not in self.account.names:
            return None
        ticket = self.ticket(program, "stat", path=name.path)
        ticket.finish = lambda ticket, told: self.account.judge_size(name, told["size"], told["links"], ticket.since)
        return ticket

    def plan_list(self, program, folder=None):
        folder = folder or self.random.choice([*FOLDERS, SLOT_FOLDER])
        ticket = self.ticket(program, "list", path=folder)
        ticket.finish = lambda ticket, told: self.account.judge_folder(folder, told["names"], ticket.since)
        return ticket

    # -- files that stay open, and mapped ----------------------------------------------------------------------------

    def plan_hold(self, program):
        if len(program.held) >= HELD_MAX:
            return self.plan_drop(program)
        name = self.random.choice(list(self.account.names.values()))
        if not name.value.sure() or name.value.only() is None:
            return None
        self.slots += 1
        slot, mapped = self.slots, self.random.random() < 0.5
        ticket = self.ticket(program, "hold", path=name.path, slot=slot, mapped=mapped)
        if mapped and not self.grow_mapped:
            file = self.account.files[name.value.only()]
            if name.busy or file.busy:
                return None
            ticket.locked = [name, file]

        def finish(ticket, told):
            number = self.account.judge_name(name, told["seen"], ticket.since)
            if any(isinstance(one, tuple) for one in told["seen"] or []):
                program.held[slot] = (number, ticket.since, mapped)
        ticket.finish = finish
        return ticket

    def plan_drop(self, program):
        if not program.held:
            return None
        return self.drop(program, self.random.choice(list(program.held)))

    def drop(self, program, slot):
        number = program.held[slot][0]
        ticket = self.ticket(program, "drop", slot=slot, file=number)

        def finish(_ticket, _told):
            del program.held[slot]
        ticket.finish = finish
        return ticket

    def some_held(self, program, mapped=False, alone=True):
        """An open file that is sure, and that nobody works on."""
        slots = [slot for slot, held in program.held.items() if held[2] or not mapped]
        if not slots:
            return None, None
        slot = self.random.choice(slots)
        file = self.account.files[program.held[slot][0]]
        return (slot, file) if not alone or (file.busy is None and file.sure()) else (None, None)

    def plan_read_held(self, program):
        slot, file = self.some_held(program, alone=False)
        if not file:
            return None
        first, count = self.random.choice([(0, CELLS_MAX), self.extent(20)])
        ticket = self.ticket(program, "read_held", slot=slot, file=file.number, first=first, cells=count)
        ticket.finish = lambda ticket, told: self.account.judge_cells(file.number, first, padded(told["seen"], count), ticket.since, False)
        return ticket

    def plan_write_held(self, program):
        slot, file = self.some_held(program)
        if not file:
            return None
        first, count = self.extent_in(program, file)
        if count < 1:
            return None
        ticket = self.ticket(program, "write_held", slot=slot, file=file.number, first=first, cells=count, version=self.version(),
                             sync=self.random.random() < 0.3)
        ticket.finish = self.finish_written
        self.will_write(ticket, file, first, count, ticket.plan["version"])
        return ticket

    def within(self, program, do, **words):
        """A range of a mapping that is there; nobody shortens the file meanwhile."""
        slot, file = self.some_held(program, mapped=True)
        if not file or not file.size():
            return None, None
        first = self.random.randrange(file.size())
        count = self.random.randrange(1, file.size() - first + 1)
        return self.ticket(program, do, slot=slot, file=file.number, first=first, cells=count, **words), file

    def plan_store(self, program):
        ticket, file = self.within(program, "store", version=self.version())
        if ticket:
            self.will_write(ticket, file, ticket.plan["first"], ticket.plan["cells"], ticket.plan["version"])
        return ticket

    def plan_load(self, program):
        ticket, file = self.within(program, "load")
        if not ticket:
            return None
        ticket.locked = [file]

        def finish(ticket, told):
            self.account.judge_cells(file.number, ticket.plan["first"], told["seen"], ticket.since, False)
        ticket.finish = finish
        return ticket

    def plan_fsync(self, program):
        slot, file = self.some_held(program)
        if not file:
            return None
        ticket = self.ticket(program, "fsync", slot=slot, file=file.number)
        ticket.locked = [file]
        ticket.finish = lambda ticket, _told: self.note_fsync(file.number, ticket.since)
        return ticket

    def plan_truncate_held(self, program):
        slot, file = self.some_held(program)
        if not file or not self.may_resize(program, file):
            return None
        ticket = self.ticket(program, "truncate_held", slot=slot, file=file.number, cells=self.random.randrange(CELLS_MAX // 2))
        ticket.locked, ticket.stories = [file], [file]
        self.will_have(ticket, file)
        return ticket

    # -- audit -------------------------------------------------------------------------------------------------------

    def of_audit(self, program):
        """One after the other looks at everything, while nobody changes anything."""
        if not program.first or program.audited >= self.audits:
            return None
        if not program.left:
            names, logs = list(self.account.names.values()), list(self.account.logs.values())
            program.left = [lambda name=name: self.plan_read(program, name) for name in names]
            program.left += [lambda name=name: self.plan_stat(program, name) for name in names]
            program.left += [lambda folder=folder: self.plan_list(program, folder) for folder in (*FOLDERS, SLOT_FOLDER)]
            program.left += [lambda log=log: self.look_at_log(program, log) for log in logs if log.answered]
            program.left.append(None)
        look = program.left.pop(0)
        if look is None:
            program.audited = self.audits
            return None
        return self.issue(program, look())


def padded(seen, count):
    return seen + [None] * (count - len(seen))
