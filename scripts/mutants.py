"""The mutants of a source file: one changed operator, constant, argument order, branch or statement each."""

from __future__ import annotations

import ast
import copy
import hashlib
import sys
from collections import Counter
from collections.abc import Iterator
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
    """A changed source: where, what the lines were and are, and the lines whose execution runs what is changed."""

    file: str
    line: int
    before: str
    after: str
    source: str
    scope: Scope

    @property
    def key(self) -> tuple[str, ...]:
        """What it is, wherever its line moves."""
        return f"{self.file.partition('/')[2]} {self.scope.function}".strip(), self.before, self.after

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.before}  =>  {self.after}"


@dataclass(frozen=True)
class Scope:
    """The outermost function (its first line, 0 for what runs at import, and its name) and a statement's lines."""

    owner: int = 0
    function: str = ""
    first: int = 1
    last: int = sys.maxsize


def equivalent_mutants(path: Path) -> dict[tuple[str, ...], str]:
    """Why no test can tell mutants apart: blocks of file and function, the line, the mutated line, the reason.

    More mutated lines of the same line, for the same reason, follow the first one after "or ".
    """
    blocks = [block.splitlines() for block in path.read_text().split("\n\n") if not block.startswith("#")]
    reasons = {}
    for place, line, first, *rest in [[line.strip() for line in block] for block in blocks]:
        others = [more.removeprefix("or ") for more in rest if more.startswith("or ")]
        reason = " ".join(more for more in rest if not more.startswith("or "))
        reasons |= {(place, line, after): reason for after in (first, *others)}
    return reasons


def sample(mutants: list[Mutant], count: int, seed: int) -> list[Mutant]:
    """The same ones for a seed, as long as their own lines stay what they are."""
    times: Counter[tuple[str, ...]] = Counter()
    drawn = []
    for number, mutant in enumerate(mutants):
        times[mutant.key] += 1
        text = f"{seed} {mutant.key} {times[mutant.key]}"
        drawn.append((hashlib.sha256(text.encode()).digest(), number))
    return [mutants[number] for number in sorted(number for _, number in sorted(drawn)[:count])]


def mutants_of(path: Path, root: Path) -> list[Mutant]:
    """All mutants of a file in the order of its lines."""
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
    """(node, its new text, scope) of the node and what is in it, but for texts and types."""
    if isinstance(node, (ast.Raise, ast.JoinedStr, ast.Assert)) or _unseen(node):
        return
    if isinstance(node, ast.stmt) and scope.owner:
        body = getattr(node, "body", None)
        scope = replace(
            scope, first=node.lineno, last=max(node.lineno, body[0].lineno - 1) if body else node.end_lineno
        )
    for new in _news(node):
        yield node, new, scope
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and node.slice.value == 0:
        yield from _changes(node.value, scope)  # of one element the first is the last
        return
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list"):
            continue
        inside = scope
        if isinstance(node, ast.FunctionDef) and not scope.owner:
            inside = Scope(0, node.name, node.lineno, node.end_lineno)  # what a default is, calls tell
            if field == "body":
                first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
                inside = replace(inside, owner=first)
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _changes(child, inside)


def _unseen(node: ast.AST) -> bool:
    """What nobody computes with: representations, what only type checkers read, declarations of names; and limits.

    Limits are a module's numbers in capitals: from how many on another way to the same is taken, how much is kept, what
    was measured on some machine. They say when, not what; how large caches are is one of them, too.
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
        limit = name.isupper() and not name.startswith("_") and all(map(_of_numbers, ast.walk(node.value)))
        return name in ("__all__", "__slots__") or limit
    return False


def _of_numbers(node: ast.AST) -> bool:
    number = isinstance(node, ast.Constant) and isinstance(node.value, (int, float))
    calculated = ast.BinOp, ast.UnaryOp, ast.Tuple, ast.operator, ast.unaryop, ast.expr_context
    return number or isinstance(node, calculated)


def _news(node: ast.AST) -> Iterator[str]:
    """The texts that replace a node."""
    new = copy.deepcopy(node)
    if isinstance(node, ast.Compare):
        for index, op in enumerate(node.ops):
            new = copy.deepcopy(node)
            new.ops[index] = OPERATORS[type(op)]()
            yield f"({ast.unparse(new)})"
    elif isinstance(node, (ast.BinOp, ast.BoolOp)) and type(node.op) in OPERATORS and not _texts(node):
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


def _texts(node: ast.BinOp | ast.BoolOp) -> bool:
    sides = (node.left, node.right) if isinstance(node, ast.BinOp) else ()
    return any(isinstance(s, ast.JoinedStr) or isinstance(getattr(s, "value", None), str) for s in sides)
