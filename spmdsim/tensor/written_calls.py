"""Calls of one operand that come again as they were written: known by that, without what follows from it once more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from spmdsim.core.step import LOCAL_STEPS
from spmdsim.core.tensor import Meta, Tensor
from spmdsim.redistribution.guard import guards
from spmdsim.tensor.operator_calls import CallRecipe
from spmdsim.tensor.program_operator import Op
from spmdsim.tensor.watch import watchers
from spmdsim.trace.recorder import open_traces

#: What some arrays become, one after the other.
Functions = list[Callable[[Any], Any]]


class WrittenCall(NamedTuple):
    """What a call does with the array of a process's only rank, the result's meta, and the operators with their parameters."""

    run: Callable[[Any], Any]
    meta: Meta
    calls: Sequence[tuple[CallRecipe, dict[str, Any]]]


def again(x: Tensor, what: str, written: Any) -> Any:
    """What a call gives that was :func:`remembered`; None: it was not, or somebody wants to see it, or its gradient."""
    if x._tracked or watchers or open_traces or guards:
        return None
    world: Any = x.world
    try:
        call = world.cache.get((x.meta, world.variant, what, written))
    except TypeError:  # what cannot be looked up
        return None
    if call is None:
        return None
    run, meta, calls = call
    result = type(x)(world, meta, [run(x.held[0])], False, "", x.origin)
    for recipe, params in calls if world.compares else ():
        result.origin = world.derived_origin(recipe, (result,), 0, params)
    return result


def remembered(x: Tensor, what: str, written: Any, calls: Sequence[tuple[Op, dict[str, Any]]]) -> None:
    """Remember what a call was that just ran: these operators, one after the other, if each is one function of one array."""
    world: Any = x.world
    if len(world.ranks) != 1 or not world.has_data or x._tracked or watchers or open_traces or guards:
        return
    functions: Functions = []
    meta, recipes = x.meta, []
    for op, params in calls:
        recipe: CallRecipe | None = world.cache.get((op, None, meta, *params.items()))
        local = None if recipe is None else _local(recipe, world, params)
        if recipe is None or local is None:
            return
        functions += local
        meta = recipe.outputs[0]
        recipes.append((recipe, params))
    world.cache[x.meta, world.variant, what, written] = WrittenCall(_composed(functions), meta, recipes)


def _local(recipe: CallRecipe, world: Any, params: dict[str, Any]) -> Functions | None:
    """What a recipe does with an array, if nothing is sent and the type stays what it is."""
    before, after, plan = recipe.inputs[0].held, recipe.outputs[0].held, recipe.plans[0]
    if not recipe.plain or recipe.asks or recipe.op.varying or before is not after or not recipe.op.moves:
        return None
    steps = plan.steps if recipe.moves and plan is not None else ()
    programs = [world.program(step, before) if step.collective in LOCAL_STEPS else None for step in steps]
    runs = [None if program is None or program.room is not None else program.run for program in programs]
    if None in runs or (recipe.moves and plan is None):
        return None
    return [*[run for run in runs if run is not None], recipe.alone]


def same(array: np.ndarray) -> np.ndarray:
    """An array as it is: what is left of an operator whose operand is brought as its result."""
    return array


def _composed(functions: Functions) -> Callable[[Any], Any]:
    first, *rest = [function for function in functions if function is not same] or [same]
    if not rest:
        return first

    def run(array: Any) -> Any:
        array = first(array)
        for function in rest:
            array = function(array)
        return array

    return run
