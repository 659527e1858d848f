"""Collectives that are begun early: the same numbers, bytes and agreement, and when they began and ended."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
from processes import run_python

import spmdsim.ops as ops
from spmdsim import Mesh, Tensor, nn, record
from spmdsim.core import Layout
from spmdsim.core.step import Step
from spmdsim.nn import gradients as together
from spmdsim.worlds import ShapeOnly
from spmdsim.worlds.trace.perfetto import timeline

WIDTH, LAYERS = 16, 5


@pytest.fixture(autouse=True)
def small_buckets(monkeypatch):
    """Two weights fill one."""
    monkeypatch.setattr(together, "BUCKET_BYTES", 2 * 8 * WIDTH * WIDTH)


def trained(world, overlap, grid, split, state):
    """Two steps: the trace of the last, and the bits of all parameters."""
    world.overlap = overlap
    mesh = Mesh(grid, ("dp", "tp"))
    layers = [nn.Linear(WIDTH, WIDTH, mesh(None, None), dtype=np.float64) for _ in range(LAYERS)]
    model = nn.Sequential(*layers).materialise(world)
    optimiser = nn.Adam(model.parameters(), 0.01, state_layout=state)
    for step in range(2):
        with record() as trace:
            optimiser.zero_grad()
            x = Tensor.from_global(
                np.random.default_rng(step).normal(size=(16, WIDTH)), mesh(split, None), world
            )
            nn.backward(ops.sum(ops.square(model(x))))
            optimiser.step()
    world.overlap = None
    assert world.call_provenance == 0  # what comes next is about something else
    return trace, [p.value.full().tobytes() for p in model.parameters()] if world.has_data else []


GRIDS = {"line": ((-1, 1), "dp"), "copies": ((-1, 2), "dp"), "pending": ((-1, 2), ("dp", "tp"))}


@pytest.mark.ranks(2, 4)
@pytest.mark.parametrize("zero", [False, True], ids=["whole", "zero"])
@pytest.mark.parametrize("case", GRIDS)
def test_no_bit_depends_on_when_collectives_begin(world, case, zero):
    (_, second), split = GRIDS[case]
    grid, state = (world.size // second, second), nn.sharded_over("dp") if zero else None
    waiting, expected = trained(world, False, grid, split, state)
    early, results = trained(world, True, grid, split, state)
    assert results == expected
    assert early.counts() == waiting.counts() and early.nbytes() == waiting.nbytes()
    assert early.sent() == waiting.sent()
    assert not [e for e in waiting.collectives if e.exposed is not None]
    begun = [e for e in early.collectives if e.exposed is not None]
    communicates = grid[0] > 1 or "tp" in split
    assert {e.operator for e in begun} == (
        {"gradients", *["parameters"] * (zero and grid[0] > 1)} if communicates else set()
    )
    shapes, _ = trained(ShapeOnly(world.size), True, grid, split, state)
    moving = [[e.key for e in trace.collectives if e.collective != "slice"] for trace in (early, shapes)]
    assert moving[0] == moving[1]


@pytest.mark.ranks(2)
def test_a_full_bucket_is_under_way_while_the_rest_is_computed(world):
    trace, _ = trained(world, True, (2, 1), "dp", nn.sharded_over("dp"))
    spans = sorted((s.start, s.name) for s in trace.spans if s.gradients)
    scattered = [e for e in trace.collectives if e.collective == "reduce_scatter"]
    assert len(scattered) == 3, "two buckets of two layers, and the rest"
    assert [e.start for e in scattered] == sorted(e.start for e in scattered)
    products = [start for start, name in spans if name == "matmul.backward"]
    assert products[1] < scattered[0].start < products[2], "the third layer's gradients are not awaited"
    assert scattered[0].start + scattered[0].seconds > products[-1]
    assert (
        all(0 <= e.spent <= e.seconds for e in scattered)
        and trace.seconds < sum(e.seconds for e in trace.collectives) + 1e-9
    )
    gathered = [e for e in trace.collectives if e.operator == "parameters" and e.collective == "all_gather"]
    assert len(gathered) == 3
    slices = [
        s for s in json.loads(json.dumps(timeline([trace])))["traceEvents"] if s.get("cat") == "collective"
    ]
    lines: dict = {}
    for one in slices:
        lines.setdefault((one["pid"], one["tid"]), []).append((one["ts"], one["ts"] + one["dur"]))
    assert {one["tid"] for one in slices if "waited us" in one["args"]} >= {1, 2}
    for spans in lines.values():
        spans.sort()
        assert all(before[1] <= after[0] for before, after in itertools.pairwise(spans))


@pytest.mark.ranks(2, 4)
@pytest.mark.parametrize("dtype", ["f4", "i8", "c16"])
@pytest.mark.parametrize("collective", ["all_gather", "all_reduce", "reduce_scatter"])
def test_a_step_that_is_posted_gives_what_it_gives_at_once(world, collective, dtype):
    mesh = Mesh((world.size,), ("x",), ranks=[*range(world.size)][::-1])
    flat, pieces = Layout(mesh, (None,)), Layout(mesh, ("x",))
    pending = Layout(mesh, (None,), ["x"])
    source, target = {
        "all_gather": (pieces, flat), "all_reduce": (pending, flat), "reduce_scatter": (pending, pieces),
    }[collective]  # fmt: skip
    step = Step(
        collective,
        ("x",),
        source,
        target,
        (37 if collective == "all_reduce" else 8 * world.size,),
        source.reduce_op,
    )
    shards = [
        np.random.default_rng(rank).normal(size=source.local_shape(step.shape, rank)).astype(dtype)
        for rank in world.ranks
    ]
    expected = world.run(step, shards)
    with record() as trace:
        posted = [world.post(step, shards) for _ in range(3)]
        for one in posted:
            one.advance()
        answers = [one.wait() for one in reversed(posted)]
    for results in answers:
        for one, other in zip(results, expected, strict=True):
            assert one.dtype == other.dtype and one.tobytes() == other.tobytes()
    assert trace.counts() == {collective: 3}


PROGRAM = """
import sys, time
import numpy as np
from spmdsim import Mesh, MPIWorld, Tensor, nn, ops
from spmdsim.nn import gradients as together
together.BUCKET_BYTES = 2000
what, world = sys.argv[1], MPIWorld()
mesh = Mesh((world.size,), ("dp",))
assert world.overlaps(mesh) == (what == "nodes")
if what != "nodes":
    world.overlap = not (what == "mixed" and world.rank)
model = nn.Sequential(*[nn.Linear(16, 16, mesh(None, None), dtype=np.float64) for _ in range(6)]).materialise(world)
optimiser = nn.Adam(model.parameters(), 0.01, state_layout=nn.sharded_over("dp"))
x = Tensor.from_global(np.ones((16, 16)), mesh("dp", None), world)
for step in range(3):
    loss = ops.sum(ops.square(model(x)))
    if step == 2 and world.rank:
        model.parameters()[5].value.layout  # nobody else looks here
        if what == "late":
            time.sleep(60)
    nn.backward(loss)
    optimiser.step()
print("done")
"""


@pytest.mark.usefixtures("launcher")
@pytest.mark.parametrize(
    ("what", "nodes", "said"),
    [
        ("nodes", {"SPMDSIM_RANKS_PER_NODE": "1"}, "done"),
        ("mixed", {}, "in its algorithm; rank 0: reduce_scatter (sum) over dp by calls that do not wait"),
        ("late", {}, "rank 1 did not come within 2 s to call"),
    ],
)
def test_agreement_and_deadlines_hold(tmp_path, what, nodes, said):
    """And a program may end with parameters under way, and only one rank may look at some."""
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    result = run_python("-m", "spmdsim", "launch", "-n", 2, script, what, SPMDSIM_DEADLINE="2", **nodes)
    assert said in result.stdout + result.stderr
    assert (result.returncode == 0) == (what == "nodes")
