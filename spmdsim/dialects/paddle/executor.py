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
        """Run a program once; return the fetched values, in the order of ``fetch_list``.

        All ranks must call it. A program without calls, feeds and fetches is a startup program: its run sets parameters
        to their first values and resets optimisers, and returns an empty list. For example,
        ``exe.run(feed={"x": array}, fetch_list=[loss])`` returns a list with the loss.

        Args:
            program: the program; None for the main program.
            feed: an array for every used variable of ``static.data``, by name, equal on every rank; None for none.
            fetch_list: variables, tensors that the program computes, parameters, or their names; ``"w@GRAD"`` is the
                gradient of parameter ``w``. None for none.
            feed_var_name: not used: the interface has it.
            fetch_var_name: not used.
            scope: not used.
            return_numpy: True to return whole arrays on every rank; False to return tensors.
            use_program_cache: not used.
            use_prune: not used.

        Raises:
            InputError: If a feed has an unknown name, a wrong shape or type, or is missing; or a fetched value is not
                computed.
            UsageTypeError: If ``program`` is no Program.
            WorldError: If the startup program was not run.
        """
        chosen = default_main_program() if program is None else program
        if not isinstance(chosen, Program):
            raise UsageTypeError(
                f"exe.run: program must be a paddle.static.Program, got a {type(chosen).__name__}; nearest: "
                "paddle.static.default_main_program()"
            )
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
    """Set all parameters of a program to their first values, and reset its optimisers.

    The parameters are marked as started. First values depend on the seed of the time when the parameter was created.
    """
    for parameter in startup.all_parameters():
        parameter.materialise(parameter.value.world, parameter.first_seed)
        static.scope().started.add(parameter.name)
    for optimizer in startup.optimizers:
        optimizer.state.clear()
        optimizer.counts.clear()


def _check_feed(program: Program, name: str, value: Any) -> Tensor:
    """Return the value that is fed for a variable as a tensor, replicated on every rank.

    Numbers and lists take the variable's type; arrays must have it. If the variable has a size of -1, any size fits.
    For example, an array of shape (32, 8) fits the variable shape [-1, 8]. All ranks must call it.

    Args:
        program: the program.
        name: name of the variable.
        value: a number, list, array or tensor.

    Raises:
        InputError: If the program feeds no such variable, if shape or type do not fit it, or if ranks feed different
            arrays.
    """
    if name not in program.feeds:
        similar_name = nearest(name, program.feeds) or next(iter(program.feeds), None)
        hint = f"nearest: {similar_name}" if similar_name else "the program feeds nothing"
        raise InputError(f"feed must have names of variables of static.data, got {name!r}; {hint}")
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
    """Return a function that reads one fetched value after a run of the program.

    The function takes the result of ``Program.run``, and returns a tensor, or None for a gradient that was not
    computed. It raises InputError if the program does not compute the value, or if a feed is missing.

    Args:
        program: the program.
        wanted: entry of the fetch_list: a variable, a tensor, a parameter, a name, or a list with one of them.
            ``"w@GRAD"`` is the gradient of parameter ``w``.

    Raises:
        InputError: If the program has no variable or parameter of a name.
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
