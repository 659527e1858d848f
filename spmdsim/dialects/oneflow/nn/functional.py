"""``oneflow.nn.functional``: the functions of global tensors that networks use."""

from __future__ import annotations

from typing import Any

from spmdsim.dialects.oneflow.operators import FUNCTIONS

NAMES = ("gelu", "log_softmax", "relu", "sigmoid", "silu", "softmax", "tanh")


def __getattr__(name: str) -> Any:
    if name in NAMES:
        return FUNCTIONS[name]
    if name == "cross_entropy":
        from spmdsim.dialects.oneflow.nn.layers import CrossEntropyLoss

        return lambda logits, labels, reduction="mean": CrossEntropyLoss(reduction)(logits, labels)
    from spmdsim.dialects.missing import not_covered

    raise not_covered(__name__, name, [*NAMES, "cross_entropy"])


def __dir__() -> list[str]:
    return [*NAMES, "cross_entropy"]
