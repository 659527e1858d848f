"""Cells of one layer each; every operator inside is data parallel unless its primitive is given a strategy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from spmdsim.dialects.mindspore import ops
from spmdsim.dialects.mindspore.nn.cell import Cell
from spmdsim.dialects.mindspore.parameter import Parameter, initializer
from spmdsim.dialects.mindspore.primitive import primitive
from spmdsim.dialects.mindspore.printing import type_name
from spmdsim.dialects.mindspore.table import TABLE, Row
from spmdsim.errors import InputError, UsageTypeError, unknown


@cache
def cell_of(row: Row) -> type[Cell]:
    """The cell of a row of the table: its primitive, made with the cell's arguments, under the function's name."""
    attribute = next(iter(row.written_functions), row.cell.lower())

    def __init__(self: Any, *given: Any, **named: Any) -> None:
        setattr(self, attribute, primitive(row.primitives[0])(*given, **named))

    def construct(self: Any, *operands: Any) -> Any:
        return getattr(self, attribute)(*operands)

    about = f"``{row.primitives[0]}`` as a cell."
    return type(row.cell, (Cell,), {"__init__": __init__, "construct": construct, "__doc__": about})


def cells() -> dict[str, Row]:
    """The rows of the table that are a cell, by its name."""
    return {row.cell: row for row in TABLE.values() if row.cell}


class GELU(Cell):
    """Gaussian error linear unit: by the tanh formula, or exact.

    Raises:
        TypeError: ``approximate`` is no truth value.
    """

    def __init__(self, approximate: bool = True) -> None:
        if not isinstance(approximate, bool):
            raise UsageTypeError(f"approximate is True or False, not {approximate!r}")
        self.gelu = ops.GeLU() if approximate else ops.GeluExt()

    def construct(self, x: Any) -> Any:
        """Element by element."""
        return self.gelu(x)


class Identity(Cell):
    """The input itself."""

    def construct(self, x: Any) -> Any:
        """Nothing is done."""
        return x


class Dense(Cell):
    """``x @ weight.T + bias``, the weight ``[out, in]`` as MindSpore keeps it."""

    def __init__(
        self, in_channels: int, out_channels: int, weight_init: Any = None, bias_init: Any = None, has_bias: bool = True,
        activation: str | Callable[[Any], Any] | None = None, dtype: Any = np.float32,
    ) -> None:  # fmt: skip
        self.in_channels, self.out_channels = in_channels, out_channels
        shape = [out_channels, in_channels]
        self.weight = Parameter(initializer("normal" if weight_init is None else weight_init, shape, dtype))
        bias = initializer("zeros" if bias_init is None else bias_init, [out_channels], dtype)
        self.bias = Parameter(bias) if has_bias else None
        self.has_bias = has_bias
        self.matmul = ops.MatMul(transpose_b=True)
        self.bias_add = ops.Add()
        self.activation = _named(activation) if isinstance(activation, str) else activation

    def extend_repr(self) -> str:
        """Sizes, and a bias and an activation if there are."""
        bias, activation = ", has_bias=True" * self.has_bias, f", activation={self.activation}"
        sizes = f"input_channels={self.in_channels}, output_channels={self.out_channels}"
        return sizes + bias + activation * (self.activation is not None)

    def construct(self, x: Any) -> Any:
        """``[..., in] -> [..., out]``."""
        y = self.matmul(x, self.weight)
        if self.bias is not None:
            y = self.bias_add(y, self.bias)
        return y if self.activation is None else self.activation(y)


#: Activations that a Dense may be given by name.
_ACTIVATIONS = ("relu", "relu6", "tanh", "sigmoid", "gelu", "softmax", "elu")


def _named(activation: str) -> Callable[[Any], Any]:
    if activation not in _ACTIVATIONS:
        raise unknown(f"no activation is called {activation!r}", str(activation), _ACTIVATIONS)
    if activation == "gelu":
        return GELU()
    return next(cell_of(row) for name, row in cells().items() if name.lower() == activation)()


class Embedding(Cell):
    """Rows of a table by number, ``[...] -> [..., embedding_size]``."""

    def __init__(
        self, vocab_size: int, embedding_size: int, use_one_hot: bool = False, embedding_table: Any = "normal",
        dtype: Any = np.float32, padding_idx: int | None = None,
    ) -> None:  # fmt: skip
        if use_one_hot or padding_idx is not None:
            raise InputError("Embedding has neither use_one_hot nor padding_idx here; nearest: ops.Gather()")
        self.embedding_table = Parameter(initializer(embedding_table, [vocab_size, embedding_size], dtype))
        self.gather = ops.Gather()

    def extend_repr(self) -> str:
        """Rows and columns, and the table."""
        table = self.embedding_table
        return (
            f"vocab_size={table.shape[0]}, embedding_size={table.shape[1]}, use_one_hot=False, "
            f"embedding_table={table}, dtype={type_name(table.dtype)}, padding_idx=None"
        )

    def construct(self, ids: Any) -> Any:
        """Look them up."""
        return self.gather(self.embedding_table, ids, 0)


class LayerNorm(Cell):
    """Normalised over the last dims, scaled and shifted."""

    def __init__(
        self, normalized_shape: Sequence[int], begin_norm_axis: int = -1, begin_params_axis: int = -1,
        gamma_init: Any = "ones", beta_init: Any = "zeros", epsilon: float = 1e-7, dtype: Any = np.float32,
    ) -> None:  # fmt: skip
        shape = tuple(normalized_shape)
        self.begin_norm_axis, self.begin_params_axis = begin_norm_axis, begin_params_axis
        self.gamma = Parameter(initializer(gamma_init, shape, dtype))
        self.beta = Parameter(initializer(beta_init, shape, dtype))
        self.layer_norm = ops.LayerNorm(begin_norm_axis, begin_params_axis, epsilon)

    def extend_repr(self) -> str:
        """Sizes, and the parameters, as MindSpore writes them."""
        return (
            f"normalized_shape={self.gamma.shape}, begin_norm_axis={self.begin_norm_axis}, "
            f"begin_params_axis={self.begin_params_axis}, gamma{self.gamma}, beta={self.beta}"
        )

    def construct(self, x: Any) -> Any:
        """``[..., n] -> [..., n]``."""
        return self.layer_norm(x, self.gamma, self.beta)[0]


class Dropout(Cell):
    """Drops a share ``p`` of the elements while training (``set_train()``)."""

    def __init__(self, keep_prob: float | None = None, p: float | None = None) -> None:
        self.p = p if p is not None else 0.5 if keep_prob is None else 1 - keep_prob
        if not 0 <= self.p < 1:
            raise InputError(f"Dropout drops a share of at least 0 and less than 1, not {self.p}")

    def extend_repr(self) -> str:
        """The share."""
        return f"p={self.p}"

    def construct(self, x: Any) -> Any:
        """The same elements in every layout."""
        return ops.dropout(x, self.p, self.training)


__all__ = ["GELU", "Dense", "Dropout", "Embedding", "Identity", "LayerNorm"]
