"""Draw figures of values that have few facts: rules, operators, strategies, worlds, modules and verdicts."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

from spmdsim.cost.roofline import flops_of
from spmdsim.errors import many
from spmdsim.figures.canvas import Canvas, width_of
from spmdsim.figures.figures import Figure, fact_rows, list_fields, shorten_value
from spmdsim.tables import Table

if TYPE_CHECKING:
    from spmdsim.arrays import Op
    from spmdsim.arrays.ops.operators import OperatorFunction
    from spmdsim.arrays.rounding import Verdict
    from spmdsim.core import BoundRule, Rule, Strategy
    from spmdsim.nn import Module
    from spmdsim.redistribution.implementations.trial import TunedSteps


def _draw_terms(rule: Rule) -> Canvas:
    """Draw a rule: a row per operand and result, with a cell per dimension.

    A factor is a letter of the rule: in ``"m k, k n -> m n"`` the operands and the result share m, k and n. Cells of
    equal colour have the same first factor. A dimension of size 1 has no factor and no colour. A pointer shows if the
    first factor may be split.

    Args:
        rule: the rule, such as ``Rule.parse("m k, k n -> m n")``.
    """
    results = [f"result {k}" if len(rule.outputs) > 1 else "result" for k in range(len(rule.outputs))]
    terms = [(f"operand {k}", term) for k, term in enumerate(rule.inputs)] + list(zip(results, rule.outputs))
    colour_of: dict[str, int] = {}
    canvas = Canvas()
    for line, (name, term) in enumerate(terms):
        y = line * 34
        canvas.text(0, y + 18, name, "faint")
        x = 80.0
        for dim in term:
            factors = dim if isinstance(dim, tuple) else (dim,)
            words = " ".join(factors) or "1"
            width = max(width_of(words) + 20, 40)
            index = colour_of.setdefault(factors[0], len(colour_of)) if factors else None
            kind = "must stay whole" if factors and factors[0] in rule.whole else "may be split"
            canvas.cell(x, y, width, 26, [words], index, f"{name}, factor {words}: {kind}")
            x += width
        if not term:
            canvas.text(x, y + 18, "scalar", "faint")
    return canvas


def rule_figure(rule: Rule) -> Figure:
    """Draw the rule of an operator, and a table of its other fields.

    Cells of one colour are one factor (a letter of the rule). Empty fields are not in the table; without fields there
    is no table.
    """
    facts = list_fields(rule).items()
    rows = [
        (key, shorten_value(fact)) for key, fact in facts if fact and key not in ("inputs", "outputs", "text")
    ]
    notes = ("dims of one colour are one factor: an axis splits it in all of them",)
    return Figure(f"rule {rule}", (_draw_terms(rule), *([fact_rows(rows)] if rows else ())), notes)


def operator_figure(operator: Op | OperatorFunction[Any, Any]) -> Figure:
    """Draw an operator: its rule, if it does not depend on the operands, and its other fields.

    The note is the first line of the operator's docstring. Empty fields are left out.

    Args:
        operator: the operator, or the public function that calls it.
    """
    op = getattr(operator, "_op", operator)
    facts = {} if op is None else {key: value for key, value in list_fields(op).items() if value}
    rule = facts.pop("rule", None)
    term_parts = () if rule is None or callable(rule) else (_draw_terms(rule),)
    rows = [(key, shorten_value(value)) for key, value in facts.items() if key != "name"]
    about = (operator.__doc__ or "").strip().partition("\n")[0].replace("``", "")
    title = f"operator {operator.name}" + (f": {rule}" if term_parts else "")
    return Figure(title, (*term_parts, *([fact_rows(rows)] if rows else ())), (about,))


def bound_figure(bound: BoundRule) -> Figure:
    """Draw a rule that is bound to shapes: its terms, and a table of the sizes of factors.

    A note has the floating-point operations of the whole operator. A column states if a factor may be split.
    """
    unsplit, columns = bound.rule.whole, ("factor", "size", "may be split")
    rows = tuple(
        (name, f"{size:,}", "no" if name in unsplit else "yes") for name, size in bound.sizes.items()
    )
    notes = (f"{flops_of(bound):,} floating-point operations",)
    return Figure(
        f"rule {bound.rule} with sizes", (_draw_terms(bound.rule), Table(columns, rows, right=(1,))), notes
    )


def strategy_figure(strategy: Strategy) -> Figure:
    """Draw a cell per mesh axis that says what the axis does.

    - "splits m": the axis splits factor m, a dimension of the operator's rule.
    - "pending sum": it splits no factor, but a reduction over the axis is pending.
    - "repeats": neither; the ranks along the axis compute equal results. These cells have no colour.

    Each other axis has a colour of its own. The title names the strategy and the mesh.

    Args:
        strategy: the strategy: the mesh axes that split each factor of an operator's rule.
    """
    factor_of = {axis: factor for factor, axes in strategy.splits for axis in axes}
    reduction_op = {axis: op for axis, _, op in strategy.passed}
    canvas = Canvas()
    x = 0.0
    for number, (axis, size) in enumerate(zip(strategy.mesh.axes, strategy.mesh.shape)):
        text_without_factor = f"pending {reduction_op[axis]}" if axis in reduction_op else "repeats"
        words = [f"{axis}={size}", f"splits {factor_of[axis]}" if axis in factor_of else text_without_factor]
        width = max(map(width_of, words)) + 20
        canvas.cell(x, 0, width, 40, words, number if axis in factor_of or axis in reduction_op else None)
        x += width + 4
    return Figure(f"strategy {strategy} on {strategy.mesh}", (canvas,))


def world_figure(world: Any) -> Figure:
    """Draw a table about a world: its ranks, those of this process, and whether it has data.

    At most 8 ranks of this process are listed. The table also names the machine whose prices choose plans; without one,
    plans are chosen by bytes alone. A note explains the kind of the world.

    Args:
        world: a world, such as a LockStep or MPIWorld; nothing is communicated.
    """
    kinds = {
        "LockStep": "all ranks in this process, in lock step",
        "ShapeOnly": "no data: shapes, bytes and times only",
        "MPIWorld": "a process per rank, real collectives",
    }
    name, owned = type(world).__name__, world.ranks
    ranks_text = f"{len(owned):,}: {', '.join(map(str, owned[:8]))}{', ...' if len(owned) > 8 else ''}"
    machine = getattr(world, "machine", None)
    rows = (
        ("ranks", f"{world.size:,}"),
        ("ranks of this process", ranks_text),
        ("holds data", "yes" if world.has_data else "no"),
        ("machine that chooses", getattr(machine, "name", None) or "bytes alone"),
    )
    notes = (kinds[name],) if name in kinds else ()
    return Figure(f"{name} of {many(world.size, 'rank')}", (fact_rows(rows),), notes)


def tuned_figure(tuned: TunedSteps) -> Figure:
    """Draw a table of the implementations of steps, with the reasons; without steps there is no table."""
    table = Table(("step", "ranks", "implementation", "why"), tuple(tuned.rows), right=(1,))
    title = f"{many(len(tuned.steps), 'step')} with several implementations, on {tuned.machine}"
    return Figure(title, (table,) if table.rows else (), (f"SPMDSIM_TUNE={tuned.mode}",))


def module_figure(module: Module) -> Figure:
    """Draw a table of the parameters of a module, with shapes, types and layouts.

    Parameters of inner modules are included; the title has the number of all elements. Values are not read.
    """
    rows = tuple(
        (name, "x".join(map(str, parameter.shape)) or "scalar", str(parameter.dtype), str(parameter.layout))
        for name, parameter in module.named_parameters()
    )
    table = Table(("parameter", "shape", "dtype", "layout"), rows, right=(1,))
    count = sum(prod(parameter.shape) for _, parameter in module.named_parameters())
    name = type(module).__name__
    return Figure(f"module {name}: {many(len(rows), 'parameter')} with {many(count, 'element')}", (table,))


def verdict_figure(verdict: Verdict) -> Figure:
    """Draw a verdict: right or wrong, its largest error beside the allowed error, and a table.

    The error is a bar on a scale, on which a line marks the allowed error. The scale is left out if no error is allowed
    or the error is infinite. The table has the worst element: its rank and index, the expected and the computed value.
    """
    canvas = Canvas()
    good, words = verdict.ok, f"{'✓' if verdict.ok else '✗'} {verdict.word}"
    width = width_of(words) + 24
    canvas.cell(0, 0, width, 30, [words], 2 if good else 6, verdict.details)
    if verdict.tolerance > 0 and verdict.max_error < float("inf"):
        ratio = verdict.max_error / verdict.tolerance
        length, scale_end = 320.0, max(1.25, ratio * 1.1)
        canvas.text(0, 58, f"error {verdict.max_error:.2g} of {verdict.tolerance:.2g} allowed")
        canvas.cell(0, 66, length, 18, [], None)
        canvas.bar(0, 66, length * min(ratio / scale_end, 1), 18, "#009e73" if good else "#d55e00", "error")
        allowed = length / scale_end
        canvas.line(allowed, 60, allowed, 90, "edge")
        canvas.text(max(allowed, width_of("allowed") / 2), 104, "allowed", "faint", "middle")
    facts = (("rank", str(verdict.rank)), ("element", str(verdict.index)))
    rows = (*facts, ("expected", shorten_value(verdict.expected)), ("got", shorten_value(verdict.got)))
    notes = tuple(note for note in (verdict.why, verdict.compared) if note)
    return Figure(f"verdict: {verdict.word}", (canvas, fact_rows(rows)), notes)
