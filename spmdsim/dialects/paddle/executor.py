"""``Executor``: runs a program with what it is fed, and gives what is fetched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

import numpy as np

from spmdsim import nn
from spmdsim.dialects.paddle.static import Missing, Program, Variable, default_main_program, not_fed, scope
from spmdsim.dialects.paddle.tensors import Tensor, check_needs_gradient, everywhere
from spmdsim.errors import InputError, UsageTypeError, WorldError
from spmdsim.tensor import Tensor as CoreTensor

GRADIENT = "@GRAD"


class Executor:
    """Runs programs; the place is accepted and ignored."""

    def __init__(self, place: Any = None) -> None:
        self.place = place

    def run(
        self, program: Program | None = None, feed: Mapping[str, Any] | None = None, fetch_list: Sequence[Any] | None = None,
        feed_var_name: str = "feed", fetch_var_name: str = "fetch", scope: Any = None, return_numpy: bool = True,
        use_program_cache: bool = False, use_prune: bool = False,
    ) -> list[Any]:  # fmt: skip
        """Run a program once; the startup program gives parameters their first values and optimisers a new start.

        What is fed is an array for every variable of ``static.data`` that is used, the same on every rank. What is fetched
        are variables, tensors that the program computes, parameters, or their names; ``"w@GRAD"`` is the gradient of the
        parameter ``w``. It comes as arrays, whole on every rank, unless not ``return_numpy``. All else is ignored.

        Raises:
            InputError: a feed of another name, shape or type, one that is missing, or something that is not computed.
            WorldError: the startup program was not run.
        """
        chosen = default_main_program() if program is None else program
        if not isinstance(chosen, Program):
            raise UsageTypeError(f"exe.run takes a paddle.static.Program, but got a {type(chosen).__name__}")
        if not chosen.instructions and not chosen.feeds and not fetch_list:
            _start(chosen)
            return []
        fetched = [_name(chosen, wanted) for wanted in fetch_list or ()]
        for parameter in chosen.all_parameters():
            if parameter.name not in _scope().started:
                raise WorldError(
                    f"parameter {parameter.name} is not initialized; run exe.run(paddle.static.default_startup_program()) first"
                )
        values = chosen.run({name: _fed(chosen, name, array) for name, array in (feed or {}).items()})
        results = [_value(chosen, wanted, values) for wanted in fetched]
        return [x.full() if isinstance(x, CoreTensor) else x for x in results] if return_numpy else results

    def close(self) -> None:
        """Nothing is left to be closed."""


_scope = scope


def _start(startup: Program) -> None:
    for parameter in startup.all_parameters():
        parameter.materialise(parameter.value.world, parameter.first_seed)
        scope().started.add(parameter.name)
    for optimizer in startup.optimizers:
        optimizer.state.clear()
        optimizer.counts.clear()


def _fed(program: Program, name: str, value: Any) -> Tensor:
    """A feed as a tensor that fits its variable."""
    if name not in program.feeds:
        close = get_close_matches(name, program.feeds, n=1) or list(program.feeds)
        hint = f"nearest: {close[0]}" if close else "the program feeds nothing"
        raise InputError(f"feed has {name!r}, which is no variable of static.data; {hint}")
    variable = program.feeds[name]
    if isinstance(value, (list, tuple, int, float, bool)):
        value = np.asarray(value, variable.dtype)
    fed: Tensor = everywhere(value)
    shape = variable.shape
    if len(shape) != fed.ndim or any(a not in (-1, b) for a, b in zip(shape, fed.shape)):
        raise InputError(
            f"the fed Variable {name!r} should have dimensions = {len(shape)}, shape = {shape}, but received fed shape "
            f"{fed.shape}"
        )
    if fed.dtype != variable.dtype:
        raise InputError(
            f"the data type of fed Variable {name!r} must be {variable.dtype.name!r}, but received {fed.dtype.name!r}"
        )
    return fed


def _name(program: Program, wanted: Any) -> Any:
    """What is fetched: a variable, a parameter, or ``(parameter, "@GRAD")``."""
    if isinstance(wanted, (list, tuple)) and len(wanted) == 1:
        wanted = wanted[0]
    if isinstance(wanted, Tensor) and wanted.owner is not None:
        return wanted.owner
    if not isinstance(wanted, str):
        return wanted
    if wanted.endswith(GRADIENT):
        return program.var(wanted.removesuffix(GRADIENT)), GRADIENT
    return program.var(wanted)


def _value(program: Program, wanted: Any, values: Mapping[int, Any]) -> Any:
    if isinstance(wanted, tuple):
        return wanted[0].grad
    if isinstance(wanted, nn.Parameter):
        return wanted.value
    key = getattr(wanted, "key", None) or 0
    if key not in values:
        what = wanted.name if isinstance(wanted, Variable) else f"a {type(wanted).__name__}"
        raise InputError(
            f"{what} cannot be fetched: the program does not compute it; fetch a variable or tensor that was made under its "
            "program_guard, a parameter, or a name"
        )
    value = values[key]
    if isinstance(value, Missing):
        raise not_fed(value)
    return value


def append_backward(
    loss: Any, parameter_list: Any = None, no_grad_set: Any = None, callbacks: Any = None
) -> list[tuple[Any, Any]]:
    """Have each run compute the gradients of a loss, fetched as ``"w@GRAD"``: pairs of a parameter and that name."""
    check_needs_gradient(loss, "append_backward(loss)")
    program = loss.program if isinstance(loss, Variable) else default_main_program()
    chosen = selected(program.all_parameters(), parameter_list, no_grad_set, program)
    program.call(pulled, (loss, chosen), {}, trains=True)
    return [(parameter, f"{parameter.name}{GRADIENT}") for parameter in chosen]


def pulled(loss: Any, parameters: Sequence[Any]) -> None:
    """New gradients of parameters."""
    for parameter in parameters:
        parameter.value.grad = None
    nn.backward(loss)


def selected(known: Sequence[Any], wanted: Any, without: Any, program: Program) -> list[Any]:
    """Parameters, given themselves or by their names, that are trained."""
    chosen = known if wanted is None else [program.var(x) if isinstance(x, str) else x for x in wanted]
    left = {x if isinstance(x, str) else x.name for x in without or ()}
    return [x for x in chosen if getattr(x, "trainable", True) and x.name not in left]
