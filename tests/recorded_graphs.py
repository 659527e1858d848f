"""Graphs of functions for tests of the search, in which sums may stay pending as in the built-in programs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from spmdsim.auto_parallel.programs.graph import Graph
from spmdsim.auto_parallel.programs.record_program import record_program


def record_graph(
    program: Callable[..., Any], inputs: Mapping[str, Any], parameters: Mapping[str, Any], **options: Any
) -> Graph:
    """Return the graph of a function of global tensors, without marks of repeated layers.

    Args:
        program: the function.
        inputs: the shape of each input by name.
        parameters: the shape of each parameter by name.
        **options: further arguments of `record_program`.
    """
    graph = record_program(program, 1, inputs, parameters, **options)
    operators = tuple(replace(operator, layer=None) for operator in graph.operators)
    return replace(graph, operators=operators, recorded=False)
