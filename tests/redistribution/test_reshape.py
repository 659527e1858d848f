"""A reshape between layouts gives every rank its elements and moves only missing ones."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from every_layout import every_layout

from scripts import redistribution_proof as proof
from spmdsim import record
from spmdsim.core import Layout, Mesh
from spmdsim.cost import Machine
from spmdsim.redistribution import plan
from spmdsim.redistribution.exchange.flat import FlatExchange, flat_receives, flat_sends
from spmdsim.redistribution.step_counts import sent_nbytes
from spmdsim.worlds import LockStep

MESHES = [
    Mesh((2, 2, 2), ("a", "b", "c")),
    Mesh((8,), ("x",)),
    Mesh((4, 2), ("p", "q")),
    Mesh((2, 3), ("u", "v")),
    Mesh((2, 2), ("s", "t"), ranks=[7, 3, 0, 4]),
]
SHAPES = [
    ((8, 8), (64,)),
    ((8, 8), (4, 16)),
    ((4, 3), (3, 4)),
    ((16,), (2, 2, 4)),
    ((2, 6, 4, 8), (2, 6, 32)),
    ((5, 8), (5, 2, 4)),
    ((7, 8), (7, 4, 2)),
    ((6, 4), (2, 3, 4)),
    ((1, 8, 8), (8, 8, 1)),
    ((0, 4), (4, 0)),
    ((), (1,)),
    ((9, 5), (5, 9)),
]


@pytest.mark.parametrize("seed", range(4))
def test_random_reshapes_return_every_element(seed: int) -> None:
    choose = random.Random(seed)
    world = LockStep(8)
    moved = 0
    for number in range(60):
        shape, to_shape = choose.choice(SHAPES)
        if choose.random() < 0.5:
            shape, to_shape = to_shape, shape
        before = choose.choice(MESHES)
        after = before if choose.random() < 0.6 else choose.choice(MESHES)
        src = choose.choice(every_layout(before, len(shape), partial=choose.random() < 0.3))
        dst = choose.choice(every_layout(after, len(to_shape)))
        moved += check(world, src, dst, shape, to_shape, number)
    assert moved > 10


def check(world: LockStep, src: Layout, dst: Layout, shape: tuple, to_shape: tuple, number: int) -> bool:
    """Run a reshape; check data, bytes and bound; return True if the plan moves data."""
    terms, total = proof.contributions(src, shape, number)
    nothing = np.zeros((0,) * len(shape), np.int64)
    shards = [
        terms[proof.contribution(src, r)][src.slices(shape, r)] if r in src.mesh else nothing
        for r in range(world.size)
    ]
    route = plan(src, dst, shape, np.int64, to_shape=to_shape)
    with record() as trace:
        after = proof.run(world, route, shards)
    target = total.reshape(to_shape)
    for rank in dst.mesh.rank_list:
        wanted = target[dst.slices(to_shape, rank)]
        assert after[rank].shape == wanted.shape and np.array_equal(after[rank], wanted), (src, dst, shape)
    counted = np.zeros(world.size, np.int64)
    for event in trace.events:
        counted += np.array(event.nbytes)
    assert counted.tolist() == [route.nbytes(rank) for rank in range(world.size)]
    if not src.partial:
        assert route.max_nbytes == route.max_lower_bound
        numbers = np.arange(math.prod(shape))
        for rank in dst.mesh.rank_list:
            have = numbers.reshape(shape)[src.slices(shape, rank)] if rank in src.mesh else numbers[:0]
            need = numbers.reshape(to_shape)[dst.slices(to_shape, rank)]
            assert route.lower_bound(rank) == 8 * len({*need.flat} - {*have.flat})
    return bool(route.max_nbytes)


def test_reshapes_of_whole_blocks_move_nothing() -> None:
    mesh = MESHES[0]
    for src, shape, dst, to_shape in [
        (mesh(("a", "b"), "c"), (8, 8), mesh("a", "b", "c"), (2, 4, 8)),
        (mesh("a", "b"), (8, 8), mesh("a", None, "b", None), (4, 2, 4, 2)),
        (mesh(("a", "b", "c"), None), (8, 3), mesh(("a", "b", "c")), (24,)),
    ]:
        route = plan(src, dst, shape, to_shape=to_shape)
        assert [step.collective for step in route.steps] == ["reshape"]


def test_uneven_cuts_have_no_finer_form() -> None:
    mesh = Mesh((2,), ("x",))
    even = plan(mesh("x", None), mesh("x", None), (4, 6), "int8", to_shape=(2, 12))
    assert [step.collective for step in even.steps] == ["reshape"]
    route = plan(mesh("x", None), mesh("x", None), (4, 3), "int8", to_shape=(3, 4))
    assert [step.collective for step in route.steps] == ["exchange"]
    assert [route.nbytes(rank) for rank in range(2)] == [2, 0]


def test_sent_elements_equal_received_elements() -> None:
    mesh, other = Mesh((2, 2), ("a", "b")), Mesh((3,), ("x",))
    src, dst = mesh("a", None), other(None, "x")
    incoming = [
        (t.peer, rank, t.source.tolist())
        for rank in range(4)
        for t in flat_receives(src, dst, (4, 3), (2, 6), rank)
    ]
    outgoing = [
        (rank, peer, at.tolist())
        for rank in range(4)
        for peer, at in flat_sends(src, dst, (4, 3), (2, 6), rank)
    ]
    assert sorted(incoming) == sorted(outgoing)
    step = FlatExchange("exchange", (), src, dst, (4, 3), to_shape=(2, 6))
    for rank in range(4):
        sent = sum(len(places) for peer, to, places in incoming if peer == rank != to)
        assert sent_nbytes(step, rank, 8) == 8 * sent


@pytest.mark.parametrize("target", [Mesh((8,), ("x",))(None, None), Mesh((8,), ("x",))("x", None)])
def test_a_reshaping_exchange_costs_the_bytes_of_its_busiest_sender(target: Layout) -> None:
    source = Mesh((2,), ("a",))("a", None)
    exchange = plan(source, target, (9, 5), to_shape=(5, 9), machine=Machine("one second per byte", 0.0, 1.0))
    sent = [
        sum(len(places) for peer, places in flat_sends(source, target, (9, 5), (5, 9), rank) if peer != rank)
        for rank in range(2)
    ]
    assert [type(step) for step in exchange.steps] == [FlatExchange]
    assert exchange.seconds == 4 * max(sent)
