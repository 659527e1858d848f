"""``paddle.static``: programs that are recorded once and run with every feed.

Calls of the dialect's functions and layers are recorded. A run repeats them on our tensors, with the feeds instead of
the variables. This module also has the state of Paddle programs: the mode, the seeds of random numbers, and the
numbering of layers. Read ``call_recorded``, through which every call goes, then ``Program.call`` and ``Program.run``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from inspect import signature
from itertools import count
from math import factorial
from typing import Any, cast
from weakref import WeakValueDictionary

import numpy as np

from spmdsim.arrays import Tensor as CoreTensor
from spmdsim.core import Layout, Mesh
from spmdsim.core.tensor import Meta
from spmdsim.dialects.missing import DialectObject, NotCovered, add_words, refuse
from spmdsim.dialects.paddle.rank_shards import compute_from_shards
from spmdsim.dialects.paddle.tensors import Shape, Tensor, shape_only, with_methods
from spmdsim.dialects.session import Seeds, current_world, is_recording, use_world
from spmdsim.dialects.table import find_instances, map_nested
from spmdsim.errors import InputError, SpmdError, UsageTypeError, nearest
from spmdsim.worlds.base import World
from spmdsim.worlds.lockstep_world import ShapeOnly
from spmdsim.worlds.trace.recorder import unseen
from spmdsim.wrong_calls import explained

#: Mode: "static", "dynamic", or "" until one is set, when functions of both modes work.
_mode = [""]
seeds = Seeds()
_kinds: Counter[str] = Counter()


def enable_static() -> None:
    """Switch to static mode: calls are recorded.

    Calls with known values are also computed at once.
    """
    _mode[0] = "static"


def disable_static(place: Any = None) -> None:
    """Switch to dynamic mode, where ``split`` and ``static.data`` raise errors as in Paddle.

    ``place`` is ignored.
    """
    _mode[0] = "dynamic"


def in_dynamic_mode() -> bool:
    """Return True after `disable_static`. Neither mode is set at first."""
    return _mode[0] == "dynamic"


def in_static_mode() -> bool:
    """Return True after `enable_static`: calls are recorded."""
    return _mode[0] == "static"


def seed(value: int) -> None:
    """Set the seed of random numbers; the numbering of layers without a name restarts."""
    seeds.begin(value)
    _kinds.clear()


def next_number(kind: str) -> int:
    """Return the number of layers of a kind since the seed was set, and count one more.

    A layer's first values depend on it.
    """
    _kinds[kind] += 1
    return _kinds[kind] - 1


#: Two sizes instead of a size that a feed decides; all numbers up to 8 divide both. Shapes are computed with each of
#: them. A size that differs depends on the feed.
STAND_INS = (factorial(8), 2 * factorial(8))


class Variable(DialectObject):
    """Tensor of a program that is run later, without values.

    Args:
        program: the program.
        key: number of its value in a run.
        tensors: two tensors without data, with the first and the second stand-in size.
        name: its name.
    """

    ORIGINAL = "paddle.static.Variable"

    def __init__(self, program: Any, key: int, tensors: Sequence[Tensor], name: str) -> None:
        self.program, self.key, self.tensors, self.name = program, key, tensors, name

    tensor = property(lambda self: self.tensors[0], doc="Tensor without data, with the first stand-in size.")

    @property
    def shape(self) -> Shape:
        """Global shape, with -1 for sizes that a feed decides."""
        first, second = (x.shape for x in self.tensors)
        return Shape(size if size == second_size else -1 for size, second_size in zip(first, second))

    dtype = property(lambda self: self.tensor.dtype, doc="Element type.")
    ndim = property(lambda self: self.tensor.ndim, doc="Number of dims.")
    requires_grad = property(lambda self: self.tensor.requires_grad, doc="True if it collects a gradient.")

    @property
    def stop_gradient(self) -> bool:
        """True if no gradient passes through the variable."""
        return bool(self.tensor.stop_gradient)

    @stop_gradient.setter
    def stop_gradient(self, value: bool) -> None:
        self.tensor.stop_gradient = self.program.stops[self.key] = bool(value)

    def _no_value(self, *_: Any) -> Any:
        """Raise UsageTypeError: the variable has no values before a run."""
        raise UsageTypeError(
            f"{self.name} has no values before its program runs; nearest: exe.run(feed={{...}}, fetch_list=[{self.name}])"
        )

    __bool__ = __float__ = __int__ = __len__ = __iter__ = __array__ = _no_value

    def __getattr__(self, name: str) -> Any:
        if name in ("numpy", "item", "tolist", "full", "backward", "grad", "gradient"):
            near = "optimizer.minimize(loss)" if name == "backward" else "exe.run(fetch_list=[...])"
            text = f"{self.name}.{name}: a program's variable has it only in a run; nearest: {near}"
            raise NotCovered(text)
        return super().__getattr__(name)

    def __repr__(self) -> str:
        return f"var {self.name} : shape{self.shape}.dtype({self.dtype}).stop_gradient({self.stop_gradient})"


class Missing(str):
    """Value of a run that needs a missing feed, whose name it is."""


def missing_feed_error(name: str) -> InputError:
    """Return the error for a missing feed."""
    return InputError(f"variable {name} is not fed: exe.run(feed={{{name!r}: array, ...}}) must have it")


@contextmanager
def compute_shapes_only(world: World, names: str) -> Iterator[None]:
    """Run the ``with`` block in a world without data, where operators compute shapes only.

    Nothing is counted or recorded. An error of this package leaves the block with another text, which has -1 instead of
    a size that a feed decides. Its facts have ``names`` instead of the operands.

    Args:
        world: the world without data.
        names: description of the operands, for errors.
    """
    try:
        with use_world(world), unseen():
            yield
    except SpmdError as error:
        error.message = error.message.replace(str(STAND_INS[0]), "-1")
        error.facts = {"operator": error.facts.get("operator", "a recorded call"), "operands": names}
        raise error from None


_keys = count(1)
_running = [0]


@dataclass(frozen=True)
class RecordedCall:
    """Recorded call.

    Attributes:
        function: the function.
        args: positional arguments, with variables and parameters.
        options: named arguments.
        outputs: keys of the tensors in its result.
        trains: True if the call changes parameters.
    """

    function: Callable[..., Any]
    args: Any
    options: Any
    outputs: tuple[int, ...]
    trains: bool

    def for_test(self) -> RecordedCall:
        """Return the call for a test program: an argument ``training`` becomes False.

        The call itself is returned if its function has no such parameter.
        """
        written = signature(self.function)
        if "training" not in written.parameters:
            return self
        bound = written.bind(*self.args, **self.options)
        bound.arguments["training"] = False
        return replace(self, args=bound.args, options=bound.kwargs)


@dataclass(eq=False, repr=False)
class Program(DialectObject):
    """Recorded calls, fed variables, and parameters.

    Attributes:
        instructions: the calls, in order.
        feeds: variables of ``static.data`` by name.
        variables: all variables by name.
        stops: key -> ``stop_gradient`` set by the program.
        owned_parameters: parameters that the program owns.
        parameters_by_name: all parameters by name, while they exist.
        optimizers: optimisers that a run of this startup program resets.
    """

    ORIGINAL = "paddle.static.Program"

    instructions: list[RecordedCall] = field(default_factory=list)
    feeds: dict[str, Variable] = field(default_factory=dict)
    variables: dict[str, Any] = field(default_factory=dict)
    stops: dict[int, bool] = field(default_factory=dict)
    owned_parameters: list[Any] = field(default_factory=list)
    parameters_by_name: WeakValueDictionary[str, Any] = field(default_factory=WeakValueDictionary)
    optimizers: list[Any] = field(default_factory=list)

    def all_parameters(self) -> list[Any]:
        """Return the parameters, in the order of their creation."""
        return list(self.parameters_by_name.values())

    parameters = all_parameters

    def list_vars(self) -> list[Any]:
        """Return parameters and variables."""
        return [*self.all_parameters(), *self.variables.values()]

    def global_block(self) -> Program:
        """Return the program itself, which is its only block."""
        return self

    def __repr__(self) -> str:
        """Return variables, parameters and calls, one per line."""
        lines = [
            *map(repr, self.variables.values()),
            *(f"persist trainable param {x.name} : shape{x.shape}.dtype({x.dtype})" for x in self.all_parameters()),
            *(f"{{{len(x.outputs)} out}} = {getattr(x.function, '__name__', 'call')}" for x in self.instructions),
        ]  # fmt: skip
        return "{ // block 0\n" + "".join(f"    {line}\n" for line in lines) + "}"

    def var(self, name: str) -> Any:
        """Return a parameter or variable by name; of equal names, the parameter.

        Raises:
            InputError: If it does not exist; the text has the nearest name.
        """
        values_by_name = {**self.variables, **self.parameters_by_name}
        if name not in values_by_name:
            near = nearest(name, values_by_name)
            hint = f"nearest: {near}" if near else "list_vars() lists what there is"
            raise InputError(f"var {name} not in this block; {hint}")
        return values_by_name[name]

    def clone(self, for_test: bool = False) -> Program:
        """Return a copy with the same parameters, variables and calls.

        Calls that are recorded later belong to one of the two programs.

        Args:
            for_test: leave out training steps, and set ``training=False`` in calls that have it, such as dropout.
        """
        calls = [*self.instructions]
        if for_test:
            calls = [call.for_test() for call in calls if not call.trains]
        copied = ("feeds", "variables", "stops", "owned_parameters", "optimizers")
        return replace(self, instructions=calls, **{name: copy(getattr(self, name)) for name in copied})

    def add_parameter(self, parameter: Any, keep: bool) -> None:
        """Add a parameter; with ``keep``, it exists as long as the program."""
        self.parameters_by_name[parameter.name] = parameter
        if keep:
            self.owned_parameters.append(parameter)

    def call(self, function: Callable[..., Any], args: Any, options: Any, *, trains: bool = False) -> Any:
        """Record a call in the program, and return its result as far as it is known.

        Every call is recorded, also one without variables; each run repeats it.

        * No operand is a variable: the call is also made now (a training step too), and its result has values.
        * Some operand is a variable: the result is a variable. Its shape is computed with each of the two sizes in
          ``STAND_INS`` for the sizes that a feed decides. A size that differs between the two depends on the feed.
        * Some operand is a variable, and ``trains``: nothing is computed; the result is None.

        Args:
            function: the function.
            args: the tuple of positional arguments.
            options: the dict of named arguments.
            trains: True if the call changes parameters.

        Raises:
            SpmdError: If the function refuses the operands; then nothing is recorded.
        """
        variables = find_instances((args, options), Variable)
        results: list[Any] = []
        if not variables:
            results.append(_run_now(function, args, options))
        elif not trains:
            world = scope().shapes
            with compute_shapes_only(world, ", ".join(f"{x.name}: shape{x.shape}" for x in variables)):
                for k in range(len(STAND_INS)):
                    results.append(
                        _run_now(function, *map_nested((args, options), partial(_use_stand_in, k, world)))
                    )
        args, options = map_nested((args, options), self._to_recorded)
        outputs: list[int] = []
        others = iter(find_instances(results[1:], CoreTensor))  # with the second stand-in
        result = map_nested(
            next(iter(results), None), lambda x: self._record_output(x, function, others, outputs)
        )
        self.instructions.append(RecordedCall(function, args, options, tuple(outputs), trains))
        return result

    def _to_recorded(self, x: Any) -> Any:
        """Return an argument as it is recorded: a tensor of the program as its variable or its parameter.

        So a run takes the value of that run. Other values are recorded unchanged.
        """
        if not isinstance(x, Tensor) or (x.owner is None and x.key is None):
            return x
        return self.variables.get(x.name, x) if x.owner is None else x.owner

    def _record_output(self, x: Any, function: Any, others: Iterator[Tensor], outputs: list[int]) -> Any:
        """Record one result of a call in the program; return the result as the caller sees it.

        * A result that depends on a feed becomes a variable, which is returned.
        * Another tensor is returned with its values; the program gets a variable of its shape and name.
        * A result that is no tensor is returned unchanged, and not recorded.

        Args:
            x: the result, computed with the first stand-in size (``STAND_INS``) if it depends on a feed.
            function: the function or bound method that was called; it names the variable, such as ``relu_0.tmp_0``.
            others: the results with the second stand-in size, of which the next one belongs to ``x``; empty without a
                feed.
            outputs: list to which the key of the result is appended.
        """
        if not isinstance(x, CoreTensor):
            return x
        output, second_tensor = with_methods(x), next(others, None)
        outputs.append(key := next(_keys))
        owner = getattr(function, "__self__", None)
        kind = (function.__name__ if owner is None else type(owner).__name__.lower()).strip("_")
        name = f"{scope().unique(kind)}.tmp_0"
        if second_tensor is not None:
            self.variables[name] = variable = Variable(self, key, (output, second_tensor), name)
            return variable
        output.key, output.name = key, name
        self.variables[name] = Variable(self, key, (shape_only(output, scope().shapes),) * 2, name)
        return output

    def run(self, fed: dict[str, Tensor]) -> dict[int, Any]:
        """Repeat all recorded calls with the fed values; return each value by its variable's key.

        A call that needs a variable that is not fed is skipped. Its results, and those of the calls that need them, are
        `Missing` objects with the variable's name.

        Args:
            fed: tensors by variable name. Names of other variables than those of ``static.data`` are ignored.

        Raises:
            InputError: If a call that trains needs a variable that is not fed.
        """
        values: dict[int, Any] = {x.key: fed.get(name, Missing(name)) for name, x in self.feeds.items()}
        values = {key: self._apply_stop_gradient(key, x) for key, x in values.items()}
        for call in self.instructions:
            asked = (call.args, call.options)
            args, options = map_nested(
                asked, lambda x: values.get(x.key, x) if isinstance(x, Variable) else x
            )
            missing = find_instances((args, options), Missing)
            if missing and call.trains:
                raise missing_feed_error(missing[0])
            if missing:
                results = [missing[0]] * len(call.outputs)
            else:
                tensors = find_instances(_run_now(call.function, args, options), CoreTensor)
                results = list(map(with_methods, tensors))
            values.update({key: self._apply_stop_gradient(key, x) for key, x in zip(call.outputs, results)})
        return values

    def _apply_stop_gradient(self, key: int, x: Any) -> Any:
        """Return a value of a run with the ``stop_gradient`` that the program set for its variable.

        Args:
            key: number of the variable's value in a run.
            x: its value; returned unchanged if the program set no flag, or it is no tensor. With the flag True, the
                result has no history.
        """
        if key not in self.stops or not isinstance(x, Tensor):
            return x
        has_history = x.node is not None and not self.stops[key]
        value = x if has_history else x.detach()
        value.stop_gradient = self.stops[key]
        return value


def _use_stand_in(k: int, world: World, x: Any) -> Any:
    """Return an operand for a calculation of shapes in a world without data.

    A variable becomes its tensor with the ``k``-th stand-in for sizes that a feed decides, a tensor loses its data. The
    value of a parameter and other operands stay, because parameters remove their data themselves.
    """
    if isinstance(x, Variable):
        return x.tensors[k]
    if not isinstance(x, CoreTensor) or getattr(x, "owner", None) is not None:
        return x
    return shape_only(x, world)


def _run_now(function: Callable[..., Any], args: Any, options: Any) -> Any:
    """Call a function at once, without recording the calls inside it; return its result.

    Operands may be the ranks' own shards; see `rank_shards`. Inside `no_grad`, the result is detached: no gradients
    pass back through it.

    Args:
        function: the function.
        args: the tuple of its positional arguments.
        options: the dict of its named arguments.

    Raises:
        NotCovered: If an operand is a rank's own shard, and Paddle's result differs.
    """
    _running[0] += 1
    try:
        if any(x.is_rank_shard for x in find_instances((args, options), Tensor)):
            result = compute_from_shards(function, args, options)
        else:
            result = function(*args, **options)
    finally:
        _running[0] -= 1
    if is_recording():
        return result
    return map_nested(result, lambda x: x.detach() if isinstance(x, CoreTensor) else x)


def call_recorded(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Call a function at once; in static mode, or with a program's variables, record the call.

    It is recorded in the program of the first variable, else in the default main program. A call inside another call is
    never recorded. Tensors of the result are Paddle's.

    Args:
        function: the function.
        args: its positional arguments, perhaps with variables.
        options: its named arguments.
    """
    if not _running[0]:
        variables = find_instances((args, options), Variable)
        if variables or in_static_mode():
            program = variables[0].program if variables else default_main_program()
            return program.call(function, args, options)
    return map_nested(
        _run_now(function, args, options), lambda x: with_methods(x) if isinstance(x, CoreTensor) else x
    )


class Scope:
    """State of Paddle programs in one world: default programs, and the numbering of names.

    Attributes:
        programs: stack of (main program, startup program).
        names: number of names per kind.
        parameters_by_name: parameters by name, while they exist.
        started: names of parameters that a startup program has filled.
        shapes: world without data, for shapes.
    """

    def __init__(self, world: World) -> None:
        self.programs = [(Program(), Program())]
        self.names: Counter[str] = Counter()
        self.parameters_by_name: WeakValueDictionary[str, Any] = WeakValueDictionary()
        self.started: set[str] = set()
        self.shapes = ShapeOnly(world.size) if world.has_data else world

    def unique(self, kind: str) -> str:
        """Return a new name: the kind and a number."""
        self.names[kind] += 1
        return f"{kind}_{self.names[kind] - 1}"


def scope() -> Scope:
    """Return the scope of the current world, an attribute of the world because its tensors belong to it."""
    attributes = vars(world := current_world())
    if "paddle" not in attributes:
        attributes["paddle"] = Scope(world)
    return cast(Scope, attributes["paddle"])


def default_main_program() -> Program:
    """Return the program in which calls are recorded."""
    return scope().programs[-1][0]


def default_startup_program() -> Program:
    """Return the program that sets parameters to their first values."""
    return scope().programs[-1][1]


@explained
@contextmanager
def program_guard(main_program: Program, startup_program: Program | None = None) -> Iterator[None]:
    """Record calls of the ``with`` block in another program.

    For example, ``with program_guard(main): loss = paddle.mean(x)`` adds the call of ``mean`` to ``main``. After the
    block, calls are recorded in the previous program again.

    Args:
        main_program: the program in which calls are recorded.
        startup_program: the startup program inside the block; None keeps the current one.

    Raises:
        InputError: If an argument is no Program.
    """
    current, wanted = scope(), (main_program, startup_program or main_program)
    kinds = {type(program).__name__: not isinstance(program, Program) for program in wanted}
    refuse(
        {
            f"program_guard: programs must be of paddle.static.Program, got a {kind}": kinds[kind]
            for kind in kinds
        }
    )
    current.programs.append((main_program, startup_program or current.programs[-1][1]))
    try:
        yield
    finally:
        current.programs.pop()


@explained
def data(name: str, shape: Any, dtype: Any = None, lod_level: int = 0) -> Variable:
    """Create a variable of the default main program, for which each run must be fed a value.

    For example, ``data("x", [None, 8])`` accepts arrays with 8 columns and any number of rows.

    Args:
        name: its name. If a fed variable of this name, shape and type exists, it is returned.
        shape: global shape; None or -1 for sizes that the feed decides.
        dtype: element type; None for float32.
        lod_level: not used: the interface has it.

    Raises:
        UsageTypeError: In dynamic mode.
        InputError: If the name belongs to a variable with another shape or type, or to one that is not fed.
    """
    text = "paddle.static.data is only supported in static graph mode; call paddle.enable_static()"
    refuse({text: in_dynamic_mode()}, UsageTypeError)
    program, shapes = default_main_program(), scope().shapes
    layout = Layout.replicated(Mesh((current_world().size,), ("rank",)), len(shape))
    tensors = []
    for stand_in in STAND_INS:
        meta = Meta.of(
            layout,
            tuple(stand_in if size in (None, -1) else int(size) for size in shape),
            np.dtype(dtype or "float32"),
        )
        tensors.append(shape_only(Tensor(shapes, meta, []), shapes))
    variable = Variable(program, next(_keys), tensors, name)
    existing = program.variables.get(name, variable)
    is_new, is_fed = existing is variable, name in program.feeds
    is_equal = (existing.shape, existing.dtype) == (variable.shape, variable.dtype)
    refuse(
        {
            f"variable {name} is {existing!r} already; give static.data another name than {name!r}": not (
                is_new or (is_fed and is_equal)
            )
        }
    )
    if is_new:
        program.feeds[name] = program.variables[name] = variable
    return program.feeds[name]


add_words(__name__)
