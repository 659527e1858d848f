"""All pairs of sbp tuples between which OneFlow's reshapes move nothing, for the tests that compare with brute force."""

from itertools import product

from spmdsim.core import Partial, Replicate
from spmdsim.dialects.imitations.oneflow.boxing_rules import broadcast_only, completed, reshape_pairs


def reshape_signatures(in_shape, out_shape, mesh):
    """All pairs of sbp tuples between which a reshape of evenly split tensors moves nothing.

    On a single axis a dim that both shapes have may be split unevenly.
    """
    pairs = []
    if broadcast_only(in_shape):
        return [((Replicate(),) * len(mesh),) * 2]
    if len(mesh) == 1:
        return [((one,), (other,)) for one, other in reshape_pairs(in_shape, out_shape, mesh[0])]
    for partial in product((Partial(), Replicate(), None), repeat=len(mesh)):
        pairs += completed(tuple(in_shape), tuple(out_shape), tuple(mesh), partial, (), ())
    return list(dict.fromkeys(pairs))
