"""`spmdsim collective` has the right run_collective, exit codes and pictures; example algorithms get findings."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spmdsim import figure
from spmdsim.cli.collective.schedule_arguments import rank_counts
from spmdsim.cli.main import main
from spmdsim.collectives import algorithms, make_schedule, schedule_of, unroll
from spmdsim.figures.schedule_figures import arrow_lines

OWN_ALGORITHMS = Path(__file__).parents[2] / "examples" / "own_algorithms.py"


def run_collective(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str]:
    """Run `spmdsim collective` with arguments; return its exit code and output."""
    code = main(["collective", *argv])
    return code, capsys.readouterr().out


def test_the_state_table_shows_sums_and_changes(capsys: pytest.CaptureFixture[str]) -> None:
    code, text = run_collective(capsys, "show", "all_reduce", "ring", "-n", "3", "--only", "states")
    tables = dict(section.split("\n", 1) for section in text.strip("\n").split("\n\n")[2:])
    assert code == 0 and list(tables) == ["start", *(f"after round {i}" for i in range(4))]
    heading, *rows = tables["start"].splitlines()
    assert heading == "rank  chunk 0  chunk 1  chunk 2"
    assert rows == [f"   {r}     {r}        {r}        {r}" for r in range(3)]
    assert tables["after round 1"].splitlines() == [
        heading,
        "   0    [∑]      0+2       0",
        "   1     1       [∑]      0+1",
        "   2    1+2       2       [∑]",
    ]
    assert tables["after round 3"].splitlines() == [
        heading,
        "   0     ∑       [∑]       ∑",
        "   1     ∑        ∑       [∑]",
        "   2    [∑]       ∑        ∑",
    ]


def test_messages_are_arrows_between_ranks(capsys: pytest.CaptureFixture[str]) -> None:
    story = unroll(schedule_of("broadcast", "binomial", 5))
    assert arrow_lines(story) == [
        "         0     1     2     3     4",
        "round 0  ●─────┼─────┼─────┼────▶●",
        "round 1  ●─────┼────▶●     │     │",
        "round 2  ●────▶●     ●────▶●     │",
    ]
    shown = ("show", "all_reduce", "ring", "-n", "2", "--only", "messages")
    assert run_collective(capsys, *shown)[1].splitlines()[-6:] == [
        "         0     1",
        "round 0  ●─+1─▶●",
        "         ●◀─+0─●",
        "round 1  ●─0──▶●",
        "         ●◀─1──●",
        "",
    ]
    assert "too many for a picture" in arrow_lines(unroll(schedule_of("all_reduce", "ring", 21)))[0]


def test_every_message_is_an_arrow_and_every_arrow_a_message() -> None:
    for chosen in algorithms():
        story = unroll(make_schedule(chosen, 6 if chosen.fits(6) else 8))
        messages = sum(map(len, story.steps))
        text = "\n".join(arrow_lines(story))
        assert text.count("▶") + text.count("◀") == messages, chosen.full_name
        assert len(story.states) == len(story.steps) + 1
        drawing = ET.fromstring(figure(story).svg)
        arrows = [e for e in drawing.iter("{http://www.w3.org/2000/svg}g") if e.get("class") == "arrow"]
        assert len(arrows) == messages + 1  # plus the arrow of the legend


def test_svg_refers_to_no_other_file() -> None:
    text = figure(unroll(schedule_of("all_reduce", "rabenseifner", 6))).svg
    assert not re.search(r"href|url\((?!#)|@import|<script", text)
    wide = re.search(r'viewBox="0 0 (\d+) (\d+)"', text)
    assert wide is not None
    xs = [float(x) for x in re.findall(r' x[12]?="([\d.]+)"', text)]
    assert max(xs) <= int(wide[1])
    crowded = figure(unroll(schedule_of("all_reduce", "ring", 128)))
    assert "messages are too many for arrows" in crowded.notes[0] and 'class="arrow"' not in crowded.svg


def test_show_prints_counts_states_and_messages(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, text = run_collective(capsys, "show", "all_reduce", "ring", "-n", "6")
    assert code == 0
    for words in (
        "after round 9",
        "rounds          10  (lower bound 3)",
        "critical bytes  1.667 m  (lower bound 1.667 m)",
        "depth 5",
        "rank order      not kept: unfit for operators that do not commute",
        "round 9   ●─2──▶●─3──▶●─4──▶●─5──▶●─0──▶●",
    ):
        assert words in text
    picture = tmp_path / "ring.svg"
    assert run_collective(capsys, "show", "allreduce", "ring", "-n", "6", "--svg", str(picture)) == (0, "")
    assert ET.fromstring(picture.read_text()).tag.endswith("svg")
    code, text = run_collective(capsys, "show", "scan", "recursive_doubling", "-n", "3", "--json")
    assert json.loads(text)["states"][-1][2]["0"] == [0, 1, 2]
    code, text = run_collective(capsys, "show", "all_reduce", "ring", "-n", "64", "--only", "counts")
    assert "rounds          126  (lower bound 6)" in text
    code, text = run_collective(
        capsys, "show", "all_reduce", "ring", "-n", "3", "-b", "1000", "--only", "counts"
    )
    assert re.search(r"1 +4 +4 +1,334 +1,333 +666 +1,333", text)
    for line in (
        "m = bytes of one rank's vector: 1,000 bytes",
        "critical bytes  1,336  (lower bound 1,334)",
        "reduced bytes   668  (lower bound 667)",
    ):
        assert line in text.splitlines(), "all counts are in bytes, not in multiples of m"
    code, text = run_collective(capsys, "show", "all_reduce", f"{OWN_ALGORITHMS}:wrong_neighbour", "-n", "3")
    assert code == 1
    assert "wrong: round 0: rank 0 sends chunk 0 to rank 1: nobody receives this message" in text


@pytest.mark.parametrize(
    "words", [("-b", "999"), ("--only", "states"), ("--only", "messages", "--only", "counts")]
)
def test_json_has_equal_keys_for_right_and_wrong_algorithms(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "raising.py"
    file.write_text("def raising(rank, size):\n    yield []\n    raise ValueError('x')\n")
    functions = (f"{OWN_ALGORITHMS}:my_all_reduce", f"{OWN_ALGORITHMS}:wrong_neighbour", f"{file}:raising")
    shown = [
        json.loads(run_collective(capsys, "show", "all_reduce", one, "-n", "3", "--json", *words)[1])
        for one in functions
    ]
    checked = [
        json.loads(run_collective(capsys, "check", one, "-n", "3", "--json")[1])["results"][0]
        for one in functions
    ]
    for right, *wrong in (shown, checked):
        assert right["ok"] and right["ranks"] == 3 and right["chunks"] == 3
        for one in wrong:
            assert {*one} == {*right} and not one["ok"] and one["findings"] and one["score"] == 0
            assert one["ranks"] == 3 and one["bound"] == right["bound"] and one.get("rounds") is None


def test_check_has_options_for_ports_and_chunks(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "slips.py"
    file.write_text(
        "from spmdsim.collectives import send, recv\n"
        "def at_once(rank, size):\n"
        "    others = [peer for peer in range(size) if peer != rank]\n"
        "    yield [send(p, rank) for p in others] + [recv(p, p) for p in others]\n"
    )
    gather = ("check", f"{file}:at_once", "--collective", "all_gather", "-n", "3,4")
    assert run_collective(capsys, *gather)[0] == 1
    assert run_collective(capsys, *gather, "--ports", "n-1")[0] == 0
    assert main(["collective", *gather, "--ports", "many"]) == 2
    assert "the number of ports must be arithmetic" in capsys.readouterr().err
    ring = f"{OWN_ALGORITHMS}:my_all_reduce"
    for option, what in (("--ports", "number of ports"), ("--chunks", "chunk count")):
        for count in ("0", "q", "n-9"):
            assert main(["collective", "check", ring, "-n", "1..4", f"{option}={count}"]) == 2
            assert re.search(f"the {what} must be 1 or more, but '{count}' is ", capsys.readouterr().err)
        assert main(["collective", "check", ring, "-n", "3", f"{option}=1/(n-3)"]) == 2
        assert "divides by 0 on 3 ranks" in capsys.readouterr().err
    assert main(["collective", "show", "all_reduce", ring, "--chunks", "0"]) == 2
    assert "the chunk count must be 1 or more, but '0' is 0 on 8 ranks" in capsys.readouterr().err
    assert main(["collective", "check", "ring", "-n", "4", "--chunks", "9**9**9"]) == 2
    assert "ring says its own" in capsys.readouterr().err


def test_search_path_of_user_file_stays(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The function imports a module of the added folder when it runs, after the file was loaded."""
    (tmp_path / "libraries").mkdir()
    (tmp_path / "libraries" / "rings.py").write_text(
        OWN_ALGORITHMS.read_text(encoding="utf-8"), encoding="utf-8"
    )
    file = tmp_path / "mine.py"
    file.write_text(
        f"import sys\nsys.path.insert(0, {str(tmp_path / 'libraries')!r})\n"
        "def ring(rank, size):\n    import rings\n    return rings.my_all_reduce(rank, size)\n",
        encoding="utf-8",
    )
    assert run_collective(capsys, "check", f"{file}:ring", "-n", "2")[0] == 0


def test_check_skips_unsupported_rank_counts(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = importlib.import_module("spmdsim.collectives.algorithm")._REGISTER["all_gather"]
    (bruck,) = (entry for entry in algorithms("all_gather") if entry.name == "bruck")  # fills the registry
    limited = replace(bruck, condition="n == p", condition_words="a power of two")
    monkeypatch.setitem(registry.data, "bruck", limited)
    code, text = run_collective(capsys, "check", "bruck", "--collective", "all_gather", "-n", "2..4")
    assert code == 0 and "needs a power of two: not checked on 3 ranks" in text
    for form in ((), ("--json",)):
        code, text = run_collective(capsys, "check", "bruck", "--collective", "all_gather", "-n", "3", *form)
        # An algorithm that was not checked is neither correct nor wrong.
        assert code == 2 and ("nothing was checked" in text) == (not form)
    code, text = run_collective(capsys, "predict", "all_gather", "-n", "6")
    assert code == 0 and "\nbruck " not in text


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["show", "all_reduce", "rinf"], "did you mean 'ring'"),
        (["show", "all_reduze", "ring"], "there is no collective 'all_reduze'"),
        (["show", "all_reduce", "ring", "-n", "100000"], "too many to follow one by one"),
        (["check", "ring", "-n", "5000"], "too many to follow one by one"),
        (
            ["check", f"{OWN_ALGORITHMS}:my_all_reduce", "-n", "4000"],
            "chunks must be passed for more than 2048 ranks",
        ),
        (["check", "nowhere.py:f"], "there is no file 'nowhere.py'"),
        (["check", f"{OWN_ALGORITHMS}:my_all_reduc"], "did you mean 'my_all_reduce'?"),
        (["check", "my.py"], "say which function, as in my.py:my_ring"),
        (["check", "ring", "-n", "2-4"], "write 6 or 2..16 or 2,4,8"),
        (["check", "ring", "-n", "4..2"], "lower one first"),
        (["export", "broadcast", "binomial", "--format", "msccl"], "MSCCL's XML has no broadcast"),
        (["export", "all_reduce", "ring", "-b", "many"], "is no size"),
        (
            ["export", "all_reduce", "ring", "-b", "10", "--itemsize", "4"],
            "nbytes must be a multiple of the element's 4 bytes, 0 or more, got 10",
        ),
        (["show", "all_reduce", "ring", "-b", "8", "--itemsize", "0"], "must be a whole number from 1 on"),
        (["show", "all_reduce", "ring", "-b", "nan"], "'nan' is no whole number of bytes from 0 to"),
        (["show", "all_reduce", "ring", "-b", "1e400"], "'1e400' is no whole number of bytes from 0 to"),
        (["show", "all_reduce", "ring", "-b", "1e30"], "'1e30' is no whole number of bytes from 0 to"),
        (["show", "broadcast", "knomial", "--radix", "1"], "radix must be 2 or more, got 1"),
        (["diff", "all_reduce", "ring", "king"], "did you mean 'ring'"),
    ],
)
def test_errors_are_one_line(capsys: pytest.CaptureFixture[str], argv: list[str], message: str) -> None:
    assert main(["collective", *argv]) == 2
    text = capsys.readouterr().err
    assert message in text and "Traceback" not in text and len(text.strip().splitlines()) == 1


def test_list_has_formulas_and_library_names(capsys: pytest.CaptureFixture[str]) -> None:
    code, text = run_collective(capsys, "list")
    assert code == 0
    for chosen in algorithms():
        assert chosen.name in text
    assert ":func:" not in text and "``" not in text
    code, text = run_collective(capsys, "list", "allreduce", "--json")
    rows = {row["algorithm"]: row for row in json.loads(text)}
    assert rows["ring"]["formula"] == {"rounds": "2*(n-1)", "beta": "2*q", "gamma": "q", "only_if": None}
    assert rows["rabenseifner_half_fold"]["libraries"] == {"openmpi": ["rabenseifner", "6"]}
    assert {row["collective"] for row in rows.values()} == {"all_reduce"}


def test_diff_compares_counts_and_messages(capsys: pytest.CaptureFixture[str]) -> None:
    code, text = run_collective(capsys, "diff", "all_reduce", "recursive_doubling", "rabenseifner", "-n", "6")
    assert code == 0
    assert re.search(r"rounds +4 +6", text) and re.search(r"critical bytes +4 m +3.5 m", text)
    code, text = run_collective(capsys, "diff", "all_reduce", "ring", "ring_openmpi", "-n", "4", "--json")
    assert json.loads(text)["differs_from_round"] == 0
    code, text = run_collective(capsys, "diff", "broadcast", "knomial", "binomial", "-n", "8", "--radix", "2")
    assert "their messages are identical in every round" in text
    code, text = run_collective(
        capsys, "diff", "all_reduce", "reduce_broadcast", "linear", "-n", "2", "--json"
    )
    assert json.loads(text)["differs_from_round"] is None


def test_check_judges_each_rank_count_and_root(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    solution = f"{OWN_ALGORITHMS}:my_all_reduce"
    code, text = run_collective(capsys, "check", solution, "-n", "2..16", "--json")
    result: dict[str, Any] = json.loads(text)
    assert code == 0 and result["ok"] and 60 < result["score"] < 70
    assert [row["ranks"] for row in result["results"]] == list(range(2, 17))
    assert all(row["beta"] == row["bound"]["beta"] for row in result["results"])

    file = tmp_path / "mine.py"
    file.write_text(
        "from spmdsim.collectives import send, recv\n"
        "def tell(rank, size, root=0):\n"
        "    for i in range(1, size):\n"
        "        if rank == root:\n"
        "            yield [send(i, 0)]\n"
        "        elif rank == i:\n"
        "            yield [recv(root, 0)]\n"
    )
    code, text = run_collective(capsys, "check", f"{file}:tell", "--collective", "broadcast", "-n", "3")
    assert code == 1
    assert "root 1: round 0: rank 1 sends a message to itself (send to 1: chunk 0)" in text
    assert run_collective(capsys, "check", f"{file}:tell", "--collective", "broadcast", "--root", "0")[0] == 0


def test_export_writes_goal_and_msccl(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, text = run_collective(capsys, "export", "all_reduce", "ring", "-n", "4", "-b", "4K")
    assert code == 0 and text.startswith("num_ranks 4") and "send 1024b to 1 tag 0" in text
    target = tmp_path / "ring.xml"
    argv = ("export", "all_reduce", "ring", "-n", "4", "--format", "msccl", "-o", str(target))
    assert run_collective(capsys, *argv) == (0, "")
    assert ET.fromstring(target.read_text()).attrib["coll"] == "allreduce"


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_pictures_need_no_unicode(encoding: str) -> None:
    command = [sys.executable, "-m", "spmdsim", "collective", "show", "all_reduce", "ring", "-n", "2"]
    environment = {
        **os.environ,
        "PYTHONIOENCODING": encoding,
        "PYTHONPATH": str(OWN_ALGORITHMS.parent.parent),
    }
    done = subprocess.run(command, env=environment, capture_output=True, timeout=60)
    text = done.stdout.decode(encoding)
    assert done.returncode == 0, done.stderr.decode()
    assert "round 0  ?" in text


def test_rank_counts_and_sizes_are_parsed(capsys: pytest.CaptureFixture[str]) -> None:
    assert rank_counts("2..4, 8") == [2, 3, 4, 8]
    for text, nbytes in (("8", 8), ("64K", 65536), ("1MiB", 1 << 20), ("0.5k", 512), ("2GB", 2 << 30)):
        words = ("predict", "all_reduce", "-n", "2", "-b", text, "-e", text, "--algorithms", "ring", "--json")
        points = json.loads(run_collective(capsys, *words)[1])["points"]
        assert [point["nbytes"] for point in points] == [nbytes]


@pytest.mark.parametrize("name, ranks, finding", [
    ("one_round_too_many", "2..5", "    2  wrong: round 1: rank 0 adds rank 0 twice to chunk 0 (and 1 more)"),
    ("send_before_receive", "3", "round 0: ranks wait for each other: 0 → 1 → 2 → 0 (rank 0: send to 1: chunk 0)"),
    ("wrong_neighbour", "2", "    2  correct       2      1             1 m    1 m   75.0"),
    ("wrong_neighbour", "3", "    3  wrong: round 0: rank 0 sends chunk 0 to rank 1: nobody receives this"),
])  # fmt: skip
def test_typical_mistakes_are_found(
    capsys: pytest.CaptureFixture[str], name: str, ranks: str, finding: str
) -> None:
    code, text = run_collective(capsys, "check", f"{OWN_ALGORITHMS}:{name}", "-n", ranks)
    assert finding in text and code == ("wrong" in finding or "wait" in finding)


def test_every_option_that_names_algorithms_takes_a_function_of_a_file(
    capsys: pytest.CaptureFixture[str],
) -> None:
    function, small = f"{OWN_ALGORITHMS}:my_all_reduce", ("-b", "1K", "-e", "1K")
    commands = [
        ("predict", "all_reduce", "-n", "4", *small, "--algorithms", f"{function},ring"),
        ("predict", "all_reduce", "-n", "4", *small, "--topology", "ring", "--links", function),
        ("show", "all_reduce", function, "-n", "4"),
        ("diff", "all_reduce", function, "ring", "-n", "4"),
        ("export", "all_reduce", function, "-n", "4"),
        ("check", function, "-n", "4"),
    ]
    for words in commands:
        code, text = run_collective(capsys, *words)
        assert code == 0 and ("my_all_reduce" in text or words[0] == "export"), words
    code, text = run_collective(capsys, *commands[1])
    assert code == 0 and text.startswith("all_reduce my_all_reduce of 1,024 bytes on ring 4, 4 ranks")


@pytest.mark.parametrize(
    ("algorithm", "message"),
    [
        ("my.py", "say which function, as in my.py:my_ring"),
        ("nowhere.py:f", "there is no file 'nowhere.py'"),
        (f"{OWN_ALGORITHMS}:my_all_reduc", "did you mean 'my_all_reduce'?"),
        ("rinf", "did you mean 'ring'?"),
    ],
)
def test_names_of_algorithms_are_read_in_one_way(
    capsys: pytest.CaptureFixture[str], algorithm: str, message: str
) -> None:
    for words in (
        ("predict", "all_reduce", "--algorithms", algorithm),
        ("predict", "all_reduce", "--links", algorithm),
        ("bench", "all_reduce", "--ranks", "2", "--algorithms", algorithm),
        ("show", "all_reduce", algorithm),
        ("diff", "all_reduce", "ring", algorithm),
        ("export", "all_reduce", algorithm),
        ("check", algorithm),
    ):
        assert main(["collective", *words]) == 2
        text = capsys.readouterr().err
        assert message in text and len(text.strip().splitlines()) == 1, words
