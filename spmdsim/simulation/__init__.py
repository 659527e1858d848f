"""Run mpi4py programs on virtual ranks in one process, without MPI, and report their errors.

Use it from a notebook::

    from spmdsim.simulation import simulate

    def program(comm):
        right = (comm.rank + 1) % comm.size
        comm.send(comm.rank, dest=right)
        return comm.recv(source=(comm.rank - 1) % comm.size)

    simulate(program, 8).results

or from the shell: ``spmdsim simulate my_script.py -n 64``.
"""

from spmdsim.simulation.engine.stated_work import compute
from spmdsim.simulation.engine.waiting_times import WaitingTime
from spmdsim.simulation.findings.problems import Problem
from spmdsim.simulation.recorded_runs import replay
from spmdsim.simulation.runner import simulate
from spmdsim.simulation.simulation_report import Report, SimulationError

__all__ = ["Problem", "Report", "SimulationError", "WaitingTime", "compute", "replay", "simulate"]
