"""A random program is grown from a seed on plain arrays, run on global tensors and compared value by value.

The expected values are float64 (complex128) arithmetic on equal inputs. The tolerance of narrower types is measured:
the reference runs a few times with noise. Each noisy run moves every result by a unit roundoff of its terms, up or down
at random, and continues with the moved result. A value may differ by a small factor times the largest noise. Results
that are exact in their type (sums and products of small multiples of a power of two, moved elements, integers) must be
equal.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from fuzzing.backends import NUMPY, Torch
from fuzzing.operations import OPERATIONS, Operation
from fuzzing.placement import misplaced, place, random_layout, random_mesh
from spmdsim import ShapeOnly, check_replicas, record
from spmdsim.arrays import Tensor
from spmdsim.core import Layout, Mesh
from spmdsim.errors import WorldError
from spmdsim.layout.element_type import element_type

NOISY_RUNS = 4
LARGEST = 300.0
SIZES = (1, 2, 3, 4, 5, 6, 7, 8)
FLOATS = ("float64",) * 5 + ("float32",) * 4 + ("bfloat16", "float16")
UNITS = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
#: The smallest positive number, by unit roundoff.
SMALLEST = {2.0**-53: 5e-324, 2.0**-24: 2.0**-149, 2.0**-11: 2.0**-24, 2.0**-8: 2.0**-133}


class WrongError(AssertionError):
    """A program gave other results than its reference."""


@dataclass(frozen=True)
class Leaf:
    """A tensor that a program starts from."""

    layout: Layout
    requires_grad: bool
    seed: int


@dataclass
class Value:
    """A tensor of a program, with its value in the reference.

    ``true`` is float64 or complex128 for floats, else has ``dtype``. ``noisy`` has the results of the noisy runs.
    ``graded`` is True if a gradient flows through the value.
    """

    source: Leaf | Operation
    dtype: np.dtype
    true: np.ndarray
    noisy: list[np.ndarray]
    exact: bool
    graded: bool

    @property
    def tolerance(self) -> np.ndarray | float:
        if self.exact or not self.true.size:
            return 0.0
        moved = np.max([np.abs(run - self.true) for run in self.noisy], axis=0)
        return 8 * moved + 4 * unit(self.dtype) * np.abs(self.true) + 0.1 * moved.max() + 1e-300


def unit(dtype: np.dtype) -> float:
    """Return the unit roundoff of a type."""
    return UNITS[
        "float64" if dtype.name == "complex128" else "float32" if dtype.name == "complex64" else dtype.name
    ]


class Program:
    """A random program over ``ranks`` ranks.

    >>> Program(3, 4).ranks
    4
    """

    def __init__(self, seed: int, ranks: int, steps: int = 7) -> None:
        self.seed, self.ranks = seed, ranks
        self.rng = random.Random(seed * 64 + ranks)
        self.numbers = np.random.default_rng([seed, ranks])
        self.float = element_type(self.rng.choice(FLOATS))
        self.integer = np.dtype(self.rng.choice(["i8", "i4", "i8", "i1", "u1"]))
        self.meshes = [random_mesh(self.rng, ranks) for _ in range(1 + (self.rng.random() < 0.2))]
        self.values: list[Value] = []
        #: Names of the operations in the program.
        self.drawn: list[str] = []
        for _ in range(self.rng.randint(2, steps)):
            self._grow()
        self.weights = self._weights()

    # -- queries of operations -------------------------------------------------------------------------------

    def shape(self, i: int) -> tuple[int, ...]:
        return self.values[i].true.shape

    def ndim(self, i: int) -> int:
        return self.values[i].true.ndim

    def dtype(self, i: int) -> np.dtype:
        return self.values[i].dtype

    def mesh_of(self, i: int) -> Mesh | None:
        source = self.values[i].source
        return source.layout.mesh if isinstance(source, Leaf) else None

    def is_known_complete(self, i: int) -> bool:
        """Return True if a value is a leaf without partial axes."""
        source = self.values[i].source
        return isinstance(source, Leaf) and not source.layout.partial

    def have_equal_elements(self, i: int, j: int) -> bool:
        """Return True if two values have an equal element.

        The gradient of a maximum is not unique at equal elements.
        """
        return bool((self.values[i].true == self.values[j].true).any())

    def size(self) -> int:
        return 0 if self.rng.random() < 0.01 else self.rng.choice(SIZES)

    def random_shape(self, largest_ndim: int = 3) -> tuple[int, ...]:
        return tuple(self.size() for _ in range(self.rng.choice([0, 1, 1, 2, 2, 2, 3][: 4 + largest_ndim])))[
            :largest_ndim
        ]

    def factored(self, count: int) -> tuple[int, ...]:
        """Return a random shape with `count` elements."""
        shape, remaining = [], count
        for _ in range(self.rng.randrange(3)):
            divisor = self.rng.choice([d for d in range(1, remaining + 1) if remaining % d == 0] or [1])
            shape.append(divisor)
            remaining //= divisor
        return (*shape, remaining) if remaining != 1 or self.rng.random() < 0.8 else tuple(shape)

    def layout(self, ndim: int, reductions: tuple[str, ...] = ()) -> Layout:
        return random_layout(self.rng, self.rng.choice(self.meshes), ndim, reductions)

    def leaf(self, shape: tuple[int, ...], dtype: np.dtype, high: int | None = None) -> int:
        """Append a leaf of small numbers that are exact in every type; return its number.

        If `high` is given, the numbers are ids below `high`.
        """
        kind = dtype.kind if dtype.name != "bfloat16" else "f"
        if high is not None:
            value = self.numbers.integers(0, high, size=shape).astype(dtype)
        elif kind == "b":
            value = self.numbers.integers(0, 2, size=shape).astype(bool)
        elif kind in "iu":
            value = self.numbers.integers(0 if kind == "u" else -4, 6, size=shape).astype(dtype)
        else:
            value = self.numbers.integers(-8, 9, size=shape) / 4
            if kind == "c":
                value = value + 1j * self.numbers.integers(-8, 9, size=shape) / 4
        general = kind in "fc" and self.rng.random() < 0.4
        if general:
            value = self._general(value, dtype)
        partial = high is None and not general and self.rng.random() < 0.3
        reductions = () if not partial else {"b": (), "c": ("sum",)}.get(kind, ("sum", "max", "min"))
        layout = self.layout(len(shape), reductions)
        graded = kind in "fc" and self.rng.random() < 0.7
        source = Leaf(layout, graded, self.rng.randrange(1 << 30))
        value = np.asarray(value)
        # The addends of a partial sum, and so their rounding errors, may be larger than the sum.
        noise = (
            3 * layout.mesh.axis_size(*layout.partial_axes) * unit(dtype)
            if layout.partial and kind in "fc"
            else 0.0
        )
        noisy = (
            [value + noise * self.numbers.choice([-1.0, 1.0], size=shape) for _ in range(NOISY_RUNS)]
            if noise
            else [value]
        )
        self.values.append(Value(source, dtype, value, noisy, not general, graded))
        return len(self.values) - 1

    def _general(self, value: np.ndarray, dtype: np.dtype) -> np.ndarray:
        """Return numbers with all their digits, so that no number lies on a kink by chance."""
        moved = np.asarray(value + self.numbers.uniform(-0.1, 0.1, size=value.shape))
        return moved.astype(dtype).astype(value.dtype)

    def pick(
        self,
        kinds: str,
        fits: Callable[[np.ndarray], bool] = lambda _: True,
        exact: bool = False,
        make: tuple[int, ...] | None = None,
        dtype: np.dtype | None = None,
    ) -> int | None:
        """Return the number of a value that fits, or of a new leaf; None if no leaf fits either.

        Args:
            kinds: the kinds of its type: f, i, c, b.
            fits: a condition on its array.
            exact: whether the value must be exact.
            make: the shape of a new leaf; random by default.
            dtype: the required type; any of `kinds` by default.
        """
        if not self.values or self.rng.random() < (0.2 if make is None else 0.5):
            leaf = self._new_leaf(kinds, fits, make, dtype)
            if leaf is not None:
                return leaf
        ready = [
            i for i, v in enumerate(self.values)
            if kind_of(v.dtype) in kinds and (dtype is None or v.dtype == dtype) and (v.exact or not exact) and fits(v.true)
        ]  # fmt: skip
        if ready:
            return self.rng.choice(ready[-4:] if self.rng.random() < 0.7 else ready)
        return self._new_leaf(kinds, fits, make, dtype)

    def broadcastable(
        self, kinds: str, first=lambda _: True, second=lambda _: True, exact: bool = False
    ) -> Any:
        """Return the numbers of two values of one type that broadcast, or None."""
        i = self.pick(kinds, first, exact=exact)
        if i is None:
            return None
        shape = [1 if self.rng.random() < 0.25 else n for n in self.shape(i)]
        shape = (
            tuple(shape[self.rng.randrange(len(shape) + 1) :]) if self.rng.random() < 0.3 else tuple(shape)
        )
        j = self.pick(
            kinds, lambda v: v.shape == shape and second(v), exact=exact, make=shape, dtype=self.dtype(i)
        )
        return None if j is None else (i, j)

    def _new_leaf(
        self, kinds: str, fits: Any, make: tuple[int, ...] | None, dtype: np.dtype | None
    ) -> int | None:
        """Append a leaf that fits; return its number, or None after three attempts."""

        kind = self.rng.choice(kinds)
        complexes = np.dtype("c16" if self.float.itemsize == 8 else "c8")
        dtype = dtype or {"f": self.float, "i": self.integer, "b": np.dtype(bool), "c": complexes}[kind]
        for _ in range(3):
            i = self.leaf(self.random_shape() if make is None else make, dtype)
            if fits(self.values[i].true):
                return i
            self.values.pop()
        return None

    # -- growing ---------------------------------------------------------------------------------------------

    def _grow(self) -> None:
        for _ in range(20):
            before = len(self.values)
            make = self.rng.choice(OPERATIONS)
            operation = make(self)
            if operation and self._append(operation):
                self.drawn.append(make.__name__)
                return
            del self.values[before:]

    def _append(self, operation: Operation) -> bool:
        """Append the value of an operation; return False if it is too large or its tolerance is unbounded."""

        operands = [self.values[i] for i in operation.operands]
        floats = [v.dtype for v in operands if kind_of(v.dtype) in "fc"]
        with np.errstate(all="ignore"):
            true = np.asarray(operation.reference(NUMPY, *[v.true for v in operands]))
        if true.size > 2000 or (true.dtype.kind in "fc" and not (np.abs(true).max(initial=0) < LARGEST)):
            return False
        dtype = true.dtype if true.dtype.kind in "iub" else self._float_type(operation, true, floats)
        exact = true.dtype.kind in "iub" or self._is_exact(operation, operands, true, dtype)
        noisy = (
            [
                self._noisy(operation, operands, true, k, 0.0 if exact else unit(dtype))
                for k in range(NOISY_RUNS)
            ]
            if true.dtype.kind in "fc"
            else [true]
        )
        if not all(np.isfinite(run).all() for run in noisy):
            return False  # The operand is so close to the border of the domain that no tolerance exists.
        graded = operation.smooth and dtype.kind not in "iub" and any(v.graded for v in operands)
        self.values.append(Value(operation, dtype, true, noisy, exact, graded))
        return True

    def _float_type(self, operation: Operation, true: np.ndarray, floats: list[np.dtype]) -> np.dtype:
        if operation.text.startswith("astype"):
            return np.dtype(operation.text[7:-1])
        if not floats:
            return self.float
        joint = floats[0] if len(set(floats)) == 1 else np.result_type(*floats)
        if true.dtype.kind == "f" and joint.kind == "c":
            return np.dtype("f4" if joint.itemsize == 8 else "f8")
        return joint

    def _is_exact(
        self, operation: Operation, operands: list[Value], true: np.ndarray, dtype: np.dtype
    ) -> bool:
        if not (operation.ring or operation.moving) or not all(v.exact for v in operands):
            return False
        if dtype.itemsize == 2 and not operation.moving:
            return False
        terms = true if operation.slack is None else operation.slack(*[v.true for v in operands])
        small = np.abs(terms).max(initial=0) < 2**12
        return bool(small and (true * 64 == np.rint((true * 64).real) + 1j * np.rint((true * 64).imag)).all())

    def _noisy(
        self, operation: Operation, operands: list[Value], true: np.ndarray, k: int, unit_roundoff: float
    ) -> np.ndarray:
        """Return the result of noisy run `k`.

        Noise continues in the direction of the operands' noise. Otherwise noise may cancel and seem to be zero.
        """
        with np.errstate(all="ignore"):
            moved = [v.noisy[k % len(v.noisy)] for v in operands]
            result = np.asarray(operation.reference(NUMPY, *moved))
            terms = (
                np.abs(result)
                if operation.slack is None
                else np.maximum(operation.slack(*moved), np.abs(result))
            )
            deviation = result - true
            random_sign = self.numbers.choice([-1.0, 1.0], size=result.shape)
            direction = np.where(np.abs(deviation) > 0, deviation / np.abs(deviation), random_sign)
        # A result below the smallest number of a type may become 0.
        return result + direction * (unit_roundoff * terms + SMALLEST.get(unit_roundoff, 0.0))

    # -- the loss --------------------------------------------------------------------------------------------

    def _weights(self) -> dict[int, tuple[np.ndarray, Layout]]:
        """Return, by the number of a value, the weights of its elements in the loss and their layout."""
        ready = [i for i, v in enumerate(self.values) if v.graded and isinstance(v.source, Operation)]
        chosen = self.rng.sample(ready, min(len(ready), self.rng.choice([0, 1, 2, 3])))
        return {
            i: (
                self.numbers.integers(-4, 5, size=self.shape(i)) / 2,
                random_layout(self.rng, self.meshes[0], self.ndim(i)),
            )
            for i in chosen
        }

    def loss(
        self, backend: Any, values: list[Any], convert: Callable[[np.ndarray], Any] = lambda x: x
    ) -> Any:
        """Return the weighted sum of some values, and of the squared magnitudes of complex values."""
        total: Any = 0.0
        for i, (weight, _) in self.weights.items():
            value = values[i]
            if self.values[i].dtype.kind == "c":
                value = backend.absolute(value) ** 2
            total = total + (value * convert(weight)).sum()
        return total

    def reference(
        self, backend: Any, leaves: dict[int, Any], constant: Callable[[np.ndarray], Any] = lambda x: x
    ) -> list[Any]:
        """Return all values computed from the given leaves. Values without a gradient stay constant."""
        values: list[Any] = []
        for i, value in enumerate(self.values):
            if i in leaves:
                values.append(leaves[i])
            elif isinstance(value.source, Leaf) or not value.graded:
                values.append(constant(value.true))
            else:
                values.append(value.source.reference(backend, *[values[k] for k in value.source.operands]))
        return values

    # -- runs and comparisons --------------------------------------------------------------------------------

    def run(self, world: Any) -> list[Tensor]:
        """Return all values as global tensors in a world.

        Raises:
            WrongError: If an operation raises an error.
        """
        tensors: list[Tensor] = []
        for number, value in enumerate(self.values):
            if isinstance(value.source, Leaf):
                source = value.source
                tensors.append(
                    place(
                        value.true.astype(value.dtype),
                        source.layout,
                        world,
                        source.requires_grad,
                        source.seed,
                    )
                )
                continue
            operands = [tensors[i] for i in value.source.operands]
            try:
                tensors.append(self._call(value.source, operands, number))
            except Exception as error:
                raise WrongError(
                    f"{type(error).__name__}: {error}\n{self.listing(number, tensors)}"
                ) from error
        return tensors

    def _call(self, operation: Operation, operands: list[Tensor], number: int) -> Tensor:
        """Run an operation, sometimes with a random strategy."""

        rng = random.Random(self.seed * 1000 + number)
        if operation.op is not None and rng.random() < 0.3:
            params = operation.params or {}
            bound = operation.op.bind([t.shape for t in operands], params)
            ready = [s for s in bound.strategies(rng.choice(self.meshes), empty=True) if not s.passed]
            if ready:
                result: Tensor = operation.op.shard(rng.choice(ready))(*operands, **params)
                return result
        result = operation.call(*operands)
        return result

    def check(self, world: Any, torch: Torch | None = None) -> None:
        """Run the program and compare values, gradients, replicas, layouts and bytes.

        Raises:
            WrongError: If a value is wrong. The text has the program and the first wrong value.
        """
        with record() as trace:
            tensors = self.run(world)
        for number, (tensor, value) in enumerate(zip(tensors, self.values)):
            if tensor.dtype != value.dtype:
                self._fail(number, tensors, f"type {tensor.dtype}, not {value.dtype}")
            wrong = misplaced(tensor, value.true, value.tolerance)
            if wrong:
                self._fail(number, tensors, wrong)
        self._check_copies(tensors)
        self._check_shapes(world, tensors, trace)
        if self.weights:
            self._check_gradients(world, tensors, torch)
            self._check_copies([tensors[i].grad for i in self._graded_leaves()])

    def _check_copies(self, tensors: list[Tensor | None]) -> None:
        """Check that replicas are identical. Ranks of one process share them."""
        try:
            check_replicas([tensor for tensor in tensors if tensor is not None])
        except WorldError as error:
            raise WrongError(f"program {self.seed} on {self.ranks} ranks: {error}") from error

    def _check_shapes(self, world: Any, tensors: list[Tensor], trace: Any) -> None:
        """Check that a world without data has equal layouts and counts equal bytes of rank 0."""
        with record() as expected:
            shapes = self.run(ShapeOnly(self.ranks))
        for number, (tensor, shape) in enumerate(zip(tensors, shapes)):
            if tensor.meta is not shape.meta and tensor.meta != shape.meta:
                self._fail(number, tensors, f"{shape.meta} without data")
        predicted, counted = expected.nbytes(0), trace.nbytes(0) if 0 in world.ranks else None
        has_owned_rows = any("owned" in v.source.text for v in self.values if isinstance(v.source, Operation))
        if (
            counted is not None
            and predicted != counted
            and not has_owned_rows
            and type(world).__name__ == "LockStep"
        ):
            self._fail(
                len(tensors) - 1, tensors, f"{counted} bytes received by rank 0, but {predicted} without data"
            )

    def _check_gradients(self, world: Any, tensors: list[Tensor], torch: Torch | None) -> None:
        """Run the backward pass and check the layout, type, shape and values of each leaf's gradient.

        Raises:
            WrongError: If the backward pass raises an error, or if a gradient is wrong.
        """

        weights = {
            i: place(w.astype(_real(self.dtype(i))), layout, world, False, 0)
            for i, (w, layout) in self.weights.items()
        }
        import spmdsim.ops as ops

        total: Any = None
        for i, weight in weights.items():
            value = tensors[i]
            if value.dtype.kind == "c":
                value = ops.square(ops.absolute(value))
            term = (value * weight).sum()
            total = term if total is None else total + term
        last = len(tensors) - 1
        try:
            total.backward()
        except Exception as error:
            raise WrongError(
                f"backward: {type(error).__name__}: {error}\n{self.listing(last, tensors)}"
            ) from error
        for i in self._graded_leaves():
            leaf, gradient = tensors[i], tensors[i].grad
            if gradient is None:
                if self._reaches(i):
                    self._fail(i, tensors, "no gradient")
                continue
            if (
                gradient.layout != leaf.layout.dual()
                or gradient.dtype != leaf.dtype
                or gradient.shape != leaf.shape
            ):
                self._fail(i, tensors, f"gradient {gradient!r} of {leaf!r}")
        if all(v.dtype.itemsize > 2 or v.dtype.kind in "iub" for v in self.values):
            self._check_slopes(tensors, torch)

    def _graded_leaves(self) -> list[int]:
        return [i for i, v in enumerate(self.values) if isinstance(v.source, Leaf) and v.source.requires_grad]

    def _reaches(self, leaf: int) -> bool:
        """Return True if the loss depends on a leaf."""
        reached = {leaf}
        for i, value in enumerate(self.values):
            if value.graded and isinstance(value.source, Operation) and reached & {*value.source.operands}:
                reached.add(i)
        return bool(reached & {*self.weights})

    def _check_slopes(self, tensors: list[Tensor], torch: Torch | None) -> None:
        """Compare gradients with central differences along two random directions, and with torch's gradients."""
        narrow = any(v.dtype.kind in "fc" and unit(v.dtype) > 1e-12 for v in self.values)
        if narrow and any(not v.exact and _is_unsure(v) for v in self.values):
            return
        exact = self._torch_gradients(torch) if torch is not None else {}
        for i in self._graded_leaves():
            gradient = tensors[i].grad
            if gradient is None or not self.values[i].true.size:
                continue
            actual = gradient.full().astype(np.complex128)
            # The bends of two kinks may cancel along one direction, but not along two.
            wrong = [self._wrong_slope(i, actual, narrow, number) for number in range(2)]
            if None in wrong:
                continue
            if all(wrong):
                self._fail(i, tensors, str(wrong[0]))
            if i in exact:
                scale = np.abs(exact[i]).max(initial=0)
                off = np.abs(actual - exact[i]).max(initial=0)
                if not off <= (1e-2 if narrow else 1e-7) * (scale + 1e-3):
                    self._fail(i, tensors, f"gradient differs from torch's by {off:.3g} of {scale:.3g}")

    def _wrong_slope(self, i: int, actual: np.ndarray, narrow: bool, number: int) -> str | None:
        """Return a text about a wrong slope along a direction.

        Returns:
            "" if the slope is right, or None if the reference is too uncertain to compare.
        """
        direction = self._direction(i, number)
        slope, doubt = self._slope(i, direction)
        size = float((np.abs(actual) * np.abs(direction)).sum())
        if doubt > 1e-3 * (size + abs(slope)) + 1e-6:
            return None  # The function has a kink or is too steep.
        allowed = (5e-3 if narrow else 1e-6) * (size + abs(slope)) + 10 * doubt + 1e-6
        actual_slope = float((np.conj(actual) * direction).real.sum())
        if abs(actual_slope - slope) <= allowed:
            return ""
        return (
            f"slope of the gradient {actual_slope:.8g}, of the reference {slope:.8g} (allowed {allowed:.2g})"
        )

    def _direction(self, i: int, number: int) -> np.ndarray:
        numbers = np.random.default_rng([self.seed, i, number])
        real = numbers.normal(size=self.shape(i))
        return real + 1j * numbers.normal(size=self.shape(i)) if self.values[i].dtype.kind == "c" else real

    def _slope(self, i: int, direction: np.ndarray) -> tuple[float, float]:
        """Return the reference's derivative along a direction, and its uncertainty: 0 for a smooth function."""

        def value(step: float) -> float:
            leaf = np.asarray(self.values[i].true + step * direction)
            return float(np.real(self.loss(NUMPY, self.reference(NUMPY, {i: leaf}))))

        step = 1e-5
        with np.errstate(all="ignore"):
            middle, up, down, far, back = (
                value(0),
                value(step),
                value(-step),
                value(2 * step),
                value(-2 * step),
            )
        near, wide = (up - down) / (2 * step), (far - back) / (4 * step)
        # The bend of a second derivative shrinks with the step; the bend of a kink does not.
        bends = [(up - 2 * middle + down) / step, (far - 2 * middle + back) / (2 * step)]
        return near, abs(near - wide) + abs(2 * bends[0] - bends[1])

    def _torch_gradients(self, torch: Torch) -> dict[int, np.ndarray]:
        tensor = torch.torch.as_tensor
        leaves = {i: tensor(self.values[i].true).clone().requires_grad_() for i in self._graded_leaves()}
        values = self.reference(torch, leaves, lambda x: tensor(x.copy()))
        total = self.loss(torch, values, lambda w: tensor(w))
        if not hasattr(total, "requires_grad") or not total.requires_grad:
            return {}
        total.backward()
        return {i: leaf.grad.numpy() for i, leaf in leaves.items() if leaf.grad is not None}

    def _fail(self, number: int, tensors: list[Tensor], what: str) -> None:
        raise WrongError(f"{what}\n{self.listing(number, tensors)}")

    def listing(self, number: int, tensors: list[Tensor]) -> str:
        """Return the program as text, with the layouts of its run and a mark at value `number`."""
        lines = [
            f"program {self.seed} on {self.ranks} ranks, loss over {sorted(self.weights) if hasattr(self, 'weights') else ''}"
        ]
        for i, value in enumerate(self.values):
            source = value.source
            text = "leaf" if isinstance(source, Leaf) else f"{source.text} of {source.operands}"
            tensor_text = repr(tensors[i]) if i < len(tensors) else f"{value.dtype}{list(value.true.shape)}"
            lines.append(f"{'-->' if i == number else '   '} {i}: {text}: {tensor_text}")
        return "\n".join(lines)


def kind_of(dtype: np.dtype) -> str:
    """Return the kind of a type: f, i, c or b."""
    return {"V": "f", "u": "i"}.get(dtype.kind, dtype.kind)


def _real(dtype: np.dtype) -> np.dtype:
    return {"c16": np.dtype("f8"), "c8": np.dtype("f4")}.get(dtype.str[1:], dtype)


def _is_unsure(value: Value) -> bool:
    """Return True if rounding moves a value by more than a ten-thousandth of its largest element."""
    return (
        float(np.max(value.tolerance, initial=0)) > 1e-4 * float(np.abs(value.true).max(initial=0)) + 1e-300
    )


def ranks_of(seed: int) -> int:
    """Return the number of ranks of the program with a seed."""
    return random.Random(seed).choice([1, 2, 2, 3, 4, 4, 5, 6, 8, 8, 12])
