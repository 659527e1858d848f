"""Fits recover known machines from noisy samples and find protocol changes."""

from __future__ import annotations

import json
import os
from itertools import count
from math import inf
from types import SimpleNamespace

import numpy as np
import pytest

from spmdsim.cli.collective.measure import measure_call, noise_note
from spmdsim.cli.collective.samples import Pace
from spmdsim.cli.main import main
from spmdsim.cost import Machine, calibrate, load_machine, save_machine
from spmdsim.cost.calibration import CalibrationCheck, error_interval, fit_pieces
from spmdsim.errors import InputError

SIZES = [int(64 * 2 ** (k / 2)) for k in range(41)]


def samples(pieces, noise: float, seed: int, sizes=SIZES):
    """Return (size, seconds) pairs of pieces (limit, alpha, beta) with relative noise."""
    rng = np.random.default_rng(seed)
    pairs = []
    for size in sizes:
        alpha, beta = next((a, b) for limit, a, b in pieces if size <= limit)
        pairs.append((size, (alpha + size * beta) * (1 + noise * float(rng.standard_normal()))))
    return pairs


@pytest.mark.parametrize("seed", range(5))
def test_one_line_is_recovered(seed: int) -> None:
    fit = fit_pieces(samples([(inf, 3e-6, 2e-10)], 0.03, seed))
    assert len(fit.pieces) == 1
    assert fit.pieces[0].alpha == pytest.approx(3e-6, rel=0.1)
    assert fit.pieces[0].beta == pytest.approx(2e-10, rel=0.1)
    assert fit.median_error < 0.05


def test_exact_samples_fit_exactly() -> None:
    fit = fit_pieces(samples([(inf, 3e-6, 2e-10)], 0.0, 0))
    assert fit.largest_error < 1e-9
    assert fit.pieces[0].limit == inf


@pytest.mark.parametrize("seed", range(5))
def test_a_protocol_change_gives_two_lines(seed: int) -> None:
    fit = fit_pieces(samples([(8192, 1e-6, 1e-10), (inf, 2e-5, 3e-10)], 0.03, seed))
    assert len(fit.pieces) == 2
    assert 5000 < fit.pieces[0].limit < 13000
    assert fit.pieces[0].alpha == pytest.approx(1e-6, rel=0.1)
    assert fit.pieces[1].beta == pytest.approx(3e-10, rel=0.1)
    assert fit.median_error < 0.06


def test_lines_are_never_negative() -> None:
    convex, falling = [(100, 1e-9), (1000, 1e-7), (10000, 1e-5)], [(100, 3e-6), (1000, 2e-6), (10000, 1e-6)]
    assert [piece.alpha for piece in fit_pieces(convex).pieces] == [0.0]
    assert [piece.beta for piece in fit_pieces(falling).pieces] == [0.0]


def test_the_last_line_grows_unless_nothing_does() -> None:
    growing = [(m, 1e-6 + m * 1e-9) for m in SIZES[:-4]]
    plateau = [(m, growing[-1][1]) for m in SIZES[-4:]]
    assert fit_pieces(growing + plateau).pieces[-1].beta > 0
    assert fit_pieces([(m, 1e-6) for m in SIZES]).pieces[-1].beta == pytest.approx(0, abs=1e-18)


def test_repeated_sizes_count_as_their_median() -> None:
    clean = samples([(inf, 3e-6, 2e-10)], 0.0, 0)
    spoiled = [(m, t * factor) for m, t in clean for factor in (1, 1, 50)]
    assert fit_pieces(spoiled).pieces == fit_pieces(clean).pieces


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ([(1, 1.0), (2, 1.0)], "2 sizes are too few"),
        ([(1, 1.0), (2, 0.0), (3, 1.0)], "a measurement must have a size of 0 or more and a time above 0"),
        ([(1, 1.0), (-2, 1.0), (3, 1.0)], "a measurement must have a size of 0 or more and a time above 0"),
        (
            [(1, 1.0), (2, float("nan")), (3, 1.0)],
            "a measurement must have a size of 0 or more and a time above 0",
        ),
    ],
)
def test_impossible_samples_are_refused(wrong, words: str) -> None:
    with pytest.raises(InputError, match=words):
        fit_pieces(wrong)


def test_disturbed_sizes_are_replaced_by_larger_ones() -> None:
    clean = samples([(8192, 1e-6, 1e-10), (inf, 2e-5, 3e-10)], 0.0, 0)
    disturbed = [(m, t * (20 if k % 5 == 2 else 1)) for k, (m, t) in enumerate(clean)]
    machine = calibrate("busy", disturbed, clean, clean, clean).machine
    for size in (100, 4000, 100_000, 10_000_000):
        honest = next(
            a + b * size for limit, a, b in ((8192, 1e-6, 1e-10), (inf, 2e-5, 3e-10)) if size <= limit
        )
        assert machine.message_seconds(size) == pytest.approx(honest, rel=0.25)


def test_a_calibrated_machine_predicts_what_it_was_fitted_to() -> None:
    messages = samples([(8192, 1e-6, 1e-10), (inf, 2e-5, 3e-10)], 0.02, 1)
    reductions = samples([(inf, 4e-7, 1e-10)], 0.02, 2)
    copies = samples([(inf, 2e-7, 5e-11)], 0.02, 3)
    still = samples([(inf, 1e-6, 5e-11)], 0.02, 4)
    calibration = calibrate("lab", messages, still, reductions, copies, 5e10)
    machine = calibration.machine
    assert machine.message_seconds(1000) == pytest.approx(1e-6 + 1e-7, rel=0.1)
    assert machine.message_seconds(1 << 20) == pytest.approx(2e-5 + 3e-10 * (1 << 20), rel=0.1)
    assert machine.reduce_seconds(1 << 20) == pytest.approx(4e-7 + 1e-10 * (1 << 20), rel=0.1)
    assert machine.copy_seconds(1 << 20) == pytest.approx(2e-7 + 5e-11 * (1 << 20), rel=0.1)
    assert machine.still_seconds(1 << 20) == pytest.approx(1e-6 + 5e-11 * (1 << 20), rel=0.1)
    assert machine.reduce_seconds(0) == machine.copy_seconds(0) == 0
    assert (machine.alpha, machine.beta) == (machine.pieces[0].alpha, machine.pieces[-1].beta)
    assert set(calibration.notes()) >= {"message_median_error", "copy_largest_error"}


# ------------------------------------------------------------------------------ how sure predictions are


def checks(ratios):
    return [CalibrationCheck("ring", 64, 2e-6, 2e-6 * ratio) for ratio in ratios]


@pytest.mark.parametrize("seed", range(3))
def test_nine_of_ten_checks_lie_in_the_interval(seed: int) -> None:
    ratios = np.exp(np.random.default_rng(seed).normal(0.2, 0.5, size=400))
    low, high = error_interval(checks(ratios))
    assert np.mean((ratios >= low) & (ratios <= high)) == pytest.approx(0.9, abs=0.01)
    assert np.mean(ratios < low) == pytest.approx(0.05, abs=0.01)
    assert error_interval(checks(ratios[::-1])) == (low, high)


def test_few_checks_are_refused() -> None:
    with pytest.raises(InputError, match="9 checks are too few"):
        error_interval(checks([1.0] * 9))


def test_the_interval_is_kept_in_the_file_and_scales_times(tmp_path) -> None:
    machine = Machine("lab", 1e-6, 1e-9, interval=(0.5, 3.0))
    save_machine(machine, tmp_path / "lab.json")
    again = load_machine(str(tmp_path / "lab.json"))
    assert again == machine
    assert again.between(2e-6) == pytest.approx((1e-6, 6e-6))
    assert "0.5 to 3 times its prediction" in again.certainty
    assert Machine.laptop().between(1.0) is None
    assert "not compared with measurements" in Machine.laptop().certainty


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[2.0, 1.0]", "two factors, the lower first"),
        ("[0, 1]", "two factors, the lower first"),
        ("[1]", r"has to be \[lowest factor, highest factor\]"),
        ('["a", 2]', "has to be a number"),
    ],
)
def test_a_damaged_interval_is_named(tmp_path, text: str, words: str) -> None:
    (tmp_path / "lab.json").write_text(f'{{"alpha": 1e-6, "beta": 1e-9, "interval": {text}}}')
    with pytest.raises(InputError, match=words):
        load_machine(str(tmp_path / "lab.json"))


class OneRank:
    """The communicator of a job of one rank."""

    def Get_size(self):
        return 1

    def Get_rank(self):
        return 0

    def Barrier(self):
        pass

    def allgather(self, value):
        return [value]


@pytest.fixture
def bench(tmp_path, monkeypatch, capsys):
    """Return a function that runs `bench` on one rank and returns its outputs.

    A call takes the `seconds` of its first argument. The prediction is 2 us, and its interval 1 to 4 us. Programs of others work for `others` seconds in the 2 seconds of
    the measurement.
    """

    def run(seconds, *words, others=0.0, interval=(0.5, 2.0)):
        save_machine(Machine("lab", 1e-6, 1e-9, call_seconds=2e-6, interval=interval), tmp_path / "lab.json")
        work = iter([(5.0, 10.0), (7.0, 10.0 + others)])
        module = "spmdsim.cli.collective.measure."
        monkeypatch.setattr(module + "require_communicator", OneRank)
        monkeypatch.setattr(module + "measure_call", lambda call, *_: (call(), seconds)[1])
        monkeypatch.setattr(module + "read_other_seconds", lambda comm: next(work))
        command = ["collective", "bench", "all_reduce", "-b", "64", "-e", "64", "--algorithms", "ring"]
        assert main([*command, "--machine", str(tmp_path / "lab.json"), *words]) == 0
        return capsys.readouterr()

    return run


@pytest.mark.parametrize(
    ("seconds", "outside"), [(0.9e-6, True), (1e-6, False), (4e-6, False), (4.1e-6, True)]
)
def test_a_measured_time_outside_of_the_interval_is_marked(bench, seconds: float, outside: bool) -> None:
    (row,) = json.loads(bench(seconds, "--json").out)["rows"]
    assert (row["predicted"], row["interval"], row["outside"]) == (2e-6, [1e-6, 4e-6], outside)
    assert ("1.0..4.0 outside" in bench(seconds).out) is outside
    (row,) = json.loads(bench(seconds, "--json", interval=None).out)["rows"]
    assert row["predicted"] == 2e-6 and row["outside"] is row["interval"] is None


def test_a_note_separates_a_loaded_machine_from_a_wrong_prediction(bench) -> None:
    """Other programs keep all cores busy while a rank uses one."""
    core_count = len(os.sched_getaffinity(0))
    assert noise_note(OneRank(), core_count - 1.0) == ""
    words = f"kept {core_count}.0 of the {core_count} cores busy"
    assert words in noise_note(OneRank(), float(core_count))
    cores = [frozenset({0}), frozenset({1})]  # each rank is bound to one core
    on_two = SimpleNamespace(allgather=lambda value: [(value[0], core_set) for core_set in cores])
    assert noise_note(on_two) == ""
    cores.append(cores[0])
    assert noise_note(on_two).startswith("times are noise: 3 ranks share 2 cores;")
    loaded = bench(9e-6, others=2.0 * core_count)
    lines = loaded.out.splitlines()
    assert "1 of 1 times lie outside" in lines[-2] and "says nothing against the predictions" in lines[-1]
    assert words in loaded.err
    alone = bench(9e-6)
    assert "1 of 1 times lie outside" in alone.out.splitlines()[-1] and not alone.err


def test_the_columns_of_a_bench_fit_narrow_terminals(bench, monkeypatch) -> None:
    def heading() -> list[str]:
        lines = bench(2e-6).out.splitlines()
        assert all(len(line) < int(os.environ["COLUMNS"]) for line in lines)
        return next(line for line in lines if "predicted" in line).split()[1:]

    monkeypatch.setenv("COLUMNS", "200")
    every = heading()
    assert every[-3:] == ["predicted", "error", "interval"] and len(every) == 12
    monkeypatch.setenv("COLUMNS", "80")
    assert heading() == ["size", "time", "busbw", "#wrong", "predicted", "interval"]


def test_measurements_are_repeated_until_the_time_is_over() -> None:
    looks = count()
    messages: list[str] = []
    alone = SimpleNamespace(bcast=lambda value: value)
    assert list(Pace(alone, 3, messages.append, lambda: next(looks)).passes("rounds", "abcd")) == [
        *"abcd",
        *"ab",
    ]  # a second per look
    assert messages == [
        "rounds: pass 1 of 3",
        "rounds: pass 2 of 3",
        "rounds: the 3 s for more of them are over",
    ]
    assert list(Pace(alone, 99, messages.append).passes("rounds", "ab")) == [*"ab"] * 3


def test_fewer_slow_calls_are_timed() -> None:
    calls: list[int] = []

    def call() -> None:
        calls.append(1)

    slow = SimpleNamespace(
        Barrier=lambda: None, allgather=lambda value: [value, [9.0] if isinstance(value, list) else 0.1]
    )
    measure_call(call, slow, 2, 60, 5, min, most=0.3)  # the other rank's last call took 0.1 s
    assert len(calls) == 2 + 3
