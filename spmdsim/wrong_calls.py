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
from types import UnionType
from typing import Any, NoReturn, TypeVar

from spmdsim.errors import InputError, SpmdError, UsageTypeError, nearest, unknown

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
    **{"ranks_per_node": "nodes", "dimension": "dim", "dimensions": "dims", "reduce_op": "op"},
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

#: Errors of Python and NumPy that an argument of a wrong type can cause.
FOREIGN = (AttributeError, TypeError, ValueError, LookupError, ArithmeticError, StopIteration)

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
    """Return the nearest known name for an unknown one, for an error; "" if none is near.

    The first of these cases counts:

    1. A collective of MPI or torch: advice in words, such as ``tensor.to(layout), or spmdsim.local.psum in …``.
    2. A name of :data:`OTHER_NAMES`, if ``module`` has its counterpart: "cat" gives ``'concat'``.
    3. A name that differs only in upper and lower case: "Matmul" gives ``'matmul'``, or ``spmdsim.ops.matmul`` if
       another module of :data:`NAMESPACES` has it.
    4. A similar name of ``module``, or a very similar one (:data:`LIKE_IN_ANOTHER_MODULE`) of another module.

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

    The hint is the nearest keyword, or the missing argument and the signature. An error of Python's or NumPy's inside
    of the function is replaced if an argument has another type than its annotation says; other errors pass. A class is
    changed in place and returned; for a function the wrapper is returned.

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
    >>> @explained
    ... def double(count: int):
    ...     return 2 * count + 1
    >>> double("a")
    Traceback (most recent call last):
    spmdsim.errors.UsageTypeError: double: count must be a whole number, got 'a'
    """
    if isinstance(target, type):
        target.__init__ = _wrap_call(target.__init__, target, name)  # type: ignore[misc]
        return target
    function: F = _wrap_call(target, target, name)
    return function


def _wrap_call(function: Any, target: Any, name: str) -> Any:
    """Return a function that calls ``function`` and explains errors that wrong arguments cause.

    - The arguments do not fit the signature: raise the error of :func:`wrong_arguments`.
    - The function raises an error of Python or NumPy, and an argument has a wrong type: raise that of
      :func:`find_wrong_type`.
    - In all other cases, an error of the function passes unchanged.

    The returned function has the name and docstring of ``function``.

    Args:
        function: the function to call.
        target: the function, or the class whose ``__init__`` it is.
        name: its name in errors; "": its own name.
    """

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        """Call the function; replace errors that its arguments explain."""
        try:
            return function(*args, **kwargs)
        except FOREIGN as error:
            if isinstance(error, TypeError) and not _is_bound(function, args, kwargs):
                raise wrong_arguments(target, args, kwargs, error, name) from None
            if not isinstance(error, SpmdError):
                explain_types(target, args, kwargs, error, name)
            raise

    return call


def _is_bound(function: Any, args: Sequence[object], kwargs: Mapping[str, object]) -> bool:
    """Return True if the arguments fit the signature of a function; types are not compared."""
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

    It reports the first problem in this order: an unknown keyword, with the nearest name; an argument given twice; a
    missing argument; too many positional arguments. If there is none of these, it has the text of ``error``. Parameters
    annotated ``NoReturn`` do not count: they only catch arguments that :func:`refuse_arguments` refuses.

    Args:
        target: the function called, or the class whose ``__init__`` was called.
        args: the positional arguments; for a class or a method the first one is the instance or class.
        kwargs: the keyword arguments.
        error: the TypeError that Python raised for the call.
        name: how the error calls the function; "" for its own name.

    Returns:
        The UsageTypeError, for the caller to raise.

    >>> def cut(rows, cols=1): ...
    >>> print(wrong_arguments(cut, (), {"rows": 1, "col": 1}, TypeError()))
    cut has no argument 'col'; did you mean 'cols'? it takes rows, cols
    >>> print(wrong_arguments(cut, (), {}, TypeError()))
    cut: argument 'rows' is missing; it is called as cut(rows, cols=1)
    """
    function: Any = vars(target)["__init__"] if isinstance(target, type) else target
    written = signature(function)
    parameters = [p for p in written.parameters.values() if p.name not in ("self", "cls")]
    shift = len(written.parameters) - len(parameters)
    parameters = [p for p in parameters if p.annotation not in REFUSED]
    name = name or _name_of_target(target, args[:shift])
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


def explain_types(
    target: Any, args: Sequence[object], kwargs: Mapping[str, object], error: Exception, name: str = ""
) -> None:
    """Raise an error about an argument instead of ``error``, if one explains it; else return.

    The arguments are those of :func:`find_wrong_type`; ``error`` is what Python or NumPy raised inside of the function.
    Nothing is raised if the arguments do not fit the signature.

    Args:
        target: the function called, or the class whose ``__init__`` was called.
        args: the positional arguments, including ``self`` or ``cls``.
        kwargs: the keyword arguments.
        error: the error that Python or NumPy raised.
        name: the function's name in the error; "" for its own name.

    Raises:
        UsageTypeError: If an argument has a wrong type.
        InputError: If an argument is an integer of more than 64 bits.
    """
    function = vars(target)["__init__"] if isinstance(target, type) else target
    if not _is_bound(function, args, kwargs):
        return
    mismatch = find_wrong_type(target, args, kwargs, name) or find_huge_integer(target, args, kwargs, name)
    if mismatch is not None:
        raise mismatch from error


def find_wrong_type(
    target: Any, args: Sequence[object], kwargs: Mapping[str, object], name: str = ""
) -> UsageTypeError | None:
    """Return the error for the first argument whose type differs from its annotation, or None.

    Only annotations built from the types in :data:`_TYPES` and ``|`` are compared, such as ``int | None``.
    Arguments with other annotations, ``*args`` and ``**kwargs`` are not checked.

    Args:
        target: the function called, or the class whose ``__init__`` was called.
        args: the positional arguments, including ``self`` or ``cls``.
        kwargs: the keyword arguments.
        name: the function's name in the error; "" for its own name.

    >>> def cut(rows: int | None = None, names: Sequence[str] = ()): ...
    >>> print(find_wrong_type(cut, (2.5,), {}))
    cut: rows must be a whole number or None, got 2.5
    >>> find_wrong_type(cut, (2, ["a"]), {})
    """
    function: Any = vars(target)["__init__"] if isinstance(target, type) else target
    written = signature(function)
    shift = len([word for word in written.parameters if word in ("self", "cls")])
    for word, value in written.bind_partial(*args, **kwargs).arguments.items():
        parameter = written.parameters[word]
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        types = [_TYPES.get(text) for text in _expand_annotation(parameter.annotation, function)]
        accepted_types = [entry for entry in types if entry is not None]
        if len(accepted_types) == len(types) and not any(accepts(value) for _, accepts in accepted_types):
            name = name or _name_of_target(target, args[:shift])
            rule = " or ".join(dict.fromkeys(description for description, _ in accepted_types))
            return UsageTypeError(f"{name}: {word} must be {rule}, got {value!r:.60}{_meaning(target, word)}")
    return None


def find_huge_integer(
    target: Any, args: Sequence[object], kwargs: Mapping[str, object], name: str = ""
) -> InputError | None:
    """Return the error for the first argument with an integer that does not fit 64 bits, or None.

    NumPy stores sizes and indices as integers from -2**63 to 2**63 - 1. Only arguments that are annotated as an integer
    or as a sequence of integers are read.

    Args:
        target: the function called, or the class whose ``__init__`` was called.
        args: the positional arguments, including ``self`` or ``cls``.
        kwargs: the keyword arguments.
        name: the function's name in the error; "" for its own name.

    >>> def repeat(counts: Sequence[int]): ...
    >>> print(find_huge_integer(repeat, ((2, 10**30),), {}))
    repeat: counts must fit 64 bits, got an integer of 100 bits
    """
    function: Any = vars(target)["__init__"] if isinstance(target, type) else target
    written = signature(function)
    shift = len([word for word in written.parameters if word in ("self", "cls")])
    for word, value in written.bind_partial(*args, **kwargs).arguments.items():
        types = _expand_annotation(written.parameters[word].annotation, function)
        if not _WHOLE_NUMBERS.intersection(types):
            continue
        for number in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(number, int) and not -(2**63) <= number < 2**63:
                name = name or _name_of_target(target, args[:shift])
                return InputError(
                    f"{name}: {word} must fit 64 bits, got an integer of {number.bit_length()} bits"
                )
    return None


def _expand_annotation(annotation: object, function: Any) -> list[str]:
    """Return the types of an annotation as words: ``"int | None"`` gives ``["int", "None"]``.

    An alias of the function's module, such as ``Dims = int | None``, is replaced by its own types.

    Args:
        annotation: the annotation, as text or as type.
        function: the function whose parameter has the annotation.
    """
    text = annotation.__name__ if isinstance(annotation, type) else str(annotation)
    words = re.sub(r"\b(?:collections\.abc|typing|numpy|np)\.", "", text).split(" | ")
    scope = getattr(function, "__globals__", {})
    aliases = {word: scope[word] for word in words if isinstance(scope.get(word), (str, UnionType))}
    return [
        type_name
        for word in words
        for type_name in (_expand_annotation(aliases[word], function) if word in aliases else [word])
    ]


def is_whole_number(value: object) -> bool:
    """Return True for a number without fraction, of Python or NumPy, and for an array of one such number."""
    return hasattr(value, "__index__") and getattr(value, "size", 1) == 1


def _is_number(value: object) -> bool:
    """Return True for a real number of Python or NumPy, and for an array of one."""
    return hasattr(value, "__float__") and getattr(value, "size", 1) == 1


def _is_truth_value(value: object) -> bool:
    """Return True for True, False, NumPy's twins of both, and whole numbers."""
    return is_whole_number(value) or type(value).__name__ in ("bool", "bool_")


def _is_sequence_of(accepts: Callable[[object], bool]) -> Callable[[object], bool]:
    """Return a function that is True for a collection, but no text, whose items ``accepts`` accepts."""

    def check(values: object) -> bool:
        """Return True if ``values`` is such a collection."""
        return isinstance(values, Iterable) and not isinstance(values, str) and all(map(accepts, values))

    return check


def _is_instance_of(class_name: str) -> Callable[[object], bool]:
    """Return a function that is True for instances of a class of this name and of its subclasses."""
    return lambda value: any(base.__name__ == class_name for base in type(value).__mro__)


def _is_operand(value: object) -> bool:
    """Return True for what an operator may convert to a tensor: anything but None and texts."""
    return value is not None and not isinstance(value, (str, bytes))


_are_whole_numbers = _is_sequence_of(is_whole_number)
# Many functions also accept a single number.
_INTEGERS = (
    "whole numbers, such as (0, 1)",
    lambda value: is_whole_number(value) or _are_whole_numbers(value),
)
_TEXTS = ("texts, such as ('a', 'b')", _is_sequence_of(lambda value: isinstance(value, str)))
#: Annotation -> the words for it in errors, and a function that is True for values of this type.
_TYPES: dict[str, tuple[str, Callable[[object], bool]]] = {
    "None": ("None", lambda value: value is None),
    "int": ("a whole number", is_whole_number),
    "float": ("a number", _is_number),
    "bool": ("True or False", _is_truth_value),
    "str": ("a text", lambda value: isinstance(value, str) or hasattr(value, "__fspath__")),
    "Sequence[int]": _INTEGERS,
    "Iterable[int]": _INTEGERS,
    "tuple[int, ...]": _INTEGERS,
    "Sequence[str]": _TEXTS,
    "Iterable[str]": _TEXTS,
    "tuple[str, ...]": _TEXTS,
    "Sequence[float]": ("numbers, such as (0.5, 1.5)", _is_sequence_of(_is_number)),
    "tuple[float, float]": ("two numbers", _is_sequence_of(_is_number)),
    "ndarray": ("an array", lambda value: hasattr(value, "__array__")),
    "ArrayLike": ("an array or a number", _is_operand),
    "HasOperand": ("a tensor of an imitated system", lambda value: hasattr(value, "as_operand")),
    # Many functions also accept arrays and numbers beside a tensor.
    "Tensor": ("a Tensor", _is_operand),
    "Sequence[Tensor]": ("tensors", _is_sequence_of(_is_operand)),
    "Callable[..., Any]": ("a function", callable),
    "Callable[..., object]": ("a function", callable),
    "Local": ("a function", callable),
    "Path": ("a path", lambda value: hasattr(value, "__fspath__")),
    **{
        word: (f"a{'n' * (word[0] in 'AE')} {word}", _is_instance_of(word))
        for word in ("Algorithm", "EventProgram", "Layout", "Machine", "Mesh", "Schedule")
    },
}

#: Annotations of arguments that are whole numbers.
_WHOLE_NUMBERS = frozenset(["int", "Sequence[int]", "Iterable[int]", "tuple[int, ...]"])


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


def _name_of_target(target: Any, owners: Sequence[object]) -> str:
    """Return the name of a function or class in errors; the arguments are those of :func:`_name_of_call`."""
    return str(target.__name__) if isinstance(target, type) else _name_of_call(target, owners)


def _name_of_call(function: Any, owners: Sequence[object]) -> str:
    """Return the name of a function in errors: "Tensor.to" for a method, "mesh" for a call of a Mesh."""
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
    """
    untyped = [p.replace(annotation=p.empty) for p in written.parameters.values()]
    text = str(written.replace(parameters=untyped, return_annotation=Signature.empty))
    text = re.sub(r"<class '(?:\w+\.)*(\w+)'>|<operator (\w+)>", r"\1\2", text)
    if len(text) <= MOST_OF_A_CALL:
        return text
    return f"({', '.join([*(p.name for p in untyped if p.default is p.empty), '...'])})"


def _meaning(target: Any, name: str) -> str:
    """Return the docstring's description of an argument, in brackets, for an error.

    The description is cut before its first full stop, semicolon or colon. Return "" if the docstring has none, if it
    has more than MOST_QUOTED (80) characters, or if the cut is inside of brackets.
    """
    match = re.search(rf"^ +{name}: ([^.;:]+)", target.__doc__ or "", re.MULTILINE)
    words = " ".join(match[1].split()).replace("`", "") if match else ""
    is_whole = all(words.count(opening) == words.count(closing) for opening, closing in ("()", "[]"))
    return f" ({words})" if 0 < len(words) <= MOST_QUOTED and is_whole else ""
