"""Einsum equals numpy for broadcasting sizes, implied results, repeated letters and lists of labels.

Gradients are checked, too.
"""

from __future__ import annotations

import numpy as np
import pytest

from spmdsim import Mesh, Tensor, check_gradient, ops, record
from spmdsim.errors import RuleError, UsageTypeError

CASES = [
    ("ij,jk", (3, 4), (4, 5)),
    ("ba,ac", (3, 4), (4, 5)),
    ("i,i", (6,), (6,)),
    ("bij,bjk->bik", (1, 3, 4), (2, 4, 5)),
    ("bij,bjk->bik", (2, 3, 4), (1, 4, 5)),
    ("bij,bjk->bik", (1, 3, 4), (1, 4, 5)),
    ("ij,jk->ik", (3, 1), (4, 5)),
    ("ij,jk->ik", (3, 4), (1, 5)),
    ("ij,ij", (1, 4), (3, 1)),
    ("...ij,...jk", (2, 3, 1), (1, 2, 5)),
    ("i...,i...->...", (1, 4), (3, 1)),
    ("ij,jk->ik", (3, 0), (1, 5)),
    ("ii", (4, 4)),
    ("ii->i", (4, 4)),
    ("ijj->ji", (3, 4, 4)),
    ("iij,jk->ik", (4, 4, 3), (3, 2)),
    ("i...i", (4, 2, 4)),
    ("...ii->...i", (2, 4, 4)),
    ("iiii->i", (3, 3, 3, 3)),
    ("ijij,j->i", (2, 3, 2, 3), (1,)),
    (" i j , j -> i ", (3, 4), (4,)),
    ("ab,ba->", (3, 4), (4, 3)),
]


def arrays_of(shapes):
    rng = np.random.default_rng(len(shapes))
    return [rng.integers(-4, 5, shape).astype(float) for shape in shapes]


@pytest.mark.ranks(4)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_equations_equal_numpy(case, world):
    equation, *shapes = case
    mesh, arrays = Mesh((2, 2), ("a", "b")), arrays_of(shapes)
    for turn in (0, 1):
        axes = ("a", "b", None, None, None)[turn:]
        xs = [Tensor.from_global(x, mesh(*axes[: x.ndim]), world) for x in arrays]
        expected = np.einsum(equation, *arrays)
        np.testing.assert_array_equal(ops.einsum(equation, *xs).full(), expected)
        np.testing.assert_array_equal(np.einsum(equation, *xs).full(), expected)
    if 0 not in np.concatenate(shapes):
        assert check_gradient(lambda *operands: ops.einsum(equation, *operands), *xs)


LISTS = [
    ([0, 1], [1, 2], [0, 2]),
    ([0, 1], [1, 2]),
    ([30, 1], [1, 20]),
    ([..., 1], [1, 2]),
    ([0, 0], [0, 2], [2]),
]


@pytest.mark.ranks(2)
@pytest.mark.parametrize("labels", LISTS, ids=str)
def test_einsum_takes_lists_of_labels(labels, world):
    mesh, (a, b) = Mesh((2,), ("x",)), arrays_of([(4, 4), (4, 4)])
    x, y = Tensor.from_global(a, mesh("x", None), world), Tensor.from_global(b, mesh(None, "x"), world)
    first, second, *result = labels
    expected = np.einsum(a, first, b, second, *result)
    for function in (ops.einsum, np.einsum):
        np.testing.assert_array_equal(function(x, first, y, second, *result).full(), expected)


@pytest.mark.ranks(2)
def test_a_dim_that_broadcasts_is_not_repeated(world):
    layout = Mesh((2,), ("x",))(None, "x")
    x, y = (Tensor.from_global(np.ones(shape), layout, world) for shape in ((1, 6), (5, 6)))
    with record() as trace:
        z = ops.einsum("bi,bi->b", x, y)
    assert z.layout.placement_text() == "P(sum)" and not trace.nbytes()
    np.testing.assert_array_equal(z.full(), np.full(5, 6.0))


@pytest.mark.ranks(2)
def test_wrong_equations_are_refused(world):
    x = Tensor.from_global(np.ones((4, 3)), Mesh((2,), ("x",))("x", None), world)
    for call, message in [
        (lambda: ops.einsum("ij,jk->ik", x, x), "j"),
        (lambda: ops.einsum("ij,jk->ik", x), r"'ij,jk->ik' has 2 terms for 1 operand$"),
        (lambda: ops.einsum("ii", x), r"^einsum: 'i' is 4 and 3 in shape \(4, 3\)"),
        (lambda: ops.einsum(x, [0, 60]), "labels are whole numbers from 0 to 51, or ..., but got 60"),
        (lambda: ops.einsum("ij->->i", x), "einsum takes terms such as"),
        (lambda: ops.einsum("i1->i", x), "einsum terms are letters"),
        (lambda: ops.einsum("ij->iz", x), "z"),
    ]:
        with pytest.raises(RuleError, match=message):
            call()
    for call in (lambda: ops.einsum(x, x), lambda: np.einsum(x, "ij", x, "ij")):
        with pytest.raises(
            UsageTypeError, match=r"operands each followed by a list of labels, such as einsum\(x, \[0, 1\]"
        ):
            call()
