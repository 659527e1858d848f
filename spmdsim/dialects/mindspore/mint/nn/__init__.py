"""``mindspore.mint.nn``: cells with torch's arguments."""

from __future__ import annotations

from typing import Any

from spmdsim.dialects.mindspore import nn, ops
from spmdsim.dialects.mindspore.mint.nn import functional
from spmdsim.dialects.missing import not_covered

SAME = "CrossEntropyLoss ELU Identity L1Loss LogSoftmax MSELoss ReLU ReLU6 SiLU Sigmoid Softmax Tanh"


class Linear(nn.Dense):
    """``x @ weight.T + bias``, the weight ``[out, in]``."""

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, weight_init: Any = None, bias_init: Any = None,
        dtype: Any = "float32",
    ) -> None:  # fmt: skip
        super().__init__(in_features, out_features, weight_init, bias_init, bias, None, dtype)


class Dropout(nn.Dropout):
    """Drops a share ``p`` of the elements while training (``set_train()``)."""

    def __init__(self, p: float = 0.5) -> None:
        super().__init__(p=p)


class Embedding(nn.Embedding):
    """Rows of a table by number."""

    def __init__(self, num_embeddings: int, embedding_dim: int, dtype: Any = "float32") -> None:
        super().__init__(num_embeddings, embedding_dim, dtype=dtype)


class GELU(nn.Cell):
    """Gaussian error linear unit: exact, or by the tanh formula."""

    def __init__(self, approximate: str = "none") -> None:
        self.gelu = ops.GeluExt(approximate)

    def construct(self, input: Any) -> Any:
        """Element by element."""
        return self.gelu(input)


__all__ = ["GELU", "Dropout", "Embedding", "Linear", "functional", *SAME.split()]


def __getattr__(name: str) -> Any:
    if name in SAME.split():
        return getattr(nn, name)
    raise not_covered(__name__, name, __all__, nn.NEAREST)


def __dir__() -> list[str]:
    return sorted(__all__)
