"""OneFlow's ``sbp``: split, broadcast and partial_sum, as objects, as callables and as text.

Semantics: ``oneflow/api/python/symbol/sbp_symbol.cpp``. An sbp tuple has one entry per mesh axis, the major axis
first.

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
from spmdsim.wrong_calls import explained

#: Split axes are less than this number.
MAX_SPLIT_AXIS = 6
#: Call that converts a local tensor to a global one, for messages.
TO_GLOBAL = "x.to_global(placement, sbp)"


class OneFlowError(LayoutError, RuntimeError):
    """Error of an argument that OneFlow refuses.

    OneFlow raises RuntimeError, so this is one too.
    """


@dataclass(frozen=True)
class Sbp:
    """Entry of an sbp tuple: ``split`` of a dim, ``broadcast`` or ``partial_sum``.

    A call returns the entry itself, as in OneFlow.
    """

    kind: str
    axis: int | None = None

    def __call__(self) -> Sbp:
        """Return the entry itself."""
        return self

    def __str__(self) -> str:
        return {"broadcast": "B", "partial_sum": "P"}.get(self.kind, f"S({self.axis})")

    def __repr__(self) -> str:
        return f"oneflow.sbp.{self.kind}" + ("" if self.axis is None else f"(dim={self.axis})")

    def __lt__(self, other: Sbp) -> bool:
        """Compare in OneFlow's order of signatures: B < P < S(0) < S(1) < ..., the order of the alphabet."""
        return (self.kind, self.axis or 0) < (other.kind, other.axis or 0)

    @property
    def dual(self) -> Sbp:
        """Entry of the gradient when a tensor becomes local: S stays, B and P swap."""
        return {"broadcast": partial_sum, "partial_sum": broadcast}.get(self.kind, self)

    @property
    def placement(self) -> Placement:
        """Entry as a placement of this package."""
        if self.axis is not None:
            return Shard(self.axis)
        return Replicate() if self.kind == "broadcast" else Partial("sum")


broadcast = Sbp("broadcast")
partial_sum = Sbp("partial_sum")


def split(axis: int | None = None, *, dim: int | None = None) -> Sbp:
    """Return the sbp entry ``S(axis)`` for a mesh axis that splits a tensor dim.

    Args:
        axis: the dim, 0 to 5.
        dim: another name of ``axis``, used if that is None.

    Raises:
        UsageTypeError: If the dim is no integer, or both are None.
        OneFlowError: (a RuntimeError) If the dim is negative or over 5.
    """
    position = dim if axis is None else axis
    if not isinstance(position, int) or isinstance(position, bool):
        raise UsageTypeError(f"sbp.split: the axis must be a tensor dim, an integer, got {position!r}")
    refuse({
        f"Split axis must not be negative, but got {position}!": position < 0,
        f"Expected split axis to be less than the supported maximum axis ({MAX_SPLIT_AXIS}), but got {position}!":
            position >= MAX_SPLIT_AXIS,
    }, OneFlowError)  # fmt: skip
    return Sbp("split", position)


_WORDS = {"B": broadcast, "broadcast": broadcast, "P": partial_sum, "partial_sum": partial_sum}
_SPLIT = re.compile(r"(?:S|split)\s*(?:\(\s*(?:(?:axis|dim)\s*=\s*)?(-?\d+)\s*\)|(\d+))$")
_PREFIX = re.compile(r"^(?:oneflow|flow)?\.?(?:sbp\.)?")


@explained
def parse_one(text: str) -> Sbp:
    """Parse one entry: ``B``, ``P``, ``S(0)``, ``S0``, ``split(0)``, ``broadcast`` or ``partial_sum``.

    A prefix such as ``flow.sbp.`` is accepted, and so are empty brackets behind a word.

    Raises:
        LayoutError: If the text is no entry; as OneFlowError if its dim is negative or over 5.

    >>> parse_one("flow.sbp.split(dim=1)"), parse_one("P")
    (oneflow.sbp.split(dim=1), oneflow.sbp.partial_sum)
    """
    word = _PREFIX.sub("", text.strip())
    if word.removesuffix("()") in _WORDS:
        return _WORDS[word.removesuffix("()")]
    match = _SPLIT.match(word)
    if match is None:
        raise LayoutError(f"{text.strip()!r} is not an sbp; write B, P or S(dim)")
    return split(int(match[1] or match[2]))


@explained
def parse(text: str) -> tuple[Sbp, ...]:
    """Parse an sbp tuple: ``"B"``, ``"(B, S(0))"``, ``"B,S0"``, ``"[S(0), P]"`` or ``"S(0)BP"``.

    Return one entry per mesh axis; see `parse_one` for the form of an entry.

    Raises:
        LayoutError: If the text is no sbp, or empty.

    >>> parse("S(0)BP")
    (oneflow.sbp.split(dim=0), oneflow.sbp.broadcast, oneflow.sbp.partial_sum)
    """
    inner = text.strip()
    if inner[:1] in "([" and inner[-1:] in ")]" and not _SPLIT.match(inner):
        inner = inner[1:-1]
    # Split at commas outside of brackets.
    parts = [entry for entry in re.split(r",(?![^(]*\))", inner) if entry.strip()]
    # Without commas, such as "S(0)BP", each letter begins an entry.
    if len(parts) == 1 and re.fullmatch(r"(?:[BP]|S(?:\(\d+\)|\d))+", parts[0].strip()):
        parts = re.findall(r"[BP]|S(?:\(\d+\)|\d)", parts[0])
    if not parts:
        raise LayoutError(f"no sbp in {text!r}; write one per mesh axis, such as (B, S(0))")
    return tuple(parse_one(entry) for entry in parts)


@explained
def text(value: Sbp | Iterable[Sbp]) -> str:
    """Return ``B`` for one entry, ``(B, S(0))`` for several."""
    entries = (value,) if isinstance(value, Sbp) else tuple(value)
    return str(entries[0]) if len(entries) == 1 else f"({', '.join(map(str, entries))})"


@explained
def as_tuple(value: Sbp | str | Sequence[Sbp | str], ndim: int | None = None) -> tuple[Sbp, ...]:
    """Return an sbp (split, broadcast or partial_sum) as a tuple with one entry per mesh axis.

    For example, ``"S0"`` becomes ``(split(0),)``, and ``["S0", sbp.broadcast]`` becomes ``(split(0), broadcast)``.

    Args:
        value: an entry, a list or tuple of entries or of their texts, or one text of all entries, such as
            ``"(S0, B)"``; see `parse`.
        ndim: number of mesh axes; None to accept any number of entries.

    Raises:
        LayoutError: If a text is no sbp.
        UsageTypeError: If an entry is no sbp.
        OneFlowError: (a RuntimeError) If there are not ``ndim`` entries.
    """
    entries: Any = parse(value) if isinstance(value, str) else value
    entries = entries if isinstance(entries, list | tuple) else (entries,)
    sbps = tuple(parse_one(e) if isinstance(e, str) else e for e in entries)
    for entry in sbps:
        if not isinstance(entry, Sbp):
            raise UsageTypeError(
                f"sbp must be sbp.split(dim), sbp.broadcast or sbp.partial_sum, one per mesh axis, got {entry!r}"
            )
    if ndim is not None and len(sbps) != ndim:
        raise OneFlowError(
            f"the placement has {many(ndim, 'mesh axis', 'mesh axes')}, so sbp needs "
            f"{many(ndim, 'entry', 'entries')}, but got {len(sbps)}: {text(sbps)}"
        )
    return sbps


@explained
def from_placement(placement: Placement) -> Sbp:
    """Return the entry for a placement of this package.

    Args:
        placement: a Shard, Replicate or Partial; the dim of a Shard is 0 to 5.

    Raises:
        LayoutError: If the reduction is no sum: OneFlow has only partial_sum.
    """
    if isinstance(placement, Shard):
        return split(placement.dim)
    if isinstance(placement, Replicate):
        return broadcast
    if placement.op != "sum":
        raise LayoutError(
            f"OneFlow's only pending reduction is partial_sum, got {placement}; reduce the layout first"
        )
    return partial_sum


add_words(__name__)
