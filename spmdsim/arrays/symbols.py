"""Operators of tensors, such as ``+``, in plain, reflected and in-place forms, and NumPy's methods.

Read `SymbolicTensor` at the end first. The classes derived from `_Method` are descriptors: they look a function up
when a program uses the method first.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, TypeAlias, TypeGuard, cast

import numpy as np

from spmdsim.arrays import views
from spmdsim.arrays.in_place import become, detach_current
from spmdsim.arrays.values import ReadableTensor
from spmdsim.core.tensor import PlainTensor
from spmdsim.errors import nearest
from spmdsim.wrong_calls import explained

if TYPE_CHECKING:
    from spmdsim.arrays import ops as ops
    from spmdsim.arrays.program_tensor import Tensor
    from spmdsim.arrays.values import Operand


class _Operators:
    """The module of operators, which is loaded at its first use, because it imports this module."""

    def __getattr__(self, name: str) -> Any:
        function = getattr(import_module("spmdsim.arrays.ops"), name)
        setattr(self, name, function)
        return function


if not TYPE_CHECKING:
    ops = _Operators()


Binary: TypeAlias = "Callable[[Any, Operand], Tensor]"


def _make_operator(name: str) -> Binary:
    """Return a method that applies the operator ``name`` to the tensor and another operand.

    The operator is looked up at each call, and raises its own errors for operands that it does not support.
    """

    def symbol(self: Tensor, other: Operand) -> Tensor:
        """Apply the operator."""
        result: Tensor = getattr(ops, name)(self, other)
        return result

    return symbol


def _make_reflected_operator(name: str) -> Binary:
    """Return a method that applies the operator ``name`` with the tensor as second operand.

    It is Python's reflected form: ``2 - x`` calls ``x.__rsub__(2)``, which is ``ops.subtract(2, x)``.
    """

    def symbol(self: Tensor, other: Operand) -> Tensor:
        """Apply the operator to exchanged operands."""
        result: Tensor = getattr(ops, name)(other, self)
        return result

    return symbol


def _make_unary_operator(name: str) -> Callable[[Any], Tensor]:
    """Return a method that applies the operator ``name`` of `ops` to the tensor alone."""

    def symbol(self: Tensor) -> Tensor:
        """Apply the operator."""
        result: Tensor = getattr(ops, name)(self)
        return result

    return symbol


def _make_in_place_operator(name: str) -> Binary:
    """Return a method that gives the tensor the values of the operator ``name``, such as ``+=``.

    The method returns the tensor itself. Its errors are those of the operator and of `become`: for example a result
    of another shape, or of a type that NumPy would not cast to the tensor's, such as float64 to int64.
    """

    def symbol(self: Tensor, other: Operand) -> Tensor:
        """Give the tensor the values of the result."""
        result: Tensor = become(self, getattr(ops, name)(detach_current(self), other), name)
        return result

    return symbol


def _make_operators(name: str) -> tuple[Binary, Binary, Binary]:
    """Return three methods of the operator ``name``: plain, reflected and in place."""
    return _make_operator(name), _make_reflected_operator(name), _make_in_place_operator(name)


def _is_operand(other: object) -> TypeGuard[Operand]:
    """Return True if ``==`` compares elements with this operand; other objects are not equal."""
    types = (PlainTensor, np.ndarray, np.generic, bool, int, float, complex, list, tuple)
    return isinstance(other, types) or hasattr(other, "as_operand")


class _Method:
    """An operator as a method, with name and arguments of NumPy's arrays.

    Tensor classes of imitated systems do not have these methods, because their names may mean something else.
    """

    def __init__(self, function: str) -> None:
        self.function = function

    def __get__(self, tensor: Any, owner: Any) -> Any:
        if not owner.__module__.startswith("spmdsim.arrays"):
            raise AttributeError(self.function)
        function = self._load()
        return function if tensor is None else partial(function, tensor)

    def _load(self) -> Callable[..., Any]:
        """Return the function; it is looked up at the first use."""
        function: Callable[..., Any] = getattr(ops, self.function)
        return function


@cache
def _numpy_function(name: str) -> Callable[..., Any]:
    """Return a NumPy function that explains wrong arguments."""
    function: Callable[..., Any] = explained(getattr(np, name))
    return function


class _NumpyMethod(_Method):
    """A NumPy function as a method, with NumPy's arguments; see :mod:`spmdsim.arrays.numpy_names`."""

    def _load(self) -> Callable[..., Any]:
        """Return NumPy's function, which explains wrong arguments."""
        return _numpy_function(self.function)


class _Reversed(_NumpyMethod):
    """A NumPy function as a method of its second argument."""

    def _load(self) -> Callable[..., Any]:
        """Return NumPy's function with its first two arguments exchanged."""
        function = super()._load()
        return lambda x, first, *others, **options: function(first, x, *others, **options)


class _Changing(_Method):
    """A method of NumPy's that changes an array in place: the tensor gets new values."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function.__name__)
        self.changed = explained(function)

    def __get__(self, tensor: Any, owner: Any) -> Any:
        super().__get__(None, owner)
        return self.changed if tensor is None else partial(self._become, tensor)

    def _load(self) -> Callable[..., Any]:
        """Return the function that computes the new values."""
        return self.changed

    def _become(self, tensor: Any, *args: Any, **options: Any) -> None:
        """Compute new values and give them to the tensor."""
        become(tensor, self.changed(detach_current(tensor), *args, **options), f"{self.function}()")


def sort(x: Tensor, axis: int = -1, kind: str | None = None, *, stable: bool | None = None) -> Tensor:
    """Sort elements in ascending order along a dim, as a method in place; every ``kind`` is stable."""
    return ops.sort(x, axis)


def partition(x: Tensor, kth: Any, axis: int = -1) -> Tensor:
    """Move smaller elements before the ``kth`` and larger ones after it: sort them all."""
    return ops.sort(x, axis)


def fill(x: Tensor, value: Operand) -> Tensor:
    """Set all elements to a number."""
    return ops.setitem(x, ..., value)


class _Part(_Method):
    """The real or the imaginary part, as an attribute."""

    def __get__(self, tensor: Any, owner: Any) -> Any:
        function = super().__get__(None, owner)
        return function if tensor is None else views.component(tensor, function(tensor), self.function)


def _explain_missing(kind: type, name: str) -> str:
    """Return the error message for an attribute that a class does not have.

    It suggests the first of these that exists: the function of `spmdsim.ops` with this name; `local` and `full`, if
    NumPy's arrays have the attribute; a public attribute with a similar name. Names that begin with two underscores get
    no suggestion.

    Args:
        kind: the class.
        name: the attribute.
    """
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
    """A tensor with Python's operators and the methods of NumPy's arrays.

    Attributes:
        has_views: True if changes of results that NumPy calls views change their operand, too.
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

    __add__, __radd__, __iadd__ = _make_operators("add")
    __sub__, __rsub__, __isub__ = _make_operators("subtract")
    __mul__, __rmul__, __imul__ = _make_operators("multiply")
    __truediv__, __rtruediv__, __itruediv__ = _make_operators("divide")
    __floordiv__, __rfloordiv__, __ifloordiv__ = _make_operators("floor_divide")
    __mod__, __rmod__, __imod__ = _make_operators("remainder")
    __pow__, __rpow__, __ipow__ = _make_operators("power")
    __matmul__, __rmatmul__, __imatmul__ = _make_operators("matmul")
    __and__, __rand__, __iand__ = _make_operators("bitwise_and")
    __or__, __ror__, __ior__ = _make_operators("bitwise_or")
    __xor__, __rxor__, __ixor__ = _make_operators("bitwise_xor")
    __lshift__, __rlshift__, __ilshift__ = _make_operators("left_shift")
    __rshift__, __rrshift__, __irshift__ = _make_operators("right_shift")
    __gt__, __ge__, __lt__, __le__ = map(_make_operator, ("greater", "greater_equal", "less", "less_equal"))
    __neg__, __pos__, __abs__ = map(_make_unary_operator, ("negative", "positive", "absolute"))
    __invert__ = _make_unary_operator("bitwise_invert")

    def __eq__(self, other: object) -> Tensor:  # type: ignore[override]
        return ops.equal(self, other) if _is_operand(other) else NotImplemented

    def __ne__(self, other: object) -> Tensor:  # type: ignore[override]
        return ops.not_equal(self, other) if _is_operand(other) else NotImplemented

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
        """Return a tensor with equal attributes that is no view."""
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
            """Raise AttributeError with the function or attribute to use instead."""
            raise AttributeError(_explain_missing(type(self), name), name=name, obj=self)

    def __divmod__(self, other: Operand) -> tuple[Tensor, Tensor]:
        return ops.floor_divide(self, other), ops.remainder(self, other)

    def __rdivmod__(self, other: Operand) -> tuple[Tensor, Tensor]:
        return ops.floor_divide(other, self), ops.remainder(other, self)
