"""The package is plain code: no text is executed, no byte code or reference count is read, and few files read frames."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import spmdsim

ROOT = Path(spmdsim.__file__).parent

#: Built-in functions that execute text.
EXECUTING = ("exec", "eval", "compile")
#: Methods that run files, shell commands or pickled objects as code, and arguments that allow it.
RUNNING = ("exec_module", "run_path", "run_module", "system", "popen", "loads", "shell", "allow_pickle")
#: Owners of methods with these names that run no code.
HARMLESS = ("json", "topology")
#: Names of the modules ``dis``, ``sys`` and ``gc`` that look inside the interpreter.
INSIDE = ("dis", "getrefcount", "_getframe", "get_referents", "get_referrers")

#: Reason -> name -> the files that may use the name for this reason.
ALLOWED: dict[str, dict[str, str]] = {
    "messages, logs and traces quote the line of the user's call": {
        "_getframe": "worlds/trace/source_lines.py worlds/provenance.py worlds/agreement/call_log.py worlds/agreement/read_log.py "
        "registry.py arrays/local/axis_collectives.py labs/rank_programs.py",
    },
    "the simulator runs programs of users and reports lines of their calls": {
        "exec": "simulation/engine/script.py",
        "compile": "simulation/engine/script.py",
        "_getframe": "simulation/interface/requests.py simulation/interface/probes.py "
        "simulation/interface/process_topology.py simulation/interface/simulated_comm.py "
        "simulation/interface/point_to_point.py simulation/interface/collective_methods.py "
        "simulation/interface/stand_in.py simulation/interface/intercommunicators.py "
        "simulation/interface/partitioned.py simulation/interface/shared_files.py simulation/engine/captured_output.py "
        "simulation/engine/rank_process.py simulation/engine/rank_clock.py "
        "simulation/interface/window_calls.py simulation/interface/windows.py simulation/one_sided/regions.py "
        "simulation/one_sided/window_state.py "
        "simulation/engine/scheduler.py simulation/engine/mailboxes.py simulation/engine/waiting_times.py",
    },
    "labs run and grade programs of students": {"exec": "labs/grading.py", "compile": "labs/grading.py"},
    "the search records the user's program, whose syntax it checks before ranks import it": {
        "compile": "auto_parallel/programs/record_program.py",
        "run_path": "auto_parallel/programs/record_program.py",
    },
    "commands run the user's program or algorithm, which they are given": {
        "exec_module": "cli/collective/schedule_arguments.py simulation/engine/module_loading.py",
        "run_path": "launch/bootstrap.py cli/tune.py",
        "run_module": "launch/bootstrap.py",
    },
    "ranks of one job send objects to one another": {
        "loads": "simulation/data/message_buffers.py simulation/data/pickles.py worlds/mpi/counted.py",
    },
    "shutdown notes when the import of mpi4py starts MPI, by a loader around the module's own": {
        "exec_module": "shutdown/phase_watch.py",
    },
    "shutdown finds out how Python ends, and where a file was opened": {
        "_getframe": "shutdown/hooks.py",
        "get_referents": "shutdown/hooks.py",
    },
}


#: Pattern of the files that may use a forbidden name. Only these are parsed, because parsing all files takes long.
MAY_USE = re.compile(
    rf"\b(?:(?:{'|'.join((*EXECUTING, *RUNNING))})\s*[(=]|(?:{'|'.join((*INSIDE, 'builtins'))})\b)"
)


def find_names(tree: ast.AST) -> Iterator[str]:
    """Yield the forbidden names that a module with this syntax ``tree`` uses."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id=name)) if name in EXECUTING:
                yield name
            case ast.Call(func=ast.Attribute(value=owner, attr=name)) if name in RUNNING:
                if ast.unparse(owner) not in HARMLESS:
                    yield name
            case ast.keyword(arg=name) if name in RUNNING:
                yield name
            case ast.Name(id=name) | ast.Attribute(attr=name) if name in INSIDE:
                yield name
            case ast.Import(names=aliases):
                yield from (alias.name for alias in aliases if alias.name in INSIDE)
            case ast.ImportFrom(module=module, names=aliases):
                forbidden = (*INSIDE, *EXECUTING) if module == "builtins" else INSIDE
                names = (*(alias.name for alias in aliases), module)
                yield from (name for name in names if name in forbidden)


def files_by_name() -> dict[str, set[str]]:
    """Return the files of the package that use each forbidden name."""
    files = defaultdict(set)
    for path in ROOT.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        for name in find_names(ast.parse(text)) if MAY_USE.search(text) else ():
            files[name].add(path.relative_to(ROOT).as_posix())
    return files


def test_only_listed_files_look_inside_python() -> None:
    # A listed file that does not use the name must be removed from the list.
    allowed = defaultdict(set)
    for reason, names in ALLOWED.items():
        for name, listed in names.items():
            assert not allowed[name] & set(listed.split()), f"{reason}: a file is listed twice for {name}"
            allowed[name] |= set(listed.split())
    files = files_by_name()
    assert sum(map(len, files.values())) > 10
    for name in {*files, *allowed}:
        new, old = files[name] - allowed[name], allowed[name] - files[name]
        assert not new, f"{name} is used in {sorted(new)}: write plain code, or list the file with a reason"
        assert not old, f"{name} is not used any more in {sorted(old)}: take the files off the list"
