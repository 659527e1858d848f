"""Calls of operators record the operands that gradients read, release the others, and refuse wrong operands."""

from __future__ import annotations

import weakref

import ml_dtypes
import numpy as np
import pytest

from spmdsim import LockStep, Mesh, ShapeOnly, Tensor, ops
from spmdsim.arrays import Op, ShardedOp
from spmdsim.core import Rule, bind
from spmdsim.core.elements import fold, identity
from spmdsim.core.operator import apply
from spmdsim.core.recipe import find_read_operands
from spmdsim.core.tape import add_gradients
from spmdsim.core.tensor import PlainTensor
from spmdsim.core.world import Observers
from spmdsim.errors import LayoutError, RuleError, UsageTypeError, WorldError, context

MESH = Mesh((2, 2), ("a", "b"))


def tensor(world, layout, *shape, dtype="f8", grad=False):
    """Return a tensor of 1, 2, 3, ... with the given shape and layout.

    Its elements have the type `dtype`; `grad` is its `requires_grad`.
    """
    value = np.arange(1, np.prod(shape) + 1).reshape(shape).astype(dtype)
    return Tensor.from_global(value, layout, world, requires_grad=grad)


def test_ranks_outside_of_a_mesh_have_results_without_elements():
    x = tensor(LockStep(4), Mesh((2,), ("a",))("a"), 4)
    assert [shard.shape for shard in ops.exp(x).shards] == [(2,), (2,), (0,), (0,)]


def test_observers_see_operands_that_are_gathered():
    world, gathered = LockStep(4), []
    world.observers = Observers(gathered=lambda recipe, operands: gathered.append(recipe.op.name))
    x, full = tensor(world, MESH("a", None), 4, 4), tensor(world, MESH(None, None), 4, 4)
    ops.exp(x), ops.add(full, full), ops.matmul(x, full)
    assert gathered == []
    replicating = Op("together", Rule.parse("m, m -> m", whole="m"), np.add)
    replicating(tensor(world, MESH("a"), 4), tensor(world, MESH(None), 4))
    assert gathered.pop() == "together" and gathered == []
    flat = ops.reshape(tensor(world, MESH(None, "a"), 4, 6), (3, 8))
    assert flat.shape == (3, 8) and len(gathered) == 1


def test_three_operands_in_two_worlds_are_refused():
    x, other = tensor(LockStep(4), MESH("a"), 4), tensor(LockStep(4), MESH("a"), 4)
    for operands in ((ops.greater(x, 2.0), other, x), (ops.greater(x, 2.0), x, other)):
        with pytest.raises(WorldError, match="live in different worlds"):
            ops.where(*operands)


def test_where_takes_type_and_gradient_from_its_values():
    world = LockStep(4)
    c = tensor(world, MESH("a"), 4, dtype="?")
    x, y, other = (tensor(world, MESH("a"), 4, dtype=kind) for kind in ("f4", "f4", "f8"))
    assert [ops.where(c, middle, y).dtype for middle in (x, other, x)] == ["f4", "f8", "f4"]
    assert not ops.where(c, x, y).requires_grad
    x.requires_grad = True
    ops.sum(ops.where(c, x, y)).backward()
    assert x.grad.full().tolist() == [1] * 4 and y.grad is None


def recording_product(calls, second=True):
    """Return a product operator whose gradient function appends the requested operand to ``calls``.

    If ``second`` is False, its second operand has no gradient.
    """

    def vjp(dy, operands, _result):
        """Return functions of the gradients of both operands."""

        def gradient(k):
            calls.append(k)
            return dy * operands[1 - k]

        return (lambda: gradient(0)), (lambda: gradient(1)) if second else None

    return Op("lazy", Rule.parse("..., ... -> ...", linear="each"), np.multiply, vjp)


@pytest.mark.parametrize(
    ("rule", "linear", "reads"),
    [
        ("a, a -> a", "all", ".. .. .."),
        ("m k, k n -> m n", "each", "xx .x x."),
        ("a, a -> a", "none", "xx xx xx"),
    ],
)
def test_gradients_read_the_operands_that_linearity_requires(rule, linear, reads):
    # The gradient of a sum reads no operand, the gradient of a product reads the other one, and
    # nonlinear gradients read both.
    bound = bind(Rule.parse(rule, linear=linear), ((4,), (4,)) if rule.startswith("a") else ((4, 6), (6, 8)))
    wanted_gradients = (True, True), (True, False), (False, True)
    assert reads == " ".join(
        "".join(".x"[is_read] for is_read in find_read_operands(bound.rule, wanted))
        for wanted in wanted_gradients
    )


def test_operands_that_gradients_do_not_read_are_freed_at_once():
    # A sum reads no operand. The first operand of the product wants no gradient, so the gathered copy
    # of the second one is not read.
    world, mesh = LockStep(2), Mesh((2,), ("tp",))
    x, w = tensor(world, mesh(None, None), 4, 6), tensor(world, mesh("tp", None), 6, 8, grad=True)
    b = tensor(world, mesh(None, None), 4, 8, grad=True)
    copy = w.to(mesh(None, None))
    product = ops.matmul(x, copy)
    y = ops.add(product, b)
    arrays = [weakref.ref(shard) for t in (copy, product) for shard in t.stored_shards]
    del copy, product
    assert [array() for array in arrays] == [None] * 4
    total = y.sum()
    total.backward()
    np.testing.assert_array_equal(w.grad.full(), x.full().T @ np.ones((4, 8)))
    np.testing.assert_array_equal(b.grad.full(), np.ones((4, 8)))


@pytest.mark.parametrize("name", ["relu", "exp", "sqrt", "tanh", "tan", "sigmoid", "softmax", "log_softmax"])
def test_functions_whose_gradients_read_the_result_free_their_operands(name):
    # Functions of 16-bit floats receive copies, so they are tested as well.
    world, layout = LockStep(2), Mesh((2,), ("dp",))("dp", None)
    function = getattr(ops, name)
    for dtype in (np.float32, np.float16):
        x = Tensor.from_global(np.full((4, 3), 0.5, dtype), layout, world, requires_grad=True)
        between = x * 1.5
        array, values = weakref.ref(between.stored_shards[0]), between.full()
        y = function(between)
        del between
        assert array() is None
        y.backward(Tensor.from_global(np.arange(12).reshape(4, 3).astype(dtype), layout, world))
        repeated = Tensor.from_global(values, layout, world, requires_grad=True)
        function(repeated).backward(
            Tensor.from_global(np.arange(12).reshape(4, 3).astype(dtype), layout, world)
        )
        np.testing.assert_array_equal(x.grad.full(), (repeated.grad * 1.5).full())


def test_unneeded_gradients_are_not_computed():
    calls, world = [], LockStep(4)
    x, y = tensor(world, MESH("a"), 4, grad=True), tensor(world, MESH("a"), 4)
    result = recording_product(calls)(x, y)
    assert result.node.saved is None  # its gradients do not read the result
    result.backward(y)
    assert {*calls} == {0} and y.grad is None
    np.testing.assert_array_equal(x.grad.full(), np.arange(1, 5.0) ** 2)


@pytest.mark.parametrize("mesh", [MESH, Mesh((2,), ("a",))], ids=["all ranks", "some ranks"])
def test_an_operand_without_a_gradient_gets_zeros_if_some_ranks_are_outside(mesh):
    world = LockStep(4)
    x, y = (tensor(world, mesh("a"), 4, grad=True) for _ in range(2))
    recording_product([], second=False)(x, y).backward(x.detach())
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
def test_sums_of_16_bit_gradients_are_rounded_once(dtype, ones):
    # `ones` is the largest count in the type. Adding 1 twice gives 2 more only if the sum is rounded
    # once.
    world = LockStep(4)
    large, one = (Tensor.from_global(np.full(4, n, dtype), MESH("a"), world) for n in (ones, 1))
    assert add_gradients([large, one, one]).full().astype(float).tolist() == [ones + 2] * 4
    pending = MESH("a", partial="b")
    large, one = (Tensor.from_global(np.full(4, n, dtype), pending, world) for n in (ones, 1))
    assert add_gradients([large, one, one]).to(MESH("a")).full().astype(float).tolist() == [ones + 2] * 4


def test_the_maximum_of_complex_numbers_has_no_identity():
    with pytest.raises(WorldError, match="no order, so no max"):
        identity("max", np.dtype("c8"))


def test_result_types_are_dtypes_for_each_form_of_the_declaration():
    rule = Rule.parse("... -> ...")
    kinds = [Op("x", rule, np.copy, dtype=kind).result_dtype([np.dtype("f4")], {}) for kind in (
        lambda dtype: "f8", lambda dtype: dtype, lambda dtype: (dtype, np.dtype("i8")),
    )]  # fmt: skip
    assert kinds == [np.dtype("f8"), np.dtype("f4"), (np.dtype("f4"), np.dtype("i8"))]
    assert type(kinds[0]) is type(np.dtype("f8"))


def test_shard_accepts_strategy_objects():
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


def test_partial_tensors_of_16_bits_are_stored_in_32_bits():
    x = Tensor.from_global(np.ones(4, "f2"), MESH("a", partial="b"), LockStep(4))
    assert {shard.dtype for shard in x.stored_shards} == {np.dtype("f4")}
    assert {shard.dtype for shard in x.shards} == {np.dtype("f2")}
    reduced = x.to(MESH("a"))
    assert {shard.dtype for shard in reduced.stored_shards} == {
        np.dtype("f2")
    } and reduced.full().tolist() == [1] * 4


def test_core_takes_only_tensors():
    with pytest.raises(UsageTypeError, match="exp takes tensors, but got str"):
        apply(Op("exp", Rule.parse("... -> ..."), np.exp), ["x"], {})


def test_a_call_without_operands_is_refused():
    square = Op("square", Rule.parse("... -> ..."), np.square)
    with pytest.raises(UsageTypeError, match="square takes tensors, but got no operand; make one with "):
        square()


def test_terms_are_reduced_in_the_given_order():
    terms = [np.array(number) for number in (1e16, 1.0, -1e16, 1.0)]
    assert fold("sum", terms) == 1 and fold("sum", [terms[k] for k in (0, 2, 1, 3)]) == 2


def test_bounds_of_a_shape_with_other_dims_are_refused():
    with pytest.raises(LayoutError, match="2"):
        MESH("a", None).bounds((4,), 0)


def test_factors_without_a_named_reduction_are_summed():
    assert Rule.parse("a b c -> a", reduce={"b": "max"}).reductions == (("b", "max"),)


def test_core_sums_gradients_of_equal_layouts():
    world, layout = LockStep(2), Mesh((2,), ("x",))("x")
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
