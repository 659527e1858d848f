"""Define DialectModule, the base of MindSpore's cells, OneFlow's modules and Paddle's layers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np

from spmdsim.dialects.missing import DialectObject
from spmdsim.dialects.table import Row
from spmdsim.nn import Module, ModuleList


class DialectModule(DialectObject, Module):
    """Module with the methods that PyTorch, MindSpore, OneFlow and Paddle share: children, modes and text."""

    training = True
    #: Options that are not printed.
    _hidden: tuple[str, ...] = ()

    def extra_repr(self) -> str:
        """Return the options for the brackets of the module's text; a loss has none.

        A class made from a row of a table prints the parameters of its signature, except names in ``_hidden``.
        """
        written = getattr(type(self), "__signature__", None)
        names = [] if written is None or "reduction" in vars(self) else [*written.parameters]
        return ", ".join(f"{name}={getattr(self, name)}" for name in names if name not in self._hidden)

    def __repr__(self) -> str:
        """Return the class and its options; each child follows on a line of its own, with its name."""
        return format_module_tree(type(self).__name__, self.extra_repr(), self.named_children())

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """Yield ``(name, module)`` for the direct children."""
        return ((name, child) for name, child in self._list_children() if isinstance(child, Module))

    def children(self) -> Iterator[Module]:
        """Yield the direct children."""
        return (child for _, child in self.named_children())

    def inside(self, path: str = "", include_self: bool = True) -> Iterator[tuple[str, Module]]:
        """Yield ``(path, module)`` for this module and all modules inside, parents first.

        For example, a network with a list ``layers`` yields the paths ``""``, ``"layers"``, ``"layers.0"``. Modules
        inside a child that is not a `DialectModule` are not yielded.

        Args:
            path: path of this module; children append ``.name`` to it, or have the path ``name`` if it is empty.
            include_self: also yield this module.
        """
        if include_self:
            yield path, self
        for name, child in self.named_children():
            child_path = f"{path}.{name}" if path else name
            if isinstance(child, DialectModule):
                yield from child.inside(child_path)
            else:
                yield child_path, child

    def train(self, mode: bool = True) -> DialectModule:
        """Set ``training`` of this module and all modules inside; return this module.

        Dropout acts only in training.
        """
        for _, module in self.inside():
            vars(module)["training"] = mode
        return self

    def eval(self) -> DialectModule:
        """Set ``training`` to False in this module and all modules inside; return this module."""
        return self.train(False)

    def apply(self, fn: Callable[[Any], Any]) -> DialectModule:
        """Call ``fn`` with every module inside and then with this one; return this one.

        Children come before parents. Modules inside a child that is not a `DialectModule` are left out. What ``fn``
        returns is ignored.

        Args:
            fn: takes a module; it may change the module.
        """
        for child in self.children():
            if isinstance(child, DialectModule):
                child.apply(fn)
            else:
                fn(child)
        fn(self)
        return self


class Numbered(ModuleList):
    """Sequence of modules.

    The path of a parameter begins with the number of its module, or with its name.
    """

    def _list_children(self) -> Iterator[tuple[str, Any]]:
        names = vars(self).get("_names") or map(str, count())
        yield from ((name, x) for name, x in zip(names, self._modules()) if isinstance(x, Module))


def with_zero_row(others: Callable[..., np.ndarray], row: int | None) -> Callable[..., np.ndarray]:
    """Return a function like ``others`` that sets one row of an embedding's initial table to 0.

    Args:
        others: function that returns the initial values of a block of the table from its global index, one slice per
            dim. Further arguments are passed on. Its array is copied, not changed.
        row: index of the row of zeros, from 0; None returns ``others`` itself. An index outside of the table changes
            nothing.
    """
    if row is None:
        return others

    def block_at(index: tuple[slice, ...], *options: Any) -> np.ndarray:
        block = np.array(others(index, *options))
        if index[0].start <= row < index[0].stop:
            block[row - index[0].start] = 0
        return block

    return block_at


def format_options(text: str, *optional: str) -> Callable[[Any], str]:
    """Return an ``extra_repr`` method that fills a format such as ``"p={0.p}"``.

    Args:
        text: the format; field 0 is the module.
        optional: names of attributes that follow as ``, name=value`` if they are not None.

    >>> from types import SimpleNamespace
    >>> format_options("p={0.p}", "axis", "name")(SimpleNamespace(p=0.5, axis=1, name=None))
    'p=0.5, axis=1'
    """

    def extra_repr(self: Any) -> str:
        more = [f", {name}={getattr(self, name)}" for name in optional if getattr(self, name) is not None]
        return text.format(self) + "".join(more)

    return extra_repr


def layer_row(row: Row, layer: str, keeps: Callable[..., dict[str, Any]], says: str, *optional: str) -> Row:
    """Return the row of a layer with parameters, from the row of its function.

    Args:
        row: row of the function.
        layer: name of the layer.
        keeps: function that creates the layer's attributes; see `Row`.
        says: format of the layer's text; see `format_options`.
        optional: options that follow in the text if they are not None.
    """
    return replace(row, layer=layer, keeps=keeps, says=format_options(says, *optional))


def format_module_tree(
    kind: str, extra: str, children: Iterable[Any], opening: str = "(", closing: str = ")"
) -> str:
    """Return the printed text of a network: class, options, and each child with its name.

    Args:
        kind: name of the class.
        extra: text of the options, which may be empty. With children, it is on a line of its own.
        children: ``(name, module)`` pairs, each on lines of its own, indented by 2. Without children the text is one
            line.
        opening: bracket behind the class.
        closing: bracket at the end; without children, its spaces are removed.

    >>> print(format_module_tree("Net", "", [("0", 5), ("1", 6)]))
    Net(
      (0): 5
      (1): 6
    )
    """
    lines = [f"({name}): {child!r}" for name, child in children]
    if not lines:
        return f"{kind}{opening}{extra}{closing.strip()}"
    inside = "".join(f"\n{line}" for line in [extra] * bool(extra) + lines).replace("\n", "\n  ")
    return f"{kind}{opening}{inside}\n{closing}"
