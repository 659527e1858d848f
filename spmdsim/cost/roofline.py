"""Local work of operators and its time; all prices of arithmetic come from here.

The model is the roofline: the slower of arithmetic and memory traffic decides. A calibrated machine has its own rates
for each class of operators, because NumPy's exponentials and temporaries are slower than a product's arithmetic or a
plain copy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spmdsim.core import BoundRule, Strategy
from spmdsim.core.layout import largest_block
from spmdsim.core.notation.rules import ELEMENTS, FUNCTIONS, PASSES, Term, list_factors
from spmdsim.cost.machine import CostModel, Machine, Restricted
from spmdsim.pictured import Pictured

#: The classes of operators.
KINDS = ("product", "lookup", ELEMENTS, FUNCTIONS, PASSES)


@dataclass(frozen=True)
class Work(Pictured):
    """Local work of one rank.

    Attributes:
        flops: floating point operations.
        nbytes: bytes read and written, each operand once.
        kind: the class of operators, one of :data:`KINDS`; "" for any.

    >>> Work(flops=2e9, nbytes=1e6).flops
    2000000000.0
    """

    flops: float
    nbytes: float
    kind: str = ""

    @property
    def intensity(self) -> float:
        """Flops per byte of memory traffic; infinite without traffic."""
        return self.flops / self.nbytes if self.nbytes else float("inf")

    def seconds(self, model: CostModel) -> float:
        """Return the seconds on a machine, or the cost in the unit of a published model."""
        machine = model.model if isinstance(model, Restricted) else model
        if isinstance(machine, Machine):
            return machine.compute_seconds(self.flops, self.nbytes, self.kind)
        return machine.compute_seconds(self.flops, self.nbytes)

    def bound(self, machine: Machine) -> str:
        """Return the resource that limits this work on a machine: ``compute`` or ``memory``.

        >>> Work(2e9, 4e6).bound(Machine.laptop()), Work(1e6, 12e6).bound(Machine.laptop())
        ('compute', 'memory')
        """
        return "compute" if self.intensity >= ridge(machine) else "memory"


def ridge(machine: Machine) -> float:
    """Return the flops per byte above which arithmetic limits a machine.

    They are 0 if memory costs no time.
    """
    return machine.flops * machine.beta_memory


def kind_of(bound: BoundRule) -> str:
    """Return the class of an operator.

    It is ``"product"``, ``"lookup"``, or the class that its rule declares.
    """
    if bound.rule.indexed:
        return "lookup"
    return "product" if bound.contraction else bound.rule.work


def flops_of(bound: BoundRule, sizes: Mapping[str, int] | None = None) -> int:
    """Count the floating-point operations of an operator.

    * A rule with a method ``flops_of`` provides its own count.
    * A look-up of indices: 1 per element of the results.
    * Several operands and a factor that is summed: 2 per combination of indices of all factors. For example,
      ``"m k, k n -> m n"`` has ``2 * m * k * n``.
    * Otherwise 1 per combination. For example, ``"m n -> m"`` has ``m * n``.

    Args:
        bound: the operator's rule.
        sizes: sizes of its factors on one rank; None for the global sizes.
    """
    sizes = bound.sizes if sizes is None else sizes
    if (own_count := getattr(bound, "flops_of", None)) is not None:
        return int(own_count(sizes))
    if bound.rule.indexed:
        return sum(elements(term, sizes) for term in bound.outputs)
    multiply_add = len(bound.inputs) > 1 and bool(bound.reduced[0])
    return (2 if multiply_add else 1) * math.prod(sizes.values())


def elements(term: Term, sizes: Mapping[str, int]) -> int:
    """Return the number of elements of a tensor whose factors have these sizes."""
    return math.prod([sizes[factor] for dim in term for factor in dim])


def forward_work(bound: BoundRule, strategy: Strategy, itemsizes: Sequence[int]) -> Work:
    """Return the work of the busiest rank to compute an operator.

    A look-up touches the rows that it reads, not the table. ``itemsizes`` has the bytes per element of each operand;
    results have the widest.

    >>> from spmdsim.core import Mesh
    >>> from spmdsim.core import Rule, bind
    >>> product = bind(Rule.parse("m k, k n -> m n", linear="each"), ((9, 5), (5, 6)))
    >>> forward_work(product, Strategy.of(Mesh((2,), ("x",)), {"m": "x"}), (4, 4))
    Work(flops=300, nbytes=340, kind='product')
    """
    return _work(bound, strategy, itemsizes, tables=False)


def gradient_work(bound: BoundRule, strategy: Strategy, itemsizes: Sequence[int]) -> Work:
    """Return the work of the busiest rank for gradients of an operator.

    For a product it is the gradient of one operand, for other operators the gradients of all. It is the forward work
    times the factor that the rule declares. But a look-up's gradient is a table, most of it zeros, and all of it is
    written.
    """
    once, times = _work(bound, strategy, itemsizes, tables=True), bound.rule.backward
    return Work(times * once.flops, times * once.nbytes, once.kind)


def _work(bound: BoundRule, strategy: Strategy, itemsizes: Sequence[int], tables: bool) -> Work:
    """Return the operations and bytes of the busiest rank for one run of an operator.

    The busiest rank has the largest block of each factor (named index of the rule). The bytes are those of its
    blocks of operands and results, each counted once. For example, a product of two float32 matrices of 4 x 4,
    of which the first is split by rows on 2 ranks, has 8 + 16 + 8 elements: 128 bytes.

    The results of a look-up count twice, because rows are read and written. Results have the widest element of
    the operands (of a look-up: of the table), or 4 bytes without operands.

    Args:
        bound: the operator's rule.
        strategy: its strategy.
        itemsizes: bytes per element of each operand.
        tables: True to count the bytes of look-up tables, too.
    """
    sizes = {f: largest_block(size, strategy.parts(f)) for f, size in bound.sizes.items()}
    looked_up = [not bound.rule.indexed.isdisjoint(list_factors(term)) for term in bound.inputs]
    widths = [*itemsizes]
    if any(looked_up):  # The results have the element type of the table, not that of the ids.
        widths = [size for size, table in zip(itemsizes, looked_up) if table]
    nbytes = sum(
        size * elements(term, sizes)
        for term, size, table in zip(bound.inputs, itemsizes, looked_up)
        if tables or not table
    )
    moved = sum(elements(term, sizes) for term in bound.outputs) * max(widths, default=4)
    # Rows that are looked up are read and written.
    return Work(flops_of(bound, sizes), nbytes + moved * (2 if any(looked_up) else 1), kind_of(bound))
