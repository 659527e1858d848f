"""Train the network of the 2-D SBP document. Columns of the device array share the batch, rows share the weights.

python -m spmdsim.dialects.oneflow.distributed.launch --nproc_per_node 4 examples/documents/two_dimensional_sbp_training.py
spmdsim launch -n 4 --world lockstep examples/documents/two_dimensional_sbp_training.py
"""

import spmdsim.dialects.oneflow as flow
import spmdsim.dialects.oneflow.nn as nn

PLACEMENT = flow.placement("cpu", [[0, 1], [2, 3]])
BROADCAST = (flow.sbp.broadcast, flow.sbp.broadcast)
DATA = (flow.sbp.split(0), flow.sbp.broadcast)
COLUMNS = (flow.sbp.broadcast, flow.sbp.split(0))
ROWS = (flow.sbp.broadcast, flow.sbp.split(1))


def network():
    """Return the model with split weights.

    The weight of a ``Linear`` is [out, in]. In the first layer each rank of a row has half of the hidden columns.
    """
    model = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 2))
    model = model.to_global(placement=PLACEMENT, sbp=BROADCAST)
    model[0].to_global(placement=PLACEMENT, sbp=COLUMNS)
    model[2].weight = nn.Parameter(model[2].weight.to_global(sbp=ROWS))
    return model


def batches(steps):
    """Yield global batches of 16 points, labelled by the sign of their first coordinate."""
    for _ in range(steps):
        x = flow.randn(16, 8, placement=PLACEMENT, sbp=DATA)
        yield x, (x[:, 0] > 0).long()


def main(steps=60):
    """Train the model and print losses."""
    flow.manual_seed(1)
    model = network()
    print(model)
    loss_fn = nn.CrossEntropyLoss()
    optimizer = flow.optim.SGD(model.parameters(), lr=0.2, momentum=0.5)

    losses = []
    for step, (x, label) in enumerate(batches(steps)):
        loss = loss_fn(model(x), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if step % 20 == 0 and flow.env.get_rank() == 0:
            print(f"step {step}: loss {losses[-1]:.4f}")
    print(f"{flow.env.get_rank()}: {model[2].weight.to_local().shape} of the last weight,\n{model[2].weight}")
    return model, losses


if __name__ == "__main__":
    main()
