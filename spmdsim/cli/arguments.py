"""Types of arguments, for :mod:`argparse`."""

from __future__ import annotations

import argparse


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
