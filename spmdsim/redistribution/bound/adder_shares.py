"""Shares of a reduction: compute how many elements each rank adds up, so that no rank receives too many.

Each group of elements costs each rank a number of receptions per element. For few ranks the shares are the optimum of
a linear programme, for many ranks whole numbers close to it. Every rank computes the shares itself, so all of this is
arithmetic element by element, whose result does not depend on the machine.
"""

from __future__ import annotations

import math

import numpy as np

#: The number of pivots after which the first column that improves is taken instead of the best one, and the largest number.
PATIENCE, MOST_PIVOTS = 60, 400
#: Smaller coefficients are rounding errors.
TINY = 1e-9


def balance_loads(
    extras: np.ndarray, volumes: np.ndarray, loads: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return fractional element counts per group and rank that minimise the largest load.

    Every element of a group is given to one rank. This adds ``extras[group, rank]`` to the load of the rank. The best
    shares solve a linear program, here by the simplex method. In each pivot, the column with the largest gain enters
    the basis; from pivot :data:`PATIENCE` (60) on, the first column with a gain, a rule against cycles. After
    :data:`MOST_PIVOTS` (400) pivots the shares are feasible, but may be above the optimum. Coefficients up to 1e-9
    count as 0.

    Args:
        extras: ``[group, rank]``, the load that one element of the group adds to the rank.
        volumes: ``[group]``, the number of elements of each group.
        loads: ``[rank]``, the load of each rank before it takes any element.

    Returns:
        ``(shares, weights)``. ``shares[group, rank]`` is a number of elements, as a float; each row sums to the
        volume. ``weights[rank]`` is the dual solution: the average load with these weights is a lower bound of the
        largest load for every choice of shares. The weights sum to 1. Rounding can make a weight slightly negative.

    >>> # All ranks get the load 10: 6 + 1 * 4, 6 + 1 * 4, and 0 + 2 * 5.
    >>> shares, weights = balance_loads(np.array([[1, 1, 2]]), np.array([13]), np.array([6, 6, 0]))
    >>> shares.tolist(), weights.tolist()
    ([[4.0, 4.0, 5.0]], [0.4, 0.4, 0.2])
    """
    groups, ranks = extras.shape
    # Numbers of columns: shares come first, then a slack per rank, then the largest load.
    first_slack, largest_load = groups * ranks, groups * ranks + ranks
    table, basis, busiest_row = _first_table(extras, volumes, loads)
    scratch = np.empty_like(table)
    _pivot(table, busiest_row, largest_load, scratch)
    basis[busiest_row] = largest_load
    gains, amounts = table[busiest_row, :largest_load], table[:, -1]
    for count in range(MOST_PIVOTS):
        column = int(gains.argmax() if count < PATIENCE else (gains > TINY).argmax())
        if gains[column] <= TINY:
            break
        pairs = zip(amounts.tolist(), table[:, column].tolist())
        ratios = [amount / rate if rate > TINY else math.inf for amount, rate in pairs]
        leaving = ratios.index(min(ratios))
        if leaving == busiest_row:
            break
        _pivot(table, leaving, column, scratch)
        basis[leaving] = column
    amounts_by_column = np.zeros(first_slack)
    is_share = basis < first_slack
    amounts_by_column[basis[is_share]] = amounts[is_share]
    # Rounding can make an amount slightly negative.
    shares = np.maximum(amounts_by_column, 0).reshape(groups, ranks)
    return shares, -table[busiest_row, first_slack:largest_load]


def _first_table(
    extras: np.ndarray, volumes: np.ndarray, loads: np.ndarray
) -> tuple[np.ndarray, np.ndarray, int]:
    """Return the first simplex table of :func:`balance_loads`, in which each group goes to one rank.

    The largest group is placed first. A group goes to the rank whose load is smallest once the group is added to it.
    Of equal groups or ranks, the first wins. For example, groups of 5 and 3 elements go to ranks 0 and 1 if all costs
    and loads are equal.

    Args:
        extras: ``[group, rank]``, the load that one element of the group adds to the rank.
        volumes: ``[group]``, the number of elements of each group.
        loads: ``[rank]``, the load of each rank before it takes any element.

    Returns:
        ``(table, basis, busiest_row)``. The table has a row per group (its shares sum to its volume) and then a row per
        rank (its load is at most the largest load). Its columns are the shares ``[group, rank]``, the slack of each
        rank, the largest load, and the right side. The groups' rows are subtracted from the rows of the ranks to which
        they go, so the right side of a rank is minus its load. ``basis`` has the basis column of each row; the largest
        load is not in it yet. ``busiest_row`` is the row of the rank with the largest load.
    """
    groups, ranks = extras.shape
    slack, most, right = groups * ranks, groups * ranks + ranks, groups * ranks + ranks + 1
    table = np.zeros((groups + ranks, right + 1))
    rank_numbers, columns = np.arange(ranks), np.arange(slack).reshape(groups, ranks)
    table[np.arange(groups)[:, None], columns] = 1
    table[groups + rank_numbers, columns] = extras
    table[groups + rank_numbers, slack + rank_numbers] = 1
    table[groups:, most] = -1
    table[:groups, right], table[groups:, right] = volumes, -loads
    load, rank_of_group = loads.astype(float), np.zeros(groups, np.int64)
    for group in (-volumes).argsort(kind="stable"):
        loads_after = load + extras[group] * volumes[group]
        rank = rank_of_group[group] = loads_after.argmin()
        load[rank] = loads_after[rank]
        # Make the group's share 0 in the row of the rank, as the simplex method needs of a basis column.
        table[groups + rank] -= extras[group, rank] * table[group]
    basis = np.concatenate([columns[:, 0] + rank_of_group, slack + rank_numbers])
    return table, basis, groups + int(load.argmax())


def _pivot(table: np.ndarray, line: int, column: int, scratch: np.ndarray) -> None:
    """Make ``column`` the basis column of row ``line`` of a simplex table, in place.

    The row is divided by its element in the column, and subtracted from the other rows so that their elements in the
    column become 0. For example, with row 0 and column 0, [[2, 4], [1, 5]] becomes [[1, 2], [0, 3]].
    """
    pivoted = table[line]
    pivoted /= pivoted[column]
    factors = table[:, column : column + 1].copy()
    factors[line] = 0
    np.multiply(factors, pivoted, out=scratch)
    table -= scratch


def level_shares(extras: np.ndarray, volumes: np.ndarray, loads: np.ndarray) -> np.ndarray:
    """Return integer element counts per group and rank that keep the largest load low.

    This is the heuristic for many ranks in place of `balance_loads`; its largest load may be above the optimum. It
    looks for a low limit of the load at which :func:`_deal_shares` succeeds, by bisection. Groups with the fewest
    cheapest ranks are dealt out first, because they have the least choice; of equal ones, the largest.

    Args:
        extras: ``[group, rank]``, non-negative integers: the load that one element adds to the rank.
        volumes: ``[group]``, the number of elements of each group.
        loads: ``[rank]``, integers: the load of each rank before it takes any element.

    Returns:
        Integers ``[group, rank]``; each row sums to the volume of the group.

    >>> # All ranks get the load 10: 6 + 1 * 4, 6 + 1 * 4, and 0 + 2 * 5.
    >>> level_shares(np.array([[1, 1, 2]]), np.array([13]), np.array([6, 6, 0])).tolist()
    [[4, 4, 5]]
    """
    cheapest = extras.min(axis=1)
    order = np.lexsort((-volumes, (extras == cheapest[:, None]).sum(axis=1)))
    low = max(int(loads.max()), -(-int(loads.sum() + (volumes * cheapest).sum()) // len(loads))) - 1
    high, step = low, 1
    shares: np.ndarray | None = None
    while shares is None:
        low, high, step = high, high + step, 2 * step
        shares = _deal_shares(extras, volumes, loads, order, high)
    while high - low > 1:
        middle = (low + high) // 2
        lower = _deal_shares(extras, volumes, loads, order, middle)
        if lower is None:
            low = middle
        else:
            high, shares = middle, lower
    return shares


def _deal_shares(
    extras: np.ndarray, volumes: np.ndarray, loads: np.ndarray, order: np.ndarray, limit: int
) -> np.ndarray | None:
    """Return shares that keep every load at most ``limit``, or None if dealing out fails.

    The groups are dealt out one after the other. A group takes its cheapest ranks first. Among ranks of equal cost,
    each element goes to the rank that has the most room at that time, so that their room is levelled
    (:func:`_level_room`). Dealing out fails if a group has elements for which no rank has room. Another order of the
    groups is not tried, even if it might succeed.

    Args:
        extras: ``[group, rank]``, the load that one element of the group adds to the rank.
        volumes: ``[group]``, the number of elements of each group.
        loads: ``[rank]``, the load of each rank before it takes any element.
        order: the numbers of the groups, in the order in which they are dealt out.
        limit: the largest load of a rank; at least the largest one of ``loads``.

    >>> problem = np.array([[1, 1, 2]]), np.array([13]), np.array([6, 6, 0]), np.array([0])
    >>> _deal_shares(*problem, limit=10).tolist(), _deal_shares(*problem, limit=9)  # 9 has room for 3 + 3 + 4 elements
    ([[4, 4, 5]], None)
    >>> # Room for 9 and for 5 elements is levelled to 4 and 4.
    >>> _deal_shares(np.array([[1, 1]]), np.array([6]), np.array([0, 4]), np.array([0]), limit=9).tolist()
    [[5, 1]]
    """
    shares, room = np.zeros(extras.shape, np.int64), limit - loads
    for group in order.tolist():
        remaining, costs = int(volumes[group]), extras[group]
        for cost in np.unique(costs).tolist():
            ranks = np.flatnonzero(costs == cost)
            dealt = _level_room(room[ranks] // cost if cost else np.full(len(ranks), remaining), remaining)
            shares[group, ranks] = dealt
            room[ranks] -= cost * dealt
            remaining -= int(dealt.sum())
            if not remaining:
                break
        if remaining:
            return None
    return shares


def _level_room(room: np.ndarray, count: int) -> np.ndarray:
    """Return the elements that each rank takes, so that the largest remaining room is smallest.

    Ranks with the most room take elements first. If the sum of all room is at most ``count``, each rank takes as much
    as it can, and elements may be left over.

    Args:
        room: the number of elements that each rank can take.
        count: the number of elements that the ranks take together.

    >>> _level_room(np.array([5, 3, 1]), 4).tolist()  # room 2, 2, 1 remains
    [3, 1, 0]
    """
    if room.sum() <= count:
        return room
    falling = -np.sort(-room)
    # If the k ranks with the most room take all elements, each of them has room `levels[k - 1]` afterwards.
    levels = (np.cumsum(falling) - count) // np.arange(1, len(room) + 1)
    level = int(levels.max())
    # Levels are rounded down, so leave one more on each rank first.
    taken: np.ndarray = np.maximum(room - level - 1, 0)
    one_more = np.flatnonzero(room > level)[: count - int(taken.sum())]
    taken[one_more] += 1
    return taken
