"""Metadata for package indices and citations have absolute links, the project's addresses and the version."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from spmdsim._version import REPOSITORY, __version__

ROOT = Path(__file__).resolve().parent.parent
WEB = REPOSITORY.removesuffix(".git")


@pytest.fixture(scope="module")
def package_info(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the PKG-INFO that setuptools writes for a copy of its input files in ``tmp_path_factory``."""
    folder = tmp_path_factory.mktemp("source")
    for name in (
        "setup.py",
        "setup.cfg",
        "README.md",
        "LICENSE",
        "spmdsim/_version.py",
        "spmdsim/__init__.py",
    ):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes((ROOT / name).read_bytes())
    done = subprocess.run(
        [sys.executable, "setup.py", "-q", "egg_info"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    if "license_expression" in done.stderr:
        pytest.skip("pyproject.toml asks for a newer setuptools than the one here")
    assert done.returncode == 0, done.stderr
    (file,) = folder.glob("*.egg-info/PKG-INFO")
    return file.read_text(encoding="utf-8")


def test_the_long_description_has_absolute_links_to_existing_files(package_info: str) -> None:
    description = package_info.partition("\n\n")[2]
    targets = re.findall(r"\]\(([^)]+)\)", description)
    readme = re.findall(r"\]\(([^)]+)\)", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert len(targets) == len(readme) > 10
    for target, path in zip(targets, readme):
        if not path.startswith("http"):
            assert re.fullmatch(
                rf"{re.escape(WEB)}/(blob|raw)/v{re.escape(__version__)}/{re.escape(path)}", target
            )
            assert ("/raw/" in target) == path.endswith(".svg"), target
    assert description.startswith("# spmdsim") and "\n$ spmdsim plan" in description


def test_the_index_lists_the_projects_addresses(package_info: str) -> None:
    urls = dict(re.findall(r"^Project-URL: (\w+), (\S+)$", package_info, re.MULTILINE))
    assert {"Source", "Documentation", "Changelog", "Issues"} == {*urls} and urls["Source"] == WEB
    for name in ("Documentation", "Changelog"):
        assert (ROOT / urls[name].partition(f"/v{__version__}/")[2]).is_file()


def test_the_repositorys_address_is_in_one_file_and_in_the_citation() -> None:
    # Other programs read CITATION.cff directly, so it repeats the address.
    assert f'\nrepository-code: "{REPOSITORY}"\n' in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    for name in ("setup.cfg", "setup.py", "README.md", "docs/conf.py"):
        assert WEB not in (ROOT / name).read_text(encoding="utf-8"), name


def test_the_citation_has_this_version() -> None:
    text = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.search(r"^version: (\S+)$", text, re.MULTILINE)[1] == __version__  # type: ignore[index]
    licence = re.search(
        r"^license_expression = (\S+)$", (ROOT / "setup.cfg").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert licence is not None and f"\nlicense: {licence[1]}\n" in text


def test_links_to_other_pages_stay_unchanged() -> None:
    spec = importlib.util.spec_from_file_location("setup_of_spmdsim", ROOT / "setup.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    text = "[here](https://example.org/x) and [below](#speed)"
    assert module.with_absolute_links(text) == text
    assert module.with_absolute_links("![a](b.svg)") == f"![a]({WEB}/raw/v{__version__}/b.svg)"
