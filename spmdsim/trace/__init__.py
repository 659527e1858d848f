"""What ran: events of operators and collectives, their counts, tables and timelines."""

from spmdsim.trace.events import CollectiveEvent, Event, OperatorEvent
from spmdsim.trace.recorder import Trace, record

__all__ = ["CollectiveEvent", "Event", "OperatorEvent", "Trace", "record"]
