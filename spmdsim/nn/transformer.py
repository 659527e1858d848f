"""The transformer block and a small GPT, made of the other layers."""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import DTypeLike

from spmdsim.arrays import Tensor, ops
from spmdsim.arrays.sources import check_layout
from spmdsim.core import Layout
from spmdsim.core.notation.layouts import is_integer
from spmdsim.errors import LayoutError, many
from spmdsim.nn.attention import Attention
from spmdsim.nn.layers import MLP, Embedding, LayerNorm, Linear, remove_axis
from spmdsim.nn.module import Module, Normal, Parameter

__all__ = ["GPT", "TransformerBlock"]


class TransformerBlock(Module):
    """Transformer block: attention and MLP, each behind a layer norm and with a residual connection (pre-norm).

    If the stream is split along the sequence over ``axis``, all_reduces become reduce_scatters and all_gathers. This is
    sequence parallelism.

    Args:
        width: size of the last dimension of input and result, a multiple of `heads`.
        heads: number of heads, a multiple of the axis' size.
        hidden: hidden width of the MLP.
        stream: layout of input and result ``[batch, sequence, width]``.
        axis: the mesh axis that splits heads and hidden width (None: no tensor parallelism).
        causal: True if a position sees only itself and earlier positions.
        dtype: element type of the parameters.

    Raises:
        LayoutError: If the numbers do not divide each other, or the mesh lacks the axis.

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
        check_layout(stream)
        vector = stream.mesh(None)
        self.norm1 = LayerNorm(width, vector, dtype=dtype)
        self.attention = Attention(width, heads, stream, axis, causal=causal, dtype=dtype)
        self.norm2 = LayerNorm(width, vector, dtype=dtype)
        self.mlp = MLP(width, hidden, stream, axis, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Compute ``[batch, sequence, width] -> [batch, sequence, width]``."""
        x = ops.add(x, self.attention(self.norm1(x)))
        return ops.add(x, self.mlp(self.norm2(x)))


class GPT(Module):
    """Small GPT: embedding, blocks, norm, and logits over the vocabulary.

    Blocks have the hidden width ``4 * width``.

    Args:
        vocabulary: number of tokens.
        width: size of an embedding.
        heads: number of heads per block.
        blocks: number of blocks.
        length: longest sequence.
        stream: layout of ``[batch, sequence, width]``.
        axis: the mesh axis that splits heads, hidden width and vocabulary (None: no tensor parallelism).
        tied: True to use the embedding also as output projection.
        rows: what the embedding exchanges, ``"all"`` or ``"owned"``; see :class:`Embedding`.
        dtype: element type of the parameters.

    Raises:
        LayoutError: If ``blocks`` is no integer of 0 or more.

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
        check_layout(stream)
        mesh = stream.mesh
        if not is_integer(blocks) or blocks < 0:
            raise LayoutError(
                f"GPT: blocks must be an integer of 0 or more, got {blocks!r}; pass, for example, 2"
            )
        self.tokens = Embedding(vocabulary, width, mesh(axis, None), output=stream, rows=rows, dtype=dtype)
        positions = Layout(mesh, (stream.dims[1], None))
        self.positions = Parameter((length, width), positions, Normal(0.02), dtype)
        block = partial(TransformerBlock, width, heads, 4 * width, stream, axis, dtype=dtype)
        self.blocks = [block() for _ in range(blocks)]
        self.norm = LayerNorm(width, mesh(None), dtype=dtype)
        self.gathered = remove_axis(stream, axis)
        self.head = None if tied else Linear(width, vocabulary, mesh(None, axis), bias=False, dtype=dtype)

    def forward(self, ids: Tensor) -> Tensor:
        """Compute logits ``[batch, sequence, vocabulary]``, which stay split over the vocabulary.

        Token ``i`` of each sequence gets the ``i``-th position vector added to its embedding. Blocks and norm follow,
        then the head. A model without a head of its own (``tied``) multiplies by the transposed embedding table
        instead.

        Args:
            ids: numbers of tokens ``[batch, sequence]``. The sequence has at most ``length`` tokens (see the class).

        Raises:
            LayoutError: If a sequence has more tokens.
        """
        length = ids.shape[1]
        positions = self.positions.value
        if length > positions.shape[0]:
            raise LayoutError(
                f"GPT: ids must have at most {many(positions.shape[0], 'token')} per sequence, got shape {ids.shape}; pass "
                "shorter sequences, or create the model with a larger length"
            )
        if length < positions.shape[0]:
            positions = ops.slice_(positions, (0, 0), (length, positions.shape[1]))
        x = ops.add(self.tokens(ids), positions)
        for block in self.blocks:
            x = block(x)
        x = self.norm(x).to(self.gathered)
        if self.head is not None:
            return self.head.forward(x)
        return ops.matmul(x, self.tokens.table.value, transpose_b=True)

    def loss(self, ids: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross entropy of the logits for labels ``targets`` ``[batch, sequence]``."""
        return ops.cross_entropy(self(ids), targets)
