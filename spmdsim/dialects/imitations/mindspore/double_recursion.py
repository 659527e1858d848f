"""Search for strategies by double recursion: cut all operators in two, again and again, by a symbolic cost.

The outer recursion goes over the devices. Each step splits every group of ranks along one more mesh axis, whose size
is a prime factor of the number of ranks (nearly always 2). The inner recursion goes over the operators. Each operator
is cut along the factor with the least communication, counted in elements. A decision depends on the operator and on
those neighbours that were decided in this step. So the search makes (operators) x (log2 of the ranks) decisions, and
repeated decisions come from a table.

Both published variants are implemented.

- ``"r1.0"`` prices a cut by the elements of the operands and results that lack the cut factor, halved. It decides the
  heaviest operator first. It charges a quarter of a tensor if the cuts of its two sides differ in at least two dims.
- ``"2.x"`` makes cuts of rows ten times cheaper, which favours data parallelism. It never cuts both the reduced and
  the column factor of one product, and may leave an operator uncut. It goes from the last operator to the first, and
  charges sixteen tensors for any difference.

Source: "Efficient and Systematic Partitioning of Large and Deep Neural Networks for Parallelization", Euro-Par
2021. The constants are those of the implementation in MindSpore (``rec_cost``, ``rec_partition``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from spmdsim.auto_parallel.programs.graph import Graph, Operator
from spmdsim.auto_parallel.strategy_choice import binary_mesh, configured_strategy, prime_factors
from spmdsim.core import BoundRule, Mesh, Strategy
from spmdsim.errors import InputError, many

Cuts = tuple[int, ...]
#: Price of a cut of the rows in 2.x (``rp_matmul_mem_coef``).
ROW_COEFFICIENT = 0.1
#: Price of no cut in 2.x: the square of the cheapest cut, divided by this number.
UNCUT_DIVISOR = 25.0
#: Charge for differing cuts, per element of the shared tensor.
REDISTRIBUTION = {"r1.0": 0.25, "2.x": 16.0}


@dataclass(frozen=True)
class Recursion:
    """Result of the double recursion.

    Attributes:
        graph: the program.
        ranks: number of ranks.
        version: variant of the search.
        cuts: per operator the factor that each step cuts; None for a step that leaves it uncut.
    """

    graph: Graph
    ranks: int
    version: str
    cuts: tuple[tuple[str | None, ...], ...]

    def strategies(self) -> tuple[Strategy, ...]:
        """Return one strategy per operator, in the program's order, on the mesh with one axis per step.

        A factor is an index of the operator's rule, such as m, k and n of a product. Axis i splits the factor that step
        i cut; a factor that several steps cut is split by several axes, the first one major.
        """
        mesh = binary_mesh(self.ranks)
        by_cuts = {cuts: _strategy_of_cuts(mesh, cuts) for cuts in {*self.cuts}}
        return tuple(by_cuts[cuts] for cuts in self.cuts)

    def parts(self, operator: int) -> tuple[Cuts, ...]:
        """Return the cuts of an operator as ``.shard`` takes them: blocks per dim of each operand.

        Args:
            operator: index of the operator in the program.
        """
        bound = self.graph.operators[operator].bound
        pieces = dict.fromkeys(bound.sizes, 1)
        for size, factor in zip(prime_factors(self.ranks), self.cuts[operator]):
            if factor is not None:
                pieces[factor] *= size

        def count_blocks(dim: tuple[str, ...]) -> int:
            return math.prod(pieces[factor] for factor in dim)

        return tuple(tuple(map(count_blocks, term)) for term in bound.inputs)


def _strategy_of_cuts(mesh: Mesh, cuts: tuple[str | None, ...]) -> Strategy:
    """Return the strategy in which axis i of a mesh splits the factor that step i cut.

    For example, the cuts ``("m", None, "m")`` split factor m by the axes 0 and 2; nothing is split by axis 1.
    """
    splits: dict[str, tuple[str, ...]] = {}
    for axis, factor in zip(mesh.axes, cuts):
        if factor is not None:
            splits[factor] = (*splits.get(factor, ()), axis)
    return Strategy.of(mesh, splits)


def double_recursion(
    graph: Graph, ranks: int, version: str = "2.x", *, order: str | None = None, memory: float | None = None
) -> Recursion:
    """Find a strategy for every operator of a program by double recursion.

    The number of ranks is divided into its prime factors. There is one step per prime: it cuts every operator
    along its cheapest factor into this number of blocks. In the example, the steps 2, 2, 2 cut the product
    along n, the rows .0 and n; so ``parts`` has 2 blocks of rows and 4 of columns. Operators with a configured
    strategy keep it.

    Args:
        graph: the program.
        ranks: number of ranks, at least 1.
        version: ``"2.x"`` or ``"r1.0"``; see the module for the differences.
        order: ``"weight"`` (heaviest operator first) or ``"topological"`` (last operator first). None is the order of
            the version; see `_Search._default_order`.
        memory: bytes of a rank; all tensors of the program together, evenly spread over the ranks, must fit. None: not
            checked.

    Raises:
        InputError: If an argument is out of range or the tensors do not fit.

    >>> from spmdsim.auto_parallel.programs.networks import chain
    >>> recursion = double_recursion(chain((1000, 4000), batch=3000), 8, "r1.0")
    >>> recursion.cuts[0], recursion.parts(0)
    (('n', '.0', 'n'), ((2, 1), (1, 4)))
    """
    if not isinstance(ranks, int) or ranks < 1:
        raise InputError(f"double_recursion: ranks must be an integer of 1 or more, got {ranks!r}")
    if version not in REDISTRIBUTION:
        raise InputError(
            f"double_recursion: version must be one of {', '.join(REDISTRIBUTION)}, got {version!r}"
        )
    if order not in (None, "weight", "topological"):
        raise InputError(f"double_recursion: order must be 'weight' or 'topological', got {order!r}")
    total = sum(value.nbytes for value in graph.values)
    if memory is not None and total / ranks > memory:
        raise InputError(
            f"the tensors of {graph.name} take {total:,} bytes, {total / ranks:,.0f} on each of "
            f"{many(ranks, 'rank')}, but memory allows {memory:,.0f} bytes per rank; use more ranks or more memory"
        )
    return _Search(graph, ranks, version, order).run()


class CutCosts:
    """Costs of cuts of all operators with one bound rule, cached per state.

    A state has the number of blocks per factor so far. Factors are numbered in the order of the rule's sizes.

    Attributes:
        factors: name of each factor.
        sizes: size of each factor.
        inputs: number of operands.
        terms: per operand, then per result: the factors of each dim, the major one first.
        members: per operand, then per result: the set of its factors.
        whole: factors that the rule keeps whole.
        majors: per factor the factors before it in a dim that is their product.
        rows: factors that are rows of a product; see `_is_row`.
        preference: all factors; of equal costs, the cost of the first factor counts.
        exclusive: columns and reduced factors of a product, of which version 2.x never cuts both; see `_can_cut`.
    """

    def __init__(self, bound: BoundRule, version: str) -> None:
        self.factors = tuple(bound.sizes)
        self.sizes = tuple(bound.sizes.values())
        self.version, self.contraction = version, bound.contraction
        number = {factor: k for k, factor in enumerate(self.factors)}
        self.inputs = len(bound.inputs)
        terms = (*bound.inputs, *bound.outputs)
        self.terms = [[tuple(number[factor] for factor in dim) for dim in term] for term in terms]
        self.members = [{k for dim in term for k in dim} for term in self.terms]
        self.whole = {number[factor] for factor in bound.rule.whole if factor in number}
        products = [dim for term in self.terms for dim in term if len(dim) > 1]
        all_factors = range(len(self.factors))
        self.majors = [
            {major for dim in products if k in dim for major in dim[: dim.index(k)]} for k in all_factors
        ]
        self.rows = {k for k in all_factors if self._is_row(k)}
        # Of equal costs, prefer rows, then columns, then reduced factors.
        result_factors = [k for term in self.terms[self.inputs :] for dim in term for k in dim]
        self.preference = tuple(dict.fromkeys([*result_factors, *all_factors]))
        self.exclusive = {k for k in all_factors if k not in self.members[0] or self._is_reduced(k)}
        self._memory: dict[tuple[Cuts, int], list[float | None]] = {}
        self._sizes: dict[Cuts, list[float]] = {}

    def _is_row(self, k: int) -> bool:
        """Return True if factor ``k`` is a row of a product: in operand 0 and the result, not in all operands."""
        inside = [k in members for members in self.members[: self.inputs]]
        return self.contraction and inside[0] and not all(inside) and k in self.members[self.inputs]

    def _is_reduced(self, k: int) -> bool:
        """Return True if no result has factor ``k``."""
        return all(k not in members for members in self.members[self.inputs :])

    def costs(self, state: Cuts, pieces: int) -> list[float | None]:
        """Return, per factor, the cost of a cut in elements; None for a cut that is not possible.

        A factor is an index of the operator's rule, such as m, k and n of a product. See `_cost` for the formula. Costs
        are cached.

        Args:
            state: number of blocks per factor so far.
            pieces: number of blocks into which a cut divides each block of the factor.
        """
        costs = self._memory.get((state, pieces))
        if costs is None:
            costs = [self._cost(k, state, pieces) for k in range(len(self.factors))]
            self._memory[state, pieces] = costs
        return costs

    def _cost(self, k: int, state: Cuts, pieces: int) -> float | None:
        """Return the cost, in elements, of cutting one factor; None if the cut is not possible.

        A factor is an index of the operator's rule, such as m, k and n of a product.

        The cost of a product is the elements of the operands and results that lack the factor, times
        ``(pieces - 1) / pieces``. Rows (factors of operand 0 and the result that another operand lacks) cost a tenth of
        it in version 2.x. Cuts of other operators are free (0). See `_can_cut` for cuts that are not possible.
        """
        if not self._can_cut(k, state, pieces):
            return None
        if not self.contraction:
            return 0.0
        lacking = [t for t, members in enumerate(self.members) if k not in members]
        cost = sum(self.elements(state)[t] for t in lacking) * (pieces - 1) / pieces
        return cost * ROW_COEFFICIENT if self.version == "2.x" and k in self.rows else cost

    def _can_cut(self, k: int, state: Cuts, pieces: int) -> bool:
        """Return True if the blocks of a factor can be cut further.

        It cannot if the rule keeps it whole, or if ``pieces`` does not divide its blocks. A dim may be the product of
        several factors, major ones first. A minor factor can be cut only when each major one is cut into blocks of size
        1. Version 2.x also never cuts both a reduced factor and a column factor of one product.

        Args:
            k: number of the factor in the order of the rule's sizes.
            state: number of blocks per factor so far.
            pieces: number of blocks into which each block of the factor is cut.
        """
        block, remainder = divmod(self.sizes[k], state[k])
        if k in self.whole or remainder or block % pieces or block < pieces:
            return False
        if any(state[major] != self.sizes[major] for major in self.majors[k]):
            return False
        excludes_others = self.version == "2.x" and self.contraction and k in self.exclusive
        if not excludes_others:
            return True
        others = (other for other in self.exclusive if self._is_reduced(other) != self._is_reduced(k))
        return all(state[other] == 1 for other in others)

    def elements(self, state: Cuts) -> list[float]:
        """Return the number of elements of a shard of each operand, then of each result; cached.

        Args:
            state: number of blocks per factor.
        """
        elements = self._sizes.get(state)
        if elements is None:
            edges = [size / cut for size, cut in zip(self.sizes, state)]
            elements = [math.prod(edges[k] for k in members) for members in self.members]
            self._sizes[state] = elements
        return elements

    def views(self, state: Cuts) -> list[Cuts]:
        """Return the number of blocks per dim of each operand and each result."""
        return [tuple(math.prod(state[k] for k in dim) for dim in term) for term in self.terms]


class _Search:
    """Run of the search.

    States, and the cuts of tensors they imply, are numbered once and compared as numbers.

    Attributes:
        steps: number of blocks of the cuts of each step: the prime factors of the number of ranks.
        kinds: costs by number of the kind. Operators with equal bound rules are one kind.
        kind_of: number of the kind of each operator.
        numbers: kind and state -> number of the state.
        states: kind and state by number.
        view_numbers: view (the blocks per dim of a tensor) -> number of the view.
        view_values: the cuts of each view, by the number of the view.
        views: by number of the state, the numbers of the views of its operands, then of its results.
        links: tensors that an operator shares with others; see `_list_links`.
        order: indices of the operators, in the order in which a step decides them.
        configured_cuts: cuts of configured operators; see `_read_configured`.
    """

    def __init__(self, graph: Graph, ranks: int, version: str, order: str | None) -> None:
        self.graph, self.ranks, self.version = graph, ranks, version
        self.steps = prime_factors(ranks)
        number_of_rule: dict[BoundRule, int] = {}
        number_of_object: dict[int, int] = {}
        self.kinds: list[CutCosts] = []
        self.kind_of: list[int] = []
        # Most operators share one object as their rule, so only the first use of an object compares rules by value.
        for operator in graph.operators:
            number = number_of_object.get(id(operator.bound))
            if number is None:
                number = number_of_rule.setdefault(operator.bound, len(self.kinds))
                number_of_object[id(operator.bound)] = number
                if number == len(self.kinds):
                    self.kinds.append(CutCosts(operator.bound, version))
            self.kind_of.append(number)
        self.numbers: dict[tuple[int, Cuts], int] = {}
        self.states: list[tuple[int, Cuts]] = []
        self.view_numbers: dict[Cuts, int] = {}
        self.view_values: list[Cuts] = []
        self.views: list[Cuts] = []
        self.links = [self._list_links(operator) for operator in graph.operators]
        self.order = self._order_operators(order or self._default_order())
        self.configured_cuts = self._read_configured()

    def _list_links(self, operator: Operator) -> list[tuple[int, int, int]]:
        """Return ``(slot, neighbour, neighbour's slot)`` for every tensor shared with another operator.

        Slots number an operator's operands, then its results. A neighbour is the index of the operator that produced an
        operand, or reads a result. Of each result, only the first 16 readers count.
        """
        graph, links = self.graph, []
        for slot, value in enumerate(operator.inputs):
            producer = graph.values[value].producer
            if producer is not None:
                neighbour_slot = len(graph.operators[producer].inputs) + graph.values[value].output
                links.append((slot, producer, neighbour_slot))
        for k, value in enumerate(operator.outputs):
            for reader, operand in graph.consumers[value][:16]:
                links.append((len(operator.inputs) + k, reader, operand))
        return links

    def _default_order(self) -> str:
        """Return the order in which the version visits operators: "weight" or "topological".

        r1.0 goes by weight. 2.x is topological, but goes by weight on more than 32 ranks if the batch is smaller than
        8. The batch is the smallest dim 0 of the graph's inputs that are no scalars; without such inputs it is 8.
        """
        if self.version == "r1.0":
            return "weight"
        inputs = (value.shape for value in self.graph.values if value.kind == "input" and value.shape)
        batch = min((shape[0] for shape in inputs), default=8)
        return "weight" if self.ranks > 32 and batch < 8 else "topological"

    def _order_operators(self, order: str) -> list[int]:
        """Return the numbers of the operators in the order in which the search decides them.

        - "topological": from the last operator to the first.
        - "weight": from the largest weight to the smallest. Operators of equal weight stay in the program's order.

        The weight of a matrix product is the cost of cutting one of its factors in two, before anything is cut. In
        version r1.0 the lowest cost of all factors counts, in 2.x the highest. Products that cannot be cut and all
        other operators have the weight 0.

        Args:
            order: "topological" or "weight".
        """
        count = len(self.graph.operators)
        if order == "topological":
            return list(reversed(range(count)))
        choose_cost = min if self.version == "r1.0" else max
        weight_of_kind: list[float] = []
        for kind in self.kinds:
            uncut = (1,) * len(kind.factors)
            costs = [cost for cost in kind.costs(uncut, 2) if cost is not None]
            weight_of_kind.append(choose_cost(costs) if costs and kind.contraction else 0.0)
        return sorted(range(count), key=lambda operator: -weight_of_kind[self.kind_of[operator]])

    def _read_configured(self) -> dict[int, list[int | None]]:
        """Return the factor that each step cuts, by operator, for operators with a configured strategy.

        A factor is stated by its position in the operator's ``factors``; None stands for a step that cuts
        nothing. The numbers of blocks of all factors start as the strategy states them. A step of size 2 cuts
        the first factor whose number of blocks is a multiple of 2, and divides this number by 2. For example,
        the steps 2, 2, 2 for the blocks (4, 2) cut the factors 0, 0, 1.
        """
        factors_cut: dict[int, list[int | None]] = {}
        for operator in self.graph.operators:
            if operator.configured is None:
                continue
            strategy = configured_strategy(operator, binary_mesh(self.ranks))
            names = self.kinds[self.kind_of[operator.index]].factors
            remaining_blocks = {factor: strategy.parts(factor) for factor in names}
            cuts: list[int | None] = []
            for size in self.steps:
                k = next((k for k, f in enumerate(names) if remaining_blocks[f] % size == 0), None)
                if k is not None:
                    remaining_blocks[names[k]] //= size
                cuts.append(k)
            factors_cut[operator.index] = cuts
        return factors_cut

    def _number_state(self, kind: int, state: Cuts) -> int:
        """Return the number of a pair ``(kind, state)``; a new pair gets the next number.

        The numbers continue over all kinds. A new pair is stored with the numbers of its views, the blocks per dim of
        each operand and result.
        """
        number = self.numbers.get((kind, state))
        if number is None:
            number = self.numbers[kind, state] = len(self.states)
            self.states.append((kind, state))
            self.views.append(tuple(map(self._number_view, self.kinds[kind].views(state))))
        return number

    def _number_view(self, view: Cuts) -> int:
        """Return the number of the cuts of one tensor; new cuts are added."""
        number = self.view_numbers.setdefault(view, len(self.view_values))
        if number == len(self.view_values):
            self.view_values.append(view)
        return number

    def run(self) -> Recursion:
        """Return the result of all steps for all operators; to be called once.

        Each step cuts all operators, in ``order``: those with a configured strategy along the factor that it
        states, all others along the one that `_decide` chooses. `_decide` is called once per step for operators
        in equal states beside equal neighbours.
        """
        state = [self._number_state(kind, (1,) * len(self.kinds[kind].factors)) for kind in self.kind_of]
        cuts: list[list[str | None]] = [[] for _ in state]
        neighbours = [[(neighbour, slot) for _, neighbour, slot in links] for links in self.links]
        # Equal tuples become one object, so that lookups compare them by identity.
        canonical_tuples: dict[Cuts, Cuts] = {}
        slot_tuples = (tuple(slot for slot, _, _ in links) for links in self.links)
        slots = [
            canonical_tuples.setdefault(slots_of_operator, slots_of_operator)
            for slots_of_operator in slot_tuples
        ]
        views, configured_cuts = self.views, self.configured_cuts
        for step, pieces in enumerate(self.steps):
            is_decided = [False] * len(state)
            decisions: dict[tuple[object, ...], tuple[str | None, int]] = {}
            for i in self.order:
                # A list is faster here than a generator.
                neighbour_views = tuple(
                    [views[state[u]][slot] if is_decided[u] else -1 for u, slot in neighbours[i]]
                )
                if i in configured_cuts:
                    decision = self._cut_factor(state[i], configured_cuts[i][step], pieces)
                else:
                    key = (state[i], slots[i], neighbour_views)
                    decision = decisions.get(key) or self._decide(state[i], i, neighbour_views, pieces)
                    decisions[key] = decision
                is_decided[i] = True
                cut_factor, state[i] = decision
                cuts[i].append(cut_factor)
        return Recursion(self.graph, self.ranks, self.version, tuple(map(tuple, cuts)))

    def _cut_factor(self, number: int, factor: int | None, pieces: int) -> tuple[str | None, int]:
        """Cut one factor of a numbered state; return its name and the number of the new state.

        Args:
            number: number of the state.
            factor: number of the factor; None leaves the state as it is.
            pieces: number of blocks into which each block of the factor is cut.

        Returns:
            The factor's name (None if uncut), and the number of the new state.
        """
        if factor is None:
            return None, number
        kind, state = self.states[number]
        cut = (*state[:factor], state[factor] * pieces, *state[factor + 1 :])
        return self.kinds[kind].factors[factor], self._number_state(kind, cut)

    def _decide(self, number: int, i: int, around: Cuts, pieces: int) -> tuple[str | None, int]:
        """Cut an operator along the factor with the smallest sum of cost and charges.

        A cut has a cost (`CutCosts.costs`), and a charge for each decided neighbour whose tensor is cut
        differently (`_charge_differences`). Of equal sums, the first factor in ``kind.preference`` wins.

        The operator stays uncut if no cut is possible. In version 2.x a product also stays uncut if this has
        the smallest sum; its cost is then the square of the cheapest cut's cost, divided by UNCUT_DIVISOR.

        Args:
            number: the operator's state before the cut, as an index of ``self.states``.
            i: index of the operator.
            around: for each link (see `_list_links`) the neighbour's view, as an index of ``self.view_values``; -1 if
                the neighbour is not decided in this step.
            pieces: the number of blocks into which each block of the factor is cut.

        Returns:
            The name of the factor that was cut (None if the operator stays uncut), and the state after the cut, as an
            index of ``self.states``.
        """
        kind_number, state = self.states[number]
        kind = self.kinds[kind_number]
        costs = kind.costs(state, pieces)
        possible = [c for c in costs if c is not None]
        options: list[tuple[float, int | None]] = []
        for k in kind.preference:
            if (cost := costs[k]) is not None:
                options.append((cost, k))
        if not options or (self.version == "2.x" and kind.contraction):
            options.append((min(possible) ** 2 / UNCUT_DIVISOR if possible else 0.0, None))
        sizes = kind.elements(state)
        decisions: list[tuple[float, tuple[str | None, int]]] = []
        for option_cost, factor in options:
            factor_name, new_number = self._cut_factor(number, factor, pieces)
            charge = self._charge_differences(self.views[new_number], i, around, sizes)
            decisions.append((option_cost + charge, (factor_name, new_number)))
        return min(decisions, key=lambda decision: decision[0])[1]

    def _charge_differences(self, views: Cuts, i: int, around: Cuts, sizes: list[float]) -> float:
        """Return the charge, in elements, for neighbours that cut a shared tensor differently.

        It is the sum of ``REDISTRIBUTION`` of the version times the elements of the shared tensor's shard. Only
        neighbours that were decided in this step count. In r1.0 the cuts must differ in at least two dims.

        Args:
            views: number of the view (blocks per dim of a tensor) of each operand and result.
            i: index of the operator.
            around: per link (see `_list_links`) the number of the neighbour's view; -1 if it is not decided in this
                step.
            sizes: elements of a shard of each operand and result, before the cut.
        """
        least_differences = 2 if self.version == "r1.0" else 1
        charge = 0.0
        for (slot, _, _), neighbour_view in zip(self.links[i], around):
            if neighbour_view < 0 or neighbour_view == views[slot]:
                continue
            blocks_of_dims = zip(self.view_values[views[slot]], self.view_values[neighbour_view])
            if (
                sum(blocks != neighbour_blocks for blocks, neighbour_blocks in blocks_of_dims)
                >= least_differences
            ):
                charge += REDISTRIBUTION[self.version] * sizes[slot]
        return charge
