"""One of four processes that run PyTorch's DTensor over gloo, and write down what each of them holds."""

import itertools
import json
import os
import sys

MESHES = {"(4,)": (4,), "(2, 2)": (2, 2)}
SHAPES = [(8, 12), (5, 7), (1, 9), (4, 4)]
REDUCTIONS = ["sum", "max", "min", "product"]


def whole(shape):
    return [[float(i * 31 % 17 + j) for j in range(shape[1])] for i in range(shape[0])]


def main(folder):
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, told = dist.get_rank(), []
    for name, mesh_shape in MESHES.items():
        mesh = init_device_mesh("cpu", mesh_shape)
        every = list(itertools.product([Shard(0), Shard(1), Replicate()], repeat=len(mesh_shape)))
        for shape in SHAPES:
            x = torch.tensor(whole(shape))
            for placements in every:
                there = distribute_tensor(x, mesh, placements)
                told.append(["distribute", name, shape, repr(there.placements), there.to_local().tolist()])
        for reduction in REDUCTIONS:
            for placements in itertools.product(
                [Partial(reduction), Replicate(), Shard(0)], repeat=len(mesh_shape)
            ):
                if not any(p.is_partial() for p in placements):
                    continue
                rows = 8
                for size, placement in zip(mesh_shape, placements):
                    rows //= size if placement.is_shard() else 1
                seed = [mesh.get_coordinate()[k] for k, p in enumerate(placements) if not p.is_replicate()]
                mine = torch.tensor(whole((rows, 4))) + 1 + sum(3 * c * (k + 1) for k, c in enumerate(seed))
                there = DTensor.from_local(mine, mesh, placements)
                ends = [p if not p.is_partial() else Shard(1) for p in placements]
                told.append([
                    "partial", name, reduction, repr(placements), mine.tolist(), there.full_tensor().tolist(),
                    there.redistribute(mesh, ends).to_local().tolist(), repr(tuple(ends)),
                ])  # fmt: skip
        x = torch.tensor(whole((8, 12)))
        for one, two in itertools.product(every, repeat=2):
            moved = distribute_tensor(x, mesh, one).redistribute(mesh, two)
            told.append(["move", name, repr(one), repr(two), moved.to_local().tolist()])
    with open(os.path.join(folder, f"{rank}.json"), "w") as file:
        json.dump(told, file)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
