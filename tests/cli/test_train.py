"""`spmdsim train` trains the tutorial's network with every set of strategies on every kind of data."""

from __future__ import annotations

import gzip
import json
import re
import struct

import numpy as np
import pytest
from processes import run_python

from spmdsim import LockStep, Tensor, nn
from spmdsim.arrays import ops
from spmdsim.arrays.files import open_array
from spmdsim.cases.network import Network, load_images
from spmdsim.cli.main import main
from spmdsim.errors import InputError

LOCKSTEP = ("train", "--world", "lockstep")


def train(capsys, *arguments, code=0):
    """Train in lock step and return the JSON report."""
    assert main([*LOCKSTEP, "--json", *map(str, arguments)]) == code
    return json.loads(capsys.readouterr().out)


def idx(array):
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def write_mnist(folder, suffix="", count=48, side=28):
    """Write images and labels in the format of MNIST; return both arrays."""
    rng = np.random.default_rng(3)
    images = rng.integers(0, 255, (count, side, side), np.uint8)
    labels = rng.integers(0, 10, count).astype(np.uint8)
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in (("train-images-idx3-ubyte", images), ("train-labels-idx1-ubyte", labels)):
        data = idx(array)
        (folder / f"{name}{suffix}").write_bytes(gzip.compress(data) if suffix else data)
    return images, labels


@pytest.mark.parametrize("strategies", ["simple", "advanced", "data"])
def test_every_set_of_strategies_equals_one_process(strategies, capsys):
    report = train(capsys, "-n", 8, "--strategies", strategies, "--steps", 2, "--compare")
    keys = {
        "ranks",
        "strategies",
        "losses",
        "differences",
        "max_loss_difference",
        "tolerance",
        "ok",
        "verdicts",
    }
    assert set(report) == keys and [*report["verdicts"]] == ["losses", "fc1", "fc2", "fc3"]
    assert len(report["differences"]) == 2 and max(report["differences"]) <= report["tolerance"]
    assert (report["ranks"], report["strategies"], len(report["losses"])) == (8, strategies, 2)
    assert report["ok"] and report["max_loss_difference"] <= report["tolerance"] < 1e-2
    assert report["losses"] == pytest.approx([np.log(10)] * 2, rel=0.02)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_data_parallel_losses_are_equal_on_any_number_of_ranks(ranks, capsys):
    single = train(capsys, "-n", 1, "--strategies", "data", "--steps", 2, "--dtype", "float64")
    parallel = train(capsys, "-n", ranks, "--strategies", "data", "--steps", 2, "--dtype", "float64")
    assert parallel["losses"] == pytest.approx(single["losses"], rel=1e-12)


def test_the_loss_decreases(capsys):
    report = train(capsys, "-n", 1, "--strategies", "data", "--rate", 0.1, "--epochs", 1)
    assert len(report["losses"]) == 1797 // 32
    assert np.mean(report["losses"][-20:]) < 1.6 < 2.2 < np.mean(report["losses"][:5])


def test_seed_batch_and_rate_change_the_losses(capsys):
    base = train(capsys, "-n", 1, "--strategies", "data", "--steps", 2)["losses"]
    assert train(capsys, "-n", 1, "--strategies", "data", "--steps", 2)["losses"] == base
    for option in (("--seed", 2), ("--batch", 16)):
        other = train(capsys, "-n", 1, "--strategies", "data", "--steps", 2, *option)["losses"]
        assert other[0] != base[0]
    slow = train(capsys, "-n", 1, "--strategies", "data", "--steps", 2, "--rate", 1e-6)["losses"]
    assert slow[0] == base[0] and slow[1] != base[1]


def test_losses_slices_and_the_verdict_are_printed(capsys):
    assert main([*LOCKSTEP, "-n", "8", "--steps", "5", "--every", "2", "--compare"]) == 0
    output = capsys.readouterr().out
    assert re.search(r"1,797 images; batch 32, rate 0.01, simple strategies on 8 ranks \(LockStep\)", output)
    steps = re.findall(
        r"epoch: 0 step: (\d), loss is \d\.\d{7}, one process in float64 differs by \d\.\de[+-]\d+\n", output
    )
    assert steps == ["0", "2", "4"]
    # ((2, 4), (4, 1)): rank 5 owns the second half of the rows and the second quarter of the columns of x.
    assert "[16:32, 196:392]" in output and "fc1_weight" in output
    assert "the run equals the single process" in output


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("subfolder", ["", "train"])
def test_mnist_files_are_loaded(tmp_path, suffix, subfolder):
    images, labels = write_mnist(tmp_path / subfolder, suffix)
    dataset = load_images(str(tmp_path))
    expected = (
        images.reshape(48, 784).astype(np.float32) / np.float32(255) - np.float32(0.1307)
    ) / np.float32(0.3081)
    np.testing.assert_array_equal(dataset.pixels[5:9, 100:300], expected[5:9, 100:300])
    np.testing.assert_array_equal(dataset.labels[(slice(5, 9),)], labels[5:9])


def test_the_network_is_trained_on_mnist_files(tmp_path, capsys):
    write_mnist(tmp_path / "train", ".gz")
    report = train(capsys, "-n", 4, "--strategies", "data", "--batch", 16, "--data", tmp_path, "--compare")
    assert report["ok"] and len(report["losses"]) == 3


def test_the_data_folder_may_come_from_the_environment(tmp_path, monkeypatch, capsys):
    write_mnist(tmp_path, count=32)
    monkeypatch.setenv("DATA_PATH", str(tmp_path))
    assert len(train(capsys, "-n", 2, "--strategies", "data", "--compare")["losses"]) == 1


def test_each_rank_reads_its_slice_of_the_images(tmp_path, monkeypatch, capsys):
    write_mnist(tmp_path)
    asked = {}

    def open_watched(path):
        array = open_array(path)

        def read(index):
            asked.setdefault(path.name, []).append(index)
            return array.read(index)

        return type(array)(array.path, array.shape, array.dtype, read)

    monkeypatch.setattr("spmdsim.cases.network.open_array", open_watched)
    train(capsys, "-n", 8, "--strategies", "simple", "--batch", 32, "--steps", 1, "--data", tmp_path)
    assert {(index[0].start, index[0].stop) for index in asked["train-images-idx3-ubyte"]} == {
        (0, 16),
        (16, 32),
    }


def install_higher_rate(monkeypatch):
    """Install a learning rate that is one per cent too high."""
    right = nn.SGD
    monkeypatch.setattr(nn, "SGD", lambda parameters, rate: right(parameters, rate * 1.01))


def scaled_loss(monkeypatch):
    right = ops.cross_entropy
    monkeypatch.setattr(ops, "cross_entropy", lambda x, labels: ops.multiply(right(x, labels), 1.01))


def lost_contribution(monkeypatch):
    """Remove the contribution of rank 1 from every reduction."""
    right = LockStep._run

    def wrong(self, step, shards, *more):
        if step.collective in ("all_reduce", "reduce_scatter"):
            shards = [shard * 0 if rank == 1 else shard for rank, shard in enumerate(shards)]
        return right(self, step, shards, *more)

    monkeypatch.setattr(LockStep, "_run", wrong)


def once(change):
    """Return a function that installs a fault of the first parameter in the second step."""

    def install(monkeypatch):
        """Replace SGD.step by a step that changes the first parameter in the second call."""
        right, steps = nn.SGD.step, []

        def wrong(self):
            """Step, and change the shards of the first parameter in the second call."""
            right(self)
            steps.append(1)
            if len(steps) == 2:
                value = self.parameters[0].value
                shards = [np.array(shard) for shard in value.shards]
                for shard in shards:
                    change(shard)
                self.parameters[0].assign(
                    Tensor.from_local(shards, value.layout, value.world, shape=value.shape)
                )

        monkeypatch.setattr(nn.SGD, "step", wrong)

    return install


def one_element(shard):
    """Change the element of largest magnitude by a thousandth."""
    at = np.unravel_index(np.abs(shard).argmax(), shard.shape)
    shard[at] *= np.float32(1.001)


def nothing_learnt(shard):
    shard[:5] = 0


FAULTS = {
    "loss": scaled_loss, "reduction": lost_contribution,
    "element": once(one_element), "rows": once(nothing_learnt),
}  # fmt: skip


@pytest.mark.parametrize("fault, dtype", [*((fault, "float32") for fault in FAULTS), ("element", "float64")])
def test_a_fault_is_found(fault, dtype, monkeypatch, capsys):
    arguments = ("-n", 2, "--strategies", "data", "--steps", 2, "--dtype", dtype)
    FAULTS[fault](monkeypatch)
    assert not train(capsys, *arguments, "--compare", code=1)["ok"]


def test_a_wrong_rate_is_named(monkeypatch, capsys):
    arguments = [*LOCKSTEP, "-n", "2", "--strategies", "data", "--steps", "2", "--compare"]
    assert main(arguments) == 0
    assert re.search(r"the run equals the single process", capsys.readouterr().out)
    install_higher_rate(monkeypatch)
    assert main(arguments) == 1
    output = capsys.readouterr().out
    assert re.search(r"fc1: WRONG on rank \d at \(\d+, \d+\): got", output)
    assert "rounding does not explain it" in output and "the run DIFFERS from the single process" in output


def test_sums_with_other_rounding_are_no_fault(monkeypatch, capsys):
    """Units at the kink of ReLU may change sides, as with other kernels."""
    right = LockStep._run

    def nudged(self, step, shards, *more):
        if step.collective in ("all_reduce", "reduce_scatter"):
            shards = [shard * np.float32(1 + (k % 3 - 1) * 2.0**-23) for k, shard in enumerate(shards)]
        return right(self, step, shards, *more)

    monkeypatch.setattr(LockStep, "_run", nudged)
    assert train(capsys, "-n", 8, "--strategies", "advanced", "--steps", 4, "--compare")["ok"]


@pytest.mark.parametrize(
    "arguments, text",
    [
        (
            ["-n", "8", "--batch", "7"],
            "a batch must have a row for each of 8 ranks, got 7 rows; take more rows",
        ),
        (["-n", "0"], "-n"),
        (["-n", "8", "--batch", "0"], "--batch"),
        (["-n", "8", "--every", "0"], "--every"),
        (["-n", "8", "--epochs", "-1"], "--epochs"),
        (["-n", "8", "--batch", "4096"], "1,797"),
        (["-n", "8", "--dtype", "int8"], "int8"),
        (["-n", "8", "--strategies", "best"], "best"),
        (["-n", "8", "--data", "nowhere"], "nowhere"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_mistake_is_reported_in_one_line(arguments, text, capsys, monkeypatch):
    monkeypatch.delenv("DATA_PATH", raising=False)
    assert main([*LOCKSTEP, *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert re.fullmatch(r"spmdsim train: error: [^\n]+\n", captured.err), captured.err
    assert text in captured.err


@pytest.mark.parametrize(
    "ranks, strategies, words",
    [
        (1, "simple", "become 1x1"),
        (7, "simple", "become 1x7; 32 and 512 do not divide by 7"),
        (6, "advanced", "become 1x2x3 and 6; 32 and 784 and 512 do not divide by 6"),
        (3, "data", "32 and 784 and 512 do not divide by 3"),
    ],
)
def test_strategies_adapt_to_any_number_of_ranks(ranks, strategies, words, capsys):
    """The command prints the adaptation; uneven shards train like one process."""
    arguments = ("-n", str(ranks), "--strategies", strategies, "--steps", "1", "--compare")
    assert main([*LOCKSTEP, *arguments]) == 0
    output = capsys.readouterr().out
    assert words in output and "the run equals the single process" in output


def test_strategies_on_eight_ranks_are_those_of_the_tutorial():
    assert not Network("simple", 8, 32).adaptation and not Network("advanced", 8, 32).adaptation
    assert "12" in Network("simple", 8, 12).adaptation


def test_files_that_are_not_mnist_are_refused(tmp_path):
    write_mnist(tmp_path / "small", side=8)
    with pytest.raises(InputError, match=r"28 x 28.*\(48, 8, 8\)"):
        load_images(str(tmp_path / "small"))
    write_mnist(tmp_path / "cut")
    labels = tmp_path / "cut" / "train-labels-idx1-ubyte"
    labels.write_bytes(labels.read_bytes()[:-1])
    with pytest.raises(InputError, match="cut short"):
        load_images(str(tmp_path / "cut"))
    labels.unlink()
    with pytest.raises(InputError, match="must have the file train-labels-idx1-ubyte"):
        load_images(str(tmp_path / "cut"))


def test_lock_step_writes_a_log(tmp_path, capsys):
    folder = tmp_path / "logs"
    arguments = ["-n", "2", "--strategies", "data", "--steps", "2", "--log-dir", str(folder)]
    assert main([*LOCKSTEP, *arguments]) == 0
    shown = capsys.readouterr().out
    assert "epoch: 0 step: 0, loss is" in shown
    assert (folder / "worker_0.log").read_text() == shown
    folder = tmp_path / "file"
    folder.write_text("")
    assert main([*LOCKSTEP, *arguments[:-1], str(folder)]) == 2
    assert "is a file" in capsys.readouterr().err


@pytest.mark.parametrize("ranks", [LOCKSTEP, ("train",)], ids=["lockstep", "mpi"])
@pytest.mark.parametrize(
    "arguments, text",
    [
        (["--batch", "1"], "a batch must have a row for each of 2 ranks, got 1 row; take more rows"),
        (["--batch", "5000"], "more than the 1,797 images"),
        (["--data", "nowhere"], "must have the file train-images-idx3-ubyte"),
        (["--machine", "laptop", "--perfetto", "none/x"], "cannot write"),
        (["--machine", "no-such-machine", "--perfetto", "x"], "no-such-machine"),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else "",
)
def test_a_run_that_is_refused_leaves_no_logs(ranks, arguments, text, tmp_path, monkeypatch, capsys):
    """The run is refused before ranks start under MPI."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("spmdsim.launch.start_self", lambda *_: pytest.fail("ranks are started"))
    assert main([*ranks, "-n", "2", "--log-dir", "logs/deep", *arguments]) == 2
    assert text in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_all_ranks_refuse_a_wrong_file_name_in_one_line(tmp_path, launcher):
    for words in (
        ("train", "--svg", "none/x"),
        ("collective", "export", "all_reduce", "ring", "-o", "none/x"),
    ):
        result = run_python("-m", "spmdsim", "launch", "-n", "2", "-m", "spmdsim", *words, cwd=tmp_path)
        assert result.returncode == 2 and not result.stdout
        assert re.fullmatch(r"spmdsim [^\n]+cannot write 'none/x': No such file[^\n]+\n", result.stderr), (
            result.stderr
        )


def test_a_rate_that_is_no_number_is_refused(capsys):
    assert main([*LOCKSTEP, "-n", "2", "--rate", "nan"]) == 2
    assert "must be a finite number from 0 on, but got 'nan'" in capsys.readouterr().err


def test_labels_beyond_nine_are_named(tmp_path, capsys):
    write_mnist(tmp_path)
    path = tmp_path / "train-labels-idx1-ubyte"
    path.write_bytes(path.read_bytes()[:-48] + bytes([11]) * 48)
    assert main([*LOCKSTEP, "-n", "2", "--strategies", "data", "--data", str(tmp_path)]) == 2
    assert "labels must be in 0..9, got 11" in capsys.readouterr().err


def test_real_ranks_write_equal_logs(tmp_path, launcher):
    write_mnist(tmp_path)
    arguments = ["--strategies", "data", "--compare", "--batch", "16", "--log-dir", "log_output"]
    command = ["-m", "spmdsim", "train", "-n", "2", *arguments]
    result = run_python(*command, cwd=tmp_path, DATA_PATH=str(tmp_path))
    assert result.returncode == 0, result.stderr
    assert "on 2 ranks (MPIWorld)" in result.stdout
    assert "the run equals the single process" in result.stdout
    logs = [(tmp_path / "log_output" / f"worker_{rank}.log").read_text() for rank in (0, 1)]
    assert "epoch: 0 step: 0, loss is" in logs[0] and logs[0] == logs[1]


@pytest.mark.parametrize("further", [(), ("--compare",), ("--json",)], ids=["alone", "compared", "json"])
@pytest.mark.filterwarnings("error")
def test_a_training_that_diverges_stops_with_a_message(further: tuple[str, ...], capsys) -> None:
    """Warnings of NumPy would not name the training."""
    code = main([*LOCKSTEP, "-n", "2", "--steps", "9", "--rate", "1e300", *further])
    output, errors = capsys.readouterr()
    message = "the training diverged: the loss is nan at step 1; a lower --rate than 1e+300 may help\n"
    assert (code, errors) == (1, message)
    if further == ("--json",):
        report = json.loads(output, parse_constant=pytest.fail)
        assert (
            len(report["losses"]) == 2
            and report["losses"][1] is None
            and report["diverged"] == 1
            and not report["ok"]
        )
    else:
        assert "step: 1, loss is nan" in output and "step: 2" not in output
