"""``AutoParallel``: a program with the strategies its operators were given; and files that say where its parameters lie."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import Any

from spmdsim.arrays import Tensor
from spmdsim.auto_parallel.execute import Parallelised
from spmdsim.core import Layout
from spmdsim.dialects.mindspore.context import Parallel, Sharing, checked_strategy, within
from spmdsim.dialects.mindspore.layout import MindSporeLayout, from_tensor_map, is_whole
from spmdsim.dialects.mindspore.parameter import Parameter
from spmdsim.dialects.mindspore.tensors import host
from spmdsim.dialects.missing import DialectObject, refuse
from spmdsim.dialects.session import current_world
from spmdsim.errors import InputError, UsageTypeError, many, unknown
from spmdsim.reading import read_json, readable
from spmdsim.wrong_calls import wrong_arguments

#: How strategies are decided.
LEVELS = ("level1", "level2", "level3")
MODES = ("semi_auto", "sharding_propagation", "recursive_programming")
#: The files of parameters: JSON of this package's own, one entry per parameter.
FORMAT = "spmdsim MindSpore parameter strategies 1"

#: Methods that change speed only.
_IGNORED = (
    "comm_fusion", "disable_gradient_fp32_sync", "enable_fp32_communication", "no_init_parameters_in_compile",
    "transformer_opt",
)  # fmt: skip


class AutoParallel(DialectObject):
    """Run a training step, a function or cell, in parallel; an InputError for another mode.

    ``"semi_auto"``: configured operators use their strategies, all others are data parallel. ``"sharding_propagation"``
    spreads the strategies of configured operators, and ``"recursive_programming"`` finds all by the double recursion: the
    first call runs replicated and is recorded, later calls run with what was found.

    With MindSpore's defaults, a training step on n ranks is n times the single process's if all ranks read the same rows and
    the loss is a mean over a rank's rows (``CrossEntropyLoss``): the n gradients are summed. To repeat it in one process,
    multiply the learning rate by n. ``docs/losses.md`` derives the factor; :meth:`enable_gradients_mean` changes it.
    """

    ORIGINAL = "mindspore.AutoParallel"

    def __init__(self, network: Callable[..., Any], parallel_mode: str = "semi_auto") -> None:
        if parallel_mode not in MODES:
            raise unknown(f"no parallel_mode is called {parallel_mode!r}", str(parallel_mode), MODES)
        self.program = network
        self.network = network if parallel_mode == "semi_auto" else Parallelised(network, parallel_mode)
        self.parallel_mode, self.settings = parallel_mode, Parallel()
        self._file, self._written, self._only_trainable = "", 0, True
        self._operators = ""

    def dataset_strategy(self, config: Any) -> None:
        """How data is given to each rank; None or another word is a ValueError, anything else that it cannot be a TypeError.

        ``"data_parallel"``, where nothing is said: what a rank is given is its rows of a batch that is as many times as long
        as there are ranks. ``"full_batch"``: every rank is given the whole batch and keeps its piece. A tuple of cuts or a
        Layout per input: what a rank is given is its slice of the input.
        """
        self._set(dataset_strategy=checked_strategy(config))

    def enable_gradients_mean(self) -> None:
        """Gradients of parameters are means over the ranks that hold the same slice, not sums."""
        self._set(gradients_mean=True)

    def disable_loss_repeated_mean(self) -> None:
        """A loss that all ranks compute whole counts once per rank."""
        self._set(loss_repeated_mean=False)

    def hsdp(self, shard_size: int = -1, threshold: int = 64, optimizer_level: str = "level1") -> None:
        """Share parameters and the optimiser's state out among the ranks that need the same slice, or ``shard_size`` of them.

        They are gathered where they are used; those of fewer KB than ``threshold`` stay whole. ``"level1"``: gradients are added
        up as wholes, of which each rank takes its piece; ``"level2"``: they are scattered as they are added up; ``"level3"``:
        besides, what was gathered is dropped when its operator has run, and gathered again for the backward pass. Another
        value is a ValueError.
        """
        size = current_world().size
        refuse({
            f"shard_size is -1 or in 1..{size}, the number of ranks, not {shard_size!r}":
                not is_whole(shard_size) or (shard_size != -1 and not 1 <= shard_size <= size),
            f"threshold is a number of KB of at least 0, not {threshold!r}": not is_whole(threshold) or threshold < 0,
            f"optimizer_level is one of {', '.join(LEVELS)}, not {optimizer_level!r}": optimizer_level not in LEVELS,
        })  # fmt: skip
        self._set(sharing=Sharing(shard_size, threshold, LEVELS.index(optimizer_level) + 1))

    def pipeline(self, stages: int = 1, *_: Any, **__: Any) -> None:
        """Accepted with one stage; a ValueError for more."""
        if not is_whole(stages) or stages != 1:
            raise InputError(f"a program runs as one stage here, not {stages!r}; nearest: pipeline(stages=1)")

    def save_param_strategy_file(self, file_path: str) -> None:
        """Write where each parameter lies, as JSON, at the end of every call that uses another one."""
        self._file, self._written = _checked_path(file_path), 0

    def load_param_strategy_file(self, file_path: str) -> None:
        """Lay parameters out as a file says that :meth:`save_param_strategy_file` wrote, by their names.

        No such file, a damaged one, or one of another number of ranks is a ValueError.
        """
        self._set(slices=_loaded(_checked_path(file_path)))

    def save_operator_strategy_file(self, file_path: str) -> None:
        """Write the strategy that was found for each operator, as JSON, after the call that found it.

        A KeyError for no absolute path, or none that ends in ``.json``; a ValueError for a mode that finds none.
        """
        self._searched("save_operator_strategy_file", "save_param_strategy_file")
        self._operators = _checked_json(file_path)

    def load_operator_strategy_file(self, file_path: str) -> None:
        """Take operators' strategies from a file that :meth:`save_operator_strategy_file` wrote, instead of finding them.

        Errors as there, and a ValueError at the first call for a file of another program or number of ranks.
        """
        path = _checked_json(file_path)
        read_json(path, "strategies of operators")
        self._searched("load_operator_strategy_file", "load_param_strategy_file").load = path

    def _searched(self, word: str, nearest: str) -> Parallelised:
        if not isinstance(self.network, Parallelised):
            raise InputError(
                f"{word} is for parallel_mode 'sharding_propagation' and 'recursive_programming': in 'semi_auto' operators have "
                f"the strategies of .shard; nearest: {nearest}"
            )
        return self.network

    def disable_strategy_file_only_for_trainable_params(self) -> None:
        """Parameters that are not trained are written, too."""
        self._only_trainable = False

    def around(self, network: Callable[..., Any]) -> AutoParallel:
        """Another network with the same settings."""
        other = AutoParallel(network, self.parallel_mode)
        other.settings, other._file, other._only_trainable = self.settings, self._file, self._only_trainable
        return other

    def _set(self, **changes: Any) -> None:
        self.settings = replace(self.settings, **changes)

    def __getattr__(self, name: str) -> Any:
        if name in _IGNORED:
            return lambda *arguments, **options: None
        network = vars(self).get("network")
        return getattr(network, name) if hasattr(network, name) else super().__getattr__(name)

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        """One call; results of one element come back as numbers, the same on every rank."""
        if named:
            called = getattr(self.program, "construct", self.program)
            try:
                inputs = signature(called).bind(*inputs, **named).args
            except TypeError as error:
                raise wrong_arguments(called, inputs, named, error) from None
        with within(self.settings):
            tensors = self.settings.placed(inputs)
            result = self.network(*tensors)
        if self._operators and isinstance(self.network, Parallelised):
            search = self.network.result_for(*tensors)
            if search is not None and 0 in current_world().ranks:  # once for each file, on the first rank
                search.save(self._operators)
                self._operators = ""
        used = [p for p in self.settings.parameters.values() if p.requires_grad or not self._only_trainable]
        if self._file and len(used) != self._written:
            _save(self._file, used)
            self._written = len(used)
        return numbers(result)


def numbers(value: Any) -> Any:
    """Tensors of one element as numbers, the same on every rank."""
    if isinstance(value, Tensor) and value.size == 1:
        return host(value.full().reshape(()))
    return tuple(map(numbers, value)) if isinstance(value, tuple) else value


# -- files ---------------------------------------------------------------------------------------------------


class WrongPath(InputError, KeyError):
    """A path that a file of operators' strategies cannot have."""


def _checked_path(path: Any) -> str:
    if not isinstance(path, str):
        raise UsageTypeError(f"file_path is a str, not {path!r}")
    return path


def _checked_json(path: Any) -> str:
    here = Path(_checked_path(path))
    if not here.is_absolute():
        raise WrongPath(f"file_path is an absolute path, not {path!r}; nearest: {str(here.absolute())!r}")
    if here.suffix != ".json":
        right = str(here.with_suffix(".json"))
        raise WrongPath(f"file_path ends in .json, unlike {path!r}; nearest: {right!r}")
    return str(path)


def _save(path: str, parameters: Sequence[Parameter]) -> None:
    if 0 not in current_world().ranks:
        return
    entries = {}
    for parameter in parameters:
        mesh, told = parameter.used.mesh, Layout.to_dict(parameter.used)
        keys = ["device_matrix", "tensor_map", *["rank_list"] * (mesh.ranks is not None)]
        entries[parameter.name] = {"shape": parameter.shape, **{key: told[key] for key in keys}}
    text = json.dumps({"format": FORMAT, "ranks": current_world().size, "parameters": entries}, indent=1)
    Path(path).write_text(text + "\n")


def _loaded(path: str) -> dict[str, MindSporeLayout]:
    """The layouts of a file, by name; an InputError for no such file, another format, or another number of ranks."""
    data, ranks = read_json(path, "strategies of parameters"), current_world().size
    data = data if isinstance(data, dict) else {}
    refuse({
        f"{path} is not a file of parameters' strategies (its format is not {FORMAT!r})": data.get("format") != FORMAT,
        f"{path} is of {data.get('ranks')!r} ranks, but {many(ranks, 'is', 'are')} running": data.get("ranks") != ranks,
    })  # fmt: skip
    layouts = {}
    with readable(path, "strategies of parameters"):
        for name, entry in data["parameters"].items():
            axes = [axis if isinstance(axis, int) else tuple(axis) for axis in entry["tensor_map"]]
            layouts[name] = layout = from_tensor_map(entry["device_matrix"], axes, entry.get("rank_list"))
            layout.check_shape(tuple(entry["shape"]))
            if layout.mesh.size != ranks:
                raise InputError(
                    f"{path}: the device matrix of {name} has {many(layout.mesh.size, 'device')}, not {ranks}"
                )
    return layouts
