"""``spmdsim collective bench``: time emulated algorithms and MPI's own calls.

The times are printed beside predictions. Read :func:`main` first, then :func:`_measure_rows`, which times the calls.
The rest prints and draws rows.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from spmdsim.cli.collective.schedule_arguments import (
    NUMBER_ARGUMENTS,
    find_algorithms,
    growing_sizes,
    parse_bytes,
    set_options,
    split_names,
)
from spmdsim.cli.launch import choose_hosts
from spmdsim.cli.main import HOSTS, PICTURES, command, finite, natural, positive, value, varied
from spmdsim.cli.output import emit_json, remark, wants_pictures, write_pictures
from spmdsim.errors import InputError, many
from spmdsim.printing import line_columns, say

if TYPE_CHECKING:
    import numpy as np

    from spmdsim.cli.collective.measure import MeasuredCase
    from spmdsim.collectives import Schedule
    from spmdsim.cost import Machine
    from spmdsim.figures.figures import Figure

EXAMPLES = """\
examples:
  mpirun -n 8 spmdsim collective bench all_reduce                     sizes 8 ... 64M, the library's call and all algorithms
  spmdsim collective bench all_reduce --ranks 2 -b 1K -e 16M -f 4     starts two ranks itself
  mpirun -n 4 spmdsim collective bench all_gather --algorithms native,ring,bruck --machine lab.json

As in nccl-tests, size is in bytes, algbw = size / time, busbw = algbw times the collective's factor (2(n-1)/n for
all_reduce, (n-1)/n for all_gather, reduce_scatter, all_to_all, gather and scatter, 1 otherwise), GB = 1e9. A call takes
the time until its last rank ends. Every result is checked on every rank; #wrong counts wrong elements of all of them.
"""


@command(
    "Time collective algorithms on real ranks: emulated ones and the library's own call.",
    EXAMPLES,
    varied("collective", nargs="?", default="all_reduce", help="such as all_reduce (default)"),
    value("-b --minbytes", "", "smallest size (8)", default="8"),
    value("-e --maxbytes", "", "largest size (64M)", default="64M"),
    value("-f --stepfactor", "", "factor between sizes (2)", finite, default=2),
    value("-n --iters", "", "timed calls (20)", positive, default=20),
    value("-w --warmup-iters", "", "calls before the measurement (5)", natural, default=5),
    value("-d --datatype", "", "element type (float32)", default="float32"),
    "--ranks",
    *HOSTS,
    "--algorithms",
    *NUMBER_ARGUMENTS,
    value("--machine", "", "machine file for predictions (see calibrate)", default=""),
    "--json",
    *PICTURES,
    help="measure algorithms and the library's own call under MPI, results verified",
)
def main(args: argparse.Namespace) -> int:
    """Time the algorithms and print one row per size; return 1 if a result is wrong, else 0.

    Each row is printed as soon as it is measured; with ``--json`` all rows are printed at the end. Pictures are
    written in addition. In a job, all ranks call it. Outside of a job, ``--ranks`` starts this command on that many
    ranks, or ``--hosts`` on one rank per slot, and the exit code of the job is returned.

    Args:
        args: the command's arguments. ``ranks`` is ignored in a job.

    Raises:
        InputError: If a size, an element type or an option is wrong, or neither a job nor ``--ranks`` provides MPI
            ranks.
        SpmdError: If the collective is unknown.
        ScheduleError: If an algorithm is unknown, or does not support the number of ranks.
    """
    from spmdsim.collectives import collective
    from spmdsim.launch import launched, start_self
    from spmdsim.launch.hosts import count_slots

    sizes, dtype, name = _parse_sizes(args), _parse_dtype(args.datatype), collective(args.collective).name
    hosts = choose_hosts(args)
    ranks = args.ranks or count_slots(hosts)
    if not launched() and ranks:
        _make_schedules(args, name, ranks)  # refuses unknown algorithms before ranks are started
        return start_self(ranks, sys.argv[1:], hosts=hosts)
    from spmdsim.cli.collective.measure import noise_note, require_communicator, watch_other_programs

    comm = require_communicator()
    schedules = _make_schedules(args, name, comm.Get_size())
    busy_cores = watch_other_programs(comm)
    print_row = _make_row_printer(args, name, comm.Get_size())
    rows = []
    for row in _measure_rows(args, name, schedules, sizes, dtype, comm):
        rows.append(row)
        print_row(row)
    return _report_rows(args, name, comm.Get_size(), rows, noise_note(comm, busy_cores()))


def _report_rows(args: argparse.Namespace, name: str, size: int, rows: list[BenchRow], note: str) -> int:
    """Print the footer or JSON, and write pictures.

    All ranks may call it; rank 0 and ranks with a log print, and rank 0 writes pictures.

    Args:
        args: the command's arguments: ``json``, ``svg`` and ``html``.
        name: the collective.
        size: number of ranks.
        rows: all rows. Without ``--json`` they are already printed, so only the footer follows.
        note: a remark about other work on the cores, printed to stderr; "" prints none.

    Returns:
        1 if a result is wrong, else 0.
    """
    wrong = sum(row.wrong for row in rows)
    if args.json:
        row_facts = [row.to_dict() for row in rows]
        emit_json({"collective": name, "ranks": size, "note": note, "wrong": wrong, "rows": row_facts})
    else:
        say(*format_footer(rows, wrong, note))
    if wants_pictures(args):
        write_pictures(args, _draw_figure(f"{name} on {many(size, 'rank')}", rows))
    if note:
        remark(note)
    return 1 if wrong else 0


def _parse_sizes(args: argparse.Namespace) -> list[int]:
    """Return the message sizes of ``--minbytes``, ``--maxbytes`` and ``--stepfactor`` in bytes."""
    return growing_sizes(parse_bytes(args.minbytes), parse_bytes(args.maxbytes), args.stepfactor)


def _parse_dtype(name: str) -> np.dtype:
    """Return the element type with a name such as "float32", if its numbers can be added.

    Raises:
        InputError: If the name is unknown, or the type is not one of NumPy's integer or real floating-point
            types. So bool and complex types are refused.
    """
    from spmdsim.layout.element_type import element_type

    dtype = element_type(name)
    if dtype.kind not in "fiu":
        raise InputError(f"element type {name!r} cannot be added up; such as float32, int64")
    return dtype


def _make_schedules(args: argparse.Namespace, name: str, size: int) -> dict[str, Schedule | None]:
    """Return the schedules of the requested algorithms, by name in the order of the table.

    * With ``--algorithms``: those, in their order.
    * Without: "native", then all algorithms that support ``size`` ranks with the options that are set.

    "native" is the MPI library's own call, which has no schedule: its value is None. Each schedule gets the options
    that its algorithm has. The root is rank 0.

    Args:
        args: the command's arguments; ``algorithms`` has names separated by commas, "" for all.
        name: the collective.
        size: number of ranks.

    Raises:
        InputError: If no algorithm that runs has an option that is set.
        ScheduleError: If a name of ``--algorithms`` is unknown, or its algorithm does not support ``size`` ranks.
    """
    from spmdsim.collectives import make_schedule

    requested_names, options = split_names(args.algorithms), set_options(args)
    schedules: dict[str, Schedule | None] = {}
    for label, chosen in find_algorithms(args, name, requested_names).items():
        if chosen is None:
            schedules[label] = None
            continue
        own_options = {key: option for key, option in options.items() if key in dict(chosen.options)}
        if requested_names or chosen.fits(size, own_options):
            schedules[label] = make_schedule(chosen, size, **own_options)
    return schedules


def _measure_rows(
    args: argparse.Namespace,
    name: str,
    schedules: dict[str, Schedule | None],
    sizes: list[int],
    dtype: np.dtype,
    comm: Any,
) -> Iterator[BenchRow]:
    """Time each algorithm with each message size; yield one row per pair.

    All sizes of an algorithm come together, in the order of ``schedules`` and ``sizes``. A size is rounded to whole
    elements, at least one, and to equal blocks per rank: the row has the rounded size. Sizes that round to one number
    of elements give one row. The result of the last timed call is verified on all ranks. All ranks must iterate over
    it, because they run the collectives.

    Args:
        args: the command's arguments: ``warmup_iters``, ``iters``, and ``machine``, the machine file for predictions
            or "".
        name: the collective.
        schedules: the schedule of each algorithm; None for the MPI library's own call.
        sizes: message sizes in bytes.
        dtype: element type.
        comm: the mpi4py communicator of the ranks.
    """
    import numpy as np

    from spmdsim.cli.collective.measure import (
        bind_emulated_call,
        bind_native_call,
        fit_case,
        measure_call,
    )
    from spmdsim.cost import load_machine

    machine = load_machine(args.machine) if args.machine else None
    counts = list(dict.fromkeys(fit_case(name, comm, nbytes, dtype).count for nbytes in sizes))
    for label, schedule in schedules.items():
        for count in counts:
            case = fit_case(name, comm, count * dtype.itemsize, dtype)
            result = np.zeros(case.output_count, dtype)
            if schedule is None:
                call = bind_native_call(case, comm, result)
            else:
                call = bind_emulated_call(schedule, case, comm, result)
            seconds = measure_call(call, comm, args.warmup_iters, args.iters)
            wrong = sum(comm.allgather(case.wrong(result)))
            predicted: float | None = None
            interval: tuple[float, float] | None = None
            if machine is not None:
                predicted = _predict_seconds(machine, schedule, name, case)
                interval = None if predicted is None else machine.between(predicted)
            yield _make_row(label, case, seconds, wrong, predicted, interval)


def _make_row(
    label: str,
    case: MeasuredCase,
    seconds: float,
    wrong: int,
    predicted: float | None,
    interval: tuple[float, float] | None,
) -> BenchRow:
    """Return the row of a measured case, with its bandwidths in GB/s (1e9 bytes per second).

    The algorithm bandwidth is the message size divided by the seconds. The bus bandwidth is the algorithm bandwidth
    times the bus factor of nccl-tests, which is 1.5 for an all_reduce on 4 ranks. For example, 1 GB in 0.5 s then has
    2 GB/s, and 3 GB/s on the bus.

    Args:
        label: the algorithm; "native" for the library's own call.
        case: the collective, its size and its element type.
        seconds: the measured seconds of a call.
        wrong: number of wrong elements on all ranks.
        predicted: the predicted seconds; None without a prediction.
        interval: the lowest and highest predicted seconds; None without an interval.
    """
    from spmdsim.cost.closed_forms import bus_factor

    algbw = case.nbytes / seconds / 1e9
    return BenchRow(
        algorithm=label,
        nbytes=case.nbytes,
        count=case.count,
        dtype=case.dtype.name,
        redop="sum" if case.promise.reduces else "none",
        root=0 if case.promise.rooted else -1,
        seconds=seconds,
        algbw=algbw,
        busbw=algbw * bus_factor(case.collective, case.size),
        wrong=wrong,
        predicted=predicted,
        interval=interval,
    )


def _predict_seconds(
    machine: Machine, schedule: Schedule | None, name: str, case: MeasuredCase
) -> float | None:
    """Return the predicted seconds of a measured case, or None if there is no prediction.

    * For a schedule: the price by :func:`~spmdsim.cost.pricing.emulated_seconds`.
    * For the library's own call: the time interpolated at this size between the times measured for this collective on
      this number of ranks; None without such times.
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
        seconds: time of a call until its last rank ends.
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
        """Return the fields, ``error`` and ``outside`` as plain values for JSON."""
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
    _Column("interval", "(us)", 17, lambda row: "-" if row.predicted is None else _format_interval(row)),
)

#: Columns that a narrow terminal leaves out, in this order: constant ones first, then those that follow from others.
_LEFT_OUT = ("type", "redop", "root", "count", "algbw", "error")


def _select_columns(predicted: bool, width: int | None) -> list[_Column]:
    """Return the columns that fit into ``width`` characters; all columns if it is None.

    Columns are left out one by one, in the order of ``_LEFT_OUT``, until the line fits. All other columns stay,
    even if the line is too wide. A column takes its width and one blank; the line begins with one more character.
    The columns of predictions are included if ``predicted`` is True.
    """
    columns = [*_COLUMNS, *(_PREDICTED if predicted else ())]
    for name in _LEFT_OUT:
        if width is None or sum(column.width + 1 for column in columns) + 1 <= width:
            break
        columns = [column for column in columns if column.name != name]
    return columns


def _make_row_printer(args: argparse.Namespace, name: str, size: int) -> Callable[[BenchRow], None]:
    """Return a function that prints a row of the table as soon as it is measured.

    Before the first row of each algorithm it prints a title and the column heads. So all rows of an algorithm must
    come one after the other. Columns that do not fit into the terminal are left out.

    Args:
        args: the command's arguments. With ``json`` the function prints nothing. With ``machine`` there are columns of
            predictions.
        name: the collective, for the title.
        size: number of ranks, for the title.

    Returns:
        A function of a row that returns None.
    """
    if args.json:
        return lambda row: None
    last_algorithm = ""
    title = f"# {name}, {many(size, 'rank')}"
    columns = _select_columns(bool(args.machine), line_columns())

    def show(row: BenchRow) -> None:
        nonlocal last_algorithm
        if row.algorithm != last_algorithm:
            last_algorithm = row.algorithm
            say("", f"{title}: {row.algorithm}")
            say(f"# {_format_line(columns, [column.name for column in columns])}")
            say(f"# {_format_line(columns, [column.unit for column in columns])}")
        say(f"  {_format_line(columns, [column.cell(row) for column in columns])}")

    return show


def _format_line(columns: list[_Column], cells: list[object]) -> str:
    """Return one line of right-aligned cells, without blanks at its end."""
    return " ".join(f"{cell!s:>{column.width}}" for column, cell in zip(columns, cells)).rstrip()


def _format_interval(row: BenchRow) -> str:
    """Return the interval of a prediction in microseconds, such as "1.2..3.4", or "none".

    " outside" is appended if the measured time lies outside of the interval.
    """
    if row.interval is None:
        return "none"
    low, high = row.interval
    return f"{low * 1e6:.1f}..{high * 1e6:.1f}{' outside' if row.outside else ''}"


def format_footer(rows: list[BenchRow], wrong: int, note: str) -> Iterator[str]:
    """Yield the lines below the table of measured times.

    They are, each only if there are data for it:

    * the number of wrong elements (always);
    * the bus bandwidth, as the mean over all rows;
    * for each algorithm, the median and the largest error of predictions, ``abs(predicted / measured - 1)``;
    * how many times lie outside of their predicted interval. If there are some and ``note`` is not empty, another
      line explains that other programs can be the reason.

    Args:
        rows: all rows of the table.
        wrong: number of wrong elements in all rows.
        note: the remark of :func:`~spmdsim.cli.collective.measure.noise_note`, or "".
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
    rows_with_interval = [row for row in rows if row.outside is not None]
    if rows_with_interval:
        outside_count = sum(bool(row.outside) for row in rows_with_interval)
        yield f"# {outside_count} of {len(rows_with_interval)} times lie outside of their prediction's interval"
        if outside_count and note:
            yield "# that says nothing against the predictions: they are for cores that nobody else uses"


def _draw_figure(title: str, rows: list[BenchRow]) -> Figure:
    """Return a plot of measured and predicted times over sizes, above a table of all rows.

    The plot has a line per algorithm, and a second line if it has predictions, which are only in the plot. Rows of size
    0 or 0 seconds are only in the table. Without any other row the figure has no plot.

    Args:
        title: the title of the figure.
        rows: all rows of the measurement.
    """
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
