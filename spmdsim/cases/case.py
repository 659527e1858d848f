"""One case of the main job: an operator, a strategy, and the reference that judges it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from spmdsim.arrays import Tensor
from spmdsim.arrays.check import check
from spmdsim.arrays.rounding import Verdict
from spmdsim.cases.injection import Injection, Runner, find
from spmdsim.cases.inputs import ExactInputs, Inputs, exact_block, parse_dtype
from spmdsim.core import Layout, Mesh
from spmdsim.layout.pieces import describe_misplaced
from spmdsim.redistribution.steps.row_steps import RowStep
from spmdsim.worlds import ShapeOnly
from spmdsim.worlds.base import World
from spmdsim.worlds.trace import record
from spmdsim.worlds.trace.events import CollectiveEvent

Block = Callable[[tuple[slice, ...]], Any]


@dataclass(frozen=True)
class PreparedCase:
    """A case that is ready to run in a world."""

    operands: tuple[Tensor, ...]
    run: Callable[..., Tensor]
    reference: Block  # of an index: a function and its operands, or an array where nothing is rounded
    depth: int = 1  # 0 where results are copied, and have to be equal
    ids: Block | None = None  # what it depends on what is received, if it does


@dataclass(frozen=True)
class Case:
    """A declared case: its operator, operands and reference."""

    op: str
    mesh: Mesh
    strategy: str  # in words
    build: Callable[[World, Inputs], PreparedCase]
    inputs: Inputs


@dataclass(frozen=True)
class Outcome:
    """The outcome of a case; equal on all ranks except for ``slices``."""

    case: Case
    inputs: tuple[Layout, ...]
    output: Layout
    local_shapes: tuple[tuple[int, ...], ...]  # of rank 0, operands first
    collectives: tuple[CollectiveEvent, ...]  # of rank 0
    counted: tuple[int, ...]  # bytes each rank received
    sent: tuple[int, ...]
    predicted: tuple[int, ...]  # from the layouts alone
    as_due: bool  # every step moved what its way moves, and amounts to what was predicted
    seconds: float  # of the slowest rank
    on_data: Verdict
    on_whole_numbers: Verdict  # where no rounding hides anything
    injection: Injection | None = None
    slices: list[list[Any]] = field(default_factory=list)  # per rank the bounds of its pieces

    @property
    def verdict(self) -> Verdict:
        """The verdict on the data, or the verdict on whole numbers if only that one fails."""
        return self.on_data if self.on_whole_numbers.ok or not self.on_data.ok else self.on_whole_numbers

    @property
    def noticed(self) -> list[str]:
        """The names of the comparisons that fail."""
        both = {"data": self.on_data, "whole numbers": self.on_whole_numbers}
        return [name for name, verdict in both.items() if not verdict.ok]

    @property
    def word(self) -> str:
        """The verdict's word, or ``"BYTES DIFFER"``; for an injected fault ``"no effect"`` or ``"MISSED"``."""
        if self.injection is not None and not self.noticed:
            return "no effect" if self.injection.place is None else "MISSED"
        return self.verdict.word if self.as_due or not self.verdict.ok else "BYTES DIFFER"

    @property
    def ok(self) -> bool:
        """True if the result is right and every rank received the predicted bytes."""
        return self.verdict.ok and self.as_due

    def to_dict(self) -> dict[str, Any]:
        """Return the outcome as plain values for JSON."""
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
            "verdict": self.verdict.word if self.injection is None else self.word,
            "why": self.verdict.why,
            "whole_numbers": self.on_whole_numbers.word,
            "ok": self.ok,
        } | self._injected()

    def _injected(self) -> dict[str, Any]:
        if self.injection is None:
            return {}
        verdict, has_effect = self.verdict, self.injection.place is not None
        element = {
            "rank": verdict.rank, "index": verdict.index, "got": str(verdict.got), "expected": str(verdict.expected),
        }  # fmt: skip
        return {
            "injected": self.injection.fault.name,
            "broken": self.injection.text,
            "effect": has_effect,
            "noticed_by": self.noticed,
            "element": element if self.noticed else None,
        }


def run_case(case: Case, world: World, verbose: bool = False, inject: str | None = None) -> Outcome:
    """Run a case, broken by a kind of fault if one is named, and judge it. All ranks call it and return the same."""
    injection = None if inject is None else find(case, world, inject)
    runner = Runner(world, injection)
    program = case.build(runner.world, case.inputs)
    operands = runner.operands(program)
    world.barrier()
    # A file's nan and inf are values like others: the verdict says whether they are where they should be.
    with np.errstate(invalid="ignore", over="ignore"), record() as trace:
        start = time.perf_counter()
        result = program.run(*operands)
        elapsed = time.perf_counter() - start
    with np.errstate(invalid="ignore", over="ignore"):
        verdict = check(runner.result(result), program.reference, depth=program.depth)
    verdict = next(filter(None, (_lost(operand) for operand in program.operands)), verdict)
    exact = _on_whole_numbers(case, Runner(world, injection))
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
        exact,
        injection,
        slices,
    )


def _on_whole_numbers(case: Case, runner: Runner) -> Verdict:
    """Run the case again on numbers whose sums are exact in every order, so that any difference is an error."""
    program, result = runner.run(case, ExactInputs(case.inputs))
    verdict = check(result, lambda index: exact_block(program.reference(index), result.dtype), depth=0)
    why = "whole numbers, exact in any order" if verdict.index is not None else verdict.why
    return replace(verdict, why=why, compared="")


def _lost(operand: Tensor) -> Verdict | None:
    """Return the verdict on an operand whose shards are misplaced, or None if they are not."""
    problem = describe_misplaced(operand.layout, operand.shape, range(operand.world.size))
    return (
        None if problem is None else Verdict("WRONG", math.inf, 0.0, f"an operand is not covered: {problem}")
    )


def predict(case: Case, size: int) -> tuple[int, ...]:
    """Predict the bytes that each rank receives, by running the program with shapes only."""
    with record() as trace:
        program = case.build(ShapeOnly(size), case.inputs)
        program.run(*program.operands)
    return tuple(
        sum(_nbytes(event, rank, program.ids) for event in trace.collectives if rank in event.step.dst.mesh)
        for rank in range(size)
    )


def _nbytes(event: CollectiveEvent, rank: int, ids: Block | None) -> int:
    step, itemsize = event.step, parse_dtype(event.dtype).itemsize
    if ids is None or not isinstance(step, RowStep):
        return step.nbytes(rank, itemsize)
    return itemsize * step.received_for_ids(rank, ids(step.src.slices(step.shape, rank)[:-1]))
