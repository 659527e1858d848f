"""Injected faults that change a result are reported as WRONG, for each operator, type, strategy and world."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from processes import run_python
from run_files import LOCKSTEP, run_json

import spmdsim
from spmdsim import LockStep, Mesh, ops
from spmdsim.cases.catalogue import catalogue, meshes
from spmdsim.cases.injection import FAULTS
from spmdsim.cases.inputs import Inputs
from spmdsim.cases.outcome import run_case
from spmdsim.cli.main import main

#: Faults and strategies without an effect on two ranks, because both ranks have identical arrays.
SAME = {("root", "replicated"), ("swap", "replicated")}
PAIR, GRID = Mesh((2,), ("tp",)), Mesh((2, 2), ("dp", "tp"))


def judge_cases(mesh, dtype, every, start):
    """Yield (kind, case, outcome) per fault kind, for one in ``every`` cases, counted from ``start``.

    Each fault kind begins at another case. The cases run on `LockStep` over `mesh` with elements of `dtype`.
    """
    inputs = Inputs(shape=(12, 16, 10), dtype=dtype)
    for number, kind in enumerate(FAULTS, start):
        for case in [*catalogue([mesh], inputs)][number % every :: every]:
            yield kind, case, run_case(case, LockStep(mesh.size), inject=kind)


TYPES = (
    "float32", "bfloat16", "float64", "float16", "longdouble", "complex64", "complex128", "int64", "int8", "uint16",
)  # fmt: skip


@pytest.mark.parametrize("dtype", TYPES)
def test_every_fault_is_reported_as_wrong(dtype):
    # Run every fourth case (float32) or every sixth one, because all cases take too long. Each type
    # begins at another case.
    words, every = Counter(), 4 if dtype == "float32" else 6
    mesh = GRID if dtype in ("float32", "bfloat16") else PAIR
    for kind, case, outcome in judge_cases(mesh, dtype, every, TYPES.index(dtype)):
        has_no_effect = (kind, case.strategy) in SAME
        assert outcome.word == ("no effect" if has_no_effect else "WRONG"), (
            kind,
            case.strategy,
            str(outcome.verdict),
        )
        assert outcome.ok == has_no_effect and (outcome.injection.injection_place is None) == has_no_effect
        assert not has_no_effect or "nothing" in outcome.injection.text
        words[kind] += not has_no_effect
    assert set(words) == set(FAULTS) and min(words.values()) >= 16 // every


def test_an_error_of_64_last_place_units_is_noticed():
    """Fractions and whole numbers both show an error of 64 last-place units in one element of a long sum."""
    for dtype, k in (("bfloat16", 512), ("float32", 4096)):
        inputs = Inputs(shape=(8, k, 8), dtype=dtype)
        for case in catalogue([PAIR], inputs, ("matmul",)):
            outcome = run_case(case, LockStep(2), inject="ulp")
            assert outcome.word == "WRONG" and outcome.on_whole_numbers.word == "WRONG", case.strategy
            assert "64 units in the last place" in outcome.injection.text


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_lost_contribution_of_a_rank_is_noticed(dtype, monkeypatch):
    # Break the world below all checks: rank 3 contributes zeros to each reduction of its data.
    honest = LockStep._run

    def broken(self, step, shards, algorithm):
        if step.collective in ("all_reduce", "reduce_scatter"):
            shards = [shard * 0 if rank == 3 else shard for rank, shard in enumerate(shards)]
        return honest(self, step, shards, algorithm)

    monkeypatch.setattr(LockStep, "_run", broken)
    outcomes = [
        (run_case(case, LockStep(8)), case)
        for case in catalogue(meshes(8)[1:2], Inputs(shape=(16, 64, 16), dtype=dtype))
    ]
    for outcome, case in outcomes:
        reduces = "reduce" in case.strategy or case.strategy.startswith("row, ")
        assert outcome.verdict.word == ("WRONG" if reduces else "ok"), (case.op, case.strategy)
    assert sum(not outcome.ok for outcome, _ in outcomes) == 12


def whole_numbers_of(data):
    """Return the inputs of the second run of a case with `data`, on whole numbers."""
    received = []
    (case, *_) = catalogue([PAIR], data, ("matmul",))

    def build_recorded(world, inputs):
        received.append(inputs)
        return case.build(world, inputs)

    run_case(replace(case, build=build_recorded), LockStep(2))
    (exact_inputs,) = {id(inputs): inputs for inputs in received if inputs is not data}.values()
    return exact_inputs


@pytest.mark.parametrize(
    "dtype", ["float16", "bfloat16", "float32", "float64", "complex64", "int8", "longdouble"]
)
def test_whole_numbers_are_exact(dtype):
    # Products, their sums and results must be exact in the type, because checks compare whole numbers
    # exactly.
    inputs = whole_numbers_of(Inputs(shape=(6, 3000, 100), dtype=dtype))
    x, w, bias, w2 = (
        np.asarray(source[tuple(slice(0, n) for n in source.shape)])
        for source in (inputs.x, inputs.w, inputs.bias, inputs.w2)
    )
    assert x.dtype == w.dtype == bias.dtype == w2.dtype == inputs.dtype
    if dtype == "int8":
        return
    wide = [np.abs(array.astype(complex)) for array in (x, w, bias, w2)]
    first = wide[0] @ wide[1] + wide[2]
    digits = {"float16": 2**11, "bfloat16": 2**8}.get(dtype, 2**24)
    most_terms = 126 if x.dtype.itemsize <= 2 else 1022  # nonzero numbers in a column of a weight
    assert (w != 0).sum(axis=0).max() <= most_terms and first.max() <= most_terms * 2 * 2 + 3
    assert x.dtype.kind == "c" or first.max() <= digits
    assert (first @ wide[3]).max() < (65504 if x.dtype.itemsize <= 2 else 2**24)
    assert all((array != 0).any(axis=0).all() for array in (x, w, w2)) and (x != 0).all()


# -- on all kinds of worlds ---------------------------------------------------------------------------


@pytest.mark.ranks(2, 4)
@pytest.mark.parametrize("kind", FAULTS)
def test_faults_on_real_ranks_equal_those_in_lock_step(world, kind):
    inputs = Inputs(shape=(8, 8, 8), dtype="float32")
    wanted = (
        "contraction, all_reduce (k:tp)",
        "row (m:tp)",
        "vocabulary-split, owned rows",
        "column, gather_out",
    )
    cases = [case for case in catalogue([Mesh((world.size,), ("tp",))], inputs) if case.strategy in wanted]
    assert len(cases) == 4
    for case in cases:
        outcome, simulated = (
            run_case(case, world, inject=kind),
            run_case(case, LockStep(world.size), inject=kind),
        )
        assert outcome.word == simulated.word == "WRONG"
        assert (
            outcome.injection.text == simulated.injection.text
            and outcome.failed_checks == simulated.failed_checks
        )
        assert outcome.on_whole_numbers == simulated.on_whole_numbers


def test_the_command_on_real_ranks(tmp_path, launcher):
    arguments = ["run", "-n", "2", "--only", "linear", "--shape", "8,8,8", "--inject", "drop", "--json"]
    real = run_python("-m", "spmdsim", *arguments, cwd=tmp_path)
    assert real.returncode == 1, real.stderr
    report = json.loads(real.stdout)
    assert report["world"] == "MPIWorld" and {case["verdict"] for case in report["cases"]} == {"WRONG"}
    assert all(case["effect"] and "rank 1" in case["broken"] for case in report["cases"])


# -- the command --------------------------------------------------------------------------------------

SMALL = ("-n", "2", "--shape", "8,8,8", "--only", "matmul")


def test_the_report_names_the_fault_and_the_check_that_noticed_it(capsys):
    assert main([*LOCKSTEP, *SMALL, "--inject", "swap"]) == 1
    output = capsys.readouterr().out
    assert "4 of 4 faults that change a result are noticed, 0 MISSED; 1 has no effect" in output
    assert "ranks 1 and 0 have each other's" in output and "data and whole numbers" in output
    report = run_json(capsys, *SMALL, "--inject", "swap", code=1)
    by_word = {case["verdict"]: case for case in report["cases"]}
    assert set(by_word) == {"WRONG", "no effect"}
    assert by_word["WRONG"]["element"]["got"] != by_word["WRONG"]["element"]["expected"]
    assert by_word["WRONG"]["noticed_by"] and not by_word["WRONG"]["ok"]
    assert not by_word["no effect"]["noticed_by"] and not by_word["no effect"]["effect"]


def test_a_missed_fault_has_its_own_exit_code(monkeypatch, capsys):
    # Replace the comparison as well, so that no check notices the faults.
    monkeypatch.setattr("spmdsim.cases.outcome.check", lambda tensor, *_, **__: RIGHT)
    assert main([*LOCKSTEP, *SMALL, "--inject", "drop"]) == 3
    assert (
        "0 of 5 faults that change a result are noticed, 5 MISSED; 0 have no effect"
        in capsys.readouterr().out
    )


RIGHT = spmdsim.check(spmdsim.Tensor.from_global(np.ones(2), PAIR("tp"), LockStep(2)), np.ones(2))


def test_kinds_are_listed_and_the_nearest_is_named(capsys):
    assert main(["run", "--inject", "list"]) == 0
    output = capsys.readouterr().out
    assert all(fault.name in output and fault.about in output for fault in FAULTS.values())
    assert main(["run", "--inject", "list", "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)) == set(FAULTS)
    assert main([*LOCKSTEP, *SMALL, "--inject", "dorp"]) == 2
    assert "no fault is called 'dorp'; did you mean 'drop'? there are drop, double" in capsys.readouterr().err


def test_whole_numbers_are_checked_without_injection_too(monkeypatch, capsys):
    # The error of the replaced operator is smaller than rounding, so only whole numbers show it.
    monkeypatch.setattr(
        "spmdsim.cases.catalogue.matmul", lambda a, b: ops.multiply(ops.matmul(a, b), np.float32(1 + 2**-22))
    )
    report = run_json(capsys, *SMALL, code=1)
    assert (
        {case["verdict"] for case in report["cases"]}
        == {"WRONG"}
        == {c["whole_numbers"] for c in report["cases"]}
    )
    assert {case["why"] for case in report["cases"]} == {"whole numbers, exact in any order"}
