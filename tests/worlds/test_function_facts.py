"""Facts of equal user functions are equal in all processes; different code has different facts."""

from __future__ import annotations

from functools import partial, wraps

import numpy as np
import pytest
from processes import run_python

from spmdsim import LockStep, Mesh, Op, Rule, Tensor
from spmdsim.local import map_overlap
from spmdsim.worlds.provenance import Provenance


def make_tensor():
    """Return a tensor with a provenance number, as in a program on real ranks."""
    world = LockStep(2)
    world.provenance = Provenance()
    return Tensor.from_global(np.arange(8.0), Mesh((2,), ("a",))("a"), world)


def apply(function):
    """Return the result of an operator whose gradient function, which is not called, is ``function``."""
    return Op("f", Rule.parse("m -> m"), np.copy, function)(make_tensor())


def number_of(function):
    """Return the number that ranks compare."""
    return apply(function).provenance_number


def describe(result):
    """Return the description of a tensor in the errors of ranks that disagree."""
    return dict(result.world.provenance.ancestors(result.provenance_number))[result.provenance_number]


class Scaled:
    def __call__(self, x):
        return x * 2

    def other(self, x):
        return x * 3


def with_default(k):
    def function(x, k=k, *, more=k):
        return x * k * more

    return function


def closing_over(k):
    return lambda x: x * k


def decorated(function):
    @wraps(function)
    def inside(x):
        return function(x)

    return inside


DIFFERENT = {
    "a constant": (lambda x: x * 2, lambda x: x * 3),
    "a name": (lambda x: np.sin(x), lambda x: np.cos(x)),
    "a function inside": (lambda x: sorted(x, key=lambda y: y + 1), lambda x: sorted(x, key=lambda y: y + 2)),
    "a set of constants": (lambda x: x in {"a", "b"}, lambda x: x in {"a", "c"}),
    "a default": (with_default(1), with_default(2)),
    "an argument": (partial(with_default(1), k=3), partial(with_default(1), k=4)),
    "text as an argument": (partial(np.sort, kind="stable"), partial(np.sort, kind="heapsort")),
    "an argument in a row": (partial(np.clip, 1), partial(np.clip, np.float32(2))),
    "a number closed over": (closing_over(2.0), closing_over(3.0)),
    "a tuple of numbers closed over": (closing_over((1.0, 2j)), closing_over((1.0, 3j))),
    "methods": (Scaled(), Scaled().other),
    "functions of numpy": (np.sin, np.cos),
    "what a decorator holds": (decorated(lambda x: x * 2), decorated(lambda x: x * 3)),
}


@pytest.mark.parametrize("pair", DIFFERENT.values(), ids=DIFFERENT)
def test_different_functions_have_different_facts(pair):
    assert number_of(pair[0]) != number_of(pair[1])


EQUAL = {
    "whole numbers": (3, 4),
    "truth values": (True, False),
    "text": ("log-0", "log-1"),
    "arrays": (np.ones(3), np.zeros(2)),
    "functions": (print, lambda *_: None),
    "objects": (Scaled(), None),
}


@pytest.mark.parametrize("pair", EQUAL.values(), ids=EQUAL)
def test_closed_over_values_that_ranks_may_choose_themselves_are_not_compared(pair):
    assert number_of(closing_over(pair[0])) == number_of(closing_over(pair[1]))


def test_equal_code_on_another_line_has_equal_facts():
    first = lambda x: x * 2  # noqa: E731
    second = lambda y: y * 2  # noqa: E731
    assert number_of(first) == number_of(second)
    functions = first, second, partial(with_default(1), k=2)
    results = [Op("f", Rule.parse("m -> m"), function)(make_tensor()) for function in functions]
    titles = [describe(result).partition(" at ")[0] for result in results]
    assert titles[0].startswith("a tensor computed by f (test_function_facts.py:")
    assert titles[0] != titles[1] and ", k=2" in titles[2]


def test_a_variable_that_has_no_value_yet_is_left_out():
    def before():
        return lambda x: x * later

    function = before()
    number = number_of(function)
    later = 2.0
    assert function(1.0) == later and number_of(function) != number


def test_functions_of_the_package_have_the_facts_of_the_user_functions_in_them():
    results = [map_overlap(function, make_tensor(), depth=0) for function in DIFFERENT["a constant"]]
    assert results[0].provenance_number != results[1].provenance_number
    assert "(test_function_facts.py:" in describe(results[0])


def test_all_processes_have_equal_facts():
    text = """
from functools import partial
import numpy as np
from spmdsim import LockStep, Mesh, Op, Rule, Tensor
from spmdsim.worlds.provenance import Provenance
def function(x, k=("a", None), *, scale=2.5):
    return x in {"a", "b", "c", "d"} or x in ("e", frozenset(("f", "g"))) or (lambda y: y is None)(k)
world = LockStep(2)
world.provenance = Provenance()
x = Tensor.from_global(np.arange(8.0), Mesh((2,), ("a",))("a"), world)
for function in (partial(function, {1, 2}, b=3), print):
    print(Op("f", Rule.parse("m -> m"), np.copy, function)(x).provenance_number)
"""
    outputs = {run_python("-c", text, PYTHONHASHSEED=seed).stdout for seed in ("0", "1", "7")}
    assert len(outputs) == 1 and len({*outputs.pop().split()}) == 2
