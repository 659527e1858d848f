"""OneFlow's 2-D SBP document: a model on a 2 x 2 device array. Only the import lines are different.

spmdsim launch -n 4 examples/documents/two_dimensional_sbp.py
python examples/documents/two_dimensional_sbp.py --lockstep
"""

import sys

import spmdsim.dialects.oneflow as flow
import spmdsim.dialects.oneflow.nn as nn


def main():
    PLACEMENT = flow.placement("cpu", [[0, 1], [2, 3]])
    BROADCAST = (flow.sbp.broadcast, flow.sbp.broadcast)
    BS0 = (flow.sbp.broadcast, flow.sbp.split(0))

    model = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 2))
    model = model.to_global(placement=PLACEMENT, sbp=BROADCAST)

    x = flow.randn(1, 2, 8)
    global_x = x.to_global(placement=PLACEMENT, sbp=BS0)
    pred = model(global_x)

    local_x = global_x.to_local()
    print(f"{local_x.device}, {local_x.shape}, \n{local_x}")
    return global_x, pred


if __name__ == "__main__":
    if "--lockstep" in sys.argv:
        from spmdsim import LockStep
        from spmdsim.dialects.session import use_world

        with use_world(LockStep(4)):
            main()
    else:
        main()
