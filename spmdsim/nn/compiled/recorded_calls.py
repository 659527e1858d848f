"""The entries of a recording. `Replay` runs them one after the other.

A value has a number. It is the list of a tensor's arrays, one array per owned rank.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from spmdsim.core.recipe import Recipe
from spmdsim.core.step import Step
from spmdsim.core.tape import local_gradients
from spmdsim.core.tensor import Meta
from spmdsim.nn.module import Parameter
from spmdsim.nn.optimiser_base import Optimiser
from spmdsim.worlds.provenance import number_result
from spmdsim.worlds.trace import recorder, source_lines


class ReplayState:
    """The values that the entries of one replay read and write.

    Args:
        world: the world of all tensors.
        values: the values by number, None if not computed or released.
        base: the number from which all provenance numbers follow, 0 if ranks compare nothing.
        name: the function's name.

    Attributes:
        updated: by identity of each parameter whose updated value is not assigned yet: the dicts of its optimiser, each
            with the parameter's key and the entry before the update.
        assigned: the parameters that have new values.
        scopes: the open operators, while a trace is recorded.
    """

    def __init__(self, world: Any, values: list[Any], base: int, name: str) -> None:
        self.world, self.values, self.base, self.name = world, values, base, name
        self.is_traced = recorder.recording()
        self.updated: dict[int, list[tuple[dict[int, Any], int, Any]]] = {}
        self.assigned: set[int] = set()
        self.scopes: list[recorder.operator] = []

    def derive_provenance(self, numbers: Sequence[int | None]) -> int:
        """Return a provenance number derived from ``numbers`` and the number of the call.

        A provenance number identifies how a tensor was computed, and is equal on all ranks. The result is 0 if ranks
        compare nothing.

        Args:
            numbers: integers, or None, that identify the result within the function. None counts as -1.
        """
        if not self.base:
            return 0
        # Replace None, because its hash differs between processes.
        facts = tuple([-1 if number is None else number for number in numbers])
        return number_result(self.world, f"the compiled {self.name}", (self.base,), facts)

    def undo_updates(self) -> None:
        """Restore the optimisers' state of all parameters whose updated value was not assigned."""
        for facts, key, before in [entry for entries in self.updated.values() for entry in entries]:
            facts.pop(key, None)
            if before is not None:
                facts[key] = before


class Entry(ABC):
    """Entry of a recording."""

    @abstractmethod
    def run(self, state: ReplayState) -> None:
        """Repeat the recorded action."""


@dataclass(eq=False)
class RecordedCall(Entry):
    """A local calculation or a step.

    Attributes:
        function: takes the input values; returns one value, or a list of values and None.
        inputs: the numbers of the input values.
        outputs: the numbers of the results; None for a gradient that does not exist.
        has_several: True if the function returns a list of values.
        line: the user's line.
        released: the numbers of the values that no later entry reads.
    """

    function: partial[Any]
    inputs: tuple[int, ...]
    outputs: tuple[int | None, ...]
    has_several: bool
    line: str | None
    released: tuple[int, ...] = ()

    def run(self, state: ReplayState) -> None:
        """Call the function with its inputs, and store its results in ``state.values``.

        Inputs and results are numbers of values; a value is the list of a tensor's arrays. For example, with inputs (0, 3) and
        outputs (4,), the function gets values 0 and 3, and its result becomes value 4. In detail:

        - A result without a number (None) is dropped.
        - Values that no later call reads (`released`) are set to None, which frees their memory.
        - If ranks compare calls, the call's provenance number is set before the call.
        - If a trace is open, it attributes the call to the recorded line of the user.

        Errors of the function pass.

        Args:
            state: the values by number, and what this replay has done so far; changed in place.
        """
        values = state.values
        if state.base:
            state.world.call_provenance = state.derive_provenance(self.outputs)
        if state.is_traced:
            source_lines.lines_again[-1] = self.line
        results = self.function(*[values[number] for number in self.inputs])
        for number, value in zip(self.outputs, results if self.has_several else (results,)):
            if number is not None:
                values[number] = value
        for number in self.released:
            values[number] = None

    @property
    def is_operator(self) -> bool:
        """True for the local function of an operator, which may refuse its operands; False for gradients."""
        return isinstance(self.function.args[0], Recipe) and self.function.func is not local_gradients

    @property
    def words(self) -> str:
        """A description that is equal in all processes."""
        first = self.function.args[0]
        if isinstance(first, Step):
            return f"{first.collective} {first.src} {first.dst} {first.shape}"
        return str(getattr(first, "number", ""))


@dataclass(eq=False)
class RecordedUpdate(RecordedCall):
    """An optimiser's update of a parameter. An `Assignment` gives the parameter its value later."""

    def run(self, state: ReplayState) -> None:
        """Remember the optimiser's state, then update."""
        optimiser, key = self.optimiser, id(self.function.args[0])
        dicts: tuple[dict[int, Any], ...] = (optimiser.state, optimiser.counts)
        state.updated[key] = [(facts, key, facts.get(key)) for facts in dicts]
        super().run(state)

    @property
    def optimiser(self) -> Optimiser:
        """The optimiser whose method is called."""
        return self.function.func.__self__  # type: ignore[no-any-return, attr-defined]


@dataclass(eq=False)
class Assignment(Entry):
    """Assignment of a new value to a parameter.

    Attributes:
        parameter: the parameter.
        number: the number of the value.
        position: position of the parameter among those that the function assigns.
        meta: layout, shape and type of the value.
        released: the numbers of the values that no later entry reads.
    """

    parameter: Parameter
    number: int
    position: int
    meta: Meta
    released: tuple[int, ...] = ()

    @property
    def inputs(self) -> tuple[int, ...]:
        """The number of the value."""
        return (self.number,)

    def run(self, state: ReplayState) -> None:
        """Give the parameter a new tensor with the recorded value, and mark its update as done.

        The new tensor has the recorded layout, shape and dtype, and no gradient. Its name, and if it requires a
        gradient, are those of the tensor before. Afterwards an error no longer restores the optimiser's state of this
        parameter.

        Args:
            state: the values by number; `assigned`, `updated` and released values are changed.
        """
        old, arrays = self.parameter.tensor, state.values[self.number]
        assert old is not None
        # 3 stands for an assignment; gradients of a replay have 1 here, and its results 2.
        provenance = state.derive_provenance((3, self.position))
        self.parameter.tensor = type(old)(
            state.world, self.meta, arrays, old.requires_grad, old.name, provenance
        )
        state.assigned.add(id(self.parameter))
        state.updated.pop(id(self.parameter), None)
        for number in self.released:
            state.values[number] = None


@dataclass(eq=False)
class OperatorStart(Entry):
    """Start of an operator. Only traces need it."""

    operator: recorder.operator

    def run(self, state: ReplayState) -> None:
        """Open a new operator with the recorded name in the traces, if a trace is recorded.

        Otherwise do nothing. Traces list the calls inside an open operator under its name.

        Args:
            state: what this replay has done so far. The open operator is appended to its `scopes`; `OperatorEnd`
                closes it.
        """
        if state.is_traced:
            recorded = self.operator
            operator = recorder.operator(recorded.name, recorded.recipe, recorded.gradients)
            operator.__enter__()
            state.scopes.append(operator)


@dataclass(eq=False)
class OperatorReport(Entry):
    """Event of an operator that has run. Only traces need it."""

    recipe: Any
    line: str | None

    def run(self, state: ReplayState) -> None:
        """Add the operator's event to the traces."""
        if state.is_traced:
            source_lines.lines_again[-1] = self.line
            recorder.emit_operator(self.recipe, state.world.ranks, state.scopes[-1].start)


class OperatorEnd(Entry):
    """End of an operator. Only traces need it."""

    def run(self, state: ReplayState) -> None:
        """Close the operator in the traces."""
        if state.is_traced:
            state.scopes.pop().__exit__()
