"""``spmdsim collective bench``: measured times of emulated algorithms and of the library, beside predicted ones."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from spmdsim.cli.arguments import Command, Subparsers
from spmdsim.cli.collective.bench_table import BenchRow, bench_figure, footer, printer, write_csv
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


def add_parser(subparsers: Subparsers) -> None:
    """Declare the subcommand."""
    add = Command(
        subparsers,
        "bench",
        run,
        "Time collective algorithms on real ranks: emulated ones and the library's own call.",
        help="measure algorithms and the library's own call under MPI, results verified",
        epilog=EXAMPLES,
    )
    add("collective", nargs="?", default="all_reduce", help="such as all_reduce (default)")
    add("-b", "--minbytes", default="8", help="smallest size (8)")
    add("-e", "--maxbytes", default="64M", help="largest size (64M)")
    add("-f", "--stepfactor", type=float, default=2, help="from size to size (2)")
    add("-n", "--iters", type=int, default=20, help="timed calls (20)")
    add("-w", "--warmup-iters", type=int, default=5, help="calls before (5)")
    add("-c", "--check", type=int, default=1, metavar="0|1", help="verify results (1)")
    add(
        "-a",
        "--average",
        choices=("median", "mean", "min"),
        default="median",
        help="of five batches of calls (median); min: the fastest four calls, where other work disturbs",
    )
    add("-d", "--datatype", default="float32", help="element type (float32)")
    add("--ranks", type=int, metavar="N", help="start N ranks, outside mpirun")
    add("--algorithms")
    add("--group")
    add("--segments")
    add("--machine", default="", help="machine file for predictions (see calibrate)")
    add("--osu", action="store_true", help="columns of the OSU benchmarks: size and latency")
    add("--json")
    add.pictures()
    add("--csv", metavar="FILE", help="write the rows as CSV")
    add(
        "--trace",
        metavar="FILE",
        help="write a timeline of the last algorithm's messages at the largest size, for ui.perfetto.dev",
    )


def run(args: argparse.Namespace) -> int:
    """Measure; 1 if a result is wrong."""
    from spmdsim.launch import launched, start_self

    sizes = _sizes(args)
    if not launched() and args.ranks:
        return start_self(args.ranks, sys.argv[1:])
    from spmdsim.cli.collective.measure import communicator, noise_note, others_at_work
    from spmdsim.cli.output import emit_json, remark, say, write_pictures
    from spmdsim.collectives import collective

    comm = communicator()
    name = collective(args.collective).name
    calls = _calls(args, name, comm.Get_size())
    others = others_at_work(comm)
    print_row = printer(args, name, comm.Get_size())
    rows = []
    for row in _measure(args, name, calls, sizes, comm):
        rows.append(row)
        print_row(row)
    note = noise_note(comm, others())
    wrong = sum(row.wrong for row in rows)
    if args.json:
        listed = [{**asdict(row), "error": row.error, "outside": row.outside} for row in rows]
        emit_json(
            {"collective": name, "ranks": comm.Get_size(), "note": note, "wrong": wrong, "rows": listed}
        )
    else:
        footer(say, rows, wrong, args, note)
    if args.csv:
        write_csv(args.csv, rows)
    if not args.svg is args.html is None:
        write_pictures(args, bench_figure(f"{name} on {comm.Get_size()} ranks", rows))
    if args.trace:
        _write_timeline(args, name, calls, sizes[-1], comm)
    if note:
        remark(note)
    return 1 if wrong else 0


def _sizes(args: argparse.Namespace) -> list[int]:
    from spmdsim.cli.collective.predict import growing_sizes
    from spmdsim.cli.collective.schedule_arguments import parse_bytes

    if args.iters < 1 or args.warmup_iters < 0:
        raise InputError(f"-n {args.iters} -w {args.warmup_iters}: at least one timed call is needed")
    return growing_sizes(parse_bytes(args.minbytes), parse_bytes(args.maxbytes), args.stepfactor)


def _calls(args: argparse.Namespace, name: str, size: int) -> dict[str, Any]:
    """The schedule of each algorithm asked for that runs at this rank count; None for the library's call."""
    from spmdsim.collectives import algorithms, make_schedule
    from spmdsim.collectives.algorithm import algorithm

    asked = [one.strip() for one in args.algorithms.split(",") if one.strip()]
    options = {k: getattr(args, k) for k in ("group", "segments") if getattr(args, k) is not None}
    calls: dict[str, Any] = {}
    for one in asked or ["native", *(a.name for a in algorithms(name))]:
        if one == "native":
            calls[one] = None
            continue
        chosen = algorithm(name, one)
        mine = {k: v for k, v in options.items() if k in dict(chosen.options)}
        if asked or chosen.fits(size, mine):
            calls[one] = make_schedule(chosen, size, **mine)
    return calls


def _measure(
    args: argparse.Namespace, name: str, calls: dict[str, Any], sizes: list[int], comm: Any
) -> Iterator[BenchRow]:
    """One row per size and algorithm, sizes running fastest as nccl-tests prints them."""
    from statistics import mean, median

    import numpy as np

    from spmdsim.cli.collective.measure import (
        BATCHES,
        case_for,
        emulated_call,
        native_call,
        seconds_per_call,
    )
    from spmdsim.cost.closed_forms import bus_factor

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
            predicted = _predicted(machine, schedule, name, case) if machine else None
            yield BenchRow(
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
                predicted,
                machine.between(predicted) if machine and predicted is not None else None,
            )


def _write_timeline(
    args: argparse.Namespace, name: str, calls: dict[str, Any], nbytes: int, comm: Any
) -> None:
    """The messages of one more run of the last emulated algorithm."""
    import numpy as np

    from spmdsim.cli.collective.measure import case_for
    from spmdsim.cli.collective.message_recording import write_measured_timeline
    from spmdsim.cli.output import remark

    emulated = [schedule for schedule in calls.values() if schedule is not None]
    if not emulated:
        raise InputError("--trace draws an emulated algorithm's messages; name one with --algorithms")
    case = case_for(name, comm, nbytes, np.dtype(args.datatype))
    write_measured_timeline(args.trace, emulated[-1], case, comm)
    remark(f"wrote {args.trace}: {emulated[-1].name}, {case.nbytes:,} bytes")


def _machine(name: str) -> Machine | None:
    from spmdsim.cost import load_machine

    return load_machine(name) if name else None


def _predicted(machine: Machine, schedule: Any, name: str, case: Any) -> float | None:
    from spmdsim.cost.pricing import emulated_seconds

    if schedule is None:
        return machine.measured_seconds(name, "native", case.size, case.nbytes)
    return emulated_seconds(schedule, machine, case.count, case.dtype.itemsize)
