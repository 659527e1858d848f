"""Modules and parameters. A declaration takes no memory; `materialise` creates the shards in a world."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar, cast

import numpy as np
from numpy.typing import DTypeLike

from spmdsim.arrays import Tensor
from spmdsim.arrays.in_place import become
from spmdsim.arrays.random import Index, normal_block, uniform_block
from spmdsim.arrays.sources import check_layout
from spmdsim.core import Layout
from spmdsim.core.notation.layouts import as_integers
from spmdsim.core.tensor import Meta
from spmdsim.errors import InputError, UsageTypeError, WorldError
from spmdsim.layout.element_type import has_gradient, number_type
from spmdsim.pictured import Pictured
from spmdsim.reading import one_line
from spmdsim.worlds.convert_operands import Described
from spmdsim.worlds.current import world as current
from spmdsim.worlds.several_worlds import is_played
from spmdsim.worlds.trace.recorder import programs, unseen
from spmdsim.wrong_calls import explained

P = ParamSpec("P")
R = TypeVar("R", covariant=True)

if TYPE_CHECKING:
    from spmdsim.worlds.base import World

__all__ = ["Module", "ModuleList", "Normal", "Parameter", "Sequential", "Uniform", "ones", "zeros"]


class HasForward(Protocol[P, R]):
    """An object with a ``forward`` method; a type checker gives its call the signature of that method."""

    @property
    def forward(self) -> Callable[P, R]:
        """The method that computes the result."""


#: Returns the block of a parameter at an index, from its shape, dtype and seed.
Initialiser = Callable[[Index, tuple[int, ...], np.dtype, int], np.ndarray]


def zeros(index: Index, shape: tuple[int, ...], dtype: np.dtype, seed: int) -> np.ndarray:
    """Return a block of a parameter that is 0 everywhere.

    Args:
        index: position of the block in the parameter, one slice with start and stop per dimension.
        shape: shape of the parameter; not used here.
        dtype: element type.
        seed: seed of the parameter; not used here.

    >>> zeros((slice(0, 2),), (4,), np.dtype("float32"), 0)
    array([0., 0.], dtype=float32)
    """
    return np.zeros([p.stop - p.start for p in index], dtype)


def ones(index: Index, shape: tuple[int, ...], dtype: np.dtype, seed: int) -> np.ndarray:
    """Return a block of a parameter that is 1 everywhere.

    Args:
        index: position of the block in the parameter, one slice with start and stop per dimension.
        shape: shape of the parameter; not used here.
        dtype: element type.
        seed: seed of the parameter; not used here.

    >>> ones((slice(0, 2),), (4,), np.dtype("float32"), 0)
    array([1., 1.], dtype=float32)
    """
    return np.ones([p.stop - p.start for p in index], dtype)


class Values:
    """Initialiser with the values of an array, which must be equal on all ranks.

    Ranks compare its checksum (``str``) when they create their shards.

    >>> Values(np.arange(4.0))((slice(1, 3),), (4,), np.dtype("float64"), 0)
    array([1., 2.])
    """

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __call__(self, index: Index, shape: tuple[int, ...], dtype: np.dtype, seed: int) -> np.ndarray:
        """Return the block at an index."""
        return self.array[index].astype(dtype, copy=False)

    def __str__(self) -> str:
        checksum = zlib.crc32(np.ascontiguousarray(self.array).tobytes())
        return f"an array with checksum {checksum:08x}"


def _fan_in(shape: tuple[int, ...]) -> int:
    """Return the number of rows of a parameter, at least 1; 1 for a parameter of shape ()."""
    return max(1, shape[0]) if shape else 1


def _require_scale(argument: str, scale: object) -> None:
    """Raise InputError unless the scale of an initialiser is None or a finite number of 0 or more.

    ``argument`` names the initialiser and its argument in the message.
    """
    if scale is None or (isinstance(scale, (int, float, np.number)) and 0 <= scale < math.inf):
        return
    raise InputError(
        f"{argument} must be a number of 0 or more, got {scale!r}; pass, for example, 0.02, or None"
    )


@explained
@dataclass(frozen=True)
class Normal(Pictured):
    """Initialiser with normal random numbers of mean 0.

    Attributes:
        std: standard deviation; None: the root of 1 / fan-in. The fan-in is the number of rows, 1 for shape ().

    >>> Normal(0.02).std
    0.02
    """

    std: float | None = None

    def __post_init__(self) -> None:
        _require_scale("Normal: std", self.std)

    def __call__(self, index: Index, shape: tuple[int, ...], dtype: np.dtype, seed: int) -> np.ndarray:
        """Return the block at an index."""
        block = normal_block(index, shape, dtype, seed)
        block *= dtype.type(_fan_in(shape) ** -0.5 if self.std is None else self.std)
        return block


@explained
@dataclass(frozen=True)
class Uniform(Pictured):
    """Initialiser with random numbers that are uniform in ``[-bound, bound)``.

    Attributes:
        bound: the largest absolute value; None: the root of 1 / fan-in. The fan-in is the number of rows, 1 for
            shape ().

    >>> Uniform(0.5).bound
    0.5
    """

    bound: float | None = None

    def __post_init__(self) -> None:
        _require_scale("Uniform: bound", self.bound)

    def __call__(self, index: Index, shape: tuple[int, ...], dtype: np.dtype, seed: int) -> np.ndarray:
        """Return the block at an index."""
        bound = _fan_in(shape) ** -0.5 if self.bound is None else self.bound
        return np.asarray((uniform_block(index, shape, dtype, seed) * 2 - 1) * bound, dtype)


@explained
class Parameter(Pictured):
    """Trainable tensor that takes no memory before `materialise`.

    Its values depend only on the seed, its name and the global element index. So a model has bit-identical global
    parameters on any number of ranks and in any layout, without communication.

    Args:
        shape: global shape.
        layout: layout of the tensor.
        initialiser: returns the initial values block by block; default :class:`Normal`.
        dtype: element type.

    Raises:
        InputError: If a size is negative.
        UsageTypeError: If a size is not an integer, or the initialiser is not a function.

    Attributes:
        name: its path in the model, set by :meth:`Module.materialise`.
        key: replaces the name in the seed of the values, if it is not empty.

    >>> from spmdsim import Mesh, nn
    >>> nn.Parameter((4, 2), Mesh((2,), ("tp",))("tp", None))
    Parameter((4, 2), [tp, -] over tp=2, float32)
    """

    _gradient_layout: Callable[[Parameter], Layout] | None = None
    _coming: Callable[[], Tensor] | None = None

    def __init__(
        self,
        shape: tuple[int, ...],
        layout: Layout,
        initialiser: Initialiser | None = None,
        dtype: DTypeLike = np.float32,
    ) -> None:
        check_layout(layout)
        self.shape, self.layout = as_integers(shape, "the sizes of a parameter"), layout
        layout.check_shape(self.shape)
        if min(self.shape, default=0) < 0:
            raise InputError(
                f"Parameter: shape must have sizes of 0 or more, got {self.shape}; pass, for example, (4, 2)"
            )
        self.dtype = number_type(dtype, "a parameter has")
        if initialiser is not None and not callable(initialiser):
            raise UsageTypeError(
                f"Parameter: initialiser must be a function of (index, shape, dtype, seed), got "
                f"{one_line(repr(initialiser))}; pass, for example, nn.zeros or nn.Normal(0.02)"
            )
        self.initialiser: Initialiser = Normal() if initialiser is None else initialiser
        self.name = self.key = ""
        self.tensor = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.shape}, {self.layout}, {self.dtype})"

    @property
    def tensor(self) -> Tensor | None:
        """The tensor; None before `materialise`.

        If `assign_later` was called, reading the property waits for the new values and assigns them. A compiled
        function that is recorded does not record this assignment.
        """
        coming = self._coming
        if coming is not None:
            self._coming = None
            # The value belongs to an earlier step, so a recording must not contain it.
            with unseen(programs):
                self.assign(coming())
        tensor: Tensor | None = self.__dict__.get("tensor")
        return tensor

    @tensor.setter
    def tensor(self, tensor: Tensor | None) -> None:
        """Replace the tensor; drop a value that is still being communicated."""
        self.__dict__["tensor"], self._coming = tensor, None
        if tensor is not None and self._gradient_layout is not None:
            tensor.gradient_layout = self._gradient_layout(self)

    def keep_gradient(self, layout: Callable[[Parameter], Layout]) -> None:
        """Let `backward` move gradients to another layout than the dual one, that of an optimiser's state.

        Args:
            layout: returns the gradient's layout of a parameter.
        """
        layout(self).check_shape(self.shape)
        self._gradient_layout = layout
        self.tensor = self.tensor

    @property
    def value(self) -> Tensor:
        """The tensor, as in `tensor`; it may wait for communication there.

        While a compiled function is recorded, reading the property makes the parameter one of the recording's inputs.

        Raises:
            WorldError: If the parameter has no values yet (before `materialise`).
        """
        tensor = self.tensor
        if tensor is None:
            raise WorldError(f"parameter {self.name or self.shape} has no values yet; call materialise()")
        if programs:
            programs[-1].record_parameter(self)
        return tensor

    def as_operand(self, like: Tensor) -> Tensor:
        """Return the tensor that an operator computes with if the parameter is its operand."""
        return self.value

    @property
    def grad(self) -> Tensor | None:
        """The gradient after ``backward()``; None without one.

        It has the layout that `keep_gradient` set, or the dual layout of the parameter.
        """
        return self.value.grad

    @explained
    def materialise(self, world: World | None = None, seed: int = 0) -> None:
        """Create the tensor with its initial values, or replace existing values.

        All ranks must call it; each process fills only the shards of its own ranks. The values depend on the seed and
        the parameter, but not on the layout or the number of ranks. Afterwards the tensor requires a gradient, unless
        its dtype cannot have one, as integers.

        Args:
            world: where the tensor lives; None: :func:`spmdsim.world`.
            seed: seed for all parameters of a model. It is combined with the parameter's name (with its key, if it has
                one), so that each parameter gets other values.

        Raises:
            UsageTypeError: If ``seed`` is not an integer.
        """
        if not isinstance(seed, (int, np.integer)):
            raise UsageTypeError(f"materialise: seed must be an integer, got {seed!r}; pass, for example, 0")
        key = (int(seed) << 32) ^ zlib.crc32((self.key or self.name).encode())
        words = str(self.initialiser) if isinstance(self.initialiser, Values) else f"seed {seed}"
        self.tensor = Tensor.from_global(
            Described(lambda index: self.initialiser(index, self.shape, self.dtype, key), words),
            self.layout,
            world,
            shape=self.shape,
            dtype=self.dtype,
            requires_grad=has_gradient(self.dtype),
            name=self.name,
        )

    def assign(self, tensor: Tensor) -> None:
        """Replace the values by those of ``tensor`` and remove the gradient.

        The tensor is detached and redistributed to the parameter's layout; all ranks must call it. The parameter gets
        a new tensor object, which keeps the name and requires a gradient if the dtype has one. Shape and dtype are not
        checked. A compiled function that is recorded records the assignment.
        """
        fresh = tensor.detach()
        if fresh.layout is not self.layout:
            fresh = fresh.to(self.layout)
        tracked = has_gradient(fresh.dtype)
        self.tensor = Tensor.from_tensor(fresh, tracked, self.name)
        if programs:
            programs[-1].record_assignment(self)

    def assign_later(self, coming: Callable[[], Tensor]) -> None:
        """Replace the tensor when it is read next.

        Args:
            coming: waits for the new values and returns them.
        """
        self._coming = coming

    def forget_gradient(self) -> None:
        """Remove the gradient. Values that are still being communicated have none, so this does not wait."""
        if self._coming is None and self.tensor is not None:
            self.value.grad = None


class TrainedTensor(Parameter):
    """Parameter made of a tensor of the program that requires a gradient.

    Updates change the tensor itself.
    """

    def __init__(self, tensor: Tensor) -> None:
        super().__init__(tensor.shape, tensor.layout, dtype=tensor.dtype)
        self.name, self.tensor = tensor.name, tensor

    def assign(self, tensor: Tensor) -> None:
        """Replace the values of the program's tensor, in its own layout, and remove its gradient."""
        become(self.value, tensor.detach(), "an update")
        self.value.grad = None

    def assign_later(self, coming: Callable[[], Tensor]) -> None:
        """Wait for the new values at once, because reading a plain tensor cannot wait for them."""
        self.assign(coming())


def parameters_of(trained: Module | Iterable[Parameter | Tensor]) -> list[Parameter]:
    """Return the parameters of a module, or of an iterable of parameters and tensors, as a list.

    Args:
        trained: a module, whose parameters come in the order of `named_parameters`, shared ones once; or an iterable,
            of which each item gives one parameter, repeated ones too. A tensor becomes a `TrainedTensor`: a parameter
            that updates this tensor in place.

    Raises:
        UsageTypeError: If ``trained`` is neither, or an item is neither a parameter nor a tensor that requires a
            gradient of its own (a leaf). A single tensor is refused, too; put it into a list.
    """
    if isinstance(trained, Module):
        return trained.parameters()
    if not isinstance(trained, Iterable) or isinstance(trained, (Tensor, str)):
        raise UsageTypeError(
            f"parameters must be a module or a list of parameters and tensors, got {one_line(repr(trained))}; pass a "
            "list, such as model.parameters()"
        )
    return [_convert_to_parameter(item) for item in trained]


def _convert_to_parameter(item: Any) -> Parameter:
    """Return a parameter unchanged, and a leaf tensor as a `TrainedTensor`.

    Args:
        item: a parameter, or a leaf: a tensor that requires a gradient and was not computed from others.

    Raises:
        UsageTypeError: If the item is anything else.
    """
    if isinstance(item, Parameter):
        return item
    if not isinstance(item, Tensor):
        raise UsageTypeError(
            f"parameters must have parameters and tensors only, got a {type(item).__name__}; pass a list, such as "
            "model.parameters()"
        )
    if not item.requires_grad or item.node is not None:
        state = "was computed from others" if item.requires_grad else "wants none"
        raise UsageTypeError(
            "tensors in parameters must require a gradient and must not be computed from others, but the tensor "
            f"{item.name or item.shape} {state}; make it with requires_grad=True"
        )
    return TrainedTensor(item)


class Module(Pictured):
    """Base of all modules: parameters and a ``forward`` method.

    Attributes that are parameters or modules, or lists or tuples of them, belong to the module.

    >>> from spmdsim import Mesh, nn
    >>> class Scaled(nn.Module):
    ...     def __init__(self, layout):
    ...         self.scale = nn.Parameter((4,), layout)
    ...     def forward(self, x):
    ...         return x * self.scale.tensor
    >>> [name for name, _ in Scaled(Mesh((2,), ("tp",))("tp")).named_parameters()]
    ['scale']
    """

    if TYPE_CHECKING:
        forward: Callable[..., object]
    else:

        def forward(self, *inputs: object, **options: object) -> object:
            """Compute the result. Subclasses define it; here it raises UsageTypeError."""
            raise UsageTypeError(
                f"{type(self).__name__} must define forward(); it has no forward() of its own, so it cannot be called"
            )

    def __call__(self: HasForward[P, R], *inputs: P.args, **options: P.kwargs) -> R:
        """Run :meth:`forward`."""
        return self.forward(*inputs, **options)

    def __repr__(self) -> str:
        """Return a text with one line per parameter or module: its name, shape and layout; indented if nested."""
        texts = (
            (name, Meta.of(child.layout, child.shape, child.dtype) if isinstance(child, Parameter) else child)
            for name, child in self._list_children()
        )
        lines = "\n".join(f"{name}: {text!r}" for name, text in texts).splitlines()
        inside = "".join(f"  {line}\n" for line in lines)
        return f"{type(self).__name__}(\n{inside})" if lines else f"{type(self).__name__}()"

    def named_parameters(self, prefix: str = "") -> Iterator[tuple[str, Parameter]]:
        """Yield ``(path, parameter)`` of all parameters, shared ones only with the first path.

        A path joins names of attributes and positions in lists by dots, such as ``blocks.0.norm.scale``. The order is
        that in which attributes were set; modules inside are searched in depth.

        Args:
            prefix: text in front of all paths.
        """
        identities: set[int] = set()
        for path, parameter in self._walk_parameters(prefix):
            if id(parameter) not in identities:
                identities.add(id(parameter))
                yield path, parameter

    def _walk_parameters(self, prefix: str) -> Iterator[tuple[str, Parameter]]:
        """Yield ``(path, parameter)`` of all parameters, a shared one with each of its paths.

        Attributes are visited in the order in which they were set; modules inside are searched in depth.
        """
        for name, child in self._list_children():
            if isinstance(child, Parameter):
                yield f"{prefix}{name}", child
            else:
                yield from child._walk_parameters(f"{prefix}{name}.")

    def _list_children(self) -> Iterator[tuple[str, Parameter | Module]]:
        """Yield ``(name, child)`` of each parameter and module directly inside this module.

        A child is the value of an attribute, or an item of a list or tuple in an attribute. Items are named
        ``attribute.position``. Deeper lists, and dicts, are not searched. The order is that in which attributes were
        set.
        """
        for name, value in vars(self).items():
            if isinstance(value, (list, tuple)):
                for number, item in enumerate(value):
                    if isinstance(item, (Parameter, Module)):
                        yield f"{name}.{number}", item
            elif isinstance(value, (Parameter, Module)):
                yield name, value

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        if cls.__module__.startswith("spmdsim.nn.") and "__init__" in vars(cls):
            explained(cls)

    def parameters(self) -> list[Parameter]:
        """Return all parameters, shared ones once."""
        return [parameter for _, parameter in self.named_parameters()]

    @explained
    def materialise(self, world: World | None = None, seed: int = 0) -> Module:
        """Name all parameters by their paths and create their initial values; return the module.

        All ranks must call it. The process fills only the shards of its own ranks. A shared parameter is named by its
        first path. Existing values are replaced.

        Args:
            world: where the parameters live. None: the current world, see :func:`spmdsim.world`; in a process without a
                launcher it is replaced by a larger one if it lacks ranks of a parameter's mesh. A world that
                :func:`spmdsim.world` made in such a process counts as None.
            seed: seed of the random numbers; each parameter's numbers also depend on its name or key.
        """
        if world is None or is_played(world):
            for parameter in self.parameters():
                world = current(mesh=parameter.layout.mesh)  # The last result has the ranks of all meshes.
        for path, parameter in self.named_parameters():
            parameter.name = path
            parameter.materialise(world, seed)
        return self

    def zero_grad(self) -> None:
        """Remove all gradients."""
        for parameter in self.parameters():
            parameter.forget_gradient()


class ModuleList(Module):
    """List of modules (or functions of a tensor) whose parameters belong to the list.

    >>> from spmdsim import Mesh, nn
    >>> layers = nn.ModuleList([nn.Linear(6, 4, Mesh((2,), ("tp",))("tp", None))])
    >>> [name for name, _ in layers.named_parameters()]
    ['steps.0.weight', 'steps.0.bias']
    """

    #: The attribute that has the list; paths of parameters begin with its name.
    attribute = "steps"

    def __init__(self, modules: Iterable[Callable[..., Tensor]] = ()) -> None:
        setattr(self, self.attribute, [])
        self.extend(modules)

    def _modules(self) -> list[Callable[..., Tensor]]:
        return cast("list[Callable[..., Tensor]]", getattr(self, self.attribute))

    def append(self, module: Callable[..., Tensor]) -> ModuleList:
        """Append a module; return the list. Raises UsageTypeError if it cannot be called."""
        if not callable(module):
            raise UsageTypeError(
                f"{type(self).__name__}: modules must be modules or functions of a tensor, got {one_line(repr(module))}; "
                "pass, for example, spmdsim.relu"
            )
        self._modules().append(module)
        return self

    def extend(self, modules: Iterable[Callable[..., Tensor]]) -> ModuleList:
        """Append several modules; return the list. Raises UsageTypeError if one cannot be called."""
        if not isinstance(modules, Iterable):
            raise UsageTypeError(
                f"{type(self).__name__}: modules must be a list of modules, got {one_line(repr(modules))}; pass [module]"
            )
        for module in modules:
            self.append(module)
        return self

    def __iter__(self) -> Iterator[Callable[..., Tensor]]:
        return iter(self._modules())

    def __getitem__(self, index: int) -> Callable[..., Tensor]:
        return self._modules()[index]

    def __len__(self) -> int:
        return len(self._modules())


class Sequential(ModuleList):
    """Module that calls modules (or functions of a tensor) one after the other.

    >>> from spmdsim import Mesh, nn
    >>> mesh = Mesh((2,), ("tp",))
    >>> net = nn.Sequential(nn.Linear(6, 4, mesh("tp", None)), nn.Linear(4, 2, mesh(None, "tp")))
    >>> [name for name, _ in net.named_parameters()]
    ['steps.0.weight', 'steps.0.bias', 'steps.1.weight', 'steps.1.bias']
    """

    def __init__(self, *modules: Callable[..., Tensor]) -> None:
        super().__init__(modules)

    def forward(self, x: Tensor) -> Tensor:
        """Call each module with the result of the module before it; return the last result."""
        for module in self:
            x = module(x)
        return x
