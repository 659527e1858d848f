"""Compare ranks before work on a global tensor, like OneFlow, with its error messages.

Semantics: ``core/framework/consistency_check.cpp`` and ``sync_symbol_parallel_desc.cpp``. OneFlow sends arguments
round a ring, with a timeout. Here every rank receives the arguments of all ranks, and the message names the first
that differs.
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

#: Compared arguments, with the message for a difference.
MESSAGES = {
    "placement": "Each rank must have the same input placement. Inconsistent parallel description",
    "sbp": "Each rank must have the same input sbp",
    "dtype": "Each rank must have the same dtype",
    "data": "Each rank must have same input sequence or numpy array",
}


def check_same(world: Any, facts: Sequence[Mapping[str, str]]) -> None:
    """Raise OneFlowError unless all ranks passed equal arguments.

    All ranks of the world must call it. The error is equal on all ranks: it names the first argument of
    :data:`MESSAGES` that differs, and the first rank that differs from rank 0.

    Args:
        world: the world.
        facts: one mapping per rank that this process plays, with keys of :data:`MESSAGES`; see `list_call_facts`.
    """
    passed = world.gather_objects([dict(fact) for fact in facts], "a comparison of arguments")
    for key, message in MESSAGES.items():
        for rank, fact in enumerate(passed):
            if fact.get(key) != passed[0].get(key):
                raise OneFlowError(
                    f"{message}: rank 0 has {passed[0].get(key)}, rank {rank} has {fact.get(key)}"
                )


def list_call_facts(placement: Placement, sbp: Any, data: np.ndarray | None = None) -> dict[str, str]:
    """Return the arguments of a rank's call as texts to compare, by the keys of :data:`MESSAGES`.

    Args:
        placement: device type, and ranks as a mesh.
        sbp: split, broadcast or partial_sum, per mesh axis of the placement; or their text.
        data: the array whose type, shape and checksum are compared; None leaves out the keys "dtype" and "data".

    Raises:
        OneFlowError: If the sbp does not have one entry per mesh axis.
    """
    facts = {"placement": repr(placement), "sbp": sbp_module.text(sbp_module.as_tuple(sbp, placement.ndim))}
    if data is not None:
        content = hashlib.blake2b(np.ascontiguousarray(data).tobytes(), digest_size=8).hexdigest()
        facts |= {"dtype": data.dtype.name, "data": f"shape {data.shape}, content {content}"}
    return facts


def check_placement(placement: Placement, world: Any) -> None:
    """Raise OneFlowError if a placement has ranks that are not running.

    Only the highest rank is compared with the size of the world.

    Args:
        placement: device type, and ranks as a mesh.
        world: the world of the running ranks.
    """
    highest = max(placement.order)
    if highest >= world.size:
        raise OneFlowError(
            f"Placement is invalid because rank must be less than world size! {placement} has rank {highest}, but "
            f"{many(world.size, 'rank is', 'ranks are')} running{hint_more_ranks()}"
        )


@contextmanager
def report_different_code() -> Iterator[None]:
    """Convert a WorldError of the ``with`` block to an OneFlowError.

    The message says that ranks seem to run different code. Other errors pass.

    Raises:
        OneFlowError: If the block raises WorldError, such as after a timeout.
    """
    try:
        yield
    except WorldError as error:
        raise OneFlowError(
            "Maybe executing different code in different ranks, please check if the code is branched and operates on "
            f"the global tensor. {error.message}"
        ) from error


@contextmanager
def report_unsupported_transition(before: Any, after: tuple[Placement, Any]) -> Iterator[None]:
    """Convert a PlanError of the ``with`` block to an OneFlowError.

    The message says that the redistribution is not supported. Other errors pass.

    Args:
        before: the global tensor.
        after: its new placement and sbp.

    Raises:
        OneFlowError: If the block raises PlanError.
    """
    try:
        yield
    except PlanError as error:
        raise OneFlowError(
            f"global-to-global not supported. from_nd_sbp: {sbp_module.text(before.sbp)}, to_nd_sbp: "
            f"{sbp_module.text(sbp_module.as_tuple(after[1], after[0].ndim))}, from_placement: {before.placement}, "
            f"to_placement: {after[0]}: {error.message}"
        ) from error
