"""Slices, rolls, pads and windows of split dims receive exactly the elements that a rank lacks."""

from __future__ import annotations

import itertools
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from spmdsim import LockStep, Mesh, ShapeOnly, Tensor, ops, record, search
from spmdsim.auto_parallel.execute import prove
from spmdsim.cost import Machine
from spmdsim.layout.windowed_layout import Window, Windowed
from spmdsim.redistribution import plan
from spmdsim.redistribution.step_counts import sent_nbytes
from spmdsim.redistribution.steps import halo
from spmdsim.redistribution.steps.halo import HALO_EXCHANGE, HaloStep, build_halo_steps

ITEM = 8


def values(shape, seed=0):
    return np.random.default_rng([seed, *shape]).integers(-50, 50, shape).astype(float)


def tensor_of(array, layout, world, **more):
    return Tensor.from_global(array, layout, world, **more)


def shards_of(layout, array):
    """Return the shard of each rank of the mesh."""
    return {rank: array[layout.slices(array.shape, rank)] for rank in layout.mesh.rank_list}


def count_missing_bytes(layout, before, after):
    """Return each rank's bytes of count_missing_bytes elements, forward and backward.

    `before` and `after` number elements by their source; -1 is padding.
    """
    owned, read = shards_of(layout, before), shards_of(layout, after)
    forth, back = {}, {}
    for rank, shard in owned.items():
        elements = set(shard.flat)
        forth[rank] = ITEM * len(set(read[rank].flat) - elements - {-1})
        others = {frozenset(read[k].flat) for k in owned if set(owned[k].flat) != elements}
        back[rank] = ITEM * sum(len(elements & read_elements) for read_elements in others)
    return forth, back


def check(world, layout, shape, f, reference):
    """Check value, layout and bytes of a function that moves elements, and of its gradient."""
    a = values(shape)
    ids = np.arange(a.size).reshape(shape)
    expected, taken = reference(a), reference(ids + 1).astype(int) - 1
    x = tensor_of(a, layout, world, requires_grad=True)
    with record() as trace:
        y = f(x)
    assert y.layout.canonical == layout.canonical and y.shape == expected.shape
    forth, back = count_missing_bytes(layout, ids, taken)
    assert {*trace.counts()} <= {"halo_exchange"}
    for rank in world.ranks:
        assert trace.nbytes(rank) == forth.get(rank, 0) == trace.planned(rank)
    np.testing.assert_array_equal(y.full(), expected)
    dy = values(expected.shape, 1)
    gradient = np.zeros(a.size + 1)
    # Padding has index -1, so its gradient lands in the last element.
    np.add.at(gradient, taken.ravel(), dy.ravel())
    seed = tensor_of(dy, layout, world)
    with record() as trace:
        y.backward(seed)
    np.testing.assert_array_equal(x.grad.full(), gradient[:-1].reshape(shape))
    assert x.grad.layout.canonical == layout.canonical and {*trace.counts()} <= {"halo_reduce"}
    for rank in world.ranks:
        assert trace.nbytes(rank) == back.get(rank, 0)


@pytest.mark.ranks(1, 2, 3, 4)
def test_flips_of_a_split_dim_are_right(world):
    mesh = Mesh((world.size,), ("x",))
    for n in (1, 3, 8, 13):
        check(world, mesh("x", None), (n, 2), lambda x: ops.flip(x, 0), lambda a: a[::-1])
        check(world, mesh("x", None), (n, 2), lambda x: ops.flip(x), lambda a: a[::-1, ::-1])
    check(world, mesh(None, "x"), (2, 9), lambda x: ops.flip(x, (0, 1)), lambda a: a[::-1, ::-1])


ONE_DIM = [
    (0, 11, 1),
    (2, 13, 1),
    (1, 12, 1),
    (0, 2, 1),
    (12, 13, 1),
    (5, 5, 1),
    (4, 9, 1),
    (0, 13, 2),
    (1, 13, 3),
    (3, 12, 5),
]


@pytest.mark.ranks(1, 2, 3, 4, 8)
@pytest.mark.parametrize("start, stop, step", ONE_DIM)
def test_slices_of_a_split_dim_are_right(start, stop, step, world):
    mesh = Mesh((world.size,), ("x",))
    index = slice(start, stop, step)
    check(world, mesh("x", None), (13, 2), lambda x: x[index], lambda a: a[index])


@pytest.mark.ranks(1, 2, 4)
@pytest.mark.parametrize("dims", [("x", None), (None, "x")])
def test_slices_of_a_reshaped_tensor_return_every_gradient(dims, world):
    # No window has all elements, so gradients of several windows must be added in blocks and not in a window.
    a, mesh = values((3, 12)), Mesh((world.size,), ("x",))
    x = tensor_of(a, mesh(*dims), world, requires_grad=True)
    flat = ops.flatten(x)
    (3 * flat[1:] + flat[:-1] - 2 * flat[1:]).sum().backward()
    np.testing.assert_array_equal(x.grad.full().ravel(), [1, *[2] * 34, 1])


@pytest.mark.ranks(1, 3, 8)
def test_values_of_an_assignment_to_a_slice_come_from_neighbours(world):
    mesh = Mesh((world.size,), ("x",))
    zeros = Tensor.zeros((13, 2), layout=mesh("x", None), world=world)
    for index in [slice(*bounds) for bounds in ONE_DIM]:

        def put(a, index=index):
            result = np.zeros((13, 2))
            result[index] = a
            return result

        n = len(range(13)[index])
        check(world, mesh("x", None), (n, 2), lambda v, index=index: ops.setitem(zeros, index, v), put)


@pytest.mark.ranks(2, 4)
@pytest.mark.parametrize("n", [3, 5])
def test_shifts_beyond_a_shard_are_right(n, world):
    mesh = Mesh((world.size,), ("x",))
    for start, stop in itertools.combinations(range(n + 1), 2):
        index = slice(start, stop)
        check(world, mesh("x"), (n,), lambda x, index=index: x[index], lambda a, index=index: a[index])
    for shift in range(-n - 1, 2 * n):
        check(world, mesh("x"), (n,), lambda x, k=shift: ops.roll(x, k, 0), lambda a, k=shift: np.roll(a, k))


@pytest.mark.ranks(4, 6, 8)
def test_windows_of_two_split_dims_have_corners(world):
    mesh = Mesh((2, world.size // 2), ("x", "y"))
    for index in itertools.product([slice(0, -2), slice(1, -1), slice(2, None), slice(None)], repeat=2):
        check(world, mesh("x", "y"), (7, 9), lambda x, p=index: x[p], lambda a, p=index: a[p])
    both = mesh(None, ("y", "x"))
    check(world, both, (2, 17), lambda x: x[1:, 1:-2], lambda a: a[1:, 1:-2])
    check(
        world,
        mesh("x", "y"),
        (7, 9),
        lambda x: ops.roll(x, (1, -2), (0, 1)),
        lambda a: np.roll(a, (1, -2), (0, 1)),
    )
    check(
        world,
        mesh("x", "y"),
        (7, 9),
        lambda x: ops.pad(x, (1, 2), (0, 3)),
        lambda a: np.pad(a, ((1, 0), (2, 3))),
    )


@pytest.mark.ranks(4)
def test_replica_axes_and_pending_sums_are_kept(world):
    mesh = Mesh((2, 2), ("x", "y"))
    check(world, mesh("x", None), (7, 3), lambda x: x[1:-1], lambda a: a[1:-1])
    a = values((7, 3))
    x = tensor_of(a, mesh("x", None, partial="y"), world)
    with record() as trace:
        y = x[2:]
    assert y.layout.partial == (("y", "sum"),) and trace.counts() == {"halo_exchange": 1}
    np.testing.assert_array_equal(y.full(), a[2:])


@pytest.mark.ranks(4)
def test_slices_on_a_mesh_of_some_ranks_are_right(world):
    mesh = Mesh((3,), ("x",), ranks=[3, 0, 2])
    check(world, mesh("x"), (8,), lambda x: x[3:], lambda a: a[3:])


@pytest.mark.ranks(4)
def test_a_stencil_sends_its_surface_and_stays_split(world):
    """A field is split by rows over 4 ranks; a rank receives 2 rows from each neighbour in all."""
    mesh, a = Mesh((4,), ("x",)), values((64, 10))
    u = tensor_of(a, mesh("x", None), world)
    with record() as trace:
        y = u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:] - 4.0 * u[1:-1, 1:-1]
    reference = a[:-2, 1:-1] + a[2:, 1:-1] + a[1:-1, :-2] + a[1:-1, 2:] - 4 * a[1:-1, 1:-1]
    assert y.layout == u.layout
    assert {event.collective for event in trace.collectives} == {"halo_exchange"}
    assert trace.nbytes() <= 6 * 2 * 8 * 10  # five slices, each at most two rows on one side
    np.testing.assert_array_equal(y.full(), reference)


@pytest.mark.ranks(1, 3, 4)
def test_concatenation_stays_split(world):
    mesh = Mesh((world.size,), ("x",))
    layout = mesh("x", None)
    for sizes in ((5, 3, 1), (0, 9, 2), (1, 1, 1), (12, 4, 8)):
        arrays = [values((n, 2), n) for n in sizes]
        tensors = [tensor_of(a, layout, world, requires_grad=True) for a in arrays]
        with record() as trace:
            y = ops.concat(tensors, 0)
        expected = np.concatenate(arrays)
        assert y.layout.canonical == layout.canonical and {*trace.counts()} <= {"halo_exchange"}
        ids = np.split(np.arange(expected.size).reshape(expected.shape), np.cumsum(sizes)[:-1])
        for rank in world.ranks:
            owned = {i for block in ids for i in block[layout.slices(block.shape, rank)].flat}
            wanted = np.concatenate(ids)[layout.slices(expected.shape, rank)]
            assert trace.nbytes(rank) == 8 * len(set(wanted.flat) - owned)
        np.testing.assert_array_equal(y.full(), expected)
        dy = values(expected.shape, 7)
        y.backward(tensor_of(dy, layout, world))
        for tensor, block in zip(tensors, np.split(dy, np.cumsum(sizes)[:-1])):
            np.testing.assert_array_equal(tensor.grad.full(), block)


@pytest.mark.ranks(2)
def test_gradients_of_half_floats_are_added_in_float32(world):
    mesh = Mesh((2,), ("x",))
    x = tensor_of(values((6,)).astype(ml_dtypes.bfloat16), mesh("x"), world, requires_grad=True)
    y = ops.add(x[1:], x[:-1])
    assert y.dtype == ml_dtypes.bfloat16
    y.backward(tensor_of(np.ones(5, ml_dtypes.bfloat16), mesh("x"), world))
    np.testing.assert_array_equal(x.grad.full().astype(float), [1, 2, 2, 2, 2, 1])


def test_shape_only_worlds_record_equal_events():
    def program(world):
        mesh = Mesh((2, 4), ("x", "y"))
        x = Tensor.from_global(np.zeros((24, 32), "f4"), mesh("x", "y"), world, requires_grad=True)
        with record() as trace:
            y = x[1:-1, 2:] + x[2:, 1:-1] + ops.roll(x, 3, 1)[2:, 2:]
            ops.sum(y).backward()
        return trace

    real, shapes = program(LockStep(8)), program(ShapeOnly(8))
    assert real.counts() == shapes.counts() and real.nbytes(0) == shapes.nbytes(0) > 0
    assert real.difference(shapes) == []


def test_65536_ranks_are_planned():
    mesh = Mesh((256, 256), ("x", "y"))
    target = Windowed(mesh("x", "y"), [Window(4096, -1, 3), Window(4096, -1, 3)])
    route = plan(mesh("x", "y"), target, (4096, 4096))
    assert [step.collective for step in route.steps] == ["halo_exchange", "halo_exchange"]
    assert route.max_nbytes == 4 * (18 * 18 - 16 * 16) and route.nbytes(0) == 4 * (17 * 17 - 16 * 16)


def test_searches_predict_the_bytes_of_halos():
    def program(x, w):
        h = ops.matmul(x, w)
        return ops.sum(ops.square(h[:-2] + h[2:] - 2.0 * h[1:-1]))

    sizes = {"x": (4096, 16)}, {"w": (16, 16)}
    result = search(program, 4, inputs=sizes[0], parameters=sizes[1], machine=Machine.laptop())
    arrays = {name: values(shape).astype("f4") for shapes in sizes for name, shape in shapes.items()}
    with record() as trace:
        proof = prove(program, result, LockStep(4), arrays)
    assert {"halo_exchange", "halo_reduce"} <= {*trace.counts()}
    assert sum(row.counted for row in proof.rows) > 0
    for row in proof.rows:
        assert row.predicted == row.counted, row


@pytest.mark.parametrize("shape", [(7, 9), (3, 8), (16, 16)])
def test_plans_of_halos_are_at_their_bound_and_priced(shape):
    mesh = Mesh((2, 3), ("x", "y"))
    layout = mesh("x", "y")
    for first, width, stride in ((-1, 3, 1), (0, 2, 2), (1, 1, 1), (-2, 5, 1)):
        windows = [Window(len(range(0, n, stride)), first, width, stride) for n in shape]
        targets = [Windowed(layout, window_choice) for window_choice in (windows, [windows[0], None])]
        for ends in [ends for target in targets for ends in ((layout, target), (target, layout))]:
            route = plan(*ends, shape)
            assert route.max_nbytes >= route.max_lower_bound
            # Contributions to a corner, from several dims, may come in two steps.
            if ends[0] is layout or width == stride or None in ends[0].windows:
                assert [route.nbytes(r) for r in range(6)] == [route.lower_bound(r) for r in range(6)]
            assert route.total_nbytes == sum(route.nbytes(rank) for rank in range(6))
            assert route.kind in ("halo exchange", "local")
            for step in route.steps:
                if isinstance(step, HaloStep):
                    received = [step.received_elements(rank) for rank in range(6)]
                    assert step.received_by_position.tolist() == received
            assert str(route).splitlines()[2:] and route.peak_nbytes > 0
            priced = plan(*ends, shape, machine=Machine.laptop())
            assert priced.seconds > 0 or not priced.max_nbytes


def halo_steps(mesh, dims, windows, shape):
    """Return the steps of all implementations of a window, forward and backward."""
    windowed = Windowed(mesh(*dims), windows)
    return [
        step for back in (False, True) for steps in build_halo_steps(windowed, shape, back) for step in steps
    ]


def test_the_busiest_rank_is_the_maximum_of_all_ranks(monkeypatch):
    """The busiest rank of received and sent elements is the maximum over all ranks."""
    for asked, window in itertools.product((3, 128), (Window(19, -1, 3), Window(16, 3), Window(6, 0, 5, 3))):
        monkeypatch.setattr("spmdsim.redistribution.steps.halo.ASKED", asked)
        x, y = f"x{asked}", f"y{asked}"  # other names, so that no count comes from a cache
        mesh = Mesh((2, 5), (x, y))
        for dims in ((y, x), (x, y), (y, None)):
            for step in halo_steps(mesh, dims, (window, Window(8, 1)), (19, 9)):
                if step.collective == "window":
                    continue
                ends = [
                    (list_boxes(step, rank), rank)
                    for rank in range(10)
                    for list_boxes in (halo.received_boxes, halo.sent_boxes)
                ]
                elements = [
                    sum(p.size for peer, ps in each if peer != rank for p in ps) for each, rank in ends
                ]
                messages = [len({peer for peer, _ in each} - {rank}) for each, rank in ends]
                assert (step.most_moved, step.most_messages) == (max(elements), max(messages))


@pytest.mark.parametrize(
    "dims, windows, collectives",
    [
        (("x", "y"), (Window(8, -1, 3), Window(8, -1, 3)), [[HALO_EXCHANGE] * 2, [HALO_EXCHANGE]]),
        (("x", None), (Window(8, -1, 3), Window(7, 1)), [[HALO_EXCHANGE]]),
        ((None, None), (Window(8, -1, 3), Window(7, 1)), [["window"]]),
        (("x", "y"), (Window(4, 0, 2, 2), Window(8, -1, 3)), [["window", HALO_EXCHANGE], [HALO_EXCHANGE]]),
        (("x", None), (None, Window(7, 1)), [["window"]]),
    ],
)
def test_windows_of_several_dims_are_exchanged_in_turn_or_at_once(dims, windows, collectives):
    layout, shape = Windowed(Mesh((2, 2), ("x", "y"))(*dims), windows), (8, 8)
    assert [[step.collective for step in steps] for steps in build_halo_steps(layout, shape)] == collectives
    assert {step.op for steps in build_halo_steps(layout, shape) for step in steps} == {None}
    back = [[kind.replace("exchange", "reduce") for kind in steps[::-1]] for steps in collectives]
    assert [[step.collective for step in steps] for steps in build_halo_steps(layout, shape, True)] == back
    assert {step.op for steps in build_halo_steps(layout, shape, True) for step in steps} == {"sum"}


def test_the_cheapest_strategy_keeps_a_sliced_dim_split():
    """The price of a halo is compared with the price of gathering."""
    mesh, world = Mesh((4,), ("x",)), LockStep(4)
    world.machine = Machine.laptop()
    x = Tensor.from_global(values((4096, 16)), mesh("x", None), world)
    with record() as trace:
        x[1:]
    assert trace.counts() == {"halo_exchange": 1}


def test_sent_bytes_of_a_halo_equal_the_bytes_of_neighbours():
    layout = Windowed(
        Mesh((4,), ("x",))("x"), [Window(10, 0, 2)]
    )  # each position reads the next element, too
    for back in (False, True):
        ((step,),) = build_halo_steps(layout, (10,), back)
        counts = [[sent_nbytes(step, rank, 4), step.nbytes(rank, 4)] for rank in range(4)]
        assert counts == [[4, 0], [4, 4], [4, 4], [0, 4]][:: 1 if back else -1]


WINDOWS = [
    Window(6, -1, 3), Window(4, 2), Window(6, -1, wrap=True), Window(3, 1, 2, 2), Window(3, 0, 1, 2), Window(6, 5, 1, -1),
    Window(2, 4, 1, -3), Window(8, -1, 2), Window(5, -2, 4, 1, wrap=True), Window(19, -1, spread=3), Window(4, 2, spread=2),
    Window(12, -4, spread=2), Window(5, -3, 1, 2),
]  # fmt: skip


def read_by(window, position, n):
    """Return the elements that one position reads by definition; a wrapped dim has unwrapped indices."""
    if (position + window.first) % window.spread:
        return []
    position = position if window.spread == 1 else (position + window.first) // window.spread - window.first
    elements = range(
        position * window.stride + window.first, position * window.stride + window.first + window.width
    )
    return [e for e in elements if window.wrap or 0 <= e < n]


@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_windows_read_the_elements_of_their_definition(window):
    n = 6
    for start, stop in itertools.combinations_with_replacement(range(window.size + 1), 2):
        wanted = {e for i in range(start, stop) for e in read_by(window, i, n)}
        reads = window.reads(start, stop, n)
        assert set(reads) == wanted and (not reads or window.stride > 0 or reads[0] >= reads[-1])
    if window.wrap:
        return
    for start, stop in itertools.combinations(range(n + 1), 2):
        readers = {i for i in range(window.size) if set(read_by(window, i, n)) & set(range(start, stop))}
        low, high = window.positions_reading(start, stop)
        assert readers <= set(range(low, high))
        if readers and abs(window.stride) <= window.width and window.spread == 1:
            assert (min(readers), max(readers) + 1) == (low, high)


@pytest.mark.parametrize("window", [one for one in WINDOWS if one.stride == one.spread == 1], ids=str)
def test_windows_reach_beyond_a_dimension_by_the_elements_outside(window):
    for start, stop in itertools.combinations_with_replacement(range(window.size + 1), 2):
        reach = range(start + window.first, stop + window.first + window.width - 1)
        elements = () if start == stop or window.wrap else reach
        outside = sum(e < 0 for e in elements), sum(e >= 6 for e in elements)
        for mirror in ("", "reflect"):
            assert replace(window, mirror=mirror).beyond(start, stop, 6) == outside, (start, stop)


@pytest.mark.parametrize("mirror", ["reflect", "symmetric"])
def test_mirrored_windows_read_the_elements_that_numpy_pads_with(mirror):
    for n, lo, hi in itertools.product((4, 5), range(4), range(4)):
        window = Window(n, -lo, 1 + lo + hi, mirror=mirror)
        padded = np.pad(np.arange(n), (lo, hi), mirror)
        for start, stop in itertools.combinations(range(n + 1), 2):
            wanted = padded[start : stop + lo + hi]
            assert window.reads(start, stop, n) == range(wanted.min(), wanted.max() + 1), (window, start)


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_the_largest_shard_of_windows_is_a_bound_of_all_shards(window, ranks):
    layout = Windowed(Mesh((ranks,), ("x",))("x"), (window,))
    sizes = [stop - start for rank in range(ranks) for start, stop in layout.bounds((6,), rank)]
    (largest,) = layout.largest_shape((6,))
    assert max(sizes) <= largest <= 6 + 6 * window.wrap


@pytest.mark.parametrize("mirror", ["", "reflect", "symmetric"])
def test_the_largest_of_two_shards_may_be_the_last(mirror):
    for n, lo, hi in itertools.product(range(4, 9), range(4), range(4)):
        window = Window(n, -lo, 1 + lo + hi, mirror=mirror)
        layout = Windowed(Mesh((2,), ("x",))("x"), (window,))
        sizes = [stop - start for rank in range(2) for start, stop in layout.bounds((n,), rank)]
        assert layout.largest_shape((n,)) == (max(sizes),)


@pytest.mark.parametrize(
    "window",
    [Window(6, 0, 1, 2), Window(6, 0, 2, 2), Window(9, 0, 3), Window(7, 1, 4), Window(24, 0, spread=2)],
    ids=str,
)
def test_the_largest_of_three_shards_is_exact(window):
    layout = Windowed(Mesh((3,), ("x",))("x"), (window,))
    sizes = [stop - start for rank in range(3) for start, stop in layout.bounds((12,), rank)]
    assert layout.largest_shape((12,)) == (max(sizes),)


def test_windows_are_equal_by_value_and_differ_from_layouts():
    base = Mesh((2,), ("x",))("x")
    layout = Windowed(base, (Window(4, 2),))
    assert layout == Windowed(base, (Window(4, 2),)) != Windowed(base, (Window(4, 1),))
    assert (layout == base, layout == 3, layout.reduced == layout) == (False, False, True)
    assert Window(4) == Window(4, 0, 1, 1, False, 1, False, "")


@pytest.mark.ranks(2, 3)
def test_shifts_to_both_sides_copy_a_block_once(world):
    if isinstance(world, LockStep):
        pytest.skip("the memory is that of MPI's ranks")
    mesh = Mesh((world.size,), ("x",))
    x = tensor_of(values((40, 6)), mesh("x", None), world)
    above, below = x[:-2, 1:-1], x[2:, 1:-1]
    left, right = (windows.stored_shards[0].base for windows in (above, below))
    # The tensor's own shard has moved into the padded buffer.
    assert left is right and x.stored_shards[0].base is left
    del above, below
    above, below = x[:-2, 1:-1], x[2:, 1:-1]
    assert above.stored_shards[0].base is left and below.stored_shards[0].base is left
    np.testing.assert_array_equal(above.full(), x.full()[:-2, 1:-1])
    # Three slices read one row, as in a stencil of nine points.
    assert x[2:, 2:].stored_shards[0].base is left
    np.testing.assert_array_equal((above + below + x[2:, 2:]).full(), sum_of_three(x.full()))


def sum_of_three(a):
    return a[:-2, 1:-1] + a[2:, 1:-1] + a[2:, 2:]


@pytest.mark.parametrize(
    ("n", "window", "rank", "expected"),
    [
        (80, Window(80, 1), 0, (48, 4, slice(5, 45))),  # a power of two from 4 on: 20 % of 40 elements
        (80, Window(80, -1), 0, (48, 4, slice(4, 43))),  # nothing arrives, but an element leaves
        (80, Window(80, -1), 1, (48, 4, slice(3, 43))),
        (80, Window(80, -1, wrap=True), 0, (48, 4, slice(3, 43))),
        (128, Window(128, 4), 0, (72, 4, slice(8, 72))),
        (128, Window(128, 5), 0, (80, 8, slice(13, 77))),
        (80, Window(80, 5), 0, (50, 5, slice(10, 50))),  # not rounded: 25 %
        (80, Window(80, 5), 1, (50, 5, slice(10, 45))),
        (80, Window(80, 6), 0, None),  # 30 %
        (80, Window(82, 0), 0, (48, 4, slice(4, 45))),  # positions of their own: 41 for each rank
        (16, Window(16, 1), 0, (10, 1, slice(2, 10))),
        (12, Window(12, 1), 0, None),
        (80, Window(78, 1), 0, None),  # rank 0 reads elements 1 to 39, so nothing moves
        (80, Window(80, 0, 2), 0, None),  # not a shift
        (80, Window(40, 0, 1, 2), 0, None),
        (80, Window(80, 1, wrap=True), 2, None),
    ],
    ids=str,
)
def test_the_room_around_a_block_has_sizes_by_hand(n, window, rank, expected):
    layout = Mesh((2,), ("x",))("x", None)
    step = HaloStep(HALO_EXCHANGE, ("x",), layout, Windowed(layout, (window, None)), (n, 3))
    if rank == 2:
        step, rank = replace(step, src=step.dst, dst=step.src, back=True), 0
    room = halo.padded_buffer(step, rank)
    if expected is None:
        assert room is None
    else:
        size, start, windows = expected
        block = slice(start, start + n // 2)
        assert room == ((size, 3), (block, slice(0, 3)), (windows, slice(0, 3)))


def test_a_rank_that_reads_less_than_half_of_its_block_has_no_room_around_it():
    # A rank reads 36 of its 40 rows: with 5 of 9 columns 180 of 360 elements. Columns need no room.
    layout = Mesh((2,), ("x",))("x", None)

    def room_of(rank, columns):
        step = HaloStep(HALO_EXCHANGE, ("x",), layout, Windowed(layout, (Window(80, 4), columns)), (80, 9))
        return halo.padded_buffer(step, rank)

    for rank, stop in ((0, 48), (1, 44)):  # rank 1 receives nothing
        block, windows = (slice(4, 44), slice(0, 9)), (slice(8, stop), slice(1, 6))
        assert room_of(rank, Window(5, 1)) == ((48, 9), block, windows)
        assert room_of(rank, Window(4, 1)) is None
        assert room_of(rank, Window(8, 0, 2)) is None


@pytest.mark.ranks(2, 3)
def test_tensors_that_share_a_block_have_their_own_neighbours(world):
    layout = Mesh((world.size,), ("x",))("x")
    a = values((24,))
    b = np.where(np.arange(24) < 24 // world.size, a, -a)  # the elements of rank 0 are equal
    shared = {}
    x, y = (
        Tensor.from_local(
            [
                shared.setdefault(
                    (rank, one[layout.slices((24,), rank)].tobytes()), one[layout.slices((24,), rank)]
                )
                for rank in world.ranks
            ],
            layout,
            world,
        )
        for one in (a, b)
    )
    first = x[1:]
    second = y[1:]
    np.testing.assert_array_equal(first.full(), a[1:])
    np.testing.assert_array_equal(second.full(), b[1:])
    again = Tensor.from_local([x.local(r) if r == 0 else y.local(r) for r in world.ranks], layout, world)
    np.testing.assert_array_equal(again[1:].full(), b[1:])
    np.testing.assert_array_equal(x[1:].full(), a[1:])


def elements_by_position(layout, shape, rank):
    """Return the elements that a rank's shard reads, and the coordinates of its block."""
    windows = layout.windows if isinstance(layout, Windowed) else (None,) * len(shape)
    counts = [n if window is None else window.size for n, window in zip(shape, windows)]
    base = layout.base if isinstance(layout, Windowed) else layout
    dims = []
    for n, window, ends in zip(shape, windows, base.bounds(counts, rank)):
        if window is None:
            dims.append({*range(*ends)})
            continue
        firsts = (i * window.stride + window.first for i in range(*ends))
        read = {first + k for first in firsts for k in range(window.width)}
        dims.append({e % n for e in read} if window.wrap else {e for e in read if 0 <= e < n})
    coords = dict(zip(layout.mesh.axes, layout.mesh.coords(rank) if rank in layout.mesh else ()))
    return {*itertools.product(*dims)}, tuple(coords.get(axis) for entry in layout.dims for axis in entry)


def test_the_bound_of_windows_equals_a_count_of_elements():
    """Targets have other blocks, other meshes and wrapped windows."""
    mesh, other, shape = Mesh((2, 2), ("x", "y")), Mesh((3,), ("z",), ranks=(1, 5, 2)), (9, 4)
    windows = (Window(9, -1, 3), Window(9, -2, 4, wrap=True), Window(4, 1, 2, 2), Window(5, 6))
    bases = (mesh("x", "y"), mesh(("y", "x"), None), mesh(None, "x"))
    layouts = (*bases, mesh(None, None), other("z", None), other(None, "z"))
    windowed_layouts = [Windowed(base, [window, None]) for base in bases for window in windows]
    pairs = [ends for one in windowed_layouts for two in layouts for ends in ((one, two), (two, one))]
    checked = 0
    for src, dst in [*pairs, *itertools.pairwise(windowed_layouts)]:
        every = dict(elements_by_position(src, shape, rank)[::-1] for rank in src.mesh.rank_list)
        least = []
        for rank in dst.mesh.rank_list:
            (_, block), (wanted, _) = (elements_by_position(one, shape, rank) for one in (src, dst))
            least.append(
                len(
                    wanted
                    & set().union(
                        *(elements for other_block, elements in every.items() if other_block != block)
                    )
                )
            )
        bound = halo.halo_bound(src, dst, shape)
        assert bound.ranks.tolist() == least and bound[:2] == (max(least), sum(least)), (src, dst)
        checked += src.mesh == dst.mesh and src.dims != dst.dims
    assert checked > 50


@pytest.mark.parametrize("mirror", ["reflect", "symmetric"])
@pytest.mark.parametrize(("size", "first"), [(7, -1), (9, -2), (13, -4)])
@pytest.mark.parametrize("blocks", [1, 2, 3, 4, 7])
def test_the_largest_shard_of_mirrored_windows_is_exact(mirror, size, first, blocks):
    mesh, window = Mesh((blocks,), ("x",)), Window(size, first, mirror=mirror)
    layout = Windowed(mesh("x"), [window])
    assert layout.largest_shape((5,)) == (max(layout.local_shape((5,), rank)[0] for rank in range(blocks)),)
