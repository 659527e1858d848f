"""Labs that grade themselves: what a student reads, runs and is told comes from one declaration per lab.

A lab is two Markdown texts in ``course/`` (``lab1.md`` for students, ``lab1.teacher.md`` with solutions, typical wrong
answers and slides) and a module in ``checks/`` with one checker per task. Notebooks, scripts, the instructor's guide and
the nbgrader form are written from these (:mod:`spmdsim.labs.forms`).
"""

from spmdsim.labs.declaration import Lab as Lab
from spmdsim.labs.declaration import LabTask as LabTask
from spmdsim.labs.declaration import WrongAnswer as WrongAnswer
from spmdsim.labs.declaration import lab as lab
from spmdsim.labs.declaration import lab_numbers as lab_numbers
from spmdsim.labs.grading import Grader as Grader
from spmdsim.labs.grading import Score as Score
from spmdsim.labs.grading import grade as grade
from spmdsim.labs.grading import score as score
from spmdsim.labs.judging import Mistake as Mistake

__all__ = sorted(name for name, value in vars().items() if callable(value))
