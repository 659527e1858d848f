"""Hosts of a job are read from the command line and from files, and written for each launcher."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spmdsim.cli.main import main
from spmdsim.errors import LauncherError
from spmdsim.launch.diagnosis import HostFacts, _describe_host
from spmdsim.launch.hosts import Host, parse_hosts, read_hostfile, spread_ranks
from spmdsim.launch.mpi import Launcher, list_exported_variables
from spmdsim.launcher import give_job_facts
from spmdsim.shutdown.note_server import NoteServer, parse_address, send_note
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


def test_open_mpi_in_a_path_with_a_space_is_refused_on_hosts():
    """Open MPI does not quote its path for ssh, so other hosts would run the first word of it."""
    launcher = Launcher("/a b/mpirun", "Open MPI")
    with pytest.raises(LauncherError, match=r"must have no space, got '/a b/mpirun'"):
        launcher.make_command(2, False, [Host("node1", 2)])
    assert launcher.make_command(2, False) == ["/a b/mpirun", "-n", "2"]


@given(st.lists(st.integers(1, 5), min_size=1, max_size=5), st.integers(1, 40))
def test_ranks_fill_hosts_in_order_and_evenly(slots, n):
    hosts = [Host(f"node{number}", count) for number, count in enumerate(slots)]
    spread = spread_ranks(hosts, n)
    ranks = {host.name: host.slots for host in spread}
    assert sum(ranks.values()) == n and all(ranks.values())
    rounds = -(-n // sum(slots))  # ranks of the fullest slot
    assert all(ranks.get(name, 0) in range(count * (rounds - 1), count * rounds + 1) for name, count in hosts)


def test_each_launcher_gets_hosts_and_variables_in_its_words():
    hosts, names = HOSTS, ["DATA_PATH", "SPMDSIM_DEADLINE"]
    ompi, mpich = Launcher("/a/mpirun", "Open MPI"), Launcher("/b/mpirun", "MPICH")
    slurm = Launcher("/c/srun", "Slurm", "pmix")
    assert ompi.make_command(3, False, hosts, names)[3:] == (
        ["--host", "a:2,b:1", "--bind-to", "none", "-x", "DATA_PATH", "-x", "SPMDSIM_DEADLINE"]
    )
    assert mpich.make_command(3, False, hosts, names)[3:] == ["-hosts", "a:2,b:1"]
    assert slurm.make_command(3, False, hosts, names)[3:] == ["--mpi=pmix", "--nodes=2", "--nodelist=a,b"]


def test_variables_of_the_program_are_passed_and_those_of_the_host_are_not():
    names = ["HOSTS_OF_DATA", "MAIL_SERVER", "PWD_FILE", "_MINE", "LD_PRELOAD"]
    others = ["HOST", "HOSTNAME", "PWD", "_", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "BASH_FUNC_f%%", "a.b"]
    assert list_exported_variables(dict.fromkeys(names + others, "1")) == sorted(names)


# -- notes of ranks on other hosts -------------------------------------------------------------------------


@pytest.fixture
def server(tmp_path):
    """Yield a server that writes notes into a folder, as the starter of a job does."""
    server = NoteServer(lambda name, text: (tmp_path / name).write_text(text))
    yield server
    server.close()


def test_notes_reach_the_starter_and_nothing_else_does(server, tmp_path):
    address = parse_address(server.address.to_text())
    assert address == server.address
    assert send_note(address, "rank_5", "137\nwas killed")
    assert (tmp_path / "rank_5").read_text() == "137\nwas killed"
    assert not send_note(address._replace(secret="0" * 32), "rank_6", "")
    assert not send_note(address, "../rank_6", "") and not send_note(address, "rank_6.txt", "")
    server.close()
    assert not send_note(address, "rank_6", "")
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


def test_the_row_of_a_host_in_doctor():
    fine = HostFacts("node1", 4, 2, ("eth0 10.0.0.1",), True, 0)
    row = _describe_host({4: fine, 6: fine})
    assert (row.state, row.advice) == ("ok", "")
    assert row.observed == "ranks 4, 6; 4 cores, bound to 2 each; eth0 10.0.0.1"
    left = _describe_host({0: fine._replace(own_cores=4, leftovers=2)})
    assert left.state == "note" and "not bound" in left.observed and "2 files of killed jobs" in left.observed
    unshared_row = _describe_host({0: fine._replace(cores=1), 1: fine._replace(shares_folder=False)})
    assert (
        unshared_row.state == "warning"
        and "more ranks than cores" in unshared_row.advice
        and "all hosts see" in unshared_row.advice
    )
