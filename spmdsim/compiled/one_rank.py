"""Notes for a process that owns one rank: from arrays to arrays, with all that is known done beforehand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from spmdsim.compiled.note_taker import Note, optimiser_of
from spmdsim.compiled.straight import NumberedCall
from spmdsim.core.elements import each
from spmdsim.core.operator import Op, calculated
from spmdsim.core.step import Step
from spmdsim.core.tape import like, local_gradients, pulled
from spmdsim.nn.optimisers import Optimiser
from spmdsim.ops.declare import specialised, specialised_vjp
from spmdsim.worlds.programs import StepProgram


def on_one_rank(note: Note, arrays: Sequence[Any], over: tuple[int, ...]) -> NumberedCall:
    """What a note does for the only rank that a process owns, from arrays to arrays.

    Args:
        note: the note.
        arrays: what it read when it was written down; later ones have their shapes and types.
        over: the values that nobody needs after it.
    """
    run, several = note.run, note.several
    ready = partial(NumberedCall, inputs=note.inputs, outputs=note.outputs, over=over)
    function, facts = (run.func, run.args) if isinstance(run, partial) else (run, ())
    owner = optimiser_of(run)
    if owner is not None and type(owner).advanced is Optimiser.advanced and owner.is_stateless(arrays[0]):
        return ready(partial(owner.advanced_alone, facts[0]), several=False, tells=False)
    if function is each:
        return ready(facts[0], several=False, tells=False)
    if function in (calculated, local_gradients):
        recipe, world, params = facts[:3]
        everywhere = recipe.strategy.mesh.size == world.size
        if everywhere and type(recipe.op).on_ranks is Op.on_ranks:
            head = recipe.head(world.ranks[0])
            if function is local_gradients:
                arrived, wanted = facts[3:5]
                known = specialised_vjp(recipe.vjp, wanted, arrays, params) if arrived == [True] else None
                if known is not None:
                    kinds = tuple(
                        meta.held if asked else None for meta, asked in zip(recipe.gradients, wanted)
                    )
                    return ready(known, several=True, tells=False, kinds=kinds, convert=like)
                return ready(_backward(recipe, params, arrived, wanted, head), several=True, tells=False)
            forward = _forward(recipe, head, arrays, params)
            kinds = tuple(meta.held for meta in recipe.outputs)
            return ready(forward, several=len(kinds) > 1, tells=False, kinds=kinds, convert=recipe.op.typed)
    if several:
        return ready(
            lambda *arrays: [one and one[0] for one in run(*[[array] for array in arrays])], several=True
        )
    moved = facts[0] if facts and isinstance(facts[0], Step) else None
    derived = None if moved is None else _derived(run.func.__self__, moved, arrays[0].dtype)
    return ready(lambda *arrays: run(*[[array] for array in arrays])[0], several=False, program=derived)


def _derived(world: Any, step: Step, dtype: Any) -> StepProgram | None:
    """A step that just ran, as it runs on an array."""
    program: Any = world.program(step, dtype)
    return program if program is not None and program.run is not None and program.room is None else None


def _forward(
    recipe: Any, head: tuple[Any, ...], arrays: Sequence[Any], params: dict[str, Any]
) -> Callable[..., Any]:
    """The local function, given what comes before and after its arrays."""
    if head or params:
        return partial(recipe.forward, *head, **params)
    return specialised(recipe.forward, arrays)


def _backward(
    recipe: Any, params: dict[str, Any], arrived: list[bool], wanted: list[bool], head: tuple[Any, ...]
) -> Callable[..., Any]:
    kinds = [meta.held if asked else None for meta, asked in zip(recipe.gradients, wanted)]
    vjp, count = recipe.vjp, len(recipe.inputs)

    def of_one_result(dy: Any, *rest: Any) -> Any:
        return vjp(*head, dy, rest[:count], rest[count] if len(rest) > count else None, **params)

    general = partial(pulled, recipe, params, arrived, head=head)
    pull: Callable[..., Any] = of_one_result if arrived == [True] else general

    def backward(*arrays: Any) -> list[Any]:
        gradients = pull(*arrays)
        return [
            None if kind is None or one is None else like(one, kind) for one, kind in zip(gradients, kinds)
        ]

    return backward
