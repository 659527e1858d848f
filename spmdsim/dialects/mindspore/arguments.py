"""Arguments written as text, such as ``(axis=-1)``: what a row of the table takes, checked and with its defaults."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cache, cached_property
from inspect import Parameter, Signature
from typing import Any

from spmdsim.errors import UsageTypeError

#: What operands of functions of elements may be called, in their order.
OPERANDS = ("condition", "input", "x", "other", "y", "exponent")


@dataclass(frozen=True)
class Arguments:
    """The arguments of a call, as written: operands stand before a ``/``, or alone; ``([x])`` is a list of them.

    >>> arguments("(x, /, axis=(), keep=False)").split("f", (1, 2), {})
    ([1], {'axis': 2, 'keep': False})
    >>> arguments("([inputs])").split("f", ((1, 2),), {}), arguments("(*operands)").split("f", (1, 2), {})
    (([1, 2], {}), ([1, 2], {}))
    >>> arguments("(axis=-1)").bind("f", (), {"axes": 0})
    Traceback (most recent call last):
    ...
    spmdsim.errors.UsageTypeError: f(axis=-1): got an unexpected keyword argument 'axes'
    """

    text: str
    signature: Signature
    operands: int

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Their names, in order; none for any number of operands."""
        return tuple(p.name for p in self.signature.parameters.values() if p.kind != p.VAR_POSITIONAL)

    @cached_property
    def defaults(self) -> list[Any]:
        """Their defaults, in order; empty ones are required."""
        return [self.signature.parameters[name].default for name in self.names]

    def bind(self, caller: str, positional: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
        """The arguments by name, with defaults.

        Raises:
            UsageTypeError: others than those taken.
        """
        rest = self.defaults[len(positional) :]
        if not named and len(positional) <= len(self.names) and Parameter.empty not in rest:
            return dict(zip(self.names, (*positional, *rest)))  # short: most calls are like this
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
        if not self.names and (not named or {*named} <= {*OPERANDS}):
            return [*positional, *(named[name] for name in OPERANDS if name in named)], {}
        items = list(self.bind(caller, positional, named).items())
        operands = [value for _, value in items[: self.operands]]
        return list(operands[0]) if self.text[1] == "[" else operands, dict(items[self.operands :])


@cache
def arguments(text: str) -> Arguments:
    """Arguments from their text."""
    tree = ast.parse(f"lambda {text[1:-1].strip('[]')}: 0", mode="eval").body
    assert isinstance(tree, ast.Lambda)
    given = tree.args
    if given.vararg is not None:
        return Arguments(text, Signature([Parameter(given.vararg.arg, Parameter.VAR_POSITIONAL)]), 1)
    names = [arg.arg for arg in (*given.posonlyargs, *given.args)]
    required = len(names) - len(given.defaults)
    defaults = [Parameter.empty] * required + [ast.literal_eval(value) for value in given.defaults]
    kind = Parameter.POSITIONAL_OR_KEYWORD
    signature = Signature([Parameter(name, kind, default=value) for name, value in zip(names, defaults)])
    return Arguments(text, signature, len(given.posonlyargs) or (len(names) if required == len(names) else 0))
