"""Layers. None of them communicates: what they do in parallel follows from the layouts they are given."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from numpy.typing import DTypeLike

import spmdsim.ops as ops
from spmdsim.core import Layout
from spmdsim.errors import LayoutError, many
from spmdsim.nn.module import Initialiser, Module, Normal, Parameter, ones, zeros
from spmdsim.tensor import Tensor
from spmdsim.tensor.sources import Described

__all__ = ["GPT", "MLP", "Attention", "Embedding", "LayerNorm", "Linear", "TransformerBlock"]


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


def without(layout: Layout, axis: str | None) -> Layout:
    """The layout with an axis no longer splitting anything."""
    return Layout(layout.mesh, [tuple(a for a in entry if a != axis) for entry in layout.dims])


class Attention(Module):
    """Multi-head self-attention with the heads split over an axis: no communication between the projections.

    Args:
        heads: the axis' size must divide it.
        stream: layout of input and result ``[batch, sequence, width]``.
        axis: the mesh axis that splits the heads.
        causal: whether a position sees only itself and earlier ones.

    Raises:
        LayoutError: heads that do not divide.

    >>> from spmdsim import Mesh, nn
    >>> mesh = Mesh((2,), ("tp",))
    >>> len(list(nn.Attention(4, 2, mesh(None, None, None), "tp").named_parameters()))
    8
    """

    def __init__(
        self,
        width: int,
        heads: int,
        stream: Layout,
        axis: str | None,
        *,
        causal: bool = True,
        dtype: DTypeLike = np.float32,
    ) -> None:
        parts = stream.mesh.axis_size(axis) if axis else 1
        if width % heads or heads % parts:
            raise LayoutError(
                f"attention of width {width} with {many(heads, 'head')} over {many(parts, 'rank')}: heads must divide the width "
                "and the ranks the heads"
            )
        mesh, gathered = stream.mesh, without(stream, axis)
        column = partial(Linear, width, width, mesh(None, axis), input=gathered, dtype=dtype)
        self.q, self.k, self.v = column(), column(), column()
        self.out = Linear(width, width, mesh(axis, None), bias=mesh(None), output=stream, dtype=dtype)
        self.gathered = gathered
        self.heads, self.causal = heads, causal

    def forward(self, x: Tensor) -> Tensor:
        """``[batch, sequence, width] -> [batch, sequence, width]``."""
        x = x.to(self.gathered)
        batch, length, width = x.shape
        q, k, v = (self._split(layer(x)) for layer in (self.q, self.k, self.v))
        scores = ops.einsum("bthd,bshd->bhts", q, k)
        scores = ops.multiply(scores, (width // self.heads) ** -0.5)
        if self.causal:
            scores = ops.where(causal_mask(length, x), scores, -math.inf)
        mixed = ops.einsum("bhts,bshd->bthd", ops.softmax(scores), v)
        return self.out.forward(ops.reshape(mixed, (batch, length, width)))

    def _split(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        return ops.reshape(x, (batch, length, self.heads, width // self.heads))


def causal_mask(length: int, like: Tensor) -> Tensor:
    """``[length, length]``, true where the column is not later than the row."""
    words, layout = f"the causal mask of {many(length, 'position')}", like.layout.mesh(None, None)
    mask = Described(lambda index: np.tri(length, dtype=bool)[index], words)
    return Tensor.from_global(mask, layout, like.world, shape=(length, length), dtype=bool)


class TransformerBlock(Module):
    """Attention and MLP, each after a layer norm and beside the stream (pre-norm).

    With a stream that is split along the sequence over ``axis`` the reductions become reduce_scatters and
    the copies all_gathers: sequence parallelism, by layout alone.

    Args:
        heads: the axis' size must divide it, and it the width.
        stream: layout of input and result ``[batch, sequence, width]``.
        axis: the mesh axis that splits heads and hidden width (None: no tensor parallelism).
        causal: whether a position sees only itself and earlier ones.

    Raises:
        LayoutError: heads that do not divide, or an axis that the mesh does not have.

    >>> from spmdsim import Mesh, nn
    >>> mesh = Mesh((2,), ("tp",))
    >>> len(list(nn.TransformerBlock(4, 2, 8, mesh(None, None, None), "tp").named_parameters()))
    16
    """

    def __init__(
        self,
        width: int,
        heads: int,
        hidden: int,
        stream: Layout,
        axis: str | None,
        *,
        causal: bool = True,
        dtype: DTypeLike = np.float32,
    ) -> None:
        vector = stream.mesh(None)
        self.norm1 = LayerNorm(width, vector, dtype=dtype)
        self.attention = Attention(width, heads, stream, axis, causal=causal, dtype=dtype)
        self.norm2 = LayerNorm(width, vector, dtype=dtype)
        self.mlp = MLP(width, hidden, stream, axis, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        """``[batch, sequence, width] -> [batch, sequence, width]``."""
        x = ops.add(x, self.attention(self.norm1(x)))
        return ops.add(x, self.mlp(self.norm2(x)))


class GPT(Module):
    """A small GPT: embedding, blocks, norm, and logits over the vocabulary.

    Args:
        length: longest sequence.
        stream: layout of ``[batch, sequence, width]``.
        axis: the tensor-parallel axis; splits heads, hidden width and vocabulary.
        tied: use the embedding as the output projection, too.
        rows: what the embedding exchanges, ``"all"`` or ``"owned"``.

    >>> from spmdsim import Mesh, nn
    >>> mesh = Mesh((2,), ("tp",))
    >>> len(list(nn.GPT(16, 4, 2, 1, 8, mesh(None, None, None), "tp").named_parameters()))
    21
    """

    def __init__(
        self,
        vocabulary: int,
        width: int,
        heads: int,
        blocks: int,
        length: int,
        stream: Layout,
        axis: str | None,
        *,
        tied: bool = False,
        rows: str = "all",
        dtype: DTypeLike = np.float32,
    ) -> None:
        mesh = stream.mesh
        self.tokens = Embedding(vocabulary, width, mesh(axis, None), output=stream, rows=rows, dtype=dtype)
        positions = Layout(mesh, (stream.dims[1], None))
        self.positions = Parameter((length, width), positions, Normal(0.02), dtype)
        block = partial(TransformerBlock, width, heads, 4 * width, stream, axis, dtype=dtype)
        self.blocks = [block() for _ in range(blocks)]
        self.norm = LayerNorm(width, mesh(None), dtype=dtype)
        self.gathered = without(stream, axis)
        self.head = None if tied else Linear(width, vocabulary, mesh(None, axis), bias=False, dtype=dtype)

    def forward(self, ids: Tensor) -> Tensor:
        """``[batch, sequence] -> [batch, sequence, vocabulary]``; the logits stay split over the vocabulary."""
        length = ids.shape[1]
        positions = self.positions.value
        if length != positions.shape[0]:
            positions = ops.slice_(positions, (0, 0), (length, positions.shape[1]))
        x = ops.add(self.tokens(ids), positions)
        for block in self.blocks:
            x = block(x)
        x = self.norm(x).to(self.gathered)
        if self.head is not None:
            return self.head.forward(x)
        return ops.matmul(x, self.tokens.table.value, transpose_b=True)

    def loss(self, ids: Tensor, targets: Tensor) -> Tensor:
        """Mean cross entropy of the next tokens."""
        return ops.cross_entropy(self(ids), targets)
