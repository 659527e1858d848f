"""The words of other systems' launchers (``--nproc_per_node 4``), understood by ``spmdsim launch`` or refused.

Those of ``python -m oneflow.distributed.launch``, which are PyTorch's: programs find ``WORLD_SIZE``, ``RANK``,
``LOCAL_RANK``, ``MASTER_ADDR`` and ``MASTER_PORT`` in their environment then, too.
"""

from __future__ import annotations

import argparse

from spmdsim.errors import InputError

ONE_NODE = (
    "spmdsim launch starts ranks on this machine; for several say the hosts to MPI's own launcher: "
    "mpirun -n N --host A,B python script.py"
)


def add_words(parser: argparse.ArgumentParser) -> None:
    """Declare them."""
    add = parser.add_argument_group("words of other launchers").add_argument
    add("--nproc_per_node", "--nproc-per-node", type=int, metavar="N", help="the same as -n, with --blocks")
    add("--nnodes", metavar="N", default="1", help="only 1")
    add("--node_rank", "--node-rank", metavar="K", default="0", help="only 0")
    add(
        "--master_addr",
        "--master-addr",
        metavar="HOST",
        default="127.0.0.1",
        help="for programs that ask for it",
    )
    add("--master_port", "--master-port", metavar="PORT", default="29500", help="the same")
    add("--logdir", "--log_dir", dest="log_dir", metavar="DIR", help="the same as --log-dir")
    add("--redirect_stdout_and_stderr", action="store_true", help="logs only; needs --logdir")
    add("--no_python", action="store_true", help=argparse.SUPPRESS)


def understood(args: argparse.Namespace) -> dict[str, str]:
    """Bring ``args.n`` and ``args.blocks`` in order; returns what other launchers put into the environment.

    Raises:
        InputError: several nodes, a port that is none, words that contradict one another, or no number of ranks.
    """
    said = args.nproc_per_node
    if args.n is None and said is None:
        raise InputError("how many ranks? -n N, or --nproc_per_node N")
    if None not in (args.n, said) and args.n != said:
        raise InputError(f"-n {args.n} and --nproc_per_node {said} say different numbers of ranks")
    if args.nnodes != "1" or args.node_rank != "0":
        raise InputError(f"--nnodes {args.nnodes} --node_rank {args.node_rank}: {ONE_NODE}")
    if not args.master_port.isdecimal() or not 0 < int(args.master_port) < 65536:
        raise InputError(f"--master_port is a number from 1 to 65535, not {args.master_port}")
    if args.no_python:
        raise InputError("--no_python: each rank runs Python here; nearest: mpirun -n N COMMAND")
    if args.redirect_stdout_and_stderr and args.log_dir is None:
        raise InputError("'redirect_stdout_and_stderr' is only available when 'logdir' is set")
    if said is None:
        return {}
    args.n, args.blocks = said, True
    return {"WORLD_SIZE": str(said), "MASTER_ADDR": args.master_addr, "MASTER_PORT": args.master_port}
