"""A wrong name or argument in a Python call gets the nearest correct one in one line, like in commands."""

from __future__ import annotations

import subprocess
import sys
from operator import attrgetter
from pathlib import Path

import numpy as np
import pytest

import spmdsim
from spmdsim import (
    Layout,
    LockStep,
    Machine,
    Mesh,
    Op,
    Partial,
    Replicate,
    Rule,
    Shard,
    SpmdError,
    Tensor,
    check,
    check_replicas,
    compile,
    cost,
    dialects,
    fft,
    linalg,
    local,
    matmul,
    nn,
    ops,
    plan,
    record,
    search,
    simulate,
    world,
)
from spmdsim.arrays import checkpoint
from spmdsim.cli.main import main
from spmdsim.collectives import collective, lower_bound, make_schedule, run_lock_step, schedule_of, verify
from spmdsim.cost import parse_topology, predict, price
from spmdsim.errors import InputError, LayoutError, RuleError, UsageTypeError

MESH = Mesh((2, 4), ("dp", "tp"))
A = np.ones((8, 8))


@pytest.fixture
def x() -> Tensor:
    return Tensor.from_global(A, MESH("dp", "tp"), LockStep(8))


@pytest.mark.parametrize(
    ("module", "name", "nearest"),
    [
        (nn, "ReLU", "nearest: spmdsim.relu"),
        (nn, "Lineer", "nearest: 'Linear'"),
        (nn, "CrossEntropyLoss", "nearest: 'cross_entropy'"),
        (ops, "sofmax", "nearest: 'softmax'"),
        (ops, "mse_loss", "nearest: spmdsim.nn.mse_loss"),
        (ops, "cat", "nearest: 'concat'"),
        (linalg, "invert", "nearest: 'inv'"),
        (fft, "ftt", "nearest: 'fft'"),
        (local, "all_reduce", "nearest: tensor.to(layout), or spmdsim.local.psum in a local function"),
        (spmdsim, "allreduce", "nearest: tensor.to(layout), or spmdsim.local.psum in a local function"),
        (spmdsim, "Tenser", "nearest: 'Tensor'"),
        (spmdsim.array_api, "ones_lke", "nearest: 'ones_like'"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_wrong_name_gets_the_nearest(module, name: str, nearest: str) -> None:
    with pytest.raises(AttributeError) as raised:
        getattr(module, name)
    assert str(raised.value) == f"module {module.__name__!r} has no attribute {name!r}; {nearest}"


def test_a_name_without_a_near_one_gets_no_hint() -> None:
    with pytest.raises(
        AttributeError, match=r"has no attribute 'Conv2d'$"
    ):  # The name linalg.cond is not near enough.
        _ = nn.Conv2d  # type: ignore[attr-defined]
    for name in ("qqqqqq", "_private", "__wrapped__"):
        with pytest.raises(AttributeError, match=rf"^module 'spmdsim.ops' has no attribute '{name}'$"):
            getattr(ops, name)


def test_a_submodule_is_imported_without_a_search_for_names() -> None:
    # `from spmdsim import errors` looks for an attribute of the package first. This must load no NumPy and no operators.
    code = (
        "import sys; from spmdsim import errors; print('numpy' in sys.modules, 'spmdsim.ops' in sys.modules)"
    )
    root = Path(__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: nn.SGD([], lr=0.1),
            "SGD has no argument 'lr'; did you mean 'rate'? it takes parameters, rate",
        ),
        (lambda: nn.Adam([], eps=0.1), "Adam has no argument 'eps'; did you mean 'epsilon'?"),
        (lambda: nn.Linear(in_features=3), "Linear has no argument 'in_features'; did you mean 'n_in'?"),
        (
            lambda: nn.clip([]),
            "clip: argument 'largest' is missing (the largest norm that the gradients may have afterwards)",
        ),
        (lambda: nn.Parameter((4, 4)), "Parameter: argument 'layout' is missing"),
        (
            lambda: search(lambda x: x, {"x": (4, 4)}),
            "search: mesh_or_ranks must be a mesh, a list of meshes or a number of ranks, got {'x': (4, 4)}",
        ),
        (
            lambda: nn.Linear(3, 4),
            "Linear: argument 'weight' is missing (layout of [n_in, n_out]); it is called as Linear(",
        ),
        (
            lambda: nn.Linear(3, 4, MESH("tp", None), outputs=1),
            "Linear has no argument 'outputs'; did you mean 'output'?",
        ),
        (lambda: nn.Sequential(module=3), "Sequential has no argument 'module'"),
        (lambda: Machine(alpa=1), "Machine has no argument 'alpa'; did you mean 'alpha'?"),
        (lambda: LockStep(ranks=4), "LockStep has no argument 'ranks'; it takes size"),
        (
            lambda: Op("f", Rule.parse("... -> ..."), np.exp, vjs=1),
            "Op has no argument 'vjs'; did you mean 'vjp'?",
        ),
        (
            lambda: plan(MESH("dp"), MESH("tp")),
            "plan: argument 'shape' is missing (global shape); it is called as plan(",
        ),
        (
            lambda: plan(MESH("dp"), MESH("tp"), (8,), dtyp="f4"),
            "plan has no argument 'dtyp'; did you mean 'dtype'?",
        ),
        (
            lambda: plan(MESH("dp"), MESH("tp"), (8,), shape=(8,)),
            "plan: argument 'shape' is given by its place and by its name",
        ),
        (lambda: search(inputs={"y": (3, 4)}), "search: argument 'program' is missing"),
        (lambda: search(lambda x: x, 8, inputs={"y": (8, 8)}), "<lambda> has no argument 'y'; it takes x"),
        (lambda: simulate(), "simulate: argument 'program' is missing"),
        (lambda: simulate("program.py", 4, rank=3), "simulate has no argument 'rank'; it takes program, n"),
        (lambda: Mesh((2,), axis=("dp",)), "Mesh has no argument 'axis'; did you mean 'axes'?"),
        (
            lambda: Mesh((2,)),
            "Mesh: argument 'axes' is missing (one distinct name per axis); it is called as Mesh(",
        ),
        (lambda: Mesh((2,), "a", None, 3), "Mesh takes at most 3 arguments by their place, got 4"),
        (lambda: MESH("dp", partal="tp"), "mesh has no argument 'partal'; did you mean 'partial'?"),
        (lambda: MESH.axis_index(0), "axis 0 is not found in the mesh; there are dp, tp"),
        (lambda: MESH("dpp"), "axis 'dpp' is not found in the mesh; did you mean 'dp'?"),
        (lambda: world(siz=4), "world has no argument 'siz'; did you mean 'size'?"),
        (
            lambda: Tensor.from_global(A, layuot=MESH("dp", "tp")),
            "Tensor.from_global has no argument 'layuot'; did you mean 'layout'?",
        ),
        (
            lambda: Tensor.from_global(A),
            "Tensor.from_global: argument 'layout' is missing (the layout of the tensor); it is called as Tensor.from_global(",
        ),
        (
            lambda: Tensor.from_local([A], MESH("dp"), shap=(8,)),
            "Tensor.from_local has no argument 'shap'; did you mean 'shape'?",
        ),
        (lambda: Tensor.zeros(), "Tensor.zeros: argument 'shape' is missing"),
        (
            lambda: Tensor.ones((8,), layot=MESH("dp")),
            "ones has no argument 'layot'; did you mean 'layout'?",
        ),
        (lambda: compile(static=True), "compile has no argument 'static'; it takes function"),
        (
            lambda: local.local_map(in_layout=MESH("dp")),
            "local_map has no argument 'in_layout'; did you mean 'in_layouts'?",
        ),
        (lambda: local.psum(A), "psum: argument 'axis_name' is missing (an axis of the mesh"),
        (
            lambda: ops.matmul.shard(in_strateg=()),
            "OperatorFunction.shard has no argument 'in_strateg'; did you mean 'in_strategy'?",
        ),
        (lambda: record(3), "record takes at most 0 arguments by their place, got 1"),
        (lambda: check_replicas(nme="x"), "check_replicas has no argument 'nme'; did you mean 'name'?"),
        (lambda: checkpoint.load(foldr="x"), "load has no argument 'foldr'; did you mean 'folder'?"),
        (
            lambda: check(Tensor.from_global(A, MESH("dp", "tp"), LockStep(8))),
            "check: argument 'reference' is missing",
        ),
        (lambda: Shard(dimm=0), "Shard has no argument 'dimm'; did you mean 'dim'? it takes dim"),
        (lambda: Shard(), "Shard: argument 'dim' is missing; it is called as Shard(dim)"),
        (lambda: Replicate(dim=0), "Replicate has no argument 'dim'; it is called as Replicate()"),
        (
            lambda: Layout(MESH, dim=("dp",)),
            "Layout has no argument 'dim'; did you mean 'dims'? it takes mesh, dims, partial",
        ),
        (lambda: Layout(MESH), "Layout: argument 'dims' is missing"),
        (lambda: Rule(txt="m -> m"), "Rule has no argument 'txt'; did you mean 'text'?"),
        (
            lambda: Rule.parse("m -> m", liner="each"),
            "Rule.parse has no argument 'liner'; did you mean 'linear'?",
        ),
        (lambda: Rule.parse(), "Rule.parse: argument 'text' is missing"),
        (lambda: make_schedule(size=4), "make_schedule: argument 'chosen' is missing"),
        (
            lambda: make_schedule("ring", 4),
            "make_schedule: chosen must be an Algorithm, got 'ring'; take one from algorithm(collective, name)",
        ),
        (
            lambda: schedule_of("all_reduce", "ring", "4"),
            "make_schedule: size and root are integers, but got ('4', 0)",
        ),
        (lambda: Shard(dimension=0), "Shard has no argument 'dimension'; did you mean 'dim'? it takes dim"),
        (lambda: Partial(reduce_op="sum"), "Partial has no argument 'reduce_op'; did you mean 'op'?"),
        (lambda: Layout(MESH, dimensions=()), "Layout has no argument 'dimensions'; did you mean 'dims'?"),
        (lambda: schedule_of("all_reduce", nme="ring"), "schedule_of: argument 'algorithm_name' is missing"),
        (lambda: predict(machin=1), "predict has no argument 'machin'; did you mean 'machine'?"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_wrong_arguments_get_the_right_ones(call, message: str) -> None:
    with pytest.raises((UsageTypeError, LayoutError)) as raised:
        call()
    assert str(raised.value).startswith(message) and "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: Mesh(2.5, ("a", "b")), "mesh shape must be integers, but got 2.5"),
        (lambda x: Mesh((2, 4), 5), "axis names must be strings, but got 5"),
        (lambda x: Mesh((8,), ("a",), 8), "ranks must be a list of integers, but got 8"),
        (
            lambda x: Mesh((2, 4), ("a",)),
            "axes must have one name per size of the shape (2, 4), got ('a',)",
        ),
        (lambda x: Layout("dp=2", ("dp",)), "Layout: mesh must be a Mesh, got 'dp=2'"),
        (
            lambda x: Layout(MESH, 3),
            "dims must be a tuple with an axis name, names or None per dim, but got 3",
        ),
        (lambda x: MESH(np.float32(2)), "a dim must be an axis name, a tuple of names or None, got "),
        (
            lambda x: MESH(None, partial=None),
            "partial must be axis names, or a mapping such as {'tp': 'sum'}, but",
        ),
        (
            lambda x: MESH(None, partial=[3]),
            "partial must be axis names, or a mapping such as {'tp': 'sum'}, but",
        ),
        (lambda x: MESH.coords("x"), "rank x is not in the mesh dp=2 tp=4, which holds ranks 0..7"),
        (lambda x: Rule.parse(3), "a rule must be a text with one '->', such as 'm k, k n -> m n', got 3"),
        (
            lambda x: Rule.parse("m -> m", linear=3),
            "linear must be none, each, all or sets of operands, got 3",
        ),
        (
            lambda x: Op("f", "m -> m", np.exp),
            "Op: rule must be a Rule (Rule.parse) or a function, got 'm -> m'",
        ),
        (
            lambda x: ops.matmul.shard(None),
            "matmul: in_strategy must be cuts, layouts or a mapping, got None",
        ),
        (
            lambda x: ops.matmul.shard((3, 4))(x, x),
            "operand 0 of shape (8, 8) has 2 dims, but its strategy is 3",
        ),
        (
            lambda x: ops.matmul.shard((("2", 1), (1, 1)))(x, x),
            "dim 0 of operand 0 must have 1 or more blocks, got 2",
        ),
        (lambda x: ops.matmul.shard({"m": 2}), "the axes of factor 'm' must be names, but got 2"),
        (
            lambda x: ops.matmul.shard(((2, 1), (1, 1)), 4)(x, x),
            "out_strategy must have one entry per dim, 2, got 4",
        ),
        (lambda x: x.backward(np.ones((8, 8))), "backward: gradient must be a tensor or None, got ndarray"),
        (
            lambda x: run_lock_step("ring", [A]),
            "schedule must be a Schedule, got 'ring'; build one with schedule_of(",
        ),
        (
            lambda x: run_lock_step(schedule_of("all_reduce", "ring", 2), None),
            "inputs must be a list of one array per rank, 2, got None",
        ),
        (lambda x: verify("ring"), "schedule must be a Schedule, got 'ring'; build one with schedule_of("),
        (
            lambda x: lower_bound("all_reduce", 0),
            "lower_bound: size must be a number of ranks of 1 or more, got 0",
        ),
        (lambda x: collective(None), "there is no collective None; known are "),
        (
            lambda x: price(schedule_of("all_reduce", "ring", 2), "laptop", 8),
            "price: machine must be a Machine or",
        ),
        (lambda x: price("ring", Machine.laptop(), 8), "schedule must be a Schedule, got 'ring'"),
        (
            lambda x: predict("all_reduce", "laptop", [2], [8]),
            "predict: machine must be a Machine or another cost model",
        ),
        (lambda x: predict("all_reduce", Machine.laptop(), 2, [8]), "predict: ranks are integers, but got 2"),
        (
            lambda x: predict("all_reduce", Machine.laptop(), [0], [8]),
            "predict: ranks must be a list of numbers of 1 or more, got [0]",
        ),
        (
            lambda x: parse_topology("ring", 4, "laptop"),
            "parse_topology: machine must be a Machine or another cost",
        ),
        (lambda x: Machine("m", "fast", 1e-9), "machine 'm': alpha is fast; it has to be a number >= 0"),
        (
            lambda x: plan(x.layout, MESH(None, None), (8, 8), machine="laptop"),
            "plan: machine must be a Machine or another cost model, got 'laptop'; use load_machine(name)",
        ),
        (
            lambda x: search("mlp", 4, machine="laptop"),
            "search: machine must be a Machine or another cost model",
        ),
        (
            lambda x: search(5, 4),
            "search: program must be a function, a Graph or the name of a built-in program, got 5",
        ),
        (
            lambda x: search("mlp", 4, memory="2GB"),
            "search: memory must be a number of bytes above 0, got '2GB'",
        ),
        (lambda x: world(8, "dp=8"), "world: mesh must be a Mesh, got 'dp=8'"),
        (lambda x: spmdsim.figure(x.layout, 8), "figure: shape must be a tuple of sizes, but got 8"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_error_about_a_value_of_a_wrong_type_is_one_line(x: Tensor, call, message: str) -> None:
    with pytest.raises(SpmdError) as raised:
        call(x)
    assert str(raised.value).startswith(message) and "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: x.to(layuot=x.layout), "Tensor.to has no argument 'layuot'; did you mean 'layout'?"),
        (lambda x: x.to(x.layout, 3), "Tensor.to takes at most 1 argument by their place, got 2"),
        (lambda x: x.sum(axes=0), "Tensor.sum has no argument 'axes'; did you mean 'axis'?"),
        (lambda x: x.max(0, False, 3), "Tensor.max takes at most 2 arguments by their place, got 3"),
        (
            lambda x: x.reshape((64,), layot=None),
            "Tensor.reshape has no argument 'layot'; did you mean 'layout'?",
        ),
        (lambda x: x.transpose(prem=(1, 0)), "Tensor.transpose has no argument 'prem'; did you mean 'perm'?"),
        (lambda x: x.astype(), "Tensor.astype: argument 'dtype' is missing"),
        (lambda x: x.argmax(axs=1), "Tensor.argmax has no argument 'axs'; did you mean 'axis'?"),
        (lambda x: x.flatten(strat=1), "Tensor.flatten has no argument 'strat'; did you mean 'start'?"),
        (lambda x: x.squeeze(axs=1), "squeeze has no argument 'axs'; did you mean 'axis'?"),
        (lambda x: x.sort(axs=1), "sort has no argument 'axs'; did you mean 'axis'?"),
        (lambda x: x.clip(mn=1), "clip has no argument 'mn'; did you mean 'min'?"),
        (lambda x: x.local(rnk=1), "Tensor.local has no argument 'rnk'; did you mean 'rank'?"),
        (
            lambda x: x.backward(retain=True),
            "Tensor.backward has no argument 'retain'; did you mean 'retain_graph'?",
        ),
        (lambda x: x.check_replicas(1), "Tensor.check_replicas takes at most 0 arguments by their place"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_methods_of_tensors_name_their_arguments(x: Tensor, call, message: str) -> None:
    with pytest.raises(UsageTypeError) as raised:
        call(x)
    assert str(raised.value).startswith(message) and "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("name", "near"), [("reshap", "reshape"), ("layuot", "layout"), ("requires_gard", "requires_grad")]
)
def test_a_wrong_attribute_of_a_tensor_gets_the_nearest(x: Tensor, name: str, near: str) -> None:
    with pytest.raises(AttributeError, match=rf"no attribute '{name}'; did you mean '{near}'\?$"):
        getattr(x, name)


@pytest.mark.ranks(2)
def test_every_rank_refuses_wrong_arguments_and_continues(world) -> None:
    # The ranks refuse the call before they send messages, so all can continue.
    mesh = Mesh((world.size,), ("dp",))
    y = Tensor.from_global(A, mesh("dp", None), world)
    for call in (lambda: y.to(layuot=y.layout), lambda: mesh(None, partal="dp"), lambda: y.sum(axes=0)):
        with pytest.raises(UsageTypeError, match="did you mean"):
            call()
    assert y.to(mesh(None, None)).sum().item() == A.sum()


def test_an_error_inside_of_a_call_stays_unchanged(x: Tensor) -> None:
    def loss(y):
        raise TypeError("of its own")

    with pytest.raises(TypeError, match=r"^of its own$"):
        nn.Sequential(loss)(x)
    with pytest.raises(TypeError, match=r"^of its own$"):
        search(loss, 4, inputs={"y": (4,)})


def test_operators_name_their_arguments(x: Tensor) -> None:
    with pytest.raises(UsageTypeError, match=r"^softmax has no argument 'dimm'; did you mean 'dim'"):
        ops.softmax(x, dimm=1)
    with pytest.raises(UsageTypeError, match=r"^softmax takes at most 2 arguments by their place, got 4"):
        ops.softmax(x, 1, 2, 3)
    with pytest.raises(UsageTypeError, match=r"^linear has no argument 'biass'; did you mean 'bias'"):
        ops.linear(x, x, biass=3)


@pytest.mark.parametrize(
    ("path", "argument"),
    [
        ("torch.layout", "mesh"),
        ("jax.parse", "text"),
        ("oneflow.tensor", "data"),
        ("oneflow.ones_like", "x"),
        ("oneflow.placement", "type"),
        ("oneflow.sbp.parse", "text"),
        ("mindspore.grad", "fn"),
        ("mindspore.mint.zeros", "size"),
        ("mindspore.communication.create_group", "group"),
        ("mindspore.dataset.vision.Rescale", "rescale"),
        ("paddle.to_tensor", "data"),
        ("paddle.distributed.shard_tensor", "data"),
        ("paddle.static.program_guard", "main_program"),
        ("paddle.nn.ClipGradByNorm", "clip_norm"),
    ],
)
def test_functions_of_dialects_name_the_missing_argument(path: str, argument: str) -> None:
    function = attrgetter(path)(dialects)
    name = path.rpartition(".")[2]
    with pytest.raises(
        UsageTypeError, match=rf"^{name}: argument '{argument}' is missing.*it is called as {name}\("
    ):
        function()


def test_operators_of_elements_name_their_operands(x: Tensor) -> None:
    for call, message in (
        (lambda: ops.exp(X=1), "exp has no argument 'X'; did you mean 'x'? it takes x"),
        (lambda: ops.exp(x=x), "exp takes 'x' by its place, not by its name; it is called as exp(x, /)"),
        (lambda: ops.exp(), "exp: argument 'x' is missing (the tensor); it is called as exp(x, /)"),
        (lambda: ops.relu(x, x), "relu takes at most 1 argument by their place, got 2"),
        (lambda: ops.add(x, B=x), "add has no argument 'B'; did you mean 'b'? it takes a, b"),
        (
            lambda: ops.add(x),
            "add: argument 'b' is missing (a tensor, an array or a number); it is called as add(a, b, /)",
        ),
        (lambda: ops.less(b=x), "less takes 'b' by its place, not by its name"),
        (lambda: spmdsim.array_api.sqrt(x, out=x), "sqrt has no argument 'out'; it takes x"),
    ):
        with pytest.raises(UsageTypeError) as raised:
            call()
        assert str(raised.value).startswith(message) and "\n" not in str(raised.value)


#: Classes whose objects the package makes, and functions that the package calls.
MADE_BY_THE_PACKAGE = {"Tensor", "Verdict", "Strategy", "Module", "Optimiser", "LocalFunction"} | {
    "ones", "zeros", "__array_namespace_info__",
}  # fmt: skip


def test_every_public_function_names_a_wrong_keyword() -> None:
    count = 0
    for module in (spmdsim, ops, nn, local, linalg, fft, spmdsim.array_api):
        for name in module.__all__:
            function = getattr(module, name)
            is_error = isinstance(function, type) and issubclass(function, Exception)
            if not callable(function) or is_error or name in MADE_BY_THE_PACKAGE:
                continue
            count += 1
            with pytest.raises(SpmdError) as raised:
                function(zzword=1)
            assert "\n" not in str(raised.value) and "argument" in str(raised.value), name
    assert count > 300


def test_a_loss_of_wrong_operands_names_itself() -> None:
    for loss in (
        nn.cross_entropy,
        nn.mse_loss,
        nn.l1_loss,
        nn.binary_cross_entropy,
        nn.smooth_l1_loss,
    ):
        for operands in ((3, 4), (A, A), ([1.0], [0])):
            with pytest.raises(UsageTypeError, match=rf"^{loss.__name__} takes tensors, but got "):
                loss(*operands)


def test_a_loss_of_shapes_that_do_not_fit_names_itself(x: Tensor) -> None:
    for loss in (nn.mse_loss, nn.l1_loss, nn.binary_cross_entropy, nn.smooth_l1_loss):
        with pytest.raises(RuleError, match=rf"\[operator: {loss.__name__}; operands: "):
            loss(x, np.ones((8, 5)))


def test_check_names_the_order_of_its_arguments(x: Tensor) -> None:
    with pytest.raises(
        UsageTypeError, match=r"^check: tensor must be a Tensor, got ufunc; the tensor comes first: check\(y"
    ):
        check(np.matmul, x)
    with pytest.raises(
        UsageTypeError,
        match=r"^check: tensor must be a Tensor, got ndarray; make one with Tensor.from_global",
    ):
        check(A, A)
    for function in (np.matmul, lambda a, b: a @ b, lambda a: a * 2.0):
        with pytest.raises(
            UsageTypeError,
            match=r"give a function of arrays its arrays: check\(y, .*, operands=\(a, b\)\)",
        ):
            check(x, function)
    assert check(x, lambda index: A[index])


def test_a_tensor_of_several_elements_names_the_refused_conversion(x: Tensor) -> None:
    for function in (float, int, complex):
        with pytest.raises(
            InputError, match=rf"^{function.__name__}\(x\): x must have one element, got shape \(8, 8\)"
        ):
            function(x)
    with pytest.raises(
        InputError, match=r"^bool\(x\), as `if x > 3:` asks for it: .*ops\.any\(x\) or ops\.all\(x\)"
    ):
        _ = 1 if x > 3 else 0
    with pytest.raises(InputError, match=r"^item\(\) needs a tensor of one element"):
        x.item()


def test_an_error_about_different_sizes_names_the_dim(x: Tensor) -> None:
    y = Tensor.from_global(np.ones((6, 8)), MESH("tp", None), x.world)
    with pytest.raises(
        RuleError,
        match=r"dims of one name in .* must be equal: the dim called 'k' has size 8, but 6",
    ):
        matmul(x, y)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "collective show ring -n 4",
            "algorithm must be given: spmdsim collective show COLLECTIVE ALGORITHM",
        ),
        ("simulate", "script must be given: spmdsim simulate SCRIPT"),
        ("launch -n 2", "script must be given: spmdsim launch SCRIPT"),
    ],
)
def test_a_command_without_its_argument_prints_its_usage(
    words: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words.split()) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: ops.slice_(x, (0,), (1,)), "slice_ needs one start, stop and step for each of 2 dims"),
        (
            lambda x: ops.slice_(x, (0, 0, 0), (1, 1, 1)),
            "slice_ needs one start, stop and step for each of 2 dims",
        ),
        (lambda x: ops.flatten(x, 3), "flatten: dim 3 is out of range for a tensor of 2 dims"),
        (lambda x: ops.argmax(x, (0, 1)), "argmax: dim must be an integer or None"),
        (lambda x: ops.sort(x, "a"), "^sort: dim must be an integer, got 'a'$"),
        (lambda x: ops.concat([x, x], 1.5), r"^dim must be an integer, got 1\.5$"),
        (lambda x: ops.gather(x, [0], dim=None), "^dim must be an integer, got None$"),
        (lambda x: ops.scatter_add(x, [0], x, dim=1.0), r"^dim must be an integer, got 1\.0$"),
        (lambda x: ops.diff(x, n=1.5), r"^diff: n must be an integer from 0 on, got 1\.5$"),
        (lambda x: ops.one_hot(ops.cast(x, int), None), "^one_hot: depth must be an integer from 0 on"),
        (lambda x: ops.transpose(x, (1, 2)), "transpose: perm must have each dim from 0 to 1 once"),
        (lambda x: ops.broadcast_to(x[:1], (-1, 8)), r"shape \(1, 8\) does not broadcast to \(-1, 8\)"),
        (lambda x: ops.histogram(x, [2.0, 1.0]), r"the edges of bins must ascend, got \[2.0, 1.0\]"),
        (lambda x: ops.layer_norm(x, x[0], x[0], begin=5), "layer_norm from dim 5 needs a scale"),
        (lambda x: ops.layer_norm(x, x[0], x[0], begin=0), "layer_norm from dim 0 needs a scale"),
        (lambda x: ops.layer_norm(x, x[0, :1], x[0, :1]), "the dim called 'w1' has size 8, but 1"),
        (
            lambda x: ops.layer_norm(x[0, 0], x[0], x[0]),
            r"layer_norm from dim -1 needs a scale .* shape \(\)",
        ),
    ],
)
def test_an_operator_refuses_numbers_that_do_not_fit_its_dims(x: Tensor, call, message: str) -> None:
    # The dims are split, so no local function of NumPy finds the mistake.
    with pytest.raises((RuleError, UsageTypeError), match=message):
        call(x)


def test_an_operator_takes_no_dims_negative_dims_and_numpys_integers(x: Tensor) -> None:
    numbers = Tensor.from_global(np.arange(64.0).reshape(8, 8), MESH("dp", "tp"), x.world)
    np.testing.assert_array_equal(ops.roll(numbers, (), ()).full(), np.roll(numbers.full(), (), ()))
    np.testing.assert_array_equal(ops.flatten(numbers, -1).full(), numbers.full())
    np.testing.assert_array_equal(
        ops.histogram(numbers, np.int64(3))[0].full(), np.histogram(numbers.full(), 3)[0]
    )


PAIR = Mesh((2,), ("x",))


def _matrix():
    return Tensor.from_global(np.arange(8.0).reshape(4, 2), PAIR("x", None))


@pytest.mark.parametrize(
    ("call", "line"),
    [
        (lambda x: ops.sum(x, keepdims=[1]), r"sum: keepdims must be True or False, got \[1\]"),
        (lambda x: ops.rms_norm(None, x), "rms_norm: x must be a Tensor, got None"),
        (lambda x: ops.broadcast_to(x, None), "broadcast_to: shape must be whole numbers"),
        (lambda x: ops.tril(x, k=None), "tril: k must be a whole number, got None"),
        (lambda x: ops.quantile(x, "a"), "quantile: q must be a number or numbers, .* or an array, got 'a'"),
        (lambda x: ops.histogram(x, range="a"), "histogram: range must be two numbers or None, got 'a'"),
        (lambda x: ops.histogram(x, weights="a"), "histogram: weights must be a Tensor or None, got 'a'"),
        (lambda x: fft.fft(x, n="a"), "fft: n must be a whole number or None, got 'a'"),
        (lambda x: cost.save_machine(3, "file"), "save_machine: machine must be a Machine, got 3"),
        (
            lambda x: Op("f", Rule.parse("m -> m"), 3),
            "Op: forward must be a function of numpy arrays, .* got 3",
        ),
        (
            lambda x: dialects.mindspore.ops.Split("a", 2)(x),
            "Split: axis must be a whole number, got 'a'",
        ),
        (lambda x: PAIR.rank_of((0, 0)), r"Mesh.rank_of: coords must lie in the mesh \(2,\), got \(0, 0\)"),
        (lambda x: ops.quantile(x, 10**400), "^quantile: q must be from 0 to 1, got 1000"),
        (lambda x: ops.percentile(x, [10**400]), r"^percentile: q must be from 0 to 100, got \[1000"),
        (
            lambda x: ops.tile(x, (2, 10**30)),
            "^tile: repetitions must be integers from 0 to 2[*][*]63 - 1, got",
        ),
        (lambda x: ops.tril(x, 10**30), "^tril: k must fit 64 bits, got an integer of 100 bits"),
        (lambda x: ops.pad(x, 10**30), "^pad: .* must fit 64 bits, got an integer of 100 bits"),
        (
            lambda x: ops.one_hot(Tensor.from_global(np.arange(4), PAIR("x")), 10**400),
            "^one_hot: depth must fit 64 bits, got an integer of 1329",
        ),
        (lambda x: ops.pad(x, (1, "a")), "^pad needs 2 counts >= 0 on each side, but got"),
        (lambda x: Tensor.from_tensor(A), "^from_tensor: tensor must be a Tensor, got ndarray; from_global"),
        (lambda x: PAIR.rank_of((2,)), r"Mesh.rank_of: coords must lie in the mesh \(2,\), got \(2,\)"),
    ],
)
def test_an_argument_of_a_wrong_type_is_named_with_its_rule(call, line):
    with pytest.raises(SpmdError, match=line):
        call(_matrix())


def test_an_error_inside_of_a_call_with_arguments_of_the_right_types_stays_unchanged() -> None:
    with pytest.raises(OverflowError, match="too large"):
        ops.histogram(_matrix(), 3, range=(0, 10**400))
