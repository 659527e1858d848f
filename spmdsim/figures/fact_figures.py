"""Figures of values that are mostly facts: rules, strategies, worlds and verdicts."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

from spmdsim.cost.roofline import flops_of
from spmdsim.errors import many
from spmdsim.figures.canvas import Canvas, width_of
from spmdsim.figures.figures import Figure, fact_rows, facts_of, short
from spmdsim.tables import Table

if TYPE_CHECKING:
    from spmdsim.arrays import Op
    from spmdsim.arrays.ops.operators import OperatorFunction
    from spmdsim.arrays.rounding import Verdict
    from spmdsim.core import BoundRule, Rule, Strategy
    from spmdsim.nn import Module
    from spmdsim.redistribution.implementations.trial import TunedSteps


def _terms(rule: Rule) -> Canvas:
    """A rule as boxes: a row per operand and result, a cell per dim, factors of one name in one colour."""
    results = [f"result {k}" if len(rule.outputs) > 1 else "result" for k in range(len(rule.outputs))]
    terms = [(f"operand {k}", term) for k, term in enumerate(rule.inputs)] + list(zip(results, rule.outputs))
    number: dict[str, int] = {}
    out = Canvas()
    for line, (name, term) in enumerate(terms):
        y = line * 34
        out.text(0, y + 18, name, "faint")
        x = 80.0
        for dim in term:
            factors = dim if isinstance(dim, tuple) else (dim,)
            words = " ".join(factors) or "1"
            wide = max(width_of(words) + 20, 40)
            index = number.setdefault(factors[0], len(number)) if factors else None
            kind = "must stay whole" if factors and factors[0] in rule.whole else "may be split"
            out.cell(x, y, wide, 26, [words], index, f"{name}, factor {words}: {kind}")
            x += wide
        if not term:
            out.text(x, y + 18, "scalar", "faint")
    return out


def rule_figure(rule: Rule) -> Figure:
    """The rule of an operator: which dims share a factor."""
    facts = facts_of(rule).items()
    rows = [(key, short(fact)) for key, fact in facts if fact and key not in ("inputs", "outputs", "text")]
    notes = ("dims of one colour are one factor: an axis splits it in all of them",)
    return Figure(f"rule {rule}", (_terms(rule), *([fact_rows(rows)] if rows else ())), notes)


def operator_figure(operator: Op | OperatorFunction[Any, Any]) -> Figure:
    """An operator: the dims of its rule, and what it declares besides."""
    op = getattr(operator, "_op", operator)
    facts = {} if op is None else {key: value for key, value in facts_of(op).items() if value}
    rule = facts.pop("rule", None)
    drawn = () if rule is None or callable(rule) else (_terms(rule),)
    rows = [(key, short(value)) for key, value in facts.items() if key != "name"]
    about = (operator.__doc__ or "").strip().partition("\n")[0].replace("``", "")
    title = f"operator {operator.name}" + (f": {rule}" if drawn else "")
    return Figure(title, (*drawn, *([fact_rows(rows)] if rows else ())), (about,))


def bound_figure(bound: BoundRule) -> Figure:
    """A rule with sizes."""
    whole, columns = bound.rule.whole, ("factor", "size", "may be split")
    rows = tuple((name, f"{size:,}", "no" if name in whole else "yes") for name, size in bound.sizes.items())
    table = Table(columns, rows, f"{flops_of(bound):,} floating-point operations", (1,))
    return Figure(f"rule {bound.rule} with sizes", (_terms(bound.rule), table))


def strategy_figure(strategy: Strategy) -> Figure:
    """Which factor each mesh axis splits."""
    of = {axis: factor for factor, axes in strategy.splits for axis in axes}
    passed = {axis: op for axis, _, op in strategy.passed}
    out = Canvas()
    x = 0.0
    for number, (axis, size) in enumerate(zip(strategy.mesh.axes, strategy.mesh.shape)):
        does = f"pending {passed[axis]}" if axis in passed else "repeats"
        words = [f"{axis}={size}", f"splits {of[axis]}" if axis in of else does]
        wide = max(map(width_of, words)) + 20
        out.cell(x, 0, wide, 40, words, number if axis in of or axis in passed else None)
        x += wide + 4
    return Figure(f"strategy {strategy} on {strategy.mesh}", (out,))


def world_figure(world: Any) -> Figure:
    """Who runs, and how."""
    kinds = {
        "LockStep": "all ranks in this process, in lock step",
        "ShapeOnly": "no data: shapes, bytes and times only",
        "MPIWorld": "a process per rank, real collectives",
    }
    name, owned = type(world).__name__, world.ranks
    shown = f"{len(owned):,}: {', '.join(map(str, owned[:8]))}{', ...' if len(owned) > 8 else ''}"
    machine = getattr(world, "machine", None)
    rows = (
        ("ranks", f"{world.size:,}"),
        ("ranks of this process", shown),
        ("holds data", "yes" if world.has_data else "no"),
        ("machine that chooses", getattr(machine, "name", None) or "bytes alone"),
    )
    notes = (kinds[name],) if name in kinds else ()
    return Figure(f"{name} of {many(world.size, 'rank')}", (fact_rows(rows),), notes)


def tuned_figure(tuned: TunedSteps) -> Figure:
    """Draw the implementations of steps and the reasons."""
    table = Table(("step", "ranks", "implementation", "why"), tuple(tuned.rows), right=(1,))
    title = f"{many(len(tuned.steps), 'step')} with several implementations, on {tuned.machine}"
    return Figure(title, (table,), (f"SPMDSIM_TUNE={tuned.mode}",))


def module_figure(module: Module) -> Figure:
    """The parameters of a module, and where they live."""
    rows = tuple(
        (name, "x".join(map(str, one.shape)) or "scalar", str(one.dtype), str(one.layout))
        for name, one in module.named_parameters()
    )
    table = Table(("parameter", "shape", "dtype", "layout"), rows, right=(1,))
    count = sum(prod(one.shape) for _, one in module.named_parameters())
    name = type(module).__name__
    return Figure(f"module {name}: {many(len(rows), 'parameter')} with {many(count, 'element')}", (table,))


def verdict_figure(verdict: Verdict) -> Figure:
    """What a comparison found: the error beside what rounding allows, on one scale."""
    out = Canvas()
    good, words = verdict.ok, f"{'✓' if verdict.ok else '✗'} {verdict.word}"
    wide = width_of(words) + 24
    out.cell(0, 0, wide, 30, [words], 2 if good else 6, verdict.details)
    if verdict.tolerance > 0 and verdict.max_error < float("inf"):
        share = verdict.max_error / verdict.tolerance
        length, most = 320.0, max(1.25, share * 1.1)
        out.text(0, 58, f"error {verdict.max_error:.2g} of {verdict.tolerance:.2g} allowed")
        out.cell(0, 66, length, 18, [], None)
        out.bar(0, 66, length * min(share / most, 1), 18, "#009e73" if good else "#d55e00", "error")
        at = length / most
        out.line(at, 60, at, 90, "edge")
        out.text(max(at, width_of("allowed") / 2), 104, "allowed", "faint", "middle")
    facts = (("rank", str(verdict.rank)), ("element", str(verdict.index)))
    rows = (*facts, ("expected", short(verdict.expected)), ("got", short(verdict.got)))
    notes = tuple(note for note in (verdict.why, verdict.compared) if note)
    return Figure(f"verdict: {verdict.word}", (out, fact_rows(rows)), notes)
