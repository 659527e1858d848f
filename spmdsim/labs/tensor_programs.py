"""Tensor programs as plain data: recorded where a student's function runs, run again where it is judged.

The judge's tensors never leave the judge. The function gets stand-ins with the same layouts and other numbers; a watcher
records which operators and redistributions it calls. The judge runs the record on its own tensors, so values, layouts and
communication are its own. A record of numbers cannot pass, because the numbers of the judge are not known to the function.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np

from spmdsim.core import Layout
from spmdsim.errors import NoAnswer
from spmdsim.labs.judging import RANKS
from spmdsim.labs.plain_data import decode, encode
from spmdsim.nn import Adam, Parameter
from spmdsim.arrays import Op, ShardedOp, Tensor
from spmdsim.arrays.sources import reshaped
from spmdsim.arrays.watch import Watcher, watching
from spmdsim.worlds import world

#: Operators and redistributions of a call.
MOST_STEPS = 10_000
#: Where the operators are declared that a record may name.
ROOMS = ("spmdsim.ops", "spmdsim.linalg", "spmdsim.arrays")


@cache
def list_operators() -> tuple[Op, ...]:
    """Return the operators that modules of the package declare, in an order that a fork of this process knows as well."""
    operators: dict[int, Op] = {}
    for name, module in sorted(sys.modules.items()):
        if name.startswith(ROOMS):
            for value in list(vars(module).values()):
                op = (
                    value
                    if isinstance(value, Op)
                    else vars(value).get("_op")
                    if hasattr(value, "__dict__")
                    else None
                )
                if isinstance(op, Op):
                    operators.setdefault(id(op), op)
    return tuple(operators.values())


class OperatorRecording(Watcher):
    """A record of the operators and redistributions of a call, with tensors as numbers.

    Attributes:
        steps: the record, a list ``[kind, ...]`` each.
    """

    def __init__(self) -> None:
        self.steps: list[Any] = []
        self._numbers: dict[tuple[int, Layout], int] = {}
        self._numbered: list[Any] = []  # what has a number stays alive, so that its identity is its own
        self._constants: list[tuple[list[Any], Tensor]] = []

    def number(self, tensor: Tensor) -> int:
        """Return the number of a tensor; one that no recorded step computed becomes a constant."""
        key = id(tensor.held), tensor.layout
        if key not in self._numbers:
            constant: list[Any] = ["constant"]
            self._add(constant)
            same = type(tensor)(tensor.world, tensor.meta, tensor.held)
            self._constants.append((constant, same))
            self.know(tensor)
        return self._numbers[key]

    def know(self, tensor: Tensor) -> None:
        """Give a tensor the next number."""
        self._numbers[id(tensor.held), tensor.layout] = len(self._numbered)
        self._numbered.append(tensor.held)

    def finish(self) -> list[Any]:
        """Return the record, with the values of constants; call it when nothing is recorded any more."""
        for constant, tensor in self._constants:
            constant += [encode(tensor.layout), encode(tensor.full())]
        return self.steps

    def after(
        self,
        op: Op,
        tensors: Sequence[Tensor],
        params: dict[str, Any],
        sharding: ShardedOp | None,
        results: Sequence[Tensor],
    ) -> None:
        """Record an operator."""
        kind = next((k for k, other in enumerate(list_operators()) if other is op), None)
        if kind is None:
            raise NoAnswer(
                f"{op.name} is no operator of the library: functions of tensors are judged by those alone"
            )
        numbers = [self.number(tensor) for tensor in tensors]
        written = sharding and (sharding.in_strategy, sharding.out_strategy, sharding.repeat)
        self._add(["operator", kind, numbers, *map(encode, (params, written))])
        for result in results:
            self.know(result)

    def moved(self, tensor: Tensor, result: Tensor) -> None:
        """Record a redistribution, possibly to another shape."""
        shape = None if result.shape == tensor.shape else result.shape
        self._add(["move", self.number(tensor), *map(encode, (result.layout, shape))])
        self.know(result)

    def _add(self, step: list[Any]) -> None:
        if len(self.steps) >= MOST_STEPS:
            raise NoAnswer(f"it calls more than {MOST_STEPS:,} operators")
        self.steps.append(step)


def run_record(steps: Sequence[Any], operands: Sequence[Tensor]) -> list[Tensor]:
    """Run a record on other tensors.

    Args:
        steps: the record, which may be anybody's.
        operands: tensors in the order in which they were given to the function.

    Returns:
        All tensors by their numbers.

    Raises:
        ValueError, TypeError, IndexError: If it is no record.
        SpmdError: If an operator refuses its operands.
    """
    tensors = list(operands)
    for kind, *facts in steps[:MOST_STEPS]:
        if kind == "constant":
            layout, array = map(decode, facts)
            tensors.append(Tensor.from_global(np.asarray(array), layout, world(RANKS)))
        elif kind == "move":
            layout, shape = map(decode, facts[1:])
            tensor = tensors[facts[0]]
            tensors.append(tensor.to(layout) if shape is None else reshaped(tensor, layout, shape))
        else:
            params, written = map(decode, facts[2:])
            op = list_operators()[facts[0]]
            function = op if written is None else ShardedOp(op, *written)
            results = function(*[tensors[number] for number in facts[1]], **params)
            tensors += results if isinstance(results, tuple) else (results,)
    return tensors


# -- where the function is judged -----------------------------------------------------------------------


class SentArguments:
    """The tensors and parameters that a function is given, identified by numbers in its process.

    Attributes:
        described: the tensors and the parameters, each as ``[layout, shape, element type]``.
    """

    def __init__(self) -> None:
        self._tensors: list[Tensor] = []
        self._parameters: list[Parameter] = []
        self.described: list[list[Any]] = [[], []]

    def encode(self, value: Any) -> Any:
        """Return a tensor or parameter as its kind and number; None for other values."""
        kinds: dict[str, tuple[Any, list[Any], list[Any]]] = {
            "tensor": (Tensor, self._tensors, self.described[0]),
            "parameter": (Parameter, self._parameters, self.described[1]),
        }
        for kind, (type_, values, described) in kinds.items():
            if isinstance(value, type_):
                values.append(value)
                described.append([encode(value.layout), list(value.shape), value.dtype.name])
                return [kind, [len(values) - 1]]
        return None

    def run(self, steps: Any) -> dict[str, Callable[..., Any]]:
        """Run the record of the function's call; return what reads tensors and optimisers in its result, by kind."""
        tensors = run_record(steps, self._tensors)
        return {"tensor": tensors.__getitem__, "adam": self._build_adam}

    def _build_adam(self, numbers: list[int], layouts: Any, settings: Any) -> Adam:
        parameters = [self._parameters[number] for number in numbers]
        layout_of = {id(parameter): layout for parameter, layout in zip(parameters, decode(layouts))}
        as_values = all(layout_of[id(parameter)] == parameter.layout for parameter in parameters)
        state_layout = None if as_values else lambda parameter: layout_of[id(parameter)]
        return Adam(parameters, state_layout=state_layout, **decode(settings))


# -- where the function runs ----------------------------------------------------------------------------

#: What an Adam is made with besides its parameters and the layouts of its state.
SETTINGS = (
    "rate",
    "betas",
    "epsilon",
    "weight_decay",
    "decoupled",
    "amsgrad",
    "bias_correction",
    "epsilon_hat",
)


class StandIns:
    """Tensors and parameters like those of the judge, filled with ones.

    Args:
        described: those of the judge: :attr:`SentArguments.described`.
    """

    def __init__(self, described: list[Any]) -> None:
        self._recording = OperatorRecording()
        self._tensors = [_ones(*facts) for facts in described[0]]
        self._parameters = [_parameter(*facts) for facts in described[1]]
        for tensor in self._tensors:
            self._recording.know(tensor)
        #: What reads the judge's arguments, by kind.
        self.decoders: dict[str, Callable[..., Any]] = {
            "tensor": self._tensors.__getitem__,
            "parameter": self._parameters.__getitem__,
        }

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Record the operators that are called in the ``with`` block."""
        with watching(self._recording):
            yield

    def describe(self, value: Any) -> tuple[list[Any], Any]:
        """Return the record, and the function's result as plain data."""
        data = encode(value, special=self._special)
        return self._recording.finish(), data

    def _special(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return ["tensor", [self._recording.number(value)]]
        if type(value) is Adam:
            return ["adam", self._describe_adam(value)]
        return None

    def _describe_adam(self, adam: Adam) -> list[Any]:
        places = {id(parameter): number for number, parameter in enumerate(self._parameters)}
        layouts = [adam.state_layout(parameter) for parameter in adam.parameters]
        settings = {name: getattr(adam, name) for name in SETTINGS}
        return [[places[id(parameter)] for parameter in adam.parameters], encode(layouts), encode(settings)]


def _ones(layout: Any, shape: list[int], dtype: str) -> Tensor:
    return Tensor.from_global(np.ones(shape, dtype), decode(layout), world(RANKS))


def _parameter(layout: Any, shape: list[int], dtype: str) -> Parameter:
    parameter = Parameter(tuple(shape), decode(layout), dtype=dtype)
    parameter.tensor = _ones(layout, shape, dtype)
    return parameter
