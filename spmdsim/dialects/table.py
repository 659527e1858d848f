"""Create the functions, layers and optimisers of another system from a table of rows.

A row names the function that takes the original's parameters: operands have no default, options have one.
Functions, methods and layers all come from it, so a new operator is one line:

>>> import spmdsim.ops as core
>>> table = {"amax": Row(lambda x, dim=None, keepdim=False: core.max(x, dim, keepdim), layer="Max")}
>>> layer = layers(table, Module, lambda function: function)["Max"](dim=1)
>>> layer.dim, layer.keepdim, type(layer).__name__
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
from spmdsim.nn.losses import check_loss_reduction
from spmdsim.registry import Registry
from spmdsim.wrong_calls import explained

#: Converts a function of our tensors to one of another system's tensors.
Lift = Callable[[Callable[..., Any]], Callable[..., Any]]


@dataclass(frozen=True)
class Row:
    """Operator of another system.

    Attributes:
        call: function with the original's parameters.
        layer: name of the module that applies it, or empty. Its constructor takes the options of ``call``.
        options: defaults of the constructor that differ from those of ``call``.
        keeps: for a module with parameters, a function that takes the constructor's arguments and returns the
            module's attributes. Attributes with the name of a parameter of ``call`` are passed to ``call``, after its
            first parameter, which is the input. The docstring of ``keeps`` becomes the module's.
        says: method that returns the options in the module's text; by default all options.

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


def same_rows(module: Any, words: str, operands: str = "") -> dict[str, Row]:
    """Return table rows of functions that differ from the other system's in names only.

    A row is an operator's function, and perhaps its layer. For example,
    ``same_rows(ops, "mul=multiply", "input other")`` returns a row ``mul``: the function ``ops.multiply`` with the
    parameters ``input`` and ``other``.

    Args:
        module: module of this library with the functions.
        words: names, separated by spaces. ``mul=multiply`` renames a function, ``relu:ReLU`` adds a layer.
        operands: the other system's names of the first parameters; further parameters keep their names.

    Returns:
        The rows by the other system's names of the functions.

    Raises:
        AttributeError: If ``module`` lacks a function.
        InputError: If ``words`` has a name twice.
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
    """Return a row per function under the function's own name without underscores."""
    return {function.__name__.strip("_"): Row(function) for function in functions}


def with_parameters(function: Callable[..., Any], names: Mapping[str, str]) -> Callable[..., Any]:
    """Return ``function`` with other parameter names, also in its signature.

    A positional-only parameter of ``function`` may then be passed by name. A call with wrong arguments raises the
    TypeError of ``function``.

    Args:
        function: the function to call.
        names: the new name of a parameter -> its name in ``function``; other parameters keep their names.

    >>> power = with_parameters(lambda base, exponent: base**exponent, {"x": "base"})
    >>> power(x=2, exponent=3), str(inspect.signature(power))
    (8, '(x, exponent)')
    """
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
    """Return the module classes of all rows that name a layer, by the layer's name.

    Args:
        table: the rows by function name, which is not used.
        base: base class of the modules.
        lift: converts a function of spmdsim's own tensors to a function of the other system's tensors.

    Raises:
        InputError: If two rows name one layer.
    """
    classes = Registry[Any]("layer")
    for row in table.values():
        if row.layer:
            classes.add(row.layer, _layer(row, base, lift(row.call)), row.call)
    return dict(classes)


def _layer(row: Row, base: type[Module], function: Callable[..., Any]) -> type[Module]:
    """Create a row's module class: the constructor stores options, ``forward`` applies them.

    * The constructor stores each argument as an attribute. If the row has ``keeps``, this function of the arguments
      returns the attributes.
    * ``forward`` calls ``function`` with its operands, and with the attributes that are options of ``function``.

    For example, the class of "softmax" stores ``axis`` in ``Softmax(axis=1)``, and ``forward(x)`` computes
    ``softmax(x, axis=1)``.

    Args:
        row: the row, which names a layer.
        base: the parent class.
        function: the lifted ``row.call``.

    Raises:
        UsageTypeError: By the constructor or by ``forward``, if arguments do not fit.
        InputError: By the constructor, if an argument ``reduction`` is unknown.
    """
    operands, options = _split_parameters(row)
    constructor_parameters = inspect.signature(row.keeps).parameters.values() if row.keeps else options
    arguments, inputs = inspect.Signature([*constructor_parameters]), inspect.Signature(operands)
    itself = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)

    def __init__(self: Module, *args: Any, **named: Any) -> None:
        base.__init__(self)
        chosen = arguments.bind(*args, **named)
        chosen.apply_defaults()
        check_loss_reduction(chosen.arguments.get("reduction", "none"))
        vars(self).update(row.keeps(*chosen.args, **chosen.kwargs) if row.keeps else chosen.arguments)

    def forward(self: Module, *args: Any, **named: Any) -> Any:
        attributes = vars(self)
        options_of_call = {
            p.name: getattr(self, p.name) for p in options if p.name in attributes or hasattr(kind, p.name)
        }
        return function(*inputs.bind(*args, **named).args, **options_of_call)

    __init__.__signature__ = inspect.Signature([itself, *constructor_parameters])  # type: ignore[attr-defined]
    forward.__signature__ = inspect.Signature([itself, *operands])  # type: ignore[attr-defined]
    about = f"Layer that applies ``{getattr(row.call, '__name__', row.layer.lower())}``."
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


def _split_parameters(row: Row) -> tuple[list[inspect.Parameter], list[inspect.Parameter]]:
    """Return the parameters of a row's function as (operands, options), in order.

    Operands are the parameters without default; if ``row.keeps`` is set, only the first parameter. Options are all
    others, with the defaults of ``row.options``.

    >>> operands, options = _split_parameters(Row(lambda x, dim=None: x, options={"dim": 1}))
    >>> [str(p) for p in operands], [str(p) for p in options]
    (['x'], ['dim=1'])
    """
    # ``axis=`` beside ``dim`` is this package's second name, which the original does not have.
    parameters = [
        p
        for p in inspect.signature(row.call).parameters.values()
        if not (p.name == "axis" and p.kind is p.KEYWORD_ONLY)
    ]
    operands = parameters[:1] if row.keeps else [p for p in parameters if p.default is p.empty]
    options = [p.replace(default=row.options.get(p.name, p.default)) for p in parameters if p not in operands]
    return operands, options


def network_functions(
    table: Mapping[str, Row], network_table: Mapping[str, Row], lift: Callable[..., Any]
) -> dict[str, Any]:
    """Return the functions of a module ``nn.functional``, by name in alphabetical order.

    Args:
        table: rows of all functions; those with a layer, and ``log_softmax``, are functions of networks, too.
        network_table: rows of functions for networks only.
        lift: converts a function of our tensors, and its name, to a function of the other system's tensors.
    """
    rows_by_name = {name: row for name, row in table.items() if row.layer or name == "log_softmax"}
    rows_by_name |= network_table
    return {name: lift(row.call, name) for name, row in sorted(rows_by_name.items())}


def flat(values: Iterable[Any]) -> list[Any]:
    """Return a list in which lists and tuples of ``values`` are replaced by their elements."""
    return [x for y in values for x in (y if isinstance(y, (list, tuple)) else [y])]


def map_nested(x: Any, change: Callable[[Any], Any]) -> Any:
    """Apply ``change`` to ``x``, or to every element of nested lists, tuples and dicts.

    Return new containers: lists and tuples keep their type, named tuples their fields, dicts their keys. Other values,
    such as arrays and sets, count as elements.

    Args:
        x: a value or a container.
        change: takes an element and returns its replacement.

    >>> map_nested([1, {"k": 2}], str), map_nested((1, 2), str), map_nested(1, str)
    (['1', {'k': '2'}], ('1', '2'), '1')
    """
    if not isinstance(x, (list, tuple, dict)):
        return change(x)
    if isinstance(x, dict):
        return {name: map_nested(item, change) for name, item in x.items()}
    parts = [map_nested(item, change) for item in x]
    return type(x)(*parts) if hasattr(x, "_fields") else type(x)(parts)


def find_instances(values: Any, kind: type[Any]) -> list[Any]:
    """Return all values of type ``kind`` in nested lists, tuples and dicts, in order.

    >>> find_instances([1, {"k": ("a", 2)}], int)
    [1, 2]
    """
    instances: list[Any] = []
    map_nested(values, lambda x: instances.append(x) if isinstance(x, kind) else None)
    return instances


#: Operators of arithmetic and of order, and indexing.
ARITHMETIC = (
    "add radd sub rsub mul rmul truediv rtruediv pow rpow floordiv rfloordiv mod rmod matmul rmatmul neg abs gt lt ge le "
    "getitem"
)


def add_tensor_operators(kind: type[Any], tensor: str) -> None:
    """Add operators such as ``+`` to a class whose objects have a tensor, such as parameters.

    An operator acts on the attribute ``tensor`` of its operands: ``p + q`` computes ``p.tensor + q.tensor``. Operators
    are the words of ``ARITHMETIC``; ``==`` still compares identity. ``numpy_array + p`` calls the operator of ``p``,
    because ``__array_ufunc__`` becomes None.

    Args:
        kind: the class, which is changed.
        tensor: name of the attribute that is the tensor.
    """

    def symbol(name: str) -> Any:
        def call(*operands: Any) -> Any:
            first, *others = [getattr(x, tensor) if isinstance(x, kind) else x for x in operands]
            return getattr(first, name)(*others)

        return call

    for name in ARITHMETIC.split():
        setattr(kind, f"__{name}__", symbol(f"__{name}__"))
    kind.__array_ufunc__ = None  # so numpy arrays defer to the parameter


def add_in_place_operators(kind: type[Any]) -> None:
    """Add ``+=``, ``-=`` and the like to a tensor class.

    The tensor object takes the value and the recorded history of ``x + y``, for all variables that refer to it.
    """
    for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"):
        plain = partial(methodcaller, f"__{name}__")
        setattr(kind, f"__i{name}__", lambda self, operand, plain=plain: self.become(plain(operand)(self)))


def adapt_class(
    name: str, ours: type[Any], arguments: Callable[..., dict[str, Any]], *bases: type[Any], **members: Any
) -> Any:
    """Create a subclass with another system's name and constructor arguments.

    Wrong arguments of the constructor raise UsageTypeError with a hint; see `explained`.

    Args:
        name: name of the new class.
        ours: the class of spmdsim that does the work; the new class has its docstring.
        arguments: function with the original constructor's parameters. It returns the keyword arguments for ``ours``.
            The new class has its signature and belongs to its module.
        bases: further base classes, before ``ours``.
        members: further attributes of the class; ``__doc__``, for example, replaces the docstring of ``ours``.

    Returns:
        The class.
    """
    rewritten = explained(arguments, name)

    def __init__(self: Any, *args: Any, **named: Any) -> None:
        super(kind, self).__init__(**rewritten(*args, **named))

    about = {"__doc__": ours.__doc__, "__module__": arguments.__module__}
    words = {"__init__": __init__, "__signature__": inspect.signature(arguments), **about, **members}
    kind: type[Any] = type(name, (*bases, ours), words)
    return kind
