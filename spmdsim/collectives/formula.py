"""Small arithmetic expressions of the rank count: conditions, chunk counts and closed-form costs as data."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from functools import lru_cache

from spmdsim.reading import arithmetic

NAMES: dict[str, str] = {
    "n": "number of ranks",
    "p": "largest power of two that is at most n",
    "f": "floor of log2 n",
    "c": "ceiling of log2 n",
    "x": "1 when n is not a power of two, else 0",
    "q": "(n-1)/n",
    "qp": "(p-1)/p",
    "s": "segments",
    "g": "ranks per group",
    "h": "number of groups, n/g rounded up",
    "cg": "ceiling of log2 g",
    "fh": "floor of log2 h",
    "xh": "1 when h is not a power of two, else 0",
    "r": "1 when the root is another rank than 0, else 0",
    "bits": "sum of the binary ones of 0 ... n-1",
}
"""The names an expression may use."""


@lru_cache(maxsize=1024)
def _values(size: int, segments: int, group: int, elsewhere: bool) -> dict[str, Fraction]:
    floor, groups = size.bit_length() - 1, -(-size // group)
    power = 1 << floor
    floor_groups = groups.bit_length() - 1
    numbers: dict[str, int | Fraction] = {
        "n": size,
        "p": power,
        "f": floor,
        "c": (size - 1).bit_length(),
        "x": int(size != power),
        "q": Fraction(size - 1, size),
        "qp": Fraction(power - 1, power),
        "s": segments,
        "g": group,
        "h": groups,
        "cg": (group - 1).bit_length(),
        "fh": floor_groups,
        "xh": int(groups != 1 << floor_groups),
        "r": int(elsewhere),
        "bits": _ones_below(size),
    }
    return {name: Fraction(value) for name, value in numbers.items()}


def _ones_below(size: int) -> int:
    """The number of binary ones in 0 ... size-1, bit by bit without a loop over the numbers."""
    total = 0
    for bit in range(size.bit_length()):
        full, rest = divmod(size, 2 << bit)
        total += full * (1 << bit) + max(0, rest - (1 << bit))
    return total


def evaluate(expression: str, size: int, options: Mapping[str, object] | None = None) -> Fraction:
    """The value of an expression over :data:`NAMES` for a rank count.

    Of a schedule's options, ``segments``, ``group`` and ``root`` are used.

    >>> evaluate("2*qp + 2*x", 6)
    Fraction(7, 2)
    """
    chosen = options or {}
    segments, group = chosen.get("segments", 1), chosen.get("group", 1)
    values = _values(size, int(str(segments)), int(str(group)), bool(chosen.get("root", 0)))
    return arithmetic(expression, values)
