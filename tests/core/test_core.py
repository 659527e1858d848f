"""``spmdsim.core`` computes and trains in lock step while all other packages are blocked."""

from __future__ import annotations

import ast
import io
import itertools
import random
import subprocess
import sys
import tokenize
from pathlib import Path

import numpy as np
import pytest

CORE = Path(__file__).resolve().parents[2] / "spmdsim" / "core"

#: Block MPI and all other packages of spmdsim, then import all files of core.
ALONE = """
import importlib, sys
from pathlib import Path

class Blocked:
    def find_spec(self, name, path=None, target=None):
        beside = ("core", "errors", "notation", "pictured", "_version", "launcher", "lazy_imports", "wrong_calls")
        allowed = tuple(f"spmdsim.{leaf}" for leaf in beside)
        if name.startswith("spmdsim.") and not name.startswith(allowed) or name.startswith("mpi4py"):
            raise ImportError(f"{name} is no part of core")

sys.meta_path.insert(0, Blocked())
import numpy as np
for path in sorted(Path(sys.argv[1]).glob("*.py")):
    importlib.import_module(f"spmdsim.core.{path.stem}")
"""

#: Multiply two matrices with a split contraction, gather the result and compare it with numpy's.
PROGRAM = """
from spmdsim.core import Mesh, Rule, Strategy, bind
from spmdsim.core.lockstep import PlainLockStep

mesh, world, draw = Mesh((2, 2), ("dp", "tp")), PlainLockStep(4), np.random.default_rng(0)
x, w = draw.integers(-9, 9, (6, 5)).astype(float), draw.integers(-9, 9, (5, 7)).astype(float)

def run_steps(shards, src, dst, shape):
    collectives = []
    for step in world.planner.plan(src, dst, shape, np.dtype(float)).steps:
        shards = world.run(step, shards)
        collectives.append(step.collective)
    return shards, collectives

bound = bind(Rule.parse("m k, k n -> m n", linear="each"), (x.shape, w.shape))
strategy = Strategy.of(mesh, {"m": "dp", "k": "tp"})
x_layout, w_layout = bound.input_layouts(strategy)
(out,) = bound.output_layouts(strategy)
replicated = mesh(None, None)
a, _ = run_steps([x] * 4, replicated, x_layout, x.shape)
b, _ = run_steps([w] * 4, replicated, w_layout, w.shape)
products = [p @ q for p, q in zip(a, b)]
assert any((product != (x @ w)[out.slices((6, 7), rank)]).any() for rank, product in enumerate(products))  # partial
y, collectives = run_steps(products, out, replicated, (6, 7))
assert all((shard == x @ w).all() for shard in y), y
scattered, scattering = run_steps(products, out, mesh("dp", "tp"), (6, 7))
assert all((s == (x @ w)[mesh("dp", "tp").slices((6, 7), r)]).all() for r, s in enumerate(scattered))
assert bound.gradient_layout(strategy, 1).partial == (("dp", "sum"),)
print(sorted(collectives), scattering)
"""

#: Compare numpy's results and gradients with two layers and a ReLU. The first layer is split by columns, the second one
#: by rows, in uneven blocks.
TRAINING = """
from spmdsim.core import Layout, Mesh, Rule
from spmdsim.core.lockstep import PlainLockStep
from spmdsim.core.operator import Op
from spmdsim.core.tape import backward
from spmdsim.core.tensor import PlainTensor

class RecordingLockStep(PlainLockStep):
    def run(self, step, shards):
        collectives.append(f"{step.collective} {','.join(step.axes)}")
        return super().run(step, shards)

matmul = Op(
    "matmul", Rule.parse("m k, k n -> m n", linear="each"), np.matmul, lambda dy, xs, y: (dy @ xs[1].T, xs[0].T @ dy)
)
relu = Op("relu", Rule.parse("... -> ..."), lambda x: np.maximum(x, 0), lambda dy, xs, y: (dy * (xs[0] > 0),))
draw = np.random.default_rng(1)
x, w1, w2, dy = (draw.integers(-9, 9, shape).astype(float) for shape in ((6, 5), (5, 7), (7, 3), (6, 3)))
hidden = x @ w1
assert (hidden < 0).any() and (hidden > 0).any()
dhidden = dy @ w2.T * (hidden > 0)
wanted = {"x": dhidden @ w1.T, "w1": x.T @ dhidden, "w2": np.maximum(hidden, 0).T @ dy}

for mesh in Mesh((4,), ("tp",)), Mesh((2, 2), ("dp", "tp")):
    world, collectives, dp = RecordingLockStep(4), [], "dp" if "dp" in mesh.axes else None
    layouts = {"x": mesh(dp, None), "w1": mesh(None, "tp"), "w2": mesh("tp", None)}
    leaves = {
        name: PlainTensor.from_array(array, layouts[name], world, requires_grad=True)
        for name, array in (("x", x), ("w1", w1), ("w2", w2))
    }
    column = relu(matmul(leaves["x"], leaves["w1"]))
    assert column.layout == mesh(dp, "tp") and collectives == []
    row = matmul(column, leaves["w2"])
    assert row.layout == mesh(dp, None, partial="tp") and collectives == []
    y = row.to(mesh(dp, None))
    assert collectives == ["all_reduce tp"], collectives
    collectives.clear()
    backward(y, PlainTensor.from_array(dy, y.layout, world))
    print(sorted(collectives))
    for rank, shard in enumerate(y.shards):
        assert (shard == (np.maximum(hidden, 0) @ w2)[y.layout.slices(y.shape, rank)]).all()
    for name, leaf in leaves.items():
        assert leaf.grad.layout == leaf.layout, name
        for rank, shard in enumerate(leaf.grad.shards):
            assert (shard == wanted[name][leaf.layout.slices(leaf.shape, rank)]).all(), (name, rank)
        assert (leaf.grad.full() == wanted[name]).all(), name
"""


#: Compare products and sums over split contractions, and their gradients, with numpy's, in every element type. Partial sums
#: exceed the range of float16, and cancel. At the end, print the errors of reductions that element types do not support.
TYPES = """
import numpy as np
import ml_dtypes
from spmdsim.core import Mesh, Rule
from spmdsim.core.lockstep import PlainLockStep
from spmdsim.core.operator import Op
from spmdsim.core.tape import backward
from spmdsim.core.tensor import PlainTensor
from spmdsim.errors import SpmdError

matmul = Op(
    "matmul", Rule.parse("m k, k n -> m n", linear="each"), np.matmul, lambda dy, xs, y: (dy @ xs[1].T, xs[0].T @ dy)
)
total = Op(
    "total", Rule.parse("m k -> m", linear="each"), lambda x: x.sum(1, dtype=x.dtype),
    lambda dy, xs, y: (np.broadcast_to(dy[:, None], xs[0].shape),),
)
world, mesh = PlainLockStep(2), Mesh((2,), ("x",))
names = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 complex64 complex128".split()
for kind in map(np.dtype, [*names, ml_dtypes.bfloat16]):
    wide = {"b": "?", "i": "i8", "u": "u8", "c": "c16"}.get(kind.kind, "f8")
    left = np.array([[40960, 40960, -40960, -40960], [0, 1, 0, -3]]).astype(wide).astype(kind)
    right = np.array([[1, 0, 2], [1, 0, 0], [1, 0, 2], [1, 4, 0]]).astype(kind)
    products, sums = left.astype(wide) @ right.astype(wide), left.astype(wide).sum(1, dtype=wide)
    by_columns, by_rows = (
        PlainTensor.from_array(x, layout, world, requires_grad=kind.kind in "fcV")
        for x, layout in ((left, mesh(None, "x")), (right, mesh("x", None)))
    )
    for result, expected in ((matmul(by_columns, by_rows), products), (total(by_columns), sums)):
        np.testing.assert_array_equal(result.full(), expected.astype(kind))
        print(kind.name, result.dtype.name, *result.layout.partial, result.stored_shards[0].dtype.name, result.full().tolist())
        if kind.kind in "fcV":
            complete = result.to(mesh(*[None] * len(expected.shape)))
            backward(complete, PlainTensor.from_array(np.ones(expected.shape, kind), complete.layout, world))
    if kind.kind in "fcV":
        gradient = np.ones((2, 3)) @ right.astype(wide).T + 1
        np.testing.assert_array_equal(by_columns.grad.full(), gradient.astype(kind))
for op, kind in (("sum", "bool"), ("any", "int8"), ("max", "complex64"), ("avg", "int8"), ("sum", "M8[s]")):
    try:
        PlainTensor.from_array(np.zeros(4, kind), mesh(None, partial={"x": op}), world).full()
    except SpmdError as error:
        print(error)
"""


def run_program(program: str, before: str = ALONE) -> list[str]:
    """Return the lines that a program prints in a process in which only core can be imported.

    ``before`` is the text that the process runs first, instead of the one that blocks other packages.
    """
    done = subprocess.run(
        [sys.executable, "-c", before + program, str(CORE)],
        capture_output=True,
        text=True,
        cwd=CORE.parent.parent,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_core_computes_while_other_packages_are_blocked():
    assert run_program(PROGRAM) == ["['all_gather', 'all_reduce'] ['reduce_scatter']"]


def test_core_trains_while_other_packages_are_blocked():
    """A gradient is reduced once: the input's gradient over tp, the gradients of weights over dp."""
    one_axis, two_axes = run_program(TRAINING)
    assert one_axis == "['all_reduce tp']"
    assert two_axes == "['all_reduce dp', 'all_reduce dp', 'all_reduce tp']"


def test_core_computes_each_element_type_with_and_without_other_packages():
    lines = run_program(TYPES)
    facts = [line.split(" [")[0].split() for line in lines[:-5]]
    stored_types = {"float16": "float32", "bfloat16": "float32"}
    assert len(facts) == 30
    for type_name, result, _, op, stored_type in facts:
        assert (result, op, stored_type) == (
            type_name,
            "'any')" if type_name == "bool" else "'sum')",
            stored_types.get(type_name, type_name),
        )
    assert [line.split("; ")[0] for line in lines[-5:]] == [
        "the sum of bools is not a bool",
        "'any' reduces bools, but got int8",
        "complex numbers have no order, so no max",
        "the average of int8 is not an integer",
        "sum reduces numbers and bools, but got datetime64[s]",
    ]
    assert run_program(TYPES, "import spmdsim.arrays, spmdsim.ops, spmdsim.nn\n") == lines


def test_the_import_of_other_packages_fails():
    assert run_program("""
for name in "spmdsim.layout", "spmdsim.arrays", "spmdsim.worlds", "mpi4py":
    try:
        importlib.import_module(name)
    except ImportError as error:
        print(error)
""") == [
        f"{name} is no part of core"
        for name in ("spmdsim.layout", "spmdsim.arrays", "spmdsim.worlds", "mpi4py")
    ]


#: The order in which to read core; each file names the next one.
ORDER = (
    *("layout", "rule", "step", "element_types"),
    *("elements", "bytes_planner", "world", "tensor", "lockstep", "recipe", "tape", "operator"),
)


def count_lines_of_code(text: str) -> int:
    """Count the lines of ``text`` without blank lines, comments and docstrings.

    Comments and docstrings don't count, because they help the reader to understand the code.
    """
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in (
            tokenize.COMMENT,
            tokenize.NL,
            tokenize.NEWLINE,
            tokenize.INDENT,
            tokenize.DEDENT,
        ):
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if (
            isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))
            and ast.get_docstring(node) is not None
        ):
            lines -= set(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    return len(lines)


def test_files_of_core_name_the_next_one_and_are_short():
    """A reader understands core, with the notation that it needs, in an afternoon."""
    texts = {path.name: path.read_text() for path in CORE.glob("*.py")}
    notation = [path.read_text() for path in (CORE / "notation").glob("*.py")]
    assert sum(map(count_lines_of_code, [*texts.values(), *notation])) <= 2320
    for name, following in itertools.pairwise(ORDER):
        assert f"Next: :mod:`spmdsim.core.{following}`" in texts[f"{name}.py"], name
    assert "This is the last file" in texts["operator.py"]


def test_the_plain_planner_takes_the_fewest_bytes():
    from spmdsim.core import Mesh
    from spmdsim.core.lockstep import PlainLockStep

    mesh = Mesh((2, 2), ("x", "y"))
    for src, dst, collectives in (
        (mesh(None, None), mesh("x", "y"), ["slice", "slice"]),
        (mesh("x", None), mesh(None, "x"), ["all_to_all"]),
        (mesh("x", None), mesh("y", None), ["all_gather", "slice"]),
        (mesh(None, partial={"x": "sum"}), mesh("x"), ["reduce_scatter"]),
        (mesh(None, partial={"x": "sum"}), mesh(("y", "x")), ["slice", "reduce_scatter"]),
    ):
        route = PlainLockStep(4).planner.plan(src, dst, (8, 8)[: len(src.dims)], np.dtype("f8"))
        assert sorted(step.collective for step in route.steps) == sorted(collectives), (src, dst)
        assert all(isinstance(step.axes, tuple) for step in route.steps)
        assert all((step.op is None) == ("reduce" not in step.collective) for step in route.steps)


def test_the_plain_planner_places_axes_only_where_the_target_has_them():
    # An axis takes no detour over another dim, and no axis is added behind one that is removed later.
    from spmdsim.core import Mesh
    from spmdsim.core.lockstep import PlainLockStep

    mesh = Mesh((4, 2, 2), ("x", "y", "z"))
    for src, dst, collectives in (
        (mesh(("x", "y"), None), mesh("y", None), ["all_gather", "slice"]),
        (
            mesh("x", "y", partial="z"),
            mesh(("y", "z"), None),
            ["all_reduce", "all_gather", "all_to_all", "slice"],
        ),
    ):
        route = PlainLockStep(16).planner.plan(src, dst, (16, 16), np.dtype("f8"))
        assert [step.collective for step in route.steps] == collectives, (src, dst)


def list_neighbours(layout, dst):
    """Yield `(collective, axes, next layout)` of the steps from a layout without pending axes.

    An entry grows only to a beginning of the target's entry. It loses axes only behind the beginning that both share.
    """

    def with_entries(entries):
        return layout.mesh(*[entries.get(dim, entry) for dim, entry in enumerate(layout.dims)])

    for dim, (entry, target) in enumerate(zip(layout.dims, dst.dims)):
        for axis in layout.replicated_axes:
            if target[: len(entry) + 1] == (*entry, axis):
                yield "slice", (), with_entries({dim: (*entry, axis)})
        for k in range(len(entry)):
            if entry[: k + 1] == target[: k + 1]:
                continue
            yield "all_gather", entry[k:], with_entries({dim: entry[:k]})
            for other, wanted in enumerate(dst.dims):
                moved = (*layout.dims[other], *entry[k:])
                if other != dim and wanted[: len(moved)] == moved:
                    yield "all_to_all", entry[k:], with_entries({dim: entry[:k], other: moved})


def test_the_plain_planner_takes_the_fewest_of_the_cheapest_steps(monkeypatch):
    """The route has the lowest price, and the fewest steps of routes with this price.

    The expected values come from a search over all layouts, repeated until no price changes. Many routes share a price.
    """
    from spmdsim.core import Mesh
    from spmdsim.core.lockstep import PlainLockStep

    def price(collective, axes):
        return random.Random(f"{seed} {collective} {axes}").randrange(3)

    def improve_costs(best):
        costs = dict(best)
        for layout, (cost, steps) in best.items():
            for collective, axes, after in list_neighbours(layout, dst):
                end = cost + price(collective, axes), steps + 1
                costs[after] = min(end, costs.get(after, end))
        return costs

    mesh = Mesh((2, 2, 2), ("x", "y", "z"))
    src, planner = mesh(None, ("z", "y", "x")), PlainLockStep(8).planner
    monkeypatch.setattr(planner, "price", lambda step, itemsize: price(step.collective, step.axes))
    for seed, dst in itertools.product(range(6), (mesh("x", "y"), mesh(("z", "y"), "x"))):
        best, before = {src: (0, 0)}, None
        while best != before:
            before, best = best, improve_costs(best)
        route = planner.plan(src, dst, (8, 8), np.dtype("f8"))
        prices = [price(step.collective, step.axes) for step in route.steps]
        assert (sum(prices), len(prices)) == best[dst], seed


def test_the_plain_choice_keeps_splits_that_leave_ranks_empty():
    from spmdsim.core import Mesh, Rule, bind
    from spmdsim.core.lockstep import PlainLockStep

    mesh, shapes = Mesh((4, 2), ("a", "b")), ((2, 64), (64, 3))
    bound = bind(Rule.parse("m k, k n -> m n", linear="each"), shapes)
    layouts = mesh("a", "b"), mesh(None, None)
    strategy = PlainLockStep(8).planner.choose(bound, layouts, [np.dtype("f4")] * 2)
    assert bound.input_layouts(strategy) == (mesh("a", "b"), mesh("b", None))


def test_the_price_of_a_step_is_the_bytes_of_its_busiest_rank():
    # In an all_gather, the rank with the smallest shard receives the most: 4 of 5 elements.
    from spmdsim.core import Mesh
    from spmdsim.core.lockstep import PlainLockStep

    mesh = Mesh((4,), ("x",))
    (step,) = PlainLockStep(4).planner.plan(mesh("x"), mesh(None), (5,), np.dtype("f8")).steps
    assert [step.nbytes(rank, 8) for rank in range(4)] == [24, 32, 32, 32]
    assert PlainLockStep(4).planner.price(step, 8) == 32


def test_a_step_counts_the_bytes_of_its_own_collectives_only():
    # An exchange may lead to other ranks. Other collectives raise PlanError here, because their own
    # classes count their bytes.
    from spmdsim.core import Mesh
    from spmdsim.core.step import Step
    from spmdsim.errors import PlanError

    mesh, others = Mesh((4,), ("x",)), Mesh((2,), ("y",), (4, 5))
    step = Step("exchange", (), mesh("x"), others("y"), (8,))
    assert [step.nbytes(rank, 4) for rank in range(6)] == [0, 0, 0, 0, 16, 16]
    assert Step("fill", ("x",), mesh(None), mesh(None, partial="x"), (8,), "sum").nbytes(0, 4) == 0
    for step in (
        Step("reduce_exchange", (), mesh(None, partial="x"), mesh("x"), (8,), "sum"),
        Step("exchange", (), mesh("x", None), mesh(None, "x"), (4, 3), to_shape=(3, 4)),
    ):
        with pytest.raises(PlanError, match=f"Step does not count the elements of {step.collective}"):
            step.nbytes(0, 4)


def test_a_partial_plain_tensor_has_the_elements_of_its_array():
    from spmdsim.core import Mesh
    from spmdsim.core.lockstep import PlainLockStep
    from spmdsim.core.tensor import PlainTensor

    mesh, array = Mesh((2, 2), ("x", "y")), np.arange(1.0, 7.0).reshape(2, 3)
    for op in ("sum", "prod", "max", "min", "avg"):
        for layout in (
            mesh(None, "y", partial={"x": op}),
            mesh("x", None),
            mesh(None, None, partial={"x": op, "y": op}),
        ):
            tensor = PlainTensor.from_array(array, layout, PlainLockStep(4))
            np.testing.assert_array_equal(tensor.full(), array)


def test_no_route_leads_to_other_meshes_dims_or_reductions():
    from spmdsim.core import Mesh
    from spmdsim.core.lockstep import PlainLockStep
    from spmdsim.errors import PlanError

    mesh, other = Mesh((2, 2), ("a", "b")), Mesh((2, 2), ("a", "c"))
    for dst in (other("a", None), mesh("a"), mesh("a", None, partial="b")):
        with pytest.raises(PlanError, match="no steps lead from"):
            PlainLockStep(4).planner.plan(mesh("a", None), dst, (8, 8), np.dtype("f8"))


def test_an_operator_of_core_is_applied_with_a_strategy():
    from spmdsim import Op
    from spmdsim.core import Mesh, Rule, Strategy
    from spmdsim.core.lockstep import PlainLockStep
    from spmdsim.core.operator import apply
    from spmdsim.core.tensor import PlainTensor
    from spmdsim.errors import RuleError, WorldError

    mesh, full_array = Mesh((2, 2), ("x", "y")), np.arange(24.0).reshape(4, 6)
    x = PlainTensor.from_array(full_array, mesh(None, None), PlainLockStep(4))
    total = Op("total", Rule.parse("m k -> m", linear="each"), lambda array: array.sum(1))
    result = apply(total, [x], {}, Strategy.of(mesh, {"m": "x", "k": "y"}))
    assert result.layout == mesh("x", partial="y") and total(x).layout == mesh(None)
    np.testing.assert_array_equal(result.full(), full_array.sum(1))
    with pytest.raises(RuleError, match="strategy splits 'q'"):
        apply(total, [x], {}, Strategy.of(mesh, {"q": "x"}))
    with pytest.raises(WorldError, match="but the world has 4 ranks"):
        apply(total, [x], {}, Strategy.of(Mesh((8,), ("x",)), {"m": "x"}))
