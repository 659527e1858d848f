"""Prices of redistributions and of shared gradient messages, under the assumptions of a search.

The prices are the planner's: for evenly split tensors from :mod:`spmdsim.auto_parallel.costs.even_moves`, which plans
once for all similar tensors, else from the plan itself. So the sum that a search minimises is the sum in its report.

Reductions of gradients that share a message (:mod:`spmdsim.redistribution.plans.merge`) pay latency once per message.
The time of one collective as a function of its bytes is, for real machines, the minimum of a few straight lines, such
as those of the latency-optimal and the bandwidth-optimal algorithm. So a search needs one more variable per kind of
message. Its states are "every gradient alone" and one per line. Each gradient that uses the line adds the line's
slope times its bytes; the line's start is paid once. Prices of calibrated machines jump; for them, lines are added
until none is above the price at any size that a message may have. Ranks that are replicas of all gradients in a
message share the work of the reduction. These messages have lines of their own, which only gradients with these
replicas may use.
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
from spmdsim.redistribution.plans.merge import BUCKET_BYTES, Merge, merge_of, shard_elements
from spmdsim.redistribution.plans.plan_candidates import LOCAL, Shape
from spmdsim.redistribution.price import machine_on, price_step
from spmdsim.redistribution.step_counts import count_most_received

if TYPE_CHECKING:
    from spmdsim.auto_parallel.programs.graph import Value
    from spmdsim.auto_parallel.solvers.choice_problem import ChoiceProblem

#: Message sizes in bytes at which lines are computed.
SAMPLES = tuple(2.0**k for k in range(4, 45, 4))
#: Largest share by which the minimum of the lines is above the price; ``LOOSE`` if the price is not concave.
CLOSE, LOOSE = 1e-3, 1e-2

#: A price as a straight line (start, slope): seconds of an empty message, and seconds per byte.
Line = tuple[float, float]


def fit_lines(
    price: Callable[[float], float], sizes: Sequence[float] = SAMPLES, unit: float = 1.0
) -> list[Line]:
    """Return lines ``(start, slope)`` whose minimum approximates a concave price from above.

    A tangent is computed at each of ``sizes``: the line through the price there and at a size 25 % larger. Where two
    neighbouring tangents meet, another one is added if they are more than the share :data:`CLOSE` (0.1 %) above the
    price there. So the minimum is within 0.1 % of the price at the sizes of tangents and where two of them meet.
    Lines with a negative start or slope, and lines equal to an earlier one up to rounding, are left out.

    Args:
        price: seconds as a function of bytes.
        sizes: sizes in bytes at which tangents are computed, ascending.
        unit: sizes are multiples of this number of bytes.

    >>> [(round(a, 2), round(b, 2)) for a, b in fit_lines(lambda r: min(1 + r, 20 + r / 2, 60 + r / 4))]
    [(1.0, 1.0), (20.0, 0.5), (60.0, 0.25)]
    """
    waiting = [(size, _tangent(price, size)) for size in reversed(sizes)]
    tangents: list[Line] = []
    size, line = waiting.pop()
    while waiting:
        start, slope = line
        next_size, (next_start, next_slope) = waiting[-1]
        crossing = size
        if slope > next_slope:
            # Round to four units, so that both sizes of a tangent there, one 25 % larger, are multiples of the unit.
            crossing = 4 * unit * ((next_start - start) / (slope - next_slope) // (4 * unit))
        is_inside = size < crossing < next_size
        if is_inside and price(crossing) < (1 - CLOSE) * (start + slope * crossing):
            waiting.append((crossing, _tangent(price, crossing)))
        else:
            tangents.append(line)
            size, line = waiting.pop()
    tangents.append(line)
    distinct: list[Line] = []
    for line in tangents:
        if min(line) >= 0 and not any(equal_lines(line, earlier) for earlier in distinct):
            distinct.append(line)
    return distinct


def add_lower_lines(
    price: Callable[[float], float], straight: Sequence[Line], sizes: Iterable[float]
) -> list[Line]:
    """Return the lines, with further ones at those sizes where a price is clearly below all lines.

    That happens if the price is not concave. "Clearly" means by more than the share :data:`LOOSE` (1 %). A further
    line goes through the price at the size. It has the slope of the cheapest line there, or goes through the origin,
    whichever is flatter. It counts as a line for the sizes after it. Without lines, the first further line is flat.

    Args:
        price: seconds as a function of bytes.
        straight: the lines.
        sizes: the sizes in bytes to check, in this order.

    At 8 bytes, the line is at 9 s and the price at 4 s, so a line through the origin is added:

    >>> add_lower_lines(lambda r: 1 + r if r < 8 else 0.5 * r, [(1.0, 1.0)], (4.0, 8.0))
    [(1.0, 1.0), (0.0, 0.5)]
    """
    all_lines = [*straight]
    for size in sizes:
        seconds = price(size)
        least, slope = min(
            [(start + slope * size, slope) for start, slope in all_lines], default=(math.inf, 0.0)
        )
        if least > (1 + LOOSE) * seconds:
            slope = min(slope, seconds / size)
            all_lines.append((seconds - slope * size, slope))
    return all_lines


def largest_excess(
    price: Callable[[float], float], straight: Sequence[Line], sizes: Sequence[float], unit: float = 1.0
) -> float:
    """Return the largest share by which the minimum of the lines is above a price.

    0.17 means 17 % above the price. The price must be concave between neighbouring ``sizes``; this is not checked.
    Then the excess of a line is largest at an end of the range of sizes in which the line is the minimum, so only
    these ends are computed.

    Args:
        price: seconds as a function of bytes; positive.
        straight: the lines; at least one.
        sizes: sizes in bytes, ascending; only the range from the first to the last counts.
        unit: sizes of messages are multiples of this number of bytes.

    The two lines meet at 4 bytes and 3.5 s, where the price is 3 s:

    >>> round(largest_excess(lambda r: r ** 0.5 + 1, [(1.5, 0.5), (3.0, 0.125)], (1.0, 16.0)), 2)
    0.17
    """
    ends = {*sizes}
    for (steep_start, steep_slope), (flat_start, flat_slope) in permutations(straight, 2):
        if steep_slope <= flat_slope:
            continue
        # From the crossing on, the flatter line is cheaper. The crossing is an end only if no third line is cheaper
        # there.
        crossing = (flat_start - steep_start) / (steep_slope - flat_slope)
        edge = unit * (crossing // unit)
        if sizes[0] < edge < sizes[-1] - unit:
            seconds = steep_start + steep_slope * crossing
            cheapest_seconds = min(start + slope * crossing for start, slope in straight)
            if seconds <= (1 + 1e-9) * cheapest_seconds:
                ends |= {edge, edge + unit}
    # At each end, the share by which each line is above the price.
    shares = [
        (size, [(start + slope * size) / price(size) - 1.0 for start, slope in straight])
        for size in sorted(ends)
    ]
    at_ends = [min(line_shares) for _, line_shares in shares]
    # Between two ends, one line is the minimum: its excess is at most the larger of its shares at both ends.
    between = [
        min(map(max, low, high)) for (size, low), (further, high) in pairwise(shares) if further > size + unit
    ]
    return max([*at_ends, *between])


def _tangent(price: Callable[[float], float], size: float) -> Line:
    """Return the line through a price at ``size`` and at a size 25 % larger."""
    low, high = price(size), price(1.25 * size)
    slope = (high - low) / (0.25 * size)
    return low - slope * size, slope


def equal_lines(first: Line, second: Line) -> bool:
    """Return True if two lines differ only by rounding."""
    return all(abs(a - b) <= CLOSE / 10 * max(abs(a), abs(b)) for a, b in zip(first, second))


def list_limits(machine: CostModel, steps: Iterable[Step], itemsize: int) -> Iterator[float]:
    """Yield the factors by which a message must be scaled so that a step reaches a limit of prices.

    At a limit, the price of a step as a function of its bytes may jump or bend. A calibrated machine has two kinds:
    the ends of its ranges of sizes, and the sizes at which the step's collective was measured, between which prices
    are interpolated. If a step receives 100 bytes and a range ends at 250 bytes, the factor is 2.5. Other cost models
    have no limits, and a step that receives nothing has no factors. Factors are not sorted, may repeat, and may be
    below 1.

    Args:
        machine: the cost model.
        steps: the steps of a reduction of one-dimensional gradients.
        itemsize: the bytes of an element.
    """
    if not has_limits(machine):
        return
    model: Any = machine.model if isinstance(machine, Restricted) else machine
    for step in steps:
        # With as many times the elements as the mesh has ranks, all blocks are even, so nothing is rounded.
        even_step = replace(step, shape=tuple([size * step.src.mesh.size for size in step.shape]))
        received = count_most_received(even_step) * itemsize / step.src.mesh.size
        if not received:
            continue
        members = step.src.mesh.axis_size(*step.axes)
        message = message_bytes(step.collective, members, received)
        yield from (piece.limit / received for piece in model.pieces)
        yield from (time.nbytes / message for time in model.measured if time.collective == step.collective)


def has_limits(machine: CostModel) -> bool:
    """Return True if the prices of a machine have ranges of sizes: see :func:`list_limits`."""
    model: Any = machine.model if isinstance(machine, Restricted) else machine
    return isinstance(model, Machine) and bool(model.pieces or model.measured)


#: Key of a price: the layouts before and after, shape, bytes per element, and True for an operator's result.
Moved = tuple[Layout, Layout, Shape, int, bool]


class MovePrices:
    """Prices of all redistributions under the assumptions of a search, from a cache.

    The direct exchange is used by default on real machines, and not in published cost models, which do not have it.
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
        """Return the modelled seconds of a redistribution; 0 between equal layouts. Cached.

        The price is :data:`IMPOSSIBLE` in two cases: an axis is pending in ``dst`` but not in ``src``, or the settings
        forbid every plan. Pending sums of 16-bit and shorter floats count with four bytes per element, as they are
        stored.

        Args:
            src: the layout before.
            dst: the layout after.
            shape: global shape of the tensor.
            itemsize: bytes per element.
            result: True if the tensor is an operator's result, whose pending sums may not be scattered under some
                settings.
        """
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
        """Return the plan whose price :meth:`seconds` returns."""
        key = (src, dst, shape, itemsize, result)
        if key not in self._plans:
            self._plans[key] = plan(src, dst, shape, dtype_of_size(itemsize), self._models[result])
        return self._plans[key]

    def communicates(self, src: Layout, dst: Layout, shape: Shape, itemsize: int) -> bool:
        """Return True if any rank sends data from ``src`` to ``dst``, or if values had to become partial.

        ``shape`` is global, ``itemsize`` in bytes.
        """
        made_partial = any(axis not in src.partial_axes for axis in dst.partial_axes)
        return made_partial or price_move(src, dst, shape, itemsize, self._models[0]).kind != LOCAL

    def message_seconds(
        self, merge: Merge, nbytes: float, copies: Sequence[str] = (), itemsize: int = 4
    ) -> float:
        """Return the seconds of one message of gradients that are reduced together.

        With ``copies``, or if a reduce_scatter also reduces along axes without scattering, the message takes the steps
        that :meth:`Merge.steps` plans. Otherwise it is one collective.

        Args:
            merge: the kind of the reduction.
            nbytes: bytes of all its gradients on a rank.
            copies: axes along which ranks are replicas of all gradients and share the work.
            itemsize: bytes per element; not used for one collective.
        """
        if copies or merge.unscattered_axes:
            steps = merge.steps(int(nbytes) // itemsize, copies, itemsize, self.machine)
            return sum(price_step(step, itemsize, self.machine)[1] for step in steps)
        model = machine_on(self.machine, merge.mesh)
        return model.seconds(merge.collective, merge.ranks, merge.received_elements(nbytes), merge.axes)

    def table(
        self,
        sources: Sequence[Layout],
        targets: Sequence[Layout],
        shape: Sequence[int],
        itemsize: int,
        result: bool = False,
    ) -> np.ndarray:
        """Return the seconds from every source to every target layout, as an array ``[source, target]``.

        Equal layouts are priced once. A pair is :data:`IMPOSSIBLE` if values had to become partial.

        Args:
            sources: the layouts before.
            targets: the layouts after.
            shape: global shape of the tensor.
            itemsize: bytes per element.
            result: True if the tensor is an operator's result; see :meth:`seconds`.
        """
        row_of = {source: row for row, source in enumerate(dict.fromkeys(sources))}
        column_of = {target: column for column, target in enumerate(dict.fromkeys(targets))}
        prices = np.array(
            [[self.seconds(src, dst, shape, itemsize, result) for dst in column_of] for src in row_of]
        )
        return prices[np.ix_([row_of[src] for src in sources], [column_of[dst] for dst in targets])]


def moved_itemsize(src: Layout, itemsize: int) -> int:
    """Return the bytes per element that are communicated from a layout.

    Elements of up to two bytes with a pending sum count as floats, whose sums are stored in four bytes.
    """
    return storage_dtype(src, dtype_of_size(itemsize)).itemsize if src.partial and itemsize <= 2 else itemsize


def _restricted(machine: CostModel, without: dict[str, bool]) -> CostModel:
    """Return the machine without some collectives.

    ``without`` maps their names to True if they are forbidden.
    """
    names = frozenset(name for name, forbidden in without.items() if forbidden)
    return Restricted(machine, names) if names else machine


def dtype_of_size(itemsize: int) -> np.dtype:
    """Return an element type of this size in bytes; prices depend on nothing else."""
    return np.dtype({1: "int8", 2: "float16", 4: "float32", 8: "float64", 16: "complex128"}[itemsize])


#: Kind of a shared message: the reduction, and bytes per element.
Kind = tuple[Merge, int]


class MessageLine(NamedTuple):
    """Line of prices of a message.

    Attributes:
        start: seconds per message.
        slope: seconds per byte.
        copies: axes along which ranks must be replicas of all gradients in the message.
    """

    start: float
    slope: float
    copies: frozenset[str]


def message_kind(settings: Settings, src: Layout, dst: Layout, shape: Shape) -> Merge | None:
    """Return the kind of message that the reduction of a gradient may share, or None if it goes alone.

    A gradient goes alone

    * if the settings do not merge messages;
    * if it is not reduced between equal shards on one mesh (:func:`merge_of`);
    * if its reduction is a reduce_scatter, and the settings forbid it;
    * if its reduction scatters along some axes but not along others, in a cost model that is no :class:`Machine`.

    Args:
        settings: the settings of the search.
        src: the layout in which the gradient is computed.
        dst: the layout in which the gradient is needed.
        shape: the global shape of the gradient.
    """
    if not settings.merges:
        return None
    merge = merge_of(src, dst, shape)
    if merge is None or merge.dim is None:
        return merge
    can_be_priced = not merge.unscattered_axes or isinstance(settings.machine, Machine)
    return merge if settings.scatter and can_be_priced else None


class SharedMessages:
    """The messages that gradients may share, as hubs of a choice problem.

    Attributes:
        share: the largest share by which prices here may be above the prices of a run.
        seconds: the seconds by which prices here may be above the prices of a run, in addition.
    """

    def __init__(self, problem: ChoiceProblem, moves: MovePrices, settings: Settings) -> None:
        self.problem, self.moves, self.settings = problem, moves, settings
        self.share, self.seconds = 0.0, 0.0
        self._hubs: dict[Kind, tuple[int, MessageLines]] = {}
        #: By kind, the largest bytes of each gradient on a rank, and the smallest bytes of any.
        self._nbytes: dict[Kind | None, list[int]] = {}
        self._least: dict[Kind, int] = {}
        #: By kind, the sets of axes along which gradients are replicated in some state.
        self._copies: dict[Kind, set[frozenset[str]]] = {}
        self._gradients: list[
            tuple[int, list[Kind | None], Sequence[Layout], Sequence[Layout], Value, int]
        ] = []
        self._merges: dict[tuple[object, ...], list[Merge | None]] = {}

    def add(
        self, variable: int, sources: Sequence[Layout], targets: Sequence[Layout], value: Value, count: int
    ) -> None:
        """Record the gradient of a parameter; :meth:`price` later adds its price to the problem.

        All states of the variable are recorded, also those whose gradient can share no message.

        Args:
            variable: the variable that decides how the gradient is reduced.
            sources: for each state of the variable, the layout before the reduction.
            targets: for each state, the layout after.
            value: the parameter.
            count: the number of tied parameters (equal parameters of repeated layers).
        """
        key = (tuple(sources), tuple(targets), value.shape)
        if key not in self._merges:
            self._merges[key] = [
                message_kind(self.settings, *pair, value.shape) for pair in zip(sources, targets)
            ]
        kinds: list[Kind | None] = [
            None if merge is None else (merge, moved_itemsize(source, value.itemsize))
            for merge, source in zip(self._merges[key], sources)
        ]
        nbytes_by_kind: dict[Kind, list[int]] = {}
        for kind, source in zip(kinds, sources):
            if kind is not None:
                nbytes_by_kind.setdefault(kind, []).append(kind[1] * shard_elements(source, value.shape))
                self._copies.setdefault(kind, set()).add(frozenset(source.canonical.replicated_axes))
        # The bytes of a gradient depend on the state, so take the largest for the range of sizes of a message.
        for kind, nbytes in nbytes_by_kind.items():
            self._nbytes.setdefault(kind, []).extend([max(nbytes)] * count)
            self._least[kind] = min(*nbytes, self._least.get(kind, nbytes[0]))
        self._gradients.append((variable, kinds, sources, targets, value, count))

    def price(self) -> None:
        """Add the prices of all recorded gradients to the problem; call it once.

        Each state of a gradient's variable is priced by one of two cases:

        - No other gradient can share its message: the variable itself pays the seconds of the gradient alone.
        - Another gradient can: the pair of the variable and the hub pays. A hub is the variable of a kind of message.
          In its state 0 the price is that of the gradient alone. In each further state it is the gradient's price
          along one line (:meth:`MessageLines.prices_along`). With two lines, a gradient may cost [5, 1, 2] ms in the
          hub's three states.

        Prices are seconds times the number of tied parameters times ``1 - overlap``.
        """
        for variable, kinds, sources, targets, value, count in self._gradients:
            unshared = np.zeros(len(kinds))
            for k, (kind, src, dst) in enumerate(zip(kinds, sources, targets)):
                if not self._has_hub(kind):
                    unshared[k] = self.moves.seconds(src, dst, value.shape, value.itemsize)
            exposed = count * (1.0 - self.settings.overlap)
            self.problem.seconds[variable] = self.problem.seconds[variable] + exposed * unshared
            for kind in dict.fromkeys(kinds):
                if kind is None or not self._has_hub(kind):
                    continue
                hub, messages = self._hub(*kind)
                prices = np.zeros((len(kinds), 1 + len(messages.lines)))
                for k, src in enumerate(sources):
                    if kinds[k] == kind:
                        nbytes = kind[1] * shard_elements(src, value.shape)
                        alone_seconds = self.moves.seconds(src, targets[k], value.shape, value.itemsize)
                        copies = frozenset(src.canonical.replicated_axes)
                        prices[k] = exposed * np.array(
                            [alone_seconds, *messages.prices_along(nbytes, copies, alone_seconds)]
                        )
                self.problem.add_pair(variable, hub, prices)

    def _has_hub(self, kind: Kind | None) -> bool:
        """Return True if at least two gradients may share messages of this kind."""
        return kind is not None and len(self._nbytes[kind]) > 1

    def _hub(self, merge: Merge, itemsize: int) -> tuple[int, MessageLines]:
        """Return the hub of a kind of message and the lines of its prices.

        A hub is a variable that all gradients of this kind pair with. It is added to the problem on the first call.
        Its state 0 is "every gradient alone" and costs nothing. Each further state is one line
        ``start + slope * bytes`` of the message's price: the hub pays the start, each gradient its slope times bytes.

        If the gradients fill more than one bucket, there are several messages with a start each. Then each gradient
        also pays the share of a start by which it fills a bucket. That is an estimate, so ``seconds`` grows by all of
        these starts, the most that the estimate can be too high.

        Args:
            merge: the reduction of the message.
            itemsize: the bytes of an element.
        """
        hub = self._hubs.get((merge, itemsize))
        if hub is None:
            all_nbytes = self._nbytes[merge, itemsize]
            least, most = self._least[merge, itemsize], min(sum(all_nbytes), BUCKET_BYTES + max(all_nbytes))
            ends = float(max(least, itemsize)), float(max(most, itemsize))
            messages = MessageLines(
                self._message_lines(merge, itemsize, ends), sum(all_nbytes) > BUCKET_BYTES
            )
            starts = (1.0 - self.settings.overlap) * np.array([0.0, *(line.start for line in messages.lines)])
            if messages.full_buckets:
                # A bucket costs at least its bytes on the flattest line, so the starts are the uncertain share.
                self.seconds += (1.0 + sum(map(messages.start_share, all_nbytes))) * float(starts.max())
            hub = self._hubs[merge, itemsize] = (self.problem.add_variable(starts, hub=True), messages)
        return hub

    def _message_lines(self, merge: Merge, itemsize: int, ends: tuple[float, float]) -> list[MessageLine]:
        """Return the lines of a message's price, with the replica axes that each line needs.

        Ranks that are replicas of all gradients in a message can share its work. So for each set of replica axes,
        lines are fitted to the price: tangents from the smallest to the largest size of a message, and more lines at
        sizes where the price jumps. A line is left out if an equal line needs fewer of these axes. ``share`` grows to
        the largest share by which the lines are above the price.

        Args:
            merge: the reduction of the message.
            itemsize: the bytes of an element.
            ends: the smallest and the largest bytes of a message.
        """
        message_lines: list[MessageLine] = []
        for copies in self._helpers(merge, itemsize):
            # Replicas divide the elements among them, so sizes are multiples of an element per rank.
            unit = float(itemsize * merge.mesh.size) if copies else 1.0
            price = partial(self.moves.message_seconds, merge, copies=copies, itemsize=itemsize)
            rough = [unit * -(-size // unit) for size in (ends[0], *SAMPLES, ends[1])]
            rough = sorted({size for size in rough if rough[0] <= size <= rough[-1]})
            sizes = sorted({*rough, *self._jumps(merge, copies, itemsize, rough, unit)})
            straight = add_lower_lines(price, fit_lines(price, rough, unit), sizes)
            self.share = max(self.share, largest_excess(price, straight, sizes, unit))
            for line in straight:
                if not any(
                    earlier.copies < {*copies} and equal_lines(line, earlier[:2]) for earlier in message_lines
                ):
                    message_lines.append(MessageLine(*line, frozenset(copies)))
        return message_lines

    def _helpers(self, merge: Merge, itemsize: int) -> list[tuple[str, ...]]:
        """Return the sets of replica axes that messages of several gradients can have, the smallest set first.

        Ranks along replica axes own equal copies, so they can share the work of a message. The axes of a message are
        the intersection of the axes of its gradients. So the result has the set of each gradient and all
        intersections of these sets, without axes of the reduction and axes of size 1. For example, one gradient is
        replicated along "pp" and "tp", another along "tp" and "ep": the sets are (tp), (pp, tp) and (tp, ep).

        Cost models without a machine have the empty set only.

        Args:
            merge: the reduction of the message.
            itemsize: the bytes of an element.
        """
        size_of = merge.mesh.size_of
        other_axes = [axis for axis in merge.mesh.axes if axis not in merge.axes and size_of[axis] > 1]
        if not isinstance(self.moves.machine, Machine):
            return [()]
        axis_sets: set[frozenset[str]] = set()
        for copies in self._copies[merge, itemsize]:
            copies = copies.intersection(other_axes)
            # Add the set, and its intersection with each set so far.
            axis_sets |= {copies, *(copies & axes for axes in axis_sets)}
        in_order = [tuple([axis for axis in other_axes if axis in copies]) for copies in axis_sets]
        return sorted(in_order, key=lambda axes: (len(axes), [other_axes.index(axis) for axis in axes]))

    def _jumps(
        self, merge: Merge, copies: Sequence[str], itemsize: int, sizes: Sequence[float], unit: float
    ) -> Iterator[float]:
        """Yield the sizes in bytes on both sides of each point where the price of messages may not be concave.

        For a limit at 250 bytes and a unit of 4 bytes, they are 248 and 252. Nothing is yielded if the cost model has
        no limits; see :func:`list_limits`. Sizes are not sorted and may repeat.

        Args:
            merge: the kind of message.
            copies: the axes along which ranks own replicas of all gradients.
            itemsize: the bytes of an element.
            sizes: sizes in bytes from which limits are searched, ascending.
            unit: yielded sizes are multiples of this number of bytes, between the first and the last of ``sizes``
                without both.
        """
        for size in sizes if has_limits(self.moves.machine) else ():
            steps = merge.steps(int(size) // itemsize, copies, itemsize, self.moves.machine)
            for times in list_limits(self.moves.machine, steps, itemsize):
                below = unit * (times * size // unit)
                yield from (side for side in (below, below + unit) if sizes[0] < side < sizes[-1])


class MessageLines(NamedTuple):
    """Lines of prices of one kind of message.

    Attributes:
        lines: the lines.
        full_buckets: True if the gradients fill more than one message (bucket) of :data:`BUCKET_BYTES`.
    """

    lines: list[MessageLine]
    full_buckets: bool

    def start_share(self, nbytes: int) -> float:
        """Return the share of a message's start that a gradient pays.

        It is the share of the bucket that the gradient fills. It is 0 if all gradients fit into one bucket, whose
        start is paid by the hub.
        """
        return min(1.0, nbytes / BUCKET_BYTES) if self.full_buckets else 0.0

    def prices_along(self, nbytes: int, copies: frozenset[str], alone_seconds: float) -> list[float]:
        """Return the seconds of one gradient along each line of a message's prices.

        The seconds are slope times bytes plus start times :meth:`start_share`. A line cannot be used if its message
        needs replicas that the gradient does not have.

        - If all gradients fit into one bucket, a line that cannot be used is :data:`IMPOSSIBLE`.
        - If they fill several buckets, the gradient may be in a bucket of another kind. So no line costs more than the
          gradient alone. A line that cannot be used costs as much as the cheapest of the other lines and the gradient
          alone.

        For example, a line has the start 2 s and the slope 0.1 s per byte. In one bucket, a gradient of 100 bytes
        costs 10 s along it, because the hub pays the start. With several buckets and 8 s alone, it costs 8 s.

        Args:
            nbytes: bytes of the gradient on a rank.
            copies: axes along which it is replicated.
            alone_seconds: its seconds alone.
        """
        prices = [
            line.slope * nbytes + line.start * self.start_share(nbytes)
            if line.copies <= copies
            else IMPOSSIBLE
            for line in self.lines
        ]
        if not self.full_buckets:
            return prices
        least = min(alone_seconds, *prices)
        return [min(price, alone_seconds) if price < IMPOSSIBLE else least for price in prices]
