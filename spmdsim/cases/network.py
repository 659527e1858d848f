"""Network of MindSpore's tutorial: images and labels, layers with strategies, and a reference in one process."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from spmdsim.arrays import Tensor, ops
from spmdsim.arrays.files import open_array
from spmdsim.arrays.rounding import Measured, gather_runs, operand, runs_of_process, to_wider_type
from spmdsim.cases.inputs import Source, digit_records, load_digits
from spmdsim.core import Layout, Mesh, bind
from spmdsim.core.cuts import ShardedOp
from spmdsim.errors import InputError, many
from spmdsim.nn import Module, Normal, Parameter

if TYPE_CHECKING:
    from spmdsim.worlds.base import World

# ---------------------------------------------------------------- images: MNIST's IDX files, or the handwritten digits of the package, enlarged


#: Mean and standard deviation of MNIST's pixels, with which the tutorial normalises.
MEAN, DEVIATION = 0.1307, 0.3081
SIDE = 28


@dataclass(frozen=True)
class Images:
    """Labelled set of normalised 28 x 28 images.

    Attributes:
        name: description.
        pixels: numbers ``[count, 784]``.
        labels: classes ``[count]`` from 0 to 9.
    """

    name: str
    pixels: Source  # [count, 784]
    labels: Source  # [count], 0..9

    @property
    def count(self) -> int:
        """The number of images."""
        return self.pixels.shape[0]


def load_images(path: str | None) -> Images:
    """Return the images of MNIST's files in a folder, or else the package's digits, enlarged.

    Args:
        path: the folder. None or "" for the folder that the variable ``DATA_PATH`` names; if it is not set, there
            is no folder.

    Raises:
        InputError: If files are missing or do not fit (see :func:`mnist`), or a label is over 9.
    """
    folder = path or os.environ.get("DATA_PATH")
    if not folder:
        return enlarged_digits()
    images = mnist(Path(folder))
    highest = int(images.labels.read((slice(0, images.count),)).max(initial=0))
    if highest > 9:
        raise InputError(
            f"MNIST's labels must be in 0..9, got {highest} in {str(folder)!r}; pass the folder of MNIST's files"
        )
    return images


def mnist(folder: Path) -> Images:
    """Return the images and labels of MNIST's training files, whose rows are read when used.

    Pixels are float32 numbers ``(byte / 255 - MEAN) / DEVIATION``, labels are int64 and not checked here. The files may
    be gzipped.

    Args:
        folder: the folder of the files; they may also be in its ``train/``.

    Raises:
        InputError: If a file is missing or damaged, images are not of 28 x 28 pixels, or there is not one label per
            image.
    """
    images = open_array(find_mnist_file(folder, "train-images", "idx3-ubyte"))
    labels = open_array(find_mnist_file(folder, "train-labels", "idx1-ubyte"))
    if images.shape[1:] != (SIDE, SIDE) or labels.shape != images.shape[:1]:
        raise InputError(
            f"MNIST must have images of 28 x 28 with one label each, got images of shape {images.shape} and "
            f"labels of shape {labels.shape} in {str(folder)!r}; pass the folder of MNIST's files"
        )

    side = slice(0, SIDE)
    pixels = _make_pixel_source(folder.name, images.shape[0], lambda rows: images.read((rows, side, side)))
    classes = Source("labels", labels.shape, np.dtype(np.int64), lambda i: labels.read(i).astype(np.int64))
    return Images(f"MNIST in {folder}", pixels, classes)


def find_mnist_file(folder: Path, name: str, kind: str) -> Path:
    """Return the path of one of MNIST's files, gzipped or not, in a folder or its ``train/``.

    For example, ``train-images`` and ``idx3-ubyte`` find ``train-images-idx3-ubyte``, ``train-images.idx3-ubyte``
    and ``train/train-images-idx3-ubyte.gz``. The folder itself is searched first.

    Args:
        folder: the folder.
        name: the first part of the file's name.
        kind: the second part, after ``-`` or ``.``.

    Raises:
        InputError: If the file does not exist.
    """
    for directory, separator, suffix in itertools.product((folder, folder / "train"), "-.", ("", ".gz")):
        if (path := directory / f"{name}{separator}{kind}{suffix}").is_file():
            return path
    raise InputError(
        f"{str(folder)!r} must have the file {name}-{kind} (or .gz), got none; pass the folder of MNIST's files"
    )


Rows = Callable[[slice], np.ndarray]


def _make_pixel_source(name: str, count: int, images: Rows) -> Source:
    """Return a source of images as rows ``[count, 784]`` of normalised float32 numbers.

    A number is ``(byte / 255 - MEAN) / DEVIATION``.
    """

    def read_block(index: tuple[slice, ...]) -> np.ndarray:
        rows, columns = index
        block = images(rows).reshape(-1, SIDE * SIDE)[:, columns].astype(np.float32) / np.float32(255)
        return (block - np.float32(MEAN)) / np.float32(DEVIATION)

    return Source(name, (count, SIDE * SIDE), np.dtype(np.float32), read_block)


def enlarged_digits() -> Images:
    """Return the package's 8 x 8 digits, each pixel enlarged to 3 x 3, in a border of two pixels."""
    images, labels_of, count = small_digits()
    labels = Source("labels", (count,), np.dtype(np.int64), lambda index: labels_of(index[0]))
    name = "handwritten digits of 8 x 8 pixels, enlarged to 28 x 28"
    return Images(name, _make_pixel_source("digits", count, images), labels)


def small_digits() -> tuple[Rows, Rows, int]:
    """Return functions that read enlarged digits and their labels, and the number of digits.

    A digit of 8 x 8 pixels becomes one of 28 x 28: each pixel is enlarged to 3 x 3, in a border of two pixels.

    Returns:
        * A function of a slice of rows, which returns these digits as bytes ``[rows, 28, 28, 1]``.
        * A function of a slice of rows, which returns their labels as int64 ``[rows]``.
        * The number of digits.
    """
    small = load_digits()

    def images(rows: slice) -> np.ndarray:
        block = small.read((rows, slice(0, 64))).reshape(-1, 8, 8)
        large = np.pad(block.repeat(3, 1).repeat(3, 2), ((0, 0), (2, 2), (2, 2)))
        array: np.ndarray = np.rint(large * 255).astype(np.uint8)[..., None]
        return array

    def labels(rows: slice) -> np.ndarray:
        return digit_records().read((rows, slice(64, 65)))[:, 0].astype(np.int64)

    return images, labels, small.shape[0]


# ---------------------------------------------------------------- the 784-512-512-10 network of the operator-level parallel tutorial


#: Widths of the layers.
WIDTHS = (784, 512, 512, 10)


def factor_ranks(ranks: int, count: int) -> tuple[int, ...]:
    """Return the sizes of ``count`` mesh axes whose product is a number of ranks.

    Each axis but the last one takes the smallest prime that is left, as in the tutorial's 8 = 2 * 4; the last one
    takes the quotient. If there are too few primes, the first axes have size 1.

    >>> factor_ranks(8, 2), factor_ranks(8, 3), factor_ranks(12, 2), factor_ranks(7, 2), factor_ranks(1, 3)
    ((2, 4), (2, 2, 2), (2, 6), (1, 7), (1, 1, 1))
    """
    factors: list[int] = []
    remaining = ranks
    while len(factors) < count - 1:
        prime = next((p for p in range(2, math.isqrt(remaining) + 1) if remaining % p == 0), 0)
        if not prime:
            break
        factors.append(prime)
        remaining //= prime
    return (*(1,) * (count - 1 - len(factors)), *factors, remaining)


def simple_cuts(ranks: int) -> list[Any]:
    """Return the tutorial's strategies of five operators: matmul1, relu1, matmul2, relu2, matmul3.

    A strategy has one tuple per operand with the number of blocks of each dim. The last product is data parallel.
    """
    rows, inner = factor_ranks(ranks, 2)
    first = ((rows, inner), (inner, 1))
    return [first, ((inner, 1),), ((1, ranks), (ranks, 1)), ((ranks, 1),), ((ranks, 1), (1, 1))]


def advanced_layouts(ranks: int) -> list[Any]:
    """Return the tutorial's advanced strategies of five operators, as in :func:`simple_cuts`.

    The first two products have a layout per operand. The first one uses a mesh with three axes, two of which
    split one dim together; the second one a mesh with one axis. On 8 ranks these meshes are (2, 2, 2) and (8,).
    The other operators have the number of blocks of each dim.

    Args:
        ranks: the number of ranks.
    """
    cube, line = Mesh(factor_ranks(ranks, 3), ("dp", "sp", "mp")), Mesh((ranks,), ("tp",))
    return [
        (cube("mp", ("sp", "dp")), cube(("sp", "dp"), None)),
        ((factor_ranks(ranks, 2)[1], 1),),
        (line(None, "tp"), line("tp", None)),
        ((ranks, 1),),
        ((ranks, 1), (1, 1)),
    ]


def data_parallel_cuts(ranks: int) -> list[Any]:
    """Return strategies that split every operator over the batch."""
    product, each = ((ranks, 1), (1, 1)), ((ranks, 1),)
    return [product, each, product, each, product]


STRATEGIES: dict[str, Callable[[int], list[Any]]] = {
    "simple": simple_cuts, "advanced": advanced_layouts, "data": data_parallel_cuts,
}  # fmt: skip


def _describe_adaptation(strategies: str, ranks: int, batch: int) -> str:
    """Return a text on how strategies differ from the tutorial's, and on uneven splits; or "".

    An example is "the tutorial has 8 ranks, so on 4 its strategies become 2x2; 30 do not divide by 4: pieces
    differ by one". The first half is left out on 8 ranks, the second one if ``ranks`` divides the batch and the
    widths of all layers but the last.

    Args:
        strategies: "simple", "advanced" or "data". "data" is not compared with the tutorial, whose strategies
            split the weights, too.
        ranks: number of ranks.
        batch: rows of a batch.
    """
    words = []
    if strategies != "data" and ranks != 8:
        axis_counts = {"simple": (2,), "advanced": (3, 1)}[strategies]  # of its device matrices
        shapes = " and ".join("x".join(map(str, factor_ranks(ranks, count))) for count in axis_counts)
        words.append(f"the tutorial has 8 ranks, so on {ranks} its strategies become {shapes}")
    uneven = [str(size) for size in (batch, *dict.fromkeys(WIDTHS[:-1])) if size % ranks]
    if uneven:
        words.append(f"{' and '.join(uneven)} do not divide by {ranks}: pieces differ by one")
    return "; ".join(words)


class Network(Module):
    """Network of the tutorial: flatten, and three products with ReLU.

    Args:
        strategies: key of :data:`STRATEGIES`.
        ranks: number of ranks.
        batch: rows of a batch, at least one per rank.
        dtype: element type of the weights.

    Raises:
        InputError: If the batch has fewer rows than ranks.
    """

    def __init__(self, strategies: str, ranks: int, batch: int, dtype: Any = np.float32) -> None:
        if batch < ranks:
            raise InputError(
                f"a batch must have a row for each of {many(ranks, 'rank')}, got {many(batch, 'row')}; take more "
                "rows"
            )
        by_layer = STRATEGIES[strategies](ranks)
        self.products = [ops.matmul.op.shard(s) for s in by_layer[0::2]]
        self.activations = [ops.relu.op.shard(s) for s in by_layer[1::2]]
        shapes = list(itertools.pairwise(WIDTHS))
        layouts = [self._layouts(p, (batch, n), (n, m), ranks) for p, (n, m) in zip(self.products, shapes)]
        self.input_layout = layouts[0][0]
        #: Text on how the strategies differ from the tutorial's, and which sizes split unevenly; empty if there is nothing to say.
        self.adaptation = _describe_adaptation(strategies, ranks, batch)
        self.fc1, self.fc2, self.fc3 = (
            Parameter(shape, layout, Normal(0.01), dtype) for shape, (_, layout) in zip(shapes, layouts)
        )

    @staticmethod
    def _layouts(
        product: ShardedOp, x: tuple[int, int], w: tuple[int, int], ranks: int
    ) -> tuple[Layout, ...]:
        """Return the layouts of a product's operands ``x`` and ``w``, given by shape."""
        bound = product.op.bind([x, w], {})
        return bind(bound.rule, (x, w)).input_layouts(product.strategy(bound, ranks))

    def forward(self, x: Tensor) -> Tensor:
        """Compute the logits of a batch: ``[batch, 784] -> [batch, 10]``.

        ReLU follows the first two products. All ranks must call it.

        Args:
            x: the rows of the batch, as many as the network was built for.
        """
        x = self.products[0](x, self.fc1.value)
        x = self.activations[0](x)
        x = self.products[1](x, self.fc2.value)
        x = self.activations[1](x)
        return self.products[2](x, self.fc3.value)


# ---------------------------------------------------------------- references


class Reference:
    """Reference network in plain NumPy: three products with ReLU, softmax cross entropy, gradient descent."""

    def __init__(self, weights: list[np.ndarray], rate: float) -> None:
        self.weights = [weight.copy() for weight in weights]
        self.rate = weights[0].dtype.type(rate)

    def step(self, x: np.ndarray, labels: np.ndarray) -> float:
        """Train one step of gradient descent on a batch; return the loss before it.

        ``weights`` change in place. The loss is the mean cross entropy.

        Args:
            x: the rows of the batch ``[batch, 784]``.
            labels: their classes ``[batch]``, integers from 0 to 9.
        """
        w1, w2, w3 = self.weights
        a1 = x @ w1
        h1 = np.maximum(a1, 0)
        a2 = h1 @ w2
        h2 = np.maximum(a2, 0)
        logits = h2 @ w3
        shifted = logits - logits.max(1, keepdims=True)
        exponentials = np.exp(shifted)
        total = exponentials.sum(1, keepdims=True)
        rows = np.arange(len(labels))
        loss = float((np.log(total[:, 0]) - shifted[rows, labels]).mean())
        slope = exponentials / total
        slope[rows, labels] -= 1
        slope /= len(labels)
        g3 = h2.T @ slope
        slope = (slope @ w3.T) * (a2 > 0)
        g2 = h1.T @ slope
        slope = (slope @ w2.T) * (a1 > 0)
        g1 = x.T @ slope
        for weight, gradient in zip(self.weights, (g1, g2, g3)):
            weight -= self.rate * gradient
        return loss


class StepwiseReference:
    """Reference training in one process that starts each step from the ranks' weights.

    Two correct trainings diverge: if rounding moves a unit to the other side of ReLU's kink, weights differ by a
    gradient, and more kinks follow. So each step starts from the ranks' weights. It is computed in float64, and
    repeatedly in the network's own type. The changes of all steps are summed. The change of the ranks' weights may
    differ from the sum in float64 by a small factor times the differences of the runs in one process. A wrong step,
    even by a hundredth of its gradient, stays in the sum. The world's processes share these runs
    (:mod:`spmdsim.arrays.rounding`).
    """

    def __init__(self, world: World, weights: list[np.ndarray], rate: float) -> None:
        self.world, self.rate, self.dtype = world, rate, weights[0].dtype
        self.first = [to_wider_type(weight) for weight in weights]
        self.losses: dict[int, list[float]] = {number: [] for number in runs_of_process(world)}
        self.changes = {number: [np.zeros_like(weight) for weight in self.first] for number in self.losses}

    def step(self, weights: list[np.ndarray], x: np.ndarray, labels: np.ndarray) -> float:
        """Train one step in each run of this process, from the ranks' weights; record the effects.

        A run is the training in one process. Run 0 computes in float64. Further runs compute in the network's own
        type, from operands that are changed by units in the last place, to measure rounding errors. Each run's loss is
        appended to ``losses``, and the change of its weights is added to ``changes``. ``weights`` stay unchanged. All
        ranks must call it.

        Args:
            weights: the weights of the ranks before the step.
            x: the rows of the batch.
            labels: their classes.

        Returns:
            The loss before the step, computed in float64 by run 0; equal on all ranks.
        """
        for number, losses in self.losses.items():
            # `operand` calls run 0 of this class run -1. Each of the four operands of each step has a salt of its own.
            salt = 4 * len(losses)
            before = [operand(weight, number - 1, salt + k) for k, weight in enumerate(weights)]
            alone = Reference(before, self.rate)
            losses.append(alone.step(operand(x, number - 1, salt + 3), labels))
            for change, old, new in zip(self.changes[number], before, alone.weights):
                change += new - old
        # A process without runs sends a NaN; rank 0 always has run 0.
        own_losses = [losses[-1] for losses in self.losses.values()] or [float("nan")]
        return float(self.world.gather_objects(own_losses[:1] * len(self.world.ranks))[0])

    def measure_rounding(self) -> tuple[Measured, list[Measured]]:
        """Return the reference's losses and last weights, with their allowed rounding errors.

        All ranks must call it, because the processes exchange the results of their runs. Run 0, in float64, gives
        the true values. The differences of the other runs from it give the allowed rounding.

        Returns:
            ``(losses, weights)``: one :class:`Measured` array with a loss per step so far, and one array per
            weight.
        """
        parts = {n: (np.array(losses), self.changes[n]) for n, losses in self.losses.items()}
        (losses, changes), *repetitions = gather_runs(self.world, parts)
        losses_of_runs = [losses_of_run for losses_of_run, _ in repetitions]
        weights = []
        for i, (first, change) in enumerate(zip(self.first, changes)):
            weights_of_runs = [first + changes_of_run[i] for _, changes_of_run in repetitions]
            weights.append(Measured.of(first + change, weights_of_runs, first.dtype, self.dtype))
        return Measured.of(losses, losses_of_runs, np.float64, self.dtype), weights
