"""The report of a search: tables of operators, redistributions, totals and comparisons."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from spmdsim.auto_parallel.costs.peak_memory import stored_bytes
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

#: Most rows of a table. Of more rows, the first ones, a row with the number of the others, and the last one are shown.
MOST_ROWS = 60
#: Most names of operators that a note lists.
MOST_NAMES = 6
#: The addends of an operator's time.
PARTS = ("compute", "forward", "backward", "gradient")


def format_search(answer: SearchResult) -> str:
    """Return the report of a search as text."""
    return join_text(report_parts(answer))


def report_parts(answer: SearchResult) -> list[str | Table]:
    """Return the texts and tables of the report of ``answer``, in reading order.

    Parts 1 to 5 have an empty text between two of them. Part 6 follows part 5 directly.

    1. The head.
    2. The operators.
    3. The redistributions.
    4. The totals.
    5. The comparison with hand-written strategies.
    6. One text with a line for each hand-written strategy that is not possible on the mesh. Without such strategies,
       part 6 is absent.
    """
    not_possible = "\n".join(
        f"{name}: not possible on {many(answer.mesh.size, 'rank')}: {reason}"
        for name, reason in answer.not_possible.items()
    )
    comparison = comparison_table(answer)
    tables = (
        _operator_table(answer),
        "",
        _redistribution_table(answer),
        "",
        _totals_text(answer),
        "",
        comparison,
    )
    return [_head_text(answer), "", *tables, *filter(None, [not_possible])]


def operator_rows(answer: SearchResult, operators: Sequence[Operator] | None = None) -> list[dict[str, Any]]:
    """Return a dict of plain types for each operator, for tables and JSON.

    Its keys:

    * ``name``, ``kind``, and ``source``, the program's line;
    * ``strategy``: its text;
    * ``cuts``: the numbers of blocks per dim of each operand;
    * ``inputs`` and ``output``: layouts of the operands as read, and the stored layout of the first result, as text;
    * the modelled seconds of each of :data:`PARTS`, and their sum ``seconds``;
    * ``result_nbytes``: bytes of a rank's shards of all results.

    Args:
        answer: the result of the search.
        operators: the operators to list; None for all operators of the program.
    """
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
                "inputs": [layout.placement_text() for layout in inputs],
                "output": answer.choice.layouts[operator.outputs[0]].placement_text(),
                **{phase: getattr(cost, phase) for phase in PARTS},
                "seconds": cost.seconds,
                "result_nbytes": sum(stored_bytes(answer.choice, result) for result in operator.outputs),
                "source": operator.where,
            }
        )
    return rows


def factor_words(bound: BoundRule) -> dict[str, str]:
    """Return a word for each factor of the rule ``bound``, as a dict by factor.

    * A letter stays: "k" for ``k``.
    * A factor that ``...`` stands for, such as ``.0``, becomes "dim <d>". In the rule it is counted from the last
      dim; d counts from the first dim of the first result that has it, or else of the first operand.
    * Factors without a dim are left out.

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
    """Return the text of a strategy with "dim <d>" in place of numbered factors such as ``.0``.

    Numbered factors without a dim stay; see :func:`factor_words`.

    Args:
        bound: the operator's rule, bound to its shapes.
        strategy: the operator's strategy.

    >>> from spmdsim.core import Mesh, Rule, Strategy, bind
    >>> bound = bind(Rule.parse("... -> ..."), ((64, 4),))
    >>> strategy_words(bound, Strategy.of(Mesh((2, 2), ("dp", "tp")), {".1": "dp", ".0": "tp"}))
    'dim 1:tp dim 0:dp'
    """
    text, words = str(strategy), factor_words(bound)
    numbered = [factor for factor in words if factor.startswith(".")]
    for factor in sorted(numbered, key=len, reverse=True):
        text = re.sub(rf"(?<![\w.]){re.escape(factor)}:", f"{words[factor]}:", text)
    return text


def _optimum_text(answer: SearchResult) -> str:
    """Return the note on a proven optimum.

    An example is ", optimal to within 1.00% under the model on this mesh". " to within …" is left out if nothing
    remains uncertain. " with the program's .shard" is appended if the program configures strategies.
    """
    within = f" to within {answer.within:.2%}" if answer.within else ""
    configured = " with the program's .shard" if answer.graph.configured_names else ""
    return f", optimal{within} under the model on this mesh{configured}"


def _distance_text(answer: SearchResult) -> str:
    """Return a note on how far a result may be from the optimum.

    An example is ", at most +3.00% from the optimum on this mesh".

    * If several meshes were searched, the note ends in "on the meshes searched".
    * If the search allowed only equal blocks, and a searched mesh cannot cut each dim into equal blocks, the note
      says "the optimum of equal pieces".
    * If the distance is unknown, the note is "".
    """
    if answer.gap is None:
        return ""
    meshes = {answer.mesh, *answer.rivals}
    only_equal = answer.settings.even is not False and any(has_uneven_pieces(answer.graph, m) for m in meshes)
    pieces = " of equal pieces" if only_equal else ""
    where = "on the meshes searched" if len(answer.rivals) > 1 else "on this mesh"
    return f", at most {answer.gap:+.2%} from the optimum{pieces} {where}"


def _head_text(answer: SearchResult) -> str:
    """Return the first lines of the report of ``answer``, joined by newlines.

    1. The program.
    2. Ranks, mesh, machine and method, and a note on optimality (`_optimum_text` or `_distance_text`).
    3. How certain the machine's times are, if it is a :class:`Machine`.
    4. A line "remark: …" per remark.
    """
    note = _optimum_text(answer) if answer.optimal else _distance_text(answer)
    machine = answer.settings.machine
    lines = [
        str(answer.graph),
        f"{many(answer.mesh.size, 'rank')} as {answer.mesh}, machine {machine.name}, found by {answer.method}{note}",
        *([machine.certainty] if isinstance(machine, Machine) else []),
        *(f"remark: {remark}" for remark in answer.remarks),
    ]
    return "\n".join(lines)


def _operator_table(answer: SearchResult) -> Table:
    """Return the table of operators of ``answer``, with one row for equal repeats of a layer.

    Repeats are operators at one position of a repeated layer that have equal rules, strategies and times (see
    :func:`_distinct_operators`). A row has:

    - the name, with the number of repeats such as "x12";
    - the strategy;
    - the layouts of the operands and of the first result;
    - the times of :data:`PARTS` and their sum, of one operator also in a row for several;
    - the bytes of a rank's shards of the results.

    Of more than :data:`MOST_ROWS` (60) rows, the table has the first 59, a row with the number of rows that are left
    out, and the last one.
    """
    unit, scale = _time_unit(answer)
    shown, counts = _distinct_operators(answer)
    rows = []
    for operator, row in zip(shown, operator_rows(answer, shown)):
        count = counts[operator.index]
        inputs = " ".join(layout_text or "-" for layout_text in row["inputs"])
        seconds = (_number_text(row[phase] * scale) for phase in (*PARTS, "seconds"))
        name = operator.name + (f" x{count}" if count > 1 else "")
        layouts = f"{inputs} -> {row['output'] or '-'}"
        strategy_text = strategy_words(operator.bound, answer.choice.strategies[operator.index])
        rows.append([name, strategy_text, layouts, *seconds, nbytes_text(row["result_nbytes"])])
    heads = ("operator", "strategy", "layouts", *PARTS, "total", "result")
    title = f"operators ({unit} of one step; result: bytes of a rank's shard)"
    number_columns = range(3, len(heads))
    return Table(heads, rows, title, number_columns).shorten(MOST_ROWS)


def _distinct_operators(answer: SearchResult) -> tuple[list[Operator], dict[int, int]]:
    """Return the operators of ``answer`` to show, and how many operators each stands for.

    Operators at one position of a repeated layer are shown once if they have equal rules, strategies and times (to
    seven digits). Each other operator is shown alone.

    Returns:
        ``(shown, counts)``. ``shown`` has the operators to show, in program order. ``counts`` maps the index of each
        to the number of operators that it stands for, itself included.
    """
    shown: list[Operator] = []
    counts: dict[int, int] = {}
    first: dict[tuple[object, ...], int] = {}
    for operator, position in zip(answer.graph.operators, answer.graph.places):
        key: tuple[object, ...] = (operator.index,)
        if position is not None:
            text = f"{answer.evaluation.operators[operator.index].seconds:.6e}"
            key = (position, operator.bound, answer.choice.strategies[operator.index], text)
        if key in first:
            counts[first[key]] += 1
        else:
            first[key] = operator.index
            counts[operator.index] = 1
            shown.append(operator)
    return shown, counts


def _redistribution_table(answer: SearchResult) -> str | Table:
    """Return the table of redistributions of ``answer``, or a line of text if there are none.

    A row has these cells:

    * the phase ("when"), the tensor, and its layouts before and after;
    * the collectives: "local copy" without communication; "shared" at the end if a gradient is in a message with
      others;
    * number, bytes (those that the first rank receives) and time.

    Redistributions that differ only in the number of a repeated layer share a row, which has the sums of number, bytes
    and time. Of more than :data:`MOST_ROWS` (60) rows, the table has the first 59, a row with the number of rows that
    are left out, and the last one.
    """
    unit, scale = _time_unit(answer)
    merged: dict[tuple[object, ...], list[float]] = {}
    unshared_moves = {id(move) for move in answer.evaluation.alone}
    for move, seconds in answer.evaluation.moves:
        collective_names = ", ".join(answer.collectives_of(move)) or "local copy"
        collective_names += "" if id(move) in unshared_moves else ", shared"
        tensor_name = _generic_name(answer, move)
        shorts = f"{move.src.placement_text() or '-'} -> {move.dst.placement_text() or '-'}"
        entry = merged.setdefault((move.phase, tensor_name, shorts, collective_names), [0, 0, 0.0])
        entry[0] += move.times
        entry[1] += move.times * answer.moves.plan(*move.price_key).nbytes(answer.mesh.rank_at(0))
        entry[2] += seconds
    rows = [
        [*map(str, key), str(count), nbytes_text(nbytes), _number_text(seconds * scale)]
        for key, (count, nbytes, seconds) in merged.items()
    ]
    if not rows:
        return "redistributions: none"
    heads = ("when", "tensor", "from -> to", "collectives", "times", "bytes/rank", unit)
    return Table(heads, rows, "redistributions", range(4, 7)).shorten(MOST_ROWS)


def _generic_name(answer: SearchResult, move: Move) -> str:
    """Return the name of a moved tensor, with ``l*.`` for the number of a repeated layer.

    For example, "l3.hidden" becomes "l*.hidden". The number is that of the operator that computes the tensor, or
    of the first reader of an input or parameter. Outside of repeated layers the name stays as it is.

    Args:
        answer: the result of the search, whose graph has the operators.
        move: the redistribution of the tensor.
    """
    value = move.value
    operator_index = value.producer
    if operator_index is None:
        readers = answer.graph.consumers[value.index]
        operator_index = readers[0][0] if readers else None
    layer = answer.graph.operators[operator_index].layer if operator_index is not None else None
    if layer is None:
        return value.name
    return value.name.replace(f"l{layer[1]}.", "l*.", 1)


def _totals_text(answer: SearchResult) -> str:
    """Return three lines on one step of ``answer``: its time, communication and peak memory.

    * Time: of the step, its sum over all operators for each of :data:`PARTS`, and the share of gradients' reductions
      that overlaps.
    * Communication: the bytes that the first rank receives, and the number of collectives by kind. A note says how
      many gradients share messages. If no gradients do, the note says how many collectives remain when those of
      parameters are combined. Without a difference the note is left out.
    * Peak memory: the bytes of a rank, with their parts, and the operator at which the peak is reached.
    """
    unit, scale = _time_unit(answer)
    costs = answer.evaluation.operators
    memory = answer.memory
    sums = {phase: sum(getattr(cost, phase) for cost in costs) for phase in PARTS}
    parts = ", ".join(f"{name} {_number_text(value * scale)}" for name, value in sums.items())
    collectives = ", ".join(f"{count} {name}" for name, count in answer.collectives.items()) or "none"
    shared_messages = answer.evaluation.messages
    if shared_messages:
        gradients = sum(len(message.moves) for message in shared_messages)
        collectives += f" ({gradients} gradients of parameters share {len(shared_messages)} of them)"
    elif answer.combined != answer.collectives:
        combined = ", ".join(f"{count} {name}" for name, count in answer.combined.items())
        collectives += f"; with those of parameters combined: {combined}"
    overlap = answer.settings.overlap
    assumed = "nothing overlaps" if not overlap else f"{overlap:.0%} of the gradients' reductions overlap"
    return "\n".join(
        [
            f"one step: {_number_text(answer.seconds * scale)} {unit} ({parts}; {assumed})",
            f"communication: {nbytes_text(answer.nbytes)} received per rank; {collectives}",
            f"peak memory per rank: {nbytes_text(memory.peak)} (parameters {nbytes_text(memory.parameters)}, gradients "
            f"{nbytes_text(memory.gradients)}, optimiser {nbytes_text(memory.optimizer)}, activations "
            f"{nbytes_text(memory.activations)}, transient {nbytes_text(memory.transient)} at {memory.where})",
        ]
    )


def comparison_table(answer: SearchResult) -> Table:
    """Return the table that compares ``answer`` with hand-written strategies.

    The first row, "found", is ``answer`` itself. A row has

    * the name;
    * the time, and its ratio to the time of ``answer``; "not allowed" and "-" if the settings forbid the strategy;
    * the bytes that the first rank receives;
    * the peak memory.

    If the program configures operators and there is a hand-written strategy to compare with, a note says that
    hand-written strategies ignore the configured ones.
    """
    unit, scale = _time_unit(answer)
    rows = []
    for name, result in {"found": answer, **answer.comparison}.items():
        ratio = f"{result.seconds / answer.seconds if answer.seconds else 1.0:.2f}"
        seconds = _number_text(result.seconds * scale)
        if result.seconds >= IMPOSSIBLE:
            seconds, ratio = "not allowed", "-"
        rows.append([name, seconds, ratio, nbytes_text(result.nbytes), nbytes_text(result.memory.peak)])
    note = f"found keeps the program's .shard of {_configured(answer)}; the other layouts do not and may be faster"
    notes = (note,) if _configured(answer) and len(rows) > 1 else ()
    return Table(
        ("layout", unit, "ratio", "bytes/rank", "peak memory"), rows, "comparison", range(1, 5), notes
    )


def _configured(answer: SearchResult) -> str:
    """Return the names of the operators that the program configures, joined by commas.

    At most :data:`MOST_NAMES` (6) names are listed; the text is empty if there are none.
    """
    names = answer.graph.configured_names
    hidden = len(names) - MOST_NAMES
    return ", ".join([*names[:MOST_NAMES], *([f"{hidden} more"] if hidden > 0 else [])])


def why_report(answer: WhyNot) -> str:
    """Return the report of :meth:`SearchResult.why` as text.

    It has totals, and differences per operator.
    """
    table = why_table(answer)
    return join_text([*why_lines(answer), *([table] if table.rows else [])])


def why_lines(answer: WhyNot) -> tuple[str, str]:
    """Return the two head lines of ``answer``: the operator's strategies, and both times.

    Returns:
        ``(strategies, times)``: the given strategy instead of the one that the search chose; the time of one step with
        each (in a fitting unit), and their difference.
    """
    best, forced = answer.best, answer.other
    unit, scale = _time_unit(best)
    operator = answer.operator
    old, new = (
        strategy_words(operator.bound, result.choice.strategies[operator.index]) for result in (best, forced)
    )
    return (
        f"{operator.name} with {new} instead of {old}, all others chosen anew:",
        f"one step takes {_number_text(forced.seconds * scale)} {unit} instead of {_number_text(best.seconds * scale)} "
        f"({answer.difference * scale:+.4g} {unit})",
    )


def why_table(answer: WhyNot) -> Table:
    """Return the table of the operators of ``answer`` whose strategy or time differs.

    A row has the operator's name and both strategies, as "before => after", or "" if they are equal. The time
    differences follow (given strategy minus the one before), for each of :data:`PARTS` and for their sum. An operator
    with equal strategies is listed only if its sums differ by more than 1e-12 of the step's time.

    Of more than :data:`MOST_ROWS` (60) rows, the table has the first 59, a row with the number of rows that are left
    out, and the last one.
    """
    best, forced = answer.best, answer.other
    unit, scale = _time_unit(best)
    rows = []
    costs = best.evaluation.operators, forced.evaluation.operators
    for operator, old, new in zip(best.graph.operators, *costs):
        before, after = (result.choice.strategies[operator.index] for result in (best, forced))
        if abs(new.seconds - old.seconds) > 1e-12 * best.seconds or before != after:
            differences = (getattr(new, phase) - getattr(old, phase) for phase in (*PARTS, "seconds"))
            change = (
                ""
                if before == after
                else " => ".join(strategy_words(operator.bound, s) for s in (before, after))
            )
            rows.append(
                [operator.name, change, *(_signed_text(difference * scale) for difference in differences)]
            )
    heads = ("operator", "strategy", *PARTS, "total")
    return Table(heads, rows, f"differences in {unit}", range(2, 7)).shorten(MOST_ROWS)


def _time_unit(answer: SearchResult) -> tuple[str, float]:
    """Return the unit of the times in the report of ``answer``, and the factor from seconds.

    The time of the whole step selects the unit: ``("s", 1.0)`` from 1 s on, ``("ms", 1e3)`` from 1 ms on, else
    ``("us", 1e6)``. Published cost models have no seconds and give ``("cost", 1.0)``.
    """
    if not isinstance(answer.settings.machine, Machine):
        return "cost", 1.0
    total = answer.seconds
    if total >= 1.0:
        return "s", 1.0
    return ("ms", 1e3) if total >= 1e-3 else ("us", 1e6)


def _number_text(value: float) -> str:
    """Return a number with four digits; "-" for 0."""
    return f"{value:.4g}" if value else "-"


def _signed_text(value: float) -> str:
    """Return a number with its sign and three digits; "-" for a difference up to 1e-9."""
    return f"{value:+.3g}" if abs(value) > 1e-9 else "-"
