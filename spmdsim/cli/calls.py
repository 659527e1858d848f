"""``spmdsim calls``: show the last calls of every rank side by side."""

from __future__ import annotations

import argparse

from spmdsim.cli.main import PICTURES, command, value
from spmdsim.cli.output import say, write_pictures

EXAMPLES = """\
examples:
  spmdsim launch -n 8 --record calls.json script.py     written on a stop, the deadline, SIGTERM or SIGUSR1
  spmdsim calls calls.json                              as a table; ui.perfetto.dev opens the same file
  spmdsim calls calls.rank*.json                        of worlds of some of the ranks, which write a file each

A letter stands for a call and its line; "..." follows where the rank is in it still, "-" stands where it did not come.
The first call that ranks made differently is marked with ">".
"""


@command(
    "Show what every rank called last, side by side.",
    EXAMPLES,
    value("files", "FILE", "what launch --record FILE.json wrote", nargs="+"),
    *PICTURES,
)
def main(args: argparse.Namespace) -> int:
    """Print a table of the last calls that each rank made, or write it as pictures; return 0.

    The calls come from ``args.files``, which ``launch --record`` wrote. Calls of different files are put into one table
    per group of ranks. If a picture of ``--svg`` or ``--html`` is written, nothing is printed. If no picture can be
    written, the table is printed.

    Raises:
        InputError: If a file does not exist, or has other contents.
    """
    from spmdsim.figures.figures import Figure
    from spmdsim.tables import Table
    from spmdsim.worlds.trace.last_calls import groups, read, table, title

    documents = [read(path) for path in args.files]
    parts, notes = [], []
    for group in groups(documents):
        parts.append(Table(group.rows[0], group.rows[1:], group.name))
        notes += [line.replace("first difference", "wrong: first difference") for line in group.notes]
    if not write_pictures(args, Figure(title(documents), tuple(parts), tuple(notes))):
        say(table(documents))
    return 0
