"""Find the MPI that this Python uses: its launcher, its settings, and whether library and launcher belong together.

A launcher of another MPI starts N jobs of one rank each, silently. So a launcher is taken only if it says it is
of the vendor that mpi4py was built for: first the one beside the running Python (MPI from wheels), then PATH.
Threads and settings are set before numpy and MPI are loaded, which read them only then.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path

from spmdsim._version import __version__
from spmdsim.errors import LauncherError, WorldError
from spmdsim.launch.hosts import Host, format_hosts
from spmdsim.launcher import LAUNCHER, Launched, detect, find_slurm_plugin, read_job_facts
from spmdsim.mpi_library import INSTALL_MPI, find_library

#: Vendors whose launchers can start ranks of each other's libraries.
MPICH_FAMILY = {"MPICH", "Intel MPI", "MVAPICH"}
THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)
"""Read once, when the library is loaded: to be set before ``import numpy``."""


#: Variables that belong to one host, one login or one launcher, not to the program.
OF_ONE_HOST = {
    *("HOST", "HOSTNAME", "TMPDIR", "PWD", "OLDPWD", "SHLVL", "DISPLAY", "TTY", "MAIL", "LS_COLORS", "_")
}
#: Beginnings of the names of more variables of one host, one login or one launcher.
OF_ONE_HOST_PREFIXES = (
    *("OMPI_", "PMIX_", "PRTE_", "PMI_", "HYDRA_"),
    *("SLURM_", "SLURMD_", "PBS_", "LSB_", "SSH_", "XDG_", "DBUS_"),
)

#: Seconds for a launcher to print its version.
VERSION_SECONDS = 20
#: Makes Open MPI's waiting ranks give way to others.
YIELD_VARIABLE = "OMPI_MCA_mpi_yield_when_idle"


@dataclass(frozen=True)
class Launcher:
    """A program that starts ranks, such as ``mpirun``.

    Attributes:
        path: its path.
        vendor: the vendor of the MPI that it belongs to; "Slurm" for ``srun``.
        plugin: what ``srun --mpi`` needs for the ranks to see each other; empty for other launchers.
    """

    path: str
    vendor: str
    plugin: str = ""

    def make_command(
        self, n: int, oversubscribe: bool, hosts: Sequence[Host] = (), exported: Iterable[str] = ()
    ) -> list[str]:
        """Return the command that starts ``n`` ranks of the program that follows it.

        Args:
            n: the number of ranks.
            oversubscribe: allow more ranks than cores or slots, which Open MPI refuses by default.
            hosts: the hosts with the number of ranks of each; empty for this machine, or for the hosts that the launcher
                gets from a batch system or from its own settings.
            exported: names of the environment variables that ranks on other hosts need. Open MPI passes only its own
                there unless they are named; other launchers pass all.

        Raises:
            LauncherError: If there are hosts, and the path of Open MPI has a space.
        """
        command = [self.path, "-n", str(n)]
        if self.vendor == "Slurm":
            command += [f"--mpi={self.plugin}"] if self.plugin else []
            names = ",".join(host.name for host in hosts)
            return command + ([f"--nodes={len(hosts)}", f"--nodelist={names}"] if hosts else [])
        if self.vendor == "Open MPI":
            if hosts and " " in self.path:  # It writes its path into the line for ssh without quotes.
                raise LauncherError(
                    f"--hosts: the path of Open MPI must have no space, got {self.path!r}; install it in another folder, or "
                    "use MPICH"
                )
            command += ["--host", format_hosts(hosts)] if hosts else []
            command += ["--oversubscribe"] if oversubscribe else []
            # It refuses to bind more ranks than a host has cores, which only the host knows.
            command += ["--bind-to", "none"] if oversubscribe or hosts else []
            return command + [word for name in exported for word in ("-x", name)]
        return command + (["-hosts", format_hosts(hosts)] if hosts else [])

    @property
    def ended_by(self) -> int:
        """The signal that ends the launcher with all ranks.

        It is SIGKILL for MPICH's launchers, which print after SIGTERM that they have killed ranks, else SIGTERM.
        """
        return signal.SIGKILL if self.vendor in MPICH_FAMILY else signal.SIGTERM

    def choose_variables(self) -> dict[str, str]:
        """Return the variables that the launcher needs: Open MPI refuses root unless two of them allow it."""
        if self.vendor == "Open MPI" and hasattr(os, "geteuid") and os.geteuid() == 0:
            return {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        return {}


def list_exported_variables(environment: Mapping[str, str]) -> list[str]:
    """Return the sorted names of the variables of an environment that a program may read on another host.

    Variables of one host, one login or one launcher are left out (see :data:`OF_ONE_HOST` and
    :data:`OF_ONE_HOST_PREFIXES`). So are names that shells do not allow.

    >>> list_exported_variables({"DATA_PATH": "/data", "OMP_SCHEDULE": "static", "SSH_TTY": "/dev/pts/0", "_": "/bin/sh"})
    ['DATA_PATH', 'OMP_SCHEDULE']
    """
    return sorted(
        name
        for name in environment
        if name not in OF_ONE_HOST
        and not name.startswith(OF_ONE_HOST_PREFIXES)
        and re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII)
    )


def find_vendor(launcher: str) -> str | None:
    """Return the vendor of a launcher such as "Open MPI", from its output for ``--version``.

    Return None if the output names no known vendor, or the launcher cannot run or takes too long.

    Args:
        launcher: the name or path of the program.
    """
    try:
        command = [launcher, "--version"]
        result = subprocess.run(command, capture_output=True, text=True, timeout=VERSION_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse_vendor(result.stdout + result.stderr)


def parse_vendor(text: str) -> str | None:
    """Return the vendor that a launcher's version text names, or None.

    >>> parse_vendor("mpirun (Open MPI) 5.0.11"), parse_vendor("HYDRA build details:")
    ('Open MPI', 'MPICH')
    """
    open_mpi, intel = (r"Open MPI|OpenRTE|prte", "Open MPI"), (r"Intel", "Intel MPI")
    vendors = (open_mpi, intel, (r"MVAPICH", "MVAPICH"), (r"HYDRA|MPICH", "MPICH"))
    return next((vendor for pattern, vendor in vendors if re.search(pattern, text)), None)


def find_candidates() -> Iterator[str]:
    """Yield the paths of launchers: first launchers beside the running Python, then launchers on PATH.

    Launchers beside Python belong to an MPI library that was installed from wheels.
    """
    folders = [str(Path(sys.executable).parent), str(Path(sys.prefix) / "bin")]
    folders += filter(None, os.environ.get("PATH", "").split(os.pathsep))
    paths = (shutil.which(name, path=folder) for folder in folders for name in ("mpirun", "mpiexec"))
    yield from dict.fromkeys(path for path in paths if path)


def is_related(launcher: str, library_vendor: str) -> bool:
    """Return True if a launcher can start ranks of a library, by the names of their vendors.

    The vendors must be equal, or both of MPICH's family, which shares one protocol.
    """
    return launcher == library_vendor or {launcher, library_vendor} <= MPICH_FAMILY


def find_launcher() -> Launcher:
    """Return the launcher that can start ranks of mpi4py's MPI library.

    - The first ``mpirun`` or ``mpiexec`` of the library's vendor, or of a related MPI. Those beside the running Python are
      tried first, then those on PATH; each is asked for its vendor.
    - If none fits, in a job of Slurm: ``srun``.

    For example, with mpi4py for Open MPI, an ``mpirun`` of MPICH is skipped.

    Raises:
        WorldError: If there is no such launcher; the message names the launchers of other MPIs. Or if mpi4py finds no
            library.
    """
    wanted = find_library().vendor
    other_launchers = []
    for path in find_candidates():
        vendor = find_vendor(path)
        if vendor is not None and is_related(vendor, wanted):
            return Launcher(path, vendor)
        other_launchers.append(f"{path} ({vendor or 'unknown'})")
    srun = shutil.which("srun")
    if srun and "SLURM_JOB_ID" in os.environ:
        return Launcher(srun, "Slurm", find_slurm_plugin(wanted))
    if other_launchers:
        raise WorldError(
            f"mpi4py is built for {wanted}, but the launchers found are of another MPI: "
            f"{', '.join(other_launchers)}; install {wanted}'s mpirun or build mpi4py for that MPI"
        )
    raise WorldError(f"no mpirun or mpiexec found for {wanted}: {INSTALL_MPI}")


def find_package_version(name: str) -> str:
    """Return the version of an installed package by its name, or "not installed"."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def list_versions() -> list[str]:
    """Return a line each for spmdsim, Python, numpy, mpi4py and its MPI library, such as "numpy 2.1.0".

    A missing package is "not installed"; without a library, its line says why. A child process loads the library.
    """
    import platform

    try:
        mpi = str(find_library())
    except WorldError as error:
        mpi = str(error)
    return [
        f"spmdsim {__version__}",
        f"Python {platform.python_version()}",
        f"numpy {find_package_version('numpy')}",
        f"mpi4py {find_package_version('mpi4py')}",
        f"MPI {mpi}",
    ]


# -- settings of a rank ----------------------------------------------------------------------------------


def count_cores(for_all_ranks: bool = False) -> int:
    """Return the number of cores that this process may use.

    It is the size of its affinity, or a container's share of time in cores (rounded up) if that is less. If the
    affinity is unknown, all cores of the machine count. Only shares of cgroup version 2 are read.

    Args:
        for_all_ranks: True to count the cores of all ranks on this machine, by the affinity of the launcher: a launcher
            binds each rank to one core, but not itself.
    """
    try:
        launcher = int(read_job_facts().get(LAUNCHER, os.getppid()))
        available = len(os.sched_getaffinity(launcher if for_all_ranks else 0))
    except (AttributeError, OSError):  # not on this system, or not there any more
        available = os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return min(available, max(1, ceil(int(quota) / int(period))))
    except (OSError, ValueError):  # no such file, or "max"
        return available


def count_blas_threads(local_size: int, available: int) -> int:
    """Return the number of BLAS threads of each rank.

    It is the rank's share of the cores, rounded down, but at least 1.

    Args:
        local_size: the number of ranks on this machine.
        available: the number of cores that they share.

    >>> count_blas_threads(8, 2), count_blas_threads(2, 8)
    (1, 4)
    """
    return max(1, available // max(1, local_size))


def count_own_blas_threads(job: Launched) -> int:
    """Return the number of BLAS threads for this rank.

    It is the rank's share of the cores of all ranks on this machine, at most the number that it is bound to.
    Two ranks that are bound to two of four cores each get two threads, as two ranks without a binding do.
    """
    return min(count_cores(), count_blas_threads(job.local_size, count_cores(for_all_ranks=True)))


def choose_mpi_settings(job: Launched, available: int) -> dict[str, str]:
    """Return environment variables that make the MPI library faster on this machine.

    Results do not depend on them. All are for Open MPI; for other libraries the dict is empty.

    - If all ranks are on this machine, do not search for a network, which takes a second at start.
    - If ranks outnumber cores, waiting ranks yield their core; Open MPI does not notice that by itself.

    Args:
        job: the job, as the launcher describes it.
        available: the number of cores that the ranks on this machine share.
    """
    if job.launcher != "Open MPI":
        return {}
    settings = {}
    if job.local_size == job.size:
        settings = {"OMPI_MCA_btl": "^ofi,uct", "OMPI_MCA_mtl": "^ofi", "OMPI_MCA_osc": "^ucx"}
    if job.local_size > available:
        settings[YIELD_VARIABLE] = "1"
    return settings


def prepare(environ: MutableMapping[str, str] | None = None) -> Launched | None:
    """Set the environment variables of a rank for BLAS threads and MPI.

    Variables that the user has set stay. Call this function before numpy and mpi4py are imported: they read their
    settings when they are loaded.

    Args:
        environ: the environment; this process's by default.

    Returns:
        The job, as the launcher describes it; None outside of a launcher, where nothing is set.
    """
    environ = os.environ if environ is None else environ
    job = detect(environ)
    if job is None:
        return None
    settings = choose_mpi_settings(job, count_cores(for_all_ranks=True))
    if "OMP_NUM_THREADS" not in environ:  # every BLAS falls back on it
        settings |= dict.fromkeys(THREAD_VARIABLES, str(count_own_blas_threads(job)))
    settings["MPI4PY_CHECK_MPIEXEC"] = "0"  # each rank would print a warning; check_launcher() raises instead
    for name, value in settings.items():
        environ.setdefault(name, value)
    return job
