"""Tables in Markdown and figures in SVG, from the report of main.py."""

COLOURS = {"bbos": "#1b7f5c", "maxbw": "#c44e2b", "maxeff": "#3465a4", "dedicated": "#8a6d3b", "fifo": "#c44e2b", "lru": "#3465a4"}
WIDTH, HEIGHT, MARGIN = 640, 320, 50
# A job has stalled if it took so much longer than its bytes take at Bwmin, in parts of that.
STALLED = 1.0
# A look of the bench that comes later than this was kept waiting by the machine, seconds.
LATE_S = 0.1


def mean(values):
    values = list(values)
    return sum(values) / max(len(values), 1)


def held(found):
    """In words; where the bench itself could not run in time, the machine stood still, and a rate that is not reached then says
    nothing."""
    in_time = [w["error"] for w in found if w["late_s"] <= LATE_S]
    late = [w["error"] for w in found if w["late_s"] > LATE_S]
    within = lambda errors: sum(abs(e) <= 0.05 for e in errors)
    span = lambda errors: f"from {min(errors, default=0):+.1%} to {max(errors, default=0):+.1%}"
    text = f"{within(in_time)} of {len(in_time)} windows of 10 s within 5 % of the limit ({span(in_time)})"
    if late:
        text += (f"; of {len(late)} others, in which the machine gave the bench no time for up to {max(w['late_s'] for w in found):.1f} s, "
                 f"{within(late)} ({span(late)})")
    return text


def summary(cell):
    """Means over the jobs of a cell, in s and bytes/s, and how many stalled."""
    jobs, nominal_s = cell["jobs"], cell["checkpoint_bytes"] / cell["bw_min_bytes_per_s"] * cell.get("nodes", 1)
    return {
        **{key: mean(j[key] for j in jobs) for key in ("wait_s", "stall_s", "execution_s", "latency_s")},
        "served_bytes_per_s": mean(j["bytes"] / (j["stall_s"] + j["execution_s"]) for j in jobs),
        "longest_s": max(j["latency_s"] for j in jobs),
        "stalled": sum(j["stall_s"] > STALLED * nominal_s for j in jobs),
        "first_stalled": next((n + 1 for n, j in enumerate(jobs) if j["stall_s"] > STALLED * nominal_s), None),
    }


def tables(report):
    lines = []
    if "cells" in report:
        lines += ["Means over the jobs of a cell. MB/s while it had its turn: bytes over stall and execution. Stalled: jobs that took more than "
                  "twice what their bytes take at Bwmin.", "",
                  "| DWPP | congestion | policy | wait s | stall s | execution s | latency s | longest s | MB/s | stalled | first | "
                  "waited for space, s | demoted MiB |", "| --- " * 13 + "|"]
    for cell in report.get("cells", []):
        s = summary(cell)
        lines.append(f"| {cell['dwpp']} S | {cell['congestion']} | {cell['policy']} | {s['wait_s']:.2f} | {s['stall_s']:.2f} | "
                     f"{s['execution_s']:.2f} | {s['latency_s']:.2f} | {s['longest_s']:.1f} | {s['served_bytes_per_s'] / 1e6:.1f} | "
                     f"{s['stalled']} of {len(cell['jobs'])} | {s['first_stalled'] or '-'} | {cell['space_wait_s']:.1f} | "
                     f"{cell['demoted_bytes'] >> 20} |")
    if "restarts" in report:
        lines += ["", "Restarts that find their newest checkpoint in the burst buffer.", "",
                  "| DWPP | MTBF up to | bbos | fifo | lru |", "| --- | --- | --- | --- | --- |"]
        ratio = {(r["dwpp"], r["mtbf_max_min"], r["placement"]): r["hit_ratio"] for r in report["restarts"]}
        for dwpp, most in sorted({key[:2] for key in ratio}):
            found = [ratio.get((dwpp, most, name)) for name in ("bbos", "fifo", "lru")]
            lines.append(f"| {dwpp} S | {most} min | " + " | ".join("-" if f is None else f"{f:.3f}" for f in found) + " |")
    for one in report.get("direct", []):
        lines += ["", f"Direct checkpoints {'on' if one['direct'] else 'off'}, {one['dwpp']} S, {one['periods']} periods: "
                      f"{one['demoted_from_buffer_bytes'] >> 20} MiB demoted, {one['direct_files']} checkpoints straight to the PFS."]
    for kind, found in report.get("held_rates", [{}])[0].items():
        lines += ["", f"Rates held, {kind}: {held(found)}."]
    for one in report.get("bookkeeping", []):
        lines += ["", f"Learning and planning with {one['applications']} applications that write all the time: {one['core_share']:.2%} of a core."]
    return "\n".join(lines) + "\n"


def draw(report, out):
    """For each DWPP and congestion the time of each job in the order of arrival; throughput by cell; hit ratios by DWPP."""
    groups = {}
    for cell in report.get("cells", []):
        groups.setdefault((cell["dwpp"], cell["congestion"]), []).append(cell)
    for (dwpp, congestion), cells in groups.items():
        series = {c["policy"]: [(n, j["latency_s"]) for n, j in enumerate(c["jobs"])] for c in cells}
        (out / f"latency-{dwpp}-{congestion}.svg").write_text(
            chart(series, f"DWPP {dwpp} S, {congestion}: seconds per checkpoint", "job in order of arrival"))
    if groups:
        bars = {f"{d} {c}": {cell["policy"]: summary(cell)["served_bytes_per_s"] / 1e6 for cell in cells}
                for (d, c), cells in sorted(groups.items())}
        (out / "throughput.svg").write_text(bar_chart(bars, "MB/s of a checkpoint in its turn"))
        bars = {f"{d} {c}": {cell["policy"]: summary(cell)["latency_s"] for cell in cells} for (d, c), cells in sorted(groups.items())}
        (out / "latency.svg").write_text(bar_chart(bars, "mean seconds per checkpoint: wait, stall and execution"))
    for most in sorted({r["mtbf_max_min"] for r in report.get("restarts", [])}):
        series = {}
        for r in sorted(report["restarts"], key=lambda r: r["dwpp"]):
            if r["mtbf_max_min"] == most:
                series.setdefault(r["placement"], []).append((r["dwpp"], r["hit_ratio"]))
        (out / f"hits-{most}.svg").write_text(chart(series, f"restarts from the burst buffer, MTBF up to {most} min", "DWPP/S"))


def frame(title, top, below):
    return [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" font-size="12">',
            f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>', f'<text x="{MARGIN}" y="20">{title}</text>',
            f'<path d="M{MARGIN} {MARGIN} V{HEIGHT - MARGIN} H{WIDTH - MARGIN}" fill="none" stroke="#444"/>',
            f'<text x="5" y="{MARGIN}">{top:.1f}</text><text x="5" y="{HEIGHT - MARGIN}">0</text>',
            f'<text x="{WIDTH // 2}" y="{HEIGHT - 12}">{below}</text>']


def legend(names):
    return [f'<text x="{WIDTH - MARGIN - 60}" y="{MARGIN + 15 * at}" fill="{COLOURS[name]}">{name}</text>'
            for at, name in enumerate(names)]


def chart(series, title, below):
    points = [point for line in series.values() for point in line]
    top = max((y for _, y in points), default=1.0) or 1.0
    left, right = min(x for x, _ in points), max(x for x, _ in points)
    x = lambda v: MARGIN + (v - left) / ((right - left) or 1) * (WIDTH - 2 * MARGIN)
    y = lambda v: HEIGHT - MARGIN - v / top * (HEIGHT - 2 * MARGIN)
    parts = frame(title, top, below)
    for name, line in series.items():
        path = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in line)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{COLOURS[name]}" stroke-width="1.5"/>')
    return "\n".join(parts + legend(series) + ["</svg>"]) + "\n"


def bar_chart(groups, title):
    names = list(dict.fromkeys(name for bars in groups.values() for name in bars))
    top = max(value for bars in groups.values() for value in bars.values()) or 1.0
    room = (WIDTH - 2 * MARGIN) / len(groups)
    width = room * 0.8 / len(names)
    parts = frame(title, top, "")
    for at, (group, bars) in enumerate(groups.items()):
        begin = MARGIN + at * room + room * 0.1
        for nth, name in enumerate(names):
            height = bars.get(name, 0.0) / top * (HEIGHT - 2 * MARGIN)
            parts.append(f'<rect x="{begin + nth * width:.1f}" y="{HEIGHT - MARGIN - height:.1f}" width="{width:.1f}" '
                         f'height="{height:.1f}" fill="{COLOURS[name]}"/>')
        for line, word in enumerate(group.split()):
            parts.append(f'<text x="{begin:.1f}" y="{HEIGHT - MARGIN + 15 + 13 * line}" font-size="10">{word}</text>')
    return "\n".join(parts + legend(names) + ["</svg>"]) + "\n"
