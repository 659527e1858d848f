"""Collectives that start early return equal numbers with equal bytes, and traces show when they ran."""

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
    """Set the size of a bucket of gradients to two weights."""
    monkeypatch.setattr(together, "BUCKET_BYTES", 2 * 8 * WIDTH * WIDTH)


def train_two_steps(world, overlap, grid, split, state):
    """Train two steps; return the last step's trace and the bits of all parameters.

    Args:
        world: The world; one without data has no bits, so that the list is empty.
        overlap: Whether collectives start early.
        grid: The sizes of the axes dp and tp.
        split: The axes that split the batch.
        state: The layout function of the optimiser's state, or None.
    """
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
    assert world.call_provenance == 0  # Later calls have no provenance of the update.
    return trace, [p.value.full().tobytes() for p in model.parameters()] if world.has_data else []


GRIDS = {"line": ((-1, 1), "dp"), "copies": ((-1, 2), "dp"), "pending": ((-1, 2), ("dp", "tp"))}


@pytest.mark.ranks(2, 4)
@pytest.mark.parametrize("zero", [False, True], ids=["whole", "zero"])
@pytest.mark.parametrize("case", GRIDS)
def test_early_collectives_change_no_bit(world, case, zero):
    (_, second), split = GRIDS[case]
    grid, state = (world.size // second, second), nn.sharded_over("dp") if zero else None
    waiting, expected = train_two_steps(world, False, grid, split, state)
    early, results = train_two_steps(world, True, grid, split, state)
    assert results == expected
    assert early.counts() == waiting.counts() and early.nbytes() == waiting.nbytes()
    assert early.sent() == waiting.sent()
    assert not [e for e in waiting.collectives if e.exposed is not None]
    early_collectives = [e for e in early.collectives if e.exposed is not None]
    communicates = grid[0] > 1 or "tp" in split
    assert {e.operator for e in early_collectives} == (
        {"gradients", *["parameters"] * (zero and grid[0] > 1)} if communicates else set()
    )
    shapes, _ = train_two_steps(ShapeOnly(world.size), True, grid, split, state)
    moving = [[e.key for e in trace.collectives if e.collective != "slice"] for trace in (early, shapes)]
    assert moving[0] == moving[1]


@pytest.mark.ranks(2)
def test_a_full_bucket_is_reduced_while_other_gradients_are_computed(world):
    trace, _ = train_two_steps(world, True, (2, 1), "dp", nn.sharded_over("dp"))
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
    for event in slices:
        lines.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))
    assert {event["tid"] for event in slices if "waited us" in event["args"]} >= {1, 2}
    for spans in lines.values():
        spans.sort()
        assert all(before[1] <= after[0] for before, after in itertools.pairwise(spans))


@pytest.mark.ranks(2, 4)
@pytest.mark.parametrize("dtype", ["f4", "i8", "c16"])
@pytest.mark.parametrize("collective", ["all_gather", "all_reduce", "reduce_scatter"])
def test_a_posted_step_returns_the_results_of_a_blocking_step(world, collective, dtype):
    mesh = Mesh((world.size,), ("x",), ranks=[*range(world.size)][::-1])
    flat, split = Layout(mesh, (None,)), Layout(mesh, ("x",))
    pending = Layout(mesh, (None,), ["x"])
    source, target = {
        "all_gather": (split, flat), "all_reduce": (pending, flat), "reduce_scatter": (pending, split),
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
        all_results = [one.wait() for one in reversed(posted)]
    for results in all_results:
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
        model.parameters()[5].value.layout  # Only this rank reads the parameter.
        if what == "late":
            time.sleep(60)
    nn.backward(loss)
    optimiser.step()
print("done")
"""


@pytest.mark.usefixtures("launcher")
@pytest.mark.parametrize(
    ("case", "settings", "message"),
    [
        ("nodes", {"SPMDSIM_RANKS_PER_NODE": "1"}, "done"),
        ("mixed", {}, "in its algorithm; rank 0: reduce_scatter (sum) over dp by calls that do not wait"),
        ("late", {}, "rank 1 did not come within 2 s to call"),
    ],
)
def test_agreement_and_deadlines_hold_with_early_collectives(tmp_path, case, settings, message):
    """Ranks that differ or come late are reported; a program may end with parameters under way.

    In the case "nodes" only rank 1 reads one of the parameters.
    """
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    result = run_python("-m", "spmdsim", "launch", "-n", 2, script, case, SPMDSIM_DEADLINE="2", **settings)
    assert message in result.stdout + result.stderr
    assert (result.returncode == 0) == (case == "nodes")
