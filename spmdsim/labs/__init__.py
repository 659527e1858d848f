"""Labs that grade themselves: what a student reads, runs and is told comes from one declaration per lab.

A lab is two Markdown texts in ``course/`` (``lab1.md`` for students, ``lab1.teacher.md`` with solutions, typical wrong
answers and slides) and a module in ``checks/`` with one checker per task. Notebooks, scripts, the instructor's guide and
the nbgrader form are written from these (:mod:`spmdsim.labs.forms`).
"""

from __future__ import annotations

from spmdsim.labs.declaration import Lab, LabTask, WrongAnswer, lab, lab_numbers
from spmdsim.labs.grading import Grader, Score, grade, score
from spmdsim.labs.judging import Mistake

__all__ = [
    "Grader",
    "Lab",
    "LabTask",
    "Mistake",
    "Score",
    "WrongAnswer",
    "grade",
    "lab",
    "lab_numbers",
    "score",
]
