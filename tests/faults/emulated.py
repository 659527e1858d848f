"""Ranks that disagree on an emulated communicator."""

from __future__ import annotations

from faults.case import DEADLINE, EMULATED, SECONDS, WHO, Case, mismatch

LATE = SECONDS + DEADLINE
KIND = "emulated communicator"
WAYS = (EMULATED,)
ARRAYS = """
i, j = np.full(8, rank + 1, np.int32), np.zeros(8, np.int32)
d, e = np.full(8, rank + 1, np.float64), np.zeros(8, np.float64)
big, out = np.full(100000, rank + 1, np.float32), np.zeros(100000, np.float32)
"""


def both(name: str, here: str, there: str, *words: str, **more: object) -> list[Case]:
    """Return the early and the late case of a mismatch."""
    return mismatch(name, ARRAYS, here, there, *words, kind=KIND, way=WAYS, **more)  # type: ignore[arg-type]


CASES = [
    *both("element type of the same size, emulated", "comm.Allreduce(s, r)", "comm.Allreduce(i, j)"),
    *both("element type of another size, emulated", "comm.Allreduce(s, r)", "comm.Allreduce(d, e)"),
    *both("count, emulated", "comm.Allreduce(s, r)", "comm.Allreduce(s[:4], r[:4])"),
    *both("long and short, emulated", "comm.Allreduce(big, out)", "comm.Allreduce(s, r)"),
    *both("operation, emulated", "comm.Allreduce(s, r)", "comm.Allreduce(s, r, op=MPI.MAX)"),
    *both("root of a broadcast, emulated", "comm.Bcast(s, root=0)", "comm.Bcast(s, root=2)"),
    *both("root of a reduction, emulated", "comm.Reduce(s, r, root=0)", "comm.Reduce(s, r, root=2)"),
    *both("another collective, emulated", "comm.Allreduce(s, r)", "comm.Bcast(s, root=0)"),
    *both("two calls in another order, emulated", "(comm.Allreduce(s, r), comm.Allgather(s, g))", "(comm.Allgather(s, g), comm.Allreduce(s, r))"),
    *both("a call left out, emulated", "comm.Allgather(s, g)", "None", seconds=LATE),
    *both("barrier against a collective, emulated", "comm.Allreduce(s, r)", "comm.Barrier()", seconds=LATE),
    *both("a broadcast and a reduction in another order, emulated", "(comm.Bcast(s), comm.Allreduce(s, r))", "(comm.Allreduce(s, r), comm.Bcast(s))"),
    Case(
        "two calls of one kind in another order, lines compared, emulated", KIND,
        "def first(): comm.Allreduce(s, r)  # @here\ndef second(): comm.Allreduce(r, g[:8])  # @there\nbegins()\n"
        "for call in (second, first) if bad else (first, second): call()\n",
        (WHO, "{here}", "{there}"), ways=WAYS, variables={"SPMDSIM_CHECK": "1"},
    ),
    Case(
        "another algorithm, emulated", KIND,
        "other = EmulatedCommunicator(MPI.COMM_WORLD, all_reduce='ring' if bad else 'recursive_doubling')\nbegins()\nother.Allreduce(s, r)  # @here\n",
        (WHO, "ring", "recursive.doubling"), ways=WAYS, seconds=LATE,
    ),
    Case(
        "the last call left out, emulated", KIND, "step(100)\nbegins()\nif not bad: comm.Allreduce(s, r)  # @here\nsys.exit(0)\n",
        (WHO, "{here}"), ways=WAYS, seconds=LATE,
    ),
    Case(
        "a result that is too short, emulated", KIND, "begins()\ncomm.Allreduce(s, r[:2] if bad else r)  # @here\n", (WHO, "{here}"), ways=WAYS,
    ),
    Case(
        "a call more in a loop, emulated", KIND, "step(100)\nbegins()\nif bad: step(1)\nstep(10)\nsys.exit(0)\n", (WHO, "{step}"), ways=WAYS, seconds=LATE,
    ),
]  # fmt: skip
