"""A program's instructions, for a process that owns one rank from arrays to arrays, and all written out as one function.

All that is known is done beforehand, and nothing is left to do between instructions. The function keeps every value in a
variable of its own, which goes with the last one who reads it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType
from typing import Any

from spmdsim.compiled.note_taker import Note, NoteTaker, optimiser_of
from spmdsim.core.elements import each
from spmdsim.core.operator import calculated
from spmdsim.core.step import Step
from spmdsim.core.tape import like, local_gradients, pulled
from spmdsim.nn.optimiser_base import Optimiser
from spmdsim.worlds.pool import SMALLEST
from spmdsim.worlds.programs import StepProgram
from spmdsim.worlds.provenance import computed_origin

#: The file that its frames are said to be in: like all of the package's, they are not the user's.
_FILE = os.path.join(os.path.dirname(__file__), "<program>")


@dataclass(frozen=True, eq=False)
class NumberedCall:
    """One thing that a program does, from values by number to one value, or to several in a list.

    Attributes:
        over: the values that nobody needs after it.
        tells: whether ranks compare what it does, by the number of the tensor that it is about.
        kinds: the element types that its results must have, None where that is not to be looked at; else they are converted.
        program: what does the same on an array, for as long as it can be run.
    """

    run: Callable[..., Any]
    inputs: tuple[int, ...]
    outputs: tuple[int | None, ...]  # None for a gradient that there is not
    several: bool
    over: tuple[int, ...] = ()
    tells: bool = True
    kinds: tuple[Any, ...] = ()
    convert: Callable[..., Any] | None = None
    program: StepProgram | None = None

    def results(self, values: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        """What it makes of values, with the numbers."""
        results = self.run(*[values[number] for number in self.inputs])
        for k, (number, value) in enumerate(zip(self.outputs, results if self.several else [results])):
            if number is not None:
                kind = self.kinds[k] if self.kinds else None
                if kind is not None and self.convert is not None and value.dtype is not kind:
                    value = self.convert(value, kind)
                yield number, value


def origin(world: Any, base: int, what: int | Sequence[int | None] | None) -> int:
    """Return the provenance number of a value of a program, or of several together; 0 if nobody compares."""
    several = what if isinstance(what, Sequence) else (what,)
    numbers = tuple(
        [-1 if number is None else number for number in several]
    )  # None has another hash in each process
    return computed_origin(world, "a compiled function", (base,), numbers) if base else 0


def written(
    code: Sequence[NumberedCall], wanted: set[int], sources: dict[int, str], names: dict[str, Any]
) -> Callable[[Sequence[Any], int], dict[int, list[Any]]]:
    """The function of a program: from leaves, and the number that all origins follow from, to the wanted values by number.

    Args:
        code: its instructions.
        wanted: which values.
        sources: where those are that it does not compute, in words of Python.
        names: what the words mean, and the world that it runs in.
    """
    computed = {number for one in code for number in one.outputs} - sources.keys()
    read = {number for one in code for number in one.inputs} | wanted
    lines = [f"v{number} = {sources[number]}" for number in sorted(read - computed)]
    compares = names["world"].compares
    for k, one in enumerate(code):
        lines += _lines(k, one, names, compares) if computed.intersection(one.outputs) else []
    alone = len(names["world"].ranks) == 1
    results = [f"{number}: [v{number}]" if alone else f"{number}: v{number}" for number in sorted(wanted)]
    lines.append(f"return {{{', '.join(results)}}}")
    return _function("program(leaves, base)", lines, {**names, "origin": origin})


def values_at(traceback: TracebackType | None, told: Callable[..., Any]) -> dict[int, Any]:
    """The values that a program had by number where an error left it, whether it ran in one piece or was ``told``."""
    while traceback is not None:
        frame = traceback.tb_frame
        if frame.f_code.co_filename == _FILE:
            return {int(name[1:]): value for name, value in frame.f_locals.items() if name[1:].isdecimal()}
        if frame.f_code is told.__code__:
            return dict(enumerate(frame.f_locals.get("values", ())))
        traceback = traceback.tb_next
    return {}


def asking(questions: Sequence[str], names: dict[str, Any]) -> Callable[[Sequence[Any]], bool]:
    """The function that says whether the answers to questions in Python, of some leaves, are all yes."""
    return _function("fits(leaves)", [f"return {' and '.join(questions)}"], names)


def _function(head: str, lines: Sequence[str], names: dict[str, Any]) -> Callable[..., Any]:
    body = "\n".join(f"    {line}" for line in lines)
    exec(compile(f"def {head}:\n{body}\n", _FILE, "exec"), names)
    return names[head.partition("(")[0]]  # type: ignore[no-any-return]


def _lines(k: int, one: NumberedCall, names: dict[str, Any], compares: bool) -> Iterator[str]:
    """An instruction in words of Python; what they mean is put under ``names``."""
    names[f"f{k}"] = one.run
    operands = ", ".join(f"v{number}" for number in one.inputs)
    if one.tells and compares:
        what = one.outputs if one.several else one.outputs[0]
        yield f"world.about = origin(world, base, {what!r})"
    targets = ["_" if number is None else f"v{number}" for number in one.outputs]
    if one.program is not None:
        names[f"p{k}"] = one.program
        yield f"{targets[0]} = p{k}.run({operands}) if p{k}.run is not None else f{k}({operands})"
    elif one.several:
        yield f"{', '.join(targets)}, = f{k}({operands})"
    else:
        yield f"{targets[0]} = f{k}({operands})"
    for place, kind in enumerate(one.kinds):
        if kind is None:
            continue
        names[f"k{k}_{place}"], names[f"c{k}"], target = kind, one.convert, targets[place]
        yield f"if {target}.dtype is not k{k}_{place}: {target} = c{k}({target}, k{k}_{place})"
    if one.over:
        yield f"del {', '.join(f'v{number}' for number in one.over)}"


def recipe_of(run: partial[Any]) -> Any:
    """The recipe of the operator that a calculation belongs to; None if to none."""
    return run.args[0] if run.func in (calculated, local_gradients) else None


def forgetting(
    code: Sequence[NumberedCall], wanted: set[int], until: Mapping[int, set[int]]
) -> list[NumberedCall]:
    """The same instructions, with what nobody needs after each; ``until`` says what is kept for some of them besides."""
    ended, needed = [], {*wanted}
    for k, one in reversed([*enumerate(code)]):
        over = {*one.inputs, *until.get(k, ()), *[n for n in one.outputs if n is not None]} - needed
        needed |= over
        ended.append(replace(one, over=tuple(over)))
    return ended[::-1]


def on_one_rank(note: Note, arrays: Sequence[Any]) -> NumberedCall:
    """What a note does for the only rank that a process owns, on arrays like those it read when it was written down."""
    run, several = note.run, note.several
    ready = partial(NumberedCall, inputs=note.inputs, outputs=note.outputs)
    function: Any = run.func
    facts = run.args
    owner = optimiser_of(run)
    if owner is not None and type(owner).advanced is Optimiser.advanced and owner.is_stateless(arrays[0]):
        return ready(partial(owner.advanced_alone, facts[0]), several=False, tells=False)
    if function is each:
        return ready(facts[0], several=False, tells=False)
    if recipe_of(run) is not None:
        recipe, world, params = facts[:3]
        everywhere = recipe.strategy.mesh.size == world.size
        if everywhere and not recipe.op.runs_ranks_together:
            head = recipe.head(world.ranks[0])
            if function is local_gradients:
                arrived, wanted = facts[3:5]
                return ready(_backward(recipe, params, arrived, wanted, head), several=True, tells=False)
            forward = partial(recipe.forward, *head, **params) if head or params else recipe.forward
            kinds = tuple(meta.held for meta in recipe.outputs)
            return ready(forward, several=len(kinds) > 1, tells=False, kinds=kinds, convert=recipe.op.typed)
    if several:
        return ready(
            lambda *arrays: [one and one[0] for one in run(*[[array] for array in arrays])], several=True
        )
    moved = facts[0] if isinstance(facts[0], Step) else None
    derived = None if moved is None else _derived(function.__self__, moved, arrays[0].dtype)
    return ready(lambda *arrays: run(*[[array] for array in arrays])[0], several=False, program=derived)


def _derived(world: Any, step: Step, dtype: Any) -> StepProgram | None:
    """A step that just ran, as it runs on an array."""
    program: Any = world.program(step, dtype)
    return program if program is not None and program.run is not None and program.room is None else None


def kinds_of(recipe: Any, wanted: list[bool]) -> tuple[Any, ...]:
    """The element types of an operator's gradients; None for those that nobody wants."""
    return tuple(meta.held if asked else None for meta, asked in zip(recipe.gradients, wanted))


def _backward(
    recipe: Any, params: dict[str, Any], arrived: list[bool], wanted: list[bool], head: tuple[Any, ...]
) -> Callable[..., Any]:
    kinds, pull = kinds_of(recipe, wanted), partial(pulled, recipe, params, arrived, head=head)

    def backward(*arrays: Any) -> list[Any]:
        gradients = zip(pull(*arrays), kinds)
        return [None if kind is None or one is None else like(one, kind) for one, kind in gradients]

    return backward


def calculated_once(notes: Sequence[Note], code: list[NumberedCall], recorded: NoteTaker) -> None:
    """Make constants of the small results of operators that depend on nothing but constants."""
    for k, (note, one) in enumerate(zip(notes, code)):
        if recipe_of(note.run) is None or not recorded.constants.keys() >= {*note.inputs}:
            continue
        arrays = [None if number is None else recorded.arrays[number][0] for number in note.outputs]
        if sum(array.nbytes for array in arrays if array is not None) < SMALLEST:
            recorded.constants |= {n: recorded.arrays[n] for n in note.outputs if n is not None}
            same = tuple(arrays) if one.several else arrays[0]
            code[k] = replace(one, run=partial(_given_back, same), kinds=(), convert=None)


def _given_back(same: Any, *_: Any) -> Any:
    return same
