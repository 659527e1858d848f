"""A case: a program for four ranks, of which one makes a mistake, and what the job must print about it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from textwrap import dedent

#: How a program is started: by the MPI's own launcher, the same with ``end_job_on_error()``, or by ours.
MPIRUN, GUARDED, LAUNCH = "mpirun", "guarded", "launch"
#: Its collectives are those of an emulated communicator, started by the MPI's launcher.
EMULATED = "emulated"
WAYS = (MPIRUN, GUARDED, LAUNCH, EMULATED)

RANKS = 4
#: The row of programs whose faulty rank does what the rest does.
WITHOUT = "the same without a fault"
#: Seconds that ranks wait for each other in these jobs, unless a case says otherwise.
DEADLINE = 5
#: Seconds after the fault in which a job must have ended; what ends by a deadline has as many more.
SECONDS = 10.0

TOP = """\
import atexit, ctypes, os, resource, signal, sys, threading, time
BAD = {bad}
rank = int(os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK", "0")))
bad = rank == BAD
FOLDER = os.path.dirname(os.path.abspath(__file__))

def begins():
    with open("/proc/self/maps") as maps:
        shared = {{line.split(None, 5)[5].strip() for line in maps if "/dev/shm/" in line}}
    with open(os.path.join(FOLDER, f"begins-{{rank}}"), "w") as file:
        file.write("\\n".join(sorted(shared)))

"""

WORLD = """\
import numpy as np
from spmdsim import Mesh, Tensor, check, embedding, matmul, world
from spmdsim.core import Layout
from mpi4py import MPI
MPI.COMM_WORLD.Barrier()  # the deadline is short, and on a busy machine some ranks start seconds later
w = world()
mesh, line = Mesh((2, 2), ("dp", "tp")), Mesh((4,), ("all",))
R, ROWS, COLUMNS, BOTH = mesh(None, None), mesh("dp", None), mesh(None, "tp"), mesh(("dp", "tp"), None)
ALL, NONE = line("all", None), line(None, None)
a = np.arange(64 * 32, dtype=np.float32).reshape(64, 32)
x = Tensor.from_global(a, BOTH, w)

def step(n=1):
    for _ in range(n):
        result = x.to(R)  # @step
        assert result.local()[63, 31] == 2047

"""

EMULATION = """\
import numpy as np
from mpi4py import MPI
from spmdsim import EmulatedCommunicator
comm = EmulatedCommunicator(MPI.COMM_WORLD)
s, r, g = np.full(8, rank + 1, np.float32), np.zeros(8, np.float32), np.zeros(32, np.float32)

def step(n=1):
    for _ in range(n):
        comm.Allreduce(s, r)  # @step

"""

GUARD = "import spmdsim.launch\nspmdsim.launch.end_job_on_error('program.py')\n"

END = """
step(3)
sys.stdout.write(f"END {rank}\\n")
sys.stdout.flush()
"""


@dataclass(frozen=True)
class Case:
    """A program, and what must happen when it runs.

    Attributes:
        name: its unique name.
        kind: its row in the summary.
        body: the program after the lines that all programs share (``w``, ``x``, ``a``, layouts, ``step(n)``, ``bad``,
            ``begins()``). ``# @name`` at the end of a line marks it.
        says: regular expressions that must all match what the job prints; ``{bad}`` is the faulty rank, ``{name}`` the
            marked line.
        says_mpirun: the expressions where the launcher of the MPI starts the job, if they differ: it ends jobs of killed
            processes itself, before any rank can report.
        never: expressions that must not match.
        ways: how the job is started.
        top: program text before anything is imported.
        bad: the faulty rank.
        fails: True if the job must fail; else no rank may be blamed, and all ranks reach the end.
        seconds: the time from the fault to the end.
        variables: environment of the job.
        options: options of ``spmdsim launch``.
        signal: the signal that the launcher gets once the ranks have begun.
        after: a program that runs after the job; whatever it prints is wrong.
    """

    name: str
    kind: str
    body: str
    says: tuple[str, ...] = ()
    says_mpirun: tuple[str, ...] | None = None
    never: tuple[str, ...] = ()
    ways: tuple[str, ...] = (MPIRUN, LAUNCH)
    top: str = ""
    bad: int = 1
    fails: bool = True
    seconds: float = SECONDS
    variables: dict[str, str] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    signal: int | None = None
    after: str = ""

    def program(self, way: str) -> str:
        """Return the text of the program."""
        shared = EMULATION if way == EMULATED else WORLD
        guard = GUARD if way == GUARDED else ""
        return TOP.format(bad=self.bad) + dedent(self.top) + guard + shared + dedent(self.body) + END

    def harmless(self) -> Case:
        """Return the case of this program without a faulty rank, in which nothing is wrong."""
        says = {"says": (), "says_mpirun": None, "never": (), "after": ""}
        return replace(
            self,
            name=f"{self.name}: without the fault",
            kind=WITHOUT,
            bad=-1,
            fails=False,
            seconds=60,
            **says,
        )

    def expected(self, way: str) -> list[str]:
        """Return the regular expressions for what the job must print, with line numbers."""
        lines = {}
        for number, text in enumerate(self.program(way).splitlines(), 1):
            for name in re.findall(r"# @(\w+)", text):
                lines.setdefault(name, []).append(str(number))
        places = {name: rf"program\.py(?::|\", line )(?:{'|'.join(n)})\b" for name, n in lines.items()}
        plain = way != LAUNCH and self.says_mpirun is not None
        words = self.says_mpirun if plain and self.says_mpirun is not None else self.says
        return [
            re.sub(r"\{([a-z]\w*)\}", lambda match: {**places, "bad": str(self.bad)}[match[1]], one)
            for one in words
        ]


#: The faulty rank is named.
WHO = r"ranks? (?:\[?[\d, ]+)?\b{bad}\b"


def mismatch(
    name: str, setup: str, here: str, there: str, *words: str, kind: str, way: tuple[str, ...] = (MPIRUN, LAUNCH),
    seconds: float = SECONDS, phases: tuple[str, ...] = ("early", "late"), lines: bool = True,
) -> list[Case]:  # fmt: skip
    """Return two cases in which the faulty rank runs another line than the other ranks.

    In the early case it is the first call, started in one way only. In the late case all ranks have run both lines 40
    times before.
    """
    body = (
        dedent(setup)
        + f"\ndef here():\n    return {here}  # @here\n\ndef there():\n    return {there}  # @there\n\n"
    )
    says = [WHO, *["{here}"] * lines, *["{there}"] * (lines and there != "None"), *words]
    cases = []
    for phase in phases:
        warm = {"early": 0, "late": 40}[phase]
        text = (
            body
            + f"for _ in range({warm}):\n    here(), there()\nbegins()\nresult = there() if bad else here()\n"
        )
        cases.append(
            Case(
                f"{name}, {phase}", kind, text, tuple(says), ways=way if warm else way[-1:], seconds=seconds,
            )
        )  # fmt: skip
    return cases
