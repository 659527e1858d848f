"""Right answers that differ from the solutions earn all points, because the judge replays all that they call."""

from __future__ import annotations

import pytest

from spmdsim.labs import lab, score

#: The number of a lab and the name of a task -> an answer, which follows the first lines of the lab.
OTHER: dict[tuple[int, str], str] = {
    (9, "ring"): """
from mpi4py import MPI
COMM = MPI.COMM_WORLD
def ring(comm, mine):
    total, box = mine, np.array([mine], float)
    for _ in range(comm.Get_size() - 1):
        came = np.empty(1)
        requests = [COMM.Isend([box, MPI.DOUBLE], dest=(comm.rank + 1) % comm.size), comm.Irecv(came, source=(comm.rank - 1) % comm.size)]
        MPI.Request.Waitall(requests)
        total, box = total + came[0], came
    return int(total)
""",
    (9, "halo"): """
def halo(comm, u):
    from mpi4py import MPI
    left = comm.rank - 1 if comm.rank else MPI.PROC_NULL
    right = comm.rank + 1 if comm.rank + 1 < comm.size else MPI.PROC_NULL
    reqs = [comm.Irecv(u[:1], source=left), comm.Irecv(u[-1:], source=right)]
    comm.Send(u[1:2].copy(), left)
    comm.Send(u[-2:-1].copy(), right)
    for r in reqs:
        r.Wait()
    return u
""",
    (9, "swap"): """
def swap(comm, mine):
    from mpi4py import MPI
    other = comm.rank ^ 1
    if other >= comm.size:
        return mine
    try:
        comm.send(1, dest=99)
    except MPI.Exception as error:
        assert error.Get_error_class() == MPI.ERR_RANK
    theirs = mine.copy()
    comm.Sendrecv_replace(theirs, dest=other, source=other)
    return theirs
""",
    (9, "farm"): """
def farm(comm, tasks, work):
    from mpi4py import MPI
    status = MPI.Status()
    if comm.rank:
        comm.send({"rank": comm.rank}, dest=0)
        while True:
            job = comm.recv(source=0, tag=MPI.ANY_TAG, status=status)
            if status.tag == 9:
                return None
            comm.send({"n": job[0], "value": work(job[1])}, dest=0)
    results, k = {}, 0
    open_workers = comm.size - 1
    while open_workers:
        comm.Probe(MPI.ANY_SOURCE, MPI.ANY_TAG, status)
        who = status.Get_source()
        got = comm.recv(source=who)
        if "n" in got:
            results[got["n"]] = got["value"]
        if k < len(tasks):
            comm.send((k, tasks[k]), dest=who)
            k += 1
        else:
            comm.send(None, dest=who, tag=9)
            open_workers -= 1
    return [results[i] for i in range(len(tasks))]
""",
    (4, "mlp"): """
def mlp(x, w1, b1, w2):
    mesh = x.layout.mesh
    h = x @ Tensor.from_global(w1, mesh(None, "tp"))
    h += Tensor.from_global(b1, mesh("tp"))
    h = ops.maximum(h, 0)
    return (h @ Tensor.from_global(w2, mesh("tp", None))).to(mesh(None, None))
""",
    (4, "loss"): """
import numpy as np
def loss(h, table, labels):
    logits = h @ table.T
    top = ops.max(logits, dim=1, keepdims=True)
    shifted = logits - top
    total = ops.log(ops.sum(ops.exp(shifted), dim=1))
    onehot = ops.cast(ops.equal(ops.reshape(labels, (16, 1)), Tensor.from_global(np.arange(64), table.layout.mesh("tp"))), "float32")
    return ops.mean(total - ops.sum(shifted * onehot, dim=1))
""",
    (5, "chain"): """
def chain(x, w, v):
    y = x @ w @ v
    return y.to(y.layout.reduced)
""",
    (5, "activation"): """
def activation(x, w):
    mesh = x.layout.mesh
    y = ops.einsum("mk,kn->mn", x, w)
    y = y.to(mesh("r", None))
    return y * (y > 0)
""",
    (3, "contraction"): """
def contraction(x, w):
    mesh = x.layout.mesh
    return matmul.op.shard((mesh(None, "r"), mesh("r", None)), mesh("r", None))(x, w)
""",
    (6, "two_readers"): """
def two_readers(x):
    mesh = x.layout.mesh
    whole = x.to(mesh(None, None))
    y = ops.concat([whole[:8], whole[8:]], 0)
    return [y.to(mesh(None, "r")), y]
""",
    (6, "finish"): """
def finish(y):
    mesh = y.layout.mesh
    z = y.to(mesh(("dp", "tp"), None))
    return (z.T.T).reshape(z.shape)
""",
    (8, "cheapest"): """
from functools import cache
def cheapest(costs, moves):
    @cache
    def best(i, t):
        if i == 0:
            return costs[0][t], (t,)
        return min(
            (best(i - 1, s)[0] + moves[i - 1][s][t] + costs[i][t], best(i - 1, s)[1] + (t,))
            for s in range(len(costs[i - 1]))
        )
    return min(best(len(costs) - 1, t) for t in range(len(costs[-1])))
""",
    (7, "optimiser"): """
def optimiser(parameters, rate):
    return Adam(list(parameters), rate=rate, betas=(0.9, 0.999), state_layout=lambda p: p.layout.mesh("dp", None))
""",
}


@pytest.mark.parametrize("number, name", OTHER, ids=str)
def test_another_right_answer_earns_all_points(number: int, name: str) -> None:
    course_lab = lab(number)

    def program() -> dict[str, object]:
        text = f"{course_lab.setup}\nfrom spmdsim import Tensor, ops\n{OTHER[number, name]}"
        variables: dict[str, object] = {"__name__": f"lab{number}"}
        exec(compile(text, f"lab{number}.py", "exec"), variables)
        return variables

    marks = score(course_lab, course_lab.task(name), program)
    assert (marks.points, marks.mistake) == (marks.most, None)


def test_a_grid_of_negative_numbers_earns_nothing():
    """The product of negative numbers can be the rank count, and the formula then gives too few words."""
    program = "def best_grid(m, k, n, ranks):\n    return (-1, -1, ranks)\n"
    variables = {}
    exec(program, variables)
    course_lab = lab(3)
    grade = score(course_lab, course_lab.task("best_grid"), lambda: variables)
    assert grade.points == 0 and "three whole numbers from 1 on" in grade.mistake
