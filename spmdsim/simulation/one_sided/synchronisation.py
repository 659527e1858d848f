"""Open and close epochs: Fence, Post, Start, Complete, Wait, Lock, Unlock, Flush and Sync."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from spmdsim.simulation.data.constants import LOCK_EXCLUSIVE, LOCK_SHARED, MPIError
from spmdsim.simulation.engine.mailboxes import wait_for
from spmdsim.simulation.engine.scheduler import Task
from spmdsim.simulation.findings.problems import ERROR, Problem
from spmdsim.simulation.one_sided.causal_order import merge
from spmdsim.simulation.one_sided.data_calls import apply_all, complete, report_assertion
from spmdsim.simulation.one_sided.epochs import Opened, assertion_words
from spmdsim.simulation.one_sided.times import round_trip
from spmdsim.simulation.one_sided.waits import WindowWait
from spmdsim.simulation.one_sided.window_state import WindowState


class RankSynchronisation:
    """The synchronisation calls of one rank in a window.

    Args:
        window: the window.
        rank: the rank in the window.
    """

    def __init__(self, window: WindowState, rank: int) -> None:
        self.window, self.rank = window, rank
        self.task: Task = window.scheduler.tasks[window.ranks[rank]]
        self.epochs = window.epochs[rank]

    def _open(self, call: str, assertion: int) -> Opened:
        """Return the epoch that the running call opens."""
        return Opened(self.window.place_in_run(self.task), assertion_words(call, assertion))

    # ------------------------------------------------------------------ Fence

    def begin_fence(self, assertion: int) -> Opened:
        """Complete the calls of this rank before it waits for the others; return the epoch that Fence opens.

        Args:
            assertion: the assertion of Fence.

        Raises:
            MPIError: If the rank holds a lock, or is in an epoch of Post or Start.
        """
        opened = self._open("Fence", assertion)
        self.epochs.check_closed("Fence", passive=False)
        if self.epochs.locks or self.epochs.lock_all:
            self.epochs.check_closed("Fence")
        if "NOPRECEDE" in opened.words and self.epochs.open_calls:
            first = self.epochs.open_calls[0].location
            report_assertion(self.window, "NOPRECEDE", opened.location, first, "the epoch that it closes has")
        complete(self.window, self.rank, None, apply=False)
        self._check_no_store(opened)
        self.epochs.fence = opened
        return opened

    def _check_no_store(self, opened: Opened) -> None:
        """Add an error if the rank asserts MODE_NOSTORE, but has stored to its window since its last epoch.

        Args:
            opened: the epoch that the rank opens.
        """
        for region in self.window.exposed[self.rank].regions:
            store = region.take_store(self.task)
            if store is not None and "NOSTORE" in opened.words:
                phrase = f"rank {self.task.rank} stores to its window before"
                report_assertion(self.window, "NOSTORE", opened.location, store.where, phrase)

    # ------------------------------------------------------------------ Post, Start, Complete, Wait

    def post(self, origins: Sequence[int], assertion: int) -> None:
        """Let some ranks access the window of this rank.

        Args:
            origins: these ranks in the window.
            assertion: the assertion of Post.

        Raises:
            MPIError: If the epoch of an earlier Post is open.
        """
        opened = self._open("Post", assertion)
        if self.epochs.post is not None:
            raise MPIError(
                "ERR_RMA_SYNC", f"Post must follow Wait, but {self.epochs.find_open(passive=False)}"
            )
        self._check_no_store(opened)
        past = self.window.scheduler.order.release(self.task)
        self.epochs.post, self.epochs.origins = opened, set(origins)
        for origin in origins:
            self.window.posts.setdefault((self.rank, origin), deque()).append((past, self.task.clock))
        self.window.wake_waiting()

    def start(self, targets: Sequence[int], assertion: int) -> None:
        """Wait until some ranks have called Post for this rank, and open the epoch.

        Args:
            targets: these ranks in the window.
            assertion: the assertion of Start.

        Raises:
            MPIError: If an epoch of this rank is open that Start does not allow.
        """
        opened = self._open("Start", assertion)
        epochs = self.epochs
        if epochs.start or epochs.locks or epochs.lock_all or epochs.open_calls:
            epochs.check_closed("Start")
        epochs.fence = None
        missing = self._missing(self.window.posts, targets)
        if "NOCHECK" in opened.words and missing:
            text = f"rank {self.task.rank} asserts MODE_NOCHECK in {opened.location}, but rank {missing[0]} has not called Post"
            self._add_problem("wrong_assertion", text, missing[0], opened)
        self._wait_for("Start", self.window.posts, targets, "calls Post for it")
        self.epochs.start, self.epochs.targets = opened, tuple(targets)

    def complete(self) -> None:
        """Complete the calls of the epoch of Start, and tell its targets.

        Raises:
            MPIError: If there is no such epoch.
        """
        if self.epochs.start is None:
            raise MPIError("ERR_RMA_SYNC", "Complete needs an epoch: call Start first")
        complete(self.window, self.rank, self.epochs.targets)
        past = self.window.scheduler.order.release(self.task)
        for target in self.epochs.targets:
            key = (self.rank, target)
            self.window.completions.setdefault(key, deque()).append((past, self.task.clock))
        self.epochs.start, self.epochs.targets = None, ()
        self.window.wake_waiting()

    def wait(self) -> None:
        """Wait until all ranks of the group of Post have called Complete, and close the epoch.

        Raises:
            MPIError: If there is no such epoch.
        """
        self._check_posted("Wait")
        self._wait_for("Wait", self.window.completions, sorted(self.epochs.origins), "calls Complete")
        self.epochs.post, self.epochs.origins = None, set()

    def test(self) -> bool:
        """Close the epoch of Post and return True if all ranks of its group have called Complete; else False.

        Raises:
            MPIError: If there is no such epoch.
        """
        self._check_posted("Test")
        origins = sorted(self.epochs.origins)
        if self._missing(self.window.completions, origins):
            waiting = self._make_wait("Test", self.window.completions, origins, "calls Complete")
            self.window.scheduler.poll(waiting)
        if self._missing(self.window.completions, origins):
            return False
        self.wait()
        return True

    def _check_posted(self, name: str) -> None:
        if self.epochs.post is None:
            raise MPIError("ERR_RMA_SYNC", f"{name} needs an epoch: call Post first")

    def _missing(self, arrived: dict[tuple[int, int], deque[Any]], ranks: Sequence[int]) -> list[int]:
        """Return those of some ranks, as ranks of the program, whose Post or Complete has not come."""
        return [self.window.ranks[rank] for rank in ranks if not arrived.get((rank, self.rank))]

    def _make_wait(self, name: str, arrived: Any, ranks: Sequence[int], missing: str) -> WindowWait:
        return WindowWait(self.window, self.task, name, "", lambda: self._missing(arrived, ranks), missing)

    def _wait_for(self, name: str, arrived: Any, ranks: Sequence[int], missing: str) -> None:
        """Block until the Post or Complete of each of some ranks has come, and use them up.

        Args:
            name: the running call, such as "Start".
            arrived: the posts or completions of the window.
            ranks: ranks in the window.
            missing: the action for which the rank waits, such as "calls Complete".
        """
        waiting = self._make_wait(name, arrived, ranks, missing)
        if self._missing(arrived, ranks):
            self.window.waiting.append(waiting)
            wait_for(self.window.scheduler, waiting)
        for rank in ranks:
            past, clock = arrived[rank, self.rank].popleft()
            self.window.scheduler.order.acquire(self.task, past)
            self.task.clock = max(self.task.clock, clock)
        self.task.reset_counts()

    def _add_problem(self, kind: str, text: str, other: int, opened: Opened) -> None:
        ranks = tuple(sorted({self.task.rank, other}))
        self.window.scheduler.problems.append(Problem(kind, ERROR, text, ranks, (opened.location,)))

    # ------------------------------------------------------------------ Lock, Unlock

    def lock(self, target: int, kind: int, assertion: int) -> None:
        """Wait for the lock of a rank's window.

        Args:
            target: the rank in the window.
            kind: LOCK_EXCLUSIVE or LOCK_SHARED.
            assertion: the assertion of Lock.

        Raises:
            MPIError: If the kind of lock does not exist, or an epoch of another kind is open.
        """
        if kind not in (LOCK_EXCLUSIVE, LOCK_SHARED):
            raise MPIError(
                "ERR_LOCKTYPE", f"Lock: lock_type must be LOCK_EXCLUSIVE or LOCK_SHARED, got {kind}"
            )
        opened = self._open("Lock", assertion)
        self._check_lockable("Lock")
        if target in self.epochs.locks:
            self._fail_locked_twice(target, opened)
        self._acquire("Lock", target, kind, opened)
        self.epochs.locks[target] = opened

    def lock_all(self, assertion: int) -> None:
        """Wait for a shared lock of the windows of all ranks.

        Args:
            assertion: the assertion of Lock_all.

        Raises:
            MPIError: If an epoch is open.
        """
        opened = self._open("Lock_all", assertion)
        self._check_lockable("Lock_all")
        if self.epochs.locks:
            self.epochs.check_closed("Lock_all")
        for target in range(len(self.window.ranks)):
            self._acquire("Lock_all", target, LOCK_SHARED, opened)
        self.epochs.lock_all = opened

    def _check_lockable(self, name: str) -> None:
        """Raise an MPI error if the rank is in an epoch that excludes locks. End the epoch of an unused Fence."""
        if self.epochs.lock_all or self.epochs.start or (self.epochs.fence and self.epochs.open_calls):
            self.epochs.check_closed(name)
        self.epochs.fence = None

    def _fail_locked_twice(self, target: int, opened: Opened) -> None:
        """End the run with a deadlock: a rank that locks a window twice waits for itself.

        Args:
            target: the rank whose window it locks.
            opened: the epoch that the second lock would open.
        """
        first = self.epochs.locks[target].location
        rank = self.task.rank
        text = (
            f"rank {rank} waits for itself in {opened.location}: it has locked rank {target} with {first}, "
            "and must call Unlock first"
        )
        self.window.scheduler.fail(
            Problem("deadlock", ERROR, text, (rank,), (opened.location, first), (rank,))
        )

    def _acquire(self, name: str, target: int, kind: int, opened: Opened) -> None:
        """Wait for one lock.

        Args:
            name: the running call, such as "Lock".
            target: the rank in the window.
            kind: LOCK_EXCLUSIVE or LOCK_SHARED.
            opened: the epoch that the call opens.
        """
        window, lock = self.window, self.window.locks[target]
        argument = f"rank={target}" if name == "Lock" else ""
        if "NOCHECK" in opened.words and lock.excludes(kind):
            holder = window.ranks[next(iter(lock.holders))]
            text = f"rank {self.task.rank} asserts MODE_NOCHECK in {opened.location}, but {self._describe_holder(target)}"
            self._add_problem("wrong_assertion", text, holder, opened)
        waiting = WindowWait(
            window, self.task, name, argument, lambda: [window.ranks[rank] for rank in lock.holders],
            "unlocks it", lambda: self._describe_holder(target),
        )  # fmt: skip
        lock.request(self.rank, kind, waiting)
        wait_for(window.scheduler, waiting)
        window.scheduler.order.acquire(self.task, lock.seen_by(kind))
        self.task.clock = max(self.task.clock, lock.free_at)
        round_trip(self.task, window.ranks[target])

    def _describe_holder(self, target: int) -> str:
        """Return a clause on the rank that holds the lock of ``target``, such as "rank 1 has locked rank 0"."""
        holder = next(iter(self.window.locks[target].holders))
        epochs = self.window.epochs[holder]
        opened = epochs.locks.get(target) or epochs.lock_all
        call_words = f" with {opened.location}" if opened else ""
        return f"rank {self.window.ranks[holder]} has locked rank {self.window.ranks[target]}{call_words}"

    def unlock(self, target: int) -> None:
        """Complete the calls to a target, and give its lock back.

        Raises:
            MPIError: If the rank does not hold it.
        """
        if target not in self.epochs.locks:
            raise MPIError("ERR_RMA_SYNC", f"Unlock needs a lock of rank {target}: call Lock first")
        complete(self.window, self.rank, [target])
        del self.epochs.locks[target]
        self._give_back([target])

    def unlock_all(self) -> None:
        """Complete all calls, and give the locks of ``lock_all`` back.

        Raises:
            MPIError: If the rank does not hold them.
        """
        if self.epochs.lock_all is None:
            raise MPIError("ERR_RMA_SYNC", "Unlock_all needs locks: call Lock_all first")
        complete(self.window, self.rank, None)
        self.epochs.lock_all = None
        self._give_back(range(len(self.window.ranks)))

    def _give_back(self, targets: Sequence[int]) -> None:
        past = self.window.scheduler.order.release(self.task)
        for target in targets:
            self.window.locks[target].release(self.window.scheduler, self.rank, past, self.task.clock)
        self._let_others_run("Unlock")

    # ------------------------------------------------------------------ Flush, Sync

    def flush(self, name: str, target: int | None) -> None:
        """Complete the calls to a target, or to all ranks if it is None, without closing the epoch.

        Raises:
            MPIError: If the rank has not locked it.
        """
        self.epochs.check_passive(name, target)
        complete(self.window, self.rank, None if target is None else [target])
        self._let_others_run(name)

    def sync(self) -> None:
        """Make stores of all ranks to the window visible to each other."""
        order, window = self.window.scheduler.order, self.window
        window.synced = merge(window.synced, order.release(self.task))
        order.acquire(self.task, window.synced)
        self._let_others_run("Sync")

    def _let_others_run(self, name: str) -> None:
        """Let other ranks run once: a program may repeat the call ``name`` until the window has changed."""
        others = [rank for rank in self.window.ranks if rank != self.task.rank]
        if others:
            waiting = WindowWait(
                self.window, self.task, name, "", lambda: others, "changes the window", every=False
            )
            self.window.scheduler.poll(waiting)


def deliver_fence(window: WindowState) -> None:
    """Move the data of all ranks of a ``window`` when all have called Fence."""
    order = list(window.epochs)
    if window.scheduler.random is not None:
        window.scheduler.random.shuffle(order)
    for epochs in order:
        apply_all(window, epochs.open_calls)
        epochs.open_calls = []
        if epochs.fence is not None and "NOSUCCEED" in epochs.fence.words:
            epochs.fence = None
    for region in window.regions():
        region.forget_complete()
