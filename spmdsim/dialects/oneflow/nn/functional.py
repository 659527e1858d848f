"""``oneflow.nn.functional``: the functions of global tensors that networks use."""

from spmdsim.dialects.missing import refusal
from spmdsim.dialects.oneflow.nearest import FUNCTIONAL
from spmdsim.dialects.oneflow.operators import NETWORK_TABLE, TABLE, lifted

#: Those of the table that have a layer, and log_softmax.
NAMES = sorted({*NETWORK_TABLE, "log_softmax", *(name for name, row in TABLE.items() if row.layer)})
globals().update({name: lifted({**TABLE, **NETWORK_TABLE}[name].call) for name in NAMES})

__getattr__ = refusal(__name__, NAMES, FUNCTIONAL)
