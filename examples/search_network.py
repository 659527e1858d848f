"""A network whose layouts a search finds.

    spmdsim search examples/search_network.py -n 8 --run
    spmdsim launch -n 8 -m spmdsim search examples/search_network.py -n 8 --run      on real ranks

The network has a residual block with a norm, and a classifier. No line states how it is distributed.
"""

from spmdsim import ops

inputs = {"x": (64, 256), "labels": ((64,), "int64")}
parameters = {
    "fc1": (256, 1024),
    "bias1": (1024,),
    "fc2": (1024, 256),
    "bias2": (256,),
    "scale": (256,),
    "shift": (256,),
    "head": (256, 128),
}


def program(x, labels, fc1, bias1, fc2, bias2, scale, shift, head):
    """Return the loss of the network."""
    h = ops.gelu(ops.linear(x, fc1, bias1))
    h = ops.layer_norm(ops.add(x, ops.linear(h, fc2, bias2)), scale, shift)
    return ops.cross_entropy(ops.matmul(h, head), labels)
