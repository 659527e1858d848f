"""A transport between threads for programs of collective algorithms, and a function that runs one thread per rank."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np


class Rendezvous:
    """A transport between threads without buffering: a send ends when its receive has copied the data.

    A send buffer that changes before the wait ends is an error.
    """

    def __init__(self, size: int) -> None:
        self.mail: dict[tuple[int, int], queue.Queue[Any]] = {
            (s, d): queue.Queue() for s in range(size) for d in range(size)
        }

    def end(self, rank: int) -> End:
        return End(self, rank)


class End:
    """The end of the transport at one rank; it counts the sent messages and bytes."""

    def __init__(self, net: Rendezvous, rank: int) -> None:
        self.net, self.rank = net, rank
        self.messages, self.nbytes = 0, 0
        self.posted: list[str] = []

    def irecv(self, buffer: Any, source: int, tag: int) -> Any:
        assert buffer.flags.c_contiguous and buffer.flags.writeable and 0 <= tag < 2**29
        self.posted.append("recv")
        return ("recv", buffer, source)

    def isend(self, buffer: Any, dest: int, tag: int) -> Any:
        assert buffer.flags.c_contiguous
        self.posted.append("send")
        self.messages += 1
        self.nbytes += buffer.nbytes
        taken = threading.Event()
        self.net.mail[self.rank, dest].put((buffer, buffer.copy(), taken))
        return ("send", buffer, taken)

    def wait_all(self, requests: Sequence[Any]) -> None:
        for kind, buffer, other in requests:
            if kind == "recv":
                sent, original, taken = self.net.mail[other, self.rank].get(timeout=20)
                np.testing.assert_array_equal(sent, original)
                buffer[...] = sent
                taken.set()
        for kind, _, taken in requests:
            if kind == "send":
                assert taken.wait(20)


def run_ranks(size: int, run_rank: Callable[[End], None]) -> list[End]:
    """Call `run_rank` in a thread per rank, each with its end of one transport; return the ends.

    Raises:
        BaseException: The first error of a rank.
    """
    net = Rendezvous(size)
    ends = [net.end(rank) for rank in range(size)]
    errors: list[BaseException] = []

    def run_end(end: End) -> None:
        try:
            run_rank(end)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run_end, args=(end,), daemon=True) for end in ends]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    if errors:
        raise errors[0]
    return ends
