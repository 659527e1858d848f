"""The strategy chosen for operands as they are, against what another system was seen to do."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import numpy as np
import pytest
from every_layout import every_layout
from layout_cases import cases

import spmdsim.ops as ops
from spmdsim.arrays.linalg.by_panels import _solve_op as lu_solve_op
from spmdsim.core import Layout, Mesh, Partial, Replicate, Shard, Strategy
from spmdsim.cost import Link, Machine
from spmdsim.cost.roofline import forward_work
from spmdsim.errors import RuleError
from spmdsim.redistribution import plan
from spmdsim.worlds.machine_planner import choose, least_seconds, planned_seconds

PLACEMENTS = {"R": Replicate(), "P": Partial("sum"), **{f"S{d}": Shard(d) for d in range(3)}}


class Bytes:
    """A cost model in which only bytes count."""

    name = "bytes"

    def seconds(self, collective, group_size, nbytes, axes=None, *, messages=None, copied=0.0):
        return nbytes

    def compute_seconds(self, flops, nbytes=0.0):
        return 0.0


ONLY_BYTES = Bytes()


def mesh_of(case):
    return Mesh(tuple(case["mesh"]), [f"d{i}" for i in range(len(case["mesh"]))])


def layout(mesh, texts, ndim):
    texts = [texts] if isinstance(texts, str) else texts
    return Layout.from_placements(mesh, [PLACEMENTS[text] for text in texts], ndim)


def received(src, dst, shape, dtype):
    route = plan(src, dst, shape, dtype)
    return max(route.nbytes(rank) for rank in src.mesh.rank_list)


def total(bound, strategy, layouts, dtypes):
    """Bytes the busiest rank receives: for the operands, and to complete the result."""
    moved = sum(
        received(src, dst, shape, dtype)
        for src, dst, shape, dtype in zip(layouts, bound.input_layouts(strategy), bound.shapes, dtypes)
    )
    result = bound.output_layouts(strategy)[0]
    completed = received(result, result.reduced, bound.output_shapes[0], "float32") if result.partial else 0
    return moved + completed


def chosen(bound, layouts, dtypes):
    try:
        return bound.infer(layouts)
    except RuleError:
        return choose(bound, layouts, [np.dtype(d) for d in dtypes], ONLY_BYTES)


def possible(bound, mesh, layouts, result):
    """All strategies that leave the result where the other system left it, without making operands partial."""
    for strategy in bound.strategies(mesh, empty=True):
        before = bound.input_layouts(strategy)
        if bound.output_layouts(strategy)[0].placements == result.placements and all(
            set(wanted.partial) <= set(have.partial) for wanted, have in zip(before, layouts)
        ):
            yield strategy


def check(bound, mesh, layouts, dtypes, result):
    ours = chosen(bound, layouts, dtypes)
    theirs = list(possible(bound, mesh, layouts, result))
    assert theirs, "their result is a strategy of the rule"
    assert total(bound, ours, layouts, dtypes) <= min(total(bound, s, layouts, dtypes) for s in theirs)


@pytest.mark.parametrize("case", cases("operators_peers", "mm_strategy_runs"))
def test_products_never_move_more(case):
    mesh = mesh_of(case)
    bound = ops.matmul.op.bind([tuple(case["m_k"]), tuple(case["k_n"])], {})
    layouts = [layout(mesh, case[k], 2) for k in ("a", "b")]
    check(bound, mesh, layouts, ("float32",) * 2, layout(mesh, case["out"], 2))


@pytest.mark.parametrize("case", cases("operators_peers", "xla_matmul_runs"))
def test_products_with_a_wanted_result_never_receive_more(case):
    """Among the strategies of the rule there is one, redistributions included, that XLA's program does not beat."""
    mesh, shape = mesh_of(case), (case["size"], case["size"])
    bound = ops.matmul.op.bind([shape, shape], {})
    layouts, wanted = [layout(mesh, case[k], 2) for k in ("a", "b")], layout(mesh, case["out"], 2)

    def moved(strategy):
        arriving = zip(layouts, bound.input_layouts(strategy))
        operands = sum(received(src, dst, shape, "float32") for src, dst in arriving)
        return operands + received(bound.output_layouts(strategy)[0], wanted, shape, "float32")

    assert min(moved(s) for s in bound.strategies(mesh, empty=True, partial=False)) <= 4 * case["elements"]


@pytest.mark.parametrize("case", cases("operators_peers", "embedding_strategy_runs"))
def test_embeddings_never_move_more(case):
    mesh = mesh_of(case)
    bound = ops.embedding.op.bind([(64, 32), (1024, 512)], {})
    layouts = [layout(mesh, case["indices"], 2), layout(mesh, case["weight"], 2)]
    out = ["P" if text == "_MaskPartial" else text for text in case["out"]]
    check(bound, mesh, layouts, ("int64", "float32"), layout(mesh, out, 3))


def test_a_choice_that_only_looks_at_the_operands_loses():
    """Moving the smaller operand leaves a pending product of full size; the whole sum decides."""
    mesh = Mesh((8,), ("d0",))
    bound = ops.matmul.op.bind([(4096, 64), (64, 4096)], {})
    layouts = [mesh("d0", None), mesh("d0", None)]
    strategy = chosen(bound, layouts, ("float32", "float32"))
    assert bound.output_layouts(strategy)[0] == mesh("d0", None)


@pytest.mark.ranks(4)
@pytest.mark.parametrize("name", ["max", "min", "prod", "sum", "mean"])
@pytest.mark.parametrize("pending", ["sum", "max", "min"])
def test_a_reduction_of_pending_values_reduces_them_first(world, name, pending):
    """No choice pretends that a pending sum is a pending maximum, which would cost nothing."""
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
    """Seconds of the first rank, which has the largest pieces: every element of its points, or bytes, once.

    A look-up has one operation per element of its result, and reads of its table only what it writes.
    """

    def held(layout, shape):
        return math.prod(stop - start for start, stop in layout.bounds(shape, 0))

    factors = Layout(strategy.mesh, [strategy.axes_of(f) for f in bound.sizes])
    points = held(factors, tuple(bound.sizes.values()))
    result = held(bound.output_layouts(strategy)[0], bound.output_shapes[0])
    ends = list(zip(bound.input_layouts(strategy), bound.shapes, dtypes))
    if bound.rule.indexed:
        table = next(
            k for k, term in enumerate(bound.inputs) if any(bound.rule.indexed & {*dim} for dim in term)
        )
        (_, _, dtype), (ids, shape, number) = ends[table], ends[1 - table]
        nbytes = 2 * result * np.dtype(dtype).itemsize + held(ids, shape) * np.dtype(number).itemsize
        return machine.compute_seconds(result, nbytes)
    sizes = [np.dtype(dtype).itemsize for dtype in dtypes]
    nbytes = sum(held(layout, shape) * size for (layout, shape, _), size in zip(ends, sizes)) + result * max(
        sizes
    )
    products = len(dtypes) > 1 and "k" in bound.sizes
    return machine.compute_seconds((2 if products else 1) * points, nbytes)


def seconds_of(bound, strategy, layouts, dtypes, machine):
    """The planner's price of everything a strategy moves, and the computation."""
    total = arithmetic_of(bound, strategy, dtypes, machine)
    for src, dst, shape, dtype in zip(layouts, bound.input_layouts(strategy), bound.shapes, dtypes):
        total += plan(src, dst, shape, dtype, machine).seconds
    for output, shape in zip(bound.output_layouts(strategy), bound.output_shapes):
        widest = max(dtypes, key=lambda dtype: np.dtype(dtype).itemsize)
        total += plan(output, output.reduced, shape, widest, machine).seconds
    return total


def some_operator(rng):
    """An operator with shapes and types: products, look-ups, sums, functions of elements and of rows."""
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
    """Random operators and operands, pending ones and sizes that do not divide among them: none has a lower price."""
    rng = random.Random(str((machine.name, mesh)))
    layouts = every_layout(mesh, 2, partial=True)
    best_split = 0
    for _ in range(5):
        bound, dtypes = some_operator(rng)
        here = [rng.choice(layouts) for _ in bound.shapes]
        partial = any(one.partial for one in here)
        prices = {}
        for strategy in bound.strategies(mesh, partial=partial, empty=True):
            if all(dict(here[i].partial).get(axis) == op for axis, some, op in strategy.passed for i in some):
                prices[strategy] = seconds_of(bound, strategy, here, dtypes, machine)
        choice = choose(bound, here, [np.dtype(dtype) for dtype in dtypes], machine)
        assert seconds_of(bound, choice, here, dtypes, machine) <= min(prices.values()) * (1 + 1e-8)
        best_split += min(prices.values()) < 0.99 * max(prices.values())
    assert best_split > 0


def test_a_look_up_does_not_go_through_its_table():
    """Rows of a table of any size take the same arithmetic, and the choice does not split a replicated one for it."""
    mesh, machine = Mesh((4,), ("tp",)), Machine.laptop()
    costs = {}
    for rows in (1000, 1_000_000):
        bound = ops.embedding.op.bind([(32,), (rows, 64)], {})
        alone = forward_work(bound, Strategy.of(mesh, {}), (8, 4))
        costs[rows] = alone.flops, alone.nbytes
        strategy = choose(
            bound, [mesh(None), mesh(None, None)], [np.dtype("int64"), np.dtype("float32")], machine
        )
        assert not strategy.axes_of("v")
    assert costs[1000] == costs[1_000_000] == (32 * 64, 32 * 8 + 2 * 32 * 64 * 4)


def test_what_two_ranks_receive_costs_no_more_than_a_plan():
    """Also where what is pending stays so: then nothing is reduced, and ranks keep what they have."""
    mesh, machine = Mesh((2, 2), ("a", "b")), Machine.laptop()
    layouts = [one for one in every_layout(mesh, 1, partial=True) if "a" in dict(one.partial)]
    assert len(layouts) == 3
    for src in layouts:
        for dst in layouts:
            if {*src.partial} >= {*dst.partial}:
                move = src, dst, (12,), np.dtype("f4"), machine
                assert least_seconds(*move) <= planned_seconds(*move) * (1 + 1e-9), move


def test_what_two_ranks_receive_by_hand():
    """The first and the last rank, whichever misses more; a message takes 1,000 seconds and a byte one."""
    machine, (flat, two, thin) = (
        Machine("by hand", 1000.0, 1.0),
        [Mesh(sizes, ("x", "y")[: len(sizes)]) for sizes in ((4,), (2,), (2, 1))],
    )
    for src, dst, shape, elements in (
        (flat("x"), flat(None), (5,), 4),  # the last has one of five
        (two("x", None), two(None, "x"), (2, 5), 3),  # the first has a row of three
        (flat(None), flat("x"), (5,), 0),
        (flat("x"), flat("x"), (5,), 0),
        (flat(None, partial="x"), flat(None), (5,), 5),
        (flat(None, partial="x"), flat("x"), (5,), 2),
        (two(None, partial="x"), two(None), (5,), 5),
        (thin("x", partial="y"), thin(None), (5,), 3),  # one rank has nothing to reduce
    ):
        seconds = least_seconds(src, dst, shape, np.dtype("f4"), machine)
        assert seconds == (1000 + 4 * elements if elements else 0), (src, dst)
    links = replace(machine, ranks_per_node=2, intra=Link(10.0, 0.5))
    assert least_seconds(flat("x"), flat(None), (5,), np.dtype("f4"), links) == 10 + 16 * 0.5
    assert least_seconds(flat("x"), flat(None), (5,), np.dtype("f4"), ONLY_BYTES) == 0


def test_operands_keep_the_order_of_their_axes():
    """The inner axis first, as the operands have it, moves nothing."""
    mesh, kinds = Mesh((2, 4), ("a", "b")), [np.dtype("f4")] * 2
    bound, here = ops.add.op.bind([(64, 64)] * 2, {}), [mesh(("b", "a"), None)] * 2
    for machine in (None, Machine.laptop()):
        assert [*choose(bound, here, kinds, machine).axes.values()] == [("b", "a")]


def test_collectives_in_the_middle_of_an_operator_are_priced():
    """Equations whose rows are split take 16 collectives, so one gathering of the matrix is less."""
    mesh, operands = Mesh((4,), ("x",)), [(64, 64), (64, 4)]
    layouts = [mesh("x", None), mesh(None, "x")]
    machine, kinds = Machine("priced", alpha=1e-5, beta=1e-9, flops=1e12), [np.dtype("f8")] * 2
    bound, unpriced = (lu_solve_op.bind(operands, {}, dtypes) for dtypes in (kinds, None))
    counts = [len(bound.steps(Strategy.of(mesh, {factor: "x"}))) for factor in "mk"]
    assert counts == [16, 0]
    assert choose(bound, layouts, kinds, machine).axes == {"k": ("x",)}
    assert choose(bound, layouts, kinds).axes == {"k": ("x",)}  # without a machine on a laptop
    assert choose(unpriced, layouts, kinds, machine).axes == {"m": ("x",)}


def test_a_product_whose_small_operand_is_copied_keeps_its_large_one():
    """A local copy of 96 microseconds of the second operand loses to 12 microseconds of messages of the first."""
    mesh, machine = Mesh((2, 4), ("a", "b")), Machine.laptop()
    bound = ops.matmul.op.bind([(32, 784), (784, 1024)], {})
    choice = choose(bound, [mesh("b", None), mesh(None, None)], [np.dtype("float32")] * 2, machine)
    prices = {
        one: seconds_of(bound, one, [mesh("b", None), mesh(None, None)], ("float32",) * 2, machine)
        for one in (choice, Strategy.of(mesh, {"m": "b", "n": "a"}), Strategy.of(mesh, {"m": ("b", "a")}))
    }
    assert choice.axes == {"n": ("a", "b")}
    assert prices[choice] == min(prices.values())
    assert prices[choice] < 0.6 * max(prices.values())
