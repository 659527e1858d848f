"""The table of ``spmdsim collective bench``: nccl-tests' or OSU's columns, and CSV."""

from __future__ import annotations

import argparse
import csv
import io
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spmdsim.draw.figures import Figure


@dataclass(frozen=True)
class BenchRow:
    """One measurement; times in seconds, bandwidths in GB/s."""

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
        """Whether the time lies outside of its prediction's interval; None where there is none."""
        return None if self.interval is None else not self.interval[0] <= self.seconds <= self.interval[1]

    @property
    def error(self) -> float | None:
        """Relative error of the prediction."""
        return None if self.predicted is None else self.predicted / self.seconds - 1


@dataclass(frozen=True)
class _Column:
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

#: What goes first where a terminal is narrow: what all rows have alike, then what follows from other columns.
_LEFT_OUT = ("type", "redop", "root", "count", "algbw", "error")


def _columns(predicted: bool, width: int | None) -> list[_Column]:
    """The columns that fit; all of them where nobody says how wide a line may be."""
    columns = [*_COLUMNS, *(_PREDICTED if predicted else ())]
    for name in _LEFT_OUT:
        if width is None or sum(column.width + 1 for column in columns) + 1 <= width:
            break
        columns = [column for column in columns if column.name != name]
    return columns


def printer(args: argparse.Namespace, name: str, size: int) -> Callable[[BenchRow], None]:
    """A function that prints each row when it is there, with a heading for each algorithm."""
    from spmdsim.cli.output import line_columns, say

    if args.json:
        return lambda row: None
    last = ""
    title = f"# OSU MPI {name} Latency Test" if args.osu else f"# {name}, {size} ranks"
    columns = _columns(bool(args.machine), line_columns())

    def show(row: BenchRow) -> None:
        nonlocal last
        if row.algorithm != last:
            last = row.algorithm
            say("", f"{title}: {row.algorithm}")
            if args.osu:
                say(f"{'# Size':<10}{'Avg Latency(us)':>20}")
            else:
                say(
                    *(
                        f"# {_line(columns, [getattr(one, word) for one in columns])}"
                        for word in ("name", "unit")
                    )
                )
        if args.osu:
            say(f"{row.nbytes:<10}{row.seconds * 1e6:>20.2f}")
        else:
            say(f"  {_line(columns, [column.cell(row) for column in columns])}")

    return show


def _line(columns: list[_Column], cells: list[object]) -> str:
    return " ".join(f"{cell!s:>{column.width}}" for column, cell in zip(columns, cells)).rstrip()


def _interval(row: BenchRow) -> str:
    """The interval of a prediction, and whether the time lies outside."""
    if row.interval is None:
        return "none"
    low, high = row.interval
    return f"{low * 1e6:.1f}..{high * 1e6:.1f}{' outside' if row.outside else ''}"


def footer(say: Any, rows: list[BenchRow], wrong: int, args: argparse.Namespace, note: str) -> None:
    """Wrong elements, bandwidth and prediction errors of all rows; ``note`` says what else the cores had to do."""
    from statistics import mean, median

    say(
        "",
        f"# Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}" if args.check else "# not checked",
    )
    if rows:
        say(f"# Avg bus bandwidth    : {mean(row.busbw for row in rows):.6g}")
    for label in dict.fromkeys(row.algorithm for row in rows):
        errors = [abs(row.error) for row in rows if row.algorithm == label and row.error is not None]
        if errors:
            say(
                f"# prediction error of {label}: {median(errors):.0%} in the median, {max(errors):.0%} at most"
            )

    judged = [row for row in rows if row.outside is not None]
    if judged:
        outside = sum(bool(row.outside) for row in judged)
        say(f"# {outside} of {len(judged)} times lie outside of their prediction's interval")
        if outside and note:
            say("# that says nothing against the predictions: they are for cores that nobody else uses")


def bench_figure(title: str, rows: list[BenchRow]) -> Figure:
    """Times over sizes, measured and predicted, and as a table."""
    from spmdsim.draw.figures import FactTable, Figure
    from spmdsim.draw.plot import Line, Plot, plot_canvas

    lines = []
    for name in dict.fromkeys(row.algorithm for row in rows):
        mine = [row for row in rows if row.algorithm == name and row.nbytes > 0 and row.seconds > 0]
        lines.append(Line(name, tuple((row.nbytes, row.seconds) for row in mine)))
        told = tuple((row.nbytes, row.predicted) for row in mine if row.predicted)
        lines += [Line(f"{name}, predicted", told)] if told else []
    cells = tuple(
        (row.algorithm, f"{row.nbytes:,}", f"{row.seconds * 1e6:.2f}", f"{row.busbw:.3f}", str(row.wrong))
        for row in rows
    )
    table = FactTable(("algorithm", "bytes", "us", "busbw GB/s", "#wrong"), cells, "", (1, 2, 3, 4))
    plot = Plot("measured times", "bytes", "seconds", tuple(line for line in lines if line.points))
    return Figure(title, (*([plot_canvas(plot)] if plot.lines else []), table))


def write_csv(path: str, rows: list[BenchRow]) -> None:
    """Write the rows with a heading."""
    from spmdsim.cli.output import write_file

    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow([*BenchRow.__dataclass_fields__, "error", "outside"])
    writer.writerows([*asdict(row).values(), row.error, row.outside] for row in rows)
    write_file(path, text.getvalue())
