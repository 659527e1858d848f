"""Gradients of real and complex numbers equal numeric differentiation, and torch operator by operator."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from operator_types import ROWS, Row
from operators import SAMPLES, Sample

import spmdsim.nn as nn
import spmdsim.ops as ops
from spmdsim import LockStep, Mesh, Tensor
from spmdsim.arrays import Op
from spmdsim.core import Rule
from spmdsim.errors import RuleError, UsageTypeError

MESH = Mesh((3,), ("a",), (2, 0, 1))
WORLD = LockStep(4)

#: Operators whose results are integers or truth values, or constant between jumps.
FLAT = {
    *("all", "any", "argmax", "argmin", "ceil", "floor", "rint", "sign", "one_hot", "logical_not", "logical_and"),
    *("logical_or", "equal", "not_equal", "greater", "greater_equal", "less", "less_equal", "floor_divide", "remainder"),
    *("bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_invert", "left_shift", "right_shift", "nextafter"),
}  # fmt: skip

#: The domain of functions that are not defined on all real numbers: ``offset + scale * number``.
INSIDE = {"arccos": (0, 0.4), "arcsin": (0, 0.4), "arctanh": (0, 0.4), "arccosh": (1, 1)}
#: Functions of real numbers only.
REAL = ("maximum", "minimum", "arctan2", "softplus", "hypot", "logaddexp", "copysign", "signbit", "trunc")


def numbers(kind: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Return positive reals, or complex numbers in all directions if `kind` is "c"."""
    rng = np.random.default_rng([seed, *shape])
    if kind == "f":
        return rng.uniform(0.5, 2, shape)
    return rng.uniform(0.5, 2, shape) * np.exp(1j * rng.uniform(-3, 3, shape))


def numeric(
    loss: Callable[[Sequence[np.ndarray]], float], arrays: Sequence[np.ndarray], k: int
) -> np.ndarray:
    """Return ``dL/dRe + i dL/dIm`` of every element of ``arrays[k]``, as torch defines it, for a `loss`."""
    step = 1e-6
    gradient = np.zeros_like(arrays[k])
    for index in np.ndindex(arrays[k].shape):
        for direction in (1, 1j) if arrays[k].dtype.kind == "c" else (1,):
            sides = []
            for sign in (1, -1):
                moved = [np.array(x) for x in arrays]
                moved[k][index] += sign * step * direction
                sides.append(loss(moved))
            gradient[index] += direction * (sides[0] - sides[1]) / (2 * step)
    return gradient


def check(name: str, row: Row, arrays: list[np.ndarray]) -> None:
    tensors = [Tensor.from_global(x, MESH("a", None), WORLD, requires_grad=True) for x in arrays]
    result = row.call(*tensors)
    weight = numbers("c" if result.dtype.kind == "c" else "f", result.shape, 9)

    def loss(moved: Sequence[np.ndarray]) -> float:
        return float(np.sum(np.conj(weight) * row.reference(*moved)).real)

    if result.requires_grad:
        result.backward(Tensor.from_global(weight, result.layout.reduced, WORLD))
    for k, tensor in enumerate(tensors):
        want = numeric(loss, arrays, k)
        if tensor.grad is None:
            assert not want.any(), f"{name} has no gradient of operand {k}"
            continue
        assert tensor.grad.dtype == tensor.dtype and {s.dtype for s in tensor.grad.shards} == {tensor.dtype}
        np.testing.assert_allclose(tensor.grad.full(), want, 1e-6, 1e-7, err_msg=f"{name}, operand {k}")


@pytest.mark.parametrize("name", [name for name in ROWS if name not in FLAT and name != "cast"])
def test_gradients_equal_differences(name):
    row = ROWS[name]
    for kinds in itertools.product("fc", repeat=row.operands):
        if "c" in kinds and (row.refused or name in REAL):
            continue  # Complex numbers have no order.
        if name == "padded_embedding":
            continue  # Padding rows stay zero; another test covers them.
        offset, scale = INSIDE.get(name, (0.0, 1.0))
        check(name, row, [offset + scale * numbers(kind, row.shape, k) for k, kind in enumerate(kinds)])


@pytest.mark.parametrize(("src", "dst"), list(itertools.permutations(["f4", "f8", "c8", "c16"], 2)))
def test_gradients_pass_through_conversions(src, dst):
    x = Tensor.from_global(numbers(src[0], (2, 3), 0).astype(src), MESH("a", None), WORLD, requires_grad=True)
    weight = numbers(dst[0], (2, 3), 1).astype(dst)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        x.astype(dst).backward(Tensor.from_global(weight, MESH("a", None), WORLD))
    want = weight.real if src[0] == "f" else weight
    np.testing.assert_array_equal(x.grad.full(), want.astype(src))


ELEMENTS = [
    "erf",
    "exp",
    "log",
    "sqrt",
    "tanh",
    "sin",
    "cos",
    "log1p",
    "expm1",
    "square",
    "reciprocal",
    "rsqrt",
    "sigmoid",
]
KINKED = ["absolute", "relu", "relu6", "silu", "softplus", "elu", "maximum", "minimum", "arctan2"]
PRODUCTS = ["negative", "add", "subtract", "multiply", "divide", "matmul"]

#: A function of torch and its tensors; None stands for the function with the operator's name.
PEERS: dict[str, Any] = {
    **dict.fromkeys((*ELEMENTS, *KINKED, *PRODUCTS)),
    "gelu": lambda t, x: t.nn.functional.gelu(x, approximate="tanh"),
    "power": lambda t, x, y: t.pow(x, y),
    "squared_difference": lambda t, x, y: (x - y) * (x - y),
    "where": lambda t, x, y: t.where(t.tensor([[True, False, True], [False, False, True]]), x, y),
    "sum": lambda t, x: x.sum(0), "mean": lambda t, x: x.mean(0), "prod": lambda t, x: x.prod(0),
    "var": lambda t, x: x.var(0, correction=0), "std": lambda t, x: x.std(0, correction=0),
    "max": lambda t, x: x.amax(0), "min": lambda t, x: x.amin(0),
    "softmax": lambda t, x: t.softmax(x, 1), "log_softmax": lambda t, x: t.log_softmax(x, 1),
    "einsum": lambda t, x, y: t.einsum("ij,ik->jk", x, y),
    "layer_norm": lambda t, x, s: t.nn.functional.layer_norm(x, (3,), s[0], s[1]),
    "rms_norm": lambda t, x, s: t.nn.functional.rms_norm(x, (3,), s[0], 1e-6),
    "prelu": lambda t, x, s: t.nn.functional.prelu(x, s[0]),
    "concat": lambda t, x, y: t.cat([x, y], 1),
    "embedding": lambda t, x: x[[1, 0]], "gather": lambda t, x: x[[1, 0]],
    "transpose": lambda t, x: x.T, "reshape": lambda t, x: x.reshape(3, 2), "flip": lambda t, x: x.flip(0),
    "cross_entropy": lambda t, x: t.nn.functional.cross_entropy(x, t.tensor([1, 0]), reduction="none"),
}  # fmt: skip
CALLS = {"negative": "neg", "divide": "div", "matmul": lambda t, x, y: x.T @ y}
FUNCTIONAL = {"relu", "relu6", "silu", "softplus", "elu"}


def _peer(torch: Any, name: str) -> Callable[..., Any]:
    call = PEERS[name] or CALLS.get(name, name)
    if callable(call):
        return lambda *xs: call(torch, *xs)
    return getattr(torch.nn.functional if name in FUNCTIONAL else torch, call)


@pytest.mark.parametrize("name", PEERS)
def test_gradients_equal_torch(name):
    torch = pytest.importorskip("torch")
    row, peer = ROWS[name], _peer(torch, name)
    for kinds in itertools.product("fc", repeat=row.operands):
        arrays = [numbers(kind, row.shape, k) for k, kind in enumerate(kinds)]
        if name in ("maximum", "minimum", "max", "min", "prelu") or "c" not in kinds:
            arrays = [np.where(x.real > 1.2, -x, x) if name not in ("log", "sqrt", "rsqrt", "power", "log1p") else x
                      for x in arrays]  # fmt: skip
        torch_tensors = [torch.tensor(x, requires_grad=True) for x in arrays]
        if name == "where" and len(set(kinds)) > 1:
            continue  # The backward pass of torch itself fails for this case.
        try:
            want = peer(*torch_tensors)
        except (RuntimeError, NotImplementedError):  # The function of torch takes no complex numbers.
            assert "c" in kinds, name
            continue
        tensors = [Tensor.from_global(x, MESH("a", None), WORLD, requires_grad=True) for x in arrays]
        try:
            result = row.call(*tensors)
        except RuleError:
            assert "c" in kinds, name
            continue
        np.testing.assert_allclose(
            result.full(), want.detach().numpy(), 1e-12, 1e-12, err_msg=f"{name} {kinds}"
        )
        weight = numbers("c" if result.dtype.kind == "c" else "f", result.shape, 9)
        result.backward(Tensor.from_global(weight, result.layout.reduced, WORLD))
        want.backward(torch.tensor(weight))
        for tensor, torch_tensor in zip(tensors, torch_tensors):
            np.testing.assert_allclose(
                tensor.grad.full(), torch_tensor.grad.numpy(), 1e-11, 1e-11, err_msg=f"{name} {kinds}"
            )


POWERS = [(0.0, 0.0), (0.0, 2.0), (0.0, 1.0), (2.0, 0.0), (-2.0, 2.0), (-2.0, 0.0), (3.0, -1.0)]


@pytest.mark.ranks(1, 2)
def test_powers_at_zero_have_the_slopes_of_torch(world):
    """Slopes equal torch's: they are 0 for ``a ** 0`` and ``0 ** b``, and nan in b for a negative base."""
    mesh = Mesh((world.size,), ("a",))
    pairs = np.array(POWERS).T
    a, b = (Tensor.from_global(x, mesh("a"), world, requires_grad=True) for x in pairs)
    ops.sum(ops.power(a, b)).backward()
    assert a.grad.full().tolist() == [0, 0, 1, 0, -4, 0, -1 / 9]
    nan = np.nan
    np.testing.assert_allclose(b.grad.full(), [0, 0, 0, np.log(2), nan, nan, np.log(3) / 3])
    x = Tensor.from_global(np.zeros(2), mesh(None), world, requires_grad=True)
    ops.sum(x**0).backward()
    assert x.grad.full().tolist() == [0, 0]


def test_powers_at_zero_equal_torch():
    torch = pytest.importorskip("torch")
    for kind in (np.float64, np.complex128):
        pairs = np.array(POWERS, kind).T
        torch_tensors = [torch.tensor(x, requires_grad=True) for x in pairs]
        tensors = [Tensor.from_global(x, MESH(None), WORLD, requires_grad=True) for x in pairs]
        torch.pow(*torch_tensors).backward(torch.ones(len(POWERS), dtype=torch_tensors[0].dtype))
        weight = Tensor.from_global(np.ones(len(POWERS), kind), MESH(None), WORLD)
        ops.power(*tensors).backward(weight)
        for tensor, torch_tensor in zip(tensors, torch_tensors):
            want = torch_tensor.grad.numpy()
            # Skip nan, which torch has for a complex 0 ** 0.
            compared = ~np.isnan(want) if kind is np.complex128 else slice(None)
            np.testing.assert_allclose(tensor.grad.full()[compared], want[compared], 1e-12, 1e-12)


# -- through reshapes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("second_size", [2, np.int64(2)])
def test_sizes_outside_of_a_tuple_are_refused(second_size):
    tensor = Tensor.from_global(np.arange(6), Mesh((1,), ("a",))(None), LockStep(1))
    with pytest.raises(UsageTypeError, match="the sizes in one tuple"):
        ops.reshape(tensor, 3, second_size)


@pytest.mark.ranks(1, 2, 3, 4)
@pytest.mark.parametrize(
    ("old", "new"), [((2, 3), (3, 2)), ((2, 3), (6,)), ((6, 4), (2, 3, 4)), ((1, 1), ()), ((5,), (5,))]
)
def test_reshapes_take_a_layout_and_have_gradients(world, old, new):
    """Gradients of reshapes have the operand's shape and layout."""
    mesh = Mesh((world.size,), ("a",))
    x = numbers("f", old, 0)
    weight = numbers("f", new, 1)
    for src, dst in itertools.product(range(-1, len(old)), range(-1, len(new))):
        start = mesh(*["a" if d == src else None for d in range(len(old))])
        end = mesh(*["a" if d == dst else None for d in range(len(new))])
        tensor = Tensor.from_global(x, start, world, requires_grad=True)
        reshaped = ops.reshape(tensor, new, end)
        assert (reshaped.shape, reshaped.layout) == (new, end)
        np.testing.assert_array_equal(reshaped.full(), x.reshape(new))
        nn.backward(ops.sum(reshaped * weight + reshaped.to(mesh(*[None] * len(new)))))
        assert (tensor.grad.shape, tensor.grad.layout) == (old, start)
        np.testing.assert_allclose(tensor.grad.full(), (weight + 1).reshape(old))


@pytest.mark.ranks(4)
def test_reshapes_of_pending_tensors_have_gradients(world):
    mesh = Mesh((2, 2), ("a", "b"))
    x = Tensor.from_global(numbers("f", (4, 6), 0), mesh("a", None), world, requires_grad=True)
    w = Tensor.from_global(numbers("f", (6, 6), 1), mesh(None, "b"), world, requires_grad=True)
    pending = ops.einsum("ij,ik->jk", x, x @ w)
    assert pending.layout.partial
    reshaped = ops.reshape(pending, (9, 4), mesh("a", "b"))
    weight = numbers("f", (9, 4), 2)
    ops.sum(reshaped * weight).backward()
    X, W = x.full(), w.full()
    inner = weight.reshape(6, 6)
    np.testing.assert_allclose(w.grad.full(), X.T @ X @ inner)
    np.testing.assert_allclose(x.grad.full(), X @ W @ inner.T + X @ inner @ W.T)


# -- one row, whole numbers, two passes -----------------------------------------------------------------


@pytest.mark.ranks(1, 2, 3, 4)
def test_the_loss_of_one_row_has_a_gradient(world):
    mesh = Mesh((world.size,), ("a",))
    logits = numbers("f", (5,), 0)
    x = Tensor.from_global(logits, mesh("a"), world, requires_grad=True)
    label = Tensor.from_global(np.array(3), mesh(), world)
    ops.cross_entropy(x, label).backward()
    softmax = np.exp(logits) / np.exp(logits).sum()
    np.testing.assert_allclose(x.grad.full(), softmax - np.eye(5)[3])
    y = Tensor.from_global(logits, mesh("a"), world, requires_grad=True)
    ops.pick(y, label).backward()
    assert y.grad.full().tolist() == [0, 0, 0, 1, 0]


@pytest.mark.ranks(2)
def test_integers_have_no_gradient(world):
    mesh = Mesh((2,), ("a",))
    for dtype in ("i4", "u1", "?"):
        with pytest.raises(UsageTypeError, match="requires_grad=True needs a float or complex tensor, got"):
            Tensor.from_global(np.ones(2, dtype), mesh("a"), world, requires_grad=True)
        x = Tensor.from_global(np.ones(2, dtype), mesh("a"), world)
        with pytest.raises(UsageTypeError, match="a float or complex tensor"):
            x.requires_grad = True
    x = Tensor.from_global(np.ones(2), mesh("a"), world, requires_grad=True)
    assert not x.astype("i4").requires_grad and x.astype("f4").requires_grad
    assert not ops.where(x > 0, x, 0).astype(bool).requires_grad


@pytest.mark.ranks(2)
def test_a_second_backward_pass_needs_a_retained_graph(world):
    mesh = Mesh((2,), ("a",))
    x = Tensor.from_global(np.array([1.0, 2.0]), mesh("a"), world, requires_grad=True)
    squares = x * x
    loss = ops.sum(squares)
    loss.backward(retain_graph=True)
    loss.backward()
    assert x.grad.full().tolist() == [4, 8]
    for loss_of_freed_graph in (loss, ops.sum(squares * 3)):
        with pytest.raises(UsageTypeError, match="was passed backward before; compute the result again"):
            loss_of_freed_graph.backward()
    with pytest.raises(UsageTypeError, match="passed backward before"):
        nn.backward(loss)
    assert x.grad.full().tolist() == [4, 8]
    moved = x.to(mesh(None))
    for _ in range(2):
        ops.sum(moved * moved).backward()
    assert x.grad.full().tolist() == [8, 16]


@pytest.mark.ranks(2)
def test_a_given_gradient_is_converted_to_the_type_of_the_operand(world):
    mesh = Mesh((2,), ("a",))
    x = Tensor.from_global(np.array([1, 2], "f4"), mesh("a"), world, requires_grad=True)
    (x * 2).backward(Tensor.from_global(np.array([1.0, 0.5]), mesh(None), world))
    assert x.grad.dtype == np.float32 and x.grad.full().tolist() == [2, 1]


def test_a_vjp_gets_the_reduced_result():
    largest = Op(
        "largest",
        Rule.parse("n ->", reduce="max"),
        np.max,
        lambda dy, operands, y: (dy * (operands[0] == y),),
        finish=True,
        saves_result=True,
    )
    x = Tensor.from_global([1.0, 3.0, 2.0, 0.0], Mesh((2,), ("x",))("x"), LockStep(2), requires_grad=True)
    largest(x).backward()
    assert x.grad.full().tolist() == [0, 1, 0, 0]


#: Operators with several results, which the tape saves together: gradients of sorted values read only the indices, and
#: gradients of cumulative sums read no result.
SAVED_TOGETHER = {"cumulative_sum", "cumulative_sum_back", "sort", "sort_down", "topk"}


def unused_saved_arrays(sample: Sample) -> list[str]:
    """Return the arrays that the tape saves for a sample although its gradients do not depend on them.

    Each array is replaced by other numbers; it is unused if all gradients stay equal.
    """
    rng = np.random.default_rng(1)
    layouts = [MESH(*[None] * np.ndim(x)) for x in sample.operands]
    tensors = [
        Tensor.from_global(np.asarray(x), layout, WORLD, requires_grad=np.asarray(x).dtype.kind in "fc")
        for x, layout in zip(sample.operands, layouts)
    ]
    results = sample.op.results(*tensors, **sample.params)
    node = next((result.node for result in results if result.node is not None), None)
    if node is None:  # The gradient belongs to a function of several operators.
        return []
    dys = [
        Tensor.from_global(rng.normal(size=meta.shape).astype(meta.dtype), dual, WORLD)
        if meta.dtype.kind in "fc"
        else None
        for meta, dual in zip(node.recipe.outputs, node.recipe.duals)
    ]

    def gradients() -> list[np.ndarray]:
        with np.errstate(all="ignore"):
            slopes = node.gradients(dys, node.wanted)
        lists = [
            result.stored_shards if isinstance(result, Tensor) else result
            for result in slopes
            if result is not None
        ]
        return [np.array(array) for arrays in lists for array in arrays]

    before, unused = gradients(), []
    for name, saved in (("operand", node.values), ("result", node.saved or [])):
        for k, arrays in enumerate(saved):
            if arrays[0].dtype.kind not in "fc" or arrays[0].size < 2 or not any(arrays[0].strides):
                continue
            saved[k] = [rng.uniform(0.1, 0.9, x.shape).astype(x.dtype) for x in arrays]
            if all(map(np.array_equal, before, gradients())):
                unused.append(f"{name} {k}")
            saved[k] = arrays
    return unused


@pytest.mark.parametrize("sample", [s for s in SAMPLES if s.differentiable], ids=lambda sample: sample.name)
def test_the_tape_saves_only_arrays_that_gradients_read(sample: Sample):
    assert unused_saved_arrays(sample) == (["result 0"] if sample.name in SAVED_TOGETHER else [])
