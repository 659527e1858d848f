"""Right gradients pass ``check_gradient``; wrong ones are named with operand, element and numbers."""

from __future__ import annotations

import numpy as np
import pytest

from spmdsim import LockStep, Mesh, Op, Rule, ShapeOnly, Tensor, check_gradient, ops
from spmdsim.errors import RuleError, UsageTypeError, WorldError

POINTWISE = Rule.parse("... -> ...")


def operand(world, shape, dtype=np.float32, **options):
    rng = np.random.default_rng(len(shape))
    numbers = rng.normal(size=shape) + (1j * rng.normal(size=shape) if np.dtype(dtype).kind == "c" else 0)
    layout = Mesh((world.size,), ("x",))("x", *[None] * (len(shape) - 1))
    return Tensor.from_global(numbers.astype(dtype), layout, world, **options)


@pytest.mark.ranks(2)
def test_right_gradients_of_any_type_pass(world):
    x, y = operand(world, (3, 4)), operand(world, (5, 4))
    z = operand(world, (4,), np.complex64)
    for function, operands in [
        (ops.softmax, (x,)),
        (lambda a, b: a @ b.T, (x, y)),
        (lambda a: (ops.sort(a, 1), a[1] * 2, "what is no tensor"), (x,)),
        (ops.exp, (z,)),
        (lambda a: ops.absolute(a), (z,)),
        (lambda a, k: a * k, (x, 3)),
    ]:
        report = check_gradient(function, *operands)
        assert report and report.ok and report.largest < 1e-6 and not report.wrong
        assert report.checked == report.elements == sum(x.size for x in operands if isinstance(x, Tensor))
        assert str(report).startswith(f"ok: {report.checked} of {report.checked} elements, largest relative")


@pytest.mark.ranks(2)
def test_a_wrong_vjp_is_named_with_operand_element_and_both_numbers(world):
    x, w = operand(world, (3, 2), np.float64), operand(world, (2,), np.float64)

    def back(dy, operands, _):
        slope = (dy * operands[0]).sum(axis=0)
        slope[-1] *= 1.001
        return dy * operands[1], slope

    scale = Op("scale", Rule.parse("m k, k -> m k", whole="k"), lambda a, b: a * b, back)
    report = check_gradient(scale, x, w)
    assert not report and len(report.wrong) == 1
    (wrong,) = report.wrong
    assert (wrong.name, wrong.operand) == ("scale", 1) and wrong.index == (1,)
    assert wrong.gradient == pytest.approx(1.001 * wrong.differences, rel=1e-7)
    assert str(report).startswith("WRONG: scale: operand 1, element (1,): the gradient is ")
    composed = check_gradient(lambda a, b: ops.sum(ops.tanh(scale(ops.exp(a), b))), x, w)
    assert {mistake.name for mistake in composed.wrong} == {"scale"} and composed.checked == 8
    assert check_gradient(lambda a: scale(a, w.detach()), x)  # The gradient of the other operand is right.


@pytest.mark.ranks(2)
def test_a_function_that_forgets_an_operand_is_named(world):
    x = operand(world, (4,), np.float64)

    def forgetful(a):
        return a * a.detach()

    report = check_gradient(forgetful, x)
    assert [mistake.name for mistake in report.wrong] == ["forgetful"] * 4
    for mistake in report.wrong:
        assert mistake.differences == pytest.approx(2 * mistake.gradient, rel=1e-8)


@pytest.mark.ranks(2)
def test_large_operands_are_sampled_and_only_marked_ones_are_checked(world):
    x, y = operand(world, (40, 5)), operand(world, (40, 5), requires_grad=True)
    report = check_gradient(ops.multiply, x, x, samples=7)
    assert report and (report.checked, report.elements) == (14, 400)
    assert check_gradient(ops.multiply, x, y).elements == 200
    assert y.grad is None
    wrong = Op("wrong", POINTWISE, np.exp, lambda dy, xs, y: (dy,))
    first, repeated, other = (check_gradient(wrong, x, samples=5, seed=seed).wrong for seed in (1, 1, 2))
    assert first == repeated != other and len(first) == 5


def test_functions_without_gradients_are_refused():
    world = LockStep(2)
    x = operand(world, (4,))
    with pytest.raises(UsageTypeError, match="takes at least one floating or complex tensor"):
        check_gradient(ops.exp, np.ones(3))
    with pytest.raises(UsageTypeError, match=r"^the result of argmax has no gradient"):
        check_gradient(ops.argmax, x)
    with pytest.raises(WorldError, match="use LockStep"):
        check_gradient(ops.exp, Tensor.from_global(np.ones(4), Mesh((2,), ("x",))("x"), ShapeOnly(2)))


@pytest.mark.ranks(1, 2)
def test_a_vjp_that_reads_an_unsaved_result_is_refused_with_advice(world):
    x = operand(world, (4,), requires_grad=True)
    expected = r"^the vjp of e must not read its third argument, the result, unless it is kept; use Op\(\.\.\., saves_result=True\): "
    for back in (
        lambda dy, _, y: (dy * y,),
        lambda dy, _, y: (y.T * dy,),
        lambda dy, _, y: (np.multiply(dy, y),),
    ):
        with pytest.raises(RuleError, match=expected):
            ops.sum(Op("e", POINTWISE, np.exp, back)(x)).backward()
    assert check_gradient(Op("e", POINTWISE, np.exp, lambda dy, _, y: (dy * y,), saves_result=True), x)
    with pytest.raises(TypeError, match="int"):  # Other errors are raised unchanged.
        ops.sum(Op("e", POINTWISE, np.exp, lambda dy, xs, y: (len(3),))(x)).backward()
