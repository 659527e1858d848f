"""The choice problem that every exact search solves: choose one state per variable at the least price.

Prices are seconds and, beside them, bytes of memory. They depend on the state of one variable, or on the states of a
pair. A variable is an operator's strategy or a tensor's layout; a pair is a tensor between them. Some prices depend
on several variables at once, such as the move of gradients that are added first. This module knows nothing about
tensors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from spmdsim.errors import InputError

#: The price of impossible states. It is finite, so that differences of prices are numbers.
IMPOSSIBLE = 1e30

Pair = tuple[int, int]
#: A variable's neighbours with the prices of the pairs, ``[state of the variable, state of the neighbour]``.
Neighbours = list[tuple[int, np.ndarray]]


class SharedPrice(NamedTuple):
    """Price that several variables pay once for each distinct label of their states.

    The variables are called payers. The price of a label also depends on the label of one further variable, the
    selector.

    Attributes:
        variables: the selector first, then the payers; one variable may be listed more than once.
        labels: for each variable, the label of each state.
        prices: ``[payer's label, selector's label]``.

    >>> a = np.array([0, 1])
    >>> both = SharedPrice((0, 1, 2), (a, a, a), np.array([[1.0, 2.0], [4.0, 8.0]]))
    >>> both.price((0, 0, 0)), both.price((0, 0, 1)), both.price((1, 0, 1))
    (1.0, 5.0, 10.0)
    """

    variables: tuple[int, ...]
    labels: tuple[np.ndarray, ...]
    prices: np.ndarray

    def price(self, states: Sequence[int]) -> float:
        """Return the price of an assignment."""
        selector, *payers = (int(labels[states[v]]) for v, labels in zip(self.variables, self.labels))
        return float(self.prices[sorted({*payers}), selector].sum())

    def restrict(self, remaining: Sequence[np.ndarray] | Mapping[int, np.ndarray]) -> SharedPrice:
        """Return the price with only the states ``remaining[variable]`` of each variable."""
        return self._replace(
            labels=tuple(labels[remaining[v]] for v, labels in zip(self.variables, self.labels))
        )

    def numbered(self, number_of: Mapping[int, int]) -> SharedPrice:
        """Return the price with other numbers of its variables."""
        return self._replace(variables=tuple(number_of[v] for v in self.variables))

    @property
    def around(self) -> tuple[int, ...]:
        """Numbers of its variables, sorted, each once."""
        return tuple(sorted({*self.variables}))

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of states of each variable of :attr:`around`."""
        size = dict(zip(self.variables, map(len, self.labels)))
        return tuple(size[v] for v in self.around)

    def table(self) -> np.ndarray:
        """Return the price of each combination of states, as an array with a dimension per variable.

        The dimensions are in the order of :attr:`around`. In the example of the class, ``both.table()[0, 0, 1]``
        is 1 + 4 = 5, because the payers have labels 0 and 1. Entry ``[0, 1, 1]`` is 4: both payers have label 1,
        and only the first one pays for it. The size of the array is not limited here.
        """
        shapes = [[-1 if v == u else 1 for u in self.around] for v in self.variables]
        selector, *payers = (labels.reshape(shape) for labels, shape in zip(self.labels, shapes))
        total: np.ndarray = np.zeros(self.sizes)
        for k, labels in enumerate(payers):
            price = self.prices[labels, selector]
            # A label is free if an earlier payer has paid for it.
            for earlier in payers[:k]:
                price = np.where(labels == earlier, 0.0, price)
            total += price
        return total


@dataclass
class ChoiceProblem:
    """Variables with finitely many states and their prices.

    Attributes:
        seconds: for each variable, the price of each state.
        pairs: for each pair ``(i, j)``, ``i < j``, the price of each combination, ``[state of i, state of j]``.
        memory: like ``seconds``, in bytes; zeros if left out.
        memory_pairs: like ``pairs``, in bytes; missing pairs have no bytes.
        hubs: variables that many others pair with, such as a message that many gradients may share. Hubs never pair
            with one another.
        shared: prices that several variables, but no hubs, pay together.

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
        """Number of states of each variable."""
        return tuple(len(row) for row in self.seconds)

    def add_variable(
        self,
        seconds: np.ndarray,
        memory: np.ndarray | None = None,
        *,
        hub: bool = False,
        existing: int | None = None,
    ) -> int:
        """Add a variable and return its number; or add prices to the variable ``existing``.

        Args:
            seconds: the price of each state.
            memory: the bytes of each state; None for zeros.
            hub: True if many other variables will pair with it; ignored with ``existing``.
            existing: None for a new variable. Else the number of a variable with as many states, to which the prices
                and bytes are added; it is returned.

        Raises:
            InputError: If a new variable has no states.
        """
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
        """Add prices of a pair of variables to the prices that the pair already has.

        If ``i`` and ``j`` are one variable, its two states are always equal: the diagonals are added to its own
        prices.

        Args:
            i: the first variable.
            j: the second variable.
            seconds: the price of each combination, ``[state of i, state of j]``.
            memory: the bytes of each combination; None for zeros.
        """
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
        """Return the seconds of an assignment."""
        total = sum(float(row[s]) for row, s in zip(self.seconds, states))
        total += sum(shared.price(states) for shared in self.shared)
        return total + sum(float(m[states[i], states[j]]) for (i, j), m in self.pairs.items())

    def price_around(self, states: Sequence[int], variables: Sequence[int]) -> float:
        """Return the seconds of an assignment that depend on at least one of ``variables``.

        They are the sum of the variables' own prices, of the prices of pairs with one of them, and of the shared
        prices in which one of them takes part.

        Args:
            states: the state of each variable of the problem.
            variables: numbers of variables; repeated ones count once.
        """
        touched = set(variables)
        total = sum(float(self.seconds[v][states[v]]) for v in touched)
        for (i, j), m in self._touching(touched):
            total += float(m[states[i], states[j]])
        dependent = [shared for shared in self.shared if not touched.isdisjoint(shared.variables)]
        return total + sum(shared.price(states) for shared in dependent)

    def price_of_states(self, states: Sequence[int], variable: int, state: int) -> float:
        """Return the seconds that depend on one variable, with the variable in another state."""
        changed = list(states)
        changed[variable] = state
        return self.price_around(changed, [variable])

    def with_best_hubs(self, states: Sequence[int]) -> list[int]:
        """Return the assignment with each hub in the cheapest state for the other variables' states.

        Of equally cheap states, the first is taken. The given list is not changed.

        Args:
            states: the state of each variable; those of hubs are not used.
        """
        best = list(states)
        prices = {hub: self.seconds[hub].copy() for hub in self.hubs}
        for (i, j), pair_prices in self._touching(set(self.hubs)):
            # Hubs never pair with one another, so one of the two is a hub.
            if i in prices:
                prices[i] += pair_prices[:, best[j]]
            else:
                prices[j] += pair_prices[best[i]]
        for hub, state_prices in prices.items():
            best[hub] = int(state_prices.argmin())
        return best

    def _touching(self, variables: set[int]) -> list[tuple[Pair, np.ndarray]]:
        """Return ``((i, j), prices)`` of the pairs with at least one of ``variables``, ascending.

        The first call builds an index of the pairs by variable; it is used until a pair is added.
        """
        if self._by_variable is None or self._by_variable[0] != len(self.pairs):
            index: dict[int, list[Pair]] = {}
            for i, j in self.pairs:
                index.setdefault(i, []).append((i, j))
                index.setdefault(j, []).append((i, j))
            self._by_variable = (len(self.pairs), index)
        keys = {key for v in variables for key in self._by_variable[1].get(v, ())}
        return [(key, self.pairs[key]) for key in sorted(keys)]

    def bytes_of(self, states: Sequence[int]) -> float:
        """Return the bytes of an assignment."""
        total = sum(float(row[s]) for row, s in zip(self.memory, states))
        return total + sum(float(m[states[i], states[j]]) for (i, j), m in self.memory_pairs.items())

    def weighted(self, per_byte: float, per_second: float = 1.0) -> ChoiceProblem:
        """Return the problem with the prices ``per_second * seconds + per_byte * bytes``.

        For example, with ``per_byte`` 1e-9 a GB of memory costs as much as a second. The bytes stay as they are;
        their arrays are shared with this problem. With ``per_second`` 0, shared prices are left out.
        """
        pairs = {key: per_second * m for key, m in self.pairs.items()}
        for key, m in self.memory_pairs.items():
            pairs[key] = pairs[key] + per_byte * m if key in pairs else per_byte * m
        rows = [per_second * s + per_byte * m for s, m in zip(self.seconds, self.memory)]
        shared = [s._replace(prices=per_second * s.prices) for s in self.shared if per_second]
        return ChoiceProblem(rows, pairs, self.memory, self.memory_pairs, self.hubs, shared)

    def neighbours(self) -> list[Neighbours]:
        """Return, for each variable, the list of ``(neighbour, prices)`` of its pairs.

        ``prices`` is the array ``[state of the variable, state of the neighbour]``. Shared prices are not
        included.
        """
        around: list[Neighbours] = [[] for _ in self.seconds]
        for (i, j), m in self.pairs.items():
            around[i].append((j, m))
            around[j].append((i, m.T))
        return around


@dataclass(frozen=True)
class Solution:
    """An assignment and its price.

    Attributes:
        states: the state of each variable.
        seconds: its price.
        memory: its bytes.
        method: name of the solver.
        optimal: True if no assignment is cheaper.
    """

    states: tuple[int, ...]
    seconds: float
    memory: float
    method: str
    optimal: bool

    @classmethod
    def of(cls, problem: ChoiceProblem, states: Sequence[int], method: str, optimal: bool) -> Solution:
        """Return the solution with these states; compute its seconds and bytes."""
        chosen = tuple(int(s) for s in states)
        return cls(chosen, problem.price(chosen), problem.bytes_of(chosen), method, optimal)
