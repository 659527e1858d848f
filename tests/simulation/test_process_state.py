"""A virtual rank is a process: what it sets in the interpreter, in Python's library and in NumPy belongs to it."""

from __future__ import annotations

import locale
import logging
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spmdsim.simulation import Report, simulate

pytest.importorskip("greenlet")

START = "import sys\nfrom mpi4py import MPI\ncomm = MPI.COMM_WORLD\nrank = comm.rank\n"


def run(folder: Path, source: str, ranks: int = 3, **options: Any) -> Report:
    """Run a program, which begins with its imports of ``sys`` and MPI, and return the report."""
    path = folder / "program.py"
    path.write_text(START + source, encoding="utf-8")
    return simulate(path, ranks, str(folder), check=False, **{"emit": lambda rank, line: None, **options})


def lines_by_rank(report: Report) -> list[list[str]]:
    """Return the printed lines of each rank; check that the report has no problems."""
    assert not report.problems, report
    return [[line for rank, line in report.output if rank == printing] for printing in range(report.size)]


def drawn_after_seed(rank: int) -> str:
    """Return the first number that NumPy's global generator gives after a rank's seed."""
    return f"{np.random.RandomState(42 + rank).random_sample():.12f}"


# Each program prints one line per rank, whatever other ranks set: {name: (program, the line of a rank)}.
PROGRAMS = {
    "a seed of numpy's global generator": (
        "import numpy as np\nnp.random.seed(42 + rank)\ncomm.Barrier()\nprint(f'{np.random.rand():.12f}')",
        drawn_after_seed,
    ),
    "the environment of child processes": (
        "import os, subprocess\nos.environ['RANK_ENV'] = str(rank)\nif rank: os.environ.pop('HOME', None)\n"
        'comm.Barrier()\ncode = \'import os; print(os.environ["RANK_ENV"], "HOME" in os.environ)\'\n'
        "print(subprocess.check_output([sys.executable, '-c', code], text=True).strip())",
        lambda rank: f"{rank} {rank == 0 and 'HOME' in os.environ}",
    ),
    "a running event loop": (
        "import asyncio\nasync def main():\n    comm.Barrier()\n    await asyncio.sleep(0)\n"
        "    comm.Barrier()\n    return rank\nprint(asyncio.run(main()))",
        str,
    ),
    "output switched off on other ranks": (
        "import os\nif rank: sys.stdout = open(os.devnull, 'w')\ncomm.Barrier()\nprint('seen')",
        lambda rank: [] if rank else ["seen"],
    ),
    "a log file in place of standard output": (
        "name = f'{sys.argv[1]}/log{rank}'\nsys.stdout = open(name, 'w')\nprint('first', rank)\ncomm.Barrier()\n"
        "print('second', rank)\ncomm.Barrier()\nsys.stdout.close()\nsys.stdout = sys.__stdout__\n"
        "print(open(name).read().split())",
        lambda rank: f"['first', '{rank}', 'second', '{rank}']",
    ),
    "a wrapper around standard output": (
        "class Prefix:\n    def __init__(self, stream): self.stream = stream\n"
        "    def write(self, text): self.stream.write(f'[{comm.rank}] {text}' if text.strip() else text)\n"
        "    def flush(self): self.stream.flush()\n"
        "sys.stdout = Prefix(sys.stdout)\ncomm.Barrier()\nprint('a')",
        lambda rank: f"[{rank}] a",
    ),
    "the bytes of standard output": (
        "sys.stdout.buffer.write(f'{rank}\\n'.encode())\nsys.stdout.flush()",
        str,
    ),
    "output without a line end": ("sys.stdout.write(f'{rank}')", str),
    "a redirected stream": (
        "import contextlib, io\ntext = io.StringIO()\n"
        "with contextlib.redirect_stdout(text if rank == 0 else sys.stdout):\n    print(rank)\n    comm.Barrier()\n"
        "print(repr(text.getvalue()))",
        lambda rank: [repr("0\n")] if rank == 0 else [str(rank), "''"],
    ),
    "standard input, which rank 0 has": (
        "sys.stdin = sys.stdin if rank else ['typed']\ncomm.Barrier()\nprint(list(sys.stdin))",
        lambda rank: "[]" if rank else "['typed']",
    ),
    "warning filters": (
        "import warnings\nwarnings.simplefilter('error' if rank == 1 else 'ignore')\ncomm.Barrier()\n"
        "try: warnings.warn('x'); print('quiet')\nexcept UserWarning: print('raised')",
        lambda rank: "raised" if rank == 1 else "quiet",
    ),
    "caught warnings": (
        "import warnings\nwith warnings.catch_warnings(record=True) as caught:\n    warnings.simplefilter('always')\n"
        "    comm.Barrier()\n    warnings.warn(f'of {rank}')\n    comm.Barrier()\nprint(*[w.message for w in caught])",
        lambda rank: f"of {rank}",
    ),
    "the locale": (
        "import locale\nlocale.setlocale(locale.LC_ALL, 'C.UTF-8' if rank == 0 else 'C')\ncomm.Barrier()\n"
        "print(locale.setlocale(locale.LC_CTYPE))",
        lambda rank: "C.UTF-8" if rank == 0 else "C",
    ),
    "a logging configuration with a file": (
        "import logging\nname = f'{sys.argv[1]}/run{rank}.log'\n"
        "logging.basicConfig(filename=name, format='%(levelname)s %(message)s', level=[10, 20, 30][rank])\n"
        "comm.Barrier()\nlogging.debug('d%d', rank); logging.info('i%d', rank); logging.warning('w%d', rank)\n"
        "print(*open(name).read().split())",
        lambda rank: " ".join([f"DEBUG d{rank}", f"INFO i{rank}", f"WARNING w{rank}"][rank:]),
    ),
    "a logging handler": (
        "import logging\nlog, handler = logging.getLogger('app'), logging.StreamHandler(sys.stdout)\n"
        "handler.setFormatter(logging.Formatter(f'of {rank}: %(message)s'))\nlog.addHandler(handler)\ncomm.Barrier()\n"
        "log.warning('hello')",
        lambda rank: f"of {rank}: hello",
    ),
    "the folder of temporary files": (
        "import tempfile\ntempfile.tempdir = f'folder{rank}'\ncomm.Barrier()\nprint(tempfile.gettempdir()[-7:])",
        lambda rank: f"folder{rank}",
    ),
    "print for one rank": (
        "import builtins\nplain = print\nif rank: builtins.print = lambda *words: plain('quiet')\ncomm.Barrier()\n"
        "print('loud')",
        lambda rank: "quiet" if rank else "loud",
    ),
    "the path of modules": (
        "sys.path.append(str(rank))\nsys.displayhook = rank\ncomm.Barrier()\nprint(sys.path[-1], sys.displayhook)",
        lambda rank: f"{rank} {rank}",
    ),
}


@pytest.mark.parametrize("what", PROGRAMS)
def test_state_of_a_process_belongs_to_a_rank(what: str, tmp_path: Path) -> None:
    program, line_of = PROGRAMS[what]
    streams = sys.stdout, sys.stderr, sys.stdin, sys.path, sys.displayhook, warnings.filters
    before = locale.setlocale(locale.LC_ALL), list(sys.path), list(warnings.filters)
    expected = [line_of(rank) for rank in range(3)]
    lines = lines_by_rank(run(tmp_path, program))
    assert lines == [line if isinstance(line, list) else [line] for line in expected]
    assert streams == (sys.stdout, sys.stderr, sys.stdin, sys.path, sys.displayhook, warnings.filters)
    assert before == (locale.setlocale(locale.LC_ALL), list(sys.path), list(warnings.filters))


def test_numbers_without_a_seed_follow_from_the_simulations_seed(tmp_path: Path) -> None:
    program = "import numpy as np\na = np.random.rand()\ncomm.Barrier()\nprint(a, np.random.rand())"
    runs = [lines_by_rank(run(tmp_path, program, seed=seed)) for seed in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]
    assert len({tuple(lines) for lines in runs[0]}) == 3


# Names of clocks in the module ``time``, without their underscores.
CLOCKS = ("time", "perf counter", "mono tonic".replace(" ", ""), "process time")


def test_all_clocks_show_modelled_time(tmp_path: Path) -> None:
    program = f"""
import time
clocks = [getattr(time, name.replace(" ", "_")) for name in {CLOCKS}] + [MPI.Wtime]
starts, start_ns = [clock() for clock in clocks], time.time_ns()
time.sleep(50)
print([50 <= clock() - start < 50.1 for clock, start in zip(clocks, starts)])
print(50e9 <= time.time_ns() - start_ns < 50.1e9, clocks[0]() > 1e9)
timer = __import__("time" + "it").Timer(lambda: time.sleep(10))
print(20 <= timer.repeat(1, number=2)[0] < 20.1)
"""
    assert lines_by_rank(run(tmp_path, program)) == [[str([True] * 5), "True True", "True"]] * 3


def test_a_printing_function_may_receive_the_lines(capsys: pytest.CaptureFixture[str]) -> None:
    def work(comm: Any) -> None:
        print("line of", comm.rank)

    simulate(work, 2, emit=lambda rank, line: print(f"{rank}: {line}"))
    assert capsys.readouterr().out.splitlines() == ["0: line of 0", "1: line of 1"]


def test_the_programs_excepthook_is_called(tmp_path: Path) -> None:
    program = """
def hook(kind, error, trace):
    print("hook of", rank, kind.__name__, error, trace is not None)
    MPI.COMM_WORLD.Abort(5)
sys.excepthook = hook
comm.Barrier()
if rank == 1:
    raise ValueError("bad")
comm.Barrier()
"""
    report = run(tmp_path, program)
    assert report.output == ((1, "hook of 1 ValueError bad True"),)
    assert [problem.kind for problem in report.problems] == ["exception"] and report.exit_code == 5


@pytest.mark.parametrize("receive", ["comm.Recv(small, 0)", "comm.Irecv(small, 0).Wait()"])
def test_a_program_may_catch_the_error_of_a_message_that_is_too_long(receive: str, tmp_path: Path) -> None:
    program = f"""
import numpy as np
small = np.zeros(2)
if rank == 0:
    comm.Send(np.ones(5), 1)
elif rank == 1:
    try:
        {receive}
    except MPI.Exception as error:
        print(error.Get_error_class() == MPI.ERR_TRUNCATE, small)
comm.Barrier()
"""
    assert lines_by_rank(run(tmp_path, program)) == [[], ["True [0. 0.]"], []]
    (problem,) = run(tmp_path, program.replace("except MPI.Exception", "except ValueError")).problems
    assert problem.kind == "truncation" and "5 × float64" in problem.message


LIBRARY = """
import logging
seen = []
def report(rank):
    seen.append(rank)
    logging.getLogger(__name__).warning("seen %s", seen)
"""


def test_an_installed_library_uses_the_ranks_logging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "reporting.py").write_text(LIBRARY)
    monkeypatch.syspath_prepend(str(folder))
    program = """
import logging, reporting
logging.basicConfig(stream=sys.stdout, format=f"rank {rank}: %(message)s")
comm.Barrier()
reporting.report(rank)
"""
    assert lines_by_rank(run(tmp_path, program)) == [[f"rank {rank}: seen [{rank}]"] for rank in range(3)]


def test_a_function_uses_the_ranks_logging() -> None:
    def work(comm: Any) -> int:
        logging.getLogger().setLevel(10 * (comm.rank + 1))
        comm.Barrier()
        return logging.getLogger().level

    level = logging.getLogger().level
    assert simulate(work, 3).results == (10, 20, 30)
    assert logging.getLogger().level == level


def test_a_rank_that_starts_late_gets_the_path_of_the_process(tmp_path: Path) -> None:
    program = "sys.path.append('of one rank')\ncomm.Barrier()\nprint(sys.path.count('of one rank'))"
    assert lines_by_rank(run(tmp_path, program)) == [["1"]] * 3
