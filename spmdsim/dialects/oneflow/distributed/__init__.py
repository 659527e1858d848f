"""``oneflow.distributed``: how a program is started, and who takes part."""

from spmdsim.dialects.missing import find_words

find_words(__name__)
