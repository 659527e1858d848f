"""``oneflow.nn.Module`` and ``Parameter``: parameters take no memory until they are global."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from spmdsim.core import Layout, Mesh
from spmdsim.dialects.missing import Worded
from spmdsim.dialects.oneflow.devices import device
from spmdsim.dialects.oneflow.local import GlobalTensor, LocalTensor, becoming
from spmdsim.dialects.oneflow.nearest import MODULE
from spmdsim.dialects.oneflow.placements import placement as Placement
from spmdsim.dialects.oneflow.printing import without_values
from spmdsim.dialects.oneflow.sbp import OneFlowError
from spmdsim.dialects.oneflow.symbols import Size, in_place
from spmdsim.dialects.oneflow.tensors import layout as layout_of
from spmdsim.dialects.oneflow.tensors import sbp_of
from spmdsim.dialects.printed import options_of, tree
from spmdsim.dialects.session import current_world
from spmdsim.dialects.table import Numbered, as_its_tensor
from spmdsim.nn import Module as CoreModule
from spmdsim.nn import Parameter as CoreParameter
from spmdsim.nn import Sequential as CoreSequential
from spmdsim.tensor import Tensor

_seed = [0]


def seed_parameters(seed: int) -> None:
    """The seed of parameters that become global afterwards."""
    _seed[0] = seed


class Parameter(CoreParameter):
    """A trained tensor: ``Parameter(global_tensor)``, or a shape with first values to come.

    It has the words of a global tensor, which it is once it has values.

    Raises:
        RuntimeError: a local tensor.
    """

    placement: Placement | None = None

    def __init__(
        self, data: Any, initialiser: Any = None, requires_grad: bool = True, *, dtype: Any = None
    ) -> None:
        if isinstance(data, LocalTensor):
            raise OneFlowError("a parameter is global here; nearest: Parameter(x.to_global(placement, sbp))")
        if isinstance(data, GlobalTensor):
            given = data.value.detach()
            super().__init__(given.shape, given.layout, dtype=given.dtype)
            self.shape = data.shape
            self.tensor = Tensor(given.world, given.meta, given.held, requires_grad=requires_grad)
            self.placement = data.placement
            return
        nowhere = Layout.replicated(Mesh((1,), ("one",)), len(data))
        super().__init__(tuple(data), nowhere, initialiser, dtype or np.float32)
        self.shape = Size(self.shape)

    @property
    def data(self) -> GlobalTensor:
        """Its values.

        Raises:
            RuntimeError: it is not global yet.
        """
        if self.tensor is None or self.placement is None:
            raise OneFlowError(
                f"parameter {self.name or tuple(self.shape)} is not global yet; call to_global(placement, sbp) on "
                "the module"
            )
        return GlobalTensor(self.tensor, self.placement)

    @property
    def grad(self) -> Any:
        """Its gradient after ``backward()``, a global tensor."""
        return self.data.grad

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.data, name)

    def __repr__(self) -> str:
        if self.tensor is None:
            return without_values(self.shape, self.dtype, ["requires_grad=True"])
        return repr(self.data)

    def live(self, placement: Placement, sbp: Any) -> None:
        """Be there from now on: filled if it has no values yet, else moved (``to_global`` gives another tensor)."""
        layout = layout_of(placement, sbp, len(self.shape))
        self.placement = placement
        if self.tensor is None:
            self.layout = layout
            self.materialise(current_world(), _seed[0])
        elif layout != self.layout:
            self.layout = layout
            self.assign(self.tensor)

    def become(self, other: GlobalTensor) -> Parameter:
        """Other values from now on, without a gradient of them: ``with no_grad(): p -= rate * p.grad``.

        Raises:
            RuntimeError: gradients are tracked, or values of another shape.
        """
        value, grad = becoming(self.value, other.value), self.value.grad
        self.assign(value)
        self.value.grad = grad
        return self

    @property
    def sbp(self) -> Any:
        """One entry per axis of the placement."""
        return sbp_of(self.layout)


as_its_tensor(Parameter, "data")
in_place(Parameter)


class Module(Worded, CoreModule):
    """A module. Its parameters take no memory until :meth:`to_global` says where they live."""

    ORIGINAL, NEAREST = "oneflow.nn.Module", MODULE

    training = True

    def __init__(self) -> None:
        """Nothing to do: attributes that are parameters or modules are found."""

    def extra_repr(self) -> str:
        """What a module prints in its brackets: its options; a loss none."""
        return "" if hasattr(self, "reduction") else options_of(self, "approximate")

    def __repr__(self) -> str:
        """Its class and options, and in further lines what is inside, each by its name."""
        return tree(type(self).__name__, self.extra_repr(), self.named_children())

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
            parameter.live(placement, sbp)  # type: ignore[attr-defined]
        return self

    def train(self, mode: bool = True) -> Module:
        """Training or not, for this module and all inside: dropout asks."""
        for module in self.modules():
            module.training = mode
        return self

    def eval(self) -> Module:
        """Not training."""
        return self.train(False)

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """The modules right inside, by name."""
        return ((name, part) for name, part in self._parts() if isinstance(part, Module))

    def children(self) -> Iterator[Module]:
        """The modules right inside."""
        return (child for _, child in self.named_children())

    def named_modules(self, prefix: str = "") -> Iterator[tuple[str, Module]]:
        """This module and all inside, by path."""
        yield prefix, self
        for name, child in self.named_children():
            yield from child.named_modules(f"{prefix}.{name}" if prefix else name)

    def modules(self) -> Iterator[Module]:
        """This module and all inside."""
        return (module for _, module in self.named_modules())

    def apply(self, function: Callable[[Module], Any]) -> Module:
        """Call a function with every module, those inside first."""
        for child in self.children():
            child.apply(function)
        function(self)
        return self

    def to(self, where: Any = None) -> Module:
        """The module itself: every rank computes on its CPU.

        Raises:
            OneFlowError: no device.
        """
        device(where)
        return self

    def cuda(self) -> Module:
        """The module itself."""
        return self

    cpu = cuda

    def requires_grad_(self, requires_grad: bool = True) -> Module:
        """Ask for gradients of all parameters, or for none."""
        for parameter in self.parameters():
            parameter.value.requires_grad = requires_grad
        return self

    def add_module(self, name: str, module: Module) -> None:
        """One more module inside."""
        setattr(self, name, module)

    def state_dict(self) -> dict[str, GlobalTensor]:
        """All parameters by path, as ``0.weight`` in a ``Sequential``."""
        return {path: p.data.detach() for path, p in self.named_parameters()}  # type: ignore[attr-defined]

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> None:
        """Take values by path: global tensors on any placement, which are moved to where the parameters live.

        Args:
            state_dict: as :meth:`state_dict` gives it.
            strict: whether the paths must be those of the parameters.

        Raises:
            RuntimeError: paths or shapes that do not fit, all of them named; nothing is loaded then.
        """
        own = dict(self.named_parameters())
        wrong = []
        for what, names in (
            ("Missing", [n for n in own if n not in state_dict]),
            ("Unexpected", [n for n in state_dict if n not in own]),
        ):
            if names and strict:
                wrong.append(f"{what} key(s) in state_dict: {', '.join(map(json.dumps, names))}")
        given = {name: value for name, value in state_dict.items() if name in own}
        for name, value in given.items():
            if not isinstance(value, GlobalTensor | Parameter):
                wrong.append(f"{name} is no global tensor but a {type(value).__name__}")
            elif tuple(value.shape) != tuple(own[name].shape):
                wrong.append(
                    f"size mismatch for {name}: copying a param with shape {Size(value.shape)} from checkpoint, the "
                    f"shape in current model is {Size(own[name].shape)}"
                )
        if wrong:
            raise OneFlowError(
                f"Error(s) in loading state_dict for {type(self).__name__}: {'; '.join(wrong)}"
            )
        taken = [(own[name], value.value, own[name].data) for name, value in given.items()]  # type: ignore[attr-defined]
        for parameter, value, _ in taken:
            parameter.assign(value)


class ModuleList(Numbered, Module):
    """A list of modules whose parameters are found."""


class Sequential(Numbered, CoreSequential, Module):
    """Modules one after the other."""


__all__ = ["Module", "ModuleList", "Parameter", "Sequential"]
