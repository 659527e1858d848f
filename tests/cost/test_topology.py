"""Networks: routes are connected, loads add up, and messages share links max-min fairly."""

from __future__ import annotations

import numpy as np
import pytest

from spmdsim.collectives import schedule_of
from spmdsim.cost import Link, Machine, NodeMap, Topology, parse_topology, price
from spmdsim.cost.link_load import hotspots
from spmdsim.cost.topologies import Dragonfly, FatTree, Torus
from spmdsim.cost.topology import (
    Flat,
    Nodes,
    Routes,
    TopologyPlace,
    drain_seconds,
    max_min_rates,
    round_seconds,
)
from spmdsim.errors import InputError

NETWORKS: list[Topology] = [
    Flat(7, 1.0),
    Nodes(NodeMap.consecutive(12, 4), 1.0, 2.0),
    Nodes(NodeMap.consecutive(10, 4), 1.0, 2.0, rails=2),
    Nodes(NodeMap.of("a,b,b,a,c,a", 6), 1.0, 2.0),
    Torus((2,), 1.0),
    Torus((7,), 1.0),
    Torus((4, 6), 1.0),
    Torus((3, 4, 5), 1.0),
    Torus((2, 2, 3), 1.0),
    Torus((1, 5), 1.0),
    FatTree((4, 4), (1, 2), 1.0),
    FatTree((2, 3, 4), (1, 2, 3), 1.0),
    Dragonfly(9, 4, 2, 1.0),
    Dragonfly(4, 2, 3, 1.0),
    Dragonfly(1, 4, 2, 1.0),
]


def ids(topology: Topology) -> str:
    return topology.name


def messages(topology: Topology, count: int = 200, seed: int = 0):
    rng = np.random.default_rng(seed)
    return rng.integers(0, topology.ranks, count), rng.integers(0, topology.ranks, count), rng.random(count)


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
    tree = FatTree((2, 3, 4), (1, 2, 3), 1.0)
    pairs = np.array([(0, 1), (0, 2), (0, 5), (0, 6), (23, 0)])
    assert tree.hops(pairs[:, 0], pairs[:, 1]).tolist() == [2, 4, 4, 6, 6]


def test_oversubscription_halves_the_bandwidth_between_leaves() -> None:
    """The 8 messages from one leaf to the other share 4 uplinks."""
    for over, expected in ((1.0, 1.0), (2.0, 2.0), (4.0, 4.0), (8.0, 8.0)):
        tree = FatTree.two_level(16, 8, over, bandwidth=1.0)
        sources, targets = np.arange(8), np.arange(8, 16)
        assert round_seconds(tree, sources, targets, np.ones(8)) == pytest.approx(expected)


def test_dragonfly_uses_one_global_link_per_pair_of_groups() -> None:
    network = Dragonfly(5, 2, 2, 1.0)
    sources, targets = np.arange(4), np.arange(4, 8)
    assert round_seconds(network, sources, targets, np.ones(4)) == pytest.approx(4.0)
    # Spread over four other groups the global links do not limit: the link to a gateway does.
    assert round_seconds(network, sources, np.array([4, 8, 12, 16]), np.ones(4)) < 4.0


@pytest.mark.parametrize(("groups", "routers"), [(9, 4), (5, 2), (7, 3), (3, 4)])
def test_dragonfly_spreads_its_global_links_over_the_routers(groups: int, routers: int) -> None:
    network = Dragonfly(groups, routers, 1, 1.0)
    for group in range(groups):
        others = np.array([other for other in range(groups) if other != group])
        gateways = network._gateway(np.full_like(others, group), others)
        assert gateways.min() >= 0 and gateways.max() < routers
        assert np.bincount(gateways).max() <= -(-(groups - 1) // routers)


def test_nodes_share_their_ports() -> None:
    sources, targets = np.arange(4), np.arange(4, 8)
    one = Nodes(NodeMap.consecutive(8, 4), 1.0, 10.0, 1, 0.5, 0.25)
    assert round_seconds(one, sources, targets, np.ones(4)) == pytest.approx(4 + 0.5)
    two = Nodes(NodeMap.consecutive(8, 4), 1.0, 10.0, 2, 0.5, 0.25)
    assert round_seconds(two, sources, targets, np.ones(4)) == pytest.approx(2 + 0.5)
    inside = round_seconds(one, np.array([0, 1]), np.array([1, 0]), np.ones(2))
    assert inside == pytest.approx(0.1 + 0.25)


@pytest.mark.parametrize("topology", NETWORKS, ids=ids)
def test_rates_are_max_min_fair(topology: Topology) -> None:
    """A message has a full link on which it is among the fastest, and links are not overloaded."""
    sources, targets, _ = messages(topology, 80, seed=1)
    routes = topology.routes(sources, targets)
    rates = max_min_rates(routes, topology.capacity)
    used = np.bincount(routes.links, rates[routes.messages], minlength=len(topology.capacity))
    assert (used <= topology.capacity * (1 + 1e-9)).all()
    for message in range(len(sources)):
        own_rate = routes.links[routes.messages == message]
        if not len(own_rate):
            assert np.isinf(rates[message])
            continue
        bottleneck = False
        for link in own_rate:
            others = rates[routes.messages[routes.links == link]]
            full = used[link] >= topology.capacity[link] * (1 - 1e-9)
            bottleneck |= bool(full and rates[message] >= others.max() * (1 - 1e-9))
        assert bottleneck, message


def test_sharing_by_hand() -> None:
    # Three messages: a and b share link 0 (capacity 10), b and c share link 1 (capacity 4).
    routes = Routes(np.array([0, 1, 1, 2]), np.array([0, 0, 1, 1]), 3)
    np.testing.assert_allclose(max_min_rates(routes, np.array([10.0, 4.0])), [8, 2, 2])
    # When c (2 bytes) is done after 1 s, b goes on with 4 bytes/s and a with 6.
    done = drain_seconds(routes, np.array([10.0, 4.0]), np.array([14.0, 6.0, 2.0]))
    np.testing.assert_allclose(done, [2.0, 2.0, 1.0])


@pytest.mark.parametrize("topology", NETWORKS, ids=ids)
def test_equal_messages_end_when_the_busiest_link_is_done(topology: Topology) -> None:
    sources, targets, _ = messages(topology, 50, seed=2)
    ones = np.ones(50)
    simulated = drain_seconds(topology.routes(sources, targets), topology.capacity, ones).max()
    busiest = (topology.loads(sources, targets, ones) / topology.capacity).max()
    assert simulated == pytest.approx(busiest)
    assert round_seconds(topology, sources, targets, ones) == pytest.approx(busiest)


def test_bytes_are_never_delivered_faster_than_links_allow() -> None:
    topology = Torus((4, 4), 1.0)
    sources, targets, sizes = messages(topology, 60, seed=3)
    done = drain_seconds(topology.routes(sources, targets), topology.capacity, sizes)
    busiest = (topology.loads(sources, targets, sizes) / topology.capacity).max()
    assert done.max() >= busiest - 1e-9


def test_ring_algorithm_fits_the_ring_network_and_doubling_does_not() -> None:
    machine = Machine("m", 1e-6, 1e-9)
    ring_network = Torus((16,), 1e9, 1e-6)
    flat = Flat(16, 1e9, 1e-6)
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
        with_links = price(schedule, machine, 12_000, Flat(12, 1e9, 1e-6)).seconds
        assert with_links == pytest.approx(price(schedule, machine, 12_000, rounds=True).seconds)


def test_nodes_topology_follows_the_machine_levels() -> None:
    machine = Machine("m", 2e-6, 1e-9, ranks_per_node=4, intra=Link(1e-6, 1e-10))
    topology = parse_topology("nodes", 8, machine)
    inside = round_seconds(topology, np.array([0]), np.array([1]), np.array([1000.0]))
    across = round_seconds(topology, np.array([0]), np.array([4]), np.array([1000.0]))
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
