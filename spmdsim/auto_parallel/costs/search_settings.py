"""What a search assumes: the machine, training or not, and how memory is counted."""

from __future__ import annotations

from dataclasses import dataclass, field

from spmdsim.cost.machine import CostModel, Machine
from spmdsim.errors import InputError
from spmdsim.pictured import ShortRepr


@dataclass(frozen=True, repr=False)
class Settings(ShortRepr):
    """The assumptions of a search.

    Nothing overlaps unless ``overlap`` says so: modelled seconds are the sum of computation and communication
    of one rank, one step.

    Attributes:
        machine: the cost model.
        partial: whether sums may stay pending through operators that are linear in all operands.
        full: operators that sum products must use every mesh axis (no repeated computation), as Alpa demands.
        even: whether only strategies whose pieces are all equal are offered; no: uneven ones, too. None: equal pieces
            where some mesh divides the sizes, and uneven ones, too, on up to 16 ranks of a real machine.
        sharded_parameters: parameters may be stored more finely split than they are used (ZeRO, FSDP).
        recompute: activations inside a layer are computed again in the backward pass: their memory is saved,
            their forward computation and communication is paid twice; parameters that are gathered for use are
            gathered twice, too, instead of being kept.
        optimizer_words: elements of optimiser state per element of a parameter: 2 for Adam. They have the parameter's
            size, or four bytes where that has two.
        overlap: share of the gradients' reductions that hides behind the backward computation.
        nested: whether one dim may be split by several axes.
        scatter: whether pending sums may be scattered; otherwise they are reduced on all ranks first.
        scatter_results: whether those of operators' results may; otherwise only those of parameters' gradients.
        exchange: whether the direct exchange is among the redistributions; None: if the machine is a real one.
        tie: repeated layers get the same strategies.
        merge: whether parameters' gradients that reduce alike share messages; None: if the machine is a real one.
        gather: whether tensors may be gathered.
        batch_axis: on a mesh of several axes, the one that must split the batch of every operator that has one.
    """

    machine: CostModel = field(default_factory=Machine.laptop)
    partial: bool = False
    full: bool = False
    even: bool | None = None
    sharded_parameters: bool = False
    recompute: bool = False
    optimizer_words: float = 2.0
    overlap: float = 0.0
    nested: bool = True
    scatter: bool = True
    scatter_results: bool = True
    exchange: bool | None = None
    tie: bool = False
    merge: bool | None = None
    gather: bool = True
    batch_axis: str | None = None

    @property
    def merges(self) -> bool:
        """True if gradients of parameters that are reduced identically share messages."""
        return isinstance(self.machine, Machine) if self.merge is None else self.merge

    def state_bytes(self, itemsize: int) -> float:
        """Return the bytes of optimiser state per element of a parameter.

        The state of a two-byte parameter has four bytes per word.
        """
        return self.optimizer_words * (4 if itemsize == 2 else itemsize)

    def __post_init__(self) -> None:
        if not 0 <= self.overlap <= 1:
            raise InputError(f"overlap is {self.overlap}; it is a share between 0 and 1")
        if self.optimizer_words < 0:
            raise InputError(f"optimizer_words is {self.optimizer_words}; it has to be >= 0")
