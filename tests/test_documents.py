"""Every block of the documents is run, and prints what stands there (:mod:`documents` says what may differ)."""

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
#: Commands of all documents with what they print; a command that stands in two documents is here once.
COMMANDS = [*{one: (path, block, *one) for path, block in ALL for one in block.commands}.values()]

# Commands that are not run here, and why.
ELSEWHERE = {
    "scripts/run.sh": "makes the environment that these tests run in",
    "scripts/test.sh": "runs these tests",
    "spmdsim explore": "writes a file, for some seconds: explore/test_page.py",
    "spmdsim launch -n 2 -m spmdsim collective calibrate -o machine.json": "measures a minute: cost/test_calibrate.py",
    "spmdsim tune -n 2 -n 4 -o here.json": "tries steps for some seconds: worlds/test_trials.py",
}


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def label(value: object) -> str | None:
    """Test names: the file, and the line or the command."""
    if isinstance(value, Path):
        return name(value)
    return f"line {value.line}" if isinstance(value, Block) else None


@cache
def run_command(*words: str) -> str:
    """Return what a command prints. Cached: some stand in two documents, with other lines left out."""
    if words[1] in ("launch", "simulate"):
        return run_apart([sys.executable, "-m", *words], ROOT)
    if words[0] == "spmdsim":
        return run_here([*words[1:]], ROOT)
    return run_apart([sys.executable, *words[1:]], ROOT)


def run_here(words: list[str], folder: Path) -> str:
    """What ``spmdsim`` prints, without starting it."""
    told = io.StringIO()
    before = Path.cwd()
    os.chdir(folder)
    try:
        with (
            contextlib.redirect_stdout(told),
            contextlib.redirect_stderr(told),
            contextlib.suppress(SystemExit),
        ):
            main(words)
    finally:
        os.chdir(before)
    return told.getvalue()


def run_apart(words: list[str], folder: Path) -> str:
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
    """The same on ranks of one process."""
    return [*words[:2], "--world", "lockstep", *words[2:]]


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "250")
    monkeypatch.delenv("SPMDSIM_RANKS", raising=False)


@pytest.mark.parametrize(("path", "block", "command", "wanted"), COMMANDS, ids=label)
def test_a_command_prints_what_stands_there(path: Path, block: Block, command: str, wanted: str) -> None:
    """Where it starts ranks, in lock step."""
    words = shlex.split(command)
    if command in ELSEWHERE:
        pytest.skip(ELSEWHERE[command])
    if starts_ranks(words) and "-m" in words:
        pytest.skip("measures real ranks")
    if starts_ranks(words):
        words, wanted = in_lock_step(words), wanted.replace("MPIWorld", "LockStep")
    told = run_command(*words)
    differ = difference(wanted, told)
    assert not differ, f"{name(path)}, line {block.line}: $ {command}\n{differ}"
    assert "error: " not in told or "error: " in wanted, (
        f"{name(path)}, line {block.line}: $ {command}\n{told}"
    )


# Examples are the same on real ranks by tests of their own; what starts the ranks and how they are called is seen here.
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
    """A file of measurements is replaced by a machine that is there."""
    words = ["laptop" if word == "machine.json" else word for word in shlex.split(command)]
    differ = difference(wanted, run_apart([sys.executable, "-m", *words], ROOT))
    assert not differ, f"{name(path)}, line {block.line}: $ {command}\n{differ}"


# ---------------------------------------------------------------------- programs


def program(path: Path, start: str) -> str:
    texts = [block.text for one, block in ALL if one == path and block.language == "python"]
    (text,) = [text for text in texts if text.startswith(start)]
    return text


def test_the_readmes_session_runs_as_it_stands() -> None:
    """Pasted into a notebook, without MPI and without a number of ranks; in scripts: worlds/test_current.py."""
    (session,) = [
        block.text for path, block in ALL if path == ROOT / "README.md" and block.language == "pycon"
    ]
    names: dict[str, object] = {}
    test = doctest.DocTestParser().get_doctest(session, names, "README", "README.md", 0)
    test.globs = names
    assert doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, clear_globs=False).failed == 0
    assert names["z"].world.size == 8  # type: ignore[attr-defined]
    example = [*map(plain, (ROOT / "examples" / "first_steps.py").read_text(encoding="utf-8").splitlines())]
    lines = [plain(one.source) for one in test.examples if re.match("mesh|[xwyz] = ", one.source)]
    assert len(lines) == 5 and not {*lines} - {*example}, "the example is the same program"


def plain(line: str) -> str:
    """A line of a program without its comment."""
    return re.sub(r"\s*#.*", "", line).strip().removeprefix("verdict = ")


def test_an_operator_is_added_as_the_document_says() -> None:
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
    exec(program(ROOT / "CONTRIBUTING.md", "relu = declare_unary"), names)
    mesh = Mesh((4,), ("x",))
    with LockStep(4):
        a, b = (Tensor.from_global(np.arange(-3.0, 5), mesh("x")) for _ in range(2))
        assert check(names["relu"](a), np.maximum(np.arange(-3.0, 5), 0))  # type: ignore[operator]
        assert check(names["outer"](a, b), np.outer(np.arange(-3.0, 5), np.arange(-3.0, 5)))  # type: ignore[operator]


def test_an_algorithm_is_added_as_the_document_says(tmp_path: Path) -> None:
    text = program(ROOT / "CONTRIBUTING.md", '@declare("all_gather"')
    path = tmp_path / "mine.py"
    path.write_text(
        "from spmdsim.collectives import recv, send\n\n" + text.partition("\n")[2], encoding="utf-8"
    )
    assert "correct" in run_here(
        ["collective", "check", f"{path}:my_way", "--collective", "all_gather", "-n", "2..6"], ROOT
    )


# Sessions of the manual are run as doctests, with the rest of their page: test_manual.py.
SESSIONS = [case for case in ALL if ">>> " in case[1].text and case[1].language != "pycon"]


@pytest.mark.parametrize(("path", "block"), SESSIONS, ids=label)
def test_a_session_answers_what_stands_there(path: Path, block: Block) -> None:
    told: list[str] = []
    lines = block.text.splitlines()
    wanted = "\n".join(line for line in lines if not line.startswith(">>> "))
    for line in lines:
        if line.startswith(">>> "):
            try:
                exec(compile(line.removeprefix(">>> "), "session", "single"), {})
            except Exception as error:
                told.append(f"{type(error).__module__}.{type(error).__name__}: {error}")
    assert told and not (differ := difference(wanted, "\n".join(told))), differ


def test_every_block_is_of_a_kind_that_is_run() -> None:
    for path, block in ALL:
        tested = (
            block.commands
            or block.language in ("python", "pycon", "sh")
            or block.language.startswith("{")  # the manual's
            or ">>> " in block.text
            or "->" in block.text
        )
        assert tested, f"{name(path)}, line {block.line}: a block that no test runs"


# ---------------------------------------------------------------------- what the text promises


def test_every_command_and_file_that_is_named_is_there() -> None:
    for path in DOCUMENTS:
        text = path.read_text(encoding="utf-8")
        for file in re.findall(r"\b(?:scripts|examples|tests)/[\w/]+\.\w+", text):
            assert (ROOT / file).exists(), f"{name(path)} names {file}"
        for words in re.findall(r"(?:`|\$ |    )spmdsim ((?:collective )?[a-z]+)\b", text):
            assert "usage: spmdsim" in run_here([*words.split(), "--help"], ROOT), (
                f"{name(path)}: spmdsim {words}"
            )


def test_the_readme_is_short_and_starts_with_two_commands() -> None:
    """Whoever reads it for the first time sees a picture, a program and what to type."""
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
def test_what_a_document_may_leave_open(wanted: str) -> None:
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


def test_the_comparisons_own_examples() -> None:
    import documents

    assert doctest.testmod(documents).failed == 0 and agree("1…3 4", "1…3 4") and not agree("1…3 4", "1…4 4")
