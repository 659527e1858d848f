"""Run a case, judge its result, and compare the received bytes with those that its layouts predict."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from spmdsim.arrays import Tensor
from spmdsim.arrays.check import check
from spmdsim.arrays.rounding import Verdict
from spmdsim.cases.case import Block, Case, PreparedCase
from spmdsim.cases.injection import Injection, Runner, find_fault
from spmdsim.cases.inputs import ExactInputs, exact_block, parse_case_dtype
from spmdsim.core import Layout
from spmdsim.layout.pieces import describe_misplaced
from spmdsim.redistribution.steps.row_steps import RowStep
from spmdsim.worlds import ShapeOnly
from spmdsim.worlds.base import World
from spmdsim.worlds.trace import Trace, record
from spmdsim.worlds.trace.events import CollectiveEvent


@dataclass(frozen=True)
class Outcome:
    """Outcome of a case; equal on all ranks, except for the bytes and times of ``collectives``.

    Attributes:
        case: the case.
        inputs: layouts of the operands.
        output: layout of the result.
        local_shapes: shapes of rank 0's shards, operands first.
        collectives: the collectives in their order, as this process traced them; without slices and fills, which do not
            communicate.
        counted: bytes that each rank received.
        sent: bytes that each rank sent.
        predicted: bytes that each rank should receive, from the layouts alone.
        as_due: True if every collective moved exactly the bytes of its algorithm, and the planned bytes of every rank
            add up to the prediction.
        seconds: time of the slowest rank.
        on_data: verdict on the data.
        on_whole_numbers: verdict on integers, for which rounding hides no error.
        injection: the injected fault, or None.
        slices: per rank the bounds of its shards, operands first; empty unless verbose.
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
    on_data: Verdict
    on_whole_numbers: Verdict
    injection: Injection | None = None
    slices: list[list[Any]] = field(default_factory=list)

    @property
    def verdict(self) -> Verdict:
        """The verdict on the data, or the verdict on whole numbers if only that one fails."""
        return self.on_data if self.on_whole_numbers.ok or not self.on_data.ok else self.on_whole_numbers

    @property
    def failed_checks(self) -> list[str]:
        """The names of the comparisons that fail."""
        both = {"data": self.on_data, "whole numbers": self.on_whole_numbers}
        return [name for name, verdict in both.items() if not verdict.ok]

    @property
    def word(self) -> str:
        """The verdict in one or two words.

        * For an injected fault that no comparison notices: ``"no effect"`` if no place changes the result, else
          ``"MISSED"``.
        * For a right result with bytes that differ from the prediction: ``"BYTES DIFFER"``.
        * Otherwise the word of :attr:`verdict`.
        """
        if self.injection is not None and not self.failed_checks:
            return "no effect" if self.injection.injection_place is None else "MISSED"
        return self.verdict.word if self.as_due or not self.verdict.ok else "BYTES DIFFER"

    @property
    def ok(self) -> bool:
        """True if the result is right and every rank received the predicted bytes."""
        return self.verdict.ok and self.as_due

    def to_dict(self) -> dict[str, Any]:
        """Return the outcome as plain values for JSON.

        About the case:

        * ``op``, ``mesh`` (size by axis), ``strategy``, ``local_shapes``;
        * ``inputs`` and ``output``: layouts as texts.

        About communication:

        * ``collectives``: a dict per collective, with the bytes of this process's first rank;
        * ``bytes_counted`` (received), ``bytes_sent`` and ``bytes_predicted``: a number per rank;
        * ``seconds``.

        About the result:

        * ``max_error`` (None if it is not finite), ``tolerance``, ``verdict``, ``why`` and ``ok``;
        * ``whole_numbers``: the verdict of the run on integers;
        * with an injected fault, the keys of :meth:`_injection_entries`.
        """
        return {
            "op": self.case.op,
            "mesh": dict(zip(self.case.mesh.axes, self.case.mesh.shape)),
            "strategy": self.case.strategy,
            "inputs": [layout.placement_text() for layout in self.inputs],
            "output": self.output.placement_text(),
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
        } | self._injection_entries()

    def _injection_entries(self) -> dict[str, Any]:
        """Return the entries of :meth:`to_dict` about the injected fault; {} without one.

        * ``injected``: the kind of fault;
        * ``broken``: its place in words;
        * ``effect``: True if the fault changes the result at some place;
        * ``noticed_by``: the comparisons that fail;
        * ``element``: the wrong element; None if none fails.
        """
        if self.injection is None:
            return {}
        verdict, has_effect = self.verdict, self.injection.injection_place is not None
        element = {
            "rank": verdict.rank, "index": verdict.index, "got": str(verdict.got), "expected": str(verdict.expected),
        }  # fmt: skip
        return {
            "injected": self.injection.fault.name,
            "broken": self.injection.text,
            "effect": has_effect,
            "noticed_by": self.failed_checks,
            "element": element if self.failed_checks else None,
        }


def run_case(case: Case, world: World, verbose: bool = False, inject: str | None = None) -> Outcome:
    """Run a case and judge it; all ranks must call it, and all return equal outcomes.

    The case runs twice:

    1. on the data; this run is traced and timed;
    2. on small integers, for which any difference from the reference is an error.

    Operands whose shards are misplaced make the verdict wrong, too. A fault hits both runs.

    Args:
        case: the case.
        world: the world.
        verbose: True to list the bounds of all ranks' shards in ``slices``.
        inject: kind of fault to inject; None for no fault.

    Raises:
        InputError: If the kind of fault is unknown.
    """
    injection = None if inject is None else find_fault(case, world, inject)
    runner = Runner(world, injection)
    program = case.build(runner.world, case.inputs)
    operands = runner.operands(program)
    world.barrier()
    result, trace, elapsed = _run_timed(program, operands)
    with np.errstate(invalid="ignore", over="ignore"):
        verdict = check(runner.result(result), program.reference, depth=program.depth)
    verdict = next(filter(None, (_check_coverage(operand) for operand in program.operands)), verdict)
    exact_verdict = _judge_whole_numbers(case, Runner(world, injection))
    predicted = predict(case, world)
    as_due = all(event.nbytes == event.due for event in trace.collectives)
    own_counts = [
        (trace.nbytes(rank), trace.sent(rank), as_due and trace.planned(rank) == predicted[rank], elapsed)
        for rank in world.ranks
    ]
    counted, sent, due, times = zip(*world.gather_objects(own_counts))
    tensors = (*program.operands, result)
    slices = [[t.layout.bounds(t.shape, r) for t in tensors] for r in range(world.size)] if verbose else []
    return Outcome(
        case=case,
        inputs=tuple(operand.layout for operand in program.operands),
        output=result.layout,
        local_shapes=tuple(t.layout.local_shape(t.shape, 0) for t in tensors),
        collectives=tuple(e for e in trace.collectives if e.collective not in ("slice", "fill")),
        counted=tuple(counted),
        sent=tuple(sent),
        predicted=predicted,
        as_due=all(due),
        seconds=max(times),
        on_data=verdict,
        on_whole_numbers=exact_verdict,
        injection=injection,
        slices=slices,
    )


def _run_timed(program: PreparedCase, operands: tuple[Tensor, ...]) -> tuple[Tensor, Trace, float]:
    """Run a program; return its result, the trace of its operators and collectives, and the seconds.

    All ranks must call it. NaN and inf of a file are ordinary values, so NumPy's warnings about them are switched off:
    the verdict reports whether they are in the right places.
    """
    with np.errstate(invalid="ignore", over="ignore"), record() as trace:
        start = time.perf_counter()
        result = program.run(*operands)
        return result, trace, time.perf_counter() - start


def _judge_whole_numbers(case: Case, runner: Runner) -> Verdict:
    """Return the verdict of a second run on integers, whose sums are exact in every order.

    Any difference from the reference is an error.
    """
    program, result = runner.run(case, ExactInputs(case.inputs))
    verdict = check(result, lambda index: exact_block(program.reference(index), result.dtype), depth=0)
    why = "whole numbers, exact in any order" if verdict.index is not None else verdict.why
    return replace(verdict, why=why, compared="")


def _check_coverage(operand: Tensor) -> Verdict | None:
    """Return the verdict on an operand whose shards are misplaced, or None if they are not."""
    problem = describe_misplaced(operand.layout, operand.shape, range(operand.world.size))
    return (
        None if problem is None else Verdict("WRONG", math.inf, 0.0, f"an operand is not covered: {problem}")
    )


def predict(case: Case, world: World) -> tuple[int, ...]:
    """Return the bytes that each rank should receive in a case, in rank order.

    The case's program runs without data, in a world that computes shapes only. It has the nodes and the machine of
    ``world``, on which plans depend. Only the ids of embedding cases are read, because they decide which rows a rank
    receives.

    Args:
        case: the case.
        world: the world in which the case runs.
    """
    shapes = ShapeOnly(world.size, nodes=world.nodes)
    shapes.machine = world.machine
    with record() as trace:
        program = case.build(shapes, case.inputs)
        program.run(*program.operands)
    nbytes = [0] * world.size
    for event in trace.collectives:
        for rank in event.step.dst.mesh.rank_list:
            nbytes[rank] += _predict_bytes(event, rank, program.ids)
    return tuple(nbytes)


def _predict_bytes(event: CollectiveEvent, rank: int, ids: Block | None) -> int:
    """Return the bytes that a rank receives in a step.

    Args:
        event: the traced step.
        rank: the rank.
        ids: function of an index that returns ids, on which the bytes of a step of rows depend; None if there are
            none.
    """
    step, itemsize = event.step, parse_case_dtype(event.dtype).itemsize
    if ids is None or not isinstance(step, RowStep):
        return step.nbytes(rank, itemsize)
    return itemsize * step.received_for_ids(rank, ids(step.src.slices(step.shape, rank)[:-1]))
