"""Checkpoints: ranks that save or load something else, killed saves, damaged files. Earlier data stays intact."""

from __future__ import annotations

from faults.case import DEADLINE, LAUNCH, SECONDS, WHO, Case

LATE = SECONDS + DEADLINE
SAVED = """
from spmdsim.arrays.checkpoint import load, save
def there(name): return os.path.join(FOLDER, name)
save(there("c"), {"x": x, "y": Tensor.from_global(a + 1, ROWS, w)})
"""
#: Run when all is over: the good checkpoint is there, whole and of one time.
INTACT = """
import sys
import numpy as np
from spmdsim import LockStep, Mesh
from spmdsim.arrays.checkpoint import load
m = Mesh((3,), ("q",))
try:
    tensors = load(sys.argv[1] + "/c", LockStep(3), lambda name, shape: m("q", None))
    x, y = (np.concatenate([np.asarray(s) for s in tensors[n].shards]) for n in ("x", "y"))
    if not ((y - x == 1).all() and x.shape == (64, 32)):
        print("the checkpoint is a mixture")
except Exception as error:
    print("the checkpoint is lost:", error)
"""
#: The same, and a further save leaves nothing of those that were killed.
CLEANED = (
    INTACT
    + """
import os
from spmdsim import Tensor
from spmdsim.arrays.checkpoint import save
save(sys.argv[1] + "/c", tensors)
folders = [name for name in os.listdir(sys.argv[1] + "/c") if os.path.isdir(sys.argv[1] + "/c/" + name)]
if len(folders) > 1:
    print("left over by killed saves:", folders)
"""
)


def saving(name: str, text: str, *says: str, after: str = INTACT, **more: object) -> Case:
    """Return a case in which the ranks differ in a second save()."""
    more = {"seconds": LATE, **more}
    return Case(name, "checkpoint", SAVED + "begins()\n" + text, (WHO, *says), after=after, **more)  # type: ignore[arg-type]


CASES = [
    saving("saves another name", "save(there('c'), {('z' if bad else 'x'): x, 'y': x})  # @here\n", "{here}"),
    saving("saves one tensor more", "save(there('c'), {'x': x, 'y': x, **({'z': x} if bad else {})})  # @here\n", "{here}"),
    saving("saves names in another order", "d = {'y': x, 'x': x} if bad else {'x': x, 'y': x}\nsave(there('c'), d)\nsave(there('c'), {'x': x, 'y': Tensor.from_global(a + 1, ROWS, w)})\n"),
    saving("saves into another folder", "save(there('d' if bad else 'c'), {'x': x, 'y': x})  # @here\n", "{here}"),
    saving("saves another layout", "save(there('c'), {'x': x.to(R), 'y': Tensor.from_global(a, R if bad else ROWS, w)})  # @here\n", "{here}"),
    saving("saves another type", "save(there('c'), {'x': Tensor.from_global(a.astype('f8' if bad else 'f4'), BOTH, w), 'y': x})  # @here\n", "{here}"),
    saving("saves another shape", "save(there('c'), {'x': Tensor.from_global(a[: 32 if bad else 64], BOTH, w), 'y': x})  # @here\n", "{here}"),
    saving("does not save", "if not bad: save(there('c'), {'x': x, 'y': x})  # @here\nstep(10)\n", "{here}"),
    saving("saves alone", "if bad: save(there('c'), {'x': x, 'y': x})  # @here\nstep(10)\n", "{here}"),
    saving("saves nothing", "save(there('c'), {} if bad else {'x': x, 'y': x})  # @here\n", "{here}"),
    saving("two tensors of equal shape, exchanged", "d = {'x': x, 'y': Tensor.from_global(a + 1, BOTH, w)}\nif bad: d['x'], d['y'] = d['y'], d['x']\nsave(there('c'), d)  # @here\n", "{here}"),
    saving(
        "the disk is full for one rank", "if bad: resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000)); signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "save(there('c'), {'x': x, 'y': Tensor.from_global(a, BOTH, w)})  # @here\n", r"(?i)file too large|no space|cannot",
    ),
]  # fmt: skip
#: Same names in another order is no disagreement.
CASES = [
    case if case.name != "saves names in another order" else Case(
        case.name, "nothing wrong", case.body, fails=False, after=INTACT
    )
    for case in CASES
]  # fmt: skip

KILLED = """
def all_of(k): return {"x": Tensor.from_global(a + k, BOTH, w), "y": Tensor.from_global(a + k + 1, ROWS, w)}
if bad:
    from spmdsim.arrays import checkpoint, files
    def dying(*_, **__): begins(); os.kill(os.getpid(), 9)
    if HOW == "timer":
        threading.Timer(0.05, dying).start()
    elif HOW == "fsync":
        os.fsync = dying
    else:
        os.replace = os.rename = dying
for k in range(1, 1000): save(there("c"), all_of(k))
"""
CASES += [
    Case(
        f"killed while saving, {how}" + ("" if bad else " on rank 0"), "checkpoint", SAVED + f"HOW = {how!r}\n" + KILLED,
        (WHO, "(?i)signal 9|killed|EXIT CODE: 9"), ("(?i)signal 9|killed|EXIT CODE: 9",), after=CLEANED, bad=bad, seconds=20,
    )
    for how, bad in (("timer", 1), ("timer", 0), ("rename", 0))
]  # fmt: skip
CASES += [
    Case(
        "the job is killed while saving", "checkpoint",
        SAVED + "begins()\nfor k in range(1, 10**6): save(there('c'), {'x': Tensor.from_global(a + k, BOTH, w), 'y': Tensor.from_global(a + k + 1, ROWS, w)})\n",
        signal=9, ways=(LAUNCH,), after=CLEANED, seconds=20,
    )
]  # fmt: skip


def damaged(name: str, damage: str, *says: str) -> Case:
    """Return a case of files that are damaged before load(): one equal line on all ranks, and no data."""
    body = (
        SAVED + "import glob, json\nw.barrier()\n"
        "shards = sorted(glob.glob(there('c') + '/**/rank-00001.safetensors', recursive=True))\n"
        f"if rank == 0:\n    {damage}\nw.barrier()\nbegins()\n"
        "tensors = load(there('c'), w)  # @here\nprint('LOADED', tensors['x'].full().sum())\n"
    )
    return Case(name, "damaged files", body, says, never=("LOADED",), seconds=LATE, ways=(LAUNCH,))


READS = "data = bytearray(open(shards[0], 'rb').read()); "
WRITES = "open(shards[0], 'wb').write(data)"
MANIFEST = "path = [p for p in glob.glob(there('c') + '/**/*.json', recursive=True)][0]; "
CASES += [
    damaged("a bit of a shard", READS + "data[-5] ^= 16; " + WRITES, "rank-00001"),
    damaged("a shard cut short", READS + "del data[-64:]; " + WRITES, "rank-00001"),
    damaged("a shard that is empty", READS + "del data[:]; " + WRITES, "rank-00001"),
    damaged("a shard that is gone", "os.remove(shards[0])", "rank-00001"),
    damaged("a shard of another rank in its place", "open(shards[0], 'wb').write(open(shards[0].replace('00001', '00002'), 'rb').read())", "rank-00001"),
    damaged("a header with offsets outside", READS + "n = int.from_bytes(data[:8], 'little'); h = json.loads(bytes(data[8:8+n])); k = next(k for k in h if k != '__metadata__'); h[k]['data_offsets'] = [-8, h[k]['data_offsets'][1] - 8]; t = json.dumps(h).encode(); data = len(t).to_bytes(8, 'little') + t + bytes(data[8+n:]); " + WRITES, "rank-00001"),
    damaged("a manifest that is no JSON", MANIFEST + "open(path, 'w').write('{')", "json"),
    damaged("a manifest of another shape", MANIFEST + "text = open(path).read(); open(path, 'w').write(text.replace('64', '65', 1))", r"json|shape|rank-0000"),
    damaged("a manifest that is gone", MANIFEST + "os.remove(path)", r"c\b"),
    Case("no checkpoint there", "damaged files", SAVED + "begins()\nload(there('nothing'), w)\n", ("nothing",)),
    Case("the folder is there on one rank only", "damaged files", SAVED + "begins()\nload(there('nothing' if bad else 'c'), w)  # @here\n", (WHO, "nothing"), seconds=LATE),
    Case("a table of strategies that is damaged", "damaged files", "from spmdsim.cost.machine_file import load_machine\nif rank == 0: open(os.path.join(FOLDER, 'm.json'), 'w').write('{\"alpha\": ')\nw.barrier()\nbegins()\nload_machine(os.path.join(FOLDER, 'm.json'))\n", ("m.json",)),
]  # fmt: skip
