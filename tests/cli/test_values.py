"""Values may start with a dash, and tables fit narrow terminals."""

from __future__ import annotations

import json

import pytest

from spmdsim.cli.main import main


def output_of(capsys, *args):
    """Run a command and return its output; check that it succeeds."""
    code = main(list(args))
    output = capsys.readouterr()
    assert code == 0, output.err
    return output.out


@pytest.mark.parametrize("text", ["-1,0", "-,b", "-1 , 0", "(-1,0)"])
def test_a_layout_may_start_with_a_dash(capsys, text):
    layout = output_of(
        capsys,
        "layout",
        "--device-matrix",
        "2,2",
        "--alias",
        "a,b",
        "--tensor-map",
        text,
        "--shape",
        "4,8",
        "--json",
    )
    document = json.loads(layout)
    assert document["tensor_map"] == [-1, 0]
    assert document["ranks"][1]["slice"] == [[0, 4], [4, 8]]


def test_the_layouts_of_a_plan_may_start_with_a_dash(capsys):
    text = output_of(capsys, "plan", "--mesh", "a=2", "--src", "-,a", "--dst", "-,-", "--shape", "4,8")
    assert "[-, a] over a=2 -> [-, -] over a=2" in text
    assert (
        "0 B"
        not in output_of(
            capsys, "plan", "--mesh", "a=2,b=2", "--src", "-1,0", "--dst", "0,-1", "--shape", "4,8"
        )
        .split("busiest rank: ")[1]
        .split("=")[0]
    )


def test_an_unknown_option_is_named(capsys):
    assert main(["layout", "-x", "--shape", "4,8"]) == 2
    assert "there is no argument -x" in capsys.readouterr().err


@pytest.mark.parametrize("columns", [40, 60, 80])
def test_narrow_terminals_cut_no_word(capsys, monkeypatch, columns):
    args = [
        "run",
        "--world",
        "lockstep",
        "-n",
        "6",
        "--only",
        "matmul",
        "--shape",
        "7,5,3",
        "--mesh",
        "a=3,b=2",
        "--wide",
    ]
    monkeypatch.setenv("COLUMNS", str(columns))
    text = output_of(capsys, *args)
    for words in ("(m:a n:b)", "all_reduce(b: 2)", "S(0)S(1)", "3x5 5x2 3x2"):
        assert words in " ".join(text.split())
    tables = text.split("\n\n")[:-1]  # the last lines say how many cases hold
    assert len(tables) > 2 and all(table.startswith(" #  ") for table in tables)
    assert all(table.splitlines()[-1].startswith("11  ") for table in tables)
    cases = text.split(" cases hold")[0]
    assert all(len(line) <= columns for line in cases.splitlines()[:-1])
    monkeypatch.setenv("COLUMNS", "200")
    assert output_of(capsys, *args).count("operator") == 1  # one table
