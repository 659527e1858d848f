"""The price of a schedule on a machine: seconds, and what they are made of.

Rounds are synchronous: each lasts as long as its slowest message and its largest reduction. On a machine without a
topology a message takes alpha plus its bytes times beta. A rank that sends several messages in one round sends their
bytes one after another, and half of alpha is spent by its processor on each. On a topology the messages of a round
share its links.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil

import numpy as np

from spmdsim.collectives import Schedule
from spmdsim.collectives.facts import lower_bound
from spmdsim.collectives.rank_program import INPUT, program_for
from spmdsim.cost.closed_forms import Link, closed_form_of, least_per_byte, scaled
from spmdsim.cost.link_load import LinkLoad, link_loads
from spmdsim.cost.machine import Machine
from spmdsim.cost.topology import Topology, round_seconds
from spmdsim.pictured import ShortRepr

#: Ranks times rounds above which a closed form is preferred to going through the rounds.
_CLOSED_FORM_ABOVE = 50_000


@dataclass(frozen=True)
class RoundPrice:
    """The price of equal rounds in a row: seconds and messages of one round, and the largest numbers of bytes of a rank."""

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
        rounds: the rounds one by one, equal ones together; empty for a closed form.
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
        topology: links to share; the machine's own levels if not given.
        itemsize: bytes that are never cut.
        rounds: True to go through the rounds; False for the closed form if there is one, the machine is flat and the
            algorithm has one port; by default the schedule must also have more than 50,000 rounds times ranks.

    >>> from spmdsim.collectives import schedule_of
    >>> cost = price(schedule_of("all_reduce", "ring", 4), Machine("toy", 1e-6, 1e-9), 1000)
    >>> cost.steps, cost.beta_bytes, f"{cost.seconds:.2e}"
    (6, 1500.0, '7.50e-06')
    """
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
        RoundPrice(one.repeat, _round(one, machine, topology), one.largest, one.reduced, one.count)
        for one in link_loads(schedule, nbytes, itemsize)
    )
    return Price(
        sum(one.repeat * one.seconds for one in prices),
        # Rounds of local work only are no steps.
        sum(one.repeat for one in prices if one.messages),
        sum(one.repeat * one.largest for one in prices),
        sum(one.repeat * one.reduced for one in prices),
        prices,
        "rounds",
    )


def _round(one: LinkLoad, machine: Machine, topology: Topology | None) -> float:
    """Return the seconds of one round."""
    extra = machine.reduce_seconds(one.reduced)
    if not one.count:
        return extra
    if topology is None and machine.intra is None and (one.alike or (one.ports > 1 and not machine.pieces)):
        outside = machine.piece(one.largest)
        return outside.alpha * (one.ports + 1) / 2 + one.largest * outside.beta + extra
    if topology is None and one.alike:
        return _alike(one, machine) + extra
    alpha, moving = machine.message_parts(one.nbytes, one.sources, one.targets)
    extra += (one.ports - 1) * float(alpha.max()) / 2
    if topology is not None:
        return _on_links(one, machine, topology) + extra
    sent = np.bincount(one.sources, moving)
    received = np.bincount(one.targets, moving)
    busy = np.maximum(sent[one.sources], received[one.targets])
    return float((alpha + busy).max()) + extra


def _on_links(one: LinkLoad, machine: Machine, topology: Topology) -> float:
    """Return the seconds of a round on shared links, with the size-dependent latency and time per byte of a message."""
    if not machine.pieces:
        return round_seconds(topology, one.sources, one.targets, one.nbytes)
    alpha, moving = machine.message_parts(one.nbytes, one.sources, one.targets)
    plain_alpha, plain_moving = replace(machine, pieces=()).message_parts(
        one.nbytes, one.sources, one.targets
    )
    stretched = one.nbytes * np.divide(moving, plain_moving, np.ones(len(moving)), where=plain_moving > 0)
    return round_seconds(topology, one.sources, one.targets, stretched, alpha - plain_alpha)


def _alike(one: LinkLoad, machine: Machine) -> float:
    """Return the seconds of a round in which every rank sends one message equally far, on a machine with nodes."""
    far = machine.piece(one.largest)
    near = machine.intra or far
    kind, peer = one.alike or ("shift", 0)
    inside, outside = reaches(kind, peer, one.ranks, machine.ranks_per_node)
    links = [link for link, used in ((near, inside), (far, outside)) if used]
    return max(link.alpha + one.largest * link.beta for link in links)


@lru_cache(maxsize=4096)
def reaches(kind: str, peer: int, n: int, per_node: int) -> tuple[bool, bool]:
    """Return whether a message stays inside its node and whether one leaves it, without visiting each message.

    ``peer``: the rank that rank 0 of ``n`` sends to; the others are as far away by ``shift`` or ``xor``.

    >>> reaches("shift", 1, 16, 4), reaches("shift", 8, 16, 4), reaches("xor", 2, 16, 4)
    ((True, True), (False, True), (True, False))
    """
    if n <= per_node:
        return True, False
    if kind == "shift":
        return min(peer, n - peer) < per_node, True
    if per_node & (per_node - 1) == 0:
        return peer < per_node, peer >= per_node
    # Nodes of another size lie unevenly to the pairs: look at all.
    ranks = np.arange(n, dtype=np.int64)
    crossing = ranks // per_node != (ranks ^ peer) // per_node
    return not bool(crossing.all()), bool(crossing.any())


def least_seconds(collective: str, machine: Machine, n: int, nbytes: int) -> float:
    """Return a lower bound for all algorithms on a flat network, for any chunk sizes and ports.

    >>> round(least_seconds("all_reduce", Machine("m", 1.0, 1.0), 2, 1), 9)
    1.0
    """
    bound = lower_bound(collective, n)
    outside = Link(machine.alpha, machine.beta)
    near = machine.intra or outside
    latency = _least_alphas(n) * min(outside.alpha, near.alpha, *(one.alpha for one in machine.pieces))
    # Of several messages in one round each adds half of its alpha.
    per_byte = min(least_per_byte(scaled(machine.pieces, 0.5, 1.0), outside), near.beta)
    reducing = least_per_byte(machine.reduce_pieces, Link(0.0, machine.gamma))
    return max(latency, float(bound.beta) * nbytes * per_byte, float(bound.gamma) * nbytes * reducing)


def _least_alphas(n: int) -> float:
    """Return the least number of latencies until one rank can depend on all others, with k ports per round.

    Rounds that reach twice or three times as many are enough: four times are two of the former for the same price.

    >>> _least_alphas(1), _least_alphas(2), _least_alphas(3), _least_alphas(9)
    (0.0, 1.0, 1.5, 3.0)
    """
    alphas, threes, left = [], 0.0, max(n, 1)
    while left > 1:
        alphas.append(threes + (left - 1).bit_length())
        threes, left = threes + 1.5, ceil(left / 3)
    return min([*alphas, threes])


# ---------------------------------------------------------------------- run by this package

#: Ranks whose copies are looked at; more do not copy differently.
_LOOKED_AT = 32


def emulated_seconds(schedule: Schedule, machine: Machine, count: int, itemsize: int) -> float:
    """Return the seconds of a schedule as this package executes it: its rounds and the copies of its buffers.

    It runs on ``count`` elements, as the collective counts them, from separate input to output arrays. ``call_seconds``
    of the machine is added. Messages of unchanged input take ``still_seconds`` where the machine has ``still_pieces``.

    >>> from spmdsim.collectives import schedule_of
    >>> machine = Machine("m", 1e-6, 1e-9, beta_memory=1e-9)
    >>> f"{emulated_seconds(schedule_of('all_gather', 'ring', 2), machine, 1000, 1):.2e}"
    '2.00e-06'
    """
    seconds = price(schedule, machine, count * itemsize, itemsize=itemsize, rounds=True).seconds
    seconds += machine.call_seconds + max(
        sum(machine.copy_seconds(items * itemsize) for items in _copied(schedule, rank, count))
        for rank in range(min(schedule.size, _LOOKED_AT))
    )
    if machine.still_pieces:
        for items in _sent_as_given(schedule, count):
            nbytes = items * itemsize
            seconds -= machine.message_seconds(nbytes) - machine.still_seconds(nbytes)
    return seconds


@lru_cache(maxsize=1024)
def _sent_as_given(schedule: Schedule, count: int) -> tuple[int, ...]:
    """Return the elements of messages in rounds that send input only, whose bytes have not changed since."""
    resting: dict[int, int] = {}
    written: set[int] = set()
    for rank in range(min(schedule.size, _LOOKED_AT)):
        numbers = (number for number, moves in enumerate(schedule.rounds(rank)) if moves)
        for number, step in zip(numbers, program_for(schedule, rank, count).steps):
            places = [place for _, place in step.sends]
            if len(places) > 1 or any(place.array != INPUT for place in places):
                written.add(number)
            for place in places:
                resting[number] = max(resting.get(number, 0), place.stop - place.start)
    return tuple(items for number, items in resting.items() if number not in written)


@lru_cache(maxsize=1024)
def _copied(schedule: Schedule, rank: int, count: int) -> tuple[int, ...]:
    """Return the elements of each local copy of a rank: packing, unpacking, and input copied to the output."""
    program = program_for(schedule, rank, count)
    actions = [a for step in program.steps for part in (step.packs, step.actions) for a in part]
    return tuple(
        action.target.stop - action.target.start
        for action in (*actions, *program.finish)
        if action.second is None
    )
