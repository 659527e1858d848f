"""Labs that grade themselves, each written from one declaration.

A lab is a Markdown text for students (``course/lab1.md``), one for teachers that only the source tree contains
(:mod:`spmdsim.labs.teaching`), and a module in ``checks/`` with one checker per task. :mod:`spmdsim.labs.forms`
builds notebooks, scripts, the instructor's guide and the nbgrader form from them.
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
