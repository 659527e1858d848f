"""Facts of functions that users give to operators, equal on all ranks of a correct program.

Compared are the code with its constants and names, the arguments bound to a function (defaults, ``functools.partial``) that
are numbers or text, and the numbers of a floating or complex type that it closes over.

Not compared are whole numbers, truth values, text, arrays and objects that a function closes over, and global variables: a
rank of a correct program may have its own, such as its number, the bounds of its shard, or a log file.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from types import CodeType
from typing import Any, NamedTuple

import numpy as np

from spmdsim.shutdown.stop import PACKAGE
from spmdsim.sides import number_of
from spmdsim.worlds.trace.source_lines import in_words

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
        code = "" if self.code is None else f"{number_of(repr(_code_facts(self.code))):x}"
        return " ".join([self.name if self.code is None else code, *self.bound])

    def __str__(self) -> str:
        place_texts = [] if self.code is None else [in_words(self.code.co_filename, self.code.co_firstlineno)]
        return ", ".join([*place_texts, *self.bound])


def facts_of(*functions: Any) -> tuple[FunctionFacts, ...]:
    """Return the facts of functions that are not this package's own.

    Functions that this package's functions contain are included.

    >>> facts_of(lambda x: x * 2)[0].compared == facts_of(lambda y: y * 2)[0].compared
    True
    >>> facts_of(lambda x: x * 2)[0].compared == facts_of(lambda x: x * 3)[0].compared
    False
    >>> facts_of(partial(np.clip, a_min=0))[0].bound
    ('a_min=0',)
    """
    return tuple(facts for function in functions for facts in _facts(function, 0))


def _facts(function: Any, depth: int) -> Iterator[FunctionFacts]:
    """Yield the facts of a function and of its inner functions, up to a depth of :data:`DEEPEST`."""
    bound, bound_values = list[str](), list[Any]()
    while isinstance(function, partial):
        arguments = [
            *((f"argument {k}", value) for k, value in enumerate(function.args)),
            *sorted(function.keywords.items()),
        ]
        bound += _bound(arguments)
        bound_values += [value for _, value in arguments]
        function = function.func
    function = getattr(function, "__func__", function)  # of a bound method
    if callable(function) and not hasattr(function, "__code__"):
        function = getattr(function.__call__, "__func__", function)
    code = getattr(function, "__code__", None)
    cells = [] if code is None else zip(code.co_freevars, function.__closure__ or ())
    closed_over = [(name, cell.cell_contents) for name, cell in cells if _is_full(cell)]
    if code is not None and code.co_filename.startswith(PACKAGE):
        for value in [*bound_values, *[value for _, value in closed_over]] if depth < DEEPEST else ():
            if callable(value) and not isinstance(value, type):
                yield from _facts(value, depth + 1)
        return
    if code is not None:
        last, defaults = code.co_argcount, function.__defaults__ or ()
        bound += _bound(zip(code.co_varnames[last - len(defaults) : last], defaults))
        bound += _bound(sorted((function.__kwdefaults__ or {}).items()))
        bound += _bound((name, value) for name, value in closed_over if _has_fraction(value))
    if callable(function):
        yield FunctionFacts(getattr(function, "__name__", type(function).__name__), code, tuple(bound))
    if depth < DEEPEST and hasattr(function, "__wrapped__"):
        yield from _facts(function.__wrapped__, depth + 1)


def _bound(values: Any) -> list[str]:
    """Return ``name=value`` of the values that are numbers, text, or tuples and lists of these."""
    return [f"{name}={text}" for name, value in values if (text := _simple(value)) is not None]


def _simple(value: Any) -> str | None:
    """Return a number, text, or a sequence of these as text; None for other values."""
    if isinstance(value, (tuple, list)):
        texts = [_simple(item) for item in value]
        return None if None in texts else f"({', '.join(map(str, texts))})"
    if isinstance(value, np.generic):
        value = value.item()
    kinds = (bool, int, float, complex, str, bytes, type(None))
    return repr(value) if type(value) in kinds else None


def _has_fraction(value: Any) -> bool:
    """Return True for numbers of a floating or complex type, and tuples of these."""
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
    """Return what determines the behaviour of a code object, without its position in the source."""
    return [code.co_code, code.co_names, code.co_freevars, [_constant(value) for value in code.co_consts]]


def _constant(value: Any) -> Any:
    """Return a constant of a code object in a form that is equal in all processes."""
    if isinstance(value, CodeType):
        return _code_facts(value)
    if isinstance(value, tuple):
        return [_constant(item) for item in value]
    if isinstance(value, frozenset):  # in an order that each process has its own
        return sorted(repr(_constant(item)) for item in value)
    return repr(value)
