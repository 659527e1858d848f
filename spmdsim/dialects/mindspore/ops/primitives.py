"""Primitives of ``mindspore.ops`` by their names there, each one of our operators."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

import spmdsim.ops as ops
from spmdsim.core import Layout
from spmdsim.dialects.host import whole
from spmdsim.dialects.mindspore.parameter import Parameter
from spmdsim.dialects.mindspore.primitive import Primitive, data_parallel, shape_of
from spmdsim.dialects.mindspore.sharding.operators import ELEMENTWISE
from spmdsim.dialects.session import current_world
from spmdsim.ops.reduce import normal_dims
from spmdsim.tensor import Tensor
from spmdsim.tensor.operator import Op
from spmdsim.tensor.watch import watchers


def plain(name: str, ours: str) -> type[Primitive]:
    """A primitive class without arguments."""
    op: Op = getattr(ops, ours).op

    def __init__(self: Primitive) -> None:
        Primitive.__init__(self, op)

    return type(name, (Primitive,), {"__init__": __init__, "__doc__": f"``{name}``, our ``{op.name}``."})


#: Names of the table of strategies that need more than a rule and operands.
_SPECIAL = {
    "AddN", "OnesLike", "ZerosLike", "Dropout", "Activation", "AssignAdd", "AssignSub", "TmpIdentity", "_TmpIdentity",
}  # fmt: skip

#: All primitives without arguments, by name.
PLAIN: dict[str, Callable[[], Primitive]] = {
    name: plain(name, ours) for name, ours in ELEMENTWISE.items() if name not in _SPECIAL
}


class MatMul(Primitive):
    """Matrix product, with transposed operands."""

    def __init__(self, transpose_a: bool = False, transpose_b: bool = False) -> None:
        given = {"transpose_a": transpose_a, "transpose_b": transpose_b}
        super().__init__(ops.matmul.op, **{k: True for k, v in given.items() if v})  # type: ignore[attr-defined]
        self._nd_tp = False

    def add_prim_attr(self, name: str, value: Any) -> Primitive:
        """``enable_nd_tp`` takes layouts as tensor parallelism in two or three dims."""
        if name != "enable_nd_tp":
            return super().add_prim_attr(name, value)
        self._nd_tp = bool(value)
        return self

    def __call__(self, a: Any, b: Any) -> Any:
        """Apply it."""
        if not self._nd_tp or self._sharding is None:
            return super().__call__(a, b)
        return self.as_derived("MatMul", (a, b), {"enable_nd_tp": True, **self.params})


class BatchMatMul(MatMul):
    """Matrix products over leading dims."""


class Softmax(Primitive):
    """Softmax along a dim that is not split."""

    function: Any = ops.softmax

    def __init__(self, axis: int = -1) -> None:
        super().__init__(type(self).function.op)
        self.axis = axis

    def __call__(self, x: Any) -> Any:
        """Apply it."""
        self.params = {"dim": self.axis % len(x.shape)}
        return super().__call__(x)


class LogSoftmax(Softmax):
    """Logarithm of the softmax along a dim that is not split."""

    function = staticmethod(ops.log_softmax)


class _Reduce(Primitive):
    function: Any = ops.sum

    def __init__(self, keep_dims: bool = False) -> None:
        super().__init__(type(self).function.op)
        self.keep_dims = keep_dims

    def __call__(self, x: Any, axis: Any = ()) -> Any:
        """Reduce over an axis, several, or (by default) all."""
        self._dims(x, axis)
        return super().__call__(x)

    def _dims(self, x: Any, axis: Any) -> None:
        dims = normal_dims(None if axis == () else axis, len(x.shape))
        self.params = {"dims": dims, "keepdims": self.keep_dims}


class ReduceSum(_Reduce):
    """Sum over axes."""

    function = staticmethod(ops.sum)


class _Composed(_Reduce):
    """A reduction whose gradient is made of other operators: the strategy is that of its operand."""

    def __call__(self, x: Any, axis: Any = ()) -> Any:
        """Reduce over an axis, several, or (by default) all."""
        if not getattr(x, "requires_grad", False):
            return super().__call__(x, axis)
        self._dims(x, axis)
        given = to_tensor(x) if watchers else self.laid_out(x)[0]  # a search sees the operators it is made of
        found = type(self).function(given, self.params["dims"], self.keep_dims)
        return found.to(found.layout.reduced)


class ReduceMax(_Composed):
    """Largest element over axes."""

    function = staticmethod(ops.max)


class ReduceMin(_Composed):
    """Smallest element over axes."""

    function = staticmethod(ops.min)


class ReduceProd(_Composed):
    """Product over axes."""

    function = staticmethod(ops.prod)


class ReduceMean(ReduceSum):
    """Mean over axes: a sum, divided by the number of elements."""

    def __call__(self, x: Any, axis: Any = ()) -> Any:
        """Reduce over an axis, several, or (by default) all."""
        total = super().__call__(x, axis)
        return ops.multiply(total, total.size / max(1, math.prod(x.shape)))


class Transpose(Primitive):
    """Dims in another order."""

    def __init__(self) -> None:
        super().__init__(ops.transpose.op)  # type: ignore[attr-defined]

    def __call__(self, x: Any, input_perm: Any) -> Any:
        """Apply it."""
        self.params = {"perm": tuple(p % len(x.shape) for p in input_perm)}
        return super().__call__(x)


class Reshape(Primitive):
    """Another shape. In MindSpore it takes the producer's layout; so here."""

    def __init__(self) -> None:
        super().__init__(ops.reshape.op)  # type: ignore[attr-defined]

    def __call__(self, x: Any, shape: Any) -> Any:
        """Apply it."""
        if isinstance(x, Tensor) and self._sharding is None:
            return ops.reshape(x, shape)
        size = math.prod(x.shape)
        known = -math.prod(shape)
        self.params = {"shape": tuple(size // known if n == -1 else n for n in shape)}
        return super().__call__(x)


class Flatten(Primitive):
    """All dims but the first as one; data parallel unless configured."""

    def __init__(self) -> None:
        super().__init__(ops.reshape.op)  # type: ignore[attr-defined]

    def __call__(self, x: Any) -> Any:
        """Apply it."""
        self.params = {"shape": (x.shape[0], math.prod(x.shape[1:]))}
        return super().__call__(x)


class _PerChannel(Primitive):
    """An operand with one value per channel, dim 1."""

    function: Any = ops.bias_add

    def __init__(self) -> None:
        super().__init__(type(self).function.op, dim=1)


class BiasAdd(_PerChannel):
    """A bias per channel."""


class PReLU(_PerChannel):
    """A slope per channel where the element is negative."""

    function = staticmethod(ops.prelu)


class L2Normalize(Primitive):
    """Elements over the length of their vector along dims that are not split."""

    def __init__(self, axis: Any = 0, epsilon: float = 1e-4) -> None:
        super().__init__(ops.l2_normalize.op)  # type: ignore[attr-defined]
        self.axis, self.epsilon = axis, epsilon

    def __call__(self, x: Any) -> Any:
        """Apply it."""
        self.params = {"dim": normal_dims(self.axis, len(x.shape)), "epsilon": self.epsilon}
        return super().__call__(x)


class Gather(Primitive):
    """Entries of a table along an axis: ``Gather()(table, ids, 0)``."""

    def __init__(self) -> None:
        super().__init__(ops.gather.op)  # type: ignore[attr-defined]

    def __call__(self, params: Any, indices: Any, axis: int = 0) -> Any:
        """Apply it. Cuts choose one of MindSpore's modes, which says where the result lies.

        Raises:
            RuntimeError: (also a ValueError) cuts for which MindSpore has no mode.
        """
        self.params = {"dim": axis % len(shape_of(params))}
        given = self._strategies[0]
        if given is None or any(isinstance(entry, Layout) for entry in given):
            return super().__call__(params, indices)
        return self.as_derived("Gather", (params, indices), {"axis": axis})


class Cast(Primitive):
    """Another element type."""

    def __init__(self) -> None:
        super().__init__(ops.cast.op)  # type: ignore[attr-defined]

    def __call__(self, x: Any, dtype: Any) -> Any:
        """Apply it."""
        self.params = {"dtype": np.dtype(dtype)}
        return super().__call__(x)


def reshard(tensor: Tensor, layout: Any) -> Tensor:
    """Redistribute a tensor inside a network."""
    return tensor.to(layout)


def to_tensor(operand: Any) -> Tensor:
    """An array as a tensor, dim 0 over all ranks where it divides: how data enters a network."""
    if isinstance(operand, Tensor):
        return operand
    if isinstance(operand, Parameter):
        return operand.everywhere()
    world = current_world()
    array = whole(operand, world)
    identity: Op = ops.negative.op  # type: ignore[attr-defined]
    bound = identity.bind([array.shape], {})
    layout = bound.input_layouts(data_parallel(bound, world.size))[0]
    return Tensor.from_global(array, layout, world)


__all__ = [
    "BatchMatMul", "BiasAdd", "Cast", "Flatten", "Gather", "L2Normalize", "LogSoftmax", "MatMul", "PReLU", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum", "Reshape", "Softmax", "Transpose", "reshard", "to_tensor",
]  # fmt: skip
