"""Training that is saved and loaded into another model equals uninterrupted training bit by bit."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from processes import run_python

import spmdsim
import spmdsim.ops as ops
from spmdsim import LockStep, Mesh, Tensor, nn
from spmdsim.arrays import checkpoint
from spmdsim.dialects import mindspore, oneflow, paddle
from spmdsim.dialects.session import use_world
from spmdsim.errors import InputError, UsageTypeError, WorldError

OPTIMISERS = {
    "SGD": (nn.SGD, {}),
    "momentum": (nn.SGD, {"momentum": 0.9, "dampening": 0.5, "weight_decay": 0.01}),
    "nesterov": (nn.SGD, {"momentum": 0.9, "nesterov": True}),
    "Adam": (nn.Adam, {}),
    "AdamW": (nn.Adam, {"weight_decay": 0.1}),
    "amsgrad": (nn.Adam, {"amsgrad": True, "betas": (0.5, 0.6)}),
}
#: Optimisers whose states consist of different tensors; each other optimiser has the state of one of them.
STATES = ("SGD", "momentum", "Adam", "amsgrad")


class Network(nn.Module):
    """Two layers, a complex parameter and a scale without dims; `frozen` is not trained."""

    def __init__(self, mesh, dtype=np.float32):
        self.first = nn.Linear(8, 16, mesh(None, "tp"), dtype=dtype)
        self.second = nn.Linear(16, 4, mesh("tp", None), dtype=dtype)
        self.scale = nn.Parameter((), mesh(), nn.ones, dtype)
        self.phase = nn.Parameter((4,), mesh("tp"), nn.ones, np.complex64)
        self.frozen = nn.Parameter((4,), mesh(None), nn.ones, dtype)

    def forward(self, x):
        """Return the outputs of shape [batch, 4] for ``x`` of shape [batch, 8]."""
        wave = ops.real(ops.multiply(self.phase.value, 1 - 0.5j))
        return ops.multiply(self.second(ops.tanh(self.first(x))), self.scale.value) + wave + self.frozen.value


class Run:
    """A model in training with its optimiser."""

    def __init__(self, mesh, world, kind, options, state=None, dtype=np.float32, compiled=False, seed=3):
        self.world, self.mesh = world, mesh
        self.model = Network(mesh, dtype)
        self.model.materialise(world, seed)
        self.model.frozen.value.requires_grad = False
        self.optimiser = kind(self.model, 0.05, state_layout=state, **options)
        self.step = spmdsim.compile(self._step) if compiled else self._step

    def _step(self, x):
        self.optimiser.zero_grad()
        nn.backward(ops.mean(ops.square(self.model(x))))
        self.optimiser.step()

    def train(self, first, last):
        """Run steps number `first` to ``last - 1``, each with its own data and with a falling rate."""
        for number in range(first, last):
            data = np.random.default_rng(number).normal(size=(8, 8)).astype(np.float32)
            x = ops.cast(Tensor.from_global(data, self.mesh("dp", None), self.world), self.model.scale.dtype)
            self.step(x)
            self.optimiser.rate *= 0.9

    def tensors(self):
        """Return parameters and state by name."""
        parameters = {name: parameter.value for name, parameter in self.model.named_parameters()}
        return parameters | {f"optimiser.{name}": t for name, t in self.optimiser.state_dict().items()}

    def save(self, folder):
        checkpoint.save(folder, self.tensors())

    def load(self, folder):
        layouts = {name: tensor.layout for name, tensor in self.tensors().items()}
        loaded = checkpoint.load(folder, self.world, layouts)
        for name, parameter in self.model.named_parameters():
            parameter.assign(loaded[name])
        self.model.frozen.value.requires_grad = False
        state = {
            name.removeprefix("optimiser."): t for name, t in loaded.items() if name.startswith("optimiser.")
        }
        self.optimiser.load_state_dict(state)

    def bits(self):
        return {name: tensor.full().tobytes() for name, tensor in self.tensors().items()}

    def values(self):
        return {name: tensor.full() for name, tensor in self.tensors().items()}


def meshes(size):
    """Return two meshes of all `size` ranks."""
    pairs = {1: ((1, 1), (1, 1)), 2: ((2, 1), (1, 2)), 4: ((2, 2), (1, 4))}[size]
    return [Mesh(shape, ("dp", "tp")) for shape in pairs]


@pytest.fixture
def folder(world, tmp_path) -> Path:
    """Return one folder for all ranks of the world."""
    return Path(world.gather_objects([str(tmp_path)] * len(world.ranks))[0]) / "saved"


# Together the cases have every pair of options, each on and off.
@pytest.mark.ranks(4)
@pytest.mark.parametrize(
    "compiled, zero, dtype",
    [
        (False, False, np.float32),
        (False, True, ml_dtypes.bfloat16),
        (True, True, np.float32),
        (True, False, ml_dtypes.bfloat16),
    ],
    ids=["eager-f32", "eager-ZeRO-bf16", "compiled-ZeRO-f32", "compiled-bf16"],
)
@pytest.mark.parametrize("name", STATES)
def test_a_resumed_training_has_the_bits_of_an_uninterrupted_one(world, folder, name, compiled, zero, dtype):
    kind, options = OPTIMISERS[name]
    mesh, state = meshes(world.size)[0], nn.sharded_over("dp") if zero else None
    uninterrupted = Run(mesh, world, kind, options, state, dtype, compiled)
    uninterrupted.train(0, 3)
    uninterrupted.save(folder)
    uninterrupted.train(3, 6)
    resumed = Run(mesh, world, kind, options, state, dtype, compiled, seed=4)
    resumed.load(folder)
    resumed.train(3, 6)
    assert resumed.bits() == uninterrupted.bits()
    names = set(resumed.optimiser.state_dict())
    assert "scale.step" in names and not any(name.startswith("frozen") for name in names)
    assert resumed.optimiser.state_dict()["first.weight.step"].item() == 6
    assert resumed.optimiser.rate == pytest.approx(0.05 * 0.9**6)
    # Without the state the bits differ, so the comparison above can fail.
    without_state = Run(mesh, world, kind, options, state, dtype, compiled, seed=4)
    without_state.load(folder)
    if options or kind is nn.Adam:
        without_state.optimiser.load_state_dict(
            Run(mesh, world, kind, options, state, dtype).optimiser.state_dict()
        )
        without_state.optimiser.rate = 0.05 * 0.9**3
        without_state.train(3, 6)
        assert without_state.bits() != uninterrupted.bits()


@pytest.mark.ranks(4)
@pytest.mark.parametrize("name", OPTIMISERS)
def test_a_training_resumes_on_another_mesh(world, folder, name):
    """State of ZeRO loads on another mesh and on 1 or 3 ranks; training on agrees to rounding."""
    kind, options = OPTIMISERS[name]
    first_mesh, second_mesh = meshes(world.size)
    uninterrupted = Run(first_mesh, world, kind, options, nn.sharded_over("dp"))
    uninterrupted.train(0, 3)
    uninterrupted.save(folder)
    before = uninterrupted.values()
    uninterrupted.train(3, 6)
    targets = [(second_mesh, world, None), (second_mesh, world, nn.sharded_over("tp"))]
    targets += [(Mesh((1, n), ("dp", "tp")), LockStep(n), None) for n in (1, 3)]
    for mesh, target_world, state in targets:
        resumed = Run(mesh, target_world, kind, options, state, seed=4)
        resumed.load(folder)
        for key, value in resumed.values().items():
            np.testing.assert_array_equal(value, before[key], err_msg=key)
        resumed.train(3, 6)
        for key, value in resumed.values().items():
            np.testing.assert_allclose(value, uninterrupted.values()[key], rtol=2e-3, atol=1e-5, err_msg=key)
    world.barrier()


PROGRAM = """
import sys
from pathlib import Path
from spmdsim import LockStep, nn
from tests.nn.test_saved_state import Run, meshes
folder, first, last = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
run = Run(meshes(4)[0], LockStep(4), nn.Adam, {"amsgrad": True}, nn.sharded_over("dp"), seed=first)
if first:
    run.load(folder)
run.train(first, last)
run.save(folder)
print(sorted(run.bits().items()))
"""


def test_a_new_process_resumes_a_training(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    runs = [("a", 0, 5), ("b", 0, 2), ("b", 2, 5)]
    printed = []
    for folder, first, last in runs:
        process = run_python(tmp_path / "program.py", tmp_path / folder, first, last)
        assert process.returncode == 0, process.stderr
        printed.append(process.stdout)
    assert printed[0] == printed[2] != printed[1]


def test_the_state_has_names_and_shapes_of_the_parameters():
    mesh, world = Mesh((2, 2), ("dp", "tp")), LockStep(4)
    run = Run(mesh, world, nn.Adam, {"amsgrad": True}, nn.sharded_over("dp"), ml_dtypes.bfloat16)
    fresh = run.optimiser.state_dict()
    parameters = ["first.weight", "first.bias", "second.weight", "second.bias", "scale", "phase"]
    kinds = ["exp_avg", "exp_avg_sq", "max_exp_avg_sq", "step"]
    assert [*fresh] == [f"{name}.{kind}" for name in parameters for kind in kinds] + ["rate"]
    assert all(not tensor.full().any() for name, tensor in fresh.items() if name != "rate")
    weight = fresh["first.weight.exp_avg"]
    assert weight.shape == (8, 16) and weight.dtype == np.float32 and weight.layout == mesh("dp", "tp")
    assert fresh["phase.exp_avg"].dtype == np.complex64 and fresh["rate"].item() == 0.05
    assert fresh["scale.step"].dtype == np.int64 and fresh["scale.step"].shape == ()


def test_parameters_without_unique_names_get_numbers():
    layout, world = Mesh((1,), ("x",))("x"), LockStep(1)
    loose = [Tensor.from_global(np.ones(2), layout, world, requires_grad=True) for _ in range(2)]
    assert [*nn.SGD(loose).state_dict()] == ["0.step", "1.step", "rate"]
    layers = [nn.Linear(2, 2, Mesh((1,), ("x",))(None, None), bias=False) for _ in range(2)]
    for layer in layers:
        layer.materialise(world)
    both = nn.SGD([layer.weight for layer in layers])
    assert [*both.state_dict()] == ["0.weight.step", "1.weight.step", "rate"]


def test_a_state_that_does_not_fit_is_refused_without_changes():
    mesh, world = Mesh((1, 2), ("dp", "tp")), LockStep(2)
    run = Run(mesh, world, nn.Adam, {})
    run.train(0, 2)
    before, state = run.bits(), run.optimiser.state_dict()
    small = Tensor.from_global(np.zeros(3, np.float32), mesh(None), world)
    lone = Tensor.from_global(0.5, Mesh((1,), ("x",))(), LockStep(1))
    complex_ = Tensor.from_global(np.zeros(16, np.complex64), mesh(None), world)
    wrong = [
        ({**state, "scale.exp_avg": small}, InputError, r"'scale.exp_avg' must be float32 of shape \(\), got Tensor\(f32\[3\]"),
        ({**state, "first.bias.exp_avg": complex_}, InputError, r"'first.bias.exp_avg' must be float32 of shape \(16,\)"),
        ({**state, "rate": lone}, WorldError, "'rate' must be in the parameters' world"),
        ({**state, "rate": 0.5}, UsageTypeError, "'rate' must be a tensor, got a float"),
        ({**state, "scale.exp_avgs": small}, InputError, r"names must be those of state_dict\(\), got 'scale.exp_avgs'; nearest: 'scale.exp_avg'"),
        ({k: t for k, t in state.items() if k != "phase.step"}, InputError, "the state must have 'phase.step', got none"),
        (Run(mesh, world, nn.SGD, {"momentum": 0.5}).optimiser.state_dict(), InputError, "must have 'first.weight.exp_avg', got none"),
    ]  # fmt: skip
    for tensors, kind, text in wrong:
        with pytest.raises(kind, match=f"^load_state_dict: .*{text}"):
            run.optimiser.load_state_dict(tensors)
        assert run.bits() == before


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64])
def test_a_state_of_other_floats_is_converted(dtype):
    mesh, world = Mesh((1, 2), ("dp", "tp")), LockStep(2)
    run = Run(mesh, world, nn.Adam, {})
    run.train(0, 2)
    state = run.optimiser.state_dict()
    name = "first.weight.exp_avg"
    expected = state[name].full().astype(dtype).astype(np.float32)
    run.optimiser.load_state_dict({**state, name: state[name].astype(dtype)})
    loaded = run.optimiser.state_dict()[name]
    assert loaded.dtype == np.float32 and expected.any()
    np.testing.assert_array_equal(loaded.full(), expected)


DIALECTS = {
    "oneflow": lambda weight: oneflow.optim.AdamW([weight], lr=0.1, amsgrad=True),
    "paddle": lambda weight: paddle.optimizer.Momentum(0.1, 0.9, parameters=[weight]),
    "mindspore": lambda weight: mindspore.nn.Adam([weight], learning_rate=[0.1, 0.05, 0.02, 0.01], use_amsgrad=True),
}  # fmt: skip


@pytest.mark.ranks(2)
@pytest.mark.parametrize("name", DIALECTS)
def test_optimisers_of_the_dialects_resume(world, name):
    gradients = np.random.default_rng(0).normal(size=(6, 8)).astype(np.float32)

    def run(value, first, last, state=None):
        """Train `value` by the gradients `first` to ``last - 1``; return it and the optimiser's state.

        `state` is loaded before the first step if it is not None.
        """
        if name == "mindspore":
            weight = mindspore.Parameter(mindspore.Tensor(value), name="w")
            weight.everywhere()
        else:
            layout = Mesh((2,), ("x",))("x")
            weight = nn.Parameter((8,), layout, lambda index, *_: value[index])
            weight.name = "w"
            weight.materialise(world)
        optimiser = DIALECTS[name](weight)
        if state is not None:
            take = optimiser.set_state_dict if name == "paddle" else optimiser.load_state_dict
            take(state)
        if name == "paddle" and state is None:
            optimiser.set_lr(0.3)
        for gradient in gradients[first:last]:
            slope = Tensor.from_global(gradient, weight.value.layout, weight.value.world)
            weight.value.grad = slope
            optimiser((slope,)) if name == "mindspore" else optimiser.step()
        return weight.value.full(), optimiser.state_dict()

    with use_world(world):
        uninterrupted, expected_state = run(np.ones(8, np.float32), 0, 6)
        half, state = run(np.ones(8, np.float32), 0, 3)
        resumed, resumed_state = run(half, 3, 6, state)
        np.testing.assert_array_equal(resumed, uninterrupted)
        assert [*resumed_state] == [*expected_state] == [*state] and "w.step" in state
        for key, tensor in expected_state.items():
            np.testing.assert_array_equal(resumed_state[key].full(), tensor.full(), err_msg=key)
        assert state["w.step"].item() == 3
        assert "rate" in state if name != "mindspore" else state["global_step"].item() == 3
