"""Topologies from one line of text, for command lines and files.

========================================  =====================================================================
text                                      network
========================================  =====================================================================
``flat``                                  a link into and out of each rank, nothing shared
``nodes:8``, ``nodes:8,rails=2``          nodes of 8 ranks, one (or two) network ports per node
``ring``                                  one ring
``torus:8x8``, ``torus:4x4x4``            2-D or 3-D torus
``fat_tree:leaf=16,over=2``               leaf switches of 16 ranks, 2:1 oversubscribed uplinks
``fat_tree:down=4x4x4,up=1x4x2``          any extended generalised fat tree
``dragonfly:groups=9,routers=4,hosts=2``  groups of fully connected routers
========================================  =====================================================================

``hop=SECONDS`` sets the time per link beyond the first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from spmdsim.cost.machine import Machine
from spmdsim.cost.networks.dragonfly import Dragonfly
from spmdsim.cost.networks.fat_tree import FatTree
from spmdsim.cost.networks.topology import Flat, Nodes, Topology, check_ranks
from spmdsim.cost.networks.torus import Torus
from spmdsim.errors import InputError, unknown
from spmdsim.registry import Registry

#: Seconds per link beyond the first where nothing else is said: a switch of today.
HOP_SECONDS = 1e-7


class Options(dict[str, str]):
    """Values by name, as they were written; a topology takes out what it knows.

    Attributes:
        known: the names that it looked for.
    """

    def __init__(self, pairs: Iterable[Sequence[str]]) -> None:
        super().__init__((key.strip(), value.strip()) for key, value in pairs)
        self.known: dict[str, None] = {}

    def __contains__(self, key: object) -> bool:
        self.known[str(key)] = None
        return super().__contains__(key)

    def take(self, key: str) -> str | None:
        """The value of a name, which is known then; None if it was not written."""
        return self.pop(key) if key in self else None


def parse_topology(text: str, ranks: int, machine: Machine) -> Topology:
    """The topology a text describes, with the bandwidth and latency of a machine.

    Args:
        text: see the table above.
        ranks: number of ranks; the shape has to agree.
        machine: its beta is the time per byte of every link, its alpha the time per message.

    Raises:
        InputError: unknown name or option, or a shape that does not have this many ranks.

    >>> parse_topology("torus:4x4", 16, Machine.laptop()).name
    'torus 4x4'
    """
    name, _, rest = text.partition(":")
    options = _options(rest)
    if name.replace("-", "_") not in TOPOLOGIES:
        raise unknown(f"unknown topology {name!r}", name, TOPOLOGIES, listed="known are")
    topology = TOPOLOGIES[name.replace("-", "_")](options, ranks, machine)
    if options:
        word = next(iter(options))
        raise unknown(
            f"topology {text!r}: unknown option {word!r}", word, options.known or ["none"], listed="known are"
        )
    check_ranks(topology.name, topology.ranks, ranks)
    return topology


def _options(text: str) -> Options:
    """``leaf=16,over=2`` as a dict; a part without ``=`` gets the key ``shape``."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    pairs = (part.split("=", 1) if "=" in part else ["shape", part] for part in parts)
    return Options(pairs)


def _number(options: Options, key: str, default: float | None = None) -> float:
    text = options.take(key)
    if text is None:
        if default is None:
            raise InputError(f"this topology needs {key}=NUMBER")
        return default
    try:
        value = float(text)
    except ValueError:
        raise InputError(f"topology option {key}={text!r} has to be a number") from None
    if not 0 <= value < float("inf"):
        raise InputError(f"topology option {key}={text!r} has to be a number >= 0")
    return value


def _whole(options: Options, key: str, default: int | None = None) -> int:
    value = _number(options, key, default)
    if value != int(value) or value < 1:
        raise InputError(f"topology option {key}={value:g} has to be a whole number >= 1")
    return int(value)


def _shape(options: Options, key: str) -> tuple[int, ...]:
    text = options.take(key) or ""
    try:
        shape = tuple(int(part) for part in text.lower().split("x"))
    except ValueError:
        raise InputError(f"topology shape {text!r} has to be sizes with x between, such as 4x4") from None
    if min(shape) < 1:
        raise InputError(f"topology shape {text!r} has to have sizes >= 1")
    return shape


def _bandwidth(machine: Machine) -> float:
    if machine.beta <= 0:
        raise InputError(f"machine {machine.name!r} has beta 0: links of a topology need a bandwidth")
    return 1 / machine.beta


def _flat(_: Options, ranks: int, machine: Machine) -> Topology:
    return Flat(ranks, _bandwidth(machine), machine.alpha)


def _nodes(options: Options, ranks: int, machine: Machine) -> Topology:
    per_node = _whole(options, "shape", machine.ranks_per_node or None)
    rails = _whole(options, "rails", 1)
    inside = machine.intra
    beta, alpha = (inside.beta, inside.alpha) if inside else (machine.beta, machine.alpha)
    if beta <= 0:
        raise InputError(f"machine {machine.name!r} has beta 0 inside nodes: links need a bandwidth")
    return Nodes(ranks, per_node, _bandwidth(machine), 1 / beta, rails, machine.alpha, alpha)


def _torus(options: Options, ranks: int, machine: Machine) -> Topology:
    shape = _shape(options, "shape") if "shape" in options else (ranks,)
    hop = _number(options, "hop", HOP_SECONDS)
    return Torus(shape, _bandwidth(machine), machine.alpha, hop)


def _fat_tree(options: Options, ranks: int, machine: Machine) -> Topology:
    hop = _number(options, "hop", HOP_SECONDS)
    if "down" in options or "up" in options:
        down, up = _shape(options, "down"), _shape(options, "up")
        return FatTree(down, up, _bandwidth(machine), machine.alpha, hop)
    leaf, over = _whole(options, "leaf", min(16, ranks)), _number(options, "over", 1.0)
    return FatTree.two_level(ranks, leaf, over, _bandwidth(machine), machine.alpha, hop)


def _dragonfly(options: Options, ranks: int, machine: Machine) -> Topology:
    hop = _number(options, "hop", HOP_SECONDS)
    routers, hosts = _whole(options, "routers", 4), _whole(options, "hosts", 2)
    groups = _whole(options, "groups", max(1, ranks // (routers * hosts)))
    return Dragonfly(groups, routers, hosts, _bandwidth(machine), machine.alpha, hop)


#: The networks by name: each is built from its options, the number of ranks and the machine.
TOPOLOGIES: Registry[Callable[[Options, int, Machine], Topology]] = Registry(
    "topology",
    {
        "flat": _flat,
        "nodes": _nodes,
        "ring": _torus,
        "torus": _torus,
        "fat_tree": _fat_tree,
        "dragonfly": _dragonfly,
    },
)
