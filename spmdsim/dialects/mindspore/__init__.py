"""MindSpore's notation: the modules of ``mindspore`` as tables of names.

>>> from spmdsim.dialects import mindspore
>>> mindspore.Layout((2, 4), ("dp", "mp"))("dp", "None").to_dict()["tensor_map"]
(1, -1)
"""

from __future__ import annotations

from spmdsim.dialects.missing import ModuleWords, declare_modules

#: Public names -> the file that defines them.
_HOMES = {
    "Layout MindSporeLayout check_even from_cuts from_tensor_map from_placements": "layout",
    "check_cuts optimizer_shard without_ones without_tuples infer_layout shard": ".imitations.mindspore.sharding",
    "AutoParallel": "auto_parallel",
    "Parameter ParameterTuple Tensor from_numpy initializer no_init_parameters set_seed tensor": "parameter",
    "Model grad value_and_grad": "training",
    "load_checkpoint load_param_into_net save_checkpoint": "training",
    "GRAPH_MODE PYNATIVE_MODE ParallelMode get_auto_parallel_context get_context jit reset_auto_parallel_context "
    "set_auto_parallel_context set_context set_device": "context",
    "float16 float32 float64 int8 int16 int32 int64 bool_": "tensors",
}  # fmt: skip

#: Unsupported names -> suggestion, if no similar name exists.
_NEAREST = {
    "ms_class jit_class ms_function": "jit",
    "run_check": "communication.get_group_size",
    "Momentum SGD Adam Cell Dense": "mindspore.nn has it",
    "MatMul ReLU Primitive": "mindspore.ops has it",
    "numpy scipy": "mindspore.ops",
    "bfloat16": "float32",
    "DynamicLossScaleManager": "float32 without loss scaling",
    "Profiler set_profiler profiler dump set_dump": "spmdsim.record, which counts every collective",
    "export save_mindir load_mindir onnx": "save_checkpoint",
    "transform_checkpoints merge_sliced_parameter": "load_checkpoint",
    "jvp vjp jacfwd jacrev": "value_and_grad",
    "LossMonitor TimeMonitor CheckpointConfig ModelCheckpoint": "mindspore.train has it",
    "manual_seed": "set_seed",
}  # fmt: skip
_DTYPES = {"bool_ float16 float32 float64 int8 int16 int32 int64": "tensors"}
_LAYERS = {
    "Cell CellList CrossEntropyLoss Dense Dropout Embedding GELU Identity L1Loss LayerNorm MSELoss SequentialCell "
    "SoftmaxCrossEntropyWithLogits": "cells",
    "Adam Momentum Optimizer SGD TrainOneStepCell WithLossCell": "training",
}
_NEAREST_NN = {
    "exponential_decay_lr cosine_decay_lr "
    "PolynomialDecayLR piecewise_constant_lr CosineDecayLR WarmUpLR": "learning_rate=, a function of the step",
    "Accuracy Metric Loss": "mindspore.train.Model.predict",
    "MultiheadAttention": "spmdsim.nn.Attention",
    "TransformerEncoderLayer Transformer TransformerEncoder TransformerDecoder": "spmdsim.nn.TransformerBlock",
    "DistributedGradReducer": "AutoParallel, which adds gradients up",
    "ForwardValueAndGrad": "mindspore.value_and_grad",
}  # fmt: skip
_NEAREST_OPS = {
    "assign assign_add assign_sub Assign": "Parameter.set_data",
    "size numel rank Size Rank": "the tensor's size and ndim",
    "depend print_ Print Depend": "nothing is needed: operators run in program order",
    "GradOperation": "mindspore.value_and_grad",
    "HyperMap": "a loop over the gradients",
    "EmbeddingLookup": "Gather",
    "BCEWithLogitsLoss BinaryCrossEntropy": "binary_cross_entropy_with_logits",
    "flash_attention_score prompt_flash_attention rotary_position_embedding": "spmdsim.nn.Attention",
}  # fmt: skip
_TRAINING = (
    {"Callback LossMonitor Model RunContext": "training"},
    {"ModelCheckpoint CheckpointConfig": "save_checkpoint", "TimeMonitor": "LossMonitor"},
)
__getattr__ = declare_modules(__name__, {
    "": ModuleWords(_HOMES, _NEAREST, submodules="context"),
    "dtype": ModuleWords(_DTYPES),
    "communication": ModuleWords({
        "HCCL_WORLD_COMM_GROUP MCCL_WORLD_COMM_GROUP NCCL_WORLD_COMM_GROUP GlobalComm create_group destroy_group "
        "get_group_rank_from_world_rank get_group_size get_local_rank get_local_rank_size get_process_group_ranks get_rank "
        "get_world_rank_from_group_rank init release": "communication",
    }),
    "common": ModuleWords({"set_seed": "parameter"}),
    "common.dtype": ModuleWords(_DTYPES),
    "common.initializer": ModuleWords({
        "INITIALISERS initializer": "parameter",
    }, tables="parameter.OBJECTS"),
    "dataset": ModuleWords({"Dataset GeneratorDataset MnistDataset NumpySlicesDataset Shuffle": "rows"}, {
        "RandomSampler SequentialSampler": "shuffle=",
        "DistributedSampler": "num_shards= and shard_id=",
    }),
    "dataset.config": ModuleWords({"get_seed=get_rows_seed set_seed=set_rows_seed": "parameter"}),
    "dataset.transforms": ModuleWords({"Compose TypeCast": "rows"}),
    "dataset.vision": ModuleWords({"HWC2CHW Normalize Rescale": "rows"}),
    "mint": ModuleWords(
        nearest={"optim": "mindspore.nn.SGD", "distributed": "mindspore.ops.AllReduce"}, tables="functions.mint_functions"
    ),
    "mint.nn": ModuleWords({
        "Dropout Embedding GELU Linear": "functions",
        "CrossEntropyLoss ELU Identity L1Loss LogSoftmax MSELoss ReLU ReLU6 SiLU Sigmoid Softmax Tanh": "nn",
    }, _NEAREST_NN),
    "mint.nn.functional": ModuleWords(nearest={
        "scaled_dot_product_attention": "spmdsim.nn.Attention",
    }, tables="functions.mint_network_functions"),
    "nn": ModuleWords(_LAYERS, _NEAREST_NN, tables="cells.makers"),
    "nn.cell": ModuleWords({"Cell CellList SequentialCell": "cells"}, hidden=True),
    "nn.optim": ModuleWords({"Adam Momentum Optimizer SGD": "training"}, hidden=True),
    "nn.utils": ModuleWords({"no_init_parameters": "parameter"}),
    "ops": ModuleWords({"ReduceOp": "collectives"}, _NEAREST_OPS, tables="functions.functions functions.primitives"),
    "ops.functional": ModuleWords(nearest=_NEAREST_OPS, tables="functions.functions", hidden=True),
    "ops.operations": ModuleWords({"ReduceOp": "collectives"}, _NEAREST_OPS, tables="functions.primitives"),
    "parallel": ModuleWords({"AutoParallel": "auto_parallel", "Layout": "layout", "shard=sharded": "primitive"}, {
        "reshard": "ops.reshard",
        "transform_checkpoints load_distributed_checkpoint convert_checkpoints": "load_checkpoint, of any layout",
    }),
    "parallel.auto_parallel": ModuleWords({"AutoParallel numbers": "auto_parallel"}),
    "runtime": ModuleWords({"set_memory": "tensors"}),
    "train": ModuleWords(*_TRAINING),
    "train.callback": ModuleWords(*_TRAINING, hidden=True),
    "train.model": ModuleWords(*_TRAINING, hidden=True),
})  # fmt: skip
