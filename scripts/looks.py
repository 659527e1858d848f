"""Photograph all that users see, in a headless browser, and arrange the photographs as contact sheets.

Four kinds of pages: `commands` (the output of each command at 80 columns), `pictures` (what notebooks show of each kind of
value), `explore` (the five views of the interactive page) and `manual` (all pages that Sphinx builds). Each page is
photographed light and dark; pages of the manual and of explore also in the width of a telephone. A sheet is
`FOLDER/KIND-WIDTH-SCHEME-NUMBER.png`. The program prints the pages that are wider than their window.
"""

from __future__ import annotations

import argparse
import html
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "docs"), str(ROOT / "tests")]

from browsers import FLAGS, find_browser  # noqa: E402
from building.commands import parsers  # noqa: E402
from pictured_values import VALUES, pictured  # noqa: E402
from playwright.sync_api import sync_playwright  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.terminal_theme import DEFAULT_TERMINAL_THEME, MONOKAI  # noqa: E402
from rich.text import Text  # noqa: E402

from spmdsim import Mesh  # noqa: E402
from spmdsim.figures import explore  # noqa: E402
from spmdsim.figures.figures import figure  # noqa: E402
from spmdsim.figures.figures import page as figure_page  # noqa: E402

#: Widths of windows in pixels: a telephone and a desktop.
WIDTHS = (360, 1280)
SCHEMES = ("light", "dark")
COLUMNS = 80
#: Seconds after which a command counts as failed.
COMMAND_LIMIT = 300
#: A photograph shows at most this height of a page, in widths of its window.
MOST_HEIGHT = 4
#: Width of a sheet in pixels, and the number of rows of photographs on it.
SHEET_WIDTH, SHEET_ROWS = 1560, 4
#: Width of a photograph on the sheet, by the width of the window.
THUMB_WIDTHS = {360: 247, 800: 507, 900: 507, 1280: 507}

#: A program of two ranks that stops: `spmdsim launch --record` writes what its ranks called last.
STOPPING_PROGRAM = """
import numpy as np
from spmdsim import Mesh, Tensor, world
tensor = Tensor.from_global(np.ones((4, 4)), Mesh((2,), ("x",))("x", None))
if world().rank == 1:
    raise SystemExit(3)
tensor.full()
"""

#: One typical call of each command. Commands without an entry are reported.
CALLS = """
run -n 4 --world lockstep --only matmul
layout --mesh dp=2,tp=4 --dims dp,tp --shape 32,784
layout --op matmul --shard "((2,4),(4,1))" --shapes "(32,784),(784,512)" -n 8
plan --mesh dp=2,tp=4 --src dp,tp --dst tp,dp --shape 8,8
train -n 2 --world lockstep --epochs 1
launch -n 2 --record calls.json stopping.py
calls calls.json
collective show all_reduce ring -n 4
collective list
collective diff all_reduce ring recursive_doubling -n 4
collective check examples/own_algorithms.py:my_all_reduce -n 2..8
collective export all_reduce ring -n 4 --format goal -o ring.goal
collective predict all_reduce -n 8
collective bench all_reduce --ranks 2 -b 1K -e 64K -f 4
collective calibrate -e 1M -o machine.json
collective detect all_reduce --table -n 16
simulate examples/buggy_programs/bug1_tags.py -n 4
search --program mlp --layers 2 --hidden 256 --batch 512 -n 8
explore --mesh dp=2,tp=4 --shape 8,8 -o page.html
labs list
labs copy course
labs check 1 course/lab1.py
tune -n 2 -o tuned.json
doctor
"""


@dataclass(frozen=True)
class Shot:
    """One page to photograph.

    Attributes:
        label: words below the photograph.
        address: the page's URL.
    """

    label: str
    address: str


def write_page(folder: Path, name: str, text: str) -> str:
    """Write an HTML page to a folder; return its URL."""
    path = folder / f"{name}.html"
    path.write_text(text, encoding="utf-8")
    return path.as_uri()


def find_uncalled_commands() -> list[str]:
    """Return the commands and subcommands that have no entry in CALLS."""
    calls = [shlex.split(line) for line in CALLS.strip().splitlines()]
    is_group = {words[0] for words, _ in parsers() if len(words) > 1}
    return [
        " ".join(words)
        for words, _ in parsers()
        if not (len(words) == 1 and words[0] in is_group)
        and not any(call[: len(words)] == [*words] for call in calls)
    ]


def render_commands(folder: Path, scheme: str, report: Callable[[str], None]) -> Iterator[Shot]:
    """Run each call of CALLS in a terminal of 80 columns; write its output with its colours as a page.

    Args:
        folder: for the pages. The commands run in a folder of their own inside it.
        scheme: "light" or "dark", the colours of the terminal.
        report: function that is called with each trouble.
    """
    theme = DEFAULT_TERMINAL_THEME if scheme == "light" else MONOKAI
    for command in find_uncalled_commands():
        report(f"commands: no call of {command} is in CALLS")
    for number, (line, output) in enumerate(run_commands(report)):
        console = Console(record=True, width=COLUMNS, file=StringIO(), force_terminal=True)
        console.print(Text.from_ansi(output), soft_wrap=True)
        name = f"command-{scheme}-{number}"
        yield Shot(f"spmdsim {line}", write_page(folder, name, console.export_html(theme=theme)))


_OUTPUTS: list[tuple[str, str]] = []


def run_commands(report: Callable[[str], None]) -> list[tuple[str, str]]:
    """Run the calls of CALLS once per process; return each call with its output, standard output before errors.

    ``report`` is called with a text for each call that fails.
    """
    if _OUTPUTS:
        return _OUTPUTS
    environment = {**os.environ, "COLUMNS": str(COLUMNS), "FORCE_COLOR": "1", "PYTHONPATH": str(ROOT)}
    with tempfile.TemporaryDirectory() as home:
        shutil.copytree(ROOT / "examples", Path(home) / "examples")
        (Path(home) / "stopping.py").write_text(STOPPING_PROGRAM, encoding="utf-8")
        for line in CALLS.strip().splitlines():
            words = [sys.executable, "-m", "spmdsim", *shlex.split(line)]
            ended = subprocess.run(
                words,
                cwd=home,
                env=environment,
                capture_output=True,
                text=True,
                timeout=COMMAND_LIMIT,
                check=False,
            )
            if ended.returncode > 1 and "stopping.py" not in line:
                report(
                    f"commands: spmdsim {line} ended with exit code {ended.returncode}: {ended.stderr[-300:]}"
                )
            _OUTPUTS.append((line, ended.stdout + ended.stderr))
    return _OUTPUTS


def render_pictures(folder: Path, scheme: str, report: Callable[[str], None]) -> Iterator[Shot]:
    """Write a page with the figure of each kind of value. Figures choose their colours by the browser's scheme."""
    for number, name in enumerate(VALUES):
        drawn = figure(pictured(name))
        yield Shot(name, write_page(folder, f"picture-{number}", figure_page(name, [drawn])))


def render_explore(folder: Path, scheme: str, report: Callable[[str], None]) -> Iterator[Shot]:
    """Write the interactive page once; yield its five views."""
    offer = explore.Offer(
        meshes=(Mesh((2, 4), ("dp", "tp")),), shapes=((8, 8),), ranks=(4,), programs=("tutorial",)
    )
    address = write_page(folder, "explore", explore.page(offer))
    for view in ("layout", "move", "schedule", "product", "search"):
        yield Shot(view, f"{address}#{view}?")


def render_manual(folder: Path, scheme: str, report: Callable[[str], None]) -> Iterator[Shot]:
    """Build the manual if it is not built yet; yield all its pages."""
    built = folder / "manual"
    if not built.exists():
        command = [
            sys.executable,
            "-m",
            "sphinx",
            "-q",
            "-b",
            "html",
            "-d",
            str(folder / "cache"),
            "docs",
            str(built),
        ]
        subprocess.run(command, cwd=ROOT, check=True)
    for path in sorted(built.rglob("*.html")):
        yield Shot(str(path.relative_to(built)), path.as_uri())


#: Function that yields the pages of each kind, and the widths in which they are photographed. All these functions take
#: a folder for pages, the scheme and a function to report trouble, although not each of them needs all three.
KINDS: dict[str, tuple[Callable[..., Iterator[Shot]], tuple[int, ...]]] = {
    "commands": (render_commands, (800,)),
    "pictures": (render_pictures, (900,)),
    "explore": (render_explore, WIDTHS),
    "manual": (render_manual, WIDTHS),
}


def photograph(tab: Any, shot: Shot, path: Path, width: int) -> int:
    """Write a PNG file of the top of a page; return how many pixels the page is wider than its window.

    Args:
        tab: a tab of the browser.
        shot: the page.
        path: the PNG file.
        width: width of the window in pixels. The photograph is at most ``MOST_HEIGHT`` times as high.
    """
    tab.goto(shot.address)
    tab.reload()  # A new fragment alone does not load a page again.
    tab.wait_for_load_state("networkidle")
    height = tab.evaluate("document.documentElement.scrollHeight")
    tab.screenshot(
        path=str(path),
        full_page=True,
        clip={"x": 0, "y": 0, "width": width, "height": min(height, MOST_HEIGHT * width)},
    )
    return int(tab.evaluate("document.documentElement.scrollWidth")) - width


def arrange_sheet(
    tab: Any, photographs: list[tuple[str, Path]], path: Path, scheme: str, thumb_width: int
) -> None:
    """Arrange photographs with their labels in rows; write the sheet as a PNG file.

    Args:
        tab: a tab of the browser, which shows the sheet afterwards.
        photographs: label and PNG file of each page.
        path: the file to write.
        scheme: "light" or "dark", the background of the sheet.
        thumb_width: width of a photograph on the sheet, in pixels.
    """
    background, ink = ("#fff", "#000") if scheme == "light" else ("#222", "#eee")
    cells = "".join(
        f'<figure style="margin:0;width:{thumb_width}px"><img src="{photo.as_uri()}" style="width:100%;border:1px solid gray">'
        f"<figcaption>{html.escape(label)}</figcaption></figure>"
        for label, photo in photographs
    )
    sheet = write_page(
        path.parent,
        path.stem,
        f'<meta charset="utf-8"><body style="margin:8px;display:flex;flex-wrap:wrap;gap:12px;align-items:flex-start;'
        f'background:{background};color:{ink};font:12px sans-serif">{cells}',
    )
    tab.set_viewport_size({"width": SHEET_WIDTH, "height": 100})
    tab.goto(sheet)
    tab.screenshot(path=str(path), full_page=True)
    (path.parent / f"{path.stem}.html").unlink()


def photograph_kind(
    browser: Any, kind: str, scheme: str, work: Path, target: Path, troubles: list[str]
) -> None:
    """Photograph all pages of a kind in each of its widths; write their contact sheets.

    Args:
        browser: the running browser.
        kind: a key of ``KINDS``.
        scheme: "light" or "dark".
        work: folder of the pages and the single photographs.
        target: folder of the sheets.
        troubles: receives a line for each failed command, error on a page and page wider than its window.
    """
    render, widths = KINDS[kind]
    shots = [*render(work, scheme, troubles.append)]
    for width in widths:
        context = browser.new_context(
            color_scheme=scheme, viewport={"width": width, "height": 100}, reduced_motion="reduce"
        )
        tab = context.new_page()
        tab.on("pageerror", lambda error: troubles.append(f"{kind}: {error}"))
        photographs = []
        for number, shot in enumerate(shots):
            path = work / f"{kind}-{width}-{scheme}-{number}.png"
            if (excess := photograph(tab, shot, path, width)) > 0:
                troubles.append(f"{kind}: {shot.label} is {excess} pixels wider than {width} ({scheme})")
            photographs.append((shot.label, path))
        per_sheet = SHEET_WIDTH // THUMB_WIDTHS[width] * SHEET_ROWS
        for first in range(0, len(photographs), per_sheet):
            sheet = target / f"{kind}-{width}-{scheme}-{first // per_sheet + 1}.png"
            arrange_sheet(tab, photographs[first : first + per_sheet], sheet, scheme, THUMB_WIDTHS[width])
        context.close()
        print(f"{kind}, {width} pixels, {scheme}: {len(photographs)} pages", flush=True)


def main() -> int:
    """Photograph the chosen kinds; return 1 if there was any trouble, else 0."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=f"{', '.join(KINDS)} (default: all)")
    parser.add_argument(
        "--to", default="results/looks", metavar="FOLDER", help="folder of the sheets (results/looks)"
    )
    arguments = parser.parse_args()
    if unknown := set(arguments.kinds) - set(KINDS):
        parser.error(f"KIND must be one of {', '.join(KINDS)}, got {', '.join(sorted(unknown))}")
    target = Path(arguments.to).resolve()
    target.mkdir(parents=True, exist_ok=True)
    troubles: list[str] = []
    with tempfile.TemporaryDirectory() as work, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=find_browser(), args=FLAGS)
        for kind in arguments.kinds or KINDS:
            for scheme in SCHEMES:
                photograph_kind(browser, kind, scheme, Path(work), target, troubles)
        browser.close()
    print("\n".join(dict.fromkeys(troubles)) or "no page is wider than its window")
    return 1 if troubles else 0


if __name__ == "__main__":
    sys.exit(main())
