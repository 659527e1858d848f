"""The examples in the docstrings of layouts and their spellings."""

from __future__ import annotations

import doctest
from importlib import import_module

import pytest

MODULES = [
    "layout.explain",
    "core.layout",
    "layout.written",
    "cli.main",
    "draw.layout_picture",
    "dialects.layouts",
    "dialects.jax",
    "dialects.mindspore",
    "dialects.mindspore.layout",
    "imitations.mindspore.sharding.sharded",
    "dialects.oneflow",
    "dialects.oneflow.placements",
    "dialects.oneflow.sbp",
    "dialects.paddle",
    "dialects.paddle.process_mesh",
    "dialects.paddle.splitting",
    "dialects.spelling",
    "dialects.torch",
]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    result = doctest.testmod(import_module(f"spmdsim.{name}"))
    assert result.attempted > 0 and result.failed == 0


def test_dialects_are_found_lazily():
    import spmdsim.dialects as dialects

    for name in dialects.DIALECTS:
        assert name in dir(dialects) and getattr(dialects, name).__name__ == f"spmdsim.dialects.{name}"
    with pytest.raises(AttributeError, match="caffe is not covered"):
        _ = dialects.caffe
    for name in ("mindspore", "oneflow", "paddle"):
        package = getattr(dialects, name)
        assert all(getattr(package, public) is not None for public in package.__all__)
        assert set(package.__all__) <= set(dir(package))
        with pytest.raises(AttributeError):
            _ = package.nothing
