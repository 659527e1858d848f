"""``spmdsim explore``: write one interactive HTML file for a browser."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from spmdsim.cli.collective.schedule_arguments import find_algorithm, rank_counts
from spmdsim.cli.main import command, several, value, written_layout
from spmdsim.cli.output import LIMITS, refuse_options, remark, require_writable_file, writable, write_file

if TYPE_CHECKING:
    from spmdsim.figures.explore import Offer

EXAMPLES = """\
examples:
  spmdsim explore                                      explore.html: all device matrices of 2, 4, 6 and 8 ranks
  spmdsim explore --mesh dp=2,tp=4 --shape 8,8         your own case, in a second or two
  spmdsim explore --layout "a=2,b=1,c=2,d=2,e=1: b,d,e,c,a" --shape 1,2,1,2,2        a device matrix as in a textbook
  spmdsim explore --algorithm my.py:my_ring -n 4       your own all_reduce, round by round, beside all others

The file needs no server and no network. It shows results that were computed when it was written. Its address (after
the #) has the choices that were made.
"""

#: Default limit on the processor time of a user's algorithm, in seconds.
SECONDS = 120


@command(
    "Write an interactive HTML file: layouts of tensors, their redistributions, every collective algorithm round by "
    "round, a product with its partial sums, and a search with explanations.",
    EXAMPLES,
    value("-o --output", "FILE", "the file (explore.html)", writable),
    several("--mesh", "MESH", "a mesh to offer, such as dp=2,tp=4 (repeatable)"),
    several("--shape", "N,M", "a global shape to offer (repeatable)"),
    several("--layout", "LAYOUT", "a layout to start with, including its mesh (repeatable)"),
    "--dtype",
    value("-n --ranks", "N", "rank counts of the collectives: 4, 2..8 or 2,4,8 (2..8)", default="2..8"),
    several("--algorithm", "FILE.py:FUNCTION", "your own algorithm (repeatable)"),
    value("--collective", "", "collective that --algorithm implements (all_reduce)"),
    several("--program", "NAME", "a built-in program to search (mlp and tutorial)"),
    limits=SECONDS,
    program=lambda args: args.algorithm,
)
def main(args: argparse.Namespace) -> int:
    """Write the interactive HTML page to ``args.output``, by default explore.html, and return 0.

    A line on stderr has the page's name and size. If the write fails, the error is reported at the end of the
    command.

    Raises:
        InputError: If an option has no effect without ``--algorithm``, the file cannot be written, or a choice
            cannot be parsed.
    """
    from spmdsim.figures.explore import page

    if not args.algorithm:
        refuse_options(args, f"--collective {LIMITS}", "--algorithm FILE.py:FUNCTION")
    output = args.output or "explore.html"
    require_writable_file(output)
    text = page(build_offer(args))
    if write_file(output, text):
        remark(f"wrote {output} ({len(text.encode()):,} bytes): open it in a browser")
    return 0


def build_offer(args: argparse.Namespace) -> Offer:
    """Return the choices that the page offers, such as meshes, shapes and algorithms.

    For choices that the user did not set, the page has defaults. The meshes are those of ``--layout``, then those of
    ``--mesh``. A mesh, layout, shape or program that occurs twice is offered once.

    Args:
        args: the command's arguments. ``mesh``, ``shape``, ``layout``, ``algorithm`` and ``program`` are lists of
            texts, [] if not set. ``ranks`` has rank counts as text; ``dtype`` names the element type. Without
            ``collective``, the user's algorithms must be all_reduces.

    Raises:
        SpmdError: If a choice cannot be parsed or is too large for a page, a program is unknown, no shape has the
            number of dims of a layout, or a user's algorithm cannot be loaded.
    """
    from spmdsim.figures.explore import Offer
    from spmdsim.layout.written import parse_ints, parse_mesh

    layouts = tuple(written_layout(text) for text in args.layout)
    choices = {
        "meshes": (*(layout.mesh for layout in layouts), *(parse_mesh(text) for text in args.mesh)),
        "layouts": layouts,
        "shapes": tuple(parse_ints(text, "a shape") for text in args.shape),
        "programs": tuple(args.program),
    }
    algorithms = tuple(find_algorithm(args.collective or "all_reduce", name) for name in args.algorithm)
    # Leave out empty choices, so that the page offers its defaults.
    distinct_choices = {name: tuple(dict.fromkeys(entries)) for name, entries in choices.items() if entries}
    return Offer(
        ranks=tuple(rank_counts(args.ranks)), algorithms=algorithms, dtype=args.dtype, **distinct_choices
    )
