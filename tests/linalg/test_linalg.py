"""Linear algebra on split matrices equals numpy's values and gradients and gathers only small blocks."""

from __future__ import annotations

import numpy as np
import pytest
from every_layout import some_layouts
from operators import COMPOSED, SAMPLES

from spmdsim import Mesh, Tensor, fft, linalg, ops, record
from spmdsim.core import Layout
from spmdsim.errors import RuleError
from spmdsim.worlds import LockStep, ShapeOnly
from tests.ops.test_scans import layouts, tensor_of
from tests.ops.test_strategies import MESHES

pytestmark = pytest.mark.filterwarnings("ignore::spmdsim.redistribution.guard.GatheringWarning")


def normal(*shape: int, seed: int = 0, dtype: str = "f8") -> np.ndarray:
    rng = np.random.default_rng([seed, *shape])
    x = rng.normal(size=shape)
    return (x + 1j * rng.normal(size=shape) if dtype[0] == "c" else x).astype(dtype)


def positive(n: int, dtype: str = "f8") -> np.ndarray:
    x = normal(n, n, dtype=dtype)
    return x @ x.conj().T + n * np.eye(n)


def check_slopes(reference, operands, dys, grads, seed=7) -> None:
    """Check gradients against central differences along a random direction of all operands.

    Args:
        reference: The function in numpy.
        operands: Its operands.
        dys: One gradient per result, or None.
        grads: The gradients of the operands.
        seed: The seed of the direction.
    """
    rng = np.random.default_rng(seed)
    along = [
        rng.normal(size=x.shape) + (1j * rng.normal(size=x.shape) if x.dtype.kind == "c" else 0)
        for x in operands
    ]
    ends = []
    for step in (1e-6, -1e-6):
        results = reference(*[x + step * d for x, d in zip(operands, along)])
        results = results if isinstance(results, tuple) else (results,)
        ends.append(sum((np.conj(dy) * y).real.sum() for dy, y in zip(dys, results) if dy is not None))
    expected = (ends[0] - ends[1]) / 2e-6
    slope = sum((np.conj(g.full()) * d).real.sum() for g, d in zip(grads, along))
    assert slope == pytest.approx(expected, rel=1e-5, abs=1e-6)


def backward(results, dys, world) -> None:
    """Run the backward pass of one loss of all `results`, weighted by ``dys``, in a world."""
    total = None
    for y, dy in zip(results, dys):
        if dy is not None:
            weights = Tensor.from_global(np.conj(dy), Layout.replicated(y.layout.mesh, y.ndim), world)
            term = ops.sum(ops.multiply(y, weights))
            if term.dtype.kind == "c":
                term = ops.cast(term, np.float64)
            total = term if total is None else total + term
    total.backward()


def q_and_r(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return ``(q, r)`` of a matrix, with a positive diagonal of ``r``."""
    q, r = np.linalg.qr(x)
    sign = np.diagonal(r) / np.abs(np.diagonal(r))
    return q * sign, sign.conj()[:, None] * r


@pytest.mark.ranks(1, 3, 8)
@pytest.mark.parametrize("dtype", ["f8", "c16", "f4"])
def test_tall_matrices_are_factored_in_shards(world, dtype):
    """Shards may have fewer rows than columns, or none."""
    for shape in ((37, 5),) if dtype == "f4" else ((37, 5), (9, 4), (3, 1)):
        x = normal(*shape, dtype=dtype)
        close = {"rtol": 1e-4 if dtype == "f4" else 1e-10, "atol": 1e-5 if dtype == "f4" else 1e-12}
        for layout in layouts(world.size):
            t = tensor_of(x, layout, world)
            q, r = linalg.qr(t)
            expected = q_and_r(x)
            np.testing.assert_allclose(q.full(), expected[0], **close)
            np.testing.assert_allclose(r.full(), expected[1], **close)
            assert q.dtype == r.dtype == x.dtype
            np.testing.assert_allclose(linalg.svdvals(t).full(), np.linalg.svd(x)[1], **close)
            u, s, vh = linalg.svd(t, full_matrices=False)
            assert s.dtype == np.dtype(dtype).type(0).real.dtype
            np.testing.assert_allclose((u.full() * s.full()) @ vh.full(), x, **close)
            np.testing.assert_allclose(u.full().conj().T @ u.full(), np.eye(shape[1]), **close)
            # NumPy and the standard have full matrices by default.
            for matrix in (
                t,
                linalg.matrix_transpose(t),
            ):
                full = linalg.svd(matrix)
                assert [factor.shape for factor in full] == [
                    factor.shape for factor in np.linalg.svd(matrix.full())
                ]
                for basis in (full.U.full(), full.Vh.full()):
                    np.testing.assert_allclose(basis.conj().T @ basis, np.eye(len(basis)), **close)
            wide = linalg.svd(linalg.matrix_transpose(t), full_matrices=False)
            np.testing.assert_allclose((wide[0].full() * wide[1].full()) @ wide[2].full(), x.T, **close)
            if dtype != "f4":
                np.testing.assert_allclose(linalg.pinv(t).full(), np.linalg.pinv(x), rtol=1e-8, atol=1e-9)
                assert int(linalg.matrix_rank(t).full()) == shape[1]


@pytest.mark.ranks(4, 8)
def test_only_triangles_are_gathered(world):
    size, mesh = world.size, Mesh((world.size,), ("x",))
    x = normal(64, 6)
    with record() as trace:
        q, r = linalg.qr(tensor_of(x, mesh("x", None), world))
    assert trace.counts() == {"all_gather": 1}
    assert set(trace.collectives[0].planned) == {(size - 1) * 36 * 8}
    assert q.layout == mesh("x", None) and r.layout == mesh(None, None)
    with record() as predicted:
        linalg.qr(tensor_of(x, mesh("x", None), ShapeOnly(size)))
    assert predicted.collectives[0].step == trace.collectives[0].step
    with record() as trace:
        u, _, _ = linalg.svd(tensor_of(x, mesh("x", None), world), full_matrices=False)
    assert trace.counts() == {"all_gather": 1} and u.layout == mesh("x", None)
    with record() as trace:
        linalg.cholesky(tensor_of(positive(16), mesh("x", None), world))
    assert trace.counts() == {"all_gather": size}
    assert sum(event.planned[0] for event in trace.collectives) == 8 * 16 * 16 * (size - 1) // size


@pytest.mark.ranks(1, 3, 4)
@pytest.mark.parametrize("dtype", ["f8", "c16"])
def test_cholesky_by_panels_equals_numpy(world, dtype):
    for n in (1, 5, 8):
        x = positive(n, dtype)
        junk = x + np.triu(normal(n, n), 1)
        for layout in layouts(world.size):
            np.testing.assert_allclose(
                linalg.cholesky(tensor_of(junk, layout.reduced, world)).full(),
                np.linalg.cholesky(x),
                rtol=1e-9,
                atol=1e-12,
            )
            factor = linalg.cholesky(tensor_of(x, layout, world), upper=True).full()
            np.testing.assert_allclose(factor, np.linalg.cholesky(x).conj().T, rtol=1e-9, atol=1e-12)
            assert (
                linalg.cholesky(tensor_of(x, layout.reduced, world)).layout.split_axes
                == layout.reduced.split_axes
            )


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize("dtype", ["f8", "c16"])
def test_stacks_of_matrices_and_right_sides_equal_numpy(world, dtype):
    x, b = normal(4, 5, 5, dtype=dtype), normal(4, 5, 6, seed=1, dtype=dtype)
    h = x + np.conj(np.swapaxes(x, -1, -2))
    close = {"rtol": 1e-9, "atol": 1e-10}
    for layout in layouts(world.size, 3):
        t, u, v = tensor_of(x, layout, world), tensor_of(b, layout, world), tensor_of(h, layout, world)
        np.testing.assert_allclose(linalg.inv(t).full(), np.linalg.inv(x), **close)
        np.testing.assert_allclose(linalg.det(t).full(), np.linalg.det(x), **close)
        for element, expected in zip(linalg.slogdet(t), np.linalg.slogdet(x)):
            np.testing.assert_allclose(element.full(), expected, **close)
            assert element.dtype == expected.dtype
        np.testing.assert_allclose(linalg.solve(t, u).full(), np.linalg.solve(x, b), **close)
        np.testing.assert_allclose(linalg.eigvalsh(v).full(), np.linalg.eigvalsh(h), **close)
        values, vectors = linalg.eigh(v)
        np.testing.assert_allclose(
            (vectors * ops.reshape(values, (4, 1, 5))).full() @ np.linalg.inv(vectors.full()), h, **close
        )
        np.testing.assert_allclose(linalg.matrix_power(t, 3).full(), np.linalg.matrix_power(x, 3), **close)
        np.testing.assert_allclose(
            linalg.matrix_power(t, -2).full(), np.linalg.matrix_power(x, -2), rtol=1e-7, atol=1e-8
        )
        np.testing.assert_array_equal(linalg.matrix_power(t, 0).full(), np.linalg.matrix_power(x, 0))
    for layout in layouts(world.size, 1):
        solution = linalg.solve(
            tensor_of(x[0], Layout.replicated(layout.mesh, 2), world), tensor_of(b[0, :, 0], layout, world)
        )
        np.testing.assert_allclose(solution.full(), np.linalg.solve(x[0], b[0, :, 0]), **close)


@pytest.mark.ranks(1, 4, 8)
@pytest.mark.filterwarnings("error::spmdsim.redistribution.guard.GatheringWarning")
@pytest.mark.parametrize("dtype", ["f8", "c16", "f4"])
def test_systems_are_solved_without_gathering_the_matrix(world, dtype):
    """Pivots may be in other ranks' rows, and shards may have no rows; no rank receives all rows."""
    close = {"rtol": 1e-3, "atol": 1e-3} if dtype == "f4" else {"rtol": 1e-9, "atol": 1e-10}
    for n in (9,) if dtype == "f4" else (3, 9):
        x, b = normal(n, n, dtype=dtype), normal(n, 6, seed=1, dtype=dtype)
        x[0, 0] = 0
        for layout in layouts(world.size):
            t, u = tensor_of(x, layout, world), tensor_of(b, layout, world)
            np.testing.assert_allclose(linalg.solve(t, u).full(), np.linalg.solve(x, b), **close)
            np.testing.assert_allclose(linalg.solve(t, b[:, 0]).full(), np.linalg.solve(x, b[:, 0]), **close)
            np.testing.assert_allclose(linalg.inv(t).full(), np.linalg.inv(x), **close)
    if world.size == 8 and dtype == "f8":
        mesh = Mesh((8,), ("x",))
        t, u = (
            tensor_of(normal(32, 32), mesh("x", None), world),
            tensor_of(normal(32, 1, seed=1), mesh("x", None), world),
        )
        with record() as trace:
            y = linalg.solve(t, u)
        assert trace.counts() == {"all_gather": 8, "all_reduce": 24} and y.layout == mesh("x", None)
        singular = tensor_of(np.ones((8, 8)), mesh("x", None), world)
        with pytest.raises(np.linalg.LinAlgError, match="Singular"):
            linalg.solve(singular, np.ones(8))
        with pytest.raises(
            RuleError, match=r"b must have \d+ rows like a, got shape \(4, 1\) for a of shape"
        ):
            linalg.solve(singular, np.ones(4))


@pytest.mark.ranks(4)
def test_least_squares_and_eigenvalues_equal_numpy(world):
    mesh = Mesh((4,), ("x",))
    x, b = normal(11, 3), normal(11, 2, seed=1)
    for matrix, side in ((x, b), (x, b[:, 0]), (x[:, :1] * np.ones(3), b), (x.T, b[:3])):
        solution = linalg.lstsq(tensor_of(matrix, mesh("x", None), world), side)
        for element, expected in zip(solution, np.linalg.lstsq(matrix, side)):
            assert np.shape(element) == np.shape(expected)
            np.testing.assert_allclose(
                np.asarray(getattr(element, "full", lambda element=element: element)()), expected, atol=1e-10
            )
    square = normal(5, 5)
    values, vectors = linalg.eig(tensor_of(square, mesh("x", None), world))
    v = vectors.full()
    np.testing.assert_allclose(square @ v, v * values.full(), atol=1e-10)
    eigenvalues = linalg.eigvals(tensor_of(square, mesh("x", None), world)).full()
    np.testing.assert_allclose(
        np.sort_complex(eigenvalues), np.sort_complex(np.linalg.eigvals(square)), atol=1e-10
    )
    q, r = linalg.qr(tensor_of(x, mesh("x", None), world), "complete")
    np.testing.assert_allclose(q.full().T @ q.full(), np.eye(11), atol=1e-12)
    np.testing.assert_allclose(q.full() @ r.full(), x, atol=1e-12)
    assert (q.shape, r.shape) == ((11, 11), (11, 3))
    with pytest.raises(RuleError, match="qr with mode='complete' has no gradient"):
        linalg.qr(Tensor.from_global(x, mesh("x", None), world, requires_grad=True), "complete")
    tolerances = np.array([0.1, 0.9])
    stack = tensor_of(normal(2, 4, 3), mesh("x", None, None), world)
    expected = np.linalg.pinv(normal(2, 4, 3), rtol=tolerances)
    np.testing.assert_allclose(linalg.pinv(stack, rtol=tolerances).full(), expected, atol=1e-10)


@pytest.mark.ranks(4)
def test_columns_of_right_sides_stay_split(world):
    mesh = Mesh((4,), ("x",))
    with record() as trace:
        y = linalg.solve(
            tensor_of(normal(5, 5), mesh(None, None), world), tensor_of(normal(5, 8), mesh(None, "x"), world)
        )
    assert trace.counts() == {} and y.layout == mesh(None, "x")
    with record() as trace:
        linalg.inv(tensor_of(normal(8, 3, 3), mesh("x", None, None), world))
    assert trace.counts() == {}


@pytest.mark.ranks(4)
def test_products_and_diagonals_equal_numpy(world):
    x, y = normal(6, 4), normal(6, 4, seed=1)
    for layout in layouts(4):
        t, u = tensor_of(x, layout, world), tensor_of(y, layout.reduced, world)
        for offset in (-7, -3, -1, 0, 2, 5):
            np.testing.assert_array_equal(linalg.diagonal(t, offset=offset).full(), np.diagonal(x, offset))
            assert linalg.trace(t, offset=offset).full() == pytest.approx(np.trace(x, offset))
        np.testing.assert_allclose(linalg.vecdot(t, u).full(), (x * y).sum(-1))
        np.testing.assert_allclose(linalg.vecdot(t, u, axis=0).full(), (x * y).sum(0))
        np.testing.assert_allclose(linalg.tensordot(t, u).full(), np.tensordot(x, y))
        np.testing.assert_allclose(linalg.tensordot(t, u, ((0,), (0,))).full(), x.T @ y)
        np.testing.assert_array_equal(linalg.matrix_transpose(t).full(), x.T)
    z = normal(5, 3, dtype="c16")
    for layout in layouts(4):
        t = tensor_of(z, layout.reduced, world)
        np.testing.assert_allclose(linalg.cross(t, t + 1).full(), np.cross(z, z + 1))
        np.testing.assert_allclose(linalg.vecdot(t, t).full(), (z.conj() * z).sum(-1))
    for layout in layouts(4, 1):
        a, b = tensor_of(x[:, 0], layout, world), tensor_of(y[:, 1], Layout.replicated(layout.mesh, 1), world)
        np.testing.assert_allclose(linalg.outer(a, b).full(), np.outer(x[:, 0], y[:, 1]))
    with record() as trace:
        linalg.diagonal(tensor_of(normal(8, 8), Mesh((4,), ("x",))("x", None), world))
    assert trace.counts() == {}


@pytest.mark.ranks(1, 4)
def test_norms_equal_numpy(world):
    for x in (normal(6, 4), normal(6, 4, dtype="c16"), np.arange(-8, 16).reshape(6, 4)):
        for layout in layouts(world.size):
            t = tensor_of(x, layout, world)
            for order in (None, "fro", "nuc", 1, -1, 2, -2, np.inf, -np.inf):
                np.testing.assert_allclose(
                    linalg.norm(t, order).full(), np.linalg.norm(x, order), rtol=1e-7, atol=1e-12
                )
            for order in (0, 1, 2, 3.5, np.inf, -np.inf):
                for axis in (0, -1):
                    norm = linalg.norm(t, order, axis, keepdims=True)
                    np.testing.assert_allclose(norm.full(), np.linalg.norm(x, order, axis, keepdims=True))
            np.testing.assert_allclose(linalg.vector_norm(t).full(), np.linalg.norm(x.ravel()))
            np.testing.assert_allclose(
                linalg.matrix_norm(t, ord=1, keepdims=True).full(), np.linalg.norm(x, 1, keepdims=True)
            )
        if x.dtype.kind != "i":
            assert linalg.cond(t).full() == pytest.approx(np.linalg.cond(x))
    low = tensor_of(np.outer(np.arange(6.0), np.ones(4)), layouts(world.size)[0], world)
    assert int(linalg.matrix_rank(low).full()) == 1


#: Functions whose results have no gradient, or no unique one.
WITHOUT_GRADIENT = {"eig", "eigvals", "matrix_rank", "svd_of_whole_bases"}
#: A call, operands and the reference in numpy, by name; a suffix ``_of_…`` names the operands.
CASES = {
    "qr": (linalg.qr, (normal(9, 4),), q_and_r),
    "qr_of_complex": (linalg.qr, (normal(9, 3, dtype="c16"),), q_and_r),
    "qr_of_wide": (linalg.qr, (normal(3, 5),), q_and_r),
    "lstsq": (lambda a, b: linalg.lstsq(a, b)[0], (normal(9, 3), normal(9, 2)), lambda a, b: np.linalg.lstsq(a, b)[0]),
    "solve_of_complex": (linalg.solve, (normal(5, 5, dtype="c16"), normal(5, 3)), np.linalg.solve),
    "svdvals": (linalg.svdvals, (normal(9, 4),), lambda x: np.linalg.svd(x)[1]),
    "svd": (lambda x: (lambda u, s, v: ops.matmul(u * u * s, v * v))(*linalg.svd(x, False)), (normal(9, 4),), lambda x: (lambda u, s, v: (u * u * s) @ (v * v))(*np.linalg.svd(x, full_matrices=False))),
    "svd_of_vectors_alone": (lambda x: (lambda u, _, v: ops.matmul(u * u, v * v))(*linalg.svd(x, False)), (normal(9, 4),), lambda x: (lambda u, _, v: (u * u) @ (v * v))(*np.linalg.svd(x, full_matrices=False))),
    "pinv": (linalg.pinv, (normal(9, 4),), np.linalg.pinv),
    "pinv_of_complex": (linalg.pinv, (normal(6, 3, dtype="c16"),), np.linalg.pinv),
    "cholesky": (lambda x: linalg.cholesky(x + linalg.matrix_transpose(x)), (positive(6) / 2,), lambda x: np.linalg.cholesky(x + x.T)),
    "inv": (linalg.inv, (normal(5, 5),), np.linalg.inv),
    "inv_of_complex": (linalg.inv, (normal(4, 4, dtype="c16"),), np.linalg.inv),
    "det": (linalg.det, (normal(4, 4),), np.linalg.det),
    "det_of_singular": (linalg.det, (np.outer(np.arange(3.0), np.ones(3)) + np.eye(3) - np.diag([1, 0, 0]),), np.linalg.det),
    "det_of_complex": (linalg.det, (normal(4, 4, dtype="c16"),), np.linalg.det),
    "slogdet": (lambda x: linalg.slogdet(x)[1], (normal(4, 4),), lambda x: np.linalg.slogdet(x)[1]),
    "solve": (linalg.solve, (normal(5, 5), normal(5, 3)), np.linalg.solve),
    "solve_of_batch": (linalg.solve, (normal(4, 4), normal(3, 4, 2, dtype="c16")), np.linalg.solve),
    "eigvalsh": (lambda x: linalg.eigvalsh(x + linalg.matrix_transpose(x)), (normal(5, 5),), lambda x: np.linalg.eigvalsh(x + x.T)),
    "eigh": (lambda x: (lambda w, v: ops.matmul(v * w * w, ops.transpose(v) * ops.transpose(v)))(*linalg.eigh(x + linalg.matrix_transpose(x))), (normal(4, 4),), lambda x: (lambda w, v: (v * w * w) @ (v.T * v.T))(*np.linalg.eigh(x + x.T))),
    "norm": (linalg.norm, (normal(5, 3),), np.linalg.norm),
    "diagonal": (lambda x: linalg.diagonal(x, offset=1), (normal(5, 4),), lambda x: np.diagonal(x, 1)),
    "cross": (linalg.cross, (normal(4, 3), normal(4, 3, seed=2)), np.cross),
    "cond": (linalg.cond, (normal(6, 4),), np.linalg.cond),
    "eig": (lambda x: linalg.eig(x).eigenvalues, (normal(4, 4),), lambda x: np.linalg.eig(x)[0]),
    "eigvals": (linalg.eigvals, (normal(5, 5),), np.linalg.eigvals),
    "matrix_norm": (lambda x: linalg.matrix_norm(x, ord="nuc"), (normal(3, 5, 4),), lambda x: np.linalg.norm(x, "nuc", (1, 2))),
    "vector_norm": (lambda x: linalg.vector_norm(x, ord=3, axis=0), (normal(5, 3),), lambda x: np.linalg.norm(x, 3, 0)),
    "matrix_power": (lambda x: linalg.matrix_power(x, 3), (normal(4, 4),), lambda x: x @ x @ x),
    "matrix_power_of_the_inverse": (lambda x: linalg.matrix_power(x, -2), (positive(4),), lambda x: np.linalg.inv(x) @ np.linalg.inv(x)),
    "matrix_rank": (linalg.matrix_rank, (np.outer(np.arange(6.0), np.ones(4)),), np.linalg.matrix_rank),
    "outer": (linalg.outer, (normal(5), normal(6)), np.outer),
    "trace": (lambda x: linalg.trace(x, offset=1), (normal(3, 5, 4),), lambda x: np.trace(x, 1, 1, 2)),
    "svd_of_whole_bases": (lambda x: (lambda u, s, v: abs(u[:, :4]))(*linalg.svd(x)), (normal(9, 4),), lambda x: abs(np.linalg.svd(x)[0][:, :4])),
}  # fmt: skip


#: Functions whose samples are in the list of ``spmdsim.ops``.
ELSEWHERE = {"matmul", "matrix_transpose", "tensordot", "vecdot"}


def test_every_public_function_has_a_sample():
    assert {name.split("_of_")[0] for name in CASES} == set(linalg.__all__) - ELSEWHERE
    assert {sample.name for sample in (*SAMPLES, *COMPOSED)} >= ELSEWHERE


@pytest.mark.ranks(8)
@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_of_every_function_equal_numpy(world, name, mesh):
    call, operands, reference = CASES[name]
    all_expected = reference(*operands)
    all_expected = all_expected if isinstance(all_expected, tuple) else (all_expected,)
    dys = [normal(*np.shape(y), seed=3, dtype="c16" if np.iscomplexobj(y) else "f8") for y in all_expected]
    ndims = [x.ndim for x in operands]
    for layouts_ in [
        [mesh(*[None] * ndim) for ndim in ndims],
        *some_layouts(mesh, ndims, 2, f"{name} {mesh}"),
    ]:
        tensors = [
            Tensor.from_global(x, layout, world, requires_grad=name not in WITHOUT_GRADIENT)
            for x, layout in zip(operands, layouts_)
        ]
        results = call(*tensors)
        results = results if isinstance(results, tuple) else (results,)
        for y, expected in zip(results, all_expected, strict=True):
            np.testing.assert_allclose(y.full(), expected, rtol=1e-8, atol=1e-10)
        if name in WITHOUT_GRADIENT:
            continue
        backward(results, dys, world)
        for t in tensors:
            assert t.grad.layout == t.layout.dual()
        check_slopes(reference, operands, dys, [t.grad for t in tensors])


def test_a_warning_reports_the_bytes_of_a_gathered_matrix():
    """Eigenvalues of a split matrix give one warning with the bytes, and the right values."""
    x = positive(8)
    t = tensor_of(x, Mesh((4,), ("x",))("x", None), LockStep(4))
    with pytest.warns(match=r"eigvalsh .* 384 bytes to a rank") as caught:
        values = linalg.eigvalsh(t)
    assert [warning.category.__name__ for warning in caught] == ["GatheringWarning"]
    np.testing.assert_allclose(values.full(), np.linalg.eigvalsh(x))


def test_the_standards_names_exist():
    """Names of the extensions of version 2024.12 exist, except eigenvalues of general matrices."""
    names = """cholesky cross det diagonal eigh eigvalsh inv matmul matrix_norm matrix_power matrix_rank matrix_transpose outer
    pinv qr slogdet solve svd svdvals tensordot trace vecdot vector_norm"""
    assert set(names.split()) <= set(linalg.__all__)
    transforms = (
        """fft ifft fftn ifftn rfft irfft rfftn irfftn hfft ihfft fftfreq rfftfreq fftshift ifftshift"""
    )
    assert set(transforms.split()) <= set(fft.__all__)


@pytest.mark.ranks(2)
def test_invalid_matrices_and_options_are_refused(world):
    x = tensor_of(normal(2, 3), Mesh((2,), ("x",))("x", None), world)
    for function in (linalg.det, linalg.inv, linalg.cholesky, linalg.eigh, linalg.slogdet):
        with pytest.raises(RuleError, match=r"x must be square matrices \[..., n, n\], got shape \(2, 3\)"):
            function(x)
    with pytest.raises(RuleError, match="ord must be 'fro', 'nuc'"):
        linalg.norm(x, "max")
    with pytest.raises(RuleError, match="qr: mode must be 'reduced', 'complete' or 'r', got 'raw'"):
        linalg.qr(x, "raw")
    with pytest.raises(RuleError, match="outer: a and b must have one dim"):
        linalg.outer(x, x)
    with pytest.raises(RuleError, match=r"cross: dim -?\d of a and b must have size 3"):
        linalg.cross(x, x, axis=0)
    with pytest.raises(RuleError, match="do not fit"):
        linalg.tensordot(x, x, 1)
