"""``spmdsim search``: find the best layouts for a network.

:func:`main` records or builds the graph of the program, searches (:func:`_search`), and prints the result. With
``--run`` the program runs and its bytes are compared with the prediction.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from spmdsim.cli.main import PICTURES, command, declare_flag, several, value, varied, whole_number
from spmdsim.cli.output import (
    LIMITS,
    emit_json,
    refuse_options,
    write_pictures,
)
from spmdsim.cli.progress import progress
from spmdsim.errors import InputError, many
from spmdsim.launcher import detect
from spmdsim.printing import say
from spmdsim.reading import literal

if TYPE_CHECKING:
    from spmdsim.auto_parallel.execute import Proof
    from spmdsim.auto_parallel.search_result import SearchResult, WhyNot
    from spmdsim.core import Mesh

EXAMPLES = """\
examples:
  spmdsim search --program gpt --layers 96 --hidden 12288 --batch 8192 --seq 2048 -n 65536 --machine accelerators
  spmdsim search --program mlp --layers 2 -n 8 --why fc1 "((2,4),(4,1))"
  spmdsim search --program mlp --hidden 1024 -n 8 --memory 24MiB
  spmdsim search model.py -n 8 --run                 run your program, and compare its bytes with the prediction

A program file defines `program(...)`, a function of global tensors, and the dicts `inputs` and `parameters` with the
shapes of its arguments, such as inputs = {"x": (32, 784)}. It needs no annotations; operators with .shard keep
their strategy.

Default sizes of the built-in programs:
  mlp            layers=6 hidden=256 batch=32
  gpt            layers=2 hidden=128 batch=8 seq=64 vocab=1024
  bert           layers=2 hidden=128 batch=8 seq=8 heads=8
  moe            layers=1 hidden=64 batch=64 seq=16 heads=8 experts=16
  convolutions   layers=4 batch=16
  chain          batch=512
  tutorial       batch=32
"""

#: Default limit on the processor time of a program file, in seconds. A search for a large program takes minutes.
SECONDS = 600

RANKS = 8
#: Sizes of built-in programs and their meanings.
SIZES = {
    "layers": "number of layers",
    "hidden": "features between layers",
    "batch": "rows of the batch (by default at least one per rank)",
    "seq": "tokens of a sequence",
    "heads": "attention heads",
    "vocab": "tokens of the vocabulary",
    "experts": "experts of a layer",
}

#: Options that only a search for one strategy per operator uses.
_SEARCHED = "--method --memory --axes"


@command(
    "Find a strategy for every operator of a program, and report the cost.",
    EXAMPLES,
    value("file", "", "a Python file with `program` and `inputs`", nargs="?"),
    value("--program", "", "a built-in program: tutorial, mlp, chain, convolutions, gpt, bert, moe"),
    value("-n --ranks", "", f"number of ranks (default {RANKS})", whole_number, default=RANKS),
    value("--mesh", "", "a mesh instead of a number of ranks, such as dp=2,tp=4"),
    value(
        "--method",
        "",
        "auto, exact, propagation, double_recursion (or MindSpore's names of the last two)",
        default="auto",
    ),
    value(
        "--machine",
        "",
        "laptop, cluster, accelerators, or a machine file (default: laptop; in a job of -n ranks on several nodes, cluster)",
    ),
    value("--memory", "", "memory limit of a rank, such as 512MiB"),
    declare_flag("--recompute", "compute activations again in the backward pass"),
    several(
        "--why",
        ("OPERATOR", "CUTS"),
        "compare the total time with that of this strategy for an operator, and explain the difference",
        nargs=2,
    ),
    declare_flag("--pareto", "all trade-offs of time and memory"),
    declare_flag("--run", "also run the program file, and compare it with the prediction", dest="carry_out"),
    value(
        "--axes",
        "",
        "most axes of the device matrices that are searched (2, or 3 if that is quick)",
        whole_number,
    ),
    *PICTURES,
    varied("--json", help="print JSON"),
    *(
        value(f"--{name}", "", f"size of a built-in program: {meaning}", whole_number)
        for name, meaning in SIZES.items()
    ),
    limits=SECONDS,
    program=lambda args: args.file,
)
def main(args: argparse.Namespace) -> int:
    """Search for the fastest strategies of a program's operators, print them, and return 0 or 1.

    * ``--run`` also runs the program with the strategies, in a job on all ranks. The exit code is 1 if values or bytes
      differ from the prediction, else 0.
    * ``--pareto`` prints all trade-offs of time and memory, and nothing else.

    Args:
        args: the command's arguments.

    Raises:
        InputError: If an option has no effect, options contradict each other, or a program, machine, file or text
            cannot be read.
        DoesNotFitError: If no strategies fit into ``--memory``.
        RuleError: If an operator does not support a strategy of ``--why``.
    """
    _refuse_unused_options(args)
    from spmdsim.auto_parallel.costs.search_settings import Settings
    from spmdsim.auto_parallel.search import METHODS, as_graph, choose_machine
    from spmdsim.cost import load_machine

    kind = METHODS.get(args.method)
    if kind == "double_recursion":
        refuse_options(args, "--axes --mesh", "other methods: double recursion cuts by twos for -n RANKS")
    if args.recompute and args.carry_out:
        raise InputError(
            "--run keeps its activations, so --recompute can only be priced; leave one of them out"
        )
    mesh = _mesh_or_ranks(args)
    program, sizes = _read_program(args)
    graph = as_graph(program, mesh, sizes)
    if args.machine is None:
        _join_job(mesh)
    machine = choose_machine(mesh) if args.machine is None else load_machine(args.machine)
    settings = Settings(machine=machine, partial=True, recompute=args.recompute)
    if args.pareto:
        return _print_frontier(args, graph, mesh, settings)
    result = _search(args, graph, mesh, settings)
    proof = _run_and_compare(args, result) if args.carry_out else None
    answers = [result.why(name, _parse_strategy(cuts)) for name, cuts in args.why]
    write_pictures(args, result, *answers)
    _print_result(args, result, answers, proof)
    return 0 if proof is None or proof.holds else 1


def _join_job(mesh: Mesh | int) -> None:
    """Make the world of this job if it has the ranks of the search, so that its nodes are known.

    All ranks of the job must call it.
    """
    from spmdsim.worlds import world

    job = detect()
    if job is not None and job.size == (mesh if isinstance(mesh, int) else mesh.size) > 1:
        world()


def _search(args: argparse.Namespace, graph: Any, mesh: Mesh | int, settings: Any) -> SearchResult:
    """Search for strategies, show the progress on stderr, and return the result.

    Args:
        args: the command's arguments: ``method``, ``memory`` (text such as "24MiB", or None) and ``axes``.
        graph: the program as a graph of operators.
        mesh: a mesh, or the number of ranks of all meshes to search.
        settings: the machine and other settings of the cost model.

    Raises:
        InputError: If the method or ``--memory`` is wrong, or no operator can use the ranks.
        DoesNotFitError: If no strategies fit into ``--memory``.
    """
    from spmdsim.auto_parallel.search import search

    memory = None if args.memory is None else parse_memory(args.memory)
    with progress("search") as step:
        result = search(
            graph, mesh, method=args.method, memory=memory, settings=settings, axes=args.axes, watch=step
        )
        # Compute slow properties here, so that they count as progress; the result caches them.
        for fact, label in (("memory", "peak memory"), ("gap", "bound"), ("comparison", "comparison")):
            step(label)
            getattr(result, fact)
    return result


def _refuse_unused_options(args: argparse.Namespace) -> None:
    """Raise InputError for options without effect on the result, or not exactly one program.

    The program is a file or ``--program``. These options have no effect:

    - limits of the child process without a program file;
    - options of the search, and options for one strategy per operator such as ``--why``, with ``--pareto``;
    - ``--axes`` with ``--mesh``.

    :func:`main` checks options that depend on the method.
    """
    if (args.file is None) == (args.program is None):
        raise InputError("search takes a program file or --program NAME, one of them")
    if not args.file:
        refuse_options(args, LIMITS, "a program file")
    if args.pareto:
        refuse_options(args, f"{_SEARCHED} --why --run", "one strategy, not with --pareto")
    if args.mesh:
        refuse_options(args, "--axes", "-n RANKS, not with --mesh")


def _mesh_or_ranks(args: argparse.Namespace) -> Mesh | int:
    """Return the mesh of ``--mesh``, or without it the number of ranks ``-n``.

    Args:
        args: the command's arguments: ``mesh`` (text, or "" or None) and ``ranks``.

    Raises:
        InputError: If ``-n`` is neither its default nor the size of the mesh, or ``--mesh`` is no mesh.
    """
    if not args.mesh:
        ranks: int = args.ranks
        return ranks
    from spmdsim.layout.written import parse_mesh

    mesh = parse_mesh(args.mesh)
    if args.ranks not in (RANKS, mesh.size):
        raise InputError(f"-n {args.ranks} was given, but --mesh {args.mesh} has {many(mesh.size, 'rank')}")
    return mesh


def _run_and_compare(args: argparse.Namespace, result: SearchResult) -> Proof:
    """Run the program file with the strategies; compare values and bytes with the prediction.

    In an MPI job it runs on the job's ranks, and all ranks must call this function. Otherwise it runs in lock step: one
    process plays all ranks of the mesh. Inputs and parameters are generated from the shapes in the file.

    Args:
        args: the command's arguments: ``file``.
        result: the strategies.

    Returns:
        The comparison; its ``holds`` is True if values and bytes agree.

    Raises:
        InputError: If there is no program file, or it cannot be run.
        WorldError: If the job has another number of ranks than the mesh.
    """
    from spmdsim.auto_parallel.execute import create_arguments, prove
    from spmdsim.auto_parallel.programs.record_program import load_program
    from spmdsim.worlds import LockStep, world

    if not args.file:
        raise InputError("--run runs a program file; the built-in programs are graphs only")
    program, inputs, parameters = load_program(args.file)
    current_world = world()
    if isinstance(current_world, LockStep):
        current_world = LockStep(result.mesh.size)
    return prove(program, result, current_world, create_arguments({**inputs, **parameters}))


def _print_result(
    args: argparse.Namespace, result: SearchResult, answers: list[WhyNot], proof: Proof | None
) -> None:
    """Print the result, the answers to ``--why`` and the comparison of a run; or all as JSON.

    Args:
        args: the command's arguments: ``json``.
        result: the strategies with their price.
        answers: the answers to ``--why``, in the order of the command line.
        proof: the comparison of a run; None without ``--run``.
    """
    from spmdsim.auto_parallel.search_report import report_parts
    from spmdsim.figures.figures import figure

    if args.json:
        emit_json(_result_facts(result, answers, proof))
        return
    say(*report_parts(result), "")
    for answer in answers:
        say(*figure(answer).words(), "")
    if proof is not None:
        say(str(proof))


def _result_facts(result: SearchResult, answers: list[WhyNot], proof: Proof | None) -> dict[str, Any]:
    """Return a search result, the answers to ``--why`` and the comparison of a run for JSON.

    Times are seconds of the cost model, sizes are bytes.

    Args:
        result: the strategies with their price.
        answers: the answers to ``--why``.
        proof: the comparison of a run; None without ``--run``.

    Returns:
        The dict ``result.to_dict()`` with these further keys:

        * "comparison": "seconds", "nbytes" and "peak_memory" of hand-written strategies, by name;
        * "configured": the operators whose strategy the program fixes;
        * "not_possible": the reasons why other hand-written strategies are not possible on these ranks;
        * "redistributions": a dict for each, with its phase ("when"), the name of its tensor ("tensor"), how often it
          runs ("times"), "seconds", and "nbytes", which the mesh's first rank receives in all runs together;
        * "why": for each answer the "operator", its "seconds", the "difference" from the best, and the "operators" with
          their strategies; [] without answers;
        * "run": "holds", "error", and "bytes" with one dict per operator; no such key if ``proof`` is None.
    """
    facts = result.to_dict()
    facts["comparison"] = {
        name: {"seconds": rival.seconds, "nbytes": rival.nbytes, "peak_memory": rival.memory.peak}
        for name, rival in result.comparison.items()
    }
    facts["configured"] = result.graph.configured_names
    facts["not_possible"] = result.not_possible
    facts["redistributions"] = [
        {
            "when": move.phase,
            "tensor": move.value.name,
            "times": move.times,
            "seconds": seconds,
            "nbytes": move.times * result.moves.plan(*move.price_key).nbytes(result.mesh.rank_at(0)),
        }
        for move, seconds in result.evaluation.moves
    ]
    facts["why"] = [
        {
            "operator": answer.operator.name,
            "seconds": answer.other.seconds,
            "difference": answer.difference,
            "operators": answer.other.to_dict()["operators"],
        }
        for answer in answers
    ]
    if proof is not None:
        rows = [vars(row) for row in proof.rows]
        facts["run"] = {"holds": proof.holds, "error": proof.error, "bytes": rows}
    return facts


def _read_program(args: argparse.Namespace) -> tuple[Any, dict[str, Any]]:
    """Return ``(program, sizes)`` for ``as_graph``; execute a program file to read it.

    Args:
        args: the command's arguments: ``program`` or ``file``, and the sizes of :data:`SIZES`; None if not set.

    Returns:
        For a built-in program, its name and the sizes that are set, by name. For a program file, its function
        ``program``, and a dict with the shapes of the file as "inputs" and "parameters".

    Raises:
        InputError: If sizes are set for a program file, or the file cannot be run.
    """
    sizes = {name: getattr(args, name) for name in SIZES if getattr(args, name) is not None}
    if args.program:
        return args.program, sizes
    if sizes:
        raise InputError(f"a program file has its own sizes; --{next(iter(sizes))} is for built-in programs")
    from spmdsim.auto_parallel.programs.record_program import load_program

    program, inputs, parameters = load_program(args.file)
    return program, {"inputs": inputs, "parameters": parameters}


def _parse_strategy(text: str) -> Any:
    """Parse a strategy that is written as a Python literal, such as ``((2,4),(4,1))``.

    The value can be any literal: cuts per operand, or a dict of axes by factor. It is not checked here.
    """
    try:
        return literal(text)
    except ValueError:
        raise InputError(
            f"a strategy is written like ((2,4),(4,1)) or {{'m': 'dp'}}, but got {text!r}"
        ) from None


def parse_memory(text: str) -> float:
    """Convert a text such as "2GB" or "100" to a number of bytes.

    KB, MB and GB are powers of 1000; KiB, MiB and GiB are powers of 1024; B, and no unit, are bytes. Case
    matters.

    Raises:
        InputError: If the text is no size, or not above 0.

    >>> parse_memory("1.5KiB"), parse_memory("2GB"), parse_memory("100")
    (1536.0, 2000000000.0, 100.0)
    """
    units = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "KB": 10**3, "MB": 10**6, "GB": 10**9, "B": 1}
    text = text.strip()
    unit = next((unit for unit in units if text.endswith(unit)), "")
    try:
        nbytes = float(text.removesuffix(unit)) * units.get(unit, 1)
    except ValueError:
        raise InputError(f"{text!r} is not a size; write 512MiB, 2GB or a number of bytes") from None
    if not nbytes > 0:
        raise InputError(f"{text!r} is not a size; it has to be greater than 0")
    return nbytes


def _print_frontier(args: argparse.Namespace, graph: Any, mesh: Mesh | int, settings: Any) -> int:
    """Print all trade-offs of time and memory for ``--pareto``, and write pictures; return 0.

    A trade-off is a choice of strategies that no other choice beats in both. The fastest comes first. In JSON,
    times are in seconds and memory in bytes.

    Args:
        args: the command's arguments: ``json``, ``svg`` and ``html``.
        graph: the program as a graph of operators.
        mesh: a mesh; or a number of ranks, for which meshes of up to two axes are searched.
        settings: the machine and other settings of the cost model.
    """
    from spmdsim.auto_parallel.frontier import frontier, frontier_table

    points = frontier(graph, mesh, settings)
    write_pictures(args, points)
    if args.json:
        emit_json([{"mesh": str(p.mesh), "seconds": p.seconds, "memory": p.memory} for p in points])
    else:
        say(str(graph), frontier_table(points))
    return 0
