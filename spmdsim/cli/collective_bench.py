"""``spmdsim collective bench``: measured times of emulated algorithms and of the library, beside predicted ones."""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spmdsim.errors import InputError

if TYPE_CHECKING:
    from spmdsim.cost import Machine

EXAMPLES = """\
examples:
  mpirun -n 8 spmdsim collective bench all_reduce                     sizes 8 ... 64M, the library's call and all algorithms
  spmdsim collective bench all_reduce --ranks 2 -b 1K -e 16M -f 4     starts two ranks itself
  mpirun -n 4 spmdsim collective bench all_gather --algorithms native,ring,bruck --machine lab.json
  mpirun -n 4 spmdsim collective bench broadcast --osu --algorithms native

As nccl-tests has it: size is in bytes, time the mean over ranks, algbw = size / time, busbw = algbw times the
collective's factor (2(n-1)/n for all_reduce, (n-1)/n for all_gather, reduce_scatter, all_to_all, gather and scatter,
1 otherwise), GB = 1e9. Every result is checked on every rank; #wrong counts wrong elements of all of them.
"""


@dataclass(frozen=True)
class Row:
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

    @property
    def error(self) -> float | None:
        """Relative error of the prediction."""
        return None if self.predicted is None else self.predicted / self.seconds - 1


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the subcommand."""
    parser = subparsers.add_parser(
        "bench",
        help="measure algorithms and the library's own call under MPI, results verified",
        description="Time collective algorithms on real ranks: emulated ones and the library's own call.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("collective", nargs="?", default="all_reduce", help="such as all_reduce (default)")
    parser.add_argument("-b", "--minbytes", default="8", help="smallest size (8)")
    parser.add_argument("-e", "--maxbytes", default="64M", help="largest size (64M)")
    parser.add_argument("-f", "--stepfactor", type=float, default=2, help="from size to size (2)")
    parser.add_argument("-n", "--iters", type=int, default=20, help="timed calls (20)")
    parser.add_argument("-w", "--warmup-iters", type=int, default=5, help="calls before (5)")
    parser.add_argument("-c", "--check", type=int, default=1, metavar="0|1", help="verify results (1)")
    parser.add_argument(
        "-a",
        "--average",
        choices=("median", "mean", "min"),
        default="median",
        help="of five batches of calls (median); min: the fastest four calls, where other work disturbs",
    )
    parser.add_argument("-d", "--datatype", default="float32", help="element type (float32)")
    parser.add_argument("--ranks", type=int, metavar="N", help="start N ranks, outside mpirun")
    parser.add_argument("--algorithms", default="", metavar="A,B", help="only these; native is the library's")
    parser.add_argument("--group", type=int, metavar="G", help="ranks per group, for two-level algorithms")
    parser.add_argument("--segments", type=int, metavar="S", help="segments, for algorithms that have them")
    parser.add_argument("--machine", default="", help="machine file for predictions (see calibrate)")
    parser.add_argument("--osu", action="store_true", help="columns of the OSU benchmarks: size and latency")
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.add_argument("--csv", metavar="FILE", help="write the rows as CSV")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Measure; 1 if a result is wrong."""
    from spmdsim.launch import launched, start_self

    sizes = _sizes(args)
    if not launched() and args.ranks:
        return start_self(args.ranks, sys.argv[1:])
    from spmdsim.cli.collective_measure import communicator, noise_note
    from spmdsim.cli.output import emit_json, is_speaker, remark, say
    from spmdsim.collectives import collective

    comm = communicator()
    name = collective(args.collective).name
    calls = _calls(args, name, comm.Get_size())
    note = noise_note(comm)
    print_row = _printer(args, name, comm.Get_size())
    rows = []
    for row in _measure(args, name, calls, sizes, comm):
        rows.append(row)
        print_row(row)
    wrong = sum(row.wrong for row in rows)
    if args.json:
        listed = [{**asdict(row), "error": row.error} for row in rows]
        emit_json(
            {"collective": name, "ranks": comm.Get_size(), "note": note, "wrong": wrong, "rows": listed}
        )
    else:
        _footer(say, rows, wrong, args)
    if args.csv and is_speaker():
        _write_csv(args.csv, rows)
    if note:
        remark(note)
    return 1 if wrong else 0


def _sizes(args: argparse.Namespace) -> list[int]:
    from spmdsim.cli.collective_common import parse_bytes
    from spmdsim.cli.collective_predict import growing_sizes

    if args.iters < 1 or args.warmup_iters < 0:
        raise InputError(f"-n {args.iters} -w {args.warmup_iters}: at least one timed call is needed")
    return growing_sizes(parse_bytes(args.minbytes), parse_bytes(args.maxbytes), args.stepfactor)


def _calls(args: argparse.Namespace, name: str, size: int) -> dict[str, Any]:
    """The schedule of each algorithm asked for that runs at this rank count; None for the library's call."""
    from spmdsim.collectives import algorithms, make_schedule
    from spmdsim.collectives.algorithm import algorithm

    asked = [one.strip() for one in args.algorithms.split(",") if one.strip()]
    options = {k: getattr(args, k) for k in ("group", "segments") if getattr(args, k) is not None}
    found: dict[str, Any] = {}
    for one in asked or ["native", *(a.name for a in algorithms(name))]:
        if one == "native":
            found[one] = None
            continue
        chosen = algorithm(name, one)
        mine = {k: v for k, v in options.items() if k in dict(chosen.options)}
        if asked or chosen.fits(size, mine):
            found[one] = make_schedule(chosen, size, **mine)
    return found


def _measure(
    args: argparse.Namespace, name: str, calls: dict[str, Any], sizes: list[int], comm: Any
) -> Iterator[Row]:
    """One row per size and algorithm, sizes running fastest as nccl-tests prints them."""
    from statistics import mean, median

    import numpy as np

    from spmdsim.cli.collective_measure import (
        BATCHES,
        case_for,
        emulated_call,
        native_call,
        seconds_per_call,
    )
    from spmdsim.cost.volumes import bus_factor

    try:
        dtype = np.dtype(args.datatype)
    except TypeError:
        raise InputError(f"unknown element type {args.datatype!r}; such as float32, int64") from None
    if dtype.kind not in "fiu":
        raise InputError(f"element type {args.datatype!r} cannot be added up; such as float32, int64")
    machine = _machine(args.machine)
    averages: dict[str, Any] = {"median": median, "mean": mean, "min": min}
    cases = list(dict.fromkeys(case_for(name, comm, nbytes, dtype).count for nbytes in sizes))
    for label, schedule in calls.items():
        for count in cases:
            case = case_for(name, comm, count * dtype.itemsize, dtype)
            result = np.zeros(case.output_count, dtype)
            if schedule is None:
                call = native_call(case, comm, result)
            else:
                call = emulated_call(schedule, case, comm, result)
            # Four calls in a row: one alone would time how unevenly ranks leave the barrier before it.
            batches = max(1, args.iters // 4) if args.average == "min" else BATCHES
            choose = averages[args.average]
            seconds = seconds_per_call(call, comm, args.warmup_iters, args.iters, batches, choose)
            wrong = sum(comm.allgather(case.wrong(result))) if args.check else 0
            algbw = case.nbytes / seconds / 1e9
            yield Row(
                label,
                case.nbytes,
                case.count,
                dtype.name,
                "sum" if name in ("all_reduce", "reduce", "reduce_scatter", "scan", "exscan") else "none",
                0 if name in ("broadcast", "reduce", "gather", "scatter") else -1,
                seconds,
                algbw,
                algbw * bus_factor(name, case.size),
                wrong,
                _predicted(machine, schedule, name, case) if machine else None,
            )


def _machine(name: str) -> Machine | None:
    from spmdsim.cost import load_machine

    return load_machine(name) if name else None


def _predicted(machine: Machine, schedule: Any, name: str, case: Any) -> float | None:
    from spmdsim.cost.emulated import emulated_seconds

    if schedule is None:
        return machine.measured_seconds(name, "native", case.size, case.nbytes)
    return emulated_seconds(schedule, machine, case.count, case.dtype.itemsize)


def _printer(args: argparse.Namespace, name: str, size: int) -> Any:
    """A function that prints each row when it is there, with a heading for each algorithm."""
    from spmdsim.cli.output import say

    if args.json:
        return lambda row: None
    last = ""
    title = f"# OSU MPI {name} Latency Test" if args.osu else f"# {name}, {size} ranks"

    def head(row: Row) -> None:
        say("", f"{title}: {row.algorithm}")
        if args.osu:
            say(f"{'# Size':<10}{'Avg Latency(us)':>20}")
            return
        first = ("size", "count", "type", "redop", "root", "time", "algbw", "busbw", "#wrong")
        units = ("(B)", "(elements)", "", "", "", "(us)", "(GB/s)", "(GB/s)", "")
        extra = (("predicted", "error"), ("(us)", "")) if args.machine else ((), ())
        say("# " + _columns(*first, *extra[0]), "# " + _columns(*units, *extra[1]))

    def show(row: Row) -> None:
        nonlocal last
        if row.algorithm != last:
            head(row)
            last = row.algorithm
        if args.osu:
            say(f"{row.nbytes:<10}{row.seconds * 1e6:>20.2f}")
            return
        cells = (
            row.nbytes, row.count, row.dtype, row.redop, row.root, f"{row.seconds * 1e6:.2f}",
            f"{row.algbw:.3f}", f"{row.busbw:.3f}", row.wrong,
        )  # fmt: skip
        extra: tuple[str, ...] = ()
        if args.machine:
            extra = ("-", "-")
            if row.predicted is not None and row.error is not None:
                extra = (f"{row.predicted * 1e6:.2f}", f"{row.error:+.0%}")
        say("  " + _columns(*cells, *extra))

    return show


def _columns(*cells: object) -> str:
    widths = (12, 12, 9, 7, 6, 11, 9, 9, 7, 11, 7)
    return " ".join(f"{cell!s:>{width}}" for cell, width in zip(cells, widths)).rstrip()


def _footer(say: Any, rows: list[Row], wrong: int, args: argparse.Namespace) -> None:
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


def _write_csv(path: str, rows: list[Row]) -> None:
    try:
        with Path(path).open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow([*Row.__dataclass_fields__, "error"])
            writer.writerows([*asdict(row).values(), row.error] for row in rows)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from None
