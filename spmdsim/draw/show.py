"""``show``: what a value looks like: a picture in notebooks, in colour on terminals, as text elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias

from spmdsim.core import Layout, Mesh
from spmdsim.draw.figures import figure_of
from spmdsim.draw.layout_picture import Picture, mesh_grid, rank_grid
from spmdsim.draw.shard_picture import tensor_pieces
from spmdsim.errors import InputError
from spmdsim.wrong_calls import explained

if TYPE_CHECKING:
    from rich.text import Text

    from spmdsim.collectives.schedule import Schedule
    from spmdsim.redistribution.planner import Plan

#: What is printed: a picture of a layout, other lines with colours, plain lines.
Part: TypeAlias = "Picture | Text | str"

WIDTH = 100
"""Characters of a picture where no terminal says how wide it is."""

MOST_RANKS = 20
"""Larger schedules are told by their counts."""


@explained
def show(what: object, shape: Sequence[int] | None = None) -> None:
    """Show what a value looks like: a picture in notebooks, text elsewhere; under MPI on rank 0 only.

    * a :class:`~spmdsim.Mesh`: the grid of its ranks;
    * a :class:`~spmdsim.Layout`: the grid of ranks, coloured by their shards, and with a global ``shape`` the
      tensor with its shards; where a sum is pending, the addends of a shard are numbered, and hatched in notebooks;
    * a :class:`~spmdsim.Tensor`: the same, of its layout and shape;
    * a plan (:func:`spmdsim.plan`): its table, and for tensors of one or two dims who sends which box to whom;
    * a trace (:func:`spmdsim.record`): operators and collectives with their bytes;
    * a schedule (:func:`spmdsim.collectives.make_schedule`): who holds what after each round, and the messages;
    * what :func:`spmdsim.search`, :func:`spmdsim.simulate` and :func:`spmdsim.check` return, machines, topologies,
      predictions, rules, strategies, worlds: everything that the package returns, or a list of it.

    Args:
        what: the value.
        shape: global shape, for a layout.

    Raises:
        UsageTypeError: the value is not the package's.

    >>> show(Mesh((2, 2), ("dp", "tp"))("tp"), (5,))
    [tp] over dp=2 tp=2
    rank:shard  tp=0  tp=1
    dp=0        0:0   1:1
    dp=1        2:0   3:1
    <BLANKLINE>
    columns: dim 0; not to scale
          0           3           5
          +-----------+-----------+
          |     #0    |     #1    |
          | ranks 0,2 | ranks 1,3 |
          +-----------+-----------+
    """
    from rich.text import Text

    from spmdsim.cli.output import console, in_encoding_of

    if shape is not None and not isinstance(what, Layout):
        raise InputError(f"a shape goes with a layout, but {type(what).__name__} was given with {shape}")
    out = console()
    options = {} if shape is None else {"shape": shape}
    if out.is_jupyter:
        return _in_notebook(figure_of(what, **options).html())
    texts = []
    for part in _pictures(what, shape, min(out.width, WIDTH)):
        if isinstance(part, Picture):
            part = part.rich() if out.is_terminal else part.plain()
        texts.append(Text(part) if isinstance(part, str) else part)
    whole = Text("\n").join(texts)
    if in_encoding_of(out.file, whole.plain) != whole.plain:  # a terminal without these letters
        whole = Text(in_encoding_of(out.file, whole.plain))
    out.print(whole, soft_wrap=True)


def _in_notebook(html: str) -> None:
    page: Any = import_module("IPython.display")  # a notebook has it
    page.display(page.HTML(html))


def _pictures(what: object, shape: Sequence[int] | None, width: int) -> Iterator[Part]:
    from spmdsim.collectives.schedule import Schedule
    from spmdsim.redistribution.planner import Plan
    from spmdsim.tensor import Tensor
    from spmdsim.trace.recorder import Trace

    if isinstance(what, Mesh):
        yield from (str(what), mesh_grid(what, width))
    elif isinstance(what, Layout):
        yield from _layout(what, shape, width)
    elif isinstance(what, Tensor):
        yield repr(what)
        yield from _layout(what.layout, what.shape, width)
    elif isinstance(what, Plan):
        yield from _plan(what)
    elif isinstance(what, Trace):
        yield str(what)
    elif isinstance(what, Schedule):
        yield from _schedule(what)
    else:
        yield text_of(what)


def text_of(what: object) -> str:
    """A value as text: its own words where it has some of several lines, else what its figure says."""
    figure = figure_of(what)
    words = str(what)
    return words if "\n" in words and words != repr(what) else figure.text()


def _layout(layout: Layout, shape: Sequence[int] | None, width: int) -> Iterator[Part]:
    yield str(layout)
    yield rank_grid(layout, width)
    if shape is not None:
        yield ""
        yield tensor_pieces(layout, shape, width)


def _plan(plan: Plan) -> Iterator[Part]:
    from spmdsim.draw.plan_figures import moving_words, transfers_picture

    yield str(plan)
    moves = plan.src.partial == plan.dst.partial and plan.to_shape is None
    if moves and (picture := transfers_picture(plan.src, plan.dst, plan.shape)) is not None:
        yield f"\nwho sends what to whom (sender>receiver){moving_words(plan)}:"
        yield picture


def _schedule(schedule: Schedule) -> Iterator[Part]:
    from spmdsim.collectives.facts import facts_of
    from spmdsim.collectives.history import unroll
    from spmdsim.draw.schedule_figures import (
        fact_lines,
        highlighted,
        message_lines,
        state_legend,
        state_lines,
    )

    yield schedule.name
    if schedule.size > MOST_RANKS:
        yield "\n".join(fact_lines(facts_of(schedule)))
        return
    story = unroll(schedule)
    if story.states:
        yield state_legend(schedule)
    for index in range(len(story.states)):
        yield highlighted([*state_lines(story, index), ""])
    yield highlighted([*message_lines(story), ""])
    if not story.findings:
        yield "\n".join(fact_lines(facts_of(schedule)))
