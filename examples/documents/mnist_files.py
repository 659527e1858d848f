"""Write files of MNIST's format with drawn digits, for a machine without MNIST.

    python examples/documents/mnist_files.py FOLDER [--count 1632] [--seed 1]

Each digit is a few strokes of a round pen in a square of 28 x 28 pixels, turned, scaled, slanted, moved and bent at random.
"""

import argparse
import struct
from pathlib import Path

import numpy as np

SIDE = 28


def arc(x, y, width, height, start, stop, points=9):
    """Return points on an ellipse; angles are quarter turns from the right, clockwise."""
    turn = np.linspace(start, stop, points) * np.pi / 2
    return np.stack([x + width * np.cos(turn), y + height * np.sin(turn)], 1)


#: The strokes of each digit, as points in a square from -1 to 1; y points down.
STROKES = [
    [arc(0, 0, 0.6, 0.9, 0, 4, 17)],
    [np.array([[-0.3, -0.5], [0.1, -0.9], [0.1, 0.9]])],
    [np.concatenate([arc(0, -0.4, 0.5, 0.5, 2, 4.6), [[-0.55, 0.9], [0.6, 0.9]]])],
    [arc(-0.05, -0.45, 0.5, 0.45, 2.2, 5), arc(-0.05, 0.45, 0.6, 0.45, 3, 5.8)],
    [np.array([[0.25, -0.9], [-0.6, 0.3], [0.65, 0.3]]), np.array([[0.25, -0.9], [0.25, 0.9]])],
    [np.concatenate([[[0.5, -0.9], [-0.4, -0.9], [-0.45, -0.1]], arc(-0.05, 0.35, 0.55, 0.55, 3, 5.8)])],
    [np.concatenate([[[0.4, -0.9], [-0.3, -0.2]], arc(0, 0.4, 0.5, 0.5, 2, 6, 13)])],
    [np.array([[-0.55, -0.9], [0.55, -0.9], [-0.15, 0.9]])],
    [arc(0, -0.45, 0.42, 0.42, 1, 5, 13), arc(0, 0.43, 0.52, 0.46, 3, 7, 13)],
    [np.concatenate([arc(-0.02, -0.4, 0.48, 0.48, 0, 4, 13), [[0.46, -0.4], [0.3, 0.9]]])],
]


def draw_digit(digit, random):
    """Return a random image of a digit, bytes ``[28, 28]``."""
    turn, slant, bend = random.normal(0, [0.12, 0.15, 0.05])
    scale = random.normal([7.5, 8.5], 0.8)
    shift = random.normal(SIDE / 2 - 0.5, 1.0, 2)
    pen = random.uniform(0.9, 1.5)
    grid = np.stack(np.meshgrid(np.arange(SIDE), np.arange(SIDE)), -1)[:, :, None]
    nearest = np.full((SIDE, SIDE), np.inf)
    for stroke in STROKES[digit]:
        x, y = (stroke + random.normal(0, 0.06, stroke.shape)).T
        x = x + slant * y + bend * y**2
        points = np.stack([x * np.cos(turn) - y * np.sin(turn), x * np.sin(turn) + y * np.cos(turn)], 1)
        points = points * scale + shift
        start, direction = points[:-1], np.diff(points, axis=0)
        along = ((grid - start) * direction).sum(-1) / np.maximum((direction**2).sum(-1), 1e-9)
        from_line = grid - start - np.clip(along, 0, 1)[..., None] * direction
        nearest = np.minimum(nearest, np.sqrt((from_line**2).sum(-1)).min(-1))
    return np.rint(255 * np.clip(pen + 0.5 - nearest, 0, 1)).astype(np.uint8)


def digits(count, seed):
    """Return images ``[count, 28, 28]`` and labels ``[count]``, bytes."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, 10, count).astype(np.uint8)
    return np.stack([draw_digit(label, random) for label in labels]), labels


def write(folder, subset="train", count=1632, seed=1):
    """Write ``train-images-idx3-ubyte`` and ``train-labels-idx1-ubyte`` (or ``t10k-...``) into a folder."""
    images, labels = digits(count, seed)
    directory = Path(folder)
    directory.mkdir(parents=True, exist_ok=True)
    for array, name in ((images, "images-idx3-ubyte"), (labels, "labels-idx1-ubyte")):
        header = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)  # 8: bytes without sign
        (directory / f"{subset}-{name}").write_bytes(header + array.tobytes())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder")
    parser.add_argument("--count", type=int, default=1632)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    write(options.folder, "train", options.count, options.seed)
