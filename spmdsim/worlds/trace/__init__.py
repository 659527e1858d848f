"""Traces: record events of operators and collectives; count them; print tables; export timelines."""

from spmdsim.worlds.trace.events import CollectiveEvent, Event, OperatorEvent
from spmdsim.worlds.trace.recorder import Trace, record

__all__ = ["CollectiveEvent", "Event", "OperatorEvent", "Trace", "record"]
