"""The two chained products of MindSpore's auto-parallel document, and what redistribution adds between them.

spmdsim launch -n 8 examples/documents/chained_matmul.py
python examples/documents/chained_matmul.py --lockstep
"""

import sys

import numpy as np

import spmdsim.dialects.mindspore as ms
from spmdsim import record
from spmdsim.dialects.mindspore import nn, ops
from spmdsim.dialects.mindspore.communication import get_group_size, get_rank, init


class Chain(nn.Cell):
    """Z = MatMul(X, W), O = MatMul(Z, Y)"""

    def __init__(self, first, second):
        super().__init__()
        self.w = ms.Parameter(ms.initializer("normal", [64, 32], ms.float32))
        self.y = ms.Parameter(ms.initializer("normal", [32, 16], ms.float32))
        self.matmul1 = ops.MatMul().shard(first)
        self.matmul2 = ops.MatMul().shard(second)

    def construct(self, x):
        z = self.matmul1(x, self.w)
        o = self.matmul2(z, self.y)
        return o


def main():
    init()
    n = get_group_size()
    ms.set_seed(1)
    x = np.arange(32 * 64, dtype=np.float32).reshape(32, 64) / 2048
    cases = {
        "(a) Z by rows, wanted whole": (((n, 1), (1, 1)), ((1, 1), (1, n))),
        "(b) Z by rows, wanted by columns": (((n, 1), (1, 1)), ((1, n), (n, 1))),
    }
    counts = {}
    for name, (first, second) in cases.items():
        net = Chain(first, second)
        with record() as trace:
            o = net(x)
        counts[name] = trace.counts()
        if get_rank() == 0:
            print(f"{name}: {trace.counts()}; O is {o}")
    return counts


if __name__ == "__main__":
    if "--lockstep" in sys.argv:
        from spmdsim import LockStep
        from spmdsim.dialects.session import use_world

        with use_world(LockStep(8)):
            main()
    else:
        main()
