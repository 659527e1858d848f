"""Catalogue of all cases for a number of ranks: the meshes that fit, and each operator's strategies on them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from spmdsim.arrays import Tensor
from spmdsim.arrays.ops import embedding, linear, matmul, padded_embedding, relu
from spmdsim.cases.case import Case, PreparedCase
from spmdsim.cases.inputs import Inputs, Source
from spmdsim.core import Layout, Mesh
from spmdsim.core.layout import largest_block
from spmdsim.errors import InputError
from spmdsim.worlds.base import World

# ---------------------------------------------------------------- matmul: each mesh axis splits m, k or n, or repeats the work

FACTORS = ("m", "k", "n")

#: Factor that each axis splits, by number of axes; ``-`` repeats the work. A trailing ``>m`` scatters the sum over m.
KINDS: dict[int, tuple[str, ...]] = {
    1: ("m", "n", "k", "k >m", "-"),
    2: ("m n", "n m", "m k", "k n", "m k >m", "k n >m", "k k", "m m", "m -", "- k", "n -"),
    3: ("m k n", "m k n >m", "k m n", "m m k", "m - k", "k k k", "m n -"),
}


def matmul_cases(mesh: Mesh, inputs: Inputs) -> Iterator[Case]:
    """Yield a case for each kind of strategy that :data:`KINDS` has for this number of axes."""
    for kind in KINDS[len(mesh.axes)]:
        words = kind.split()
        scatter = words[-1] == ">m"
        yield matmul_case(mesh, words[: len(mesh.axes)], scatter, inputs)


def all_matmul_cases(mesh: Mesh, inputs: Inputs) -> Iterator[Case]:
    """Yield a case per assignment of axes to factors, with all_reduce and with reduce_scatter."""
    for words in itertools.product((*FACTORS, "-"), repeat=len(mesh.axes)):
        yield matmul_case(mesh, words, False, inputs)
        if "k" in words:
            yield matmul_case(mesh, words, True, inputs)


def matmul_case(mesh: Mesh, words: Sequence[str], scatter: bool, inputs: Inputs) -> Case:
    """Return the case in which axis i of the mesh has the role ``words[i]``.

    Args:
        mesh: the mesh.
        words: per axis the factor that it splits, ``m``, ``k`` or ``n``, or ``-`` for repeated work.
        scatter: True to scatter the sum over k along the rows (m); False to give all ranks the sum.
        inputs: the data.
    """
    axes = {f: tuple(a for a, w in zip(mesh.axes, words) if w == f) for f in FACTORS}
    rows = (*axes["m"], *axes["k"]) if scatter else axes["m"]
    layouts = (mesh(axes["m"], axes["k"]), mesh(axes["k"], axes["n"]), mesh(rows, axes["n"]))
    return layout_case(layouts[0], layouts[1], layouts[2], _describe_strategy(axes, scatter), inputs)


def layout_case(
    x: Layout, w: Layout, out: Layout | None, label: str, inputs: Inputs, op: str = "matmul"
) -> Case:
    """Return a case that multiplies matrices ``inputs.x @ inputs.w`` in given layouts.

    Args:
        x: layout of the left operand, on the mesh of the case.
        w: layout of the right operand.
        out: layout of the result; None keeps the computed layout and only completes pending reductions.
        label: description of the strategy.
        inputs: the data.
        op: name of the operator in the table of cases; the case multiplies, whatever the name is.
    """

    def build(world: World, inputs: Inputs) -> PreparedCase:
        def run(left: Tensor, right: Tensor) -> Tensor:
            y = matmul(left, right)
            return y.to(y.layout.reduced if out is None else out)

        operands = _create_operands(world, (inputs.x, x), (inputs.w, w))
        return PreparedCase(operands, run, Product(inputs.x, inputs.w))

    return Case(op, x.mesh, label, build, inputs)


def _create_operands(world: World, *operands: tuple[Source, Layout]) -> tuple[Tensor, ...]:
    """Return the tensors of ``(source, layout)`` pairs."""
    return tuple(Tensor.from_global(source, layout, world) for source, layout in operands)


def _describe_strategy(axes: dict[str, tuple[str, ...]], scatter: bool) -> str:
    """Return a description of a product's strategy.

    An example is ``row x contraction, all_reduce (m:dp k:tp)``. It has the kinds of splits, the collective that
    sums (only if ``k`` is split), and the axes of each factor. If no axis splits a factor, it is ``replicated``.
    """
    names = {"m": "row", "n": "column", "k": "contraction"}
    kinds = [names[f] for f in FACTORS if axes[f]]
    text = " x ".join(kinds) or "replicated"
    if axes["k"]:
        text += ", reduce_scatter" if scatter else ", all_reduce"
    split = " ".join(f"{f}:{'.'.join(axes[f])}" for f in FACTORS if axes[f])
    return f"{text} ({split})" if split else text


class Product:
    """A reference for blocks of ``x @ w``, computed by plain NumPy from the rows and columns of the block."""

    def __init__(self, x: Source, w: Source) -> None:
        self.x, self.w = x, w

    def operands(self, index: tuple[slice, ...]) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows of x and the columns of w of a block."""
        return self.x[index[0], slice(0, self.x.shape[1])], self.w[slice(0, self.w.shape[0]), index[1]]

    def __call__(self, index: tuple[slice, ...]) -> tuple[Callable[..., np.ndarray], tuple[np.ndarray, ...]]:
        """Return the function that computes the block, and its operands."""
        return np.matmul, self.operands(index)


def parse_strategy(text: str, mesh: Mesh) -> tuple[list[str], bool]:
    """Parse the text of a strategy of a product ``[m, k] @ [k, n]``, such as ``"m:dp k:tp >m"``.

    A word has a factor (m, k or n) and the mesh axes that split it, with dots between, such as "m:dp.sp". The word
    ``>m`` scatters the sum over the rows. In the example, dp splits m, tp splits k, and sp splits nothing.

    Args:
        text: the strategy; an empty one splits nothing.
        mesh: the mesh whose axes it names.

    Returns:
        The factor of each mesh axis (``-`` for none), and True if the text has ``>m``.

    Raises:
        InputError: If a word is malformed, or an axis is used twice.
        LayoutError: If the mesh lacks an axis.

    >>> parse_strategy("m:dp k:tp >m", Mesh((2, 2, 2), ("dp", "sp", "tp")))
    (['m', '-', 'k'], True)
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
                f"a strategy must have words such as m:dp, k:tp or >m, got {word!r} in {text!r}; write, for "
                "example, 'm:dp k:tp >m'"
            )
        for axis in names.split("."):
            mesh.axis_index(axis)
            if axis in factors:
                raise InputError(
                    f"a strategy must use each axis once, got {axis!r} twice in {text!r}; remove one of the two"
                )
            factors[axis] = factor
    return [factors.get(axis, "-") for axis in mesh.axes], scatter


# ---------------------------------------------------------------- embedding and linear


def embedding_cases(mesh: Mesh, inputs: Inputs) -> Iterator[Case]:
    """Yield cases of an embedding whose table is split over the last axis of the mesh.

    The other axes split the ids. The table is split

    * by rows: ranks look up their rows, and reduce them with zeros for other ids; or exchange the rows that they own;
      or look up a zero row at the end of their shard for other ids;
    * by columns: each rank looks up its columns of all ids. The result stays split or is gathered.

    With rows, the result is replicated over the last axis. It is also scattered when ranks exchange rows, and on a
    mesh of one axis by a reduce_scatter.

    Args:
        mesh: the mesh.
        inputs: the data.
    """
    axis, others = mesh.axes[-1], mesh.axes[:-1]
    ids = mesh(others or None)
    out = mesh(others or None, None)
    yield _lookup_case("vocabulary-split, all_reduce", mesh, ids, mesh(axis, None), out, inputs)
    if not others:
        scattered = mesh(axis, None)
        yield _lookup_case("vocabulary-split, reduce_scatter", mesh, ids, mesh(axis, None), scattered, inputs)
    yield _lookup_case("vocabulary-split, owned rows", mesh, ids, mesh(axis, None), out, inputs, owned=True)
    split = mesh((*others, axis), None)
    yield _lookup_case(
        "vocabulary-split, owned rows, scattered", mesh, ids, mesh(axis, None), split, inputs, owned=True
    )
    yield _padded_case(mesh, ids, mesh(axis, None), out, inputs)
    column = mesh(None, axis)
    yield _lookup_case("column-split", mesh, ids, column, mesh(others or None, axis), inputs)
    yield _lookup_case("column-split, gather_out", mesh, ids, column, out, inputs)


def _lookup_case(
    label: str, mesh: Mesh, ids: Layout, table: Layout, out: Layout, inputs: Inputs, owned: bool = False
) -> Case:
    """Return the case of an embedding in these layouts.

    It copies rows, so the result must be equal to the reference.

    Args:
        label: description of the strategy.
        mesh: the mesh.
        ids: layout of the ids.
        table: layout of the table.
        out: layout of the result.
        inputs: the data.
        owned: True if ranks exchange the rows that they own; False if they reduce rows and zeros, and redistribute the
            result to ``out``.
    """

    def build(world: World, inputs: Inputs) -> PreparedCase:
        operands = _create_operands(world, (inputs.ids, ids), (inputs.table, table))
        if owned:
            run = partial(embedding, layout=out, rows="owned")
            return PreparedCase(operands, run, _lookup_reference(inputs), 0, ids=inputs.ids.__getitem__)
        return PreparedCase(
            operands, lambda *tensors: embedding(*tensors).to(out), _lookup_reference(inputs), 0
        )

    return Case("embedding", mesh, label, build, inputs)


def _padded_case(mesh: Mesh, ids: Layout, layout: Layout, out: Layout, inputs: Inputs) -> Case:
    """Return the case of an embedding in which every rank's shard ends in a zero row.

    A rank looks up this row for ids whose rows other ranks own, so that the sum over the ranks is right. The zero rows
    are added to the table of the data: for example, 6 rows on 2 ranks are 3 rows and a zero row each. The last shard
    has further zero rows if the table is not split evenly.

    Args:
        mesh: the mesh; its last axis splits the table.
        ids: layout of the ids.
        layout: layout of the table.
        out: layout of the result.
        inputs: the data.
    """
    parts = mesh.axis_size(mesh.axes[-1])

    def build(world: World, inputs: Inputs) -> PreparedCase:
        """Create a table whose shards end in a zero row each."""
        rows, width = largest_block(inputs.table.shape[0], parts), inputs.table.shape[1]

        def padded(index: tuple[slice, ...]) -> np.ndarray:
            """Return a block of the table with the zero rows."""
            padded_rows = np.arange(index[0].start, index[0].stop)
            # Each shard has `rows` rows of the table and a zero row, so the zero rows before a row are subtracted.
            table_rows = padded_rows - padded_rows // (rows + 1)
            block = np.zeros((len(padded_rows), len(range(*index[1].indices(width)))), inputs.dtype)
            is_in_table = (padded_rows % (rows + 1) != rows) & (table_rows < inputs.table.shape[0])
            if is_in_table.any():
                first, last = int(table_rows[is_in_table][0]), int(table_rows[is_in_table][-1])
                block[is_in_table] = inputs.table[slice(first, last + 1), index[1]]
            return block

        tokens, shape = Tensor.from_global(inputs.ids, ids, world), (parts * (rows + 1), width)
        table = Tensor.from_global(padded, layout, world, shape=shape, dtype=inputs.dtype)
        return PreparedCase(
            (tokens, table), lambda *tensors: padded_embedding(*tensors).to(out), _lookup_reference(inputs), 0
        )

    return Case("embedding", mesh, "vocabulary-split, padding row, all_reduce", build, inputs)


def _lookup_reference(inputs: Inputs) -> Callable[[tuple[slice, ...]], np.ndarray]:
    """Return a function that computes a block of a table lookup's expected result with NumPy.

    The function takes an index, a slice of ids and a slice of columns, and returns the block ``table[ids,
    columns]``.
    """

    def block(index: tuple[slice, ...]) -> np.ndarray:
        ids = inputs.ids[(index[0],)]
        table = inputs.table[slice(0, inputs.table.shape[0]), index[1]]
        array: np.ndarray = table[ids]
        return array

    return block


def linear_cases(mesh: Mesh, inputs: Inputs) -> Iterator[Case]:
    """Yield cases of column- and row-parallel Linear, and of a chain of both.

    The last axis splits the weights, the other axes the batch. The cases are:

    * column-parallel with bias, with and without ``gather_out``;
    * row-parallel with bias and ``gather_out``, for an input that is split already and for one that is split first;
    * row-parallel without bias and without ``gather_out``; the result stays partial;
    * column-parallel Linear with bias, ReLU, and row-parallel Linear without bias. Complex data have no such chain,
      because they have no ReLU.

    Args:
        mesh: the mesh.
        inputs: the data.
    """
    axis, others = mesh.axes[-1], mesh.axes[:-1]
    batch = others or None
    replicated, split = mesh(batch, None), mesh(batch, axis)
    column, row = mesh(None, axis), mesh(axis, None)
    biases = mesh(axis), mesh(None)
    yield _linear_case("column, gather_out", replicated, column, biases[0], replicated, inputs)
    yield _linear_case("column, gather_out=False", replicated, column, biases[0], split, inputs)
    yield _linear_case("row, gather_out", split, row, biases[1], replicated, inputs)
    yield _linear_case("row, input not split yet", replicated, row, biases[1], replicated, inputs, take=split)
    partial_sums = mesh(batch, None, partial=axis)
    yield layout_case(split, row, partial_sums, "row, gather_out=False (partial, no bias)", inputs, "linear")
    if inputs.x.dtype.kind != "c":  # complex numbers have no ReLU
        yield _chain_case(replicated, column, biases[0], row, inputs)


def _linear_case(
    label: str, x: Layout, w: Layout, b: Layout, out: Layout, inputs: Inputs, take: Layout | None = None
) -> Case:
    """Return the case of a Linear with bias, ``x @ w + b``.

    Args:
        label: description of the strategy.
        x: layout of the input.
        w: layout of the weight.
        b: layout of the bias.
        out: layout of the result, to which it is redistributed.
        inputs: the data.
        take: layout to which the input is redistributed first; None to take it as it is.
    """

    def build(world: World, inputs: Inputs) -> PreparedCase:
        """Create the operands and the reference."""
        operands = _create_operands(world, (inputs.x, x), (inputs.w, w), (inputs.bias, b))

        def run(batch: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
            return linear(batch if take is None else batch.to(take), weight, bias).to(out)

        product = Product(inputs.x, inputs.w)

        def reference(index: tuple[slice, ...]) -> Any:
            return _affine, (*product.operands(index), inputs.bias[(index[1],)])

        return PreparedCase(operands, run, reference)

    return Case("linear", x.mesh, label, build, inputs)


def _chain_case(x: Layout, column: Layout, bias: Layout, row: Layout, inputs: Inputs) -> Case:
    """Return the case of a column-parallel layer, ReLU and a row-parallel layer.

    The split array between the layers is never gathered. The second layer has no bias.

    Args:
        x: layout of input and result.
        column: layout of the first weight.
        bias: layout of its bias.
        row: layout of the second weight.
        inputs: the data.
    """

    def build(world: World, inputs: Inputs) -> PreparedCase:
        """Create the operands and the reference."""
        operands = _create_operands(
            world, (inputs.x, x), (inputs.w, column), (inputs.bias, bias), (inputs.w2, row)
        )

        def run(a: Tensor, w1: Tensor, b1: Tensor, w2: Tensor) -> Tensor:
            return linear(relu(linear(a, w1, b1)), w2).to(x)

        product = Product(inputs.x, inputs.w)
        columns = slice(0, inputs.w.shape[1])

        def reference(index: tuple[slice, ...]) -> Any:
            weights = inputs.bias[(columns,)], inputs.w2[columns, index[1]]
            return _two_layers, (*product.operands((index[0], columns)), *weights)

        return PreparedCase(operands, run, reference)

    return Case("linear", x.mesh, "column -> relu -> row, one all_reduce", build, inputs)


def _affine(x: np.ndarray, w: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Compute ``x @ w + b``."""
    array: np.ndarray = x @ w + b
    return array


def _two_layers(x: np.ndarray, w1: np.ndarray, b1: np.ndarray, w2: np.ndarray) -> np.ndarray:
    """Compute two layers with a ReLU between them."""
    array: np.ndarray = np.maximum(_affine(x, w1, b1), 0) @ w2
    return array


# ---------------------------------------------------------------- all of them


OPERATORS = ("matmul", "embedding", "linear")
AXES = {1: ("tp",), 2: ("dp", "tp"), 3: ("dp", "sp", "tp")}


def meshes(size: int) -> list[Mesh]:
    """Return meshes of a number of ranks with one, two and three axes.

    These are the mesh with one axis, all meshes with two axes, and the most cubic mesh with three axes. An axis
    has at least 2 ranks, so some numbers of ranks have no mesh of two or three axes. The axes are called as in
    :data:`AXES`.

    Args:
        size: the number of ranks.

    >>> [mesh.shape for mesh in meshes(8)], [mesh.shape for mesh in meshes(7)]
    ([(8,), (2, 4), (4, 2), (2, 2, 2)], [(7,)])
    """
    divisors = [a for a in range(2, size) if size % a == 0]
    pairs = [(a, size // a) for a in divisors]
    cubes = sorted(
        (a, b, size // (a * b))
        for a in divisors
        for b in divisors
        if a <= b and size % (a * b) == 0 and size // (a * b) >= b
    )
    # The last one in ascending order has the largest smallest axis, so it is the most cubic.
    shapes = [(size,), *pairs, *cubes[-1:]]
    return [Mesh(shape, AXES[len(shape)]) for shape in shapes]


def catalogue(
    meshes: list[Mesh], inputs: Inputs, only: tuple[str, ...] = (), every: bool = False
) -> Iterator[Case]:
    """Yield the cases of ``spmdsim run``, operator by operator, and mesh by mesh for each.

    Args:
        meshes: meshes to run on, of one to three axes.
        inputs: the data.
        only: names of operators, of :data:`OPERATORS`; empty for all. An unknown name raises KeyError.
        every: True to yield a case of matmul for every assignment of axes to factors; False for the kinds of
            :data:`KINDS` only.
    """
    makers = {
        "matmul": all_matmul_cases if every else matmul_cases,
        "embedding": embedding_cases,
        "linear": linear_cases,
    }
    for name in only or OPERATORS:
        for mesh in meshes:
            yield from makers[name](mesh, inputs)
