"""The base of all optimisers: an update of each shard, whose state is laid out like the parameters or split further (ZeRO)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy, deepcopy
from functools import partial
from numbers import Real
from typing import Any

import numpy as np

from spmdsim.arrays import Tensor
from spmdsim.core import Layout
from spmdsim.core.elements import in_type
from spmdsim.core.tensor import Meta
from spmdsim.errors import InputError
from spmdsim.layout.element_type import accumulator
from spmdsim.nn.gradients import Together, check_shapes
from spmdsim.nn.module import Module, Parameter, parameters_of
from spmdsim.nn.saved_state import SavedState, StateLayout
from spmdsim.pictured import Pictured
from spmdsim.redistribution.plans.merge import gather_of
from spmdsim.worlds.pool import empty
from spmdsim.worlds.provenance import computed_origin
from spmdsim.wrong_calls import explained

__all__ = ["Optimiser", "sharded_over"]

#: Bytes that an update goes through at once, of all its arrays together. They lie in the last cache; in blocks for the
#: ones before it, what every call of numpy costs is more than what they save.
CACHED = 1 << 22


def sharded_over(axis: str) -> StateLayout:
    """Split the state, gradients and the update over an axis that replicates the parameter, as ZeRO does.

    Gradients come by a reduce_scatter where they are updated, what was updated by an all_gather to all: the bytes of
    one all_reduce. The first dim that divides is split further; parameters without such a dim keep their layout.
    Stage 2 of Rajbhandari et al. (2020).

    >>> from spmdsim import Mesh, Tensor, nn
    >>> values, layout = np.ones((8, 6), np.float32), Mesh((4,), ("dp",))(None, None)
    >>> weight = Tensor.from_global(values, layout, requires_grad=True)
    >>> optimiser = nn.SGD([weight], state_layout=nn.sharded_over("dp"))
    >>> nn.backward((weight * weight).sum())
    >>> weight.grad
    Tensor(f32[8,6] S(0) on dp=4)

    Raises:
        LayoutError: (when the optimiser is made) a mesh without that axis.
    """

    def layout(parameter: Parameter) -> Layout:
        own = parameter.layout
        own.mesh.axis_size(axis)
        if axis not in own.replicated_axes:
            return own
        for dim, (size, parts) in enumerate(zip(parameter.shape, own.parts)):
            if size % (parts * own.mesh.axis_size(axis)) == 0:
                dims = [(*e, axis) if d == dim else e for d, e in enumerate(own.dims)]
                return Layout(own.mesh, dims)
        return own

    return layout


class Optimiser(SavedState, Pictured):
    """Base: walks the parameters, brings gradient and value into the state's layout, updates each shard.

    With a ``state_layout`` gradients come straight into it, from the next ``backward`` on; two optimisers of the same
    parameter may differ, the last one made says where.

    Parameters of 16-bit floats are updated in float32, in which their state is kept (a bfloat16 average of squares
    would stand still: its decay is less than its rounding), and rounded once per step.

    Args:
        parameters: a module, or parameters and tensors that want a gradient.
        state_layout: where the state of each lives, such as :func:`sharded_over`; with the parameter if left out.

    Raises:
        InputError: a rate, or other numbers, out of range.
        UsageTypeError: something that cannot be trained.

    >>> from spmdsim import nn
    >>> issubclass(nn.Adam, Optimiser)
    True
    """

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        if cls.__module__.startswith("spmdsim.nn.") and "__init__" in vars(cls):
            explained(cls)

    #: The number of this update of the parameter at hand, from 1 on.
    count: int

    def __init__(
        self,
        parameters: Module | Iterable[Parameter | Tensor],
        rate: float,
        state_layout: StateLayout | None = None,
    ) -> None:
        if not isinstance(rate, (int, float, np.number)) or not 0 <= rate < math.inf:
            raise InputError(f"a learning rate is a number from 0 on, not {rate}")
        self.parameters = parameters_of(parameters)
        self.rate = rate
        self.state_layout = state_layout or _with_value
        if state_layout is not None:
            for parameter in self.parameters:
                parameter.keep_gradient(state_layout)
        self.state: dict[int, list[list[np.ndarray]]] = {}
        self.counts: dict[int, int] = {}
        self.count = 0

    def __deepcopy__(self, memo: dict[int, object]) -> Optimiser:
        """A copy that goes on with copies of the parameters, from where this one is."""
        copied = memo[id(self)] = copy(self)
        vars(copied).update({name: deepcopy(value, memo) for name, value in vars(self).items()})
        keys = {id(old): id(new) for old, new in zip(self.parameters, copied.parameters)}
        copied.state = {keys[key]: value for key, value in copied.state.items()}
        copied.counts = {keys[key]: value for key, value in copied.counts.items()}
        return copied

    def step(self) -> None:
        """One update of all parameters that have a gradient; those split further for it are gathered together.

        Where the world overlaps, buckets of them are gathered while the next are updated, and while what comes after
        computes: whoever asks for a parameter waits for it.
        """
        trained = [parameter for parameter in self.parameters if parameter.value.grad is not None]
        values: list[Any] = [parameter.value for parameter in trained]
        slopes: list[Any] = [value.grad for value in values]
        check_shapes(trained, values, slopes)
        together = Together("parameters", gather_of)
        with self._as_before(trained) as waiting:
            for number, parameter in enumerate(trained):
                value: Any = self._updated(parameter, slopes[number])
                values[number] = slopes[number] = None  # free as soon as the parameter lets go of them
                if value.layout != parameter.layout:
                    together.add(number, value, parameter.layout)
                else:
                    parameter.assign(value)
                    del waiting[number]
                value = None
            later = together.leave()
            gathered = together.finish()
            for number in [*waiting]:
                if number in later:
                    trained[number].assign_later(partial(later[number], number))
                else:
                    trained[number].assign(gathered[number])
                del waiting[number]

    @contextmanager
    def _as_before(self, trained: Sequence[Parameter]) -> Iterator[dict[int, object]]:
        """Parameters without new values by number: where a step ends early, their state stays that of the old ones."""
        kept: tuple[dict[int, Any], ...] = self.state, self.counts
        waiting: dict[int, Any] = {
            number: [facts.get(id(parameter)) for facts in kept] for number, parameter in enumerate(trained)
        }
        try:
            yield waiting
        except BaseException:
            for number, old in waiting.items():
                for facts, before in zip(kept, old):
                    facts.pop(id(trained[number]), None)
                    if before is not None:
                        facts[id(trained[number])] = before
            raise

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for parameter in self.parameters:
            parameter.forget_gradient()

    def _updated(self, parameter: Parameter, gradient: Tensor) -> Tensor:
        """The parameter's next value, in the layout of its state."""
        layout = self.state_layout(parameter)
        value, slope = parameter.value, gradient
        if value.layout != layout:
            value = value.detach().to(layout)
        if slope.meta is not value.meta and slope.layout != layout:
            slope = slope.to(layout)
        world = value.world
        if not world.has_data:
            return value.detach()
        shards = world.perform(partial(self.advanced, parameter), value.held, slope.held)
        facts = tuple(self.numbers()) if world.compares else ()
        origin = computed_origin(world, type(self).__name__, (value.origin, slope.origin), facts, facts)
        return Tensor(world, Meta.of(layout, value.shape, value.dtype), shards, origin=origin)

    def advanced(
        self, parameter: Parameter, values: list[np.ndarray], changes: list[np.ndarray]
    ) -> list[np.ndarray]:
        """A parameter's next shards from its shards and their gradients; its state goes on, too."""
        if len(values) == 1 and self.is_stateless(values[0]):
            return [self.advanced_alone(parameter, values[0], changes[0])]
        self._count_on(parameter)
        stored = values[0].dtype
        kind = accumulator("sum", stored)
        wide = kind is not stored
        if wide:
            values, changes = in_type(values, kind), in_type(changes, kind)
        state = self.state.get(id(parameter)) or [_zeros(values) for _ in range(self.slots)]
        # Replicas that share all their arrays share the update, too. What they share is never written to: the next
        # time they may share something else.
        updates: dict[tuple[int, ...], tuple[np.ndarray, list[np.ndarray]]] = {}
        keys = [tuple(map(id, arrays)) for arrays in zip(values, changes, *state)]
        for key, old, change, *before in zip(keys, values, changes, *state):
            if key not in updates:
                updates[key] = self.new_value(old, change, before), before
                for array in before:
                    if isinstance(array, np.ndarray):  # and no number, which nobody writes to
                        array.flags.writeable = False
        if self.slots:
            self.state[id(parameter)] = [[updates[key][1][k] for key in keys] for k in range(self.slots)]
        self.counts[id(parameter)] = self.count
        shards = [updates[key][0] for key in keys]
        return in_type(shards, stored) if wide else shards

    def is_stateless(self, value: np.ndarray) -> bool:
        """Return True if the next value follows from the shard and its gradient alone, without state or a wider type."""
        return not self.slots and accumulator("sum", value.dtype) is value.dtype

    def advanced_alone(self, parameter: Parameter, value: np.ndarray, change: np.ndarray) -> np.ndarray:
        """The only shard's next value, where :meth:`is_stateless` held once: a momentum may have come since."""
        if self.slots:
            return self.advanced(parameter, [value], [change])[0]
        self._count_on(parameter)
        result = self.new_value(value, change, [])
        self.counts[id(parameter)] = self.count
        return result

    def _count_on(self, parameter: Parameter) -> None:
        # A parameter that had no gradient for some steps begins with its own first one.
        self.count = self.counts.get(id(parameter), 0) + 1

    def numbers(self) -> list[Real]:
        """What an update depends on beside tensors, such as the rate: the same on all ranks."""
        values = [value if type(value) is tuple else (value,) for value in vars(self).values()]
        return [part for value in values for part in value if isinstance(part, Real) and part == part]

    def new_value(self, value: np.ndarray, gradient: np.ndarray, state: list[np.ndarray]) -> np.ndarray:
        """The updated shard, from itself (float32 for floats of 16 bits, as the others are), its gradient, and its state.

        That is an array per slot, zeros in the beginning. New ones take their places in the list; arrays are values,
        which other ranks may share. Here it is :meth:`_block`, in blocks that stay in the cache from one operation to
        the next.
        """
        result = empty(value.shape, value.dtype)
        states = [empty(value.shape, value.dtype) for _ in state]
        arrays = [value, gradient, *state, *states]
        for operands in _update_blocks(result, arrays):
            self._block(*operands)
        state[:] = states
        return result

    def _block(self, out: np.ndarray, value: np.ndarray, gradient: np.ndarray, *state: np.ndarray) -> None:
        """Write the updated elements to ``out``. ``state`` has the old array of each slot, then the array for its new one."""
        raise TypeError(f"{type(self).__name__} defines no new_value()")


def _update_blocks(out: np.ndarray, arrays: Sequence[np.ndarray]) -> Iterator[list[np.ndarray]]:
    """Yield the operands of `Optimiser._block`, block by block: views of `out`, then of each array.

    A complex number is updated as two real ones, as torch does. Every view has at least one dim, because numpy's
    functions return scalars for arrays of shape ().
    """
    value, views = arrays[0], [out, *arrays]
    if value.dtype.kind == "c":
        for part in ("real", "imag"):
            yield from _update_blocks(getattr(out, part), [getattr(array, part) for array in arrays])
        return
    size = CACHED // (value.itemsize * len(views))
    if not value.ndim or (value.size > size and all(view.flags.c_contiguous for view in views)):
        flat = [view.reshape(-1) for view in views]
        for start in range(0, value.size, size):
            yield [view[start : start + size] for view in flat]
    else:
        yield views


def _with_value(parameter: Parameter) -> Layout:
    """Where the state is if nothing else is said."""
    return parameter.layout


def _zeros(like: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Zeros for each array, shared where the arrays are."""
    by_array = {id(array): np.zeros_like(array) for array in like}
    for zeros in by_array.values():
        zeros.flags.writeable = False
    return [by_array[id(array)] for array in like]
