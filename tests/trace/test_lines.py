"""Lines of notebook cells have Jupyter's names in traces, errors and findings."""

from __future__ import annotations

import json
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from spmdsim import LockStep, Mesh, Tensor, ops, record
from spmdsim.auto_parallel.programs.record_program import record_program
from spmdsim.errors import UsageTypeError
from spmdsim.simulation import simulate
from spmdsim.worlds.trace.source_lines import cell, format_place, source_lines

CELLS = {"/tmp/ipykernel_7/123456.py": 4, "<ipython-input-2-abc>": 2}


@pytest.fixture
def notebook(monkeypatch):
    """Register two cells like IPython; return a function that runs source as one of the cells."""

    def format_code_name(name):
        return ("Cell", f"In[{CELLS[name]}]") if name in CELLS else None

    module = ModuleType("IPython")
    module.get_ipython = lambda: SimpleNamespace(compile=SimpleNamespace(format_code_name=format_code_name))
    monkeypatch.setitem(sys.modules, "IPython", module)

    def run(file, source, **names):
        exec(compile(source, file, "exec"), names)
        return names

    return run


@pytest.mark.parametrize("file", CELLS)
def test_a_trace_names_the_cell(notebook, file):
    x = Tensor.from_global(np.ones((4, 4)), Mesh((2,), ("a",))("a", None), LockStep(2))
    with record() as trace:
        outputs = notebook(
            file,
            "def f(x):\n    return x @ x\n\nf(x)\nlines = source_lines()",
            x=x,
            source_lines=source_lines,
        )
    assert {event.source for event in trace} == {f"Cell In[{CELLS[file]}], line 2"}
    assert outputs["lines"] == f"Cell In[{CELLS[file]}], line 5", "what runs the cell is not the user's"


def test_findings_of_a_simulation_name_the_cell(notebook):
    file = "/tmp/ipykernel_7/123456.py"
    wait = "def program():\n    from mpi4py import MPI\n    c = MPI.COMM_WORLD\n    c.recv(source=1 - c.rank)"
    report = simulate(notebook(file, wait)["program"], 2, check=False)
    assert "at Cell In[4], line 4" in str(report) and "123456" not in str(report)
    report = simulate(notebook(file, "def program():\n    1 / 0")["program"], 2, check=False)
    (problem,) = report.problems
    assert str(problem).endswith("division by zero at Cell In[4], line 2")
    assert '  File "Cell In[4]", line 2, in program' in problem.details


def test_a_timeline_names_the_cell(notebook):
    source = "def program():\n    from mpi4py import MPI\n    MPI.COMM_WORLD.barrier()"
    report = simulate(notebook("/tmp/ipykernel_7/123456.py", source)["program"], 2, trace=True)
    assert '"line": "Cell In[4], line 3"' in json.dumps(report.trace)


def test_a_recorded_program_names_the_cell(notebook):
    source = "def program(x):\n    return ops.sum(np.spacing(x))"
    program = notebook("/tmp/ipykernel_7/123456.py", source, ops=ops, np=np)["program"]
    with pytest.raises(UsageTypeError, match=r"np\.spacing takes no tensors.*Cell In\[4\], line 2"):
        record_program(program, 2, inputs={"x": (4, 4)})


def test_a_line_outside_a_notebook_has_its_file_and_number(monkeypatch):
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    assert cell(__file__) is None and format_place(__file__, 3) == "test_lines.py:3"
    assert "IPython" not in sys.modules
    for outside in (ModuleType("IPython"), SimpleNamespace(get_ipython=lambda: None)):
        monkeypatch.setitem(sys.modules, "IPython", outside)
        assert format_place(__file__, 3, folder=True) == f"{__file__}:3"
