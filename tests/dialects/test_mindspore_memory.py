"""What hsdp's levels do, counted; what a rank may hold, gradients and optimisers' state included; files of operators' strategies."""

from __future__ import annotations

import json

import numpy as np
import pytest

import spmdsim.dialects.mindspore as ms
from spmdsim import ShapeOnly, record
from spmdsim.dialects.mindspore import nn, ops, runtime
from spmdsim.dialects.mindspore.parallel.auto_parallel import AutoParallel
from spmdsim.dialects.session import use_world
from spmdsim.errors import InputError, UsageTypeError
from tests.dialects.test_mindspore_sharing import V, W, X, by_hand, steps_of

KB = 2**-20


def _level(number):
    return lambda net: net.hsdp(threshold=0, optimizer_level=f"level{number}")


@pytest.mark.ranks(4)
def test_each_level_does_what_it_says(world):
    """Level 2 scatters both gradients where level 1 adds them up whole; level 3 gathers once more what a gradient looks at."""
    with use_world(world):
        counts, peaks = {}, {}
        for level in (1, 2, 3):
            runtime.set_memory(max_size="1GB")
            with record() as trace:
                _, w, v = steps_of(_level(level), count=1)
            counts[level] = {
                name: trace.counts().get(name, 0) for name in ("all_gather", "all_reduce", "reduce_scatter")
            }
            for parameter, expected in zip((w, v), by_hand(count=1)):
                np.testing.assert_allclose(parameter.asnumpy(), expected, rtol=1e-9)
                assert parameter.layout.cuts == ((2, 2) if parameter is w else (4, 1))
            runtime.reset_peak_memory_stats()
            steps_of(_level(level), count=2)
            peaks[level] = runtime.max_memory_allocated()
        assert counts[1]["all_reduce"] == counts[2]["all_reduce"] + 2 and counts[1]["reduce_scatter"] == 0
        assert counts[2]["reduce_scatter"] == counts[3]["reduce_scatter"] == 2
        # Only v: nothing wants the gradient of x, the only one that looks at w.
        assert counts[1]["all_gather"] == counts[2]["all_gather"] == counts[3]["all_gather"] - 1
        assert peaks[1] >= peaks[2] >= peaks[3]


def _program(optimiser):
    w = ms.Parameter(np.ones((128, 128), np.float32), name="w")
    update, total, product = optimiser([w], 0.1), ops.ReduceSum(), ops.MatMul()
    return w, update, ms.value_and_grad(lambda x: total(product(x, w)), None, [w])


@pytest.mark.ranks(2)
@pytest.mark.parametrize(("optimiser", "slots"), [(nn.SGD, 0), (nn.Adam, 2)])
def test_gradients_and_the_optimisers_state_are_held(world, optimiser, slots):
    """A parameter of 64 KB on each rank, a gradient as large, and as much again for every average that is kept."""
    x = np.ones((2, 128), np.float32)
    with use_world(world):
        runtime.set_memory(max_size="1GB")
        program = w, update, grad = _program(optimiser)
        before = runtime.memory_allocated()
        _, gradients = grad(x)
        assert 128 <= (runtime.memory_allocated() - before) / 1024 < 132
        update(gradients)
        del gradients
        w.value.grad = None
        assert 64 * (1 + slots) <= (runtime.memory_allocated() - before) / 1024 < 64 * (1 + slots) + 4
        del program, w, update, grad
        # A gradient may be there twice, before and after it is added up over the ranks.
        for limit, fits in ((64 * max(3, 2 + slots) + 16, True), (64 * (2 + slots) - 16, False)):
            runtime.set_memory(max_size=f"{(runtime.memory_allocated() / 1024 + limit) * KB:.20f}GB")
            _, update, grad = _program(optimiser)
            if fits:
                update(grad(x)[1])
            else:
                with pytest.raises(
                    RuntimeError, match=r"out of memory.*nearest: a larger max_size, or more cuts"
                ):
                    update(grad(x)[1])
            del _, update, grad


def test_shapes_alone_are_counted_too():
    with use_world(ShapeOnly(8)):
        runtime.set_memory(max_size="2GB")
        w = ms.Parameter(ms.initializer("normal", [2**15, 2**14], ms.float32), name="w")  # 2 GB
        with pytest.raises(
            RuntimeError,
            match=r"2,147,483,648 more are needed for a tensor of shape \(2, 16384\)|out of memory",
        ):
            nn.Adam([w])(
                ms.grad(lambda x: ops.ReduceSum()(ops.MatMul()(x, w)), None, [w])(
                    np.ones((2, 2**15), np.float32)
                )
            )


def _net(mode, cuts=((2, 1), (1, 2))):
    w, v = ms.Parameter(W, name="w"), ms.Parameter(V, name="v")
    first, second, relu = ops.MatMul().shard(cuts), ops.MatMul(), ops.ReLU()
    net = AutoParallel(lambda x: second(relu(first(x, w)), v), mode)
    net.dataset_strategy("full_batch")
    return net


@pytest.mark.ranks(4)
@pytest.mark.parametrize("mode", ["sharding_propagation", "recursive_programming"])
def test_operators_strategies_are_written_and_read(world, tmp_path, mode):
    file = world.gather_objects([str(tmp_path / "operators.json")] * len(world.ranks))[0]
    with use_world(world):
        net = _net(mode)
        net.save_operator_strategy_file(file)
        expected = np.maximum(X @ W, 0) @ V
        np.testing.assert_allclose(net(ms.Tensor(X)).full(), expected, rtol=1e-9)
        world.barrier()
        with open(file) as text:
            told = json.load(text)
        assert [entry["operator"] for entry in told["strategies"]] == ["matmul.w", "relu", "matmul.v"]
        result, cuts = net(ms.Tensor(X)), ((1, 4), (4, 1))
        other, alone = _net(mode, cuts), _net(mode, cuts)
        other.load_operator_strategy_file(file)
        for _ in range(2):  # the second call runs with what the first one found or read
            loaded, unlike = other(ms.Tensor(X)), alone(ms.Tensor(X))
            np.testing.assert_allclose(loaded.full(), expected, rtol=1e-9)
        assert loaded.layout == result.layout != unlike.layout
        third = AutoParallel(lambda x: ops.ReLU()(x), mode)
        third.load_operator_strategy_file(file)
        with pytest.raises(InputError, match="whose operators are not those of"):
            third(ms.Tensor(X))


@pytest.mark.ranks(2)
def test_other_files_of_operators_are_refused(world, tmp_path):
    with use_world(world):
        net = AutoParallel(lambda x: x, "sharding_propagation")
        for call in (net.save_operator_strategy_file, net.load_operator_strategy_file):
            with pytest.raises(UsageTypeError, match="file_path is a str, not 3"):
                call(3)
            with pytest.raises(KeyError, match=r"an absolute path, not 'x.json'; nearest"):
                call("x.json")
            with pytest.raises(KeyError, match=r"ends in \.json, unlike '/x\.ckpt'; nearest: '/x\.json'"):
                call("/x.ckpt")
        with pytest.raises(InputError, match="there is no file"):
            net.load_operator_strategy_file("/nowhere/at/all.json")
        for word in ("save", "load"):
            semi, file = AutoParallel(lambda x: x), tmp_path / "x.json"
            file.write_text("{}")
            with pytest.raises(InputError, match=f"in 'semi_auto'.*nearest: {word}_param_strategy_file"):
                getattr(semi, f"{word}_operator_strategy_file")(str(file))
