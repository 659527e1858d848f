"""``spmdsim collective detect``: which algorithm the MPI library uses, by its tables and by the bits of its sums."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any
from zlib import crc32

from spmdsim.cli.collective.schedule_arguments import growing_sizes, parse_bytes
from spmdsim.cli.main import choice, command, flag, value, varied, whole
from spmdsim.cli.output import emit_json, only_with, say
from spmdsim.errors import InputError, many
from spmdsim.tables import Table

if TYPE_CHECKING:
    import numpy as np

    from spmdsim.collectives import Schedule

EXAMPLES = """\
examples:
  mpirun -n 3 spmdsim collective detect all_reduce      tables of this library, proven by the bits
  spmdsim collective detect all_reduce --ranks 6        starts six ranks itself
  spmdsim collective detect all_reduce --table -n 16    only what the tables of MPICH and Open MPI say, no MPI

How: floating-point addition rounds, so the order of additions shows in the last bits. The result of the library's
call on data of widely different sizes is compared, bit for bit, with the sum in each algorithm's order. Algorithms
that add in the same order cannot be told apart: their rows name all of them.
"""

#: Collectives that add, so that bits can tell.
REDUCING = ("all_reduce", "reduce_scatter", "reduce", "scan")
#: Elements whose bits are compared: short vectors are drawn anew until there are as many.
ENOUGH = 2048


@dataclass(frozen=True)
class DetectedAlgorithm:
    """What was found for one size: the table's choice by both names, and the algorithms whose order gives the same bits."""

    nbytes: int
    library_name: str
    table: str
    why: str
    bits: tuple[str, ...]
    same_on_all: bool
    verdict: str


@command(
    "Find out which algorithm the MPI library uses for a collective.",
    EXAMPLES,
    varied("collective", nargs="?", default="all_reduce", help="such as all_reduce (default)"),
    "--ranks",
    value("-b --begin", "", "smallest size (32)", default="32"),
    value("-e --end", "", "largest size (256K)", default="256K"),
    varied("-f --factor"),
    choice("-d --datatype", ("float32", "float64"), "type", "float32"),
    flag("--table", "only print what the tables say; needs no MPI"),
    value("-n", "N", "ranks for --table (8)", whole, default=8),
    "--json",
    help="which algorithm does my MPI use? by its tables, proven by the bits of its sums",
)
def main(args: argparse.Namespace) -> int:
    """Detect; 1 if a table's choice is contradicted by the bits."""
    from spmdsim.collectives import collective
    from spmdsim.launch import launched, start_self

    name = collective(args.collective).name
    sizes = growing_sizes(parse_bytes(args.begin), parse_bytes(args.end), args.factor)
    if args.table:
        only_with(args, "--ranks", "ranks that are started, not with --table; -n says for how many it is")
        return _print_tables(name, args, sizes)
    only_with(args, "-n", "--table; --ranks starts ranks")
    if name not in REDUCING:
        raise InputError(
            f"bits tell only of collectives that add: {', '.join(REDUCING)}; for {name} there is --table"
        )
    if not launched() and args.ranks:
        return start_self(args.ranks, sys.argv[1:])
    from spmdsim.cli.collective.measure import communicator
    from spmdsim.worlds import MPIWorld

    comm = communicator()
    if comm.Get_size() < 3:
        raise InputError(
            f"detection needs 3 ranks at least, not {comm.Get_size()}: fewer add in one order only"
        )
    vendor = MPIWorld(comm, check=False).vendor
    library = vendor.lower().replace(" ", "")
    findings = [_detect(name, library, comm, size, args.datatype) for size in sizes]
    findings = list({one.nbytes: one for one in findings}.values())
    _print_findings(name, vendor, comm, findings, args)
    return 1 if any(one.verdict.startswith("not ") for one in findings) else 0


def _detect(name: str, library: str, comm: Any, nbytes: int, dtype_name: str) -> DetectedAlgorithm:
    """One size: the library's results, the table's choice, the orders that give the same bits every time."""
    import numpy as np

    from spmdsim.cli.collective.measure import case_for, native_call
    from spmdsim.collectives.reduction_order import candidates, matching_schedules

    case = case_for(name, comm, nbytes, np.dtype(dtype_name))
    # A scan's last rank has the sum of all; for the others rank 0's result will do.
    judge = case.size - 1 if name == "scan" else 0
    left = candidates(name, case.size)
    same = True
    for draw in range(max(1, ENOUGH // case.count)):
        vectors = [wide_range((draw, rank), case.count, case.dtype) for rank in range(case.size)]
        case.__dict__["source"] = vectors[case.rank]
        result = np.zeros(case.output_count, case.dtype)
        native_call(case, comm, result)()
        same &= len(set(comm.allgather(crc32(result.tobytes())))) == 1
        if case.rank == judge:
            left = matching_schedules(result, vectors, left, rank=judge)
    names = comm.bcast(labels(left) if case.rank == judge else (), judge)
    return _finding(name, library, case.size, case.nbytes, case.dtype.itemsize, names, same)


def _finding(
    name: str, library: str, size: int, nbytes: int, itemsize: int, bits: tuple[str, ...], same: bool
) -> DetectedAlgorithm:
    from spmdsim.collectives.selection_tables import choose

    try:
        choice = choose(library, name, size, nbytes, itemsize=itemsize)
    except InputError:
        verdict = f"by the bits: {bits[0]}" if bits else "no algorithm known here adds in this order"
        return DetectedAlgorithm(nbytes, "", "", "", bits, same, verdict)
    chosen = choice.algorithm.name
    plain = {one.split(" (")[0] for one in bits}
    if chosen in plain:
        verdict = "proven" if len(plain) == 1 else "agrees with the bits"
    elif bits:
        verdict = f"not {chosen}: the bits are those of {bits[0]}"
    else:
        verdict = f"not {chosen}: no algorithm known here adds in this order"
    return DetectedAlgorithm(nbytes, choice.name, chosen, choice.why, bits, same, verdict)


def wide_range(seed: tuple[int, ...], count: int, dtype: np.dtype) -> np.ndarray:
    """A rank's input: numbers of widely different sizes, so that each order of additions rounds differently."""
    import numpy as np

    random = np.random.default_rng(seed)
    return (random.standard_normal(count) * 10.0 ** random.uniform(-4, 4, count)).astype(dtype)


def labels(schedules: list[Schedule]) -> tuple[str, ...]:
    """The algorithms; how the vector is cut is said only where the other way does not agree.

    >>> from spmdsim.collectives import schedule_of
    >>> labels([schedule_of("all_reduce", "ring", 3, rounding="ceiling"), schedule_of("all_reduce", "linear", 3)])
    ('ring (ceiling chunks)', 'linear')
    """
    cuts: dict[str, list[str]] = {}
    for schedule in schedules:
        cuts.setdefault(schedule.algorithm.name, []).append(schedule.rounding)
    usual = {schedule.algorithm.name: schedule.algorithm.rounding for schedule in schedules}
    return tuple(
        name if usual[name] in roundings else f"{name} ({roundings[0]} chunks)"
        for name, roundings in cuts.items()
    )


def _print_findings(
    name: str, vendor: str, comm: Any, findings: list[DetectedAlgorithm], args: argparse.Namespace
) -> None:
    if args.json:
        listed = [asdict(one) for one in findings]
        emit_json({"collective": name, "library": vendor, "ranks": comm.Get_size(), "findings": listed})
        return
    say(f"{name} of {vendor} on {many(comm.Get_size(), 'rank')}, {args.datatype}")
    columns = ("size (B)", "table says", "because", "bits agree with", "verdict")
    rows = [
        (
            f"{one.nbytes}",
            f"{one.table} ({one.library_name})" if one.table else "no table",
            one.why,
            ", ".join(one.bits) or "none",
            one.verdict + "; bits differ by rank!" * (not one.same_on_all and name == "all_reduce"),
        )
        for one in findings
    ]
    say("", Table(columns, rows, right=(0,)))


def _print_tables(name: str, args: argparse.Namespace, sizes: list[int]) -> int:
    """What the libraries' tables choose, without MPI."""
    import numpy as np

    from spmdsim.collectives.selection_tables import choose, libraries

    itemsize = np.dtype(args.datatype).itemsize
    if args.n < 1:
        raise InputError(f"-n {args.n}: a table needs one rank at least")
    rows = []
    for nbytes in sizes:
        row: list[Any] = [nbytes]
        for library in libraries():
            try:
                choice = choose(library, name, args.n, nbytes, itemsize=itemsize)
                row += [choice.algorithm.name, choice.why]
            except InputError:
                row += ["-", "no table"]
        rows.append(row)
    columns = ["size", *(word for library in libraries() for word in (library, f"{library} because"))]
    if args.json:
        emit_json({"collective": name, "ranks": args.n, "rows": [dict(zip(columns, row)) for row in rows]})
        return 0
    say(f"{name} on {many(args.n, 'rank')} by the libraries' tables")
    say("", Table(["size (B)", *columns[1:]], rows, right=(0,)))
    return 0
