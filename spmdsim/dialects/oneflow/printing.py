"""How tensors print: values to four digits, summarised above 1,000 elements, then placement, sbp and dtype.

Semantics: ``python/oneflow/framework/tensor_str.py``, which follows PyTorch.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from spmdsim.dialects.host import ends, nested
from spmdsim.dialects.oneflow.sbp import OneFlowError

PREFIX = "tensor("


@dataclass(frozen=True)
class PrintOptions:
    """What :func:`set_printoptions` sets; lines are as long as the terminal's, or 80 characters, if none is given."""

    precision: int = 4
    threshold: float = 1000
    edgeitems: int = 3
    linewidth: int | None = None
    sci_mode: bool | None = None

    @property
    def width(self) -> int:
        """Characters per line."""
        return self.linewidth or shutil.get_terminal_size((80, 24)).columns


PROFILES = {
    "default": PrintOptions(linewidth=80),
    "short": PrintOptions(precision=2, edgeitems=2, linewidth=80),
    "full": PrintOptions(threshold=math.inf, linewidth=80),
}
_current = [PrintOptions()]


def set_printoptions(
    precision: int | None = None, threshold: float | None = None, edgeitems: int | None = None, linewidth: int | None = None,
    profile: str | None = None, sci_mode: bool | None = None,
) -> None:  # fmt: skip
    """How tensors print from here on; what is left out stays, or is the profile's (``default``, ``short`` or ``full``).

    Args:
        precision: digits behind the point (4).
        threshold: tensors of more elements are summarised (1000).
        edgeitems: how many are shown at either end of a dim that is summarised (3).
        linewidth: characters per line (the terminal's, or 80).
        profile: where the others begin; a RuntimeError for another word.
        sci_mode: with exponents always, never, or (None) where numbers differ much.
    """
    if profile is not None and profile not in PROFILES:
        raise OneFlowError(f"a profile is one of {', '.join(PROFILES)}, not {profile!r}")
    named = dict(precision=precision, threshold=threshold, edgeitems=edgeitems, linewidth=linewidth)
    chosen: dict[str, Any] = {name: value for name, value in named.items() if value is not None}
    _current[0] = replace(PROFILES.get(profile or "", _current[0]), **chosen, sci_mode=sci_mode)


def shown(array: np.ndarray, suffixes: Sequence[str] = (), after: Sequence[str] = ()) -> str:
    """An array as ``tensor(..., dtype=oneflow.float32)``, with suffixes before its type and after.

    >>> print(shown(np.float32([[1, 2.5], [-3, 4]])))
    tensor([[ 1.0000,  2.5000],
            [-3.0000,  4.0000]], dtype=oneflow.float32)
    """
    empty = [] if array.size or array.ndim == 1 else [f"size={array.shape}"]
    text = _values(array, _current[0]) if array.size else "[]"
    return _with_suffixes(PREFIX + text, [*suffixes, *empty, f"dtype=oneflow.{array.dtype.name}", *after])


def without_values(shape: Sequence[int], dtype: np.dtype, suffixes: Sequence[str] = ()) -> str:
    """A tensor of which no values are known."""
    return _with_suffixes(f"{PREFIX}...", [f"size={tuple(shape)}", f"dtype=oneflow.{dtype.name}", *suffixes])


def _with_suffixes(text: str, suffixes: Sequence[str]) -> str:
    """Each suffix on the line of the one before, as long as it fits."""
    width, used = _current[0].width, len(text) - text.rfind("\n") + 1
    for suffix in suffixes:
        fits = used + len(suffix) + 2 <= width
        text += f", {suffix}" if fits else f",\n{' ' * len(PREFIX)}{suffix}"
        used = used + len(suffix) + 2 if fits else len(PREFIX) + len(suffix)
    return f"{text})"


def _values(array: np.ndarray, options: PrintOptions) -> str:
    """The numbers in brackets, of a large array those at the ends of its dims; all of one width."""
    array, cut = ends(array, options.edgeitems, options.threshold)
    written = array.astype(np.float32) if array.dtype == np.float16 else array
    numbers = written[written != 0].astype(np.float64) if written.dtype.kind == "f" else written
    style = _style(numbers, options) if written.dtype.kind == "f" else str
    width = max((len(style(value)) for value in numbers.flat), default=1)
    if written.dtype.kind == "f" and numbers.size and options.sci_mode is not None:
        style = _style(numbers, options, options.sci_mode)  # in the width that was there before
    return nested(
        array, cut, len(PREFIX), lambda value: style(value).rjust(width),
        lambda indent: (options.width - indent) // (width + 2), options.edgeitems, " ...",
    )  # fmt: skip


def _style(numbers: np.ndarray, options: PrintOptions, exponents: bool | None = None) -> Callable[[Any], str]:
    """With exponents where numbers differ much, as whole numbers with a point, or with digits behind it."""
    whole = bool((numbers == np.ceil(numbers)).all())
    if exponents is None:
        largest, least = (f.reduce(np.abs(numbers), initial=np.nan) for f in (np.fmax, np.fmin))
        exponents = bool(largest > 1000 * least or largest > 1e8 or (not whole and least < 1e-4))
    if exponents:
        return f"{{:.{options.precision}e}}".format
    return _with_point if whole else f"{{:.{options.precision}f}}".format


def _with_point(value: Any) -> str:
    return f"{value:.0f}" + "." * bool(np.isfinite(value))
