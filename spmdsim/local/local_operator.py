"""The operator of a local function: one strategy, given by its layouts, and costs as they were said."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from spmdsim.core import BoundRule, Layout, Mesh, Rule, Strategy
from spmdsim.errors import RuleError, SpmdError
from spmdsim.local.turns import together
from spmdsim.notation.rules import Shape
from spmdsim.tensor import Op
from spmdsim.tensor.program_operator import V
from spmdsim.worlds.base import World


@contextmanager
def failures_of(name: str, rank: int, arrays: Sequence[np.ndarray]) -> Iterator[None]:
    """While a function of the user's runs: what it raises is told in one line, with the rank and what it was given."""
    try:
        yield
    except SpmdError as error:
        if name not in error.message:
            error.facts.setdefault("local function", name)
        raise
    except Exception as error:
        shapes = ", ".join(str(array.shape) for array in arrays)
        what = f"{type(error).__name__}: {error}"
        raise RuleError(f"{name} failed on rank {rank}, given pieces of shape {shapes}: {what}") from error


@dataclass(frozen=True)
class LocalBound(BoundRule):
    """The rule of a local function: one strategy, given by its layouts."""

    places: tuple[Layout, ...] = ()
    leaves: tuple[Layout, ...] = ()
    given_flops: Any = None

    def infer(self, layouts: Sequence[Layout]) -> Strategy:
        """Its strategy, wherever the operands are."""
        terms = zip((*self.inputs, *self.outputs), (*self.places, *self.leaves))
        splits = {factor: axes for term, layout in terms for (factor,), axes in zip(term, layout.dims)}
        return Strategy.of(self.leaves[0].mesh, splits)

    def refusals(self, strategy: Strategy) -> Iterator[str]:
        """None: there is only one."""
        yield from ()

    def strategies(self, mesh: Mesh, *, partial: bool = True, empty: bool = False) -> Iterator[Strategy]:
        """Its strategy."""
        yield self.infer(())

    def output_layouts(self, strategy: Strategy) -> tuple[Layout, ...]:
        """The layouts that were given for the results."""
        return self.leaves

    def gradient_layout(self, strategy: Strategy, operand: int) -> Layout:
        """Gradients are added up along every axis on which ranks do different work and the operand is whole."""
        own = self.places[operand]
        used = {a for one in (*self.places, *self.leaves) for a in (*one.split_axes, *one.partial_axes)}
        return own.with_partial([(axis, "sum") for axis in own.mesh.axes if axis in used - {*own.split_axes}])

    def flops_of(self, sizes: Mapping[str, int]) -> int:
        """As they were given: a number for each rank, or a function of the operands' shapes."""
        shapes = [tuple(sizes[factor] for (factor,) in term) for term in (*self.inputs, *self.outputs)]
        if self.given_flops is None:
            return sum(int(np.prod(shape)) for shape in shapes)
        flops = self.given_flops
        return int(flops(*shapes[: len(self.inputs)]) if callable(flops) else flops)


@dataclass(frozen=True, eq=False)
class LocalOp(Op):
    """The operator of a local function; its parameters are the layouts, and the shapes and types of the results."""

    flops: Any = None

    def on_ranks(self, world: World, mesh: Mesh, jobs: dict[int, Callable[[], V]]) -> dict[int, V]:
        """The functions may call collectives: those of all ranks take turns."""
        return together(world, mesh, self.name, jobs)

    def bind(
        self, shapes: Sequence[Shape], params: dict[str, Any], dtypes: Sequence[np.dtype] | None = None
    ) -> BoundRule:
        """The rule: every dim of every operand and result is a factor of its own."""
        result_shapes = [shape for shape, _ in params["results"]]
        inputs = tuple(tuple((f"a{i}_{d}",) for d in range(len(s))) for i, s in enumerate(shapes))
        outputs = tuple(tuple((f"r{i}_{d}",) for d in range(len(s))) for i, s in enumerate(result_shapes))
        sizes = {
            f[0]: n
            for term, s in zip((*inputs, *outputs), (*shapes, *result_shapes))
            for f, n in zip(term, s)
        }
        rule = Rule(f"local function {self.name}", inputs, outputs)
        places, leaves = params["places"], params["leaves"]
        return LocalBound(
            rule, tuple(map(tuple, shapes)), inputs, outputs, tuple(sizes.items()), places, leaves, self.flops
        )

    def result_dtype(self, dtypes: Sequence[np.dtype], params: dict[str, Any]) -> Any:
        """One type per result."""
        return tuple(dtype for _, dtype in params["results"])
