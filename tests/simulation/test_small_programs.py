"""Small programs with and without a mistake: each mistake is found with its line, and no right program is blamed.

The first line of a program has the expected verdict. The kinds of mistakes are those of collections for MPI checkers.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from scripts.simulate_programs import judge, list_programs, read_verdict

pytest.importorskip("greenlet")


@pytest.mark.parametrize("program", list_programs(), ids=lambda program: program.stem)
def test_the_verdict_of_a_small_program(program: Path) -> None:
    verdict, agrees, findings = judge(program)
    assert agrees, f"expected {verdict}, got {findings or 'no finding'}"


def test_there_are_many_programs_of_both_sides() -> None:
    sides = Counter(read_verdict(program).kind == "ok" for program in list_programs())
    assert sides[True] >= 100
    assert sides[False] >= 150
