"""Steps that are written out ask the communicator that they were made for."""

from __future__ import annotations

import numpy as np
import pytest

MPI = pytest.importorskip("mpi4py.MPI")

from spmdsim.trace import recorder  # noqa: E402
from spmdsim.worlds.mpi.counted import Counted, Tally  # noqa: E402
from spmdsim.worlds.mpi.written_steps import calling, one_call  # noqa: E402


class Slow(Counted):
    """A transport that does something else than the library's."""

    asked = 0

    def Allgather(self, sendbuf: object, recvbuf: object) -> None:
        type(self).asked += 1
        super().Allgather(sendbuf, recvbuf)


@pytest.mark.parametrize("kind, asked", [(Counted, 0), (Slow, 3)])
def test_a_transport_of_its_own_is_asked_by_steps_that_nobody_records(
    kind: type[Counted], asked: int
) -> None:
    Slow.asked = 0
    assert not recorder.open_traces
    comm = kind.of(MPI.COMM_SELF, Tally())
    step = one_call(comm, "Allgather", lambda: np.zeros(4), (4, MPI.DOUBLE), (4, MPI.DOUBLE))
    for _ in range(3):
        assert step.run(np.arange(4.0)).tolist() == [0, 1, 2, 3]
    assert Slow.asked == asked
    library = getattr(MPI.Intracomm, "Allgather").__get__(comm)
    assert (calling(comm, "Allgather")[1]["call"] == library) == (kind is Counted)
