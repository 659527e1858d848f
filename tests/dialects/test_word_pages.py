"""The pages in docs/words: every word of a system that stands there does here what the page says, and none is left out.

A page has tables of rows ``| `word` | here | note |``, where ``here`` is ``runs``, ``runs differently`` (the note says
how) or ``refused`` (the note may name, first in backquotes, what the error names as nearest).
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

#: What words of a page begin with, and the module that has them; of other pages both are called like the page.
BEGINNINGS = {
    "dtensor": {"torch.distributed.tensor": "spmdsim.dialects.torch"},
    "jax": {"jax.sharding": "spmdsim.dialects.jax", "jax.lax": "spmdsim.local"},
}
HERE = ("runs", "runs differently", "refused")
_ROW = re.compile(r"^\| `([\w.]+)` \| ([\w ]+) \| (.*?) ?\|$")


def page_names():
    return sorted(path.stem for path in PAGES.glob("*.md"))


def beginnings(page: str) -> dict[str, str]:
    return BEGINNINGS.get(page, {page: f"spmdsim.dialects.{page}"})


def rows(page: str) -> dict[str, tuple[str, str]]:
    """``(here, note)`` of every word."""
    told: dict[str, tuple[str, str]] = {}
    for line in (PAGES / f"{page}.md").read_text().splitlines():
        if line.startswith("| `"):
            row = _ROW.match(line)
            assert row and row[2] in HERE, f"no row of a table of words: {line}"
            assert row[1] not in told, f"{row[1]} stands in the page twice"
            told[row[1]] = row[2], row[3]
    assert told, f"{page}.md has no words"
    return told


def looked_up(word: str, page: str) -> Any:
    """Return what a program gets when it asks for a word of the page."""
    for beginning, module in beginnings(page).items():
        if word == beginning or word.startswith(f"{beginning}."):
            there: Any = import_module(module)
            for part in word.removeprefix(beginning).split(".")[1:]:
                there = _part(there, part)
            return there
    raise AssertionError(f"{word} does not begin with {' or '.join(beginnings(page))}")


def _part(there: Any, name: str) -> Any:
    if isinstance(there, type) and not hasattr(there, name) and hasattr(there, "__getattr__"):
        instance = np.empty(0).view(there) if issubclass(there, np.ndarray) else object.__new__(there)
        return getattr(instance, name)
    return getattr(there, name)


def public_names(module: ModuleType) -> set[str]:
    """What a module of a dialect says it has; without a list, the functions and classes that it defines."""
    if "__dir__" in vars(module):
        return {name for name in dir(module) if not name.startswith("_")}
    if hasattr(module, "__all__"):
        return set(module.__all__)
    return {
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
    }


def all_words(beginning: str, module: ModuleType, root: str) -> set[str]:
    """Every public name in a dialect and in the modules that it shows."""
    words = set()
    for name in public_names(module):
        value = getattr(module, name)
        if isinstance(value, ModuleType) and value.__name__.startswith(f"{root}."):
            if value.__name__ != module.__name__:
                words |= all_words(f"{beginning}.{name}", value, root)
        else:
            words.add(f"{beginning}.{name}")
    return words


@pytest.mark.parametrize("page", page_names())
def test_words_are_there(page):
    missing = []
    for word, (here, note) in rows(page).items():
        if here == "refused":
            continue
        assert note or here == "runs", f"{page}.md does not say how {word} runs differently"
        try:
            looked_up(word, page)
        except (AttributeError, ImportError) as error:
            missing.append(f"{word}: {error}")
    assert not missing, "\n".join(missing)


@pytest.mark.parametrize("page", page_names())
def test_refused_words_name_the_nearest(page):
    for word, (here, note) in rows(page).items():
        if here != "refused":
            continue
        nearest = re.findall(r"`([^`]+)`", note)
        with pytest.raises((AttributeError, ValueError, RuntimeError)) as raised:
            looked_up(word, page)
        message = str(raised.value)
        assert "\n" not in message and (not nearest or nearest[0] in message), f"{word}: {message!r}"


@pytest.mark.parametrize("page", page_names())
def test_no_word_is_left_out(page):
    told = set(rows(page))
    for beginning, module in beginnings(page).items():
        there = all_words(beginning, import_module(module), module)
        assert there and not there - told, f"{page}.md leaves out {sorted(there - told)}"


def test_no_word_of_the_originals_pages_is_left_out():
    """The lists of words stand in the originals' documentation, and so apart from our pages."""
    pages = json.loads((Path(__file__).parents[1] / "vectors" / "api_pages.json").read_text())
    for page, groups in pages.items():
        told = set(rows(page))
        left = [word for group in groups for word in group["words"] if word not in told]
        assert len(groups) > 1 and not left, f"{page}.md leaves out {left}"
