"""Create tensors from data, from one value and from random numbers: ``flow.tensor``, ``flow.ones``, ``flow.randn`` and
others.

With ``placement`` and ``sbp``, the tensor is global, with equal values for every placement. Without them, every rank
has a local tensor. ``**where`` stands for these two, ``device`` and ``requires_grad``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from spmdsim.arrays import Tensor as CoreTensor
from spmdsim.arrays.random import normal_block, uniform_block
from spmdsim.dialects.functions import as_number_tuple
from spmdsim.dialects.host import sizes_of, to_host, to_numpy_dtype
from spmdsim.dialects.oneflow import placements
from spmdsim.dialects.oneflow.placements import device as Device
from spmdsim.dialects.oneflow.placements import placement as Placement
from spmdsim.dialects.oneflow.sbp import OneFlowError
from spmdsim.dialects.oneflow.tensors import GlobalTensor, LocalTensor, check_agreement, find_method
from spmdsim.dialects.session import Seeds, current_world
from spmdsim.errors import UsageTypeError

AnyTensor = LocalTensor | GlobalTensor
#: Function of a generator and a shape that returns an array.
Draw = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]

seeds = Seeds()


def manual_seed(seed: int) -> None:
    """Set the seed of random numbers and of the first values of parameters."""
    seeds.begin(seed)


def _is_global(placement: Placement | None, sbp: Any) -> bool:
    """Return True if placement and sbp are given. Raises OneFlowError if only one of them is."""
    if (placement is None) != (sbp is None):
        raise OneFlowError("a global tensor needs both placement and sbp")
    return placement is not None


def _create_global(
    source: Any, shape: tuple[int, ...], kind: np.dtype, placement: Any, sbp: Any, requires_grad: bool
) -> GlobalTensor:
    """Create a global tensor from an array or a function of an index; all ranks must call it."""
    world = current_world()
    check_agreement(placement, sbp, world, None if callable(source) else source)
    layout = placements.check_sizes(placement, sbp, shape)
    value = CoreTensor.from_global(source, layout, world, shape=shape, dtype=kind)
    return GlobalTensor(value, placement).requires_grad_(requires_grad)


def _create_local(arrays: list[np.ndarray], device: Any, requires_grad: bool) -> LocalTensor:
    """Create a local tensor from one array per rank that this process plays."""
    tensor = LocalTensor(arrays, current_world(), Device(device or "cpu").type)
    return tensor.requires_grad_(requires_grad)


def tensor(
    data: Any, placement: Placement | None = None, sbp: Any = None, dtype: Any = None, *, device: Any = None,
    requires_grad: bool = False,
) -> AnyTensor:  # fmt: skip
    """Create a tensor with equal data on every rank; global with a placement and an sbp.

    For a global tensor, all ranks must call it with equal arguments, which is checked. A local tensor has a copy of the
    data.

    Args:
        data: numbers, nested lists, an array or a local tensor.
        placement: placement of a global tensor; None for a local one.
        sbp: split, broadcast or partial_sum, per mesh axis; None for a local one.
        dtype: element type; None for that of the data, float32 for Python floats.
        device: device of a local tensor; None for the CPU.
        requires_grad: collect a gradient; for global tensors only.

    Raises:
        OneFlowError: (a RuntimeError) If the data are a global tensor. If only one of placement and sbp is given, or
            both together with a device. If a gradient is asked of a local tensor. If ranks of a global tensor differ in
            data, placement or sbp, or a dim is too short to be split.
        UsageTypeError: If the data are no numbers.
    """
    if isinstance(data, GlobalTensor):
        raise OneFlowError("data must be numbers, got a global tensor; nearest: x.to_global")
    array = to_host(data.numpy() if isinstance(data, LocalTensor) else data, dtype).numpy()
    if not _is_global(placement, sbp):
        return _create_local([array.copy() for _ in current_world().ranks], device, requires_grad)
    if device is not None:
        raise OneFlowError(
            f"a global tensor has a placement and an sbp, a local one a device; got {device} too"
        )
    return _create_global(array, array.shape, array.dtype, placement, sbp, requires_grad)


as_tensor = tensor


def from_numpy(array: np.ndarray) -> AnyTensor:
    """Return a local tensor with a copy of an array; OneFlow shares the memory."""
    if not isinstance(array, np.ndarray):
        raise UsageTypeError(f"expected np.ndarray, but got {type(array).__name__}")
    return tensor(array)


class _EitherKind(type):
    """Metaclass that makes local and global tensors instances of `Tensor`, and methods functions of it."""

    def __getattr__(cls, name: str) -> Any:
        """Return a method of global tensors as a function."""
        return getattr(GlobalTensor, name, None) or find_method(name)

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, LocalTensor | GlobalTensor) or hasattr(value, "to_global")


class Tensor(metaclass=_EitherKind):
    """Constructor of float32 tensors from data or sizes; every tensor is an instance."""

    def __getattr__(self, name: str) -> Any:
        return find_method(name)

    def __new__(  # type: ignore[misc]
        cls, *data: Any, placement: Placement | None = None, sbp: Any = None, device: Any = None
    ) -> AnyTensor:
        """Create a tensor: ints are sizes of a tensor of zeros, else the first argument is the data."""
        if data and all(isinstance(n, int) for n in data):
            return tensor(np.zeros(data, np.float32), placement, sbp, device=device)
        return tensor(data[0] if data else (), placement, sbp, np.float32, device=device)


def is_tensor(value: object) -> bool:
    """Return True for a local or a global tensor."""
    return isinstance(value, Tensor)


def is_floating_point(x: Any) -> bool:
    """Return True if a tensor's elements are floats."""
    return bool(x.is_floating_point())


def numel(x: Any) -> int:
    """Return the number of elements of a tensor."""
    return int(x.numel())


def _create_random(
    shape: tuple[int, ...], block: Callable[[Any, int], np.ndarray], draw: Draw, kind: np.dtype,
    placement: Placement | None = None, sbp: Any = None, device: Any = None, requires_grad: bool = False,
) -> AnyTensor:  # fmt: skip
    """Create a tensor of random numbers from the next seed.

    A global tensor has equal values for every placement, and all ranks must call it; local tensors differ between
    ranks.
    """
    seed = seeds.next()
    if _is_global(placement, sbp):
        return _create_global(lambda index: block(index, seed), shape, kind, placement, sbp, requires_grad)
    ranks = current_world().ranks
    arrays = [draw(np.random.default_rng([seed, rank]), shape).astype(kind) for rank in ranks]
    return _create_local(arrays, device, requires_grad)


def _random_function(about: str, block: Callable[..., np.ndarray], draw: Draw) -> Callable[..., AnyTensor]:
    """Return a function of sizes that creates random floats, such as ``randn(2, 3)``.

    The returned function has the parameters ``*size``, ``dtype`` (float32 by default), and ``placement``, ``sbp`` and
    so on of `_create_random`. It raises OneFlowError if ``dtype`` is no float type.

    Args:
        about: docstring of the returned function.
        block: for global tensors: a function of an index, the global shape, a type and a seed, which returns the
            indexed block of the global tensor. A rank can thus draw its own shard alone.
        draw: for local tensors: a function of a generator and a shape, which returns the array.
    """

    def create(*size: Any, dtype: Any = np.float32, **where: Any) -> AnyTensor:
        shape, kind = sizes_of(as_number_tuple(size)), to_numpy_dtype(dtype)
        if kind.kind != "f":
            raise OneFlowError(
                f"dtype must be a float type for these random numbers, got oneflow.{kind.name}; nearest: "
                "oneflow.float32"
            )
        return _create_random(shape, lambda index, seed: block(index, shape, kind, seed), draw, kind, **where)

    create.__doc__ = about
    return create


randn = _random_function(
    "Normal numbers.", normal_block, lambda generator, shape: generator.normal(size=shape)
)
rand = _random_function("Numbers in [0, 1).", uniform_block, lambda generator, shape: generator.random(shape))


def randint(
    low: int, high: Any = None, size: Any = None, *, dtype: Any = np.int64, **where: Any
) -> AnyTensor:
    """Create random integers from ``low`` to ``high - 1``, such as ``randint(5, 10, (2, 3))``.

    With one bound, ``low`` is 0: ``randint(10, (2, 3))`` has integers from 0 to 9. With ``placement`` and ``sbp`` the
    tensor is global: its values do not depend on them, and all ranks must call it. Otherwise each rank gets a local
    tensor with its own values. Each call takes the next seed. Integers that ``dtype`` cannot represent wrap.

    Args:
        low: the lowest integer; the integer above the highest one, if it is the only bound.
        high: the integer above the highest one; the sizes, if there is one bound and ``size`` is None.
        size: tuple or list of sizes; of each rank's tensor if it is local.
        dtype: element type.
        where: ``placement`` and ``sbp`` of a global tensor, with ``requires_grad``; or ``device`` of a local one.

    Raises:
        UsageTypeError: If a bound is no integer, ``size`` no sequence, or no type has the name ``dtype``.
        OneFlowError: If ``low`` is not less than ``high``, only one of ``placement`` and ``sbp`` is given, a gradient
            is asked of a local tensor, or ranks pass different placements.

    >>> randint(10, (2, 3)).shape, randint(10, size=(2, 3)).shape
    (oneflow.Size([2, 3]), oneflow.Size([2, 3]))
    """
    if size is None:
        low, high, size = 0, low, high
    elif high is None:
        low, high = 0, low
    for bound in (low, high):
        if not isinstance(bound, int | np.integer) or isinstance(bound, bool):
            raise UsageTypeError(f"randint: low and high must be integers, got {bound!r}")
    if not isinstance(size, Sequence):
        raise UsageTypeError(f"randint: size must be a tuple of integers, got {size!r}; nearest: (4,)")
    if low >= high:
        raise OneFlowError(f"randint expects low to be less than high, but got low {low} and high {high}")
    shape, draw_dtype, kind = sizes_of(size), np.dtype(np.float64), to_numpy_dtype(dtype)

    def block(index: Any, seed: int) -> np.ndarray:
        return np.asarray(low + np.floor(uniform_block(index, shape, draw_dtype, seed) * (high - low)), kind)

    return _create_random(shape, block, lambda r, s: r.integers(low, high, size=s), kind, **where)


def randperm(
    n: int, *, dtype: Any = np.int64, placement: Placement | None = None, sbp: Any = None
) -> AnyTensor:
    """Create the integers 0 to n - 1 in a random order: one order if global, one per rank if local.

    Args:
        n: the number of integers.
        dtype: element type.
        placement: placement of a global tensor; None for a local one.
        sbp: split, broadcast or partial_sum, per mesh axis; None for a local one.

    Raises:
        InputError: If ``n`` is no integer of at least 0.
        OneFlowError: If only one of placement and sbp is given, or ranks differ.
    """
    seed, kind = seeds.next(), to_numpy_dtype(dtype)
    (count,) = sizes_of(n)
    if _is_global(placement, sbp):
        return tensor(np.random.default_rng(seed).permutation(count).astype(kind), placement, sbp)
    drawn = (np.random.default_rng([seed, rank]).permutation(count) for rank in current_world().ranks)
    return _create_local([numbers.astype(kind) for numbers in drawn], None, False)


def _from_array(data: Any, dtype: Any, where: dict[str, Any]) -> AnyTensor:
    """Create a tensor of an array; ``where`` has the placement and further arguments of `tensor`."""
    return tensor(np.asarray(data, None if dtype is None else to_numpy_dtype(dtype)), **where)


def full(
    size: Any, fill_value: Any, dtype: Any = None, placement: Any = None, sbp: Any = None, **more: Any
) -> AnyTensor:
    """Create a tensor with one value.

    Args:
        size: a size, or a tuple or list of sizes; of each rank's tensor if it is local.
        fill_value: the value.
        dtype: element type; None for float32 if the value is a float, else for that of the value.
        placement: placement of a global tensor; None for a local one.
        sbp: split, broadcast or partial_sum, per mesh axis; None for a local one.
        more: ``device`` and ``requires_grad``, as for :func:`tensor`.

    Raises:
        OneFlowError: As for :func:`tensor`.
    """
    kind = dtype or (np.float32 if isinstance(fill_value, float) else None)
    shape = sizes_of(as_number_tuple(size) if isinstance(size, tuple) else size)
    return _from_array(np.full(shape, fill_value), kind, dict(placement=placement, sbp=sbp, **more))


def _filled_functions(what: str, value: float) -> tuple[Callable[..., AnyTensor], Callable[..., AnyTensor]]:
    """Return two functions that create tensors with one value everywhere.

    Args:
        what: the start of their docstrings, such as ``"Zeros"``.
        value: the value.

    Returns:
        A function of sizes, such as ``zeros``, whose tensors are float32 by default. A function of another tensor, such
        as ``zeros_like``, whose tensors have the other tensor's shape, its placement and sbp or its device, and by
        default its element type.
    """

    def of_size(*size: Any, dtype: Any = np.float32, **where: Any) -> AnyTensor:
        return full(size, value, dtype, **where)

    def like(x: Any, dtype: Any = None) -> AnyTensor:
        where = {"placement": x.placement, "sbp": x.sbp} if x.is_global else {"device": x.device}
        return full(tuple(x.shape), value, dtype or x.dtype, **where)

    of_size.__doc__, like.__doc__ = f"{what}.", f"{what}, like a tensor in shape, type and placement."
    return of_size, like


(zeros, zeros_like), (ones, ones_like) = _filled_functions("Zeros", 0), _filled_functions("Ones", 1)
empty = _filled_functions("Zeros, too: nothing here is left to chance", 0)[0]


def eye(n: int, m: int | None = None, *, dtype: Any = np.float32, **where: Any) -> AnyTensor:
    """Create an n x m matrix with ones on the diagonal and zeros elsewhere.

    Args:
        n: the number of rows.
        m: the number of columns; None for ``n``.
        dtype: element type.
        where: ``placement`` and ``sbp`` of a global tensor, or ``device``; and ``requires_grad``.
    """
    return _from_array(np.eye(n, m), dtype, where)


def linspace(
    start: float, end: float, steps: int = 100, *, dtype: Any = np.float32, **where: Any
) -> AnyTensor:
    """Create ``steps`` equally spaced numbers from ``start`` to ``end``, both included.

    Args:
        start: the first number.
        end: the last number.
        steps: the number of numbers.
        dtype: element type.
        where: ``placement`` and ``sbp`` of a global tensor, or ``device``; and ``requires_grad``.
    """
    return _from_array(np.linspace(start, end, steps), dtype, where)


def arange(*bounds: float, dtype: Any = None, **where: Any) -> AnyTensor:
    """Create numbers from a start to an excluded end by a step: ``arange(2, 8, 2)``.

    Args:
        bounds: the end; or start and end; or start, end and step. The start is 0 and the step 1 by default.
        dtype: element type; None for that of NumPy if all bounds are integers (int64), else for float32.
        where: ``placement`` and ``sbp`` of a global tensor, or ``device``; and ``requires_grad``.
    """
    kind = dtype or (None if all(isinstance(b, int | np.integer) for b in bounds) else np.float32)
    return _from_array(np.arange(*bounds), kind, where)
