"""Costs of communication and computation: machines, closed forms, topologies, simulation, calibration.

Import the names from here::

    from spmdsim.cost import Machine, load_machine, predict, price
"""

from typing import TYPE_CHECKING

from spmdsim.cost.machine import CostModel, Link, Machine, Measurement, Piece, Rate
from spmdsim.lazy_imports import lazy_names, list_public_names

if TYPE_CHECKING:
    from spmdsim.cost.calibration import calibrate as calibrate
    from spmdsim.cost.closed_forms import closed_form as closed_form
    from spmdsim.cost.machine_file import load_cost_model as load_cost_model
    from spmdsim.cost.machine_file import load_machine as load_machine
    from spmdsim.cost.machine_file import save_machine as save_machine
    from spmdsim.cost.network_bound import NetworkBound as NetworkBound
    from spmdsim.cost.network_bound import bound_on_network as bound_on_network
    from spmdsim.cost.network_bound import certified_seconds as certified_seconds
    from spmdsim.cost.network_bound import link_graph as link_graph
    from spmdsim.cost.node_map import NodeMap as NodeMap
    from spmdsim.cost.prediction import Prediction as Prediction
    from spmdsim.cost.prediction import predict as predict
    from spmdsim.cost.pricing import Price as Price
    from spmdsim.cost.pricing import price as price
    from spmdsim.cost.roofline import Work as Work
    from spmdsim.cost.topologies import parse_topology as parse_topology
    from spmdsim.cost.topology import Topology as Topology

#: Modules that need schedules or files: planners, which only need a machine, do not pay for them.
_LAZY = {
    "calibration": "calibrate",
    "closed_forms": "closed_form",
    "machine_file": "load_cost_model load_machine save_machine",
    "network_bound": "NetworkBound bound_on_network certified_seconds link_graph",
    "node_map": "NodeMap",
    "prediction": "Prediction predict",
    "pricing": "Price price",
    "roofline": "Work",
    "topologies": "parse_topology",
    "topology": "Topology",
}

__getattr__ = lazy_names(__name__, _LAZY)
__all__ = ["CostModel", "Link", "Machine", "Measurement", "Piece", "Rate", *list_public_names(_LAZY)]
