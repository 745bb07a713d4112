"""An outsider on the PFS between a kill, in the midst of drains and of changes of names, and the next start."""

import ctypes
import errno
import json
import multiprocessing
import os
import random
import time

from buffer import run
from ledger import Loss

CASES = 5  # at a time
NAMES = tuple(f"f{n}" for n in range(6))
DEEDS = ("replace", "in-place", "attributes")
AT_FDCWD, EXCHANGE = -100, 2
LIBC = ctypes.CDLL(None, use_errno=True)
MODE, ATTRIBUTE = 0o604, "user.theirs"


def exchange(one, other):
    if LIBC.renameat2(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), EXCHANGE) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def attributes(path):
    """Names of its extended attributes; some file systems have none."""
    try:
        return os.listxattr(path)
    except OSError as error:
        if error.errno != errno.ENOTSUP:
            raise
        return []


def content(version):
    """What a version consists of; nothing else does."""
    source = random.Random(version)
    return source.randbytes(source.randrange(1, 60_000))


class Names:
    """Which file has which names, and which version a file holds."""

    def __init__(self):
        self.files, self.versions = {}, {}

    def copy(self):
        other = Names()
        other.files, other.versions = dict(self.files), dict(self.versions)
        return other

    def do(self, what, one, other, version):
        files = self.files
        if what == "write":
            file = files.setdefault(one, version)
            self.versions[file] = version
        elif what == "unlink":
            del files[one]
        elif what == "link":
            files[other] = files[one]
        elif what == "exchange":
            files[one], files[other] = files[other], files[one]
        elif files.get(other) == files[one]:
            pass  # two names of one file: a rename leaves both
        else:
            files[other] = files.pop(one)

    def choose(self, source, version):
        """An operation that can be done now."""
        taken, free = sorted(self.files), [name for name in NAMES if name not in self.files]
        can = ["write"] if len(taken) < 2 else ["write", "write", "rename", "exchange", "unlink", *(["link"] if free else [])]
        what = source.choice(can)
        if what == "write":
            return what, source.choice(NAMES), "", version
        one = source.choice(taken)
        if what == "link":
            return what, one, source.choice(free), 0
        others = taken if what == "exchange" else NAMES
        return what, one, source.choice([name for name in others if name != one]) if what != "unlink" else "", 0

    def shown(self):
        return {name: content(self.versions[file]) for name, file in self.files.items()}

    def holding(self):
        """The versions of files that have a name."""
        return {file: self.versions[file] for file in self.files.values()}


def work(folder, names, seed, first_version, log):
    """Body of the program: says in `log` what it is about to do, and what is done. It ends with the mount."""
    source, version = random.Random(seed), first_version
    with open(log, "w", buffering=1) as told:
        while True:
            version += 1
            what, one, other, made = operation = names.choose(source, version)
            told.write(json.dumps(["about", *operation]) + "\n")
            try:
                if what == "write":
                    with open(folder / one, "wb") as file:
                        file.write(content(made))
                elif what == "unlink":
                    os.unlink(folder / one)
                elif what == "link":
                    os.link(folder / one, folder / other)
                elif what == "exchange":
                    exchange(folder / one, folder / other)
                else:
                    os.rename(folder / one, folder / other)
            except OSError as error:
                told.write(json.dumps(["error", str(error)]) + "\n")
                return
            names.do(*operation)
            told.write(json.dumps(["done"]) + "\n")
            # Drains go on meanwhile.
            time.sleep(source.choice([0, 0, 0.001, 0.01, 0.05]))


def below(folder):
    """What has a name there: contents by name."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if not path.name.startswith(".forebay")}


class Case:
    """One directory, with one program that works in it and one outsider."""

    def __init__(self, random, mnt, pfs, log, first_version):
        self.random, self.mnt, self.pfs, self.log = random, mnt, pfs, log
        self.mnt.mkdir()
        self.names = Names()
        for at, one in enumerate(random.sample(NAMES, 4)):
            (mnt / one).write_bytes(content(first_version + at))
            self.names.do("write", one, "", first_version + at)
        args = (mnt, self.names.copy(), random.getrandbits(48), first_version + 10, log)
        self.process = multiprocessing.Process(target=work, args=args, daemon=True)
        self.process.start()

    def go_on(self):
        """The daemon is dead; the outsider acts."""
        self.process.join()
        self.replay(self.names, self.log)
        self.act()

    def replay(self, names, log):
        """Which states the names may be in, for what was under way may be done or not."""
        self.before, self.after, self.under_way = names, names, None
        for line in log.read_text().splitlines():
            told = json.loads(line)
            if told[0] == "about":
                self.under_way = told[1:]
                self.after = self.before.copy()
                self.after.do(*self.under_way)
            elif told[0] == "done":
                self.before, self.under_way = self.after, None
        if self.under_way is None:
            self.after = self.before

    def touched(self):
        return set(self.under_way[1:3]) if self.under_way else set()

    def act(self):
        self.on_pfs = below(self.pfs)
        self.victim, self.deed = self.random.choice(NAMES), self.random.choice(DEEDS)
        if self.on_pfs and self.random.random() < 0.5:
            # What the drain has got to last.
            self.victim = max(self.on_pfs, key=lambda name: (self.pfs / name).stat().st_ctime_ns)
        path = self.pfs / self.victim
        if self.deed != "replace" and (not path.exists() or path.stat().st_nlink != 1):
            self.deed = "replace"
        self.theirs = b"theirs " + self.random.randbytes(self.random.randrange(1, 100_000))
        if self.deed == "replace":
            aside = self.pfs / "aside"
            aside.write_bytes(self.theirs)
            aside.rename(path)
        elif self.deed == "in-place":
            path.write_bytes(self.theirs)
        else:
            path.chmod(MODE)
            try:
                os.setxattr(path, ATTRIBUTE, b"1")
            except OSError as error:
                if error.errno != errno.ENOTSUP:
                    raise
            self.given = attributes(path)

    def judge(self):
        """Answers whether the outsider met something undrained or under way."""
        seen, drained = below(self.mnt), below(self.pfs)
        if seen != drained:
            wrong = [name for name in seen | drained if seen.get(name) != drained.get(name)]
            raise Loss(f"{self.said()}: the mount and the PFS differ in {wrong}")
        beside = {name for name in seen if ".forebay-conflict-" in name}
        plain = {name: data for name, data in seen.items() if name not in beside}
        self.judge_theirs(plain)
        self.judge_names(plain)
        self.judge_contents(set(seen.values()))
        ours = {content(version) for version in self.known()}
        # What was being written is part of a version.
        is_unsure = self.under_way and self.under_way[0] == "write"
        if not is_unsure and (strange := [name for name in beside if seen[name] not in ours]):
            raise Loss(f"{self.said()}: nobody wrote what is in {strange}")
        return self.met_undrained()

    def known(self):
        return {*self.before.versions.values(), *self.after.versions.values()}

    def said(self):
        return (f"{self.mnt}: {self.deed} of {self.victim} after a kill in {self.under_way}; names before {self.before.files}, "
                f"after {self.after.files}, versions {self.after.versions}; the PFS had {self.versions_of(self.on_pfs)}")

    def versions_of(self, shown):
        by_content = {content(version): version for version in self.known()}
        return {name: by_content.get(data, "theirs" if data == self.theirs else f"{len(data)} bytes") for name, data in shown.items()}

    def met_undrained(self):
        want = self.before.shown()
        return self.on_pfs.get(self.victim) != want.get(self.victim) or self.under_way is not None

    def judge_theirs(self, plain):
        if self.deed == "attributes":
            self.judge_attributes()
            return
        # A change of names that was under way takes their file along, or not.
        places = {self.victim, *(self.touched() if self.victim in self.touched() else ())}
        if self.theirs not in [plain.get(name) for name in places]:
            raise Loss(f"{self.said()}: what the outsider wrote is not there, but {self.versions_of(plain)}")

    def judge_attributes(self):
        shown = self.on_pfs[self.victim]
        is_drained = shown == self.before.shown().get(self.victim)
        if not is_drained or self.victim in self.touched():
            return
        for path in (self.mnt / self.victim, self.pfs / self.victim):
            mode = path.stat().st_mode & 0o7777
            if mode != MODE or attributes(path) != self.given:
                raise Loss(f"{self.said()}: {path} has mode {mode:o} and {attributes(path)}, not what the outsider gave it")

    def judge_names(self, plain):
        states = [self.before.shown(), self.after.shown()]
        is_unsure = self.under_way and self.under_way[0] == "write"
        file = self.after.files.get(self.under_way[1]) if is_unsure else None
        for name in {*NAMES, *plain} - {self.victim}:
            if self.theirs == plain.get(name) and name in self.touched():
                continue
            if is_unsure and file in (self.before.files.get(name), self.after.files.get(name)):
                continue
            if plain.get(name) not in [state.get(name) for state in states]:
                if name in self.touched() and self.victim in self.touched():
                    continue  # what was to have it is beside, and is looked for there
                raise Loss(f"{self.said()}: {name} is not what it was, but {self.versions_of(plain)}")

    def judge_contents(self, found):
        """What had a name, before and after what was under way, and was not the outsider's to replace."""
        before, after = self.before.holding(), self.after.holding()
        elsewhere = {data for name, data in self.on_pfs.items() if name != self.victim}
        for file in before.keys() & after.keys():
            version = before[file]
            if version != after[file]:
                continue  # it was being written
            data = content(version)
            theirs_to_replace = self.deed != "attributes" and self.on_pfs.get(self.victim) == data and data not in elsewhere
            if data not in found and not theirs_to_replace:
                raise Loss(f"{self.said()}: version {version} is lost")


class Between:
    def __init__(self, campaign):
        self.buffer, self.random = campaign.buffer, campaign.random
        self.rounds = 0

    def begin(self):
        """Kills the daemon in the midst of it; the outsiders act."""
        self.rounds += 1
        name = f"between-{self.rounds}"
        self.mnt, pfs = self.buffer.mnt / name, self.buffer.pfs / name
        self.mnt.mkdir()
        self.cases = []
        for n in range(CASES):
            log, first = self.buffer.base / f"{name}-{n}.log", (self.rounds * CASES + n) * 1_000_000
            self.cases.append(Case(self.random, self.mnt / f"case-{n}", pfs / f"case-{n}", log, first))
        until = time.monotonic() + self.random.uniform(0.1, 1.5)
        while time.monotonic() < until:
            run(self.buffer.forebay, "stage-out", self.mnt, check=False)
            time.sleep(self.random.uniform(0, 0.1))
        self.buffer.kill()
        for case in self.cases:
            case.go_on()

    def judge(self):
        """The daemon is up again; answers how many outsiders met something undrained or under way."""
        self.buffer.drain()
        # What somebody does on the PFS shows within a second.
        time.sleep(1.1)
        met = sum(case.judge() for case in self.cases)
        self.buffer.remove(self.mnt.name)
        return met
