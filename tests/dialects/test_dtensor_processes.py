"""DTensor's words beside PyTorch's own DTensor, in four processes over gloo, where PyTorch is installed (extra ``originals``)."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from originals_dtensor import MESHES, SHAPES, whole

import spmdsim.dialects.torch as torch_words
from spmdsim import LockStep, Mesh, Tensor

RANKS = 4
WORLD = LockStep(RANKS)


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """What each of the four processes wrote down."""
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("dtensor")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    program = str(Path(__file__).with_name("originals_dtensor.py"))
    common = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(RANKS)}
    started = [
        subprocess.Popen(
            [sys.executable, program, str(folder)], env={**common, "RANK": str(rank), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for rank in range(RANKS)
    ]  # fmt: skip
    try:
        for process in started:
            said, _ = process.communicate(timeout=240)
            assert process.returncode == 0, said
    finally:
        for process in started:
            process.kill()
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(RANKS)]


def _mesh(name):
    return Mesh(MESHES[name], [f"d{k}" for k in range(len(MESHES[name]))])


def _of(told, kind):
    """The entries of one kind, each with those of all ranks."""
    return [entries for entries in zip(*told) if entries[0][0] == kind]


def _array(values, shape):
    return np.array(values).reshape(shape)


def test_pieces_lie_where_chunk_bounds_says(told):
    seen = 0
    for entries in _of(told, "distribute"):
        _, name, shape, text, _ = entries[0]
        mesh, x = _mesh(name), np.array(whole(shape))
        placements, _ = torch_words.parse_placements(text)
        layout = torch_words.layout(mesh, text, 2)
        ours = Tensor.from_global(x, layout, WORLD).shards
        even = all(n % parts == 0 for n, parts in zip(shape, layout.cuts))
        for rank, entry in enumerate(entries):
            bounds = torch_words.chunk_bounds(mesh, placements, shape, rank)
            piece = x[tuple(slice(start, start + size) for start, size in bounds)]
            theirs = _array(entry[4], piece.shape)
            np.testing.assert_array_equal(theirs, piece)
            if even:
                np.testing.assert_array_equal(ours[rank], theirs)
            seen += 1
    assert seen == RANKS * len(SHAPES) * (3 + 9)


def test_what_is_pending_comes_to_the_same(told):
    seen = 0
    for entries in _of(told, "partial"):
        _, name, reduction, text, _, full, _, ends = entries[0]
        mesh = _mesh(name)
        layout, after = torch_words.layout(mesh, text, 2), torch_words.layout(mesh, ends, 2)
        assert layout.reduce_op == {"product": "prod"}.get(reduction, reduction)
        assert torch_words.parse_placements(torch_words.text(layout)) == torch_words.parse_placements(text)
        x = Tensor.from_local([np.array(entry[4]) for entry in entries], layout, WORLD)
        np.testing.assert_allclose(x.full(), full, rtol=1e-6)
        for entry, piece in zip(entries, x.to(after).shards):
            np.testing.assert_allclose(piece, _array(entry[6], piece.shape), rtol=1e-6)
        seen += 1
    assert seen == 4 * (1 + 5)


def test_redistributions_end_alike(told):
    seen = 0
    for entries in _of(told, "move"):
        _, name, one, two, _ = entries[0]
        layouts = [torch_words.layout(_mesh(name), text, 2) for text in (one, two)]
        moved = Tensor.from_global(np.array(whole((8, 12))), layouts[0], WORLD).to(layouts[1])
        for entry, piece in zip(entries, moved.shards):
            np.testing.assert_array_equal(piece, _array(entry[4], piece.shape))
        seen += 1
    assert seen == 3 * 3 + 9 * 9


def test_placements_are_equal_where_theirs_are():
    theirs = pytest.importorskip("torch.distributed.tensor")
    make = [
        lambda k: k.Shard(0),
        lambda k: k.Shard(1),
        lambda k: k.Replicate(),
        lambda k: k.Partial(),
        lambda k: k.Partial("max"),
    ]
    for one in make:
        ours, other = one(torch_words), one(theirs)
        assert isinstance(ours, torch_words.Placement) and isinstance(other, theirs.Placement)
        assert (repr(ours) == repr(other)) or not isinstance(ours, torch_words.Shard)
        assert torch_words.parse_placements(f"({other!r},)")[0] == (ours,)
        assert [ours == two(torch_words) for two in make] == [other == two(theirs) for two in make]
        assert getattr(ours, "dim", None) == getattr(other, "dim", None)
        assert getattr(ours, "op", None) == getattr(other, "reduce_op", None)
