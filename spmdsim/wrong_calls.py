"""Errors with the nearest right name for unknown names of modules and wrong arguments of functions.

Public modules call :func:`missing_name`; public functions and classes are decorated with :func:`explained`.
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

#: Modules in which the nearest name is searched if a public module lacks a name.
NAMESPACES = ("spmdsim", "spmdsim.ops", "spmdsim.nn", "spmdsim.local", "spmdsim.linalg", "spmdsim.fft")
#: Names of collectives in MPI and torch -> functions of `spmdsim.local`. Tensors need no collectives.
COLLECTIVES = {
    **dict.fromkeys(("allreduce", "all_reduce", "reduce"), "psum"),
    **dict.fromkeys(("allgather", "all_gather_into_tensor", "gather"), "all_gather"),
    **dict.fromkeys(("reducescatter", "reduce_scatter"), "psum_scatter"),
    **dict.fromkeys(("alltoall", "all_to_all_single"), "all_to_all"),
    **dict.fromkeys(("send", "recv", "sendrecv", "isend", "irecv"), "ppermute"),
}
#: Names in NumPy and torch -> names of this package.
OTHER_NAMES = {
    **dict.fromkeys(("lr", "learning_rate"), "rate"),
    **{"eps": "epsilon", "in_features": "n_in", "out_features": "n_out"},
    **{"dimension": "dim", "dimensions": "dims", "reduce_op": "op"},
    **{"cat": "concat", "mm": "matmul", "reduce_sum": "sum", "reduce_mean": "mean"},
}
#: The least similarity (`difflib` ratio) for which an error names a name of another module.
LIKE_IN_ANOTHER_MODULE = 0.85
#: The longest meaning of an argument that an error quotes, in characters.
MOST_QUOTED = 80
#: The longest signature that an error shows completely, in characters.
MOST_OF_A_CALL = 120
#: Annotations of parameters that catch arguments only to refuse them; see :func:`refuse_arguments`.
REFUSED = (NoReturn, "NoReturn")

F = TypeVar("F", bound=Callable[..., Any])


def missing_name(module: str, name: str, names: Iterable[str]) -> AttributeError:
    """Return the error for an unknown name of a public module, with the nearest known name.

    The nearest name is searched in the module first, then in :data:`NAMESPACES`, which are imported. Names that differ
    only in upper and lower case come before similar ones. A name that begins with "_", or is a module, gets no nearest
    name.

    Args:
        module: the name of the module.
        name: the unknown name.
        names: the public names of the module.

    >>> print(missing_name("spmdsim.nn", "ReLU", ["Linear", "SGD"]))
    module 'spmdsim.nn' has no attribute 'ReLU'; nearest: spmdsim.relu
    >>> print(missing_name("spmdsim", "allreduce", ["matmul"]))
    module 'spmdsim' has no attribute 'allreduce'; nearest: tensor.to(layout), or spmdsim.local.psum in a local function
    """
    # Python looks a submodule up as a name before it imports the submodule, so no hint is computed for submodules.
    is_name = not name.startswith("_") and not _is_module(f"{module}.{name}")
    hint = _nearest_name(module, name, list(names)) if is_name else ""
    return AttributeError(
        f"module {module!r} has no attribute {name!r}" + (f"; nearest: {hint}" if hint else "")
    )


def refuse_names(module: str, names: Iterable[str]) -> Callable[[str], Any]:
    """Return a ``__getattr__`` for a module that refuses every name with AttributeError.

    The error suggests the nearest name, see `missing_name`.

    Args:
        module: the name of the module.
        names: the public names of the module. They are read again for each wrong name: pass a collection, no iterator.
    """

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
    """Return the nearest name for an error, with its module if that is another one, or "".

    A collective of MPI or torch gives advice in words; a name of :data:`OTHER_NAMES` its counterpart.

    Args:
        module: the module that lacks the name.
        name: the unknown name.
        names: the public names of the module.
    """
    collective = COLLECTIVES.get(name.lower())
    if collective is not None:
        return f"tensor.to(layout), or spmdsim.local.{collective} in a local function"
    if OTHER_NAMES.get(name) in names:
        return repr(OTHER_NAMES[name])
    other_modules = {
        space: getattr(import_module(space), "__all__", ()) for space in NAMESPACES if space != module
    }
    for allows_similar in (False, True):  # First accept names that differ only in upper and lower case.
        for space, public in {module: names, **other_modules}.items():
            near = nearest(name, public, *([] if space == module else [LIKE_IN_ANOTHER_MODULE]))
            if near is not None and (allows_similar or near.lower() == name.lower()):
                return repr(near) if space == module else f"{space}.{near}"
    return ""


def explained(target: F, name: str = "") -> F:
    """Make a function or class raise UsageTypeError with a hint for wrong arguments.

    The hint is the nearest keyword, or the missing argument and the signature. A class is changed in place and
    returned; for a function the wrapper is returned. Errors inside of the function pass unchanged.

    Args:
        target: the function or class.
        name: its name in errors; "" for its own name.

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
        target.__init__ = _wrap_call(target.__init__, target, name)  # type: ignore[misc]
        return target
    function: F = _wrap_call(target, target, name)
    return function


def _wrap_call(function: Any, target: Any, name: str) -> Any:
    """Return a function that calls ``function`` and explains errors of wrong arguments.

    The explanation is :func:`wrong_arguments`. A TypeError of a call whose arguments fit the signature passes
    unchanged. The wrapper has the function's name and docstring.

    Args:
        function: the function to call.
        target: the function, or the class whose ``__init__`` it is.
        name: its name in errors; "": its own name.
    """

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except TypeError as error:
            if _is_bound(function, args, kwargs):
                raise
            raise wrong_arguments(target, args, kwargs, error, name) from None

    return call


def _is_bound(function: Any, args: Sequence[object], kwargs: Mapping[str, object]) -> bool:
    """Return True if the arguments fit the signature of a function; types are not compared.

    Args:
        function: the function; of a method it is the plain function, whose first argument is the instance.
        args: the positional arguments.
        kwargs: the keyword arguments.
    """
    try:
        signature(function).bind(*args, **kwargs)
    except TypeError:
        return False
    return True


def is_of_the_call(error: TypeError) -> bool:
    """Return True if Python raised an error because the arguments of a call do not fit its signature.

    The frame that called the function must have caught the error.
    """
    trace = error.__traceback__
    return not isinstance(error, UsageTypeError) and (trace is None or trace.tb_next is None)


def wrong_arguments(
    target: Any, args: Sequence[object], kwargs: Mapping[str, object], error: TypeError, name: str = ""
) -> UsageTypeError:
    """Return the error for a call whose arguments do not fit the signature of ``target``.

    The first problem in this order is reported: an unknown keyword (with the nearest name), an argument given twice, a
    missing argument, too many positional arguments. Otherwise the error has the text of ``error``. Parameters annotated
    ``NoReturn`` do not count: they only catch arguments that :func:`refuse_arguments` refuses.

    Args:
        target: the function called, or the class whose ``__init__`` was called.
        args: the positional arguments; for a class or a method the first one is the instance or class.
        kwargs: the keyword arguments.
        error: the TypeError that Python raised for the call.
        name: how the error calls the function; "" for its own name.

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
    keywords = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    call = f"it is called as {name}{_format_signature(written.replace(parameters=parameters))}"
    unknown_keywords = [word for word in kwargs if word not in keywords and not takes_any]
    if unknown_keywords:
        positional_only = [p.name for p in parameters if p.kind is p.POSITIONAL_ONLY]
        return _unknown_keyword_error(name, unknown_keywords[0], positional_only, keywords, call)
    count = len(args) - shift
    repeated = [p.name for p in by_place[:count] if p.name in kwargs]
    if repeated:
        return UsageTypeError(
            f"{name}: argument {repeated[0]!r} is given by its place and by its name; {call}"
        )
    needed = [*by_place[count:], *[p for p in parameters if p.kind is p.KEYWORD_ONLY]]
    missing = [p.name for p in needed if p.default is p.empty and p.name not in kwargs]
    if missing:
        meaning = _meaning(target, missing[0])
        return UsageTypeError(f"{name}: argument {missing[0]!r} is missing{meaning}; {call}")
    if count > len(by_place) and not any(p.kind is p.VAR_POSITIONAL for p in parameters):
        most = f"{len(by_place)} argument{'s' * (len(by_place) != 1)}"
        return UsageTypeError(f"{name} takes at most {most} by their place, got {count}; {call}")
    return UsageTypeError(str(error))


def _unknown_keyword_error(
    name: str, keyword: str, positional_only: list[str], keywords: list[str], call: str
) -> UsageTypeError:
    """Return the error for a keyword that a function does not take, with the nearest parameter.

    Args:
        name: the function's name in the error.
        keyword: the keyword of the call.
        positional_only: the parameters that have no keyword; one of these gets advice of its own.
        keywords: the parameters with a keyword.
        call: words on how the function is called.
    """
    if keyword in positional_only:
        return UsageTypeError(f"{name} takes {keyword!r} by its place, not by its name; {call}")
    names = [*positional_only, *keywords]
    if not names:
        return UsageTypeError(f"{name} has no argument {keyword!r}; {call}")
    sought_name = OTHER_NAMES.get(keyword, keyword)
    return unknown(f"{name} has no argument {keyword!r}", sought_name, names, UsageTypeError, "it takes")


def refuse_arguments(function: Any, args: Sequence[object], kwargs: Mapping[str, object]) -> NoReturn:
    """Raise UsageTypeError for arguments that a function catches only to refuse them.

    Small functions that run often declare ``*more: NoReturn`` and ``**wrong: NoReturn``, and call this function if either is
    not empty. The wrapper of :func:`explained` would cost them a few per cent of their time.

    Args:
        function: the function.
        args: all its positional arguments.
        kwargs: its unknown keyword arguments.

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
    """Return the name of a function in errors: "Tensor.to" for a method, "mesh" for a call of a Mesh.

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


def _format_signature(written: Signature) -> str:
    """Return a signature as text without types, such as ``(array, rows=1)``.

    If it is longer than :data:`MOST_OF_A_CALL` (120) characters, it has only the parameters without default, and "...".

    Args:
        written: the signature.
    """
    untyped = [p.replace(annotation=p.empty) for p in written.parameters.values()]
    text = str(written.replace(parameters=untyped, return_annotation=Signature.empty))
    text = re.sub(r"<class '(?:\w+\.)*(\w+)'>|<operator (\w+)>", r"\1\2", text)
    if len(text) <= MOST_OF_A_CALL:
        return text
    return f"({', '.join([*(p.name for p in untyped if p.default is p.empty), '...'])})"


def _meaning(target: Any, name: str) -> str:
    """Return the docstring's description of an argument, in brackets, for an error.

    It ends before the first full stop, semicolon or colon. Returns "" if the docstring has no description, or it is longer
    than MOST_QUOTED characters or cut inside of brackets.
    """
    match = re.search(rf"^ +{name}: ([^.;:]+)", target.__doc__ or "", re.MULTILINE)
    words = " ".join(match[1].split()).replace("`", "") if match else ""
    is_whole = all(words.count(opening) == words.count(closing) for opening, closing in ("()", "[]"))
    return f" ({words})" if 0 < len(words) <= MOST_QUOTED and is_whole else ""
