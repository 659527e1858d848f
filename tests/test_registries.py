"""Names in registries and tables are unique, so that no entry replaces another one without an error."""

from __future__ import annotations

import ast
import importlib
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest

import spmdsim
from spmdsim import ops
from spmdsim.arrays import Op
from spmdsim.auto_parallel.programs.networks import build_program
from spmdsim.collectives import algorithm, algorithms, declare
from spmdsim.cost import Machine, load_machine, parse_topology
from spmdsim.dialects.table import layers, same_rows
from spmdsim.errors import InputError
from spmdsim.imitated import IMITATIONS
from spmdsim.nn import Module
from spmdsim.registry import Registry

PACKAGE = Path(spmdsim.__file__).parent
HERE = Path(__file__).name


def my_algorithm(rank, size):
    yield []


def modules() -> list[str]:
    """Return the names of the modules whose import needs no MPI and has no side effects."""
    names = [
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts) for path in PACKAGE.rglob("*.py")
    ]
    left_out = (
        "spmdsim.worlds.mpi",
        "spmdsim.testing",
        "spmdsim.launch.",
        "spmdsim.shutdown",
        "spmdsim.__main__",
    )
    return sorted(name.removesuffix(".__init__") for name in names if not name.startswith(left_out))


@cache
def registries() -> dict[str, Registry]:
    """Return all registries that modules define, alone or in a table, by their kind."""
    algorithms()  # The first call declares them.
    registries_by_id: dict[int, Registry] = {}
    for value in [value for name in modules() for value in vars(importlib.import_module(name)).values()]:
        for one in value.values() if type(value) is dict else (value,):
            if isinstance(one, Registry):
                registries_by_id[id(one)] = one
    by_kind = {registry.kind: registry for registry in registries_by_id.values()}
    assert len(by_kind) == len(registries_by_id)
    return by_kind


def test_this_file_tests_all_registries():
    texts = [text for path in PACKAGE.rglob("*.py") if "Registry" in (text := path.read_text())]
    declared = {
        node.args[0].value if isinstance(node.args[0], ast.Constant) else "several"
        for text in texts
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and ast.unparse(node.func).split("[")[0] == "Registry"
    }
    imitated = {kind for kind in registries() if kind.startswith("imitated ")}
    collectives = {kind for kind in registries() if kind.endswith(" algorithm")}
    declared -= {"operator", "layer"}  # The tests of dialects below check these.
    assert declared == {"several"} | {*registries()} - imitated - collectives
    assert len(collectives) > 8 and len(imitated) == len(IMITATIONS) > 3


def test_an_existing_name_is_refused_with_both_source_lines():
    checked = 0
    for kind, registry, name in [
        (kind, registry, name) for kind, registry in registries().items() for name in registry
    ]:
        value, source_line = registry[name], registry.places[name]
        assert source_line.partition(":")[0].endswith(".py")
        with pytest.raises(InputError) as caught:
            registry[name] = my_algorithm
        assert f"{kind} {name!r} is declared already (at {source_line}, now again at " in str(caught.value)
        assert f"{HERE}:{my_algorithm.__code__.co_firstlineno})" in str(caught.value)
        for declare_it in (
            lambda: registry.update({name: my_algorithm}),
            lambda: registry.__ior__({name: my_algorithm}),
        ):
            with pytest.raises(InputError, match="is declared already"):
                declare_it()
        assert registry[name] is value and registry.setdefault(name, my_algorithm) is value
        checked += 1
    assert checked > 80


@pytest.mark.parametrize("first", ["", "algorithm('all_gather', 'ring')\n"], ids=["before", "after"])
def test_a_user_cannot_take_the_name_of_a_built_in_algorithm(tmp_path, first):
    # Before the first lookup of a built-in algorithm, the user's one would be lost. After it, it would replace another.
    program = tmp_path / "mine.py"
    program.write_text(
        "from spmdsim.collectives import algorithm, declare\n"
        f"{first}for name in ('ring', 'Ring', 'recursive-doubling'):\n"
        "    try:\n"
        "        @declare('all_gather', name, chunks='n')\n"
        "        def my_ring(rank, size):\n"
        "            yield []\n"
        "    except ValueError as error:\n"
        "        print(error)\n"
        "print(algorithm('all_gather', 'ring').generate.__module__)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}
    text = subprocess.run(
        [sys.executable, program], capture_output=True, text=True, check=True, env=environment
    ).stdout
    *refusals, module = text.splitlines()
    assert len(refusals) == 3
    for refusal in refusals:
        assert "algorithms/all_gather.py:" in refusal.replace("\\", "/") and "mine.py:" in refusal
    assert module == "spmdsim.collectives.algorithms.all_gather"


def test_a_name_of_another_library_for_an_algorithm_is_refused():
    before = algorithm("all_reduce", "reduce_scatter_allgather")
    with pytest.raises(
        InputError, match=rf"{HERE}:\d+\) is a library's name of 'rabenseifner' \(at .*all_reduce"
    ):
        declare("all_reduce", "reduce_scatter_allgather", chunks="n")(my_algorithm)
    assert algorithm("all_reduce", "reduce_scatter_allgather") is before


def test_a_new_name_is_found_and_then_refused():
    declare("barrier", "My-Own", chunks="n")(my_algorithm)
    try:
        assert (
            algorithm("barrier", "my_own").generate is my_algorithm is algorithm("barrier", "MY-OWN").generate
        )
        with pytest.raises(InputError, match="barrier algorithm 'my_own' is declared already"):
            declare("barrier", "my_own", chunks="n")(my_algorithm)
    finally:
        del registries()["barrier algorithm"]["my_own"]


def test_users_get_their_declared_entries():
    machines, topologies, programs = (registries()[kind] for kind in ("machine", "topology", "program"))
    machines["mine"] = lambda: Machine.laptop()
    topologies["mine"] = topologies["flat"]
    programs["mine"] = programs["mlp"]
    try:
        assert load_machine("mine") is Machine.laptop()
        assert parse_topology("mine", 4, Machine.laptop()).ranks == 4
        assert "mlp" in str(build_program("mine", layers=2, hidden=8))
    finally:
        del machines["mine"], topologies["mine"], programs["mine"]


def test_tables_that_share_a_name_cannot_be_merged():
    with pytest.raises(InputError, match="operator 'add' is declared already"):
        Registry("operator", {"add": len}, {"mul": max}, {"add": min})


def test_rows_and_layers_of_a_dialect_have_unique_names():
    with pytest.raises(InputError, match="operator 'exp' is declared already"):
        same_rows(ops, "exp mul=multiply exp=log")
    with pytest.raises(InputError, match="layer 'ReLU' is declared already"):
        layers(same_rows(ops, "relu:ReLU relu6:ReLU"), Module, lambda function: function)


def test_machines_and_cost_models_share_no_name():
    # `load_cost_model` searches both registries.
    assert not registries()["machine"].keys() & IMITATIONS["cost model"].keys()


def test_every_operator_has_a_unique_name():
    named: dict[str, set[int]] = {}
    for name in modules():
        if name.startswith("spmdsim.ops"):
            for value in vars(importlib.import_module(name)).values():
                op = value if isinstance(value, Op) else getattr(value, "op", None)
                if isinstance(op, Op):
                    named.setdefault(op.name, set()).add(id(op))
    assert len(named) > 80
    assert not {name for name, ids in named.items() if len(ids) > 1}


def test_tables_have_each_key_once_and_merged_tables_share_no_key():
    # The tables of dialects are merged from several tables.
    checked = merged = 0
    for name in modules():
        path = PACKAGE.parent.joinpath(*name.split("."))
        path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        for statement in ast.parse(path.read_text()).body:
            tables = [node for node in ast.walk(statement) if isinstance(node, ast.Dict)]
            for table in tables:
                constants = Counter(key.value for key in table.keys if isinstance(key, ast.Constant))
                assert not [key for key, count in constants.items() if count > 1], f"{path}:{table.lineno}"
                checked += 1
            value = getattr(statement, "value", None)
            if isinstance(statement, (ast.Assign, ast.AnnAssign)) and isinstance(
                value, (ast.Dict, ast.BinOp)
            ):
                sources = _merged_tables(value)
                if len(sources) > 1:
                    scope = vars(importlib.import_module(name))
                    values = [eval(ast.unparse(source), scope) for source in sources]
                    if not all(isinstance(table, Mapping) for table in values):
                        continue  # `a | b` is a union of types.
                    keys = Counter(key for table in values for key in table)
                    assert not [key for key, count in keys.items() if count > 1], f"{path}:{statement.lineno}"
                    merged += 1
    assert checked > 200 and merged > 3


def _merged_tables(value: ast.expr) -> list[ast.expr]:
    """Return the tables that the table ``value`` is merged from, by ``{**a, "b": 1}`` or ``a | b``."""
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.BitOr):
        return _merged_tables(value.left) + _merged_tables(value.right)
    if not isinstance(value, ast.Dict):
        return [value]
    stars = [item for key, item in zip(value.keys, value.values) if key is None]
    keys = [key for key in value.keys if key is not None]
    return [*stars, ast.Dict(keys, [ast.Constant(0) for _ in keys])]
