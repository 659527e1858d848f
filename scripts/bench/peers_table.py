"""Build README's table of speeds beside other systems, from the newest rows of bench_peers.py in docs/speed/."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from paired import figure

#: Start of the group names of bench_peers.py, before the name of the other system.
GROUP = "beside other systems, of the time of "


def peers_table(machines: Iterable[dict[str, Any]]) -> str:
    """Return a sentence on machine and versions, and a table of times divided by other systems' times.

    Args:
        machines: the records of docs/speed/.
    """
    runs = [
        (run["date"], record["machine"], run)
        for record in machines
        for run in record["runs"]
        if run["bench"] == "peers"
    ]
    if not runs:
        return "No machine has been measured yet."
    _, machine, run = max(runs, key=lambda dated: dated[0])
    rows = [row for row in run["rows"] if row["group"].startswith(GROUP)]
    systems = list(dict.fromkeys(row["group"].removeprefix(GROUP) for row in rows))
    versions = list(
        dict.fromkeys(
            match[0] for row in rows if (match := re.match(r"(?:torch|heat|jax) [\w.+]+", row["note"]))
        )
    )
    values = {(row["case"], row["group"].removeprefix(GROUP)): figure(row["value"]) for row in rows}
    state = f"load {run['before']['load']} before and {run['after']['load']} after"
    state += ", the best time of each way" if run.get("statistic") == "min" else ""
    lines = [
        f"spmdsim's time over the other system's: below 1 spmdsim takes less time. {run['ranks']} ranks on {machine['processor']} with "
        f"{machine['cores']} cores, {state}; {', '.join(versions) or 'no other system is installed'}.",
        "",
        f"| work | {' | '.join(systems)} |",
        f"|---{'|---' * len(systems)}|",
    ]
    for case in dict.fromkeys(row["case"] for row in rows):
        lines.append(f"| {case} | {' | '.join(values.get((case, system), '–') for system in systems)} |")
    return "\n".join(lines)
