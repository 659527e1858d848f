"""Entries of the list of equivalent mutants are reported if their code does not exist any more."""

from __future__ import annotations

from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parent.parent / "scripts"
SOURCE = """\
def largest(values):
    return max(values) + 1
"""
ENTRIES = """\
# File and function, line, mutated line, reason.

core/numbers.py largest
    return max(values) + 1
    return min(values) + 1
    or return (max(values) * 1)
    The reason.

core/numbers.py smallest
    return max(values) + 1
    return min(values) + 1
    The function has another name.

core/removed.py largest
    return max(values) + 1
    return min(values) + 1
    The file does not exist.
"""


def test_entries_without_matching_code_are_stale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(SCRIPTS)
    from mutants import equivalent_mutants, find_stale_entries

    (tmp_path / "spmdsim" / "core").mkdir(parents=True)
    (tmp_path / "spmdsim" / "core" / "numbers.py").write_text(SOURCE)
    (tmp_path / "entries.txt").write_text(ENTRIES)
    entries = equivalent_mutants(tmp_path / "entries.txt")
    assert len(entries) == 4
    stale = find_stale_entries(entries, tmp_path)
    assert [(function, mutated) for function, _, mutated in stale] == [
        ("core/numbers.py largest", "return (max(values) * 1)"),
        ("core/numbers.py smallest", "return min(values) + 1"),
        ("core/removed.py largest", "return min(values) + 1"),
    ]
