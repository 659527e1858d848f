"""Create parameters from attributes: ``ParamAttr`` and ``paddle.nn.initializer``. A name used before returns its
parameter.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from spmdsim import nn
from spmdsim.core import Layout, Mesh
from spmdsim.dialects.dialect_modules import with_zero_row
from spmdsim.dialects.host import to_host
from spmdsim.dialects.missing import DialectObject, refuse
from spmdsim.dialects.paddle import static
from spmdsim.dialects.paddle.tensors import Tensor, shape_only, with_methods
from spmdsim.dialects.session import current_world
from spmdsim.dialects.table import add_tensor_operators
from spmdsim.nn.module import Initialiser, Values
from spmdsim.wrong_calls import explained


@dataclass(frozen=True)
class ParamAttr(DialectObject):
    """Attribute of a parameter, for ``weight_attr=`` and ``bias_attr=``.

    Attributes:
        name: name; if a parameter has it already, it is used again.
        initializer: first values, or None for the layer's default.
        learning_rate: factor of the optimiser's rate.
        regularizer: replaces the optimiser's weight decay.
        trainable: collect a gradient.
        do_model_average: ignored.
        need_clip: apply the optimiser's gradient clip.

    Raises:
        InputError: If a value is out of range or has a wrong type.
    """

    ORIGINAL = "paddle.ParamAttr"

    name: str | None = None
    initializer: Any = None
    learning_rate: float = 1.0
    regularizer: Any = None
    trainable: bool = True
    do_model_average: bool = True
    need_clip: bool = True

    def __post_init__(self) -> None:
        rate, decay, flags = self.learning_rate, self.regularizer, ("trainable", "need_clip")
        refuse({
            f"ParamAttr: learning_rate must be a number of 0 or more, got {rate!r}": not isinstance(rate, (int, float)) or not 0 <= rate < math.inf,
            f"ParamAttr: regularizer must be a paddle.regularizer.L2Decay or L1Decay, got a {type(decay).__name__}": not (decay is None or hasattr(decay, "slope")),
            **{f"ParamAttr: {word} must be True or False, got {getattr(self, word)!r}": not isinstance(getattr(self, word), (bool, int)) for word in flags},
            f"ParamAttr: name must be a str, got {self.name!r}": not isinstance(self.name, (str, type(None))),
        })  # fmt: skip


explained(ParamAttr)


def _shift_initialiser(values: Initialiser, shift: float) -> Initialiser:
    """Return an initialiser whose values are those of another one plus ``shift``."""
    return lambda index, shape, dtype, seed: values(index, shape, dtype, seed) + dtype.type(shift)


def _fan_initialiser(kind: Callable[[float], Initialiser], numerator: float) -> Callable[[], Initialiser]:
    """Return a function that creates an initialiser of spread sqrt(numerator / (fan-in + fan-out)).

    The fans of a shape ``(in, out, ...)`` are ``in`` and ``out``, each times the other sizes. Both fans of a vector are
    its size, and those of a scalar are 1. Their sum counts as 1 if it is 0.

    Args:
        kind: creates an initialiser from its spread, such as ``nn.Normal``. The spread is the standard deviation or the
            limit.
        numerator: the number in the formula.
    """

    def initialise(index: Any, shape: tuple[int, ...], *more: Any) -> np.ndarray:
        if len(shape) > 1:
            fan_in, fan_out = shape[:2]
        else:
            fan_in = fan_out = shape[0] if shape else 1
        fan_sum = max(1, (fan_in + fan_out) * math.prod(shape[2:]))
        return kind(math.sqrt(numerator / fan_sum))(index, shape, *more)

    return lambda: initialise  # called as ``XavierNormal()``, without arguments


def Assign(value: Any) -> Initialiser:
    """Return an initialiser with the values of an array."""
    return Values(np.asarray(value))


#: First values by Paddle's names; Xavier's by fan-in and fan-out (Glorot and Bengio, 2010).
INITIALIZERS: dict[str, Callable[..., Initialiser]] = {
    "Assign": Assign,
    "Constant": lambda value=0.0: lambda index, shape, dtype, seed: np.full([p.stop - p.start for p in index], value, dtype),
    "Normal": lambda mean=0.0, std=1.0: _shift_initialiser(nn.Normal(std), mean),
    "Uniform": lambda low=-1.0, high=1.0: _shift_initialiser(nn.Uniform((high - low) / 2), (low + high) / 2),
    "XavierNormal": _fan_initialiser(nn.Normal, 2),
    "XavierUniform": _fan_initialiser(nn.Uniform, 6),
}  # fmt: skip
INITIALIZERS = {name: explained(function, name) for name, function in INITIALIZERS.items()}


def _as_attribute(attr: Any, name: str | None = None) -> ParamAttr:
    """Return an attribute as a `ParamAttr`; ``name`` applies if it has none."""
    if isinstance(attr, ParamAttr):
        return attr if attr.name or name is None else replace(attr, name=name)
    return ParamAttr(attr) if isinstance(attr, str) else ParamAttr(name, None if attr is True else attr)


def _read_first_values(values: Any, shape: tuple[int, ...], default: Initialiser) -> tuple[Initialiser, Any]:
    """Return the initialiser of a parameter's first values.

    Args:
        values: an initialiser (any function), an array, or None.
        shape: shape of the parameter.
        default: initialiser for None.

    Returns:
        The initialiser. The element type of ``values`` if they are an array, else None.

    Raises:
        InputError: If an array has no numbers or another shape.
    """
    kind = None
    if values is not None and not callable(values):
        kind = np.asarray(values).dtype
        text = f"an attribute is a ParamAttr, an initializer, an array or False, not {values!r}"
        refuse({text: kind.kind not in "biufcV"})
        values = Assign(values)
    if isinstance(values, Values):
        unfit = values.array.shape != tuple(shape)
        refuse({f"values of a parameter must have its shape {shape}, got {values.array.shape}": unfit})
    return values or default, kind


class Parameter(nn.Parameter):
    """Trainable tensor with Paddle's methods, created from an ``attribute``."""

    def __init__(self, shape: Any, layout: Layout, initialiser: Any, dtype: Any, attr: ParamAttr) -> None:
        self.attribute, self.first_seed = attr, static.seeds.first
        super().__init__(tuple(shape), layout, initialiser, dtype)

    @nn.Parameter.tensor.setter  # type: ignore[attr-defined, untyped-decorator]
    def tensor(self, tensor: Any) -> None:
        """Set the values: a tensor whose ``owner`` is the parameter, or None for no values.

        Another tensor is replaced by a new leaf with equal data and the parameter's name. The leaf collects a gradient
        if the previous values did; the first values collect one if the attribute is ``trainable``.

        Args:
            tensor: the tensor; it is not changed.
        """
        if tensor is not None and getattr(tensor, "owner", None) is not self:
            before, tensor = self.__dict__.get("tensor"), with_methods(tensor, fresh=True)
            tensor.name, tensor.owner = self.name, self
            tensor.requires_grad = self.attribute.trainable if before is None else before.requires_grad
        nn.Parameter.tensor.fset(self, tensor)  # type: ignore[attr-defined]

    def assign(self, tensor: Any) -> None:
        """Set new values; the gradient stays until it is cleared."""
        gradient = self.value.grad
        super().assign(tensor)
        self.value.grad = gradient

    def copy_to(self, tensor: Any, *, trainable: bool) -> Parameter:
        """Return a new parameter with equal attribute and name, and the values and layout of ``tensor``."""
        moved = Parameter(self.shape, tensor.layout, self.initialiser, tensor.dtype, self.attribute)
        moved.name, moved.key, moved.tensor, moved.trainable = self.name, self.key, tensor, trainable
        return moved

    @property
    def value(self) -> Any:
        """Tensor of the values; in a world without data, only its shape."""
        tensor, world = super().value, current_world()
        return tensor if world.has_data or not tensor.world.has_data else shape_only(tensor, world)

    trainable = property(
        lambda self: self.tensor.requires_grad, lambda self, value: setattr(self.tensor, "requires_grad", bool(value)),
        doc="True if it collects a gradient; the opposite of ``stop_gradient``.",
    )  # fmt: skip
    stop_gradient = property(lambda self: not self.trainable, lambda self, value: setattr(self, "trainable", not value))  # fmt: skip
    optimize_attr = property(
        lambda self: {"learning_rate": self.attribute.learning_rate},
        doc="Factor of the learning rate, in a dict.",
    )
    regularizer = property(
        lambda self: self.attribute.regularizer, doc="Regularizer of the parameter, or None."
    )
    persistable = property(lambda self: True, doc="True: it outlives a run.")

    def set_value(self, value: Any) -> None:
        """Set the values of an array or tensor, in the parameter's element type and layout.

        The gradient stays. All ranks must call it with equal arrays, which is not checked.

        Args:
            value: numbers, an array, or a tensor, which is gathered.

        Raises:
            InputError: If the values have another shape.
            UsageTypeError: If they are no numbers.
        """
        array = np.asarray(to_host(value))
        refuse({
            f"values of parameter {self.name} must have its shape {self.shape}, got {array.shape}": array.shape != self.shape
        })  # fmt: skip
        self.assign(Tensor.from_global(array.astype(self.dtype), self.layout, current_world()))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or self.__dict__.get("tensor") is None:
            raise AttributeError(f"a parameter has no attribute {name!r}")
        return getattr(self.value, name)

    def __repr__(self) -> str:
        if self.tensor is not None and self.value.world.has_data:
            return f"Parameter containing:\n{self.value!r}"
        return f"Parameter {self.name} : shape{self.shape}.dtype({self.dtype}).trainable({self.trainable})"


add_tensor_operators(Parameter, "value")


def layer_names(kind: str, name: str | None) -> tuple[str, str]:
    """Return the prefix of a layer's parameter names, and the text on which their first values depend.

    Both are the given name. Without a name, the text has the kind and its number of layers since the seed was set.
    """
    return (name, name) if name else (static.scope().unique(kind), f"{kind}_{static.next_number(kind)}")


def create(
    shape: tuple[int, ...], layout: Layout | None, attribute: Any, default: Initialiser, names: tuple[str, str], suffix: str,
    *, keep: bool = False, dtype: Any = None, zeros: int | None = None,
) -> Parameter:  # fmt: skip
    """Create a parameter from its attribute, or return the existing one of that name.

    * Dynamic mode: each call creates a new parameter.
    * Static mode, or no mode set: if the attribute has the name of an existing parameter, this one is returned.
      Otherwise a new one is created, and added to the default main program and the default startup program.

    A new parameter already has its first values, which depend on the seed and the name.

    Args:
        shape: global shape.
        layout: its layout; None replicates it on every rank.
        attribute: a ``ParamAttr``, an initializer, an array, a name, or None for the default.
        default: first values without an initializer.
        names: names of the layer; see :func:`layer_names`.
        suffix: ``"w"`` or ``"b"``.
        keep: True if the default main program keeps the parameter alive; in static mode it always does.
        dtype: element type; an array of first values has its own type, and None is float32.
        zeros: row whose first values are zeros, or None.

    Raises:
        InputError: If the parameter with this name has another shape, or first values do not fit.
    """
    attr, scope = _as_attribute(attribute), static.scope()
    initialiser, kind = _read_first_values(attr.initializer, shape, default)
    existing: Parameter | None = (
        None if static.in_dynamic_mode() else scope.parameters_by_name.get(attr.name or "")
    )
    if existing is not None:
        refuse({
            f"parameter {attr.name} has shape {list(existing.shape)}, but is used with shape {list(shape)}; give one of them another "
            "ParamAttr(name=...)": existing.shape != tuple(shape)
        })  # fmt: skip
        static.default_main_program().add_parameter(existing, keep)
        return existing
    initialiser = with_zero_row(initialiser, zeros)
    layout = layout or Layout.replicated(Mesh((current_world().size,), ("rank",)), len(shape))
    parameter = Parameter(shape, layout, initialiser, kind or dtype or np.float32, attr)
    parameter.name = attr.name or scope.unique(f"{names[0]}.{suffix}")
    parameter.key = attr.name or f"{names[1]}.{suffix}"
    parameter.materialise(current_world(), parameter.first_seed)
    if not static.in_dynamic_mode():
        scope.parameters_by_name[parameter.name] = parameter
        for program in (static.default_main_program(), static.default_startup_program()):
            program.add_parameter(parameter, keep or static.in_static_mode())
    return parameter


def create_parameter(
    shape: Any, dtype: Any = "float32", name: str | None = None, attr: Any = None, is_bias: bool = False,
    default_initializer: Any = None,
) -> Parameter:  # fmt: skip
    """Create a parameter that is replicated on every rank.

    Args:
        shape: global shape.
        dtype: element type.
        name: name for an attribute without one.
        attr: attribute; see `create`.
        is_bias: True for first values of zero and a name that ends in ``b``; False for uniform ones and ``w``.
        default_initializer: first values if the attribute has none.
    """
    sizes = tuple(int(size) for size in shape)
    default, _ = _read_first_values(default_initializer, sizes, nn.zeros if is_bias else nn.Uniform())
    names, suffix = layer_names("create_parameter", None), "b" if is_bias else "w"
    return create(sizes, None, _as_attribute(attr, name), default, names, suffix, dtype=np.dtype(dtype))
