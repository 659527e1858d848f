"""Predict times of algorithms over message sizes or rank counts, and the sizes at which the fastest changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from math import exp, log
from typing import Any

from spmdsim.collectives import Algorithm, Schedule, algorithm, algorithms, make_schedule
from spmdsim.collectives.instructions import name_runs
from spmdsim.core.layout import largest_block
from spmdsim.core.notation.layouts import as_integers
from spmdsim.cost.closed_forms import bound_received_elements, closed_form_of
from spmdsim.cost.link_load import compressed_rounds, symmetry_of
from spmdsim.cost.machine import Machine, require_machine
from spmdsim.cost.pricing import bound_collective_seconds, price
from spmdsim.cost.topologies import parse_topology
from spmdsim.cost.topology import Topology
from spmdsim.errors import InputError
from spmdsim.pictured import Pictured, ShortRepr
from spmdsim.wrong_calls import explained

#: Most rounds times ranks times sizes that are priced one by one, which takes a few seconds.
_AFFORDABLE = 300_000
#: Most rounds times ranks times sizes of symmetric algorithms on a topology, whose rounds are arrays over ranks.
_AFFORDABLE_ARRAYS = 100_000_000
#: A function from the size of a message in bytes to the seconds of an algorithm.
Pricer = Callable[[int], float]


@dataclass(frozen=True, repr=False)
class PredictedPoint(ShortRepr):
    """Predicted times for one rank count and size.

    Attributes:
        ranks: number of ranks.
        nbytes: message size as the collective counts it.
        seconds: seconds by algorithm; algorithms that do not support this rank count are missing.
        bound: lower bound on the seconds of all algorithms on the network.
        plans: seconds that plans and searches count for this collective over neighbouring ranks.
    """

    ranks: int
    nbytes: int
    seconds: dict[str, float]
    bound: float
    plans: float

    @property
    def best(self) -> str:
        """Fastest algorithm; empty if there is none."""
        return min(self.seconds, key=self.seconds.__getitem__, default="")


@dataclass(frozen=True)
class Crossover(Pictured):
    """Size in bytes from which on the algorithm ``after`` is faster than ``before``.

    It is the size on ``ranks`` ranks.
    """

    ranks: int
    nbytes: float
    before: str
    after: str


@dataclass(frozen=True, repr=False)
class Prediction(ShortRepr):
    """Table of predictions.

    Attributes:
        collective: name of the collective.
        machine: the machine.
        topology: text of the topology, empty for the machine's own levels.
        points: one per rank count and size, all sizes of a rank count together.
        crossovers: sizes at which the fastest algorithm changes.
        left_out: reasons by name for each algorithm that is missing.

    >>> from spmdsim.cost import Machine, predict
    >>> predict("all_reduce", Machine.laptop(), [8], [4096]).algorithms[:2]
    ('ring', 'ring_openmpi')
    """

    collective: str
    machine: Machine
    topology: str
    points: tuple[PredictedPoint, ...]
    crossovers: tuple[Crossover, ...]
    left_out: dict[str, str]

    @property
    def algorithms(self) -> tuple[str, ...]:
        """Algorithms that run at one point at least, in the order of the request."""
        names: dict[str, None] = {}
        for point in self.points:
            names.update(dict.fromkeys(point.seconds))
        return tuple(names)

    def to_dict(self) -> dict[str, Any]:
        """Return the table as plain values for JSON.

        The keys are ``collective``, ``machine`` (its name), ``topology`` ("machine" if there is none), ``interval``,
        ``points`` (a dict per rank count and size, with the attributes of :class:`PredictedPoint`), ``crossovers`` (a
        dict each) and ``left_out``.
        """
        return {
            "collective": self.collective,
            "machine": self.machine.name,
            "topology": self.topology or "machine",
            "interval": self.machine.interval,
            "points": [
                {key: getattr(p, key) for key in ("ranks", "nbytes", "best", "bound", "plans", "seconds")}
                for p in self.points
            ],
            "crossovers": [vars(crossover) for crossover in self.crossovers],
            "left_out": self.left_out,
        }


@explained
def predict(
    collective: str,
    machine: Machine,
    ranks: Sequence[int],
    sizes: Sequence[int],
    names: Sequence[str | Algorithm] = (),
    topology: str = "",
    itemsize: int = 1,
    options: dict[str, Any] | None = None,
) -> Prediction:
    """Predict the times of a collective.

    An algorithm is left out for a rank count that it does not support, or for which it has too many messages to price
    each; the prediction states the reasons. It also has the crossovers: the sizes at which the fastest algorithm
    changes.

    Args:
        collective: such as ``all_reduce``.
        machine: the machine; its measured times of the library's own call appear as ``native``.
        ranks: rank counts.
        sizes: message sizes in bytes.
        names: algorithms, registered ones by name and others as :class:`Algorithm`, and ``native``; all if empty.
        topology: a text as :func:`spmdsim.cost.topologies.parse_topology` reads it; "" for the machine's own levels.
        itemsize: bytes per element; chunks are cut between elements.
        options: options of algorithms, such as ``group``; an algorithm ignores options that it does not have. None for
            none. Without ``group``, it is :func:`node_group`.

    Raises:
        InputError: If ``ranks`` or ``sizes`` is empty or has impossible numbers, or the topology does not fit.
        ScheduleError: If an algorithm is unknown.

    >>> prediction = predict("all_reduce", Machine.laptop(), [8], [8, 2**20], ["ring", "recursive_doubling"])
    >>> [point.best for point in prediction.points]
    ['recursive_doubling', 'ring']
    """
    require_machine(machine, "predict")
    ranks, sizes = as_integers(ranks, "predict: ranks"), as_integers(sizes, "predict: sizes")
    if not ranks or min(ranks) < 1:
        raise InputError(f"predict: ranks must be a list of numbers of 1 or more, got {list(ranks)}")
    if not sizes or min(sizes) < 0:
        raise InputError(f"predict: sizes must be a list of numbers of bytes of 0 or more, got {list(sizes)}")
    chosen = [
        entry if isinstance(entry, Algorithm) else algorithm(collective, entry)
        for entry in names or algorithms(collective)
        if entry != "native"
    ]
    skipped: dict[str, dict[str, list[int]]] = {}  # by algorithm and reason, the rank counts without a price
    points: list[PredictedPoint] = []
    crossovers: list[Crossover] = []
    for count in ranks:
        network = parse_topology(topology, count, machine) if topology else None
        pricers: dict[str, Pricer] = {}
        all_options = node_group(machine, count) | (options or {})
        for entry in chosen:
            known_options = dict(entry.options)
            own_options = {name: value for name, value in all_options.items() if name in known_options}
            reason = f"needs {entry.condition_words}, not"
            if entry.fits(count, own_options):
                schedule = make_schedule(entry, count, **own_options)
                if _is_quick(schedule, machine, network is not None, len(sizes)):
                    pricers[entry.name] = partial(_price_seconds, schedule, machine, network, itemsize)
                    continue
                reason = "too many messages to look at each on"
            skipped.setdefault(entry.name, {}).setdefault(reason, []).append(count)
        if not names or "native" in names:
            pricers |= _native_price_function(collective, machine, count)
        row = [_predict_point(collective, machine, count, size, itemsize, pricers, network) for size in sizes]
        points += row
        crossovers += _find_crossovers(row, pricers)
    left_out = {
        name: "; ".join(f"{reason} {_rank_words(counts)}" for reason, counts in reasons.items())
        for name, reasons in skipped.items()
    }
    return Prediction(collective, machine, topology, tuple(points), tuple(crossovers), left_out)


def node_group(machine: Machine, n: int) -> dict[str, int]:
    """Return the option ``group`` of hierarchical algorithms that has the ranks of a node, as a dict.

    It is empty if consecutive ranks do not fill the nodes, or if there is one node or one rank per node.

    >>> node_group(Machine.accelerators(), 16), node_group(Machine.accelerators(), 8)
    ({'group': 8}, {})
    """
    if machine.intra is None:
        return {}
    nodes = machine.node_map(n)
    return {"group": nodes.ranks_per_node} if 1 < nodes.count < n and nodes.ranks_per_node else {}


def _predict_point(
    collective: str,
    machine: Machine,
    n: int,
    nbytes: int,
    itemsize: int,
    pricers: dict[str, Pricer],
    network: Topology | None,
) -> PredictedPoint:
    """Return the predicted times of a collective on ``n`` ranks for one message size."""
    seconds = {name: pricer(nbytes) for name, pricer in pricers.items()}
    received = bound_received_elements(collective, n, largest_block(nbytes, itemsize)) * itemsize
    in_plans = machine.seconds(collective, n, received)
    bound = bound_collective_seconds(collective, machine, n, nbytes, network, itemsize)
    return PredictedPoint(n, nbytes, seconds, bound, in_plans)


def _price_seconds(
    schedule: Schedule, machine: Machine, network: Topology | None, itemsize: int, nbytes: int
) -> float:
    """Return the seconds of a schedule for a message of ``nbytes`` bytes."""
    return price(schedule, machine, nbytes, network, itemsize).seconds


def _rank_words(counts: Sequence[int]) -> str:
    """Return rank counts as words.

    Consecutive counts are joined to a run, such as ``5..7``. Of more than four runs only the first three and the last
    one are named.

    >>> _rank_words([3, 5, 6, 7]), _rank_words([128, 256, 512, 1024, 2048]), _rank_words([1])
    ('3, 5..7 ranks', '128, 256, 512, ..., 2048 ranks', '1 rank')
    """
    words = name_runs(sorted({*counts}))
    if len(words) > 4:
        words = [*words[:3], "...", words[-1]]
    return f"{', '.join(words)} {'rank' if {*counts} == {1} else 'ranks'}"


def _is_quick(schedule: Schedule, machine: Machine, network: bool, sizes: int) -> bool:
    """Return True if a schedule can be priced at several sizes in a short time.

    A schedule is quick if a closed form (a formula) is enough for its price. Otherwise the number of messages
    to look at is limited. A rank counts as sending m messages in a round, one for each port of the algorithm.

    * If ranks differ: rounds * ranks * m * sizes is at most :data:`_AFFORDABLE`.
    * If all ranks behave like rank 0, and only its messages matter: rounds * m is at most :data:`_AFFORDABLE`.
    * If all ranks behave like rank 0, but the messages of all matter, because they share links, or their sizes
      or nodes differ: rounds are at most :data:`_AFFORDABLE`, and different rounds * ranks * m * sizes is at
      most :data:`_AFFORDABLE_ARRAYS`.

    Without a closed form, four rounds per bit of the number of ranks are assumed.

    Args:
        schedule: the schedule.
        machine: the machine.
        network: True if messages share the links of a topology.
        sizes: the number of sizes.
    """
    n = schedule.size
    form = closed_form_of(schedule)
    symmetric = bool(symmetry_of(schedule))
    each = schedule.ports
    # One rank represents all in a symmetric algorithm. But several messages of a rank are priced one by one if their
    # sizes or nodes matter, and so is each message if consecutive ranks do not fill the nodes.
    by_message = network or (each > 1 and bool(machine.pieces or machine.intra))
    by_message = by_message or (machine.intra is not None and not machine.node_map(n).ranks_per_node)
    by_size = bool(machine.pieces or machine.reduce_pieces)
    if form is not None and not (by_message or machine.intra) and (symmetric or not by_size):
        return True
    # Without a formula the number of rounds is unknown; it is at least logarithmic.
    rounds = form.steps if form else 4 * n.bit_length()
    if not symmetric:
        return rounds * n * each * sizes <= _AFFORDABLE
    if not by_message:
        return rounds * each <= _AFFORDABLE
    return rounds <= _AFFORDABLE and len(compressed_rounds(schedule)) * n * each * sizes <= _AFFORDABLE_ARRAYS


def _native_price_function(collective: str, machine: Machine, n: int) -> dict[str, Pricer]:
    """Return a function from message size to the measured seconds of the library's own call.

    It is the value of the key ``"native"``. The dict is empty if the machine has no measurement on ``n`` ranks.
    """
    keys = {(m.collective, m.algorithm, m.group_size) for m in machine.measured}
    if (collective, "native", n) not in keys:
        return {}
    return {"native": lambda nbytes: machine.measured_seconds(collective, "native", n, nbytes) or 0.0}


def _find_crossovers(row: list[PredictedPoint], pricers: dict[str, Pricer]) -> list[Crossover]:
    """Return the sizes at which the fastest algorithm changes, by bisection between points.

    If one algorithm is the fastest at 1 KiB, and another one at 1 MiB, the crossover is the size between at
    which both take equally long. There is at most one crossover between two points; algorithms that are the
    fastest only between them are not noticed. The size is found to 0.1 % or 1 byte.

    Args:
        row: the points of one rank count, by ascending size.
        pricers: for each algorithm, the function from bytes to seconds.
    """
    crossovers = []
    for low, high in pairwise(row):
        if low.best == high.best or not low.best:
            continue
        before, after = pricers[low.best], pricers[high.best]
        low_size, high_size = float(max(low.nbytes, 1)), float(high.nbytes)
        while high_size / low_size > 1.001 and high_size - low_size >= 1:
            middle = exp((log(low_size) + log(high_size)) / 2)
            if before(round(middle)) <= after(round(middle)):
                low_size = middle
            else:
                high_size = middle
        crossovers.append(Crossover(low.ranks, high_size, low.best, high.best))
    return crossovers
