"""Operators on 16-bit floats equal numpy's float64 up to the type's own rounding, on any layout.

Operands are the same numbers of 16 bits on both sides. An operator that computes a step in 16 bits, or adds
up rounded terms of different ranks, has larger errors.
"""

from __future__ import annotations

import itertools
from functools import cache

import ml_dtypes
import numpy as np
import pytest
from operators import SAMPLES, Sample, _ids, _norm, _normal, _positive, _softmax

import spmdsim.ops as ops
from spmdsim.arrays import Tensor
from spmdsim.core import Layout, Mesh
from spmdsim.core.tensor import Meta
from spmdsim.worlds import MPIWorld

#: Half the distance of two numbers just above 1: the largest relative error of rounding once.
ROUNDOFF = {np.dtype(ml_dtypes.bfloat16): 2.0**-8, np.dtype(np.float16): 2.0**-11}
#: The error that float32 may add, relative to the largest number: terms of pending operands are larger.
ON_THE_WAY = 2e-5
#: Functions of several operators that round in turn.
TWICE = ("linear", "methods")
#: The number of layouts per operator, rank count and type; under mpirun one layout on all ranks.
LAYOUTS = 2


def _of(name, call, operands, reference, **options) -> Sample:
    return Sample(name, call, None, operands, reference, **options)


def _entropy(x, i):
    return -np.log(_softmax(x, -1))[np.arange(len(i)), i]


LONG, LABELS = _normal(6, 40), _ids(40, 6)

#: Functions that consist of several operators if rows are split.
FUNCTIONS = [
    _of("mean", lambda x: ops.mean(x, 1), (LONG,), lambda x: x.mean(1)),
    _of("mean_all", ops.mean, (LONG,), np.mean),
    _of("var", lambda x: ops.var(x, 1), (LONG + 8,), lambda x: x.var(1)),
    _of("std", lambda x: ops.std(x, 0, correction=1), (LONG + 8,), lambda x: x.std(0, ddof=1)),
    _of("max", lambda x: ops.max(x, 1), (LONG,), lambda x: x.max(1)),
    _of("prod", lambda x: ops.prod(x, 1), (_positive(6, 12),), lambda x: x.prod(1)),
    _of("softmax", lambda x: ops.softmax(x, 1), (LONG * 3,), lambda x: _softmax(x, 1)),
    _of("log_softmax", lambda x: ops.log_softmax(x, 1), (LONG * 3,), lambda x: np.log(_softmax(x, 1))),
    _of("losses", lambda x, i: ops.cross_entropy(x, i, "none"), (LONG, LABELS), _entropy),
    _of("loss", ops.cross_entropy, (LONG, LABELS), lambda x, i: _entropy(x, i).mean()),
    _of(
        "layer_norm", ops.layer_norm, (LONG + 8, _normal(40), _normal(40, seed=2)),
        lambda x, a, b: _norm(x, a, b, 1e-5),
    ),
    _of("linear", ops.linear, (LONG, _normal(40, 7), _normal(7)), lambda x, w, b: x @ w + b),
    _of("methods", lambda x: (x * x).sum(0) / 3 - 1, (LONG,), lambda x: (x * x).sum(0) / 3 - 1),
]  # fmt: skip


def _sample_of_operator(sample: Sample) -> Sample:
    call = lambda *operands: sample.op(*operands, **sample.params)  # noqa: E731
    return _of(f"{sample.name}.op", call, sample.operands, sample.reference, graded=sample.graded,
               differentiable=sample.differentiable and sample.op.has_gradient)  # fmt: skip


KINDS = [
    *(
        _sample_of_operator(sample)
        for sample in SAMPLES
        if not sample.name.startswith(("bincount", "cast", "one_hot", "nextafter"))
    ),
    *FUNCTIONS,
]


def layouts(mesh: Mesh, ndim: int) -> list[Layout]:
    """Return all layouts of a tensor of `ndim` dims on a mesh, pending sums included."""
    choices = []
    for dims_of_axes in itertools.product(range(-2, ndim), repeat=len(mesh.axes)):
        for axes in (mesh.axes, mesh.axes[::-1]):
            dims = [tuple(a for a, d in zip(mesh.axes, dims_of_axes) if d == dim) for dim in range(ndim)]
            dims = [tuple(a for a in axes if a in entry) for entry in dims]
            pending = [(a, "sum") for a, d in zip(mesh.axes, dims_of_axes) if d == -2]
            choices.append(Layout(mesh, dims, pending))
    return list(dict.fromkeys(choices))


def distribute(value: np.ndarray, layout: Layout, world, graded: bool) -> Tensor:
    """Return a tensor of a world with the elements of `value`, for a gradient if `graded`.

    Terms of a pending layout are larger than the value and cancel.
    """
    ranks = layout.mesh.axis_size(*layout.partial_axes)
    rng = np.random.default_rng(value.size)
    terms = [rng.normal(size=value.shape).astype("f4") * 8 for _ in range(ranks - 1)]
    terms.append(value.astype("f8") - sum(term.astype("f8") for term in terms))

    def shard(rank: int) -> np.ndarray:
        if ranks == 1:
            return value[layout.slices(value.shape, rank)].copy()
        number = layout.mesh.group(rank, *layout.partial_axes).index(rank)
        return terms[number][layout.slices(value.shape, rank)].astype("f4")

    meta = Meta.of(layout, value.shape, value.dtype)
    return Tensor(world, meta, [np.asarray(shard(rank)) for rank in world.ranks], requires_grad=graded)


def rounded(operand, dtype: np.dtype):
    """Return an operand with its fractions rounded to the 16-bit type `dtype`."""
    operand = np.asarray(operand)
    return operand.astype(dtype) if operand.dtype.kind == "f" else operand


def exact(operand: np.ndarray) -> np.ndarray:
    return operand.astype("f8") if operand.dtype in ROUNDOFF else operand


@cache
def exact_results(
    number: int, dtype: np.dtype
) -> tuple[list[np.ndarray], np.ndarray | None, list[np.ndarray | None]]:
    """Return the results in float64, a random gradient, and the gradients of the operands.

    The gradient belongs to the graded result and has the type `dtype`; it is None if sample `number` is not
    differentiable. Gradients of integer operands are None.
    """
    sample = KINDS[number]
    arrays = [exact(rounded(x, dtype)) for x in sample.operands]

    def run(*operands) -> list[np.ndarray]:
        results = sample.reference(*operands)
        return [np.asarray(r) for r in (results if isinstance(results, tuple) else (results,))]

    results = run(*arrays)
    if not sample.differentiable:
        return results, None, [None] * len(arrays)
    dy = np.random.default_rng(number).normal(size=results[sample.graded].shape).astype(dtype)
    slopes: list[np.ndarray | None] = []
    for k, operand in enumerate(arrays):
        slope = np.zeros(operand.shape) if operand.dtype.kind == "f" else None
        for index in np.ndindex(operand.shape) if slope is not None else ():
            values = []
            for step in (1e-6, -1e-6):
                moved = operand.copy()
                moved[index] += step
                changed = run(*arrays[:k], moved, *arrays[k + 1 :])[sample.graded]
                values.append((dy.astype("f8") * changed).sum())
            slope[index] = (values[0] - values[1]) / 2e-6  # type: ignore[index]
        slopes.append(slope)
    return results, dy, slopes


def compare(
    result: Tensor, expected: np.ndarray, dtype: np.dtype, roundings: float, tolerance: float, message: str
) -> None:
    """Compare a result with float64; `message` is the text of a failure.

    The error is limited by `roundings` times the rounding error of each number of the type `dtype`, plus
    `tolerance` times the largest number.
    """
    values = result.full()
    if expected.dtype.kind != "f":
        np.testing.assert_array_equal(values, expected, err_msg=message)
        return
    assert values.dtype == dtype, message
    assert {shard.dtype for shard in result.shards} == {dtype}, message
    limits = (
        roundings * ROUNDOFF[dtype] * np.abs(expected) + tolerance * np.abs(expected).max(initial=0.0) + 1e-7
    )
    worst = np.abs(values.astype("f8") - expected) - limits
    assert worst.max(initial=-1.0) <= 0, f"{message}: {values} for {expected}"


@pytest.mark.ranks(4)
@pytest.mark.parametrize("dtype", ROUNDOFF, ids=["bf16", "f16"])
@pytest.mark.parametrize("number", range(len(KINDS)), ids=[sample.name for sample in KINDS])
def test_results_and_gradients_have_only_the_rounding_of_their_type(world, number, dtype):
    under_mpi = isinstance(world, MPIWorld)
    if under_mpi and world.size < 8:
        pytest.skip("tried in lock step; each collective costs a context switch per rank")
    sample = KINDS[number]
    results, dy, slopes = exact_results(number, dtype)
    operands = [rounded(x, dtype) for x in sample.operands]
    meshes = [Mesh((world.size,), ("x",))]
    if world.size > 1:
        meshes.append(Mesh((2, world.size // 2), ("y", "z")))
    rng = np.random.default_rng(number)
    for turn in range(1 if under_mpi or world.size == 1 else LAYOUTS):
        mesh = meshes[(turn + number) % len(meshes)]
        choices = [layouts(mesh, x.ndim) for x in operands]
        choices = [
            w if x.dtype == dtype else [o for o in w if not o.partial] for x, w in zip(operands, choices)
        ]
        chosen = [layouts_of_operand[rng.integers(len(layouts_of_operand))] for layouts_of_operand in choices]
        message = f"{sample.name} of {', '.join(map(str, chosen))}"
        graded = [slope is not None for slope in slopes]
        tensors = [distribute(x, layout, world, g) for x, layout, g in zip(operands, chosen, graded)]
        outputs = sample.call(*tensors)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        for result, expected in zip(outputs, results, strict=True):
            compare(
                result,
                expected,
                dtype,
                1.01,
                ON_THE_WAY + 2 * ROUNDOFF[dtype] * (sample.name in TWICE),
                message,
            )
        if dy is None:
            continue
        result = outputs[sample.graded]
        result.backward(Tensor.from_global(dy, Layout(mesh, [()] * dy.ndim), world))
        for tensor, slope in zip(tensors, slopes):
            if slope is not None:
                compare(tensor.grad, slope, dtype, 2, 2 * ROUNDOFF[dtype], f"gradient of {message}")
