"""Machines: textbook times, levels, measured tables, files and published models."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

import spmdsim.ops as ops
from spmdsim import search
from spmdsim.auto_parallel.programs.networks import build_program
from spmdsim.core import Mesh, Rule, Strategy
from spmdsim.cost import (
    Link,
    Machine,
    Measurement,
    Piece,
    Rate,
    Work,
    load_cost_model,
    load_machine,
    save_machine,
)
from spmdsim.cost.closed_forms import bus_factor, message_bytes, received_per_message
from spmdsim.cost.machine import Restricted
from spmdsim.cost.machine_file import machine_to_json
from spmdsim.cost.roofline import forward_work, gradient_work, kind_of
from spmdsim.errors import InputError, RuleError
from spmdsim.imitated import imitation
from spmdsim.redistribution import plan

#: The collectives that have a price.
COLLECTIVES = (
    "all_gather", "reduce_scatter", "all_reduce", "all_to_all", "gather", "scatter", "broadcast", "reduce", "scan", "exscan",
    "permute", "exchange", "barrier", "slice",
)  # fmt: skip
TOY = Machine("toy", alpha=1.0, beta=0.01, gamma=0.001, flops=1e9, beta_memory=0.5)


def test_textbook_times_by_hand() -> None:
    # 8 ranks, 700 bytes received of an all_gather of 800: 3 steps.
    assert TOY.seconds("all_gather", 8, 700) == pytest.approx(3 + 7)
    assert TOY.seconds("reduce_scatter", 8, 700) == pytest.approx(3 + 7 + 0.7)
    # all_reduce of 80,000 bytes: long, so halving and doubling; of 8 bytes: doubling.
    assert TOY.seconds("all_reduce", 8, 140_000) == pytest.approx(6 + 1400 + 70)
    assert TOY.seconds("all_reduce", 8, 14) == pytest.approx(3 * (1 + 0.08 + 0.008))
    assert TOY.seconds("all_to_all", 8, 70_000) == pytest.approx(7 + 700)
    assert TOY.seconds("all_to_all", 8, 7) == pytest.approx(3 + 8 * 1.5 * 0.01)
    assert TOY.seconds("broadcast", 8, 10) == pytest.approx(3 * 1.1)
    assert TOY.seconds("exchange", 8, 100, messages=2) == pytest.approx(2 + 1)
    assert TOY.seconds("slice", 8, 0, copied=10) == pytest.approx(5)
    assert TOY.seconds("barrier", 9, 0) == pytest.approx(4)


def test_every_collective_has_a_price_and_one_rank_pays_nothing() -> None:
    for name in COLLECTIVES:
        assert TOY.seconds(name, 1, 0) == 0
        assert TOY.seconds(name, 4, 1000) >= 0
        grown = TOY.seconds(name, 4, 2000)
        assert grown >= TOY.seconds(name, 4, 1000)
    with pytest.raises(InputError, match="unknown collective 'shuffle'"):
        TOY.seconds("shuffle", 4, 10)
    with pytest.raises(InputError, match="unknown collective 'shuffle'"):
        TOY.seconds("shuffle", 1, 10)
    with pytest.raises(InputError, match="no price"):
        TOY.seconds("all_gather", 4, -1)


@pytest.mark.parametrize("name", [name for name in COLLECTIVES if received_per_message(name, 8)])
def test_message_and_received_bytes_are_inverse(name: str) -> None:
    assert message_bytes(name, 8, received_per_message(name, 8) * 4096) == pytest.approx(4096)


def test_bus_factors_of_nccl_tests() -> None:
    assert [bus_factor(name, 4) for name in ("all_reduce", "all_gather", "broadcast", "reduce")] == [
        1.5,
        0.75,
        1,
        1,
    ]


def test_levels_choose_the_link() -> None:
    machine = Machine("two", 10, 1, ranks_per_node=4, intra=Link(1, 0.1))
    assert machine.link(4) == Link(1, 0.1)
    assert machine.link(5) == Link(10, 1)
    assert machine.link(2, ranks=(0, 7)) == Link(10, 1)
    mesh = Mesh((2, 4), ("dp", "tp"))
    meshed = machine.on_mesh(mesh)
    assert meshed.link(4, ("tp",)) == Link(1, 0.1)
    assert meshed.link(2, ("dp",)) == Link(10, 4)  # four groups share each port
    assert meshed.link(8, ("dp", "tp")) == Link(10, 1)
    assert TOY.on_mesh(mesh) is TOY


@pytest.mark.parametrize("nbytes", [1 << 10, 1 << 20])
def test_between_nodes_the_message_size_decides_on_a_mesh_too(nbytes: int) -> None:
    """A plan prices an axis like the collective over ranks that are equally far apart."""
    pieces = (Piece(4096, 1e-6, 1e-9), Piece(math.inf, 5e-6, 4e-9))
    machine = Machine("nodes", 1e-5, 1e-8, pieces=pieces, ranks_per_node=2, intra=Link(1e-7, 1e-10))
    mesh = Mesh((2, 2), ("far", "near"))
    alone = machine.on_mesh(Mesh((2,), ("far",), (0, 2)))
    route = plan(alone.meshes[0]("far"), alone.meshes[0](None), (nbytes,), "int8", machine)
    assert route.seconds == pytest.approx(machine.seconds("all_gather", 2, nbytes // 2, ranks=(0, 2)))
    route = plan(mesh("near"), mesh(None), (nbytes,), "int8", machine)
    assert route.seconds == pytest.approx(machine.seconds("all_gather", 2, nbytes // 2, ranks=(0, 1)))
    alpha, beta = (1e-6, 1e-9) if nbytes == 1 << 10 else (5e-6, 4e-9)
    assert machine.on_mesh(mesh).link(4, ("far", "near"), nbytes=nbytes) == Link(alpha, beta)


def test_an_axis_without_a_link_has_that_of_the_machine() -> None:
    """A group takes the time of its slowest axis, with or without a link of its own."""
    machine = Machine("fast a", 1e-5, 1e-8, axis_links=(("a", Link(1e-7, 1e-10)),))
    assert machine.link(2, ("a",)) == Link(1e-7, 1e-10)
    assert machine.link(4, ("a", "b")) == machine.link(2, ("b",)) == Link(1e-5, 1e-8)
    slow = replace(machine, axis_links=(("a", Link(1e-4, 1e-10)),))
    assert slow.link(4, ("b", "a")) == Link(1e-4, 1e-8)


def test_measured_times_decide_and_are_interpolated() -> None:
    rows = tuple(
        Measurement("all_reduce", "native", 4, size, seconds)
        for size, seconds in ((100, 1e-6), (10_000, 1e-4), (1_000_000, 1e-3))
    )
    machine = Machine("measured", 1.0, 1.0, measured=rows)
    factor = received_per_message("all_reduce", 4)
    assert machine.seconds("all_reduce", 4, 10_000 * factor) == pytest.approx(1e-4)
    assert machine.seconds("all_reduce", 4, 1_000 * factor) == pytest.approx(1e-5)
    assert machine.seconds("all_reduce", 4, 1 * factor) == pytest.approx(1e-6)
    assert machine.seconds("all_reduce", 4, 10_000_000 * factor) == pytest.approx(1e-2)
    # Other group sizes, collectives and algorithms are not covered by the table.
    assert machine.seconds("all_reduce", 2, 10_000) > 1
    assert machine.seconds("all_gather", 4, 10_000) > 1
    assert machine.seconds("all_reduce", 4, 10_000, algorithm="ring") > 1


@pytest.mark.parametrize("size", [0, 1])
def test_a_time_of_no_bytes_says_nothing_of_more(size: int) -> None:
    """A proportional rule would give 1.4 seconds for a megabyte."""
    machine = Machine("empty", 1e-6, 1e-10, measured=(Measurement("all_reduce", "native", 4, size, 1e-6),))
    assert machine.seconds("all_reduce", 4, 0) == pytest.approx(1e-6)
    megabyte = machine.seconds("all_reduce", 4, 1 << 20)
    assert megabyte == replace(machine, measured=()).seconds("all_reduce", 4, 1 << 20) < 1e-3


def test_pieces_hold_up_to_their_limit() -> None:
    machine = Machine("p", 9, 9, pieces=(Piece(100, 1, 0.1), Piece(float("inf"), 5, 0.01)))
    assert machine.piece(100) == Link(1, 0.1)
    assert machine.piece(101) == Link(5, 0.01)


def parse_machine(folder: Path, text: str) -> Machine:
    """Return the machine of a file with this text."""
    (folder / "machine.json").write_text(text)
    return load_machine(str(folder / "machine.json"))


def test_machines_are_values(tmp_path) -> None:
    assert Machine.laptop() == Machine.laptop()
    assert hash(parse_machine(tmp_path, machine_to_json(Machine.cluster()))) == hash(Machine.cluster())
    assert Machine("a", 1, 1) != Machine("a", 1, 2)
    with pytest.raises(InputError, match="beta is -1"):
        Machine("bad", 1, -1)
    with pytest.raises(InputError, match="flops"):
        Machine("bad", 1, 1, flops=0)
    with pytest.raises(
        InputError, match="intra and ranks_per_node, or intra and nodes, must be passed together"
    ):
        Machine("bad", 1, 1, ranks_per_node=4)


def test_machine_files_round_trip(tmp_path) -> None:
    machine = Machine(
        "lab", 1.5e-6, 2e-10, 1e-10, 5e10, 6e-11, 4, Link(1e-7, 1e-11), (("tp", Link(1e-6, 1e-10)),),
        (Piece(8192, 1e-6, 1e-9), Piece(float("inf"), 5e-6, 1e-10)),
        measured=(Measurement("all_reduce", "native", 2, 1024, 1e-5),), memory_bytes=2**30,
        overhead=1e-8, overhead_per_byte=1e-12, eager_bytes=4096,
        reduce_pieces=(Piece(float("inf"), 1e-7, 1e-10),), copy_pieces=(Piece(float("inf"), 2e-7, 5e-11),),
    )  # fmt: skip
    path = tmp_path / "lab.json"
    save_machine(machine, path, {"fit": "median error 3 %"})
    assert load_machine(str(path)) == machine
    assert "_fit" in json.loads(path.read_text())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{\n", "not JSON: Expecting"),
        ('{"alpha": 1,\n}', "not JSON, line 2"),
        ("[1]", "one JSON object, got [1]"),
        ('{"alpha": 1}', "'beta' is missing"),
        ('{"alpha": "fast", "beta": 1}', "'alpha' is 'fast'; it has to be a number"),
        ('{"alpha": 1, "beta": 1, "bandwidth": 3}', "unknown key 'bandwidth'"),
        ('{"alpha": 1, "beta": -1}', "beta is -1"),
        ('{"alpha": 1, "beta": 1, "ranks_per_node": 2.5}', "a whole number"),
        ('{"alpha": 1, "beta": 1, "ranks_per_node": 2, "intra": {"alpha": 1}}', "'intra' is"),
        ('{"alpha": 1, "beta": 1, "axis_links": 3}', "'axis_links' is 3"),
        ('{"alpha": 1, "beta": 1, "pieces": [[1, 2]]}', "pieces 0 is"),
        ('{"alpha": 1, "beta": 1, "pieces": [[9, 1, 1], [3, 1, 1]]}', "must ascend"),
        ('{"alpha": 1, "beta": 1, "copy_pieces": [[9, 1, 1], [9, 2, 1]]}', "'copy_pieces' must ascend"),
        ('{"alpha": 1, "beta": 1, "pieces": [[0, 1, 1], [null, 1, 1]]}', "ascend from above 0"),
        ('{"alpha": 1, "beta": 1, "pieces": [[NaN, 1, 1], [null, 1, 1]]}', "ascend from above 0"),
        ('{"alpha": 1, "beta": 1, "memory_bytes": -1}', "memory_bytes is -1"),
        ('{"alpha": 1, "beta": 1, "eager_bytes": -1}', "eager_bytes is -1"),
        (
            '{"alpha": 1, "beta": 1, "overhead": 0.6}',
            "overhead is 0.6; it has to be at most half of the smallest alpha, 0.5",
        ),
        (
            '{"alpha": 1, "beta": 1, "pieces": [[8, 1, 0.5]], "overhead_per_byte": 0.3}',
            "overhead_per_byte is 0.3",
        ),
        ('{"alpha": 1' + 320 * "0" + ', "beta": 1}', "'alpha' is too large"),
        (
            '{"alpha": 1, "beta": 1, "measured": [["a", "b", 2, 8, 1' + 320 * "0" + "]]}",
            "'measured' is too large",
        ),
        ('{"alpha": 1, "beta": 1, "measured": [["all_reduce", "ring", 2, 8, Infinity]]}', "finite"),
        ('{"alpha": 1, "beta": 1, "measured": [["all_reduce", "ring", 2, 8]]}', "measured row 0"),
        ('{"alpha": 1, "beta": 1, "measured": [["all_reduce", "ring", 2, 8, 0]]}', "greater than 0"),
        ('{"alpha": 1, "beta": 1, "measured": [["allreduce", "native", 2, 8, 1]]}', "'allreduce'"),
        ('{"alpha": 1, "beta": 1, "measured": [["all_reduce", "native", true, 8, 1]]}', "measured row 0"),
        ('{"alpha": true, "beta": 1}', "'alpha' is True"),
        ('{"alpha": NaN, "beta": 1}', "alpha is nan"),
    ],
)
def test_damaged_machine_files_give_one_line(tmp_path, text: str, words: str) -> None:
    path = tmp_path / "damaged.json"
    path.write_text(text)
    with pytest.raises(InputError) as error:
        load_machine(str(path))
    assert words in str(error.value) and "damaged.json" in str(error.value)
    assert "\n" not in str(error.value)


def test_missing_machine_file_and_names() -> None:
    with pytest.raises(InputError, match=r"cannot read machine '/no/such': .*laptop, cluster, accelerators"):
        load_machine("/no/such")
    assert load_machine("cluster") is Machine.cluster()
    assert load_cost_model("alpa").name == "alpa"
    assert load_cost_model("laptop") is Machine.laptop()


def test_published_models_by_their_formulas() -> None:
    n, size = 8, 4096.0
    q = (n - 1) / n
    alpa = imitation("cost model", "alpa")(("x", "y"), (1.0, 2.0), (1.0, 0.1))
    assert alpa.seconds("all_gather", n, q * size, ("x",)) == pytest.approx(1 + size * q + 0.1)
    assert alpa.seconds("all_reduce", n, 2 * q * size, ("y",)) == pytest.approx(2 + 0.1 * 2 * size * q + 0.01)
    assert alpa.seconds("reduce_scatter", n, q * size, ("x",)) == pytest.approx(1 + size * q + 0.001)
    a2a = 1 + size * (n - 1) / n**2 * (n / 2) + 0.001
    assert alpa.seconds("all_to_all", n, q * size / n, ("x",)) == pytest.approx(a2a)
    dtensor = imitation("cost model", "dtensor")(("tp",))
    gigabytes = size / 2**30
    assert dtensor.seconds("all_reduce", n, 2 * q * size, ("tp",)) == pytest.approx(
        6.6 + 14 * 0.6 + gigabytes * 14 / n / 87.7 * 1e6
    )
    assert dtensor.seconds("all_to_all", n, q * size) == pytest.approx(
        6.6 + 7 * 2.7 + gigabytes * 7 / n / 19.294 * 1e6 + 1.0
    )
    oneflow = load_cost_model("oneflow")
    assert oneflow.seconds("all_to_all", n, q * size / n) == pytest.approx(size * q)
    assert oneflow.seconds("slice", n, 0) == 1.0


def test_mindspore_redistribution_costs() -> None:
    mindspore = imitation("cost model", "mindspore")
    model = mindspore(beta=1.0)
    assert model.forward_bytes("all_gather", 4, 300) == 200
    assert model.forward_bytes("all_to_all", 4, 75) == 200
    assert model.seconds("slice", 4, 0, copied=100) == 100
    assert [model.refine(x) for x in (0, 1, 2048, 2049, 10000)] == [0, 3072, 3072, 3073, 11024]
    assert mindspore(beta=1.0, practical=True).seconds("all_gather", 4, 300) == 3072


def test_roofline_takes_the_slower_of_two() -> None:
    machine = Machine("r", 0, 0, flops=1e9, beta_memory=1e-8)
    assert Work(1e9, 1e6).seconds(machine) == pytest.approx(1.0)
    assert Work(1e6, 1e9).seconds(machine) == pytest.approx(10.0)
    bounds = [Work(flops, 1).bound(machine) for flops in (10 - 1e-9, 10 + 1e-9)]
    assert bounds == ["memory", "compute"]


RATED = replace(TOY, rates=(Rate("elements", 0.0, 3.0), Rate("passes", 5.0, 0.0)))


def test_classes_of_operators_have_their_own_rates() -> None:
    works = {kind: Work(100, 40, kind) for kind in ("", "product", "elements", "passes")}
    plain = {kind: work.seconds(TOY) for kind, work in works.items()}
    assert set(plain.values()) == {20.0}
    assert {kind: work.seconds(RATED) for kind, work in works.items()} == {
        "": 20.0, "product": 20.0, "elements": 120.0, "passes": 500.0,
    }  # fmt: skip
    assert works["passes"].seconds(Restricted(RATED, frozenset({"exchange"}))) == 500.0
    assert works["passes"].seconds(load_cost_model("dtensor")) == works[""].seconds(
        load_cost_model("dtensor")
    )


def test_rates_are_kept_in_the_machine_file(tmp_path) -> None:
    assert parse_machine(tmp_path, machine_to_json(RATED)) == RATED
    assert parse_machine(tmp_path, machine_to_json(TOY)).rates == ()
    for text, words in (
        ('{"passes": 3}', "'rates' 'passes' is 3; it has to map"),
        ("[1]", "'rates' is "),
        ('{"pases": [1, 0]}', "'rates' has an unknown class 'pases'; did you mean 'passes'?"),
        ('{"": [1, 0]}', "'rates' has an unknown class ''"),
        ('{"passes": [-1, 0]}', "rate of passes is -1.0; it has to be a number >= 0"),
    ):
        with pytest.raises(InputError, match=re.escape(words)):
            parse_machine(tmp_path, f'{{"alpha": 1, "beta": 1, "rates": {text}}}')


@pytest.mark.parametrize(
    ("name", "shapes", "params", "kind"),
    [
        ("matmul", [(4, 5), (5, 6)], {}, "product"),
        ("multiply", [(4, 5), (4, 5)], {}, "elements"),
        ("relu", [(4, 5)], {}, "elements"),
        ("exp", [(4, 5)], {}, "functions"),
        ("tanh", [(4, 5)], {}, "functions"),
        ("gelu", [(4, 5)], {}, "passes"),
        ("softmax", [(4, 5)], {"dim": 1}, "passes"),
        ("layer_norm", [(4, 5), (5,), (5,)], {"epsilon": 1e-5}, "passes"),
        ("cross_entropy", [(4, 5), (4,)], {}, "passes"),
        ("embedding", [(4,), (5, 6)], {}, "lookup"),
    ],
)
def test_the_class_of_an_operator_follows_from_its_rule(name, shapes, params, kind) -> None:
    assert kind_of(getattr(ops, name).op.bind(shapes, params)) == kind


def test_a_class_that_is_none_is_refused() -> None:
    with pytest.raises(RuleError, match="work must be 'elements', 'functions' or 'passes', got 'fast'"):
        Rule.parse("... -> ...", work="fast")


def test_gradients_cost_as_often_the_forward_work_as_the_rule_says() -> None:
    alone = Strategy.of(Mesh((1,), ("p",)), {})
    rows = {"gelu": ([(6, 8)], {}), "layer_norm": ([(6, 8), (8,), (8,)], {"epsilon": 1e-5})}
    rows |= {"rms_norm": ([(6, 8), (8,)], {"epsilon": 1e-5}), "softmax": ([(6, 8)], {"dim": -1})}
    for name, (shapes, params) in rows.items():
        bound = getattr(ops, name).op.bind(shapes, params)
        forward, gradient = (work(bound, alone, [4] * len(shapes)) for work in (forward_work, gradient_work))
        times = 1 if name == "softmax" else 3
        assert gradient == Work(times * forward.flops, times * forward.nbytes, "passes")
    rules = {operator.kind: operator.bound.rule for operator in build_program("gpt").operators}
    for name in ("gelu", "layer_norm"):  # programs that are searched cost what runs
        assert rules[name].backward == getattr(ops, name).op.bind(*rows[name]).rule.backward
    machine, shapes = Machine("m", 0, 0, flops=1.0), {"x": (6, 8)}
    without = search(lambda x: ops.gelu(x), alone.mesh, machine=machine, inputs=shapes, training=False)
    trained = search(lambda x: ops.gelu(x), alone.mesh, machine=machine, parameters=shapes)
    assert (without.seconds, trained.seconds) == (48, 48 + 3 * 48)


def test_what_the_busiest_rank_does_by_hand() -> None:
    mesh = Mesh((2, 2), ("a", "b"))
    product = ops.matmul.op.bind([(5, 6), (6, 9)], {})
    both = Strategy.of(mesh, {"m": "a", "n": "b"})
    assert forward_work(product, both, (4, 8)) == Work(2 * 3 * 6 * 5, 4 * 18 + 8 * 30 + 8 * 15, "product")
    assert gradient_work(product, both, (4, 8)) == forward_work(product, both, (4, 8))
    rows = ops.embedding.op.bind([(7,), (100, 6)], {})
    split = Strategy.of(mesh, {"v": "a", "h": "b"})
    assert forward_work(rows, split, (8, 4)) == Work(21, 7 * 8 + 2 * 21 * 4, "lookup")
    assert gradient_work(rows, split, (8, 4)).nbytes == 7 * 8 + 2 * 21 * 4 + 50 * 3 * 4
