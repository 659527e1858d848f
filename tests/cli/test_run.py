"""`spmdsim run` reads every kind of file and dtype, and its verdicts and bytes are right."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import numpy as np
import pytest
from processes import run_python
from run_files import KINDS, LOCKSTEP, W, X, idx, run_json, safetensors

from spmdsim import LockStep, Mesh, ops
from spmdsim.arrays.files import open_array
from spmdsim.cases.catalogue import matmul_case
from spmdsim.cases.inputs import Inputs
from spmdsim.cli.main import main


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_files_of_every_kind_are_read(tmp_path, kind, capsys):
    source = Inputs(str(kind(tmp_path))).x
    np.testing.assert_array_equal(source[2:9, 1:5], X[2:9, 1:5])
    assert source[2:9, 1:5].flags.c_contiguous
    np.save(tmp_path / "w.npy", W)
    report = run_json(
        capsys, "-n", 4, "--only", "matmul", "--mesh", "2,2", "--x", kind(tmp_path), "--w", tmp_path / "w.npy"
    )
    assert report["ok"] and len(report["cases"]) == 11  # strategies of a product on two axes
    assert all(case["local_shapes"][0][1] <= 10 and case["max_error"] > 0 for case in report["cases"])


def test_a_bfloat16_file_is_computed_in_bfloat16(tmp_path, capsys):
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    path = safetensors(tmp_path / "x.safetensors", "x", "BF16", X.shape, X.astype(bfloat16).tobytes())
    np.save(tmp_path / "w.npy", W)
    report = run_json(capsys, "-n", 2, "--only", "matmul", "--x", path, "--w", tmp_path / "w.npy")
    assert report["ok"]
    assert all("bfloat16" in case["why"] for case in report["cases"])


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_each_image_is_a_row(tmp_path, suffix, capsys):
    images = np.random.default_rng(2).integers(0, 255, (20, 4, 3), np.uint8)
    data = idx(images, 0x08)
    path = tmp_path / f"train-images-idx3-ubyte{suffix}"
    path.write_bytes(gzip.compress(data) if suffix else data)
    source = Inputs(str(path)).x
    np.testing.assert_array_equal(source[3:7, 2:11], images.reshape(20, 12)[3:7, 2:11])
    report = run_json(capsys, "-n", 2, "--only", "matmul,linear", "--x", path)
    assert report["ok"]
    assert {tuple(case["local_shapes"][0]) for case in report["cases"]} <= {(20, 12), (10, 12), (20, 6)}


def test_any_file_may_be_a_text(tmp_path, capsys):
    text = tmp_path / "book.txt"
    text.write_bytes(bytes(range(256)) * 2 + "größe".encode())
    report = run_json(capsys, "-n", 4, "--only", "embedding", "--text", text)
    assert report["ok"]
    assert all(case["local_shapes"][0][0] in (519, 260) for case in report["cases"])


# -- element types and shapes -----------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16", "int64", "int8", "complex64"])
def test_cases_of_every_dtype_are_right(dtype, capsys):
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    report = run_json(capsys, "-n", 2, "--shape", "9,10,11", "--dtype", dtype)
    wrong = [(case["op"], case["strategy"], case["max_error"]) for case in report["cases"] if not case["ok"]]
    assert report["ok"], wrong
    exact = dtype.startswith("int")
    assert all((case["why"] == "exact type") == exact for case in report["cases"])
    assert all(case["max_error"] == 0 for case in report["cases"] if exact)


@pytest.mark.parametrize("shape", ["13,7,5", "3,2,1", "0,4,3", "4,0,3", "4,3,0"])
def test_cases_of_uneven_and_empty_shapes_are_right(shape, capsys):
    report = run_json(capsys, "-n", 4, "--only", "matmul,linear", "--shape", shape)
    assert report["ok"] and len(report["cases"]) > 20


# -- options ----------------------------------------------------------------------------------------


def test_the_json_report_has_layouts_collectives_and_bytes(capsys):
    report = run_json(capsys, "-n", 4, "--only", "matmul", "--mesh", "dp=2,tp=2", "--strategy", "m:dp k:tp")
    assert list(report) == ["world", "ranks", "cases", "ok"]
    assert (report["world"], report["ranks"], report["ok"]) == ("LockStep", 4, True)
    (case,) = report["cases"]
    for key in (
        "op", "mesh", "strategy", "inputs", "output", "collectives", "bytes_counted", "bytes_predicted", "seconds",
        "max_error", "tolerance", "ok",
    ):  # fmt: skip
        assert key in case
    assert case["op"] == "matmul" and case["mesh"] == {"dp": 2, "tp": 2}
    assert case["inputs"] == ["S(0)S(1)", "RS(0)"] and case["output"] == "S(0)R"
    (collective,) = case["collectives"]
    assert list(collective)[:4] == ["collective", "axis", "group_size", "nbytes_per_rank"]
    assert (collective["collective"], collective["axis"], collective["group_size"]) == ("all_reduce", "tp", 2)
    # 1797 images of 64 pixels, 40 columns: rank 0 owns 899 rows of the sum and receives half of it twice.
    assert collective["nbytes_per_rank"] == 899 * 40 * 4
    assert case["bytes_counted"] == case["bytes_predicted"] == [899 * 160] * 2 + [898 * 160] * 2
    assert 0 <= case["max_error"] <= case["tolerance"] and case["tolerance"] > 0


def test_a_strategy_may_scatter_its_output(capsys):
    report = run_json(capsys, "-n", 4, "--shape", "8,8,8", "--mesh", "2,2", "--strategy", "m:dp k:tp >m")
    (case,) = report["cases"]
    assert [c["collective"] for c in case["collectives"]] == ["reduce_scatter"]
    assert case["local_shapes"][2] == [2, 8]


def test_layouts_select_one_case(capsys):
    arguments = ("-n", 4, "--shape", "8,8,8", "--mesh", "2,2", "--layout")
    (case,) = run_json(capsys, *arguments, "dp,tp; tp,None")["cases"]
    assert case["output"] == "S(0)R" and case["local_shapes"] == [[4, 4], [4, 8], [4, 8]]
    (case,) = run_json(capsys, *arguments, "dp,tp; tp,None; None,dp")["cases"]
    assert case["output"] == "S(1)R" and case["ok"]


def test_every_runs_each_assignment_of_axes(capsys):
    report = run_json(capsys, "-n", 4, "--only", "matmul", "--every", "--shape", "4,4,4", "--mesh", "2,2")
    # Each of two axes has four choices; seven of the 16 assignments split k and may scatter.
    assert len(report["cases"]) == 16 + 7
    assert report["ok"]


def test_verbose_prints_the_table_and_the_slices(capsys):
    assert (
        main([*LOCKSTEP, "-n", "4", "--only", "matmul", "--mesh", "4", "--shape", "8,6,4", "--verbose"]) == 0
    )
    output = capsys.readouterr().out
    assert "5 of 5 cases hold on 4 ranks (LockStep)" in output
    assert "all_reduce(tp: 4)" in output and "reduce_scatter(tp: 4)" in output
    assert "[2:4, 0:6]" in output  # rank 1's rows
    assert "operand 1" in output and "verdict" in output


def test_all_cases_on_default_data(capsys):
    report = run_json(capsys, "-n", 2)
    assert report["ok"]
    assert {case["op"] for case in report["cases"]} == {"matmul", "embedding", "linear"}


def test_many_cases_are_summarised_without_all(capsys):
    """A row per operator and mesh has the maximum of the rows that `--all` prints."""
    few = [*LOCKSTEP, "-n", "4", "--only", "matmul,embedding", "--shape", "8,6,4"]

    def rows(output: str) -> list[list[str]]:
        cells = [re.split(r" {2,}", line.strip()) for line in output.splitlines()]
        return [row for row in cells if row[0] in ("matmul", "embedding")]

    assert main(few) == 0 and main([*few, "--all"]) == 0
    short, each = capsys.readouterr().out.split("cases hold", 1)
    assert "--all shows each case" in each
    sums, cases = rows(short), rows(each)
    assert 2 < len(sums) < len(cases)
    for operator, mesh, count, _, received, word in sums:
        same = [row for row in cases if row[:2] == [operator, mesh]]
        assert (int(count), word) == (len(same), "ok")
        assert int(received.replace(",", "")) == max(int(row[4].replace(",", "")) for row in same)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--mesh", "tp8"], "a mesh is written like dp=2,tp=4, but got 'tp8'; did you mean tp=8?"),
        (["--x", "nofile.npy"], "there is no file 'nofile.npy'"),
    ],
)
def test_mistakes_are_refused_before_ranks_start(words, message, monkeypatch, capsys):
    monkeypatch.setattr("spmdsim.launch.start_self", lambda *_: pytest.fail("ranks are started"))
    assert main(["run", "-n", "8", *words]) == 2
    assert message in capsys.readouterr().err


# -- verdicts ---------------------------------------------------------------------------------------


def test_a_wrong_operator_is_found(monkeypatch, capsys):
    monkeypatch.setattr("spmdsim.cases.catalogue.matmul", lambda a, b: ops.multiply(ops.matmul(a, b), 1.001))
    arguments = ("-n", "2", "--only", "matmul", "--shape", "8,8,8")
    report = run_json(capsys, *arguments, code=1)
    assert not report["ok"] and not any(case["ok"] for case in report["cases"])
    assert main([*LOCKSTEP, *arguments]) == 1
    output = capsys.readouterr().out
    assert output.count("WRONG") == 5 and "0 of 5 cases hold" in output


def test_wrong_rows_of_a_table_are_found(tmp_path, monkeypatch, capsys):
    """Three rows or more are wrong, and texts that look up these rows reveal it."""

    def wrong(ids, table, *more, **options):
        return ops.embedding(ops.minimum(ids, 200), table, *more, **options)

    monkeypatch.setattr("spmdsim.cases.catalogue.embedding", wrong)
    (tmp_path / "low").write_bytes(bytes(range(201)))
    (tmp_path / "high").write_bytes(bytes([1, 2, 201]) * 100)
    for text, exact in (("low", True), ("high", False)):
        report = run_json(capsys, "-n", 2, "--only", "embedding", "--text", tmp_path / text, code=1)
        for case in report["cases"]:
            assert case["ok"] == ("padding" in case["strategy"])
            assert case["ok"] or case["why"] == (
                "whole numbers, exact in any order" if exact else "no arithmetic"
            )


def test_other_bytes_than_predicted_are_found(monkeypatch, capsys):
    monkeypatch.setattr("spmdsim.cases.outcome.predict", lambda case, world: (1,) * world.size)
    assert main([*LOCKSTEP, "-n", "2", "--only", "matmul", "--shape", "4,4,4"]) == 1
    assert capsys.readouterr().out.count("BYTES DIFFER") == 5


# -- ranks that read files ------------------------------------------------------------------------------


def test_each_rank_reads_its_slice_only(tmp_path, monkeypatch):
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "w.npy", W)
    requests: dict[str, list[tuple[slice, ...]]] = {"x.npy": [], "w.npy": []}

    def open_recorded(path, **options):
        array = open_array(path, **options)

        def read(index):
            requests[Path(path).name].append(index)
            return array.read(index)

        return type(array)(array.path, array.shape, array.dtype, read)

    monkeypatch.setattr("spmdsim.cases.inputs.open_array", open_recorded)
    inputs = Inputs(str(tmp_path / "x.npy"), str(tmp_path / "w.npy"))
    mesh = Mesh((2, 2), ("dp", "tp"))
    world = LockStep(4)
    program = matmul_case(mesh, ("m", "k"), False, inputs).build(world, inputs)
    for name, operand in zip(requests, program.operands):
        slices = [operand.layout.slices(operand.shape, rank) for rank in range(4)]
        assert sorted(map(str, requests[name])) == sorted({str(index) for index in slices})
    assert requests["x.npy"][0] == (slice(0, 6), slice(0, 5))


def test_real_ranks_report_the_verdicts_of_lock_step(tmp_path, launcher):
    """Two processes have the verdicts and bytes of lock step; an error is printed once."""
    np.save(tmp_path / "x.npy", X)
    arguments = ["--only", "matmul,linear", "--x", "x.npy", "--json"]

    def start(*words):
        return run_python("-m", "spmdsim", "run", *words, cwd=tmp_path)

    real, lockstep = start("-n", "2", *arguments), start("-n", "2", "--world", "lockstep", *arguments)
    assert real.returncode == lockstep.returncode == 0, real.stderr
    a, b = json.loads(real.stdout), json.loads(lockstep.stdout)
    assert (a.pop("world"), b.pop("world")) == ("MPIWorld", "LockStep")
    for entry in (*a["cases"], *b["cases"]):
        assert entry.pop("seconds") > 0
        del entry["max_error"], entry["tolerance"]  # sums may be rounded in another order
        for collective in entry["collectives"]:
            collective.pop("by", None)  # the MPI call
    assert a == b
    missing = start("-n", "2", "--x", "nowhere.npy")
    assert missing.returncode == 2
    assert missing.stderr.count("there is no file 'nowhere.npy'") == 1
