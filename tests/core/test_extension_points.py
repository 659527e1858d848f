"""Classes outside of core override core's methods at its extension points only."""

from __future__ import annotations

import pkgutil
import sys
from collections.abc import Iterator
from importlib import import_module

import spmdsim

#: The extension points: per class of core, the methods that other packages override, and why.
EXTENSION_POINTS = {
    "Layout": {"bounds", "reduced", "dual", "canonical"},  # windows of a dim
    "LayoutFacts": {
        "check_shape",
        "largest_shape",
        "placement_text",
        "to_dict",
        "with_partial",
    },  # the same, in words
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
#: Tensors of other systems' programs have these systems' methods.
OTHERS = ("spmdsim.dialects.mindspore.tensors", "spmdsim.dialects.paddle.tensors")


def core_classes() -> Iterator[type]:
    for name, module in sorted(sys.modules.items()):
        if name.startswith(CORE):
            yield from (
                one for one in vars(module).values() if isinstance(one, type) and one.__module__ == name
            )


def is_outside(heir: type) -> bool:
    """Return True for classes of the package outside of core, and not of another system's programs."""
    return heir.__module__.startswith("spmdsim.") and not heir.__module__.startswith((CORE, *OTHERS))


def heirs(base: type) -> set[type]:
    return {heir for child in type.__subclasses__(base) for heir in (child, *heirs(child))}


def test_core_is_overridden_at_its_extension_points_only():
    for module in pkgutil.walk_packages(spmdsim.__path__, "spmdsim."):
        if "mpi" not in module.name.split(".") and "__main__" not in module.name:
            import_module(module.name)
    used: dict[str, set[str]] = {}
    for heir in {heir for base in core_classes() for heir in heirs(base) if is_outside(heir)}:
        for name in vars(heir):
            owners = [
                base for base in heir.__mro__ if base.__module__.startswith(CORE) and name in vars(base)
            ]
            if owners and not name.startswith(("__", "_abc")):
                used.setdefault(owners[-1].__name__, set()).add(name)
    assert len(used) > 5
    assert len(EXTENSION_POINTS) <= 10
    unlisted = {name: names - EXTENSION_POINTS.get(name, set()) for name, names in used.items()}
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
