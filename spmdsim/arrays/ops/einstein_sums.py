"""Sums of products in Einstein's notation, and over several dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from string import ascii_letters
from typing import Any, cast

import numpy as np

from spmdsim.arrays import Op, Tensor
from spmdsim.arrays.operands import Operand, normalise_dim
from spmdsim.arrays.ops.along import take_along_axis
from spmdsim.arrays.ops.declare import Array, Arrays, Shape, conj, convert_to_one_type
from spmdsim.arrays.ops.operators import operator
from spmdsim.arrays.ops.shape import reshape, transpose
from spmdsim.core import Layout, Rule
from spmdsim.errors import RuleError, UsageTypeError, many

__all__ = ["einsum", "tensordot"]

#: The letters of the labels 0 to 51.
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


@lru_cache(maxsize=1024)
def _split_equation(equation: str) -> tuple[tuple[str, ...], str]:
    """Split an equation of einsum into the terms of the operands (a tuple) and that of the result.

    ``"ij, jk -> ik"`` gives ``(("ij", "jk"), "ik")``. Blanks are dropped; letters are not checked. Results are cached.

    Raises:
        RuleError: If the equation does not contain exactly one ``->``.
    """
    compact = equation.replace(" ", "")
    if compact.count("->") != 1:
        raise RuleError(f"einsum takes terms such as 'ij,jk->ik', but got {equation!r}")
    left, out = compact.split("->")
    return tuple(left.split(",")), out


def _insert_blanks(term: str) -> str:
    """Insert a blank between all labels of a term."""
    return " ".join(term.replace("...", ".")).replace(".", "...")


def _einsum_rule(*shapes: Shape, equation: str) -> Rule:
    """Return the rule of an equation: "ij,jk->ik" gives "i j, j k -> i k"."""
    terms, out = _split_equation(equation)
    for term in (*terms, out):
        letters = term.replace("...", "")
        if not letters.isalpha() and letters:
            raise RuleError(f"einsum terms are letters and '...', but {equation!r} has {term!r}")
    text = f"{', '.join(map(_insert_blanks, terms))} -> {_insert_blanks(out)}"
    return Rule.parse(text, linear="each")


def _contract(equation: str, *arrays: Array) -> Array:
    """Compute a sum of products in C order, in the common type of all operands."""
    # NumPy multiplies operands pair by pair, each pair in its own type, in which bools and small integers may overflow.
    kind = np.result_type(*arrays)
    arrays = tuple(array.astype(kind, copy=False) for array in arrays)
    return np.asarray(np.einsum(equation, *arrays, optimize=len(arrays) > 1), order="C")


def _einsum_vjp(dy: Array, operands: Arrays, _result: Any, equation: str) -> list[Array]:
    """Return the gradients of all operands, in order.

    The gradient of an operand is a sum of products, too: of ``dy`` and the conjugates of the other operands, with the
    letters of this operand in the result. For "ij,jk->ik" with operands a and b, the gradient of a is "ik,jk->ij" of
    dy and b. Letters that only this operand has are added by broadcasting. All arrays are one rank's blocks.

    Args:
        dy: the gradient of the result.
        operands: the operands.
        _result: the result; not used.
        equation: the equation with ``->``.
    """
    terms, out = _split_equation(equation)
    gradients = []
    for i, (term, operand) in enumerate(zip(terms, operands)):
        other_operands = [conj(x) for k, x in enumerate(operands) if k != i]
        # The terms of the gradient's operands: dy and the other operands.
        gradient_terms = [out, *[other_term for k, other_term in enumerate(terms) if k != i]]
        present = "".join(gradient_terms)
        letters = "".join(letter for letter in term.replace("...", "") if letter in present)
        dots = "..." if "..." in present and "..." in term else ""
        slope = _contract(f"{','.join(gradient_terms)}->{dots}{letters}", dy, *other_operands)
        gradients.append(_expand_to(slope, f"{dots}{letters}", term, operand.shape))
    return gradients


def _name_dims(term: str, ndim: int) -> list[str]:
    """Return the names of the ``ndim`` dims of a term: its letters, and .0, .1, ... for ``...``.

    The dims of ``...`` are numbered from the last one, so that dims which broadcast have one name.

    >>> _name_dims("...ij", 4)
    ['.1', '.0', 'i', 'j']
    """
    dot_count = ndim - len(term.replace("...", ""))
    names: list[str] = []
    for letter in term.replace("...", "."):
        names += [f".{k}" for k in range(dot_count - 1, -1, -1)] if letter == "." else [letter]
    return names


def _expand_to(array: Array, have: str, want: str, shape: Shape) -> Array:
    """Return an array with the dims of another term and the given shape.

    Each letter of a term names a dim.

    - Dims are reordered as in ``want``.
    - Dims of ``have`` that ``want`` lacks are summed.
    - Letters of ``want`` that ``have`` lacks are new dims, along which the array is repeated.
    - Dims of size 1 in ``shape`` that are larger in ``array`` are summed to one element. This reverses the broadcast of
      ``...``.

    For example, from "ji" to "ik" with the shape (3, 4), an array (2, 3) is summed over j and repeated 4 times along k.
    The result may be a read-only view.

    Args:
        array: has the dims of the term ``have``.
        have: the term of the array, such as "ji".
        want: the term of the result, such as "ijk".
        shape: the shape of the result.
    """
    names = _name_dims(have, array.ndim)
    wanted_names = _name_dims(want, len(shape))
    summed_dims = tuple(d for d, name in enumerate(names) if name not in wanted_names)
    array = array.sum(axis=summed_dims) if summed_dims else array
    names = [name for name in names if name in wanted_names]
    array = array.transpose([names.index(name) for name in wanted_names if name in names])
    array = array[tuple(slice(None) if name in names else None for name in wanted_names)]
    for d, n in enumerate(shape):
        if n == 1 and array.shape[d] != 1:
            array = array.sum(axis=d, keepdims=True)
    return np.broadcast_to(array, shape)


_einsum_op = Op(
    "einsum",
    _einsum_rule,
    lambda *arrays, equation: _contract(equation.replace(" ", ""), *arrays),
    _einsum_vjp,
)


@operator(_einsum_op)
def einsum(equation: str | Operand, *tensors: Operand | Sequence[object]) -> Tensor:
    """Compute a sum of products in Einstein's notation, such as ``"bij,bjk->bik"``.

    Args:
        equation: one letter per dim of each operand, ``->``, and the letters of the result; ``...`` stands for dims
            that broadcast. Without ``->`` the result has the letters that occur once, in alphabetical order. A letter
            twice in an operand takes the operand's diagonal.
        *tensors: the operands; dims of size 1 broadcast against other dims of the same letter. The other form of the
            call has no equation: ``einsum(a, [0, 1], b, [1, 2], [0, 2])`` has a list of labels after each operand, and
            optionally the result's list at the end. A label is an integer from 0 to 51, or ``...``.

    Returns:
        The result, in the type to which the operands are promoted. It is partial over the axes that split a summed
        letter.

    Raises:
        RuleError: If sizes differ, the result has a letter of no operand or one twice, the numbers of terms and
            operands differ, or a label is no letter (or no integer from 0 to 51).
        UsageTypeError: If no operand is a tensor, or an operand has no list of labels.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> m = Tensor.from_global([[3.0, 1.0], [2.0, 4.0]], Mesh((2,), ("dp",))("dp", None))
    >>> ops.einsum("ij,kj->ik", m, m).full().tolist()
    [[10.0, 10.0], [10.0, 20.0]]
    >>> ops.einsum(m, [0, 1], m, [1, 2]).full().tolist() == (m @ m).full().tolist(), ops.einsum("ii", m).item()
    (True, 7.0)
    """
    if not isinstance(equation, str):
        equation, tensors = _write_equation((equation, *tensors))
    operands = convert_to_one_type("einsum", *cast("tuple[Operand, ...]", tensors))
    shapes = tuple(x.shape for x in operands)
    written, dropped, repeated = _complete_equation(equation, shapes)
    if repeated:
        equation, *operands = _take_diagonals(written, operands)
        return einsum(equation, *operands)
    for k, dims in dropped:
        operands[k] = reshape(operands[k], [n for d, n in enumerate(shapes[k]) if d not in dims])
    return _einsum_op(*operands, equation=written)


def _write_equation(args: Sequence[Any]) -> tuple[str, tuple[Operand, ...]]:
    """Return an equation and its operands, from operands each followed by a list of labels.

    ``(x, [0, 1], y, [1, 2], [0, 2])`` gives ``("AB,BC->AC", (x, y))``. Labels 0 to 51 become the letters A to Z, then a
    to z; Ellipsis becomes ``...``. Without a list for the result at the end, the equation has no ``->``.

    Args:
        args: the arguments of :func:`einsum` in this form.

    Raises:
        UsageTypeError: If a list of labels is missing, or is no list or tuple.
        RuleError: If a label is neither Ellipsis nor an integer from 0 to 51. A bool is refused, too.
    """
    has_result = len(args) % 2 == 1
    labels = [*args[1::2], *(args[-1:] if has_result else ())]
    if len(args) < 2 or not all(isinstance(label_list, (list, tuple)) for label_list in labels):
        raise UsageTypeError(
            "einsum takes an equation such as 'ij,jk->ik' and operands, or operands each followed by a list of labels, such as "
            "einsum(x, [0, 1], y, [1, 2])"
        )
    terms = ["".join(map(_find_letter, label_list)) for label_list in labels]
    result = "->" + terms.pop() if has_result else ""
    pairs = args[:-1] if has_result else args  # an operand, its labels, the next operand, ...
    return ",".join(terms) + result, tuple(pairs[::2])


def _find_letter(label: Any) -> str:
    """Return the letter that stands for a label in an equation.

    The labels 0, 25, 26 and 51 give "A", "Z", "a" and "z"; Ellipsis gives "...".
    """
    if label is Ellipsis:
        return "..."
    is_integer = isinstance(label, (int, np.integer)) and not isinstance(label, bool)
    if not is_integer or not 0 <= label < len(LETTERS):
        raise RuleError(
            f"einsum: labels are whole numbers from 0 to {len(LETTERS) - 1}, or ..., but got {label!r}"
        )
    return LETTERS[label]


@lru_cache(maxsize=1024)
def _complete_equation(
    equation: str, shapes: tuple[Shape, ...]
) -> tuple[str, list[tuple[int, list[int]]], bool]:
    """Return an equation with its result, and without letters for dims that broadcast.

    ``"ij,jk"`` of shapes (2, 1) and (3, 4) gives ``"i,jk->ik"``: dim 1 of the first operand has size 1 and
    broadcasts, so its letter is removed from this term. If ``->`` is missing, the result has ``...`` if a term has
    it, and then the letters that occur once, sorted. Unequal sizes and terms with a wrong number of letters are not
    reported here; the operator's rule does so later. Results are cached; the caller must not change the list.

    Args:
        equation: the equation of the user, with or without ``->``; blanks are dropped.
        shapes: the shapes of the operands.

    Returns:
        Three values:

        * the equation;
        * ``(number of the operand, list of its dims)`` for each operand with dims of size 1 whose letter has another
          size elsewhere; the caller removes these dims. Other operands have no entry.
        * True if a letter occurs twice in a term. The equation then keeps all letters, and the list is empty.

    Raises:
        RuleError: If there is not one term per operand, or ``->`` occurs several times.
    """
    compact = equation.replace(" ", "")
    if "->" not in compact:
        single_letters = sorted(c for c in set(compact) if c.isalpha() and compact.count(c) == 1)
        compact = f"{compact}->{'...' * ('...' in compact)}{''.join(single_letters)}"
    terms, out = _split_equation(compact)
    if len(terms) != len(shapes):
        raise RuleError(
            f"einsum: {equation!r} has {many(len(terms), 'term')} for {many(len(shapes), 'operand')}"
        )
    letters = [term.replace("...", "") for term in terms]
    if any(len(set(term_letters)) < len(term_letters) for term_letters in letters):
        return compact, [], True
    # The size of each letter: the only size of its dims that is not 1, if there is one.
    sizes: dict[str, int] = {}
    dims = [_find_dims(term, len(shape)) for term, shape in zip(terms, shapes)]
    for dim_by_letter, shape in zip(dims, shapes):
        for letter, d in dim_by_letter.items():
            if sizes.get(letter, 1) == 1:
                sizes[letter] = shape[d]
    dropped, reduced_terms = [], list(terms)
    for k, (dim_by_letter, shape) in enumerate(zip(dims, shapes)):
        broadcast_dims = {c: d for c, d in dim_by_letter.items() if shape[d] == 1 and sizes[c] != 1}
        if broadcast_dims:
            reduced_terms[k] = "".join(c for c in terms[k] if c not in broadcast_dims)
            dropped.append((k, sorted(broadcast_dims.values())))
    return f"{','.join(reduced_terms)}->{out}", dropped, False


def _find_dims(term: str, ndim: int) -> dict[str, int]:
    """Return the dim of each letter of a term, such as ``{"i": 0, "j": 3}`` for ``"i...j"`` and 4 dims.

    The dict is empty if the number of dims does not fit; the rule reports that later. ``...`` stands for any number of
    dims, also for none.
    """
    before, dots, after = term.partition("...")
    if len(before) + len(after) > ndim or (not dots and len(before) < ndim):
        return {}
    return {**{c: d for d, c in enumerate(before)}, **{c: ndim - len(after) + d for d, c in enumerate(after)}}


def _take_diagonals(equation: str, operands: Sequence[Tensor]) -> tuple[Any, ...]:
    """Return equation and operands with diagonals instead of letters that are repeated in a term.

    Returns:
        The equation, then the operands in order.

    Raises:
        RuleError: If two dims of one letter in a term differ in size.
    """
    terms, out = _split_equation(equation)
    pairs = [_replace_by_diagonals(list(term.replace("...", ".")), x) for term, x in zip(terms, operands)]
    left = ",".join("".join(term).replace(".", "...") for term, _ in pairs)
    return f"{left}->{out}", *[x for _, x in pairs]


def _replace_by_diagonals(term: list[str], x: Tensor) -> tuple[list[str], Tensor]:
    """Return term and tensor without repeated letters: their diagonals become last dims.

    The first two dims of a repeated letter are replaced by their diagonal, until no letter is repeated. For example,
    ``["i", "i", "j"]`` and shape (3, 3, 5) give ``["j", "i"]`` and shape (5, 3). ``term`` and ``x`` are not changed.

    Args:
        term: the letters of the tensor's dims; one "." stands for all dims of ``...``, also for none.
        x: the tensor.

    Raises:
        RuleError: If two dims of one letter differ in size.
    """
    for letter in term:
        if letter != "." and term.count(letter) > 1:
            positions = [k for k, c in enumerate(term) if c == letter][:2]
            # The "." may stand for any number of dims, so letters after it are counted from the last dim.
            first, second = ((k - len(term) if "." in term[:k] else k) % x.ndim for k in positions)
            if x.shape[first] != x.shape[second]:
                raise RuleError(
                    f"einsum: {letter!r} is {x.shape[first]} and {x.shape[second]} in shape {x.shape}"
                )
            others = [d for d in range(x.ndim) if d not in (first, second)]
            matrices = transpose(x, [*others, first, second])
            other_letters = [c for k, c in enumerate(term) if k not in positions]
            return _replace_by_diagonals([*other_letters, letter], _take_diagonal(matrices))
    return term, x


def _take_diagonal(x: Tensor) -> Tensor:
    """Return the diagonals of square matrices ``x``, ``[..., n, n]``, as ``[..., n]``.

    The owners of each row look up its diagonal element, so the result is partial over axes that split the columns.
    """
    n = x.shape[-1]
    if not n:
        return reshape(x, x.shape[:-1])
    ids = np.arange(n).reshape(*[1] * (x.ndim - 2), n, 1)
    layout = Layout(x.layout.mesh, [*[None] * (x.ndim - 2), x.layout.dims[-2], None])
    diagonal = take_along_axis(x, Tensor.from_global(ids, layout, x.world), -1)
    return reshape(diagonal, diagonal.shape[:-1])


@operator()
def tensordot(a: Operand, b: Operand, axes: int | tuple[Sequence[int], Sequence[int]] = 2) -> Tensor:
    """Compute a product that is summed over several dimensions.

    Args:
        a: the left tensor or array.
        b: the right tensor or array; one of both is a tensor.
        axes: the dims to sum over. An int n: the last n dims of ``a`` and the first n of ``b``. A pair: the dims of
            ``a``, and the dims of ``b`` in matching order; each of the pair is a list or one dim, and negative ones
            count from the end. Shapes (2, 3, 4) and (4, 3) with the pair ([1, 2], [1, 0]), for example, give shape
            (2,).

    Returns:
        The other dimensions of ``a``, then those of ``b``; partial over the axes that split a summed dimension.

    Raises:
        RuleError: If numbers or sizes of the dims differ, or a dim is out of range.

    >>> from spmdsim import Mesh, Tensor, ops
    >>> m = Tensor.from_global([[3.0, 1.0], [2.0, 4.0]], Mesh((2,), ("dp",))("dp", None))
    >>> ops.tensordot(m, m, 1).full().tolist()
    [[11.0, 7.0], [14.0, 18.0]]
    """
    a, b = convert_to_one_type("tensordot", a, b)
    if isinstance(axes, int):
        if not 0 <= axes <= min(a.ndim, b.ndim):
            raise RuleError(f"tensordot over {axes} dims of tensors of {a.ndim} and {many(b.ndim, 'dim')}")
        axes = tuple(range(a.ndim - axes, a.ndim)), tuple(range(axes))
    sides = [[side] if isinstance(side, int) else list(side) for side in axes]
    left, right = ([normalise_dim(d, x.ndim) for d in side] for x, side in zip((a, b), sides))
    if len(left) != len(right) or [a.shape[d] for d in left] != [b.shape[d] for d in right]:
        raise RuleError(f"tensordot: dims {left} of {a.shape} and {right} of {b.shape} do not fit")
    a_letters, b_letters = ascii_letters[: a.ndim], list(ascii_letters[a.ndim : a.ndim + b.ndim])
    for a_dim, b_dim in zip(left, right):
        b_letters[b_dim] = a_letters[a_dim]
    letters = (*a_letters, *b_letters)
    result_letters = [letter for letter in letters if (letter in a_letters) != (letter in b_letters)]
    return einsum(f"{a_letters},{''.join(b_letters)}->{''.join(result_letters)}", a, b)
