"""Functions of tensors recorded once and run again as programs: local calculations and collectives, and nothing else.

A program repeats what the function did, in its order, on other arrays. So it has the same bits and the same collectives,
which ranks compare and traces show as those of the function.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import partial, update_wrapper
from typing import Any, Generic, ParamSpec, TypeVar, cast

import numpy as np

from spmdsim.bounded import Bounded
from spmdsim.compiled.note_taker import NoteTaker
from spmdsim.compiled.replay import Replay
from spmdsim.core.world import programs
from spmdsim.errors import UsageTypeError
from spmdsim.pictured import Pictured
from spmdsim.redistribution.guard import guards
from spmdsim.tensor import Tensor
from spmdsim.tensor.in_place import without_base
from spmdsim.tensor.watch import watchers
from spmdsim.trace import recorder
from spmdsim.wrong_calls import explained

P = ParamSpec("P")
R = TypeVar("R")

#: Programs that a function keeps, and of those for arguments alike: its parameters may have gradients already, or none.
MOST, ALIKE = 32, 4


class Compiled(Pictured, Generic[P, R]):
    """A function that is recorded when it is called with something new, and run as a program from then on.

    Its latest ``programs`` are kept, by what the arguments were.
    """

    def __init__(self, function: Callable[P, R]) -> None:
        self.function = function
        self.name = getattr(function, "__qualname__", type(function).__name__).replace(".<locals>", "")
        self.programs: Bounded[Any, list[Replay]] = Bounded(MOST)
        self._latest: Replay | None = None
        update_wrapper(self, function, updated=())

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function, or run the program that does the same."""
        latest = None if kwargs else self._latest
        if latest is not None and not (programs or watchers or guards):
            leaves = latest.takes(args)
            if leaves is not None:
                return cast(R, latest.run(leaves))
        tensors: list[Tensor] = []
        key = _key([args, kwargs], tensors, self.name)
        if programs or watchers or guards or (tensors and not tensors[0].world.has_data):
            return self.function(*args, **kwargs)
        alike = self.programs.get(key, [])
        for program in alike:
            leaves = program.fits(tensors)
            if leaves is not None:
                if not kwargs and all(type(one) is Tensor for one in args):
                    self._latest = program
                return cast(R, program.run(leaves))
        return self._record(key, tensors, lambda: self.function(*args, **kwargs))

    def _record(self, key: Any, tensors: list[Tensor], call: Callable[[], R]) -> R:
        recorded = NoteTaker(self.name, tensors)
        try:
            with recorder.told(recorded):
                result = call()
        finally:  # once more: a Ctrl-C may have come between
            recorder.untold(recorded)
        if recorded.world is None or not recorded.world.has_data:
            return result
        program = Replay(recorded, result)
        self.programs[key] = [program, *self.programs.get(key, [])][:ALIKE]
        return cast(R, _detached(result))

    def __deepcopy__(self, memo: dict[int, object]) -> Compiled[P, R]:
        """The copied function, to be recorded anew: programs know the parameters, and the optimisers, of this one."""
        return Compiled(deepcopy(self.function, memo))

    def __get__(self, owner: Any, kind: Any = None) -> Any:
        """As a method: the owner comes first."""
        return self if owner is None else partial(self, owner)

    def __repr__(self) -> str:
        every = [program for alike in self.programs.values() for program in alike]
        return f"<compiled {self.name}: {len(every)} program{'s' * (len(every) != 1)}>"


def _key(value: Any, tensors: list[Tensor], name: str) -> Any:
    """What a recording depends on in a function's arguments; their tensors are appended to ``tensors``."""
    if isinstance(value, Tensor):
        if value.node is not None:
            raise UsageTypeError(
                f"{name} is compiled, and gradients end where it begins: give it the .detach() of {value!r}"
            )
        tensors.append(value)
        return value.meta, value.requires_grad, value.world
    if isinstance(value, (list, tuple)):
        return type(value), *[_key(part, tensors, name) for part in value]
    if isinstance(value, dict):
        return dict, *[(key, _key(part, tensors, name)) for key, part in value.items()]
    if isinstance(value, (float, complex, np.inexact)):  # 0.0 and -0.0 are equal, a nan is not even itself
        return type(value), repr(value)
    try:
        hash(value)
    except TypeError:
        raise UsageTypeError(
            f"{name} is compiled, and takes tensors and values that can be hashed, but got a {type(value).__name__}; "
            "make a tensor of it with Tensor.from_global"
        ) from None
    return type(value), value


def _detached(result: Any) -> Any:
    if isinstance(result, Tensor):
        return without_base(result)
    if isinstance(result, dict):
        return {key: _detached(part) for key, part in result.items()}
    return type(result)(map(_detached, result)) if isinstance(result, (list, tuple)) else result


@explained
def compile(function: Callable[P, R]) -> Compiled[P, R]:
    """Record a function of tensors once, and run only its local calculations and collectives from then on.

    The first call with tensors of other layouts, shapes or element types, or with other values that are no tensors, runs
    the function and notes what it does: operators, redistributions, gradients, updates of parameters. Later calls do
    exactly that with other arrays: the same bits, the same collectives, the same events in traces, the same errors.

    Args:
        function: of tensors, alone or in tuples, lists and dicts, and of values that can be hashed. Its Python runs
            when it is recorded, and not afterwards; parameters, gradients and optimisers' rates are read in every call.
            It returns tensors, alone or in such, and anything that stays the same. Gradients stay inside: what it returns
            has none to hand on.

    Returns:
        What is called as the function. It keeps the latest 32 programs. In a world without data, and while somebody
        watches operators, it is the function.

    Raises:
        UsageTypeError: (when it is called) it looks at numbers, takes tensors that are neither arguments nor
            parameters, or does something else that cannot be repeated, in one line; an argument that was computed with
            gradients, or that cannot be hashed.

    Example:
        >>> from spmdsim import LockStep, Mesh, Tensor, compile, nn, ops
        >>> mesh, world = Mesh((4,), ("dp",)), LockStep(4)
        >>> layer = nn.Linear(8, 2, mesh(None, None)).materialise(world)
        >>> optimiser = nn.SGD(layer.parameters(), rate=0.1)
        >>> @compile
        ... def step(x, y):
        ...     layer.zero_grad()
        ...     loss = ops.mean((layer(x) - y) ** 2)
        ...     nn.backward(loss)
        ...     optimiser.step()
        ...     return loss
        >>> x = Tensor.ones((8, 8), layout=mesh("dp", None), world=world, dtype="float32")
        >>> y = Tensor.zeros((8, 2), layout=mesh("dp", None), world=world, dtype="float32")
        >>> step(x, y).item() > step(x, y).item() > step(x, y).item()
        True
        >>> step
        <compiled step: 1 program>
    """
    if not callable(function):
        raise UsageTypeError(f"compile() takes a function of tensors, but got {function!r}")
    return Compiled(function)
