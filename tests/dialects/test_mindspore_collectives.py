"""``ops.AllReduce`` and similar operators equal loops over the ranks' arrays, and cost the expected collectives."""

from __future__ import annotations

import numpy as np
import pytest

import spmdsim.dialects.mindspore as ms
from spmdsim import Mesh, Tensor, record
from spmdsim.dialects.mindspore import communication as comm
from spmdsim.dialects.mindspore import ops
from spmdsim.dialects.session import use_world
from spmdsim.errors import InputError, UsageTypeError

RANKS = 4
#: One array per rank.
RANK_ARRAYS = np.random.default_rng(0).integers(1, 9, (RANKS, 8, 4)).astype(np.float64)
REDUCTIONS = {"sum": np.sum, "max": np.max, "min": np.min, "prod": np.prod}


def make_tensor(world, requires_grad=False):
    """Return a tensor whose shards are `RANK_ARRAYS`."""
    layout = Mesh((RANKS,), ("x",))("x", None)
    return Tensor.from_global(RANK_ARRAYS.reshape(-1, 4), layout, world, requires_grad=requires_grad)


def split_rank_array(k, dim):
    return np.split(RANK_ARRAYS[k], RANKS, dim)


CASES = {
    **{
        f"AllReduce {op}": (ops.AllReduce, (op,), lambda r, f=f: f(RANK_ARRAYS, 0), {"all_reduce": 1})
        for op, f in REDUCTIONS.items()
    },
    **{
        f"ReduceScatter {op}": (
            ops.ReduceScatter, (op,), lambda r, f=f: np.split(f(RANK_ARRAYS, 0), RANKS)[r], {"reduce_scatter": 1},
        )
        for op, f in REDUCTIONS.items()
    },
    "AllGather": (ops.AllGather, (), lambda r: np.concatenate([*RANK_ARRAYS]), {"all_gather": 1}),
    "AlltoAll 0 1": (
        ops.AlltoAll, (RANKS, 0, 1), lambda r: np.concatenate([split_rank_array(k, 0)[r] for k in range(RANKS)], 1), {"all_to_all": 1},
    ),
    "AlltoAll -1 -2": (
        ops.AlltoAll, (RANKS, -1, -2), lambda r: np.concatenate([split_rank_array(k, 1)[r] for k in range(RANKS)], 0),
        {"all_to_all": 1},
    ),
    "AlltoAll 0 0": (
        ops.AlltoAll, (RANKS, 0, 0), lambda r: np.concatenate([split_rank_array(k, 0)[r] for k in range(RANKS)], 0), {"all_to_all": 1},
    ),
}  # fmt: skip


@pytest.mark.ranks(RANKS)
@pytest.mark.parametrize("case", CASES)
def test_collectives_combine_the_arrays_of_all_ranks(world, case):
    make, arguments, expected, counts = CASES[case]
    with use_world(world):
        with record() as trace:
            result = make(*arguments)(make_tensor(world))
        assert trace.counts() == counts
        for rank, shard in zip(world.ranks, result.shards):
            np.testing.assert_allclose(shard, expected(rank))


@pytest.mark.ranks(RANKS)
def test_arrays_are_the_operands_of_this_process(world):
    """Examples of MindSpore's documentation give its results: ones on all ranks, or the rank's number."""
    with use_world(world):
        ones = ms.Tensor(np.ones((2, 8), np.float32))
        np.testing.assert_array_equal(ops.AllReduce(ops.ReduceOp.SUM)(ones).asnumpy(), np.full((2, 8), RANKS))
        assert ops.AllGather()(ones).shape == (2 * RANKS, 8)
        if len(world.ranks) == 1:
            array = ms.Tensor(np.full((1, 1, RANKS, 1), world.ranks[0], np.float32))
            swapped = ops.AlltoAll(split_count=RANKS, split_dim=-2, concat_dim=-1)(array)
            np.testing.assert_array_equal(swapped.local(), [[[[*range(RANKS)]]]])
            (result,) = ops.Broadcast(1)((array,))
            assert (result.local() == 1).all()
            with pytest.raises(InputError, match=r"rank 0 has float64 \(2,\) and rank 1 has float64 \(3,\)"):
                ops.AllReduce()(np.ones(2 + world.ranks[0]))


@pytest.mark.ranks(RANKS)
def test_a_group_keeps_its_order_and_other_ranks_get_no_elements(world):
    ranks = [2, 0]
    with use_world(world):
        inside = [rank for rank in world.ranks if rank in ranks]
        if not inside:
            return
        comm.create_group("pair", ranks)
        assert comm.get_process_group_ranks("pair") == ranks and comm.get_group_size("pair") == 2
        assert comm.get_rank("pair") == ranks.index(inside[0])
        assert comm.get_world_rank_from_group_rank("pair", 0) == 2
        assert comm.get_group_rank_from_world_rank(0, "pair") == 1
        x = make_tensor(world) if len(world.ranks) > 1 else RANK_ARRAYS[world.ranks[0]]
        with record() as trace:
            added = ops.AllReduce(group="pair")(x)
            gathered = ops.AllGather("pair")(x)
            (sent,) = ops.Broadcast(2, "pair")((x,))
        assert trace.counts() == {"all_reduce": 1, "all_gather": 1, "exchange": 1}
        for rank, a, b, c in zip(world.ranks, added.shards, gathered.shards, sent.shards):
            if rank in ranks:
                np.testing.assert_array_equal(a, RANK_ARRAYS[0] + RANK_ARRAYS[2])
                np.testing.assert_array_equal(b, np.concatenate([RANK_ARRAYS[2], RANK_ARRAYS[0]]))
                np.testing.assert_array_equal(c, RANK_ARRAYS[2])
            else:
                assert a.size == b.size == c.size == 0
        comm.destroy_group("pair")
        with pytest.raises(
            InputError, match=r"must be a group that exists .*got 'pair'; nearest: create_group"
        ):
            ops.AllReduce(group="pair")(x)


@pytest.mark.ranks(RANKS)
def test_two_groups_communicate_simultaneously(world):
    """Ranks may call a collective at the same time in different groups, each with its own name."""
    if len(world.ranks) > 1:
        pytest.skip("in lock step, one program runs for all ranks")
    with use_world(world):
        rank = comm.get_rank()
        name = f"row {rank // 2}"
        comm.create_group(name, [rank // 2 * 2, rank // 2 * 2 + 1])
        result = ops.AllReduce(group=name)(RANK_ARRAYS[rank]).local()
        np.testing.assert_array_equal(result, RANK_ARRAYS[rank // 2 * 2] + RANK_ARRAYS[rank // 2 * 2 + 1])
        comm.release()


UP = np.random.default_rng(1).integers(1, 9, (RANKS, 8, 4)).astype(np.float64)

#: Functions from a rank and the gradients of all ranks' results (UP) to the gradient of the rank's operand.
OPERAND_GRADIENTS = {
    "AllGather": lambda r, up: np.split(up.sum(0), RANKS)[r],
    "ReduceScatter sum": lambda r, up: np.concatenate([*up]),
    "AlltoAll 0 1": lambda r, up: np.concatenate([np.split(up[k], RANKS, 1)[r] for k in range(RANKS)], 0),
    "AlltoAll 0 0": lambda r, up: np.concatenate([np.split(up[k], RANKS, 0)[r] for k in range(RANKS)], 0),
    "AllReduce sum": lambda r, up: up.sum(0),
    "AllReduce max": lambda r, up: up.sum(0) * (RANK_ARRAYS[r] == RANK_ARRAYS.max(0)),
    "AllReduce prod": lambda r, up: (up * RANK_ARRAYS.prod(0)).sum(0) / RANK_ARRAYS[r],
}


@pytest.mark.ranks(RANKS)
@pytest.mark.parametrize("case", OPERAND_GRADIENTS)
def test_gradients_follow_the_transposed_operator(world, case):
    """Gradients of the result's replicas are equal, and the operand gets their sum."""
    make, arguments, _, _ = CASES[case]
    with use_world(world):
        x = make_tensor(world, requires_grad=True)
        y = make(*arguments)(x)
        copies = y.layout.cuts == (1, 1)
        shape = y.shape if copies else (RANKS, *y.layout.local_shape(y.shape, world.ranks[0]))
        up = np.random.default_rng(2).integers(1, 9, shape).astype(np.float64)
        y.backward(
            Tensor.from_global(
                up.reshape(y.shape) if copies else np.concatenate([*up], find_split_dim(y)), y.layout, world
            )
        )
        each = np.broadcast_to(up, (RANKS, *up.shape)) if copies else up
        for rank, shard in zip(world.ranks, x.grad.shards):
            np.testing.assert_allclose(shard, OPERAND_GRADIENTS[case](rank, each))


@pytest.mark.ranks(RANKS)
@pytest.mark.parametrize("case", ["AllGather", "ReduceScatter sum", "AlltoAll 0 0"])
def test_gradients_of_slices_of_a_result_are_summed(world, case):
    make, arguments, _, _ = CASES[case]
    with use_world(world):
        x, sliced_x = make_tensor(world, requires_grad=True), make_tensor(world, requires_grad=True)
        y, u = make(*arguments)(x), make(*arguments)(sliced_x)
        up = np.zeros(y.shape)
        up[1:] += 3
        up[:-1] += 1
        y.backward(Tensor.from_global(up, y.layout, world))
        (3 * u[1:] + u[:-1]).sum().backward()
        for expected, shard in zip(x.grad.shards, sliced_x.grad.shards):
            np.testing.assert_array_equal(expected, shard)


def find_split_dim(y):
    return next(d for d, cut in enumerate(y.layout.cuts) if cut > 1)


@pytest.mark.ranks(2)
def test_wrong_groups_and_operands_are_refused(world):
    wrong = [
        (lambda: comm.create_group("a", [0]), InputError, "two ranks or more"),
        (lambda: comm.create_group("a", [0, 0]), InputError, "each once"),
        (lambda: comm.create_group("a", [0, 2]), InputError, r"must be in 0\.\.1, got"),
        (lambda: comm.create_group("a", (0, 1)), UsageTypeError, "a list of ranks"),
        (lambda: comm.create_group(3, [0, 1]), UsageTypeError, "must be a str, the name of a group, got 3"),
        (lambda: comm.create_group("hccl_world_group", [0, 1]), InputError, "group of all ranks"),
        (lambda: comm.destroy_group("hccl_world_group"), InputError, "must be made by create_group"),
        (lambda: comm.get_rank("b"), InputError, "group that exists .*got 'b'"),
        (lambda: comm.get_group_size(["b"]), UsageTypeError, "must be a str, the name of a group"),
        (lambda: ops.AllReduce("avg"), InputError, "one of ReduceOp's sum, max, min, prod, got 'avg'"),
        (lambda: ops.AllReduce(1), UsageTypeError, "one of ReduceOp's"),
        (lambda: ops.AllGather(group=0), UsageTypeError, "the name of a group, got 0"),
        (lambda: ops.AllReduce()(np.array([True])), UsageTypeError, "the tensor must have numbers, got bool"),
        (lambda: ops.AllGather()(np.float64(3)), InputError, r"for a rank's array of shape \(\)"),
        (lambda: ops.ReduceScatter()(np.ones(3)), InputError, "must be a multiple of the 2 ranks of the group, got 3"),
        (lambda: ops.AlltoAll(3, 0, 1)(np.ones((3, 3))), InputError, "split_count must be 2, the number of ranks of the group, got 3"),
        (lambda: ops.AlltoAll(2, 0, 2)(np.ones((2, 2))), InputError, "concat_dim must be in -2..1 for .*, got 2"),
        (lambda: ops.AlltoAll(2, "0", 1), UsageTypeError, "split_dim must be an integer"),
        (lambda: ops.Broadcast(5)((np.ones(2),)), InputError, r"root_rank must be one of the group's ranks \[0, 1\], got 5"),
        (lambda: ops.Broadcast(0)(np.ones(2)), UsageTypeError, "Broadcast: the operand must be a tuple of tensors"),
    ]  # fmt: skip
    with use_world(world):
        comm.release()
        for call, kind, message in wrong:
            with pytest.raises(kind, match=message) as caught:
                call()
            assert "\n" not in str(caught.value)
        comm.create_group("a", [0, 1])
        comm.create_group("a", [0, 1])
        with pytest.raises(InputError, match=r"exists with ranks .*, got .*nearest: destroy_group"):
            comm.create_group("a", [1, 0])
        comm.release()
