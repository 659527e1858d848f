"""Planner, search and prediction give one price for one call."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from spmdsim.auto_parallel.costs.move_prices import MovePrices
from spmdsim.auto_parallel.costs.search_settings import Settings
from spmdsim.core import Layout, Mesh
from spmdsim.cost import Link, Machine, NodeMap, predict
from spmdsim.redistribution import plan
from spmdsim.redistribution.plans.merge import Merge
from spmdsim.redistribution.price import price_step

PAIRS = Machine("pairs", 1e-5, 1e-8, 1e-9, ranks_per_node=2, intra=Link(1e-6, 1e-9))
MACHINES = (
    *(Machine.laptop(), Machine.cluster(), Machine.accelerators(), Machine("slow", 3e-4, 2e-8, 1e-9), PAIRS),
    replace(PAIRS, name="round-robin", nodes=NodeMap([rank % 3 for rank in range(40)])),
)


def calls(mesh: Mesh) -> dict[str, tuple[Layout, Layout]]:
    """Yield layouts between which one collective alone leads, with the tensor cut over all ranks."""
    pending = [("x", "sum")]
    return {
        "all_reduce": (mesh(None, partial=pending), mesh(None)),
        "reduce_scatter": (mesh(None, partial=pending), mesh("x")),
        "all_gather": (mesh("x"), mesh(None)),
    }


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)
def test_plan_search_and_prediction_price_a_call_alike(machine: Machine) -> None:
    chance, alone = random.Random(machine.name), 0
    moves = MovePrices(Settings(machine=machine))
    for _ in range(40):
        n = chance.choice((2, 3, 4, 5, 6, 7, 8, 12, 16, 40))
        count = chance.randrange(1, 10 ** chance.randrange(1, 8))
        mesh = Mesh((n,), ("x",))
        for collective, (src, dst) in calls(mesh).items():
            planned = plan(src, dst, (count,), "float32", machine)
            (point,) = predict(collective, machine, [n], [4 * count], ["ring"], itemsize=4).points
            assert moves.seconds(src, dst, (count,), 4) == pytest.approx(planned.seconds, rel=1e-9)
            if [step.collective for step in planned.steps] == [collective]:
                alone += 1
                assert point.plans == pytest.approx(planned.seconds, rel=1e-9)
                assert price_step(planned.steps[0], 4, machine)[1] == pytest.approx(point.plans, rel=1e-9)
            else:
                assert planned.seconds <= point.plans * (1 + 1e-9)
            if count % n == 0 and collective != "all_gather":
                merge = Merge(collective, mesh, ("x",), "sum", 0 if collective == "reduce_scatter" else None)
                assert moves.message_seconds(merge, 4 * count) == pytest.approx(point.plans, rel=1e-9)
    assert alone > 40


def test_what_goes_from_node_to_node_is_priced_so_however_few_ranks_take_part() -> None:
    machine = Machine("nodes", alpha=1.0, beta=1e-3, ranks_per_node=8, intra=Link(1e-3, 1e-6))

    def seconds(senders: tuple[int, ...], receivers: tuple[int, ...]) -> float:
        src, dst = (Layout(Mesh((2,), ("x",), ranks), ("x",)) for ranks in (senders, receivers))
        return plan(src, dst, (64,), "float32", machine).seconds

    near, far = 1e-3 + 128 * 1e-6, 1.0 + 2 * 128 * 1e-3  # two ranks share the port of their node
    assert seconds((0, 1), (2, 3)) == pytest.approx(near)
    assert seconds((8, 9), (14, 15)) == pytest.approx(near)
    assert seconds((0, 1), (8, 9)) == pytest.approx(far)
    assert seconds((6, 7), (8, 9)) == pytest.approx(far)
