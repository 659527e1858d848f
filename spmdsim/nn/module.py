"""Modules and parameters: declared without memory, filled shard by shard when a world is known."""

from __future__ import annotations

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
from spmdsim.errors import UsageTypeError, WorldError
from spmdsim.layout.element_type import has_gradient, number_type
from spmdsim.pictured import Pictured
from spmdsim.worlds.convert_operands import Described
from spmdsim.worlds.current import is_played
from spmdsim.worlds.current import world as current
from spmdsim.worlds.trace.recorder import programs, unseen
from spmdsim.wrong_calls import explained

P = ParamSpec("P")
R = TypeVar("R", covariant=True)

if TYPE_CHECKING:
    from spmdsim.worlds.base import World

__all__ = ["Module", "ModuleList", "Normal", "Parameter", "Sequential", "Uniform", "ones", "zeros"]


class HasForward(Protocol[P, R]):
    """What has a ``forward`` with these parameters and this result: a call takes and gives the same."""

    @property
    def forward(self) -> Callable[P, R]:
        """Compute."""


#: Gives the block of a parameter at an index, from its shape, dtype and seed.
Initialiser = Callable[[Index, tuple[int, ...], np.dtype, int], np.ndarray]


def zeros(index: Index, shape: tuple[int, ...], dtype: np.dtype, seed: int) -> np.ndarray:
    """All zero.

    Args:
        index: which block of the parameter, one slice with both ends per dim.
        shape: that of the whole parameter, which does not matter here, as its seed does not.
        dtype: element type.
        seed: the parameter's.

    >>> zeros((slice(0, 2),), (4,), np.dtype("float32"), 0)
    array([0., 0.], dtype=float32)
    """
    return np.zeros([p.stop - p.start for p in index], dtype)


def ones(index: Index, shape: tuple[int, ...], dtype: np.dtype, seed: int) -> np.ndarray:
    """All one.

    Args:
        index: as of :func:`zeros`, like all others.
        shape: the whole parameter's.
        dtype: element type.
        seed: the parameter's.

    >>> ones((slice(0, 2),), (4,), np.dtype("float32"), 0)
    array([1., 1.], dtype=float32)
    """
    return np.ones([p.stop - p.start for p in index], dtype)


class Values:
    """Those of an array that every rank has: ranks compare what it is when they fill their pieces.

    >>> Values(np.arange(4.0))((slice(1, 3),), (4,), np.dtype("float64"), 0)
    array([1., 2.])
    """

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __call__(self, index: Index, shape: tuple[int, ...], dtype: np.dtype, seed: int) -> np.ndarray:
        """The block at an index."""
        return self.array[index].astype(dtype, copy=False)

    def __str__(self) -> str:
        checksum = zlib.crc32(np.ascontiguousarray(self.array).tobytes())
        return f"an array with checksum {checksum:08x}"


def _fan_in(shape: tuple[int, ...]) -> int:
    """Return the number of rows of a parameter, at least 1; 1 for a parameter of shape ()."""
    return max(1, shape[0]) if shape else 1


@dataclass(frozen=True)
class Normal(Pictured):
    """Normal numbers; with ``std=None`` of variance one over the number of rows (fan-in), 1 for shape ().

    >>> Normal(0.02).std
    0.02
    """

    std: float | None = None

    def __call__(self, index: Index, shape: tuple[int, ...], dtype: np.dtype, seed: int) -> np.ndarray:
        """The block at an index."""
        block = normal_block(index, shape, dtype, seed)
        block *= dtype.type(_fan_in(shape) ** -0.5 if self.std is None else self.std)
        return block


@dataclass(frozen=True)
class Uniform(Pictured):
    """Numbers uniform in ``[-bound, bound)``; with ``bound=None`` one over the root of the fan-in.

    >>> Uniform(0.5).bound
    0.5
    """

    bound: float | None = None

    def __call__(self, index: Index, shape: tuple[int, ...], dtype: np.dtype, seed: int) -> np.ndarray:
        """The block at an index."""
        bound = _fan_in(shape) ** -0.5 if self.bound is None else self.bound
        return np.asarray((uniform_block(index, shape, dtype, seed) * 2 - 1) * bound, dtype)


@explained
class Parameter(Pictured):
    """A trainable tensor that takes no memory until a world is known.

    Its values are keyed by the seed, its name and the global element index: the same model on any number of
    ranks and in any layout has bit-identical global parameters, without communication.

    Attributes:
        name: its path in the model, given by :meth:`Module.materialise`.
        key: what stands for the name where values are keyed, for models that are named in another way.

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
        self.dtype = number_type(dtype, "a parameter has")
        self.initialiser: Initialiser = initialiser or Normal()
        self.name = self.key = ""
        self.tensor = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.shape}, {self.layout}, {self.dtype})"

    @property
    def tensor(self) -> Tensor | None:
        """The tensor, once materialised."""
        coming = self._coming
        if coming is not None:
            self._coming = None
            with unseen(programs):  # it belongs to what was done before
                self.assign(coming())
        tensor: Tensor | None = self.__dict__.get("tensor")
        return tensor

    @tensor.setter
    def tensor(self, tensor: Tensor | None) -> None:
        self.__dict__["tensor"], self._coming = tensor, None
        if tensor is not None and self._gradient_layout is not None:
            tensor.gradient_layout = self._gradient_layout(self)

    def keep_gradient(self, layout: Callable[[Parameter], Layout]) -> None:
        """Have gradients brought straight into this layout, where an optimiser's state is, not into the dual one."""
        layout(self).check_shape(self.shape)
        self._gradient_layout = layout
        self.tensor = self.tensor

    @property
    def value(self) -> Tensor:
        """The tensor; a WorldError if the model was not given a world yet."""
        tensor = self.tensor
        if tensor is None:
            raise WorldError(f"parameter {self.name or self.shape} has no values yet; call materialise()")
        if programs:
            programs[-1].read(self)
        return tensor

    def as_operand(self, like: Tensor) -> Tensor:
        """What an operator sees when it is given the parameter itself."""
        return self.value

    @property
    def grad(self) -> Tensor | None:
        """Its gradient after ``backward()``; where an optimiser splits its state further, split like that."""
        return self.value.grad

    def materialise(self, world: World | None = None, seed: int = 0) -> None:
        """Fill this rank's shard, in :func:`spmdsim.world` if no world is given."""
        key = (seed << 32) ^ zlib.crc32((self.key or self.name).encode())
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
        """Take new values, in the parameter's layout; no gradient is kept."""
        fresh = tensor.detach()
        if fresh.layout is not self.layout:
            fresh = fresh.to(self.layout)
        tracked = has_gradient(fresh.dtype)
        self.tensor = Tensor(fresh.world, fresh.meta, fresh.held, tracked, self.name, fresh.origin)
        if programs:
            programs[-1].assigned(self)

    def assign_later(self, coming: Callable[[], Tensor]) -> None:
        """Take new values when somebody asks for them: until then they may be under way."""
        self._coming = coming

    def forget_gradient(self) -> None:
        """Have no gradient; new values that are under way have none."""
        if self._coming is None and self.tensor is not None:
            self.value.grad = None


class TrainedTensor(Parameter):
    """A tensor of the program that wants a gradient, as a parameter: the tensor itself gets the new values."""

    def __init__(self, tensor: Tensor) -> None:
        super().__init__(tensor.shape, tensor.layout, dtype=tensor.dtype)
        self.name, self.tensor = tensor.name, tensor

    def assign(self, tensor: Tensor) -> None:
        """Let the tensor have new values, in its own layout; no gradient is kept."""
        become(self.value, tensor.detach(), "an update")
        self.value.grad = None

    def assign_later(self, coming: Callable[[], Tensor]) -> None:
        """Take new values at once: nobody says so before the tensor is looked at."""
        self.assign(coming())


def parameters_of(trained: Module | Iterable[Parameter | Tensor]) -> list[Parameter]:
    """The parameters of a module, or those given; tensors that want a gradient among them."""
    if isinstance(trained, Module):
        return trained.parameters()
    if not isinstance(trained, Iterable) or isinstance(trained, (Tensor, str)):
        raise UsageTypeError(f"what is trained is a module or a list of parameters, but got {trained!r}")
    return [_parameter(item) for item in trained]


def _parameter(item: Any) -> Parameter:
    if isinstance(item, Parameter):
        return item
    if not isinstance(item, Tensor):
        raise UsageTypeError(f"what is trained is a parameter or a tensor, but got {type(item).__name__}")
    if not item.requires_grad or item.node is not None:
        state = "was computed from others" if item.requires_grad else "wants none"
        raise UsageTypeError(
            f"what is trained has a gradient of its own, but the tensor {item.name or item.shape} {state}; make it "
            "with requires_grad=True"
        )
    return TrainedTensor(item)


class Module(Pictured):
    """Something with parameters and a ``forward``. Attributes that are parameters or modules are found.

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
            """Compute; defined by each module: this one raises a UsageTypeError."""
            raise UsageTypeError(f"{type(self).__name__} defines no forward()")

    def __call__(self: HasForward[P, R], *inputs: P.args, **options: P.kwargs) -> R:
        """Run :meth:`forward`."""
        return self.forward(*inputs, **options)

    def __repr__(self) -> str:
        """Its parameters and modules, one a line: where each lives, and how they are nested."""
        texts = (
            (name, Meta.of(part.layout, part.shape, part.dtype) if isinstance(part, Parameter) else part)
            for name, part in self._parts()
        )
        lines = "\n".join(f"{name}: {text!r}" for name, text in texts).splitlines()
        inside = "".join(f"  {line}\n" for line in lines)
        return f"{type(self).__name__}(\n{inside})" if lines else f"{type(self).__name__}()"

    def named_parameters(self, prefix: str = "") -> Iterator[tuple[str, Parameter]]:
        """All parameters with their path; one that is used in several places is listed once."""
        seen: set[int] = set()
        for path, parameter in self._walk(prefix):
            if id(parameter) not in seen:
                seen.add(id(parameter))
                yield path, parameter

    def _walk(self, prefix: str) -> Iterator[tuple[str, Parameter]]:
        for name, part in self._parts():
            if isinstance(part, Parameter):
                yield f"{prefix}{name}", part
            else:
                yield from part._walk(f"{prefix}{name}.")

    def _parts(self) -> Iterator[tuple[str, Parameter | Module]]:
        """Parameters and modules among the attributes, and in lists of them."""
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
        """All parameters."""
        return [parameter for _, parameter in self.named_parameters()]

    def materialise(self, world: World | None = None, seed: int = 0) -> Module:
        """Fill the shards of all parameters that this process owns; return the module.

        Args:
            world: where the parameters live; :func:`spmdsim.world`, with enough ranks for all of their meshes, if left out.
            seed: of the random numbers.
        """
        if world is None or is_played(world):
            for parameter in self.parameters():
                world = current(mesh=parameter.layout.mesh)  # the last one has the ranks of all of them
        for path, parameter in self.named_parameters():
            parameter.name = path
            parameter.materialise(world, seed)
        return self

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for parameter in self.parameters():
            parameter.forget_gradient()


class ModuleList(Module):
    """A list of modules (or functions of a tensor) whose parameters are found.

    >>> from spmdsim import Mesh, nn
    >>> layers = nn.ModuleList([nn.Linear(6, 4, Mesh((2,), ("tp",))("tp", None))])
    >>> [name for name, _ in layers.named_parameters()]
    ['steps.0.weight', 'steps.0.bias']
    """

    #: The attribute that holds them, with which their parameters' paths begin.
    attribute = "steps"

    def __init__(self, modules: Iterable[Callable[..., Tensor]] = ()) -> None:
        setattr(self, self.attribute, list(modules))

    def _modules(self) -> list[Callable[..., Tensor]]:
        return cast("list[Callable[..., Tensor]]", getattr(self, self.attribute))

    def append(self, module: Callable[..., Tensor]) -> ModuleList:
        """One more at the end."""
        self._modules().append(module)
        return self

    def extend(self, modules: Iterable[Callable[..., Tensor]]) -> ModuleList:
        """Several more at the end."""
        self._modules().extend(modules)
        return self

    def __iter__(self) -> Iterator[Callable[..., Tensor]]:
        return iter(self._modules())

    def __getitem__(self, index: int) -> Callable[..., Tensor]:
        return self._modules()[index]

    def __len__(self) -> int:
        return len(self._modules())


class Sequential(ModuleList):
    """Modules (or functions of a tensor) one after the other.

    >>> from spmdsim import Mesh, nn
    >>> mesh = Mesh((2,), ("tp",))
    >>> net = nn.Sequential(nn.Linear(6, 4, mesh("tp", None)), nn.Linear(4, 2, mesh(None, "tp")))
    >>> [name for name, _ in net.named_parameters()]
    ['steps.0.weight', 'steps.0.bias', 'steps.1.weight', 'steps.1.bias']
    """

    def __init__(self, *modules: Callable[..., Tensor]) -> None:
        super().__init__(modules)

    def forward(self, x: Tensor) -> Tensor:
        """The last one's result."""
        for module in self:
            x = module(x)
        return x
