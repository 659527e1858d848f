"""Predictions have prices, crossovers and reasons of omissions; the command prints and draws them."""

from __future__ import annotations

import itertools
import json
import re
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest

from spmdsim.auto_parallel.costs.move_prices import MovePrices
from spmdsim.auto_parallel.costs.search_settings import Settings
from spmdsim.cli.main import main
from spmdsim.collectives import algorithms, schedule_of
from spmdsim.core import Mesh
from spmdsim.cost import (
    Link,
    Machine,
    Measurement,
    Piece,
    Prediction,
    load_machine,
    parse_topology,
    predict,
    price,
    save_machine,
)
from spmdsim.cost.pricing import emulated_seconds
from spmdsim.errors import InputError, ScheduleError
from spmdsim.figures import figure
from spmdsim.redistribution import plan

MACHINE = Machine("m", 1e-6, 1e-9, 2e-10)


def test_points_are_the_prices_of_the_schedules() -> None:
    prediction = predict("all_reduce", MACHINE, [4, 6], [100, 10_000], ["ring", "rabenseifner"])
    assert [(p.ranks, p.nbytes) for p in prediction.points] == [(4, 100), (4, 10_000), (6, 100), (6, 10_000)]
    for point in prediction.points:
        for name, seconds in point.seconds.items():
            schedule = schedule_of("all_reduce", name, point.ranks)
            assert seconds == price(schedule, MACHINE, point.nbytes).seconds
            assert seconds >= point.bound
        assert point.best == min(point.seconds, key=point.seconds.__getitem__)


RANGES = (Piece(1024, 1e-6, 4e-9), Piece(65536, 3e-6, 1e-9))
#: Machines whose prices per byte rise or fall with the message size, and a machine with nodes.
UNEVEN = (
    Machine("plain", 2e-6, 1e-9, 1e-10),
    Machine("cheaper", 5e-6, 1e-10, 1e-10, pieces=RANGES, reduce_pieces=(Piece(4096, 0.0, 1e-9),)),
    Machine("dearer", 5e-6, 3e-9, 0.0, pieces=(Piece(1024, 1e-6, 1e-9), Piece(65536, 7e-6, 1e-10))),
    Machine("nodes", 5e-6, 1e-9, 1e-10, ranks_per_node=4, intra=Link(1e-7, 1e-10)),
)


@pytest.mark.parametrize("machine", UNEVEN, ids=lambda machine: machine.name)
@pytest.mark.parametrize("collective", sorted({one.collective.name for one in algorithms()}))
def test_no_algorithm_beats_the_bound_on_any_machine(machine: Machine, collective: str) -> None:
    """The bound holds for any message sizes and ports."""
    sizes = [0, 64, 1000, 4096, 1 << 20]
    points = predict(collective, machine, [1, 2, 3, 4, 5, 8, 9, 13], sizes).points
    ratios = [seconds / one.bound for one in points for seconds in one.seconds.values() if one.bound]
    assert len(ratios) > 50 and min(ratios) >= 1 - 1e-12


@pytest.mark.parametrize("collective", sorted({one.collective.name for one in algorithms()}))
def test_no_algorithm_beats_the_bound_on_any_topology(collective: str) -> None:
    """The bound counts all links of a rank."""
    networks = {
        "flat": 6, "ring": 5, "torus:4x4": 16, "torus:2x2x2": 8, "torus:3x3": 9, "nodes:4": 8, "nodes:4,rails=4": 8,
        "fat_tree:leaf=4,over=2": 8, "fat_tree:down=4x2,up=3x2": 8, "dragonfly": 8,
    }  # fmt: skip
    ratios = [
        seconds / point.bound
        for machine, (text, n) in zip(itertools.cycle(UNEVEN), networks.items())
        for point in predict(collective, machine, [n], [64, 1 << 24], topology=text).points
        for seconds in point.seconds.values()
        if point.bound
    ]
    assert len(ratios) > 20 and min(ratios) >= 1 - 1e-12


def test_the_bound_on_a_torus_has_the_links_of_a_rank() -> None:
    """A rank of a torus with two dimensions sends and receives on four links at once."""
    machine, nbytes = Machine("m", 0.0, 1e-9), 1 << 20
    for topology, links in (("flat", 1), ("ring", 2), ("torus:4x4", 4), ("torus:4x2x2", 6)):
        (point,) = predict("all_gather", machine, [16], [nbytes], topology=topology).points
        assert point.bound == pytest.approx(15 / 16 * nbytes * 1e-9 / links)


@pytest.mark.parametrize("machine", UNEVEN[:3], ids=lambda machine: machine.name)
def test_a_flat_network_has_the_prices_of_the_machine(machine: Machine) -> None:
    """Messages on links have the latency and bandwidth of their size, too."""
    for collective, name in (
        ("all_reduce", "ring"),
        ("broadcast", "binomial"),
        ("all_gather", "bruck"),
        ("gather", "binomial"),
    ):
        for n in (2, 5, 8):
            schedule = schedule_of(collective, name, n)
            for nbytes in (8, 1000, 5000, 100_000, 1 << 20):
                alone = price(schedule, machine, nbytes, rounds=True).seconds
                assert price(
                    schedule, machine, nbytes, parse_topology("flat", n, machine)
                ).seconds == pytest.approx(alone)


def test_the_bound_is_the_maximum_of_latency_bandwidth_and_reduction() -> None:
    """Two-port rounds reach three ranks, then six; the ranks receive 5/3 and add 5/6 of the bytes."""

    def bound(collective: str, machine: Machine, ranks: int, nbytes: int) -> float:
        return predict(collective, machine, [ranks], [nbytes]).points[0].bound

    for prices, expected in [((100.0, 0, 0), 250), ((0, 1, 0), 1000), ((0, 0, 1), 500), ((1, 2, 3), 2000)]:
        assert bound("all_reduce", Machine("m", *prices), 6, 600) == pytest.approx(expected)
    assert bound("all_to_all", Machine("m", 1.0, 0.0), 3, 0) == 1.5
    # Messages of 10 bytes are cheapest: half of alpha is 0.05 per byte, and each byte takes 0.1.
    ranges = Machine("m", 9.0, 1.0, pieces=(Piece(10, 1.0, 0.1),))
    assert bound("broadcast", ranges, 2, 1000) == pytest.approx(150)


def test_a_prediction_has_notes_of_ignored_options(capsys) -> None:
    """A note names the rank count above which unequal messages are averaged."""
    common = ["collective", "predict", "reduce_scatter", "-b", "8", "-e", "8", "-n"]
    for topology, ranks in ("torus:8x8", "64"), ("torus:4x4", "16"):
        for links in [], ["--links", "butterfly"]:
            assert main([*common, ranks, "--topology", topology, *links]) == 0
            # The note must not name the row (bound), because --links does not print it.
            lines = capsys.readouterr().out.splitlines()
            assert any(one.startswith("above 32 ranks") for one in lines) == (ranks == "64")


def test_crossover_is_where_the_closed_forms_cross() -> None:
    prediction = predict("all_reduce", MACHINE, [8], [64, 1 << 20], ["recursive_doubling", "rabenseifner"])
    (crossover,) = prediction.crossovers
    assert (crossover.before, crossover.after) == ("recursive_doubling", "rabenseifner")
    assert crossover.nbytes == pytest.approx(3e-6 / (1.25e-9 + 2.125 * 2e-10), rel=0.01)


def test_algorithms_that_cannot_be_priced_are_left_out_with_their_reason() -> None:
    large = predict("broadcast", Machine.cluster(), [1 << 17], [1000], topology="")
    assert "too many messages" in large.left_out["linear"]
    for machine in Machine.cluster(), UNEVEN[1]:
        by_messages = predict("all_to_all", machine, [1 << 14], [1 << 20], ["linear"])
        assert "too many messages" in by_messages.left_out["linear"]
    doubled = [2**k for k in range(1, 18)]
    several = predict("all_reduce", Machine.laptop(), doubled, [1 << 20], ["double_binary_tree"])
    absent = [point.ranks for point in several.points if not point.seconds]
    assert absent == [2**k for k in range(12, 18)]
    expected = "too many messages to look at each on 4096, 8192, 16384, ..., 131072 ranks"
    assert several.left_out == {"double_binary_tree": expected}


def test_the_command_prints_the_ranks_on_which_an_algorithm_is_left_out(capsys) -> None:
    words = ("-n", "64,4096,8192", "-b", "1M", "--algorithms", "ring,double_binary_tree")
    assert main(["collective", "predict", "all_reduce", *words]) == 0
    line = "left out: double_binary_tree: too many messages to look at each on 4096, 8192 ranks\n"
    assert capsys.readouterr().err == line


def test_algorithms_with_a_few_ports_are_priced_on_a_torus_of_64_ranks() -> None:
    """Messages on all links at one time take less than messages on one link of each rank."""
    names = ["multiport_bucket", "bucket", "ring"]
    seconds = predict("all_reduce", MACHINE, [64], [1 << 26], names, "torus:8x8").points[0].seconds
    assert seconds["multiport_bucket"] < seconds["bucket"] < seconds["ring"]


def test_native_times_appear_if_they_were_measured() -> None:
    rows = tuple(Measurement("all_reduce", "native", 4, size, size * 1e-9) for size in (100, 10_000))
    machine = Machine("measured", 1e-6, 1e-9, measured=rows)
    prediction = predict("all_reduce", machine, [2, 4], [1000], ["ring", "native"])
    assert list(prediction.points[0].seconds) == ["ring"]
    assert prediction.points[1].seconds["native"] == pytest.approx(1e-6)
    assert prediction.points[1].best == "native"


def test_options_reach_the_algorithms_that_have_them() -> None:
    machine = Machine("two", 1e-5, 1e-9, ranks_per_node=4, intra=Link(1e-7, 1e-11))
    by_node = predict(
        "all_reduce", machine, [16], [1 << 20], ["two_level_ring", "ring"], options={"group": 4}
    )
    by_pair = predict("all_reduce", machine, [16], [1 << 20], ["two_level_ring"], options={"group": 2})
    assert by_node.points[0].seconds["two_level_ring"] < by_pair.points[0].seconds["two_level_ring"]


def test_a_topology_slows_down_algorithms_that_do_not_fit_it() -> None:
    flat = predict("all_reduce", MACHINE, [16], [1 << 20], ["recursive_doubling"]).points[0]
    ring = predict("all_reduce", MACHINE, [16], [1 << 20], ["recursive_doubling"], topology="ring").points[0]
    assert ring.seconds["recursive_doubling"] > 2 * flat.seconds["recursive_doubling"]


def test_wrong_requests_are_refused() -> None:
    with pytest.raises(ScheduleError, match="no algorithm 'rong'"):
        predict("all_reduce", MACHINE, [4], [100], ["rong"])
    with pytest.raises(InputError, match="predict: ranks must be a list of numbers of 1 or more"):
        predict("all_reduce", MACHINE, [0], [100])


def test_emulated_time_counts_copies_and_the_call() -> None:
    machine = Machine("c", 1e-6, 1e-9, 1e-10, beta_memory=1e-10, call_seconds=5e-6)
    schedule = schedule_of("all_gather", "ring", 2)
    # Half of the bytes are exchanged; the rank's own half is copied from input to output.
    assert emulated_seconds(schedule, machine, 1000, 4) == pytest.approx(5e-6 + 1e-6 + 2e-6 + 2e-7)


def test_emulated_time_is_less_for_buffers_that_were_not_written() -> None:
    still = (Piece(float("inf"), 1e-6, 1e-10),)
    machine = Machine("c", 1e-6, 1e-9, still_pieces=still)
    # In a ring of two ranks, the first round sends input and the second sends new sums.
    ring = schedule_of("all_reduce", "ring", 2)
    assert emulated_seconds(ring, machine, 2000, 1) == pytest.approx(2e-6 + 1e-7 + 1e-6)
    assert emulated_seconds(ring, Machine("c", 1e-6, 1e-9), 2000, 1) == pytest.approx(2e-6 + 2e-6)
    # After the scatter, the root sends input, but its partner sends received data.
    scatter = schedule_of("broadcast", "scatter_ring", 2)
    assert emulated_seconds(scatter, machine, 2000, 1) == pytest.approx(2e-6 + 1e-7 + 1e-6)


def test_growing_ranges_are_parsed(capsys) -> None:
    def points(*words: str) -> list[tuple[int, int]]:
        command = ["collective", "predict", "all_reduce", "--algorithms", "ring", "--json", *words]
        assert main(command) == 0
        return [(one["ranks"], one["nbytes"]) for one in json.loads(capsys.readouterr().out)["points"]]

    assert points("-n", "2..16x2", "-b", "8", "-e", "8") == [(2, 8), (4, 8), (8, 8), (16, 8)]
    assert points("-n", "3,5..7", "-b", "8", "-e", "8") == [(3, 8), (5, 8), (6, 8), (7, 8)]
    assert points("-n", "2", "-b", "8", "-e", "64", "-f", "2") == [(2, 8), (2, 16), (2, 32), (2, 64)]
    assert points("-n", "2", "-b", "1", "-e", "3", "-f", "1.1") == [(2, 1), (2, 2), (2, 3)]
    for wrong in ("x2", "4..2x2", "2..8x1", "a..8x2", "0..8x2"):
        assert main(["collective", "predict", "all_reduce", "-n", wrong]) == 2
        assert f"'{wrong}'" in (error := capsys.readouterr().err) and "Traceback" not in error
    assert main(["collective", "predict", "all_reduce", "-b", "8", "-e", "4"]) == 2
    assert "do not grow" in capsys.readouterr().err


def drawn_points(prediction: Prediction) -> dict[str, list[str]]:
    """Return the words of the horizontal positions of each line of a prediction's picture."""
    points: dict[str, list[str]] = {}
    for title in ET.fromstring(figure(prediction).svg).iter("{http://www.w3.org/2000/svg}title"):
        if words := re.fullmatch(r"(.+): (.+), (.+)", title.text or ""):
            points.setdefault(words[1], []).append(words[2])
    return points


def test_the_plot_has_the_points() -> None:
    prediction = predict("all_reduce", MACHINE, [8], [64, 4096], ["ring", "linear"])
    assert [*drawn_points(prediction).items()] == [("ring", ["64 B", "4 KiB"]), ("linear", ["64 B", "4 KiB"])]
    over_ranks = predict("all_reduce", MACHINE, [2, 4, 8], [64], ["ring"])
    assert drawn_points(over_ranks) == {"ring": ["2", "4", "8"]} and ">ranks</text>" in figure(over_ranks).svg


def test_the_fastest_algorithms_are_drawn_and_the_others_named() -> None:
    sizes = [1024 * 4**k for k in range(9)]
    prediction = predict("reduce", load_machine("laptop"), [6], sizes)
    fastest = {min(point.seconds, key=point.seconds.__getitem__) for point in prediction.points}
    assert len(prediction.algorithms) > 8 and "circulant_segments" in fastest
    drawn = {*drawn_points(prediction)}
    assert fastest <= drawn and len(drawn) == 8
    undrawn = [name for name in prediction.algorithms if name not in drawn]
    words = f"drawn are the 8 fastest; not drawn: {', '.join(undrawn)}"
    assert words in figure(prediction).svg and words in figure(prediction).html
    # Of 12 lines, 10 are the fastest at a point; these are drawn.
    names = [f"line {k}" for k in range(12)]
    points = [
        replace(point, nbytes=2**k, seconds={name: 2e-6 - (name == names[k]) * 1e-6 for name in names})
        for k, point in enumerate([prediction.points[0]] * 10)
    ]
    assert {*drawn_points(replace(prediction, points=tuple(points)))} == {*names[:10]}


def test_times_beyond_the_measured_sizes_have_a_note(tmp_path, capsys) -> None:
    rows = tuple(Measurement("all_reduce", "native", 4, size, size * 1e-9) for size in (1024, 65_536))
    machine, words = (
        Machine("measured", 1e-6, 1e-9, measured=rows),
        "native was measured up to 64 KiB: beyond",
    )
    save_machine(machine, tmp_path / "m.json")
    for largest, note_count in (("64K", 0), ("256K", 1)):
        command = f"collective predict all_reduce -n 4 -e {largest} --machine {tmp_path / 'm.json'}"
        assert main(command.split()) == 0
        assert capsys.readouterr().out.count(words) == note_count
    beyond = predict("all_reduce", machine, [4], [1024, 262_144])
    assert words in figure(beyond).svg
    assert words not in figure(predict("all_reduce", machine, [4], [1024, 262_144], ["ring"])).svg


def test_a_picture_has_notes_of_omissions() -> None:
    long = predict("broadcast", MACHINE, [6], [64 * 2**k for k in range(12)])
    assert "the table has the first 10 of 12 points" in figure(long).notes
    few = replace(long, left_out={"linear": "too many messages"})
    assert "left out: linear: too many messages" in figure(few).svg
    assert not figure(predict("all_reduce", MACHINE, [8], [64, 128], ["ring"])).notes


def test_command_prints_table_and_crossovers(capsys) -> None:
    assert main(["collective", "predict", "all_reduce", "-n", "8", "-e", "64K"]) == 0
    text = capsys.readouterr().out
    assert "rabenseifner is faster than recursive_doubling from" in text
    assert "(bound)" in text and "10.9*" in text


def test_command_writes_json_and_pictures(tmp_path, capsys) -> None:
    machine = tmp_path / "lab.json"
    save_machine(MACHINE, machine)
    svg = tmp_path / "times.svg"
    arguments = ["all_gather", "-n", "2..8x2", "-b", "1M", "--machine", str(machine)]
    assert main(["collective", "predict", *arguments, "--json", "--svg", str(svg)]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["machine"] == "m"
    assert [point["ranks"] for point in data["points"]] == [2, 4, 8]
    half = data["points"][0]["seconds"]["ring"]
    assert half == pytest.approx(1e-6 + (1 << 19) * 1e-9)
    assert svg.read_text().startswith("<svg") and "ring" in svg.read_text()


def test_command_shows_the_busiest_links(capsys) -> None:
    arguments = ["all_reduce", "-n", "16", "-e", "1K", "--topology", "ring", "--links", "recursive_doubling"]
    assert main(["collective", "predict", *arguments, "--json"]) == 0
    assert [one["messages"] for one in json.loads(capsys.readouterr().out)] == [1, 2, 4, 8]
    assert main(["collective", "predict", *arguments]) == 0
    assert "busiest link" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["all_reduce", "--machine", "/no/such/file"], "cannot read machine"),
        (["all_reduce", "--topology", "torus:3x3"], "has 9 ranks, not 8"),
        (["all_reduce", "-b", "much"], "is no size"),
        (["all_reduce", "--itemsize", "0"], "--itemsize: must be a whole number from 1 on"),
        (["all_reduce", "--segments", "0"], "segments must be 1 or more, got 0"),
        (["all_reduce", "--group", "-1"], "group must be 1 or more, got -1"),
        (["all_reduce", "-f", "nan"], "-f/--factor: must be a finite number, but got 'nan'"),
        (["all_reduce", "-f", "1"], "by a factor of 1 do not grow"),
        (["all_reduce", "-n", "2..8xnan"], "factors above 1"),
        (["all_reduce", "--algorithms", "rong"], "no algorithm 'rong'"),
        (["all_reduce", "--algorithms", "native"], "priced here (native: laptop has no measured times"),
        (
            ["broadcast", "-n", "131072", "--algorithms", "linear", "--machine", "cluster"],
            "no algorithm of broadcast can be",
        ),
        (["all_reduce", "--svg", "/no/such/folder/x.svg"], "cannot write"),
    ],
)
def test_wrong_arguments_are_refused_in_one_line(arguments, words, capsys) -> None:
    with pytest.raises(SystemExit) as stopped:
        raise SystemExit(main(["collective", "predict", *arguments]))
    assert stopped.value.code == 2
    error = capsys.readouterr().err.strip()
    assert words in error and "\n" not in error


@pytest.mark.parametrize("machine", [Machine.laptop(), Machine.cluster(), Machine.accelerators()], ids=str)
@pytest.mark.parametrize("ranks", [2, 3, 6, 8, 64])
def test_predictions_have_the_prices_of_plans_and_searches(machine: Machine, ranks: int) -> None:
    """A call has one price in a prediction, a plan and a search."""
    mesh = Mesh((ranks,), ("x",))
    shape = (ranks * ranks * 32, 48)
    nbytes = 4 * shape[0] * shape[1]
    split, replicated = mesh("x", None), mesh(None, None)
    moves = MovePrices(Settings(machine=machine))
    for collective, src, dst, size in (
        ("all_gather", split, replicated, nbytes),
        ("reduce_scatter", mesh(None, None, partial="x"), split, nbytes),
        ("all_reduce", mesh(None, None, partial="x"), replicated, nbytes),
    ):
        route = plan(src, dst, shape, "float32", machine)
        point = predict(collective, machine, [ranks], [size], ["ring"]).points[0]
        if [step.collective for step in route.steps] == [collective]:
            assert route.seconds == pytest.approx(point.plans)
        assert route.seconds <= point.plans * (1 + 1e-9)
        assert moves.seconds(src, dst, shape, 4) == pytest.approx(route.seconds)
    text = predict("all_gather", machine, [ranks], [nbytes]).to_dict()["points"][0]
    assert text["plans"] > 0
