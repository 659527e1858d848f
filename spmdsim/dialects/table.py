"""How a dialect is a table: from rows of functions, modules and optimisers of ours, those of another system are made.

A row names the function that takes the original's parameters: operands have no default, options have one.
Functions, methods and layers all come from it, so a new operator is one line:

>>> import spmdsim.ops as core
>>> table = {"amax": Row(lambda x, dim=None, keepdim=False: core.max(x, dim, keepdim), layer="Max")}
>>> made = layers(table, Module, lambda function: function)["Max"](dim=1)
>>> made.dim, made.keepdim, type(made).__name__
(1, False, 'Max')
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial, wraps
from operator import methodcaller
from typing import Any

from spmdsim.nn import Module
from spmdsim.nn.losses import check_reduction
from spmdsim.registry import Registry
from spmdsim.wrong_calls import explained

#: Makes of our function one that takes another system's tensors.
Lift = Callable[[Callable[..., Any]], Callable[..., Any]]


@dataclass(frozen=True)
class Row:
    """An operator of another system.

    Attributes:
        call: the function, with the original's parameters.
        layer: the module that applies it, if there is one; the options are its constructor's arguments.
        options: the module's own defaults of options.
        keeps: of a module with parameters, from its constructor's arguments what it keeps, by name; what the function calls so
            is given it, and its first parameter what the module is called with. The docstring is the module's.
        says: what the module prints in its brackets; its options if left out.

    >>> def scaled(size: int) -> dict[str, Any]:
    ...     "``x`` times a weight."
    ...     return {"weight": [2.0] * size}
    >>> row = Row(lambda x, weight: [a * b for a, b in zip(x, weight)], "Scaled", keeps=scaled)
    >>> layers({"scaled": row}, Module, lambda function: function)["Scaled"](2)([1.0, 3.0])
    [2.0, 6.0]
    """

    call: Callable[..., Any]
    layer: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    keeps: Callable[..., Mapping[str, Any]] | None = None
    says: Callable[[Any], str] | None = None


def same(module: Any, words: str, operands: str = "") -> dict[str, Row]:
    """Rows of operators that have our parameters: ``"exp"``, ``"mul=multiply"``, with a layer ``"relu:ReLU"``.

    The first parameters go by these names there, such as ``"input other"``, which may be said.
    """
    rows = Registry[Row]("operator")
    for word in words.split():
        names, _, layer = word.partition(":")
        theirs, _, ours = names.partition("=")
        function = getattr(module, ours or theirs)
        called = dict(zip(operands.split(), inspect.signature(function).parameters))
        rows[theirs] = Row(with_parameters(function, called), layer)
    return dict(rows)


def rows(*functions: Callable[..., Any]) -> dict[str, Row]:
    """Rows of functions by their own names, without the underscore before them."""
    return {function.__name__.strip("_"): Row(function) for function in functions}


def with_parameters(function: Callable[..., Any], names: Mapping[str, str]) -> Callable[..., Any]:
    """The function with other names of its parameters: another system's name -> ours."""
    written = inspect.signature(function)
    back = {ours: theirs for theirs, ours in names.items()}
    order = [p.name for p in written.parameters.values() if p.kind is p.POSITIONAL_ONLY]

    @wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        if not named:
            return function(*args)
        ours = {names.get(name, name): value for name, value in named.items()}
        return function(*args, *(ours.pop(name) for name in order[len(args) :] if name in ours), **ours)

    parameters = [p.replace(name=back.get(p.name, p.name)) for p in written.parameters.values()]
    call.__signature__ = written.replace(parameters=[  # type: ignore[attr-defined]
        p.replace(kind=p.POSITIONAL_OR_KEYWORD) if p.kind is p.POSITIONAL_ONLY else p for p in parameters
    ])  # fmt: skip
    return call


def layers(table: Mapping[str, Row], base: Any, lift: Lift) -> dict[str, Any]:
    """The modules of the rows that have one."""
    classes = Registry[Any]("layer")
    for row in table.values():
        if row.layer:
            classes.add(row.layer, _layer(row, base, lift(row.call)), row.call)
    return dict(classes)


def _layer(row: Row, base: type[Module], function: Callable[..., Any]) -> type[Module]:
    # numpy's ``axis=`` beside ``dim`` is a second name of ours, not the original's.
    written = inspect.signature(row.call).parameters.values()
    parameters = [p for p in written if not (p.name == "axis" and p.kind is p.KEYWORD_ONLY)]
    operands = parameters[:1] if row.keeps else [p for p in parameters if p.default is p.empty]
    options = [p.replace(default=row.options.get(p.name, p.default)) for p in parameters if p not in operands]
    kept = inspect.signature(row.keeps).parameters.values() if row.keeps else options
    arguments, inputs = inspect.Signature([*kept]), inspect.Signature(operands)
    itself = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)

    def __init__(self: Module, *args: Any, **named: Any) -> None:
        base.__init__(self)
        chosen = arguments.bind(*args, **named)
        chosen.apply_defaults()
        check_reduction(chosen.arguments.get("reduction", "none"))
        vars(self).update(row.keeps(*chosen.args, **chosen.kwargs) if row.keeps else chosen.arguments)

    def forward(self: Module, *args: Any, **named: Any) -> Any:
        there = vars(self)
        own = {p.name: getattr(self, p.name) for p in options if p.name in there or hasattr(kind, p.name)}
        return function(*inputs.bind(*args, **named).args, **own)

    __init__.__signature__ = inspect.Signature([itself, *kept])  # type: ignore[attr-defined]
    forward.__signature__ = inspect.Signature([itself, *operands])  # type: ignore[attr-defined]
    about = f"Applies ``{getattr(row.call, '__name__', row.layer.lower())}``."
    members = {
        "__init__": __init__,
        "forward": explained(forward, row.layer),
        "__signature__": arguments,
        "__doc__": about,
    }
    if row.keeps:
        members |= {"__doc__": row.keeps.__doc__, "__module__": row.keeps.__module__}
    kind: type[Module] = type(row.layer, (base,), members | ({"extra_repr": row.says} if row.says else {}))
    return kind


def flat(values: Iterable[Any]) -> list[Any]:
    """What was given, and what lists and tuples among it hold."""
    return [x for y in values for x in (y if isinstance(y, (list, tuple)) else [y])]


def by_part(x: Any, change: Callable[[Any], Any]) -> Any:
    """Something changed, or every part of a list, a dict, or a tuple, which keeps its fields.

    >>> by_part([1, {"k": 2}], str), by_part((1, 2), str), by_part(1, str)
    (['1', {'k': '2'}], ('1', '2'), '1')
    """
    if not isinstance(x, (list, tuple, dict)):
        return change(x)
    if isinstance(x, dict):
        return {name: by_part(part, change) for name, part in x.items()}
    parts = [by_part(part, change) for part in x]
    return type(x)(*parts) if hasattr(x, "_fields") else type(x)(parts)


#: Symbols of arithmetic and of order, and what stands in brackets.
ARITHMETIC = (
    "add radd sub rsub mul rmul truediv rtruediv pow rpow floordiv rfloordiv mod rmod matmul rmatmul neg abs gt lt ge le "
    "getitem"
)


def as_its_tensor(kind: type[Any], tensor: str) -> None:
    """Symbols beside a parameter ask its tensor, an attribute of that name; parameters are equal if they are the same."""

    def symbol(name: str) -> Any:
        def call(*operands: Any) -> Any:
            first, *others = [getattr(x, tensor) if isinstance(x, kind) else x for x in operands]
            return getattr(first, name)(*others)

        return call

    for name in ARITHMETIC.split():
        setattr(kind, f"__{name}__", symbol(f"__{name}__"))
    kind.__array_ufunc__ = None  # arrays of numpy's leave it to the parameter


def in_place(kind: type[Any]) -> None:
    """``x += y`` and the like: the tensor becomes what ``x + y`` gives, for all who have it."""
    for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"):
        plain = partial(methodcaller, f"__{name}__")
        setattr(kind, f"__i{name}__", lambda self, other, plain=plain: self.become(plain(other)(self)))


def renamed(
    name: str, ours: type[Any], arguments: Callable[..., dict[str, Any]], *bases: type[Any], **members: Any
) -> Any:
    """A class of ours, after other bases, with another system's name, its arguments turned into ours, and its further words."""
    rewritten = explained(arguments, name)

    def __init__(self: Any, *args: Any, **named: Any) -> None:
        super(kind, self).__init__(**rewritten(*args, **named))

    about = {"__doc__": ours.__doc__, "__module__": arguments.__module__}
    words = {"__init__": __init__, "__signature__": inspect.signature(arguments), **about, **members}
    kind: type[Any] = type(name, (*bases, ours), words)
    return kind
