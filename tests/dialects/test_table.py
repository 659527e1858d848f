"""What dialects share: tables of operators, renamed classes, and core classes that no dialect changes."""

from __future__ import annotations

import inspect
import subprocess
import sys

import numpy as np
import pytest

import spmdsim.ops as core
from spmdsim import LockStep, Mesh, Tensor, nn
from spmdsim.dialects.table import Row, layers, renamed, same
from spmdsim.errors import InputError

X = np.arange(6.0).reshape(2, 3) - 2


@pytest.fixture
def x():
    return Tensor.from_global(X, Mesh((2,), ("dp",))("dp", None), LockStep(2))


def test_a_row_is_a_function_and_a_layer(x):
    table = same(core, "exp neg=negative") | {
        "total": Row(lambda x, dim=None, keepdim=False: core.sum(x, dim, keepdim), "Total", {"dim": -1}),
    }
    assert np.array_equal(table["neg"].call(x).full(), -X)
    assert np.array_equal(table["total"].call(x).full(), X.sum())
    classes = layers(table, nn.Module, lambda function: function)
    assert list(classes) == ["Total"] and issubclass(classes["Total"], nn.Module)
    assert np.array_equal(classes["Total"]()(x).full(), X.sum(-1))
    assert np.array_equal(classes["Total"](0, keepdim=True)(x).full(), X.sum(0, keepdims=True))
    with pytest.raises(TypeError, match="keep"):
        classes["Total"](keep=True)
    with pytest.raises(TypeError, match=r"^Total\(\) got too many positional arguments; it takes x$"):
        classes["Total"]()(x, x)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_losses(x, reduction):
    table = {
        "mse": Row(nn.mse_loss, layer="MSE"),
        "l1": Row(nn.l1_loss, layer="L1"),
    }
    classes = layers(table, nn.Module, lambda function: function)
    y = core.multiply(x, 3.0)
    one_by_one = {"MSE": (2 * X) ** 2, "L1": abs(2 * X)}
    for name, losses in one_by_one.items():
        wanted = losses if reduction == "none" else getattr(np, reduction)(losses)
        np.testing.assert_allclose(classes[name](reduction)(x, y).full(), wanted)
    with pytest.raises(InputError, match="reduction is one of mean, sum, none, not 'median'"):
        classes["MSE"]("median")


@pytest.mark.parametrize("wrong, right", [("Tnsor", "Tensor"), ("tnsor", "tensor")])
def test_the_nearest_word_is_spelled_as_the_wrong_one(wrong, right):
    from spmdsim.dialects import oneflow

    with pytest.raises(
        AttributeError, match=f"^oneflow.{wrong} is not covered by this dialect; nearest: {right}$"
    ):
        getattr(oneflow, wrong)


def test_a_class_of_ours_takes_other_arguments():
    Theirs = renamed("Theirs", nn.SGD, lambda params, lr=0.5: dict(parameters=params, rate=lr), word=7)
    optimizer = Theirs([], lr=0.25)
    assert str(inspect.signature(Theirs)) == "(params, lr=0.5)"
    assert (
        isinstance(optimizer, nn.SGD)
        and optimizer.rate == 0.25
        and Theirs([]).rate == 0.5
        and optimizer.word == 7
    )


def test_adams_decay_may_be_added_to_the_gradient():
    """Two ways to decay, told apart by the first step: its size is the rate, whatever the gradient's."""
    values = []
    for decoupled in (True, False):
        weight = nn.Parameter(X.shape, Mesh((1,), ("one",))(None, None), nn.ones, np.float64)
        weight.materialise(LockStep(1))
        nn.backward(core.sum(core.multiply(weight.value, 2.0)))
        optimiser = nn.Adam([weight], 0.1, weight_decay=0.5, decoupled=decoupled)
        optimiser.step()
        optimiser.zero_grad()
        assert weight.grad is None
        values.append(weight.value.full())
    np.testing.assert_allclose(values[0], 1 - 0.1 - 0.1 * 0.5)
    np.testing.assert_allclose(values[1], 1 - 0.1, rtol=1e-7)


def test_no_dialect_changes_the_classes_of_the_core():
    code = (
        "from spmdsim import Tensor; from spmdsim import nn; import importlib\n"
        "words = [dict(vars(c)) for c in (Tensor, nn.Module, nn.Parameter, nn.Optimiser)]\n"
        "for name in ('mindspore', 'oneflow', 'paddle'):\n"
        "    package = importlib.import_module(f'spmdsim.dialects.{name}')\n"
        "    [getattr(package, word) for word in package.__all__]\n"
        "assert words == [dict(vars(c)) for c in (Tensor, nn.Module, nn.Parameter, nn.Optimiser)]"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_whole_tensors_by_the_frameworks_words(x):
    assert np.array_equal(x.numpy(), X) and np.array_equal(x.asnumpy(), X)


ONE_LINE = """
import importlib.util, sys
from pathlib import Path
import numpy as np

name, first, line, program = sys.argv[1:]
spec = importlib.util.find_spec(name)
text = Path(spec.origin).read_text()
assert text.count(first) == 1
module = importlib.util.module_from_spec(spec)
sys.modules[name] = module
exec(compile(text.replace(first, first + line), spec.origin, "exec"), vars(module))

from spmdsim import LockStep
from spmdsim.dialects.session import use_world

X = np.arange(6.0).reshape(2, 3) - 2
wanted = np.log1p(np.exp(X))
use_world(LockStep(2))
exec(program)
print("as one line")
"""

#: A dialect's table, its first line, a line more, and what programs can write with it.
NEW_OPERATORS = {
    "oneflow": (
        "spmdsim.dialects.oneflow.operators",
        "\nTABLE: dict[str, Row] = {",
        '\n    "softplus": Row(core.softplus, "Softplus"),',
        """
import spmdsim.dialects.oneflow as flow
x = flow.tensor(X, flow.placement("cpu", [0, 1]), flow.sbp.split(0), dtype=np.float64)
from spmdsim.dialects.oneflow.nn import Softplus
for y in (flow.softplus(x), x.softplus(), Softplus()(x), flow.nn.functional.softplus(x)):
    np.testing.assert_allclose(y.numpy(), wanted)
    assert y.sbp == x.sbp
""",
    ),
    "paddle": (
        "spmdsim.dialects.paddle.functions",
        "\nTABLE: dict[str, Row] = {",
        '\n    "softplus": Row(core.softplus, "Softplus"),',
        """
import spmdsim.dialects.paddle as paddle
for y in (paddle.softplus(X), paddle.nn.Softplus()(X), paddle.nn.functional.softplus(X, name="y")):
    np.testing.assert_allclose(y.numpy(), wanted)
""",
    ),
}


@pytest.mark.parametrize("dialect", NEW_OPERATORS)
def test_a_new_operator_is_one_line_in_one_file(dialect):
    """Functions, methods, layers and ``nn.functional`` follow from the row; without it there are none."""
    arguments = NEW_OPERATORS[dialect]
    done = subprocess.run([sys.executable, "-c", ONE_LINE, *arguments], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout == "as one line\n", done.stderr
    without = [arguments[0], arguments[1], "", arguments[3]]
    done = subprocess.run([sys.executable, "-c", ONE_LINE, *without], capture_output=True, text=True)
    assert done.returncode == 1 and "softplus" in done.stderr.lower()
