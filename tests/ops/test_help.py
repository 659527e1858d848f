"""Docstrings of operators are in a source file, or one function composes them."""

from __future__ import annotations

import ast
import doctest
import importlib
import inspect
from pathlib import Path

import pytest

import spmdsim
from spmdsim import Tensor, array_api, fft, linalg, local, nn, ops

ROOT = Path(spmdsim.__file__).parent
#: Functions whose docstrings :mod:`spmdsim.arrays.ops.declare` composes of name and rule, because one row declares them.
COMPOSED = "; the element type of the result is NumPy's. "
#: Words that open no docstring.
NO_VERBS = ("The", "What", "Whether", "How", "Where", "Which", "A", "So", "Those", "After", "Of")
REDUCTIONS = ("sum", "mean", "prod", "max", "min", "all", "any", "std", "var")


def docstrings_in_source() -> set[str]:
    """Return the docstrings of all functions of the package."""
    nodes = [node for path in ROOT.rglob("*.py") for node in ast.walk(ast.parse(path.read_text("utf-8")))]
    return {ast.get_docstring(node) or "" for node in nodes if isinstance(node, ast.FunctionDef)}


def public_functions() -> dict[str, object]:
    modules = (ops, linalg, fft, local)
    values = {
        f"{module.__name__}.{name}": getattr(module, name) for module in modules for name in module.__all__
    }
    values |= {f"nn.{name}": getattr(nn, name) for name in nn.__all__ if name.endswith(("_loss", "entropy"))}
    return {name: value for name, value in values.items() if callable(value) and not isinstance(value, type)}


def test_docstrings_are_in_the_source() -> None:
    """Docstrings are not assembled at import, except those of declared operators."""
    in_source, composed = docstrings_in_source(), 0
    functions = public_functions()
    for name, function in functions.items():
        text = inspect.getdoc(function) or ""
        if COMPOSED in text:
            composed += 1
        else:
            assert text in in_source, name
        first, _, _ = text.partition("\n")
        assert first.endswith((".", "``.")) and len(first) <= 93, (name, first)
        assert first.split()[0] not in NO_VERBS, (name, first)
        assert ">>> " in text, name
    assert len(functions) > 200 and composed > 70


@pytest.mark.parametrize("name", REDUCTIONS)
def test_methods_have_arguments_and_an_example(name: str) -> None:
    text = inspect.getdoc(getattr(Tensor, name)) or ""
    assert f"as :func:`spmdsim.ops.{name}`." in text.partition("\n")[0] and "    keepdims: " in text
    test = doctest.DocTestParser().get_doctest(text, {}, name, name, 0)
    assert test.examples and not doctest.DocTestRunner().run(test).failed


def test_names_of_the_standard_show_the_operators_docstrings() -> None:
    for name in ("sum", "concat", "astype", "asarray", "permute_dims", "acos", "zeros_like"):
        text = inspect.getdoc(getattr(array_api, name)) or ""
        assert text.partition("\n")[0].endswith(".") and ">>> " in text, name
    assert array_api.sum.__doc__ == ops.sum.__doc__


def test_numpys_names_have_docstrings() -> None:
    """Functions that NumPy calls with tensors, as in ``np.nansum(x)``, have docstrings."""
    modules = [
        importlib.import_module(f"spmdsim.arrays.numpy_names.{path.stem}")
        for path in (ROOT / "arrays" / "numpy_names").glob("[a-z]*.py")
    ]
    functions = {
        f"{module.__name__}.{name}": value
        for module in (*modules, importlib.import_module("spmdsim.array_api.functions"))
        for name, value in vars(module).items()
        if inspect.isfunction(value) and value.__module__ == module.__name__ and not name.startswith("_")
    }
    for name, function in functions.items():
        first, _, _ = (inspect.getdoc(function) or "").partition("\n")
        assert first.endswith(".") and first.split()[0] not in NO_VERBS, (name, first)
    assert len(functions) > 100
