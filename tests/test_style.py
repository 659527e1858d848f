"""Docstrings and names follow the rules that a program can check, in every package.

Names that are public or belong to another system are listed in `ALLOWED`, each with its reason.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
#: All packages and modules of `spmdsim`. A folder without Python files is no package.
PACKAGES = sorted(
    path.name for path in (ROOT / "spmdsim").iterdir() if path.suffix == ".py" or any(path.glob("*.py"))
)
#: Names that the rules forbid but that other systems or users rely on: the start of the files' path -> the names.
ALLOWED = {
    # `Watcher.moved` is an interface: programs define watchers with this method.
    "arrays/replicas.py": {"moved"},
    "arrays/watch.py": {"moved"},
    "auto_parallel/programs/record_program.py": {"moved"},
    "labs/tensor_programs.py": {"moved"},
    # `Rule.whole` and the argument of `Rule.parse` are public.
    "core/rule.py": {"whole"},
    # Paddle's functions have an argument `place`, and its tensors an attribute.
    "dialects/paddle/": {"place"},
    # The place of a rank is its index on the shared board; `worlds/agreement/shared_board.py` defines the term.
    "worlds/agreement/": {"place"},
    # `Event.way` is public. It names the calls that replaced a collective.
    "worlds/trace/events.py": {"way"},
    # `Trace.sent` is public.
    "worlds/trace/recorder.py": {"sent"},
}
#: The longest first line of a function's docstring. First lines of modules and classes may fill a line of code.
LONGEST_FIRST_LINE = 100
LONGEST_LINE = 120
#: Docstrings of public functions with this number of lines or more document arguments, None as a result, and errors.
SHORTEST_WITH_QUESTIONS = 5
#: A private function with more lines than this needs a docstring that documents all of these.
LONGEST_WITHOUT = 8
QUESTION_WORDS = """
what who where why how which whose whether after of that those such when whom as if in on for from to with like
all every each one no same it its they these this there
"""
VAGUE_NAMES = """
said told some many there here mine whole kept part rest place own held begun seen alike way ways goes comes apart together
"""
PARTICIPLES = """
noted settled until short whole said told held kept begun seen alike apart together joined moved sent received
taken brought left shown drawn named called passed used meant wanted needed spread own plain bare still done gone
asked answered counted priced checked tried fitted chosen picked listed ordered grouped paired tied owned
"""
#: Words that must not open a first line, because it names the action of a function or the content of a value.
NO_OPENING = set(QUESTION_WORDS.split())
ARTICLES = {"a", "an", "the", "some", "any"}
#: Names of variables and parameters that do not name their content.
EMPTY_NAMES = set(VAGUE_NAMES.split())
#: Participles and adjectives that must not be the name of a function.
BARE_NAMES = set(PARTICIPLES.split())
PROPERTIES = ("property", "cached_property", "functools.cached_property")
Function = ast.FunctionDef | ast.AsyncFunctionDef
#: Nodes with a body of their own.
NESTED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


def violations(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each violation in a file with this syntax ``tree``."""
    if tree.body:
        yield from check_opening(tree, 1, articles=True)
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            yield from check_opening(node, node.lineno, articles=True)
            if not node.name.startswith("_") and ast.get_docstring(node) is None:
                yield node.lineno, f"class {node.name} has no docstring"
        elif isinstance(node, Function):
            yield from check_function(node)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in EMPTY_NAMES:
            yield node.lineno, f"variable {node.id}"
        elif isinstance(node, ast.arg) and node.arg in EMPTY_NAMES:
            yield node.lineno, f"parameter {node.arg}"
    yield from find_missing_docstrings(tree, public=True)
    yield from find_incomplete_docstrings(tree)


def check_opening(
    node: ast.Module | ast.ClassDef | Function, line: int, articles: bool
) -> Iterator[tuple[int, str]]:
    """Yield the violations in the first line of the docstring of ``node``, which begins at ``line``.

    With ``articles``, an article may open the line. This holds for modules, classes and properties.
    """
    docstring = ast.get_docstring(node)
    if not docstring:
        return
    first = docstring.splitlines()[0]
    word = first.split(" ")[0].strip("`,.:").lower()
    if word in NO_OPENING or (word in ARTICLES and not articles):
        yield line, f"a docstring opens with {word!r}: {first}"
    if len(first) > (LONGEST_FIRST_LINE if isinstance(node, Function) else LONGEST_LINE):
        yield line, f"the first line of a docstring has {len(first)} characters: {first}"
    if not first.endswith((".", ":", "?")) and isinstance(node, Function):
        yield line, f"the first line of a docstring is no sentence: {first}"


def check_function(node: Function) -> Iterator[tuple[int, str]]:
    """Yield the violations in the name of a function and in the first line of its docstring."""
    is_property = any(ast.unparse(one).endswith(PROPERTIES) for one in node.decorator_list)
    yield from check_opening(node, node.lineno, articles=is_property)
    if node.name.strip("_") in BARE_NAMES:
        yield node.lineno, f"function {node.name}"


def find_missing_docstrings(parent: ast.AST, public: bool) -> Iterator[tuple[int, str]]:
    """Yield the functions below ``parent`` that need a docstring and have none.

    These are public ones, long ones, and ones that return a tuple. ``public`` is True if ``parent`` is public.
    """
    for node in ast.iter_child_nodes(parent):
        if isinstance(node, ast.ClassDef):
            yield from find_missing_docstrings(node, public and not node.name.startswith("_"))
        elif isinstance(node, Function):
            if ast.get_docstring(node) is None and not is_described_elsewhere(node):
                lines = node.body[-1].end_lineno - node.body[0].lineno + 1
                is_public = public and not node.name.startswith("_") and not isinstance(parent, Function)
                one_line_method = isinstance(parent, ast.ClassDef) and lines == 1
                if is_public and not one_line_method:
                    yield node.lineno, f"public function {node.name} has no docstring"
                elif lines > LONGEST_WITHOUT:
                    yield node.lineno, f"function {node.name} has {lines} lines and no docstring"
                elif node.returns and ast.unparse(node.returns).startswith("tuple[") and not is_public:
                    yield node.lineno, f"function {node.name} returns a tuple and has no docstring"
            yield from find_missing_docstrings(node, False)
        else:
            yield from find_missing_docstrings(node, public)


def find_incomplete_docstrings(parent: ast.Module | ast.ClassDef) -> Iterator[tuple[int, str]]:
    """Yield the functions below ``parent`` whose docstring omits an argument, a result None or an error."""
    for node in ast.iter_child_nodes(parent):
        if isinstance(node, ast.ClassDef):
            yield from find_incomplete_docstrings(node)
        elif isinstance(node, Function) and not is_described_elsewhere(node):
            docstring = ast.get_docstring(node)
            nodes = list(walk_body(node))
            shortest = LONGEST_WITHOUT + 1 if node.name.startswith("_") else SHORTEST_WITH_QUESTIONS
            if (
                docstring is None
                or len(node.body) < 2
                or node.body[-1].end_lineno - node.body[1].lineno + 1 < shortest
            ):
                continue
            words = set(re.findall(r"\w+", docstring.lower()))
            arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            for name in {argument.arg for argument in arguments} - {"self", "cls"}:
                if not words & {name.lower(), *name.lower().strip("_").split("_")}:
                    yield node.lineno, f"the docstring of {node.name} does not mention {name}"
            result = ast.unparse(node.returns) if node.returns else "None"
            if (
                re.match(r"None$|Iterator|Generator", result) is None
                and "None" in result
                and "none" not in words
            ):
                yield node.lineno, f"the docstring of {node.name} does not say when it returns None"
            if any(
                isinstance(child, ast.Raise) and isinstance(child.exc, ast.Call) for child in nodes
            ) and not any(word.startswith("rais") for word in words):
                yield node.lineno, f"the docstring of {node.name} does not say that it raises"


def walk_body(function: Function) -> Iterator[ast.AST]:
    """Yield the nodes of a function's body without the nodes of functions and classes inside of it."""
    nodes: list[ast.AST] = [*function.body]
    while nodes:
        node = nodes.pop()
        yield node
        if not isinstance(node, NESTED):
            nodes += ast.iter_child_nodes(node)


def is_described_elsewhere(node: Function) -> bool:
    """Return True for Python's own methods and for overloads."""
    return node.name.startswith("__") or any(
        ast.unparse(one).endswith("overload") for one in node.decorator_list
    )


def is_allowed(file: Path, text: str) -> bool:
    """Return True for a violation that consists of a name that `ALLOWED` lists for the file."""
    path = file.relative_to(ROOT / "spmdsim").as_posix()
    name = text.removeprefix("function ").removeprefix("variable ").removeprefix("parameter ")
    return any(path.startswith(start) and name in names for start, names in ALLOWED.items())


@pytest.mark.parametrize("name", PACKAGES)
def test_docstrings_and_names_follow_the_rules(name: str) -> None:
    path = ROOT / "spmdsim" / name
    files = sorted(path.rglob("*.py")) if path.is_dir() else [path]
    wrong = [
        f"{file.relative_to(ROOT)}:{line}: {text}"
        for file in files
        for line, text in violations(ast.parse(file.read_text(encoding="utf-8")))
        if not is_allowed(file, text)
    ]
    assert not wrong, "\n".join(wrong)


#: Rules that also hold for tests: how a violation of each begins.
RULES_OF_TESTS = ("variable ", "parameter ", "the first line of a docstring has ", "a docstring opens with ")
#: Words that open a docstring of a test: a sentence about what holds may begin with them.
OPENINGS_OF_TESTS = {
    *[
        "a",
        "all",
        "an",
        "as",
        "each",
        "every",
        "for",
        "from",
        "if",
        "in",
        "no",
        "on",
        "one",
        "same",
        "the",
        "there",
        "this",
        "these",
        "to",
        "when",
        "with",
    ]
}
#: Names in tests that the rules forbid: the folder -> the names and the reason.
ALLOWED_IN_TESTS = {
    # A way to start a job is a term of the tests of faults; `here` and `there` are the two lines of a mismatch.
    "tests/faults/": {"way", "ways", "here", "there"},
}


def is_rule_of_tests(file: Path, text: str) -> bool:
    """Return True if a violation also counts in a test file."""
    if not text.startswith(RULES_OF_TESTS):
        return False
    if text.startswith("a docstring opens"):
        return text.split("'")[1] not in OPENINGS_OF_TESTS
    name = str(file.relative_to(ROOT))
    return not any(
        name.startswith(folder) and text.split()[1] in names for folder, names in ALLOWED_IN_TESTS.items()
    )


def test_tests_follow_the_rules_of_names_and_first_lines() -> None:
    wrong = [
        f"{file.relative_to(ROOT)}:{line}: {text}"
        for file in sorted((ROOT / "tests").rglob("*.py"))
        for line, text in violations(ast.parse(file.read_text(encoding="utf-8")))
        if is_rule_of_tests(file, text)
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "source",
    [
        '"""What there is."""',
        'def count_rows():\n    """Return the rows"""\n    return 1',
        'def noted():\n    """Return 1."""\n    return 1',
        "def count_rows():\n    return 1",
        'def count_rows():\n    """The rows."""\n    return 1',
        'def count_rows():\n    """Return the rows."""\n    said = 1\n    return said',
        'def _count_rows(kept):\n    """Return the rows."""\n    return kept',
        "def _bounds() -> tuple[int, int]:\n    return 0, 1",
        "def _long():\n" + "    print()\n" * 9,
        "class Rows:\n    pass",
        'class Rows:\n    """Whether rows are there."""',
        'def count_rows(table):\n    """Return the number of rows."""\n' + "    table += 1\n" * 5,
        'def find_row() -> int | None:\n    """Return the row."""\n' + "    print()\n" * 5,
        'def check_rows():\n    """Check the rows."""\n'
        + "    print()\n" * 5
        + "    raise ValueError('rows')",
    ],
)
def test_each_rule_is_checked(source: str) -> None:
    assert list(violations(ast.parse(source)))


def test_a_plain_file_has_no_violation() -> None:
    source = '''
"""Count rows."""


class Rows:
    """The rows of a table."""

    @property
    def count(self):
        """The number of rows."""
        return 1


def count_rows(table):
    """Return the number of rows of a table."""
    return len(table)
'''
    assert not list(violations(ast.parse(source)))
