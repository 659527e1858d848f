"""Each setting is declared once and read by its declaration; wrong values and names get one line."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest
from processes import run_python

from spmdsim import settings
from spmdsim.cli.main import main
from spmdsim.errors import InputError
from spmdsim.settings import CHECK, DEADLINE, RANKS, RANKS_PER_NODE, RECORD, SETTINGS, TUNE

ROOT = Path(__file__).parents[1]
HERE = os.path.abspath(__file__)


@pytest.mark.parametrize(
    ("setting", "values"),
    [
        (RANKS, {"": None, "6": 6}),
        (CHECK, {"": "auto", "0": False, "1": True, "auto": "auto", "values": "values"}),
        (DEADLINE, {"": 60.0, "2.5": 2.5, "inf": float("inf")}),
        (TUNE, {"": "first", "off": "off", "full": "full", HERE: HERE}),
        (RECORD, {"": None, "calls.json": str(Path.cwd() / "calls.json")}),
        (RANKS_PER_NODE, {"": None, "2": 2}),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_a_setting_has_the_value_of_its_text(setting, values, monkeypatch) -> None:
    for text, value in values.items():
        monkeypatch.setenv(setting.name, text)
        assert setting.read() == value == setting.read({setting.name: text})
    monkeypatch.delenv(setting.name)
    assert setting.read() == setting.default == setting.read({})


@pytest.mark.parametrize(
    ("setting", "text", "hint"),
    [
        *((RANKS, text, "") for text in ("0", "-1", "six", "1.5", "9" * 30, "\u0661")),
        (CHECK, "often", ""),
        (CHECK, "valeus", "; did you mean 'values'?"),
        *((DEADLINE, text, "") for text in ("soon", "0", "-3", "nan")),
        (TUNE, "ful", "; did you mean 'full'?"),
        (TUNE, "no/such/file.json", ""),
        (RECORD, "no/such/folder/calls.json", ""),
        (RANKS_PER_NODE, "two", ""),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_a_wrong_value_is_one_line(setting, text: str, hint: str) -> None:
    with pytest.raises(InputError) as raised:
        setting.read({setting.name: text})
    assert str(raised.value) == f"{setting.name} must be {setting.rule}, got {text!r}{hint}"


def test_the_name_of_a_variable_is_only_in_its_declaration() -> None:
    names = re.compile(r"""["']SPMDSIM_\w+["']""")
    files = [path for path in (ROOT / "spmdsim").rglob("*.py") if names.search(path.read_text("utf-8"))]
    assert {path.name for path in files} == {"settings.py", "launcher.py"}
    assert len(SETTINGS) + 1 <= 7  # The last one is SPMDSIM_JOB, by which processes of a job exchange facts.


def test_the_manual_has_the_table_of_the_declaration() -> None:
    rows = [f"| `{one.name}` | {one.meaning} | {one.rule} | {one.shown} |" for one in SETTINGS]
    page = (ROOT / "docs" / "howto" / "settings.md").read_text("utf-8")
    assert "\n".join(["|---|---|---|---|", *rows, ""]) in page
    pages = [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "ARCHITECTURE.md"]
    named = {name for path in pages for name in re.findall(r"SPMDSIM_\w+", path.read_text("utf-8"))}
    assert named - {one.name for one in SETTINGS} == {"SPMDSIM_JOB", "SPMDSIM_CHEK"}


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("SPMDSIM_CHEK", "SPMDSIM_CHEK is not a setting; did you mean 'SPMDSIM_CHECK'?"),
        ("SPMDSIM_DEADLINES", "SPMDSIM_DEADLINES is not a setting; did you mean 'SPMDSIM_DEADLINE'?"),
        ("SPMDSIM_QQQ", "SPMDSIM_QQQ is not a setting; the settings are SPMDSIM_RANKS, SPMDSIM_CHECK, "),
        ("SPMDSIM_TUNING", "SPMDSIM_TUNING has no effect any more: set SPMDSIM_TUNE to the file"),
    ],
)
def test_a_wrong_name_gets_the_nearest(name: str, line: str) -> None:
    ((unknown, message),) = settings.explain_unknown_names(
        {name: "1", "SPMDSIM_JOB": "{}", "SPMDSIM_RANKS": "2"}
    )
    assert unknown == name and message.startswith(line)


#: Program text that runs the command in its arguments, because run_python runs only Python.
CHILD = "import subprocess, sys; sys.exit(subprocess.call(sys.argv[1:]))"
PROGRAM = "import spmdsim\nfor _ in range(3):\n    spmdsim.LockStep(2)\nprint(spmdsim.world().size)\n"


def test_one_process_of_a_job_reports_a_wrong_name_in_one_line(tmp_path, launcher) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    starts = [
        ["program.py"],
        ["-m", "spmdsim", "launch", "-n", 2, "program.py"],
        ["-m", "spmdsim", "launch", "-n", 2, "--world", "lockstep", "program.py"],
        ["-c", CHILD, *launcher.make_command(2, True), sys.executable, "program.py"],
    ]
    for start in starts:
        result = run_python(*start, cwd=tmp_path, SPMDSIM_CHEK="1", **launcher.choose_variables())
        assert result.returncode == 0 and result.stdout.split(), result
        assert result.stderr.count("SPMDSIM_CHEK") == 1, (start, result.stderr)


def test_an_import_reads_no_setting() -> None:
    result = run_python(
        "-c", "import spmdsim, sys; print('spmdsim.settings' in sys.modules)", SPMDSIM_CHEK="1"
    )
    assert (result.stdout, result.stderr) == ("False\n", "")


def test_doctor_shows_the_settings_in_force(monkeypatch, capsys) -> None:
    for one in SETTINGS:
        monkeypatch.delenv(one.name, raising=False)
    monkeypatch.setenv("SPMDSIM_CHECK", "values")
    monkeypatch.setenv("SPMDSIM_RANK", "4")
    assert main(["doctor", "--no-trial", "--json"]) == 0
    findings = {one["about"]: one for one in json.loads(capsys.readouterr().out)["findings"]}
    assert {one.name for one in SETTINGS} <= findings.keys()
    assert findings["SPMDSIM_CHECK"]["found"] == "values"
    assert findings["SPMDSIM_DEADLINE"]["found"] == "not set: 60 seconds"
    assert (
        findings["SPMDSIM_RANK"]["state"] == "warning"
        and "'SPMDSIM_RANKS'" in findings["SPMDSIM_RANK"]["advice"]
    )
    monkeypatch.setenv("SPMDSIM_DEADLINE", "soon")
    assert main(["doctor", "--no-trial"]) == 1
    assert "SPMDSIM_DEADLINE must be a number of seconds above 0" in " ".join(capsys.readouterr().out.split())
