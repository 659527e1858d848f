"""Repeated calls give equal results, and traces and gradients contain each of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from spmdsim import LockStep, Mesh, Tensor, ops, record
from spmdsim.errors import SpmdError

MESH = Mesh((1,), ("x",))
VALUES = np.arange(24, dtype=np.float32).reshape(4, 6)
CALLS: dict[str, Callable[[Any], Any]] = {
    "T": lambda x: x.T,
    "reshape": lambda x: x.reshape(8, 3),
    "reshape of the rest": lambda x: x.reshape((2, -1)),
    "rows": lambda x: x[1:3],
    "columns": lambda x: x[:, 2:4],
    "every other": lambda x: x[::2],
    "turned": lambda x: x[::-1],
    "a row": lambda x: x[2],
    "the last row": lambda x: x[-1],
    "an element": lambda x: x[1, 2],
    "a column in front": lambda x: x[None, :, 0],
    "a new dim": lambda x: x[1:2, None],
    "nothing": lambda x: x[3:3],
}


def tensor(world: LockStep | None = None, **options: Any) -> Tensor:
    return Tensor.from_global(VALUES, MESH(None, None), world or LockStep(1), **options)


@pytest.mark.parametrize("name", CALLS)
def test_repeated_views_equal_numpy(name: str) -> None:
    x, call = tensor(), CALLS[name]
    for _ in range(3):
        y = call(x)
        np.testing.assert_array_equal(y.full(), call(VALUES))
        assert y.shape == call(VALUES).shape and y.dtype == np.float32
    np.testing.assert_array_equal(call(x + 1).full(), call(VALUES + 1))
    assert call(tensor(x.world)).meta is y.meta


def test_vectors_are_indexed_repeatedly() -> None:
    x = Tensor.from_global(VALUES[0], MESH("x"), LockStep(1))
    for _ in range(2):
        assert x[2].item() == 2 and x[1:3].shape == (2,)
        np.testing.assert_array_equal(x[:, None].full(), VALUES[0][:, None])


def test_repeated_calls_are_recorded_and_have_gradients() -> None:
    x = tensor()
    for _ in range(2):
        _ = x.T, x[1:3]
    with record() as trace:
        _ = x.T, x[1:3]
    assert [event.name for event in trace.operators] == ["transpose", "slice"]
    leaf = tensor(x.world, requires_grad=True)
    leaf[1:3].sum().backward()
    assert leaf.grad is not None
    assert leaf.grad.full().sum(axis=1).tolist() == [0, 6, 6, 0]


class Watched(LockStep):
    """World that shares the cache of another world and appends the collective of each step to ``calls``."""

    def __init__(self, inner: LockStep, calls: list[str]) -> None:
        super().__init__(inner.size)
        self.cache, self.variant, self.calls = inner.cache, (self,), calls

    def run(self, step: Any, shards: Any, algorithm: str | None = None) -> list[Any]:
        """Append the collective of the step and run it; see ``World.run``."""
        self.calls.append(step.collective)
        return super().run(step, shards, algorithm)


def test_another_world_with_equal_memory_runs_its_steps() -> None:
    inner = LockStep(1)
    x, calls = tensor(inner), []
    for _ in range(2):
        _ = x[1:3]
    y = Tensor(Watched(inner, calls), x.meta, x.stored_shards)
    for _ in range(2):
        _ = y[1:3]
    assert calls == ["window"] * 2


def test_numbers_equal_to_a_valid_size_are_still_refused() -> None:
    x = tensor()
    for _ in range(2):
        _ = x.reshape(8, 3)
    with pytest.raises(SpmdError, match="are integers"):
        x.reshape(8.0, 3)  # type: ignore[arg-type]
    with pytest.raises(SpmdError, match="has 24 elements"):
        x.reshape(8, 4)
    with pytest.raises(SpmdError, match="out of range"):
        x[4]


def test_numbers_beside_tensors_keep_sign_and_type() -> None:
    x = tensor()
    for _ in range(2):
        assert np.signbit(ops.copysign(x, -0.0).full()).all()
        assert not np.signbit(ops.copysign(x, 0.0).full()).any()
        assert (x * 2).dtype == np.float32 and (x > 0).full().sum() == 23
        integers = Tensor.from_global(VALUES.astype(np.int32), MESH(None, None), x.world)
        assert (integers * 2).dtype == np.int32 and (integers * 2.0).dtype == np.float64
        assert (integers * True).dtype == np.int32
    y = ops.add(x, 1)
    y += 1  # The cached number must not change.
    np.testing.assert_array_equal(ops.add(x, 1).full(), VALUES + 1)


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("dims", [None, 0, (0, 1), -1])
def test_repeated_reductions_equal_numpy(dims: Any, keepdims: bool) -> None:
    x = tensor()
    for name in ("sum", "max", "min"):
        for _ in range(2):
            y, expected = getattr(x, name)(dims, keepdims), getattr(VALUES, name)(dims, keepdims=keepdims)
            np.testing.assert_array_equal(y.full(), expected)
            assert y.shape == expected.shape and y.dtype == expected.dtype
