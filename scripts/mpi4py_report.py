"""Compare the simulator with MPI on mpi4py's own tests: ``mpi4py_report.py TESTS RESULTS [-n N ...] [module ...]``.

TESTS is the folder ``test`` of mpi4py's source distribution. RESULTS is a folder: the outcomes under MPI are stored in
it and used again; the failures are written there.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

#: Smallest part of the tests that pass under MPI which must pass in the simulator.
LEAST = 0.97

#: Seconds that a process may run before its running test counts as failed.
LIMIT = {"mpi": 120, "simulate": 400}

Outcomes = dict[str, str]


def start_command(kind: str, n: int) -> list[str]:
    """Return the begin of the command that runs a script on ``n`` ranks: of MPI, or of the simulator."""
    if kind == "mpi":
        return ["mpirun", "-n", str(n), sys.executable]
    return [sys.executable, "-m", "spmdsim", "simulate", "-n", str(n), "--time-limit", str(LIMIT[kind])]


def run_module(kind: str, tests: Path, module: str, n: int) -> Outcomes:
    """Return "pass", "skip" or the first line of the error of each test of a module.

    If a test ends or stops the process, the others are run in a new process.

    Args:
        kind: "mpi" or "simulate".
        tests: the folder of the suite.
        module: name of the module.
        n: number of ranks.
    """
    outcomes: Outcomes = {}
    with tempfile.TemporaryDirectory() as name:
        skipped = Path(name, "skipped")
        while True:
            skipped.write_text("\n".join(outcomes))
            text = _run_process(kind, n, [str(tests), module, f"{name}/results", str(skipped)])
            new, is_complete = _read_events(Path(name), n, text)
            outcomes.update(new)
            if is_complete:
                return outcomes
            if not new:
                return outcomes or {f"{module} (import)": text}


def _run_process(kind: str, n: int, arguments: list[str]) -> str:
    """Run the tests in a process group of its own, at most LIMIT seconds; return the line that names its error."""
    command = [*start_command(kind, n), str(Path(__file__).with_name("mpi4py_module.py")), *arguments]
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
        env=environment,
    ) as process:
        try:
            output = process.communicate(timeout=LIMIT[kind])[0]
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return f"no end in {LIMIT[kind]} s"
    error_lines = [
        line
        for line in output.splitlines()
        if re.match(r"(error|spmdsim: error|\w*(Error|Exception)): ", line)
    ]
    return (error_lines or [f"exit code {process.returncode}"])[-1][:200]


def _read_events(folder: Path, n: int, text: str) -> tuple[Outcomes, bool]:
    """Return the outcomes in the files of all ranks, and True if all ranks reached the end; remove the files.

    Args:
        folder: the folder of the files.
        n: number of ranks.
        text: what stopped the process; the outcome of a test that did not end on all ranks.
    """
    outcomes: Outcomes = {}
    ended = 0
    for rank in range(n):
        path = folder / f"results.{rank}"
        lines = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        for kind, test, *_ in (line.split("\t") for line in lines):
            if kind == "end":
                ended += 1
            elif kind == "start":
                outcomes.setdefault(test, "pass")
        states = {test: (kind, *detail) for kind, test, *detail in (line.split("\t") for line in lines)}
        for test, (kind, *detail) in states.items():
            if kind in ("start", "fail"):
                outcomes[test] = detail[0] if kind == "fail" else text
            elif kind == "skip" and outcomes[test] == "pass":
                outcomes[test] = "skip"
    return outcomes, ended == n


def _stored(path: Path, tests: Path, module: str, n: int) -> Outcomes:
    """Return the outcomes of a module under MPI, from a file or from a run that writes the file."""
    if not path.exists():
        path.write_text(json.dumps(run_module("mpi", tests, module, n), indent=0))
    return dict(json.loads(path.read_text()))


def main() -> int:
    """Print the table of all modules; return 1 if too few tests pass."""
    parser = argparse.ArgumentParser()
    parser.add_argument("tests", type=Path)
    parser.add_argument("results", type=Path)
    parser.add_argument("-n", type=int, nargs="+", default=[1, 2, 3, 5])
    parser.add_argument("-m", nargs="+", help="modules")
    parser.add_argument("--reference", action="store_true", help="run under MPI only")
    options = parser.parse_args()
    modules = options.m or sorted(path.stem for path in options.tests.glob("test_*.py"))
    is_enough = True
    for n in options.n:
        failures: dict[str, Outcomes] = {}
        passed_count = all_count = 0
        print(f"n = {n}")
        for module in modules:
            stored = _stored(options.results / f"mpi_{n}_{module}.json", options.tests, module, n)
            expected = [test for test, outcome in stored.items() if outcome == "pass"]
            if options.reference:
                print(f"  {module:24} {len(expected):5}", flush=True)
                continue
            outcomes = run_module("simulate", options.tests, module, n) if expected else {}
            failed = {
                test: outcomes.get(test, "; ".join(outcomes.values()) if len(outcomes) == 1 else "not run")
                for test in expected
                if outcomes.get(test) != "pass"
            }
            print(f"  {module:24} {len(expected) - len(failed):5} of {len(expected):5}", flush=True)
            passed_count, all_count = passed_count + len(expected) - len(failed), all_count + len(expected)
            failures |= {module: failed} if failed else {}
        if not options.reference:
            part = passed_count / max(all_count, 1)
            print(f"  {'all':24} {passed_count:5} of {all_count:5} ({part:.1%})")
            options.results.joinpath(f"failures_{n}.json").write_text(json.dumps(failures, indent=1))
            is_enough &= part >= LEAST
    return int(not is_enough)


if __name__ == "__main__":
    sys.exit(main())
