"""Ranks of a node share its network port: in rounds, in closed forms, on any placement."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from spmdsim.collectives import Algorithm, Schedule, algorithms, make_schedule, schedule_of
from spmdsim.core import Mesh
from spmdsim.cost import Link, Machine, NodeMap, Piece, predict, price
from spmdsim.errors import InputError

PLACEMENTS = {
    "2x2": "a:2,b:2",
    "4x2": "a:2,b:2,c:2,d:2",
    "uneven": "a:3,b:1,c:2",
    "round-robin": "a,b,a,b,a,b",
}
PIECES = (Piece(100, 3e-6, 4e-9), Piece(2000, 5e-6, 2e-9))
MODELS: dict[str, dict[str, Any]] = {
    "plain": {},
    "ranges of sizes": {"pieces": PIECES},
    "slow memory": {"intra": Link(3e-6, 3e-9)},
}


def machine_on(nodes: NodeMap, **changes: Any) -> Machine:
    settings: dict[str, Any] = {"gamma": 1e-10, "intra": Link(4e-7, 2e-10), "nodes": nodes, **changes}
    return Machine("nodes", 1e-5, 1e-9, **settings)


def round_messages(schedule: Schedule, nbytes: int) -> list[tuple[list[tuple[int, int, float]], float]]:
    """Return the messages ``(sender, receiver, bytes)`` of each round, and the largest reduction in bytes."""
    sizes = schedule.chunk_elements(nbytes)
    rounds = []
    for moves_of in itertools.zip_longest(
        *(schedule.rounds(rank) for rank in range(schedule.size)), fillvalue=[]
    ):
        messages, reduced = [], [0.0] * schedule.size
        for rank, moves in enumerate(moves_of):
            for move in moves:
                amount = float(sum(sizes[chunk % len(sizes)] for chunk in move.chunks))
                if move.kind == "send":
                    messages.append((rank, move.peer, amount))
                elif move.kind in ("reduce", "combine"):
                    reduced[rank] += amount
        rounds.append((messages, max(reduced)))
    return rounds


def link_of_size(machine: Machine, nbytes: float) -> tuple[float, float]:
    for piece in machine.pieces:
        if nbytes <= piece.limit:
            return piece.alpha, piece.beta
    return machine.alpha, machine.beta


def rounds_by_hand(schedule: Schedule, machine: Machine, nodes: list[int], nbytes: int) -> Iterator[float]:
    """Yield the seconds of each round: ports of nodes and links of ranks, message by message."""
    inside = machine.intra
    assert inside is not None
    for messages, reduced in round_messages(schedule, nbytes):
        busy: Counter[tuple[str, int]] = Counter()
        for source, target, amount in messages:
            busy["rank out", source] += amount * inside.beta
            busy["rank in", target] += amount * inside.beta
            if nodes[source] != nodes[target]:
                busy["node out", nodes[source]] += amount * link_of_size(machine, amount)[1]
                busy["node in", nodes[target]] += amount * link_of_size(machine, amount)[1]
        arrivals, latencies = [0.0], [0.0]
        for source, target, amount in messages:
            links = [("rank out", source), ("rank in", target)]
            latencies.append(inside.alpha)
            if nodes[source] != nodes[target]:
                links += [("node out", nodes[source]), ("node in", nodes[target])]
                latencies[-1] = link_of_size(machine, amount)[0]
            arrivals.append(latencies[-1] + max(busy[link] for link in links))
        ports = max(Counter(source for source, _, _ in messages).values(), default=1)
        yield max(arrivals) + (ports - 1) * max(latencies) / 2 + reduced * machine.gamma


def seconds_by_hand(schedule: Schedule, machine: Machine, nodes: list[int], nbytes: int) -> float:
    """Return the seconds of a schedule, see :func:`rounds_by_hand`."""
    return sum(rounds_by_hand(schedule, machine, nodes, nbytes))


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("chosen", algorithms(), ids=lambda one: one.full_name)
def test_levels_topology_and_a_count_by_hand_agree(chosen: Algorithm, placement: str, model: str) -> None:
    labels = PLACEMENTS[placement]
    size = sum(int(word.partition(":")[2] or 1) for word in labels.split(","))
    if not chosen.fits(size, {}):
        pytest.skip(f"does not run on {size} ranks")
    nodes = NodeMap.of(labels, size)
    machine, schedule = machine_on(nodes, **MODELS[model]), make_schedule(chosen, size)
    for nbytes in (0, 7, 1000, 96_000):
        expected = seconds_by_hand(schedule, machine, nodes.nodes.tolist(), nbytes)
        assert price(schedule, machine, nbytes).seconds == pytest.approx(expected, rel=1e-12)
        (on_links,) = predict(
            chosen.collective.name, machine, [size], [nbytes], [chosen.name], topology="nodes"
        ).points
        assert on_links.seconds[chosen.name] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    "labels", [f"a:{k},b:{k},c:{k},d:{k}" for k in (2, 4)] + ["a:5,b:2,c:1", "a,b" + ",a,b" * 7]
)
@pytest.mark.parametrize(
    "chosen", [one for one in algorithms() if one.symmetry], ids=lambda one: one.full_name
)
def test_one_rank_represents_all_on_any_placement(
    chosen: Algorithm, labels: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spmdsim.cost.link_load.EXACT_UP_TO", 2)
    size = sum(int(word.partition(":")[2] or 1) for word in labels.split(","))
    if not chosen.fits(size, {}):
        pytest.skip(f"does not run on {size} ranks")
    nodes = NodeMap.of(labels, size)
    machine, schedule = machine_on(nodes), make_schedule(chosen, size)
    nbytes = 16 * size * size
    expected = seconds_by_hand(schedule, machine, nodes.nodes.tolist(), nbytes)
    assert price(schedule, machine, nbytes).seconds == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("n", [2, 7, 8, 12, 16, 30, 32])
@pytest.mark.parametrize("per_node", [1, 3, 4, 5, 8, "labels"])
def test_messages_of_every_distance_leave_their_nodes(
    n: int, per_node: int | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In round k of pairwise algorithms, rank r sends to r + k, or to r ^ k.

    The second form is that of rank counts that are powers of two.
    """
    monkeypatch.setattr("spmdsim.cost.link_load.EXACT_UP_TO", 1)
    labels = [(7 * rank % 5) // 2 for rank in range(n)]
    nodes = NodeMap.consecutive(n, per_node) if isinstance(per_node, int) else NodeMap(labels)
    for machine in machine_on(nodes, gamma=0.0), machine_on(nodes, intra=Link(3e-5, 2e-10)):
        for collective in "all_to_all", "reduce_scatter":
            schedule = schedule_of(collective, "pairwise", n)
            rounds = price(schedule, machine, 100 * n).rounds
            seconds = [one.seconds for one in rounds for _ in range(one.repeat)]
            by_hand = [*rounds_by_hand(schedule, machine, nodes.nodes.tolist(), 100 * n)]
            assert seconds == pytest.approx(by_hand, rel=1e-12) and len(seconds) == n - 1


def test_the_port_is_shared_and_works_in_both_directions() -> None:
    machine = machine_on(NodeMap.of("a:2,b:2", 4), gamma=0.0)
    doubling = schedule_of("all_gather", "recursive_doubling", 4)
    # One message of each rank inside its node; then two ranks of each node send 2,000 bytes each through one port.
    expected = 4e-7 + 1000 * 2e-10 + 1e-5 + 2 * 2000 * 1e-9
    assert price(doubling, machine, 4000).seconds == pytest.approx(expected)


# ---------------------------------------------------------------------------------- closed forms on a mesh


def loads_by_hand(nodes: list[int], mesh: Mesh, axes: tuple[str, ...]) -> tuple[int, float]:
    """Return the largest load of a port for rings and for pairs, counted group by group."""
    ring: Counter[int] = Counter()
    pairs: Counter[int] = Counter()
    groups = [sorted(group) for group in mesh.groups(*axes)]
    for group in groups:
        for before, rank in zip([group[-1], *group], group):
            ring[nodes[rank]] += nodes[before] != nodes[rank]
        for other, rank in itertools.product(group, group):
            pairs[nodes[rank]] += nodes[other] != nodes[rank]
    return max(ring.values()), max(pairs.values()) / max(len(groups[0]) - 1, 1)


@pytest.mark.parametrize(
    ("mesh", "labels"),
    [
        (Mesh((2, 2), ("a", "b")), "x:2,y:2"),
        (Mesh((2, 2), ("a", "b")), "x,y,x,y"),
        (Mesh((2, 3, 2), ("a", "b", "c")), "x:4,y:4,z:4"),
        (Mesh((2, 3, 2), ("a", "b", "c")), "x:5,y:4,z:3"),
        (Mesh((2, 3, 2), ("a", "b", "c")), "x,y,z" + ",x,y,z" * 3),
        (Mesh((2, 4), ("a", "b"), (7, 0, 3, 4, 5, 2, 1, 6)), "x:4,y:4"),
        (Mesh((4, 2), ("a", "b"), (1, 3, 5, 7, 9, 11, 13, 15)), "x:8,y:8"),
    ],
    ids=str,
)
def test_loads_of_ports_are_those_of_a_count(mesh: Mesh, labels: str) -> None:
    nodes = NodeMap.of(labels, max(mesh.rank_list) + 1)
    for count in range(1, len(mesh.axes) + 1):
        for axes in itertools.combinations(mesh.axes, count):
            load = machine_on(nodes).on_mesh(mesh).port_load(axes)
            assert tuple(load) == pytest.approx(loads_by_hand(nodes.nodes.tolist(), mesh, axes))


def test_between_two_meshes_all_that_leaves_a_node_shares_its_port() -> None:
    machine = machine_on(NodeMap.of("x:4,y:4", 8))
    senders, receivers = Mesh((4,), ("a",), (0, 1, 2, 3)), Mesh((4,), ("a",), (4, 5, 6, 7))
    one_rank = Mesh((1,), ("a",), (4,))
    for want in receivers, one_rank, Mesh((8,), ("a",)):
        assert machine.on_mesh(senders, want).port_load().pairs == 4
    assert machine.on_mesh(senders, senders).port_load().pairs == 0
    ranks = (
        0,
        1,
        4,
        5,
    )  # each rank gets a third of its bytes from each of the others, two of them on the other node
    both = machine.on_mesh(Mesh((4,), ("a",), ranks), Mesh((4,), ("b",), ranks))
    assert both.port_load().pairs == pytest.approx(4 / 3)
    assert machine.on_mesh(senders, Mesh((2,), ("a",), (2, 3))).intra is None


def test_groups_that_communicate_at_the_same_time_share_the_port() -> None:
    machine = machine_on(NodeMap.of("x:2,y:2", 4), gamma=0.0).on_mesh(Mesh((2, 2), ("dp", "tp")))
    far, near = Link(1e-5, 1e-9), Link(4e-7, 2e-10)
    assert machine.link(2, ("tp",)) == near
    assert machine.link(2, ("dp",)) == Link(far.alpha, 2 * far.beta)
    assert machine.link(4, ("dp", "tp")) == machine.link(4, ("tp", "dp")) == far
    assert machine.link(2, ("dp",), collective="all_to_all") == Link(far.alpha, 2 * far.beta)
    assert machine.link(4, ("dp", "tp"), collective="all_to_all").beta == pytest.approx(4 / 3 * far.beta)
    assert machine.seconds("all_gather", 2, 1000, ("dp",)) == pytest.approx(1e-5 + 2000 * 1e-9)


def test_on_one_node_a_machine_has_one_level() -> None:
    nodes = NodeMap.of("x:4,y:4", 8)
    machine = machine_on(nodes, pieces=PIECES).on_mesh(Mesh((2, 2), ("a", "b"), (4, 5, 6, 7)))
    assert machine.intra is None and machine.link(4, ("a", "b")) == machine.link(2, ("a",)) == Link(
        4e-7, 2e-10
    )


def test_one_group_alone_has_the_port_for_itself() -> None:
    machine = machine_on(NodeMap.of("x:2,y:2", 4))
    assert machine.link(2, ranks=(0, 2)) == Link(1e-5, 1e-9)
    assert machine.link(2, ranks=(2, 3)) == Link(4e-7, 2e-10)


def test_many_ranks_are_counted_by_arrays() -> None:
    mesh = Mesh((2048, 32), ("dp", "tp"))
    consecutive = Machine("m", 1e-5, 1e-9, ranks_per_node=32, intra=Link(4e-7, 2e-10)).on_mesh(mesh)
    assert consecutive.port_load(("dp",)) == (32, 32)
    assert consecutive.port_load(("tp",)) == (0, 0)
    by_turns = machine_on(NodeMap(np.arange(65_536) % 2048)).on_mesh(mesh)
    assert by_turns.port_load(("dp", "tp")).ring == 32


def test_a_map_of_fewer_ranks_is_refused() -> None:
    machine = machine_on(NodeMap.of("x:2,y:2", 4))
    with pytest.raises(InputError, match="nodes must place 8 ranks, got 4: x: ranks 0, 1; y: ranks 2, 3"):
        machine.seconds("all_gather", 8, 1000)
    with pytest.raises(InputError, match="intra and nodes, must be passed together"):
        Machine("bad", 1, 1, nodes=NodeMap.of(2, 4))
