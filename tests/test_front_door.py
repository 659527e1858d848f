"""Type checkers know the types of all public names and of the expressions in a user's program."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from inspect import isfunction
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import spmdsim
import spmdsim.nn
import spmdsim.ops as ops

ROOT = Path(__file__).resolve().parent.parent

#: Type -> expressions that have this type for a type checker.
TYPES = {
    "Tensor": """
        x + 1; 2.0 - x; x * x; x / [1.0, 2.0, 3.0, 4.0]; x // 2; 2 % x; x**2; x @ x; -x; abs(x); np.ones(4) * x; np.ones((4, 4)) @ x
        x > 0; x <= x; x == x; x != 1; x[1]; x[1:3, 0]; x[..., None]; x[[0, 2]]; x[np.array([0, 2])]; x[x.argmax(0)]
        x.sum(); x.sum(0); x.sum(axis=0); x.mean(axis=(0, 1), keepdims=True); x.max(dim=1); x.min(axis=None)
        x.std(axis=0, ddof=1); x.var(correction=1); x.prod(axis=1); x.all(axis=0); x.any(); x.argmax(axis=1); x.argmin(dim=0)
        x.reshape((2, -1)); x.reshape(-1); x.transpose([1, 0]); x.T; x.flatten(0); x.astype("float32"); x.astype(np.int64)
        Tensor.zeros((4, 4), layout=x.layout, world=x.world); Tensor.arange(4, dtype="f4", layout=mesh("a"), world=x.world)
        nn.Linear(4, 4, mesh("a", None))(x); nn.Sequential(nn.Linear(4, 4, mesh("a", None)), relu)(x)
        Tensor.from_global(lambda index: np.ones((4, 4))[index], x.layout, x.world, shape=(4, 4), dtype=float)
        x.to(mesh(None, None)); x.detach(); relu(x); matmul(x, x, transpose_b=True); matmul(x, np.ones((4, 4)))
        matmul.shard(((2, 1), (1, 2)))(x, x); relu.shard((mesh("a", None),))(x); einsum("ij,jk->ik", x, x); linear(x, x)
        compile(relu)(x); softmax(x, axis=0); softmax(x, -1); ops.sum(x, axis=0); ops.concat([x, x], axis=1); ops.where(x > 0, x, 0)
        ops.add(1, x); ops.gather(x, x, axis=1); ops.one_hot(x, 5, axis=0); ops.softmax_cross_entropy(x, x)[0]
    """,
    "list[Tensor]": "[row for row in x]; ops.split(x, 2, axis=1)",
    "str": "relu.name; f'{x}'",
    "LocalFunction": "local_map(np.sort, out_layouts=x.layout); local_map(in_layouts=(x.layout,), out_layouts=x.layout)(np.sort)",
    "Report": "simulate('ring.py', 4, machine=(1e-6, 1e-9)); simulate(print, 2, 1, machine='cluster')",
    "SearchResult": "search('mlp', 4, layers=1)",
    "Verdict": "check(x, np.ones((4, 4))); check(x, np.matmul, operands=[x, x])",
    "Plan": "plan(x.layout, mesh(None, None), (4, 4)); plan(x.layout, x.layout, (4, 4), style='mindspore').ours",
    "Layout": "x.layout; mesh('a', None)",
    "ndarray": "x.full(); x.numpy()",
    "tuple[Tensor, Tensor]": "Pair()(x); Pair()(x, scale=2.0)",
    "object": "nn.Module().forward(x)",
}
#: Expressions that a type checker refuses.
REFUSED = (
    *(
        "x.sum(axes=0)",
        "x.sum(axis='rows')",
        "relu(x, x)",
        "relu()",
        "x['a']",
        "x.rehsape((2, 8))",
        "x + object()",
    ),
    *(
        "softmax(x, axis='rows')",
        "ops.concat(x, axis=[1])",
        "matmul(x, x, transpose_c=True)",
        "matmul.shad(((2, 1),))",
    ),
    *(
        "simulate('ring.py', 4, machine=print)",
        "local_map(np.sort, out_layouts=3)",
        "check(x, x, operands=3)",
    ),
    *("x.to('a')", "plan(x, x, (4, 4))", "compile(softmax)(x, axis='rows')"),
    *(
        "Pair()(x, x)",
        "Pair()()",
        "nn.Linear(4, 4, mesh('a', None))(3)",
        "nn.Sequential(nn.Linear(4, 4, mesh('a', None)))('x')",
    ),
    *("Tensor.zeros('a')", "Tensor.arange(4, device=3)", "Tensor.from_global(print, x)"),
)
#: Base classes of worlds. The arrays of a world are of any type.
PLUGS = (spmdsim.core.world.AbstractWorld, spmdsim.worlds.base.World)
#: Methods that return any type, like NumPy's: a number of any kind, or nested lists of numbers.
AS_NUMPY = {"Tensor.item", "Tensor.tolist"}
PROGRAM = """
import numpy as np

from spmdsim import LockStep, Mesh, Tensor, check, compile, einsum, linear, local_map, matmul, ops, plan, relu, search
from spmdsim import nn, simulate, softmax


class Pair(nn.Module):
    def __init__(self) -> None:
        self.layers = nn.ModuleList([nn.Linear(4, 4, mesh("a", None)), relu])

    def forward(self, x: Tensor, scale: float = 1.0) -> tuple[Tensor, Tensor]:
        for layer in self.layers:
            x = layer(x)
        return x, x * scale


mesh = Mesh((2, 2), ("a", "b"))
x = Tensor.from_global(np.ones((4, 4)), mesh("a", "b"), LockStep(4))
"""


#: Options of mypy for a user's program. mypy skips the bodies of the package's functions, and packages
#: whose types the package's annotations do not name.
SETTINGS = """
[mypy]
strict = True
follow_imports = silent
[mypy-IPython.*,matplotlib.*,rich.*]
follow_imports = skip
"""


def check_types(tmp_path: Path, text: str) -> list[str]:
    """Return mypy's lines about a program with this ``text``, which is written to ``tmp_path``."""
    pytest.importorskip("mypy")
    program, settings = tmp_path / "program.py", tmp_path / "mypy.ini"
    program.write_text(text)
    settings.write_text(SETTINGS)
    options = ["--config-file", settings, "--cache-dir", ROOT / ".mypy_cache" / "program"]
    command = [sys.executable, "-m", "mypy", *map(str, options), str(program)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.stdout, done.stderr
    return [line for line in done.stdout.splitlines() if "program.py" in line]


def test_public_names_and_a_program_have_their_types(tmp_path):
    names = [name for name in spmdsim.__all__ if name != "__version__"]
    lines = [f"from spmdsim import {name}\nreveal_type({name})" for name in names]
    expected = [
        (kind, line) for kind, text in TYPES.items() for line in re.split(r"[;\n]", text) if line.strip()
    ]
    lines += [PROGRAM, *(f"reveal_type({line.strip()})" for _, line in expected), *REFUSED]
    messages = check_types(tmp_path, "\n".join(lines))
    revealed = [m[1] for line in messages if (m := re.search(r'Revealed type is "(.*)"', line))]
    assert len(revealed) == len(names) + len(expected), "\n".join(messages)
    assert not [name for name, kind in zip(names, revealed) if kind in ("Any", "types.ModuleType")]
    for (kind, line), shown in zip(expected, revealed[len(names) :]):
        short = re.sub(r"\b(\w+\.)+", "", shown)
        assert short == kind or (kind == "ndarray" and short.startswith("ndarray[")), f"{line}: {shown}"
    first = len("\n".join(lines).splitlines()) - len(REFUSED)
    errors = {int(line.split(":")[1]) for line in messages if ": error:" in line}
    assert errors == {first + k for k in range(1, len(REFUSED) + 1)}, "\n".join(messages)


def find_annotations(name: str, value: object) -> Iterator[tuple[str, object, ModuleType]]:
    """Yield the annotations of parameters, results and fields of the public ``value`` called ``name``.

    Yields the name and signature of the annotated function or field, the annotation, and the module that resolves it.
    """
    if isinstance(value, type):
        members: dict[str, object] = {}
        for kind in [
            kind for kind in value.__mro__ if kind.__module__.startswith("spmdsim") and kind not in PLUGS
        ]:
            for field, annotation in vars(kind).get("__annotations__", {}).items():
                if field[0] != "_":
                    yield f"{name}.{field}", annotation, sys.modules[kind.__module__]
            members = vars(kind) | members
        for member_name, member in members.items():
            function = next(
                (f for attribute in ("fget", "func", "__func__") if (f := getattr(member, attribute, None))),
                member,
            )
            if isfunction(function) and not re.match("_(?!_)", member_name):
                yield from find_annotations(f"{name}.{member_name}", function)
    else:
        signature = inspect.signature(value)
        parameters = signature.parameters.values()
        for annotation in (signature.return_annotation, *(p.annotation for p in parameters)):
            yield f"{name}{signature}", annotation, sys.modules[inspect.unwrap(value).__module__]


@cache
def is_untyped(annotation: object, module: ModuleType) -> bool:
    """Return True if ``Any`` is in an annotation of ``module``, or in a type alias that it names.

    NumPy's types have ``Any`` among their parameters, which does not count.
    """
    if not isinstance(annotation, str):
        return "typing.Any" in repr(annotation).replace("dtype[typing.Any]", "")
    for node in ast.walk(ast.parse(annotation, mode="eval")):
        if isinstance(node, ast.Name) and node.id not in ("ArrayLike", "DTypeLike"):
            scopes = [module, *(m for n, m in sys.modules.items() if n.startswith("spmdsim"))]
            named = next((vars(scope)[node.id] for scope in scopes if node.id in vars(scope)), None)
            if named is Any or (
                not isinstance(named, (type, str, ModuleType))
                and is_untyped(getattr(named, "__bound__", named), module)
            ):
                return True
    return False


def test_all_public_parameters_results_and_fields_have_types():
    # Type checkers do not check values of the type Any.
    doors = (spmdsim, ops, spmdsim.nn)
    public = {name: getattr(door, name) for door in doors for name in door.__all__ if name != "__version__"}
    annotations = [
        entry for name, value in public.items() if callable(value) for entry in find_annotations(name, value)
    ]
    assert len(annotations) > 2000
    untyped = {(where, text) for where, text, module in annotations if is_untyped(text, module)}
    assert {where.partition("(")[0] for where, _ in untyped} == AS_NUMPY, untyped


def test_expressions_of_type_tensor_give_tensors():
    space: dict[str, object] = {}
    exec(PROGRAM, space)
    count = 0
    for line in re.split(r"[;\n]", TYPES["Tensor"]):
        if line.strip() and not re.search("nn[.]|gather|one_hot|x\\[x|linear|entropy|// 2|% x|\\[1.0", line):
            assert isinstance(eval(line.strip(), space), spmdsim.Tensor), line
            count += 1
    assert count > 50


def test_operators_are_objects_of_one_class():
    kinds = {type(getattr(ops, name)) for name in ops.__all__}
    assert len(kinds) == 1
    assert ops.relu.rule is ops.relu.op.rule and ops.relu.name == "relu" and "relu" in ops.relu.__doc__
    assert str(inspect.signature(ops.softmax)) == "(x: 'Tensor', dim: 'Dims' = -1) -> 'Tensor'"
    assert "axis: another name of ``dim``." in ops.softmax.__doc__
    for name in ops.__all__:  # Otherwise help() would show a parameter twice.
        value = getattr(ops, name)
        assert not {*value.others} & {*inspect.signature(value).parameters}, name
    assert not hasattr(ops.linear, "op")
    with pytest.raises(AttributeError, match="linear is made of several operators"):
        ops.linear.shard(((2, 1), (1, 1)))


def test_tensors_have_operators_although_no_program_imported_ops():
    code = (
        "import sys, numpy as np; from spmdsim.arrays import Tensor; from spmdsim import Mesh, LockStep; m = Mesh((2,), ('a',));"
        "x = Tensor.from_global(np.ones(4), m('a'), LockStep(2)); a = 'spmdsim.ops' in sys.modules; print(a, (x + 1).sum())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.stdout.split()[0] == "False" and not done.stderr
