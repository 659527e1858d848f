"""Hosts of a job are read from the command line and from files, and written for each launcher."""

from __future__ import annotations

import json
import os
import platform
import random
import re
import socket
import subprocess
import sys
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest
from fake_mpi import FakeMpi
from processes import run_python

from spmdsim.cli.main import main
from spmdsim.errors import many
from spmdsim.launch.hosts import Host, parse_hosts, read_hostfile
from spmdsim.launch.mpi import count_cores
from spmdsim.launcher import give_job_facts
from spmdsim.shutdown.note_server import NoteServer
from spmdsim.shutdown.processes import can_watch_processes

HOSTS = [Host("a", 2), Host("b", 1)]


@pytest.mark.parametrize(
    "text", ["a slots=2\nb slots=1\n", "a:2\nb", "# two\n\na slots = 2 max_slots=4 # big\nb:1\n", "a\nb\na\n"]
)
def test_host_files_of_all_launchers(tmp_path, text):
    file = tmp_path / "hosts"
    file.write_text(text)
    assert read_hostfile(str(file)) == parse_hosts("a:2,b") == HOSTS


@pytest.mark.parametrize(
    "text, message",
    [
        ("a slots=0\n", "line 1: a host must be written like node1 slots=2 or node1:2, got a slots=0"),
        ("a\nb cores=2\n", "line 2: a host must be written like"),
        ("-a\n", "line 1: a host must be written like"),
        ("a:x\n", "line 1: a host must be written like"),
        ("# none\n", "must name at least one host"),
    ],
)
def test_host_files_that_are_refused(tmp_path, text, message, capsys):
    file = tmp_path / "hosts"
    file.write_text(text)
    assert main(["launch", "--hostfile", str(file), __file__]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


@pytest.mark.parametrize(
    "words, message",
    [
        (["--hosts", "a:0"], "--hosts must be names with numbers of slots"),
        (["--hosts=-a"], "--hosts must be names with numbers of slots"),
        (["--hosts", "a b"], "--hosts must be names with numbers of slots"),
        (["--hosts", "a", "--hostfile", "f"], "both name the hosts"),
        (["--hostfile", "/no/such/file"], "/no/such/file"),
        (["--hosts", "a:2", "--world", "lockstep"], "in lock step, one process plays all ranks"),
    ],
)
@pytest.mark.parametrize("command", [["launch", __file__], ["run"], ["train"]], ids=lambda words: words[0])
def test_hosts_that_are_refused(words, message, command, capsys):
    assert main([command[0], *words, *command[1:]]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_open_mpi_in_a_path_with_a_space_is_refused_on_hosts(tmp_path):
    """Open MPI does not quote its path for ssh, so other hosts would run the first word of it."""
    mpi = FakeMpi(tmp_path / "a b")
    result = mpi.run("launch", "-n", 2, "--hosts", "node1:2", __file__)
    assert result.returncode == 2 and result.stderr.count("\n") == 1
    assert f"must have no space, got '{tmp_path}/a b/mpirun'" in result.stderr
    assert mpi.launcher_words("-n", 2, SLURM_NTASKS="2")[:3] == [f"{tmp_path}/a b/mpirun", "-n", "2"]


@pytest.mark.parametrize("variable", ["PBS_NODEFILE", "LSB_DJOB_HOSTFILE"])
def test_a_batch_job_with_a_file_of_hosts_starts_ranks_there(tmp_path, variable):
    """Open MPI from a wheel knows no PBS and no LSF."""
    (tmp_path / "hosts").write_text("node1\nnode1\nnode2\n")
    mpi, job = FakeMpi(tmp_path), {variable: str(tmp_path / "hosts")}
    for words, hosts in (["-n", 3], "node1:2,node2:1"), (["-n", 1, "--hosts", "node3"], "node3:1"):
        assert mpi.launcher_words(*words, **job)[2:5] == [str(words[1]), "--host", hosts]


def test_a_rank_does_not_read_the_hosts_of_its_batch_job():
    """Only the first host of a job of PBS has the file."""
    variables = {"PBS_NODEFILE": "/no/such/file", "PMI_RANK": "0", "PMI_SIZE": "1"}
    result = run_python("-m", "spmdsim", "doctor", "--no-trial", **variables)
    assert "PMI" not in result.stderr and "/no/such/file" not in result.stderr, result.stderr
    assert "numpy" in result.stdout


#: Start jobs on hosts, without a new process for each.
JOBS = """
import json
from spmdsim.launch import start
from spmdsim.launch.hosts import Host
for slots, n in json.loads(sys.argv[1]):
    start(n, [sys.executable], hosts=[Host(f"node{number}", count) for number, count in enumerate(slots)])
"""


def test_ranks_fill_hosts_in_order_and_evenly(tmp_path):
    draw = random.Random(0)
    jobs = [([draw.randint(1, 5) for _ in range(draw.randint(1, 5))], draw.randint(1, 40)) for _ in range(30)]
    jobs += [([2, 2], 3), ([1, 1, 1], 8), ([5], 1), ([1, 5], 1)]
    output = FakeMpi(tmp_path).run(json.dumps(jobs), text=JOBS).stdout
    spreads = re.findall(r"word: --host\nword: (.*)", output)
    assert len(spreads) == len(jobs)
    for (slots, n), spread in zip(jobs, spreads):
        ranks = [(name, int(count)) for name, count in (word.split(":") for word in spread.split(","))]
        names = [f"node{number}" for number in range(len(slots))]
        assert [name for name, _ in ranks] == [name for name in names if name in dict(ranks)]
        assert sum(dict(ranks).values()) == n and all(dict(ranks).values())
        rounds = -(-n // sum(slots))  # ranks of the fullest slot
        for name, count in zip(names, slots):
            assert dict(ranks).get(name, 0) in range(count * (rounds - 1), count * rounds + 1)


def list_exported(words: list[str]) -> list[str]:
    """Return the names of the variables that Open MPI gets behind ``-x``."""
    return [name for option, name in pairwise(words) if option == "-x"]


def test_each_launcher_gets_hosts_and_variables_in_its_words(tmp_path):
    variables = {"DATA_PATH": "/data", "SPMDSIM_DEADLINE": "20", "SLURM_JOB_ID": "1"}
    ompi, mpich = FakeMpi(tmp_path / "ompi"), FakeMpi(tmp_path / "mpich", "MPICH")
    slurm = FakeMpi(tmp_path / "slurm", "Open MPI", srun="slurm 24.05")
    words = ompi.launcher_words("-n", 3, "--hosts", "a:2,b:1", **variables)
    assert words[3:7] == ["--host", "a:2,b:1", "--bind-to", "none"]
    assert set(words[7::2]) == {"-x"} and {"DATA_PATH", "SPMDSIM_DEADLINE"} <= set(list_exported(words))
    assert words[7:] == [word for name in list_exported(words) for word in ("-x", name)]
    words = mpich.launcher_words("-n", 3, "--hosts", "a:2,b:1", **variables)
    assert words[3:] == ["-hosts", "a:2,b:1"]
    words = slurm.launcher_words("-n", 3, "--hosts", "a:2,b:1", **variables)
    assert words[0] == str(slurm.folder / "srun")
    assert words[3:] == ["--mpi=pmix", "--nodes=2", "--nodelist=a,b"]


def test_variables_of_the_program_are_passed_and_those_of_the_host_are_not(tmp_path):
    names = ["HOSTS_OF_DATA", "MAIL_SERVER", "PWD_FILE", "_MINE", "LD_PRELOAD"]
    others = ["HOST", "HOSTNAME", "PWD", "_", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "BASH_FUNC_f%%", "a.b"]
    words = FakeMpi(tmp_path).launcher_words("-n", 2, "--hosts", "a", **dict.fromkeys(names + others, ""))
    exported = list_exported(words)
    assert set(names) <= set(exported) and not set(others) & set(exported) and exported == sorted(exported)


# -- notes of ranks on other hosts -------------------------------------------------------------------------


@pytest.fixture
def server(tmp_path):
    """Yield a server that writes notes into a folder, as the starter of a job does."""
    server = NoteServer(lambda name, text: (tmp_path / name).write_text(text))
    yield server
    server.close()


def send_note(server: NoteServer, name: str, text: str, secret: str = "") -> bool:
    """Send a note as a rank on another host does; return True if the server answers that it is written."""
    note = {"secret": secret or server.address.secret, "name": name, "text": text}
    with suppress(OSError), socket.create_connection(("127.0.0.1", server.address.port), 5) as connection:
        connection.sendall(json.dumps(note).encode() + b"\n")
        return connection.recv(1) == b"."
    return False


def test_notes_reach_the_starter_and_nothing_else_does(server, tmp_path):
    assert send_note(server, "rank_5", "137\nwas killed")
    assert (tmp_path / "rank_5").read_text() == "137\nwas killed"
    assert not send_note(server, "rank_6", "", secret="0" * 32)
    assert not send_note(server, "../rank_6", "") and not send_note(server, "rank_6.txt", "")
    server.close()
    assert not send_note(server, "rank_6", "")
    assert [path.name for path in tmp_path.iterdir()] == ["rank_5"]


@pytest.mark.skipif(not can_watch_processes(), reason="no supervisor on this system")
@pytest.mark.parametrize(
    "end, notes",
    [
        ("os.kill(os.getpid(), 9)", {"start-1": "", "rank_1": "137\nwas killed by signal 9", "ending": ""}),
        ("sys.exit(0)", {"start-1": "", "left_1": "0 before MPI"}),
    ],
)
def test_a_rank_without_its_starter_on_the_host_sends_its_notes(server, tmp_path, end, notes):
    script = tmp_path / "program.py"
    script.write_text(f"import os, sys\n{end}\n")
    folder = tmp_path / "of the other host" / "spmdsim-1"
    environment = {**os.environ, "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "3"}
    environment |= {"OMPI_COMM_WORLD_LOCAL_SIZE": "1"}
    give_job_facts(environment, folder=str(folder), server=server.address.to_text(), starter="1")
    rank = subprocess.run(
        [sys.executable, "-m", "spmdsim.launch.bootstrap", str(script)],
        env=environment,
        capture_output=True,
        text=True,
    )
    written = {
        path.name: path.read_text() for path in tmp_path.iterdir() if path.is_file() and path != script
    }
    assert written.keys() == notes.keys(), rank.stderr
    assert all(written[name].startswith(text) for name, text in notes.items())
    host = f" on {platform.node()}"  # the job has ranks elsewhere
    assert written.get("rank_1", host).endswith(host)
    assert not folder.exists()


#: A rank that claims to be on another host. The three hosts have one rank, two ranks on one core, and one rank.
ON_HOSTS = """\
import fcntl, os, platform, socket, sys, tempfile
from pathlib import Path
from spmdsim.launch import prepare
from spmdsim.shutdown import processes

rank, folder, full_folder = prepare().rank, Path(sys.argv[1]), Path(sys.argv[2])
platform.node = lambda: ("node1", "node2", "node2", "node3")[rank]
launchers_cores = {0} if rank in (1, 2) else {0, 1, 2, 3}
os.sched_getaffinity = lambda process: {0} if process == 0 and rank < 3 else launchers_cores
socket.if_nameindex = lambda: [(1, "lo"), (2, "eth0")]
addresses = {b"lo": "127.0.0.1", b"eth0": "10.0.0.1"}
fcntl.ioctl = lambda file, request, name: bytes(20) + socket.inet_aton(addresses[name.rstrip(bytes(1))]) + bytes(8)
processes.SHARED, tempfile.tempdir = folder, str(full_folder if rank == 3 else folder)
from spmdsim.cli.main import main
sys.exit(main(["doctor", "--json"]))
"""


@pytest.mark.parametrize("can_write", [True, False])
def test_the_row_of_a_host_in_doctor(can_write, launcher, tmp_path, monkeypatch):
    (tmp_path / "program.py").write_text(ON_HOSTS)
    (tmp_path / "empty").mkdir()
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    for name in (f"ompi.{gone.pid}", f"prterun.node3.{gone.pid}.{os.getuid()}"):
        (tmp_path / "full" / name).mkdir(parents=True)
    words = ["-m", "spmdsim", "launch", "-n", 4, "program.py", "empty", "full"]
    words[-3:] = [tmp_path / word for word in words[-3:]]
    result = run_python(
        *words, cwd=tmp_path if can_write else Path("/proc")
    )  # No user can make files in /proc.
    findings = {finding["about"]: finding for finding in json.loads(result.stdout)["findings"]}
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1, 2, 3}, raising=False)
    cores = count_cores()  # A container may have fewer.
    binding = "bound to 1 each" if cores > 1 else "not bound"
    hosts = [findings[f"host node{number}"] for number in (1, 2, 3)]
    folder_words = [] if can_write else ["another working folder"]
    assert [host["found"].split("; ") for host in hosts] == [
        ["rank 0", f"{many(cores, 'core')}, {binding}", "eth0 10.0.0.1", *folder_words],
        ["ranks 1, 2", "1 core, not bound", "eth0 10.0.0.1", *folder_words],
        [
            "rank 3",
            f"{many(cores, 'core')}, not bound",
            "eth0 10.0.0.1",
            *folder_words,
            "2 files of killed jobs",
        ],
    ]
    states = ["ok", "warning", "note"] if can_write else ["warning"] * 3
    assert [host["state"] for host in hosts] == states
    assert ["more ranks than cores" in host["advice"] for host in hosts] == [False, True, False]
    assert all(("all hosts see" in host["advice"]) != can_write for host in hosts)
    assert can_write == (hosts[0]["advice"] == "") and "doctor --clean" in hosts[2]["advice"]
