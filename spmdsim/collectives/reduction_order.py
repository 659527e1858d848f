"""The order of additions of an algorithm, and so its rounding: exact to the bit, in one process.

Floating-point addition is commutative but not associative: the bits of a result depend only on the tree of additions.
An algorithm's tree is known (:func:`reduction_trees`), so its bits can be computed without MPI. Comparing them with a
library's result shows which algorithm the library used.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from spmdsim.collectives.algorithm import algorithms
from spmdsim.collectives.execution import Array, ReduceOp, run_lock_step
from spmdsim.collectives.schedule import Schedule, make_schedule
from spmdsim.collectives.verification import reduction_trees
from spmdsim.errors import ScheduleError
from spmdsim.wrong_calls import explained

__all__ = ["emulate", "list_candidates", "matching_schedules", "reduction_trees", "same_bits"]


@explained
def emulate(
    schedule: Schedule, inputs: Sequence[Array], op: ReduceOp = np.add, rank: int | None = None
) -> Array:
    """Compute the result of a reducing collective with operands in the algorithm's order.

    So it has the rounding errors of the algorithm.

    Args:
        schedule: of all_reduce, reduce, reduce_scatter, scan or exscan.
        inputs: each rank's vector, elements along the first dimension; all of one length and type.
        op: the reduction, a ufunc or a function of two arrays.
        rank: the rank of the result; None: the first rank that has one.

    Raises:
        ScheduleError: If the rank has no result, or the inputs do not fit the schedule.

    >>> from spmdsim.collectives import schedule_of
    >>> vectors = [np.array([v], np.float32) for v in (1, 1e8, -1e8)]
    >>> emulate(schedule_of("all_reduce", "linear", 3), vectors)
    array([0.], dtype=float32)
    >>> emulate(schedule_of("all_reduce", "ring", 3), vectors)
    array([1.], dtype=float32)
    """
    outputs = run_lock_step(schedule, inputs, op)
    for owner in range(schedule.size) if rank is None else (rank,):
        result = outputs[owner]
        if result is not None:
            return result
    raise ScheduleError(f"rank {rank} gets no result from {schedule.name}")


def same_bits(first: Array, second: Array) -> bool:
    """Return True if two arrays have identical types, shapes and bits.

    So 0.0 differs from -0.0, and NaN equals a NaN of equal bits. The order in memory does not matter.

    Args:
        first: any array.
        second: any array.
    """
    return (
        first.dtype == second.dtype
        and first.shape == second.shape
        and np.ascontiguousarray(first).tobytes() == np.ascontiguousarray(second).tobytes()
    )


def list_candidates(collective_name: str, size: int, root: int = 0) -> list[Schedule]:
    """Return the schedules by which a library may have run a collective, with default options.

    There is one per algorithm that supports ``size`` ranks, in the order of declaration. If it has several
    chunks, a second schedule follows, with chunks of another rounding, ``"ceiling"``.

    Args:
        collective_name: such as ``"all_reduce"``.
        size: number of ranks.
        root: root rank of rooted collectives.

    Raises:
        ScheduleError: If the root is no rank.
        SpmdError: If the collective is unknown.
    """
    schedules = []
    for chosen in algorithms(collective_name):
        if not chosen.fits(size):
            continue
        schedule = make_schedule(chosen, size, root)
        schedules.append(schedule)
        if schedule.chunk_count > 1:
            schedules.append(make_schedule(chosen, size, root, rounding="ceiling"))
    return schedules


def matching_schedules(
    observed: Array,
    inputs: Sequence[Array],
    schedules: Iterable[Schedule],
    op: ReduceOp = np.add,
    rank: int | None = None,
) -> list[Schedule]:
    """Return the schedules whose emulated result equals an observed one bit for bit.

    The result is that of ``rank``, or of the first rank that has one if ``rank`` is None. The other arguments are as in
    :func:`emulate`.
    """
    return [s for s in schedules if same_bits(emulate(s, inputs, op, rank), observed)]
