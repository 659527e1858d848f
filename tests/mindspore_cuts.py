"""The candidates that MindSpore enumerates, the costs of one step of its recursion, and its cost terms of operators.

Counts are compared with them. Costs of operators are bytes, not seconds: computation and memory count the bytes of slices,
communication those that collectives carry (``operator_costmodel.cc``, ``costmodel.cc``).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from spmdsim.auto_parallel.programs.graph import Operator
from spmdsim.core import BoundRule, Strategy
from spmdsim.core.cuts import strategy_from_cuts
from spmdsim.dialects.imitations.cost_models import MindSporeModel
from spmdsim.dialects.imitations.mindspore.double_recursion import CutCosts
from spmdsim.errors import InputError, RuleError

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
    """MindSpore's candidates: power-of-two cuts of every splittable dim, with a product of at most ``devices``.

    Args:
        shapes: the operands. With one operand its dims are cut independently; with several, all dims are
            independent unless ``broadcast``.
        devices: number of devices.
        broadcast: operands are aligned at their last dims as in numpy and share the cuts of aligned dims; a
            dim of size one stays whole.
        splittable: per operand and dim whether it may be cut; all by default.
        fully_use: only candidates that use all devices, or none.

    Raises:
        InputError: fewer than one device, or operands that do not broadcast.

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
    common = [_aligned(shapes, allowed, dim, width) for dim in range(width)]
    strategies = []
    for cuts in _power_cuts(common, devices, fully_use):
        strategies.append(tuple(_own_cuts(shape, cuts) for shape in shapes))
    return tuple(strategies)


def _aligned(shapes: Sequence[Shape], allowed: Sequence[Sequence[bool]], dim: int, width: int) -> int:
    """Size of a dim of the broadcast shape; 1 if it must stay whole."""
    sizes = {1}
    whole = False
    for shape, oks in zip(shapes, allowed):
        k = dim - (width - len(shape))
        if k >= 0:
            sizes.add(shape[k])
            whole |= not oks[k]
    if len(sizes) > 2:
        raise InputError(f"the shapes {list(shapes)} do not broadcast: dim {dim} has sizes {sorted(sizes)}")
    return 1 if whole else max(sizes)


def _own_cuts(shape: Shape, cuts: Sequence[int]) -> tuple[int, ...]:
    return tuple(1 if size == 1 else cut for size, cut in zip(shape, cuts[len(cuts) - len(shape) :]))


def _regroup(cuts: Sequence[int], shapes: Sequence[Shape]) -> Cuts:
    rest = iter(cuts)
    return tuple(tuple(itertools.islice(rest, len(shape))) for shape in shapes)


def _power_cuts(sizes: Sequence[int], devices: int, fully_use: bool) -> Iterator[tuple[int, ...]]:
    """Cuts per dim: powers of two that divide the dim, at most ``devices`` pieces in all."""

    def extend(dim: int, left: int) -> Iterator[tuple[int, ...]]:
        if dim == len(sizes):
            yield ()
            return
        cut = 1
        while cut <= left and sizes[dim] % cut == 0:
            for rest in extend(dim + 1, left // cut):
                yield (cut, *rest)
            cut *= 2

    for cuts in extend(0, devices):
        if not fully_use or math.prod(cuts) in (1, devices):
            yield cuts


def operator_cuts(operator: Operator, devices: int, *, fully_use: bool = False) -> tuple[Cuts, ...]:
    """MindSpore's candidates for any operator: its factors are cut, its operands follow.

    Factors that must stay whole, or share a dim with others in a way that cannot be cut, stay whole.
    """
    bound = operator.bound
    factors = list(bound.splittable)
    entries = []
    for cuts in _power_cuts([bound.sizes[f] for f in factors], devices, fully_use):
        parts = dict(zip(factors, cuts))
        entry = tuple(tuple(math.prod(parts.get(f, 1) for f in dim) for dim in term) for term in bound.inputs)
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
    """Symbolic costs of the next cut of one operator; None for a factor that cannot be cut.

    Args:
        operator: the operator.
        done: pieces per factor so far.
        pieces: into how many pieces the step cuts.
        version: which variant.
    """
    kind = CutCosts(operator.bound, version)
    state = tuple(done.get(f, 1) for f in kind.factors)
    costs = kind.costs(state, pieces)
    return {factor: costs[k] for k, factor in enumerate(kind.factors)}


@dataclass(frozen=True)
class OperatorCost:
    """MindSpore's cost fields of one operator, in bytes."""

    forward_comm: float
    backward_comm: float
    forward_computation: float
    backward_computation: float

    @property
    def computation(self) -> float:
        """Forward and backward."""
        return self.forward_computation + self.backward_computation

    def objective(self, model: MindSporeModel | None = None) -> float:
        """``alpha * computation + beta * communication``; what parameters' gradients communicate counts by gamma only."""
        model = model or MindSporeModel()
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
    """Costs of an operator from its slices.

    Forward, the results are communicated where a summed dim is split, which MindSpore tells from the last dim of the
    first operand (``reduces``); computation is the operands' slices, and the results' where they are communicated.
    Backward, every parameter that is replicated somewhere is communicated and computed on. ``devices`` are as many as
    the operands' cuts make together if left out.

    >>> operator_cost([(8, 32, 8, 8), (32,)], [(32, 32, 32, 32), (32,)], [(8, 32, 8, 8)], [False, True])
    OperatorCost(forward_comm=0, backward_comm=128, forward_computation=65664, backward_computation=128)
    """
    if not len(slices) == len(shapes) == len(parameters):
        raise InputError(
            f"{len(slices)} slices, {len(shapes)} shapes and {len(parameters)} flags do not go together"
        )
    cuts = [_cuts(part, shape) for part, shape in zip(slices, shapes)]
    ranks = devices or _ranks(cuts, reduces)
    nbytes = [itemsize * math.prod(part) for part in slices]
    split = reduces and bool(cuts[0]) and cuts[0][-1] > 1
    results = sum(itemsize * math.prod(part) for part in output_slices) if split else 0
    backward = sum(n for n, cut, own in zip(nbytes, cuts, parameters) if own and math.prod(cut) != ranks)
    return OperatorCost(results, backward, sum(nbytes) + results, backward)


def _ranks(cuts: Sequence[Sequence[int]], reduces: bool) -> int:
    """Ranks that distinct work is done on, as far as the operands' cuts show it."""
    if reduces and len(cuts) == 2:
        return math.prod(cuts[0]) * math.prod(cuts[1]) // cuts[0][-1]
    return max(map(math.prod, cuts), default=1)


def _cuts(part: Sequence[int], shape: Sequence[int]) -> list[int]:
    if len(part) != len(shape) or any(b <= 0 or a % b for a, b in zip(shape, part)):
        raise InputError(f"a slice of shape {tuple(part)} does not divide a tensor of shape {tuple(shape)}")
    return [a // b for a, b in zip(shape, part)]


def strategy_cost(
    operator: Operator, strategy: Strategy, parameters: Sequence[bool], itemsize: int = 4
) -> OperatorCost:
    """The same for an operator of a graph and one of its strategies."""
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
    parts = (math.prod(strategy.parts(f) for f in dim) for dim in term)
    return tuple(size // cut for size, cut in zip(shape, parts))
