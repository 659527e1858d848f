"""Built-in programs: networks of any size, as graphs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from spmdsim.auto_parallel.programs import rules
from spmdsim.auto_parallel.programs.graph import Graph, GraphBuilder
from spmdsim.auto_parallel.programs.transformer import bert, gpt, moe
from spmdsim.errors import InputError, unknown
from spmdsim.registry import Registry

__all__ = ["PROGRAMS", "bert", "build_program", "chain", "convolutions", "gpt", "mlp", "moe", "tutorial"]


def tutorial(batch: int = 32, *, configured: bool = True, training: bool = True) -> Graph:
    """The network of the operator-parallel tutorial: three products, two ReLUs, some of them configured."""
    build = GraphBuilder("tutorial", training=training)
    x = build.apply(rules.FLATTEN, build.input("x", (batch, 1, 28, 28)), name="flatten", kind="reshape")
    shards = {
        "matmul1": ((2, 4), (4, 1)),
        "relu1": ((4, 1),),
        "matmul2": ((1, 8), (8, 1)),
        "relu2": ((8, 1),),
    }
    sizes = [28 * 28, 512, 512, 10]
    for k, (rows, columns) in enumerate(itertools.pairwise(sizes), 1):
        weight = build.parameter(f"fc{k}_weight", (rows, columns))
        name = f"matmul{k}"
        shard = shards.get(name) if configured else None
        x = build.apply(rules.MATMUL, x, weight, name=name, kind="matmul", shard=shard)
        if k < 3:
            shard = shards.get(f"relu{k}") if configured else None
            x = build.apply(rules.POINTWISE, x, name=f"relu{k}", kind="relu", shard=shard)
    return build.graph(x)


def mlp(
    layers: int = 6,
    hidden: int = 256,
    batch: int = 32,
    *,
    sizes: Sequence[int] | None = None,
    bias: bool = True,
    activation: bool = True,
    training: bool = True,
) -> Graph:
    """A multilayer perceptron with a squared-error loss.

    Args:
        layers: number of products.
        hidden: width of every layer, input and output included.
        batch: rows of the input.
        sizes: the widths one by one, instead of ``hidden``.
        bias: add a bias after every product.
        activation: a ReLU between products.
        training: with gradients.
    """
    widths = list(sizes) if sizes else [hidden] * (layers + 1)
    build = GraphBuilder(
        f"mlp {'x'.join(map(str, widths)) if sizes else f'{layers} x {hidden}'}", training=training
    )
    x = build.input("x", (batch, widths[0]))
    for k, (rows, columns) in enumerate(itertools.pairwise(widths)):
        weight = build.parameter(f"w{k}", (rows, columns))
        x = build.apply(rules.MATMUL, x, weight, name=f"fc{k}", kind="matmul")
        if bias:
            x = build.apply(
                rules.BIAS, x, build.parameter(f"b{k}", (columns,)), name=f"bias{k}", kind="bias_add"
            )
        if activation and k < len(widths) - 2:
            x = build.apply(rules.POINTWISE, x, name=f"relu{k}", kind="relu")
    target = build.input("target", (batch, widths[-1]))
    loss = build.apply(rules.SQUARED_ERROR, x, target, name="loss", kind="squared_error")
    return build.graph(loss)


def chain(sizes: Sequence[int] = (512, 512, 512, 512), batch: int = 512, *, training: bool = False) -> Graph:
    """A chain of matrix products and nothing else."""
    build = GraphBuilder("chain", training=training)
    x = build.input("x", (batch, sizes[0]))
    for k, (rows, columns) in enumerate(itertools.pairwise(sizes)):
        x = build.apply(
            rules.MATMUL, x, build.parameter(f"w{k}", (rows, columns)), name=f"mm{k}", kind="matmul"
        )
    return build.graph(x)


def convolutions(
    layers: int = 4, channels: int = 64, batch: int = 16, image: int = 16, *, depthwise: bool = False
) -> Graph:
    """Convolutions with ReLUs and a squared-error loss; with ``depthwise``, one filter per channel."""
    build = GraphBuilder("convolutions")
    x = build.input("x", (batch, channels, image, image))
    for k in range(layers):
        if depthwise:
            weight = build.parameter(f"w{k}", (channels, 3, 3))
            x = build.apply(rules.DEPTHWISE, x, weight, name=f"conv{k}", kind="depthwise")
        else:
            weight = build.parameter(f"w{k}", (channels, channels, 3, 3))
            x = build.apply(rules.CONVOLUTION, x, weight, name=f"conv{k}", kind="convolution")
        if k < layers - 1:
            x = build.apply(rules.POINTWISE, x, name=f"relu{k}", kind="relu")
    target = build.input("target", (batch, channels, image, image))
    loss = build.apply(rules.ERROR_4D, x, target, name="loss", kind="squared_error")
    return build.graph(loss)


#: Built-in programs by name; all take keyword arguments.
PROGRAMS: Registry[Callable[..., Graph]] = Registry(
    "program",
    {
        "tutorial": tutorial,
        "mlp": mlp,
        "chain": chain,
        "convolutions": convolutions,
        "gpt": gpt,
        "bert": bert,
        "moe": moe,
    },
)


def build_program(name: str, **sizes: object) -> Graph:
    """A built-in program; sizes it does not know are refused.

    Raises:
        InputError: an unknown program or size.

    >>> print(build_program("mlp", layers=2, hidden=8))
    mlp 2 x 8: 6 operators, 4 parameters with 144 elements
    """
    from inspect import signature

    if name not in PROGRAMS:
        raise unknown(f"no built-in program is called {name!r}", name, PROGRAMS)
    make = PROGRAMS[name]
    sizes_known = signature(make).parameters
    for key in sizes:
        if key not in sizes_known:
            raise InputError(f"program {name!r} has no size {key!r}; it has {', '.join(sizes_known)}")
    return make(**sizes)
