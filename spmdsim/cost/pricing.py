"""Price of a schedule on a machine: seconds, and their components.

Rounds are synchronous: each lasts as long as its slowest message and its largest reduction. On a machine without a
topology a message takes alpha plus its bytes times beta. A rank that sends several messages in one round sends their
bytes one after another, and its processor spends half of alpha on each. On a topology the messages of a round share its
links. A machine with nodes is the topology :class:`~spmdsim.cost.topology.Nodes`: the ranks of a node share its port.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import ceil, inf

import numpy as np

from spmdsim.collectives import Schedule
from spmdsim.collectives.facts import lower_bound
from spmdsim.collectives.rank_program import INPUT, program_for
from spmdsim.collectives.schedule import require_schedule
from spmdsim.cost.closed_forms import Link, closed_form_of, least_per_byte, scale_pieces
from spmdsim.cost.link_load import LinkLoad, link_loads
from spmdsim.cost.machine import Machine, require_machine
from spmdsim.cost.network_bound import bound_on_network
from spmdsim.cost.node_map import NodeMap
from spmdsim.cost.topology import Nodes, Topology, round_seconds
from spmdsim.pictured import ShortRepr
from spmdsim.wrong_calls import explained

#: Ranks times rounds above which a closed form is used instead of the rounds.
_CLOSED_FORM_ABOVE = 50_000


@dataclass(frozen=True)
class RoundPrice:
    """Price of equal rounds in a row.

    Attributes:
        repeat: number of rounds.
        seconds: seconds of one round.
        largest: most bytes that one rank sends or receives in a round.
        reduced: most bytes that one rank reduces in a round.
        messages: messages in one round, all ranks together.
    """

    repeat: int
    seconds: float
    largest: float
    reduced: float
    messages: int


@dataclass(frozen=True, repr=False)
class Price(ShortRepr):
    """The price of a schedule.

    Attributes:
        seconds: time from the first message to the last.
        steps: rounds.
        beta_bytes: sum over rounds of the most bytes one rank sends or receives.
        gamma_bytes: sum over rounds of the most bytes one rank reduces.
        rounds: one entry per row of equal rounds; empty for a closed form.
        how: ``closed form`` or ``rounds``.

    >>> from spmdsim.collectives import schedule_of
    >>> from spmdsim.cost import Machine, price
    >>> price(schedule_of("all_reduce", "ring", 4), Machine.laptop(), 4096).steps
    6
    """

    seconds: float
    steps: int
    beta_bytes: float
    gamma_bytes: float
    rounds: tuple[RoundPrice, ...]
    how: str


@explained
def price(
    schedule: Schedule,
    machine: Machine,
    nbytes: int,
    topology: Topology | None = None,
    itemsize: int = 1,
    rounds: bool | None = None,
) -> Price:
    """Compute the price of a schedule on a machine.

    Args:
        schedule: an algorithm at a rank count.
        machine: alpha, beta and gamma.
        nbytes: message size as the collective counts it (``schedule.collective.size_means``).
        topology: links that messages share; None for the machine's own levels.
        itemsize: bytes per element; chunks are cut between elements.
        rounds: True to price all rounds. False for the closed form, if there is one, the machine is flat and the
            algorithm has one port. None for the closed form only with more than 50,000 rounds times ranks. A machine is
            flat without ``intra``, ``pieces``, ``reduce_pieces`` and a topology.

    Raises:
        InputError: If an algorithm without symmetry has too many rounds times ranks (:func:`link_loads`).

    >>> from spmdsim.collectives import schedule_of
    >>> cost = price(schedule_of("all_reduce", "ring", 4), Machine("toy", 1e-6, 1e-9), 1000)
    >>> cost.steps, cost.beta_bytes, f"{cost.seconds:.2e}"
    (6, 1500.0, '7.50e-06')
    """
    require_schedule(schedule)
    require_machine(machine, "price")
    flat = topology is None and not (machine.intra or machine.pieces or machine.reduce_pieces)
    if flat and rounds is not True:
        form = closed_form_of(schedule)
        if (
            form
            and schedule.algorithm.ports == "1"
            and (rounds is False or form.steps * schedule.size > _CLOSED_FORM_ABOVE)
        ):
            seconds = form.seconds(nbytes, machine.alpha, machine.beta, machine.gamma)
            shares = (float(form.beta_share) * nbytes, float(form.gamma_share) * nbytes)
            return Price(seconds, form.steps, *shares, (), "closed form")
    prices = tuple(
        RoundPrice(load.repeat, load_seconds(load, machine, topology), load.largest, load.reduced, load.count)
        for load in link_loads(schedule, nbytes, itemsize)
    )
    return Price(
        sum(entry.repeat * entry.seconds for entry in prices),
        # Rounds of local work only are no steps.
        sum(entry.repeat for entry in prices if entry.messages),
        sum(entry.repeat * entry.largest for entry in prices),
        sum(entry.repeat * entry.reduced for entry in prices),
        prices,
        "rounds",
    )


@lru_cache(maxsize=256)
def _levels_network(machine: Machine, ranks: int) -> Nodes | None:
    """Return the network of a machine's nodes with one port each; None if it has one level only."""
    if machine.intra is None:
        return None
    outside, inside = (1 / beta if beta else inf for beta in (machine.beta, machine.intra.beta))
    return Nodes(machine.node_map(ranks), outside, inside, 1, machine.alpha, machine.intra.alpha)


def load_seconds(load: LinkLoad, machine: Machine, topology: Topology | None) -> float:
    """Return the seconds of one round: its slowest message and its largest reduction.

    - Without messages, the round takes its reduction only.
    - On one level without a topology, a rank's messages follow one another: a message takes its alpha and all
      bytes that its sender sends or its receiver receives, whichever takes longer.
    - With a topology or nodes, messages share the links.

    Each message of a rank beyond the first adds half of the largest alpha. For example, two messages of b bytes
    from each rank on one level take ``1.5 * alpha + 2 * b * beta``.

    Args:
        load: the messages and reductions of the round.
        machine: the machine.
        topology: the links that messages share; None for the machine's own levels.
    """
    extra = machine.reduce_seconds(load.reduced)
    if not load.count:
        return extra
    network = topology or _levels_network(machine, load.ranks)
    # Without a network and ranges of sizes, the rank that sends or receives most decides, whatever its peers.
    if network is None and (load.uniform_shift or (load.ports > 1 and not machine.pieces)):
        outside = machine.piece(load.largest)
        return outside.alpha * (load.ports + 1) / 2 + load.largest * outside.beta + extra
    if isinstance(network, Nodes) and load.uniform_shift:
        return _uniform_seconds(load, machine, network) + extra
    alpha, moving = machine.far_parts(load.nbytes)
    if isinstance(network, Nodes):
        latency = np.where(network.are_inside(load.sources, load.targets), network.inside_alpha, alpha)
        arrivals = network.arrivals(load.sources, load.targets, load.nbytes, alpha, moving)
        return float(arrivals.max()) + (load.ports - 1) * float(latency.max()) / 2 + extra
    extra += (load.ports - 1) * float(alpha.max()) / 2
    if network is not None:
        return _shared_link_seconds(load, machine, network) + extra
    sent = np.bincount(load.sources, moving)
    received = np.bincount(load.targets, moving)
    busy = np.maximum(sent[load.sources], received[load.targets])
    return float((alpha + busy).max()) + extra


def _shared_link_seconds(load: LinkLoad, machine: Machine, topology: Topology) -> float:
    """Return the seconds of messages that share the links of a topology other than `Nodes`.

    The seconds of reductions are not included. The topology computes with one alpha and one beta. If the machine has
    others for a range of sizes (``pieces``), a message gets more or fewer bytes, so that they take its range's time,
    and the difference of the alphas is added.
    """
    if not machine.pieces:
        return round_seconds(topology, load.sources, load.targets, load.nbytes)
    alphas, byte_seconds = machine.far_parts(load.nbytes)
    plain_seconds = machine.beta * load.nbytes
    no_change = np.ones(len(byte_seconds))
    scaled_nbytes = load.nbytes * np.divide(byte_seconds, plain_seconds, no_change, where=plain_seconds > 0)
    return round_seconds(topology, load.sources, load.targets, scaled_nbytes, alphas - machine.alpha)


def _uniform_seconds(load: LinkLoad, machine: Machine, network: Nodes) -> float:
    """Return the seconds of a round in which each rank r sends to r + k, or each to ``r ^ k``.

    All messages have one size. The result is the largest number of :meth:`Nodes.arrivals`, without arrays of messages.
    """
    inside, leaving = leave_nodes(*(load.uniform_shift or ("shift", 0)), network.nodes)
    own_link = load.largest / network.inside_bandwidth
    seconds = network.inside_alpha + own_link if inside else 0.0
    if leaving:
        link = machine.piece(load.largest)
        seconds = max(seconds, link.alpha + max(own_link, leaving * load.largest * link.beta / network.rails))
    return seconds


@lru_cache(maxsize=4096)
def leave_nodes(kind: str, peer: int, nodes: NodeMap) -> tuple[bool, int]:
    """Return ``(inside, leaving)`` of a round in which each rank sends one message, all equally far.

    ``inside`` is True if some messages stay inside a node. ``leaving`` is the largest number of messages that
    leave a node; equally many enter it. In the example with 4 ranks per node, a shift by 1 sends one message
    out of each node, a shift by 8 all four, ``xor`` with 2 none.

    The numbers follow from a formula if consecutive ranks fill the nodes, and, for ``xor``, a node has a power
    of two of ranks. Otherwise messages are visited one by one.

    Args:
        kind: ``shift`` (rank r sends to ``(r + peer) % n``) or ``xor`` (rank r sends to ``r ^ peer``).
        peer: the rank that rank 0 sends to.
        nodes: the node of each rank.

    >>> from spmdsim.cost import NodeMap
    >>> nodes = NodeMap.consecutive(16, 4)
    >>> leave_nodes("shift", 1, nodes), leave_nodes("shift", 8, nodes), leave_nodes("xor", 2, nodes)
    ((True, 1), (False, 4), (True, 0))
    """
    n, per_node = nodes.size, nodes.ranks_per_node
    if nodes.count == 1:
        return True, 0
    if per_node and kind == "shift":
        # The first node has the most ranks. Its ranks reach others of it forwards, and backwards around all ranks.
        staying = max(0, per_node - peer) + max(0, per_node - (n - peer))
        return min(peer, n - peer) < per_node, per_node - staying
    if per_node and per_node & (per_node - 1) == 0:
        return peer < per_node, per_node * (peer >= per_node)
    ranks = np.arange(n, dtype=np.int64)
    targets = ranks ^ peer if kind == "xor" else (ranks + peer) % n
    crossing = nodes.nodes != nodes.nodes[targets]
    return not bool(crossing.all()), int(np.bincount(nodes.nodes[crossing]).max(initial=0))


def bound_collective_seconds(
    collective: str,
    machine: Machine,
    n: int,
    nbytes: int,
    topology: Topology | None = None,
    itemsize: int = 1,
) -> float:
    """Return a lower bound on the seconds of a collective by any algorithm on a machine.

    It is valid for any chunks and ports. It is the largest of three bounds: the least number of latencies, the least
    bytes that a rank sends or receives, and the least bytes that it reduces, each at the machine's lowest price. On a
    topology the bytes pass all links of the rank at once, such as the four links of a rank in a torus of two
    dimensions, and :func:`~spmdsim.cost.network_bound.bound_on_network` adds a fourth bound, by the flow over all links.

    Args:
        collective: the name of the collective.
        machine: the machine; inside nodes the cheaper link counts for all messages.
        n: the number of ranks.
        nbytes: message size as the collective counts it.
        topology: links that messages share; None for the machine's own levels.
        itemsize: bytes per element; blocks are cut between elements.

    >>> round(bound_collective_seconds("all_reduce", Machine("m", 1.0, 1.0), 2, 1), 9)
    1.0
    """
    bound = lower_bound(collective, n)
    outside = Link(machine.alpha, machine.beta)
    near = machine.intra or outside
    latency = _least_alphas(n) * min(outside.alpha, near.alpha, *(piece.alpha for piece in machine.pieces))
    # Each of several messages in one round adds half of its alpha.
    per_byte = min(least_per_byte(scale_pieces(machine.pieces, 0.5, 1.0), outside), near.beta)
    flow = 0.0
    if topology is not None:
        lowest = min([1.0, *(piece.beta / machine.beta for piece in machine.pieces)])
        per_byte = lowest / (topology.rank_links * float(topology.capacity[0]))
        on_network = bound_on_network(collective, topology, nbytes, itemsize)
        flow = lowest * on_network.seconds if on_network else 0.0
    reducing = least_per_byte(machine.reduce_pieces, Link(0.0, machine.gamma))
    if collective in ("gather", "scatter"):  # The root may keep the only larger block.
        nbytes = nbytes // itemsize // n * n * itemsize
    return max(latency, float(bound.beta) * nbytes * per_byte, float(bound.gamma) * nbytes * reducing, flow)


def _least_alphas(n: int) -> float:
    """Return the least number of latencies until one rank can depend on all ``n`` ranks.

    In a round with k ports, a rank receives k messages: it then depends on k + 1 times as many ranks, for (k + 1) / 2
    latencies. Factors two and three are enough, because a factor of four has the price of two factors of two.

    >>> _least_alphas(1), _least_alphas(2), _least_alphas(3), _least_alphas(9)
    (0.0, 1.0, 1.5, 3.0)
    """
    prices, price_of_threes, remaining_factor = [], 0.0, max(n, 1)
    while remaining_factor > 1:
        factors_of_two = (remaining_factor - 1).bit_length()
        prices.append(price_of_threes + factors_of_two)
        price_of_threes, remaining_factor = price_of_threes + 1.5, ceil(remaining_factor / 3)
    return min([*prices, price_of_threes])


# ---------------------------------------------------------------------- run by this package

#: Number of ranks whose copies are counted; further ranks copy equally much.
_LOOKED_AT = 32


def emulated_seconds(schedule: Schedule, machine: Machine, count: int, itemsize: int) -> float:
    """Return the seconds of a schedule as this package runs it: messages, copies and call.

    They are the sum of:

    * the price of its rounds (:func:`price` on the machine's own levels);
    * the local copies of the rank whose copies take longest, among the first :data:`_LOOKED_AT` (32) ranks;
    * ``call_seconds`` of the machine.

    In a repeated call, bytes of the input that have not changed can have another price (``still_pieces`` of the
    machine). Where the machine has it, the largest message of each round in which ranks send only their input gets this
    price.

    Args:
        schedule: the schedule, which runs from separate input to output arrays.
        machine: the machine.
        count: the number of elements, as the collective counts them.
        itemsize: bytes per element.

    >>> from spmdsim.collectives import schedule_of
    >>> machine = Machine("m", 1e-6, 1e-9, beta_memory=1e-9)
    >>> f"{emulated_seconds(schedule_of('all_gather', 'ring', 2), machine, 1000, 1):.2e}"
    '2.00e-06'
    """
    seconds = price(schedule, machine, count * itemsize, itemsize=itemsize, rounds=True).seconds
    seconds += machine.call_seconds + max(
        sum(machine.copy_seconds(items * itemsize) for items in _count_copied(schedule, rank, count))
        for rank in range(min(schedule.size, _LOOKED_AT))
    )
    if machine.still_pieces:
        for items in _unchanged_messages(schedule, count):
            nbytes = items * itemsize
            seconds -= machine.message_seconds(nbytes) - machine.still_seconds(nbytes)
    return seconds


@lru_cache(maxsize=1024)
def _unchanged_messages(schedule: Schedule, count: int) -> tuple[int, ...]:
    """Return the elements of the largest message of each round in which ranks send only input.

    If a call is repeated with unchanged input, the bytes of these messages are those that the earlier call
    sent. For example, in a ring all_gather the first round sends each rank's own block; later rounds send
    received blocks and do not count.

    A round counts if each of the first :data:`_LOOKED_AT` ranks sends at most one message in it, from its input
    array, and one of them sends. Further ranks are not examined. The numbers are in no particular order.

    Args:
        schedule: the schedule.
        count: the number of elements of the call, as the collective counts them.
    """
    largest_messages: dict[int, int] = {}  # by round, in elements
    excluded_rounds: set[int] = set()
    for rank in range(min(schedule.size, _LOOKED_AT)):
        numbers = (number for number, moves in enumerate(schedule.rounds(rank)) if moves)
        for number, step in zip(numbers, program_for(schedule, rank, count).steps):
            spans = [span for _, span in step.sends]
            if len(spans) > 1 or any(span.array != INPUT for span in spans):
                excluded_rounds.add(number)
            for span in spans:
                largest_messages[number] = max(largest_messages.get(number, 0), span.stop - span.start)
    return tuple(items for number, items in largest_messages.items() if number not in excluded_rounds)


@lru_cache(maxsize=1024)
def _count_copied(schedule: Schedule, rank: int, count: int) -> tuple[int, ...]:
    """Return the elements of each local copy of a rank: packing, unpacking, and input to output.

    The copies are in the order in which the rank makes them. Copies that also reduce do not count.

    Args:
        schedule: the schedule.
        rank: the rank.
        count: the number of elements of the call, as the collective counts them.
    """
    program = program_for(schedule, rank, count)
    actions = [action for step in program.steps for action in (*step.packs, *step.actions)]
    return tuple(
        action.target.stop - action.target.start
        for action in (*actions, *program.finish)
        if action.second is None
    )
