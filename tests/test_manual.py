"""The pages of the manual in docs/ run, and generated pages list all commands, options and public names."""

from __future__ import annotations

import ast
import contextlib
import inspect
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from documents import blocks

from spmdsim import errors
from spmdsim.cli.main import COMMANDS, main

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGES = [path for path in sorted(DOCS.rglob("*.md")) if path.parent.name != "words"]
sys.path.append(str(DOCS))

from building import commands, pictures, reference  # noqa: E402
from building.topics import TOPICS  # noqa: E402


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(DOCS).as_posix())
def test_a_page_runs_as_a_program_and_its_pictures_are_drawn(path: Path) -> None:
    # test_documents.py runs the blocks of commands.
    for block, value in pictures.run(path.read_text(encoding="utf-8")):
        if block.language == "{picture}":
            assert re.match("<(svg|pre|div|figure)", pictures.markup(value)), f"line {block.line}"


def test_a_wrong_answer_in_a_page_raises_an_error() -> None:
    page = "```python\nx = 2\n```\n\n```pycon\n>>> x + 1\n{}\n```\n"
    pictures.run(page.format(3))
    with pytest.raises(AssertionError, match="Got:\n    3"):
        pictures.run(page.format(4))


def test_a_picture_replaces_its_block_and_the_code_stays() -> None:
    page = [
        "# A page\n\n```{picture} Two ranks.\nfrom spmdsim import Mesh\nMesh((2,), ('x',))\n```\n\nAnd more.\n"
    ]
    pictures.draw(None, "page", page)
    assert (
        "```python\nfrom spmdsim import Mesh" in page[0] and "<figcaption>Two ranks.</figcaption>" in page[0]
    )
    assert re.search(r'<figure class="picture" style="--least: \d+px"><svg ', page[0])
    assert "{picture}" not in page[0] and page[0].endswith("And more.\n")


# ---------------------------------------------------------------------- commands


def help_of(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with contextlib.suppress(SystemExit):
        main([*words, "--help"])
    return capsys.readouterr().out


def every_command(capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """Return the help of each command and subcommand, by its words joined with ``-``.

    Like users, it finds subcommands in the help of commands. ``capsys`` captures the output.
    """
    helps = {name: help_of([name], capsys) for name in COMMANDS}
    for name, text in list(helps.items()):
        inner = re.search(r"^  [A-Z]+\n((?:    \S.*\n(?:     +.*\n)*)+)", text, re.MULTILINE)
        listed = re.findall(r"^    (\w+)", inner[1], re.MULTILINE) if inner else []
        choice = re.search(r"^  (\w+(?:\|\w+)+)$", text, re.MULTILINE)
        for word in listed + (choice[1].split("|") if choice else []):
            helps[f"{name}-{word}"] = help_of([name, word], capsys)
    return helps


def test_every_command_has_a_page_with_every_option(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    pages, helps = commands.pages(), every_command(capsys)
    assert set(pages) - {"index"} == set(helps) and len(helps) > len(COMMANDS) + 8
    for name, text in helps.items():
        options = set(re.findall(r"^  (?:-\w(?: \S+)?, )?(--[\w-]+)", text, re.MULTILINE))
        entries = "\n".join(re.findall(r"^\.\. option:: (.*)$", pages[name], re.MULTILINE))
        assert "--help" in options and not (missing := [one for one in options if one not in entries]), (
            name,
            missing,
        )
        usage = re.sub(r"\s+", " ", text.partition("\n\n")[0].removeprefix("usage: "))
        assert usage in re.sub(r"\s+", " ", pages[name].replace("``", ""))


def test_the_page_of_a_command_shows_examples_as_comments_and_commands() -> None:
    page = commands.pages()["layout"]
    assert '# OneFlow\n   spmdsim layout --placement "[[0,1],[2,3]]"' in page and "examples:" not in page
    assert "\nMindSpore\n---------" in page and "``[--shape N,M]``" in page
    assert "with ``--split``, the shape" in page
    check = commands.pages()["collective-check"]
    assert "\n   def my_ring(rank, size):\n       for" in check and "\nThe score is 0 for a wrong" in check


def test_the_page_of_a_command_with_subcommands_lists_them_with_a_sentence() -> None:
    page = commands.pages()["collective"]
    assert "- :doc:`spmdsim collective predict <collective-predict>`\n     - Predict times of" in page
    assert page.count("- :doc:") == len(re.findall("^   collective-", page, re.MULTILINE)) == 9


# ---------------------------------------------------------------------- reference


def test_pages_show_dashes_and_attributes_and_link_no_built_in_type() -> None:
    nodes = pytest.importorskip("docutils.nodes")
    addnodes, document = pytest.importorskip("sphinx.addnodes"), pytest.importorskip("docutils.utils")
    from building import doctrees

    tree = document.new_document("page")
    link = addnodes.pending_xref("", nodes.Text("bool"), reftype="class", reftarget="bool")
    mesh_link = addnodes.pending_xref("", nodes.Text("Mesh"), reftype="class", reftarget="Mesh")
    tree += [nodes.field_name("", "Variables"), nodes.paragraph("", "", link, nodes.Text(" -- "), mesh_link)]
    codes = nodes.literal("", "--time-limit"), nodes.literal("", "--mesh dp=2,tp=4 --shape 8,8")
    options = document.new_document("options")
    options += list(codes)
    doctrees.mend(None, options)
    assert [code["classes"] for code in codes] == [["option"], []]
    doctrees.mend(None, tree)
    assert tree.astext() == "Attributes\n\nbool \N{EN DASH} Mesh"
    assert list(tree.findall(addnodes.pending_xref)) == [mesh_link]


def test_signatures_show_names_of_types_and_functions() -> None:
    shown = reference.shorten_signature(
        "(a=<function f>, b=<ufunc 'add'>, c=<function W.<lambda>>, d=<operator g>)"
    )
    assert shown == "(a=f, b=add, c=..., d=g)"
    assert (
        reference.shorten_signature("(dtype: TypeAliasForwardRef('DTypeLike') | None)")
        == "(dtype: DTypeLike | None)"
    )


def test_constants_and_types_are_listed_with_their_text() -> None:
    page = reference.pages()["spmdsim.core"]
    assert "- :py:obj:`Placement <spmdsim.core.Placement>`\n     - ``Shard | Replicate | Partial``" in page


def test_long_pages_are_divided_by_topic_and_operators_are_described_under_their_own_names() -> None:
    pages = reference.pages()
    for name, topics in TOPICS.items():
        assert all(f"\n{topic}\n{'-' * len(topic)}\n\n.. list-table::" in pages[name] for topic in topics)
    comparisons = pages["spmdsim.ops"].partition("Comparisons, logic and bits\n---")[2]
    assert comparisons.index(".. autofunction:: spmdsim.ops.equal") < comparisons.index(
        "Layers and losses\n---"
    )
    assert "- :py:obj:`abs <spmdsim.ops.absolute>`" in pages["spmdsim.array_api"]


def test_only_base_classes_with_an_entry_are_linked() -> None:
    from spmdsim import LockStep, nn

    assert reference.is_linked(nn.Optimiser) and reference.is_linked(ValueError)
    assert not reference.is_linked(object)
    assert not any(base.__name__ == "Pictured" and reference.is_linked(base) for base in LockStep.__mro__)


def test_every_public_name_has_an_entry() -> None:
    pages = reference.pages()
    entries = set(re.findall(r"^\.\. (?:auto\w+|py:data):: (\S+)$", "\n".join(pages.values()), re.MULTILINE))
    count = 0
    for path in sorted((DOCS.parent / "spmdsim").glob("*/__init__.py")):
        module = f"spmdsim.{path.parent.name}"
        names = getattr(import_module(module), "__all__", ())
        if path.parent.name in reference.INSIDE or not names:
            continue
        for name in names:
            count += 1
            linked = re.search(rf":py:obj:`{name} <([\w.]+)>`", pages[module])
            assert linked and linked[1] in entries, f"{module}.{name}"
            home, _, last = linked[1].rpartition(".")
            assert getattr(import_module(home), last) is getattr(import_module(module), name)
    assert count > 200


def test_every_public_name_has_an_example() -> None:
    # The example is in the docstring of the name or of one of its methods. Docstrings of core are short, and some names
    # need real ranks or are base classes; the manual's pages have examples of them.
    pages = "\n".join(path.read_text(encoding="utf-8") for path in PAGES)
    elsewhere = {"declare", "World", "MPIWorld", "EmulatedCommunicator", "BoundRule", "Context", "ShardedOp"}
    elsewhere |= {"Replicate", "Strategy"}
    checked_values, without = set(), []
    for module in reference.modules():
        for name in reference.names(module):
            value = getattr(import_module(module), name)
            if not reference._has_entry(value) or (isinstance(value, type) and issubclass(value, Exception)):
                continue
            checked_values.add(value)
            members = [*vars(value).values()] if isinstance(value, type) else []
            shown = any(">>> " in (inspect.getdoc(one) or "") for one in (value, *members))
            short = value.__module__.startswith("spmdsim.core") and re.search(rf"\b{name}\b", pages)
            if not shown and not short and name not in elsewhere:
                without.append(f"{module}.{name}")
    assert len(checked_values) > 330 and not without, without


def test_every_public_name_with_three_parameters_documents_them() -> None:
    # Docstrings of core are short. The functions that make a Tensor document its parameters.
    checked_values, without = set(), []
    for module in (*reference.modules(), "spmdsim.launch"):
        for name in reference.names(module):
            value = getattr(import_module(module), name)
            core = str(getattr(value, "__module__", "")).startswith("spmdsim.core")
            if not reference._has_entry(value) or not callable(value) or core or name == "Tensor":
                continue
            if isinstance(value, type) and issubclass(value, Exception):
                continue
            try:
                parameters = inspect.signature(value).parameters
            except (TypeError, ValueError):
                continue
            checked_values.add(value)
            if len(parameters) >= 3 and not re.search(
                r"^(Args|Attributes):$|arguments and the errors are those of\s",
                inspect.getdoc(value) or "",
                re.M,
            ):
                without.append(f"{module}.{name}")
    assert len(checked_values) > 330 and not without, without


def test_every_public_function_that_raises_an_error_documents_it() -> None:
    # Core's short docstrings may name the error in their first line instead of a section "Raises".
    count, without = 0, []
    for module in (*reference.modules(), "spmdsim.launch"):
        for name in reference.names(module):
            value = getattr(import_module(module), name)
            for function, text in _find_functions(value):
                if raised := {*_find_raised_errors(function)} & {*vars(errors)}:
                    count += 1
                    if not re.search(r"^ *Raises:$|\b[A-Z]\w+Error\b", text, re.M):
                        without.append(f"{module}.{name}, {function.__qualname__}: {', '.join(raised)}")
    assert count > 100 and not without, without


def _find_functions(value: object) -> Iterator[tuple[Callable[..., Any], str]]:
    """Yield a function ``value``, or the public methods of a class, each with its docstrings."""
    if inspect.isfunction(function := inspect.unwrap(value)):  # type: ignore[arg-type]
        yield function, value.__doc__ or ""
    for name, member in vars(value).items() if isinstance(value, type) else ():
        member = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
        if inspect.isfunction(member) and (not name.startswith("_") or name in MAKING):
            class_docstring = (value.__doc__ or "") if name in MAKING else ""
            yield inspect.unwrap(member), class_docstring + (member.__doc__ or "")


#: Methods that the docstring of the class documents.
MAKING = ("__init__", "__post_init__", "__call__")


def _find_raised_errors(function: Callable[..., Any]) -> Iterator[str]:
    """Yield the names of the errors that a function raises, but not errors of functions inside of it."""
    if function.__code__.co_filename.startswith(
        "<"
    ):  # Methods that dataclasses generate have no source text.
        return
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    nodes = list(ast.iter_child_nodes(body))
    for node in nodes:
        if isinstance(node, ast.Raise):
            kind = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
            yield kind.id if isinstance(kind, ast.Name) else ""
        if not isinstance(node, (ast.FunctionDef, ast.Lambda, ast.ClassDef)):
            nodes += ast.iter_child_nodes(node)


def test_every_error_has_an_entry() -> None:
    kinds = [
        name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, Exception)
    ]
    text = reference.pages()["spmdsim.errors"]
    linked = re.findall(r":py:obj:`(\w+) <spmdsim\.", text)
    assert len(kinds) > 5 and set(kinds) <= set(linked)


# ---------------------------------------------------------------------- the text


def test_every_page_is_in_a_table_of_contents() -> None:
    # The files in docs/speed are records of benchmarks and no pages.
    listed = {DOCS / "index.md"}
    for path in PAGES:
        for block in blocks(path.read_text(encoding="utf-8")):
            if block.language == "{toctree}":
                entries = [line for line in block.text.split() if not line.startswith(":")]
                listed |= {(path.parent / f"{entry}.md").resolve() for entry in entries}
    assert {path for path in DOCS.rglob("*.md") if path.parent != DOCS / "speed"} <= listed


def test_pages_name_no_machine() -> None:
    for path in PAGES:
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"https?://|(?<![\w.])/(?:home|root|tmp|usr|opt|work)/", text), path.name


def test_commands_for_a_shell_use_options_that_exist() -> None:
    # Blocks `sh` start jobs or install packages. The tests do not run them.
    options = {name: set(re.findall(r"-+\w[\w-]*", text)) for name, text in commands.pages().items()}
    count = 0
    for path in PAGES:
        for block in blocks(path.read_text(encoding="utf-8")):
            for line in block.text.splitlines() if block.language == "sh" else ():
                words = line.partition("#")[0].split()
                if words[:1] == ["spmdsim"]:
                    count += 1
                    page = options.get("-".join(words[1:3]), options[words[1]])
                    assert {word for word in words if word.startswith("-")} <= page, line
    assert count >= 3


@pytest.mark.parametrize(
    "script", sorted((DOCS.parent / "examples" / "cluster").glob("*.sh")), ids=lambda path: path.stem
)
def test_a_job_script_runs_its_program_until_it_is_finished(tmp_path: Path, script: Path) -> None:
    # The commands of a cluster are replaced: srun and spmdsim start one process, which simulates all ranks.
    (tmp_path / "examples").symlink_to(DOCS.parent / "examples")
    folder = tmp_path / ".venv-system" / "bin"
    folder.mkdir(parents=True)
    (folder / "activate").write_text(f"export PATH='{folder}':$PATH\n", encoding="utf-8")
    replaced = {
        "srun": 'case $1 in --mpi=pmix | --mpi=pmi2) shift ;; esac; exec "$@"',
        "spmdsim": '[ "$1" = launch ] && shift && exec python "$@"',
        "python": f'exec "{sys.executable}" "$@"',
        "scontrol": 'echo "again: scontrol $*"',
        "qsub": 'echo "again: qsub $*"',
    }
    for name, text in replaced.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
        (folder / name).chmod(0o755)
    variables = {"SLURM_JOB_ID": "7", "PBS_O_WORKDIR": str(tmp_path)}
    environment = os.environ | variables | {"PYTHONPATH": str(DOCS.parent), "SPMDSIM_RANKS": "2"}
    command = ["bash", script, "--steps", "2"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0 and "0 steps are done" in done.stdout, done.stderr
    assert "2 steps, loss" in done.stdout and "again" not in done.stdout
    (tmp_path / "results" / "train" / "finished").unlink()
    # This program stops early: it does not make the file.
    (folder / "python").write_text("#!/bin/sh\n", encoding="utf-8")
    stopped = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=False, env=environment
    )
    again = "scontrol requeue 7" if "slurm" in script.name else f"qsub examples/cluster/{script.name}"
    assert stopped.returncode == 0 and stopped.stdout == f"again: {again}\n", stopped.stderr
