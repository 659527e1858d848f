"""The recorder of a compiled function: it lists the local calculations and steps that the function makes.

Core and the worlds call its methods (``World.perform`` and ``Observers.programs`` in `spmdsim.core.world`). A value that is neither an
argument nor a parameter nor computed from these is refused, because a replay could not know it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from threading import get_ident
from typing import Any, NamedTuple, NoReturn

from spmdsim.arrays import Tensor
from spmdsim.core.recipe import Recipe
from spmdsim.core.step import Step
from spmdsim.errors import UsageTypeError
from spmdsim.nn.compiled.recorded_calls import (
    Assignment,
    Entry,
    OperatorEnd,
    OperatorReport,
    OperatorStart,
    RecordedCall,
    RecordedUpdate,
)
from spmdsim.nn.optimiser_base import Optimiser
from spmdsim.worlds.convert_operands import Described
from spmdsim.worlds.trace import recorder, source_lines


class LeafState(NamedTuple):
    """State of an argument or parameter before the call that is recorded.

    Attributes:
        number: the number of its value.
        gradient: its gradient; None without one.
        gradient_number: the number of the gradient's value; None without a gradient.
    """

    number: int
    gradient: Tensor | None
    gradient_number: int | None


class CallRecorder(recorder.Trace):
    """Records what a function does while it runs.

    Args:
        name: the function's name, for messages.
        tensors: the tensors among its arguments.

    Attributes:
        entries: what the function did, in its order.
        values: how many values have a number.
        constants: the arrays of values that never change, by number.
        leaves: the arguments, then the parameters that the function reads.
        parameters: the parameters that the function reads.
        before: the :class:`LeafState` of each leaf.
        assigned_to: the parameters that get new values, by identity.
        optimisers: the optimisers that update parameters, by identity.
        world: the world of all tensors; None before the first tensor.
        words: descriptions of the constants, equal in all processes.
        failure: the operator or collective that raised an error; empty if none did.
    """

    def __init__(self, name: str, tensors: Sequence[Tensor]) -> None:
        super().__init__()
        self.name, self.tensors = name, list(tensors)
        self.entries: list[Entry] = []
        self.values = 0
        self.constants: dict[int, list[Any]] = {}
        self.parameters: list[Any] = []
        self.leaves: list[Tensor] = []
        self.before: list[LeafState] = []
        self.assigned_to: dict[int, Any] = {}
        self.optimisers: dict[int, Optimiser] = {}
        self._numbers: dict[tuple[int, ...], int] = {}
        # Keep the arrays, because a later array must not get the identity of an earlier one.
        self._arrays: list[list[Any]] = []
        self._is_nested, self._thread = False, get_ident()
        self.world: Any = None
        self.words: list[str] = []
        self.failure = ""
        for tensor in tensors:
            self._add_leaf(tensor)

    def refuse(self, why: str) -> NoReturn:
        """Raise UsageTypeError: the function cannot be recorded."""
        raise UsageTypeError(f"{self.name} cannot be compiled: {why}")

    # -- values ---------------------------------------------------------------------------------------

    def _number_value(self, arrays: Sequence[Any]) -> int:
        """Register a value, the list of a tensor's arrays, under the next number; return the number."""
        self._arrays.append([*arrays])
        self._numbers[tuple(map(id, arrays))] = self.values
        self.values += 1
        return self.values - 1

    def find_number(self, arrays: Sequence[Any], what: str) -> int:
        """Return the number of a recorded value; a value is the list of a tensor's arrays.

        Lists are equal if their arrays are the same objects; a view is another object. A value gets its number when it
        is an argument, a parameter, a constant or a result.

        Args:
            arrays: the value, one array per owned rank.
            what: the operator or collective that reads the value, for the message.

        Raises:
            UsageTypeError: If the value has no number, because it is neither an argument nor a parameter nor computed
                from these.
        """
        number = self._numbers.get(tuple(map(id, arrays)))
        if number is None:
            self.refuse(
                f"{what} reads a tensor that is neither an argument nor a parameter nor computed from those; pass "
                "the tensor as an argument"
            )
        return number

    def _add_leaf(self, tensor: Tensor) -> None:
        """Add an argument or parameter to the leaves, which are the tensors that exist before the call.

        The arrays of the tensor, and those of its gradient if it has one, become numbered values. A value is found again by
        the identity of its arrays, so the tensor first gets new views of its arrays, in place. Otherwise two arguments
        that share arrays would be one value.

        Args:
            tensor: the argument, or the parameter's tensor.

        Raises:
            UsageTypeError: If the tensor is in another world than the leaves before.
        """
        if self.world not in (None, tensor.world):
            self.refuse(
                f"its tensors must be in one world, got {self.world} and {tensor.world}; create all of them in one "
                "world"
            )
        self.world = tensor.world
        gradient = tensor.grad
        self.leaves.append(tensor)
        for leaf in (tensor, gradient):
            if leaf is not None:
                leaf.stored_shards = view_arrays(leaf.stored_shards)
        number = self._number_value(tensor.stored_shards)
        gradient_number = None if gradient is None else self._number_value(gradient.stored_shards)
        self.before.append(LeafState(number, gradient, gradient_number))

    # -- called by core and the worlds ------------------------------------------------------------------------

    @contextmanager
    def _ignore_nested_calls(self) -> Iterator[None]:
        """Return a context whose calls are not recorded, because the present entry contains them.

        It yields None. Contexts must not be nested: the end of one ends all.
        """
        self._is_nested = True
        try:
            yield
        finally:
            self._is_nested = False

    @contextmanager
    def _store_failure(self, what: str) -> Iterator[None]:
        """Return a context that stores ``what`` in `failure` if its block raises an Exception.

        The error is raised again, and the context yields None. A function that catches the error is refused later,
        because it may behave differently for other values.
        """
        try:
            yield
        except Exception:
            self.failure = what
            raise

    @property
    def _is_ignored(self) -> bool:
        """True for calls that belong to an entry which is recorded now, or to another thread."""
        return self._is_nested or get_ident() != self._thread

    def perform(self, run: partial[Any], lists: Sequence[Any]) -> Any:
        """Run a local calculation, such as an operator on shards; record it, and return its results.

        - If the call is part of another recorded call, or in another thread: it runs, and is not recorded.
        - If an optimiser calculates: the recorded entry is a RecordedUpdate.
        - Otherwise it is a RecordedCall.

        The entry has the numbers of the operands and of the results instead of their arrays, so that a replay can run it with
        others.

        Args:
            run: the calculation, a partial of the function and its first arguments.
            lists: the operands, each a list with one array per owned rank.

        Returns:
            The results as ``run`` returns them.

        Raises:
            UsageTypeError: If an operand has no number, or the calculation differs from call to call (see
                :meth:`_check_calculation`). Errors of ``run`` pass; `failure` then names the calculation.
        """
        if self._is_ignored:
            return run(*lists)
        what = self._check_calculation(run)
        self._number_blanks(run)
        inputs = tuple(self.find_number(arrays, what) for arrays in lists)
        with self._ignore_nested_calls(), self._store_failure(what):
            results = run(*lists)
        has_several = any(isinstance(result, list) or result is None for result in results)
        values = results if has_several else [results]
        outputs = tuple(None if value is None else self._number_value(value) for value in values)
        kind = RecordedCall if find_optimiser(run) is None else RecordedUpdate
        self.entries.append(kind(run, inputs, outputs, has_several, source_lines.source_line()))
        return results

    def _number_blanks(self, run: partial[Any]) -> None:
        """Number the blanks: constants in place of operands that a gradient function does not read."""
        recipe = run.args[0]
        for blank in itertools.chain(*recipe.blanks.values()) if isinstance(recipe, Recipe) else ():
            if blank and tuple(map(id, blank)) not in self._numbers:
                self.constants[self._number_value(blank)] = blank

    def _check_calculation(self, run: partial[Any]) -> str:
        """Raise UsageTypeError if a calculation can differ between calls; return its name for messages.

        - If an operator calculates: its name, such as "matmul". It is refused if it takes another argument in every call,
          such as a random seed.
        - If an optimiser calculates: the name of its class. It is refused if the class overrides `step` or
          `_compute_updated_value`, because it may then decide in every step what to do. Else it is added to `optimisers`.
        - Otherwise: "a sum".

        Args:
            run: the calculation. The first argument of an operator's calculation is its recipe.

        Raises:
            UsageTypeError: If the calculation is refused.
        """
        owner = find_optimiser(run)
        if isinstance(run.args[0], Recipe):
            op = run.args[0].op
            if op.varying:
                self.refuse(
                    f"{op.name} takes another {op.varying[0]} in every call; call it outside, and pass its result"
                )
            return str(op.name)
        if owner is not None:
            kind = type(owner)
            if (
                kind.step is not Optimiser.step
                or kind._compute_updated_value is not Optimiser._compute_updated_value
            ):
                self.refuse(
                    f"{kind.__name__} has its own step(), which may differ between calls; call step() outside of the function"
                )
            self.optimisers[id(owner)] = owner
            return kind.__name__
        return "a sum"

    def moving(self, world: Any, step: Step, shards: list[Any]) -> tuple[list[Any]] | None:
        """Run and record one step of a redistribution; all ranks must call it.

        Args:
            world: the world that runs the step.
            step: the step, one collective between two layouts.
            shards: the shards of the owned ranks.

        Returns:
            A tuple with one item, the new shards. None if the caller must run the step itself, because it belongs to
            an entry that is recorded now or to another thread.

        Raises:
            UsageTypeError: If the shards are no recorded value. Errors of the step pass; `failure` then names its
                collective.
        """
        if self._is_ignored:
            return None
        number = self.find_number(shards, step.collective)
        with self._ignore_nested_calls(), self._store_failure(step.collective):
            results: list[Any] = world.run(step, shards)
        run, moved = partial(world.run, step), self._number_value(results)
        self.entries.append(RecordedCall(run, (number,), (moved,), False, source_lines.source_line()))
        return (results,)

    def created(self, tensor: Tensor, source: Any = None, words: str = "") -> None:
        """Record a tensor that the function creates as a constant: replays use its arrays again.

        So the tensor must have the same values in every call. ``ones(...)`` is a constant; a tensor of random numbers, or of
        the program's data, is refused. Tensors that are created inside a recorded call, or in another thread, are ignored.

        Args:
            tensor: the new tensor.
            source: the source of its values, such as a function of an index; None for a number.
            words: description of the values; a `Described` source has its own. Ranks compare it.

        Raises:
            UsageTypeError: If the source has no description, or its description has the word "seed".
        """
        if self._is_ignored:
            return
        if isinstance(source, Described):
            words = source.words or ""
        if source is not None and (not words or "seed" in words):
            self.refuse(
                "it creates a tensor of data or random numbers; create the tensor outside, and pass it as an "
                "argument"
            )
        self.words.append(words)
        self.constants[self._number_value(tensor.stored_shards)] = tensor.stored_shards

    def looked_at(self) -> None:
        """Raise UsageTypeError, because the function reads a tensor's values."""
        if not self._is_ignored:
            self.refuse(
                "it reads a tensor's values, which differ between calls; return the tensor, and read it outside"
            )

    def changed(self, tensor: Tensor, what: str) -> None:
        """Raise UsageTypeError if an operation would change an existing tensor in place.

        These tensors existed before the call: arguments and parameters. Nothing happens for a tensor that the function
        created.

        Args:
            tensor: the tensor.
            what: the operation, for the message.
        """
        if any(tensor is leaf for leaf in self.leaves):
            self.refuse(
                f"{what} changes a tensor in place that existed before the call; compute a new tensor and return "
                "it"
            )

    def record_parameter(self, parameter: Any) -> None:
        """Add a parameter to the leaves when it is read first."""
        if not self._is_ignored and all(parameter is not leaf for leaf in self.parameters):
            self.parameters.append(parameter)
            self._add_leaf(parameter.tensor)

    def record_assignment(self, parameter: Any) -> None:
        """Record the assignment of the parameter's new value, unless another entry contains it.

        Args:
            parameter: a `Parameter` whose ``tensor`` is the new value.

        Raises:
            UsageTypeError: If the function did not read the parameter before, or the value has no number.
        """
        if self._is_ignored:
            return
        if all(parameter is not leaf for leaf in self.parameters):
            self.refuse(
                "it assigns a parameter that it has not read; read the parameter's value before, or assign it outside"
            )
        number = self.find_number(parameter.tensor.stored_shards, "an optimiser")
        self.assigned_to.setdefault(id(parameter), parameter)
        position = [*self.assigned_to].index(id(parameter))
        self.entries.append(Assignment(parameter, number, position, parameter.tensor.meta))

    def record_operator_start(self, operator: recorder.operator) -> None:
        """Record the start of an operator."""
        self.entries += [] if self._is_ignored else [OperatorStart(operator)]

    def record_operator_end(self) -> None:
        """Record the end of an operator."""
        self.entries += [] if self._is_ignored else [OperatorEnd()]

    def record_operator_event(self, recipe: Any) -> None:
        """Record the event of an operator that has run."""
        self.entries += [] if self._is_ignored else [OperatorReport(recipe, source_lines.source_line())]


def view_arrays(arrays: Sequence[Any]) -> list[Any]:
    """Return a new view of each array, an object that no tensor has yet; equal entries get the same view."""
    views = {id(array): array.view() for array in arrays}
    return [views[id(array)] for array in arrays]


def find_optimiser(run: partial[Any]) -> Optimiser | None:
    """Return the optimiser whose method `run` calls; None for other functions."""
    owner = getattr(run.func, "__self__", None)
    return owner if isinstance(owner, Optimiser) else None
