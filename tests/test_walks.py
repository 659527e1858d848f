"""How many files of the package a reader opens who follows one call: the figures that were reached are not exceeded.

A hop is a change of file in the sequence of calls of the package's functions. Comprehensions and the bodies of modules do not
count, all modules were imported before; nor do the lines that steps are written out as, and what is asked only of ranks that wait.
"""

from __future__ import annotations

import json

from processes import run_python

WALK = """
import importlib, os, pkgutil, sys
import spmdsim

HERE = os.path.dirname(spmdsim.__file__) + os.sep
INNER = {"<module>", "<genexpr>", "<listcomp>", "<dictcomp>", "<setcomp>"}
PROGRAMS = ("__main__", "labs.checks", "stand_in", "testing")

for module in pkgutil.walk_packages(spmdsim.__path__, "spmdsim."):
    if not any(part in module.name for part in PROGRAMS):
        importlib.import_module(module.name)

def walked(run):
    way = []

    def told(frame, event, _):
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(HERE) and code.co_name not in INNER:
            name = code.co_filename[len(HERE):]
            if "<" not in name and name != "worlds/mpi/waiting.py" and way[-1:] != [name]:
                way.append(name)

    sys.setprofile(told)
    try:
        run()
    finally:
        sys.setprofile(None)
    return way
"""

PLAN = """
import contextlib, io, json
from spmdsim.cli.main import main

words = "plan --mesh dp=2,tp=4 --src dp,tp --dst tp,dp --shape 8,8".split()
printed = io.StringIO()
with contextlib.redirect_stdout(printed):
    way = walked(lambda: main(words))
assert "lower bound" in printed.getvalue()
print(json.dumps(way))
"""

CHAIN = """
import json
import numpy as np
from spmdsim import Mesh, Tensor, matmul, world

mesh, whole, here = Mesh((2,), ("x",)), np.arange(64.0).reshape(8, 8), world()

def run():
    x, y = Tensor.from_global(whole, mesh("x", None)), Tensor.from_global(whole, mesh(None, "x"))
    assert (matmul(x, y).to(mesh("x", None)).full() == whole @ whole).all()

here.barrier()
way = walked(run)
if here.rank == 0:
    print(json.dumps(way))
"""


PRODUCT = """
import json
import numpy as np
from spmdsim import Mesh, Tensor, matmul, world

mesh, whole, here = Mesh((1, 2), ("dp", "tp")), np.arange(64.0).reshape(8, 8), world()
tensors = []

def begin():
    tensors.append(Tensor.from_global(whole, mesh("dp", "tp")))

def end():
    assert (matmul(*tensors).to(mesh("dp", None)).full() == whole @ whole).all()

here.barrier()
way = walked(begin)
tensors.append(Tensor.from_global(whole, mesh("tp", None)))
way += walked(end)
if here.rank == 0:
    print(json.dumps(way))
"""

#: What a product of tensors has no business with.
UNASKED = (
    *(
        "dialects/",
        "launch/",
        "ending/",
        "trace/recorder",
        "trace/events",
        "worlds/mpi/boards",
        "tensor/replicas",
    ),
)


def way_of(tmp_path, program: str, *launch: object) -> list[str]:
    """The files that a program goes through, one after the other."""
    (tmp_path / "walk.py").write_text(WALK + program)
    result = run_python(*launch, tmp_path / "walk.py", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    way: list[str] = json.loads(result.stdout.splitlines()[-1])
    return way


def test_a_plan_on_the_command_line_goes_through_few_files(tmp_path):
    way = way_of(tmp_path, PLAN)
    files = {*way}
    assert files >= {"cli/main.py", "cli/plan.py", "layout/written.py", "redistribution/planner.py"}
    assert not [name for name in files if name.startswith(("dialects/", "worlds/", "ending/", "launch/"))]
    assert len(files) <= 20, sorted(files)
    assert len(way) <= 450


def test_a_product_whose_operands_lie_as_it_wants_them_goes_through_few_files(tmp_path, launcher):
    """The first operand is made, the product of both computed, reduced and read; how the second one is made is not counted."""
    way = way_of(tmp_path, PRODUCT, "-m", "spmdsim", "launch", "-n", 2)
    files = {*way}
    assert files >= {"tensor/sources.py", "core/operator.py", "worlds/mpi/mpi_world.py"}
    assert not [name for name in files if name.startswith(UNASKED)]
    assert len(files) <= 42, sorted(files)
    assert len(way) <= 360


def test_a_product_whose_strategy_is_a_matter_of_price_goes_through_few_files(tmp_path, launcher):
    way = way_of(tmp_path, CHAIN, "-m", "spmdsim", "launch", "-n", 2)
    files = {*way}
    assert files >= {
        "tensor/sources.py",
        "core/operator.py",
        "redistribution/planner.py",
        "worlds/mpi/mpi_world.py",
    }
    assert not [name for name in files if name.startswith(UNASKED)]
    assert len(files) <= 46, sorted(files)
    assert len(way) <= 810
