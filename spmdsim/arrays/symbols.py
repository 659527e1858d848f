"""A tensor's symbols: what ``+`` and its kin stand for, in one table, with their reflected and in-place forms."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, TypeAlias, TypeGuard, cast

import numpy as np

from spmdsim.arrays import views
from spmdsim.arrays.in_place import become, before
from spmdsim.arrays.values import ReadableTensor
from spmdsim.core.tensor import PlainTensor
from spmdsim.errors import nearest
from spmdsim.wrong_calls import explained

if TYPE_CHECKING:
    from spmdsim.arrays import ops as ops
    from spmdsim.arrays.operands import Operand
    from spmdsim.arrays.program_tensor import Tensor


class _Operators:
    """The room of operators, which is right of this one: loaded when the first of them is used."""

    def __getattr__(self, name: str) -> Any:
        function = getattr(import_module("spmdsim.arrays.ops"), name)
        setattr(self, name, function)
        return function


if not TYPE_CHECKING:
    ops = _Operators()


Binary: TypeAlias = "Callable[[Any, Operand], Tensor]"


def _binary(name: str) -> Binary:
    def symbol(self: Tensor, other: Operand) -> Tensor:
        result: Tensor = getattr(ops, name)(self, other)
        return result

    return symbol


def _reflected(name: str) -> Binary:
    def symbol(self: Tensor, other: Operand) -> Tensor:
        result: Tensor = getattr(ops, name)(other, self)
        return result

    return symbol


def _unary(name: str) -> Callable[[Any], Tensor]:
    def symbol(self: Tensor) -> Tensor:
        result: Tensor = getattr(ops, name)(self)
        return result

    return symbol


def _in_place(name: str) -> Binary:
    def symbol(self: Tensor, other: Operand) -> Tensor:
        result: Tensor = become(self, getattr(ops, name)(before(self), other), name)
        return result

    return symbol


def _symbols(name: str) -> tuple[Binary, Binary, Binary]:
    """A symbol, its reflected and its in-place form."""
    return _binary(name), _reflected(name), _in_place(name)


def _comparable(other: object) -> TypeGuard[Operand]:
    """Whether ``==`` compares elements with it; what is no operand is not equal."""
    types = (PlainTensor, np.ndarray, np.generic, bool, int, float, complex, list, tuple)
    return isinstance(other, types) or hasattr(other, "as_operand")


class _Method:
    """An operator as a method, by the name and with the arguments that numpy's arrays have.

    Tensors of other systems' programs, whose words may mean something else, do without.
    """

    def __init__(self, function: str) -> None:
        self.function = function

    def __get__(self, tensor: Any, owner: Any) -> Any:
        if not owner.__module__.startswith("spmdsim.arrays"):
            raise AttributeError(self.function)
        function = self._load()
        return function if tensor is None else partial(function, tensor)

    def _load(self) -> Callable[..., Any]:
        function: Callable[..., Any] = getattr(ops, self.function)
        return function


@cache
def _numpy_function(name: str) -> Callable[..., Any]:
    """Return a function of numpy's that refuses wrong arguments in words."""
    function: Callable[..., Any] = explained(getattr(np, name))
    return function


class _NumpyMethod(_Method):
    """A function of numpy's as a method, with numpy's arguments; see :mod:`spmdsim.arrays.numpy_names`."""

    def _load(self) -> Callable[..., Any]:
        return _numpy_function(self.function)


class _Reversed(_NumpyMethod):
    """One that takes the array second as a function."""

    def _load(self) -> Callable[..., Any]:
        function = super()._load()
        return lambda x, first, *rest, **options: function(first, x, *rest, **options)


class _Changing(_Method):
    """A method of numpy's that gives an array other values: the tensor becomes them, no array is written into."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function.__name__)
        self.changed = explained(function)

    def __get__(self, tensor: Any, owner: Any) -> Any:
        super().__get__(None, owner)
        return self.changed if tensor is None else partial(self._become, tensor)

    def _load(self) -> Callable[..., Any]:
        return self.changed

    def _become(self, tensor: Any, *args: Any, **options: Any) -> None:
        become(tensor, self.changed(before(tensor), *args, **options), f"{self.function}()")


def sort(x: Tensor, axis: int = -1, kind: str | None = None, *, stable: bool | None = None) -> Tensor:
    """Ascending along a dim; every kind of sort is stable here. ``ops.sort(x)`` gives another tensor."""
    return ops.sort(x, axis)


def partition(x: Tensor, kth: Any, axis: int = -1) -> Tensor:
    """The elements smaller than the ``kth`` before it, the larger ones behind: sorted, which is one way to have it so."""
    return ops.sort(x, axis)


def fill(x: Tensor, value: Operand) -> Tensor:
    """The same number everywhere."""
    return ops.setitem(x, ..., value)


class _Part(_Method):
    """The real or the imaginary part, as an attribute."""

    def __get__(self, tensor: Any, owner: Any) -> Any:
        function = super().__get__(None, owner)
        return function if tensor is None else views.component(tensor, function(tensor), self.function)


def _instead(kind: type, name: str) -> str:
    """Which words to use for an attribute that tensors do not have."""
    missing = f"{kind.__name__!r} object has no attribute {name!r}"
    if name.startswith("__"):
        return missing
    if callable(getattr(ops, name, None)):
        return f"{missing}; use spmdsim.ops.{name}(x)"
    if hasattr(np.ndarray, name):
        return f"{missing}: it lies in pieces on its ranks; use .local(), this rank's piece, or .full() on all ranks"
    near = nearest(name, [word for word in dir(kind) if not word.startswith("_")])
    return f"{missing}; did you mean {near!r}?" if near else missing


class SymbolicTensor(ReadableTensor):
    """A tensor with the symbols of Python and the methods of numpy's arrays.

    ``has_views``: whether results that NumPy calls views change what they are of.
    """

    __slots__ = ()

    has_views: ClassVar[bool] = True

    clip, conj, conjugate, nonzero = map(_Method, ("clip", "conjugate", "conjugate", "nonzero"))
    repeat, searchsorted, take = map(_Method, ("repeat", "searchsorted", "take"))
    squeeze, swapaxes = map(_NumpyMethod, ("squeeze", "swapaxes"))
    real, imag = map(_Part, ("real", "imag"))
    argsort, copy, cumprod, cumsum = map(_NumpyMethod, ("argsort", "copy", "cumprod", "cumsum"))
    argpartition = _NumpyMethod("argpartition")
    compress = _Reversed("compress")
    sort, partition, fill = _Changing(sort), _Changing(partition), _Changing(fill)
    diagonal, put = map(_NumpyMethod, ("diagonal", "put"))
    dot, ravel, round, trace = map(_NumpyMethod, ("dot", "ravel", "round", "trace"))

    __add__, __radd__, __iadd__ = _symbols("add")
    __sub__, __rsub__, __isub__ = _symbols("subtract")
    __mul__, __rmul__, __imul__ = _symbols("multiply")
    __truediv__, __rtruediv__, __itruediv__ = _symbols("divide")
    __floordiv__, __rfloordiv__, __ifloordiv__ = _symbols("floor_divide")
    __mod__, __rmod__, __imod__ = _symbols("remainder")
    __pow__, __rpow__, __ipow__ = _symbols("power")
    __matmul__, __rmatmul__, __imatmul__ = _symbols("matmul")
    __and__, __rand__, __iand__ = _symbols("bitwise_and")
    __or__, __ror__, __ior__ = _symbols("bitwise_or")
    __xor__, __rxor__, __ixor__ = _symbols("bitwise_xor")
    __lshift__, __rlshift__, __ilshift__ = _symbols("left_shift")
    __rshift__, __rrshift__, __irshift__ = _symbols("right_shift")
    __gt__, __ge__, __lt__, __le__ = map(_binary, ("greater", "greater_equal", "less", "less_equal"))
    __neg__, __pos__, __abs__ = map(_unary, ("negative", "positive", "absolute"))
    __invert__ = _unary("bitwise_invert")

    def __eq__(self, other: object) -> Tensor:  # type: ignore[override]
        return ops.equal(self, other) if _comparable(other) else NotImplemented  # type: ignore[arg-type]

    def __ne__(self, other: object) -> Tensor:  # type: ignore[override]
        return ops.not_equal(self, other) if _comparable(other) else NotImplemented  # type: ignore[arg-type]

    @property
    def T(self) -> Tensor:
        """The tensor with its dims in reversed order."""
        tensor = cast("Tensor", self)
        return views.permuted(tensor, ops.transpose.__wrapped__(tensor))

    @property
    def mT(self) -> Tensor:
        """The tensor with its last two dims exchanged."""
        return self.swapaxes(-1, -2) if self.ndim > 1 else ops.matrix_transpose(cast("Tensor", self))

    def __copy__(self) -> SymbolicTensor:
        """Another tensor with the same attributes, which is a view of none."""
        reduced: Any = self.__reduce_ex__(4)
        function, arguments, (_, slots) = reduced[:3]
        copied: SymbolicTensor = function(*arguments)
        for name, value in {**slots, "_view": None}.items():
            setattr(copied, name, value)
        return copied

    #: A tensor hashes by identity, though ``==`` compares elements.
    __hash__ = PlainTensor.__hash__

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            """What there is not, with what there is instead."""
            raise AttributeError(_instead(type(self), name), name=name, obj=self)

    def __divmod__(self, other: Operand) -> tuple[Tensor, Tensor]:
        return ops.floor_divide(self, other), ops.remainder(self, other)  # type: ignore[arg-type]

    def __rdivmod__(self, other: Operand) -> tuple[Tensor, Tensor]:
        return ops.floor_divide(other, self), ops.remainder(other, self)  # type: ignore[arg-type]
