"""Paddle's parallel embedding by ``paddle.distributed.split``. Only the import lines are different.

spmdsim launch -n 2 examples/documents/paddle_split.py
python examples/documents/paddle_split.py --lockstep
"""

import sys

import spmdsim.dialects.paddle as paddle
import spmdsim.dialects.paddle.distributed.fleet as fleet


def main():
    paddle.enable_static()
    paddle.set_device("gpu:%d" % paddle.distributed.ParallelEnv().dev_id)  # noqa: UP031
    fleet.init(is_collective=True)
    data = paddle.randint(0, 8, shape=[10, 4])
    emb_out = paddle.distributed.split(data, (8, 8), operation="embedding", num_partitions=2)
    return data, emb_out


if __name__ == "__main__":
    if "--lockstep" in sys.argv:
        from spmdsim import LockStep
        from spmdsim.dialects.session import use_world

        with use_world(LockStep(2)):
            print(main()[1])
    else:
        print(main()[1])
