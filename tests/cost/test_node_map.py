"""A node map reads every notation of nodes and refuses wrong ones."""

import numpy as np
import pytest

from spmdsim.cost import NodeMap
from spmdsim.errors import InputError, UsageTypeError


@pytest.mark.parametrize(
    ("nodes", "expected", "ranks_per_node"),
    [
        (2, [0, 0, 1, 1, 2], 2),
        ("a:2,b:2,c", [0, 0, 1, 1, 2], 2),
        ("a:3,b:2", [0, 0, 0, 1, 1], 3),
        ("a:2,b:3", [0, 0, 1, 1, 1], 0),
        ("a,b,a,b,a", [0, 1, 0, 1, 0], 0),
        ([7, 3, 7, 3, 5], [0, 1, 0, 1, 2], 0),
        (np.array([1, 1, 1, 1, 1]), [0, 0, 0, 0, 0], 5),
        (9, [0, 0, 0, 0, 0], 5),
    ],
)
def test_every_notation_defines_the_node_of_each_rank(nodes, expected, ranks_per_node):
    node_map = NodeMap.of(nodes, 5)
    assert node_map.nodes.tolist() == expected
    assert node_map.ranks_per_node == ranks_per_node
    assert [rank for node in range(node_map.count) for rank in node_map.ranks_of(node)] == sorted(
        range(5), key=lambda rank: (expected[rank], rank)
    )
    assert node_map.sizes.tolist() == [expected.count(node) for node in range(node_map.count)]
    assert NodeMap.of(node_map, 5) is node_map


def test_equal_maps_are_equal_and_have_equal_hashes():
    assert NodeMap.of("x:2,y:2", 4) == NodeMap(["x", "x", "y", "y"])
    assert hash(NodeMap.of("x:2,y:2", 4)) == hash(NodeMap(["x", "x", "y", "y"]))
    assert NodeMap.of("x:2,y:2", 4) != NodeMap.of("x,y,x,y", 4)
    assert NodeMap.of("x:2,y:2", 4) != NodeMap.of(2, 4), "other hosts are another map"


def test_text_names_hosts_and_ranks():
    assert str(NodeMap.of("a:4,b,c:2", 7)) == "a: ranks 0-3; b: rank 4; c: ranks 5, 6"
    assert NodeMap.of("a:4,b", 5).host_of(4) == "b"


@pytest.mark.parametrize(
    ("nodes", "error", "text"),
    [
        ("a:2,b:2", InputError, "nodes must place 5 ranks, got 4"),
        (0, InputError, "ranks per node must be 1 or more, got 5 and 0"),
        ("a:0,b", InputError, "nodes must be hosts"),
        ("", InputError, "nodes must be hosts"),
        ([], InputError, "one label per rank"),
        (2.5, UsageTypeError, "nodes must be a number of ranks per node"),
        (True, UsageTypeError, "nodes must be a number of ranks per node"),
    ],
)
def test_a_wrong_map_is_refused(nodes, error, text):
    with pytest.raises(error, match=text):
        NodeMap.of(nodes, 5)
