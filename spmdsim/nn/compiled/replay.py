"""A replay repeats a recorded function with other arrays."""

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
from spmdsim.sides import number_of
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
        _update_early(self.entries)
        self.calls = [entry for entry in self.entries if isinstance(entry, RecordedCall)]
        self.arity, self.parameters = len(recorded.tensors), recorded.parameters
        self.optimisers = list(recorded.optimisers.values())
        self.leaves = [(leaf.meta, leaf.requires_grad, leaf.gradient_layout) for leaf in recorded.leaves]
        self.numbers = [number for number, _, _ in recorded.before]
        self.gradients = self._changed_gradients(recorded)
        self.results: list[tuple[int, Meta, type[Tensor]]] = []
        self._form = self._result_form(recorded, result)
        outputs = {number for number, _, _ in self.results}
        outputs |= {number for _, meta, number in self.gradients if meta is not None}
        self._release_values(outputs)
        read = outputs.union(*[call.inputs for call in self.calls])
        self.gradients_before: list[tuple[int, int | None, Meta | None]] = []
        for position, (_, gradient, number) in enumerate(recorded.before):
            meta = None if gradient is None else gradient.meta
            self.gradients_before.append((position, number if number in read else None, meta))
        self._read_gradients = [k for k, number, _ in self.gradients_before if number is not None]
        self.aliases = _aliases([*recorded.leaves, *[recorded.before[k][1] for k in self._read_gradients]])
        #: The number of this recording in the comparisons between ranks.
        self.number = number_of(
            " ".join([recorded.name, *recorded.words, *[call.words for call in self.calls]])
        )

    def _changed_gradients(self, recorded: CallRecorder) -> list[tuple[int, Meta | None, int]]:
        """Return the entries of `gradients`: leaves that get another gradient and are not assigned themselves."""
        gradients: list[tuple[int, Meta | None, int]] = []
        assigned = [False] * self.arity + [id(p) in recorded.assigned_to for p in self.parameters]
        for position, (leaf, (_, before, _)) in enumerate(zip(recorded.leaves, recorded.before)):
            if leaf.grad is before or assigned[position]:
                continue
            if leaf.grad is None:
                gradients.append((position, None, 0))
                continue
            if leaf.grad.sums is not None:
                recorded.refuse("it adds gradients of 16-bit floats up over several calls")
            gradients.append(
                (position, leaf.grad.meta, recorded.number(leaf.grad.stored_shards, "a gradient"))
            )
        return gradients

    def _result_form(self, recorded: CallRecorder, result: Any) -> Form:
        """Return the function that builds the result. Append the result's tensors to `results`."""
        if isinstance(result, Tensor):
            if any(isinstance(node, OpNode) and not node.spent for node in collect_nodes(result.node)):
                recorded.refuse(
                    "gradients could flow through the tensor that it returns; call backward() inside, or return "
                    "its .detach()"
                )
            position = len(self.results)
            self.results.append(
                (recorded.number(result.stored_shards, "its result"), result.meta, type(result))
            )
            return lambda tensors: tensors[position]
        if is_sequence(result):
            forms = [self._result_form(recorded, element) for element in result]
            return lambda tensors: rebuild(result, [form(tensors) for form in forms])
        if type(result) is dict:
            named = {key: self._result_form(recorded, element) for key, element in result.items()}
            return lambda tensors: {key: form(tensors) for key, form in named.items()}
        if not isinstance(result, CONSTANTS):
            recorded.refuse(
                f"it returns a {type(result).__name__}; return tensors and constants, alone or in tuples, lists and dicts"
            )
        return lambda tensors: result

    def _release_values(self, outputs: set[int]) -> None:
        """Let each entry release the values that neither a later entry nor the caller reads."""
        needed = {*outputs}
        for entry in reversed(self.entries):
            if isinstance(entry, (RecordedCall, Assignment)):
                computed = entry.outputs if isinstance(entry, RecordedCall) else ()
                numbers = {*entry.inputs, *[number for number in computed if number is not None]}
                entry.released = tuple(numbers - needed)
                needed |= numbers

    # -- running ------------------------------------------------------------------------------------------

    def matching_leaves(self, tensors: Sequence[Tensor]) -> list[Tensor] | None:
        """Return the arguments and the parameters' tensors if the recording is valid for them, else None."""
        if self.world.variant != self.variant or self.world.machine is not self.machine:
            return None
        leaves: list[Any] = [*tensors, *[parameter.tensor for parameter in self.parameters]]
        for leaf, (meta, requires_grad, gradient_layout) in zip(leaves, self.leaves):
            if (
                leaf is None
                or leaf.meta is not meta
                or leaf.requires_grad is not requires_grad
                or leaf.world is not self.world
                or leaf.gradient_layout != gradient_layout
            ):
                return None
        for position, _, meta_before in self.gradients_before:
            gradient = leaves[position].grad
            if (None if gradient is None else gradient.meta) is not meta_before:
                return None
        sources = [*leaves, *[leaves[position].grad for position in self._read_gradients]]
        return leaves if _aliases(sources) == self.aliases else None

    def run(self, leaves: list[Any]) -> Any:
        """Repeat the function with these arguments and parameters, and return its result."""
        world, base = self.world, 0
        if world.compares:
            facts = [number for optimiser in self.optimisers for number in optimiser.numbers()]
            provenance_numbers = tuple([leaf.provenance_number for leaf in leaves])
            base = number_result(world, self.name, provenance_numbers, (self.number, *facts), facts)
        state = ReplayState(world, self._inputs(leaves), base, self.name)
        try:
            source_lines.lines_again += [None] * state.is_traced
            for entry in self.entries:
                entry.run(state)
        except BaseException as error:
            state.undo_updates()
            if state.assigned and hasattr(error, "add_note"):  # Python 3.10 has no add_note.
                of = many(
                    len({id(e.parameter) for e in self.entries if isinstance(e, Assignment)}), "parameter"
                )
                error.add_note(
                    f"{self.name} ended after it had updated {len(state.assigned)} of {of}, with their optimisers' state"
                )
            raise
        finally:
            world.call_provenance = 0
            while state.scopes:
                state.scopes.pop().__exit__()
            if state.is_traced:
                source_lines.lines_again.pop()
        values = state.values
        # Derive provenance from positions, because the values that share an array may differ between ranks.
        for k, meta, number in self.gradients:
            provenance_number = state.provenance((1, k))
            leaf = leaves[k]
            leaf.grad = (
                None
                if meta is None
                else type(leaf)(world, meta, values[number], provenance_number=provenance_number)
            )
        results = [
            kind(world, meta, values[number], provenance_number=state.provenance((2, k)))
            for k, (number, meta, kind) in enumerate(self.results)
        ]
        return self._form(results)

    def _inputs(self, leaves: Sequence[Any]) -> list[Any]:
        """Return the values that the function does not compute, by number; None for all others."""
        values: list[Any] = [None] * self.count
        for number, leaf in zip(self.numbers, leaves):
            values[number] = leaf.stored_shards
        for position, gradient_number, _ in self.gradients_before:
            if gradient_number is not None:
                values[gradient_number] = leaves[position].grad.stored_shards
        for number, arrays in self.constants.items():
            values[number] = arrays
        return values


def _update_early(entries: list[Entry]) -> None:
    """Move each update behind the computation of its gradient, which is then still in the cache.

    An update stays behind all operators that may raise an error, because an error must leave parameters unchanged.
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


def _aliases(tensors: Sequence[Any]) -> tuple[int, ...]:
    """Return per item the first position of the same object; an empty tuple if all objects are distinct."""
    places: dict[int, int] = {}
    first = tuple([places.setdefault(id(tensor), k) for k, tensor in enumerate(tensors)])
    return first if len(places) < len(first) else ()


def is_sequence(value: object) -> bool:
    """Return True for a list, tuple or named tuple, but not for other subclasses of list and tuple."""
    return type(value) in (list, tuple) or (isinstance(value, tuple) and hasattr(value, "_fields"))


def rebuild(like: Sequence[Any], parts: Iterable[Any]) -> Any:
    """Return a list, tuple or named tuple of the type of ``like`` with the items ``parts``.

    >>> rebuild((1, 2), [3, 4])
    (3, 4)
    """
    make: Callable[[Iterable[Any]], Any] = getattr(like, "_make", type(like))
    return make(parts)
