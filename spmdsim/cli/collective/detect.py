"""``spmdsim collective detect``: find out which algorithm the MPI library uses.

The libraries have tables that choose an algorithm by rank count and message size. The bits of sums confirm or refute
the choice, because each order of additions rounds differently. Read :func:`main`, then :func:`_detect_algorithm`.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any
from zlib import crc32

from spmdsim.cli.collective.schedule_arguments import growing_sizes, parse_bytes
from spmdsim.cli.launch import choose_hosts
from spmdsim.cli.main import HOSTS, choice, command, declare_flag, value, varied, whole_number
from spmdsim.cli.output import emit_json, refuse_options
from spmdsim.errors import InputError, many
from spmdsim.printing import say
from spmdsim.tables import Table

if TYPE_CHECKING:
    import numpy as np

    from spmdsim.collectives import Schedule

EXAMPLES = """\
examples:
  mpirun -n 3 spmdsim collective detect all_reduce      tables of this library, confirmed by the bits
  spmdsim collective detect all_reduce --ranks 6        starts six ranks itself
  spmdsim collective detect all_reduce --table -n 16    only the tables of MPICH and Open MPI, without MPI

Floating-point addition rounds, so the order of additions shows in the last bits. The result of the library's
call on data of widely different sizes is compared, bit for bit, with the sum in each algorithm's order. Algorithms
that add in one order cannot be distinguished; their rows name all of them.
"""

#: Collectives that add, so that the bits of results depend on the algorithm.
REDUCING = ("all_reduce", "reduce_scatter", "reduce", "scan")
#: Number of elements whose bits are compared; short vectors are drawn several times.
ENOUGH = 2048


@dataclass(frozen=True)
class DetectedAlgorithm:
    """Finding for one message size.

    Attributes:
        nbytes: the message size.
        library_name: the library's name of the table's choice; empty without a table.
        table: this package's name of the table's choice; empty without a table.
        why: the reason of the table's choice.
        bits: the algorithms whose order of additions gives the result's bits.
        same_on_all: True if results are identical on all ranks.
        verdict: the comparison of table and bits in words.
    """

    nbytes: int
    library_name: str
    table: str
    why: str
    bits: tuple[str, ...]
    same_on_all: bool
    verdict: str


@command(
    "Detect the algorithm that the MPI library uses for a collective.",
    EXAMPLES,
    varied("collective", nargs="?", default="all_reduce", help="such as all_reduce (default)"),
    "--ranks",
    *HOSTS,
    value("-b --begin", "", "smallest size (32)", default="32"),
    value("-e --end", "", "largest size (256K)", default="256K"),
    varied("-f --factor"),
    choice("-d --datatype", ("float32", "float64"), "element type (float32)", "float32"),
    declare_flag("--table", "print only the choices of the tables; needs no MPI"),
    value("-n", "N", "ranks for --table (8)", whole_number, default=8),
    "--json",
    help="detect the MPI library's algorithm by its tables and the bits of its sums",
)
def main(args: argparse.Namespace) -> int:
    """Detect which algorithm the MPI library uses for each message size; return the exit code.

    Algorithms add in different orders, so their results differ by rounding. The bits of a result show the order.

    * ``--table`` prints only the choices of the libraries' tables, and returns 0.
    * In a job, all ranks call it. The findings are printed; the code is 1 if bits refute a table, else 0.
    * Outside of a job, ``--ranks`` starts this command on ranks; the code is that of the job.

    Sizes that round to one number of elements give one finding.

    Args:
        args: the command's arguments.

    Raises:
        InputError: If an option has no effect beside ``--table`` or without it, or a size is wrong. Without
            ``--table`` also if the collective does not add, there are no MPI ranks, or fewer than 3.
        SpmdError: If the collective is unknown.
    """
    from spmdsim.collectives import collective
    from spmdsim.launch import launched, start_self
    from spmdsim.launch.hosts import count_slots

    name = collective(args.collective).name
    sizes = growing_sizes(parse_bytes(args.begin), parse_bytes(args.end), args.factor)
    if args.table:
        refuse_options(
            args, "--ranks", "ranks that are started, not with --table; -n says for how many it is"
        )
        return _print_tables(name, args, sizes)
    refuse_options(args, "-n", "--table; --ranks starts ranks")
    if name not in REDUCING:
        raise InputError(
            f"bits tell only of collectives that add: {', '.join(REDUCING)}; for {name} there is --table"
        )
    hosts = choose_hosts(args)
    ranks = args.ranks or count_slots(hosts)
    if not launched() and ranks:
        return start_self(ranks, sys.argv[1:], hosts=hosts)
    from spmdsim.cli.collective.measure import require_communicator
    from spmdsim.worlds import MPIWorld

    comm = require_communicator()
    if comm.Get_size() < 3:
        raise InputError(
            f"detection needs 3 ranks at least, not {comm.Get_size()}: fewer add in one order only"
        )
    vendor = MPIWorld(comm, check=False).vendor
    library = vendor.lower().replace(" ", "")
    findings = [_detect_algorithm(name, library, comm, size, args.datatype) for size in sizes]
    findings = list({finding.nbytes: finding for finding in findings}.values())
    _print_findings(name, vendor, comm, findings, args)
    return 1 if any(finding.verdict.startswith("not ") for finding in findings) else 0


def _detect_algorithm(name: str, library: str, comm: Any, nbytes: int, dtype_name: str) -> DetectedAlgorithm:
    """Run the library's call with one message size; return the algorithms that fit its bits.

    1. Random inputs are drawn, and the library reduces them.
    2. One rank (the last one for a scan, else rank 0) computes the result by each known algorithm, and keeps those
       whose bits are equal.
    3. This is repeated until :data:`ENOUGH` elements were compared.
    4. The rank sends the remaining names to all others.

    All ranks call it.

    Args:
        name: the collective, one of :data:`REDUCING`.
        library: vendor of the MPI library in lower case without blanks, such as "openmpi".
        comm: the mpi4py communicator of the ranks.
        nbytes: message size; it is rounded down to whole elements, at least one, and equal blocks per rank.
        dtype_name: "float32" or "float64".

    Returns:
        The finding, equal on all ranks. Its ``same_on_all`` compares checksums of the results of all ranks.
    """
    import numpy as np

    from spmdsim.cli.collective.measure import bind_native_call, fit_case
    from spmdsim.collectives.reduction_order import list_candidates, matching_schedules

    case = fit_case(name, comm, nbytes, np.dtype(dtype_name))
    # The last rank of a scan has the sum of all inputs; in other collectives rank 0 has it.
    judge = case.size - 1 if name == "scan" else 0
    candidates = list_candidates(name, case.size)
    are_identical = True
    for draw in range(max(1, ENOUGH // case.count)):
        vectors = [draw_wide_range((draw, rank), case.count, case.dtype) for rank in range(case.size)]
        result = np.zeros(case.output_count, case.dtype)
        bind_native_call(case, comm, result, vectors[case.rank])()
        are_identical &= len(set(comm.allgather(crc32(result.tobytes())))) == 1
        if case.rank == judge:
            candidates = matching_schedules(result, vectors, candidates, rank=judge)
    names = comm.bcast(format_names(candidates) if case.rank == judge else (), judge)
    return _judge_table_choice(
        name, library, case.size, case.nbytes, case.dtype.itemsize, names, are_identical
    )


def _judge_table_choice(
    name: str, library: str, size: int, nbytes: int, itemsize: int, bits: tuple[str, ...], same_on_all: bool
) -> DetectedAlgorithm:
    """Compare the table's choice for a message size with the algorithms that the bits allow.

    Args:
        name: the collective.
        library: vendor of the MPI library in lower case without blanks.
        size: number of ranks.
        nbytes: message size.
        itemsize: bytes of an element.
        bits: names of the algorithms whose order of additions gives the result's bits, from :func:`format_names`;
            empty if no known algorithm does.
        same_on_all: True if the results are identical on all ranks. It is only copied into the finding.

    Returns:
        The finding. Its verdict is

        * "proven" if only the table's choice gives the bits; different divisions into chunks are one algorithm here;
        * "agrees with the bits" if other algorithms give them, too;
        * "not ring: ..." for example, if the choice, ring, does not give the bits;
        * the first of ``bits``, or that no known algorithm gives the bits, if the library has no table for the
          collective and size.
    """
    from spmdsim.collectives.selection_tables import choose

    try:
        choice = choose(library, name, size, nbytes, itemsize=itemsize)
    except InputError:
        verdict = f"by the bits: {bits[0]}" if bits else "no algorithm known here adds in this order"
        return DetectedAlgorithm(nbytes, "", "", "", bits, same_on_all, verdict)
    chosen = choice.algorithm.name
    algorithms = {label.split(" (")[0] for label in bits}  # without the division into chunks
    if chosen in algorithms:
        verdict = "proven" if len(algorithms) == 1 else "agrees with the bits"
    elif bits:
        verdict = f"not {chosen}: the bits are those of {bits[0]}"
    else:
        verdict = f"not {chosen}: no algorithm known here adds in this order"
    return DetectedAlgorithm(nbytes, choice.name, chosen, choice.why, bits, same_on_all, verdict)


def draw_wide_range(seed: tuple[int, ...], count: int, dtype: np.dtype) -> np.ndarray:
    """Return ``count`` random numbers whose sizes differ by up to eight powers of ten.

    Each is a normally distributed number times 10 to the power of a uniform number from -4 to 4. Sums of such numbers
    in different orders differ by rounding. Equal seeds give equal numbers.

    Args:
        seed: numbers that determine the result.
        count: number of elements.
        dtype: element type of the result.
    """
    import numpy as np

    random = np.random.default_rng(seed)
    return (random.standard_normal(count) * 10.0 ** random.uniform(-4, 4, count)).astype(dtype)


def format_names(schedules: list[Schedule]) -> tuple[str, ...]:
    """Return the names of the schedules' algorithms, each once, in the order of the schedules.

    A schedule divides the vector into chunks by a rule, "balanced" or "ceiling". If none of an algorithm's
    schedules uses the algorithm's default rule, the rule of its first schedule is appended to the name.

    >>> from spmdsim.collectives import schedule_of
    >>> format_names([schedule_of("all_reduce", "ring", 3, rounding="ceiling"), schedule_of("all_reduce", "linear", 3)])
    ('ring (ceiling chunks)', 'linear')
    """
    divisions: dict[str, list[str]] = {}
    for schedule in schedules:
        divisions.setdefault(schedule.algorithm.name, []).append(schedule.rounding)
    defaults = {schedule.algorithm.name: schedule.algorithm.rounding for schedule in schedules}
    return tuple(
        name if defaults[name] in roundings else f"{name} ({roundings[0]} chunks)"
        for name, roundings in divisions.items()
    )


def _print_findings(
    name: str, vendor: str, comm: Any, findings: list[DetectedAlgorithm], args: argparse.Namespace
) -> None:
    """Print the findings of all message sizes as a table, or as JSON with ``--json``.

    The table has a row per size: size, the table's choice, its reason, the algorithms that fit, and the verdict. The
    verdict of an all_reduce also states if bits differ by rank.

    Args:
        name: the collective.
        vendor: the vendor of the MPI library.
        comm: the mpi4py communicator of the ranks; only its size is used.
        findings: one finding per message size.
        args: the command's arguments: ``json`` and ``datatype``.
    """
    if args.json:
        listed = [asdict(finding) for finding in findings]
        emit_json({"collective": name, "library": vendor, "ranks": comm.Get_size(), "findings": listed})
        return
    say(f"{name} of {vendor} on {many(comm.Get_size(), 'rank')}, {args.datatype}")
    columns = ("size (B)", "table says", "because", "bits agree with", "verdict")
    rows = [
        (
            f"{finding.nbytes}",
            f"{finding.table} ({finding.library_name})" if finding.table else "no table",
            finding.why,
            ", ".join(finding.bits) or "none",
            _verdict_text(finding, name),
        )
        for finding in findings
    ]
    say("", Table(columns, rows, right=(0,)))


def _verdict_text(finding: DetectedAlgorithm, name: str) -> str:
    """Return the verdict for the table; that of an all_reduce states if bits differ by rank."""
    if name == "all_reduce" and not finding.same_on_all:
        return f"{finding.verdict}; bits differ by rank!"
    return finding.verdict


def _print_tables(name: str, args: argparse.Namespace, sizes: list[int]) -> int:
    """Print the choice of each library's table for each message size, without MPI; return 0.

    The output is a table, or JSON with ``--json``. It has a row per size, and per library the algorithm and its reason;
    "-" and "no table" if the library has no choice.

    Args:
        name: the collective.
        args: the command's arguments: ``n`` (number of ranks), ``datatype`` and ``json``.
        sizes: message sizes in bytes.

    Raises:
        InputError: If ``-n`` is less than 1.
    """
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
