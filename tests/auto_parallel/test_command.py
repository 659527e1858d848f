"""The command ``spmdsim search`` prints, saves, loads and runs results, and refuses wrong arguments."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from spmdsim import search
from spmdsim.auto_parallel.programs.networks import default_sizes
from spmdsim.cli.main import main
from spmdsim.errors import InputError


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> object:
    """Run ``spmdsim search`` with ``--json``; return the parsed output."""

    assert main(["search", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_program_file_runs_as_predicted(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    file.write_text(
        "from spmdsim import ops\n"
        "inputs = {'x': (64, 32)}\n"
        "parameters = {'w': (32, 64)}\n"
        "def program(x, w):\n"
        "    return ops.sum(ops.relu(ops.matmul(x, w)))\n"
    )
    data = run_json(capsys, str(file), "-n", "4", "--why", "matmul.w", "((4,1),(1,1))", "--run")
    assert [row["name"] for row in data["operators"]] == ["matmul.w", "relu", "sum"]
    assert data["operators"][0]["source"].endswith("model.py:5")
    assert data["why"][0]["operator"] == "matmul.w"
    assert data["run"]["holds"]
    assert all(row["predicted"] == row["counted"] for row in data["run"]["bytes"])
    assert main(["search", "--program", "tutorial", "-n", "8"]) == 0
    assert "matmul1" in capsys.readouterr().out


def test_help_shows_the_default_sizes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["search", "--help"]) == 0
    text = capsys.readouterr().out
    options = set(re.findall(r"--(\w+) [A-Z]+\s+size of a built-in program", text))
    lines = dict(line.split(None, 1) for line in text.split("built-in programs:\n")[1].strip().splitlines())
    with pytest.raises(InputError) as refused:
        search("nothing", 2)
    assert lines.keys() == set(str(refused.value).split("there are ")[1].split(", "))
    for name, text in lines.items():
        sizes = {
            key: size for key, size in default_sizes(name).items() if key in options and size is not None
        }
        assert dict(word.split("=") for word in text.split()) == {
            key: str(size) for key, size in sizes.items()
        }


def test_bert_with_a_vocabulary_has_its_embeddings(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--program", "bert", "--layers", "1", "-n", "2"]
    layers_only, with_embeddings = run_json(capsys, *sizes), run_json(capsys, *sizes, "--vocab", "64")
    names = [{layout["name"] for layout in data["layouts"]} for data in (layers_only, with_embeddings)]
    assert {"embedding", "positions", "segments", "head.w", "logits.b"} <= names[1] - names[0]


def test_the_report_says_that_only_the_found_layout_keeps_the_programs_shard(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A layout without the .shard may be faster, so "optimal" is limited to layouts with the .shard."""
    words = ["--program", "tutorial", "-n", "8"]
    data = run_json(capsys, *words)
    assert data["comparison"]["Megatron 8"]["seconds"] < data["seconds"]
    assert data["configured"] == ["matmul1", "relu1", "matmul2", "relu2"]
    assert main(["search", *words]) == 0
    text = capsys.readouterr().out
    assert "optimal under the model on this mesh with the program's .shard\n" in text
    assert "keeps the program's .shard of matmul1, relu1, matmul2, relu2; the other layouts do not" in text
    assert main(["search", "--program", "mlp", "--layers", "1", "-n", "2"]) == 0
    assert ".shard" not in capsys.readouterr().out


def test_pareto_prints_points_by_time(capsys: pytest.CaptureFixture[str]) -> None:
    points = run_json(capsys, "--program", "mlp", "--layers", "2", "--hidden", "64", "-n", "2", "--pareto")
    assert points == sorted(points, key=lambda p: p["seconds"])


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["-n", "4"], "one of them"),
        (["--program", "mlp", "--mesh", "dp"], "mesh is written like"),
        (["--program", "mlp", "--memory", "lots"], "is not a size"),
        (
            ["--program", "mlp", "--layers", "1", "--hidden", "8", "-n", "2", "--why", "fc0", "(("],
            "a strategy is written like",
        ),
        (["nowhere.py"], "no program file"),
        (["--program", "mlp", "--run"], "--run runs a program file"),
        (["--program", "mlp", "--layers", "1", "-n", "2", "--memory", "1KiB"], "smallest limit"),
        (["--program", "mlp", "--recompute", "--run"], "can only be priced"),
    ],
)
def test_wrong_arguments_are_refused(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(["search", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_the_example_runs_as_predicted(capsys: pytest.CaptureFixture[str]) -> None:
    example = Path(__file__).parents[2] / "examples" / "search_network.py"
    assert main(["search", str(example), "-n", "8", "--run"]) == 0
    text = capsys.readouterr().out
    assert "matmul.fc1" in text and text.rstrip().endswith("as predicted")
    assert "NOT as predicted" not in text and "differ\n" not in text


def test_a_file_that_cannot_be_written_is_a_one_line_error_before_the_search(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error comes first, because the search may take long."""
    monkeypatch.setattr(
        "spmdsim.auto_parallel.search.search", lambda *_, **__: pytest.fail("it is searched first")
    )
    path = tmp_path / "no folder" / "s.json"
    assert main(["search", "--program", "mlp", "--hidden", "16", "-n", "2", "--svg", str(path)]) == 2
    message = capsys.readouterr().err
    assert (
        message.startswith("spmdsim search: error: argument --svg: cannot write ")
        and message.count("\n") == 1
    )
