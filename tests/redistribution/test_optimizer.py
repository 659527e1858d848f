"""MindSpore's optimizer shards divide replicas, and its transitions begin with the published operators."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from spmdsim.core import Layout, Mesh
from spmdsim.dialects import mindspore
from spmdsim.errors import LayoutError
from spmdsim.redistribution import plan

VECTORS = json.loads((Path(__file__).parents[1] / "vectors/redistribution_mindspore.json").read_text())


def cases(kind):
    return pytest.mark.parametrize("vector", [v for v in VECTORS if v["kind"] == kind], ids=lambda v: v["id"])


@cases("redistribution_kind")
def test_transitions_start_with_the_published_operator(vector):
    """The first operator of a transition has the published name."""
    mesh = Mesh((4,), ("x",))
    target = {"replicated": mesh(None, None), "column split": mesh(None, "x")}[vector["given"]["to"]]
    theirs = plan(mesh("x", None), target, (8, 8), style="mindspore")
    assert theirs.operator_names(0)[0].lower() == vector["expect"]["op"].split(" ")[0].lower()
    other = plan(mesh(None, "x"), mesh(None, None), (8, 8), style="mindspore")
    assert other.operator_names(0) == ["AllGather", "Split", "Concat"]


@pytest.mark.parametrize("matrix", [(2, 2, 2), (4, 2), (2, 4), (8,), (2, 1, 4)])
def test_replicas_of_a_slice_are_divided_among_their_ranks(matrix):
    """The shards of a slice are equal and disjoint for any map."""
    checked, shape, ranks = 0, (64, 8), range(8)
    numbers = np.arange(64 * 8).reshape(shape)
    axes = range(-1, len(matrix))
    for entries in itertools.product(axes, repeat=2):
        if any(entries.count(axis) > 1 for axis in axes if axis >= 0):
            continue
        before = mindspore.from_tensor_map(matrix, entries)
        owned = [frozenset(numbers[before.slices(shape, rank)].flat) for rank in ranks]
        copies = owned.count(owned[0])
        if copies == 1:
            with pytest.raises(LayoutError, match="some devices must own equal slices"):
                mindspore.optimizer_shard(before, shape)
            continue
        after = mindspore.optimizer_shard(before, shape)
        shards = [frozenset(numbers[after.slices(shape, rank)].flat) for rank in ranks]
        for rank in ranks:
            assert shards[rank] <= owned[rank] and len(shards[rank]) * copies == len(owned[rank])
            group_shards = {shards[r] for r in ranks if owned[r] == owned[rank]}
            assert len(group_shards) == copies and frozenset().union(*group_shards) == owned[rank]
        checked += 1
    assert checked >= len(matrix)


def test_a_dim_of_several_axes_becomes_a_dim_per_axis():
    mesh = Mesh((2, 4, 2), ("a", "b", "c"))
    single, shape = mindspore.without_tuples(Layout(mesh, (("c", "a"), "b")), (8, 8))
    assert (single.tensor_map, shape) == ((0, 2, 1), (2, 4, 8))
