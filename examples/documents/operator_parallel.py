"""Operator-level parallel training as in MindSpore's tutorial: only the import lines are different.

    spmdsim launch -n 8 --log-dir log_output examples/documents/operator_parallel.py
    python examples/documents/operator_parallel.py --lockstep      without MPI

DATA_PATH names a folder with MNIST's IDX files, such as mnist_files.py writes; without it the package's handwritten digits
are used. loss_column.py prints the losses beside the tutorial's, for several settings.

A training step is eight times the single process's: with MindSpore's defaults each of the eight ranks reads the same 32 rows,
and the gradients of their eight losses are summed. A comparison with NumPy needs the learning rate 8 * 1e-2; docs/losses.md
derives the factor.
"""

import os
import sys

import spmdsim.dialects.mindspore as ms
import spmdsim.dialects.mindspore.dataset as ds
from spmdsim.dialects.mindspore import nn, ops
from spmdsim.dialects.mindspore.common.initializer import initializer
from spmdsim.dialects.mindspore.communication import get_group_size, get_rank, init
from spmdsim.dialects.mindspore.nn.utils import no_init_parameters
from spmdsim.dialects.mindspore.parallel.auto_parallel import AutoParallel


def create_dataset(batch_size):
    dataset_path = os.getenv("DATA_PATH")
    dataset = ds.MnistDataset(dataset_path)
    image_transforms = [
        ds.vision.Rescale(1.0 / 255.0, 0),
        ds.vision.Normalize(mean=(0.1307,), std=(0.3081,)),
        ds.vision.HWC2CHW(),
    ]
    label_transform = ds.transforms.TypeCast(ms.int32)
    dataset = dataset.map(image_transforms, "image")
    dataset = dataset.map(label_transform, "label")
    dataset = dataset.batch(batch_size)
    return dataset


class Network(nn.Cell):
    def __init__(self):
        super().__init__()
        self.flatten = ops.Flatten()
        self.fc1_weight = ms.Parameter(initializer("normal", [28 * 28, 512], ms.float32))
        self.fc2_weight = ms.Parameter(initializer("normal", [512, 512], ms.float32))
        self.fc3_weight = ms.Parameter(initializer("normal", [512, 10], ms.float32))
        self.matmul1 = ops.MatMul().shard(((2, 4), (4, 1)))
        self.relu1 = ops.ReLU().shard(((4, 1),))
        self.matmul2 = ops.MatMul().shard(((1, 8), (8, 1)))
        self.relu2 = ops.ReLU().shard(((8, 1),))
        self.matmul3 = ops.MatMul()

    def construct(self, x):
        x = self.flatten(x)
        x = self.matmul1(x, self.fc1_weight)
        x = self.relu1(x)
        x = self.matmul2(x, self.fc2_weight)
        x = self.relu2(x)
        logits = self.matmul3(x, self.fc3_weight)
        return logits


def train(
    make_network=Network,
    epochs=1,
    steps=None,
    parallel_mode="semi_auto",
    learning_rate=1e-2,
    make_dataset=create_dataset,
    configure=lambda parallel_net: None,
):
    """Train the tutorial's network; return the losses. The parameters are settings that users change."""
    ms.set_context(mode=ms.GRAPH_MODE)
    ms.runtime.set_memory(max_size="28GB")
    init()
    ms.set_seed(1)
    data_set = make_dataset(32)

    with no_init_parameters():
        net = make_network()
        optimizer = nn.SGD(net.trainable_params(), learning_rate)
    loss_fn = nn.CrossEntropyLoss()

    def forward_fn(data, target):
        logits = net(data)
        loss = loss_fn(logits, target)
        return loss, logits

    grad_fn = ms.value_and_grad(forward_fn, None, optimizer.parameters)

    def train_step(inputs, targets):
        (loss_value, _), grads = grad_fn(inputs, targets)
        optimizer(grads)
        return loss_value

    parallel_net = AutoParallel(train_step, parallel_mode=parallel_mode)
    configure(parallel_net)

    losses = []
    for epoch in range(epochs):
        i = 0
        for image, label in data_set:
            if steps is not None and i >= steps:
                break
            loss_output = parallel_net(image, label)
            losses.append(float(loss_output))
            if i % 10 == 0:
                print("epoch: %s, step: %s, loss is %s" % (epoch, i, loss_output))  # noqa: UP031
            i += 1
    return losses


def run(make_network=Network, **options):
    """Train with the tutorial's settings; rank 0 first prints how large a step is. Returns the losses."""
    init()
    if get_rank() == 0:
        ranks = get_group_size()
        print(f"{ranks} ranks read the same rows, and MindSpore's defaults sum their {ranks} gradients:")
        print(f"a step is {ranks} times the single process's (docs/losses.md)")
    return train(make_network, **options)


if __name__ == "__main__":
    if "--lockstep" in sys.argv:
        from spmdsim import LockStep
        from spmdsim.dialects.session import use_world

        with use_world(LockStep(8)):
            run()
    else:
        run()
