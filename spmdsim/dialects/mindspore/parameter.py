"""``Parameter`` and ``initializer``: declared without memory, filled where the first operator wants them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from spmdsim.dialects.session import current_world
from spmdsim.errors import InputError
from spmdsim.layout import Layout, Mesh
from spmdsim.nn import Normal, Uniform, ones, zeros
from spmdsim.nn import Parameter as CoreParameter
from spmdsim.tensor import Tensor

_seed = [0]


def set_seed(seed: int) -> None:
    """The seed of all parameters created afterwards."""
    _seed[0] = int(seed)


#: Initialisers by MindSpore's names; "normal" has a deviation of 0.01 there.
INITIALISERS: dict[str, Any] = {
    "normal": Normal(0.01), "zeros": zeros, "ones": ones, "uniform": Uniform(0.07),
}  # fmt: skip


@dataclass(frozen=True)
class Initializer:
    """What :func:`initializer` returns: values to come."""

    init: Any
    shape: tuple[int, ...]
    dtype: np.dtype


def initializer(init: Any, shape: Sequence[int], dtype: Any = np.float32) -> Initializer:
    """Values of a parameter by name (``"normal"``, ``"zeros"``, ``"ones"``, ``"uniform"``) or a number.

    Raises:
        InputError: no such initialiser.
    """
    if isinstance(init, (int, float)):
        value = init
        found: Any = lambda index, size, kind, seed: np.full([p.stop - p.start for p in index], value, kind)  # noqa: E731
    elif init in INITIALISERS:
        found = INITIALISERS[init]
    else:
        raise InputError(f"no initializer is called {init!r}; there are {', '.join(INITIALISERS)}")
    return Initializer(found, tuple(shape), np.dtype(dtype))


class Parameter(CoreParameter):
    """``Parameter(initializer("normal", [784, 512], ms.float32))``, or an array.

    Its layout is that of the first operator that uses it, as in MindSpore, where a parameter is laid out by
    its operator's strategy.
    """

    _count = 0

    def __init__(self, default_input: Any, name: str | None = None, requires_grad: bool = True) -> None:
        if isinstance(default_input, Tensor):
            default_input = default_input.full()
        if not isinstance(default_input, Initializer):
            array = np.asarray(default_input)
            default_input = Initializer(lambda index, *_: array[index], array.shape, array.dtype)
        self._placed = False
        nowhere = Layout.replicated(Mesh((1,), ("one",)), len(default_input.shape))
        super().__init__(default_input.shape, nowhere, default_input.init, default_input.dtype)
        Parameter._count += 1
        self.name = name or f"Parameter{Parameter._count - 1}"
        self.requires_grad = requires_grad
        self._seed = _seed[0]

    def place(self, layout: Layout) -> Tensor:
        """The value; filled in this layout if it has none yet."""
        if not self._placed:
            self.layout, self._placed = layout, True
            self.materialise(current_world(), self._seed)
            self.value.requires_grad = self.requires_grad
        return self.value

    def __repr__(self) -> str:
        return f"Parameter (name={self.name}, shape={self.shape}, dtype={self.dtype}, requires_grad={self.requires_grad})"


@contextlib.contextmanager
def no_init_parameters() -> Iterator[None]:
    """Parameters created inside take no memory. Here none ever does before its first use."""
    yield
