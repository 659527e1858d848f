"""``paddle.nn.functional``: the functions that networks use."""

from __future__ import annotations

from typing import Any

from spmdsim.dialects.paddle.functions import FUNCTIONS, lifted

NAMES = ("gelu", "log_softmax", "relu", "sigmoid", "silu", "softmax", "tanh")


def _cross_entropy(input: Any, label: Any, reduction: str = "mean") -> Any:
    from spmdsim.ops import cross_entropy, reshape

    if label.ndim == input.ndim:
        label = reshape(label, label.shape[:-1])
    return cross_entropy(input, label, reduction)


def __getattr__(name: str) -> Any:
    if name in NAMES:
        return FUNCTIONS[name]
    if name == "cross_entropy":
        return lifted(_cross_entropy)
    from spmdsim.dialects.missing import not_covered

    raise not_covered(__name__, name, [*NAMES, "cross_entropy"])


def __dir__() -> list[str]:
    return [*NAMES, "cross_entropy"]
