"""A page has the library's results: its layouts, plans, boxes, rounds and findings are computed again."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from drawn_words import fills
from every_layout import every_layout
from page_schedules import every_schedule, layout_of, read_page, wrong_rings

from spmdsim import Mesh, Tensor, plan, search
from spmdsim.auto_parallel.programs.networks import build_program
from spmdsim.auto_parallel.search_report import PARTS
from spmdsim.cli.main import main
from spmdsim.collectives import unroll
from spmdsim.errors import InputError
from spmdsim.figures.explore import Offer, page
from spmdsim.worlds import LockStep

MESHES = (Mesh((2, 3), ("dp", "tp")), Mesh((4,), ("x",)), Mesh((2, 2, 2), ("a", "b", "c")))
OFFER = Offer(meshes=MESHES[:2], shapes=((6, 5), (7,)), ranks=(2, 3, 4, 6), programs=())


@pytest.fixture(scope="module")
def text() -> str:
    return page(OFFER)


@pytest.fixture(scope="module")
def data(text: str) -> dict:
    """Return the data of two pages in one dictionary."""
    first, second = read_page(text), data_of(MESHES[2:], ((7,),))
    return {**first, "meshes": first["meshes"] + second["meshes"], "cases": first["cases"] + second["cases"]}


def data_of(meshes=MESHES[1:2], shapes=((1,),), ranks=(1,), programs=(), **others) -> dict:
    """Return the data of a page with these choices; the page is small without them."""
    return read_page(page(Offer(meshes, shapes, ranks, programs=programs, **others)))


def mesh_of(case: dict) -> Mesh:
    return next(mesh for mesh in MESHES if str(mesh) == case["mesh"])


def test_a_page_makes_no_requests_and_is_reproducible(text: str):
    assert not re.search(
        r"""(src|href)=["'](?!#|data:,)|@import|url\((?!#)|https?://(?!www\.w3\.org/2000/svg)""", text
    )
    assert "default-src 'none'" in text and len(text.encode()) < 1_500_000
    small = Offer(meshes=MESHES[1:2], shapes=((4,),), ranks=(2,), programs=())
    assert page(small) == page(small)


def test_every_layout_is_offered(monkeypatch):
    monkeypatch.setattr(
        "spmdsim.figures.explore.offer.MOST_PAIRS", 0
    )  # Plans between them would take seconds.
    small, large = data_of(MESHES[:2], ((2,), (2, 2), (2, 2, 2))), data_of(MESHES[2:], ((2, 2),))
    for mesh, facts in zip(MESHES[:2], small["meshes"]):
        for ndim in (1, 2, 3):
            layouts = {layout_of(mesh, key) for key in facts["derivations"][str(ndim)]}
            assert layouts == {*every_layout(mesh, ndim, partial=True)}
    layouts = {layout_of(MESHES[2], key) for key in large["meshes"][0]["derivations"]["2"]}
    assert {layout for layout in layouts if not layout.partial} == {*every_layout(MESHES[2], 2)}
    assert layouts <= {*every_layout(MESHES[2], 2, partial=True)}


def test_targets_are_the_layouts_without_pending_sums(data: dict):
    for case in data["cases"]:
        derivations = next(one["derivations"] for one in data["meshes"] if one["name"] == case["mesh"])
        assert {*case["sources"]} == {*derivations[str(len(case["shape"]))]}
        assert case["targets"] == [key for key in case["sources"] if "+" not in key]


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
    (case,) = data_of((mesh,), ((5, 6),))["cases"]
    box_count = 0
    for _, _, src, _, _, sent, _ in case["steps"]:
        layout = layout_of(mesh, case["layouts"][src][0])
        for sender, _, box in () if layout.partial else sent:
            sender_bounds = layout.bounds((5, 6), sender)
            assert all(a <= i and j <= b for (a, b), (i, j) in zip(sender_bounds, case["boxes"][box]))
            box_count += 1
    assert box_count > 300


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
    offer = Offer(MESHES[1:2], ((1,),), (5,), wrong_rings(), programs=())
    facts_by_name = {
        (one["collective"], one["name"]): one["ranks"] for one in read_page(page(offer))["schedules"]
    }
    for schedule in every_schedule(offer):
        story = unroll(schedule)
        facts = facts_by_name[schedule.collective.name, schedule.algorithm.name]["5"]
        assert bool(facts["moves"]) == (not story.states)
        assert facts["findings"] == [[str(f), f.round, f.rank, f.chunk] for f in story.findings]
        assert [[(a, b, tuple(c), bool(d)) for a, b, c, d in step] for step in facts["rounds"]] == [
            [tuple(message) for message in step] for step in story.steps
        ]


def test_a_device_matrix_with_axes_of_size_one_has_the_shards_of_a_textbook():
    mesh = Mesh((2, 1, 2, 2, 1), ("a", "b", "c", "d", "e"))
    layout = mesh("b", "d", "e", "c", "a")
    page_facts = data_of((mesh,), ((1, 2, 1, 2, 2),), layouts=(layout,))
    (facts,), (case,) = page_facts["meshes"], page_facts["cases"]
    assert page_facts["start"] == {"mesh": str(mesh), "layout": "b;d;e;c;a"} and not case["plans"]
    derived = facts["derivations"]["5"]["b;d;e;c;a"]
    assert derived["shard"] == [0, 4, 2, 6, 1, 5, 3, 7] and derived["strides"] == [8, 4, 4, 2, 1]
    assert derived["digits"][1] == [0, 1, 0, 0, 0] and len(facts["derivations"]["5"]) > 300
    boxes = {key: boxes_of_layout for key, _, boxes_of_layout in case["layouts"]}
    assert [box[1:] for box in boxes["b;d;e;c;a"]][3] == [[1, 2], [0, 1], [1, 2], [0, 1]]
    assert {*boxes} == {*facts["derivations"]["5"]}


def test_each_wrong_schedule_has_its_finding(data: dict):
    findings = {
        one["name"]: one["ranks"]["4"]["findings"] for one in data["schedules"] if one["origin"] == "wrong"
    }
    assert all("at the end" in text for text, *_ in findings["ring that stops early"])
    assert findings["ring that is off by one"][0][1] == 0
    text, round_number, *_ = findings["ring that adds twice"][0]
    assert "twice" in text and round_number == 3
    assert "wait for each other" in findings["ring that receives first"][0][0]


def test_products_are_sums_of_the_local_products():
    meshes = (Mesh((2, 2), ("a", "b")), Mesh((2, 4), ("a", "b")), Mesh((3,), ("x",)))
    page_facts, strategy_count = data_of(meshes), 0
    operands = {name: np.array(matrix) for name, matrix in page_facts["operands"].items()}
    expected_product = operands["x"] @ operands["w"]
    assert (operands["y"] == expected_product).all() and expected_product.any()
    assert [product["mesh"] for product in page_facts["products"]] == [str(mesh) for mesh in meshes]
    for product in page_facts["products"]:
        for key, facts in product["strategies"].items():
            assert bool(facts["pending"]) == ("k" in key.split(",")) == bool(facts["rounds"])
            for rank, box in enumerate(facts["y"]):
                x, w = (a[tuple(slice(*e) for e in facts[n][rank])] for n, a in operands.items() if n != "y")
                assert facts["local"][rank] == (x @ w).ravel().tolist()
                expected = expected_product[tuple(slice(*e) for e in box)].ravel().tolist()
                assert facts["result"][rank] == expected
                assert not facts["rounds"] or facts["rounds"][-1]["held"][rank] == expected
            sent_count = sum(len(message[2]) for round_ in facts["rounds"] for message in round_["sent"])
            assert 8 * sent_count == sum(facts["received"])
            strategy_count += 1
    assert strategy_count > 25


def test_rings_of_products_add_the_elements_received(data: dict):
    (facts,) = (one["strategies"]["k"] for one in data["products"] if one["mesh"] == "x=4")
    numbers_by_rank = [np.array(numbers) for numbers in facts["local"]]
    for round_ in facts["rounds"]:
        before = [numbers.copy() for numbers in numbers_by_rank]
        for source, target, elements, adds in round_["sent"]:
            numbers_by_rank[target][elements] = before[source][elements] + (
                before[target][elements] if adds else 0
            )
        assert [numbers.tolist() for numbers in numbers_by_rank] == round_["held"]


def test_searches_have_the_optimum_and_the_prices_of_other_strategies(monkeypatch):
    (facts,) = data_of(ranks=(2,), programs=("mlp",))["searches"]
    result = search(build_program("mlp", layers=2), 2)
    assert facts["seconds"] == result.seconds and facts["mesh"] == str(result.mesh)
    for row in facts["operators"]:
        reasons = facts["why"][row["name"]]
        assert reasons[0]["seconds"] == pytest.approx(facts["seconds"])
        assert row["strategy"] in [reason["strategy"] for reason in reasons]
        for reason in reasons:
            added_seconds = sum(sum(change[3]) for change in reason["changes"])
            assert facts["seconds"] + added_seconds == pytest.approx(reason["seconds"])
    monkeypatch.setattr("spmdsim.figures.explore.searches.MOST_REASONED", len(facts["operators"]) - 1)
    (facts,) = data_of(ranks=(2,), programs=("mlp",))["searches"]
    assert facts["operators"] and not facts["why"]


def test_parts_of_a_step_have_the_colours_of_the_pictures_of_searches(text: str):
    """The other bars of the page have none of the four colours."""
    (kinds,) = re.findall(r"const KINDS = (\[.*\]);", text)
    assert re.findall(r'\["(\w+)", "(#\w+)"', kinds) == [*zip(PARTS, (fill for fill, _ in fills()))]
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
    page_facts = read_page(file.read_text())
    assert [(case["mesh"], case["shape"]) for case in page_facts["cases"]] == [("dp=2 tp=2", [4, 6])]
    own_schedule = next(schedule for schedule in page_facts["schedules"] if schedule["origin"] == "own")
    assert own_schedule["ranks"]["4"]["findings"] and len(page_facts["schedules"]) > 50
    assert main(["explore", "--mesh", "dp=2,tp=2", "-o", str(tmp_path / "no" / "page.html"), *arguments]) == 2
    assert capsys.readouterr().err.count("\n") == 2
