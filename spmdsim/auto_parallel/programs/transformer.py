"""Built-in transformers: GPT-like and BERT-like stacks, and a layer with a mixture of experts."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from spmdsim.auto_parallel.programs import rules
from spmdsim.auto_parallel.programs.graph import Graph, GraphBuilder
from spmdsim.core import Rule
from spmdsim.errors import InputError


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
    """A stack of pre-norm transformer layers with tied embeddings and a cross-entropy loss.

    Args:
        layers: number of layers.
        hidden: width of the residual stream; the feed-forward part is four times as wide.
        batch: sequences per step.
        seq: tokens per sequence.
        heads: attention heads; about one per 64 columns if left out.
        vocab: rows of the embedding.
        embedding: with embedding and loss; otherwise the bare layers.
        training: with gradients.
        itemsize: bytes per element.
    """
    build = GraphBuilder(f"gpt {layers} x {hidden}", training=training, itemsize=itemsize)
    table = -1
    if embedding:
        table = build.parameter("embedding", (vocab, hidden))
        tokens = build.input("tokens", (batch, seq), itemsize=4)
        x = build.apply(rules.LOOKUP, table, tokens, name="lookup", kind="lookup", itemsize=itemsize)
    else:
        x = build.input("x", (batch, seq, hidden))
    for layer in range(layers):
        build.layer("layer", layer)
        p = f"l{layer}."
        x = build.apply(
            rules.ADD,
            x,
            _attention(build, _norm(build, x, p + "norm1"), p, heads),
            name=p + "add1",
            kind="add",
        )
        x = build.apply(
            rules.ADD, x, _feed_forward(build, _norm(build, x, p + "norm2"), p), name=p + "add2", kind="add"
        )
    build.layer(None)
    if not embedding:
        return build.graph(x)
    x = _norm(build, x, "norm")
    return build.graph(_cross_entropy(build, x, table))


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
    """A stack of post-norm transformer layers; with ``embedding``, the whole network that guesses masked words.

    Sizes are as in :func:`gpt`; a ``vocab`` asks for the embedding, too. The whole network has embeddings of words,
    positions and segments, and a head: a layer of its own, the word embedding once more, and a bias. Without it the
    layers' result is compared with a target.
    """
    embedding = vocab is not None if embedding is None else embedding
    build = GraphBuilder(f"bert {layers} x {hidden}", training=training)
    table = -1
    if embedding:
        x, table = _embeddings(build, batch, seq, hidden, vocab or 1024)
    else:
        x = build.input("x", (batch, seq, hidden))
    x = _post_norm(build, x, layers, heads, _feed_forward)
    if embedding:
        return build.graph(_cross_entropy(build, _head(build, x), table, bias=True))
    return _with_target(build, x)


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
    """Transformer layers whose feed-forward part is a mixture of experts, written as einsums (GShard).

    Args:
        layers: number of layers.
        hidden: width; an expert is eight times as wide.
        batch: sequences.
        seq: tokens per sequence.
        experts: number of experts.
        group: tokens per group; an expert takes at most ``2 * group / experts`` tokens of a group.
        heads: attention heads.
        training: with gradients.
    """
    if batch * seq % group or 2 * group % experts:
        raise InputError(
            f"groups of {group} tokens do not fit {batch} x {seq} tokens and {experts} experts: group must "
            "divide the tokens, and experts must divide 2 * group"
        )
    build = GraphBuilder(f"moe {layers} x {hidden}, {experts} experts", training=training)
    x = build.input("x", (batch, seq, hidden))
    return _with_target(
        build, _post_norm(build, x, layers, heads, partial(_experts, experts=experts, group=group))
    )


def _post_norm(
    build: GraphBuilder,
    x: int,
    layers: int,
    heads: int | None,
    inner: Callable[[GraphBuilder, int, str], int],
) -> int:
    """Layers of attention and something else, each added to what came in and normalised."""
    for layer in range(layers):
        build.layer("layer", layer)
        p = f"l{layer}."
        x = build.apply(rules.ADD, x, _attention(build, x, p, heads), name=p + "add1", kind="add")
        x = _norm(build, x, p + "norm1")
        x = build.apply(rules.ADD, x, inner(build, x, p), name=p + "add2", kind="add")
        x = _norm(build, x, p + "norm2")
    build.layer(None)
    return x


def _with_target(build: GraphBuilder, x: int) -> Graph:
    target = build.input("target", build.shape(x))
    return build.graph(build.apply(rules.ERROR_3D, x, target, name="loss", kind="squared_error"))


def _linear(build: GraphBuilder, x: int, name: str, columns: int) -> int:
    """A product with a weight, and a bias."""
    weight = build.parameter(f"{name}.w", (build.shape(x)[-1], columns))
    x = build.apply(rules.MATMUL, x, weight, name=name, kind="matmul")
    return _bias(build, x, name, (columns,))


def _bias(build: GraphBuilder, x: int, name: str, shape: tuple[int, ...], rule: Rule = rules.BIAS) -> int:
    return build.apply(rule, x, build.parameter(f"{name}.b", shape), name=f"{name}_bias", kind="bias_add")


def _embeddings(build: GraphBuilder, batch: int, seq: int, hidden: int, vocab: int) -> tuple[int, int]:
    """The sum of three embeddings, normalised; and the table of the words."""
    embedded = []
    for name, rows, ids in (
        ("embedding", vocab, "tokens"),
        ("positions", seq, "places"),
        ("segments", 2, "parts"),
    ):
        table, index = build.parameter(name, (rows, hidden)), build.input(ids, (batch, seq))
        embedded.append(
            (build.apply(rules.LOOKUP, table, index, name=f"{name}.lookup", kind="lookup"), table)
        )
    (words, table), (places, _), (parts, _) = embedded
    x = build.apply(rules.ADD, words, places, name="add_places", kind="add")
    x = build.apply(rules.ADD, x, parts, name="add_parts", kind="add")
    return _norm(build, x, "norm"), table


def _head(build: GraphBuilder, x: int) -> int:
    """The layer before the words' scores."""
    width = build.shape(x)[-1]
    x = _linear(build, x, "head", width)
    return _norm(build, build.apply(rules.GELU, x, name="head_gelu", kind="gelu"), "head_norm")


def _norm(build: GraphBuilder, x: int, name: str) -> int:
    width = build.shape(x)[-1]
    scale, shift = build.parameter(f"{name}.scale", (width,)), build.parameter(f"{name}.shift", (width,))
    return build.apply(rules.NORM, x, scale, shift, name=name, kind="layer_norm")


def _attention(build: GraphBuilder, x: int, p: str, heads: int | None) -> int:
    width = build.shape(x)[-1]
    heads = heads or max(1, width // 64)
    if width % heads:
        raise InputError(f"{heads} heads do not divide the width {width}; heads must divide hidden")
    depth = width // heads
    qkv = build.apply(
        "b s h, h t n d -> b s t n d",
        x,
        build.parameter(p + "qkv.w", (width, 3, heads, depth)),
        name=p + "qkv",
    )
    triple = Rule.parse("b s t n d, t n d -> b s t n d", linear="all")
    qkv = _bias(build, qkv, p + "qkv", (3, heads, depth), triple)
    q, k, v = (build.apply(rules.SELECT, qkv, name=p + name, kind="select") for name in ("q", "k", "v"))
    scores = build.apply("b q n d, b k n d -> b n q k", q, k, name=p + "scores")
    scores = build.apply(rules.SOFTMAX, scores, name=p + "softmax", kind="softmax")
    mixed = build.apply("b n q k, b k n d -> b q n d", scores, v, name=p + "mix")
    out = build.apply(
        "b s n d, n d h -> b s h", mixed, build.parameter(p + "out.w", (heads, depth, width)), name=p + "out"
    )
    return _bias(build, out, p + "out", (width,))


def _feed_forward(build: GraphBuilder, x: int, p: str) -> int:
    width = build.shape(x)[-1]
    x = _linear(build, x, f"{p}fc1", 4 * width)
    return _linear(build, build.apply(rules.GELU, x, name=p + "gelu", kind="gelu"), f"{p}fc2", width)


def _experts(build: GraphBuilder, x: int, p: str, experts: int, group: int) -> int:
    batch, seq, width = build.shape(x)
    groups, capacity = batch * seq // group, 2 * group // experts
    split = Rule.parse("(g i) (j s) m -> g (i j s) m", linear="all")
    sizes = _regroup(batch, seq, groups)
    x = build.apply(split, x, name=p + "group", kind="reshape", sizes=sizes)
    gate = build.apply(
        "g s m, m e -> g s e", x, build.parameter(p + "gate.w", (width, experts)), name=p + "gate"
    )
    gate = build.apply(rules.SOFTMAX, gate, name=p + "gate_softmax", kind="softmax")
    sends = build.apply(
        rules.ROUTE, gate, name=p + "dispatch_mask", kind="route", sizes={"c": capacity}, differentiable=False
    )
    weights = build.apply(rules.ROUTE, gate, name=p + "combine_weights", kind="route", sizes={"c": capacity})
    y = build.apply("g s e c, g s m -> e g c m", sends, x, name=p + "dispatch")
    y = build.apply(
        "e g c m, e m h -> e g c h",
        y,
        build.parameter(p + "expert1", (experts, width, 8 * width)),
        name=p + "expert_in",
    )
    y = build.apply(rules.POINTWISE, y, name=p + "expert_relu", kind="relu")
    y = build.apply(
        "e g c h, e h m -> e g c m",
        y,
        build.parameter(p + "expert2", (experts, 8 * width, width)),
        name=p + "expert_out",
    )
    y = build.apply("g s e c, e g c m -> g s m", weights, y, name=p + "combine")
    join = Rule.parse("g (i j s) m -> (g i) (j s) m", linear="all")
    return build.apply(join, y, name=p + "ungroup", kind="reshape", sizes=sizes)


def _regroup(batch: int, seq: int, groups: int) -> dict[str, int]:
    """Sizes of the factors that a (batch, seq) and a (groups, tokens) arrangement share.

    Either a group is several sequences (``i`` of them), or a sequence is several groups: then one sequence's
    groups are ``j`` pieces and the batch dim is the major part of the groups.
    """
    if batch % groups:
        raise InputError(f"{groups} groups do not divide the batch of {batch}; choose a larger group")
    return {"g": groups, "i": batch // groups, "j": 1, "s": seq}


def _cross_entropy(build: GraphBuilder, x: int, table: int, *, bias: bool = False) -> int:
    batch, seq, _ = build.shape(x)
    labels = build.input("labels", (batch, seq), itemsize=4)
    logits = build.apply("b s h, v h -> b s v", x, table, name="logits")
    if bias:
        words = build.parameter("logits.b", (build.shape(table)[0],))
        logits = build.apply(rules.BIAS, logits, words, name="logits_bias", kind="bias_add")
    top = build.apply(rules.ROW_MAX, logits, name="max", kind="max", differentiable=False)
    shifted = build.apply(rules.ROW_SUBTRACT, logits, top, name="shift", kind="subtract")
    powers = build.apply(rules.FUNCTION, shifted, name="exp", kind="exp")
    total = build.apply(rules.ROW_SUM, powers, name="sum", kind="sum")
    logs = build.apply(rules.FUNCTION, total, name="log", kind="log")
    picked = build.apply(rules.ROW_PICK, shifted, labels, name="pick", kind="pick")
    a = build.apply(rules.TOTAL, logs, name="mean_log", kind="mean")
    b = build.apply(rules.TOTAL, picked, name="mean_pick", kind="mean")
    return build.apply(rules.DIFFERENCE, a, b, name="loss", kind="subtract")
