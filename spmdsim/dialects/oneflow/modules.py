"""``oneflow.nn``: modules and parameters, which take no memory until they are global."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

import spmdsim.nn as ours
from spmdsim.arrays import Tensor
from spmdsim.arrays import ops as core
from spmdsim.core import Layout, Mesh
from spmdsim.dialects.dialect_modules import DialectModule, Numbered, format_options, padded_row
from spmdsim.dialects.missing import refuse
from spmdsim.dialects.oneflow.creation import seeds
from spmdsim.dialects.oneflow.operators import NETWORK_TABLE, TABLE, lifted
from spmdsim.dialects.oneflow.placements import device, layout, sbp_of
from spmdsim.dialects.oneflow.placements import placement as Placement
from spmdsim.dialects.oneflow.printing import without_values
from spmdsim.dialects.oneflow.sbp import TO_GLOBAL, OneFlowError
from spmdsim.dialects.oneflow.tensors import GlobalTensor, LocalTensor, Size, becoming, check_one_placement
from spmdsim.dialects.session import current_world
from spmdsim.dialects.table import Row, as_its_tensor, in_place, layers, with_parameters


def _not_global(name: Any) -> OneFlowError:
    return OneFlowError(f"parameter {name} is not global yet; call to_global(placement, sbp) on the module")


class Parameter(ours.Parameter):
    """A trained tensor: ``Parameter(global_tensor)``, or a shape with first values to come.

    It has the words of a global tensor, which it is once it has values. A RuntimeError for a local tensor.
    """

    placement: Placement | None = None

    def __init__(
        self, data: Any, initialiser: Any = None, requires_grad: bool = True, *, dtype: Any = None
    ) -> None:
        if isinstance(data, LocalTensor):
            raise OneFlowError("a parameter is global here; nearest: Parameter(x.to_global(placement, sbp))")
        if isinstance(data, GlobalTensor):
            source = data.value.detach()
            super().__init__(source.shape, source.layout, dtype=source.dtype)
            self.tensor = Tensor(source.world, source.meta, source.held, requires_grad=requires_grad)
            self.placement = data.placement
        else:
            nowhere = Layout.replicated(Mesh((1,), ("one",)), len(data))
            super().__init__(tuple(data), nowhere, initialiser, dtype or np.float32)
        self.shape = Size(self.shape)

    @property
    def data(self) -> GlobalTensor:
        """Its values. RuntimeError: it is not global yet."""
        if self.tensor is None or self.placement is None:
            raise _not_global(self.name or tuple(self.shape))
        return GlobalTensor(self.tensor, self.placement)

    grad = property(lambda self: self.data.grad, doc="Its gradient after ``backward()``.")
    sbp = property(lambda self: sbp_of(self.layout), doc="One entry per axis of the placement.")

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
        where = layout(placement, sbp, len(self.shape))
        self.placement = placement
        if self.tensor is None:
            self.layout = where
            self.materialise(current_world(), seeds.first)
        elif where != self.layout:
            self.layout = where
            self.assign(self.tensor)

    def become(self, other: GlobalTensor) -> Parameter:
        """Other values from now on, without a gradient of them: ``with no_grad(): p -= rate * p.grad``, and nowhere else."""
        value, grad = becoming(self.value, other.value), self.value.grad
        self.assign(value)
        self.value.grad = grad
        return self


as_its_tensor(Parameter, "data")
in_place(Parameter)


class Module(DialectModule):
    """A module. Its parameters take no memory until :meth:`to_global` says where they live."""

    ORIGINAL = "oneflow.nn.Module"

    _hidden = ("approximate",)

    def __init__(self) -> None:
        """Nothing to do: attributes that are parameters or modules are found."""

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        """Run :meth:`forward` on global tensors of one placement, which is that of the parameters; else a RuntimeError."""
        passed = (*inputs, *options.values())
        if any(isinstance(x, LocalTensor) for x in passed):
            kind = type(self).__name__
            raise OneFlowError(f"{kind} computes on global tensors here; nearest: {TO_GLOBAL}")
        placements = [x.placement for x in passed if isinstance(x, GlobalTensor)]
        for path, parameter in vars(self).items():
            if isinstance(parameter, ours.Parameter):
                if parameter.tensor is None:
                    raise _not_global(path)
                where = getattr(parameter, "placement", None)
                check_one_placement(*placements[:1], where, about=f" (parameter {path})")
        return self.forward(*inputs, **options)

    def to_global(self, placement: Placement | None = None, sbp: Any = None) -> Module:
        """Lay all parameters out; the same global values on any placement, and trained ones are moved."""
        if placement is None or sbp is None:
            raise OneFlowError("Converting a local module to global must have placement and sbp parameters.")
        for path, parameter in self.named_parameters():
            parameter.name = parameter.name or path
            parameter.live(placement, sbp)  # type: ignore[attr-defined]
        return self

    def named_modules(self, prefix: str = "") -> Iterator[tuple[str, ours.Module]]:
        """This module and all inside, by path."""
        return self.inside(prefix)

    def modules(self) -> Iterator[ours.Module]:
        """This module and all inside."""
        return (module for _, module in self.inside())

    def to(self, where: Any = None) -> Module:
        """The module itself: every rank computes on its CPU."""
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

        Shapes that do not fit, and if ``strict`` paths, are a RuntimeError that names them all; nothing is loaded then.
        """
        own: dict[str, Any] = dict(self.named_parameters())
        values = {name: value for name, value in state_dict.items() if name in own}
        wrong = [
            f"{what} key(s) in state_dict: {', '.join(json.dumps(name) for name in names if name not in others)}"
            for what, names, others in (("Missing", own, values), ("Unexpected", state_dict, own))
            if strict and not names.keys() <= others.keys()
        ]
        for name, value in values.items():
            if not isinstance(value, GlobalTensor | Parameter):
                wrong.append(f"{name} is no global tensor but a {type(value).__name__}")
            elif tuple(value.shape) != tuple(own[name].shape):
                wrong.append(
                    f"size mismatch for {name}: copying a param with shape {Size(value.shape)} from checkpoint, the "
                    f"shape in current model is {Size(own[name].shape)}"
                )
        error = f"Error(s) in loading state_dict for {type(self).__name__}: {'; '.join(wrong)}"
        refuse({error: bool(wrong)}, OneFlowError)
        taken = [(own[name], value.value, own[name].data) for name, value in values.items()]
        for parameter, value, _ in taken:
            parameter.assign(value)


class ModuleList(Numbered, Module):
    """A list of modules whose parameters are found."""


class Sequential(Numbered, ours.Sequential, Module):
    """Modules one after the other."""


def _linear(
    in_features: int, out_features: int, bias: bool = True, device: Any = None, dtype: Any = None
) -> dict[str, Any]:
    """``[..., in] -> [..., out]``, ``x @ weight.T + bias`` with a weight ``[out, in]``; a device is accepted and ignored."""
    bound = ours.Uniform(in_features**-0.5)
    weight = Parameter((out_features, in_features), bound, dtype=dtype)
    vector = Parameter((out_features,), bound, dtype=dtype) if bias else None
    return dict(
        in_features=in_features, out_features=out_features, biased=bool(bias), weight=weight, bias=vector
    )


def _embedding(
    num_embeddings: int, embedding_dim: int, padding_idx: int | None = None, *, dtype: Any = None
) -> dict[str, Any]:
    """``[...] -> [..., embedding_dim]``, rows of a table by number, pending where the rows are split; the padding's begins as zeros and stays."""
    padding = None if padding_idx is None else padding_idx % num_embeddings
    first = padded_row(ours.Normal(1.0), padding)
    return dict(padding_idx=padding, weight=Parameter((num_embeddings, embedding_dim), first, dtype=dtype))


def _layer_norm(
    normalized_shape: int | Sequence[int], eps: float = 1e-5, elementwise_affine: bool = True
) -> dict[str, Any]:
    """Normalised over the last dims; scaled and shifted, unless not ``elementwise_affine``."""
    shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
    firsts = (ours.ones, ours.zeros) if elementwise_affine else ()
    weight, bias = [Parameter(shape, first) for first in firsts] or (None, None)
    affine = {"weight": weight, "bias": bias, "elementwise_affine": elementwise_affine}
    return {"normalized_shape": shape, "eps": eps, **affine}


def _dropout(p: float = 0.5) -> dict[str, Any]:
    """Drops a share of the elements while training, others at every call, the same in every layout."""
    share = isinstance(p, (int, float)) and 0 <= p <= 1
    refuse({f"dropout probability has to be between 0 and 1, but got {p}": not share})
    return dict(p=p)


def _dropped(x: Any, p: float, training: bool) -> Any:
    if not training or not p:
        return x
    return core.multiply(x, 0) if p == 1 else core.dropout(x, rate=p, seed=seeds.next())


def _of(name: str, operand: str, layer: str, keeps: Any, says: str, *optional: str) -> Row:
    """The row of a layer with parameters, from that of the function, whose operand it calls so."""
    call = with_parameters(NETWORK_TABLE[name].call, {operand: "input"})
    return Row(call, layer, keeps=keeps, says=format_options(says, *optional))


#: Layers that are no function with options alone.
_ROWS = {
    "dropout": Row(_dropped, "Dropout", keeps=_dropout, says=format_options("p={0.p}, inplace=False")),
    "embedding": _of("embedding", "ids", "Embedding", _embedding, "{0.weight.shape[0]}, {0.weight.shape[1]}", "padding_idx"),
    "layer_norm": _of("layer_norm", "x", "LayerNorm", _layer_norm, "{0.normalized_shape}, eps={0.eps}, elementwise_affine={0.elementwise_affine}"),
    "linear": _of("linear", "x", "Linear", _linear, "in_features={0.in_features}, out_features={0.out_features}, bias={0.biased}"),
}  # fmt: skip
#: Layers and losses by their names, all from the tables.
LAYERS = layers({**TABLE, **NETWORK_TABLE, **_ROWS}, Module, lifted)
