"""Arithmetic, literals and JSON are read within limits, and other text is refused."""

from __future__ import annotations

import random
from fractions import Fraction

import pytest

from spmdsim.collectives.algorithm import evaluate_expression
from spmdsim.reading import arithmetic, literal, literal_call, parse_json

NAMES = {"n": Fraction(6), "p": Fraction(4), "q": Fraction(5, 6)}


def expression(draw: random.Random, depth: int) -> tuple[str, Fraction]:
    """Return a random expression of at most ``depth`` nested operations, and its value.

    ``draw`` chooses the operations and the numbers.
    """
    if depth == 0 or draw.random() < 0.2:
        name = draw.choice([*NAMES, None])
        number = draw.randrange(1, 9)
        return (name, NAMES[name]) if name else (str(number), Fraction(number))
    (a, x), (b, y) = expression(draw, depth - 1), expression(draw, depth - 1)
    kind = draw.randrange(9)
    if kind < 3:
        return f"({a} {'+-*'[kind]} {b})", (x + y, x - y, x * y)[kind]
    if kind == 3:
        return f"-({a})", -x
    if kind == 4:
        return f"max({a}, {b})", x if x > y else y
    if kind == 5:
        return f"({a} if {b} > 3 else n)", x if y > 3 else Fraction(6)
    if kind == 6:
        return f"({a} <= {b})", Fraction(1 if x <= y else 0)
    if kind == 7:
        return f"(not {a} == {b} and {a} < 9)", Fraction(1 if x != y and x < 9 else 0)
    return f"({a})**2 // 7", Fraction((x * x).numerator // (7 * (x * x).denominator))


def test_random_expressions_have_exact_values():
    for seed in range(300):
        text, value = expression(random.Random(seed), 4)
        assert arithmetic(text, NAMES) == value, text


@pytest.mark.parametrize("text", [
    "().__class__", "n.numerator", "[c for c in (1,)]", "__import__('os')", "open('x')", "lambda: 1", "max(*n)", "max(n, key=n)",
    "n if", "'n'", "n[0]", "9**9**9", "9**9**9**9", "2**-5000", "2**0.5", "1e400", "(n:=3)", "True", "n@n", "n<<n", "z", "", "n\0",
    "(" * 200 + "n" + ")" * 200, "-" * 3000 + "n", "+".join("n" * 1000), "9" * 5000, "f'{n}'", "n is n", "max(n)",
])  # fmt: skip
def test_text_that_is_no_arithmetic_is_refused(text):
    with pytest.raises(ValueError):
        arithmetic(text, NAMES)
    with pytest.raises(ValueError):
        evaluate_expression(text, 6)


@pytest.mark.parametrize("text", ["None", "...", "n + None", "True"])
def test_constants_that_are_no_numbers_are_named(text):
    with pytest.raises(ValueError, match="is not arithmetic"):
        arithmetic(text, NAMES)


def test_division_is_exact():
    assert arithmetic("1/3 + 0.1", {}) == Fraction(13, 30)
    with pytest.raises(ZeroDivisionError):
        arithmetic("n // (p - 4)", NAMES)


@pytest.mark.parametrize(
    "text", ["(" * 100 + ")" * 100, "[" * 10**5, "1" * 10**5, "open('x')", "(1,", "{[]: 1}", "x"]
)
def test_text_that_is_no_literal_is_refused(text):
    with pytest.raises(ValueError):
        literal(text)


def test_a_call_with_keywords_from_a_dict_is_refused():
    assert literal_call("f(1, a=2)") == ("f", [1], {"a": 2})
    with pytest.raises(ValueError, match=r"^it has an argument with \*\*"):
        literal_call("f(**{'a': 1})")


def test_brackets_in_strings_do_not_count_as_depth():
    assert parse_json('{"a": "' + "[" * 500 + '\\""}') == {"a": "[" * 500 + '"'}
    with pytest.raises(ValueError, match="deep"):
        parse_json('["\\\\"' + "[" * 100)
