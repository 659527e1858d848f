"""Built-in programs: networks of any size, as graphs; transformers among them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from inspect import signature
from typing import Any

from spmdsim.auto_parallel.programs.graph import Graph, GraphBuilder
from spmdsim.core import FUNCTIONS, PASSES, Rule
from spmdsim.errors import InputError, many, unknown
from spmdsim.registry import Registry

#: The rules of the operators that the programs are made of, by kind.
RULES = {
    "add": Rule.parse("..., ... -> ...", linear="all"),
    "bias_add": Rule.parse("... n, n -> ... n", linear="all"),
    "convolution": Rule.parse("n c h w, o c p q -> n o h w", whole="h w p q", linear="each"),
    "depthwise": Rule.parse("n c h w, c p q -> n c h w", whole="h w p q", linear="each"),
    "exp": Rule.parse("... -> ...", work=FUNCTIONS),
    "gelu": Rule.parse("... -> ...", work=PASSES, backward=3),
    "layer_norm": Rule.parse("... h, h, h -> ... h", whole="h", work=PASSES, backward=3),
    "log": Rule.parse("... -> ...", work=FUNCTIONS),
    "lookup": Rule.parse("v h, b s -> b s h", indexed="v"),
    "matmul": Rule.parse("... k, k n -> ... n", linear="each"),
    "max": Rule.parse("b s v -> b s", reduce="max"),
    "mean": Rule.parse("b s -> ", linear="all"),
    "pick": Rule.parse("b s v, b s -> b s", linear=[[0]]),
    "relu": Rule.parse("... -> ..."),
    "route": Rule.parse("g s e -> g s e c", whole="s e c"),
    "select": Rule.parse("b s t n d -> b s n d", whole="t", linear="all"),
    "softmax": Rule.parse("... k -> ... k", whole="k", work=PASSES),
    "subtract": Rule.parse("b s v, b s -> b s v", linear="all"),
    "sum": Rule.parse("b s v -> b s", linear="all"),
}
#: Kinds whose gradients read the result and not the operands.
_BY_RESULT = {"exp", "relu", "softmax"}
#: Rules of a squared error, by the number of dims.
_ERRORS = {len(dims.split()): Rule.parse(f"{dims}, {dims} -> ") for dims in ("b n", "b s h", "n c h w")}
#: Rules that share a kind with others.
_DIFFERENCE = Rule.parse(", -> ", linear="all")
_FLATTEN = Rule.parse("b c h w -> b (c h w)", linear="all")
_TRIPLE_BIAS = Rule.parse("b s t n d, t n d -> b s t n d", linear="all")
_GROUP = Rule.parse("(g i) (j s) m -> g (i j s) m", linear="all")
_UNGROUP = Rule.parse("g (i j s) m -> (g i) (j s) m", linear="all")


class _Network(GraphBuilder):
    """Builder that adds operators by their kind."""

    def run(
        self,
        kind: str,
        *inputs: int,
        name: str | None = None,
        rule: Rule | None = None,
        shard: tuple[tuple[int, ...], ...] | None = None,
        sizes: dict[str, int] | None = None,
        itemsize: int | None = None,
        differentiable: bool = True,
    ) -> int:
        """Add an operator of a kind and return the index of its result.

        Its name is the kind if ``name`` is None. Other arguments are as in :meth:`GraphBuilder.apply`; ``rule``
        replaces the kind's rule in :data:`RULES`.
        """
        return self.apply(
            rule or RULES[kind], *inputs, name=name, kind=kind, shard=shard, sizes=sizes, itemsize=itemsize,
            differentiable=differentiable, by_result=kind in _BY_RESULT,
        )  # fmt: skip

    def weighted(self, kind: str, x: int, parameter: str, shape: tuple[int, ...], *, name: str) -> int:
        """Add an operator of a tensor and a new parameter; return the index of its result."""
        return self.run(kind, x, self.parameter(parameter, shape), name=name)

    def compare_with_target(self, x: int) -> Graph:
        """Return the graph of the squared error between a tensor and a new input, the target."""
        shape = self.shape(x)
        return self.graph(
            self.run("squared_error", x, self.input("target", shape), name="loss", rule=_ERRORS[len(shape)])
        )


def tutorial(batch: int = 32, *, configured: bool = True, training: bool = True) -> Graph:
    """Build the network of MindSpore's operator-parallel tutorial; its result has no loss.

    The network is a product of 784 x 512, a ReLU, a product of 512 x 512, a ReLU, and a product of 512 x 10.

    Args:
        batch: the number of images, of 28 x 28 pixels.
        configured: True to give the first two products and the ReLUs the tutorial's strategies for 8 ranks.
        training: False to leave out gradients.
    """
    build = _Network("tutorial", training=training)
    x = build.run("reshape", build.input("x", (batch, 1, 28, 28)), name="flatten", rule=_FLATTEN)
    shards = {
        "matmul1": ((2, 4), (4, 1)),
        "relu1": ((4, 1),),
        "matmul2": ((1, 8), (8, 1)),
        "relu2": ((8, 1),),
    }
    shards = shards if configured else {}
    for k, (rows, columns) in enumerate(itertools.pairwise([28 * 28, 512, 512, 10]), 1):
        weight = build.parameter(f"fc{k}_weight", (rows, columns))
        x = build.run("matmul", x, weight, name=f"matmul{k}", shard=shards.get(f"matmul{k}"))
        if k < 3:
            x = build.run("relu", x, name=f"relu{k}", shard=shards.get(f"relu{k}"))
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
    """Build a multilayer perceptron with a squared-error loss.

    Args:
        layers: the number of products; not used with ``sizes``.
        hidden: the width of the input and of each product; not used with ``sizes``.
        batch: the number of rows of the input.
        sizes: all widths, the input's first; None for ``layers + 1`` times ``hidden``.
        bias: True for a bias after each product.
        activation: True for a ReLU between products.
        training: False to leave out gradients.
    """
    widths = list(sizes) if sizes else [hidden] * (layers + 1)
    name = "x".join(map(str, widths)) if sizes else f"{layers} x {hidden}"
    build = _Network(f"mlp {name}", training=training)
    x = build.input("x", (batch, widths[0]))
    for k, shape in enumerate(itertools.pairwise(widths)):
        x = build.weighted("matmul", x, f"w{k}", shape, name=f"fc{k}")
        if bias:
            x = build.weighted("bias_add", x, f"b{k}", shape[1:], name=f"bias{k}")
        if activation and k < len(widths) - 2:
            x = build.run("relu", x, name=f"relu{k}")
    return build.compare_with_target(x)


def chain(sizes: Sequence[int] = (512, 512, 512, 512), batch: int = 512, *, training: bool = False) -> Graph:
    """Build a chain of matrix products; its result has no loss.

    Args:
        sizes: the widths of the input and of each product.
        batch: the number of rows of the input.
        training: True to compute gradients.
    """
    build = _Network("chain", training=training)
    x = build.input("x", (batch, sizes[0]))
    for k, shape in enumerate(itertools.pairwise(sizes)):
        x = build.weighted("matmul", x, f"w{k}", shape, name=f"mm{k}")
    return build.graph(x)


def convolutions(
    layers: int = 4, channels: int = 64, batch: int = 16, image: int = 16, *, depthwise: bool = False
) -> Graph:
    """Build a chain of 3 x 3 convolutions with ReLUs between them and a squared-error loss.

    Images keep their size. The graph is for training.

    Args:
        layers: the number of convolutions.
        channels: the channels before and after each.
        batch: the number of images.
        image: their height and width.
        depthwise: True for one filter per channel.
    """
    build = _Network("convolutions")
    x = build.input("x", (batch, channels, image, image))
    kind, filters = ("depthwise", (channels,)) if depthwise else ("convolution", (channels, channels))
    for k in range(layers):
        x = build.weighted(kind, x, f"w{k}", (*filters, 3, 3), name=f"conv{k}")
        if k < layers - 1:
            x = build.run("relu", x, name=f"relu{k}")
    return build.compare_with_target(x)


def gpt(
    layers: int = 2,
    hidden: int = 128,
    batch: int = 8,
    seq: int = 64,
    *,
    heads: int | None = None,
    vocab: int = 1024,
    embedding: bool = True,
    training: bool = True,
    itemsize: int = 4,
) -> Graph:
    """Build pre-norm transformer layers with tied embeddings and a cross-entropy loss.

    The feed-forward layers are four times as wide as ``hidden``.

    Args:
        layers: the number of layers.
        hidden: the width.
        batch: the number of sequences.
        seq: the tokens of a sequence.
        heads: the heads of attention; None for one per 64 columns, at least one.
        vocab: the number of words.
        embedding: False for the layers only, without a loss.
        training: False to leave out gradients.
        itemsize: the bytes of an element; tokens and labels have four.

    Raises:
        InputError: If ``heads`` does not divide ``hidden``.
    """
    build = _Network(f"gpt {layers} x {hidden}", training=training, itemsize=itemsize)
    table = -1
    if embedding:
        table = build.parameter("embedding", (vocab, hidden))
        tokens = build.input("tokens", (batch, seq), itemsize=4)
        x = build.run("lookup", table, tokens, itemsize=itemsize)
    else:
        x = build.input("x", (batch, seq, hidden))
    for layer in range(layers):
        build.layer("layer", layer)
        p = f"l{layer}."
        x = build.run("add", x, _attention(build, _norm(build, x, p + "norm1"), p, heads), name=p + "add1")
        x = build.run("add", x, _feed_forward(build, _norm(build, x, p + "norm2"), p), name=p + "add2")
    build.layer(None)
    if not embedding:
        return build.graph(x)
    return build.graph(_cross_entropy(build, _norm(build, x, "norm"), table))


def bert(
    layers: int = 2,
    hidden: int = 128,
    batch: int = 8,
    seq: int = 8,
    *,
    heads: int | None = 8,
    vocab: int | None = None,
    embedding: bool | None = None,
    training: bool = True,
) -> Graph:
    """Build post-norm transformer layers, or with ``embedding`` a masked-language model.

    The full network has embeddings of words, positions and segments, and a head: a dense layer, the word embedding
    again, and a bias. Without it, the result of the layers is compared with a target.

    Args:
        layers: the number of layers.
        hidden: the width; feed-forward layers are four times as wide.
        batch: the number of sequences.
        seq: the tokens of a sequence.
        heads: the heads of attention; None for one per 64 columns, at least one.
        vocab: the number of words; None for 1024.
        embedding: True for the full network; None: if ``vocab`` is given.
        training: False to leave out gradients.

    Raises:
        InputError: If ``heads`` does not divide ``hidden``.
    """
    embedding = vocab is not None if embedding is None else embedding
    build = _Network(f"bert {layers} x {hidden}", training=training)
    if not embedding:
        x = build.input("x", (batch, seq, hidden))
        return build.compare_with_target(_post_norm(build, x, layers, heads, _feed_forward))
    x, table = _embeddings(build, batch, seq, hidden, vocab or 1024)
    x = _post_norm(build, x, layers, heads, _feed_forward)
    x = build.run("gelu", _linear(build, x, "head", hidden), name="head_gelu")
    return build.graph(_cross_entropy(build, _norm(build, x, "head_norm"), table, bias=True))


def moe(
    layers: int = 1,
    hidden: int = 64,
    batch: int = 64,
    seq: int = 16,
    *,
    experts: int = 16,
    group: int = 32,
    heads: int = 8,
    training: bool = True,
) -> Graph:
    """Build transformer layers with a mixture of experts, written as einsums (GShard).

    Layers are post-norm; the result is compared with a target. An expert is eight times as wide as ``hidden``, and
    takes at most ``2 * group / experts`` tokens of a group.

    Args:
        layers: the number of layers.
        hidden: the width.
        batch: the number of sequences.
        seq: the tokens of a sequence.
        experts: the number of experts.
        group: the tokens of a group, which are dispatched together; whole sequences.
        heads: the heads of attention.
        training: False to leave out gradients.

    Raises:
        InputError: If ``group`` does not divide the tokens or is no multiple of ``seq``, ``experts`` does not divide
            ``2 * group``, or ``heads`` does not divide ``hidden``.
    """
    if batch * seq % group or 2 * group % experts:
        raise InputError(
            f"groups of {many(group, 'token')} do not fit {batch} x {many(seq, 'token')} and {many(experts, 'expert')}: group must "
            "divide the tokens, and experts must divide 2 * group"
        )
    build = _Network(f"moe {layers} x {hidden}, {many(experts, 'expert')}", training=training)
    x = build.input("x", (batch, seq, hidden))
    inner = partial(_experts, experts=experts, group=group)
    return build.compare_with_target(_post_norm(build, x, layers, heads, inner))


def _post_norm(
    build: _Network, x: int, layers: int, heads: int | None, inner: Callable[[_Network, int, str], int]
) -> int:
    """Add post-norm transformer layers to a network; return the index of the result.

    A layer adds attention to its operand and normalises the sum, and does so again with ``inner``.

    Args:
        build: the network.
        x: the index of the operand.
        layers: the number of layers.
        heads: the number of attention heads; None for one per 64 columns.
        inner: adds the second half of a layer. It is called with the network, the index of its operand and a prefix
            of names, and returns the index of its result.
    """
    for layer in range(layers):
        build.layer("layer", layer)
        prefix = f"l{layer}."
        x = build.run("add", x, _attention(build, x, prefix, heads), name=prefix + "add1")
        x = _norm(build, x, prefix + "norm1")
        x = build.run("add", x, inner(build, x, prefix), name=prefix + "add2")
        x = _norm(build, x, prefix + "norm2")
    build.layer(None)
    return x


def _linear(build: _Network, x: int, name: str, columns: int) -> int:
    """Add a product with a weight, and a bias; return the index of its result."""
    x = build.weighted("matmul", x, f"{name}.w", (build.shape(x)[-1], columns), name=name)
    return build.weighted("bias_add", x, f"{name}.b", (columns,), name=f"{name}_bias")


def _embeddings(build: _Network, batch: int, seq: int, hidden: int, vocab: int) -> tuple[int, int]:
    """Add word, position and segment embeddings, and normalise their sum.

    Each embedding looks up a table of ``hidden`` columns:

    * words: "embedding" with ``vocab`` rows, by the input "tokens";
    * positions: "positions" with ``seq`` rows, by the input "places";
    * segments: "segments" with 2 rows, by the input "parts".

    Return the index of the normalised sum, and the index of the word table.

    Args:
        build: the network.
        batch: the number of sequences.
        seq: the tokens of a sequence.
        hidden: the width.
        vocab: the number of words.
    """
    tables, embedded = [], []
    for name, rows, ids in (
        ("embedding", vocab, "tokens"),
        ("positions", seq, "places"),
        ("segments", 2, "parts"),
    ):
        tables.append(build.parameter(name, (rows, hidden)))
        index = build.input(ids, (batch, seq))
        embedded.append(build.run("lookup", tables[-1], index, name=f"{name}.lookup"))
    x = build.run("add", *embedded[:2], name="add_places")
    return _norm(build, build.run("add", x, embedded[2], name="add_parts"), "norm"), tables[0]


def _norm(build: _Network, x: int, name: str) -> int:
    """Add a layer normalisation with its two parameters; return the index of its result."""
    scale = build.parameter(f"{name}.scale", build.shape(x)[-1:])
    shift = build.parameter(f"{name}.shift", build.shape(x)[-1:])
    return build.run("layer_norm", x, scale, shift, name=name)


def _attention(build: _Network, x: int, p: str, heads: int | None) -> int:
    """Add multi-head self-attention; return the index of its result.

    One product makes queries, keys and values of all heads, with a bias. The softmax of the products of queries and
    keys weights the values. A last product joins the heads, with a bias. The result has the operand's shape.

    Args:
        build: the network.
        x: the index of the operand, of shape (batch, sequence, width).
        p: the prefix of all names.
        heads: the number of heads; None for one per 64 columns, at least one.

    Raises:
        InputError: If ``heads`` does not divide the width.
    """
    width = build.shape(x)[-1]
    heads = heads or max(1, width // 64)
    if width % heads:
        raise InputError(f"{heads} heads do not divide the width {width}; heads must divide hidden")
    depth = width // heads
    weight = build.parameter(p + "qkv.w", (width, 3, heads, depth))
    qkv = build.apply("b s h, h t n d -> b s t n d", x, weight, name=p + "qkv")
    bias = build.parameter(p + "qkv.b", (3, heads, depth))
    qkv = build.run("bias_add", qkv, bias, name=p + "qkv_bias", rule=_TRIPLE_BIAS)
    q, k, v = (build.run("select", qkv, name=p + name) for name in ("q", "k", "v"))
    scores = build.apply("b q n d, b k n d -> b n q k", q, k, name=p + "scores")
    scores = build.run("softmax", scores, name=p + "softmax")
    mixed = build.apply("b n q k, b k n d -> b q n d", scores, v, name=p + "mix")
    weight = build.parameter(p + "out.w", (heads, depth, width))
    out = build.apply("b s n d, n d h -> b s h", mixed, weight, name=p + "out")
    return build.weighted("bias_add", out, p + "out.b", (width,), name=p + "out_bias")


def _feed_forward(build: _Network, x: int, p: str) -> int:
    """Add a feed-forward layer of four times the width, with GELU.

    The index of its result is returned.
    """
    width = build.shape(x)[-1]
    x = build.run("gelu", _linear(build, x, f"{p}fc1", 4 * width), name=p + "gelu")
    return _linear(build, x, f"{p}fc2", width)


def _experts(build: _Network, x: int, p: str, experts: int, group: int) -> int:
    """Add a mixture of experts on groups of tokens; return the index of its result.

    A gate with softmax sends the tokens of a group, which has whole sequences, to the experts. Each expert has ``2 *
    group / experts`` places for tokens of each group: with 4 experts and groups of 64 tokens, 32 places. An expert is
    two products with a ReLU between them, eight times as wide as the operand. The result has the operand's shape.

    Args:
        build: the network.
        x: the index of the operand, of shape (batch, sequence, width).
        p: the prefix of all names.
        experts: the number of experts; that it divides ``2 * group`` is not checked here.
        group: the number of tokens in a group; that it divides all tokens is not checked here.

    Raises:
        InputError: If a group is not made of entire sequences.
    """
    batch, seq, width = build.shape(x)
    groups, capacity = batch * seq // group, {"c": 2 * group // experts}
    if batch % groups:
        raise InputError(f"{groups} groups do not divide the batch of {batch}; choose a larger group")
    # A group consists of i sequences.
    sizes = {"g": groups, "i": batch // groups, "j": 1, "s": seq}
    x = build.run("reshape", x, name=p + "group", rule=_GROUP, sizes=sizes)
    weight = build.parameter(p + "gate.w", (width, experts))
    gate = build.apply("g s m, m e -> g s e", x, weight, name=p + "gate")
    gate = build.run("softmax", gate, name=p + "gate_softmax")
    sends = build.run("route", gate, name=p + "dispatch_mask", sizes=capacity, differentiable=False)
    weights = build.run("route", gate, name=p + "combine_weights", sizes=capacity)
    y = build.apply("g s e c, g s m -> e g c m", sends, x, name=p + "dispatch")
    first = build.parameter(p + "expert1", (experts, width, 8 * width))
    y = build.apply("e g c m, e m h -> e g c h", y, first, name=p + "expert_in")
    y = build.run("relu", y, name=p + "expert_relu")
    second = build.parameter(p + "expert2", (experts, 8 * width, width))
    y = build.apply("e g c h, e h m -> e g c m", y, second, name=p + "expert_out")
    y = build.apply("g s e c, e g c m -> g s m", weights, y, name=p + "combine")
    return build.run("reshape", y, name=p + "ungroup", rule=_UNGROUP, sizes=sizes)


def _cross_entropy(build: _Network, x: int, table: int, *, bias: bool = False) -> int:
    """Add the product with a word table and the cross-entropy loss; return the index of the loss.

    The labels are a new input. The loss is the mean over all tokens.

    Args:
        build: the network.
        x: the index of the operand, of shape (batch, sequence, width).
        table: the index of the word table, of shape (words, width).
        bias: True to add a bias to the product.
    """
    labels = build.input("labels", build.shape(x)[:2], itemsize=4)
    logits = build.apply("b s h, v h -> b s v", x, table, name="logits")
    if bias:
        logits = build.weighted("bias_add", logits, "logits.b", build.shape(table)[:1], name="logits_bias")
    top = build.run("max", logits, differentiable=False)
    shifted = build.run("subtract", logits, top, name="shift")
    logs = build.run("log", build.run("sum", build.run("exp", shifted)))
    picked = build.run("pick", shifted, labels)
    mean_log = build.run("mean", logs, name="mean_log")
    mean_picked = build.run("mean", picked, name="mean_pick")
    return build.run("subtract", mean_log, mean_picked, name="loss", rule=_DIFFERENCE)


#: Built-in programs by name; all take keyword arguments.
PROGRAMS: Registry[Callable[..., Graph]] = Registry(
    "program", {build.__name__: build for build in (tutorial, mlp, chain, convolutions, gpt, bert, moe)}
)


#: Limit on the layers of a built-in program, because each layer has its own operators.
MOST_LAYERS = 10_000


def default_sizes(name: str) -> dict[str, Any]:
    """Return the default sizes of a built-in program; empty for an unknown name.

    >>> default_sizes("mlp")["batch"], default_sizes("nothing")
    (32, {})
    """
    parameters = signature(PROGRAMS[name]).parameters if name in PROGRAMS else {}
    return {key: parameter.default for key, parameter in parameters.items()}


def require_program(name: str) -> None:
    """Raise InputError if there is no built-in program of this name."""
    if name not in PROGRAMS:
        raise unknown(f"no built-in program is called {name!r}", name, PROGRAMS)


def build_program(name: str, **sizes: object) -> Graph:
    """Build a built-in program by name with the given sizes.

    Args:
        name: a key of :data:`PROGRAMS`.
        **sizes: arguments of its function by name; only integers are checked.

    Raises:
        InputError: If the program or a size is unknown, a size is below 1, sizes do not fit one another, or there are
            more than :data:`MOST_LAYERS` (10,000) layers.

    >>> print(build_program("mlp", layers=2, hidden=8))
    mlp 2 x 8: 6 operators, 4 parameters with 144 elements
    """
    require_program(name)
    parameters = signature(PROGRAMS[name]).parameters
    for key, size in sizes.items():
        if key not in parameters:
            known_sizes = [
                size_name for size_name, p in parameters.items() if str(p.annotation).startswith("int")
            ]
            raise unknown(f"program {name!r} has no size {key!r}", key, known_sizes, listed="it has")
        if type(size) is int and size < 1:
            raise InputError(f"program {name!r}: {key} is {size}; it has to be 1 or more")
        if key == "layers" and type(size) is int and size > MOST_LAYERS:
            raise InputError(f"program {name!r}: layers is {size:,}; it has to be {MOST_LAYERS:,} or less")
    return PROGRAMS[name](**sizes)
