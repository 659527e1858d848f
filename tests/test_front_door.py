"""What type checkers know of a user's imports."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import spmdsim

ROOT = Path(__file__).resolve().parent.parent


def test_public_names_have_their_types(tmp_path):
    pytest.importorskip("mypy")
    names = [name for name in spmdsim.__all__ if name != "__version__"]
    program = tmp_path / "program.py"
    program.write_text(
        f"from spmdsim import {', '.join(names)}\n" + "".join(f"reveal_type({n})\n" for n in names)
    )
    command = [sys.executable, "-m", "mypy", "--config-file", "", "--follow-imports", "silent", str(program)]
    done = subprocess.run(
        [*command, "--cache-dir", str(tmp_path)], capture_output=True, text=True, cwd=ROOT, check=False
    )
    revealed = re.findall(r'Revealed type is "(.*)"', done.stdout)
    assert len(revealed) == len(names), done.stdout + done.stderr
    unknown = [name for name, kind in zip(names, revealed) if kind in ("Any", "types.ModuleType")]
    assert not unknown
