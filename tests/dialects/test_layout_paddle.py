"""Paddle's meshes, dims_mapping and parameter splits give the published shapes, ranges and errors."""

from __future__ import annotations

import numpy as np
import pytest
from layout_cases import cases

from spmdsim.core import Layout, Mesh
from spmdsim.dialects import oneflow as flow
from spmdsim.dialects import paddle
from spmdsim.errors import InputError, LayoutError

V = "layouts_oneflow_paddle"


@pytest.mark.parametrize("case", cases(V, "paddle_split_shapes"))
def test_parameter_shapes(case):
    p = case["num_partitions"]
    split = paddle.split_layout(case["size"], case["operation"], case["axis"], p)
    bias = case["bias_shape_per_rank"]
    for rank in range(p):
        assert list(split.weight_shape(rank)) == case["weight_shape_per_rank"]
        assert split.bias_shape(rank) == (None if bias is None else tuple(bias))
        assert split.weight.local_shape(split.size, rank) == split.weight_shape(rank)
        assert split.weight.bounds(split.size, rank) == split.weight_bounds(rank)
        if split.bias is not None:
            assert split.bias.local_shape((split.size[1],), rank) == split.bias_shape(rank)


@pytest.mark.parametrize("case", cases(V, "paddle_vocab_range"))
def test_vocabulary_ranges(case):
    p = case["num_partitions"]
    split = paddle.split_layout((case["vocab"], 4), "embedding", num_partitions=p)
    assert [list(split.part_range(rank)) for rank in range(p)] == case["ranges"]


@pytest.mark.parametrize("case", cases(V, "paddle_vocab_padding_row_2_0"))
def test_padding_rows(case):
    p, size = case["num_partitions"], (case["vocab"], 4)
    assert paddle.ceil_split(case["vocab"], p) == case["per_part_rows"]
    if min(case["per_part_rows"]) <= 0:
        with pytest.raises(LayoutError, match="use fewer partitions"):
            paddle.split_layout(size, "embedding", num_partitions=p, padding_row=True)
        return
    split = paddle.split_layout(size, "embedding", num_partitions=p, padding_row=True)
    assert [split.weight_shape(rank)[0] for rank in range(p)] == case["weight_rows_with_padding"]
    assert [split.padding_index(rank) for rank in range(p)] == case["padding_idx"]


@pytest.mark.parametrize("case", cases(V, "seed004_id_mapping"))
def test_ids_of_other_ranks_become_the_padding_row(case):
    p = case["num_partitions"]
    split = paddle.split_layout((case["vocab"], 4), "embedding", num_partitions=p, padding_row=True)
    assert split.weight_shape(0)[0] == case["weight_rows_per_rank"]
    assert split.padding_index(0) == case["padding_idx"]
    assert [split.map_ids(case["ids"], rank).tolist() for rank in range(p)] == case["mapped_per_rank"]


def test_exactly_one_rank_owns_each_id():
    split = paddle.split_layout((10, 3), "embedding", num_partitions=4, padding_row=True)
    ids = np.arange(10).reshape(2, 5)
    table = np.random.default_rng(0).normal(size=(10, 3))
    total = np.zeros((2, 5, 3))
    for rank in range(4):
        (start, stop), _ = split.weight_bounds(rank)
        local = np.vstack([table[start:stop], np.zeros((1, 3))])
        assert local.shape == split.weight_shape(rank)
        total += local[split.map_ids(ids, rank)]
    assert np.array_equal(total, table[ids])
    mask = paddle.split_layout((12, 3), "embedding", num_partitions=4)
    assert mask.map_ids([0, 5, 11], 1).tolist() == [-1, 2, -1] and mask.padding_index(1) is None


@pytest.mark.parametrize("ids", [[0, 8], [-1], np.array([[3, 99]])])
def test_ids_outside_the_vocabulary_are_refused(ids):
    split = paddle.split_layout((8, 8), "embedding", num_partitions=2, padding_row=True)
    with pytest.raises(InputError, match=r"must be in 0\.\.7, the vocabulary, got"):
        split.map_ids(ids, 0)


@pytest.mark.parametrize("case", cases(V, "paddle_reshard_split"))
def test_uneven_sizes_of_paddle_differ_from_balanced_blocks(case):
    assert paddle.ceil_split(case["total"], case["parts"]) == case["sizes"]
    balanced = Mesh((case["parts"],), ("x",))("x")
    assert [balanced.local_shape((case["total"],), r)[0] for r in range(case["parts"])] == case[
        "oneflow_sizes"
    ]


CONDITIONS = {
    "size not list/tuple": (8, "linear", 0, 2),
    "len(size)!=2": ((8, 8, 8), "linear", 0, 2),
    "operation not str": ((8, 8), 3, 0, 2),
    "operation not in ['linear','embedding']": ((8, 8), "conv", 0, 2),
    "embedding axis!=0": ((8, 8), "embedding", 1, 2),
    "embedding vocab % p": ((9, 8), "embedding", 0, 2),
    "linear axis 0, rows % p": ((9, 8), "linear", 0, 2),
    "linear axis 1, cols % p": ((8, 9), "linear", 1, 2),
    "axis not in (0,1)": ((8, 8), "linear", 2, 2),
}
NUMBERS = {"linear axis 0, rows % p": (9, 2), "linear axis 1, cols % p": (9, 2)}


@pytest.mark.parametrize("case", [c for c in cases(V, "error") if c.values[0]["api"] != "oneflow"])
def test_published_errors(case):
    condition = case["condition"]
    kind = {"AssertionError": AssertionError, "ValueError": ValueError}[case["exception"]]
    with pytest.raises(kind) as caught:
        paddle.split_layout(*CONDITIONS[condition])
    text = case["message"].replace("{axis}", "2").format(*NUMBERS.get(condition, ()))
    assert text in str(caught.value) and isinstance(caught.value, LayoutError)


@pytest.mark.parametrize(
    ("arguments", "options", "words"),
    [
        (((8, 8), "linear", 0, 2), {"padding_row": True}, "padding_row must be False for a linear layer"),
        (((8, 8), "linear", 0, 0), {}, "num_partitions must be positive"),
        (((8, 8), "linear", 0, 4), {"world_size": 6}, "num_partitions must divide the 6 ranks, got 4"),
        (((8, 8), "linear", 0, 4), {"world_size": 2}, "num_partitions must divide the 2 ranks"),
    ],
)
def test_wrong_options_of_split_are_refused(arguments, options, words):
    with pytest.raises(LayoutError, match=words):
        paddle.split_layout(*arguments, **options)


def test_more_ranks_than_partitions_make_several_groups():
    split = paddle.split_layout((8, 6), "linear", 1, 2, world_size=6)
    assert [split.inner_rank(rank) for rank in range(6)] == [0, 1, 0, 1, 0, 1]
    assert split.weight.replica_ranks(1) == (1, 3, 5) and split.weight.bounds((8, 6), 3) == ((0, 8), (3, 6))


@pytest.mark.parametrize(
    ("operation", "axis", "p", "gather_out", "collective"),
    [
        ("embedding", 0, 2, True, "all_reduce"),
        ("embedding", 0, 2, False, "all_reduce"),
        ("linear", 0, 2, True, "all_reduce"),
        ("linear", 0, 2, False, None),
        ("linear", 1, 2, True, "all_gather"),
        ("linear", 1, 2, False, None),
        ("linear", 1, 1, True, None),
    ],
)
def test_split_names_the_collective_after_the_local_operation(operation, axis, p, gather_out, collective):
    assert paddle.split_layout((8, 8), operation, axis, p, gather_out).collective == collective


def test_an_unbalanced_table_has_no_layout():
    split = paddle.split_layout((10, 4), "embedding", num_partitions=4, padding_row=True)
    with pytest.raises(LayoutError, match="a layout needs blocks"):
        _ = split.weight
    assert [split.part_range(r) for r in range(4)] == [(0, 3), (3, 6), (6, 9), (9, 10)]


@pytest.mark.parametrize("case", cases(V, "spmd_matmul_paddle"))
def test_dims_mapping_and_sbp_give_equal_layouts(case):
    """Dims mappings with partial mesh dims equal the layouts of the published sbp."""
    mesh = paddle.ProcessMesh(np.arange(np.prod(case["mesh"])).reshape(case["mesh"]))
    placement = flow.placement("cpu", np.arange(np.prod(case["mesh"])).reshape(case["mesh"]))
    wanted = {
        "x": (case["inferred_inputs"].get("x", case["x_dims_mapping"]), ()),
        "y": (case["inferred_inputs"].get("y", case["y_dims_mapping"]), ()),
        "out": (case["out_dims_mapping"], case["partial_on_mesh_axes"]),
    }
    for name, (mapping, partial) in wanted.items():
        layout = paddle.from_dims_mapping(mesh, mapping, partial)
        assert paddle.dims_mapping(layout) == mapping
        if name in case["as_sbp"]:
            assert layout == flow.layout(placement, case["as_sbp"][name], len(mapping))


def test_a_process_mesh_keeps_the_written_order():
    mesh = paddle.ProcessMesh([[2, 4, 5], [0, 1, 3]], dim_names=["x", "y"])
    assert (mesh.shape, mesh.ndim, mesh.process_ids) == ([2, 3], 2, [2, 4, 5, 0, 1, 3])
    assert mesh.get_dim_size("y") == 3 and mesh.get_rank_by_dim_and_process_id("y", 1) == 1
    assert mesh.get_rank_by_dim_and_process_id("x", 9) == -1
    layout = paddle.layout(mesh, [paddle.Shard(0), paddle.Replicate()], 2)
    assert layout.bounds((6, 4), 2) == ((0, 3), (0, 4)) and layout.bounds((6, 4), 0) == ((3, 6), (0, 4))
    same = paddle.ProcessMesh(shape=[2, 3], process_ids=[2, 4, 5, 0, 1, 3], dim_names=["x", "y"])
    assert mesh == same and hash(mesh) == hash(same) and "dim_names=['x', 'y']" in repr(mesh)
    assert mesh == paddle.ProcessMesh([np.array([2, 4, 5]), np.array([0, 1, 3])], dim_names=["x", "y"])


@pytest.mark.parametrize(
    ("action", "kind", "words"),
    [
        (lambda: paddle.ProcessMesh([[0, 1], [1, 2]]), LayoutError, "must be unique"),
        (lambda: paddle.ProcessMesh([[0, 1], [2]]), LayoutError, "must have one shape"),
        (lambda: paddle.ProcessMesh([[0, 1], [2, 3]], ["x"]), LayoutError, "needs 2 dim_names"),
        (lambda: paddle.ProcessMesh([0, -1]), LayoutError, "must not be negative"),
        (lambda: paddle.ProcessMesh(["a"]), TypeError, "array of integers"),
        (lambda: paddle.ProcessMesh(), LayoutError, "mesh must be given, or shape"),
        (
            lambda: paddle.from_dims_mapping(paddle.ProcessMesh([0, 1]), [1]),
            LayoutError,
            "has 1, but the mesh dims",
        ),
        (lambda: paddle.from_dims_mapping(paddle.ProcessMesh([0, 1]), [0, 0]), LayoutError, "used twice"),
    ],
)
def test_wrong_meshes_and_mappings_are_refused(action, kind, words):
    with pytest.raises(kind, match=words):
        action()


def test_two_mesh_dims_split_one_dim():
    mesh = paddle.ProcessMesh([[0, 1], [2, 3]])
    layout = paddle.from_dims_mapping(mesh, [[1, 0], -1])
    assert paddle.dims_mapping(layout) == [[1, 0], -1]
    assert layout == Layout(mesh.to_mesh(), (("d1", "d0"), None))


def test_uneven_sizes_are_refused():
    layout = paddle.layout(paddle.ProcessMesh([0, 1, 2, 3]), [paddle.Shard(0)], 2)
    paddle.check_even(layout, (8, 3))
    with pytest.raises(ValueError, match=r"dim 0 has size 10.*Paddle would cut \[3, 3, 3, 1\]"):
        paddle.check_even(layout, (10, 3))


# -- the order in which a call is checked ------------------------------------------------------------------


def test_split_checks_types_then_the_mode_then_sizes():
    from spmdsim.dialects.paddle.distributed import fleet

    x = np.zeros((2, 8), np.float32)

    def refusal(*arguments, **options):
        """Return the class and the text of the error of a call of `split`."""
        with pytest.raises(ValueError) as caught:
            paddle.distributed.split(x, *arguments, **options)
        return type(caught.value), str(caught.value)

    assert "you must call fleet.init() firstly." in refusal((9, 8), "linear", num_partitions=2)[1]
    paddle.disable_static()
    assert paddle.in_dynamic_mode()
    kind, text = refusal((9, 8), "linear", num_partitions=2)
    assert "cannot be used in dynamic graph mode, please use ParallelEmbedding, ParallelRowLinear" in text
    assert not issubclass(kind, AssertionError)
    assert "must be list or tuple" in refusal(8, "linear")[1] and "must be str" in refusal((8, 8), 3)[1]
    paddle.enable_static()
    fleet.init(is_collective=True)
    assert "axis must be 0 or 1, but the value given is 2." in refusal((8, 8), "linear", axis=2)[1]
