"""What a program calculates once: what an operator and its gradient have in common in every call, what is always the same in none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from spmdsim.compiled.note_taker import Note, NoteTaker
from spmdsim.compiled.straight import NumberedCall, kinds_of, recipe_of
from spmdsim.core.operator import calculated
from spmdsim.core.tape import like, local_gradients
from spmdsim.ops.declare import specialised_pair
from spmdsim.worlds.pool import SMALLEST


def calculated_once(notes: Sequence[Note], code: list[NumberedCall], recorded: NoteTaker) -> None:
    """Change the instructions of one rank's program, one per note, where they would calculate something again."""
    _same_results(notes, code, recorded)
    _pairs(notes, code, recorded)


def _same_results(notes: Sequence[Note], code: list[NumberedCall], recorded: NoteTaker) -> None:
    """Make constants of the small results of operators that depend on nothing else."""
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


def _pairs(notes: Sequence[Note], code: list[NumberedCall], recorded: NoteTaker) -> None:
    """Let operators leave to their gradients what those would calculate again, as a value of its own."""
    callers: dict[tuple[Any, ...], list[int]] = {}
    pulled: dict[tuple[Any, ...], list[int]] = {}
    for k, note in enumerate(notes):
        recipe = recipe_of(note.run)
        if recipe is None or code[k].tells:  # what it asks for takes its place, or its ranks
            continue
        if note.run.func is calculated and len(note.outputs) == 1:
            callers.setdefault((id(recipe), note.inputs), []).append(k)
        elif note.run.func is local_gradients and note.run.args[3] == [True]:
            count = len(recipe.inputs)
            pulled.setdefault((id(recipe), note.inputs[1 : 1 + count]), []).append(k)
    for key, (first, *others) in callers.items():
        back = pulled.get(key, ())
        if others or len(back) != 1:
            continue
        note, (last,) = notes[first], back
        recipe, _, params = note.run.args[:3]
        arrays = [recorded.arrays[number][0] for number in note.inputs]
        pair = None if recipe.vjp is None else specialised_pair(recipe.vjp, arrays, params)
        if pair is not None:
            left, recorded.values = recorded.values, recorded.values + 1
            forward, backward = code[first], code[last]
            outputs, kinds = (*forward.outputs, left), (*forward.kinds, None)
            code[first] = replace(forward, run=pair[0], outputs=outputs, kinds=kinds, several=True)
            wanted = kinds_of(recipe, notes[last].run.args[4])
            code[last] = replace(
                backward, run=pair[1], inputs=(backward.inputs[0], left), kinds=wanted, convert=like
            )
