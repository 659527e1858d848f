"""``spmdsim doctor``: examine MPI, BLAS and this machine."""

from __future__ import annotations

import argparse

from spmdsim.cli.launch import choose_hosts
from spmdsim.cli.main import HOSTS, command, declare_flag
from spmdsim.cli.output import emit_json
from spmdsim.printing import say
from spmdsim.tables import Table

EXAMPLES = """\
examples:
  spmdsim doctor               this process, and a trial run on 2 ranks
  mpirun -n 8 spmdsim doctor   inside a job: examine its ranks
  spmdsim doctor --hosts node1:2,node2:2    a trial run on these hosts, with a row for each
  spmdsim doctor --json
  spmdsim doctor --clean       remove shared memory and temporary files of killed jobs

Exit code: 0 if runs are possible, 1 if something is broken; a warning does not count.
"""


@command(
    "Examine MPI, BLAS and this machine; report problems and how to solve them.",
    EXAMPLES,
    "--json",
    declare_flag("--no-trial", "do not start ranks to try MPI"),
    *HOSTS,
    declare_flag("--clean", "first remove leftovers of your killed jobs: shared memory, files of launchers"),
)
def main(args: argparse.Namespace) -> int:
    """Examine MPI, BLAS and this machine, and print findings; return 1 if one is broken, else 0.

    The table has a row per finding: subject, state ("ok", "note", "warning" or "broken") and observation. Advice
    follows in lines below the table. ``--json`` prints JSON instead.

    Args:
        args: the command's arguments. ``clean`` first removes files of killed jobs. Unless ``no_trial`` is set, MPI is
            tried: in a job, on its ranks; outside of jobs, in a new job on ``hosts`` or the hosts of ``hostfile``, or
            without both with two ranks here.
    """
    from spmdsim.launch.diagnosis import clean, examine

    cleaned = [clean()] if args.clean else []
    findings = cleaned + examine(not args.no_trial, choose_hosts(args))
    is_broken = any(f.state == "broken" for f in findings)
    if args.json:
        emit_json({"ok": not is_broken, "findings": [f.to_dict() for f in findings]})
        return int(is_broken)
    # The advice has no column: paths and commands stay in one line, to be copied.
    advice = tuple(f"{f.about}: {f.advice}" for f in findings if f.advice)
    rows = [(f.about, f.state, f.observed) for f in findings]
    say(Table(("about", "state", "found"), rows, notes=advice and ("", *advice)))
    return int(is_broken)
