"""Layouts have their properties on random meshes, rank orders and sizes."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from layout_cases import cases, list_owned_indices

from spmdsim import Op
from spmdsim.arrays.operands import parse_flag
from spmdsim.core import Layout, Mesh, Partial, Replicate, Rule, Shard, bind, split_block
from spmdsim.core.cuts import layout_from_cuts, strategy_from_cuts
from spmdsim.core.notation.layouts import MOST_RANKS
from spmdsim.core.step import Step, overlap
from spmdsim.errors import InputError, LayoutError, RuleError, UsageTypeError
from spmdsim.layout.common_mesh import refine
from spmdsim.layout.element_type import element_type
from spmdsim.layout.windowed_layout import Window, Windowed
from spmdsim.layout.written import parse_entries
from spmdsim.redistribution.grid import split_bounds


@st.composite
def meshes(draw, most=24):
    shape = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4).filter(lambda s: math.prod(s) <= most))
    axes = [f"x{i}" for i in range(len(shape))]
    ranks = draw(st.one_of(st.none(), st.permutations(range(math.prod(shape)))))
    return Mesh(shape, axes, ranks)


@st.composite
def layouts(draw, partial=True, sizes=st.integers(0, 13)):
    mesh = draw(meshes())
    ndim = draw(st.integers(0, 3))
    axes = draw(st.permutations(mesh.axes))
    choices = st.integers(-2 if partial else -1, ndim - 1)
    dims, pending = [[] for _ in range(ndim)], []
    for axis in axes:
        dim = draw(choices)
        if dim >= 0:
            dims[dim].append(axis)
        elif dim == -2:
            pending.append(axis)
    shape = tuple(draw(st.lists(sizes, min_size=ndim, max_size=ndim)))
    return Layout(mesh, dims, pending), shape


@given(layouts())
def test_shards_tile_the_tensor(case):
    """Elements belong to exactly one shard number, and to all ranks with this number."""
    layout, shape = case
    owners = {}
    for rank in layout.mesh.rank_list:
        for index in itertools.product(*(range(*pair) for pair in layout.bounds(shape, rank))):
            owners.setdefault(index, Counter())[layout.shard_index(rank)] += 1
    copies = layout.mesh.size // layout.shard_count
    assert set(owners) == set(itertools.product(*map(range, shape)))
    assert all(list(numbers.values()) == [copies] for numbers in owners.values())


@given(layouts())
def test_bounds_equal_cutting_lists_axis_by_axis(case):
    layout, shape = case
    mesh = layout.mesh
    for rank in mesh.rank_list:
        coords = mesh.coords(rank)
        for size, entry, (start, stop) in zip(shape, layout.dims, layout.bounds(shape, rank)):
            assert list_owned_indices(size, entry, mesh.axes, mesh.shape, coords) == list(range(start, stop))


@given(layouts())
def test_split_bounds_equal_bounds_of_each_rank(case):
    layout, shape = case
    bounds = split_bounds(layout.mesh, layout.dims, tuple(shape))
    assert bounds.shape == (2, len(shape), layout.mesh.size) and not bounds.flags.writeable
    for position, rank in enumerate(layout.mesh.rank_list):
        assert tuple(map(tuple, bounds[..., position].T.tolist())) == layout.bounds(shape, rank)
        assert layout.local_shape(shape, rank) == tuple(b - a for a, b in layout.bounds(shape, rank))


@given(layouts())
def test_shard_numbers_are_dense_and_identify_shards(case):
    layout, shape = case
    numbers = {rank: layout.shard_index(rank) for rank in layout.mesh.rank_list}
    assert set(numbers.values()) == set(range(layout.shard_count))
    bounds_by_number = {}
    for rank, number in numbers.items():
        assert bounds_by_number.setdefault(number, layout.bounds(shape, rank)) == layout.bounds(shape, rank)
    # If no shard is empty, numbers follow the order of the elements.
    if all(size >= count for size, count in zip(shape, layout.cuts)):
        order = [bounds_by_number[number] for number in range(layout.shard_count)]
        assert order == sorted(set(order))


@given(layouts())
def test_replicas_agree_and_partition_the_ranks(case):
    layout, shape = case
    groups = {layout.replica_ranks(rank) for rank in layout.mesh.rank_list}
    assert sorted(rank for group in groups for rank in group) == sorted(layout.mesh.rank_list)
    for group in groups:
        assert len({layout.bounds(shape, rank) for rank in group}) == 1
        for rank in group:
            assert rank in group and layout.replica_ranks(rank) == group
    if not layout.partial:
        ranks_by_number = {}
        for rank in layout.mesh.rank_list:
            ranks_by_number.setdefault(layout.shard_index(rank), set()).add(rank)
        assert {frozenset(group) for group in groups} == {frozenset(g) for g in ranks_by_number.values()}


@given(meshes(), st.integers(0, 4), st.data())
def test_placements_of_a_layout_make_an_equal_layout(mesh, ndim, data):
    kinds = [Replicate(), Partial("max"), *(Shard(d) for d in range(ndim))]
    placements = tuple(data.draw(st.sampled_from(kinds)) for _ in mesh.axes)
    layout = Layout.from_placements(mesh, placements, ndim)
    assert layout.placements == placements
    assert all(list(e) == sorted(e, key=mesh.axes.index) for e in layout.dims)
    assert Layout.from_placements(mesh, layout.placements, ndim) == layout


@given(layouts(partial=False))
def test_to_dict_describes_the_layout(case):
    layout, shape = case
    fields = layout.to_dict()
    axes = tuple(reversed(fields["alias_name"]))
    numbers = [n if isinstance(n, tuple) else (n,) for n in fields["tensor_map"]]
    dims = [tuple(axes[k] for k in entry if k != -1) for entry in numbers]
    rebuilt = Layout(Mesh(fields["device_matrix"], fields["alias_name"], fields["rank_list"]), dims)
    assert rebuilt == layout and hash(rebuilt) == hash(layout)
    assert all(rebuilt.bounds(shape, r) == layout.bounds(shape, r) for r in layout.mesh.rank_list)


@given(meshes(), st.data())
def test_groups_differ_only_on_their_axes(mesh, data):
    axes = data.draw(st.lists(st.sampled_from(mesh.axes), unique=True))
    groups = mesh.groups(*axes)
    assert sorted(r for group in groups for r in group) == sorted(mesh.rank_list)
    for group in groups:
        for rank in group:
            assert mesh.group(rank, *axes) == group
        fixed = {tuple(c for a, c in zip(mesh.axes, mesh.coords(r)) if a not in axes) for r in group}
        assert len(fixed) == 1
    for rank in mesh.rank_list:
        assert mesh.rank_of(mesh.coords(rank)) == rank


@pytest.mark.parametrize("case", cases("layouts_oneflow_paddle", "balanced_split"))
def test_balanced_splits_equal_published_ranges(case):
    blocks = [split_block(0, case["total"], case["parts"], i) for i in range(case["parts"])]
    assert [[start, start + size] for start, size in blocks] == case["ranges"]


@pytest.mark.parametrize("case", cases("layouts_peers", "uneven_local_shapes_heat"))
def test_chunks_equal_published_chunks(case):
    chunks = [list(split_block(0, case["n"], case["ranks"], i)) for i in range(case["ranks"])]
    assert chunks == case["chunks"]


@pytest.mark.parametrize("case", cases("layouts_oneflow_paddle", "mesh_subgroup"))
def test_groups_equal_published_subgroups(case):
    axes = [f"d{i}" for i in range(len(case["mesh"]))]
    mesh = Mesh(case["mesh"], axes)
    selected = [axis for axis, chosen in zip(axes, case["axis_selected"]) if chosen]
    assert list(mesh.group(case["rank"], *selected)) == case["group"]


def test_two_axes_split_a_dim_one_after_the_other():
    """Six elements over 2 x 2 ranks have lengths 2, 1, 2, 1; one split by 4 would give 2, 2, 1, 1."""
    layout = Mesh((2, 2), ("a", "b"))(("a", "b"))
    assert [layout.local_shape((6,), r) for r in range(4)] == [(2,), (1,), (2,), (1,)]


@pytest.mark.parametrize(
    ("dims", "partial", "words"),
    [
        (("zz", None), (), "'zz' is not found"),
        (("a", "a"), (), "'a' is used twice"),
        ((("a", "b"), "b"), (), "'b' is used twice"),
        (("a", None), ("a",), "'a' is used twice"),
        ((None, None), {"a": "sum", "b": "max"}, "partial must have one reduction for all axes"),
        ((None, None), {"a": "median"}, "no reduction is called 'median'"),
    ],
)
def test_invalid_layouts_are_refused(dims, partial, words):
    with pytest.raises(LayoutError, match=words):
        Layout(Mesh((2, 2), ("a", "b")), dims, partial)


def test_a_mesh_contains_only_its_ranks():
    assert [rank in Mesh((2, 2), ("x", "y")) for rank in (-1, 0, 3, 4)] == [False, True, True, False]
    assert [rank in Mesh((2,), ("x",), [5, 1]) for rank in (-1, 0, 1, 5)] == [False, False, True, True]
    with pytest.raises(LayoutError, match=r"ranks must not be negative, but got \(-1, 0\)"):
        Mesh((2,), ("x",), [-1, 0])


def test_a_rank_outside_of_the_mesh_has_an_empty_shard():
    layout = Mesh((2,), ("a",), ranks=(3, 5))("a")
    assert layout.local_shape((7,), 4) == (0,)
    assert layout.bounds((7,), 5) == ((4, 7),)
    with pytest.raises(LayoutError, match="rank 4 is not in the mesh"):
        layout.shard_index(4)


def test_the_repr_of_a_layout_evaluates_to_the_layout():
    mesh = Mesh((2, 3), ("a", "b"))
    for layout in (
        mesh(),
        mesh(partial={"a": "sum"}),
        mesh("b", partial={"a": "max"}),
        mesh(("b", "a"), None),
    ):
        assert eval(repr(layout), {"Mesh": Mesh}) == layout
    assert str(mesh(partial={"a": "sum"})) == "[sum pending over a] over a=2 b=3"
    assert str(mesh("b", partial={"a": "max"})) == "[b, max pending over a] over a=2 b=3"


def test_ranks_become_integers_of_python():
    ranks = Mesh((2, 2), ("x", "y"), np.array([[3, 1], [0, 2]], np.int32).reshape(-1)).rank_list
    assert tuple(ranks) == (3, 1, 0, 2) and {type(rank) for rank in ranks} == {int}


def test_negative_dims_count_from_the_end():
    mesh = Mesh((2,), ("x",))
    assert Layout.from_placements(mesh, [Shard(-2)], 2) == mesh("x", None)
    for dim in (-3, 2):
        with pytest.raises(LayoutError, match="out of range for a tensor of 2 dims"):
            Layout.from_placements(mesh, [Shard(dim)], 2)


def test_an_unknown_axis_has_no_size():
    with pytest.raises(LayoutError, match="axis 'y' is not found in the mesh"):
        Mesh((2,), ("x",)).axis_size("x", "y")


@pytest.mark.parametrize(
    "text, ndim, entries",
    [
        ("(a,b)", 2, ["a", "b"]),
        ("(a,b)", 1, [("a", "b")]),
        ("(a,b)", None, [("a", "b")]),
        ("(a,b,c)", 2, [("a", "b", "c")]),
        ("(a)", 1, [("a",)]),
        ("[a,b]", 1, ["a", "b"]),
        ("((a,b),c)", None, [("a", "b"), "c"]),
        ("a,(b,-1)", None, ["a", ("b", -1)]),
        ("", 0, []),
    ],
)
def test_brackets_group_dims_or_axes_of_one_dim(text, ndim, entries):
    assert parse_entries(text, ndim) == entries


def test_invalid_meshes_and_layouts_are_refused():
    mesh = Mesh((2, 2), ("a", "b"))
    for make, error, words in (
        (lambda: Mesh((2.0,), ("x",)), UsageTypeError, "mesh shape must be integers"),
        (lambda: Mesh((True,), ("x",)), UsageTypeError, "mesh shape must be integers"),
        (lambda: Mesh((2, 0), ("x", "y")), LayoutError, r"shape must be 1 or more, got \(2, 0\)"),
        (lambda: Mesh((2,), ("",)), LayoutError, "axis names must not be empty or 'None', got ''"),
        (lambda: Mesh((2,), ("None",)), LayoutError, "axis names must not be empty or 'None', got 'None'"),
        (lambda: Mesh((2,), ("x",), [0, 1.5]), UsageTypeError, "ranks must be integers"),
        (lambda: Mesh((2,), ("x",), [0, "1"]), UsageTypeError, "ranks must be integers"),
        (lambda: Mesh((2,), ("x",), [False, True]), UsageTypeError, "ranks must be integers"),
        (lambda: Mesh((MOST_RANKS + 1,), ("x",)), LayoutError, "a mesh must have at most"),
        (lambda: Shard(True), UsageTypeError, "Shard: dim must be an integer"),
        (lambda: Shard("0"), UsageTypeError, "Shard: dim must be an integer"),
        (lambda: mesh(0), UsageTypeError, "a dim must be an axis name, a tuple of names or None"),
        (lambda: mesh([0]), UsageTypeError, "a dim must be an axis name, a tuple of names or None"),
        (lambda: mesh(("a", 1)), UsageTypeError, "a dim must be an axis name, a tuple of names or None"),
        (lambda: mesh("zz"), LayoutError, "'zz' is not found"),
        (lambda: mesh("a").bounds((4, 4), 0), LayoutError, "is for tensors of 1 dim, but the shape is"),
        (lambda: mesh("a").is_even((4, 4)), LayoutError, "is for tensors of 1 dim, but the shape is"),
    ):
        with pytest.raises(error, match=words):
            make()


def test_reduced_and_canonical_layouts_drop_pending_and_size_1_axes():
    mesh = Mesh((1, 2), ("a", "b"))
    plain, pending = mesh("b", None), mesh("b", None, partial={"a": "sum"})
    assert plain.reduced is plain.canonical is plain and pending.reduced == pending.canonical == plain
    assert mesh("a", "b").canonical == mesh(None, "b")
    assert mesh(None, "b", partial="a") != mesh(None, "b") != 5


def test_large_meshes_print_abbreviated_ranks():
    small, large = (Mesh((n,), ("x",), range(n)[::-1]) for n in (24, 25))
    assert "ranks" not in str(small).split("on ranks")[
        1
    ] and "on ranks (24, 23, 22, ..., 0: 25 ranks, " in str(large)
    assert Mesh((MOST_RANKS,), ("x",)).size == MOST_RANKS
    with pytest.raises(LayoutError, match=r"which holds ranks \[3, 5\]"):
        Mesh((2,), ("a",), ranks=(3, 5)).position(4)


def test_factors_of_axes_get_unused_names():
    first, second = Mesh((4, 2), ("x", "x.1"))("x", "x.1"), Mesh((2, 4), ("p", "q"))("p", "q")
    common = Mesh((2, 2, 2), ("p", "x.1'", "x.1"))
    assert refine(first, second, (8, 8)) == (common(("p", "x.1'"), "x.1"), common("p", ("x.1'", "x.1")))


def test_refine_ignores_axes_of_size_1():
    first, second = Mesh((1, 4), ("o", "x")), Mesh((2, 2), ("a", "b"))
    assert refine(first(("o", "x")), second("a"), (6,)) is None
    assert refine(first(("o", "x")), second("a"), (7,)) == (second(("a", "b")), second("a"))


def test_the_rules_of_truth_values_reduce_with_any():
    truth, f4, f8 = map(np.dtype, ("?", "f4", "f8"))
    rule = Rule.parse("m, m -> m", linear=[[0, 1], [1]], passes=("sum", "avg", "max"))

    def typed(operands, result):
        op = Op("both", rule, np.add, dtype=lambda *_: result)
        return op.bind(((4,), (4,)), {}, operands).rule

    assert typed((truth, truth), truth).passes == {"any", "max"}
    assert typed((f8, f4), f4).linear == (frozenset({1}),)
    assert typed((f4, f4), f4) == rule
    assert typed((f4, f8), f4).linear == ()


@pytest.mark.parametrize(
    "boxes, common",
    [
        ((((0, 2),), ((2, 4),)), None),
        ((((0, 2),), ((3, 4),)), None),
        ((((0, 4), (0, 2)), ((1, 2), (2, 4))), None),
        ((((0, 4), (0, 2)), ((1, 2), (1, 4))), ((1, 2), (1, 2))),
    ],
)
def test_boxes_overlap_in_a_box_or_not_at_all(boxes, common):
    assert overlap(*boxes) == overlap(*boxes[::-1]) == common


def test_ranks_have_positions_in_their_groups():
    mesh = Mesh((2, 2), ("a", "b"), [3, 1, 0, 2])
    step = Step("all_reduce", ("b", "a"), mesh(partial=("a", "b")), mesh(), (), "sum")
    assert [step.group_position(rank) for rank in range(4)] == [0, 1, 2, 3] and step.number == hash(step)
    step = Step("all_reduce", ("b",), mesh(partial="b"), mesh(), (), "sum")
    assert [step.group_position(rank) for rank in range(4)] == [0, 0, 1, 1]
    plain = Mesh((2, 2), ("a", "b"))
    step = Step("all_reduce", ("b", "a"), plain(partial=("a", "b")), plain(), (), "sum")
    assert [step.group_position(rank) for rank in range(4)] == [0, 1, 2, 3]
    exchange = Step("all_to_all", ("a",), plain("a", None), plain(None, "a"), (1, 1))
    assert [exchange.nbytes(rank, 4) for rank in range(4)] == [0] * 4
    exchange = Step("all_to_all", ("a",), plain("a", None), plain(None, "a"), (1, 3))
    assert [exchange.nbytes(rank, 4) for rank in range(4)] == [0, 0, 4, 4]


def test_windows_read_the_elements_of_all_their_positions():
    """Windows of all kinds read the union of the elements that their positions read.

    Wrapped windows read elements by their number modulo the size.
    """
    mesh, count = Mesh((3,), ("x",)), 0
    kinds = itertools.product((4, 5, 7), (-3, -1, 0, 2), (1, 2, 3), (1, 2, 3, -1), (False, True))
    for size, first, width, stride, wrap in kinds:
        if stride < 0 and width > 1:
            continue
        n, window = 9, Window(size, first if stride > 0 else size - 1 + first, width, stride, wrap)
        read = {i: {i * stride + window.first + k for k in range(width)} for i in range(size)}
        if stride > 1 == width or not wrap:
            read = {i: {e for e in elements if wrap or 0 <= e < n} for i, elements in read.items()}
        for start, stop in ((0, size), (1, 3), (2, 2), (size - 1, size)):
            expected = set().union(*[read[i] for i in range(start, stop)])
            reads = window.reads(start, stop, n)
            if stride > 0:
                assert expected <= {*reads}, window
                assert {*reads} == expected or width < stride, window
            elif min(window.first, window.first + (size - 1) * stride) >= 0 and window.first < n:
                assert {*reads} == expected, window
        for start, stop in ((0, 3), (2, 5), (8, 9)):
            readers = [i for i, elements in read.items() if elements & {*range(start, stop)}]
            low, high = window.positions_reading(start, stop)
            assert [*range(low, high)] == readers, (window, start, stop)
            count += bool(readers)
        halo = Windowed(mesh("x", None), (window, None))
        shapes = [halo.local_shape((n, 5), rank) for rank in range(3)]
        for rank, pair in enumerate(halo.bounds((n, 5), rank) for rank in range(3)):
            elements_of_rank = halo.reads((n, 5), rank)[0]
            assert pair == (
                (min(elements_of_rank, default=0), min(elements_of_rank, default=0) + len(elements_of_rank)),
                (0, 5),
            )
        assert all(a <= b for shape in shapes for a, b in zip(shape, halo.largest_shape((n, 5))))
        if width == 1 and not wrap and all(elements and 0 <= min(elements) < n for elements in read.values()):
            assert halo.largest_shape((n, 5)) == tuple(map(max, *shapes))
        assert halo.with_partial({}) == halo and hash(halo.with_partial()) == hash(halo)
    assert count > 100


def test_wrong_strategies_types_and_flags_are_refused():
    mesh = Mesh((2, 3), ("x", "y"))
    bound = bind(Rule.parse("1 m -> m"), ((1, 6),))
    for ask, error, words in (
        (lambda: strategy_from_cuts(bound, ((2, 3),), 6), RuleError, "of size 1 must have 1 block, got 2"),
        (lambda: element_type(3.5), InputError, "no element type is called 3.5"),
        (lambda: element_type("__version__"), InputError, "no element type is called '__version__'"),
        (lambda: parse_entries("a),(b", 2), InputError, "brackets must match"),
        (lambda: parse_flag("keepdims", bool), UsageTypeError, "keepdims must be True or False"),
        (lambda: parse_flag("keepdims", 2), UsageTypeError, "keepdims must be True or False"),
    ):
        with pytest.raises(error, match=words):
            ask()
    pending = mesh(None, None, partial=("x", "y"))
    assert layout_from_cuts((2, 3), pending, (6, 6)) == mesh("x", "y")
    assert layout_from_cuts((6, 1), pending, (6, 6)) == mesh(("x", "y"), None)
    sharded = Op("first", Rule.parse("m n, k -> m n k"), np.multiply.outer).shard([[1, 2], (3,)], [[1, 2, 3]])
    assert (sharded.in_strategy, sharded.out_strategy) == (((1, 2), (3,)), ((1, 2, 3),))


def test_former_names_return_equal_values() -> None:
    layout = Mesh((2, 3), ("x", "y"))("y", None)
    assert layout.parts == layout.cuts == (3, 1)
    assert [layout.shard_number(rank) for rank in range(6)] == [layout.shard_index(rank) for rank in range(6)]
    assert layout.replicas(4) == layout.replica_ranks(4) == (1, 4)
