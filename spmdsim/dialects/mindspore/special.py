"""What calls of some primitives do beyond running one of our operators: several results, several steps, modes.

Each is given the primitive, the operands and all attributes by name, and gives the result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

import spmdsim.ops as ops
from spmdsim.core import Layout
from spmdsim.core.apply import watchers
from spmdsim.dialects.mindspore.parameter import next_seed
from spmdsim.errors import InputError
from spmdsim.tensor import Tensor

if TYPE_CHECKING:
    from spmdsim.dialects.mindspore.primitive import Primitive

Operands = Sequence[Any]
Attrs = dict[str, Any]


def matmul(primitive: Primitive, operands: Operands, attrs: Attrs) -> Any:
    """``enable_nd_tp`` takes layouts as tensor parallelism in two or three dims."""
    if attrs.get("enable_nd_tp") and primitive.configured:
        return primitive.as_derived("MatMul", operands, attrs)
    return primitive.plain(operands, attrs)


def gather(primitive: Primitive, operands: Operands, attrs: Attrs) -> Any:
    """Cuts choose one of MindSpore's modes, which says where the result lies."""
    given = primitive.in_strategy
    if given is None or any(isinstance(entry, Layout) for entry in given):
        return primitive.plain(operands, attrs)
    return primitive.as_derived("Gather", operands, attrs)


def reshape(primitive: Primitive, operands: Operands, attrs: Attrs) -> Any:
    """In MindSpore it takes the producer's layout; so here."""
    x = operands[0]
    params = primitive.row.params([x.shape], attrs)
    if isinstance(x, Tensor) and not primitive.configured:
        return ops.reshape(x, params["shape"])
    return primitive.apply(operands, params)


def composed(primitive: Primitive, operands: Operands, attrs: Attrs) -> Any:
    """A reduction whose gradient is made of other operators: the strategy is that of its operand."""
    x = operands[0]
    if not getattr(x, "requires_grad", False):
        return primitive.plain(operands, attrs)
    params = primitive.row.params([x.shape], attrs)
    given = primitive.tensor(x) if watchers else primitive.laid_out(operands, params)[0]  # a search sees them
    reduced = getattr(ops, primitive.row.ours)(given, params["dims"], params["keepdims"])
    return reduced.to(reduced.layout.reduced)


def mean(primitive: Primitive, operands: Operands, attrs: Attrs) -> Any:
    """A sum, divided by the number of elements."""
    total = primitive.plain(operands, attrs)
    return ops.multiply(total, total.size / max(1, math.prod(operands[0].shape)))


def stopped(primitive: Primitive, operands: Operands, attrs: Attrs) -> Any:
    """The same values, through which no gradient goes."""
    return primitive.plain(operands, attrs).detach()


def argmax(primitive: Primitive, operands: Operands, attrs: Attrs) -> Any:
    """Where the largest element along an axis stands, in the type wanted."""
    return primitive.other("Cast")(primitive.plain(operands, attrs), attrs["output_type"])


def argmax_with_value(primitive: Primitive, operands: Operands, attrs: Attrs) -> Any:
    """Where the largest element along an axis stands, and the element."""
    x = primitive.tensor(operands[0])
    axis = attrs["axis"] % x.ndim
    pair = ops.argmax(x, axis), ops.max(x, axis)
    if not attrs["keep_dims"]:
        return pair
    shape = [1 if d == axis else n for d, n in enumerate(x.shape)]
    return tuple(ops.reshape(y, shape) for y in pair)


def one_hot(primitive: Primitive, operands: Operands, attrs: Attrs) -> Any:
    """With other values than one and zero."""
    on, off = (float(np.asarray(attrs[name])) for name in ("on_value", "off_value"))
    ones = primitive.plain(operands, attrs)
    return ones if (on, off) == (1.0, 0.0) else ops.add(ops.multiply(ones, on - off), off)


def layer_norm(primitive: Primitive, operands: Operands, attrs: Attrs) -> Any:
    """Result, mean and variance."""
    y, x = primitive.plain(operands, attrs), primitive.tensor(operands[0]).detach()
    dims = tuple(range(attrs["begin_norm_axis"] % x.ndim, x.ndim))
    return y, ops.mean(x, dims, keepdims=True), ops.var(x, dims, keepdims=True)


def check_keep_prob(attrs: Any) -> None:
    """Refuse shares that cannot be kept."""
    if not 0 < attrs["keep_prob"] <= 1:
        raise InputError(f"keep_prob is in (0, 1], not {attrs['keep_prob']}")


def dropout(primitive: Primitive, operands: Operands, attrs: Attrs) -> Any:
    """The result and the mask, each time another one; the same elements are dropped in every layout."""
    params = {"rate": 1 - attrs["keep_prob"], "seed": next_seed()}
    dropped = primitive.apply(operands, params)
    ones = ops.add(ops.multiply(dropped.detach(), 0.0), 1.0)
    return dropped, ops.not_equal(primitive.apply([ones], params), 0.0)


def split(primitive: Primitive, operands: Operands, attrs: Attrs) -> Any:
    """Equal pieces along an axis, which must not be cut."""
    shape = np.shape(operands[0]) if not hasattr(operands[0], "shape") else operands[0].shape
    axis, parts = attrs["axis"] % len(shape), attrs["output_num"]
    if shape[axis] % parts:
        raise InputError(f"axis {axis} of size {shape[axis]} does not split into {parts} equal parts")
    size = shape[axis] // parts

    def piece(k: int) -> Any:
        start = tuple(k * size if d == axis else 0 for d in range(len(shape)))
        stop = tuple((k + 1) * size if d == axis else n for d, n in enumerate(shape))
        return primitive.apply(operands, {"start": start, "stop": stop, "step": (1,) * len(shape)})

    return tuple(map(piece, range(parts)))


def filled(value: int) -> Callable[[Primitive, Operands, Attrs], Any]:
    """A tensor like another one, with one value everywhere."""

    def run(primitive: Primitive, operands: Operands, attrs: Attrs) -> Any:
        like: Tensor = primitive.plain(operands, attrs).detach()
        shards = [np.full(shard.shape, value, shard.dtype) for shard in like.shards]
        return Tensor(like.world, like.meta, shards)

    return run
