"""The errors that users see: one family, one line each, without internals.

An error has a message with the conflict and its values. When it leaves a public function it also has the context: the
operator, its rule, the layouts and shapes. The public function adds the context once::

    with context(operator="matmul", x="f32[8,4] S(0)R"):
        ...
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar


class SpmdError(Exception):
    """Base of all errors that a user's mistake raises.

    Args:
        message: one sentence with the conflict, the values, and the remedy.
        **facts: context shown in brackets after the message, such as ``operator`` or ``rank``.

    >>> str(SpmdError("axis 'tp' is not in the mesh", mesh="dp=2, sp=4"))
    "axis 'tp' is not in the mesh [mesh: dp=2, sp=4]"
    """

    def __init__(self, message: str, **facts: object) -> None:
        super().__init__(message)
        self.message = message
        self.facts: dict[str, object] = dict(facts)
        self.wrong_word = False  # True if the message has the nearest right word

    def __str__(self) -> str:
        if not self.facts:
            return self.message
        return f"{self.message} [{'; '.join(f'{k}: {v}' for k, v in self.facts.items())}]"


Error = TypeVar("Error", bound=SpmdError)
Value = TypeVar("Value")

MOST_LISTED = 16
"""Largest number of words that an error lists beside the nearest one."""


class LayoutError(SpmdError, ValueError):
    """The error for a mesh, layout or placement that cannot exist, or does not fit its tensor."""


class RuleError(SpmdError, ValueError):
    """The error for an operator's rule, strategy or operands that do not match."""


class OutOfRange(RuleError, IndexError):
    """The error for a dim or an index that a tensor does not have, or a mask of another shape."""


class PlanError(SpmdError, ValueError):
    """The error for an impossible redistribution, such as one between different shapes."""


class ScheduleError(SpmdError, ValueError):
    """The error for a collective algorithm that does not compute the result of its collective."""


class WorldError(SpmdError, RuntimeError):
    """The error of a world: wrong number of ranks, no MPI, a mismatched collective."""


class LauncherError(WorldError):
    """The error for a launcher whose ranks do not see each other in MPI; rank 0 alone prints it."""


class DisagreementError(WorldError):
    """The error for ranks that made different calls, or that do not arrive; it names them on every rank."""


class InputError(SpmdError, ValueError):
    """The error for a user's file, value or command-line argument that is missing, damaged or out of range."""


class NoAnswer(InputError):
    """The error for user's code in another process that exceeded a limit or has ended."""


class UsageTypeError(SpmdError, TypeError):
    """The error for an argument of the wrong type."""


class NoTensorError(UsageTypeError):
    """The error for a call without a tensor.

    A function that consists of operators catches it and names itself instead of the inner operator.
    """


@contextmanager
def context(**facts: object) -> Iterator[None]:
    """Add facts to a :class:`SpmdError` that leaves the ``with`` block, and raise it again.

    Facts that the error already has stay: the innermost block wins. Traceback and cause
    (``raise … from cause``) stay, too. Python does not print the error's ``__context__``, so that a message ends with
    the facts. Errors of other classes pass unchanged.

    Args:
        **facts: facts by name. A callable fact is called without arguments, only if an error passes, and its result is
            the fact.

    >>> from spmdsim.errors import LayoutError
    >>> try:
    ...     with context(shape=(3, 4)):
    ...         raise LayoutError("too many dims")
    ... except LayoutError as error:
    ...     print(error)
    too many dims [shape: (3, 4)]
    """
    try:
        yield
    except SpmdError as error:
        for key, value in facts.items():
            error.facts.setdefault(key, value() if callable(value) else value)
        raise error from error.__cause__  # Keep the cause; "from" hides the error's ``__context__``.


def two_names(function: str, name: str, first: object, second_name: str, second: object) -> UsageTypeError:
    """Return the error for a parameter that is passed under two names.

    Args:
        function: name of the called function.
        name: the first name.
        first: its value.
        second_name: the other name.
        second: its value.

    >>> print(two_names("sum", "dims", 0, "axis", 1))
    sum got dims=0 and axis=1, two names of one thing
    """
    return UsageTypeError(
        f"{function} got {name}={first!r} and {second_name}={second!r}, two names of one thing"
    )


def many(count: float, noun: str, several: str = "", written: str = "") -> str:
    """Return a number with a noun, in the singular or plural.

    Args:
        count: the number.
        noun: the singular, which can include a verb.
        several: the plural, if it is not the singular with an "s".
        written: text that replaces the digits, such as a number with a unit.

    >>> many(1, "rank"), many(65536, "rank")
    ('1 rank', '65,536 ranks')
    >>> many(1, "axis is", "axes are"), many(0, "axis is", "axes are")
    ('1 axis is', '0 axes are')
    >>> many(1 << 20, "byte", written="1M")
    '1M bytes'
    """
    return f"{written or f'{count:,}'} {noun if count == 1 else several or f'{noun}s'}"


def one_per_rank(values: Sequence[Value], count: int) -> list[Value]:
    """Return values, one per rank, as a new list; raise an error unless they are ``count``.

    Raises:
        UsageTypeError: If ``values`` is no list or tuple of that length; the message is for a call of gather_objects.

    >>> one_per_rank(["a", "b"], 2)
    ['a', 'b']
    >>> one_per_rank("ab", 2)
    Traceback (most recent call last):
    ...
    spmdsim.errors.UsageTypeError: gather_objects: values must be a list with one value per rank that this process ...
    """
    if isinstance(values, (list, tuple)) and len(values) == count:
        return [*values]
    kind = f"one of length {len(values)}" if isinstance(values, (list, tuple)) else repr(values)[:60]
    raise UsageTypeError(
        f"gather_objects: values must be a list with one value per rank that this process owns, of length {count}, got "
        f"{kind}; pass [value] * len(world.ranks) to give one object for all of them"
    )


def nearest(word: str, names: Iterable[str], least: float = 0.65) -> str | None:
    """Return the name that is most similar to ``word``, or None if no name is similar enough.

    Upper and lower case do not count, except among names that differ in nothing else. Names with the same letters in
    another order are similar, too.

    Args:
        word: the unknown word.
        names: the right words.
        least: least similarity (the ratio of :mod:`difflib`), between 0 and 1.

    >>> nearest("linaer", ["matmul", "linear"]), nearest("Rnu", ["run"]), nearest("pt", ["dp", "tp"])
    ('linear', 'run', 'tp')
    >>> nearest("Sned", ["send", "Send"])
    'Send'
    """
    from difflib import get_close_matches

    names = list(names)
    lower = {name.lower() for name in names}
    # ``get_close_matches`` does not find short words with swapped letters.
    swapped = [name for name in lower if sorted(name) == sorted(word.lower())]
    close = get_close_matches(word.lower(), lower, 1, least) or swapped
    spelled = [name for name in names if close and name.lower() == close[0]]
    # Of names that differ only in case, take the one that has most letters as the word has them.
    return max(spelled, key=lambda name: sum(a == b for a, b in zip(name, word)), default=None)


def right_words(word: str, names: Iterable[str], listed: str = "there are") -> str:
    """Return the end of an error about an unknown word: the nearest right word, and all words.

    Without a similar word it is only the list.

    Args:
        word: the unknown word.
        names: the right words. If one is similar and they are more than :data:`MOST_LISTED` (16), they are not listed.
        listed: text before the list.

    >>> right_words("linaer", ["matmul", "linear"])
    "did you mean 'linear'? there are matmul, linear"
    """
    names = list(names)
    suggestion = nearest(word, names)
    if suggestion is None:
        return f"{listed} {', '.join(names)}"
    list_text = f" {listed} {', '.join(names)}" if len(names) <= MOST_LISTED else ""
    return f"did you mean {suggestion!r}?{list_text}"


def unknown(
    sentence: str,
    word: str,
    names: Iterable[str],
    error: type[Error] = InputError,  # type: ignore[assignment]
    listed: str = "there are",
) -> Error:
    """Return the error for an unknown word.

    Args:
        sentence: the problem, with the word.
        word: the unknown word.
        names: the right words.
        error: class of the error.
        listed: text before the list of the right words.

    >>> raise unknown("no planet is called 'Mras'", "Mras", ["Venus", "Mars"])
    Traceback (most recent call last):
    spmdsim.errors.InputError: no planet is called 'Mras'; did you mean 'Mars'? there are Venus, Mars
    """
    # The word can be a number, as in mesh.axis_index(0).
    raised = error(f"{sentence}; {right_words(str(word), names, listed)}")
    raised.wrong_word = True
    return raised


def working_folder() -> str:
    """Return the path of the working folder of this process.

    Raises:
        InputError: If the folder was removed.

    >>> working_folder() == os.path.realpath(".")
    True
    """
    try:
        return os.getcwd()
    except FileNotFoundError:
        raise InputError("the working folder of this process was removed; change to another folder") from None
