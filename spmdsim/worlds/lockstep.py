"""LockStep: one process owns all ranks and runs each collective on the list of their shards.

Reductions go through the members of a group in its order (their mesh coordinates). Ranks whose results are
equal share one array, so thousands of ranks cost what their distinct pieces cost.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from spmdsim.bounded import Bounded
from spmdsim.core import Bounds
from spmdsim.errors import PlanError, WorldError
from spmdsim.redistribution.reshape.flat import flat_receives
from spmdsim.redistribution.sparse_lookup import RowStep
from spmdsim.redistribution.step import EXCHANGES, LOCAL_STEPS, Step, overlap
from spmdsim.redistribution.ways.rank_transfers import Index, within
from spmdsim.worlds.base import RANKS_VARIABLE, World
from spmdsim.worlds.local_lookup import Peers, return_all_rows, run_all_rows
from spmdsim.worlds.local_steps import contiguous, filling, slicing
from spmdsim.worlds.mpi.fingerprint import check_mode
from spmdsim.worlds.reduce_ops import add_on, add_up, check_reduce, fold
from spmdsim.worlds.reshaping import reshaping

Shards = list[Any]
Program = Callable[[Shards, Shards], None]

#: Steps whose derived form is kept.
KEPT = 512


class LockStep(World):
    """A world of ``size`` ranks in this process, without MPI.

    With ``SPMDSIM_CHECK=values`` the copies that operators and redistributions read are compared, as on real ranks.

    >>> LockStep(4).ranks
    range(0, 4)
    """

    def __init__(self, size: int = 1) -> None:
        super().__init__(size, range(size) if isinstance(size, int) else ())
        self._programs: Bounded[tuple[Step, np.dtype], _Compiled] = Bounded(KEPT)
        self.watches_values = check_mode(None) == "values"

    def _how(self, size: int) -> str:
        return f": spmdsim.world({size}), {RANKS_VARIABLE}={size}, or `spmdsim launch -n {size}`"

    def _run(self, step: Step, shards: Shards, algorithm: str | None) -> Shards:
        dtype = shards[0].dtype if shards else np.dtype(float)
        program = self._programs.get((step, dtype))
        if program is None:
            program = self._keep(step, dtype)
        program.check(shards)
        if algorithm is not None and program.groups:
            return self._emulate(step, shards, algorithm)
        results = list(program.outside)
        program.run(shards, results)
        return results

    def _run_rows(self, step: RowStep, ids: Shards, values: Shards) -> tuple[Shards, list[Peers]]:
        self.check_mesh(step.src.mesh)
        run = return_all_rows if step.goes_back else run_all_rows
        return run(step, ids, values)

    def _keep(self, step: Step, dtype: np.dtype) -> _Compiled:
        self.check_step(step)
        program = _compile(step, dtype, self.size)
        self._programs[step, dtype] = program
        return program

    def _emulate(self, step: Step, shards: Shards, algorithm: str) -> Shards:
        """Every group's schedule, all its ranks in this process."""
        from spmdsim.collectives.lockstep_run import run_lock_step
        from spmdsim.worlds.emulated import emulation

        results, dtype = list(self._programs[step, shards[0].dtype].outside), shards[0].dtype
        for members in step.src.mesh.groups(*step.axes):
            parts = {rank: emulation(step, algorithm, rank, dtype) for rank in members}
            inputs = [parts[rank].pack(contiguous(shards[rank])) for rank in members]
            one = parts[members[0]]
            outputs = run_lock_step(one.schedule, inputs, one.function(dtype), one.sizes)
            for rank, vector in zip(members, outputs):
                assert vector is not None  # for the type checker: all ranks of these collectives have output
                results[rank] = parts[rank].unpack(vector)
        return results


@dataclass(frozen=True)
class _Compiled:
    """A step derived for all ranks."""

    step: Step
    shapes: list[tuple[int, ...]]
    outside: Shards
    run: Program
    groups: bool

    def check(self, shards: Shards) -> None:
        if [shard.shape for shard in shards] == self.shapes:
            return
        if len(shards) != len(self.shapes):
            raise WorldError(f"{len(shards)} shards were given for {len(self.shapes)} ranks")
        rank = next(r for r, s in enumerate(self.shapes) if shards[r].shape != s)
        raise WorldError(
            f"rank {rank} holds a shard of shape {shards[rank].shape}, "
            f"but {self.step.src} gives it {self.shapes[rank]}"
        )


def _compile(step: Step, dtype: np.dtype, size: int) -> _Compiled:
    shapes = [step.src.local_shape(step.shape, rank) for rank in range(size)]
    nothing = np.zeros((0,) * len(step.shape_after), dtype)
    groups = step.collective not in (*LOCAL_STEPS, *EXCHANGES)
    return _Compiled(step, shapes, [nothing] * size, _program(step, dtype), groups)


def _program(step: Step, dtype: np.dtype) -> Program:
    if step.collective == "slice":
        return _slices(step)
    if step.collective == "fill":
        return _fills(step, dtype)
    if step.collective == "reshape":
        return _reshapes(step)
    if step.collective == "exchange":
        return _exchange(step) if step.to_shape is None else _numbered(step)
    if step.collective == "reduce_exchange":
        return _summing(step, check_reduce(step.op, dtype))
    derive = _reducing if step.collective in ("all_reduce", "reduce_scatter") else _placing
    if derive is _reducing:
        check_reduce(step.op, dtype)
    programs = [derive(step, members) for members in step.src.mesh.groups(*step.axes)]

    def run(shards: Shards, results: Shards) -> None:
        for program in programs:
            program(shards, results)

    return run


def _slices(step: Step) -> Program:
    jobs = [(rank, slicing(step, rank)) for rank in step.src.mesh.rank_list]

    def run(shards: Shards, results: Shards) -> None:
        made: dict[tuple[int, str], np.ndarray] = {}  # replicas that share an array share its slices
        for rank, job in jobs:
            key = (id(shards[rank]), str(job))
            found = made.get(key)
            if found is None:
                found = made[key] = job(shards[rank])
            results[rank] = found

    return run


def _fills(step: Step, dtype: np.dtype) -> Program:
    jobs = [(rank, filling(step, rank, dtype)) for rank in step.src.mesh.rank_list]

    def run(shards: Shards, results: Shards) -> None:
        for rank, job in jobs:
            results[rank] = job(shards[rank])

    return run


def _distinct(step: Step, members: tuple[int, ...], after: bool) -> dict[Bounds, list[int]]:
    """The members by the box they hold before or after the step."""
    layout = step.dst if after else step.src
    boxes: dict[Bounds, list[int]] = {}
    for rank in members:
        boxes.setdefault(layout.bounds(step.shape, rank), []).append(rank)
    return boxes


def _volume(box: Bounds) -> int:
    return math.prod(stop - start for start, stop in box)


def _placing(step: Step, members: tuple[int, ...]) -> Program:
    """Put the group's distinct source boxes together once, then cut the target boxes out."""
    sources = {box: ranks for box, ranks in _distinct(step, members, False).items() if _volume(box)}
    targets = _distinct(step, members, True)
    if not sources:
        return _empties(step, members)
    union = tuple(
        (min(start for start, _ in spans), max(stop for _, stop in spans)) for spans in zip(*sources)
    )
    _check_cover(step, union, sources, targets)
    puts = [(within(box, union), ranks[0]) for box, ranks in sources.items()]
    cuts = [(_cut(box, union), ranks) for box, ranks in targets.items()]
    shape = tuple(stop - start for start, stop in union)

    def run(shards: Shards, results: Shards) -> None:
        whole = np.empty(shape, shards[members[0]].dtype)
        for index, rank in puts:
            whole[index] = shards[rank]
        for index, ranks in cuts:
            piece = contiguous(whole[index])
            for rank in ranks:
                results[rank] = piece

    return run


def _empties(step: Step, members: tuple[int, ...]) -> Program:
    shapes = [(rank, step.dst.local_shape(step.shape, rank)) for rank in members]

    def run(shards: Shards, results: Shards) -> None:
        for rank, shape in shapes:
            results[rank] = np.empty(shape, shards[rank].dtype)

    return run


def _cut(box: Bounds, union: Bounds) -> Index:
    if any(start == stop for start, stop in box):
        return tuple(slice(0, stop - start) for start, stop in box)
    return within(box, union)


def _check_cover(step: Step, union: Bounds, sources: dict[Bounds, Any], targets: dict[Bounds, Any]) -> None:
    """Refuse a step whose target needs elements that its group does not hold."""
    whole = sum(_volume(box) for box in sources) == _volume(union)
    for target in targets:
        inside = overlap(target, union) == target if whole else None
        if inside is None:
            shared = (overlap(target, source) for source in sources)
            inside = sum(_volume(box) for box in shared if box) == _volume(target)
        if _volume(target) and not inside:
            raise PlanError(
                f"{step.collective} over {step.axes} cannot take {step.src} to {step.dst}: "
                f"the group does not hold the box {target}"
            )


def _reducing(step: Step, members: tuple[int, ...]) -> Program:
    """Reduce the group's arrays once, in group order, then cut the target boxes out."""
    source = step.src.bounds(step.shape, members[0])
    targets = _distinct(step, members, True).items()
    cuts = [(_cut(box, source), ranks) for box, ranks in targets if _volume(box)]
    empty = [
        (tuple(stop - start for start, stop in box), ranks) for box, ranks in targets if not _volume(box)
    ]
    op = str(step.op)

    def run(shards: Shards, results: Shards) -> None:
        total = fold(op, [shards[rank] for rank in members])
        for index, ranks in cuts:
            piece = contiguous(total[index])
            for rank in ranks:
                results[rank] = piece
        for shape, ranks in empty:  # may be longer in some dim than the piece it is cut from
            for rank in ranks:
                results[rank] = np.empty(shape, total.dtype)

    return run


def _exchange(step: Step) -> Program:
    """Every rank's target box, assembled from the boxes it receives."""
    from spmdsim.redistribution.exchange.direct import receives

    jobs = []
    for rank in step.dst.mesh.rank_list:
        target = step.dst.bounds(step.shape, rank)
        pieces = [
            (within(t.box, target), t.peer, within(t.box, step.src.bounds(step.shape, t.peer)))
            for t in receives(step.src, step.dst, step.shape, rank)
        ]
        jobs.append((rank, tuple(stop - start for start, stop in target), pieces))

    def run(shards: Shards, results: Shards) -> None:
        for rank, shape, pieces in jobs:
            result = np.empty(shape, shards[0].dtype)
            for into, peer, part in pieces:
                result[into] = shards[peer][part]
            results[rank] = result

    return run


def _summing(step: Step, op: str) -> Program:
    """Every part added up where its adder does it, in the same order."""
    from spmdsim.redistribution.exchange.direct_reduction import parts

    own = {rank: step.src.bounds(step.shape, rank) for rank in step.src.mesh.rank_list}
    target = {rank: step.dst.bounds(step.shape, rank) for rank in step.dst.mesh.rank_list}
    jobs = []
    for part in parts(step.src, step.dst, step.shape):
        terms = [[(rank, within(part.box, own[rank])) for rank in ranks] for _, ranks in part.adders]
        jobs.append((part, terms, [(rank, within(part.box, target[rank])) for rank in part.wanting]))

    def run(shards: Shards, results: Shards) -> None:
        for rank, box in target.items():
            results[rank] = np.empty([stop - start for start, stop in box], shards[0].dtype)
        for part, terms, places in jobs:
            sums = [add_up(op, [shards[r][index] for r, index in some], len(terms) == 1) for some in terms]
            total = sums[0]
            for number, more in enumerate(sums[1:], start=2):
                total = add_on(op, total, more, part.terms if number == len(sums) else None)
            for rank, index in places:
                results[rank][index] = total

    return run


def _reshapes(step: Step) -> Program:
    jobs = [(rank, reshaping(step, rank)) for rank in step.src.mesh.rank_list]

    def run(shards: Shards, results: Shards) -> None:
        made: dict[int, np.ndarray] = {}  # replicas that share an array share its new shape
        for rank, job in jobs:
            found = made.get(id(shards[rank]))
            results[rank] = made[id(shards[rank])] = job(shards[rank]) if found is None else found

    return run


def _numbered(step: Step) -> Program:
    """Every rank's target shard, assembled by row-major element numbers."""
    jobs = [
        (
            rank,
            step.dst.local_shape(step.shape_after, rank),
            flat_receives(step.src, step.dst, step.shape, step.shape_after, rank),
        )
        for rank in step.dst.mesh.rank_list
    ]

    def run(shards: Shards, results: Shards) -> None:
        for rank, shape, transfers in jobs:
            result = np.empty(shape, shards[0].dtype)
            flat = result.reshape(-1)
            for transfer in transfers:
                flat[transfer.target] = shards[transfer.peer].reshape(-1)[transfer.source]
            results[rank] = result

    return run
