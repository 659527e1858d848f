"""``show``: print or display the figure of a value."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

from spmdsim.figures.figures import WIDTH, figure
from spmdsim.wrong_calls import explained


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

    >>> from spmdsim.core import Mesh
    >>> show(Mesh((2, 2), ("dp", "tp"))("tp"), (5,))
    [tp] over dp=2 tp=2
    rank:shard  tp=0  tp=1
    dp=0        0:0   1:1
    dp=1        2:0   3:1
    <BLANKLINE>
    columns: dim 0; not scaled
          0           3           5
          +-----------+-----------+
          |     #0    |     #1    |
          | ranks 0,2 | ranks 1,3 |
          +-----------+-----------+
    """
    from spmdsim.cli.output import console, say

    out = console()
    picture = figure(what, shape)
    if out.is_jupyter:
        _in_notebook(picture.html)
    else:
        say(*picture.words(min(out.width, WIDTH)))


def _in_notebook(html: str) -> None:
    page: Any = import_module("IPython.display")  # a notebook has it
    page.display(page.HTML(html))
