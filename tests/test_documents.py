"""All blocks of the documents run and print the output in the document, with the marks of :mod:`documents`."""

from __future__ import annotations

import contextlib
import doctest
import io
import os
import re
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from documents import Block, agree, blocks, difference

from spmdsim.cli.main import main

ROOT = Path(__file__).parent.parent
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "ARCHITECTURE.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "examples").glob("*/README.md")),
    ROOT / "spmdsim" / "documents" / "primer.md",
    *(path for path in sorted((ROOT / "docs").rglob("*.md")) if path.parent.name != "words"),
]
ALL = [(path, block) for path in DOCUMENTS for block in blocks(path.read_text(encoding="utf-8"))]
#: Commands of all documents with their output. A command of two documents appears once.
COMMANDS = [*{one: (path, block, *one) for path, block in ALL for one in block.commands}.values()]

#: Commands that this file does not run -> the reason, or the test that runs them.
ELSEWHERE = {
    "scripts/run.sh": "makes the environment that these tests run in",
    "scripts/test.sh": "runs these tests",
    "spmdsim explore": "writes a file, for some seconds: explore/test_page.py",
    "spmdsim launch -n 2 -m spmdsim collective calibrate -o machine.json": "measures a minute: cost/test_calibrate.py",
    "spmdsim tune -n 2 -n 4 -o here.json": "tries steps for some seconds: worlds/test_trials.py",
}


def relative_name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def label(value: object) -> str | None:
    """Return the text of a test parameter: the file, the line of a block, or None for pytest's text."""
    if isinstance(value, Path):
        return relative_name(value)
    return f"line {value.line}" if isinstance(value, Block) else None


@cache
def run_command(*words: str) -> str:
    """Return the output of a command. Cached, because two documents may show lines of one output."""
    if words[1] in ("launch", "simulate"):
        return run_in_new_process([sys.executable, "-m", *words], ROOT)
    if words[0] == "spmdsim":
        return run_main([*words[1:]], ROOT)
    return run_in_new_process([sys.executable, *words[1:]], ROOT)


def run_main(words: list[str], folder: Path) -> str:
    """Return the output of ``spmdsim`` with the arguments ``words`` in ``folder``. Starts no process."""
    output = io.StringIO()
    before = Path.cwd()
    os.chdir(folder)
    try:
        with (
            contextlib.redirect_stdout(output),
            contextlib.redirect_stderr(output),
            contextlib.suppress(SystemExit),
        ):
            main(words)
    finally:
        os.chdir(before)
    return output.getvalue()


def run_in_new_process(words: list[str], folder: Path) -> str:
    """Return the output of a command in a new process that is no rank of a job."""
    unset = ("OMPI_", "PMI", "PRTE", "HYDRA", "SPMDSIM_")
    environment = {key: value for key, value in os.environ.items() if not key.startswith(unset)}
    done = subprocess.run(
        words, cwd=folder, capture_output=True, text=True, timeout=500, check=False,
        env=environment | {"PYTHONPATH": str(ROOT), "COLUMNS": "250", "PYTHONIOENCODING": "utf-8"},
    )  # fmt: skip
    return done.stdout + done.stderr


def starts_ranks(words: list[str]) -> bool:
    return words[:1] == ["spmdsim"] and words[1] in ("run", "train", "launch")


def in_lock_step(words: list[str]) -> list[str]:
    """Return a command with the option that runs its ranks in one process."""
    return [*words[:2], "--world", "lockstep", *words[2:]]


@pytest.fixture(autouse=True)
def set_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "250")
    monkeypatch.delenv("SPMDSIM_RANKS", raising=False)


@pytest.mark.parametrize(("path", "block", "command", "wanted"), COMMANDS, ids=label)
def test_a_command_prints_the_output_in_the_document(
    path: Path, block: Block, command: str, wanted: str
) -> None:
    words = shlex.split(command)
    if command in ELSEWHERE:
        pytest.skip(ELSEWHERE[command])
    if starts_ranks(words) and "-m" in words:
        pytest.skip("measures real ranks")
    if starts_ranks(words):  # Other tests run these commands on real ranks.
        words, wanted = in_lock_step(words), wanted.replace("MPIWorld", "LockStep")
    output = run_command(*words)
    differ = difference(wanted, output)
    assert not differ, f"{relative_name(path)}, line {block.line}: $ {command}\n{differ}"
    assert "error: " not in output or "error: " in wanted, (
        f"{relative_name(path)}, line {block.line}: $ {command}\n{output}"
    )


#: Commands that start real ranks. Other tests run the examples and the training on real ranks.
ON_RANKS = [
    case
    for number, case in enumerate(COMMANDS)
    if starts_ranks(shlex.split(case[2]))
    and not re.search("train|lockstep|examples/", case[2])
    and case[2] not in ELSEWHERE
    and case[2] not in [earlier[2] for earlier in COMMANDS[:number]]
]


@pytest.mark.parametrize(("path", "block", "command", "wanted"), ON_RANKS, ids=label)
def test_a_command_prints_the_same_on_real_ranks(
    path: Path, block: Block, command: str, wanted: str, launcher: object
) -> None:
    # A built-in machine replaces the file of measurements, which does not exist.
    words = ["laptop" if word == "machine.json" else word for word in shlex.split(command)]
    differ = difference(wanted, run_in_new_process([sys.executable, "-m", *words], ROOT))
    assert not differ, f"{relative_name(path)}, line {block.line}: $ {command}\n{differ}"


# ---------------------------------------------------------------------- programs


def find_program(path: Path, start: str) -> str:
    """Return the only Python block of a document whose text begins with ``start``."""
    texts = [block.text for one, block in ALL if one == path and block.language == "python"]
    (text,) = [text for text in texts if text.startswith(start)]
    return text


def test_the_readmes_session_runs_unchanged_in_a_notebook() -> None:
    # A notebook has no MPI and no number of ranks. worlds/test_current.py tests scripts.
    (session,) = [
        block.text for path, block in ALL if path == ROOT / "README.md" and block.language == "pycon"
    ]
    names: dict[str, object] = {}
    test = doctest.DocTestParser().get_doctest(session, names, "README", "README.md", 0)
    test.globs = names
    assert doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, clear_globs=False).failed == 0
    assert names["z"].world.size == 8  # type: ignore[attr-defined]
    example = [
        *map(without_comment, (ROOT / "examples" / "first_steps.py").read_text(encoding="utf-8").splitlines())
    ]
    lines = [without_comment(one.source) for one in test.examples if re.match("mesh|[xwyz] = ", one.source)]
    assert len(lines) == 5 and not {*lines} - {*example}, "the example is the same program"


def without_comment(line: str) -> str:
    """Return a line of a program without its comment and without the assignment to ``verdict``."""
    return re.sub(r"\s*#.*", "", line).strip().removeprefix("verdict = ")


def test_the_documents_new_operator_works() -> None:
    from spmdsim import LockStep, Mesh, Tensor, check
    from spmdsim.arrays import Op
    from spmdsim.arrays.ops.declare import declare_unary
    from spmdsim.core import Rule

    names = {
        "declare_unary": declare_unary,
        "_relu": lambda x: np.maximum(x, 0),
        "Op": Op,
        "Rule": Rule,
        "np": np,
    }
    exec(find_program(ROOT / "CONTRIBUTING.md", "relu = declare_unary"), names)
    mesh = Mesh((4,), ("x",))
    with LockStep(4):
        a, b = (Tensor.from_global(np.arange(-3.0, 5), mesh("x")) for _ in range(2))
        assert check(names["relu"](a), np.maximum(np.arange(-3.0, 5), 0))  # type: ignore[operator]
        assert check(names["outer"](a, b), np.outer(np.arange(-3.0, 5), np.arange(-3.0, 5)))  # type: ignore[operator]


def test_the_documents_new_algorithm_is_correct(tmp_path: Path) -> None:
    text = find_program(ROOT / "CONTRIBUTING.md", '@declare("all_gather"')
    path = tmp_path / "mine.py"
    path.write_text(
        "from spmdsim.collectives import recv, send\n\n" + text.partition("\n")[2], encoding="utf-8"
    )
    assert "correct" in run_main(
        ["collective", "check", f"{path}:my_way", "--collective", "all_gather", "-n", "2..6"], ROOT
    )


#: Sessions outside the manual. test_manual.py runs sessions of the manual with the other blocks of their page.
SESSIONS = [case for case in ALL if ">>> " in case[1].text and case[1].language != "pycon"]


@pytest.mark.parametrize(("path", "block"), SESSIONS, ids=label)
def test_a_session_raises_the_errors_in_the_document(path: Path, block: Block) -> None:
    messages: list[str] = []
    lines = block.text.splitlines()
    wanted = "\n".join(line for line in lines if not line.startswith(">>> "))
    for line in lines:
        if line.startswith(">>> "):
            try:
                exec(compile(line.removeprefix(">>> "), "session", "single"), {})
            except Exception as error:
                messages.append(f"{type(error).__module__}.{type(error).__name__}: {error}")
    assert messages and not (differ := difference(wanted, "\n".join(messages))), differ


def test_every_block_is_of_a_kind_that_tests_run() -> None:
    for path, block in ALL:
        tested = (
            block.commands
            or block.language in ("python", "pycon", "sh")
            or block.language.startswith("{")  # Only the manual has directives; test_manual.py runs them.
            or ">>> " in block.text
            or "->" in block.text
        )
        assert tested, f"{relative_name(path)}, line {block.line}: a block that no test runs"


# ---------------------------------------------------------------------- commands, files and links in the text


def test_every_named_command_and_file_exists() -> None:
    for path in DOCUMENTS:
        text = path.read_text(encoding="utf-8")
        for file in re.findall(r"\b(?:scripts|examples|tests)/[\w/]+\.\w+", text):
            assert (ROOT / file).exists(), f"{relative_name(path)} names {file}"
        for words in re.findall(r"(?:`|\$ |    )spmdsim ((?:collective )?[a-z]+)\b", text):
            assert "usage: spmdsim" in run_main([*words.split(), "--help"], ROOT), (
                f"{relative_name(path)}: spmdsim {words}"
            )


def test_the_readme_is_short_and_starts_with_two_commands() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    start = (ROOT / "scripts" / "run.sh").read_text(encoding="utf-8")
    assert len(readme.splitlines()) <= 150
    first = next(block for path, block in ALL if path == ROOT / "README.md" and block.language == "sh")
    commands = [line.partition("#")[0].strip() for line in first.text.splitlines()]
    assert commands == ["scripts/run.sh", "scripts/test.sh"] and first.line < 40
    assert "prepare_environment all" in start and "/activate" in start


def test_every_link_of_the_readme_is_a_file() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert len(links) > 10 and not [link for link in links if not (ROOT / link).is_file()]


# ---------------------------------------------------------------------- the comparison itself

PRINTED = """
 name   bytes   ms     verdict
 ─────────────────────────────
 one    32      1.25   ok
 two    64      0.50   ok

2 of 2 hold
loss 2.3001, off by 1e-07
"""


@pytest.mark.parametrize(
    "wanted",
    [
        PRINTED,
        "...\n2 of 2 hold\nloss 2.3001, off by 1e-07",
        "...\nloss 2.30…, off by <1e-05",
        " name   bytes   ms     verdict\n...\n one    32      ~20.0   ok\n...\nloss 2.3001, off by 1e-07",
        " name   verdict   ...\n one   ok\n two   ok\n2 of 2 hold\nloss 2.3002…, off by 1e-07",
        "...\n two    64      0.50   ok\n...",
    ],
)
def test_marks_of_a_document_match_omitted_and_other_text(wanted: str) -> None:
    assert difference(wanted, PRINTED) == ""


@pytest.mark.parametrize(
    ("change", "to", "shown"),
    [
        ("32", "33", "+  one    33"),
        ("2 of 2", "1 of 2", "+ 1 of 2 hold"),
        ("2.3001", "2.4001", "+ loss 2.4001"),
        ("1e-07", "1e-03", "+ loss 2.3001, off by 1e-03"),
        ("two    64      0.50   ok", "two    64      0.50   WRONG", "+  two    64      0.50   WRONG"),
        ("loss", "more\nloss", "+ more"),
        ("loss 2.3001, off by 1e-07\n", "", "- loss 2.30…, off by <1e-05"),
        ("1.25 ", "-1.25 ", "+  one    32      -1.25"),
        ("1.25 ", "nan ", "+  one    32      nan"),
    ],
)
def test_wrong_output_is_shown(change: str, to: str, shown: str) -> None:
    wanted = PRINTED.replace("2.3001", "2.30…").replace("1e-07", "<1e-05").replace("1.25", "~2.50")
    assert difference(wanted, PRINTED) == ""
    assert change in PRINTED and shown in difference(wanted, PRINTED.replace(change, to))


def test_wrong_output_in_columns_is_shown() -> None:
    wanted = " name   verdict   ...\n one   ok\n two   ok\n2 of 2 hold\n..."
    assert "+ two   WRONG" in difference(wanted, PRINTED.replace("0.50   ok", "0.50   WRONG"))


def test_the_doctests_of_the_comparison_hold() -> None:
    import documents

    assert doctest.testmod(documents).failed == 0 and agree("1…3 4", "1…3 4") and not agree("1…3 4", "1…4 4")
