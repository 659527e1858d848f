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
from spmdsim.dialects.dialect_modules import DialectModule, Numbered, layer_row, with_zero_row
from spmdsim.dialects.functions import with_names
from spmdsim.dialects.missing import refuse
from spmdsim.dialects.oneflow.creation import seeds
from spmdsim.dialects.oneflow.operators import NETWORK_TABLE, TABLE, lift_function
from spmdsim.dialects.oneflow.placements import device, layout, sbp_of
from spmdsim.dialects.oneflow.placements import placement as Placement
from spmdsim.dialects.oneflow.printing import without_values
from spmdsim.dialects.oneflow.sbp import TO_GLOBAL, OneFlowError
from spmdsim.dialects.oneflow.tensors import (
    GlobalTensor,
    LocalTensor,
    Size,
    check_one_placement,
    update_value,
)
from spmdsim.dialects.session import current_world
from spmdsim.dialects.table import Row, add_in_place_operators, add_tensor_operators, layers


def _not_global(name: Any) -> OneFlowError:
    """Return the error for a parameter that is not global yet."""
    return OneFlowError(f"parameter {name} is not global yet; call to_global(placement, sbp) on the module")


class Parameter(ours.Parameter):
    """Trained tensor: ``Parameter(global_tensor)``, or a shape with an initialiser.

    It has the methods of a global tensor once it has values. OneFlowError (a RuntimeError): the data are a local
    tensor.
    """

    placement: Placement | None = None

    def __init__(
        self, data: Any, initialiser: Any = None, requires_grad: bool = True, *, dtype: Any = None
    ) -> None:
        if isinstance(data, LocalTensor):
            raise OneFlowError(
                "Parameter: data must be a global tensor here, got a local one; nearest: "
                "Parameter(x.to_global(placement, sbp))"
            )
        if isinstance(data, GlobalTensor):
            source = data.value.detach()
            super().__init__(source.shape, source.layout, dtype=source.dtype)
            self.tensor = Tensor.from_tensor(source, requires_grad)
            self.placement = data.placement
        else:
            nowhere = Layout.replicated(Mesh((1,), ("one",)), len(data))
            super().__init__(tuple(data), nowhere, initialiser, dtype or np.float32)
        self.shape = Size(self.shape)

    @property
    def data(self) -> GlobalTensor:
        """Values as a global tensor. Raises OneFlowError if the parameter is not global yet."""
        if self.tensor is None or self.placement is None:
            raise _not_global(self.name or tuple(self.shape))
        return GlobalTensor(self.tensor, self.placement)

    grad = property(lambda self: self.data.grad, doc="Gradient after ``backward()``, or None.")
    sbp = property(lambda self: sbp_of(self.layout), doc="Sbp tuple, one entry per axis of the placement.")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.data, name)

    def __repr__(self) -> str:
        if self.tensor is None:
            return without_values(self.shape, self.dtype, ["requires_grad=True"])
        return repr(self.data)

    def set_placement(self, placement: Placement, sbp: Any) -> None:
        """Lay the parameter out by a placement and an sbp, in place; all ranks must call it.

        A parameter without values gets its first values, which are equal for every placement. Other values are moved.

        Args:
            placement: device type, and ranks as a mesh.
            sbp: split, broadcast or partial_sum, per mesh axis of the placement; or their text.

        Raises:
            OneFlowError: If the sbp does not fit the placement or the parameter's dims.
        """
        where = layout(placement, sbp, len(self.shape))
        self.placement = placement
        if self.tensor is None:
            self.layout = where
            self.materialise(current_world(), seeds.first)
        elif where != self.layout:
            self.layout = where
            self.assign(self.tensor)

    def become(self, source: GlobalTensor) -> Parameter:
        """Take the values of ``source`` and return the parameter: the step of ``p -= rate * p.grad``.

        The parameter's type, layout and gradient stay. Raises OneFlowError if the parameter requires a gradient and
        operators are recorded: the caller must use ``with no_grad():``.
        """
        value, grad = update_value(self.value, source.value), self.value.grad
        self.assign(value)
        self.value.grad = grad
        return self


add_tensor_operators(Parameter, "data")
add_in_place_operators(Parameter)


class Module(DialectModule):
    """Module; its parameters take no memory until :meth:`to_global` sets their placement."""

    ORIGINAL = "oneflow.nn.Module"

    _hidden = ("approximate",)

    def __init__(self) -> None:
        """Do nothing: attributes that are parameters or modules are found without registration."""

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        """Run :meth:`forward` on global tensors.

        Raises:
            OneFlowError: If an input is local, or inputs and parameters are on different placements.
        """
        passed = (*inputs, *options.values())
        if any(isinstance(x, LocalTensor) for x in passed):
            kind = type(self).__name__
            raise OneFlowError(
                f"{kind}: inputs must be global tensors here, got a local one; nearest: {TO_GLOBAL}"
            )
        placements = [x.placement for x in passed if isinstance(x, GlobalTensor)]
        for path, parameter in vars(self).items():
            if isinstance(parameter, ours.Parameter):
                if parameter.tensor is None:
                    raise _not_global(path)
                where = getattr(parameter, "placement", None)
                check_one_placement(*placements[:1], where, about=f" (parameter {path})")
        return self.forward(*inputs, **options)

    def to_global(self, placement: Placement | None = None, sbp: Any = None) -> Module:
        """Set the placement of all parameters; return the module itself. All ranks must call it.

        Parameters without values get their first values, which are equal for every placement; others are moved.
        Parameters without a name are named by their path.

        Args:
            placement: device type, and ranks as a mesh.
            sbp: the sbp of every parameter.

        Raises:
            OneFlowError: If placement or sbp is missing (None), or does not fit a parameter.
        """
        if placement is None or sbp is None:
            raise OneFlowError("Converting a local module to global must have placement and sbp parameters.")
        for path, parameter in self.named_parameters():
            parameter.name = parameter.name or path
            parameter.set_placement(placement, sbp)  # type: ignore[attr-defined]
        return self

    def named_modules(self, prefix: str = "") -> Iterator[tuple[str, ours.Module]]:
        """Yield ``(path, module)`` for this module and all modules inside."""
        return self.inside(prefix)

    def modules(self) -> Iterator[ours.Module]:
        """Yield this module and all modules inside."""
        return (module for _, module in self.inside())

    def to(self, where: Any = None) -> Module:
        """Return the module itself: every rank computes on its CPU.

        Raises OneFlowError if ``where`` is no device.
        """
        device(where)
        return self

    def cuda(self) -> Module:
        """Return the module itself."""
        return self

    cpu = cuda

    def requires_grad_(self, requires_grad: bool = True) -> Module:
        """Ask for gradients of all parameters, or for none; return the module."""
        for parameter in self.parameters():
            parameter.value.requires_grad = requires_grad
        return self

    def add_module(self, name: str, module: Module) -> None:
        """Add a module under a name."""
        setattr(self, name, module)

    def state_dict(self) -> dict[str, GlobalTensor]:
        """Return all parameters by path, such as ``0.weight`` in a ``Sequential``."""
        return {path: p.data.detach() for path, p in self.named_parameters()}  # type: ignore[attr-defined]

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> None:
        """Set parameters to values by path; all ranks must call it.

        A path is a parameter's name in the module, such as ``"0.weight"`` for the weight of the first layer. Each value
        is converted to the parameter's dtype and moved to its placement. The parameter's gradient is dropped.
        Everything is checked before the first value is set, so an error leaves all parameters unchanged.

        Args:
            state_dict: global tensors or parameters by path, such as ``"0.weight"``.
            strict: True to refuse paths that only the module or only ``state_dict`` has; False to ignore them.

        Raises:
            OneFlowError: (a RuntimeError) If a value is no global tensor or has another shape, a parameter is not
                global yet, or with ``strict`` a path is missing or unexpected. The message names all wrong paths.

        >>> import spmdsim.dialects.oneflow as flow
        >>> where = {"placement": flow.placement("cpu", [0]), "sbp": flow.sbp.broadcast}
        >>> model = flow.nn.Linear(2, 1).to_global(**where)
        >>> model.load_state_dict({"weight": flow.ones(1, 2, dtype=flow.float64, **where)}, strict=False)
        >>> model.state_dict()["weight"].dtype, model.weight.numpy().tolist()
        (oneflow.float32, [[1.0, 1.0]])
        """
        parameters: dict[str, Any] = dict(self.named_parameters())
        values = {name: value for name, value in state_dict.items() if name in parameters}
        wrong: list[str] = []
        for what, names, others in (("Missing", parameters, values), ("Unexpected", state_dict, parameters)):
            absent_names = [json.dumps(name) for name in names if name not in others]
            if strict and absent_names:
                wrong.append(f"{what} key(s) in state_dict: {', '.join(absent_names)}")
        for name, value in values.items():
            if not isinstance(value, GlobalTensor | Parameter):
                wrong.append(f"{name} is no global tensor but a {type(value).__name__}")
            elif tuple(value.shape) != tuple(parameters[name].shape):
                wrong.append(
                    f"size mismatch for {name}: copying a param with shape {Size(value.shape)} from checkpoint, the "
                    f"shape in current model is {Size(parameters[name].shape)}"
                )
        error = f"Error(s) in loading state_dict for {type(self).__name__}: {'; '.join(wrong)}"
        refuse({error: bool(wrong)}, OneFlowError)
        # A parameter that is not global yet raises here, before the first value is set.
        _ = [parameters[name].data for name in values]
        new_values = [
            (parameters[name], core.cast(value.value, parameters[name].value.dtype))
            for name, value in values.items()
        ]
        for parameter, value in new_values:
            parameter.assign(value)


class ModuleList(Numbered, Module):
    """List of modules, whose parameters belong to the module around."""


class Sequential(Numbered, ours.Sequential, Module):
    """Module that applies modules one after the other."""


def _linear(
    in_features: int, out_features: int, bias: bool = True, device: Any = None, dtype: Any = None
) -> dict[str, Any]:
    """Linear layer, ``[..., in] -> [..., out]``: ``x @ weight.T + bias``.

    The weight is ``[out, in]``. First values of weight and bias are uniform within ``+-1 / sqrt(in)``.

    Args:
        in_features: size of the last dim of the input.
        out_features: size of the last dim of the result.
        bias: False for a layer without bias.
        device: not used: the interface has it.
        dtype: element type of the parameters; None for float32.

    Returns:
        The layer's attributes by name: ``in_features``, ``out_features``, ``biased`` (``bias`` as a bool), and the
        parameters ``weight`` and ``bias``. ``bias`` is None for a layer without bias.
    """
    bound = ours.Uniform(in_features**-0.5)
    weight = Parameter((out_features, in_features), bound, dtype=dtype)
    vector = Parameter((out_features,), bound, dtype=dtype) if bias else None
    return dict(
        in_features=in_features, out_features=out_features, biased=bool(bias), weight=weight, bias=vector
    )


def _embedding(
    num_embeddings: int, embedding_dim: int, padding_idx: int | None = None, *, dtype: Any = None
) -> dict[str, Any]:
    """Table whose rows are returned by index: ``[...] -> [..., embedding_dim]``.

    The result is partial if the rows are split. First values are normal with standard deviation 1.

    Args:
        num_embeddings: number of rows.
        embedding_dim: length of a row.
        padding_idx: index of a row that starts as zeros and gets no gradient; negative ones count from the end. None for
            no such row.
        dtype: element type of the table; None for float32.

    Returns:
        The layer's attributes by name: ``padding_idx`` (not negative, or None) and the parameter ``weight``.
    """
    padding = None if padding_idx is None else padding_idx % num_embeddings
    first = with_zero_row(ours.Normal(1.0), padding)
    return dict(padding_idx=padding, weight=Parameter((num_embeddings, embedding_dim), first, dtype=dtype))


def _layer_norm(
    normalized_shape: int | Sequence[int], eps: float = 1e-5, elementwise_affine: bool = True
) -> dict[str, Any]:
    """Normalisation over the last dims; with a scale and a shift unless ``elementwise_affine`` is False.

    Args:
        normalized_shape: sizes of the last dims; an int is one dim.
        eps: number added to the variance.
        elementwise_affine: True for a scale, at first ones, and a shift, at first zeros.

    Returns:
        The layer's attributes by name: ``normalized_shape`` (a tuple), ``eps``, ``elementwise_affine``, and the parameters
        ``weight`` (the scale) and ``bias`` (the shift), which are None without ``elementwise_affine``.
    """
    shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
    firsts = (ours.ones, ours.zeros) if elementwise_affine else ()
    weight, bias = [Parameter(shape, first) for first in firsts] or (None, None)
    affine = {"weight": weight, "bias": bias, "elementwise_affine": elementwise_affine}
    return {"normalized_shape": shape, "eps": eps, **affine}


def _dropout(p: float = 0.5) -> dict[str, Any]:
    """Zero a random share ``p`` of the elements in training.

    Every call draws other elements, equal in every layout. Raises InputError if p is not in [0, 1].
    """
    share = isinstance(p, (int, float)) and 0 <= p <= 1
    refuse({f"dropout probability has to be between 0 and 1, but got {p}": not share})
    return dict(p=p)


def _drop(x: Any, p: float, training: bool) -> Any:
    """Return ``x`` with a share ``p`` of its elements zeroed, or ``x`` itself outside of training."""
    if not training or not p:
        return x
    return core.multiply(x, 0) if p == 1 else core.dropout(x, rate=p, seed=seeds.next())


_OF_IDS, _OF_X = (
    with_names(NETWORK_TABLE, "embedding", ids="input"),
    with_names(NETWORK_TABLE, "layer_norm linear", x="input"),
)
#: Layers with parameters or state.
_ROWS = {
    "dropout": layer_row(Row(_drop), "Dropout", _dropout, "p={0.p}, inplace=False"),
    "embedding": layer_row(_OF_IDS["embedding"], "Embedding", _embedding, "{0.weight.shape[0]}, {0.weight.shape[1]}", "padding_idx"),
    "layer_norm": layer_row(_OF_X["layer_norm"], "LayerNorm", _layer_norm, "{0.normalized_shape}, eps={0.eps}, elementwise_affine={0.elementwise_affine}"),
    "linear": layer_row(_OF_X["linear"], "Linear", _linear, "in_features={0.in_features}, out_features={0.out_features}, bias={0.biased}"),
}  # fmt: skip
#: Layers and losses by their names, all from the tables.
LAYERS = layers({**TABLE, **NETWORK_TABLE, **_ROWS}, Module, lift_function)
