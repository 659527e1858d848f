"""The base of all optimisers. They update each shard; their state has the parameters' layout or is split further (ZeRO)."""

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
from spmdsim.errors import InputError, UsageTypeError
from spmdsim.layout.element_type import accumulator
from spmdsim.nn.gradients import SharedMoves, check_shapes
from spmdsim.nn.module import Module, Parameter, parameters_of
from spmdsim.nn.saved_state import SavedState, StateLayout
from spmdsim.pictured import Pictured
from spmdsim.redistribution.plans.merge import gather_of
from spmdsim.worlds.pool import take_buffer
from spmdsim.worlds.provenance import number_result
from spmdsim.wrong_calls import explained

__all__ = ["Optimiser", "sharded_over"]

#: Bytes of all arrays of an update that are processed at once. They fit into the last cache. Smaller blocks would fit into
#: the earlier caches, but the fixed cost of numpy calls would exceed what they save.
CACHED = 1 << 22


@explained
def sharded_over(axis: str) -> StateLayout:
    """Return a state layout that also splits over an axis that replicates the parameter, as ZeRO does.

    Each rank then owns and updates a part of the state only. Gradients are reduce_scattered to the parts, and updated
    values all_gathered; both together receive as many bytes as one all_reduce of the gradients. This is stage 2 of
    Rajbhandari et al. (2020).

    The axis splits the first dimension whose size is a multiple of its new number of blocks. With 4 ranks along the
    axis, a parameter of shape (6, 8) is split in its second dimension. Parameters without such a dimension, and
    parameters that the axis already splits, keep their layout.

    Args:
        axis: name of the mesh axis, such as "dp".

    Returns:
        A function from a parameter to the layout of its state, for the argument `state_layout` of optimisers.

    >>> from spmdsim import Mesh, Tensor, nn
    >>> values, layout = np.ones((8, 6), np.float32), Mesh((4,), ("dp",))(None, None)
    >>> weight = Tensor.from_global(values, layout, requires_grad=True)
    >>> optimiser = nn.SGD([weight], state_layout=nn.sharded_over("dp"))
    >>> nn.backward((weight * weight).sum())
    >>> weight.grad
    Tensor(f32[8,6] S(0) on dp=4)

    Raises:
        LayoutError: If the mesh has no such axis; raised when the optimiser is created.
    """

    def layout(parameter: Parameter) -> Layout:
        """Return the layout of the state of a parameter.

        The axis is added to the first dimension that it divides evenly, as the minor split. Without such a dimension,
        or if the axis splits the parameter already, it is the parameter's layout.
        """
        value_layout = parameter.layout
        mesh = value_layout.mesh
        axis_size = mesh.axis_size(axis)
        if axis not in value_layout.replicated_axes:
            return value_layout
        dims = [*value_layout.dims]
        for dim, (size, blocks) in enumerate(zip(parameter.shape, value_layout.parts)):
            if size % (blocks * axis_size) == 0:
                dims[dim] = (*dims[dim], axis)
                break
        return Layout(mesh, dims)

    return layout


class Optimiser(SavedState, Pictured):
    """Base of optimisers: moves gradient and value to the state's layout, then updates each shard.

    With a ``state_layout``, `backward` moves gradients directly to it. If several optimisers have one parameter, the
    state layout of the optimiser that was created last applies to its gradient.

    Parameters of 16-bit floats are updated in float32 and rounded once per step. Their state is in float32, because the
    decay of a bfloat16 average of squares is less than its rounding error.

    Args:
        parameters: a module, or an iterable of parameters and of tensors that require a gradient.
        rate: the learning rate, at least 0.
        state_layout: from a parameter to the layout of its state, such as :func:`sharded_over`; default: its own
            layout.

    Attributes:
        state: per identity of a parameter a list of slots, each with one array per owned rank.
        counts: per identity of a parameter the number of its updates.

    Raises:
        InputError: If the rate or another number is out of range.
        UsageTypeError: If an item of `parameters` cannot be trained, or `state_layout` is not a function.

    >>> from spmdsim import nn
    >>> issubclass(nn.Adam, nn.Optimiser)
    True
    """

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        if cls.__module__.startswith("spmdsim.nn.") and "__init__" in vars(cls):
            explained(cls)

    #: The number of the current update of the current parameter, from 1 on. `_block` reads it.
    count: int

    def __init__(
        self,
        parameters: Module | Iterable[Parameter | Tensor],
        rate: float,
        state_layout: StateLayout | None = None,
    ) -> None:
        self._require_numbers(rate=rate)
        if state_layout is not None and not callable(state_layout):
            raise UsageTypeError(
                f"{type(self).__name__}: state_layout must be a function of a parameter, got {state_layout!r}; pass, for "
                "example, nn.sharded_over('dp')"
            )
        self.parameters = parameters_of(parameters)
        self.rate = rate
        self.state_layout = state_layout or _return_own_layout
        if state_layout is not None:
            for parameter in self.parameters:
                parameter.keep_gradient(state_layout)
        self.state: dict[int, list[list[np.ndarray]]] = {}
        self.counts: dict[int, int] = {}
        self.count = 0

    def __deepcopy__(self, memo: dict[int, object]) -> Optimiser:
        """Return an optimiser of copies of the parameters, with copies of their state."""
        copied = memo[id(self)] = copy(self)
        vars(copied).update({name: deepcopy(value, memo) for name, value in vars(self).items()})
        keys = {id(old): id(new) for old, new in zip(self.parameters, copied.parameters)}
        copied.state = {keys[key]: value for key, value in copied.state.items()}
        copied.counts = {keys[key]: value for key, value in copied.counts.items()}
        return copied

    def step(self) -> None:
        """Update all parameters that have a gradient, and remove their gradients.

        All ranks must call it. Parameters without gradient keep their values.

        A parameter whose state is split over more ranks than its values (:func:`sharded_over`) is updated in the
        layout of its state, then gathered. These gathers share messages. If the world overlaps communication with
        calculation, `step` may return before they are complete; the first read of the parameter waits.

        After an error in the middle, each parameter that was not updated keeps its value, and gets back its state
        from before the step.

        Raises:
            LayoutError: If a gradient has another shape than its parameter; then no parameter changes.
            WorldError: If a parameter has no values yet.
        """
        trained = [parameter for parameter in self.parameters if parameter.value.grad is not None]
        values: list[Any] = [parameter.value for parameter in trained]
        gradients: list[Any] = [value.grad for value in values]
        check_shapes(trained, values, gradients)
        moves = SharedMoves("parameters", gather_of)
        with self._restoring_state(trained) as waiting:
            for number, parameter in enumerate(trained):
                value: Any = self._compute_updated_value(parameter, gradients[number])
                # These lists and this variable must not keep the arrays alive when the parameter releases them.
                values[number] = None
                gradients[number] = None
                if value.layout != parameter.layout:
                    moves.add(number, value, parameter.layout)
                else:
                    parameter.assign(value)
                    del waiting[number]
                value = None
            self._assign_gathered(trained, moves, waiting)

    @staticmethod
    def _assign_gathered(
        trained: Sequence[Parameter], moves: SharedMoves, waiting: dict[int, object]
    ) -> None:
        """Gather the remaining new values, assign them to their parameters and empty ``waiting``.

        All gathers are started first. If a gather may finish later, a function that waits for it is passed to
        ``assign_later``: the parameter calls it when it is read next.
        """
        later = moves.post_all()
        gathered = moves.finish()
        for number in [*waiting]:
            if number in later:
                trained[number].assign_later(partial(later[number], number))
            else:
                trained[number].assign(gathered[number])
            del waiting[number]

    @contextmanager
    def _restoring_state(self, trained: Sequence[Parameter]) -> Iterator[dict[int, object]]:
        """Return a context that restores the state of parameters if its block raises an error.

        The block gets a dict by position in ``trained``. A value is a list with the old state and the old count of
        updates, each None if the parameter had none. When a parameter has got its new value, the block deletes its
        entry. If the block then raises, the parameters that still have an entry get back their state and their count
        of updates from before the block; the others keep the new ones. So state and value always fit each other.
        """
        dicts: tuple[dict[int, Any], ...] = self.state, self.counts
        waiting: dict[int, Any] = {
            number: [by_parameter.get(id(parameter)) for by_parameter in dicts]
            for number, parameter in enumerate(trained)
        }
        try:
            yield waiting
        except BaseException:
            for number, old_entries in waiting.items():
                for by_parameter, old_entry in zip(dicts, old_entries):
                    by_parameter.pop(id(trained[number]), None)
                    if old_entry is not None:
                        by_parameter[id(trained[number])] = old_entry
            raise

    def _require_numbers(self, **numbers: object) -> None:
        """Raise InputError if one of the named numbers is not a finite number of 0 or more."""
        for name, number in numbers.items():
            if not isinstance(number, (int, float, np.number)) or not 0 <= number < math.inf:
                raise InputError(
                    f"{type(self).__name__}: {name} must be a number of 0 or more, got {number!r}; pass, for example, 0.01"
                )

    def zero_grad(self) -> None:
        """Remove all gradients."""
        for parameter in self.parameters:
            parameter.forget_gradient()

    def _compute_updated_value(self, parameter: Parameter, gradient: Tensor) -> Tensor:
        """Return the parameter's next value, in the layout of its state and without gradient.

        Value and gradient are redistributed to the layout of the state first, so all ranks must call it. Then each
        owned shard is updated. The parameter's state and count of updates change. The caller assigns the value. In a
        world without data, return the old value in the layout of the state and change nothing.

        Args:
            parameter: the parameter, which has a value.
            gradient: its gradient, of equal shape, in any layout.
        """
        layout = self.state_layout(parameter)
        value = parameter.value
        if value.layout != layout:
            value = value.detach().to(layout)
        if gradient.layout != layout:
            gradient = gradient.to(layout)
        world = value.world
        if not world.has_data:
            return value.detach()
        shards = world.perform(
            partial(self.advance_shards, parameter), value.stored_shards, gradient.stored_shards
        )
        facts = tuple(self.numbers()) if world.compares else ()
        provenance_number = number_result(
            world,
            type(self).__name__,
            operands=(value.provenance_number, gradient.provenance_number),
            facts=facts,
            parameters=facts,
        )
        return Tensor(
            world, Meta.of(layout, value.shape, value.dtype), shards, provenance_number=provenance_number
        )

    def advance_shards(
        self, parameter: Parameter, values: list[np.ndarray], gradients: list[np.ndarray]
    ) -> list[np.ndarray]:
        """Return a parameter's next shards, one per owned rank; update its state and its count.

        - The state is zeros before the first update. :attr:`count` becomes the number of this update, from 1.
        - Shards of 16-bit floats are updated in float32, and the results are rounded; the state stays float32.
        - Ranks whose value, gradient and state are the very same arrays (replicas in one process) are computed once,
          and get one common array as result.

        The given arrays are not changed.

        Args:
            parameter: the parameter, the key of the state.
            values: the parameter's shards, one per owned rank.
            gradients: the gradients of the shards, of equal shapes.
        """
        # The number that this update of the parameter has; steps without gradient are not counted.
        self.count = self.counts.get(id(parameter), 0) + 1
        stored_dtype = values[0].dtype
        dtype = accumulator("sum", stored_dtype)
        is_widened = dtype is not stored_dtype
        if is_widened:
            values, gradients = in_type(values, dtype), in_type(gradients, dtype)
        state = self.state.get(id(parameter)) or [_zeros(values) for _ in range(self.slots)]
        # Replicas that share all their arrays also share the update. Shared arrays are read-only, because the replicas
        # may share other arrays in the next step.
        updates: dict[tuple[int, ...], tuple[np.ndarray, list[np.ndarray]]] = {}
        keys = [tuple(map(id, arrays)) for arrays in zip(values, gradients, *state)]
        for key, old, gradient, *before in zip(keys, values, gradients, *state):
            if key not in updates:
                updates[key] = self.new_value(old, gradient, before), before
                for array in before:
                    if isinstance(array, np.ndarray):  # NumPy scalars have no flags to set.
                        array.flags.writeable = False
        if self.slots:
            self.state[id(parameter)] = [[updates[key][1][k] for key in keys] for k in range(self.slots)]
        self.counts[id(parameter)] = self.count
        shards = [updates[key][0] for key in keys]
        return in_type(shards, stored_dtype) if is_widened else shards

    def numbers(self) -> list[Real]:
        """Return the numbers that an update depends on, such as the rate.

        They must be equal on all ranks. These are all attributes, and items of tuples in attributes, that are real
        numbers and not NaN.
        """
        tuples = [value if type(value) is tuple else (value,) for value in vars(self).values()]
        return [
            number for items in tuples for number in items if isinstance(number, Real) and number == number
        ]

    def new_value(self, value: np.ndarray, gradient: np.ndarray, state: list[np.ndarray]) -> np.ndarray:
        """Return the updated shard, and replace the items of ``state`` by new arrays.

        Other ranks may share the arrays, so none is changed in place. This method calls :meth:`_block` block by block;
        a subclass overrides one of the two methods.

        Args:
            value: the shard. All arrays are float32 for parameters of 16-bit floats.
            gradient: its gradient, of equal shape.
            state: one array per slot, such as a velocity, in the order of the class; zeros before the first update.
        """
        result = take_buffer(value.shape, value.dtype)
        states = [take_buffer(value.shape, value.dtype) for _ in state]
        arrays = [value, gradient, *state, *states]
        for operands in _update_blocks(result, arrays):
            self._block(*operands)
        state[:] = states
        return result

    def _block(self, out: np.ndarray, value: np.ndarray, gradient: np.ndarray, *state: np.ndarray) -> None:
        """Write the updated elements of one block to ``out``. Subclasses define it.

        Args:
            out: the array to fill. All arrays of the call have its shape.
            value: the old elements.
            gradient: their gradients.
            state: the old array of each slot, then the array to fill for each slot.

        Raises:
            TypeError: Here, because the base class has no formula.
        """
        raise TypeError(
            f"{type(self).__name__} must define new_value(), which computes the updated parameters"
        )


def _update_blocks(out: np.ndarray, arrays: Sequence[np.ndarray]) -> Iterator[list[np.ndarray]]:
    """Yield the operands of each call of `Optimiser._block`, views of ``out`` and each array.

    Large arrays are updated in blocks that stay in the cache: a block has at most :data:`CACHED` bytes (4 MiB) over all
    operands. For example, Adam has 7 operands; in float32 a block has 4 MiB / (7 * 4 bytes) = 149,796 elements.

    - Smaller arrays, and arrays of which one is not contiguous, form one block in their own shape.
    - Complex arrays are updated as two real ones, first the real and then the imaginary parts, as torch does.
    - Arrays of shape () become shape (1,), because numpy's functions would return scalars instead of arrays.

    Args:
        out: the array for the new value.
        arrays: the old value, the gradient, then the old and the new arrays of the state. All have the shape and dtype
            of ``out``.

    Yields:
        Views of the block in ``out`` and in each of ``arrays``, in this order.
    """
    value, views = arrays[0], [out, *arrays]
    if value.dtype.kind == "c":
        for component in ("real", "imag"):
            yield from _update_blocks(
                getattr(out, component), [getattr(array, component) for array in arrays]
            )
        return
    size = CACHED // (value.itemsize * len(views))
    if not value.ndim or (value.size > size and all(view.flags.c_contiguous for view in views)):
        flat = [view.reshape(-1) for view in views]
        for start in range(0, value.size, size):
            yield [view[start : start + size] for view in flat]
    else:
        yield views


def _return_own_layout(parameter: Parameter) -> Layout:
    """Return the parameter's own layout, the default layout of its state."""
    return parameter.layout


def _zeros(like: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return a read-only array of zeros for each array; equal entries of ``like`` share their zeros."""
    by_array = {id(array): np.zeros_like(array) for array in like}
    for zeros in by_array.values():
        zeros.flags.writeable = False
    return [by_array[id(array)] for array in like]
