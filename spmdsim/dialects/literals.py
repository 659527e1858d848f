"""Integers, names and nested tuples as they are written on a command line."""

from __future__ import annotations

import re
from typing import Any

from spmdsim.dialects.nested import flatten
from spmdsim.errors import InputError
from spmdsim.reading import literal, one_line


def split_entries(text: str) -> list[str]:
    """The entries between commas that are in no bracket.

    >>> split_entries("mp,(sp,dp), None")
    ['mp', '(sp,dp)', 'None']
    """
    entries, depth, start = [], 0, 0
    for i, char in enumerate(text):
        depth += (char in "([{") - (char in ")]}")
        if depth < 0:
            raise InputError(f"a bracket closes that was not opened in {text!r}")
        if char == "," and depth == 0:
            entries.append(text[start:i].strip())
            start = i + 1
    if depth:
        raise InputError(f"a bracket is not closed in {text!r}")
    last = text[start:].strip()
    return [*entries, last] if last or not entries else entries


def parse_ints(text: str, what: str) -> tuple[int, ...]:
    """Integers: ``2,4``, ``(2, 4)``, ``[2 4]`` or ``2x4``.

    Raises:
        InputError: something else.

    >>> parse_ints("2x4", "mesh"), parse_ints("(32, 784)", "shape"), parse_ints("()", "shape")
    ((2, 4), (32, 784), ())
    """
    words = [word for word in re.split(r"[\s,]+|(?<=\d)\s*[x×]\s*(?=\d)", text.strip().strip("()[]")) if word]
    try:
        return tuple(int(word) for word in words)
    except ValueError:
        raise InputError(f"{what} should be integers such as 2,4, but got {text!r}") from None


def parse_names(text: str) -> tuple[str, ...]:
    """Names between commas, with or without quotes and brackets.

    >>> parse_names("('dp', 'mp')")
    ('dp', 'mp')
    """
    return tuple(name.strip().strip("'\"") for name in text.strip().strip("()[]").split(",") if name.strip())


def parse_nested(text: str, what: str) -> Any:
    """Nested integers, such as cuts ``((2,4),(4,1))`` or ranks ``[[0,1],[2,3]]``.

    Raises:
        InputError: not a literal.
    """
    try:
        return literal(text)
    except ValueError:
        raise InputError(
            f"{what} should be nested integers such as ((2,4),(4,1)), but got {one_line(text)!r}"
        ) from None


def parse_tuples(text: str, what: str) -> tuple[tuple[int, ...], ...]:
    """Several tuples of integers: shapes ``(32,784),(784,512)`` or cuts ``((2,4),(4,1))``.

    >>> parse_tuples("(32,784),(784,512)", "shapes"), parse_tuples("((2,4),(4,1))", "cuts")
    (((32, 784), (784, 512)), ((2, 4), (4, 1)))
    >>> parse_tuples("(32,784),(512)", "shapes")
    ((32, 784), (512,))
    """
    value = parse_nested(text, what)
    if isinstance(value, int):
        value = ((value,),)
    elif all(isinstance(item, int) for item in value):
        value = (value,)
    value = [(item,) if type(item) is int else item for item in value]
    for item in value:
        if not isinstance(item, list | tuple) or not all(type(n) is int for n in item):
            raise InputError(f"{what} should be tuples of integers such as ((2,4),(4,1)), but got {text!r}")
    return tuple(tuple(item) for item in value)


def parse_order(text: str) -> list[int]:
    """The ranks in mesh order: ``3,1,0,2`` or nested lists.

    >>> parse_order("[[3,1],[0,2]]")
    [3, 1, 0, 2]
    """
    return list(
        flatten(parse_nested(text if "," in text else f"{text},", "the rank order"), "the rank order")[1]
    )
