"""Create tensors that are whole and equal on every rank: constants and random numbers; and query devices."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import Any

import numpy as np

from spmdsim.dialects.host import sizes_of, to_host
from spmdsim.dialects.missing import refuse
from spmdsim.dialects.paddle.static import call_recorded, seeds
from spmdsim.dialects.paddle.tensors import Tensor, as_replicated, check_has_gradient
from spmdsim.wrong_calls import explained


def set_default_dtype(d: Any) -> None:
    """Check that the type is float32, the only default type here.

    Raises InputError if it is another one.
    """
    is_other_type = np.dtype(d) != np.float32
    refuse({f"the default type must be float32 here, got {d}; nearest: dtype= of each call": is_other_type})


def to_tensor(data: Any, dtype: Any = None, place: Any = None, stop_gradient: bool = True) -> Tensor:
    """Create a whole tensor, equal on every rank.

    Args:
        data: numbers, nested lists or an array.
        dtype: element type; by default that of the data, float32 for Python floats.
        place: ignored.
        stop_gradient: False to collect a gradient.

    Raises:
        UsageTypeError: If the data are no numbers, or a gradient of integers is asked for.
    """
    array = to_host(data, dtype)
    check_has_gradient(array.dtype, stop_gradient)
    tensor: Tensor = as_replicated(array, requires_grad=not stop_gradient)
    return tensor


def _generator() -> np.random.Generator:
    """Return a random generator with the next seed, equal on every rank."""
    return np.random.default_rng(seeds.next())


#: Functions that return numbers, by name; int64 and float32 by default. In a program, each run draws new random numbers.
_NUMBERS: dict[str, Callable[..., np.ndarray]] = {
    "arange": lambda start=0, end=None, step=1, dtype=None, name=None: np.arange(
        *((0, start, step) if end is None else (start, end, step)), dtype=dtype),
    **dict.fromkeys(("empty", "zeros"), lambda shape, dtype=None, name=None: np.zeros(sizes_of(shape))),
    "eye": lambda num_rows, num_columns=None, dtype=None, name=None: np.eye(num_rows, num_columns),
    "full": lambda shape, fill_value, dtype=None, name=None: np.full(sizes_of(shape), fill_value, dtype or "float32"),
    "linspace": lambda start, stop, num, dtype=None, name=None: np.linspace(start, stop, num, dtype=dtype or "float32"),
    "normal": lambda mean=0.0, std=1.0, shape=None, name=None: _generator().normal(mean, std, sizes_of(shape or (1,))),
    "ones": lambda shape, dtype=None, name=None: np.ones(sizes_of(shape)),
    "rand": lambda shape, dtype="float32", name=None: _generator().random(sizes_of(shape)),
    "randint": lambda low=0, high=None, shape=(1,), dtype="int64", name=None: _generator().integers(
        0 if high is None else low, low if high is None else high, size=sizes_of(shape)),
    "randn": lambda shape, dtype="float32", name=None: _generator().normal(size=sizes_of(shape)),
    "randperm": lambda n, dtype="int64", name=None: _generator().permutation(n),
    "uniform": lambda shape, dtype=None, min=-1.0, max=1.0, seed=0, name=None: _generator().uniform(min, max, sizes_of(shape)),
}  # fmt: skip


def _make_function(kind: str, numbers: Callable[..., np.ndarray]) -> Callable[..., Tensor]:
    """Return a function that creates a replicated tensor from the array of ``numbers``.

    * Type: the argument ``dtype`` of the call; without it, integers keep their type, and other numbers become float32.
    * In a static program the call is recorded, and each run of the program calls ``numbers`` again.

    Args:
        kind: name of the returned function.
        numbers: a function that returns the array; the returned function takes its parameters.
    """

    @wraps(numbers)
    def call(*args: Any, **options: Any) -> Any:
        """Create the tensor; in a program, record the call, so that each run creates it again."""
        arguments = signature(numbers).bind(*args, **options).arguments

        def create() -> Any:
            array = numbers(**arguments)
            default_type = array.dtype if array.dtype.kind == "i" else "float32"
            return as_replicated(array.astype(arguments.get("dtype") or default_type))

        create.__name__ = kind
        return call_recorded(create)

    return explained(call, kind)


globals().update({name: _make_function(name, numbers) for name, numbers in _NUMBERS.items()})


def set_device(device: str) -> str:
    """Return ``device`` and ignore it: every rank computes on its CPU."""
    return device


def get_device() -> str:
    """Return ``"cpu"``."""
    return "cpu"


def is_compiled_with_cuda() -> bool:
    """Return False."""
    return False


def get_default_dtype() -> str:
    """Return ``"float32"``."""
    return "float32"


def is_tensor(x: Any) -> bool:
    """Return True for a tensor."""
    return isinstance(x, Tensor)
