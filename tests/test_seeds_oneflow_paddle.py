"""The numbers of the documents about OneFlow and Paddle that this project grew from: sbp, ids and shapes.

002: OneFlow's 2-D SBP; 004: ``paddle.distributed.split``.
"""

from __future__ import annotations

import inspect

import numpy as np
import pytest
from layout_cases import cases

from spmdsim.core import Layout, Rule, bind
from spmdsim.dialects import oneflow as flow
from spmdsim.dialects import paddle

MATMUL = Rule.parse("m k, k n -> m n", linear="each")


# -- 002: 2-D SBP ---------------------------------------------------------------------------------------

GRID = [[0, 1], [2, 3]]
BROADCAST = (flow.sbp.broadcast, flow.sbp.broadcast)
BS0 = (flow.sbp.broadcast, flow.sbp.split(0))


def test_002_placements():
    vector, array = flow.placement("cuda", ranks=[0, 1, 2, 3]), flow.placement("cuda", ranks=GRID)
    assert vector.hierarchy == (4,) and array.hierarchy == (2, 2)
    assert [array.mesh.coords(rank) for rank in range(4)] == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_002_broadcast_then_split_on_the_matrix_1234():
    """Ranks in one column hold equal values; ranks in one row hold one row of the matrix each."""
    layout = flow.layout(flow.placement("cuda", ranks=GRID), BS0, 2)
    tensor = np.array([[1, 2], [3, 4]])
    held = [tensor[layout.slices((2, 2), rank)].tolist() for rank in range(4)]
    assert held == [[[1, 2]], [[3, 4]], [[1, 2]], [[3, 4]]]
    assert layout.mesh.groups("d0") == ((0, 2), (1, 3)) and layout.mesh.groups("d1") == ((0, 1), (2, 3))
    assert layout.replica_ranks(0) == (0, 2) and layout.replica_ranks(3) == (1, 3)


def test_002_matmul_signature():
    """(broadcast, split(0)) times (split(1), broadcast) is (split(1), split(0)), each axis by itself."""
    placement = flow.placement("cpu", GRID)
    bound = bind(MATMUL, ((8, 4), (4, 6)))
    x, w = flow.layout(placement, BS0, 2), flow.layout(placement, (flow.sbp.split(1), flow.sbp.broadcast), 2)
    (y,) = bound.output_layouts(bound.infer((x, w)))
    assert flow.sbp_of(y) == (flow.sbp.split(1), flow.sbp.split(0))


def test_002_36_signatures_on_two_by_two():
    """Of all pairs of sbp for x and w, exactly 36 need no conversion; an axis's choice does not touch the other's."""
    placement = flow.placement("cpu", GRID)
    bound = bind(MATMUL, ((8, 6), (6, 8)))
    kinds = [flow.sbp.broadcast, flow.sbp.partial_sum, flow.sbp.split(0), flow.sbp.split(1)]
    layouts = [flow.layout(placement, (a, b), 2) for a in kinds for b in kinds]
    legal = 0
    for x in layouts:
        for w in layouts:
            try:
                bound.infer((x, w))
            except ValueError:
                continue
            legal += 1
    assert legal == 36


def test_002_the_example_model():
    """Local (1, 2, 8) on every rank is logical (2, 2, 8); the layers keep (broadcast, split(0))."""
    placement = flow.placement("cpu", GRID)
    assert flow.logical_shape(placement, BS0, (1, 2, 8)) == (2, 2, 8)
    assert [flow.local_shape(placement, BS0, (2, 2, 8), rank) for rank in range(4)] == [(1, 2, 8)] * 4
    ranges = [flow.local_range(placement, BS0, (2, 2, 8), rank) for rank in range(4)]
    assert ranges[0] == ranges[2] and ranges[1] == ranges[3] and ranges[0] != ranges[1]
    assert flow.broadcast_groups(placement, BS0) == ((0, 2), (1, 3))
    x, shape = flow.layout(placement, BS0, 3), (2, 2, 8)
    for out, size in ((4, 8), (2, 4)):
        bound = bind(Rule.parse("... k, n k -> ... n", linear="each"), (shape, (out, size)))
        weight = flow.layout(placement, BROADCAST, 2)
        (x,), (shape,) = bound.output_layouts(bound.infer((x, weight))), bound.output_shapes
    assert shape == (2, 2, 2) and flow.sbp_of(x) == BS0 and x.local_shape(shape, 3) == (1, 2, 2)


# -- 004: paddle.distributed.split ----------------------------------------------------------------------


@pytest.mark.parametrize("n", [2, 8, 20])
def test_004_parallel_embedding_on_two_devices(n):
    """N/2 + 1 rows each, the last one the padding row; foreign ids become N/2."""
    split = paddle.split_layout((n, 5), "embedding", num_partitions=2, padding_row=True)
    half = n // 2
    for rank in (0, 1):
        assert split.weight_shape(rank) == (half + 1, 5) and split.padding_index(rank) == half
    ids = np.arange(n)
    assert split.map_ids(ids, 0).tolist() == [v if v <= half - 1 else half for v in ids]
    assert split.map_ids(ids, 1).tolist() == [v - half if v >= half else half for v in ids]
    assert split.collective == "all_reduce"


@pytest.mark.parametrize("case", cases("layouts_oneflow_paddle", "seed004_id_mapping"))
def test_004_ids(case):
    split = paddle.split_layout(
        (case["vocab"], 2), "embedding", num_partitions=case["num_partitions"], padding_row=True
    )
    for rank, mapped_ids in enumerate(case["mapped_per_rank"]):
        assert split.map_ids(case["ids"], rank).tolist() == mapped_ids


@pytest.mark.parametrize(("p", "n", "m"), [(2, 8, 6), (4, 8, 4)])
def test_004_linear(p, n, m):
    """Rows: N/p rows and M columns each, then all_reduce. Columns: N rows and M/p columns each, then all_gather."""
    row, column = (paddle.split_layout((n, m), "linear", axis, p) for axis in (0, 1))
    assert [row.weight_shape(r) for r in range(p)] == [(n // p, m)] * p and row.collective == "all_reduce"
    assert [column.weight_shape(r) for r in range(p)] == [
        (n, m // p)
    ] * p and column.collective == "all_gather"


def test_004_the_chain_saves_the_gather():
    """What a column-parallel layer leaves on a rank is what a row-parallel one needs there."""
    column, row = (paddle.split_layout((8, 8), "linear", axis, 2, gather_out=axis == 0) for axis in (1, 0))
    assert column.collective is None and row.collective == "all_reduce"
    x = Layout.replicated(column.mesh, 2)
    bound = bind(MATMUL, ((4, 8), (8, 8)))
    (hidden,) = bound.output_layouts(bound.infer((x, column.weight)))
    (out,) = bound.output_layouts(bound.infer((hidden, row.weight)))  # no conversion in between
    assert hidden.cuts == (1, 2) and not hidden.partial and out.partial_axes == ("mp",)


def test_004_signature_and_example():
    """Defaults as documented; the example: ids 0..7 of shape (10, 4), a table of (8, 8) in two parts."""
    defaults = {
        name: p.default
        for name, p in inspect.signature(paddle.split_layout).parameters.items()
        if p.default is not p.empty
    }
    assert (defaults["axis"], defaults["num_partitions"], defaults["gather_out"]) == (0, 1, True)
    split = paddle.split_layout((8, 8), operation="embedding", num_partitions=2, padding_row=True)
    assert split.weight_shape(0) == split.weight_shape(1) == (5, 8)
    data = np.random.default_rng(0).integers(0, 8, size=(10, 4))
    table_ = np.arange(64.0).reshape(8, 8)
    total = sum(
        np.vstack([table_[slice(*split.part_range(r))], np.zeros((1, 8))])[split.map_ids(data, r)]
        for r in (0, 1)
    )
    assert total.shape == (10, 4, 8) and np.array_equal(total, table_[data])
