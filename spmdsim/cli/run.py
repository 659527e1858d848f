"""``spmdsim run``: run operators under many strategies on ranks, and check every shard.

:func:`main` selects cases (:func:`_select_cases`), runs them, and prints a row per case. A case is one call of an
operator with its layouts. Its outcome has the verdict.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeVar, cast

from spmdsim import printing
from spmdsim.cli import output
from spmdsim.cli.launch import create_world, start_ranks
from spmdsim.cli.main import (
    HOSTS,
    PICTURES,
    command,
    declare_flag,
    several,
    value,
    varied,
    written_layout,
)
from spmdsim.cli.output import refuse_options
from spmdsim.cli.progress import progress
from spmdsim.errors import InputError, SpmdError, many, unknown
from spmdsim.launcher import is_root, launched
from spmdsim.reading import one_line
from spmdsim.tables import Table

if TYPE_CHECKING:
    from spmdsim.cases.case import Case
    from spmdsim.cases.inputs import Inputs
    from spmdsim.cases.outcome import Outcome
    from spmdsim.core import Mesh
    from spmdsim.worlds.base import World
    from spmdsim.worlds.mpi.mpi_world import MPIWorld
    from spmdsim.worlds.trace import CollectiveEvent

Parsed = TypeVar("Parsed")

_PRODUCT_OPTIONS = "--every --mesh --strategy --layout --shape --dtype --x --w"
"""Options that select and describe matrix products."""

MOST_ELEMENTS = 1 << 40
"""Most elements of a matrix of random numbers."""

SHORT: tuple[str, ...] = ("operator", "mesh", "strategy", "collectives", "received (B)", "verdict")
"""Columns of the table without ``--wide``."""

NUMBERS = ("cases", "sent (B)", "received (B)", "most received (B)", "ms")
"""Columns that are aligned right."""

MOST_ROWS = 24
"""Most cases that the table shows one by one without ``--all``."""

EXAMPLES = """\
examples:
  spmdsim run -n 8                               every operator under every kind of strategy
  spmdsim run --world lockstep -n 8              the same without MPI, all ranks in this process
  spmdsim run -n 8 --only matmul --shape 4096,4096,4096 --mesh dp=2,tp=4 --strategy "m:dp k:tp >m"
  spmdsim run -n 4 --world lockstep --only matmul --mesh 2,2 --inject drop   is a lost addend detected?

Exit code: 0 if every verdict holds, 1 if one is WRONG (with --inject: as it should be), 2 for a mistake in the
arguments or files, 3 if a fault that changes a result is MISSED.
"""


@command(
    "Run MatMul, parallel Embedding and Linear under every kind of strategy, through real "
    "collectives, and check every shard against a single-process reference.",
    EXAMPLES,
    "-n",
    "--world",
    *HOSTS,
    several("--only", "OP", "matmul, embedding or linear"),
    declare_flag("--every", "all assignments of mesh axes, not one of each kind"),
    value("--mesh", "SHAPE", "one mesh: 2,4 or dp=2,tp=4"),
    value("--strategy", "TEXT", "one matmul strategy: 'm:dp k:tp', '>m' to scatter"),
    value("--layout", "X;W", "one matmul by layouts: 'dp,tp; tp,None[; OUT]'"),
    value("--shape", "M,K,N", "sizes of the matrix product"),
    value(
        "--dtype",
        "",
        "element type, such as float32, bfloat16 (also of .npy files that cannot name it), int64",
    ),
    value("--x", "FILE", "left operand: .npy, .npz:name, .safetensors:name, IDX"),
    value("--w", "FILE", "right operand"),
    value("--text", "FILE", "any file whose bytes are the token ids (the first 262,144)"),
    value(
        "--inject",
        "KIND",
        "inject a fault into every case, and show the check that detects it: drop, double, root, swap, shift, ulp; "
        "'list' explains the faults",
    ),
    declare_flag("--all", f"a row for each case; without it, more than {MOST_ROWS} cases are summarised"),
    declare_flag("--wide", "all columns: layouts, local shapes, bytes, times, errors"),
    declare_flag("--verbose", "all columns, and the slices of all ranks"),
    *PICTURES,
    varied("--json", help="print the verdicts as JSON"),
)
def main(args: argparse.Namespace) -> int:
    """Run cases, which compare operators on ranks with one process, and return the exit code.

    The code is 0 if all verdicts hold, 1 if not, and 3 if no check notices a fault of ``--inject``. ``--inject list``
    only prints the kinds of faults. Outside of a job, ``-n`` starts this command on ranks; the code is then that of the
    job. In a job, all ranks call it. The world is closed at the end.

    Args:
        args: the command's arguments.

    Raises:
        InputError: If an argument is wrong or has no effect, or a file cannot be read.
        LayoutError: If a layout or strategy does not fit the mesh or the shapes.
        WorldError: If MPI is needed and cannot be used.
    """
    from spmdsim.cases.injection import fault

    if args.inject == "list":
        refuse_options(
            args,
            f"-n --world --only --text --all --wide --verbose --svg --html {_PRODUCT_OPTIONS}",
            "a run, not with --inject list",
        )
        return _list_faults(args.json)
    if args.inject is not None:
        fault(args.inject)  # before ranks are started
    _refuse_unused_options(args)
    if (code := start_ranks(args, check=partial(_prepare_cases, args))) is not None:
        return code
    world = create_world(args)
    cases, inputs = _prepare_cases(args, world.size)
    outcomes = _run_cases(cases, world, args)
    ok = all(outcome.ok for outcome in outcomes)
    _report_outcomes(outcomes, world, args, ok, inputs.text_note)
    world.close()
    return 3 if any(outcome.word == "MISSED" for outcome in outcomes) else 0 if ok else 1


def _refuse_unused_options(args: argparse.Namespace) -> None:
    """Raise InputError for options that have no effect on the selected cases or on the output.

    Without ``--only`` all operators run; ``--layout`` and ``--strategy`` select matmul. These options have no effect:

    - ``--every`` with ``--layout`` or ``--strategy``, or if matmul does not run;
    - ``--text`` if embedding does not run;
    - ``--shape``, ``--x`` and ``--w`` if only embedding runs.

    Args:
        args: the command's arguments.
    """
    only = {word for item in args.only for word in item.split(",")}
    if args.layout or args.strategy:
        refuse_options(args, "--every", "strategies of the catalogue, not with --layout or --strategy")
        only = {"matmul"}
    if only and "matmul" not in only:
        refuse_options(args, "--every", "matmul, which --only leaves out")
    if only and "embedding" not in only:
        refuse_options(args, "--text", "embedding, which does not run here")
    if only == {"embedding"}:
        refuse_options(args, "--shape --x --w", "matmul and linear, which --only leaves out")


def _prepare_cases(args: argparse.Namespace, size: int) -> tuple[list[Case], Inputs]:
    """Return the cases for ``size`` ranks and their inputs; check that the inputs can be read.

    Files of operators that do not run are not opened.

    Args:
        args: the command's arguments.
        size: number of ranks.

    Returns:
        The cases in the order in which they run, and the inputs of all cases.

    Raises:
        InputError: If an argument or a file is wrong, or the shapes of the operands do not match.
        LayoutError: If a layout does not fit the mesh.
    """
    inputs = _parse_inputs(args)
    cases = _select_cases(args, size, inputs)
    operators = {case.op for case in cases}
    if operators - {"embedding"}:
        _ = inputs.w  # opens the files of both operands, and compares their shapes
    if "embedding" in operators:
        _ = inputs.ids
    return cases, inputs


def _list_faults(as_json: bool) -> int:
    """Print name and description of each kind of fault for ``--inject``; return 0.

    They are printed as a table, or as a JSON object of descriptions by name if ``as_json`` is True.
    """
    from spmdsim.cases.injection import FAULTS

    if as_json:
        output.emit_json({fault.name: fault.about for fault in FAULTS.values()})
    else:
        rows = [(fault.name, fault.about) for fault in FAULTS.values()]
        printing.say(Table(("kind", "what goes wrong"), rows))
    return 0


def _parse_inputs(args: argparse.Namespace) -> Inputs:
    """Return the inputs of the cases from the arguments, without reading files.

    The inputs are the matrices of the product ``x @ w``, and a text for an embedding.

    Args:
        args: the command's arguments. ``x`` and ``w`` are files of the matrices, ``text`` is a file.
            ``shape`` "64,40,24" means matrices of 64 x 40 and 40 x 24 elements. ``dtype`` is the element type. None
            stands for the defaults of :class:`~spmdsim.cases.inputs.Inputs`.

    Raises:
        InputError: If ``--shape`` is not three sizes of at least 0, a matrix (also the product) would have more than
            :data:`MOST_ELEMENTS` elements, or the element type is unknown.
    """
    from spmdsim.cases.inputs import Inputs

    shape = None
    if args.shape:
        try:
            shape = tuple(int(size) for size in args.shape.split(","))
        except ValueError:
            shape = ()
        if len(shape) != 3 or min(shape) < 0:
            raise InputError(f"--shape takes three sizes M,K,N, but got {one_line(args.shape, 60)!r}")
        if max(shape[0] * shape[1], shape[1] * shape[2], shape[0] * shape[2]) > MOST_ELEMENTS:
            raise InputError(
                f"--shape {one_line(args.shape, 60)} has matrices of more than {MOST_ELEMENTS:,} elements"
            )
    return Inputs(args.x, args.w, args.text, shape, args.dtype)


def _parse_mesh(text: str, size: int) -> Mesh:
    """Parse ``--mesh``: axes with sizes, such as "dp=2,tp=4", or sizes alone, such as "2,4".

    For sizes alone, the axes get the names in the catalogue of cases, :data:`~spmdsim.cases.catalogue.AXES`. More than
    three axes are called axis0, axis1 and so on.

    Args:
        text: the mesh.
        size: the number of ranks of the job.

    Raises:
        InputError: If the text is no mesh, or the mesh does not have ``size`` ranks.
    """
    from spmdsim.cases.catalogue import AXES
    from spmdsim.core import Mesh
    from spmdsim.layout.written import parse_ints, parse_mesh

    if not re.fullmatch(r"[\d,\s]+", text):
        mesh = parse_mesh(text)
    else:
        shape = parse_ints(text, "--mesh")
        mesh = Mesh(shape, AXES.get(len(shape), tuple(f"axis{i}" for i in range(len(shape)))))
    if mesh.size != size:
        raise InputError(
            f"--mesh {one_line(text, 60)} has {many(mesh.size, 'rank')}, but the job has {size}: "
            f"choose a mesh of {many(size, 'rank')}, or run with -n {mesh.size}"
        )
    return mesh


def _select_cases(args: argparse.Namespace, size: int, inputs: Inputs) -> list[Case]:
    """Return the cases that the arguments select, for ``size`` ranks.

    * With ``--layout`` or ``--strategy``: one matrix product. ``--every`` is ignored.
    * Without both: all cases of the catalogue whose operator is in ``--only``. ``--every`` adds the cases of a product
      for every assignment of mesh axes to its dimensions.

    The meshes are ``--mesh``, or else default meshes: for one product the first that has the axes that the text names,
    for the catalogue all.

    Args:
        args: the command's arguments: ``layout``, ``strategy``, ``mesh``, ``only`` (list of names, which can have
            commas) and ``every``.
        size: number of ranks.
        inputs: the data of the cases; files are opened only as needed for shapes.

    Raises:
        InputError: If options contradict each other, an operator of ``--only`` is unknown, a mesh, layout or strategy
            cannot be parsed, or the catalogue is asked for a mesh of more than 3 axes.
        LayoutError: If a layout or strategy does not fit ``--mesh``, or a layout does not fit its matrix.
    """
    from spmdsim.cases.catalogue import OPERATORS, catalogue, layout_case, matmul_case, meshes, parse_strategy

    only = tuple(word for item in args.only for word in item.split(","))
    for word in only:
        if word not in OPERATORS:
            raise unknown(f"--only has no operator {word!r}", word, OPERATORS)
    if args.layout and args.strategy:
        raise InputError("--layout and --strategy both say how a product is laid out; give one")
    if (args.layout or args.strategy) and set(only) - {"matmul"}:
        raise InputError(f"--layout and --strategy are for matmul, but --only names {', '.join(only)}")
    candidates = [_parse_mesh(args.mesh, size)] if args.mesh else meshes(size)
    if args.layout:
        layouts = _parse_on_first_mesh(
            candidates, lambda mesh: [written_layout(text, mesh, ndim=2) for text in args.layout.split(";")]
        )
        if len(layouts) not in (2, 3):
            raise InputError(f"--layout takes 'X; W' or 'X; W; OUT', but got {args.layout!r}")
        out = layouts[2] if len(layouts) == 3 else None
        return [layout_case(layouts[0], layouts[1], out, f"layouts {args.layout}", inputs)]
    if args.strategy:
        mesh, words, scatter = _parse_on_first_mesh(
            candidates, lambda mesh: (mesh, *parse_strategy(args.strategy, mesh))
        )
        return [matmul_case(mesh, words, scatter, inputs)]
    for mesh in candidates:
        if len(mesh.axes) > 3:
            raise InputError(f"the catalogue has meshes of 1 to 3 axes; give --strategy for {mesh}")
    return list(catalogue(candidates, inputs, only, args.every))


def _parse_on_first_mesh(candidates: list[Mesh], parse: Callable[[Mesh], Parsed]) -> Parsed:
    """Parse a user's text on the first mesh on which it can be parsed; return the result.

    For example, a layout with the axis "tp" cannot be parsed on a mesh with the axis "dp" only. So the next mesh is
    tried.

    Args:
        candidates: the meshes in the order of trials, at least one.
        parse: a function of a mesh, which raises an SpmdError if the mesh does not fit the text.

    Raises:
        InputError: If there are several meshes and ``parse`` fails on all. It has the message of the last failure, and
            advice to give ``--mesh``.
        SpmdError: The error of ``parse``, if it fails on the only mesh.
    """
    for mesh in candidates[:-1]:
        try:
            return parse(mesh)
        except SpmdError:
            continue
    try:
        return parse(candidates[-1])
    except SpmdError as error:
        if len(candidates) == 1:
            raise
        raise InputError(f"{error}; a mesh can be given with --mesh, such as --mesh dp=2,tp=4") from None


def _run_cases(cases: list[Case], world: World, args: argparse.Namespace) -> list[Outcome]:
    """Run all cases with a progress line and return their outcomes."""
    from spmdsim.cases.outcome import run_case

    outcomes = []
    with progress("cases", len(cases)) as step:
        for case in cases:
            outcomes.append(run_case(case, world, args.verbose, args.inject))
            step(f"{case.op} {case.strategy}")
    return outcomes


def _report_outcomes(
    outcomes: list[Outcome], world: World, args: argparse.Namespace, ok: bool, text_note: str
) -> None:
    """Print the outcomes as a table or JSON on rank 0, and write pictures.

    With ``--inject`` the table is about faults. All ranks must call it: with ``--wide`` or ``--verbose``, which print
    times, the ranks of an MPI job exchange on which cores they run. If times are unreliable because ranks share
    cores, a remark follows the table.

    Args:
        outcomes: the outcomes.
        world: the ranks.
        args: the command's arguments.
        ok: True if all verdicts hold; it is part of the JSON.
        text_note: a remark about the token ids, printed if an embedding ran; "" for none.
    """
    noise = ""
    if (args.wide or args.verbose) and launched() and args.world != "lockstep":
        from spmdsim.cli.collective.measure import noise_note

        noise = noise_note(cast("MPIWorld", world).comm)
    if not is_root():
        return
    _write_pictures(outcomes, world, args)
    if args.json:
        cases = [outcome.to_dict() for outcome in outcomes]
        output.emit_json({"world": type(world).__name__, "ranks": world.size, "cases": cases, "ok": ok})
    elif args.inject is not None:
        _report_faults(outcomes, world)
    else:
        _print_outcomes(outcomes, world, args, text_note)
        if noise:
            printing.say(noise)


def _print_outcomes(outcomes: list[Outcome], world: World, args: argparse.Namespace, text_note: str) -> None:
    """Print a table of the outcomes, and remarks below it.

    The form of the table:

    * with ``--wide`` or ``--verbose``: a row per case, with all columns;
    * else, for more than :data:`MOST_ROWS` (24) cases without ``--all``: a summary with a row per operator and mesh;
    * else: a row per case, with the columns of :data:`SHORT`.

    ``--verbose`` adds the slices of each case. A line with details follows for each case whose verdict is not "ok".

    Args:
        outcomes: the outcomes.
        world: the ranks.
        args: the command's arguments: ``all``, ``wide`` and ``verbose``.
        text_note: a remark about the token ids, printed if an embedding ran; "" for none.
    """
    rows, columns = [_row_cells(outcome) for outcome in outcomes], SHORT
    all_columns = args.wide or args.verbose
    is_summary = len(rows) > MOST_ROWS and not (all_columns or args.all)
    if is_summary:
        rows = _summary_rows(outcomes)
    if rows and (all_columns or is_summary):
        columns = tuple(rows[0])
    numbers = [k for k, name in enumerate(columns) if name in NUMBERS]
    printing.say(Table(columns, [[row[name] for name in columns] for row in rows], right=numbers), "")
    if args.verbose:
        for outcome in outcomes:
            _show_slices(outcome)
    for outcome in outcomes:
        if outcome.verdict.word != "ok":
            case = outcome.case
            printing.say(f"{case.op}, {case.strategy} on {case.mesh}: {outcome.verdict.details}")
    if text_note and any(outcome.case.op == "embedding" for outcome in outcomes):
        printing.say(text_note)
    printing.say(f"{_count_text(outcomes, world)}; bytes are those of the busiest rank")
    if world.nodes.line:
        printing.say(world.nodes.line)
    if is_summary:
        printing.say(
            "one row for each operator and mesh; --all shows each case, --wide its layouts, times and errors, too"
        )


def _count_text(outcomes: list[Outcome], world: World) -> str:
    """Return a summary such as "3 of 4 cases hold on 8 ranks (LockStep)"."""
    holding = sum(outcome.ok for outcome in outcomes)
    cases = many(len(outcomes), "case holds", "cases hold")
    return f"{holding} of {cases} on {many(world.size, 'rank')} ({type(world).__name__})"


def _write_pictures(outcomes: list[Outcome], world: World, args: argparse.Namespace) -> None:
    """Write the table of outcomes as a picture, if ``--svg`` or ``--html`` is set.

    The picture has all columns, and at most 1000 rows.
    """
    from spmdsim.figures.figures import Figure

    rows = [_row_cells(outcome) for outcome in outcomes]
    table = Table(tuple(rows[0]) if rows else (), [tuple(row.values()) for row in rows])
    notes = ("bytes are those of the busiest rank; every shard is compared with one process",)
    figure = Figure(_count_text(outcomes, world), (table,) if rows else (), notes, most_rows=1000)
    output.write_pictures(args, figure)


def _report_faults(outcomes: list[Outcome], world: World) -> None:
    """Print a table of the injected faults, and how many of them were noticed.

    A row per case has the value that was broken, the checks that failed ("-" if none), the element with the error, and
    the verdict. A fault can be too small to change a result. The last line counts these apart, such as "5 of 6 faults
    that change a result are noticed, 1 MISSED; 2 have no effect; 4 ranks (LockStep)".

    Args:
        outcomes: the outcomes of cases with a fault.
        world: the ranks, for the last line.
    """
    columns = ("operator", "mesh", "strategy", "what was broken", "noticed on", "which element", "verdict")
    rows = [
        [
            o.case.op, str(o.case.mesh), o.case.strategy, o.injection.text if o.injection else "",
            " and ".join(o.failed_checks) or "-", o.verdict.element if o.failed_checks else "-", o.word,
        ]
        for o in outcomes
    ]  # fmt: skip
    printing.say(Table(columns, rows), "")
    words = [outcome.word for outcome in outcomes]
    ineffective, missed = words.count("no effect"), words.count("MISSED")
    effective = len(words) - ineffective
    printing.say(
        f"{effective - missed} of "
        f"{many(effective, 'fault that changes a result is', 'faults that change a result are')} noticed, {missed} "
        f"MISSED; {many(ineffective, 'has', 'have')} no effect; {many(world.size, 'rank')} ({type(world).__name__})"
    )


def _summary_rows(outcomes: list[Outcome]) -> list[dict[str, str]]:
    """Return a row per operator and mesh that sums up their cases, as cells by column.

    The columns are:

    * "operator" and "mesh";
    * "cases": their number;
    * "collectives": the names of the collectives in all cases, in alphabetical order, or "none";
    * "most received (B)": the largest number of bytes that a rank received in a case;
    * "verdict": the first verdict that does not hold, or "ok".

    Rows are in the order of the first cases of ``outcomes``.
    """
    groups: dict[tuple[str, str], list[Outcome]] = {}
    for outcome in outcomes:
        groups.setdefault((outcome.case.op, str(outcome.case.mesh)), []).append(outcome)
    rows = []
    for (op, mesh), cases in groups.items():
        collectives = {event.collective for case in cases for event in case.collectives}
        rows.append(
            {
                "operator": op,
                "mesh": mesh,
                "cases": str(len(cases)),
                "collectives": ", ".join(sorted(collectives)) or "none",
                "most received (B)": f"{max(max(case.counted) for case in cases):,}",
                "verdict": next((case.word for case in cases if not case.ok), "ok"),
            }
        )
    return rows


def _row_cells(outcome: Outcome) -> dict[str, str]:
    """Return the cells of a case by column.

    The columns are:

    * "operator", "mesh", "strategy", "layouts" and "collectives";
    * "local shapes": shapes of the shards of rank 0;
    * "sent (B)" and "received (B)": bytes of the busiest rank;
    * "predicted (B)": "equal" if each rank received as many bytes as predicted, else the largest prediction;
    * "ms": time of the slowest rank;
    * "max error": the largest error and its limit, such as "1.0e-07 <= 2.0e-06";
    * "verdict".

    Args:
        outcome: the case with its result.
    """
    case, verdict = outcome.case, outcome.verdict
    layouts = f"{' , '.join(x.placement_text() for x in outcome.inputs)} -> {outcome.output.placement_text()}"
    return {
        "operator": case.op,
        "mesh": str(case.mesh),
        "strategy": case.strategy,
        "layouts": layouts,
        "local shapes": " ".join("x".join(map(str, s)) or "()" for s in outcome.local_shapes),
        "collectives": ", ".join(_collective_text(e) for e in outcome.collectives) or "none",
        "sent (B)": f"{max(outcome.sent):,}",
        "received (B)": f"{max(outcome.counted):,}",
        "predicted (B)": f"{max(outcome.predicted):,}" if outcome.counted != outcome.predicted else "equal",
        "ms": f"{outcome.seconds * 1e3:.2f}",
        "max error": f"{verdict.max_error:.1e} {'<=' if verdict.ok else '>'} {verdict.tolerance:.1e}",
        "verdict": outcome.word,
    }


def _collective_text(event: CollectiveEvent) -> str:
    """Return a collective with its axes and group size, such as "all_reduce(tp: 4)".

    If it ran by calls of MPI that move other bytes than planned, these calls are appended.
    """
    over = f"{','.join(event.axes)}: " if event.axes else ""
    other_algorithm = f" by {event.way}" if event.due != event.planned else ""
    return f"{event.collective}({over}{event.group_size}){other_algorithm}"


def _show_slices(outcome: Outcome) -> None:
    """Print a table of the slices of a case's operands and result, with a row per rank."""
    from spmdsim.figures.layout_picture import box_text

    names = [f"operand {i}" for i in range(len(outcome.inputs))] + ["result"]
    rows = [[rank, *map(box_text, boxes)] for rank, boxes in enumerate(outcome.slices)]
    title = f"{outcome.case.op}: {outcome.case.strategy} on {outcome.case.mesh}; {outcome.verdict}"
    printing.say("", Table(("rank", *names), rows, title, right=(0,)), "")
