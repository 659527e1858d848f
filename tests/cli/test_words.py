"""An unknown word on the command line gets the nearest known word and the help that lists all words."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from spmdsim.cli.main import COMMANDS, build_parser, main
from spmdsim.errors import MOST_LISTED, SpmdError, unknown
from spmdsim.tables import Table

PLAN = ("plan", "--mesh", "dp=2,tp=4", "--src", "dp,tp", "--dst", "tp,dp", "--shape", "8,8")

WRONG = [
    (("rnu",), "run", "spmdsim"),
    (("run", "--ony", "matmul"), "--only", "spmdsim run"),
    (("run", "--world", "lockstep", "-n", "2", "--only", "linaer"), "linear", "spmdsim run"),
    (("run", "--world", "lokstep"), "lockstep", "spmdsim run"),
    (("run", "--world", "lockstep", "-n", "2", "--dtype", "flaot32"), "float32", "spmdsim run"),
    (("run", "--inject", "dorp"), "drop", "spmdsim run"),
    (("layout", "--op", "matmull", "--shard", "((1,1),(1,1))", "--shapes", "(2,2),(2,2)"), "matmul", "spmdsim layout"),
    (("search", "--program", "gtp"), "gpt", "spmdsim search"),
    (("search", "--program", "mlp", "--method", "exat"), "exact", "spmdsim search"),
    (("search", "--program", "mlp", "--machine", "laptp"), "laptop", "spmdsim search"),
    (("search", "--program", "mlp", "-n", "2", "--layers", "1", "--why", "fc9", "((2,1),(1,1))"), "fc0", "spmdsim search"),
    (("collective", "bench", "-d", "flot32"), "float32", "spmdsim collective bench"),
    (("collective", "bench", "all_redcue", "--ranks", "2"), "all_reduce", "spmdsim collective bench"),
    (("collective", "bench", "all_reduce", "--ranks", "2", "--algorithms", "rign"), "ring", "spmdsim collective bench"),
    (("train", "--strategies", "simpel"), "simple", "spmdsim train"),
    ((*PLAN, "--style", "mindspor"), "mindspore", "spmdsim plan"),
    ((*PLAN, "--machine", "clutser"), "cluster", "spmdsim plan"),
    (("launch", "--lgo-dir", "x", "-n", "2", "a.py"), "--log-dir", "spmdsim launch"),
    (("collective", "shwo", "all_reduce", "ring"), "show", "spmdsim collective"),
    (("collective", "show", "all_redcue", "ring", "-n", "4"), "all_reduce", "spmdsim collective show"),
    (("collective", "show", "all_reduce", "rinng", "-n", "4"), "ring", "spmdsim collective show"),
    (("collective", "predict", "all_reduce", "-n", "8", "--topology", "tours"), "torus", "spmdsim collective predict"),
    (("collective", "predict", "all_reduce", "-n", "8", "--topology", "torus:2x4,sahpe=3"), "shape", "spmdsim collective predict"),
    (("layout", "--op", "ReduceSumm", "--shard", "((2,2),)", "--shapes", "(2,2)"), "ReduceSum", "spmdsim layout"),
    (("tune", "--shwo"), "--show", "spmdsim tune"),  # the unknown option is reported before the missing -o
    (("labs", "chekc", "1"), "check", "spmdsim labs"),
    (("labs", "check", "1", "--task", "most_byets"), "most_bytes", "spmdsim labs check"),
    (("layout", "--device-matrix", "2,2", "--alias", "data,model", "--tensor-map", "data,modle", "--shape", "4,4"), "model", "spmdsim layout"),
    (("collective", "list", "allredcue"), "all_reduce", "spmdsim collective list"),
]  # fmt: skip


@pytest.mark.parametrize(
    "words, right, name", WRONG, ids=lambda value: None if isinstance(value, str) else value[-1]
)
def test_errors_name_the_nearest_known_word(words, right, name, capfd):
    try:
        code = main(words)
    except SystemExit as leaving:
        code = leaving.code
    captured = capfd.readouterr()
    assert code == 2 and captured.out == ""
    assert re.fullmatch(rf"{name}: error: [^\n]+ \(try {name} --help\)\n", captured.err), captured.err
    assert f"did you mean {right!r}?" in captured.err


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_refuses_unknown_options(command, capsys):
    required = {"plan": PLAN[1:], "simulate": ("a.py",), "launch": ("a.py",), "calls": ("a",), "collective": ("show", "all_reduce", "ring")}  # fmt: skip
    words = [command, "--no-such-word-at-all", *required.get(command, ())]
    with pytest.raises(SystemExit):
        build_parser(command).parse_args(words)
    assert re.match(rf"spmdsim {command}( show)?: error: .*--help\)\n$", capsys.readouterr().err)


def test_a_word_without_a_near_one_gets_all_known_words():
    error = unknown("no star is called 'x'", "x", ["Sirius", "Vega"])
    assert str(error) == "no star is called 'x'; there are Sirius, Vega" and error.wrong_word
    names = [f"planet{k}" for k in range(MOST_LISTED + 1)]
    assert str(unknown("no planet", "planet33", names)).endswith("'planet3'?")
    assert len(str(unknown("no planet", "x", names))) > 100
    assert isinstance(unknown("a", "b", ["c"], SpmdError), SpmdError)


def test_an_unknown_dialect_gets_the_nearest_name():
    from spmdsim import dialects

    with pytest.raises(AttributeError, match="nearest: mindspore"):
        dialects.mindspor


@pytest.mark.parametrize("columns", [60, 80])
@pytest.mark.parametrize(
    "words",
    [PLAN, ("search", "--program", "mlp", "--layers", "2", "--hidden", "64", "-n", "4")],
    ids=["plan", "search"],
)
def test_tables_fit_narrow_terminals_and_keep_all_words(words, columns, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    assert main(words) == 0
    narrow = capsys.readouterr().out
    monkeypatch.delenv("COLUMNS")
    assert main(words) == 0
    wide = capsys.readouterr().out
    assert max(map(len, wide.splitlines())) > 80 >= columns >= max(map(len, narrow.splitlines()))
    ruled = re.compile("-{2,}")  # rules below heads differ in length
    assert Counter(ruled.sub("", narrow).split()) >= Counter(ruled.sub("", wide).split())


NARROW = (
    ("layout", "--mesh", "dp=2,tp=4", "--dims", "dp,tp", "--shape", "6,10"),
    ("collective", "show", "all_reduce", "ring", "-n", "4"),
    ("collective", "diff", "all_reduce", "ring", "rabenseifner", "-n", "4"),
    ("collective", "list", "all_reduce"),
    ("collective", "predict", "all_reduce", "-n", "4", "-e", "4K"),
    ("search", "--program", "mlp", "--layers", "1", "--hidden", "64", "-n", "4"),
)


@pytest.mark.parametrize("words", NARROW, ids=" ".join)
def test_commands_fit_very_narrow_terminals(words, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    assert main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert 30 < max(map(len, lines)) <= 40, max(lines, key=len)


def test_rows_are_numbered_if_the_first_column_is_too_wide():
    table = Table(("variable", "path"), [("A_LONG_NAME_OF_IT", "/a/path/of/25/characters/"), ("B", "/x")])
    assert max(map(len, table.text(30).split("\n"))) <= 30
    assert "1  A_LONG_NAME_OF_IT" in table.text(30) and "1  /a/path/of/25/characters/" in table.text(30)
    assert "#" not in table.text()


def test_a_table_that_is_too_wide_continues_below():
    table = Table(("what", "layouts", "us"), [("add", "S(0) R", 1.5), ("relu", "R R", 12)], "title", (2,))
    narrow = ["what  layouts", "----  -------", "add   S(0) R", "relu  R R"]
    narrow += ["", "what   us", "----  ---", "add   1.5", "relu   12"]
    assert table.text(14).split("\n") == ["title", *narrow]
    assert table.text(18) == table.text() and "relu  R R       12" in table.text()


def test_lines_around_a_table_are_broken_between_words():
    table = Table(("a",), [(1,)], "a title of five words", notes=("see [0:4, 4:8] below",))
    assert table.text(12).split("\n") == [
        "a title of",
        "five words",
        "a",
        "-",
        "1",
        "see",
        "[0:4, 4:8]",
        "below",
    ]
    assert table.text().split("\n")[-1] == "see [0:4, 4:8] below"


def test_punctuation_stays_at_its_parenthesis():
    table = Table(("element",), [("on rank 2 at (902, 6): got 0.0, expected [1, 2].",)])
    assert "(902, 6): got" in table.text(30) and "[1, 2]." in table.text(30)


def test_columns_that_identify_rows_are_repeated_and_words_are_not_cut():
    rows = [("a", "b", "one two three", "[0:4, 4:8]"), ("a", "c", "four", "[4:8, 4:8]")]
    text = Table(("x", "y", "words", "slice"), rows).text(16)
    assert max(map(len, text.split("\n"))) <= 16
    assert "a  b  one two" in text and "      three" in text and "a  c  [4:8, 4:8]" in text


@pytest.mark.parametrize("words", [["plan"], ["collective"], ["tune"], ["labs"], []], ids=" ".join)
def test_help_fits_narrow_terminals(words, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main([*words, "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    commands = [line for line in lines if "spmdsim" in line and line.startswith(" ")]
    assert commands and all(len(line) <= 80 for line in lines if line not in commands)


def test_help_fills_paragraphs(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["layout", "--help"]) == 0
    *_, paragraph = capsys.readouterr().out.split("\n\n")
    *filled, last = paragraph.strip().split("\n")
    assert "strides" in paragraph and len(filled) > 2
    following = [line.split()[0] for line in (*filled[1:], last)]
    assert all(len(line) <= 78 < len(f"{line} {word}") for line, word in zip(filled, following))
