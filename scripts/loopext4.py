"""For what runs on file systems of its own: ext4 on a loop device, and lines of progress."""

import contextlib
import sys
import time

from machine import run, unmount_below

START = time.monotonic()


def say(text):
    """A progress line; results go to standard output."""
    print(f"[{time.monotonic() - START:6.1f} s] {text}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def loop_ext4(base, name, size_bytes):
    """A new file system of this size, mounted at a new directory, until the end of the block. The image is sparse."""
    image, point = base / f"{name}.img", base / name
    with open(image, "wb") as file:
        file.truncate(size_bytes)
    point.mkdir()
    run(["mkfs.ext4", "-q", "-F", "-m", "0", "-E", "nodiscard", image])
    run(["mount", "-t", "ext4", "-o", "loop", image, point])
    try:
        (point / "lost+found").rmdir()
        yield point
    finally:
        unmount_below(point)
        image.unlink()
