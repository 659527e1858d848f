"""What it costs a program to get from one layout to another, under the assumptions of a search.

The prices are the planner's: where everything divides from :mod:`spmdsim.auto_parallel.costs.even_moves`, which plans once for all
tensors that are alike, elsewhere from the plan itself. So what a search adds up is what its report says.

Reductions of gradients that may go together (:mod:`spmdsim.redistribution.plans.merge`) pay latency once per message. What
one collective takes as a function of its bytes is, for real machines, the least of a few straight lines, such as the
latency-optimal and the bandwidth-optimal algorithm. So a search needs one more variable per kind of message: its
states are "every gradient on its own" and one per line; each gradient that goes this way adds the line's slope, and the
line's start is paid once. Calibrated machines' prices jump; there lines are added until none is above the price at any size
that a message may have. Ranks that hold copies of all gradients in a message help to reduce it, which takes lines of
its own: only gradients that have these copies may go that way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise, permutations
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from spmdsim.auto_parallel.costs.even_moves import price_move
from spmdsim.auto_parallel.costs.search_settings import Settings
from spmdsim.auto_parallel.solvers.choice_problem import IMPOSSIBLE
from spmdsim.core import Layout
from spmdsim.core.step import Step
from spmdsim.cost.closed_forms import message_bytes
from spmdsim.cost.machine import CostModel, Machine, Restricted
from spmdsim.layout.element_type import storage_dtype
from spmdsim.redistribution import Plan, plan
from spmdsim.redistribution.plans.merge import BUCKET_BYTES, Merge, elements_held, merge_of
from spmdsim.redistribution.plans.plan_candidates import LOCAL, Shape
from spmdsim.redistribution.price import machine_on, price_step
from spmdsim.redistribution.step_counts import most_received

if TYPE_CHECKING:
    from spmdsim.auto_parallel.programs.graph import Value
    from spmdsim.auto_parallel.solvers.choice_problem import ChoiceProblem

#: Message sizes at which lines are looked for.
SAMPLES = tuple(2.0**k for k in range(4, 45, 4))
#: The least of the lines is no more than this share above the price; ``LOOSE`` where the price is not concave.
CLOSE, LOOSE = 1e-3, 1e-2

#: A price as a straight line: seconds of a message without bytes, and seconds per byte.
Line = tuple[float, float]


def lines(price: Callable[[float], float], sizes: Sequence[float] = SAMPLES, unit: float = 1.0) -> list[Line]:
    """The straight lines whose least is a concave price of multiples of ``unit`` bytes: at some sizes, and where two meet.

    >>> [(round(a, 2), round(b, 2)) for a, b in lines(lambda r: min(1 + r, 20 + r / 2, 60 + r / 4))]
    [(1.0, 1.0), (20.0, 0.5), (60.0, 0.25)]
    """
    open_ends = [(size, _tangent(price, size)) for size in reversed(sizes)]
    tangents: list[Line] = []
    size, line = open_ends.pop()
    while open_ends:
        further, other = open_ends[-1]
        (start, slope), (high, flat) = line, other
        meet = 4 * unit * ((high - start) / (slope - flat) // (4 * unit)) if slope > flat else size
        if size < meet < further and price(meet) < (1 - CLOSE) * (start + slope * meet):
            open_ends.append((meet, _tangent(price, meet)))
        else:
            tangents.append(line)
            size, line = open_ends.pop()
    tangents.append(line)
    kept: list[Line] = []
    for line in tangents:
        if min(line) >= 0 and not any(same_line(line, other) for other in kept):
            kept.append(line)
    return kept


def lowered(price: Callable[[float], float], straight: Sequence[Line], sizes: Iterable[float]) -> list[Line]:
    """The lines, and more of them where a price that is not concave is lower at one of some sizes.

    >>> lowered(lambda r: 1 + r if r < 8 else 0.5 * r, [(1.0, 1.0)], (4.0, 8.0))
    [(1.0, 1.0), (0.0, 0.5)]
    """
    every = [*straight]
    for size in sizes:
        seconds = price(size)
        least, slope = min([(start + slope * size, slope) for start, slope in every], default=(math.inf, 0.0))
        if least > (1 + LOOSE) * seconds:
            slope = min(slope, seconds / size)
            every.append((seconds - slope * size, slope))
    return every


def excess(
    price: Callable[[float], float], straight: Sequence[Line], sizes: Sequence[float], unit: float = 1.0
) -> float:
    """By what share the least of the lines is above a price at most, which is concave between neighbours of some sizes.

    Over a concave price a line is highest at an end of what it is the least for.

    >>> round(excess(lambda r: r ** 0.5 + 1, [(1.5, 0.5), (3.0, 0.125)], (1.0, 16.0)), 2)
    0.17
    """
    every = {*sizes}
    for (a, s), (b, t) in permutations(straight, 2):
        meet = (b - a) / (s - t) if s > t else 0.0
        edge = unit * (meet // unit)
        if sizes[0] < edge < sizes[-1] - unit and a + s * meet <= (1 + 1e-9) * _least(straight, meet):
            every |= {edge, edge + unit}
    over = [(size, [(a + s * size) / price(size) - 1.0 for a, s in straight]) for size in sorted(every)]
    pairs = [(one, two) for (size, one), (further, two) in pairwise(over) if further > size + unit]
    return max(min(map(max, *pair)) for pair in (*pairs, *((one, one) for _, one in over)))


def _least(straight: Sequence[Line], size: float) -> float:
    return min([start + slope * size for start, slope in straight])


def _tangent(price: Callable[[float], float], size: float) -> Line:
    low, high = price(size), price(1.25 * size)
    slope = (high - low) / (0.25 * size)
    return low - slope * size, slope


def same_line(one: Line, other: Line) -> bool:
    """Whether two lines are one but for rounding."""
    return all(abs(a - b) <= CLOSE / 10 * max(abs(a), abs(b)) for a, b in zip(one, other))


def limits_of(machine: CostModel, steps: Iterable[Step], itemsize: int) -> Iterator[float]:
    """By how much a message may grow, in times of its size, until the price of one of its steps begins anew.

    A calibrated machine's prices have ranges of sizes, and measured times between which they are interpolated.
    """
    model: Any = machine.model if isinstance(machine, Restricted) else machine
    for step in steps if has_limits(machine) else ():
        even = replace(step, shape=tuple([size * step.src.mesh.size for size in step.shape]))
        received = most_received(even) * itemsize / step.src.mesh.size
        if not received:
            continue
        members = step.src.mesh.axis_size(*step.axes)
        message = message_bytes(step.collective, members, received)
        yield from (piece.limit / received for piece in model.pieces)
        yield from (one.nbytes / message for one in model.measured if one.collective == step.collective)


def has_limits(machine: CostModel) -> bool:
    """Return True if prices of a machine begin anew at some sizes: see :func:`limits_of`."""
    model: Any = machine.model if isinstance(machine, Restricted) else machine
    return isinstance(model, Machine) and bool(model.pieces or model.measured)


#: What a price depends on: the layouts before and after, shape, bytes per element, whether it is an operator's result.
Moved = tuple[Layout, Layout, Shape, int, bool]


class MovePrices:
    """Prices of all moves under the assumptions of a search: the machine, and which collectives there are.

    The direct exchange is one of them on real machines, not in the published cost models, which do not know it.
    """

    def __init__(self, settings: Settings) -> None:
        self.machine = settings.machine
        exchange = isinstance(self.machine, Machine) if settings.exchange is None else settings.exchange
        without = {
            "exchange": not exchange,
            "all_gather": not settings.gather,
            "reduce_scatter": not settings.scatter,
        }
        self._models = [_restricted(self.machine, without)]
        without["reduce_scatter"] |= not settings.scatter_results
        self._models.append(_restricted(self.machine, without))
        self._prices: dict[Moved, float] = {}
        self._plans: dict[Moved, Plan] = {}

    def seconds(
        self, src: Layout, dst: Layout, shape: Sequence[int], itemsize: int, result: bool = False
    ) -> float:
        """Time from ``src`` to ``dst``; :data:`IMPOSSIBLE` if values would have to become pending."""
        if src == dst:
            return 0.0
        key = (src, dst, tuple(shape), itemsize, result)
        seconds = self._prices.get(key)
        if seconds is None:
            seconds = IMPOSSIBLE
            if not any(axis not in src.partial_axes for axis in dst.partial_axes):
                size, model = moved_itemsize(src, itemsize), self._models[result]
                seconds = min(price_move(src, dst, key[2], size, model).seconds, IMPOSSIBLE)
            self._prices[key] = seconds
        return seconds

    def plan(self, src: Layout, dst: Layout, shape: Shape, itemsize: int, result: bool = False) -> Plan:
        """The plan that is priced."""
        key = (src, dst, shape, itemsize, result)
        if key not in self._plans:
            self._plans[key] = plan(src, dst, shape, element_type(itemsize), self._models[result])
        return self._plans[key]

    def communicates(self, src: Layout, dst: Layout, shape: Shape, itemsize: int) -> bool:
        """Whether anything is sent from ``src`` to ``dst``."""
        made_partial = any(axis not in src.partial_axes for axis in dst.partial_axes)
        return made_partial or price_move(src, dst, shape, itemsize, self._models[0]).kind != LOCAL

    def together(self, merge: Merge, nbytes: float, copies: Sequence[str] = (), itemsize: int = 4) -> float:
        """Time of one message of gradients that are reduced together, where ranks along ``copies`` hold all and help."""
        if copies or merge.rest:
            steps = merge.steps(int(nbytes) // itemsize, copies, itemsize, self.machine)
            return sum(price_step(step, itemsize, self.machine)[1] for step in steps)
        model = machine_on(self.machine, merge.mesh)
        return model.seconds(merge.collective, merge.ranks, merge.received(nbytes), merge.axes)

    def table(
        self,
        sources: Sequence[Layout],
        targets: Sequence[Layout],
        shape: Sequence[int],
        itemsize: int,
        result: bool = False,
    ) -> np.ndarray:
        """Seconds of every pair, ``[source, target]``; equal layouts are priced once."""
        rows = list(dict.fromkeys(sources))
        columns = list(dict.fromkeys(targets))
        prices = np.array([[self.seconds(s, t, shape, itemsize, result) for t in columns] for s in rows])
        row = {layout: i for i, layout in enumerate(rows)}
        column = {layout: i for i, layout in enumerate(columns)}
        return prices[np.ix_([row[s] for s in sources], [column[t] for t in targets])]


def moved_itemsize(src: Layout, itemsize: int) -> int:
    """Bytes per element on the way: numbers of two bytes are floats, whose pending sums are held in four."""
    return storage_dtype(src, element_type(itemsize)).itemsize if src.partial and itemsize <= 2 else itemsize


def _restricted(machine: CostModel, without: dict[str, bool]) -> CostModel:
    names = frozenset(name for name, forbidden in without.items() if forbidden)
    return Restricted(machine, names) if names else machine


def element_type(itemsize: int) -> np.dtype:
    """An element type of this size: prices depend on nothing else."""
    return np.dtype({1: "int8", 2: "float16", 4: "float32", 8: "float64", 16: "complex128"}[itemsize])


#: How a reduction shares a message: with what, and bytes per element.
Kind = tuple[Merge, int]


class MessageLine(NamedTuple):
    """One way of a message: its line, and the axes along which ranks hold copies of all that is in it."""

    start: float
    slope: float
    copies: frozenset[str]


def shared(settings: Settings, src: Layout, dst: Layout, shape: Shape) -> Merge | None:
    """How a gradient's reduction shares a message under these settings; None if it goes alone."""
    if not settings.merges:
        return None
    merge = merge_of(src, dst, shape)
    if merge is None or merge.dim is None:
        return merge
    priced = settings.scatter and (not merge.rest or isinstance(settings.machine, Machine))
    return merge if priced else None


class SharedMessages:
    """The messages that gradients may share, as hubs of a problem."""

    def __init__(self, problem: ChoiceProblem, moves: MovePrices, settings: Settings) -> None:
        self.problem, self.moves, self.settings = problem, moves, settings
        #: By what share, and by how many seconds, what messages cost here may be above what they cost in a run.
        self.share, self.seconds = 0.0, 0.0
        self._hubs: dict[Kind, tuple[int, MessageLines]] = {}
        #: By kind the bytes that each gradient holds at most, and those that any holds at least.
        self._held: dict[Kind | None, list[int]] = {}
        self._least: dict[Kind, int] = {}
        #: By kind the axes along which a gradient is copied, for all its gradients and states.
        self._copies: dict[Kind, set[frozenset[str]]] = {}
        self._gradients: list[
            tuple[int, list[Kind | None], Sequence[Layout], Sequence[Layout], Value, int]
        ] = []
        self._merges: dict[tuple[object, ...], list[Merge | None]] = {}

    def add(
        self, variable: int, sources: Sequence[Layout], targets: Sequence[Layout], value: Value, count: int
    ) -> None:
        """The gradient of a parameter, which each state of a variable reduces from a source to a target."""
        key = (tuple(sources), tuple(targets), value.shape)
        if key not in self._merges:
            self._merges[key] = [shared(self.settings, *pair, value.shape) for pair in zip(sources, targets)]
        kinds: list[Kind | None] = [
            None if merge is None else (merge, moved_itemsize(source, value.itemsize))
            for merge, source in zip(self._merges[key], sources)
        ]
        held: dict[Kind, list[int]] = {}
        for kind, source in zip(kinds, sources):
            if kind is not None:
                held.setdefault(kind, []).append(kind[1] * elements_held(source, value.shape))
                self._copies.setdefault(kind, set()).add(frozenset(source.canonical.replicated_axes))
        for kind, some in held.items():
            self._held.setdefault(kind, []).extend([max(some)] * count)
            self._least[kind] = min(*some, self._least.get(kind, some[0]))
        self._gradients.append((variable, kinds, sources, targets, value, count))

    def price(self) -> None:
        """Price all gradients: alone, or where several of them go the same way, by the hub of their messages."""
        for variable, kinds, sources, targets, value, count in self._gradients:
            alone = np.zeros(len(kinds))
            for k, (kind, src, dst) in enumerate(zip(kinds, sources, targets)):
                if not self._has_hub(kind):
                    alone[k] = self.moves.seconds(src, dst, value.shape, value.itemsize)
            exposed = count * (1.0 - self.settings.overlap)
            self.problem.seconds[variable] = self.problem.seconds[variable] + exposed * alone
            for kind in dict.fromkeys(kinds):
                if kind is None or not self._has_hub(kind):
                    continue
                hub, messages = self._hub(*kind)
                prices = np.zeros((len(kinds), 1 + len(messages.ways)))
                for k, src in enumerate(sources):
                    if kinds[k] == kind:
                        held = kind[1] * elements_held(src, value.shape)
                        own = self.moves.seconds(src, targets[k], value.shape, value.itemsize)
                        copies = frozenset(src.canonical.replicated_axes)
                        prices[k] = exposed * np.array([own, *messages.along(held, copies, own)])
                self.problem.add_pair(variable, hub, prices)

    def _has_hub(self, kind: Kind | None) -> bool:
        """Whether several gradients may go this way: there is nobody to share a message with otherwise."""
        return kind is not None and len(self._held[kind]) > 1

    def _hub(self, merge: Merge, itemsize: int) -> tuple[int, MessageLines]:
        hub = self._hubs.get((merge, itemsize))
        if hub is None:
            held = self._held[merge, itemsize]
            least, most = self._least[merge, itemsize], min(sum(held), BUCKET_BYTES + max(held))
            ends = float(max(least, itemsize)), float(max(most, itemsize))
            messages = MessageLines(self._ways(merge, itemsize, ends), sum(held) > BUCKET_BYTES)
            starts = (1.0 - self.settings.overlap) * np.array([0.0, *(way.start for way in messages.ways)])
            if messages.many:
                # Whatever its line, a bucket costs no less than its bytes on the flattest one: what starts add is left open.
                self.seconds += (1.0 + sum(map(messages.part, held))) * float(starts.max())
            hub = self._hubs[merge, itemsize] = (self.problem.add_variable(starts, hub=True), messages)
        return hub

    def _ways(self, merge: Merge, itemsize: int, ends: tuple[float, float]) -> list[MessageLine]:
        """Return the lines of messages without helpers and with any; lines that helpers do not change are there once."""
        kept: list[MessageLine] = []
        for copies in self._helpers(merge, itemsize):
            unit = float(itemsize * merge.mesh.size) if copies else 1.0
            price = partial(self.moves.together, merge, copies=copies, itemsize=itemsize)
            rough = [unit * -(-size // unit) for size in (ends[0], *SAMPLES, ends[1])]
            rough = sorted({size for size in rough if rough[0] <= size <= rough[-1]})
            sizes = sorted({*rough, *self._jumps(merge, copies, itemsize, rough, unit)})
            straight = lowered(price, lines(price, rough, unit), sizes)
            self.share = max(self.share, excess(price, straight, sizes, unit))
            for line in straight:
                if not any(way.copies < {*copies} and same_line(line, way[:2]) for way in kept):
                    kept.append(MessageLine(*line, frozenset(copies)))
        return kept

    def _helpers(self, merge: Merge, itemsize: int) -> list[tuple[str, ...]]:
        """Return the sets of axes along which a message can have replicas, the smallest set first.

        These are axes along which all gradients of the message are replicas. Only on a machine can replicas share the work.
        """
        others = [axis for axis in merge.mesh.axes if axis not in merge.axes and merge.mesh.size_of[axis] > 1]
        if not isinstance(self.moves.machine, Machine):
            return [()]
        common: set[frozenset[str]] = set()
        for copies in self._copies[merge, itemsize]:
            copies = copies.intersection(others)
            common |= {copies, *(copies & one for one in common)}
        in_order = [tuple([axis for axis in others if axis in copies]) for copies in common]
        return sorted(in_order, key=lambda axes: (len(axes), [others.index(axis) for axis in axes]))

    def _jumps(
        self, merge: Merge, copies: Sequence[str], itemsize: int, sizes: Sequence[float], unit: float
    ) -> Iterator[float]:
        """Sizes on both sides of where the price of messages may not be concave."""
        for size in sizes if has_limits(self.moves.machine) else ():
            steps = merge.steps(int(size) // itemsize, copies, itemsize, self.moves.machine)
            for times in limits_of(self.moves.machine, steps, itemsize):
                edge = unit * (times * size // unit)
                yield from (one for one in (edge, edge + unit) if sizes[0] < one < sizes[-1])


class MessageLines(NamedTuple):
    """The lines that messages of a kind may be on, and whether there may be many of them: buckets that are full."""

    ways: list[MessageLine]
    many: bool

    def part(self, held: int) -> float:
        """Which part of the start of a message counts for a gradient besides: buckets are filled by many."""
        return min(1.0, held / BUCKET_BYTES) if self.many else 0.0

    def along(self, held: int, copies: frozenset[str], own: float) -> list[float]:
        """Of one gradient: its price along each line, with its part of the bucket's message.

        Gradients of other buckets may have fewer copies, or be as large as a bucket and go on their ``own``.
        """
        prices = [
            way.slope * held + way.start * self.part(held) if way.copies <= copies else IMPOSSIBLE
            for way in self.ways
        ]
        flat = min(own, *prices) if self.many else IMPOSSIBLE
        return [min(price, own if self.many else price) if price < IMPOSSIBLE else flat for price in prices]
