"""Error classes and codes that a program adds to those of MPI."""

from __future__ import annotations

from spmdsim.simulation.data.constants import (
    ERROR_CODES,
    MPIError,
    added_errors,
    class_of_error,
    last_used_code,
    text_of_error,
)


def Get_error_string(errorcode: int) -> str:
    """Return the text of an error class or code."""
    return text_of_error(errorcode)


def Get_error_class(errorcode: int) -> int:
    """Return the class of an error code."""
    return class_of_error(errorcode)


def Add_error_class() -> int:
    """Return a new error class."""
    errorclass = last_used_code() + 1
    added_errors[errorclass] = (errorclass, "")
    return errorclass


def Add_error_code(errorclass: int) -> int:
    """Return a new error code of a class."""
    errorcode = last_used_code() + 1
    added_errors[errorcode] = (errorclass, "")
    return errorcode


def Add_error_string(errorcode: int, string: str) -> None:
    """Set the text of an error class or code that the program added."""
    added_errors[errorcode] = (_check_added("Add_error_string", errorcode), string)


def Remove_error_class(errorclass: int) -> None:
    """Remove an error class of the program; it must have no codes and no text.

    Args:
        errorclass: the class.

    Raises:
        MPIError: If it is no class of the program, or has codes or a text.
    """
    if _check_added("Remove_error_class", errorclass) != errorclass or any(
        cls == errorclass for code, (cls, _) in added_errors.items() if code != errorclass
    ):
        raise MPIError(
            "ERR_OTHER", f"Remove_error_class: errorclass must be a class without codes, got {errorclass}"
        )
    _remove(errorclass)


def Remove_error_code(errorcode: int) -> None:
    """Remove an error code of the program; it must have no text."""
    if _check_added("Remove_error_code", errorcode) == errorcode:
        raise MPIError("ERR_OTHER", f"Remove_error_code: errorcode must be no class, got {errorcode}")
    _remove(errorcode)


def Remove_error_string(errorcode: int) -> None:
    """Remove the text of an error class or code of the program."""
    added_errors[errorcode] = (_check_added("Remove_error_string", errorcode), "")


def _remove(errorcode: int) -> None:
    """Remove a class or code of the program.

    Args:
        errorcode: its number.

    Raises:
        MPIError: If it has a text.
    """
    if added_errors[errorcode][1]:
        raise MPIError(
            "ERR_OTHER", f"the text of error {errorcode} must be removed first; call Remove_error_string"
        )
    del added_errors[errorcode]


def _check_added(call: str, errorcode: int) -> int:
    """Return the class of a code that the program added.

    Args:
        call: name of the function, for the error.
        errorcode: the code.

    Raises:
        MPIError: If the program did not add the code.
    """
    if errorcode not in added_errors:
        lowest = ERROR_CODES["ERR_LASTCODE"] + 1
        raise MPIError(
            "ERR_OTHER",
            f"{call}: errorcode must be a code that the program added, from {lowest} on, got {errorcode}",
        )
    return added_errors[errorcode][0]
