"""Every lab with its solutions, which earn all points, and with its typical wrong answers, which get their sentence."""

from __future__ import annotations

import functools
import inspect
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from orphans import is_alive, leaving_text

from spmdsim.cli.main import main
from spmdsim.errors import InputError
from spmdsim.labs import Grader, lab, lab_numbers, score, teaching
from spmdsim.labs.declaration import LEVELS
from spmdsim.labs.forms import guide, notebook, script, student_files, teacher_files
from spmdsim.labs.grading import compile_program, run_program
from spmdsim.labs.teaching import read_teacher_lab
from spmdsim.launcher import is_root
from spmdsim.worlds import world

LABS = [read_teacher_lab(number) for number in lab_numbers()]
TASKS = [(of, task) for of in LABS for task in of.tasks]
WRONG = [(of, task, wrong) for of, task in TASKS for wrong in task.wrong]
FOLDER = Path(__file__).resolve().parents[2] / "labs"


def names(of, task, code):
    """The names of a lab's program in which one task is answered."""

    def program():
        here = {"__name__": f"lab{of.number}"}
        exec(compile(of.program({task.name: code}), f"lab{of.number}.py", "exec"), here)
        return here

    return program


def called(value):
    return f"lab{value.number}" if hasattr(value, "number") else getattr(value, "name", None)


@pytest.mark.parametrize("of", LABS, ids=called)
def test_a_script_says_in_short_lines_what_the_notebook_says(of):
    lines = script(of).splitlines()
    assert all(len(line) <= 100 for line in lines if line.startswith("# ") and not line.startswith("#     "))
    said = " ".join(" ".join(line.lstrip("# ") for line in lines).split())
    for task in of.tasks:
        for kind, text in task.parts:
            assert kind == "code" or " ".join(text.split()) in said


@pytest.mark.parametrize("of, task, wrong", WRONG, ids=called)
def test_a_typical_wrong_answer_gets_the_sentence_meant_for_it(of, task, wrong):
    grade = score(of, task, names(of, task, wrong.code))
    assert grade.mistake == wrong.sentence
    assert grade.points < task.points


def test_trying_all_combinations_earns_the_points_of_short_chains():
    """Right where it ends: the long chain alone is lost, and the sentence says what is asked, not that time is up."""
    task = LABS[7].task("cheapest")
    (wrong,) = [one for one in task.wrong if "all combinations" in one.sentence]
    grade = score(LABS[7], task, names(LABS[7], task, wrong.code))
    assert (grade.points, task.points) == (3, 4) and "cheapest way" in grade.mistake


@pytest.mark.parametrize("of, task", TASKS, ids=called)
def test_the_type_of_a_number_costs_no_points(of, task):
    """Numbers of numpy, and a list for a tuple."""
    solved = names(of, task, task.solution)()

    def converted(value):
        if type(value) in (tuple, list):
            return [converted(each) for each in value]
        return {int: np.int64, float: np.float64}.get(type(value), lambda same: same)(value)

    function = solved[task.name]
    if not inspect.isgeneratorfunction(function):
        answer = functools.wraps(function)(
            lambda *arguments, **named: converted(function(*arguments, **named))
        )
        assert score(of, task, lambda: {**solved, task.name: answer}).points == task.points


@pytest.mark.parametrize("of, task", TASKS, ids=called)
def test_what_students_begin_with_earns_nothing(of, task):
    grade = score(of, task, names(of, task, task.starter))
    assert grade.points == 0
    assert grade.mistake.startswith("not written yet") or "NotImplementedError" not in task.starter


@pytest.mark.parametrize("of", LABS, ids=called)
def test_a_lab_has_all_that_belongs_to_it(of):
    assert 30 <= of.minutes <= 45 and 3 <= len(of.tasks) <= 6 and len(of.goals) >= 2
    assert of.notes and of.slides.count("\n---\n") >= 2
    for task in of.tasks:
        assert len(task.hints) == LEVELS and len(task.wrong) >= 2, task.name
        assert all(wrong.why and wrong.code for wrong in task.wrong), task.name


@pytest.mark.parametrize("of", LABS, ids=called)
def test_students_see_no_solution(of):
    for text in (notebook(of), script(of)):
        for task in of.tasks:
            assert task.solution.strip() not in text and "BEGIN SOLUTION" not in text
            assert not any(wrong.sentence in text for wrong in task.wrong)


def test_solved_scripts_grade_themselves():
    files = teacher_files()
    assert all(f"grade({number}, globals())" in files[f"solutions/lab{number}.py"] for number in range(1, 10))


def test_the_guide_has_everything_once():
    text = guide(LABS[0])
    for task in LABS[0].tasks:
        assert text.count(task.solution.strip()) == 1
        assert all(text.count(wrong.sentence) == 1 for wrong in task.wrong)


def test_what_people_read_is_what_the_labs_say():
    """``spmdsim labs copy --replace labs`` writes them again."""
    there = {path.name: path.read_text() for path in FOLDER.iterdir() if path.is_file()}
    assert there == student_files(), "spmdsim labs copy --replace labs writes them"


# -- grading from outside -------------------------------------------------------------------------------


def solved(of, form):
    """A student's file with all solutions, as text."""
    text = script(of) if form == "py" else notebook(of)
    for task in of.tasks:
        if form == "py":
            text = text.replace(task.starter.strip(), task.solution.strip())
        else:
            cells = json.loads(text)
            for cell in cells["cells"]:
                if "".join(cell["source"]) == task.starter.strip():
                    cell["source"] = task.solution
            text = json.dumps(cells)
    return text


@pytest.mark.parametrize("form", ["py", "ipynb"])
def test_a_file_is_graded(form, tmp_path, capfd):
    file = tmp_path / f"lab1.{form}"
    file.write_text(solved(LABS[0], form))
    assert main(["labs", "check", "1", str(file)]) == 0
    assert capfd.readouterr().out.splitlines()[-1] == "10 of 10 points"
    file.write_text(file.read_text().replace("min(index, longer)", "max(index, longer)"))
    assert main(["labs", "check", "1", str(file), "--json"]) == 1
    told = json.loads(capfd.readouterr().out)
    assert told["points"] == 7 and [t["task"] for t in told["tasks"] if t["mistake"]] == ["block"]


LEAVING = {
    "import sys; sys.exit(0)": "sys.exit(0) ends the program",
    "import os; os._exit(0)": "nothing can be said of it",
    "while True: pass": "it has not ended after 1 s",
    "import time; time.sleep(99)": "lab1.py:2: it has not ended after 1 s",
    "x = [0] * 10**10": "there is no more memory",
    "return block": "block(7, 4, 0) gives <function block",
    "return 1 // 0": "lab1.py:2: ZeroDivisionError",
}


@pytest.mark.parametrize("line", LEAVING)
def test_who_leaves_or_hangs_earns_nothing_for_that_task_alone(line, tmp_path, capfd):
    file = tmp_path / "lab1.py"
    answers = {task.name: task.solution for task in LABS[0].tasks}
    file.write_text(
        f"def block(size, parts, index):\n    {line}\n" + LABS[0].program({**answers, "block": ""})
    )
    words = ["labs", "check", "1", str(file), "--time-limit", "1", "--memory-limit", "512", "--json"]
    assert main(words) == 1
    told = {each["task"]: each for each in json.loads(capfd.readouterr().out)["tasks"]}
    assert told["block"]["points"] == 0 and LEAVING[line] in told["block"]["mistake"]
    assert told["layouts"]["points"] == 3 and told["owners"]["points"] == 2


def test_hints_by_level(tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["labs", "check", "1", "--task", "block", "--hint", "2"]) == 0
    told = capfd.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in told] == ["hint 1", "hint 2"]


def test_copies_are_not_written_over(tmp_path, capfd):
    assert main(["labs", "copy", str(tmp_path / "course")]) == 0
    assert {path.name for path in (tmp_path / "course").iterdir()} == {*student_files()}
    (tmp_path / "course" / "lab1.py").write_text("mine")
    assert main(["labs", "copy", str(tmp_path / "course")]) == 2
    assert "there already" in capfd.readouterr().err
    assert (tmp_path / "course" / "lab1.py").read_text() == "mine"
    assert main(["labs", "copy", "--teacher", str(tmp_path / "teacher")]) == 0
    assert (tmp_path / "teacher" / "guide" / "lab1.md").exists()


def test_what_teachers_get_comes_from_the_source_tree(tmp_path, capfd, monkeypatch):
    """An installed package is without it: one line says where it is."""
    words = ["labs", "copy", "--teacher", str(tmp_path / "teacher")]
    monkeypatch.setattr(teaching, "TREE", tmp_path)
    for more, where in (([], "this installation"), (["--source", str(tmp_path)], str(tmp_path))):
        assert main([*words, *more]) == 2
        told = capfd.readouterr().err
        assert (
            told.count("\n") == 1
            and f"{where} has no labs/teacher/GUIDE.md" in told
            and "example.org" not in told
        )
    assert main([*words, "--source", str(FOLDER.parent)]) == 0
    assert (tmp_path / "teacher" / "solutions" / "lab9.py").exists()
    assert main(["labs", "copy", str(tmp_path / "course"), "--source", "x"]) == 2
    assert "--source goes with --teacher" in capfd.readouterr().err


def test_the_package_has_no_solution():
    """Nothing that is installed has the text of a solution or a wrong answer."""
    package = FOLDER.parent / "spmdsim"
    texts = [path.read_text() for path in package.rglob("*") if path.suffix in (".py", ".md", ".json")]
    assert len(texts) > 100
    for _, task in TASKS:
        for code in (task.solution, *(wrong.code for wrong in task.wrong)):
            assert not any(code.strip() in text for text in texts), task.name
    assert all(not task.solution and not task.wrong for number in lab_numbers() for task in lab(number).tasks)


def test_lists(capfd):
    assert main(["labs", "list"]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert len(lines) == 2 * len(LABS) and max(map(len, lines)) <= 80


@pytest.mark.parametrize(
    "number, said", [(99, "lab: number must be one of 1, 2, "), (1, "there is no lab1.py")]
)
def test_what_is_not_there_is_said(number, said, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    assert main(["labs", "check", str(number)]) == 2
    assert said in capfd.readouterr().err


def test_a_notebook_grades_its_functions(capfd):
    of = LABS[0]
    check = Grader(1)
    here = names(of, of.task("block"), of.task("block").solution)()
    check(here["block"])
    check(here["layouts"])
    check.total()
    told = capfd.readouterr().out.splitlines()
    assert told[0] == "ok  block: 3 of 3 points" and "not written yet" in told[1]
    assert told[-1].startswith("3 of 10 points")
    with pytest.raises(AssertionError, match="not written yet"):
        Grader(1, strict=True)(here["layouts"])
    with pytest.raises(InputError, match="its tasks are layouts, block"):
        check(len)


@pytest.mark.parametrize("of", LABS, ids=called)
def test_every_notebook_runs_with_its_solutions(of, capfd):
    """Cell by cell in this process, as a kernel does it: they earn all points."""
    here = {"__name__": "__main__"}
    for cell in json.loads(solved(of, "ipynb"))["cells"]:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), here)
    assert capfd.readouterr().out.splitlines()[-1] == f"{of.points} of {of.points} points"


def test_a_notebook_is_one_for_jupyter(tmp_path):
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    for of in LABS:
        for text in (notebook(of), notebook(of, nbgrader=True)):
            nbformat.validate(nbformat.reads(text, as_version=4))
    ran = nbclient.NotebookClient(nbformat.reads(solved(LABS[0], "ipynb"), as_version=4)).execute(
        cwd=tmp_path
    )
    assert "10 of 10 points" in ran.cells[-1].outputs[-1].text


def test_cells_that_grade_are_no_part_of_the_program(tmp_path):
    file = tmp_path / "lab1.ipynb"
    file.write_text(notebook(LABS[0]))
    assert "check" not in run_program(compile_program(file), file)


def test_nbgrader_finds_its_metadata():
    for of in LABS:
        cells = json.loads(notebook(of, nbgrader=True))["cells"]
        graded = [cell["metadata"]["nbgrader"] for cell in cells if "nbgrader" in cell["metadata"]]
        assert sum(facts.get("points", 0) for facts in graded if facts["grade"]) == of.points
        assert len({facts["grade_id"] for facts in graded}) == len(graded)
        solutions = [cell for cell in cells if cell["metadata"].get("nbgrader", {}).get("solution")]
        assert len(solutions) == len(of.tasks)
        assert all("### BEGIN SOLUTION\n" in "".join(cell["source"]) for cell in solutions)
    assert "nbgrader/nbgrader_config.py" in teacher_files()


@pytest.mark.mpi(min_size=8)
@pytest.mark.parametrize("of", LABS, ids=called)
def test_on_ranks(of):
    """Right answers, and a wrong one of the first task, with collectives between processes: all ranks report one grade."""
    if world().size != 8:
        pytest.skip("labs are for 8 ranks")
    for task in of.tasks:
        assert score(of, task, names(of, task, task.solution)).mistake is None
    task, wrong = of.tasks[0], of.tasks[0].wrong[0]
    grade = score(of, task, names(of, task, wrong.code))
    assert grade.mistake == wrong.sentence and grade.points < task.points


@pytest.mark.mpi(min_size=8)
def test_a_script_on_ranks(capfd):
    """A lab's script grades itself under a launcher: one rank prints the report, and all exit with 0."""
    if world().size != 8:
        pytest.skip("labs are for 8 ranks")
    with pytest.raises(SystemExit) as ended:
        exec(compile(solved(LABS[0], "py"), "lab1.py", "exec"), {"__name__": "__main__"})
    last = capfd.readouterr().out.splitlines()[-1:]
    assert last == (["10 of 10 points"] if is_root() else []) and not ended.value.code


# -- answers that would change who judges them ----------------------------------------------------------

NOTHING = "".join(f"def {task.name}(*a): return None\n" for task in LABS[0].tasks)
FORGERIES = {
    "another checker": """
from spmdsim.labs.declaration import Lab
Lab.checker = lambda self, task: lambda f: (None for _ in range(task.points))
""",
    "checks that see nothing": """
from spmdsim.labs import judging
from spmdsim.labs.checks import lab1
for name in ("expect", "expect_equal", "expect_layout", "expect_several"):
    setattr(judging, name, lambda *_, **__: None)
    setattr(lab1, name, lambda *_, **__: None)
for name in ("layouts", "block", "owners", "most_bytes"):
    setattr(lab1, name, lambda f: iter([None] * 9))
""",
    "a result of its own": r"""
import gc, json, os
said = json.dumps({"task": "block", "points": 3, "most": 3, "mistake": None})
for number in range(3, 256):
    for text in (said, '["answer", [3, null]]\n', '["answer", null]\n' * 9, "code 0\n"):
        try:
            os.write(number, text.encode())
        except OSError:
            pass
for frame in gc.get_objects():
    if type(frame).__name__ == "frame" and "report" in frame.f_locals:
        os.write(frame.f_locals["report"][0], f"{frame.f_locals['report'][1]} code 0\n".encode())
os._exit(0)
""",
    "equal to everything": """
class Same(int):
    __eq__ = __ge__ = __le__ = lambda *_: True
    __hash__ = int.__hash__
class Two(tuple):
    __eq__ = lambda *_: True
    __hash__ = tuple.__hash__
""",
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_an_answer_does_not_change_who_judges_it(forgery, tmp_path, capfd):
    file = tmp_path / "lab1.py"
    functions = NOTHING.replace("None", "Same(1)") if "Same" in FORGERIES[forgery] else NOTHING
    file.write_text(FORGERIES[forgery] + functions)
    assert main(["labs", "check", "1", str(file), "--json", "--time-limit", "60"]) == 1
    told = capfd.readouterr()
    assert json.loads(told.out)["points"] == 0 and "Traceback" not in told.err


#: Formerly judged where the answer runs: what a program patches there changes nothing.
LIVE = ["two_halves", "contraction", "loss", "chain", "activation", "two_readers", "optimiser", "ring"]
PATCHES = """
import sys
from spmdsim.labs import declaration, grading, judging
from spmdsim import nn, simulation
from spmdsim.worlds.trace import Trace
for room in (judging, *(module for name, module in sys.modules.items() if name.startswith("spmdsim.labs.checks."))):
    for name in [name for name in vars(room or judging) if name.startswith(("expect", "_expect"))]:
        setattr(room or judging, name, lambda *_, **__: None)
Trace.counts, Trace.planned, Trace.max_nbytes = lambda *_: {}, lambda *_: 0, lambda *_: 0
judging.Mistake.__init__ = lambda *_: None
grading.score = grading.first_mistake = lambda *_: (9, None)
declaration.Lab.checker = lambda *_: lambda f: iter([None] * 9)
simulation.simulate = lambda *_, **__: None
"""


@pytest.mark.parametrize("of, task", [case for case in TASKS if case[1].name in LIVE], ids=called)
def test_a_program_that_patches_its_process_gets_the_sentence_all_the_same(of, task):
    wrong = task.wrong[0]
    lines = "\n".join(["if True:", *(f"    {line}" for line in PATCHES.splitlines())])
    program = names(of, task, wrong.code)

    def patched():
        variables = program()
        exec(lines, {})
        return variables

    grade = score(of, task, patched)
    assert grade.mistake == wrong.sentence and grade.points < task.points


#: Answers to contraction of lab 3 that know or claim the result instead of computing it.
CLAIMS = {
    "the checker's numbers": """
from spmdsim.labs.judging import numbers
def contraction(x, w):
    return Tensor.from_global(numbers(16, 64) @ numbers(64, 8, seed=2), x.layout.mesh("r", None))
""",
    "values that were read": """
def contraction(x, w):
    return Tensor.from_global(x.full() @ w.full(), x.layout.mesh("r", None))
""",
    "an operator of its own": """
from spmdsim import Op, Rule
free = Op("matmul", Rule.parse("... -> ..."), lambda x: x)
def contraction(x, w):
    return free(matmul(x, w).to(x.layout.mesh("r", None)))
""",
    "a record of its own": r"""
import os
def contraction(x, w):
    for number in range(3, 64):
        try:
            os.write(number, b'["answer", [true, [], ["tensor", [0]]]]\n' * 2)
        except OSError:
            pass
    os._exit(0)
""",
    "a record that is none": r"""
import os
def contraction(x, w):
    for number in range(3, 64):
        try:
            os.write(number, b'["answer", [true, [["operator", -1, [7], [], 3], ["move"]], ["tensor", ["x"]]]]\n')
        except OSError:
            pass
    os._exit(0)
""",
}


@pytest.mark.parametrize("claim", CLAIMS)
def test_a_result_that_is_claimed_earns_nothing(claim, tmp_path, capfd):
    file = tmp_path / "lab3.py"
    file.write_text(lab(3).setup + CLAIMS[claim])
    assert (
        main(["labs", "check", "3", str(file), "--task", "contraction", "--json", "--time-limit", "60"]) == 1
    )
    told = capfd.readouterr()
    assert json.loads(told.out)["points"] == 0 and "Traceback" not in told.err, told


def test_ranks_share_no_variables(tmp_path, capfd):
    """Each is a process: a number that one puts into a variable is no message."""
    file = tmp_path / "lab9.py"
    file.write_text("""
numbers = {}
def ring(comm, mine):
    numbers[comm.rank] = mine
    comm.sendrecv(0, dest=(comm.rank + 1) % comm.size, source=(comm.rank - 1) % comm.size)
    return sum(numbers.values())
""")
    assert main(["labs", "check", "9", str(file), "--task", "ring", "--json", "--time-limit", "60"]) == 1
    (told,) = json.loads(capfd.readouterr().out)["tasks"]
    assert told["points"] == 0 and "ring on 2 ranks gives 1 on rank 0, but it is 5" in told["mistake"]


#: What a rank asks the judge for that it may not have.
REACHES = {
    "comm._shared.scheduler.problems.clear()": "AttributeError",
    "MPI.pickle.loads(b'')": "AttributeError: MPI.pickle is not available here",
    "MPI.COMM_WORLD.send(print, dest=0)": "TypeError: a message must be numbers, texts, lists or arrays",
    "comm.Send(np.ndarray.__new__(np.ndarray, 1 << 23, 'u1'), dest=0)": "arrays in messages must have at most 4,194,304 bytes together in a lab at lab9.py:5",
    "os._exit(0)": "the program ended its own process with exit code 0: nothing can be said of it",
}


@pytest.mark.parametrize("line", REACHES)
def test_a_rank_reaches_what_is_public_alone(line, tmp_path, capfd):
    file = tmp_path / "lab9.py"
    file.write_text(f"""
import os, numpy as np
def ring(comm, mine):
    from mpi4py import MPI
    print({line})
    return mine
""")
    assert main(["labs", "check", "9", str(file), "--task", "ring", "--json", "--time-limit", "60"]) == 1
    (told,) = json.loads(capfd.readouterr().out)["tasks"]
    assert told["points"] == 0 and REACHES[line] in told["mistake"], told


@pytest.mark.skipif(sys.platform != "linux", reason="other systems give orphans to init")
def test_processes_that_an_answer_starts_end_with_it(tmp_path, capfd):
    """Also those that have left its group and session; the points are those of the function."""
    of, file = LABS[0], tmp_path / "lab1.py"
    file.write_text(
        f"{leaving_text(tmp_path / 'number')}leave()\n" + of.program({"block": of.task("block").solution})
    )
    assert main(["labs", "check", "1", str(file), "--task", "block", "--json", "--time-limit", "60"]) == 0
    assert json.loads(capfd.readouterr().out)["points"] == 3 and not is_alive(tmp_path / "number")


def test_checkers_are_not_imported_by_answers(tmp_path, capfd):
    file = tmp_path / "lab5.py"
    file.write_text("""
def product(x, w):
    from spmdsim.labs.checks import lab5
    left = lab5._left(lab5.LINE, (x,), (w,))
    return left and left[0]
""")
    assert main(["labs", "check", "5", str(file), "--task", "product", "--json", "--time-limit", "60"]) == 1
    (told,) = json.loads(capfd.readouterr().out)["tasks"]
    assert told["points"] == 0 and "ModuleNotFoundError" in told["mistake"]
