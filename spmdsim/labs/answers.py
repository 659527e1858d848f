"""A student's functions in a process of their own: arguments and results travel as plain data, and the judge runs none of them.

What a function gives is read as numbers, texts, lists, meshes and layouts; anything else comes as its ``repr``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import numpy as np

from spmdsim.collectives.foreign import Other, Rounds, foreign
from spmdsim.core import Layout, Mesh
from spmdsim.errors import InputError, NoAnswer, SpmdError
from spmdsim.labs.judging import Checker, first_mistake
from spmdsim.launch.apart import Apart
from spmdsim.launch.limits import start_clock

#: Levels of lists in lists that are read, and elements of all of them together.
MOST_LEVELS, MOST_ELEMENTS = 20, 1 << 20
#: Characters of what is said of something else.
MOST_WORDS = 1000
_PLAIN = (bool, int, float, str, type(None))
_LISTS: dict[str, Callable[[Any], Any]] = {"tuple": tuple, "list": list, "set": set}

Program = Callable[[], Mapping[str, Any]]


def encode(value: Any, levels: int = MOST_LEVELS) -> Any:
    """Return a value as JSON has it; of anything that is no plain data, mesh or layout its ``repr``.

    >>> encode((1, [None, "x"]))
    ['tuple', [1, ['list', [None, 'x']]]]
    """
    if isinstance(value, np.generic):
        value = value.item()
    if type(value) in _PLAIN:
        return value
    if type(value) is np.ndarray and value.dtype.kind in "biuf" and value.size <= MOST_ELEMENTS:
        return ["array", [value.dtype.str, list(value.shape), value.reshape(-1).tolist()]]
    if levels and type(value) in (tuple, list, set, frozenset) and len(value) <= MOST_ELEMENTS:
        name = "set" if isinstance(value, frozenset) else type(value).__name__
        return [name, [encode(each, levels - 1) for each in value]]
    if type(value) is Mesh:
        return ["mesh", [list(value.shape), list(value.axes), None if value.ranks is None else list(value.ranks)]]
    if type(value) is Layout:
        return ["layout", [encode(value.mesh), encode(value.dims), encode(value.partial)]]
    return ["other", [repr(value)[:MOST_WORDS]]]


def decode(data: Any) -> Any:
    """Return the value of :func:`encode`'s data, which anybody may have written; ValueError, TypeError or SpmdError if it is none."""
    if type(data) in _PLAIN:
        return data
    kind, content = data
    if kind in _LISTS:
        return _LISTS[kind](decode(each) for each in content)
    if kind == "array":
        dtype, shape, elements = content
        if np.dtype(dtype).kind not in "biuf":
            raise ValueError(f"an array of {dtype}")
        return np.array(elements, dtype).reshape(shape)
    if kind == "mesh":
        shape, axes, ranks = content
        return Mesh(tuple(shape), tuple(axes), None if ranks is None else tuple(ranks))
    if kind == "layout":
        mesh, dims, partial = map(decode, content)
        return Layout(mesh, dims, partial)
    (words,) = content
    return Other(str(words))


class Answer:
    """A student's function that runs in a process of its own; called like a function."""

    def __init__(self, ask: Callable[..., Any]) -> None:
        self._ask = ask

    def __call__(self, *arguments: Any) -> Any:
        """Call the function in its process and return its result, read as plain data.

        Raises:
            NotImplementedError: If the function raises it.
            NoAnswer: If the function raises another error, or returns something that is no plain data.
        """
        data = self._ask("call", encode(arguments))
        try:
            unwritten, value = data
            if not unwritten:
                return decode(value)
        except (ValueError, TypeError, OverflowError, RecursionError, SpmdError):
            raise NoAnswer("the user's code writes what is no answer") from None
        raise NotImplementedError

    @cached_property
    def rounds(self) -> Callable[..., Iterator[Any]]:
        """The function as one of rank and size that generates rounds of a collective."""
        return foreign(self._ask)


@contextmanager
def answer_apart(program: Program, task: str, checker: Checker) -> Iterator[Answer]:
    """Run a student's program in a process of its own, and call one of its functions there.

    ``checker`` is what runs beside it where a task is about live objects: see :func:`checked_there`.
    """

    def make() -> Callable[[list[Any]], Any]:
        start_clock()
        function = function_of(program(), task)
        rounds = Rounds(function)

        def serve(question: list[Any]) -> Any:
            if question[0] == "call":
                try:
                    return [False, encode(function(*decode(question[1])))]
                except NotImplementedError:
                    return [True, None]
            if question[0] == "check":
                return first_mistake(checker(function))
            return rounds(question)

        return serve

    apart = Apart(make)
    try:
        yield Answer(apart.ask)
    finally:
        apart.close()


def checked_there(answer: Answer, most: int) -> tuple[int, str | None]:
    """Points and first mistake by a checker that runs beside the function: its arguments and results are no plain data.

    A program that changes the library in its process can change what is found there.
    """
    try:
        points, mistake = answer._ask("check")
        return min(max(int(points), 0), most), None if mistake is None else str(mistake)
    except (ValueError, TypeError, OverflowError):
        raise NoAnswer("the user's code writes what is no answer") from None


def function_of(names: Mapping[str, Any], task: str) -> Callable[..., Any]:
    """The function of a task in a program's names; InputError if there is none."""
    function = names.get(task)
    if not callable(function):
        raise InputError(f"there is no function {task} in the program")
    return function  # type: ignore[no-any-return]
