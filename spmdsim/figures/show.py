"""``show``: print the figure of a value, or display it in a notebook."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

from spmdsim import printing
from spmdsim.figures.figures import WIDTH, figure
from spmdsim.wrong_calls import explained


@explained
def show(what: object, shape: Sequence[int] | None = None) -> None:
    """Show the figure of a value: a picture in notebooks, text elsewhere; under MPI on rank 0 only.

    Ranks with a log of their own print, too. Values of tensors are not read, and nothing is communicated.

    * a :class:`~spmdsim.Mesh`: the grid of its ranks;
    * a :class:`~spmdsim.Layout`: the grid of ranks, coloured by shard; with a global ``shape``, also the tensor with its
      shards. If a sum is pending, the addends of a shard are numbered, and hatched in notebooks;
    * a :class:`~spmdsim.Tensor`: its layout and shape, as above;
    * a plan (:func:`spmdsim.plan`): its table, and for tensors of one or two dims the boxes that ranks send;
    * a trace (:func:`spmdsim.record`): operators and collectives with their bytes;
    * a schedule (:func:`spmdsim.collectives.make_schedule`): the chunks of each rank after each round, and the
      messages;
    * results of :func:`spmdsim.search`, :func:`spmdsim.simulate` and :func:`spmdsim.check`, machines, topologies,
      predictions, rules, strategies, worlds, and all other values that the package returns, or a list of them.

    Args:
        what: the value.
        shape: global shape, for a layout; None for all other values.

    Raises:
        UsageTypeError: If the value does not belong to the package.
        InputError: If a shape is passed with a value that is not a layout.
        LayoutError: If the layout does not fit the shape.

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
    out = printing.console()
    picture = figure(what, shape)
    if out.is_jupyter:
        _display_html(picture.html)
    else:
        printing.say(*picture.words(min(out.width, WIDTH)))


def _display_html(html: str) -> None:
    page: Any = import_module("IPython.display")  # installed in every notebook
    page.display(page.HTML(html))
