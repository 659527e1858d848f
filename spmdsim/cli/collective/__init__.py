"""``spmdsim collective``: see, verify, price and run collective algorithms. Its subcommands are one file each."""

from __future__ import annotations

from importlib import import_module

from spmdsim.cli.arguments import Subparsers

SUBCOMMANDS = (
    "show",
    "list",
    "diff",
    "check",
    "export",
    "goal",
    "predict",
    "bench",
    "calibrate",
    "detect",
)
"""Each is ``spmdsim/cli/collective/<name>.py`` with ``add_parser(subparsers)``."""

EXAMPLES = """\
examples:
  spmdsim collective show all_reduce ring -n 6         step by step, counted, against the lower bound
  spmdsim collective list all_reduce                   every algorithm with its conditions and formula
  spmdsim collective diff all_reduce ring rabenseifner -n 6
  spmdsim collective check my.py:my_ring -n 2..16      verify your own generator of (rank, size)
  spmdsim collective export all_reduce ring -n 4 -o ring.goal
  spmdsim collective goal ring.goal                    simulate it, or any GOAL file
  spmdsim collective predict all_reduce -n 2..1024x2   times on a machine, over sizes or rank counts
  spmdsim collective bench all_reduce --ranks 2        measured, next to the library's own call
  spmdsim collective calibrate                         measure this machine for the predictions
  spmdsim collective detect all_reduce --ranks 3       which algorithm does this MPI library use?
"""


def add_parser(subparsers: Subparsers) -> None:
    """Declare the command and its subcommands."""
    parser = subparsers.add_parser(
        "collective",
        description="Collective algorithms: see them step by step, verify, compare, price and run them.",
        epilog=EXAMPLES,
    )
    inner = parser.add_subparsers(
        dest="subcommand", metavar="SUBCOMMAND", required=True, parser_class=type(parser)
    )
    for name in SUBCOMMANDS:
        import_module(f"{__name__}.{name}").add_parser(inner)
