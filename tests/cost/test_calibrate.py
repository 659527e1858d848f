"""Fits recover known machines from noisy samples and find protocol changes."""

from __future__ import annotations

import json
import os
from math import inf
from types import SimpleNamespace

import numpy as np
import pytest

from spmdsim.cli.collective.measure import measure_call, noise_note
from spmdsim.cli.collective.samples import RoundSamples
from spmdsim.cli.collective.time_budget import TimeBudget
from spmdsim.cli.main import main
from spmdsim.cost import Machine, NodeMap, Rate, calibrate, load_machine, save_machine
from spmdsim.cost.calibration import (
    CalibrationCheck,
    error_interval,
    find_contradiction,
    fit_line,
    fit_pieces,
    line_interval,
)
from spmdsim.errors import InputError
from spmdsim.worlds.agreement.process_state import ProcessPlace

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


# ------------------------------------------------------------------------------ how sure parameters are


def test_nineteen_of_twenty_intervals_contain_the_true_parameters() -> None:
    alpha, beta = 3e-6, 2e-10
    for sizes in (SIZES, SIZES[::8]):
        intervals = [line_interval(samples([(inf, alpha, beta)], 0.05, seed, sizes)) for seed in range(400)]
        for true_value, name in ((alpha, "alpha"), (beta, "beta")):
            limits = [getattr(interval, name) for interval in intervals]
            assert np.mean([low <= true_value <= high for low, high in limits]) == pytest.approx(
                0.95, abs=0.03
            )


def test_each_line_of_a_fit_has_an_interval_that_contains_it() -> None:
    fit = fit_pieces(samples([(8192, 1e-6, 1e-10), (inf, 2e-5, 3e-10)], 0.03, 0))
    assert len(fit.pieces) == len(fit.intervals) == 2
    for piece, interval in zip(fit.pieces, fit.intervals):
        for value, (low, high) in ((piece.alpha, interval.alpha), (piece.beta, interval.beta)):
            assert 0 <= low < value < high < 1.5 * value
    exact = fit_pieces(samples([(inf, 3e-6, 2e-10)], 0.0, 0)).intervals[0]
    assert exact.alpha == pytest.approx((3e-6, 3e-6)) and exact.beta == pytest.approx((2e-10, 2e-10))


def test_the_last_line_has_a_bandwidth_that_its_samples_determine() -> None:
    """Three disturbed samples at the end would give any slope, so the line before goes on."""
    clean = samples([(inf, 3e-6, 2e-10)], 0.01, 0)
    disturbed = [(m, t * factor) for (m, t), factor in zip(clean[-3:], (1.45, 1.2, 1.0))]
    last = fit_pieces(clean[:-3] + disturbed).pieces[-1]
    assert last.beta == pytest.approx(2e-10, rel=0.2)
    assert fit_line([(0, 1e-6), (1, 1e-6), (2, 1e-6 + 1e-18)])[1] == 0


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


def spread_checks(ratios):
    return [CalibrationCheck("ring", 8 << k, 2e-6, 2e-6 * ratio) for k, ratio in enumerate(ratios)]


def test_checks_contradict_a_fit_that_is_far_off() -> None:
    assert find_contradiction(spread_checks([1.0] * 10 + [3.9] * 10)) == ""
    assert find_contradiction(spread_checks([1.0] * 39 + [50.0])) == ""  # one of twenty may be off
    clause = find_contradiction(spread_checks([1.0] * 10 + [5.0, 20.0]))
    assert clause.startswith("2 of 12 whole collectives") and clause.endswith(
        "(ring of 16,384 bytes: 20 times)"
    )
    assert "ring of 8 bytes: 0.1 times" in find_contradiction(spread_checks([0.1, 0.1] + [1.0] * 10))


def test_the_least_of_several_checks_of_one_call_counts() -> None:
    """Other work on the machine only adds time."""
    quiet, disturbed = spread_checks([2.0] * 12), spread_checks([90.0] * 12)
    assert find_contradiction(disturbed + quiet) == find_contradiction(quiet + disturbed) == ""
    assert find_contradiction(disturbed)


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


# ------------------------------------------------------------------------------ time


class Clock:
    """A clock that stands still, except when a test moves it."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def visit_sizes(seconds: float, cost, sizes=(0, 64, 88, 128, 176, 256, 1024, 4096), **options):
    """Return a budget, the sizes that it yields, and its lines."""
    lines: list[str] = []
    clock, alone = Clock(), SimpleNamespace(bcast=lambda value: value)
    budget = TimeBudget(alone, seconds, lines.append, clock, {"rounds": 1})
    visited = []
    for size, most in budget.measured_sizes("rounds", sizes, **{"kinds": 2, **options}):
        visited.append(size)
        assert 0 < most <= 0.3 or seconds == 0
        clock.now += cost(size)
    return budget, visited, lines


def test_sizes_are_visited_coarsely_first_and_three_times_if_there_is_time() -> None:
    budget, visited, lines = visit_sizes(1000, lambda size: 1)
    everything = [0, 64, 88, 128, 176, 256, 1024, 4096]
    assert visited == [0, 64, 256, 1024, 4096, 88, 128, 176, *everything, *everything]
    assert lines == [f"rounds: pass {number} of 4" for number in (1, 2, 3, 4)]
    assert budget.left_out == {} and budget.used_seconds == len(visited)


def test_sizes_grow_until_the_time_is_over_and_others_are_named() -> None:
    budget, visited, lines = visit_sizes(10, lambda size: 1 + size / 1024)
    assert max(visited) == 1024  # 4096 bytes would have taken four times as long
    assert budget.used_seconds <= 10
    assert budget.left_out == {"rounds": [4096]}
    assert lines[-1] == "rounds: no time for 1 size (4,096 bytes); more --seconds measure them"


def test_one_size_is_measured_without_time_and_too_few_are_refused() -> None:
    budget, visited, lines = visit_sizes(0, lambda size: 1)
    assert visited == [0] and len(budget.left_out["rounds"]) == 7
    assert (
        lines[-1] == "rounds: no time for 7 sizes (64, 88, 128, … 4,096 bytes); more --seconds measure them"
    )
    words = "--seconds must be longer on this machine: there was time for 3 sizes of rounds, at least 4 are needed"
    with pytest.raises(InputError, match=words):
        visit_sizes(3, lambda size: 1, least=4)
    assert visit_sizes(4, lambda size: 1, least=4)[1] == [0, 64, 256, 1024]


def test_the_time_of_a_stage_that_is_short_or_left_out_goes_to_later_ones() -> None:
    clock = Clock()
    stages = {"first": 1, "second": 2, "third": 1}
    budget = TimeBudget(None, 40, lambda words: None, clock, stages)
    assert budget.stage_seconds("first") == 10
    assert budget.stage_seconds("second") == pytest.approx(40 * 2 / 3)
    clock.now += 4
    assert budget.stage_seconds("third") == 36
    clock.now += 50
    assert budget.stage_seconds("third") == 0


def test_all_ranks_follow_the_clock_of_rank_0() -> None:
    sent: list[float | None] = []

    def send(value):
        sent.append(value)
        return value

    def visit(seconds: float, bcast, cost: float):
        clock = Clock()
        budget = TimeBudget(SimpleNamespace(bcast=bcast), seconds, lambda words: None, clock)
        for case in budget.measured_sizes("messages", (0, 64, 256, 1024, 4096, 16384), 3):
            yield case
            clock.now += cost

    decided = list(visit(30, send, 1))
    received = iter(sent)
    assert list(visit(1000, lambda value: next(received), 0)) == decided
    assert next(received, "all used") == "all used"


def test_fewer_slow_calls_are_timed() -> None:
    calls: list[int] = []

    def call() -> None:
        calls.append(1)

    slow = SimpleNamespace(
        Barrier=lambda: None, allgather=lambda value: [value, [9.0] if isinstance(value, list) else 0.1]
    )
    measure_call(call, slow, 2, 60, 5, min, most=0.3)  # the other rank's last call took 0.1 s
    assert len(calls) == 2 + 3


def test_a_call_ends_with_its_last_rank() -> None:
    comm = SimpleNamespace(Barrier=lambda: None, allgather=lambda seconds: [seconds, [9.0] * len(seconds)])
    assert measure_call(lambda: None, comm, warmup=0, iterations=4, batches=4) == 9.0


@pytest.mark.parametrize(("seconds", "waits"), [(0.001, 1 + 2), (0.1, 1 + 6)])
def test_long_calls_do_not_overlap(seconds: float, waits: int) -> None:
    waited: list[int] = []
    comm = SimpleNamespace(
        Barrier=lambda: waited.append(1),
        allgather=lambda value: [value] if isinstance(value, list) else [value, seconds],
    )
    measure_call(lambda: None, comm, warmup=1, iterations=6, batches=2)
    assert len(waited) == waits


class OneClock:
    """Stands for the module ``time``: all of its clocks are one."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def __getattr__(self, name: str) -> Clock:
        return self.clock


def test_waits_between_slow_ranks_count(monkeypatch) -> None:
    clock, calls = Clock(), []
    monkeypatch.setattr("spmdsim.cli.collective.measure.time", OneClock(clock))

    def wait() -> None:
        clock.now += 0.1

    comm = SimpleNamespace(Barrier=wait, allgather=lambda value: [value])
    measure_call(lambda: calls.append(clock.now), comm, 2, 60, 60, min, most=0.35)
    assert len(calls) == 2 + 3


# ------------------------------------------------------------------------------ the command


FAR, NEAR = (inf, 1e-4, 8e-8), (inf, 2e-6, 2e-10)


@pytest.fixture
def calibrate_on(monkeypatch, tmp_path, capsys):
    """Run ``calibrate`` with invented measurements; return its code, output, error and file."""

    def run(placement: str, ratio: float = 1.0, words: tuple[str, ...] = ()):
        nodes = NodeMap.of(placement, len(placement.split(",")))
        comm = SimpleNamespace(
            Get_size=lambda: nodes.size,
            Get_rank=lambda: 0,
            bcast=lambda value: value,
            allgather=lambda value: [value] * nodes.size,
        )
        places = [ProcessPlace(nodes.hosts[node], 1, nodes.hosts[node]) for node in nodes.nodes]
        local = samples([(inf, 1e-6, 1e-10)], 0.01, 0)

        def invent_rounds(budget, stage, pair, largest, reductions):
            first, second = nodes.nodes[list(pair)]
            line = NEAR if first == second else FAR
            assert stage == ("messages inside a node" if line is NEAR and nodes.count > 1 else "messages")
            fresh = samples([line], 0.01 if line[2] else 0.0, 1)
            return RoundSamples(fresh, fresh, reductions)

        monkeypatch.setattr("spmdsim.launch.launched", lambda: True)
        monkeypatch.setattr("spmdsim.worlds.agreement.node_memory.gather_places", lambda comm: places)
        for name, invented in {
            "measure.require_communicator": lambda: comm,
            "measure.noise_note": lambda comm: "",
            "samples.round_samples": invent_rounds,
            "samples.local_samples": lambda budget, largest: (local, local),
            "samples.native_table": lambda budget, largest: [],
            "samples.call_seconds": lambda comm: 2e-6,
            "samples.flops_per_second": lambda most: 1e11,
            "samples.operator_rates": lambda seconds: (Rate("elements", 0.0, 1e-10),),
            "samples.check_predictions": lambda budget, largest, machine: spread_checks([ratio] * 20),
        }.items():
            monkeypatch.setattr(f"spmdsim.cli.collective.{name}", invented)
        file = tmp_path / "lab.json"
        code = main(["collective", "calibrate", "-o", str(file), *words])
        return code, *capsys.readouterr(), file

    return run


@pytest.mark.parametrize(
    "placement, ranks_per_node", [("a,a,b,b", 2), ("a,b,a,b", 2), ("a,b,b", 2), ("a,b", 0), ("a,a", 0)]
)
def test_calibrate_finds_both_levels_in_any_placement(calibrate_on, placement: str, ranks_per_node) -> None:
    code, _, error, file = calibrate_on(placement)
    assert code == 0, error
    machine = load_machine(str(file))
    assert machine.ranks_per_node == ranks_per_node and bool(machine.intra) is bool(ranks_per_node)
    _, alpha, beta = FAR if "b" in placement else NEAR
    assert machine.alpha == pytest.approx(alpha, rel=0.1) and machine.beta == pytest.approx(beta, rel=0.1)
    if "b" in placement:
        assert f"nodes: {NodeMap.of(placement, len(placement.split(',')))}" in error
    if machine.intra:
        assert machine.intra.alpha == pytest.approx(NEAR[1], rel=0.1)


def test_calibrate_shows_an_interval_for_each_parameter_of_the_fit(calibrate_on) -> None:
    code, output, _, file = calibrate_on("a,a,b,b", words=("--json",))
    data = json.loads(output)
    assert code == 0 and data == json.loads(file.read_text())
    for kind in ("message", "inside", "still", "reduction", "copy"):
        ((limit, alphas, betas),) = data[f"_{kind}_intervals"]
        assert limit is None and 0 < alphas[0] < alphas[1] and 0 < betas[0] < betas[1]
    assert data["_message_intervals"][0][1][0] < data["alpha"] < data["_message_intervals"][0][1][1]
    output = calibrate_on("a,a,b,b")[1]
    (row,) = (line for line in output.splitlines() if line.startswith("message  "))
    assert row.count(" … ") == 2 and "95 %" in output


@pytest.mark.parametrize("words", [(), ("--json",)])
def test_calibrate_writes_no_machine_that_its_checks_contradict(calibrate_on, words) -> None:
    code, output, error, file = calibrate_on("a,b", 20.0, words)
    assert code == 2 and not file.exists()
    (line,) = (line for line in error.splitlines() if not line.startswith("nodes: "))
    assert "measurements contradict the fit, no machine is written: 20 of 20 whole collectives" in line
    assert "1/beta (GB/s)" in output if not words else not output


def test_calibrate_writes_no_machine_with_an_unknown_bandwidth(calibrate_on, monkeypatch) -> None:
    monkeypatch.setitem(globals(), "FAR", (inf, 1e-4, 0.0))
    code, _, error, file = calibrate_on("a,b")
    assert code == 2 and not file.exists()
    assert "message: the times of 41 sizes do not grow with the bytes" in error
