"""``spmdsim launch``: start any script on N ranks."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from spmdsim.cli.main import HOSTS, command, declare_flag, group, value, varied, whole_number
from spmdsim.cli.output import refuse_options, remark, writable
from spmdsim.errors import InputError, many
from spmdsim.reading import require_file
from spmdsim.settings import CHECK, RANKS, RECORD

if TYPE_CHECKING:
    from spmdsim.launch.hosts import Host
    from spmdsim.worlds.base import World

ONE_STARTER = "one command starts the ranks of all hosts here; name the hosts with --hosts node1:2,node2:2"

EXAMPLES = """\
examples:
  spmdsim launch -n 8 script.py --epochs 3
  spmdsim launch -n 8 --log-dir log_output script.py     one worker_N.log per rank
  spmdsim launch -n 8 --world lockstep script.py         all ranks in one process, without MPI
  spmdsim launch --hosts node1:4,node2:4 script.py       8 ranks on two hosts, by ssh; --hostfile FILE
  spmdsim launch -n 8 --record calls.json script.py      if it stops: the last calls of all ranks

The command uses the launcher of the installed MPI, with the flags that this machine needs (more ranks than cores,
root). It limits BLAS threads, so that ranks do not compete for cores. If a rank fails, the job stops within seconds. The
command reports the rank, prints its traceback once, and returns its exit code.
"""


#: Options of ``python -m oneflow.distributed.launch``, which are PyTorch's. With them, programs also find
#: ``WORLD_SIZE``, ``RANK``, ``LOCAL_RANK``, ``MASTER_ADDR`` and ``MASTER_PORT`` in their environment.
OTHERS = group(
    "options of other launchers",
    value("--nproc_per_node --nproc-per-node", "N", "equal to -n with --blocks", whole_number),
    value("--nnodes", "N", "only 1; see --hosts", default="1"),
    value("--node_rank --node-rank", "K", "only 0", default="0"),
    value("--master_addr --master-addr", "HOST", "MASTER_ADDR of the ranks", default="127.0.0.1"),
    value("--master_port --master-port", "PORT", "MASTER_PORT of the ranks", default="29500"),
    value("--logdir --log_dir", "DIR", "equal to --log-dir", dest="log_dir"),
    declare_flag("--redirect_stdout_and_stderr", "logs only; needs --logdir"),
    declare_flag("--no_python", argparse.SUPPRESS),
)


@command(
    "Start any script on N ranks.",
    EXAMPLES,
    value(
        "-n", "N", "number of ranks (default: the tasks of the batch job, else one per core)", whole_number
    ),
    value("--log-dir", "DIR", "write a file worker_N.log per rank; the output of rank 0 is also shown here"),
    declare_flag("--blocks", "do not mix the lines of one print with lines of other ranks"),
    value(
        "--record",
        "FILE",
        "write the last calls of all ranks if the job stops, at the deadline, on SIGTERM or SIGUSR1; see spmdsim calls",
        writable,
    ),
    varied(
        "--world",
        default="mpi",
        help="lockstep needs no MPI: the script's own world() plays all ranks in one process",
    ),
    declare_flag("-m --module", "the script is a module"),
    *HOSTS,
    OTHERS,
    value("script", "", "script or module"),
    value("args", "", "its arguments", nargs=argparse.REMAINDER),
)
def main(args: argparse.Namespace) -> int:
    """Start a script on ``-n`` ranks, wait for them, and return the exit code of the job.

    The code is 0 if all ranks end well, else the exit code of the rank that failed first.

    Args:
        args: the command's arguments. ``n`` and ``blocks`` are changed by :func:`_complete_options`.

    Raises:
        InputError: If the script does not exist, or options contradict each other or have no effect.
        WorldError: If no usable MPI is installed, or this process is a rank itself.
    """
    from spmdsim.launch import start

    variables = _complete_options(args)
    if not args.module:
        require_file(args.script, "script")
    what = ["-m", args.script] if args.module else [args.script]
    words = [sys.executable, "-m", "spmdsim.launch.bootstrap", *what, *args.args]
    lockstep = args.world == "lockstep"
    variables |= _record_variables(args)
    shown = not args.redirect_stdout_and_stderr
    hosts = [] if lockstep else choose_hosts(args)
    return start(
        args.n,
        words,
        args.log_dir,
        variables,
        lockstep=lockstep,
        blocks=args.blocks,
        shown=shown,
        hosts=hosts,
    )


def _complete_options(args: argparse.Namespace) -> dict[str, str]:
    """Check the options, complete ``args``, and return environment variables for the ranks.

    The number of ranks, ``args.n``, is the first of these:

    1. ``-n`` or ``--nproc_per_node``; if both are set, they must be equal;
    2. in lock step: 1, because one process plays all ranks, and the script's own world states their number;
    3. the result of :func:`default_ranks`.

    ``--nproc_per_node``, an option of other launchers, also sets ``args.blocks`` to True.

    Args:
        args: the command's arguments; changed in place.

    Returns:
        The variables by name:

        * with ``--nproc_per_node``: "WORLD_SIZE", "MASTER_ADDR" and "MASTER_PORT", as other launchers set them;
        * in lock step without ``-n`` and ``--nproc_per_node``: the variable of :data:`RANKS`, unchanged from this
          process, or "" if it is not set. Otherwise the script would take the 1 of ``args.n`` for its number of ranks;
        * otherwise none.

    Raises:
        InputError: If options contradict each other, have no effect or are not supported; or if the number of ranks
            stands only after the script; or if ``--nnodes`` or ``--node_rank`` is not its default, because one command
            starts all ranks.
    """
    nproc = args.nproc_per_node
    variables: dict[str, str] = {}
    if args.world == "lockstep":
        refuse_options(args, "--hosts --hostfile", "--world mpi: in lock step, one process plays all ranks")
    if args.n is None and nproc is None:
        _refuse_rank_count_after_script(args)
        if args.world == "lockstep":  # the program's own world states the number of ranks
            args.n, variables = 1, {RANKS.name: os.environ.get(RANKS.name, "")}
        else:
            args.n = default_ranks(args)
    if None not in (args.n, nproc) and args.n != nproc:
        raise InputError(f"-n {args.n} and --nproc_per_node {nproc} say different numbers of ranks")
    if args.nnodes != "1" or args.node_rank != "0":
        raise InputError(f"--nnodes {args.nnodes} --node_rank {args.node_rank}: {ONE_STARTER}")
    if not args.master_port.isdecimal() or not 0 < int(args.master_port) < 65536:
        raise InputError(f"--master_port is a number from 1 to 65535, not {args.master_port}")
    if args.no_python:
        raise InputError("--no_python: each rank runs Python here; nearest: mpirun -n N COMMAND")
    if args.redirect_stdout_and_stderr and args.log_dir is None:
        raise InputError("'redirect_stdout_and_stderr' is only available when 'logdir' is set")
    if nproc is None:
        refuse_options(
            args, "--master_addr --master_port", "--nproc_per_node, for programs of other launchers"
        )
        return variables
    args.n, args.blocks = nproc, True
    return {"WORLD_SIZE": str(nproc), "MASTER_ADDR": args.master_addr, "MASTER_PORT": args.master_port}


def _refuse_rank_count_after_script(args: argparse.Namespace) -> None:
    """Raise InputError if the script's own arguments have ``-n`` (or ``-np`` …) and a number.

    The user probably meant the number of ranks, as in ``spmdsim launch script.py -n 4``. It is called only if no
    number of ranks is set. ``args.args`` are the script's arguments. A number in the same word (``-n=8``) is not
    noticed.
    """
    for flag_, number in zip(args.args, args.args[1:]):
        if flag_ in ("-n", "-np", "--np", "--nproc_per_node", "--nproc-per-node") and number.isdecimal():
            script = f"-m {args.script}" if args.module else args.script
            raise InputError(
                f"{flag_} {number} must stand before {args.script}, whose own argument it is there: "
                f"spmdsim launch -n {number} {script}"
            )


def read_hosts(args: argparse.Namespace) -> list[Host]:
    """Return the hosts of ``--hosts`` or ``--hostfile`` in their order; [] without either.

    Args:
        args: the command's arguments: ``hosts`` (text) and ``hostfile`` (path), each None if not set.

    Raises:
        InputError: If both are set, or one names no hosts or cannot be read.
    """
    from spmdsim.launch.hosts import parse_hosts, read_hostfile

    if args.hosts is not None and args.hostfile is not None:
        raise InputError(
            f"--hosts {args.hosts} and --hostfile {args.hostfile} both name the hosts: use one of them"
        )
    if args.hostfile is not None:
        return read_hostfile(args.hostfile)
    return [] if args.hosts is None else parse_hosts(args.hosts)


def choose_hosts(args: argparse.Namespace) -> list[Host]:
    """Return the hosts that the command line names, else those of a job of PBS or LSF.

    They are in the order of the command line or of the file. PBS and LSF name the hosts in a file, which not every
    launcher reads. Launchers find the hosts of other batch systems themselves. The list is empty without hosts, and in
    a process that a launcher started.

    Args:
        args: the command's arguments, as of :func:`read_hosts`.

    Raises:
        InputError: As of :func:`read_hosts`, also for the file of the batch job.
    """
    from spmdsim.launch import launched
    from spmdsim.launch.hosts import find_host_file_variable, read_hostfile

    hosts, variable = read_hosts(args), find_host_file_variable(os.environ)
    return hosts if hosts or not variable or launched() else read_hostfile(os.environ[variable])


def default_ranks(args: argparse.Namespace) -> int:
    """Return the number of ranks for a job without ``-n``; print it to stderr with its source.

    The number is the first of these:

    1. with ``--hosts`` or ``--hostfile``: the number of slots of all hosts; ``node1:2,node2:2`` gives 4;
    2. in a job of PBS or LSF: the number of lines in its file of hosts;
    3. in a job of Slurm or Grid Engine: its number of tasks, which an environment variable has;
    4. otherwise: the number of this machine's cores.

    Args:
        args: the command's arguments: ``hosts`` and ``hostfile``, which are None if not set.

    Raises:
        InputError: If the hosts cannot be read.
    """
    from spmdsim.launch.hosts import (
        count_slots,
        find_host_file_variable,
        find_task_variable,
        read_task_count,
    )
    from spmdsim.launch.mpi import count_cores

    if hosts := read_hosts(args):
        ranks, source = count_slots(hosts), "one per slot of the hosts"
    elif variable := find_host_file_variable(os.environ):
        ranks, source = count_slots(choose_hosts(args)), f"as {variable} says"
    elif variable := find_task_variable(os.environ):
        ranks, source = read_task_count(os.environ), f"as {variable} says"
    else:
        ranks, source = count_cores(), "one per core"
    remark(f"{many(ranks, 'rank')}, {source}; -n N chooses another number")
    return ranks


def _record_variables(args: argparse.Namespace) -> dict[str, str]:
    """Return the environment variable for ``--record``; an empty dict without ``--record``.

    The value of the variable is the absolute path of the file.

    Args:
        args: the command's arguments: ``record`` (the file, or None) and ``world``.

    Raises:
        InputError: If ranks record no calls: in lock step, or with the agreement check turned off.
    """
    if args.record is None:
        return {}
    if args.world == "lockstep":
        raise InputError(
            "--record shows ranks of MPI side by side; in --world lockstep none of them is apart"
        )
    if not CHECK.read():
        raise InputError(f"--record needs the calls that ranks note, but {CHECK.name}=0 has them note none")
    return {RECORD.name: str(Path(args.record).resolve())}


def start_ranks(
    args: argparse.Namespace, log_dir: str | None = None, check: Callable[[int], object] | None = None
) -> int | None:
    """Start this command again on the ranks of an MPI job; return the job's exit code, or None.

    The ranks run this process's command line, and this function waits for them. It starts nothing and returns None
    if the command runs in this process:

    * in lock step, where one process plays all ranks;
    * in a process that a launcher started, because it already is a rank of a job;
    * if neither ``-n``, ``--hosts``, ``--hostfile`` nor ``--world mpi`` is set.

    For example, ``spmdsim run -n 4`` starts four processes that run ``spmdsim run -n 4``; in these it returns None.

    Args:
        args: the command's arguments, with ``n`` (None: see :func:`default_ranks`) and ``world`` (None, "mpi" or
            "lockstep").
        log_dir: the folder for one log per rank, or None.
        check: called with the number of ranks before they start; an error that it raises prevents the start. None
            checks nothing.

    Raises:
        InputError: If the number of ranks is less than 1 or too large, or the hosts cannot be read.
        WorldError: If no usable MPI is installed.
    """
    from spmdsim.launch import launched, start_self
    from spmdsim.launch.job_starter import require_startable

    if args.world == "lockstep":
        refuse_options(args, "--hosts --hostfile", "--world mpi: in lock step, one process plays all ranks")
        return None
    if launched() or not (args.n or read_hosts(args) or args.world == "mpi"):
        return None
    hosts = choose_hosts(args)
    ranks = args.n or default_ranks(args)
    require_startable(ranks, on_hosts=bool(hosts))
    if check is not None:
        check(ranks)
    return start_self(ranks, sys.argv[1:], log_dir, hosts)


def create_world(args: argparse.Namespace) -> World:
    """Return the world of ``--world`` and ``-n``.

    In lock step it is a new :class:`~spmdsim.worlds.LockStep` with 8 ranks by default. Otherwise it is the world of
    this process: all ranks that the launcher started, or without a launcher a LockStep. All ranks must call it.

    Args:
        args: the command's arguments: ``world`` and ``n``. If ``n`` is None, any number of ranks is accepted.

    Raises:
        WorldError: If the launcher started another number of ranks than ``n``, or MPI cannot be used.
    """
    from spmdsim.worlds import LockStep, world

    return LockStep(args.n or 8) if args.world == "lockstep" else world(args.n)
