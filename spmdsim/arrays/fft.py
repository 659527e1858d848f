"""Fourier transforms of global tensors, with names and arguments of ``numpy.fft`` and the array API.

A dim that is not split is transformed in place. The axes of a split dim first move to another dim, by one all_to_all;
a dim that is transformed already is preferred, so that nothing moves twice. If no other dim can be split, the dim is
transformed as a matrix, in three exchanges, if its size has two suitable factors, and gathered if not. Results keep
the layout of the calculation; ``layout=`` redistributes them. All functions have gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike

from spmdsim import wrong_calls
from spmdsim.arrays import Tensor
from spmdsim.arrays.creation import check_device
from spmdsim.arrays.ops.declare import cast
from spmdsim.arrays.ops.operators import of_tensors
from spmdsim.arrays.ops.scans import conjugate_if_complex, normalise_along_dim
from spmdsim.arrays.ops.slicing import roll
from spmdsim.arrays.ops.transforms import OTHER_NORM, transform
from spmdsim.core import Layout, Mesh
from spmdsim.errors import RuleError, many
from spmdsim.worlds.base import World
from spmdsim.worlds.current import world as current
from spmdsim.wrong_calls import explained

Axes = int | Sequence[int] | None
Points = int | None
Sizes = Sequence[int | None] | None
Norm = str | None
Target = Layout | None


def _redistribute(x: Tensor, layout: Layout | None) -> Tensor:
    """Redistribute a tensor to ``layout``; None keeps its layout."""
    return x if layout is None else x.to(layout)


@of_tensors
def fft(x: Tensor, n: Points = None, axis: int = -1, norm: Norm = None, *, layout: Target = None) -> Tensor:
    """Compute the discrete Fourier transform along a dimension.

    Args:
        x: the tensor.
        n: number of points; None: the dimension's size. The dimension is cut or padded with zeros.
        axis: the dimension; negative numbers count from the end.
        norm: the direction that is scaled by 1/n: ``"backward"`` (the default) or ``"forward"``; or ``"ortho"`` to
            scale both by 1/sqrt(n).
        layout: layout of the result; None: the layout of the calculation.

    Returns:
        A complex tensor with ``n`` entries along the dimension.

    Raises:
        RuleError: If a dimension is out of range, ``n`` < 1, or the norm is unknown.
        PlanError: If the layout has another number of dimensions.
        UsageTypeError: If ``x`` is no tensor.

    >>> from spmdsim import LockStep, Mesh, Tensor
    >>> x = Tensor.from_global(np.eye(4), Mesh((2,), ("x",))(None, "x"), LockStep(2))
    >>> y = fft(x)
    >>> y.layout, bool(np.allclose(y.full(), np.fft.fft(np.eye(4))))
    (Mesh((2,), ('x',))('x', None), True)
    """
    return _redistribute(transform("fft", x, n, axis, norm), layout)


@of_tensors
def ifft(x: Tensor, n: Points = None, axis: int = -1, norm: Norm = None, *, layout: Target = None) -> Tensor:
    """Compute the inverse of :func:`fft`.

    Args:
        x: the tensor.
        n: number of points; None: the dimension's size. The dimension is cut or padded with zeros.
        axis: the dimension; negative numbers count from the end.
        norm: the scaled direction, as in :func:`fft`.
        layout: layout of the result; None: the layout of the calculation.

    Returns:
        A complex tensor with ``n`` entries along the dimension.

    Raises:
        RuleError: If a dimension is out of range, ``n`` < 1, or the norm is unknown.
        PlanError: If the layout has another number of dimensions.

    >>> from spmdsim import Mesh, Tensor, fft
    >>> m = Tensor.from_global([[3.0, 1.0], [2.0, 4.0]], Mesh((2,), ("dp",))("dp", None))
    >>> fft.ifft(fft.fft(m)).full().real.round(6).tolist()
    [[3.0, 1.0], [2.0, 4.0]]
    """
    return _redistribute(transform("ifft", x, n, axis, norm), layout)


@of_tensors
def rfft(x: Tensor, n: Points = None, axis: int = -1, norm: Norm = None, *, layout: Target = None) -> Tensor:
    """Compute the first ``n // 2 + 1`` values of :func:`fft` of real numbers.

    The other values are conjugates of these. ``x`` must be real; the other arguments and the errors are those of
    :func:`fft`.

    Args:
        x: a real tensor.
        n: number of points; None: the dimension's size. The dimension is cut or padded with zeros.
        axis: the dimension; negative numbers count from the end.
        norm: the scaled direction, as in :func:`fft`.
        layout: layout of the result; None: the layout of the calculation.

    Returns:
        A complex tensor with ``n // 2 + 1`` entries along the dimension. The other values are conjugates of these.

    Raises:
        RuleError: If ``x`` is complex, a dimension is out of range, ``n`` < 1, or the norm is unknown.
        PlanError: If the layout has another number of dimensions.

    >>> from spmdsim import Mesh, Tensor
    >>> wave = Tensor.from_global(np.cos(np.arange(8) * 2 * np.pi / 8), Mesh((2,), ("x",))("x"))
    >>> np.abs(rfft(wave).full()).round(6).tolist()  # one turn in eight points
    [0.0, 4.0, 0.0, 0.0, 0.0]
    """
    return _redistribute(transform("rfft", x, n, axis, norm), layout)


@of_tensors
def irfft(x: Tensor, n: Points = None, axis: int = -1, norm: Norm = None, *, layout: Target = None) -> Tensor:
    """Compute the inverse of :func:`rfft`: ``n`` real numbers.

    Args:
        x: the first half of the values along the dimension; the other values are their conjugates.
        n: number of points of the result; None: ``2 * (m - 1)`` for a dimension of size ``m``.
        axis: the dimension; negative numbers count from the end.
        norm: the direction that is scaled by 1/n: ``"backward"`` (the default) or ``"forward"``; or ``"ortho"`` to
            scale both by 1/sqrt(n).
        layout: layout of the result; None: the layout of the calculation.

    Returns:
        A real tensor with ``n`` entries along the dimension.

    Raises:
        RuleError: If a dimension is out of range, ``n`` < 1, or the norm is unknown.
        PlanError: If the layout has another number of dimensions.
        UsageTypeError: If ``x`` is no tensor.

    >>> from spmdsim import Mesh, Tensor, fft
    >>> x = Tensor.from_global([[3, 1, 2], [6, 5, 4]], Mesh((2,), ("dp",))("dp", None))
    >>> fft.irfft(fft.rfft(x), n=3).full().round(6).tolist(), fft.irfft(fft.rfft(x)).shape
    ([[3.0, 1.0, 2.0], [6.0, 5.0, 4.0]], (2, 2))
    """
    return _redistribute(transform("irfft", x, n, axis, norm), layout)


@of_tensors
def hfft(x: Tensor, n: Points = None, axis: int = -1, norm: Norm = None, *, layout: Target = None) -> Tensor:
    """Compute the real :func:`fft` of ``n`` conjugate-symmetric values from their first half.

    The arguments and the errors are those of :func:`irfft`.

    Args:
        x: the first half of the values along the dimension.
        n: number of points of the result; None: ``2 * (m - 1)`` for a dimension of size ``m``.
        axis: the dimension; negative numbers count from the end.
        norm: the scaled direction, as in :func:`fft`.
        layout: layout of the result; None: the layout of the calculation.

    Returns:
        A real tensor with ``n`` entries along the dimension.

    Raises:
        RuleError: If a dimension is out of range, ``n`` < 1, or the norm is unknown.

    >>> from spmdsim import Mesh, Tensor
    >>> half = Tensor.from_global([[1.0, 0.5, 0.0]], Mesh((2,), ("x",))("x", None))
    >>> hfft(half).full().round(6).tolist()
    [[2.0, 1.0, 0.0, 1.0]]
    """
    return irfft(conjugate_if_complex(x), n, axis, OTHER_NORM.get(norm or "backward", norm), layout=layout)


@of_tensors
def ihfft(x: Tensor, n: Points = None, axis: int = -1, norm: Norm = None, *, layout: Target = None) -> Tensor:
    """Compute the inverse of :func:`hfft`: the first half of the transform of real numbers.

    The arguments and the errors are those of :func:`rfft`.

    Args:
        x: a real tensor.
        n: number of points; None: the dimension's size.
        axis: the dimension; negative numbers count from the end.
        norm: the scaled direction, as in :func:`fft`.
        layout: layout of the result; None: the layout of the calculation.

    Returns:
        A complex tensor with ``n // 2 + 1`` entries along the dimension.

    Raises:
        RuleError: If ``x`` is complex, a dimension is out of range, ``n`` < 1, or the norm is unknown.

    >>> from spmdsim import Mesh, Tensor
    >>> y = Tensor.from_global([[2.0, 1.0, 0.0, 1.0]], Mesh((2,), ("x",))("x", None))
    >>> ihfft(y).full().real.round(6).tolist()
    [[1.0, 0.5, 0.0]]
    """
    return _redistribute(
        conjugate_if_complex(rfft(x, n, axis, OTHER_NORM.get(norm or "backward", norm))), layout
    )


def _pair_dims_with_points(x: Tensor, s: Sizes, axes: Axes) -> list[tuple[int, Points]]:
    """Return pairs of a dim to transform and its number of points, by NumPy's rules.

    The pairs are in the order of ``axes``; dims are not negative. A dim may occur twice. For example, a tensor of three
    dims with ``s`` (4, -1) and ``axes`` None gives [(1, 4), (2, None)].

    Args:
        x: the tensor.
        s: the number of points of each dim; None: the default for all dims. An entry that is None or -1 stands for the
            default of its dim. The default is None in the pairs.
        axes: one dim or several; None: the last dims, one for each entry of ``s``, or all dims if ``s`` is None.

    Raises:
        RuleError: If there are no dims, a dim is out of range, or the numbers of points and of dims differ.
    """
    if axes is None:
        axes = range(x.ndim) if s is None else range(-len(s), 0)
    dims = [
        normalise_along_dim("a transform", x, axis) for axis in ([axes] if isinstance(axes, int) else axes)
    ]
    sizes = [None] * len(dims) if s is None else [None if n in (None, -1) else n for n in s]
    if len(sizes) != len(dims):
        raise RuleError(
            f"s must have one number of points for each of the {many(len(dims), 'dim')}, got {s!r}"
        )
    if not dims:
        raise RuleError(f"axes must name at least one dim, got {axes!r}")
    return list(zip(dims, sizes))


def _transform_dims(
    kind: str, x: Tensor, dims: Sequence[tuple[int, Points]], norm: Norm, done: Sequence[int] = ()
) -> Tensor:
    """Return a tensor that is transformed along several dims, in any layout.

    Dims that are not split come first: the axes of split dims can then move to a dim that is transformed already.
    """
    for dim, n in sorted(dims, key=lambda item: bool(x.layout.canonical.dims[item[0]])):
        x = transform(kind, x, n, dim, norm, done)
        done = [*done, dim]
    return x


@of_tensors
def fftn(
    x: Tensor, s: Sizes = None, axes: Axes = None, norm: Norm = None, *, layout: Target = None
) -> Tensor:
    """Compute :func:`fft` along several dimensions.

    Args:
        x: the tensor.
        s: points of each dimension, as ``n`` of :func:`fft`; None or -1 stands for the default.
        axes: the dimensions; None: all, or as many of the last ones as ``s`` has points.
        norm: the scaled direction, as in :func:`fft`; n is the product of all points.
        layout: layout of the result; None: the layout of the calculation.

    Returns:
        A complex tensor.

    Raises:
        RuleError: If a dimension is out of range, there are no dimensions, the numbers of points and dimensions
            differ, a number of points is less than 1, or the norm is unknown.
        PlanError: If the layout has another number of dimensions.

    >>> from spmdsim import LockStep, Mesh, Tensor, record
    >>> x = Tensor.from_global(np.eye(4), Mesh((2,), ("x",))("x", None), LockStep(2))
    >>> with record() as trace:
    ...     y = fftn(x)
    >>> trace.counts(), y.layout
    ({'all_to_all': 1}, Mesh((2,), ('x',))(None, 'x'))
    """
    return _redistribute(_transform_dims("fft", x, _pair_dims_with_points(x, s, axes), norm), layout)


@of_tensors
def ifftn(
    x: Tensor, s: Sizes = None, axes: Axes = None, norm: Norm = None, *, layout: Target = None
) -> Tensor:
    """Compute the inverse of :func:`fftn`.

    The arguments and the errors are those of :func:`fftn`.

    Args:
        x: the tensor.
        s: points of each dimension, as in :func:`fftn`.
        axes: the dimensions, as in :func:`fftn`.
        norm: the scaled direction, as in :func:`fftn`.
        layout: layout of the result; None: the layout of the calculation.

    Returns:
        A complex tensor.

    Raises:
        RuleError: As :func:`fftn`.

    >>> from spmdsim import Mesh, Tensor
    >>> one = Tensor.from_global(np.ones((2, 2)), Mesh((2,), ("x",))("x", None))
    >>> ifftn(one).full().real.tolist()
    [[1.0, 0.0], [0.0, 0.0]]
    """
    return _redistribute(_transform_dims("ifft", x, _pair_dims_with_points(x, s, axes), norm), layout)


@of_tensors
def rfftn(
    x: Tensor, s: Sizes = None, axes: Axes = None, norm: Norm = None, *, layout: Target = None
) -> Tensor:
    """Compute the first half of :func:`fftn` of real numbers.

    ``x`` must be real; the other arguments and the errors are those of :func:`fftn`.

    Args:
        x: a real tensor.
        s: points of each dimension, as in :func:`fftn`.
        axes: the dimensions, as in :func:`fftn`. The last one of them has only ``n // 2 + 1`` entries in the result.
        norm: the scaled direction, as in :func:`fftn`.
        layout: layout of the result; None: the layout of the calculation.

    Returns:
        A complex tensor.

    Raises:
        RuleError: If ``x`` is complex, or as :func:`fftn`.

    >>> from spmdsim import Mesh, Tensor
    >>> x = Tensor.from_global(np.ones((2, 4, 6)), Mesh((2,), ("x",))("x", None, None))
    >>> rfftn(x).shape, rfftn(x, axes=(2, 1)).shape
    ((2, 4, 4), (2, 3, 6))
    """
    *others, (last, n) = _pair_dims_with_points(x, s, axes)
    return _redistribute(
        _transform_dims("fft", transform("rfft", x, n, last, norm), others, norm, [last]), layout
    )


@of_tensors
def irfftn(
    x: Tensor, s: Sizes = None, axes: Axes = None, norm: Norm = None, *, layout: Target = None
) -> Tensor:
    """Compute the inverse of :func:`rfftn`.

    Args:
        x: the first half of the values, along the only or the last transformed dimension.
        s: points of each dimension of the result; None or -1 stands for the default, for the last one as in
            :func:`irfft`.
        axes: the dimensions, as in :func:`fftn`.
        norm: the scaled direction, as in :func:`fftn`.
        layout: layout of the result; None: the layout of the calculation.

    Returns:
        A real tensor.

    Raises:
        RuleError: As :func:`fftn`.
        PlanError: If the layout has another number of dimensions.

    >>> from spmdsim import Mesh, Tensor, fft
    >>> m = Tensor.from_global([[3.0, 1.0], [2.0, 4.0]], Mesh((2,), ("dp",))("dp", None))
    >>> s = Tensor.from_global([[4.0, 2.0], [2.0, 3.0]], Mesh((2,), ("dp",))("dp", None))
    >>> fft.irfftn(fft.rfftn(m), s=(2, 2)).full().round(6).tolist()
    [[3.0, 1.0], [2.0, 4.0]]
    """
    *others, (last, n) = _pair_dims_with_points(x, s, axes)
    x = _transform_dims("ifft", x, others, norm)
    return _redistribute(transform("irfft", x, n, last, norm, [dim for dim, _ in others]), layout)


@of_tensors
def fft2(
    x: Tensor, s: Sizes = None, axes: Axes = (-2, -1), norm: Norm = None, *, layout: Target = None
) -> Tensor:
    """Compute :func:`fftn` along two dimensions.

    ``axes`` are two dimensions, by default the last ones. The other arguments and the errors are those of
    :func:`fftn`.

    Args:
        x: the tensor.
        s: points of both dimensions, as in :func:`fftn`.
        axes: two dimensions.
        norm: the scaled direction, as in :func:`fftn`.
        layout: layout of the result; None: the layout of the calculation.

    Returns:
        A complex tensor.

    Raises:
        RuleError: As :func:`fftn`.

    >>> from spmdsim import Mesh, Tensor
    >>> images = Tensor.from_global(np.ones((4, 2, 2)), Mesh((2,), ("x",))("x", None, None))
    >>> fft2(images).full()[0].real.tolist(), fft2(images).layout.placement_text()  # each image stays on its rank
    ([[4.0, 0.0], [0.0, 0.0]], 'S(0)')
    """
    return fftn(x, s, axes, norm, layout=layout)


@of_tensors
def ifft2(
    x: Tensor, s: Sizes = None, axes: Axes = (-2, -1), norm: Norm = None, *, layout: Target = None
) -> Tensor:
    """Compute the inverse of :func:`fft2`.

    ``axes`` are two dimensions, by default the last ones. The other arguments and the errors are those of
    :func:`fftn`.

    Args:
        x: the tensor.
        s: points of both dimensions, as in :func:`fftn`.
        axes: two dimensions.
        norm: the scaled direction, as in :func:`fftn`.
        layout: layout of the result; None: the layout of the calculation.

    Returns:
        A complex tensor.

    Raises:
        RuleError: As :func:`fftn`.

    >>> from spmdsim import Mesh, Tensor
    >>> peak = Tensor.from_global([[4.0, 0.0], [0.0, 0.0]], Mesh((2,), ("x",))(None, "x"))
    >>> ifft2(peak).full().real.tolist()
    [[1.0, 1.0], [1.0, 1.0]]
    """
    return ifftn(x, s, axes, norm, layout=layout)


@of_tensors
def rfft2(
    x: Tensor, s: Sizes = None, axes: Axes = (-2, -1), norm: Norm = None, *, layout: Target = None
) -> Tensor:
    """Compute :func:`rfftn` along two dimensions.

    ``axes`` are two dimensions, by default the last ones. The other arguments and the errors are those of
    :func:`rfftn`.

    Args:
        x: a real tensor.
        s: points of both dimensions, as in :func:`fftn`.
        axes: two dimensions; the last one has only ``n // 2 + 1`` entries in the result.
        norm: the scaled direction, as in :func:`fftn`.
        layout: layout of the result; None: the layout of the calculation.

    Returns:
        A complex tensor.

    Raises:
        RuleError: If ``x`` is complex, or as :func:`fftn`.

    >>> from spmdsim import Mesh, Tensor
    >>> rows = Tensor.from_global(np.arange(8.0).reshape(2, 4), Mesh((2,), ("x",))("x", None))
    >>> rfft2(rows).full()[:, 0].real.round(6).tolist()  # the sum, and first row minus second
    [28.0, -16.0]
    """
    return rfftn(x, s, axes, norm, layout=layout)


@of_tensors
def irfft2(
    x: Tensor, s: Sizes = None, axes: Axes = (-2, -1), norm: Norm = None, *, layout: Target = None
) -> Tensor:
    """Compute the inverse of :func:`rfft2`.

    ``axes`` are two dimensions, by default the last ones. The other arguments and the errors are those of
    :func:`irfftn`.

    Args:
        x: the first half of the values.
        s: points of both dimensions of the result, as in :func:`irfftn`.
        axes: two dimensions.
        norm: the scaled direction, as in :func:`fftn`.
        layout: layout of the result; None: the layout of the calculation.

    Returns:
        A real tensor.

    Raises:
        RuleError: As :func:`fftn`.

    >>> from spmdsim import Mesh, Tensor
    >>> y = Tensor.from_global([[0.0, 4.0], [0.0, 0.0]], Mesh((2,), ("x",))("x", None))
    >>> irfft2(y).full().round(6).tolist()
    [[1.0, -1.0], [1.0, -1.0]]
    """
    return irfftn(x, s, axes, norm, layout=layout)


def _create_frequencies(
    values: np.ndarray, layout: Target, dtype: DTypeLike | None, world: World | None, device: Any
) -> Tensor:
    """Return frequencies as a tensor; without a layout they are replicated over the world.

    All ranks of the mesh must call it with equal arguments.
    """
    check_device(device)
    if layout is None:
        world = current() if world is None else world
        layout = Layout.replicated(Mesh((world.size,), ("world",)), 1)
    frequencies = Tensor.from_global(values, layout, world)
    return frequencies if dtype is None else cast(frequencies, dtype)


@explained
def fftfreq(
    n: int,
    d: float = 1.0,
    *,
    layout: Target = None,
    dtype: DTypeLike | None = None,
    world: World | None = None,
    device: Any = None,
) -> Tensor:
    """Return the frequencies of the values of :func:`fft`: ``[0, 1, ..., -2, -1] / (n d)``.

    Args:
        n: number of values.
        d: distance between two samples.
        layout: layout of the tensor; by default every rank owns all of it.
        dtype: element type; by default float64.
        world: the world; by default :func:`spmdsim.world`.
        device: ``"cpu"``, for the array API standard.

    Returns:
        A real tensor ``[n]``.

    Raises:
        InputError: If the device is unknown.

    >>> from spmdsim import Mesh
    >>> fftfreq(4, 0.5, layout=Mesh((2,), ("x",))("x")).full().tolist()
    [0.0, 0.5, -1.0, -0.5]
    """
    return _create_frequencies(np.fft.fftfreq(n, d), layout, dtype, world, device)


@explained
def rfftfreq(
    n: int,
    d: float = 1.0,
    *,
    layout: Target = None,
    dtype: DTypeLike | None = None,
    world: World | None = None,
    device: Any = None,
) -> Tensor:
    """Return the frequencies of the values of :func:`rfft`, ``[0, 1, ...] / (n d)``.

    The arguments and the errors are those of :func:`fftfreq`.

    Args:
        n: number of points of the transform.
        d: distance between two samples.
        layout: layout of the tensor; None: every rank owns all of it.
        dtype: element type; None: float64.
        world: the world; None: :func:`spmdsim.world`.
        device: ``"cpu"`` or None, for the array API standard.

    Returns:
        A real tensor ``[n // 2 + 1]``.

    Raises:
        InputError: If the device is unknown.

    >>> from spmdsim import Mesh
    >>> rfftfreq(6, layout=Mesh((2,), ("x",))("x"), dtype=np.float32).shards[1].tolist()
    [0.3333333432674408, 0.5]
    """
    return _create_frequencies(np.fft.rfftfreq(n, d), layout, dtype, world, device)


def _roll_halves(x: Tensor, axes: Axes, back: bool) -> Tensor:
    """Roll dims (None: all) by half their sizes; in the opposite direction for ``back``."""
    for dim, _ in _pair_dims_with_points(x, None, axes):
        half = x.shape[dim] // 2
        x = roll(x, -half if back else half, dim)
    return x


@of_tensors
def fftshift(x: Tensor, axes: Axes = None) -> Tensor:
    """Move frequency 0 to the middle of each dimension.

    Args:
        x: the tensor.
        axes: the dimensions; None: all.

    Returns:
        A tensor in the shape and layout of ``x``.

    Raises:
        RuleError: If a dimension is out of range.

    >>> from spmdsim import Mesh
    >>> fftshift(fftfreq(5, 0.2, layout=Mesh((2,), ("x",))("x"))).full().tolist()
    [-2.0, -1.0, 0.0, 1.0, 2.0]
    """
    return _roll_halves(x, axes, back=False)


@of_tensors
def ifftshift(x: Tensor, axes: Axes = None) -> Tensor:
    """Compute the inverse of :func:`fftshift`.

    Args:
        x: the tensor.
        axes: the dimensions; None: all.

    Returns:
        A tensor in the shape and layout of ``x``.

    Raises:
        RuleError: If a dimension is out of range.

    >>> from spmdsim import Mesh, Tensor
    >>> centred = Tensor.from_global([-2.0, -1.0, 0.0, 1.0], Mesh((2,), ("x",))("x"))
    >>> ifftshift(centred).full().tolist()
    [0.0, 1.0, -2.0, -1.0]
    """
    return _roll_halves(x, axes, back=True)


if not TYPE_CHECKING:  # type checkers know the names above, and no others
    __all__ = sorted(
        name
        for name, value in vars().items()
        if callable(value) and value.__module__ == __name__ and name[0] != "_"
    )
    __getattr__ = wrong_calls.refuse_names("spmdsim.fft", __all__)
