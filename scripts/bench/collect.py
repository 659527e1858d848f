"""Run the benches, collect their rows, and write the tables; ``scripts/bench.sh`` starts this program.

A bench runs once per MPI, BLAS kernel and number of ranks that matter to it. Its rows, and load and frequency of the
machine, are stored in one file per machine. A later run replaces the results that it measures again.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from paired import OTHERS, figure, goal_text, meets_goal, row_text
from peers_table import peers_table
from speed_table import speed_table

ROOT = Path(__file__).resolve().parent.parent.parent
SPEED = ROOT / "docs" / "speed"


class Bench(NamedTuple):
    """A bench, its numbers of ranks and its options.

    Attributes:
        name: name of its file, without ``bench_``.
        ranks: sensible numbers of ranks, of which the requested ones run. 1 runs without an MPI job.
        options: its command-line arguments.
        quick: its arguments in a short run; None: it is not part of short runs.
        kernels: True if its results depend on BLAS kernels.
    """

    name: str
    ranks: tuple[int, ...] = (1,)
    options: tuple[str, ...] = ()
    quick: tuple[str, ...] | None = ()
    kernels: bool = False


MANY = (2, 4, 8)
BENCHES = (
    Bench("operators", (1, *MANY), kernels=True),
    Bench("training", (1, 2, 8), kernels=True),
    Bench("redistribution", MANY),
    Bench("collectives", MANY),
    Bench("arrays", (2, 8), quick=("--shrink", "4"), kernels=True),
    Bench("peers", (2,), quick=("--seconds", "0.5")),
    Bench("overlap", (2,), quick=("--layers", "6", "--seconds", "6"), kernels=True),
    Bench("embedding", (2, 8), quick=None),
    Bench("agreement", (2,)),
    Bench("prediction", (2,), quick=None, kernels=True),
    Bench("simulation"),
    Bench("planner"),
    Bench("lockstep", kernels=True),
    Bench("memory", (8,), quick=None),
    Bench("peak", (4,), quick=None),
    Bench("shapes", quick=None),
    Bench("import", quick=("3",)),
    Bench("search", options=("--quick",), quick=None),
    Bench("collective_scale", quick=None),
)


def main() -> int:
    """Run the requested benches and write tables; return 1 if a goal is missed or a bench failed, else 0."""
    options = _options()
    if options.readme:
        return _write_page()
    name = options.machine or _slug(f"{_processor()}-{os.cpu_count()}-cores")
    folder = ROOT / "results" if options.quick else SPEED
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{name}.json"
    record = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {"runs": []}
    record["machine"] = _machine()
    began, runs = time.time(), []
    with _busy(options.busy):
        for kind, python, kernel, bench, ranks in _jobs(options):
            runs.append(_run(options, kind, python, kernel, bench, ranks))
            record["runs"] = [run for run in record["runs"] if _key(run) != _key(runs[-1])] + [runs[-1]]
            file.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    file.with_suffix(".md").write_text(_markdown(record), encoding="utf-8")
    print(f"\n{_relative_text(file)}, {_relative_text(file.with_suffix('.md'))}: {time.time() - began:.0f} s")
    if not options.quick:
        _write_page()
    return _verdict(runs)


def _options() -> argparse.Namespace:
    """Parse the command line; ``ranks``, ``kernels`` and ``only`` become lists (None: all benches)."""
    parser = argparse.ArgumentParser(prog="scripts/bench.sh", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="a few minutes, small sizes; docs/speed.md stays as it is"
    )
    parser.add_argument("--mpi", help="openmpi,mpich or one of them")
    parser.add_argument("--ranks", help="numbers of ranks, such as 2,4,8")
    parser.add_argument(
        "--kernels", default="native", help="native or values of OPENBLAS_CORETYPE, by commas"
    )
    parser.add_argument("--busy", action="store_true", help="one core is busy with a loop meanwhile")
    parser.add_argument("--only", help="benches by name: " + ",".join(bench.name for bench in BENCHES))
    parser.add_argument(
        "--machine", help="name of the file in docs/speed/; made of the processor's if left out"
    )
    parser.add_argument("--readme", action="store_true", help="only make the table in docs/speed.md anew")
    parser.add_argument("--pythons", nargs="*", default=[], help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.ranks = [
        int(text) for text in (options.ranks or ("2,8" if options.quick else "2,4,8")).split(",")
    ]
    options.kernels = options.kernels.split(",")
    options.only = options.only.split(",") if options.only else None
    unknown = {*(options.only or ())} - {bench.name for bench in BENCHES}
    if unknown:
        parser.error(
            f"no bench is called {', '.join(sorted(unknown))}: {', '.join(bench.name for bench in BENCHES)}"
        )
    return options


def _jobs(options: argparse.Namespace) -> Iterator[tuple[str, str, str, Bench, int]]:
    """Yield MPI, its Python, BLAS kernel, bench and number of ranks of each run.

    A bench that depends neither on MPI nor on kernels runs once.
    """
    for first, (kind, python) in enumerate(text.split("=", 1) for text in options.pythons):
        for number, kernel in enumerate(options.kernels):
            for bench in BENCHES:
                is_present = (ROOT / "scripts" / "bench" / f"bench_{bench.name}.py").exists()
                left_out = bench.quick is None and options.quick and not options.only
                if not is_present or left_out or (options.only and bench.name not in options.only):
                    continue
                for ranks in bench.ranks:
                    asked = ranks == 1 or ranks in options.ranks or len(bench.ranks) == 1
                    again = (ranks == 1 and first > 0) or (number > 0 and not bench.kernels)
                    if asked and not again:
                        yield kind, python, kernel, bench, ranks


def _run(
    options: argparse.Namespace, kind: str, python: str, kernel: str, bench: Bench, ranks: int
) -> dict[str, Any]:
    """Run a bench and return its record: settings, exit code, state of the machine, rows.

    Args:
        options: options of the command line.
        kind: the MPI library.
        python: the Python interpreter of that library's environment.
        kernel: BLAS kernel, or "native".
        bench: the bench.
        ranks: number of ranks; 1 runs without an MPI job.
    """
    environment = {
        **os.environ,
        "BENCH_QUICK": "1" if options.quick else "",
        "BENCH_BUSY": "1" if options.busy else "0",
    }
    if kernel != "native":
        environment["OPENBLAS_CORETYPE"] = kernel
    settings = (bench.quick if options.quick else None) or bench.options
    script = [str(ROOT / "scripts" / "bench" / f"bench_{bench.name}.py"), *settings]
    launch = [] if ranks == 1 else ["-m", "spmdsim", "launch", "-n", str(ranks)]
    title = f"{bench.name}, " + (f"{ranks} ranks of {kind}" if ranks > 1 else "one process")
    print(f"\n== {title}{f', kernels {kernel}' if kernel != 'native' else ''}", flush=True)
    state, start = _state(), time.time()
    with tempfile.TemporaryDirectory() as folder:
        rows = Path(folder) / "rows"
        environment["BENCH_ROWS"] = str(rows)
        limit = 300 if options.quick else 3600
        try:
            code = subprocess.run(
                [python, *launch, *script], env=environment, cwd=ROOT, timeout=limit
            ).returncode
        except subprocess.TimeoutExpired:
            code = 124
        lines = rows.read_text(encoding="utf-8").splitlines() if rows.exists() else []
    return {
        "bench": bench.name, "mpi": kind if ranks > 1 else "", "ranks": ranks, "kernel": kernel, "busy": options.busy,
        "statistic": os.environ.get("BENCH_STATISTIC", "median"), "exit": code, "seconds": round(time.time() - start, 1), "before": state, "after": _state(),
        "commit": _commit(), "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "rows": [json.loads(line) for line in lines],
    }  # fmt: skip


def _key(run: dict[str, Any]) -> tuple[Any, ...]:
    """Return the settings of a run; a later run with equal settings replaces it."""
    return tuple(run[name] for name in ("bench", "mpi", "ranks", "kernel", "busy"))


@contextmanager
def _busy(wanted: bool) -> Iterator[None]:
    """Keep one core busy with a loop inside of the block, if ``wanted``."""
    neighbour = subprocess.Popen([sys.executable, "-c", "while True: pass"]) if wanted else None
    try:
        yield
    finally:
        if neighbour is not None:
            neighbour.kill()
            neighbour.wait()


def _commit() -> str:
    command = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.strip()


# -- the machine ------------------------------------------------------------------------------------------------


def _machine() -> dict[str, Any]:
    """Return the facts of the machine that do not change: processor, memory, versions."""
    code = "import json, numpy, threadpoolctl; print(json.dumps([numpy.__version__, threadpoolctl.threadpool_info()]))"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    version, pools = json.loads(process.stdout) if not process.returncode else ("?", [])
    blas = [
        f"{pool.get('internal_api')} {pool.get('version')}, kernels {pool.get('architecture')}"
        for pool in pools
    ]
    return {
        "processor": _processor(), "cores": os.cpu_count(), "memory_gib": _memory(), "kernel": platform.release(),
        "python": platform.python_version(), "numpy": version, "blas": blas,
    }  # fmt: skip


def _state() -> dict[str, Any]:
    """Return the load average and the frequencies of the cores in MHz."""
    hertz = [
        float(text) for text in re.findall(r"^cpu MHz\s*: ([\d.]+)", _text("/proc/cpuinfo"), re.MULTILINE)
    ]
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    return {"load": round(load, 2), "mhz": [round(frequency) for frequency in hertz]}


def _processor() -> str:
    """Return the processor's name and model number, which names processors of virtual machines."""
    info = _text("/proc/cpuinfo")
    fields = {key: m[1].strip() for key in ("model name", "model", "cpu family")
             if (m := re.search(rf"^{key}\s*: (.*)$", info, re.MULTILINE))}  # fmt: skip
    name = fields.get("model name") or platform.processor() or platform.machine()
    name = " ".join(re.sub(r"\((R|TM)\)| CPU|Processor|@.*", "", name).split())
    return name + (f" model {fields['model']}" if "model" in fields else "")


def _memory() -> int:
    """Return the memory in GiB; 0 if it is unknown."""
    match = re.search(r"^MemTotal:\s*(\d+)", _text("/proc/meminfo"), re.MULTILINE)
    return round(int(match[1]) / (1 << 20)) if match else 0


def _text(path: str) -> str:
    """Return the content of a file; "" if it cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError:
        return ""


def _slug(text: str) -> str:
    """Return a text as lower-case words with hyphens, for a file name."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def _relative_text(path: Path) -> str:
    """Return a path relative to the repository."""
    return str(path.relative_to(ROOT))


# -- tables -----------------------------------------------------------------------------------------------------


def _verdict(runs: list[dict[str, Any]]) -> int:
    """Print missed goals, failed benches and a summary; return the exit code, 0 or 1."""
    rows = [entry for run in runs for entry in run["rows"]]
    judged = [entry for entry in rows if meets_goal(entry) is not None]
    missed = [entry for entry in judged if not meets_goal(entry)]
    broken = [run for run in runs if run["exit"] or not run["rows"]]
    disturbed = sum(entry["others"] > OTHERS for entry in judged)
    for entry in missed:
        print("missed: " + row_text(entry))
    for run in broken:
        print(
            f"failed: {run['bench']}, {run['ranks']} ranks: exit code {run['exit']}, {len(run['rows'])} rows"
        )
    print(
        f"{len(judged) - len(missed)} of {len(judged)} goals met, {disturbed} cases disturbed, {len(rows)} rows"
    )
    return int(bool(missed or broken or not judged))


def _markdown(record: dict[str, Any]) -> str:
    """Return all rows of a machine as a page in Markdown."""
    machine = record["machine"]
    about = ", ".join(f"{key} {value}" for key, value in machine.items() if not isinstance(value, list))
    lines = [
        f"# {machine['processor']}, {machine['cores']} cores",
        "",
        f"{about}; {'; '.join(machine['blas'])}.",
        "",
    ]
    for run in record["runs"]:
        job = f"{run['ranks']} ranks of {run['mpi']}" if run["mpi"] else "one process"
        busy = ", one core busy" if run["busy"] else ""
        state = f"load {run['before']['load']} before, {run['after']['load']} after"
        mhz = f", {min(run['after']['mhz'])} to {max(run['after']['mhz'])} MHz" if run["after"]["mhz"] else ""
        code = f", commit {run['commit']}, {run['date']}"
        lines += [f"## {run['bench']}, {job}, kernels {run['kernel']}{busy}", "", f"{state}{mhz}{code}.", ""]
        lines += ["| what | case | value | 95 % | goal | |", "|---|---|---|---|---|---|"]
        for entry in run["rows"]:
            interval = (
                f"{figure(entry['low'])} to {figure(entry['high'])}" if entry["low"] < entry["high"] else ""
            )
            verdict = {True: "pass", False: "**missed**", None: ""}[meets_goal(entry)]
            verdict += ", disturbed" if entry["others"] > OTHERS else ""
            value = f"{figure(entry['value'])} {entry['unit']}".strip()
            case = entry["case"] + (f" ({entry['note']})" if entry["note"] else "")
            lines.append(
                f"| {entry['group']} | {case} | {value} | {interval} | {goal_text(entry)} | {verdict} |"
            )
        lines.append("")
    return "\n".join(lines)


def _write_page() -> int:
    """Write the tables of all machines into docs/speed.md and README.md, between the marks; return 0.

    docs/speed.md gets all rows, README.md the comparison with other systems.
    """
    machines = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(SPEED.glob("*.json"))]
    if not machines:
        print(f"{_relative_text(SPEED)} has no results yet: docs/speed.md and README.md stay as they are")
        return 0
    for path, name, table in (
        (ROOT / "docs" / "speed.md", "speed", speed_table(machines)),
        (ROOT / "README.md", "peers", peers_table(machines)),
    ):
        begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
        before, after = path.read_text(encoding="utf-8").split(begin)
        path.write_text(f"{before}{begin}\n{table}\n{end}{after.split(end)[1]}", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
