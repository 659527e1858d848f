"""Print a plan as text, and convert it to plain types: its steps, the lower bound, and the candidates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from spmdsim.core import Layout
from spmdsim.core.step import Step
from spmdsim.cost.machine import Machine
from spmdsim.errors import many
from spmdsim.layout.element_type import element_type
from spmdsim.redistribution.implementations.implementation import step_buffer
from spmdsim.redistribution.plans.plan_candidates import Candidate
from spmdsim.redistribution.step_counts import (
    count_received,
    largest_shard_shape,
    most_sent,
    step_messages,
)
from spmdsim.tables import Table, join_text

if TYPE_CHECKING:
    from spmdsim.redistribution.plans.planner import Plan

_HEAD = (
    *("step", "collective", "over", "local shape"),
    *("received", "sent", "total", "messages", "time", "buffer"),
)


def bytes_text(nbytes: float, digits: str = ".4g") -> str:
    """Return a byte count as text, in the largest unit in which it is at least 1 after rounding.

    >>> bytes_text(1536), bytes_text(100), bytes_text(3 * 2**20), bytes_text(2**20 - 1), bytes_text(2**50)
    ('1.5 KiB', '100 B', '3 MiB', '1 MiB', '1 PiB')
    """
    for power, unit in ((60, "EiB"), (50, "PiB"), (40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if nbytes >= (size := 2**power) - size / 2048:
            return f"{nbytes / size:{digits}} {unit}"
    return f"{nbytes:.0f} B"


def seconds_text(seconds: float) -> str:
    """Return a time as text with three digits, in a unit in which it is less than 1000.

    Units are s, ms, us and ns. Times from 999.5 s on, and 0, are in whole seconds.

    >>> seconds_text(0.00025), seconds_text(0), seconds_text(0.0009997), seconds_text(86400)
    ('250 us', '0 s', '1 ms', '86,400 s')
    """
    if seconds == 0 or seconds >= 999.5:
        return f"{seconds:,.0f} s"
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= 0.9995 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def plan_table(plan: Plan) -> str:
    """Return the plan as text: its steps, the verdict, and the candidates."""
    return join_text(plan_parts(plan))


def plan_parts(plan: Plan) -> list[str | Table]:
    """Return the lines and tables that describe a plan, in the order in which they are read.

    - type, shapes and layouts: "float32[8x8]: [a, b] over a=2 b=2 -> [a, -] over a=2 b=2";
    - the trace of layouts: "S(0)S(1) -> S(0)R";
    - for 16-bit sums, the line that they travel as float32;
    - the table of steps, or the line that nothing is to do;
    - the comparison with the lower bound (:func:`_verdict_line`);
    - for a :class:`Machine`, the certainty of its times;
    - the table of candidates, if there are several kinds.
    """
    shape = "x".join(map(str, plan.shape)) or "scalar"
    to = "" if plan.to_shape is None else f" to {'x'.join(map(str, plan.to_shape)) or 'scalar'}"
    parts: list[str | Table] = [f"{plan.dtype}[{shape}]{to}: {plan.src} -> {plan.dst}", f"  {plan.trace}"]
    if plan.itemsize != element_type(plan.dtype).itemsize:
        parts.append(
            f"  sums of {plan.dtype} travel as float32, 4 bytes per element, and are rounded once, in the end"
        )
    if plan.steps:
        parts.append(steps_table(plan))
    else:
        parts.append("  nothing to do: every rank holds its shard already")
    parts.append(_verdict_line(plan))
    if isinstance(plan.machine, Machine):
        parts.append(plan.machine.certainty)
    if len(best_of_each_kind(plan.alternatives)) > 1:
        parts.append(candidates_table(plan))
    return parts


def steps_table(plan: Plan) -> Table:
    """Return the table of a plan's steps; bytes are those of the rank that sends or receives most."""
    rows = [_step_row(plan, number) for number in range(len(plan.steps))]
    return Table(_HEAD, rows, right=(0, *range(4, len(_HEAD))))


def candidates_table(plan: Plan) -> Table:
    """Return the table of the candidates among which a plan was chosen: the best one of each kind."""
    rows = [_candidate_row(plan, candidate) for candidate in best_of_each_kind(plan.alternatives)]
    return Table(
        ("kind", "steps", "received", "time", "remark"), rows, f"considered{_model_text(plan)}", (2, 3)
    )


def best_of_each_kind(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return the first candidate of every kind, in order. For sorted candidates, it is the best one."""
    kinds: dict[str, Candidate] = {}
    for candidate in candidates:
        kinds.setdefault(candidate.kind, candidate)
    return list(kinds.values())


def plan_dict(plan: Plan) -> dict[str, Any]:
    """Return the plan in plain types, for JSON.

    - The keys are those of the attributes of :class:`Plan`, with layouts and steps as dicts.
    - Keys with ``nbytes`` or ``lower_bound`` are in bytes: ``max_`` stands for the busiest rank, ``total_`` for all
      ranks, ``node_`` for the busiest node (None if no ranks share a port).
    - ``seconds`` are modelled. ``interval`` is the range ``(low, high)`` of :meth:`Machine.between` in seconds, or
      None if the cost model has none.
    - ``machine`` is its name; None if bytes alone were compared.
    - ``alternatives`` has the best candidate of each kind.
    """
    return {
        "shape": [int(size) for size in plan.shape],
        "to_shape": None if plan.to_shape is None else [int(size) for size in plan.to_shape],
        "dtype": plan.dtype,
        "itemsize": plan.itemsize,
        "src": _layout_dict(plan.src),
        "dst": _layout_dict(plan.dst),
        "kind": plan.kind,
        "trace": plan.trace,
        "steps": [_step_dict(plan, number) for number in range(len(plan.steps))],
        "max_nbytes": plan.max_nbytes,
        "max_sent_nbytes": plan.max_sent_nbytes,
        "total_nbytes": plan.total_nbytes,
        "peak_nbytes": plan.peak_nbytes,
        "max_lower_bound": plan.max_lower_bound,
        "total_lower_bound": plan.total_lower_bound,
        "bound_ranks": plan.bound_ranks,
        "node_nbytes": plan.node_nbytes,
        "node_lower_bound": plan.node_lower_bound,
        "ratio": plan.ratio,
        "seconds": plan.seconds,
        "interval": plan.machine.between(plan.seconds) if isinstance(plan.machine, Machine) else None,
        "machine": None if plan.machine is None else plan.machine.name,
        "alternatives": [
            _candidate_dict(candidate, plan.itemsize) for candidate in best_of_each_kind(plan.alternatives)
        ],
    }


def _candidate_dict(candidate: Candidate, itemsize: int) -> dict[str, Any]:
    """Return a candidate in plain types.

    It has the kind, the names of the collectives, the busiest rank's bytes (elements times ``itemsize``), the
    modelled seconds, and True under "allowed" if its shards stay small.
    """
    return {
        "kind": candidate.kind,
        "steps": [step.collective for step in candidate.steps],
        "max_nbytes": candidate.most_received * itemsize,
        "seconds": candidate.seconds,
        "allowed": candidate.allowed,
    }


def _step_row(plan: Plan, number: int) -> tuple[str, ...]:
    """Return the row of step ``number`` (from 0) in a plan's table of steps, as texts.

    The columns are those of ``_HEAD``: number (from 1), collective, axes, largest shard before and after, bytes that
    the busiest rank receives and sends, bytes of all ranks, messages, time, and buffer. For example: "1",
    "all_gather", "b (2 x 2 ranks)", "4x4 -> 4x8", "64 B", "64 B", "256 B", "1", "7.68 ns", "128 B".
    """
    step, facts = plan.steps[number], _step_dict(plan, number)
    sizes = ("max_nbytes", "max_sent_nbytes", "total_nbytes")
    return (
        str(number + 1),
        step.collective,
        _axes_text(step),
        " -> ".join(map(_shape_text, facts["local_shape"])),
        *(bytes_text(facts[size]) for size in sizes),
        str(facts["messages"]),
        seconds_text(facts["seconds"]),
        bytes_text(facts["buffer_nbytes"]),
    )


def _step_dict(plan: Plan, number: int) -> dict[str, Any]:
    """Return step ``number`` (from 0) of a plan in plain types.

    * ``collective``, ``axes`` and ``op``: those of the step; ``group_size`` is None without axes.
    * ``src`` and ``dst``: the layouts as text, such as "S(0)R".
    * ``local_shape``: two shapes, of the largest shard before and of the largest shard after.
    * ``max_nbytes`` and ``max_sent_nbytes``: bytes that the busiest rank receives and sends; ``total_nbytes``: bytes
      that all ranks receive.
    * ``messages``: those that the busiest rank receives; ``seconds``: modelled.
    * ``buffer_nbytes``: new bytes of the rank that needs most, see :func:`step_buffer`.
    """
    step = plan.steps[number]
    received, seconds = plan.prices[number]
    ends = (step.src, step.shape), (step.dst, step.shape_after)
    return {
        "collective": step.collective,
        "axes": list(step.axes),
        "group_size": step.src.mesh.axis_size(*step.axes) if step.axes else None,
        "src": step.src.placement_text(),
        "dst": step.dst.placement_text(),
        "op": step.op,
        "local_shape": [largest_shard_shape(layout.mesh, layout.dims, shape) for layout, shape in ends],
        "max_nbytes": received * plan.itemsize,
        "max_sent_nbytes": (
            most_sent(step) if plan.sent_elements is None else max(plan.sent_elements[number])
        )
        * plan.itemsize,
        "total_nbytes": int(count_received(step).sum()) * plan.itemsize,
        "messages": step_messages(step),
        "seconds": seconds,
        "buffer_nbytes": step_buffer(step, plan.step_dtype),
    }


def _layout_dict(layout: Layout) -> dict[str, Any]:
    """Return a layout in plain types.

    ``mesh`` maps axes to sizes; ``ranks`` is None for ranks 0, 1, ...; ``dims`` has the axes of each dimension;
    ``partial`` maps pending axes to reductions; ``short`` is such as "S(0)R".
    """
    mesh = layout.mesh
    return {
        "mesh": dict(zip(mesh.axes, mesh.shape)),
        "ranks": None if mesh.ranks is None else list(mesh.ranks),
        "dims": [list(entry) for entry in layout.dims],
        "partial": dict(layout.partial),
        "short": layout.placement_text(),
    }


def _verdict_line(plan: Plan) -> str:
    """Return the line that compares a plan's received bytes with the lower bound.

    For example: "busiest rank: 96 B, lower bound 64 B, ratio 1.5; all ranks: 256 B, lower bound 256 B; busiest
    sender: 64 B; 11.5 ns by bytes alone". If the busiest rank reaches its bound, the line says "64 B = the lower
    bound" instead.

    - The ratio is at least 1.001, because it is above the bound; it is left out if the bound is 0.
    - For sums, the number of ranks for which the bound holds is named.
    - The busiest sender is left out if nothing is received.
    - If ranks of a node share a port, the busiest node's bytes and bound follow those of the sender.
    """
    busiest, bound = plan.max_nbytes, plan.max_lower_bound
    total = f"all ranks: {bytes_text(plan.total_nbytes)}, lower bound {bytes_text(plan.total_lower_bound)}"
    if plan.max_nbytes:
        total += f"; busiest sender: {bytes_text(plan.max_sent_nbytes)}"
    if plan.node_nbytes is not None:
        total += f"; busiest node: {bytes_text(plan.node_nbytes)} enter its port by the model"
        if plan.node_lower_bound is not None:
            total += f", lower bound {bytes_text(plan.node_lower_bound)}"
    ranks_text = f" for these {many(plan.bound_ranks, 'rank')}" if plan.bound_ranks else ""
    if busiest == bound:
        text = (
            "nothing is received" if not busiest else f"{bytes_text(busiest)} = the lower bound{ranks_text}"
        )
        return f"busiest rank: {text}; {total}; {seconds_text(plan.seconds)}{_model_text(plan)}"
    ratio = f", ratio {max(plan.ratio, 1.001):.4g}" if bound else ""  # never "ratio 1" above the bound
    return (
        f"busiest rank: {bytes_text(busiest)}, lower bound{ranks_text} {bytes_text(bound)}{ratio}; {total}; "
        f"{seconds_text(plan.seconds)}{_model_text(plan)}"
    )


def _model_text(plan: Plan) -> str:
    """Return the text that names the cost model of a plan."""
    return " by bytes alone" if plan.machine is None else f" on {plan.machine.name}"


def _candidate_row(plan: Plan, candidate: Candidate) -> tuple[str, ...]:
    """Return the row of a candidate in the table of candidates, as texts.

    The columns are the kind, the collectives, the bytes that the busiest rank receives, the time, and remarks. For
    example: "collectives", "all_gather", "64 B", "7.68 ns", "the lower bound; taken". The remarks are

    - "the lower bound" if the busiest rank receives no more than that;
    - "not taken: ..." with the reason if the candidate is not allowed, because shards in between are too large;
    - "taken" if its steps are the plan's.
    """
    nbytes = candidate.most_received * plan.itemsize
    remarks = ["the lower bound"] if nbytes == plan.max_lower_bound else []
    if not candidate.allowed:
        more = "receives more" if plan.machine is None else "takes longer"
        dearer = f"{more} and " if candidate.seconds > plan.seconds else ""
        remarks.append(
            f"not taken: it {dearer}holds {bytes_text(candidate.largest_shard * plan.itemsize)} in between"
        )
    if candidate.steps == plan.steps:
        remarks.append("taken")
    steps = " + ".join(step.collective for step in candidate.steps) or "nothing"
    return candidate.kind, steps, bytes_text(nbytes), seconds_text(candidate.seconds), "; ".join(remarks)


def _axes_text(step: Step) -> str:
    """Return the axes of a step and the number and size of its groups as text; "-" without axes.

    An example is ``dp,tp (2 x 4 ranks)``: two groups of four ranks.
    """
    if not step.axes:
        return "-"
    size = step.src.mesh.axis_size(*step.axes)
    groups = step.src.mesh.size // size
    return f"{','.join(step.axes)} ({groups} x {many(size, 'rank')})"


def _shape_text(shape: Sequence[int]) -> str:
    """Return a shape as text, such as ``4x8``."""
    return "x".join(map(str, shape)) or "scalar"
