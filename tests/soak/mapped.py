"""Stores through shared mappings, in processes of their own: where the mount dies, they get SIGBUS."""

import json
import mmap
import os
import subprocess

from ledger import BLOCK, block

HELD_MAX = 2


class Held:
    """A mapping whose descriptor is closed, in a process that waits for the word to store."""

    def __init__(self, file, name, ats, path, make, blocks):
        self.file, self.name, self.ats = file, name, ats
        ready, told_ready = os.pipe()
        told, self.pipe = os.pipe()
        self.child = os.fork()
        if self.child == 0:
            os.close(ready)
            os.close(self.pipe)
            ended = 1
            try:
                fd = os.open(path, os.O_RDWR | (os.O_CREAT | os.O_EXCL if make else 0), 0o644)
                if make:
                    os.ftruncate(fd, blocks * BLOCK)
                pages = mmap.mmap(fd, 0)
                os.close(fd)
                # Read first: on tmpfs a store then leaves no trace.
                seen = pages[:]
                os.write(told_ready, b"r")
                # Version and whether to flush; none to store nothing.
                version, flush = json.loads(os.read(told, 100))
                for at in ats if version else ():
                    pages[at * BLOCK:(at + 1) * BLOCK] = block(file.worker, file.number, at, version)
                if flush:
                    pages.flush()
                pages.close()
                ended = 0 if len(seen) == blocks * BLOCK else 1
            except OSError as error:
                ended = error.errno
            finally:
                os._exit(ended)
        os.close(told_ready)
        os.close(told)
        self.is_there = os.read(ready, 1) == b"r"
        os.close(ready)

    def store(self, version, flush):
        """Lets it store and unmap; answers with what it ended with."""
        try:
            os.write(self.pipe, json.dumps([version, flush]).encode())
        except BrokenPipeError:
            pass  # its status says why
        os.close(self.pipe)
        return os.waitpid(self.child, 0)[1]


def failed(status):
    """Raises what such a program ended with, unless it did all."""
    if os.WIFSIGNALED(status):
        raise OSError(f"the program with the mapping got signal {os.WTERMSIG(status)}")
    if errno := os.WEXITSTATUS(status):
        raise OSError(errno, os.strerror(errno), "the program with the mapping")


class Mappings:
    """Of a worker: operations whose stores no system call tells of."""

    def store(self):
        """Into what has been read through the mapping before; unmapped, closed, nothing fsynced."""
        file = self.some()
        if not file:
            return
        path = self.path(self.random.choice(sorted(file.names)))
        ats = sorted(self.random.sample(range(len(file.now)), self.random.randrange(1, min(len(file.now), 4) + 1)))
        was_clean = self.random.random() < 0.25 and self.is_clean(path)
        version, flush, close_first = self.ledger.version(), self.random.random() < 0.5, self.random.random() < 0.5
        file.unsure = True
        file.note(f"version {version} stored into blocks {ats}, flush: {flush}, was clean: {was_clean}")
        for at in ats:
            file.write(at, version)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                fd = os.open(path, os.O_RDWR)
                pages = mmap.mmap(fd, 0)
                if close_first:
                    os.close(fd)
                if len(pages[:]) > 0:
                    for at in ats:
                        pages[at * BLOCK:(at + 1) * BLOCK] = block(self.ledger.worker, file.number, at, version)
                if flush:
                    pages.flush()
                pages.close()
                if not close_first:
                    os.close(fd)
                code = 0
            except OSError as error:
                code = error.errno
            finally:
                os._exit(code)
        self.ended(file, os.waitpid(child, 0)[1])
        self.stored(file, path, flush)
        self.ledger.fired["store"] += 1
        self.ledger.fired["store into clean"] += was_clean

    def stored(self, file, path, flush):
        # What the kernel could not hand over when it was unmapped fails nothing but the next fsync: also where the look below fails.
        if not flush:
            self.ledger.unflushed.add(file.number)
        # Is the daemon alive?
        os.stat(path)
        file.unsure = False

    def ended(self, file, status):
        try:
            failed(status)
        except OSError as error:
            # What the kernel could not write afterwards is the next fsync's to tell.
            self.ledger.unflushed.add(file.number)
            error.add_note(f"{sorted(file.names)}{file.told()}")
            raise

    def is_clean(self, path):
        done = subprocess.run([self.forebay, "where", "--json", path], capture_output=True, text=True, timeout=120)
        return done.returncode == 0 and json.loads(done.stdout)[0]["state"] == "clean"

    def wait_for(self, child):
        failed(os.waitpid(child, 0)[1])

    def hold(self):
        """Maps a file, new or not, and closes it; the stores come later."""
        if len(self.held) >= HELD_MAX:
            return self.let_go()
        make = self.random.random() < 0.5
        if make:
            name = self.name()
            if self.ledger.at(name) or len(self.ledger.living()) >= self.files_max:
                return
            file, blocks = self.ledger.new_file([name]), self.random.randrange(1, 64)
            ats = range(blocks)
        else:
            file = self.some()
            if not file:
                return
            name, blocks = self.random.choice(sorted(file.names)), len(file.now)
            ats = sorted(self.random.sample(range(blocks), self.random.randrange(1, min(blocks, 8) + 1)))
        file.unsure = True
        file.note(f"mapped, closed, to store into blocks {ats[0]}..={ats[-1]}; new: {make}")
        held = Held(file, name, ats, self.path(name), make, blocks)
        if not held.is_there:
            failed(held.store(0, False))
            raise OSError("the program with the mapping has none")
        self.held.append(held)

    def let_go(self):
        held = self.held.pop(self.random.randrange(len(self.held)))
        version = self.ledger.version()
        for at in held.ats:
            held.file.write(at, version)
        held.file.note(f"version {version} stored, unmapped")
        flush = self.random.random() < 0.3
        self.ended(held.file, held.store(version, flush))
        self.stored(held.file, self.path(held.name), flush)
        self.ledger.fired["mapping"] += 1

    def let_all_go(self):
        """At the end; whatever has happened to the mount meanwhile."""
        error = None
        while self.held:
            try:
                self.let_go()
            except OSError as found:
                error = error or found
        return error
