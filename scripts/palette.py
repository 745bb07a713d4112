"""PNG pictures with at most 256 colours, so that a picture of a page is a small file. Standard library only."""

import collections
import struct
import zlib

SIGNATURE = b"\x89PNG\r\n\x1a\n"
CHANNELS = {2: 3, 6: 4}  # colour type: bytes of a pixel


def _chunks(data):
    at = len(SIGNATURE)
    while at < len(data):
        size, name = struct.unpack(">I4s", data[at:at + 8])
        yield name, data[at + 8:at + 8 + size]
        at += size + 12


def _nearest(left, above, corner):
    guess = left + above - corner
    return min((abs(guess - left), 0, left), (abs(guess - above), 1, above), (abs(guess - corner), 2, corner))[2]


def _unfilter(kind, line, before, step):
    """Undoes what a line was filtered with; see the PNG specification, 9.2."""
    for at, value in enumerate(line):
        left = line[at - step] if at >= step else 0
        corner = before[at - step] if at >= step else 0
        guess = (0, left, before[at], (left + before[at]) // 2, _nearest(left, before[at], corner) if kind == 4 else 0)[kind]
        line[at] = (value + guess) & 0xFF
    return line


def read(data):
    """Width, height and the pixels (red, green, blue), line by line, of a picture as Chromium writes it."""
    if not data.startswith(SIGNATURE):
        raise ValueError("no PNG")
    parts = list(_chunks(data))
    width, height, depth, kind, _, _, interlaced = struct.unpack(">IIBBBBB", parts[0][1])
    if depth != 8 or interlaced or kind not in CHANNELS:
        raise ValueError(f"a PNG of {depth} bits, type {kind}")
    step = CHANNELS[kind]
    raw = zlib.decompress(b"".join(content for name, content in parts if name == b"IDAT"))
    before, pixels = bytearray(width * step), []
    for row in range(height):
        begin = row * (width * step + 1)
        line = bytearray(raw[begin + 1:begin + 1 + width * step])
        before = _unfilter(raw[begin], line, before, step) if raw[begin] else line
        pixels.append([bytes(before[at:at + 3]) for at in range(0, len(before), step)])
    return width, height, pixels


def write(width, height, pixels):
    """The same picture in its 256 most frequent colours; others become the one that is nearest."""
    counted = collections.Counter(pixel for line in pixels for pixel in line)
    colours = [colour for colour, _ in counted.most_common(256)]
    index = {colour: at for at, colour in enumerate(colours)}
    for colour in counted:
        if colour not in index:
            far = [sum((a - b) ** 2 for a, b in zip(colour, other, strict=True)) for other in colours]
            index[colour] = far.index(min(far))
    lines = b"".join(b"\0" + bytes(index[pixel] for pixel in line) for line in pixels)

    def chunk(name, content):
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    return (SIGNATURE + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)) + chunk(b"PLTE", b"".join(colours))
            + chunk(b"IDAT", zlib.compress(lines, 9)) + chunk(b"IEND", b""))


def shrink(data):
    return write(*read(data))
