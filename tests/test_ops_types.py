"""Every public operator on every element type, and on every pair of them: values and types against numpy.

Operands are split so that a rank holds no elements and another one is outside the mesh; the tensor says the type that
all its arrays have, in every world.
"""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import numpy as np
import pytest
from operator_types import MESH, ROWS, TYPES, Row, expected, rounding, values

import spmdsim.ops as ops
from spmdsim import LockStep, ShapeOnly, Tensor
from spmdsim.errors import RuleError

WORLDS = LockStep(4), ShapeOnly(4)


def test_every_public_operator_has_a_row():
    assert set(ROWS) == set(ops.__all__)


def run(row: Row, arrays: list[np.ndarray], world: Any, split: int | None) -> Tensor:
    layout = MESH(*["a" if dim == split else None for dim in range(2)])
    return row.call(*[Tensor.from_global(x, layout, world) for x in arrays])


def check(name: str, row: Row, dtypes: tuple[np.dtype, ...], split: int | None) -> None:
    arrays = [values(dtype, row.shape, k) for k, dtype in enumerate(dtypes)]
    want = expected(row, name, arrays)
    if name == "padded_embedding":
        arrays[0][2::3] = 0
    where = f"{name} of {', '.join(d.name for d in dtypes)}, split {split}"
    if want is None or any(d.kind in row.refused for d in dtypes):
        for world in WORLDS:
            with pytest.raises(RuleError):
                raise AssertionError(f"{where} gives {run(row, arrays, world, split)}, numpy refuses")
        return
    found, shaped = (run(row, arrays, world, split) for world in WORLDS)
    assert found.dtype == want.dtype, f"{where}: {found.dtype}, numpy has {want.dtype}"
    assert {shard.dtype for shard in found.shards} == {found.dtype}, where
    assert (shaped.meta, shaped.shards[0].dtype) == (found.meta, found.dtype), where
    full = found.full()
    if want.dtype.kind in "biu":
        np.testing.assert_array_equal(full, want, where)
    else:
        wide = "c16" if want.dtype.kind == "c" else "f8"
        allowed = rounding([*dtypes, want.dtype])
        np.testing.assert_allclose(full.astype(wide), want.astype(wide), allowed, allowed, err_msg=where)


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if row.operands == 1])
def test_one_operand(name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for dtype, split in itertools.product(TYPES, (None, 0, 1)):
            check(name, ROWS[name], (dtype,), split)


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if row.operands == 2])
def test_two_operands(name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for a, b in itertools.product(TYPES, TYPES):
            check(name, ROWS[name], (a, b), split=0)
        for dtype, split in itertools.product(TYPES, (None, 1)):
            check(name, ROWS[name], (dtype, np.dtype("f4")), split)
