"""Fits recover known machines from noisy samples and find protocol changes."""

from __future__ import annotations

import os
from itertools import count
from math import inf
from types import SimpleNamespace

import numpy as np
import pytest

from spmdsim.cli.collective import bench, measure
from spmdsim.cli.collective.bench import BenchRow, format_footer
from spmdsim.cli.collective.samples import Pace
from spmdsim.cost import Machine, calibrate, load_machine, save_machine
from spmdsim.cost.calibration import CalibrationCheck, error_interval, fit_line, fit_pieces
from spmdsim.cost.machine_file import machine_from_json
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
    assert fit_line([(100, 1e-9), (1000, 1e-7), (10000, 1e-5)])[0] == 0.0
    assert fit_line([(100, 3e-6), (1000, 2e-6), (10000, 1e-6)])[1] == 0.0


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
def test_a_damaged_interval_is_named(text: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        machine_from_json(f'{{"alpha": 1e-6, "beta": 1e-9, "interval": {text}}}', "lab.json")


@pytest.mark.parametrize(
    ("seconds", "outside"), [(0.9e-6, True), (1e-6, False), (4e-6, False), (4.1e-6, True)]
)
def test_a_measured_time_outside_of_the_interval_is_marked(seconds: float, outside: bool) -> None:
    row = BenchRow("ring", 64, 16, "float32", "sum", -1, seconds, 1.0, 1.0, 0, 2e-6, (1e-6, 4e-6))
    assert row.outside is outside
    assert BenchRow("ring", 64, 16, "float32", "sum", -1, seconds, 1.0, 1.0, 0, None).outside is None


class OneRank:
    def allgather(self, value):
        return [value]


def test_a_note_separates_a_loaded_machine_from_a_wrong_prediction(monkeypatch) -> None:
    """Other programs work for 3 s in the first second and not in the next; a rank uses one core."""
    now = iter([(0.0, 10.0), (1.0, 13.0), (2.0, 13.0)])
    monkeypatch.setattr(measure, "read_other_seconds", lambda comm: next(now))
    cores = measure.watch_other_programs(OneRank())
    assert cores() == 3.0 and cores() == 1.5
    core_count = len(os.sched_getaffinity(0))
    assert measure.noise_note(OneRank(), core_count - 1.0) == ""
    note = measure.noise_note(OneRank(), float(core_count))
    assert f"kept {core_count}.0 of the {core_count} cores busy" in note
    cores = [frozenset({0}), frozenset({1})]  # each rank is bound to one core
    on_two = SimpleNamespace(allgather=lambda value: [(value[0], core_set) for core_set in cores])
    assert measure.noise_note(on_two) == ""
    cores.append(cores[0])
    assert measure.noise_note(on_two).startswith("times are noise: 3 ranks share 2 cores;")
    row = BenchRow("ring", 64, 16, "float32", "sum", -1, 9e-6, 1.0, 1.0, 0, 2e-6, (1e-6, 4e-6))
    lines = list(format_footer([row], 0, note))
    assert "1 of 1 times lie outside" in lines[-2] and "says nothing against the predictions" in lines[-1]
    lines = list(format_footer([row], 0, ""))
    assert "1 of 1 times lie outside" in lines[-1]


def test_the_columns_of_a_bench_fit_narrow_terminals() -> None:
    every = [column.name for column in bench._select_columns(True, None)]
    assert every[-3:] == ["predicted", "error", "interval"] and len(every) == 12
    narrow = bench._select_columns(True, 80)
    assert [column.name for column in narrow] == ["size", "time", "busbw", "#wrong", "predicted", "interval"]
    assert sum(column.width + 1 for column in narrow) < 80


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
    measure.measure_call(call, slow, 2, 60, 5, min, most=0.3)  # the other rank's last call took 0.1 s
    assert len(calls) == 2 + 3
