"""Handles, attributes, error handlers, hints, error codes and memory."""

from __future__ import annotations

import ctypes
import pickle
from typing import Any

import numpy as np
import pytest

from spmdsim.simulation import simulate

pytest.importorskip("greenlet")


def run(program: Any, n: int = 1) -> Any:
    return simulate(program, n).results


def test_two_handles_of_an_object_are_equal() -> None:
    def program(comm: Any) -> Any:
        """Return comparisons of handles with copies, duplicates, numbers and pickles."""
        from mpi4py import MPI

        copies = [type(handle)(handle) == handle for handle in (MPI.INT, MPI.SUM, comm, MPI.INFO_ENV)]
        numbers = [type(handle).f2py(handle.py2f()) == handle for handle in (MPI.INT, MPI.SUM, comm)]
        duplicate = comm.Dup()
        other = duplicate != comm and MPI.INT.Dup() != MPI.INT
        pickled = [pickle.loads(pickle.dumps(handle)) is handle for handle in (MPI.INT, comm, MPI.OP_NULL)]
        return all(copies), all(numbers), other, all(pickled), MPI.Comm() == MPI.COMM_NULL

    assert run(program, 2) == ((True,) * 5,) * 2


def test_attributes_follow_copies_as_their_key_says() -> None:
    def program(comm: Any) -> Any:
        """Return the attributes of a copy, and the values of deleted ones."""
        from mpi4py import MPI

        deleted: list[Any] = []
        keys = [
            MPI.Comm.Create_keyval(copy_fn, lambda comm, key, value: deleted.append(value))
            for copy_fn in (None, True, lambda comm, key, value: value + 1)
        ]
        for key in keys:
            comm.Set_attr(key, 10 + len(deleted))
        copy = comm.Dup()
        attributes = [copy.Get_attr(key) for key in keys]
        copy.Free()
        comm.Delete_attr(keys[0])
        with pytest.raises(MPI.Exception, match="ERR_KEYVAL"):
            comm.Set_attr(5, None)
        return attributes, deleted, comm.Get_attr(keys[0])

    assert run(program) == (([None, 10, 11], [11, 10, 10], None),)


def test_error_handlers_are_called_and_freed() -> None:
    def program(comm: Any) -> Any:
        """Return the codes that a handler got, and truth values of handlers."""
        from mpi4py import MPI

        codes: list[int] = []
        handler = MPI.Comm.Create_errhandler(lambda comm, code: codes.append(code))
        comm.Set_errhandler(handler)
        comm.Call_errhandler(MPI.ERR_TAG)
        is_equal = comm.Get_errhandler() == handler
        comm.Set_errhandler(MPI.ERRORS_RETURN)
        handler.Free()
        return codes == [MPI.ERR_TAG], is_equal, bool(handler), comm.Get_errhandler() == MPI.ERRORS_RETURN

    assert run(program) == ((True, True, False, True),)


def test_hints_are_a_mapping() -> None:
    def program(comm: Any) -> Any:
        """Return hints of an info, of a communicator, and errors."""
        from mpi4py import MPI

        info = MPI.Info.Create({"a": "1"})
        info.update(b="2")
        copy = comm.Dup(info)
        with pytest.raises(KeyError):
            info["c"]
        with pytest.raises(MPI.Exception, match="ERR_INFO_NOKEY"):
            info.Delete("c")
        return info.items(), copy.Get_info().items(), info.pop("a"), len(info), bool(MPI.INFO_NULL)

    pairs = [("a", "1"), ("b", "2")]
    assert run(program) == ((pairs, pairs, "1", 1, False),)


def test_programs_add_error_codes() -> None:
    def program(comm: Any) -> Any:
        """Return class and text of a new error code."""
        from mpi4py import MPI

        cls = MPI.Add_error_class()
        code = MPI.Add_error_code(cls)
        MPI.Add_error_string(code, "cold")
        error = MPI.Exception(code)
        facts = error.Get_error_class() == cls, str(error), error == code, error > MPI.ERR_LASTCODE
        with pytest.raises(MPI.Exception, match="must be a class without codes"):
            MPI.Remove_error_class(cls)
        MPI.Remove_error_string(code)
        MPI.Remove_error_code(code)
        MPI.Remove_error_class(cls)
        return facts

    assert run(program) == ((True, "cold", True, True),)


def test_memory_is_a_block_of_bytes() -> None:
    def program(comm: Any) -> Any:
        """Return facts on allocated memory, on the memory of an array, and on addresses."""
        from mpi4py import MPI

        memory = MPI.Alloc_mem(16)
        memory[:4] = b"abcd"
        numbers = np.frombuffer(memory, np.float64)
        comm.Bcast([memory, MPI.BYTE])
        array = np.arange(3)
        block = MPI.memory.frombuffer(array, readonly=True)
        with pytest.raises(TypeError):
            block[0] = 1
        is_address = MPI.Get_address(array) == block.address == array.ctypes.data
        contents = memory[:4].tobytes(), len(numbers), block.nbytes, is_address
        MPI.Free_mem(memory)
        return contents, memory.nbytes

    assert run(program) == (((b"abcd", 2, 24, True), 0),)


def test_python_modules_of_mpi4py_run_on_virtual_ranks() -> None:
    def program(comm: Any) -> Any:
        """Return an object that mpi4py.util.pkl5 sent."""
        from mpi4py import get_include
        from mpi4py.util import pkl5
        from mpi4py.util.dtlib import from_numpy_dtype

        communicator = pkl5.Intracomm(comm)
        request = communicator.isend(np.arange(4) + comm.rank, (comm.rank + 1) % comm.size)
        received = communicator.recv(source=(comm.rank - 1) % comm.size)
        request.wait()
        pkl5.pickle.THRESHOLD = None
        assert pkl5.pickle.THRESHOLD == 1 << 18
        return received.tolist(), from_numpy_dtype("f8").Get_size(), get_include().endswith("include")

    assert run(program, 2)[1] == ([0, 1, 2, 3], 8, True)


def test_datatypes_are_found_by_class_and_digits() -> None:
    def program(comm: Any) -> Any:
        """Return names, sizes and contents of types of Fortran, of pairs and of codes."""
        from mpi4py import MPI

        real, integer = MPI.Datatype.Create_f90_real(15, 300), MPI.Datatype.Create_f90_integer(9)
        with pytest.raises(MPI.Exception, match="ERR_ARG"):
            MPI.Datatype.Create_f90_integer(19)
        with pytest.raises(ValueError, match="got '<i4'"):
            MPI.Datatype.fromcode("<i4")
        pairs = [MPI.Datatype.Get_value_index(value, MPI.INT) for value in (MPI.FLOAT, MPI.UINT8_T)]
        return (
            (real.size, real.Get_contents()[0], real.is_predefined, real.is_named),
            (integer.size, integer.combiner == MPI.COMBINER_F90_INTEGER),
            MPI.Datatype.Match_size(MPI.TYPECLASS_COMPLEX, 16) == MPI.COMPLEX16,
            (pairs[0] == MPI.FLOAT_INT, bool(pairs[1])),
            MPI._typedict["Zd"] == MPI.C_DOUBLE_COMPLEX,
        )

    expected = ((8, [15, 300], True, False), (4, True), True, (True, False), True)
    assert run(program) == (expected,)


def test_null_handles_and_unknown_keys_are_refused() -> None:
    def program(comm: Any) -> list[str]:
        """Return the classes of the errors for null handles and for KEYVAL_INVALID."""
        from mpi4py import MPI

        calls = (
            lambda: comm.Get_attr(MPI.KEYVAL_INVALID),
            lambda: MPI.Datatype.Get_value_index(MPI.INT, MPI.DATATYPE_NULL),
            lambda: MPI.Comm().Get_errhandler(),
            lambda: MPI.Win().Call_errhandler(MPI.ERR_TAG),
            lambda: MPI.Session().Set_errhandler(MPI.ERRORS_RETURN),
            lambda: MPI.Status().Get_count(MPI.DATATYPE_NULL),
            MPI.Request().Cancel,
            MPI.Errhandler().Free,
        )
        classes = []
        for call in calls:
            with pytest.raises(MPI.Exception) as caught:
                call()
            classes.append(caught.value.error_name)
        with pytest.raises(ValueError, match="pickle"):
            pickle.dumps(comm.Get_group())
        return classes

    expected = "ERR_KEYVAL ERR_TYPE ERR_COMM ERR_WIN ERR_SESSION ERR_TYPE ERR_REQUEST ERR_ARG"
    assert run(program) == (expected.split(),)


def test_a_class_of_the_program_may_replace_wait_and_test() -> None:
    def program(comm: Any) -> Any:
        """Return what a subclass of Request gives for calls that it did not replace."""
        from mpi4py import MPI

        class Named(MPI.Request):
            def wait(self) -> str:
                return "waited"

            def test(self) -> str:
                return "tested"

        request = Named(comm.Isend(np.zeros(1), 0))
        comm.Recv(np.zeros(1), 0)
        return request.test(), request.Test(), request.wait(), request.Wait(), MPI.MESSAGE_NO_PROC.Recv(None)

    assert run(program) == (("tested", True, "waited", True, None),)


def test_statuses_have_memory_of_integers() -> None:
    def program(comm: Any) -> Any:
        """Return the integers of a status, and the fields that they set."""
        from mpi4py import MPI

        status = MPI.Status()
        comm.sendrecv([1, 2], comm.rank, 7, source=comm.rank, recvtag=7, status=status)
        copy = MPI.Status.f2py(status.py2f())
        copy.tomemory()[MPI.F_TAG] = 8
        address = MPI._addressof(copy)
        tag = ctypes.c_int.from_address(address + 4 * MPI.F_TAG).value
        with pytest.raises(TypeError, match="status must be a Status"):
            MPI.Status(1)
        return len(status.py2f()) == MPI.F_STATUS_SIZE, copy.source, copy.tag, tag, copy == status, status.tag

    assert run(program) == ((True, 0, 8, 8, False, 7),)


def test_numbers_of_handles_give_files_sessions_and_requests() -> None:
    def program(comm: Any) -> Any:
        """Return comparisons of handles with those of their numbers, and the names of methods that free."""
        from mpi4py import MPI

        handles = [MPI.File.Open(comm, "/dev/null"), MPI.Session.Init(), comm.Send_init(bytearray(1), 0)]
        is_equal = [type(handle).fromhandle(handle.toint()) == handle for handle in handles]
        is_request = MPI.Request(handles[2]) == handles[2]
        number = ctypes.c_uint64.from_address(MPI._addressof(MPI.INT)).value
        has_free = [hasattr(handle, "Free") for handle in handles]
        for handle in handles:
            handle.free()
        return is_equal, is_request, number == MPI._handleof(MPI.INT), has_free, [*map(bool, handles)]

    assert run(program, 2) == (([True] * 3, True, True, [False, False, True], [False] * 3),) * 2


def _add(left: Any, right: Any, datatype: Any) -> None:
    for position, value in enumerate(left):
        right[position] += value


def test_operations_of_programs_are_pickled_and_limited() -> None:
    def program(comm: Any) -> Any:
        """Return the result of a pickled operation, and the number of operations before the error."""
        from mpi4py import MPI

        datatypes: list[Any] = []
        first = MPI.Op.Create(_add, commute=True)
        copy = pickle.loads(pickle.dumps(first))
        target = bytearray([3])
        copy.Reduce_local([bytearray([2]), MPI.BYTE], [target, MPI.BYTE])
        operations = [
            MPI.Op.Create(lambda left, right, datatype: datatypes.append(datatype)) for _ in range(30)
        ]
        operations[0].Reduce_local([bytearray(1), MPI.BYTE], [bytearray(1), MPI.BYTE])
        with pytest.raises(RuntimeError, match="at most 32 operations"):
            MPI.Op.Create(_add)
        with pytest.raises(ValueError, match="cannot pickle Op"):
            pickle.dumps(MPI.Op.fromint(first.toint()))
        for operation in (*operations, first):
            operation.Free()
        return (
            copy == first,
            copy.Is_commutative(),
            target[0],
            datatypes == [MPI.BYTE],
            bool(MPI.Op.Create(_add)),
        )

    assert run(program, 2) == ((False, True, 5, True, True),) * 2
