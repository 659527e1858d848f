"""Parameters of a machine, and the time of one collective on it.

The model is the alpha-beta-gamma model: a message of ``m`` bytes takes ``alpha + m * beta`` seconds, reducing it takes
``m * gamma``, copying it inside memory ``m * beta_memory``. Two levels (inside a node, between nodes) or one pair per
mesh axis refine alpha and beta. Measured times replace the formulas; they are interpolated on log-log axes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from itertools import pairwise
from numbers import Real
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from spmdsim.cost.closed_forms import (
    Link,
    MeasuredTable,
    Measurement,
    Piece,
    Rate,
    link_at_size,
    message_bytes,
    scale_pieces,
    textbook_seconds,
)
from spmdsim.cost.node_map import NodeMap
from spmdsim.cost.port_load import PortLoad, group_load, map_of, mesh_load, nodes_of, transfer_load
from spmdsim.errors import InputError, UsageTypeError, many
from spmdsim.pictured import ShortRepr
from spmdsim.wrong_calls import explained

if TYPE_CHECKING:
    from spmdsim.core import Mesh

__all__ = ["CostModel", "Link", "Machine", "Measurement", "Piece", "Rate"]


#: Attributes of a machine that are times.
_TIMES = ("alpha", "beta", "gamma", "beta_memory", "call_seconds", "overhead", "overhead_per_byte")


class CostModel(Protocol):
    """The interface of machines for planners and searches; any class with these members fits.

    >>> from spmdsim.cost import Machine
    >>> model: CostModel = Machine.laptop()
    >>> model.seconds("all_reduce", 8, 1 << 20) > model.seconds("all_gather", 8, 1 << 20)
    True
    """

    @property
    def name(self) -> str:
        """Name of the model in tables."""

    def seconds(
        self,
        collective: str,
        group_size: int,
        nbytes: float,
        axes: Iterable[str] | None = None,
        *,
        messages: int | None = None,
        copied: float = 0.0,
    ) -> float:
        """Return the seconds (or the cost, in the model's own unit) of one collective.

        The arguments are as in :meth:`Machine.seconds`.
        """

    def compute_seconds(self, flops: float, nbytes: float = 0.0) -> float:
        """Return the seconds (or the cost) of one local operator with these flops and bytes."""


def require_machine(machine: object, call: str) -> None:
    """Raise UsageTypeError if ``machine`` is no machine and no other cost model.

    The message begins with ``call``, the name of the function that was called.
    """
    if not hasattr(machine, "seconds"):
        raise UsageTypeError(
            f"{call}: machine must be a Machine or another cost model, got {machine!r:.60}; use load_machine(name)"
        )


@explained
@dataclass(frozen=True, eq=True, repr=False)
class Machine(ShortRepr):
    """Cost parameters of one machine; immutable and hashable.

    Attributes:
        name: shown in tables.
        alpha: seconds per message, between any two ranks unless a level below has its own.
        beta: seconds per byte of a message.
        gamma: seconds per reduced byte.
        flops: floating point operations per second of one rank.
        beta_memory: seconds per byte of a local copy.
        ranks_per_node: consecutive ranks that share a node; 0 if the machine has one level only.
        intra: the link inside a node; ``alpha`` and ``beta`` are then those between nodes. The ranks of a node share
            its network port.
        axis_links: a link per mesh axis name, for collectives along these axes.
        pieces: alpha and beta per range of message sizes, ascending; they replace ``alpha`` and ``beta``.
        still_pieces: like ``pieces``, for messages whose bytes the sender has not written since it last sent them; they
            may come from a cache of the receiver.
        reduce_pieces: like ``pieces``, for reductions; they replace ``gamma`` in prices of single rounds.
        copy_pieces: like ``pieces``, for local copies; they replace ``beta_memory`` in prices of single rounds.
        measured: measured times; they replace the formulas for their collective and group size.
        memory_bytes: memory of one rank, 0 if unknown.
        call_seconds: seconds of an emulated collective besides its rounds.
        overhead: seconds of a rank's processor to send or to receive a message; ``alpha`` has both.
        overhead_per_byte: further seconds of the processor per byte; ``beta`` has those of both sides.
        eager_bytes: longest message for which a send does not wait until its receive is posted; 0 if it is unknown:
            then no standard send waits for its receive in modelled time.
        rates: measured rates of classes of operators (:func:`spmdsim.cost.roofline.kind_of`), which replace ``flops``
            and ``beta_memory``.
        interval: the 5th and 95th percentile of measured / predicted times of collectives on this machine; None if
            predictions were not checked.
        nodes: the node of each rank, instead of ``ranks_per_node``; None for consecutive ranks.
        meshes: the meshes along whose axes all collectives run (:meth:`on_mesh`); empty if they are unknown.

    >>> machine = Machine("toy", alpha=1e-6, beta=1e-9)
    >>> f"{machine.seconds('all_gather', 4, 3000):.1e}"
    '5.0e-06'
    """

    name: str
    alpha: float
    beta: float
    gamma: float = 0.0
    flops: float = 1e11
    beta_memory: float = 0.0
    ranks_per_node: int = 0
    intra: Link | None = None
    axis_links: tuple[tuple[str, Link], ...] = ()
    pieces: tuple[Piece, ...] = ()
    still_pieces: tuple[Piece, ...] = ()
    reduce_pieces: tuple[Piece, ...] = ()
    copy_pieces: tuple[Piece, ...] = ()
    measured: tuple[Measurement, ...] = ()
    memory_bytes: int = 0
    call_seconds: float = 0.0
    rates: tuple[Rate, ...] = ()
    interval: tuple[float, float] | None = None
    nodes: NodeMap | None = None
    meshes: tuple[Mesh, ...] = ()
    overhead: float = 0.0
    overhead_per_byte: float = 0.0
    eager_bytes: int = 0
    _table: MeasuredTable = field(init=False, repr=False, compare=False)
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        _check_numbers(self)
        object.__setattr__(self, "_table", MeasuredTable(self.measured))
        facts = (self.name, self.alpha, self.beta, self.gamma, self.flops, self.beta_memory)
        sending = (self.overhead, self.overhead_per_byte, self.eager_bytes)
        levels = (self.ranks_per_node, self.intra, self.axis_links, self.memory_bytes, self.call_seconds)
        places = (self.nodes, self.meshes)
        pieces = (self.pieces, self.still_pieces, self.reduce_pieces, self.copy_pieces, self.rates)
        object.__setattr__(self, "_hash", hash((facts, sending, levels, places, pieces, self.measured)))

    def __hash__(self) -> int:
        # Return a stored hash. Plans are cached by machine, and hashing a measured table takes longer than a plan.
        return self._hash

    def between(self, seconds: float) -> tuple[float, float] | None:
        """Return the interval of a predicted time, in seconds; None if predictions were not checked.

        >>> from dataclasses import replace
        >>> replace(Machine.laptop(), interval=(0.5, 2.0)).between(3.0)
        (1.5, 6.0)
        """
        return None if self.interval is None else (seconds * self.interval[0], seconds * self.interval[1])

    @property
    def certainty(self) -> str:
        """Sentence on how far measured times are from predicted ones: the interval of their ratio.

        Without ``interval``, it says that the times were not compared with measurements.
        """
        if self.interval is None:
            return (
                f"{self.name} is a model whose times were not compared with measurements: no error interval"
            )
        low, high = self.interval
        return f"interval: a measured time is {low:.2g} to {high:.2g} times its prediction in 9 of 10 checks"

    # ---------------------------------------------------------------------------------- nodes

    def placed(self, nodes: NodeMap) -> Machine:
        """Return this machine with its ranks on these nodes; unchanged if it has one level only.

        >>> from spmdsim.cost import NodeMap
        >>> print(Machine.cluster().placed(NodeMap.of("a:2,b:2", 4)).nodes)
        a: ranks 0, 1; b: ranks 2, 3
        """
        return self if self.intra is None else replace(self, nodes=nodes)

    def node_map(self, size: int) -> NodeMap:
        """Return the nodes of the first ``size`` ranks; one node if the machine has one level only.

        Raises:
            InputError: If ``nodes`` places fewer ranks.

        >>> Machine.accelerators().node_map(20).sizes.tolist()
        [8, 8, 4]
        """
        return map_of(self._placement or size, size)

    def nodes_of(self, ranks: np.ndarray) -> np.ndarray:
        """Return the number of each rank's node; 0 for all ranks if the machine has one level only.

        Raises:
            InputError: If ``nodes`` does not place a rank.

        >>> import numpy as np
        >>> Machine.accelerators().nodes_of(np.array([0, 7, 8])).tolist()
        [0, 0, 1]
        """
        return nodes_of(self._placement, ranks) if self._placement else ranks * 0

    @property
    def _placement(self) -> NodeMap | int:
        """Nodes of the ranks: a map, or the number of consecutive ranks per node; 0 for one level."""
        return self.nodes or self.ranks_per_node

    def on_mesh(self, mesh: Mesh, *others: Mesh) -> Machine:
        """Return this machine for collectives along the axes of a mesh, or between meshes.

        The prices take into account that groups which communicate at the same time share the ports of nodes. If
        one node has all ranks, the new machine has one level, the link inside the node. A machine without
        ``intra`` (one level), or with meshes already, is returned unchanged.

        Args:
            mesh: the mesh.
            others: further meshes, such as the mesh after an exchange.
        """
        if self.intra is None or self.meshes:
            return self
        meshes = tuple(dict.fromkeys((mesh, *others)))
        nodes = [
            self.nodes_of(np.asarray(each_mesh.ranks or range(each_mesh.size), np.int64))
            for each_mesh in meshes
        ]
        if len({*np.concatenate(nodes).tolist()}) > 1:
            return replace(self, meshes=meshes)
        inside = replace(self, alpha=self.intra.alpha, beta=self.intra.beta, pieces=())
        return replace(inside, ranks_per_node=0, intra=None, nodes=None)

    def of_group(self, mesh: Mesh, axes: tuple[str, ...]) -> Machine:
        """Return this machine for the rounds of one group, while all groups along the axes communicate.

        Its rank 0, 1, ... are the ranks of the first group. Its messages between nodes are slower by the number of
        groups that share a port. A machine with one level is returned unchanged. Results are cached.

        Args:
            mesh: the mesh.
            axes: the axes of the groups, the major one first.

        >>> from spmdsim import Mesh
        >>> across = Machine.accelerators().of_group(Mesh((2, 8), ("dp", "tp")), ("dp",))
        >>> across.node_map(2).count, across.beta / Machine.accelerators().beta
        (2, 8.0)
        """
        return self if self.intra is None else _place_group(self, mesh, axes)

    @property
    def inside_axes(self) -> frozenset[str]:
        """Axes of the first of ``meshes`` along which no group crosses nodes; empty without meshes.

        >>> from spmdsim import Mesh
        >>> sorted(Machine.accelerators().on_mesh(Mesh((2, 8), ("dp", "tp"))).inside_axes)
        ['tp']
        """
        return frozenset(
            axis
            for mesh in self.meshes[:1]
            for axis in mesh.axes
            if not mesh_load(self._placement, mesh, (axis,)).crosses_nodes
        )

    @property
    def point_links(self) -> tuple[Link | Piece | Machine, ...]:
        """The pairs of alpha and beta that a message between two ranks can have."""
        return (self, *self.pieces, *([self.intra] if self.intra else ()))

    # ---------------------------------------------------------------------------------- links of a group

    def link(
        self,
        group_size: int,
        axes: Iterable[str] | None = None,
        ranks: Sequence[int] | None = None,
        nbytes: float = 0.0,
        collective: str = "all_gather",
    ) -> Link:
        """Return the alpha and beta of the slowest link that a group uses for a message.

        1. If axes of the group have links of their own: the largest alpha and the largest beta of these links.
           The axes without such a link count together as one link of the next two kinds.
        2. If all groups stay inside nodes: ``intra``.
        3. Otherwise: alpha and beta for this size between nodes. Beta is multiplied by the load of the busiest
           port (:class:`~spmdsim.cost.port_load.PortLoad`), because all groups communicate at the same time.

        Args:
            group_size: number of ranks.
            axes: the mesh axes along which the group runs; None for no axes. On a mesh (:meth:`on_mesh`), they
                stand for all groups along the axes.
            ranks: the ranks of one group that communicates alone, without a mesh; None for the first ranks.
            nbytes: size of the message.
            collective: its name, which decides how often a byte crosses a port.
        """
        if axes is not None and self.axis_links:
            link_of, axes = dict(self.axis_links), tuple(axes)
            links = [link_of[axis] for axis in axes if axis in link_of]
            if links:
                if len(links) < len(axes):
                    plain_axes = tuple([axis for axis in axes if axis not in link_of])
                    links.append(self._shared_link(group_size, plain_axes, ranks, nbytes, collective))
                return Link(max(link.alpha for link in links), max(link.beta for link in links))
        return self._shared_link(group_size, axes, ranks, nbytes, collective)

    def _shared_link(
        self,
        group_size: int,
        axes: Iterable[str] | None,
        ranks: Sequence[int] | None,
        nbytes: float,
        collective: str,
    ) -> Link:
        """Return the link of a group as in :meth:`link`, without links of mesh axes.

        * If the machine has no link inside nodes: the link between nodes, not shared.
        * If the group stays inside a node: the link inside nodes.
        * Otherwise: the link between nodes. Its seconds per byte are multiplied by the load of the busiest port,
          and are at least those of the link inside nodes.
        """
        outside = self.piece(nbytes)
        if self.intra is None:
            return outside
        load = self.port_load(tuple(axes or ()), group_size, ranks)
        if not load.crosses_nodes:
            return self.intra
        return Link(outside.alpha, max(outside.beta * load.of(collective), self.intra.beta))

    def port_load(
        self, axes: tuple[str, ...] = (), group_size: int = 1, ranks: Sequence[int] | None = None
    ) -> PortLoad:
        """Return the load of the busiest port of a node in a collective.

        It is a multiple of the bytes that a rank receives, for each kind of algorithm. In the example, 8 groups
        of 2 ranks communicate between two nodes at the same time.

        Args:
            axes: the mesh axes of the groups; () for all ranks.
            group_size: the number of ranks, if meshes and ``ranks`` are unknown.
            ranks: the ranks of one group that communicates alone; None for all groups along ``axes``.

        >>> from spmdsim import Mesh
        >>> Machine.accelerators().on_mesh(Mesh((2, 8), ("dp", "tp"))).port_load(("dp",)).ring
        8
        """
        if ranks is None and self.meshes:
            if axes or len(self.meshes) == 1:
                return mesh_load(self._placement, self.meshes[0], axes)
            return transfer_load(self._placement, *self.meshes[:2])
        numbers = np.arange(group_size) if ranks is None else np.asarray(ranks, np.int64)
        return group_load(self.nodes_of(numbers)[None, :])

    def piece(self, nbytes: float) -> Link:
        """Return the alpha and beta of one message of this size outside of nodes and axis links."""
        return link_at_size(self.pieces, nbytes, Link(self.alpha, self.beta))

    def message_seconds(self, nbytes: float) -> float:
        """Return the seconds of one message outside of nodes and axis links."""
        return self.piece(nbytes).seconds(nbytes)

    def still_seconds(self, nbytes: float) -> float:
        """Return the seconds of one message of bytes that have not changed since they were sent."""
        return link_at_size(self.still_pieces, nbytes, self.piece(nbytes)).seconds(nbytes)

    def reduce_seconds(self, nbytes: float) -> float:
        """Return the seconds to reduce this many bytes at once; 0 for no bytes."""
        link = link_at_size(self.reduce_pieces, nbytes, Link(0.0, self.gamma))
        return link.seconds(nbytes) if nbytes > 0 else 0.0

    def copy_seconds(self, nbytes: float) -> float:
        """Return the seconds to copy this many bytes at once; 0 for no bytes."""
        link = link_at_size(self.copy_pieces, nbytes, Link(0.0, self.beta_memory))
        return link.seconds(nbytes) if nbytes > 0 else 0.0

    def far_parts(self, nbytes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return latencies of messages between nodes, and times of their bytes, as two arrays.

        A message takes the sum of its two entries: alpha, and bytes times beta. Alpha and beta depend on its
        size. Links of mesh axes are not considered.

        Args:
            nbytes: the bytes of each message.
        """
        alpha, beta = np.full(len(nbytes), self.alpha), np.full(len(nbytes), self.beta)
        for piece in reversed(self.pieces):
            short = nbytes <= piece.limit
            alpha[short], beta[short] = piece.alpha, piece.beta
        return alpha, beta * nbytes

    # ---------------------------------------------------------------------------------- prices

    def seconds(
        self,
        collective: str,
        group_size: int,
        nbytes: float,
        axes: Iterable[str] | None = None,
        *,
        messages: int | None = None,
        copied: float = 0.0,
        ranks: Sequence[int] | None = None,
        algorithm: str = "native",
    ) -> float:
        """Return the seconds of one collective over one group.

        If the machine has measured times of the collective, the algorithm and the group size, they are interpolated.
        Else it is the formula of :func:`textbook_seconds` on the group's slowest link (:meth:`link`).

        Args:
            collective: one of ``spmdsim.cost.closed_forms.COLLECTIVES``; ``slice`` moves nothing and costs only its
                local copy, ``exchange`` is one irregular exchange of single messages.
            group_size: ranks that take part.
            nbytes: bytes that each rank receives by the least count: (n-1) blocks for all_gather, 2(n-1)/n of the
                vector for all_reduce, (n-1)/n of it for reduce_scatter, (n-1)/n of the local bytes for all_to_all.
            axes: the mesh axes along which the group runs; None for no axes.
            messages: messages that each rank receives (exchange only); None for group_size - 1.
            copied: bytes that each rank copies locally in addition, at ``beta_memory`` seconds each.
            ranks: the ranks of one group that communicates alone; None for the first ranks, or for all groups along
                ``axes`` on a mesh. See :meth:`link`.
            algorithm: the algorithm whose measured times are used, if the machine has any.

        Raises:
            InputError: If the collective is unknown, a size is negative, or there is no rank.
        """
        if nbytes < 0 or copied < 0 or group_size < 1:
            raise InputError(
                f"a collective over {many(group_size, 'rank')} with {nbytes} bytes has no price; "
                "sizes are >= 0 and ranks >= 1"
            )
        local = copied * self.beta_memory
        if self.measured and group_size > 1:
            message = message_bytes(collective, group_size, nbytes)
            measured = self._table.seconds(collective, algorithm, group_size, message)
            if measured is not None:
                return measured + local
        link = self.link(group_size, axes, ranks, nbytes, collective)
        return local + textbook_seconds(
            collective, group_size, nbytes, link.alpha, link.beta, self.gamma, messages
        )

    def measured_seconds(
        self, collective: str, algorithm: str, group_size: int, message: float
    ) -> float | None:
        """Interpolate the measured time of a message size; None if this group size was not measured."""
        return self._table.seconds(collective, algorithm, group_size, message)

    def compute_seconds(self, flops: float, nbytes: float = 0.0, kind: str = "") -> float:
        """Return the seconds of a local operator.

        The slower of arithmetic and memory traffic counts (roofline model). ``kind`` is its class, for machines with
        measured rates.
        """
        for rate in self.rates:
            if rate.kind == kind:
                return max(flops * rate.per_flop, nbytes * rate.per_byte)
        return max(flops / self.flops, nbytes * self.beta_memory)

    # ---------------------------------------------------------------------------------- machines of today

    @staticmethod
    @cache
    def laptop() -> Machine:
        """Return a machine of one node: MPI through shared memory, one core per rank."""
        return Machine("laptop", 1e-6, 1.2e-10, 1e-10, flops=1e11, beta_memory=6e-11)

    @staticmethod
    @cache
    def cluster() -> Machine:
        """Return a machine of nodes with 32 cores, one rank per core, and 100 Gbit/s between nodes."""
        node, memory = Link(5e-7, 5e-11), 4 * 2**30
        return Machine("cluster", 2e-6, 8e-11, 1e-10, 5e10, 6e-11, 32, node, memory_bytes=memory)

    @staticmethod
    @cache
    def accelerators() -> Machine:
        """Return a machine of nodes with 8 accelerators, one rank each.

        Each accelerator has 200 Gbit/s between nodes.
        """
        node, memory = Link(4e-6, 5e-12), 80 * 2**30
        return Machine("accelerators", 8e-6, 4e-11, 1e-12, 3e14, 5e-13, 8, node, memory_bytes=memory)


@lru_cache(maxsize=1024)
def _place_group(machine: Machine, mesh: Mesh, axes: tuple[str, ...]) -> Machine:
    """Return a machine for the ranks of one group, with the shared ports in its beta.

    See :meth:`Machine.of_group`, which calls it for a machine with nodes. Up to 1024 results are cached.
    """
    members = mesh.group(mesh.rank_at(0), *axes)
    alone = replace(machine, ranks_per_node=0, nodes=NodeMap(machine.nodes_of(np.asarray(members, np.int64))))
    own_load, common_load = alone.port_load((), len(members)), machine.on_mesh(mesh).port_load(axes)
    slowdown = common_load.ring / own_load.ring if own_load.ring else 1.0
    return replace(alone, beta=machine.beta * slowdown, pieces=scale_pieces(machine.pieces, 1.0, slowdown))


def _check_numbers(machine: Machine) -> None:
    """Raise InputError if a number of a machine is impossible.

    - Times must be finite and not negative.
    - ``flops`` must be finite and above 0, ``memory_bytes``, ``eager_bytes`` and ``ranks_per_node`` not negative.
    - ``overhead`` must be at most half of the smallest alpha, ``overhead_per_byte`` half of the smallest beta.
    - The two factors of ``interval`` must be above 0, the lower one first.
    - The limits of ranges of sizes must ascend from above 0.
    - ``intra`` must be stated together with ``ranks_per_node`` or ``nodes``, or none of the three.
    """
    values = [(key, getattr(machine, key)) for key in _TIMES]
    links: list[tuple[str, Link | Piece]] = [("intra", machine.intra)] if machine.intra else []
    links += [(f"axis {axis}", link) for axis, link in machine.axis_links]
    for key in ("pieces", "still_pieces", "reduce_pieces", "copy_pieces"):
        _check_limits(machine, key)
        links += [(key, piece) for piece in getattr(machine, key)]
    values += [(f"{where} {key}", getattr(link, key)) for key in ("alpha", "beta") for where, link in links]
    values += [(f"rate of {x.kind}", rate) for x in machine.rates for rate in (x.per_flop, x.per_byte)]
    for key, value in values:
        if not isinstance(value, Real) or not 0 <= float(value) < float("inf"):
            raise InputError(f"machine {machine.name!r}: {key} is {value}; it has to be a number >= 0")
    if not 0 < machine.flops < float("inf"):
        raise InputError(f"machine {machine.name!r}: flops is {machine.flops}; it has to be greater than 0")
    _check_overheads(machine)
    for key in ("memory_bytes", "eager_bytes"):
        if getattr(machine, key) < 0:
            raise InputError(
                f"machine {machine.name!r}: {key} is {getattr(machine, key)}; it has to be 0 (unknown) or more"
            )
    if machine.ranks_per_node < 0:
        raise InputError(
            f"machine {machine.name!r}: ranks_per_node is {machine.ranks_per_node}; it has to be 0 (one level) or more"
        )
    if machine.interval is not None and not 0 < machine.interval[0] <= machine.interval[1] < float("inf"):
        raise InputError(
            f"machine {machine.name!r}: interval is {list(machine.interval)}; it has to be two factors, the lower first"
        )
    if bool(machine.intra) != bool(machine.ranks_per_node or machine.nodes):
        raise InputError(
            f"machine {machine.name!r}: intra and ranks_per_node, or intra and nodes, must be passed together, got only "
            "one"
        )


def _check_overheads(machine: Machine) -> None:
    """Raise InputError if the processors of both sides take longer than the message."""
    for key, time in (("overhead", "alpha"), ("overhead_per_byte", "beta")):
        most = min(getattr(link, time) for link in machine.point_links) / 2
        if getattr(machine, key) > most:
            raise InputError(
                f"machine {machine.name!r}: {key} is {getattr(machine, key)}; it has to be at most half of the smallest "
                f"{time}, {most:g}"
            )


def _check_limits(machine: Machine, key: str) -> None:
    """Raise InputError if the size limits of a machine's ranges are not above 0 and ascending."""
    limits = [piece.limit for piece in getattr(machine, key)]
    if not all(low < high for low, high in pairwise([0, *limits])):
        raise InputError(
            f"machine {machine.name!r}: the sizes in {key!r} must ascend from above 0, got {limits}"
        )


@dataclass(frozen=True)
class Restricted:
    """Cost model in which the time of some collectives is infinite, so that no plan uses them.

    Attributes:
        model: the cost model.
        without: the collectives.

    >>> from spmdsim.cost import Machine
    >>> model = Restricted(Machine.laptop(), frozenset({"all_to_all"}))
    >>> model.seconds("all_to_all", 4, 100), model.seconds("all_gather", 1, 0)
    (inf, 0.0)
    """

    model: CostModel
    without: frozenset[str]

    @property
    def name(self) -> str:
        """Name of the restricted model."""
        return self.model.name

    def on_mesh(self, *meshes: Any) -> Restricted:
        """Return the restriction of the model for a mesh."""
        on_mesh = getattr(self.model, "on_mesh", None)
        return self if on_mesh is None else replace(self, model=on_mesh(*meshes))

    def seconds(self, collective: str, *call: Any, **options: Any) -> float:
        """Return the time of one collective by the model; infinite if it must not be used."""
        return math.inf if collective in self.without else self.model.seconds(collective, *call, **options)

    def compute_seconds(self, *work: Any) -> float:
        """Return the time of one local operator by the model."""
        return self.model.compute_seconds(*work)
