"""The words around a Paddle program that have little meaning here, whole arrays, and random numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from spmdsim.core import Layout, Mesh
from spmdsim.dialects.host import HostTensor, host, whole
from spmdsim.dialects.session import current_world
from spmdsim.layout.element_type import has_gradient
from spmdsim.tensor import Tensor

_seed = [0]
_layers: Counter[str] = Counter()
_dynamic = [False]


def enable_static() -> None:
    """The mode that ``paddle.distributed.split`` asks for; here everything is computed at once in either mode."""
    _dynamic[0] = False


def disable_static() -> None:
    """Dynamic mode, in which ``paddle.distributed.split`` refuses to work, as Paddle's does."""
    _dynamic[0] = True


def in_dynamic_mode() -> bool:
    """Whether dynamic mode was asked for."""
    return _dynamic[0]


def set_device(device: str) -> str:
    """Accepted and ignored: every rank computes on its CPU."""
    return device


def get_device() -> str:
    """``cpu``."""
    return "cpu"


def seed(value: int) -> None:
    """Where random numbers begin; layers without a name count from 0 again."""
    _seed[0] = value
    _layers.clear()


def next_seed() -> int:
    """Another seed at every call, the same on every rank."""
    _seed[0] += 1
    return _seed[0]


def next_name(kind: str) -> str:
    """A name for a layer that was given none; it decides the layer's first values."""
    _layers[kind] += 1
    return f"{kind}_{_layers[kind] - 1}"


def _shape(shape: int | Sequence[int]) -> tuple[int, ...]:
    return (shape,) if isinstance(shape, int) else tuple(shape)


def randint(
    low: int = 0, high: int | None = None, shape: Sequence[int] = (1,), dtype: Any = "int64"
) -> HostTensor:
    """Whole numbers in ``[low, high)``, or ``[0, low)``, the same on every rank."""
    bounds = (0, low) if high is None else (low, high)
    return host(np.random.default_rng(next_seed()).integers(*bounds, size=_shape(shape)).astype(dtype))


def _random(about: str, method: str) -> Callable[..., HostTensor]:
    def draw(shape: Sequence[int], dtype: Any = "float32") -> HostTensor:
        return host(getattr(np.random.default_rng(next_seed()), method)(size=_shape(shape)).astype(dtype))

    draw.__doc__ = about
    return draw


randn = _random("Normal numbers, the same on every rank.", "normal")
rand = _random("Numbers uniform in [0, 1), the same on every rank.", "random")


def to_tensor(data: Any, dtype: Any = None, place: Any = None, stop_gradient: bool = True) -> Any:
    """Data as a whole array on every rank; a leaf that gathers a gradient without ``stop_gradient``."""
    array = host(data, dtype)
    return array if stop_gradient else everywhere(array, requires_grad=True)


def full(shape: Sequence[int], fill_value: Any, dtype: Any = "float32") -> HostTensor:
    """One value everywhere."""
    return host(np.full(_shape(shape), fill_value, dtype))


def ones(shape: Sequence[int], dtype: Any = "float32") -> HostTensor:
    """Ones."""
    return full(shape, 1, dtype)


def zeros(shape: Sequence[int], dtype: Any = "float32") -> HostTensor:
    """Zeros."""
    return full(shape, 0, dtype)


def arange(*bounds: Any, dtype: Any = None) -> HostTensor:
    """Numbers at equal distances."""
    return host(np.arange(*bounds, dtype=dtype))


def everywhere(x: Any, mesh: Mesh | None = None, *, requires_grad: bool = False) -> Tensor:
    """A tensor as it is; an array as one that every rank has whole."""
    if isinstance(x, Tensor):
        return x
    world = current_world()
    array = whole(x, world)
    layout = Layout.replicated(mesh or Mesh((world.size,), ("rank",)), array.ndim)
    return Tensor.from_global(array, layout, world, requires_grad=requires_grad and has_gradient(array.dtype))
