"""A recorded run is replayed without the program, with equal times on an equal machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spmdsim.errors import InputError
from spmdsim.simulation import replay, simulate

pytest.importorskip("greenlet")

# Each virtual rank imports the modules of this file's names. Large packages are imported in the tests that need them.


def machine_of(name: str | None) -> Any:
    """Return a machine with nodes or with eager messages; None for None."""
    from spmdsim.cost import Link, Machine

    if name == "nodes":
        return Machine("nodes", 2.0, 0.5, 0.25, ranks_per_node=2, intra=Link(1.0, 0.125))
    facts = {"overhead": 0.25, "overhead_per_byte": 0.125, "eager_bytes": 100}
    return None if name is None else Machine("eager", 2.0, 0.5, **facts)


def messages(comm: Any) -> None:
    """Send and receive in all modes, with wildcards and computation."""
    import time

    from mpi4py import MPI

    from spmdsim.simulation import compute

    n, rank = comm.size, comm.rank
    others = [other for other in range(n) if other != rank]
    compute(seconds=0.1 * rank)
    comm.Sendrecv(np.zeros(9), (rank + 1) % n, 3, np.zeros(9), (rank - 1) % n, 3)
    rooms = [np.zeros(30) for _ in others]
    requests = [comm.Irecv(room, other) for room, other in zip(rooms, others)]
    requests += [comm.Issend(np.zeros(5 * (rank + 1)), other) for other in others]
    MPI.Request.Waitany(requests)
    MPI.Request.Waitall(requests)
    if rank:
        comm.ssend("text", 0, tag=rank)
        MPI.Attach_buffer(bytearray(4096))
        comm.bsend(rank, 0)
    else:
        time.sleep(3)
        for _ in range(2 * (n - 1)):
            comm.recv()
    comm.Isend(np.zeros(2), MPI.PROC_NULL).Wait()
    assert MPI.Wtime() >= 0


def collectives(comm: Any) -> None:
    """Call collectives of several communicators."""
    from spmdsim.simulation import compute

    n, rank = comm.size, comm.rank
    compute(seconds=float(rank))
    comm.Allreduce(np.zeros(40), np.zeros(40))
    comm.reduce(rank, root=n - 1)
    half = comm.Split(rank % 2)
    half.Bcast(np.zeros(50), root=half.size - 1)
    half.scatter(list(range(half.size)) if half.rank == 0 else None)
    counts = [1 + other for other in range(n)]
    comm.Gatherv(np.zeros(rank + 1), [np.zeros(sum(counts)), counts] if rank == 0 else None)
    comm.Ibarrier().Wait()
    comm.alltoall(["x" * rank] * n)
    comm.Scan(np.zeros(3), np.zeros(3))
    comm.Reduce_scatter_block(np.zeros(2 * n), np.zeros(2))
    comm.Create_cart([n], periods=[True]).neighbor_allgather(rank)


@pytest.mark.parametrize("machine", [None, "nodes", "eager"])
@pytest.mark.parametrize("program", [messages, collectives])
def test_a_replay_on_the_machine_of_the_record_takes_equal_times(
    program: Any, machine: Any, tmp_path: Path
) -> None:
    machine = machine_of(machine)
    run = simulate(program, 5, machine=machine, record=tmp_path / "run", speed=0.5)
    again = replay(tmp_path / "run", machine=machine)
    assert again.completed and again.problems == ()
    assert again.seconds == run.seconds
    traffic = ("messages", "nbytes", "collective_messages", "collective_nbytes")
    assert [getattr(again, name) for name in traffic] == [getattr(run, name) for name in traffic]


def ring(comm: Any) -> None:
    """Exchange blocks of different sizes with both neighbours."""
    n, rank = comm.size, comm.rank
    for size in (1, 50, 500):
        comm.Sendrecv(np.zeros(size), (rank + 1) % n, 3, np.zeros(size), (rank - 1) % n, 3)


@pytest.mark.parametrize("program", [ring, collectives])
def test_a_replay_on_another_machine_takes_the_time_of_the_program_there(
    program: Any, tmp_path: Path
) -> None:
    simulate(program, 4, record=tmp_path / "run")
    machine = machine_of("nodes")
    other = replay(tmp_path / "run", machine=machine, like="mpich")
    assert other.seconds == pytest.approx(
        simulate(program, 4, machine=machine, like="mpich").seconds, rel=1e-4
    )


def test_a_program_that_needs_buffers_is_replayed(tmp_path: Path) -> None:
    def program(comm: Any) -> None:
        comm.Send(np.zeros(4), 1 - comm.rank)
        comm.Recv(np.zeros(4), 1 - comm.rank)

    run = simulate(program, 2, record=tmp_path / "run", check=False)
    assert replay(tmp_path / "run").seconds == run.seconds


def test_a_replay_scales_computation_by_speeds(tmp_path: Path) -> None:
    def program(comm: Any) -> None:
        from spmdsim.simulation import compute

        compute(seconds=2.0)

    simulate(program, 2, record=tmp_path / "run")
    assert replay(tmp_path / "run", speed=(1.0, 0.5)).seconds == (2.0, 4.0)


def test_runs_without_a_complete_record_are_refused(tmp_path: Path) -> None:
    def windows(comm: Any) -> None:
        from mpi4py import MPI

        MPI.Win.Allocate(8, comm=comm).Free()

    with pytest.raises(InputError, match="must not use windows"):
        simulate(windows, 2, record=tmp_path / "run")
    simulate(lambda comm: comm.recv(), 2, record=tmp_path / "run", check=False)
    assert not (tmp_path / "run").exists()


HEADER = '{"spmdsim_record": 1, "ranks": 2}'


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("", "empty file"),
        ("[]", "line 1: the first line must be"),
        ('{"spmdsim_record": 2, "ranks": 2}', "line 1"),
        ('{"spmdsim_record": 1, "ranks": 1e9}', "ranks must be a whole number"),
        (HEADER + "\nx", "line 2"),
        (HEADER + "\n3", "line 2: an event must be a JSON object"),
        (HEADER + '\n{"rank": 2, "do": "compute"}', "rank must be a whole number from 0 to 1, got 2"),
        (HEADER + '\n{"rank": 0, "do": "exec"}', "do must be one of"),
        (HEADER + '\n{"rank": 0, "do": "compute", "seconds": -1}', "seconds must be"),
        (HEADER + '\n{"rank": 0, "do": "complete", "op": 0}', "op must be"),
        (HEADER + '\n{"rank": 0, "do": "receive", "op": 0, "from": 7, "number": 0}', "from must be"),
        (HEADER + '\n{"rank": 0, "do": "send", "op": 0, "to": 1, "number": 0, "bytes": -1}', "bytes must be"),
        (
            HEADER + '\n{"rank": 0, "do": "receive", "op": 0, "from": 1, "number": 0}\n'
            '{"rank": 0, "do": "complete", "op": 0}',
            "the record is not complete",
        ),
    ],
)
def test_damaged_records_are_one_clear_line(lines: str, words: str, tmp_path: Path, capfd: Any) -> None:
    path = tmp_path / "run"
    path.write_text(lines, encoding="utf-8")
    with pytest.raises(InputError, match=words) as error:
        replay(path)
    assert str(path) in str(error.value) and "\n" not in str(error.value)


def test_records_without_a_line_are_refused_or_run(tmp_path: Path) -> None:
    """Remove one line of a record after the other; a replay ends with a report or with one line."""
    simulate(collectives, 3, record=tmp_path / "run")
    lines = (tmp_path / "run").read_text(encoding="utf-8").splitlines()
    for position in range(0, len(lines), 10):
        (tmp_path / "cut").write_text("\n".join(lines[:position] + lines[position + 1 :]), encoding="utf-8")
        try:
            replay(tmp_path / "cut")
        except InputError as error:
            assert "\n" not in str(error)


def test_the_command_records_and_replays(tmp_path: Path, capfd: Any) -> None:
    from spmdsim.cli.main import main

    script, record = tmp_path / "program.py", tmp_path / "run.jsonl"
    script.write_text("from mpi4py import MPI\nMPI.COMM_WORLD.Barrier()\nprint('runs')\n", encoding="utf-8")
    assert main(["simulate", str(script), "-n", "3", "--record", str(record)]) == 0
    capfd.readouterr()
    script.unlink()
    assert main(["simulate", "--replay", str(record), "--json", "--machine", "cluster"]) == 0
    report = json.loads(capfd.readouterr().out)
    assert report["ranks"] == 3 and report["output"] == [] and min(report["seconds"]) > 0
    for words, text in [
        ((), "script must be given: spmdsim simulate SCRIPT, or spmdsim simulate --replay FILE"),
        (("--replay", str(record), str(script)), "a script and --replay exclude each other"),
        (("--replay", str(record), "-n", "3"), "does not take --ranks"),
    ]:
        assert main(["simulate", *words]) == 2
        error = capfd.readouterr().err
        assert text in error and error.count("\n") == 1
