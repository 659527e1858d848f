"""Source lines in words: ``model.py:12``, and for a notebook's cell what Jupyter says."""

from __future__ import annotations

import os
import sys


def cell(file: str) -> str | None:
    """``Cell In[4]`` for the name under which IPython compiled a cell, None for any other file.

    Asks the running shell, so IPython is not imported where nobody else did.
    """
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    words = getattr(getattr(shell, "compile", None), "format_code_name", None)
    words_of = None if words is None else words(file)
    return None if words_of is None else " ".join(words_of)


def in_words(file: str, line: int | None, folder: bool = False) -> str:
    """A place in a source file, with its folder if wanted.

    >>> in_words("/home/me/model.py", 12), in_words("/home/me/model.py", 12, folder=True)
    ('model.py:12', '/home/me/model.py:12')
    """
    name = cell(file)
    if name is not None:
        return f"{name}, line {line}"
    return f"{file if folder else os.path.basename(file)}:{line}"
