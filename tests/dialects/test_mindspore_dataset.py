"""Datasets shuffle rows by a seed, split them between ranks, make batches with a remainder, and read MNIST's files."""

from __future__ import annotations

import gzip
import sys
from pathlib import Path

import numpy as np
import pytest

import spmdsim.dialects.mindspore as ms
import spmdsim.dialects.mindspore.dataset as ds
from spmdsim.dialects.mindspore.communication import get_group_size, get_rank
from spmdsim.dialects.session import use_world
from spmdsim.errors import InputError, SpmdError, UsageTypeError

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "documents"


def list_epoch(data):
    return [int(x) for (batch,) in data for x in np.ravel(batch)]


def test_the_seed_determines_the_order_of_rows_in_each_epoch():
    def orders(seed, **options):
        ms.set_seed(seed)
        data = ds.NumpySlicesDataset(np.arange(20), **options)
        return [list_epoch(data) for _ in range(3)]

    first = orders(1)
    assert all(sorted(order) == [*range(20)] for order in first) and len({*map(tuple, first)}) == 3
    assert orders(1) == first != orders(2)
    assert orders(1, shuffle=False) == [[*range(20)]] * 3
    assert orders(1, num_samples=5)[0] == first[0][:5]
    assert orders(1, shuffle=ds.Shuffle.GLOBAL) == first
    ms.set_seed(2)
    ds.config.set_seed(1)
    assert ds.config.get_seed() == 1 and list_epoch(ds.NumpySlicesDataset(np.arange(20))) == first[0]


def test_a_buffer_moves_rows_forward_by_its_size_at_most():
    ms.set_seed(3)
    order = list_epoch(ds.NumpySlicesDataset(np.arange(50), shuffle=False).shuffle(8))
    assert sorted(order) == [*range(50)] != order
    assert all(position > row - 8 for position, row in enumerate(order))


def test_steps_run_in_the_written_order():
    def make_dataset():
        return ds.NumpySlicesDataset(np.arange(7), shuffle=False)

    def list_batches(data):
        return [np.ravel(x).tolist() for (x,) in data]

    assert list_batches(make_dataset().batch(3)) == [[0, 1, 2], [3, 4, 5], [6]]
    assert list_batches(make_dataset().batch(3, drop_remainder=True)) == [[0, 1, 2], [3, 4, 5]]
    assert list_batches(make_dataset().take(4).batch(3)) == [[0, 1, 2], [3]] and list_batches(
        make_dataset().batch(3).take(1)
    ) == [[0, 1, 2]]
    assert list_batches(make_dataset().skip(5).repeat(2).batch(3)) == [[5, 6, 5], [6]]
    assert list_batches(make_dataset().batch(4).repeat(2)) == [[0, 1, 2, 3], [4, 5, 6]] * 2
    assert list_batches(make_dataset().batch(4).skip(1)) == [[4, 5, 6]]
    assert (
        make_dataset().batch(3).get_dataset_size() == 3 and len(make_dataset().batch(3, True).repeat(2)) == 4
    )
    assert list_batches(make_dataset().batch(4).map(lambda block: block.sum(keepdims=True), "column_0")) == [
        [6],
        [15],
    ]
    shuffled = list_batches(make_dataset().batch(2).shuffle(4))
    assert sorted(shuffled) == [[0, 1], [2, 3], [4, 5], [6]]
    batches = list_batches(ds.NumpySlicesDataset(np.arange(30)).repeat(2).batch(30))
    assert sorted(batches[0]) == sorted(batches[1]) and batches[0] != batches[1]


@pytest.mark.ranks(2, 3)
def test_every_rank_reads_its_shard(world):
    """Ranks take rows in turns; the last turn repeats the first rows, so that row counts are equal."""
    with use_world(world):
        size, rank = get_group_size(), get_rank()
        data = ds.NumpySlicesDataset(np.arange(7), shuffle=False, num_shards=size, shard_id=rank).batch(2)
        rows_per_rank = -(-7 // size)
        rows_of_ranks = [[(k * size + r) % 7 for k in range(rows_per_rank)] for r in range(size)]
        batches = [x for (x,) in data]
        assert len(batches) == len(data) == -(-rows_per_rank // 2)
        for k, batch in enumerate(batches):
            for owned, shard in zip(world.ranks, batch.shards):
                assert shard.tolist() == rows_of_ranks[owned][2 * k : 2 * k + 2]
        ms.set_seed(4)
        data = ds.NumpySlicesDataset(np.arange(6), num_shards=size, shard_id=rank).batch(6)
        assert sorted(next(iter(data))[0].full().tolist()) == [*range(6)]
        with pytest.raises(InputError, match=rf"num_shards must be 1 or {size}, .*got 5.*get_group_size"):
            ds.NumpySlicesDataset(np.arange(6), num_shards=5, shard_id=0)
        for wrong in (dict(num_shards=size), dict(shard_id=0), dict(num_shards=size, shard_id=size)):
            with pytest.raises(InputError, match="shard_id"):
                ds.NumpySlicesDataset(np.arange(6), **wrong)


@pytest.mark.parametrize("output_columns", [None, "x", ["x"], ("x",)])
def test_a_map_may_name_its_column_as_output(output_columns):
    data = ds.NumpySlicesDataset(np.arange(3), column_names=["x"], shuffle=False)
    data.map(lambda x: x * 2, ("x",), output_columns=output_columns)
    assert [int(x) for (x,) in data] == [0, 2, 4]


@pytest.mark.parametrize("packed", [False, True])
def test_mnist_files_are_read_packed_or_unpacked(tmp_path, monkeypatch, packed):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import mnist_files

    images, labels = mnist_files.digits(20, seed=1)
    mnist_files.write(tmp_path, "train", 20, 1)
    mnist_files.write(tmp_path, "t10k", 5, 2)
    sys.modules.pop("mnist_files")
    for path in [*tmp_path.iterdir()] if packed else []:
        path.with_name(path.name + ".gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()

    def read(**options):
        """Return the images and the labels of the files."""
        x, y = zip(*ds.MnistDataset(str(tmp_path), shuffle=False, **options).batch(9))
        return np.concatenate(x), np.concatenate(y)

    x, y = read(usage="train")
    np.testing.assert_array_equal(x, images[..., None])
    np.testing.assert_array_equal(y, labels)
    assert x.dtype == np.uint8 and len(read(usage="test")[1]) == 5 and len(read()[1]) == 25
    np.testing.assert_array_equal(read()[0][:20], x)
    np.testing.assert_array_equal(read(num_samples=3)[1], labels[:3])
    ms.set_seed(1)
    x, y = next(iter(ds.MnistDataset(str(tmp_path), "train").batch(20)))
    order = [int(np.flatnonzero((images == image[..., 0]).all((1, 2)))[0]) for image in np.asarray(x)]
    assert sorted(order) == [*range(20)] != order and labels[order].tolist() == y.tolist()
    with pytest.raises(InputError, match="must have the file train-images"):
        ds.MnistDataset(str(tmp_path / "nowhere"))
    with pytest.raises(InputError, match="usage is 'train', 'test' or 'all', not 'valid'"):
        ds.MnistDataset(str(tmp_path), "valid")
    bad = tmp_path / "bad"
    bad.mkdir()
    for path in tmp_path.glob("t10k-*"):
        (bad / path.name.replace("t10k", "train")).write_bytes(path.read_bytes()[:-1])
    with pytest.raises(SpmdError):
        read_all = ds.MnistDataset(str(bad)).batch(5)
        list(read_all)


@pytest.mark.parametrize(
    "call, kind, message",
    [
        (lambda d: d.batch(0), InputError, "batch_size must be an integer of 1 or more, got 0"),
        (lambda d: d.batch(True), InputError, "batch_size must be an integer of 1 or more, got True"),
        (lambda d: d.batch(2, "no"), UsageTypeError, "drop_remainder must be True or False"),
        (lambda d: d.batch(2).batch(2), InputError, "in batches already"),
        (lambda d: d.shuffle(1), InputError, "shuffle: the number must be an integer of 2 or more, got 1"),
        (lambda d: d.repeat(0), InputError, "repeat: the number must be an integer of 1 or more, got 0"),
        (lambda d: d.repeat(-1), InputError, "nearest: a loop over the epochs"),
        (lambda d: d.take(-2), InputError, "take: the number must be an integer of 0 or more, got -2"),
        (lambda d: d.skip("a"), InputError, "skip: the number must be an integer of 0 or more, got 'a'"),
        (lambda d: d.map(abs, ["column_0", "y"]), InputError, "nearest: one map per column"),
        (lambda d: d.map(abs, "column_0", output_columns=["y"]), InputError, "nearest: one map per column"),
        (
            lambda d: ds.NumpySlicesDataset(np.arange(4), shuffle="rows"),
            UsageTypeError,
            "shuffle must be True, False",
        ),
        (lambda d: ds.NumpySlicesDataset(np.arange(4), sampler=1), InputError, "nearest: shuffle="),
        (lambda d: ds.GeneratorDataset(lambda: iter([1]), "x", shuffle=True), InputError, "__getitem__"),
        (lambda d: ds.NumpySlicesDataset(np.arange(4), ["x", "y"]), InputError, r"1 column has \['x', 'y'\]"),
        (
            lambda d: ds.NumpySlicesDataset((np.arange(4), np.arange(3))),
            InputError,
            r"equal lengths, got \[4, 3\]",
        ),
        (lambda d: ds.config.set_seed(-1), InputError, r"seed must be in 0\.\.4294967295, got -1"),
        (lambda d: ms.set_seed("one"), UsageTypeError, "seed must be an integer, got 'one'"),
    ],
)
def test_wrong_steps_are_refused_in_one_line(call, kind, message):
    with pytest.raises(kind, match=message) as caught:
        call(ds.NumpySlicesDataset(np.arange(4)))
    assert "\n" not in str(caught.value)
