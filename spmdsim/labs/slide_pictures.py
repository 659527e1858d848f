"""Pictures of the slides: values of the library, which are drawn as SVG files beside the slides."""

from __future__ import annotations

import numpy as np

from spmdsim.arrays import Tensor
from spmdsim.auto_parallel.search import search
from spmdsim.collectives import schedule_of, unroll
from spmdsim.core import Layout, Mesh
from spmdsim.figures import figure
from spmdsim.redistribution import plan
from spmdsim.worlds import LockStep

#: Number of ranks of the pictures.
RANKS = 8


def draw_slide_pictures() -> dict[str, str]:
    """Return the SVG text of each picture by its file name, such as ``"lab1-blocks.svg"``."""
    world = LockStep(RANKS)
    mesh, line = Mesh((2, 4), ("dp", "tp")), Mesh((RANKS,), ("x",))

    def distribute(layout: Layout) -> Tensor:
        """Return the numbers 0 to 63 as an 8 x 8 tensor."""
        return Tensor.from_global(np.arange(64.0).reshape(8, 8), layout, world)

    values = {
        "lab1-blocks": distribute(mesh("dp", "tp")),
        "lab1-two-axes": distribute(mesh(("dp", "tp"), None)),
        "lab2-ring": unroll(schedule_of("all_reduce", "ring", 4)),
        "lab2-tree": unroll(schedule_of("broadcast", "binomial", RANKS)),
        "lab3-addends": distribute(mesh("dp", "tp")) @ distribute(mesh("tp", None)),
        "lab4-columns": distribute(line(None, None)) @ distribute(line(None, "x")),
        "lab4-rows": distribute(line(None, "x")) @ distribute(line("x", None)),
        "lab5-two-axes": distribute(mesh(None, "tp")) @ distribute(mesh("tp", "dp")),
        "lab6-rows-to-columns": plan(line("x", None), line(None, "x"), (8, 8)),
        "lab7-addends": distribute(line("x", None)).T @ distribute(line("x", None)),
        "lab8-strategies": search("mlp", RANKS, layers=2, hidden=256, batch=512),
        "lab9-ring": unroll(schedule_of("all_gather", "ring", 4)),
    }
    return {f"{name}.svg": figure(value).svg for name, value in values.items()}
