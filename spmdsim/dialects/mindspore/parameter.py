"""``Parameter`` and ``initializer``: declared without memory, filled where the first operator wants them.

Parameters that are kept in smaller pieces than their operators want (``hsdp``) come together for them, and their gradients
go back.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from spmdsim import nn
from spmdsim.arrays import Tensor as CoreTensor
from spmdsim.core import Layout, Mesh
from spmdsim.dialects.host import HostTensor
from spmdsim.dialects.layouts import GradientMove
from spmdsim.dialects.mindspore.context import parallel
from spmdsim.dialects.mindspore.tensors import GlobalTensor, ParameterValue, dressed, host, type_name
from spmdsim.dialects.missing import expand_words
from spmdsim.dialects.session import current_world
from spmdsim.dialects.table import as_its_tensor
from spmdsim.errors import InputError, UsageTypeError, unknown
from spmdsim.layout.element_type import has_gradient
from spmdsim.nn import Parameter as CoreParameter
from spmdsim.nn.module import Initialiser, Values
from spmdsim.wrong_calls import explained

_seed = [0, 0]
#: The seed of shuffled rows, in the order in which it was set last.
rows_seed = [0]


def over_ranks(ndim: int, split: bool = False) -> Layout:
    """The layout of a tensor of which every rank has a copy; or its rows, if it is split."""
    mesh = Mesh((current_world().size,), ("rank",))
    return Layout(mesh, ["rank" if split and dim == 0 else None for dim in range(ndim)])


def set_seed(seed: int) -> None:
    """The seed of all parameters created afterwards, of dropout, of shuffled rows and of ``numpy.random``.

    Parameters without a name count from 0 again. No integer is a TypeError, one that does not fit 32 bits a ValueError.
    """
    set_rows_seed(seed)
    _seed[:] = [seed, 0]
    np.random.seed(seed)  # the program's own numbers, as MindSpore does
    Parameter._count = 0


def set_rows_seed(seed: int) -> None:
    """``mindspore.dataset.config.set_seed``: that of shuffled rows alone, which ``mindspore.set_seed`` sets, too."""
    if not isinstance(seed, (int, np.integer)) or isinstance(seed, bool):
        raise UsageTypeError(f"a seed is an integer, not {seed!r}")
    if not 0 <= seed < 2**32:
        raise InputError(f"a seed is in 0..{2**32 - 1}, not {seed}")
    rows_seed[0] = seed


def get_rows_seed() -> int:
    """The seed of shuffled rows: 0 until one is set, so that every run has the same rows."""
    return rows_seed[0]


def next_seed() -> int:
    """Another seed at every call, the same on every rank."""
    _seed[1] += 1
    return (_seed[0] << 20) + _seed[1]


def _normal(sigma: float = 0.01, mean: float = 0.0) -> Initialiser:
    if mean:
        raise InputError(f"Normal has mean 0 here, not {mean}; nearest: Parameter(array)")
    return nn.Normal(sigma)


def _by_fans(bound: Callable[[int, int], float]) -> Initialiser:
    """Uniform numbers by fan-in and fan-out of a weight ``[out, in, ...]`` as MindSpore counts them."""

    def block(index: Any, shape: tuple[int, ...], dtype: np.dtype, seed: int) -> np.ndarray:
        field = math.prod(shape[2:])
        fans = (shape[1] * field, shape[0] * field) if len(shape) > 1 else ((shape or (1,))[0],) * 2
        return nn.Uniform(math.sqrt(bound(*[max(1, fan) for fan in fans])))(index, shape, dtype, seed)

    return block


def _he_uniform(negative_slope: float = 0, mode: str = "fan_in") -> Initialiser:
    modes = ["fan_in", "fan_out"]
    if mode not in modes:
        raise unknown(f"HeUniform has no mode {mode!r}", str(mode), modes)
    return _by_fans(lambda *fans: 6 / (1 + negative_slope**2) / fans[modes.index(mode)])


def _documented(name: str, about: str, function: Any) -> Any:
    function.__name__ = function.__qualname__ = name
    function.__doc__ = about
    return explained(function, name)


#: Initialisers by MindSpore's names: what they give, and what makes them.
OBJECTS: dict[str, Callable[..., Initialiser]] = {name: _documented(name, *row) for name, row in {
    "Constant": ("One value everywhere.", lambda value: lambda index, _shape, dtype, _seed: (
        np.full([p.stop - p.start for p in index], value, dtype))),
    "HeUniform": ("Uniform numbers by fan-in or fan-out, for layers followed by a (leaky) ReLU (He et al., 2015).", _he_uniform),
    "Normal": ("Normal numbers of this deviation; an InputError for another mean than 0.", _normal),
    "One": ("All one.", lambda: nn.ones),
    "Uniform": ("Numbers uniform in ``[-scale, scale)``.", lambda scale=0.07: nn.Uniform(scale)),
    "XavierUniform": ("Uniform numbers by fan-in and fan-out (Glorot and Bengio, 2010).", lambda gain=1: (
        _by_fans(lambda fan_in, fan_out: gain**2 * 6 / (fan_in + fan_out)))),
    "Zero": ("All zero.", lambda: nn.zeros),
}.items()}  # fmt: skip
#: Initialisers by their names in a text.
INITIALISERS = {word: OBJECTS[name] for word, name in expand_words({
    "normal": "Normal", "zeros zero": "Zero", "ones one": "One", "uniform": "Uniform",
    "xavier_uniform XavierUniform": "XavierUniform", "he_uniform HeUniform": "HeUniform",
}).items()}  # fmt: skip


@dataclass(frozen=True)
class Initializer:
    """What :func:`initializer` returns: values to come."""

    init: Any
    shape: tuple[int, ...]
    dtype: np.dtype

    def init_data(self, *_: Any, **__: Any) -> Any:
        """The values now, a whole array; all of one seed, as an operator's parameter has them."""
        return host(self.init(tuple(slice(0, n) for n in self.shape), self.shape, self.dtype, next_seed()))


def initializer(init: Any, shape: Sequence[int] | int, dtype: Any = np.float32) -> Initializer:
    """Values of a parameter: by name (such as ``"normal"``), a number, an object of this module, or an array.

    No such initialiser, or an array of another shape, is an InputError.
    """
    sizes = (shape,) if isinstance(shape, int) else tuple(shape)
    source: Any = init
    if isinstance(init, (int, float)):
        source = OBJECTS["Constant"](init)
    elif isinstance(init, str) and init in INITIALISERS:
        source = INITIALISERS[init]()
    elif isinstance(init, (np.ndarray, CoreTensor)):
        source = _values(init, sizes)
    elif not callable(init):
        raise unknown(f"no initializer is called {init!r}", str(init), INITIALISERS)
    return Initializer(source, sizes, np.dtype(dtype))


def _values(values: Any, shape: tuple[int, ...]) -> Any:
    array = values.full() if isinstance(values, CoreTensor) else np.asarray(values)
    if array.shape != shape:
        raise InputError(f"a parameter of shape {shape} was given values of shape {array.shape}")
    return Values(array)


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
            array = host(default_input)
            default_input = initializer(array, array.shape, array.dtype)
        self.parallel_optimizer, self.layerwise_parallel = parallel_optimizer, layerwise_parallel
        self.used = Layout.replicated(Mesh((1,), ("one",)), len(default_input.shape))
        super().__init__(default_input.shape, self.used, default_input.init, default_input.dtype)
        Parameter._count += 1
        self.name = name or f"Parameter{Parameter._count - 1}"
        self.requires_grad = requires_grad
        self._seed = _seed[0]

    def place(self, layout: Layout) -> CoreTensor:
        """The value; filled in this layout if it has none yet. Where it is kept in smaller pieces they are gathered."""
        settings = parallel()
        if not self.is_init:
            self.used = self.layout = layout
            self.layout.check_shape(self.shape)
            self._sharing = None if settings is None else settings.sharing
            if self._sharing is not None and self.parallel_optimizer:
                self.layout = self._sharing.stored(self.used, self.shape, self.dtype.itemsize)
            self.materialise(current_world(), self._seed)
            self.tensor = dressed(self.value, ParameterValue)
        value: CoreTensor = self.value
        value.requires_grad = self.requires_grad and has_gradient(value.dtype)
        if self._sharing is None or self.layout is self.used:
            return value
        return _gathered(value, self.used, self._sharing.level)

    def assign(self, tensor: CoreTensor) -> None:
        """Take new values, in the parameter's layout; no gradient is kept."""
        super().assign(tensor)
        self.tensor = dressed(self.value, ParameterValue)

    def as_operand(self, like: CoreTensor) -> CoreTensor:
        """The value beside another operand; where nothing placed it yet, a copy on each of its ranks."""
        return self.place(Layout.replicated(like.layout.mesh, len(self.shape)))

    def everywhere(self) -> CoreTensor:
        """The value; where nothing placed it yet, a copy on every rank."""
        return self.place(over_ranks(len(self.shape)))

    def asnumpy(self) -> np.ndarray:
        """The whole parameter, on every process."""
        return self.everywhere().full()

    def set_data(self, data: Any) -> Parameter:
        """Take new values of the same shape, where the old ones are; an InputError for another shape."""
        values = _values(data, self.shape)
        if not self.is_init:
            self.initialiser = values
            return self
        array = values.array.astype(self.dtype, copy=False)
        self.assign(CoreTensor.from_global(array, self.layout, current_world()))
        return self

    @property
    def value(self) -> Any:
        """The value, which may be called for its own sake: ``parameter.value()``."""
        return super().value if self.is_init else self.everywhere()

    _anywhere = property(everywhere)
    ndim = property(lambda self: len(self.shape), doc="Number of dims.")
    size = property(lambda self: math.prod(self.shape), doc="Number of elements.")
    data = property(lambda self: self, doc="The parameter itself.")
    is_init = property(lambda self: self.tensor is not None, doc="Whether it has values yet.")

    def init_data(self, *_: Any, **__: Any) -> Parameter:
        """The parameter itself: values are filled in where the first operator wants them."""
        return self

    def clone(self, init: Any = "same") -> Parameter:
        """Another parameter with the same values, or with those of an initialiser."""
        same = isinstance(init, str) and init == "same"
        values = self.asnumpy() if same else initializer(init, self.shape, self.dtype)
        return Parameter(values, self.name, self.requires_grad)

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or "shape" not in self.__dict__:
            raise AttributeError(f"a parameter has no attribute {name!r}")
        return getattr(self.everywhere(), name)

    def __repr__(self) -> str:
        return f"Parameter (name={self.name}, shape={self.shape}, dtype={type_name(self.dtype)}, requires_grad={self.requires_grad})"


as_its_tensor(Parameter, "_anywhere")


class ParameterTuple(tuple[Any, ...]):
    """Parameters, in order."""

    __slots__ = ()


#: Parameters created inside take no memory. Here none ever does before its first use.
no_init_parameters = contextlib.nullcontext


# -- parameters in smaller pieces -----------------------------------------------------------------------------


class Again(Sequence[Any]):
    """A rank's pieces of what was gathered for an operator: dropped when that has run, gathered again for the gradients."""

    def __init__(self, source: CoreTensor, whole: CoreTensor) -> None:
        self._source, self._layout = source, whole.layout
        self._pieces: Sequence[Any] | None = whole.held

    def __len__(self) -> int:
        return len(self._source.held)

    def __getitem__(self, index: Any) -> Any:
        if self._pieces is None:
            self._pieces = self._source.to(self._layout).held
        return self._pieces[index]

    def drop(self) -> None:
        """Until somebody looks at them again."""
        self._pieces = None


def _gathered(value: CoreTensor, layout: Layout, level: int) -> CoreTensor:
    """A parameter's value where its operator wants it; what the levels mean: :class:`context.Sharing`."""
    moved = dressed(value.to(layout))
    if level == 1 and moved.requires_grad:
        whole = GlobalTensor(moved.world, moved.meta, moved.held, True, moved.name, moved.origin)
        whole.node = GradientMove(moved, layout)
        return whole
    if level == 3:
        moved.held = Again(value.detach(), moved)  # type: ignore[assignment]
    return moved


def finished(operands: Sequence[CoreTensor], results: Any) -> Any:
    """The results of an operator, counted; what was gathered for it alone is dropped."""
    for operand in operands:
        if isinstance(operand.held, Again):
            operand.held.drop()
    return tuple(map(dressed, results)) if isinstance(results, tuple) else dressed(results)


# -- mindspore.Tensor ------------------------------------------------------------------------------------------


class _Kind(type):
    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, (HostTensor, CoreTensor))


class Tensor(metaclass=_Kind):
    """``Tensor(array, ms.float32)``: the same whole array on every rank, of which operators keep their piece.

    ``init`` with ``shape`` gives values of an initialiser.
    """

    def __new__(  # type: ignore[misc]
        cls, input_data: Any = None, dtype: Any = None, shape: Any = None, init: Any = None
    ) -> HostTensor:
        """The array with MindSpore's words."""
        if init is not None and not isinstance(input_data, Initializer):
            input_data = initializer(init, shape, np.float32 if dtype is None else dtype)
        if not isinstance(input_data, Initializer):
            return host(input_data, dtype)
        values: HostTensor = input_data.init_data()
        return values

    @staticmethod
    def from_numpy(array: np.ndarray) -> HostTensor:
        """An array of NumPy's."""
        if not isinstance(array, np.ndarray):
            raise UsageTypeError(f"from_numpy takes an array of NumPy's, not a {type(array).__name__}")
        return host(array)


from_numpy = Tensor.from_numpy


def tensor(
    input_data: Any = None, dtype: Any = None, shape: Any = None, init: Any = None, const_arg: bool = False
) -> Any:
    """As :class:`Tensor`; ``const_arg`` is accepted and ignored: programs are not compiled."""
    return Tensor(input_data, dtype, shape, init)
