"""Parse meshes and layouts in this package's own notation, and the integers, names and nested tuples of all notations.

====================  ==================================  ========================
a mesh                ``dp=2,tp=4``, ``2x4``              ranks after ``@``
a layout              ``dp,(tp,sp),None`` (or ``-``)      ``DIMS partial tp:max``
both                  ``MESH: DIMS``, ``DIMS over MESH``
====================  ==================================  ========================
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import Any

from spmdsim.core.layout import Layout, Mesh
from spmdsim.errors import InputError, LayoutError, UsageTypeError
from spmdsim.reading import literal, one_line

#: Entries of dimensions that are not split.
NOT_SPLIT = ("None", "none", "-", "_", "*", "")
_PARTIAL = re.compile(r"[;|,]?\s*partial\s*[=:]?\s*(?P<axes>\w+(?::\w+)?(?:\s*,\s*\w+(?::\w+)?)*)\s*$")
_PARTIAL_ENTRY = re.compile(r"^(?P<op>\w+) pending over (?P<axis>\w+)$")
#: Parser of other notations: takes the text without its mesh, the mesh and the number of dimensions (None: unknown).
OtherNotation = Callable[[str, Mesh, "int | None"], Layout]


def flatten_integers(
    value: Any, what: str, error: type[LayoutError] = LayoutError
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shape and the row-major elements of nested integers.

    Args:
        value: nested lists or tuples of integers or arrays, a range or an array.
        what: noun for error messages, such as "ranks".
        error: class of the error for ragged or empty lists.

    Returns:
        ``(shape, elements)``. Elements are Python ints.

    Raises:
        UsageTypeError: If an element is not an integer (a bool is none), or ``value`` is a text or cannot be iterated.
        LayoutError: If a list is empty or lists of one level differ in length; of class ``error``.

    >>> flatten_integers([[2, 0], [1, 3]], "ranks")
    ((2, 2), (2, 0, 1, 3))
    """
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise UsageTypeError(f"{what} must be an array of integers, got {value!r}")
    items = [item.tolist() if hasattr(item, "tolist") else item for item in value]
    if not items:
        raise error(f"{what} must have at least one integer, got an empty list")
    if not any(isinstance(item, Sequence | range) and not isinstance(item, str) for item in items):
        for item in items:
            if isinstance(item, bool) or not hasattr(item, "__index__"):
                raise UsageTypeError(f"{what} must be an array of integers, got {item!r} in {items}")
        return (len(items),), tuple(item.__index__() for item in items)
    rows = [flatten_integers(item, what, error) if isinstance(item, Iterable) else ((), ()) for item in items]
    if len({shape for shape, _ in rows}) > 1:
        raise error(f"the rows of {what} must have one shape, got {items}")
    return (len(items), *rows[0][0]), tuple(rank for _, order in rows for rank in order)


def nest(elements: Sequence[int], shape: Sequence[int]) -> list[Any]:
    """Return row-major elements as nested lists of this shape (inverse of :func:`flatten_integers`).

    >>> nest([2, 0, 1, 3], (2, 2))
    [[2, 0], [1, 3]]
    """
    if len(shape) == 1:
        return list(elements)
    step = math.prod(shape[1:])
    return [nest(elements[i * step : (i + 1) * step], shape[1:]) for i in range(shape[0])]


def split_entries(text: str) -> list[str]:
    """Split a text at its commas, except those inside of brackets; drop blanks around each part.

    Nothing after the last comma is no part. An empty ``text`` gives ``[""]``. Brackets are ( [ {; "(" may be closed by
    "]".

    Raises:
        InputError: If brackets do not match.

    >>> split_entries("mp,(sp,dp), None")
    ['mp', '(sp,dp)', 'None']
    """
    entries, depth, start = [], 0, 0
    for i, char in enumerate(text):
        depth += (char in "([{") - (char in ")]}")
        if depth < 0:
            raise InputError(f"brackets must match, got a closing one without an opening one in {text!r}")
        if char == "," and depth == 0:
            entries.append(text[start:i].strip())
            start = i + 1
    if depth:
        raise InputError(f"brackets must match, got an open one without a closing one in {text!r}")
    last = text[start:].strip()
    return [*entries, last] if last or not entries else entries


def parse_ints(text: str, what: str) -> tuple[int, ...]:
    """Parse integers such as ``2,4``, ``(2, 4)``, ``[2 4]`` or ``2x4``.

    They may be negative. Empty text, or brackets around nothing, give ``()``; one comma at the end is dropped.

    Args:
        text: the integers.
        what: names them in the error, such as "a mesh".

    Raises:
        InputError: If a word is no integer, or brackets are inside of brackets.

    >>> parse_ints("2x4", "mesh"), parse_ints("(32, 784)", "shape"), parse_ints("()", "shape")
    ((2, 4), (32, 784), ())
    """
    body = strip_brackets(text).removesuffix(",")
    words = re.split(r"\s*,\s*|\s*(?<=\d)\s*[x×]\s*(?=\d)|\s+", body.strip()) if body.strip() else []
    try:
        return tuple(int(word) for word in words)
    except ValueError:
        raise InputError(f"{what} must be integers such as 2,4, got {text!r}") from None


def strip_brackets(text: str) -> str:
    """Return the text without outer blanks and without its outer pair of brackets.

    Pairs are (), [] and {}.

    Raises:
        InputError: If any bracket remains after that.

    >>> strip_brackets("(2, 4)"), strip_brackets("2,4")
    ('2, 4', '2,4')
    """
    body = text.strip()
    if len(body) > 1 and body[0] + body[-1] in ("()", "[]", "{}"):
        body = body[1:-1].strip()
    if set(body) & set("()[]{}"):
        raise InputError(
            f"numbers and names must have at most one pair of brackets around them, got {text!r}"
        )
    return body


def parse_names(text: str) -> tuple[str, ...]:
    """Parse names between commas, with or without quotes and brackets.

    >>> parse_names("('dp', 'mp')")
    ('dp', 'mp')
    """
    return tuple(name.strip().strip("'\"") for name in strip_brackets(text).split(",") if name.strip())


def parse_nested(text: str, what: str) -> Any:
    """Parse an integer, or nested tuples or lists of integers such as ``((2,4),(4,1))``.

    The value is the one of the Python literal: integers between commas are a tuple, lists stay lists. Empty tuples are
    accepted.

    Args:
        text: the text.
        what: the name of the value in the error.

    Raises:
        InputError: If the text is anything else; a bool is no integer.

    >>> parse_nested("((2,4),[4,1])", "cuts"), parse_nested("3", "cuts")
    (((2, 4), [4, 1]), 3)
    """
    try:
        value = literal(text)
    except ValueError:
        value = None
    if not _has_only_integers(value):
        raise InputError(f"{what} must be nested integers such as ((2,4),(4,1)), got {one_line(text)!r}")
    return value


def _has_only_integers(value: Any) -> bool:
    """Return True for an int (not a bool), and for tuples and lists that contain only such values."""
    if isinstance(value, list | tuple):
        return all(map(_has_only_integers, value))
    return type(value) is int


def parse_tuples(text: str, what: str) -> tuple[tuple[int, ...], ...]:
    """Parse tuples of integers, such as shapes or cuts.

    One integer, or integers between commas, are one tuple: "3" gives ((3,),). An integer beside tuples is a tuple,
    too.

    Args:
        text: the text.
        what: the name of the value in the error.

    Raises:
        InputError: If the text is anything else, or has tuples inside of the tuples.

    >>> parse_tuples("(32,784),(784,512)", "shapes"), parse_tuples("((2,4),(4,1))", "cuts")
    (((32, 784), (784, 512)), ((2, 4), (4, 1)))
    >>> parse_tuples("(32,784),(512)", "shapes")
    ((32, 784), (512,))
    """
    value = parse_nested(text, what)
    if not isinstance(value, list | tuple):
        value = ((value,),)
    elif all(type(item) is int for item in value):
        value = (value,)
    value = [(item,) if type(item) is int else item for item in value]
    for item in value:
        if not isinstance(item, list | tuple) or not all(type(n) is int for n in item):
            raise InputError(f"{what} must be tuples of integers such as ((2,4),(4,1)), got {text!r}")
    return tuple(tuple(item) for item in value)


def parse_order(text: str) -> list[int]:
    """Parse the ranks in mesh order: ``3,1,0,2`` or nested lists.

    Raises:
        InputError: If the text is anything else.

    >>> parse_order("[[3,1],[0,2]]")
    [3, 1, 0, 2]
    """
    nested = parse_nested(text if "," in text else f"{text},", "the rank order")
    return list(flatten_integers(nested, "the rank order")[1])


def parse_mesh(text: str, ranks: str | Sequence[int] | None = None) -> Mesh:
    """Parse the text of a mesh.

    - "dp=2,tp=4" or "dp=2 tp=4": axes with their sizes.
    - "2x4", "2,4" or "2 4": sizes alone; the axes are d0, d1, ...
    - "[[0,1],[3,2]]": ranks; their shape gives the sizes, and the axes are d0, d1, ...

    Brackets around axes or sizes are optional. The ranks in mesh order can follow after ``@`` or ``on ranks``, such as
    "dp=2 @ 1,0".

    Args:
        text: the mesh.
        ranks: the ranks in mesh order, as numbers or text; they replace the ranks of a nested list, and ranks after ``@``
            replace them. None: those in the text, else 0, 1, 2, ...

    Raises:
        InputError: If the text is none of these forms. For ``dp2,tp4`` the message suggests ``dp=2,tp=4``.
        LayoutError: If sizes, axes and ranks do not fit each other.

    >>> parse_mesh("dp=2 tp=4"), parse_mesh("2x4").axes, parse_mesh("[[0,1],[3,2]]").ranks
    (Mesh((2, 4), ('dp', 'tp')), ('d0', 'd1'), (0, 1, 3, 2))
    """
    sizes_text, _, order = re.sub(r"\s+on ranks\s+", "@", text.strip()).partition("@")
    if order:
        ranks = order
    if isinstance(ranks, str):
        ranks = parse_order(ranks)
    if sizes_text.startswith("[["):
        shape, nested_ranks = flatten_integers(
            parse_nested(sizes_text, "the ranks of a mesh"), "the ranks of a mesh"
        )
        return Mesh(shape, name_axes(len(shape)), nested_ranks if ranks is None else ranks)
    if "=" not in sizes_text and re.search(r"\b([A-Za-z_]{2,}|[A-Za-z_]\d)", sizes_text):
        suggestion = re.sub(r"([A-Za-z_]+)(\d+)", r"\1=\2", sizes_text)
        hint = f"; did you mean {suggestion}?" if suggestion != sizes_text else ""
        raise InputError(f"a mesh is written like dp=2,tp=4, but got {text!r}{hint}")
    if "=" not in sizes_text:
        shape = parse_ints(sizes_text, "a mesh")
        return Mesh(shape, name_axes(len(shape)), ranks)
    axes, sizes = [], []
    for word in filter(None, re.split(r"[\s,]+", strip_brackets(sizes_text))):
        name, equals, size = word.partition("=")
        if not equals or not size:
            raise InputError(f"a mesh is written like dp=2,tp=4, but {name!r} in {text!r} lacks a size")
        if not size.isdigit():
            raise InputError(f"a mesh is written like dp=2,tp=4, but got {word!r} in {text!r}")
        axes.append(name)
        sizes.append(int(size))
    return Mesh(sizes, axes, ranks)


def name_axes(count: int) -> tuple[str, ...]:
    """Return names for ``count`` axes without names: ``d0``, ``d1``, ..."""
    return tuple(f"d{i}" for i in range(count))


def parse_layout(
    text: str, mesh: Mesh | None = None, ndim: int | None = None, others: OtherNotation | None = None
) -> Layout:
    """Parse the text of a layout: ``DIMS``, ``MESH: DIMS`` or ``DIMS over MESH``.

    DIMS has an entry for each dimension, between commas:

    - an axis that splits it, such as "dp";
    - several axes in brackets, major first, such as "(tp,dp)";
    - a word for "not split" (:data:`NOT_SPLIT`), such as "None" or "-".

    Pending reductions follow at the end, such as "dp,None partial tp:max" (without an operation, a sum), or are further
    entries, such as "dp, -, sum pending over tp".

    Args:
        text: the layout.
        mesh: its mesh if the text does not name one; otherwise ignored.
        ndim: number of dimensions, None if it is unknown. It distinguishes ``(a,b)`` for one dimension from two
            entries, and is not checked otherwise.
        others: parser of other notations, for entries that are not of this form (see :data:`OtherNotation`); None:
            they are errors.

    Raises:
        InputError: If no mesh is known, or brackets do not match.
        LayoutError: If entries name no axes of the mesh and ``others`` is None, or they contradict each other.

    >>> parse_layout("dp=2,tp=4: (tp,dp),None").placement_text()
    'S(0)[1]S(0)[0]'
    >>> mesh = Mesh((2, 4), ("dp", "tp"))
    >>> parse_layout("[dp, -, sum pending over tp] over dp=2 tp=4") == mesh("dp", None, partial="tp")
    True
    """
    body, mesh = _split_body_and_mesh(text.strip(), mesh)
    partial: dict[str, str] = {}
    match = _PARTIAL.search(body)
    if match:
        body = body[: match.start()].rstrip()
        for item in match["axes"].split(","):
            axis, _, op = item.strip().partition(":")
            partial[axis] = op or "sum"
    layout = _parse_own_dims(parse_entries(body, ndim), mesh)
    if layout is None and others is None:
        raise LayoutError(f"a layout must have one entry per dim with axes of the mesh {mesh}, got {body!r}")
    if layout is None:
        layout = others(body, mesh, ndim)  # type: ignore[misc]
    return Layout(mesh, layout.dims, {**dict(layout.partial), **partial})


def _split_body_and_mesh(text: str, mesh: Mesh | None) -> tuple[str, Mesh]:
    """Split the text of a layout into the text of its dimensions, and its mesh.

    - If the text names a mesh in front of a colon or after ``over``: "dp=2: dp,None" and "dp,None over dp=2" give
      "dp,None" and the mesh dp=2. "over one rank" is a mesh of one rank.
    - Otherwise: the text and ``mesh``. The colon of a pending reduction such as ``tp:max`` does not name a mesh.

    Args:
        text: a layout.
        mesh: its mesh if the text names none; may be None.

    Raises:
        InputError: If the text names no mesh and ``mesh`` is None, or the text of the mesh is wrong.
    """
    over = re.match(r"(?P<dims>.*\S)\s+over\s+(?P<mesh>\w+=\d.*|one rank)$", text)
    if over and not _PARTIAL_ENTRY.match(over["dims"]):
        return over["dims"], parse_mesh(over["mesh"].replace("one rank", "1"))
    colon = re.match(r"(?P<mesh>\[\[.*?\]\]|[\w=,x×\s@()]*\d)\s*:\s*(?P<dims>.*)$", text)
    if colon and not _PARTIAL.search(colon["mesh"] + ":" + colon["dims"].split(",")[0]):
        return colon["dims"], parse_mesh(colon["mesh"])
    if unsized := re.match(r"([\w=,x×\s@()]*\w=[\w=,x×\s@()]*):", text):
        parse_mesh(unsized[1])  # raises the error of a mesh without sizes
    if mesh is None:
        raise InputError(
            f"layout {text!r} names no mesh; write it like 'dp=2,tp=4: dp,None', or give the mesh"
        )
    return text, mesh


def _parse_own_dims(entries: list[Any], mesh: Mesh) -> Layout | None:
    """Return the layout of entries that are in this package's own notation, or None.

    It is None

    - if an entry is neither an axis, nor several axes, nor a word for "not split" (:data:`NOT_SPLIT`), nor a pending
      reduction;
    - if all entries are integers, as in a tensor map.

    Args:
        entries: one entry per dimension from :func:`parse_entries`, such as "dp", ("dp", "tp") or "-". Entries such as
            "sum pending over tp" are reductions, not dimensions.
        mesh: the mesh of the layout.
    """
    words = [word for entry in entries for word in (entry if isinstance(entry, tuple) else (entry,))]
    if words and all(isinstance(word, int) for word in words):
        return None
    if not all(str(word) in (*mesh.axes, *NOT_SPLIT) or _PARTIAL_ENTRY.match(str(word)) for word in words):
        return None
    dims, partial = [], {}
    for entry in entries:
        reduction = _PARTIAL_ENTRY.match(str(entry))
        if reduction:
            partial[reduction["axis"]] = reduction["op"]
        else:
            dims.append(dim_entry(entry))
    return Layout(mesh, dims, partial)


def parse_entries(text: str, ndim: int | None) -> list[Any]:
    """Parse the entries of a layout's dimensions: for each a name, an integer, or a tuple of them.

    For example, "(a,b),None" gives ``[("a", "b"), "None"]``. Brackets around the whole text enclose either all entries, or
    one tuple. They enclose all entries if one of these holds, and are dropped then:

    - they are square: "[a,b]" gives ``["a", "b"]``;
    - there are brackets inside: "((a,b),c)" gives ``[("a", "b"), "c"]``;
    - there are ``ndim`` entries inside, 2 or more: "(a,b)" with ``ndim`` 2 gives ``["a", "b"]``.

    Otherwise they are a tuple: "(a,b)" with ``ndim`` None gives ``[("a", "b")]``. Quotes and blanks are dropped, empty text
    gives []. Names are not compared with a mesh.

    Args:
        text: the entries, between commas.
        ndim: number of dimensions; None if it is unknown.

    Raises:
        InputError: If brackets do not match.
    """
    body = text.strip()
    entries = split_entries(body)
    if _is_wrapped(body):
        inner_entries = split_entries(body[1:-1])
        has_one_entry_per_dim = ndim not in (None, 1) and len(inner_entries) == ndim
        if body[0] == "[" or has_one_entry_per_dim or any(map(_is_wrapped, inner_entries)):
            entries = inner_entries
    if entries == [""]:
        return []
    return [
        tuple(map(_parse_word, split_entries(entry[1:-1]))) if _is_wrapped(entry) else _parse_word(entry)
        for entry in entries
    ]


def dim_entry(entry: Any) -> Any:
    """Return an entry with every word for an unsplit dimension replaced by "None"."""
    if isinstance(entry, tuple):
        return tuple(map(dim_entry, entry))
    return "None" if entry in NOT_SPLIT or entry == -1 else str(entry)


def _is_wrapped(text: str) -> bool:
    """Return True if one pair of brackets encloses the whole text."""
    depths = list(accumulate((char in "([") - (char in ")]") for char in text))
    return text[:1] in ("(", "[") and text[-1:] in (")", "]") and min(depths[:-1], default=1) > 0


def _parse_word(text: str) -> str | int:
    """Return an entry without blanks and quotes, as an integer if it is one."""
    word = text.strip().strip("'\"")
    return int(word) if re.fullmatch(r"-?\d+", word) else word
