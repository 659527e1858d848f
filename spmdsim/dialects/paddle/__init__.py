"""Paddle's notation: the modules of ``paddle`` as tables of names.

>>> from spmdsim.dialects import paddle
>>> mesh = paddle.ProcessMesh([[2, 4, 5], [0, 1, 3]], dim_names=["x", "y"])
>>> paddle.layout(mesh, [paddle.Shard(0), paddle.Replicate()], ndim=2).bounds((6, 4), rank=0)
((3, 6), (0, 4))
"""

from __future__ import annotations

from importlib import import_module

from spmdsim.dialects.missing import ModuleWords, declare_modules

_CHECKPOINT = "spmdsim.arrays.checkpoint"

_HOMES = {
    "Partial Replicate Shard": ".torch",
    "ProcessMesh ceil_split check_even dims_mapping from_dims_mapping layout": "process_mesh",
    "SplitLayout split_layout": "splitting",
    "arange empty eye full get_default_dtype get_device is_compiled_with_cuda is_tensor linspace normal ones randperm uniform "
    "rand randint randn set_default_dtype set_device to_tensor zeros": "creation",
    "disable_static enable_static in_dynamic_mode seed": "static",
    "no_grad": ".session",
    "CPUPlace CUDAPinnedPlace CUDAPlace Tensor": "tensors",
    "ParamAttr create_parameter": "parameters",
    "ColumnParallelLinear ParallelCrossEntropy RowParallelLinear VocabParallelEmbedding": "layers",
}  # fmt: skip
#: Unsupported names -> suggestion, if no similar name exists.
_NEAREST = {
    "bfloat16": "float32",
    "DataParallel": "Shard(0) of the input, Replicate() of the parameters",
    "jit": "calling the function: programs run eagerly",
    "save load": _CHECKPOINT,
    "DataLoader io": "to_tensor of each batch",
    "grad": "Tensor.backward",
    "histogram": "spmdsim.ops.histogram",
    "bernoulli": "rand",
    "shape": "Tensor.shape",
    "rank": "Tensor.ndim",
    "Model metric callbacks hapi": "a loop over loss.backward() and optimizer.step()",
    "summary flops profiler": "print(layer), and spmdsim.record",
}  # fmt: skip
_LAID_OUT = {
    "dtensor_from_fn dtensor_from_local reshard shard_layer shard_optimizer shard_tensor split unshard_dtensor "
    "ParallelEnv init_parallel_env": "distributed",
    "with_padding_rows": "layers",
    "Partial Replicate Shard": ".torch",
    "ProcessMesh ReduceType": "process_mesh",
    "get_rank get_world_size": ".session",
}
_NO_COLLECTIVES = {
    "all_gather all_reduce alltoall alltoall_single barrier broadcast gather irecv isend recv reduce reduce_scatter scatter "
    "send wait dtensor_to_local": "reshard(tensor, mesh, placements), which inserts the collectives",
    "launch spawn": "spmdsim launch",
    "new_group get_group set_mesh get_mesh": "ProcessMesh",
    "parallelize to_static Strategy DistAttr": "shard_tensor per parameter",
    "shard_dataloader": "shard_tensor of each batch",
    "ReduceOp": "Partial(op)",
    "save_state_dict load_state_dict": _CHECKPOINT,
    "sharding": "spmdsim.nn.sharded_over",
}  # fmt: skip
_FLEET = {
    "DistributedStrategy HybridCommunicateGroup distributed_model distributed_optimizer "
    "get_hybrid_communicate_group=HybridCommunicateGroup init is_first_worker": "fleet",
    "worker_index=get_rank worker_num=get_world_size": ".session",
}
_NO_FLEET = {
    "save_inference_model save_persistables save": _CHECKPOINT,
    "barrier_worker init_worker stop_worker": "init, after which ranks are kept together by their collectives",
}  # fmt: skip
_PARALLEL_LAYERS = ModuleWords(
    {"ColumnParallelLinear ParallelCrossEntropy RowParallelLinear VocabParallelEmbedding": "layers"}
)
_LAYERS = {
    "ClipGradByGlobalNorm ClipGradByNorm ClipGradByValue": "optimizer",
    "Layer LayerList Sequential": "layers",
    "ParamAttr": "parameters",
}
_NO_LAYERS = {
    "TransformerEncoderLayer TransformerDecoderLayer": "spmdsim.nn.TransformerBlock",
    "utils": "ClipGradByGlobalNorm",
    "MultiHeadAttention": "spmdsim.nn.Attention",
}  # fmt: skip
_NO_FUNCTIONS = {
    "pad": "spmdsim.ops.pad",
    "label_smooth": "cross_entropy(..., label_smoothing=)",
    "flash_attention scaled_dot_product_attention": "spmdsim.nn.Attention",
}  # fmt: skip
_PROGRAMS = {
    "Program Variable data default_main_program default_startup_program program_guard": "static",
    "Executor": "executor",
}
_NO_PROGRAMS = {
    "InputSpec": "data",
    "CompiledProgram BuildStrategy ExecutionStrategy ParallelExecutor": "the Program itself",
    "gradients append_backward": 'optimizer.minimize(loss), after which exe.run fetches "w@GRAD"',
    "global_scope scope_guard": "Program.all_parameters()",
    "save load save_inference_model load_inference_model": _CHECKPOINT,
    "nn": "paddle.nn.Linear and paddle.nn.Embedding",
    "create_parameter create_global_var": "paddle.create_parameter",
    "Print py_func": "fetch_list of exe.run",
}  # fmt: skip

__getattr__ = declare_modules(__name__, {
    "": ModuleWords(_HOMES, _NEAREST, "functions.FUNCTIONS tensors.TYPES"),
    "distributed": ModuleWords(_LAID_OUT, _NO_COLLECTIVES),
    "distributed.fleet": ModuleWords(_FLEET, _NO_FLEET),
    "distributed.fleet.layers": ModuleWords(),
    "distributed.fleet.layers.mpu": _PARALLEL_LAYERS,
    "distributed.fleet.meta_parallel": _PARALLEL_LAYERS,
    "fft": ModuleWords(tables="functions.FOURIER"),
    "linalg": ModuleWords(tables="functions.LINALG"),
    "nn": ModuleWords(_LAYERS, _NO_LAYERS, "layers.LAYERS"),
    "nn.functional": ModuleWords(nearest=_NO_FUNCTIONS, tables="functions.NETWORK_FUNCTIONS"),
    "nn.initializer": ModuleWords(tables="parameters.INITIALIZERS"),
    "optimizer": ModuleWords({"SGD Adam AdamW Momentum Optimizer": "optimizer"}, {"lr": "set_lr before each step"}),
    "regularizer": ModuleWords({"L1Decay L2Decay": "optimizer"}),
    "static": ModuleWords(_PROGRAMS, _NO_PROGRAMS),
})  # fmt: skip
import_module(f"{__name__}.functions")  # adds operators and methods to tensors
