"""Facts of equal user functions are equal in all processes; different code has different facts."""

from __future__ import annotations

from functools import partial, wraps

import numpy as np
import pytest
from processes import run_python

from spmdsim.worlds.function_facts import facts_of


def comparable_facts(function):
    return [facts.compared for facts in facts_of(function)]


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
    assert comparable_facts(pair[0]) != comparable_facts(pair[1])


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
    assert comparable_facts(closing_over(pair[0])) == comparable_facts(closing_over(pair[1]))


def test_equal_code_on_another_line_has_equal_facts():
    first = lambda x: x * 2  # noqa: E731
    second = lambda y: y * 2  # noqa: E731
    assert comparable_facts(first) == comparable_facts(second)
    assert str(facts_of(first)[0]).startswith("test_function_facts.py:")
    assert str(facts_of(first)[0]) != str(facts_of(second)[0])
    assert str(facts_of(partial(first, k=2))[0]).endswith(", k=2")


def test_a_variable_that_has_no_value_yet_is_left_out():
    def before():
        return lambda x: x * later

    function = before()
    assert len(comparable_facts(function)) == 1
    later = 2.0
    assert function(1.0) == later


def test_functions_of_the_package_have_the_facts_of_the_user_functions_in_them():
    from spmdsim.arrays.local.overlap import _make_operator

    two, three = (_make_operator("f", function, None) for function in DIFFERENT["a constant"])
    facts_of_two, facts_of_three = (facts_of(*op.user_functions()) for op in (two, three))
    assert [facts.compared for facts in facts_of_two] != [facts.compared for facts in facts_of_three]
    assert "test_function_facts.py" in str(facts_of_two[0])


def test_all_processes_have_equal_facts():
    text = """
from functools import partial
from spmdsim.worlds.function_facts import facts_of
def function(x, k=("a", None), *, scale=2.5):
    return x in {"a", "b", "c", "d"} or x in ("e", frozenset(("f", "g"))) or (lambda y: y is None)(k)
print([facts.compared for facts in facts_of(partial(function, {1, 2}, b=3), print)])
"""
    outputs = {run_python("-c", text, PYTHONHASHSEED=seed).stdout for seed in ("0", "1", "7")}
    assert len(outputs) == 1 and "print" in outputs.pop()
