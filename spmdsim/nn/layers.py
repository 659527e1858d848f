"""Layers. They contain no communication: it follows from the layouts of parameters and inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import DTypeLike

from spmdsim.arrays import Tensor, ops
from spmdsim.arrays.sources import check_layout
from spmdsim.core import Layout
from spmdsim.nn.module import Initialiser, Module, Normal, Parameter, ones, zeros

__all__ = ["MLP", "Embedding", "LayerNorm", "Linear", "RMSNorm", "SwiGLU"]


class Linear(Module):
    """Linear layer ``x @ weight + bias``.

    Args:
        n_in: size of the last dimension of the input.
        n_out: size of the last dimension of the result.
        weight: layout of ``[n_in, n_out]``. Split columns make it column-parallel, split rows row-parallel, and both
            give 2-D and 3-D parallelism.
        bias: layout of the bias ``[n_out]``; True: split like the weight's columns; False: no bias.
        input: layout to which the input is moved first; None: it stays as it is.
        output: layout to which the product is moved before the bias is added; None: it stays as it is.
        initialiser: initial weights; default :class:`Normal` with variance 1 / n_in. The bias is 0.
        dtype: element type of the parameters.

    >>> from spmdsim import Mesh, nn
    >>> mesh = Mesh((2,), ("tp",))
    >>> [(name, p.shape) for name, p in nn.Linear(6, 4, mesh("tp", None)).named_parameters()]
    [('weight', (6, 4)), ('bias', (4,))]
    """

    def __init__(
        self,
        n_in: int,
        n_out: int,
        weight: Layout,
        bias: Layout | bool = True,
        *,
        input: Layout | None = None,
        output: Layout | None = None,
        initialiser: Initialiser | None = None,
        dtype: DTypeLike = np.float32,
    ) -> None:
        self.weight = Parameter((n_in, n_out), weight, initialiser, dtype)
        self.bias: Parameter | None = None
        if bias is not False:
            layout = bias if isinstance(bias, Layout) else Layout(weight.mesh, (weight.dims[1],))
            self.bias = Parameter((n_out,), layout, zeros, dtype)
        self.input, self.output = input, output

    def forward(self, x: Tensor) -> Tensor:
        """Return ``x @ weight + bias``: ``[..., n_in] -> [..., n_out]``.

        ``x`` is moved to the layout :attr:`input` first, and the product is moved to :attr:`output` before the bias is
        added. A layout that is None moves nothing. If the product then has a pending reduction, it runs before the
        bias is added, so the result has none; without a bias it stays pending.

        Raises:
            RuleError: If the last dimension of ``x`` is not n_in.
            WorldError: If the weight has no values yet.
        """
        if self.input is not None:
            x = x.to(self.input)
        y = ops.matmul(x, self.weight.value)
        if self.output is not None:
            y = y.to(self.output)
        if self.bias is None:
            return y
        return ops.add(y.to(y.layout.reduced), self.bias.value)


class Embedding(Module):
    """Table whose rows are looked up by id.

    Args:
        count: number of rows.
        width: size of a row.
        table: layout of ``[count, width]``. Split rows make it vocabulary-parallel, split columns column-parallel.
        output: layout to which the result is moved; None: it stays as it is.
        rows: ``"owned"`` exchanges only the rows that are looked up; ``"all"`` adds up rows of zeros of the ranks that do
            not own a row. See :func:`spmdsim.ops.embedding`.
        padding: an id whose row is zero and gets no gradient; None: no such id.
        initialiser: initial table; default ``Normal(0.02)``.
        dtype: element type of the table.

    >>> from spmdsim import Mesh, nn
    >>> mesh = Mesh((2,), ("tp",))
    >>> [(name, p.shape) for name, p in nn.Embedding(10, 4, mesh("tp", None)).named_parameters()]
    [('table', (10, 4))]
    """

    def __init__(
        self,
        count: int,
        width: int,
        table: Layout,
        *,
        output: Layout | None = None,
        rows: str = "all",
        padding: int | None = None,
        initialiser: Initialiser | None = None,
        dtype: DTypeLike = np.float32,
    ) -> None:
        self.table = Parameter((count, width), table, initialiser or Normal(0.02), dtype)
        self.output, self.rows, self.padding = output, rows, padding

    def forward(self, ids: Tensor) -> Tensor:
        """Return the rows of ``ids``: ``[...] -> [..., width]``."""
        return ops.embedding(ids, self.table.value, self.output, rows=self.rows, padding=self.padding)


class LayerNorm(Module):
    """Layer that normalises the last dimensions to mean 0 and variance 1, then scales and shifts them.

    Args:
        width: size of the last dimension, or sizes of several last dimensions that are normalised jointly.
        layout: layout of scale and shift, ``[width]`` or ``[*width]``.
        epsilon: added to the variance.
        dtype: element type of scale (initially 1) and shift (initially 0).

    Raises:
        LayoutError: If the layout is for another number of dimensions.

    >>> from spmdsim import Mesh, nn
    >>> mesh = Mesh((2,), ("tp",))
    >>> [(name, p.shape) for name, p in nn.LayerNorm(4, mesh(None)).named_parameters()]
    [('scale', (4,)), ('shift', (4,))]
    """

    def __init__(
        self,
        width: int | Sequence[int],
        layout: Layout,
        epsilon: float = 1e-5,
        dtype: DTypeLike = np.float32,
    ) -> None:
        shape = tuple(width) if isinstance(width, Sequence) else (width,)
        self.scale, self.shift = (Parameter(shape, layout, first, dtype) for first in (ones, zeros))
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        """Compute ``[..., width] -> [..., width]``."""
        scale = self.scale.value
        return ops.layer_norm(x, scale, self.shift.value, self.epsilon, begin=-scale.ndim)


class RMSNorm(Module):
    """Layer that divides rows by their root mean square, then scales them (Zhang and Sennrich, 2019).

    Args:
        width: size of the last dimension.
        layout: layout of the scale, ``[width]``.
        epsilon: added to the mean square.
        dtype: element type of the scale, which is initially 1.

    >>> from spmdsim import Mesh, nn
    >>> mesh = Mesh((2,), ("tp",))
    >>> [(name, p.shape) for name, p in nn.RMSNorm(4, mesh(None)).named_parameters()]
    [('scale', (4,))]
    """

    def __init__(
        self, width: int, layout: Layout, epsilon: float = 1e-6, dtype: DTypeLike = np.float32
    ) -> None:
        self.scale = Parameter((width,), layout, ones, dtype)
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        """Compute ``[..., width] -> [..., width]``."""
        return ops.rms_norm(x, self.scale.value, self.epsilon)


class MLP(Module):
    """Column-parallel layer, function and row-parallel layer; one reduction forward, one backward.

    Args:
        width: size of the last dimension of input and result.
        hidden: size of the last dimension between the layers.
        stream: layout of the input and the result, ``[batch, sequence, width]`` or ``[batch, width]``. Split
            along the sequence over the tensor axis it gives sequence parallelism.
        axis: the mesh axis that splits the hidden width (None: no tensor parallelism).
        function: applied between the layers.
        dtype: element type of the parameters.

    >>> from spmdsim import Mesh, nn
    >>> mesh = Mesh((2,), ("tp",))
    >>> [(name, p.shape) for name, p in nn.MLP(4, 8, mesh(None, None), "tp").named_parameters()]
    [('up.weight', (4, 8)), ('up.bias', (8,)), ('down.weight', (8, 4)), ('down.bias', (4,))]
    """

    def __init__(
        self,
        width: int,
        hidden: int,
        stream: Layout,
        axis: str | None,
        *,
        function: Callable[[Tensor], Tensor] = ops.gelu,
        dtype: DTypeLike = np.float32,
    ) -> None:
        check_layout(stream)
        mesh = stream.mesh
        self.up = Linear(width, hidden, mesh(None, axis), input=remove_axis(stream, axis), dtype=dtype)
        self.down = Linear(hidden, width, mesh(axis, None), bias=mesh(None), output=stream, dtype=dtype)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        """Compute ``[..., width] -> [..., width]``."""
        return self.down.forward(self.function(self.up.forward(x)))


class SwiGLU(Module):
    """Gated MLP ``(silu(x @ gate) * (x @ up)) @ down`` without biases (Shazeer, 2020).

    `gate` and `up` are column-parallel, `down` is row-parallel: one reduction forward and one backward, as in :class:`MLP`.

    Args:
        width: size of the last dimension of input and result.
        hidden: size of the last dimension of the gate and of its factor.
        stream: layout of the input and the result, ``[batch, sequence, width]`` or ``[batch, width]``. Split
            along the sequence over the tensor axis it gives sequence parallelism.
        axis: the mesh axis that splits the hidden width (None: no tensor parallelism).
        dtype: element type of the parameters.

    >>> from spmdsim import Mesh, nn
    >>> mesh = Mesh((2,), ("tp",))
    >>> [(name, p.shape) for name, p in nn.SwiGLU(4, 8, mesh(None, None), "tp").named_parameters()]
    [('gate.weight', (4, 8)), ('up.weight', (4, 8)), ('down.weight', (8, 4))]
    """

    def __init__(
        self, width: int, hidden: int, stream: Layout, axis: str | None, *, dtype: DTypeLike = np.float32
    ) -> None:
        check_layout(stream)
        mesh, self.gathered = stream.mesh, remove_axis(stream, axis)
        self.gate = Linear(width, hidden, mesh(None, axis), bias=False, dtype=dtype)
        self.up = Linear(width, hidden, mesh(None, axis), bias=False, dtype=dtype)
        self.down = Linear(hidden, width, mesh(axis, None), bias=False, output=stream, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Compute ``[..., width] -> [..., width]``."""
        x = x.to(self.gathered)
        return self.down(ops.multiply(ops.silu(self.gate(x)), self.up(x)))


def remove_axis(layout: Layout, axis: str | None) -> Layout:
    """Return the layout in which ``axis`` splits no dimension; pending reductions are dropped."""
    return Layout(layout.mesh, [tuple(a for a in entry if a != axis) for entry in layout.dims])
