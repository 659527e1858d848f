"""Subjects of commits and changes for the changelog have the form that CONTRIBUTING.md documents."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize(
    ("subject", "reason"),
    [
        ("redistribution: let steps count their own bytes", None),
        ("worlds/mpi: wait for the children of a rank", None),
        ("Merge branch 'topic'", None),
        ("", "write the area"),
        ("Let steps count their own bytes", "write the area"),
        ("redistribution: Let steps count their own bytes", "write the area"),
        ("redistribution: " + "let steps " * 6, "76 characters"),
        ("redistribution: let steps count their own bytes.", "full stop"),
    ],
)
def test_the_hook_accepts_subjects_of_the_documented_form(
    tmp_path: Path, subject: str, reason: str | None
) -> None:
    message = tmp_path / "message"
    message.write_text(f"{subject}\n\nThe body may be longer.\n")
    hook = subprocess.run(
        [ROOT / "scripts/hooks/commit-msg", message], capture_output=True, text=True, check=False
    )
    assert (hook.returncode == 0) == (reason is None)
    assert (reason or "") in hook.stderr


def test_changes_have_a_kind_and_one_short_sentence() -> None:
    for path in (ROOT / "changes").iterdir():
        if path.name == "README.md":
            continue
        assert re.fullmatch(r"[a-z0-9-]+\.(added|changed|fixed|removed)\.md", path.name), path.name
        lines = path.read_text(encoding="utf-8").splitlines()
        assert len(lines) == 1 and len(lines[0]) <= 120, (
            f"{path.name}: write one sentence of at most 120 characters"
        )
