"""``spmdsim collective``: see, verify, price and run collective algorithms."""

from __future__ import annotations

from spmdsim.cli.main import Command, CommandGroup

EXAMPLES = """\
examples:
  spmdsim collective show all_reduce ring -n 6         step by step, with counts and lower bounds
  spmdsim collective check my.py:my_ring -n 2..16      verify your own generator of (rank, size)
  spmdsim collective predict all_reduce -n 2..1024x2   times on a machine, over sizes or rank counts
  spmdsim collective calibrate                         measure this machine for the predictions
"""


def _subcommands() -> dict[str, Command]:
    """Import the modules of the subcommands; return the subcommands by the name that users type.

    The order of the dict is the order in the help.
    """
    from spmdsim.cli.collective import bench, calibrate, check, detect, formats, predict, show

    return {
        "show": show.show_algorithm,
        "list": show.list_algorithms,
        "diff": show.compare_algorithms,
        "check": check.main,
        "export": formats.export,
        "predict": predict.main,
        "bench": bench.main,
        "calibrate": calibrate.main,
        "detect": detect.main,
    }


main = CommandGroup(
    "Collective algorithms: see them step by step, verify, compare, price and run them.",
    EXAMPLES,
    "SUBCOMMAND",
    _subcommands,
)
