"""Types of arguments, for :mod:`argparse`."""

from __future__ import annotations

import argparse
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spmdsim.core import Layout, Mesh


def positive(text: str) -> int:
    """A whole number from 1 on.

    Raises:
        argparse.ArgumentTypeError: anything else.

    >>> positive("8")
    8
    """
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1 on, but got {text!r}")
    return number


def amount(text: str) -> float:
    """A finite number from 0 on.

    Raises:
        argparse.ArgumentTypeError: anything else.

    >>> amount("1.5")
    1.5
    """
    number = finite(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"must not be negative, but got {text!r}")
    return number


def finite(text: str) -> float:
    """A number that is neither infinite nor NaN.

    Raises:
        argparse.ArgumentTypeError: anything else.

    >>> finite("1e-2")
    0.01
    """
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise argparse.ArgumentTypeError(f"must be a finite number, but got {text!r}")
    return number


def written_layout(text: str, mesh: Mesh | None = None, ndim: int | None = None) -> Layout:
    """A layout in any notation; dialects are loaded for others than this package's own.

    Raises:
        SpmdError: none of the notations.

    >>> written_layout("dp=2,tp=4: dp,tp").short()
    'S(0)S(1)'
    """
    from spmdsim.layout.written import parse_layout

    return parse_layout(text, mesh, ndim, _other_notation)


def _other_notation(body: str, mesh: Mesh, ndim: int | None) -> Layout:
    from spmdsim.dialects.spelling import other_notation

    return other_notation(body, mesh, ndim)
