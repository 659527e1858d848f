"""What OneFlow compares between ranks before it works on a global tensor, and its words when they differ.

Semantics: ``core/framework/consistency_check.cpp`` and ``sync_symbol_parallel_desc.cpp``. OneFlow sends round a ring
and gives up after a time; here every rank learns what all of them passed, and the first that differs is named.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from spmdsim.dialects.oneflow import sbp as sbp_module
from spmdsim.dialects.oneflow.placements import placement as Placement
from spmdsim.dialects.oneflow.sbp import OneFlowError
from spmdsim.dialects.session import hint_more_ranks
from spmdsim.errors import PlanError, WorldError, many

#: What is compared, and what is said when it differs.
SAID = {
    "placement": "Each rank must have the same input placement. Inconsistent parallel description",
    "sbp": "Each rank must have the same input sbp",
    "dtype": "Each rank must have the same dtype",
    "data": "Each rank must have same input sequence or numpy array",
}


def check_same(world: Any, facts: Sequence[Mapping[str, str]]) -> None:
    """Compare what the ranks passed: one mapping per owned rank, keys as in :data:`SAID`."""
    passed = world.gather_objects([dict(fact) for fact in facts], "a comparison of arguments")
    for key, said in SAID.items():
        for rank, fact in enumerate(passed):
            if fact.get(key) != passed[0].get(key):
                raise OneFlowError(
                    f"{said}: rank 0 has {passed[0].get(key)}, rank {rank} has {fact.get(key)}"
                )


def facts_of(placement: Placement, sbp: Any, data: np.ndarray | None = None) -> dict[str, str]:
    """What one rank passed, in words; of data its shape and a number for its bytes."""
    facts = {"placement": repr(placement), "sbp": sbp_module.text(sbp_module.as_tuple(sbp, placement.ndim))}
    if data is not None:
        content = hashlib.blake2b(np.ascontiguousarray(data).tobytes(), digest_size=8).hexdigest()
        facts |= {"dtype": data.dtype.name, "data": f"shape {data.shape}, content {content}"}
    return facts


def check_placement(placement: Placement, world: Any) -> None:
    """Refuse ranks that the job does not have."""
    highest = max(placement.order)
    if highest >= world.size:
        raise OneFlowError(
            f"Placement is invalid because rank must be less than world size! {placement} has rank {highest}, but "
            f"{many(world.size, 'rank is', 'ranks are')} running{hint_more_ranks()}"
        )


@contextmanager
def same_code() -> Iterator[None]:
    """Say as OneFlow does that ranks called different things, or that one of them did not come."""
    try:
        yield
    except WorldError as error:
        raise OneFlowError(
            "Maybe executing different code in different ranks, please check if the code is branched and operates on "
            f"the global tensor. {error.message}"
        ) from error


@contextmanager
def transition(before: Any, after: tuple[Placement, Any]) -> Iterator[None]:
    """Say as OneFlow does which transition of a global tensor there is not."""
    try:
        yield
    except PlanError as error:
        raise OneFlowError(
            f"global-to-global not supported. from_nd_sbp: {sbp_module.text(before.sbp)}, to_nd_sbp: "
            f"{sbp_module.text(sbp_module.as_tuple(after[1], after[0].ndim))}, from_placement: {before.placement}, "
            f"to_placement: {after[0]}: {error.message}"
        ) from error
