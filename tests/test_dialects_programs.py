"""The programs of the founding documents, as they stand in examples/documents."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from spmdsim.cases.network_reference import Reference
from spmdsim.dialects.session import use_world

EXAMPLES = Path(__file__).resolve().parent.parent / "examples" / "documents"


@pytest.fixture(autouse=True)
def examples_on_path(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    yield
    for name in ("operator_parallel", "advanced_operator_parallel", "two_dimensional_sbp", "paddle_split"):
        sys.modules.pop(name, None)


def single_process_losses(steps: int) -> list[float]:
    """The tutorial's network in one process with plain numpy, from the same first values."""
    import spmdsim.dialects.mindspore as ms
    from spmdsim import LockStep
    from spmdsim.dialects.mindspore import nn
    from spmdsim.layout import Mesh

    ms.set_seed(1)
    with use_world(LockStep(1)):
        cell = nn.Cell()
        for i, shape in enumerate([(784, 512), (512, 512), (512, 10)], 1):
            setattr(cell, f"fc{i}_weight", ms.Parameter(ms.initializer("normal", shape, ms.float32)))
        weights = [p.place(Mesh((1,), ("one",))(None, None)).full() for p in cell.get_parameters()]
    reference = Reference(weights, 1e-2)
    import operator_parallel

    data = iter(operator_parallel.create_dataset(32))
    losses = []
    for _ in range(steps):
        image, label = next(data)
        losses.append(reference.step(image.reshape(32, 784), label))
    return losses


@pytest.mark.ranks(8)
def test_operator_parallel_trains_like_one_process(world, capsys):
    import advanced_operator_parallel
    import operator_parallel

    expected = single_process_losses(12)
    with use_world(world):
        simple = operator_parallel.train(steps=12)
        advanced = operator_parallel.train(advanced_operator_parallel.Network, steps=12)
    np.testing.assert_allclose(simple, expected, rtol=2e-6)
    np.testing.assert_allclose(advanced, expected, rtol=2e-6)
    printed = capsys.readouterr().out
    assert "epoch: 0, step: 10, loss is " + str(np.float32(simple[10])) in printed
