"""Build the table of speeds: a line for each benchmark, group and unit, over all cases and machines."""

from __future__ import annotations

from typing import Any

from paired import figure, goal_text, meets_goal

HEADS = ("what", "command", "measured", "worst case", "goal", "met")


def speed_table(machines: list[dict[str, Any]]) -> str:
    """Return the table in Markdown, with a sentence above it. No row of any machine is left out.

    Args:
        machines: records of ``docs/speed/*.json``.
    """
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for record in machines:
        for run in record["runs"]:
            for entry in run["rows"]:
                member = {**entry, "run": run, "machine": record["machine"]["processor"]}
                groups.setdefault((run["bench"], entry["group"], entry["unit"]), []).append(member)
    names = ", ".join(
        f"{record['machine']['processor']} ({record['machine']['cores']} cores)" for record in machines
    )
    runs = [run for record in machines for run in record["runs"]]
    if any(run["busy"] or run["kernel"] != "native" for run in runs):
        names += ", some benches again with other BLAS kernels or one core busy"
    lines = [
        f"Measured on {names}. A line has all cases of its kind, with a goal or without; `docs/speed/` has each of them.",
        "",
        f"| {' | '.join(HEADS)} |",
        f"|{'---|' * len(HEADS)}",
        *(f"| {' | '.join(_cells(key, members))} |" for key, members in groups.items()),
    ]
    return "\n".join(lines)


def _cells(key: tuple[str, str, str], members: list[dict[str, Any]]) -> tuple[str, ...]:
    """Return the cells of one line, in the order of HEADS."""
    bench, group, unit = key
    ranks = sorted({entry["run"]["ranks"] for entry in members})
    ranges = [
        _range([entry["value"] for entry in members if entry["run"]["ranks"] == count])
        + (f" on {count} rank{'s' * (count > 1)}" if ranks != [1] else "")
        for count in ranks
    ]
    judged = [entry for entry in members if meets_goal(entry) is not None]
    goals = " or ".join(dict.fromkeys(goal_text(entry) for entry in judged)) or "none"
    met = f"{sum(bool(meets_goal(entry)) for entry in judged)} of {len(judged)}" if judged else "-"
    if judged and len(judged) < len(members):
        met += f"; {len(members) - len(judged)} more without a goal"
    what = f"{group}, {unit}" if unit not in ("x", "") else group
    command = f"`scripts/bench.sh --only {bench}`"
    return what, command, ", ".join(ranges), _worst(members), goals, met


def is_better_larger(entry: dict[str, Any]) -> bool:
    """Return True if a larger value of a row is better: a speed, a rate, or a value with a smallest goal."""
    return entry["least"] is not None or entry["unit"].endswith("/s") or "speed over" in entry["group"]


def _worst(members: list[dict[str, Any]]) -> str:
    """Return the worst value with its case, and where it was measured."""
    larger = any(is_better_larger(entry) for entry in members)
    worst = (min if larger else max)(members, key=lambda entry: entry["value"])
    run = worst["run"]
    conditions = [worst["machine"]]
    if run["mpi"]:
        conditions.append(f"{run['ranks']} ranks of {run['mpi']}")
    conditions += [f"kernels {run['kernel']}"] if run["kernel"] != "native" else []
    conditions += ["one core busy"] if run["busy"] else []
    return f"{figure(worst['value'])}: {worst['case']} ({', '.join(conditions)})".replace("|", "/")


def _range(values: list[float]) -> str:
    """Return the smallest and the largest value as text, or the only one."""
    ends = dict.fromkeys((figure(min(values)), figure(max(values))))
    return " to ".join(ends)
