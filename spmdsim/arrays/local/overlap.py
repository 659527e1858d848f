"""``map_overlap``: a function of blocks and of what borders on them, as dask has it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from functools import lru_cache
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import DTypeLike

from spmdsim.arrays import Context, Tensor
from spmdsim.arrays.local.turns import failures_of
from spmdsim.arrays.operands import Operand, operands
from spmdsim.arrays.ops.shape import same_dims
from spmdsim.arrays.ops.windowed import Margins, WindowBound, WindowOp, Windows, margins, surrounded
from spmdsim.arrays.values import read_only
from spmdsim.core import Rule
from spmdsim.errors import RuleError, UsageTypeError, many
from spmdsim.layout.element_type import promote_types
from spmdsim.layout.windowed_layout import Window
from spmdsim.wrong_calls import explained

__all__ = ["map_overlap"]

Shape = tuple[int, ...]
Sides = tuple[tuple[int, int], ...]
#: Per dim how numpy.pad calls what stands beyond the ends, and a number.
Modes = tuple[tuple[str | None, float], ...]

#: What stands beyond the ends, and how numpy.pad calls it; None: nothing does.
MODES = {
    "none": None,
    "zero": "constant",
    "constant": "constant",
    "periodic": "wrap",
    "wrap": "wrap",
    "reflect": "reflect",
    "symmetric": "symmetric",
    "nearest": "edge",
    "edge": "edge",
}

#: Modes that fill by mirrored elements.
MIRRORS = ("reflect", "symmetric")

Depth = int | Sequence[int | tuple[int, int]] | Mapping[int, int | tuple[int, int]]


@explained
def map_overlap(
    function: Callable[..., Any],
    *tensors: Operand,
    depth: Depth = 1,
    boundary: str | float | Sequence[str | float] | Mapping[int, str | float] = "none",
    vjp: Callable[..., Any] | None = None,
    constant: float = 0.0,
    dtype: DTypeLike | None = None,
) -> Tensor:
    """Apply a function to each rank's block, enlarged by ``depth`` elements of its neighbours.

    Neighbours' elements are exchanged and nothing else, dim by dim, so that corners come along; pieces may be thinner
    than the depth, and uneven. The result has the operands' shape and layout.

    Args:
        function: one array per operand in, all of one shape; out comes an array of that shape, of which the added
            elements are cut off, or of the block's. It may not change what it is given.
        *tensors: tensors of one shape, which are split alike.
        depth: elements on each side; per dim, or by dim, where they differ; a pair where the sides do.
        boundary: what stands beyond the ends of the tensor, for all dims, per dim, or by dim: ``"none"`` nothing, the
            blocks at the ends are smaller; ``"zero"``, or a number; ``"constant"``, the one that ``constant`` says;
            ``"periodic"`` the other end; ``"reflect"`` as numpy.pad has it, without the last element, and ``"symmetric"``
            with it (dask's ``reflect``); ``"nearest"`` the last element. numpy's ``"wrap"`` and ``"edge"`` are those, too.
        vjp: ``vjp(dy, blocks, result)`` gives the gradient of each block, what was added included; ``dy`` and
            ``result`` are of the block's own shape. Those of added elements go back to the ranks that they came from.
        constant: what ``"constant"`` adds.
        dtype: element type of the result; the one in which the operands meet if left out.

    Raises:
        RuleError: operands of several shapes, a depth or a boundary that is not there, a result of another shape.

    >>> from spmdsim import Mesh, Tensor
    >>> from spmdsim.local import map_overlap
    >>> u = Tensor.from_global([0.0, 1.0, 2.0, 3.0], Mesh((2,), ("x",))("x"))
    >>> map_overlap(lambda a: a[:-2] + a[2:], u, depth=1, boundary="periodic").full()
    array([4., 2., 4., 2.])
    """
    if not callable(function):
        raise UsageTypeError(f"map_overlap takes a function of arrays, but got {function!r}")
    name = str(getattr(function, "__name__", "map_overlap"))
    placed = operands(name, tensors)
    shape = placed[0].shape
    for tensor in placed:
        if tensor.shape != shape:
            raise RuleError(
                f"map_overlap takes tensors of one shape, but got {' and '.join(str(t.shape) for t in placed)}"
            )
    plain = {type(depth), type(boundary), type(constant)} <= {int, float, str}
    sides, modes = (_settings if plain else _settings.__wrapped__)(shape, depth, boundary, constant)
    op = _overlapping(name, function, vjp)
    kind = None if dtype is None else np.dtype(dtype)
    result: Tensor = op(*placed, sides=sides, modes=modes, kind=kind)
    return result


@lru_cache(maxsize=1024, typed=True)
def _settings(shape: Shape, depth: Any, boundary: Any, constant: float) -> tuple[Sides, Modes]:
    """Return per dim the added elements before and after, and the mode; cached for single values."""
    sides = tuple(_sides(one) for one in _per_dim("depth", depth, len(shape), 0))
    modes = tuple(_mode(one, constant) for one in _per_dim("boundary", boundary, len(shape), "none"))
    for d, (n, (a, b), (mode, _)) in enumerate(zip(shape, sides, modes)):
        if mode in MIRRORS and n and max(a, b) > n - (mode == "reflect"):
            raise RuleError(f"dim {d} of size {n} cannot be continued by {mode} for a depth of {max(a, b)}")
    return sides, modes


def _per_dim(what: str, setting: Any, ndim: int, otherwise: Any) -> list[Any]:
    """Return one value per dim; ``otherwise`` for dims that a mapping does not name."""
    if isinstance(setting, Mapping):
        for d in setting:
            if not isinstance(d, (int, np.integer)) or not -ndim <= d < ndim:
                raise RuleError(
                    f"{what} names dim {d!r}, which a tensor of {many(ndim, 'dim')} does not have"
                )
        by_dim = {int(d) % ndim: one for d, one in setting.items()}
        return [by_dim.get(d, otherwise) for d in range(ndim)]
    if isinstance(setting, (tuple, list)):
        if len(setting) != ndim:
            raise RuleError(
                f"{what} has {many(len(setting), 'entry', 'entries')} for a tensor of {many(ndim, 'dim')}: {setting!r}"
            )
        return list(setting)
    return [setting] * ndim


def _sides(depth: Any) -> tuple[int, int]:
    pair = tuple(depth) if isinstance(depth, (tuple, list)) else (depth, depth)
    if len(pair) != 2 or any(
        isinstance(n, bool) or not isinstance(n, (int, np.integer)) or n < 0 for n in pair
    ):
        raise RuleError(f"a depth is a count >= 0, or a pair of them, but got {depth!r}")
    return int(pair[0]), int(pair[1])


def _mode(boundary: Any, constant: float) -> tuple[str | None, float]:
    """Return numpy.pad's mode for a boundary (None for ``"none"``), and the number to fill in."""
    if isinstance(boundary, (int, float, np.number)) and not isinstance(boundary, bool):
        return "constant", float(boundary)
    if boundary not in MODES:
        near = get_close_matches(str(boundary), MODES, 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise RuleError(f"a boundary is a number, or one of {', '.join(MODES)}, but got {boundary!r}{hint}")
    return MODES[boundary], float(constant) if boundary == "constant" else 0.0


def _windows(*shapes: Shape, sides: Sides, modes: Modes, kind: Any) -> Windows:
    numbers = all(mode == "constant" for pair, (mode, _) in zip(sides, modes) if any(pair))
    each = [
        Window(n, -a, 1 + a + b, wrap=mode == "wrap", padded=numbers, mirror=mode if mode in MIRRORS else "")
        if a or b
        else None
        for n, (a, b), (mode, _) in zip(shapes[0], sides, modes)
    ]
    return dict.fromkeys(range(len(shapes)), each)


def _dtype(*dtypes: np.dtype, kind: Any, **_: Any) -> np.dtype:
    dtype: np.dtype = promote_types(*dtypes) if kind is None else kind
    return dtype


@lru_cache(maxsize=256)
def _overlapping(name: str, function: Callable[..., Any], vjp: Callable[..., Any] | None) -> WindowOp:
    """Return the operator of a function; cached, so that equal calls find their recipes again."""

    def forward(context: Context, *blocks: np.ndarray, sides: Sides, modes: Modes, kind: Any) -> np.ndarray:
        frame = _frame(context, sides, modes)
        if 0 in frame.own:
            return np.zeros(frame.own, _dtype(*[block.dtype for block in blocks], kind=kind))
        extended = [_extended(block, frame, modes) for block in blocks]
        with failures_of(name, context.rank, extended):
            result = np.asarray(function(*map(read_only, extended)))
        if result.shape == frame.own:
            return result
        return _trimmed(name, context, result, extended[0].shape, frame)

    def gradients(
        context: Context,
        dy: np.ndarray,
        blocks: Sequence[np.ndarray],
        y: Any,
        sides: Sides,
        modes: Modes,
        kind: Any,
    ) -> list[Any]:
        if vjp is None:
            raise RuleError(
                f"{name} has no gradient: what a function of local arrays does is not followed; give "
                "map_overlap(vjp=...), or detach() its operands"
            )
        if not dy.size:
            return [np.zeros_like(block) for block in blocks]
        frame = _frame(context, sides, modes)
        extended = [_extended(block, frame, modes) for block in blocks]
        with failures_of(f"the vjp of {name}", context.rank, extended):
            slopes = vjp(read_only(dy), [*map(read_only, extended)], read_only(y))
        parts = list(slopes) if isinstance(slopes, (tuple, list)) else [slopes]
        if len(parts) != len(blocks) or any(np.shape(p) != extended[0].shape for p in parts):
            raise RuleError(
                f"the vjp of {name} gave {', '.join(str(np.shape(p)) for p in parts)} on rank {context.rank} for "
                f"{len(blocks)} blocks of shape {extended[0].shape}"
            )
        return [_folded(np.asarray(p), frame, margins(context), modes) for p in parts]

    return WindowOp(
        name,
        lambda *shapes, **_: Rule.parse(same_dims(*shapes).text),
        forward,
        gradients,
        dtype=_dtype,
        contextual=True,
        saves_result=vjp is not None,
        windows=_windows,
    )


class Frame(NamedTuple):
    """The surroundings of a rank's block, whose shape is ``own``.

    Per dim: how many elements are ``added`` before and after, how many of them are ``beyond`` the tensor and get a value,
    and that value, if it is a number in all dims. ``mirrored`` elements before and after were read only because elements
    beyond the tensor mirror them; the function does not see them.
    """

    own: Shape
    added: Margins
    beyond: Margins
    mirrored: Margins
    values: tuple[float, ...] | None


@lru_cache(maxsize=4096)
def _frame(context: Context, sides: Sides, modes: Modes) -> Frame:
    """Return the frame of a rank's block."""
    bounds = [context.bounds(factor) for (factor,) in context.bound.outputs[0]]
    reach = margins(context)
    filled = [pair if mode is not None else (0, 0) for pair, (mode, _) in zip(reach, modes)]
    numbers = all(mode == "constant" for pair, (mode, _) in zip(filled, modes) if any(pair))
    added = tuple(
        (a, b) if mode is not None else (a - before, b - after)
        for (a, b), (mode, _), (before, after) in zip(sides, modes, reach)
    )
    own, values = tuple(stop - start for start, stop in bounds), tuple(value for _, value in modes)
    mirrored = _mirrored(context, bounds, sides, reach)
    return Frame(own, added, tuple(filled), mirrored, values if numbers else None)


def _mirrored(context: Context, bounds: Sequence[tuple[int, int]], sides: Sides, reach: Margins) -> Margins:
    """Return per dim how many elements a rank reads before and after its extended block.

    Only dims that are continued by mirrored elements have them: those lie further in than the depth reaches if the depths
    of the two sides differ.
    """
    bound = cast(WindowBound, context.bound)
    windows = dict(bound.windows).get(0) or (None,) * len(sides)
    counts = []
    for (start, stop), (a, b), (before, after), window, n in zip(
        bounds, sides, reach, windows, bound.shapes[0]
    ):
        read = window.reads(start, stop, n) if window is not None and window.mirror else None
        if read:
            counts.append((start - a + before - read.start, read.stop - (stop + b - after)))
        else:
            counts.append((0, 0))
    return tuple(counts)


def _extended(block: np.ndarray, frame: Frame, modes: Modes) -> np.ndarray:
    """Return a block with the elements beyond the ends of the tensor added, dim by dim as numpy.pad does it."""
    if frame.values is not None:
        return surrounded(block, frame.beyond, frame.values)
    for d, (pair, (mode, value)) in enumerate(zip(frame.beyond, modes)):
        if any(pair):
            width = [pair if k == d else (0, 0) for k in range(block.ndim)]
            more: dict[str, Any] = {"constant_values": value} if mode == "constant" else {}
            block = np.pad(block, width, cast(Any, mode), **more)
    if any(map(any, frame.mirrored)):
        return block[tuple([slice(a, n - b) for n, (a, b) in zip(block.shape, frame.mirrored)])]
    return block


def _folded(gradient: np.ndarray, frame: Frame, beyond: Margins, modes: Modes) -> np.ndarray:
    """Add the gradients of elements beyond the ends to those of the elements that they copy; return the sums."""
    if any(map(any, frame.mirrored)):
        gradient = np.pad(gradient, frame.mirrored)
    for d, (pair, (mode, _)) in reversed(list(enumerate(zip(beyond, modes)))):
        if not any(pair) or mode is None:
            continue
        n = gradient.shape[d] - sum(pair)
        if mode == "constant":
            gradient = gradient.take(range(pair[0], pair[0] + n), d)
            continue
        place = np.pad(np.arange(n), pair, cast(Any, mode))
        rest = list(gradient.shape)
        rest[d] = n
        total = np.zeros(rest, gradient.dtype)
        np.add.at(np.moveaxis(total, d, 0), place, np.moveaxis(gradient, d, 0))
        gradient = total
    return gradient


def _trimmed(name: str, context: Context, result: np.ndarray, extended: Shape, frame: Frame) -> np.ndarray:
    if result.shape != extended:
        raise RuleError(
            f"{name} gave an array of shape {result.shape} on rank {context.rank}, where the block has {frame.own} and "
            f"{extended} with what was added: give either"
        )
    return np.ascontiguousarray(result[tuple(slice(a, a + n) for (a, _), n in zip(frame.added, frame.own))])
