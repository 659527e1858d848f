"""The incoming port of a rank: one message at a time, in the first interval in which the port is free."""

from __future__ import annotations

#: Number of free intervals that a port stores. A message that arrived before all of them waits until the port is free.
MOST_INTERVALS = 32


class IncomingPort:
    """The modelled time in which a rank's incoming port is free.

    A rank occupies its port when it completes a receive, so the times follow from the order of its own calls. They do
    not depend on the order in which the simulator runs the ranks.

    Attributes:
        free: time in seconds from which on the port is free.
        intervals: earlier free intervals as (begin, end), ascending; at most :data:`MOST_INTERVALS`.

    >>> port = IncomingPort()
    >>> port.occupy(5.0, 2.0), port.occupy(5.0, 2.0), port.occupy(2.5, 2.0)
    (5.0, 7.0, 2.5)
    """

    __slots__ = ("free", "intervals")

    def __init__(self) -> None:
        self.free = 0.0
        self.intervals: list[tuple[float, float]] = []

    def occupy(self, arrival: float, seconds: float) -> float:
        """Occupy the port for a message; return the time at which the message has passed it.

        Args:
            arrival: time at which the message has left its sender. It passes a free port at this time.
            seconds: duration for which it occupies the port.
        """
        begin, free = arrival - seconds, self.free
        if begin >= free:
            if begin > free:
                self.intervals.append((free, begin))
                if len(self.intervals) > MOST_INTERVALS:
                    del self.intervals[0]
            self.free = arrival
            return arrival
        for position, (low, high) in enumerate(self.intervals):
            start = max(low, begin)
            if start + seconds <= high:
                remainders = ((low, start), (start + seconds, high))
                self.intervals[position : position + 1] = [(b, e) for b, e in remainders if b < e]
                return max(start + seconds, arrival)
        self.free = free + seconds
        return self.free
