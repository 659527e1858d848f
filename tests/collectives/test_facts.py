"""Declared formulas, bounds, symmetries, cuts and selection tables of algorithms are right."""

from __future__ import annotations

import inspect
import itertools
import json
import math
from dataclasses import replace
from fractions import Fraction
from itertools import zip_longest
from math import lcm
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spmdsim.collectives import (
    Algorithm,
    algorithm,
    algorithms,
    choose,
    collective,
    count,
    facts_of,
    from_function,
    lower_bound,
    make_schedule,
    schedule_of,
    verify,
)
from spmdsim.collectives.algorithm import evaluate_expression
from spmdsim.collectives.facts import as_share, count_elements
from spmdsim.collectives.instructions import chunk_sizes, cut
from spmdsim.collectives.selection_tables import libraries
from spmdsim.errors import InputError, ScheduleError, SpmdError

DATA = json.loads((Path(__file__).parents[1] / "vectors" / "collectives.json").read_text())
by_name = pytest.mark.parametrize("chosen", algorithms(), ids=lambda a: a.full_name.replace(" ", "-"))


@by_name
def test_the_formula_equals_the_count(chosen: Algorithm) -> None:
    form = chosen.formula
    if form is None:
        assert chosen.name in ("double_binary_tree", "knomial", "binary_tree", "binary_levels", "two_trees")
        return
    checked = 0
    for size in filter(chosen.fits, (*range(1, 10), 12, 16, 17)):
        schedule = make_schedule(chosen, size)
        if not form.holds(size, dict(schedule.options)):
            continue
        unit = lcm(schedule.chunk_count, size)
        counted = count(schedule, unit)
        steps, beta, gamma = form.at(size, dict(schedule.options))
        assert counted.steps == steps, size
        assert Fraction(counted.critical_bytes, unit) == beta, size
        assert Fraction(counted.critical_worked_bytes, unit) == gamma, size
        if form.depth is not None and size > 1:
            depth = evaluate_expression(form.depth, size, dict(schedule.options))
            assert verify(schedule).depth == depth, size
        checked += 1
    assert checked >= 5


@by_name
def test_the_declared_symmetry_holds(chosen: Algorithm) -> None:
    """The moves of each rank are the moves of rank 0 with shifted or xored peers."""
    for size in filter(chosen.fits, range(1, 18)):
        schedule = make_schedule(chosen, size)
        for clause in filter(None, chosen.symmetry.split(";")):
            condition, _, kind = clause.strip().rpartition(":")
            if condition and not evaluate_expression(condition, size):
                continue
            first = list(schedule.rounds(0))
            for rank in range(1, size):
                for expected_moves, moves in zip_longest(first, schedule.rounds(rank)):
                    peers = [
                        (m.kind, map_peer(m.peer, rank, size, kind.strip()), len(m.chunks))
                        for m in expected_moves
                    ]
                    assert sorted(peers) == sorted((m.kind, m.peer, len(m.chunks)) for m in moves)
            break


def map_peer(peer: int, rank: int, size: int, kind: str) -> int:
    if peer < 0:
        return peer
    return peer ^ rank if kind == "xor" else (peer + rank) % size


@by_name
def test_no_algorithm_is_better_than_the_bound(chosen: Algorithm) -> None:
    for size in filter(chosen.fits, range(1, 18)):
        facts = facts_of(make_schedule(chosen, size))
        assert facts.steps >= facts.bound.steps
        assert facts.beta >= facts.bound.beta
        assert 0 < facts.score <= 100


def test_some_algorithms_reach_the_bounds() -> None:
    reached: dict[str, list[bool]] = {}
    for chosen in algorithms():
        facts = facts_of(make_schedule(chosen, 16))
        best = reached.setdefault(chosen.collective.name, [False, False])
        best[0] |= facts.steps == facts.bound.steps
        best[1] |= facts.beta == facts.bound.beta
    both = {name for name, best in reached.items() if all(best)}
    assert both >= {
        "all_reduce",
        "reduce_scatter",
        "all_gather",
        "all_to_all",
        "gather",
        "scatter",
        "barrier",
    }


@pytest.mark.parametrize(
    ("name", "n", "expected"),
    [
        ("all_reduce", 8, (3, Fraction(7, 4), Fraction(7, 8))),
        ("all_reduce", 1, (0, 0, 0)),
        ("bcast", 6, (3, 1, 0)),
        ("reduce", 5, (3, 1, Fraction(4, 5))),
        ("alltoall", 6, (3, Fraction(5, 6), 0)),
        ("barrier", 9, (4, 0, 0)),
    ],
)
def test_lower_bounds_are_known_values(name: str, n: int, expected: tuple[Any, ...]) -> None:
    assert tuple(lower_bound(name, n)) == expected


def test_ranks_with_more_ports_need_fewer_rounds() -> None:
    assert [lower_bound("all_gather", 9, ports).steps for ports in (1, 2, 7, 8)] == [4, 2, 2, 1]
    with pytest.raises(InputError, match="ports must be a number of messages of 1 or more, got 0"):
        lower_bound("all_gather", 9, 0)


def test_the_default_root_is_rank_0() -> None:
    parameters = [inspect.signature(one.generate).parameters.get("root") for one in algorithms()]
    assert {root.default for root in parameters if root is not None} == {0} and len(parameters) > 50


def test_ring_at_65536_ranks_costs_only_its_rounds() -> None:
    schedule = schedule_of("all_reduce", "ring", 65536)
    rounds = schedule.rounds(4711)
    first = next(rounds)
    assert [m.describe() for m in first] == ["send to 4712: chunk 4710", "recv_reduce from 4710: chunk 4709"]
    assert sum(1 for _ in rounds) == 2 * 65535 - 1


@pytest.mark.parametrize("count_", [0, 1, 7, 12, 97, 1000])
@pytest.mark.parametrize("pieces", [1, 3, 16])
def test_cuts_are_balanced_or_full(count_: int, pieces: int) -> None:
    balanced, ceiling = cut(count_, pieces), cut(count_, pieces, "ceiling")
    assert sum(balanced) == sum(ceiling) == count_
    assert max(balanced) - min(balanced) <= 1 and list(balanced) == sorted(balanced, reverse=True)
    full = -(-count_ // pieces)
    assert all(c == full for c in ceiling[: count_ // full if full else 0])


def test_ceiling_cuts_equal_those_of_mpich() -> None:
    """MPICH cuts 97 bytes on 16 ranks into blocks of 7 bytes, so ranks 14 and 15 have no data."""
    assert cut(97, 16, "ceiling") == (7,) * 13 + (6, 0, 0)
    assert chunk_sizes(1000, (3, 2)) == (167, 167, 167, 166, 167, 166)


def our_name(name: str) -> str:
    return collective(name).name


def sizes_of(condition: str) -> list[int]:
    """Return sizes at both ends of a condition like `<4096`."""
    if condition in ("any", "else"):
        return [10**9]
    limit = int(condition.lstrip("<="))
    return [limit - 1] if condition.startswith("<") and not condition.startswith("<=") else [limit]


def test_choices_of_open_mpi_equal_the_published_tables() -> None:
    """Choices equal each row of the published tables at its limits of sizes and rank counts."""
    checked = 0
    for name, kinds in DATA["selection"]["openmpi"]["tables"].items():
        block = our_name(name) in ("all_to_all", "all_gather", "gather", "scatter")
        for kind, rows in kinds.items():
            low = 1
            for row in rows:
                words = row["ranks"]
                high = (
                    low + 5 if words in ("else", "any") else int(words.lstrip("<=")) - words.startswith("<")
                )
                for ranks in {max(2, low), high}:
                    smallest = 0
                    for condition, wanted in row["sizes"]:
                        for nbytes in {smallest, *sizes_of(condition)}:
                            total = nbytes * ranks if block else nbytes
                            choice = choose("openmpi", name, ranks, total, kind != "noncommutative")
                            assert choice.name == wanted, (name, kind, ranks, nbytes)
                            checked += 1
                        smallest = sizes_of(condition)[-1] + 1
                low = high + 1
    assert checked > 900


def test_choices_of_mpich_equal_its_rules() -> None:
    def name(what: str, ranks: int, nbytes: int, **facts: Any) -> str:
        return choose("mpich", what, ranks, nbytes, **facts).algorithm.name

    assert [name("allreduce", 8, n) for n in (8, 9, 4096)] == ["recursive_doubling"] + ["rabenseifner"] * 2
    assert name("allreduce", 8, 4096, user_op=True) == "recursive_doubling"
    assert name("allreduce", 16, 60, itemsize=4) == "recursive_doubling"
    assert name("allreduce", 16, 64, itemsize=4) == "rabenseifner"
    assert [name("bcast", 7, 10**6), name("bcast", 9, 12288)] == ["binomial", "binomial"]
    assert name("bcast", 16, 524288) == "scatter_recursive_doubling"
    assert [name("bcast", 16, 524289), name("bcast", 9, 12289)] == ["scatter_ring"] * 2
    assert [name("allgather", 8, n) for n in (524287, 524288)] == ["recursive_doubling", "ring"]
    assert [name("allgather", 9, n) for n in (81919, 81920)] == ["bruck", "ring"]
    assert [name("reduce", 8, n) for n in (2048, 2049)] == ["binomial", "rabenseifner"]
    assert [name("reduce_scatter", 8, n) for n in (524287, 524288)] == ["recursive_halving", "pairwise"]
    assert name("reduce_scatter", 8, 8, commutative=False) == "butterfly"
    assert name("reduce_scatter", 8, 8, commutative=False, equal_blocks=False) == "recursive_doubling"
    assert name("reduce_scatter", 6, 8, commutative=False) == "recursive_doubling"
    assert [name("alltoall", 7, 7 * n) for n in (32768, 32769)] == ["linear", "pairwise"]
    assert [name("alltoall", 8, 8 * n) for n in (256, 257, 32769)] == ["bruck", "linear", "pairwise"]
    assert name("alltoall", 8, 8, in_place=True) == "pairwise"
    assert [name(w, 8, 8) for w in ("gather", "scatter", "scan")] == [
        "binomial",
        "binomial",
        "recursive_doubling",
    ]
    assert name("barrier", 8, 0) == "dissemination"


def test_operators_that_do_not_commute_get_algorithms_in_order() -> None:
    for library in libraries():
        for ranks in (2, 3, 6, 8, 20, 130, 300, 600):
            for nbytes in (4, 10**4, 10**6):
                choice = choose(library, "allreduce", ranks, nbytes, commutative=False).algorithm
                assert choice.in_order, (library, ranks, nbytes, choice.name)


def test_open_mpi_chooses_another_algorithm_for_unsupported_rank_counts() -> None:
    choices = [choose("openmpi", "all_gather", n, 64 * n) for n in (4, 6, 7)]
    assert [one.algorithm.name for one in choices if one.name == "recursive_doubling"]
    for n in range(2, 40):
        for nbytes in (n, 1000 * n, 10**5 * n):
            one = choose("openmpi", "all_gather", n, nbytes)
            if one.name == "recursive_doubling":
                assert one.algorithm.name == ("bruck" if n & (n - 1) else "recursive_doubling")
            if one.name == "neighbor":
                assert one.algorithm.name == ("ring" if n % 2 else "neighbor_exchange")


def test_errors_of_unknown_names_list_the_known_names() -> None:
    with pytest.raises(
        SpmdError,
        match=r"there is no collective 'allreduze'; did you mean 'all_reduce'\? known are all_reduce",
    ):
        algorithms("allreduze")
    with pytest.raises(ScheduleError, match="did you mean 'recursive_doubling'"):
        algorithm("all_reduce", "recursive-dubling")
    limited = replace(algorithm("all_gather", "ring"), condition="n == p", condition_words="a power of two")
    with pytest.raises(ScheduleError, match="needs a power of two; got 6 ranks"):
        make_schedule(limited, 6)
    with pytest.raises(ScheduleError, match=r"root must be 0 to 5, got 6"):
        schedule_of("broadcast", "binomial", 6, root=6)
    with pytest.raises(ScheduleError, match="has no option 'color'; it has index"):
        schedule_of("all_reduce", "ring", 6, color=1)
    with pytest.raises(ScheduleError, match="ring: index must be 'mpich' or 'openmpi', got"):
        next(schedule_of("all_reduce", "ring", 6, index="nccl").rounds(0))
    with pytest.raises(
        InputError, match=r"no selection tables of 'gmpi'; did you mean 'mpich'\? known are openmpi, mpich"
    ):
        choose("gmpi", "allreduce", 2, 2)
    with pytest.raises(InputError, match="no selection table of openmpi for scan"):
        choose("openmpi", "scan", 4, 64)


def test_names_of_libraries_find_algorithms() -> None:
    assert algorithm("bcast", "scatter_ring_allgather").name == "scatter_ring"
    assert choose("openmpi", "allreduce", 3, 4400).algorithm.name == "ring_openmpi"
    assert choose("openmpi", "allgather", 6, 600).algorithm.name == "bruck"


def test_the_chunk_count_of_a_users_function_is_found() -> None:
    from spmdsim.collectives import recv, recv_reduce, send

    def one_chunk(rank: int, size: int) -> Any:
        yield [send(rank ^ 1, 0), recv_reduce(rank ^ 1, 0)]

    def by_two(rank: int, size: int) -> Any:
        """Two chunks.

        Far apart.
        """
        yield [send(rank ^ 1, [0, 2 * size - 1]), recv(rank ^ 1, [0, 2 * size - 1])]

    assert from_function(by_two).about == "Two chunks." and not from_function(one_chunk).about
    assert make_schedule(from_function(one_chunk), 4).chunk_count == 1
    assert make_schedule(from_function(by_two), 4).chunk_count == 8
    assert make_schedule(from_function(one_chunk, "all_gather"), 4).chunk_count == 4
    assert make_schedule(from_function(one_chunk, "all_to_all"), 4).chunk_count == 16
    assert make_schedule(from_function(by_two, chunks="3*n"), 4).chunk_count == 12
    with pytest.raises(ScheduleError, match="must be a function of \\(rank, size\\)"):
        from_function(lambda rank: iter(()))
    with pytest.raises(ScheduleError, match="the chunk count must be arithmetic"):
        from_function(one_chunk, chunks="n +")
    with pytest.raises(ScheduleError, match="needs the same number of chunks for every rank"):
        make_schedule(from_function(one_chunk, "all_gather", chunks="n+1"), 4)


def test_numpy_integers_are_chunks_and_peers() -> None:
    from spmdsim.collectives import send

    assert send(1, np.int64(3)) == send(1, 3) == send(1, [np.int32(3)])


def test_names_in_formulas_have_their_defined_values() -> None:
    balanced = {
        sum(3**k * digit for k, digit in enumerate(number)): sum(map(abs, number))
        for number in itertools.product((-1, 0, 1), repeat=4)
    }
    for size, group, segments in itertools.product(range(1, 34), (1, 2, 3, 5, 8), (1, 7)):
        floor = max(k for k in range(9) if 2**k <= size)
        groups = math.ceil(size / group)
        powers = {2**k: k for k in range(9)}
        radix = group + 1
        digits = [[number // radix**k % radix for k in range(9)] for number in range(size)]
        extents = min((max(d, size // d), min(d, size // d)) for d in range(1, size + 1) if size % d == 0)
        named = {
            "n": size, "p": 2**floor, "f": floor, "c": min(k for k in range(9) if 2**k >= size), "x": int(size not in powers),
            "q": Fraction(size - 1, size), "qp": Fraction(2**floor - 1, 2**floor), "s": segments, "g": group, "h": groups,
            "cg": min(k for k in range(9) if 2**k >= group), "fh": max(k for k in range(9) if 2**k <= groups),
            "xh": int(groups not in powers), "bits": sum(bin(number).count("1") for number in range(size)),
            "r": int(segments == 7), "k": radix, "nzk": sum(map(bool, itertools.chain.from_iterable(digits))),
            "dk": sum(sum(map(bool, row)) == 1 for row in digits), "c3": min(k for k in range(9) if 3**k >= size),
            "a": min(int(math.log2(segments)), (size - 1).bit_length()), "d": 2, "t": sum(extents) - 2,
            "nz3": sum(balanced[j if 2 * j <= size else j - size] for j in range(size)),
            "tq": sum(Fraction(extent - 1, extent) for extent in extents),
        }  # fmt: skip
        options = {
            "segments": segments, "group": group, "root": segments // 7, "radix": radix,
            "aggregation": segments, "dimensions": 2,
        }  # fmt: skip
        assert {name: evaluate_expression(name, size, options) for name in named} == named
    with pytest.raises(ScheduleError, match="must be arithmetic with") as refused:
        from_function(lambda rank, size: iter(()), chunks="n +")
    listed_names = str(refused.value).split("arithmetic with ")[1].split(", such as")[0]
    assert {*listed_names.split(", ")} == {*named}
    assert evaluate_expression("s + g", 4) == 2 and evaluate_expression("s*10 + g", 4, {"group": "3"}) == 13


def test_facts_as_json() -> None:
    ring = {
        "collective": "all_reduce", "algorithm": "ring", "ranks": 4, "root": 0, "options": {"index": "mpich"},
        "chunks": 4, "ok": True, "findings": [], "rounds": 6, "beta": 1.5, "gamma": 0.75,
        "bound": {"rounds": 2, "beta": 1.5, "gamma": 0.75}, "score": 66.67, "depth": 3, "in_order": False,
        "same_bits_on_all_ranks": True, "messages_sent_per_rank": [6] * 4,
        "messages_received_per_rank": [6] * 4, "bytes_sent_per_rank": [1.5] * 4,
        "bytes_received_per_rank": [1.5] * 4, "bytes_reduced_per_rank": [0.75] * 4, "peak_buffer_per_rank": [1.25] * 4,
    }  # fmt: skip
    assert facts_of(schedule_of("all_reduce", "ring", 4)).to_dict() == ring
    tree = facts_of(schedule_of("broadcast", "binomial", 3, root=2))
    assert (tree.beta, tree.bound.beta, tree.score, tree.to_dict()["score"]) == (2, 1, 75.0, 75.0)
    assert tree.shares("bytes_sent") == [0, 0, 2]
    local = facts_of(schedule_of("all_reduce", "all_gather_reduce", 3)).to_dict()
    assert local["bytes_reduced_per_rank"] == [2.0] * 3 and local["bound"]["gamma"] == pytest.approx(2 / 3)
    assert [as_share(Fraction(*x)) for x in ((1, 1), (3, 1), (1, 2), (0, 1))] == ["m", "3 m", "0.5 m", "0"]


@pytest.mark.parametrize(("nbytes", "itemsize"), [(8, 0), (-4, 4), (-4, 3), (7, 4)])
def test_bytes_of_partial_elements_are_refused(nbytes: int, itemsize: int) -> None:
    with pytest.raises(InputError, match="nbytes must be a multiple of the element's"):
        count_elements(nbytes, itemsize)
    assert (count_elements(12, 4), count_elements(0, 4), count_elements(3, 1)) == (3, 0, 3)
