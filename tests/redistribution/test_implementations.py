"""Implementations of small steps have the bytes and nanoseconds of a count by hand."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest

from spmdsim.core import Layout, Mesh
from spmdsim.core.step import Step
from spmdsim.cost import NodeMap
from spmdsim.errors import InputError
from spmdsim.layout.windowed_layout import Window, Windowed
from spmdsim.redistribution import plan
from spmdsim.redistribution.exchange.direct_reduction import DirectReduction
from spmdsim.redistribution.exchange.flat import FlatExchange
from spmdsim.redistribution.implementations.implementation import (
    find_threshold,
    implementation_of,
    implementations_of,
)
from spmdsim.redistribution.implementations.rank_transfers import MemberBox, arrange_side
from spmdsim.redistribution.implementations.trial import (
    Trial,
    TunedStep,
    TunedSteps,
    tune_mode,
)
from spmdsim.redistribution.implementations.tuning import (
    NOTHING,
    TrialRecords,
    Tuning,
    load_tuning,
    tuning,
)
from spmdsim.redistribution.steps.group_steps import build_scan_step
from spmdsim.redistribution.steps.halo import HALO_EXCHANGE, HaloStep

FLAT, SQUARE = Mesh((4,), ("x",)), Mesh((2, 2), ("a", "b"))
#: A byte takes 1 ns, with an MPI type 1.5 ns; a call takes 1,000 ns, a block 10 ns; a chunk has 32 bytes.
HAND = Tuning(
    compose_all_reduce=((2, 33),),
    compose_reduce_scatter=((2, 128),),
    chunk=((2, 32),),
    gather_reduce=128,
    small_block=32,
    call=1000,
    piece=10,
    copy=1000,
    typed=500,
)


def over(collective, src, dst, op=None, axes=("x",), shape=(8, 4)):
    kind = DirectReduction if collective == "reduce_exchange" else Step
    return kind(collective, axes, src, dst, shape, op)


def pending(mesh, *dims):
    return mesh(*dims, partial=dict.fromkeys(mesh.axes, "sum"))


#: A step and its implementations with bytes and nanoseconds. The array has 128 bytes, a shard 32.
PLACING = {
    "rows together": (
        over("all_gather", FLAT("x", None), FLAT(None, None)),
        [("gather", 0, 128 + 1000), ("messages", 0, 128 + 16 * 1000)],
    ),
    "columns together, in chunks of rows": (
        over("all_gather", FLAT(None, "x"), FLAT(None, None)),
        [
            ("gather typed", 0, 128 + 64 + 1000),
            ("typed", 0, 128 + 64 + 4 * 1000),
            ("gather rows", 32, 2 * 128 + 4 * 1010),
        ],
    ),
    "blocks together": (
        over("all_gather", SQUARE("a", "b"), SQUARE(None, None), axes=("a", "b")),
        [("gather, unpack", 128, 2 * 128 + 1000 + 4 * 10), ("typed", 0, 128 + 64 + 4 * 1000)],
    ),
    "rows to columns: 24 bytes go, in pieces of a column, and land in place": (
        over("all_to_all", FLAT("x", None), FLAT(None, "x")),
        [
            ("typed", 0, 32 + 16 + 4 * 1000),
            ("packed", 24, 32 + 1.75 * 32 + 4 * 1000 + 7 * 10),
            ("messages", 24, 32 + 1.75 * 32 + 16 * 1000 + 4 * 10),
        ],
    ),
    "blocks that lie one after the other on both sides": (
        over("all_to_all", FLAT(None, "x", None), FLAT("x", None, None), shape=(4, 4, 2)),
        [("swap", 0, 32 + 1000), ("messages", 0, 32 + 16 * 1000)],
    ),
    "an exchange, told of the whole array": (
        over("exchange", FLAT("x", None), FLAT(None, "x"), axes=()),
        [
            ("typed", 0, 128 + 64 + 4 * 1000),
            ("packed", 24, 128 + 1.75 * 128 + 4 * 1000 + 7 * 10),
            ("messages", 24, 128 + 1.75 * 128 + 16 * 1000 + 4 * 10),
        ],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PLACING)
def test_implementations_of_placing_steps_have_bytes_and_prices_by_hand(name):
    step, expected = PLACING[name]
    listed = implementations_of(step, 0, np.dtype("f4"), HAND)
    assert [(one.name, one.scratch, round(one.nanoseconds, 6)) for one in listed] == expected


def test_an_array_of_one_rank_is_broadcast_to_replicas():
    one = Mesh((1,), ("o",))(None)
    for step, expected in (
        (over("exchange", one, FLAT(None), axes=(), shape=(8,)), [("broadcast", False), ("broadcast", True)]),
        (over("exchange", one, FLAT("x"), axes=(), shape=(8,)), [("typed", True)] * 2),
        (over("exchange", FLAT(None), Mesh((2,), ("y",), (4, 5))(None), axes=(), shape=(8,)), [("typed", True)] * 2),
        (over("all_gather", FLAT("x"), FLAT(None), shape=(0,)), [("same", False)] * 2),
        (over("all_gather", Mesh((1,), ("x",))("x"), Mesh((1,), ("x",))(None), shape=(8,)), [("same", False), ("nothing", False)]),
    ):  # fmt: skip
        listed = [implementations_of(step, rank, np.dtype("f4"), HAND)[0] for rank in (0, 1)]
        assert [(one.name, one.fresh) for one in listed] == expected


def test_blocks_of_a_reduction_have_counts_by_hand():
    """Seven rows of two on three ranks are direct blocks of 6, 4 and 4 elements; columns are packed."""
    mesh = Mesh((3,), ("x",))
    for dims, shape, direct in ((("x", None), (7, 2), True), ((None, "x"), (2, 7), False)):
        step = over("reduce_scatter", pending(mesh, None, None), mesh(*dims), "sum", shape=shape)
        division = implementations_of(step, 1, np.dtype("f4"), HAND)[0].blocks
        assert division is not None and (
            division.counts,
            division.offsets,
            division.direct,
            division.packed,
        ) == (
            [6, 4, 4],
            [0, 6, 10],
            direct,
            True,
        )
        assert division.covers_source and division.target == (2, 2)


def test_boxes_for_members_are_found_in_the_shard_or_in_a_buffer():
    """Rows are contiguous in a shard of 4 x 3; columns, and two boxes for one member, are packed."""

    def box(member, rows, columns):
        return MemberBox(member, (slice(*rows), slice(*columns)))

    for boxes, counts, offsets, direct in (
        ((box(1, (2, 4), (0, 3)), box(0, (0, 1), (0, 3))), [3, 6, 0], [0, 6, 0], True),
        ((box(2, (0, 4), (2, 3)), box(0, (0, 4), (0, 2))), [8, 0, 4], [4, 0, 0], False),
        ((box(2, (3, 4), (0, 3)), box(1, (0, 1), (0, 3)), box(1, (2, 3), (0, 3))), [0, 6, 3], [0, 3, 0], False),
    ):  # fmt: skip
        side = arrange_side(boxes, (4, 3), 3)
        assert (side.counts, side.offsets, side.direct, side.total) == (counts, offsets, direct, sum(counts))


def test_uncountable_shards_and_many_ranks_use_messages_only():
    step = over("all_to_all", FLAT("x", None), FLAT(None, "x"))  # of 8 elements
    names = [
        [one.name for one in implementations_of(step, 0, np.dtype("f4"), HAND, count)] for count in (7, 8)
    ]
    assert names == [["messages"], ["typed", "packed", "messages"]]
    for size, count in ((32, 3), (33, 1)):
        mesh = Mesh((size,), ("x",))
        listed = implementations_of(
            over("all_to_all", mesh("x", None), mesh(None, "x"), shape=(66, 33)), 0, np.dtype("f4"), HAND
        )
        assert len(listed) == count and listed[-1].name == "messages"
    assert listed[0].nanoseconds == 66 * 4 + 4 * 33 * 1000


def test_rows_are_gathered_in_chunks_of_the_tuned_size():
    step = over("all_gather", FLAT(None, "x"), FLAT(None, None))
    for chunk, most in (((), 8), (((5, 32),), 8), (((2, 32),), 2), (((2, 64),), 4), (((2, 1),), 1)):
        listed = implementations_of(step, 0, np.dtype("f4"), replace(HAND, chunk=chunk))
        assert [one.most for one in listed if one.name == "gather rows"] == [most]


ALL_REDUCE = over("all_reduce", pending(FLAT, None), FLAT(None), "sum", shape=(8,))
ROWS = over("reduce_scatter", pending(FLAT, None, None), FLAT("x", None), "sum")
COLUMNS = over("reduce_scatter", pending(FLAT, None, None), FLAT(None, "x"), "sum")
#: A step, a dtype, changed settings, and the implementations with their bytes, the preferred one first.
REDUCING = [
    # Each of 4 ranks has 32 bytes. Composed: 4 blocks of 2 elements and the rank's own sums, 4 bytes each.
    (ALL_REDUCE, "i4", {}, [("native", 0), ("gathered", 128), ("composed", 48)]),
    (ALL_REDUCE, "i4", {"gather_reduce": 127}, [("native", 0), ("composed", 48)]),
    (ALL_REDUCE, "i4", {"chunk": ((2, 16),)}, [("native", 0), ("gathered", 128), ("composed", 32)]),
    (ALL_REDUCE, "i4", {"compose_all_reduce": ((4, 32),)}, [("gathered", 128), ("composed", 48), ("native", 0)]),
    (ALL_REDUCE, "i4", {"compose_all_reduce": ((5, 32),)}, [("native", 0), ("gathered", 128), ("composed", 48)]),
    # Half floats are added in 4 bytes: 64 bytes gathered and 8 sums of 4 bytes, or blocks of 8 + 4 bytes.
    (ALL_REDUCE, "f2", {}, [("gathered", 64 + 32), ("composed", 3 * 12)]),
    # Each rank has 128 bytes and keeps 32 of them.
    (ROWS, "i4", {}, [("small", 128), ("composed", 32), ("native", 0)]),
    (ROWS, "i4", {"small_block": 31}, [("composed", 32), ("small", 128), ("native", 0)]),
    (ROWS, "i4", {"chunk": ()}, [("small", 128), ("composed", 128), ("native", 0)]),
    (ROWS, "i4", {"compose_reduce_scatter": ((2, 129),)}, [("native", 0), ("small", 128), ("composed", 32)]),
    (COLUMNS, "i4", {}, [("composed", 160), ("native", 128)]),
    (ROWS, "f2", {}, [("composed", 4 * 12)]),
]  # fmt: skip


@pytest.mark.parametrize("step, dtype, change, expected", REDUCING)
def test_implementations_of_reductions_have_bytes_by_hand(step, dtype, change, expected):
    listed = implementations_of(step, 1, np.dtype(dtype), replace(HAND, **change))
    assert len(listed) <= 3
    assert [(one.name, one.scratch) for one in listed] == expected


@pytest.mark.parametrize(
    "hosts, first",
    [
        ("a,a,b,b", "native"),
        ("a,b,a,b", "native"),
        ("a,b,b,b", "native"),
        ("a,b,c,d", "composed"),  # no ranks share a port
        ("a,a,a,a", "composed"),
    ],
)
def test_many_bytes_are_reduced_by_mpi_itself_where_ranks_share_a_port(hosts, first):
    """A composed all_reduce sends all blocks across the network; MPI may reduce inside nodes first."""
    step, nodes = replace(ALL_REDUCE, shape=(1 << 10,)), NodeMap.of(hosts, 4)
    for rank in range(4):
        names = [one.name for one in implementations_of(step, rank, np.dtype("i4"), HAND, nodes=nodes)]
        assert names[0] == first and {"native", "composed"} == set(names)
        floats = implementations_of(step, rank, np.dtype("f4"), HAND, nodes=nodes)
        assert [one.name for one in floats] == [first]  # one order of operands
        assert implementation_of(step, rank, np.dtype("f4"), HAND, nodes=nodes).name == first
        others = replace(HAND, compose_on_nodes=HAND.compose_all_reduce)
        assert implementation_of(step, rank, np.dtype("f4"), others, nodes=nodes).name == "composed"


@pytest.mark.parametrize("hosts, first", [("a,b,a,a,b,a,a,a", "composed"), ("a,b,a,b,b,a,b,a", "native")])
def test_groups_that_are_placed_differently_reduce_in_one_order(hosts, first):
    """Replicas would differ if MPI reduced each group inside other nodes first."""
    mesh = Mesh((2, 4), ("dp", "tp"))
    step = over(
        "all_reduce", mesh(None, partial={"tp": "sum"}), mesh(None), "sum", axes=("tp",), shape=(1 << 10,)
    )
    for rank in range(8):
        (implementation,) = implementations_of(step, rank, np.dtype("f4"), HAND, nodes=NodeMap.of(hosts, 8))
        assert implementation.name == first


def test_reductions_of_more_elements_than_mpi_can_count_have_chunks():
    for step, count, name in ((ROWS, 31, "composed"), (ROWS, 32, "small")):
        listed = implementations_of(step, 0, np.dtype("i4"), HAND, count)
        assert listed[0].name == name and ("native" in {one.name for one in listed}) == (name == "small")
    (most,) = {one.most for one in implementations_of(ALL_REDUCE, 0, np.dtype("f2"), HAND, 4)} - {0}
    assert most == 1  # one element of the blocks of 4 ranks


def test_a_small_scan_is_gathered():
    """Two integers on each of 4 ranks are 32 bytes."""
    step = build_scan_step(FLAT("x", None), ("x",), (2,), "sum")
    for limit, count, expected in (
        (32, 2, ("scan gathered", 32)),
        (31, 2, ("scan", 0)),
        (31, 1, ("scan gathered", 32)),
    ):
        (one,) = implementations_of(step, 0, np.dtype("i4"), replace(HAND, gather_reduce=limit), count)
        assert (one.name, one.scratch) == expected


def test_buffers_of_a_direct_reduction_have_sent_and_received_contributions():
    """Buffers have the packed and the received contributions.

    Of 8 sums over 4 ranks, a rank sends 6 contributions and receives 6; its 2 sums are its shard.
    If the target has other ranks, a source rank packs 2 contributions and has 2 more in its buffer.
    A target rank only receives 2 sums.
    """
    f4 = np.dtype("f4")
    (one,) = implementations_of(
        over("reduce_exchange", pending(FLAT, None), FLAT("x"), "sum", (), (8,)), 0, f4, HAND
    )
    assert (one.name, one.scratch) == ("summed", (6 + 6 - 2) * 4)
    one, other = Mesh((2,), ("a",)), Mesh((2,), ("b",), ranks=(2, 3))
    step = over("reduce_exchange", pending(one, None), other("b"), "sum", (), (4,))
    assert [implementations_of(step, rank, f4, HAND)[0].scratch for rank in (0, 2)] == [(2 + 2) * 4, 2 * 4]


def test_buffers_of_a_flat_exchange_have_elements_and_indices():
    """Rank 0 sends 2 elements and receives 2; between disjoint ranks, 6 elements are sent or received."""
    one, other = Mesh((2,), ("x",)), Mesh((2,), ("x",), ranks=(2, 3))
    step = FlatExchange("exchange", (), one("x", None), one(None, "x"), (4, 3), to_shape=(3, 4))
    (one,) = implementations_of(step, 0, np.dtype("f4"), HAND)
    assert (one.name, one.scratch) == ("numbered", 4 * 4 + 4 * (4 + 8))
    disjoint = replace(step, dst=other(None, "x"))
    assert [implementations_of(disjoint, rank, np.dtype("f4"), HAND)[0].scratch for rank in (0, 2)] == [
        6 * (4 + 8)
    ] * 2


def test_a_halo_of_columns_is_packed_and_one_of_rows_is_not():
    """The 4 ranks have 2 rows or columns each and read one more from each neighbour."""
    for dims, expected in ((("x", None), [0, 0]), ((None, "x"), [(8 + 8) * 4, (16 + 16) * 4])):
        layout = FLAT(*dims)
        windows = [Window(8, -1, 3) if dim else None for dim in dims]
        step = HaloStep(HALO_EXCHANGE, ("x",), layout, Windowed(layout, windows), (8, 8))
        assert [
            implementations_of(step, rank, np.dtype("f4"), HAND)[0].scratch for rank in (0, 1)
        ] == expected


def test_buffers_of_more_than_1024_ranks_are_not_counted():
    """Up to 1,024 ranks, a gather by rows has a buffer of all rows of its chunk."""
    for size, buffers in ((1024, 1), (1025, 0)):
        mesh = Mesh((size,), ("x",))
        (step,) = plan(mesh(None, "x"), mesh(None, None), (256, size), "int16").to_dict()["steps"]
        assert step["collective"] == "all_gather"
        assert step["buffer_nbytes"] == (1 + buffers) * 256 * size * 2  # the new shard, and a gathered copy


def test_a_tuned_step_has_the_reason_of_its_implementation():
    assert TunedStep.of("a", 2, Trial(("one",), 2, 0)).why == "by the model: no other comes near it"
    trial = Trial(("one", "other"), 2, 0)
    assert TunedStep.of("a", 2, trial).why == "by the model: it was not tried yet"
    trial.add(5)
    assert TunedStep.of("a", 2, trial).why == "by the model: 1 try was made so far"


def test_a_tuning_file_is_read_or_refused_in_one_line(tmp_path, monkeypatch) -> None:
    file = tmp_path / "tuning.json"
    monkeypatch.delenv("SPMDSIM_TUNE", raising=False)
    records = {"m": {"s": {"implementation": "gather", "microseconds": {"gather": 2}}}}
    settings = {"first": ["typed"], "typed": 0, "chunk": [[2, 64]], "implementations": records}
    file.write_text(json.dumps({"MPICH": settings}))
    chosen = tuning("MPICH", str(file))
    assert (chosen.first, chosen.typed, chosen.chunk) == (("typed",), 0, ((2, 64),))
    assert chosen.implementations.to_dict() == records
    former = {"typed": 0, "ways": {"m": {"s": {"way": "gather", "microseconds": {"gather": 2}}}}}
    file.write_text(json.dumps({"MPICH": former}))
    tuning.cache_clear()
    assert tuning("MPICH", str(file)).implementations.to_dict() == records
    assert tuning("Open MPI", str(file)) == tuning("Open MPI")
    assert tuning("Some MPI") == tuning("MPICH") != tuning("Open MPI")
    monkeypatch.setenv("SPMDSIM_TUNE", str(file))
    tuning.cache_clear()
    assert tuning("MPICH").typed == 0
    tuning.cache_clear()
    for wrong in (
        *({"first": value} for value in ("typed", [1], ["typed", 1])),
        *({"typed": value} for value in (-1, 1.5, True, "1")),
        *(
            {"implementations": value}
            for value in ([], {"m": []}, {"m": {"s": 1}}, {"m": {"s": {"implementation": 1}}})
        ),
        {"implementations": {"m": {"s": {"implementation": "a", "microseconds": {"a": "1"}}}}},
        {"chunk": [[2, -1]]},
        {"chunks": 1},
    ):
        file.write_text(json.dumps({"MPICH": wrong}))
        with pytest.raises(InputError, match=r"tuning\.json"):
            tuning("MPICH", f"{tmp_path}/./{file.name}")
        tuning.cache_clear()
    assert [find_threshold(((2, 10), (8, 30)), ranks) for ranks in (1, 2, 7, 8, 9)] == [
        1 << 62,
        10,
        10,
        30,
        30,
    ]
    assert load_tuning(tmp_path / "none.json") == {}


def test_the_tune_setting_is_off_full_or_first(monkeypatch) -> None:
    for value, mode in {"": "first", "off": "off", "full": "full", __file__: "first"}.items():
        monkeypatch.setenv("SPMDSIM_TUNE", value)
        assert tune_mode() == mode


def test_saved_trials_keep_earlier_records(tmp_path) -> None:
    path = tmp_path / "kept.json"
    records = TrialRecords.parse({"m": {"old": {"implementation": "b", "microseconds": {"b": 1.0}}}})
    steps = (TunedStep("new", 2, "a", {"a": 3.0}, "tried"), TunedStep("table", 2, "a", {}, "first"))
    TunedSteps(steps, "m", "first", "MPICH", records).save(path)
    assert {*load_tuning(path)["MPICH"]["implementations"]["m"]} == {"old", "new"}
    TunedSteps(steps[1:], "x", "first", "Open MPI", NOTHING).save(path)
    assert load_tuning(path)["Open MPI"]["implementations"] == {}
    TunedSteps(steps, "m").save(tmp_path / "nobody.json")
    assert not (tmp_path / "nobody.json").exists()


@pytest.mark.parametrize("ranks", [None, (3, 1, 0, 2, 7, 5, 6, 4)])
def test_counted_blocks_equal_listed_blocks(monkeypatch, ranks: tuple[int, ...] | None) -> None:
    """In groups of many ranks, the blocks of a reduce_scatter are counted and not listed."""
    limit = "spmdsim.redistribution.implementations.implementation.LISTED"
    mesh, tested_kinds = Mesh((2, 2, 2), ("a", "b", "c"), ranks=ranks), set()
    for reduced in ("a", "ab", "cb", "abc"):
        other_axes = [axis for axis in "abc" if axis not in reduced]
        for shape in ((8,), (7,), (4, 6), (5, 7), (1, 8), (2, 2, 8)):
            for places in itertools.product(range(len(shape)), repeat=3):
                before = [
                    tuple(axis for axis in other_axes if places["abc".index(axis)] == d)
                    for d in range(len(shape))
                ]
                after = [
                    (*entry, *[axis for axis in reduced if places["abc".index(axis)] == d])
                    for d, entry in enumerate(before)
                ]
                src, dst = Layout(mesh, before, dict.fromkeys(reduced, "sum")), Layout(mesh, after)
                step = Step("reduce_scatter", tuple(reduced), src, dst, shape, "sum")
                for rank in (0, 5):
                    facts = []
                    for listed in (1024, 1):
                        monkeypatch.setattr(limit, listed)
                        one = implementations_of(step, rank, np.dtype("f4"), HAND)[0].blocks
                        if one is not None:
                            facts.append((one.direct, one.packed, one.counts, one.covers_source, one.target))
                    if facts:
                        assert facts[0] == facts[1], (step, rank)
                        tested_kinds.add(facts[0][:2])
    assert len(tested_kinds) == 3
