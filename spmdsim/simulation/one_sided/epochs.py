"""Epochs of one rank in a window: the times in which it may access windows of others, or lets others access its own."""

from __future__ import annotations

from dataclasses import dataclass, field

from spmdsim.simulation.data import constants as c
from spmdsim.simulation.data.constants import MPIError
from spmdsim.simulation.findings.problems import ProgramPlace, ranks_text
from spmdsim.simulation.one_sided.operations import WindowOperation

#: Words of the assertions, by the method that accepts them.
_ASSERTIONS = {
    "Fence": ("NOSTORE", "NOPUT", "NOPRECEDE", "NOSUCCEED"),
    "Post": ("NOCHECK", "NOSTORE", "NOPUT"),
    "Start": ("NOCHECK",),
    "Lock": ("NOCHECK",),
    "Lock_all": ("NOCHECK",),
}


def assertion_words(call: str, assertion: int) -> frozenset[str]:
    """Return the words of an assertion, such as {"NOPUT"}.

    Args:
        call: the method that got it, such as "Fence".
        assertion: a sum of MODE_ constants.

    Raises:
        MPIError: If the method does not accept one of the constants.
    """
    words = [word for word in _ASSERTIONS[call] if assertion & getattr(c, f"MODE_{word}")]
    if sum(getattr(c, f"MODE_{word}") for word in words) != assertion:
        allowed = ", ".join(f"MODE_{word}" for word in _ASSERTIONS[call])
        raise MPIError("ERR_ASSERT", f"{call}: assertion must be 0 or a sum of {allowed}, got {assertion}")
    return frozenset(words)


@dataclass(slots=True)
class Opened:
    """An epoch that a rank has opened: the call that opened it, and its assertions."""

    location: ProgramPlace
    words: frozenset[str]


@dataclass(slots=True)
class RankEpochs:
    """Open epochs of one rank in a window, and its calls that are not complete.

    Attributes:
        fence: the epoch that the last Fence opened, or None.
        start: the epoch of Start, or None; ``targets``: the ranks of its group.
        post: the epoch of Post, or None; ``origins``: the ranks of its group that have not called Complete.
        locks: the locks that the rank holds, by target.
        lock_all: the epoch of Lock_all, or None.
        open_calls: calls whose data has not arrived, in order.
    """

    fence: Opened | None = None
    start: Opened | None = None
    targets: tuple[int, ...] = ()
    post: Opened | None = None
    origins: set[int] = field(default_factory=set)
    locks: dict[int, Opened] = field(default_factory=dict)
    lock_all: Opened | None = None
    open_calls: list[WindowOperation] = field(default_factory=list)

    def check_access(self, name: str, target: int) -> None:
        """Raise an MPI error (ERR_RMA_SYNC) if the rank has no epoch in which it may access a target.

        Args:
            name: the call, such as "Put".
            target: the target, a rank in the window.
        """
        if self.lock_all or target in self.locks or (self.start and target in self.targets):
            return
        if self.start is not None:
            reason = f"the group of {self.start.location} does not have rank {target}"
        elif self.locks:
            reason = f"it has locked {ranks_text(self.locks)} only, at {self.first_lock().where}"
        elif self.fence is None:
            reason = "call Fence, Start or Lock first"
        else:
            return
        raise MPIError(
            "ERR_RMA_SYNC", f"{name} needs an epoch in which rank {target} may be accessed: {reason}"
        )

    def check_passive(self, name: str, target: int | None) -> None:
        """Raise an MPI error (ERR_RMA_SYNC) unless the rank has locked a target, or any if it is None."""
        locked = self.locks if target is None else target in self.locks
        if not (locked or self.lock_all):
            which = "a rank" if target is None else f"rank {target}"
            raise MPIError("ERR_RMA_SYNC", f"{name} needs a lock of {which}: call Lock or Lock_all first")

    def first_lock(self) -> ProgramPlace:
        """Return the place of the first lock that the rank holds."""
        return next(iter(self.locks.values())).location

    def find_open(self, passive: bool) -> str:
        """Return a clause on an open epoch, such as "the lock of Lock at a.py:7 needs Unlock first".

        An epoch of Fence is open only if it has calls that are not complete. The text is empty if no epoch is open.

        Args:
            passive: False to leave out locks and the epoch of Fence.
        """
        if self.start is not None:
            return f"the epoch of {self.start.location} needs Complete first"
        if self.post is not None:
            return f"the epoch of {self.post.location} needs Wait first"
        if not passive:
            return ""
        if self.locks or self.lock_all:
            location = self.lock_all.location if self.lock_all else self.first_lock()
            return f"the lock of {location} needs {'Unlock_all' if self.lock_all else 'Unlock'} first"
        if self.open_calls:
            return f"{self.open_calls[0].location} is not complete: it needs Fence first"
        return ""

    def check_closed(self, name: str, passive: bool = True) -> None:
        """Raise an MPI error (ERR_RMA_SYNC) if an epoch is open that a call does not allow.

        Args:
            name: the call, such as "Free".
            passive: False if the call allows locks and the epoch of Fence.
        """
        reason = self.find_open(passive)
        if reason:
            raise MPIError("ERR_RMA_SYNC", f"{name} must be called outside of an epoch, but {reason}")
