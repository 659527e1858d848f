"""``Executor``: runs a program with what it is fed, and gives what is fetched."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from spmdsim import nn
from spmdsim.arrays import Tensor as CoreTensor
from spmdsim.dialects.missing import refuse
from spmdsim.dialects.paddle import static
from spmdsim.dialects.paddle.static import Missing, Program, Variable, default_main_program
from spmdsim.dialects.paddle.tensors import Tensor, everywhere
from spmdsim.errors import InputError, UsageTypeError, WorldError, nearest

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
        readers = [_reader(chosen, wanted) for wanted in fetch_list or ()]
        refuse({
            f"parameter {one.name} is not initialized; run exe.run(paddle.static.default_startup_program()) first":
            one.name not in static.scope().started for one in chosen.all_parameters()
        }, WorldError)  # fmt: skip
        values = chosen.run({name: _fed(chosen, name, array) for name, array in (feed or {}).items()})
        results = [read(values) for read in readers]
        return [x.numpy() if isinstance(x, CoreTensor) else x for x in results] if return_numpy else results

    def close(self) -> None:
        """Nothing is left to be closed."""


def _start(startup: Program) -> None:
    for parameter in startup.all_parameters():
        parameter.materialise(parameter.value.world, parameter.first_seed)
        static.scope().started.add(parameter.name)
    for optimizer in startup.optimizers:
        optimizer.state.clear()
        optimizer.counts.clear()


def _fed(program: Program, name: str, value: Any) -> Tensor:
    """A feed as a tensor that fits its variable."""
    if name not in program.feeds:
        close = nearest(name, program.feeds) or next(iter(program.feeds), None)
        hint = f"nearest: {close}" if close else "the program feeds nothing"
        raise InputError(f"feed has {name!r}, which is no variable of static.data; {hint}")
    variable = program.feeds[name]
    if isinstance(value, (list, tuple, int, float, bool)):
        value = np.asarray(value, variable.dtype)
    fed: Tensor = everywhere(value)
    shape = variable.shape
    fits = len(shape) == fed.ndim and all(a in (-1, b) for a, b in zip(shape, fed.shape))
    wanted, kind = variable.dtype.name, fed.dtype.name
    refuse({
        f"the fed Variable {name!r} should have dimensions = {len(shape)}, shape = {shape}, but received fed shape {fed.shape}": not fits,
        f"the data type of fed Variable {name!r} must be {wanted!r}, but received {kind!r}": wanted != kind,
    })  # fmt: skip
    return fed


def _reader(program: Program, wanted: Any) -> Callable[[Mapping[int, Any]], Any]:
    """What gives a variable, a parameter or its gradient from the values of a run, which are known by key."""
    if isinstance(wanted, (list, tuple)) and len(wanted) == 1:
        return _reader(program, wanted[0])
    if isinstance(wanted, str):
        there = program.var(wanted.removesuffix(GRADIENT))
        return (lambda _: there.grad) if wanted.endswith(GRADIENT) else _reader(program, there)
    parameter = wanted if isinstance(wanted, nn.Parameter) else getattr(wanted, "owner", None)
    if parameter is not None:
        return lambda _: parameter.value

    def read(values: Mapping[int, Any]) -> Any:
        value = values.get(getattr(wanted, "key", None) or 0)
        what = wanted.name if isinstance(wanted, Variable) else f"a {type(wanted).__name__}"
        refuse({
            f"{what} cannot be fetched: the program does not compute it; fetch a variable or tensor that was made under its "
            "program_guard, a parameter, or a name": value is None,
        })  # fmt: skip
        if isinstance(value, Missing):
            raise static.not_fed(value)
        return value

    return read


def pulled(loss: Any, parameters: Sequence[Any]) -> None:
    """New gradients of parameters."""
    for parameter in parameters:
        parameter.value.grad = None
    nn.backward(loss)


def selected(variables: Sequence[Any], wanted: Any, without: Any, program: Program) -> list[Any]:
    """Parameters, given themselves or by their names, that are trained."""
    chosen = variables if wanted is None else [program.var(x) if isinstance(x, str) else x for x in wanted]
    left = {x if isinstance(x, str) else x.name for x in without or ()}
    return [x for x in chosen if getattr(x, "trainable", True) and x.name not in left]
