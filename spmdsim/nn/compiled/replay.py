"""A replay is a recorded function that runs with other arrays.

`Replay.run` repeats the entries of the recording one after the other. `Replay.__init__` derives what a replay needs
from a `CallRecorder`; `Replay.matching_leaves` decides whether a call may use it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import Any

import numpy as np

from spmdsim.arrays import Tensor
from spmdsim.core import Layout, Mesh
from spmdsim.core.tape import OpNode, collect_nodes
from spmdsim.core.tensor import Meta
from spmdsim.errors import many
from spmdsim.nn.compiled.call_recorder import CallRecorder
from spmdsim.nn.compiled.recorded_calls import Assignment, Entry, RecordedCall, RecordedUpdate, ReplayState
from spmdsim.pictured import Pictured
from spmdsim.sides import hash_text
from spmdsim.worlds.provenance import number_result
from spmdsim.worlds.trace import source_lines

#: What a function may return besides tensors: values that cannot change and hold no tensor.
CONSTANTS = (
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    type(None),
    Enum,
    Layout,
    Mesh,
    np.dtype,
    np.generic,
    type,
)
#: Builds a function's result from its tensors.
Form = Callable[[Sequence[Tensor]], Any]


class Replay(Pictured):
    """A recorded function that runs with other arrays.

    Attributes:
        calls: the local calculations and steps.
        leaves: meta, `requires_grad` and gradient layout of each argument and parameter.
        gradients_before: position of each leaf, number of its earlier gradient's value (None: not read), and meta of that
            gradient (None: it had none).
        gradients: position of each leaf that has another gradient afterwards, meta of the gradient (None: it has none) and
            number of its value.
        results: number, meta and class of each tensor in the function's result.
    """

    def __init__(self, recorded: CallRecorder, result: Any) -> None:
        self.name, self.world = recorded.name, recorded.world
        self.variant, self.machine = self.world.variant, self.world.machine
        self.entries, self.constants, self.count = recorded.entries, recorded.constants, recorded.values
        _move_updates_forward(self.entries)
        self.calls = [entry for entry in self.entries if isinstance(entry, RecordedCall)]
        self.arity, self.parameters = len(recorded.tensors), recorded.parameters
        self.optimisers = list(recorded.optimisers.values())
        self.leaves = [(leaf.meta, leaf.requires_grad, leaf.gradient_layout) for leaf in recorded.leaves]
        self.numbers = [before.number for before in recorded.before]
        self.gradients = self._changed_gradients(recorded)
        self.results: list[tuple[int, Meta, type[Tensor]]] = []
        self._form = self._describe_result(recorded, result)
        outputs = {number for number, _, _ in self.results}
        outputs |= {number for _, meta, number in self.gradients if meta is not None}
        self._release_values(outputs)
        read = outputs.union(*[call.inputs for call in self.calls])
        self.gradients_before: list[tuple[int, int | None, Meta | None]] = []
        for position, before in enumerate(recorded.before):
            meta = None if before.gradient is None else before.gradient.meta
            number_if_read = before.gradient_number if before.gradient_number in read else None
            self.gradients_before.append((position, number_if_read, meta))
        self._read_gradients = [k for k, number, _ in self.gradients_before if number is not None]
        self.aliases = _find_aliases(
            [*recorded.leaves, *[recorded.before[k].gradient for k in self._read_gradients]]
        )
        #: The number of this recording in the comparisons between ranks.
        self.number = hash_text(
            " ".join([recorded.name, *recorded.words, *[call.words for call in self.calls]])
        )

    def _changed_gradients(self, recorded: CallRecorder) -> list[tuple[int, Meta | None, int]]:
        """Return the leaves whose ``grad`` is another object after the function than before.

        A leaf is an argument or a parameter's tensor. Parameters that the function assigns are left out, because their new
        tensor has no gradient.

        Args:
            recorded: the recorder, whose leaves have the gradients after the function.

        Returns:
            For each changed leaf ``(position, meta, number)``: its position, the meta of its new gradient, and the
            number under which the recorder has the gradient's value. ``(position, None, 0)`` if the function removed
            the gradient.

        Raises:
            UsageTypeError: If the function accumulates gradients of 16-bit floats over several calls, or a gradient is
                no recorded value.
        """
        gradients: list[tuple[int, Meta | None, int]] = []
        is_assigned = [False] * self.arity + [id(p) in recorded.assigned_to for p in self.parameters]
        for position, (leaf, before) in enumerate(zip(recorded.leaves, recorded.before)):
            if leaf.grad is before.gradient or is_assigned[position]:
                continue
            if leaf.grad is None:
                gradients.append((position, None, 0))
                continue
            if leaf.grad.sums is not None:
                recorded.refuse(
                    "it adds up gradients of 16-bit floats over several calls; call zero_grad() in the function, or "
                    "run it without compile"
                )
            gradients.append(
                (position, leaf.grad.meta, recorded.find_number(leaf.grad.stored_shards, "a gradient"))
            )
        return gradients

    def _describe_result(self, recorded: CallRecorder, result: Any) -> Form:
        """Return a function that builds the recorded function's result from new tensors.

        For example, if the recorded function returned ``{"loss": t, "step": 3}``, the returned function makes ``{"loss": x,
        "step": 3}`` of ``[x]``. Constants (:data:`CONSTANTS`, such as 3) stay as recorded. For each tensor of the result its
        number, meta and class are appended to `results`, and the returned function takes the new tensors in this order.

        Args:
            recorded: the recorder, which knows the numbers of values.
            result: what the recorded function returned: tensors and constants, also in lists, tuples and dicts.

        Raises:
            UsageTypeError: If a value is of another class, or a tensor's gradients could still flow into the
                function.
        """
        if isinstance(result, Tensor):
            if any(isinstance(node, OpNode) and not node.spent for node in collect_nodes(result.node)):
                recorded.refuse(
                    "it returns a tensor through which gradients could still flow; call backward() in the "
                    "function, or return the tensor's .detach()"
                )
            position = len(self.results)
            self.results.append(
                (recorded.find_number(result.stored_shards, "its result"), result.meta, type(result))
            )
            return lambda tensors: tensors[position]
        if is_sequence(result):
            forms = [self._describe_result(recorded, element) for element in result]
            return lambda tensors: rebuild_sequence(result, [form(tensors) for form in forms])
        if type(result) is dict:
            named = {key: self._describe_result(recorded, element) for key, element in result.items()}
            return lambda tensors: {key: form(tensors) for key, form in named.items()}
        if not isinstance(result, CONSTANTS):
            recorded.refuse(
                f"it returns a {type(result).__name__}; return tensors and constants, alone or in tuples, lists and dicts"
            )
        return lambda tensors: result

    def _release_values(self, outputs: set[int]) -> None:
        """Set `released` of each recorded call: the numbers of the values that no later call reads.

        A replay frees these values after the call. A value that a call computes and nothing reads is released by this
        call.
        """
        needed = {*outputs}
        for entry in reversed(self.entries):
            if isinstance(entry, (RecordedCall, Assignment)):
                computed = entry.outputs if isinstance(entry, RecordedCall) else ()
                numbers = {*entry.inputs, *[number for number in computed if number is not None]}
                entry.released = tuple(numbers - needed)
                needed |= numbers

    # -- running ------------------------------------------------------------------------------------------

    def matching_leaves(self, tensors: Sequence[Tensor]) -> list[Tensor] | None:
        """Return the leaves for a replay; None if the recording does not fit these arguments.

        The leaves are the arguments, then the parameters' present tensors. The recording fits if all of this is as it was
        when the function was recorded:

        - the world's settings and its machine;
        - of each leaf: world, layout, shape, dtype, `requires_grad`, and the layout of its gradient;
        - whether each leaf has a gradient, and its layout, shape and dtype;
        - which leaves are one object, as in ``f(x, x)``.

        Args:
            tensors: the tensors among the arguments, in order.
        """
        if self.world.variant != self.variant or self.world.machine is not self.machine:
            return None
        leaves: list[Any] = [*tensors, *[parameter.tensor for parameter in self.parameters]]
        for leaf, recorded_facts in zip(leaves, self.leaves):
            # Compare the metas by identity: equal ones are one object.
            if leaf is None or leaf.world is not self.world or leaf.meta is not recorded_facts[0]:
                return None
            if (leaf.requires_grad, leaf.gradient_layout) != recorded_facts[1:]:
                return None
        for position, _, meta_before in self.gradients_before:
            gradient = leaves[position].grad
            if (None if gradient is None else gradient.meta) is not meta_before:
                return None
        sources = [*leaves, *[leaves[position].grad for position in self._read_gradients]]
        return leaves if _find_aliases(sources) == self.aliases else None

    def run(self, leaves: list[Any]) -> Any:
        """Run the recorded calls with the arrays of these leaves; return what the function would return.

        Gradients and parameters change as the function would change them. All ranks must call it, because it communicates as
        the function did.

        If a call raises an error, the optimisers' state of each parameter is that of its value: parameters that were already
        assigned keep the new state, the others get the state before back. The error gets a note with the number of updated
        parameters (Python 3.11 or newer), if there are any.

        Args:
            leaves: the result of `matching_leaves`.
        """
        world, base = self.world, 0
        if world.compares:
            facts = [number for optimiser in self.optimisers for number in optimiser.numbers()]
            provenance_numbers = tuple([leaf.provenance_number for leaf in leaves])
            base = number_result(world, self.name, provenance_numbers, (self.number, *facts), facts)
        state = ReplayState(world, self._collect_inputs(leaves), base, self.name)
        try:
            source_lines.lines_again += [None] * state.is_traced
            for entry in self.entries:
                entry.run(state)
        except BaseException as error:
            state.undo_updates()
            if state.assigned and hasattr(error, "add_note"):  # Python 3.10 has no add_note.
                assigned = {id(entry.parameter) for entry in self.entries if isinstance(entry, Assignment)}
                error.add_note(
                    f"{self.name} ended after it had updated {len(state.assigned)} of {many(len(assigned), 'parameter')}, "
                    "with their optimisers' state"
                )
            raise
        finally:
            world.call_provenance = 0
            while state.scopes:
                state.scopes.pop().__exit__()
            if state.is_traced:
                source_lines.lines_again.pop()
        return self._store_results(state, leaves)

    def _store_results(self, state: ReplayState, leaves: Sequence[Any]) -> Any:
        """Store the computed gradients in the leaves, and return the function's result.

        Only the leaves in `gradients` change: they get a new gradient, or lose theirs. The result has the form that the
        function returned when it was recorded: its lists, tuples, dicts and constants with new tensors.

        Args:
            state: the values after all entries have run.
            leaves: the arguments, then the parameters' tensors.
        """
        world, values = self.world, state.values
        # Derive provenance from positions, because the values that share an array may differ between ranks.
        for k, meta, number in self.gradients:
            leaf, provenance_number = leaves[k], state.derive_provenance((1, k))
            leaf.grad = None
            if meta is not None:
                leaf.grad = type(leaf)(world, meta, values[number], provenance_number=provenance_number)
        results = [
            kind(world, meta, values[number], provenance_number=state.derive_provenance((2, k)))
            for k, (number, meta, kind) in enumerate(self.results)
        ]
        return self._form(results)

    def _collect_inputs(self, leaves: Sequence[Any]) -> list[Any]:
        """Return the shards of each value by its number; None for values that a recorded call computes.

        A value is the list of a tensor's shards. Shards exist at the start for leaves, for gradients that the function
        reads, and for constants.

        Args:
            leaves: the arguments, then the parameters' tensors.
        """
        values: list[Any] = [None] * self.count
        for number, leaf in zip(self.numbers, leaves):
            values[number] = leaf.stored_shards
        for position, gradient_number, _ in self.gradients_before:
            if gradient_number is not None:
                values[gradient_number] = leaves[position].grad.stored_shards
        for number, arrays in self.constants.items():
            values[number] = arrays
        return values


def _move_updates_forward(entries: list[Entry]) -> None:
    """Move each optimiser's update, and each assignment, up to just behind the call that it needs.

    This is the later one of two calls: the calculation of the gradient, which is then still in the cache; and the last
    operator before the update in the recorded order. An operator may raise an error, and an error must leave parameters
    unchanged. For example, "matmul, grad a, grad b, update a, update b" becomes "matmul, grad a, update a, grad b, update
    b".

    Args:
        entries: the recorded calls in order; changed in place.
    """
    sources: dict[int, Entry] = {}
    operators: list[Entry] = []
    for entry in tuple(entries):
        if isinstance(entry, RecordedCall):
            sources |= {number: entry for number in entry.outputs if number is not None}
        if isinstance(entry, (RecordedUpdate, Assignment)):
            before = [*operators[-1:], *[sources[number] for number in entry.inputs if number in sources]]
            entries.remove(entry)
            entries.insert(max(map(entries.index, before), default=-1) + 1, entry)
        elif isinstance(entry, RecordedCall) and entry.is_operator:
            operators.append(entry)


def _find_aliases(tensors: Sequence[Any]) -> tuple[int, ...]:
    """Return the position at which each item's object occurs first; () if all objects are distinct."""
    places: dict[int, int] = {}
    first = tuple([places.setdefault(id(tensor), k) for k, tensor in enumerate(tensors)])
    return first if len(places) < len(first) else ()


def is_sequence(value: object) -> bool:
    """Return True for a list, tuple or named tuple, but not for other subclasses of list and tuple."""
    return type(value) in (list, tuple) or (isinstance(value, tuple) and hasattr(value, "_fields"))


def rebuild_sequence(like: Sequence[Any], parts: Iterable[Any]) -> Any:
    """Return a list, tuple or named tuple of the type of ``like`` with the items ``parts``.

    >>> rebuild_sequence((1, 2), [3, 4])
    (3, 4)
    """
    make: Callable[[Iterable[Any]], Any] = getattr(like, "_make", type(like))
    return make(parts)
