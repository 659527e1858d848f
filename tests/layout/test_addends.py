"""Words for pending reductions name the ranks that own contributions to a shard."""

from __future__ import annotations

import pytest

from spmdsim.core import REDUCE_OPS, Mesh
from spmdsim.layout.addends import partial_reduction

MESH = Mesh((2, 2, 2), ("a", "b", "c"))


@pytest.mark.parametrize("op", REDUCE_OPS)
def test_only_owners_of_addends_are_joined_by_a_plus(op: str):
    """Other reductions have commas; ranks with copies of one contribution are in brackets."""
    pending = partial_reduction(MESH("a", partial={"b": op}))
    assert pending is not None
    assert pending.owner_words(5) == ("(4,5)+(6,7)" if op == "sum" else "(4,5),(6,7)")
    pending = partial_reduction(MESH("a", partial={"b": op, "c": op}))
    assert pending is not None
    assert pending.owner_words(1) == ("0+1+2+3" if op == "sum" else "0,1,2,3")
