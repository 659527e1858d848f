"""Train the layers of Paddle's document: embedding, column-parallel and row-parallel. Only the imports are different.

The program is recorded once and run with each batch. A program for a single card with equal first values runs beside it.

spmdsim launch -n 2 examples/documents/paddle_training.py
python examples/documents/paddle_training.py --lockstep
"""

import sys

import numpy as np

import spmdsim.dialects.paddle as paddle
import spmdsim.dialects.paddle.distributed.fleet as fleet

WORDS, WIDTH, HIDDEN = 8, 8, 32


def parameter(name, shape):
    """Return the attribute of a parameter: its name and initial values."""
    rng = np.random.default_rng(sum(map(ord, name[-4:])))
    values = (rng.standard_normal(shape) / shape[0] ** 0.5).astype("float32")
    return paddle.ParamAttr(name=name, initializer=paddle.nn.initializer.Assign(values))


def split_network(ids):
    """Return the logits of the split network."""
    parts = paddle.distributed.get_world_size()
    split = paddle.distributed.split
    emb_out = split(ids, (WORDS, WIDTH), operation="embedding", num_partitions=parts,
                    weight_attr=parameter("split_emb", (WORDS, WIDTH)))  # fmt: skip
    hidden = split(emb_out, (WIDTH, HIDDEN), operation="linear", axis=1, num_partitions=parts, gather_out=False,
                   weight_attr=parameter("split_up_w", (WIDTH, HIDDEN)))  # fmt: skip
    return split(paddle.nn.functional.relu(hidden), (HIDDEN, WORDS), operation="linear", axis=0,
                 num_partitions=parts, weight_attr=parameter("split_down", (HIDDEN, WORDS)))  # fmt: skip


def single_network(ids):
    """Return the logits of the network on a single card."""
    embedding = paddle.nn.Embedding(WORDS, WIDTH, weight_attr=parameter("single_emb", (WORDS, WIDTH)))
    up = paddle.nn.Linear(WIDTH, HIDDEN, weight_attr=parameter("single_up_w", (WIDTH, HIDDEN)))
    down = paddle.nn.Linear(HIDDEN, WORDS, weight_attr=parameter("single_down", (HIDDEN, WORDS)))
    return down(paddle.nn.functional.relu(up(embedding(ids))))


def train(network, batches):
    """Train a network; return the losses."""
    main, startup = paddle.static.Program(), paddle.static.Program()
    with paddle.static.program_guard(main, startup):
        ids = paddle.static.data("ids", [None, 4], "int64")
        labels = paddle.static.data("labels", [None, 4], "int64")
        loss = paddle.nn.functional.cross_entropy(network(ids), labels)
        paddle.optimizer.Momentum(learning_rate=0.1, momentum=0.9).minimize(loss)
    exe = paddle.static.Executor()
    exe.run(startup)
    return [float(exe.run(main, feed={"ids": x, "labels": y}, fetch_list=[loss])[0]) for x, y in batches]


def main(steps=20):
    """Return the losses of the split network, and the losses of a single card."""
    paddle.enable_static()
    paddle.set_device("gpu:%d" % paddle.distributed.ParallelEnv().dev_id)  # noqa: UP031
    fleet.init(is_collective=True)
    rng = np.random.default_rng(0)
    drawn = [rng.integers(0, WORDS, (10, 4)) for _ in range(steps)]
    batches = [(ids, (3 * ids + 1) % WORDS) for ids in drawn]  # the next word is a function of the word
    losses, single = train(split_network, batches), train(single_network, batches)
    if paddle.distributed.get_rank() == 0:
        for step in range(0, steps, 5):
            print(f"step {step:2}  split {losses[step]:.4f}  single card {single[step]:.4f}")
        print(
            f"after {steps} steps {losses[-1]:.4f}, largest difference {max(map(abs, np.subtract(losses, single))):.1e}"
        )
    return losses, single


if __name__ == "__main__":
    if "--lockstep" in sys.argv:
        from spmdsim import LockStep
        from spmdsim.dialects.session import use_world

        with use_world(LockStep(2)):
            main()
    else:
        main()
