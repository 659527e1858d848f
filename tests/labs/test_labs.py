"""Solutions of the labs earn all points, and typical wrong answers get the sentence that is meant for them."""

from __future__ import annotations

import functools
import inspect
import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from orphans import is_alive, leaving_text

from spmdsim.cli.main import main
from spmdsim.errors import InputError
from spmdsim.labs import Grader, WrongAnswer, lab, lab_numbers, score
from spmdsim.labs.forms import student_files, teacher_files
from spmdsim.labs.grading import compile_answer, run_program
from spmdsim.launcher import is_root
from spmdsim.worlds import world

FOLDER = Path(__file__).resolve().parents[2] / "labs"


def split_at(mark, text):
    """Return the text before the first heading of this level, and a dict of the texts below each heading."""
    before, *sections = re.split(f"^{mark} ", text, flags=re.MULTILINE)
    return before, dict(section.split("\n", 1) for section in sections)


def read_answers(task, text):
    """Return a task with the solution and the typical wrong answers of its section in ``labs/teacher``."""
    blocks = re.compile(r"^```python\n(.*?)^```\n?", re.MULTILINE | re.DOTALL)
    solution, wrong = split_at("###", text)
    answers = [
        WrongAnswer(sentence, blocks.sub("", answer).strip(), "".join(blocks.findall(answer)))
        for sentence, answer in wrong.items()
    ]
    return replace(task, solution="".join(blocks.findall(solution)), wrong=tuple(answers))


def read_lab(number):
    """Return a lab with the notes, slides and answers of ``labs/teacher``."""
    notes, sections = split_at("##", (FOLDER / "teacher" / f"lab{number}.md").read_text(encoding="utf-8"))
    tasks = tuple(read_answers(task, sections[task.name]) for task in lab(number).tasks)
    return replace(lab(number), tasks=tasks, notes=notes.strip(), slides=sections["Slides"].strip())


LABS = [read_lab(number) for number in lab_numbers()]
#: The texts of all files for students and for teachers, by path.
STUDENT, TEACHER = student_files(), teacher_files()
TASKS = [(course_lab, task) for course_lab in LABS for task in course_lab.tasks]
WRONG = [(course_lab, task, wrong) for course_lab, task in TASKS for wrong in task.wrong]


def make_program(course_lab, task, code):
    """Return a function that runs the program of a lab and returns its variables.

    The program answers `task` with `code`; the other tasks have their starters.
    """

    def program():
        variables = {"__name__": f"lab{course_lab.number}"}
        exec(compile(course_lab.program({task.name: code}), f"lab{course_lab.number}.py", "exec"), variables)
        return variables

    return program


def parameter_id(value):
    """Return the name of a lab or a task in the id of a test, or None for other parameters."""
    return f"lab{value.number}" if hasattr(value, "number") else getattr(value, "name", None)


@pytest.mark.parametrize("course_lab", LABS, ids=parameter_id)
def test_scripts_have_the_notebook_texts_in_short_lines(course_lab):
    lines = STUDENT[f"lab{course_lab.number}.py"].splitlines()
    assert max(map(len, lines)) <= 110
    comments = " ".join(" ".join(line.lstrip("# ") for line in lines).split())
    for task in course_lab.tasks:
        for kind, text in task.parts:
            assert kind == "code" or " ".join(text.split()) in comments


@pytest.mark.parametrize("course_lab, task, wrong", WRONG, ids=parameter_id)
def test_a_typical_wrong_answer_gets_its_sentence(course_lab, task, wrong):
    grade = score(course_lab, task, make_program(course_lab, task, wrong.code))
    assert grade.mistake == wrong.sentence
    assert grade.points < task.points


def test_an_exhaustive_search_earns_the_points_of_short_chains():
    """Only the long chain fails, and its sentence names the question instead of the time limit."""
    task = LABS[7].task("cheapest")
    (wrong,) = [answer for answer in task.wrong if "all combinations" in answer.sentence]
    grade = score(LABS[7], task, make_program(LABS[7], task, wrong.code))
    assert (grade.points, task.points) == (3, 4) and "cheapest path" in grade.mistake


def test_an_exhaustive_recursion_gets_the_sentence_before_the_time_limit():
    """Each operator more takes four times as long. A chain of 12 operators would take four seconds."""
    task = LABS[7].task("cheapest")
    slow_start = """
import time

def cheapest(costs, moves):
    if len(costs) > 11:
        raise TimeoutError
    if len(costs) > 7:
        time.sleep(4.0 ** (len(costs) - 11))
"""
    code = task.solution.replace("def cheapest(costs, moves):\n", slow_start.lstrip("\n"))
    grade = score(LABS[7], task, make_program(LABS[7], task, code))
    assert grade.points == 3 and grade.mistake.startswith("it tries all combinations")


@pytest.mark.parametrize("course_lab, task", TASKS, ids=parameter_id)
def test_the_type_of_a_number_costs_no_points(course_lab, task):
    """Numpy's numbers are accepted for Python's numbers, and a list is accepted for a tuple."""
    variables = make_program(course_lab, task, task.solution)()

    def convert(value):
        if type(value) in (tuple, list):
            return [convert(each) for each in value]
        return {int: np.int64, float: np.float64}.get(type(value), lambda same: same)(value)

    function = variables[task.name]
    if not inspect.isgeneratorfunction(function):
        answer = functools.wraps(function)(lambda *arguments, **named: convert(function(*arguments, **named)))
        assert score(course_lab, task, lambda: {**variables, task.name: answer}).points == task.points


@pytest.mark.parametrize("course_lab, task", TASKS, ids=parameter_id)
def test_starters_earn_no_points(course_lab, task):
    grade = score(course_lab, task, make_program(course_lab, task, task.starter))
    assert grade.points == 0
    assert grade.mistake.startswith("not written yet") or "NotImplementedError" not in task.starter


@pytest.mark.parametrize("course_lab", LABS, ids=parameter_id)
def test_labs_have_hints_notes_slides_and_wrong_answers(course_lab):
    assert 30 <= course_lab.minutes <= 60 and 3 <= len(course_lab.tasks) <= 6 and len(course_lab.goals) >= 2
    assert course_lab.notes and course_lab.slides.count("\n---\n") >= 2
    for task in course_lab.tasks:
        assert len(task.hints) == 3 and len(task.wrong) >= 2, task.name
        assert all(wrong.why and wrong.code for wrong in task.wrong), task.name


@pytest.mark.parametrize("course_lab", LABS, ids=parameter_id)
def test_students_see_no_solution(course_lab):
    for form in ("ipynb", "py"):
        text = STUDENT[f"lab{course_lab.number}.{form}"]
        for task in course_lab.tasks:
            assert task.solution.strip() not in text and "BEGIN SOLUTION" not in text
            assert not any(wrong.sentence in text for wrong in task.wrong)


def test_solved_scripts_grade_themselves():
    assert all(
        f"grade({number}, globals())" in TEACHER[f"solutions/lab{number}.py"] for number in range(1, 10)
    )


def test_slides_have_pictures_of_the_library():
    files = teacher_files()
    pictures = {name for name in files if name.endswith(".svg")}
    shown = [re.findall(r"!\[.+\]\(\.\./(\S+)\)", files[f"slides/lab{number}.md"]) for number in range(1, 10)]
    assert all(shown) and {name for names in shown for name in names} == pictures
    assert all(files[name].startswith("<svg") for name in pictures)


def test_the_guide_has_each_solution_and_wrong_answer_once():
    text = TEACHER["guide/lab1.md"]
    for task in LABS[0].tasks:
        assert text.count(task.solution.strip()) == 1
        assert all(text.count(wrong.sentence) == 1 for wrong in task.wrong)


def test_files_in_labs_are_up_to_date():
    """The files in labs/ equal the generated ones; ``spmdsim labs copy --replace labs`` writes them again."""
    written_files = {path.name: path.read_text() for path in FOLDER.iterdir() if path.is_file()}
    assert written_files == STUDENT, "spmdsim labs copy --replace labs writes them"


# -- grading from outside -------------------------------------------------------------------------------


def make_solved_text(course_lab, form):
    """Return the text of a student's file with all solutions; ``form`` is "py" or "ipynb"."""
    text = STUDENT[f"lab{course_lab.number}.{form}"]
    for task in course_lab.tasks:
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
def test_files_of_students_are_graded(form, tmp_path, capfd):
    file = tmp_path / f"lab1.{form}"
    file.write_text(make_solved_text(LABS[0], form))
    assert main(["labs", "check", "1", str(file)]) == 0
    assert capfd.readouterr().out.splitlines()[-1] == "10 of 10 points"
    file.write_text(file.read_text().replace("min(index, longer)", "max(index, longer)"))
    assert main(["labs", "check", "1", str(file), "--json"]) == 1
    report = json.loads(capfd.readouterr().out)
    assert report["points"] == 7 and [entry["task"] for entry in report["tasks"] if entry["mistake"]] == [
        "block"
    ]


#: Lines of an answer that end or block its process or return wrong types -> a text in the sentence of the grade.
FATAL_LINES = {
    "import sys; sys.exit(0)": "sys.exit(0) ends the program",
    "import os; os._exit(0)": "nothing can be said of it",
    "while True: pass": "it has not ended after 1 s",
    "import time; time.sleep(99)": "lab1.py:2: it has not ended after 1 s",
    "x = [0] * 10**10": "there is no more memory",
    "return block": "block(7, 4, 0) gives <function block",
    "return 1 // 0": "lab1.py:2: ZeroDivisionError",
}


@pytest.mark.parametrize("line", FATAL_LINES)
def test_answers_that_exit_or_hang_cost_the_points_of_one_task(line, tmp_path, capfd):
    file = tmp_path / "lab1.py"
    answers = {task.name: task.solution for task in LABS[0].tasks}
    file.write_text(
        f"def block(size, parts, index):\n    {line}\n" + LABS[0].program({**answers, "block": ""})
    )
    words = ["labs", "check", "1", str(file), "--time-limit", "1", "--memory-limit", "512", "--json"]
    assert main(words) == 1
    entries = {entry["task"]: entry for entry in json.loads(capfd.readouterr().out)["tasks"]}
    assert entries["block"]["points"] == 0 and FATAL_LINES[line] in entries["block"]["mistake"]
    assert entries["layouts"]["points"] == 3 and entries["owners"]["points"] == 2


@pytest.mark.parametrize("course_lab", LABS, ids=parameter_id)
def test_examples_of_scripts_run_without_their_comment_signs(course_lab):
    """An editor removes "# " from each line; what is left is the code of the notebook's cell."""
    uncommented_lines = [line[2:] for line in STUDENT[f"lab{course_lab.number}.py"].splitlines()]
    looks = [text for kind, text in course_lab.parts if kind == "look"]
    assert looks and all(text.strip() in "\n".join(uncommented_lines) for text in looks)


def test_the_report_names_the_file_and_leaves_out_the_pictures(tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lab1.ipynb").write_text(STUDENT["lab1.ipynb"])
    assert main(["labs", "check", "1"]) == 1
    captured = capfd.readouterr()
    assert captured.out.splitlines()[0] == "lab 1: Where does my tensor live? (lab1.ipynb)"
    assert captured.err == ""


def test_prints_of_a_function_are_shown(tmp_path, capfd):
    (tmp_path / "lab1.py").write_text(
        "print('loaded')\ndef block(size, parts, index):\n    print('called')\n    return 0, 0\n"
    )
    assert main(["labs", "check", "1", str(tmp_path / "lab1.py"), "--task", "block"]) == 1
    assert capfd.readouterr().err == "called\n"


def test_hints_are_printed_up_to_the_level(tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["labs", "check", "1", "--task", "block", "--hint", "2"]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["hint 1", "hint 2"]
    assert main(["labs", "check", "1", "--task", "block", "--hint", "2", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["hints"] == lines


def test_copies_do_not_overwrite_files(tmp_path, capfd):
    assert main(["labs", "copy", str(tmp_path / "course")]) == 0
    assert {path.name for path in (tmp_path / "course").iterdir()} == {*STUDENT}
    (tmp_path / "course" / "lab1.py").write_text("mine")
    assert main(["labs", "copy", str(tmp_path / "course")]) == 2
    assert "there already" in capfd.readouterr().err
    assert (tmp_path / "course" / "lab1.py").read_text() == "mine"
    assert main(["labs", "copy", "--teacher", str(tmp_path / "teacher")]) == 0
    assert (tmp_path / "teacher" / "guide" / "lab1.md").exists()


def test_files_for_teachers_come_from_the_source_tree(tmp_path, capfd, monkeypatch):
    """Installed packages lack the files for teachers, so one line names the folder without them."""
    words = ["labs", "copy", "--teacher", str(tmp_path / "teacher")]
    monkeypatch.setattr("spmdsim.labs.teaching.TREE", tmp_path)
    for options, folder in (([], "this installation"), (["--source", str(tmp_path)], str(tmp_path))):
        assert main([*words, *options]) == 2
        message = capfd.readouterr().err
        assert (
            message.count("\n") == 1
            and f"{folder} has no labs/teacher/GUIDE.md" in message
            and "example.org" not in message
        )
    assert main([*words, "--source", str(FOLDER.parent)]) == 0
    assert (tmp_path / "teacher" / "solutions" / "lab9.py").exists()
    assert main(["labs", "copy", str(tmp_path / "course"), "--source", "x"]) == 2
    assert "--source goes with --teacher" in capfd.readouterr().err


def test_the_package_has_no_solution():
    """Installed files contain neither the text of a solution nor of a wrong answer."""
    package = FOLDER.parent / "spmdsim"
    texts = [path.read_text() for path in package.rglob("*") if path.suffix in (".py", ".md", ".json")]
    assert len(texts) > 100
    for _, task in TASKS:
        for code in (task.solution, *(wrong.code for wrong in task.wrong)):
            assert not any(code.strip() in text for text in texts), task.name
    assert all(not task.solution and not task.wrong for number in lab_numbers() for task in lab(number).tasks)


def test_the_list_has_two_short_lines_per_lab(capfd):
    assert main(["labs", "list"]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert len(lines) == 2 * len(LABS) and max(map(len, lines)) <= 80


@pytest.mark.parametrize(
    "number, message", [(99, "lab: number must be one of 1, 2, "), (1, "there is no lab1.py")]
)
def test_errors_name_missing_labs_and_files(number, message, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    assert main(["labs", "check", str(number)]) == 2
    assert message in capfd.readouterr().err


def test_a_notebook_grades_its_functions(capfd):
    course_lab = LABS[0]
    check = Grader(1)
    variables = make_program(course_lab, course_lab.task("block"), course_lab.task("block").solution)()
    check(variables["block"])
    check(variables["layouts"])
    check.total()
    lines = capfd.readouterr().out.splitlines()
    assert lines[0] == "ok  block: 3 of 3 points" and "not written yet" in lines[1]
    assert lines[-1].startswith("3 of 10 points")
    with pytest.raises(AssertionError, match="not written yet"):
        Grader(1, strict=True)(variables["layouts"])
    with pytest.raises(InputError, match="its tasks are layouts, block"):
        check(len)


@pytest.mark.parametrize("course_lab", LABS, ids=parameter_id)
def test_every_notebook_runs_with_its_solutions(course_lab, capfd):
    """The cells run in this process one after the other, as in a kernel, and earn all points."""
    variables = {"__name__": "__main__"}
    for cell in json.loads(make_solved_text(course_lab, "ipynb"))["cells"]:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), variables)
    assert capfd.readouterr().out.splitlines()[-1] == f"{course_lab.points} of {course_lab.points} points"


def read_nbgrader_text(course_lab):
    """Return the text of the notebook for nbgrader of a lab."""
    return TEACHER[f"nbgrader/source/lab{course_lab.number}/lab{course_lab.number}.ipynb"]


def test_jupyter_runs_the_notebooks(tmp_path):
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    for course_lab in LABS:
        for text in (STUDENT[f"lab{course_lab.number}.ipynb"], read_nbgrader_text(course_lab)):
            nbformat.validate(nbformat.reads(text, as_version=4))
    executed = nbclient.NotebookClient(
        nbformat.reads(make_solved_text(LABS[0], "ipynb"), as_version=4)
    ).execute(cwd=tmp_path)
    assert "10 of 10 points" in executed.cells[-1].outputs[-1].text


def test_grading_cells_are_not_part_of_the_program(tmp_path):
    file = tmp_path / "lab1.ipynb"
    file.write_text(STUDENT["lab1.ipynb"])
    assert "check" not in run_program(compile_answer(file), file)


def test_nbgrader_finds_its_metadata():
    for course_lab in LABS:
        cells = json.loads(read_nbgrader_text(course_lab))["cells"]
        graded = [cell["metadata"]["nbgrader"] for cell in cells if "nbgrader" in cell["metadata"]]
        assert sum(facts.get("points", 0) for facts in graded if facts["grade"]) == course_lab.points
        assert len({facts["grade_id"] for facts in graded}) == len(graded)
        solutions = [cell for cell in cells if cell["metadata"].get("nbgrader", {}).get("solution")]
        assert len(solutions) == len(course_lab.tasks)
        assert all("### BEGIN SOLUTION\n" in "".join(cell["source"]) for cell in solutions)
    assert "nbgrader/nbgrader_config.py" in TEACHER


@pytest.mark.mpi(min_size=8)
@pytest.mark.parametrize("course_lab", LABS, ids=parameter_id)
def test_all_ranks_report_one_grade(course_lab):
    """Right answers earn all points on ranks, and a wrong answer to the first task gets its sentence."""
    if world().size != 8:
        pytest.skip("labs are for 8 ranks")
    for task in course_lab.tasks:
        assert score(course_lab, task, make_program(course_lab, task, task.solution)).mistake is None
    task, wrong = course_lab.tasks[0], course_lab.tasks[0].wrong[0]
    grade = score(course_lab, task, make_program(course_lab, task, wrong.code))
    assert grade.mistake == wrong.sentence and grade.points < task.points


@pytest.mark.mpi(min_size=8)
def test_a_script_on_ranks_prints_one_report(capfd):
    """A lab's script grades itself under a launcher; one rank prints the report, and all exit with 0."""
    if world().size != 8:
        pytest.skip("labs are for 8 ranks")
    with pytest.raises(SystemExit) as ended:
        exec(compile(make_solved_text(LABS[0], "py"), "lab1.py", "exec"), {"__name__": "__main__"})
    last = capfd.readouterr().out.splitlines()[-1:]
    assert last == (["10 of 10 points"] if is_root() else []) and not ended.value.code


# -- answers that try to change their judge ----------------------------------------------------------

#: Functions without a result, one per task of the first lab.
NOTHING = "".join(f"def {task.name}(*a): return None\n" for task in LABS[0].tasks)
#: Texts that try to forge points.
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
forged = json.dumps({"task": "block", "points": 3, "most": 3, "mistake": None})
for number in range(3, 256):
    for text in (forged, '["answer", [3, null]]\n', '["answer", null]\n' * 9, "code 0\n"):
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
def test_an_answer_cannot_change_its_judge(forgery, tmp_path, capfd):
    file = tmp_path / "lab1.py"
    functions = NOTHING.replace("None", "Same(1)") if "Same" in FORGERIES[forgery] else NOTHING
    file.write_text(FORGERIES[forgery] + functions)
    assert main(["labs", "check", "1", str(file), "--json", "--time-limit", "60"]) == 1
    captured = capfd.readouterr()
    assert json.loads(captured.out)["points"] == 0 and "Traceback" not in captured.err


#: Tasks with checks of calls: an earlier version judged them in the process of the answer, where a program can patch them.
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


@pytest.mark.parametrize(
    "course_lab, task", [case for case in TASKS if case[1].name in LIVE], ids=parameter_id
)
def test_patches_in_the_process_of_the_program_change_no_grade(course_lab, task):
    wrong = task.wrong[0]
    patches = "\n".join(["if True:", *(f"    {line}" for line in PATCHES.splitlines())])
    program = make_program(course_lab, task, wrong.code)

    def run_patched():
        variables = program()
        exec(patches, {})
        return variables

    grade = score(course_lab, task, run_patched)
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
def test_a_claimed_result_earns_nothing(claim, tmp_path, capfd):
    file = tmp_path / "lab3.py"
    file.write_text(lab(3).setup + CLAIMS[claim])
    assert (
        main(["labs", "check", "3", str(file), "--task", "contraction", "--json", "--time-limit", "60"]) == 1
    )
    captured = capfd.readouterr()
    assert json.loads(captured.out)["points"] == 0 and "Traceback" not in captured.err, captured


def test_ranks_share_no_variables(tmp_path, capfd):
    """Ranks are processes, so a rank does not see numbers that another rank stores in a variable."""
    file = tmp_path / "lab9.py"
    file.write_text("""
numbers = {}
def ring(comm, mine):
    numbers[comm.rank] = mine
    comm.sendrecv(0, dest=(comm.rank + 1) % comm.size, source=(comm.rank - 1) % comm.size)
    return sum(numbers.values())
""")
    assert main(["labs", "check", "9", str(file), "--task", "ring", "--json", "--time-limit", "60"]) == 1
    (entry,) = json.loads(capfd.readouterr().out)["tasks"]
    assert entry["points"] == 0 and "ring on 2 ranks gives 1 on rank 0, but it is 5" in entry["mistake"]


#: Expressions that a rank may not use -> a text in the sentence of the grade.
FORBIDDEN = {
    "comm._shared.scheduler.problems.clear()": "AttributeError",
    "MPI.pickle.loads(b'')": "AttributeError: MPI.pickle is not available here",
    "MPI.COMM_WORLD.send(print, dest=0)": "TypeError: a message must be numbers, texts, lists or arrays",
    "comm.Send(np.ndarray.__new__(np.ndarray, 1 << 23, 'u1'), dest=0)": "arrays in messages must have at most 4,194,304 bytes together in a lab at lab9.py:5",
    "os._exit(0)": "the program ended its own process with exit code 0: nothing can be said of it",
}


@pytest.mark.parametrize("line", FORBIDDEN)
def test_ranks_reach_only_public_names(line, tmp_path, capfd):
    file = tmp_path / "lab9.py"
    file.write_text(f"""
import os, numpy as np
def ring(comm, mine):
    from mpi4py import MPI
    print({line})
    return mine
""")
    assert main(["labs", "check", "9", str(file), "--task", "ring", "--json", "--time-limit", "60"]) == 1
    (entry,) = json.loads(capfd.readouterr().out)["tasks"]
    assert entry["points"] == 0 and FORBIDDEN[line] in entry["mistake"], entry


@pytest.mark.skipif(sys.platform != "linux", reason="other systems give orphans to init")
def test_processes_started_by_an_answer_are_terminated(tmp_path, capfd):
    """Processes that left the group and session are terminated too, and the function keeps its points."""
    course_lab, file = LABS[0], tmp_path / "lab1.py"
    file.write_text(
        f"{leaving_text(tmp_path / 'number')}leave()\n"
        + course_lab.program({"block": course_lab.task("block").solution})
    )
    assert main(["labs", "check", "1", str(file), "--task", "block", "--json", "--time-limit", "60"]) == 0
    assert json.loads(capfd.readouterr().out)["points"] == 3 and not is_alive(tmp_path / "number")


def test_answers_cannot_import_checkers(tmp_path, capfd):
    file = tmp_path / "lab5.py"
    file.write_text("""
def product(x, w):
    from spmdsim.labs.checks import lab5
    left = lab5._left(lab5.LINE, (x,), (w,))
    return left and left[0]
""")
    assert main(["labs", "check", "5", str(file), "--task", "product", "--json", "--time-limit", "60"]) == 1
    (entry,) = json.loads(capfd.readouterr().out)["tasks"]
    assert entry["points"] == 0 and "ModuleNotFoundError" in entry["mistake"]
