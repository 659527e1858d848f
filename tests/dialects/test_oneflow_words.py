"""Frequent names of OneFlow programs work besides the document's: functions, symbols, modules, optimisers."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from layout_cases import cases

import spmdsim.dialects.oneflow as flow
import spmdsim.dialects.oneflow.nn as nn
from spmdsim import LockStep, record
from spmdsim.arrays import Tensor
from spmdsim.dialects.oneflow.sbp import OneFlowError
from spmdsim.dialects.session import current_world, use_world
from spmdsim.errors import InputError

RNG = np.random.default_rng(0)
X, Y, W = RNG.normal(size=(8, 4)), RNG.normal(size=(8, 4)), RNG.normal(size=(4, 6))
B, S0, S1, P = flow.sbp.broadcast, flow.sbp.split(0), flow.sbp.split(1), flow.sbp.partial_sum
E = np.exp(X - X.max(1, keepdims=True))
SOFTMAX = E / E.sum(1, keepdims=True)


@pytest.mark.ranks(2)
def test_new_global_tensors_are_identical_on_all_placements(world):
    def draw(drawing_world, ranks, sbp):
        """Return the arrays of new global tensors on a placement of a world."""
        flow.manual_seed(3)
        with use_world(drawing_world):
            placement = flow.placement("cpu", ranks)
            tensors = [
                function(4, 6, placement=placement, sbp=sbp)
                for function in (flow.randn, flow.rand, flow.ones, flow.zeros)
            ]
            tensors.append(flow.full((4, 6), 2.5, placement=placement, sbp=sbp))
            assert all(x.is_global and x.sbp == (sbp,) for x in tensors)
            return [x.numpy() for x in tensors]

    expected = draw(LockStep(1), [0], S0)
    for sbp in (S0, S1, B, P):
        for a, b in zip(draw(world, [0, 1], sbp), expected):
            np.testing.assert_array_equal(a, b)
    assert (
        expected[0].std() > 0.5
        and 0 <= expected[1].min() < expected[1].max() < 1
        and expected[4][0, 0] == 2.5
    )


@pytest.mark.ranks(4)
@pytest.mark.parametrize("case", cases("operators_oneflow_paddle", "matmul_2d_sbp"))
def test_each_axis_of_a_product_has_its_own_sbp(world, case):
    """The sbp of OneFlow's products follows the published table axis by axis, without communication."""
    with use_world(world):
        placement = flow.placement("cpu", [[0, 1], [2, 3]])
        x, w = (flow.tensor(a, placement, case[f"{name}_sbp"]) for name, a in (("x", X), ("w", W)))
        with record() as trace:
            y = flow.matmul(x, w)
        assert y.sbp == flow.sbp.as_tuple(case["y_sbp"]) and trace.counts() == {}
        np.testing.assert_allclose(y.numpy(), X @ W, atol=1e-5)


@pytest.mark.ranks(2)
def test_local_tensors_differ_between_ranks(world):
    with use_world(world):
        x = flow.randn(2, 3)
        y = 2 * x + 1 - x / 2 @ flow.ones(3, 3)
        for a, b in zip(x.shards, y.shards):
            np.testing.assert_allclose(b, 2 * a + 1 - a / 2 @ np.ones((3, 3)), rtol=1e-6)
        assert flow.Tensor([[1, 2]]).dtype == flow.float32 and flow.tensor([1, 2]).dtype == flow.int64
        assert str(flow.tensor([1.5])).endswith("tensor([1.5000], dtype=oneflow.float32)")
        placement = flow.placement("cpu", [0, 1])
        with pytest.raises(OneFlowError, match="cannot be combined"):
            x + x.to_global(placement, S0)
        with pytest.raises(OneFlowError, match=r"nearest: x\.to_global"):
            flow.maximum(x, x.to_global(placement, S0))
        with pytest.raises(OneFlowError, match="relu: an operand must be a tensor, got float"):
            flow.relu(1.0)
        with pytest.raises(InputError, match="must be 1 or more and divide 3, the size of dim 1, got 0"):
            flow.hsplit(x, 0)
        with pytest.raises(InputError, match="must have an even size, got 3"):
            nn.functional.glu(x)
        with pytest.raises(OneFlowError, match="at least two placements"):
            flow.ones(2, placement=placement, sbp=B) + flow.ones(
                2, placement=flow.placement("cpu", [0]), sbp=B
            )


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(10, 8)
        self.body = nn.Sequential(
            nn.LayerNorm(8), nn.Linear(8, 16), nn.GELU(), nn.Dropout(0.25), nn.Linear(16, 10)
        )

    def forward(self, ids):
        return self.body(self.words(ids))


def losses(training_world, ranks, sbp_of_weights, sbp_of_ids, optimiser):
    """Return the losses of four steps of `Net` on ranks of a world, with the sbp of weights and of ids."""
    flow.manual_seed(1)
    with use_world(training_world):
        placement = flow.placement("cpu", ranks)
        net = Net().to_global(placement, sbp_of_weights)
        ids = flow.tensor(np.arange(8) % 10, placement, sbp_of_ids)
        optimizer, loss_fn, values = optimiser(net.parameters()), nn.CrossEntropyLoss(), []
        for _ in range(4):
            loss = loss_fn(net(ids), ids)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            values.append(loss.item())
        quiet = net.eval()(ids).numpy()
        np.testing.assert_array_equal(net(ids).numpy(), quiet)
        return values


@pytest.mark.ranks(2)
@pytest.mark.parametrize("sbps", [(B, S0), (S0, B)], ids=["data parallel", "split weights"])
def test_training_equals_one_process(world, sbps):
    """Losses equal those of one process, because dropout's masks are identical."""
    for optimiser in (
        lambda p: flow.optim.SGD(p, lr=0.1, momentum=0.9),
        lambda p: flow.optim.AdamW(p, lr=0.01),
    ):
        expected = losses(LockStep(1), [0], B, B, optimiser)
        assert expected[-1] < expected[0]
        np.testing.assert_allclose(losses(world, [0, 1], *sbps, optimiser), expected, rtol=2e-5)


@pytest.mark.ranks(4)
def test_modules_are_on_their_placement(world):
    with use_world(world):
        line, grid = flow.placement("cpu", range(4)), flow.placement("cpu", [[0, 1], [2, 3]])
        model = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 2))
        x = flow.randn(2, 8)
        with pytest.raises(OneFlowError, match="is not global yet; call to_global"):
            model(flow.ones(4, 8, placement=line, sbp=B))
        model[0].to_global(line, S0)
        model[2].to_global(line, B)
        assert model[0].weight.sbp == (S0,) and model[2].weight.sbp == (B,)
        before = model[0].weight.numpy()
        with pytest.raises(OneFlowError, match=r"nearest: x\.to_global"):
            model(x)
        with pytest.raises(OneFlowError, match="at least two placements"):
            model(x.to_global(grid, (B, S0)))
        model.to_global(grid, (B, B))
        np.testing.assert_array_equal(model[0].weight.numpy(), before)
        assert model(x.to_global(grid, (B, S0))).shape == (4, 2)
        assert list(model.state_dict()) == ["0.weight", "0.bias", "2.weight", "2.bias"]
        with pytest.raises(OneFlowError, match="out of range"):
            nn.Linear(8, 4).to_global(line, S1)


@pytest.mark.ranks(2)
def test_parameters_are_made_from_global_tensors(world):
    with use_world(world):
        placement = flow.placement("cpu", [0, 1])
        w = nn.Parameter(flow.tensor(W, placement, S1, dtype=np.float64))
        x = flow.tensor(X, placement, B, dtype=np.float64)
        with record() as trace:
            flow.matmul(x, w).sum().backward()
        assert trace.counts() == {}
        np.testing.assert_allclose(w.grad.full(), np.repeat(X.sum(0)[:, None], 6, 1))
        with pytest.raises(OneFlowError, match="data must be a global tensor here"):
            nn.Parameter(flow.randn(2, 2))


@pytest.mark.ranks(2)
def test_ranks_outside_a_placement_own_no_elements(world):
    with use_world(world):
        x = flow.ones(4, 4).to_global(flow.placement("cpu", [0]), B)
        rank_shards = dict(zip(world.ranks, x.to_local().shards))
        assert [rank_shards[rank].shape for rank in world.ranks] == [
            ((4, 4), (0, 0))[rank] for rank in world.ranks
        ]
        np.testing.assert_array_equal(x.numpy(), np.ones((4, 4)))
        shards = [np.ones((4, 4), np.float32)] * len(world.ranks)
        tensor = Tensor.from_local(shards, flow.placement("cpu", [1]).mesh(None, None), world)
        assert tensor.dtype == np.float32 and tensor.full().sum() == 16


@pytest.mark.ranks(4)
def test_pipeline_stages_have_their_own_placements(world):
    """The parameters of the first stage are on ranks 0 and 1, and the last stage is on ranks 2 and 3."""

    class Stages(nn.Module):
        def __init__(self, placements):
            self.placements = placements
            self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 4)
            self.first.to_global(placements[0], [B])
            self.last.to_global(placements[1], [B])

        def forward(self, x):
            return self.last(self.first(x).to_global(placement=self.placements[1], sbp=S0))

    def train_stages(training_world, ranks):
        """Return the losses of three steps of the stages on lists of ranks."""
        flow.manual_seed(2)
        with use_world(training_world):
            model = Stages([flow.placement("cpu", r) for r in ranks])
            x = flow.randn(8, 8, placement=model.placements[0], sbp=S0)
            labels = flow.tensor(np.arange(8) % 4, model.placements[1], S0)
            optimizer, values = flow.optim.SGD(model.parameters(), lr=0.5), []
            for _ in range(3):
                loss = nn.CrossEntropyLoss()(model(x), labels)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                values.append(loss.item())
            return values

    expected = train_stages(LockStep(1), [[0], [0]])
    assert expected[-1] < expected[0]
    np.testing.assert_allclose(train_stages(world, [[0, 1], [2, 3]]), expected, rtol=1e-5)


def test_a_world_may_be_set_without_a_with_statement():
    before = current_world()
    context = use_world(LockStep(3))
    try:
        assert flow.env.get_world_size() == 3 and flow.placement.all("cpu").shape == (3,)
    finally:
        context.__exit__(None, None, None)
    assert current_world() is before


@pytest.mark.ranks(2)
def test_symbols_compare_element_by_element(world):
    """``==`` compares elements, because programs compute ``(prediction == labels).float().mean()``."""
    with use_world(world):
        placement = flow.placement("cpu", [0, 1])
        x, y = (flow.tensor(a, placement, S0, dtype=np.float64) for a in (X, Y))
        signs = flow.tensor(np.sign(X), placement, B, dtype=np.float64).to_global(sbp=S0)
        assert (x.sign() == signs).float().mean().item() == 1.0
        np.testing.assert_array_equal((x > y).numpy(), X > Y)
        np.testing.assert_array_equal((x <= 0).numpy(), X <= 0)
        np.testing.assert_allclose((np.float64(3) - x).numpy(), 3 - X)
        assert x.numel() == 32 and x.dim() == 2 and x.size(1) == 4 and not x.detach().requires_grad
        with pytest.raises(
            AttributeError, match=r"Tensor\.softmx is not covered by this dialect; nearest: softmax"
        ):
            x.softmx(-1)
        for call in (nn.CrossEntropyLoss, partial(nn.functional.cross_entropy, x, x.argmax(1))):
            with pytest.raises(InputError, match="reduction must be one of mean, sum, none, got 'median'"):
                call(reduction="median")
        local = flow.tensor([1.0, 2.0])
        assert [bool(shard.all()) for shard in (local == local).shards] == [True] * len(world.ranks)
        assert local.sum().item() == 3 and local.mean() and not flow.tensor([0.0])
