"""``mindspore.mint``: functions and cells with torch's arguments, made from the tables of operators and of functions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from spmdsim.dialects.functions import NETWORK, TORCH
from spmdsim.dialects.mindspore import cells, ops
from spmdsim.dialects.mindspore.functions import lifted
from spmdsim.dialects.mindspore.operators import written_functions
from spmdsim.dialects.mindspore.primitive import function, primitive
from spmdsim.dialects.table import Row, renamed

#: Functions of ``ops``, and those under a name or with arguments of their own: ``ours: written``.
SAME = (
    "abs add amax amin arange bmm broadcast_to ceil cos div divide equal exp expm1 floor greater greater_equal less "
    "less_equal log log1p logical_and logical_not logical_or matmul maximum minimum mul multiply neg negative not_equal ones "
    "ones_like pow reshape rsqrt sigmoid sin softmax sqrt square sub tanh tile where zeros zeros_like"
)
WRITTEN = (
    "greater: gt", "greater_equal: ge", "less: lt", "less_equal: le",
    "equal: eq", "not_equal: ne", "sum: sum(input, dim=None, keepdim=False)",
    "mean: mean(input, dim=None, keepdim=False)", "cat: cat(tensors, dim=0)", "cat: concat(tensors, dim=0)",
    "expand_dims: unsqueeze(input, dim)", "squeeze: squeeze(input, dim=())", "transpose: permute(input, dims)",
)  # fmt: skip
SAME_IN_NETWORKS = "cross_entropy dropout elu gelu layer_norm relu relu6 sigmoid silu tanh"
WRITTEN_IN_NETWORKS = ("softmax: softmax(input, dim=-1)", "log_softmax: log_softmax(input, dim=-1)")


def _made(rows: dict[str, Row], same: str, written: tuple[str, ...]) -> dict[str, Callable[[], Any]]:
    """What makes each function: of our rows, of ``ops``, and as it is written, each before those that stand before it."""
    table = {name: partial(lifted, row.call, name) for name, row in rows.items()}
    forms = {text.split(": ")[1].partition("(")[0]: text.split(": ") for text in written}
    from_ops = {name: partial(getattr, ops, name) for name in same.split()}
    own = {
        name: partial(function, written_functions()[ours][0], text) for name, (ours, text) in forms.items()
    }
    return {**table, **from_ops, **own}


def _linear(input: Any, weight: Any, bias: Any = None) -> Any:
    """``input @ weight.T + bias``."""
    product = primitive("MatMul")(transpose_b=True)(input, weight)
    return product if bias is None else ops.add(product, bias)


def _one_hot(tensor: Any, num_classes: int) -> Any:
    """One where the number says, zero elsewhere; float32 here."""
    return ops.one_hot(tensor, num_classes)


def functions() -> dict[str, Callable[[], Any]]:
    """What makes each function of ``mint``."""
    return _made(TORCH, SAME, WRITTEN)


def network_functions() -> dict[str, Callable[[], Any]]:
    """What makes each function of ``mint.nn.functional``."""
    rows = _made(NETWORK, SAME_IN_NETWORKS, WRITTEN_IN_NETWORKS)
    return {**rows, "linear": lambda: _linear, "one_hot": lambda: _one_hot}


Linear = renamed("Linear", cells.Dense, lambda in_features, out_features, bias=True, weight_init=None, bias_init=None, dtype="float32": dict(
    in_channels=in_features, out_channels=out_features, has_bias=bias, weight_init=weight_init, bias_init=bias_init,
    dtype=dtype))  # fmt: skip
Dropout = renamed("Dropout", cells.Dropout, lambda p=0.5: dict(p=p))
Embedding = renamed("Embedding", cells.Embedding, lambda num_embeddings, embedding_dim, dtype="float32": dict(
    vocab_size=num_embeddings, embedding_size=embedding_dim, dtype=dtype))  # fmt: skip


class GELU(cells.Cell):
    """Gaussian error linear unit: exact, or by the tanh formula."""

    def __init__(self, approximate: str = "none") -> None:
        self.gelu = primitive("GeluExt")(approximate)

    def construct(self, input: Any) -> Any:
        """Element by element."""
        return self.gelu(input)
