"""Several names for one parameter: what is called ``dim`` or ``dims`` here may be given as ``axis``, as in numpy."""

from __future__ import annotations

from functools import cache, wraps
from typing import Any, TypeVar

from spmdsim.errors import UsageTypeError

Function = TypeVar("Function")

#: Names of the same parameter. A function declares one of them and takes them all.
SAME = (("dim", "dims", "axis"), ("correction", "ddof"))


@cache
def with_other_names(function: Function) -> Function:
    """The function, which now takes its parameters by their other names, too; others come back as they are.

    >>> with_other_names(lambda x, dim=0: dim)(None, axis=2)
    2
    """
    code = getattr(function, "__code__", None)
    if code is None:
        return function
    own = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    others = {
        other: name
        for names in SAME
        for name in set(names).intersection(own)
        for other in names
        if other not in own
    }
    if not others:
        return function
    places = {name: own.index(name) for name in others.values()}

    @wraps(function)  # type: ignore[arg-type]
    def call(*args: Any, **given: Any) -> Any:
        if given and not others.keys().isdisjoint(given):
            for other in [name for name in given if name in others]:
                name = others[other]
                if name in given or len(args) > places[name]:
                    first = given[name] if name in given else args[places[name]]
                    raise UsageTypeError(
                        f"{call.__name__} got {name}={first!r} and {other}={given[other]!r}, two names of one thing"
                    )
                given[name] = given.pop(other)
        return function(*args, **given)  # type: ignore[operator]

    call.__module__ = "spmdsim.ops"
    call.__doc__ = f"{function.__doc__ or ''}\n\n{_note(others)}\n"
    return call  # type: ignore[return-value]


def _note(others: dict[str, str]) -> str:
    return ", ".join(f"``{other}=`` is ``{name}=``" for other, name in others.items())
