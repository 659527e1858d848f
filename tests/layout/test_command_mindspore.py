"""The command ``spmdsim layout --op`` takes MindSpore's names and attributes."""

from __future__ import annotations

import json

import pytest

from spmdsim.cli.main import main

VIRTUAL = "--device-matrix 2,2,2 --alias dp,sp,interleaved_parallel --in-layouts (dp,interleaved_parallel),sp sp,None"


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (
            "--op ReduceSum --shapes (16,32,64) --shard ((4,4,2),) --attr axis=-1 -n 32",
            {
                "device_matrix": [4, 4, 2],
                "output_maps": [[2, 1]],
                "forward": ["AllReduce:sum"],
                "virtual_div": 2,
            },
        ),
        (
            "--op Softmax --shapes (2,4,8,16) --shard ((2,4,1,16),) --attr axis=-2",
            {"device_matrix": [2, 4, 1, 16], "output_slices": [[1, 1, 8, 1]], "forward": []},
        ),
        (
            "--op Gather --shapes (64,64),(64,64) --shard ((4,1),(1,1)) -n 8",
            {"device_matrix": [2, 4, 1], "mode": "SHARD_AXIS_0_STATIC", "repeated_side": "left"},
        ),
        (
            "--op MatMul --shapes (32,784),(784,512) --shard ((2,4),(4,1)) --out-shard (8,1)",
            {"output_device_matrix": [8, 1], "output_maps": [[1, 0]], "forward": ["ReduceScatter:sum"]},
        ),
        ("--op ReLU --shapes (64,32) -n 8", {"device_matrix": [8, 1], "input_slices": [[8, 32]]}),
        (
            "--op ReLU --shapes (64,32) --shard ((2,1),) --ranks-order 3,1,2,0 --repeat left",
            {"device_matrix": [2, 2, 1], "mirror_groups": [[[3, 2], [1, 0]]]},
        ),
        (
            "--op GetNext --shapes (64,32),(64) -n 8",
            {"device_matrix": [8, 1], "input_maps": [], "output_maps": [[1, 0], [1]]},
        ),
        (
            f"--op MatMul --shapes (8,16),(16,32) {VIRTUAL}",
            {"device_matrix": [2, 2, 1], "micro_shards": 2, "mirror_groups": [[], [[0, 2], [1, 3]]]},
        ),
    ],
)
def test_operators_have_mindspores_names_and_results(command, expected, capsys):
    assert main(["layout", *command.split(), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert {key: report["mindspore"][key] for key in expected} == expected
    assert len(report["collectives"]) == len(report["mindspore"]["forward"])
    slices = [entry["ranks"][0]["local_shape"] for entry in report["outputs"]]
    assert slices == report["mindspore"]["output_slices"]
    assert main(["layout", *command.split()]) == 0
    assert "virtual div" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("--op ReLU --shapes (64,32)", "needs a strategy"),
        ("--op ReLU --shapes (64,32) --shard ((3,1),) -n 8", "cannot be split evenly"),
        ("--op ReLU --shapes (64,32) --shard ((2,1),) -n 8 --ranks-order 3,1,2,0", "has 4 ranks"),
        ("--op LayerNorm --shapes (64,32) --shard ((2,1),)", "got 1 operand of shapes"),
        (
            "--op softmax --shapes (2,4) --shard ((2,1),) --attr axis=1",
            "does not take --attr axis; it takes dim",
        ),
        ("--op matmul --shapes (2,4) --shard ((2,1),)", "matmul takes 2 operands, but --shapes gives 1"),
        ("--op gather --shapes (2,4),(3,) --shard ((2,1),(1,))", "gather needs --attr dim=..."),
        ("--op MatMull --shapes (2,4),(4,2) --shard ((2,1),(1,1))", "did you mean 'MatMul'?"),
        (
            "--op matmul --shapes (2,4),(4,2) --shard ((2,1),(1,2)) -n 6",
            "into 2 (m) * 1 (k) * 2 (n) = 4 blocks, which must divide the number of ranks, got 6 ranks",
        ),
        ("--op Nope --shapes (2,4) --shard ((2,1),)", "there are MindSpore's"),
        (
            "--op ReduceSum --shapes (2,4) --shard ((2,1),) --attr axes=1",
            "did you mean 'axis'? there are axis, keep_dims",
        ),
        (
            "--op MatMul --shapes (2,4),(4,2) --shard ((2,1),(1,1)) --attr transpose_b=flase",
            "transpose_b must be True or False, got 'flase'",
        ),
        ("--op ReduceSum --shapes (2,4) --shard ((2,1),) --attr axis=x", "axis must be no text, got 'x'"),
        (
            "--op ReduceSum --shapes (2,4) --shard ((2,1),) --attr axis=0 --attr axis=1",
            "axis is given twice, as 0 and 1",
        ),
        ("--op ReduceSum --shapes (2,4) --shard ((2,1),) --attr layout=3", "dev_matrix and input_tensor_map"),
        ("--op relu --shapes (2,4) --shard ((2,1),) --attr axis=0", "relu does not take --attr axis"),
        (
            "--op matmul --shapes (2,4),(4,2) --shard ((2,1),(1,1)) --attr transpos_b=True",
            "did you mean 'transpose_b'?",
        ),
        (
            "--op matmul --shapes (2,4),(4,2) --shard ((2,1),(1,1)) --attr transpose_b=flase",
            "must be True or False",
        ),
        (
            "--op sum --shapes (2,4) --shard ((2,1),) --attr dims=0 --attr keepdims=1",
            "does not accept --attr dims=0",
        ),
    ],
)
def test_wrong_operators_are_refused_in_one_line(command, words, capsys):
    assert main(["layout", *command.split()]) != 0
    message = capsys.readouterr().err
    assert words in message and "Traceback" not in message


def test_a_device_may_have_several_virtual_ranks(capsys):
    command = [
        "layout",
        "--device-matrix",
        "2,2,2",
        "--alias",
        "dp,sp,interleaved_parallel",
        "--shape",
        "8,6",
    ]
    command += ["--tensor-map", "(dp,interleaved_parallel),sp"]
    assert main([*command, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["devices"], report["micro_shards"]) == (4, 2) and len(report["ranks"]) == 8
    assert main(command) == 0
    assert "4 devices play 2 of these (virtual) ranks each: rank = device * 2 + i" in capsys.readouterr().out
