"""Pages as programs: their blocks run in order, and blocks ``{picture}`` show what their last expression looks like.

Blocks ``python``, ``pycon`` (checked as doctests are) and ``{picture}`` of a page have one namespace. The tests run
pages by the same function.
"""

from __future__ import annotations

import ast
import contextlib
import doctest
import html
import io
import re
from typing import Any

from documents import Block, blocks

from spmdsim import LockStep, show
from spmdsim.errors import UsageTypeError

RANKS = 8
"""Of the world that pages without a world of their own live in."""

READABLE = 0.75
"""Pictures wider than a screen are drawn smaller down to this, and scroll then."""

_FENCE = re.compile(r"^```\{picture\}([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def run(text: str) -> list[tuple[Block, object]]:
    """Run the blocks of a page, in one world; with each the value of its last expression.

    Raises:
        AssertionError: a session printed something else than what stands there.
    """
    names: dict[str, Any] = {"__name__": "__page__"}
    page = [block for block in blocks(text) if block.language in ("python", "pycon", "{picture}")]
    with LockStep(RANKS), contextlib.redirect_stdout(io.StringIO()):
        return [(block, _value(block, names)) for block in page]


def _value(block: Block, names: dict[str, Any]) -> object:
    if block.language == "pycon":
        _session(block, names)
        return None
    tree = ast.parse("\n" * (block.line - 1) + block.text)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "page", "exec"), names)
    return None if last is None else eval(compile(ast.Expression(last.value), "page", "eval"), names)


def _session(block: Block, names: dict[str, Any]) -> None:
    told: list[str] = []
    test = doctest.DocTestParser().get_doctest(block.text, names, "page", "page", block.line - 1)
    test.globs = names
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    runner.run(test, out=told.append, clear_globs=False)
    if runner.failures:
        raise AssertionError("".join(told))


def markup(value: object) -> str:
    """A value as a notebook shows it, else as text."""
    for method in ("_repr_svg_", "_repr_html_"):
        if (picture := getattr(value, method, lambda: None)()) is not None:
            return str(picture)
    told = io.StringIO()
    with contextlib.redirect_stdout(told):
        try:
            show(value)
        except UsageTypeError:
            print(value)
    return f"<pre>{html.escape(told.getvalue())}</pre>"


def draw(app: object, name: str, source: list[str]) -> None:
    """Put pictures where blocks ``{picture}`` stand, under the code that made them."""
    if "```{picture}" not in source[0]:
        return
    shown = iter([markup(value) for block, value in run(source[0]) if block.language == "{picture}"])
    source[0] = _FENCE.sub(lambda match: _figure(match[1].strip(), match[2], next(shown)), source[0])


def _figure(words: str, code: str, picture: str) -> str:
    caption = f"<figcaption>{html.escape(words)}</figcaption>" if words else ""
    wide = re.match(r"<svg[^>]* width=\"(\d+)\"", picture)
    least = f' style="--least: {int(wide[1]) * READABLE:.0f}px"' if wide else ""
    figure = f'<figure class="picture"{least}>{picture}{caption}</figure>'
    return f"```python\n{code}```\n\n````{{raw}} html\n{figure}\n````"
