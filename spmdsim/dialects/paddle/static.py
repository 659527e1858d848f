"""``paddle.static``: programs that are recorded once and run with every feed.

Calls of the dialect's functions and layers are recorded; a run makes them again, on tensors of ours, with the feeds in
the place of the variables. What a program says once stands here, too: its mode, where random numbers begin, how layers
are numbered.
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
from spmdsim.dialects.paddle.tensors import Shape, Tensor, dressed, shape_only
from spmdsim.dialects.session import Seeds, current_world, tracking, use_world
from spmdsim.dialects.table import by_part
from spmdsim.errors import InputError, SpmdError, UsageTypeError, nearest
from spmdsim.worlds.base import World
from spmdsim.worlds.lockstep_world import ShapeOnly
from spmdsim.worlds.trace.recorder import unseen

#: Which mode was asked for. Before, what Paddle has for static mode alone works as well as what needs dynamic mode.
_mode = [""]
seeds = Seeds()
_kinds: Counter[str] = Counter()


def enable_static() -> None:
    """The mode in which programs are recorded. What is known is computed at once nevertheless."""
    _mode[0] = "static"


def disable_static(place: Any = None) -> None:
    """Dynamic mode, in which ``paddle.distributed.split`` and ``paddle.static.data`` refuse to work, as Paddle's do."""
    _mode[0] = "dynamic"


def in_dynamic_mode() -> bool:
    """Whether dynamic mode was asked for."""
    return _mode[0] == "dynamic"


def in_static_mode() -> bool:
    """Whether static mode was asked for: calls are recorded."""
    return _mode[0] == "static"


def seed(value: int) -> None:
    """Where random numbers begin; the first values of layers without a name begin anew."""
    seeds.begin(value)
    _kinds.clear()


def next_number(kind: str) -> int:
    """How many of a kind there were since the seed was given; it decides a layer's first values."""
    _kinds[kind] += 1
    return _kinds[kind] - 1


#: Two sizes that stand for a size that a feed decides; all counts up to 8 divide both. Shapes are computed with each of
#: them: a size that differs depends on the feed.
STAND_INS = (factorial(8), 2 * factorial(8))


class Variable(DialectObject):
    """A tensor of a program that is run later: name, shape (-1: what the feed decides) and type, but no values."""

    ORIGINAL = "paddle.static.Variable"

    def __init__(self, program: Any, key: int, tensors: Sequence[Tensor], name: str) -> None:
        self.program, self.key, self.tensors, self.name = program, key, tensors, name

    tensor = property(
        lambda self: self.tensors[0], doc="The tensor without data that has the first stand-in's sizes."
    )

    @property
    def shape(self) -> Shape:
        """Global shape, with -1 for sizes that a feed decides."""
        first, second = (x.shape for x in self.tensors)
        return Shape(size if size == other else -1 for size, other in zip(first, second))

    dtype = property(lambda self: self.tensor.dtype, doc="Element type.")
    ndim = property(lambda self: self.tensor.ndim, doc="Number of dims.")
    requires_grad = property(lambda self: self.tensor.requires_grad, doc="Whether a gradient comes here.")

    @property
    def stop_gradient(self) -> bool:
        """True if no gradient passes through the variable."""
        return bool(self.tensor.stop_gradient)

    @stop_gradient.setter
    def stop_gradient(self, value: bool) -> None:
        self.tensor.stop_gradient = self.program.stops[self.key] = bool(value)

    def _no_value(self, *_: Any) -> Any:
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
    """In a run: a value that waits for the feed of this name."""


def not_fed(name: str) -> InputError:
    """What says that a feed is missing."""
    return InputError(f"variable {name} is not fed: exe.run(feed={{{name!r}: array, ...}}) must have it")


def parts_of(value: Any, kind: type[Any]) -> list[Any]:
    """What is of a kind in lists, tuples and dicts."""
    parts: list[Any] = []
    by_part(value, lambda x: parts.append(x) if isinstance(x, kind) else None)
    return parts


@contextmanager
def shapes_alone(world: World, names: str) -> Iterator[None]:
    """Compute and count nothing in the ``with`` block; write -1 in errors for sizes that a feed decides."""
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
    """A recorded call; one that ``trains`` changes parameters."""

    function: Callable[..., Any]
    args: Any
    options: Any
    outputs: tuple[int, ...]
    trains: bool

    def for_test(self) -> RecordedCall:
        """The same call; one that asks whether it is ``training`` is told that it is not."""
        written = signature(self.function)
        if "training" not in written.parameters:
            return self
        bound = written.bind(*self.args, **self.options)
        bound.arguments["training"] = False
        return replace(self, args=bound.args, options=bound.kwargs)


@dataclass(eq=False, repr=False)
class Program(DialectObject):
    """Recorded calls, the variables that are fed, and the parameters."""

    ORIGINAL = "paddle.static.Program"

    instructions: list[RecordedCall] = field(default_factory=list)
    feeds: dict[str, Variable] = field(default_factory=dict)
    variables: dict[str, Any] = field(default_factory=dict)
    stops: dict[int, bool] = field(default_factory=dict)
    kept: list[Any] = field(default_factory=list)
    known: WeakValueDictionary[str, Any] = field(default_factory=WeakValueDictionary)
    optimizers: list[Any] = field(default_factory=list)

    def all_parameters(self) -> list[Any]:
        """The parameters, in the order in which they were made."""
        return list(self.known.values())

    parameters = all_parameters

    def list_vars(self) -> list[Any]:
        """Parameters and variables."""
        return [*self.all_parameters(), *self.variables.values()]

    def global_block(self) -> Program:
        """The program itself: there are no other blocks."""
        return self

    def __repr__(self) -> str:
        """Its variables, parameters and calls, one per line."""
        told = [
            *map(repr, self.variables.values()),
            *(f"persist trainable param {x.name} : shape{x.shape}.dtype({x.dtype})" for x in self.all_parameters()),
            *(f"{{{len(x.outputs)} out}} = {getattr(x.function, '__name__', 'call')}" for x in self.instructions),
        ]  # fmt: skip
        return "{ // block 0\n" + "".join(f"    {line}\n" for line in told) + "}"

    def var(self, name: str) -> Any:
        """A parameter or variable by its name."""
        there = {**self.variables, **self.known}
        if name not in there:
            near = nearest(name, there)
            hint = f"nearest: {near}" if near else "list_vars() lists what there is"
            raise InputError(f"var {name} not in this block; {hint}")
        return there[name]

    def clone(self, for_test: bool = False) -> Program:
        """A copy with the same parameters; ``for_test`` without what trains them, and without dropout."""
        calls = [*self.instructions]
        if for_test:
            calls = [call.for_test() for call in calls if not call.trains]
        own = ("feeds", "variables", "stops", "kept", "optimizers")
        return replace(self, instructions=calls, **{name: copy(getattr(self, name)) for name in own})

    def own(self, parameter: Any, keep: bool) -> None:
        """Note a parameter; one that is kept lives as long as the program."""
        self.known[parameter.name] = parameter
        if keep:
            self.kept.append(parameter)

    def call(self, function: Callable[..., Any], args: Any, options: Any, *, trains: bool = False) -> Any:
        """Record a call; what is known of its result is computed at once: values, or shapes."""
        variables = parts_of((args, options), Variable)
        results: list[Any] = []
        if not variables:
            results.append(_now(function, args, options))
        elif not trains:
            world = scope().shapes
            with shapes_alone(world, ", ".join(f"{x.name}: shape{x.shape}" for x in variables)):
                for k in range(len(STAND_INS)):
                    results.append(_now(function, *by_part((args, options), partial(_stand_in, k, world))))
        args, options = by_part((args, options), self._noted)
        outputs: list[int] = []
        others = iter(parts_of(results[1:], CoreTensor))
        result = by_part(next(iter(results), None), lambda x: self._output(x, function, others, outputs))
        self.instructions.append(RecordedCall(function, args, options, tuple(outputs), trains))
        return result

    def _noted(self, x: Any) -> Any:
        """An argument of a recorded call: a parameter, or a variable, for the tensor that it has now."""
        if not isinstance(x, Tensor) or (x.owner is None and x.key is None):
            return x
        return self.variables.get(x.name, x) if x.owner is None else x.owner

    def _output(self, x: Any, function: Any, others: Iterator[Tensor], outputs: list[int]) -> Any:
        """Return a result of a call as a variable, or as a tensor if ``others`` has none for the second stand-in."""
        if not isinstance(x, CoreTensor):
            return x
        output, other = dressed(x), next(others, None)
        outputs.append(key := next(_keys))
        owner = getattr(function, "__self__", None)
        kind = (function.__name__ if owner is None else type(owner).__name__.lower()).strip("_")
        name = f"{scope().unique(kind)}.tmp_0"
        if other is not None:
            self.variables[name] = variable = Variable(self, key, (output, other), name)
            return variable
        output.key, output.name = key, name
        self.variables[name] = Variable(self, key, (shape_only(output, scope().shapes),) * 2, name)
        return output

    def run(self, fed: dict[str, Tensor]) -> dict[int, Any]:
        """All values of a run, by key."""
        values: dict[int, Any] = {x.key: fed.get(name, Missing(name)) for name, x in self.feeds.items()}
        values = {key: self._stopped(key, x) for key, x in values.items()}
        for call in self.instructions:
            asked = (call.args, call.options)
            args, options = by_part(asked, lambda x: values.get(x.key, x) if isinstance(x, Variable) else x)
            missing = parts_of((args, options), Missing)
            if missing and call.trains:
                raise not_fed(missing[0])
            computed = [] if missing else parts_of(_now(call.function, args, options), CoreTensor)
            results = missing[:1] * len(call.outputs) or map(dressed, computed)
            values.update({key: self._stopped(key, x) for key, x in zip(call.outputs, results)})
        return values

    def _stopped(self, key: int, x: Any) -> Any:
        """A value of a run, with the ``stop_gradient`` that its variable was given."""
        if key in self.stops and isinstance(x, Tensor):
            x = x if x.node is not None and not self.stops[key] else x.detach()
            x.stop_gradient = self.stops[key]
        return x


def _stand_in(k: int, world: World, x: Any) -> Any:
    """Return a variable with its stand-in ``k``, or a tensor, in a world without data; parameters do so themselves."""
    if isinstance(x, Variable):
        return x.tensors[k]
    return shape_only(x, world) if isinstance(x, CoreTensor) and getattr(x, "owner", None) is None else x


def _now(function: Callable[..., Any], args: Any, options: Any) -> Any:
    _running[0] += 1
    try:
        if any(x.is_rank_shard for x in parts_of((args, options), Tensor)):
            result = compute_from_shards(function, args, options)
        else:
            result = function(*args, **options)
    finally:
        _running[0] -= 1
    return result if tracking() else by_part(result, lambda x: x.detach() if isinstance(x, CoreTensor) else x)


def recorded(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Call a function; in static mode, and with variables of a program, the call is recorded, too."""
    if not _running[0]:
        variables = parts_of((args, options), Variable)
        if variables or in_static_mode():
            program = variables[0].program if variables else default_main_program()
            return program.call(function, args, options)
    return by_part(_now(function, args, options), lambda x: dressed(x) if isinstance(x, CoreTensor) else x)


class Scope:
    """What belongs to a world: its default programs, and how names are numbered."""

    def __init__(self, world: World) -> None:
        self.programs = [(Program(), Program())]
        self.names: Counter[str] = Counter()
        self.known: WeakValueDictionary[str, Any] = WeakValueDictionary()
        self.started: set[str] = set()
        self.shapes = ShapeOnly(world.size) if world.has_data else world

    def unique(self, kind: str) -> str:
        """A name that no other has."""
        self.names[kind] += 1
        return f"{kind}_{self.names[kind] - 1}"


def scope() -> Scope:
    """That of the current world, which holds it: programs hold tensors of the world."""
    kept = vars(world := current_world())
    if "paddle" not in kept:
        kept["paddle"] = Scope(world)
    return cast(Scope, kept["paddle"])


def default_main_program() -> Program:
    """The program that calls are recorded in."""
    return scope().programs[-1][0]


def default_startup_program() -> Program:
    """The program that gives parameters their first values."""
    return scope().programs[-1][1]


@contextmanager
def program_guard(main_program: Program, startup_program: Program | None = None) -> Iterator[None]:
    """In the ``with`` block, calls are recorded in another program."""
    here, wanted = scope(), (main_program, startup_program or main_program)
    kinds = {type(one).__name__: not isinstance(one, Program) for one in wanted}
    refuse({f"program_guard takes a paddle.static.Program, but got a {kind}": kinds[kind] for kind in kinds})
    here.programs.append((main_program, startup_program or here.programs[-1][1]))
    try:
        yield
    finally:
        here.programs.pop()


def data(name: str, shape: Any, dtype: Any = None, lod_level: int = 0) -> Variable:
    """A variable that each run is fed with, in static mode; sizes that are None or -1 come with the feed."""
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
    other = program.variables.get(name, variable)
    alike = (other.shape, other.dtype) == (variable.shape, variable.dtype)
    refuse({f"variable {name} is {other!r} already; give static.data another name than {name!r}": not alike})
    if other is variable:
        program.feeds[name] = program.variables[name] = variable
    return program.feeds.get(name, variable)


add_words(__name__)
