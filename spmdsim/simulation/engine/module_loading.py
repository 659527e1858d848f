"""Load modules for one rank, and modules that all ranks share."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib.machinery import SourceFileLoader
from types import CodeType
from typing import Any


class CodeSharingLoader(SourceFileLoader):
    """A loader of a source file that compiles the file once for all ranks.

    Args:
        name: name of the module.
        path: path of the file.
        codes: compiled files by path, which all loaders of a simulation share.
    """

    def __init__(self, name: str, path: str, codes: dict[str, CodeType | None]) -> None:
        super().__init__(name, path)
        self._codes = codes

    def get_code(self, fullname: str) -> CodeType | None:
        """Return the code of the module ``fullname``, compiled or from the table of codes."""
        if self.path not in self._codes:
            self._codes[self.path] = super().get_code(fullname)
        return self._codes[self.path]


class ContextLoader:
    """A module loader that runs another loader inside a context, and else behaves like it.

    Args:
        loader: the other loader. The loaded module refers to it, not to this object.
        context: gets the new module, and returns the context in which it is loaded.
    """

    def __init__(self, loader: Any, context: Callable[[Any], AbstractContextManager[None]]) -> None:
        self._loader, self._context = loader, context

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: Any) -> Any:
        """Return the module that the loader creates for ``spec``."""
        return self._loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        """Load the module inside the context.

        Args:
            module: the new module object, which Python passes.
        """
        module.__loader__ = module.__spec__.loader = self._loader
        with self._context(module):
            self._loader.exec_module(module)
