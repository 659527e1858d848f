"""The choice problem every exact search solves: one state per variable, a price per state and per pair of states.

Prices are seconds and, beside them, bytes of memory. A variable is an operator's strategy or a tensor's layout; a
pair is a tensor that goes from one to the other. What several of them may pay for together, such as gradients that are
added before they move, is a price of all of them at once. Nothing in here knows about tensors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from spmdsim.errors import InputError

#: The price of what is impossible: finite, so that differences of prices stay numbers.
IMPOSSIBLE = 1e30

Pair = tuple[int, int]
#: A variable's neighbours with the prices of the pairs, own state first.
Neighbours = list[tuple[int, np.ndarray]]


class SharedPrice(NamedTuple):
    """What some variables, the payers, pay once where their states have equal labels; one more says what each label costs.

    Attributes:
        variables: the one that says so first, then the payers; one variable may be there more than once.
        labels: per variable the label of each state.
        prices: ``[payer's label, first one's label]``.

    >>> a = np.array([0, 1])
    >>> both = SharedPrice((0, 1, 2), (a, a, a), np.array([[1.0, 2.0], [4.0, 8.0]]))
    >>> both.price((0, 0, 0)), both.price((0, 0, 1)), both.price((1, 0, 1))
    (1.0, 5.0, 10.0)
    """

    variables: tuple[int, ...]
    labels: tuple[np.ndarray, ...]
    prices: np.ndarray

    def price(self, states: Sequence[int]) -> float:
        """What is paid for an assignment."""
        first, *payers = (int(own[states[v]]) for v, own in zip(self.variables, self.labels))
        return float(self.prices[sorted({*payers}), first].sum())

    def restrict(self, kept: Sequence[np.ndarray] | Mapping[int, np.ndarray]) -> SharedPrice:
        """The same price with only some states of each variable."""
        return self._replace(labels=tuple(own[kept[v]] for v, own in zip(self.variables, self.labels)))

    def numbered(self, place: Mapping[int, int]) -> SharedPrice:
        """The same price of variables with other numbers."""
        return self._replace(variables=tuple(place[v] for v in self.variables))

    @property
    def around(self) -> tuple[int, ...]:
        """Its variables, each once."""
        return tuple(sorted({*self.variables}))

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of states of each variable of :attr:`around`."""
        size = dict(zip(self.variables, map(len, self.labels)))
        return tuple(size[v] for v in self.around)

    def table(self) -> np.ndarray:
        """The price of every combination, a dimension per variable of :attr:`around`."""
        shapes = [[-1 if v == u else 1 for u in self.around] for v in self.variables]
        first, *payers = (own.reshape(shape) for own, shape in zip(self.labels, shapes))
        total: np.ndarray = np.zeros(self.sizes)
        for k, own in enumerate(payers):
            paid = [own == other for other in payers[:k]]
            price = self.prices[own, first]
            total += np.where(np.logical_or.reduce(np.broadcast_arrays(*paid)), 0.0, price) if paid else price
        return total


@dataclass
class ChoiceProblem:
    """Variables with finite domains and prices.

    Attributes:
        seconds: per variable the price of each state; ``memory`` the bytes, zeros if left out.
        pairs: per pair ``(i, j)``, ``i < j``, the price of each combination, ``[state of i, state of j]``;
            ``memory_pairs`` the bytes, none of pairs that are missing.
        hubs: variables that very many others pair with, such as a message that many gradients may share; never
            with one another.
        shared: what several variables, but no hubs, pay for together.

    >>> p = ChoiceProblem([np.array([1.0, 2.0]), np.array([0.5, 1.0])])
    >>> p.add_pair(0, 1, np.array([[0.1, 1.0], [1.0, 0.0]]))
    >>> p.price((0, 0)), p.price((1, 1))
    (1.6, 3.0)
    """

    seconds: list[np.ndarray] = field(default_factory=list)
    pairs: dict[Pair, np.ndarray] = field(default_factory=dict)
    memory: list[np.ndarray] = field(default_factory=list)
    memory_pairs: dict[Pair, np.ndarray] = field(default_factory=dict)
    hubs: list[int] = field(default_factory=list)
    shared: list[SharedPrice] = field(default_factory=list)
    _by_variable: tuple[int, dict[int, list[Pair]]] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        self.memory = self.memory or [np.zeros(len(row)) for row in self.seconds]

    def __len__(self) -> int:
        return len(self.seconds)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of states per variable."""
        return tuple(len(row) for row in self.seconds)

    def add_variable(
        self,
        seconds: np.ndarray,
        memory: np.ndarray | None = None,
        *,
        hub: bool = False,
        existing: int | None = None,
    ) -> int:
        """A variable, or more to pay for one that is ``existing``; returns its number."""
        if existing is not None:
            self.seconds[existing] = self.seconds[existing] + seconds
            self.memory[existing] = self.memory[existing] + (0.0 if memory is None else memory)
            return existing
        if len(seconds) == 0:
            raise InputError("a variable needs at least one state to choose")
        self.seconds.append(np.asarray(seconds, dtype=float))
        self.memory.append(np.zeros(len(seconds)) if memory is None else np.asarray(memory, dtype=float))
        if hub:
            self.hubs.append(len(self.seconds) - 1)
        return len(self.seconds) - 1

    def add_pair(self, i: int, j: int, seconds: np.ndarray, memory: np.ndarray | None = None) -> None:
        """Add to the price of a pair; a pair of a variable with itself adds to the variable."""
        if i == j:
            self.seconds[i] = self.seconds[i] + np.diagonal(seconds)
            if memory is not None:
                self.memory[i] = self.memory[i] + np.diagonal(memory)
            return
        if i > j:
            i, j, seconds = j, i, seconds.T
            memory = None if memory is None else memory.T
        self.pairs[i, j] = self.pairs[i, j] + seconds if (i, j) in self.pairs else np.array(seconds, float)
        if memory is not None and memory.any():
            old = self.memory_pairs.get((i, j))
            self.memory_pairs[i, j] = np.array(memory, float) if old is None else old + memory

    def price(self, states: Sequence[int]) -> float:
        """Seconds of an assignment."""
        total = sum(float(row[s]) for row, s in zip(self.seconds, states))
        total += sum(one.price(states) for one in self.shared)
        return total + sum(float(m[states[i], states[j]]) for (i, j), m in self.pairs.items())

    def price_around(self, states: Sequence[int], variables: Sequence[int]) -> float:
        """The part of the price that depends on some variables."""
        touched = set(variables)
        total = sum(float(self.seconds[v][states[v]]) for v in touched)
        for (i, j), m in self._touching(touched):
            total += float(m[states[i], states[j]])
        return total + sum(one.price(states) for one in self.shared if not touched.isdisjoint(one.variables))

    def price_of_states(self, states: Sequence[int], variable: int, state: int) -> float:
        """The part of the price that depends on one variable, were it in another state."""
        changed = list(states)
        changed[variable] = state
        return self.price_around(changed, [variable])

    def with_best_hubs(self, states: Sequence[int]) -> list[int]:
        """The assignment with every hub in the state that suits the others best."""
        best = list(states)
        prices = {hub: self.seconds[hub].copy() for hub in self.hubs}
        for (i, j), m in self._touching(set(self.hubs)):
            if i in prices:
                prices[i] += m[:, best[j]]
            else:
                prices[j] += m[best[i]]
        for hub, row in prices.items():
            best[hub] = int(row.argmin())
        return best

    def _touching(self, variables: set[int]) -> list[tuple[Pair, np.ndarray]]:
        if self._by_variable is None or self._by_variable[0] != len(self.pairs):
            index: dict[int, list[Pair]] = {}
            for i, j in self.pairs:
                index.setdefault(i, []).append((i, j))
                index.setdefault(j, []).append((i, j))
            self._by_variable = (len(self.pairs), index)
        keys = {key for v in variables for key in self._by_variable[1].get(v, ())}
        return [(key, self.pairs[key]) for key in sorted(keys)]

    def bytes_of(self, states: Sequence[int]) -> float:
        """Memory of an assignment."""
        total = sum(float(row[s]) for row, s in zip(self.memory, states))
        return total + sum(float(m[states[i], states[j]]) for (i, j), m in self.memory_pairs.items())

    def weighted(self, per_byte: float, per_second: float = 1.0) -> ChoiceProblem:
        """The problem whose price is ``per_second * seconds + per_byte * bytes``."""
        pairs = {key: per_second * m for key, m in self.pairs.items()}
        for key, m in self.memory_pairs.items():
            pairs[key] = pairs[key] + per_byte * m if key in pairs else per_byte * m
        rows = [per_second * s + per_byte * m for s, m in zip(self.seconds, self.memory)]
        shared = [one._replace(prices=per_second * one.prices) for one in self.shared if per_second]
        return ChoiceProblem(rows, pairs, self.memory, self.memory_pairs, self.hubs, shared)

    def neighbours(self) -> list[Neighbours]:
        """Per variable its neighbours with the pair's prices, own state first."""
        around: list[Neighbours] = [[] for _ in self.seconds]
        for (i, j), m in self.pairs.items():
            around[i].append((j, m))
            around[j].append((i, m.T))
        return around


@dataclass(frozen=True)
class Solution:
    """An assignment and its price."""

    states: tuple[int, ...]
    seconds: float
    memory: float
    method: str
    optimal: bool

    @classmethod
    def of(cls, problem: ChoiceProblem, states: Sequence[int], method: str, optimal: bool) -> Solution:
        """The solution with these states."""
        chosen = tuple(int(s) for s in states)
        return cls(chosen, problem.price(chosen), problem.bytes_of(chosen), method, optimal)
