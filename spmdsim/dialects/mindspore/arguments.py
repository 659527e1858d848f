"""Arguments written as text, such as ``(axis=-1)``: what a row of the table takes, checked and with its defaults."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cache
from inspect import Parameter, Signature
from typing import Any

from spmdsim.errors import UsageTypeError


@dataclass(frozen=True)
class Arguments:
    """The arguments of a call. What stands before a ``/`` are operands, what follows are attributes.

    Attributes:
        text: as written.
        signature: their names and defaults.
        operands: how many operands are first; None for as many as there are.
        listed: whether the first argument is a list of all operands.
    """

    text: str
    signature: Signature
    operands: int | None
    listed: bool = False

    def bind(self, caller: str, positional: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
        """The arguments by name, with defaults.

        Raises:
            UsageTypeError: others than those taken.
        """
        try:
            bound = self.signature.bind(*positional, **named)
        except TypeError as error:
            raise UsageTypeError(f"{caller}{self.text}: {error}") from None
        bound.apply_defaults()
        return bound.arguments

    def split(
        self, caller: str, positional: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[list[Any], dict[str, Any]]:
        """Operands and attributes of a call."""
        if self.operands is None and not named:
            return list(positional), {}
        found = self.bind(caller, positional, named)
        values = list(found.values())
        if self.listed:
            return list(values[0]), dict(list(found.items())[1:])
        return values[: self.operands], dict(list(found.items())[self.operands :])


@cache
def arguments(text: str) -> Arguments:
    """Arguments from their text.

    >>> arguments("(x, /, axis=(), keep=False)").split("f", (1, 2), {})
    ([1], {'axis': 2, 'keep': False})
    >>> arguments("([inputs])").split("f", ((1, 2),), {})
    ([1, 2], {})
    >>> arguments("(axis=-1)").bind("f", (), {"axes": 0})
    Traceback (most recent call last):
    ...
    spmdsim.errors.UsageTypeError: f(axis=-1): got an unexpected keyword argument 'axes'
    """
    listed = text.startswith("([")
    written = text.replace("[", "", 1).replace("]", "", 1) if listed else text
    tree = ast.parse(f"lambda {written[1:-1]}: 0", mode="eval").body
    assert isinstance(tree, ast.Lambda)
    given = tree.args
    names = [arg.arg for arg in (*given.posonlyargs, *given.args)]
    defaults = [ast.literal_eval(value) for value in given.defaults]
    first = len(names) - len(defaults)
    found = [
        Parameter(
            name,
            Parameter.POSITIONAL_OR_KEYWORD,
            default=defaults[k - first] if k >= first else Parameter.empty,
        )
        for k, name in enumerate(names)
    ]
    count: int | None = len(given.posonlyargs) or (first if first == len(names) else 0)
    if given.vararg is not None:
        found, count = [Parameter(given.vararg.arg, Parameter.VAR_POSITIONAL)], None
    return Arguments(text, Signature(found), count, listed)
