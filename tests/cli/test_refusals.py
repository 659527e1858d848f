"""Every command refuses wrong arguments in one line with exit code 2 before it prints or draws."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from processes import run_python

from spmdsim.cli.main import COMMANDS, build_parser, main
from spmdsim.errors import InputError, UsageTypeError

PLAN = ("plan", "--mesh", "dp=2,tp=2", "--src", "dp,tp", "--dst", "tp,dp", "--shape", "4,4")
LAYOUT = ("layout", "--mesh", "dp=2,tp=2", "--dims", "dp,tp", "--shape", "4,4")
OPERATOR = ("layout", "--op", "matmul", "--shard", "((2,2),(2,1))", "--shapes", "(4,4),(4,4)")
SPLIT = ("layout", "--split", "embedding", "--shape", "8,8", "--partitions", "2")
SEARCH = ("search", "--program", "mlp", "-n", "4", "--layers", "1", "--hidden", "8", "--batch", "8")
SHOW = ("collective", "show", "all_reduce", "ring", "-n", "4")
CHECK = ("collective", "check", "ring")
ROOTED = ("collective", "check", "binomial", "--collective", "broadcast")
PREDICT = ("collective", "predict", "all_reduce", "-n", "4", "-e", "4K")
TRAIN = ("train", "--world", "lockstep", "-n", "2", "--steps", "1")
SIMULATE = ("simulate", "PROGRAM", "-n", "3")

NOWHERE = "cannot write '/no/such/folder/x': No such file or directory"

#: Arguments of a command and a part of its error message.
WRONG = [
    ((*PLAN, "--rank", "99"), "rank 99 is in neither mesh"),
    ((*PLAN[:-1], "(4,4"), "numbers and names must have at most one pair of brackets around them, got '(4,4'"),
    ((*PLAN[:-1], "4,,4"), "a shape must be integers such as 2,4, got '4,,4'"),
    ((*LAYOUT[:2], "dp=2,tp=2)", *LAYOUT[3:]), "at most one pair of brackets"),
    ((*PLAN, "--rank", "-1", "--json"), "rank -1 is in neither mesh"),
    ((*LAYOUT, "--rank", "99", "--svg", "PICTURE"), "99"),
    ((*OPERATOR, "--rank", "99", "--svg", "PICTURE"), "99"),
    ((*SPLIT, "--rank", "99", "--svg", "PICTURE"), "99"),
    ((*LAYOUT[:3], "--dims", "dp", "-n", "0", "--shape", "4"), "-n: must be a whole number from 1 on"),
    ((*OPERATOR, "-n", "9" * 20), "ranks must be at most 16,777,216"),
    ((*OPERATOR[:2], "ReduceSum", "--shapes", "(4,4)", "-n", "9" * 20), "ranks must be at most 16,777,216"),
    (
        (*OPERATOR[:2], "ReduceSum", "--shard", "((2,2),)", "--shapes", "(4,4)", "-n", "9" * 20),
        "ranks must be at most 16,777,216",
    ),
    *(
        ((*PLAN, "--dtype", name), message)
        for name, message in (
            ("object", "a plan would move elements of type object; tensors hold numbers"),
            ("U", "a plan would move elements of type <U0; tensors hold numbers"),
            ("f4,f4", "a plan would move elements of type [('f0', '<f4'), ('f1', '<f4')]; tensors hold numbers"),
            ("datetime64[s]", "a plan would move elements of type datetime64[s]; tensors hold numbers"),
            (",", "no element type is called ','"),
            ("finfo", "no element type is called 'finfo'"),
        )
    ),
    (("tune", "-o", "none.json", "--show"), "there is no file"),
    (("plan", "--mesh", "()", "--src", "dp", "--dst", "None", "--shape", "4"), "names no axes of the mesh one rank (which has none)"),
    *(
        (("search", "--program", name, "-n", "2", f"--{size}", "9" * 20), "elements, too many to count exactly: at most")
        for name, size in (("mlp", "hidden"), ("mlp", "batch"), ("convolutions", "batch"), ("gpt", "seq"), ("gpt", "vocab"))
    ),
    (("run", "--world", "lockstep", "-n", "2", "--only", "matmul", "--x", "x" * 300), "is no file: File name too long"),
    (("search", "x" * 300, "-n", "2"), "is no file: File name too long"),
    ((*TRAIN, "--data", "x" * 300), "is no file: File name too long"),
    ((*OPERATOR, "-n", "-1"), "-n: must be a whole number from 1 on"),
    ((*OPERATOR[:3], "--shard", "1e3", *OPERATOR[5:]), "--shard must be nested integers"),
    ((*OPERATOR[:5], "--shapes", "None"), "--shapes must be nested integers"),
    ((*OPERATOR[:5], "--shapes", "(True,2)"), "--shapes must be nested integers"),
    ((*OPERATOR[:5], "--shapes", "((1,(2,)),)"), "--shapes must be tuples of integers"),
    ((*LAYOUT[:2], "[['a',1],[2,3]]", *LAYOUT[3:]), "the ranks of a mesh must be nested integers"),
    ((*SHOW, "-b", "much"), "'much' is no size"),
    ((*SHOW, "-b", "much", "--only", "counts"), "'much' is no size"),
    ((*SHOW, "-b", "1001", "--itemsize", "4"), "nbytes must be a multiple of the element's 4 bytes, 0 or more, got 1,001"),
    ((*ROOTED, "--root", "7", "-n", "4"), "--root 7 is no rank of 0 ... 3: check rank counts above it, as with -n 8.."),
    ((*ROOTED, "--root", "3"), "--root 3 is no rank of 0 ... 1"),
    ((*ROOTED, "--root", "-1", "--json"), "--root -1 is no rank"),
    (("collective", "export", "all_reduce", "ring", "--reduce-time", "nan"), "must be a finite number"),
    ((*SEARCH, "--axes", "9"), "search: axes must be 1 to 2 for 4 ranks, got 9"),
    ((*SEARCH, "--axes", "0"), "search: axes must be 1 to 2 for 4 ranks, got 0"),
    ((*SEARCH, "--axes", "3", "--method", "double_recursion"), "--axes goes with other methods"),
    ((*SEARCH[:3], "-n", "2", "--layers", "10001"), "layers is 10,001; it has to be 10,000 or less"),
    ((*PREDICT[:5], "-f", "1.0000001"), "by a factor of 1.0000001 there are more than 10,000"),
    ((*CHECK, "-n", "1..20000"), "'1..20000' has more than 10,000 rank counts"),
    (("launch", "-n", "99999999", "PROGRAM"), "cannot start 99,999,999 ranks on this machine: at most 8,192"),
    (("run", "-n", "99999999"), "cannot start 99,999,999 ranks on this machine: at most 8,192"),
    (("search", "BROKEN", "-n", "2"), "broken.py is not valid Python: "),
    (("search", "BINARY", "-n", "2"), "binary.py is not valid Python: "),
    ((*SEARCH, "--why", "nothing", "((1,),)", "--svg", "PICTURE"), "nothing"),
    ((*TRAIN, "--rate", "-1"), "--rate: must be a finite number from 0 on, but got '-1'"),
    ((*SIMULATE, "--only", "5"), "--only 5: the ranks are 0 ... 2"),
    ((*SIMULATE, "--only", "-1", "--json"), "--only -1: the ranks are 0 ... 2"),
    *(
        ((*words, option, "/no/such/folder/x"), f"{option}: {NOWHERE}")
        for words, options in (
            (PLAN, "--svg --html"),
            (LAYOUT, "--svg --html"),
            (SEARCH, "--svg --html"),
            (SHOW, "--svg --html"),
            (PREDICT, "--svg --html --trace"),
            (TRAIN, "--svg --html --perfetto"),
            (SIMULATE, "--svg --html --trace"),
            (("collective", "bench"), "--svg --html"),
            (("collective", "calibrate"), "--svg --html --output"),
            (("explore",), "--output"),
        )
        for option in options.split()
    ),
    ((*PLAN, "--svg", "FOLDER"), "it is a folder, not a file"),
    ((*PLAN, "--svg", ""), "cannot write '': it is a folder, not a file"),
    *(
        (words, "' is a folder, not a ")
        for words in (
            ("launch", "-n", "1", "FOLDER"),
            ("search", "FOLDER", "-n", "2"),
            ("tune", "-o", "here.json", "FOLDER"),
            ("tune", "-n", "2", "-o", "here.json", "FOLDER"),
            ("labs", "check", "1", "FOLDER"),
        )
    ),
    (("tune", "-n", "2", "-o", "FOLDER"), "it is a folder, not a file"),
    (("launch", "-n", "1", "--record", "FOLDER", "PROGRAM"), "it is a folder, not a file"),
    ((*SEARCH[:3], "--heads", "4"), "program 'mlp' has no size 'heads'; it has layers, hidden, batch"),
    ((*PLAN[:1], "--src", "a=2,b=3: a,b", "--dst", "c=3,d: c,d", *PLAN[-2:]), "'d' in 'c=3,d' lacks a size"),
    (("labs",), "list|copy|check must be given: spmdsim labs list|copy|check"),
    (("labs", "check", "1", "BINARY"), "cannot be read as a program: it is not text in UTF-8"),
    ((*SEARCH[:3], "--mesh", "dpp"), "a mesh is written like dp=2,tp=4, but got 'dpp'"),
    ((*SEARCH[:3], "--mesh", "dp=x"), "a mesh is written like dp=2,tp=4, but got 'dp=x'"),
    ((*LAYOUT, "--rank", "x"), "--rank: must be a whole number, but got 'x'"),
    ((*SIMULATE, "--only", "x"), "--only: must be a whole number, but got 'x'"),
]  # fmt: skip


@pytest.mark.parametrize(
    "words, text", WRONG, ids=lambda value: " ".join(value) if isinstance(value, tuple) else None
)
def test_wrong_arguments_are_refused_before_any_output(
    words: tuple[str, ...], text: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "program.py"
    program.write_text("from mpi4py import MPI\nprint(MPI.COMM_WORLD.rank)\n")
    (tmp_path / "broken.py").write_text("def (\n")
    (tmp_path / "binary.py").write_bytes(b"\0\xff\xfe")
    written = {name.upper(): str(tmp_path / f"{name}.py") for name in ("broken", "binary")}
    paths_by_word = {
        **written,
        "PROGRAM": str(program),
        "PICTURE": str(tmp_path / "x.svg"),
        "FOLDER": str(tmp_path),
    }
    if "PROGRAM" in words:
        pytest.importorskip("greenlet")
    assert main([paths_by_word.get(word, word) for word in words]) == 2
    out, message = capfd.readouterr()
    assert re.fullmatch(r"spmdsim [^\n]+: error: [^\n]+\n", message) and text in message, message
    assert not out and not (tmp_path / "x.svg").exists()


@pytest.mark.parametrize("command", COMMANDS)
def test_arguments_have_a_help_text_and_types_that_state_the_rule(command: str) -> None:
    """Errors of Python's int and float do not state the rule."""
    parsers = [build_parser(command)]
    for parser in parsers:
        for action in parser._actions:
            assert action.type not in (int, float), action.option_strings
            assert action.help or isinstance(action.choices, dict), (parser.prog, action.dest)
            parsers += action.choices.values() if isinstance(action.choices, dict) else []


def test_results_that_cannot_be_drawn_are_not_printed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("spmdsim.figures.figures.MOST_CHARACTERS", 10)
    for words in (PLAN, SEARCH):
        assert main([*words, "--svg", str(tmp_path / "x.svg")]) == 2
        out, message = capfd.readouterr()
        assert not out and message.count("\n") == 1 and "must have at most 10 characters" in message
    assert not list(tmp_path.iterdir())


def test_json_and_svg_go_together(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main([*PLAN, "--json", "--svg", str(tmp_path / "x.svg")]) == 0
    assert (tmp_path / "x.svg").read_text().startswith("<svg") and capfd.readouterr().out.startswith("{")


def test_a_file_without_write_permission_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("os.access", lambda path, mode: False)
    assert main([*PLAN, "--svg", str(tmp_path / "x.svg")]) == 2
    out, message = capfd.readouterr()
    assert not out and message.endswith("x.svg': Permission denied (try spmdsim plan --help)\n")


@pytest.mark.parametrize("count", [0, -2])
def test_ranks_per_node_are_one_or_more(count: int) -> None:
    pytest.importorskip("greenlet")
    from spmdsim.simulation import simulate

    with pytest.raises(
        InputError, match=f"nodes: ranks and ranks per node must be 1 or more, got 2 and {count}"
    ):
        simulate(lambda: None, 2, nodes=count)
    with pytest.raises(UsageTypeError, match="has no argument 'ranks_per_node'; did you mean 'nodes'"):
        simulate(lambda: None, 2, ranks_per_node=count)


def test_exports_check_their_file_first(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        "spmdsim.cli.collective.formats.build_schedule", lambda *_: pytest.fail("works first")
    )
    words = ("collective", "export", "all_reduce", "ring", "-n", "2", "-o", "/no/such/folder/x")
    assert main(words) == 2
    assert "error: cannot write '/no/such/folder/x" in capfd.readouterr().err


@pytest.mark.parametrize(
    "words, text",
    [
        (("--program", "mpl"), "no built-in program is called 'mpl'; did you mean 'mlp'?"),
        (("--collective", "all_reduce"), "--collective goes with --algorithm"),
        (("--collective", "al_reduce"), "--collective goes with --algorithm"),
    ],
)
def test_a_page_is_not_computed_for_wrong_arguments(
    words: tuple[str, ...], text: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("spmdsim.figures.explore.page", lambda *_: pytest.fail("works first"))
    assert main(["explore", *words]) == 2
    assert text in capfd.readouterr().err


def test_a_page_is_not_computed_for_a_folder_without_write_permission(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("os.access", lambda path, mode: False)
    monkeypatch.setattr("spmdsim.figures.explore.page", lambda *_: pytest.fail("works first"))
    assert main(["explore"]) == 2
    assert (
        capfd.readouterr().err == "spmdsim explore: error: cannot write 'explore.html': Permission denied\n"
    )


@pytest.mark.parametrize("folder, why", [("file/labs", "Not a directory"), ("file", "Not a directory")])
def test_labs_are_copied_into_folders_only(
    folder: str, why: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert main(["labs", "copy", str(tmp_path / folder)]) == 2
    captured = capfd.readouterr()
    assert (
        captured.err == f"spmdsim labs copy: error: cannot write to {tmp_path / folder}: {why}\n"
        and not captured.out
    )


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize(
    "words, shown",
    [
        ((*SEARCH, "--svg", "/dev/full", "--json"), '"comparison"'),
        ((*PLAN, "--html", "/dev/full"), "bound"),
        ((*LAYOUT, "--svg", "/dev/full"), "rank 3"),
        ((*SHOW, "--svg", "/dev/full"), "ring"),  # the text appears if the picture cannot be written
        ((*PREDICT, "--trace", "/dev/full"), "ring"),
        ((*TRAIN, "--perfetto", "/dev/full"), "loss is"),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value[:1]),
)
def test_results_are_printed_if_their_file_cannot_be_written(
    words: tuple[str, ...], shown: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    captured = capfd.readouterr()
    assert shown in captured.out
    last = captured.err.splitlines()[-1]
    assert re.fullmatch(r"spmdsim \w+( \w+)?: error: cannot write '/dev/full': No space left on device", last)
    assert "wrote" not in captured.err and "Traceback" not in captured.err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_results_of_ranks_are_printed_if_their_file_cannot_be_written() -> None:
    result = run_python("-m", "spmdsim", "launch", "-n", "2", "-m", "spmdsim", *SEARCH, "--svg", "/dev/full")
    assert result.returncode == 2 and "Megatron" in result.stdout
    assert result.stderr == "spmdsim search: error: cannot write '/dev/full': No space left on device\n"
