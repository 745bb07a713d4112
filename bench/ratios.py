"""The ratios of a run, written down, and compared with those of an earlier one. No absolute figures: machines differ."""

import json

from report import table

# The keys that a file of ratios has; what was measured with other amounts is not compared.
AMOUNTS = ("procs", "bytes", "files", "drain_bytes", "drain_files")
# Of two runs of the same program on a quiet machine of two processors, ratios differ by less than that (README.md).
NOTICEABLE = 0.15


def of(results, args, facts):
    """Figure by figure, the ratio to the reference that its goal names, with the least and the greatest within one turn."""
    found = {}
    for series in results["series"]:
        for system, reference in series.targets:
            if system in series.values and reference in series.values:
                name = f"{series.title}: {system}/{reference}"
                found[name] = {key: round(value, 3) for key, value in series.ratio(system, reference).items()}
    return {"amounts": {name: getattr(args, name) for name in AMOUNTS}, "repeat": args.repeat,
            "load_average_before": round(facts["load_average"][0], 2), "cpus": facts["cpus"], "ratios": found}


def write(path, ratios):
    path.write_text(json.dumps(ratios, indent=1) + "\n", encoding="utf-8")


def read(path):
    return json.loads(path.read_text(encoding="utf-8"))


def compare(baseline, now):
    """Rows of figure, ratio then, ratio now, change; figures that only one of them has are named."""
    rows = []
    for name in dict.fromkeys([*baseline["ratios"], *now["ratios"]]):
        then, mine = baseline["ratios"].get(name), now["ratios"].get(name)
        if then is None or mine is None:
            rows.append([name, shown(then), shown(mine), "not in the baseline" if then is None else "not measured"])
            continue
        change = mine["ratio"] / then["ratio"] - 1
        word = "" if abs(change) < NOTICEABLE else (" better" if change > 0 else " WORSE")
        rows.append([name, shown(then), shown(mine), f"{change:+.0%}{word}"])
    return rows


def shown(ratio):
    return "-" if ratio is None else f"{ratio['ratio']:.2f} ({ratio['min']:.2f}-{ratio['max']:.2f})"


def worse(rows):
    """Figures that have become noticeably worse."""
    return [row[0] for row in rows if row[3].endswith("WORSE")]


def print_comparison(path, now):
    """Prints the table; the figures that have become worse."""
    baseline = read(path)
    rows = compare(baseline, now)
    print(f"\nRatios against {path.name} ({baseline['repeat']} turns, load {baseline['load_average_before']}); now {now['repeat']} turns, "
          f"load {now['load_average_before']}. A change of less than {NOTICEABLE:.0%} says nothing.")
    if baseline["amounts"] != now["amounts"]:
        print("Other amounts were measured than then: the figures may differ for that alone.")
    print(table(["figure", "baseline", "now", "change"], rows))
    return worse(rows)
