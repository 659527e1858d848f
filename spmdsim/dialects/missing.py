"""What a dialect does not cover, said in one line with the nearest thing that is there."""

from __future__ import annotations

import dis
import inspect
import sys
from collections.abc import Callable, Collection, Mapping
from functools import wraps
from typing import Any, ClassVar

from spmdsim.errors import InputError, SpmdError, UsageTypeError
from spmdsim.errors import nearest as resembling

PREFIX = "spmdsim.dialects."


class NotCovered(SpmdError, AttributeError):
    """A name of the original that has no counterpart here."""


class NotCoveredModule(SpmdError, ModuleNotFoundError):
    """A module of the original that is not here, met where it is imported."""


class NotCoveredImport(SpmdError, ImportError):
    """The same, met in ``from ... import name``: Python itself would drop what an AttributeError says."""


def not_covered(
    module: str, name: str, there: Collection[str], nearest: Mapping[str, str] | None = None
) -> Exception:
    """The error for a name that a dialect's module does not have, among those that are there or have something near.

    >>> print(not_covered("spmdsim.dialects.mindspore.nn", "Dence", ["Dense", "ReLU"]))
    mindspore.nn.Dence is not covered by this dialect; nearest: Dense
    """
    where = module.removeprefix(PREFIX)
    if name.startswith("_"):
        return AttributeError(f"module {module!r} has no attribute {name!r}")
    text = hinted(where, name, there, nearest)
    return NotCoveredImport(text) if _asked_by_import() else NotCovered(text)


def hinted(where: str, name: str, there: Collection[str], nearest: Mapping[str, str] | None) -> str:
    """What is said of a name that a module or a class does not have."""
    hint = (nearest or {}).get(name) or resembling(name, there)
    hint = f"nearest: {hint}" if hint else f"nothing is near it, dir({where}) lists what there is"
    return f"{where}.{name} is not covered by this dialect; {hint}"


def each(words: Mapping[str, str]) -> dict[str, str]:
    """A table with one entry per word, from one with several words in an entry.

    >>> each({"Conv1d Conv2d": "Dense", "Lamb": "Adam"})
    {'Conv1d': 'Dense', 'Conv2d': 'Dense', 'Lamb': 'Adam'}
    """
    return {word: there for several, there in words.items() for word in several.split()}


def told(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """The function, whose wrong arguments are refused with the nearest right one, in the name of what it makes."""

    @wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        try:
            return function(*args, **named)
        except TypeError:
            bound(name, inspect.signature(function), args, named)
            raise

    call.tells = True  # type: ignore[attr-defined]
    return call


def tell(module: str, names: Collection[str]) -> None:
    """Have a module's own functions of these names refuse wrong arguments, see :func:`told`."""
    here = vars(sys.modules[module])
    for name in names:
        function = here.get(name)
        if inspect.isfunction(function) and function.__module__ == module and not hasattr(function, "tells"):
            here[name] = told(function, name)


def bound(
    name: str, signature: inspect.Signature, args: tuple[Any, ...], named: Mapping[str, Any]
) -> inspect.BoundArguments:
    """The arguments of a call, by name; a UsageTypeError for others than those taken.

    >>> bound("SGD", inspect.signature(lambda learning_rate=0.1, parameters=None: 0), (), {"learnin_rate": 1})
    Traceback (most recent call last):
    ...
    spmdsim.errors.UsageTypeError: SGD() got an unexpected keyword argument 'learnin_rate'; nearest: learning_rate
    """
    try:
        return signature.bind(*args, **named)
    except TypeError as error:
        there = [word for word in signature.parameters if word not in ("self", "cls")]
        wrong = next((word for word in named if word not in there), "")
        near = resembling(wrong, there) if wrong else None
        what = f"got an unexpected keyword argument {wrong!r}" if wrong else str(error)
        verb = "got " if what.startswith(("multiple", "too many")) else ""
        hint = f"nearest: {near}" if near else f"it takes {', '.join(there) or 'nothing'}"
        raise UsageTypeError(f"{name}() {verb}{what}; {hint}") from None


def refuse(refusals: Mapping[str, bool], kind: type[SpmdError] = InputError) -> None:
    """Refuse, in the words of the first refusal that holds.

    >>> refuse({"a rate is a number": False, "parts are at least 1, not 0": True})
    Traceback (most recent call last):
    ...
    spmdsim.errors.InputError: parts are at least 1, not 0
    """
    for text, holds in refusals.items():
        if holds:
            raise kind(text)


class Worded:
    """Objects of another system: a word that they have there and not here is refused with what is nearest.

    So is an argument, where the class is one of a dialect's. ``ORIGINAL`` is what it is called there, ``NEAREST`` says what to
    use instead of words that resemble none here.
    """

    __slots__ = ()

    ORIGINAL: ClassVar[str] = ""
    NEAREST: ClassVar[Mapping[str, str]] = {}

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if not cls.__module__.startswith(PREFIX):
            return
        for word in {"__init__", "__new__"} & vars(cls).keys():
            setattr(cls, word, told(getattr(cls, word), cls.__name__))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        there, own = public(type(self)), resembling(name, getattr(self, "__dict__", ()))
        users = not type(self).__module__.startswith(PREFIX) and not resembling(name, there)
        if name not in self.NEAREST and (own or users):
            near = f"; nearest: {own}" if own else ""
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{near}")
        raise NotCovered(hinted(self.ORIGINAL, name, there, self.NEAREST))


def public(kind: type) -> list[str]:
    """The words of a class."""
    return [word for word in dir(kind) if not word.startswith("_") and not word.isupper()]


def _asked_by_import() -> bool:
    """Whether the module's ``__getattr__`` runs for ``from module import name``."""
    frame = sys._getframe(2)  # not_covered, __getattr__
    while frame is not None and frame.f_globals.get("__name__", "").startswith(PREFIX[:-1]):
        frame = frame.f_back  # type: ignore[assignment]
    if frame is None or frame.f_lasti < 0:
        return False
    return frame.f_code.co_code[frame.f_lasti] == dis.opmap["IMPORT_FROM"]
