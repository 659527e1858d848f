"""A quick sample of the faults in ``tests/faults/`` and their runner work; ``scripts/faults.sh`` runs all faults."""

from __future__ import annotations

import pytest
from faults.case import DEADLINE, EMULATED, LAUNCH, MPIRUN, Case
from faults.cases import CASES, HARMLESS, QUICK
from faults.running import GOOD, LEFT, NAMED, NOT_ENDED, RIGHT, SILENT, UNNAMED, judge, run
from faults.table import PAGE, page

NAMED_CASES = {case.name: case for case in CASES}


@pytest.mark.faults
@pytest.mark.parametrize(("name", "start"), QUICK)
def test_a_fault_is_named_and_the_job_ends(name: str, start: str, launcher: object) -> None:
    result = run(NAMED_CASES[name], start)
    assert result.outcome in GOOD, result


def test_at_least_120_cases_compile() -> None:
    assert len(CASES) >= 120 and len({case.name for case in CASES}) == len(CASES)
    for case in CASES:
        assert case.ways and (case.says or case.signal or not case.fails), case.name
        for start in case.ways:
            compile(case.program(start), case.name, "exec")
            assert not any(
                "{" in word and "}" in word and "{3}" not in word for word in case.expected(start)
            ), case.name


def test_an_expected_message_names_the_marked_line() -> None:
    case = Case("", "", "begins()\nx.to(R)  # @here\n", ("{here}", r"rank {bad}\b"))
    location, rank = case.expected(LAUNCH)
    line = case.program(LAUNCH).splitlines().index("x.to(R)  # @here") + 1
    assert f"{line})" in location and rank == r"rank 1\b"
    assert case.expected(EMULATED)[0] != location


@pytest.mark.parametrize(
    ("code", "seconds", "missing", "left", "outcome"),
    [
        (1, 3.0, [], [], NAMED),
        (0, 3.0, [], [], SILENT),
        (None, 30.0, [], [], NOT_ENDED),
        (1, 3.0, ["rank 1"], [], UNNAMED),
        (1, 3.0, [], ["process 7"], LEFT),
        (1, 11.0, [], [], "late"),
    ],
)
def test_judge_returns_the_outcome_of_a_run(code, seconds, missing, left, outcome) -> None:
    case = Case("", "", "", ("x",))
    assert judge(case, code, seconds, missing, left) == outcome


def test_a_message_about_a_program_without_fault_is_no_good_outcome() -> None:
    case = Case("", "", "", fails=False)
    assert judge(case, 0, 1.0, [], []) == RIGHT and judge(case, 2, 1.0, ["END 0"], []) not in GOOD


def test_a_process_and_a_file_that_outlive_a_job_are_reported(launcher: object) -> None:
    # The process runs in a separate session, so the launcher does not stop it.
    body = """
    import subprocess, tempfile
    begins()
    if bad:
        tempfile.mkstemp(prefix="kept-")
        subprocess.Popen(["sleep", "60"], start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    sys.exit(3)
    """
    result = run(Case("leaves something", "", body), LAUNCH)
    assert result.outcome == LEFT and result.code == 3
    assert any("sleep 60" in one for one in result.left) and any("kept-" in one for one in result.left)


def test_the_page_has_all_cases() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert f"{sum(case.fails for case in CASES)} cases" in text, "run scripts/faults.sh"
    assert f"{sum(not case.fails for case in (*CASES, *HARMLESS))} cases" in text


def test_the_page_counts_the_bad_outcomes() -> None:
    one = {"kind": "death", "mpi": "MPICH", "way": MPIRUN, "seconds": 2.0}
    text = page([one | {"case": "a", "outcome": NAMED}, one | {"case": "b", "outcome": SILENT}], DEADLINE)
    assert (
        "1 named, 0 not named, 0 late, 0 left something, 1 silent, 0 not ended" in text
        and "- b: silent" in text
    )
