"""Continue the programs of MindSpore's documents: train them with the functions that users add next.

spmdsim launch -n 8 examples/documents/operator_parallel_continued.py
python examples/documents/operator_parallel_continued.py --lockstep
"""

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
import chained_matmul
import layout_slices
import operator_parallel

import spmdsim.dialects.mindspore as ms
from spmdsim.dialects.mindspore import mint, nn, ops
from spmdsim.dialects.mindspore.common.initializer import initializer
from spmdsim.dialects.mindspore.communication import get_group_size, get_rank, init
from spmdsim.dialects.mindspore.parallel.auto_parallel import AutoParallel


def by_slices(steps=4):
    """Train a weight, split by the derivation's layout, towards ones; return the weight and the losses."""
    ms.set_seed(1)
    (strategy,) = layout_slices.full
    weight = ms.Parameter(initializer(layout_slices.X, layout_slices.X.shape, ms.float32), name="weight")
    ones, multiply, loss_fn = ops.ones(weight.shape), ops.Mul().shard((strategy, strategy)), nn.MSELoss()
    grad_fn = ms.value_and_grad(lambda x: loss_fn(multiply(weight, x), x), None, [weight])
    optimizer, losses = nn.SGD([weight], 2.0), []
    for _ in range(steps):
        loss, grads = grad_fn(ones)
        optimizer(grads)
        losses.append(float(loss))
    return weight, losses


def chain(steps=20):
    """Train the two chained products towards given results; return the losses."""
    ms.set_seed(1)
    n = get_group_size()
    net = chained_matmul.Chain(((n, 1), (1, 1)), ((1, n), (n, 1)))
    optimizer, loss_fn = nn.Adam(net.trainable_params(), 1e-2), nn.MSELoss()
    grad_fn = ms.value_and_grad(lambda x, y: loss_fn(net(x), y), None, optimizer.parameters)

    def train_step(x, y):
        loss, grads = grad_fn(x, y)
        optimizer(grads)
        return loss

    parallel_net = AutoParallel(train_step)
    parallel_net.dataset_strategy("full_batch")
    x = np.arange(32 * 64, dtype=np.float32).reshape(32, 64) / 2048
    y = x[:, :16] * 2
    return [float(parallel_net(x, y)) for _ in range(steps)]


def tutorial(steps=12):
    """Train the tutorial's network; return the losses, the accuracy, and the cuts of each parameter.

    The training has momentum and smoothed labels. Each rank reads all rows, and parameters are split over replicas.
    """
    ms.set_seed(1)
    data_set = operator_parallel.create_dataset(32)
    net = operator_parallel.Network()
    optimizer = nn.Momentum(net.trainable_params(), 2e-2, 0.9)
    loss_fn = nn.CrossEntropyLoss(label_smoothing=0.1)
    grad_fn = ms.value_and_grad(lambda x, y: loss_fn(net(x), y), None, optimizer.parameters)

    def train_step(x, y):
        loss, grads = grad_fn(x, y)
        optimizer(grads)
        return loss

    parallel_net = AutoParallel(train_step)
    parallel_net.dataset_strategy("full_batch")
    parallel_net.hsdp()
    losses, right, image_count = [], 0, 0
    for image, label in data_set.take(steps):
        losses.append(float(parallel_net(image, label)))
    for image, label in data_set.take(4):
        predictions = mint.argmax(net(image), dim=1).asnumpy()
        right, image_count = right + int((predictions == label).sum()), image_count + len(label)
    cuts = {p.name: p.layout.cuts for p in net.trainable_params()}
    return losses, right / image_count, cuts


def main():
    """Run all three programs and print their losses."""
    init()
    weight, halved = by_slices()
    chained = chain()
    losses, accuracy, cuts = tutorial()
    if get_rank() == 0:
        print("a weight in slices: loss", *halved, "on", weight.layout.placement_text())
        print("chained products: loss %.4f -> %.4f" % (chained[0], chained[-1]))  # noqa: UP031
        print("tutorial: loss %.4f -> %.4f, right %.2f" % (losses[0], losses[-1], accuracy))  # noqa: UP031
        print("kept in pieces:", cuts)


if __name__ == "__main__":
    if "--lockstep" in sys.argv:
        from spmdsim import LockStep
        from spmdsim.dialects.session import use_world

        with use_world(LockStep(8)):
            main()
    else:
        main()
