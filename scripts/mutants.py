"""The mutants of a source file: one changed operator, constant, argument order, branch or statement each."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# (what the file ends with, the line, the mutated line): why no test can tell them apart.
EQUIVALENT: dict[tuple[str, str, str], str] = {
    (
        "layout/element_type.py",
        "return dtype.itemsize <= 2 and is_float(dtype)",
        "return dtype.itemsize <= 3 and is_float(dtype)",
    ): "no element type has 3 bytes",
    (
        "layout/element_type.py",
        "if not layout.partial or dtype.itemsize > 2:",
        "if not layout.partial or dtype.itemsize > 3:",
    ): "no element type has 3 bytes",
    ("tensor/checkpoint.py", "os.fsync(stream.fileno())", "pass"): "seen only where the power fails",
}

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
SYMMETRIC = {"min", "max", "gcd", "lcm", "maximum", "minimum", "isinstance", "zip", "array_equal", "add"}


@dataclass(frozen=True)
class Mutant:
    """A changed source: where, what the lines were and are, and the outermost function (0: runs at import)."""

    file: str
    line: int
    before: str
    after: str
    source: str
    owner: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.before}  =>  {self.after}"


def mutants_of(path: Path, root: Path) -> list[Mutant]:
    """All mutants of a file in the order of its lines, without those known to change nothing."""
    source, file = path.read_text(), str(path.relative_to(root))
    lines = source.encode().splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    mutants = []
    for node, new, owner, function in _changes(ast.parse(source), 0, ""):
        begin = starts[node.lineno - 1] + node.col_offset
        end = starts[node.end_lineno - 1] + node.end_col_offset
        text = b"".join(lines)
        changed = (text[:begin] + new.encode() + text[end:]).decode()
        last = starts[node.end_lineno]
        before = " ".join(text[starts[node.lineno - 1] : last].decode().split())
        after = " ".join(
            (text[starts[node.lineno - 1] : begin] + new.encode() + text[end:last]).decode().split()
        )
        mutant = Mutant(file, node.lineno, before, after, changed, owner, function)
        if not any(file.endswith(f) and (b, a) == (before, after) for f, b, a in EQUIVALENT):
            mutants.append(mutant)
    return mutants


def _changes(node: ast.AST, owner: int, function: str) -> Iterator[tuple[ast.AST, str, int, str]]:
    """(node, its new text, owner, function) of the node and what is in it, but for texts and types."""
    if isinstance(node, (ast.Raise, ast.JoinedStr, ast.Assert)) or _unseen(node):
        return
    for new in _news(node):
        yield node, new, owner, function
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and node.slice.value == 0:
        yield from _changes(node.value, owner, function)  # of one element the first is the last
        return
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list"):
            continue
        inside = owner, function
        if isinstance(node, ast.FunctionDef) and field == "body" and not owner:
            inside = min([node.lineno, *(d.lineno for d in node.decorator_list)]), node.name
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _changes(child, *inside)


def _unseen(node: ast.AST) -> bool:
    """What nobody computes with: representations, what only type checkers read, declarations of names."""
    if isinstance(node, ast.FunctionDef):
        return node.name in ("__repr__", "__str__", "__reduce__")
    if isinstance(node, ast.If):
        return isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    if isinstance(node, ast.Call):
        return ast.unparse(node.func).split(".")[-1] in ("warn", "TypeVar", "cast", "lru_cache", "dataclass")
    return isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in ("__all__", "__slots__")


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
        and ast.unparse(node.value) not in ("None", "NotImplemented")
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
