"""The functions that references call have one name and signature for NumPy and torch."""

from __future__ import annotations

from typing import Any

import numpy as np


class Numpy:
    """The functions of references, in NumPy."""

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    def sum(self, x, dims, keepdims=False):
        return np.asarray(np.sum(x, axis=dims, keepdims=keepdims))

    def max(self, x, dims, keepdims=False):
        return np.asarray(np.max(x, axis=dims, keepdims=keepdims))

    def min(self, x, dims, keepdims=False):
        return np.asarray(np.min(x, axis=dims, keepdims=keepdims))

    def prod(self, x, dim, keepdims=False):
        return np.asarray(np.prod(x, axis=dim, keepdims=keepdims))

    def take(self, x, ids, dim):
        return np.take(x, ids, axis=dim)

    def pick(self, x, ids):
        return np.take_along_axis(x, np.asarray(ids, np.int64)[..., None], -1)[..., 0]

    def concat(self, arrays, dim):
        return np.concatenate(arrays, dim)

    def pad(self, x, widths, value):
        return np.pad(x, widths, constant_values=value)

    def copy(self, x):
        return np.array(x)


class Torch:
    """The functions of references, in torch, whose tensors have gradients."""

    def __init__(self) -> None:
        import torch

        self.torch = torch

    def __getattr__(self, name: str) -> Any:
        return getattr(self.torch, name)

    def _ids(self, ids):
        return self.torch.as_tensor(ids).long()

    def sum(self, x, dims, keepdims=False):
        return x.sum(dims, keepdim=keepdims) if dims else x

    def max(self, x, dims, keepdims=False):
        return x.amax(dims, keepdim=keepdims) if dims else x

    def min(self, x, dims, keepdims=False):
        return x.amin(dims, keepdim=keepdims) if dims else x

    def prod(self, x, dim, keepdims=False):
        return x.prod(dim, keepdim=keepdims)

    def take(self, x, ids, dim):
        ids = self._ids(ids)
        flat = x.index_select(dim, ids.reshape(-1))
        return flat.reshape(x.shape[:dim] + ids.shape + x.shape[dim + 1 :])

    def pick(self, x, ids):
        return x.gather(-1, self._ids(ids)[..., None])[..., 0]

    def concat(self, arrays, dim):
        return self.torch.cat(arrays, dim)

    def pad(self, x, widths, value):
        flat = [n for pair in reversed(widths) for n in pair]
        return self.torch.nn.functional.pad(x, flat, value=value)

    def transpose(self, x, perm):
        return x.permute(*perm) if perm else x

    def copy(self, x):
        return x.clone()

    def where(self, mask, a, b):
        return self.torch.where(mask.bool(), a, b)

    def einsum(self, equation, *arrays):
        return self.torch.einsum(equation, *arrays)

    def flip(self, x, dims):
        return self.torch.flip(x, list(dims))

    def absolute(self, x):
        return self.torch.abs(x)


NUMPY = Numpy()


def torch_backend() -> Torch | None:
    """Return the torch backend, or None if torch is not installed."""
    try:
        return Torch()
    except ImportError:
        return None
