"""Messages work with every form of buffer, datatype, wildcard, probe and request."""

from __future__ import annotations

import array
from typing import Any

import numpy as np
import pytest

from spmdsim.simulation import simulate

pytest.importorskip("greenlet")


def run(program: Any, size: int, **options: Any) -> Any:
    report = simulate(program, size, strict=True, **options)
    assert report.problems == ()
    return report.results


def send_message(send: Any, receive: Any) -> Any:
    """Send one message to rank 1; return the contents of its memory and the byte count of its status.

    `send` and `receive` are functions of MPI that return a buffer specification and the array of its memory.
    """

    def program(comm: Any) -> Any:
        """Return the received values and the byte count on rank 1."""

        from mpi4py import MPI

        if comm.rank == 0:
            comm.Send(send(MPI)[0], dest=1)
            return None
        spec, memory = receive(MPI)
        status = MPI.Status()
        comm.Recv(spec, source=0, status=status)
        return np.asarray(memory).tolist(), status.Get_count()

    return run(program, 2)[1]


def buffer(memory: Any, *spec: Any) -> Any:
    """Return a buffer specification and its array.

    The specification is `[memory, *spec]`, or the array itself if no `spec` is given.
    """

    return [memory, *spec] if spec else memory, memory


@pytest.mark.parametrize(
    ("send", "receive", "expected", "nbytes"),
    [
        (lambda M: buffer(np.arange(3.0)), lambda M: buffer(np.zeros(3)), [0, 1, 2], 24),
        (lambda M: buffer(np.arange(3.0), 2), lambda M: buffer(np.zeros(3)), [0, 1, 0], 16),
        (lambda M: buffer(np.arange(3.0), M.DOUBLE), lambda M: buffer(np.zeros(3), "d"), [0, 1, 2], 24),
        (lambda M: buffer(np.arange(4.0), 2, M.DOUBLE), lambda M: buffer(np.zeros(3)), [0, 1, 0], 16),
        (lambda M: buffer(np.arange(4.0), (2, 1), M.DOUBLE), lambda M: buffer(np.zeros(2)), [1, 2], 16),
        (lambda M: buffer(np.arange(4.0), 2, 2, M.DOUBLE), lambda M: buffer(np.zeros(2)), [2, 3], 16),
        (lambda M: buffer(np.arange(2.0)), lambda M: buffer(np.zeros(4), (2, 2)), [0, 0, 0, 1], 16),
        (lambda M: buffer(np.arange(4.0), (2, 1), None), lambda M: buffer(np.zeros(2)), [1, 2], 16),
        (lambda M: buffer(np.ones((2, 3))), lambda M: buffer(np.zeros(6)), [1] * 6, 48),
        (lambda M: buffer(np.float32(2.5)), lambda M: buffer(np.zeros((), "f4")), 2.5, 4),
        (lambda M: buffer(array.array("i", [4, 5])), lambda M: buffer(np.zeros(2, "i")), [4, 5], 8),
        (lambda M: buffer(b"ab"), lambda M: buffer(bytearray(2)), None, 2),
        (lambda M: buffer(np.array([True, False])), lambda M: buffer(np.ones(2, bool)), [True, False], 2),
        (lambda M: buffer(np.zeros(0)), lambda M: buffer(np.ones(2)), [1, 1], 0),
        (lambda M: buffer(None, 0, M.BYTE), lambda M: buffer(np.ones(2), M.BYTE), [1, 1], 0),
    ],
)
def test_every_form_of_a_buffer_sends_and_receives_its_elements(
    send: Any, receive: Any, expected: Any, nbytes: int
) -> None:
    received, count = send_message(send, receive)
    assert count == nbytes
    if expected is not None:
        assert received == expected


def test_derived_datatypes_select_the_elements_that_numpy_selects() -> None:
    grid = np.arange(30.0).reshape(5, 6)

    def program(comm: Any) -> Any:
        """Return the elements that rank 1 receives through each datatype, and sizes of datatypes in bytes."""

        from mpi4py import MPI

        kinds = {
            "column": MPI.DOUBLE.Create_vector(5, 1, 6),
            "hcolumn": MPI.DOUBLE.Create_hvector(5, 1, 48),
            "box": MPI.DOUBLE.Create_subarray([5, 6], [2, 3], [1, 2]),
            "indexed": MPI.DOUBLE.Create_indexed([1, 2], [3, 10]),
            "blocks": MPI.DOUBLE.Create_indexed_block(2, [0, 8]),
            "row": MPI.DOUBLE.Create_contiguous(6),
            "diagonal": MPI.DOUBLE.Create_vector(5, 1, 7),
        }
        kinds["two columns"] = kinds["column"].Create_resized(0, 8)
        elements = {}
        for name, kind in kinds.items():
            kind.Commit()
            count = 2 if name == "two columns" else 1
            if comm.rank == 0:
                comm.Send([grid, count, kind], dest=1)
            else:
                room = np.full(12, -1.0)
                status = MPI.Status()
                comm.Recv(room, source=0, status=status)
                elements[name] = room[: status.Get_count(MPI.DOUBLE)].tolist()
        sizes = (kinds["box"].Get_size(), kinds["box"].Get_extent(), kinds["column"].size)
        return elements, sizes

    elements, sizes = run(program, 2)[1]
    assert elements["column"] == elements["hcolumn"] == grid[:, 0].tolist()
    assert elements["box"] == grid[1:3, 2:5].reshape(-1).tolist()
    assert elements["indexed"] == [3, 10, 11]
    assert elements["blocks"] == [0, 1, 8, 9]
    assert elements["row"] == grid[0].tolist()
    assert elements["diagonal"] == np.diag(grid).tolist()
    assert elements["two columns"] == grid[:, :2].T.reshape(-1).tolist()
    assert sizes == (48, (0, 240), 40)


def bounds(build: Any) -> tuple[int, ...]:
    """Return the size, lower bound, extent, true lower bound and true extent of a datatype, in bytes."""

    def program(comm: Any) -> Any:
        from mpi4py import MPI

        kind = build(MPI)
        return (kind.size, *kind.Get_extent(), *kind.Get_true_extent())

    return run(program, 1)[0]


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (lambda M: M.INT.Create_indexed([1, 2], [3, 10]), (12, 12, 36, 12, 36)),
        (lambda M: M.INT.Create_indexed([0, 2], [1, 5]), (8, 20, 8, 20, 8)),
        (lambda M: M.INT.Create_indexed([2, 1], [-3, 1]), (12, -12, 20, -12, 20)),
        (lambda M: M.INT.Create_hindexed([1], [8]).Create_contiguous(3), (12, 8, 12, 8, 12)),
        (lambda M: M.DOUBLE.Create_vector(2, 1, -3), (16, -24, 32, -24, 32)),
        (lambda M: M.INT.Create_resized(-4, 12).Create_vector(2, 1, 2), (8, -4, 36, 0, 28)),
        (lambda M: M.INT.Create_resized(-4, 12).Dup(), (4, -4, 12, 0, 4)),
        (lambda M: M.Datatype.Create_struct([1, 1], [0, 8], [M.DOUBLE, M.CHAR]), (9, 0, 16, 0, 9)),
        (lambda M: M.Datatype.Create_struct([1, 1], [4, 8], [M.INT, M.SHORT]), (6, 4, 8, 4, 6)),
        (
            lambda M: M.Datatype.Create_struct([1, 1], [0, 8], [M.DOUBLE, M.CHAR]).Create_contiguous(2),
            (18, 0, 32, 0, 25),
        ),
        (
            lambda M: M.Datatype.Create_struct([1, 1], [24, 8], [M.INT.Create_resized(0, 12), M.DOUBLE]),
            (12, 24, 12, 8, 20),
        ),
        (lambda M: M.Datatype.Create_struct([0, 1], [64, 8], [M.INT, M.INT]), (4, 8, 4, 8, 4)),
        (lambda M: M.INT.Create_contiguous(0), (0, 0, 0, 0, 0)),
        (lambda M: M.INT.Create_subarray([2, 3], [2, 1], [0, 1], M.ORDER_FORTRAN), (8, 0, 24, 8, 8)),
    ],
)
def test_the_bounds_of_derived_datatypes_follow_the_standard(build: Any, expected: Any) -> None:
    """The lower bound is the first byte. The extent ends at the last byte, rounded up to the alignment."""
    assert bounds(build) == expected


def test_values_of_a_derived_datatype_are_one_extent_apart() -> None:
    def program(comm: Any) -> Any:
        """Return the fields of the record and the numbers that rank 1 receives."""

        from mpi4py import MPI

        record = np.zeros(3, np.dtype([("value", "f8"), ("tag", "S1")], align=True))
        record["value"], record["tag"] = comm.rank + np.arange(3), b"abc"[comm.rank : comm.rank + 1]
        kind = MPI.Datatype.Create_struct([1, 1], [0, 8], [MPI.DOUBLE, MPI.CHAR]).Commit()
        odd = MPI.INT.Create_indexed([1, 1], [1, 3]).Commit()
        room = np.full(8, -1, "i4")
        if comm.rank == 0:
            comm.Send([record, 3, kind], dest=1)
            comm.Send([np.arange(8, dtype="i4"), 2, odd], dest=1)
        else:
            comm.Recv([record, 3, kind], source=0)
            comm.Recv([room, 4, MPI.INT], source=0)
        return record["value"].tolist(), record["tag"].tolist(), room.tolist()

    assert run(program, 2)[1] == ([0, 1, 2], [b"a"] * 3, [1, 3, 4, 6, -1, -1, -1, -1])


def test_a_buffer_that_is_no_multiple_of_the_extent_needs_a_count() -> None:
    def program(comm: Any) -> Any:
        from mpi4py import MPI

        kind = MPI.INT.Create_vector(2, 1, 3).Commit()
        with pytest.raises(
            ValueError, match=r"must have a multiple of the extent of MPI\.vector, 16 bytes, got 36 bytes"
        ):
            comm.Send([np.zeros(9, "i4"), kind], dest=0)

    run(program, 1)


def test_a_derived_datatype_scatters_received_values() -> None:
    def program(comm: Any) -> Any:
        """Return column 2 of the grid and the sum of the grid on rank 1."""

        from mpi4py import MPI

        if comm.rank == 0:
            comm.Send(np.array([7.0, 8.0, 9.0]), dest=1)
            return None
        grid = np.zeros((3, 4))
        column = MPI.DOUBLE.Create_vector(3, 1, 4).Commit()
        comm.Recv([grid.reshape(-1)[2:], 1, column], source=0)
        return grid[:, 2].tolist(), grid.sum()

    assert run(program, 2)[1] == ([7, 8, 9], 24)


def test_an_uncommitted_datatype_is_refused() -> None:
    def program(comm: Any) -> None:
        from mpi4py import MPI

        comm.Send([np.zeros(4), 1, MPI.DOUBLE.Create_contiguous(2)], dest=0)

    report = simulate(program, 1, check=False)
    assert "must be committed" in report.problems[0].message


def test_tags_select_and_order_is_kept() -> None:
    def program(comm: Any) -> Any:
        if comm.rank == 0:
            requests = [comm.isend(i, dest=1, tag=i % 2) for i in range(6)]
            for request in requests:
                request.wait()
            return None
        return [comm.recv(source=0, tag=1) for _ in range(3)] + [comm.recv() for _ in range(3)]

    assert run(program, 2)[1] == [1, 3, 5, 0, 2, 4]


def test_receives_match_in_the_order_of_their_posting() -> None:
    def program(comm: Any) -> Any:
        """Return the two objects that rank 0 receives."""

        from mpi4py import MPI

        if comm.rank == 0:
            anything = comm.irecv(source=MPI.ANY_SOURCE, tag=MPI.ANY_TAG)
            exact = comm.irecv(source=1, tag=3)
            comm.barrier()
            return anything.wait(), exact.wait()
        comm.barrier()
        comm.send("first", dest=0, tag=3)
        comm.send("second", dest=0, tag=3)
        return None

    assert run(program, 2)[0] == ("first", "second")


def test_probes_find_messages_and_matched_probes_reserve_them() -> None:
    def program(comm: Any) -> Any:
        """Return the objects and arrays that rank 1 receives after each kind of probe."""

        from mpi4py import MPI

        if comm.rank == 0:
            comm.send([1, 2], dest=1, tag=4)
            comm.Send(np.arange(5, dtype="i"), dest=1, tag=6)
            comm.send("reserved", dest=1, tag=8)
            comm.send("other", dest=1, tag=8)
            return None
        status = MPI.Status()
        comm.Probe(source=0, tag=4, status=status)
        first = (status.source, status.tag, comm.recv(source=0, tag=4))
        while not comm.Iprobe(source=0, tag=6, status=status):
            pass
        room = np.zeros(status.Get_count(MPI.INT), dtype="i")
        comm.Recv(room, source=0, tag=6)
        reserved = comm.mprobe(source=0, tag=8)
        return first, room.tolist(), reserved.recv(), comm.recv(source=0, tag=8)

    assert run(program, 2)[1] == ((0, 4, [1, 2]), [0, 1, 2, 3, 4], "reserved", "other")


def test_waitany_and_testall_complete_every_request() -> None:
    def program(comm: Any) -> Any:
        """Return the results of waitany and testall on rank 0."""

        from mpi4py import MPI

        if comm.rank:
            for turn in range(2):
                comm.send((comm.rank, turn), dest=0, tag=turn)
            return None
        requests = [comm.irecv(source=r, tag=0) for r in range(1, comm.size)]
        completed = [MPI.Request.waitany(requests) for _ in requests]
        assert MPI.Request.Waitany(requests) == MPI.UNDEFINED
        second_requests = [comm.irecv(source=r, tag=1) for r in range(1, comm.size)]
        done, objects = MPI.Request.testall(second_requests)
        while not done:
            done, objects = MPI.Request.testall(second_requests)
        assert MPI.Request.Testall(second_requests) and not any(second_requests)
        null = MPI.REQUEST_NULL
        assert null.Test() and null.Wait() and null.wait() is None
        return completed, objects

    completed, objects = run(program, 4)[0]
    assert sorted(completed) == [(0, (1, 0)), (1, (2, 0)), (2, (3, 0))]
    assert objects == [(1, 1), (2, 1), (3, 1)]


def test_waitsome_and_testsome_complete_every_request() -> None:
    def program(comm: Any) -> Any:
        """Return the indices of the completed requests and the received numbers on rank 0."""

        from mpi4py import MPI

        if comm.rank:
            comm.Send(np.array([comm.rank]), dest=0)
            return None
        rooms = [np.zeros(1, int) for _ in range(comm.size - 1)]
        requests = [comm.Irecv(room, source=r + 1) for r, room in enumerate(rooms)]
        indices: list[int] = []
        while len(indices) < 2:
            indices += MPI.Request.Waitsome(requests) or []
        while len(indices) < len(rooms):
            indices += MPI.Request.Testsome(requests) or []
        assert MPI.Request.Waitsome(requests) is None
        return sorted(indices), [int(room[0]) for room in rooms]

    assert run(program, 5)[0] == ([0, 1, 2, 3], [1, 2, 3, 4])


def test_a_receive_buffer_is_filled_at_wait_not_before() -> None:
    def program(comm: Any) -> Any:
        """Return the buffer of rank 1 before and after Wait."""

        if comm.rank == 0:
            comm.Send(np.ones(2), dest=1)
            comm.barrier()
            return None
        room = np.zeros(2)
        request = comm.Irecv(room, source=0)
        comm.barrier()
        early = room.tolist()
        request.Wait()
        return early, room.tolist()

    assert run(program, 2)[1] == ([0, 0], [1, 1])


def test_the_status_of_a_cancelled_receive_is_cancelled() -> None:
    def program(comm: Any) -> Any:
        from mpi4py import MPI

        request = comm.Irecv(np.zeros(1), source=0, tag=99)
        request.Cancel()
        status = MPI.Status()
        request.Wait(status)
        return status.Is_cancelled()

    assert run(program, 2) == (True, True)


def test_messages_to_and_from_proc_null_do_nothing() -> None:
    def program(comm: Any) -> Any:
        """Return the buffer and the status after calls with PROC_NULL, and the received object."""

        from mpi4py import MPI

        status = MPI.Status()
        room = np.full(2, 5.0)
        comm.Send(room, dest=MPI.PROC_NULL)
        comm.Recv(room, source=MPI.PROC_NULL, status=status)
        comm.Sendrecv(room, MPI.PROC_NULL, 0, room.copy(), MPI.PROC_NULL)
        nothing = comm.sendrecv(1, dest=MPI.PROC_NULL, source=MPI.PROC_NULL)
        return room.tolist(), status.source == MPI.PROC_NULL, status.Get_count(), nothing

    assert run(program, 1) == (([5, 5], True, 0, None),)


def test_none_is_a_buffer_only_with_proc_null() -> None:
    def program(comm: Any) -> Any:
        """Return the number of calls that refuse None as a buffer."""

        from mpi4py import MPI

        null, room, messages = MPI.PROC_NULL, np.zeros(2), []
        comm.Send(None, null)
        comm.Ssend(None, null)
        comm.Isend(None, null).Wait()
        comm.Recv(None, null)
        comm.Irecv(None, null).Wait()
        comm.Sendrecv(None, null, 0, None, null)
        for call in (
            lambda: comm.Send(None, 0),
            lambda: comm.Isend(None, 0),
            lambda: comm.Send_init(None, 0),
            lambda: comm.Recv(None, 0),
            lambda: comm.Recv_init(None, 0),
            lambda: comm.Sendrecv(room, 0, 0, None, 0),
            lambda: comm.Bcast(None),
            lambda: comm.Gather(room, None),
            lambda: comm.Allgatherv(room, None),
            lambda: comm.Allreduce(room, None),
        ):
            with pytest.raises(TypeError, match="a buffer must be an array or ") as caught:
                call()
            messages.append(str(caught.value))
        return len(messages)

    assert run(program, 1) == (10,)


def test_freed_handles_are_null() -> None:
    def program(comm: Any) -> Any:
        """Return whether handles are valid before and null after Free, and whether predefined handles remain."""

        from mpi4py import MPI

        pair, group, info = MPI.DOUBLE.Create_contiguous(2).Commit(), comm.Get_group(), MPI.Info.Create()
        op = MPI.Op.Create(lambda left, right, datatype: None)
        copy = MPI.INT.Dup()
        nulls = [MPI.DATATYPE_NULL, MPI.GROUP_NULL, MPI.INFO_NULL, MPI.OP_NULL, MPI.DATATYPE_NULL]
        handles = [pair, group, info, op, copy]
        before = [bool(handle) or handle == null for handle, null in zip(handles, nulls)]
        for handle in handles:
            handle.Free()
        after = [handle == null and handle == null and not handle for handle, null in zip(handles, nulls)]
        with pytest.raises(MPI.Exception, match="ERR_OP"):
            comm.Allreduce(np.zeros(1), np.zeros(1), op)
        for handle_not_to_free, error in (
            (MPI.DOUBLE, "ERR_TYPE"),
            (MPI.SUM, "ERR_OP"),
            (pair, "TYPE"),
            (group, "GROUP"),
        ):
            with pytest.raises(MPI.Exception, match=error):
                handle_not_to_free.Free()
        MPI.GROUP_EMPTY.Free()
        return before == after == [True] * 5, bool(MPI.DOUBLE), bool(MPI.SUM), bool(MPI.GROUP_EMPTY)

    assert run(program, 1) == ((True,) * 4,)


def test_open_requests_still_use_freed_datatypes_and_operations() -> None:
    def program(comm: Any) -> Any:
        """Return the received column and the maximum after the datatype and the operation were freed."""

        from mpi4py import MPI

        column = MPI.DOUBLE.Create_vector(2, 1, 2).Commit()
        maximum = MPI.Op.Create(
            lambda left, right, datatype: np.maximum(
                np.frombuffer(left), np.frombuffer(right), out=np.frombuffer(right)
            )
        )
        room, total = np.zeros(3), np.zeros(1)
        receive = comm.Recv_init([room, 1, column], (comm.rank + 1) % 2)
        reduction = comm.Iallreduce(np.full(1, 3.0 + comm.rank), total, maximum)
        column.Free()
        maximum.Free()
        receive.Start()
        comm.Send(np.array([1.0, 2.0]), (comm.rank + 1) % 2)
        receive.Wait()
        reduction.Wait()
        return room.tolist(), total.tolist()

    assert run(program, 2) == (([1, 0, 2], [4]),) * 2


def test_packed_data_equals_the_packed_data_of_mpi4py() -> None:
    """Positions, sizes and errors are like in mpi4py on Open MPI."""

    def program(comm: Any) -> Any:
        """Return packed and unpacked values with their end positions, sizes in bytes, and unpacked pairs."""

        from mpi4py import MPI

        packed, values = bytearray(64), np.arange(6.0)
        column = MPI.DOUBLE.Create_vector(2, 1, 2).Commit()
        first = MPI.DOUBLE.Pack(values[:2], packed, 0, comm)
        last = column.Pack(values, packed, first, comm)
        data = np.frombuffer(bytes(packed[:last])).tolist()
        single, picked = np.zeros(1), np.full(6, 9.0)
        ends = MPI.DOUBLE.Unpack(packed, 8, single, comm), column.Unpack(packed, 16, picked, comm)
        pairs = np.zeros(2, np.dtype([("value", "f8"), ("index", "i4")], align=True))
        pairs["value"], pairs["index"] = [1, 2], [3, 4]
        unpacked_pairs = np.zeros_like(pairs)
        sizes = (
            MPI.DOUBLE_INT.Pack(pairs, packed, 1, comm),
            MPI.DOUBLE_INT.Unpack(packed, 1, unpacked_pairs, comm),
        )
        sizes += MPI.DOUBLE_INT.Pack_size(2, comm), column.Pack_size(2, comm)
        for call in (
            lambda: MPI.DOUBLE.Pack(values, bytearray(40), 0, comm),
            lambda: MPI.DOUBLE.Unpack(bytearray(40), 0, values, comm),
        ):
            with pytest.raises(
                MPI.Exception, match="ERR_TRUNCATE: message truncated: the packed buffer has 40 bytes"
            ):
                call()
        with pytest.raises(BufferError):
            MPI.DOUBLE.Pack(values, bytes(100), 0, comm)
        return (first, last, data, ends, single.tolist(), picked.tolist()), sizes, unpacked_pairs.tolist()

    copied = (16, 48, [0, 1, 0, 2, 3, 5], (16, 48), [1], [0, 9, 2, 3, 9, 5])
    assert run(program, 1) == ((copied, (25, 25, 24, 32), [(1, 3), (2, 4)]),)


def test_the_size_of_a_pair_excludes_its_padding() -> None:
    def program(comm: Any) -> Any:
        """Return sizes and extents of pair datatypes in bytes, counts, and bounds of derived datatypes."""

        from mpi4py import MPI

        names = ["DOUBLE_INT", "LONG_INT", "FLOAT_INT", "TWOINT", "SHORT_INT"]
        pairs, status = np.zeros(3, np.dtype([("value", "f8"), ("index", "i4")], align=True)), MPI.Status()
        request = comm.Isend([pairs, MPI.DOUBLE_INT], 0)
        comm.Recv([pairs.copy(), MPI.DOUBLE_INT], 0, status=status)
        request.Wait()
        types = [getattr(MPI, name) for name in names]
        counts = status.Get_count(MPI.DOUBLE_INT), MPI.DOUBLE_INT.Create_contiguous(2).size
        others = [MPI.BYTE, MPI.INT, MPI.DOUBLE]
        counts_and_bounds = [
            (status.Get_count(datatype), status.Get_elements(datatype))
            for datatype in (*others, MPI.DOUBLE_INT)
        ]
        status.Set_elements(MPI.DOUBLE_INT, 2)
        counts_and_bounds.append((status.Get_count(), status.count))
        struct = MPI.Datatype.Create_struct([1, 1], [0, 16], [MPI.DOUBLE_INT, MPI.INT]).Commit()
        counts_and_bounds += [(struct.size, struct.extent), (struct.true_lb, struct.true_ub)]
        counts_and_bounds.append(
            (MPI.DOUBLE_INT.true_extent, MPI.DOUBLE_INT.Create_contiguous(2).true_extent)
        )
        return (
            [datatype.size for datatype in types],
            [datatype.extent for datatype in types],
            counts,
            counts_and_bounds,
        )

    none = -32766  # Open MPI returns this number, because 36 bytes are no multiple of 8.
    counts_and_bounds = [(36, 36), (9, 9), (none, none), (3, 3), (24, 24), (16, 24), (0, 20), (12, 28)]
    assert run(program, 1) == (([12, 12, 8, 8, 6], [16, 16, 8, 8, 8], (3, 24), counts_and_bounds),)


@pytest.mark.parametrize("call", ["Recv", "Irecv", "Probe", "Mprobe", "Sendrecv"])
def test_the_padding_of_received_pairs_is_not_counted(call: str) -> None:
    def program(comm: Any) -> Any:
        """Return the byte count of a message of three pairs."""

        from mpi4py import MPI

        pairs, status = np.zeros(3, np.dtype([("value", "f8"), ("index", "i4")], align=True)), MPI.Status()
        message, received = [pairs, MPI.DOUBLE_INT], [pairs.copy(), MPI.DOUBLE_INT]
        if call == "Sendrecv":
            comm.Sendrecv(message, 0, recvbuf=received, source=0, status=status)
            return status.count
        request = comm.Isend(message, 0)
        if call == "Irecv":
            comm.Irecv(received, 0).Wait(status)
        elif call == "Mprobe":
            comm.Mprobe(0, status=status).Recv(received)
        else:
            if call == "Probe":
                comm.Probe(0, status=status)
            comm.Recv(received, 0, status=None if call == "Probe" else status)
        request.Wait()
        return status.count

    assert run(program, 1) == (36,)


def test_datatypes_have_the_names_of_mpi4py() -> None:
    def program(comm: Any) -> Any:
        """Return the names of predefined, derived and renamed datatypes."""

        from mpi4py import MPI

        pair = MPI.INT.Create_contiguous(2)
        names = [MPI.INT.name, MPI.DATATYPE_NULL.Get_name(), pair.name, MPI.INT.Dup().name]
        pair.Set_name("two")
        names += [pair.name, pair.Dup().Get_name(), pair.Create_vector(1, 1, 1).name]
        pair.name = "pair"
        return [*names, pair.Get_name()]

    names = ["MPI_INT", "MPI_DATATYPE_NULL", "", "Dup MPI_INT", "two", "Dup two", "", "pair"]
    assert run(program, 1) == (names,)


def test_external32_packs_the_bytes_that_mpi4py_packs() -> None:
    """The test compares the packed bytes with the bytes of mpi4py under ``mpirun``."""

    def program(comm: Any) -> Any:
        """Return positions, packed and unpacked numbers and pairs, and the texts of errors."""

        from mpi4py import MPI

        values, packed, unpacked = np.arange(4, dtype="i4"), bytearray(24), np.zeros(4, "i4")
        ends = (
            MPI.INT.Pack_external("external32", values, packed, 4),
            MPI.INT.Pack_external_size("external32", 4),
        )
        ends += (MPI.INT.Unpack_external("external32", packed, 4, unpacked),)
        pairs = np.zeros(2, np.dtype([("value", "f8"), ("index", "i4")], align=True))
        pairs["value"], pairs["index"] = [1, 2], [3, 4]
        packed_pairs, unpacked_pairs = bytearray(24), np.zeros_like(pairs)
        MPI.DOUBLE_INT.Pack_external("external32", pairs, packed_pairs, 0)
        MPI.DOUBLE_INT.Unpack_external("external32", packed_pairs, 0, unpacked_pairs)
        struct = MPI.Datatype.Create_struct([1, 1], [0, 8], [MPI.DOUBLE, MPI.INT])
        errors = []
        for kind, name in ((MPI.INT, "native"), (MPI.LONG, "external32"), (struct, "external32")):
            with pytest.raises(MPI.Exception) as caught:
                kind.Pack_external(name, values, packed, 0)
            errors.append(str(caught.value))
        return ends, bytes(packed), unpacked.tolist(), bytes(packed_pairs), unpacked_pairs.tolist(), errors

    ((ends, packed, unpacked, packed_pairs, unpacked_pairs, errors),) = run(program, 1)
    assert ends == (20, 16, 20) and unpacked == [0, 1, 2, 3] and unpacked_pairs == [(1.0, 3), (2.0, 4)]
    assert packed == bytes(4) + np.arange(4, dtype=">i4").tobytes() + bytes(4)
    assert packed_pairs == np.array([(1, 3), (2, 4)], ">f8, >i4").tobytes()
    assert [
        words in text for words, text in zip(("got 'native'", "use INT64_T", "several types"), errors)
    ] == [True] * 3


def test_calls_of_a_freed_group_raise() -> None:
    """The error class is MPI_ERR_GROUP, like in Open MPI."""

    def program(comm: Any) -> Any:
        """Check the error of each call; return whether the freed group is null, and the size of GROUP_EMPTY."""

        from mpi4py import MPI

        group, world_group = comm.Get_group(), comm.Get_group()
        group.Free()
        group.free()  # A second free does nothing.
        calls = [
            lambda: group.size, lambda: group.rank, lambda: group.Get_size(), lambda: group.Incl([0]),
            lambda: group.Dup(), lambda: MPI.GROUP_NULL.size, lambda: MPI.Group.Compare(group, world_group),
            lambda: MPI.Group.Union(world_group, group), lambda: world_group.Translate_ranks([0], group),
            lambda: comm.Create(group), lambda: comm.Create_group(group),
        ]  # fmt: skip
        for call in calls:
            with pytest.raises(MPI.Exception, match="MPI_ERR_GROUP: invalid group"):
                call()
        return group == MPI.GROUP_NULL, MPI.GROUP_EMPTY.size

    assert run(program, 2) == ((True, 0),) * 2


def test_probes_of_proc_null_always_find_a_message() -> None:
    def program(comm: Any) -> Any:
        """Return the results of Iprobe, of four matched probes and of a receive from PROC_NULL."""

        from mpi4py import MPI

        status, null, room = MPI.Status(), MPI.PROC_NULL, np.zeros(2)
        probe_result = comm.Iprobe(null, 3, status), status.source == null, status.tag == MPI.ANY_TAG
        messages = [comm.Mprobe(null), comm.Improbe(null), MPI.Message.Probe(comm, null)]
        messages.append(MPI.Message.Iprobe(comm, null))
        same = all(message == MPI.MESSAGE_NO_PROC for message in messages)
        messages[0].Recv(room, status)
        return probe_result, same, status.source == null

    assert run(program, 1) == (((True, True, True), True, True),)


def test_detach_buffer_returns_the_attached_buffer() -> None:
    def program(comm: Any) -> Any:
        from mpi4py import MPI

        room, is_attached = bytearray(1000), []
        for owner in (MPI, comm):
            owner.Attach_buffer(room)
            is_attached.append(owner.Detach_buffer() is room)
        return is_attached

    assert run(program, 1) == ([True, True],)


def test_a_rank_can_send_an_object_to_itself() -> None:
    def program(comm: Any) -> Any:
        request = comm.irecv(source=0)
        comm.send("me", dest=0)
        from mpi4py import MPI

        alone = MPI.COMM_SELF
        return request.wait(), alone.rank, alone.size, alone.allgather(3)

    assert run(program, 1) == (("me", 0, 1, [3]),)


def test_a_rank_can_send_an_array_to_itself() -> None:
    def program(comm: Any) -> Any:
        room = np.zeros(2)
        comm.Sendrecv(np.array([comm.rank, 7.0]), comm.rank, 5, room, comm.rank, 5)
        return room.tolist()

    assert run(program, 2) == ([0, 7], [1, 7])


def test_two_handles_on_one_communicator_share_no_message() -> None:
    def program(comm: Any) -> Any:
        """Return the numbers received in turn through two handles on COMM_WORLD."""

        from mpi4py import MPI

        handles = (comm, MPI.Intracomm(comm))
        right, left, room, received = (
            (comm.rank + 1) % comm.size,
            (comm.rank - 1) % comm.size,
            np.zeros(1),
            [],
        )
        for step in range(6):  # Each send needs a buffer in the MPI library.
            handles[step % 2].Send(np.array([10.0 * comm.rank + step]), right)
            if step % 3 == 2:
                for _ in range(3):
                    handles[(step + 1) % 2].Recv(room, left)
                    received.append(float(room[0]))
        return received

    report = simulate(program, 3)
    assert {problem.kind for problem in report.problems} == {"needs_buffering"}
    for rank in range(3):
        assert report.results[rank] == [10.0 * ((rank - 1) % 3) + step for step in range(6)]


def test_buffers_of_other_libraries_are_sent() -> None:
    class Exported:
        """An object that shows the memory of an array as `protocol` names it."""

        def __init__(self, array: Any, protocol: str) -> None:
            self.array = array
            if protocol == "cuda":
                self.__cuda_array_interface__ = dict(array.__array_interface__, strides=None, version=3)
            elif protocol == "dlpack":
                self.__dlpack__ = array.__dlpack__
                self.__dlpack_device__ = array.__dlpack_device__
            else:  # DLPack 0 has no version
                self.__dlpack__ = lambda stream=None: array.__dlpack__()
                self.__dlpack_device__ = array.__dlpack_device__

    def program(comm: Any) -> Any:
        """Return what arrives in memory of each protocol, and the errors for wrong descriptions."""
        results = []
        for protocol in ("cuda", "dlpack", "old dlpack"):
            target = np.zeros(3)
            comm.Sendrecv(Exported(np.arange(3.0), protocol), 0, 0, Exported(target, protocol), 0, 0)
            results.append(target.tolist())
        wrong = Exported(np.arange(3.0), "cuda")
        wrong.__cuda_array_interface__["mask"] = True
        with pytest.raises(BufferError, match="without a mask"):
            comm.Send(wrong, 0)
        wrong.__cuda_array_interface__ = {}
        with pytest.raises(KeyError):
            comm.Send(wrong, 0)
        return results

    assert simulate(program, 1).results == ([[0, 1, 2]] * 3,)


@pytest.mark.parametrize(
    ("spec", "error"),
    [
        ([np.zeros(4), -1], ValueError),
        ([np.zeros(4), (0, -1)], ValueError),
        ([np.zeros(4), (0, 5)], ValueError),
        ([np.zeros(4), 1.0], TypeError),
        ([np.zeros(4), 1, 2], KeyError),
        ([np.zeros(4), "float64"], KeyError),
        ([np.zeros(4), [1], [2]], TypeError),
        ([np.zeros(4)], ValueError),
        ([None, 1, "d"], ValueError),
    ],
    ids=repr,
)
def test_wrong_buffers_raise_the_errors_of_mpi4py(spec: Any, error: type[Exception]) -> None:
    def program(comm: Any) -> None:
        with pytest.raises(error):
            comm.Send(spec, 0)

    simulate(program, 1)
