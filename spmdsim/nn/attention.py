"""Self-attention with grouped heads of keys and values, and rotary positions. The layouts decide what communicates."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
from numpy.typing import DTypeLike

from spmdsim.arrays import Tensor, ops
from spmdsim.arrays.sources import check_layout
from spmdsim.core import Layout
from spmdsim.core.notation.layouts import as_integers
from spmdsim.errors import LayoutError, many
from spmdsim.layout.element_type import accumulator
from spmdsim.nn.layers import Linear, remove_axis
from spmdsim.nn.module import Module
from spmdsim.worlds.convert_operands import Described

__all__ = ["Attention", "RotaryEmbedding"]


class RotaryEmbedding(Module):
    """Rotation of number pairs of each head by angles that grow with the position (Su et al., 2021).

    Pair ``i`` of position ``p`` is rotated by ``p * base ** (-2 i / size)``. Angles are computed in float64, sines and
    cosines applied in float32, or in float64 to numbers of that type.

    Args:
        size: the width of a head, an even number.
        base: the base of the angles. Llama 3 uses 500,000.
        interleaved: True if a pair is two neighbours (0 and 1, 2 and 3), as in RoFormer and GPT-J. False if its numbers are
            half a head apart (0 and ``size / 2``), as in GPT-NeoX and in Llama of Hugging Face.

    Raises:
        LayoutError: If the size is odd, the base is not positive, or the last dimension of the numbers has another size.

    >>> from spmdsim import LockStep, Mesh, Tensor, nn
    >>> x = Tensor.ones((1, 2, 1, 2), layout=Mesh((2,), ("tp",))(None, "tp", None, None), world=LockStep(2))
    >>> nn.RotaryEmbedding(2)(x).full().round(4).tolist()  # the second position by one radian
    [[[[1.0, 1.0]], [[-0.3012, 1.3818]]]]
    """

    def __init__(self, size: int, base: float = 10_000.0, *, interleaved: bool = False) -> None:
        if not isinstance(size, int) or size < 2 or size % 2:
            raise LayoutError(f"RotaryEmbedding: size must be an even number of 2 or more, got {size!r}")
        if not isinstance(base, (int, float)) or not base > 0:
            raise LayoutError(
                f"RotaryEmbedding: base must be a positive number, got {base!r}; pass, for example, 10_000.0"
            )
        self.size, self.base, self.interleaved = size, base, interleaved

    def forward(self, x: Tensor, start: int = 0) -> Tensor:
        """Return queries or keys with each head's numbers rotated by the angles of their position.

        The result has the shape, layout and dtype of ``x``. No communication is needed if the batch, the sequence or the heads
        are split.

        Args:
            x: queries or keys, ``[batch, sequence, heads, size]``.
            start: the position of the first entry of the sequence. If a cache has 10 tokens, the next one has position 10.

        Raises:
            LayoutError: If ``x`` does not have four dimensions, or its last dimension is not :attr:`size`.
        """
        if x.ndim != 4 or x.shape[-1] != self.size:
            raise LayoutError(
                f"RotaryEmbedding: x must have shape [batch, sequence, heads, {self.size}], got {x.shape}; pass "
                f"queries or keys of heads of size {self.size}"
            )
        half = self.size // 2
        first, second = (x[..., 0::2], x[..., 1::2]) if self.interleaved else (x[..., :half], x[..., half:])
        cosines, sines = self._build_angle_table(x, np.cos, start), self._build_angle_table(x, np.sin, start)
        rotated = [
            ops.subtract(ops.multiply(first, cosines), ops.multiply(second, sines)),
            ops.add(ops.multiply(second, cosines), ops.multiply(first, sines)),
        ]
        joined = ops.reshape(ops.stack(rotated, -1), x.shape) if self.interleaved else ops.concat(rotated, -1)
        return joined if joined.dtype == x.dtype else ops.cast(joined, x.dtype)

    def _build_angle_table(self, x: Tensor, function: np.ufunc, start: int) -> Tensor:
        """Return the sines or cosines of all angles, split along the sequence as ``x`` is.

        The result has shape ``[sequence, 1, size / 2]`` and the dtype in which ``x`` is summed (float32 for 16-bit
        floats).

        Args:
            x: the tensor to rotate.
            function: `np.sin` or `np.cos`.
            start: the position of the first row.
        """
        dtype, shape = accumulator("sum", x.dtype), (x.shape[1], 1, self.size // 2)
        rates = self.base ** (-2.0 * np.arange(shape[2]) / self.size)

        def block(index: tuple[slice, ...]) -> np.ndarray:
            positions = np.arange(start + index[0].start, start + index[0].stop)
            return np.asarray(function(positions[:, None, None] * rates[index[2]])[:, index[1]], dtype)

        words = f"the {function.__name__} of rotary angles to base {self.base} from position {start} on"
        layout = Layout(x.layout.mesh, (x.layout.dims[1], None, None))
        return Tensor.from_global(Described(block, words), layout, x.world, shape=shape, dtype=dtype)


class Attention(Module):
    """Multi-head self-attention with the heads split over an axis: no communication between the projections.

    Args:
        width: size of the last dimension of input and result, a multiple of `heads`.
        heads: number of heads of queries, a multiple of the axis' size.
        stream: layout of input and result ``[batch, sequence, width]``.
        axis: the mesh axis that splits the heads; None if no axis does.
        causal: True if a position sees only itself and earlier positions.
        kv_heads: number of heads of keys and values, a divisor of `heads`; default `heads`. Neighbouring heads of queries
            share a head of keys and values (grouped-query attention, Ainslie et al., 2023; 1 is multi-query attention).
            If the axis' size does not divide it, every rank owns the projections of all these heads.
        rotary: rotates queries and keys by their positions; None for no rotation.
        bias: True if the projections have biases.
        dtype: element type of the parameters.

    Raises:
        LayoutError: If `heads` does not divide the width, or is no multiple of the axis' size or of `kv_heads`.
        UsageTypeError: If one of these numbers is not an integer.

    >>> from spmdsim import Mesh, nn
    >>> mesh = Mesh((2,), ("tp",))
    >>> len(list(nn.Attention(4, 2, mesh(None, None, None), "tp").named_parameters()))
    8
    >>> grouped = nn.Attention(8, 4, mesh(None, None, None), "tp", kv_heads=2, rotary=nn.RotaryEmbedding(2), bias=False)
    >>> [(name, p.shape) for name, p in grouped.named_parameters()]
    [('q.weight', (8, 8)), ('k.weight', (8, 4)), ('v.weight', (8, 4)), ('out.weight', (8, 8))]
    """

    def __init__(
        self,
        width: int,
        heads: int,
        stream: Layout,
        axis: str | None,
        *,
        causal: bool = True,
        kv_heads: int | None = None,
        rotary: RotaryEmbedding | None = None,
        bias: bool = True,
        dtype: DTypeLike = np.float32,
    ) -> None:
        check_layout(stream)
        parts = stream.mesh.axis_size(axis) if axis else 1
        width, heads, groups = as_integers(
            (width, heads, heads if kv_heads is None else kv_heads), "Attention: width, heads and kv_heads"
        )
        if heads < 1 or width < 1 or width % heads or heads % parts:
            raise LayoutError(
                f"Attention: heads must divide width {width} and be a multiple of the {many(parts, 'rank')} along axis "
                f"{axis!r}, got {heads}; pass another number of heads or another width"
            )
        if groups < 1 or heads % groups:
            raise LayoutError(
                f"Attention: kv_heads must divide the {many(heads, 'head')}, got {groups}; pass a divisor, such as 1"
            )
        mesh, gathered, size = stream.mesh, remove_axis(stream, axis), width // heads
        column = partial(Linear, width, bias=bias, input=gathered, dtype=dtype)
        self.q = column(width, mesh(None, axis))
        shared = mesh(None, None if groups % parts else axis)
        self.k, self.v = column(groups * size, shared), column(groups * size, shared)
        self.out = Linear(
            width, width, mesh(axis, None), bias=mesh(None) if bias else False, output=stream, dtype=dtype
        )
        self.gathered, self.rotary = gathered, rotary
        self.heads, self.kv_heads, self.causal = heads, groups, causal

    def forward(self, x: Tensor) -> Tensor:
        """Return the self-attention of ``x``, in the shape of ``x`` and the layout ``stream``.

        Steps:

        1. Gather ``x`` along ``axis`` if it is split over this axis.
        2. Compute queries, keys and values by column-parallel layers, so that each rank has whole heads of its own. If there
           are fewer heads of keys and values than of queries, repeat them for the queries that share them.
        3. Compute the scores ``q k^T / sqrt(width of a head)``. If :attr:`causal`, scores of later positions become minus
           infinity.
        4. Multiply the softmax of the scores by the values, and apply the row-parallel output layer.

        Args:
            x: a tensor ``[batch, sequence, width]`` in any layout.
        """
        x = x.to(self.gathered)
        batch, length, width = x.shape
        q = self._split_heads(self.q(x), self.heads)
        k, v = (self._split_heads(layer(x), self.kv_heads) for layer in (self.k, self.v))
        if self.rotary is not None:
            q, k = self.rotary(q), self.rotary(k)
        if self.kv_heads != self.heads:
            k, v = (ops.repeat(tensor, self.heads // self.kv_heads, 2) for tensor in (k, v))
        scores = ops.einsum("bthd,bshd->bhts", q, k)
        scores = ops.multiply(scores, (width // self.heads) ** -0.5)
        if self.causal:
            scores = ops.where(causal_mask(length, x), scores, -math.inf)
        mixed = ops.einsum("bhts,bshd->bthd", ops.softmax(scores), v)
        return self.out.forward(ops.reshape(mixed, (batch, length, width)))

    def _split_heads(self, x: Tensor, heads: int) -> Tensor:
        """Reshape ``[batch, sequence, heads * size]`` to ``[batch, sequence, heads, size]``."""
        batch, length, width = x.shape
        return ops.reshape(x, (batch, length, heads, width // heads))


def causal_mask(length: int, like: Tensor) -> Tensor:
    """Return a bool tensor ``[length, length]``, True if the column is at most the row.

    It is replicated on the mesh of ``like`` and in the world of ``like``.
    """
    words, layout = f"the causal mask of {many(length, 'position')}", like.layout.mesh(None, None)
    mask = Described(lambda index: np.tri(length, dtype=bool)[index], words)
    return Tensor.from_global(mask, layout, like.world, shape=(length, length), dtype=bool)
