"""The assumptions of a search: the machine, training or not, and how memory is counted."""

from __future__ import annotations

from dataclasses import dataclass, field

from spmdsim.cost.machine import CostModel, Machine
from spmdsim.errors import InputError
from spmdsim.pictured import ShortRepr


@dataclass(frozen=True, repr=False)
class Settings(ShortRepr):
    """The assumptions of a search.

    Unless ``overlap`` is set, nothing overlaps: modelled seconds are the sum of computation and communication of one
    rank in one step. A "real machine" is a :class:`~spmdsim.cost.machine.Machine`, unlike a published cost model.

    Attributes:
        machine: the cost model.
        partial: True if sums may stay pending through operators that are linear in all operands.
        full: True if operators that sum products must use every mesh axis (no repeated computation), as in Alpa.
        even: True if all blocks must have equal sizes, False if blocks may differ by one element. None: equal sizes
            if some mesh divides the dims, and also uneven blocks on up to 16 ranks of a real machine.
        sharded_parameters: True if parameters may be stored with finer splits than they are used (ZeRO, FSDP).
        recompute: True if activations inside a layer are computed again in the backward pass. This saves their
            memory and doubles their forward computation and communication. Parameters that are gathered for use are
            gathered twice, too, instead of being stored.
        optimizer_words: elements of optimiser state per element of a parameter: 2 for Adam. An element has the
            parameter's itemsize, or four bytes if that is two.
        overlap: share of the gradients' reductions that overlaps with the backward computation, 0 to 1.
        nested: True if several axes may split one dim.
        scatter: True if pending sums may be scattered; otherwise they are reduced on all ranks first.
        scatter_results: True if pending sums of operators' results may be scattered; otherwise only those of
            parameters' gradients.
        exchange: True if redistributions may use the direct exchange; None: if the machine is real.
        tie: True if repeated layers get equal strategies.
        merge: True if parameters' gradients with equal reductions share messages; None: if the machine is real.
        gather: True if tensors may be gathered.
        batch_axis: on a mesh of several axes, the axis that must split the batch of every operator that has one;
            None: any axis may.
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
