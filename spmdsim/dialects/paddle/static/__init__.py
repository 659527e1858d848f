"""``paddle.static``: programs that are recorded once and run with every feed.

Calls of the dialect's functions and layers are recorded; a run makes them again, on tensors of ours, with the feeds in
the place of the variables. What a program says once stands here, too: its mode, where random numbers begin, how layers
are numbered.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from spmdsim.dialects import exported, lazy, listed
from spmdsim.dialects.gradients import no_grad as no_grad
from spmdsim.dialects.missing import each

#: Public name -> the submodule that has it.
EXPORTS = exported(
    program="Program data default_main_program default_startup_program program_guard",
    variables="Variable",
    executor="Executor append_backward",
)

#: What to use instead of a name that resembles none here.
NEAREST = each({
    "InputSpec": "data",
    "CompiledProgram BuildStrategy ExecutionStrategy ParallelExecutor": "the Program itself",
    "gradients": "append_backward",
    "global_scope scope_guard": "Program.all_parameters()",
    "save load "
    "save_inference_model load_inference_model load_program_state set_program_state": "spmdsim.tensor.checkpoint",
    "auc accuracy": "paddle.argmax and paddle.mean",
    "nn": "paddle.nn.Linear and paddle.nn.Embedding",
    "cpu_places cuda_places xpu_places device_guard": "Executor()",
    "create_parameter create_global_var WeightNormParamAttr": "paddle.create_parameter",
    "name_scope": "ParamAttr(name=...)",
    "Print py_func": "fetch_list of exe.run",
    "amp": "float32 everywhere",
})  # fmt: skip

__all__ = list(EXPORTS)


#: Which mode was asked for. Before, what Paddle has for static mode alone works as well as what needs dynamic mode.
_static, _dynamic = [False], [False]
_seed = {"base": 0, "drawn": 0}
_kinds: Counter[str] = Counter()


def enable_static() -> None:
    """The mode in which programs are recorded. What is known is computed at once nevertheless."""
    _static[0], _dynamic[0] = True, False


def disable_static(place: Any = None) -> None:
    """Dynamic mode, in which ``paddle.distributed.split`` and ``paddle.static.data`` refuse to work, as Paddle's do."""
    _static[0], _dynamic[0] = False, True


def in_dynamic_mode() -> bool:
    """Whether dynamic mode was asked for."""
    return _dynamic[0]


def in_static_mode() -> bool:
    """Whether static mode was asked for: calls are recorded."""
    return _static[0] and not _dynamic[0]


def seed(value: int) -> None:
    """Where random numbers begin; the first values of layers without a name begin anew."""
    _seed.update(base=value, drawn=0)
    _kinds.clear()


def first_seed() -> int:
    """What the program's seed is."""
    return _seed["base"]


def next_seed() -> int:
    """Another seed at every call, the same on every rank."""
    _seed["drawn"] += 1
    return _seed["base"] + _seed["drawn"]


def next_number(kind: str) -> int:
    """How many of a kind there were since the seed was given; it decides a layer's first values."""
    _kinds[kind] += 1
    return _kinds[kind] - 1


def __getattr__(name: str) -> Any:
    return lazy(__name__, EXPORTS, name, NEAREST)


def __dir__() -> list[str]:
    return listed(__name__, EXPORTS)
