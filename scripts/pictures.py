#!/usr/bin/env python3
"""The pictures of the README, from one real run: docs/pictures/page.png, top.svg and report.svg.

    sudo python3 scripts/pictures.py [--forebay BIN] [--out DIR] [--seconds N]

Two applications write checkpoints through a burst buffer to a slow file system, and one of them is restarted. Meanwhile Chromium
takes the picture of the page, and `forebay top` runs in a terminal of this program. `forebay report` is made at the end.
"""

import argparse
import contextlib
import fcntl
import html
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from pathlib import Path

import palette
from machine import KIB, MIB, ROOT, Failure, Forebay, clean_exit_on_signals, free_port, run, workspace
from slowpfs import slow_pfs

MOST_BYTES = 150 * KIB
KEPT = 6  # versions that an application keeps
COLUMNS, ROWS = 124, 32
# Where everything is in the pictures: a folder that each machine has, with nothing in it for this program and its children only.
PLACE = Path("/srv")
PFS_BYTES_PER_S = 40 * MIB
PAGE_SIZE = (1200, 1080)
# name: (files of a version, MiB of a file, seconds between versions)
APPLICATIONS = {"ocean": (4, 40, 10.0), "plasma": (8, 4, 4.0)}
LARGEST_BURST = max(files * size_mib for files, size_mib, _ in APPLICATIONS.values()) * MIB
SETTINGS = """dram = "256MiB"
ssd = ["/srv/flash:512MiB"]
[demotion]
idle_after = "200ms"
[engine]
period = "40s"
verify_window = "1s"    # the restart is soon after the write
[http]
listen = "127.0.0.1:{port}"
names = true
"""


def write_versions(folder, files, size_mib, pause_s):
    """What an application does: it computes (sleeps), and writes all it knows, each version in a folder of its own."""
    block = os.urandom(MIB)
    version = max((int(path.name[5:]) for path in folder.glob("ckpt-*")), default=0)
    while True:
        version += 10
        here = folder / f"ckpt-{version:06}"
        here.mkdir(parents=True)
        for rank in range(files):
            with open(here / f"rank-{rank}", "wb") as file:
                for _ in range(size_mib):
                    file.write(block)
        for old in sorted(folder.glob("ckpt-*"))[:-KEPT]:
            shutil.rmtree(old)
        time.sleep(pause_s)


def read_newest(folder):
    """What a restart does."""
    versions = sorted(folder.glob("ckpt-*"))
    # It may have been killed within the last.
    for file in versions[-2].iterdir():
        file.read_bytes()


@contextlib.contextmanager
def application(mount, name, restart=False):
    """A process of its own, as a job has."""
    words = [sys.executable, Path(__file__).resolve(), "--application", name, "--out", mount / name]
    process = subprocess.Popen([str(word) for word in words + (["--restart"] if restart else [])])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def take_page(url, path):
    """The page as Chromium draws it after some seconds of its own clock."""
    with tempfile.TemporaryDirectory(prefix="forebay-browser-") as profile:
        taken = Path(profile) / "page.png"
        run(["chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", f"--user-data-dir={profile}",
             f"--window-size={PAGE_SIZE[0]},{PAGE_SIZE[1]}", "--hide-scrollbars", "--virtual-time-budget=9000", f"--screenshot={taken}", url],
            timeout_s=60)
        if not taken.exists():
            raise Failure("chromium has drawn nothing")
        path.write_bytes(palette.shrink(taken.read_bytes()))


def terminal_output(argv, until_s):
    """What a program writes to a terminal of COLUMNS by ROWS; it is ended as a user ends it, by `q`."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ["TERM"] = "xterm-256color"
        fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        os.execv(argv[0], argv)
    # Before the program looks: it asks for the size with each page.
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    output, quit_at, end = b"", time.monotonic() + until_s, time.monotonic() + until_s + 10
    try:
        while time.monotonic() < end:
            if quit_at and time.monotonic() > quit_at:
                os.write(terminal, b"q")
                quit_at = None
            if not select.select([terminal], [], [], 0.1)[0]:
                continue
            try:
                output += os.read(terminal, 1 << 16)
            except OSError:  # the program has closed it
                break
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(terminal)
    return output.decode("utf-8", "replace")


def last_screen(output):
    """The last whole page of what `top` wrote: it begins at the cursor's home. Other sequences only clear."""
    pages = output.split("\x1b[H")[1:]
    if not pages:
        raise Failure("top has drawn no page")
    page = pages[-1].split("\x1b[?25h")[0]
    lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", page).replace("\r", "").split("\n")
    return [line.rstrip() for line in lines[:ROWS]]


def draw_terminal(lines):
    """Text as SVG: one line of the terminal is one line of text, in a window."""
    step, width, left, top = 18, 8.43, 16, 44
    while lines and not lines[-1]:
        lines.pop()
    wide, high = left * 2 + COLUMNS * width, top + step * len(lines) + 4
    spans = "\n".join(f'<text x="{left}" y="{top + step * at}" xml:space="preserve">{html.escape(line)}</text>'
                      for at, line in enumerate(lines) if line)
    dots = "".join(f'<circle cx="{18 + 18 * at}" cy="16" r="5" fill="{colour}"/>' for at, colour in enumerate(("#d9695f", "#d9b45f", "#74b566")))
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide:.0f} {high}" width="{wide:.0f}" height="{high}" role="img" '
            f'aria-label="forebay top">\n<style>text {{ font: 14px ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; fill: #e8eaec; }}'
            f'</style>\n<rect width="100%" height="100%" rx="8" fill="#14171a"/>\n{dots}\n{spans}\n</svg>\n')


def figure_of(report, title):
    """A figure of the report as a file of its own, with the report's style."""
    found = re.search(rf'<svg viewBox="([^"]+)" role="img" aria-label="{re.escape(title)}">(.*?)</svg>', report, re.DOTALL)
    style = re.search(r"<style>(.*?)</style>", report, re.DOTALL)
    if not found or not style:
        raise Failure(f"the report has no figure: {title}")
    # Of the style, colours and what is said of figures.
    rules = [line for line in style[1].splitlines() if not re.match(r"[a-z.*#][^{]*\{", line) or line.startswith("svg ")]
    rules = "\n".join(rules).replace("svg ", "")
    low, _, wide, high = (float(part) for part in found[1].split())
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{low - 12:.0f} -34 {wide + 32:.0f} {high + 46:.0f}" role="img" '
            f'aria-label="{title}">\n<style>{rules}\ntext {{ font-family: system-ui, sans-serif; }}\n.name {{ font-weight: 650; font-size: 15px; }}\n'
            f'.ground {{ fill: var(--card); }}\n</style>\n<rect class="ground" x="{low - 12:.0f}" y="-34" width="{wide + 32:.0f}" '
            f'height="{high + 46:.0f}" rx="8"/>\n<text class="name" x="4" y="-12">{title}</text>\n'
            f'{found[2]}\n</svg>\n')


def await_undrained(buffer, patience_s=30.0):
    """The next burst: then the pictures show something on its way."""
    end = time.monotonic() + patience_s
    while buffer.status()["dirty_bytes"] < LARGEST_BURST / 2:
        if time.monotonic() > end:
            raise Failure("no application has written")
        time.sleep(0.1)


def keep(out, name, content=None):
    path = out / name
    if content is not None:
        path.write_text(content, encoding="utf-8")
    size = path.stat().st_size
    if size > MOST_BYTES:
        raise Failure(f"{path}: {size // KIB} KiB, more than {MOST_BYTES // KIB} KiB")
    print(f"{path}: {size // KIB} KiB", flush=True)


def bind(there, here):
    here.mkdir()
    run(["mount", "--bind", there, here])


def one_run(args, base, pfs):
    run(["mount", "-t", "tmpfs", "-o", "mode=755", "forebay-pictures", PLACE])
    (base / "flash").mkdir()
    bind(base / "flash", PLACE / "flash")
    bind(pfs, PLACE / "scratch")
    port, config = free_port(), base / "forebay.toml"
    config.write_text(SETTINGS.format(port=port), encoding="utf-8")
    buffer = Forebay(args.forebay, PLACE / "scratch", PLACE / "bb", PLACE / "state", ["--config", config])
    with buffer, application(buffer.mount, "ocean"):
        with application(buffer.mount, "plasma"):
            time.sleep(args.seconds / 2)
        time.sleep(args.seconds / 30)
        # It was killed, and waits for its turn in the batch system. Its next run begins with the newest version that is whole.
        with application(buffer.mount, "plasma", restart=True):
            time.sleep(args.seconds * 0.4)
            await_undrained(buffer)
            take_page(f"http://127.0.0.1:{port}/", args.out / "page.png")
            keep(args.out, "page.png")
            await_undrained(buffer)
            shown = terminal_output([str(args.forebay), "top", "--state", str(buffer.state)], 1.5)
            keep(args.out, "top.svg", draw_terminal(last_screen(shown)))
        report = base / "report.html"
        buffer.command("stage-out", "--wait", buffer.mount)
        buffer.command("report", "--state", buffer.state, "--out", report)
        keep(args.out, "report.svg", figure_of(report.read_text(encoding="utf-8"), "Bytes written over time"))


def main():
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--forebay", type=Path, default=ROOT / "target/release/forebay")
    words.add_argument("--out", type=Path, default=ROOT / "docs/pictures")
    words.add_argument("--seconds", type=float, default=300.0, help="how long the applications run")
    words.add_argument("--application", choices=APPLICATIONS, help=argparse.SUPPRESS)
    words.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)  # in a mount namespace of its own
    words.add_argument("--restart", action="store_true", help=argparse.SUPPRESS)
    args = words.parse_args()
    if args.application:
        files, size_mib, pause_s = APPLICATIONS[args.application]
        if args.restart:
            read_newest(args.out)
        write_versions(args.out, files, size_mib, pause_s)
    if not args.alone:
        os.execvp("unshare", ["unshare", "--mount", "--propagation", "private", sys.executable, *sys.argv, "--alone"])
    args.forebay = args.forebay.resolve()
    args.out.mkdir(parents=True, exist_ok=True)
    try:
        with clean_exit_on_signals(), workspace("forebay-pictures-") as base, \
                slow_pfs(base, PFS_BYTES_PER_S, 2 * PFS_BYTES_PER_S) as (pfs, what):
            print(f"PFS: {what}", flush=True)
            one_run(args, base, pfs)
    except Failure as failure:
        print(f"pictures: {failure}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
