"""OneFlow's SBP signatures, derived from the rules: published rows, products, choices, gradients, refusals."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from layout_cases import cases

import spmdsim.ops as ops
from spmdsim.arrays import Tensor
from spmdsim.dialects import oneflow as flow
from spmdsim.dialects.oneflow.choice import choose
from spmdsim.dialects.oneflow.op_table import find, table
from spmdsim.dialects.oneflow.signatures import (
    Signature,
    exact,
    gradients,
    in_table_order,
    listed,
    offending_axis,
    operand_names,
    product,
    signatures,
)
from spmdsim.worlds import LockStep

V = "operators_oneflow_paddle"
sbp = flow.sbp


def parsed(*texts):
    return tuple(sbp.as_tuple(text) for text in texts)


#: What an operator's published name stands for: names here, shapes, attributes.
def asked(op, attrs):
    names = [part.strip().split(" ")[0] for part in op.split("/")]
    options = {
        k: v for k, v in attrs.items() if k not in ("ndim", "a_ndim", "shapes", "indices_ndim", "in_ndim")
    }
    shapes = [(8,) * attrs.get("ndim", attrs.get("a_ndim", 2))]
    if "matmul" in op:
        a, b = (3, 3) if op.startswith("batch") else (3, 2) if op.startswith("broadcast_matmul") else (2, 2)
        shapes = [(8,) * a, (8,) * b]
    elif op.startswith("bias_add"):
        shapes.append((8,))
    elif op == "broadcast add":
        names, shapes = ["add"], [tuple(options.pop("x_shape")), tuple(options.pop("y_shape"))]
    elif names[0] in ("add", "sub", "mul", "div"):
        shapes *= 2
    elif op.startswith("relu"):
        names = ["relu", "gelu", "exp", "tanh", "dropout", "log", "sigmoid"]
    elif op == "layer_norm":
        shapes += [(8,), (8,)]
    elif op == "layer_norm_param_grad":
        shapes *= 2
    elif op.startswith("gather"):
        options["axis"], shapes = 0, [(8, 8), (8, 8)]
    elif op.startswith("embedding"):
        shapes = [(8, 8), (8, 8)]
    elif op.startswith("sparse_softmax"):
        options, shapes = {}, [(8, 8), (8,)]
    elif op.startswith("slice"):
        names, options = ["slice"], {"start": (0, 1), "stop": (8, 7)}
    return names, shapes, options


def row_of(case, name):
    count = len(case["inputs"])
    operands, results = operand_names(name, count)
    by_name = case["inputs"] if set(case["inputs"]) == set(operands) else None
    inputs = [by_name[n] for n in operands] if by_name else list(case["inputs"].values())
    outputs = case["outputs"]
    ordered = [outputs[n] for n in results] if set(outputs) == set(results) else list(outputs.values())
    return Signature(parsed(*inputs), parsed(*ordered))


@pytest.mark.parametrize("case", cases(V, "sbp_signature_1d"))
def test_published_rows(case):
    names, shapes, attrs = asked(case["op"], case["attrs"])
    for name in names:
        assert row_of(case, name) in signatures(name, shapes, (2,), **attrs), name


ILLEGAL = {"S(last)": "S1", "S(normalised axis)": "S1"}


@pytest.mark.parametrize("case", cases(V, "sbp_signature_illegal"))
def test_illegal_rows(case):
    names, shapes, attrs = asked(case["op"], {})
    inputs = parsed(*[ILLEGAL.get(text, text) for text in case["inputs"]])
    for name in names:
        rows = signatures(name, shapes, (2,), **attrs)
        assert rows and not [s for s in rows if s.inputs[: len(inputs)] == inputs]


#: All rows of an operator on one mesh axis, as its table lists them: nothing more, nothing less.
TABLES = [
    ("bias_add", [(8, 8, 8), (8,)], {"axis": 1}, "S0 B>S0, S2 B>S2, S1 S0>S1, B B>B"),
    ("mul", [(8, 8), (8, 8)], {}, "S0 S0>S0, S1 S1>S1, B P>P, P B>P, B B>B"),
    ("sub", [(8, 8), (8, 8)], {}, "S0 S0>S0, S1 S1>S1, P P>P, B B>B"),
    ("pow", [(8, 8), (8, 1)], {}, "S0 S0>S0, S1 B>S1, B B>B"),
    ("add_n", [(8,), (8,), (8,)], {}, "S0 S0 S0>S0, P P P>P, B B B>B"),
    ("relu", [(8, 8)], {}, "S0>S0, S1>S1, B>B"),
    ("identity", [(8, 8)], {}, "S0>S0, S1>S1, P>P, B>B"),
    ("transpose", [(8, 8, 8)], {"perm": (2, 0, 1)}, "S2>S0, S0>S1, S1>S2, P>P, B>B"),
    ("reduce_sum", [(8, 8, 8)], {"axis": [0, 1]}, "S2>S0, S0>P, S1>P, P>P, B>B"),
    ("reduce_max", [(8, 8, 8)], {"axis": [0, 1]}, "S2>S0, B>B"),
    ("reduce_any", [(8, 8)], {"axis": 1, "keepdims": True}, "S0>S0, B>B"),
    ("softmax", [(8, 8, 8)], {}, "S0>S0, S1>S1, B>B"),
    ("argmax", [(8, 8)], {}, "S0>S0, B>B"),
    ("layer_norm", [(8, 8, 8), (8,), (8,)], {}, "S0 B B>S0, S1 B B>S1, B B B>B"),
    ("layer_norm", [(8, 8, 8), (8, 8), (8, 8)], {}, "S0 B B>S0, B B B>B"),
    ("gather", [(8, 8, 8), (8,)], {"axis": 1}, "B S0>S1, S1 B>P, S0 B>S0, S2 B>S2, P B>P, B B>B"),
    ("embedding", [(8, 8), (8, 8)], {}, "S0 B>S0, S1 B>S1, B B>B"),
    ("embedding", [(8, 8), (8, 8)], {"scale_grad_by_freq": True}, "B B>B"),
    ("erf", [(8, 8)], {}, "S0>S0, S1>S1, B>B"),
    ("scalar_mul", [(8,)], {"operand": 2.0}, "S0>S0, P>P, B>B"),
    ("sparse_softmax_cross_entropy_grad", [(8, 8), (8,)], {}, "S0 S0 S0>S0, B B B>B"),
    (
        "layer_norm",
        [(8, 8, 8), (8,), (8,)],
        {"begin_norm_axis": 1, "begin_params_axis": 2},
        "S0 B B>S0, B B B>B",
    ),
    ("one_hot", [(8, 8)], {"depth": 8}, "S0>S0, S1>S1, B>B"),
    ("concat", [(8, 8), (8, 8)], {"axis": 1}, "S0 S0>S0, P P>P, B B>B"),
    ("slice", [(8, 8)], {"start": (0, 2), "stop": (8, 7)}, "S0>S0, S1>P, P>P, B>B"),
    ("slice_update", [(8, 8), (8, 3)], {"start": (0, 2), "stop": (8, 5)}, "S0 S0>S0, S1 B>S1, P P>P, B B>B"),
    ("expand", [(8, 1)], {"shape": (4, 8, 8)}, "S0>S1, P>P, B>B"),
    ("broadcast_matmul_grad_b", [(4, 8, 8), (4, 8, 8)], {}, "S0 S0>P, S1 S1>P, S2 B>S0, B S2>S1, B B>B"),
    ("nll", [(8, 8), (8,)], {}, "S0 S0>S0, S1 B>P, B B>B"),
    ("sparse_softmax_cross_entropy_ms", [(8, 8), (8,)], {}, "S0 S0>S0 S0, S1 B>S1 P, B B>B B"),
    ("sparse_softmax_cross_entropy_ms_grad", [(8, 8), (8,)], {}, "S0 S0 S0>S0, S1 B B>S1, B B B>B"),
    ("sparse_softmax_cross_entropy", [(8, 8), (8,)], {}, "S0 S0>S0 S0, B B>B B"),
    ("layer_norm_param_grad", [(8, 8), (8, 8)], {}, "S0 S0>P P, B B>B B"),
    ("batch_matmul", [(8, 8, 8), (8, 8, 8)], {}, "S0 S0>S0, S1 B>S1, B S2>S2, S2 S1>P, P B>P, B P>P, B B>B"),
    (
        "broadcast_matmul",
        [(1, 8, 8, 8), (8, 8, 8, 8)],
        {},
        "B S0>S0, S1 S1>S1, S2 B>S2, B S3>S3, S3 S2>P, P B>P, B P>P, B B>B",
    ),
]


def rows_from(text):
    rows = set()
    for row in text.split(","):
        left, right = row.strip().split(">")
        rows.add(Signature(parsed(*left.split()), parsed(*right.split())))
    return rows


@pytest.mark.parametrize(
    ("name", "shapes", "attrs", "text"), TABLES, ids=[f"{t[0]}-{i}" for i, t in enumerate(TABLES)]
)
def test_whole_tables(name, shapes, attrs, text):
    assert set(signatures(name, shapes, (2,), **attrs)) == rows_from(text)


@pytest.mark.parametrize("flags", list(itertools.product((False, True), repeat=2)))
def test_the_six_rows_of_matmul(flags):
    a, b = flags
    m, ka, kb, n = int(a), 1 - a, int(b), 1 - b
    text = f"S{m} B>S0, B S{n}>S1, S{ka} S{kb}>P, P B>P, B P>P, B B>B"
    rows = signatures("matmul", [(8, 8), (8, 8)], (2,), transpose_a=a, transpose_b=b)
    assert set(rows) == rows_from(text)


# -- several mesh axes -------------------------------------------------------------------------------------


def test_thirty_six_legal_pairs_on_two_by_two():
    rows = signatures("matmul", [(8, 6), (6, 8)], (2, 2))
    assert len({s.inputs for s in rows}) == 36
    for case in cases(V, "matmul_2d_sbp"):
        vector = case.values[0]
        row = Signature(parsed(vector["x_sbp"], vector["w_sbp"]), parsed(vector["y_sbp"]))
        assert row in rows, vector["id"]


@pytest.mark.parametrize("case", cases(V, "matmul_2d_sbp_needs_boxing"))
def test_the_axis_that_needs_a_conversion(case):
    shapes, inputs = [(8, 6), (6, 8)], [case["x_sbp"], case["w_sbp"]]
    assert offending_axis("matmul", shapes, inputs, (2, 2)) == case["offending_mesh_axis"]
    with pytest.raises(RuntimeError, match=f"No row covers mesh axis {case['offending_mesh_axis']}"):
        exact("matmul", shapes, inputs, (2, 2))
    assert offending_axis("matmul", shapes, [["S0", "B"], ["B", "S1"]], (2, 2)) is None


@pytest.mark.parametrize(
    ("name", "shapes", "attrs", "_text"), TABLES, ids=[f"{t[0]}-{i}" for i, t in enumerate(TABLES)]
)
def test_signatures_on_several_axes_are_products_of_rows(name, shapes, attrs, _text):
    big = [tuple(24 if n in (4, 8) else n for n in shape) for shape in shapes]
    if name in ("slice", "slice_update"):
        attrs = {**attrs, "stop": (24, attrs["stop"][1])}
    if name == "expand":
        attrs = {"shape": (4, 24, 8)}
    for mesh in ((2, 3), (2, 2, 2)):
        assert set(signatures(name, big, mesh, **attrs)) == product(name, big, mesh, **attrs)


def test_a_dim_shorter_than_the_axis_is_not_split():
    texts = {sbp.text(s.inputs[0]) for s in signatures("relu", [(3, 8)], (4,))}
    assert texts == {"B", "S(1)"}
    texts = {sbp.text(s.inputs[0]) for s in signatures("relu", [(5, 1)], (2, 3))}
    assert texts == {"(B, B)", "(B, S(0))", "(S(0), B)"}


def test_signatures_are_sorted_as_oneflow_sorts_them():
    order = cases(V, "sbp_sort_order")[0].values[0]["order"]
    inputs = [s.inputs[0][0] for s in signatures("identity", [(8, 8, 8, 8)])]
    assert [str(s).replace("(", "").replace(")", "") for s in inputs] == order
    keys = [s.inputs for s in signatures("matmul", [(8, 8), (8, 8)], (2, 2))]
    assert keys == sorted(keys) and len(set(keys)) == len(keys)


# -- choices, gradients, errors -----------------------------------------------------------------------------


@pytest.mark.parametrize("case", cases(V, "signature_choice"))
def test_choices(case):
    rows, columns = case.get("x_bytes", 4096) // 32 // 4, case.get("w_bytes", 1024) // 32 // 4
    choice = choose("matmul", [(rows, 32), (32, columns)], [case["x_sbp"], case["w_sbp"]], (2,))
    chosen = case["chosen"]
    assert choice.signature == Signature(parsed(chosen["x"], chosen["w"]), parsed(chosen["out"]))
    wanted = [text.replace("->", " -> ") for text in case["boxing"]]
    assert [text.replace("(", "").replace(")", "") for text in choice.boxing] == wanted
    assert (choice.nbytes > 0) is bool(wanted)


def test_rules_of_a_choice_on_several_axes():
    """An exact match or the least bytes; the most operands that fit; the least bytes."""
    shapes, sbps = [(64, 8), (8, 64)], ["(S(0), B)", "(S(1), S(1))"]
    least, most, also = (choose("matmul", shapes, sbps, (2, 2), rule=rule) for rule in (1, 2, 3))
    assert least == also and len(least.boxing) == 2 and least.nbytes < most.nbytes
    assert most.boxing == ("w: (S(1), S(1)) -> (B, S(1))",)
    whole = [choose("matmul", shapes, ["(B, B)", "(B, B)"], (2, 2), rule=rule) for rule in (1, 2, 3)]
    assert [choice.boxing for choice in whole] == [()] * 3
    with pytest.raises(ValueError, match="the rule is 1, 2, 3, not 4"):
        choose("matmul", shapes, sbps, (2, 2), rule=4)


def test_of_two_equal_choices_the_first_row_is_taken():
    choice = choose("matmul", [(32, 32), (32, 32)], ["S0", "S1"], (2,))
    assert choice.signature == Signature(parsed("S0", "B"), parsed("S0"))
    rows = in_table_order("matmul", [(8, 8), (8, 8)])
    assert set(rows) == set(signatures("matmul", [(8, 8), (8, 8)])) and rows[-1].inputs == parsed("B", "B")
    assert in_table_order("nll", [(8, 8), (8,)]) == signatures("nll", [(8, 8), (8,)])


def test_choices_on_several_axes():
    exactly = choose("matmul", [(8, 8), (8, 8)], ["(S0,B)", "(B,S1)"], (2, 2))
    assert exactly.boxing == () and exactly.nbytes == 0
    moved = choose("matmul", [(64, 8), (8, 8)], ["(S0,B)", "(S0,B)"], (2, 2))
    # Half of w on every rank, of which it holds half: x is only sliced, if at all.
    assert moved.nbytes == 4 * 16 * 4 and moved.boxing[-1].startswith("w: (S(0), B) -> (B, S(")


@pytest.mark.parametrize("case", cases(V, "grad_signature"))
def test_gradients(case):
    name = case["op"].split("(")[0].split(" ")[0]
    shapes = {"matmul": [(8, 6), (6, 4)], "gather": [(8, 4), (6,)], "embedding": [(6, 2), (8, 4)]}[name]
    names = {"matmul": ("x", "w"), "gather": ("w", "ids"), "embedding": ("ids", "w")}[name]
    inputs = [case["inputs"][n] for n in names]
    arriving, grads = gradients(name, shapes, inputs)
    assert arriving == parsed(case["grad_out"])[0]
    for key, value in case["grads"].items():
        assert grads[names.index(key[1:])] == parsed(value)[0]


@pytest.mark.parametrize("case", cases(V, "op_example"))
def test_examples(case):
    x, w, y = case["x"], case["w"], case["y"]
    shapes = [x["shape"], w["shape"]]
    signature = exact(case["op"], shapes, [x["sbp"], w["sbp"]], (case["p"],))
    assert signature.outputs == parsed(y["sbp"])
    placement = flow.placement("cpu", range(case["p"]))
    assert list(flow.local_shape(placement, signature.outputs[0], y["shape"], 0)) == y["local_shape"]


def test_no_signature_names_candidates_and_operands():
    message = next(c.values[0]["message"] for c in cases(V, "error"))
    with pytest.raises(RuntimeError) as caught:
        exact("matmul", [(8, 8), (8, 8)], ["S0", "S0"], (2,))
    text = str(caught.value)
    assert message in text and "op: `matmul`" in text
    assert "(S(0), B) -> (S(0))" in text and "a: S(0); b: S(0);" in text


def test_unknown_operators_and_steps():
    with pytest.raises(RuntimeError, match="no signatures are known for 'conv'"):
        signatures("conv", [(8, 8)])
    with pytest.raises(RuntimeError, match="steps of 1"):
        signatures("slice", [(8, 8)], start=(0, 0), stop=(8, 8), step=(1, 2))


# -- the rows compute what they say --------------------------------------------------------------------------


def values(name, shapes):
    rng = np.random.default_rng(3)
    arrays = [rng.normal(size=shape) for shape in shapes]
    if name in ("gather", "embedding"):
        arrays[1 if name == "gather" else 0] = rng.integers(0, 5, size=shapes[1 if name == "gather" else 0])
    return arrays


RUN = {
    "matmul": ([(7, 5), (5, 6)], {}, lambda a, b: a @ b),
    "bias_add": ([(7, 5), (5,)], {}, lambda a, b: a + b),
    "div": ([(7, 5), (7, 5)], {}, lambda a, b: a / b),
    "reduce_sum": ([(7, 5, 6)], {"axis": 1}, lambda x: x.sum(1)),
    "gather": ([(5, 6), (7,)], {"axis": 0}, lambda x, i: x[i]),
    "slice": ([(7, 6)], {"start": (0, 1), "stop": (7, 5)}, lambda x: x[:, 1:5]),
    "concat": ([(7, 5), (7, 3)], {"axis": 1}, lambda a, b: np.concatenate([a, b], 1)),
}


@pytest.mark.parametrize("mesh", [(2,), (3,), (2, 2), (2, 3)], ids=str)
@pytest.mark.parametrize("name", RUN)
def test_every_signature_computes_the_global_result(name, mesh):
    shapes, attrs, reference = RUN[name]
    row = find(name)
    bound = row.bind(shapes, attrs)
    world, arrays = LockStep(int(np.prod(mesh))), values(name, shapes)
    expected = reference(*arrays)
    count = 0
    for strategy in listed(row, bound, mesh):
        layouts = bound.input_layouts(strategy)
        tensors = [Tensor.from_global(x, layout, world) for x, layout in zip(arrays, layouts)]
        result = row.op.shard(strategy)(*tensors, **row.params(shapes, attrs)).full()
        np.testing.assert_allclose(result, expected, rtol=1e-11, atol=1e-11)
        count += 1
    assert count == len(signatures(name, shapes, mesh, **attrs))


def test_every_row_of_the_table_is_one_of_our_operators():
    ours = {getattr(ops, name).op.name for name in ops.__all__ if hasattr(getattr(ops, name), "op")}
    assert {row.op.name for row in table().values()} <= ours
