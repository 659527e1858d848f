"""``mindspore.ops``: primitives (``ops.MatMul().shard(...)``) and functions (``ops.matmul(a, b)``), made from the table."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from spmdsim.dialects.mindspore.collectives import ReduceOp
from spmdsim.dialects.mindspore.ops import composed, functional
from spmdsim.dialects.mindspore.primitive import function, primitive
from spmdsim.dialects.mindspore.table import TABLE, Row
from spmdsim.dialects.missing import each, not_covered

#: What to use instead of a name that resembles none here.
NEAREST = each({
    "assign assign_add assign_sub Assign": "Parameter.set_data",
    "size numel rank Size Rank": "the tensor's size and ndim",
    "depend print_ Print Depend": "nothing is needed: operators run in program order",
    "AlltoAllV AllToAll NeighborExchangeV2 Send Receive": "AlltoAll",
    "Reduce CollectiveGather": "AllReduce",
    "CollectiveScatter Barrier": "Broadcast",
    "Conv2D MaxPool AvgPool BatchNorm": "MatMul over reshaped patches",
    "GradOperation": "mindspore.value_and_grad",
    "HyperMap": "a loop over the gradients",
    "vmap scan custom Custom": "a loop in Python",
    "composite constexpr MultitypeFuncGraph _selected_ops": "a plain function: programs run as they are",
    "ScalarSummary TensorSummary HistogramSummary": "print",
    "UnsortedSegmentSum ScatterUpdate ScatterNdUpdate ScatterAdd": "one_hot and matmul",
    "EmbeddingLookup": "Gather",
    "BCEWithLogitsLoss BinaryCrossEntropy": "binary_cross_entropy_with_logits",
    "flash_attention_score prompt_flash_attention rotary_position_embedding": "spmdsim.nn.Attention",
})  # fmt: skip


def written_functions() -> dict[str, tuple[Row, str]]:
    """The functions of the table by name, each with its row and as it is written there."""
    return {name: (row, text) for row in TABLE.values() for name, text in row.written_functions.items()}


def __getattr__(name: str) -> Any:
    functions = written_functions()
    if name == "operations":
        return import_module(f"{__name__}.operations")
    if name == "ReduceOp":
        attribute: Any = ReduceOp
    elif name in functional.__all__:
        attribute = getattr(functional, name)
    elif name in functions:
        attribute = function(*functions[name])
    elif name in TABLE and name in TABLE[name].primitives:
        attribute = primitive(name)
    elif name in composed.FUNCTIONS:
        attribute = composed.FUNCTIONS[name]
    else:
        raise not_covered(__name__, name, names(), NEAREST)
    globals()[name] = attribute  # the next time without a search
    return attribute


def names() -> list[str]:
    """Everything that is there."""
    primitives = (name for row in TABLE.values() for name in row.primitives)
    functions = (*written_functions(), *functional.__all__, *composed.FUNCTIONS)
    return sorted({*primitives, *functions, "ReduceOp", "operations"})


def __dir__() -> list[str]:
    return names()
