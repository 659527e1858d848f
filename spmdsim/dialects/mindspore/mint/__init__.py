"""``mindspore.mint``: functions with torch's arguments, made from the tables of operators and of functions."""

from __future__ import annotations

from typing import Any

from spmdsim.dialects.functions import TORCH
from spmdsim.dialects.mindspore import ops
from spmdsim.dialects.mindspore.ops import composed, written_functions
from spmdsim.dialects.mindspore.primitive import function
from spmdsim.dialects.missing import not_covered

#: Those of ``ops``, and under a name or with arguments of their own: ``written`` or ``ours: written``.
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
_FORMS = {text.partition(": ")[2].partition("(")[0]: text.split(": ") for text in WRITTEN}

#: What to use instead of a name that resembles none here.
NEAREST = {
    "optim": "mindspore.nn.SGD", "distributed": "mindspore.ops.AllReduce", "linalg": "mindspore.ops.norm",
    "special": "log_softmax", "item": "asnumpy",
}  # fmt: skip


__all__ = sorted({"nn", *SAME.split(), *_FORMS, *TORCH})


def __getattr__(name: str) -> Any:
    if name == "nn":
        from importlib import import_module

        return import_module(f"{__name__}.nn")
    if name in _FORMS:
        ours, written = _FORMS[name]
        return function(written_functions()[ours][0], written)
    if name in SAME.split():
        return getattr(ops, name)
    if name in TORCH:
        return composed.lifted(TORCH[name].call, name)
    raise not_covered(__name__, name, __all__, NEAREST)


def __dir__() -> list[str]:
    return __all__
