"""The tutorial's second network: two device matrices, and a dim cut by two axes. Only imports are different.

spmdsim launch -n 8 --log-dir advanced_log_output examples/documents/advanced_operator_parallel.py
python examples/documents/advanced_operator_parallel.py --lockstep

A training step is eight times the single process's, as in operator_parallel.py.
"""

import sys

import spmdsim.dialects.mindspore as ms
from spmdsim.dialects.mindspore import Layout, nn, ops
from spmdsim.dialects.mindspore.common.initializer import initializer

try:
    from operator_parallel import run
except ModuleNotFoundError:  # started from another folder
    from pathlib import Path

    sys.path.insert(0, str(Path(__file__).parent))
    from operator_parallel import run


class Network(nn.Cell):
    """Network"""

    def __init__(self):
        super().__init__()
        self.flatten = ops.Flatten()
        self.fc1_weight = ms.Parameter(initializer("normal", [28 * 28, 512], ms.float32))
        self.fc2_weight = ms.Parameter(initializer("normal", [512, 512], ms.float32))
        self.fc3_weight = ms.Parameter(initializer("normal", [512, 10], ms.float32))
        layout = Layout((2, 2, 2), ("dp", "sp", "mp"))
        layout2 = Layout((8,), ("tp",))
        self.matmul1 = ops.MatMul().shard((layout("mp", ("sp", "dp")), layout(("sp", "dp"), "None")))
        self.relu1 = ops.ReLU().shard(((4, 1),))
        self.matmul2 = ops.MatMul().shard((layout2("None", "tp"), layout2("tp", "None")))
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


if __name__ == "__main__":
    if "--lockstep" in sys.argv:
        from spmdsim import LockStep
        from spmdsim.dialects.session import use_world

        with use_world(LockStep(8)):
            run(Network)
    else:
        run(Network)
