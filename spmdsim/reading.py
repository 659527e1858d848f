"""Parse text from files and command lines with limits; never execute it.

Text that is damaged, too deep or too large raises one line of :class:`~spmdsim.errors.InputError`.
"""

from __future__ import annotations

import ast
import json
import operator
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from typing import Any

from spmdsim.errors import InputError, SpmdError

#: A host's name or address, with a number of ranks after a colon: "node1", "node1:2", "10.0.0.1:2".
HOST_WORD = re.compile(r"(?P<name>[A-Za-z0-9_][A-Za-z0-9_.-]*)(?::(?P<count>[1-9]\d*))?")
MOST_BYTES = 1 << 28
"""Largest text file in bytes, because all of it is in memory at once."""
MOST_DEPTH = 64
"""Largest depth of nested brackets in JSON, literals and expressions."""
MOST_DIGITS = 400
"""Largest number of digits of a number in JSON; the largest float has 309."""
MOST_CHARACTERS = 1 << 16
"""Largest number of characters of a literal."""
MOST_EXPRESSION = 1024
"""Largest number of characters of an arithmetic expression."""
MOST_BITS = 1024
"""Largest number of bits of intermediate results of arithmetic expressions."""

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"?|\'(?:[^\'\\]|\\.)*\'?|[\[({]|[\])}]', re.DOTALL)


def one_line(text: object, most: int = 200) -> str:
    r"""Return the first line of a text, cut after ``most`` characters.

    >>> one_line("no\nyes"), one_line("9" * 400, 5)
    ('no', '99999 ...')
    """
    first = str(text).strip().partition("\n")[0]
    return first if len(first) <= most else f"{first[:most]} ..."


@contextmanager
def readable(path: object, kind: str, fails: str = "cannot be read as") -> Iterator[None]:
    """Convert every exception of a ``with`` block that reads a file to an InputError with the file's name.

    A parser's KeyError, a full memory or a file that does not exist then give one line that a user understands. The
    block gets None. KeyboardInterrupt and SystemExit pass unchanged.

    Args:
        path: the file, for the message.
        kind: the expected kind of file, such as ``"a GOAL file"``.
        fails: the words between path and kind.

    Raises:
        InputError: For any exception inside. An InputError whose message already names the file passes unchanged.

    >>> with readable("x.json", "strategies"):
    ...     {}["mesh"]
    Traceback (most recent call last):
    ...
    spmdsim.errors.InputError: 'x.json' cannot be read as strategies: it has no 'mesh'
    """
    try:
        yield
    except SpmdError as error:
        if isinstance(error, InputError) and str(path) in error.message:
            raise
        raise _unreadable(path, fails, kind, error.message) from None
    except OSError as error:
        raise _unreadable(path, fails, kind, error.strerror or one_line(error)) from None
    except KeyError as error:
        raise _unreadable(path, fails, kind, f"it has no {one_line(error, 60)}") from None
    except (MemoryError, RecursionError):
        raise _unreadable(path, fails, kind, "it is too large or too deep") from None
    except UnicodeDecodeError:
        raise _unreadable(path, fails, kind, "it is not text in UTF-8") from None
    except Exception as error:
        message = one_line(error) or type(error).__name__
        raise _unreadable(path, fails, kind, message) from None


def _unreadable(path: object, fails: str, kind: str, why: str) -> InputError:
    return InputError(f"{str(path)!r} {fails} {kind}: {why}")


def require_file(path: str | Path, kind: str = "file") -> None:
    """Raise InputError if a path does not exist, is a folder, or is a device or pipe.

    A link to a file is a file. Whether the file can be read is not checked.

    Args:
        path: the path.
        kind: the noun for the file in the message.

    >>> require_file("/", "script")
    Traceback (most recent call last):
    spmdsim.errors.InputError: '/' is a folder, not a script
    """
    file = Path(path)
    # Not repr(path), which would escape characters that the terminal can write.
    name = "'" + str(path).replace("\n", "\\n") + "'"
    if file.is_dir():
        raise InputError(f"{name} is a folder, not a {kind}")
    if not file.exists():
        raise InputError(f"there is no {kind} {name}")
    if not file.is_file():
        raise InputError(f"{name} must be an ordinary file, not a device or pipe")


def read_text(path: str | Path, kind: str, fails: str = "cannot be read as") -> str:
    """Return the text of a UTF-8 file of at most 256 MiB (:data:`MOST_BYTES`).

    Args:
        path: the file.
        kind: the expected kind of file for the message, such as ``"a machine file"``.
        fails: the words between path and kind in the message.

    Raises:
        InputError: If the file is missing, a folder, a device, a pipe, too long, or not text.
    """
    with readable(path, kind, fails):
        require_file(file := Path(path))
        if file.stat().st_size > MOST_BYTES:
            raise ValueError(f"it is longer than {MOST_BYTES >> 20} MiB")
        return file.read_text(encoding="utf-8")


def read_json(path: str | Path, kind: str, fails: str = "cannot be read as") -> Any:
    """Return the content of a JSON file.

    Raises:
        InputError: As for :func:`read_text` and :func:`parse_json`; the message names the file.
    """
    text = read_text(path, kind, fails)
    with readable(path, kind, fails):
        return parse_json(text)


def parse_json(text: str | bytes) -> Any:
    """Parse a JSON text with limits on depth and digits, and without duplicate keys.

    Brackets may be nested 64 deep, and integers have up to 400 digits. ``NaN`` and ``Infinity`` are accepted.

    Args:
        text: the text, or its bytes in UTF-8.

    Raises:
        InputError: If the text is not JSON, has a duplicate key, or exceeds a limit.

    >>> parse_json('{"a": [1, 2.5]}')
    {'a': [1, 2.5]}
    >>> parse_json("[" * 200_000)
    Traceback (most recent call last):
    ...
    spmdsim.errors.InputError: brackets are nested more than 64 deep
    """
    try:
        words = text if isinstance(text, str) else text.decode("utf-8")
        _check_depth(words)
        return json.loads(words, parse_int=_parse_integer, object_pairs_hook=_unique_members)
    except json.JSONDecodeError as error:
        line = f", line {error.lineno}" if "\n" in error.doc.strip() else ""
        raise InputError(f"it is not JSON{line}: {error.msg}") from None
    except UnicodeDecodeError:
        raise InputError("it is not text in UTF-8") from None


def _check_depth(text: str) -> None:
    """Raise InputError if brackets of a text are nested deeper than :data:`MOST_DEPTH`.

    Brackets are ``[]``, ``{}`` and ``()``; brackets in quotes do not count. Whether they match is not checked.
    """
    depth = 0
    for token in _TOKEN.finditer(text):
        mark = token[0]
        depth += (mark in ("[", "{", "(")) - (mark in ("]", "}", ")"))
        if depth > MOST_DEPTH:
            raise InputError(f"brackets are nested more than {MOST_DEPTH} deep")


def _parse_integer(digits: str) -> int:
    if len(digits) > MOST_DIGITS:
        raise InputError(f"a number must have at most {MOST_DIGITS} digits, got {len(digits)}")
    return int(digits)


def _unique_members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the members of a JSON object by key."""
    members = dict(pairs)
    if len(members) < len(pairs):
        counts = Counter(key for key, _ in pairs)
        duplicate = next(key for key, count in counts.items() if count > 1)
        raise InputError(f"the key {one_line(duplicate, 60)!r} is repeated")
    return members


def literal(text: str) -> Any:
    """Parse a Python literal: numbers, strings, tuples, lists, dicts.

    Raises:
        ValueError: If the text is not a literal, or is too long or too deep.

    >>> literal("((2, 4), None)")
    ((2, 4), None)
    """
    try:
        return ast.literal_eval(_parse_expression(text, MOST_CHARACTERS))
    except (TypeError, MemoryError, RecursionError):
        raise ValueError("it is not a number, text, tuple, list or dict") from None


def literal_call(text: str) -> tuple[str, list[Any], dict[str, Any]]:
    """Parse a text with the form of a call whose arguments are literals; nothing is called.

    Returns:
        The text of the called expression, such as a name with dots; the positional arguments; the keyword arguments.
        It is not checked that the called expression is a name.

    Raises:
        ValueError: If the text has another form, has an argument with ``**``, or is too long or too deep.

    >>> literal_call("jax.P('x', None, unreduced={'y'})")
    ('jax.P', ['x', None], {'unreduced': {'y'}})
    """
    call = _parse_expression(text, MOST_CHARACTERS)
    if not isinstance(call, ast.Call):
        raise ValueError("it is not a call such as f(1, x=2)")
    if any(keyword.arg is None for keyword in call.keywords):
        raise ValueError("it has an argument with **; write the keywords out, as in f(x=2)")
    try:
        # str is for the type checker.
        keywords = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
        return ast.unparse(call.func), [ast.literal_eval(argument) for argument in call.args], keywords
    except (TypeError, MemoryError, RecursionError):
        raise ValueError("its arguments are not all numbers, texts, tuples, lists or dicts") from None


def _parse_expression(text: str, most: int) -> ast.expr:
    """Return the syntax tree of one expression, without evaluating it.

    Args:
        text: the expression; blanks around it are ignored.
        most: the largest number of characters.

    Raises:
        ValueError: If the text is not an expression, is longer, or its brackets are nested more than 64 deep.
    """
    if len(text) > most:
        raise ValueError(f"it is longer than {most} characters")
    try:
        _check_depth(text)
        return ast.parse(text.strip(), mode="eval").body
    except InputError as error:
        raise ValueError(error.message) from None
    except (SyntaxError, MemoryError, RecursionError):
        raise ValueError("it is not an expression") from None


# -- arithmetic ---------------------------------------------------------------------------------------

_Names = Mapping[str, Fraction]
_Function = Callable[[_Names], Fraction]


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    """Return ``base ** exponent``, computed exactly.

    Raises:
        ValueError: If the exponent is not an integer, or the power could have more than :data:`MOST_BITS` bits.
        ZeroDivisionError: If the base is 0 and the exponent negative.
    """
    length = max(base.numerator.bit_length(), base.denominator.bit_length())
    if exponent.denominator != 1 or abs(exponent) * max(length, 1) > MOST_BITS:
        raise ValueError(f"an exponent must be a whole number and small, got {one_line(exponent, 20)}")
    return Fraction(base ** int(exponent))


_BINARY: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: _power,
}
_UNARY: dict[type, Callable[[Any], Any]] = {
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Not: operator.not_,
}
_COMPARE: dict[type, Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_CALLS: dict[str, Callable[..., Any]] = {"max": max, "min": min}


def arithmetic(expression: str, names: _Names) -> Fraction:
    """Compute the exact value of an arithmetic expression without executing it.

    It accepts numbers, names, ``+ - * / // % **``, comparisons, ``and``, ``or``, ``not``, ``x if c else y``, ``max``
    and ``min``. Truth values are 1 and 0.

    Args:
        expression: text such as ``"2*n if n > 1 else 0"``.
        names: the values of names.

    Raises:
        ValueError: If the text is not such an expression, has an unknown name, or a number becomes too large.
        ZeroDivisionError: If it divides by zero.

    >>> arithmetic("max(1, 2*n - 1) / 2", {"n": Fraction(4)})
    Fraction(7, 2)
    """
    return _compile_arithmetic(expression)(names)


@lru_cache(maxsize=1024)
def _compile_arithmetic(expression: str) -> _Function:
    return _build(_parse_expression(expression, MOST_EXPRESSION))


def _bounded(function: Callable[..., Any], *operands: _Function) -> _Function:
    """Return a function of names that applies ``function`` to the values of operands.

    A function of names takes a dict with the value of each name, and returns a number: with the operands x and y and an
    addition, ``{"x": 1, "y": 2}`` gives 3. It raises ValueError if numerator or denominator of its result has more than
    :data:`MOST_BITS` bits.

    Args:
        function: takes the value of each operand; returns a number or a truth value, which becomes 1 or 0.
        *operands: functions of names.
    """

    def value(names: _Names) -> Fraction:
        fraction = Fraction(function(*(operand(names) for operand in operands)))
        if max(fraction.numerator.bit_length(), fraction.denominator.bit_length()) > MOST_BITS:
            raise ValueError(f"its value has more than {MOST_BITS} bits")
        return fraction

    return value


def _build(node: ast.AST) -> _Function:
    """Return a function that computes the expression of a syntax tree from the values of its names.

    For example, the function for ``2 * n`` returns 6 for ``{"n": 3}``. It raises ValueError for a name without value,
    and if a number becomes too large. Results are of class Fraction. Comparisons, ``and`` and ``or`` give 1 or 0.
    ``and``, ``or`` and the conditional expression compute only the operands that they need.
    :func:`arithmetic` lists the supported expressions.

    Args:
        node: the syntax tree of an expression.

    Raises:
        ValueError: If the tree has anything else, such as an attribute, a string or another call.
    """
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):  # A bool is not arithmetic.
        constant = Fraction(str(node.value))
        return _bounded(lambda: constant)
    if isinstance(node, ast.Name):
        return lambda names: _look_up(names, node.id)
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        return _bounded(_BINARY[type(node.op)], _build(node.left), _build(node.right))
    if isinstance(node, ast.UnaryOp) and type(node.op) in _UNARY:
        return _bounded(_UNARY[type(node.op)], _build(node.operand))
    if isinstance(node, ast.Compare) and all(type(op) in _COMPARE for op in node.ops):
        tests = [_COMPARE[type(op)] for op in node.ops]
        operands = [_build(operand) for operand in (node.left, *node.comparators)]
        return _bounded(
            lambda *values: all(test(a, b) for test, a, b in zip(tests, values, values[1:])), *operands
        )
    if isinstance(node, ast.BoolOp):
        combine = all if isinstance(node.op, ast.And) else any
        operands = [_build(operand) for operand in node.values]
        return lambda names: Fraction(combine(operand(names) for operand in operands))
    if isinstance(node, ast.IfExp):
        test, if_true, if_false = _build(node.test), _build(node.body), _build(node.orelse)
        return lambda names: if_true(names) if test(names) else if_false(names)
    if isinstance(node, ast.Call) and (function := _find_called_function(node)) is not None:
        return _bounded(function, *map(_build, node.args))
    raise ValueError(f"{one_line(ast.unparse(node), 60)!r} is not arithmetic")


def _find_called_function(call: ast.Call) -> Callable[..., Any] | None:
    """Return ``max`` or ``min`` if a call is one of it with several plain arguments, else None."""
    has_plain_arguments = not call.keywords and not any(isinstance(x, ast.Starred) for x in call.args)
    if len(call.args) > 1 and has_plain_arguments and isinstance(call.func, ast.Name):
        return _CALLS.get(call.func.id)
    return None


def _look_up(names: _Names, name: str) -> Fraction:
    if name not in names:
        raise ValueError(f"there is no {name!r}; the names are {', '.join(names)}")
    return names[name]
