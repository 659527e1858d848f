"""OneFlow's ``sbp``: split, broadcast and partial_sum, as objects, as callables and as text.

Semantics: ``oneflow/api/python/symbol/sbp_symbol.cpp``. One of them per mesh axis, the major axis first.

>>> from spmdsim.dialects.oneflow import sbp
>>> sbp.parse("(B, S(0))") == (sbp.broadcast, sbp.split(0))
True
>>> sbp.text((sbp.broadcast, sbp.split(0))), sbp.split(0)() == sbp.split(0)
('(B, S(0))', True)
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from spmdsim.core import Partial, Placement, Replicate, Shard
from spmdsim.dialects.missing import add_words, refuse
from spmdsim.errors import LayoutError, UsageTypeError, many

#: Split axes are 0 .. 5.
MAX_SPLIT_AXIS = 6
#: What makes a global tensor of a local one.
TO_GLOBAL = "x.to_global(placement, sbp)"


class OneFlowError(LayoutError, RuntimeError):
    """What OneFlow refuses; a RuntimeError there, and here as well."""


@dataclass(frozen=True)
class Sbp:
    """One entry of an sbp tuple: ``split`` of a dim, ``broadcast`` or ``partial_sum``. Calling it gives itself, as in OneFlow."""

    kind: str
    axis: int | None = None

    def __call__(self) -> Sbp:
        """Itself."""
        return self

    def __str__(self) -> str:
        return {"broadcast": "B", "partial_sum": "P"}.get(self.kind, f"S({self.axis})")

    def __repr__(self) -> str:
        return f"oneflow.sbp.{self.kind}" + ("" if self.axis is None else f"(dim={self.axis})")

    def __lt__(self, other: Sbp) -> bool:
        """OneFlow's order of signatures: B < P < S(0) < S(1) < ..., the alphabet's."""
        return (self.kind, self.axis or 0) < (other.kind, other.axis or 0)

    @property
    def dual(self) -> Sbp:
        """The sbp of the gradient when a tensor becomes local: S stays, B and P change places."""
        return {"broadcast": partial_sum, "partial_sum": broadcast}.get(self.kind, self)

    @property
    def placement(self) -> Placement:
        """The same thing in this package's words."""
        if self.axis is not None:
            return Shard(self.axis)
        return Replicate() if self.kind == "broadcast" else Partial("sum")


broadcast = Sbp("broadcast")
partial_sum = Sbp("partial_sum")


def split(axis: int | None = None, *, dim: int | None = None) -> Sbp:
    """The mesh axis splits tensor dim ``axis`` (also ``dim=``); a RuntimeError for one that OneFlow does not support."""
    position = dim if axis is None else axis
    if not isinstance(position, int) or isinstance(position, bool):
        raise UsageTypeError(f"sbp.split takes a tensor dim (an integer), but got {position!r}")
    refuse({
        f"Split axis must not be negative, but got {position}!": position < 0,
        f"Expected split axis to be less than the supported maximum axis ({MAX_SPLIT_AXIS}), but got {position}!":
            position >= MAX_SPLIT_AXIS,
    }, OneFlowError)  # fmt: skip
    return Sbp("split", position)


_WORDS = {"B": broadcast, "broadcast": broadcast, "P": partial_sum, "partial_sum": partial_sum}
_SPLIT = re.compile(r"(?:S|split)\s*(?:\(\s*(?:(?:axis|dim)\s*=\s*)?(-?\d+)\s*\)|(\d+))$")
_PREFIX = re.compile(r"^(?:oneflow|flow)?\.?(?:sbp\.)?")


def parse_one(text: str) -> Sbp:
    """``B``, ``P``, ``S(0)``, ``S0``, ``split(0)``, ``broadcast``, ``partial_sum``, also with ``flow.sbp.``, or a ValueError."""
    word = _PREFIX.sub("", text.strip())
    if word.removesuffix("()") in _WORDS:
        return _WORDS[word.removesuffix("()")]
    match = _SPLIT.match(word)
    if match is None:
        raise LayoutError(f"{text.strip()!r} is not an sbp; write B, P or S(dim)")
    return split(int(match[1] or match[2]))


def parse(text: str) -> tuple[Sbp, ...]:
    """An sbp tuple from its text: ``"B"``, ``"(B, S(0))"``, ``"B,S0"``, ``"[S(0), P]"``, ``"S(0)BP"``; or a ValueError."""
    inner = text.strip()
    if inner[:1] in "([" and inner[-1:] in ")]" and not _SPLIT.match(inner):
        inner = inner[1:-1]
    parts = [part for part in re.split(r",(?![^(]*\))", inner) if part.strip()]
    if len(parts) == 1 and re.fullmatch(r"(?:[BP]|S(?:\(\d+\)|\d))+", parts[0].strip()):
        parts = re.findall(r"[BP]|S(?:\(\d+\)|\d)", parts[0])
    if not parts:
        raise LayoutError(f"no sbp in {text!r}; write one per mesh axis, such as (B, S(0))")
    return tuple(parse_one(part) for part in parts)


def text(value: Sbp | Iterable[Sbp]) -> str:
    """``B`` for one mesh axis, ``(B, S(0))`` for several."""
    entries = (value,) if isinstance(value, Sbp) else tuple(value)
    return str(entries[0]) if len(entries) == 1 else f"({', '.join(map(str, entries))})"


def as_tuple(value: Sbp | str | Sequence[Sbp | str], ndim: int | None = None) -> tuple[Sbp, ...]:
    """Any way to write an sbp, as a tuple; with ``ndim``, a RuntimeError for another length than the placement's."""
    entries: Any = parse(value) if isinstance(value, str) else value
    entries = entries if isinstance(entries, list | tuple) else (entries,)
    sbps = tuple(parse_one(e) if isinstance(e, str) else e for e in entries)
    for entry in sbps:
        if not isinstance(entry, Sbp):
            raise UsageTypeError(f"{entry!r} is not sbp.split(dim), sbp.broadcast or sbp.partial_sum")
    if ndim is not None and len(sbps) != ndim:
        raise OneFlowError(
            f"the placement has {many(ndim, 'mesh axis', 'mesh axes')}, so sbp needs "
            f"{many(ndim, 'entry', 'entries')}, but got {len(sbps)}: {text(sbps)}"
        )
    return sbps


def from_placement(placement: Placement) -> Sbp:
    """This package's placement as an sbp. ValueError: a reduction other than sum: OneFlow has only partial_sum."""
    if isinstance(placement, Shard):
        return split(placement.dim)
    if isinstance(placement, Replicate):
        return broadcast
    if placement.op != "sum":
        raise LayoutError(f"OneFlow has only partial_sum, but the layout holds {placement}")
    return partial_sum


add_words(__name__)
