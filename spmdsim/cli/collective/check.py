"""``spmdsim collective check``: verify a user's algorithm and score it against the lower bound."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from spmdsim.cli.collective.schedule_arguments import (
    JUDGED,
    find_algorithm,
    rank_counts,
    refuse_unused_root,
)
from spmdsim.cli.main import command, declare_flag, value, varied, whole_number
from spmdsim.cli.output import emit_json
from spmdsim.errors import InputError
from spmdsim.printing import say
from spmdsim.tables import Table

if TYPE_CHECKING:
    from spmdsim.collectives import Algorithm

EXAMPLES = """\
Your algorithm is one generator function; each round it yields is a list of moves:

  from spmdsim.collectives import send, recv, recv_reduce

  def my_ring(rank, size):
      for i in range(size - 1):
          yield [send((rank + 1) % size, (rank - i) % size),
                 recv_reduce((rank - 1) % size, (rank - 1 - i) % size)]
      ...

  spmdsim collective check my.py:my_ring -n 2..16

The score is 0 for a wrong algorithm; else half of it is for the number of rounds and half for the bytes on the
critical path, each in full when the lower bound for the algorithm's ports is reached, averaged over the rank counts. Exit code: 0 correct,
1 wrong, 2 cannot be checked, or a limit was reached.

Your code runs in a child process, which returns only its rounds. Its output, its exit code and its changes to that process
have no effect on the verdict. If you grade programs of others, run them as a user who cannot write to this package.
"""


@command(
    "Verify an algorithm for many rank counts, and report the round and the rank of each error.",
    EXAMPLES,
    varied(
        "algorithm", help="FILE.py:FUNCTION, MSCCL's FILE.xml, or the name of an algorithm of this package"
    ),
    value("-n --ranks", "N", "rank counts: 6, 2..16 or 2,4,8 (2..16)", default="2..16"),
    value("--collective", "", "collective that it implements (all_reduce)", default="all_reduce"),
    value("--root", "R", "only this root (default: every root)", whole_number),
    value("--chunks", "EXPR", "number of chunks, such as n or 2*n (default: derived from the rounds)"),
    value("--ports", "EXPR", "messages a rank may send, and receive, in one round, such as 2 or n-1 (1)"),
    declare_flag("--all", "all findings, not only the first of each rank count"),
    "--json",
    help="verify your own algorithm and score it",
    **JUDGED,
)
def main(args: argparse.Namespace) -> int:
    """Verify an algorithm for all rank counts of ``--ranks`` and print verdicts and score.

    Rank counts that the algorithm does not support are left out, and named. The score is the mean over the other rank
    counts, from 0 to 100; it is 0 if one of them is wrong.

    Args:
        args: the command's arguments.

    Returns:
        0 if the algorithm is correct for all rank counts that it supports, 1 if it is wrong for one of them, 2 if it
        supports none.

    Raises:
        InputError: If ``--chunks`` or ``--ports`` is set for an algorithm of the package, ``--root`` is no rank of the
            smallest rank count or is set for a collective without a root, or the rank counts or the user's file cannot
            be read.
        ScheduleError: If the algorithm is unknown.
    """
    if ".py" not in args.algorithm and (args.chunks or args.ports):
        raise InputError(f"--chunks and --ports are for FILE.py:FUNCTION: {args.algorithm} says its own")
    chosen = find_algorithm(args.collective, args.algorithm, args.chunks, args.ports)
    refuse_unused_root(args, chosen)
    sizes = rank_counts(args.ranks)
    if args.root is not None and not 0 <= args.root < min(sizes):
        raise InputError(
            f"--root {args.root} is no rank of 0 ... {min(sizes) - 1}: check rank counts above it, as with -n {abs(args.root) + 1}.."
        )
    fitting = [size for size in sizes if chosen.fits(size)]
    results = [_check_rank_count(chosen, size, args) for size in fitting]
    ok = bool(results) and all(r["ok"] for r in results)
    score = sum(r["score"] for r in results) / len(results) if ok else 0.0
    code = 0 if ok else 1 if results else 2
    if args.json:
        facts = {"algorithm": args.algorithm, "collective": chosen.collective.name, "ok": ok}
        emit_json({**facts, "score": round(score, 2), "results": results})
        return code
    say(f"{args.algorithm} as {chosen.collective.name}")
    if len(fitting) < len(sizes):
        say(_left_out_text(chosen, [size for size in sizes if size not in fitting]))
    if results:
        say(_make_table(results, args.all))
    verdict = f"correct, score {score:.1f} of 100" if ok else "wrong"
    say(verdict if results else "nothing was checked")
    return code


def _left_out_text(chosen: Algorithm, sizes: list[int]) -> str:
    """Return a line about rank counts that are not checked, because the algorithm does not support them."""
    ranks = "rank" if sizes == [1] else "ranks"
    return f"  needs {chosen.condition_words}: not checked on {', '.join(map(str, sizes))} {ranks}"


def _check_rank_count(chosen: Algorithm, size: int, args: argparse.Namespace) -> dict[str, Any]:
    """Verify an algorithm with ``size`` ranks for all roots; return the facts of one root.

    They are the facts of the first wrong root, or of the first root if no root is wrong. Only one root is checked if
    ``--root`` is set, or if the collective or the algorithm has no root (root 0). A schedule that cannot be made or
    verified is wrong; its finding is the text of the ScheduleError.

    Args:
        chosen: the algorithm.
        size: number of ranks, which the algorithm supports.
        args: the command's arguments; only ``root`` is read.

    Returns:
        A dict with the keys of :meth:`~spmdsim.collectives.facts.Facts.to_dict`, such as

        * "ranks" and "root": what was verified;
        * "ok", and "findings": a list of texts;
        * "score", "rounds", "beta" (critical bytes per message size) and "bound". If "ok" is False, the score is 0 and
          counts are None.
    """
    from spmdsim.collectives import make_schedule
    from spmdsim.collectives.facts import facts_of, uncounted_facts
    from spmdsim.collectives.verification import verify
    from spmdsim.errors import ScheduleError

    roots = [args.root or 0]
    if args.root is None and chosen.collective.rooted and chosen.takes_root:
        roots = list(range(size))
    first_facts: dict[str, Any] | None = None
    for root in roots:
        try:
            schedule = make_schedule(chosen, size, root)
            verdict = verify(schedule)
        except ScheduleError as error:
            return uncounted_facts(chosen, size, root, [error.message])
        findings = [str(f) for f in verdict.findings if not f.warning]
        if findings:
            return uncounted_facts(chosen, size, root, findings, chunks=schedule.chunk_count)
        if first_facts is None:
            first_facts = {**facts_of(schedule, verdict).to_dict(), "ok": True}
    assert first_facts is not None  # roots is never empty
    return first_facts


def _make_table(results: list[dict[str, Any]], all_findings: bool) -> Table:
    """Return the table of verdicts with one row per rank count.

    * The row of a correct rank count has "correct" and warnings, rounds, critical bytes as multiples of the message
      size m, the lower bounds of both, and the score.
    * The row of a wrong rank count has the root (if it is not 0), the first finding, the number of further findings,
      and the score 0.

    Args:
        results: the dicts of :func:`_check_rank_count`.
        all_findings: True to give each further finding a row instead of counting them.
    """
    rows: list[tuple[str, ...]] = []
    for result in results:
        ranks, findings = str(result["ranks"]), result["findings"]
        if result["ok"]:
            bound = result["bound"]
            counts = (
                str(result["rounds"]),
                str(bound["rounds"]),
                f"{result['beta']:.4g} m",
                f"{bound['beta']:.4g} m",
            )
            rows.append((ranks, "; ".join(["correct", *findings]), *counts, f"{result['score']:.1f}"))
            continue
        listed_findings = findings if all_findings else findings[:1]
        root = f"root {result['root']}: " if result.get("root") else ""
        more_text = (
            f" (and {len(findings) - len(listed_findings)} more)"
            if len(findings) > len(listed_findings)
            else ""
        )
        rows.append((ranks, f"wrong: {root}{listed_findings[0]}{more_text}", "", "", "", "", "0"))
        rows += [("", finding, "", "", "", "", "") for finding in listed_findings[1:]]
    heads = ("ranks", "verdict", "rounds", "bound", "critical bytes", "bound", "score")
    return Table(heads, rows, right=(0, 2, 3, 4, 5, 6))
