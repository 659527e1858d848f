"""Counts and prices of a table of pairs, number by number: who plans worse, or counts otherwise, is seen.

Against exhaustive search, linear programmes and brute force these are held in test_bound.py, test_exact.py and test_plan.py,
on samples; here are the pairs that tell small changes of a planner apart. ``python tests/redistribution/test_counts.py``
writes the table anew, for a planner that is better.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from spmdsim.core import Layout, Mesh
from spmdsim.cost.cost_model import CostModel, Restricted
from spmdsim.cost.machine import Link, Machine, Piece
from spmdsim.cost.machine_file import MACHINES
from spmdsim.errors import PlanError
from spmdsim.layout.windowed_layout import Window, Windowed
from spmdsim.redistribution import plan
from spmdsim.redistribution.even_moves import even_move
from spmdsim.redistribution.exchange import direct_reduction
from spmdsim.redistribution.exchange.direct import receives, sends
from spmdsim.redistribution.exchange.even_pieces import even_volume
from spmdsim.redistribution.exchange.exchange_volume import busiest, exchange_volume
from spmdsim.redistribution.exchange.few_ranks import FewVolume
from spmdsim.redistribution.exchange.grid import Ends
from spmdsim.redistribution.exchange.shares import shares
from spmdsim.redistribution.lower_bound import lower_bound
from spmdsim.redistribution.price import (
    Prices,
    least_exchange,
    most_sent,
    price_exchange,
    price_step,
    step_messages,
)
from spmdsim.redistribution.step_counts import sent_nbytes

TABLE = Path(__file__).parents[1] / "vectors" / "redistribution_counts.json"
LAPTOP = Machine.laptop()
#: Machines of all kinds: with links by axis, several pieces, times that fall as sizes grow, and collectives to avoid.
KNOWN: dict[str, CostModel | None] = {
    "bytes": None,
    **{name: MACHINES[name]() for name in MACHINES},
    "links": Machine(
        "links", alpha=2e-6, beta=1e-9, axis_links=(("a", Link(1e-5, 3e-9)), ("b", Link(1e-6, 2e-10)))
    ),
    "pieces": Machine(
        "pieces", alpha=1e-5, beta=1e-9, pieces=(Piece(1000, 1e-6, 3e-9), Piece(5000, 4e-6, 2e-9))
    ),
    "falling": Machine("falling", alpha=1e-6, beta=1e-9, pieces=(Piece(1000, 1e-5, 3e-9),)),
    "no exchange": Restricted(LAPTOP, frozenset({"exchange"})),
    "reductions": Restricted(LAPTOP, frozenset({"all_gather", "exchange", "all_to_all"})),
}


def layout(text: str) -> Layout:
    return eval(text, {"Mesh": Mesh, "Windowed": Windowed, "Window": Window})  # type: ignore[no-any-return]


def digits(seconds: float) -> str:
    return f"{seconds:.9e}"


def ranks_of(src: Layout, dst: Layout) -> list[int]:
    return sorted({*src.mesh.rank_list, *dst.mesh.rank_list})


def reduction(src: str, dst: str, shape: list[int]) -> dict[str, Any]:
    """Who receives and sends how much, from how many, and holds what, where sums are made directly."""
    ends = (layout(src), layout(dst), tuple(shape))
    received, sent = direct_reduction.totals(*ends)
    assert sum(received) == sum(sent) and max(received) == direct_reduction.most_received(*ends)
    bound = lower_bound(*ends)
    assert sum(received) >= bound.total and max(received) >= bound.busiest
    return {
        "received": received,
        "sent": sent,
        "messages": direct_reduction.most_messages(*ends),
        "scratch": [direct_reduction.scratch(*ends, rank) for rank in ranks_of(*ends[:2])],
        "peers": [len(direct_reduction.peers(*ends, rank)) for rank in ranks_of(*ends[:2])],
        "parts": len(direct_reduction.parts(*ends)),
    }


def exchange(src: str, dst: str, shape: list[int], machine: str) -> dict[str, Any]:
    """The traffic of a direct exchange, told by everything that tells it."""
    old, new, sizes, model = layout(src), layout(dst), tuple(shape), KNOWN[machine]
    ends = Ends(old.mesh, old.dims, new.mesh, new.dims, sizes)
    got, given = ([ways(old, new, sizes, rank) for rank in ranks_of(old, new)] for ways in (receives, sends))
    volume, shared, even = exchange_volume(old, new, sizes), shares(ends), even_volume(ends)
    elements = [sum(t.count for t in one if t.peer != r) for r, one in zip(ranks_of(old, new), got)]
    assert max(elements, default=0) == volume.most_received == FewVolume(ends).most_received
    if shared:
        for rank, taken, handed in zip(ranks_of(old, new), got, given):
            assert ([*taken], [*handed]) == ([*shared.receives(rank)], [*shared.sends(rank)])
    counted = (busiest(ends), volume, even, FewVolume(ends))
    prices = Prices(model, *dict.fromkeys((old.mesh, new.mesh)))
    assert least_exchange(ends, 4, prices) <= price_exchange(ends, 4, prices) * (1 + 1e-12)
    bound = lower_bound(old, new, sizes)
    return {
        "received": [[[t.peer, t.count] for t in one] for one in got],
        "sent": [[[t.peer, t.count] for t in one] for one in given],
        "arrays": [array.tolist() for array in (volume.volume, volume.own, volume.received, volume.messages)],
        "busiest": [v and [v.most_received, v.most_messages, digits(v.most_sent)] for v in counted],
        "shares": shared and [shared.most_sent, shared.most_messages],
        "seconds": [digits(told(ends, 4, prices)) for told in (least_exchange, price_exchange)],
        "copying": digits(prices.copying(1000)),
        "bound": [bound.busiest, bound.total, bound.ranks.tolist()],
        "alike": str(even_move(old, new, model, None)) if old.mesh == new.mesh and 0 not in shape else None,
    }


def planned(src: str, dst: str, shape: list[int], machine: str, to_shape: list[int] | None) -> dict[str, Any]:
    """A plan with all its numbers, its rivals', and what its steps cost on every machine."""
    old, new, after = layout(src), layout(dst), to_shape and tuple(to_shape)
    ends, partial = (old, new, tuple(shape), "float32"), bool(new.partial)
    ours = plan(*ends, machine=KNOWN[machine], to_shape=after, partial_target=partial)
    few = max(old.mesh.size, new.mesh.size) < 100
    if few:
        assert sum(ours.nbytes(rank) for rank in ranks_of(old, new)) == ours.total_nbytes
    row = {
        "kind": ours.kind,
        "steps": [str(step) for step in ours.steps],
        "states": [state.short() for state in ours.states],
        "bytes": [ours.max_nbytes, ours.total_nbytes, ours.max_sent_nbytes, ours.peak_nbytes],
        "bound": [ours.max_lower_bound, ours.total_lower_bound, f"{ours.ratio:.6g}"],
        "seconds": digits(ours.seconds),
        "rivals": [
            [c.kind, len(c.steps), digits(c.seconds), c.allowed, c.received, c.held]
            for c in ours.alternatives
        ],
        "counts": [[step_messages(step), most_sent(step)] for step in ours.steps],
        "prices": [
            [[name, *map(digits, price_step(step, 4, model))] for name, model in KNOWN.items()]
            for step in ours.steps
        ],
    }
    if few:
        row["ranks"] = [[ours.nbytes(rank), ours.lower_bound(rank)] for rank in new.mesh.rank_list]
        row["handed"] = [[sent_nbytes(s, rank, 4) for rank in old.mesh.rank_list] for s in ours.steps]
        row["table"] = str(ours).splitlines()
    if to_shape is None:
        roomy = plan(*ends, machine=KNOWN[machine], partial_target=partial, more_memory=True)
        row["roomy"] = [str(step) for step in roomy.steps]
    return row


ROWS = {"reduction": reduction, "exchange": exchange, "plan": planned}


@pytest.mark.parametrize("part", range(8))
def test_numbers_are_those_of_the_table(part: int) -> None:
    table = json.loads(TABLE.read_text(encoding="utf-8"))
    rows = [(kind, *row) for kind, pairs in table.items() for row in pairs]
    assert len(rows) > 60
    for kind, case, numbers in rows[part::8]:
        assert json.loads(json.dumps(ROWS[kind](*case))) == numbers, case


def test_an_exchange_adds_nothing_up() -> None:
    mesh = Mesh((2, 2), ("a", "b"))
    pending, other = mesh(None, partial="a"), mesh("a")
    for ask in (receives, sends):
        for ends in ((pending, other), (other, pending), (pending, mesh(None, partial="b"))):
            with pytest.raises(PlanError):
                ask(*ends, (4,), 0)
    assert [t.count for t in receives(pending, mesh("b", partial="a"), (4,), 1)] == [2]


if __name__ == "__main__":
    known = json.loads(TABLE.read_text(encoding="utf-8"))
    lines = [
        f'"{kind}": [\n'
        + ",\n".join(json.dumps([case, ROWS[kind](*case)], separators=(",", ":")) for case, _ in pairs)
        + "\n]"
        for kind, pairs in known.items()
    ]
    TABLE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
