"""What an operator does locally, and its time: the one price of arithmetic.

The roofline: the slower of the arithmetic and of the bytes touched. A calibrated machine has rates of its own for each
class of operators, since numpy's exponentials and temporaries are slower than a product's arithmetic or a plain copy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spmdsim.core import BoundRule, Strategy
from spmdsim.core.layout import largest_block
from spmdsim.core.notation.rules import ELEMENTS, FUNCTIONS, PASSES, Term, members
from spmdsim.cost.machine import CostModel, Machine, Restricted
from spmdsim.pictured import Pictured

#: The classes of operators.
KINDS = ("product", "lookup", ELEMENTS, FUNCTIONS, PASSES)


@dataclass(frozen=True)
class Work(Pictured):
    """The local work of one rank: flops and bytes.

    Attributes:
        flops: floating point operations.
        nbytes: bytes read and written, each operand once.
        kind: the class of operators, as :func:`kind_of` says; "" for any.

    >>> Work(flops=2e9, nbytes=1e6).flops
    2000000000.0
    """

    flops: float
    nbytes: float
    kind: str = ""

    @property
    def intensity(self) -> float:
        """The flops per byte of memory traffic; infinite without traffic."""
        return self.flops / self.nbytes if self.nbytes else float("inf")

    def seconds(self, model: CostModel) -> float:
        """Return the time on a machine, or the cost in a published model's unit."""
        machine = model.model if isinstance(model, Restricted) else model
        if isinstance(machine, Machine):
            return machine.compute_seconds(self.flops, self.nbytes, self.kind)
        return machine.compute_seconds(self.flops, self.nbytes)

    def bound(self, machine: Machine) -> str:
        """Return the limit of this work on a machine: ``compute`` or ``memory``.

        >>> Work(2e9, 4e6).bound(Machine.laptop()), Work(1e6, 12e6).bound(Machine.laptop())
        ('compute', 'memory')
        """
        return "compute" if self.intensity >= ridge(machine) else "memory"


def ridge(machine: Machine) -> float:
    """Return the flops per byte above which arithmetic limits a machine; 0 if memory costs nothing."""
    return machine.flops * machine.beta_memory


def kind_of(bound: BoundRule) -> str:
    """Return the class of an operator: ``"product"``, ``"lookup"``, or the class that its rule declares."""
    return "lookup" if bound.rule.indexed else "product" if bound.contraction else bound.rule.work


def flops_of(bound: BoundRule, sizes: Mapping[str, int] | None = None) -> int:
    """Count floating-point operations: one per point, two if operands are multiplied and summed; one per look-up result.

    Of a piece, whose factors have these sizes, if they are given. Rules of functions that nobody can look into say it
    themselves.
    """
    sizes = bound.sizes if sizes is None else sizes
    if (own := getattr(bound, "flops_of", None)) is not None:
        return int(own(sizes))
    if bound.rule.indexed:
        return sum(elements(term, sizes) for term in bound.outputs)
    multiply_add = len(bound.inputs) > 1 and bool(bound.reduced[0])
    return (2 if multiply_add else 1) * math.prod(sizes.values())


def elements(term: Term, sizes: Mapping[str, int]) -> int:
    """Return the number of elements of a tensor whose factors have these sizes."""
    return math.prod([sizes[factor] for dim in term for factor in dim])


def forward_work(bound: BoundRule, strategy: Strategy, itemsizes: Sequence[int]) -> Work:
    """Return the work of the busiest rank to compute an operator.

    A look-up touches the rows it finds, not the table. ``itemsizes``: bytes per element of each operand; results have the
    widest.

    >>> from spmdsim.core import Mesh
    >>> from spmdsim.core import Rule, bind
    >>> product = bind(Rule.parse("m k, k n -> m n", linear="each"), ((9, 5), (5, 6)))
    >>> forward_work(product, Strategy.of(Mesh((2,), ("x",)), {"m": "x"}), (4, 4))
    Work(flops=300, nbytes=340, kind='product')
    """
    return _work(bound, strategy, itemsizes, tables=False)


def gradient_work(bound: BoundRule, strategy: Strategy, itemsizes: Sequence[int]) -> Work:
    """Return the busiest rank's work for the gradient of one operand of a product, or of all operands of another operator.

    That is as much as forward, or as often as much as the rule says; but a look-up's gradient is a table, most of it
    zeros.
    """
    once, times = _work(bound, strategy, itemsizes, tables=True), bound.rule.backward
    return Work(times * once.flops, times * once.nbytes, once.kind)


def _work(bound: BoundRule, strategy: Strategy, itemsizes: Sequence[int], tables: bool) -> Work:
    sizes = {f: largest_block(size, strategy.parts(f)) for f, size in bound.sizes.items()}
    looked_up = [not bound.rule.indexed.isdisjoint(members(term)) for term in bound.inputs]
    widths = [*itemsizes]
    if any(looked_up):  # entries come out as they are in the table, whatever the ids are
        widths = [size for size, table in zip(itemsizes, looked_up) if table]
    nbytes = sum(
        size * elements(term, sizes)
        for term, size, table in zip(bound.inputs, itemsizes, looked_up)
        if tables or not table
    )
    moved = sum(elements(term, sizes) for term in bound.outputs) * max(widths, default=4)
    # What is looked up is read and written.
    return Work(flops_of(bound, sizes), nbytes + moved * (2 if any(looked_up) else 1), kind_of(bound))
