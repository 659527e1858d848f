"""``Parameter`` and ``initializer``: declared without memory, filled where the first operator wants them."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from spmdsim import nn
from spmdsim.core import Layout, Mesh
from spmdsim.dialects.mindspore.gathering import gathered
from spmdsim.dialects.mindspore.printing import type_name
from spmdsim.dialects.mindspore.runtime import Value, held
from spmdsim.dialects.mindspore.settings import parallel
from spmdsim.dialects.missing import each, not_covered
from spmdsim.dialects.session import current_world
from spmdsim.errors import InputError, UsageTypeError, unknown
from spmdsim.layout.element_type import has_gradient
from spmdsim.nn import Parameter as CoreParameter
from spmdsim.nn.module import Initialiser
from spmdsim.tensor import Tensor

_seed = [0, 0]
#: The seed of shuffled rows, in the order in which it was set last.
rows_seed = [0]


def set_seed(seed: int) -> None:
    """The seed of all parameters created afterwards, of dropout, of shuffled rows and of ``numpy.random``.

    Parameters without a name count from 0 again.

    Raises:
        UsageTypeError: (a TypeError) no integer.
        InputError: (a ValueError) a negative one, or one of more than 32 bits.
    """
    checked_seed(seed)
    _seed[:] = [seed, 0]
    rows_seed[0] = seed
    np.random.seed(seed)  # the program's own numbers, as MindSpore does
    Parameter._count = 0


def checked_seed(seed: Any) -> None:
    """Refuse what is no seed."""
    if not isinstance(seed, (int, np.integer)) or isinstance(seed, bool):
        raise UsageTypeError(f"a seed is an integer, not {seed!r}")
    if not 0 <= seed < 2**32:
        raise InputError(f"a seed is in 0..{2**32 - 1}, not {seed}")


def next_seed() -> int:
    """Another seed at every call, the same on every rank."""
    _seed[1] += 1
    return (_seed[0] << 20) + _seed[1]


def Normal(sigma: float = 0.01, mean: float = 0.0) -> Initialiser:
    """Normal numbers of this deviation.

    Raises:
        InputError: another mean than 0.
    """
    if mean:
        raise InputError(f"Normal has mean 0 here, not {mean}; nearest: Parameter(array)")
    return nn.Normal(sigma)


def Uniform(scale: float = 0.07) -> Initialiser:
    """Numbers uniform in ``[-scale, scale)``."""
    return nn.Uniform(scale)


def Constant(value: float) -> Initialiser:
    """One value everywhere."""
    return lambda index, _shape, dtype, _seed: np.full([p.stop - p.start for p in index], value, dtype)


def Zero() -> Initialiser:
    """All zero."""
    return nn.zeros


def One() -> Initialiser:
    """All one."""
    return nn.ones


def _by_fans(bound: Callable[[int, int], float]) -> Initialiser:
    """Uniform numbers by fan-in and fan-out of a weight ``[out, in, ...]`` as MindSpore counts them."""

    def block(index: Any, shape: tuple[int, ...], dtype: np.dtype, seed: int) -> np.ndarray:
        field = math.prod(shape[2:])
        fans = (shape[1] * field, shape[0] * field) if len(shape) > 1 else ((shape or (1,))[0],) * 2
        return nn.Uniform(math.sqrt(bound(*fans)))(index, shape, dtype, seed)

    return block


def XavierUniform() -> Initialiser:
    """Uniform numbers by fan-in and fan-out (Glorot and Bengio, 2010)."""
    return _by_fans(lambda fan_in, fan_out: 6 / (fan_in + fan_out))


def HeUniform() -> Initialiser:
    """Uniform numbers by fan-in (He et al., 2015)."""
    return _by_fans(lambda fan_in, _: 6 / fan_in)


#: Initialisers by MindSpore's names.
INITIALISERS: dict[str, Callable[[], Initialiser]] = {
    "normal": Normal, "zeros": Zero, "ones": One, "zero": Zero, "one": One, "uniform": Uniform,
    "xavier_uniform": XavierUniform, "XavierUniform": XavierUniform, "he_uniform": HeUniform, "HeUniform": HeUniform,
}  # fmt: skip


@dataclass(frozen=True)
class Initializer:
    """What :func:`initializer` returns: values to come."""

    init: Any
    shape: tuple[int, ...]
    dtype: np.dtype

    def init_data(self, *_: Any, **__: Any) -> Any:
        """The values now, a whole array; all of one seed, as an operator's parameter has them."""
        from spmdsim.dialects.mindspore.words import host

        return host(self.init(tuple(slice(0, n) for n in self.shape), self.shape, self.dtype, next_seed()))


def initializer(init: Any, shape: Sequence[int] | int, dtype: Any = np.float32) -> Initializer:
    """Values of a parameter: by name (such as ``"normal"``), a number, an object of this module, or an array.

    Raises:
        InputError: no such initialiser, or an array of another shape.
    """
    sizes = (shape,) if isinstance(shape, int) else tuple(shape)
    source: Any
    if isinstance(init, (int, float)):
        source = Constant(init)
    elif isinstance(init, str) and init in INITIALISERS:
        source = INITIALISERS[init]()
    elif isinstance(init, (np.ndarray, Tensor)):
        source = _values(init, sizes)
    elif callable(init):
        source = init
    else:
        raise unknown(f"no initializer is called {init!r}", str(init), INITIALISERS)
    return Initializer(source, sizes, np.dtype(dtype))


def _values(given: Any, shape: tuple[int, ...]) -> Any:
    array = given.full() if isinstance(given, Tensor) else np.asarray(given)
    if array.shape != shape:
        raise InputError(f"a parameter of shape {shape} was given values of shape {array.shape}")
    return lambda index, *_: array[index]


#: What to use instead of a word of parameters that resembles none here.
NEAREST = each({
    "set_dtype": "Parameter(initializer(init, shape, dtype))",
    "set_param_ps param_info comm_fusion sliced unique cache_enable": "parallel_optimizer",
    "update": "set_data",
    "add_pipeline_stage": "none: a network runs as one stage",
})  # fmt: skip


class Parameter(CoreParameter):
    """``Parameter(initializer("normal", [784, 512], ms.float32))``, or an array.

    Its layout is that of the first operator that uses it, as in MindSpore, where a parameter is laid out by
    its operator's strategy.
    """

    _count = 0

    def __init__(
        self, default_input: Any, name: str | None = None, requires_grad: bool = True, layerwise_parallel: bool = False,
        parallel_optimizer: bool = True,
    ) -> None:  # fmt: skip
        if not isinstance(default_input, Initializer):
            array = default_input.full() if isinstance(default_input, Tensor) else np.asarray(default_input)
            if array.dtype == np.float64 and not isinstance(default_input, (np.ndarray, Tensor)):
                array = array.astype(np.float32)
            default_input = initializer(array, array.shape, array.dtype)
        self._placed, self.parallel_optimizer = False, parallel_optimizer
        self.layerwise_parallel = layerwise_parallel
        nowhere = Layout.replicated(Mesh((1,), ("one",)), len(default_input.shape))
        super().__init__(default_input.shape, nowhere, default_input.init, default_input.dtype)
        Parameter._count += 1
        self.used = nowhere
        self.name = name or f"Parameter{Parameter._count - 1}"
        self.requires_grad = requires_grad
        self._seed = _seed[0]

    def place(self, layout: Layout) -> Tensor:
        """The value; filled in this layout if it has none yet. Where it is kept in smaller pieces they are gathered."""
        settings = parallel()
        if settings is not None:
            settings.parameters[self.name] = self
        if not self._placed:
            self.used = self.layout = layout
            if settings is not None and self.name in settings.slices:
                self.used = self.layout = settings.slices[self.name]
                self.layout.check_shape(self.shape)
            if settings is not None and settings.sharing is not None and self.parallel_optimizer:
                self.layout = settings.sharing.stored(self.used, self.shape, self.dtype.itemsize)
            self._placed = True
            self._level = 2 if settings is None or settings.sharing is None else settings.sharing.level
            self.materialise(current_world(), self._seed)
            self.tensor = held(self.value, Value)
        self.value.requires_grad = self.requires_grad and has_gradient(self.value.dtype)
        return self.value if self.layout is self.used else gathered(self.value, self.used, self._level)

    def assign(self, tensor: Tensor) -> None:
        """Take new values, in the parameter's layout; no gradient is kept."""
        super().assign(tensor)
        self.tensor = held(self.value, Value)

    def as_operand(self, like: Tensor) -> Tensor:
        """The value beside another operand; where nothing placed it yet, a copy on each of its ranks."""
        return self.place(Layout.replicated(like.layout.mesh, len(self.shape)))

    def everywhere(self) -> Tensor:
        """The value; where nothing placed it yet, a copy on every rank."""
        return self.place(Layout.replicated(Mesh((current_world().size,), ("rank",)), len(self.shape)))

    def asnumpy(self) -> np.ndarray:
        """The whole parameter, on every process."""
        return self.everywhere().full()

    def set_data(self, data: Any) -> Parameter:
        """Take new values of the same shape, where the old ones are.

        Raises:
            InputError: another shape.
        """
        values = _values(data, self.shape)
        if self._placed:
            fresh = Tensor.from_global(
                lambda index: np.asarray(values(index), self.dtype),
                self.layout,
                current_world(),
                shape=self.shape,
                dtype=self.dtype,
            )
            self.assign(fresh)
        else:
            self.initialiser = values
        return self

    @property
    def value(self) -> Any:
        """The value, which may be called for its own sake: ``parameter.value()``."""
        return super().value if self._placed else self.everywhere()

    ndim = property(lambda self: len(self.shape), doc="Number of dims.")
    size = property(lambda self: math.prod(self.shape), doc="Number of elements.")
    data = property(lambda self: self, doc="The parameter itself.")
    is_init = property(lambda self: self._placed, doc="Whether it has values yet.")

    def init_data(self, *_: Any, **__: Any) -> Parameter:
        """The parameter itself: values are filled in where the first operator wants them."""
        return self

    def clone(self, init: Any = "same") -> Parameter:
        """Another parameter with the same values, or with those of an initialiser."""
        values = (
            self.asnumpy()
            if isinstance(init, str) and init == "same"
            else initializer(init, self.shape, self.dtype)
        )
        return Parameter(values, self.name, self.requires_grad)

    #: Arrays leave symbols with a parameter on the right to it.
    __array_ufunc__ = None

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, key: Any) -> Tensor:
        return self.everywhere()[key]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or "shape" not in self.__dict__:
            raise AttributeError(f"a parameter has no attribute {name!r}")
        if name in NEAREST:
            raise not_covered("spmdsim.dialects.mindspore.Parameter", name, (), NEAREST)
        return getattr(self.everywhere(), name)

    def __repr__(self) -> str:
        return f"Parameter (name={self.name}, shape={self.shape}, dtype={type_name(self.dtype)}, requires_grad={self.requires_grad})"


def _symbol(name: str) -> Any:
    def apply(self: Parameter, *others: Any) -> Any:
        return getattr(self.everywhere(), name)(*others)

    return apply


for _name in (
    "add",
    "radd",
    "sub",
    "rsub",
    "mul",
    "rmul",
    "truediv",
    "rtruediv",
    "pow",
    "rpow",
    "neg",
    "matmul",
    "rmatmul",
):
    setattr(Parameter, f"__{_name}__", _symbol(f"__{_name}__"))


class ParameterTuple(tuple[Any, ...]):
    """Parameters, in order."""

    __slots__ = ()


@contextlib.contextmanager
def no_init_parameters() -> Iterator[None]:
    """Parameters created inside take no memory. Here none ever does before its first use."""
    yield
