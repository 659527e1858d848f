"""Networks: routes are connected, loads add up, and messages share links max-min fairly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from spmdsim.collectives import from_function, make_schedule, schedule_of, send
from spmdsim.cost import Link, Machine, NodeMap, Topology, parse_topology, price
from spmdsim.cost.link_load import hotspots
from spmdsim.cost.topologies import Dragonfly, Torus
from spmdsim.cost.topology import TopologyPlace
from spmdsim.errors import InputError

#: Links of one byte per second without latency; links inside nodes are twice as fast.
UNIT = Machine("unit", 0.0, 1.0, ranks_per_node=4, intra=Link(0.0, 0.5))
LABELLED = replace(UNIT, ranks_per_node=0, nodes=NodeMap.of("a,b,b,a,c,a", 6))
NETWORKS: list[Topology] = [
    parse_topology("flat", 7, UNIT),
    parse_topology("nodes:4", 12, UNIT),
    parse_topology("nodes:4,rails=2", 10, UNIT),
    parse_topology("nodes", 6, LABELLED),
    Torus((2,), 1.0),
    Torus((7,), 1.0),
    Torus((4, 6), 1.0),
    Torus((3, 4, 5), 1.0),
    Torus((2, 2, 3), 1.0),
    Torus((1, 5), 1.0),
    parse_topology("fat_tree:down=4x4,up=1x2,hop=0", 16, UNIT),
    parse_topology("fat_tree:down=2x3x4,up=1x2x3,hop=0", 24, UNIT),
    Dragonfly(9, 4, 2, 1.0),
    Dragonfly(4, 2, 3, 1.0),
    Dragonfly(1, 4, 2, 1.0),
]
#: The networks that share links between flows; the others price a message by its busiest link.
SHARING = [topology for topology in NETWORKS if "node" not in topology.name]


def ids(topology: Topology) -> str:
    return topology.name


def messages(topology: Topology, count: int = 200, seed: int = 0):
    rng = np.random.default_rng(seed)
    return rng.integers(0, topology.ranks, count), rng.integers(0, topology.ranks, count), rng.random(count)


def seconds_of(topology: Topology, sources: Any, targets: Any, sizes: Any, machine: Machine = UNIT) -> float:
    """Return the price of one round of messages of `sizes` bytes."""

    def generate(rank: int, size: int) -> Iterator[Any]:
        messages = zip(np.asarray(sources).tolist(), np.asarray(targets).tolist(), np.asarray(sizes).tolist())
        yield [send(target, range(int(nbytes))) for source, target, nbytes in messages if source == rank]

    most = int(max(sizes))
    return price(
        make_schedule(from_function(generate, chunks=str(most)), topology.ranks), machine, most, topology
    ).seconds


def rates_by_hand(links: dict[int, set[int]], capacity: Any) -> dict[int, float]:
    """Return the rate of each message: all grow together until a link is full, then the others grow on."""
    rates: dict[int, float] = {}
    left = dict(enumerate(capacity))
    while growing := links.keys() - rates.keys():
        users = Counter(link for message in growing for link in links[message])
        level = min(left[link] / count for link, count in users.items())
        full = {link for link, count in users.items() if left[link] / count <= level * (1 + 1e-9)}
        for message in [message for message in growing if links[message] & full]:
            rates[message] = level
            for link in links[message]:
                left[link] -= level
    return rates


def seconds_by_hand(topology: Topology, sources: Any, targets: Any, sizes: Any) -> float:
    """Return the seconds until all messages have arrived, flow by flow."""
    routes, left, now = topology.routes(sources, targets), dict(enumerate(map(float, sizes))), 0.0
    links = {message: set(routes.links[routes.messages == message].tolist()) for message in left}
    left = {message: nbytes for message, nbytes in left.items() if links[message]}
    while left:
        rates = rates_by_hand({message: links[message] for message in left}, topology.capacity)
        step = min(nbytes / rates[message] for message, nbytes in left.items())
        now += step
        left = {message: nbytes - step * rates[message] for message, nbytes in left.items()}
        left = {message: nbytes for message, nbytes in left.items() if nbytes > 1e-6}
    return now


@pytest.mark.parametrize("topology", NETWORKS, ids=ids)
def test_loads_and_hops_follow_from_routes(topology: Topology) -> None:
    sources, targets, weights = messages(topology)
    routes = topology.routes(sources, targets)
    assert routes.links.min() >= 0 and routes.links.max() < len(topology.capacity)
    np.testing.assert_array_equal(topology.hops(sources, targets), routes.hops)
    expected = np.zeros(len(topology.capacity))
    np.add.at(expected, routes.links, weights[routes.messages])
    np.testing.assert_allclose(topology.loads(sources, targets, weights), expected, atol=1e-12)
    # A message to oneself uses nothing, every other one something; no link is crossed twice.
    np.testing.assert_array_equal(routes.hops == 0, sources == targets)
    pairs = set(zip(routes.messages.tolist(), routes.links.tolist()))
    assert len(pairs) == len(routes.links)


@pytest.mark.parametrize("topology", NETWORKS, ids=ids)
def test_link_names_are_distinct(topology: Topology) -> None:
    sources, targets = np.divmod(np.arange(topology.ranks**2), topology.ranks)
    used = np.unique(topology.routes(sources, targets).links)
    names = [topology.link_name(link) for link in used]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("topology", NETWORKS, ids=ids)
def test_links_of_a_message_lead_from_its_sender_to_its_receiver(topology: Topology) -> None:
    sources, targets, _ = messages(topology, 60)
    routes = topology.routes(sources, targets)
    for message, (source, target) in enumerate(zip(sources.tolist(), targets.tolist())):
        links = [topology.ends(link) for link in routes.links[routes.messages == message].tolist()]
        at = TopologyPlace(0, source)
        while links:
            route = next((one for one in links if one[0] == at), None)
            assert route is not None, (source, target, at, links)
            links.remove(route)
            at = route[1]
        assert at == (0, target)


@pytest.mark.parametrize("dims", [(7,), (2,), (4, 6), (3, 4, 5)])
def test_torus_routes_are_paths_from_source_to_target(dims: tuple[int, ...]) -> None:
    torus = Torus(dims, 1.0)
    sources, targets, _ = messages(torus, 60)
    routes = torus.routes(sources, targets)
    for message, (source, target) in enumerate(zip(sources, targets)):
        at = np.array(np.unravel_index(source, dims))
        end = np.array(np.unravel_index(target, dims))
        shortest = np.minimum((end - at) % dims, (at - end) % dims).sum()
        links = routes.links[routes.messages == message]
        assert len(links) == shortest
        for link in links:
            which, rank = divmod(int(link), torus.ranks)
            assert rank == np.ravel_multi_index(tuple(at), dims)
            dim = which // 2
            at[dim] = (at[dim] + (-1 if which % 2 else 1)) % dims[dim]
        np.testing.assert_array_equal(at, end)


def test_fat_tree_climbs_only_as_far_as_needed() -> None:
    tree = parse_topology("fat_tree:down=2x3x4,up=1x2x3,hop=0", 24, UNIT)
    pairs = np.array([(0, 1), (0, 2), (0, 5), (0, 6), (23, 0)])
    assert tree.hops(pairs[:, 0], pairs[:, 1]).tolist() == [2, 4, 4, 6, 6]


def test_oversubscription_halves_the_bandwidth_between_leaves() -> None:
    """The 8 messages from one leaf to the other share 4 uplinks."""
    for over, expected in ((1.0, 1.0), (2.0, 2.0), (4.0, 4.0), (8.0, 8.0)):
        tree = parse_topology(f"fat_tree:leaf=8,over={over},hop=0", 16, UNIT)
        sources, targets = np.arange(8), np.arange(8, 16)
        assert seconds_of(tree, sources, targets, np.ones(8)) == pytest.approx(expected)


def test_dragonfly_uses_one_global_link_per_pair_of_groups() -> None:
    network = Dragonfly(5, 2, 2, 1.0)
    sources, targets = np.arange(4), np.arange(4, 8)
    assert seconds_of(network, sources, targets, np.ones(4)) == pytest.approx(4.0)
    # Spread over four other groups the global links do not limit: the link to a gateway does.
    assert seconds_of(network, sources, np.array([4, 8, 12, 16]), np.ones(4)) < 4.0


def is_global(network: Dragonfly, link: int) -> bool:
    """Return True if a link connects routers of two groups."""
    ends = network.ends(link)
    return all(at.tier == 1 for at in ends) and len({at.number // network.routers for at in ends}) == 2


@pytest.mark.parametrize(("groups", "routers"), [(9, 4), (5, 2), (7, 3), (3, 4)])
def test_dragonfly_spreads_its_global_links_over_the_routers(groups: int, routers: int) -> None:
    network = Dragonfly(groups, routers, 1, 1.0)
    for group in range(groups):
        others = np.array([other for other in range(groups) if other != group])
        routes = network.routes(np.full_like(others, group * routers), others * routers)
        senders = [network.ends(link)[0] for link in routes.links.tolist() if is_global(network, link)]
        assert len(senders) == len(others) and {at.number // routers for at in senders} == {group}
        assert max(Counter(at.number for at in senders).values()) <= -(-(groups - 1) // routers)


def test_nodes_share_their_ports() -> None:
    sources, targets = np.arange(4), np.arange(4, 8)
    machine = Machine("two", 0.5, 1.0, ranks_per_node=4, intra=Link(0.25, 0.1))
    one = parse_topology("nodes:4", 8, machine)
    assert seconds_of(one, sources, targets, np.ones(4), machine) == pytest.approx(4 + 0.5)
    two = parse_topology("nodes:4,rails=2", 8, machine)
    assert seconds_of(two, sources, targets, np.ones(4), machine) == pytest.approx(2 + 0.5)
    inside = seconds_of(one, np.array([0, 1]), np.array([1, 0]), np.ones(2), machine)
    assert inside == pytest.approx(0.1 + 0.25)


def test_shares_are_max_min_fair_and_messages_speed_up_when_others_arrive() -> None:
    """A round takes as long as flows that share links fairly, and not less than its busiest link."""
    longer = 0
    for topology in SHARING:
        for seed in range(3):
            sources, targets, _ = messages(topology, 40, seed)
            sizes = np.random.default_rng(seed).integers(1, 30, 40)
            seconds = seconds_of(topology, sources, targets, sizes)
            assert seconds == pytest.approx(seconds_by_hand(topology, sources, targets, sizes)), topology
            busiest = (topology.loads(sources, targets, sizes.astype(float)) / topology.capacity).max()
            assert seconds >= busiest - 1e-9
            longer += seconds > busiest * (1 + 1e-6)
    assert longer


def test_sharing_by_hand() -> None:
    # The messages 0 -> 3 and 0 -> 2 share the link out of 0, and each shares a link into its receiver with two others.
    # For 3 s all have a third of a byte per second, then the two that are left have half a byte for 6 s.
    sources, targets = np.array([0, 1, 4, 0, 5, 6]), np.array([3, 3, 3, 2, 2, 2])
    flat = parse_topology("flat", 7, UNIT)
    assert seconds_of(flat, sources, targets, [4, 1, 1, 4, 1, 1]) == pytest.approx(9.0)


@pytest.mark.parametrize("topology", NETWORKS, ids=ids)
def test_equal_messages_end_when_the_busiest_link_is_done(topology: Topology) -> None:
    sources, targets, _ = messages(topology, 50, seed=2)
    ones = np.ones(50)
    busiest = (topology.loads(sources, targets, ones) / topology.capacity).max()
    assert seconds_of(topology, sources, targets, ones) == pytest.approx(busiest)
    if topology in SHARING:
        assert seconds_by_hand(topology, sources, targets, ones) == pytest.approx(busiest)


def test_ring_algorithm_fits_the_ring_network_and_doubling_does_not() -> None:
    machine = Machine("m", 1e-6, 1e-9)
    ring_network = Torus((16,), 1e9, 1e-6)
    flat = parse_topology("flat", 16, machine)
    for name, slower in (("ring", 1.0), ("recursive_doubling", 15 / 4)):
        schedule = schedule_of("all_reduce", name, 16)
        long = 16 * 10**6
        ratio = (
            price(schedule, machine, long, ring_network).seconds
            / price(schedule, machine, long, flat).seconds
        )
        assert ratio == pytest.approx(slower, rel=0.35 if slower > 1 else 1e-6)


def test_busiest_link_of_each_round() -> None:
    """Recursive doubling puts d messages of partners at distance d on a link of a ring; a ring puts one."""
    ring_network = Torus((16,), 1e9)
    doubling = hotspots(schedule_of("all_reduce", "recursive_doubling", 16), ring_network, 1000)
    assert [one.messages for one in doubling] == [1, 2, 4, 8]
    assert [one.nbytes for one in doubling] == [1000, 2000, 4000, 8000]
    around = hotspots(schedule_of("all_reduce", "ring", 16), ring_network, 1600)
    assert {(one.messages, one.nbytes) for one in around} == {(1, 100.0)}
    assert all(one.used == 0.5 for one in around)  # one direction only
    empty = hotspots(schedule_of("barrier", "dissemination", 16), ring_network, 0)
    assert [one.messages for one in empty] == [1, 2, 4, 8]
    assert sum(one.repeat for one in around) == 30 and around[-1].first + around[-1].repeat == 30


def test_flat_topology_prices_like_the_machine() -> None:
    machine = Machine("m", 1e-6, 1e-9, 2e-10)
    for name in ("ring", "recursive_doubling", "rabenseifner", "reduce_broadcast"):
        schedule = schedule_of("all_reduce", name, 12)
        with_links = price(schedule, machine, 12_000, parse_topology("flat", 12, machine)).seconds
        assert with_links == pytest.approx(price(schedule, machine, 12_000, rounds=True).seconds)


def test_nodes_topology_follows_the_machine_levels() -> None:
    machine = Machine("m", 2e-6, 1e-9, ranks_per_node=4, intra=Link(1e-6, 1e-10))
    topology = parse_topology("nodes", 8, machine)
    inside = seconds_of(topology, [0], [1], [1000], machine)
    across = seconds_of(topology, [0], [4], [1000], machine)
    assert inside == pytest.approx(1e-6 + 1e-7) and across == pytest.approx(2e-6 + 1e-6)


@pytest.mark.parametrize(
    ("text", "ranks", "name"),
    [
        ("flat", 5, "flat"),
        ("nodes:4", 8, "nodes of 4"),
        ("nodes:4,rails=2", 8, "nodes of 4"),
        ("ring", 9, "ring 9"),
        ("torus:2x3", 6, "torus 2x3"),
        ("torus:2x3x4,hop=2e-7", 24, "torus 2x3x4"),
        ("fat_tree:leaf=4,over=2", 16, "fat tree 4x4, uplinks 1x2"),
        ("fat-tree:down=4x4,up=1x4", 16, "fat tree 4x4, uplinks 1x4"),
        ("dragonfly:groups=3,routers=2,hosts=2", 12, "dragonfly 3 groups x 2 routers x 2 hosts"),
    ],
)
def test_topologies_from_text(text: str, ranks: int, name: str) -> None:
    topology = parse_topology(text, ranks, Machine.laptop())
    assert (topology.name, topology.ranks) == (name, ranks)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("mesh", "unknown topology 'mesh'"),
        ("torus:3x5", "has 15 ranks, not 16"),
        ("torus:4xb", "sizes with x between"),
        ("torus:4x0", "sizes >= 1"),
        ("nodes", "needs shape="),
        ("nodes:2.5", "whole number"),
        ("fat_tree:leaf=5", "do not fill leaf switches of 5"),
        ("fat_tree:leaf=4,over=0.5", "oversubscription must be 1 (none) or more, got 0.5"),
        ("fat_tree:down=4x4,up=1", "as many up as down"),
        ("flat,speed=2", "unknown topology"),
        ("flat:speed=2", "unknown option 'speed'; known are none"),
        ("fat_tree:laef=4", "did you mean 'leaf'? known are hop, down, up, leaf, over"),
        ("ring:hop=fast", "has to be a number"),
    ],
)
def test_wrong_topologies_give_one_line(text: str, words: str) -> None:
    with pytest.raises(InputError) as error:
        parse_topology(text, 16, Machine.laptop())
    assert words in str(error.value) and "\n" not in str(error.value)
