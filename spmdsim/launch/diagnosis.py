"""Examine what runs on many ranks need of this machine: MPI, BLAS, cores, settings, files of earlier jobs.

The abilities of MPI's library are tried on every rank: ``python -m spmdsim.launch.diagnosis``.
"""

from __future__ import annotations

import json
import os
import platform
import secrets
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from spmdsim.errors import InputError, SpmdError, many
from spmdsim.launch.hosts import Host, count_slots, format_hosts
from spmdsim.launch.mpi import (
    YIELD_VARIABLE,
    count_cores,
    count_own_blas_threads,
    find_package_version,
    prepare,
)
from spmdsim.launcher import Launched, detect, is_root
from spmdsim.settings import SETTINGS, explain_unknown_names
from spmdsim.shutdown.phase_watch import check_size, start_mpi
from spmdsim.shutdown.processes import find_leftovers, remove_path
from spmdsim.sides import name_ranks

if TYPE_CHECKING:
    from mpi4py import MPI

#: Seconds for two ranks to start, try MPI and end. A loaded machine takes several.
TRIAL_SECONDS = 60
#: The request of Linux for the address of a network interface (SIOCGIFADDR).
GET_ADDRESS = 0x8915
#: Barriers that are timed.
BARRIERS = 10
#: Microseconds of a barrier from which on waiting ranks seem to keep their cores: the system takes cores away every few
#: ms.
SLOW_BARRIER = 5000


@dataclass(frozen=True)
class Diagnosis:
    """A finding about one thing that runs depend on.

    Attributes:
        about: the thing, such as "MPI threads".
        state: "ok", "note", "warning" (slow or surprising) or "broken" (runs are not possible).
        observed: what it is on this machine.
        advice: what to do; empty if the state is "ok".
    """

    about: str
    state: str
    observed: str
    advice: str = ""

    def to_dict(self) -> dict[str, str]:
        """Return the finding as values of JSON."""
        return {"about": self.about, "state": self.state, "found": self.observed, "advice": self.advice}


def examine(trial: bool = True, hosts: Sequence[Host] = ()) -> list[Diagnosis]:
    """Return the findings on everything that a run depends on, in this order.

    They are about software, cores, files of killed jobs, settings, BLAS, and MPI with its launcher. With ``trial``, MPI is
    tried last, unless an earlier finding is "broken":

    - A rank of a job tries it in this job. All ranks must call this function then.
    - Any other process starts a job for the trial.

    Args:
        trial: True to try MPI, too.
        hosts: the hosts of the job that is started, with a rank for each slot; empty for two ranks on this machine.
    """
    job = detect()
    findings = [
        *_examine_software(),
        *_examine_cores(job),
        *_examine_leftovers(),
        *_examine_settings(),
        *_examine_blas(job),
        *_examine_launcher(job),
    ]
    if trial and not any(finding.state == "broken" for finding in findings):
        findings += _run_trial(hosts) if job is None else _try_mpi()
    return findings


def _examine_software() -> Iterator[Diagnosis]:
    """Yield the versions of this package, Python and numpy."""
    from spmdsim._version import __version__

    yield Diagnosis("spmdsim", "ok", f"{__version__}, Python {sys.version.split()[0]}")
    yield Diagnosis("numpy", "ok", find_package_version("numpy"))


def _examine_cores(job: Launched | None) -> Iterator[Diagnosis]:
    """Yield a diagnosis of the number of cores and, in a job, of the number of ranks.

    In a job, the cores are those that any of its ranks on this machine may use. The first diagnosis is "ok". The
    second is a note if this machine has more ranks than cores, else "ok".

    Args:
        job: the job, as the launcher describes it; None outside of a job.
    """
    available = count_cores(for_all_ranks=job is not None)
    yield Diagnosis("cores", "ok", str(available))
    if job is None:
        return
    ranks = f"{many(job.size, 'rank')}, {job.local_size} on this machine, started by {job.launcher}"
    if job.local_size > available:
        advice = "more ranks than cores: counts are exact, measured times are noise"
        yield Diagnosis("ranks", "note", ranks, advice)
    else:
        yield Diagnosis("ranks", "ok", ranks)


def _examine_leftovers() -> Iterator[Diagnosis]:
    """Yield a diagnosis of the files that killed jobs of this user left; nothing if there are none.

    The diagnosis is a note with the number of files, their size on disk, and the path of one.
    """
    paths = find_leftovers()
    sizes = [path.stat().st_blocks * 512 for path in paths if path.exists()]
    if sizes:
        text = f"{many(len(sizes), 'file')} of jobs that were killed, {sum(sizes) / 1e6:.1f} MB, such as {paths[0]}"
        advice = "they take memory and can keep Open MPI from starting: spmdsim doctor --clean removes them"
        yield Diagnosis("left behind", "note", text, advice)


def clean() -> Diagnosis:
    """Remove the files that killed jobs of this user left, and return a diagnosis.

    The diagnosis has the number of removed files. If some could not be removed, it is a warning that names them; else
    its state is "ok".
    """
    paths = find_leftovers()
    stuck = [str(path) for path in paths if not remove_path(path)]
    text = f"{many(len(paths) - len(stuck), 'file')} of jobs that were killed removed"
    if not stuck:
        return Diagnosis("cleaned", "ok", text)
    return Diagnosis(
        "cleaned", "warning", f"{text}, not removed: {', '.join(stuck)}", "remove the others by hand"
    )


def _examine_settings() -> Iterator[Diagnosis]:
    """Yield a diagnosis of each environment variable of this package, and of similar, unknown names.

    A variable is "ok" with its value or its default, or "broken" with the rule that its value breaks. A name like
    ``SPMDSIM_CHEK`` is a warning with the name that was probably meant.
    """
    for setting in SETTINGS:
        try:
            value = setting.read()
        except InputError as error:
            yield Diagnosis(setting.name, "broken", os.environ[setting.name], str(error))
        else:
            is_set = bool(os.environ.get(setting.name))
            yield Diagnosis(setting.name, "ok", f"{value}" if is_set else f"not set: {setting.shown}")
    for name, advice in explain_unknown_names(os.environ):
        yield Diagnosis(name, "warning", os.environ[name], advice)


def _examine_blas(job: Launched | None) -> Iterator[Diagnosis]:
    """Yield a diagnosis of each loaded BLAS library: its kernels and its number of threads.

    The state is "warning" if a library has more threads than this rank's share of the machine's cores, else "ok". If
    OPENBLAS_CORETYPE is set, yield a warning about that variable, too.

    Args:
        job: the job to which this process belongs; None outside of a job, where no number of threads is too large.
    """
    import numpy  # noqa: F401 - loads the BLAS
    from threadpoolctl import threadpool_info

    for info in threadpool_info():
        if info.get("user_api") != "blas":
            continue
        threads = int(info["num_threads"])
        text = f"{info['internal_api']} {info.get('version')}, kernels {info.get('architecture')}, {many(threads, 'thread')}"
        fitting = count_own_blas_threads(job) if job else count_cores()
        if job and threads > fitting:
            advice = f"OMP_NUM_THREADS={fitting} keeps ranks from fighting for cores"
            yield Diagnosis("BLAS", "warning", text, advice)
        else:
            yield Diagnosis("BLAS", "ok", text)
    if preset := os.environ.get("OPENBLAS_CORETYPE"):
        advice = "fixes the kernels: on a newer processor matrix products run at half speed; unset it"
        yield Diagnosis("OPENBLAS_CORETYPE", "warning", preset, advice)


def _examine_launcher(job: Launched | None) -> Iterator[Diagnosis]:
    """Yield diagnoses of mpi4py, of its MPI library, and of the launcher.

    The state of each is "ok" or "broken". If mpi4py or its library is missing, the only diagnosis is that of mpi4py. In a
    job the launcher is not examined, because it has started this rank. A child process loads the library.

    Args:
        job: the job to which this process belongs; None outside of a job.
    """
    from spmdsim.launch.mpi import find_launcher
    from spmdsim.mpi_library import find_library

    try:
        library = find_library()
    except SpmdError as error:
        yield Diagnosis("mpi4py", "broken", find_package_version("mpi4py"), str(error))
        return
    yield Diagnosis("mpi4py", "ok", find_package_version("mpi4py"))
    yield Diagnosis("MPI", "ok", str(library))
    if job is not None:
        return
    try:
        launcher = find_launcher()
    except SpmdError as error:
        yield Diagnosis("launcher", "broken", "none that fits", str(error))
    else:
        yield Diagnosis("launcher", "ok", f"{launcher.path} ({launcher.vendor})")


def _run_trial(hosts: Sequence[Host]) -> list[Diagnosis]:
    """Run a job in which ranks try MPI, and return the diagnoses that its rank 0 makes.

    The function waits until the job ends. It does not look at the job's exit code.

    - If the job answers: a diagnosis "ok" that it has started and ended, then those of rank 0.
    - If it does not answer within :data:`TRIAL_SECONDS` (60): one diagnosis "broken" with that time.
    - If the answer cannot be read: one diagnosis "broken" with what the job printed to stderr.

    Args:
        hosts: the hosts, with a rank for each slot; empty for two ranks on this machine.
    """
    n = count_slots(hosts) or 2
    about = f"trial on {many(n, 'rank')}"
    where = ["--hosts", format_hosts(hosts)] if hosts else []
    command = [
        sys.executable,
        "-m",
        "spmdsim",
        "launch",
        "-n",
        str(n),
        *where,
        "-m",
        "spmdsim.launch.diagnosis",
    ]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=TRIAL_SECONDS, check=False)
        lines: list[Any] = json.loads(result.stdout)
    except (subprocess.TimeoutExpired, ValueError) as error:
        no_answer = f"no answer within {TRIAL_SECONDS} s"
        text = result.stderr.strip() or "no output" if isinstance(error, ValueError) else no_answer
        return [Diagnosis(about, "broken", text, "the launcher does not work here")]
    return [
        Diagnosis(about, "ok", "started and ended"),
        *(Diagnosis(*line.values()) for line in lines),
    ]


def _try_mpi() -> list[Diagnosis]:
    """Start MPI and return diagnoses of what it can do; all ranks must call it.

    In this order:

    1. the nodes with their ranks, as worlds have them;
    2. the hosts, if there are several;
    3. calls of MPI by several threads;
    4. sums of float16;
    5. counts of 2^31 elements and more;
    6. the time of a barrier;
    7. the transports between ranks.

    Raises:
        WorldError: If MPI has another number of ranks than the launcher has started.
    """
    start_mpi()
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    check_size(comm.size, MPI.get_vendor()[0], detect())
    return [
        _examine_nodes(comm),
        *_examine_hosts(comm),
        _examine_threads(),
        _try_float16(comm),
        _examine_large_counts(),
        _measure_waiting(comm),
        _examine_transport(),
    ]


def _examine_nodes(comm: MPI.Comm) -> Diagnosis:
    """Return a diagnosis with the ranks of each node, as ``World.nodes`` has them.

    All ranks of ``comm`` must call it. Its state is always "ok". Of more than 16 nodes, the first 16 are named.
    """
    from spmdsim.worlds.agreement.node_memory import gather_places
    from spmdsim.worlds.agreement.process_state import map_nodes

    nodes = map_nodes(gather_places(comm))
    return Diagnosis("nodes", "ok", nodes.line.removeprefix("nodes: ") or str(nodes))


class HostFacts(NamedTuple):
    """Facts about a host, as one of its ranks sees them.

    Attributes:
        name: the host's name.
        cores: the number of cores that its ranks share.
        own_cores: the number of cores that the rank is bound to.
        interfaces: the network interfaces with their addresses, such as "eth0 10.0.0.1".
        shares_folder: True if the rank sees a file that rank 0 made in the working folder.
        leftovers: the number of files of killed jobs of this user.
    """

    name: str
    cores: int
    own_cores: int
    interfaces: tuple[str, ...]
    shares_folder: bool
    leftovers: int


def _examine_hosts(comm: MPI.Comm) -> list[Diagnosis]:
    """Return a diagnosis of each host of a job; [] if all ranks are on one host.

    The hosts are in the order of their first ranks; see :func:`_describe_host`. All ranks of ``comm`` must call it,
    and all get the result.

    To find out which hosts see the working folder of rank 0, rank 0 makes an empty file there, and removes it in the
    end. If rank 0 cannot make the file, every host counts as one that does not see the folder.

    Args:
        comm: the communicator of all ranks.
    """
    probe = Path(comm.bcast(os.path.join(os.getcwd(), f".spmdsim-{secrets.token_hex(8)}")))
    if comm.rank == 0:
        with suppress(OSError):
            probe.touch()
    comm.Barrier()
    own_facts = HostFacts(
        platform.node(),
        count_cores(True),
        count_cores(),
        list_interfaces(),
        probe.exists(),
        len(find_leftovers()),
    )
    ranks_of_host: dict[str, list[tuple[int, HostFacts]]] = {}
    for rank, facts in enumerate(comm.allgather(own_facts)):
        ranks_of_host.setdefault(facts.name, []).append((rank, facts))
    if comm.rank == 0:
        probe.unlink(missing_ok=True)
    if len(ranks_of_host) == 1:
        return []
    return [_describe_host(dict(ranks_and_facts)) for ranks_and_facts in ranks_of_host.values()]


def _describe_host(facts: Mapping[int, HostFacts]) -> Diagnosis:
    """Return the diagnosis of a host from the facts that its ranks found.

    The diagnosis has the host's ranks, cores, binding, interfaces, and the number of files of killed jobs. Cores,
    interfaces and files are as the host's first rank sees them. The state is:

    - "warning" if there are more ranks than cores, or a rank does not see the working folder of rank 0;
    - else "note" if there are files of killed jobs;
    - else "ok".

    Args:
        facts: the facts that each rank of the host found, by rank; at least one.
    """
    host = next(iter(facts.values()))
    bound_cores = sorted({rank_facts.own_cores for rank_facts in facts.values()})
    binding = (
        "not bound" if bound_cores == [host.cores] else f"bound to {' or '.join(map(str, bound_cores))} each"
    )
    parts = [name_ranks(list(facts)), f"{many(host.cores, 'core')}, {binding}", *host.interfaces]
    advice = []
    if len(facts) > host.cores:
        advice.append("more ranks than cores: measured times are noise")
    if not all(rank_facts.shares_folder for rank_facts in facts.values()):
        parts.append("another working folder")
        advice.append("programs, logs and checkpoints need a folder that all hosts see")
    state = "warning" if advice else "ok"
    if host.leftovers:
        parts.append(f"{many(host.leftovers, 'file')} of killed jobs")
        advice.append("spmdsim doctor --clean in a job on this host removes the files")
        state = "warning" if state == "warning" else "note"
    return Diagnosis(f"host {host.name}", state, "; ".join(parts), "; ".join(advice))


def list_interfaces() -> tuple[str, ...]:
    """Return the network interfaces of this host with their IPv4 addresses, such as ("eth0 10.0.0.1",).

    The loopback interface and interfaces without an address are left out. () on a system other than Linux.
    """
    interfaces = []
    with suppress(ImportError, OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        import fcntl

        for _, name in socket.if_nameindex():
            with suppress(OSError):  # an interface without an address
                answer = fcntl.ioctl(probe, GET_ADDRESS, struct.pack("256s", name.encode()[:15]))
                address = socket.inet_ntoa(answer[20:24])
                if not address.startswith("127."):
                    interfaces.append(f"{name} {address}")
    return tuple(interfaces)


def _examine_threads() -> Diagnosis:
    """Return a diagnosis with the thread level of MPI.

    The state is "ok" if all threads may call MPI at any time ("multiple"). Otherwise it is "warning", because no
    thread can end a hanging job.
    """
    from mpi4py import MPI

    level = MPI.Query_thread()
    if level == MPI.THREAD_MULTIPLE:
        return Diagnosis("MPI threads", "ok", "multiple")
    levels = ("single", "funneled", "serialized")
    name = next(name for name in levels if getattr(MPI, f"THREAD_{name.upper()}") == level)
    return Diagnosis("MPI threads", "warning", name, "hanging jobs cannot be ended from a thread")


def _try_float16(comm: MPI.Comm) -> Diagnosis:
    """Add float16 numbers of all ranks by MPI and return a diagnosis; all ranks of ``comm`` must call it.

    The state is "ok", "note" if MPI refuses the type, or "warning" if the sum is wrong. No error is raised.
    """
    import numpy as np

    ones, total = np.ones(4, np.float16), np.empty(4, np.float16)
    try:
        comm.Allreduce(ones, total)
    except Exception as error:  # the type of the error depends on the library
        text, advice = f"no MPI reduction ({error})", "reduced by our own operation instead"
        return Diagnosis("float16", "note", text, advice)
    if (total == comm.size).all():
        return Diagnosis("float16", "ok", "MPI reductions work")
    return Diagnosis("float16", "warning", "MPI reductions are wrong")


def _examine_large_counts() -> Diagnosis:
    """Return a diagnosis of messages of 2^31 elements and more.

    It is "ok" for MPI 4, which sends them in one call, and a note for older versions. MPI must have started.
    """
    from mpi4py import MPI

    version = MPI.Get_version()
    text = f"MPI {version[0]}.{version[1]}"
    if version >= (4, 0):
        return Diagnosis("large counts", "ok", text)
    return Diagnosis("large counts", "note", text, "messages of 2^31 elements and more are sent in pieces")


def _measure_waiting(comm: MPI.Comm) -> Diagnosis:
    """Return a diagnosis with the mean time of a barrier in microseconds.

    The mean is over :data:`BARRIERS` barriers and all ranks. All ranks of ``comm`` must call it. The state is "warning"
    if this machine has more ranks than cores, and a barrier takes longer than :data:`SLOW_BARRIER` (5000)
    microseconds: then waiting ranks seem to keep their cores from ranks that work. Else it is "ok".

    Args:
        comm: the communicator of all ranks.
    """
    comm.Barrier()
    begin = time.perf_counter()
    for _ in range(BARRIERS):
        comm.Barrier()
    microseconds: float = comm.allreduce((time.perf_counter() - begin) / BARRIERS * 1e6) / comm.size
    text = f"a barrier takes {microseconds:.0f} us on {many(comm.size, 'rank')}"
    yielding = os.environ.get(YIELD_VARIABLE)
    if yielding:
        text += f", mpi_yield_when_idle={yielding}"
    job = detect()
    if job and job.local_size > count_cores(for_all_ranks=True) and microseconds > SLOW_BARRIER:
        advice = f"waiting ranks do not give way: {YIELD_VARIABLE}=1, or fewer ranks"
        return Diagnosis("waiting", "warning", text, advice)
    return Diagnosis("waiting", "ok", text)


def _examine_transport() -> Diagnosis:
    """Return a diagnosis with the environment variables that choose MPI's transports.

    Its state is always "ok".
    """
    names = ("OMPI_MCA_btl", "OMPI_MCA_mtl", "OMPI_MCA_pml", "UCX_TLS", "FI_PROVIDER")
    chosen = [f"{name}={os.environ[name]}" for name in names if name in os.environ]
    return Diagnosis("transports", "ok", ", ".join(chosen) or "the library's own choice")


def main() -> int:
    """Try MPI on all ranks, print the findings of rank 0 as a line of JSON, and return 0.

    :func:`_run_trial` runs this on two ranks.
    """
    prepare()
    findings = [finding.to_dict() for finding in _try_mpi()]
    if is_root():
        sys.stdout.write(json.dumps(findings) + "\n")
    return 0


if __name__ == "__main__":
    from spmdsim.launch.bootstrap import guard

    sys.exit(guard(main, "spmdsim doctor"))
