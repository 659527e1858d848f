"""One case of the main job: an operator, a strategy, and the reference that judges it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from spmdsim.cases.inputs import parse_dtype
from spmdsim.layout import Layout, Mesh
from spmdsim.layout.pieces import misplaced
from spmdsim.redistribution.rows import RowStep
from spmdsim.tensor import Tensor
from spmdsim.tensor.check import check
from spmdsim.tensor.verdict import Verdict
from spmdsim.trace import record
from spmdsim.trace.events import CollectiveEvent
from spmdsim.worlds import ShapeOnly
from spmdsim.worlds.base import World

Block = Callable[[tuple[slice, ...]], Any]


@dataclass(frozen=True)
class Program:
    """A case ready to run in a world.

    Attributes:
        operands: the operands, each rank holding its piece.
        run: computes the result.
        reference: gives any block of the right result, in one process, with plain numpy: a function and its operands,
            or an array where there is nothing to round.
        depth: 0 where results are copied, and have to be equal.
        ids: gives any block of the ids on which it depends what is received, if it does.
    """

    operands: tuple[Tensor, ...]
    run: Callable[[], Tensor]
    reference: Block
    depth: int = 1
    ids: Block | None = None


@dataclass(frozen=True)
class Case:
    """What to run.

    Attributes:
        op: the operator's name.
        mesh: the mesh.
        strategy: how it is laid out, in words.
        build: makes the program for a world.
    """

    op: str
    mesh: Mesh
    strategy: str
    build: Callable[[World], Program]


@dataclass(frozen=True)
class Outcome:
    """What came out; the same on all ranks but for ``slices``.

    Attributes:
        case: the case.
        inputs: layouts of the operands.
        output: layout of the result.
        local_shapes: shapes of rank 0's pieces, operands first.
        collectives: what rank 0 took part in.
        counted: bytes each rank received, as counted while running.
        sent: bytes each rank sent, as counted.
        predicted: bytes each rank was to receive by the convention of plans, from the layouts alone.
        as_due: whether every step moved what its way moves (see ``CollectiveEvent.due``), and amounts to what was
            predicted.
        seconds: time of the slowest rank, redistributions included.
        verdict: the comparison with the reference.
        slices: per rank the bounds of its pieces, operands first.
    """

    case: Case
    inputs: tuple[Layout, ...]
    output: Layout
    local_shapes: tuple[tuple[int, ...], ...]
    collectives: tuple[CollectiveEvent, ...]
    counted: tuple[int, ...]
    sent: tuple[int, ...]
    predicted: tuple[int, ...]
    as_due: bool
    seconds: float
    verdict: Verdict
    slices: list[list[Any]] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """The result is right and every rank received exactly what was predicted, where its steps went that way."""
        return self.verdict.ok and self.as_due

    def to_dict(self) -> dict[str, Any]:
        """Plain types, for JSON."""
        return {
            "op": self.case.op,
            "mesh": dict(zip(self.case.mesh.axes, self.case.mesh.shape)),
            "strategy": self.case.strategy,
            "inputs": [layout.short() for layout in self.inputs],
            "output": self.output.short(),
            "local_shapes": [list(shape) for shape in self.local_shapes],
            "collectives": [
                {
                    "collective": event.collective,
                    "axis": ",".join(event.axes),
                    "group_size": event.group_size,
                    "nbytes_per_rank": event.nbytes[0],
                    "sent_per_rank": event.sent[0],
                    "planned_per_rank": event.planned[0],
                    "by": event.way,
                }
                for event in self.collectives
            ],
            "bytes_counted": list(self.counted),
            "bytes_sent": list(self.sent),
            "bytes_predicted": list(self.predicted),
            "seconds": self.seconds,
            "max_error": self.verdict.max_error if math.isfinite(self.verdict.max_error) else None,
            "tolerance": self.verdict.tolerance,
            "verdict": self.verdict.word,
            "why": self.verdict.why,
            "ok": self.ok,
        }


def run_case(case: Case, world: World, verbose: bool = False) -> Outcome:
    """Run a case and judge it. All ranks must call it; all return the same outcome."""
    program = case.build(world)
    world.barrier()
    # A file's nan and inf are values like others: the verdict says whether they are where they should be.
    with np.errstate(invalid="ignore", over="ignore"), record() as trace:
        start = time.perf_counter()
        result = program.run()
        elapsed = time.perf_counter() - start
    with np.errstate(invalid="ignore", over="ignore"):
        verdict = check(result, program.reference, depth=program.depth)
    verdict = next(filter(None, (_lost(operand) for operand in program.operands)), verdict)
    predicted, as_due = predict(case, world.size), all(e.nbytes == e.due for e in trace.collectives)
    mine = [
        (trace.nbytes(rank), trace.sent(rank), as_due and trace.planned(rank) == predicted[rank], elapsed)
        for rank in world.ranks
    ]
    counted, sent, due, times = zip(*world.gather_objects(mine))
    tensors = (*program.operands, result)
    slices = [[t.layout.bounds(t.shape, r) for t in tensors] for r in range(world.size)] if verbose else []
    return Outcome(
        case,
        tuple(t.layout for t in program.operands),
        result.layout,
        tuple(t.layout.local_shape(t.shape, 0) for t in tensors),
        tuple(e for e in trace.collectives if e.collective not in ("slice", "fill")),
        tuple(counted),
        tuple(sent),
        predicted,
        all(due),
        max(times),
        verdict,
        slices,
    )


def _lost(operand: Tensor) -> Verdict | None:
    """The verdict on an operand whose pieces are not where they belong."""
    problem = misplaced(operand.layout, operand.shape, range(operand.world.size))
    return (
        None if problem is None else Verdict("WRONG", math.inf, 0.0, f"an operand is not covered: {problem}")
    )


def predict(case: Case, size: int) -> tuple[int, ...]:
    """Bytes each rank will receive: the program followed by shapes only, without data (but ids) or messages."""
    with record() as trace:
        program = case.build(ShapeOnly(size))
        program.run()
    return tuple(
        sum(_nbytes(event, rank, program.ids) for event in trace.collectives if rank in event.step.dst.mesh)
        for rank in range(size)
    )


def _nbytes(event: CollectiveEvent, rank: int, ids: Block | None) -> int:
    step, itemsize = event.step, parse_dtype(event.dtype).itemsize
    if ids is None or not isinstance(step, RowStep):
        return step.nbytes(rank, itemsize)
    return itemsize * step.received(rank, ids(step.src.slices(step.shape, rank)[:-1]))
