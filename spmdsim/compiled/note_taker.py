"""What a function does, written down while it runs: local calculations and steps, and the operators they belong to.

Each is noted where it is done anyway (``performed`` in core, ``World.run``), with the numbers of the values that it reads
and makes. A value that comes from nowhere is refused: a program that repeats the notes could not know it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from threading import get_ident
from typing import Any, NoReturn

from spmdsim.core.step import Step
from spmdsim.errors import UsageTypeError
from spmdsim.nn.optimiser_base import Optimiser
from spmdsim.tensor import Tensor
from spmdsim.tensor.operator_calls import CallRecipe
from spmdsim.tensor.sources import Described
from spmdsim.trace import recorder, source_lines


@dataclass(eq=False)
class Note:
    """One thing that a program does, from values by number to values: a list per tensor, an array per owned rank."""

    run: partial[Any]  # of a step, an operator's recipe, a parameter or a function of arrays
    inputs: tuple[int, ...]
    outputs: tuple[int | None, ...]  # None for a gradient that there is not
    several: bool  # whether it makes any number of values, in a list
    line: str | None  # the user's


@dataclass(eq=False)
class OperatorScope:
    """An operator begins, has run (its recipe) or, with neither, ends: what traces want to know."""

    begins: recorder.operator | None = None
    ran: Any = None
    line: str | None = None


class NoteTaker(recorder.Trace):
    """Writes down what a function does while it runs; ``tensors`` are those among its arguments."""

    def __init__(self, name: str, tensors: Sequence[Tensor]) -> None:
        super().__init__()
        self.name, self.tensors = name, list(tensors)
        self.script: list[Note | OperatorScope] = []
        self.constants: dict[int, list[Any]] = {}
        self.values = 0
        self.parameters: list[Any] = []
        self.leaves: list[Tensor] = []
        #: Per leaf the number of its value, its gradient before, and that one's number.
        self.before: list[tuple[int, Tensor | None, int | None]] = []
        self.assigned_to: dict[int, Any] = {}
        #: Per parameter the numbers of all values that it was assigned, one after the other.
        self.assignments: dict[int, list[int]] = {}
        self.optimisers: dict[int, Optimiser] = {}
        self._numbers: dict[tuple[int, ...], int] = {}
        #: The arrays of each value; kept, else another one might get the identity, or the memory, of one that is gone.
        self.arrays: list[list[Any]] = []
        self._within, self._thread = False, get_ident()
        self.world: Any = None
        for tensor in tensors:
            self._leaf(tensor)

    def refuse(self, why: str) -> NoReturn:
        """Raise what says that this cannot be recorded."""
        raise UsageTypeError(f"{self.name} cannot be compiled: {why}")

    # -- values ---------------------------------------------------------------------------------------

    def _new(self, arrays: Sequence[Any]) -> int:
        self.arrays.append([*arrays])
        self._numbers[tuple(map(id, arrays))] = self.values
        self.values += 1
        return self.values - 1

    def number(self, arrays: Sequence[Any], what: str) -> int:
        """The number of a value; one that comes from nowhere that a program knows is refused."""
        number = self._numbers.get(tuple(map(id, arrays)))
        if number is None:
            self.refuse(
                f"{what} reads a tensor that is neither an argument nor a parameter nor computed from those; give it "
                "as an argument"
            )
        return number

    def _leaf(self, tensor: Tensor) -> None:
        if self.world not in (None, tensor.world):
            self.refuse(f"its tensors live in two worlds, {self.world} and {tensor.world}")
        self.world = tensor.world
        gradient = tensor.grad
        self.leaves.append(tensor)
        number = self._new(tensor.held)
        self.before.append((number, gradient, None if gradient is None else self._new(gradient.held)))

    # -- what tells it (see ``performed`` in core) -----------------------------------------------------------

    @contextmanager
    def _once(self) -> Iterator[None]:
        """What runs inside belongs to what is written down now."""
        self._within = True
        try:
            yield
        finally:
            self._within = False

    @property
    def _apart(self) -> bool:
        """Whether what runs now is none of its own: it belongs to what is written down, or to another thread."""
        return self._within or get_ident() != self._thread

    def perform(self, run: partial[Any], lists: Sequence[Any]) -> Any:
        """Run a local calculation, and write it down."""
        if self._apart:
            return run(*lists)
        what = self._allowed(run)
        self._blanks(run)
        inputs = tuple(self.number(arrays, what) for arrays in lists)
        with self._once():
            results = run(*lists)
        several = any(isinstance(one, list) or one is None for one in results)
        values = results if several else [results]
        outputs = tuple(None if one is None else self._new(one) for one in values)
        self.script.append(Note(run, inputs, outputs, several, source_lines.source_line()))
        return results

    def _blanks(self, run: partial[Any]) -> None:
        """Know what stands for operands that a gradient does not look at."""
        recipe = run.args[0]
        for blank in itertools.chain(*recipe.blanks.values()) if isinstance(recipe, CallRecipe) else ():
            if blank and tuple(map(id, blank)) not in self._numbers:
                self.constants[self._new(blank)] = blank

    def _allowed(self, run: partial[Any]) -> str:
        """What a calculation is, in a word."""
        owner = optimiser_of(run)
        if isinstance(run.args[0], CallRecipe):
            op = run.args[0].op
            if op.varying:
                self.refuse(f"{op.name} takes another {op.varying[0]} in every call; call it outside")
            return str(op.name)
        if owner is not None:
            kind = type(owner)
            if kind.step is not Optimiser.step or kind._updated is not Optimiser._updated:
                self.refuse(f"{kind.__name__} decides in every step what to do; call step() outside")
            self.optimisers[id(owner)] = owner
            return kind.__name__
        return "a sum"

    def moving(self, world: Any, step: Step, shards: list[Any]) -> tuple[list[Any]] | None:
        """Run a step, and write it down; None if it belongs to what is written down now."""
        if self._apart:
            return None
        number = self.number(shards, step.collective)
        with self._once():
            results: list[Any] = world.run(step, shards)
        run, moved = partial(world.run, step), self._new(results)
        self.script.append(Note(run, (number,), (moved,), False, source_lines.source_line()))
        return (results,)

    def created(self, tensor: Tensor, source: Any = None) -> None:
        """A tensor was made of no others: a constant, if that is sure."""
        if self._apart:
            return
        if source is not None and (
            not isinstance(source, Described) or source.words is None or "seed" in source.words
        ):
            self.refuse(
                "it makes a tensor of data or random numbers; make it outside and give it as an argument"
            )
        self.constants[self._new(tensor.held)] = tensor.held

    def looked_at(self) -> None:
        """Numbers leave the program."""
        if not self._apart:
            self.refuse(
                "it looks at a tensor's values, which are others in every call; return the tensor instead"
            )

    def changed(self, tensor: Tensor, what: str) -> None:
        """A tensor became another one."""
        if any(tensor is leaf for leaf in self.leaves):
            self.refuse(
                f"{what} in place changes a tensor that was there before; compute a new one and return it"
            )

    def read(self, parameter: Any) -> None:
        """A parameter's value is used."""
        if not self._apart and all(parameter is not other for other in self.parameters):
            self.parameters.append(parameter)
            self._leaf(parameter.tensor)

    def assigned(self, parameter: Any) -> None:
        """A parameter has new values."""
        if self._apart:
            return
        self.assigned_to[id(parameter)] = parameter
        self.assignments.setdefault(id(parameter), []).append(
            self.number(parameter.tensor.held, "an optimiser")
        )
        if all(parameter is not other for other in self.parameters):
            self.refuse("it assigns a parameter without having read it")

    def entered(self, operator: recorder.operator) -> None:
        """An operator begins."""
        self.script += [] if self._apart else [OperatorScope(begins=operator)]

    def left(self) -> None:
        """It ends."""
        self.script += [] if self._apart else [OperatorScope()]

    def emitted(self, recipe: Any) -> None:
        """It has run."""
        self.script += [] if self._apart else [OperatorScope(ran=recipe, line=source_lines.source_line())]


def optimiser_of(run: partial[Any]) -> Optimiser | None:
    """Whose update a calculation is."""
    owner = getattr(run.func, "__self__", None)
    return owner if isinstance(owner, Optimiser) else None
