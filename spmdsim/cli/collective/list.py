"""``spmdsim collective list``: every algorithm with its conditions and cost formula."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from spmdsim.cli.arguments import Command, Subparsers

if TYPE_CHECKING:
    from spmdsim.collectives import Algorithm

LEGEND = (
    "time = rounds * alpha + beta * m * (s per byte) + gamma * m * (s per reduced byte), m the message size.",
    "n ranks, p the power of two below, f = floor(log2 n), c = ceil(log2 n), q = (n-1)/n, qp = (p-1)/p,",
    "x = 1 unless n is a power of two, s segments, g ranks per group, h groups, cg = ceil(log2 g),",
    "fh = floor(log2 h), xh = 1 unless h is a power of two, bits = ones in the binary numbers 0 ... n-1.",
)


def add_parser(subparsers: Subparsers) -> None:
    """Declare the subcommand."""
    add = Command(
        subparsers,
        "list",
        run,
        "List the algorithms of one collective or of all.",
        help="all algorithms with their conditions and cost formulas",
    )
    add("collective", nargs="?", help="such as all_reduce; all if left out")
    add("--json")
    add.pictures()


def run(args: argparse.Namespace) -> int:
    """List."""
    from spmdsim.cli.output import emit_json, print_table, say, write_pictures
    from spmdsim.collectives import algorithms
    from spmdsim.draw.figures import FactTable, Figure

    chosen = algorithms(args.collective)
    columns = ("algorithm", "rank counts", "rounds", "beta", "gamma", "in order", "what it does")
    rows: dict[str, list[tuple[str, ...]]] = {}
    for one in chosen:
        rows.setdefault(one.collective.name, []).append(_row(one))
    tables = tuple(FactTable(columns, tuple(some), name) for name, some in rows.items())
    drawn = write_pictures(args, Figure("collective algorithms", tables, LEGEND))
    if args.json:
        emit_json([_as_dict(a) for a in chosen])
    elif not drawn:
        for name, some in rows.items():
            print_table(columns, some, title=name)
        say(*LEGEND)
    return 0


def _row(one: Algorithm) -> tuple[str, ...]:
    form = one.formula
    order = {True: "yes", False: "no", None: ""}[one.in_order]
    options = "".join(f" --{name} {value}" for name, value in one.options)
    costs = ("", "", "")
    if form is not None:
        costs = (form.steps, form.beta, form.gamma)
        if form.only:
            costs = (f"{form.steps} if {form.only}", *costs[1:])
    about = one.about + (f" (options:{options})" if options else "")
    return (one.name, one.condition_words, *(_readable(c) for c in costs), order, about)


def _readable(expression: str) -> str:
    """A formula without the guard for a single rank.

    >>> _readable("(n-2+s if n > 1 else 0)")
    'n-2+s'
    """
    if expression.startswith("(") and expression.endswith("if n > 1 else 0)"):
        expression = expression[1:].partition(" if ")[0]
    return expression.replace("*", "·")


def _as_dict(one: Algorithm) -> dict[str, object]:
    form = one.formula
    return {
        "collective": one.collective.name,
        "algorithm": one.name,
        "about": one.about,
        "rank_counts": one.condition_words,
        "options": dict(one.options),
        "in_order": one.in_order,
        "formula": None
        if form is None
        else {
            "rounds": form.steps,
            "beta": form.beta,
            "gamma": form.gamma,
            "only_if": form.only or None,
        },
        "libraries": {library: names.split() for library, names in one.libraries},
    }
