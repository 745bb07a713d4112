"""What programs on all nodes have asked for and been answered, and what they may therefore see.

Kept outside of the file system that is judged. Each thing that can change (a name, a directory, a cell of a file) is a
register: the values that it may have, by ticks of one clock. While a change is under way it may have the old and the
new value; once the change is answered the new one only; where an answer was lost with a server it stays either until
somebody looks. A look may show whatever the register had from its begin to its end, and nothing else.
"""

import collections
import hashlib
import struct
import time

CELL = 1500  # of no page's measure: neighbours share pages
CELLS_MAX = 96
HEAD = struct.Struct("<4sIIQ")
MAGIC = b"FbCc"
RECORD = 200
RECORD_HEAD = struct.Struct("<4sIIHH")  # magic, stream, number, place in its write, records of that write
RECORD_MAGIC = b"FbCr"
HISTORY = 80
BESIDE = ".forebay-conflict-"


def cell(file, place, version):
    head = HEAD.pack(MAGIC, file, place, version)
    return head + (hashlib.blake2b(head).digest() * (CELL // 64 + 1))[:CELL - HEAD.size]


def parse_cell(data):
    """(file, place, version) of a whole cell, 0 of zeros, None of nothing; of anything else the bytes themselves."""
    if not data:
        return None
    if len(data) == CELL:
        if data[:4] == MAGIC:
            found = HEAD.unpack_from(data)[1:]
            if cell(*found) == data:
                return found
        elif not data.strip(b"\0"):
            return 0
    return bytes(data)


def parse_cells(data):
    return [parse_cell(data[at:at + CELL]) for at in range(0, len(data), CELL)]


def record(stream, number, place, count):
    head = RECORD_HEAD.pack(RECORD_MAGIC, stream, number, place, count)
    return head + (hashlib.blake2b(head).digest() * (RECORD // 64 + 1))[:RECORD - RECORD_HEAD.size]


def parse_records(data):
    """All whole records in a file, as (stream, number, place, count, offset), and how many bytes are none."""
    found, at, other = [], 0, 0
    while at < len(data):
        piece = data[at:at + RECORD]
        if len(piece) == RECORD and piece[:4] == RECORD_MAGIC:
            fields = RECORD_HEAD.unpack_from(piece)[1:]
            if record(*fields) == piece:
                found.append((*fields, at))
                at += RECORD
                continue
        follows = data.find(RECORD_MAGIC, at + 1)
        follows = len(data) if follows < 0 else follows
        other, at = other + follows - at, follows
    return found, other


class Violation(Exception):
    """Something was seen that none of the answered requests allows."""


class Register:
    """The values that something may have, since when."""

    __slots__ = ("spans", "cutting", "cut", "unsynced")

    def __init__(self, value, tick=0, goes_back=False):
        self.spans = [(tick, frozenset([value]))]
        # What it has had since the last fsync; None of what no loss of a node takes back.
        self.unsynced = {value} if goes_back else None
        self.cutting, self.cut = False, -1

    def now(self):
        return self.spans[-1][1]

    def only(self):
        """The one value that it has; raises where there are several."""
        (value,) = self.now()
        return value

    def sure(self):
        return len(self.now()) == 1

    def put(self, tick, values, oldest):
        """From now on one of these. What nobody who looks has begun to see is forgotten."""
        self.spans.append((tick, frozenset(values)))
        if self.unsynced is not None:
            self.unsynced |= values
        while len(self.spans) > 1 and self.spans[1][0] <= oldest:
            self.spans.pop(0)

    def window(self, since):
        """What may be seen by who began to look then."""
        seen = set(self.now())
        for at in range(len(self.spans) - 1, 0, -1):
            if self.spans[at][0] <= since:
                break
            seen |= self.spans[at - 1][1]
        return seen

    def taken_back(self):
        """What it may be when a node goes that has it: nothing since the last fsync is sure. A hole, where it was not there then
        and something behind it was written later."""
        return self.unsynced | {0} if None in self.unsynced else self.unsynced

    def promise(self):
        """No loss takes it back any more."""
        self.unsynced = set(self.now())

    def was_cut(self, since):
        """Whether a truncation of it is under way, or ended after then."""
        return self.cutting or self.cut > since

    def unmoved(self, since):
        return self.spans[-1][0] <= since


class NameRegister(Register):
    """The file that a name has. What it was made or renamed over is on the PFS until the new file is there, and shows again if that is lost."""

    __slots__ = ("below",)

    def __init__(self, value):
        super().__init__(value, goes_back=True)
        self.below = {value}

    def put(self, tick, values, oldest):
        super().put(tick, values, oldest)
        # A name that was taken away is taken away on the PFS at once.
        self.below = {None} if set(values) == {None} else self.below | values

    def promise(self):
        super().promise()
        self.below = set(self.now())

    def is_never(self, value):
        """An fsync has covered that it does not have this one any more."""
        if value not in self.now():
            self.unsynced.discard(value)
            self.below.discard(value)


class Story:
    """What was done with something last, for whoever looks into a violation."""

    def __init__(self):
        self.lines = collections.deque(maxlen=HISTORY)

    def note(self, text):
        self.lines.append(f"{time.strftime('%H:%M:%S')}.{time.time_ns() // 1000 % 1_000_000:06} {text}")

    def told(self, title):
        return f"\n  {title}:" + "".join(f"\n    {line}" for line in self.lines)


class File:
    # While a node may be given up: what is written may be there, or what the last fsync has promised.
    goes_back = False

    def __init__(self, number):
        self.number, self.cells, self.busy = number, [], None
        self.fsynced, self.story, self.promised = {}, Story(), False

    def cell(self, place):
        while len(self.cells) <= place:
            self.cells.append(Register(None, goes_back=True))
        return self.cells[place]

    def window(self, place, since):
        if place >= len(self.cells):
            return {None}
        window = self.cells[place].window(since)
        return window | self.cells[place].taken_back() if File.goes_back else window

    def promise(self):
        """An fsync was answered: nothing from before can be the file again."""
        self.promised = True
        for register in self.cells:
            register.promise()

    def sure(self):
        return all(register.sure() for register in self.cells)

    def size(self):
        """In cells; of a file that is sure."""
        return next((at for at, register in enumerate(self.cells) if register.only() is None), len(self.cells))


# What may be lost with what: a data server's files, which were in its memory or not flushed; records of names, too, where these are.
CONTENT, FILES, RECORDS = "content", "files", "records"


class Name:
    # While something may be lost: FILES or RECORDS.
    goes_back = None

    def __init__(self, path, is_on_pfs=False):
        """is_on_pfs: what is done with it is done on the PFS at once, so that nobody's loss takes it back."""
        self.path, self.busy, self.story = path, None, Story()
        self.value = Register(None) if is_on_pfs else NameRegister(None)

    def window(self, since):
        return self.value.window(since) | self.taken_back(Name.goes_back)

    def is_one_file(self):
        """Whether who asks for it by name meets the file that it has now, or nothing, whatever may be lost now."""
        return len((self.value.now() | self.taken_back(Name.goes_back)) - {None}) < 2

    def taken_back(self, what):
        """What it may be after such a loss, beside what it is."""
        if what not in (FILES, RECORDS) or not isinstance(self.value, NameRegister):
            return set()
        return self.value.below | (self.value.unsynced if what == RECORDS else set())


class Log:
    """A file that programs on all nodes append to without asking each other."""

    def __init__(self, path):
        self.path, self.answered, self.begun, self.unanswered = path, {}, {}, 0
        self.bytes, self.promised = 0, set()

    def promise(self, keys, since):
        """An fsync that began then was answered, of whoever wrote these."""
        self.promised.update(keys, (key for key, tick in self.answered.items() if tick <= since))


class Account:
    def __init__(self):
        self.tick, self.looks = 0, {}
        self.files, self.names, self.folders, self.logs = {}, {}, {}, {}
        self.counts = collections.Counter()
        self.disputed = set()  # paths and numbers of files that an outsider has changed, until it is known what came of that
        self.unseen = set()  # files that were promised, and that nobody has seen since records may be lost

    def next_tick(self):
        self.tick += 1
        return self.tick

    def oldest(self):
        return min(self.looks.values(), default=self.tick)

    def put(self, register, values):
        register.put(self.tick, values, self.oldest())

    # -- changes: between `begin` and its end either value may be seen ----------------------------------------------

    def begin(self, changes):
        """Changes are (register, new value); answered is what `end` is given."""
        self.next_tick()
        for register, value in changes:
            register.cutting = value is None
            self.put(register, register.now() | {value})
        return changes

    def end(self, changes):
        """The request was answered: it is done."""
        self.next_tick()
        for register, value in changes:
            self.cut(register)
            self.put(register, {value})

    def undone(self, changes, before):
        """The request was refused, and has changed nothing."""
        self.next_tick()
        for (register, _), values in zip(changes, before):
            self.cut(register)
            self.put(register, values)

    def promise_names(self, number, since, own=()):
        """An fsync of this file, which began then, was answered: it covers the names that the file had throughout."""
        for name in self.names.values():
            if name.value.now() != {number}:
                name.value.is_never(number)
            elif name in own or name.value.unmoved(since):
                name.value.promise()

    def take_back(self, what=CONTENT):
        """A node may have been given up, or have lost what was not flushed: each file is what it was, or what its last fsync has
        promised. One that was never fsynced is lost as a whole then, and what its names had before shows again."""
        self.next_tick()
        if what == RECORDS:
            # A record of a change of names may be lost: then it is under the other name.
            self.unseen |= {number for path, name in self.names.items() if name.value.sure() and (number := name.value.only()) is not None
                            and self.files[number].promised and not path.startswith("mem/")}
        for name in self.names.values():
            if name.taken_back(what) - name.value.now():
                self.put(name.value, name.value.now() | name.taken_back(what))
        for file in self.files.values():
            for register in file.cells:
                if register.taken_back() - register.now():
                    self.put(register, register.now() | register.taken_back())
        for log in self.logs.values():
            log.answered = {key: tick for key, tick in log.answered.items() if key in log.promised}
            log.unanswered += 1

    def cut(self, register):
        """If it was being cut, that is over."""
        if register.cutting:
            register.cutting, register.cut = False, self.tick

    # -- looks -------------------------------------------------------------------------------------------------------

    def judge_cells(self, number, first, seen, since, whole, is_it=True):
        """Cells of a file from one on, as `parse_cells` gives them. whole: the file was read to its end. is_it: it is this file for sure."""
        file = self.files[number]
        seen = list(seen)
        if whole:
            seen += [None] * max(len(file.cells) - first - len(seen), 0)
        for at, found in enumerate(seen, first):
            try:
                self._judge_cell(file, at, found, since, is_it)
            except Violation as violation:
                raise Violation(f"{violation}\n  seen from cell {first} on: {summary(seen)}") from None

    def _judge_cell(self, file, place, found, since, is_it):
        window = file.window(place, since)
        self.counts["cells"] += 1
        if isinstance(found, bytes):
            if len(window) > 1 and is_mixture(found, [content(file.number, place, value) for value in window]):
                self.counts["torn"] += 1
                return
            raise Violation(f"cell {place} of file {file.number} is torn ({describe(found)}); it may be {told(window)}"
                            f"{file.story.told(f'file {file.number}')}")
        value = found
        if isinstance(found, tuple):
            number, at, value = found
            if number != file.number or at != place:
                raise Violation(f"cell {place} of file {file.number} holds cell {at} of file {number}"
                                f"{file.story.told(f'file {file.number}')}")
        register = file.cells[place] if place < len(file.cells) else None
        if value == 0 and None in window and register and register.was_cut(since):
            # Who reads beside a truncation may find the end of before and what it has cleared, as on other file systems.
            self.counts["zeros of a truncation under way"] += 1
            return
        if value not in window:
            fsynced = file.fsynced.get(place)
            lost = f"; {fsynced} was fsynced" if fsynced is not None and fsynced in window else ""
            raise Violation(f"cell {place} of file {file.number} is {told([value])}, and may be {told(window)}{lost}"
                            f"{file.story.told(f'file {file.number}')}")
        if is_it and register and not register.sure() and register.unmoved(since) and file.busy is None and not File.goes_back:
            # Seen once, it must stay so.
            self.next_tick()
            self.put(register, {value})

    def judge_name(self, name, seen, since, first=0, whole=True):
        """What somebody found under a name: None for nothing, else cells of the file there. Answers whose they are."""
        window = name.window(since)
        self.counts["names"] += 1
        if seen is None:
            if None not in window:
                raise Violation(f"{name.path} is not there, and must be {told_files(window)}{name.story.told(name.path)}")
            self._resolve_name(name, None, since)
            return None
        numbers = {found[0] for found in seen if isinstance(found, tuple)}
        if len(numbers) > 1:
            raise Violation(f"{name.path} holds cells of files {sorted(numbers)}{name.story.told(name.path)}")
        if not numbers:
            return self._judge_nameless(name, seen, since, window, first, whole)
        (number,) = numbers
        if number not in window:
            known = self.files.get(number)
            raise Violation(f"{name.path} is file {number}, and may be {told_files(window)}{name.story.told(name.path)}"
                            f"{known.story.told(f'file {number}') if known else ''}")
        try:
            self.judge_cells(number, first, seen, since, whole)
        except Violation as violation:
            raise Violation(f"{violation}{name.story.told(name.path)}") from None
        self.unseen.discard(number)
        self._resolve_name(name, number, since)
        return number

    def _judge_nameless(self, name, seen, since, window, first, whole):
        """Of a file that is empty or zeros nothing says which it is."""
        fitting, why = [], ""
        for number in window - {None}:
            try:
                self.judge_cells(number, first, seen, since, whole, is_it=False)
                fitting.append(number)
            except Violation as violation:
                why = str(violation)
        if not fitting:
            raise Violation(f"{name.path} holds {len(seen)} cells that are nobody's, and may be {told_files(window)}: {why}"
                            f"{name.story.told(name.path)}")
        self.unseen -= set(fitting)
        if len(fitting) == 1:
            self.judge_cells(fitting[0], first, seen, since, whole)
            self._resolve_name(name, fitting[0], since)
            return fitting[0]
        return None

    def _resolve_name(self, name, value, since):
        if not name.value.sure() and name.value.unmoved(since) and name.busy is None and not Name.goes_back:
            self.next_tick()
            self.put(name.value, {value})

    def judge_size(self, name, size, links, since):
        """What stat says of a name: None for nothing."""
        window = name.window(since)
        self.counts["stats"] += 1
        if size is None:
            if None not in window:
                raise Violation(f"stat finds no {name.path}, which must be {told_files(window)}{name.story.told(name.path)}")
            return
        fitting = [number for number in window - {None} if self._size_fits(self.files[number], size, since)]
        if not fitting:
            stories = "".join(self.files[number].story.told(f"file {number}") for number in window - {None})
            raise Violation(f"stat of {name.path} says {size} bytes ({size / CELL:g} cells), which none of {told_files(window)} "
                            f"has{name.story.told(name.path)}{stories}")
        if not any(self._links_fit(number, links, since) for number in fitting) and not self.disputed & set(fitting):
            raise Violation(f"stat of {name.path} says {links} links; {self._told_links(fitting, since)}{name.story.told(name.path)}")

    def _size_fits(self, file, size, since):
        at, rest = divmod(size, CELL)
        last, next_one = file.window(at - 1, since) if at else {0}, file.window(at, since)
        if rest and not (None in next_one and len(next_one) > 1):
            return False
        return bool(last - {None}) and None in next_one

    def _links(self, number, since):
        windows = [name.window(since) for name in self.names.values()]
        return sum(window == {number} for window in windows), sum(number in window for window in windows)

    def _links_fit(self, number, links, since):
        least, most = self._links(number, since)
        return least <= links <= most

    def _told_links(self, numbers, since):
        return "; ".join(f"file {number} has {' to '.join(str(count) for count in self._links(number, since))}" for number in numbers)

    def judge_folder(self, folder, seen, since):
        """The names that a directory lists."""
        self.counts["listings"] += 1
        if len(set(seen)) != len(seen):
            twice = [one for one, count in collections.Counter(seen).items() if count > 1]
            raise Violation(f"{folder} lists {twice} twice")
        known = {path.rpartition("/")[2]: name for path, name in (self.names | self.folders).items()
                 if path.rpartition("/")[0] == folder}
        if strange := [one for one in seen if one not in known and not self.is_beside(f"{folder}/{one}")]:
            of = [name for name in self.names.values() if any(f"{folder}/{one}".startswith(f"{name.path}.") for one in strange)]
            files = [self.files[number] for name in of for number in name.window(since) - {None}]
            raise Violation(f"{folder} lists {strange}, which nobody has made{''.join(name.story.told(name.path) for name in of)}"
                            f"{''.join(file.story.told(f'file {file.number}') for file in files)}")
        for short, name in known.items():
            window = name.window(since)
            if short in seen and window == {None}:
                raise Violation(f"{folder} lists {short}, which is not there{name.story.told(name.path)}")
            if short not in seen and None not in window:
                raise Violation(f"{folder} does not list {short}, which is there{name.story.told(name.path)}")

    def is_beside(self, path):
        """Whether it is the second version of a file that an outsider has changed."""
        return path.partition(BESIDE)[0] in self.disputed

    def judge_lost(self):
        """Everybody has looked at everything."""
        if self.unseen:
            number = min(self.unseen)
            raise Violation(f"{len(self.unseen)} files that were fsynced have no name any more, such as {number}"
                            f"{self.files[number].story.told(f'file {number}')}")

    def judge_folder_there(self, name, there, since):
        window = name.window(since)
        self.counts["stats"] += 1
        if (True if there else None) not in window:
            raise Violation(f"the directory {name.path} is {'' if there else 'not '}there{name.story.told(name.path)}")
        self._resolve_name(name, True if there else None, since)

    def judge_log(self, log, found, other, since):
        """All records of a log, in their order."""
        self.counts["records"] += len(found)
        places, last = {}, {}
        for stream, number, place, count, offset in found:
            key = (stream, number)
            if key in places:
                raise Violation(f"{log.path}: record {number} of stream {stream} is there twice, at {places[key]} and {offset}")
            if key not in log.begun:
                raise Violation(f"{log.path}: record {number} of stream {stream} at {offset} was never written")
            if number <= last.get(stream, -1):
                raise Violation(f"{log.path}: record {number} of stream {stream} comes after {last[stream]}")
            places[key], last[stream] = offset, number
            if place and key in log.answered and places.get((stream, number - 1)) != offset - RECORD:
                raise Violation(f"{log.path}: an append of {count} records is torn before record {number} of stream {stream}, at {offset}")
        missing = [key for key, tick in log.answered.items() if tick <= since and key not in places and (not File.goes_back or key in log.promised)]
        if missing:
            stream, number = min(missing)
            raise Violation(f"{log.path}: {len(missing)} answered records are lost, such as {number} of stream {stream}; "
                            f"{len(found)} are there")
        if other and not log.unanswered and not File.goes_back and not self._appending(log, since):
            raise Violation(f"{log.path}: {other} bytes are no record")

    def _appending(self, log, since):
        """Whether some append was under way then."""
        return any(key not in log.answered or log.answered[key] > since for key in log.begun)

    def forget(self, held):
        """Files without a name that nobody has open."""
        used = set(held).union(*(name.value.now() | name.taken_back(RECORDS) for name in self.names.values()))
        for number in [number for number, file in self.files.items() if number not in used and file.busy is None]:
            del self.files[number]


def content(number, place, value):
    if value is None:
        return b""
    return bytes(CELL) if value == 0 else cell(number, place, value)


def is_mixture(found, allowed):
    """Whether each byte is that of one of the allowed contents, and the end as well."""
    if len(found) < CELL and b"" not in allowed:
        return False
    # What was not there yet, and is not written, reads as zeros once something behind it is there.
    whole = [one or bytes(CELL) for one in allowed]
    return all(any(one[at] == byte for one in whole) for at, byte in enumerate(found))


def summary(seen):
    """What a read has shown, in runs of the same."""
    runs = []
    for found in seen:
        value = "torn" if isinstance(found, bytes) else found[2] if isinstance(found, tuple) else found
        if runs and runs[-1][0] == value:
            runs[-1][1] += 1
        else:
            runs.append([value, 1])
    return ", ".join(f"{count} of {value if value == 'torn' else told([value])}" for value, count in runs)


def describe(data):
    inner = HEAD.unpack_from(data)[1:] if len(data) >= HEAD.size and data[:4] == MAGIC else None
    begins = f"begins as version {inner[2]} of cell {inner[1]} of file {inner[0]}" if inner else f"begins {data[:16].hex()}"
    return f"{len(data)} bytes, {begins}"


def told(values):
    words = {None: "beyond the end", 0: "zeros"}
    return " or ".join(sorted(words.get(value, f"version {value}") for value in values))


def told_files(values):
    return " or ".join(sorted("nothing" if value is None else f"file {value}" for value in values))
