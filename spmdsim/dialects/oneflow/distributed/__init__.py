"""``oneflow.distributed``: how a program is started, and who takes part."""

from spmdsim.dialects.missing import add_words

add_words(__name__)
