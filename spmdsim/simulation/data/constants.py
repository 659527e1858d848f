"""Constants of the MPI interface, and the exception of MPI calls."""

from __future__ import annotations

import builtins
import operator
from collections.abc import Callable
from typing import Any

# The values differ from one another, so that a program that exchanges them is found.
ANY_SOURCE = -2
ANY_TAG = -1
PROC_NULL = -3
ROOT = -4
UNDEFINED = -32766
TAG_UB_VALUE = 2**31 - 1

KEYVAL_INVALID = -1
BSEND_OVERHEAD = 128
VERSION, SUBVERSION = 4, 0
DISPLACEMENT_CURRENT = DISP_CUR = -54278278

IDENT, CONGRUENT, SIMILAR, UNEQUAL = 0, 1, 2, 3
CART, GRAPH, DIST_GRAPH = 1, 2, 3
COMM_TYPE_SHARED, COMM_TYPE_HW_GUIDED, COMM_TYPE_HW_UNGUIDED, COMM_TYPE_RESOURCE_GUIDED = 0, 1, 2, 3
ORDER_C, ORDER_F = 0, 1
ORDER_FORTRAN = ORDER_F
DISTRIBUTE_BLOCK, DISTRIBUTE_CYCLIC, DISTRIBUTE_NONE, DISTRIBUTE_DFLT_DARG = 0, 1, 2, -1
TYPECLASS_INTEGER, TYPECLASS_REAL, TYPECLASS_COMPLEX, TYPECLASS_LOGICAL = 1, 2, 3, 4
(
    COMBINER_NAMED,
    COMBINER_DUP,
    COMBINER_CONTIGUOUS,
    COMBINER_VECTOR,
    COMBINER_HVECTOR,
    COMBINER_INDEXED,
    COMBINER_HINDEXED,
    COMBINER_INDEXED_BLOCK,
    COMBINER_HINDEXED_BLOCK,
    COMBINER_STRUCT,
    COMBINER_SUBARRAY,
    COMBINER_DARRAY,
    COMBINER_F90_REAL,
    COMBINER_F90_COMPLEX,
    COMBINER_F90_INTEGER,
    COMBINER_RESIZED,
    COMBINER_VALUE_INDEX,
) = range(17)
F_SOURCE, F_TAG, F_ERROR, F_STATUS_SIZE = 0, 1, 2, 6
#: Modes of files.
MODE_CREATE, MODE_RDONLY, MODE_WRONLY, MODE_RDWR, MODE_DELETE_ON_CLOSE = 1, 2, 4, 8, 16
MODE_UNIQUE_OPEN, MODE_EXCL, MODE_APPEND, MODE_SEQUENTIAL = 32, 64, 128, 256
SEEK_SET, SEEK_CUR, SEEK_END = 600, 602, 604
#: Modes, locks and kinds of windows.
MODE_NOCHECK, MODE_NOPRECEDE, MODE_NOPUT, MODE_NOSTORE, MODE_NOSUCCEED = 1, 2, 4, 8, 16
LOCK_EXCLUSIVE, LOCK_SHARED = 1, 2
WIN_BASE, WIN_SIZE, WIN_DISP_UNIT, WIN_CREATE_FLAVOR, WIN_MODEL = 7, 8, 9, 10, 11
WIN_FLAVOR = WIN_CREATE_FLAVOR
WIN_FLAVOR_CREATE, WIN_FLAVOR_ALLOCATE, WIN_FLAVOR_DYNAMIC, WIN_FLAVOR_SHARED = 1, 2, 3, 4
WIN_UNIFIED, WIN_SEPARATE = 0, 1
#: The longest texts, in characters.
MAX_PROCESSOR_NAME = MAX_ERROR_STRING = MAX_INFO_VAL = MAX_LIBRARY_VERSION_STRING = 256
MAX_OBJECT_NAME, MAX_INFO_KEY, MAX_DATAREP_STRING, MAX_PSET_NAME_LEN = 64, 36, 128, 512
MAX_PORT_NAME = MAX_STRINGTAG_LEN = 1024
THREAD_SINGLE, THREAD_FUNNELED, THREAD_SERIALIZED, THREAD_MULTIPLE = 0, 1, 2, 3
TAG_UB, IO, WTIME_IS_GLOBAL, UNIVERSE_SIZE, APPNUM, LASTUSEDCODE = 0, 2, 3, 4, 5, 6

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
    "ERR_ABI": "invalid ABI",
    "ERR_ACCESS": "permission denied",
    "ERR_AMODE": "invalid mode of a file",
    "ERR_ASSERT": "invalid assertion",
    "ERR_BAD_FILE": "invalid file name",
    "ERR_BASE": "invalid base address",
    "ERR_CONVERSION": "error in a conversion function",
    "ERR_DISP": "invalid displacement",
    "ERR_DUP_DATAREP": "data representation exists already",
    "ERR_ERRHANDLER": "invalid error handler",
    "ERR_FILE": "invalid file handle",
    "ERR_FILE_EXISTS": "file exists",
    "ERR_FILE_IN_USE": "file is in use",
    "ERR_INFO": "invalid info",
    "ERR_INFO_KEY": "key of an info is too long",
    "ERR_INFO_NOKEY": "info has no such key",
    "ERR_INFO_VALUE": "text of an info is too long",
    "ERR_IO": "input or output error",
    "ERR_KEYVAL": "invalid key of an attribute",
    "ERR_LOCKTYPE": "invalid lock",
    "ERR_NAME": "service name is not published",
    "ERR_NO_MEM": "no memory left",
    "ERR_NOT_SAME": "arguments differ between ranks",
    "ERR_NO_SPACE": "no space left",
    "ERR_NO_SUCH_FILE": "file does not exist",
    "ERR_PORT": "invalid port",
    "ERR_PROC_ABORTED": "a process aborted",
    "ERR_PROC_FAILED": "a process failed",
    "ERR_PROC_FAILED_PENDING": "a process failed, the request is pending",
    "ERR_QUOTA": "quota exceeded",
    "ERR_READ_ONLY": "file is read-only",
    "ERR_REVOKED": "communicator was revoked",
    "ERR_RMA_ATTACH": "memory cannot be attached",
    "ERR_RMA_CONFLICT": "conflicting accesses to a window",
    "ERR_RMA_FLAVOR": "wrong kind of window",
    "ERR_RMA_RANGE": "target is outside of the window",
    "ERR_RMA_SHARED": "memory cannot be shared",
    "ERR_RMA_SYNC": "wrong synchronisation of a window",
    "ERR_SERVICE": "invalid service name",
    "ERR_SESSION": "invalid session",
    "ERR_SIZE": "invalid size",
    "ERR_SPAWN": "processes cannot be spawned",
    "ERR_UNSUPPORTED_DATAREP": "unsupported data representation",
    "ERR_UNSUPPORTED_OPERATION": "unsupported operation",
    "ERR_VALUE_TOO_LARGE": "value is too large",
    "ERR_WIN": "invalid window",
    "ERR_LASTCODE": "last error code",
}
ERROR_CODES = {name: number for number, name in enumerate(ERROR_TEXTS)}
SUCCESS = 0


class Exception(RuntimeError):
    """The error that an MPI call raises for wrong arguments; it has an error class as in MPI.

    Args:
        ierr: the error class, such as ``ERR_RANK``, or an error code.
        reason: the argument, the rule and the value.
        problem: the finding to report if the program does not catch the error; None for one about the exception.
    """

    def __init__(self, ierr: str | int = 0, reason: str = "", problem: Any = None) -> None:
        number = ERROR_CODES[ierr] if isinstance(ierr, str) else int(ierr)
        self.ob_ierr = number if number >= 0 else ERROR_CODES["ERR_UNKNOWN"]
        super().__init__(number)
        self.reason = reason
        self.problem = problem

    @property
    def error_name(self) -> str:
        """The name of the error class."""
        return next(
            (name for name, number in ERROR_CODES.items() if number == self.Get_error_class()), "ERR_UNKNOWN"
        )

    def Get_error_code(self) -> int:
        """Return the number of the error."""
        return self.ob_ierr

    def Get_error_class(self) -> int:
        """Return the number of the error class."""
        return class_of_error(self.ob_ierr)

    def Get_error_string(self) -> str:
        """Return the error class in words and the cause."""
        return str(self)

    error_code = property(Get_error_code)
    error_class = property(Get_error_class)
    error_string = property(Get_error_string)

    def __repr__(self) -> str:
        return f"MPI.Exception({self.ob_ierr})"

    def __int__(self) -> int:
        return self.ob_ierr

    def __bool__(self) -> bool:
        return self.ob_ierr != SUCCESS

    def _compare(self, other: object, compare: Callable[[int, int], bool]) -> bool:
        """Return the comparison of the error codes; ``other`` is an error or a code."""
        return compare(self.ob_ierr, int(other)) if isinstance(other, int | Exception) else NotImplemented

    def __eq__(self, other: object) -> bool:
        return self._compare(other, operator.eq)

    def __lt__(self, other: object) -> bool:
        return self._compare(other, operator.lt)

    def __le__(self, other: object) -> bool:
        return self._compare(other, operator.le)

    def __gt__(self, other: object) -> bool:
        return self._compare(other, operator.gt)

    def __ge__(self, other: object) -> bool:
        return self._compare(other, operator.ge)

    def __hash__(self) -> int:
        return hash(self.ob_ierr)

    def __str__(self) -> str:
        text = text_of_error(self.ob_ierr)
        return f"{text}: {self.reason}" if self.reason else text


#: Error classes and codes of programs: their classes and texts, by number.
added_errors: dict[int, tuple[int, str]] = {}


def last_used_code() -> int:
    """Return the largest error code in use."""
    return max(added_errors, default=ERROR_CODES["ERR_LASTCODE"])


def class_of_error(code: int) -> int:
    """Return the class of an error code; ERR_UNKNOWN for a number that is none."""
    if code in added_errors:
        return added_errors[code][0]
    return code if 0 <= code <= ERROR_CODES["ERR_LASTCODE"] else ERROR_CODES["ERR_UNKNOWN"]


def text_of_error(code: int) -> str:
    """Return the text of an error code, such as "MPI_ERR_TAG: invalid tag"."""
    if code in added_errors:
        return added_errors[code][1]
    name = [*ERROR_TEXTS][class_of_error(code)]
    return f"MPI_{name}: {ERROR_TEXTS[name]}"


MPIError = Exception
PythonException = builtins.Exception


class _Constant(int):
    """A single integer that is compared by identity in calls."""

    _value = 0
    _name = ""
    _instance: Any = None

    def __new__(cls) -> Any:
        """Return the only value of the class."""
        if "_instance" not in cls.__dict__:
            cls._instance = super().__new__(cls, cls._value)
        return cls._instance

    def _refuse(self, *_: object) -> Any:
        raise TypeError(f"{self._name} is no number to calculate with")

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _refuse

    def __repr__(self) -> str:
        return self._name

    def __reduce__(self) -> Any:
        return type(self), ()


class InPlaceType(_Constant):
    """The type of IN_PLACE."""

    _value, _name = -1, "IN_PLACE"


class BottomType(_Constant):
    """The type of BOTTOM."""

    _value, _name = 0, "BOTTOM"


class BufferAutomaticType(_Constant):
    """The type of BUFFER_AUTOMATIC."""

    _value, _name = 2, "BUFFER_AUTOMATIC"


IN_PLACE = InPlaceType()
BOTTOM = BottomType()
BUFFER_AUTOMATIC = BufferAutomaticType()


class _Weights(int):
    """The type of UNWEIGHTED and WEIGHTS_EMPTY: single values that are compared by identity."""


UNWEIGHTED = _Weights(-2)
WEIGHTS_EMPTY = _Weights(-3)
