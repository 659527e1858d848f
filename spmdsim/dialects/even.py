"""Which dim of a tensor a layout does not split evenly: several systems refuse such sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spmdsim.core import Layout


@dataclass(frozen=True)
class Uneven:
    """Dim ``dim`` has size ``size``, which ``parts`` parts (along ``axes``) cannot share evenly."""

    dim: int
    size: int
    parts: int
    axes: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"dim {self.dim} has size {self.size}, which cannot be split evenly into {self.parts} parts "
            f"(along {', '.join(self.axes)}); use a multiple of {self.parts}"
        )


def first_uneven(layout: Layout, shape: Sequence[int]) -> Uneven | None:
    """The first dim that does not divide, or None.

    >>> from spmdsim.core import Mesh
    >>> print(first_uneven(Mesh((2, 4), ("dp", "mp"))(None, "mp"), (3, 6)))
    dim 1 has size 6, which cannot be split evenly into 4 parts (along mp); use a multiple of 4
    """
    layout.check_shape(shape)
    for dim, (size, parts) in enumerate(zip(shape, layout.parts)):
        if size % parts:
            return Uneven(dim, size, parts, layout.dims[dim])
    return None
