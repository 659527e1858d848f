"""``Parameter`` and ``initializer``: declared without memory, filled in the layout of the first operator.

With ``hsdp``, parameters are stored in smaller shards than their operators need. They are gathered for the operators,
and their gradients are reduced to the stored layout.
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
from spmdsim.dialects.mindspore.tensors import (
    GlobalTensor,
    ParameterValue,
    format_type,
    to_host_array,
    with_methods,
)
from spmdsim.dialects.missing import expand_words
from spmdsim.dialects.session import current_world
from spmdsim.dialects.table import add_tensor_operators
from spmdsim.errors import InputError, UsageTypeError, unknown
from spmdsim.layout.element_type import has_gradient
from spmdsim.nn import Parameter as CoreParameter
from spmdsim.nn.module import Initialiser, Values
from spmdsim.wrong_calls import explained

#: The seed of `set_seed`, and the number of seeds that `next_seed` has drawn since.
_seed = [0, 0]
#: The seed of shuffled rows.
rows_seed = [0]


def over_ranks(ndim: int, split: bool = False) -> Layout:
    """Return the layout over all ranks in one axis: replicated, or with dim 0 split."""
    mesh = Mesh((current_world().size,), ("rank",))
    return Layout(mesh, ["rank" if split and dim == 0 else None for dim in range(ndim)])


def set_seed(seed: int) -> None:
    """Set the seed of later parameters, dropout, shuffled rows and ``numpy.random``.

    Parameters without a name are numbered from 0 again.

    Raises:
        UsageTypeError: If ``seed`` is no integer.
        InputError: If it does not fit in 32 bits.
    """
    set_rows_seed(seed)
    _seed[:] = [seed, 0]
    np.random.seed(seed)  # the program's own numbers, as MindSpore does
    Parameter._count = 0


def set_rows_seed(seed: int) -> None:
    """Set the seed that shuffles the rows of datasets (``mindspore.dataset.config.set_seed``).

    Other seeds stay. ``mindspore.set_seed`` sets this seed, too.

    Raises:
        UsageTypeError: If ``seed`` is no integer, or is a bool.
        InputError: If it is not in 0..2**32-1.
    """
    if not isinstance(seed, (int, np.integer)) or isinstance(seed, bool):
        raise UsageTypeError(f"seed must be an integer, got {seed!r}")
    if not 0 <= seed < 2**32:
        raise InputError(f"seed must be in 0..{2**32 - 1}, got {seed}")
    rows_seed[0] = seed


def get_rows_seed() -> int:
    """Return the seed of shuffled rows, by default 0: every run has equal rows."""
    return rows_seed[0]


def next_seed() -> int:
    """Return a new seed at every call, equal on every rank."""
    _seed[1] += 1
    return (_seed[0] << 20) + _seed[1]


def _normal(sigma: float = 0.01, mean: float = 0.0) -> Initialiser:
    """Return an initialiser of normal numbers. Raises InputError if ``mean`` is not 0."""
    if mean:
        raise InputError(f"Normal: mean must be 0 here, got {mean!r}; nearest: Parameter(array)")
    return nn.Normal(sigma)


def _by_fans(bound: Callable[[int, int], float]) -> Initialiser:
    """Return an initialiser of uniform numbers in [-limit, limit), by a weight's fans.

    A weight ``[out, in, ...]`` has fan-in ``in`` and fan-out ``out``, each times the sizes of all other dims. Both fans
    of a vector are its size. Fans are at least 1.

    Args:
        bound: function of fan-in and fan-out that returns the square of the limit.
    """

    def block(index: Any, shape: tuple[int, ...], dtype: np.dtype, seed: int) -> np.ndarray:
        if len(shape) > 1:
            field = math.prod(shape[2:])
            fan_in, fan_out = shape[1] * field, shape[0] * field
        else:
            fan_in = fan_out = math.prod(shape)
        limit = math.sqrt(bound(max(1, fan_in), max(1, fan_out)))
        return nn.Uniform(limit)(index, shape, dtype, seed)

    return block


def _he_uniform(negative_slope: float = 0, mode: str = "fan_in") -> Initialiser:
    """Return He's uniform initialiser; ``mode`` is ``"fan_in"`` or ``"fan_out"``, else raise InputError."""
    modes = ["fan_in", "fan_out"]
    if mode not in modes:
        raise unknown(f"HeUniform has no mode {mode!r}", str(mode), modes)
    return _by_fans(lambda *fans: 6 / (1 + negative_slope**2) / fans[modes.index(mode)])


def _name_function(name: str, about: str, function: Any) -> Any:
    """Return a function with this name and docstring, and errors for wrong arguments."""
    function.__name__ = function.__qualname__ = name
    function.__doc__ = about
    return explained(function, name)


#: Initialisers by MindSpore's names: docstring and constructor.
OBJECTS: dict[str, Callable[..., Initialiser]] = {name: _name_function(name, *row) for name, row in {
    "Constant": ("Return an initialiser with one value everywhere.", lambda value: lambda index, _shape, dtype, _seed: (
        np.full([p.stop - p.start for p in index], value, dtype))),
    "HeUniform": ("Return an initialiser of uniform numbers for layers before a (leaky) ReLU (He et al., 2015).", _he_uniform),
    "Normal": ("Return an initialiser of normal numbers. InputError: the mean is not 0.", _normal),
    "One": ("Return an initialiser with ones.", lambda: nn.ones),
    "Uniform": ("Return an initialiser of numbers uniform in ``[-scale, scale)``.", lambda scale=0.07: nn.Uniform(scale)),
    "XavierUniform": ("Return an initialiser of uniform numbers by fan-in and fan-out (Glorot and Bengio, 2010).", lambda gain=1: (
        _by_fans(lambda fan_in, fan_out: gain**2 * 6 / (fan_in + fan_out)))),
    "Zero": ("Return an initialiser with zeros.", lambda: nn.zeros),
}.items()}  # fmt: skip
#: Initialisers by their names in a text.
INITIALISERS = {word: OBJECTS[name] for word, name in expand_words({
    "normal": "Normal", "zeros zero": "Zero", "ones one": "One", "uniform": "Uniform",
    "xavier_uniform XavierUniform": "XavierUniform", "he_uniform HeUniform": "HeUniform",
}).items()}  # fmt: skip


@dataclass(frozen=True)
class Initializer:
    """Result of :func:`initializer`: an initial value function, a shape and a type."""

    init: Any
    shape: tuple[int, ...]
    dtype: np.dtype

    def init_data(self, *_: Any, **__: Any) -> Any:
        """Return the values as a whole array, from one seed; arguments are ignored."""
        return to_host_array(
            self.init(tuple(slice(0, n) for n in self.shape), self.shape, self.dtype, next_seed())
        )


def initializer(init: Any, shape: Sequence[int] | int, dtype: Any = np.float32) -> Initializer:
    """Return the initial values of a parameter; they are computed when a parameter is filled.

    Args:
        init: source of the values. A name such as ``"normal"`` is an initialiser with its defaults; a number is the
            value of all elements; an array or a tensor (which is gathered) has the values themselves. Any function is
            taken as an initialiser, such as ``Normal(0.02)``.
        shape: global shape; an int is one dim.
        dtype: element type or its name.

    Raises:
        InputError: If the name is unknown, ``init`` is of another kind (such as ``np.float32(1)``), or the array has
            another shape.
    """
    sizes = (shape,) if isinstance(shape, int) else tuple(shape)
    source: Any = init
    if isinstance(init, (int, float)):
        source = OBJECTS["Constant"](init)
    elif isinstance(init, str) and init in INITIALISERS:
        source = INITIALISERS[init]()
    elif isinstance(init, (np.ndarray, CoreTensor)):
        source = _as_initialiser(init, sizes)
    elif not callable(init):
        raise unknown(f"no initializer is called {init!r}", str(init), INITIALISERS)
    return Initializer(source, sizes, np.dtype(dtype))


def _as_initialiser(values: Any, shape: tuple[int, ...]) -> Any:
    """Return an array as an initialiser. Raises InputError if it has another shape."""
    array = values.full() if isinstance(values, CoreTensor) else np.asarray(values)
    if array.shape != shape:
        raise InputError(f"values of a parameter must have its shape {shape}, got {array.shape}")
    return Values(array)


class Parameter(CoreParameter):
    """``Parameter(initializer("normal", [784, 512], ms.float32))``, or of an array.

    The first operator that uses it decides its layout. In MindSpore, too, the strategy of its operator lays it out.

    Attributes:
        used: layout that the operators need.
        layout: layout in which it is stored; differs from ``used`` with ``hsdp``.
    """

    _count = 0

    def __init__(
        self, default_input: Any, name: str | None = None, requires_grad: bool = True, layerwise_parallel: bool = False,
        parallel_optimizer: bool = True,
    ) -> None:  # fmt: skip
        if not isinstance(default_input, Initializer):
            array = to_host_array(default_input)
            default_input = initializer(array, array.shape, array.dtype)
        self.parallel_optimizer, self.layerwise_parallel = parallel_optimizer, layerwise_parallel
        self.used = Layout.replicated(Mesh((1,), ("one",)), len(default_input.shape))
        super().__init__(default_input.shape, self.used, default_input.init, default_input.dtype)
        Parameter._count += 1
        self.name = name or f"Parameter{Parameter._count - 1}"
        self.requires_grad = requires_grad
        self._seed = _seed[0]

    def place(self, layout: Layout) -> CoreTensor:
        """Return the parameter's value in the layout that its operators use.

        The first call fills the parameter, and its ``layout`` stays in use: later calls ignore ``layout``. With
        ``hsdp`` a rank may store only a smaller shard of its slice (see `Sharing.storage_layout`). Then the slice is
        gathered, and all ranks must call it.

        Raises:
            LayoutError: If ``layout`` does not fit the parameter's shape.
            InputError: If the ``shard_size`` of ``hsdp`` does not divide the number of ranks with equal slices.
        """
        settings = parallel()
        if not self.is_init:
            self.used = self.layout = layout
            self.layout.check_shape(self.shape)
            self._sharing = None if settings is None else settings.sharing
            if self._sharing is not None and self.parallel_optimizer:
                self.layout = self._sharing.storage_layout(self.used, self.shape, self.dtype.itemsize)
            self.materialise(current_world(), self._seed)
            self.tensor = with_methods(self.value, ParameterValue)
        value: CoreTensor = self.value
        value.requires_grad = self.requires_grad and has_gradient(value.dtype)
        if self._sharing is None or self.layout is self.used:
            return value
        return _gather_value(value, self.used, self._sharing.level)

    def assign(self, tensor: CoreTensor) -> None:
        """Set new values, in the parameter's layout; the gradient is dropped."""
        super().assign(tensor)
        self.tensor = with_methods(self.value, ParameterValue)

    def as_operand(self, like: CoreTensor) -> CoreTensor:
        """Return the value; if it has no layout yet, replicated on the mesh of ``like``."""
        return self.place(Layout.replicated(like.layout.mesh, len(self.shape)))

    def everywhere(self) -> CoreTensor:
        """Return the value; if it has no layout yet, replicated on every rank."""
        return self.place(over_ranks(len(self.shape)))

    def asnumpy(self) -> np.ndarray:
        """Return the whole parameter as an array, on every process."""
        return self.everywhere().full()

    def set_data(self, data: Any) -> Parameter:
        """Set new values of equal shape; return the parameter itself.

        The layout and the element type stay. A parameter that no operator has used yet takes them as its initial
        values.

        Args:
            data: an array that is equal on all ranks, which is not checked; or a tensor, which is gathered: all ranks
                must call it.

        Raises:
            InputError: If the values have another shape.
        """
        values = _as_initialiser(data, self.shape)
        if not self.is_init:
            self.initialiser = values
            return self
        array = values.array.astype(self.dtype, copy=False)
        self.assign(CoreTensor.from_global(array, self.layout, current_world()))
        return self

    @property
    def value(self) -> Any:
        """Value of the parameter; programs may also call it: ``parameter.value()``."""
        return super().value if self.is_init else self.everywhere()

    _anywhere = property(everywhere)
    ndim = property(lambda self: len(self.shape), doc="Number of dims.")
    size = property(lambda self: math.prod(self.shape), doc="Number of elements.")
    data = property(lambda self: self, doc="The parameter itself.")
    is_init = property(lambda self: self.tensor is not None, doc="True if it has values.")

    def init_data(self, *_: Any, **__: Any) -> Parameter:
        """Return the parameter itself: the first operator fills it."""
        return self

    def clone(self, init: Any = "same") -> Parameter:
        """Return another parameter with equal values, or with those of the initialiser ``init``."""
        is_copy = isinstance(init, str) and init == "same"
        values = self.asnumpy() if is_copy else initializer(init, self.shape, self.dtype)
        return Parameter(values, self.name, self.requires_grad)

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or "shape" not in self.__dict__:
            raise AttributeError(f"a parameter has no attribute {name!r}")
        return getattr(self.everywhere(), name)

    def __repr__(self) -> str:
        return f"Parameter (name={self.name}, shape={self.shape}, dtype={format_type(self.dtype)}, requires_grad={self.requires_grad})"


add_tensor_operators(Parameter, "_anywhere")


class ParameterTuple(tuple[Any, ...]):
    """Parameters, in order."""

    __slots__ = ()


#: Parameters created inside take no memory; here, no parameter does before its first use.
no_init_parameters = contextlib.nullcontext


# -- parameters in smaller shards ----------------------------------------------------------------------------


class RegatheredShards(Sequence[Any]):
    """Shards of a parameter that was gathered for an operator.

    `drop` releases them after the operator. The next access, in the backward pass, gathers them again.
    """

    def __init__(self, source: CoreTensor, gathered: CoreTensor) -> None:
        self._source, self._layout = source, gathered.layout
        self._pieces: Sequence[Any] | None = gathered.stored_shards

    def __len__(self) -> int:
        return len(self._source.stored_shards)

    def __getitem__(self, index: Any) -> Any:
        if self._pieces is None:
            self._pieces = self._source.to(self._layout).stored_shards
        return self._pieces[index]

    def drop(self) -> None:
        """Release the shards until the next access."""
        self._pieces = None


def _gather_value(value: CoreTensor, layout: Layout, level: int) -> CoreTensor:
    """Return a stored parameter value in the layout of its operators; all ranks must call it.

    Args:
        value: the value in smaller shards.
        layout: the layout that the operators need.
        level: the level of `context.Sharing`, 1 to 3. Level 1 first reduces the gradient in ``layout``, if the value
            requires a gradient. Levels 2 and 3 reduce it by reduce_scatter to the stored layout. Level 3 also releases
            the gathered shards after the operator, and gathers them again for the backward pass.
    """
    # The gradient of ``to`` is a reduce_scatter, as levels 2 and 3 need it.
    moved = with_methods(value.to(layout))
    if level == 1 and moved.requires_grad:
        result = GlobalTensor.from_tensor(moved, requires_grad=True)
        result.node = GradientMove(moved, layout)
        return result
    if level == 3:
        moved.stored_shards = RegatheredShards(value.detach(), moved)  # type: ignore[assignment]
    return moved


def finish_call(operands: Sequence[CoreTensor], results: Any) -> Any:
    """Return the result, or the tuple of results, of an operator as MindSpore's tensors.

    The shards of operands that were gathered for the operator are released.
    """
    for operand in operands:
        if isinstance(operand.stored_shards, RegatheredShards):
            operand.stored_shards.drop()
    return tuple(map(with_methods, results)) if isinstance(results, tuple) else with_methods(results)


# -- mindspore.Tensor ------------------------------------------------------------------------------------------


class _Kind(type):
    """Metaclass that makes host arrays and global tensors instances of `Tensor`."""

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, (HostTensor, CoreTensor))


class Tensor(metaclass=_Kind):
    """``Tensor(array, ms.float32)``: a whole array, equal on every rank, that operators split.

    ``init`` with ``shape`` takes values of an initialiser.
    """

    def __new__(  # type: ignore[misc]
        cls, input_data: Any = None, dtype: Any = None, shape: Any = None, init: Any = None
    ) -> HostTensor:
        """Return the array with MindSpore's methods."""
        if init is not None and not isinstance(input_data, Initializer):
            input_data = initializer(init, shape, np.float32 if dtype is None else dtype)
        if not isinstance(input_data, Initializer):
            return to_host_array(input_data, dtype)
        values: HostTensor = input_data.init_data()
        return values

    @staticmethod
    def from_numpy(array: np.ndarray) -> HostTensor:
        """Return a NumPy array with MindSpore's methods, which shares the array's memory.

        Raises:
            UsageTypeError: If ``array`` is no NumPy array.
        """
        if not isinstance(array, np.ndarray):
            raise UsageTypeError(
                f"from_numpy: array must be an array of NumPy, got a {type(array).__name__}; nearest: Tensor(x)"
            )
        return to_host_array(array)


from_numpy = Tensor.from_numpy


def tensor(
    input_data: Any = None, dtype: Any = None, shape: Any = None, init: Any = None, const_arg: bool = False
) -> Any:
    """Return a tensor like :class:`Tensor`; ``const_arg`` is ignored: programs are not compiled."""
    return Tensor(input_data, dtype, shape, init)
