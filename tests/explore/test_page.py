"""What a page says is what the library says: every layout, plan, box, round and finding of it is asked for again."""

from __future__ import annotations

import base64
import gzip
import json
import math
import re

import numpy as np
import pytest
from every_layout import every_layout
from page_schedules import every_schedule

from spmdsim import Mesh, Tensor, plan, search
from spmdsim.auto_parallel.programs.networks import build_program
from spmdsim.auto_parallel.search_report import PARTS
from spmdsim.cli.main import main
from spmdsim.collectives import make_schedule, unroll
from spmdsim.core import Layout
from spmdsim.errors import InputError
from spmdsim.figures.canvas import FILLS
from spmdsim.figures.explore import Offer, page
from spmdsim.figures.explore.moves import W, X, product_facts, sent_boxes
from spmdsim.figures.explore.offer import layouts_of
from spmdsim.figures.explore.page import page_data
from spmdsim.figures.explore.schedules import mistakes, schedule_facts
from spmdsim.figures.explore.searches import search_facts
from spmdsim.worlds import LockStep

MESHES = (Mesh((2, 3), ("dp", "tp")), Mesh((4,), ("x",)), Mesh((2, 2, 2), ("a", "b", "c")))
OFFER = Offer(meshes=MESHES[:2], shapes=((6, 5), (7,)), ranks=(2, 3, 4, 6), programs=())


@pytest.fixture(scope="module")
def text() -> str:
    return page(OFFER)


@pytest.fixture(scope="module")
def data(text: str) -> dict:
    """What two pages hold, put together."""
    one, other = read(text), read(page(Offer(meshes=MESHES[2:], shapes=((7,),), ranks=(1,), programs=())))
    return {**one, "meshes": one["meshes"] + other["meshes"], "cases": one["cases"] + other["cases"]}


def read(text: str) -> dict:
    """What stands in a page, unpacked by other means than the page's own."""
    packed = re.search(r'<script type="text/plain" id="data">(.*?)</script>', text)[1]
    return json.loads(gzip.decompress(base64.b64decode(packed)))


def layout_of(mesh: Mesh, key: str) -> Layout:
    dims, _, pending = key.partition("+")
    entries = [tuple(filter(None, entry.split(","))) for entry in dims.split(";")]
    return Layout(mesh, entries, dict.fromkeys(filter(None, pending.split(",")), "sum"))


def mesh_of(case: dict) -> Mesh:
    return next(mesh for mesh in MESHES if str(mesh) == case["mesh"])


def test_a_page_asks_nobody(text: str):
    assert not re.search(
        r"""(src|href)=["'](?!#|data:,)|@import|url\((?!#)|https?://(?!www\.w3\.org/2000/svg)""", text
    )
    assert "default-src 'none'" in text and len(text.encode()) < 1_500_000
    small = Offer(meshes=MESHES[1:2], shapes=((4,),), ranks=(2,), programs=())
    assert page(small) == page(small)


def test_every_layout_is_offered():
    for mesh in MESHES[:2]:
        for ndim in (1, 2, 3):
            assert {*layouts_of(mesh, ndim)} == {*every_layout(mesh, ndim, partial=True)}
    mesh = MESHES[2]
    assert {*layouts_of(mesh, 2, partial=False)} == {*every_layout(mesh, 2)}
    assert {*layouts_of(mesh, 2)} <= {*every_layout(mesh, 2, partial=True)}


def test_derivations_say_which_elements_ranks_hold(data: dict):
    seen = 0
    for case in data["cases"]:
        mesh, shape = mesh_of(case), tuple(case["shape"])
        facts = next(one for one in data["meshes"] if one["name"] == case["mesh"])
        numbers = np.arange(math.prod(shape)).reshape(shape)
        for key, _, boxes in case["layouts"]:
            if "+" in key:
                continue
            layout = layout_of(mesh, key)
            shards = Tensor.from_global(numbers, layout, LockStep(mesh.size)).shards
            for rank, box in enumerate(boxes):
                assert (shards[rank] == numbers[tuple(slice(*edge) for edge in box)]).all()
            derived = facts["derivations"][str(len(shape))].get(key)
            if derived is None:
                continue  # a state on the way, that nobody can choose
            for rank, row in enumerate(derived["digits"]):
                assert derived["shard"][rank] == layout.shard_index(rank) == np.dot(row, derived["strides"])
                same = [
                    other for other in range(mesh.size) if derived["shard"][other] == derived["shard"][rank]
                ]
                assert same == list(derived["replicas"][rank])
            seen += 1
    assert seen > 30


def test_moves_are_the_planners_plans(data: dict):
    seen = 0
    for case in data["cases"]:
        mesh, shape = mesh_of(case), tuple(case["shape"])
        for i, src in enumerate(case["sources"]):
            for j, dst in enumerate(case["targets"]):
                kind, steps, received, bounds, sums = case["plans"][i][j]
                wanted = plan(layout_of(mesh, src), layout_of(mesh, dst), shape)
                assert kind == wanted.kind and received == [wanted.nbytes(r) for r in range(mesh.size)]
                assert bounds == [wanted.lower_bound(r) for r in range(mesh.size)]
                assert sums[:3:2] == [max(received), sum(received)]
                assert [case["steps"][k][0] for k in steps] == [step.collective for step in wanted.steps]
                seen += 1
    assert seen > 600


def test_boxes_sent_are_the_bytes_counted_and_what_is_missing(data: dict):
    """Each rank gets every element that it lacks, once; and what the boxes add up to is what steps count."""
    for case in data["cases"]:
        mesh, shape = mesh_of(case), tuple(case["shape"])
        for collective, _, src, dst, _, sent, received in case["steps"]:
            boxes = [case["boxes"][box] for _, _, box in sent]
            counts = np.zeros((mesh.size, *shape), int)
            for (_, receiver, _), box in zip(sent, boxes):
                counts[(receiver, *(slice(*edge) for edge in box))] += 1
            if collective != "all_reduce":
                assert [4 * int(count.sum()) for count in counts] == received
            if collective not in ("all_gather", "all_to_all", "exchange"):
                continue
            before, after = (case["layouts"][k][2] for k in (src, dst))
            for rank in range(mesh.size):
                held, wanted = np.zeros(shape, int), np.zeros(shape, int)
                held[tuple(slice(*edge) for edge in before[rank])] = 1
                wanted[tuple(slice(*edge) for edge in after[rank])] = 1
                assert (counts[rank] == wanted * (1 - held)).all()


def test_senders_hold_what_they_send():
    mesh = Mesh((2, 2), ("a", "b"))
    for src in every_layout(mesh, 2):
        for dst in every_layout(mesh, 2):
            for step in plan(src, dst, (5, 6)).steps:
                for sender, _, box in sent_boxes(step):
                    own = step.src.bounds((5, 6), sender)
                    assert all(a <= start and stop <= b for (a, b), (start, stop) in zip(own, box))


def test_rounds_replay_to_what_is_promised(data: dict):
    """Messages of a page, applied to sets of ranks, give the states of the page, and in the end what is promised."""
    seen = 0
    for one in data["schedules"]:
        for size, told in one["ranks"].items():
            if one["origin"] == "wrong":
                assert told["findings"], one["name"]
                continue
            assert not told["findings"] and len(told["states"]) == len(told["rounds"]) + 1
            for before, messages, after in zip(told["states"], told["rounds"], told["states"][1:]):
                held = [{chunk for chunk, _, _ in rank} for rank in before]
                for source, target, chunks, _ in messages:
                    available = {chunk for chunk, _, _ in after[target]} | held[target]
                    assert {*chunks} <= available, (one["name"], size, source, target)
            for wanted, state in zip(told["wanted"], told["states"][-1]):
                values = {chunk: value for chunk, value, _ in state}
                if one["collective"] == "all_reduce":
                    assert {told["values"][values[chunk]][1] for chunk in wanted} <= {int(size)}
                assert {*wanted} <= {*values}
            seen += 1
    assert seen > 200


def test_schedules_are_those_of_the_library():
    for schedule in every_schedule(Offer(ranks=(5,))):
        story, told = unroll(schedule), schedule_facts(schedule)
        assert bool(told["moves"]) == (not story.states)
        assert told["findings"] == [[str(f), f.round, f.rank, f.chunk] for f in story.findings]
        assert [[(a, b, tuple(c), bool(d)) for a, b, c, d in step] for step in told["rounds"]] == [
            [tuple(message) for message in step] for step in story.steps
        ]


def test_a_textbooks_device_matrix_with_axes_of_size_one():
    mesh = Mesh((2, 1, 2, 2, 1), ("a", "b", "c", "d", "e"))
    layout = mesh("b", "d", "e", "c", "a")
    told = page_data(Offer((mesh,), ((1, 2, 1, 2, 2),), (2,), programs=(), layouts=(layout,)))
    (facts,), (case,) = told["meshes"], told["cases"]
    assert told["start"] == {"mesh": str(mesh), "layout": "b;d;e;c;a"} and not case["plans"]
    derived = facts["derivations"][5]["b;d;e;c;a"]
    assert derived["shard"] == [0, 4, 2, 6, 1, 5, 3, 7] and derived["strides"] == [8, 4, 4, 2, 1]
    assert derived["digits"][1] == (0, 1, 0, 0, 0) and len(facts["derivations"][5]) > 300
    boxes = {key: held for key, _, held in case["layouts"]}
    assert [box[1:] for box in boxes["b;d;e;c;a"]][3] == [(1, 2), (0, 1), (1, 2), (0, 1)]
    assert {*boxes} == {*facts["derivations"][5]}


def test_each_mistake_is_found_where_it_is():
    findings = {one.name: list(unroll(make_schedule(one, 4)).findings) for one in mistakes()}
    assert all("at the end" in str(f) for f in findings["ring that stops early"])
    assert findings["ring that is off by one"][0].round == 0
    assert (
        "twice" in str(findings["ring that adds twice"][0]) and findings["ring that adds twice"][0].round == 3
    )
    assert "wait for each other" in str(findings["ring that receives first"][0])


def test_products_are_sums_of_what_ranks_multiplied():
    whole, seen = X @ W, 0
    for mesh in (Mesh((2, 2), ("a", "b")), Mesh((2, 4), ("a", "b")), Mesh((3,), ("x",))):
        for key, told in product_facts(mesh)["strategies"].items():
            assert bool(told["pending"]) == ("k" in key.split(",")) == bool(told["rounds"])
            for rank, box in enumerate(told["y"]):
                x, w = (a[tuple(slice(*e) for e in told[n][rank])] for n, a in (("x", X), ("w", W)))
                assert told["local"][rank] == (x @ w).ravel().tolist()
                wanted = whole[tuple(slice(*e) for e in box)].ravel().tolist()
                assert told["result"][rank] == wanted
                assert not told["rounds"] or told["rounds"][-1]["held"][rank] == wanted
            sent = sum(len(message[2]) for one in told["rounds"] for message in one["sent"])
            assert 8 * sent == sum(told["received"])
            seen += 1
    assert seen > 25


def test_rings_of_products_add_what_they_are_sent():
    told = product_facts(Mesh((4,), ("x",)))["strategies"]["k"]
    held = [np.array(numbers) for numbers in told["local"]]
    for one in told["rounds"]:
        before = [numbers.copy() for numbers in held]
        for source, target, elements, adds in one["sent"]:
            held[target][elements] = before[source][elements] + (before[target][elements] if adds else 0)
        assert [numbers.tolist() for numbers in held] == one["held"]


def test_searches_know_the_best_and_what_others_cost():
    told = search_facts(build_program("mlp", layers=1), 2)
    result = search(build_program("mlp", layers=1), 2)
    assert told["seconds"] == result.seconds and told["mesh"] == str(result.mesh)
    for row in told["operators"]:
        reasons = told["why"][row["name"]]
        assert reasons[0]["seconds"] == pytest.approx(told["seconds"])
        assert row["strategy"] in [one["strategy"] for one in reasons]
        for one in reasons:
            more = sum(sum(change[3]) for change in one["changes"])
            assert told["seconds"] + more == pytest.approx(one["seconds"])
    assert not search_facts(build_program("mlp", layers=6), 2)["why"]


def test_parts_of_a_searched_step_have_the_colours_of_its_picture(text: str):
    """Parts of the time have four colours, the same ones as in pictures of a search; no other bar has them."""
    (kinds,) = re.findall(r"const KINDS = (\[.*\]);", text)
    assert re.findall(r'\["(\w+)", "(#\w+)"', kinds) == [*zip(PARTS, (fill for fill, _ in FILLS))]
    (bar,) = re.findall(r"\.bar i b \{[^}]*background: ([^;]+);", text)
    assert bar == "var(--soft)"


@pytest.mark.parametrize(
    "options, words",
    [
        ({"meshes": (Mesh((4, 4), ("a", "b")),)}, "at most 8 ranks"),
        ({"shapes": ((2,) * 6,)}, "1 to 5 dims"),
        ({"shapes": ((0, 3),)}, "dims of 1 to"),
        ({"ranks": (9,)}, "ranks must be 1 to 8"),
        ({"meshes": ()}, "meshes must have at least one item"),
        ({"meshes": (Mesh((2, 1, 1, 1, 1, 1, 2), tuple("abcdefg")),)}, "6 axes"),
        ({"layouts": (Mesh((2, 2), ("a", "b"))("a", "b"),)}, "needs its mesh"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(options: dict, words: str):
    with pytest.raises(InputError, match=words):
        Offer(**options)


def test_the_command_writes_a_page_of_what_was_asked_for(tmp_path, capsys):
    own = tmp_path / "my.py"
    own.write_text(
        "from spmdsim.collectives import send\n\ndef mine(rank, size):\n    yield [send((rank + 1) % size, 0)]\n"
    )
    file = tmp_path / "page.html"
    arguments = ["--mesh", "dp=2,tp=2", "--shape", "4,6", "-n", "4", "--program", "tutorial"]
    assert main(["explore", *arguments, "--algorithm", f"{own}:mine", "-o", str(file)]) == 0
    told = read(file.read_text())
    assert [(case["mesh"], case["shape"]) for case in told["cases"]] == [("dp=2 tp=2", [4, 6])]
    mine = next(one for one in told["schedules"] if one["origin"] == "own")
    assert mine["ranks"]["4"]["findings"] and len(told["schedules"]) > 50
    assert main(["explore", "--mesh", "dp=2,tp=2", "-o", str(tmp_path / "no" / "page.html"), *arguments]) == 2
    assert capsys.readouterr().err.count("\n") == 2
