"""Print the bytes that collective algorithms send over global links, as a table.

A message between two groups of a dragonfly crosses one global link. A message between two leaf switches of a fat tree
crosses one link up. So the bytes depend on the number of ranks per group or leaf switch only.
Run ``python scripts/global_links.py``.
"""

from __future__ import annotations

from spmdsim.collectives import Schedule, schedule_of
from spmdsim.cost.link_load import link_loads
from spmdsim.printing import say
from spmdsim.tables import Table

RANKS, NBYTES = 64, 1 << 20
#: Ranks of a group, or of a leaf switch; ranks fill the groups one after another.
GROUPS = (4, 8)
#: By collective, the usual algorithms and then the one that is compared with them.
COMPARED = {
    "broadcast": ("binomial", "bine_tree"),
    "gather": ("binomial", "bine_tree"),
    "all_gather": ("recursive_doubling", "ring", "bine"),
    "reduce_scatter": ("recursive_halving", "ring", "bine"),
    "all_reduce": ("recursive_doubling", "rabenseifner", "ring", "swing"),
    "all_to_all": ("bruck", "pairwise", "bine"),
}


def count_global_bytes(schedule: Schedule, group: int) -> float:
    """Return the bytes of all messages between ranks of different groups."""
    total = 0.0
    for load in link_loads(schedule, NBYTES):
        if load.count:
            is_global = load.sources // group != load.targets // group
            total += load.repeat * float(load.nbytes[is_global].sum())
    return total


def main() -> None:
    """Print the table, with a row per algorithm and a column per size of the groups."""
    rows = [
        [collective, name]
        + [
            f"{count_global_bytes(schedule_of(collective, name, RANKS), group) / NBYTES:g}"
            for group in GROUPS
        ]
        for collective, names in COMPARED.items()
        for name in names
    ]
    heads = ["collective", "algorithm", *(f"groups of {group}" for group in GROUPS)]
    say(Table(heads, rows, f"{RANKS} ranks: bytes over global links, in message sizes", right=(2, 3)))


if __name__ == "__main__":
    main()
