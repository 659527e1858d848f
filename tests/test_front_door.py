"""What type checkers know of a user's program."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import spmdsim
import spmdsim.ops as ops

ROOT = Path(__file__).resolve().parent.parent

#: What a program's lines are to a type checker: the types of these expressions.
TYPES = {
    "Tensor": """
        x + 1; 2.0 - x; x * x; x / [1.0, 2.0, 3.0, 4.0]; x // 2; 2 % x; x**2; x @ x; -x; abs(x); np.ones(4) * x; np.ones((4, 4)) @ x
        x > 0; x <= x; x == x; x != 1; x[1]; x[1:3, 0]; x[..., None]; x[[0, 2]]; x[np.array([0, 2])]; x[x.argmax(0)]
        x.sum(); x.sum(0); x.sum(axis=0); x.mean(axis=(0, 1), keepdims=True); x.max(dim=1); x.min(axis=None)
        x.std(axis=0, ddof=1); x.var(correction=1); x.prod(axis=1); x.all(axis=0); x.any(); x.argmax(axis=1); x.argmin(dim=0)
        x.reshape((2, -1)); x.reshape(-1); x.transpose([1, 0]); x.T; x.flatten(0); x.astype("float32"); x.astype(np.int64)
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
}
#: What it refuses.
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
)
PROGRAM = """
import numpy as np

from spmdsim import LockStep, Mesh, Tensor, check, compile, einsum, linear, local_map, matmul, ops, plan, relu, search
from spmdsim import simulate, softmax

mesh = Mesh((2, 2), ("a", "b"))
x = Tensor.from_global(np.ones((4, 4)), mesh("a", "b"), LockStep(4))
"""


def checked(tmp_path: Path, text: str) -> list[str]:
    """What mypy says of a program."""
    pytest.importorskip("mypy")
    program = tmp_path / "program.py"
    program.write_text(text)
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", "", "--follow-imports", "silent"]
    done = subprocess.run(
        [*command, "--cache-dir", str(tmp_path), str(program)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert done.stdout, done.stderr
    return done.stdout.splitlines()


def test_public_names_and_a_program_have_their_types(tmp_path):
    names = [name for name in spmdsim.__all__ if name != "__version__"]
    lines = [f"from spmdsim import {name}\nreveal_type({name})" for name in names]
    expected = [
        (kind, line) for kind, text in TYPES.items() for line in re.split(r"[;\n]", text) if line.strip()
    ]
    lines += [PROGRAM, *(f"reveal_type({line.strip()})" for _, line in expected), *REFUSED]
    told = checked(tmp_path, "\n".join(lines))
    revealed = [m[1] for line in told if (m := re.search(r'Revealed type is "(.*)"', line))]
    assert len(revealed) == len(names) + len(expected), "\n".join(told)
    assert not [name for name, kind in zip(names, revealed) if kind in ("Any", "types.ModuleType")]
    for (kind, line), found in zip(expected, revealed[len(names) :]):
        short = re.sub(r"\b(\w+\.)+", "", found)
        assert short == kind or (kind == "ndarray" and short.startswith("ndarray[")), f"{line}: {found}"
    first = len("\n".join(lines).splitlines()) - len(REFUSED)
    errors = {int(line.split(":")[1]) for line in told if ": error:" in line}
    assert errors == {first + k for k in range(1, len(REFUSED) + 1)}, "\n".join(told)


def test_the_program_runs():
    """What types promise holds: each of its lines gives that."""
    space: dict[str, object] = {}
    exec(PROGRAM, space)
    seen = 0
    for line in re.split(r"[;\n]", TYPES["Tensor"]):
        if line.strip() and not re.search("gather|one_hot|x\\[x|linear|entropy|// 2|% x|\\[1.0", line):
            assert isinstance(eval(line.strip(), space), spmdsim.Tensor), line
            seen += 1
    assert seen > 50


def test_operators_are_objects_of_one_class():
    kinds = {type(getattr(ops, name)) for name in ops.__all__}
    assert len(kinds) == 1
    assert ops.relu.rule is ops.relu.op.rule and ops.relu.name == "relu" and "relu" in ops.relu.__doc__
    assert str(inspect.signature(ops.softmax)) == "(x: 'Tensor', dim: 'Dims' = -1) -> 'Tensor'"
    assert "``axis=`` is ``dim=``" in ops.softmax.__doc__
    for name in ops.__all__:  # help shows each parameter once
        value = getattr(ops, name)
        assert not {*value.others} & {*inspect.signature(value).parameters}, name
    assert not hasattr(ops.linear, "op")
    with pytest.raises(AttributeError, match="linear is made of several operators"):
        ops.linear.shard(((2, 1), (1, 1)))


def test_tensors_have_their_operators_without_any_import_of_them():
    code = (
        "import sys, numpy as np; from spmdsim.tensor import Tensor; from spmdsim import Mesh, LockStep; m = Mesh((2,), ('a',));"
        "x = Tensor.from_global(np.ones(4), m('a'), LockStep(2)); a = 'spmdsim.ops' in sys.modules; print(a, (x + 1).sum())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.stdout.split()[0] == "False" and not done.stderr
