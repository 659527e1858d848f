"""Errors for a name that a module does not have, and for arguments that a function does not take: the nearest right ones.

Python says both in words of its own, without a suggestion. Public modules ask :func:`missing_name`; public functions and
classes are decorated with :func:`explained`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from importlib import import_module
from importlib.util import find_spec
from inspect import Parameter, Signature, signature
from typing import Any, NoReturn, TypeVar

from spmdsim.errors import UsageTypeError, nearest, unknown

#: Modules in which a name that another one lacks may stand.
NAMESPACES = ("spmdsim", "spmdsim.ops", "spmdsim.nn", "spmdsim.local", "spmdsim.linalg", "spmdsim.fft")
#: Collectives by their names in MPI and torch: inside of a function of local arrays they are these. Tensors need none.
COLLECTIVES = {
    **dict.fromkeys(("allreduce", "all_reduce", "reduce"), "psum"),
    **dict.fromkeys(("allgather", "all_gather_into_tensor", "gather"), "all_gather"),
    **dict.fromkeys(("reducescatter", "reduce_scatter"), "psum_scatter"),
    **dict.fromkeys(("alltoall", "all_to_all_single"), "all_to_all"),
    **dict.fromkeys(("send", "recv", "sendrecv", "isend", "irecv"), "ppermute"),
}
#: Names in NumPy and torch -> the names here, which are spelled otherwise.
OTHER_NAMES = {
    **dict.fromkeys(("lr", "learning_rate"), "rate"),
    **{"eps": "epsilon", "in_features": "n_in", "out_features": "n_out"},
    **{"cat": "concat", "mm": "matmul", "reduce_sum": "sum", "reduce_mean": "mean"},
}
#: The least likeness of a name in another module to the name asked for, as `difflib` counts it.
LIKE_IN_ANOTHER_MODULE = 0.85
#: Characters of an argument's meaning that an error quotes.
MOST_QUOTED = 80
#: Characters of a signature that an error shows whole.
MOST_OF_A_CALL = 120
#: Annotations of parameters that take arguments only to refuse them; see :func:`refuse_arguments`.
REFUSED = (NoReturn, "NoReturn")

F = TypeVar("F", bound=Callable[..., Any])


def missing_name(module: str, name: str, names: Iterable[str]) -> AttributeError:
    """Return the error for a name that a public module does not have, with the nearest one here or in another module.

    Args:
        module: its name.
        name: what was asked for.
        names: what it has.

    >>> print(missing_name("spmdsim.nn", "ReLU", ["Linear", "SGD"]))
    module 'spmdsim.nn' has no attribute 'ReLU'; nearest: spmdsim.relu
    >>> print(missing_name("spmdsim", "allreduce", ["matmul"]))
    module 'spmdsim' has no attribute 'allreduce'; nearest: tensor.to(layout), or spmdsim.local.psum in a local function
    """
    # ``from package import module`` asks here first, and imports the module then.
    is_name = not name.startswith("_") and not _is_module(f"{module}.{name}")
    hint = _nearest_name(module, name, list(names)) if is_name else ""
    return AttributeError(
        f"module {module!r} has no attribute {name!r}" + (f"; nearest: {hint}" if hint else "")
    )


def refuse_names(module: str, names: Iterable[str]) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a public module that has these names and no others."""

    def look_up(name: str) -> Any:
        raise missing_name(module, name, names)

    return look_up


def _is_module(name: str) -> bool:
    """Return True if there is a module of this name, loaded or not."""
    try:
        return find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _nearest_name(module: str, name: str, names: Sequence[str]) -> str:
    """Return the nearest name, with its module where that is another one; "" if none is near."""
    collective = COLLECTIVES.get(name.lower())
    if collective is not None:
        return f"tensor.to(layout), or spmdsim.local.{collective} in a local function"
    if OTHER_NAMES.get(name) in names:
        return repr(OTHER_NAMES[name])
    others = {one: getattr(import_module(one), "__all__", ()) for one in NAMESPACES if one != module}
    for cutoff in ("the same letters", "similar"):
        for place, public in {module: names, **others}.items():
            near = nearest(name, public, *([] if place == module else [LIKE_IN_ANOTHER_MODULE]))
            if near is not None and (cutoff == "similar" or near.lower() == name.lower()):
                return repr(near) if place == module else f"{place}.{near}"
    return ""


def explained(target: F, name: str = "") -> F:
    """Have a function or a class refuse wrong arguments in words: the nearest keyword, or what is missing and how it is called.

    Args:
        target: the function or class.
        name: how errors call it, if not by its own name.

    >>> @explained
    ... def cut(array, rows=1):
    ...     return array[:rows]
    >>> cut([1, 2], row=1)
    Traceback (most recent call last):
    spmdsim.errors.UsageTypeError: cut has no argument 'row'; did you mean 'rows'? it takes array, rows
    >>> cut()
    Traceback (most recent call last):
    spmdsim.errors.UsageTypeError: cut: argument 'array' is missing; it is called as cut(array, rows=1)
    """
    if isinstance(target, type):
        target.__init__ = _explained(target.__init__, target, name)  # type: ignore[misc]
        return target
    function: F = _explained(target, target, name)
    return function


def _explained(function: Any, target: Any, name: str) -> Any:
    @wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except TypeError as error:
            if _is_bound(function, args, kwargs):
                raise
            raise wrong_arguments(target, args, kwargs, error, name) from None

    return called


def _is_bound(function: Any, args: Sequence[object], kwargs: Mapping[str, object]) -> bool:
    """Return True if the arguments fit the signature of a function."""
    try:
        signature(function).bind(*args, **kwargs)
    except TypeError:
        return False
    return True


def is_of_the_call(error: TypeError) -> bool:
    """Return True if Python raised an error because the arguments do not fit the function that the caller's frame called."""
    trace = error.__traceback__
    return not isinstance(error, UsageTypeError) and (trace is None or trace.tb_next is None)


def wrong_arguments(
    target: Any, args: Sequence[object], kwargs: Mapping[str, object], error: TypeError, name: str = ""
) -> UsageTypeError:
    """Return the error for a call whose arguments do not fit the signature of ``target``.

    The first problem in this order is reported: an unknown keyword (with the nearest name), an argument given twice, a
    missing argument, too many positional arguments. Otherwise the error has the text of ``error``.

    Args:
        target: the function called, or the class whose ``__init__`` was called.
        args: the positional arguments; for a class or a method the first one is the instance or class.
        kwargs: the keyword arguments.
        error: the TypeError that Python raised for the call.
        name: how the error calls the function, if not by its own name.

    Returns:
        The UsageTypeError, for the caller to raise.
    """
    function: Any = vars(target)["__init__"] if isinstance(target, type) else target
    written = signature(function)
    parameters = [p for p in written.parameters.values() if p.name not in ("self", "cls")]
    shift = len(written.parameters) - len(parameters)
    parameters = [p for p in parameters if p.annotation not in REFUSED]
    name = name or (target.__name__ if isinstance(target, type) else _name_of_call(function, args[:shift]))
    takes_any = any(p.kind is Parameter.VAR_KEYWORD for p in parameters)
    by_place = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    words = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    strange = [word for word in kwargs if word not in words and not takes_any]
    if strange:
        meant = OTHER_NAMES.get(strange[0], strange[0])
        return unknown(f"{name} has no argument {strange[0]!r}", meant, words, UsageTypeError, "it takes")
    count = len(args) - shift
    call = f"it is called as {name}{_short(written.replace(parameters=parameters))}"
    twice = [p.name for p in by_place[:count] if p.name in kwargs]
    if twice:
        return UsageTypeError(f"{name}: argument {twice[0]!r} is given by its place and by its name; {call}")
    needed = [*by_place[count:], *[p for p in parameters if p.kind is p.KEYWORD_ONLY]]
    missing = [p.name for p in needed if p.default is p.empty and p.name not in kwargs]
    if missing:
        meaning = _meaning(target, missing[0])
        return UsageTypeError(f"{name}: argument {missing[0]!r} is missing{meaning}; {call}")
    if count > len(by_place) and not any(p.kind is p.VAR_POSITIONAL for p in parameters):
        most = f"{len(by_place)} argument{'s' * (len(by_place) != 1)}"
        return UsageTypeError(f"{name} takes at most {most} by their place, got {count}; {call}")
    return UsageTypeError(str(error))


def refuse_arguments(function: Any, args: Sequence[object], kwargs: Mapping[str, object]) -> NoReturn:
    """Raise the error for arguments that a function takes only to refuse them.

    Small functions that run often declare ``*more: NoReturn`` and ``**wrong: NoReturn``, and ask here if any came: the
    wrapper of :func:`explained` would cost them a few per cent of their time.

    >>> def move(layout=None, *more: NoReturn, **wrong: NoReturn):
    ...     if more or wrong:
    ...         refuse_arguments(move, (layout, *more), wrong)
    >>> move(layuot=3)
    Traceback (most recent call last):
    spmdsim.errors.UsageTypeError: move has no argument 'layuot'; did you mean 'layout'? it takes layout
    """
    raise wrong_arguments(
        function, args, kwargs, TypeError(f"{function.__name__} does not take these arguments")
    )


def _name_of_call(function: Any, owners: Sequence[object]) -> str:
    """Return the name by which a function is called: "Tensor.to" for a method, "mesh" for a call of a Mesh.

    Args:
        function: the function.
        owners: the instance or the class that a method is called on; empty for other functions.
    """
    name: str = function.__qualname__.rpartition("<locals>.")[2]
    if not owners:
        return name
    owner = owners[0] if isinstance(owners[0], type) else type(owners[0])
    if function.__name__ == "__call__":
        return owner.__name__.lower()
    return f"{owner.__name__}.{function.__name__}"


def _short(written: Signature) -> str:
    """Return a signature as text, without types; of a long one only what must be given."""
    bare = [p.replace(annotation=p.empty) for p in written.parameters.values()]
    text = str(written.replace(parameters=bare, return_annotation=Signature.empty))
    text = re.sub(r"<class '(?:\w+\.)*(\w+)'>|<operator (\w+)>", r"\1\2", text)
    if len(text) <= MOST_OF_A_CALL:
        return text
    return f"({', '.join([*(p.name for p in bare if p.default is p.empty), '...'])})"


def _meaning(target: Any, name: str) -> str:
    """Return the first words of what a docstring says about an argument, in brackets; "" if it says nothing."""
    match = re.search(rf"^ +{name}: ([^.;:]+)", target.__doc__ or "", re.MULTILINE)
    words = " ".join(match[1].split()).replace("`", "") if match else ""
    is_whole = all(words.count(opening) == words.count(closing) for opening, closing in ("()", "[]"))
    return f" ({words})" if 0 < len(words) <= MOST_QUOTED and is_whole else ""
