"""``spmdsim collective calibrate``: measure this machine and write its machine file.

``samples.py`` has the measurements, and ``cost/calibration.py`` the fit.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from spmdsim.cli.collective.schedule_arguments import parse_bytes
from spmdsim.cli.launch import read_hosts
from spmdsim.cli.main import HOSTS, PICTURES, command, value, varied
from spmdsim.cli.output import (
    emit_json,
    remark,
    say,
    writable,
    write_file,
    write_pictures,
)
from spmdsim.errors import InputError
from spmdsim.tables import Table

if TYPE_CHECKING:
    from spmdsim.cli.collective.samples import Pace
    from spmdsim.cost import Machine
    from spmdsim.cost.calibration import Calibration, Fit

#: Seconds for repeating measurements, after each measurement was made once.
SECONDS = 120
#: Number of kinds of measurements, which share the seconds: rounds, the library's calls, and whole collectives.
STAGES = 3

EXAMPLES = """\
examples:
  spmdsim collective calibrate -o lab.json               starts two ranks, measures, fits, writes
  mpirun -n 2 spmdsim collective calibrate -o lab.json   two ranks of your own launcher
  mpirun -n 64 spmdsim collective calibrate -o lab.json  several nodes: also the links between them
  spmdsim collective predict all_reduce -n 2 --machine lab.json
"""


@command(
    "Measure messages, reductions, copies and the library's own collectives on real ranks, fit a "
    "machine to them, and report the errors of the fit.",
    EXAMPLES,
    value("-o --output", "FILE", "machine file to write", writable),
    varied("--ranks", default=2, help="ranks to start outside mpirun (2)"),
    *HOSTS,
    value("-e --end", "", "largest message (64M)", default="64M"),
    "--json",
    *PICTURES,
    help="fit alpha, beta and gamma to this machine; writes a machine file",
)
def main(args: argparse.Namespace) -> int:
    """Measure messages, fit a machine to them, print it and write it to ``--output``; return 0.

    In a job, all ranks call it; it takes some minutes. Outside of a job, it starts this command on ``--ranks`` ranks
    and returns the exit code of the job. Without ``--output`` no file is written. ``--json`` prints the text of the
    machine file instead of tables.

    Args:
        args: the command's arguments: ``end`` (largest message), ``output``, ``ranks``, ``json``, ``svg`` and
            ``html``.

    Raises:
        InputError: If ``--end`` is no size or less than 1 KiB, or there are fewer than two ranks.
    """
    from spmdsim.launch import launched, start_self

    largest = parse_bytes(args.end)
    if largest < 1024:
        raise InputError(f"--end is {largest}; fitting needs sizes up to 1K at least")
    if not launched():
        return start_self(args.ranks, sys.argv[1:], hosts=read_hosts(args))
    from spmdsim.cli.collective.measure import noise_note, require_communicator
    from spmdsim.cli.collective.samples import Pace
    from spmdsim.cost.machine_file import machine_to_json

    comm = require_communicator()
    pace = Pace(comm, SECONDS / STAGES, remark)
    calibration, inner_fit = _measure_and_fit(pace, largest)
    calibration = _add_interval(pace, largest, calibration)
    note = noise_note(comm)
    notes: dict[str, Any] = {"ranks": comm.Get_size(), **calibration.notes()}
    if note:
        notes["note"] = note
    if calibration.machine.nodes:
        notes["nodes"] = str(calibration.machine.nodes)
    # The file has no map of this job's ranks: the ranks of another job find their nodes themselves.
    machine_text = machine_to_json(replace(calibration.machine, nodes=None), notes)
    is_saved = args.output and write_file(args.output, machine_text)
    write_pictures(args, calibration.machine)
    if args.json:
        emit_json(json.loads(machine_text))
    else:
        _print_calibration(calibration, inner_fit)
        if is_saved:
            say(f"wrote {args.output}")
    if note:
        remark(note)
    return 0


def measure_machine(comm: Any, largest: int) -> Machine:
    """Measure the ranks of a communicator and return the machine fitted to the times.

    All ranks call it. It takes some minutes. ``largest`` is the size of the largest message in bytes.
    """
    from spmdsim.cli.collective.samples import Pace

    pace = Pace(comm, SECONDS / STAGES, lambda words: None)
    return _add_interval(pace, largest, _measure_and_fit(pace, largest)[0]).machine


def _measure_and_fit(pace: Pace, largest: int) -> tuple[Calibration, Fit | None]:
    """Run all measurements except the final check, and fit a machine to them.

    Messages between two nodes are measured if there are several nodes, else messages inside the node. Arithmetic and
    operators have the rates of the slowest rank. All ranks call it.

    Args:
        pace: communicator, time limit and progress.
        largest: size of the largest message in bytes.

    Returns:
        The calibration, and the fit of messages inside a node.

        * If there are several nodes, and one has several ranks: the machine also has a link inside nodes, with the
          latency of small messages and the bandwidth of large ones, the number of ranks of the largest node, and the
          nodes of the ranks.
        * Otherwise the fit is None.

    Raises:
        InputError: If there are fewer than two ranks.
    """
    from spmdsim.cli.collective import samples
    from spmdsim.cost import Link
    from spmdsim.cost import calibration as fitting
    from spmdsim.worlds.agreement.node_memory import gather_places
    from spmdsim.worlds.agreement.process_state import map_nodes

    comm = pace.comm
    nodes = map_nodes(gather_places(comm))
    near, far = samples.find_pairs(nodes)
    pair = far or near
    if pair is None:
        raise InputError("calibration needs two ranks at least: messages go from one to the other")
    rounds = samples.round_samples(pace, pair, largest)
    calibration = fitting.calibrate(
        "this machine",
        rounds.fresh,
        rounds.still,
        rounds.reductions,
        samples.local_times(comm, largest, "copy"),
        min(comm.allgather(samples.flops_per_second())),
        samples.native_table(pace, largest),
    )
    rates = [
        max(rates_of_ranks, key=lambda rate: (rate.per_flop, rate.per_byte))
        for rates_of_ranks in zip(*comm.allgather(samples.operator_rates()))
    ]
    calls = max(comm.allgather(samples.call_seconds(comm)))
    machine = replace(calibration.machine, call_seconds=calls, rates=tuple(rates))
    if far is None or near is None:
        return replace(calibration, machine=machine), None
    inner_fit = fitting.fit_pieces(fitting.lower_envelope(samples.round_samples(pace, near, largest).fresh))
    link = Link(inner_fit.pieces[0].alpha, inner_fit.pieces[-1].beta)
    levels = replace(machine, intra=link, ranks_per_node=int(nodes.sizes.max()), nodes=nodes)
    return replace(calibration, machine=levels), inner_fit


def _add_interval(pace: Pace, largest: int, calibration: Calibration) -> Calibration:
    """Time whole collectives; return the calibration with the interval of prediction errors.

    The interval is the 5th and 95th percentile of measured / predicted time: with (0.9, 1.5), nine of ten
    measured times were 0.9 to 1.5 times the predicted ones. The timed collectives become the ``checks`` of the
    result. The given calibration is not changed. All ranks must call it.

    Args:
        pace: communicator, time limit and progress.
        largest: size of the largest message in bytes.
        calibration: the calibration whose machine predicts.

    Raises:
        InputError: If fewer than ten collectives were timed.
    """
    from spmdsim.cli.collective.samples import check_predictions
    from spmdsim.cost.calibration import error_interval

    rows = check_predictions(pace, largest, calibration.machine)
    return replace(
        calibration, checks=tuple(rows), machine=replace(calibration.machine, interval=error_interval(rows))
    )


def _make_fit_table(kinds: list[tuple[str, Fit]]) -> Table:
    """Return a table with a row for each line of the fits: bytes, microseconds, GB/s.

    A fit has several lines ``seconds = alpha + bytes * beta``, each up to a message size. The cell "any" means no
    limit, and "-" a line that does not rise.

    Args:
        kinds: name and fit of each kind of measurement.
    """
    rows = []
    for kind, fit in kinds:
        for piece in fit.pieces:
            limit = "any" if piece.limit == float("inf") else f"{piece.limit:,.0f}"
            speed = f"{1e-9 / piece.beta:.3g}" if piece.beta else "-"
            rows.append((kind, limit, f"{piece.alpha * 1e6:.3g}", speed))
    columns = ("of", "up to bytes", "alpha (us)", "1/beta (GB/s)")
    return Table(columns, rows, "fitted lines: seconds = alpha + bytes * beta", range(1, len(columns)))


def _print_calibration(calibration: Calibration, inner_fit: Fit | None) -> None:
    """Print the fitted lines, the errors of the fits, and the rates of operators.

    Times are in microseconds, rates in GB/s, Gflop/s, or 1e9 elements or bytes per second. The last lines have the
    interval of prediction errors, and the number of measured library calls if there are any.

    Args:
        calibration: the machine, its fits and its checks.
        inner_fit: the fit of messages inside a node; None leaves it out.
    """
    kinds = [
        ("message", calibration.messages),
        ("message sent again", calibration.still),
        ("reduction", calibration.reductions),
        ("copy", calibration.copies),
    ]
    if inner_fit is not None:
        kinds.insert(1, ("message inside a node", inner_fit))
    say(_make_fit_table(kinds), "")
    for kind, fit in kinds:
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
