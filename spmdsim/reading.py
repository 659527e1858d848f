"""Text that anybody may have written, from files and command lines: read by parsers with limits, never executed.

Whatever is damaged, too deep or too large becomes one line of :class:`~spmdsim.errors.InputError`.
"""

from __future__ import annotations

import ast
import json
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from typing import Any

from spmdsim.errors import InputError, SpmdError

MOST_BYTES = 1 << 28
"""Longest text file that is read: all of it is in memory at once."""
MOST_DEPTH = 64
"""Brackets inside brackets, in JSON, literals and expressions."""
MOST_DIGITS = 400
"""Longest number in JSON: the largest float has 309 digits."""
MOST_CHARACTERS = 1 << 16
"""Longest literal: a line somebody wrote."""
MOST_EXPRESSION = 1024
"""Longest arithmetic expression, in characters."""
MOST_BITS = 1024
"""Longest number an arithmetic expression may come to on the way."""

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"?|\'(?:[^\'\\]|\\.)*\'?|[\[({]|[\])}]', re.DOTALL)


def one_line(text: object, most: int = 200) -> str:
    r"""The first line of what an error says, cut if it is long.

    >>> one_line("no\nyes"), one_line("9" * 400, 5)
    ('no', '99999 ...')
    """
    first = str(text).strip().partition("\n")[0]
    return first if len(first) <= most else f"{first[:most]} ..."


@contextmanager
def readable(path: object, kind: str, fails: str = "cannot be read as") -> Iterator[None]:
    """Make one clear error of whatever a damaged file makes its reader say.

    Args:
        path: the file, for the message.
        kind: what it should have been, such as ``"a GOAL file"``.
        fails: the words between them.

    Raises:
        InputError: for any exception inside; those of this family that name no file get its name.

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
        said = one_line(error) or type(error).__name__
        raise _unreadable(path, fails, kind, said) from None


def _unreadable(path: object, fails: str, kind: str, why: str) -> InputError:
    return InputError(f"{str(path)!r} {fails} {kind}: {why}")


def require_file(path: str | Path, kind: str = "file") -> None:
    """Raise InputError if the path is missing, a folder, or no ordinary file, such as a device.

    >>> require_file("/", "script")
    Traceback (most recent call last):
    spmdsim.errors.InputError: '/' is a folder, not a script
    """
    file = Path(path)
    # Not its repr: what the terminal cannot write becomes a question mark.
    name = "'" + str(path).replace("\n", "\\n") + "'"
    if file.is_dir():
        raise InputError(f"{name} is a folder, not a {kind}")
    if not file.exists():
        raise InputError(f"there is no {kind} {name}")
    if not file.is_file():
        raise InputError(f"{name} is no ordinary file")


def read_text(path: str | Path, kind: str, fails: str = "cannot be read as") -> str:
    """The text of a file, in UTF-8.

    Raises:
        InputError: no file, no ordinary one (a folder, a device, a pipe), too long, or no text.
    """
    with readable(path, kind, fails):
        require_file(file := Path(path))
        if file.stat().st_size > MOST_BYTES:
            raise ValueError(f"it is longer than {MOST_BYTES >> 20} MiB")
        return file.read_text(encoding="utf-8")


def read_json(path: str | Path, kind: str, fails: str = "cannot be read as") -> Any:
    """What a JSON file holds.

    Raises:
        InputError: as :func:`read_text` and :func:`parse_json`; the file is named.
    """
    text = read_text(path, kind, fails)
    with readable(path, kind, fails):
        return parse_json(text)


def parse_json(text: str | bytes) -> Any:
    """A JSON text, with limits on depth and digits, and every key of an object stands once.

    Raises:
        InputError: anything else.

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
        return json.loads(words, parse_int=_whole, object_pairs_hook=_object)
    except json.JSONDecodeError as error:
        raise InputError(f"it is not JSON, line {error.lineno}: {error.msg}") from None
    except UnicodeDecodeError:
        raise InputError("it is not text in UTF-8") from None


def _check_depth(text: str) -> None:
    depth = 0
    for token in _TOKEN.finditer(text):
        mark = token[0]
        depth += (mark in ("[", "{", "(")) - (mark in ("]", "}", ")"))
        if depth > MOST_DEPTH:
            raise InputError(f"brackets are nested more than {MOST_DEPTH} deep")


def _whole(digits: str) -> int:
    if len(digits) > MOST_DIGITS:
        raise InputError(f"a number has {len(digits)} digits")
    return int(digits)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise InputError(f"the key {one_line(twice, 60)!r} stands twice")
    return members


def literal(text: str) -> Any:
    """A Python literal: numbers, strings, tuples, lists, dicts.

    Raises:
        ValueError: anything else, or one too long or too deep.

    >>> literal("((2, 4), None)")
    ((2, 4), None)
    """
    try:
        return ast.literal_eval(_tree(text, MOST_CHARACTERS))
    except (TypeError, MemoryError, RecursionError):
        raise ValueError("it is no literal") from None


def literal_call(text: str) -> tuple[str, list[Any], dict[str, Any]]:
    """Something written like a call, with literals as arguments: the name, and what is in the brackets.

    Raises:
        ValueError: anything else.

    >>> literal_call("jax.P('x', None, unreduced={'y'})")
    ('jax.P', ['x', None], {'unreduced': {'y'}})
    """
    call = _tree(text, MOST_CHARACTERS)
    if not isinstance(call, ast.Call):
        raise ValueError("it is no call")
    try:
        named = {str(word.arg): ast.literal_eval(word.value) for word in call.keywords}
        return ast.unparse(call.func), [ast.literal_eval(one) for one in call.args], named
    except (TypeError, MemoryError, RecursionError):
        raise ValueError("it has arguments that are no literals") from None


def _tree(text: str, most: int) -> ast.expr:
    """The syntax of one expression, which nothing evaluates.

    Raises:
        ValueError: it is none, or too long or too deep.
    """
    if len(text) > most:
        raise ValueError(f"it is longer than {most} characters")
    try:
        _check_depth(text)
        return ast.parse(text.strip(), mode="eval").body
    except InputError as error:
        raise ValueError(error.message) from None
    except (SyntaxError, MemoryError, RecursionError):
        raise ValueError("it is no expression") from None


# -- arithmetic ---------------------------------------------------------------------------------------

_Names = Mapping[str, Fraction]
_Function = Callable[[_Names], Fraction]


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    length = max(base.numerator.bit_length(), base.denominator.bit_length())
    if exponent.denominator != 1 or abs(exponent) * max(length, 1) > MOST_BITS:
        raise ValueError(
            f"a power with exponent {one_line(exponent, 20)} is too large, or not of whole numbers"
        )
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
    """The exact value of a small expression: numbers, names, ``+ - * / // % **``, comparisons, ``max``, ``min``.

    Truth values are 1 and 0. Nothing else is understood, and nothing is executed.

    Args:
        expression: such as ``"2*n if n > 1 else 0"``.
        names: the values it may name.

    Raises:
        ValueError: what is no such expression, names something else, or comes to too large a number.
        ZeroDivisionError: it divides by zero.

    >>> arithmetic("max(1, 2*n - 1) / 2", {"n": Fraction(4)})
    Fraction(7, 2)
    """
    return _parsed(expression)(names)


@lru_cache(maxsize=1024)
def _parsed(expression: str) -> _Function:
    return _build(_tree(expression, MOST_EXPRESSION))


def _bounded(function: Callable[..., Any], *parts: _Function) -> _Function:
    def value(names: _Names) -> Fraction:
        fraction = Fraction(function(*(part(names) for part in parts)))
        if max(fraction.numerator.bit_length(), fraction.denominator.bit_length()) > MOST_BITS:
            raise ValueError(f"it comes to a number of more than {MOST_BITS} bits")
        return fraction

    return value


def _build(node: ast.AST) -> _Function:
    if isinstance(node, ast.Constant) and not isinstance(node.value, bool | complex | str | bytes):
        constant = Fraction(str(node.value))
        return _bounded(lambda: constant)
    if isinstance(node, ast.Name):
        return lambda names: _named(names, node.id)
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        return _bounded(_BINARY[type(node.op)], _build(node.left), _build(node.right))
    if isinstance(node, ast.UnaryOp) and type(node.op) in _UNARY:
        return _bounded(_UNARY[type(node.op)], _build(node.operand))
    if isinstance(node, ast.Compare) and all(type(op) in _COMPARE for op in node.ops):
        tests = [_COMPARE[type(op)] for op in node.ops]
        parts = [_build(part) for part in (node.left, *node.comparators)]
        return _bounded(
            lambda *values: all(test(a, b) for test, a, b in zip(tests, values, values[1:])), *parts
        )
    if isinstance(node, ast.BoolOp):
        every = all if isinstance(node.op, ast.And) else any
        parts = [_build(part) for part in node.values]
        return lambda names: Fraction(every(part(names) for part in parts))
    if isinstance(node, ast.IfExp):
        test, then, other = _build(node.test), _build(node.body), _build(node.orelse)
        return lambda names: then(names) if test(names) else other(names)
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in _CALLS
        and len(node.args) > 1
        and not node.keywords
        and not any(isinstance(argument, ast.Starred) for argument in node.args)
    ):
        return _bounded(_CALLS[node.func.id], *map(_build, node.args))
    raise ValueError(f"{one_line(ast.unparse(node), 60)!r} is no arithmetic")


def _named(names: _Names, name: str) -> Fraction:
    if name not in names:
        raise ValueError(f"there is no {name!r}")
    return names[name]
