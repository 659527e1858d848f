"""MindSpore's candidate cuts, the costs of one step of its recursion, and its costs of operators.

Tests compare counts of the package with these references. Costs of operators are bytes: computation and memory count
the bytes of slices, communication counts the bytes that collectives carry (``operator_costmodel.cc``,
``costmodel.cc``).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from spmdsim.auto_parallel.programs.graph import Operator
from spmdsim.core import BoundRule, Strategy
from spmdsim.core.cuts import strategy_from_cuts
from spmdsim.dialects.imitations.mindspore.double_recursion import CutCosts
from spmdsim.errors import InputError, RuleError
from spmdsim.imitated import imitation

Shape = tuple[int, ...]
Cuts = tuple[tuple[int, ...], ...]


def cut_strategies(
    shapes: Sequence[Shape],
    devices: int,
    *,
    broadcast: bool = False,
    splittable: Sequence[Sequence[bool]] | None = None,
    fully_use: bool = False,
) -> tuple[Cuts, ...]:
    """Return MindSpore's candidate cuts: powers of two per splittable dim, at most ``devices`` in product.

    Args:
        shapes: the shapes of the operands. All dims of all operands are cut independently unless ``broadcast``.
        devices: number of devices.
        broadcast: if True, align operands at their last dims as NumPy does. Aligned dims share their cuts, and dims of
            size 1 are not cut.
        splittable: for each operand and dim, True if it may be cut; all dims by default.
        fully_use: if True, return only candidates that use all devices or one device.

    Raises:
        InputError: If ``devices`` is below 1, or the operands do not broadcast.

    >>> len(cut_strategies([(64, 32)], 8)), len(cut_strategies([(64, 8, 1), (1, 8, 32)], 8, broadcast=True))
    (10, 20)
    """
    if devices < 1:
        raise InputError(f"{devices} devices cannot be used; there has to be at least 1")
    allowed = splittable or [[True] * len(shape) for shape in shapes]
    if not broadcast:
        flat = [size if ok else 1 for shape, oks in zip(shapes, allowed) for size, ok in zip(shape, oks)]
        return tuple(_regroup(cuts, shapes) for cuts in _power_cuts(flat, devices, fully_use))
    width = max(map(len, shapes))
    common = [_aligned_size(shapes, allowed, dim, width) for dim in range(width)]
    strategies = []
    for cuts in _power_cuts(common, devices, fully_use):
        strategies.append(tuple(_own_cuts(shape, cuts) for shape in shapes))
    return tuple(strategies)


def _aligned_size(shapes: Sequence[Shape], allowed: Sequence[Sequence[bool]], dim: int, width: int) -> int:
    """Return the size of one dim of the broadcast shape, or 1 if the dim must not be cut.

    Args:
        shapes: the shapes of the operands.
        allowed: for each operand and dim, True if it may be cut.
        dim: the dim of the broadcast shape.
        width: the number of dims of the broadcast shape.

    Raises:
        InputError: If the sizes of the dim differ and are not 1.
    """
    sizes = {1}
    uncut = False
    for shape, oks in zip(shapes, allowed):
        k = dim - (width - len(shape))
        if k >= 0:
            sizes.add(shape[k])
            uncut |= not oks[k]
    if len(sizes) > 2:
        raise InputError(f"the shapes {list(shapes)} do not broadcast: dim {dim} has sizes {sorted(sizes)}")
    return 1 if uncut else max(sizes)


def _own_cuts(shape: Shape, cuts: Sequence[int]) -> tuple[int, ...]:
    """Return the cuts of one operand from the ``cuts`` of the broadcast shape; dims of size 1 have 1."""
    return tuple(1 if size == 1 else cut for size, cut in zip(shape, cuts[len(cuts) - len(shape) :]))


def _regroup(cuts: Sequence[int], shapes: Sequence[Shape]) -> Cuts:
    following_cuts = iter(cuts)
    return tuple(tuple(itertools.islice(following_cuts, len(shape))) for shape in shapes)


def _power_cuts(sizes: Sequence[int], devices: int, fully_use: bool) -> Iterator[tuple[int, ...]]:
    """Yield the cuts of dims of these ``sizes``: powers of two that divide the dims.

    The product of the cuts is at most ``devices``. With ``fully_use``, it is ``devices`` or 1.
    """

    def extend(dim: int, most: int) -> Iterator[tuple[int, ...]]:
        if dim == len(sizes):
            yield ()
            return
        cut = 1
        while cut <= most and sizes[dim] % cut == 0:
            for following in extend(dim + 1, most // cut):
                yield (cut, *following)
            cut *= 2

    for cuts in extend(0, devices):
        if not fully_use or math.prod(cuts) in (1, devices):
            yield cuts


def operator_cuts(operator: Operator, devices: int, *, fully_use: bool = False) -> tuple[Cuts, ...]:
    """Return MindSpore's candidate cuts of any operator.

    The factors of the operator's rule are cut, and the operands follow. Factors that must not be cut stay uncut.

    Args:
        operator: the operator.
        devices: number of devices.
        fully_use: if True, return only candidates that use all devices or one device.
    """
    bound = operator.bound
    factors = list(bound.splittable)
    entries = []
    for cuts in _power_cuts([bound.sizes[f] for f in factors], devices, fully_use):
        blocks = dict(zip(factors, cuts))
        entry = tuple(
            tuple(math.prod(blocks.get(f, 1) for f in dim) for dim in term) for term in bound.inputs
        )
        if _fits(bound, entry, devices):
            entries.append(entry)
    return tuple(dict.fromkeys(entries))


def _fits(bound: BoundRule, cuts: Cuts, devices: int) -> bool:
    used = max(1, math.prod(max(c, 1) for entry in cuts for c in entry))
    if used == 0:
        return False
    try:
        strategy_from_cuts(bound, cuts, devices)
    except RuleError:
        return False
    return True


def step_costs(
    operator: Operator, done: dict[str, int], pieces: int, version: str
) -> dict[str, float | None]:
    """Return the symbolic costs of the next cut of one operator; None for a factor that cannot be cut.

    Args:
        operator: the operator.
        done: number of blocks of each factor before the step.
        pieces: number of smaller blocks that the step cuts each block into.
        version: the version of MindSpore's cost formulas.
    """
    kind = CutCosts(operator.bound, version)
    state = tuple(done.get(f, 1) for f in kind.factors)
    costs = kind.costs(state, pieces)
    return {factor: costs[k] for k, factor in enumerate(kind.factors)}


@dataclass(frozen=True)
class OperatorCost:
    """MindSpore's costs of one operator, in bytes."""

    forward_comm: float
    backward_comm: float
    forward_computation: float
    backward_computation: float

    @property
    def computation(self) -> float:
        """The computation forward and backward, in bytes."""
        return self.forward_computation + self.backward_computation

    def objective(self, model: Any = None) -> float:
        """Return ``alpha * computation + beta * (forward_comm + gamma * backward_comm)``."""
        model = model or imitation("cost model", "mindspore")()
        partial = self.forward_comm + model.gamma * self.backward_comm
        return model.alpha * self.computation + model.beta * partial


def operator_cost(
    slices: Sequence[Sequence[int]],
    shapes: Sequence[Sequence[int]],
    output_slices: Sequence[Sequence[int]],
    parameters: Sequence[bool],
    itemsize: int = 4,
    *,
    reduces: bool = False,
    devices: int | None = None,
) -> OperatorCost:
    """Return the costs of an operator from its slices.

    Forward, the results are communicated if a summed dim is split. MindSpore looks at the last dim of the first operand
    for it. Computation counts the slices of the operands, and the slices of results that are communicated. Backward,
    parameters with replicas are communicated and computed on.

    Args:
        slices: the shape of each operand's slice.
        shapes: the global shape of each operand.
        output_slices: the shape of each result's slice.
        parameters: True for each operand that is a parameter.
        itemsize: bytes per element.
        reduces: True if the last dim of the first operand is summed.
        devices: number of devices; None derives it from the cuts of the operands.

    Raises:
        InputError: If the numbers of slices, shapes and flags differ, or a slice does not divide its tensor.

    >>> operator_cost([(8, 32, 8, 8), (32,)], [(32, 32, 32, 32), (32,)], [(8, 32, 8, 8)], [False, True])
    OperatorCost(forward_comm=0, backward_comm=128, forward_computation=65664, backward_computation=128)
    """
    if not len(slices) == len(shapes) == len(parameters):
        raise InputError(
            f"{len(slices)} slices, {len(shapes)} shapes and {len(parameters)} flags do not go together"
        )
    cuts = [_cuts(slice_shape, shape) for slice_shape, shape in zip(slices, shapes)]
    ranks = devices or _ranks(cuts, reduces)
    nbytes = [itemsize * math.prod(slice_shape) for slice_shape in slices]
    split = reduces and bool(cuts[0]) and cuts[0][-1] > 1
    results = sum(itemsize * math.prod(slice_shape) for slice_shape in output_slices) if split else 0
    backward = sum(
        n
        for n, cut, is_parameter in zip(nbytes, cuts, parameters)
        if is_parameter and math.prod(cut) != ranks
    )
    return OperatorCost(results, backward, sum(nbytes) + results, backward)


def _ranks(cuts: Sequence[Sequence[int]], reduces: bool) -> int:
    """Return the number of ranks with distinct work, as far as the cuts of the operands show it."""
    if reduces and len(cuts) == 2:
        return math.prod(cuts[0]) * math.prod(cuts[1]) // cuts[0][-1]
    return max(map(math.prod, cuts), default=1)


def _cuts(slice_shape: Sequence[int], shape: Sequence[int]) -> list[int]:
    if len(slice_shape) != len(shape) or any(b <= 0 or a % b for a, b in zip(shape, slice_shape)):
        raise InputError(
            f"a slice of shape {tuple(slice_shape)} does not divide a tensor of shape {tuple(shape)}"
        )
    return [a // b for a, b in zip(shape, slice_shape)]


def strategy_cost(
    operator: Operator, strategy: Strategy, parameters: Sequence[bool], itemsize: int = 4
) -> OperatorCost:
    """Return the costs of an operator of a graph with one of its strategies.

    Args:
        operator: the operator.
        strategy: the mesh axes of each factor.
        parameters: True for each operand that is a parameter.
        itemsize: bytes per element.
    """
    bound = operator.bound
    slices = [_slice(bound, strategy, term, shape) for term, shape in zip(bound.inputs, bound.shapes)]
    results = [
        _slice(bound, strategy, term, shape) for term, shape in zip(bound.outputs, bound.output_shapes)
    ]
    last = bound.inputs[0][-1] if bound.inputs and bound.inputs[0] else ()
    reduces = operator.bound.contraction and any(f in bound.reduced[0] for f in last)
    ranks = strategy.mesh.size
    return operator_cost(slices, bound.shapes, results, parameters, itemsize, reduces=reduces, devices=ranks)


def _slice(
    bound: BoundRule, strategy: Strategy, term: Sequence[Sequence[str]], shape: Shape
) -> tuple[int, ...]:
    """Return the shape of the slice of a tensor whose dims have the factors ``term``."""
    cuts = (math.prod(strategy.parts(f) for f in dim) for dim in term)
    return tuple(size // cut for size, cut in zip(shape, cuts))
