"""MatMul under every kind of strategy: each mesh axis splits m, k or n, or repeats the work."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from spmdsim.cases.case import Case, PreparedCase
from spmdsim.cases.inputs import Inputs, Source
from spmdsim.core import Layout, Mesh
from spmdsim.errors import InputError
from spmdsim.ops import matmul
from spmdsim.tensor import Tensor
from spmdsim.worlds.base import World

FACTORS = ("m", "k", "n")

#: What each axis does, by the number of axes; ``-`` repeats. A trailing ``>m`` scatters the sum over m.
KINDS: dict[int, tuple[str, ...]] = {
    1: ("m", "n", "k", "k >m", "-"),
    2: ("m n", "n m", "m k", "k n", "m k >m", "k n >m", "k k", "m m", "m -", "- k", "n -"),
    3: ("m k n", "m k n >m", "k m n", "m m k", "m - k", "k k k", "m n -"),
}


def matmul_cases(mesh: Mesh, inputs: Inputs) -> Iterator[Case]:
    """The kinds of strategies for a mesh of this many axes."""
    for kind in KINDS[len(mesh.axes)]:
        words = kind.split()
        scatter = words[-1] == ">m"
        yield matmul_case(mesh, words[: len(mesh.axes)], scatter, inputs)


def all_matmul_cases(mesh: Mesh, inputs: Inputs) -> Iterator[Case]:
    """Every assignment of axes to factors, with all_reduce and with reduce_scatter."""
    for words in itertools.product((*FACTORS, "-"), repeat=len(mesh.axes)):
        yield matmul_case(mesh, words, False, inputs)
        if "k" in words:
            yield matmul_case(mesh, words, True, inputs)


def matmul_case(mesh: Mesh, words: Sequence[str], scatter: bool, inputs: Inputs) -> Case:
    """The case in which axis i of the mesh does ``words[i]``."""
    axes = {f: tuple(a for a, w in zip(mesh.axes, words) if w == f) for f in FACTORS}
    rows = (*axes["m"], *axes["k"]) if scatter else axes["m"]
    layouts = (mesh(axes["m"], axes["k"]), mesh(axes["k"], axes["n"]), mesh(rows, axes["n"]))
    return layout_case(layouts[0], layouts[1], layouts[2], _label(axes, scatter), inputs)


def layout_case(x: Layout, w: Layout, out: Layout | None, label: str, inputs: Inputs) -> Case:
    """MatMul of operands laid out like this; the result as computed if ``out`` is None."""

    def build(world: World, inputs: Inputs) -> PreparedCase:
        def run(left: Tensor, right: Tensor) -> Tensor:
            y = matmul(left, right)
            return y.to(y.layout.reduced if out is None else out)

        operands = Tensor.from_global(inputs.x, x, world), Tensor.from_global(inputs.w, w, world)
        return PreparedCase(operands, run, Product(inputs.x, inputs.w))

    return Case("matmul", x.mesh, label, build, inputs)


def _label(axes: dict[str, tuple[str, ...]], scatter: bool) -> str:
    names = {"m": "row", "n": "column", "k": "contraction"}
    kinds = [names[f] for f in FACTORS if axes[f]]
    text = " x ".join(kinds) or "replicated"
    if axes["k"]:
        text += ", reduce_scatter" if scatter else ", all_reduce"
    split = " ".join(f"{f}:{'.'.join(axes[f])}" for f in FACTORS if axes[f])
    return f"{text} ({split})" if split else text


class Product:
    """``x @ w`` block by block, by plain numpy: the rows and columns that a block needs, nothing else."""

    def __init__(self, x: Source, w: Source) -> None:
        self.x, self.w = x, w

    def operands(self, index: tuple[slice, ...]) -> tuple[np.ndarray, np.ndarray]:
        """Rows of x and columns of w."""
        return self.x[index[0], slice(0, self.x.shape[1])], self.w[slice(0, self.w.shape[0]), index[1]]

    def __call__(self, index: tuple[slice, ...]) -> tuple[Callable[..., np.ndarray], tuple[np.ndarray, ...]]:
        """The function that gives the block, and its operands."""
        return np.matmul, self.operands(index)


def parse_strategy(text: str, mesh: Mesh) -> tuple[list[str], bool]:
    """Read ``"m:dp k:tp"``, with ``>m`` at the end for a reduce_scatter.

    Raises:
        InputError: an unknown factor or axis, or an axis used twice.
    """
    words = text.split()
    scatter = ">m" in words
    factors: dict[str, str] = {}
    for word in words:
        if word == ">m":
            continue
        factor, _, names = word.partition(":")
        if factor not in FACTORS or not names:
            raise InputError(
                f"a strategy is written like 'm:dp k:tp >m', but {word!r} is not 'm:', 'k:' or 'n:'"
            )
        for axis in names.split("."):
            mesh.axis_index(axis)
            if axis in factors:
                raise InputError(f"axis {axis!r} is used twice in the strategy {text!r}")
            factors[axis] = factor
    return [factors.get(axis, "-") for axis in mesh.axes], scatter
