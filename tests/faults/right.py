"""Unusual programs in which nothing is wrong: no rank is blamed, and all ranks reach the end."""

from __future__ import annotations

from faults.case import EMULATED, GUARDED, LAUNCH, MPIRUN, Case
from faults.mismatches import APART

KIND = "nothing wrong"
PROGRAMS = {
    "nothing odd": "step(200)\n",
    "one rank is 3 s late": "step(3)\nif bad: time.sleep(3)\nstep(100)\n",
    "one rank ends 3 s late": "step(100)\nif bad: time.sleep(3)\n",
    "the same call from two lines": "if bad:\n    x.to(COLUMNS)\nelse:\n    x.to(COLUMNS)\n",
    "rank 0 compares with a world of its own": """
        from spmdsim import LockStep
        for _ in range(3):
            step(20)
            if rank == 0:
                with LockStep(4) as own:
                    t = Tensor.from_global(a, BOTH, own)
                    assert (t.to(R).shards[0] == a).all()
    """,
    "one rank looks at its pieces": "for _ in range(50):\n    step(1)\n    if bad: print(x, repr(x), x.local().sum(), x.layout, x.shape)\n",
    "one rank makes a mesh": "if bad: Mesh((4,), ('q',))('q', None)\nstep(100)\n",
    "one rank collects garbage": "import gc\nfor k in range(50):\n    t = Tensor.from_global(a, BOTH, w)\n    u = t.to(R)\n    if bad: gc.collect(); del t\n    step(1)\n",
    "other numbers on each rank, split": "t = Tensor.from_local(np.random.default_rng(rank).standard_normal((16, 32)), BOTH, w)\nt.full()\nt.to(ROWS).to(R)\n",
    "pairs work at their own pace": """
        M = Mesh((2,), ("pair",), (0, 1) if rank < 2 else (2, 3))
        t = Tensor.from_global(a, M("pair", None), w)
        for k in range(30 if rank < 2 else 90): t.to(M(None, None))
        step(50)
    """,
    "ranks outside of a mesh": "M = Mesh((2,), ('q',), (0, 1))\nt = Tensor.from_global(a, M('q', None), w)\nfor _ in range(100): t.to(M(None, None))\nstep(10)\n",
    "gradients on a mesh of one rank": """
        from spmdsim import ops
        for axes in ((None, "q"), ("q", None)):
            t = Tensor.from_global(np.ones((2, 2)), Mesh((1,), ("q",), (1,))(*axes), w, requires_grad=True)
            ops.sum(t @ t).backward()
            assert (t.grad.full() == 4).all()
    """,
    "local functions with objects of a rank's own": """
        from spmdsim import local_map
        def look(me, log, noise, name, comm, root):
            def f(v, keep=("a", None)):
                if root and me == 0 and name not in {"x", "y"}: log(v.shape, comm.rank)
                return v * 2 + 0 * noise.sum()
            return local_map(f)
        for k in range(3):
            look(rank, print if rank == 0 else None, np.full(rank + 1, rank), f"log-{rank}", w.comm, rank == 0)(x).to(R)
    """,
    "rank 0 looks at what others do not": """
        from spmdsim import ops
        t = Tensor.from_global(a, R, w)
        for k in range(20):
            t = t * 0.5
            if rank == 0: print((t / 3).local().sum(), t.shape)
            step(1)
    """,
    "ranks read whole tensors as they like": """
        from spmdsim import ops
        def show(x): return x.item()
        t = Tensor.from_global(a, R, w)
        for k in range(20):
            if rank == 0: print("loss", show(t.sum() / 3))
            show(t[rank, k] * 2)
            show(t.sum() * (rank + 1.5) / (1 + k))
            for name in {"a", "bb", "ccc", "dddd"}: show(t.max() * len(name))
            if rank == k % 4: show(t.min() * float(k))
            if k % 5 == 0: step(1)
    """,
    "wrong on all ranks, and caught": """
        from spmdsim import SpmdError
        for _ in range(5):
            try:
                x.to(Mesh((64,), ("z",))("z", None))
            except SpmdError:
                pass
            step(20)
    """,
    "nan and signed zeros in copies": "b = a.copy(); b[0, 0] = np.nan; b[1, 1] = -0.0\nt = Tensor.from_global(b, R, w)\nt.to(ROWS).to(R)\n",
    "a handler of signals": "signal.signal(signal.SIGALRM, lambda *_: None)\nif bad: signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)\nstep(300)\nsignal.setitimer(signal.ITIMER_REAL, 0)\n",
    "children that are forked": """
        import multiprocessing
        ways = ("sys.exit(3)", "raise ValueError('in a child')", "pass", "threading.Thread(target=lambda: 1 / 0).start()")
        if bad:
            with multiprocessing.get_context("fork").Pool(2) as pool: assert pool.map(abs, range(4)) == [0, 1, 2, 3]
            codes = []
            for way in ways:
                if (child := os.fork()) == 0:
                    exec(way)
                    sys.exit()
                codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
            assert codes == [3, 1, 0, 0], codes
        step(50)
    """,
    "algorithms are chosen often, one rank is late": """
        step(3)
        if bad: time.sleep(2)
        for _ in range(301):
            w.use(all_gather="ring"); w.use(all_reduce="ring"); w.use()
        step(3)
    """,
    "worlds of parts of the ranks": """
        from spmdsim import MPIWorld
        for k in range(2):
            v = MPIWorld(MPI.COMM_WORLD.Split(rank // 2 if k else rank % 2, -rank))
            t = Tensor.from_global(a + rank // 2 if k else a, Mesh((2,), ("q",))("q", None), v)
            for _ in range(80): t.to(Mesh((2,), ("q",))(None, None))
            if k and rank > 1: v.close()
        w.close()
        if bad: time.sleep(3)
        w = MPIWorld()
        x = Tensor.from_global(a, BOTH, w)
    """,
    "a child that ends": "import subprocess\nif bad: subprocess.run([sys.executable, '-c', 'pass'], check=True)\nstep(50)\n",
    "a thread that computes": "t = threading.Thread(target=lambda: [np.dot(a, a.T) for _ in range(50)])\nif bad: t.start()\nstep(100)\nif bad: t.join()\n",
    "many shapes": "for k in range(1, 120):\n    Tensor.from_global(np.ones((4 * k, 3), np.float32), BOTH, w).to(R)\n",
    "a training": """
        p = Tensor.from_global(np.ones((32, 16), np.float32), R, w, requires_grad=True)
        xs = Tensor.from_global(a / 2048, ROWS, w)
        for k in range(60):
            y = matmul(xs, p)
            loss = (y * y).sum()
            loss.backward()
            if k % 10 == 0 and rank == 0: print(k)
            p = Tensor.from_local(p.local() - 0.001 * p.grad.to(R).local(), R, w, requires_grad=True)
    """,
    "sets that differ, only for local work": "names = {str(k) for k in range(20)}\nfor n in names:\n    Tensor.from_global(a, BOTH, w).local().sum()\nstep(20)\n",
    "a world is closed, another is opened": "from spmdsim import MPIWorld\nfor _ in range(3):\n    own = MPIWorld()\n    t = Tensor.from_global(a, BOTH, own)\n    for _ in range(70): t.to(R)\n    own.close()\nstep(10)\n",
}  # fmt: skip

CASES = [
    Case(
        name, KIND, text, fails=False, ways=(MPIRUN, GUARDED, LAUNCH) if name == "nothing odd" else (MPIRUN, LAUNCH),
        seconds=40,
    )
    for name, text in PROGRAMS.items()
]  # fmt: skip
CASES += [
    Case(
        f"{name}, values watched", KIND, PROGRAMS[name], fails=False, seconds=40, ways=(LAUNCH,), variables={"SPMDSIM_CHECK": mode}
    )
    for name, mode in (
        ("a training", "values"), ("nan and signed zeros in copies", "values"), ("other numbers on each rank, split", "values"),
        ("pairs work at their own pace", "1"), ("nothing odd", "0"),
    )
]  # fmt: skip
CASES += [
    Case(f"{name}, without shared memory", KIND, PROGRAMS[name], fails=False, seconds=40, ways=(LAUNCH,), top=APART)
    for name in ("nothing odd", "a training", "pairs work at their own pace", "a world is closed, another is opened")
]  # fmt: skip
CASES += [
    Case(f"{name}, on two nodes", KIND, PROGRAMS[name], fails=False, seconds=40, ways=(MPIRUN, LAUNCH), variables={"SPMDSIM_RANKS_PER_NODE": "2"})
    for name in (
        "nothing odd", "one rank ends 3 s late", "rank 0 compares with a world of its own", "one rank looks at its pieces",
        "pairs work at their own pace", "ranks outside of a mesh", "a training", "a world is closed, another is opened",
    )
]  # fmt: skip
CASES += [
    Case("nothing odd, emulated", KIND, "step(300)\nfor _ in range(20): comm.Allgather(s, g); comm.Bcast(s); comm.Barrier()\n", fails=False, ways=(EMULATED,), seconds=40),
    Case("one rank is 3 s late, emulated", KIND, "step(3)\nif bad: time.sleep(3)\nstep(100)\n", fails=False, ways=(EMULATED,), seconds=40),
    Case("a result only where it is wanted, emulated", KIND, "for _ in range(30): comm.Reduce(s, r if rank == 0 else None, root=0); comm.Gather(s, g if rank == 0 else None)\n", fails=False, ways=(EMULATED,), seconds=40),
    Case("other counts, emulated", KIND, "m = np.full(rank + 1, rank, np.float32); o = np.zeros(10, np.float32)\nfor _ in range(30): comm.Allgatherv(m, [o, (1, 2, 3, 4), (0, 1, 3, 6), MPI.FLOAT])\n", fails=False, ways=(EMULATED,), seconds=40),
]  # fmt: skip
