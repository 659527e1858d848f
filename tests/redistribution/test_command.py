"""`spmdsim plan` prints and draws plans."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from spmdsim import figure
from spmdsim.cli.main import main
from spmdsim.core import Mesh
from spmdsim.figures.plan_figures import transfers, transfers_list
from spmdsim.redistribution import plan

MESH = ("plan", "--mesh", "dp=2,tp=4")


def test_a_plan_is_printed_with_its_bound(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*MESH, "--src", "dp,None", "--dst", "None,(tp,dp)", "--shape", "64,64"]) == 0
    text = capsys.readouterr().out
    assert "1 KiB = the lower bound" in text and "S(0)R -> S(1)[1]S(1)[0]" in text


def test_pending_sources_and_machines_are_options(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--src", "dp,None partial tp:max", "--dst", "dp,tp", "--shape", "64,64"]
    assert main([*MESH, *arguments, "--machine", "cluster", "--rank", "3"]) == 0
    text = capsys.readouterr().out
    assert "reduce_scatter" in text and "on cluster" in text and "rank 3: receives 6,144 bytes" in text


def test_json_has_bytes_and_steps(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*MESH, "--src", "dp,tp", "--dst", "None,None", "--shape", "5,7", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["max_nbytes"] == max(one["nbytes"] for one in data["ranks"])
    assert data["ratio"] == 1.0 and data["steps"][0]["collective"] == "all_gather"


def test_other_notations_meshes_and_reshapes_are_planned(capsys: pytest.CaptureFixture[str]) -> None:
    shape = ["--shape", "64,64"]
    assert main(["plan", "--src", "a=2,b=3: a,b", "--dst", "c=3,d=2: c,d", *shape]) == 0
    matrix = ["plan", "--device-matrix", "4,2", "--src", "1,0", "--dst", "0,1", "--style", "mindspore"]
    assert main([*matrix, *shape]) == 0
    assert "AllConcat [0, 2, 4, 6, 0]" in capsys.readouterr().out
    flow = ["plan", "--mesh", "[[0,1],[2,3]]", "--src", "(B,S(0))", "--dst", "(S(0),S(0))"]
    assert main([*flow, *shape]) == 0
    reshape = ["--src", "dp,tp", "--shape", "8,16", "--to-shape", "128", "--dst", "(dp,tp)"]
    assert main([*MESH, *reshape]) == 0
    assert "float32[8x16] to 128" in capsys.readouterr().out


def test_wrong_arguments_are_named_in_errors(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*MESH, "--src", "dp,tq", "--dst", "dp,tp", "--shape", "4,4"]) == 2
    assert main([*MESH, "--src", "dp", "--dst", "dp,tp", "--shape", "4"]) == 2
    assert main([*MESH, "--src", "dp", "--dst", "tp", "--shape", "4", "--dtype", "float33"]) == 2
    errors = capsys.readouterr().err
    assert "float33" in errors and errors.count("error:") == 3


def test_the_picture_shows_every_transfer_once() -> None:
    mesh = Mesh((2, 2), ("a", "b"))
    src, dst = mesh("a", "b"), mesh(None, "a")
    text = figure(plan(src, dst, (4, 6))).text
    for sender, receiver, _ in transfers(src, dst, (4, 6)):
        assert (f"{sender}>{receiver}" if sender != receiver else f"| {sender} ") in text
    assert "sender>receiver" in text and "sender>receiver" not in figure(plan(src, dst, (400, 0))).text
    line = Mesh((3,), ("x",))
    drawn = figure(plan(line("x"), Mesh((2,), ("y",), [2, 0])("y"), (6,))).text
    assert "1>2" in drawn and "2>0" in drawn
    assert transfers_list(src, dst, (4, 6), rank=0)[0].startswith("0 keeps [0:2, 0:3]")


def test_own_notation_is_read_without_dialects() -> None:
    """Only other notations load the modules of dialects."""
    code = (
        "import sys; from spmdsim.cli.main import main; main(sys.argv[1:]); "
        "print([name for name in sys.modules if name.startswith('spmdsim.dialects')])"
    )
    for layouts, loaded in ((("dp,tp", "tp,dp"), "[]"), (("S(0)S(1)", "tp,dp"), "spmdsim.dialects.torch")):
        arguments = [
            "plan",
            "--mesh",
            "dp=2,tp=4",
            "--src",
            layouts[0],
            "--dst",
            layouts[1],
            "--shape",
            "8,8",
        ]
        done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert loaded in done.stdout.splitlines()[-1]
