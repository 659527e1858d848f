"""The errors users see: one family, one line each, no internals.

An error carries *what* conflicts (with the values) and, when it leaves a public function, *where*: the
operator, its rule, the layouts and shapes. The context is added once, at the public boundary::

    with context(operator="matmul", x="f32[8,4] S(0)R"):
        ...
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar


class SpmdError(Exception):
    """Base of all errors raised for a user's mistake.

    Args:
        message: one sentence that says what conflicts, with the values, and what would be right.
        **facts: context shown in brackets after the message, such as ``operator`` or ``rank``.

    >>> str(SpmdError("axis 'tp' is not in the mesh", mesh="dp=2, sp=4"))
    "axis 'tp' is not in the mesh [mesh: dp=2, sp=4]"
    """

    def __init__(self, message: str, **facts: object) -> None:
        super().__init__(message)
        self.message = message
        self.facts: dict[str, object] = dict(facts)
        self.wrong_word = False  # a help lists the right ones

    def __str__(self) -> str:
        if not self.facts:
            return self.message
        return f"{self.message} [{'; '.join(f'{k}: {v}' for k, v in self.facts.items())}]"


Error = TypeVar("Error", bound=SpmdError)
Value = TypeVar("Value")

MOST_LISTED = 16
"""Where there are more words than this, the nearest one is said alone."""


class LayoutError(SpmdError, ValueError):
    """A mesh, layout or placement that cannot exist, or does not fit its tensor."""


class RuleError(SpmdError, ValueError):
    """An operator's rule, strategy or operands that do not fit one another."""


class OutOfRange(RuleError, IndexError):
    """A dim or an index that a tensor does not have, or a mask of another shape."""


class PlanError(SpmdError, ValueError):
    """A redistribution that has no meaning, such as one between different shapes."""


class ScheduleError(SpmdError, ValueError):
    """A collective algorithm that does not do what its collective promises."""


class WorldError(SpmdError, RuntimeError):
    """The world cannot run this: wrong number of ranks, no MPI, a mismatched collective."""


class DisagreementError(WorldError):
    """Ranks did not do the same, or do not come: the message says who, on every rank that notices."""


class InputError(SpmdError, ValueError):
    """A file, a value or a command-line argument of the user's that is missing, damaged or out of range."""


class NoAnswer(InputError):
    """Somebody's code, in a process of its own, that reached a limit or has ended and says nothing any more."""


class UsageTypeError(SpmdError, TypeError):
    """An argument of the wrong type."""


class NoTensorError(UsageTypeError):
    """A call in which nothing is a tensor. A function made of operators names itself in the place of the inner one."""


@contextmanager
def context(**facts: object) -> Iterator[None]:
    """Add facts to a :class:`SpmdError` that passes through, and hide where inside us it arose.

    A fact may be a function, which is called when there is an error.

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
        raise error from None


def two_names(function: str, name: str, first: object, other: str, second: object) -> UsageTypeError:
    """What is said of a parameter that is given under two names.

    Args:
        function: what was called.
        name: one of the names.
        first: what was given under it.
        other: the other name.
        second: what was given under that.

    >>> print(two_names("sum", "dims", 0, "axis", 1))
    sum got dims=0 and axis=1, two names of one thing
    """
    return UsageTypeError(f"{function} got {name}={first!r} and {other}={second!r}, two names of one thing")


def many(count: float, noun: str, several: str = "", written: str = "") -> str:
    """A number of things in words.

    Args:
        count: how many there are.
        noun: what one is called, maybe with its verb.
        several: what others than one are called, where that is not just an "s" more.
        written: the number in other digits or units.

    >>> many(1, "rank"), many(65536, "rank")
    ('1 rank', '65,536 ranks')
    >>> many(1, "axis is", "axes are"), many(0, "axis is", "axes are")
    ('1 axis is', '0 axes are')
    >>> many(1 << 20, "byte", written="1M")
    '1M bytes'
    """
    return f"{written or f'{count:,}'} {noun if count == 1 else several or f'{noun}s'}"


def one_per_rank(values: Sequence[Value], count: int) -> list[Value]:
    """Return a copy of a list of `count` values; raise UsageTypeError if it is something else, such as one object.

    >>> one_per_rank(["a", "b"], 2)
    ['a', 'b']
    >>> one_per_rank("ab", 2)
    Traceback (most recent call last):
    ...
    spmdsim.errors.UsageTypeError: gather_objects: values must be a list with one value per rank that this process owns...
    """
    if isinstance(values, (list, tuple)) and len(values) == count:
        return [*values]
    kind = f"one of length {len(values)}" if isinstance(values, (list, tuple)) else repr(values)[:60]
    raise UsageTypeError(
        f"gather_objects: values must be a list with one value per rank that this process owns, of length {count}, got "
        f"{kind}; pass [value] * len(world.ranks) to give one object for all of them"
    )


def nearest(word: str, names: Iterable[str], least: float = 0.65) -> str | None:
    """Return the known word that is most like ``word``; None if no word is like it to a share of ``least``.

    >>> nearest("linaer", ["matmul", "linear"]), nearest("Rnu", ["run"]), nearest("pt", ["dp", "tp"])
    ('linear', 'run', 'tp')
    >>> nearest("Sned", ["send", "Send"])
    'Send'
    """
    from difflib import get_close_matches

    names = list(names)
    lower = {name.lower() for name in names}
    swapped = [
        name for name in lower if sorted(name) == sorted(word.lower())
    ]  # short words are unlike otherwise
    close = get_close_matches(word.lower(), lower, 1, least) or swapped
    spelled = [name for name in names if close and name.lower() == close[0]]
    return max(spelled, key=lambda name: sum(a == b for a, b in zip(name, word)), default=None)


def right_words(word: str, names: Iterable[str], listed: str = "there are") -> str:
    """Which word may have been meant, and which there are.

    Args:
        word: the unknown one.
        names: all that there are.
        listed: what stands before the list of them.

    >>> right_words("linaer", ["matmul", "linear"])
    "did you mean 'linear'? there are matmul, linear"
    """
    names = list(names)
    near = nearest(word, names)
    if near is None:
        return f"{listed} {', '.join(names)}"
    rest = f" {listed} {', '.join(names)}" if len(names) <= MOST_LISTED else ""
    return f"did you mean {near!r}?{rest}"


def unknown(
    sentence: str,
    word: str,
    names: Iterable[str],
    error: type[Error] = InputError,  # type: ignore[assignment]
    listed: str = "there are",
) -> Error:
    """The error for a word that is none of those there are.

    Args:
        sentence: what is wrong, with the word.
        word: what was written.
        names: what could have been.
        error: class of the error.
        listed: begins the list of them.

    >>> raise unknown("no planet is called 'Mras'", "Mras", ["Venus", "Mars"])
    Traceback (most recent call last):
    spmdsim.errors.InputError: no planet is called 'Mras'; did you mean 'Mars'? there are Venus, Mars
    """
    # The word may be a number: users write mesh.axis_index(0).
    raised = error(f"{sentence}; {right_words(str(word), names, listed)}")
    raised.wrong_word = True
    return raised


def working_folder() -> str:
    """The path of the folder that this process works in.

    >>> working_folder() == os.path.realpath(".")
    True

    Raises:
        InputError: somebody has removed it.
    """
    try:
        return os.getcwd()
    except FileNotFoundError:
        raise InputError(
            "the folder in which this was started is not there any more: go to another one"
        ) from None
