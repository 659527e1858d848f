"""What parameters mean that many functions have: said once, and shown in the docstring of each."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from inspect import cleandoc, signature
from typing import Any, TypeVar

from spmdsim.wrong_calls import explained

F = TypeVar("F", bound=Callable[..., Any])


def _but(table: Mapping[str, str], **others: str) -> dict[str, str]:
    """A table in which some rows are others."""
    return {**table, **others}


#: What parameters of functions that make tensors mean, and what these functions refuse.
MADE = {
    "shape": "sizes of the dims; a number is that of the only dim.",
    "dtype": "element type; float64 if left out.",
    "layout": "where the pieces go; every rank has all of it if left out.",
    "world": "the world of the ranks; :func:`spmdsim.world` if left out.",
    "device": '``"cpu"`` or None, for the array API standard.',
}
REFUSED = {
    "InputError": "a negative size, an element type that is no number, another device.",
    "LayoutError": "a layout for another number of dims.",
}
LIKE = {
    "x": "the other tensor.",
    "dtype": "element type; the other's if left out.",
    "layout": "where the pieces go; as the other's, with nothing pending, if left out.",
    "device": MADE["device"],
}
NOT_LIKE = _but(REFUSED, InputError="an element type that is no number, another device.")
NOT_LIKE["UsageTypeError"] = "the other is no tensor."
#: What the parameters of transforms mean, and what is refused.
TRANSFORMED = {
    "x": "the tensor.",
    "n": "points of the transform: the dim is cut to so many, or filled up with zeros; its size if left out.",
    "axis": "the dim.",
    "s": "points of each dim, as ``n`` of :func:`fft`; None or -1 stands for what is taken if it is left out.",
    "axes": "the dims; if left out all, or as many of the last as ``s`` has points.",
    "norm": 'where it is scaled by 1/n: ``"backward"`` (the default), ``"forward"`` or ``"ortho"``, half each.',
    "layout": "where the result is to go; it stays where it was computed if left out.",
}
OF_ONE = {
    "RuleError": "a dim out of range, no points, an unknown norm.",
    "PlanError": "a layout for another number of dims.",
    "UsageTypeError": "no tensor.",
}
OF_SEVERAL = _but(
    OF_ONE,
    RuleError="a dim out of range, no dims, no points or those of another number of dims, an unknown norm.",
)
#: Of transforms to real numbers.
HALF = _but(
    TRANSFORMED,
    x="the first half of the values: of the dim, or of the last of several.",
    n="points of the result; ``2 * (m - 1)`` for a dim of size ``m`` if left out.",
    s="points of each dim of the result; if left out (or None or -1) as it is, the last as ``n`` of :func:`irfft`.",
)
REAL = _but(TRANSFORMED, x="real numbers; complex ones are refused.")
#: What parameters of single functions mean.
_NUMBER = {"fill_value": "the number; also a tensor of one element."}
_OWN = {
    "full": {**_NUMBER, "dtype": "element type; the number's if left out."},
    "full_like": _NUMBER,
    "arange": {
        "start": "the first number; if it is the only one given, ``stop``.",
        "stop": "where to end; the number itself is left out.",
        "step": "from one number to the next; negative to go down, not zero.",
        "dtype": "element type; the one in which the three numbers meet if left out.",
    },
    "linspace": {
        "start": "the first number.",
        "stop": "the last number, or the one that would follow.",
        "num": "how many numbers.",
        "dtype": "element type; float64, or complex128 of complex numbers, if left out. Integers are rounded down.",
        "endpoint": "whether ``stop`` is the last number.",
    },
    "eye": {
        "n_rows": "number of rows.",
        "n_cols": "number of columns; as many as rows if left out.",
        "k": "how many columns to the right of the main diagonal; negative to the left.",
    },
    "from_dlpack": {
        "x": "what has ``__dlpack__``, such as an array of another library; or a tensor.",
        "copy": "of a tensor as :func:`asarray` has it; of anything else the values may be copied whatever it says.",
        "layout": "where the pieces go; a tensor stays where it is, every rank has all of an array, if left out.",
    },
}


def documented(meanings: Mapping[str, str], errors: Mapping[str, str]) -> Callable[[F], F]:
    """A decorator: docstrings gain, before the example, what the function's parameters mean and when which error is raised."""

    def of(function: F) -> F:
        about, *example = re.split(
            r"^(?=>>> )", cleandoc(function.__doc__ or ""), maxsplit=1, flags=re.MULTILINE
        )
        mine = {**meanings, **_OWN.get(function.__name__, {})}
        own = {name: mine[name] for name in signature(function).parameters}
        sections = [
            "\n".join([f"{title}:", *(f"    {name}: {words}" for name, words in entries.items())])
            for title, entries in (("Args", own), ("Raises", errors))
        ]
        function.__doc__ = "\n\n".join([about.rstrip(), *sections, *example])
        return explained(function)

    return of
