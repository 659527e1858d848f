"""A program: what one recording noted, done again with other arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

from spmdsim.compiled.note_taker import Note, NoteTaker, OperatorScope, optimiser_of
from spmdsim.compiled.straight import (
    NumberedCall,
    asking,
    calculated_once,
    forgetting,
    on_one_rank,
    origin,
    values_at,
    written,
)
from spmdsim.core.step import Step
from spmdsim.core.tape import OpNode, history, local_gradients
from spmdsim.core.tensor import Meta
from spmdsim.errors import many
from spmdsim.pictured import Pictured
from spmdsim.sides import number_of
from spmdsim.tensor import Tensor
from spmdsim.tensor.operator_calls import CallRecipe
from spmdsim.trace import recorder, source_lines
from spmdsim.worlds.provenance import computed_origin


def _shared(outside: Sequence[Any]) -> tuple[tuple[int, int], ...]:
    """Which of the tensors that come from outside are one, or have the same arrays; nothing where all are apart."""
    if len({id(one.held[0]) for one in outside}) == len(outside):
        return ()
    tensors: dict[int, int] = {}
    arrays: dict[tuple[int, ...], int] = {}
    return tuple(
        (tensors.setdefault(id(one), k), arrays.setdefault(tuple(map(id, one.held)), k))
        for k, one in enumerate(outside)
    )


class Replay(Pictured):
    """What one recording wrote down, to be run on other arrays."""

    def __init__(self, recorded: NoteTaker, result: Any) -> None:
        self.world, self.parameters, self.script = recorded.world, recorded.parameters, recorded.script
        _hurry(self.script)
        self.notes = [note for note in self.script if isinstance(note, Note)]
        self.variant, self.machine = self.world.variant, self.world.machine
        self.arity = len(recorded.tensors)
        self.leaves = [(leaf.meta, leaf.requires_grad, leaf.gradient_layout) for leaf in recorded.leaves]
        self.optimisers = list(recorded.optimisers.values())
        self.constants = recorded.constants
        self.name = recorded.name
        self._effects(recorded)
        self._results: list[tuple[int, Meta]] = []
        self._result = self._form(recorded, result)
        self._inputs(recorded)
        #: The leaves whose gradients are read, and what _shared says of them all.
        self._read = [k for k, number, _ in self.earlier if number is not None]
        self.shared = _shared([*recorded.leaves, *[recorded.before[k][1] for k in self._read]])
        #: Stands for it in what ranks compare.
        self.number = number_of(" ".join([recorded.name, *map(_words, self.notes)]))
        self.alone = len(self.world.ranks) == 1
        #: The updates whose results still have to be moved to be a parameter's value, each with that value's number.
        self.moved = dict(self._moved_on(recorded))
        #: Per such update of this call, how often the parameter was updated before, and its state then.
        self._before: dict[int, list[Any]] = {}
        self._code = self._instructions(recorded)
        self.count = recorded.values
        for k in self.moved:
            self._code[k] = replace(self._code[k], run=partial(self._remembered, k, self._code[k].run))
        sources = {number: place if not self.alone else f"{place}[0]" for number, place in self._places()}
        names = {"world": self.world, "constants": self.constants}
        self._program = written(self._code, self._wanted, sources, names)
        self._fits = asking(*self._questions())

    def _places(self) -> Iterator[tuple[int, str]]:
        """Where each value is that a program does not compute, as its function says it."""
        yield from ((number, f"leaves[{k}].held") for k, number in enumerate(self.values))
        yield from ((number, f"leaves[{k}].grad.held") for k, number, _ in self.earlier if number is not None)
        yield from ((number, f"constants[{number}]") for number in self.constants)

    def _questions(self) -> tuple[list[str], dict[str, Any]]:
        """What must be as it was for a program to say what its function would do now, and what the words mean."""
        names: dict[str, Any] = {"world": self.world, "variant": self.variant, "machine": self.machine}
        asked = ["world.variant == variant and world.machine is machine"]
        for k, (meta, tracked, wanted) in enumerate(self.leaves):
            names |= {f"m{k}": meta, f"w{k}": wanted}
            asked.append(
                f"(a := leaves[{k}]) is not None and a.meta is m{k} and a.requires_grad is {tracked}"
            )
            asked.append("a.world is world")
            asked.append(f"((b := a.gradient_layout) is w{k} or b == w{k})")
        for k, _, earlier in self.earlier:
            names[f"e{k}"] = earlier
            asked.append(f"(None if (a := leaves[{k}].grad) is None else a.meta) is e{k}")
        return asked, names

    def _effects(self, recorded: NoteTaker) -> None:
        """What is otherwise afterwards: parameters' values, and gradients of those that keep theirs."""
        places = {id(parameter): self.arity + k for k, parameter in enumerate(self.parameters)}
        self.assigned = [
            (
                places[key],
                parameter,
                parameter.tensor.meta,
                recorded.number(parameter.tensor.held, "an optimiser"),
            )
            for key, parameter in recorded.assigned_to.items()
        ]
        #: Per parameter that is assigned, the values on the way there.
        self.assignments = [recorded.assignments[id(parameter)] for _, parameter, _, _ in self.assigned]
        gone = [False] * self.arity + [id(p) in recorded.assigned_to for p in self.parameters]
        self.gradients: list[tuple[int, Meta | None, int]] = []
        for k, (leaf, (_, before, _)) in enumerate(zip(recorded.leaves, recorded.before)):
            if leaf.grad is before or gone[k]:
                continue
            if leaf.grad is None:
                self.gradients.append((k, None, 0))
                continue
            if leaf.grad.sums is not None:
                recorded.refuse("it adds gradients of 16-bit floats up over several calls")
            self.gradients.append((k, leaf.grad.meta, recorded.number(leaf.grad.held, "a gradient")))

    def _moved_on(self, recorded: NoteTaker) -> Iterator[tuple[int, int]]:
        """Updates by the numbers of their notes, where the state is split further than the parameter."""
        origins = {number: k for k, note in enumerate(self.notes) for number in note.outputs}
        for k, note in enumerate(self.notes):
            if optimiser_of(note.run) is not None:
                numbers = recorded.assignments.get(id(note.run.args[0]), [])
                later = [number for number in numbers if origins.get(number, -1) >= k]
                if later and later[0] not in note.outputs:
                    yield k, later[0]

    def _form(self, recorded: NoteTaker, result: Any) -> Any:
        """A function that puts the result together from its tensors."""
        if isinstance(result, Tensor):
            if any(isinstance(node, OpNode) and not node.spent for node in history(result.node)):
                recorded.refuse(
                    "gradients could flow through the tensor that it returns; call backward() inside, or return "
                    "its .detach()"
                )
            place = len(self._results)
            self._results.append((recorded.number(result.held, "its result"), result.meta))
            return lambda tensors: tensors[place]
        if isinstance(result, (list, tuple)):
            kind, parts = type(result), [self._form(recorded, part) for part in result]
            if kind not in (list, tuple):
                recorded.refuse(f"it returns a {kind.__name__}; return tensors in tuples, lists and dicts")
            return lambda tensors: kind(part(tensors) for part in parts)
        if isinstance(result, dict):
            named = {key: self._form(recorded, part) for key, part in result.items()}
            return lambda tensors: {key: part(tensors) for key, part in named.items()}
        return lambda tensors: result

    def _inputs(self, recorded: NoteTaker) -> None:
        """Which values come from outside, and of which gradients it matters that they are there, or not."""
        used = {number for note in self.notes for number in note.inputs}
        used |= {number for number, _ in self._results}
        used |= {number for _, meta, number in self.gradients if meta}
        self.values = [number for number, _, _ in recorded.before]
        self.earlier: list[tuple[int, int | None, Meta | None]] = []
        for k, (_, gradient, number) in enumerate(recorded.before):
            if gradient is None or number in used:
                self.earlier.append((k, number, None if gradient is None else gradient.meta))

    @property
    def _wanted(self) -> set[int]:
        """The numbers of the values that somebody has afterwards."""
        gradients = {number for _, meta, number in self.gradients if meta is not None}
        results = {number for number, _ in self._results}
        return gradients | results | {number for *_, number in self.assigned}

    def _instructions(self, recorded: NoteTaker) -> list[NumberedCall]:
        """The notes as what runs, and what nobody needs after each."""
        if not self.alone:
            plain = [NumberedCall(n.run, n.inputs, n.outputs, n.several) for n in self.notes]
            return forgetting(plain, self._wanted, self._until(recorded))
        arrays = [[recorded.arrays[number][0] for number in note.inputs] for note in self.notes]
        code = [*map(on_one_rank, self.notes, arrays)]
        calculated_once(self.notes, code, recorded)
        return forgetting(code, self._wanted, self._until(recorded))

    def _until(self, recorded: NoteTaker) -> dict[int, set[int]]:
        """Per note the values that nobody may forget before: where a step ends early, parameters have what they had last."""
        origins = {number: k for k, note in enumerate(self.notes) for number in note.outputs}
        until: dict[int, set[int]] = {}
        for numbers in [recorded.assignments[id(self.notes[k].run.args[0])] for k in self.moved]:
            for one, following in pairwise(numbers):
                until.setdefault(origins.get(following, 0), set()).add(one)
        return until

    def _remembered(self, k: int, run: Callable[..., Any], *values: Any) -> Any:
        """An update whose result is not yet its parameter's value: what the optimiser knows of the old one is kept."""
        self._before[k] = [facts.get(key) for facts, key in self._facts_of(k)]
        return run(*values)

    def _facts_of(self, k: int) -> list[tuple[dict[int, Any], int]]:
        """Where an optimiser keeps what it knows of the parameter that an update is of."""
        run = self.notes[k].run
        owner, key = optimiser_of(run), id(run.args[0])
        return [] if owner is None else [(owner.state, key), (owner.counts, key)]

    def _as_before(self, reached: set[int]) -> None:
        """Take updates back that no parameter has seen; ``reached`` are the values that there have been."""
        for k in [k for k in reversed(self.moved) if k in self._before and self.moved[k] not in reached]:
            for (facts, key), before in zip(self._facts_of(k), self._before[k]):
                facts.pop(key, None)
                if before is not None:
                    facts[key] = before

    # -- running ------------------------------------------------------------------------------------------

    def takes(self, args: Sequence[Any]) -> list[Tensor] | None:
        """The leaves of a call, if it is one more like those that it was run for: tensors alone, and it fits."""
        if len(args) != self.arity:
            return None
        for one in args:
            if type(one) is not Tensor or one.node is not None:
                return None
        return self.fits(args)

    def fits(self, tensors: Sequence[Tensor]) -> list[Tensor] | None:
        """The leaves, if it says what the function would do now: parameters, gradients and the world are as they were."""
        leaves: list[Any] = [*tensors]
        for parameter in self.parameters:
            leaves.append(parameter.tensor)
        if not self._fits(leaves):
            return None
        outside = leaves if not self._read else [*leaves, *[leaves[k].grad for k in self._read]]
        return leaves if _shared(outside) == self.shared else None

    def run(self, leaves: list[Tensor]) -> Any:
        """Do what the function did, with these leaves."""
        world, base = self.world, 0
        if world.compares:
            numbers = [number for optimiser in self.optimisers for number in optimiser.numbers()]
            origins = tuple([leaf.origin for leaf in leaves])
            base = computed_origin(world, self.name, origins, (self.number, *numbers), numbers)
        try:
            after = (self._run_told if recorder.recording() else self._program)(leaves, base)
        except BaseException as error:
            self._ended_early(leaves, base, error)
            raise
        finally:
            world.about = 0
            self._before.clear()
        # Numbered by their places: which values share an array, and so a number, may differ between ranks.
        for k, meta, n in self.gradients:
            grad = None if meta is None else Tensor(world, meta, after[n], origin=origin(world, base, (1, k)))
            leaves[k].grad = grad
        self._assign(leaves, base, after)
        tensors = [
            Tensor(world, meta, after[n], origin=origin(world, base, (2, k)))
            for k, (n, meta) in enumerate(self._results)
        ]
        return self._result(tensors)

    def _assign(self, leaves: Sequence[Tensor], base: int, after: dict[int, list[Any]]) -> None:
        """Give the parameters their new values, those of them that there are."""
        for k, parameter, meta, n in self.assigned:
            held = after.get(n)
            if held is None:
                continue
            tensor, new = leaves[k], origin(self.world, base, (3, k))
            parameter.tensor = Tensor(self.world, meta, held, tensor.requires_grad, tensor.name, new)

    def _ended_early(self, leaves: Sequence[Tensor], base: int, error: BaseException) -> None:
        """Give parameters the values that updates made before an error: the optimisers' states are those of these values."""
        values = values_at(error.__traceback__, type(self)._run_told)
        after, reached = {}, set[int]()
        for (*_, last), numbers in zip(self.assigned, self.assignments):
            there = [n for n in numbers if values.get(n) is not None]
            if there:
                latest = values[there[-1]]
                after[last] = [latest] if self.alone else latest
                reached.update(numbers[: numbers.index(there[-1]) + 1])
        self._as_before(reached)
        self._assign(leaves, base, after)
        if after and hasattr(error, "add_note"):  # from Python 3.11 on
            of = many(len(self.assigned), "parameter")
            error.add_note(
                f"{self.name} ended after it had updated {len(after)} of {of}, with their optimisers' state"
            )

    def _run_told(self, leaves: Sequence[Tensor], base: int) -> dict[int, list[Any]]:
        """The program, one instruction after the other, told to who records."""
        values: list[Any] = [None] * self.count
        for number, held in self._uncomputed(leaves):
            values[number] = held[0] if self.alone else held
        code = iter(self._code)
        scopes: list[tuple[ExitStack, recorder.operator]] = []
        with ExitStack() as stack:
            stack.callback(source_lines.lines_again.pop)
            source_lines.lines_again.append(None)
            for entry in self.script:
                source_lines.lines_again[-1] = entry.line
                if isinstance(entry, Note):
                    self._step(next(code), values, base)
                elif entry.ran is not None:
                    recorder.emit_operator(entry.ran, self.world.ranks, scopes[-1][1].start)
                elif entry.begins is None:
                    scopes.pop()[0].close()
                else:
                    one = entry.begins
                    scope = stack.enter_context(ExitStack())
                    scopes.append((scope, recorder.operator(one.name, one.recipe, one.gradients)))
                    scope.enter_context(scopes[-1][1])
        return {number: [values[number]] if self.alone else values[number] for number in self._wanted}

    def _uncomputed(self, leaves: Sequence[Tensor]) -> Iterator[tuple[int, list[Any]]]:
        """The values that it does not compute: where :meth:`_places` says that they are."""
        yield from ((number, leaf.held) for number, leaf in zip(self.values, leaves))
        gradients: list[Any] = [leaf.grad for leaf in leaves]
        yield from ((number, gradients[k].held) for k, number, _ in self.earlier if number is not None)
        yield from self.constants.items()

    def _step(self, one: NumberedCall, values: list[Any], base: int) -> None:
        if base:
            self.world.about = origin(self.world, base, one.outputs if one.several else one.outputs[0])
        for number, value in one.results(values):
            values[number] = value
        for number in one.over:
            values[number] = None


def _hurry(script: list[Note | OperatorScope]) -> None:
    """Let optimisers update each parameter as soon as its gradient is there, and still in the cache.

    Not before an operator that may refuse what it is given: what it ends has updated nothing.
    """
    origins: dict[int, Note] = {}
    operators: list[Note] = []
    for entry in tuple(script):
        if not isinstance(entry, Note):
            continue
        origins |= {number: entry for number in entry.outputs if number is not None}
        if optimiser_of(entry.run) is not None:
            before = [*operators[-1:], *[origins[number] for number in entry.inputs if number in origins]]
            script.remove(entry)
            script.insert(max(map(script.index, before), default=-1) + 1, entry)
        elif isinstance(entry.run.args[0], CallRecipe) and entry.run.func is not local_gradients:
            operators.append(entry)


def _words(note: Note) -> str:
    """What a note does, as all processes say it."""
    first = note.run.args[0]
    if isinstance(first, Step):
        return f"{first.collective} {first.src} {first.dst} {first.shape}"
    return str(getattr(first, "number", ""))
