"""The files that ``spmdsim collective predict`` writes: the plot as a picture, one predicted run as a timeline."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from spmdsim.errors import InputError

if TYPE_CHECKING:
    from spmdsim.cost.event_simulation import LogGOPS
    from spmdsim.cost.prediction import Prediction
    from spmdsim.draw.plot import Plot


def write_png(plot: Plot, path: str) -> None:
    """Write a plot as PNG."""
    from spmdsim.cli.output import is_speaker, remark
    from spmdsim.draw.plot import save_png

    if is_speaker():
        save_png(plot, path)
        remark(f"wrote {path}")


def write_timeline(
    path: str, prediction: Prediction, itemsize: int, options: dict[str, Any], events: LogGOPS | None
) -> None:
    """Write the timeline of the fastest algorithm at the last point of a prediction."""
    from spmdsim.cli.output import remark, write_file
    from spmdsim.collectives import make_schedule
    from spmdsim.collectives.algorithm import algorithm
    from spmdsim.cost.topologies import parse_topology
    from spmdsim.draw.predicted_timeline import predicted_timeline

    point = prediction.points[-1]
    priced = {name: took for name, took in point.seconds.items() if name != "native"}
    if not priced:
        raise InputError(
            "--trace draws an algorithm's messages; the library's own call has none that are known"
        )
    chosen = algorithm(prediction.collective, min(priced, key=priced.__getitem__))
    mine = {key: value for key, value in options.items() if key in dict(chosen.options)}
    schedule = make_schedule(chosen, point.ranks, **mine)
    network = (
        parse_topology(prediction.topology, point.ranks, prediction.machine) if prediction.topology else None
    )
    timeline = predicted_timeline(schedule, prediction.machine, point.nbytes, network, itemsize, events)
    write_file(path, json.dumps(timeline))
    remark(f"wrote {path}: {chosen.name} on {point.ranks} ranks, {point.nbytes:,} bytes")
