"""Find MPI's own datatypes: by name, by code, by the class and size of numbers, by the digits of numbers of Fortran."""

from __future__ import annotations

from functools import cache
from typing import Any, ClassVar

from spmdsim.simulation.data import constants as c
from spmdsim.simulation.data.constants import MPIError

#: MPI's own datatypes by name without the MPI prefix. The module of datatypes adds them.
NAMED: dict[str, Any] = {}
#: Codes of C types: characters of ``struct`` and NumPy, and texts of a kind and a size. By name of the datatype.
C_CODES = {
    "C_BOOL": "? b1",
    "SIGNED_CHAR": "b",
    "SHORT": "h",
    "INT": "i",
    "LONG": "l",
    "LONG_LONG": "q",
    "UNSIGNED_CHAR": "B",
    "UNSIGNED_SHORT": "H",
    "UNSIGNED": "I",
    "UNSIGNED_LONG": "L",
    "UNSIGNED_LONG_LONG": "Q",
    "FLOAT": "f f4",
    "DOUBLE": "d f8",
    "LONG_DOUBLE": "g f16",
    "C_FLOAT_COMPLEX": "F c8",
    "C_DOUBLE_COMPLEX": "D c16",
    "C_LONG_DOUBLE_COMPLEX": "G c32",
    "INT8_T": "i1",
    "INT16_T": "i2",
    "INT32_T": "i4",
    "INT64_T": "i8",
    "UINT8_T": "u1",
    "UINT16_T": "u2",
    "UINT32_T": "u4",
    "UINT64_T": "u8",
    "FLOAT16_T": "f2",
}
#: More codes that buffers accept.
_MORE_CODES = {
    "FLOAT16_T": "e",
    "C_FLOAT_COMPLEX": "Zf",
    "C_DOUBLE_COMPLEX": "Zd",
    "C_LONG_DOUBLE_COMPLEX": "Zg",
    "COUNT": "n",
    "UNSIGNED_LONG": "N P",
    "AINT": "p",
    "CHAR": "c a S S1 s 1s",
    "WCHAR": "U U1 w 1w",
    "UINT16_T": "u 1u",
    "INT64_T": "M M8 m m8",
}
#: Codes of types of Fortran.
FORTRAN_CODES = {
    "LOGICAL": "l",
    "INTEGER": "i",
    "REAL": "r s",
    "DOUBLE_PRECISION": "d",
    "COMPLEX": "c",
    "DOUBLE_COMPLEX": "z",
    "LOGICAL1": "l1",
    "LOGICAL2": "l2",
    "LOGICAL4": "l4",
    "LOGICAL8": "l8",
    "INTEGER1": "i1",
    "INTEGER2": "i2",
    "INTEGER4": "i4",
    "INTEGER8": "i8",
    "REAL4": "r4",
    "REAL8": "r8",
    "REAL16": "r16",
    "COMPLEX8": "c8",
    "COMPLEX16": "c16",
    "COMPLEX32": "c32",
}
#: Names of the types of each class of numbers, without their size in bytes.
_CLASSES = {
    c.TYPECLASS_INTEGER: "INTEGER",
    c.TYPECLASS_REAL: "REAL",
    c.TYPECLASS_COMPLEX: "COMPLEX",
    c.TYPECLASS_LOGICAL: "LOGICAL",
}
#: The most decimal digits of integers of Fortran, and their types.
_INTEGERS = ((2, "INTEGER1"), (4, "INTEGER2"), (9, "INTEGER4"), (18, "INTEGER8"))
#: The most decimal digits and the largest exponent of reals of Fortran, and their types.
_REALS = ((6, 37, 4), (15, 307, 8), (18, 4931, 16))
#: The types of values that can be paired with an index, and the names of the pairs.
_PAIRS = {
    "FLOAT": "FLOAT_INT",
    "DOUBLE": "DOUBLE_INT",
    "LONG": "LONG_INT",
    "INT": "TWOINT",
    "SHORT": "SHORT_INT",
    "LONG_DOUBLE": "LONG_DOUBLE_INT",
}


def list_codes(*tables: dict[str, str]) -> dict[str, Any]:
    """Return {code: datatype} of tables of codes by name."""
    return {code: NAMED[name] for table in tables for name, codes in table.items() for code in codes.split()}


@cache
def types_by_code() -> dict[str, Any]:
    """Return {code: datatype} of all codes that buffers accept, such as "i" and "f8"."""
    return list_codes(C_CODES, _MORE_CODES)


class TypeLookups:
    """The class methods of a datatype that find one of MPI's own types."""

    _fortran: ClassVar[dict[tuple[Any, ...], Any]] = {}

    @classmethod
    def fromcode(cls, code: str) -> Any:
        """Return the type of a code: a character, or a kind and a size, such as ``d`` or ``i8``.

        Raises:
            ValueError: If there is no such type.
        """
        datatype = types_by_code().get(code)
        if datatype is None:
            raise ValueError(f"fromcode: code must be one of MPI._typedict, such as 'd', got {code!r}")
        return datatype

    @classmethod
    def Match_size(cls, typeclass: int, size: int) -> Any:
        """Return the type of Fortran of a class of numbers with a size.

        Args:
            typeclass: TYPECLASS_INTEGER, TYPECLASS_REAL, TYPECLASS_COMPLEX or TYPECLASS_LOGICAL.
            size: the bytes of a number.

        Raises:
            MPIError: If there is no such type (ERR_ARG).
        """
        datatype = NAMED.get(f"{_CLASSES.get(typeclass)}{size}")
        if not datatype or datatype.size != size:
            raise MPIError("ERR_ARG", f"Match_size: size must be that of a type of the class, got {size}")
        return datatype

    @classmethod
    def Get_value_index(cls, value: Any, index: Any) -> Any:
        """Return the type of pairs of a value and an index; DATATYPE_NULL if MPI has no such type.

        Args:
            value: the type of the values, such as ``MPI.DOUBLE``.
            index: the type of the indices, ``MPI.INT``.

        Raises:
            MPIError: If a type is null (ERR_TYPE).
        """
        if not (value and index):
            raise MPIError("ERR_TYPE", "Get_value_index: the types must not be MPI.DATATYPE_NULL")
        is_paired = index == NAMED["INT"] and value.word in _PAIRS
        return NAMED[_PAIRS[value.word]] if is_paired else cls()

    @classmethod
    def _find_fortran(cls, kind: str, name: str, **digits: int) -> Any:
        """Return the type of Fortran for numbers of some digits, one handle for each combination.

        Args:
            kind: the combiner, such as "F90_REAL".
            name: the name of the type with these numbers; "" if there is none.
            digits: the arguments of the call.

        Raises:
            MPIError: If ``name`` is empty (ERR_ARG).
        """
        if not name:
            raise MPIError("ERR_ARG", f"Create_{kind.lower()}: no type of this machine has {digits}")
        key = kind, *digits.values()
        if key not in cls._fortran:
            make: Any = cls
            datatype = cls._fortran[key] = make(NAMED[name])
            datatype._number, datatype.origin = 0, (kind, None, digits)
        return cls._fortran[key]

    @classmethod
    def Create_f90_integer(cls, r: int) -> Any:
        """Return the predefined type of Fortran for integers of ``r`` decimal digits, 18 at most."""
        name = next((name for most, name in _INTEGERS if r <= most), "")
        return cls._find_fortran("F90_INTEGER", name, r=r)

    @classmethod
    def Create_f90_real(cls, p: int, r: int) -> Any:
        """Return the predefined type of Fortran for reals of ``p`` decimal digits and exponents up to ``r``.

        One of both may be UNDEFINED: then the other one decides.

        Raises:
            MPIError: If no type of this machine has them (ERR_ARG).
        """
        size = _real_size(p, r)
        return cls._find_fortran("F90_REAL", f"REAL{size}" if size else "", p=p, r=r)

    @classmethod
    def Create_f90_complex(cls, p: int, r: int) -> Any:
        """Return the predefined type for complex numbers of two reals of ``Create_f90_real``."""
        size = _real_size(p, r)
        return cls._find_fortran("F90_COMPLEX", f"COMPLEX{2 * size}" if size else "", p=p, r=r)


def _real_size(p: int, r: int) -> int:
    """Return the bytes of the smallest real with ``p`` digits and exponents up to ``r``, or 0."""
    if p == r == c.UNDEFINED:
        return 0
    return next((size for digits, exponent, size in _REALS if p <= digits and r <= exponent), 0)
