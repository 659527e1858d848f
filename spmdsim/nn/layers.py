"""Layers. None of them communicates: what they do in parallel follows from the layouts they are given."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import DTypeLike

from spmdsim.arrays import Tensor, ops
from spmdsim.core import Layout
from spmdsim.nn.module import Initialiser, Module, Normal, Parameter, ones, zeros

__all__ = ["MLP", "Embedding", "LayerNorm", "Linear", "RMSNorm", "SwiGLU"]


class Linear(Module):
    """``x @ weight + bias``.

    Args:
        weight: layout of ``[n_in, n_out]``. Columns split: column-parallel; rows split: row-parallel; both:
            2-D and 3-D.
        bias: layout of the bias; that of the weight's columns if left out, no bias if False.
        input: layout the input is brought into first.
        output: layout the result is brought into.

    >>> from spmdsim import Mesh, nn
    >>> mesh = Mesh((2,), ("tp",))
    >>> [(name, one.shape) for name, one in nn.Linear(6, 4, mesh("tp", None)).named_parameters()]
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
        """``[..., n_in] -> [..., n_out]``."""
        if self.input is not None:
            x = x.to(self.input)
        y = ops.matmul(x, self.weight.value)
        if self.output is not None:
            y = y.to(self.output)
        if self.bias is None:
            return y
        return ops.add(y.to(y.layout.reduced), self.bias.value)


class Embedding(Module):
    """Rows of a table by id.

    Args:
        table: layout of ``[count, width]``: rows split is vocabulary-parallel, columns column-parallel.
        output: layout the result is brought into.
        rows: ``"owned"`` exchanges only the rows that ids name, instead of adding zeros up; see
            :func:`spmdsim.ops.embedding`.
        padding: an id that stands for no row.

    >>> from spmdsim import Mesh, nn
    >>> mesh = Mesh((2,), ("tp",))
    >>> [(name, one.shape) for name, one in nn.Embedding(10, 4, mesh("tp", None)).named_parameters()]
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
        """``[...] -> [..., width]``."""
        return ops.embedding(ids, self.table.value, self.output, rows=self.rows, padding=self.padding)


class LayerNorm(Module):
    """Mean 0 and variance 1 over the last dim, or several, then scaled and shifted.

    Args:
        width: size of the last dim, or of as many as are normalised together.
        layout: that of scale and shift, ``[width]`` or ``[*width]``.

    Raises:
        LayoutError: a layout for another number of dims.

    >>> from spmdsim import Mesh, nn
    >>> mesh = Mesh((2,), ("tp",))
    >>> [(name, one.shape) for name, one in nn.LayerNorm(4, mesh(None)).named_parameters()]
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
        """``[..., width] -> [..., width]``."""
        scale = self.scale.value
        return ops.layer_norm(x, scale, self.shift.value, self.epsilon, begin=-scale.ndim)


class RMSNorm(Module):
    """Rows divided by their root mean square, then scaled (Zhang and Sennrich, 2019).

    Args:
        width: size of the last dim.
        layout: layout of the scale, ``[width]``.
        epsilon: added to the mean square.

    >>> from spmdsim import Mesh, nn
    >>> mesh = Mesh((2,), ("tp",))
    >>> [(name, one.shape) for name, one in nn.RMSNorm(4, mesh(None)).named_parameters()]
    [('scale', (4,))]
    """

    def __init__(
        self, width: int, layout: Layout, epsilon: float = 1e-6, dtype: DTypeLike = np.float32
    ) -> None:
        self.scale = Parameter((width,), layout, ones, dtype)
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        """``[..., width] -> [..., width]``."""
        return ops.rms_norm(x, self.scale.value, self.epsilon)


class MLP(Module):
    """Column-parallel, a function, row-parallel: one reduction forward, one backward.

    Args:
        stream: layout of the input and the result, ``[batch, sequence, width]`` or ``[batch, width]``. Split
            along the sequence over the tensor axis it gives sequence parallelism.
        axis: the mesh axis that splits the hidden width (None: no tensor parallelism).

    >>> from spmdsim import Mesh, nn
    >>> mesh = Mesh((2,), ("tp",))
    >>> [(name, one.shape) for name, one in nn.MLP(4, 8, mesh(None, None), "tp").named_parameters()]
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
        mesh = stream.mesh
        self.up = Linear(width, hidden, mesh(None, axis), input=without(stream, axis), dtype=dtype)
        self.down = Linear(hidden, width, mesh(axis, None), bias=mesh(None), output=stream, dtype=dtype)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        """``[..., width] -> [..., width]``."""
        return self.down.forward(self.function(self.up.forward(x)))


class SwiGLU(Module):
    """``silu(x @ gate) * (x @ up) @ down`` (Shazeer, 2020): column-parallel twice, then row-parallel, without biases.

    One reduction forward and one backward, like :class:`MLP`.

    Args:
        hidden: width of the gate and of what it multiplies.
        stream: layout of the input and the result, ``[batch, sequence, width]`` or ``[batch, width]``. Split
            along the sequence over the tensor axis it gives sequence parallelism.
        axis: the mesh axis that splits the hidden width (None: no tensor parallelism).

    >>> from spmdsim import Mesh, nn
    >>> mesh = Mesh((2,), ("tp",))
    >>> [(name, one.shape) for name, one in nn.SwiGLU(4, 8, mesh(None, None), "tp").named_parameters()]
    [('gate.weight', (4, 8)), ('up.weight', (4, 8)), ('down.weight', (8, 4))]
    """

    def __init__(
        self, width: int, hidden: int, stream: Layout, axis: str | None, *, dtype: DTypeLike = np.float32
    ) -> None:
        mesh, self.gathered = stream.mesh, without(stream, axis)
        self.gate = Linear(width, hidden, mesh(None, axis), bias=False, dtype=dtype)
        self.up = Linear(width, hidden, mesh(None, axis), bias=False, dtype=dtype)
        self.down = Linear(hidden, width, mesh(axis, None), bias=False, output=stream, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        """``[..., width] -> [..., width]``."""
        x = x.to(self.gathered)
        return self.down(ops.multiply(ops.silu(self.gate(x)), self.up(x)))


def without(layout: Layout, axis: str | None) -> Layout:
    """The layout with an axis no longer splitting anything."""
    return Layout(layout.mesh, [tuple(a for a in entry if a != axis) for entry in layout.dims])
