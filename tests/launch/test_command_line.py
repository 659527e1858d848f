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
from fake_mpi import MPICH, OPEN_MPI, FakeMpi
from processes import run_python

from spmdsim import printing
from spmdsim.cli import output
from spmdsim.cli.main import COMMANDS, build_parser, main
from spmdsim.launch.mpi import count_cores
from spmdsim.tables import Table

#: Variables of batch systems with the number of tasks of a job, or with the path of a file of its hosts.
OF_BATCH_JOBS = ("SLURM_NTASKS", "NSLOTS", "PBS_NODEFILE", "LSB_DJOB_HOSTFILE")


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
    printing.say("hello")
    output.emit_json({})
    printing.console().print("hello")
    assert capsys.readouterr().out == ""
    rank(0)
    printing.say("hello")
    assert capsys.readouterr().out == "hello\n"


@pytest.mark.parametrize("variables", [{}, {"PMI_RANK": "0", "PMI_SIZE": "1"}], ids=["command", "rank"])
def test_a_mistake_is_one_line_and_exit_code_2(variables):
    words = ["layout", "--mesh", "dp=2", "--dims", "tp", "--shape", "4"]
    result = run_python("-m", "spmdsim", *words, **variables)
    assert (result.returncode, result.stdout) == (2, "")
    assert re.fullmatch(r"spmdsim layout: error: .*'tp'.*\n", result.stderr)


class Finding:
    """An object that is a dict in JSON."""

    def to_dict(self) -> dict[str, object]:
        return {"about": "x", "found": {3}}


def test_json_knows_numpy(capsys):
    output.emit_json({"a": np.int64(3), "b": np.arange(2), "c": {2, 1}, "d": Finding()})
    numbers = json.loads(capsys.readouterr().out)
    assert numbers == {"a": 3, "b": [0, 1], "c": [1, 2], "d": {"about": "x", "found": [3]}}


def test_tables_are_not_cut_in_a_file(capsys):
    printing.say(Table(["name"], [["x" * 150], ["[1] as it is"]]))
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
    report = json.loads(result.stdout)
    findings = {finding["about"]: finding for finding in report["findings"]}
    assert result.returncode == (0 if report["ok"] else 1)
    assert findings["OPENBLAS_CORETYPE"]["state"] == "warning"
    if report["ok"]:
        assert findings["trial on 2 ranks"]["state"] == "ok"
        assert findings["MPI threads"]["found"] == "multiple"


#: Run the command on a rank that may use one core, while its launcher may use all; BLAS has two threads.
BOUND_RANK = """\
import os, sys, threadpoolctl
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
info = {"user_api": "blas", "internal_api": "openblas", "version": "0.3", "architecture": "Zen", "num_threads": 2}
threadpoolctl.threadpool_info = lambda: [info]
from spmdsim.cli.main import main
sys.exit(main(["doctor", "--no-trial", "--json"]))
"""


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="ranks are not bound to cores")
def test_the_doctor_sees_crowded_ranks():
    states = []
    for ranks in (count_cores(), count_cores() + 1):
        names = ("SLURM_STEP_NUM_TASKS", "SLURM_STEP_TASKS_PER_NODE")
        job = {"SLURM_PROCID": "0", **dict.fromkeys(names, str(ranks))}
        report = json.loads(run_python("-c", BOUND_RANK, **job).stdout)
        findings = {finding["about"]: finding for finding in report["findings"]}
        assert findings["cores"]["found"] == str(count_cores())
        assert findings["BLAS"]["state"] == "warning"
        assert findings["BLAS"]["advice"].startswith("OMP_NUM_THREADS=1 ")
        states.append(findings["ranks"]["state"])
    assert states == ["ok", "note"]


def test_launchers_and_their_flags(tmp_path):
    ompi, mpich = FakeMpi(tmp_path / "ompi"), FakeMpi(tmp_path / "mpich", "MPICH")
    crowded = ompi.launcher_words("-n", 8, SLURM_NTASKS="4")
    assert crowded[:3] == [str(tmp_path / "ompi" / "mpirun"), "-n", "8"] and "--oversubscribe" in crowded
    assert "--oversubscribe" not in ompi.launcher_words("-n", 8, SLURM_NTASKS="8")
    assert mpich.launcher_words("-n", 8, SLURM_NTASKS="4") == [str(tmp_path / "mpich" / "mpirun"), "-n", "8"]


@pytest.mark.parametrize(
    "library, user, allowed", [("Open MPI", 0, "1"), ("Open MPI", 1, "0"), ("MPICH", 0, "0")]
)
def test_open_mpi_is_allowed_to_run_as_root(tmp_path, library, user, allowed):
    result = FakeMpi(tmp_path, library).run(
        *["launch", "-n", 2, __file__],
        text=f"os.geteuid = lambda: {user}",
        OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="0",
    )
    assert f"root: {allowed}\n" in result.stdout, result.stderr


def examine_launcher(mpi: FakeMpi) -> dict[str, dict[str, str]]:
    """Return the findings of ``spmdsim doctor`` on a fake MPI by their subjects."""
    report = json.loads(mpi.run("doctor", "--no-trial", "--json").stdout)
    return {finding["about"]: finding for finding in report["findings"]}


@pytest.mark.parametrize(
    "library, version, vendor",
    [
        ("MPICH", "Intel(R) MPI Library for Linux* OS", "Intel MPI"),
        ("Intel MPI", MPICH, "MPICH"),
        ("MPICH", OPEN_MPI, "Open MPI"),
        ("Open MPI", MPICH, "MPICH"),
        ("Open MPI", "something else", "unknown"),
    ],
)
def test_a_launcher_fits_the_library_by_its_vendor(tmp_path, library, version, vendor):
    finding = examine_launcher(FakeMpi(tmp_path, library, mpirun=version))["launcher"]
    if {library, vendor} == {"MPICH", "Intel MPI"}:
        assert (finding["state"], finding["found"]) == ("ok", f"{tmp_path / 'mpirun'} ({vendor})")
    else:
        assert finding["state"] == "broken" and f"mpi4py is built for {library}, but" in finding["advice"]
        assert f"{tmp_path / 'mpirun'} ({vendor});" in finding["advice"]


@pytest.mark.parametrize(
    "error, advice",
    [
        ('ModuleNotFoundError: No module named "mpi4py"', "mpi4py finds no MPI library (ModuleNotFoundError"),
        ("No module named '\"'\"'mpi4py'\"'\"'", "mpi4py is not installed: pip install mpi4py"),
        (
            "RuntimeError: cannot load\nlibmpi.so: cannot open",
            "finds no MPI library (libmpi.so: cannot open): pip",
        ),
    ],
)
def test_a_missing_library_is_named(tmp_path, error, advice):
    finding = examine_launcher(FakeMpi(tmp_path, error=error))["mpi4py"]
    assert finding["state"] == "broken" and advice in finding["advice"]


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
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


@pytest.mark.parametrize("flag", ["-n", "-np", "--np"])
def test_a_number_of_ranks_behind_the_script_is_refused(flag, capsys):
    assert main(["launch", "script.py", "here", flag, "8"]) == 2
    message = capsys.readouterr().err
    assert f"{flag} 8 must stand before script.py" in message and "spmdsim launch -n 8 script.py" in message


@pytest.mark.parametrize("words", [["-np", "3"], ["--np", "3"], ["--np=3"], ["-n3"]])
def test_a_number_of_ranks_in_the_words_of_mpi(words, monkeypatch):
    monkeypatch.setattr("spmdsim.launch.start", lambda n, *_, **__: n)
    assert main(["launch", *words, __file__, "-np", "8"]) == 3


@pytest.mark.parametrize("variable", [*OF_BATCH_JOBS, None])
def test_a_number_of_ranks_that_nobody_gave_is_that_of_the_job_or_of_the_cores(
    variable, tmp_path, monkeypatch, capsys
):
    (tmp_path / "hosts").write_text("node1\n" * 4 + "node2\n" * 2)
    for other in OF_BATCH_JOBS:
        monkeypatch.delenv(other, raising=False)
    if variable:
        monkeypatch.setenv(variable, str(tmp_path / "hosts") if variable.endswith("FILE") else "6")
    monkeypatch.setattr("spmdsim.launch.start", lambda n, *_, **__: n)
    ranks = main(["launch", __file__])
    message = capsys.readouterr().err
    assert ranks == (6 if variable else count_cores()) and message.count("\n") == 1
    assert message.startswith(f"6 ranks, as {variable} says" if variable else f"{ranks} rank")
    assert "-n N" in message


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
def test_the_doctor_keeps_paths_whole(columns: int, tmp_path: Path) -> None:
    """The path of a launcher is found in the table, and the path of an unfitting launcher in the advice."""
    for version, code in ((OPEN_MPI, 0), (MPICH, 1)):
        mpi = FakeMpi(tmp_path / "projects" / "course" / "installed" / "bin", mpirun=version)
        result = mpi.run("doctor", "--no-trial", COLUMNS=str(columns))
        assert result.returncode == code, result.stderr
        assert result.stdout.count(str(mpi.folder / "mpirun")) == 1, result.stdout


def test_json_is_not_folded_on_a_narrow_terminal(monkeypatch, capsys):
    document = {"found": "one file of jobs that were killed, such as this"}
    monkeypatch.setenv("COLUMNS", "30")
    output.emit_json(document)
    assert json.loads(capsys.readouterr().out) == document
