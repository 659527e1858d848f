"""What operators mean for layouts (pure): rules, strategies, and what follows from them."""

from spmdsim.rules.bind import bind
from spmdsim.rules.bound import BoundRule
from spmdsim.rules.cuts import factor_cuts, strategy_from_cuts, strategy_from_factors
from spmdsim.rules.rule import ELEMENTS, FUNCTIONS, PASSES, Rule, Term
from spmdsim.rules.strategy import Strategy

__all__ = [
    "ELEMENTS",
    "FUNCTIONS",
    "PASSES",
    "BoundRule",
    "Rule",
    "Strategy",
    "Term",
    "bind",
    "factor_cuts",
    "strategy_from_cuts",
    "strategy_from_factors",
]
