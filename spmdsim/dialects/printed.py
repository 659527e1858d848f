"""What dialects print of tensors: which values a process knows without asking others, and numbers in nested brackets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from spmdsim.tensor import Tensor
from spmdsim.trace.recorder import unseen


def known_values(x: Tensor) -> tuple[np.ndarray, str]:
    """The values of a tensor that this process has, and which they are, if they are not all.

    Nothing is communicated, so that one rank alone may print.
    """
    whole = not x.layout.partial and set(x.layout.parts) <= {1} and x.world.ranks[0] in x.layout.mesh
    if whole:
        return np.asarray(x.shards[0]), ""
    if len(x.world.ranks) == x.world.size:
        with unseen():
            return np.asarray(x.detach().full()), ""
    rank = x.world.ranks[0]
    pending = f", pending {x.layout.reduce_op}" if x.layout.partial else ""
    cuts = x.layout.bounds(x.shape, rank) if rank in x.layout.mesh else [(0, 0)] * x.ndim
    box = ", ".join(f"{start}:{stop}" for start, stop in cuts)
    return np.asarray(x.shards[0]), f"rank {rank} has [{box}]{pending}"


def tree(
    kind: str, extra: str, children: Iterable[tuple[str, Any]], opening: str = "(", closing: str = ")"
) -> str:
    """A network as its frameworks show it: its class and options, and in further lines what is inside, by name."""
    lines = [f"({name}): {child!r}" for name, child in children]
    if not lines:
        return f"{kind}{opening}{extra}{closing.strip()}"
    inside = "".join(f"\n{line}" for line in [extra] * bool(extra) + lines).replace("\n", "\n  ")
    return f"{kind}{opening}{inside}\n{closing}"


def options_of(module: Any, *hidden: str) -> str:
    """The options that a module of a table was made with."""
    written = getattr(type(module), "__signature__", None)
    names = [name for name in written.parameters if name not in hidden] if written else []
    return ", ".join(f"{name}={getattr(module, name)}" for name in names)


def ends(array: np.ndarray, edgeitems: int, threshold: float) -> tuple[np.ndarray, list[bool]]:
    """Of a large array the elements at the ends of its dims, and which dims were cut."""
    cut = [array.size > threshold and size > 2 * edgeitems for size in array.shape]
    for dim in [dim for dim, short in enumerate(cut) if short]:
        array = np.take(array, np.r_[:edgeitems, -edgeitems:0], axis=dim)
    return array, cut


def nested(
    array: np.ndarray,
    cut: Sequence[bool],
    indent: int,
    written: Callable[[Any], str],
    per_line: Callable[[int], int],
    edgeitems: int,
    dots: str = "...",
) -> str:
    """Numbers in brackets.

    Args:
        array: the numbers that are shown.
        cut: per dim whether its middle was left out.
        indent: characters before the first bracket.
        written: a number's text.
        per_line: how many numbers fit behind so many characters.
        edgeitems: how many stand before the dots.
        dots: what stands for the rest of a line.
    """
    if not array.ndim:
        return written(array[()])
    if array.ndim == 1:
        items, size, joined = [written(value) for value in array], max(1, per_line(indent)), ", "
    else:
        items = [nested(part, cut[1:], indent + 1, written, per_line, edgeitems, dots) for part in array]
        size, joined = 1, ""
    if cut[0]:
        items.insert(edgeitems, "..." if array.ndim > 1 else dots)
    lines = [joined.join(items[k : k + size]) for k in range(0, len(items), size)]
    apart = "," + "\n" * max(1, array.ndim - 1) + " " * (indent + 1)
    return f"[{apart.join(lines)}]"
