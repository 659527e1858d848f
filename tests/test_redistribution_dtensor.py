"""DTensor's default planner, against its published runs."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from spmdsim.errors import PlanError
from spmdsim.layout import Layout, Mesh, Partial, Replicate, Shard
from spmdsim.redistribution import plan
from spmdsim.redistribution.dtensor import DTensorPlan, greedy_steps

PEERS = json.loads((Path(__file__).parent / "vectors/redistribution_peers.json").read_text())


def layouts(vector: dict) -> tuple[Layout, Layout]:
    mesh = Mesh(vector["mesh"], [f"d{k}" for k in range(len(vector["mesh"]))])
    made = []
    for side in ("src", "dst"):
        found = [{"R": Replicate(), "P": Partial()}.get(t) or Shard(int(t[1:])) for t in vector[side]]
        made.append(Layout.from_placements(mesh, found, len(vector["shape"])))
    return made[0], made[1]


def test_states_collectives_and_volumes_agree() -> None:
    checked = 0
    for vector in PEERS["redistribute_runs"]["vectors"]:
        wanted = vector.get("dtensor_greedy")
        if not wanted:
            continue
        found = DTensorPlan(*layouts(vector), tuple(vector["shape"]), 1, None)
        assert found.trace == wanted["trace"]
        assert found.received == pytest.approx(wanted["recv"], abs=6e-3)
        names = Counter(step.collective for step in found.steps)
        del names["slice"]
        assert dict(names) == wanted["comms"]
        checked += 1
    assert checked > 200


def test_it_is_shown_beside_ours() -> None:
    mesh = Mesh((2, 2, 2), ("a", "b", "c"))
    found = plan(mesh("c", None), mesh(None, ("a", "b", "c")), (64, 64), "int8", style="dtensor")
    assert found.nbytes == 2048 and found.ours.max_nbytes == 256
    assert "8 times less" in str(found)
    assert json.loads(json.dumps(found.to_dict()))["trace"] == found.trace


def test_what_it_refuses() -> None:
    mesh, other = Mesh((2, 2), ("a", "b")), Mesh((4,), ("x",))
    with pytest.raises(PlanError, match="one mesh only"):
        plan(mesh("a"), other("x"), (4,), style="dtensor")
    with pytest.raises(PlanError, match="order of axes"):
        plan(mesh(("b", "a")), mesh("a"), (4,), style="dtensor")
    with pytest.raises(PlanError, match="does not turn"):
        greedy_steps([Replicate()], [Partial()])
