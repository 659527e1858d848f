"""Values and settings that must be equal on all ranks, and differ on one."""

from __future__ import annotations

from faults.case import DEADLINE, LAUNCH, MPIRUN, SECONDS, WHO, Case

LATE = SECONDS + DEADLINE
FIRST = r"[\[(]0, 0[\])]"
SEEN = {"SPMDSIM_CHECK": "values"}

TRAIN = """
p = Tensor.from_global(np.ones((32, 16), np.float32), R, w, requires_grad=True)
xs = Tensor.from_global(a / 2048, ROWS, w)
for k in range(30):
    y = matmul(xs, p)
    loss = (y * y).sum()
    loss.backward()
    if k == 10 and bad:
        begins()
        p.shards[0][0, 0] += 1
    new = p.local() - 0.001 * p.grad.to(R).local()
    p = Tensor.from_local(new, R, w, requires_grad=True)
"""

TRAINED = """
from spmdsim import nn
m = nn.Linear(32, 16, mesh(None, None))
m.materialise(w, seed=1)
best = nn.SGD(m.parameters(), 0.2 if bad else 0.1)
xs = Tensor.from_global(a / 2048, ROWS, w)
begins()
for k in range(10):
    y = m(xs)
    loss = (y * y).sum()
    loss.backward()
    best.step()
    best.zero_grad()
    print(loss.item())  # @here
"""


def value(name: str, body: str, *says: str, **more: object) -> Case:
    """Return a case of ranks that disagree about a value."""
    return Case(name, "values", body, (WHO, *says), **more)  # type: ignore[arg-type]


def numbers(name: str, text: str) -> Case:
    """Return a case in which one rank passes another number to an operator."""
    body = f"from spmdsim.ops import dropout\nt = Tensor.from_global(a, R, w)\nbegins()\nt = {text}\nt.to(mesh('dp', None)).full()  # @here\n"
    return value(f"{name}, a number", body, "{here}", "a tensor computed (otherwise|by)")


CASES = [
    value("other array, copied", "begins()\nt = Tensor.from_global(a + bad, R, w)  # @here\nt.to(ROWS).full()\n", "{here}", FIRST),
    value("other array, split", "begins()\nt = Tensor.from_global(a + bad, BOTH, w)  # @here\nt.full()\n", "{here}", FIRST),
    value("one element of an array", "b = a.copy()\nb[0, 0] += 1e-3 * bad\nbegins()\nt = Tensor.from_global(b, R, w)  # @here\nt.full()\n", "{here}", FIRST),
    value("nan on one rank", "b = a.copy()\nif bad: b[0, 0] = np.nan\nbegins()\nt = Tensor.from_global(b, R, w)  # @here\nt.full()\n", "{here}", FIRST),
    value("a large array", "b = np.random.default_rng(rank == BAD).standard_normal((1024, 1024))\nbegins()\nt = Tensor.from_global(b, BOTH, w)  # @here\nt.full()\n", "{here}"),
    value("an array after many calls", "step(200)\nbegins()\nt = Tensor.from_global(a + bad, R, w)  # @here\nt.to(ROWS).full()\n", "{here}", FIRST),
    value("labels in another order", "order = np.random.default_rng(7 + bad).permutation(64)\nbegins()\nt = Tensor.from_global(order, mesh('dp'), w)  # @here\nt.full()\n", "{here}"),
    value("a list of numbers", "begins()\nt = Tensor.from_global([[1.0, 2.0], [3.0, 4.0 + bad]], R, w)  # @here\nt.to(ROWS).full()\n", "{here}"),
    value("a function of the index, copied", "begins()\nt = Tensor.from_global(lambda i: a[i] + bad, R, w, shape=a.shape, dtype=a.dtype)  # @here\nt.to(ROWS).full()\n", "{here}"),
    value("other type of an array", "begins()\nt = Tensor.from_global(a.astype('f8' if bad else 'f4'), R, w)  # @here\nt.to(ROWS).full()\n", "{here}", "float32", "float64"),
    value("other shape of an array", "begins()\nt = Tensor.from_global(a[: 32 if bad else 64], R, w)  # @here\nt.to(ROWS).full()\n", "{here}", "32", "64"),
    value("another seed", "from spmdsim.arrays.random import normal\nbegins()\nt = normal((64, 32), R, w, seed=5 if bad else 4)  # @here\nt.to(ROWS).full()\n", "{here}", "seed", r"\b4\b", r"\b5\b"),
    value("another seed, split", "from spmdsim.arrays.random import normal\nbegins()\nt = normal((64, 32), BOTH, w, seed=5 if bad else 4)  # @here\nt.full()\n", "{here}", "seed"),
    value("another seed of a network", "from spmdsim import nn\nm = nn.Linear(32, 16, mesh(None, None))\nbegins()\nm.materialise(w, seed=5 if bad else 4)  # @here\nfor p in m.parameters(): p.value.to(R if len(p.value.shape) == 2 else mesh(None)).full()\nm(x.to(ROWS)).full()\n", "{here}"),
    value("a replica is written, and asked for", "from spmdsim import check_replicas\nt = Tensor.from_global(a, R, w)\nbegins()\nif bad: t.shards[0][0, 0] += 100\ncheck_replicas(t)  # @here\n", "{here}", FIRST),
    value("a replica is written, late, and asked for", "from spmdsim import check_replicas\nstep(300)\nt = Tensor.from_global(a, R, w)\nbegins()\nif bad: t.shards[0][63, 31] += 100\ncheck_replicas(t)  # @here\n", "{here}", r"[\[(]63, 31[\])]"),
    value("a split tensor's replicas are written", "from spmdsim import check_replicas\nt = Tensor.from_global(a, ROWS, w)\nbegins()\nif bad: t.shards[0][0, 5] += 100\ncheck_replicas(t)  # @here\n", "{here}"),
    value("a replica is written, values watched", "t = Tensor.from_global(a, R, w)\nbegins()\nif bad: t.shards[0][0, 0] += 100\nfor _ in range(50): t.to(ROWS).to(R)\nt.to(ROWS).full()\n", variables=SEEN),
    value("parameters diverge, values watched", TRAIN, variables=SEEN),
    value("local pieces of copies differ, values watched", "begins()\nt = Tensor.from_local(a + bad, R, w)  # @here\nfor _ in range(50): t.to(ROWS).to(R)\n", variables=SEEN),
    value("local pieces of other types", "begins()\nt = Tensor.from_local(np.zeros((16, 32), 'f8' if bad else 'f4'), BOTH, w)  # @here\nt.to(R)\n", "float32", "float64"),
    value("local pieces of another shape", "begins()\nt = Tensor.from_local(np.zeros((17 if bad else 16, 32), 'f4'), BOTH, w)  # @here\nt.to(R)\n", "17"),
    value("ids of owned rows", "table = Tensor.from_global(np.ones((64, 8), np.float32), mesh('tp', None), w)\nbegins()\ni = Tensor.from_global(np.arange(16) + 3 * bad, mesh(None), w)  # @here\nembedding(i, table, rows='owned').full()\n", "{here}"),
    numbers("a factor", "t * (3.0 if bad else 2.0)"),
    numbers("a seed of dropout", "dropout(t, 0.5, seed=rank)"),
    numbers("the dim of a sum", "t.reshape((8, 8, 32)).sum(0 if bad else 1)"),
    value("another learning rate", TRAINED, "{here}", "a tensor computed (otherwise|by)"),
    value("a factor that is a number, values watched", "begins()\nt = Tensor.from_global(a, R, w) * (3.0 if bad else 2.0)  # @here\nt.to(ROWS).full()\n", "{here}", variables=SEEN),
]  # fmt: skip

#: Other code or numbers in functions, masks and files, each with the lines or values that must be said.
OTHERWISE = {
    "a mask": ("t = Tensor.from_global(a, BOTH, w)\nbegins()\ny = t[t > (9.0 if bad else 5.0)]  # @here\ny.full()\n", ("{here}", r"number 9\.0", r"number 5\.0")),
    "what nonzero looks at": ("from spmdsim import ops\nt = Tensor.from_global(a, BOTH, w)\nbegins()\ny = ops.nonzero(t * (3.0 if bad else 2.0))[0]  # @here\ny.full()\n", ("{here}", r"number 3\.0", r"number 2\.0")),
    "another operator before the same ones": ("from spmdsim import ops\nbegins()\nif bad:\n    y = ops.tanh(x)  # @there\nelse:\n    y = ops.relu(x)  # @here\n(y * 2 + 1).full()\n", ("by relu at {here}", "by tanh at {there}")),
    "the code of a local function": ("from spmdsim import local_map\nf = (lambda v: v * 3) if bad else (lambda v: v * 2)  # @here\nbegins()\nlocal_map(f)(x).full()\n", ("{here}",)),
    "the code of an operator": ("from spmdsim import Op, Rule\nf = (lambda v: v * 3) if bad else (lambda v: v * 2)  # @here\nbegins()\nOp('times', Rule.parse('... -> ...'), f)(x).full()\n", ("{here}",)),
    "an argument of a local function": ("from functools import partial\nfrom spmdsim import local_map\nf = partial(lambda v, k: v * k, k=3 if bad else 2)\nbegins()\nlocal_map(f)(x).full()  # @here\n", ("{here}", "k=3", "k=2")),
    "a number that a local function closes over": ("from spmdsim import local_map\ndef scaled(k): return local_map(lambda v: v * k)\nbegins()\nscaled(3.0 if bad else 2.0)(x).full()  # @here\n", ("{here}", r"k=3\.0", r"k=2\.0")),
    "one element of a large array": ("b = np.zeros(70_000, np.float32)\nb[69_998] += bad\nbegins()\nt = Tensor.from_global(b, line('all'), w)  # @here\nt.full()\n", ("{here}", r"69998")),
    "another file": ("from spmdsim.arrays.files import open_array\nnp.save(os.path.join(FOLDER, f'{rank}.npy'), a + bad)\nw.barrier()\nfile = open_array(os.path.join(FOLDER, f'{rank}.npy'))\nbegins()\nt = Tensor.from_global(file, BOTH, w)  # @here\nt.full()\n", ("{here}", "a file of")),
    "a number read of a replica": ("t = Tensor.from_global(a, R, w)\nbegins()\nloss = (t * (3.0 if bad else 2.0)).sum()  # @here\nprint(loss.item())  # @read\nstep()\n", ("{here}", "{read}", r"number 3\.0", r"number 2\.0")),
    "a rate read of a replica, no collective": ("t = Tensor.from_global(a, R, w)\nbegins()\nloss = t.mean() if bad else t.max()  # @here\nfor _ in range(5): t = t - float(loss) * t  # @read\nsys.exit(0)\n", ("{here}", "{read}", "computed by mean", "computed by max")),
    "a gradient read of a replica": ("p = Tensor.from_global(np.ones(16), mesh(None), w, requires_grad=True)\nbegins()\n(p * (3.0 if bad else 2.0)).sum().backward()  # @here\nprint(p.grad.full()[0])  # @read\nstep()\n", ("{here}", "{read}", r"number 3\.0", r"number 2\.0")),
    "one row of a file": ("from spmdsim.arrays.files import open_array\nb = np.zeros((5000, 100))\nb[1234] = bad\nnp.save(os.path.join(FOLDER, f'{rank}.npy'), b)\nw.barrier()\nfile = open_array(os.path.join(FOLDER, f'{rank}.npy'))\nbegins()\nt = Tensor.from_global(file, BOTH, w)  # @here\nt.full()\n", ("{here}", "a file of")),
}  # fmt: skip
CASES += [value(name, body, *says, ways=(LAUNCH,)) for name, (body, says) in OTHERWISE.items()]

LOADS = """
from spmdsim.arrays.checkpoint import load, save
for k in (0, 1):
    save(os.path.join(FOLDER, f"c{k}"), {"a": Tensor.from_global(a * (1 - 2 * k), BOTH, w)})
begins()
t = load(os.path.join(FOLDER, f"c{int(bad)}"), w)["a"]  # @here
t.full()
"""
CASES += [
    value("loads from another folder", LOADS, "{here}"),
    value("loads into another layout", LOADS.replace('f"c{int(bad)}"), w)', '"c0"), w, lambda name, shape: ROWS if bad else COLUMNS)'), "{here}"),
]  # fmt: skip


def setting(
    name: str, top: str, *says: str, body: str = "begins()\nstep(100)\nw.barrier()\n", **more: object
) -> Case:
    """Return a case of ranks that disagree about a setting."""
    return Case(name, "settings", body, (WHO, *says), top=top, seconds=LATE, **more)  # type: ignore[arg-type]


def variable(name: str, text: str, *says: str, **more: object) -> Case:
    """Return a case in which a variable is set on the faulty rank only."""
    top = f"if bad: os.environ[{name!r}] = {text!r}\n"
    return setting(f"{name}={text} on one rank", top, name, *says, **more)


CASES += [
    variable("SPMDSIM_CHECK", "0"),
    variable("SPMDSIM_CHECK", "1"),
    variable("SPMDSIM_CHECK", "values"),
    variable("SPMDSIM_CHECK", "perhaps", "perhaps"),
    variable("SPMDSIM_DEADLINE", "7", "7"),
    variable("SPMDSIM_DEADLINE", "soon", "soon"),
    setting(
        "a tuning file on one rank",
        "path = os.path.join(FOLDER, f'tuning-{rank}.json')\nchosen = {'copy': 3}\nopen(path, 'w').write(repr({'Open MPI': chosen, 'MPICH': chosen}).replace(chr(39), chr(34)))\nif bad: os.environ['SPMDSIM_TUNE'] = path\n",
        "SPMDSIM_TUNE",
    ),
    setting(
        "SPMDSIM_MACHINE on one rank", "if bad: os.environ['SPMDSIM_MACHINE'] = 'accelerators'\n", "SPMDSIM_MACHINE",
    ),
    setting(
        "another machine on one rank", "", "machine",
        body="from spmdsim.cost.machine_file import load_machine\nbegins()\nif bad: w.machine = load_machine('accelerators')\n"
        "for _ in range(3): x.to(mesh(None, 'dp')).to(mesh('tp', 'dp')).to(R)\n",
    ),
    setting(
        "another version of the package", "import spmdsim, spmdsim._version\nif bad: spmdsim.__version__ = spmdsim._version.__version__ = '0.0.9'\n",
        "0.0.9",
    ),
    setting("another version of numpy", "import numpy\nif bad: numpy.__version__ = '1.26.4'\n", "numpy", "1.26.4"),
    setting("another version of mpi4py", "import mpi4py\nif bad: mpi4py.__version__ = '3.1.5'\n", "mpi4py", "3.1.5"),
    setting(
        "another text of the program",
        """
        if bad and "other" not in FOLDER:
            other = os.path.join(FOLDER, "other", "program.py")
            os.makedirs(os.path.dirname(other), exist_ok=True)
            text = open(__file__).read().replace("FOLDER = os.path.dirname(", "FOLDER = os.path.dirname(os.path.dirname(", 1)
            text = text.replace('__file__))', '__file__)))', 1).replace('"other" not in FOLDER', "False")
            open(other, "w").write(text + "# another line\\n")
            os.execv(sys.executable, [sys.executable, other])
        """,
        "program.py", ways=(MPIRUN,),
    ),
]  # fmt: skip
