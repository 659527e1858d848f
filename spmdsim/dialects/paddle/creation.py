"""Whole arrays as tensors: constants and random numbers, the same on every rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from spmdsim.dialects.host import host
from spmdsim.dialects.paddle.static import next_seed, recorded
from spmdsim.dialects.paddle.tensors import Tensor, check_has_gradient, everywhere
from spmdsim.errors import InputError


def set_device(device: str) -> str:
    """Accepted and ignored: every rank computes on its CPU."""
    return device


def get_device() -> str:
    """``cpu``."""
    return "cpu"


def is_compiled_with_cuda() -> bool:
    """No."""
    return False


def get_default_dtype() -> str:
    """``float32``."""
    return "float32"


def set_default_dtype(d: Any) -> None:
    """Only what it is may be asked for: float32."""
    if np.dtype(d) != np.float32:
        raise InputError(f"the default type is float32 here, not {d}; nearest: dtype= of each call")


def _shape(shape: int | Sequence[int]) -> tuple[int, ...]:
    sizes = (shape,) if isinstance(shape, int) else tuple(shape)
    if not all(isinstance(size, (int, np.integer, Tensor)) and size >= 0 for size in sizes):
        raise InputError(f"the sizes of a tensor are whole numbers from 0 on, not {shape!r}")
    return tuple(int(size) for size in sizes)


def _made(kind: str, numbers: Callable[[], Any], dtype: Any = None) -> Tensor:
    """A recorded call that gives numbers, float32 unless said: in a program, new ones in each run."""

    def call() -> Any:
        return everywhere(np.asarray(numbers()).astype(dtype or "float32"))

    call.__name__ = kind
    tensor: Tensor = recorded(call)
    return tensor


def _generator() -> np.random.Generator:
    return np.random.default_rng(next_seed())


def randint(
    low: int = 0, high: int | None = None, shape: Sequence[int] = (1,), dtype: Any = "int64", name: Any = None
) -> Tensor:
    """Whole numbers in ``[low, high)``, or ``[0, low)``, the same on every rank."""
    bounds = (0, low) if high is None else (low, high)
    return _made("randint", lambda: _generator().integers(*bounds, size=_shape(shape)), dtype or "int64")


def randn(shape: Sequence[int], dtype: Any = "float32", name: Any = None) -> Tensor:
    """Normal numbers, the same on every rank."""
    return _made("randn", lambda: _generator().normal(size=_shape(shape)), dtype)


def rand(shape: Sequence[int], dtype: Any = "float32", name: Any = None) -> Tensor:
    """Numbers uniform in [0, 1), the same on every rank."""
    return _made("rand", lambda: _generator().random(_shape(shape)), dtype)


def to_tensor(data: Any, dtype: Any = None, place: Any = None, stop_gradient: bool = True) -> Tensor:
    """Data as a whole array on every rank; a leaf that gathers a gradient without ``stop_gradient``.

    Raises:
        UsageTypeError: no numbers; whole numbers, and a gradient of them.
    """
    array = host(data, dtype)
    check_has_gradient(array.dtype, stop_gradient)
    tensor: Tensor = everywhere(array, requires_grad=not stop_gradient)
    return tensor


def full(shape: Sequence[int], fill_value: Any, dtype: Any = None, name: Any = None) -> Tensor:
    """One value everywhere."""
    return _made("full", lambda: np.full(_shape(shape), fill_value, dtype or "float32"), dtype)


def ones(shape: Sequence[int], dtype: Any = None, name: Any = None) -> Tensor:
    """Ones."""
    return full(shape, 1, dtype)


def zeros(shape: Sequence[int], dtype: Any = None, name: Any = None) -> Tensor:
    """Zeros."""
    return full(shape, 0, dtype)


empty = zeros


def arange(start: Any = 0, end: Any = None, step: Any = 1, dtype: Any = None, name: Any = None) -> Tensor:
    """Numbers at equal distances; whole ones are int64, others float32, unless a type is given."""
    bounds = (0, start, step) if end is None else (start, end, step)
    kind = dtype or ("int64" if all(isinstance(n, (int, np.integer)) for n in bounds) else "float32")
    return _made("arange", lambda: np.arange(*bounds, dtype=kind), kind)


def eye(num_rows: int, num_columns: int | None = None, dtype: Any = None, name: Any = None) -> Tensor:
    """Ones on the diagonal, zeros elsewhere."""
    return _made("eye", lambda: np.eye(num_rows, num_columns), dtype)


def linspace(start: float, stop: float, num: int, dtype: Any = None, name: Any = None) -> Tensor:
    """So many numbers at equal distances, both ends included."""
    return _made("linspace", lambda: np.linspace(start, stop, num, dtype=dtype or "float32"), dtype)


def uniform(
    shape: Sequence[int], dtype: Any = None, min: float = -1.0, max: float = 1.0, seed: int = 0
) -> Tensor:
    """Numbers uniform in ``[min, max)``, the same on every rank."""
    return _made("uniform", lambda: _generator().uniform(min, max, _shape(shape)), dtype)


def normal(
    mean: float = 0.0, std: float = 1.0, shape: Sequence[int] | None = None, name: Any = None
) -> Tensor:
    """Normally distributed numbers, the same on every rank."""
    return _made("normal", lambda: _generator().normal(mean, std, _shape(shape or (1,))))


def randperm(n: int, dtype: Any = "int64", name: Any = None) -> Tensor:
    """The numbers below ``n`` in a random order, the same on every rank."""
    return _made("randperm", lambda: _generator().permutation(n), dtype)


def is_tensor(x: Any) -> bool:
    """Whether something is a tensor."""
    return isinstance(x, Tensor)
