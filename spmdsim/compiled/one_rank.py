"""Notes for a process that owns one rank: from arrays to arrays, with all that is known done beforehand."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from spmdsim.compiled.note_taker import Note
from spmdsim.core.operator import Op, calculated
from spmdsim.core.reductions import each
from spmdsim.core.tape import like, local_gradients, pulled


def on_one_rank(note: Note) -> tuple[Callable[..., Any], bool]:
    """What a note does for the only rank that a process owns, from arrays to arrays; whether it makes several of them."""
    run = note.run
    function, facts = (run.func, run.args) if isinstance(run, partial) else (run, ())
    if function is each:
        return facts[0], False
    if function in (calculated, local_gradients):
        recipe, world, params = facts[:3]
        everywhere = recipe.strategy.mesh.size == world.size
        if everywhere and type(recipe.op).on_ranks is Op.on_ranks:
            head = recipe.head(world.ranks[0]) if recipe.op.contextual else ()
            if function is local_gradients:
                return _backward(recipe, params, facts[3], facts[4], head), True
            forward = partial(recipe.forward, *head, **params) if head or params else recipe.forward
            return _forward(recipe, forward), len(note.outputs) > 1
    if note.several:
        return lambda *arrays: [one and one[0] for one in run(*[[array] for array in arrays])], True
    return lambda *arrays: run(*[[array] for array in arrays])[0], False


def _forward(recipe: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    typed, kinds = recipe.op.typed, [meta.held for meta in recipe.outputs]
    if len(kinds) > 1:
        return lambda *arrays: [typed(*facts) for facts in zip(function(*arrays), kinds)]
    kind = kinds[0]

    def forward(*arrays: Any) -> Any:
        array = function(*arrays)
        return array if array.dtype is kind else typed(array, kind)

    return forward


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
