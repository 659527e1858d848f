"""What a call of an operator leaves behind: numbers that ranks compare, recipes, gradients of those who want one."""

from __future__ import annotations

import weakref

import ml_dtypes
import numpy as np
import pytest

from spmdsim import LockStep, Mesh, ShapeOnly, Tensor, ops
from spmdsim.arrays import Op, ShardedOp
from spmdsim.core import Rule, bind
from spmdsim.core.elements import fold, identity
from spmdsim.core.lockstep import PlainLockStep
from spmdsim.core.operator import apply
from spmdsim.core.recipe import find_read_operands
from spmdsim.core.tape import add_gradients
from spmdsim.core.tensor import PlainTensor
from spmdsim.core.world import Observers
from spmdsim.errors import LayoutError, RuleError, UsageTypeError, WorldError, context

MESH = Mesh((2, 2), ("a", "b"))


def tensor(world, layout, *shape, dtype="f8", grad=False):
    value = np.arange(1, np.prod(shape) + 1).reshape(shape).astype(dtype)
    return Tensor.from_global(value, layout, world, requires_grad=grad)


def test_ranks_outside_of_a_mesh_have_results_without_elements():
    x = tensor(LockStep(4), Mesh((2,), ("a",))("a"), 4)
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
    assert looks == " ".join(
        "".join(".x"[look] for look in find_read_operands(bound.rule, wanted)) for wanted in asked
    )


def test_what_gradients_do_not_look_at_is_free_at_once():
    """The operands of a sum; of a product whose first operand wants no gradient, the second one's gathered copy."""
    world, mesh = LockStep(2), Mesh((2,), ("tp",))
    x, w = tensor(world, mesh(None, None), 4, 6), tensor(world, mesh("tp", None), 6, 8, grad=True)
    b = tensor(world, mesh(None, None), 4, 8, grad=True)
    copy = w.to(mesh(None, None))
    product = ops.matmul(x, copy)
    y = ops.add(product, b)
    arrays = [weakref.ref(held) for t in (copy, product) for held in t.stored_shards]
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
        array, kept = weakref.ref(between.stored_shards[0]), between.full()
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
    assert add_gradients([large, one, one]).full().astype(float).tolist() == [ones + 2] * 4
    pending = MESH("a", partial="b")
    large, one = (Tensor.from_global(np.full(4, n, dtype), pending, world) for n in (ones, 1))
    assert add_gradients([large, one, one]).to(MESH("a")).full().astype(float).tolist() == [ones + 2] * 4


def test_what_cannot_be_reduced_has_no_identity():
    with pytest.raises(WorldError, match="no order, so no max"):
        identity("max", np.dtype("c8"))


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


def test_tensors_of_few_bits_are_held_in_more_while_they_are_pending_and_shown_in_their_own():
    x = Tensor.from_global(np.ones(4, "f2"), MESH("a", partial="b"), LockStep(4))
    assert {shard.dtype for shard in x.stored_shards} == {np.dtype("f4")}
    assert {shard.dtype for shard in x.shards} == {np.dtype("f2")}
    whole = x.to(MESH("a"))
    assert {shard.dtype for shard in whole.stored_shards} == {np.dtype("f2")} and whole.full().tolist() == [
        1
    ] * 4


def test_core_takes_tensors_and_nothing_else():
    with pytest.raises(UsageTypeError, match="exp takes tensors, but got str"):
        apply(Op("exp", Rule.parse("... -> ..."), np.exp), ["x"], {})


def test_a_call_without_operands_says_what_an_operator_takes():
    square = Op("square", Rule.parse("... -> ..."), np.square)
    with pytest.raises(UsageTypeError, match="square takes tensors, but got no operand; make one with "):
        square()


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
    ones, more = (PlainTensor.from_array(np.full(4, value), layout, world) for value in (1.0, 2.0))
    assert add_gradients([ones, more, more]).full().tolist() == [5.0] * 4


def test_an_error_with_added_facts_has_its_cause_but_no_context():
    words = r"two axes \[operator: matmul; rank: 1\]"
    with (
        pytest.raises(LayoutError, match=words) as caught,
        context(rank=2),
        context(operator="matmul", rank=lambda: 1),
    ):
        try:
            {}["dp"]
        except KeyError as cause:
            raise LayoutError("two axes") from cause
    assert isinstance(caught.value.__cause__, KeyError)
    with pytest.raises(LayoutError) as caught, context(rank=1):
        try:
            {}["dp"]
        except KeyError:
            raise LayoutError("two axes")
    assert caught.value.__cause__ is None and caught.value.__suppress_context__
