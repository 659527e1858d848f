"""Reduce operations: MPI's own and those of the program, on arrays and on Python objects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from spmdsim.simulation.data.constants import MPIError
from spmdsim.simulation.data.derived_types import BYTE, Datatype, datatype_of
from spmdsim.simulation.data.handles import Handle
from spmdsim.simulation.data.memory import buffer
from spmdsim.simulation.data.open_handles import add_handle, count_handles, remove_handle

#: Operations of the program that a rank may have at a time, as in mpi4py.
MAX_OPERATIONS = 32


class Op(Handle):
    """Reduce operation.

    Attributes:
        name: the printed name, without the MPI prefix.
        kinds: numpy dtype kinds for which the operation is defined.
    """

    name = "OP_NULL"
    kinds = ""
    _arrays: Any = None
    _objects: Callable[[Any, Any], Any] | None = None
    _commutes = True
    _is_from_number = False
    _function: Callable[..., Any] | None = None

    @classmethod
    def make(
        cls,
        name: str,
        arrays: Any,
        objects: Callable[[Any, Any], Any] | None,
        kinds: str = "",
        commutes: bool = True,
    ) -> Op:
        """Return a new operation.

        Args:
            name: the printed name, without the MPI prefix.
            arrays: function (left, right) -> result for arrays of one dtype.
            objects: function (left, right) -> result for Python objects.
            kinds: numpy dtype kinds for which the operation is defined.
            commutes: True if operands may be exchanged.
        """
        op = cls()
        op.name, op.kinds, op._commutes = name, kinds, commutes
        op._arrays, op._objects = arrays, objects
        return op

    def __repr__(self) -> str:
        return f"MPI.{self.name}" if self._function is None else self.name

    def __bool__(self) -> bool:
        return self.name != "OP_NULL"

    def __call__(self, x: Any, y: Any, /) -> Any:
        """Reduce two Python objects, the lower rank's on the left."""
        if self._function is not None and self:
            return self._function(x, y, None)
        if self._objects is None:
            raise ValueError("OP_NULL reduces nothing")
        return self._objects(x, y)

    def comparison_key(self) -> Any:
        """Return a value that is equal for equal operations, to compare those of two ranks.

        - A predefined operation: its name, such as "SUM".
        - A Python function: the pair of its file and first line, because each rank may have its own copy.
        - Another callable: itself.
        """
        function = self._function or self._objects
        if NAMED.get(self.name) == self:
            return self.name
        code = getattr(function, "__code__", None)
        return (code.co_filename, code.co_firstlineno) if code is not None else function

    def check(self, dtype: Any) -> None:
        """Raise an MPI error if the operation is not defined for a dtype, such as SUM for bool."""
        if not self or (self._function is None and dtype.kind not in self.kinds):
            hint = "use LOR or LAND" if dtype.kind == "b" else "use another operation or datatype"
            raise MPIError("ERR_OP", f"{self!r} is not defined for {dtype}: {hint}")

    def combine(self, left: Any, right: Any, datatype: Datatype | None = None) -> Any:
        """Return the reduction of two 1-D arrays as an array; both operands stay unchanged.

        For an operation of the program (:meth:`Create`), its function is called with the raw bytes of copies of both
        operands and with the datatype. Types are not checked here, so call :meth:`check` before.

        Args:
            left: the operand of the lower ranks, 1-D.
            right: the operand of the higher ranks, of the dtype and length of ``left``.
            datatype: the datatype for the program's function; None: that of the dtype.
        """
        if self._function is None:
            # ``check`` has refused operations without a function of arrays.
            return self._arrays(left, right)
        result = np.array(right)
        source = np.array(left)
        # The function sees raw memory, as in MPI: frombuffer then works with any dtype.
        self._function(_memory_view(source), _memory_view(result), datatype or datatype_of(result.dtype))
        return result

    @classmethod
    def Create(cls, function: Callable[..., Any], commute: bool = False) -> Op:
        """Create an operation from ``function(inbuf, inoutbuf, datatype)``.

        Args:
            function: sets ``inoutbuf`` to ``inbuf`` op ``inoutbuf``, element by element.
            commute: True if operands may be exchanged.

        Raises:
            RuntimeError: If the rank has 32 operations that it has not freed.
        """
        if count_handles("operation") >= MAX_OPERATIONS:
            raise RuntimeError(
                f"Op.Create: a rank must have at most {MAX_OPERATIONS} operations of its own; free those not needed"
            )
        op = cls.make(getattr(function, "__name__", "user"), None, None, commutes=commute)
        op._function = function
        add_handle(op, "operation")
        return op

    def Free(self) -> None:
        """Free an operation of the program: the handle becomes null; running calls continue."""
        if self._function is None or not self:
            raise MPIError("ERR_OP", f"{self!r} is an operation of MPI's own, which cannot be freed")
        remove_handle(self)
        self.name = "OP_NULL"

    def Is_commutative(self) -> bool:
        """Return True if operands may be exchanged."""
        return self._commutes

    is_commutative = property(Is_commutative)

    @property
    def is_predefined(self) -> bool:
        """True if MPI predefines the operation."""
        return self._function is None

    @classmethod
    def fromhandle(cls, handle: int) -> Op:
        """Return a handle of the operation with a number; pickles of it are refused, as in mpi4py."""
        op = super().fromhandle(handle)
        op._is_from_number = True
        return op

    def _contents(self) -> tuple[Any, ...]:
        """Return a function and its arguments that create an operation of an equal function.

        Raises:
            ValueError: If the handle was made from a number.
        """
        if self._is_from_number:
            return super()._contents()
        return type(self).Create, (self._function, self._commutes)

    def Reduce_local(self, inbuf: Any, inoutbuf: Any) -> None:
        """Set inoutbuf = inbuf op inoutbuf, element by element, on this rank alone.

        Args:
            inbuf: the left operand: an array, or a list ``[array, count, displacement, datatype]`` with later items
                omitted.
            inoutbuf: the right operand, in the form of ``inbuf``; it is overwritten by the result.

        Raises:
            BufferError: If memory is not contiguous.
            MPIError: If the operation is not defined for the type of ``inbuf``.
            ValueError: If the buffers differ in dtype or number of elements.
        """
        from spmdsim.simulation.data.message_buffers import message_buffer

        left, right = message_buffer(inbuf), message_buffer(inoutbuf)
        if (left.elements, left.dtype) != (right.elements, right.dtype):
            raise ValueError(
                f"the input buffer holds {left.elements} × {left.dtype}, "
                f"the other one {right.elements} × {right.dtype}"
            )
        self.check(left.dtype)
        right.write(self.combine(left.read(), right.read(), BYTE if right.loose else None))


def _memory_view(array: Any) -> buffer:
    """Return the bytes of an array, as mpi4py gives them to a function of the program."""
    return buffer.frombuffer(array)


def _keep_dtype(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return a logical function whose result has the dtype of its left operand."""
    return lambda left, right: function(left, right).astype(left.dtype)


def _choose_located(better: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return the function of MINLOC or MAXLOC on arrays of (value, index) pairs.

    The pair with the better value wins; of equal values, the one with the lower index: MAXLOC of (7, 2) and (7, 0) is
    (7, 0). Pairs are entries of structured arrays with two fields; the returned function makes a new array.

    Args:
        better: np.less or np.greater; called with two arrays of values.
    """

    def choose(left: Any, right: Any) -> Any:
        value, index = left.dtype.names
        is_equal = left[value] == right[value]
        is_left = better(left[value], right[value]) | (is_equal & (left[index] <= right[index]))
        return np.where(is_left, left, right)

    return choose


def _choose_located_object(better: Callable[[Any, Any], bool]) -> Callable[[Any, Any], Any]:
    """Return a function that chooses one of two Python pairs (value, index), as ``_choose_located`` does.

    The returned function returns one of its arguments.

    Args:
        better: called with two values; returns True if the first one is better.
    """

    def choose(x: Any, y: Any) -> Any:
        if x[0] == y[0]:
            return x if x[1] <= y[1] else y
        return x if better(x[0], y[0]) else y

    return choose


_NUMBERS, _ORDERED, _LOGICAL, _BITS = "iufc", "iuf", "iub", "iub"
NAMED: dict[str, Op] = {
    op.name: op
    for op in (
        Op(),
        Op.make("MAX", np.maximum, lambda x, y: y if y > x else x, _ORDERED),
        Op.make("MIN", np.minimum, lambda x, y: y if y < x else x, _ORDERED),
        Op.make("SUM", np.add, lambda x, y: x + y, _NUMBERS),
        Op.make("PROD", np.multiply, lambda x, y: x * y, _NUMBERS),
        Op.make("LAND", _keep_dtype(np.logical_and), lambda x, y: bool(x) & bool(y), _LOGICAL),
        Op.make("LOR", _keep_dtype(np.logical_or), lambda x, y: bool(x) | bool(y), _LOGICAL),
        Op.make("LXOR", _keep_dtype(np.logical_xor), lambda x, y: bool(x) ^ bool(y), _LOGICAL),
        Op.make("BAND", np.bitwise_and, lambda x, y: x & y, _BITS),
        Op.make("BOR", np.bitwise_or, lambda x, y: x | y, _BITS),
        Op.make("BXOR", np.bitwise_xor, lambda x, y: x ^ y, _BITS),
        Op.make("MAXLOC", _choose_located(np.greater), _choose_located_object(lambda a, b: a > b), "V"),
        Op.make("MINLOC", _choose_located(np.less), _choose_located_object(lambda a, b: a < b), "V"),
        Op.make("REPLACE", lambda left, right: right, lambda x, y: y, "iufcbVSU"),
        Op.make("NO_OP", lambda left, right: left, lambda x, y: x, "iufcbVSU"),
    )
}
SUM = NAMED["SUM"]


def as_op(op: Any) -> Op:
    """Return ``op`` if it is an operation; convert a function of two Python objects to an operation.

    The operation of a function is not commutative: operands are reduced in the order of the ranks. The operation
    works for lower-case calls only. For buffers, :meth:`Op.check` refuses it, because it has no function of arrays.

    Args:
        op: an operation such as MPI.SUM, or a function ``(left, right) -> result``.

    Raises:
        TypeError: If ``op`` cannot be called.
    """
    if isinstance(op, Op):
        return op
    if not callable(op):
        raise TypeError(f"op must be a reduce operation such as MPI.SUM, got {op!r}")
    return Op.make(getattr(op, "__name__", "function"), None, op, commutes=False)
