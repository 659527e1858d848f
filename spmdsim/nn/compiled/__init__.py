"""Record a function of tensors once, then replay its local calculations and collectives.

A replay repeats the recorded calls with other arrays. So it has the bits and the collectives of the function.
Ranks compare and traces show the collectives of a replay like those of the function.

Read `Compiled.__call__` here, then `call_recorder` (records), `recorded_calls` (the entries of a recording) and
`replay`.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import is_dataclass
from functools import partial, update_wrapper
from numbers import Number
from typing import Any, Generic, ParamSpec, TypeVar, cast

import numpy as np

from spmdsim.arrays import Tensor
from spmdsim.arrays.watch import watchers
from spmdsim.bounded import Bounded
from spmdsim.errors import UsageTypeError
from spmdsim.nn.compiled.call_recorder import CallRecorder
from spmdsim.nn.compiled.replay import Replay, is_sequence, rebuild_sequence
from spmdsim.pictured import Pictured
from spmdsim.reading import one_line
from spmdsim.redistribution.guard import guards
from spmdsim.worlds.trace import recorder
from spmdsim.worlds.trace.recorder import programs
from spmdsim.wrong_calls import explained

P = ParamSpec("P")
R = TypeVar("R")

#: The number of argument keys for which a function keeps recordings.
MOST_KEYS = 32
#: The number of recordings per key, which differ in gradients, aliases or the state of parameters.
MOST_PER_KEY = 4


class Compiled(Pictured, Generic[P, R]):
    """A function that records calls with new kinds of arguments and replays all other calls.

    Attributes:
        programs: the latest recordings, by the arguments' key.
    """

    def __init__(self, function: Callable[P, R]) -> None:
        self.function = function
        self.name = getattr(function, "__qualname__", type(function).__name__).replace(".<locals>", "")
        self.programs: Bounded[Any, list[Replay]] = Bounded(MOST_KEYS)
        update_wrapper(self, function, updated=())

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Replay a recording that fits, or call and record the function.

        The function is only called inside another recording, while operators are watched or redistributions are
        guarded, and in a world without data.
        """
        tensors: list[Tensor] = []
        key = _make_argument_key([args, kwargs], tensors, self.name)
        if programs or watchers or guards or (tensors and not tensors[0].world.has_data):
            return cast(R, _detach_tensors(self.function(*args, **kwargs)))
        for program in self.programs.get(key, []):
            leaves = program.matching_leaves(tensors)
            if leaves is not None:
                return cast(R, program.run(leaves))
        return self._record(key, tensors, args, kwargs)

    def _record(self, key: Any, tensors: list[Tensor], args: Any, kwargs: Any) -> R:
        """Call the function and record it for later calls; return its result, detached from gradients.

        - If the function uses tensors, and their world has data: the recording is stored under ``key``. Of one key,
          the latest ``MOST_PER_KEY`` (4) recordings are kept.
        - Otherwise nothing is stored: the next call runs the function again.

        While the function is recorded, each tensor among the arguments that requires no gradient is replaced by a
        substitute. A gradient that the function stores in a substitute is passed on to the caller's tensor at the
        end, also after an error.

        Args:
            key: the key of the arguments, see :func:`_make_argument_key`.
            tensors: the tensors among the arguments.
            args: the positional arguments.
            kwargs: the keyword arguments.

        Raises:
            UsageTypeError: If the function cannot be recorded, or if it caught an error that an operator raised. An
                error that leaves the function passes unchanged.
        """
        substitutes = {id(tensor): _make_substitute(tensor) for tensor in tensors}
        recorded = CallRecorder(self.name, [substitutes[id(tensor)] for tensor in tensors])
        gradients = [substitutes[id(tensor)].grad for tensor in tensors]
        args, kwargs = _replace_tensors([args, kwargs], substitutes)
        try:
            with recorder.observing(recorded):
                result = self.function(*args, **kwargs)
        finally:
            # Remove it again, because a Ctrl-C may interrupt the first removal.
            recorder.stop_observing(recorded)
            for tensor, gradient in zip(tensors, gradients):
                if substitutes[id(tensor)].grad is not gradient:
                    tensor.grad = substitutes[id(tensor)].grad
        if recorded.failure:
            recorded.refuse(
                f"it catches an error of {recorded.failure}, which other values may not raise; catch the error "
                "outside of the function"
            )
        if recorded.world is not None and recorded.world.has_data:
            program = Replay(recorded, result)
            self.programs[key] = [program, *self.programs.get(key, [])][:MOST_PER_KEY]
        return cast(R, _detach_tensors(result))

    def __deepcopy__(self, memo: dict[int, object]) -> Compiled[P, R]:
        """Return a copy without recordings, because they refer to the parameters of this function."""
        return Compiled(deepcopy(self.function, memo))

    def __get__(self, owner: Any, kind: Any = None) -> Any:
        """Bind the function as a method."""
        return self if owner is None else partial(self, owner)

    def __repr__(self) -> str:
        count = sum(map(len, self.programs.values()))
        return f"<compiled {self.name}: {count} program{'s' * (count != 1)}>"


def _make_argument_key(value: Any, tensors: list[Tensor], name: str) -> Any:
    """Return the key of an argument; a recording is replayed only for arguments of equal keys.

    - A tensor: its layout, shape, dtype, `requires_grad` and world, but not its values. It is appended to ``tensors``.
    - A list, tuple or dict: its type and the keys of its items in their order.
    - A frozenset: the keys of its items in any order.
    - Any other value: its class and value (see :func:`_make_value_key`). So ``f(x, 2)`` and ``f(x, 2.0)`` are recorded
      separately.

    Args:
        value: the argument: a tensor, a hashable value, or a list, tuple or dict of such values.
        tensors: a list, to which the tensors inside of the argument are appended.
        name: the function's name, for messages.

    Raises:
        UsageTypeError: If a tensor was computed with gradients, a value is a tensor of an imitated system, or a value
            cannot be hashed.
    """
    if isinstance(value, Tensor):
        if value.node is not None:
            raise UsageTypeError(
                f"{name}: arguments of a compiled function must be tensors that were not computed with gradients, "
                f"got {value!r}; pass its .detach()"
            )
        tensors.append(value)
        return value.meta, value.requires_grad, value.world
    if is_sequence(value):
        return type(value), *[_make_argument_key(item, tensors, name) for item in value]
    if type(value) is dict:
        return dict, *[
            (_make_argument_key(key, [], name), _make_argument_key(item, tensors, name))
            for key, item in value.items()
        ]
    if isinstance(value, frozenset):
        return frozenset, frozenset(_make_argument_key(item, [], name) for item in value)
    return _make_value_key(value, name)


def _make_value_key(value: Any, name: str) -> Any:
    """Return the key of an argument that is neither a tensor nor contains arguments.

    It is ``(class, text)`` for floats and complex numbers, so that 0.0 and -0.0 differ, and NaN equals NaN. It is ``(class,
    value, text)`` for other numbers, ranges and dataclasses, because equal ones may behave differently, such as ``range(1,
    1)`` and ``range(5, 5)``. For all other values it is ``(class, value, "")``. The text is the ``repr``.

    Args:
        value: the argument.
        name: the function's name, for messages.

    Raises:
        UsageTypeError: If the value is a tensor of an imitated system, or cannot be hashed.
    """
    if isinstance(value, (float, complex, np.inexact)):
        # Compare the texts, because 0.0 equals -0.0 and NaN differs from itself.
        return type(value), repr(value)
    if isinstance(getattr(value, "__dict__", {}).get("value"), Tensor):  # A tensor of OneFlow, for example.
        raise UsageTypeError(
            f"{name}: arguments of a compiled function must be tensors of spmdsim, got a {type(value).__name__}; "
            "pass its .value, and call the operators of spmdsim.ops"
        )
    try:
        hash(value)
    except TypeError:
        kind = "an array" if isinstance(value, np.ndarray) else f"a {type(value).__name__}"
        raise UsageTypeError(
            f"{name}: arguments of a compiled function must be tensors or values that can be hashed, got {kind}; "
            "make a tensor of it with Tensor.from_global"
        ) from None
    # Add the text, because equal values may behave differently, such as range(1, 1) and range(5, 5).
    text = repr(value) if isinstance(value, (range, Number)) or is_dataclass(value) else ""
    return type(value), value, text


def _make_substitute(tensor: Tensor) -> Tensor:
    """Return the tensor that stands for an argument while the function is recorded.

    It is a new tensor with the arrays and the gradient of ``tensor``. The recorder gives it views of these arrays, by
    which it recognises the argument; other tensors that share the arrays are not affected. A tensor that requires a
    gradient is returned itself, because its gradient is stored in it.
    """
    if tensor.requires_grad:
        return tensor
    substitute = _detach_tensors(tensor)
    substitute.grad, substitute.gradient_layout = tensor.grad, tensor.gradient_layout
    return cast(Tensor, substitute)


def _replace_tensors(value: Any, substitutes: dict[int, Tensor]) -> Any:
    """Return a copy of an argument in which each tensor is replaced by its substitute.

    Lists, tuples and dicts are copied in depth; other values are the same objects.
    """
    if is_sequence(value):
        return rebuild_sequence(value, [_replace_tensors(item, substitutes) for item in value])
    if type(value) is dict:
        return {key: _replace_tensors(item, substitutes) for key, item in value.items()}
    return substitutes[id(value)] if isinstance(value, Tensor) else value


def _detach_tensors(result: Any) -> Any:
    """Return a copy of ``result`` with new tensors, without history or gradient.

    The arrays are shared. Lists, tuples and dicts are copied in depth; other values stay as they are.
    """
    if isinstance(result, Tensor):
        return type(result).from_tensor(result)
    if type(result) is dict:
        return {key: _detach_tensors(item) for key, item in result.items()}
    return rebuild_sequence(result, map(_detach_tensors, result)) if is_sequence(result) else result


@explained
def compile(function: Callable[P, R]) -> Compiled[P, R]:
    """Record a function of tensors once, then replay only its local calculations and collectives.

    The first call with new layouts, shapes, element types or other arguments runs and records the function: operators,
    redistributions, gradients and updates of parameters. Later calls repeat these with other arrays. They have the bits,
    collectives, trace events and errors of the function.

    Args:
        function: a function of tensors and hashable values. Tensors may be in tuples, lists and dicts. Its Python code
            runs only when it is recorded. Parameters, gradients and the rates of optimisers are read in every call. It
            returns tensors, alone or in tuples, lists and dicts, and constant values. No gradient flows through results.

    Returns:
        An object that is called like the function. It keeps the latest 32 recordings. In a world without data, and while
        operators are watched, it calls the function.

    Raises:
        UsageTypeError: If a call reads numbers, uses tensors that are neither arguments nor parameters, or does something
            else that cannot be repeated; if an argument was computed with gradients or cannot be hashed.

    Example:
        >>> from spmdsim import LockStep, Mesh, Tensor, compile, nn, ops
        >>> mesh, world = Mesh((4,), ("dp",)), LockStep(4)
        >>> layer = nn.Linear(8, 2, mesh(None, None)).materialise(world)
        >>> optimiser = nn.SGD(layer.parameters(), rate=0.1)
        >>> @compile
        ... def step(x, y):
        ...     layer.zero_grad()
        ...     loss = ops.mean((layer(x) - y) ** 2)
        ...     nn.backward(loss)
        ...     optimiser.step()
        ...     return loss
        >>> x = Tensor.ones((8, 8), layout=mesh("dp", None), world=world, dtype="float32")
        >>> y = Tensor.zeros((8, 2), layout=mesh("dp", None), world=world, dtype="float32")
        >>> step(x, y).item() > step(x, y).item() > step(x, y).item()
        True
        >>> step
        <compiled step: 1 program>
    """
    if not callable(function):
        raise UsageTypeError(
            f"compile: function must be a function of tensors, got {one_line(repr(function))}; pass a function, or "
            "call compile as a decorator"
        )
    return Compiled(function)
