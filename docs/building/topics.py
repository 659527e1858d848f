"""The sections of long reference pages: which public names belong to which topic."""

from __future__ import annotations

import pkgutil
from functools import cache
from importlib import import_module

from spmdsim.arrays import ops

#: Page -> topics -> names of the page, or files whose names belong to the topic. A name wins over its file.
TOPICS = {
    "spmdsim": {
        "Meshes and layouts": "Mesh Layout Shard Replicate Partial",
        "Tensors and operators": "Tensor Op Rule Strategy local_map matmul linear einsum embedding relu reshape softmax",
        "Worlds of ranks": "world LockStep ShapeOnly StopRequest",
        "Plans, prices and searches": "plan forbid_redistribution Machine search",
        "Comparisons with one process": "check check_gradient check_replicas Verdict SpmdError",
        "Pictures, traces and simulated programs": "show figure record simulate",
        "Version": "__version__",
    },
    "spmdsim.ops": {
        "Arithmetic and functions of elements": "elementwise declare",
        "Comparisons, logic and bits": "equal not_equal greater greater_equal less less_equal isfinite isinf isnan "
        "logical_and logical_not logical_or logical_xor bitwise_and bitwise_invert bitwise_or bitwise_xor left_shift "
        "right_shift signbit where",
        "Reductions and running sums": "dim_reductions variance scans statistics",
        "Products of matrices and convolutions": "contract einstein_sums windowed",
        "Layers and losses": "activations normalise class_losses",
        "Shapes": "shape arrange",
        "Slices and joins": "slicing assign",
        "Lookups": "along lookup scatter",
        "Sorting, extreme entries and unique values": "sorting places selecting",
    },
    "spmdsim.collectives": {
        "Write an algorithm": "declare from_function instructions Chunks Round",
        "Find an algorithm": "algorithm algorithms Algorithm Formula choose collective Collective COLLECTIVES",
        "Bind an algorithm to ranks": "schedule",
        "Verify, count and bound": "verification facts",
        "Run and draw": "run_lock_step emulate unroll",
    },
    "spmdsim.cost": {
        "Machines": "machine machine_file closed_forms calibrate Work NodeMap",
        "Prices and predictions": "prediction pricing",
        "Networks": "topology topologies network_bound",
    },
    "spmdsim.nn": {
        "Modules and parameters": "module",
        "Layers": "layers attention transformer",
        "Losses": "losses",
        "Optimisers and gradients": "optimisers optimiser_base gradients",
    },
    "spmdsim.linalg": {
        "Products and diagonals": "vector_products contract einstein_sums arrange vecdot",
        "Linear systems and factors": "by_panels tall",
        "Norms and singular values": "norms",
        "Determinants and eigenvalues": "whole",
    },
}


@cache
def _operator_files() -> dict[int, str]:
    """Return the file of each public operator: identity -> the last word of the module's name."""
    files = {}
    for entry in pkgutil.iter_modules(ops.__path__):
        module = import_module(f"{ops.__name__}.{entry.name}")
        for name in getattr(module, "__all__", ()):
            files[id(getattr(module, name))] = entry.name
    return files


def list_topics(page: str, values: dict[str, object]) -> dict[str, list[str]]:
    """Return the names of a page by topic: ``{topic: names}``, or one topic without a heading.

    Args:
        page: the public module.
        values: the public values by name.

    Raises:
        KeyError: If a name has no topic on a page with topics.
    """
    if page not in TOPICS:
        return {"": [*values]}
    topic_of = {word: topic for topic, words in TOPICS[page].items() for word in words.split()}
    topics: dict[str, list[str]] = {topic: [] for topic in TOPICS[page]}
    for name, value in values.items():
        file = _operator_files().get(id(value), str(getattr(value, "__module__", "")).rpartition(".")[2])
        if name not in topic_of and file not in topic_of:
            raise KeyError(f"docs/building/topics.py: {page}.{name} (file {file!r}) has no topic")
        topics[topic_of.get(name) or topic_of[file]].append(name)
    return topics
