"""The page in a browser shows the library's results, and clicks, keys and addresses work."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
from browsers import FLAGS, find_browser
from page_schedules import every_schedule, layout_of, read_page, wrong_rings

from spmdsim import Mesh, Tensor, matmul, plan, search
from spmdsim.auto_parallel.programs.networks import build_program
from spmdsim.collectives import unroll
from spmdsim.figures.explore import Offer, page
from spmdsim.figures.schedule_figures import value_words
from spmdsim.worlds import LockStep

playwright = pytest.importorskip("playwright.sync_api", reason="needs Playwright: scripts/browser_tests.sh")

OFFER = Offer(
    meshes=(Mesh((2, 2), ("dp", "tp")), Mesh((2, 2, 2), ("a", "b", "c")), Mesh((3,), ("x",))),
    shapes=((7,), (6, 5), (4, 3, 5)),
    ranks=(2, 3, 4),
    algorithms=wrong_rings(),
    programs=("tutorial",),
)
VIEWS = ("layout", "move", "schedule", "product", "search")
#: A script that visits addresses and returns the result of the function `look` at each.
WALK = """async ([hashes, look]) => {
    const views = [], read = eval(look);
    for (const hash of hashes) {
        location.hash = hash;
        while (document.documentElement.dataset.shown !== hash) await new Promise((on) => setTimeout(on, 1));
        views.push(read());
    }
    return views;
}"""


def slice_text(box: Any) -> str:
    return f"[{', '.join(f'{start}:{stop}' for start, stop in box)}]"


def address(view: str, **options: Any) -> str:
    return f"#{view}?" + "&".join(f"{name}={quote(str(value), safe='')}" for name, value in options.items())


def shape_text(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))


class Visit:
    """An open page and the list of its console messages, errors and foreign requests."""

    def __init__(self, browser: Any, file: Path, **options: Any) -> None:
        self.context = browser.new_context(**options)
        self.tab = self.context.new_page()
        self.trouble: list[str] = []
        self.tab.on("console", lambda message: self.trouble.append(f"{message.type}: {message.text}"))
        self.tab.on("pageerror", lambda error: self.trouble.append(str(error)))
        self.tab.on(
            "request",
            lambda request: request.url.startswith(file.as_uri()) or self.trouble.append(request.url),
        )
        self.file = file

    def open(self, hash_: str = "") -> Any:
        self.tab.goto(self.file.as_uri() + hash_)
        self.tab.wait_for_selector("h2")
        return self.tab

    def walk(self, hashes: list[str], look: str) -> list[Any]:
        return self.tab.evaluate(WALK, [hashes, look])


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "page.html"
    path.write_text(page(OFFER), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def data(file: Path) -> dict[str, Any]:
    return read_page(file.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    executable = find_browser()
    with playwright.sync_playwright() as driver:
        if executable is None and not Path(driver.chromium.executable_path).exists():
            pytest.skip("there is no Chromium: apt install chromium, or playwright install chromium")
        opened = driver.chromium.launch(executable_path=executable, args=FLAGS)
        yield opened
        opened.close()


@pytest.fixture
def visit(browser: Any, file: Path) -> Iterator[Visit]:
    """Yield a visit of the page; check that nothing is printed, raised or requested."""
    visitor = Visit(browser, file, reduced_motion="reduce")
    yield visitor
    visitor.context.close()
    assert not visitor.trouble


# -- contents ---------------------------------------------------------------------------------------------------------


def test_every_layout_shows_the_librarys_shards_and_boxes(visit: Visit, data: dict[str, Any]):
    visit.open()
    keys = [
        (mesh, shape, key)
        for mesh, facts in zip(OFFER.meshes, data["meshes"])
        for shape in OFFER.shapes
        for key in facts["derivations"][str(len(shape))]
    ]
    hashes = [address("layout", mesh=m, shape=shape_text(shape), layout=key) for m, shape, key in keys]
    cases = [(mesh, shape, layout_of(mesh, key)) for mesh, shape, key in keys]
    look = """() => [
        [...document.querySelectorAll(".device")].map((one) => [Number(one.dataset.rank), Number(one.dataset.shard), one.dataset.addend ?? ""]),
        [...document.querySelectorAll(".piece")].map((one) => [one.dataset.box, one.dataset.ranks]),
        [...document.querySelectorAll("tr[data-rank]")].map((row) => [...row.cells].map((cell) => cell.textContent))]"""
    views = visit.walk(hashes, look)
    assert len(views) > 120
    for (mesh, shape, layout), (devices, pieces, rows) in zip(cases, views):
        ranks = range(mesh.size)
        assert [device[:2] for device in devices] == [[rank, layout.shard_index(rank)] for rank in ranks]
        addends = [device[2] for device in devices]
        for group in layout.mesh.groups(*layout.partial_axes) if layout.partial else ():
            assert [addends[rank] for rank in group] == [
                f"+{k} of {len(group)}" for k in range(1, len(group) + 1)
            ]
        assert layout.partial or {*addends} == {""}
        ranks_by_box: dict[str, list[str]] = {}
        for rank in ranks:
            ranks_by_box.setdefault(slice_text(layout.bounds(shape, rank)), []).append(str(rank))
        expected_pieces = {
            box: ",".join(ranks_of_box)
            for box, ranks_of_box in ranks_by_box.items()
            if all(a < b for a, b in eval_box(box))
        }
        assert dict(pieces) == expected_pieces
        for rank, row in enumerate(rows):
            axes = len(mesh.axes)
            assert row[1 : 1 + axes] == list(map(str, mesh.coords(rank)))
            assert row[axes + 3] == str(layout.shard_index(rank))
            if layout.partial:  # A partial layout has one more column, the addend.
                assert row.pop(axes + 4) == devices[rank][2]
            assert row[axes + 4] == ", ".join(map(str, layout.replica_ranks(rank)))
            assert row[axes + 5] == slice_text(layout.bounds(shape, rank))
            assert row[axes + 7] == f"{4 * np.prod(layout.local_shape(shape, rank))} B"


def eval_box(text: str) -> list[tuple[int, int]]:
    """Return the (start, stop) pairs of a box such as `[0:2, 1:3]`."""

    return [tuple(map(int, interval.split(":"))) for interval in text.strip("[]").split(", ")]


def test_redistributions_show_the_planners_boxes_and_bytes(visit: Visit, data: dict[str, Any]):
    visit.open()
    rng, cases, hashes = random.Random(3), [], []
    for (mesh, shape), facts in zip(product(OFFER.meshes, OFFER.shapes), data["cases"]):
        assert (facts["mesh"], facts["shape"]) == (str(mesh), list(shape))
        pairs = [*product(range(len(facts["sources"])), range(len(facts["targets"])))]
        for i, j in rng.sample(pairs, min(40, len(pairs))):
            src, dst = facts["sources"][i], facts["targets"][j]
            found_plan = plan(layout_of(mesh, src), layout_of(mesh, dst), shape)
            for k, number in enumerate(facts["plans"][i][j][1]):
                sent = [[a, b, slice_text(facts["boxes"][box])] for a, b, box in facts["steps"][number][5]]
                cases.append((mesh, shape, found_plan, k, sent))
                ends = {"from": src, "to": dst}
                hashes.append(address("move", mesh=mesh, shape=shape_text(shape), step=k + 1, **ends))
    look = """() => [
        [...document.querySelectorAll(".sent")].map((one) => [Number(one.dataset.from), Number(one.dataset.to), one.dataset.box]),
        [...document.querySelectorAll(".holds")].map((one) => [one.dataset.when, one.dataset.box]),
        [...document.querySelectorAll(".got")].map((one) => Number(one.dataset.bytes)),
        [...document.querySelectorAll(".bar")].map((one) => [Number(one.dataset.received), Number(one.dataset.bound)])]"""
    views = visit.walk(hashes, look)
    assert len(views) > 120
    for (mesh, shape, found_plan, k, boxes), (sent, holds, received, bars) in zip(cases, views):
        step, ranks = found_plan.steps[k], range(mesh.size)
        assert sent == boxes
        assert holds == [
            [when, slice_text(layout.bounds(shape, rank))]
            for when, layout in (("before", step.src), ("after", step.dst))
            for rank in ranks
        ]
        assert received == [step.nbytes(rank, 4) for rank in ranks]
        assert bars == [[found_plan.nbytes(rank), found_plan.lower_bound(rank)] for rank in ranks]


def test_every_round_shows_the_chunks_of_ranks_and_its_messages(visit: Visit):
    visit.open()
    cases = []
    for schedule in every_schedule(OFFER):
        story = unroll(schedule)
        name = f"{schedule.collective.name} {schedule.algorithm.name}"
        cases += [
            (name, schedule.size, story, k) for k in range(max(len(story.states), len(story.steps) + 1))
        ]
    cases = random.Random(5).sample(cases, 300)
    hashes = [address("schedule", algorithm=name, n=size, step=k) for name, size, _, k in cases]
    look = """() => [
        [...document.querySelectorAll(".cell")].map((one) => [Number(one.dataset.rank), Number(one.dataset.chunk), one.dataset.value]),
        [...document.querySelectorAll(".message")].map((one) => [Number(one.dataset.from), Number(one.dataset.to), one.dataset.chunks, one.dataset.reduces]),
        [...document.querySelectorAll(".finding")].map((one) => one.textContent)]"""
    views = visit.walk(hashes, look)
    assert len(views) == 300
    for (name, size, story, k), (cells, messages, findings) in zip(cases, views):
        expected_cells = []
        cells_of = {c for rank in range(size) for c in story.schedule.starts_with(rank)}
        for rank in range(size):
            if story.states:
                values_by_chunk = story.states[k].holds[rank]
                expected_cells += [
                    [rank, c, value_words(story, values_by_chunk[c]) if c in values_by_chunk else ""]
                    for c in story.cells
                ]
            else:  # Ranks that wait for each other still have their first chunks.
                first_chunks = {*story.schedule.starts_with(rank)}
                expected_cells += [
                    [rank, c, str(rank) if c in first_chunks else ""] for c in sorted(cells_of)
                ]
        assert cells == expected_cells, (name, size, k)
        step = story.steps[k - 1] if k else ()
        assert messages == [
            [m.source, m.target, ",".join(map(str, m.chunks)), str(int(m.reduces))] for m in step
        ]
        assert bool(findings) == bool(story.findings), (name, size)


def test_products_show_the_numbers_that_ranks_compute(visit: Visit, data: dict[str, Any]):
    visit.open()
    left, right = (np.array(data["operands"][name]) for name in ("x", "w"))
    mesh, world = OFFER.meshes[1], LockStep(8)
    picks = ["m,k,n", "k,k,-", "k,k,k", "n,k,m", "-,-,-", "m,m,n", "k,n,k"]
    look = """() => [document.querySelectorAll(".local").length,
        [...document.querySelectorAll(".local")].map((one) => one.dataset.values.split(",").map(Number)),
        Number(document.getElementById("player-slider").max)]"""
    for pick in picks:
        axes = {f: tuple(a for a, one in zip(mesh.axes, pick.split(",")) if one == f) for f in "mkn"}
        x = Tensor.from_global(left, mesh(axes["m"], axes["k"]), world)
        y = matmul(x, Tensor.from_global(right, mesh(axes["k"], axes["n"]), world))
        assert bool(y.layout.partial) == ("k" in pick)
        first, last = visit.walk(
            [address("product", mesh=mesh, strategy=pick, step=step) for step in (2, 99)], look
        )
        assert first[:2] == [8, [np.ravel(shard).tolist() for shard in y.shards]]
        assert last[1] == [np.ravel(shard).tolist() for shard in y.to(y.layout.reduced).shards]
        assert first[2] == 2 + 2 * (mesh.axis_size(*axes["k"]) - 1)


def test_searches_show_the_strategies_and_the_prices_of_others(visit: Visit):
    visit.open()
    result = search(build_program("tutorial", configured=False), 4)
    looks = """() => [
        [...document.querySelectorAll("tr[data-operator]")].map((row) => [row.dataset.operator, row.dataset.strategy, Number(row.dataset.seconds)]),
        [...document.querySelectorAll(".reason")].map((row) => [row.dataset.strategy, Number(row.dataset.seconds)])]"""
    operator = result.graph.operators[0]
    ((rows, reasons),) = visit.walk([address("search", n=4, operator=operator.name)], looks)
    assert [row[:2] for row in rows] == [
        [o.name, str(result.strategy(o.name))] for o in result.graph.operators
    ]
    assert [row[2] for row in rows] == pytest.approx([o.seconds for o in result.evaluation.operators])
    assert reasons[0][1] == pytest.approx(result.seconds) and len(reasons) > 5
    assert [seconds for _, seconds in reasons] == sorted(seconds for _, seconds in reasons)
    for text, seconds in reasons[1:3]:
        splits = {f: tuple(axes.split(".")) for f, axes in (word.rsplit(":", 1) for word in text.split())}
        assert seconds == pytest.approx(result.why(operator.name, splits).other.seconds)


# -- interaction ------------------------------------------------------------------------------------------------------


def test_clicks_choose_a_layout_and_the_address_stores_it(visit: Visit):
    tab = visit.open(address("layout", mesh="dp=2 tp=2", shape="6x5"))
    tab.click("#layout-dp-1")
    tab.click("#layout-tp-copies")
    assert tab.locator("#layout-picker").get_attribute("data-key") == ";dp"
    tab.click("#layout-tp-1")
    tab.click("#layout-order-1")
    assert tab.locator("#layout-picker").get_attribute("data-key") == ";tp,dp"
    tab.click(".device[data-rank='3']")
    assert "rank 3" in tab.locator(".sentence").inner_text()
    address_before = tab.url
    assert "layout=%3Btp%2Cdp" in address_before and "rank=3" in address_before
    tab.reload()
    tab.wait_for_selector("h2")
    assert tab.url == address_before and tab.locator("#layout-picker").get_attribute("data-key") == ";tp,dp"
    tab.click("#tab-move")
    assert tab.locator("h2").inner_text().startswith("How does it get")
    tab.go_back()
    assert tab.locator("h2").inner_text().startswith("Where does")


def test_axes_of_size_one_and_many_dims_can_be_chosen(browser: Any, tmp_path: Path):
    mesh = Mesh((2, 1, 2), ("a", "b", "c"))
    page_path = tmp_path / "own.html"
    offer = Offer((mesh,), ((2, 3, 2, 4, 2),), (2,), programs=(), layouts=(mesh("b", "c", None, None, "a"),))
    page_path.write_text(page(offer), encoding="utf-8")
    visitor = Visit(browser, page_path)
    tab = visitor.open()
    key = lambda: tab.locator("#layout-picker").get_attribute("data-key")  # noqa: E731
    assert key() == "b;c;;;a" and tab.locator(".piece").count() == 4
    tab.click("#layout-a-3")
    assert key() == ";c;;a;" and "[0:2, 0:2, 0:2, 0:2, 0:2]" in tab.locator(".sentence").inner_text()
    assert tab.locator(".piece").count() == 4
    tab.click("#tab-search")
    assert "no search" in tab.locator(".sentence").inner_text()
    visitor.context.close()
    assert not visitor.trouble


def test_keys_step_play_and_change_the_view(visit: Visit):
    tab = visit.open(address("schedule", algorithm="all_reduce ring", n=4))
    position = lambda: int(tab.locator("#player-slider").input_value())  # noqa: E731
    for key, expected in (("ArrowRight", 1), ("ArrowRight", 2), ("ArrowLeft", 1), ("End", 6), ("Home", 0)):
        tab.keyboard.press(key)
        assert position() == expected
    tab.keyboard.press(" ")
    assert "Pause" in tab.locator("#player-play").inner_text() and position() == 1
    tab.wait_for_function("() => Number(document.getElementById('player-slider').value) >= 2")
    tab.keyboard.press(" ")
    assert "Play" in tab.locator("#player-play").inner_text()
    for number, view in enumerate(VIEWS, 1):
        tab.keyboard.press(str(number))
        assert tab.locator(f"#tab-{view}").get_attribute("aria-current") == "page"
    tab.keyboard.press("1")
    tab.locator("#layout-dp-0").focus()
    tab.keyboard.press("ArrowRight")
    focused = "() => [document.activeElement.id, document.activeElement.checked]"
    assert tab.evaluate(focused) == ["layout-dp-copies", True]


def test_an_invalid_address_shows_a_valid_view(visit: Visit):
    visit.open("#nowhere?mesh=7&layout=%3B%3B%3B&step=-4&rank=x")
    assert visit.tab.locator("h2").inner_text().startswith("Where does")
    for view in VIEWS:
        visit.walk(
            [
                address(
                    view,
                    mesh="?",
                    shape="0",
                    layout="q",
                    step="1e9",
                    rank=99,
                    n="-1",
                    strategy="z",
                    operator="?",
                )
            ],
            "() => 0",
        )
