"""Make mutants of a source file: each changes one operator, constant, argument order, branch or statement."""

from __future__ import annotations

import ast
import copy
import hashlib
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

OPERATORS = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
    ast.And: ast.Or,
    ast.Or: ast.And,
}
OPPOSITE = {"min": "max", "max": "min", "any": "all", "all": "any"}
SYMMETRIC = {
    "min",
    "max",
    "gcd",
    "lcm",
    "maximum",
    "minimum",
    "isinstance",
    "zip",
    "array_equal",
    "may_share_memory",
    "overlap",
    "add",
    "multiply",
}


@dataclass(frozen=True)
class Mutant:
    """A changed source file.

    Attributes:
        file: path of the file.
        line: number of the changed line.
        before: the statement before the change.
        after: the statement after it.
        source: the changed source.
        scope: the function and the statement that contain the change.
    """

    file: str
    line: int
    before: str
    after: str
    source: str
    scope: Scope

    @property
    def key(self) -> tuple[str, ...]:
        """File, function and texts, which stay equal if the line moves."""
        return f"{self.file.partition('/')[2]} {self.scope.function}".strip(), self.before, self.after

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.before}  =>  {self.after}"


@dataclass(frozen=True)
class Scope:
    """The place of a mutant.

    Attributes:
        owner: first line of the outermost function; 0 for code that runs at import.
        function: name of this function.
        first: first line of the statement.
        last: last line of the statement.
    """

    owner: int = 0
    function: str = ""
    first: int = 1
    last: int = sys.maxsize


def equivalent_mutants(path: Path) -> dict[tuple[str, ...], str]:
    """Return the reasons why no test can detect some mutants, by (file and function, line, mutated line).

    The file has blocks of file and function, line, mutated line, reason. Further mutated lines with the same reason follow
    after "or ".
    """
    blocks = [block.splitlines() for block in path.read_text().split("\n\n") if not block.startswith("#")]
    reasons = {}
    for location, line, first, *more_lines in [[line.strip() for line in block] for block in blocks]:
        others = [more.removeprefix("or ") for more in more_lines if more.startswith("or ")]
        reason = " ".join(more for more in more_lines if not more.startswith("or "))
        reasons |= {(location, line, after): reason for after in (first, *others)}
    return reasons


def find_stale_entries(equivalent: Iterable[tuple[str, ...]], root: Path) -> list[tuple[str, ...]]:
    """Return the entries of ``equivalent_mutants`` that name no mutant of the package in ``root``."""
    by_file: dict[Path, list[tuple[str, ...]]] = {}
    for key in equivalent:
        by_file.setdefault(root / "spmdsim" / key[0].split()[0], []).append(key)
    stale = []
    for path, keys in by_file.items():
        mutants = {mutant.key for mutant in mutants_of(path, root)} if path.exists() else set()
        stale += [key for key in keys if key not in mutants]
    return stale


def sample(mutants: list[Mutant], count: int, seed: int) -> list[Mutant]:
    """Draw mutants with a seed; a mutant is drawn again as long as its own line does not change."""
    times: Counter[tuple[str, ...]] = Counter()
    drawn = []
    for number, mutant in enumerate(mutants):
        times[mutant.key] += 1
        text = f"{seed} {mutant.key} {times[mutant.key]}"
        drawn.append((hashlib.sha256(text.encode()).digest(), number))
    return [mutants[number] for number in sorted(number for _, number in sorted(drawn)[:count])]


def mutants_of(path: Path, root: Path) -> list[Mutant]:
    """Return all mutants of a file in the order of its lines."""
    source, file = path.read_text(), str(path.relative_to(root))
    lines = source.encode().splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    mutants = []
    for node, new, scope in _changes(ast.parse(source), Scope()):
        begin = starts[node.lineno - 1] + node.col_offset
        end = starts[node.end_lineno - 1] + node.end_col_offset
        text = b"".join(lines)
        changed = (text[:begin] + new.encode() + text[end:]).decode()
        last = starts[node.end_lineno]
        before = " ".join(text[starts[node.lineno - 1] : last].decode().split())
        after = " ".join(
            (text[starts[node.lineno - 1] : begin] + new.encode() + text[end:last]).decode().split()
        )
        mutants.append(Mutant(file, node.lineno, before, after, changed, scope))
    return mutants


def _changes(node: ast.AST, scope: Scope) -> Iterator[tuple[ast.AST, str, Scope]]:
    """Yield (node, new text, scope) for a node and its children, except texts and types."""
    if isinstance(node, (ast.Raise, ast.JoinedStr, ast.Assert)) or _has_no_effect(node):
        return
    if isinstance(node, ast.stmt) and scope.owner:
        body = getattr(node, "body", None)
        scope = replace(
            scope, first=node.lineno, last=max(node.lineno, body[0].lineno - 1) if body else node.end_lineno
        )
    for new in _replacements(node):
        yield node, new, scope
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and node.slice.value == 0:
        yield from _changes(node.value, scope)  # for one element, index 0 equals index -1
        return
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list"):
            continue
        inside = scope
        if isinstance(node, ast.FunctionDef) and not scope.owner:
            inside = Scope(0, node.name, node.lineno, node.end_lineno)  # defaults are tested by calls
            if field == "body":
                first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
                inside = replace(inside, owner=first)
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _changes(child, inside)


def _has_no_effect(node: ast.AST) -> bool:
    """Return True for code without effect on results.

    It is a representation, a type, a name declaration or a limit.
    Limits are numbers of a module in capitals, such as a cache size or a threshold between two equal implementations. They change
    when something happens, not the result.
    """
    if isinstance(node, ast.FunctionDef):
        types_only = any(ast.unparse(decorator) == "overload" for decorator in node.decorator_list)
        return types_only or node.name in ("__repr__", "__str__", "__reduce__")
    if isinstance(node, ast.If):
        return isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    if isinstance(node, ast.Call):
        return ast.unparse(node.func).split(".")[-1] in (
            "warn",
            "TypeVar",
            "cast",
            "lru_cache",
            "Bounded",
            "dataclass",
        )
    if isinstance(node, ast.Assign):
        name = ast.unparse(node.targets[0])
        limit = name.isupper() and not name.startswith("_") and all(map(_is_number, ast.walk(node.value)))
        return name in ("__all__", "__slots__") or limit
    return False


def _is_number(node: ast.AST) -> bool:
    number = isinstance(node, ast.Constant) and isinstance(node.value, (int, float))
    calculated = ast.BinOp, ast.UnaryOp, ast.Tuple, ast.operator, ast.unaryop, ast.expr_context
    return number or isinstance(node, calculated)


def _replacements(node: ast.AST) -> Iterator[str]:
    """Yield the texts that replace a node."""
    new = copy.deepcopy(node)
    if isinstance(node, ast.Compare):
        for index, op in enumerate(node.ops):
            new = copy.deepcopy(node)
            new.ops[index] = OPERATORS[type(op)]()
            yield f"({ast.unparse(new)})"
    elif isinstance(node, (ast.BinOp, ast.BoolOp)) and type(node.op) in OPERATORS and not _has_text(node):
        new.op = OPERATORS[type(node.op)]()
        yield f"({ast.unparse(new)})"
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.Not, ast.USub)):
        yield f"({ast.unparse(node.operand)})"
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield str(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int):
        yield str(node.value + 1)
        yield f"({node.value - 1})"
    elif isinstance(node, ast.IfExp):
        yield f"({ast.unparse(node.body)})"
        yield f"({ast.unparse(node.orelse)})"
    elif isinstance(node, ast.Call):
        name = ast.unparse(node.func).split(".")[-1]
        if isinstance(node.func, ast.Name) and name in OPPOSITE:
            new.func.id = OPPOSITE[name]
            yield ast.unparse(new)
        args = node.args
        plain = len(args) > 1 and not any(isinstance(arg, ast.Starred) for arg in args[:2])
        if plain and name not in SYMMETRIC and ast.dump(args[0]) != ast.dump(args[1]):
            new = copy.deepcopy(node)
            new.args[:2] = new.args[1::-1]
            yield ast.unparse(new)
    elif (
        isinstance(node, ast.Return)
        and node.value
        and ast.unparse(node.value) not in ("None", "NotImplemented", "False")
    ):
        yield "return None"
    elif (
        isinstance(node, (ast.AugAssign, ast.Continue, ast.Break))
        or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call))
        or (isinstance(node, ast.Assign) and isinstance(node.targets[0], (ast.Subscript, ast.Attribute)))
    ):
        yield "pass"


def _has_text(node: ast.BinOp | ast.BoolOp) -> bool:
    sides = (node.left, node.right) if isinstance(node, ast.BinOp) else ()
    return any(isinstance(s, ast.JoinedStr) or isinstance(getattr(s, "value", None), str) for s in sides)
