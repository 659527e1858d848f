"""The simulator refuses what mpi4py and the standard refuse, and names contradicting datatypes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from spmdsim.errors import InputError
from spmdsim.simulation import Problem, Report, simulate

pytest.importorskip("greenlet")


def judge(program: Callable[..., Any], ranks: int, **options: Any) -> Report:
    return simulate(program, ranks, check=False, emit=lambda rank, line: None, **options)


def only(program: Callable[..., Any], ranks: int, **options: Any) -> Problem:
    (problem,) = judge(program, ranks, **options).problems
    return problem


@pytest.mark.parametrize(
    ("dtype", "name", "words"),
    [
        ("int64", "INT", "an array of int64 as MPI.INT of int32"),
        ("float32", "DOUBLE", "an array of float32 as MPI.DOUBLE of float64"),
        ("complex128", "COMPLEX", "an array of complex128 as MPI.COMPLEX of complex64"),
        ("bool", "INT", "an array of bool as MPI.INT of int32"),
        ("int32", "FLOAT", "an array of int32 as MPI.FLOAT of float32"),
    ],
)
def test_a_datatype_that_contradicts_the_array_is_named(dtype: str, name: str, words: str) -> None:
    def program(comm: Any) -> None:
        from mpi4py import MPI

        comm.Bcast([np.zeros(8, dtype), 2, getattr(MPI, name)])

    problem = only(program, 2)
    assert (problem.kind, problem.severity, problem.ranks) == ("type_contradiction", "warning", (0,))
    assert f"rank 0 passes {words} in Bcast at test_refusals.py:" in problem.message


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        ("uint8", "INT"),
        ("float64", "BYTE"),
        ("float64", "CHAR"),
        ("float64", "PACKED"),
        ("complex128", "DOUBLE"),
        ("int64", "LONG"),
        ("uint32", "INT"),
        ("datetime64[s]", "INT64_T"),
        ("float64", "UINT64_T"),
        ("S8", "CHAR"),
    ],
)
def test_views_of_bytes_and_equal_words_are_no_contradiction(dtype: str, name: str) -> None:
    def program(comm: Any) -> None:
        from mpi4py import MPI

        comm.Bcast([np.zeros(8, dtype), getattr(MPI, name)])

    assert judge(program, 2).problems == ()


def test_derived_types_and_blocks_of_collectives_are_compared_too() -> None:
    def send_columns(comm: Any) -> None:
        from mpi4py import MPI

        column = MPI.FLOAT.Create_vector(2, 1, 2).Commit()
        if comm.rank == 0:
            comm.Send([np.zeros((2, 2)), 1, column], 1)
        else:
            comm.Recv([np.zeros((2, 2), "f4"), 1, column], 0)
        column.Free()

    def gather(comm: Any) -> None:
        from mpi4py import MPI

        comm.Gatherv([np.zeros(2), 2, MPI.INT], [np.zeros(8, "i4"), 2, MPI.INT])

    for program, call in ((send_columns, "Send"), (gather, "Gatherv")):
        problem = only(program, 2)
        assert problem.kind == "type_contradiction"
        assert (
            f"array of float64 as MPI.{'vector of float32' if call == 'Send' else 'INT of int32'} in {call}"
            in (problem.message)
        )


def raised(program: Callable[[Any, Any], Any], ranks: int = 1, **options: Any) -> str:
    """Return the class and the start of the text of the exception that a program raises on rank 0."""

    def run(comm: Any) -> Any:
        from mpi4py import MPI

        try:
            program(comm, MPI)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return "nothing"

    return str(judge(run, ranks, **options).results[0])


REFUSED: dict[str, Callable[[Any, Any], Any]] = {
    "BufferError: a buffer must have the byte order": lambda comm, MPI: comm.Isend(np.zeros(3, ">f8"), 0),
    "KeyError: 'a buffer of dtype with fields has no": lambda comm, MPI: comm.Isend(np.zeros(3, "f8,i4"), 0),
    "KeyError: 'a buffer of dtype object has no": lambda comm, MPI: comm.Isend(np.array([None]), 0),
    "BufferError: a buffer must have numbers": lambda comm, MPI: comm.Isend(np.zeros(3, "M8[s]"), 0),
    "ValueError: a buffer without a count must have a multiple of the extent of MPI.DOUBLE_INT, 16 bytes, got": (
        lambda comm, MPI: comm.Bcast([np.zeros(3, "f8,i4"), MPI.DOUBLE_INT])
    ),
    "Exception: MPI_ERR_TYPE: invalid datatype: the datatype is MPI.DATATYPE_NULL": (
        lambda comm, MPI: comm.Isend([np.zeros(3), 3, MPI.DATATYPE_NULL], 0)
    ),
    "Exception: MPI_ERR_TAG: invalid tag: the tag of a receive must be 0 or more, or ANY_TAG, got MPI.ANY_SOURCE": (
        lambda comm, MPI: comm.Irecv(np.zeros(1), 0, MPI.ANY_SOURCE)
    ),
    "Exception: MPI_ERR_OTHER": lambda comm, MPI: MPI.Init(),
    "Exception: MPI_ERR_REQUEST: invalid request: the request to start is null": lambda comm, MPI: (
        MPI.Prequest().Start()
    ),
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_mpi4py_refuses_is_refused(text: str) -> None:
    assert raised(REFUSED[text]).startswith(text)


def test_an_active_request_cannot_be_started() -> None:
    def program(comm: Any, MPI: Any) -> None:
        request = comm.Recv_init(np.zeros(1), 0)
        request.Start()
        request.Start()

    assert raised(program).startswith("Exception: MPI_ERR_REQUEST: invalid request: the request is active")


@pytest.mark.parametrize(("size", "buf"), [(40_000, None), (200, 100), (200, bytearray(100))])
def test_an_object_longer_than_the_buffer_of_irecv_is_truncated(size: int, buf: Any) -> None:
    def program(comm: Any, MPI: Any) -> None:
        send, receive = comm.isend(bytes(size), 0), comm.irecv(buf, 0)
        send.wait()
        receive.wait()

    words = f"the object from rank 0 has {size:,} bytes, but irecv has a buffer of"
    assert words in raised(program)


def test_a_longer_buffer_of_irecv_accepts_the_object() -> None:
    def program(comm: Any) -> int:
        send, receive = comm.isend(bytes(40_000), 0), comm.irecv(1 << 16, 0)
        send.wait()
        return len(receive.wait())

    assert judge(program, 1).results == (40_000,)


def gather_rows(comm: Any, MPI: Any) -> None:
    grid = np.zeros((comm.size, 2))
    comm.Allgather(grid[comm.rank : comm.rank + 1], grid)


def gather_overlapping(comm: Any, MPI: Any) -> None:
    comm.Allgatherv(np.ones(2), [np.zeros(4), ([2] * comm.size, [0, 1])])


def exchange_in_one_buffer(comm: Any, MPI: Any) -> None:
    buffer = np.zeros(2)
    comm.Sendrecv(buffer, comm.rank, recvbuf=buffer, source=comm.rank)


def swap_tag(comm: Any, MPI: Any) -> None:
    comm.isend(1, comm.rank)
    comm.recv(source=comm.rank, tag=MPI.ANY_SOURCE)


@pytest.mark.parametrize(
    ("program", "strict", "mpich", "openmpi"),
    [
        (gather_rows, "ERR_BUFFER", "ERR_BUFFER", ""),
        (gather_overlapping, "ERR_BUFFER", "", ""),
        (exchange_in_one_buffer, "ERR_BUFFER", "", ""),
        (swap_tag, "ERR_TAG", "ERR_TAG", ""),
    ],
)
def test_libraries_differ_in_what_they_refuse(
    program: Callable[[Any, Any], Any], strict: str, mpich: str, openmpi: str
) -> None:
    for like, code in (("strict", strict), ("mpich", mpich), ("openmpi", openmpi)):
        text = raised(program, 2, like=like)
        assert code in text if code else text == "nothing"


def test_interleaved_blocks_of_one_array_do_not_overlap() -> None:
    def program(comm: Any) -> list[float]:
        from mpi4py import MPI

        array = np.arange(4.0) + comm.rank * 10
        even = MPI.DOUBLE.Create_vector(1, 1, 2).Create_resized(0, 16).Commit()
        odd = MPI.DOUBLE.Create_hindexed([1], [8]).Create_resized(0, 16).Commit()
        comm.Alltoallw([array, [1, 1], [0, 16], [even] * 2], [array, [1, 1], [0, 16], [odd] * 2])
        return array.tolist()

    assert judge(program, 2).results == ([0.0, 0.0, 2.0, 10.0], [10.0, 2.0, 12.0, 12.0])


def test_the_library_must_be_known() -> None:
    with pytest.raises(InputError, match="like must be one of strict, openmpi, mpich, got 'mvapich'"):
        simulate(lambda comm: None, 1, like="mvapich")


def test_different_dims_of_a_grid_are_a_mismatch() -> None:
    def program(comm: Any) -> None:
        comm.Create_cart([2, 1] if comm.rank == 0 else [1, 2])

    problem = only(program, 2)
    assert problem.kind == "collective_mismatch"
    assert "do not agree on the dims of Create_cart" in problem.message
