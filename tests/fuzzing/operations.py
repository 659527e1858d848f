"""Operations of random programs: each entry picks operands and returns a call and a reference in plain arrays.

A reference takes the arrays' library first (see :mod:`fuzzing.backends`) and then one array per operand. A float
result is ``ring`` if it is exact on small multiples of a power of two (sums, products). It is ``moving`` if its elements
are elements of its operands. ``slack`` returns the size of the terms of a sum, which may be larger than the sum.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import spmdsim.ops as ops


@dataclass(frozen=True)
class Operation:
    """A step of a program."""

    text: str
    operands: tuple[int, ...]
    call: Callable[..., Any]
    reference: Callable[..., Any]
    ring: bool = False
    moving: bool = False
    slack: Callable[..., Any] | None = None
    #: Whether gradients flow through the operation.
    smooth: bool = True
    #: The operator, if the program may choose its strategy, and the parameters of the operator.
    op: Any = None
    params: dict[str, Any] | None = None


def unary(name: str, reference: Callable[..., Any], **facts: Any) -> Callable[[Any], Operation | None]:
    def make(program: Any) -> Operation | None:
        i = program.pick(wanted)
        if i is None:
            return None
        return Operation(name, (i,), getattr(ops, name), reference, **facts)

    wanted = facts.pop("wanted", "f")
    make.__name__ = name
    return make


def bounded(
    name: str, reference: Callable[..., Any], low: float, high: float
) -> Callable[[Any], Operation | None]:
    """Return a function that makes a unary operation on an operand between two bounds.

    The function returns None if no value fits.
    """

    def make(program: Any) -> Operation | None:
        i = program.pick("f", lambda v: v.size == 0 or (v.min() >= low and v.max() <= high))
        return None if i is None else Operation(name, (i,), getattr(ops, name), reference)

    make.__name__ = name
    return make


def binary(
    name: str, reference: Callable[..., Any], wanted: str = "f", **facts: Any
) -> Callable[[Any], Operation | None]:
    def make(program: Any) -> Operation | None:
        pair = program.broadcastable(wanted)
        if pair is None or (name in ("maximum", "minimum") and program.have_equal_elements(*pair)):
            return None
        return Operation(
            name, pair, getattr(ops, name), reference, op=getattr(ops, name).op, params={}, **facts
        )

    make.__name__ = name
    return make


def divide(program: Any) -> Operation | None:
    pair = program.broadcastable("f", second=lambda v: np.abs(v).min(initial=9) > 0.2)
    return pair and Operation("divide", pair, ops.divide, lambda p, a, b: a / b)


def power(program: Any) -> Operation | None:
    pair = program.broadcastable("f", first=lambda v: v.min(initial=9) > 0.2 and v.max(initial=0) < 4)
    return pair and Operation("power", pair, ops.power, lambda p, a, b: a**b)


def scalar_arithmetic(program: Any) -> Operation | None:
    i = program.pick("f")
    if i is None:
        return None
    number = program.rng.choice([-2, -1, 0.5, 2, 3, 0.25])
    kind = program.rng.choice(["x + n", "n - x", "x * n", "x / n", "-x"])
    table = {
        "x + n": lambda x: x + number,
        "n - x": lambda x: number - x,
        "x * n": lambda x: x * number,
        "x / n": lambda x: x / number,
        "-x": lambda x: -x,
    }
    exact = kind != "x / n" or number != 3
    return Operation(
        kind.replace("n", str(number)), (i,), table[kind], lambda p, x: table[kind](x), ring=exact
    )


def integer_arithmetic(program: Any) -> Operation | None:
    i = program.pick("i", lambda v: np.abs(v).max(initial=0) < 40)
    if i is None:
        return None
    number = program.rng.choice([1, 2, 3] if program.dtype(i).kind == "u" else [-2, 1, 2, 3])
    kind = program.rng.choice(["x + n", "x * n", "x // n", "x % n"])
    table = {
        "x + n": lambda x: x + number,
        "x * n": lambda x: x * number,
        "x // n": lambda x: x // number,
        "x % n": lambda x: x % number,
    }
    return Operation(
        kind.replace("n", str(number)),
        (i,),
        table[kind],
        lambda p, x: table[kind](x),
        ring=True,
        smooth=False,
    )


def _dims(rng: random.Random, ndim: int) -> tuple[int, ...]:
    """Return some of the dims in ascending order."""

    return tuple(sorted(rng.sample(range(ndim), rng.randint(1, ndim)))) if ndim else ()


def reduction(name: str, ring: bool) -> Callable[[Any], Operation | None]:
    def make(program: Any) -> Operation | None:
        """Return a reduction over random dims, or None if no value fits."""

        i = program.pick("fic" if name == "sum" else "fi", lambda v: v.size > 0 or name == "sum")
        if i is None:
            return None
        dims, keep = _dims(program.rng, program.ndim(i)), program.rng.random() < 0.4

        def reference(p, x):
            return getattr(p, name)(x, dims, keep)

        return Operation(
            f"{name}(dims={dims}, keepdims={keep})", (i,), lambda x: getattr(ops, name)(x, dims, keep), reference,
            ring=ring, moving=not ring, slack=(lambda x: np.sum(np.abs(x), axis=dims, keepdims=keep)) if ring else None,
            op=getattr(ops, name).op if ring and program.rng.random() < 0.5 else None, params={"dims": dims, "keepdims": keep},
        )  # fmt: skip

    make.__name__ = name
    return make


def prod(program: Any) -> Operation | None:
    i = program.pick("f", lambda v: v.ndim > 0 and v.size < 40 and np.abs(v).max(initial=0) < 3)
    if i is None:
        return None
    dim = program.rng.randrange(program.ndim(i))
    return Operation(f"prod({dim})", (i,), lambda x: ops.prod(x, dim), lambda p, x: p.prod(x, dim))


def mean(program: Any) -> Operation | None:
    i = program.pick("f", lambda v: v.size > 0)
    if i is None:
        return None
    dims, keep = _dims(program.rng, program.ndim(i)), program.rng.random() < 0.4
    count = math.prod(program.shape(i)[d] for d in dims)
    return Operation(
        f"mean(dims={dims}, keepdims={keep})", (i,), lambda x: ops.mean(x, dims, keep),
        lambda p, x: p.sum(x, dims, keep) / count,
        slack=lambda x: np.mean(np.abs(x), axis=dims, keepdims=keep) if dims else np.abs(x),
    )  # fmt: skip


def var(program: Any) -> Operation | None:
    i = program.pick("f", lambda v: v.ndim > 0 and v.size > 0)
    if i is None:
        return None
    dims = _dims(program.rng, program.ndim(i))
    count = math.prod(program.shape(i)[d] for d in dims)
    correction = program.rng.choice([0, 1]) if count > 1 else 0

    def reference(p, x):
        off = x - p.sum(x, dims, True) / count
        return p.sum(off * off, dims) / (count - correction)

    return Operation(
        f"var(dims={dims}, correction={correction})", (i,), lambda x: ops.var(x, dims, correction=correction), reference,
        slack=lambda x: np.sum(x * x, axis=dims) / (count - correction),
    )  # fmt: skip


def arg_extreme(name: str) -> Callable[[Any], Operation | None]:
    def make(program: Any) -> Operation | None:
        i = program.pick("fi", lambda v: v.ndim > 0 and v.size > 0, exact=True)
        if i is None:
            return None
        dim = program.rng.choice([None, *range(program.ndim(i))])
        return Operation(
            f"{name}({dim})", (i,), lambda x: getattr(ops, name)(x, dim),
            lambda p, x: np.asarray(getattr(np, name)(x, axis=dim), np.int64), smooth=False, ring=True,
        )  # fmt: skip

    make.__name__ = name
    return make


def step_function(name: str) -> Callable[[Any], Operation | None]:
    """Return a function that makes a unary step function (floor, ceil, rint, sign) of exact values.

    The function returns None if no value is exact.
    """

    def make(program: Any) -> Operation | None:
        i = program.pick("f", exact=True)
        return (
            i
            if i is None
            else Operation(
                name, (i,), getattr(ops, name), lambda p, x: getattr(np, name)(x), smooth=False, ring=True
            )
        )

    make.__name__ = name
    return make


def comparison(name: str) -> Callable[[Any], Operation | None]:
    def make(program: Any) -> Operation | None:
        pair = program.broadcastable("fi", exact=True)
        return pair and Operation(
            name, pair, getattr(ops, name), lambda p, a, b: getattr(np, name)(a, b), smooth=False, ring=True
        )

    make.__name__ = name
    return make


def quantifier(name: str) -> Callable[[Any], Operation | None]:
    def make(program: Any) -> Operation | None:
        i = program.pick("b")
        if i is None:
            return None
        dims = _dims(program.rng, program.ndim(i))
        return Operation(
            f"{name}({dims})", (i,), lambda x: getattr(ops, name)(x, dims),
            lambda p, x: np.asarray(getattr(np, name)(x, axis=dims)), smooth=False, ring=True,
        )  # fmt: skip

    make.__name__ = name
    return make


def cast(program: Any) -> Operation | None:
    to = np.dtype(program.rng.choice(["f8", "f4", "i8", "i4", "bool"]))
    i = program.pick("fib", lambda v: np.abs(v).max(initial=0) < 1e4, exact=to.kind in "ib")
    if i is None:
        return None
    if to.kind == "f":
        return Operation(f"astype({to})", (i,), lambda x: x.astype(to), lambda p, x: x * 1.0, moving=True)
    return Operation(
        f"astype({to})", (i,), lambda x: x.astype(to), lambda p, x: x.astype(to), smooth=False, ring=True
    )


def where(program: Any) -> Operation | None:
    mask = program.pick("b")
    if mask is None:
        return None
    i = program.pick("f", lambda v: v.shape == program.shape(mask), make=program.shape(mask))
    j = program.pick("f", lambda v: v.shape == program.shape(mask), make=program.shape(mask))
    if i is None or j is None:
        return None
    return Operation("where", (mask, i, j), ops.where, lambda p, m, a, b: p.where(m, a, b), moving=True)


def matmul(program: Any) -> Operation | None:
    wanted = program.rng.choice("ffffic")
    i = program.pick(wanted, lambda v: v.ndim > 0 and np.abs(v).max(initial=0) < 30)
    if i is None:
        return None
    k = program.shape(i)[-1]
    batch = program.shape(i)[:-2] if program.rng.random() < 0.3 else ()
    kind = program.dtype(i).kind
    other = (*batch, k, program.size()) if program.rng.random() < 0.8 else (k,)
    j = program.pick(
        kind, lambda v: v.shape == other and np.abs(v).max(initial=0) < 30, make=other, dtype=program.dtype(i)
    )
    if j is None:
        return None
    return Operation(
        "matmul", (i, j), ops.matmul, lambda p, a, b: a @ b, ring=True,
        slack=lambda a, b: np.abs(a) @ np.abs(b), op=ops.matmul.op, params={"transpose_a": False, "transpose_b": False},
    )  # fmt: skip


EQUATIONS = (
    "ij,jk->ik",
    "ij,jk->ki",
    "ij,ij->i",
    "ij,ij->",
    "i,j->ij",
    "ijk,kl->lij",
    "ij,kj->ik",
    "bij,bjk->bik",
)


def einsum(program: Any) -> Operation | None:
    equation = program.rng.choice(EQUATIONS)
    first, second = equation.split("->")[0].split(",")
    i = program.pick("f", lambda v: v.ndim == len(first) and np.abs(v).max(initial=0) < 20)
    if i is None:
        return None
    sizes = dict(zip(first, program.shape(i)))
    shape = (
        tuple(sizes.get(letter) or program.size() for letter in second) if 0 not in sizes.values() else None
    )
    if shape is None:
        return None
    j = program.pick("f", lambda v: v.shape == shape and np.abs(v).max(initial=0) < 20, make=shape)
    return j and Operation(
        f"einsum({equation})", (i, j), lambda a, b: ops.einsum.op(a, b, equation=equation),
        lambda p, a, b: p.einsum(equation, a, b), ring=True,
        slack=lambda a, b: np.einsum(equation, np.abs(a), np.abs(b)), op=ops.einsum.op, params={"equation": equation},
    )  # fmt: skip


def linear(program: Any) -> Operation | None:
    i = program.pick("f", lambda v: v.ndim > 0 and np.abs(v).max(initial=0) < 20)
    if i is None:
        return None
    n, m = program.shape(i)[-1], program.size()
    w, b = program.leaf((n, m), program.dtype(i)), program.leaf((m,), program.dtype(i))
    return Operation(
        "linear", (i, w, b), ops.linear, lambda p, x, w, b: x @ w + b, ring=True,
        slack=lambda x, w, b: np.abs(x) @ np.abs(w) + np.abs(b),
    )  # fmt: skip


def softmax(program: Any) -> Operation | None:
    i = program.pick("f", lambda v: v.ndim > 0 and v.size > 0)
    if i is None:
        return None
    dim, log = program.rng.randrange(program.ndim(i)), program.rng.random() < 0.4

    def reference(p, x):
        e = p.exp(x - p.max(x, (dim,), True))
        y = e / p.sum(e, (dim,), True)
        return p.log(y) if log else y

    name = "log_softmax" if log else "softmax"
    slack = (lambda x: np.abs(x) + np.abs(x).max(initial=1)) if log else None
    return Operation(
        f"{name}({dim})", (i,), lambda x: getattr(ops, name)(x, dim), reference, slack=slack,
        op=getattr(ops, name).op if program.rng.random() < 0.3 else None, params={"dim": dim},
    )  # fmt: skip


def _largest_normalised(x: np.ndarray, dims: Any) -> np.ndarray:
    return np.abs(x).max(axis=dims, keepdims=True) / np.sqrt(x.var(axis=dims, keepdims=True) + 1e-5)


def layer_norm(program: Any) -> Operation | None:
    i = program.pick("f", lambda v: v.ndim > 0 and v.size > 0)
    if i is None:
        return None
    n = program.shape(i)[-1]
    scale, shift = program.leaf((n,), program.dtype(i)), program.leaf((n,), program.dtype(i))

    def reference(p, x, a, b):
        off = x - p.sum(x, (-1,), True) / n
        return off / p.sqrt(p.sum(off * off, (-1,), True) / n + 1e-5) * a + b

    return Operation(
        "layer_norm", (i, scale, shift), ops.layer_norm, reference,
        slack=lambda x, a, b: (_largest_normalised(x, -1) + 1) ** 3 * np.abs(a) + np.abs(b) + 0 * x,
    )  # fmt: skip


def rms_norm(program: Any) -> Operation | None:
    i = program.pick("f", lambda v: v.ndim > 0 and v.size > 0)
    if i is None:
        return None
    n = program.shape(i)[-1]
    scale = program.leaf((n,), program.dtype(i))
    return Operation(
        "rms_norm", (i, scale), ops.rms_norm,
        lambda p, x, a: x / p.sqrt(p.sum(x * x, (-1,), True) / n + 1e-6) * a,
    )  # fmt: skip


def l2_normalize(program: Any) -> Operation | None:
    i = program.pick("f", lambda v: v.ndim > 0 and v.size > 0 and (v * v).sum() > 0.1)
    if i is None:
        return None
    dims = tuple(range(program.ndim(i)))
    return Operation(
        "l2_normalize",
        (i,),
        lambda x: ops.l2_normalize(x, dims),
        lambda p, x: x / p.sqrt(p.sum(x * x, dims, True)),
    )


def cross_entropy(program: Any) -> Operation | None:
    i = program.pick("f", lambda v: v.ndim == 2 and v.size > 0)
    if i is None:
        return None
    rows, classes = program.shape(i)
    labels = program.leaf((rows,), np.dtype("i8"), high=classes)

    def reference(p, x, y):
        off = x - p.max(x, (1,), True)
        return p.log(p.sum(p.exp(off), (1,))) - p.pick(off, y)

    return Operation(
        "cross_entropy", (i, labels), lambda x, y: ops.cross_entropy(x, y, "none"), reference,
        slack=lambda x, y: 2 * np.abs(x).max(axis=1) + 1,
    )  # fmt: skip


def lookup(program: Any) -> Operation | None:
    i = program.pick("fib", lambda v: v.ndim > 0 and v.shape[0] > 0)
    if i is None:
        return None
    dim = program.rng.randrange(program.ndim(i))
    n = program.shape(i)[dim]
    if not n:
        return None
    smooth = program.dtype(i).kind == "f"
    kind = program.rng.choice(["gather", "embedding", "owned rows", "pick", "window of ids"])
    if kind in ("embedding", "owned rows") and program.ndim(i) == 2 and program.shape(i)[0]:
        ids = program.leaf(program.random_shape(2), np.dtype("i8"), high=program.shape(i)[0])
        same_mesh = program.mesh_of(i) == program.mesh_of(ids)
        if (
            kind == "owned rows"
            and same_mesh
            and program.is_known_complete(i)
            and program.is_known_complete(ids)
        ):
            return Operation(
                "embedding(rows='owned')", (ids, i), lambda k, x: ops.embedding(k, x, rows="owned"),
                lambda p, k, x: p.take(x, k, 0), moving=True, smooth=smooth,
            )  # fmt: skip
        return Operation(
            "embedding", (ids, i), ops.embedding, lambda p, k, x: p.take(x, k, 0), moving=True, smooth=smooth,
            op=ops.embedding.op, params={},
        )  # fmt: skip
    if kind == "pick":
        last = program.shape(i)[-1]
        if not last:
            return None
        ids = program.leaf(program.shape(i)[:-1], np.dtype("i8"), high=last)
        return Operation("pick", (i, ids), ops.pick, lambda p, x, k: p.pick(x, k), moving=True, smooth=smooth)
    ids = program.leaf(program.random_shape(2), np.dtype("i8"), high=n)
    return Operation(
        f"gather({dim})", (i, ids), lambda x, k: ops.gather(x, k, dim), lambda p, x, k: p.take(x, k, dim),
        moving=True, smooth=smooth, op=ops.gather.op, params={"dim": dim},
    )  # fmt: skip


def padded_embedding(program: Any) -> Operation | None:
    i = program.pick("f", lambda v: v.ndim == 2 and v.shape[0] > 1)
    if i is None:
        return None
    rows = program.shape(i)[0]
    ids = program.leaf(program.random_shape(2), np.dtype("i8"), high=rows)
    padding = program.rng.randrange(rows)

    def reference(p, k, x):
        y = p.take(x, k, 0)
        return p.where((k == padding)[..., None], 0 * y, y)

    return Operation(
        f"embedding(padding={padding})",
        (ids, i),
        lambda k, x: ops.embedding(k, x, padding=padding),
        reference,
        moving=True,
    )


def one_hot(program: Any) -> Operation | None:
    depth = program.size() or 1
    ids = program.leaf(program.random_shape(2), np.dtype("i8"), high=depth)
    dtype = program.float
    return Operation(
        f"one_hot({depth})", (ids,), lambda k: ops.one_hot(k, depth, dtype),
        lambda p, k: np.eye(depth)[np.asarray(k)], moving=True, smooth=False,
    )  # fmt: skip


def reshape(program: Any) -> Operation | None:
    i = program.pick("fibc")
    if i is None:
        return None
    shape = program.factored(math.prod(program.shape(i)))
    layout = program.layout(len(shape)) if program.rng.random() < 0.4 else None
    if layout is not None and layout.mesh != program.mesh_of(i) and not program.is_known_complete(i):
        layout = None
    text = f"reshape({shape}{'' if layout is None else f', {layout}'})"
    return Operation(
        text, (i,), lambda x: x.reshape(shape, layout), lambda p, x: x.reshape(shape), moving=True
    )


def transpose(program: Any) -> Operation | None:
    i = program.pick("fibc")
    if i is None:
        return None
    perm = tuple(program.rng.sample(range(program.ndim(i)), program.ndim(i)))
    return Operation(
        f"transpose({perm})",
        (i,),
        lambda x: x.transpose(perm),
        lambda p, x: p.transpose(x, perm),
        moving=True,
    )


def broadcast_to(program: Any) -> Operation | None:
    i = program.pick("fi", lambda v: v.ndim < 3 and v.size < 60)
    if i is None:
        return None
    shape = (program.size(), *[program.size() if n == 1 else n for n in program.shape(i)])
    return Operation(
        f"broadcast_to({shape})",
        (i,),
        lambda x: ops.broadcast_to(x, shape),
        lambda p, x: p.broadcast_to(x, shape),
        moving=True,
    )


def flip(program: Any) -> Operation | None:
    i = program.pick("fi", lambda v: v.ndim > 0)
    if i is None:
        return None
    dims = _dims(program.rng, program.ndim(i))
    return Operation(
        f"flip({dims})", (i,), lambda x: ops.flip(x, dims), lambda p, x: p.flip(x, dims), moving=True
    )


def concat(program: Any) -> Operation | None:
    i = program.pick("fi", lambda v: v.ndim > 0 and v.size < 200)
    if i is None:
        return None
    dim, shape = program.rng.randrange(program.ndim(i)), list(program.shape(i))
    shape[dim] = program.size()
    j = program.pick(
        program.dtype(i).kind, lambda v: v.shape == tuple(shape), make=tuple(shape), dtype=program.dtype(i)
    )
    return j and Operation(
        f"concat({dim})",
        (i, j),
        lambda a, b: ops.concat([a, b], dim),
        lambda p, a, b: p.concat([a, b], dim),
        moving=True,
    )


def pad(program: Any) -> Operation | None:
    i = program.pick("fi", lambda v: v.ndim > 0 and v.size < 200)
    if i is None:
        return None
    widths = [(program.rng.randrange(3), program.rng.randrange(3)) for _ in program.shape(i)]
    value = program.rng.choice([0, 0, 1, -2])
    if program.dtype(i).kind == "u":
        value = abs(value)
    before, after = zip(*widths)
    return Operation(
        f"pad({before}, {after}, {value})", (i,), lambda x: ops.pad(x, before, after, value),
        lambda p, x: p.pad(x, widths, value), moving=True,
    )  # fmt: skip


def _bounds(rng: random.Random, shape: tuple[int, ...]) -> list[tuple[int, int]]:
    return [tuple(sorted((rng.randint(0, n), rng.randint(0, n)))) for n in shape]  # type: ignore[misc]


def getitem(program: Any) -> Operation | None:
    i = program.pick("fibc", lambda v: v.ndim > 0)
    if i is None:
        return None
    index: list[Any] = []
    for n in program.shape(i)[: program.rng.randint(1, program.ndim(i))]:
        start, stop = sorted((program.rng.randint(0, n), program.rng.randint(0, n)))
        draw = program.rng.random()
        if draw < 0.3 and n:
            index.append(program.rng.randrange(-n, n))
        elif draw < 0.4:
            index += [None, slice(start, stop)]
        else:
            index.append(slice(start, stop, program.rng.choice([None, 1, 2, 3])))
    key = tuple(index)
    return Operation(f"x[{key}]", (i,), lambda x: x[key], lambda p, x: x[key], moving=True)


def window(program: Any) -> Operation | None:
    i = program.pick("f", lambda v: v.ndim > 0)
    if i is None:
        return None
    bounds = _bounds(program.rng, program.shape(i))
    start, stop = zip(*bounds)
    key = tuple(slice(a, b) for a, b in bounds)
    if program.rng.random() < 0.5:
        return Operation(
            f"window({start}, {stop})",
            (i,),
            lambda x: ops.window(x, start, stop),
            lambda p, x: x[key],
            moving=True,
        )
    value = program.leaf(tuple(b - a for a, b in bounds), program.dtype(i))

    def reference(p, x, y):
        z = p.copy(x)
        z[key] = y
        return z

    return Operation(
        f"slice_update({start}, {stop})",
        (i, value),
        lambda x, y: ops.slice_update(x, y, start, stop),
        reference,
        moving=True,
    )


def move(program: Any) -> Operation | None:
    i = program.pick("fibc")
    if i is None:
        return None
    layout = program.layout(program.ndim(i))
    return Operation(f"to({layout})", (i,), lambda x: x.to(layout), lambda p, x: p.copy(x), moving=True)


def detach(program: Any) -> Operation | None:
    i = program.pick("f")
    return i and Operation(
        "detach", (i,), lambda x: x.detach(), lambda p, x: p.copy(x), moving=True, smooth=False
    )


def magnitude(program: Any) -> Operation | None:
    i = program.pick("c", lambda v: np.abs(v).min(initial=9) > 0.1)
    return i and Operation("absolute", (i,), ops.absolute, lambda p, x: p.absolute(x))


def _gelu(p: Any, x: Any) -> Any:
    return 0.5 * x * (1 + p.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


OPERATIONS = [
    unary("negative", lambda p, x: -x, ring=True, wanted="fc"),
    unary("absolute", lambda p, x: p.absolute(x), ring=True),
    unary("square", lambda p, x: x * x, ring=True),
    unary("relu", lambda p, x: x * (x > 0), ring=True),
    unary("tanh", lambda p, x: p.tanh(x)),
    unary("sigmoid", lambda p, x: 1 / (1 + p.exp(-x))),
    unary("gelu", _gelu, slack=lambda x: np.abs(x)),
    unary("silu", lambda p, x: x / (1 + p.exp(-x)), slack=lambda x: np.abs(x)),
    unary("softplus", lambda p, x: p.log(1 + p.exp(x)), slack=lambda x: np.abs(x) + 1),
    unary("sin", lambda p, x: p.sin(x), slack=lambda x: np.abs(x) + 1),
    unary("cos", lambda p, x: p.cos(x), slack=lambda x: np.abs(x) + 1),
    unary("relu6", lambda p, x: p.where(x > 0, p.where(x < 6, x, 0 * x + 6), 0 * x), ring=True),
    unary(
        "elu", lambda p, x: p.where(x > 0, x, p.expm1(p.where(x > 0, 0 * x, x))), slack=lambda x: np.abs(x)
    ),
    unary("identity", lambda p, x: p.copy(x), moving=True),
    bounded("exp", lambda p, x: p.exp(x), -20, 4),
    bounded("expm1", lambda p, x: p.expm1(x), -20, 4),
    bounded("log", lambda p, x: p.log(x), 0.1, 1e9),
    bounded("log1p", lambda p, x: p.log1p(x), -0.5, 1e9),
    bounded("sqrt", lambda p, x: p.sqrt(x), 0.1, 1e9),
    bounded("rsqrt", lambda p, x: 1 / p.sqrt(x), 0.1, 1e9),
    bounded("reciprocal", lambda p, x: 1 / x, 0.1, 1e9),
    binary("add", lambda p, a, b: a + b, "fic", ring=True, slack=lambda a, b: np.abs(a) + np.abs(b)),
    binary("subtract", lambda p, a, b: a - b, "fic", ring=True, slack=lambda a, b: np.abs(a) + np.abs(b)),
    binary("multiply", lambda p, a, b: a * b, "fic", ring=True),
    binary("maximum", lambda p, a, b: p.maximum(a, b), ring=True),
    binary("minimum", lambda p, a, b: p.minimum(a, b), ring=True),
    binary(
        "squared_difference",
        lambda p, a, b: (a - b) * (a - b),
        ring=True,
        slack=lambda a, b: (np.abs(a) + np.abs(b)) ** 2,
    ),
    divide,
    power,
    scalar_arithmetic,
    integer_arithmetic,
    *[reduction(name, name == "sum") for name in ("sum", "sum", "max", "min")],
    mean,
    var,
    prod,
    *map(arg_extreme, ("argmax", "argmin")),
    *map(step_function, ("floor", "ceil", "rint", "sign")),
    *map(comparison, ("equal", "not_equal", "less", "greater", "less_equal", "greater_equal")),
    *map(quantifier, ("all", "any")),
    cast,
    cast,
    where,
    where,
    matmul,
    matmul,
    matmul,
    einsum,
    linear,
    softmax,
    layer_norm,
    rms_norm,
    l2_normalize,
    cross_entropy,
    lookup,
    lookup,
    padded_embedding,
    one_hot,
    reshape,
    reshape,
    transpose,
    broadcast_to,
    flip,
    concat,
    pad,
    getitem,
    getitem,
    window,
    move,
    move,
    move,
    detach,
    magnitude,
]
