"""Constants of the MPI interface, the exception of MPI calls, and the equality of handles."""

from __future__ import annotations

import builtins
from typing import Any


class Handle:
    """A handle of a datatype, an operation or a request.

    It equals itself, and all null handles of its kind if it is null. A null handle is false.
    """

    def __eq__(self, other: object) -> bool:
        if not (isinstance(other, type(self)) or isinstance(self, type(other))):
            return NotImplemented
        return self is other or not (self or other)

    def __hash__(self) -> int:
        return id(self)


# The values differ from one another, so that a program that exchanges them is found.
ANY_SOURCE = -2
ANY_TAG = -1
PROC_NULL = -3
ROOT = -4
UNDEFINED = -32766
TAG_UB_VALUE = 2**31 - 1

IDENT, CONGRUENT, SIMILAR, UNEQUAL = 0, 1, 2, 3
CART, GRAPH, DIST_GRAPH = 1, 2, 3
COMM_TYPE_SHARED = 0
ORDER_C, ORDER_F = 0, 1
ORDER_FORTRAN = ORDER_F
THREAD_SINGLE, THREAD_FUNNELED, THREAD_SERIALIZED, THREAD_MULTIPLE = 0, 1, 2, 3
#: Modes, locks and kinds of windows.
MODE_NOCHECK, MODE_NOPRECEDE, MODE_NOPUT, MODE_NOSTORE, MODE_NOSUCCEED = 1, 2, 4, 8, 16
LOCK_EXCLUSIVE, LOCK_SHARED = 1, 2
WIN_BASE, WIN_SIZE, WIN_DISP_UNIT, WIN_CREATE_FLAVOR, WIN_MODEL = 7, 8, 9, 10, 11
WIN_FLAVOR = WIN_CREATE_FLAVOR
WIN_FLAVOR_CREATE, WIN_FLAVOR_ALLOCATE, WIN_FLAVOR_DYNAMIC, WIN_FLAVOR_SHARED = 1, 2, 3, 4
WIN_UNIFIED, WIN_SEPARATE = 0, 1
TAG_UB, HOST, IO, WTIME_IS_GLOBAL, UNIVERSE_SIZE, APPNUM = 0, 1, 2, 3, 4, 5

ERROR_TEXTS = {
    "SUCCESS": "no error",
    "ERR_BUFFER": "invalid buffer",
    "ERR_COUNT": "invalid count",
    "ERR_TYPE": "invalid datatype",
    "ERR_TAG": "invalid tag",
    "ERR_COMM": "invalid communicator",
    "ERR_RANK": "invalid rank",
    "ERR_REQUEST": "invalid request",
    "ERR_ROOT": "invalid root",
    "ERR_GROUP": "invalid group",
    "ERR_OP": "invalid reduce operation",
    "ERR_TOPOLOGY": "invalid topology",
    "ERR_DIMS": "invalid dimension argument",
    "ERR_ARG": "invalid argument",
    "ERR_UNKNOWN": "unknown error",
    "ERR_TRUNCATE": "message truncated",
    "ERR_OTHER": "known error not in list",
    "ERR_INTERN": "internal error",
    "ERR_IN_STATUS": "error code in status",
    "ERR_PENDING": "pending request",
    "ERR_ASSERT": "invalid assertion",
    "ERR_DISP": "invalid displacement",
    "ERR_LOCKTYPE": "invalid lock",
    "ERR_RMA_ATTACH": "memory cannot be attached",
    "ERR_RMA_FLAVOR": "wrong kind of window",
    "ERR_RMA_RANGE": "target is outside of the window",
    "ERR_RMA_SHARED": "memory cannot be shared",
    "ERR_RMA_SYNC": "wrong synchronisation of a window",
    "ERR_SIZE": "invalid size",
    "ERR_WIN": "invalid window",
}
ERROR_CODES = {name: number for number, name in enumerate(ERROR_TEXTS)}
SUCCESS = 0


class Exception(RuntimeError):
    """The error that an MPI call raises for wrong arguments; it has an error class as in MPI.

    Args:
        name: the error class, such as ``ERR_RANK``, or its number.
        reason: the argument, the rule and the value.
        problem: the finding to report if the program does not catch the error; None for one about the exception.
    """

    def __init__(self, name: str | int = 0, reason: str = "", problem: Any = None) -> None:
        names = list(ERROR_TEXTS)
        self.error_name = names[name] if isinstance(name, int) else name
        self.ob_ierr = ERROR_CODES[self.error_name]
        super().__init__(self.ob_ierr)
        self.reason = reason
        self.problem = problem

    def Get_error_code(self) -> int:
        """Return the number of the error."""
        return self.ob_ierr

    def Get_error_class(self) -> int:
        """Return the number of the error class."""
        return self.ob_ierr

    def Get_error_string(self) -> str:
        """Return the error class in words and the cause."""
        return str(self)

    error_code = property(Get_error_code)
    error_class = property(Get_error_class)
    error_string = property(Get_error_string)

    def __int__(self) -> int:
        return self.ob_ierr

    def __eq__(self, other: object) -> bool:
        return int(other) == self.ob_ierr if isinstance(other, int | Exception) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.ob_ierr)

    def __str__(self) -> str:
        text = f"MPI_{self.error_name}: {ERROR_TEXTS[self.error_name]}"
        return f"{text}: {self.reason}" if self.reason else text


MPIError = Exception
PythonException = builtins.Exception


class _InPlace(int):
    """The type of IN_PLACE and BOTTOM: single values that are compared by identity."""

    name: str

    def __new__(cls, number: int, name: str) -> _InPlace:
        """Create a value with this number and name."""
        value = super().__new__(cls, number)
        value.name = name
        return value

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> Any:
        return (_unpickle_constant, (self.name,))


IN_PLACE = _InPlace(-1, "IN_PLACE")
BOTTOM = _InPlace(0, "BOTTOM")


def _unpickle_constant(name: str) -> _InPlace:
    return IN_PLACE if name == "IN_PLACE" else BOTTOM
