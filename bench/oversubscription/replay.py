#!/usr/bin/env python3
"""Replays a live experiment in the twin: every cell and every hit ratio of results.json, with the same parameters.

Writes a file for `forebay simulate --replay` for each cell, runs it, and prints the table of docs/fidelity.md. With --out the files, the rows
job by job and the figures stay.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from experiment import CONGESTION, mtbf_s, shares

ROOT = Path(__file__).resolve().parent.parent.parent
# A checkpoint that waits for long must have ended, and the second one of its application must not have begun.
INTERVAL_PERIODS, DURATION_PERIODS = 6, 11
# The live experiment looks after the first of three periods; the simulation does so for longer, which only steadies the mean.
WARM_UP_PERIODS, MEASURED_PERIODS, SEEDS = 2, 32, 5
AGREES = 0.10


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path, help="results.json of main.py")
    parser.add_argument("--forebay", type=Path, default=ROOT / "target/release/forebay")
    parser.add_argument("--out", type=Path, help="keep everything here")
    return parser.parse_args()


def burst_buffer(facts, options):
    """`idle`: the pause after which the servers demote."""
    idle = options.get("demotion", {}).get("idle_after", "500ms")
    rates = {name: facts[f"{name}_bytes_per_s"] for name in ("bw_max", "bw_min", "br_max", "br_min")}
    count = facts.get("nodes", 1)
    return {"capacity": facts["capacity_bytes"] // count, **{name: round(rate / count) for name, rate in rates.items()}, "idle": idle}


def several(facts):
    """Tables of a scenario of several nodes: [bb] is of one of them then."""
    count = facts.get("nodes", 1)
    return {} if count == 1 else {"nodes": {"count": count, "local": True}, "pfs": {"bandwidth": round(facts["br_max_bytes_per_s"])}}


def parameters(cell, options):
    """A scenario in which every application writes one checkpoint when the live one did: one interval after its start."""
    period_s = cell["period_s"]
    arrive_s = {job["application"]: job["arrive_s"] for job in cell["jobs"]}
    applications = [
        {"name": a["name"], "checkpoint": a["bytes"], "mtbf": a["mtbf_s"], "interval": INTERVAL_PERIODS * period_s,
         "start": max(0.0, arrive_s[a["application"]])}
        for a in cell["applications"]
    ]
    return {
        "name": name_of(cell), "duration": DURATION_PERIODS * period_s, "policy": cell["policy"], "placement": cell["placement"],
        "bb": burst_buffer(cell, options), **several(cell), "plan": {"period": period_s, "dwpp": cell["dwpp_predicted_bytes"]},
        "arrivals": {"pattern": "given"}, "failures": {"mtbf_known": True}, "application": applications,
    }


def name_of(cell):
    return f"{cell['dwpp']}/{cell['congestion']}/{cell['policy']}"


def replay(args, cell, options, work):
    """Rows job by job, as `forebay simulate --replay` compares them."""
    stem = name_of(cell).replace("/", "-")
    path = work / f"{stem}.json"
    path.write_text(json.dumps({"parameters": parameters(cell, options), "jobs": cell["jobs"]}, indent=1))
    command = [args.forebay, "simulate", "--replay", path, "--json", *(["--out", work / stem] if args.out else [])]
    return run(command)["rows"]


def run(command):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"replay: {done.stderr.strip()}")
    return json.loads(done.stdout)


def restart_scenario(facts, options, found, seed):
    """As the live one: the same applications with the same MTBFs, known, and as many reads in a period, which `lru` sees."""
    period_s, size = facts["period_s"], facts["checkpoint_bytes"]
    count = round(found["dwpp"] * facts["capacity_bytes"] / size)
    lines = [f"duration = {(WARM_UP_PERIODS + MEASURED_PERIODS) * period_s}", f"placement = {json.dumps(found['placement'])}", "[bb]"]
    lines += [f"{key} = {json.dumps(value)}" for key, value in burst_buffer(facts, options).items()]
    for name, table in several(facts).items():
        lines += [f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in table.items())]
    lines += ["[plan]", f"period = {period_s}", f"dwpp = {count * size}", "[arrivals]", "pattern = \"given\"", "[failures]",
              "mode = \"draws\"", f"restarts_per_period = {found['reads_per_period']}", f"from = {WARM_UP_PERIODS * period_s}", "mtbf_known = true"]
    gap_s = CONGESTION["low"] * period_s / count
    for job, share in enumerate(shares(count, seed)):
        lines += ["[[application]]", f"checkpoint = {size}", f"interval = {period_s}", "versions = 2", f"start = {job * gap_s}",
                  f"mtbf = \"{mtbf_s(share, found['mtbf_max_min']):.0f}s\""]
    return "\n".join(lines) + "\n"


def hit_ratio(args, facts, options, found, work):
    path = work / f"restarts-{found['dwpp']}-{found['placement']}-{found['mtbf_max_min']}.toml"
    path.write_text(restart_scenario(facts, options, found, facts["seed"]))
    rows = [run([args.forebay, "simulate", path, "--json", "--seed", seed])["rows"][0] for seed in range(1, SEEDS + 1)]
    return sum(row["hit_ratio"] for row in rows) / len(rows)


# Of latency the mean; of throughput the mean, in which the few fastest jobs count most, and the job in the middle.
FIGURES = [("latency_s", 1, statistics.fmean), ("throughput_bytes_per_s", 1e6, statistics.fmean), ("throughput_bytes_per_s", 1e6, statistics.median)]


def compared(live, twin):
    difference = (twin - live) / live if live else 0.0
    return difference, f"{difference:+.1%}" + ("" if abs(difference) <= AGREES else " **differs**")


def main():
    args = arguments()
    args.forebay = args.forebay.resolve()
    if not args.forebay.is_file():
        sys.exit(f"replay: {args.forebay} is not there: `make build` makes it, --forebay names another")
    try:
        results = json.loads(args.results.read_text())
    except (OSError, ValueError) as error:
        sys.exit(f"replay: {args.results}: {error}")
    options = results["parameters"].get("options", {})
    met, count, lines = 0, 0, []
    with tempfile.TemporaryDirectory(prefix="forebay-replay-") as temporary:
        work = args.out or Path(temporary)
        work.mkdir(parents=True, exist_ok=True)
        if results.get("cells"):
            lines += ["| cell | jobs | latency, s: live | twin | | throughput, MB/s, mean: live | twin | | median: live | twin | |", "| --- " * 11 + "|"]
        for cell in results.get("cells", []):
            rows = replay(args, cell, options, work)
            line = f"| {name_of(cell)} | {len(rows)} |"
            for key, unit, middle in FIGURES:
                live, twin = (middle(row[f"{side}_{key}"] for row in rows) / unit for side in ("live", "twin"))
                difference, words = compared(live, twin)
                met, count = met + (abs(difference) <= AGREES), count + 1
                line += f" {live:.3f} | {twin:.3f} | {words} |"
            lines.append(line)
        if results.get("restarts"):
            lines += ["", "| DWPP/S | placement | MTBF up to, min | hit ratio: live | twin | |", "| --- " * 6 + "|"]
        facts = results["parameters"].get("restarts", results["parameters"])
        for found in results.get("restarts", []):
            live, twin = found["hit_ratio"], hit_ratio(args, {**facts, **found}, options, found, work)
            difference, words = compared(live, twin)
            met, count = met + (abs(difference) <= AGREES), count + 1
            lines.append(f"| {found['dwpp']} | {found['placement']} | {found['mtbf_max_min']} | {live:.3f} | {twin:.3f} | {words} |")
        lines += ["", f"{met} of {count} figures agree within {AGREES:.0%}."]
        print("\n".join(lines))
        if args.out:
            (args.out / "fidelity.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
