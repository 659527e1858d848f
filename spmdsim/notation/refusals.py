"""Why something does not fit, in words: strategies and layouts a rule, meshes and shards a world."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from spmdsim.errors import RuleError, WorldError

if TYPE_CHECKING:
    from spmdsim.core.bound import BoundRule
    from spmdsim.core.layout import Layout
    from spmdsim.core.mesh import Mesh
    from spmdsim.core.rule import Rule, Strategy
    from spmdsim.core.step import Step

Axes = tuple[str, ...]


def _names(axes: Axes) -> str:
    return "no axis" if not axes else repr(axes[0]) if len(axes) == 1 else repr(axes)


# -- strategies --------------------------------------------------------------------------------------


def of_strategy(bound: BoundRule, strategy: Strategy) -> Iterator[str]:
    """Why a rule does not allow a strategy.

    Some factors must stay whole. Those that share a dim are cut evenly, a minor one only where the major one is cut up
    completely. And what comes out waits for one reduction.
    """
    sizes, parts = bound.sizes, strategy.parts
    for factor, axes in strategy.splits:
        if factor not in sizes:
            yield f"strategy splits {factor!r}, but the rule '{bound.rule}' has factors {list(sizes)}"
        elif factor in bound.rule.whole and parts(factor) > 1:
            yield f"factor {factor!r} of the rule '{bound.rule}' must not be split, but axes {axes} split it"
        elif factor in bound.compound and sizes[factor] % parts(factor):
            yield (
                f"factor {factor!r} of size {sizes[factor]} shares a dim with others, so it can only "
                f"be cut evenly, not into {parts(factor)} pieces"
            )
    for dim in itertools.chain(*bound.inputs, *bound.outputs):
        for major, minor in itertools.pairwise(dim):
            if parts(minor) > 1 and parts(major) != sizes[major]:
                yield (
                    f"in the dim ({' '.join(dim)}) factor {minor!r} can only be split where {major!r} is split "
                    f"completely ({sizes[major]} pieces, not {parts(major)})"
                )
    for output in range(len(bound.outputs)):
        ops = {op for _, op in bound.partial_of(strategy, output)}
        if len(ops) > 1:
            yield f"strategy {strategy} would leave different reductions pending: {sorted(ops)}"


# -- operands' layouts -------------------------------------------------------------------------------


def check_alike(rule: Rule, factor: str, one: tuple[int, Axes], other: tuple[int, Axes]) -> None:
    """Refuse a factor that two operands, given by their numbers, split by different axes."""
    if one[1] != other[1]:
        raise RuleError(
            f"factor {factor!r} of the rule '{rule}' is split by {_names(one[1])} in "
            f"operand {one[0]} but by {_names(other[1])} in operand {other[0]}; both must be the same"
        )


def check_axes_once(rule: Rule, axes_of: dict[str, tuple[int, Axes]]) -> None:
    """Refuse an axis that splits two factors, each given with an operand that has it and its axes."""
    used: dict[str, str] = {}
    for factor, axis in ((factor, axis) for factor, (_, axes) in sorted(axes_of.items()) for axis in axes):
        if axis in used:
            raise RuleError(
                f"axis {axis!r} splits factor {used[axis]!r} (operand {axes_of[used[axis]][0]}) and factor "
                f"{factor!r} (operand {axes_of[factor][0]}) of the rule '{rule}'; it can split only one"
            )
        used[axis] = factor


def split_of_size_one(rule: Rule, operand: int, dim: int, axes: Axes) -> RuleError:
    """Axes split what is broadcast."""
    return RuleError(
        f"dim {dim} of operand {operand} has size 1 in the rule '{rule}', but {_names(axes)} splits it"
    )


def not_passed_on(rule: Rule, operands: Sequence[int], ops: Sequence[str], axis: str) -> RuleError:
    """Operands are partial together that the rule is not linear in."""
    return RuleError(
        f"operands {sorted(operands)} are partial ({', '.join(sorted(ops))}) over axis {axis!r}, which "
        f"the rule '{rule}' does not pass on; reduce them first"
    )


def common_mesh(layouts: Sequence[Layout]) -> Mesh:
    """The mesh all layouts share; RuleError if they are on different ones."""
    mesh = layouts[0].mesh
    for layout in layouts:
        if layout.mesh != mesh:
            raise RuleError(f"operands live on different meshes, {mesh} and {layout.mesh}")
    return mesh


# -- worlds ------------------------------------------------------------------------------------------


def check_ranks(mesh: Mesh, size: int, how: Callable[[int], str] = lambda size: "") -> None:
    """Refuse a mesh with ranks that a world of so many has not; ``how`` says how to get one of enough."""
    highest = mesh.size - 1 if mesh.ranks is None else max(mesh.ranks)
    if highest >= size:
        raise WorldError(
            f"mesh {mesh} needs rank {highest}, but the world has {size} rank{'s' if size > 1 else ''}; "
            f"start it with at least {highest + 1}{how(highest + 1)}"
        )


def check_shards(step: Step, shards: Sequence[Any], shapes: Sequence[tuple[int, ...]]) -> None:
    """Refuse shards that a step's source layout does not give the ranks."""
    if len(shards) != len(shapes):
        raise WorldError(f"{len(shards)} shards were given for {len(shapes)} ranks")
    for rank, (shard, shape) in enumerate(zip(shards, shapes)):
        if shard.shape != shape:
            raise WorldError(
                f"rank {rank} holds a shard of shape {shard.shape}, but {step.src} gives it {shape}"
            )
