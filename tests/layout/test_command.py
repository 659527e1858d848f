"""The command ``spmdsim layout`` keeps the contract of JSON and text; mistakes give one clear line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from spmdsim.cli.main import build_parser, main
from spmdsim.errors import SpmdError

KEYS = ["device_matrix", "alias_name", "tensor_map", "rank_list", "shape", "placements", "ranks"]
RANK_KEYS = ["rank", "coords", "shard_number", "slice", "local_shape", "replicas"]
MATMUL = ["--op", "matmul", "--shapes", "(32,784),(784,512)"]


def run_text(capsys, *arguments):
    args = build_parser("layout").parse_args(["layout", *arguments])
    assert args.run(args) == 0
    return capsys.readouterr().out


def run_json(capsys, *arguments):
    return json.loads(run_text(capsys, *arguments, "--json"))


def test_mindspore_layouts_are_reported_as_json(capsys):
    report = run_json(
        capsys,
        *[
            "--device-matrix",
            "2,1,2,2,1",
            "--alias",
            "a,b,c,d,e",
            "--tensor-map",
            "b,d,e,c,a",
            "--shape",
            "1,2,1,2,2",
        ],
    )
    assert list(report) == KEYS
    assert report["device_matrix"] == [2, 1, 2, 2, 1] and report["alias_name"] == list("abcde")
    assert report["tensor_map"] == [3, 1, 0, 2, 4] and report["rank_list"] == list(range(8))
    assert report["shape"] == [1, 2, 1, 2, 2]
    assert report["placements"] == ["S(4)", "S(0)", "S(3)", "S(1)", "S(2)"]
    assert [list(rank) for rank in report["ranks"]] == [RANK_KEYS] * 8
    assert [rank["shard_number"] for rank in report["ranks"]] == [0, 4, 2, 6, 1, 5, 3, 7]
    assert report["ranks"][5] == {
        "rank": 5,
        "coords": [1, 0, 0, 1, 0],
        "shard_number": 5,
        "slice": [[0, 1], [1, 2], [0, 1], [0, 1], [1, 2]],
        "local_shape": [1, 1, 1, 1, 1],
        "replicas": [5],
    }


def test_tuples_nest_as_written_or_by_the_mesh(capsys):
    base = [
        "--device-matrix",
        "2,2,2",
        "--alias",
        "dp,sp,mp",
        "--tensor-map",
        "mp,(sp,dp)",
        "--shape",
        "32,784",
    ]
    report = run_json(capsys, *base)
    assert report["tensor_map"] == [0, [1, 2]] and report["ranks"][2]["slice"] == [[0, 16], [392, 588]]
    by_mesh = run_json(capsys, *base, "--tuple-order", "mesh")
    assert by_mesh["tensor_map"] == [0, [2, 1]] and by_mesh["ranks"][2]["slice"] == [[0, 16], [196, 392]]
    reordered = run_json(capsys, *base, "--ranks-order", "7,6,5,4,3,2,1,0")
    assert reordered["rank_list"] == [7, 6, 5, 4, 3, 2, 1, 0]
    by_rank = {rank["rank"]: rank for rank in reordered["ranks"]}
    assert by_rank[5]["slice"] == [[0, 16], [392, 588]] and by_rank[5]["coords"] == [0, 1, 0]


MINDSPORE_MESH = ["--device-matrix", "2,2,2", "--alias", "dp,sp,mp"]


def test_a_tuple_out_of_mesh_order_has_a_remark(capsys):
    """MindSpore's tutorial nests the tuple by the device matrix, as ``--tuple-order mesh`` does."""
    call = [*MINDSPORE_MESH, "--tensor-map", "mp,(sp,dp)", "--shape", "32,784"]
    printed = " ".join(run_text(capsys, *call).split())
    assert "remark: (sp,dp) nests as written, sp major" in printed
    assert "tutorial prints has dp major: --tuple-order mesh" in printed
    as_operator = run_text(capsys, *MATMUL, *MINDSPORE_MESH, "--in-layouts", "mp,(sp,dp)", "(sp,dp),None")
    assert as_operator.count("remark: (sp,dp) nests as written") == 1
    by_mesh = run_text(capsys, *call, "--tuple-order", "mesh")
    assert "remark" not in by_mesh and "[0:16, 196:392]" in by_mesh
    assert "remark" not in run_text(
        capsys, *MINDSPORE_MESH, "--tensor-map", "mp,(dp,sp)", "--shape", "32,784"
    )
    assert "remark" not in run_text(capsys, "--mesh", "a=2,b=2", "--dims", "(b,a)", "--shape", "8")


def test_a_repeated_axis_has_a_remark(capsys):
    """MindSpore's document has the tensor map (4, 3, 2, 1, 0), as ``--repeat left`` does."""
    call = ["--shard", "((2,1,1,2,1),)"]
    right = run_text(capsys, *call, "-n", "8")
    assert "tensor map (5, 4, 3, 2, 1)" in right
    assert "the cuts make 4 shards for 8 ranks, so an axis of 2 for copies is added on the right" in right
    assert "without it the tensor map is (4, 3, 2, 1, 0)" in right
    left = run_text(capsys, *call, "-n", "8", "--repeat", "left")
    assert "tensor map (4, 3, 2, 1, 0)" in left and "the tensor map stays (4, 3, 2, 1, 0)" in left
    assert "remark" not in run_text(capsys, *call, "-n", "4")


@pytest.mark.parametrize("repeat", ["right", "left"])
def test_operators_are_reported_as_json(capsys, repeat):
    report = run_json(capsys, *MATMUL, "--shard", "((2,4),(4,1))", "-n", "16", "--repeat", repeat)
    assert list(report) == ["inputs", "outputs", "collectives"]
    x, w = report["inputs"]
    assert x["device_matrix"] == ([2, 4, 1, 2] if repeat == "right" else [2, 2, 4, 1])
    assert (x["tensor_map"], w["tensor_map"]) == (([3, 2], [2, 1]) if repeat == "right" else ([2, 1], [1, 0]))
    assert x["ranks"][0]["local_shape"] == [16, 196] and w["ranks"][0]["local_shape"] == [196, 512]
    numbers = [rank["shard_number"] for rank in x["ranks"]]
    assert numbers == ([n // 2 for n in range(16)] if repeat == "right" else [*range(8), *range(8)])
    # Ranks that repeat the calculation take part in the reduction.
    collective, gather = report["collectives"]
    assert collective["collective"] == "reduce_scatter" and collective["axes"] == ["k"]
    assert gather["collective"] == "all_gather"
    assert len(collective["groups"]) == 4 and collective["groups"][0] == (
        [0, 2, 4, 6] if repeat == "right" else [0, 1, 2, 3]
    )
    assert report["outputs"][0]["ranks"][0]["local_shape"] == [16, 512]


def test_operators_take_ranks_in_another_order(capsys):
    report = run_json(capsys, *MATMUL, "--shard", "((2,2),(2,1))", "--ranks-order", "3,2,1,0")
    assert report["inputs"][0]["rank_list"] == [3, 2, 1, 0]
    assert report["collectives"][0]["groups"] == [[3, 2], [1, 0]]


def test_out_shard_turns_all_reduce_into_reduce_scatter(capsys):
    report = run_json(capsys, *MATMUL, "--shard", "((2,4),(4,1))", "-n", "8", "--out-shard", "(8,1)")
    assert [c["collective"] for c in report["collectives"]] == ["reduce_scatter"]
    assert report["outputs"][0]["tensor_map"][0] == [2, 1]
    assert [rank["slice"][0] for rank in report["outputs"][0]["ranks"]] == [
        [4 * i, 4 * i + 4] for i in range(8)
    ]


def test_operators_take_layouts(capsys):
    mesh = ["--device-matrix", "2,2,2", "--alias", "dp,sp,mp"]
    report = run_json(capsys, *MATMUL, *mesh, "--in-layouts", "mp,(sp,dp)", "(sp,dp),None")
    assert report["inputs"][0]["tensor_map"] == [0, [1, 2]] and report["outputs"][0]["tensor_map"] == [0, -1]
    assert report["collectives"][0]["groups"] == [[0, 2, 4, 6], [1, 3, 5, 7]]
    report_of_layouts = run_json(
        capsys, *MATMUL, "--in-layouts", "a=2,b=2: a,b", "a=2,b=2: b,None", "--out-layout", "a=2,b=2: (a,b),-"
    )
    assert [c["collective"] for c in report_of_layouts["collectives"]] == ["reduce_scatter"]


def test_operators_take_attributes(capsys):
    arguments = [
        "--op",
        "MatMul",
        "--shapes",
        "(8,16),(32,16)",
        "--shard",
        "((2,4),(1,4))",
        "--attr",
        "transpose_b=True",
    ]
    report = run_json(capsys, *arguments)
    assert report["inputs"][1]["tensor_map"] == [0, 1] and report["outputs"][0]["shape"] == [8, 32]


def test_oneflow_layouts_are_reported_as_json(capsys):
    report = run_json(capsys, "--placement", "[[0,1],[2,3]]", "--sbp", "(B,S(0))", "--shape", "4,8")
    assert report["placements"] == ["R", "S(0)"] and report["device_matrix"] == [2, 2]
    assert [rank["slice"][0] for rank in report["ranks"]] == [[0, 2], [2, 4], [0, 2], [2, 4]]
    assert [rank["replicas"] for rank in report["ranks"]] == [[0, 2], [1, 3], [0, 2], [1, 3]]
    report = run_json(capsys, "--placement", "[0,2,1,3]", "--sbp", "S(0)", "--shape", "4,8")
    assert report["rank_list"] == [0, 2, 1, 3]


def test_paddle_splits_are_reported_as_json(capsys):
    report = run_json(
        capsys, *["--split", "embedding", "--shape", "8,8", "--partitions", "2", "--padding-row"]
    )
    assert [rank["weight_shape"] for rank in report["split"]["ranks"]] == [[5, 8], [5, 8]]
    assert [rank["part"] for rank in report["split"]["ranks"]] == [[0, 4], [4, 8]]
    assert [rank["padding_index"] for rank in report["split"]["ranks"]] == [4, 4]
    column = run_json(capsys, *["--split", "linear", "--shape", "8,8", "--axis", "1", "--partitions", "4"])
    assert [c["collective"] for c in column["collectives"]] == ["all_gather"]
    assert column["inputs"][0]["ranks"][1]["slice"] == [[0, 8], [2, 4]]
    assert (
        run_json(capsys, *["--split", "linear", "--shape", "8,8", "-n", "4", "--no-gather-out"])[
            "collectives"
        ]
        == []
    )


def test_uneven_layouts_are_reported_for_chosen_ranks(capsys):
    report = run_json(
        capsys, *["--mesh", "dp=2,tp=4", "--dims", "dp,tp", "--shape", "5,10", "--rank", "7", "--rank", "0"]
    )
    assert [rank["rank"] for rank in report["ranks"]] == [7, 0]
    assert report["ranks"][0]["slice"] == [[3, 5], [8, 10]] and report["ranks"][1]["local_shape"] == [3, 3]
    without_shape = run_json(capsys, "--mesh", "dp=2", "--dims", "dp")
    assert without_shape["shape"] is None and without_shape["ranks"][1]["slice"] is None


def test_option_values_may_start_with_a_minus(capsys):
    assert run_json(capsys, "--device-matrix", "2,2", "--tensor-map=-1,0")["tensor_map"] == [-1, 0]
    assert run_json(capsys, "--mesh", "a=2", "--dims=-,a")["tensor_map"] == [-1, 0]


def test_text_shows_the_steps(capsys):
    out = run_text(
        capsys,
        *[
            "--device-matrix",
            "2,1,2,2,1",
            "--alias",
            "a,b,c,d,e",
            "--tensor-map",
            "b,d,e,c,a",
            "--shape",
            "1,2,1,2,2",
        ],
    )
    for words in (
        "1. number",
        "2. adjust",
        "3. compute",
        "slices",
        "rank:shard",
        "rows: dim 3, columns: dim 4",
    ):
        assert words in out
    assert "stride[d] = device_matrix[e] * device_matrix[c] * device_matrix[a] = 1 * 2 * 2 = 4" in out
    assert "0*8 + 1*4 + 0*4 + 1*2 + 0*1" in out and "[0:1, 1:2, 0:1, 1:2, 0:1]" in out
    assert out.isascii()


def test_cuts_are_explained_in_two_steps_with_the_names_of_axes(capsys):
    out = run_text(capsys, "--shard", "((2,1,1,2,1),)", "-n", "8")
    assert "1. number" in out and "2. compute" in out and "adjust" not in out
    assert "d5 (base 2)" in out and "stride[d5] = " in out and "not in the tensor map, so dropped: d0" in out


def test_text_shows_operators_and_splits(capsys):
    out = run_text(capsys, *MATMUL, "--shard", "((2,4),(4,1))", "-n", "8")
    for words in ("all_reduce", "{0..3} {4..7}", "operand 1", "[588:784, 0:512]", "result"):
        assert words in out
    assert out.count("m (base 2)") == 1 and out.count("1. number the device matrix: as for operand 0") == 1
    out = run_text(capsys, *["--split", "embedding", "--shape", "8,8", "--partitions", "2", "--padding-row"])
    assert "[4, 8)" in out and "(5, 8)" in out and "all_reduce" in out


def test_large_meshes_are_abbreviated(capsys):
    arguments = ["--mesh", "x=64,y=1024", "--dims", "x,y", "--shape", "640,10300"]
    out = run_text(capsys, *arguments)
    assert len(out.splitlines()) < 200 and "65,504 ranks in the middle are left out" in out
    assert "(63, 1023)" in out
    assert "(3, 17)" in run_text(capsys, *arguments, "--rank", str(3 * 1024 + 17))


MISTAKES = [
    ([], "give a layout"),
    (["--device-matrix", "2,2"], "--device-matrix needs --tensor-map"),
    (["--device-matrix", "2,2", "--alias", "a,b,c", "--tensor-map", "a,b"], "names 3"),
    (["--device-matrix", "2,2", "--alias", "a,a", "--tensor-map", "a,b"], "'a' is repeated"),
    (["--device-matrix", "2,2", "--alias", "a,b", "--tensor-map", "a,c"], "'c' is not found"),
    (["--device-matrix", "2,2", "--alias", "a,b", "--tensor-map", "a,a"], "more than once"),
    (
        ["--device-matrix", "2,2", "--alias", "a,b", "--tensor-map", "a,b", "--shape", "4"],
        "tensors of 2 dims",
    ),
    (
        ["--device-matrix", "2,2", "--alias", "a,b", "--tensor-map", "a,b", "--shape", "4,5"],
        "dim 1 has size 5",
    ),
    (["--device-matrix", "2,2", "--alias", "a,b", "--tensor-map", "a,b", "--shape", "4,-4"], "not negative"),
    (
        ["--device-matrix", "2,2", "--alias", "a,b", "--tensor-map", "a,b", "--ranks-order", "0,1"],
        "has 2 ranks",
    ),
    (
        ["--device-matrix", "2,2", "--alias", "a,b", "--tensor-map", "a,b", "--rank", "9"],
        "rank 9 is not in the mesh",
    ),
    (["--device-matrix", "2,x", "--alias", "a,b", "--tensor-map", "a,b"], "must be integers"),
    (["--placement", "[[0,1],[2,3]]"], "--placement needs --sbp"),
    (["--placement", "[[0,1],[2,3]]", "--sbp", "B,B"], "--shape must be given"),
    (["--placement", "[[0,1],[2,3]]", "--sbp", "S(0)", "--shape", "4,8"], "needs 2 entries"),
    (["--placement", "[0,1,2,3]", "--sbp", "S(0)", "--shape", "3,8"], "Expected size at split axis"),
    (["--mesh", "a=2"], "--mesh needs --dims"),
    (["--mesh", "a=2", "--dims", "zz"], "names no axes of the mesh a=2 (such as a, or None)"),
    (["--mesh", "dp=2,tp=4", "--dims", "dp,ttp"], "(did you mean 'tp' by 'ttp'?)"),
    (["--mesh", "dp=2,tp=2", "--dims", "S(0)P(su)"], "(did you mean 'P(sum)' by 'P(su)'?)"),
    (["--mesh", "dp=2,tp=2", "--dims", "a=2,b: a,b"], "'b' in 'a=2,b' lacks a size"),
    (["--mesh", "dp=2,tp=2", "--dims", "dp,dp"], "pending reduction: dims (dp), (dp)"),
    (["--split", "linear"], "--split needs --shape"),
    (["--split", "linear", "--shape", "9,8", "--partitions", "2"], "Number of rows of the weight"),
    (["--op", "matmul"], "--op needs --shapes"),
    (["--op", "frobnicate", "--shapes", "(1,)"], "no operator is called 'frobnicate'; there are"),
    ([*MATMUL], "--op needs a strategy"),
    ([*MATMUL, "--shard", "((2,4),(2,1))", "-n", "8"], "'k'"),
    ([*MATMUL, "--shard", "((2,4),)", "-n", "8"], "one entry for each of 2 operands, got"),
    ([*MATMUL, "--shard", "((2,5),(5,1))", "-n", "10"], "cannot be split evenly into 5"),
    ([*MATMUL, "--shard", "((2,4),(4,1))", "-n", "12"], "must divide the number of ranks, got 12"),
    ([*MATMUL, "--shard", "((2,4),(4,1))", "-n", "8", "--out-shard", "(4,1)"], "out_strategy"),
    ([*MATMUL, "--in-layouts", "a=2: a,None"], "--in-layouts gives 1 layout for 2 shapes"),
    ([*MATMUL, "--in-layouts", "a=2: a,None", "a=2: a,None"], "'a'"),
    ([*MATMUL, "--shard", "((1,2),(2,1))", "--attr", "transpose_b"], "--attr is written like"),
    ([*MATMUL, "--shard", "((1,2),(2,1))", "-n", "4", "--ranks-order", "1,0"], "--ranks-order has 2 ranks"),
    (["--shard", "((2,4),(4,1))"], "takes the cuts of one tensor"),
    (["--shard", "((2,3),)", "-n", "8"], "divide the 8 devices"),
    (["--mesh", "x=4000,y=4000", "--dims", "-", "--json"], "choose some with --rank"),
]


@pytest.mark.parametrize(("arguments", "words"), MISTAKES, ids=[words for _, words in MISTAKES])
def test_wrong_options_are_refused_in_one_line(capsys, arguments, words):
    with pytest.raises(SpmdError) as caught:
        run_text(capsys, *arguments)
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_the_command_exits_with_0_or_2():
    """Success exits with 0 and JSON on stdout, an error with 2 and one line on stderr."""
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "spmdsim", "layout", "--mesh", "a=2", "--shape", "4", "--json", "--dims"]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    good, bad = (
        subprocess.run([*command, dims], capture_output=True, text=True, env=environment, timeout=60)
        for dims in ("a", "b")
    )
    assert good.returncode == 0 and json.loads(good.stdout)["ranks"][1]["slice"] == [[2, 4]]
    assert bad.returncode == 2 and bad.stdout == "" and len(bad.stderr.splitlines()) == 1


def test_a_former_option_works_and_names_the_current_one(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["layout", "--split", "linear", "--axis", "1", "-n", "2"]
    assert main([*words, "--shape", "8,8"]) == 0
    current = capsys.readouterr()
    assert main([*words, "--size", "8,8"]) == 0
    former = capsys.readouterr()
    assert former.out == current.out and not current.err
    assert former.err == "spmdsim layout: --size is called --shape now\n"
