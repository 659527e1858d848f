"""Cells: networks with ``construct``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from spmdsim.dialects.mindspore.parameter import Parameter
from spmdsim.dialects.mindspore.settings import outermost
from spmdsim.dialects.missing import Worded, each
from spmdsim.dialects.printed import tree
from spmdsim.dialects.table import Numbered
from spmdsim.errors import InputError, UsageTypeError
from spmdsim.nn import Module, ModuleList, Sequential


class Cell(Worded, Module):
    """A network: parameters and cells as attributes, and ``construct``."""

    ORIGINAL = "mindspore.nn.Cell"
    NEAREST = each({
        "compile compile_and_run add_flags set_jit_config flatten_weights": "a call: programs run as they are",
        "to_float cast_inputs cast_param": "dtype= of each parameter",
        "register_forward_hook register_forward_pre_hook register_backward_hook": "a cell around it",
        "recompute pipeline_stage set_comm_fusion offload": "AutoParallel.hsdp",
        "insert_child_to_cell insert_param_to_cell apply register_buffer": "an attribute",
        "init_parameters_data place phase bprop_debug": "nothing is needed: programs run as they are",
        "parameters_layout_dict "
        "param_prefix parameter_layout_dict state_dict load_state_dict": "parameters_dict",
    })  # fmt: skip

    training = False

    def __init__(self, auto_prefix: bool = True, flags: Any = None) -> None:
        """Both arguments are accepted and ignored."""

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        """Run :meth:`construct`; the first call names all parameters by their path, which decides their values."""
        if not self.__dict__.get("_named"):
            self.get_parameters()
            for _, cell in self.cells_and_names():
                cell.__dict__["_named"] = True
        return outermost(super().__call__, *inputs, **options)

    def construct(self, *inputs: Any, **options: Any) -> Any:
        """Compute; defined by each cell."""
        raise UsageTypeError(f"{type(self).__name__} defines no construct()")

    def forward(self, *inputs: Any, **options: Any) -> Any:
        """Run :meth:`construct`."""
        return self.construct(*inputs, **options)

    def trainable_params(self, recurse: bool = True) -> list[Parameter]:
        """The parameters that are trained, named by their path."""
        return [p for p in self.get_parameters() if p.requires_grad]

    def untrainable_params(self, recurse: bool = True) -> list[Parameter]:
        """The others."""
        return [p for p in self.get_parameters() if not p.requires_grad]

    def get_parameters(self, expand: bool = True) -> list[Parameter]:
        """All parameters."""
        parameters = []
        for path, parameter in self.named_parameters():
            parameter.name = path
            parameters.append(parameter)
        return parameters  # type: ignore[return-value]

    def parameters_and_names(self) -> Iterator[tuple[str, Parameter]]:
        """All parameters with their names."""
        return iter([(p.name, p) for p in self.get_parameters()])

    def parameters_dict(self) -> dict[str, Parameter]:
        """All parameters by name."""
        return {p.name: p for p in self.get_parameters()}

    def cells(self) -> list[Cell]:
        """The cells directly inside."""
        return [cell for _, cell in self._children()]

    def name_cells(self) -> dict[str, Cell]:
        """The cells directly inside, by name."""
        return dict(self._children())

    def cells_and_names(self, name_prefix: str = "") -> Iterator[tuple[str, Cell]]:
        """This cell and all inside, with their paths."""
        yield name_prefix, self
        for name, cell in self._children():
            yield from cell.cells_and_names(f"{name_prefix}.{name}" if name_prefix else name)

    def _children(self) -> Iterator[tuple[str, Cell]]:
        return ((name, part) for name, part in self._parts() if isinstance(part, Cell))

    def extend_repr(self) -> str:
        """What a cell prints in its brackets: its options."""
        return ""

    def __repr__(self) -> str:
        """Its class and options, and in further lines the cells inside, each by its name."""
        return tree(type(self).__name__, self.extend_repr(), self._children(), "<", "  >")

    def set_train(self, mode: bool = True) -> Cell:
        """Training or not, for this cell and all inside: dropout asks."""
        for _, cell in self.cells_and_names():
            cell.training = mode
        return self

    def set_grad(self, requires_grad: bool = True) -> Cell:
        """Accepted and ignored: value_and_grad says what is wanted."""
        return self

    def set_inputs(self, *inputs: Any) -> None:
        """Accepted and ignored: shapes are seen at the call."""

    def update_parameters_name(self, prefix: str = "", recurse: bool = True) -> None:
        """Accepted and ignored: parameters are named by their path."""

    def shard(self, *strategies: Any, **options: Any) -> Any:
        """Refused: strategies are given operator by operator.

        Raises:
            InputError: always.
        """
        raise InputError(
            f"{type(self).__name__}.shard: cells are not sharded as a whole here; nearest: .shard on the primitives "
            'inside, or AutoParallel(..., parallel_mode="sharding_propagation")'
        )


class SequentialCell(Cell, Numbered, Sequential):
    """Cells one after the other."""

    def __init__(self, *cells: Any) -> None:
        Sequential.__init__(
            self, *(cells[0] if len(cells) == 1 and isinstance(cells[0], (list, tuple)) else cells)
        )

    construct = Sequential.forward


class CellList(Cell, Numbered):
    """A list of cells whose parameters are found."""

    def __init__(self, cells: Iterable[Any] = ()) -> None:
        ModuleList.__init__(self, cells)


__all__ = ["Cell", "CellList", "SequentialCell"]
