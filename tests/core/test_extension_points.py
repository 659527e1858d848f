"""Classes outside of core override the methods of core only at its extension points."""

from __future__ import annotations

import pkgutil
import sys
from collections.abc import Iterator
from importlib import import_module

import spmdsim

#: The extension points: the methods that other packages override, by class of core. The comments say for what.
EXTENSION_POINTS = {
    "Layout": {
        *("bounds", "reduced", "dual", "canonical"),
        *("check_shape", "largest_shape", "placement_text", "to_dict", "with_partial"),
    },  # windows of a dim; texts and dictionaries of layouts with windows
    "BoundRule": {
        *("infer", "refusals", "strategies", "input_layouts", "output_layouts", "gradient_layout", "steps"),
    },  # windows, steps in the middle, functions of a rank's arrays
    "Step": {"received_elements"},  # exchanges that core does not run
    "ShardedOp": {"substitute_op"},  # lookups of owned rows
    # MPI, shapes without data, fast paths of redistributions, numbers and arrays beside tensors
    "AbstractWorld": {"run", "empty", "has_data", "collectives", "move", "operands"},
    "Node": {"pull"},  # redistributions into other shapes
    "OpNode": {"gradients"},  # gradients that are operators themselves
    "Op": {
        *("bind", "functions", "result_dtype", "output_layouts", "duals", "prepared", "compute", "node"),
        *("communicates", "shows_parameters", "run_together", "user_functions"),
    },  # windows, steps in the middle, functions of a rank's arrays
}
CORE = "spmdsim.core."
#: Tensors of the imitated systems have the methods of these systems.
OTHERS = ("spmdsim.dialects.mindspore.tensors", "spmdsim.dialects.paddle.tensors")


def core_classes() -> Iterator[type]:
    for name, module in sorted(sys.modules.items()):
        if name.startswith(CORE):
            yield from (
                value
                for value in vars(module).values()
                if isinstance(value, type) and value.__module__ == name
            )


def is_outside(heir: type) -> bool:
    """Return True if the class is outside of core and belongs to no imitated system."""
    return heir.__module__.startswith("spmdsim.") and not heir.__module__.startswith((CORE, *OTHERS))


def list_subclasses(base: type) -> set[type]:
    """Return all subclasses of ``base``, of each depth."""
    return {heir for child in type.__subclasses__(base) for heir in (child, *list_subclasses(child))}


def test_core_is_overridden_only_at_its_extension_points():
    for module in pkgutil.walk_packages(spmdsim.__path__, "spmdsim."):
        if "mpi" not in module.name.split(".") and "__main__" not in module.name:
            import_module(module.name)
    overridden: dict[str, set[str]] = {}
    for subclass in {
        subclass for base in core_classes() for subclass in list_subclasses(base) if is_outside(subclass)
    }:
        for name in vars(subclass):
            defining_classes = [
                base for base in subclass.__mro__ if base.__module__.startswith(CORE) and name in vars(base)
            ]
            if defining_classes and not name.startswith(("__", "_abc")):
                overridden.setdefault(defining_classes[-1].__name__, set()).add(name)
    assert len(overridden) > 5
    assert len(EXTENSION_POINTS) <= 10
    unlisted = {name: names - EXTENSION_POINTS.get(name, set()) for name, names in overridden.items()}
    assert not {name: names for name, names in unlisted.items() if names}


def test_the_tensor_of_programs_adds_methods_and_overrides_none() -> None:
    mro = spmdsim.Tensor.__mro__
    core = [base for base in mro if base.__module__.startswith(CORE)]
    assert core and core[0].__name__ == "PlainTensor"
    inherited = {name for base in mro[mro.index(core[0]) : -1] for name in vars(base)}
    facts = {
        "__slots__",
        "__doc__",
        "__module__",
        "__annotations__",
        "__static_attributes__",
        "__firstlineno__",
    }
    for heir in mro[: mro.index(core[0])]:
        assert not inherited & {*vars(heir)} - facts, heir
