"""Functions that create tensors; each rank computes its own block and nothing else.

``layout`` says which block; without it every rank owns the whole tensor. ``world`` is :func:`spmdsim.world` by
default. ``device`` exists for the array API standard: all arrays are in main memory, ``"cpu"``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from spmdsim.arrays.program_tensor import Tensor
from spmdsim.core import Layout, Mesh
from spmdsim.core.notation.layouts import as_integers
from spmdsim.errors import InputError, RuleError, UsageTypeError
from spmdsim.layout.element_type import number_type
from spmdsim.worlds.convert_operands import Described
from spmdsim.worlds.current import world as current
from spmdsim.wrong_calls import explained

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

    from spmdsim.worlds.base import World

Index = tuple[slice, ...]
DEVICE = "cpu"


def check_device(device: str | None) -> None:
    """Raise InputError if ``device`` is neither None nor ``"cpu"``."""
    if device not in (None, DEVICE):
        raise InputError(
            f"the only device is {DEVICE!r}, but got {device!r}; layout= determines which rank owns which shard"
        )


def _create(
    block: Callable[[Index], Any],
    words: str,
    shape: Sequence[int],
    dtype: np.dtype,
    layout: Layout | None,
    world: World | None,
    device: str | None,
) -> Tensor:
    """Create a tensor of which each rank computes its own block.

    Args:
        block: returns the elements at an index of slices.
        words: describes the elements; ranks compare it to verify that they create equal tensors.
        shape: the global shape.
        dtype: the element type.
        layout: the layout.
        world: the world whose ranks own the shards.
        device: None or "cpu".
    """
    check_device(device)
    layout, world = choose_layout_and_world(layout, world, len(shape))
    return Tensor.from_global(Described(block, words), layout, world, shape=tuple(shape), dtype=dtype)


def choose_layout_and_world(
    layout: Layout | None, world: World | None, ndim: int
) -> tuple[Layout, World | None]:
    """Return a layout and a world for a new tensor.

    A returned world is None only if ``layout`` was passed without a world; :meth:`Tensor.from_global` then takes the
    current one.

    Args:
        layout: the layout, returned unchanged; None: every rank of the world owns the whole tensor.
        world: the world; None is replaced by the current world only if ``layout`` is None, too.
        ndim: number of dimensions of the tensor; used only if ``layout`` is None.
    """
    if layout is None:
        world = current() if world is None else world
        layout = Layout.replicated(Mesh((world.size,), ("world",)), ndim)
    return layout, world


def _normalise_shape(shape: int | Sequence[int]) -> tuple[int, ...]:
    """Return a shape as a tuple; a single size is a shape of one dimension.

    Raises:
        InputError: If a size is negative or no integer.
    """
    sizes = as_integers((shape,) if isinstance(shape, (int, np.integer)) else shape)
    if any(n < 0 for n in sizes):
        raise InputError(f"shape must have sizes from 0 on, got {sizes}")
    return sizes


def _measure_block(index: Index) -> list[int]:
    """Return the shape of the block at an index of slices with start and stop."""
    return [span.stop - span.start for span in index]


@explained
def full(
    shape: int | Sequence[int],
    fill_value: complex,
    dtype: DTypeLike | None = None,
    *,
    layout: Layout | None = None,
    world: World | None = None,
    device: str | None = None,
) -> Tensor:
    """Create a tensor whose elements equal one number.

    Args:
        shape: sizes of the dimensions; a number is the size of the only dimension.
        fill_value: the number. A tensor of one element, of any shape, is gathered from the ranks. An array must have no
            dimensions.
        dtype: element type, to which the number is converted like by ``astype``, even if it loses digits; None: the
            number's own type.
        layout: layout of the tensor; None: every rank owns all of it.
        world: the world of the ranks; by default :func:`spmdsim.world`.
        device: ``"cpu"`` or None, for the array API standard.

    Raises:
        InputError: If a size is negative or no integer, the element type is no number, ``fill_value`` is a tensor
            without exactly one element, or the device is unknown.
        LayoutError: If the layout has another number of dimensions.
        RuleError: If ``fill_value`` is an array with dimensions.
        WorldError: If the mesh needs more ranks than the world has, or the ranks pass different arguments.

    >>> from spmdsim import Mesh
    >>> full((6,), 2.5, layout=Mesh((3,), ("x",))("x")).local(1)
    array([2.5, 2.5])
    """
    value = fill_value.dtype.type(fill_value.item()) if isinstance(fill_value, Tensor) else fill_value
    if np.ndim(value):
        raise RuleError(
            f"full: fill_value must be one number, got an array of shape {np.shape(value)}; use Tensor.from_global(array, layout)"
        )
    kind = np.asarray(value).dtype if dtype is None else number_type(dtype, "a tensor cannot have")
    number = np.asarray(value).astype(kind)
    return _create(
        lambda index: np.full(_measure_block(index), number),
        repr(value),
        _normalise_shape(shape),
        kind,
        layout,
        world,
        device,
    )


@explained
def zeros(
    shape: int | Sequence[int],
    dtype: DTypeLike | None = None,
    *,
    layout: Layout | None = None,
    world: World | None = None,
    device: str | None = None,
) -> Tensor:
    """Create a tensor of zeros, by default of float64.

    Apart from ``fill_value``, the arguments and the errors are those of :func:`full`.

    >>> from spmdsim import Mesh
    >>> zeros((4,), layout=Mesh((2,), ("x",))("x")).local(0)
    array([0., 0.])
    """
    return full(shape, 0, dtype=_default_to_float(dtype), layout=layout, world=world, device=device)


@explained
def ones(
    shape: int | Sequence[int],
    dtype: DTypeLike | None = None,
    *,
    layout: Layout | None = None,
    world: World | None = None,
    device: str | None = None,
) -> Tensor:
    """Create a tensor of ones, by default of float64.

    Apart from ``fill_value``, the arguments and the errors are those of :func:`full`.

    >>> from spmdsim import Mesh
    >>> ones((4,), layout=Mesh((2,), ("x",))("x")).local(0)
    array([1., 1.])
    """
    return full(shape, 1, dtype=_default_to_float(dtype), layout=layout, world=world, device=device)


@explained
def empty(
    shape: int | Sequence[int],
    dtype: DTypeLike | None = None,
    *,
    layout: Layout | None = None,
    world: World | None = None,
    device: str | None = None,
) -> Tensor:
    """Create a tensor of arbitrary values: zeros, so that replicas are identical.

    Apart from ``fill_value``, the arguments and the errors are those of :func:`full`.

    >>> from spmdsim import Mesh
    >>> empty((4,), layout=Mesh((2,), ("x",))("x")).shape
    (4,)
    """
    return zeros(shape, dtype=dtype, layout=layout, world=world, device=device)


def _default_to_float(dtype: DTypeLike | None) -> DTypeLike:
    """Return the element type, float64 for None."""
    return np.float64 if dtype is None else dtype


@explained
def full_like(
    x: Tensor,
    /,
    fill_value: complex,
    *,
    dtype: DTypeLike | None = None,
    layout: Layout | None = None,
    device: str | None = None,
) -> Tensor:
    """Create a tensor of one number with shape, type and layout of another tensor.

    Args:
        x: the other tensor.
        fill_value: the number; also a tensor of one element.
        dtype: element type; None: that of ``x``.
        layout: layout of the tensor; None: that of ``x``, without pending reductions.
        device: ``"cpu"`` or None, for the array API standard.

    Raises:
        InputError: If the element type is no number, or the device is unknown.
        LayoutError: If the layout has another number of dimensions.
        UsageTypeError: If ``x`` is no tensor.

    >>> from spmdsim import Mesh
    >>> full_like(zeros((4,), layout=Mesh((2,), ("x",))("x")), 7.0).local(0)
    array([7., 7.])
    """
    return _create_like("full_like", x, fill_value, dtype, layout, device)


def _create_like(
    name: str, x: Tensor, value: complex, dtype: DTypeLike | None, layout: Layout | None, device: str | None
) -> Tensor:
    """Create a tensor that is filled with one number, with shape and world of ``x``.

    Args:
        name: the function that the user called, for error messages; it ends in "_like".
        x: the tensor.
        value: the number.
        dtype: element type; None: that of ``x``.
        layout: layout; None: that of ``x``, without pending reductions.
        device: None or "cpu".

    Raises:
        UsageTypeError: If ``x`` is no tensor.
        InputError: If the element type is no number, or the device is unknown.
        LayoutError: If the layout has another number of dimensions.
    """
    if not isinstance(x, Tensor):
        raise UsageTypeError(
            f"{name} takes a tensor, but got {type(x).__name__}; make one with Tensor.from_global(array, layout), or "
            f"give the shape: {name.removesuffix('_like')}(shape, layout=...)"
        )
    return full(
        x.shape,
        value,
        dtype=x.dtype if dtype is None else dtype,
        layout=x.layout.reduced if layout is None else layout,
        world=x.world,
        device=device,
    )


@explained
def zeros_like(
    x: Tensor, /, *, dtype: DTypeLike | None = None, layout: Layout | None = None, device: str | None = None
) -> Tensor:
    """Create zeros with the shape, the type and the layout of another tensor.

    Apart from ``fill_value``, the arguments and the errors are those of :func:`full_like`.

    >>> from spmdsim import Mesh
    >>> zeros_like(ones((4,), layout=Mesh((2,), ("x",))("x"))).local(0)
    array([0., 0.])
    """
    return _create_like("zeros_like", x, 0, dtype, layout, device)


@explained
def ones_like(
    x: Tensor, /, *, dtype: DTypeLike | None = None, layout: Layout | None = None, device: str | None = None
) -> Tensor:
    """Create ones with the shape, the type and the layout of another tensor.

    Apart from ``fill_value``, the arguments and the errors are those of :func:`full_like`.

    >>> from spmdsim import Mesh
    >>> ones_like(zeros((4,), layout=Mesh((2,), ("x",))("x"))).local(0)
    array([1., 1.])
    """
    return _create_like("ones_like", x, 1, dtype, layout, device)


@explained
def empty_like(
    x: Tensor, /, *, dtype: DTypeLike | None = None, layout: Layout | None = None, device: str | None = None
) -> Tensor:
    """Create a tensor of arbitrary values, zeros, with shape, type and layout of another tensor.

    Apart from ``fill_value``, the arguments and the errors are those of :func:`full_like`.

    >>> from spmdsim import Mesh
    >>> empty_like(zeros((4,), layout=Mesh((2,), ("x",))("x"))).layout.placement_text()
    'S(0)'
    """
    return _create_like("empty_like", x, 0, dtype, layout, device)


@explained
def arange(
    start: float,
    /,
    stop: float | None = None,
    step: float = 1,
    *,
    dtype: DTypeLike | None = None,
    layout: Layout | None = None,
    world: World | None = None,
    device: str | None = None,
) -> Tensor:
    """Create the numbers from ``start`` to ``stop`` (excluded) at a distance of ``step``.

    The number at position k is ``start + k * step``. For floats, ``step`` is first rounded to ``(start + step) -
    start``, as in NumPy.

    Args:
        start: the first number. A call with one number, such as ``arange(3)``, gives 0, 1, 2.
        stop: the end, which is excluded; None: ``start`` is the end, and the first number is 0. The tensor is empty
            if the end does not lie in the direction of ``step``.
        step: difference of neighbours; negative to descend, not zero.
        dtype: element type; None: the type to which the three numbers are promoted.
        layout: layout of the tensor; None: every rank owns all of it.
        world: the world of the ranks; by default :func:`spmdsim.world`.
        device: ``"cpu"`` or None, for the array API standard.

    Raises:
        InputError: If ``step`` is zero, the element type is no number, or the device is unknown.
        LayoutError: If the layout has another number of dimensions.

    >>> from spmdsim import Mesh
    >>> arange(7, layout=Mesh((3,), ("x",))("x")).local(2)
    array([5, 6])
    """
    first, last = (0, start) if stop is None else (start, stop)
    if not step:
        raise InputError(f"arange: step must not be 0, got {step!r}")
    natural = np.result_type(*[np.asarray(value) for value in (first, last, step)])
    kind = natural if dtype is None else number_type(dtype, "a tensor cannot have")
    count = _count_steps(first, last, step)

    def block(index: Index) -> np.ndarray:
        """Return the numbers at one range of positions."""
        positions = np.arange(index[0].start, index[0].stop)
        if natural.kind == "f":
            return np.asarray(first + positions * ((first + step) - first)).astype(kind)
        # Compute with Python's integers, which cannot overflow: later numbers may exceed the type of the first.
        first_of_block = first + index[0].start * step
        return np.arange(first_of_block, first_of_block + len(positions) * step, step).astype(kind)

    return _create(block, repr((first, last, step)), (count,), kind, layout, world, device)


def _count_steps(first: Any, last: Any, step: Any) -> int:
    """Return the length of ``arange(first, last, step)``, exactly if all three are integers.

    Raises InputError if it is above 2**63 - 1.
    """
    try:
        if all(isinstance(value, (int, np.integer)) for value in (first, last, step)):
            return len(range(first, last, step))
        return int(max(0, math.ceil((last - first) / step)))
    except OverflowError:
        raise InputError(f"arange: the length must be below 2**63, got {first} to {last} by {step}") from None


@explained
def linspace(
    start: complex,
    stop: complex,
    /,
    num: int,
    *,
    dtype: DTypeLike | None = None,
    endpoint: bool = True,
    layout: Layout | None = None,
    world: World | None = None,
    device: str | None = None,
) -> Tensor:
    """Create ``num`` numbers from ``start`` to ``stop`` at equal distances, in one dimension.

    Args:
        start: the first number.
        stop: the last number. With ``endpoint=False`` it is the number after the last one: 5 numbers from 0 to 1 are
            then 0, 0.2, 0.4, 0.6, 0.8.
        num: count of numbers; 0 gives an empty tensor, and 1 the number ``start``.
        dtype: element type; None: float64, or complex128 of complex numbers. Integers are rounded down.
        endpoint: if True, ``stop`` is the last number, exactly. If False, the distance is ``(stop - start) / num``.
        layout: layout of the tensor; None: every rank owns all of it.
        world: the world of the ranks; by default :func:`spmdsim.world`.
        device: ``"cpu"`` or None, for the array API standard.

    Raises:
        InputError: If ``num`` is negative or no integer, the element type is no number, or the device is unknown.
        LayoutError: If the layout has another number of dimensions.

    >>> from spmdsim import Mesh
    >>> linspace(0, 1, 5, layout=Mesh((2,), ("x",))("x")).local(1)
    array([0.75, 1.  ])
    """
    if not isinstance(num, (int, np.integer)) or num < 0:
        raise InputError(f"linspace: num must be an integer from 0 on, got {num!r}")
    natural = np.result_type(np.asarray(start), np.asarray(stop), np.float64)
    kind = natural if dtype is None else number_type(dtype, "a tensor cannot have")
    parts = num - 1 if endpoint else num

    def block(index: Index) -> np.ndarray:
        """Return the numbers at one range of positions; the last number is exactly ``stop``."""
        positions = np.arange(index[0].start, index[0].stop)
        numbers = positions.astype(natural) * ((stop - start) / max(parts, 1)) + start
        if endpoint and index[0].stop == num > 1:
            numbers[-1] = stop
        return np.floor(numbers).astype(kind) if kind.kind in "iu" else numbers.astype(kind)

    return _create(block, repr((start, stop, num, endpoint)), (num,), kind, layout, world, device)


@explained
def eye(
    n_rows: int,
    n_cols: int | None = None,
    /,
    *,
    k: int = 0,
    dtype: DTypeLike | None = None,
    layout: Layout | None = None,
    world: World | None = None,
    device: str | None = None,
) -> Tensor:
    """Create a matrix with ones on its ``k``-th diagonal and zeros elsewhere.

    The matrix is all zeros if the diagonal lies outside of it.

    Args:
        n_rows: number of rows.
        n_cols: number of columns; None: as many as rows.
        k: number of the diagonal to the right of the main one; negative: to the left.
        dtype: element type; None: float64.
        layout: layout of the tensor; None: every rank owns all of it.
        world: the world of the ranks; by default :func:`spmdsim.world`.
        device: ``"cpu"`` or None, for the array API standard.

    Raises:
        InputError: If a size is negative or no integer, the element type is no number, or the device is unknown.
        LayoutError: If the layout has another number of dimensions.

    >>> from spmdsim import Mesh
    >>> eye(3, layout=Mesh((3,), ("x",))("x", None)).local(1)
    array([[0., 1., 0.]])
    """
    kind = number_type(_default_to_float(dtype), "a tensor cannot have")

    def block(index: Index) -> np.ndarray:
        """Return the block of the matrix at two ranges."""
        rows, columns = index
        height, width = _measure_block(index)
        return np.asarray(np.eye(height, width, k + rows.start - columns.start, dtype=kind))

    shape = _normalise_shape((n_rows, n_rows if n_cols is None else n_cols))
    return _create(block, f"eye {k}", shape, kind, layout, world, device)
