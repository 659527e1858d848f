"""Read and run Python programs: a script, or the command that starts an interpreter."""

from __future__ import annotations

import os
import re
import sys
import types
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.machinery import PathFinder
from typing import Any

from spmdsim.errors import InputError
from spmdsim.reading import require_file

#: Names of files that are Python interpreters.
_INTERPRETER = re.compile(r"python[0-9.]*(\.exe)?", re.IGNORECASE)
#: First line of an executable file that Python runs.
_PYTHON_LINE = re.compile(rb"#!.*\bpython[0-9.]*\b")
#: Options of the interpreter that have an argument, except -c and -m.
_OPTIONS_WITH_ARGUMENT = ("-W", "-X")


@dataclass(frozen=True)
class Script:
    """A program that a rank runs as its module ``__main__``.

    Attributes:
        arguments: ``sys.argv`` of the rank.
        folder: the first entry of ``sys.path``.
        source: its text.
        code: its compiled code.
        path: the absolute path of its file; "" for a text of ``python -c``.
        spec: the spec of a module of ``python -m``; None for others.
    """

    arguments: list[str]
    folder: str
    source: bytes
    code: Any
    path: str = ""
    spec: Any = None

    def run(self, main: types.ModuleType) -> None:
        """Run the program in the module ``main``, whose name is ``__main__``."""
        if self.path:
            main.__dict__["__file__"] = self.path
        if self.spec is not None:
            main.__dict__.update(
                __spec__=self.spec, __package__=self.spec.parent, __loader__=self.spec.loader
            )
        exec(self.code, main.__dict__)


def read_script(path: str, arguments: Sequence[str], folder: str | None = None, spec: Any = None) -> Script:
    """Read and compile the file of a program.

    Args:
        path: path of the file, which becomes ``sys.argv[0]``.
        arguments: the other arguments of the program.
        folder: the first entry of ``sys.path``; None: the folder of the file.
        spec: the spec of a module; None for a script.

    Raises:
        InputError: If the file does not exist, cannot be read or is not valid Python.
    """
    file = os.path.abspath(path)
    require_file(file, "script")
    try:
        with open(file, "rb") as stream:
            source = stream.read()
    except OSError as error:
        raise InputError(f"cannot read the script {file}: {error.strerror}") from None
    folder = os.path.dirname(file) if folder is None else folder
    return Script([path, *arguments], folder, source, _compile(source, file), file, spec)


def read_command(words: Sequence[str]) -> Script:
    """Return the program that a command runs.

    The command is an executable Python script, or an interpreter with a script, ``-m`` and a module, or ``-c`` and a
    text. Other options of the interpreter have no effect.

    Args:
        words: the command and its arguments.

    Raises:
        InputError: If the command is another one, or its program cannot be read or compiled.
    """
    program, *arguments = words
    if not _INTERPRETER.fullmatch(os.path.basename(program)):
        if not _is_python_script(program):
            raise InputError(
                f"command must be a Python interpreter or a script that begins with #!, got {program!r}"
            )
        return read_script(program, arguments)
    while arguments and arguments[0].startswith("-"):
        option, *arguments = arguments
        if option == "-c" and arguments:
            source = arguments[0].encode()
            return Script(["-c", *arguments[1:]], "", source, _compile(source, "<string>"))
        if option == "-m" and arguments:
            return read_module(arguments[0], arguments[1:])
        arguments = arguments[1:] if option in _OPTIONS_WITH_ARGUMENT else arguments
    if not arguments:
        raise InputError(f"args must name a script for the interpreter, got {[*words[1:]]}")
    return read_script(arguments[0], arguments[1:])


def _is_python_script(path: str) -> bool:
    """Return True if the file ``path`` can be read, and its first line says that Python runs it."""
    try:
        with open(path, "rb") as stream:
            return _PYTHON_LINE.match(stream.readline(1000)) is not None
    except OSError:
        return False


def read_module(name: str, arguments: Sequence[str]) -> Script:
    """Return the program of ``python -m``.

    Args:
        name: the dotted name of a module, or of a package with a module ``__main__``.
        arguments: the arguments of the program.

    Raises:
        InputError: If the module is not found, or has no source file.
    """
    folder, parts = os.getcwd(), name.split(".")
    spec = _find_module(parts, [folder, *sys.path])
    if spec is not None and spec.submodule_search_locations is not None:
        spec = _find_module([*parts, "__main__"], [folder, *sys.path])
    if spec is None or not str(spec.origin).endswith(".py"):
        raise InputError(f"-m must name a module in Python, got {name!r}")
    return read_script(str(spec.origin), arguments, folder, spec)


def _find_module(parts: Sequence[str], path: Any) -> Any:
    """Return the spec of a module, which is not imported; None if it is not found.

    Args:
        parts: the words of its dotted name.
        path: the folders to search.
    """
    spec = None
    for count in range(1, len(parts) + 1):
        spec = PathFinder.find_spec(".".join(parts[:count]), path)
        path = spec and spec.submodule_search_locations
        if path is None:
            return spec if count == len(parts) else None
    return spec


def _compile(source: bytes, file: str) -> Any:
    """Return the code of a program; raise InputError for a syntax error.

    Args:
        source: its text.
        file: its name in tracebacks.
    """
    try:
        return compile(source, file, "exec")
    except (SyntaxError, ValueError) as error:
        raise InputError(f"the script is not valid Python: {error}") from None
