"""``show`` finds the picture of every kind of value, and rank 0 alone prints it."""

from __future__ import annotations

import numpy as np
import pytest

from spmdsim import LockStep, Mesh, Tensor, plan, record, show
from spmdsim.collectives import schedule_of
from spmdsim.errors import InputError, UsageTypeError
from spmdsim.figures import figure

MESH = Mesh((2, 4), ("dp", "tp"))


def text_of(capsys, *values):
    """Return the text that `show` prints."""

    show(*values)
    return capsys.readouterr().out


def test_a_layout_shows_its_ranks_and_with_a_shape_its_shards(capsys):
    layout = MESH("tp", "dp")
    assert "dp=1        4:1   5:3   6:5   7:7" in text_of(capsys, layout)
    shards = text_of(capsys, layout, (8, 6))
    assert "| rank 3 | rank 7 |" in shards and "#6" in shards


def test_a_mesh_shows_its_ranks_and_a_tensor_its_shards(capsys):
    assert text_of(capsys, MESH).startswith("dp=2 tp=4\nrank  tp=0  tp=1")
    tensor = Tensor.from_global(np.zeros((8, 6)), MESH("tp", "dp"), LockStep(8))
    text = text_of(capsys, tensor)
    assert text.startswith(repr(tensor)) and "| rank 3 | rank 7 |" in text


def test_a_plan_shows_its_senders_and_receivers(capsys):
    text = text_of(capsys, plan(MESH("dp", "tp"), MESH("tp", "dp"), (8, 8), np.float32))
    assert "= the lower bound" in text and "| 0>1 | 1   | 2>5 | 3>5 |" in text
    reduced = text_of(capsys, plan(MESH("dp", None, partial="tp"), MESH("dp", None), (8, 8), np.float32))
    assert "all_reduce" in reduced and "who sends" not in reduced


def test_a_trace_shows_its_events_and_a_small_schedule_its_rounds(capsys):
    tensor = Tensor.from_global(np.ones((8, 8)), MESH("dp", "tp"), LockStep(8))
    with record() as trace:
        tensor.to(MESH(None, None))
    assert "all_gather" in text_of(capsys, trace)
    ring = text_of(capsys, schedule_of("all_reduce", "ring", 3))
    assert "after round 3" in ring and "●─+2─▶●─+0─▶●" in ring and "rounds          4" in ring
    large_ring = text_of(capsys, schedule_of("all_reduce", "ring", 64))
    assert "after round" not in large_ring and "rounds          126" in large_ring


def test_values_without_a_picture_are_refused(capsys):
    with pytest.raises(UsageTypeError, match="no picture of 3"):
        show(3)
    with pytest.raises(InputError, match="value must be a layout if shape is passed"):
        show(MESH, (3, 4))


def test_each_shard_has_a_colour_in_terminals():
    (text,) = (words for words in figure(MESH("tp", None)).words() if hasattr(words, "spans"))
    assert len({span.style for span in text.spans}) == 4


def test_notebooks_show_plans_and_traces_as_tables():
    class Printer:
        printed = ""

        def text(self, words):
            self.printed += words

    mesh = Mesh((2,), ("a",))
    with record() as trace:
        Tensor.from_global(np.ones(4), mesh("a"), LockStep(2)).to(mesh(None))
    for value in (plan(mesh("a"), mesh(None), (4,), "float32"), trace):
        printer = Printer()
        value._repr_pretty_(printer, cycle=False)
        assert printer.printed == str(value) and "all_gather" in printer.printed and "\n" in printer.printed
