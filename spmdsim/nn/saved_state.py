"""The state of an optimiser as tensors by name, to be saved and loaded on any mesh.

`SavedState.state_dict` builds these tensors; `SavedState.load_state_dict` checks and redistributes them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from spmdsim.arrays import Tensor
from spmdsim.core import Layout, Mesh
from spmdsim.core.elements import in_type
from spmdsim.core.tensor import Meta, create_shards
from spmdsim.errors import InputError, UsageTypeError, WorldError, nearest
from spmdsim.layout.element_type import accumulator, is_float
from spmdsim.nn.module import Parameter
from spmdsim.worlds.base import World
from spmdsim.worlds.provenance import combine_numbers

#: From a parameter to the layout of its optimiser state.
StateLayout = Callable[[Parameter], Layout]


class SavedState:
    """State of an optimiser that `state_dict` returns and `load_state_dict` takes.

    Attributes:
        parameters: what is trained.
        rate: the learning rate.
        state: the arrays of a parameter's state by its identity, one list per slot, in it one array per owned rank.
        counts: the number of updates of a parameter by its identity.
        state_layout: from a parameter to the layout of its state.
        loaded: a number that stands for the state loaded last, equal on ranks that loaded equal tensors.
    """

    #: How many state tensors each parameter has, and their names, which are torch's.
    slots = 0
    slot_names: tuple[str, ...] = ()
    #: Attributes that are saved as numbers, because they may change from step to step.
    saved_numbers: tuple[str, ...] = ("rate",)

    parameters: list[Parameter]
    rate: float
    state: dict[int, list[list[np.ndarray]]]
    counts: dict[int, int]
    state_layout: StateLayout
    loaded: int | None = None

    def state_dict(self) -> dict[str, Tensor]:
        """Return the optimiser's state as tensors by name, to save and to load in a later run.

        For a parameter named "weight", the keys are:

        - ``weight.exp_avg`` and the like: its moments, named as in torch; zeros before the first update;
        - ``weight.step``: its number of updates.

        ``rate`` is the learning rate. A parameter without a name is called by its position (``0``); if several share
        a name, the position is put in front (``1.weight``). Frozen parameters that were never updated are left out.

        Returns:
            Tensors for :func:`spmdsim.arrays.checkpoint.save`; empty if no parameter has state. Moments are in the
            layout of the state, in float32 for parameters of 16-bit floats. Numbers have shape ().

        Raises:
            WorldError: If a parameter has no values yet.

        >>> from spmdsim import Mesh, Tensor, nn
        >>> weight = Tensor.from_global([3.0, 4.0], Mesh((2,), ("tp",))("tp"), requires_grad=True)
        >>> optimiser = nn.Adam([weight], rate=0.5)
        >>> nn.backward((weight * weight).sum())
        >>> optimiser.step()
        >>> {name: tensor.full().round(3).tolist() for name, tensor in optimiser.state_dict().items()}
        {'0.exp_avg': [0.6, 0.8], '0.exp_avg_sq': [0.036, 0.064], '0.step': 1, 'rate': 0.5}
        """
        tensors: dict[str, Tensor] = {}
        for name, parameter in self._named_parameters():
            value = parameter.value
            world, dtype = value.world, accumulator("sum", value.dtype)
            meta = Meta.of(self.state_layout(parameter), value.shape, dtype)
            arrays = self.state.get(id(parameter), ())
            for k in range(self.slots):
                shards = arrays[k] if k < len(arrays) else _create_zeros(world, meta)
                provenance_number = combine_numbers(value.provenance_number, k + 1) if world.compares else 0
                tensors[f"{name}.{self._slot_name(k)}"] = Tensor(
                    world, meta, [*shards], provenance_number=provenance_number
                )
            tensors[f"{name}.step"] = _convert_number(world, np.int64(self.counts.get(id(parameter), 0)))
        for name in self.saved_numbers if tensors else ():
            number = getattr(self, name)
            tensors[name] = _convert_number(
                world, np.int64(number) if isinstance(number, int) else np.float64(number)
            )
        return tensors

    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        """Load the state that :meth:`state_dict` of an optimiser of this kind returned.

        The parameters of both optimisers must have equal names and shapes. Layouts may differ, because the tensors are
        redistributed; so all ranks must call it. Saved numbers such as ``rate`` replace those of this optimiser.

        Nothing changes if an error is raised, or in a world without data.

        Args:
            tensors: exactly the names that :meth:`state_dict` of this optimiser returns. Numbers must be of the kind of
                this optimiser's (float, signed or unsigned integer, complex, bool); they may have another width.

        Raises:
            InputError: If a name is missing or unknown, or a shape or kind of number differs.
            UsageTypeError: If ``tensors`` is not a mapping, or a value is not a tensor.
            WorldError: If a tensor is in another world, or a parameter has no values yet.

        >>> from spmdsim import Mesh, Tensor, nn
        >>> weight = Tensor.from_global([3.0, 4.0], Mesh((2,), ("tp",))("tp"), requires_grad=True)
        >>> first, second = nn.Adam([weight], rate=0.5), nn.Adam([weight])
        >>> nn.backward((weight * weight).sum())
        >>> first.step()
        >>> second.load_state_dict(first.state_dict())
        >>> second.rate, second.state_dict()["0.step"].item()
        (0.5, 1)
        """
        expected = self.state_dict()
        _check_names(expected, tensors)
        moved = {name: _convert_like(name, tensors[name], like) for name, like in expected.items()}
        if not all(tensor.world.has_data for tensor in moved.values()):
            return
        for name, parameter in self._named_parameters():
            slots = [moved[f"{name}.{self._slot_name(k)}"].stored_shards for k in range(self.slots)]
            self.counts[id(parameter)] = int(moved[f"{name}.step"].stored_shards[0])
            if slots:
                self.state[id(parameter)] = slots
        for name in self.saved_numbers if moved else ():
            setattr(self, name, moved[name].stored_shards[0].item())
        self.loaded = hash(tuple([tensors[name].provenance_number for name in sorted(expected)]))

    def _slot_name(self, k: int) -> str:
        """Return the name of a parameter's state tensor number ``k``.

        It is ``state{k}`` if `slot_names` has too few names.
        """
        return self.slot_names[k] if k < len(self.slot_names) else f"state{k}"

    def _named_parameters(self) -> Iterator[tuple[str, Parameter]]:
        """Yield ``(name, parameter)`` of the parameters that were updated or require a gradient.

        They are in the order of `parameters`. A parameter without a name is called by its position there. If
        parameters share a name, each gets its position in front, such as ``1.weight``.

        Raises:
            WorldError: If a parameter has no values yet.
        """
        names = [parameter.name or str(k) for k, parameter in enumerate(self.parameters)]
        uses = Counter(names)
        for k, (name, parameter) in enumerate(zip(names, self.parameters)):
            if parameter.value.requires_grad or id(parameter) in self.counts:
                yield name if uses[name] == 1 else f"{k}.{name}", parameter


def _create_zeros(world: World, meta: Meta) -> list[Any]:
    """Return the shards of a tensor of zeros, one per owned rank.

    Replicas in one process share an array. In a world without data the arrays have no elements in memory.
    """
    if not world.has_data:
        return world.empties(meta)
    return create_shards(
        world, meta, lambda index: np.zeros([dim.stop - dim.start for dim in index], meta.dtype)
    )


def _convert_number(world: World, number: np.generic) -> Tensor:
    """Return a number as a tensor of shape () that is replicated on all ranks of the world."""
    meta = Meta.of(Mesh((world.size,), ("world",))(), (), number.dtype)
    shards = [np.asarray(number)] * len(world.ranks) if world.has_data else world.empties(meta)
    return Tensor(world, meta, shards, provenance_number=combine_numbers(number) if world.compares else 0)


def _check_names(expected: Mapping[str, object], tensors: Mapping[str, object]) -> None:
    """Raise an error unless ``tensors`` is a mapping with the expected names.

    The message is about the first missing name or, if none is missing, the first unknown one. It suggests a similar
    name: if "weight.step" is missing, an unknown "wieght.step" is shown.

    Args:
        expected: the names of the optimiser's own state.
        tensors: the names to be loaded.

    Raises:
        UsageTypeError: If ``tensors`` is not a mapping.
        InputError: If a name is missing or unknown.
    """
    if not isinstance(tensors, Mapping):
        raise UsageTypeError(
            f"load_state_dict: tensors must be a dict of tensors by name, got a {type(tensors).__name__}; pass what "
            "state_dict() returned"
        )
    for name in expected:
        if name not in tensors:
            near = nearest(name, [extra for extra in tensors if extra not in expected])
            hint = (
                f"it has {near!r}" if near else "it may be that of another optimiser or of other parameters"
            )
            raise InputError(f"load_state_dict: the state must have {name!r}, got none; {hint}")
    for name in tensors:
        if name not in expected:
            near = nearest(name, expected)
            hint = (
                f"nearest: {near!r}"
                if near
                else f"this optimiser's state has {', '.join(expected) or 'no names'}"
            )
            raise InputError(f"load_state_dict: names must be those of state_dict(), got {name!r}; {hint}")


def _convert_like(name: str, tensor: Tensor, like: Tensor) -> Tensor:
    """Return ``tensor`` in the layout and dtype of ``like``, without gradient.

    It is redistributed, so all ranks must call it.

    Args:
        name: name of the state tensor, for messages.
        tensor: the tensor to be loaded. Its numbers may be wider or narrower than those of ``like``.
        like: the tensor that it replaces.

    Raises:
        UsageTypeError: If ``tensor`` is not a tensor.
        WorldError: If it is in another world than ``like``.
        InputError: If its shape differs, or the kinds of numbers differ: float, signed or unsigned integer, complex,
            bool.
    """
    if not isinstance(tensor, Tensor):
        raise UsageTypeError(
            f"load_state_dict: {name!r} must be a tensor, got a {type(tensor).__name__}; pass what state_dict() "
            "returned"
        )
    if tensor.world is not like.world:
        raise WorldError(
            f"load_state_dict: {name!r} must be in the parameters' world {like.world}, got one of {tensor.world}; "
            "load the tensor in that world"
        )
    kinds = [dtype.kind if not is_float(dtype) else "f" for dtype in (tensor.dtype, like.dtype)]
    if tensor.shape != like.shape or kinds[0] != kinds[1]:
        raise InputError(
            f"load_state_dict: {name!r} must be {like.dtype} of shape {like.shape}, got {tensor!r}; pass the "
            "state of an optimiser of the same parameters"
        )
    moved = tensor.detach().to(like.layout)
    if moved.dtype == like.dtype:
        return moved
    return Tensor(moved.world, like.meta, in_type(moved.stored_shards, like.dtype))
