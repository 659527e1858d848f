"""What communication and computation cost: machines, closed forms, topologies, simulation, calibration.

Import the names from here::

    from spmdsim.cost import Machine, load_machine
"""

from __future__ import annotations

from spmdsim.cost.machine import CostModel, Link, Machine, Measurement, Piece
from spmdsim.cost.machine_file import load_machine, save_machine

__all__ = ["CostModel", "Link", "Machine", "Measurement", "Piece", "load_machine", "save_machine"]
