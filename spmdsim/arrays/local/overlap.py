"""``map_overlap``: a function of blocks with neighbouring elements, as in dask."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import DTypeLike

from spmdsim.arrays import Context, Tensor
from spmdsim.arrays.local.turns import explain_failures
from spmdsim.arrays.operands import Operand, convert_operands
from spmdsim.arrays.ops.shape import make_same_dims_rule
from spmdsim.arrays.ops.windowed import Margins, WindowBound, WindowOp, Windows, count_margins, pad_block
from spmdsim.arrays.values import view_read_only
from spmdsim.core import Rule
from spmdsim.errors import RuleError, UsageTypeError, many, unknown
from spmdsim.layout.element_type import promote_types
from spmdsim.layout.windowed_layout import Window
from spmdsim.wrong_calls import explained

__all__ = ["map_overlap"]

Shape = tuple[int, ...]
Sides = tuple[tuple[int, int], ...]
#: Per dim the mode of numpy.pad for elements beyond the ends, or None, and the fill value.
Modes = tuple[tuple[str | None, float], ...]

#: The mode of numpy.pad by the name of a boundary; None: no elements beyond the ends.
MODES = {
    "none": None,
    "zero": "constant",
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
    dtype: DTypeLike | None = None,
) -> Tensor:
    """Apply a function to each rank's block, enlarged by ``depth`` elements of its neighbours.

    For example, two ranks with the blocks [0, 1] and [2, 3] and the depth 1 run the function on [0, 1, 2] and
    [1, 2, 3]. Neighbours' elements are exchanged along one dim after the other, so corners are included. Blocks may be
    uneven, and thinner than the depth. All ranks must call it. The function does not run on ranks whose block is
    empty, nor in worlds without data.

    Args:
        function: takes one array per operand, all of equal shape, which it must not change. It returns an array in
            this shape, whose added elements are cut off, or in the shape of the block.
        depth: number of added elements on each side. One number holds for all dims; a sequence has one entry per dim; a
            mapping has the entries of some dims (others: 0). An entry may be a pair: the numbers before and after.
        boundary: the elements beyond the ends of the tensor. One value for all dims, a sequence with one per dim, or a
            mapping with the values of some dims (others: "none"):

            - ``"none"``: no elements; enlarged blocks at the ends are smaller.
            - ``"zero"``, or a number: this number.
            - ``"periodic"`` or ``"wrap"``: the elements of the opposite end.
            - ``"reflect"``: mirrored elements without the outermost one, as in numpy.pad.
            - ``"symmetric"``: mirrored elements with the outermost one (dask's ``reflect``).
            - ``"nearest"`` or ``"edge"``: the outermost element.
        vjp: ``vjp(dy, blocks, result)`` returns the gradient of each enlarged block; ``dy`` and ``result`` have the
            shape of the block. Gradients of added elements go to the ranks that own these elements. None: a backward
            pass is refused.
        dtype: element type of the result; None: the promoted type of the operands.
        *tensors: tensors of equal shape; they are redistributed to a common layout.

    Returns:
        A tensor in the shape and layout of the operands.

    Raises:
        RuleError: If operands differ in shape, a depth or a boundary is unknown, a dim is too small to be mirrored,
            the function fails, or the result has another shape.
        UsageTypeError: If ``function`` cannot be called.

    >>> from spmdsim import Mesh, Tensor
    >>> from spmdsim.local import map_overlap
    >>> u = Tensor.from_global([0.0, 1.0, 2.0, 3.0], Mesh((2,), ("x",))("x"))
    >>> map_overlap(lambda a: a[:-2] + a[2:], u, depth=1, boundary="periodic").full()
    array([4., 2., 4., 2.])
    """
    if not callable(function):
        raise UsageTypeError(f"map_overlap takes a function of arrays, but got {function!r}")
    name = str(getattr(function, "__name__", "map_overlap"))
    operand_tensors = convert_operands(name, tensors)
    shape = operand_tensors[0].shape
    for tensor in operand_tensors:
        if tensor.shape != shape:
            raise RuleError(
                f"map_overlap takes tensors of one shape, but got {' and '.join(str(t.shape) for t in operand_tensors)}"
            )
    are_hashable = {type(depth), type(boundary)} <= {int, float, str}
    sides, modes = (_parse_settings if are_hashable else _parse_settings.__wrapped__)(shape, depth, boundary)
    op = _make_operator(name, function, vjp)
    kind = None if dtype is None else np.dtype(dtype)
    result: Tensor = op(*operand_tensors, sides=sides, modes=modes, kind=kind)
    return result


@lru_cache(maxsize=1024, typed=True)
def _parse_settings(shape: Shape, depth: Any, boundary: Any) -> tuple[Sides, Modes]:
    """Return the numbers of added elements per dim, and the modes of the boundaries per dim.

    Args:
        shape: the global shape.
        depth: as in :func:`map_overlap`.
        boundary: as in :func:`map_overlap`.

    Returns:
        ``(elements before, elements after)`` of each dim; ``(mode, fill value)`` of each dim, see `_parse_boundary`.

    Raises:
        RuleError: If a setting is unknown, or a dim is too small for a mode of :data:`MIRRORS`: such a dim has at least
            as many elements as its depth, and for "reflect" one more. Dims without elements are not checked.
    """
    sides = tuple(_parse_depth(entry) for entry in _spread_over_dims("depth", depth, len(shape), 0))
    modes = tuple(
        _parse_boundary(entry) for entry in _spread_over_dims("boundary", boundary, len(shape), "none")
    )
    for d, (size, depths, (mode, _)) in enumerate(zip(shape, sides, modes)):
        mirrorable_count = size - 1 if mode == "reflect" else size
        if mode in MIRRORS and size and max(depths) > mirrorable_count:
            raise RuleError(
                f"dim {d} of size {size} cannot be continued by {mode} for a depth of {max(depths)}"
            )
    return sides, modes


def _spread_over_dims(what: str, setting: Any, ndim: int, otherwise: Any) -> list[Any]:
    """Return a list with the value of each dim, from a setting in one of three forms.

    Args:
        what: the parameter, for error messages.
        setting: one value for all dims; a list or tuple with one value per dim; or a mapping from dim to value, in
            which negative dims count from the end.
        ndim: the number of dims.
        otherwise: the value of dims that a mapping does not name.

    Raises:
        RuleError: If a mapping names another dim, or a sequence has another length.

    >>> _spread_over_dims("depth", {-1: 2}, 3, 0), _spread_over_dims("depth", 1, 2, 0)
    ([0, 0, 2], [1, 1])
    """
    if isinstance(setting, Mapping):
        for d in setting:
            if not isinstance(d, (int, np.integer)) or not -ndim <= d < ndim:
                raise RuleError(
                    f"{what} names dim {d!r}, which a tensor of {many(ndim, 'dim')} does not have"
                )
        by_dim = {int(d) % ndim: entry for d, entry in setting.items()}
        return [by_dim.get(d, otherwise) for d in range(ndim)]
    if isinstance(setting, (tuple, list)):
        if len(setting) != ndim:
            raise RuleError(
                f"{what} has {many(len(setting), 'entry', 'entries')} for a tensor of {many(ndim, 'dim')}: {setting!r}"
            )
        return list(setting)
    return [setting] * ndim


def _parse_depth(depth: Any) -> tuple[int, int]:
    """Return how many elements a block gets in front and behind along a dim: ``(before, after)``.

    Args:
        depth: a number for both sides, or the pair itself.

    Raises:
        RuleError: If a depth is no integer >= 0, or there are not two of them.

    >>> _parse_depth(1), _parse_depth((0, 2))
    ((1, 1), (0, 2))
    """
    pair = tuple(depth) if isinstance(depth, (tuple, list)) else (depth, depth)
    if len(pair) != 2 or any(
        isinstance(n, bool) or not isinstance(n, (int, np.integer)) or n < 0 for n in pair
    ):
        raise RuleError(f"map_overlap: depth must be an integer from 0 on, or a pair of them, got {depth!r}")
    return int(pair[0]), int(pair[1])


def _parse_boundary(boundary: Any) -> tuple[str | None, float]:
    """Return numpy.pad's mode for a boundary, and the number to fill in.

    - A number gives "constant" and this number.
    - ``"none"`` gives None and 0.
    - Other names give their mode in :data:`MODES` and 0.

    Args:
        boundary: a number or a key of :data:`MODES`.

    Raises:
        RuleError: If the boundary is unknown.
    """
    if isinstance(boundary, (int, float, np.number)) and not isinstance(boundary, bool):
        return "constant", float(boundary)
    if boundary not in MODES:
        problem = f"map_overlap: boundary must be a number or a known name, got {boundary!r}"
        raise unknown(problem, boundary, MODES, RuleError, "known are")
    return MODES[boundary], 0.0


def _list_windows(*shapes: Shape, sides: Sides, modes: Modes, **_: Any) -> Windows:
    """Return the windows of an operator call: ``{number of the operand: [window of each dim]}``.

    A window is the range of elements that a block reads along a dim: its own and the added ones. It is None for a dim
    without added elements. All operands have equal windows. Windows are marked as padded if every dim with added
    elements is filled with a number beyond the ends.

    Args:
        *shapes: the global shapes of the operands, which are equal.
        sides: the numbers of added elements per dim; see `_parse_settings`.
        modes: the modes of the boundaries per dim; see `_parse_settings`.
        **_: the operator's other parameters; not used.
    """
    is_padded = all(mode == "constant" for pair, (mode, _) in zip(sides, modes) if any(pair))
    windows: list[Window | None] = []
    for size, (before, after), (mode, _fill) in zip(shapes[0], sides, modes):
        window = None
        if before or after:
            mirror = mode if mode in MIRRORS else ""
            width = before + 1 + after
            window = Window(size, -before, width, wrap=mode == "wrap", padded=is_padded, mirror=mirror)
        windows.append(window)
    return dict.fromkeys(range(len(shapes)), windows)


def _find_result_type(*dtypes: np.dtype, kind: Any, **_: Any) -> np.dtype:
    """Return the result type: ``kind``, or the promoted type of the operands for None."""
    dtype: np.dtype = promote_types(*dtypes) if kind is None else kind
    return dtype


@lru_cache(maxsize=256)
def _make_operator(name: str, function: Callable[..., Any], vjp: Callable[..., Any] | None) -> WindowOp:
    """Return an operator that runs a function on each rank's enlarged block.

    The last 256 operators are cached: calls with equal arguments return one object, so the facts that were derived for
    it are derived once. Running the operator raises the errors of :func:`map_overlap`.

    Args:
        name: the name in traces and errors.
        function: the user's function of enlarged blocks.
        vjp: the user's gradient function, or None: a backward pass then raises RuleError.
    """

    def forward(context: Context, *blocks: np.ndarray, sides: Sides, modes: Modes, kind: Any) -> np.ndarray:
        """Run the function on a rank's enlarged blocks; cut added elements off the result.

        Return zeros without running it if the block is empty.

        Args:
            context: the operator call as this rank sees it: strategy, rank, sizes.
            *blocks: the rank's blocks of the operands, with their neighbours' elements.
            sides: added elements before and after, per dim.
            modes: the mode of numpy.pad and the fill value, per dim.
            kind: the element type that the user wants for the result; used for empty blocks only. None: the promoted
                type.

        Raises:
            RuleError: If the function fails, or its result has another shape.
        """
        frame = _find_frame(context, sides, modes)
        if 0 in frame.block_shape:
            return np.zeros(
                frame.block_shape, _find_result_type(*[block.dtype for block in blocks], kind=kind)
            )
        extended = [_extend_block(block, frame, modes) for block in blocks]
        with explain_failures(name, context.rank, extended):
            result = np.asarray(function(*map(view_read_only, extended)))
        if result.shape == frame.block_shape:
            return result
        return _trim_result(name, context, result, extended[0].shape, frame)

    def gradients(
        context: Context,
        dy: np.ndarray,
        blocks: Sequence[np.ndarray],
        y: Any,
        sides: Sides,
        modes: Modes,
        **_: Any,
    ) -> list[Any]:
        """Return the gradient of each block from the user's vjp, folded to elements of the tensor.

        The gradients are zeros without running the vjp if the rank's block is empty.

        Args:
            context: the operator call as this rank sees it: strategy, rank, sizes.
            dy: the gradient of the result.
            blocks: the rank's blocks of the operands, with their neighbours' elements.
            y: the result.
            sides: added elements before and after, per dim.
            modes: the mode of numpy.pad and the fill value, per dim.
            **_: the operator's other parameters; not used.

        Raises:
            RuleError: If there is no vjp, it fails, or it returns another number of gradients or other shapes.
        """
        if vjp is None:
            raise RuleError(
                f"{name} has no gradient: what a function of local arrays does is not followed; give "
                "map_overlap(vjp=...), or detach() its operands"
            )
        if not dy.size:
            return [np.zeros_like(block) for block in blocks]
        frame = _find_frame(context, sides, modes)
        extended = [_extend_block(block, frame, modes) for block in blocks]
        with explain_failures(f"the vjp of {name}", context.rank, extended):
            slopes = vjp(view_read_only(dy), [*map(view_read_only, extended)], view_read_only(y))
        block_gradients = list(slopes) if isinstance(slopes, (tuple, list)) else [slopes]
        shapes = [np.shape(gradient) for gradient in block_gradients]
        if shapes != [extended[0].shape] * len(blocks):
            raise RuleError(
                f"the vjp of {name} gave {', '.join(map(str, shapes))} on rank {context.rank} for "
                f"{len(blocks)} blocks of shape {extended[0].shape}"
            )
        margins = count_margins(context)
        return [_fold_gradient(np.asarray(gradient), frame, margins, modes) for gradient in block_gradients]

    return WindowOp(
        name,
        lambda *shapes, **_: Rule.parse(make_same_dims_rule(*shapes).text),
        forward,
        gradients,
        dtype=_find_result_type,
        contextual=True,
        saves_result=vjp is not None,
        windows=_list_windows,
    )


class Frame(NamedTuple):
    """The surroundings of a rank's block.

    Attributes:
        block_shape: the shape of the block.
        added: numbers of elements before and after the block that the function sees, per dim.
        beyond: how many of the added elements are beyond the ends of the tensor, and are filled.
        mirrored: elements before and after that were read only because elements outside of the tensor mirror them;
            the function does not see them.
        values: the fill value per dim, or None if not all dims are filled with numbers.
    """

    block_shape: Shape
    added: Margins
    beyond: Margins
    mirrored: Margins
    values: tuple[float, ...] | None


@lru_cache(maxsize=4096)
def _find_frame(context: Context, sides: Sides, modes: Modes) -> Frame:
    """Return the :class:`Frame` of a rank's block, which says what surrounds the block.

    It has the block's shape, the numbers of elements that are added before and after the block, how many of these are
    filled because they lie beyond the ends of the tensor, and how many are mirrored (`_count_mirrored`). The fill
    values are None unless all filled dims are filled with constants. Frames are cached.

    If a dim's mode is None, no elements are added beyond the ends of the tensor. A block of 4 elements at the start
    of the tensor with sides (2, 2), for example, then gets only the 2 elements behind it.

    Args:
        context: the operator call as this rank sees it: strategy, rank, sizes.
        sides: the numbers of elements to add before and after, per dim.
        modes: the mode of numpy.pad and the fill value, per dim.
    """
    bounds = [context.bounds(factor) for (factor,) in context.bound.outputs[0]]
    beyond_ends = count_margins(context)
    filled = [pair if mode is not None else (0, 0) for pair, (mode, _) in zip(beyond_ends, modes)]
    is_constant = all(mode == "constant" for pair, (mode, _) in zip(filled, modes) if any(pair))
    # Without a mode, the elements beyond the ends are not added.
    added = tuple(
        (before, after) if mode is not None else (before - beyond_before, after - beyond_after)
        for (before, after), (mode, _), (beyond_before, beyond_after) in zip(sides, modes, beyond_ends)
    )
    block_shape, values = tuple(stop - start for start, stop in bounds), tuple(value for _, value in modes)
    mirrored = _count_mirrored(context, bounds, sides, beyond_ends)
    return Frame(block_shape, added, tuple(filled), mirrored, values if is_constant else None)


def _count_mirrored(
    context: Context, bounds: Sequence[tuple[int, int]], sides: Sides, beyond_ends: Margins
) -> Margins:
    """Return, per dim, how many more elements a rank reads for mirroring: ``(before, after)``.

    The extended block is the rank's block with the added elements that are inside of the tensor. Beyond an end of the
    tensor, mirrored elements are added, whose originals may lie outside of the extended block. This can only happen if
    the depths before and after differ. With depths (1, 3) and a last block of one element, for example, the originals
    of the last mirrored elements are further in front than 1 element. Dims that are not mirrored have (0, 0).

    Args:
        context: the operator call as this rank sees it.
        bounds: start and stop of the rank's block per dim.
        sides: added elements before and after, per dim.
        beyond_ends: how many of the added elements are beyond the ends of the tensor, before and after, per dim.
    """
    bound = cast(WindowBound, context.bound)
    windows = dict(bound.windows).get(0) or (None,) * len(sides)
    counts = []
    dims = zip(bounds, sides, beyond_ends, windows, bound.shapes[0])
    for (start, stop), (before, after), (beyond_before, beyond_after), window, size in dims:
        read = window.reads(start, stop, size) if window is not None and window.mirror else None
        if read:
            extended_start, extended_stop = start - before + beyond_before, stop + after - beyond_after
            counts.append((extended_start - read.start, read.stop - extended_stop))
        else:
            counts.append((0, 0))
    return tuple(counts)


def _extend_block(block: np.ndarray, frame: Frame, modes: Modes) -> np.ndarray:
    """Return a block with the elements beyond the ends of the tensor, as numpy.pad adds them.

    If all extended dims are filled with numbers, the block is padded with ``frame.values``; ``modes`` are not used.
    Otherwise, dims are extended one after the other, so corners are copies of elements that were added before. Elements
    that were read only to be mirrored are then cut off.

    The block's elements are not changed. The result is the block itself if nothing is added or cut off, and may share
    its memory.

    Args:
        block: the rank's block with its neighbours' elements.
        frame: the surroundings of the block.
        modes: the mode of numpy.pad and the fill value, per dim.
    """
    if frame.values is not None:
        return pad_block(block, frame.beyond, frame.values)
    for d, (before_after, (mode, fill)) in enumerate(zip(frame.beyond, modes)):
        if any(before_after):
            width = [before_after if k == d else (0, 0) for k in range(block.ndim)]
            options: dict[str, Any] = {"constant_values": fill} if mode == "constant" else {}
            block = np.pad(block, width, cast(Any, mode), **options)
    if any(map(any, frame.mirrored)):
        remaining = [
            slice(before, size - after) for size, (before, after) in zip(block.shape, frame.mirrored)
        ]
        return block[tuple(remaining)]
    return block


def _fold_gradient(gradient: np.ndarray, frame: Frame, beyond: Margins, modes: Modes) -> np.ndarray:
    """Return the gradient of a block without the elements beyond the ends of the tensor.

    An element beyond an end is a copy of an element inside of the tensor, or a fill value. The gradient of a copy is
    added to the gradient of its original; the gradient of a fill value is dropped. For example, gradients [1, 2, 4]
    whose first element is a copy of the second one give [3, 4]. Dims are handled in the reverse order of
    `_extend_block`. The elements of ``frame.mirrored``, which `_extend_block` cuts off, are first inserted with
    gradient 0. If there is nothing to insert or to remove, ``gradient`` itself is returned, not a copy.

    Args:
        gradient: the gradient of the enlarged block; not changed.
        frame: the surroundings of the block.
        beyond: the elements outside of the tensor, before and after, per dim.
        modes: the mode of numpy.pad and the fill value, per dim.

    Returns:
        The gradient of the rank's block with its neighbours' elements.
    """
    if any(map(any, frame.mirrored)):
        gradient = np.pad(gradient, frame.mirrored)
    for d, (pair, (mode, _)) in reversed(list(enumerate(zip(beyond, modes)))):
        if not any(pair) or mode is None:
            continue
        n = gradient.shape[d] - sum(pair)
        if mode == "constant":
            gradient = gradient.take(range(pair[0], pair[0] + n), d)
            continue
        # The number of the element that each element of the enlarged dim copies.
        sources = np.pad(np.arange(n), pair, cast(Any, mode))
        shape = list(gradient.shape)
        shape[d] = n
        total = np.zeros(shape, gradient.dtype)
        np.add.at(np.moveaxis(total, d, 0), sources, np.moveaxis(gradient, d, 0))
        gradient = total
    return gradient


def _trim_result(
    name: str, context: Context, result: np.ndarray, extended: Shape, frame: Frame
) -> np.ndarray:
    """Return the function's result without the elements that were added to the block."""
    if result.shape != extended:
        raise RuleError(
            f"{name} gave an array of shape {result.shape} on rank {context.rank}, where the block has {frame.block_shape} and "
            f"{extended} with what was added: give either"
        )
    inside = [slice(before, before + size) for (before, _), size in zip(frame.added, frame.block_shape)]
    return np.ascontiguousarray(result[tuple(inside)])
