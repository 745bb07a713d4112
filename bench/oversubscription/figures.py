"""Tables in Markdown and figures in SVG, from the report of main.py."""

COLOURS = {"bbos": "#1b7f5c", "maxbw": "#c44e2b", "maxeff": "#3465a4", "dedicated": "#8a6d3b"}
WIDTH, HEIGHT, MARGIN = 640, 320, 50


def tables(report):
    lines = ["| DWPP | congestion | policy | wait s | stall s | execution s | MB/s per job | writes that waited | demoted MiB |",
             "| --- | --- | --- | --- | --- | --- | --- | --- | --- |"]
    for cell in report["cells"]:
        jobs = cell["jobs"]
        total = {key: sum(j[key] for j in jobs) for key in ("wait_s", "stall_s", "execution_s")}
        rates = [j["bytes"] / max(j["wait_s"] + j["stall_s"] + j["execution_s"], 1e-6) for j in jobs]
        lines.append(f"| {cell['dwpp']} S | {cell['congestion']} | {cell['policy']} | {total['wait_s']:.1f} | "
                     f"{total['stall_s']:.1f} | {total['execution_s']:.1f} | {sum(rates) / len(rates) / 1e6:.1f} | "
                     f"{cell['waited_writes']} | {cell['demoted_bytes'] >> 20} |")
    if "direct" in report:
        with_, without = (report["direct"][name]["demoted_bytes"] for name in ("with", "without"))
        lines += ["", f"Demoted with direct checkpoints {with_ >> 20} MiB ({report['direct']['with']['direct_files']} files went "
                      f"straight to the PFS), without {without >> 20} MiB."]
    if "hit_ratios" in report:
        lines += ["", "| placement | restarts that found their data |", "| --- | --- |"]
        lines += [f"| {name} | {ratio:.1%} |" for name, ratio in report["hit_ratios"].items()]
    return "\n".join(lines) + "\n"


def draw(report, out):
    """One figure per DWPP and congestion: time of each job (wait, stall and execution together) in the order of arrival."""
    groups = {}
    for cell in report["cells"]:
        groups.setdefault((cell["dwpp"], cell["congestion"]), []).append(cell)
    for (dwpp, congestion), cells in groups.items():
        series = {c["policy"]: [j["wait_s"] + j["stall_s"] + j["execution_s"] for j in c["jobs"]] for c in cells}
        (out / f"latency-{dwpp}-{congestion}.svg").write_text(chart(series, f"DWPP {dwpp} S, {congestion}: seconds per checkpoint"))


def chart(series, title):
    top = max((max(values) for values in series.values() if values), default=1.0) or 1.0
    count = max(len(values) for values in series.values())
    x = lambda i: MARGIN + i * (WIDTH - 2 * MARGIN) / max(count - 1, 1)
    y = lambda v: HEIGHT - MARGIN - v / top * (HEIGHT - 2 * MARGIN)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" font-size="12">',
             f'<text x="{MARGIN}" y="20">{title}</text>',
             f'<path d="M{MARGIN} {MARGIN} V{HEIGHT - MARGIN} H{WIDTH - MARGIN}" fill="none" stroke="#444"/>',
             f'<text x="5" y="{MARGIN}">{top:.1f}</text><text x="5" y="{HEIGHT - MARGIN}">0</text>',
             f'<text x="{WIDTH // 2}" y="{HEIGHT - 15}">job in order of arrival</text>']
    for at, (name, values) in enumerate(series.items()):
        points = " ".join(f"{x(i):.1f},{y(v):.1f}" for i, v in enumerate(values))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{COLOURS[name]}" stroke-width="1.5"/>')
        parts.append(f'<text x="{WIDTH - MARGIN - 60}" y="{MARGIN + 15 * at}" fill="{COLOURS[name]}">{name}</text>')
    return "\n".join(parts + ["</svg>"]) + "\n"
