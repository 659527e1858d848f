"""The names on the pages in docs/words run or are refused as the page says, and the pages list all names.

A page has tables of rows ``| `name` | status | note |``. The status is ``runs``, ``runs differently`` (the note says how)
or ``refused``. In the note of a refused name, the first text in backquotes is the hint of the error, if the note has one.
"""

from __future__ import annotations

import json
import re
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

PAGES = Path(__file__).resolve().parents[2] / "docs" / "words"

#: The first parts of names on a page -> the module that has them. On other pages, both have the name of the page.
MODULES_BY_PREFIX = {
    "dtensor": {"torch.distributed.tensor": "spmdsim.dialects.torch"},
    "jax": {"jax.sharding": "spmdsim.dialects.jax", "jax.lax": "spmdsim.local"},
}
STATUSES = ("runs", "runs differently", "refused")
_ROW = re.compile(r"^\| `([\w.]+)` \| ([\w ]+) \| (.*?) ?\|$")


def page_names():
    return sorted(path.stem for path in PAGES.glob("*.md"))


def modules_by_prefix(page: str) -> dict[str, str]:
    """Return the modules of a page by the first parts of names."""
    return MODULES_BY_PREFIX.get(page, {page: f"spmdsim.dialects.{page}"})


def read_rows(page: str) -> dict[str, tuple[str, str]]:
    """Return ``(status, note)`` of each name on a page."""
    notes: dict[str, tuple[str, str]] = {}
    for line in (PAGES / f"{page}.md").read_text().splitlines():
        if line.startswith("| `"):
            row = _ROW.match(line)
            assert row and row[2] in STATUSES, f"no row of a table of words: {line}"
            assert row[1] not in notes, f"{row[1]} stands in the page twice"
            notes[row[1]] = row[2], row[3]
    assert notes, f"{page}.md has no words"
    return notes


def look_up(word: str, page: str) -> Any:
    """Return the value of a name on the page, as a program gets it.

    Raises AssertionError: If no module of the page has the first parts of the name.
    """
    for prefix, module in modules_by_prefix(page).items():
        if word == prefix or word.startswith(f"{prefix}."):
            value: Any = import_module(module)
            for member in word.removeprefix(prefix).split(".")[1:]:
                value = get_member(value, member)
            return value
    raise AssertionError(f"{word} does not begin with {' or '.join(modules_by_prefix(page))}")


def get_member(owner: Any, name: str) -> Any:
    """Return an attribute of a module or object, or a method that a class finds only for its instances."""
    if isinstance(owner, type) and not hasattr(owner, name) and hasattr(owner, "__getattr__"):
        instance = np.empty(0).view(owner) if issubclass(owner, np.ndarray) else object.__new__(owner)
        return getattr(instance, name)
    return getattr(owner, name)


def list_public_names(module: ModuleType) -> set[str]:
    """Return the names that a module lists or, without a list, its own functions and classes."""
    if "__dir__" in vars(module):
        return {name for name in dir(module) if not name.startswith("_")}
    if hasattr(module, "__all__"):
        return set(module.__all__)
    return {
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
    }


def list_all_names(prefix: str, module: ModuleType, root: str) -> set[str]:
    """Return the public names, with their prefix, of a dialect's module and its submodules in ``root``."""
    names = set()
    for name in list_public_names(module):
        value = getattr(module, name)
        if isinstance(value, ModuleType) and value.__name__.startswith(f"{root}."):
            if value.__name__ != module.__name__:
                names |= list_all_names(f"{prefix}.{name}", value, root)
        else:
            names.add(f"{prefix}.{name}")
    return names


@pytest.mark.parametrize("page", page_names())
def test_supported_names_exist(page):
    missing = []
    for name, (status, note) in read_rows(page).items():
        if status == "refused":
            continue
        assert note or status == "runs", f"{page}.md does not say how {name} runs differently"
        try:
            look_up(name, page)
        except (AttributeError, ImportError) as error:
            missing.append(f"{name}: {error}")
    assert not missing, "\n".join(missing)


@pytest.mark.parametrize("page", page_names())
def test_refused_names_give_a_hint(page):
    for name, (status, note) in read_rows(page).items():
        if status != "refused":
            continue
        hints = re.findall(r"`([^`]+)`", note)
        with pytest.raises((AttributeError, ValueError, RuntimeError)) as raised:
            look_up(name, page)
        message = str(raised.value)
        assert "\n" not in message and (not hints or hints[0] in message), f"{name}: {message!r}"


@pytest.mark.parametrize("page", page_names())
def test_pages_list_all_names_of_the_dialect(page):
    listed = set(read_rows(page))
    for prefix, module in modules_by_prefix(page).items():
        existing = list_all_names(prefix, import_module(module), module)
        assert existing and not existing - listed, f"{page}.md leaves out {sorted(existing - listed)}"


def test_pages_list_all_names_of_the_original_documentation():
    """The names come from the documentation of the original systems, which is independent of the dialects."""
    pages = json.loads((Path(__file__).parents[1] / "vectors" / "api_pages.json").read_text())
    for page, groups in pages.items():
        listed = set(read_rows(page))
        missing = [word for group in groups for word in group["words"] if word not in listed]
        assert len(groups) > 1 and not missing, f"{page}.md leaves out {missing}"
