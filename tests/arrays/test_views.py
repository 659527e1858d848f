"""Writing through views changes tensors as in NumPy, and unsupported writes are refused."""

from __future__ import annotations

import copy
import gc
import pickle

import numpy as np
import pytest

import spmdsim
from spmdsim import Mesh, Tensor, ops, record
from spmdsim.errors import UsageTypeError

pytestmark = pytest.mark.filterwarnings("ignore::spmdsim.redistribution.guard.GatheringWarning")


def assign_rows(y):
    for k, row in enumerate(y):
        row[:] = k


def unpack(y):
    a, b, *_ = y
    a *= 2
    b -= a[:1]


def add_to_view(y):
    z = y[:1]
    z += 5
    z *= 2


def write_through_two(y):
    t = y[:2].T
    row = t[1]
    row[0] = 7
    assert np.ravel(t)[2] == 7  # The view t has the new value, too.
    del t
    row += 1


def split_parts(y):
    first, second = np.split(y, 2, axis=1)
    first[0] = 3
    second[1] += first[1]


def copies(y):
    for copied in (
        y[[0, 1]],
        y[y > 3],
        y.flatten(),
        y.copy(),
        y + 0,
        y.astype(y.dtype),
        np.tile(y, 1),
        np.block(y),
        np.einsum("ij->i", y),
        np.einsum("ij,->ij", y, 1.0),
        np.take(y, [0], 0),
    ):
        copied[...] = 99
    y.T.ravel()[:] = 98  # No operand is contiguous.
    y[:, 1:].reshape(-1)[0] = 97
    y[:, ::2].ravel()[0] = 97


PROGRAMS = {
    "y[0][1] = 9": lambda y: y[0].__setitem__(1, 9),
    "y[1][2:][0] = 9": lambda y: y[1][2:].__setitem__(0, 9),
    "y.T[0] = 9": lambda y: y.T.__setitem__(0, 9),
    "y.T[0][1] = 9": lambda y: y.T[0].__setitem__(1, 9),
    "y.ravel()[0] = 9": lambda y: y.ravel().__setitem__(0, 9),
    "np.ravel(y)[5] = 9": lambda y: np.ravel(y).__setitem__(5, 9),
    "np.ravel(y, 'K')[5] = 9": lambda y: np.ravel(y, "K").__setitem__(5, 9),
    "y.ravel(order='A')[5] = 9": lambda y: y.ravel(order="A").__setitem__(5, 9),
    "y[:1].ravel('F')[5] = 9": lambda y: y[:1].ravel("F").__setitem__(5, 9),
    "y[:, :1].ravel()[1] = 9": lambda y: y[:, :1].ravel().__setitem__(1, 9),
    "y[:, :1].T.ravel()[1] = 9": lambda y: y[:, :1].T.ravel().__setitem__(1, 9),
    "einsum ij->ji": lambda y: np.einsum("ij->ji", y).__setitem__(1, 9),
    "einsum of lists": lambda y: np.einsum(y[None], [2, 0, 1], [1, 0, 2]).__setitem__(1, 9),
    "einsum of itself": lambda y: np.einsum("...", y).__setitem__(1, 9),
    "np.ravel(y, 'F')[5] = 9": lambda y: np.ravel(y, "F").__setitem__(5, 9),
    "y.T.ravel('F')[5] = 9": lambda y: np.ravel(y.T, order="F").__setitem__(5, 9),
    "y.reshape(2, -1)[0] = 9": lambda y: y.reshape(2, -1).__setitem__(0, 9),
    "y.reshape((8, 3), order='F')": lambda y: y.reshape((8, 3), order="F").__setitem__(0, 9),
    "y[1:3].reshape(-1)[3:7] = 9": lambda y: y[1:3].reshape(-1).__setitem__(slice(3, 7), 9),
    "y[:, :3].reshape(2, 2, 3)[1] = 9": lambda y: y[:, :3].reshape(2, 2, 3).__setitem__(1, 9),
    "y[::2].reshape(2, 6)[1] = 9": lambda y: y[::2].reshape(2, 6).__setitem__(1, 9),
    "y[None, ..., ::-1][0, 1] = 9": lambda y: y[None, ..., ::-1].__setitem__((0, 1), [1, 2, 3, 4, 5, 6]),
    "y[-1, np.int64(2)][...] = 9": lambda y: y[-1, np.int64(2) :].__setitem__(..., 9),
    "rows": assign_rows,
    "unpacked": unpack,
    "z += 5": add_to_view,
    "two deep": write_through_two,
    "y[:1] += 5": lambda y: y.__setitem__(slice(0, 1), y[:1].__iadd__(5)),
    "fill_diagonal": lambda y: np.fill_diagonal(y.T, 5),
    "copyto": lambda y: np.copyto(y[0], 7),
    "copyto where": lambda y: np.copyto(y.T[1:], 7, where=y.T[1:] > 4),
    "put": lambda y: np.put(y[1], [0, 2], [5, 6]),


    "put_along_axis": lambda y: np.put_along_axis(y.T, np.array([[1, 0, 2, 3]]), 6, 0),
    "out=": lambda y: np.add(y[0], y[1], out=y[2]),
    "out= of a transpose": lambda y: np.multiply(y.T, 2, out=y.T),
    "sort": lambda y: y[::-1, ::-1][1].sort(),
    "fill": lambda y: y[:, 2].fill(8),
    "real": lambda y: y.real.__setitem__(0, 3),
    "np.real": lambda y: np.real(y).__setitem__(0, 3),
    "swapaxes": lambda y: y.swapaxes(0, 1).__setitem__(2, 3),
    "mT": lambda y: np.matrix_transpose(y).__setitem__(2, 3) if hasattr(np, "matrix_transpose") else None,
    "transpose": lambda y: y.transpose(1, 0).__setitem__(2, 3),
    "moveaxis": lambda y: np.moveaxis(y[None], 0, 2).__setitem__((1, 2), 3),
    "rollaxis": lambda y: np.rollaxis(y, 1).__setitem__(2, 3),
    "squeeze": lambda y: np.squeeze(y[None], 0).__setitem__(2, 3),
    "expand_dims": lambda y: np.expand_dims(y, 1).__setitem__((2, 0), 3),
    "atleast_3d": lambda y: np.atleast_3d(y).__setitem__((2, 0), 3),
    "flip": lambda y: np.flip(y, 1).__setitem__((0, 0), 9),
    "flipud": lambda y: np.flipud(y).__setitem__(0, 9),
    "rot90": lambda y: np.rot90(y).__setitem__(0, 9),
    "rot90 thrice": lambda y: np.rot90(y, 3).__setitem__(0, 9),
    "split": split_parts,
    "array_split": lambda y: np.array_split(y, 3)[1].__setitem__(0, 9),
    "vsplit": lambda y: np.vsplit(y, [1, 3])[1].__setitem__(0, 9),
    "copies stay copies": copies,
}  # fmt: skip


@pytest.mark.ranks(4)
@pytest.mark.parametrize("name", PROGRAMS)
def test_writes_through_views_equal_numpy(name, world):
    mesh = Mesh((2, 2), ("a", "b"))
    for layout in (mesh("a", "b"), mesh(None, ("b", "a")), mesh(None, None)):
        array = np.arange(24.0).reshape(4, 6)
        y = Tensor.from_global(array, layout, world)
        PROGRAMS[name](array)
        PROGRAMS[name](y)
        np.testing.assert_array_equal(y.full(), array)
        assert y.layout == layout


@pytest.mark.ranks(2)
def test_real_and_imaginary_parts_are_views(world):
    array = np.array([1 + 2j, complex(np.inf, -np.inf), -3j])
    y = Tensor.from_global(array.copy(), Mesh((2,), ("x",))("x"), world)
    for target in (array, y):
        target.real[0] = 5
        np.imag(target)[1:] = 7
        target.real[::-1][0] *= -2
    np.testing.assert_array_equal(y.full(), array)
    with pytest.raises(UsageTypeError, match="the imaginary part is read-only, as in NumPy"):
        y.real.imag[0] = 1


@pytest.mark.ranks(2)
def test_writes_through_random_views_equal_numpy(world):
    """Writes that are not refused give NumPy's base and view, and most are not refused."""
    written = refused = 0
    for seed in range(12):
        rng = np.random.default_rng(seed)
        array = rng.integers(0, 99, (4, 6))
        pairs = [(array, Tensor.from_global(array.copy(), Mesh((2,), ("x",))("x", None), world))]
        for _ in range(25):
            a, x = pairs[rng.integers(len(pairs))]
            if a.ndim and 0 not in a.shape and rng.random() < 0.5:
                take = random_view(rng, a)
                if take is not None:
                    pairs.append((take(a), take(x)))
                    if rng.random() < 0.3:
                        del pairs[rng.integers(1, len(pairs))]
                continue
            value = int(rng.integers(100, 200))
            try:
                if rng.random() < 0.5:
                    x += value
                else:
                    x[...] = value
                    value = value - a
            except UsageTypeError as error:
                assert "take the view again" in str(error)
                refused += 1
                continue
            a += value
            written += 1
            np.testing.assert_array_equal(x.full(), a)
            np.testing.assert_array_equal(pairs[0][1].full(), array)
    assert written > 80 and refused < written


def random_view(rng, a):
    """Return a function that takes a random view of arrays with the shape of ``a``, or None.

    The function is None if numpy would copy. `rng` is the generator.
    """
    kind = rng.integers(5)
    if kind == 0:
        return lambda x: x.T
    if kind == 1:
        new = (-1,) if a.ndim != 1 or len(a) % 2 else (2, -1)
        return (lambda x: x.reshape(new)) if np.shares_memory(a, a.reshape(new)) else None
    if kind == 2:
        return lambda x: np.flip(x, 0)
    k, step = int(rng.integers(len(a))), int(rng.choice([-2, -1, 1, 2]))
    return (lambda x: x[k]) if kind == 3 and a.ndim > 1 else lambda x: x[k::step]


@pytest.mark.ranks(2)
def test_a_view_of_a_changed_tensor_keeps_its_values_and_refuses_writes(world):
    y = Tensor.from_global(np.arange(6.0), Mesh((2,), ("x",))("x"), world)
    head, tail, odd = y[:3], y[3:], y[1::2]
    head += 1
    tail += 1  # The tail shares no element with the head.
    with pytest.raises(
        UsageTypeError, match=r"^add in place: the view has old values, because its tensor was changed"
    ):
        odd += 1
    np.testing.assert_array_equal(odd.full(), [1, 3, 5])
    y *= 2
    for stale in (head, tail):
        with pytest.raises(UsageTypeError, match="take the view again"):
            stale[0] = 1
    np.testing.assert_array_equal(y.full(), [2, 4, 6, 8, 10, 12])
    # No variable has y[:5].
    one, two, three = [view[cut] for view in [y[:5]] for cut in (slice(3), slice(1, 4), slice(4, 5))]
    one[:2] += 5
    three += 1
    with pytest.raises(UsageTypeError, match="take the view again"):
        two += 1
    np.testing.assert_array_equal(y.full(), [7, 9, 6, 8, 11, 12])


@pytest.mark.ranks(2)
def test_read_only_views_are_refused(world):
    y = Tensor.from_global(np.eye(2), Mesh((2,), ("x",))("x", None), world)
    for view in (
        y.diagonal(),
        np.diag(y),
        np.broadcast_to(y, (3, 2, 2)),
    ):
        with pytest.raises(UsageTypeError, match="is read-only, as in NumPy"):
            view[0] = 1
    for view in (np.einsum("ii->i", y), *np.broadcast_arrays(y, np.zeros((3, 1, 1)))[:1]):
        with pytest.raises(UsageTypeError, match="is read-only"):  # NumPy writes, with a deprecation warning.
            view[0] = 1
    np.diag(y[0])[1, 1] = 3  # The diag of a vector is a new matrix.
    np.testing.assert_array_equal(y.full(), np.eye(2))


@pytest.mark.ranks(2)
def test_gradients_pass_through_writes(world):
    layout = Mesh((2,), ("x",))("x", None)
    a, w = np.arange(6.0).reshape(3, 2), np.arange(1.0, 7.0).reshape(3, 2)
    x = Tensor.from_global(a, layout, world, requires_grad=True)
    y = x * 1
    row = y[1]
    row *= 3
    y.T[0] = 5
    (y * w).sum().backward()
    np.testing.assert_array_equal(y.full(), [[5, 1], [5, 9], [5, 5]])
    np.testing.assert_array_equal(x.grad.full(), [[0, 2], [0, 12], [0, 6]])
    leaf = Tensor.from_global(a, layout, world, requires_grad=True)
    with pytest.raises(UsageTypeError, match="a parameter's new values must not require a gradient"):
        leaf[0][1] = 9
    np.testing.assert_array_equal(leaf.full(), a)


@pytest.mark.ranks(4)
def test_an_augmented_assignment_writes_once(world):
    y = Tensor.from_global(np.zeros((8, 4)), Mesh((4,), ("x",))("x", None), world)
    with record() as trace:
        y[2:5] += 5
    with record() as once:
        y[2:5] = y[2:5] + 5
    assert [*trace.counts().items()] == [*once.counts().items()] and trace.nbytes() == once.nbytes()
    assert float(y.sum()) == 3 * 4 * 10


def test_views_without_a_base_cost_nothing():
    world = spmdsim.LockStep(2)
    x = Tensor.from_global(np.arange(8.0), Mesh((2,), ("x",))("x"), world)
    x = x.reshape(2, 4)
    gc.collect()
    with record() as trace:
        x += 1
    assert not trace.counts()
    for _ in range(3000):  # The chain of views must not grow.
        x = x[:]
        x = x[::-1]
    x += 1
    assert float(x.sum()) == sum(range(8)) + 16
    y = x.copy()
    x = y[::-1]
    for _ in range(60):
        x = x[::-1]
    x -= 1  # The views between the two were collected.
    np.testing.assert_array_equal(y.full(), x.full()[::-1])
    x = y[::-1]
    for _ in range(100):
        x = x[::-1]
    x += 1  # The limit.
    x = x[::-1]
    with pytest.raises(
        UsageTypeError, match="a view must have at most 100 views between it and its tensor; take a copy"
    ):
        x += 1


@pytest.mark.ranks(2)
def test_garbage_collection_on_one_rank_changes_no_write(world):
    """Bases that only a cycle of references keeps may be collected on one rank only."""

    class Owner:
        def __init__(self, tensor):
            self.itself, self.tensor = self, tensor

    def new():
        return Tensor.from_global(np.arange(8.0), Mesh((2,), ("x",))("x"), world)

    def change(owner):
        view = owner.tensor[:5]
        owner.tensor *= 2
        return view

    gc.disable()
    try:
        base = new()
        views = [
            Owner(new()).tensor[:5],
            Owner(base[2:]).tensor[1:],
            Owner(Owner(new()).tensor[:6]).tensor[1:],
        ]
        changed = change(Owner(new()))
        if world.rank == 0:
            gc.collect()
        for view, expected in zip(views, ([9, 9, 2, 3, 4], [9, 9, 5, 6, 7], [9, 9, 3, 4, 5])):
            view[:2] = 9
            np.testing.assert_array_equal(view.full(), expected)
        with pytest.raises(UsageTypeError, match="take the view again"):
            changed[:2] = 9
        np.testing.assert_array_equal(base.full(), [0, 1, 2, 9, 9, 5, 6, 7])
    finally:
        gc.enable()


def test_views_of_a_collected_base_follow_numpys_memory_order():
    for columns in (
        np.arange(6.0).reshape(2, 3).T,
        Tensor.from_global(np.arange(6.0).reshape(2, 3), Mesh((2,), ("x",))("x", None)).T,
    ):
        columns.reshape(-1)[:] = 9  # This is a copy, because the elements of a row are not contiguous.
        assert columns[2, 1] == 5
        columns.reshape(-1, order="F")[0] = 9
        assert columns[0, 0] == 9


def test_a_copied_view_is_no_view():
    y = Tensor.from_global(np.arange(6.0), Mesh((2,), ("x",))("x"), spmdsim.LockStep(2))
    for copied in (copy.copy(y[:3]), copy.deepcopy(y[:3])):
        copied += 1
    assert pickle.loads(pickle.dumps(y.meta)) is y.meta
    np.testing.assert_array_equal(y.full(), np.arange(6.0))


@pytest.mark.ranks(2)
def test_compiled_functions_write_only_into_their_own_tensors(world):
    layout = Mesh((2,), ("x",))("x", None)
    y = Tensor.from_global(np.arange(6.0).reshape(3, 2), layout, world)

    @spmdsim.compile
    def change_own(y):
        z = y * 2
        z[0][1] = 9
        z.T[0] += 1
        return z, y[0]

    for _ in range(3):
        z, row = change_own(y)
        np.testing.assert_array_equal(z.full(), [[1, 9], [5, 6], [9, 10]])
        row += 100  # The result of a compiled function is no view.
        np.testing.assert_array_equal(y.full(), np.arange(6.0).reshape(3, 2))

    @spmdsim.compile
    def change_argument(y):
        y[0][1] = 9
        return y * 1

    with pytest.raises(UsageTypeError, match="changes a tensor in place that existed before"):
        change_argument(y)


def test_functions_of_the_package_return_no_views():
    y = Tensor.from_global(np.arange(6.0), Mesh((2,), ("x",))("x"), spmdsim.LockStep(2))
    ops.reshape(y, (2, 3))[0] = 9
    ops.getitem(y, slice(3))[0] = 9
    y.detach().copy()[0] = 9
    ops.dropout(y, 0.0, 1)[0] = 9
    ops.pad(y, 0, "edge")[0] = 9
    ops.broadcast_arrays(y, 1.0)[0][0] = 9
    np.testing.assert_array_equal(y.full(), np.arange(6.0))
    number = ops.sum(y)
    for other in (ops.roll(number, 1), ops.pad(number, 0)):
        other += 1
    assert number.item() == 15


@pytest.mark.ranks(4)
def test_writes_wait_only_for_ranks_of_the_mesh(world):
    """Writes through a view communicate only with the ranks of the tensor's mesh."""
    for pair, count in (((0, 1), 2), ((2, 3), 5)):
        if not {*pair} & {*world.ranks}:
            continue
        mesh = Mesh((2,), ("pair",), pair)
        x = Tensor.from_global(np.zeros((4, 4)), mesh("pair", None), world)
        for number in range(count):
            x[0][1] = number + 1
        owned = dict(zip(world.ranks, x.to(mesh(None, None)).shards))
        assert all(owned[rank][0, 1] == count for rank in pair if rank in owned)
