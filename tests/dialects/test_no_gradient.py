"""backward() without a tensor that requires gradients is refused, and unused parameters behave as in each system."""

from __future__ import annotations

import numpy as np
import pytest

import spmdsim.dialects.mindspore as ms
import spmdsim.dialects.oneflow as flow
import spmdsim.dialects.paddle as paddle
import spmdsim.nn as nn
import spmdsim.ops as ops
from spmdsim import Mesh, Tensor
from spmdsim.dialects.mindspore import ops as ms_ops
from spmdsim.dialects.session import use_world
from spmdsim.errors import UsageTypeError

ONES = np.ones((4, 2), np.float32)


@pytest.mark.ranks(2)
def test_core_refuses_backward_without_requires_grad(world):
    x = Tensor.from_global(ONES, Mesh((world.size,), ("a",))("a", None), world)
    for call_backward in (
        lambda: ops.sum(x).backward(),
        lambda: nn.backward(ops.sum(x)),
        lambda: x.backward(x),
    ):
        with pytest.raises(UsageTypeError, match="must depend on a tensor with requires_grad=True"):
            call_backward()
    x.requires_grad = True
    with pytest.raises(UsageTypeError, match="must depend on a tensor with requires_grad=True"):
        ops.sum(ops.multiply(ops.argmax(x, 1), 2)).backward()
    with pytest.raises(UsageTypeError, match="must depend on a tensor with requires_grad=True"):
        ops.sum(x).detach().backward()
    ops.sum(x).backward()
    assert (x.grad.full() == 1).all()


@pytest.mark.ranks(2)
def test_oneflow_refuses_backward_without_requires_grad(world):
    with use_world(world):
        target = {"placement": flow.placement("cpu", [0, 1]), "sbp": flow.sbp.split(0)}
        x = flow.ones(4, 2, **target)
        with pytest.raises(
            RuntimeError, match="element 0 of tensors does not require grad and does not have a grad_fn"
        ):
            x.sum().backward()
        x.requires_grad_()
        with pytest.raises(RuntimeError, match="Grad can be implicitly created only for scalar outputs"):
            (x * 2).backward()
        used, unused = (flow.nn.Parameter(flow.ones(4, 2, **target)) for _ in "ab")
        optimiser = flow.optim.SGD([used, unused], lr=0.5, weight_decay=0.5)
        (used * x).sum().backward()
        optimiser.step()  # as in OneFlow, a parameter without a gradient does not change
        assert (used.numpy() == 0.25).all() and unused.grad is None and (unused.numpy() == 1).all()


@pytest.mark.ranks(2)
def test_paddle_refuses_backward_without_requires_grad(world):
    with use_world(world):
        x = paddle.ones([4, 2])
        with pytest.raises(UsageTypeError, match="stop_gradient=True"):
            paddle.sum(x).backward()
        used, unused = (
            paddle.create_parameter([4, 2], default_initializer=paddle.nn.initializer.Constant(1.0))
            for _ in "ab"
        )
        optimiser = paddle.optimizer.SGD(0.5, [used, unused], weight_decay=0.5)
        paddle.sum(used * x).backward()
        optimiser.step()
        assert (used.numpy() == 0.25).all() and unused.grad is None and (unused.numpy() == 1).all()


@pytest.mark.ranks(2)
def test_unused_parameters_of_mindspore_have_zero_gradients(world):
    """MindSpore has no ``backward()``: gradients of unused parameters are zeros.

    Weight decay changes these parameters.
    """
    with use_world(world):
        used, unused = (ms.Parameter(ONES.copy(), name=name) for name in ("used", "unused"))
        optimiser = ms.nn.SGD([used, unused], 0.5, weight_decay=0.5)
        total = ms_ops.ReduceSum()
        step = ms.value_and_grad(lambda x: total(ms_ops.Mul()(x, used)), None, optimiser.parameters)
        value, gradients = step(ONES)
        assert value.item() == 8 and [g.full().max() for g in gradients] == [1, 0]
        optimiser(gradients)
        assert (used.asnumpy() == 0.25).all() and (unused.asnumpy() == 0.75).all()
        assert (ms.grad(lambda x: total(used))(ONES).full() == 0).all()
        stopped = ms.grad(lambda x: total(ms_ops.Mul()(ms_ops.stop_gradient(x), x)))(ONES)
        assert (stopped.full() == 1).all()
        assert (ms.grad(lambda x: total(ms_ops.stop_gradient(x)))(ONES).full() == 0).all()
        assert ms.grad(lambda ids: total(used))(np.ones(3, int)) is None
