"""The tables of a search: operators, redistributions, totals, comparison, why not another strategy."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from spmdsim.auto_parallel.costs.peak_memory import held_bytes
from spmdsim.auto_parallel.programs.graph import Operator
from spmdsim.auto_parallel.solvers.choice_problem import IMPOSSIBLE
from spmdsim.auto_parallel.strategy_choice import has_uneven_pieces
from spmdsim.cost.machine import Machine
from spmdsim.errors import many
from spmdsim.tables import Table, join_text
from spmdsim.worlds.trace.event_table import nbytes_text

if TYPE_CHECKING:
    from spmdsim.auto_parallel.costs.evaluate import Move
    from spmdsim.auto_parallel.search_result import SearchResult, WhyNot
    from spmdsim.core import BoundRule, Strategy

#: Operators and redistributions shown before the rest is summed up.
MOST_ROWS = 60
#: Names of operators that a note lists.
MOST_NAMES = 6
#: What an operator's time is made of.
PARTS = ("compute", "forward", "backward", "gradient")


def report(answer: SearchResult) -> str:
    """Return the report of a search as text."""
    return join_text(report_parts(answer))


def report_parts(answer: SearchResult) -> list[str | Table]:
    """Return the lines and tables of the report of a search, in the order in which they are read."""
    not_possible = "\n".join(
        f"{name}: not possible on {many(answer.mesh.size, 'rank')}: {reason}"
        for name, reason in answer.not_possible.items()
    )
    comparison = comparison_table(answer)
    tables = (_operators(answer), "", _redistributions(answer), "", _totals(answer), "", comparison)
    return [_head(answer), "", *tables, *filter(None, [not_possible])]


def operator_rows(answer: SearchResult, operators: Sequence[Operator] | None = None) -> list[dict[str, Any]]:
    """Per operator, of all or some, its strategy, layouts and modelled seconds, in plain types."""
    rows = []
    for operator in answer.graph.operators if operators is None else operators:
        cost = answer.evaluation.operators[operator.index]
        strategy = answer.choice.strategies[operator.index]
        inputs = operator.bound.input_layouts(strategy)
        rows.append(
            {
                "name": operator.name,
                "kind": operator.kind,
                "strategy": str(strategy),
                "cuts": [list(layout.cuts) for layout in inputs],
                "inputs": [layout.short() for layout in inputs],
                "output": answer.choice.layouts[operator.outputs[0]].short(),
                **{part: getattr(cost, part) for part in PARTS},
                "seconds": cost.seconds,
                "result_nbytes": sum(held_bytes(answer.choice, result) for result in operator.outputs),
                "source": operator.where,
            }
        )
    return rows


def factor_words(bound: BoundRule) -> dict[str, str]:
    """Return the factors of an operator as a reader knows them: by their letters, others by their dim of the result.

    ``...`` in a rule stands for dims that are counted from the last: ``.0`` is another dim in each operator.

    >>> from spmdsim.core import Rule, bind
    >>> factor_words(bind(Rule.parse("... k, k n -> ... n", linear="each"), ((64, 8), (8, 4))))
    {'.0': 'dim 0', 'k': 'k', 'n': 'n'}
    >>> factor_words(bind(Rule.parse("... -> ..."), ((64, 4),)))
    {'.1': 'dim 0', '.0': 'dim 1'}
    """
    words: dict[str, str] = {}
    for terms in (bound.outputs, bound.inputs):
        for term in terms:
            for dim, factors in enumerate(term):
                for factor in factors:
                    words.setdefault(factor, f"dim {dim}" if factor.startswith(".") else factor)
    return {factor: words[factor] for factor in bound.sizes if factor in words}


def strategy_words(bound: BoundRule, strategy: Strategy) -> str:
    """Return a strategy like ``str(strategy)``, with the words of its factors instead of numbers behind a dot.

    >>> from spmdsim.core import Mesh, Rule, Strategy, bind
    >>> bound = bind(Rule.parse("... -> ..."), ((64, 4),))
    >>> strategy_words(bound, Strategy.of(Mesh((2, 2), ("dp", "tp")), {".1": "dp", ".0": "tp"}))
    'dim 1:tp dim 0:dp'
    """
    text, words = str(strategy), factor_words(bound)
    for factor in sorted(filter(lambda one: one.startswith("."), words), key=len, reverse=True):
        text = re.sub(rf"(?<![\w.]){re.escape(factor)}:", f"{words[factor]}:", text)
    return text


def _head(answer: SearchResult) -> str:
    within = f" to within {answer.within:.2%}" if answer.within else ""
    optimal = f", optimal{within} under the model on this mesh"
    if answer.graph.configured_names:
        optimal += " with the program's .shard"
    if not answer.optimal:
        among = "on the meshes searched" if len(answer.rivals) > 1 else "on this mesh"
        meshes = {answer.mesh, *answer.rivals}
        equal = answer.settings.even is not False and any(has_uneven_pieces(answer.graph, m) for m in meshes)
        optimum = f"the optimum of equal pieces {among}" if equal else f"the optimum {among}"
        optimal = "" if answer.gap is None else f", at most {answer.gap:+.2%} from {optimum}"
    machine = answer.settings.machine
    lines = [
        str(answer.graph),
        f"{many(answer.mesh.size, 'rank')} as {answer.mesh}, machine {machine.name}, found by {answer.method}{optimal}",
        *([machine.certainty] if isinstance(machine, Machine) else []),
        *(f"remark: {remark}" for remark in answer.remarks),
    ]
    return "\n".join(lines)


def _operators(answer: SearchResult) -> Table:
    unit, scale = _unit(answer)
    shown, counts = _shown(answer)
    rows = []
    for operator, row in zip(shown, operator_rows(answer, shown)):
        count = counts[operator.index]
        inputs = " ".join(short or "-" for short in row["inputs"])
        seconds = (_number(row[part] * scale) for part in (*PARTS, "seconds"))
        name = operator.name + (f" x{count}" if count > 1 else "")
        layouts = f"{inputs} -> {row['output'] or '-'}"
        rows.append([name, row["strategy"], layouts, *seconds, nbytes_text(row["result_nbytes"])])
    heads = ("operator", "strategy", "layouts", *PARTS, "total", "result")
    title = f"operators ({unit} of one step; result: bytes of a rank's shard)"
    return Table(heads, rows, title, range(3, 9)).shorten(MOST_ROWS)


def _shown(answer: SearchResult) -> tuple[list[Operator], dict[int, int]]:
    """One operator for each place of a repeated layer, where all repeats have the same strategy."""
    shown: list[Operator] = []
    counts: dict[int, int] = {}
    first: dict[tuple[object, ...], int] = {}
    for operator, place in zip(answer.graph.operators, answer.graph.places):
        key: tuple[object, ...] = (operator.index,)
        if place is not None:
            text = f"{answer.evaluation.operators[operator.index].seconds:.6e}"
            key = (place, operator.bound, answer.choice.strategies[operator.index], text)
        if key in first:
            counts[first[key]] += 1
        else:
            first[key] = operator.index
            counts[operator.index] = 1
            shown.append(operator)
    return shown, counts


def _redistributions(answer: SearchResult) -> str | Table:
    unit, scale = _unit(answer)
    merged: dict[tuple[object, ...], list[float]] = {}
    alone = {id(move) for move in answer.evaluation.alone}
    for move, seconds in answer.evaluation.moves:
        what = ", ".join(answer.collectives_of(move)) or "local copy"
        what += "" if id(move) in alone else ", shared"
        where = _generic_name(answer, move)
        shorts = f"{move.src.short() or '-'} -> {move.dst.short() or '-'}"
        entry = merged.setdefault((move.phase, where, shorts, what), [0, 0, 0.0])
        entry[0] += move.times
        entry[1] += move.times * answer.moves.plan(*move.priced).nbytes(answer.mesh.rank_at(0))
        entry[2] += seconds
    rows = [
        [*map(str, key), str(count), nbytes_text(nbytes), _number(seconds * scale)]
        for key, (count, nbytes, seconds) in merged.items()
    ]
    if not rows:
        return "redistributions: none"
    heads = ("when", "tensor", "from -> to", "collectives", "times", "bytes/rank", unit)
    return Table(heads, rows, "redistributions", range(4, 7)).shorten(MOST_ROWS)


def _generic_name(answer: SearchResult, move: Move) -> str:
    """The tensor's name, the same for all repeats of a layer."""
    value = move.value
    owner = value.producer
    if owner is None:
        readers = answer.graph.consumers[value.index]
        owner = readers[0][0] if readers else None
    layer = answer.graph.operators[owner].layer if owner is not None else None
    if layer is None:
        return value.name
    return value.name.replace(f"l{layer[1]}.", "l*.", 1)


def _totals(answer: SearchResult) -> str:
    unit, scale = _unit(answer)
    costs = answer.evaluation.operators
    memory = answer.memory
    sums = {part: sum(getattr(cost, part) for cost in costs) for part in PARTS}
    parts = ", ".join(f"{name} {_number(value * scale)}" for name, value in sums.items())
    collectives = ", ".join(f"{count} {name}" for name, count in answer.collectives.items()) or "none"
    together = answer.evaluation.messages
    if together:
        gradients = sum(len(message.moves) for message in together)
        collectives += f" ({gradients} gradients of parameters share {len(together)} of them)"
    elif answer.combined != answer.collectives:
        combined = ", ".join(f"{count} {name}" for name, count in answer.combined.items())
        collectives += f"; with those of parameters combined: {combined}"
    overlap = answer.settings.overlap
    assumed = "nothing overlaps" if not overlap else f"{overlap:.0%} of the gradients' reductions overlap"
    return "\n".join(
        [
            f"one step: {_number(answer.seconds * scale)} {unit} ({parts}; {assumed})",
            f"communication: {nbytes_text(answer.nbytes)} received per rank; {collectives}",
            f"peak memory per rank: {nbytes_text(memory.peak)} (parameters {nbytes_text(memory.parameters)}, gradients "
            f"{nbytes_text(memory.gradients)}, optimiser {nbytes_text(memory.optimizer)}, activations "
            f"{nbytes_text(memory.activations)}, transient {nbytes_text(memory.transient)} at {memory.where})",
        ]
    )


def comparison_table(answer: SearchResult) -> Table:
    """Return the table that compares the strategies found with strategies that people choose by hand."""
    unit, scale = _unit(answer)
    rows = []
    for name, other in {"found": answer, **answer.comparison}.items():
        ratio = f"{other.seconds / answer.seconds if answer.seconds else 1.0:.2f}"
        seconds = _number(other.seconds * scale)
        if other.seconds >= IMPOSSIBLE:
            seconds, ratio = "not allowed", "-"
        rows.append([name, seconds, ratio, nbytes_text(other.nbytes), nbytes_text(other.memory.peak)])
    note = f"found keeps the program's .shard of {_configured(answer)}; the other layouts do not and may be faster"
    notes = (note,) if _configured(answer) and len(rows) > 1 else ()
    return Table(
        ("layout", unit, "ratio", "bytes/rank", "peak memory"), rows, "comparison", range(1, 5), notes
    )


def _configured(answer: SearchResult) -> str:
    """Return the first names of the operators whose strategies the program sets with ``.shard``; empty without any."""
    names = answer.graph.configured_names
    hidden = len(names) - MOST_NAMES
    return ", ".join([*names[:MOST_NAMES], *([f"{hidden} more"] if hidden > 0 else [])])


def why_report(answer: WhyNot) -> str:
    """What a given strategy costs more, and where the difference comes from."""
    table = why_table(answer)
    return join_text([*why_lines(answer), *([table] if table.rows else [])])


def why_lines(answer: WhyNot) -> tuple[str, str]:
    """What is compared, and which is how much slower."""
    best, other = answer.best, answer.other
    unit, scale = _unit(best)
    old, new = (one.choice.strategies[answer.operator.index] for one in (best, other))
    return (
        f"{answer.operator.name} with {new} instead of {old}, all others chosen anew:",
        f"one step takes {_number(other.seconds * scale)} {unit} instead of {_number(best.seconds * scale)} "
        f"({answer.difference * scale:+.4g} {unit})",
    )


def why_table(answer: WhyNot) -> Table:
    """Return the table of the operators whose strategy or time differs, with the differences of their times."""
    best, other = answer.best, answer.other
    unit, scale = _unit(best)
    rows = []
    costs = best.evaluation.operators, other.evaluation.operators
    for operator, old, new in zip(best.graph.operators, *costs):
        before, after = (f.choice.strategies[operator.index] for f in (best, other))
        if abs(new.seconds - old.seconds) > 1e-12 * best.seconds or before != after:
            differences = (getattr(new, part) - getattr(old, part) for part in (*PARTS, "seconds"))
            change = "" if before == after else f"{before} => {after}"
            rows.append([operator.name, change, *(_signed(one * scale) for one in differences)])
    heads = ("operator", "strategy", *PARTS, "total")
    return Table(heads, rows, f"differences in {unit}", range(2, 7)).shorten(MOST_ROWS)


def _unit(answer: SearchResult) -> tuple[str, float]:
    if not isinstance(answer.settings.machine, Machine):
        return "cost", 1.0
    total = answer.seconds
    if total >= 1.0:
        return "s", 1.0
    return ("ms", 1e3) if total >= 1e-3 else ("us", 1e6)


def _number(value: float) -> str:
    return f"{value:.4g}" if value else "-"


def _signed(value: float) -> str:
    return f"{value:+.3g}" if abs(value) > 1e-9 else "-"
