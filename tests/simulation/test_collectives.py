"""Collectives give the results of plain NumPy: blocking, nonblocking, persistent, in place and with derived types."""

from __future__ import annotations

import re
from functools import reduce
from typing import Any

import numpy as np
import pytest

from spmdsim.simulation import SimulationError, simulate

pytest.importorskip("greenlet")

SIZES = [1, 2, 3, 4, 7, 16]


def data(rank: int, count: int = 6) -> Any:
    return np.random.default_rng(rank).integers(-50, 50, count)


def stack(size: int, count: int = 6) -> Any:
    return np.stack([data(rank, count) for rank in range(size)])


def run(program: Any, size: int, *args: Any) -> Any:
    report = simulate(program, size, *args, strict=True)
    assert report.problems == ()
    return report.results


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("start", ["", "I", "_init"])
def test_reductions_give_the_sums_of_numpy(size: int, start: str) -> None:
    def program(comm: Any) -> Any:
        """Return the result of each reduction by name."""

        def call(name: str, *args: Any, **kwargs: Any) -> None:
            """Run a collective to its end in the form that `start` selects."""

            if start == "I":
                getattr(comm, f"I{name.lower()}")(*args, **kwargs).Wait()
            elif start == "_init":
                request = getattr(comm, f"{name}_init")(*args, **kwargs)
                for _ in range(2):
                    request.Start()
                    request.Wait()
            else:
                getattr(comm, name)(*args, **kwargs)

        x, arrays = data(comm.rank), {}
        arrays["all"] = np.zeros_like(x)
        call("Allreduce", x, arrays["all"])
        arrays["root"] = np.zeros_like(x)
        root = comm.size - 1
        call("Reduce", x, arrays["root"] if comm.rank == root else None, root=root)
        arrays["scan"] = np.zeros_like(x)
        call("Scan", x, arrays["scan"])
        arrays["exscan"] = np.full_like(x, 99)
        call("Exscan", x, arrays["exscan"])
        arrays["block"] = np.zeros(2, dtype=x.dtype)
        call("Reduce_scatter_block", data(comm.rank, 2 * comm.size), arrays["block"])
        counts = [r % 3 for r in range(comm.size)]
        arrays["uneven"] = np.zeros(comm.rank % 3, dtype=x.dtype)
        call("Reduce_scatter", data(comm.rank, sum(counts)), arrays["uneven"], counts)
        return arrays

    results = run(program, size)
    stacked = stack(size)
    blocks = stack(size, 2 * size).sum(axis=0)
    counts = [r % 3 for r in range(size)]
    starts = np.concatenate([[0], np.cumsum(counts)])
    uneven = stack(size, sum(counts)).sum(axis=0)
    for rank, arrays in enumerate(results):
        np.testing.assert_array_equal(arrays["all"], stacked.sum(axis=0))
        expected = stacked.sum(axis=0) if rank == size - 1 else np.zeros(6)
        np.testing.assert_array_equal(arrays["root"], expected)
        np.testing.assert_array_equal(arrays["scan"], stacked[: rank + 1].sum(axis=0))
        expected = stacked[:rank].sum(axis=0) if rank else np.full(6, 99)
        np.testing.assert_array_equal(arrays["exscan"], expected)
        np.testing.assert_array_equal(arrays["block"], blocks[2 * rank : 2 * rank + 2])
        np.testing.assert_array_equal(arrays["uneven"], uneven[starts[rank] : starts[rank + 1]])


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("nonblocking", [False, True])
def test_moved_blocks_equal_slices_of_numpy(size: int, nonblocking: bool) -> None:
    def program(comm: Any) -> Any:
        """Return the received array of each collective by name."""

        def call(name: str, *args: Any, **kwargs: Any) -> None:
            if nonblocking:
                getattr(comm, f"I{name.lower()}")(*args, **kwargs).Wait()
            else:
                getattr(comm, name)(*args, **kwargs)

        n, rank, arrays = comm.size, comm.rank, {}
        root = n // 2
        x = data(rank)
        arrays["bcast"] = x.copy()
        call("Bcast", arrays["bcast"], root=root)
        arrays["gather"] = np.zeros((n, 6), dtype=int) if rank == root else None
        call("Gather", x, arrays["gather"], root=root)
        arrays["all"] = np.zeros((n, 6), dtype=int)
        call("Allgather", x, arrays["all"])
        arrays["scatter"] = np.zeros(3, dtype=int)
        call("Scatter", data(7, 3 * n) if rank == root else None, arrays["scatter"], root=root)
        arrays["swap"] = np.zeros(2 * n, dtype=int)
        call("Alltoall", data(rank, 2 * n), arrays["swap"])
        # Uneven: rank r has r + 1 elements, received in reverse rank order with a gap of one.
        counts = [r + 1 for r in range(n)]
        displacements = [sum(counts[r + 1 :]) + (n - 1 - r) for r in range(n)]
        room = np.full(sum(counts) + n, -1)
        call("Allgatherv", data(rank, rank + 1), [room, counts, displacements, "l"])
        arrays["uneven"] = room
        room = np.full(sum(counts) + n, -1)
        call("Gatherv", data(rank, rank + 1), [room, (counts, displacements)] if rank == root else None, root)
        arrays["gatherv"] = room
        own_block = np.zeros(rank + 1, dtype=int)
        call("Scatterv", [data(5, sum(counts)), counts] if rank == root else None, own_block, root)
        arrays["scatterv"] = own_block
        send_counts = [(rank * 2 + r) % 4 for r in range(n)]
        receive_counts = [(r * 2 + rank) % 4 for r in range(n)]
        received = np.zeros(sum(receive_counts), dtype=int)
        call("Alltoallv", [data(rank, sum(send_counts)), send_counts], [received, receive_counts])
        arrays["swapv"] = received
        return arrays

    results = run(program, size)
    root = size // 2
    counts = [r + 1 for r in range(size)]
    displacements = [sum(counts[r + 1 :]) + (size - 1 - r) for r in range(size)]
    uneven = np.full(sum(counts) + size, -1)
    for r in range(size):
        uneven[displacements[r] : displacements[r] + r + 1] = data(r, r + 1)
    sends = [[(s * 2 + r) % 4 for r in range(size)] for s in range(size)]
    for rank, arrays in enumerate(results):
        np.testing.assert_array_equal(arrays["bcast"], data(root))
        np.testing.assert_array_equal(arrays["all"], stack(size))
        if rank == root:
            np.testing.assert_array_equal(arrays["gather"], stack(size))
        np.testing.assert_array_equal(arrays["scatter"], data(7, 3 * size)[3 * rank : 3 * rank + 3])
        swapped = stack(size, 2 * size)[:, 2 * rank : 2 * rank + 2].reshape(-1)
        np.testing.assert_array_equal(arrays["swap"], swapped)
        np.testing.assert_array_equal(arrays["uneven"], uneven)
        expected = uneven if rank == root else np.full_like(uneven, -1)
        np.testing.assert_array_equal(arrays["gatherv"], expected)
        start = sum(counts[:rank])
        own_block = data(5, sum(counts))[start : start + rank + 1]
        np.testing.assert_array_equal(arrays["scatterv"], own_block)
        blocks = []
        for s in range(size):
            begin = sum(sends[s][:rank])
            blocks.append(data(s, sum(sends[s]))[begin : begin + sends[s][rank]])
        np.testing.assert_array_equal(arrays["swapv"], np.concatenate(blocks))


@pytest.mark.parametrize("size", [1, 3, 4])
def test_in_place_collectives_give_the_results_of_numpy(size: int) -> None:
    def program(comm: Any) -> Any:
        """Return the result of each collective by name."""

        from mpi4py import MPI

        n, rank, arrays = comm.size, comm.rank, {}
        arrays["reduce"] = data(rank)
        send = MPI.IN_PLACE if rank == 0 else arrays["reduce"]
        comm.Reduce(send, arrays["reduce"] if rank == 0 else None)
        arrays["allreduce"] = data(rank)
        comm.Allreduce(MPI.IN_PLACE, arrays["allreduce"], op=MPI.MAX)
        arrays["scan"] = data(rank)
        comm.Scan(MPI.IN_PLACE, arrays["scan"])
        arrays["allgather"] = np.zeros((n, 6), dtype=int)
        arrays["allgather"][rank] = data(rank)
        comm.Allgather(MPI.IN_PLACE, arrays["allgather"])
        arrays["alltoall"] = data(rank, n)
        comm.Alltoall(MPI.IN_PLACE, arrays["alltoall"])
        arrays["gather"] = np.zeros((n, 6), dtype=int)
        arrays["gather"][rank] = data(rank)
        comm.Gather(MPI.IN_PLACE if rank == 0 else data(rank), arrays["gather"] if rank == 0 else None)
        arrays["scatter"] = data(3, 2 * n)
        comm.Scatter(arrays["scatter"], MPI.IN_PLACE if rank == 0 else (own_block := np.zeros(2, dtype=int)))
        arrays["own"] = arrays["scatter"][:2] if rank == 0 else own_block
        arrays["rsb"] = data(rank, 2 * n)
        comm.Reduce_scatter_block(MPI.IN_PLACE, arrays["rsb"])
        return arrays

    results = run(program, size)
    stacked = stack(size)
    np.testing.assert_array_equal(results[0]["reduce"], stacked.sum(axis=0))
    np.testing.assert_array_equal(results[0]["gather"], stacked)
    for rank, arrays in enumerate(results):
        np.testing.assert_array_equal(arrays["allreduce"], stacked.max(axis=0))
        np.testing.assert_array_equal(arrays["scan"], stacked[: rank + 1].sum(axis=0))
        np.testing.assert_array_equal(arrays["allgather"], stacked)
        np.testing.assert_array_equal(arrays["alltoall"], stack(size, size)[:, rank])
        np.testing.assert_array_equal(arrays["own"], data(3, 2 * size)[2 * rank : 2 * rank + 2])
        total = stack(size, 2 * size).sum(axis=0)
        np.testing.assert_array_equal(arrays["rsb"][:2], total[2 * rank : 2 * rank + 2])


OPS: dict[str, Any] = {
    "SUM": np.add,
    "PROD": np.multiply,
    "MAX": np.maximum,
    "MIN": np.minimum,
    "BAND": np.bitwise_and,
    "BOR": np.bitwise_or,
    "BXOR": np.bitwise_xor,
    "LAND": lambda a, b: ((a != 0) & (b != 0)).astype(a.dtype),
    "LOR": lambda a, b: ((a != 0) | (b != 0)).astype(a.dtype),
    "LXOR": lambda a, b: ((a != 0) ^ (b != 0)).astype(a.dtype),
}


@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize("dtype", ["i4", "u1", "i8"])
def test_named_operations_equal_numpys(name: str, dtype: str) -> None:
    def program(comm: Any) -> Any:
        from mpi4py import MPI

        x = (data(comm.rank) % 3).astype(dtype)
        y = np.zeros_like(x)
        comm.Allreduce(x, y, op=getattr(MPI, name))
        return y

    operands = [(data(rank) % 3).astype(dtype) for rank in range(5)]
    for result in run(program, 5):
        assert result.dtype == dtype
        np.testing.assert_array_equal(result, reduce(OPS[name], operands))


def test_located_extremes_prefer_the_lower_rank() -> None:
    def program(comm: Any) -> Any:
        """Return the minima, the maxima and the object maximum, each with its rank."""

        from mpi4py import MPI

        kind = np.dtype([("value", "f8"), ("index", "i4")], align=True)
        x = np.zeros(2, dtype=kind)
        x["value"] = [comm.rank % 3, -(comm.rank % 3)]
        x["index"] = comm.rank
        low, high = x.copy(), x.copy()
        comm.Allreduce([x, MPI.DOUBLE_INT], [low, MPI.DOUBLE_INT], op=MPI.MINLOC)
        comm.Allreduce([x, MPI.DOUBLE_INT], [high, MPI.DOUBLE_INT], op=MPI.MAXLOC)
        pair = comm.allreduce((comm.rank % 3, comm.rank), op=MPI.MAXLOC)
        return low.tolist(), high.tolist(), pair

    expected = ([(0.0, 0), (-2.0, 2)], [(2.0, 2), (0.0, 0)], (2, 2))
    assert run(program, 7) == (expected,) * 7


@pytest.mark.parametrize("size", [1, 2, 5, 8])
def test_operations_that_do_not_commute_keep_rank_order(size: int) -> None:
    def program(comm: Any) -> Any:
        """Return the reduction and the scan of a custom operation, and two reductions of objects."""

        from mpi4py import MPI

        def append_digit(inbuf: Any, inoutbuf: Any, datatype: Any) -> None:
            left = np.frombuffer(inbuf, dtype="i8")
            right = np.frombuffer(inoutbuf, dtype="i8")
            right[:] = 10 * left + right

        def concatenate(x: Any, y: Any, datatype: Any) -> Any:
            return x + y

        digits = MPI.Op.Create(append_digit, commute=False)
        assert not digits.Is_commutative()
        own_digit, total, scan = np.array([comm.rank]), np.zeros(1, int), np.zeros(1, int)
        comm.Allreduce(own_digit, total, op=digits)
        comm.Scan(own_digit, scan, op=digits)
        text = comm.allreduce(str(comm.rank), op=MPI.Op.Create(concatenate))
        ranks = comm.allreduce([comm.rank], op=lambda a, b: a + b)
        digits.Free()
        return int(total[0]), int(scan[0]), text, ranks

    # 10 · left + right is not associative, so the reduction must start at rank 0.
    for rank, result in enumerate(run(program, size)):
        number = reduce(lambda a, b: 10 * a + b, range(size))
        prefix = reduce(lambda a, b: 10 * a + b, range(rank + 1))
        assert result == (number, prefix, "".join(map(str, range(size))), list(range(size)))


@pytest.mark.parametrize("size", SIZES)
def test_collectives_of_objects_return_the_right_objects(size: int) -> None:
    def program(comm: Any) -> Any:
        """Return the result of each collective of objects."""

        n, rank = comm.size, comm.rank
        return (
            comm.bcast({"root": rank} if rank == n - 1 else None, root=n - 1),
            comm.gather([rank], root=n // 2),
            comm.allgather((rank, "x")),
            comm.scatter([[i] for i in range(n)] if rank == 0 else None),
            comm.alltoall([f"{rank}>{i}" for i in range(n)]),
            comm.reduce(rank, root=n - 1),
            comm.scan([rank]),
            comm.exscan([rank]),
        )

    ranks = list(range(size))
    for rank, result in enumerate(run(program, size)):
        assert result == (
            {"root": size - 1},
            [[i] for i in ranks] if rank == size // 2 else None,
            [(i, "x") for i in ranks],
            [rank],
            [f"{i}>{rank}" for i in ranks],
            sum(ranks) if rank == size - 1 else None,
            ranks[: rank + 1],
            ranks[:rank] if rank else None,
        )


def test_collectives_return_copies_of_objects() -> None:
    def program(comm: Any) -> Any:
        original = [0]
        own_list = comm.bcast(original if comm.rank == 0 else None)
        assert own_list is not original
        lists = comm.allgather(own_list)
        comm.barrier()
        own_list.append(comm.rank)
        lists[0].append("changed")
        return comm.allgather(own_list)

    expected = [[0, 0], [0, 1], [0, 2]]
    assert run(program, 3) == (expected,) * 3


def test_alltoallw_uses_a_datatype_per_rank() -> None:
    def program(comm: Any) -> Any:
        """Return the received numbers."""

        from mpi4py import MPI

        n, rank = comm.size, comm.rank
        send = np.arange(4.0 * n) + 100 * rank
        values = np.zeros(2 * n)
        # Each rank receives every other element of a block of four.
        every_other = MPI.DOUBLE.Create_vector(2, 1, 2).Commit()
        displacements = [32 * r for r in range(n)]
        comm.Alltoallw(
            [send, ([1] * n, displacements), [every_other] * n],
            [values, ([2] * n, [16 * r for r in range(n)]), [MPI.DOUBLE] * n],
        )
        return values.tolist()

    for rank, result in enumerate(run(program, 3)):
        assert result == [100.0 * s + 4 * rank + 2 * i for s in range(3) for i in range(2)]


def test_displacements_of_alltoallw_may_be_any_number_of_bytes() -> None:
    def program(comm: Any) -> list[bytes]:
        from mpi4py import MPI

        types, send = [MPI.INT, MPI.DOUBLE], np.arange(20, dtype=np.uint8) + 100 * comm.rank
        results = []
        for absolute in (False, True):
            receive = np.zeros(20, np.uint8)
            base = [MPI.Get_address(memory) if absolute else 0 for memory in (send, receive)]
            buffers = [MPI.BOTTOM] * 2 if absolute else [send, receive]
            datatype = types[comm.rank]
            comm.Alltoallw(
                [buffers[0], [1, 1], [base[0] + 3, base[0] + 9], types],
                [buffers[1], [1, 1], [base[1] + 1, base[1] + 11], [datatype] * 2],
            )
            results.append(receive.tobytes())
        return results

    first, second = run(program, 2)
    sent = [bytes(range(20)), bytes(range(100, 120))]
    expected = [
        b"\0" + sent[0][3:7] + bytes(6) + sent[1][3:7] + bytes(5),
        b"\0" + sent[0][9:17] + bytes(2) + sent[1][9:17] + bytes(1),
    ]
    assert first == [expected[0]] * 2 and second == [expected[1]] * 2


@pytest.mark.parametrize("pair", [tuple, list])
def test_counts_and_displacements_of_alltoallw_may_be_any_pair(pair: type) -> None:
    def program(comm: Any) -> Any:
        from mpi4py import MPI

        send, values = np.arange(4.0) + 10 * comm.rank, np.zeros(4)
        layout = pair([[1, 2], [24, 0]])
        comm.Alltoallw(
            [send, layout, [MPI.DOUBLE] * 2], [values, [1 + comm.rank] * 2, [0, 16], [MPI.DOUBLE] * 2]
        )
        return values.tolist()

    assert list(run(program, 2)) == [[3.0, 0.0, 13.0, 0.0], [0.0, 1.0, 10.0, 11.0]]


@pytest.mark.parametrize(
    ("counts", "displacements", "types", "message"),
    [
        ([2.0], [0], "DOUBLE", "the counts must be a list of integers, one for each rank, got [2.0]"),
        (["2"], [0], "DOUBLE", "the counts must be a list of integers, one for each rank, got ['2']"),
        (np.array([[2]]), [0], "DOUBLE", "the counts must be a list of integers, one for each rank, got"),
        (2, [0], "DOUBLE", "the counts must be a list of integers, one for each rank, got 2"),
        ([2], [0.0], "DOUBLE", "the displacements must be a list of integers, one for each rank, got [0.0]"),
        ([2], [0], "d", "the datatypes must be a list of MPI datatypes such as MPI.DOUBLE, one for each rank, got"),
        ([2], [0], None, "the datatypes must be a list of MPI datatypes such as MPI.DOUBLE, one for each rank, got"),
    ],
)  # fmt: skip
def test_wrong_counts_and_datatypes_per_rank_are_refused(
    counts: Any, displacements: Any, types: str | None, message: str
) -> None:
    """The call raises TypeError, like mpi4py."""

    def program(comm: Any) -> Any:
        from mpi4py import MPI

        right = [np.zeros(2), ([2], [0]), [MPI.DOUBLE]]
        wrong = [np.zeros(2), (counts, displacements), [MPI.DOUBLE if types == "DOUBLE" else types]]
        for buffers in ((wrong, right), (right, wrong)):
            with pytest.raises(TypeError, match=re.escape(message)):
                comm.Alltoallw(*buffers)

    run(program, 1)


def test_a_stride_is_a_displacement_and_missing_counts_come_from_the_buffers() -> None:
    def program(comm: Any) -> Any:
        from mpi4py import MPI

        n, rank = comm.size, comm.rank
        room = np.full(3 * n, -1)
        comm.Allgatherv(np.array([rank, rank]), [room, (2, 3), MPI.LONG])
        own_block = np.zeros(rank + 1, dtype=int)
        comm.Reduce_scatter(np.arange(n * (n + 1) // 2), own_block)
        return room.tolist(), own_block.tolist()

    results = run(program, 3)
    assert results[0] == ([0, 0, -1, 1, 1, -1, 2, 2, -1], [0])
    assert results[2][1] == [9, 12, 15]


def test_blocks_of_reduce_scatter_must_fit() -> None:
    def program(comm: Any) -> None:
        vector, single = np.arange(4.0), np.zeros(2, np.float32)
        for call in (comm.Reduce_scatter, comm.Reduce_scatter_block):
            with pytest.raises(ValueError, match="got float64 to send and float32 to receive"):
                call(vector, single)
        for length in (1, 3):
            with pytest.raises(ValueError, match=f"must have 2 elements, got {length}"):
                comm.Reduce_scatter(vector, np.zeros(length), [2, 2])
        with pytest.raises(ValueError, match="must have 4 elements, got 5"):
            comm.Allreduce(vector, np.zeros(5))

    run(program, 2)


def test_empty_buffers_match_any_type() -> None:
    def program(comm: Any) -> Any:
        own_values = np.arange(2) if comm.rank else np.array([])  # The empty array has type float.
        counts = [0] + [2] * (comm.size - 1)
        room = np.zeros(sum(counts), dtype=int)
        comm.Allgatherv(own_values, [room, counts])
        comm.Sendrecv(np.zeros(0, "f4"), comm.rank, 0, np.zeros(3, "i8"), comm.rank)
        return room.tolist()

    assert run(program, 3) == ([0, 1, 0, 1],) * 3

    def wrong(comm: Any) -> None:
        comm.Allgatherv(np.zeros(1, "f4" if comm.rank == 1 else "f8"), np.zeros(comm.size))

    with pytest.raises(SimulationError, match=r"rank 1 sends 1 × float32 to rank 0, which expects"):
        run(wrong, 3)


def test_several_nonblocking_collectives_can_be_open() -> None:
    def program(comm: Any) -> Any:
        from mpi4py import MPI

        x, y = np.array([comm.rank]), np.zeros(1, dtype=int)
        z = np.array([comm.rank * 10])
        requests = [comm.Iallreduce(x, y), comm.Ibcast(z, root=1), comm.Ibarrier()]
        MPI.Request.Waitall(requests[::-1])
        return int(y[0]), int(z[0])

    assert run(program, 4) == ((6, 10),) * 4


def test_collectives_work_on_512_ranks() -> None:
    def program(comm: Any) -> Any:
        x, y = np.array([float(comm.rank)]), np.zeros(1)
        comm.Allreduce(x, y)
        return y[0], comm.exscan(comm.rank)

    results = run(program, 512)
    assert results[0] == (512 * 511 / 2, None)
    assert results[1:] == tuple((512 * 511 / 2, r * (r - 1) // 2) for r in range(1, 512))
