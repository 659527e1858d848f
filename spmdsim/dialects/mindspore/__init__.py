"""MindSpore's spelling.

>>> from spmdsim.dialects import mindspore
>>> mindspore.Layout((2, 4), ("dp", "mp"))("dp", "None").to_dict()["tensor_map"]
(1, -1)
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial, reduce
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from spmdsim.dialects import lazy, listed
from spmdsim.dialects.missing import each, not_covered, tell

#: Public name -> the file that has it.
EXPORTS: dict[str, str] = each({
    "Layout MindSporeLayout check_even from_cuts from_tensor_map from_placements": "layout",
    "check_cuts optimizer_shard without_ones without_tuples infer_layout shard": "sharding",
    "AutoParallel": "auto_parallel",
    "Parameter ParameterTuple Tensor from_numpy initializer no_init_parameters set_seed tensor": "parameter",
    "Model grad value_and_grad": "training",
    "load_checkpoint load_param_into_net save_checkpoint": "checkpoint",
    "GRAPH_MODE PYNATIVE_MODE ParallelMode get_auto_parallel_context get_context jit reset_auto_parallel_context "
    "set_auto_parallel_context set_context set_device": "context",
    "float16 float32 float64 int8 int16 int32 int64 bool_": "tensors",
})  # fmt: skip

#: What to use instead of a name that resembles none here.
NEAREST = each({
    "ms_class ms_memory_recycle jit_class ms_function": "jit",
    "run_check": "communication.get_group_size",
    "Momentum SGD Adam Cell Dense": "mindspore.nn has it",
    "MatMul ReLU Primitive": "mindspore.ops has it",
    "numpy": "mindspore.ops",
    "bfloat16": "float32",
    "amp": "float32 everywhere",
    "lazy_inline": "nothing is needed: programs are not compiled",
    "DynamicLossScaleManager": "float32 without loss scaling",
    "Profiler": "spmdsim.record, which counts every collective",
    "shard": "ops.MatMul().shard(...)",
    "export save_mindir load_mindir onnx": "save_checkpoint",
    "set_dump set_profiler profiler dump": "spmdsim.record",
    "set_ps_context set_offload_context set_algo_parameters": "set_auto_parallel_context",
    "rank_list_for_transform transform_checkpoints merge_sliced_parameter": "load_checkpoint",
    "hal device_context multiprocessing": "runtime",
    "rewrite": "nn.Cell",
    "boost": "nn.SGD",
    "experimental": "parallel",
    "scipy": "ops",
    "jvp vjp jacfwd jacrev vmap jet derivative": "value_and_grad",
    "LossMonitor TimeMonitor CheckpointConfig ModelCheckpoint": "mindspore.train has it",
    "manual_seed": "set_seed",
    "recompute": "nothing is needed: a run keeps its activations",
})  # fmt: skip

#: Submodules that programs reach as attributes.
SUBMODULES = (
    "common", "communication", "context", "dataset", "dtype", "mint", "nn", "ops", "parallel", "runtime", "train",
)  # fmt: skip

__all__ = [*EXPORTS, *SUBMODULES]


def __getattr__(name: str) -> Any:
    if name == "dtype":
        return import_module(f"{__name__}.common.dtype")
    return lazy(__name__, EXPORTS, name, NEAREST, SUBMODULES)


def __dir__() -> list[str]:
    return listed(__name__, EXPORTS, SUBMODULES)


# -- modules that programs import and that are no files -----------------------------------------------------------


def _module(
    path: str, exports: dict[str, str], nearest: dict[str, str], inside: str = "", table: str = ""
) -> None:
    """A module.

    Args:
        path: where it is.
        exports: public names -> the file that has them, or an object in it; what follows a ``=`` is the name there.
        nearest: what to use instead of names that resemble none here.
        inside: the modules in it that it shows.
        table: a function in a file that says what makes further names, as of now.
    """
    module = ModuleType(f"{__name__}.{path}", f"``mindspore.{path}``.")
    instead = each(nearest)

    def names() -> dict[str, Callable[[], Any]]:
        written = {
            word.partition("=")[0]: (file, word.rpartition("=")[2]) for word, file in each(exports).items()
        }
        makers = _in_file(*table.split("."))() if table else {}
        return {**{name: partial(_in_file, *place) for name, place in written.items()}, **makers}

    def listing() -> list[str]:
        return sorted({*names(), *inside.split()})

    def __getattr__(name: str) -> Any:
        if f"{module.__name__}.{name}" in sys.modules:
            return sys.modules[f"{module.__name__}.{name}"]
        if name == "__all__":
            return listing()
        maker = None if name.startswith("__") else names().get(name)
        if maker is None:
            raise not_covered(module.__name__, name, listing(), instead)
        value = vars(module)[name] = maker()  # the next time without a search
        return value

    spec = ModuleSpec(module.__name__, None, is_package=True)
    vars(module).update(__path__=[], __spec__=spec, __getattr__=__getattr__, __dir__=listing, NEAREST=instead)
    sys.modules[module.__name__] = module


def _in_file(place: str, name: str) -> Any:
    """What a file, or an object in it, has under a name; a function refuses wrong arguments from then on."""
    file, *inside = place.split(".")
    module = import_module(f"{__name__}.{file}")
    tell(module.__name__, [name])
    return getattr(reduce(getattr, inside, module), name)


_DTYPES = {"bool_ float16 float32 float64 int8 int16 int32 int64": "tensors"}
_LAYERS = {
    "CrossEntropyLoss L1Loss MSELoss SoftmaxCrossEntropyWithLogits": "losses",
    "Cell CellList Dense Dropout Embedding GELU Identity LayerNorm SequentialCell": "cells",
    "Adam Momentum Optimizer SGD TrainOneStepCell WithLossCell": "training",
}
_NEAREST_NN = {
    "exponential_decay_lr cosine_decay_lr "
    "PolynomialDecayLR piecewise_constant_lr CosineDecayLR WarmUpLR": "learning_rate=, a function of the step",
    "Accuracy Metric Loss": "mindspore.train.Model.predict",
    "probability": "mindspore.ops",
    "Conv1d Conv2d Conv3d MaxPool2d AvgPool2d Conv2dTranspose": "Dense over reshaped patches",
    "BatchNorm1d BatchNorm2d GroupNorm": "LayerNorm",
    "AdamWeightDecay Lamb LARS RMSProp Adagrad FTRL": "Adam",
    "LSTM GRU RNN": "a loop over ops.MatMul and ops.Tanh",
    "MultiheadAttention": "spmdsim.nn.Attention",
    "TransformerEncoderLayer Transformer TransformerEncoder TransformerDecoder": "spmdsim.nn.TransformerBlock",
    "Hardswish Softplus SELU Mish HSwish LeakyReLU": "the function of mindspore.ops in a Cell of one's own",
    "ParameterUpdate": "Parameter.set_data",
    "DistributedGradReducer": "AutoParallel, which adds gradients up",
    "MicroBatchInterleaved GradAccumulationCell PipelineCell": "none: a network runs as one stage",
    "ForwardValueAndGrad": "mindspore.value_and_grad",
    "layer": "nn, which has them all",
}
_NEAREST_OPS = {
    "assign assign_add assign_sub Assign": "Parameter.set_data",
    "size numel rank Size Rank": "the tensor's size and ndim",
    "depend print_ Print Depend": "nothing is needed: operators run in program order",
    "AlltoAllV AllToAll NeighborExchangeV2 Send Receive": "AlltoAll",
    "Reduce CollectiveGather": "AllReduce",
    "CollectiveScatter Barrier": "Broadcast",
    "Conv2D MaxPool AvgPool BatchNorm": "MatMul over reshaped patches",
    "GradOperation": "mindspore.value_and_grad",
    "HyperMap": "a loop over the gradients",
    "vmap scan custom Custom": "a loop in Python",
    "composite constexpr MultitypeFuncGraph _selected_ops": "a plain function: programs run as they are",
    "ScalarSummary TensorSummary HistogramSummary": "print",
    "UnsortedSegmentSum ScatterUpdate ScatterNdUpdate ScatterAdd": "one_hot and matmul",
    "EmbeddingLookup": "Gather",
    "BCEWithLogitsLoss BinaryCrossEntropy": "binary_cross_entropy_with_logits",
    "flash_attention_score prompt_flash_attention rotary_position_embedding": "spmdsim.nn.Attention",
}
#: The arguments of each.
_MODULES: list[tuple[Any, ...]] = [
    ("common", {"set_seed": "parameter"}, {}, "dtype initializer"),
    ("common.dtype", _DTYPES, {}),
    ("common.initializer", {
        "Constant HeUniform INITIALISERS Normal One Uniform XavierUniform Zero initializer": "parameter",
    }, {"Orthogonal TruncatedNormal Sparse Dirac VarianceScaling Identity": "Normal, or Tensor of numpy's"}),
    ("dataset", {"Dataset GeneratorDataset MnistDataset NumpySlicesDataset Shuffle": "rows"}, {
        "Cifar10Dataset ImageFolderDataset TFRecordDataset": "NumpySlicesDataset",
        "RandomSampler SequentialSampler": "shuffle=",
        "DistributedSampler": "num_shards= and shard_id=",
    }, "config transforms vision"),
    ("dataset.config", {"get_seed=get_rows_seed set_seed=set_rows_seed": "parameter"}, {
        "set_num_parallel_workers set_prefetch_size": "set_seed",
    }),
    ("dataset.transforms", {"Compose TypeCast": "rows"}, {"OneHot": "any function of one row"}),
    ("dataset.vision", {"HWC2CHW Normalize Rescale": "rows"}, {
        "Resize RandomCrop RandomHorizontalFlip c_transforms py_transforms": "any function of one row",
    }),
    ("mint", {}, {
        "optim": "mindspore.nn.SGD", "distributed": "mindspore.ops.AllReduce", "linalg": "mindspore.ops.norm",
        "special": "log_softmax", "item": "asnumpy",
    }, "nn", "functions.mint_functions"),
    ("mint.nn", {
        "Dropout Embedding GELU Linear": "functions",
        "CrossEntropyLoss ELU Identity L1Loss LogSoftmax MSELoss ReLU ReLU6 SiLU Sigmoid Softmax Tanh": "nn",
    }, _NEAREST_NN, "functional"),
    ("mint.nn.functional", {}, {"scaled_dot_product_attention": "spmdsim.nn.Attention"}, "", "functions.mint_network_functions"),
    ("nn", _LAYERS, _NEAREST_NN, "utils", "cells.makers"),
    ("nn.cell", {"Cell CellList SequentialCell": "cells"}, {}),
    ("nn.optim", {"Adam Momentum Optimizer SGD": "training"}, {}),
    ("nn.utils", {"no_init_parameters": "parameter"}, {}),
    ("ops", {"ReduceOp": "collectives"}, _NEAREST_OPS, "operations", "functions.everything"),
    ("ops.functional", {}, _NEAREST_OPS, "", "functions.functions"),
    ("ops.operations", {"ReduceOp": "collectives"}, _NEAREST_OPS, "", "functions.primitives"),
    ("parallel", {"AutoParallel": "auto_parallel", "Layout": "layout", "shard=sharded": "primitive"}, {
        "nn distributed Pipeline": "AutoParallel",
        "reshard": "ops.reshard",
        "transform_checkpoints load_distributed_checkpoint convert_checkpoints rank_list_for_transform "
        "transform_checkpoint_by_rank "
        "merge_pipeline_strategys load_segmented_checkpoints": "load_checkpoint, of any layout",
        "set_algo_parameters reset_algo_parameters get_algo_parameters": "set_auto_parallel_context",
    }, "auto_parallel"),
    ("parallel.auto_parallel", {"AutoParallel numbers": "auto_parallel"}, {}),
    ("sharding", {
        "Sharded check_cuts check_result configure configured data_parallel fitted infer_layout optimizer_shard shard "
        "strategy_of without_ones without_tuples": "primitive.rules",
    }, {}),
    ("runtime", {"max_memory_allocated memory_allocated reset_peak_memory_stats set_memory": "tensors"}, {
        "memory_stats memory_reserved memory_summary": "memory_allocated",
        "empty_cache set_cpu_affinity launch_blocking synchronize Stream Event": "set_memory",
    }),
    *((path, {"Callback LossMonitor Model RunContext": "training"}, {
        "ModelCheckpoint CheckpointConfig": "save_checkpoint",
        "TimeMonitor": "LossMonitor",
    }) for path in ("train", "train.callback", "train.model")),
]  # fmt: skip
for _row in _MODULES:
    _module(*_row)
