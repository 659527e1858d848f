"""Repeated steps try their implementations; ranks agree on them and values stay unchanged."""

from __future__ import annotations

import json
import multiprocessing

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from processes import run_python

from spmdsim import Mesh, Tensor, record
from spmdsim.cli.main import main
from spmdsim.core.step import Step
from spmdsim.errors import InputError, UsageTypeError
from spmdsim.redistribution.implementations.implementation import (
    Implementation,
    has_implementations,
    implementations_of,
)
from spmdsim.redistribution.implementations.trial import (
    Trial,
    TunedStep,
    require_reproducible,
    select_candidates,
)
from spmdsim.redistribution.implementations.tuning import (
    TrialRecords,
    load_tuning,
    save_tuning,
    tuning,
)
from spmdsim.worlds import LockStep

LINE = Mesh((4,), ("x",))
#: MPI libraries with choices in a tuning file.
LIBRARIES = ("Open MPI", "MPICH")


def make_records(**machines: dict[str, tuple[str, dict[str, float]]]) -> TrialRecords:
    """Return records of trials: for each machine, the best implementation and all times of each step."""
    return TrialRecords.parse(
        {
            machine: {
                step: {"implementation": name, "microseconds": times} for step, (name, times) in steps.items()
            }
            for machine, steps in machines.items()
        }
    )


def steps(mesh, shape=(16, 8)):
    """Yield a step of each kind that has several implementations."""
    first, *other_axes = mesh.axes
    everywhere = mesh.axes if len(mesh.axes) > 1 else first
    replicated, rows, columns = mesh(None, None), mesh(everywhere, None), mesh(None, everywhere)
    for op in ("sum", "avg"):
        pending = mesh(None, None, partial={first: op})
        yield Step("all_reduce", (first,), pending, replicated, shape, op)
        yield Step("reduce_scatter", (first,), pending, mesh(None, first), shape, op)
    yield Step("reduce_scatter", (first,), pending, mesh(first, None), shape, op)
    yield Step("all_gather", mesh.axes, rows, replicated, shape)
    yield Step("all_gather", mesh.axes, columns, replicated, shape)
    yield Step("all_to_all", mesh.axes, rows, columns, shape)
    yield Step("exchange", (), rows, columns, shape)
    for axis in other_axes:
        yield Step("all_gather", (axis,), mesh(None, axis), replicated, shape)


def make_shards(world, step, dtype):
    """Return a rank's shards of small integers with exact sums, and the array of all ranks' values."""
    rng = np.random.default_rng(5)
    values_by_rank = rng.integers(-9, 9, (world.size, *step.shape)).astype(dtype)
    return [
        values_by_rank[rank if step.op else 0][step.src.slices(step.shape, rank)] for rank in world.ranks
    ], values_by_rank


def expected(step, rank, values_by_rank):
    """Compute a rank's result with NumPy from the values of all ranks."""
    if step.op is None:
        total = values_by_rank[0]
    else:
        group = values_by_rank[list(step.group(rank))]
        total = {"sum": group.sum(0), "avg": group.mean(0)}[step.op]
    return total[step.dst.slices(step.shape, rank)]


@pytest.mark.ranks(2, 4, 8)
@pytest.mark.parametrize("mode", ["first", "full"])
def test_every_call_of_a_trial_returns_equal_bits_and_counts_its_bytes(world, monkeypatch, mode):
    """Sums of random floats depend on the order, so equal bits show that the order stays."""
    if isinstance(world, LockStep):
        pytest.skip("there is one implementation without MPI")
    from spmdsim.worlds import MPIWorld
    from spmdsim.worlds.mpi import trials

    monkeypatch.setenv("SPMDSIM_TUNE", mode)
    monkeypatch.setattr(trials, "MANY_TRIES", 2)
    rng = np.random.default_rng(world.rank)
    with MPIWorld(world.comm) as tuned_world:
        meshes = [Mesh((tuned_world.size,), ("a",))]
        if tuned_world.size > 2:
            meshes.append(Mesh((2, tuned_world.size // 2), ("a", "b")))
        for step in (step for mesh in meshes for step in steps(mesh)):
            array = rng.random(step.src.local_shape(step.shape, tuned_world.rank)).astype(np.float32)
            before = tuned_world.tuning.steps
            first = tuned_world.run(step, [array])[0]
            with record() as trace:
                for _ in range(14):
                    np.testing.assert_array_equal(
                        tuned_world.run(step, [array])[0], first, str(step), strict=True
                    )
            assert {event.nbytes == event.due for event in trace.collectives} == {True}, step
            row = next(row for row in tuned_world.tuning.steps if row not in before)
            assert row.why.startswith(("tried", "by the model: no other")), row
            control = trace.control.get("agreement")
            assert (len(row.microseconds) > 1) == (control is not None and control.calls > 0), (row, control)
            assert set(
                tuned_world.gather_on(
                    step.group(tuned_world.rank) or tuned_world.ranks, row.implementation
                ).values()
            ) == {row.implementation}


@pytest.mark.ranks(2, 4)
@pytest.mark.parametrize("dtype", ["float32", "int32", "float16"])
def test_all_implementations_equal_numpy(world, dtype):
    """Small integers have exact sums, so implementations may add them in any order."""
    if isinstance(world, LockStep):
        pytest.skip("there is one implementation without MPI")
    tested_names = set()
    for step in steps(Mesh((world.size,), ("a",))):
        if step.op == "avg" and dtype == "int32":
            continue
        shards, values_by_rank = make_shards(world, step, dtype)
        for implementation in implementations_of(
            step, world.rank, np.dtype(dtype), world.choices, reproducible=False
        ):
            program = world._start_program(step, np.dtype(dtype), None)
            run = world._by_implementation(step, np.dtype(dtype), implementation, program)
            result = run(np.ascontiguousarray(shards[0]))
            np.testing.assert_array_equal(
                result, expected(step, world.rank, values_by_rank), f"{step} {implementation.name}"
            )
            program.free()
            tested_names.add(implementation.name)
    assert {
        "typed",
        "packed",
        "messages",
        "gather",
        "gather rows",
        "gather typed",
        "composed",
    } <= tested_names


def test_implementations_that_reorder_sums_need_reproducible_false():
    """The order matters for sums of four floats, but not for two floats, integers or maxima."""
    pair = Mesh((2,), ("x",))

    def names(mesh, op, dtype, **options):
        step = Step("all_reduce", ("x",), mesh(None, partial={"x": op}), mesh(None), (100_000,), op)
        return {
            implementation.name
            for implementation in implementations_of(step, 0, np.dtype(dtype), tuning("Open MPI"), **options)
        }

    assert names(LINE, "sum", "f4") == {"native"}
    assert names(LINE, "sum", "f4", reproducible=False) == {"native", "composed"}
    assert names(LINE, "sum", "i4") == names(pair, "sum", "f4") == {"native", "composed"}
    assert names(pair, "avg", "f4") == {"native"} and names(LINE, "max", "i4") == {"native", "composed"}
    assert names(LINE, "max", "f4") == names(LINE, "sum", "f2") == {"composed"}
    assert names(pair, "prod", "c8") == {"native"}


@given(st.integers(0, 2), st.integers(2, 5))
def test_all_members_of_a_group_have_equal_implementations(kind, size):
    """The shards of ranks may be uneven, empty, contiguous or strided."""
    mesh = Mesh((size,), ("x",))
    shape = ((7, 5), (3, 1), (4, size * 2))[kind]
    for step in steps(mesh, shape):
        for dtype in ("f4", "f2"):
            choices = [
                implementations_of(step, rank, np.dtype(dtype), tuning("Open MPI")) for rank in range(size)
            ]
            assert (
                len(
                    {
                        tuple(implementation.name for implementation in implementations)
                        for implementations in choices
                    }
                )
                == 1
            ), step
            assert (
                len(
                    {
                        tuple(implementation.nanoseconds for implementation in implementations)
                        for implementations in choices
                    }
                )
                == 1
            ), step
            assert has_implementations(step)


def test_only_the_mode_full_tries_implementations_with_high_prices():
    prices = [Implementation(f"w{k}", nanoseconds=nanoseconds) for k, nanoseconds in enumerate((1, 2, 2.25))]
    assert [one.name for one in select_candidates(prices, "first")] == ["w0", "w1"]
    assert len(select_candidates(prices, "full")) == 3 and select_candidates(prices, "off") == (prices[0],)


@given(st.lists(st.lists(st.floats(1, 1e6), min_size=4, max_size=4), min_size=1, max_size=4))
def test_a_trial_ends_and_keeps_one_of_the_best(times):
    trial = Trial([f"w{k}" for k in range(len(times))], 4, 0)
    turns = []
    while not trial.pause:
        turns.append(trial.current)
        trial.add(times[trial.current][turns.count(trial.current) - 1])
        if trial.is_over:
            trial.decide(trial.times)
    assert len(turns) == 4 * len(times) and trial.pause == 32
    assert trial.least == tuple(map(min, times))
    assert min(trial.least) >= 0.95 * trial.least[trial.chosen] * (1 - 1e-12)


def test_each_implementation_makes_two_calls_in_a_row_and_the_faster_counts():
    trial, turns = Trial(("one", "other"), 4, 0), []
    for took in (30, 20, 28, 26, 30, 20, 28, 26):
        turns.append(trial.current)
        trial.add(took)
    assert turns == [0, 0, 1, 1, 0, 0, 1, 1] and trial.is_over
    trial.decide(trial.times)
    assert trial.least == (20, 26) and trial.chosen == 0
    assert "tried, us: one 20.0, other 26.0" in TunedStep.of("a step", 2, trial).why


def test_a_disturbed_trial_is_repeated_soon_and_keeps_the_least_times():
    trial = Trial(("typed", "packed"), 2, 0)
    trial.decide([3300, 3200, 430, 420])  # another program had the machine
    assert (trial.names[trial.chosen], trial.pause) == ("packed", 32)
    trial.decide([90, 80, 430, 420])
    assert (trial.names[trial.chosen], trial.least, trial.pause) == ("typed", (80, 420), 4 * 32)
    trial.decide([990, 980, 410, 430])  # one disturbed trial changes nothing
    assert (trial.names[trial.chosen], trial.least) == ("typed", (80, 410))
    trial.decide([990, 980, 410, 430])
    assert (trial.names[trial.chosen], trial.least) == ("packed", (980, 410))


def test_recorded_implementations_are_used_without_a_trial():
    records = make_records(m={"s": ("b", {}), "t": ("gone", {})})
    recorded, gone = (Trial(("a", "b"), 2, 1, records.of("m", step)) for step in "st")
    assert (recorded.pause, recorded.chosen) == (1000, 1)
    assert gone.pause == 1


def test_saved_records_keep_the_other_settings_of_the_file(tmp_path, capfd):
    path, records = tmp_path / "here.json", make_records(m={"s": ("a", {"a": 1.0, "b": 2.0})})
    path.write_text('{"MPICH": {"chunk": [[2, 64]]}}')
    save_tuning(path, "MPICH", records)
    save_tuning(path, "Open MPI", records)
    save_tuning(
        path,
        "MPICH",
        make_records(m={"s": ("b", {"b": 1.5}), "t": ("a", {})}, n={}),
    )
    assert load_tuning(path)["Open MPI"] == {"implementations": records.to_dict()}
    tuning.cache_clear()
    settings = tuning("MPICH", str(path))
    assert settings.chunk == ((2, 64),) and settings.implementations.of("m", "s") == ("b", {"b": 1.5})
    assert repr(settings.implementations) != repr(records) and hash(settings.implementations) == hash(
        TrialRecords.parse(settings.implementations.to_dict())
    )
    assert main(["tune", "-o", str(tmp_path / "both.json"), "--show", str(path)]) == 0
    assert capfd.readouterr().out.count("m:") == 2


def test_merged_files_keep_their_settings(tmp_path, capfd):
    """The later file wins if both have a setting."""
    one, two, both = (tmp_path / name for name in ("one.json", "two.json", "both.json"))
    one.write_text('{"MPICH": {"chunk": [[2, 64]], "call": 5}}')
    two.write_text(
        '{"MPICH": {"call": 7, "implementations": {"m": {"s": {"implementation": "a"}}}}, "Open MPI": {"first": ["typed"]}}'
    )
    assert main(["tune", "-o", *map(str, (both, one, two))]) == 0
    report = capfd.readouterr().err
    assert report.startswith(f"wrote {both}: MPICH, 1 step of 1 machine")
    assert f"wrote {both}: Open MPI, 0 steps of 0 machines" in report
    tuning.cache_clear()
    settings = tuning("MPICH", str(both))
    assert (settings.chunk, settings.call, settings.implementations.of("m", "s")) == (
        ((2, 64),),
        7,
        ("a", {}),
    )
    assert load_tuning(both)["Open MPI"] == {"first": ["typed"]}
    written_before = both.read_text()
    two.write_text('{"MPICH": {"call": 9}}')
    one.write_text("{")
    assert main(["tune", "-o", *map(str, (both, two, one))]) == 2
    assert "tuning file" in capfd.readouterr().err and both.read_text() == written_before
    one.write_text("{}")
    assert main(["tune", "-o", str(tmp_path / "none.json"), str(one)]) == 2
    assert "no choices for any MPI library" in capfd.readouterr().err
    assert not (tmp_path / "none.json").exists()


def test_records_are_saved_without_file_locks(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError("no locks")

    monkeypatch.setattr("fcntl.flock", refuse)
    save_tuning(tmp_path / "here.json", "MPICH", make_records(m={"s": ("a", {})}))
    assert list(load_tuning(tmp_path / "here.json")["MPICH"]["implementations"]) == ["m"]


@pytest.mark.filterwarnings(
    "ignore:.*multi-threaded:DeprecationWarning"
)  # each forked process only writes files
def test_processes_that_save_records_concurrently_lose_none(tmp_path):
    path = tmp_path / "here.json"

    def add(number):
        for step in range(20):
            save_tuning(path, "MPICH", make_records(**{f"machine {number}": {f"step {step}": ("a", {})}}))

    jobs = [multiprocessing.get_context("fork").Process(target=add, args=(number,)) for number in range(3)]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join()
    implementations = load_tuning(path)["MPICH"]["implementations"]
    assert {machine: len(steps) for machine, steps in implementations.items()} == {
        f"machine {k}": 20 for k in range(3)
    }
    assert [one.name for one in tmp_path.iterdir()] == ["here.json"]


@pytest.mark.parametrize(
    "data",
    [
        {"MPICH": {"implementations": implementations}}
        for implementations in (3, {"m": 3}, {"m": {"s": 3}}, {"m": {"s": {"implementation": 3}}})
    ]
    + [{"kind": "x"}, {"OpenMPI": {}}, {"Open MPI": 3}, {"Open MPI": {"chunks": []}}, []],
)
def test_a_file_of_other_data_is_refused(tmp_path, data):
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(data))
    tuning.cache_clear()
    with pytest.raises(InputError, match=r"bad\.json"):
        tuning("MPICH", str(path))


def test_wrong_options_are_refused(tmp_path, capfd):
    for wrong in (None, 1, "perhaps"):
        with pytest.raises(UsageTypeError, match=f"reproducible must be True or False, got {wrong!r}"):
            require_reproducible(wrong)
    assert require_reproducible(False) is False
    for options in (["-o", "x.json"], ["-o", tmp_path / "x.json", "no.json"], ["-o", tmp_path, "-n", "2"]):
        assert main(["tune", *map(str, options)]) != 0
        assert len(capfd.readouterr().err.strip().splitlines()) <= 3


JOB = """\
import os, sys
import numpy as np
from spmdsim import Mesh, Tensor, world
if os.environ.get("ODD") and os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK")) == "1":
    os.environ["SPMDSIM_TUNE"] = os.environ["ODD"]
w = world()
m = Mesh((w.size,), ("x",))
x = Tensor.from_local(np.ones((64, 32), np.float32), m(None, "x"), w)
for _ in range(130):
    x.to(m(None, None))
if w.rank == 0:
    print(w.tuning)
"""


def test_a_program_uses_saved_records_and_different_records_raise(tmp_path, launcher):
    (tmp_path / "job.py").write_text(JOB)
    records_path, other_path = tmp_path / "here.json", tmp_path / "odd.json"
    tried = run_python("-m", "spmdsim", "tune", "-n", 2, "-o", records_path, tmp_path / "job.py")
    assert tried.returncode == 0, tried.stderr
    (library,) = json.loads(records_path.read_text()).values()
    ((_, by_step),) = library["implementations"].items()
    (one,) = by_step.values()
    assert len(one["microseconds"]) == 3 and one["implementation"] in one["microseconds"]
    one["implementation"] = "typed"
    records_path.write_text(json.dumps(dict.fromkeys(LIBRARIES, library)))
    env = {"SPMDSIM_TUNE": str(records_path)}
    result = run_python("-m", "spmdsim", "launch", "-n", 2, tmp_path / "job.py", **env)
    assert "typed (found before: in the file of SPMDSIM_TUNE)" in result.stdout, result.stderr
    one["implementation"] = "gather rows"
    other_path.write_text(json.dumps(dict.fromkeys(LIBRARIES, library)))
    failed = run_python("-m", "spmdsim", "launch", "-n", 2, tmp_path / "job.py", ODD=str(other_path), **env)
    assert failed.returncode != 0
    messages = [
        line for line in failed.stderr.splitlines() if "tuning (SPMDSIM_TUNE) of implementations is" in line
    ]
    assert len(messages) == 1 and "1 step of 1 machine, checksum" in messages[0], failed.stderr


def test_lock_step_has_no_implementations_to_choose():
    world = LockStep(2)
    x = Tensor.from_global(np.ones((4, 4)), Mesh((2,), ("x",))("x", None), world)
    x.to(Mesh((2,), ("x",))(None, None))
    assert world.tuning.steps == () and "nothing is sent" in str(world.tuning)
