"""Record the tensor operations of a student's function as plain data, and run the record on the judge's tensors.

The judge's tensors stay in the judging process. The function gets stand-ins with equal layouts and other numbers. A
watcher records the operators and redistributions that it calls. The judge runs the record on its own tensors, so
values, layouts and communication are computed by the judge. A function cannot write the right numbers itself, because
it does not know the inputs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np

from spmdsim.arrays import Op, ShardedOp, Tensor
from spmdsim.arrays.sources import redistribute_reshaped
from spmdsim.arrays.values import ReadableTensor
from spmdsim.arrays.watch import Watcher, watching
from spmdsim.core import Layout
from spmdsim.errors import NoAnswer
from spmdsim.labs.judging import RANKS
from spmdsim.labs.plain_data import decode, encode
from spmdsim.nn import Adam, Parameter
from spmdsim.worlds import world

#: Largest number of operators and redistributions of a call.
MOST_STEPS = 10_000
#: Packages that declare the operators that a record may name.
PACKAGES = ("spmdsim.ops", "spmdsim.linalg", "spmdsim.arrays")


@cache
def list_operators() -> tuple[Op, ...]:
    """Return all operators of the imported package in a fixed order.

    They are found in the modules below :data:`PACKAGES` that are imported at the first call; the result is cached. A
    function with an operator as its attribute ``_op`` counts as this operator. A fork of this process has the same order, so a number identifies an operator in both.
    """
    operators: dict[int, Op] = {}
    for name, module in sorted(sys.modules.items()):
        if name.startswith(PACKAGES):
            for value in list(vars(module).values()):
                op = value if isinstance(value, Op) else getattr(value, "__dict__", {}).get("_op")
                if isinstance(op, Op):
                    operators.setdefault(id(op), op)
    return tuple(operators.values())


class OperatorRecording(Watcher):
    """A record of the operators and redistributions of a call; tensors are written as numbers.

    Attributes:
        steps: the record; each step is a list ``[kind, ...]``.
    """

    def __init__(self) -> None:
        self.steps: list[Any] = []
        self._numbers: dict[tuple[int, Layout], int] = {}
        self._numbered: list[Any] = []  # keeps numbered tensors alive, so that their ids stay unique
        self._constants: list[tuple[list[Any], ReadableTensor]] = []

    def number(self, tensor: ReadableTensor) -> int:
        """Return the number of a tensor; one that no recorded step computed becomes a constant.

        Tensors have one number if they share their list of shards and have equal layouts. A constant appends a step to
        the record.

        Raises:
            NoAnswer: If a constant is needed and the recording has ``MOST_STEPS`` (10,000) steps already.
        """
        key = id(tensor.stored_shards), tensor.layout
        if key not in self._numbers:
            constant: list[Any] = ["constant"]
            self._add(constant)
            self._constants.append((constant, type(tensor).from_tensor(tensor)))
            self.assign_number(tensor)
        return self._numbers[key]

    def assign_number(self, tensor: ReadableTensor) -> None:
        """Assign the next number to a tensor, which an argument or a recorded step gives."""
        self._numbers[id(tensor.stored_shards), tensor.layout] = len(self._numbered)
        self._numbered.append(tensor.stored_shards)

    def finish(self) -> list[Any]:
        """Return the record with the values of its constants; call it after the recording."""
        for constant, tensor in self._constants:
            constant += [encode(tensor.layout), encode(tensor.full())]
        return self.steps

    def after(
        self,
        op: Op,
        tensors: Sequence[ReadableTensor],
        params: dict[str, Any],
        sharding: ShardedOp | None,
        results: Sequence[ReadableTensor],
    ) -> None:
        """Append one operator call to the recording, and number its results.

        Watched operators call it after each run. Operands that no recorded step computed are appended as constants
        first.

        Args:
            op: the operator.
            tensors: its operands.
            params: its parameters by name; other values than plain data are recorded as their ``repr``.
            sharding: the operator with strategies; None if there are none. Only the strategies and the repeat are
                recorded.
            results: its results.

        Raises:
            NoAnswer: If ``op`` is not an operator of the library, because only those are graded, or if the recording
                has ``MOST_STEPS`` (10,000) steps already.
        """
        operator_number = next((k for k, operator in enumerate(list_operators()) if operator is op), None)
        if operator_number is None:
            raise NoAnswer(f"{op.name} must be an operator of the library, because only those are graded")
        operand_numbers = [self.number(tensor) for tensor in tensors]
        strategies = sharding and (sharding.in_strategy, sharding.out_strategy, sharding.repeat)
        self._add(["operator", operator_number, operand_numbers, *map(encode, (params, strategies))])
        for result in results:
            self.assign_number(result)

    def moved(self, tensor: ReadableTensor, result: ReadableTensor) -> None:
        """Append one redistribution to the recording, and number its result; its shape may differ.

        Raises:
            NoAnswer: If the recording has ``MOST_STEPS`` (10,000) steps already.
        """
        shape = None if result.shape == tensor.shape else result.shape
        self._add(["move", self.number(tensor), *map(encode, (result.layout, shape))])
        self.assign_number(result)

    def _add(self, step: list[Any]) -> None:
        """Append a step; raise NoAnswer if there are ``MOST_STEPS`` (10,000) already."""
        if len(self.steps) >= MOST_STEPS:
            raise NoAnswer(f"it calls more than {MOST_STEPS:,} operators")
        self.steps.append(step)


def run_record(steps: Sequence[Any], operands: Sequence[Tensor]) -> list[Tensor]:
    """Run the recorded steps of a student's function on the judge's tensors; return all tensors.

    A step is one of these; only the first ``MOST_STEPS`` (10,000) run:

    - ``["constant", layout, array]`` makes a tensor;
    - ``["move", number, layout, shape]`` redistributes a tensor, and reshapes it if ``shape`` is not None;
    - ``["operator", number, operands, parameters, strategies]`` calls an operator of :func:`list_operators`.

    Steps name tensors by number. For example, with operands 0 and 1, the result of the first step is tensor 2.

    Args:
        steps: the record, which an untrusted process may have written. Layouts, arrays and so on are encoded.
        operands: the tensors, in the order in which the function got them.

    Returns:
        All tensors by number: the operands, then the results of each step.

    Raises:
        ValueError, TypeError, IndexError: If the record is invalid.
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
            tensors.append(
                tensor.to(layout) if shape is None else redistribute_reshaped(tensor, layout, shape)
            )
        else:
            params, strategies = map(decode, facts[2:])
            op = list_operators()[facts[0]]
            function = op if strategies is None else ShardedOp(op, *strategies)
            results = function(*[tensors[number] for number in facts[1]], **params)
            tensors += results if isinstance(results, tuple) else (results,)
    return tensors


# -- where the function is judged -----------------------------------------------------------------------


class SentArguments:
    """The tensors and parameters among a function's arguments, known by number in its process.

    Attributes:
        described: a list of tensors and a list of parameters, each as ``[layout, shape, element type]``.
    """

    def __init__(self) -> None:
        self._tensors: list[Tensor] = []
        self._parameters: list[Parameter] = []
        self.described: list[list[Any]] = [[], []]

    def encode(self, value: Any) -> Any:
        """Store a tensor or parameter and return ``[kind, [number]]``; None for other values.

        The kind is "tensor" or "parameter"; each kind has its own numbers, from 0 in the order of the calls: the second
        tensor gives ``["tensor", [1]]``. Its layout, shape and dtype are appended to ``described``; its elements are
        not encoded.

        Args:
            value: an argument of the student's function, of any type.
        """
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
        """Run the record of the function's call; return decoders, by kind, for the values in its result."""
        tensors = run_record(steps, self._tensors)
        return {"tensor": tensors.__getitem__, "adam": self._build_adam}

    def _build_adam(self, numbers: list[int], layouts: Any, settings: Any) -> Adam:
        """Return an Adam with these parameters, layouts of its state, and settings.

        If all layouts are those of the parameters, the state follows the parameters.
        """
        parameters = [self._parameters[number] for number in numbers]
        layout_of = {id(parameter): layout for parameter, layout in zip(parameters, decode(layouts))}
        as_values = all(layout_of[id(parameter)] == parameter.layout for parameter in parameters)
        state_layout = None if as_values else lambda parameter: layout_of[id(parameter)]
        return Adam(parameters, state_layout=state_layout, **decode(settings))


# -- where the function runs ----------------------------------------------------------------------------

#: Arguments of Adam, except its parameters and the layouts of its state.
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
    """Tensors and parameters with the layouts and types of the judge's, filled with ones.

    Args:
        described: the judge's tensors and parameters, as in :attr:`SentArguments.described`.
    """

    def __init__(self, described: list[Any]) -> None:
        self._recording = OperatorRecording()
        self._tensors = [_make_ones(*facts) for facts in described[0]]
        self._parameters = [_make_parameter(*facts) for facts in described[1]]
        for tensor in self._tensors:
            self._recording.assign_number(tensor)
        #: Decoders of the judge's arguments, by kind.
        self.decoders: dict[str, Callable[..., Any]] = {
            "tensor": self._tensors.__getitem__,
            "parameter": self._parameters.__getitem__,
        }

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Record the operators that the ``with`` block calls."""
        with watching(self._recording):
            yield

    def describe(self, value: Any) -> tuple[list[Any], Any]:
        """Return the record, and the result of the function as plain data."""
        data = encode(value, special=self._encode_special)
        return self._recording.finish(), data

    def _encode_special(self, value: Any) -> Any:
        """Encode a tensor by its number and an Adam by its settings; return None for other values.

        The code is ``["tensor", [number]]`` or ``["adam", description]`` (:meth:`_describe_adam`).
        """
        if isinstance(value, Tensor):
            return ["tensor", [self._recording.number(value)]]
        if type(value) is Adam:
            return ["adam", self._describe_adam(value)]
        return None

    def _describe_adam(self, adam: Adam) -> list[Any]:
        """Return ``[numbers of parameters, layouts of the state, settings]`` of an Adam.

        Layouts (one per parameter) and settings (:data:`SETTINGS`, by name) are encoded. Raises KeyError if a parameter
        is not one of the function's arguments.
        """
        number_of = {id(parameter): number for number, parameter in enumerate(self._parameters)}
        layouts = [adam.state_layout(parameter) for parameter in adam.parameters]
        settings = {name: getattr(adam, name) for name in SETTINGS}
        return [
            [number_of[id(parameter)] for parameter in adam.parameters],
            encode(layouts),
            encode(settings),
        ]


def _make_ones(layout: Any, shape: list[int], dtype: str) -> Tensor:
    """Return a tensor of ones; ``layout`` is encoded."""
    return Tensor.from_global(np.ones(shape, dtype), decode(layout), world(RANKS))


def _make_parameter(layout: Any, shape: list[int], dtype: str) -> Parameter:
    """Return a parameter of ones; ``layout`` is encoded."""
    parameter = Parameter(tuple(shape), decode(layout), dtype=dtype)
    parameter.tensor = _make_ones(layout, shape, dtype)
    return parameter
