"""``spmdsim calls``: show the last calls of every rank side by side."""

from __future__ import annotations

import argparse

from spmdsim.cli.main import command, value
from spmdsim.printing import say

EXAMPLES = """\
examples:
  spmdsim launch -n 8 --record calls.json script.py     write the calls if the job stops, or on SIGTERM or SIGUSR1
  spmdsim calls calls.json                              print a table; ui.perfetto.dev opens the file, too
  spmdsim calls calls.rank*.json                        worlds with only some of the ranks write a file each

A letter is a call with its line in the program. "..." marks a call that the rank has not finished, and "-" a call that
the rank did not make. ">" marks the first call that differs between ranks.
"""


@command(
    "Show the last calls of all ranks side by side.",
    EXAMPLES,
    value("files", "FILE", "a file that launch --record FILE.json wrote", nargs="+"),
)
def main(args: argparse.Namespace) -> int:
    """Print a table of the last calls that each rank made; return 0.

    The calls come from ``args.files``, which ``launch --record`` wrote. Calls of different files are put into one table
    per group of ranks.

    Raises:
        InputError: If a file does not exist, or has other contents.
    """
    from spmdsim.worlds.trace.last_calls import read, table

    say(table([read(path) for path in args.files]))
    return 0
