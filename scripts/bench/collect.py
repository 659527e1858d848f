"""Runs the benches, collects their rows, and writes the table; ``scripts/bench.sh`` starts it and says how.

A bench is started once per MPI, BLAS kernel and number of ranks that concern it. Its rows and what was true of the machine
meanwhile (load, frequency) are kept in one file per machine, in which a later run replaces what it measures anew.
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

from paired import OTHERS, figure, goal_text, passed, row_text
from peers_table import peers_table
from speed_table import speed_table

ROOT = Path(__file__).resolve().parent.parent.parent
SPEED = ROOT / "docs" / "speed"


class Bench(NamedTuple):
    """A bench and where it runs.

    Attributes:
        name: of its file, without ``bench_``.
        ranks: the numbers of ranks that make sense; those that are asked for are taken of them. 1: without an MPI job.
        options: what it is called with.
        quick: the same in a short run; None: left out there.
        kernels: whether BLAS's kernels matter.
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
    """Run what is asked for; 1 if a goal is missed or a bench failed."""
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
            record["runs"] = [one for one in record["runs"] if _key(one) != _key(runs[-1])] + [runs[-1]]
            file.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    file.with_suffix(".md").write_text(_markdown(record), encoding="utf-8")
    print(f"\n{_shown(file)}, {_shown(file.with_suffix('.md'))}: {time.time() - began:.0f} s")
    if not options.quick:
        _write_page()
    return _verdict(runs)


def _options() -> argparse.Namespace:
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
    parser.add_argument("--only", help="benches by name: " + ",".join(one.name for one in BENCHES))
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
    unknown = {*(options.only or ())} - {one.name for one in BENCHES}
    if unknown:
        parser.error(
            f"no bench is called {', '.join(sorted(unknown))}: {', '.join(one.name for one in BENCHES)}"
        )
    return options


def _jobs(options: argparse.Namespace) -> Iterator[tuple[str, str, str, Bench, int]]:
    """What to run: MPI, its Python, BLAS kernel, bench and ranks; what concerns neither MPI nor kernels once."""
    for first, (kind, python) in enumerate(one.split("=", 1) for one in options.pythons):
        for number, kernel in enumerate(options.kernels):
            for bench in BENCHES:
                there = (ROOT / "scripts" / "bench" / f"bench_{bench.name}.py").exists()
                left_out = bench.quick is None and options.quick and not options.only
                if not there or left_out or (options.only and bench.name not in options.only):
                    continue
                for ranks in bench.ranks:
                    asked = ranks == 1 or ranks in options.ranks or len(bench.ranks) == 1
                    again = (ranks == 1 and first > 0) or (number > 0 and not bench.kernels)
                    if asked and not again:
                        yield kind, python, kernel, bench, ranks


def _run(
    options: argparse.Namespace, kind: str, python: str, kernel: str, bench: Bench, ranks: int
) -> dict[str, Any]:
    """Start a bench, wait, and read its rows."""
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
    said = f"{bench.name}, " + (f"{ranks} ranks of {kind}" if ranks > 1 else "one process")
    print(f"\n== {said}{f', kernels {kernel}' if kernel != 'native' else ''}", flush=True)
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
    return tuple(run[name] for name in ("bench", "mpi", "ranks", "kernel", "busy"))


@contextmanager
def _busy(wanted: bool) -> Iterator[None]:
    """One core busy with a loop of ours."""
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
    """What does not change while benches run."""
    code = "import json, numpy, threadpoolctl; print(json.dumps([numpy.__version__, threadpoolctl.threadpool_info()]))"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    version, pools = json.loads(process.stdout) if not process.returncode else ("?", [])
    blas = [
        f"{one.get('internal_api')} {one.get('version')}, kernels {one.get('architecture')}" for one in pools
    ]
    return {
        "processor": _processor(), "cores": os.cpu_count(), "memory_gib": _memory(), "kernel": platform.release(),
        "python": platform.python_version(), "numpy": version, "blas": blas,
    }  # fmt: skip


def _state() -> dict[str, Any]:
    """What does."""
    hertz = [
        float(text) for text in re.findall(r"^cpu MHz\s*: ([\d.]+)", _text("/proc/cpuinfo"), re.MULTILINE)
    ]
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    return {"load": round(load, 2), "mhz": [round(one) for one in hertz]}


def _processor() -> str:
    """The processor's name, and its model where the name is a virtual machine's."""
    info = _text("/proc/cpuinfo")
    fields = {key: m[1].strip() for key in ("model name", "model", "cpu family")
             if (m := re.search(rf"^{key}\s*: (.*)$", info, re.MULTILINE))}  # fmt: skip
    name = fields.get("model name") or platform.processor() or platform.machine()
    name = " ".join(re.sub(r"\((R|TM)\)| CPU|Processor|@.*", "", name).split())
    return name + (f" model {fields['model']}" if "model" in fields else "")


def _memory() -> int:
    match = re.search(r"^MemTotal:\s*(\d+)", _text("/proc/meminfo"), re.MULTILINE)
    return round(int(match[1]) / (1 << 20)) if match else 0


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError:
        return ""


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def _shown(path: Path) -> str:
    return str(path.relative_to(ROOT))


# -- tables -----------------------------------------------------------------------------------------------------


def _verdict(runs: list[dict[str, Any]]) -> int:
    """Say what was missed; the exit code."""
    rows = [one for run in runs for one in run["rows"]]
    judged = [one for one in rows if passed(one) is not None]
    missed = [one for one in judged if not passed(one)]
    broken = [run for run in runs if run["exit"] or not run["rows"]]
    disturbed = sum(one["others"] > OTHERS for one in judged)
    for one in missed:
        print("missed: " + row_text(one))
    for run in broken:
        print(
            f"failed: {run['bench']}, {run['ranks']} ranks: exit code {run['exit']}, {len(run['rows'])} rows"
        )
    print(
        f"{len(judged) - len(missed)} of {len(judged)} goals met, {disturbed} cases disturbed, {len(rows)} rows"
    )
    return int(bool(missed or broken or not judged))


def _markdown(record: dict[str, Any]) -> str:
    """All rows of one machine."""
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
        for one in run["rows"]:
            interval = f"{figure(one['low'])} to {figure(one['high'])}" if one["low"] < one["high"] else ""
            verdict = {True: "pass", False: "**missed**", None: ""}[passed(one)]
            verdict += ", disturbed" if one["others"] > OTHERS else ""
            value = f"{figure(one['value'])} {one['unit']}".strip()
            case = one["case"] + (f" ({one['note']})" if one["note"] else "")
            lines.append(f"| {one['group']} | {case} | {value} | {interval} | {goal_text(one)} | {verdict} |")
        lines.append("")
    return "\n".join(lines)


def _write_page() -> int:
    """Put the tables of all machines between the marks: all rows into docs/speed.md, those beside other systems into README.md."""
    machines = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(SPEED.glob("*.json"))]
    if not machines:
        print(f"{_shown(SPEED)} has no results yet: docs/speed.md and README.md stay as they are")
        return 0
    for path, name, table in (
        (ROOT / "docs" / "speed.md", "speed", speed_table(machines)),
        (ROOT / "README.md", "peers", peers_table(machines)),
    ):
        begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
        before, rest = path.read_text(encoding="utf-8").split(begin)
        path.write_text(f"{before}{begin}\n{table}\n{end}{rest.split(end)[1]}", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
