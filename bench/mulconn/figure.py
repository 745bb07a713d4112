"""Bandwidth over the number of connections, as SVG."""

import statistics

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 680, 380, 64, 190, 44, 48
LINES = [(("write", "auto", 8), "8 writers, auto", "#1b7f5c"), (("read", "auto", 8), "8 readers, auto", "#3465a4"),
         (("read", "auto", 1), "1 reader, auto", "#c44e2b"), (("read", "ttos", 1), "1 reader, ttos", "#8a6d3b")]


def draw(capped):
    """Medians in MB/s with the least and the greatest of a turn; what the sockets allow as a dashed line."""
    rate, found = capped.limit, {}
    for (phase, distribution, threads, connections), values in capped.rates.items():
        found.setdefault((phase, distribution, threads), {})[connections] = values
    across = sorted({key[3] for key in capped.rates})
    most = max(across)
    top = 1.05 * max([most * rate, *(value for values in capped.rates.values() for value in values)]) / 1e6
    x = lambda count: LEFT + (count / most) * (WIDTH - LEFT - RIGHT)
    y = lambda value: HEIGHT - BOTTOM - value / top * (HEIGHT - TOP - BOTTOM)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" font-size="12">',
             f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
             f'<text x="{LEFT}" y="22" font-size="14">Bandwidth of one mount, sockets of {8 * rate / 1e9:g} Gbit/s each, 1 MiB requests</text>',
             f'<path d="M{LEFT} {TOP} V{HEIGHT - BOTTOM} H{WIDTH - RIGHT}" fill="none" stroke="#444"/>',
             f'<text x="{(LEFT + WIDTH - RIGHT) // 2}" y="{HEIGHT - 12}" text-anchor="middle">connections</text>',
             f'<text x="8" y="{TOP - 8}">MB/s</text>']
    for count in across:
        parts.append(f'<text x="{x(count):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{count}</text>')
    for step in range(0, int(top) + 1, 250 if top > 600 else 50):
        parts.append(f'<path d="M{LEFT} {y(step):.1f} H{WIDTH - RIGHT}" stroke="#ddd"/>'
                     f'<text x="{LEFT - 6}" y="{y(step) + 4:.1f}" text-anchor="end">{step}</text>')
    parts.append(f'<path d="M{x(0):.1f} {y(0):.1f} L{x(most):.1f} {y(most * rate / 1e6):.1f}" stroke="#999" stroke-dasharray="5 4"/>')
    for nth, (key, name, colour) in enumerate(LINES):
        if key not in found:
            continue
        points = [(x(count), [y(value / 1e6) for value in (statistics.median(values), min(values), max(values))])
                  for count, values in sorted(found[key].items())]
        path = " ".join(f"{a:.1f},{middle:.1f}" for a, (middle, _, _) in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<path d="M{a:.1f} {low:.1f} V{high:.1f}" stroke="{colour}"/><circle cx="{a:.1f}" cy="{middle:.1f}" r="3" fill="{colour}"/>'
                  for a, (middle, low, high) in points]
        parts.append(f'<text x="{WIDTH - RIGHT + 14}" y="{TOP + 18 + 18 * nth}" fill="{colour}">{name}</text>')
    parts.append(f'<text x="{WIDTH - RIGHT + 14}" y="{TOP + 18 + 18 * len(LINES)}" fill="#777">what the sockets allow</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"
