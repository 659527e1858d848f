"""The nodes of a world: given, or found by real ranks; prices, shared results and algorithms follow them."""

from __future__ import annotations

import numpy as np
import pytest

from spmdsim import LockStep, Mesh, ShapeOnly, Tensor, record
from spmdsim.core.step import Step
from spmdsim.cost import Link, Machine, NodeMap
from spmdsim.errors import InputError
from spmdsim.worlds.agreement.process_state import ProcessPlace, map_nodes
from spmdsim.worlds.trace.last_calls import LastCall, document, table

TWO_LEVELS = Machine("two levels", 1e-5, 8e-8, ranks_per_node=4, intra=Link(1e-6, 2e-9))


def gathered_axes(world: LockStep, mesh: Mesh) -> list[tuple[str, ...]]:
    with record() as trace:
        Tensor.from_global(np.arange(16.0), mesh(("dp", "tp")), world).to(mesh(None))
    return [event.axes for event in trace.collectives if event.axes]


@pytest.mark.parametrize("kind", [LockStep, ShapeOnly])
def test_a_world_takes_all_notations(kind: type) -> None:
    assert kind(4).nodes.count == 1
    for nodes in ("a:2,b:2", [0, 0, 1, 1], 2, NodeMap.of(2, 4)):
        assert kind(4, nodes=nodes).nodes.nodes.tolist() == [0, 0, 1, 1]
    with pytest.raises(InputError, match="nodes must place 4 ranks, got 3"):
        kind(4, nodes="a:2,b")


@pytest.mark.parametrize(
    "hosts, names",
    [("a a a.0", "a.1 a.2 a.0"), ("a.1 a a a", "a.1 a.0 a.2 a.3"), ("b a b a", "b.0 a.0 b.1 a.1")],
)
def test_nodes_of_one_host_get_names_of_their_own(hosts: str, names: str) -> None:
    places = [ProcessPlace("", process, host) for process, host in enumerate(hosts.split())]
    assert map_nodes(places).hosts == tuple(names.split())


def test_plans_follow_the_nodes_of_the_world() -> None:
    mesh = Mesh((2, 2), ("dp", "tp"))
    expected = {"a:2,b:2": [("dp",), ("tp",)], "a,b,a,b": [("tp",), ("dp",)], "a:4": [("dp", "tp")]}
    for nodes, axes in expected.items():
        world = LockStep(4, nodes=nodes)
        world.machine = TWO_LEVELS
        assert gathered_axes(world, mesh) == axes
    plain = LockStep(4)
    plain.machine = TWO_LEVELS
    assert plain.machine is TWO_LEVELS and gathered_axes(plain, mesh) == [("dp", "tp")]


def test_a_machine_with_a_map_of_its_own_keeps_it() -> None:
    world, node_map = LockStep(4, nodes="a:2,b:2"), NodeMap.of("c,d,c,d", 4)
    world.machine = TWO_LEVELS.placed(node_map)
    assert world.machine.nodes == node_map
    world.machine = Machine.laptop()
    assert world.machine == Machine.laptop()


def test_auto_makes_groups_of_the_ranks_of_a_node() -> None:
    mesh = Mesh((12,), ("x",))
    world = LockStep(12, nodes=4)
    world.machine = TWO_LEVELS
    world.use(algorithm="auto")
    # A plan would cut the axis at the nodes, so the one step is run as it is.
    step = Step("all_reduce", ("x",), mesh(None, partial="x"), mesh(None), (12 << 10,), "sum")
    with record() as trace:
        world.run(step, [np.ones(12 << 10) for _ in world.ranks])
    (event,) = [event for event in trace.collectives if event.collective == "all_reduce"]
    assert event.algorithm == "two_level_ring:group=4"


def test_traces_name_the_ranks_of_each_node(tmp_path) -> None:
    mesh = Mesh((4,), ("x",))
    for nodes, line in (("n1:2,n2:2", "nodes: n1: ranks 0, 1; n2: ranks 2, 3"), ("n1:4", ""), (None, "")):
        world = LockStep(4, nodes=nodes)
        with record() as trace:
            Tensor.from_global(np.arange(4.0), mesh("x"), world).to(mesh(None))
        assert line in str(trace) and ("nodes:" in str(trace)) == bool(line)
        trace.save(str(tmp_path / "trace.json"))
        assert ("rank 2, n2" in (tmp_path / "trace.json").read_text()) == bool(line)


def test_last_calls_name_the_ranks_of_each_node() -> None:
    calls = [LastCall(rank, (0, 1, 2), "w", 0, "x", "barrier", "p.py:3", 5, 9) for rank in range(3)]
    several = document(calls, (0, 1, 2), "SIGTERM", 9, {0: "n1", 1: "n2", 2: "n1"})
    lines = table([several]).splitlines()
    assert lines[:2] == ["last calls of ranks 0, 1, 2: SIGTERM", "nodes: n1: ranks 0, 2; n2: rank 1"]
    assert "rank 1, n2" in [event["args"].get("name") for event in several["traceEvents"]]
    one = document(calls, (0, 1, 2), "SIGTERM", 9, dict.fromkeys(range(3), "n1"))
    assert "nodes" not in table([one])


PROGRAM = """
import numpy as np
import spmdsim
from spmdsim import Mesh, Tensor
from spmdsim.cost import Link, Machine

world = spmdsim.world()
world.machine = Machine("two levels", 1e-5, 8e-8, ranks_per_node=4, intra=Link(1e-6, 2e-9))
mesh = Mesh((2, 2), ("dp", "tp"))
x = Tensor.from_global(np.arange(64.0), mesh(("dp", "tp")))
with spmdsim.record() as trace:
    x.to(mesh(None)).full()
axes = [event.axes for event in trace.collectives if event.axes]
if world.rank == 0:
    print("RESULT", world.nodes.nodes.tolist(), len({*world.nodes.hosts}), axes, flush=True)
world.comm.Barrier()
raise RuntimeError("so that the last calls are written")
"""


@pytest.mark.parametrize("per_node", [None, 2, 3])
def test_real_ranks_find_their_nodes(per_node: int | None, launcher, tmp_path) -> None:
    pytest.importorskip("mpi4py")
    from processes import run_python

    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    settings = {} if per_node is None else {"SPMDSIM_RANKS_PER_NODE": str(per_node)}
    record_file = tmp_path / "calls.txt"
    result = run_python("-m", "spmdsim", "launch", "-n", 4, "--record", record_file, script, **settings)
    nodes = [0 if per_node is None else rank // per_node for rank in range(4)]
    line = next((line for line in result.stdout.splitlines() if line.startswith("RESULT")), result.stderr)
    axes = {None: "[('dp', 'tp')]", 2: "[('dp',), ('tp',)]"}.get(per_node, "")
    assert line.startswith(f"RESULT {nodes} {len({*nodes})} {axes}")
    assert ("\nnodes: " in record_file.read_text()) == (per_node is not None)
