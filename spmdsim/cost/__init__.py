"""What communication and computation cost: machines, closed forms, topologies, simulation, calibration.

Import the names from here::

    from spmdsim.cost import Machine, load_machine, predict, price
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spmdsim.cost.machine import CostModel, Link, Machine, Measurement, Piece, Rate

if TYPE_CHECKING:
    from spmdsim.cost.calibration import calibrate
    from spmdsim.cost.closed_forms import closed_form
    from spmdsim.cost.event_simulation import EventProgram, LogGOPS, program_of, simulate_program
    from spmdsim.cost.machine_file import load_cost_model, load_machine, save_machine
    from spmdsim.cost.prediction import Prediction, predict
    from spmdsim.cost.pricing import Price, price
    from spmdsim.cost.roofline import Work
    from spmdsim.cost.topologies import parse_topology
    from spmdsim.cost.topology import Topology

__all__ = [
    "CostModel",
    "EventProgram",
    "Link",
    "LogGOPS",
    "Machine",
    "Measurement",
    "Piece",
    "Prediction",
    "Price",
    "Rate",
    "Topology",
    "Work",
    "calibrate",
    "closed_form",
    "load_cost_model",
    "load_machine",
    "parse_topology",
    "predict",
    "price",
    "program_of",
    "save_machine",
    "simulate_program",
]

#: Names that need schedules, files or numpy: planners, which only need a machine, do not pay for them.
_HOME = {
    "LogGOPS": "event_simulation",
    "Prediction": "prediction",
    "Price": "pricing",
    "EventProgram": "event_simulation",
    "Topology": "topology",
    "Work": "roofline",
    "calibrate": "calibration",
    "closed_form": "closed_forms",
    "load_cost_model": "machine_file",
    "load_machine": "machine_file",
    "parse_topology": "topologies",
    "predict": "prediction",
    "price": "pricing",
    "program_of": "event_simulation",
    "save_machine": "machine_file",
    "simulate_program": "event_simulation",
}


def __getattr__(name: str) -> Any:
    """Import the rest of the room when it is first asked for."""
    name = {"Program": "EventProgram"}.get(name, name)  # the name of the release before
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
