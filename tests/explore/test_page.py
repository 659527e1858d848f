"""A page has the library's results: its layouts, plans, boxes, rounds and findings are computed again."""

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
    """Return the data of two pages in one dictionary."""
    first, second = read(text), read(page(Offer(meshes=MESHES[2:], shapes=((7,),), ranks=(1,), programs=())))
    return {**first, "meshes": first["meshes"] + second["meshes"], "cases": first["cases"] + second["cases"]}


def read(text: str) -> dict:
    """Return the data of a page, unpacked in Python."""
    packed = re.search(r'<script type="text/plain" id="data">(.*?)</script>', text)[1]
    return json.loads(gzip.decompress(base64.b64decode(packed)))


def layout_of(mesh: Mesh, key: str) -> Layout:
    """Return the layout of a key such as `dp;tp+x`: axes per dim, then partial axes."""

    dims, _, partial_axes = key.partition("+")
    entries = [tuple(filter(None, entry.split(","))) for entry in dims.split(";")]
    return Layout(mesh, entries, dict.fromkeys(filter(None, partial_axes.split(",")), "sum"))


def mesh_of(case: dict) -> Mesh:
    return next(mesh for mesh in MESHES if str(mesh) == case["mesh"])


def test_a_page_makes_no_requests_and_is_reproducible(text: str):
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


def test_derivations_give_the_elements_of_each_rank(data: dict):
    derivation_count = 0
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
                continue  # A layout between two steps cannot be chosen.
            for rank, row in enumerate(derived["digits"]):
                assert derived["shard"][rank] == layout.shard_index(rank) == np.dot(row, derived["strides"])
                replicas = [
                    other for other in range(mesh.size) if derived["shard"][other] == derived["shard"][rank]
                ]
                assert replicas == list(derived["replicas"][rank])
            derivation_count += 1
    assert derivation_count > 30


def test_moves_are_the_planners_plans(data: dict):
    plan_count = 0
    for case in data["cases"]:
        mesh, shape = mesh_of(case), tuple(case["shape"])
        for i, src in enumerate(case["sources"]):
            for j, dst in enumerate(case["targets"]):
                kind, steps, received, bounds, sums = case["plans"][i][j]
                expected = plan(layout_of(mesh, src), layout_of(mesh, dst), shape)
                assert kind == expected.kind and received == [expected.nbytes(r) for r in range(mesh.size)]
                assert bounds == [expected.lower_bound(r) for r in range(mesh.size)]
                assert sums[:3:2] == [max(received), sum(received)]
                assert [case["steps"][k][0] for k in steps] == [step.collective for step in expected.steps]
                plan_count += 1
    assert plan_count > 600


def test_sent_boxes_are_the_missing_elements_and_the_counted_bytes(data: dict):
    """Ranks receive every missing element once, and the boxes have the bytes that steps count."""
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
                owned, needed = np.zeros(shape, int), np.zeros(shape, int)
                owned[tuple(slice(*edge) for edge in before[rank])] = 1
                needed[tuple(slice(*edge) for edge in after[rank])] = 1
                assert (counts[rank] == needed * (1 - owned)).all()


def test_senders_own_the_boxes_that_they_send():
    mesh = Mesh((2, 2), ("a", "b"))
    for src in every_layout(mesh, 2):
        for dst in every_layout(mesh, 2):
            for step in plan(src, dst, (5, 6)).steps:
                for sender, _, box in sent_boxes(step):
                    sender_bounds = step.src.bounds((5, 6), sender)
                    assert all(a <= start and stop <= b for (a, b), (start, stop) in zip(sender_bounds, box))


def test_messages_of_all_rounds_give_the_promised_chunks(data: dict):
    """The target of a message has its chunks after the round. The last state has the promised chunks."""
    schedule_count = 0
    for schedule in data["schedules"]:
        for size, facts in schedule["ranks"].items():
            if schedule["origin"] == "wrong":
                assert facts["findings"], schedule["name"]
                continue
            assert not facts["findings"] and len(facts["states"]) == len(facts["rounds"]) + 1
            for before, messages, after in zip(facts["states"], facts["rounds"], facts["states"][1:]):
                chunks_before = [{chunk for chunk, _, _ in rank} for rank in before]
                for source, target, chunks, _ in messages:
                    available = {chunk for chunk, _, _ in after[target]} | chunks_before[target]
                    assert {*chunks} <= available, (schedule["name"], size, source, target)
            for wanted, state in zip(facts["wanted"], facts["states"][-1]):
                values = {chunk: value for chunk, value, _ in state}
                if schedule["collective"] == "all_reduce":
                    assert {facts["values"][values[chunk]][1] for chunk in wanted} <= {int(size)}
                assert {*wanted} <= {*values}
            schedule_count += 1
    assert schedule_count > 200


def test_schedules_equal_the_librarys():
    for schedule in every_schedule(Offer(ranks=(5,))):
        story, facts = unroll(schedule), schedule_facts(schedule)
        assert bool(facts["moves"]) == (not story.states)
        assert facts["findings"] == [[str(f), f.round, f.rank, f.chunk] for f in story.findings]
        assert [[(a, b, tuple(c), bool(d)) for a, b, c, d in step] for step in facts["rounds"]] == [
            [tuple(message) for message in step] for step in story.steps
        ]


def test_a_device_matrix_with_axes_of_size_one_has_the_shards_of_a_textbook():
    mesh = Mesh((2, 1, 2, 2, 1), ("a", "b", "c", "d", "e"))
    layout = mesh("b", "d", "e", "c", "a")
    page_facts = page_data(Offer((mesh,), ((1, 2, 1, 2, 2),), (2,), programs=(), layouts=(layout,)))
    (facts,), (case,) = page_facts["meshes"], page_facts["cases"]
    assert page_facts["start"] == {"mesh": str(mesh), "layout": "b;d;e;c;a"} and not case["plans"]
    derived = facts["derivations"][5]["b;d;e;c;a"]
    assert derived["shard"] == [0, 4, 2, 6, 1, 5, 3, 7] and derived["strides"] == [8, 4, 4, 2, 1]
    assert derived["digits"][1] == (0, 1, 0, 0, 0) and len(facts["derivations"][5]) > 300
    boxes = {key: boxes_of_layout for key, _, boxes_of_layout in case["layouts"]}
    assert [box[1:] for box in boxes["b;d;e;c;a"]][3] == [(1, 2), (0, 1), (1, 2), (0, 1)]
    assert {*boxes} == {*facts["derivations"][5]}


def test_each_wrong_schedule_has_its_finding():
    findings = {one.name: list(unroll(make_schedule(one, 4)).findings) for one in mistakes()}
    assert all("at the end" in str(f) for f in findings["ring that stops early"])
    assert findings["ring that is off by one"][0].round == 0
    assert (
        "twice" in str(findings["ring that adds twice"][0]) and findings["ring that adds twice"][0].round == 3
    )
    assert "wait for each other" in str(findings["ring that receives first"][0])


def test_products_are_sums_of_the_local_products():
    expected_product, strategy_count = X @ W, 0
    for mesh in (Mesh((2, 2), ("a", "b")), Mesh((2, 4), ("a", "b")), Mesh((3,), ("x",))):
        for key, facts in product_facts(mesh)["strategies"].items():
            assert bool(facts["pending"]) == ("k" in key.split(",")) == bool(facts["rounds"])
            for rank, box in enumerate(facts["y"]):
                x, w = (a[tuple(slice(*e) for e in facts[n][rank])] for n, a in (("x", X), ("w", W)))
                assert facts["local"][rank] == (x @ w).ravel().tolist()
                expected = expected_product[tuple(slice(*e) for e in box)].ravel().tolist()
                assert facts["result"][rank] == expected
                assert not facts["rounds"] or facts["rounds"][-1]["held"][rank] == expected
            sent_count = sum(len(message[2]) for round_ in facts["rounds"] for message in round_["sent"])
            assert 8 * sent_count == sum(facts["received"])
            strategy_count += 1
    assert strategy_count > 25


def test_rings_of_products_add_the_elements_received():
    facts = product_facts(Mesh((4,), ("x",)))["strategies"]["k"]
    numbers_by_rank = [np.array(numbers) for numbers in facts["local"]]
    for round_ in facts["rounds"]:
        before = [numbers.copy() for numbers in numbers_by_rank]
        for source, target, elements, adds in round_["sent"]:
            numbers_by_rank[target][elements] = before[source][elements] + (
                before[target][elements] if adds else 0
            )
        assert [numbers.tolist() for numbers in numbers_by_rank] == round_["held"]


def test_searches_have_the_optimum_and_the_prices_of_other_strategies():
    facts = search_facts(build_program("mlp", layers=1), 2)
    result = search(build_program("mlp", layers=1), 2)
    assert facts["seconds"] == result.seconds and facts["mesh"] == str(result.mesh)
    for row in facts["operators"]:
        reasons = facts["why"][row["name"]]
        assert reasons[0]["seconds"] == pytest.approx(facts["seconds"])
        assert row["strategy"] in [reason["strategy"] for reason in reasons]
        for reason in reasons:
            added_seconds = sum(sum(change[3]) for change in reason["changes"])
            assert facts["seconds"] + added_seconds == pytest.approx(reason["seconds"])
    assert not search_facts(build_program("mlp", layers=6), 2)["why"]


def test_parts_of_a_step_have_the_colours_of_the_pictures_of_searches(text: str):
    """The other bars of the page have none of the four colours."""
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
def test_an_offer_that_is_too_large_or_empty_is_refused(options: dict, words: str):
    with pytest.raises(InputError, match=words):
        Offer(**options)


def test_the_command_writes_a_page_of_its_arguments(tmp_path, capsys):
    algorithm_file = tmp_path / "my.py"
    algorithm_file.write_text(
        "from spmdsim.collectives import send\n\ndef mine(rank, size):\n    yield [send((rank + 1) % size, 0)]\n"
    )
    file = tmp_path / "page.html"
    arguments = ["--mesh", "dp=2,tp=2", "--shape", "4,6", "-n", "4", "--program", "tutorial"]
    assert main(["explore", *arguments, "--algorithm", f"{algorithm_file}:mine", "-o", str(file)]) == 0
    page_facts = read(file.read_text())
    assert [(case["mesh"], case["shape"]) for case in page_facts["cases"]] == [("dp=2 tp=2", [4, 6])]
    own_schedule = next(schedule for schedule in page_facts["schedules"] if schedule["origin"] == "own")
    assert own_schedule["ranks"]["4"]["findings"] and len(page_facts["schedules"]) > 50
    assert main(["explore", "--mesh", "dp=2,tp=2", "-o", str(tmp_path / "no" / "page.html"), *arguments]) == 2
    assert capsys.readouterr().err.count("\n") == 2
