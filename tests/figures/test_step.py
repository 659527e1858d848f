"""The timeline of a training step shows the measured times beside the times of a machine model."""

from __future__ import annotations

import json
from typing import NamedTuple

import numpy as np
import pytest
from trace_events import slices_of

from spmdsim import LockStep, Machine, Mesh, Tensor, matmul, nn, record
from spmdsim.cli.main import main
from spmdsim.figures.timelines import step_timeline
from spmdsim.ops import sum as total

#: A byte takes a second and a floating-point operation takes a second, so that times can be counted by hand.
COUNTING = Machine("counting", alpha=0.0, beta=1.0, flops=1.0, beta_memory=0.0)
MESH = Mesh((2,), ("tp",))


def step(backward=True):
    """Return the trace of a product with a split contraction, and of its gradients if `backward` is set.

    The forward pass has an all_reduce of 4 x 6 float64.
    """
    world = LockStep(2)
    x = Tensor.from_global(np.ones((4, 8)), MESH(None, "tp"), world)
    w = Tensor.from_global(np.ones((8, 6)), MESH("tp", None), world)
    x.requires_grad = w.requires_grad = True
    with record() as trace:
        y = matmul(x, w).to(MESH(None, None))
        if backward:
            nn.backward(total(y))
    return trace


class Slice(NamedTuple):
    """A predicted slice of a timeline, in seconds; ``nested`` is True if another slice contains it."""

    name: str
    start: float
    seconds: float
    nested: bool


def predicted_slices(trace) -> list[Slice]:
    """Return the slices that the timeline of a trace predicts on COUNTING, as process 2."""
    document = step_timeline([trace], COUNTING, "LockStep(2)")
    events = [event for event in slices_of(document) if event["pid"] == 2]
    return [
        Slice(
            event["name"],
            event["ts"] / 1e6,
            event["dur"] / 1e6,
            any(outer["ts"] <= event["ts"] < outer["ts"] + outer["dur"] for outer in events[:number]),
        )
        for number, event in enumerate(events)
    ]


def test_predicted_times_equal_times_counted_by_hand():
    slices = {one.name: one for one in predicted_slices(step(backward=False))}
    # Each rank has 4 x 4 x 6 multiply-adds. Then it receives 192 bytes: half addends and half results.
    assert slices["matmul"].seconds == pytest.approx(2 * 4 * 4 * 6)
    assert slices["all_reduce"].seconds == pytest.approx(192)
    assert slices["all_reduce"].start == pytest.approx(slices["matmul"].start + slices["matmul"].seconds)


def test_gradients_are_predicted_for_every_operand_with_a_gradient():
    slices = predicted_slices(step())
    back = next(one for one in slices if one.name == "matmul.backward")
    inside = sum(
        one.seconds for one in slices if one.nested and back.start <= one.start < back.start + back.seconds
    )
    assert back.seconds - inside == pytest.approx(2 * (2 * 4 * 4 * 6))
    ends = [one.start + one.seconds for one in slices if not one.nested]
    starts = [one.start for one in slices if not one.nested]
    assert starts[1:] == pytest.approx(ends[:-1])  # Slices neither overlap nor wait.


def test_one_file_has_the_measured_and_the_predicted_times():
    trace = step()
    document = json.loads(json.dumps(step_timeline([trace], COUNTING, "LockStep(2)")))
    slices = slices_of(document)
    measured = {pid: [e["name"] for e in slices if e["pid"] == pid] for pid in (0, 1, 2)}
    assert sorted(measured[0]) == sorted(measured[1])
    # The predicted operators, gradients and collectives are those that ran.
    assert sorted(name for name in measured[2]) == sorted(name for name in measured[0])
    other = document["otherData"]
    assert other["machine"] == "counting" and other["measured in"] == "LockStep(2)"
    outer = sum(one.seconds for one in predicted_slices(trace) if not one.nested)
    assert other["predicted seconds"] == pytest.approx(outer) and outer > 0 and other["measured seconds"] > 0
    names = {e["args"]["name"] for e in document["traceEvents"] if e.get("name") == "process_name"}
    assert names == {"rank 0", "rank 1", "predicted on counting"}


def test_train_writes_the_timeline_of_its_last_step(tmp_path, capsys):
    path = tmp_path / "step.json"
    assert (
        main(
            [
                "train",
                "--world",
                "lockstep",
                "-n",
                "2",
                "--steps",
                "2",
                "--batch",
                "8",
                "--perfetto",
                str(path),
            ]
        )
        == 0
    )
    document = json.loads(path.read_text())
    names = [event["name"] for event in slices_of(document)]
    assert (
        names.count("matmul") == names.count("matmul.backward") == 3 * 3
    )  # Two ranks and the prediction have three layers each.
    assert f"wrote {path}" in capsys.readouterr().err
    assert (
        main(
            [
                "train",
                "--world",
                "lockstep",
                "-n",
                "2",
                "--steps",
                "1",
                "--machine",
                "laptp",
                "--perfetto",
                str(path),
            ]
        )
        == 2
    )
    assert "did you mean 'laptop'?" in capsys.readouterr().err
