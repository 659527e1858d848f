"""A program gives identical bits in repeated calls, compiled or eager, recorded or watched."""

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

#: Context managers of a call, by name.
CONTEXTS: dict[str, Callable[[], Any]] = {
    "alone": nullcontext,
    "recorded": record,
    "watched": lambda: watching(Watcher()),
    "guarded": lambda: forbid_redistribution("allow"),
}
#: Arguments of a call: the tensors of the first call, copies, strided copies, or tensors without gradients.
#: Some copies are read-only.
ARGUMENTS = ("same", "same", "equal", "strided", "ungraded")


class Again:
    """Calls of a program, forward and backward, in random contexts: eager and compiled."""

    def __init__(self, seed: int, ranks: int) -> None:
        self.seed, self.ranks, self.program = seed, ranks, Program(seed, ranks)
        rng = self.rng = random.Random(f"again {seed} {ranks}")
        contexts = [*CONTEXTS, "alone", "alone"]
        self.calls = [(rng.choice(contexts), rng.random() < 0.6, rng.choice(ARGUMENTS)) for _ in range(9)]
        #: The number of compiled calls.
        self.compiled = 0

    def check(self, world: Any, torch: Any = None) -> None:
        """Call the program and compare values and gradients with the first call.

        Raises:
            WrongError: If bits differ, or if values of strided arrays, which NumPy adds in another order, are not close.
        """
        program = self.program
        leaves = [i for i, value in enumerate(program.values) if isinstance(value.source, Leaf)]
        tensors = [self._leaf(world, i) for i in leaves]
        weights = [
            place(weight.astype(_real(program.dtype(i))), layout, world, False, 0)
            for i, (weight, layout) in program.weights.items()
        ]

        def run(*arguments: Tensor) -> list[Tensor]:
            """Run the program forward and backward on its leaves and weights; return all values."""

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
        for context, is_compiled, kind in self.calls:
            arguments = [self._other(tensor, kind) for tensor in tensors]
            with CONTEXTS[context]():
                try:
                    results = self._results(fast if is_compiled else run, arguments, weights)
                    self.compiled += is_compiled and context != "watched"
                except UsageTypeError as error:
                    if not is_compiled or "cannot be compiled" not in str(error):
                        raise
                    results = self._results(run, arguments, weights)
            description = f"{context}, {'compiled' if is_compiled else 'eager'}, {kind} tensors"
            for number, (expected, actual) in enumerate(zip(first, results, strict=True)):
                self._judge(number, expected, actual, kind, description)

    def _leaf(self, world: Any, i: int) -> Tensor:
        value = self.program.values[i]
        source: Any = value.source
        return place(value.true.astype(value.dtype), source.layout, world, source.requires_grad, source.seed)

    def _other(self, tensor: Tensor, kind: str) -> Tensor:
        """Return the argument of a repeated call in place of `tensor`."""

        if kind == "same":
            return tensor
        arrays = {
            id(stored_shards): self._array(stored_shards, kind) for stored_shards in tensor.stored_shards
        }
        stored_shards = [arrays[id(array)] for array in tensor.stored_shards]
        graded = tensor.requires_grad and kind != "ungraded"
        return Tensor(
            tensor.world, tensor.meta, stored_shards, graded, provenance_number=tensor.provenance_number
        )

    def _array(self, shard: np.ndarray, kind: str) -> np.ndarray:
        """Return the array of a repeated call in place of `shard`."""

        if kind == "ungraded":
            return shard
        memory = np.zeros((*[n + 1 for n in shard.shape], 2), shard.dtype)[..., 0]
        index = (
            ...,
            *[slice(n) for n in shard.shape],
        )  # The ellipsis keeps an array without dimensions an array.
        array = memory[index] if kind == "strided" else np.empty_like(shard)
        array[...] = shard
        array.flags.writeable = self.rng.random() < 0.5
        return array

    def _results(self, call: Any, leaves: list[Tensor], weights: list[Tensor]) -> list[Any]:
        """Return the meta and the shards of each value and of each leaf's gradient; None if it is missing.

        Raises:
            WrongError: If the call changes its arguments.
        """
        for leaf in leaves:
            leaf.grad = None
        before = [array.tobytes() for leaf in leaves for array in leaf.stored_shards]
        values = [*call(*leaves, *weights), *[leaf.grad for leaf in leaves]]
        if before != [array.tobytes() for leaf in leaves for array in leaf.stored_shards]:
            raise WrongError(f"{self}: it changes its arguments")
        return [None if value is None else (value.meta, [x.copy() for x in value.shards]) for value in values]

    def _judge(self, number: int, expected: Any, actual: Any, kind: str, description: str) -> None:
        """Raise WrongError if a value has another meta or other bits than in the first call."""

        # A value that no gradient needs in full may stay partial.
        if kind == "ungraded" and (actual is None or expected is None or expected[0] is not actual[0]):
            return
        if (expected is None) != (actual is None) or (expected is not None and expected[0] is not actual[0]):
            raise WrongError(
                f"{self}: {description}: value {number} is {actual and actual[0]}, not {expected and expected[0]}"
            )
        if expected is None:
            return
        dtype, near = expected[0].dtype, 1e-2 if expected[0].dtype.itemsize == 2 else 1e-3
        wide = np.complex128 if dtype.kind == "c" else np.float64
        for x, y in zip(expected[1], actual[1]):
            same = x.dtype == y.dtype and x.tobytes() == y.tobytes()
            if kind == "strided" and not same:
                same = np.allclose(x.astype(wide), y.astype(wide), near, near, equal_nan=True)
            if not same:
                raise WrongError(
                    f"{self}: {description}: value {number} is {y}, not {x}\n{self.program.listing(number, [])}"
                )

    def __str__(self) -> str:
        return f"calls {self.seed} on {self.ranks} ranks"
