"""Tensors from data, from one value and from random numbers: ``flow.tensor``, ``flow.ones``, ``flow.randn``, ...

With a placement and an sbp the tensor is global and the same for every placement; without, every rank has its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from spmdsim.dialects.host import element_type
from spmdsim.dialects.oneflow.agreement import check_placement, check_same, facts_of
from spmdsim.dialects.oneflow.devices import device as Device
from spmdsim.dialects.oneflow.local import GlobalTensor, LocalTensor, no_word
from spmdsim.dialects.oneflow.placements import placement as Placement
from spmdsim.dialects.oneflow.sbp import OneFlowError
from spmdsim.dialects.oneflow.tensors import check_sizes
from spmdsim.dialects.oneflow.tensors import layout as layout_of
from spmdsim.dialects.session import current_world
from spmdsim.errors import UsageTypeError
from spmdsim.tensor import Tensor as CoreTensor
from spmdsim.tensor.random import normal_block, uniform_block

AnyTensor = LocalTensor | GlobalTensor

_calls = [0]


def manual_seed(seed: int) -> None:
    """Where random numbers begin, and the first values of parameters."""
    from spmdsim.dialects.oneflow.nn.module import seed_parameters

    _calls[0] = seed
    seed_parameters(seed)


def next_seed() -> int:
    """Another seed at every call, the same on every rank."""
    _calls[0] += 1
    return _calls[0]


def _is_global(placement: Placement | None, sbp: Any) -> bool:
    if (placement is None) != (sbp is None):
        raise OneFlowError("a global tensor needs both placement and sbp")
    return placement is not None


def _global(
    source: Any, shape: tuple[int, ...], placement: Any, sbp: Any, kind: np.dtype | None = None
) -> GlobalTensor:
    """A global tensor of an array, or of a type from a function, if all ranks mean the same one."""
    world, layout = current_world(), layout_of(placement, sbp, len(shape))
    data = source if kind is None else None
    kind = source.dtype if kind is None else kind
    check_placement(placement, world)
    check_sizes(placement, sbp, shape)
    check_same(world, [facts_of(placement, sbp, data)] * len(world.ranks))
    return GlobalTensor(CoreTensor.from_global(source, layout, world, shape=shape, dtype=kind), placement)


def _spread(
    source: Any, placement: Placement | None, sbp: Any, device: Any = None, requires_grad: bool = False
) -> AnyTensor:
    """The same array on every rank: global if there are a placement and an sbp, else local, on a device.

    Raises:
        RuntimeError: only one of the two, both and a device, or a local tensor that should have a gradient.
    """
    if _is_global(placement, sbp):
        if device is not None:
            raise OneFlowError(
                f"a global tensor has a placement and an sbp, a local one a device; got {device} too"
            )
        spread = _global(source, source.shape, placement, sbp)
        return spread.requires_grad_() if requires_grad else spread
    world = current_world()
    return _local([source.copy() for _ in world.ranks], device, requires_grad)


def _local(arrays: list[np.ndarray], device: Any, requires_grad: bool) -> LocalTensor:
    if requires_grad:
        raise OneFlowError(
            "local tensors have no gradients here; nearest: x.to_global(placement, sbp).requires_grad_()"
        )
    return LocalTensor(arrays, current_world(), Device(device or "cpu").type)


def tensor(
    data: Any,
    placement: Placement | None = None,
    sbp: Any = None,
    dtype: Any = None,
    *,
    device: Any = None,
    requires_grad: bool = False,
) -> AnyTensor:
    """A tensor of the same data on every rank; global if a placement and an sbp are given.

    Raises:
        RuntimeError: only one of the two; ranks whose data, placement or sbp differ; a dim too short to be split.
        TypeError: data that are no numbers.
    """
    if isinstance(data, LocalTensor):
        data = data.numpy()
    elif isinstance(data, GlobalTensor):
        raise OneFlowError("the data of a tensor are numbers, but got a global tensor; nearest: x.to_global")
    try:
        array = np.asarray(data, None if dtype is None else element_type(dtype))
    except ValueError:
        array = np.asarray(None)
    if array.dtype.kind not in "biufc":
        raise UsageTypeError(f"the data of a tensor are numbers in lists of one length, not {data!r:.60}")
    if dtype is None and array.dtype == np.float64 and not isinstance(data, np.ndarray | np.generic):
        array = array.astype(np.float32)
    return _spread(array, placement, sbp, device, requires_grad)


as_tensor = tensor


def from_numpy(array: np.ndarray) -> LocalTensor:
    """A local tensor of an array, whose elements it copies (OneFlow's shares them).

    Raises:
        TypeError: something else than an array.
    """
    if not isinstance(array, np.ndarray):
        raise UsageTypeError(f"expected np.ndarray, but got {type(array).__name__}")
    copy = tensor(array)
    assert isinstance(copy, LocalTensor)
    return copy


class _EitherKind(type):
    def __getattr__(cls, name: str) -> Any:
        """What global tensors have, as functions."""
        from spmdsim.dialects.oneflow.operators import METHODS

        if name in METHODS or hasattr(GlobalTensor, name):
            return METHODS.get(name) or getattr(GlobalTensor, name)
        raise no_word(name)

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, LocalTensor | GlobalTensor) or hasattr(value, "to_global")


class Tensor(metaclass=_EitherKind):
    """Data as float32, or zeros of the sizes given; every tensor is an instance."""

    def __getattr__(self, name: str) -> Any:
        raise no_word(name)

    def __new__(  # type: ignore[misc]
        cls, *data: Any, placement: Placement | None = None, sbp: Any = None, device: Any = None
    ) -> AnyTensor:
        """Make one."""
        if data and all(isinstance(n, int) for n in data):
            return tensor(np.zeros(data, np.float32), placement, sbp, device=device)
        return tensor(data[0] if data else (), placement, sbp, np.float32, device=device)


def is_tensor(value: object) -> bool:
    """Whether it is a tensor, local or global."""
    return isinstance(value, Tensor)


def is_floating_point(x: Any) -> bool:
    """Whether a tensor's elements are floats."""
    return bool(x.is_floating_point())


def numel(x: Any) -> int:
    """Number of elements of a tensor."""
    return int(x.numel())


def _shape(size: tuple[Any, ...]) -> tuple[int, ...]:
    """``f(2, 3)`` and ``f((2, 3))`` alike."""
    sizes = tuple(size[0]) if len(size) == 1 and not isinstance(size[0], int | np.integer) else tuple(size)
    if not all(isinstance(n, int | np.integer) and n >= 0 for n in sizes):
        raise UsageTypeError(f"sizes are whole numbers from 0 on, but got {sizes}")
    return tuple(int(n) for n in sizes)


Draw = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]


def _drawn(
    shape: tuple[int, ...],
    block: Callable[[Any, int], np.ndarray],
    draw: Draw,
    kind: Any,
    placement: Placement | None = None,
    sbp: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> AnyTensor:
    """Random numbers: keyed by the global index if global, different on every rank if local."""
    seed, world = next_seed(), current_world()
    if _is_global(placement, sbp):
        numbers = _global(lambda index: block(index, seed), shape, placement, sbp, np.dtype(kind))
        return numbers.requires_grad_() if requires_grad else numbers
    arrays = [draw(np.random.default_rng([seed, rank]), shape).astype(np.dtype(kind)) for rank in world.ranks]
    return _local(arrays, device, requires_grad)


def _float(kind: Any) -> np.dtype:
    if np.dtype(kind).kind != "f":
        raise OneFlowError(
            f"random numbers of this kind are floats, but dtype is oneflow.{np.dtype(kind).name}"
        )
    chosen: np.dtype = np.dtype(kind)
    return chosen


def _random(about: str, block: Callable[..., np.ndarray], draw: Draw) -> Callable[..., AnyTensor]:
    def made(*size: Any, dtype: Any = np.float32, **where: Any) -> AnyTensor:
        shape, kind = _shape(size), _float(dtype)
        return _drawn(shape, lambda index, seed: block(index, shape, kind, seed), draw, kind, **where)

    made.__doc__ = f"{about}; ``where``: placement and sbp, or a device, and requires_grad."
    return made


randn = _random("Normal numbers", normal_block, lambda generator, shape: generator.normal(size=shape))
rand = _random("Numbers uniform in [0, 1)", uniform_block, lambda generator, shape: generator.random(shape))


def randint(
    low: int, high: Any = None, size: Any = None, *, dtype: Any = np.int64, **where: Any
) -> AnyTensor:
    """Whole numbers from ``low`` (or 0) up to, but without, ``high``: ``randint(10, (2, 3))``, ``randint(5, 10, (2,))``.

    Raises:
        TypeError: bounds that are no whole numbers, or no size.
        RuntimeError: nothing between the bounds.
    """
    if size is None:
        low, high, size = 0, low, high
    for bound in (low, high):
        if not isinstance(bound, int | np.integer) or isinstance(bound, bool):
            raise UsageTypeError(f"randint(low, high, size) has whole numbers as bounds, but got {bound!r}")
    if not isinstance(size, Sequence):
        raise UsageTypeError(f"randint(low, high, size) has a tuple of sizes, but got {size!r}")
    if low >= high:
        raise OneFlowError(f"randint expects low to be less than high, but got low {low} and high {high}")
    shape, wide = _shape((size,)), np.dtype(np.float64)

    def block(index: Any, seed: int) -> np.ndarray:
        numbers = low + np.floor(uniform_block(index, shape, wide, seed) * (high - low))
        return np.asarray(numbers, np.dtype(dtype))

    return _drawn(shape, block, lambda r, s: r.integers(low, high, size=s), dtype, **where)


def randperm(
    n: int, *, dtype: Any = np.int64, placement: Placement | None = None, sbp: Any = None
) -> AnyTensor:
    """The numbers below ``n`` in a random order."""
    seed, world, kind = next_seed(), current_world(), element_type(dtype)
    (count,) = _shape((n,))
    if _is_global(placement, sbp):
        return _spread(np.random.default_rng(seed).permutation(count).astype(kind), placement, sbp)
    arrays = [np.random.default_rng([seed, rank]).permutation(count).astype(kind) for rank in world.ranks]
    return _local(arrays, None, False)


def _plain(data: Any, dtype: Any, where: dict[str, Any]) -> AnyTensor:
    return tensor(np.asarray(data, None if dtype is None else element_type(dtype)), **where)


def full(
    size: Any, fill_value: Any, dtype: Any = None, placement: Any = None, sbp: Any = None, **more: Any
) -> AnyTensor:
    """One value everywhere."""
    kind = dtype or (np.float32 if isinstance(fill_value, float) else None)
    return _plain(np.full(_shape((size,)), fill_value), kind, dict(placement=placement, sbp=sbp, **more))


def zeros(*size: Any, dtype: Any = np.float32, **where: Any) -> AnyTensor:
    """Zeros."""
    return _plain(np.zeros(_shape(size)), dtype, where)


def empty(*size: Any, dtype: Any = np.float32, **where: Any) -> AnyTensor:
    """Zeros, too: nothing here is left to chance."""
    return zeros(*size, dtype=dtype, **where)


def ones(*size: Any, dtype: Any = np.float32, **where: Any) -> AnyTensor:
    """Ones."""
    return _plain(np.ones(_shape(size)), dtype, where)


def _like(x: Any, fill_value: float, dtype: Any) -> AnyTensor:
    where = {"placement": x.placement, "sbp": x.sbp} if x.is_global else {"device": x.device}
    return full(tuple(x.shape), fill_value, dtype or x.dtype, **where)


def zeros_like(x: Any, dtype: Any = None) -> AnyTensor:
    """Zeros of a tensor's shape, where it is."""
    return _like(x, 0, dtype)


def ones_like(x: Any, dtype: Any = None) -> AnyTensor:
    """Ones of a tensor's shape, where it is."""
    return _like(x, 1, dtype)


def eye(n: int, m: int | None = None, *, dtype: Any = np.float32, **where: Any) -> AnyTensor:
    """Ones on the diagonal."""
    return _plain(np.eye(n, m), dtype, where)


def linspace(
    start: float, end: float, steps: int = 100, *, dtype: Any = np.float32, **where: Any
) -> AnyTensor:
    """Numbers at equal distances, both ends included."""
    return _plain(np.linspace(start, end, steps), dtype, where)


def arange(*bounds: float, dtype: Any = None, **where: Any) -> AnyTensor:
    """Numbers from a start (0) to an end, which is left out, the same on every rank."""
    kind = dtype or (None if all(isinstance(b, int | np.integer) for b in bounds) else np.float32)
    return _plain(np.arange(*bounds), kind, where)
