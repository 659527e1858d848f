"""Counts of every algorithm equal those of an independent simulator."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from spmdsim.collectives import Schedule, count, schedule_of, verify
from spmdsim.collectives.instructions import SEND

DATA = json.loads((Path(__file__).parents[1] / "vectors" / "collectives.json").read_text())
Row = dict[str, Any]

OUR_NAME = {
    ("allreduce", "rabenseifner_halffold"): "rabenseifner_half_fold",
    ("allreduce", "reduce_bcast_binomial"): "reduce_broadcast",
    ("allreduce", "linear_reduce_bcast"): "linear",
    ("allreduce", "allgather_reduce_direct"): "all_gather_reduce",
    ("reduce_scatter", "butterfly_noncomm"): "butterfly",
    ("reduce_scatter", "recursive_doubling_noncomm"): "recursive_doubling",
    ("allgather", "direct"): "linear",
    ("bcast", "scatter_ring_allgather"): "scatter_ring",
    ("bcast", "scatter_recursive_doubling_allgather"): "scatter_recursive_doubling",
    ("barrier", "binomial_tree"): "tree",
    ("allreduce", "hierarchical_ring2d"): "two_level_ring",
    ("allreduce", "nccl_double_binary_tree"): "double_binary_tree",
}


def schedule_for(row: Row) -> Schedule:
    key = (str(row["collective"]), str(row["algorithm"]))
    name = OUR_NAME.get(key, key[1])
    return schedule_of(row["collective"], name, row["n"], **row.get("params", {}))


ALGORITHMS: dict[str, list[Row]] = {}
for each_row in DATA["vectors"] + DATA["hierarchical"]:
    ALGORITHMS.setdefault(f"{each_row['collective']}-{each_row['algorithm']}", []).append(each_row)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_counts_equal_the_vectors(algorithm: str) -> None:
    for row in ALGORITHMS[algorithm]:
        check_counts(row)


def check_counts(row: Row) -> None:
    """Check all counts of a schedule against a row of the vectors."""
    schedule = schedule_for(row)
    counted = count(schedule, row["message_bytes"])
    assert counted.steps == row["steps"]
    assert counted.bytes_sent.tolist() == row["bytes_sent_per_rank"]
    assert counted.messages_sent.tolist() == row["messages_sent_per_rank"]
    assert counted.bytes_received.tolist() == row["bytes_received_per_rank"]
    assert counted.critical_bytes == row["critical_beta_bytes"]
    assert counted.total_bytes == row["total_bytes"]
    assert counted.total_messages == row["total_messages"]
    assert counted.empty_messages == row["empty_messages"]
    if row.get("critical_gamma_bytes") is not None:
        assert counted.critical_reduced_bytes == row["critical_gamma_bytes"]
    if "reduced_bytes_per_rank" in row:
        assert counted.bytes_reduced.tolist() == row["reduced_bytes_per_rank"]
    if "local_reduce_bytes_per_rank" in row:
        assert counted.bytes_combined.tolist() == row["local_reduce_bytes_per_rank"]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_reduction_trees_equal_the_vectors(algorithm: str) -> None:
    """Facts of the reduction tree do not depend on the message size."""
    rows = [row for row in ALGORITHMS[algorithm] if row["message_bytes"] in (0, 1000)]
    assert rows
    for row in rows:
        check_reduction(row)


def check_reduction(row: Row) -> None:
    verdict = verify(schedule_for(row))
    assert verdict.ok, str(verdict)
    if row.get("order_preserving") is not None:
        assert verdict.in_order == row["order_preserving"]
    if row.get("same_tree_on_all_ranks") is not None:
        assert verdict.same_tree == row["same_tree_on_all_ranks"]
    if row.get("reduction_depth") is not None:
        assert verdict.depth == row["reduction_depth"]


@pytest.mark.parametrize("row", DATA["hierarchical"], ids=lambda row: f"{row['algorithm']}-{row['n']}")
def test_bytes_inside_and_between_groups_equal_the_vectors(row: Row) -> None:
    schedule, group = schedule_for(row), row["params"]["group"]
    sizes = schedule.chunk_elements(row["message_bytes"])
    inside, between = [0] * row["n"], [0] * row["n"]
    largest: dict[bool, dict[int, int]] = {True: {}, False: {}}
    assert verify(schedule).ok
    for rank in range(row["n"]):
        for number, moves in enumerate(schedule.rounds(rank)):
            for move in moves:
                if move.kind != SEND:
                    continue
                nbytes = sum(sizes[c] for c in move.chunks)
                local = rank // group == move.peer // group
                (inside if local else between)[rank] += nbytes
                largest[local][number] = max(largest[local].get(number, 0), nbytes)
    assert inside == row["intra_bytes_sent_per_rank"]
    assert between == row["inter_bytes_sent_per_rank"]
    assert len(largest[True]) == row["intra_steps"]
    assert len(largest[False]) == row["inter_steps"]
    assert sum(largest[True].values()) == row["intra_beta_bytes"]
    assert sum(largest[False].values()) == row["inter_beta_bytes"]


@pytest.mark.parametrize("row", DATA["double_binary_tree"], ids=lambda row: f"n{row['n']}")
def test_the_double_binary_tree_equals_the_vectors(row: Row) -> None:
    n = row["n"]
    schedule = schedule_of("all_reduce", "double_binary_tree", n)
    parents: list[list[int | None]] = [[None, None] for _ in range(n)]
    for rank in range(n):
        for move in itertools.chain(*schedule.rounds(rank)):
            if move.kind == "reduce":
                parents[move.peer][move.chunks[0]] = rank
    assert [p[0] for p in parents] == row["tree0_parent"]
    assert [p[1] for p in parents] == row["tree1_parent"]
    leaf = [sum(rank not in [p[t] for p in parents] for t in (0, 1)) for rank in range(n)]
    assert leaf == row["leaf_in_trees_per_rank"]

    def depth(rank: int, tree: int) -> int:
        parent = parents[rank][tree]
        return 0 if parent is None else 1 + depth(parent, tree)

    assert [max(depth(rank, tree) for rank in range(n)) for tree in (0, 1)] == row["depth_per_tree"]
    counted = count(schedule, row["message_bytes"])
    assert counted.steps == row["message_depth"]
    assert counted.bytes_sent.tolist() == row["bytes_sent_per_rank"]
    assert counted.messages_sent.tolist() == row["messages_sent_per_rank"]
    assert counted.total_bytes == row["total_bytes"]
    assert counted.total_messages == row["total_messages"]
    assert verify(schedule).ok
