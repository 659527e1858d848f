"""Modelled times of collectives: the algorithm that a library chooses, round by round, on the machine's nodes.

Read :meth:`CollectiveTimes.set_times` first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from spmdsim.bounded import Bounded
from spmdsim.collectives import Algorithm, algorithm, algorithms, collective, make_schedule
from spmdsim.collectives.selection_tables import choose, libraries
from spmdsim.cost.link_load import EXACT_UP_TO
from spmdsim.cost.machine import Machine
from spmdsim.cost.node_map import NodeMap
from spmdsim.cost.prediction import node_group
from spmdsim.cost.rank_times import TimedSchedule
from spmdsim.errors import InputError, unknown
from spmdsim.simulation.data.message_buffers import OBJECT
from spmdsim.simulation.engine.timing import message_link

#: Library whose choices are used by default.
DEFAULT_LIBRARY = "openmpi"


class CollectiveTimes:
    """The times of all collectives of a simulation.

    Args:
        machine: the machine, with the nodes of all ranks.
        like: the library whose selection tables choose algorithms, such as "openmpi" or "mpich".
        chosen: names of algorithms by collective, which replace the library's choices where they support the number
            of ranks.

    Raises:
        InputError: If the library has no selection tables.
        ScheduleError: If a collective has no such algorithm.
        SpmdError: If a collective is unknown.
    """

    def __init__(self, machine: Machine, like: str, chosen: Mapping[str, str]) -> None:
        if like not in libraries():
            raise unknown(
                f"simulate: like must be a library with selection tables, got {like!r}", like, libraries()
            )
        algorithms()  # load them before ranks run, because a rank would import its own modules
        self._machine, self._like = machine, like
        self._chosen = {collective(name).name: algorithm(name, entry) for name, entry in chosen.items()}
        self._machines: Bounded[tuple[int, ...], Machine] = Bounded(64)
        self._timed: Bounded[Any, TimedSchedule] = Bounded(256)

    def place(self, machine: Machine) -> None:
        """Replace the machine by one that places more ranks."""
        self._machine = machine

    def set_times(self, calls: Sequence[Any], ranks: Sequence[int]) -> None:
        """Set the time ``end`` at which each rank continues after a collective, and count its messages.

        - A collective of neighbours: each rank sends its blocks one after the other, and receives at the same time.
        - One with measured times of the library's own call on the machine: they count from the last call.
        - Any other one: each rank follows the rounds of the algorithm, see :mod:`spmdsim.cost.rank_times`.

        Args:
            calls: the calls of all ranks, in rank order.
            ranks: the ranks of the program that take part.
        """
        name = calls[0].rule.priced_as
        if name == "neighbours":
            self._set_neighbour_times(calls)
        elif len(calls) == 1:
            calls[0].end = calls[0].entered
        else:
            self._follow_rounds(name, calls, tuple(ranks))

    def _follow_rounds(self, name: str, calls: Sequence[Any], ranks: tuple[int, ...]) -> None:
        """Set the times of a collective that has algorithms, and count its messages.

        Args:
            name: the collective.
            calls: the calls of all ranks, in rank order; at least two.
            ranks: the ranks of the program that take part.
        """
        nbytes, sizes = _message_size(name, calls)
        entries = [call.entered for call in calls]
        measured = None
        if name not in self._chosen:
            measured = self._machine.measured_seconds(name, "native", len(calls), nbytes)
        timed = self._timed_schedule(name, calls, nbytes, sizes, ranks)
        ends = timed.rank_ends(entries) if measured is None else [max(entries) + measured] * len(calls)
        for call, end, messages, sent in zip(calls, ends, timed.messages.tolist(), timed.nbytes.tolist()):
            call.end = end
            call.task.collective_messages += messages
            call.task.collective_bytes += round(sent)

    def _timed_schedule(
        self,
        name: str,
        calls: Sequence[Any],
        nbytes: int,
        sizes: tuple[int, ...] | None,
        ranks: tuple[int, ...],
    ) -> TimedSchedule:
        """Return the timed rounds of the algorithm of a collective; equal calls share them.

        Args:
            name: the collective.
            calls: the calls of all ranks.
            nbytes: message size as the collective counts it.
            sizes: bytes of each block, if they differ; else None.
            ranks: the ranks of the program that take part.
        """
        itemsize, commutative = (
            _itemsize(calls),
            all(call.op is None or call.op.Is_commutative() for call in calls),
        )
        machine = self._group_machine(ranks)
        root = max(calls[0].root, 0)  # -1 for collectives without root
        key = (name, len(calls), root, nbytes, itemsize, commutative, sizes, machine)
        timed = self._timed.get(key)
        if timed is None:
            chosen = self._algorithm(name, len(calls), nbytes, commutative, itemsize, sizes is None)
            options: dict[str, Any] = (
                node_group(machine, len(calls)) if "group" in dict(chosen.options) else {}
            )
            schedule = make_schedule(chosen, len(calls), root, **options)
            fits = (
                sizes is not None
                and len(sizes) == len(schedule.chunk_elements(0))
                and len(calls) <= EXACT_UP_TO
            )
            timed = TimedSchedule(schedule, machine, nbytes, itemsize, sizes if fits else None)
            self._timed[key] = timed
        return timed

    def _algorithm(
        self, name: str, size: int, nbytes: int, commutative: bool, itemsize: int, equal_blocks: bool
    ) -> Algorithm:
        """Return the algorithm of a collective.

        It is the program's choice if it supports the rank count, else that of the library, else the first declared
        one that supports the rank count.

        Args:
            name: the collective.
            size: number of ranks.
            nbytes: message size as the collective counts it.
            commutative: True if the operator is commutative.
            itemsize: bytes per element.
            equal_blocks: True if all blocks are equally long.
        """
        wanted = self._chosen.get(name)
        if wanted is not None and wanted.fits(size, dict(wanted.options)):
            return wanted
        try:
            chosen = choose(
                self._like, name, size, nbytes, commutative, itemsize, equal_blocks=equal_blocks
            ).algorithm
        except InputError:  # the library has no table for the collective
            chosen = None
        if chosen is not None and chosen.fits(size, dict(chosen.options)):
            return chosen
        return next(entry for entry in algorithms(name) if entry.fits(size, dict(entry.options)))

    def _group_machine(self, ranks: tuple[int, ...]) -> Machine:
        """Return the machine whose ranks 0, 1, ... are these ranks of the program."""
        if self._machine.intra is None:
            return self._machine
        machine = self._machines.get(ranks)
        if machine is None:
            nodes = self._machine.nodes_of(np.asarray(ranks, np.int64)).tolist()
            machine = self._machines[ranks] = self._machine.placed(NodeMap(nodes))
        return machine

    def _set_neighbour_times(self, calls: Sequence[Any]) -> None:
        """Set the times of a collective of neighbours, and count its messages.

        A rank ends when its own messages have left, and those of its neighbours have left and arrived.

        Args:
            calls: the calls of all ranks, in rank order.
        """
        leaving, arriving = [0.0] * len(calls), [0.0] * len(calls)
        begins = [call.entered for call in calls]
        for target, call in enumerate(calls):
            for source, number in call.value:
                if source < 0:
                    continue
                block, sender = calls[source].send[number], calls[source].task
                pair = (sender.rank, call.task.rank)
                seconds = message_link(self._machine, pair, block.nbytes).seconds(block.nbytes)
                leaving[source] += seconds
                arriving[target] += seconds
                begins[target] = max(begins[target], calls[source].entered)
                sender.collective_messages += 1
                sender.collective_bytes += block.nbytes
        for call, begin, sent, received in zip(calls, begins, leaving, arriving):
            call.end = begin + max(sent, received)


def _itemsize(calls: Sequence[Any]) -> int:
    """Return the bytes that algorithms must not cut: those of an element, or of an object to reduce.

    Args:
        calls: the calls of all ranks, in rank order.
    """
    block = next((call.send[0] for call in calls if call.send), None)
    if block is None:
        return 1
    if block.dtype is OBJECT:
        return max(block.nbytes, 1) if calls[0].op is not None else 1
    return max(int(block.dtype.itemsize), 1)


def _message_size(name: str, calls: Sequence[Any]) -> tuple[int, tuple[int, ...] | None]:
    """Return the size of a collective's message in bytes, and the size of each block if they differ.

    The size is that of benchmarks (:mod:`spmdsim.cost.closed_forms`). Blocks are those of all_to_all by sender and
    receiver, of all_gather and gather by sender, and of scatter by receiver. Other collectives have none: their sizes
    are None, as for equal blocks.

    Args:
        name: the collective.
        calls: the calls of all ranks, in rank order.
    """
    if name == "barrier":
        return 0, None
    if name == "all_to_all":
        sizes = [block.nbytes for call in calls for block in call.send]
        total = max(sum(block.nbytes for block in call.send) for call in calls)
    elif name in ("all_gather", "gather"):
        sizes = [call.send[0].nbytes for call in calls]
        total = sum(sizes)
    elif name == "scatter":
        sizes = [block.nbytes for block in calls[calls[0].root].send]
        total = sum(sizes)
    elif name == "broadcast":
        return calls[calls[0].root].send[0].nbytes, None
    else:
        return max(call.send[0].nbytes for call in calls), None
    return total, tuple(sizes) if len(set(sizes)) > 1 else None
