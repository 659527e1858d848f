"""Define what MindSpore's cells, OneFlow's modules and Paddle's layers share: their children, texts and modes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import count
from typing import Any

import numpy as np

from spmdsim.dialects.missing import DialectObject
from spmdsim.nn import Module, ModuleList


class DialectModule(DialectObject, Module):
    """A module with the frameworks' words."""

    training = True
    #: Options that are not printed.
    _hidden: tuple[str, ...] = ()

    def extra_repr(self) -> str:
        """What it prints in its brackets: its options; a loss none."""
        written = getattr(type(self), "__signature__", None)
        names = [] if written is None or "reduction" in vars(self) else [*written.parameters]
        return ", ".join(f"{name}={getattr(self, name)}" for name in names if name not in self._hidden)

    def __repr__(self) -> str:
        """Its class and options, and in further lines what is inside, each by its name."""
        return tree(type(self).__name__, self.extra_repr(), self.named_children())

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """The modules right inside, by name."""
        return ((name, part) for name, part in self._parts() if isinstance(part, Module))

    def children(self) -> Iterator[Module]:
        """The modules right inside."""
        return (child for _, child in self.named_children())

    def inside(self, path: str = "", include_self: bool = True) -> Iterator[tuple[str, Module]]:
        """Yield this module, unless it is left out, and all modules inside, with their paths below ``path``."""
        if include_self:
            yield path, self
        for name, child in self.named_children():
            below = f"{path}.{name}" if path else name
            if isinstance(child, DialectModule):
                yield from child.inside(below)
            else:
                yield below, child

    def train(self, mode: bool = True) -> DialectModule:
        """Training or not, for this module and all inside: dropout asks."""
        for _, module in self.inside():
            vars(module)["training"] = mode
        return self

    def eval(self) -> DialectModule:
        """Not training, nor anything inside."""
        return self.train(False)

    def apply(self, fn: Callable[[Any], Any]) -> DialectModule:
        """Call a function with every module, those inside first."""
        for child in self.children():
            if isinstance(child, DialectModule):
                child.apply(fn)
            else:
                fn(child)
        fn(self)
        return self


class Numbered(ModuleList):
    """Modules whose parameters' paths begin with their numbers, or with the names that they were given."""

    def _parts(self) -> Iterator[tuple[str, Any]]:
        names = vars(self).get("_names") or map(str, count())
        yield from ((name, x) for name, x in zip(names, self._modules()) if isinstance(x, Module))


def padded_row(others: Callable[..., np.ndarray], row: int | None) -> Callable[..., np.ndarray]:
    """First values of a table, of which one row, if one is said, is zero."""
    if row is None:
        return others

    def block_at(index: tuple[slice, ...], *rest: Any) -> np.ndarray:
        block = np.array(others(index, *rest))
        if index[0].start <= row < index[0].stop:
            block[row - index[0].start] = 0
        return block

    return block_at


def said(text: str, *optional: str) -> Callable[[Any], str]:
    """The ``extra_repr`` of a module, from a format such as ``"p={0.p}"``; options that are not None follow."""

    def extra_repr(self: Any) -> str:
        more = [f", {name}={getattr(self, name)}" for name in optional if getattr(self, name) is not None]
        return text.format(self) + "".join(more)

    return extra_repr


def tree(kind: str, extra: str, children: Iterable[Any], opening: str = "(", closing: str = ")") -> str:
    """A network as its frameworks show it: its class and options, and in further lines what is inside, by name."""
    lines = [f"({name}): {child!r}" for name, child in children]
    if not lines:
        return f"{kind}{opening}{extra}{closing.strip()}"
    inside = "".join(f"\n{line}" for line in [extra] * bool(extra) + lines).replace("\n", "\n  ")
    return f"{kind}{opening}{inside}\n{closing}"
