"""Wrong histories: an account that lets one of them pass proves nothing."""

import contextlib

import selftest_losses
from account import RECORD, Account, File, Log, Name, Violation, cell, parse_cells, parse_records, record
from planner import Planner


class Case:
    """A name with a file of two cells of version 1."""

    def __init__(self):
        self.account = Account()
        self.name = self.account.names["a/f"] = Name("a/f")
        self.other = self.account.names["a/g"] = Name("a/g")
        self.log = self.account.logs["logs/l"] = Log("logs/l")
        self.file = self.account.files[1] = File(1)
        self.change((self.name.value, 1), *[(self.file.cell(at), 1) for at in range(2)])

    def change(self, *changes):
        self.account.end(self.account.begin(changes))

    def read(self, data, since=None, name=None):
        self.account.judge_name(name or self.name, None if data is None else parse_cells(data),
                                self.account.tick if since is None else since)

    def append(self, number, answered=True, stream=7):
        self.log.begun[stream, number] = self.account.tick
        if answered:
            self.log.answered[stream, number] = self.account.next_tick()

    def read_log(self, data):
        self.account.judge_log(self.log, *parse_records(data), self.account.tick)


def content(*versions, number=1):
    return b"".join(bytes(1500) if version == 0 else cell(number, at, version) for at, version in enumerate(versions))


def right(case):
    case.read(content(1, 1))
    before = case.account.looks["somebody"] = case.account.tick
    case.change((case.file.cell(1), 2))
    case.read(content(1, 2))
    case.read(content(1, 1), since=before)
    case.read(content(1, 2), since=before)
    under_way = case.account.begin([(case.file.cell(0), 3)])
    since = case.account.tick
    case.file.busy = "somebody"
    for seen in (content(1, 2), content(3, 2), content(1, 2)):
        case.read(seen, since=since)
    case.read(cell(1, 0, 3)[:700] + cell(1, 0, 1)[700:] + cell(1, 1, 2))
    case.account.end(under_way)
    case.file.busy = None
    case.change((case.name.value, None), (case.other.value, 1))
    case.read(None)
    case.read(content(3, 2), name=case.other)
    for number in range(3):
        case.append(number)
    case.append(3, answered=False)
    case.read_log(b"".join(record(7, at, at, 3) for at in range(3)))
    case.read_log(b"".join(record(7, at, at, 3) for at in range(3)) + record(7, 3, 0, 1))
    case.account.judge_size(case.other, 3000, 1, case.account.tick)
    case.account.judge_folder("a", ["g"], case.account.tick)


def stale_read(case):
    case.change((case.file.cell(1), 2))
    case.read(content(1, 1))


def lost_fsync(case):
    case.file.fsynced = {0: 1, 1: 1}
    case.read(content(1, 0))


def shorter(case):
    case.read(content(1))


def longer(case):
    case.read(content(1, 1, 1))


def torn_at_rest(case):
    case.read(content(1) + cell(1, 1, 1)[:-1] + b"x")


def torn_with_something_else(case):
    case.account.begin([(case.file.cell(1), 2)])
    case.read(content(1) + cell(1, 1, 1)[:700] + cell(1, 1, 9)[700:])


def back_again(case):
    """Its answer was lost, the new version was seen, and then the old one."""
    case.account.begin([(case.file.cell(1), 2)])
    case.read(content(1, 2))
    case.read(content(1, 1))


def late_duplicate(case):
    case.change((case.file.cell(1), 2))
    case.change((case.file.cell(1), 3))
    case.read(content(1, 2))


def other_files_content(case):
    case.account.files[2] = File(2)
    case.read(content(1, 1, number=2))


def another_place(case):
    case.read(cell(1, 1, 1) + cell(1, 0, 1))


def name_lost(case):
    case.read(None)


def unlinked_and_there(case):
    case.change((case.name.value, None))
    case.read(content(1, 1))


def renamed_and_not_there(case):
    case.change((case.name.value, None), (case.other.value, 1))
    case.read(None, name=case.other)


def renamed_and_still_there(case):
    case.change((case.name.value, None), (case.other.value, 1))
    case.read(content(1, 1))


def old_size(case):
    case.change((case.file.cell(2), 2))
    case.account.judge_size(case.name, 3000, 1, case.account.tick)


def old_links(case):
    case.change((case.other.value, 1))
    case.account.judge_size(case.name, 3000, 1, case.account.tick)


def listed_though_gone(case):
    case.change((case.name.value, None))
    case.account.judge_folder("a", ["f"], case.account.tick)


def not_listed(case):
    case.account.judge_folder("a", [], case.account.tick)


def listed_twice(case):
    case.account.judge_folder("a", ["f", "f"], case.account.tick)


def append_twice(case):
    case.append(0)
    case.read_log(record(7, 0, 0, 1) * 2)


def unanswered_append_twice(case):
    case.append(0, answered=False)
    case.read_log(record(7, 0, 0, 1) * 2)


def append_lost(case):
    case.append(0)
    case.append(1)
    case.read_log(record(7, 1, 0, 1))


def append_torn(case):
    for number in range(2):
        case.append(number)
    case.append(0, stream=8)
    case.read_log(record(7, 0, 0, 2) + record(8, 0, 0, 1) + record(7, 1, 1, 2))


def append_overwritten(case):
    case.append(0)
    case.append(1)
    case.read_log(record(7, 0, 0, 1)[:RECORD // 2] + record(7, 1, 0, 1))


def append_out_of_order(case):
    case.append(0)
    case.append(1)
    case.read_log(record(7, 1, 0, 1) + record(7, 0, 0, 1))


def append_of_nobody(case):
    case.read_log(record(7, 0, 0, 1))


def error_without_a_reason(_case):
    failing(116, excused=False)


def error_that_nothing_excuses(_case):
    failing(28, excused=True)


def failing(number, excused):
    planner = Planner(1)
    planner.join(1, 0, True)
    if excused:
        planner.excuse(None, "the server was killed")
    while (plan := planner.next(1)) is None or plan["do"] != "create":
        if plan:
            planner.done(1, {"ok": {"there": False}} if plan["do"] == "stat_folder" else {"errno": 5, "call": "none"})
            planner.violations.clear()
    planner.done(1, {"errno": number, "call": "open"})
    if planner.violations:
        raise Violation(planner.violations[0])


def excused_error(_case):
    failing(116, excused=True)


def gone_with_a_node(case):
    """What was fsynced is there, and nothing that was written later, as when the server that has it is given up."""
    case.file.promise()
    case.change((case.file.cell(1), 2), (case.file.cell(2), 2))
    case.append(0)
    case.log.promise([], case.account.tick)
    case.append(1)
    case.account.take_back()
    case.read(content(1, 1))
    case.read_log(record(7, 0, 0, 1))


def gone_though_promised(case):
    case.change((case.file.cell(1), 2))
    case.file.promise()
    case.account.take_back()
    case.read(content(1, 1))


def record_gone_though_promised(case):
    case.append(0)
    case.log.promise([], case.account.tick)
    case.account.take_back()
    case.read_log(b"")


def back_again_with_a_node(case):
    """What was given up is not the file again once somebody has seen it."""
    case.file.promise()
    case.change((case.file.cell(1), 2))
    case.account.take_back()
    case.read(content(1, 1))
    case.read(content(1, 2))


RIGHT = (right, excused_error, gone_with_a_node)
WRONG = (stale_read, lost_fsync, shorter, longer, torn_at_rest, torn_with_something_else, back_again, late_duplicate,
         other_files_content, another_place, name_lost, unlinked_and_there, renamed_and_not_there, renamed_and_still_there, old_size,
         old_links, listed_though_gone, not_listed, listed_twice, append_twice, unanswered_append_twice, append_lost, append_torn,
         append_overwritten, append_out_of_order, append_of_nobody, error_without_a_reason, error_that_nothing_excuses,
         gone_though_promised, record_gone_though_promised, back_again_with_a_node)


def self_test():
    """0 if right histories pass and each wrong one is found."""
    failed, right, wrong = 0, (*RIGHT, *selftest_losses.RIGHT), (*WRONG, *selftest_losses.WRONG)
    for history in (*right, *wrong):
        found = None
        begin = contextlib.nullcontext(Case()) if history in RIGHT + WRONG else selftest_losses.site()
        try:
            with begin as case:
                history(case)
        except Violation as violation:
            found = str(violation).splitlines()[0]
        good = (found is None) == (history in right)
        failed += not good
        print(f"self-test: {'' if good else 'FAILED: '}{history.__name__}: {found or 'no violation'}")
    print(f"self-test: {len(right) + len(wrong) - failed} of {len(right) + len(wrong)} histories are judged as they must be")
    return 1 if failed else 0
