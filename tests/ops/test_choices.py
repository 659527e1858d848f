"""Chosen strategies move no more bytes than another system, and no strategy has a lower price."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import replace

import numpy as np
import pytest
from every_layout import every_layout
from layout_cases import cases

import spmdsim.ops as ops
from spmdsim import linalg
from spmdsim.auto_parallel.programs.record_program import record_program
from spmdsim.core import Layout, Mesh, Partial, Replicate, Shard, Strategy
from spmdsim.cost import Link, Machine
from spmdsim.cost.roofline import forward_work
from spmdsim.errors import RuleError
from spmdsim.redistribution import plan
from spmdsim.worlds import ShapeOnly

PLACEMENTS = {"R": Replicate(), "P": Partial("sum"), **{f"S{d}": Shard(d) for d in range(3)}}


class Bytes:
    """A cost model in which only bytes count."""

    name = "bytes"

    def seconds(self, collective, group_size, nbytes, axes=None, *, messages=None, copied=0.0):
        return nbytes

    def compute_seconds(self, flops, nbytes=0.0):
        return 0.0


ONLY_BYTES = Bytes()


def choose(bound, layouts, dtypes, machine=None):
    """Return the strategy that a world of this machine chooses for operands with these layouts."""
    world = ShapeOnly(layouts[0].mesh.size)
    world.machine = machine
    return world.planner.choose(bound, layouts, [np.dtype(dtype) for dtype in dtypes])


def mesh_of(case):
    return Mesh(tuple(case["mesh"]), [f"d{i}" for i in range(len(case["mesh"]))])


def layout(mesh, texts, ndim):
    texts = [texts] if isinstance(texts, str) else texts
    return Layout.from_placements(mesh, [PLACEMENTS[text] for text in texts], ndim)


def largest_received(src, dst, shape, dtype):
    """Return the bytes that the busiest rank receives in a redistribution."""
    route = plan(src, dst, shape, dtype)
    return max(route.nbytes(rank) for rank in src.mesh.rank_list)


def total(bound, strategy, layouts, dtypes):
    """Return the bytes that the busiest rank receives for the operands and to complete the result."""
    operand_bytes = sum(
        largest_received(src, dst, shape, dtype)
        for src, dst, shape, dtype in zip(layouts, bound.input_layouts(strategy), bound.shapes, dtypes)
    )
    result = bound.output_layouts(strategy)[0]
    result_bytes = (
        largest_received(result, result.reduced, bound.output_shapes[0], "float32") if result.partial else 0
    )
    return operand_bytes + result_bytes


def infer_or_choose(bound, layouts, dtypes):
    """Return the strategy that the rule infers, or the one with the fewest bytes."""
    try:
        return bound.infer(layouts)
    except RuleError:
        return choose(bound, layouts, dtypes, ONLY_BYTES)


def strategies_with_result(bound, mesh, layouts, result):
    """Yield the strategies with the other system's `result` layout that make no operand partial."""
    for strategy in bound.strategies(mesh, empty=True):
        before = bound.input_layouts(strategy)
        if bound.output_layouts(strategy)[0].placements == result.placements and all(
            set(needed.partial) <= set(current.partial) for needed, current in zip(before, layouts)
        ):
            yield strategy


def check(bound, mesh, layouts, dtypes, result):
    strategy = infer_or_choose(bound, layouts, dtypes)
    their_strategies = list(strategies_with_result(bound, mesh, layouts, result))
    assert their_strategies, "their result is a strategy of the rule"
    assert total(bound, strategy, layouts, dtypes) <= min(
        total(bound, s, layouts, dtypes) for s in their_strategies
    )


@pytest.mark.parametrize("case", cases("operators_peers", "mm_strategy_runs"))
def test_products_never_move_more(case):
    mesh = mesh_of(case)
    bound = ops.matmul.op.bind([tuple(case["m_k"]), tuple(case["k_n"])], {})
    layouts = [layout(mesh, case[k], 2) for k in ("a", "b")]
    check(bound, mesh, layouts, ("float32",) * 2, layout(mesh, case["out"], 2))


@pytest.mark.parametrize("case", cases("operators_peers", "xla_matmul_runs"))
def test_products_with_a_wanted_result_never_receive_more(case):
    """Strategies of the rule, redistributions included, need no more bytes than XLA's program."""
    mesh, shape = mesh_of(case), (case["size"], case["size"])
    bound = ops.matmul.op.bind([shape, shape], {})
    layouts, result_layout = [layout(mesh, case[k], 2) for k in ("a", "b")], layout(mesh, case["out"], 2)

    def total_bytes(strategy):
        moves = zip(layouts, bound.input_layouts(strategy))
        operands = sum(largest_received(src, dst, shape, "float32") for src, dst in moves)
        return operands + largest_received(bound.output_layouts(strategy)[0], result_layout, shape, "float32")

    assert (
        min(total_bytes(s) for s in bound.strategies(mesh, empty=True, partial=False)) <= 4 * case["elements"]
    )


@pytest.mark.parametrize("case", cases("operators_peers", "embedding_strategy_runs"))
def test_embeddings_never_move_more(case):
    mesh = mesh_of(case)
    bound = ops.embedding.op.bind([(64, 32), (1024, 512)], {})
    layouts = [layout(mesh, case["indices"], 2), layout(mesh, case["weight"], 2)]
    out = ["P" if text == "_MaskPartial" else text for text in case["out"]]
    check(bound, mesh, layouts, ("int64", "float32"), layout(mesh, out, 3))


def test_the_choice_includes_the_reduction_of_the_result():
    """Moving the smaller operand would leave a pending product of full size."""
    mesh = Mesh((8,), ("d0",))
    bound = ops.matmul.op.bind([(4096, 64), (64, 4096)], {})
    layouts = [mesh("d0", None), mesh("d0", None)]
    strategy = infer_or_choose(bound, layouts, ("float32", "float32"))
    assert bound.output_layouts(strategy)[0] == mesh("d0", None)


@pytest.mark.ranks(4)
@pytest.mark.parametrize("name", ["max", "min", "prod", "sum", "mean"])
@pytest.mark.parametrize("pending", ["sum", "max", "min"])
def test_pending_operands_are_reduced_before_other_reductions(world, name, pending):
    """Pending sums never become pending maxima, which would cost nothing."""
    from spmdsim.arrays import Tensor

    mesh, x = Mesh((2, 2), ("a", "b")), np.random.default_rng(0).normal(size=(8, 4)) - 2
    for dims in (("b", None), (None, "b"), (None, None)):
        operand = Tensor.from_global(x, Layout(mesh, dims, {"a": pending}), world)
        for dim in (0, 1, None):
            result = getattr(ops, name)(operand, dim).full()
            np.testing.assert_allclose(result, getattr(np, name)(x, axis=dim), rtol=1e-12)


MACHINES = [Machine.laptop(), Machine.cluster(), Machine.accelerators()]
#: Two ranks per node, so that axes of small meshes cross nodes.
PAIRS = replace(Machine.cluster(), name="pairs", ranks_per_node=2)


def arithmetic_of(bound, strategy, dtypes, machine):
    """Return the compute seconds of the first rank, which has the largest shards.

    Each element of the iteration space is computed once, and each byte is moved once. A look-up has one
    operation per element of its result, and reads only as many bytes of its table as it writes.
    """

    def count_elements(layout, shape):
        return math.prod(stop - start for start, stop in layout.bounds(shape, 0))

    factors = Layout(strategy.mesh, [strategy.axes_of(f) for f in bound.sizes])
    points = count_elements(factors, tuple(bound.sizes.values()))
    result = count_elements(bound.output_layouts(strategy)[0], bound.output_shapes[0])
    ends = list(zip(bound.input_layouts(strategy), bound.shapes, dtypes))
    if bound.rule.indexed:
        table = next(
            k for k, term in enumerate(bound.inputs) if any(bound.rule.indexed & {*dim} for dim in term)
        )
        (_, _, dtype), (ids, shape, number) = ends[table], ends[1 - table]
        nbytes = (
            2 * result * np.dtype(dtype).itemsize + count_elements(ids, shape) * np.dtype(number).itemsize
        )
        return machine.compute_seconds(result, nbytes)
    sizes = [np.dtype(dtype).itemsize for dtype in dtypes]
    nbytes = sum(
        count_elements(layout, shape) * size for (layout, shape, _), size in zip(ends, sizes)
    ) + result * max(sizes)
    products = len(dtypes) > 1 and "k" in bound.sizes
    return machine.compute_seconds((2 if products else 1) * points, nbytes)


def seconds_of(bound, strategy, layouts, dtypes, machine):
    """Return the planner's price of all moves of a strategy plus the computation."""
    total = arithmetic_of(bound, strategy, dtypes, machine)
    for src, dst, shape, dtype in zip(layouts, bound.input_layouts(strategy), bound.shapes, dtypes):
        total += plan(src, dst, shape, dtype, machine).seconds
    for output, shape in zip(bound.output_layouts(strategy), bound.output_shapes):
        widest = max(dtypes, key=lambda dtype: np.dtype(dtype).itemsize)
        total += plan(output, output.reduced, shape, widest, machine).seconds
    return total


def random_operator(rng):
    """Return a random operator, bound to shapes, and the types of its operands."""
    a = rng.choice([(64, 64), (1024, 256), (33, 784), (7, 5)])
    f4 = "float32"
    return rng.choice(
        [
            (
                ops.matmul.op.bind([a, (a[1], rng.choice([16, 256, 10]))], {}),
                (f4, rng.choice([f4, "float64"])),
            ),
            (ops.matmul.op.bind([a, (a[1], rng.choice([16, 256, 10]))], {}), (f4, f4)),
            (ops.embedding.op.bind([(rng.choice([5, 512]), 2), a], {}), ("int64", f4)),
            (ops.add.op.bind([a, a], {}), (f4, f4)),
            (ops.sum.op.bind([a], {"dims": (0,), "keepdims": True}), (f4,)),
            (ops.softmax.op.bind([a], {"dim": 1}), (f4,)),
        ]
    )


@pytest.mark.parametrize("machine", [*MACHINES, PAIRS], ids=lambda m: m.name)
@pytest.mark.parametrize(
    "mesh", [Mesh((4,), ("a",)), Mesh((2, 3), ("a", "b")), Mesh((2, 2, 2), ("a", "b", "c"))], ids=str
)
def test_the_choice_is_the_least_of_the_planners_prices(machine, mesh):
    """Other strategies of random operators, with pending and uneven operands, are not cheaper."""
    rng = random.Random(str((machine.name, mesh)))
    layouts = every_layout(mesh, 2, partial=True)
    best_split = 0
    for _ in range(5):
        bound, dtypes = random_operator(rng)
        operand_layouts = [rng.choice(layouts) for _ in bound.shapes]
        partial = any(operand_layout.partial for operand_layout in operand_layouts)
        prices = {}
        for strategy in bound.strategies(mesh, partial=partial, empty=True):
            if all(
                dict(operand_layouts[i].partial).get(axis) == op
                for axis, operands, op in strategy.passed
                for i in operands
            ):
                prices[strategy] = seconds_of(bound, strategy, operand_layouts, dtypes, machine)
        choice = choose(bound, operand_layouts, dtypes, machine)
        assert seconds_of(bound, choice, operand_layouts, dtypes, machine) <= min(prices.values()) * (
            1 + 1e-8
        )
        best_split += min(prices.values()) < 0.99 * max(prices.values())
    assert best_split > 0


def test_the_price_of_a_look_up_does_not_depend_on_its_table():
    """Tables of any size take the same arithmetic, and a replicated table is not split for it."""
    mesh, machine = Mesh((4,), ("tp",)), Machine.laptop()
    costs = {}
    for rows in (1000, 1_000_000):
        bound = ops.embedding.op.bind([(32,), (rows, 64)], {})
        unsplit = forward_work(bound, Strategy.of(mesh, {}), (8, 4))
        costs[rows] = unsplit.flops, unsplit.nbytes
        strategy = choose(bound, [mesh(None), mesh(None, None)], ["int64", "float32"], machine)
        assert not strategy.axes_of("v")
    assert costs[1000] == costs[1_000_000] == (32 * 64, 32 * 8 + 2 * 32 * 64 * 4)


#: A message takes 1,000 seconds and each byte takes one; messages within a node are faster.
BY_HAND = Machine("by hand", 1000.0, 1.0)
NODES_BY_HAND = replace(BY_HAND, name="nodes by hand", ranks_per_node=2, intra=Link(10.0, 0.5))


@pytest.mark.parametrize("machine", [BY_HAND, NODES_BY_HAND, Machine.laptop()], ids=lambda m: m.name)
@pytest.mark.parametrize("mesh", [Mesh((4,), ("a",)), Mesh((2, 2), ("a", "b"))], ids=str)
def test_no_pair_of_layouts_has_a_cheaper_strategy(machine, mesh):
    """Strategies that cannot win are not planned; a bound above their price would lose the cheapest one."""
    bound, layouts = ops.add.op.bind([(13, 5)] * 2, {}), [*every_layout(mesh, 2, partial=True)]
    kinds = ("float32",) * 2
    pairs = [*itertools.product(layouts, repeat=2)]
    for operand_layouts in random.Random(1).sample(pairs, min(60, len(pairs))):
        partial = any(one.partial for one in operand_layouts)
        prices = [
            seconds_of(bound, strategy, operand_layouts, kinds, machine)
            for strategy in bound.strategies(mesh, partial=partial, empty=True)
            if all(
                dict(operand_layouts[i].partial).get(axis) == op
                for axis, operands, op in strategy.passed
                for i in operands
            )
        ]
        choice = choose(bound, operand_layouts, kinds, machine)
        assert seconds_of(bound, choice, operand_layouts, kinds, machine) <= min(prices) * (1 + 1e-8)


def test_operands_keep_the_order_of_their_axes():
    """Strategies split with the inner axis first if the operands do, which moves nothing."""
    mesh, kinds = Mesh((2, 4), ("a", "b")), ["f4"] * 2
    bound, operand_layouts = ops.add.op.bind([(64, 64)] * 2, {}), [mesh(("b", "a"), None)] * 2
    for machine in (None, Machine.laptop()):
        assert [*choose(bound, operand_layouts, kinds, machine).axes.values()] == [("b", "a")]


def test_collectives_in_the_middle_of_an_operator_are_priced():
    """Solving with split rows takes 16 collectives, so gathering the matrix once is cheaper."""
    mesh, inputs = Mesh((4,), ("x",)), {"a": ((64, 64), "f8"), "b": ((64, 4), "f8")}
    layouts, kinds = [mesh("x", None), mesh(None, "x")], ["f8"] * 2
    machine = Machine("priced", alpha=1e-5, beta=1e-9, flops=1e12)
    graph = record_program(lambda a, b: linalg.solve(a.to(layouts[0]), b), mesh, inputs, training=False)
    assert graph.operators[-1].name == "lu_solve"
    bound = graph.operators[-1].bound
    counts = [len(bound.steps(Strategy.of(mesh, {factor: "x"}))) for factor in "mk"]
    assert counts == [16, 0]
    assert choose(bound, layouts, kinds, machine).axes == {"k": ("x",)}
    assert choose(bound, layouts, kinds).axes == {"k": ("x",)}  # The default machine is a laptop.
    free = replace(machine, name="free", alpha=0.0, beta=0.0)
    assert choose(bound, layouts, kinds, free).axes == {"m": ("x",)}


def test_local_copies_of_large_operands_are_priced():
    """Copying the second operand takes 96 microseconds, messages of the first one take 12."""
    mesh, machine = Mesh((2, 4), ("a", "b")), Machine.laptop()
    bound = ops.matmul.op.bind([(32, 784), (784, 1024)], {})
    choice = choose(bound, [mesh("b", None), mesh(None, None)], ["float32"] * 2, machine)
    prices = {
        strategy: seconds_of(bound, strategy, [mesh("b", None), mesh(None, None)], ("float32",) * 2, machine)
        for strategy in (
            choice,
            Strategy.of(mesh, {"m": "b", "n": "a"}),
            Strategy.of(mesh, {"m": ("b", "a")}),
        )
    }
    assert choice.axes == {"n": ("a", "b")}
    assert prices[choice] == min(prices.values())
    assert prices[choice] < 0.6 * max(prices.values())
