"""Threads of virtual ranks: they call MPI and wait for each other as in processes of their own."""

from __future__ import annotations

import queue
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from spmdsim.simulation import Report, simulate

pytest.importorskip("greenlet")

START = (
    "import asyncio, os, queue, threading, time\nfrom concurrent.futures import ThreadPoolExecutor\nimport mpi4py\n"
    "mpi4py.rc.thread_level = LEVEL\nfrom mpi4py import MPI\ncomm = MPI.COMM_WORLD\nrank = comm.rank\nother = rank ^ 1\n"
)


def run(folder: Path, source: str, level: str = "multiple", ranks: int = 2, **options: Any) -> Report:
    """Run a program, which begins with its imports, and return the report."""
    path = folder / "program.py"
    path.write_text(START.replace("LEVEL", repr(level)) + source, encoding="utf-8")
    return simulate(path, ranks, check=False, **{"emit": lambda rank, line: None, **options})


# Each program prints one line on each of two ranks: {name: (program, the line of a rank)}.
PROGRAMS = {
    "a thread that receives into a queue": (
        "lines = queue.Queue()\n"
        "thread = threading.Thread(target=lambda: [lines.put(comm.recv(source=other, tag=1)) for _ in range(3)])\n"
        "thread.start()\nfor i in range(3): comm.send((rank, i), dest=other, tag=1)\n"
        "print([lines.get() for _ in range(3)])\nthread.join()",
        lambda rank: f"{[(1 - rank, i) for i in range(3)]}",
    ),
    "a pool whose threads wait in another order": (
        "with ThreadPoolExecutor(4) as pool:\n"
        "    futures = [pool.submit(comm.recv, source=other, tag=tag) for tag in range(4)]\n"
        "    for tag in reversed(range(4)): comm.send(tag * tag, dest=other, tag=tag)\n"
        "    print([future.result() for future in futures])",
        lambda rank: "[0, 1, 4, 9]",
    ),
    "buffers of several threads": (
        "import numpy as np\ndata = np.zeros((3, 2))\n"
        "threads = [threading.Thread(target=comm.Recv, args=(row, other, tag)) for tag, row in enumerate(data)]\n"
        "for thread in threads: thread.start()\n"
        "for tag in (2, 0, 1): comm.Send(np.full(2, 10.0 * rank + tag), other, tag)\n"
        "for thread in threads: thread.join()\nprint(data.tolist())",
        lambda rank: f"{[[10.0 * (1 - rank) + tag] * 2 for tag in range(3)]}",
    ),
    "attributes of threads": (
        "class Own(threading.local):\n"
        "    def __init__(self, start): self.values = [start]\n"
        "own = Own(rank)\nown.values.append('main')\nseen = []\n"
        "def fill(name):\n    own.values.append(name)\n    comm.Barrier()\n    seen.append(own.values)\n"
        "thread = threading.Thread(target=fill, args=('second',))\nthread.start()\nthread.join()\n"
        "del own.values\nprint(seen, hasattr(own, 'values'), sorted(vars(own)))",
        lambda rank: f"[[{rank}, 'second']] False []",
    ),
    "collectives in two threads": (
        "second = comm.Dup()\nthread = threading.Thread(target=lambda: print(second.allreduce(rank + 1)))\n"
        "thread.start()\ncomm.Barrier()\nthread.join()",
        lambda rank: "3",
    ),
    "sleeps end in the order of their times": (
        "order = []\ndef work(n):\n    time.sleep(0.3 - 0.1 * n)\n    order.append(n)\n"
        "threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]\n"
        "for thread in threads: thread.start()\nfor thread in threads: thread.join()\nprint(order)",
        lambda rank: "[2, 1, 0]",
    ),
    "the environment, modules and thread-local values": (
        "os.environ['OWN_RANK'] = str(rank)\nlocal = threading.local()\nlocal.value = 'main'\nseen = []\n"
        "def work():\n    comm.Barrier()\n    seen.append((os.environ['OWN_RANK'], rank, hasattr(local, 'value')))\n"
        "thread = threading.Thread(target=work)\nthread.start()\nthread.join()\nprint(seen, local.value)",
        lambda rank: f"{[(str(rank), rank, False)]} main",
    ),
    "timeouts": (
        "event, lines, lock = threading.Event(), queue.Queue(), threading.Lock()\n"
        "def late():\n    time.sleep(0.5)\n    event.set()\nthread = threading.Thread(target=late)\nthread.start()\n"
        "early = event.wait(0.1)\nlock.acquire()\ntaken = lock.acquire(timeout=0.1)\n"
        "try: lines.get(timeout=0.1)\nexcept queue.Empty: print(early, taken, event.wait(5), thread.is_alive())",
        lambda rank: "False False True False",
    ),
    "locks that a thread holds twice, and conditions": (
        "lock, full, items = threading.RLock(), threading.Condition(), []\n"
        "def work():\n    with lock, lock, full:\n        items.append(comm.recv(source=other))\n        full.notify()\n"
        "thread = threading.Thread(target=work)\nthread.start()\ncomm.send(rank, dest=other)\n"
        "with full: full.wait_for(lambda: items)\nprint(items)",
        lambda rank: f"[{1 - rank}]",
    ),
    "the end waits for threads but not for daemons": (
        "def late():\n    time.sleep(1)\n    print('late')\nthreading.Thread(target=late).start()\n"
        "threading.Thread(target=comm.recv, daemon=True).start()",
        lambda rank: "late",
    ),
    "an event loop with threads": (
        "async def main():\n    received = asyncio.create_task(asyncio.to_thread(comm.recv, source=other))\n"
        "    await asyncio.sleep(0.2)\n    await asyncio.to_thread(comm.send, rank, dest=other)\n    return await received\n"
        "print(asyncio.run(main()))",
        lambda rank: str(1 - rank),
    ),
    "an event loop without threads": (
        "async def main():\n    await asyncio.sleep(0.2)\n    return MPI.Wtime() - start > 0.19\n"
        "start = MPI.Wtime()\nprint(asyncio.run(main()))",
        lambda rank: "True",
    ),
    "main thread and level": (
        "seen = []\nthread = threading.Thread(target=lambda: seen.append(MPI.Is_thread_main()))\nthread.start()\nthread.join()\n"
        "print(MPI.Query_thread() == MPI.THREAD_MULTIPLE, MPI.Is_thread_main(), seen, threading.active_count())",
        lambda rank: "True True [False] 1",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("seed", [None, 3])
def test_threads_of_ranks(name: str, seed: int | None, tmp_path: Path) -> None:
    if name == "an event loop with threads" and sys.version_info >= (3, 14):
        pytest.skip("asyncio of Python 3.14 keeps one running task per thread of the process")
    source, line = PROGRAMS[name]
    report = run(tmp_path, source, seed=seed)
    assert not [problem for problem in report.problems if problem.kind != "needs_buffering"], report
    assert report.completed and sorted(report.output) == [(rank, line(rank)) for rank in range(2)]


def test_times_of_threads_overlap(tmp_path: Path) -> None:
    source = (
        "threads = [threading.Thread(target=time.sleep, args=(1,)) for _ in range(5)]\n"
        "for thread in threads: thread.start()\nfor thread in threads: thread.join()\nprint(round(MPI.Wtime(), 3))"
    )
    report = run(tmp_path, source)
    assert [line for _, line in report.output] == ["1.0", "1.0"]
    assert all(1 <= seconds < 1.001 for seconds in report.seconds)


#: Programs with a mistake: the kind and a part of the finding.
MISTAKES = {
    "locks in another order": (
        "a, b = threading.Lock(), threading.Lock()\n"
        "def work(first, second):\n    with first:\n        time.sleep(0.1)\n        second.acquire()\n"
        "threads = [threading.Thread(target=work, args=locks) for locks in ((a, b), (b, a))]\n"
        "for thread in threads: thread.start()\nfor thread in threads: thread.join()",
        "deadlock",
        "no thread of rank 0 can continue: its main thread waits in join at program.py:16, "
        "Thread-1 (work) waits in acquire at program.py:13, Thread-2 (work) waits in acquire at program.py:13",
    ),
    "an empty queue": (
        "if rank == 0: queue.Queue().get()\nelse: comm.recv(source=0)",
        "deadlock",
        "no thread of rank 0 can continue: its main thread waits in get at program.py:9",
    ),
    "a thread that never ends": (
        "def work():\n    while True: time.sleep(1)\nif rank == 1: threading.Thread(target=work).start()",
        "deadlock",
        "rank 1 does not end, and nothing changes: its main thread waits for the others at its end, Thread-1 (work) "
        "waits in sleep at program.py:10",
    ),
    "receives of threads without sends": (
        "thread = threading.Thread(target=lambda: comm.recv(source=other))\nthread.start()\nthread.join()",
        "deadlock",
        "ranks 0, 1 wait for each other (0 → 1 → 0): rank 0 in recv(source=1, tag=ANY_TAG) at program.py:9, "
        "rank 1 in recv(source=0, tag=ANY_TAG) at program.py:9",
    ),
    "a rank that has ended": (
        "if rank == 0:\n    thread = threading.Thread(target=lambda: comm.recv(source=1))\n    thread.start()\n    thread.join()",
        "deadlock",
        "rank 0 waits in recv(source=1, tag=ANY_TAG) at program.py:10 for rank 1, which never sends it a message: it has finished",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_with_threads(name: str, tmp_path: Path) -> None:
    source, kind, text = MISTAKES[name]
    report = run(tmp_path, source)
    assert [(problem.kind, problem.message) for problem in report.problems] == [(kind, text)]


@pytest.mark.parametrize(
    ("level", "rule"),
    [
        ("single", "its thread level is MPI_THREAD_SINGLE: only its main thread may call MPI"),
        ("funneled", "its thread level is MPI_THREAD_FUNNELED: only its main thread may call MPI"),
        ("serialized", "its thread level is MPI_THREAD_SERIALIZED: only one thread at a time may call MPI"),
    ],
)
def test_calls_of_threads_below_their_level(level: str, rule: str, tmp_path: Path) -> None:
    source = (
        "threads = [threading.Thread(target=lambda: comm.recv(source=other)) for _ in range(2)]\n"
        "for thread in threads: thread.start()"
    )
    report = run(tmp_path, source, level)
    assert [problem.kind for problem in report.problems] == ["thread_level"]
    assert (
        rule in report.problems[0].message and "recv at program.py:9 in Thread-" in report.problems[0].message
    )


def test_one_thread_at_a_time_is_enough_for_serialized(tmp_path: Path) -> None:
    source = (
        "thread = threading.Thread(target=lambda: print(comm.allreduce(1)))\nthread.start()\nthread.join()\n"
        "print(MPI.Query_thread() == MPI.THREAD_SERIALIZED)"
    )
    report = run(tmp_path, source, "serialized")
    assert not report.problems and sorted(report.output) == [(0, "2"), (0, "True"), (1, "2"), (1, "True")]


def test_threads_of_a_function() -> None:
    def program(comm: Any) -> Any:
        lines: queue.Queue[int] = queue.Queue()
        thread = threading.Thread(target=lambda: lines.put(comm.recv(source=comm.rank ^ 1)))
        thread.start()
        with ThreadPoolExecutor(1) as pool:
            pool.submit(comm.send, comm.rank, dest=comm.rank ^ 1)
            time.sleep(0.1)
            return lines.get(), threading.current_thread() is threading.main_thread()

    before = threading.active_count()
    assert simulate(program, 4).results == ((1, True), (0, True), (3, True), (2, True))
    assert threading.active_count() == before


def test_a_thread_that_fails_shows_its_traceback_and_the_rank_continues(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(
        START.replace("LEVEL", "'multiple'")
        + "thread = threading.Thread(target=lambda: 1 / 0)\nthread.start()\nthread.join()\nprint(comm.allreduce(1))"
    )
    words = [sys.executable, "-m", "spmdsim", "simulate", "-n", "2", "program.py"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout == "2\n2\n"
    assert (
        done.stderr.count("Exception in thread Thread-1") == 2 and done.stderr.count("ZeroDivisionError") == 2
    )


def test_a_pool_of_mpi4py_on_the_ranks_of_a_communicator(tmp_path: Path) -> None:
    pytest.importorskip("mpi4py")
    source = (
        "from mpi4py import futures\nfrom mpi4py.futures import MPICommExecutor\n"
        "with futures.MPICommExecutor(comm) as pool:\n"
        "    if pool is not None: print(list(pool.map(abs, range(-5, 0))), pool.num_workers)\n"
        "owners = comm.allgather(id(futures._core))\nprint(len(set(owners)), MPICommExecutor is futures.MPICommExecutor)"
    )
    report = run(tmp_path, source, ranks=3)
    assert not report.problems, report
    assert sorted(report.output) == [(0, "3 True"), (0, "[5, 4, 3, 2, 1] 2"), (1, "3 True"), (2, "3 True")]


def test_workers_of_mpi4py_started_as_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mpi4py")
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "program.py"
    path.write_text(
        "from mpi4py.futures import MPIPoolExecutor\nfrom mpi4py.util.pool import Pool\n"
        "def square(x): return x * x\n"
        "if __name__ == '__main__':\n"
        "    with MPIPoolExecutor() as pool: print(pool.num_workers, list(pool.map(square, range(5))))\n"
        "    with Pool() as pool: print(pool.starmap(pow, [(2, 3), (3, 2)]))\n"
    )
    report = simulate("mpi4py.futures", 3, path, module=True, emit=lambda rank, line: None)
    assert [line for _, line in report.output] == ["2 [0, 1, 4, 9, 16]", "[8, 9]"]
    report = simulate(
        "mpi4py.run", 2, "-c", "from mpi4py import MPI; print(MPI.COMM_WORLD.size)", module=True
    )
    assert report.output == ((0, "2"), (1, "2"))
