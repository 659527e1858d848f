"""Which signature OneFlow takes when the operands do not fit one as they are, and what it moves.

Semantics: ``oneflow/core/operator/operator.cpp`` (InferSbpSignature for one mesh axis, GreedilyFindMinCopyCostNdSbp
for several) and ``oneflow/core/job/sbp_parallel.cpp``. Our own choice (:mod:`spmdsim.redistribution.choose`) prices
the computation and the pending result, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from spmdsim.core import Layout, Mesh
from spmdsim.dialects.oneflow import sbp as sbp_module
from spmdsim.dialects.oneflow.sbp import broadcast, partial_sum
from spmdsim.errors import RuleError
from spmdsim.imitations.oneflow.signatures import (
    NdSbp,
    SbpLike,
    Shape,
    Signature,
    as_sbps,
    in_table_order,
    operand_names,
)
from spmdsim.redistribution import plan

#: The price of a conversion that must not happen (anything to P), and of one that should not (B to another).
NEVER, RELUCTANT = 2**63 - 1, 2**31 - 1

#: By ``SBP_INFER_RULE_TAG``, what comes before the bytes to move: how well the operands fit as they are.
_FITTING: dict[int, Callable[[list[bool]], int]] = {
    1: lambda fits: -int(all(fits)),
    2: lambda fits: -sum(fits),
    3: lambda fits: 0,
}


@dataclass(frozen=True)
class Choice:
    """A signature and the conversions it needs.

    Args:
        signature: the signature taken.
        boxing: each operand that is converted, as ``"w: S(0) -> B"``.
        nbytes: bytes that all ranks together receive in these conversions.
    """

    signature: Signature
    boxing: tuple[str, ...]
    nbytes: int


def choose(
    name: str,
    shapes: Sequence[Sequence[int]],
    inputs: Sequence[SbpLike],
    mesh: Sequence[int] = (2,),
    itemsize: int | Sequence[int] = 4,
    rule: int = 1,
    **attrs: Any,
) -> Choice:
    """The signature OneFlow takes for operands with these sbp.

    One mesh axis: the most operands that fit already, then the least bytes to move. Several: what ``rule`` says.

    Args:
        name: the operator.
        shapes: logical shapes of the operands.
        inputs: their sbp.
        mesh: shape of the placement.
        itemsize: bytes per element, for all operands or each.
        rule: OneFlow's ``SBP_INFER_RULE_TAG`` for several axes: 1, an exact match, else the least bytes; 2, the most
            operands that fit already, then the least bytes; 3, the least bytes.
        **attrs: OneFlow's attributes.

    Raises:
        ValueError: no signature at all fits the shapes, or another rule.

    >>> choose("matmul", [(32, 32), (32, 8)], ["S0", "S0"]).boxing
    ('w: S(0) -> B',)
    """
    if rule not in _FITTING:
        raise RuleError(f"the rule is {', '.join(map(str, _FITTING))}, not {rule!r}")
    given = as_sbps(inputs, mesh)
    sizes = [itemsize] * len(shapes) if isinstance(itemsize, int) else list(itemsize)
    full = [tuple(shape) for shape in shapes]
    candidates = in_table_order(name, full, mesh, **attrs)
    if len(mesh) == 1:
        best = min(candidates, key=lambda s: _order_1d(s.inputs, given, full, sizes))
    else:
        best = min(candidates, key=lambda s: _order_nd(s.inputs, given, full, sizes, tuple(mesh), rule))
    moved = [i for i, (have, want) in enumerate(zip(given, best.inputs)) if have != want]
    names = _names(name, len(full))
    text = tuple(
        f"{names[i]}: {sbp_module.text(given[i])} -> {sbp_module.text(best.inputs[i])}" for i in moved
    )
    nbytes = sum(_traffic(given[i], best.inputs[i], full[i], tuple(mesh)) * sizes[i] for i in moved)
    return Choice(best, text, nbytes)


def _names(name: str, count: int) -> tuple[str, ...]:
    """Operands as a user calls them: x and w for a product."""
    return ("x", "w") if "matmul" in name and count == 2 else operand_names(name, count)[0]


def _order_1d(
    wanted: Sequence[NdSbp], given: Sequence[NdSbp], shapes: Sequence[Shape], sizes: Sequence[int]
) -> tuple[int, int]:
    matches = sum(w == g for w, g in zip(wanted, given))
    cost = 0
    for (want,), (have,), shape, size in zip(wanted, given, shapes, sizes):
        if want == have:
            continue
        if want == partial_sum:
            cost += NEVER
        elif have == broadcast:
            cost += RELUCTANT
        else:
            cost += math.prod(shape) * size
    return -10 * matches, cost


def _order_nd(
    wanted: Sequence[NdSbp],
    given: Sequence[NdSbp],
    shapes: Sequence[Shape],
    sizes: Sequence[int],
    mesh: tuple[int, ...],
    rule: int,
) -> tuple[int, int]:
    fits = [want == have for want, have in zip(wanted, given)]
    cost = 0
    for want, have, shape, size in zip(wanted, given, shapes, sizes):
        created = any(w == partial_sum != h for w, h in zip(want, have))
        # A slice moves nothing, but OneFlow counts 1 for it, so that a whole operand rather stays whole.
        sliced = sum(h == broadcast != w for w, h in zip(want, have))
        cost += NEVER if created else _traffic(have, want, shape, mesh) * size + sliced
    return _FITTING[rule](fits), cost


@lru_cache(maxsize=16384)
def _traffic(have: NdSbp, want: NdSbp, shape: Shape, mesh: tuple[int, ...]) -> int:
    """Elements that all ranks together receive in the conversion."""
    axes = Mesh(mesh, [f"d{i}" for i in range(len(mesh))])
    src, dst = (Layout.from_placements(axes, [e.placement for e in s], len(shape)) for s in (have, want))
    if src == dst:
        return 0
    route = plan(src, dst, shape, "int8")
    return sum(route.nbytes(rank) for rank in range(axes.size))
