"""Options without effect beside the other options are refused; redundant options are accepted."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from spmdsim.cli.main import main

#: A call with an option that has no effect in it, and a part of the error message.
WITHOUT_EFFECT = """
plan --mesh dp=2,tp=2 --src dp,tp --dst tp,dp --shape 4,4 --alias a,b | --alias goes with --device-matrix
plan --mesh dp=2,tp=2 --device-matrix 2,2 --src 1,0 --dst 0,1 --shape 4,4 | --mesh goes with layouts of other notations
plan --mesh dp=2 --src 'a=2,b=3: a,b' --dst 'c=3,d=2: c,d' --shape 6,6 | --mesh goes with layouts that do not name a mesh
train --world lockstep -n 2 --steps 1 --machine cluster | --machine goes with --perfetto
layout --mesh dp=2,tp=2 --dims dp,tp --sbp (B,B) | --sbp goes with --placement, not with --mesh
layout --mesh dp=2,tp=2 --dims dp,tp --tensor-map 1,0 | --tensor-map goes with --device-matrix, not with --mesh
layout --mesh dp=2,tp=2 --dims dp,tp --repeat left | --repeat goes with --op or --shard, not with --mesh
layout --mesh dp=2,tp=2 --dims dp,tp --attr a=1 | --attr goes with --op, not with --mesh
layout --mesh dp=2,tp=2 --dims dp,tp --padding-row | --padding-row goes with --split, not with --mesh
layout --mesh dp=2,tp=2 --dims dp,tp -n 8 | -n 8 was given, but dp=2 tp=2 has 4 ranks
layout --mesh dp=2,tp=2 --dims dp,tp --all --rank 1 | --all goes with every rank, not with --rank
layout --device-matrix 2,2 --tensor-map 1,0 --dims dp,tp | --dims goes with --mesh, not with --device-matrix
layout --placement [[0,1],[2,3]] --sbp (B,B) --shape 4,4 --device-matrix 2,2 | --device-matrix goes with --op, not with --placement
layout --shard ((2,2),) --alias a,b | --alias goes with --op or --device-matrix, not with --shard
layout --split linear --shape 8,8 --partitions 2 --op matmul | --op goes with its own, not with --split: each says where tensors live
layout --split embedding --shape 8,8 --partitions 2 --no-gather-out | --no-gather-out goes with --split linear
layout --op matmul --shard ((2,2),(2,1)) --shapes (4,4),(4,4) --shape 4,4 | not with --op
layout --op matmul --shard ((2,2),(2,1)) --shapes (4,4),(4,4) -n 4 --device-matrix 2,2 | --device-matrix goes with --in-layouts
layout --op matmul --shard ((2,2),(2,1)) --shapes (4,4),(4,4) --mesh a=2,b=2 | --mesh goes with --in-layouts
layout --op matmul --shard ((2,2),(2,1)) --shapes (4,4),(4,4) --alias a,b | --alias goes with --device-matrix
layout --op relu --mesh a=2 --in-layouts a --shapes (4,) --shard ((2,),) | --shard goes with cuts, not with --in-layouts
layout --op relu --mesh a=2 --in-layouts a --shapes (4,) --repeat left | --repeat goes with cuts, not with --in-layouts
layout --op relu --mesh a=2 --in-layouts a --out-layout a --out-shard ((2,),) --shapes (4,) | --out-shard goes with cuts
search --program mlp x.py | one of them
search --program mlp --time-limit 3 | --time-limit goes with a program file
search --program mlp --pareto --why fc0 ((1,1),(1,1)) | --why goes with one strategy, not with --pareto
search --program mlp --pareto --memory 1MiB | --memory goes with one strategy, not with --pareto
search --program mlp --mesh a=2 --axes 1 | --axes goes with -n RANKS, not with --mesh
search --program mlp --mesh a=2 -n 4 | -n 4 was given, but --mesh a=2 has 2 ranks
search --program mlp --method double_recursion --mesh a=2,b=2 | --mesh goes with other methods
search --program mlp --method double_recursion --axes 1 | --axes goes with other methods
search --program mlp --method recursive_programming --memory 1 | search: method must be 'auto' or 'exact' with memory, got 'recursive_programming'
run --inject list -n 4 | -n goes with a run, not with --inject list
run --world lockstep -n 2 --only matmul --text x | --text goes with embedding
run --world lockstep -n 2 --only embedding --shape 2,2,2 | --shape goes with matmul and linear
run --world lockstep -n 2 --only linear --every | --every goes with matmul
run --world lockstep -n 2 --strategy m:dp --every | --every goes with strategies of the catalogue
collective show all_reduce ring --root 1 | --root goes with broadcast, reduce, gather and scatter: all_reduce has no root
collective show all_reduce ring --rounding ceiling | --rounding goes with --bytes
collective show all_reduce ring --itemsize 4 | --itemsize goes with --bytes
collective show all_reduce ring --chunks n | --chunks goes with FILE.py:FUNCTION: ring says which
collective diff all_reduce ring rabenseifner --segments 3 | --segments goes with algorithms that have it: ring and rabenseifner
collective diff all_reduce ring rabenseifner --chunks n | --chunks goes with FILE.py:FUNCTION: ring and rabenseifner say which
collective check ring --root 1 | --root goes with broadcast
collective export all_reduce ring --format msccl --itemsize 4 | --itemsize goes with --format goal
collective predict all_reduce --links ring --trace FILE | --trace goes with tables of times, not with --links
collective predict all_reduce --algorithms ring --group 2 | --group goes with algorithms that have it: hierarchical_leader, two_level_ring
collective detect all_reduce -n 4 | -n goes with --table
collective detect all_reduce --table --ranks 4 | --ranks goes with ranks that are started
explore --collective broadcast | --collective goes with --algorithm FILE.py:FUNCTION
explore --memory-limit 9 | --memory-limit goes with --algorithm FILE.py:FUNCTION
tune -o x.json --sizes 4 --show | --sizes goes with -n RANKS without a script
launch -n 2 --world lockstep --master_port 1234 PROGRAM | --master_port goes with --nproc_per_node
""".strip().splitlines()


@pytest.mark.parametrize("line", WITHOUT_EFFECT)
def test_an_option_without_effect_is_refused(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    if "simulate" in line:
        pytest.importorskip("greenlet")
    monkeypatch.chdir(tmp_path)
    Path("program.py").write_text("print(1)\n")
    words, _, text = line.partition(" | ")
    assert main(shlex.split(words.replace("PROGRAM", "program.py"))) == 2
    out, message = capfd.readouterr()
    assert re.fullmatch(r"spmdsim [^\n]+: error: [^\n]+\n", message) and text in message, message
    assert not out and [path.name for path in tmp_path.iterdir()] == ["program.py"]


#: Calls with an option that repeats a default or another option.
REDUNDANT = """
layout --mesh dp=2,tp=2 --dims dp,tp --shape 4,4 -n 4
layout --mesh dp=2,tp=2 --dims dp,tp --shape 4,4 --all
layout --mesh dp=2,tp=2 --dims dp,tp --shape 4,4 --allow-uneven
search --program mlp --layers 1 --hidden 8 --batch 8 --mesh a=2 -n 2
collective show all_reduce ring --root 0
collective predict all_reduce -n 4 -e 1K --json
train --world lockstep -n 2 --steps 1 --every 1 --json
""".strip().splitlines()


@pytest.mark.parametrize("line", REDUNDANT)
def test_redundant_options_are_accepted(line: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(shlex.split(line)) == 0 and capfd.readouterr().out


def test_json_has_one_rank_with_the_option_rank(capfd: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "--mesh", "dp=2,tp=2", "--src", "dp,tp", "--dst", "tp,dp", "--shape", "4,4", "--json"]
    assert main(words) == 0
    every = json.loads(capfd.readouterr().out)["ranks"]
    assert len(every) == 4 and main([*words, "--rank", "2"]) == 0
    assert json.loads(capfd.readouterr().out)["ranks"] == [every[2]]


@pytest.mark.parametrize(
    "only, present, absent",
    [("counts", "rounds", ("messages", "states")), ("states", "states", ("messages", "rounds"))],
)
def test_json_has_the_keys_of_the_option_only(
    only: str, present: str, absent: tuple[str, ...], capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["collective", "show", "all_reduce", "ring", "-n", "3", "--json", "--only", only]) == 0
    facts = json.loads(capfd.readouterr().out)
    assert present in facts and facts["ok"] and not {*absent} & {*facts}
