"""Measure how many wrong lines the tests detect: run the tests against seeded random mutants of the package.

``python scripts/mutate.py`` changes one operator, constant, argument order, branch or statement and runs the tests that
execute the statement, the room's own first, until one fails (killed) or all pass (survived). Tests are collected once;
every mutant is a fork with that function's code exchanged. Survivors, and mutants of what runs at import, are run again
in a process that imports the mutant. See ``mutants.py`` for what is changed; ``equivalent_mutants.txt`` says which of
them change nothing that a test could see, and why.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import os
import shutil
import sys
import tempfile
import time
from bisect import bisect_left
from collections.abc import Callable
from functools import partial
from pathlib import Path

from mutant_tests import ROOMS, Tests, by_turns, exchange, fork_each, room_of
from mutants import Mutant, equivalent_mutants, find_stale_entries, mutants_of, sample

ROOT = Path(__file__).resolve().parent.parent
# Folders whose tests start processes, read sources or compare pictures; and files that run most of the package.
ELSEWHERE = ("figures", "shutdown", "labs", "launch", "simulation", "testing")
BESIDE = ("test_caches.py", "test_fft.py", "test_fuzz_files.py", "test_fuzz_programs.py")


def choose(mutant: Mutant, executed: dict, seconds: float) -> list[str]:
    """Return the tests for a mutant in the order in which they run.

    Tests that execute the mutant's lines come first, then other tests of their files. In both groups, tests of the
    mutant's own package come first. If no test executes the lines, all tests of that package are taken.

    Args:
        mutant: the mutant.
        executed: for each test its seconds, and the texts of the mutants whose lines it executes.
        seconds: the longest time of all tests together; at least one test is taken.
    """
    executing = {name for name, (_, reached) in executed.items() if str(mutant) in reached}
    room = room_of(mutant.file)
    files = {name.split("::")[0] for name in executing}
    if not executing:
        files = {name.split("::")[0] for name in executed if room_of(name.split("::")[0]) == room}
    times = {name: time for name, (time, _) in executed.items() if name.split("::")[0] in files}
    own_room = {name for name in times if room_of(name.split("::")[0]) == room}
    total, taken = 0.0, []
    for group in (
        executing & own_room,
        executing - own_room,
        own_room - executing,
        times.keys() - executing - own_room,
    ):
        for name in by_turns(group, times):
            if total + times[name] <= seconds or not taken:
                total += times[name]
                taken.append(name)
    return taken


def main() -> int:
    """Make mutants, run tests, print a table; return 1 if too few mutants were detected."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=300, help="mutants in all (300)")
    parser.add_argument("--seed", type=int, default=0, help="of the sample (0)")
    parser.add_argument("--room", choices=ROOMS, action="append", help="only of this room; may be repeated")
    parser.add_argument("--jobs", type=int, default=1, help="mutants at a time (1)")
    parser.add_argument(
        "--seconds", type=float, default=30, help="of processor time for each mutant's tests (30)"
    )
    parser.add_argument("--least", type=float, default=0.95, help="share that must be killed (0.95)")
    parser.add_argument(
        "--again", metavar="LOG", type=Path, help="only what survived in that output, not the sample"
    )
    parser.add_argument(
        "--tests", metavar="FOLDER", action="append", help="only tests of this folder; may be repeated"
    )
    parser.add_argument("--list", action="store_true", help="print the mutants and run nothing")
    parser.add_argument(
        "--stale", action="store_true", help="print entries of equivalent_mutants.txt that name no mutant"
    )
    arguments = parser.parse_args()
    start, rooms = time.monotonic(), arguments.room or ROOMS
    os.environ["OMP_NUM_THREADS"] = "1"
    for name in ("numpy", "hypothesis"):  # what all children need is loaded once
        importlib.import_module(name)
    equivalent = equivalent_mutants(ROOT / "scripts/equivalent_mutants.txt")
    if arguments.stale:
        stale = find_stale_entries(equivalent, ROOT)
        for key in stale:
            print("\n    ".join(key))
        return int(bool(stale))
    mutants: list[Mutant] = []
    lines = arguments.again.read_text().splitlines() if arguments.again else ()
    again = {without_line(line[10:]) for line in lines if line.startswith("survived: ")}
    for number, room in enumerate(rooms):
        files = sorted((ROOT / "spmdsim" / room).rglob("*.py"))
        every = [mutant for file in files for mutant in mutants_of(file, ROOT)]
        count = arguments.count // len(rooms) + (number < arguments.count % len(rooms))
        drawn = sample(every, count, arguments.seed)
        mutants += drawn + [
            candidate
            for candidate in every
            if without_line(str(candidate)) in again and candidate not in drawn
        ]
    asked = [
        n for n, mutant in enumerate(mutants) if not arguments.again or without_line(str(mutant)) in again
    ]
    if arguments.list:
        print("\n".join(str(mutants[number]) for number in asked))
        return 0
    equal_mutants = [mutants[number] for number in asked if mutants[number].key in equivalent]
    with tempfile.TemporaryDirectory(prefix="spmdsim-mutate-") as folder:
        copy = Path(folder).resolve() / "tree"
        unwanted = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "dist")
        shutil.copytree(ROOT, copy, ignore=unwanted)
        asked = [number for number in asked if mutants[number].key not in equivalent]
        codes = judge(mutants, asked, copy, arguments)
    print(f"\n{'room':16}{'mutants':>9}{'equal':>9}{'killed':>9}{'by time':>9}{'survived':>10}{'share':>8}")
    for room in (*rooms, ""):
        of = [code for n, code in codes.items() if mutants[n].file.startswith(f"spmdsim/{room}")]
        same = sum(mutant.file.startswith(f"spmdsim/{room}") for mutant in equal_mutants)
        dead = sum(code != 0 for code in of)
        counts = f"{len(of) + same:9}{same:9}{dead:9}{of.count(None):9}{len(of) - dead:10}"
        print(f"{room or 'all':16}{counts}{dead / max(1, len(of)):8.1%}")
    print(f"killed of those that are not equal to the program; {time.monotonic() - start:.0f} s\n")
    print("".join(f"equal: {mutant}\n       {equivalent[mutant.key]}\n" for mutant in equal_mutants))
    survived = [n for n, code in codes.items() if code == 0]
    print("\n".join(f"survived: {mutants[n]}" for n in survived))
    return int(len(survived) > (1 - arguments.least) * len(codes))


def without_line(text: str) -> str:
    """Return the text of a mutant without its line number."""
    file, _, after_line = text.split(":", 2)
    return file + after_line


def judge(
    mutants: list[Mutant], asked: list[int], copy: Path, arguments: argparse.Namespace
) -> dict[int, int | None]:
    """Run the tests of each selected mutant; return their exit codes by number.

    0 means that the mutant survived, None that its tests did not end.

    Args:
        mutants: all mutants.
        asked: the numbers of the mutants to run.
        copy: a copy of the repository.
        arguments: the command line.
    """
    sources = sorted(
        {*copy.glob("spmdsim/**/*.py"), *copy.glob("tests/**/*.py")} - {*copy.glob("tests/**/test_*.py")}
    )
    key = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"spmdsim-executed-{key}"
    folder.mkdir(exist_ok=True)
    ends, chosen = copy.parent / "codes.json", {}

    def tests_of(number: int, mutated: bool) -> list[str]:
        # Without the mutant, run the tests up to the one that failed with it; the note has their number.
        note = copy.parent / f"{number}.note"
        return chosen[number][: int(note.read_text()) if note.exists() and not mutated else None]

    def exchanged(tests: Tests, number: int, mutated: bool) -> int:
        if mutated and not exchange(mutants[number], copy, tests.loaded):
            return 0
        return tests.run(tests_of(number, mutated), copy.parent / f"{number}.note")

    def imported(number: int, mutated: bool) -> int:
        """Run the tests of a mutant in a copy of the repository; return the exit code."""
        own_tree = copy.parent / f"{number}-{mutated}"
        shutil.copytree(copy, own_tree)
        if mutated:
            (own_tree / mutants[number].file).write_text(mutants[number].source)
        os.environ["PYTHONPATH"] = str(own_tree)  # of processes that tests start
        names, note = tests_of(number, mutated), copy.parent / f"{number}.note"
        tests = Tests(lambda tests: os._exit(tests.run(names, note)))
        return tests.collect(own_tree, sorted({name.split("::")[0] for name in names})) or 4

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

    def part(file: str) -> Path:
        text = hashlib.sha256((copy / file).read_bytes()).hexdigest()[:16]
        return folder / f"{file.replace('/', ':')}-{text}.json"

    def choose_all() -> dict:
        """Choose the tests of all mutants; return seconds and reached mutants of each recorded test."""
        executed, by_file = {}, {}
        for number in asked:
            by_file.setdefault(mutants[number].file, []).append(mutants[number])
        for record in (json.loads(part(file).read_text()) for file in files if part(file).exists()):
            for name, (seconds, lines) in record.items():
                reached = [
                    mutant
                    for path in lines.keys() & by_file
                    for mutant in by_file[path]
                    if executes(lines[path], mutant)
                ]
                executed[name] = seconds, {*map(str, reached)}
        for number in asked:
            chosen[number] = choose(mutants[number], executed, arguments.seconds)
        return executed

    def work(tests: Tests) -> None:
        """Record tests of changed files, choose the tests of mutants, and run the quick mutants."""
        nonlocal executed
        new = sorted({name.split("::")[0] for name in tests.items})
        new = [file for file in new if not part(file).exists()]
        names = [[n for n in tests.items if n.split("::")[0] == file] for file in new]
        bodies = [partial(tests.record, n, part(f), 20) for n, f in zip(names, new)]
        for number, code in fork_each([(body, 600) for body in bodies], arguments.jobs):
            print(f"recorded {new[number]}" + (" failed" if code else ""), file=sys.stderr, flush=True)
        executed = choose_all()
        quick = [number for number in asked if mutants[number].scope.owner]
        ends.write_text(json.dumps(kill(quick, partial(exchanged, tests), "")))

    executed: dict = {}
    files = files_of_tests(copy, arguments.tests)
    rooms = [f"spmdsim/{room}" for room in ROOMS]
    pid = os.fork()  # this process stays without the package, for those that import a mutant
    if not pid:
        os._exit(Tests(work).collect(copy, [*(file for file in files if file.startswith("tests/")), *rooms]))
    os.waitpid(pid, 0)
    codes = {int(number): code for number, code in json.loads(ends.read_text()).items()}
    executed = choose_all()
    codes |= kill([number for number in asked if codes.get(number, 0) == 0], imported, "imported")
    return dict(sorted(codes.items()))


def executes(lines: list[int], mutant: Mutant) -> bool:
    """Return True if one of these lines, in ascending order, is a line of the mutant."""
    at = bisect_left(lines, mutant.scope.first)
    return at < len(lines) and lines[at] <= mutant.scope.last


def files_of_tests(copy: Path, folders: list[str] | None) -> list[str]:
    """Return the test files to run, and the files of the packages, for the examples in their docstrings.

    Args:
        copy: the copy of the repository.
        folders: folders of ``tests/``; None: all but those in ELSEWHERE, and the files in BESIDE.
    """
    paths = [str(path.relative_to(copy)) for path in sorted(copy.glob("tests/*/test_*.py"))]
    tests = [file for file in paths if room_of(file) in (folders or {*map(room_of, paths)} - {*ELSEWHERE})]
    tests += [] if folders else [f"tests/{name}" for name in BESIDE]
    rooms = [path for room in ROOMS for path in sorted((copy / "spmdsim" / room).rglob("*.py"))]
    return [*tests, *(str(path.relative_to(copy)) for path in rooms)]


if __name__ == "__main__":
    sys.exit(main())
