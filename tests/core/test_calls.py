"""What a call of an operator leaves behind: numbers that ranks compare, recipes, gradients of those who want one."""

from __future__ import annotations

import weakref

import ml_dtypes
import numpy as np
import pytest

from spmdsim import LockStep, Mesh, ShapeOnly, Tensor, ops
from spmdsim.core import Rule, bind
from spmdsim.core import tensor as core_tensor
from spmdsim.core.cuts import ShardedOp
from spmdsim.core.elements import fold, identity, in_type
from spmdsim.core.lockstep import PlainLockStep
from spmdsim.core.operator import Recipe, apply, looks_at
from spmdsim.core.tape import added
from spmdsim.core.tensor import Meta
from spmdsim.core.world import Observers
from spmdsim.errors import LayoutError, RuleError, UsageTypeError, WorldError
from spmdsim.redistribution.guard import guards
from spmdsim.tensor import Op
from spmdsim.tensor.watch import watchers
from spmdsim.trace.recorder import programs
from spmdsim.worlds.provenance import ORIGINS, Provenance, number_of

MESH = Mesh((2, 2), ("a", "b"))


class Comparing(LockStep):
    """A world whose tensors have numbers, as those of MPI have."""

    def __init__(self, size):
        super().__init__(size)
        self.origins, self.provenance = 0, Provenance()

    def origin(self, meta):
        self.origins += 1
        return hash((1234567, self.origins)) & ORIGINS

    def recipe(self):
        """The latest one."""
        return [entry for entry in self.cache.values() if isinstance(entry, Recipe)][-1]


def tensor(world, layout, *shape, dtype="f8", grad=False):
    value = np.arange(1, np.prod(shape) + 1).reshape(shape).astype(dtype)
    return Tensor.from_global(value, layout, world, requires_grad=grad)


def number(recipe, what, *tensors):
    return hash((recipe.number + what, *[x.origin for x in tensors])) & ORIGINS


def test_a_result_has_a_number_made_of_its_operators_and_its_operands():
    world = Comparing(4)
    x, w = tensor(world, MESH("a", None), 4, 6), tensor(world, MESH(None, "b"), 6, 4)
    y = ops.matmul(x, w)
    assert y.origin == number(world.recipe(), 0, x, w) != 0
    assert ops.exp(x).origin == number(world.recipe(), 0, x)
    chosen = ops.where(ops.greater(x, 3.0), x, x).origin
    assert chosen == number(world.recipe(), 0, ops.greater(x, 3.0), x, x)
    rows = ops.sum(x, axis=0).origin
    first = world.recipe().number
    assert ops.sum(x, axis=1).origin != rows and world.recipe().number != first
    square = tensor(world, MESH("a", None), 4, 4)
    moved = ops.matmul(square, square)
    assert moved.origin == number(world.recipe(), 0, square, square)
    assert tensor(LockStep(4), MESH("a"), 4).origin == ops.exp(tensor(LockStep(4), MESH("a"), 4)).origin == 0


def test_seeds_are_in_the_numbers_of_results_and_in_no_recipe():
    world = Comparing(4)
    x = tensor(world, MESH("a", None), 4, 6)
    one, two, again = (ops.dropout(x, 0.5, seed=seed) for seed in (1, 2, 1))
    assert one.origin == again.origin != two.origin
    assert (
        sum(isinstance(entry, Recipe) and entry.op.name == "dropout" for entry in world.cache.values()) == 1
    )
    assert one.origin == number(world.recipe(), number_of(1), x)
    assert ops.dropout(tensor(LockStep(4), MESH("a", None), 4, 6), 0.5, seed=1).origin == 0


def test_results_of_one_call_have_numbers_of_their_own():
    world = Comparing(4)
    x = tensor(world, MESH("a", None), 4, 6)
    parts = ops.split(x, 3, axis=1)
    assert len({part.origin for part in parts}) == 3 and 0 not in {part.origin for part in parts}


def test_gradients_have_numbers_by_operand_and_so_have_sums():
    world = Comparing(4)
    x, w = (tensor(world, MESH("a", None), 4, 4, grad=True), tensor(world, MESH(None, None), 4, 4, grad=True))
    y = ops.multiply(x, w)
    recipe = world.recipe()
    dy = tensor(world, y.layout, 4, 4)
    pending = y.node.pull([[dy]])
    assert [one.origin for (one,) in pending] == [number(recipe, y.origin + k, dy) for k in (1, 2)]
    assert added([dy, x]).origin == hash((dy.origin, x.origin)) & ORIGINS
    plain = tensor(LockStep(4), MESH("a", None), 4, 4, grad=True)
    product = ops.multiply(plain, plain)
    assert [one.origin for (one,) in product.node.pull([[product.detach()]])] == [0, 0]
    assert added([product, product]).origin == 0


def test_ranks_outside_of_a_mesh_have_results_without_elements():
    x = tensor(Comparing(4), Mesh((2,), ("a",))("a"), 4)
    assert [part.shape for part in ops.exp(x).shards] == [(2,), (2,), (0,), (0,)]


def test_observers_see_what_is_gathered_whole():
    world, whole = LockStep(4), []
    world.observers = Observers(gathered=lambda recipe, operands: whole.append(recipe.op.name))
    x, full = tensor(world, MESH("a", None), 4, 4), tensor(world, MESH(None, None), 4, 4)
    ops.exp(x), ops.add(full, full), ops.matmul(x, full)
    assert whole == []
    together = Op("together", Rule.parse("m, m -> m", whole="m"), np.add)
    together(tensor(world, MESH("a"), 4), tensor(world, MESH(None), 4))
    assert whole.pop() == "together" and whole == []
    flat = ops.reshape(tensor(world, MESH(None, "a"), 4, 6), (3, 8))
    assert flat.shape == (3, 8) and len(whole) == 1


def test_operands_of_three_in_two_worlds_are_refused():
    x, other = tensor(LockStep(4), MESH("a"), 4), tensor(LockStep(4), MESH("a"), 4)
    for operands in ((ops.greater(x, 2.0), other, x), (ops.greater(x, 2.0), x, other)):
        with pytest.raises(WorldError, match="live in different worlds"):
            ops.where(*operands)


def test_of_three_operands_the_middle_one_counts():
    world = LockStep(4)
    c = tensor(world, MESH("a"), 4, dtype="?")
    x, y, other = (tensor(world, MESH("a"), 4, dtype=kind) for kind in ("f4", "f4", "f8"))
    assert [ops.where(c, one, y).dtype for one in (x, other, x)] == ["f4", "f8", "f4"]
    assert not ops.where(c, x, y).requires_grad
    x.requires_grad = True
    ops.sum(ops.where(c, x, y)).backward()
    assert x.grad.full().tolist() == [1] * 4 and y.grad is None


def test_the_last_watcher_sees_calls_and_the_last_guard_moves():
    class Watching:
        def __init__(self):
            self.seen = []

        def before(self, op, tensors, params, sharding):
            self.seen.append(op.name)
            return op, sharding

        def after(self, *call):
            self.seen.append("after")

    first, last, moves = Watching(), Watching(), []
    x = tensor(LockStep(4), MESH("a", None), 4, 4)
    watchers.extend((first, last))
    guards.extend((lambda name, route: moves.append(0), lambda name, route: moves.append(name)))
    try:
        ops.matmul(x, x)
    finally:
        del watchers[-2:], guards[-2:]
    assert first.seen == [] and last.seen == ["matmul", "after"] and moves == ["matmul"]


def lazy(calls, second=True):
    """A product whose gradient function notes which of its gradients was asked for."""

    def vjp(dy, operands, _result):
        def gradient(k):
            calls.append(k)
            return dy * operands[1 - k]

        return (lambda: gradient(0)), (lambda: gradient(1)) if second else None

    return Op("lazy", Rule.parse("..., ... -> ...", linear="each"), np.multiply, vjp)


@pytest.mark.parametrize(
    ("rule", "linear", "looks"),
    [
        ("a, a -> a", "all", ".. .. .."),
        ("m k, k n -> m n", "each", "xx .x x."),
        ("a, a -> a", "none", "xx xx xx"),
    ],
)
def test_gradients_look_at_what_they_are_not_linear_in_together(rule, linear, looks):
    """Of a sum at nothing, of a product at the other operand, of what is not linear at both."""
    bound = bind(Rule.parse(rule, linear=linear), ((4,), (4,)) if rule.startswith("a") else ((4, 6), (6, 8)))
    asked = (True, True), (True, False), (False, True)
    assert looks == " ".join("".join(".x"[look] for look in looks_at(bound.rule, wanted)) for wanted in asked)


def test_what_gradients_do_not_look_at_is_free_at_once():
    """The operands of a sum; of a product whose first operand wants no gradient, the second one's gathered copy."""
    world, mesh = LockStep(2), Mesh((2,), ("tp",))
    x, w = tensor(world, mesh(None, None), 4, 6), tensor(world, mesh("tp", None), 6, 8, grad=True)
    b = tensor(world, mesh(None, None), 4, 8, grad=True)
    copy = w.to(mesh(None, None))
    product = ops.matmul(x, copy)
    y = ops.add(product, b)
    arrays = [weakref.ref(held) for t in (copy, product) for held in t.held]
    del copy, product
    assert [array() for array in arrays] == [None] * 4
    total = y.sum()
    total.backward()
    np.testing.assert_array_equal(w.grad.full(), x.full().T @ np.ones((4, 8)))
    np.testing.assert_array_equal(b.grad.full(), np.ones((4, 8)))


@pytest.mark.parametrize("name", ["relu", "exp", "sqrt", "tanh", "tan", "sigmoid", "softmax", "log_softmax"])
def test_operands_of_functions_whose_slopes_follow_from_the_result_are_free_at_once(name):
    """Of floats of 16 bits, too, whose functions see copies."""
    world, layout = LockStep(2), Mesh((2,), ("dp",))("dp", None)
    function = getattr(ops, name)
    for dtype in (np.float32, np.float16):
        x = Tensor.from_global(np.full((4, 3), 0.5, dtype), layout, world, requires_grad=True)
        between = x * 1.5
        array, kept = weakref.ref(between.held[0]), between.full()
        y = function(between)
        del between
        assert array() is None
        y.backward(Tensor.from_global(np.arange(12).reshape(4, 3).astype(dtype), layout, world))
        again = Tensor.from_global(kept, layout, world, requires_grad=True)
        function(again).backward(Tensor.from_global(np.arange(12).reshape(4, 3).astype(dtype), layout, world))
        np.testing.assert_array_equal(x.grad.full(), (again.grad * 1.5).full())


def test_gradients_that_nobody_wants_are_not_calculated():
    calls, world = [], LockStep(4)
    x, y = tensor(world, MESH("a"), 4, grad=True), tensor(world, MESH("a"), 4)
    result = lazy(calls)(x, y)
    assert result.node.saved is None  # its gradients do not look at it
    result.backward(y)
    assert {*calls} == {0} and y.grad is None
    np.testing.assert_array_equal(x.grad.full(), np.arange(1, 5.0) ** 2)


@pytest.mark.parametrize("mesh", [MESH, Mesh((2,), ("a",))], ids=["all ranks", "some ranks"])
def test_an_operand_without_a_gradient_has_none_or_zeros_where_others_cannot_know(mesh):
    world = LockStep(4)
    x, y = (tensor(world, mesh("a"), 4, grad=True) for _ in range(2))
    lazy([], second=False)(x, y).backward(x.detach())
    assert x.grad.full().tolist() == [1, 4, 9, 16]
    assert (y.grad is None) if mesh is MESH else y.grad.full().tolist() == [0] * 4


def test_a_given_gradient_takes_the_type_of_its_result():
    for world in (LockStep(4), ShapeOnly(4)):
        x = Tensor.from_global(np.ones(4, "f4"), MESH("a"), world, requires_grad=True)
        gradient = Tensor.from_global(np.full(4, 1 + 2.0**-30), MESH("a"), world)
        x.backward(gradient)
        ops.add(x, x).backward(gradient)
        assert x.grad.dtype == "f4"
        assert {(shard.shape, shard.dtype) for shard in x.grad.shards} == {((2,), np.dtype("f4"))}
    y = Tensor.from_global(np.ones((), "f4"), MESH(), ShapeOnly(4), requires_grad=True)
    y.backward()
    assert y.grad.shape == ()


@pytest.mark.parametrize("dtype, ones", [("f2", 2048), (ml_dtypes.bfloat16, 256)])
def test_sixteen_bit_gradients_are_added_up_in_more(dtype, ones):
    """One more than the type can count to, twice: rounded once, it is two more."""
    world = LockStep(4)
    large, one = (Tensor.from_global(np.full(4, n, dtype), MESH("a"), world) for n in (ones, 1))
    assert added([large, one, one]).full().astype(float).tolist() == [ones + 2] * 4
    pending = MESH("a", partial="b")
    large, one = (Tensor.from_global(np.full(4, n, dtype), pending, world) for n in (ones, 1))
    assert added([large, one, one]).to(MESH("a")).full().astype(float).tolist() == [ones + 2] * 4


def test_arrays_that_have_the_type_stay():
    one, other = np.ones(2), np.ones(2, "f4")
    assert in_type([one, other], one.dtype)[0] is one and in_type([one, other], one.dtype)[1].dtype == "f8"


def test_what_cannot_be_reduced_has_no_identity():
    with pytest.raises(WorldError, match="no order, so no max"):
        identity("max", np.dtype("c8"))


def test_a_meta_is_one_whatever_its_shape_was_written_as():
    layout = MESH("a", None)
    assert Meta.of(layout, [2, 3], np.dtype("f4")) is Meta.of(layout, (2, 3), "f4")
    with pytest.raises(LayoutError, match="is for tensors of 2 dims"):
        Meta.of(layout, (2,), np.dtype("f4"))


def test_types_of_results_are_types_however_an_operator_writes_them():
    rule = Rule.parse("... -> ...")
    kinds = [Op("x", rule, np.copy, dtype=kind).result_dtype([np.dtype("f4")], {}) for kind in (
        lambda dtype: "f8", lambda dtype: dtype, lambda dtype: (dtype, np.dtype("i8")),
    )]  # fmt: skip
    assert kinds == [np.dtype("f8"), np.dtype("f4"), (np.dtype("f4"), np.dtype("i8"))]
    assert type(kinds[0]) is type(np.dtype("f8"))


def test_strategies_that_are_strategies_are_what_is_meant():
    from spmdsim.core import Strategy, bind

    bound = bind(Rule.parse("m k -> m", linear="each"), ((4, 6),))
    strategy = Strategy.of(MESH, {"m": "a", "k": "b"})
    op = Op("x", Rule.parse("m k -> m"), np.copy)
    assert ShardedOp(op, strategy).in_strategy is strategy
    assert ShardedOp(op, strategy).strategy(bound, 4, None) is strategy
    eight = Strategy.of(Mesh((8,), ("x",)), {"m": "x"})
    with pytest.raises(WorldError, match="but the world has 4 ranks"):
        ShardedOp(op, eight)(tensor(LockStep(4), MESH("a", None), 8, 6))
    with pytest.raises(RuleError):
        ShardedOp(op, Strategy.of(MESH, {"q": "a"})).strategy(bound, 4, None)
    pending = MESH("a", partial="b")
    assert ShardedOp(op, strategy).result_layout(pending, (4,)) == MESH("a")
    assert ShardedOp(op, strategy, pending).result_layout(MESH("a"), (4,)) is pending


def test_tensors_stay_in_their_worlds():
    wide, world = Mesh((8,), ("x",)), LockStep(4)
    x = tensor(world, MESH("a"), 4)
    for refused in (
        lambda: Tensor.from_global(np.ones(8), wide("x"), world),
        lambda: x.to(wide("x")),
        lambda: x.to(Mesh((2,), ("x",), [1, 4])("x")),
    ):
        with pytest.raises(WorldError, match="but the world has 4 ranks"):
            refused()
    assert x.to(x.layout) is x and x.detach() is x


def test_a_world_is_told_which_tensor_moves_only_while_it_moves():
    told = []

    class Telling(Comparing):
        def run(self, step, shards, algorithm=None):
            told.append(self.about)
            return super().run(step, shards, algorithm)

    world = Telling(4)
    x = tensor(world, MESH("a"), 4)
    assert world.about == 0
    x.to(MESH(None))
    assert {*told} == {x.origin} and world.about == 0


def test_tensors_of_few_bits_are_held_in_more_while_they_are_pending_and_shown_in_their_own():
    x = Tensor.from_global(np.ones(4, "f2"), MESH("a", partial="b"), LockStep(4))
    assert {shard.dtype for shard in x.held} == {np.dtype("f4")}
    assert {shard.dtype for shard in x.shards} == {np.dtype("f2")}
    whole = x.to(MESH("a"))
    assert {shard.dtype for shard in whole.held} == {np.dtype("f2")} and whole.full().tolist() == [1] * 4


def test_core_takes_tensors_and_nothing_else():
    with pytest.raises(UsageTypeError, match="exp takes tensors, but got str"):
        apply(Op("exp", Rule.parse("... -> ..."), np.exp), ["x"], {})


def test_the_last_program_is_told_of_seeds_and_of_who_looks():
    class Telling:
        def __init__(self):
            self.told = []

        def perform(self, run, lists):
            return run(*lists)

        def created(self, tensor):
            self.told.append("created")

        def looked_at(self):
            self.told.append("looked at")

    first, last = Telling(), Telling()
    x = tensor(LockStep(4), MESH(None), 1, grad=True)
    programs.extend((first, last))
    try:
        x.backward()
        x.grad.shards
    finally:
        del programs[-2:]
    assert first.told == [] and last.told[:2] == ["created", "looked at"]


def test_parts_are_reduced_in_the_order_given():
    parts = [np.array(part) for part in (1e16, 1.0, -1e16, 1.0)]
    assert fold("sum", parts) == 1 and fold("sum", [parts[k] for k in (0, 2, 1, 3)]) == 2


def test_bounds_of_a_shape_with_other_dims_are_refused():
    with pytest.raises(LayoutError, match="2"):
        MESH("a", None).bounds((4,), 0)


def test_factors_without_a_reduction_of_their_own_are_added_up():
    assert Rule.parse("a b c -> a", reduce={"b": "max"}).reductions == (("b", "max"),)


def test_gradients_of_core_that_lie_alike_are_added_up():
    world, layout = PlainLockStep(2), Mesh((2,), ("x",))("x")
    ones, more = (core_tensor.Tensor.from_global(np.full(4, value), layout, world) for value in (1.0, 2.0))
    assert added([ones, more, more]).full().tolist() == [5.0] * 4
