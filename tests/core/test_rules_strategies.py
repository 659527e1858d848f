"""Strategies determine layouts and layouts determine strategies; counts and tables equal the published ones."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spmdsim import LockStep, Tensor, ops
from spmdsim.core import Layout, Mesh, Partial, Replicate, Rule, Shard, Strategy, bind
from spmdsim.core.cuts import factor_cuts, strategy_from_cuts
from spmdsim.cost.roofline import flops_of
from spmdsim.errors import RuleError

MATMUL = Rule.parse("m k, k n -> m n", linear="each", order="m k n")
BATCH = Rule.parse("b m k, b k n -> b m n", linear="each")
SQUARE, CUBE = Mesh((2, 2), ("x", "y")), Mesh((2, 2, 2), ("x", "y", "z"))


@pytest.mark.parametrize(
    ("rule", "shapes", "mesh", "plain", "with_partial"),
    [
        (MATMUL, ((8, 8), (8, 8)), Mesh((2,), ("x",)), 4, 6),
        (MATMUL, ((8, 8), (8, 8)), SQUARE, 16, 36),
        (BATCH, ((8, 8, 8), (8, 8, 8)), Mesh((2,), ("x",)), 5, 7),
        (BATCH, ((8, 8, 8), (8, 8, 8)), SQUARE, 25, 49),
        (MATMUL, ((8, 8), (8, 8)), CUBE, 64, 216),
    ],
)
def test_counts_of_strategies(rule, shapes, mesh, plain, with_partial):
    """DTensor's tests assert 4, 16 and 5, 25 strategies; 36 are OneFlow's legal pairs on 2 x 2 ranks."""
    bound = bind(rule, shapes)
    assert len(list(bound.strategies(mesh, partial=False))) == plain
    assert len(list(bound.strategies(mesh))) == with_partial


def test_the_signature_of_the_2d_document():
    bound = bind(MATMUL, ((4, 8), (8, 6)))
    x = Layout.from_placements(SQUARE, [Replicate(), Shard(0)], 2)
    w = Layout.from_placements(SQUARE, [Shard(1), Replicate()], 2)
    (y,) = bound.output_layouts(bound.infer([x, w]))
    assert y.placements == (Shard(1), Shard(0))


@given(st.integers(0, 215), st.sampled_from([SQUARE, CUBE]))
def test_infer_is_the_inverse_of_layouts(number, mesh):
    bound = bind(MATMUL, ((8, 8), (8, 8)))
    strategies = list(bound.strategies(mesh))
    strategy = strategies[number % len(strategies)]
    assert bound.infer(bound.input_layouts(strategy)) == strategy


def test_gradient_layouts_follow_the_transposed_rule():
    bound = bind(MATMUL, ((8, 8), (8, 8)))
    strategy = Strategy.of(CUBE, {"m": "x", "k": "y", "n": "z"})
    assert bound.gradient_layout(strategy, 0) == CUBE("x", "y", partial="z")
    assert bound.gradient_layout(strategy, 1) == CUBE("y", "z", partial="x")
    passed = Strategy.of(SQUARE, {"m": "x"}, [("y", frozenset({0}), "sum")])
    assert bound.gradient_layout(passed, 0) == SQUARE("x", None)
    assert bound.gradient_layout(passed, 1) == SQUARE(None, None, partial=("x", "y"))


@pytest.mark.parametrize(
    ("x", "w", "message"),
    [
        ([Shard(1)], [Replicate()], "factor 'k' .* split by 'x' in operand 0 but by no axis in operand 1"),
        ([Shard(0)], [Shard(1)], "axis 'x' splits factor 'm' .* and factor 'n'"),
        ([Partial()], [Partial()], "operands \\[0, 1\\] are partial \\(sum\\) over axis 'x'"),
        ([Partial("max")], [Replicate()], "partial \\(max\\)"),
    ],
)
def test_errors_name_operands_that_do_not_fit(x, w, message):
    mesh = Mesh((2,), ("x",))
    bound = bind(MATMUL, ((8, 8), (8, 8)))
    with pytest.raises(RuleError, match=message):
        bound.infer([Layout.from_placements(mesh, x, 2), Layout.from_placements(mesh, w, 2)])


def test_compound_dims_split_where_blocks_stay_contiguous():
    mesh = Mesh((2, 4), ("x", "y"))
    bound = bind(Rule.parse("(a b) -> a b"), ((32,),), (("a", 4),))
    allowed = {str(s) for s in bound.strategies(mesh)}
    assert allowed == {"replicated", "a:x", "a:y", "a:y b:x"}  # b only if a is in its 4 blocks
    matching_mesh = Mesh((4, 2), ("x", "y"))
    assert "a:x b:y" in {str(s) for s in bound.strategies(matching_mesh)}
    for each_mesh in (mesh, matching_mesh):  # infer finds the factor of each axis of a dim
        assert all(bound.infer(bound.input_layouts(s)) == s for s in bound.strategies(each_mesh))
    with pytest.raises(RuleError, match="can only be split where 'a' is split completely"):
        bound.check(Strategy.of(matching_mesh, {"a": "y", "b": "x"}))


def test_whole_factors_are_not_split():
    bound = bind(Rule.parse("... w -> ... w", whole="w"), ((4, 8),))
    assert {str(s) for s in bound.strategies(Mesh((2,), ("x",)))} == {"replicated", ".0:x"}
    with pytest.raises(RuleError, match=r"'w' .* must not be split"):
        bound.infer([Mesh((2,), ("x",))(None, "x")])


def test_a_strategy_for_an_unknown_factor_is_refused():
    mesh, world = Mesh((2,), ("x",)), LockStep(2)
    x = Tensor.from_global(np.ones((2, 2)), mesh(None, None), world)
    for strategy in (Strategy.of(mesh, {"q": "x"}), {"q": "x"}):
        with pytest.raises(
            RuleError, match=r"strategy splits 'q', but the rule .* has factors \['m', 'k', 'n'\]"
        ):
            ops.matmul.shard(strategy)(x, x)


def test_different_reductions_do_not_mix():
    rule = Rule.parse("a b -> a", reduce="max", linear="each", passes=("sum",))
    strategies = list(bind(rule, ((8, 8),)).strategies(SQUARE))
    kinds = {
        op
        for s in strategies
        for layout in bind(rule, ((8, 8),)).output_layouts(s)
        for _, op in layout.partial
    }
    assert kinds == {"max", "sum"}
    assert not any(s.passed and "b" in s.axes for s in strategies)


# -- .shard cuts ------------------------------------------------------------------------------------


def test_cuts_become_a_device_matrix():
    strategy = strategy_from_cuts(bind(MATMUL, ((32, 784), (784, 512))), ((2, 4), (4, 1)), 8)
    assert strategy.mesh == Mesh((2, 4, 1), ("m", "k", "n"))
    x, w = bind(MATMUL, ((32, 784), (784, 512))).input_layouts(strategy)
    assert x.to_dict()["tensor_map"] == (2, 1)
    assert w.to_dict()["tensor_map"] == (1, 0)


@pytest.mark.parametrize(
    ("side", "shard_indices"), [("right", [0, 0, 1, 1, 2, 2, 3, 3]), ("left", [0, 1, 2, 3] * 2)]
)
def test_repeated_calculation_on_either_side(side, shard_indices):
    bound = bind(Rule.parse("... -> ..."), ((8, 3),))
    strategy = strategy_from_cuts(bound, ((4, 1),), 8, repeat=side)
    (layout,) = bound.input_layouts(strategy)
    assert [layout.shard_index(rank) for rank in range(8)] == shard_indices


@pytest.mark.parametrize(
    ("cuts", "message"),
    [
        (((2, 4),), "takes 2 operands, but the strategy"),
        (((2, 4), (4,)), "has 2 dims, but its strategy is"),
        (((2, 0), (4, 1)), "dim 1 of operand 0 must have 1 or more blocks, got 0"),
        (
            ((2, 4), (2, 1)),
            "factor 'k' .* must be cut equally in all operands, got 4 blocks and, in dim 0 of operand 1, 2",
        ),
        (((3, 1), (1, 1)), "= 3 blocks, which must divide the number of ranks, got 8"),
    ],
)
def test_cuts_that_do_not_fit_are_refused(cuts, message):
    with pytest.raises(RuleError, match=message):
        strategy_from_cuts(bind(MATMUL, ((32, 784), (784, 512))), cuts, 8)


def test_cuts_and_strategies_determine_each_other():
    # Try each power-of-two cut of m, k and n on 8 ranks.
    bound = bind(MATMUL, ((16, 16), (16, 16)))
    for m, k, n in itertools.product((1, 2, 4, 8), repeat=3):
        if m * k * n > 8:
            continue
        assert factor_cuts(bound, ((m, k), (k, n))) == {"m": m, "k": k, "n": n}
        strategy = strategy_from_cuts(bound, ((m, k), (k, n)), 8)
        assert [strategy.parts(f) for f in "mkn"] == [m, k, n]
        assert strategy.mesh.size == 8


def test_cuts_of_compound_dims_split_the_major_factor_first():
    bound = bind(Rule.parse("(a b) -> a b"), ((32,),), (("a", 4),))
    assert [dict(factor_cuts(bound, ((cut,),))) for cut in (2, 4, 8)] == [
        {"a": 2, "b": 1},
        {"a": 4, "b": 1},
        {"a": 4, "b": 2},
    ]


def test_only_compound_factors_must_be_cut_evenly():
    three = Mesh((3,), ("x",))
    bound = bind(Rule.parse("(a b) c -> a b c"), ((32, 4),), (("a", 4),))
    with pytest.raises(RuleError, match="can only be cut evenly, not into 3 blocks"):
        bound.check(Strategy.of(three, {"a": "x"}))
    bound.check(Strategy.of(three, {"c": "x"}))


def test_strategies_have_more_blocks_than_elements_only_on_request():
    bound, mesh = bind(MATMUL, ((1, 8), (8, 8))), Mesh((2,), ("x",))
    texts = {str(strategy) for strategy in bound.strategies(mesh, partial=False)}
    assert texts == {"replicated", "k:x", "n:x"}
    texts = {str(strategy) for strategy in bound.strategies(mesh, partial=False, empty=True)}
    assert texts == {"replicated", "m:x", "k:x", "n:x"}


def test_nothing_is_repeated_where_the_cuts_use_all_ranks():
    for repeat in ("left", "right"):
        strategy = strategy_from_cuts(bind(MATMUL, ((8, 8), (8, 8))), ((2, 1), (1, 2)), 4, repeat=repeat)
        assert strategy.mesh.size == 4 and all("repeat" not in axis.lower() for axis in strategy.mesh.axes)


def test_nothing_is_pending_over_an_axis_of_one_rank():
    mesh = Mesh((1, 2), ("one", "x"))
    bound = bind(MATMUL, ((8, 8), (8, 8)))
    (layout,) = bound.output_layouts(Strategy.of(mesh, {"k": ("one", "x")}))
    assert layout.partial_axes == ("x",)
    assert bound.gradient_layout(Strategy.of(mesh, {"n": ("one", "x")}), 0).partial_axes == ("x",)


def test_operands_may_be_partial_by_the_reductions_that_the_rule_passes():
    for op in ("max", "sum"):
        rule = Rule.parse("m n -> m", reduce=op, linear="each", passes=(op,))
        strategies = list(bind(rule, ((4, 4),)).strategies(Mesh((2,), ("x",))))
        assert {passed[-1] for strategy in strategies for passed in strategy.passed} == {op}


def test_axes_beyond_the_size_of_a_dim_still_split_it():
    bound = bind(MATMUL, ((2, 8), (8, 8)))
    strategy = bound.infer([SQUARE(("x", "y"), None), SQUARE(None, None)])
    assert dict(strategy.splits)["m"] == ("x", "y")


def test_a_contraction_sums_a_factor_of_several_operands():
    summed = bind(Rule.parse("m k -> m", linear="each"), ((3, 4),))
    both = bind(Rule.parse("m k, k n -> m n, m k n", linear="each"), ((3, 4), (4, 5)))
    turned = bind(Rule.parse("m k, k n -> m k n, m n", linear="each"), ((3, 4), (4, 5)))
    jointly = bind(Rule.parse("m k, k n -> m n", linear=[[0], [0, 1]]), ((3, 4), (4, 5)))
    assert [b.contraction for b in (summed, both, turned, jointly)] == [False, True, False, False]
    assert [flops_of(b) for b in (summed, both, turned)] == [12, 120, 60]
    assert both.rule.reduced == turned.rule.reduced == ("k",) and jointly.rule.linear[1] == {0, 1}
    assert Rule.parse("... m -> m", reduce={"...": "max"}).reduction(".0") == "max"


def test_axes_split_the_major_factor_until_its_size_is_used_up():
    rule, mesh = Rule.parse("(a b) -> a b"), Mesh((2, 4, 3), ("x", "y", "z"))
    for sizes, splits in (
        ({"a": 2, "b": 12}, {"a": ("x",), "b": ("y", "z")}),
        ({"a": 8, "b": 3}, {"a": ("x", "y"), "b": ("z",)}),
    ):
        strategy = bind(rule, ((24,),), tuple(sizes.items())).infer([mesh(("x", "y", "z"))])
        assert dict(strategy.splits) == splits


@pytest.mark.parametrize(
    "shapes", [((7,), (2,), (3,)), ((6,), (2,), (4,)), ((2,), (2,), (3,))], ids=["odd", "more", "less"]
)
def test_factors_of_a_dim_must_multiply_to_its_size(shapes):
    with pytest.raises(RuleError, match=r"\(a b\) of the rule .* cannot have size"):
        bind(Rule.parse("(a b), a, b -> a b"), shapes)
    with pytest.raises(RuleError, match="its known factors make 0"):
        bind(Rule.parse("(a b), a -> a b"), ((0,), (0,)))


def test_partial_operands_pass_with_one_reduction_only():
    mesh = Mesh((2, 2), ("x", "y"))
    bound = bind(Rule.parse("m, m -> m", linear="all", passes=("sum",)), ((4,), (4,)))
    pending = mesh("y", partial="x")
    assert bound.infer([pending, pending]).passed == (("x", frozenset({0, 1}), "sum"),)
    both = bind(Rule.parse("m, m -> m", linear="all"), ((4,), (4,)))
    with pytest.raises(RuleError, match=r"operands \[0, 1\] are partial \(avg, sum\) over axis 'x'"):
        both.infer([pending, mesh("y", partial={"x": "avg"})])


def test_errors_name_axes_that_split_a_dim_of_size_one():
    mesh, bound = Mesh((2, 2), ("x", "y")), bind(Rule.parse("1 m -> m"), ((1, 4),))
    for axes, words in (("x", "'x' splits it"), (("x", "y"), r"\('x', 'y'\) splits it")):
        with pytest.raises(RuleError, match=words):
            bound.infer([mesh(axes, None)])
