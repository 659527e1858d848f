"""Do the tests notice a wrong line? Seeded random mutants of the package, one at a time, against the tests.

``python scripts/mutate.py`` changes one operator, constant, argument order, branch or statement and runs the tests that
execute the function, fastest first, until one fails (killed) or all pass (survived). Tests are collected once; every
mutant is a fork with that function's code exchanged. Survivors, and mutants of what runs at import, are run again in a
process that imports the mutant. See ``mutants.py`` for what is changed and what is known to change nothing.
"""

from __future__ import annotations

import argparse
import glob
import hashlib
import importlib
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from mutant_tests import ROOMS, Tests, exchange, fork_each, import_mutant
from mutants import EQUIVALENT, Mutant, mutants_of

ROOT = Path(__file__).resolve().parent.parent
TESTS = (*ROOMS, "ops", "worlds", "cost", "cli", "trace")  # folders of test files


def choose(mutant: Mutant, executed: dict, seconds: float) -> list[str]:
    """The tests for a mutant: those seen to execute it, then others of their files (caches hide calls); fastest first."""
    owner, room = [mutant.file, mutant.owner], mutant.file.split("/")[1]
    seen = {name for name, (_, owners) in executed.items() if owner in owners}
    files = {name.split("::")[0] for name in seen}
    if not seen:
        files = {name.split("::")[0] for name in executed if name.startswith(f"tests/{room}/")}
    names = sorted(
        (n for n in executed if n.split("::")[0] in files), key=lambda n: (n not in seen, executed[n][0])
    )
    total, taken = 0.0, []
    for name in names:
        total += executed[name][0]
        if total > seconds and taken:
            break
        taken.append(name)
    return taken


def main() -> int:
    """Make mutants, run tests, print the table; 1 where fewer were killed than was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=300, help="mutants in all (300)")
    parser.add_argument("--seed", type=int, default=0, help="of the sample (0)")
    parser.add_argument("--room", choices=ROOMS, action="append", help="only of this room; may be repeated")
    parser.add_argument("--jobs", type=int, default=1, help="mutants at a time (1)")
    parser.add_argument("--seconds", type=float, default=30, help="of tests for each mutant (30)")
    parser.add_argument("--least", type=float, default=0.95, help="share that must be killed (0.95)")
    parser.add_argument("--list", action="store_true", help="print the mutants and run nothing")
    arguments = parser.parse_args()
    start, rooms = time.monotonic(), arguments.room or ROOMS
    os.environ["OMP_NUM_THREADS"] = "1"
    for name in ("numpy", "hypothesis"):  # what all children need is loaded once
        importlib.import_module(name)
    mutants: list[Mutant] = []
    for number, room in enumerate(rooms):
        files = sorted((ROOT / "spmdsim" / room).rglob("*.py"))
        every = [mutant for file in files for mutant in mutants_of(file, ROOT)]
        count = arguments.count // len(rooms) + (number < arguments.count % len(rooms))
        mutants += random.Random(f"{arguments.seed} {room}").sample(every, min(count, len(every)))
    if arguments.list:
        print("\n".join(map(str, mutants)))
        return 0
    with tempfile.TemporaryDirectory(prefix="spmdsim-mutate-") as folder:
        copy = Path(folder).resolve() / "tree"
        unwanted = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "dist")
        shutil.copytree(ROOT, copy, ignore=unwanted)
        codes = judge(mutants, copy, arguments)
    survived = [mutant for mutant, code in zip(mutants, codes) if code == 0]
    print(f"\n{'room':16}{'mutants':>9}{'killed':>9}{'by time':>9}{'survived':>10}{'share':>8}")
    for room in (*rooms, ""):
        of = [code for mutant, code in zip(mutants, codes) if mutant.file.startswith(f"spmdsim/{room}")]
        dead = sum(code != 0 for code in of)
        share = f"{dead / max(1, len(of)):8.1%}"
        print(f"{room or 'all':16}{len(of):9}{dead:9}{of.count(None):9}{len(of) - dead:10}{share}")
    print(f"left out: {len(EQUIVALENT)} mutants known to change nothing; {time.monotonic() - start:.0f} s")
    print("\n".join(["", *(f"survived: {mutant}" for mutant in survived)]))
    return int(len(survived) > (1 - arguments.least) * len(mutants))


def judge(mutants: list[Mutant], copy: Path, arguments: argparse.Namespace) -> list[int | None]:
    """0 for each mutant that survived; a code of failure, or None for one that hung, if killed."""
    sources = sorted([*copy.glob("spmdsim/**/*.py"), *copy.glob("tests/**/*.py")])
    key = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]
    known = Path(tempfile.gettempdir()) / f"spmdsim-executed-{key}"
    known.mkdir(exist_ok=True)
    ends, chosen = copy.parent / "codes.json", {}

    def tests_of(number: int, mutated: bool) -> list[str]:
        note = copy.parent / f"{number}.note"
        return chosen[number][: int(note.read_text()) if note.exists() and not mutated else None]

    def exchanged(tests: Tests, number: int, mutated: bool) -> int:
        if mutated and not exchange(mutants[number], copy, tests.loaded):
            return 0
        return tests.run(tests_of(number, mutated), copy.parent / f"{number}.note")

    def imported(number: int, mutated: bool) -> int:
        if mutated:
            import_mutant(mutants[number], copy)
        names, note = tests_of(number, mutated), copy.parent / f"{number}.note"
        tests = Tests(lambda tests: os._exit(tests.run(names, note)))
        return tests.collect(copy, sorted({name.split("::")[0] for name in names})) or 4

    def kill(numbers: list[int], body: Callable[[int, bool], int], how: str) -> dict[int, int | None]:
        """Run mutants, and the tests up to one that failed without the mutant: only if they pass is it killed."""
        codes = {}
        for mutated, left in ((True, numbers), (False, codes)):
            left = [number for number in left if mutated or codes[number] != 0]
            for index, code in fork_each(
                [(partial(body, n, mutated), limit(n)) for n in left], arguments.jobs
            ):
                if mutated:
                    codes[left[index]] = code
                    if how or code != 0:
                        what = "hung" if code is None else "killed" if code else "survived"
                        print(f"{what:9}{how:9}{mutants[left[index]]}", flush=True)
                elif code != 0:
                    codes[left[index]] = 0
                    print(f"fails without the mutant, too: {tests_of(left[index], False)[-1]}", flush=True)
        return codes

    def limit(number: int) -> float:
        return 60 + 4 * sum(executed[name][0] for name in chosen[number])

    def choose_all() -> dict:
        executed = {k: v for part in known.iterdir() for k, v in json.loads(part.read_text()).items()}
        chosen.update({i: choose(mutant, executed, arguments.seconds) for i, mutant in enumerate(mutants)})
        return executed

    def work(tests: Tests) -> None:
        nonlocal executed
        files = sorted(
            {name.split("::")[0] for name in tests.items}
            - {part.stem.replace(":", "/") for part in known.iterdir()}
        )
        names = [[n for n in tests.items if n.split("::")[0] == file] for file in files]
        bodies = [
            partial(tests.record, n, known / f"{f.replace('/', ':')}.json", 10) for n, f in zip(names, files)
        ]
        for number, code in fork_each([(body, 120) for body in bodies], arguments.jobs):
            print(f"recorded {files[number]}" + (" failed" if code else ""), file=sys.stderr, flush=True)
        executed = choose_all()
        quick = [number for number, mutant in enumerate(mutants) if mutant.owner]
        ends.write_text(json.dumps(kill(quick, partial(exchanged, tests), "")))

    executed: dict = {}
    files = sorted({file for room in TESTS for file in glob.glob(f"tests/{room}/test_*.py", root_dir=copy)})
    files += sorted(glob.glob("tests/test_fuzz_*.py", root_dir=copy))
    files += [f"spmdsim/{room}" for room in ROOMS]  # their docstrings' examples
    pid = os.fork()  # this process stays without the package, for those that import a mutant
    if not pid:
        os._exit(Tests(work).collect(copy, files))
    os.waitpid(pid, 0)
    codes = {int(number): code for number, code in json.loads(ends.read_text()).items()}
    executed = choose_all()
    again = [number for number in range(len(mutants)) if codes.get(number, 0) == 0]
    codes |= kill(again, imported, "imported")
    return [codes[number] for number in range(len(mutants))]


if __name__ == "__main__":
    sys.exit(main())
