"""Pictures of schedules have a legend, and their ranges cannot be read as subtractions."""

from __future__ import annotations

import re

import pytest
from page_schedules import read_page

from spmdsim import Mesh, show
from spmdsim.cli.main import main
from spmdsim.collectives import schedule_of, unroll
from spmdsim.figures import figure
from spmdsim.figures.explore import Offer, page

MINUS = re.compile(r"\d-\d")


def numbers(words: str, size: int) -> set[int]:
    """Return the numbers that words stand for by the rules of the legend."""
    if words == "∑":
        return {*range(size)}
    members: set[int] = set()
    for term in re.split(r"[+,]", words):
        first, _, last = term.partition("..")
        members |= {*range(int(first), int(last or first) + 1)}
    return members


@pytest.mark.parametrize(
    ("collective", "name", "size"),
    [("all_reduce", "ring", 7), ("all_reduce", "rabenseifner", 8), ("all_gather", "bruck", 8), ("reduce", "binomial", 8)],
)  # fmt: skip
def test_words_stand_for_the_ranks_and_chunks_that_they_name(collective, name, size):
    story = unroll(schedule_of(collective, name, size))
    image = figure(story).svg
    named_ranks = {
        (int(rank), int(chunk), () if text in ("nothing", "·") else tuple(sorted(numbers(text, size))))
        for rank, chunk, text in re.findall(r"<title>rank (\d+), chunk (\d+): ([^<]*)</title>", image)
    }
    assert named_ranks == {
        (rank, chunk, tuple(sorted(story.contributors(values[chunk]))) if chunk in values else ())
        for state in story.states
        for rank, values in enumerate(state.holds)
        for chunk in story.cells
    }
    labels = re.findall(r"<title>\d+ → \d+: chunk[^<]*</title>([^<]*)</text>", image)
    messages = [message for step in story.steps for message in step]
    assert len(labels) == len(messages)
    for text, message in zip((label.lstrip("+") for label in labels), messages):
        if text and "chunks" not in text:
            assert numbers(text, size) == {*message.chunks}, text


def test_values_on_the_page_have_no_minus():
    data = read_page(page(Offer((Mesh((2,), ("x",)),), ((1,),), ranks=(7, 8), programs=())))
    texts = [
        text
        for schedule in data["schedules"]
        for facts in schedule["ranks"].values()
        for text, _ in facts["values"]
    ]
    assert "0..2" in texts and not any(map(MINUS.search, texts))


def test_pictures_text_and_command_have_a_legend(capsys):
    ring = schedule_of("all_reduce", "ring", 4)
    image = re.sub(r"<style>.*?</style>|<[^>]*>", " ", figure(ring).svg, flags=re.DOTALL)
    show(ring)
    text = capsys.readouterr().out
    assert main(["collective", "show", "all_reduce", "rabenseifner", "-n", "8"]) == 0
    command = capsys.readouterr().out
    for output in (image, text, command):
        assert "0..2 is 0+1+2" in output and "4..7 is 4, 5, 6, 7" in output and not MINUS.search(output)
    assert "[0..2]" in text and "[1..3]" in text and "+4..7" in command and "0..7  " in command


def test_a_title_names_the_library_of_the_order_of_chunks(capsys):
    assert schedule_of("all_reduce", "ring", 4).name == "all_reduce ring on 4 ranks, chunks in MPICH's order"
    other = schedule_of("all_reduce", "ring", 4, index="openmpi")
    assert other.name == "all_reduce ring on 4 ranks, chunks in Open MPI's order"


@pytest.mark.parametrize(
    ("collective", "name", "size"),
    [
        ("all_reduce", "ring", 12), ("all_reduce", "ring", 64), ("all_reduce", "segmented_ring", 8),
        ("all_reduce", "rabenseifner", 16), ("all_reduce", "linear", 32), ("reduce_scatter", "pairwise", 16),
        ("broadcast", "chain", 48), ("reduce", "pipelined_chain", 24),
    ],
)  # fmt: skip
def test_schedules_of_many_ranks_have_a_picture(collective, name, size):
    """A picture that would be too large with all chunks has none, and a note."""
    schedule = schedule_of(collective, name, size)
    drawn = figure(schedule)
    arrows = drawn.svg.count('class="arrow"')
    assert arrows or "too many for arrows" in drawn.notes[0]
    if arrows and "a chunk, with its number" not in drawn.svg:
        assert drawn.notes[-1] == "too many chunks to draw: arrows show the messages alone"


def test_a_legend_has_no_chunk_colours_without_chunks():
    assert "first chunk's colour" in figure(schedule_of("all_reduce", "ring", 4)).svg.replace("&#x27;", "'")
    assert "first chunk" not in figure(schedule_of("all_reduce", "recursive_doubling", 4)).svg
