"""``show`` finds the picture of every kind of value, and rank 0 alone prints it."""

from __future__ import annotations

import numpy as np
import pytest

from spmdsim import LockStep, Mesh, Tensor, plan, record, show
from spmdsim.collectives import schedule_of
from spmdsim.errors import InputError, UsageTypeError

MESH = Mesh((2, 4), ("dp", "tp"))


def shown(capsys, *what):
    show(*what)
    return capsys.readouterr().out


def test_a_layout_has_ranks_and_with_a_shape_pieces(capsys):
    layout = MESH("tp", "dp")
    assert "dp=1        4:1   5:3   6:5   7:7" in shown(capsys, layout)
    pieces = shown(capsys, layout, (8, 6))
    assert "| rank 3 | rank 7 |" in pieces and "#6" in pieces


def test_a_mesh_and_a_tensor(capsys):
    assert shown(capsys, MESH).startswith("dp=2 tp=4\nrank  tp=0  tp=1")
    tensor = Tensor.from_global(np.zeros((8, 6)), MESH("tp", "dp"), LockStep(8))
    told = shown(capsys, tensor)
    assert told.startswith(repr(tensor)) and "| rank 3 | rank 7 |" in told


def test_a_plan_draws_who_sends_what(capsys):
    told = shown(capsys, plan(MESH("dp", "tp"), MESH("tp", "dp"), (8, 8), np.float32))
    assert "= the lower bound" in told and "| 0>1 | 1   | 2>5 | 3>5 |" in told
    reduced = shown(capsys, plan(MESH("dp", None, partial="tp"), MESH("dp", None), (8, 8), np.float32))
    assert "all_reduce" in reduced and "who sends" not in reduced


def test_a_trace_and_a_schedule(capsys):
    tensor = Tensor.from_global(np.ones((8, 8)), MESH("dp", "tp"), LockStep(8))
    with record() as trace:
        tensor.to(MESH(None, None))
    assert "all_gather" in shown(capsys, trace)
    ring = shown(capsys, schedule_of("all_reduce", "ring", 3))
    assert "after round 3" in ring and "●─+2─▶●─+0─▶●" in ring and "rounds          4" in ring
    many = shown(capsys, schedule_of("all_reduce", "ring", 64))
    assert "after round" not in many and "rounds          126" in many


def test_what_has_no_picture(capsys):
    with pytest.raises(UsageTypeError, match="no picture of 3"):
        show(3)
    with pytest.raises(InputError, match="value must be a layout if shape is passed"):
        show(MESH, (3, 4))


def test_notebooks_get_colours(monkeypatch):
    from spmdsim.figures.layout_picture import rank_grid

    text = rank_grid(MESH("tp", None)).rich()
    assert len({span.style for span in text.spans}) == 4


def test_notebooks_show_plans_and_traces_as_tables():
    class Printer:
        shown = ""

        def text(self, words):
            self.shown += words

    mesh = Mesh((2,), ("a",))
    with record() as trace:
        Tensor.from_global(np.ones(4), mesh("a"), LockStep(2)).to(mesh(None))
    for value in (plan(mesh("a"), mesh(None), (4,), "float32"), trace):
        printer = Printer()
        value._repr_pretty_(printer, cycle=False)
        assert printer.shown == str(value) and "all_gather" in printer.shown and "\n" in printer.shown
