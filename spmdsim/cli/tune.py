"""``spmdsim tune``: measure implementations of steps on this machine and store the best.

A step of a redistribution can have several implementations. :func:`main` starts ranks, which run this file
(:func:`_try_steps`), or merges files of earlier runs.
"""

from __future__ import annotations

import argparse
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spmdsim.cli.main import command, declare_flag, positive, several, value
from spmdsim.cli.output import refuse_options, remark, require_writable_file
from spmdsim.errors import InputError, many
from spmdsim.printing import say
from spmdsim.reading import require_file
from spmdsim.settings import TUNE

if TYPE_CHECKING:
    from spmdsim.redistribution.implementations.tuning import TrialRecords
    from spmdsim.worlds import World

EXAMPLES = """\
examples:
  spmdsim tune -n 2 -n 4 -o here.json                     redistributions of square matrices, on 2 ranks and on 4
  spmdsim tune -n 4 -o here.json script.py --epochs 1     the steps of your own program
  spmdsim tune -o here.json one.json another.json         merge files; later files take precedence
  SPMDSIM_TUNE=here.json spmdsim launch -n 4 script.py    use the stored choices

Choices for other steps stay in the file. It can have choices for several machines and MPI libraries.
"""


@command(
    "Measure the implementations of steps on this machine and store the best ones in a file.",
    EXAMPLES,
    several("-n", "N", "number of ranks (repeatable)", positive),
    value("-o --output", "FILE", "the file to write, or to add to", required=True),
    value("--sizes", "N", "rows of the matrices", positive, nargs="+", default=[64, 256, 1024]),
    declare_flag("--show", "print the choices in the file at the end"),
    value("script", "", "a program whose steps are measured; or files to merge", nargs="?"),
    value("args", "", "its arguments, or more files", nargs=argparse.REMAINDER),
)
def main(args: argparse.Namespace) -> int:
    """Measure which implementation of each step is fastest, or merge files of such choices.

    * With ``-n``: start ranks, which run ``script`` or redistributions, and add their choices to the file ``--output``.
    * Otherwise ``script`` and ``args`` are tuning files, which are merged into it.
    * ``--show`` prints the file at the end; it can stand alone.

    Return the exit code: 0, or the code of the first job that fails.

    Args:
        args: the command's arguments. ``n`` is a list of rank counts, [] if not set.

    Raises:
        InputError: If there is nothing to do, an option has no effect, or a file cannot be read or written.
    """
    path = Path(args.output).resolve()
    if args.n or args.script:
        require_writable_file(args.output)
    if not args.n or args.script:
        refuse_options(args, "--sizes", "-n RANKS without a script: redistributions of matrices")
    code = 0
    if args.n:
        code = _run_trials(args, path)
    elif args.script:
        code = _merge_files([args.script, *args.args], path)
    elif not args.show:
        raise InputError("tune needs -n RANKS to try steps on, or files to put together")
    if args.show:
        _print_choices(path)
    return code


def _run_trials(args: argparse.Namespace, path: Path) -> int:
    """Try implementations of redistributions on each number of ranks; add the records to a file.

    The ranks run the user's script, or without one redistributions of square matrices. After a failure, further
    numbers of ranks are not tried.

    Args:
        args: the command's arguments: ``n`` (list of rank counts), ``script`` and ``args`` (its arguments),
            ``sizes`` (numbers of rows).
        path: the tuning file.

    Returns:
        The first exit code that is not 0, or 0.

    Raises:
        InputError: If the script does not exist, or a number of ranks cannot be started.
        WorldError: If no usable MPI is installed.
    """
    from spmdsim.launch import start

    if args.script:
        require_file(args.script, "script")
    what = [args.script, *args.args] if args.script else ["--sizes", *map(str, args.sizes)]
    module = [sys.executable, "-m", "spmdsim.launch.bootstrap", "-m", "spmdsim.cli.tune"]
    for n in args.n:
        if code := start(n, [*module, str(path), *what], env={TUNE.name: "full"}):
            return code
    return 0


def _merge_files(files: list[str], path: Path) -> int:
    """Merge tuning files into the file ``path``, print a summary to stderr, and return 0.

    A tuning file has, per MPI library, settings and the chosen implementation of each step. If several files have an
    entry, the last one in the order of ``files`` counts. Entries of ``path`` that no file has stay. ``path`` is created
    if it does not exist. All files are read before it is changed. The summary has a line per MPI library of the
    ``files``.

    Raises:
        InputError: If a file, or ``path``, cannot be read as a tuning file, or no file names an MPI library.
        OSError: If ``path`` cannot be written.
    """
    from spmdsim.redistribution.implementations.tuning import save_tuning

    additions: list[tuple[str, dict[str, Any]]] = []
    for name in files:
        require_file(name)
        additions += [(vendor, library) for vendor, library, _ in _read_records(name)]
    if not additions:
        raise InputError(f"{', '.join(files)}: no choices for any MPI library, so {path} was not written")
    for vendor, library in additions:
        save_tuning(path, vendor, library)
    libraries = {vendor for vendor, _ in additions}
    remark(
        *(
            f"wrote {path}: {vendor}, {records}"
            for vendor, _, records in _read_records(path)
            if vendor in libraries
        )
    )
    return 0


def _print_choices(path: Path) -> None:
    """Print the implementation that a tuning file chooses for each step, and measured times.

    Steps are grouped by machine. The line of a step has its name, the choice, and the times of all implementations in
    microseconds, the fastest first. If the file ``path`` has no choices, a line states it.

    Raises:
        InputError: If the file does not exist, or cannot be read as a tuning file.
    """
    require_file(str(path))
    records_by_library = [records for _, _, records in _read_records(path)]
    if not any(records.machines for records in records_by_library):
        say(f"{path}: no choices for any machine")
    for records in records_by_library:
        for machine, steps in records.machines.items():
            say(f"{machine}:")
            for step, choice in steps.items():
                ordered_times = sorted(choice.microseconds.items(), key=lambda item: item[1])
                times = ", ".join(f"{name} {us:.1f}" for name, us in ordered_times)
                say(f"  {step}: {choice.implementation} (us: {times})")


def _read_records(path: str | Path) -> Iterator[tuple[str, dict[str, Any], TrialRecords]]:
    """Yield ``(vendor, data, records)`` for each MPI library in a tuning file.

    ``vendor`` is the name of the library, ``data`` its JSON entry, and ``records`` the measured implementations,
    which are empty for a library without measurements.

    Raises:
        InputError: If the file ``path`` cannot be read as a tuning file.
    """
    from spmdsim.reading import readable
    from spmdsim.redistribution.implementations.tuning import TrialRecords, load_tuning

    for vendor, library in load_tuning(path).items():
        with readable(path, "a tuning file"):
            records = TrialRecords.parse(library.get("implementations", {}))
        yield vendor, library, records


# -- on each rank ----------------------------------------------------------------------------------------


def _run_redistributions(world: World, sizes: list[int]) -> None:
    """Run redistributions of square float32 matrices; the world measures implementations.

    A matrix is split by rows or columns, replicated, or a pending sum (partial), over all ranks. Redistributions are
    those between two of these layouts that need one collective: for example an all_gather from rows to replicated. Each
    runs often enough that three implementations are tried. All ranks must call it.

    Args:
        world: the world, whose processes have one rank each.
        sizes: the numbers of rows.
    """
    import numpy as np

    from spmdsim.arrays import Tensor
    from spmdsim.core import Mesh
    from spmdsim.redistribution.implementations.trial import MANY_TRIES

    calls = 3 * MANY_TRIES  # enough to try three implementations of a step
    line = Mesh((world.size,), ("x",))
    rows, columns, replicated = line("x", None), line(None, "x"), line(None, None)
    partial = line(None, None, partial="x")
    layout_pairs = [(rows, columns), (columns, rows), (rows, replicated), (columns, replicated)]
    layout_pairs += [(partial, target) for target in (replicated, rows, columns)]
    for size in sizes:
        for source, target in layout_pairs:
            local = np.ones(source.local_shape((size, size), world.ranks[0]), np.float32)
            tensor = Tensor.from_local(local, source, world, shape=(size, size))
            for _ in range(calls):
                tensor.to(target)


def _try_steps(path: str, what: list[str]) -> None:
    """Run a program or redistributions on each rank, then store the measurements in a file.

    All ranks of an MPI job must call it. Rank 0 adds to the file, and prints the number of measured steps. The program
    runs as ``__main__``, with its own words in ``sys.argv``.

    Args:
        path: the file to write; its other choices stay.
        what: ``[script, args…]``, or ``["--sizes", rows…]`` for redistributions.
    """
    from spmdsim.worlds import world

    if what[0] == "--sizes":
        _run_redistributions(world(), [int(text) for text in what[1:]])
    else:
        sys.argv = what
        runpy.run_path(what[0], run_name="__main__")
    current = world()
    if current.ranks[0] == 0:
        current.tuning.save(path)
        print(f"{many(len(current.tuning.steps), 'step')} on {many(current.size, 'rank')}: {path}")


if __name__ == "__main__":
    _try_steps(sys.argv[1], sys.argv[2:])
