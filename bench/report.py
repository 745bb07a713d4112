"""Medians, ratios and tables."""

import statistics

MIB, GIB = 1 << 20, 1 << 30


class Series:
    """What was measured of one quantity on several systems, repetition by repetition; higher is better."""

    def __init__(self, title, unit, scale=1.0, targets=None):
        self.title, self.unit, self.scale = title, unit, scale
        self.targets = targets or {}  # (system, reference): least ratio
        self.values = {}

    def add(self, system, value):
        self.values.setdefault(system, []).append(value)

    def median(self, system):
        return statistics.median(self.values[system])

    def ratio(self, system, reference):
        """Of the medians, with the least and the greatest within one repetition."""
        pairs = [mine / other for mine, other in zip(self.values[system], self.values[reference])]
        return {"ratio": self.median(system) / self.median(reference), "min": min(pairs), "max": max(pairs)}

    def ratios(self):
        """Of every system to each one that comes before it; the references come first."""
        systems = list(self.values)
        return {f"{system}/{reference}": self.ratio(system, reference)
                for place, system in enumerate(systems) for reference in systems[:place]}

    def verdicts(self):
        for (system, reference), least in self.targets.items():
            if system in self.values and reference in self.values:
                ratio = self.ratio(system, reference)["ratio"]
                yield verdict(f"{self.title}: {system}/{reference}", f"{ratio:.2f}", f">= {least}", ratio >= least)

    def facts(self):
        return {"title": self.title, "unit": self.unit,
                "values": {name: [value * self.scale for value in values] for name, values in self.values.items()},
                "medians": {name: self.median(name) * self.scale for name in self.values},
                "ratios": self.ratios()}

    def row(self):
        medians = [f"{name} {self.median(name) * self.scale:,.2f}" for name in self.values]
        ratios = [f"{name} {each['ratio']:.2f} ({each['min']:.2f}-{each['max']:.2f})"
                  for name, each in self.ratios().items()]
        return [self.title, self.unit, "\n".join(medians), "\n".join(ratios)]


def verdict(what, measured, target, met):
    return {"what": what, "measured": measured, "target": target, "met": met}


def table(head, rows):
    """A plain-text table; a cell may have several lines."""
    cells = [[str(cell).split("\n") for cell in row] for row in [head, *rows]]
    widths = [max(len(line) for row in cells for line in row[place]) for place in range(len(head))]
    rule = "-+-".join("-" * width for width in widths)
    lines = []
    for row in cells:
        for index in range(max(len(cell) for cell in row)):
            parts = [cell[index] if index < len(cell) else "" for cell in row]
            lines.append(" | ".join(part.ljust(width) for part, width in zip(parts, widths)).rstrip())
        lines.append(rule)
    return "\n".join(lines)


def print_report(results):
    print()
    if results["series"]:
        print(table(["what", "unit", "median", "ratio of medians (min-max)"],
                    [series.row() for series in results["series"]]))
    if results["memory"]:
        print()
        print(table(["memory", "files", "resident", "own", "mapped files", "shared"],
                    [[f"{each['system']}, {each['state']}", f"{each['files']:,}",
                      *(f"{each[name]:,} KiB" for name in ("rss", "anonymous", "file", "shared"))]
                     for each in results["memory"]]))
    if results["verdicts"]:
        print()
        print(table(["goal", "measured", "target", "met"],
                    [[each["what"], each["measured"], each["target"], "yes" if each["met"] else "NO"]
                     for each in results["verdicts"]]))
