"""``spmdsim search``: find the best layouts for a network."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from spmdsim.cli.main import PICTURES, command, flag, several, value, varied, whole_number
from spmdsim.cli.output import (
    LIMITS,
    collect_write_error,
    emit_json,
    only_with,
    say,
    writable,
    write_pictures,
)
from spmdsim.cli.progress import progress
from spmdsim.errors import InputError, many
from spmdsim.launcher import is_root
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
  spmdsim search model.py -n 8 --run                 run a program of yours, and compare its bytes with the prediction

A program file defines `program(...)`, a function of global tensors, and the dicts `inputs` and `parameters` with the
shapes of its arguments, such as inputs = {"x": (32, 784)}. Nothing in it is annotated; operators with .shard keep
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
#: Remarks on sizes.
_NOTES = {"batch": " (by default at least one row per rank)"}
SIZES = ("layers", "hidden", "batch", "seq", "heads", "vocab", "experts")

#: Options that only a search for one strategy per operator uses.
_SEARCHED = "--method --memory --axes"


@command(
    "Find a strategy for every operator of a program, and say what it costs.",
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
    value("--machine", "", "laptop, cluster, accelerators, or a machine file", default="laptop"),
    value("--memory", "", "bytes a rank may use, such as 512MiB"),
    flag("--recompute", "compute activations again in the backward pass"),
    flag("--forward-only", "no gradients"),
    several(
        "--why",
        ("OPERATOR", "CUTS"),
        "what the total would be with this strategy for an operator, and where the difference comes from",
        nargs=2,
    ),
    flag("--pareto", "all trade-offs of time and memory"),
    flag("--run", "run the program file, too", dest="carry_out"),
    value("--load", "FILE", "strategies saved before, instead of a search"),
    value(
        "--axes",
        "",
        "axes of the device matrices that are searched (2, or 3 where that is quick)",
        whole_number,
    ),
    value("--save", "FILE", "write the strategies to a JSON file", writable),
    *PICTURES,
    varied("--json", help="print JSON"),
    *(
        value(f"--{name}", "", f"size of the program: {name}{_NOTES.get(name, '')}", whole_number)
        for name in SIZES
    ),
    limits=SECONDS,
    program=lambda args: args.file,
)
def main(args: argparse.Namespace) -> int:
    """Search, print the result, and return 0, or 1 if a run differs from the prediction."""
    _refuse_unused_options(args)
    from dataclasses import replace

    from spmdsim.auto_parallel.costs.search_settings import Settings
    from spmdsim.auto_parallel.search import METHODS, as_graph, search
    from spmdsim.cost import load_machine

    kind = METHODS.get(args.method)
    if kind == "double_recursion":
        only_with(args, "--axes --mesh", "other methods: double recursion cuts by twos for -n RANKS")
    if args.recompute and args.carry_out:
        raise InputError(
            "--run keeps its activations, so --recompute can only be priced; leave one of them out"
        )
    where = _mesh_or_ranks(args)
    graph = as_graph(*_graph_arguments(args, where))
    if args.forward_only:
        graph = replace(graph, training=False)
    settings = Settings(machine=load_machine(args.machine), partial=True, recompute=args.recompute)
    memory = None if args.memory is None else parse_bytes(args.memory)
    if args.pareto:
        return _pareto(args, graph, where, settings)
    if args.load:
        from spmdsim.auto_parallel.search_result import SearchResult, load_choice

        result = SearchResult(load_choice(args.load, graph), settings, f"file {args.load}")
        if (args.mesh and where != result.mesh) or args.ranks not in (RANKS, result.mesh.size):
            option = f"--mesh {args.mesh}" if args.mesh else f"-n {args.ranks}"
            raise InputError(f"{option} was given, but the strategies of {args.load} are for {result.mesh}")
    else:
        with progress("search") as step:
            result = search(
                graph,
                where,
                method=args.method,
                memory=memory,
                settings=settings,
                axes=args.axes,
                watch=step,
            )
            # Compute slow properties here, so that they count as progress; the result caches them.
            for fact, label in (("memory", "peak memory"), ("gap", "bound"), ("comparison", "comparison")):
                step(label)
                getattr(result, fact)
    if args.save and is_root():
        with collect_write_error(args.save):
            result.save(args.save)
    proof = _carry_out(args, result) if args.carry_out else None
    answers = [result.why(name, _literal(cuts)) for name, cuts in args.why]
    write_pictures(args, result, *answers)
    _print(args, result, answers, proof)
    return 0 if proof is None or proof.holds else 1


def _refuse_unused_options(args: argparse.Namespace) -> None:
    """Raise InputError for options that have no effect on the result."""
    if (args.file is None) == (args.program is None):
        raise InputError("search takes a program file or --program NAME, one of them")
    if not args.file:
        only_with(args, LIMITS, "a program file")
    if args.pareto:
        only_with(args, f"{_SEARCHED} --why --run --load --save", "one strategy, not with --pareto")
    if args.load:
        only_with(args, _SEARCHED, "a search, not with --load")
    if args.mesh:
        only_with(args, "--axes", "-n RANKS, not with --mesh")
    if args.forward_only:
        only_with(args, "--recompute", "gradients, not with --forward-only")


def _mesh_or_ranks(args: argparse.Namespace) -> Mesh | int:
    """Return the mesh of ``--mesh``, or without it the number of ranks ``-n``.

    Raises:
        InputError: If ``-n`` is neither its default nor the size of the mesh.
    """
    if not args.mesh:
        ranks: int = args.ranks
        return ranks
    from spmdsim.layout.written import parse_mesh

    mesh = parse_mesh(args.mesh)
    if args.ranks not in (RANKS, mesh.size):
        raise InputError(f"-n {args.ranks} was given, but --mesh {args.mesh} has {many(mesh.size, 'rank')}")
    return mesh


def _carry_out(args: argparse.Namespace, result: SearchResult) -> Proof:
    """Run the program file and compare with the prediction.

    It runs on MPI ranks if a launcher started this process, else in lock step.
    """
    from spmdsim.auto_parallel.execute import arguments, prove
    from spmdsim.auto_parallel.programs.record_program import load_program
    from spmdsim.worlds import LockStep, world

    if not args.file:
        raise InputError("--run runs a program file; the built-in programs are graphs only")
    program, inputs, parameters = load_program(args.file)
    current_world = world()
    if isinstance(current_world, LockStep):
        current_world = LockStep(result.mesh.size)
    return prove(program, result, current_world, arguments({**inputs, **parameters}))


def _print(
    args: argparse.Namespace, result: SearchResult, answers: list[WhyNot], proof: Proof | None
) -> None:
    """Print the result, the answers to ``--why`` and the comparison of a run; or all as JSON."""
    from spmdsim.auto_parallel.search_report import report_parts
    from spmdsim.figures.figures import figure

    if args.json:
        emit_json(_as_dict(result, answers, proof))
        return
    say(*report_parts(result), "")
    for answer in answers:
        say(*figure(answer).words(), "")
    if proof is not None:
        say(str(proof))


def _as_dict(result: SearchResult, answers: list[WhyNot], proof: Proof | None) -> dict[str, Any]:
    """Return the result, the answers to ``--why`` and the comparison of a run as plain values."""
    facts = result.to_dict()
    facts["comparison"] = {
        name: {"seconds": rival.seconds, "nbytes": rival.nbytes, "peak_memory": rival.memory.peak}
        for name, rival in result.comparison.items()
    }
    facts["configured"] = result.graph.configured_names
    facts["not_possible"] = result.not_possible
    facts["redistributions"] = [
        {
            **{"when": move.phase, "tensor": move.value.name, "times": move.times, "seconds": seconds},
            "nbytes": move.times * result.moves.plan(*move.price_key).nbytes(result.mesh.rank_at(0)),
        }
        for move, seconds in result.evaluation.moves
    ]
    facts["why"] = [
        {
            **{"operator": a.operator.name, "seconds": a.other.seconds, "difference": a.difference},
            "operators": a.other.to_dict()["operators"],
        }
        for a in answers
    ]
    if proof is not None:
        rows = [vars(row) for row in proof.rows]
        facts["run"] = {"holds": proof.holds, "error": proof.error, "bytes": rows}
    return facts


def _graph_arguments(args: argparse.Namespace, where: Any) -> tuple[Any, Any, dict[str, Any]]:
    """Return the arguments of ``as_graph``.

    They are the program or its name, mesh or ranks, and sizes or shapes.

    Raises:
        InputError: If sizes are given for a program file.
    """
    asked = {size: getattr(args, size) for size in SIZES}
    sizes = {name: size for name, size in asked.items() if size is not None}
    if args.program:
        return args.program, where, sizes
    if sizes:
        raise InputError(f"a program file has its own sizes; --{next(iter(sizes))} is for built-in programs")
    from spmdsim.auto_parallel.programs.record_program import load_program

    program, inputs, parameters = load_program(args.file)
    return program, where, {"inputs": inputs, "parameters": parameters}


def _literal(text: str) -> Any:
    """Parse a strategy that is written as a Python literal."""
    try:
        return literal(text)
    except ValueError:
        raise InputError(
            f"a strategy is written like ((2,4),(4,1)) or {{'m': 'dp'}}, but got {text!r}"
        ) from None


def parse_bytes(text: str) -> float:
    """Convert a positive number of bytes with an optional unit to a number.

    KB, MB and GB are powers of 1000; KiB, MiB and GiB are powers of 1024.

    Raises:
        InputError: If the text is no size, or not above 0.

    >>> parse_bytes("1.5KiB"), parse_bytes("2GB"), parse_bytes("100")
    (1536.0, 2000000000.0, 100.0)
    """
    units = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "KB": 10**3, "MB": 10**6, "GB": 10**9, "B": 1}
    number, factor = text.strip(), 1
    for unit, size in units.items():
        if number.endswith(unit):
            number, factor = number[: -len(unit)], size
            break
    try:
        nbytes = float(number) * factor
    except ValueError:
        raise InputError(f"{text!r} is not a size; write 512MiB, 2GB or a number of bytes") from None
    if not nbytes > 0:
        raise InputError(f"{text!r} is not a size; it has to be greater than 0")
    return nbytes


def _pareto(args: argparse.Namespace, graph: Any, where: Any, settings: Any) -> int:
    """Print all trade-offs of time and memory; return 0."""
    from spmdsim.auto_parallel.frontier import frontier, frontier_table

    points = frontier(graph, where, settings)
    write_pictures(args, points)
    if args.json:
        emit_json([{"mesh": str(p.mesh), "seconds": p.seconds, "memory": p.memory} for p in points])
    else:
        say(str(graph), frontier_table(points))
    return 0
