"""The same program again and again: whatever was remembered of it, and whoever looks on, it has the same bits."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np

import spmdsim.ops as ops
from fuzzing.placement import place
from fuzzing.program import Leaf, Program, WrongError, _real
from spmdsim import compile as compiled
from spmdsim import forbid_redistribution, record
from spmdsim.arrays import Tensor
from spmdsim.arrays.watch import Watcher, watching
from spmdsim.errors import UsageTypeError

#: Surroundings of a call, by name.
AROUND: dict[str, Callable[[], Any]] = {
    "alone": nullcontext,
    "recorded": record,
    "watched": lambda: watching(Watcher()),
    "guarded": lambda: forbid_redistribution("allow"),
}
#: What it is called with: the same tensors, other arrays, some of which nobody may write to, arrays in another order, or
#: tensors that want no gradients.
GIVEN = ("same", "same", "equal", "strided", "ungraded")


class Again:
    """Calls of one program, forward and backward, in random surroundings: as it is, and compiled."""

    def __init__(self, seed: int, ranks: int) -> None:
        self.seed, self.ranks, self.program = seed, ranks, Program(seed, ranks)
        rng = self.rng = random.Random(f"again {seed} {ranks}")
        around = [*AROUND, "alone", "alone"]
        self.calls = [(rng.choice(around), rng.random() < 0.6, rng.choice(GIVEN)) for _ in range(9)]
        #: How many calls were compiled ones.
        self.compiled = 0

    def check(self, world: Any, torch: Any = None) -> None:
        """Call it, and compare values and gradients with those of the first call.

        Raises:
            WrongError: other bits; of arrays in another order, which numpy adds up in another order, other values.
        """
        program = self.program
        leaves = [i for i, value in enumerate(program.values) if isinstance(value.source, Leaf)]
        tensors = [self._leaf(world, i) for i in leaves]
        weights = [
            place(weight.astype(_real(program.dtype(i))), layout, world, False, 0)
            for i, (weight, layout) in program.weights.items()
        ]

        def run(*arguments: Tensor) -> list[Tensor]:
            values = dict(zip(leaves, arguments))
            for number, value in enumerate(program.values):
                if number not in values:
                    operands = [values[i] for i in value.source.operands]
                    values[number] = program._call(value.source, operands, number)
            terms = []
            for i, weight in zip(program.weights, arguments[len(leaves) :]):
                value = values[i]
                value = ops.square(ops.absolute(value)) if value.dtype.kind == "c" else value
                terms.append((value * weight).sum())
            total = sum(terms[1:], terms[0]) if terms else None
            if total is not None and total.requires_grad:
                total.backward()
            return [value.detach() for value in values.values()]

        fast, first = compiled(run), self._results(run, tensors, weights)
        for around, again, which in self.calls:
            arguments = [self._other(tensor, which) for tensor in tensors]
            with AROUND[around]():
                try:
                    results = self._results(fast if again else run, arguments, weights)
                    self.compiled += again and around != "watched"
                except UsageTypeError as error:
                    if not again or "cannot be compiled" not in str(error):
                        raise
                    results = self._results(run, arguments, weights)
            how = f"{around}, {'compiled' if again else 'as it is'}, {which} tensors"
            for number, (one, other) in enumerate(zip(first, results, strict=True)):
                self._judge(number, one, other, which, how)

    def _leaf(self, world: Any, i: int) -> Tensor:
        value = self.program.values[i]
        source: Any = value.source
        return place(value.true.astype(value.dtype), source.layout, world, source.requires_grad, source.seed)

    def _other(self, tensor: Tensor, which: str) -> Tensor:
        if which == "same":
            return tensor
        arrays = {id(held): self._array(held, which) for held in tensor.stored_shards}
        held = [arrays[id(array)] for array in tensor.stored_shards]
        graded = tensor.requires_grad and which != "ungraded"
        return Tensor(tensor.world, tensor.meta, held, graded, provenance_number=tensor.provenance_number)

    def _array(self, held: np.ndarray, which: str) -> np.ndarray:
        if which == "ungraded":
            return held
        room = np.zeros((*[n + 1 for n in held.shape], 2), held.dtype)[..., 0]
        part = (..., *[slice(n) for n in held.shape])  # of no dims an array, too
        array = room[part] if which == "strided" else np.empty_like(held)
        array[...] = held
        array.flags.writeable = self.rng.random() < 0.5
        return array

    def _results(self, call: Any, leaves: list[Tensor], weights: list[Tensor]) -> list[Any]:
        """Metas and arrays of all values, then of the leaves' gradients."""
        for leaf in leaves:
            leaf.grad = None
        before = [array.tobytes() for leaf in leaves for array in leaf.stored_shards]
        values = [*call(*leaves, *weights), *[leaf.grad for leaf in leaves]]
        if before != [array.tobytes() for leaf in leaves for array in leaf.stored_shards]:
            raise WrongError(f"{self}: it wrote into its arguments")
        return [None if one is None else (one.meta, [x.copy() for x in one.shards]) for one in values]

    def _judge(self, number: int, one: Any, other: Any, which: str, how: str) -> None:
        # What nobody needs the whole of for a gradient may stay pending.
        if which == "ungraded" and (other is None or one is None or one[0] is not other[0]):
            return
        if (one is None) != (other is None) or (one is not None and one[0] is not other[0]):
            raise WrongError(f"{self}: {how}: value {number} is {other and other[0]}, not {one and one[0]}")
        if one is None:
            return
        kind, near = one[0].dtype, 1e-2 if one[0].dtype.itemsize == 2 else 1e-3
        wide = np.complex128 if kind.kind == "c" else np.float64
        for x, y in zip(one[1], other[1]):
            same = x.dtype == y.dtype and x.tobytes() == y.tobytes()
            if which == "strided" and not same:
                same = np.allclose(x.astype(wide), y.astype(wide), near, near, equal_nan=True)
            if not same:
                raise WrongError(
                    f"{self}: {how}: value {number} is {y}, not {x}\n{self.program.listing(number, [])}"
                )

    def __str__(self) -> str:
        return f"calls {self.seed} on {self.ranks} ranks"
