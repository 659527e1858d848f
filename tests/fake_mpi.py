"""A folder with launchers that print their words and start nothing, and a Python that names an MPI library."""

from __future__ import annotations

import subprocess
from pathlib import Path

from processes import run_python

#: Version texts of launchers.
OPEN_MPI, MPICH = "mpirun (Open MPI) 5.0.11", "HYDRA build details:"
#: Print the words and a variable of Open MPI, or the version.
LAUNCHER = """\
#!/bin/sh
if [ "$1" = --version ]; then echo '{version}'; exit; fi
echo "root: $OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"
for word in "$0" "$@"; do echo "word: $word"; done
"""
#: Answer as the child process does that loads MPI's library.
PYTHON = """\
#!/bin/sh
echo '{error}' >&2
echo '{library}|1.2.3'
echo 4.1
echo a description
echo False
exit {code}
"""
#: Run a command with the launchers and the Python of a folder.
COMMAND = """\
import os, sys
sys.executable, sys.prefix = sys.argv.pop(1), "/no/such/folder"
{text}
from spmdsim.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


class FakeMpi:
    """An MPI that starts no ranks.

    Args:
        folder: the folder for its files; it is created.
        library: the vendor of the library that mpi4py loads.
        error: the error if mpi4py cannot be loaded.
        launchers: the version text of each launcher by its file name; by default an ``mpirun`` of the library's vendor.
    """

    def __init__(self, folder: Path, library: str = "Open MPI", error: str = "", **launchers: str) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._write("python", PYTHON.format(library=library, error=error, code=int(bool(error))))
        default = {"mpirun": OPEN_MPI if library == "Open MPI" else MPICH}
        for name, version in (launchers or default).items():
            self._write(name, LAUNCHER.format(version=version))

    def _write(self, name: str, text: str) -> None:
        """Write an executable file."""
        (self.folder / name).write_text(text, encoding="utf-8")
        (self.folder / name).chmod(0o755)

    def run(self, *words: object, text: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
        """Run a command of spmdsim; ``text`` is Python code that runs before it."""
        command = ["-c", COMMAND.format(text=text), self.folder / "python", *words]
        return run_python(*command, PATH=str(self.folder), **variables)

    def launcher_words(self, *words: object, text: str = "", **variables: str) -> list[str]:
        """Return the path and the options of the launcher that ``spmdsim launch`` calls for a script."""
        result = self.run("launch", *words, __file__, text=text, **variables)
        assert "word: " in result.stdout, result.stderr
        all_words = [
            line.removeprefix("word: ") for line in result.stdout.splitlines() if line.startswith("word: ")
        ]
        return all_words[: all_words.index(str(self.folder / "python"))]
