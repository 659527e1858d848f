"""``mindspore.mint.nn.functional``: functions with torch's arguments."""

from __future__ import annotations

from typing import Any

from spmdsim.dialects.functions import NETWORK
from spmdsim.dialects.mindspore import ops
from spmdsim.dialects.mindspore.ops import composed, written_functions
from spmdsim.dialects.mindspore.primitive import function
from spmdsim.dialects.missing import not_covered

SAME = "cross_entropy dropout elu gelu layer_norm relu relu6 sigmoid silu tanh"
_FORMS = {
    "softmax": "softmax(input, dim=-1)",
    "log_softmax": "log_softmax(input, dim=-1)",
}

__all__ = sorted({"linear", "one_hot", *SAME.split(), *_FORMS, *NETWORK})


def linear(input: Any, weight: Any, bias: Any = None) -> Any:
    """``input @ weight.T + bias``."""
    product = ops.MatMul(transpose_b=True)(input, weight)
    return product if bias is None else ops.add(product, bias)


def one_hot(tensor: Any, num_classes: int) -> Any:
    """One where the number says, zero elsewhere; float32 here."""
    return ops.one_hot(tensor, num_classes)


def __getattr__(name: str) -> Any:
    if name in _FORMS:
        return function(written_functions()[name][0], _FORMS[name])
    if name in SAME.split():
        return getattr(ops, name)
    if name in NETWORK:
        return composed.lifted(NETWORK[name].call, name)
    raise not_covered(__name__, name, __all__, {"scaled_dot_product_attention": "spmdsim.nn.Attention"})


def __dir__() -> list[str]:
    return __all__
