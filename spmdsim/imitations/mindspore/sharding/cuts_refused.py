"""What MindSpore refuses in ``.shard`` cuts before it looks at the operator.

Semantics: ``ops_info/operator_info.cc`` (CheckStrategyByVector). What the cuts mean for an operator is the
rules' business (:mod:`spmdsim.layout.cuts`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from spmdsim.errors import RuleError, UsageTypeError


def check_cuts(cuts: Sequence[Sequence[int]], shapes: Sequence[Sequence[int]], devices: int) -> None:
    """Refuse cuts that no operator could have with operands of these shapes.

    Args:
        cuts: per operand the number of pieces of each dim.
        shapes: the operands' global shapes.
        devices: how many devices there are.

    Raises:
        ValueError: a wrong number of operands or dims; a cut that is not positive, does not divide its dim, or
            is no power of two (which it must be when the number of devices is one).
        TypeError: a cut that is not an integer.

    >>> check_cuts(((2, 4), (4, 1)), ((32, 784), (784, 512)), 8)
    >>> check_cuts(((3, 1),), ((32, 784),), 8)
    Traceback (most recent call last):
    ...
    spmdsim.errors.RuleError: dim 0 of operand 0 has size 32, which cannot be split evenly into 3 pieces
    """
    if len(cuts) != len(shapes):
        raise RuleError(f"strategy {_text(cuts)} is for {len(cuts)} operands, but there are {len(shapes)}")
    for i, (entry, shape) in enumerate(zip(cuts, shapes)):
        if len(entry) != len(shape):
            raise RuleError(
                f"operand {i} has shape {tuple(shape)} of {len(shape)} dims, but its strategy is {tuple(entry)}"
            )
        for dim, (cut, size) in enumerate(zip(entry, shape)):
            _check_cut(cut, size, dim, i, devices)


def _check_cut(cut: int, size: int, dim: int, operand: int, devices: int) -> None:
    where = f"dim {dim} of operand {operand}"
    if not isinstance(cut, int) or isinstance(cut, bool):
        raise UsageTypeError(f"a cut must be an integer, but {where} has {cut!r}")
    if cut <= 0:
        raise RuleError(f"a cut must be positive, but {where} is cut into {cut}")
    if size % cut:
        raise RuleError(f"{where} has size {size}, which cannot be split evenly into {cut} pieces")
    if math.log2(devices).is_integer() and cut & (cut - 1):
        raise RuleError(f"on {devices} devices a cut must be a power of two, but {where} is cut into {cut}")


def _text(cuts: Sequence[Sequence[int]]) -> str:
    return str(tuple(tuple(entry) for entry in cuts))
