"""A student's file as a program: a script, or the code cells of a notebook."""

from __future__ import annotations

import json
from pathlib import Path
from types import CodeType
from typing import Any

from spmdsim.errors import InputError

CHECKING = "spmdsim-check"
"""The tag of cells that grade: they are no part of the program."""


def compiled(path: Path) -> list[CodeType]:
    """The pieces of a program, in order.

    Raises:
        InputError: no such file, no notebook, or no Python.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
    pieces = _cells(text, path) if path.suffix == ".ipynb" else {str(path): text}
    codes = []
    for name, code in pieces.items():
        try:
            codes.append(compile(code, name, "exec"))
        except (SyntaxError, ValueError) as error:
            line = getattr(error, "lineno", None)
            raise InputError(
                f"{name}{f':{line}' if line else ''}: {type(error).__name__}: {error.args[0]}"
            ) from None
    return codes


def run_program(codes: list[CodeType], path: Path) -> dict[str, Any]:
    """Run a program as a module that is imported: what stands under ``if __name__ == "__main__"`` does not run."""
    names: dict[str, Any] = {"__name__": path.stem, "__file__": str(path)}
    for code in codes:
        exec(code, names)
    return names


def _cells(text: str, path: Path) -> dict[str, str]:
    try:
        cells = json.loads(text)["cells"]
        code = [cell for cell in cells if cell["cell_type"] == "code"]
        sources = [
            ("".join(cell["source"]), CHECKING in cell.get("metadata", {}).get("tags", ())) for cell in code
        ]
    except (ValueError, TypeError, KeyError, AttributeError):
        raise InputError(f"{path} is no notebook") from None
    return {
        f"{path}[cell {number}]": "\n".join(
            "" if line.startswith(("%", "!")) else line for line in source.splitlines()
        )
        for number, (source, checks) in enumerate(sources, 1)
        if not checks
    }
