"""Every operator, every strategy its rule allows, forward and backward; and nothing the rule forbids is right."""

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
#: Where there are many strategies a sample of them is run, another one of each operator; a small one under mpirun,
#: where each collective costs a context switch per rank, and of functions that share their rule with many others.
MPI_SAMPLE = 4
LOCKSTEP_SAMPLE = 12

ids = [sample.name for sample in SAMPLES]


def place(value: np.ndarray, layout: Layout, world, requires_grad: bool) -> Tensor:
    """A tensor with this global value; pending sums in unequal pieces, so that wrong rules cannot pass by luck."""
    value = np.asarray(value)
    op = layout.reduce_op
    size = layout.mesh.axis_size(*layout.partial_axes)
    # Random parts whose sum is the value: parts in proportion would let relu and max pass by luck.
    salt = int(np.abs(value).sum() * 1e6)
    parts = [np.random.default_rng([salt, k]).normal(size=value.shape) for k in range(size - 1)]
    parts.append(value - sum(parts))

    def piece(rank: int) -> np.ndarray:
        block = value[layout.slices(value.shape, rank)]
        if op is None:
            return block.copy()
        place = layout.mesh.group(rank, *layout.partial_axes).index(rank)
        if op in ("sum", "avg"):
            part = parts[place][layout.slices(value.shape, rank)] * (size if op == "avg" else 1)
            return np.asarray(part, dtype=value.dtype, order="C")
        keeps = place == size - 1
        far = {"max": -np.inf, "min": np.inf, "prod": 1.0, "all": True, "any": False}[op]
        return block.copy() if keeps else np.full_like(block, far)

    tensor = Tensor.from_local(piece, layout, world, shape=value.shape)
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
    """One of many functions with the same rule, which no collective tells apart."""
    return isinstance(sample.op.rule, Rule) and not set(sample.op.rule.text) - set("., ->")


def passes_only_floats(strategy: Strategy, sample: Sample) -> bool:
    return all(is_float(sample.operands[i]) for _, operands, _ in strategy.passed for i in operands)


def several(value) -> tuple:
    """One result or several, as several."""
    return value if isinstance(value, tuple) else (value,)


def references(sample: Sample) -> list[np.ndarray]:
    return [np.asarray(value) for value in several(sample.reference(*sample.operands))]


def run(sample: Sample, strategy: Strategy, world) -> tuple[tuple[Tensor, ...], list[Tensor]]:
    bound = sample.op.bind([np.shape(x) for x in sample.operands], sample.params)
    wants = [sample.differentiable and is_float(x) for x in sample.operands]
    operands = [  # those that are read in windows lie in the blocks that windows are made of
        place(x, getattr(layout, "base", layout), world, want)
        for x, layout, want in zip(sample.operands, bound.input_layouts(strategy), wants)
    ]
    return several(sample.op.shard(strategy)(*operands, **sample.params)), operands


def directional(sample: Sample, operand: int, dy: np.ndarray, direction: np.ndarray) -> float:
    """The derivative of sum(dy * f) along a direction of one operand, by central differences."""
    step = 1e-6

    def value(sign: float) -> float:
        moved = list(sample.operands)
        moved[operand] = moved[operand] + sign * step * direction
        return float((dy * several(sample.reference(*moved))[sample.graded]).sum())

    return (value(1) - value(-1)) / (2 * step)


@pytest.mark.ranks(8)
@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("sample", SAMPLES, ids=ids)
def test_every_strategy(sample: Sample, mesh: Mesh, world):
    for strategy in strategies(sample, mesh, world):
        compare(sample, strategy, world)


@pytest.mark.parametrize("sample", SAMPLES, ids=ids)
def test_on_one_rank_too(sample: Sample):
    """There local functions are made for their shapes and parameters, once; the second call finds them."""
    mesh, world = Mesh((1,), ("x",)), LockStep(1)
    strategy, *_ = strategies(sample, mesh, world)
    for _ in range(2):
        compare(sample, strategy, world)
    operands = [Tensor.from_global(x, Layout.replicated(mesh, np.ndim(x)), world) for x in sample.operands]
    for _ in range(2):
        results = several(sample.op(*operands, **sample.params))
        for result, wanted in zip(results, references(sample), strict=True):
            np.testing.assert_allclose(result.full(), wanted, rtol=1e-10, atol=1e-10)


def compare(sample: Sample, strategy: Strategy, world) -> None:
    """With the reference: values, types, and gradients along a random direction."""
    expected, rng = references(sample), np.random.default_rng(0)
    results, operands = run(sample, strategy, world)
    for result, wanted in zip(results, expected, strict=True):
        values = result.full()
        assert values.dtype == wanted.dtype or sample.name == "cast"
        np.testing.assert_allclose(values, wanted, rtol=1e-10, atol=1e-10, err_msg=str(strategy))
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
def test_forbidden_placements_are_really_wrong(sample: Sample):
    """On one axis of 2: a placement of the operands that the rule refuses gives the right result nowhere.

    Otherwise the rule would miss a strategy. Exempt are placements that are right by chance of the sizes only
    (a cut that happens to fall on a boundary) and those which move data inside a dim that must stay whole.
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
            for result, wanted in zip(results, expected, strict=True):
                np.testing.assert_allclose(result.full(), wanted, rtol=1e-11, atol=1e-11)


def exempt(sample: Sample, placements) -> bool:
    """A whole dim cut at a place where the function happens to be local."""
    bound = sample.op.bind([np.shape(x) for x in sample.operands], sample.params)
    for term, placement in zip(bound.inputs, placements):
        if isinstance(placement, Shard):
            factors = term[placement.dim]
            if set(factors) & bound.rule.whole or len(factors) != 1:
                return True
    return False


def _pieces(sample: Sample, operands) -> list[list[np.ndarray]]:
    """Per result, what each of two ranks computes."""
    call = sample.op.forward
    per_rank = [several(call(*[x.shards[r] for x in operands], **sample.params)) for r in range(2)]
    return [[np.asarray(value, dtype=float) for value in pair] for pair in zip(*per_rank)]


def locally_right(sample: Sample, layouts, expected: list[np.ndarray], world) -> bool:
    """Whether running the local function as it is gives the right result under any placement of the result."""
    operands = [place(x, layout, world, False) for x, layout in zip(sample.operands, layouts)]
    try:
        with np.errstate(all="ignore"):
            parts = _pieces(sample, operands)
    except (ValueError, IndexError):
        return False
    return all(forms(pieces, wanted) for pieces, wanted in zip(parts, expected))


def forms(pieces: list[np.ndarray], expected: np.ndarray) -> bool:
    """Whether two pieces are the expected value: replicated, as a sum, or side by side."""
    candidates = (
        [[pieces[0]], [pieces[1]], [pieces[0] + pieces[1]]] if pieces[0].shape == pieces[1].shape else []
    )
    right = [np.allclose(c[0], expected) for c in candidates if c[0].shape == expected.shape]
    if len(right) == 3 and ((right[0] and right[1]) or right[2]):
        return True
    for dim in range(expected.ndim):
        try:
            joined = np.concatenate(pieces, axis=dim)
        except ValueError:
            continue
        if joined.shape == expected.shape and np.allclose(joined, expected):
            return True
    return False
