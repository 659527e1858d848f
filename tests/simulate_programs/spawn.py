"""Start ranks that run another part of this file. They report to the ranks that started them, which print the lines."""

import sys

from mpi4py import MPI

world = MPI.COMM_WORLD


def run_child() -> None:
    """Add the numbers of the parents, answer, and join them in one communicator."""
    parent = MPI.Comm.Get_parent()
    total = parent.allreduce(world.rank)
    facts = (sys.argv[2:], world.rank, world.size, parent.remote_size, total, world.Get_attr(MPI.APPNUM))
    parent.send(facts, dest=0, tag=1)
    everyone = parent.Merge(high=True)
    everyone.Barrier()
    everyone.Free()
    parent.Disconnect()
    assert parent == MPI.COMM_NULL
    assert MPI.Comm.Get_parent() == MPI.COMM_NULL


def run_parent() -> None:
    """Start two ranks by one command, then three by two commands; print what they report."""
    codes: list = []
    child = world.Spawn(sys.executable, [__file__, "child", "one"], 2, root=0, errcodes=codes)
    talk(child, codes)
    child = world.Spawn_multiple(
        [sys.executable] * 2, [[__file__, "child", "a"], [__file__, "child", "b"]], [2, 1], errcodes=codes
    )
    talk(child, codes)


def talk(child: MPI.Intercomm, codes: list) -> None:
    """Exchange data with children, and print what they say."""
    total = child.allreduce(world.rank)
    facts = []
    if world.rank == 0:
        facts = [child.recv(source=source, tag=1) for source in range(child.remote_size)]
    everyone = child.Merge(high=False)
    everyone.Barrier()
    print(f"{world.rank} of {everyone.size}: {total} {codes} {facts}")
    everyone.Free()
    child.Disconnect()


if __name__ == "__main__":
    if sys.argv[1:2] == ["child"]:
        run_child()
    else:
        run_parent()
