"""``paddle.nn.functional``: the functions that networks use."""

from spmdsim.dialects.missing import refusal
from spmdsim.dialects.paddle.functions import NETWORK_TABLE, TABLE, lifted

#: Those of the table that have a layer, and log_softmax.
__all__ = sorted({*NETWORK_TABLE, "log_softmax", *(name for name, row in TABLE.items() if row.layer)})
globals().update({name: lifted({**TABLE, **NETWORK_TABLE}[name].call, name) for name in __all__})

__getattr__ = refusal(
    __name__,
    __all__,
    {
        "pad": "spmdsim.ops.pad",
        "label_smooth": "cross_entropy(..., label_smoothing=)",
        "flash_attention": "spmdsim.nn.Attention",
        "scaled_dot_product_attention": "spmdsim.nn.Attention",
    },
)
