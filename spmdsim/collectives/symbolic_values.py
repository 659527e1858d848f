"""Symbolic values: which ranks' inputs are in a chunk, in which order they were combined."""

from __future__ import annotations

from typing import TypeAlias

Tree: TypeAlias = "int | tuple[Tree, Tree]"
"""A reduction tree as a value: a rank, or a pair ``(left operand, right operand)``."""


class Symbols:
    """Interned symbolic values, numbered from 0.

    A value is a leaf, rank ``r``'s input of chunk ``c``, or the combination of two values. Equal values
    have equal numbers. The attributes are lists by number:

    * ``chunk``: the chunk it is a value of.
    * ``ranks``: the contributors as a bit set.
    * ``depth``: longest chain of operator applications.
    * ``sorted``: whether its contributors, from left to right, are in rank order.
    * ``shape``: equal for values that differ only by swapping operands, which rounds the same.
    """

    def __init__(self) -> None:
        self.chunk: list[int] = []
        self.ranks: list[int] = []
        self.depth: list[int] = []
        self.sorted: list[bool] = []
        self.shape: list[int] = []
        self.operands: list[tuple[int, int] | None] = []
        self._leaves: dict[tuple[int, int], int] = {}
        self._pairs: dict[tuple[int, int], int] = {}
        self._shapes: dict[tuple[int, int], int] = {}

    def leaf(self, rank: int, chunk: int) -> int:
        """The number of rank ``rank``'s input of ``chunk``."""
        number = self._leaves.get((rank, chunk))
        if number is None:
            number = self._add(chunk, 1 << rank, 0, True, None)
            self._leaves[rank, chunk] = number
            self.shape.append(number)
        return number

    def combine(self, left: int, right: int) -> int:
        """The number of ``left op right``."""
        number = self._pairs.get((left, right))
        if number is None:
            a, b = self.ranks[left], self.ranks[right]
            ordered = self.sorted[left] and self.sorted[right] and a.bit_length() <= _lowest(b)
            depth = 1 + max(self.depth[left], self.depth[right])
            number = self._add(self.chunk[left], a | b, depth, ordered, (left, right))
            self._pairs[left, right] = number
            one, two = self.shape[left], self.shape[right]
            self.shape.append(self._shapes.setdefault((min(one, two), max(one, two)), number))
        return number

    def _add(
        self, chunk: int, ranks: int, depth: int, ordered: bool, operands: tuple[int, int] | None
    ) -> int:
        self.chunk.append(chunk)
        self.ranks.append(ranks)
        self.depth.append(depth)
        self.sorted.append(ordered)
        self.operands.append(operands)
        return len(self.chunk) - 1

    def tree(self, value: int) -> Tree:
        """The value as a nested pair of ranks."""
        done: dict[int, Tree] = {}
        stack = [value]
        while stack:
            node = stack[-1]
            operands = self.operands[node]
            if operands is None:
                done[node] = self.ranks[node].bit_length() - 1
            elif operands[0] in done and operands[1] in done:
                done[node] = (done[operands[0]], done[operands[1]])
            else:
                stack += [o for o in operands if o not in done]
                continue
            stack.pop()
        return done[value]


def _lowest(ranks: int) -> int:
    """The lowest rank of a bit set."""
    return (ranks & -ranks).bit_length() - 1


def members(ranks: int) -> list[int]:
    """The ranks of a bit set.

    >>> members(0b1011)
    [0, 1, 3]
    """
    return [i for i in range(ranks.bit_length()) if ranks >> i & 1]
