"""``spmdsim collective bench``: time emulated algorithms and the library's calls, beside predictions."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from spmdsim.cli.collective.schedule_arguments import (
    checked_options,
    growing_sizes,
    names_in,
    parse_bytes,
)
from spmdsim.cli.main import PICTURES, command, finite, natural, positive, value, varied
from spmdsim.cli.output import (
    emit_json,
    line_columns,
    remark,
    say,
    wants_pictures,
    write_pictures,
)
from spmdsim.errors import InputError, many

if TYPE_CHECKING:
    import numpy as np

    from spmdsim.cost import Machine
    from spmdsim.figures.figures import Figure

EXAMPLES = """\
examples:
  mpirun -n 8 spmdsim collective bench all_reduce                     sizes 8 ... 64M, the library's call and all algorithms
  spmdsim collective bench all_reduce --ranks 2 -b 1K -e 16M -f 4     starts two ranks itself
  mpirun -n 4 spmdsim collective bench all_gather --algorithms native,ring,bruck --machine lab.json

As nccl-tests has it: size is in bytes, time the mean over ranks, algbw = size / time, busbw = algbw times the
collective's factor (2(n-1)/n for all_reduce, (n-1)/n for all_gather, reduce_scatter, all_to_all, gather and scatter,
1 otherwise), GB = 1e9. Every result is checked on every rank; #wrong counts wrong elements of all of them.
"""


@command(
    "Time collective algorithms on real ranks: emulated ones and the library's own call.",
    EXAMPLES,
    varied("collective", nargs="?", default="all_reduce", help="such as all_reduce (default)"),
    value("-b --minbytes", "", "smallest size (8)", default="8"),
    value("-e --maxbytes", "", "largest size (64M)", default="64M"),
    value("-f --stepfactor", "", "from size to size (2)", finite, default=2),
    value("-n --iters", "", "timed calls (20)", positive, default=20),
    value("-w --warmup-iters", "", "calls before (5)", natural, default=5),
    value("-d --datatype", "", "element type (float32)", default="float32"),
    "--ranks",
    "--algorithms",
    "--group",
    "--segments",
    value("--machine", "", "machine file for predictions (see calibrate)", default=""),
    "--json",
    *PICTURES,
    help="measure algorithms and the library's own call under MPI, results verified",
)
def main(args: argparse.Namespace) -> int:
    """Measure and print; return 1 if a result is wrong, else 0."""
    from spmdsim.collectives import collective
    from spmdsim.launch import launched, start_self

    sizes, dtype, name = _sizes(args), _dtype(args.datatype), collective(args.collective).name
    if not launched() and args.ranks:
        _calls(args, name, args.ranks)  # refuses unknown algorithms before ranks are started
        return start_self(args.ranks, sys.argv[1:])
    from spmdsim.cli.collective.measure import communicator, noise_note, others_at_work

    comm = communicator()
    calls = _calls(args, name, comm.Get_size())
    busy_cores = others_at_work(comm)
    print_row = _printer(args, name, comm.Get_size())
    rows = []
    for row in _measure(args, name, calls, sizes, dtype, comm):
        rows.append(row)
        print_row(row)
    note = noise_note(comm, busy_cores())
    wrong = sum(row.wrong for row in rows)
    if args.json:
        listed = [row.to_dict() for row in rows]
        emit_json(
            {"collective": name, "ranks": comm.Get_size(), "note": note, "wrong": wrong, "rows": listed}
        )
    else:
        say(*footer(rows, wrong, note))
    if wants_pictures(args):
        write_pictures(args, _figure(f"{name} on {many(comm.Get_size(), 'rank')}", rows))
    if note:
        remark(note)
    return 1 if wrong else 0


def _sizes(args: argparse.Namespace) -> list[int]:
    """Return the message sizes in bytes."""
    return growing_sizes(parse_bytes(args.minbytes), parse_bytes(args.maxbytes), args.stepfactor)


def _dtype(name: str) -> np.dtype:
    """Return the element type; raise InputError if it is no integer or real float type."""
    from spmdsim.layout.element_type import element_type

    dtype = element_type(name)
    if dtype.kind not in "fiu":
        raise InputError(f"element type {name!r} cannot be added up; such as float32, int64")
    return dtype


def _calls(args: argparse.Namespace, name: str, size: int) -> dict[str, Any]:
    """Return the schedule of each requested algorithm by name.

    None stands for the library's call. Without requested names, these are all algorithms that support ``size`` ranks.
    """
    from spmdsim.collectives import algorithms, make_schedule
    from spmdsim.collectives.algorithm import algorithm

    asked = names_in(args.algorithms)
    options = checked_options(args, name, asked)
    calls: dict[str, Any] = {}
    for label in asked or ["native", *(a.name for a in algorithms(name))]:
        if label == "native":
            calls[label] = None
            continue
        chosen = algorithm(name, label)
        own_options = {k: v for k, v in options.items() if k in dict(chosen.options)}
        if asked or chosen.fits(size, own_options):
            calls[label] = make_schedule(chosen, size, **own_options)
    return calls


def _measure(
    args: argparse.Namespace, name: str, calls: dict[str, Any], sizes: list[int], dtype: np.dtype, comm: Any
) -> Iterator[BenchRow]:
    """Yield one row per algorithm and size, in the order of nccl-tests.

    All sizes of an algorithm come first. ``calls`` has the schedule of each algorithm, or None for the library's
    call.
    """
    import numpy as np

    from spmdsim.cli.collective.measure import (
        case_for,
        emulated_call,
        native_call,
        seconds_per_call,
    )
    from spmdsim.cost import load_machine
    from spmdsim.cost.closed_forms import bus_factor

    machine = load_machine(args.machine) if args.machine else None
    cases = list(dict.fromkeys(case_for(name, comm, nbytes, dtype).count for nbytes in sizes))
    for label, schedule in calls.items():
        for count in cases:
            case = case_for(name, comm, count * dtype.itemsize, dtype)
            result = np.zeros(case.output_count, dtype)
            if schedule is None:
                call = native_call(case, comm, result)
            else:
                call = emulated_call(schedule, case, comm, result)
            seconds = seconds_per_call(call, comm, args.warmup_iters, args.iters)
            wrong = sum(comm.allgather(case.wrong(result)))
            algbw = case.nbytes / seconds / 1e9
            predicted = _predict_seconds(machine, schedule, name, case) if machine else None
            yield BenchRow(
                label,
                case.nbytes,
                case.count,
                dtype.name,
                "sum" if case.promise.reduces else "none",
                0 if case.promise.rooted else -1,
                seconds,
                algbw,
                algbw * bus_factor(name, case.size),
                wrong,
                predicted,
                machine.between(predicted) if machine and predicted is not None else None,
            )


def _predict_seconds(machine: Machine, schedule: Any, name: str, case: Any) -> float | None:
    """Return predicted seconds; None if there are none.

    For the library's call they come from measured times.
    """
    from spmdsim.cost.pricing import emulated_seconds

    if schedule is None:
        return machine.measured_seconds(name, "native", case.size, case.nbytes)
    return emulated_seconds(schedule, machine, case.count, case.dtype.itemsize)


# ---------------------------------------------------------------- the table


@dataclass(frozen=True)
class BenchRow:
    """Measurement of one algorithm at one size.

    Attributes:
        algorithm: its name; "native" for the library's call.
        nbytes: message size.
        count: message size in elements.
        dtype: element type.
        redop: "sum", or "none" without a reduction.
        root: 0, or -1 without a root.
        seconds: mean time of a call.
        algbw: ``nbytes / seconds``, in GB/s.
        busbw: ``algbw`` times the collective's factor, in GB/s.
        wrong: wrong elements on all ranks.
        predicted: predicted seconds, or None.
        interval: lowest and highest predicted seconds, or None.
    """

    algorithm: str
    nbytes: int
    count: int
    dtype: str
    redop: str
    root: int
    seconds: float
    algbw: float
    busbw: float
    wrong: int
    predicted: float | None
    interval: tuple[float, float] | None = None

    @property
    def outside(self) -> bool | None:
        """True if the time lies outside of its prediction's interval; None without an interval."""
        return None if self.interval is None else not self.interval[0] <= self.seconds <= self.interval[1]

    @property
    def error(self) -> float | None:
        """Relative error of the prediction; None without a prediction."""
        return None if self.predicted is None else self.predicted / self.seconds - 1

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {**asdict(self), "error": self.error, "outside": self.outside}


class _Column(NamedTuple):
    """Column of the table: name, unit, width in characters, and a function that returns the cell of a row."""

    name: str
    unit: str
    width: int
    cell: Callable[[BenchRow], object]


_COLUMNS = (
    _Column("size", "(B)", 12, lambda row: row.nbytes),
    _Column("count", "(elements)", 12, lambda row: row.count),
    _Column("type", "", 9, lambda row: row.dtype),
    _Column("redop", "", 7, lambda row: row.redop),
    _Column("root", "", 6, lambda row: row.root),
    _Column("time", "(us)", 11, lambda row: f"{row.seconds * 1e6:.2f}"),
    _Column("algbw", "(GB/s)", 9, lambda row: f"{row.algbw:.3f}"),
    _Column("busbw", "(GB/s)", 9, lambda row: f"{row.busbw:.3f}"),
    _Column("#wrong", "", 7, lambda row: row.wrong),
)
_PREDICTED = (
    _Column(
        "predicted", "(us)", 11, lambda row: "-" if row.predicted is None else f"{row.predicted * 1e6:.2f}"
    ),
    _Column("error", "", 7, lambda row: "-" if row.error is None else f"{row.error:+.0%}"),
    _Column("interval", "(us)", 17, lambda row: "-" if row.predicted is None else _interval(row)),
)

#: Columns that a narrow terminal leaves out, in this order: constant ones first, then those that follow from others.
_LEFT_OUT = ("type", "redop", "root", "count", "algbw", "error")


def _columns(predicted: bool, width: int | None) -> list[_Column]:
    """Return the columns that fit into ``width`` characters; all of them if it is None.

    ``predicted`` includes the columns of predictions.
    """
    columns = [*_COLUMNS, *(_PREDICTED if predicted else ())]
    for name in _LEFT_OUT:
        if width is None or sum(column.width + 1 for column in columns) + 1 <= width:
            break
        columns = [column for column in columns if column.name != name]
    return columns


def _printer(args: argparse.Namespace, name: str, size: int) -> Callable[[BenchRow], None]:
    """Return a function that prints each row at once, with a heading for each algorithm.

    With ``--json`` the function prints nothing.
    """
    if args.json:
        return lambda row: None
    last_algorithm = ""
    title = f"# {name}, {many(size, 'rank')}"
    columns = _columns(bool(args.machine), line_columns())

    def show(row: BenchRow) -> None:
        nonlocal last_algorithm
        if row.algorithm != last_algorithm:
            last_algorithm = row.algorithm
            say("", f"{title}: {row.algorithm}")
            say(f"# {_line(columns, [column.name for column in columns])}")
            say(f"# {_line(columns, [column.unit for column in columns])}")
        say(f"  {_line(columns, [column.cell(row) for column in columns])}")

    return show


def _line(columns: list[_Column], cells: list[object]) -> str:
    """Return a line of right-aligned cells."""
    return " ".join(f"{cell!s:>{column.width}}" for column, cell in zip(columns, cells)).rstrip()


def _interval(row: BenchRow) -> str:
    """Return the interval of a prediction as text, or "none".

    "outside" is added if the time lies outside.
    """
    if row.interval is None:
        return "none"
    low, high = row.interval
    return f"{low * 1e6:.1f}..{high * 1e6:.1f}{' outside' if row.outside else ''}"


def footer(rows: list[BenchRow], wrong: int, note: str) -> Iterator[str]:
    """Yield the last lines: wrong elements, mean bandwidth, and prediction errors.

    ``note`` is a remark about other work on the cores, or empty.
    """
    from statistics import mean, median

    yield ""
    yield f"# Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}"
    if rows:
        yield f"# Avg bus bandwidth    : {mean(row.busbw for row in rows):.6g}"
    for label in dict.fromkeys(row.algorithm for row in rows):
        errors = [abs(row.error) for row in rows if row.algorithm == label and row.error is not None]
        if errors:
            yield f"# prediction error of {label}: {median(errors):.0%} in the median, {max(errors):.0%} at most"
    judged = [row for row in rows if row.outside is not None]
    if judged:
        outside = sum(bool(row.outside) for row in judged)
        yield f"# {outside} of {len(judged)} times lie outside of their prediction's interval"
        if outside and note:
            yield "# that says nothing against the predictions: they are for cores that nobody else uses"


def _figure(title: str, rows: list[BenchRow]) -> Figure:
    """Return the figure of measured and predicted times over sizes, with their table."""
    from spmdsim.figures.figures import Figure
    from spmdsim.figures.plot import TIME, Line, Plot, plot_canvas
    from spmdsim.tables import Table

    lines = []
    for name in dict.fromkeys(row.algorithm for row in rows):
        measured = [row for row in rows if row.algorithm == name and row.nbytes > 0 and row.seconds > 0]
        lines.append(Line(name, tuple((row.nbytes, row.seconds) for row in measured)))
        predicted = tuple((row.nbytes, row.predicted) for row in measured if row.predicted)
        lines += [Line(f"{name}, predicted", predicted)] if predicted else []
    cells = tuple(
        (row.algorithm, f"{row.nbytes:,}", f"{row.seconds * 1e6:.2f}", f"{row.busbw:.3f}", str(row.wrong))
        for row in rows
    )
    table = Table(("algorithm", "bytes", "us", "busbw GB/s", "#wrong"), cells, "", (1, 2, 3, 4))
    plot = Plot("measured times", "bytes", TIME, tuple(line for line in lines if line.points))
    return Figure(title, (*([plot_canvas(plot)] if plot.lines else []), table))
