"""Rules are parsed from text, spaces do not matter, and an error says in one line what is wrong."""

from __future__ import annotations

import pytest

from spmdsim.core import Rule, bind
from spmdsim.cost.roofline import flops_of
from spmdsim.errors import RuleError


@pytest.mark.parametrize(
    ("text", "factors", "reduced"),
    [
        ("m k, k n -> m n", ("m", "k", "n"), ("k",)),
        ("... m k, ... k n -> ... m n", ("...", "m", "k", "n"), ("k",)),
        ("..., ... -> ...", ("...",), ()),
        ("..., v h -> ... h", ("...", "v", "h"), ("v",)),
        ("(a b) c -> a b c", ("a", "b", "c"), ()),
        ("a b -> 1 b", ("a", "b"), ("a",)),
        ("-> a", ("a",), ()),
    ],
)
def test_rules_have_factors_and_reduced_factors(text, factors, reduced):
    rule = Rule.parse(text)
    assert rule.factors == factors
    assert rule.reduced == reduced


@pytest.mark.parametrize(
    ("text", "same"), [("m k,k n->m n", "m k, k n -> m n"), ("( a  b )->a b", "(a b) -> a b")]
)
def test_spaces_do_not_matter(text, same):
    a, b = Rule.parse(text), Rule.parse(same)
    assert (a.inputs, a.outputs) == (b.inputs, b.outputs)


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("m k, k n", {}, "a text with one '->'"),
        ("m -> k -> n", {}, "one '->'"),
        ("m k; k n -> m n", {}, "';' is neither a factor"),
        ("m m -> m", {}, "factor 'm' occurs twice in one term"),
        ("(a 2) -> a", {}, "brackets must have names of factors only, got"),
        ("a 3 -> a", {}, "'3' is neither a factor"),
        ("a -> a", {"whole": "b"}, "factor 'b' does not occur"),
        ("a b -> a", {"reduce": {"c": "max"}}, "factor 'c' does not occur"),
        ("a -> a", {"linear": "both"}, "linear must be none, each, all or sets of operands, got 'both'"),
    ],
)
def test_texts_that_are_no_rule_are_refused(text, options, message):
    with pytest.raises(RuleError, match=message):
        Rule.parse(text, **options)


@pytest.mark.parametrize(
    ("text", "shapes", "message"),
    [
        ("m k, k n -> m n", [(2, 3)], "takes 2 operands, but 1 was given"),
        ("m k, k n -> m n", [(2, 3), (4, 5)], "dim called 'k' has size 3, but 4 in operand 1"),
        ("m k, k n -> m n", [(2, 3), (3,)], "needs an operand of 2 dims, but it has 1"),
        ("..., ... -> ...", [(2, 3), (4, 3)], "dim 1 from the right of '...' .* size 2, but 4"),
        ("... k -> ...", [()], "needs operands of 1 dim or more, not 0"),
        ("1 a -> a", [(2, 3)], "needs size 1 where operand 0"),
        ("(a b) -> a b", [(6,)], "sizes of .* must be given"),
        ("a -> a b", [(3,)], "factor 'b' of a result must be in an operand"),
    ],
)
def test_shapes_that_do_not_fit_the_rule_are_refused(text, shapes, message):
    with pytest.raises(RuleError, match=message):
        bind(Rule.parse(text), tuple(shapes))


def test_compound_sizes_are_solved_or_refused():
    rule = Rule.parse("(a b) -> a b")
    assert bind(rule, ((6,),), (("a", 2),)).output_shapes == ((2, 3),)
    with pytest.raises(RuleError, match=r"\(a b\) .* cannot have size 7"):
        bind(rule, ((7,),), (("a", 2),))


def test_broadcast_dims_have_no_factor():
    bound = bind(Rule.parse("..., ... -> ..."), ((1, 48), (8, 5, 1)))
    assert bound.inputs == (((), (".0",)), ((".2",), (".1",), ()))
    assert bound.output_shapes == ((8, 5, 48),)


def test_flops_count_multiplications_and_additions():
    assert flops_of(bind(Rule.parse("m k, k n -> m n"), ((4, 5), (5, 6)))) == 2 * 4 * 5 * 6
    assert flops_of(bind(Rule.parse("..., ... -> ..."), ((4, 5), (5,)))) == 20


def test_an_ellipsis_of_no_operand_stands_for_no_dims():
    assert bind(Rule.parse("m -> ... m"), ((4,),)).output_shapes == ((4,),)
