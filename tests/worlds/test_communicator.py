"""The emulated communicator returns the results of the real one on real ranks."""

from __future__ import annotations

import numpy as np
import pytest

MPI = pytest.importorskip("mpi4py.MPI")

from spmdsim.collectives import algorithms  # noqa: E402
from spmdsim.errors import ScheduleError, SpmdError, UsageTypeError, WorldError  # noqa: E402
from spmdsim.worlds import EmulatedCommunicator  # noqa: E402

pytestmark = pytest.mark.mpi


@pytest.fixture
def pair(mpi_comm):
    """Yield the real communicator and its emulation."""
    stand_in = EmulatedCommunicator(mpi_comm)
    yield mpi_comm, stand_in
    stand_in.Free()


def numbers(count, rank, dtype="i8"):
    return np.random.default_rng(rank).integers(-5, 6, count).astype(dtype)


def both(pair, call, *outputs):
    """Run a call on both communicators with copies of the outputs; check that the results are equal."""
    results = []
    for comm in pair:
        copies = [output.copy() for output in outputs]
        call(comm, *copies)
        results.append(copies)
    for real, emulated in zip(*results):
        np.testing.assert_array_equal(emulated, real)


@pytest.mark.parametrize("dtype", ["i4", "f8", "c8", "u1"])
@pytest.mark.parametrize("count", [0, 1, 13, 1000])
def test_reductions_equal_those_of_the_real_communicator(pair, count, dtype):
    comm = pair[0]
    x, out = numbers(count, comm.rank, dtype), np.full(count, 7, dtype)
    # No sums of bytes: some libraries let long ones saturate and short ones wrap around.
    for op in {"c8": (MPI.SUM, MPI.PROD), "u1": (MPI.MAX, MPI.BXOR)}.get(dtype, (MPI.SUM, MPI.MAX, MPI.MIN)):
        both(pair, lambda c, y, op=op: c.Allreduce(x, y, op=op), out)
        both(pair, lambda c, y, op=op: c.Allreduce(MPI.IN_PLACE, y, op), x)
        both(pair, lambda c, y, op=op: c.Scan(x, y, op), out)
        both(pair, lambda c, y, op=op: c.Scan(MPI.IN_PLACE, y, op), x)
        if comm.rank:
            both(pair, lambda c, y, op=op: c.Exscan(x, y, op), out)
        else:
            [c.Exscan(x, out.copy(), op) for c in pair]


@pytest.mark.parametrize("count", [0, 1, 13])
def test_rooted_collectives_agree_for_every_root(pair, count):
    comm = pair[0]
    for root in range(comm.size):
        is_root = comm.rank == root
        x, out = numbers(count, comm.rank), np.full(count, 7)
        both(pair, lambda c, y, r=root: c.Bcast(y, root=r), x)
        both(pair, lambda c, y, r=root, x=x: c.Reduce(x, y, MPI.SUM, r), out)
        both(pair, lambda c, y, r=root, x=x, m=is_root: c.Reduce(MPI.IN_PLACE if m else x, y, MPI.SUM, r), x)
        blocks = numbers(count * comm.size, comm.rank)
        both(pair, lambda c, y, r=root, x=x, m=is_root: c.Gather(x, y if m else None, r), blocks)
        both(pair, lambda c, y, r=root, b=blocks, m=is_root: c.Scatter(b if m else None, y, r), out)
        in_place = blocks.copy()
        in_place[root * count : (root + 1) * count] = x
        both(
            pair,
            lambda c, y, r=root, x=x, m=is_root: c.Gather(MPI.IN_PLACE if m else x, y if m else None, r),
            in_place,
        )


def test_collectives_of_equal_blocks_agree(pair):
    comm, count = pair[0], 3
    x, out = numbers(count, comm.rank), np.empty(count * comm.size, "i8")
    both(pair, lambda c, y: c.Allgather(x, y), out)
    blocks = numbers(count * comm.size, comm.rank)
    both(pair, lambda c, y: c.Allgather(MPI.IN_PLACE, y), blocks)
    both(pair, lambda c, y: c.Alltoall(blocks, y), out)
    both(pair, lambda c, y: c.Alltoall(MPI.IN_PLACE, y), blocks)
    both(pair, lambda c, y: c.Reduce_scatter_block(blocks, y), x)
    [c.Barrier() for c in pair]
    for c in pair:
        buffer = blocks.copy()
        c.Reduce_scatter_block(MPI.IN_PLACE, buffer)
        np.testing.assert_array_equal(buffer[:count], sum_of(comm, blocks)[comm.rank * count :][:count])


def sum_of(comm, array):
    total = np.empty_like(array)
    comm.Allreduce(array, total)
    return total


def test_collectives_of_unequal_blocks_agree(pair):
    comm = pair[0]
    n, r = comm.size, comm.rank
    counts = [(k * 2 + 1) % 4 for k in range(n)]
    gaps = [sum(counts[:k]) + 2 * k for k in range(n)]
    x, out = numbers(counts[r], r), np.full(sum(counts) + 2 * n, 9)
    both(pair, lambda c, y: c.Allgatherv(x, [y, (counts, gaps), MPI.INT64_T]), out)
    both(pair, lambda c, y: c.Allgatherv(x, [y, counts]), out)
    both(
        pair, lambda c, y: c.Gatherv(x, [y, (counts, gaps), MPI.INT64_T] if r == n - 1 else None, n - 1), out
    )
    both(pair, lambda c, y: c.Scatterv([out, (counts, gaps), MPI.INT64_T] if r == 0 else None, y), x)
    vector = numbers(sum(counts), r)
    both(pair, lambda c, y: c.Reduce_scatter(vector, y, counts), x)
    both(pair, lambda c, y: c.Reduce_scatter(vector, y), x)
    lengths = np.add.outer(np.arange(n), 2 * np.arange(n)) % 3
    sent, received = lengths[r].tolist(), lengths[:, r].tolist()
    data, target = numbers(sum(sent), r), np.full(sum(received), 9)
    both(pair, lambda c, y: c.Alltoallv([data, sent], [y, received]), target)


def test_buffers_may_have_counts_and_types(pair):
    comm = pair[0]
    x = numbers(12, comm.rank)
    both(pair, lambda c, y: c.Allreduce([x, MPI.INT64_T], [y, 12, MPI.INT64_T]), x)
    both(pair, lambda c, y: c.Allreduce([x, 5, "q"], [y, 5, "q"]), x)
    both(pair, lambda c, y: c.Allreduce(x.reshape(3, 4), y), x.reshape(3, 4))


def test_the_mpi_type_decides_and_not_the_dtype_of_the_array(pair):
    comm = pair[0]
    integers = numbers(6, comm.rank)
    for array in (
        integers.view("f8"),
        integers.view("u1"),
        integers.view("u4"),
        integers.view("c16"),
        integers.view("V8"),
    ):
        out = np.zeros_like(array)
        for op in (MPI.SUM, MPI.MIN, MPI.PROD):
            both(
                pair,
                lambda c, y, op=op, a=array: c.Allreduce([a, MPI.INT64_T], [y, 6, MPI.INT64_T], op),
                out.view("i8"),
            )
            both(
                pair,
                lambda c, y, op=op, a=array: c.Scan([a, "l"], [y.view(a.dtype), "l"], op),
                out.view("i8"),
            )
        both(pair, lambda c, y, a=array: c.Allreduce(MPI.IN_PLACE, [y.view(a.dtype), MPI.INT64_T]), integers)
        both(pair, lambda c, y, a=array: c.Bcast([y.view(a.dtype), 4, MPI.INT64_T]), integers)
    with pytest.raises(
        UsageTypeError, match="a buffer must have a multiple of 8 bytes, the size of its MPI type, got 20"
    ):
        pair[1].Allreduce([np.zeros(5, "f4"), MPI.DOUBLE], np.zeros(5, "f4"))


def test_arrays_in_column_major_order_stay_so(pair):
    comm = pair[0]
    x = np.asfortranarray(numbers(12, comm.rank).reshape(3, 4))
    for call in ("Allreduce", "Bcast"):
        arrays = [x.copy(order="F") for _ in pair]
        for c, y in zip(pair, arrays):
            c.Bcast(y, comm.size - 1) if call == "Bcast" else c.Allreduce(x, y)
        assert arrays[1].flags.f_contiguous
        np.testing.assert_array_equal(arrays[1], arrays[0])


def test_operations_that_do_not_commute_keep_the_order_of_ranks(pair):
    """The product of 2 x 2 integer matrices depends on the order of the ranks."""
    comm = pair[0]

    def product(a, b, datatype):
        left, right = (np.frombuffer(m, np.int64).reshape(-1, 2, 2) for m in (a, b))
        right[:] = left @ right

    matrix = MPI.INT64_T.Create_contiguous(4).Commit()
    op = MPI.Op.Create(product, commute=False)
    x = np.array([[[1, comm.rank + 1], [0, 1]], [[0, 1], [1, comm.rank]]], np.int64)
    both(pair, lambda c, y: c.Allreduce([x, 2, matrix], [y, 2, matrix], op), x)
    both(pair, lambda c, y: c.Scan([x, 2, matrix], [y, 2, matrix], op), x)
    for root in range(comm.size):
        both(pair, lambda c, y, r=root: c.Reduce([x, 2, matrix], [y, 2, matrix], op, r), x)
    ring = EmulatedCommunicator(comm, all_reduce="ring")
    if comm.size > 2:
        with pytest.raises(WorldError, match="does not keep the order of operands"):
            ring.Allreduce([x, 2, matrix], [x.copy(), 2, matrix], op)
    ring.Free()
    op.Free()
    matrix.Free()


@pytest.mark.parametrize(("kind", "name"), [("i4", "TWOINT"), ("f4", "FLOAT_INT"), ("f8", "DOUBLE_INT")])
def test_maxloc_and_minloc_agree(pair, kind, name):
    comm, datatype = pair[0], getattr(MPI, name)
    padded = np.dtype([("value", kind), ("rank", "i4")], align=True)
    assert padded.itemsize == datatype.Get_extent()[1]
    x = np.zeros(3, padded)
    x["value"], x["rank"] = [-1.0 * (comm.rank % 2), comm.rank % 3, 5], comm.rank
    for op in (MPI.MAXLOC, MPI.MINLOC):
        arrays = [np.zeros(3, padded) for _ in pair]
        for c, y in zip(pair, arrays):
            c.Allreduce([x, 3, datatype], [y, 3, datatype], op)
        for field in ("value", "rank"):
            np.testing.assert_array_equal(arrays[1][field], arrays[0][field])


def test_all_reduce_is_right_with_every_algorithm(mpi_comm):
    x = numbers(17, mpi_comm.rank)
    wanted = sum_of(mpi_comm, x)
    for one in algorithms("all_reduce"):
        if one.fits(mpi_comm.size, dict(one.options)):
            stand_in = EmulatedCommunicator(mpi_comm, allreduce=one.name)
            result = np.empty_like(x)
            stand_in.Allreduce(x, result)
            np.testing.assert_array_equal(result, wanted)
            stand_in.Free()


def test_all_reduce_is_right_with_the_choices_of_each_library(mpi_comm):
    for library in ("mpich", "openmpi"):
        stand_in = EmulatedCommunicator(mpi_comm, library)
        for count in (1, 3000, 100_000):
            x = numbers(count, mpi_comm.rank)
            result = np.empty_like(x)
            stand_in.Allreduce(x, result)
            np.testing.assert_array_equal(result, sum_of(mpi_comm, x))
        stand_in.Free()


def test_other_attributes_come_from_the_real_communicator(pair):
    comm, stand_in = pair
    assert (stand_in.rank, stand_in.size, stand_in.Get_size()) == (comm.rank, comm.size, comm.size)
    assert stand_in.allreduce(1) == comm.size


def test_wrong_arguments_raise(pair):
    comm, stand_in = pair
    x = np.zeros((4, 4))
    with pytest.raises(UsageTypeError, match="must be contiguous"):
        stand_in.Allreduce(x[:, :2], np.empty((4, 2)))
    with pytest.raises(UsageTypeError, match="a buffer must be a numpy array or similar, got str"):
        stand_in.Allreduce("text", np.empty(4))
    if comm.size > 1:
        with pytest.raises(WorldError, match="a buffer without counts must have a multiple of"):
            stand_in.Allgather(np.zeros(1), np.zeros(comm.size + 1))
    with pytest.raises(ScheduleError, match="no algorithm 'rung'"):
        EmulatedCommunicator(comm, all_reduce="rung")
    with pytest.raises(SpmdError, match="the choices of 'nccl' are not known; known are openmpi, mpich"):
        EmulatedCommunicator(comm, "nccl")
    with pytest.raises(SpmdError, match="no collective 'all_reduced'"):
        EmulatedCommunicator(comm, all_reduced="ring")


def test_copies_and_parts_are_emulated_communicators(pair):
    comm, stand_in = pair
    assert isinstance(stand_in, MPI.Comm) and stand_in == comm
    named = EmulatedCommunicator(comm, all_reduce="ring")
    color = 0 if comm.rank < 2 else MPI.UNDEFINED
    others = [named.Dup(), named.Split(comm.rank % 2, comm.rank), named.Split(color), named.Clone()]
    for other in others:
        if other == MPI.COMM_NULL:
            assert color == MPI.UNDEFINED
            continue
        assert isinstance(other, EmulatedCommunicator) and other.library == named.library
        result, x = np.empty(5), np.arange(5.0) + other.rank
        other.Allreduce(x, result)
        np.testing.assert_array_equal(result, sum_of(other.real, x))
        assert other.sendrecv(other.rank, other.rank, source=other.rank) == other.rank
        other.Free()
    with pytest.raises(WorldError, match="Idup: an emulated communicator must be copied by a blocking call"):
        named.Idup()
    named.Free()
