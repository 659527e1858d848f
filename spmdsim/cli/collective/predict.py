"""``spmdsim collective predict``: predict times of algorithms for many ranks, without MPI.

Read :func:`main`. It prints tables of times; with ``--links`` it prints loads of links instead.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from spmdsim.cli.collective.schedule_arguments import (
    MAYBE_JUDGED,
    NUMBER_ARGUMENTS,
    find_algorithms,
    growing_counts,
    growing_sizes,
    parse_bytes,
    set_options,
    split_names,
)
from spmdsim.cli.main import PICTURES, command, value, varied
from spmdsim.cli.output import emit_json, refuse_options, remark, writable, write_file, write_pictures
from spmdsim.errors import InputError, many
from spmdsim.printing import say
from spmdsim.tables import Table

if TYPE_CHECKING:
    from spmdsim.collectives import Algorithm
    from spmdsim.cost import Machine
    from spmdsim.cost.prediction import Prediction

EXAMPLES = """\
examples:
  spmdsim collective predict all_reduce -n 8                             over sizes 1K ... 64M
  spmdsim collective predict all_reduce -n 2..65536x2 -b 1M              over rank counts, doubling
  spmdsim collective predict broadcast -n 16 --algorithms binomial,scatter_ring --svg times.svg

Topologies: flat, nodes:8[,rails=2], ring, torus:8x8[x4], fat_tree:leaf=16,over=2, fat_tree:down=4x4x4,up=1x4x2,
dragonfly:groups=9,routers=4,hosts=2; hop=SECONDS per link beyond the first.

Machines: laptop, cluster, accelerators, or a file written by `spmdsim collective calibrate`.
"""


@command(
    "Predict times of collective algorithms. * marks the fastest algorithm. The row of the bound holds for all "
    "algorithms, with any number of ports, in synchronous rounds on this network. The row `native` has measured times of "
    "the library's own call. The row `(plans)` has the price that plans and searches use.",
    EXAMPLES,
    "collective",
    value("-n --ranks", "", "rank counts: 8, 2,4,8, 2..16 or 2..1024x2 (8)", default="8"),
    value("-b --begin", "", "smallest size (1K; 1M over rank counts)"),
    value("-e --end", "", "largest size (64M; the smallest over rank counts)"),
    varied("-f --factor"),
    "--algorithms",
    value("--machine", "", "name or machine file (laptop)", default="laptop"),
    value("--topology", "TEXT", "network whose links messages share", default=""),
    *NUMBER_ARGUMENTS,
    varied("--itemsize", metavar=None),
    value(
        "--links", "ALGORITHM", "show the busiest link of each round on the topology, for the largest size"
    ),
    value(
        "--trace",
        "FILE",
        "write a timeline for ui.perfetto.dev: the fastest algorithm, most ranks, largest size",
        writable,
    ),
    *PICTURES,
    "--json",
    help="times at any rank count and size, on a machine or topology; crossovers",
    **MAYBE_JUDGED,
)
def main(args: argparse.Namespace) -> int:
    """Predict and print times of all requested algorithms, rank counts and sizes; return 0.

    With ``--links``, print instead which links of the network are busiest, for the last rank count and the largest
    size. Pictures and the timeline of ``--trace`` are written in addition.

    Args:
        args: the command's arguments.

    Raises:
        InputError: If an option has no effect, a rank count, size, machine or topology cannot be read, an algorithm is
            unknown, or no algorithm can be priced.
        SpmdError: If the collective is unknown.
    """
    from spmdsim.collectives import collective
    from spmdsim.cost import load_machine
    from spmdsim.cost.prediction import predict

    if args.links:
        refuse_options(args, "--algorithms --trace", "tables of times, not with --links")
    machine = load_machine(args.machine)
    ranks = growing_counts(args.ranks)
    sizes = _parse_sizes(args, len(ranks) > 1)
    spec, names = collective(args.collective), [args.links] if args.links else split_names(args.algorithms)
    chosen_algorithms, options = find_algorithms(args, spec.name, names), set_options(args)
    if args.links:
        return _print_links(args, machine, chosen_algorithms, ranks[-1], sizes[-1], options)
    requested = [chosen or name for name, chosen in chosen_algorithms.items()] if names else []
    prediction = predict(spec.name, machine, ranks, sizes, requested, args.topology, args.itemsize, options)
    if not prediction.algorithms:
        reasons = "; ".join(f"{name}: {why}" for name, why in prediction.left_out.items())
        reasons = reasons or f"native: {machine.name} has no measured times for these ranks"
        raise InputError(f"no algorithm of {spec.name} can be priced here ({reasons})")
    write_pictures(args, prediction)
    if args.trace:
        _write_timeline(args.trace, prediction, chosen_algorithms, args.itemsize, options)
    if args.json:
        emit_json(prediction.to_dict())
        return 0
    say(f"{spec.name} on {machine.name}" + (f", {args.topology}" if args.topology else ""))
    say(f"size: {spec.size_means}", "")
    _print_prediction(prediction, shares_links=bool(args.topology))
    return 0


def _print_prediction(prediction: Prediction, shares_links: bool) -> None:
    """Print tables of predicted times, their certainty, and where the fastest algorithm changes.

    Times are in microseconds. If the library's call is predicted beyond measured sizes, a line says so.
    Algorithms that were left out are printed to stderr, with the reasons.

    Args:
        prediction: the predicted times.
        shares_links: True if messages share the links of a topology. Then a warning follows if the last rank
            count is so large that loads of links are rounded up.
    """
    from spmdsim.figures.cost_figures import (
        crossover_words,
        measured_words,
        prediction_tables,
        topology_words,
    )

    for table in prediction_tables(prediction):
        say(table, "")
    say(prediction.machine.certainty)
    if shares_links:
        _print_rough_count_warning(prediction.points[-1].ranks)
    say(
        *map(crossover_words, prediction.crossovers),
        *topology_words(prediction),
        *measured_words(prediction),
    )
    for name, why in prediction.left_out.items():
        remark(f"left out: {name}: {why}")


def _print_links(
    args: argparse.Namespace,
    machine: Machine,
    chosen_algorithms: dict[str, Algorithm | None],
    n: int,
    nbytes: int,
    options: dict[str, Any],
) -> int:
    """Print the busiest link of each round, the one with the most seconds; return 0.

    It is a table with times in microseconds, or JSON with seconds. Equal rounds share a row; rounds without messages
    are left out. With ``--svg`` or ``--html`` the table is also drawn.

    Args:
        args: the command's arguments: ``topology``, ``itemsize``, ``json``, ``svg`` and ``html``.
        machine: the machine. Without ``--topology`` its nodes are the topology; without nodes the network is flat.
        chosen_algorithms: the algorithm by its name; None if it is the library's own call.
        n: number of ranks.
        nbytes: message size.
        options: options of the algorithm, such as ``{"group": 4}``.

    Raises:
        ScheduleError: If the algorithm does not support the number of ranks or an option.
        InputError: If ``topology`` cannot be read, or does not fit ``n``; or if the library's own call is named.
    """
    from spmdsim.collectives import make_schedule
    from spmdsim.cost.link_load import hotspots
    from spmdsim.cost.topologies import parse_topology
    from spmdsim.figures.cost_figures import microseconds
    from spmdsim.figures.figures import Figure

    network = parse_topology(args.topology or ("nodes" if machine.intra else "flat"), n, machine)
    (chosen,) = chosen_algorithms.values()
    if chosen is None:
        raise InputError("--links must name an algorithm, got native, whose messages are unknown")
    links = hotspots(make_schedule(chosen, n, **options), network, nbytes, args.itemsize)
    columns = ("rounds", "busiest link", "messages", "bytes", "busy (us)", "links in use")
    rows = [
        (
            f"{load.first}" if load.repeat == 1 else f"{load.first}..{load.first + load.repeat - 1}",
            load.link,
            str(load.messages),
            f"{load.nbytes:,.0f}",
            microseconds(load.seconds),
            f"{load.used:.0%}",
        )
        for load in links
    ]
    title = f"{chosen.full_name} of {many(nbytes, 'byte')} on {network.name}, {many(n, 'rank')}"
    table = Table(columns, rows, right=(2, 3, 4, 5))
    write_pictures(args, Figure(title, (table,)))
    if args.json:
        emit_json([asdict(load) for load in links])
        return 0
    say(title, "", table, "")
    _print_rough_count_warning(n)
    return 0


def _print_rough_count_warning(n: int) -> None:
    """Print a warning if ``n`` ranks are more than ``EXACT_UP_TO`` (32); else print nothing.

    Above this number, each message of a symmetric algorithm is priced like the largest message of its round. So
    predictions may be too high.
    """
    from spmdsim.cost.link_load import EXACT_UP_TO

    if n > EXACT_UP_TO:
        say(
            f"above {EXACT_UP_TO} ranks, every message of a symmetric algorithm counts as large as its round's largest"
        )


def _parse_sizes(args: argparse.Namespace, many_ranks: bool) -> list[int]:
    """Return the message sizes in bytes, from ``--begin`` to ``--end`` by ``--factor``.

    By default they begin at 1K and end at 64M, or at ``--begin`` if that is larger. With several rank counts
    there is one size by default: they begin at 1M and end where they begin.
    """
    begin = parse_bytes(args.begin or ("1M" if many_ranks else "1K"))
    if args.end:
        end = parse_bytes(args.end)
    else:
        end = begin if many_ranks else max(begin, parse_bytes("64M"))
    return growing_sizes(begin, end, args.factor)


def _write_timeline(
    path: str,
    prediction: Prediction,
    chosen_algorithms: dict[str, Algorithm | None],
    itemsize: int,
    options: dict[str, Any],
) -> None:
    """Write a timeline of the fastest algorithm for the last rank count and size.

    A line on stderr names the file. If the file cannot be written, the error is reported at the end of the command.

    Args:
        path: the file to write, JSON for ui.perfetto.dev.
        prediction: the prediction. Its last point is drawn; the library's own call is skipped.
        chosen_algorithms: the algorithms by name.
        itemsize: bytes of an element.
        options: options of algorithms; the fastest algorithm gets the options that it has.

    Raises:
        InputError: If only the MPI library's own call was priced, whose messages are unknown.
    """
    from spmdsim.collectives import make_schedule
    from spmdsim.cost.topologies import parse_topology
    from spmdsim.figures.timelines import predicted_timeline

    point = prediction.points[-1]
    priced = [name for name in sorted(point.seconds, key=point.seconds.__getitem__) if name != "native"]
    chosen = chosen_algorithms[priced[0]] if priced else None
    if chosen is None:
        raise InputError(
            "--trace draws an algorithm's messages; the library's own call has none that are known"
        )
    own_options = {key: value for key, value in options.items() if key in dict(chosen.options)}
    schedule = make_schedule(chosen, point.ranks, **own_options)
    network = (
        parse_topology(prediction.topology, point.ranks, prediction.machine) if prediction.topology else None
    )
    timeline = predicted_timeline(schedule, prediction.machine, point.nbytes, network, itemsize)
    if write_file(path, json.dumps(timeline)):
        remark(f"wrote {path}: {chosen.name} on {many(point.ranks, 'rank')}, {many(point.nbytes, 'byte')}")
