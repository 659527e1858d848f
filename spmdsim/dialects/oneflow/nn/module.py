"""``oneflow.nn.Module`` and ``Parameter``: parameters take no memory until they are global."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from spmdsim.core import Layout, Mesh
from spmdsim.dialects.oneflow.local import GlobalTensor, LocalTensor
from spmdsim.dialects.oneflow.placements import placement as Placement
from spmdsim.dialects.oneflow.sbp import OneFlowError
from spmdsim.dialects.oneflow.tensors import layout as layout_of
from spmdsim.dialects.oneflow.tensors import sbp_of
from spmdsim.dialects.session import current_world
from spmdsim.nn import Module as CoreModule
from spmdsim.nn import ModuleList as CoreList
from spmdsim.nn import Parameter as CoreParameter
from spmdsim.nn import Sequential as CoreSequential
from spmdsim.tensor import Tensor

_seed = [0]


def seed_parameters(seed: int) -> None:
    """The seed of parameters that become global afterwards."""
    _seed[0] = seed


class Parameter(CoreParameter):
    """A trained tensor: ``Parameter(global_tensor)``, or a shape with first values to come.

    Raises:
        RuntimeError: a local tensor.
    """

    placement: Placement | None = None

    def __init__(self, data: Any, initialiser: Any = None, requires_grad: bool = True) -> None:
        if isinstance(data, LocalTensor):
            raise OneFlowError("a parameter is global here; nearest: Parameter(x.to_global(placement, sbp))")
        if isinstance(data, GlobalTensor):
            given = data.value.detach()
            super().__init__(given.shape, given.layout, dtype=given.dtype)
            self.tensor = Tensor(given.world, given.meta, given.held, requires_grad=requires_grad)
            self.placement = data.placement
            return
        nowhere = Layout.replicated(Mesh((1,), ("one",)), len(data))
        super().__init__(tuple(data), nowhere, initialiser)

    def to_global(self, placement: Placement, sbp: Any) -> None:
        """Live there: filled if it has no values yet, else moved."""
        layout = layout_of(placement, sbp, len(self.shape))
        self.placement = placement
        if self.tensor is None:
            self.layout = layout
            self.materialise(current_world(), _seed[0])
        elif layout != self.layout:
            self.layout = layout
            self.assign(self.tensor)

    @property
    def sbp(self) -> Any:
        """One entry per axis of the placement."""
        return sbp_of(self.layout)

    def numpy(self) -> Any:
        """The whole parameter, on every process."""
        return self.value.full()


class Module(CoreModule):
    """A module. Its parameters take no memory until :meth:`to_global` says where they live."""

    training = True

    def __init__(self) -> None:
        """Nothing to do: attributes that are parameters or modules are found."""

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        """Run :meth:`forward` on global tensors.

        Raises:
            RuntimeError: local tensors, parameters that are not global yet, or another placement.
        """
        passed = (*inputs, *options.values())
        if any(isinstance(x, LocalTensor) for x in passed):
            raise OneFlowError(
                f"{type(self).__name__} computes on global tensors here; nearest: x.to_global(placement, sbp)"
            )
        placements = [x.placement for x in passed if isinstance(x, GlobalTensor)]
        for path, parameter in vars(self).items():
            if not isinstance(parameter, CoreParameter):
                continue
            if parameter.tensor is None:
                raise OneFlowError(
                    f"parameter {path} is not global yet; call to_global(placement, sbp) on the module"
                )
            where = getattr(parameter, "placement", None)
            if placements and where not in (None, placements[0]):
                raise OneFlowError(
                    "Expected all tensors to be on the same placement, but found at least two placements, "
                    f"{placements[0]} and {where} (parameter {path})!"
                )
        return self.forward(*inputs, **options)

    def to_global(self, placement: Placement | None = None, sbp: Any = None) -> Module:
        """Lay all parameters out; the same global values on any placement, and trained ones are moved.

        Raises:
            RuntimeError: no placement or no sbp.
        """
        if placement is None or sbp is None:
            raise OneFlowError("Converting a local module to global must have placement and sbp parameters.")
        for path, parameter in self.named_parameters():
            parameter.name = parameter.name or path
            parameter.to_global(placement, sbp)  # type: ignore[attr-defined]
        return self

    def train(self, mode: bool = True) -> Module:
        """Training or not, for this module and all inside: dropout asks."""
        for module in self.modules():
            module.training = mode
        return self

    def eval(self) -> Module:
        """Not training."""
        return self.train(False)

    def modules(self) -> Iterator[Module]:
        """This module and all inside."""
        yield self
        for value in vars(self).values():
            for item in value if isinstance(value, (list, tuple)) else [value]:
                if isinstance(item, Module):
                    yield from item.modules()

    def state_dict(self) -> dict[str, GlobalTensor]:
        """All parameters by path."""
        return {
            path: GlobalTensor(p.value.detach(), p.placement)  # type: ignore[attr-defined]
            for path, p in self.named_parameters()
        }


class ModuleList(CoreList, Module):
    """A list of modules whose parameters are found."""


class Sequential(CoreSequential, Module):
    """Modules one after the other."""


__all__ = ["Module", "ModuleList", "Parameter", "Sequential"]
