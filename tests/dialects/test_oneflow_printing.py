"""Results print as in OneFlow 0.9.0 on four CPU processes; ``oneflow_printed.json`` has the printed texts."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import spmdsim.dialects.oneflow as flow
import spmdsim.dialects.oneflow.nn as nn
from spmdsim import LockStep, ShapeOnly, record
from spmdsim.dialects.oneflow.sbp import OneFlowError
from spmdsim.dialects.session import use_world

PRINTED = json.loads((Path(__file__).parents[1] / "vectors" / "oneflow_printed.json").read_text())


@pytest.fixture(autouse=True)
def lines_of_80_characters(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")


def array_of(case):
    """Return the array of a case: its values, or rounded waves of its shape."""
    if "waves" not in case:
        return np.array(case["values"], "float64" if "float" in case["dtype"] else case["dtype"]).astype(
            case["dtype"]
        )
    numbers = np.round(np.sin(np.arange(np.prod(case["waves"])) + 1.0) * 2, 3)
    return numbers.reshape(case["waves"]).astype(np.float32)


@pytest.mark.parametrize("case", PRINTED["local"], ids=lambda c: f"{c.get('values', c.get('waves'))}")
def test_local_tensors_print_as_in_oneflow(case):
    with use_world(LockStep(1)):
        assert repr(flow.tensor(array_of(case))) == case["printed"]


@pytest.mark.ranks(4)
@pytest.mark.parametrize("case", PRINTED["glob"], ids=lambda c: f"{c['ranks']} {c['sbp']}")
def test_global_tensors_print_as_in_oneflow(world, case):
    """Ranks print the full values, then placement and sbp; pending sums are reduced first."""
    sbp = [eval(f"flow.sbp.{entry}") for entry in case["sbp"]]
    with use_world(world):
        x = flow.tensor(array_of({"waves": (4, 6)}), flow.placement("cpu", case["ranks"]), sbp)
        assert repr(x) == str(x) == f"{x}" == case["printed"]
        assert repr(x.requires_grad_()) == case["with_gradient"]
        summed = x.detach().sum(dim=1).to_global(sbp=[flow.sbp.broadcast] * len(sbp))
        assert repr(summed) == case["summed"]
        assert "grad_fn=<sum_backward>)" in repr(x.sum(dim=1))


@pytest.mark.parametrize("case", PRINTED["modules"], ids=lambda c: c["module"])
def test_modules_print_as_in_oneflow(case):
    module = eval(case["module"])
    assert repr(module) == case["printed"] and [name for name, _ in module.named_parameters()] == case["keys"]


def test_networks_print_as_in_oneflow():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.words = nn.Embedding(10, 8)
            self.body = nn.Sequential(nn.Linear(8, 4), nn.Dropout(0.5))
            self.parts = nn.ModuleList([nn.Linear(4, 4), nn.ReLU()])

    net, case = Net(), PRINTED["net"]
    assert repr(net) == case["printed"]
    assert [name for name, _ in net.named_children()] == case["children"]
    assert [name for name, _ in net.named_modules()] == case["modules"]
    assert [name for name, _ in net.named_parameters()] == case["keys"]
    module_names = []
    net.apply(lambda module: module_names.append(type(module).__name__))
    assert module_names[-1] == "Net" and len(module_names) == len(list(net.modules())) == len(case["modules"])


@pytest.mark.parametrize("word", PRINTED["words"])
def test_other_values_print_as_in_oneflow(word):
    """A local tensor prints a line per rank in lock step, so the world has one rank if possible."""
    with use_world(LockStep(4 if "world" in word or "all(" in word else 1)):
        assert repr(eval(word)) == PRINTED["words"][word]


@pytest.mark.ranks(4)
def test_random_numbers_are_identical_on_all_placements(world):
    def draw(drawing_world, ranks, sbp):
        """Return the arrays of seeded random and constant tensors on a placement of a world."""
        flow.manual_seed(7)
        with use_world(drawing_world):
            target = {"placement": flow.placement("cpu", ranks), "sbp": sbp}
            tensors = [
                flow.randint(3, 9, (4, 6), **target),
                flow.randperm(8, **target),
                flow.eye(4, **target),
            ]
            tensors.append(flow.linspace(0, 1, 8, **target))
            assert all(x.is_global for x in tensors) and tensors[0].dtype == flow.int64
            return [x.numpy() for x in tensors]

    expected = draw(LockStep(1), [0], flow.sbp.broadcast)
    for sbp in (flow.sbp.broadcast, flow.sbp.split(0), flow.sbp.partial_sum):
        for a, b in zip(draw(world, range(4), sbp), expected):
            np.testing.assert_array_equal(a, b)
    assert set(expected[0].ravel()) <= set(range(3, 9)) and len(set(expected[0].ravel())) > 3
    assert sorted(expected[1]) == list(range(8))


@pytest.mark.ranks(2)
def test_wrong_calls_get_one_line(world):
    placement = flow.placement("cpu", [0, 1])
    wrong = [
        (lambda: flow.randint(5, 2, (2,)), "low to be less than high"),
        (lambda: flow.randint(0.5, (2,)), "low and high must be integers, got 0.5"),
        (lambda: flow.randint(5), "a tuple of integers"),
        (lambda: flow.from_numpy([1]), "expected np.ndarray, but got list"),
        (lambda: flow.tensor("abc"), "data must be numbers or truth values"),
        (lambda: flow.tensor([[1], [1, 2]]), "of equal lengths"),
        (lambda: flow.ones(2, device="tpu"), "Expected one of cpu, cuda device type"),
        (lambda: flow.device("cpu:0", 1), "index must be one integer"),
        (lambda: flow.device("cpu:x"), "index must be one integer"),
        (lambda: flow.ones(-1), "integers of 0 or more"),
        (lambda: flow.ones(2, requires_grad=True), "no gradients here; nearest: x.to_global"),
        (lambda: flow.ones(2, placement=placement, sbp=flow.sbp.broadcast, device="cpu"), "got cpu too"),
        (lambda: flow.ones(2, placement=placement, sbp=flow.sbp.broadcast).device, "Only local tensors have"),
        (lambda: flow.randn(2, dtype=flow.int64), "must be a float type .*, got oneflow.int64"),
        (lambda: flow.randn(2, dtype="flot32"), "did you mean 'float32'"),
        (lambda: flow.randint(2, (2,), dtype="int46"), "did you mean 'int64'"),
        (lambda: nn.Dropout("half"), "has to be between 0 and 1, but got half"),
        (lambda: nn.Embedding(4, "8"), "sizes of a parameter are integers"),
        (lambda: len(flow.tensor(1.0)), "0-d tensor"),
        (lambda: flow.env.get_node_size, "not covered by this dialect"),
        (lambda: flow.distributed.all_reduce, r"nearest: x\.to_global\(placement, sbp\)"),
    ]
    with use_world(world):
        for call, words in wrong:
            with pytest.raises(Exception, match=words) as caught:
                call()
            assert "\n" not in str(caught.value)


@pytest.mark.ranks(2)
def test_state_is_loaded_by_path(world):
    with use_world(world):
        placement = flow.placement("cpu", [0, 1])
        S0, B = flow.sbp.split(0), flow.sbp.broadcast
        networks = [nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)) for _ in range(2)]
        with pytest.raises(OneFlowError, match="not global yet"):
            networks[0].state_dict()
        source = networks[0].to_global(placement, B)
        flow.manual_seed(3)
        loaded = networks[1].to_global(placement, S0)
        state = source.state_dict()
        assert list(state) == ["0.weight", "0.bias", "2.weight", "2.bias"]
        assert (state["0.weight"].numpy() != loaded[0].weight.numpy()).any()
        wrong = {**state, "0.bias": state["2.bias"], "extra": state["2.bias"]}
        del wrong["2.weight"]
        with pytest.raises(OneFlowError) as caught:
            loaded.load_state_dict(wrong)
        assert str(caught.value) == (
            'Error(s) in loading state_dict for Sequential: Missing key(s) in state_dict: "2.weight"; Unexpected key(s) '
            'in state_dict: "extra"; size mismatch for 0.bias: copying a param with shape oneflow.Size([2]) from '
            "checkpoint, the shape in current model is oneflow.Size([6])"
        )
        loaded.load_state_dict(state)
        for path, value in loaded.state_dict().items():
            assert value.sbp == (S0,) and not value.requires_grad
            np.testing.assert_array_equal(value.numpy(), state[path].numpy())
        weight = loaded[0].weight
        assert isinstance(weight, flow.Tensor) and weight.shape == (6, 4) and weight.sbp == (S0,)
        loaded(flow.ones(2, 4, placement=placement, sbp=B)).sum().backward()
        assert isinstance(weight.grad, flow.Tensor) and "dtype=oneflow.float32)" in repr(weight.grad)


def test_tensors_without_values_print_their_shape():
    with use_world(ShapeOnly(2)):
        x = flow.ones(4, 2, placement=flow.placement("cpu", [0, 1]), sbp=flow.sbp.split(0))
        assert repr(x).startswith("tensor(..., size=(4, 2), dtype=oneflow.float32")


def waves(shape, scale, phase):
    return (
        np.round(np.sin(np.arange(np.prod(shape)) * 1.7 + phase) * scale, 3).reshape(shape).astype(np.float32)
    )


OPTIMISERS = {
    "SGD": lambda p: flow.optim.SGD(p, lr=0.2, momentum=0.5),
    "SGD decay": lambda p: flow.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.1, weight_decay=0.01),
    "SGD nesterov": lambda p: flow.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "Adam": lambda p: flow.optim.Adam(p, lr=0.05),
    "Adam decay": lambda p: flow.optim.Adam(p, lr=0.05, weight_decay=0.1),
    "AdamW": lambda p: flow.optim.AdamW(p, lr=0.05, weight_decay=0.1),
}


@pytest.mark.ranks(4)
@pytest.mark.parametrize("name", PRINTED["trained"])
def test_training_gives_the_numbers_of_oneflow(world, name, monkeypatch):
    """Losses and weights after six steps equal OneFlow's, with equal cuts of the weights."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "examples" / "documents"))
    from two_dimensional_sbp_training import BROADCAST, COLUMNS, DATA, PLACEMENT, ROWS, network

    with use_world(world):
        model = network()
        cuts = {"0.weight": COLUMNS, "0.bias": COLUMNS, "2.weight": ROWS, "2.bias": BROADCAST}
        assert {path: p.sbp for path, p in model.named_parameters()} == cuts
        model.load_state_dict(
            {
                path: flow.tensor(waves(p.shape, 0.7, k), PLACEMENT, p.sbp)
                for k, (path, p) in enumerate(model.named_parameters())
            }
        )
        optimizer, losses = OPTIMISERS[name](model.parameters()), []
        for step in range(6):
            x = flow.tensor(waves((16, 8), 1.5, step), PLACEMENT, DATA)
            with record() as trace:
                loss = nn.CrossEntropyLoss()(model(x), (x[:, 0] > 0).long())
                loss.backward()
            assert trace.counts() == {"all_reduce": 6}, (
                "the second product, how many labels count, four gradients"
            )
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        np.testing.assert_allclose(losses, PRINTED["trained"][name]["losses"], rtol=2e-5)
        for path, value in model.state_dict().items():
            np.testing.assert_allclose(value.numpy(), PRINTED["trained"][name]["weights"][path], atol=2e-5)


@pytest.mark.ranks(4)
def test_the_training_document_runs(world, capsys, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "examples" / "documents"))
    import two_dimensional_sbp_training as program

    with use_world(world):
        model, losses = program.main()
        assert np.mean(losses[-10:]) < 0.5 * np.mean(losses[:10])
        assert model[2].weight.sbp == program.ROWS and model[2].weight.to_local().shape == (2, 2)
    output = capsys.readouterr().out
    assert output.startswith(PRINTED["modules"][0]["printed"])
    assert "sbp=(oneflow.sbp.broadcast, oneflow.sbp.split(dim=1))," in output
