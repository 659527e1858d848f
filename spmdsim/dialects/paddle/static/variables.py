"""What recorded calls are about: variables without values, and the arguments in which they stand."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from spmdsim.dialects.missing import NotCovered, not_covered
from spmdsim.dialects.paddle.tensors import Shape, Tensor, shape_only
from spmdsim.dialects.session import use_world
from spmdsim.errors import InputError, SpmdError, UsageTypeError
from spmdsim.tensor import Tensor as CoreTensor
from spmdsim.trace.recorder import unseen
from spmdsim.worlds.base import World

#: Stands for a size that a feed decides: what comes of it is a multiple, and many parts divide it.
UNKNOWN = 9973 * 40320


class Variable:
    """A tensor of a program that is run later: name, shape (-1: what the feed decides) and type, but no values."""

    def __init__(self, program: Any, key: int, tensor: Tensor, name: str) -> None:
        self.program, self.key, self.tensor, self.name = program, key, tensor, name

    @property
    def shape(self) -> Shape:
        """Global shape."""
        return Shape(-1 if size and size % UNKNOWN == 0 else size for size in self.tensor.shape)

    dtype = property(lambda self: self.tensor.dtype, doc="Element type.")
    ndim = property(lambda self: self.tensor.ndim, doc="Number of dims.")
    requires_grad = property(lambda self: self.tensor.requires_grad, doc="Whether a gradient comes here.")

    @property
    def stop_gradient(self) -> bool:
        """Whether no gradient goes through it."""
        return self.tensor.stop_gradient

    @stop_gradient.setter
    def stop_gradient(self, value: bool) -> None:
        self.tensor.stop_gradient = value
        self.program.stops[self.key] = bool(value)

    def _no_value(self, *_: Any) -> Any:
        raise UsageTypeError(
            f"{self.name} has no values before its program runs; nearest: exe.run(feed={{...}}, fetch_list=[{self.name}])"
        )

    __bool__ = __float__ = __int__ = __len__ = __iter__ = __array__ = _no_value

    def __getattr__(self, name: str) -> Any:
        if name in ("numpy", "item", "tolist", "full", "backward", "grad", "gradient"):
            raise NotCovered(
                f"{self.name}.{name}: a program's variable has it only in a run; nearest: "
                + ("optimizer.minimize(loss)" if name == "backward" else "exe.run(fetch_list=[...])")
            )
        if name.startswith("_"):
            raise AttributeError(name)
        raise NotCovered(str(not_covered("paddle.static.Variable", name, dir(type(self)))))

    def __repr__(self) -> str:
        return f"var {self.name} : shape{self.shape}.dtype({self.dtype}).stop_gradient({self.stop_gradient})"


@dataclass(frozen=True)
class Ref:
    """Among recorded arguments: a value of the program."""

    key: int


@dataclass(frozen=True)
class Missing:
    """In a run: a value that waits for a feed."""

    feed: str


def not_fed(name: str) -> InputError:
    """What says that a feed is missing."""
    return InputError(f"variable {name} is not fed: exe.run(feed={{{name!r}: array, ...}}) must have it")


def mapped(value: Any, of: Callable[[Any], Any]) -> Any:
    """Lists, tuples and dicts with what stands in them replaced."""
    if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
        return type(value)(mapped(x, of) for x in value)
    if isinstance(value, dict):
        return {name: mapped(x, of) for name, x in value.items()}
    return of(value)


def variables_in(args: Any, options: Any) -> list[Variable]:
    """The variables among arguments."""
    variables: list[Variable] = []
    mapped((args, options), lambda x: variables.append(x) if isinstance(x, Variable) else None)
    return variables


def without_data(x: Any, world: World) -> Any:
    """A variable or a tensor as it is in a world without data; parameters say so themselves."""
    if isinstance(x, Variable):
        return x.tensor
    return shape_only(x, world) if isinstance(x, CoreTensor) and getattr(x, "owner", None) is None else x


@contextmanager
def shapes_alone(world: World, names: str) -> Iterator[None]:
    """In the ``with`` block nothing is computed or counted; sizes that a feed decides are -1 in errors, too."""
    try:
        with use_world(world), unseen():
            yield
    except SpmdError as error:
        error.message, facts = (
            re.sub(r"\d{9,}", lambda m: "-1" if int(m[0]) % UNKNOWN == 0 else m[0], str(text))
            for text in (error.message, names)
        )
        error.facts = {"operator": error.facts.get("operator", "a recorded call"), "operands": facts}
        raise error from None
