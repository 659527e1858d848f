"""``scripts/pictures.sh`` draws exactly the pictures of the documents, and all pictures in documents exist."""

from __future__ import annotations

import configparser
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
PICTURES = ROOT / "docs" / "pictures"


def test_the_script_draws_exactly_the_pictures_in_the_repository(tmp_path):
    environment = os.environ | {"PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
    subprocess.run(
        [ROOT / "scripts" / "pictures.sh", tmp_path], env=environment, check=True, capture_output=True
    )
    pictures = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert pictures and set(pictures) == {path.name for path in PICTURES.iterdir()}
    for name, text in pictures.items():
        assert text == (PICTURES / name).read_text(), f"{name} is out of date: run scripts/pictures.sh"


def test_the_badges_show_the_entries_of_setup_cfg():
    settings = configparser.ConfigParser()
    settings.read(ROOT / "setup.cfg", encoding="utf-8")
    versions = re.findall(r"Python :: (3\.\d+)$", settings["metadata"]["classifiers"], re.MULTILINE)
    shown = {
        name: (PICTURES / f"badge-{name}.svg").read_text(encoding="utf-8")
        for name in ("python", "licence", "mpi")
    }
    assert f">Python: {versions[0]} to {versions[-1]}<" in shown["python"]
    assert f">licence: {settings['metadata']['license_expression']}<" in shown["licence"]
    assert ">MPI: Open MPI, MPICH<" in shown["mpi"] and {"openmpi", "mpich"} <= {
        *settings["options.extras_require"]
    }


def test_the_first_screen_of_the_readme_has_a_picture():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = re.search(r"!\[([^\]]{40,})\]\(([^)]+)\)", text)
    assert shown is not None and text.count("\n", 0, shown.start()) < 25
    for _, path in re.findall(r"!\[([^\]]*)\]\(([^)]+)\)", text):
        assert (ROOT / path).is_file(), path
