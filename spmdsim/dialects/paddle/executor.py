"""``Executor``: run a program with feeds, and return fetched values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from spmdsim import nn
from spmdsim.arrays import Tensor as CoreTensor
from spmdsim.dialects.missing import refuse
from spmdsim.dialects.paddle import static
from spmdsim.dialects.paddle.static import Missing, Program, Variable, default_main_program
from spmdsim.dialects.paddle.tensors import Tensor, as_replicated
from spmdsim.errors import InputError, UsageTypeError, WorldError, nearest

GRADIENT = "@GRAD"


class Executor:
    """Runner of programs; ``place`` is ignored."""

    def __init__(self, place: Any = None) -> None:
        self.place = place

    def run(
        self, program: Program | None = None, feed: Mapping[str, Any] | None = None, fetch_list: Sequence[Any] | None = None,
        feed_var_name: str = "feed", fetch_var_name: str = "fetch", scope: Any = None, return_numpy: bool = True,
        use_program_cache: bool = False, use_prune: bool = False,
    ) -> list[Any]:  # fmt: skip
        """Run a program once; return the fetched values.

        A program without calls, feeds and fetches, such as the startup program, sets parameters to their first values
        and resets optimisers.

        Args:
            program: the program; by default the main program.
            feed: an array for every used variable of ``static.data``, equal on every rank.
            fetch_list: variables, tensors that the program computes, parameters, or their names; ``"w@GRAD"`` is the
                gradient of parameter ``w``.
            feed_var_name: ignored.
            fetch_var_name: ignored.
            scope: ignored.
            return_numpy: return whole arrays on every rank; False returns tensors.
            use_program_cache: ignored.
            use_prune: ignored.

        Raises:
            InputError: If a feed has an unknown name, a wrong shape or type, or is missing; or a fetched value is not
                computed.
            UsageTypeError: If ``program`` is no Program.
            WorldError: If the startup program was not run.
        """
        chosen = default_main_program() if program is None else program
        if not isinstance(chosen, Program):
            raise UsageTypeError(f"exe.run takes a paddle.static.Program, but got a {type(chosen).__name__}")
        if not chosen.instructions and not chosen.feeds and not fetch_list:
            _reset_parameters(chosen)
            return []
        readers = [_make_reader(chosen, wanted) for wanted in fetch_list or ()]
        refuse({
            f"parameter {parameter.name} is not initialized; run exe.run(paddle.static.default_startup_program()) first":
            parameter.name not in static.scope().started for parameter in chosen.all_parameters()
        }, WorldError)  # fmt: skip
        values = chosen.run({name: _check_feed(chosen, name, array) for name, array in (feed or {}).items()})
        results = [read(values) for read in readers]
        return [x.numpy() if isinstance(x, CoreTensor) else x for x in results] if return_numpy else results

    def close(self) -> None:
        """Do nothing: no resource is open."""


def _reset_parameters(startup: Program) -> None:
    """Set parameters to their first values and reset optimisers."""
    for parameter in startup.all_parameters():
        parameter.materialise(parameter.value.world, parameter.first_seed)
        static.scope().started.add(parameter.name)
    for optimizer in startup.optimizers:
        optimizer.state.clear()
        optimizer.counts.clear()


def _check_feed(program: Program, name: str, value: Any) -> Tensor:
    """Return the value that a run feeds for the variable ``name`` as a tensor.

    Numbers and lists take the variable's type. Raises InputError if the program feeds no such variable, or if shape or
    type do not fit it.
    """
    if name not in program.feeds:
        close = nearest(name, program.feeds) or next(iter(program.feeds), None)
        hint = f"nearest: {close}" if close else "the program feeds nothing"
        raise InputError(f"feed has {name!r}, which is no variable of static.data; {hint}")
    variable = program.feeds[name]
    if isinstance(value, (list, tuple, int, float, bool)):
        value = np.asarray(value, variable.dtype)
    fed: Tensor = as_replicated(value)
    shape = variable.shape
    fits = len(shape) == fed.ndim and all(a in (-1, b) for a, b in zip(shape, fed.shape))
    wanted, kind = variable.dtype.name, fed.dtype.name
    refuse({
        f"the fed Variable {name!r} should have dimensions = {len(shape)}, shape = {shape}, but received fed shape {fed.shape}": not fits,
        f"the data type of fed Variable {name!r} must be {wanted!r}, but received {kind!r}": wanted != kind,
    })  # fmt: skip
    return fed


def _make_reader(program: Program, wanted: Any) -> Callable[[Mapping[int, Any]], Any]:
    """Return a function that reads one fetched value from the result of ``Program.run``.

    The function raises InputError if the program does not compute the value, or if a feed is missing.

    Args:
        program: the program.
        wanted: entry of the fetch_list: a variable, a tensor, a parameter, a name, or a list with one of them.
            ``"w@GRAD"`` is the gradient of parameter ``w``.
    """
    if isinstance(wanted, (list, tuple)) and len(wanted) == 1:
        return _make_reader(program, wanted[0])
    if isinstance(wanted, str):
        variable = program.var(wanted.removesuffix(GRADIENT))
        return (lambda _: variable.grad) if wanted.endswith(GRADIENT) else _make_reader(program, variable)
    parameter = wanted if isinstance(wanted, nn.Parameter) else getattr(wanted, "owner", None)
    if parameter is not None:
        return lambda _: parameter.value

    def read(values: Mapping[int, Any]) -> Any:
        """Return the value.

        Raises InputError if the program does not compute it, or a feed is missing.
        """
        value = values.get(getattr(wanted, "key", None) or 0)
        what = wanted.name if isinstance(wanted, Variable) else f"a {type(wanted).__name__}"
        refuse({
            f"{what} cannot be fetched: the program does not compute it; fetch a variable or tensor that was made under its "
            "program_guard, a parameter, or a name": value is None,
        })  # fmt: skip
        if isinstance(value, Missing):
            raise static.missing_feed_error(value)
        return value

    return read
