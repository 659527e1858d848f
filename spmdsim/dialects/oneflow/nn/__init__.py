"""``oneflow.nn``: modules whose parameters become global by ``to_global``."""

from __future__ import annotations

from typing import Any

import spmdsim.ops as core
from spmdsim.dialects.oneflow.local import GlobalTensor
from spmdsim.dialects.oneflow.placements import placement as Placement
from spmdsim.dialects.oneflow.sbp import OneFlowError
from spmdsim.dialects.oneflow.tensors import layout as layout_of
from spmdsim.dialects.session import current_world
from spmdsim.layout import Layout, Mesh
from spmdsim.nn import Module as CoreModule
from spmdsim.nn import Parameter, Uniform


class Module(CoreModule):
    """A module. Its parameters take no memory until :meth:`to_global` says where they live."""

    def to_global(self, placement: Placement | None = None, sbp: Any = None) -> Module:
        """Lay all parameters out; the same global values on any placement.

        Raises:
            RuntimeError: no placement or no sbp.
        """
        if placement is None or sbp is None:
            raise OneFlowError("Converting a local module to global must have placement and sbp parameters.")
        world = current_world()
        for path, parameter in self.named_parameters():
            parameter.layout = layout_of(placement, sbp, len(parameter.shape))
            parameter.name = path
            parameter.materialise(world)
        return self


class Sequential(Module):
    """Modules one after the other."""

    def __init__(self, *modules: Module) -> None:
        self.modules = list(modules)

    def forward(self, x: GlobalTensor) -> GlobalTensor:
        """The last module's result."""
        for module in self.modules:
            x = module(x)
        return x


class Linear(Module):
    """``x @ weight.T + bias``, the weight ``[out, in]`` as OneFlow keeps it."""

    def __init__(self, in_features: int, out_features: int, bias: bool = True) -> None:
        bound = Uniform(in_features**-0.5)
        self.weight = Parameter((out_features, in_features), _nowhere(2), bound)
        self.bias = Parameter((out_features,), _nowhere(1), bound) if bias else None

    def forward(self, x: GlobalTensor) -> GlobalTensor:
        """``[..., in] -> [..., out]``."""
        y = core.matmul(x.value, self.weight.value, transpose_b=True)
        if self.bias is not None:
            y = core.add(y.to(y.layout.reduced), self.bias.value)
        return GlobalTensor(y, x.placement)


class ReLU(Module):
    """Rectified linear unit."""

    def forward(self, x: GlobalTensor) -> GlobalTensor:
        """Element by element."""
        return GlobalTensor(core.relu(x.value), x.placement)


def _nowhere(ndim: int) -> Layout:
    return Layout.replicated(Mesh((1,), ("one",)), ndim)
