"""Facts of functions that users give to operators, equal on all ranks of a correct program.

Compared are the code with its constants and names, the arguments bound to a function (defaults, ``functools.partial``)
that are numbers or text, and the numbers of a floating or complex type that it closes over.

Not compared are whole numbers, truth values, text, arrays and objects that a function closes over, and global
variables: a rank of a correct program may have its own, such as its number, the bounds of its shard, or a log file.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from types import CodeType
from typing import Any, NamedTuple

import numpy as np

from spmdsim.shutdown.stop import PACKAGE
from spmdsim.sides import hash_text
from spmdsim.worlds.trace.source_lines import format_place

#: Functions held by functions that are looked at, one by the other.
DEEPEST = 8


class FunctionFacts(NamedTuple):
    """Facts of one function.

    Attributes:
        name: its name.
        code: its code, or None if Python has none.
        bound: the values bound to it, such as ``k=2``.
    """

    name: str
    code: CodeType | None
    bound: tuple[str, ...]

    @property
    def compared(self) -> str:
        """Text that is equal on all ranks of a correct program."""
        code = "" if self.code is None else f"{hash_text(repr(_code_facts(self.code))):x}"
        return " ".join([self.name if self.code is None else code, *self.bound])

    def __str__(self) -> str:
        place_texts = (
            [] if self.code is None else [format_place(self.code.co_filename, self.code.co_firstlineno)]
        )
        return ", ".join([*place_texts, *self.bound])


def list_function_facts(*functions: Any) -> tuple[FunctionFacts, ...]:
    """Return the facts of functions that are not this package's own.

    Functions that this package's functions contain are included.

    >>> list_function_facts(lambda x: x * 2)[0].compared == list_function_facts(lambda y: y * 2)[0].compared
    True
    >>> list_function_facts(lambda x: x * 2)[0].compared == list_function_facts(lambda x: x * 3)[0].compared
    False
    >>> list_function_facts(partial(np.clip, a_min=0))[0].bound
    ('a_min=0',)
    """
    return tuple(facts for function in functions for facts in _facts(function, 0))


def _facts(function: Any, depth: int) -> Iterator[FunctionFacts]:
    """Yield the facts of a user's function, or of those inside a function of this package.

    - A function of this package has no facts of its own. Its bound arguments and closed-over values are searched for
      functions (not classes), and the facts of these are yielded.
    - Any other function has one :class:`FunctionFacts`. If it is a decorated function (with ``__wrapped__``), the facts
      of the function that it wraps follow.
    - A value that is not callable has none. A function inside more than :data:`DEEPEST` (8) others is left out.

    Args:
        function: any value.
        depth: the number of functions around it; 0 for the function that the user gave.
    """
    if depth > DEEPEST:
        return
    arguments, inner_function = _unwrap_partial(function)
    code = getattr(inner_function, "__code__", None)
    cells = [] if code is None else zip(code.co_freevars, inner_function.__closure__ or ())
    closed_over = [(name, cell.cell_contents) for name, cell in cells if _is_full(cell)]
    if code is not None and code.co_filename.startswith(PACKAGE):
        for _, value in [*arguments, *closed_over]:
            if callable(value) and not isinstance(value, type):
                yield from _facts(value, depth + 1)
        return
    bound = _format_values(arguments)
    if code is not None:
        last, defaults = code.co_argcount, inner_function.__defaults__ or ()
        bound += _format_values(zip(code.co_varnames[last - len(defaults) : last], defaults))
        bound += _format_values(sorted((inner_function.__kwdefaults__ or {}).items()))
        bound += _format_values((name, value) for name, value in closed_over if _has_fraction(value))
    if callable(inner_function):
        name = getattr(inner_function, "__name__", type(inner_function).__name__)
        yield FunctionFacts(name, code, tuple(bound))
    if hasattr(inner_function, "__wrapped__"):
        yield from _facts(inner_function.__wrapped__, depth + 1)


def _unwrap_partial(function: Any) -> tuple[list[tuple[str, Any]], Any]:
    """Return the arguments that ``functools.partial`` binds to a function, and the function.

    For a bound method or an object with ``__call__``, the function is the one in its class.

    Args:
        function: any value.

    Returns:
        The arguments as ``(name, value)``, those of the outermost ``partial`` first. Positional ones have names such as
        ``argument 0``; named ones follow them, sorted by name. [] without ``partial``.
        The function; the value itself if it is not callable.
    """
    arguments: list[tuple[str, Any]] = []
    while isinstance(function, partial):
        arguments += [(f"argument {k}", value) for k, value in enumerate(function.args)]
        arguments += sorted(function.keywords.items())
        function = function.func
    function = getattr(function, "__func__", function)  # of a bound method
    if callable(function) and not hasattr(function, "__code__"):
        function = getattr(function.__call__, "__func__", function)
    return arguments, function


def _format_values(values: Any) -> list[str]:
    """Return ``name=value`` for the pairs whose values :func:`_format_value` can write.

    ``values`` are pairs of a name and a value. Other pairs are left out.
    """
    return [f"{name}={text}" for name, value in values if (text := _format_value(value)) is not None]


def _format_value(value: Any) -> str | None:
    """Return the ``repr`` of a bool, number, text, bytes or None; None for other values.

    A NumPy scalar counts as its Python number. A tuple or list of such values is written in parentheses. Subclasses,
    such as an enum's members, are other values.

    Args:
        value: any value.

    >>> _format_value([1, "a"]), _format_value(object())
    ("(1, 'a')", None)
    """
    if isinstance(value, (tuple, list)):
        texts = [_format_value(item) for item in value]
        return None if None in texts else f"({', '.join(map(str, texts))})"
    if isinstance(value, np.generic):
        value = value.item()
    kinds = (bool, int, float, complex, str, bytes, type(None))
    return repr(value) if type(value) in kinds else None


def _has_fraction(value: Any) -> bool:
    """Return True for a number of a floating or complex type, and for a tuple of such numbers.

    An empty tuple gives False.
    """
    if isinstance(value, tuple):
        return bool(value) and all(map(_has_fraction, value))
    return isinstance(value, (float, complex, np.inexact))


def _is_full(cell: Any) -> bool:
    """Return True if a closure's cell has a value."""
    try:
        return cell.cell_contents is not cell
    except ValueError:  # nothing was assigned to the variable yet
        return False


def _code_facts(code: CodeType) -> list[Any]:
    """Return what determines the behaviour of a code object, without its position in the source.

    These are the byte code, the names that it uses, the variables that it closes over, and its constants.
    """
    constants = [_constant_facts(value) for value in code.co_consts]
    return [code.co_code, code.co_names, code.co_freevars, constants]


def _constant_facts(value: Any) -> Any:
    """Return a constant of a code object in a form whose ``repr`` is equal in all processes.

    The code of an inner function is replaced by its facts (:func:`_code_facts`), a tuple by a list, a set by a list
    sorted by ``repr``, and any other constant by its ``repr``.

    Args:
        value: the constant.
    """
    if isinstance(value, CodeType):
        return _code_facts(value)
    if isinstance(value, tuple):
        return [_constant_facts(item) for item in value]
    if isinstance(value, frozenset):  # Each process has an order of its own.
        return sorted(repr(_constant_facts(item)) for item in value)
    return repr(value)
