"""All cases for a number of ranks: the meshes that fit, and each operator's strategies on them."""

from __future__ import annotations

from collections.abc import Iterator

from spmdsim.cases.case import Case
from spmdsim.cases.inputs import Inputs
from spmdsim.cases.layer_cases import embedding_cases, linear_cases
from spmdsim.cases.matmul import all_matmul_cases, matmul_cases
from spmdsim.core import Mesh

OPERATORS = ("matmul", "embedding", "linear")
AXES = {1: ("tp",), 2: ("dp", "tp"), 3: ("dp", "sp", "tp")}


def meshes(size: int) -> list[Mesh]:
    """One mesh with one axis, all with two, and the most cubic one with three, as far as the number factors.

    >>> [mesh.shape for mesh in meshes(8)]
    [(8,), (2, 4), (4, 2), (2, 2, 2)]
    """
    pairs = [(a, size // a) for a in range(2, size) if size % a == 0]
    cubes = sorted(
        (a, b, size // (a * b))
        for a in range(2, size)
        for b in range(a, size)
        if size % (a * b) == 0 and size // (a * b) >= b
    )
    shapes = [(size,), *pairs, *cubes[-1:]]
    return [Mesh(shape, AXES[len(shape)]) for shape in shapes]


def catalogue(
    found: list[Mesh], inputs: Inputs, only: tuple[str, ...] = (), every: bool = False
) -> Iterator[Case]:
    """The cases of the main job.

    Args:
        found: the meshes.
        inputs: the data.
        only: operators to keep; all if empty.
        every: all assignments of axes for matmul, not one of each kind.
    """
    makers = {
        "matmul": all_matmul_cases if every else matmul_cases,
        "embedding": embedding_cases,
        "linear": linear_cases,
    }
    for name in only or OPERATORS:
        for mesh in found:
            yield from makers[name](mesh, inputs)
