"""Dialects share tables of operators and adapted classes, and change no class of core."""

from __future__ import annotations

import inspect
import subprocess
import sys
from importlib import import_module

import numpy as np
import pytest

import spmdsim.ops as core
from spmdsim import LockStep, Mesh, Tensor, nn
from spmdsim.dialects.table import Row, adapt_class, layers, same_rows

X = np.arange(6.0).reshape(2, 3) - 2


@pytest.fixture
def x():
    return Tensor.from_global(X, Mesh((2,), ("dp",))("dp", None), LockStep(2))


def test_a_row_is_a_function_and_a_layer(x):
    table = same_rows(core, "exp neg=negative") | {
        "total": Row(lambda x, dim=None, keepdim=False: core.sum(x, dim, keepdim), "Total", {"dim": -1})
    }
    assert np.array_equal(table["neg"].call(x).full(), -X)
    assert np.array_equal(table["total"].call(x).full(), X.sum())
    classes = layers(table, nn.Module, lambda function: function)
    assert list(classes) == ["Total"] and issubclass(classes["Total"], nn.Module)
    assert np.array_equal(classes["Total"]()(x).full(), X.sum(-1))
    assert np.array_equal(classes["Total"](0, keepdim=True)(x).full(), X.sum(0, keepdims=True))
    with pytest.raises(TypeError, match="keep"):
        classes["Total"](keep=True)
    with pytest.raises(
        TypeError, match=r"^Total takes at most 1 argument by their place, got 2; it is called as Total\(x\)$"
    ):
        classes["Total"]()(x, x)


def test_adapted_classes_have_their_own_arguments():
    Theirs = adapt_class("Theirs", nn.SGD, lambda params, lr=0.5: dict(parameters=params, rate=lr), word=7)
    optimizer = Theirs([], lr=0.25)
    assert str(inspect.signature(Theirs)) == "(params, lr=0.5)"
    assert (
        isinstance(optimizer, nn.SGD)
        and optimizer.rate == 0.25
        and Theirs([]).rate == 0.5
        and optimizer.word == 7
    )


def run_in_new_process(code: str) -> None:
    """Run a program in a fresh process; fail with its error text if it fails."""
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert process.returncode == 0, process.stderr


def test_no_dialect_changes_the_classes_of_the_core():
    code = (
        "from spmdsim import Tensor; from spmdsim import nn; import importlib\n"
        "words = [dict(vars(c)) for c in (Tensor, nn.Module, nn.Parameter, nn.Optimiser)]\n"
        "for name in ('mindspore', 'oneflow', 'paddle'):\n"
        "    package = importlib.import_module(f'spmdsim.dialects.{name}')\n"
        "    [getattr(package, word) for word in package.__all__]\n"
        "assert words == [dict(vars(c)) for c in (Tensor, nn.Module, nn.Parameter, nn.Optimiser)]"
    )
    run_in_new_process(code)


def test_any_name_of_a_dialect_may_be_used_first():
    code = (
        "import importlib, sys\n"
        "words = {'oneflow': 'Size layout sbp ones cat float32', 'paddle': 'Tensor layout ones seed ParamAttr',\n"
        "         'mindspore': 'Layout shard Parameter grad jit int32'}\n"
        "for name, firsts in words.items():\n"
        "    for first in firsts.split():\n"
        "        path = f'spmdsim.dialects.{name}'\n"
        "        for module in [m for m in sys.modules if m.startswith(path)]:\n"
        "            del sys.modules[module]\n"
        "        getattr(importlib.import_module(path), first)\n"
    )
    run_in_new_process(code)


def test_tensors_have_numpy_and_asnumpy(x):
    assert np.array_equal(x.numpy(), X) and np.array_equal(x.asnumpy(), X)


#: Missing names of dialects -> the hint in the error.
MISSING = {
    "mindspore AutoParalel": "AutoParallel", "mindspore.nn Dence": "Dense", "mindspore profiler": "spmdsim.record",
    "oneflow load": "checkpoint", "oneflow.nn Graph": "calling the module", "oneflow.optim SDG": "SGD", "oneflow Tnsor": "Tensor",
    "paddle DataParallel": "Shard", "paddle.distributed all_reduce": "reshard", "torch DTensor": "spmdsim.Tensor",
    "paddle.distributed.fleet distributed_modl": "distributed_model", "jax experimental": "spmdsim.local_map",
}  # fmt: skip


@pytest.mark.parametrize("words", MISSING)
def test_a_missing_name_gets_a_hint(words):
    module, name = words.split()
    home = import_module(f"spmdsim.dialects.{module}")
    with pytest.raises(
        AttributeError, match=f"^{module}.{name} is not covered by this dialect; nearest: .*{MISSING[words]}"
    ):
        getattr(home, name)
    assert not hasattr(home, name)
    for statement in (f"from {home.__name__} import {name}", f"import {home.__name__}.{name}"):
        with pytest.raises(ImportError, match=name):
            exec(statement)


@pytest.mark.parametrize("dialect", ["mindspore", "oneflow", "paddle", "torch", "jax"])
def test_dialects_and_their_modules_have_all_listed_names(dialect):
    import spmdsim.dialects as dialects

    assert dialect in dir(dialects)
    modules = [getattr(dialects, dialect)]
    for module in modules:
        public = {name: getattr(module, name) for name in module.__all__}
        assert all(value is not None for value in public.values()) and public.keys() <= {*dir(module)}
        modules += [
            value
            for value in public.values()
            if inspect.ismodule(value) and "__dir__" in vars(value) and value not in modules
        ]
    with pytest.raises(AttributeError, match="caffe is not covered"):
        _ = dialects.caffe
