"""Operators equal their reference under all strategies of their rule, and under no forbidden one.

Forward and backward passes are compared.
"""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from operators import SAMPLES, Sample

from spmdsim.arrays import Tensor
from spmdsim.core import Layout, Mesh, Partial, Replicate, Rule, Shard, Strategy
from spmdsim.errors import RuleError
from spmdsim.worlds import LockStep, MPIWorld

MESHES = [Mesh((2, 4), ("x", "y")), Mesh((2, 2, 2), ("x", "y", "z"))]
#: The number of strategies that run per operator. It is small under mpirun, because each collective costs a context
#: switch per rank, and for functions that share their rule with many others.
MPI_SAMPLE = 4
LOCKSTEP_SAMPLE = 12

ids = [sample.name for sample in SAMPLES]


def distribute(value: np.ndarray, layout: Layout, world, requires_grad: bool) -> Tensor:
    """Return a tensor of a world with the elements of `value`, with a gradient if `requires_grad`.

    Terms of a pending layout differ in size, so that a wrong rule cannot pass by chance.
    """
    value = np.asarray(value)
    op = layout.reduce_op
    size = layout.mesh.axis_size(*layout.partial_axes)
    # Random terms add up to the value: proportional terms would let relu and max pass by chance.
    salt = int(np.abs(value).sum() * 1e6)
    terms = [np.random.default_rng([salt, k]).normal(size=value.shape) for k in range(size - 1)]
    terms.append(value - sum(terms))

    def shard_of(rank: int) -> np.ndarray:
        """Return the block of a rank, or its term if the layout is pending."""
        block = value[layout.slices(value.shape, rank)]
        if op is None:
            return block.copy()
        position = layout.mesh.group(rank, *layout.partial_axes).index(rank)
        if op in ("sum", "avg"):
            term = terms[position][layout.slices(value.shape, rank)] * (size if op == "avg" else 1)
            return np.asarray(term, dtype=value.dtype, order="C")
        has_value = position == size - 1
        neutral = {"max": -np.inf, "min": np.inf, "prod": 1.0, "all": True, "any": False}[op]
        return block.copy() if has_value else np.full_like(block, neutral)

    tensor = Tensor.from_local(shard_of, layout, world, shape=value.shape)
    tensor.requires_grad = requires_grad
    return tensor


def is_float(value) -> bool:
    return np.asarray(value).dtype.kind == "f"


def strategies(sample: Sample, mesh: Mesh, world) -> list[Strategy]:
    bound = sample.op.bind([np.shape(x) for x in sample.operands], sample.params)
    choices = [s for s in bound.strategies(mesh, empty=True) if passes_only_floats(s, sample)]
    limit = LOCKSTEP_SAMPLE // 3 if is_elementwise(sample) else LOCKSTEP_SAMPLE
    if isinstance(world, MPIWorld):
        limit = 1 if is_elementwise(sample) else MPI_SAMPLE
    return choices if len(choices) <= limit else random.Random(sample.name).sample(choices, limit)


def is_elementwise(sample: Sample) -> bool:
    """Return True if many functions have the sample's rule, which no collective distinguishes."""
    return isinstance(sample.op.rule, Rule) and not set(sample.op.rule.text) - set("., ->")


def passes_only_floats(strategy: Strategy, sample: Sample) -> bool:
    return all(is_float(sample.operands[i]) for _, operands, _ in strategy.passed for i in operands)


def several(value) -> tuple:
    """Return one result or a tuple of results as a tuple."""
    return value if isinstance(value, tuple) else (value,)


def references(sample: Sample) -> list[np.ndarray]:
    return [np.asarray(value) for value in several(sample.reference(*sample.operands))]


def run(sample: Sample, strategy: Strategy, world) -> tuple[tuple[Tensor, ...], list[Tensor]]:
    bound = sample.op.bind([np.shape(x) for x in sample.operands], sample.params)
    gradients_wanted = [sample.differentiable and is_float(x) for x in sample.operands]
    operands = [  # Operands that are read in windows have the layout of the blocks of the windows.
        distribute(x, getattr(layout, "base", layout), world, gradient_wanted)
        for x, layout, gradient_wanted in zip(
            sample.operands, bound.input_layouts(strategy), gradients_wanted
        )
    ]
    return several(sample.op.shard(strategy)(*operands, **sample.params)), operands


def directional(sample: Sample, operand: int, dy: np.ndarray, direction: np.ndarray) -> float:
    """Return the derivative of ``sum(dy * f)`` along a `direction` of one `operand`.

    It is a central difference.
    """
    step = 1e-6

    def value(sign: float) -> float:
        moved = list(sample.operands)
        moved[operand] = moved[operand] + sign * step * direction
        return float((dy * several(sample.reference(*moved))[sample.graded]).sum())

    return (value(1) - value(-1)) / (2 * step)


@pytest.mark.ranks(8)
@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("sample", SAMPLES, ids=ids)
def test_results_and_gradients_are_right_under_every_strategy(sample: Sample, mesh: Mesh, world):
    for strategy in strategies(sample, mesh, world):
        compare(sample, strategy, world)


@pytest.mark.parametrize("sample", SAMPLES, ids=ids)
def test_local_functions_are_found_again_on_one_rank(sample: Sample):
    """Local functions are made once per shape and parameters, and reused, on one rank."""
    mesh, world = Mesh((1,), ("x",)), LockStep(1)
    strategy, *_ = strategies(sample, mesh, world)
    for _ in range(2):
        compare(sample, strategy, world)
    operands = [Tensor.from_global(x, Layout.replicated(mesh, np.ndim(x)), world) for x in sample.operands]
    for _ in range(2):
        results = several(sample.op(*operands, **sample.params))
        for result, expected in zip(results, references(sample), strict=True):
            np.testing.assert_allclose(result.full(), expected, rtol=1e-10, atol=1e-10)


def compare(sample: Sample, strategy: Strategy, world) -> None:
    """Compare a sample under a strategy in a world with its reference.

    Values, types, and gradients along a random direction are compared.
    """
    expected, rng = references(sample), np.random.default_rng(0)
    results, operands = run(sample, strategy, world)
    for result, expected_values in zip(results, expected, strict=True):
        values = result.full()
        assert values.dtype == expected_values.dtype or sample.name == "cast"
        np.testing.assert_allclose(values, expected_values, rtol=1e-10, atol=1e-10, err_msg=str(strategy))
    if not sample.differentiable or not sample.op.has_gradient:
        return
    dy = rng.normal(size=expected[sample.graded].shape)
    results[sample.graded].backward(Tensor.from_global(dy, Layout.replicated(strategy.mesh, dy.ndim), world))
    for i, operand in enumerate(operands):
        if operand.requires_grad:
            assert operand.grad is not None
            assert operand.grad.layout == operand.layout.dual()
            direction = rng.normal(size=operand.shape)
            slope = directional(sample, i, dy, direction)
            derivative = float((operand.grad.full() * direction).sum())
            assert derivative == pytest.approx(slope, rel=2e-5, abs=2e-5), (str(strategy), i)


@pytest.mark.parametrize("sample", SAMPLES, ids=ids)
def test_forbidden_placements_give_wrong_results(sample: Sample):
    """Placements of the operands that the rule refuses give no right result on an axis of 2.

    Otherwise the rule would miss a strategy. Exempt are placements that are right only by chance of the
    sizes, because a cut is at a boundary, and placements that move data inside a dim that must not be split.
    """
    mesh, world = Mesh((2,), ("x",)), LockStep(2)
    expected = [value.astype(float) for value in references(sample)]
    bound = sample.op.bind([np.shape(x) for x in sample.operands], sample.params)
    choices = [
        [Replicate(), *[Shard(d) for d in range(np.ndim(x))], *([Partial()] if is_float(x) else [])]
        for x in sample.operands
    ]
    for placements in itertools.product(*choices):
        layouts = [Layout.from_placements(mesh, [p], np.ndim(x)) for p, x in zip(placements, sample.operands)]
        try:
            strategy = bound.infer(layouts)
        except RuleError:
            if not sample.op.contextual and not exempt(sample, placements):
                assert not locally_right(sample, layouts, expected, world), placements
        else:
            results, _ = run(sample, strategy, world)
            for result, expected_values in zip(results, expected, strict=True):
                np.testing.assert_allclose(result.full(), expected_values, rtol=1e-11, atol=1e-11)


def exempt(sample: Sample, placements) -> bool:
    """Return True if `placements` of a sample split a dim that must not be split.

    The function may be local at the cut by chance.
    """
    bound = sample.op.bind([np.shape(x) for x in sample.operands], sample.params)
    for term, placement in zip(bound.inputs, placements):
        if isinstance(placement, Shard):
            factors = term[placement.dim]
            if set(factors) & bound.rule.whole or len(factors) != 1:
                return True
    return False


def _rank_results(sample: Sample, operands) -> list[list[np.ndarray]]:
    """Return for each result the two arrays that the two ranks compute."""
    call = sample.op.forward
    per_rank = [several(call(*[x.shards[r] for x in operands], **sample.params)) for r in range(2)]
    return [[np.asarray(value, dtype=float) for value in pair] for pair in zip(*per_rank)]


def locally_right(sample: Sample, layouts, expected: list[np.ndarray], world) -> bool:
    """Return True if the local function gives the `expected` values under any placement of the result.

    Operands have the given `layouts` in a world; the sample's function runs without communication.
    """
    operands = [distribute(x, layout, world, False) for x, layout in zip(sample.operands, layouts)]
    try:
        with np.errstate(all="ignore"):
            rank_results = _rank_results(sample, operands)
    except (ValueError, IndexError):
        return False
    return all(
        has_placement_of(arrays, expected_values) for arrays, expected_values in zip(rank_results, expected)
    )


def has_placement_of(arrays: list[np.ndarray], expected: np.ndarray) -> bool:
    """Return True if two arrays are the expected value: replicated, as a sum, or as blocks."""
    candidates = (
        [[arrays[0]], [arrays[1]], [arrays[0] + arrays[1]]] if arrays[0].shape == arrays[1].shape else []
    )
    right = [np.allclose(c[0], expected) for c in candidates if c[0].shape == expected.shape]
    if len(right) == 3 and ((right[0] and right[1]) or right[2]):
        return True
    for dim in range(expected.ndim):
        try:
            joined = np.concatenate(arrays, axis=dim)
        except ValueError:
            continue
        if joined.shape == expected.shape and np.allclose(joined, expected):
            return True
    return False
