"""MindSpore's optimizer shards and repeated layouts equal published cases."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
from mindspore_offline import same_devices
from mindspore_optimizer_shards import optimizer_shard_layout

from spmdsim.core import Layout, Mesh
from spmdsim.dialects.imitations.mindspore.map_layouts import MapLayout, expand_tuples
from spmdsim.errors import PlanError
from spmdsim.redistribution import plan

VECTORS = json.loads((Path(__file__).parents[1] / "vectors/redistribution_mindspore.json").read_text())


def cases(kind):
    return pytest.mark.parametrize("vector", [v for v in VECTORS if v["kind"] == kind], ids=lambda v: v["id"])


@cases("same_device_num_layouts")
def test_the_side_with_fewer_devices_is_repeated(vector):
    inputs, expect = vector["given"], vector["expect"]
    before, after = (
        MapLayout(*map(tuple, (*inputs[k], inputs["shape"]))) for k in ("from_layout", "to_layout")
    )
    layouts = same_devices(before, after)
    wanted = tuple(MapLayout(*map(tuple, expect[k])) for k in ("from_layout", "to_layout"))
    assert layouts == wanted and same_devices(after, before) == wanted[::-1]


def test_device_counts_must_be_multiples():
    with pytest.raises(PlanError, match="8 is no multiple of 6"):
        same_devices(MapLayout((2, 3), (0,), (6,)), MapLayout((8,), (0,), (8,)))
    same = MapLayout((4,), (0,), (8,)), MapLayout((2, 2), (1,), (8,))
    assert same_devices(*same) == same


@cases("redistribution_kind")
def test_transitions_start_with_the_published_operator(vector):
    """The first operator of a transition has the published name."""
    mesh = Mesh((4,), ("x",))
    target = {"replicated": mesh(None, None), "column split": mesh(None, "x")}[vector["given"]["to"]]
    theirs = plan(mesh("x", None), target, (8, 8), style="mindspore")
    assert theirs.operator_names(0)[0].lower() == vector["expect"]["op"].split(" ")[0].lower()
    other = plan(mesh(None, "x"), mesh(None, None), (8, 8), style="mindspore")
    assert other.operator_names(0) == ["AllGather", "Split", "Concat"]


PUBLISHED = [
    # device matrix, map, step, size, shape, and the expected layout
    ((2, 2, 2), (2, 1, -1), 1, -1, (16, 16, 16), ((2, 2, 2), (2, 0, 1, -1), (2, 8, 16, 16))),
    ((4, 4), (0, -1), 4, 2, (16, 8), ((2, 2, 4, 1), (1, 2, -1), (4, 4, 8))),
    ((8, 2), (0, -1), 2, 4, (16, 8), ((2, 4, 2, 1), (1, 2, -1), (2, 8, 8))),
    ((4, 4), (-1, 0), 4, 2, (16, 8), ((2, 2, 1, 4), (-1, 2, 0), (1, 16, 8))),
    ((2, 4), (0, -1), 4, 2, (16, 8), ((2, 4, 1), (1, 2, -1), (4, 4, 8))),
    ((16,), (-1, -1), 1, 16, (16, 8), ((16, 1, 1), (-1, 2, -1), (1, 16, 8))),
    ((4, 2, 2), (1, 0), 4, 2, (16, 8), ((2, 2, 2, 2), (1, 2, 0), (2, 8, 8))),
    ((2, 2, 4), (2, -1), 1, 2, (16, 8), ((2, 2, 2, 2), (3, 0, -1), (2, 8, 8))),
    ((2, 2, 4), (2, -1), 1, 8, (16, 8), ((2, 2, 4), (2, 1, 0, -1), (2, 2, 4, 8))),
    ((2, 2, 2, 2), ([1, 0], -1), 4, 2, (8, 2), ((2, 2, 2, 2), (1, 0, 2, -1), (2, 2, 2, 2))),
    ((2, 2, 2, 2), ([1, 0], -1), 4, 4, (16, 2), ((2, 2, 2, 2), (1, 0, 3, 2, -1), (2, 2, 2, 2, 2))),
    ((2, 2), (1, 0), 0, 2, (4, 4), ((2, 2), (1, 0), (4, 4))),
]


@pytest.mark.parametrize(("matrix", "entries", "step", "size", "shape", "wanted"), PUBLISHED)
def test_optimizer_layouts_equal_published_layouts(matrix, entries, step, size, shape, wanted):
    assert optimizer_shard_layout(matrix, entries, step, size, shape) == MapLayout(*wanted)


def elements_of(layout, rank, shape):
    """Return the flat indices of the elements that a rank owns."""
    coords = np.unravel_index(rank, layout.matrix)
    index = np.arange(math.prod(shape)).reshape(layout.shape)
    at = [coords[len(layout.matrix) - 1 - axis] if axis >= 0 else 0 for axis in layout.map]
    return set(
        index[tuple(slice(i * n, (i + 1) * n) for i, n in zip(at, layout.slice_shape))].ravel().tolist()
    )


@pytest.mark.parametrize("matrix", [(2, 2, 2), (4, 2), (2, 4), (8,), (2, 1, 4)])
def test_replicas_of_a_slice_are_divided_among_their_ranks(matrix):
    """The parts of a slice are equal and disjoint for any map and number of ranks."""
    checked = 0
    axes = range(-1, len(matrix))
    for entries in itertools.product(axes, repeat=2):
        if any(entries.count(axis) > 1 for axis in axes if axis >= 0):
            continue
        shape = (64, 8)
        before = MapLayout(matrix, entries, shape)
        owned = {rank: frozenset(elements_of(before, rank, shape)) for rank in range(8)}
        copies = [rank for rank in range(8) if owned[rank] == owned[0]]
        for size in (-1, 2, 4, 8):
            repeated = [i for i, n in enumerate(matrix) if n > 1 and len(matrix) - 1 - i not in entries]
            step = math.prod(matrix[repeated[0] + 1 :]) if repeated else 1
            try:
                after = optimizer_shard_layout(matrix, entries, step, size, shape)
            except PlanError:
                assert len(copies) == 1 or len(copies) % size
                continue
            count = len(copies) if size < 0 else size
            shards = {rank: frozenset(elements_of(after, rank, shape)) for rank in range(8)}
            for rank in range(8):
                assert shards[rank] <= owned[rank] and len(shards[rank]) * count == len(owned[rank])
                group_shards = {shards[r] for r in range(8) if owned[r] == owned[rank]}
                assert len(group_shards) == count and frozenset().union(*group_shards) == owned[rank]
            checked += 1
    assert checked > 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (((2, 2), (1, 0), 1, -1, (4, 4)), "nothing to share out"),
        (((2, 2), (1, -1), 2, -1, (4, 4)), "the step is 2"),
        (((2, 4), (1, -1), 1, 3, (24, 4)), "3 ranks cannot share what 4 hold"),
        (((2, 4), (1, -1), 1, 4, (4, 4)), "cannot be split in 2 times 4"),
        (((2, 3, 2), (2, -1), 1, 3, (24, 4)), "cannot share along axis 2"),
    ],
)
def test_slices_that_cannot_be_divided_are_refused(arguments, words):
    with pytest.raises(PlanError, match=words):
        optimizer_shard_layout(*arguments)


def test_layouts_equal_their_map_of_numbers():
    mesh = Mesh((2, 4, 2), ("a", "b", "c"))
    layout = Layout(mesh, (("c", "a"), "b"))
    assert MapLayout.of(layout, (8, 8)) == expand_tuples((2, 4, 2), [(0, 2), 1], (8, 8))
