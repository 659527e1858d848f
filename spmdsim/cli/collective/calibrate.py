"""``spmdsim collective calibrate``: measure this machine and write its machine file.

``samples.py`` has the measurements, and ``cost/calibration.py`` the fit.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, Any

from spmdsim.cli.collective.schedule_arguments import parse_bytes
from spmdsim.cli.launch import choose_hosts
from spmdsim.cli.main import HOSTS, PICTURES, command, finite, value, varied
from spmdsim.cli.output import emit_json, remark, writable, write_file, write_pictures
from spmdsim.errors import InputError, many
from spmdsim.printing import say
from spmdsim.tables import Table

if TYPE_CHECKING:
    from spmdsim.cli.collective.time_budget import TimeBudget
    from spmdsim.cost import Machine, Rate
    from spmdsim.cost.calibration import Calibration, Fit

#: Seconds of all measurements together.
SECONDS = 120.0

EXAMPLES = """\
examples:
  spmdsim collective calibrate -o lab.json               starts two ranks, measures, fits, writes
  mpirun -n 2 spmdsim collective calibrate -o lab.json   two ranks of your own launcher
  mpirun -n 64 spmdsim collective calibrate -o lab.json  several nodes: also the links between them
  spmdsim collective calibrate --hosts node1:2,node2:2 --seconds 30 -o lab.json
  spmdsim collective predict all_reduce -n 2 --machine lab.json
"""


@command(
    "Measure messages, reductions, copies and the library's own collectives on real ranks, fit a "
    "machine to them, and report the errors of the fit.",
    EXAMPLES,
    value("-o --output", "FILE", "machine file to write", writable),
    varied("--ranks", help="ranks to start outside mpirun (2; with hosts one per slot)"),
    *HOSTS,
    value("--seconds", "S", "time of all measurements (120)", finite, default=SECONDS),
    value("-e --end", "", "largest message (64M)", default="64M"),
    "--json",
    *PICTURES,
    help="fit alpha, beta and gamma to this machine; writes a machine file",
)
def main(args: argparse.Namespace) -> int:
    """Measure messages, fit a machine to them, print it and write it to ``--output``; return 0.

    In a job, all ranks call it; the measurements take ``--seconds``. Sizes for which there is no time are left out, and
    named. Outside of a job, it starts this command on ``--ranks`` ranks (one per slot of the hosts, or 2) and returns
    the exit code of the job. Without ``--output`` no file is written. ``--json`` prints the text of the machine file
    instead of tables.

    Args:
        args: the command's arguments: ``end`` (largest message), ``seconds``, ``output``, ``ranks``, ``hosts``,
            ``hostfile``, ``json``, ``svg`` and ``html``.

    Raises:
        InputError: If ``--end`` is no size or less than 1 KiB, ``--seconds`` is not above 0, there are fewer than two
            ranks, the seconds are too few for a fit, or whole collectives contradict the fit; then no file is written.
    """
    from spmdsim.launch import launched, start_self
    from spmdsim.launch.hosts import count_slots

    largest = parse_bytes(args.end)
    if largest < 1024:
        raise InputError(f"--end is {largest}; fitting needs sizes up to 1K at least")
    if args.seconds <= 0:
        raise InputError(f"--seconds must be above 0, got {args.seconds:g}")
    if not launched():
        hosts = choose_hosts(args)
        return start_self(args.ranks or count_slots(hosts) or 2, sys.argv[1:], hosts=hosts)
    from spmdsim.cli.collective.measure import noise_note, require_communicator
    from spmdsim.cli.collective.time_budget import TimeBudget

    comm = require_communicator()
    budget = TimeBudget(comm, args.seconds, remark)
    calibration = _check_fit(budget, largest, _measure_and_fit(budget, largest))
    note = noise_note(comm)
    machine_text = _format_machine(calibration, budget, note)
    if not args.json:
        _print_calibration(calibration)
        say(f"measured for {budget.used_seconds:.3g} s on {many(comm.Get_size(), 'rank')}")
    _refuse_contradiction(calibration, note)
    is_saved = args.output and write_file(args.output, machine_text)
    write_pictures(args, calibration.machine)
    if args.json:
        emit_json(json.loads(machine_text))
    elif is_saved:
        say(f"wrote {args.output}")
    if note:
        remark(note)
    return 0


def measure_machine(comm: Any, largest: int, seconds: float = SECONDS) -> Machine:
    """Measure the ranks of a communicator and return the machine fitted to the times.

    All ranks call it.

    Args:
        comm: the mpi4py communicator of the ranks.
        largest: size of the largest message in bytes.
        seconds: time of all measurements (120).

    Raises:
        InputError: If there are fewer than two ranks, or whole collectives contradict the fit.
    """
    from spmdsim.cli.collective.time_budget import TimeBudget

    budget = TimeBudget(comm, seconds, lambda words: None)
    calibration = _check_fit(budget, largest, _measure_and_fit(budget, largest))
    _refuse_contradiction(calibration, "")
    return calibration.machine


def _measure_and_fit(budget: TimeBudget, largest: int) -> Calibration:
    """Run all measurements except the final check, and fit a machine to them.

    Messages between two nodes are measured if there are several nodes, else messages inside the node. Arithmetic and
    operators have the rates of the slowest rank. All ranks call it.

    Args:
        budget: communicator, time limit and progress.
        largest: size of the largest message in bytes.

    Returns:
        The calibration. If there are several nodes, and one has several ranks:

        * It also has the fit of messages inside a node.
        * The machine has a link inside nodes, with the latency of small messages and the bandwidth of large ones, the
          number of ranks of the largest node, and the nodes of the ranks.

    Raises:
        InputError: If there are fewer than two ranks, or too little time.
    """
    from spmdsim.cli.collective import samples
    from spmdsim.cost import Link
    from spmdsim.cost import calibration as fitting
    from spmdsim.worlds.agreement.node_memory import gather_places
    from spmdsim.worlds.agreement.process_state import map_nodes

    comm = budget.comm
    nodes = map_nodes(gather_places(comm))
    near, far = samples.find_pairs(nodes)
    pair = far or near
    if pair is None:
        raise InputError("calibration needs two ranks at least: messages go from one to the other")
    if far:
        budget.report(f"nodes: {nodes}")
    reductions, copies = samples.local_samples(budget, largest)
    flops, calls, rates = _measure_operators(budget)
    rounds = samples.round_samples(budget, "messages", pair, largest, reductions)
    inside_rounds = None
    if near and far:
        inside_rounds = samples.round_samples(budget, "messages inside a node", near, largest, reductions)
    if near:  # Between nodes, the time of a message hides that of a reduction.
        reductions = (inside_rounds or rounds).reductions
    measured = samples.native_table(budget, largest)
    calibration = fitting.calibrate(
        "this machine", rounds.fresh, rounds.still, reductions, copies, flops, measured
    )
    machine = replace(calibration.machine, call_seconds=calls, rates=rates)
    if inside_rounds is None:
        return replace(calibration, machine=machine)
    inside = fitting.fit_pieces(fitting.lower_envelope(inside_rounds.fresh))
    link = Link(inside.pieces[0].alpha, inside.pieces[-1].beta)
    levels = replace(machine, intra=link, ranks_per_node=int(nodes.sizes.max()), nodes=nodes)
    return replace(calibration, machine=levels, inside=inside)


def _measure_operators(budget: TimeBudget) -> tuple[float, float, tuple[Rate, ...]]:
    """Measure computation on all ranks; return the numbers of the slowest rank.

    All ranks must call it. ``budget`` has the communicator and the time of the measurements.

    Returns:
        The flop/s, the seconds of an emulated collective without messages, and the rates of operators.
    """
    from spmdsim.cli.collective import samples

    comm = budget.comm
    seconds = comm.bcast(budget.stage_seconds("operators"))
    flops = min(comm.allgather(samples.flops_per_second(seconds / 10)))
    rates = [
        max(rates_of_ranks, key=lambda rate: (rate.per_flop, rate.per_byte))
        for rates_of_ranks in zip(*comm.allgather(samples.operator_rates(seconds)))
    ]
    return flops, max(comm.allgather(samples.call_seconds(comm))), tuple(rates)


def _check_fit(budget: TimeBudget, largest: int, calibration: Calibration) -> Calibration:
    """Time whole collectives; return the calibration with the interval of prediction errors.

    The interval is the 5th and 95th percentile of measured / predicted time: with (0.9, 1.5), nine of ten
    measured times were 0.9 to 1.5 times the predicted ones. The timed collectives become the ``checks`` of the
    result. The given calibration is not changed. All ranks must call it.
    """
    from spmdsim.cli.collective.samples import check_predictions
    from spmdsim.cost.calibration import error_interval

    rows = check_predictions(budget, largest, calibration.machine)
    return replace(
        calibration, checks=tuple(rows), machine=replace(calibration.machine, interval=error_interval(rows))
    )


def _refuse_contradiction(calibration: Calibration, note: str) -> None:
    """Raise InputError if the measurements of a calibration contradict its fit.

    ``note`` is a cause that the message names, or "".
    """
    if calibration.contradiction:
        raise InputError(
            f"measurements contradict the fit, no machine is written: {calibration.contradiction}; "
            f"{note or 'measure again with more --seconds, one rank per core and no other programs'}"
        )


def _format_machine(calibration: Calibration, budget: TimeBudget, note: str) -> str:
    """Return the text of the machine file of a calibration, with notes.

    The notes are the number of ranks, the seconds of all measurements, errors and intervals of the fits, nodes, sizes
    that the budget has left out, and a remark on noise.

    Args:
        calibration: the calibration.
        budget: the budget of its measurements.
        note: the remark, or "" for none.
    """
    from spmdsim.cost.machine_file import machine_to_json

    seconds = round(budget.used_seconds, 2)
    notes: dict[str, Any] = {"ranks": budget.comm.Get_size(), "seconds": seconds, **calibration.notes()}
    if budget.left_out:
        notes["left_out"] = budget.left_out
    if note:
        notes["note"] = note
    if calibration.machine.nodes:
        notes["nodes"] = str(calibration.machine.nodes)
    # The file has no map of this job's ranks: the ranks of another job find their nodes themselves.
    return machine_to_json(replace(calibration.machine, nodes=None), notes)


def _make_fit_table(fits: dict[str, Fit]) -> Table:
    """Return a table with a row for each line of the fits: bytes, microseconds, GB/s.

    Times and speeds have their 95 % intervals. A fit has several lines ``seconds = alpha + bytes * beta``, each up to a message size. The cell "any" means no
    limit, "-" a line that does not rise, and "inf" that a line with the limit of its interval does not rise.

    Args:
        fits: the fits by their names.
    """
    rows = []
    for kind, fit in fits.items():
        for piece, interval in zip(fit.pieces, fit.intervals):
            limit = "any" if piece.limit == inf else f"{piece.limit:,.0f}"
            speed = f"{1e-9 / piece.beta:.3g}" if piece.beta else "-"
            latencies = " … ".join(f"{alpha * 1e6:.3g}" for alpha in interval.alpha)
            speeds = " … ".join(f"{1e-9 / beta if beta else inf:.3g}" for beta in reversed(interval.beta))
            rows.append((kind, limit, f"{piece.alpha * 1e6:.3g}", latencies, speed, speeds))
    columns = ("of", "up to bytes", "alpha (us)", "alpha, 95 %", "1/beta (GB/s)", "1/beta, 95 %")
    return Table(columns, rows, "fitted lines: seconds = alpha + bytes * beta", range(1, len(columns)))


def _print_calibration(calibration: Calibration) -> None:
    """Print the lines of a calibration, the errors of its fits, and the rates of operators.

    Times are in microseconds, rates in GB/s, Gflop/s, or 1e9 elements or bytes per second. The last lines have the
    interval of prediction errors, and the number of measured library calls if there are any.
    """
    say(_make_fit_table(calibration.fits), "")
    for kind, fit in calibration.fits.items():
        say(
            f"{kind}: fit error {fit.median_error:.1%} in the median, {fit.largest_error:.1%} at most, "
            f"{len(fit.errors)} sizes"
        )
    machine = calibration.machine
    say(f"arithmetic: {machine.flops / 1e9:.3g} Gflop/s per rank in products of float32")
    for rate in machine.rates:
        each, kind = (rate.per_flop, "elements") if rate.per_flop else (rate.per_byte, "bytes")
        say(f"{rate.kind}: {1e-9 / each:.3g} G {kind} per second and rank")
    say(f"an emulated collective costs {machine.call_seconds * 1e6:.2g} us besides its rounds")
    say(f"{machine.certainty}, {len(calibration.checks)} checks of whole collectives")
    if machine.measured:
        say(f"measured times of the library's own calls: {len(machine.measured)}")
