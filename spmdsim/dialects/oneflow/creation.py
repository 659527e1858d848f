"""Tensors from data, from one value and from random numbers: ``flow.tensor``, ``flow.ones``, ``flow.randn``, ...

With a placement and an sbp the tensor is global and the same for every placement; without, every rank has its own. Both,
a ``device`` and ``requires_grad`` are what ``**where`` stands for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from spmdsim.arrays import Tensor as CoreTensor
from spmdsim.arrays.random import normal_block, uniform_block
from spmdsim.dialects.functions import numbers
from spmdsim.dialects.host import element_type, host, sizes_of
from spmdsim.dialects.missing import refuse
from spmdsim.dialects.oneflow import placements
from spmdsim.dialects.oneflow.placements import device as Device
from spmdsim.dialects.oneflow.placements import placement as Placement
from spmdsim.dialects.oneflow.sbp import OneFlowError
from spmdsim.dialects.oneflow.tensors import GlobalTensor, LocalTensor, check_agreed, method
from spmdsim.dialects.session import Seeds, current_world
from spmdsim.errors import UsageTypeError

AnyTensor = LocalTensor | GlobalTensor
#: Gives an array of a shape from random numbers.
Draw = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]

seeds = Seeds()


def manual_seed(seed: int) -> None:
    """Where random numbers begin, and the first values of parameters."""
    seeds.begin(seed)


def _is_global(placement: Placement | None, sbp: Any) -> bool:
    if (placement is None) != (sbp is None):
        raise OneFlowError("a global tensor needs both placement and sbp")
    return placement is not None


def _global(
    source: Any, shape: tuple[int, ...], kind: np.dtype, placement: Any, sbp: Any, requires_grad: bool
) -> GlobalTensor:
    """A global tensor of an array or of a function that gives its blocks, if all ranks mean the same one."""
    world = current_world()
    check_agreed(placement, sbp, world, None if callable(source) else source)
    layout = placements.check_sizes(placement, sbp, shape)
    value = CoreTensor.from_global(source, layout, world, shape=shape, dtype=kind)
    return GlobalTensor(value, placement).requires_grad_(requires_grad)


def _local(arrays: list[np.ndarray], device: Any, requires_grad: bool) -> LocalTensor:
    tensor = LocalTensor(arrays, current_world(), Device(device or "cpu").type)
    return tensor.requires_grad_(requires_grad)


def tensor(
    data: Any, placement: Placement | None = None, sbp: Any = None, dtype: Any = None, *, device: Any = None,
    requires_grad: bool = False,
) -> AnyTensor:  # fmt: skip
    """A tensor of the same data on every rank; global if a placement and an sbp are given.

    Raises:
        RuntimeError: only one of the two, both and a device, or a local tensor that should have a gradient; ranks whose
            data, placement or sbp differ; a dim too short to be split.
        TypeError: data that are no numbers.
    """
    if isinstance(data, GlobalTensor):
        raise OneFlowError("the data of a tensor are numbers, but got a global tensor; nearest: x.to_global")
    array = host(data.numpy() if isinstance(data, LocalTensor) else data, dtype).numpy()
    if not _is_global(placement, sbp):
        return _local([array.copy() for _ in current_world().ranks], device, requires_grad)
    text = f"a global tensor has a placement and an sbp, a local one a device; got {device} too"
    refuse({text: device is not None}, OneFlowError)
    return _global(array, array.shape, array.dtype, placement, sbp, requires_grad)


as_tensor = tensor


def from_numpy(array: np.ndarray) -> AnyTensor:
    """A local tensor of an array, whose elements it copies (OneFlow's shares them)."""
    if not isinstance(array, np.ndarray):
        raise UsageTypeError(f"expected np.ndarray, but got {type(array).__name__}")
    return tensor(array)


class _EitherKind(type):
    def __getattr__(cls, name: str) -> Any:
        """What global tensors have, as functions."""
        return getattr(GlobalTensor, name, None) or method(name)

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, LocalTensor | GlobalTensor) or hasattr(value, "to_global")


class Tensor(metaclass=_EitherKind):
    """Data as float32, or zeros of the sizes given; every tensor is an instance."""

    def __getattr__(self, name: str) -> Any:
        return method(name)

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


def _drawn(
    shape: tuple[int, ...], block: Callable[[Any, int], np.ndarray], draw: Draw, kind: np.dtype,
    placement: Placement | None = None, sbp: Any = None, device: Any = None, requires_grad: bool = False,
) -> AnyTensor:  # fmt: skip
    """Random numbers: keyed by the global index if global, different on every rank if local."""
    seed = seeds.next()
    if _is_global(placement, sbp):
        return _global(lambda index: block(index, seed), shape, kind, placement, sbp, requires_grad)
    ranks = current_world().ranks
    arrays = [draw(np.random.default_rng([seed, rank]), shape).astype(kind) for rank in ranks]
    return _local(arrays, device, requires_grad)


def _random(about: str, block: Callable[..., np.ndarray], draw: Draw) -> Callable[..., AnyTensor]:
    def create(*size: Any, dtype: Any = np.float32, **where: Any) -> AnyTensor:
        shape, kind = sizes_of(numbers(size)), element_type(dtype)
        if kind.kind != "f":
            raise OneFlowError(f"random numbers of this kind are floats, but dtype is oneflow.{kind.name}")
        return _drawn(shape, lambda index, seed: block(index, shape, kind, seed), draw, kind, **where)

    create.__doc__ = about
    return create


randn = _random("Normal numbers.", normal_block, lambda generator, shape: generator.normal(size=shape))
rand = _random("Numbers in [0, 1).", uniform_block, lambda generator, shape: generator.random(shape))


def randint(
    low: int, high: Any = None, size: Any = None, *, dtype: Any = np.int64, **where: Any
) -> AnyTensor:
    """Whole numbers from ``low`` (or 0) up to, but without, ``high``: ``randint(10, (2, 3))``, ``randint(5, 10, (2,))``."""
    if size is None:
        low, high, size = 0, low, high
    for bound in (low, high):
        if not isinstance(bound, int | np.integer) or isinstance(bound, bool):
            raise UsageTypeError(f"randint(low, high, size) has whole numbers as bounds, but got {bound!r}")
    if not isinstance(size, Sequence):
        raise UsageTypeError(f"randint(low, high, size) has a tuple of sizes, but got {size!r}")
    if low >= high:
        raise OneFlowError(f"randint expects low to be less than high, but got low {low} and high {high}")
    shape, wide, kind = sizes_of(size), np.dtype(np.float64), element_type(dtype)

    def block(index: Any, seed: int) -> np.ndarray:
        return np.asarray(low + np.floor(uniform_block(index, shape, wide, seed) * (high - low)), kind)

    return _drawn(shape, block, lambda r, s: r.integers(low, high, size=s), kind, **where)


def randperm(
    n: int, *, dtype: Any = np.int64, placement: Placement | None = None, sbp: Any = None
) -> AnyTensor:
    """The numbers below ``n`` in a random order."""
    seed, kind = seeds.next(), element_type(dtype)
    (count,) = sizes_of(n)
    if _is_global(placement, sbp):
        return tensor(np.random.default_rng(seed).permutation(count).astype(kind), placement, sbp)
    drawn = (np.random.default_rng([seed, rank]).permutation(count) for rank in current_world().ranks)
    return _local([numbers.astype(kind) for numbers in drawn], None, False)


def _plain(data: Any, dtype: Any, where: dict[str, Any]) -> AnyTensor:
    return tensor(np.asarray(data, None if dtype is None else element_type(dtype)), **where)


def full(
    size: Any, fill_value: Any, dtype: Any = None, placement: Any = None, sbp: Any = None, **more: Any
) -> AnyTensor:
    """One value everywhere."""
    kind = dtype or (np.float32 if isinstance(fill_value, float) else None)
    shape = sizes_of(numbers(size) if isinstance(size, tuple) else size)
    return _plain(np.full(shape, fill_value), kind, dict(placement=placement, sbp=sbp, **more))


def _filled(what: str, value: float) -> tuple[Callable[..., AnyTensor], Callable[..., AnyTensor]]:
    def of_size(*size: Any, dtype: Any = np.float32, **where: Any) -> AnyTensor:
        return full(size, value, dtype, **where)

    def like(x: Any, dtype: Any = None) -> AnyTensor:
        where = {"placement": x.placement, "sbp": x.sbp} if x.is_global else {"device": x.device}
        return full(tuple(x.shape), value, dtype or x.dtype, **where)

    of_size.__doc__, like.__doc__ = f"{what}.", f"{what} of a tensor's shape, where it is."
    return of_size, like


(zeros, zeros_like), (ones, ones_like) = _filled("Zeros", 0), _filled("Ones", 1)
empty = _filled("Zeros, too: nothing here is left to chance", 0)[0]


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
