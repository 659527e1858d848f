"""Ranks that run different collectives, among the first ones and after 40 calls of both."""

from __future__ import annotations

from dataclasses import replace

from faults.case import DEADLINE, LAUNCH, MPIRUN, SECONDS, WHO, Case, mismatch

LATE = SECONDS + DEADLINE
KIND = "mismatch"
PARTIAL = """
def pending(op, dtype=np.float32, n=8):
    return Tensor.from_local(np.full((n,), rank + 1, dtype), Layout(line, [()], {"all": op}), w, shape=(n,))
V = line(None)
"""
PAIR = """
A = Tensor.from_global(a[:32], ALL, w)
B = Tensor.from_global(a[:32] * 2, line(None, "all"), w)
"""
ALIKE = """
A, B = Tensor.from_global(a, BOTH, w), Tensor.from_global(-a, BOTH, w)
"""


def both(name: str, setup: str, here: str, there: str, *words: str, **more: object) -> list[Case]:
    """Return the early and the late case of a mismatch."""
    return mismatch(name, setup, here, there, *words, kind=KIND, **more)  # type: ignore[arg-type]


CASES = [
    *both("layout", PAIR, "A.to(NONE)", "B.to(NONE)"),
    *both("target layout", "", "x.to(ROWS)", "x.to(COLUMNS)"),
    *both("two equal calls on other tensors", ALIKE, "(A.to(R), B.to(R))", "(B.to(R), A.to(R))"),
    *both("element type of the same size", "B = Tensor.from_global(a.astype(np.int32), BOTH, w)", "x.to(R)", "B.to(R)", "float32", "int32"),
    *both("element type of another size", "B = Tensor.from_global(a.astype(np.float64), BOTH, w)", "x.to(R)", "B.to(R)", "float32", "float64"),
    *both("reduction", PARTIAL + "P, Q = pending('sum'), pending('prod')", "P.to(V)", "Q.to(V)", "sum", "prod"),
    *both("sum and max", PARTIAL + "P, Q = pending('sum'), pending('max')", "P.to(V)", "Q.to(V)", "sum", "max"),
    *both("root", "P, Q = (Tensor.from_global(a, Mesh((1,), ('z',), (k,))(None, None), w) for k in (0, 2))", "P.to(R)", "Q.to(R)"),
    *both("global shape", "B = Tensor.from_global(a.reshape(32, 64), BOTH, w)", "x.to(R)", "B.to(R)", "64.*32", "32.*64"),
    *both("count", "B = Tensor.from_global(a[:32], BOTH, w)", "x.to(R)", "B.to(R)", "64", "32"),
    *both("two calls in another order", PAIR, "(A.to(NONE), B.to(NONE))", "(B.to(NONE), A.to(NONE))"),
    *both("a call left out", "", "x.to(COLUMNS)", "None"),
    *both("another operator", "u = Tensor.from_global(np.ones((32, 16), np.float32), R, w)", "x.to(R)", "matmul(x, u).to(ROWS)"),
    *both("strategy", "u = Tensor.from_global(np.ones((32, 16), np.float32), R, w)\nt = Tensor.from_global(a, R, w)",
          "matmul.op.shard(((2, 2), (2, 1)))(t, u).to(R)", "matmul.op.shard(((1, 2), (2, 1)))(t, u).to(R)"),
    *both("reduce_scatter and all_reduce", PARTIAL + "P = pending('sum')", "P.to(V)", "P.to(line('all'))"),
    *both("rows of the mesh", "B = Tensor.from_global(a, ROWS, w)", "B.to(R)", "None"),
    *both("rank order of the mesh", "M = Mesh((4,), ('all',), (0, 2, 1, 3))\nB = Tensor.from_global(a, M('all', None), w)\nA = Tensor.from_global(a, ALL, w)",
          "A.to(NONE)", "B.to(M(None, None))"),
    *both("barrier against a collective", "", "x.to(COLUMNS)", "w.barrier()", "barrier", seconds=LATE),
    *both("a barrier left out", "", "w.barrier()", "None", seconds=LATE),
    *both("exchange of objects against a collective", "", "x.to(COLUMNS)", "w.gather_objects([1])", seconds=LATE),
    *both("gradient of one operand", """
        p = Tensor.from_global(np.ones((32, 16), np.float32), R, w, requires_grad=True)
        q = Tensor.from_global(np.ones((32, 16), np.float32), R, w, requires_grad=True)
        def back(t):
            matmul(Tensor.from_global(a, ROWS, w), t).sum().backward()  # @back
            return t.grad.full()
        """, "back(p)", "back(q)", "{back}", lines=False),
    *both("embedding of other ids", """
        table = Tensor.from_global(np.ones((64, 8), np.float32), mesh("tp", None), w)
        i, j = (Tensor.from_global((np.arange(16) * 4 + k) % 64, mesh(None), w) for k in (0, 3))
        """, "embedding(i, table, rows='owned').to(R)", "embedding(j, table, rows='owned').to(R)"),
    *both("reshape", "", "x.reshape((32, 64), R)", "x.reshape((128, 16), R)"),
    *both("a whole value taken by some", "", "x.full()", "None"),
    *both("check() on some ranks", "", "check(x, a)", "None", seconds=LATE),
    *both("emulated algorithm on one rank", PARTIAL + "P = pending('sum')\nring = w", "P.to(V)", "w.use(all_reduce='ring') or P.to(V)", phases=("early",)),
]  # fmt: skip

#: One rank does something that the others do not; who waits, waits in the next call.
ALONE = {
    "a call too many": ("x.to(COLUMNS)  # @here", ("{here}", "{step}"), SECONDS),
    "item() alone": ("t.sum().item()  # @here", ("{here}",), LATE),
    "full() alone": ("x.full()  # @here", ("{here}", "{step}"), LATE),
    "check() alone": ("check(x, a)  # @here", ("{here}", "{step}"), LATE),
    "a world of its own": ("from spmdsim import MPIWorld; MPIWorld()  # @here", (), LATE),
    "closes the world": ("w.close()  # @here", (), LATE),
    "chooses an algorithm": ("w.use(all_gather='ring')  # @here", ("ring",), SECONDS),
    "shares results": ("w.use(replicated='shared')  # @here", (), SECONDS),
    "speaks to MPI itself": ("from mpi4py import MPI; MPI.COMM_WORLD.allreduce(1)  # @here", ("{step}",), LATE),
    "barrier alone": ("w.barrier()  # @here", ("{step}",), LATE),
    "saves alone": ("from spmdsim.arrays.checkpoint import save; save(os.path.join(FOLDER, 'c'), {'x': x})  # @here", ("{here}", "{step}"), LATE),
    "another mesh": ("M = Mesh((4,), ('q',)); Tensor.from_global(a, M('q', None), w).to(M(None, None))  # @here", ("{here}",), SECONDS),
    "a mesh of two of the ranks": ("M = Mesh((2,), ('q',), (1, 2)); Tensor.from_global(a, M('q', None), w).to(M(None, None))  # @here", ("{here}",), LATE),
    "is late": ("time.sleep(60)", ("{step}",), LATE),
}  # fmt: skip

for _what, (_text, _says, _seconds) in ALONE.items():
    for _warm in (3, 90):
        CASES.append(
            Case(
                f"{_what}, {'early' if _warm == 3 else 'late'}", KIND,
                f"t = Tensor.from_global(np.ones(4, np.float32), line('all'), w)\nstep({_warm})\nbegins()\nif bad:\n    {_text}\n",
                (WHO, *_says), seconds=_seconds, ways=(LAUNCH,) if _warm == 3 else (MPIRUN, LAUNCH),
            )
        )  # fmt: skip

CASES += [
    Case(
        "a loop over a set", KIND,
        """
        names = ["wq", "wk", "wv", "wo", "w1", "w2", "b1", "b2"]
        ts = {k: Tensor.from_global(np.full((64, 32), n, np.float32), BOTH, w) for n, k in enumerate(names)}
        got = {}
        begins()
        order = sorted(names, reverse=bad)
        for k in order: got[k] = ts[k].to(R)  # @here
        assert all(got[k].local()[0, 0] == n for n, k in enumerate(names)), "WRONG VALUES"
        """,
        (WHO, "{here}"), never=("WRONG VALUES",),
    ),
    Case(
        "a loop over a set, late", KIND,
        """
        names = ["wq", "wk", "wv", "wo", "w1", "w2", "b1", "b2"]
        ts = {k: Tensor.from_global(np.full((64, 32), n, np.float32), BOTH, w) for n, k in enumerate(names)}
        def load(order): return {k: ts[k].to(R) for k in order}  # @here
        for _ in range(50): load(names)
        begins()
        got = load(sorted(names, reverse=bad))
        assert all(got[k].local()[0, 0] == n for n, k in enumerate(names)), "WRONG VALUES"
        """,
        (WHO, "{here}"), never=("WRONG VALUES",),
    ),
    Case(
        "equal tensors, other ones on one rank, in a loop", KIND,
        """
        ts = [Tensor.from_global(np.full((64, 32), n, np.float32), BOTH, w) for n in range(4)]
        for _ in range(100):
            for t in ts: t.to(R)
        begins()
        for n in range(4):
            k = (n + 1) % 4 if bad else n
            got = ts[k].to(R)  # @here
        """,
        (WHO, "{here}"),
    ),
    Case(
        "one turn of a loop left out", KIND,
        "step(100)\nbegins()\nfor k in range(10):\n    if not (bad and k == 5): x.to(R)  # @here\n",
        (WHO, "{here}"),
    ),
    Case(
        "one step of a training more", KIND,
        """
        from spmdsim import nn
        p = Tensor.from_global(np.ones((32, 16), np.float32), R, w, requires_grad=True)
        xs = Tensor.from_global(a, ROWS, w)
        def train():
            loss = matmul(xs, p).sum()
            loss.backward()  # @here
            return p.grad.full()
        for _ in range(40): train()
        begins()
        if bad: train()
        """,
        (WHO, "{here}", "{step}"),
    ),
    Case(
        "a step more, and that was all", KIND,
        "step(100)\nbegins()\nif bad: step(1)\nstep(100)\n", (WHO, "{step}"),
    ),
    Case(
        "in one of two groups", KIND,
        """
        M = Mesh((2,), ("pair",), (0, 1) if rank < 2 else (2, 3))
        A, B = Tensor.from_global(a, M("pair", None), w), Tensor.from_global(a, M(None, "pair"), w)
        def here(): return A.to(M(None, None))  # @here
        def there(): return B.to(M(None, None))  # @there
        for _ in range(100): here(), there()
        begins()
        there() if bad else here()
        """,
        (WHO, "{here}", "{there}"),
    ),
    Case(
        "groups that overlap in another order", KIND,
        """
        P, Q = Mesh((2,), ("p",), (0, 1)), Mesh((2,), ("q",), (1, 2))
        A, B = Tensor.from_global(a, P("p", None), w), Tensor.from_global(a, Q("q", None), w)
        for _ in range(50): A.to(P(None, None)); B.to(Q(None, None))
        begins()
        C = Mesh((2,), ("c",), (2, 0))
        c = Tensor.from_global(a, C("c", None), w)
        if rank == 0: c.to(C(None, None)); A.to(P(None, None))  # @here
        if rank == 1: A.to(P(None, None)); B.to(Q(None, None))
        if rank == 2: B.to(Q(None, None)); c.to(C(None, None))
        """,
        ("{here}",), seconds=LATE,
    ),
    Case(
        "threads that use the world at once", KIND,
        """
        ts = [Tensor.from_global(a * k, BOTH, w) for k in range(2)]
        failed = []
        def work(k):
            try:
                for _ in range(300):
                    got = ts[k].to(R).local() if k == 0 else ts[k].to(COLUMNS).to(R).local()
                    if not np.array_equal(got, a * k): failed.append("WRONG VALUES"); break
            except BaseException as error:
                failed.append(error)
        begins()
        threads = [threading.Thread(target=work, args=(k,)) for k in range(2)]
        [t.start() for t in threads]; [t.join() for t in threads]
        print(failed)
        if failed: raise failed[0]
        """,
        ("thread",), never=("WRONG VALUES",), seconds=LATE,
    ),
    Case(
        "with check=1, layout, late", KIND,
        PAIR + "for _ in range(100): A.to(NONE); B.to(NONE)\nbegins()\n"
        "A.to(NONE) if not bad else B.to(NONE)  # @here\n",
        (WHO, "{here}"), variables={"SPMDSIM_CHECK": "1"},
    ),
]  # fmt: skip
for _number in (63, 64, 65, 96, 97, 1000):
    CASES.append(
        Case(
            f"layout at call {_number}", KIND,
            "B = Tensor.from_global(a, line(None, 'all'), w); A = Tensor.from_global(a, ALL, w)\nA.to(NONE); B.to(NONE)\n"
            f"for _ in range({_number} - 2): A.to(NONE)\nbegins()\n"
            "if bad: got = B.to(NONE)  # @there\nelse: got = A.to(NONE)  # @here\n",
            (WHO, "{here}", "{there}"),
        )
    )  # fmt: skip

#: Ways by which a number leaves the program: none may be passed by one of a call that the ranks disagree about.
EXITS = {
    "local()": "t.local()[0, 0]",
    "shards": "t.shards[0][0, 0]",
    "full()": "t.full()[0, 0]",
    "item()": "t.sum().item()",
    "float()": "float(t.sum())",
    "a copy elsewhere": "(t * 2.0).to(ROWS).local()[0, 0]",
    "check()": "check(t, a)",
}
for _exit, _text in EXITS.items():
    CASES.append(
        Case(
            f"a wrong number leaves by {_exit}", KIND,
            ALIKE + "def here(): return A.to(R)  # @here\ndef there(): return B.to(R)  # @there\n"
            "for _ in range(40): here(); there()\nbegins()\nt = there() if bad else here()\n"
            f"value = {_text}\nsys.stdout.write(f'LEFT {{value}}\\n'); sys.stdout.flush()\n",
            (WHO, "{here}", "{there}"), never=("LEFT",), ways=(LAUNCH,),
        )
    )  # fmt: skip
    CASES.append(
        replace(CASES[-1], name=f"{CASES[-1].name}, on two nodes", variables={"SPMDSIM_RANKS_PER_NODE": "2"})
    )

#: The same where calls take another way through the library, or ranks share no memory, as on several nodes.
APART = "def fails(*_): raise OSError(28, 'no space')\nos.ftruncate = fails\n"
SETTINGS = {
    "recorded": ("from spmdsim import record\ntrace = record().__enter__()\n", ""),
    "with an emulated algorithm": ("w.use(all_gather='ring')\n", ""),
    "with shared results": ("w.use(replicated='shared')\n", ""),
    "without shared memory": ("", APART),
}
for _name, (_setup, _top) in SETTINGS.items():
    for _what, _setup_two, _here, _there in (
        ("layout", PAIR, "A.to(NONE)", "B.to(NONE)"),
        ("two equal calls on other tensors", ALIKE, "(A.to(R), B.to(R))", "(B.to(R), A.to(R))"),
    ):
        for _case in both(f"{_what}, {_name}", _setup + _setup_two, _here, _there, phases=("late",)):
            CASES.append(replace(_case, top=_top, ways=(LAUNCH,)))
CASES += [
    Case(
        "two worlds in another order", KIND,
        """
        from spmdsim import MPIWorld
        v = MPIWorld()
        y = Tensor.from_global(a, BOTH, v)
        def here(): return x.to(R)  # @here
        def there(): return y.to(R)  # @there
        for _ in range(40): here(); there()
        begins()
        (there(), here()) if bad else (here(), there())
        """,
        (WHO, "{here}", "{there}", "wait for one another"), never=(r"(?s)for one another.*\n.*(disagree|come (within|to call))",),
    ),
    Case(
        "a barrier left out, said once", KIND, "step(40)\nbegins()\nif not bad: w.barrier()  # @here\n",
        (WHO, "{here}", "{step}"), never=(r"(?s)disagree.*\n.*(disagree|come (within|to call)|stopped)", r"(?s)stopped.*disagree"),
    ),
]  # fmt: skip

#: The world of all ranks was closed: the next one, or those of some of the ranks, are looked after as well.
LATER = {
    "in a second world": "v, M = MPIWorld(), line\n",
    "in worlds of two ranks": "v, M = MPIWorld(MPI.COMM_WORLD.Split(rank // 2, rank)), Mesh((2,), ('all',))\n",
}
for _name, _make in LATER.items():
    _setup = f"""
w.close()
from spmdsim import MPIWorld
{_make}y = Tensor.from_global(a, M("all", None), v)
def later(n):
    for _ in range(n): y.to(M(None, None))  # @later
later(40)
begins()
"""
    for _what, _text, _says in (
        ("leaves early", "if bad: sys.exit(0)\n", ("left the program", WHO, "{later}")),
        ("sys.exit(3)", "if bad: sys.exit(3)\n", (WHO, r"sys\.exit\(3\)")),
        ("raises", "if bad: raise ValueError('here')\n", (WHO, "ValueError: here")),
        ("a call more at the end", "later(2)\nif bad: y.to(M(None, None))  # @here\n", (WHO, "{here}", "left the program")),
    ):  # fmt: skip
        CASES.append(
            Case(
                f"{_what}, {_name}",
                KIND,
                f"{_setup}{_text}later(4)\ndef step(n): time.sleep(1)\n",
                _says,
                bad=3,
            )
        )

#: Two ranks are a node, or each rank is one: what is seen of a rank goes through the network.
NODES = {"on two nodes": "2", "on four nodes": "1"}
for _name, _each in NODES.items():
    _more = {
        "variables": {"SPMDSIM_RANKS_PER_NODE": _each},
        "ways": (MPIRUN, LAUNCH) if _each == "2" else (LAUNCH,),
    }
    for _what, _setup, _here, _there in (
        ("layout", PAIR, "A.to(NONE)", "B.to(NONE)"),
        ("two equal calls on other tensors", ALIKE, "(A.to(R), B.to(R))", "(B.to(R), A.to(R))"),
        ("barrier against a collective", "", "x.to(COLUMNS)", "w.barrier()"),
    ):
        for _case in both(f"{_what}, {_name}", _setup, _here, _there, seconds=LATE):
            CASES.append(replace(_case, **_more))
    for _what, _text, _says, _seconds in (
        (
            "a call of a thousand left out",
            "for k in range(1000):\n    if k == 990: begins()\n    if not (bad and k == 300): x.to(R)  # @here\n",
            ("{here}",),
            LATE,
        ),
        (
            "a whole value taken by some",
            "step(90)\nbegins()\nif bad: x.full()  # @here\n",
            ("{here}", "{step}"),
            LATE,
        ),
        ("leaves early", "step(300)\nbegins()\nif bad: sys.exit(0)\n", ("{step}",), SECONDS),
        ("stops", "step(300)\nbegins()\nif bad: os.kill(os.getpid(), signal.SIGSTOP)\n", ("{step}",), LATE),
        ("is late", "step(300)\nbegins()\nif bad: time.sleep(60)\n", ("{step}",), LATE),
        (
            "raises",
            "step(300)\nbegins()\nif bad: raise ValueError('broken on purpose')  # @here\n",
            ("{here}",),
            SECONDS,
        ),
        (
            "saves alone",
            "step(90)\nbegins()\nfrom spmdsim.arrays.checkpoint import save\nif bad: save(os.path.join(FOLDER, 'c'), {'x': x})  # @here\n",
            ("{here}", "{step}"),
            LATE,
        ),
    ):
        CASES.append(Case(f"{_what}, {_name}", KIND, _text, (WHO, *_says), seconds=_seconds, **_more))  # type: ignore[arg-type]
CASES += [
    Case("a call left out, without shared memory", KIND, "step(40)\nbegins()\nif not bad: x.to(COLUMNS)  # @here\n", (WHO, "{here}"), top=APART, seconds=LATE),
    Case("leaves early, without shared memory", KIND, "step(40)\nbegins()\nif bad: sys.exit(0)\n", (WHO, "{step}"), top=APART, seconds=LATE),
    Case("stops, without shared memory", KIND, "step(40)\nbegins()\nif bad: os.kill(os.getpid(), signal.SIGSTOP)\n", (WHO, "{step}"), top=APART, seconds=LATE),
]  # fmt: skip
