"""Cells of MindSpore: networks with ``construct``, and losses. Operators without a strategy are data parallel."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np

from spmdsim.arrays import Tensor
from spmdsim.arrays import ops as core
from spmdsim.core import Layout
from spmdsim.dialects.dialect_modules import DialectModule, Numbered, format_module_tree, format_options
from spmdsim.dialects.mindspore.context import LOCAL_MEAN, LOCAL_SUM, call_outermost
from spmdsim.dialects.mindspore.operators import TABLE
from spmdsim.dialects.mindspore.parameter import OBJECTS, Parameter, initializer
from spmdsim.dialects.mindspore.primitive import place, primitive, to_tensor
from spmdsim.dialects.mindspore.table import OperatorRow, parse_arguments
from spmdsim.dialects.mindspore.tensors import format_type
from spmdsim.errors import InputError, UsageTypeError, many, unknown
from spmdsim.nn import Module, ModuleList, Sequential, losses
from spmdsim.redistribution.steps.row_steps import check_ids


class Cell(DialectModule):
    """Network: parameters and cells as attributes, and ``construct``."""

    ORIGINAL = "mindspore.nn.Cell"

    training = False
    #: Returns the options for the brackets of the cell's text.
    extend_repr = format_options("")

    def __init__(self, auto_prefix: bool = True, flags: Any = None) -> None:
        """Create a cell; both arguments are accepted and ignored."""

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        """Run :meth:`construct`.

        The first call names all parameters by their path, on which their values depend.
        """
        if not self.__dict__.get("_named"):
            self.get_parameters()
            for _, cell in self.cells_and_names():
                vars(cell)["_named"] = True
        return call_outermost(super().__call__, *inputs, **options)

    def construct(self, *inputs: Any, **options: Any) -> Any:
        """Compute the results; each subclass defines it. The base raises UsageTypeError."""
        raise UsageTypeError(
            f"{type(self).__name__} must define construct(); it has none of its own, so it cannot be called"
        )

    forward = property(lambda self: self.construct, doc="Function that a call runs.")

    def trainable_params(self, recurse: bool = True) -> list[Parameter]:
        """Return the parameters that are trained, named by their path.

        ``recurse`` is ignored.
        """
        return [p for p in self.get_parameters() if p.requires_grad]

    def untrainable_params(self, recurse: bool = True) -> list[Parameter]:
        """Return the parameters that are not trained. ``recurse`` is ignored."""
        return [p for p in self.get_parameters() if not p.requires_grad]

    def get_parameters(self, expand: bool = True) -> list[Parameter]:
        """Return all parameters, named by their path. ``expand`` is ignored."""
        parameters: dict[str, Any] = dict(self.named_parameters())
        for path, parameter in parameters.items():
            parameter.name = path
        return [*parameters.values()]

    def parameters_and_names(self) -> Iterator[tuple[str, Parameter]]:
        """Yield ``(name, parameter)`` for all parameters."""
        return iter(self.parameters_dict().items())

    def parameters_dict(self) -> dict[str, Parameter]:
        """Return all parameters by name."""
        return {p.name: p for p in self.get_parameters()}

    def cells(self) -> list[Module]:
        """Return the direct children."""
        return [*self.name_cells().values()]

    def name_cells(self) -> dict[str, Module]:
        """Return the direct children by name."""
        return dict(self.named_children())

    def cells_and_names(self, name_prefix: str = "") -> Iterator[tuple[str, Module]]:
        """Yield ``(path, cell)`` for this cell and all cells inside; paths begin with ``name_prefix``."""
        return self.inside(name_prefix)

    def __repr__(self) -> str:
        """Return the class and its options; each child follows on lines of its own, with its name."""
        return format_module_tree(type(self).__name__, self.extend_repr(), self.named_children(), "<", "  >")

    def set_train(self, mode: bool = True) -> DialectModule:
        """Set the training mode of this cell and all cells inside; return this cell.

        Dropout acts only in training.
        """
        return self.train(mode)

    def set_grad(self, requires_grad: bool = True) -> Cell:
        """Do nothing and return this cell: ``value_and_grad`` states the gradients."""
        return self

    def shard(self, *strategies: Any, **options: Any) -> Any:
        """Raise InputError: strategies are given operator by operator here."""
        raise InputError(
            f"{type(self).__name__}.shard: cells are not sharded as a whole here; nearest: .shard on the primitives "
            'inside, or AutoParallel(..., parallel_mode="sharding_propagation")'
        )


class SequentialCell(Cell, Numbered, Sequential):
    """Cell that applies cells one after the other."""

    construct = Sequential.forward

    def __init__(self, *cells: Any) -> None:
        listed = len(cells) == 1 and isinstance(cells[0], (list, tuple))
        Sequential.__init__(self, *(cells[0] if listed else cells))


class CellList(Cell, Numbered):
    """List of cells, whose parameters belong to the cell around."""

    def __init__(self, cells: Iterable[Any] = ()) -> None:
        ModuleList.__init__(self, cells)


@lru_cache(maxsize=512)
def cell_of(row: OperatorRow, name: str = "") -> type[Cell]:
    """Return the class of a cell that applies the first primitive of a row of the operator table.

    The cell passes its constructor's arguments to the primitive's constructor, and its operands to the
    primitive. For example, ``cell_of(row)(axis=1)(x)`` computes what
    ``primitive(row.primitives[0])(axis=1)(x)`` does. The primitive is an attribute of the cell with the name of
    the row's first function, or, without functions, the class's name in lower case. Equal arguments return one
    class.

    Args:
        row: row of the operator table.
        name: name of the class; empty for the row's ``cell``.
    """
    name = name or row.cell
    attribute = next(iter(row.written_functions), name.lower())

    def __init__(self: Any, *args: Any, **named: Any) -> None:
        setattr(self, attribute, primitive(row.primitives[0])(*args, **named))

    def construct(self: Any, *operands: Any, **named: Any) -> Any:
        """Apply the primitive."""
        return getattr(self, attribute)(*operands, **named)

    words = {"__init__": __init__, "construct": construct, "__doc__": f"``{row.primitives[0]}`` as a cell."}
    return type(name, (Cell,), {**words, "__signature__": parse_arguments(row.attrs).signature})


def makers() -> dict[str, Callable[[], type[Cell]]]:
    """Return a function per cell of the operator table that creates its class."""
    return {row.cell: partial(cell_of, row) for row in TABLE.values() if row.cell}


class GELU(Cell):
    """Gaussian error linear unit, by the tanh formula or exact.

    Raises UsageTypeError if ``approximate`` is no bool.
    """

    def __init__(self, approximate: bool = True) -> None:
        if not isinstance(approximate, bool):
            raise UsageTypeError(f"GELU: approximate must be True or False, got {approximate!r}")
        self.gelu = primitive("GeLU" if approximate else "GeluExt")()

    def construct(self, x: Any) -> Any:
        """Compute it element by element."""
        return self.gelu(x)


class Identity(Cell):
    """Cell that returns its input."""

    def construct(self, x: Any) -> Any:
        """Return ``x``."""
        return x


class Dense(Cell):
    """Cell that computes ``x @ weight.T + bias``; the weight has shape ``[out, in]`` as in MindSpore.

    Args:
        in_channels: size of the last dim of the input.
        out_channels: size of the last dim of the result.
        weight_init: initial values of the weight, see `initializer`. None for uniform numbers within ``1 / sqrt(in)``,
            as in MindSpore since 2.0.
        bias_init: initial values of the bias; None as for the weight.
        has_bias: False for no bias.
        activation: name of an activation in lower case, such as ``"relu"``, or a function; None for none.
        dtype: element type of the parameters.

    Raises:
        InputError: If the name of the activation is unknown.
    """

    extend_repr = format_options(
        "input_channels={0.in_channels}, output_channels={0.out_channels}{0._biased}", "activation"
    )

    def __init__(
        self, in_channels: int, out_channels: int, weight_init: Any = None, bias_init: Any = None, has_bias: bool = True,
        activation: str | Callable[[Any], Any] | None = None, dtype: Any = np.float32,
    ) -> None:  # fmt: skip
        self.in_channels, self.out_channels, self.has_bias = in_channels, out_channels, has_bias
        uniform = OBJECTS["Uniform"](1 / math.sqrt(max(in_channels, 1)))
        weight, bias = (uniform if init is None else init for init in (weight_init, bias_init))
        self.weight = Parameter(initializer(weight, [out_channels, in_channels], dtype))
        self.bias = Parameter(initializer(bias, [out_channels], dtype)) if has_bias else None
        self._biased = ", has_bias=True" * has_bias
        self.matmul, self.bias_add = primitive("MatMul")(transpose_b=True), primitive("Add")()
        self.activation = _make_activation(activation) if isinstance(activation, str) else activation

    def construct(self, x: Any) -> Any:
        """Compute ``[..., in] -> [..., out]``."""
        y = self.matmul(x, self.weight)
        if self.bias is not None:
            y = self.bias_add(y, self.bias)
        return y if self.activation is None else self.activation(y)


#: Activations that a Dense may be given by name.
_ACTIVATIONS = ("ReLU", "ReLU6", "Tanh", "Sigmoid", "GELU", "Softmax", "ELU")


def _make_activation(activation: str) -> Callable[[Any], Any]:
    """Return the activation cell of a name, in lower case. Raises InputError if the name is unknown."""
    names = {name.lower(): name for name in _ACTIVATIONS}
    if activation not in names:
        raise unknown(f"no activation is called {activation!r}", str(activation), names)
    return makers().get(names[activation], lambda: GELU)()()


class Embedding(Cell):
    """Rows of a table by index: ``[...] -> [..., embedding_size]``.

    Args:
        vocab_size: number of rows.
        embedding_size: length of a row.
        use_one_hot: must be False.
        embedding_table: initial values of the table; see `initializer`.
        dtype: element type of the table.
        padding_idx: must be None.

    Raises:
        InputError: If ``use_one_hot`` or ``padding_idx`` is set.
    """

    extend_repr = format_options(
        "vocab_size={0.embedding_table.shape[0]}, embedding_size={0.embedding_table.shape[1]}, use_one_hot=False, "
        "embedding_table={0.embedding_table}, dtype={0.dtype}, padding_idx=None"
    )

    def __init__(
        self, vocab_size: int, embedding_size: int, use_one_hot: bool = False, embedding_table: Any = "normal",
        dtype: Any = np.float32, padding_idx: int | None = None,
    ) -> None:  # fmt: skip
        if use_one_hot or padding_idx is not None:
            raise InputError(
                "Embedding: use_one_hot must be False and padding_idx None here; nearest: ops.Gather()"
            )
        self.embedding_table = Parameter(initializer(embedding_table, [vocab_size, embedding_size], dtype))
        self.gather, self.dtype = primitive("Gather")(), format_type(self.embedding_table.dtype)

    def construct(self, ids: Any) -> Any:
        """Return the rows with the indices ``ids``."""
        return self.gather(self.embedding_table, ids, 0)


class LayerNorm(Cell):
    """Normalisation over the last dims, with a scale and a shift.

    Args:
        normalized_shape: shape of the scale and of the shift.
        begin_norm_axis: the first dim that is normalised.
        begin_params_axis: accepted and not used: the scale and the shift apply to the last dims.
        gamma_init: initial values of the scale; see `initializer`.
        beta_init: initial values of the shift.
        epsilon: number added to the variance.
        dtype: element type of the parameters.
    """

    extend_repr = format_options(  # as MindSpore writes them
        "normalized_shape={0.gamma.shape}, begin_norm_axis={0.begin_norm_axis}, "
        "begin_params_axis={0.begin_params_axis}, gamma{0.gamma}, beta={0.beta}"
    )

    def __init__(
        self, normalized_shape: Sequence[int], begin_norm_axis: int = -1, begin_params_axis: int = -1,
        gamma_init: Any = "ones", beta_init: Any = "zeros", epsilon: float = 1e-7, dtype: Any = np.float32,
    ) -> None:  # fmt: skip
        self.begin_norm_axis, self.begin_params_axis = begin_norm_axis, begin_params_axis
        self.gamma = Parameter(initializer(gamma_init, tuple(normalized_shape), dtype))
        self.beta = Parameter(initializer(beta_init, tuple(normalized_shape), dtype))
        self.layer_norm = primitive("LayerNorm")(begin_norm_axis, begin_params_axis, epsilon)

    def construct(self, x: Any) -> Any:
        """Compute ``[..., n] -> [..., n]``."""
        return self.layer_norm(x, self.gamma, self.beta)[0]


class Dropout(Cell):
    """Zero a random share ``p`` of the elements in training (``set_train()``).

    The layout has no influence on which elements are zeroed. ``keep_prob`` is 1 - p; without both, p is 0.5.

    Raises InputError if p is not in [0, 1).
    """

    extend_repr = format_options("p={0.p}")

    def __init__(self, keep_prob: float | None = None, p: float | None = None) -> None:
        self.p = p if p is not None else 0.5 if keep_prob is None else 1 - keep_prob
        if not 0 <= self.p < 1:
            raise InputError(f"Dropout: p must be at least 0 and less than 1, got {self.p!r}")

    def construct(self, x: Any) -> Any:
        """Return ``x`` with elements dropped; ``x`` itself outside of training."""
        return primitive("Dropout")(1 - self.p)(x)[0] if self.training and self.p else x


# -- losses ------------------------------------------------------------------------------------------------------


class _Loss(Cell):
    """Base of elementwise losses; ``reduction`` is ``"mean"``, ``"sum"`` or ``"none"``."""

    #: Loss of each element.
    loss: Callable[..., Tensor]

    def __init__(self, reduction: str = "mean") -> None:
        losses.check_loss_reduction(reduction)
        self.reduction = reduction

    def construct(self, logits: Any, labels: Any) -> Tensor:
        """Compute the loss of two tensors of one shape; a scalar unless the reduction is ``"none"``."""
        x = to_tensor(logits)
        return _reduce_loss(type(self).loss(x, _place_labels(labels, x), self.reduction))


MSELoss = type("MSELoss", (_Loss,), {"loss": losses.mse_loss, "__doc__": "Squared differences."})
L1Loss = type("L1Loss", (_Loss,), {"loss": losses.l1_loss, "__doc__": "Absolute differences."})


def _reduce_loss(loss: Tensor) -> Tensor:
    """Reduce the pending sums of a scalar loss; return other losses unchanged."""
    return loss if loss.ndim else loss.to(loss.layout.reduced)


def _place_labels(labels: Any, logits: Tensor) -> Tensor:
    """Return labels as a tensor, split like the rows of the logits."""
    if isinstance(labels, Tensor):
        return labels
    return place(labels, Layout(logits.layout.mesh, logits.layout.dims[: np.ndim(labels)]))


class CrossEntropyLoss(_Loss):
    """Mean (or sum, or none) of minus the log-probability of each label.

    Labels are class numbers, or probabilities in the shape of the logits. Dim 1 of the logits (or the only one) has
    the classes. The mean is over a rank's own rows, which decides how often it counts in a parallel program
    (:mod:`spmdsim.dialects.mindspore.context`).

    Args:
        weight: weight per class, or None.
        ignore_index: label of rows that do not count.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        label_smoothing: share of every label, in [0, 1], that is spread evenly over all classes.
    """

    def __init__(
        self, weight: Any = None, ignore_index: int = -100, reduction: str = "mean", label_smoothing: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__(reduction)
        if not 0 <= label_smoothing <= 1:
            raise InputError(f"label_smoothing must be in [0, 1], got {label_smoothing!r}")
        self.weight, self.ignore_index, self.label_smoothing = weight, ignore_index, label_smoothing

    def construct(self, logits: Any, labels: Any) -> Tensor:
        """Return the loss of logits: a scalar, or one number per row without reduction.

        Pending sums of a scalar are reduced. A plain mean or sum is one without weights, smoothed labels,
        ignored rows, or probabilities as labels. Its ``name`` says that each rank computes it from its own rows
        (:mod:`spmdsim.dialects.mindspore.context`); other losses have no such name.

        Args:
            logits: the logits: a tensor, a parameter or an array.
            labels: class numbers ``[batch, ...]``, or probabilities in the shape of the logits; arrays are equal on all
                ranks.

        Raises:
            InputError: If a class number is out of range, which is checked for arrays only, or ``weight`` has a wrong
                shape.
        """
        x = to_tensor(logits)
        x = x.to(x.layout.reduced)
        rows, numbered = losses.classes_last(x, min(1, x.ndim - 1)), np.ndim(labels) < x.ndim
        # No process has all labels of a tensor, so a tensor may have ignored labels if there is an `ignore_index`.
        ignores = self.ignore_index != -100
        # An array has all labels on every rank. They are checked before they are split, so all ranks raise equal errors.
        if numbered and not isinstance(labels, Tensor):
            ignored = np.asarray(labels) == self.ignore_index
            check_ids(np.where(ignored, 0, labels), rows.shape[-1], description="classes")
            ignores = bool(ignored.any())
        targets = _place_labels(labels, rows if numbered else x)
        if numbered and self.weight is None and not self.label_smoothing and not ignores:
            loss = _reduce_loss(core.cross_entropy(rows, targets, self.reduction))
            loss.name = {"mean": LOCAL_MEAN, "sum": LOCAL_SUM}.get(self.reduction, "")
            return loss
        options = self.ignore_index, self.reduction, self.label_smoothing
        return _reduce_loss(losses.cross_entropy(x, targets, self._place_weight(rows), *options))

    def _place_weight(self, rows: Tensor) -> Tensor | None:
        """Return the classes' weights, replicated on the logits' mesh; None without weights.

        The weights get the element type of the logits.

        Args:
            rows: the logits with the classes in the last dim.

        Raises:
            InputError: If there is not one weight per class.
        """
        if self.weight is None:
            return None
        values = np.asarray(self.weight, rows.dtype)
        if values.shape != rows.shape[-1:]:
            raise InputError(
                f"weight must have one number for each of {many(rows.shape[-1], 'class', 'classes')}, got shape "
                f"{values.shape}"
            )
        return place(values, Layout.replicated(rows.layout.mesh, 1))


class SoftmaxCrossEntropyWithLogits(CrossEntropyLoss):
    """Cross entropy of logits; labels are class numbers if ``sparse``, else probabilities."""

    def __init__(self, sparse: bool = False, reduction: str = "none") -> None:
        super().__init__(reduction=reduction)
        self.sparse = sparse

    def construct(self, logits: Any, labels: Any) -> Tensor:
        """Return the loss of each row, or a scalar with a reduction.

        Args:
            logits: as in `CrossEntropyLoss`.
            labels: class numbers ``[batch]`` if ``sparse``, else probabilities in the shape of the logits.

        Raises:
            InputError: If the number of the labels' dims does not fit ``sparse``, or a class number is out of range.
        """
        dims = np.ndim(labels)
        if (dims < to_tensor(logits).ndim) is not self.sparse:
            raise InputError(
                f"with sparse={self.sparse} labels must be {'numbers' if self.sparse else 'probabilities'} of "
                f"classes, with {'one dim less than' if self.sparse else 'as many dims as'} logits, got "
                f"{many(dims, 'dim')}"
            )
        return super().construct(logits, labels)
