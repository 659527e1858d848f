"""Format tensors: values to four digits, summarised above 1,000 elements, then placement, sbp and dtype.

Semantics: ``python/oneflow/framework/tensor_str.py``, which follows PyTorch.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from spmdsim.dialects.host import format_nested, keep_ends

PREFIX = "tensor("


#: Digits behind the point; elements above which a tensor is summarised; elements shown at either end of a summarised dim.
PRECISION, THRESHOLD, EDGE_ITEMS = 4, 1000, 3


def line_width() -> int:
    """Return the characters per line: those of the terminal, or 80."""
    return shutil.get_terminal_size((80, 24)).columns


def format_array(array: np.ndarray, suffixes: Sequence[str] = (), after: Sequence[str] = ()) -> str:
    """Return an array as ``tensor(..., dtype=oneflow.float32)``.

    ``suffixes`` come before the type, ``after`` behind it.

    >>> print(format_array(np.float32([[1, 2.5], [-3, 4]])))
    tensor([[ 1.0000,  2.5000],
            [-3.0000,  4.0000]], dtype=oneflow.float32)
    """
    empty = [] if array.size or array.ndim == 1 else [f"size={array.shape}"]
    text = _format_values(array) if array.size else "[]"
    return _append_suffixes(PREFIX + text, [*suffixes, *empty, f"dtype=oneflow.{array.dtype.name}", *after])


def without_values(shape: Sequence[int], dtype: np.dtype, suffixes: Sequence[str] = ()) -> str:
    """Return the text of a tensor without values: its shape, its type and suffixes."""
    return _append_suffixes(
        f"{PREFIX}...", [f"size={tuple(shape)}", f"dtype=oneflow.{dtype.name}", *suffixes]
    )


def _append_suffixes(text: str, suffixes: Sequence[str]) -> str:
    """Return a text with comma-separated suffixes and a closing bracket.

    For example, ``tensor([]`` with the suffix ``dtype=oneflow.int32`` gives ``tensor([], dtype=oneflow.int32)``. Each
    suffix follows on the current line if it fits in the terminal's width; else it begins a new line, indented like the
    tensor's numbers.
    """
    width, used = line_width(), len(text) - text.rfind("\n") + 1
    for suffix in suffixes:
        fits = used + len(suffix) + 2 <= width
        text += f", {suffix}" if fits else f",\n{' ' * len(PREFIX)}{suffix}"
        used = used + len(suffix) + 2 if fits else len(PREFIX) + len(suffix)
    return f"{text})"


def _format_values(array: np.ndarray) -> str:
    """Return the numbers in brackets, all of one width and aligned at the right.

    Of an array with more than THRESHOLD elements, dims longer than 2 * EDGE_ITEMS show EDGE_ITEMS elements at each end.
    Lines have the width of the terminal. Zeros have no influence on the style of floats.

    Args:
        array: the numbers, at least one.
    """
    array, cut = keep_ends(array, EDGE_ITEMS, THRESHOLD)
    written = array.astype(np.float32) if array.dtype == np.float16 else array
    numbers = written[written != 0].astype(np.float64) if written.dtype.kind == "f" else written
    style = _choose_style(numbers) if written.dtype.kind == "f" else str
    width = max((len(style(value)) for value in numbers.flat), default=1)
    return format_nested(
        array, cut, len(PREFIX), lambda value: style(value).rjust(width),
        lambda indent: (line_width() - indent) // (width + 2), EDGE_ITEMS, " ...",
    )  # fmt: skip


def _choose_style(numbers: np.ndarray) -> Callable[[Any], str]:
    """Return the function that formats all floats of a tensor, chosen by their values as in PyTorch.

    It writes exponents if the largest is over 1e8 or over 1000 times the smallest, or if not all are whole and the
    smallest is below 1e-4. Else it writes a point at the end if all are whole, or four digits behind the point.
    Absolute values count, and nan is left out.
    """
    are_whole = bool((numbers == np.ceil(numbers)).all())
    largest, least = (f.reduce(np.abs(numbers), initial=np.nan) for f in (np.fmax, np.fmin))
    if largest > 1000 * least or largest > 1e8 or (not are_whole and least < 1e-4):
        return f"{{:.{PRECISION}e}}".format
    return _format_with_point if are_whole else f"{{:.{PRECISION}f}}".format


def _format_with_point(value: Any) -> str:
    """Format a whole number with a point at its end; infinities and NaN without."""
    return f"{value:.0f}" + "." * bool(np.isfinite(value))
