"""The stand-in has mpi4py's names, parameters and defaults, according to mpi4py's interface file."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spmdsim.simulation import SimulationError, simulate
from spmdsim.simulation.interface.stand_in import StandIn

pytest.importorskip("greenlet")

# Classes that virtual ranks do not support yet.
LEFT_OUT_CLASSES = ["Win", "buffer"]

# Members that virtual ranks do not support, or that every Python object has.
LEFT_OUT = [
    "__new__",
    "__init__",
    "__ne__",
    "__eq__",
    "__bool__",
    "__getstate__",
    "__setstate__",
    "Pready",
    "Pready_range",
    "Pready_list",
    "Parrived",
]

# Members whose signatures differ from mpi4py's.
KNOWN_DIFFERENCES = {"Datatype.name", "Info.pop"}


def declared() -> dict[str, dict[str, Any]]:
    """Return the methods and attributes of each class in mpi4py's interface file.

    A method is its function definition, an attribute is None.
    """

    spec = importlib.util.find_spec("mpi4py")
    if spec is None or spec.origin is None:
        pytest.skip("mpi4py is not installed")
    path = Path(spec.origin).with_name("MPI.pyi")
    if not path.exists():
        pytest.skip("this mpi4py has no interface file")
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {
        node.name: {member.name: member for member in node.body if isinstance(member, ast.FunctionDef)}
        | {
            member.target.id: None
            for member in node.body
            if isinstance(member, ast.AnnAssign) and isinstance(member.target, ast.Name)
        }
        for node in tree.body
        if isinstance(node, ast.ClassDef)
    }


def parameters(function: ast.FunctionDef) -> list[str]:
    """Return the names of a function's parameters, without self and cls."""

    arguments = [*function.args.posonlyargs, *function.args.args]
    if function.args.kwarg is not None:
        arguments.append(function.args.kwarg)
    return [argument.arg for argument in arguments if argument.arg not in ("self", "cls")]


def test_every_class_has_its_methods_with_their_parameters() -> None:
    module = StandIn().MPI
    missing, different = [], []
    for name, members in declared().items():
        if name in LEFT_OUT_CLASSES:
            continue
        stand_in_class = getattr(module, name)
        for member, function in members.items():
            if member in LEFT_OUT or f"{name}.{member}" in KNOWN_DIFFERENCES:
                continue
            if not hasattr(stand_in_class, member) and not (name == "Status" or member in ("rank", "size")):
                missing.append(f"{name}.{member}")
            elif isinstance(function, ast.FunctionDef) and hasattr(stand_in_class, member):
                if isinstance(getattr(stand_in_class, member), property):
                    continue
                names = list(inspect.signature(getattr(stand_in_class, member)).parameters)
                names = [parameter for parameter in names if parameter not in ("self", "cls")]
                expected = parameters(function)
                if member.endswith("_init") and "info" not in names:
                    expected = [parameter for parameter in expected if parameter != "info"]
                if names != expected and name != "Exception":
                    different.append(f"{name}.{member}: {names} instead of {expected}")
    assert not missing and not different, "\n".join(missing + different)


def test_constants_that_programs_use_exist() -> None:
    module = StandIn().MPI
    names = """
        ANY_SOURCE ANY_TAG PROC_NULL UNDEFINED ROOT IN_PLACE BOTTOM COMM_NULL REQUEST_NULL GROUP_NULL
        GROUP_EMPTY OP_NULL DATATYPE_NULL INFO_NULL SUM PROD MAX MIN LAND LOR LXOR BAND BOR BXOR MINLOC
        MAXLOC REPLACE NO_OP DOUBLE FLOAT INT LONG LONG_LONG SHORT BYTE CHAR BOOL C_BOOL INT8_T INT16_T
        INT32_T INT64_T UINT8_T UINT16_T UINT32_T UINT64_T COMPLEX C_DOUBLE_COMPLEX DOUBLE_COMPLEX
        DOUBLE_INT FLOAT_INT INT_INT TWOINT LONG_INT SHORT_INT PACKED COMM_TYPE_SHARED ORDER_C ORDER_F
        THREAD_MULTIPLE THREAD_SINGLE IDENT CONGRUENT SIMILAR UNEQUAL TAG_UB SUCCESS ERR_RANK
        ERR_TRUNCATE ERRORS_RETURN MAX_PROCESSOR_NAME BSEND_OVERHEAD CART
    """
    assert [name for name in names.split() if not hasattr(module, name)] == []


def test_names_that_mpi4py_has_removed() -> None:
    def program() -> bool:
        from mpi4py import MPI

        return hasattr(MPI, "HOST")

    assert simulate(program, 1).results == (False,)


def test_the_package_has_settings_and_a_file() -> None:
    def program() -> object:
        """Return options, errors and hints that mpi4py has beside its communicators."""
        import mpi4py
        import mpi4py.rc
        from mpi4py import MPI

        mpi4py.rc(finalize=False)
        with pytest.raises(TypeError, match="must be one of initialize"):
            mpi4py.rc.finalise = True
        with pytest.raises(TypeError, match="got 'other'"):
            mpi4py.Rc(other=1)
        with pytest.raises(ValueError, match="must be a library"):
            mpi4py.profile("no_such_library", path=["/usr/lib"])
        with pytest.warns(UserWarning, match="no shared library"):
            mpi4py.profile(__file__)
        fortran = MPI.Get_abi_fortran_info()
        return (
            mpi4py.rc.finalize,
            repr(mpi4py.rc),
            MPI.Get_abi_version(),
            MPI.Get_abi_info().Get("mpi_count_size"),
            (fortran["mpi_integer_size"], fortran["mpi_real16_supported"], fortran["mpi_complex4_supported"]),
            importlib.util.find_spec("mpi4py") is None or Path(MPI.__file__).exists(),
        )

    expected = (False, "<mpi4py.rc>", (-1, -1), "8", ("4", "true", "false"), True)
    assert simulate(program, 1).results == (expected,)


def test_datatypes_of_numpy_dtypes() -> None:
    stand_in = StandIn()
    assert stand_in.MPI._typedict["d"] is stand_in.MPI.DOUBLE
    assert stand_in.MPI.Datatype.fromcode("i8") is stand_in.MPI.INT64_T

    def program() -> object:
        from mpi4py import MPI
        from mpi4py.util.dtlib import from_numpy_dtype, to_numpy_dtype

        record = np.dtype([("numbers", "<i4", (3, 5)), ("letter", "S1")])
        record_type = from_numpy_dtype(record)
        restored = to_numpy_dtype(record_type)
        is_equal = restored.itemsize == record.itemsize and restored["f1"] == record["letter"]
        return from_numpy_dtype(float).Get_size(), MPI.Comm.Get_parent() == MPI.COMM_NULL, is_equal

    assert simulate(program, 1).results == ((8, True, True),)


def test_names_without_a_simulation_raise() -> None:
    for name, text in (
        ("Sned", "a communicator has no 'Sned'; did you mean 'Send'?"),
        ("_private", "a communicator has no '_private' at"),
    ):
        with pytest.raises(SimulationError) as caught:
            simulate(lambda comm, name=name: getattr(comm, name), 2)
        assert f"raises AttributeError: {text}" in str(caught.value)


def test_the_real_mpi4py_is_restored_after_a_simulation() -> None:
    before = {name: sys.modules[name] for name in sys.modules if name.startswith("mpi4py")}
    uses_stand_in = []

    def program(comm: Any) -> None:
        import mpi4py
        from mpi4py import MPI

        uses_stand_in.append(getattr(mpi4py, "__spmdsim__", False) and comm == MPI.COMM_WORLD)

    simulate(program, 2)
    assert uses_stand_in == [True, True]
    after = {name: sys.modules[name] for name in sys.modules if name.startswith("mpi4py")}
    assert before == after
