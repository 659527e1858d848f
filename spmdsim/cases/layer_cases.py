"""Parallel Embedding, column- and row-parallel Linear, and the chain that saves a gather."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from spmdsim.cases.case import Case, PreparedCase
from spmdsim.cases.inputs import Inputs
from spmdsim.cases.matmul import Product
from spmdsim.core import Layout, Mesh
from spmdsim.layout.blocks import largest_block
from spmdsim.ops import embedding, linear, matmul, padded_embedding, relu
from spmdsim.tensor import Tensor
from spmdsim.worlds.base import World


def embedding_cases(mesh: Mesh, inputs: Inputs) -> Iterator[Case]:
    """The table split by rows (zeros and a reduction, owned rows, padding rows), by columns, and ids beside it."""
    axis, others = mesh.axes[-1], mesh.axes[:-1]
    ids = mesh(others or None)
    out = mesh(others or None, None)
    yield _lookup("vocabulary-split, all_reduce", mesh, ids, mesh(axis, None), out, inputs)
    if not others:
        scattered = mesh(axis, None)
        yield _lookup("vocabulary-split, reduce_scatter", mesh, ids, mesh(axis, None), scattered, inputs)
    yield _lookup("vocabulary-split, owned rows", mesh, ids, mesh(axis, None), out, inputs, owned=True)
    split = mesh((*others, axis), None)
    yield _lookup(
        "vocabulary-split, owned rows, scattered", mesh, ids, mesh(axis, None), split, inputs, owned=True
    )
    yield _padded(mesh, ids, mesh(axis, None), out, inputs)
    column = mesh(None, axis)
    yield _lookup("column-split", mesh, ids, column, mesh(others or None, axis), inputs)
    yield _lookup("column-split, gather_out", mesh, ids, column, out, inputs)


def _lookup(
    label: str, mesh: Mesh, ids: Layout, table: Layout, out: Layout, inputs: Inputs, owned: bool = False
) -> Case:
    def build(world: World, inputs: Inputs) -> PreparedCase:
        operands = Tensor.from_global(inputs.ids, ids, world), Tensor.from_global(inputs.table, table, world)
        if owned:
            run = partial(embedding, layout=out, rows="owned")
            return PreparedCase(operands, run, _rows(inputs), 0, ids=inputs.ids.__getitem__)
        return PreparedCase(operands, lambda *given: embedding(*given).to(out), _rows(inputs), 0)

    return Case("embedding", mesh, label, build, inputs)


def _padded(mesh: Mesh, ids: Layout, layout: Layout, out: Layout, inputs: Inputs) -> Case:
    """Every rank's part of the table ends in a zero row, where the ids of other ranks are looked up."""
    parts = mesh.axis_size(mesh.axes[-1])

    def build(world: World, inputs: Inputs) -> PreparedCase:
        rows, width = largest_block(inputs.table.shape[0], parts), inputs.table.shape[1]

        def padded(index: tuple[slice, ...]) -> np.ndarray:
            numbers = np.arange(index[0].start, index[0].stop)
            real = numbers - numbers // (rows + 1)
            block = np.zeros((len(numbers), len(range(*index[1].indices(width)))), inputs.dtype)
            keep = (numbers % (rows + 1) != rows) & (real < inputs.table.shape[0])
            if keep.any():
                first, last = int(real[keep][0]), int(real[keep][-1])
                block[keep] = inputs.table[slice(first, last + 1), index[1]]
            return block

        tokens, shape = Tensor.from_global(inputs.ids, ids, world), (parts * (rows + 1), width)
        table = Tensor.from_global(padded, layout, world, shape=shape, dtype=inputs.dtype)
        return PreparedCase(
            (tokens, table), lambda *given: padded_embedding(*given).to(out), _rows(inputs), 0
        )

    return Case("embedding", mesh, "vocabulary-split, padding row, all_reduce", build, inputs)


def _rows(inputs: Inputs) -> Callable[[tuple[slice, ...]], np.ndarray]:
    def block(index: tuple[slice, ...]) -> np.ndarray:
        ids = inputs.ids[(index[0],)]
        table = inputs.table[slice(0, inputs.table.shape[0]), index[1]]
        array: np.ndarray = table[ids]
        return array

    return block


def linear_cases(mesh: Mesh, inputs: Inputs) -> Iterator[Case]:
    """Column- and row-parallel Linear with bias, with and without ``gather_out``, and the chain of both."""
    axis, others = mesh.axes[-1], mesh.axes[:-1]
    batch = others or None
    whole, split = mesh(batch, None), mesh(batch, axis)
    column, row = mesh(None, axis), mesh(axis, None)
    biases = mesh(axis), mesh(None)
    yield _linear("column, gather_out", whole, column, biases[0], whole, inputs)
    yield _linear("column, gather_out=False", whole, column, biases[0], split, inputs)
    yield _linear("row, gather_out", split, row, biases[1], whole, inputs)
    yield _linear("row, input not split yet", whole, row, biases[1], whole, inputs, take=split)
    yield _row_partial(split, row, inputs)
    if inputs.x.dtype.kind != "c":  # complex numbers have no ReLU
        yield _chain(whole, column, biases[0], row, inputs)


def _linear(
    label: str, x: Layout, w: Layout, b: Layout, out: Layout, inputs: Inputs, take: Layout | None = None
) -> Case:
    def build(world: World, inputs: Inputs) -> PreparedCase:
        operands = (
            Tensor.from_global(inputs.x, x, world),
            Tensor.from_global(inputs.w, w, world),
            Tensor.from_global(inputs.bias, b, world),
        )

        def run(given: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
            return linear(given if take is None else given.to(take), weight, bias).to(out)

        product = Product(inputs.x, inputs.w)

        def reference(index: tuple[slice, ...]) -> Any:
            return _affine, (*product.operands(index), inputs.bias[(index[1],)])

        return PreparedCase(operands, run, reference)

    return Case("linear", x.mesh, label, build, inputs)


def _row_partial(x: Layout, w: Layout, inputs: Inputs) -> Case:
    """``gather_out=False`` of a row-parallel Linear: the partial products, without bias, not yet reduced."""

    def build(world: World, inputs: Inputs) -> PreparedCase:
        operands = Tensor.from_global(inputs.x, x, world), Tensor.from_global(inputs.w, w, world)
        return PreparedCase(operands, matmul, Product(inputs.x, inputs.w))

    return Case("linear", x.mesh, "row, gather_out=False (partial, no bias)", build, inputs)


def _chain(x: Layout, column: Layout, bias: Layout, row: Layout, inputs: Inputs) -> Case:
    """Column-parallel, ReLU, row-parallel: what is split in between is never gathered."""

    def build(world: World, inputs: Inputs) -> PreparedCase:
        operands = (
            Tensor.from_global(inputs.x, x, world),
            Tensor.from_global(inputs.w, column, world),
            Tensor.from_global(inputs.bias, bias, world),
            Tensor.from_global(inputs.w2, row, world),
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
    array: np.ndarray = x @ w + b
    return array


def _two_layers(x: np.ndarray, w1: np.ndarray, b1: np.ndarray, w2: np.ndarray) -> np.ndarray:
    array: np.ndarray = np.maximum(_affine(x, w1, b1), 0) @ w2
    return array
