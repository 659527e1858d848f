"""Primitives that cut and join tensors, normalise, drop, look up by one-hot, and losses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import spmdsim.ops as ops
from spmdsim.core import BoundRule, Strategy
from spmdsim.dialects.mindspore.ops.primitives import Cast, Reshape, to_tensor
from spmdsim.dialects.mindspore.parameter import next_seed
from spmdsim.dialects.mindspore.primitive import Primitive, shape_of
from spmdsim.dialects.mindspore.sharding.errors import refusing
from spmdsim.dialects.mindspore.sharding.strategies import _cuts_of_result
from spmdsim.errors import InputError
from spmdsim.layout.cuts import strategy_from_factors
from spmdsim.tensor import Tensor
from spmdsim.tensor.operator import ShardedOp


class AddN(Primitive):
    """The sum of a list of tensors of one shape."""

    def __init__(self) -> None:
        super().__init__(ops.add_n.op)  # type: ignore[attr-defined]

    def __call__(self, inputs: Sequence[Any]) -> Any:
        """Apply it."""
        return super().__call__(*inputs)


class Concat(Primitive):
    """A list of tensors one after the other along an axis, which must not be cut."""

    def __init__(self, axis: int = 0) -> None:
        super().__init__(ops.concat.op)  # type: ignore[attr-defined]
        self.axis = axis

    def __call__(self, inputs: Sequence[Any]) -> Any:
        """Apply it."""
        self.params = {"dim": self.axis % len(shape_of(inputs[0]))}
        return super().__call__(*inputs)


class Split(Primitive):
    """Equal pieces along an axis, which must not be cut."""

    def __init__(self, axis: int = 0, output_num: int = 1) -> None:
        super().__init__(ops.slice_.op)  # type: ignore[attr-defined]
        self.axis, self.output_num = axis, output_num

    def __call__(self, x: Any) -> tuple[Any, ...]:
        """Apply it."""
        shape = shape_of(x)
        axis, parts = self.axis % len(shape), self.output_num
        if shape[axis] % parts:
            raise InputError(f"axis {axis} of size {shape[axis]} does not split into {parts} equal parts")
        size = shape[axis] // parts
        pieces = []
        for k in range(parts):
            start = tuple(k * size if d == axis else 0 for d in range(len(shape)))
            stop = tuple((k + 1) * size if d == axis else n for d, n in enumerate(shape))
            self.params = {"start": start, "stop": stop, "step": (1,) * len(shape)}
            pieces.append(super().__call__(x))
        return tuple(pieces)


class StridedSlice(Primitive):
    """``x[begin:end:strides]`` per dim; dims that are cut into must not be split."""

    def __init__(self) -> None:
        super().__init__(ops.slice_.op)  # type: ignore[attr-defined]

    def __call__(
        self, x: Any, begin: Sequence[int], end: Sequence[int], strides: Sequence[int] | None = None
    ) -> Any:
        """Apply it; steps are positive."""
        shape = shape_of(x)
        cuts = [slice(a, b, s) for a, b, s in zip(begin, end, strides or (1,) * len(begin))]
        cuts += [slice(None)] * (len(shape) - len(cuts))
        start, stop, step = zip(*(cut.indices(n) for cut, n in zip(cuts, shape)))
        if min(step) < 1:
            raise InputError(
                f"StridedSlice takes positive strides here, but got {strides}; nearest: Transpose"
            )
        self.params = {"start": start, "stop": tuple(map(max, start, stop)), "step": step}
        return super().__call__(x)


class ExpandDims(Reshape):
    """A dim of size one at a place."""

    def __call__(self, x: Any, axis: int) -> Any:
        """Apply it."""
        shape = list(shape_of(x))
        shape.insert(axis % (len(shape) + 1), 1)
        return super().__call__(x, shape)


class Squeeze(Reshape):
    """Without dims of size one: all of them, or those named."""

    def __init__(self, axis: int | Sequence[int] = ()) -> None:
        super().__init__()
        self.axis = (axis,) if isinstance(axis, int) else tuple(axis)

    def __call__(self, x: Any) -> Any:  # type: ignore[override]
        """Apply it."""
        shape = shape_of(x)
        gone = {a % len(shape) for a in self.axis} or {d for d, n in enumerate(shape) if n == 1}
        if any(shape[d] != 1 for d in gone):
            raise InputError(
                f"Squeeze takes dims of size 1 away, but shape {shape} has others at {sorted(gone)}"
            )
        return super().__call__(x, [n for d, n in enumerate(shape) if d not in gone])


class BroadcastTo(Primitive):
    """Repeated to a larger shape."""

    def __init__(self, shape: Sequence[int]) -> None:
        super().__init__(ops.broadcast_to.op, shape=tuple(shape))  # type: ignore[attr-defined]


class OneHot(Primitive):
    """``OneHot()(indices, depth, on_value, off_value)``; its strategy is that of the result, and ``()`` per value."""

    def __init__(self, axis: int = -1) -> None:
        super().__init__(ops.one_hot.op)  # type: ignore[attr-defined]
        self.axis = axis

    def __call__(self, indices: Any, depth: int, on_value: Any = 1.0, off_value: Any = 0.0) -> Any:
        """Apply it."""
        at = self.axis % (len(shape_of(indices)) + 1)
        on, off = float(np.asarray(on_value)), float(np.asarray(off_value))
        self.params = {"depth": int(depth), "dtype": np.dtype(np.float32), "dim": at}
        found = super().__call__(indices)
        return found if (on, off) == (1.0, 0.0) else ops.add(ops.multiply(found, on - off), off)

    def _strategy(self, bound: BoundRule, ranks: int) -> Strategy:
        if self._sharding is None or not isinstance(self._sharding.in_strategy[0], tuple):
            return super()._strategy(bound, ranks)
        with refusing("OneHot"):
            found = _cuts_of_result(bound, self._sharding.in_strategy, range(ranks))
            return strategy_from_factors(bound, found, ranks, repeat=self._repeat)

    def _applied(self, strategy: Strategy) -> ShardedOp | None:
        return super()._applied(strategy) if self._sharding is None else self.op.shard(strategy)


class LayerNorm(Primitive):
    """``LayerNorm(begin_norm_axis, begin_params_axis, epsilon)(x, gamma, beta)``: result, mean and variance."""

    def __init__(self, begin_norm_axis: int = 1, begin_params_axis: int = 1, epsilon: float = 1e-7) -> None:
        super().__init__(ops.layer_norm.op, epsilon=epsilon, begin=begin_norm_axis)  # type: ignore[attr-defined]
        self.begin = begin_norm_axis

    def __call__(self, x: Any, gamma: Any, beta: Any) -> tuple[Any, Any, Any]:
        """Apply it."""
        y = super().__call__(x, gamma, beta)
        given = to_tensor(x).detach()
        dims = tuple(range(self.begin % given.ndim, given.ndim))
        return y, ops.mean(given, dims, keepdims=True), ops.var(given, dims, keepdims=True)


class Dropout(Primitive):
    """``Dropout(keep_prob)(x)``: the result and the mask; the same elements are dropped in every layout."""

    def __init__(self, keep_prob: float = 0.5, Seed0: int = 0, Seed1: int = 0) -> None:
        super().__init__(ops.dropout.op)  # type: ignore[attr-defined]
        if not 0 < keep_prob <= 1:
            raise InputError(f"keep_prob is in (0, 1], not {keep_prob}")
        self.keep_prob = keep_prob

    def __call__(self, x: Any) -> tuple[Any, Any]:
        """Apply it, each time with another mask."""
        self.params = {"rate": 1 - self.keep_prob, "seed": next_seed()}
        dropped = super().__call__(x)
        ones = ops.add(ops.multiply(dropped.detach(), 0.0), 1.0)
        return dropped, ops.not_equal(super().__call__(ones), 0.0)


class SoftmaxCrossEntropyWithLogits(Primitive):
    """Losses per row and their gradient, from logits and probabilities; classes must not be cut."""

    def __init__(self) -> None:
        super().__init__(ops.softmax_cross_entropy.op)  # type: ignore[attr-defined]


class ArgMaxWithValue(Primitive):
    """Where the largest element along an axis stands, and the element."""

    def __init__(self, axis: int = 0, keep_dims: bool = False) -> None:
        super().__init__(ops.argmax.op)  # type: ignore[attr-defined]
        self.axis, self.keep_dims = axis, keep_dims

    def __call__(self, x: Any) -> tuple[Any, Any]:
        """Apply it."""
        given = to_tensor(x)
        axis = self.axis % given.ndim
        at, value = ops.argmax(given, axis), ops.max(given, axis)
        if not self.keep_dims:
            return at, value
        shape = [1 if d == axis else n for d, n in enumerate(given.shape)]
        return ops.reshape(at, shape), ops.reshape(value, shape)


class Argmax(Primitive):
    """Where the largest element along an axis stands; the axis must not be cut."""

    def __init__(self, axis: int = -1, output_type: Any = np.int32) -> None:
        super().__init__(ops.argmax.op)  # type: ignore[attr-defined]
        self.axis, self.output_type = axis, output_type

    def __call__(self, x: Any) -> Any:
        """Apply it."""
        self.params = {"dim": self.axis % len(shape_of(x))}
        return Cast()(super().__call__(x), self.output_type)


class _Filled(Primitive):
    """A tensor like another one, with one value everywhere."""

    value = 0

    def __init__(self) -> None:
        super().__init__(ops.identity.op)  # type: ignore[attr-defined]

    def __call__(self, x: Any) -> Any:
        """Apply it."""
        like: Tensor = super().__call__(x).detach()
        shards = [np.full(shard.shape, self.value, shard.dtype) for shard in like.shards]
        return Tensor(like.world, like.meta, shards)


class OnesLike(_Filled):
    """Ones in another tensor's shape and type."""

    value = 1


class ZerosLike(_Filled):
    """Zeros in another tensor's shape and type."""


__all__ = [
    "AddN", "ArgMaxWithValue", "Argmax", "BroadcastTo", "Concat", "Dropout", "ExpandDims", "LayerNorm", "OneHot",
    "OnesLike", "SoftmaxCrossEntropyWithLogits", "Split", "Squeeze", "StridedSlice", "ZerosLike",
]  # fmt: skip
