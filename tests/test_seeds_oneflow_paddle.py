"""SBP signatures, ids and shapes equal the numbers of two documents about OneFlow and Paddle.

The numbers in the names of the tests name the documents:

- 002 describes OneFlow's 2-D SBP.
- 004 describes ``paddle.distributed.split``.
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


def test_002_placements_have_the_documents_hierarchies_and_coordinates():
    vector, array = flow.placement("cuda", ranks=[0, 1, 2, 3]), flow.placement("cuda", ranks=GRID)
    assert vector.hierarchy == (4,) and array.hierarchy == (2, 2)
    assert [array.mesh.coords(rank) for rank in range(4)] == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_002_grid_columns_own_replicas_and_grid_rows_own_one_matrix_row():
    # Ranks of one column of the grid own replicas. Ranks of one row own one row of the matrix each.
    layout = flow.layout(flow.placement("cuda", ranks=GRID), BS0, 2)
    tensor = np.array([[1, 2], [3, 4]])
    shards = [tensor[layout.slices((2, 2), rank)].tolist() for rank in range(4)]
    assert shards == [[[1, 2]], [[3, 4]], [[1, 2]], [[3, 4]]]
    assert layout.mesh.groups("d0") == ((0, 2), (1, 3)) and layout.mesh.groups("d1") == ((0, 1), (2, 3))
    assert layout.replica_ranks(0) == (0, 2) and layout.replica_ranks(3) == (1, 3)


def test_002_matmul_combines_the_signatures_of_each_mesh_axis():
    # (broadcast, split(0)) times (split(1), broadcast) is (split(1), split(0)).
    placement = flow.placement("cpu", GRID)
    bound = bind(MATMUL, ((8, 4), (4, 6)))
    x, w = flow.layout(placement, BS0, 2), flow.layout(placement, (flow.sbp.split(1), flow.sbp.broadcast), 2)
    (y,) = bound.output_layouts(bound.infer((x, w)))
    assert flow.sbp_of(y) == (flow.sbp.split(1), flow.sbp.split(0))


def test_002_36_pairs_of_signatures_need_no_conversion():
    # Each of the two mesh axes has 6 legal pairs, and the axes are independent.
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


def test_002_the_example_model_has_the_documents_shapes_and_signatures():
    # The local shape (1, 2, 8) belongs to the logical shape (2, 2, 8). The layers preserve (broadcast, split(0)).
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
def test_004_a_parallel_embedding_maps_foreign_ids_to_the_padding_row(n):
    # Each device has N/2 + 1 rows, and the last row is the padding row. Ids of the other device become N/2.
    split = paddle.split_layout((n, 5), "embedding", num_partitions=2, padding_row=True)
    half = n // 2
    for rank in (0, 1):
        assert split.weight_shape(rank) == (half + 1, 5) and split.padding_index(rank) == half
    ids = np.arange(n)
    assert split.map_ids(ids, 0).tolist() == [v if v <= half - 1 else half for v in ids]
    assert split.map_ids(ids, 1).tolist() == [v - half if v >= half else half for v in ids]
    assert split.collective == "all_reduce"


@pytest.mark.parametrize("case", cases("layouts_oneflow_paddle", "seed004_id_mapping"))
def test_004_ids_are_mapped_as_published(case):
    split = paddle.split_layout(
        (case["vocab"], 2), "embedding", num_partitions=case["num_partitions"], padding_row=True
    )
    for rank, mapped_ids in enumerate(case["mapped_per_rank"]):
        assert split.map_ids(case["ids"], rank).tolist() == mapped_ids


@pytest.mark.parametrize(("p", "n", "m"), [(2, 8, 6), (4, 8, 4)])
def test_004_a_linear_layer_split_by_rows_is_reduced_and_by_columns_gathered(p, n, m):
    # Shards by rows have N/p rows and M columns. Shards by columns have N rows and M/p columns.
    row, column = (paddle.split_layout((n, m), "linear", axis, p) for axis in (0, 1))
    assert [row.weight_shape(r) for r in range(p)] == [(n // p, m)] * p and row.collective == "all_reduce"
    assert [column.weight_shape(r) for r in range(p)] == [
        (n, m // p)
    ] * p and column.collective == "all_gather"


def test_004_a_column_parallel_layer_before_a_row_parallel_one_needs_no_gather():
    column, row = (paddle.split_layout((8, 8), "linear", axis, 2, gather_out=axis == 0) for axis in (1, 0))
    assert column.collective is None and row.collective == "all_reduce"
    x = Layout.replicated(column.mesh, 2)
    bound = bind(MATMUL, ((4, 8), (8, 8)))
    (hidden,) = bound.output_layouts(bound.infer((x, column.weight)))
    (out,) = bound.output_layouts(
        bound.infer((hidden, row.weight))
    )  # The row-parallel layer takes the columns.
    assert hidden.cuts == (1, 2) and not hidden.partial and out.partial_axes == ("mp",)


def test_004_the_defaults_and_the_example_are_as_documented():
    # The example has ids 0..7 of shape (10, 4) and a table of shape (8, 8) in two blocks.
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
