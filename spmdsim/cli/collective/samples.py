"""The measurements to which ``spmdsim collective calibrate`` fits a machine.

:func:`round_samples` times messages between two ranks, :func:`local_samples` reductions and copies, :func:`native_table`
the MPI library's own collectives, and :func:`operator_rates` operators. :func:`check_predictions` compares the fitted
machine with whole collectives. A sample is a pair of bytes and seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import ceil, inf
from statistics import median
from typing import Any

import numpy as np

from spmdsim.arrays import Context, Op, ops
from spmdsim.cli.collective.measure import (
    MeasuredCase,
    bind_emulated_call,
    bind_native_call,
    fit_case,
    measure_call,
)
from spmdsim.cli.collective.time_budget import MOST_SECONDS, VISITS, TimeBudget
from spmdsim.collectives import schedule_of
from spmdsim.collectives.execution import execute, run_rounds
from spmdsim.collectives.rank_program import INPUT, OUTPUT, WORK, Action, ArraySpan, RankProgram, RankStep
from spmdsim.core import ELEMENTS, FUNCTIONS, PASSES, Mesh, Strategy
from spmdsim.cost import Machine, Measurement, NodeMap, Rate
from spmdsim.cost.calibration import CalibrationCheck, Sample
from spmdsim.cost.pricing import emulated_seconds
from spmdsim.cost.roofline import forward_work, gradient_work

#: Collectives whose native calls are measured for the machine file.
NATIVE = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast")
#: Collectives on which predictions are checked. Some send data that they reduced before, some do not.
CHECKED = (
    ("all_reduce", "ring"),
    ("all_reduce", "linear"),
    ("all_gather", "ring"),
    ("reduce_scatter", "ring"),
    ("broadcast", "binomial"),
)
#: Least number of sizes, because lines need three sizes besides 0.
LEAST_SIZES = 4
#: Reductions or copies in one run, so that the cost of a call does not hide the cost of a short action.
ACTIONS = 8
#: Rounds of each kind in one run, so that the cost of a call does not hide the cost of a short round.
ROUNDS = 4
#: Number of float32 elements of all rounds in one run, at least one round: a round of 64 KiB hides the cost of a call.
ROUND_ELEMENTS = 1 << 14


def sample_sizes(largest: int) -> list[int]:
    """Return 0, and two sizes per doubling from 64 bytes to ``largest``.

    The sizes are 64 times the powers of the square root of 2, each rounded down to a multiple of 8: 90.5 becomes 88,
    and 181.0 becomes 176. If ``largest`` is less than 64, the only size is 0.

    >>> sample_sizes(256)
    [0, 64, 88, 128, 176, 256]
    """
    sizes, size = [0], 64.0
    while size <= largest * 1.001:
        sizes.append(int(size) // 8 * 8)
        size *= 2**0.5
    return sizes


def loops(nbytes: int) -> tuple[int, int]:
    """Return the number of timed loops, and the number of calls per loop.

    A call moves ``nbytes`` bytes. There are 5 to 60 loops of 1 to 8 calls, fewer for more bytes. Loops are short, so
    that some of them run undisturbed on a busy machine. The numbers depend on ``nbytes`` alone, so they are equal on
    all ranks.

    >>> loops(1024), loops(4 << 20)
    ((60, 8), (24, 1))
    """
    calls = max(1, min(8, (256 << 10) // max(nbytes, 1)))
    return max(5, min(60, (96 << 20) // max(nbytes * calls, 1))), calls


def find_pairs(nodes: NodeMap) -> tuple[tuple[int, int] | None, tuple[int, int] | None]:
    """Return a pair of ranks on one node, and a pair of ranks on two nodes.

    The first pair has the lowest ranks of the first node with several ranks, the second one rank 0 and the lowest rank
    on another node. The first pair is None if each node has one rank, the second one if there is one node.

    >>> find_pairs(NodeMap.of("a,b,a,b", 4)), find_pairs(NodeMap.of("a,b:2", 3)), find_pairs(NodeMap.of("a:2", 2))
    (((0, 2), (0, 1)), ((1, 2), (0, 1)), ((0, 1), None))
    """
    several = np.flatnonzero(nodes.sizes > 1)
    first, second = (nodes.ranks_of(int(several[0])) if len(several) else (0, 0))[:2]
    return (first, second) if len(several) else None, (0, nodes.ranks_of(1)[0]) if nodes.count > 1 else None


@dataclass(frozen=True)
class RoundSamples:
    """Times of rounds of an emulated algorithm, as bytes and seconds.

    Attributes:
        still: messages of data that were not written since they were last sent.
        fresh: messages of data that were just reduced, into memory that the receiver has not read.
        reductions: additional time of a round if arriving data are reduced.
    """

    still: list[Sample]
    fresh: list[Sample]
    reductions: list[Sample]


def round_samples(
    budget: TimeBudget, stage: str, pair: tuple[int, int], largest: int, local_reductions: list[Sample]
) -> RoundSamples:
    """Time rounds between two ranks; return the costs of emulated messages and reductions.

    What a message costs depends on the caches, and so on the rounds before it. So three kinds of rounds are timed as a
    whole, see :func:`_round_seconds`: without reduction (a), with a reduction (b), and b followed by a message of the
    sum (c). For each message size the samples are

    * a: a message of input, which no round changes ("still" data);
    * c - b, but at least a: a message of a sum that was just computed ("fresh" data);
    * b - a, but at least a reduction without messages on all ranks at once: a reduction.

    For example, with a = 10 us, b = 13 us and c = 25 us, the samples are 10 us, 12 us and 3 us (or the time of a
    reduction without messages, if it is longer).

    The lower limits are needed because noise can make a difference too small. Of several passes the least time counts,
    of the two ranks the slower one.

    Args:
        budget: communicator of all ranks, time limit and progress.
        stage: name of the measurements in the budget.
        pair: the two ranks that exchange messages. All ranks must call the function, and the others wait.
        largest: largest message in bytes. For the sizes see :func:`sample_sizes`.
        local_reductions: reductions without messages; sizes without them have no sample of a reduction.

    Returns:
        The samples in seconds, equal on all ranks.
    """
    comm, local_seconds = budget.comm, dict(local_reductions)
    pair_comm = comm.Split(0 if comm.Get_rank() in pair else 1, comm.Get_rank())
    overhead = call_seconds(comm)
    least_seconds: dict[int, tuple[float, ...]] = {}
    for nbytes, most in budget.measured_sizes(stage, sample_sizes(largest), 3, LEAST_SIZES):
        seconds = (0.0, 0.0, 0.0)
        if comm.Get_rank() in pair:
            seconds = _round_seconds(pair_comm, nbytes // 4, overhead, most)
        slowest_rank_seconds = map(max, zip(*comm.allgather(seconds)))
        least_seconds[nbytes] = tuple(map(min, least_seconds.get(nbytes, (inf,) * 3), slowest_rank_seconds))
    pair_comm.Free()
    samples = RoundSamples([], [], [])
    for nbytes, (sending, reducing, both) in sorted(least_seconds.items()):
        samples.still.append((nbytes, sending))
        samples.fresh.append((nbytes, max(both - reducing, sending)))
        if nbytes in local_seconds:
            samples.reductions.append((nbytes, max(reducing - sending, local_seconds[nbytes])))
    return samples


def _round_seconds(comm: Any, count: int, overhead: float, most: float) -> tuple[float, float, float]:
    """Time three kinds of rounds in which two ranks exchange ``count`` float32 elements.

    Both ranks must call it. A program repeats a kind of rounds, up to :data:`ROUNDS` times and less often for long
    messages. A program counts as at least 1e-9 seconds.

    Args:
        comm: an mpi4py communicator of two ranks.
        count: number of elements that each rank sends.
        overhead: seconds of a call (:func:`call_seconds`), which are subtracted.
        most: most seconds of each kind after its first calls.

    Returns:
        The seconds of three kinds:

        * a round in which each rank sends its input and receives the other's;
        * a round that also adds the received data to the input;
        * two rounds: the second kind, and one that sends the sum.
    """
    from spmdsim.worlds.mpi.messages import Messages

    partner = 1 - comm.Get_rank()
    inputs, received = ArraySpan(INPUT, 0, count), ArraySpan(WORK, 0, count)
    first, second = ArraySpan(OUTPUT, 0, count), ArraySpan(OUTPUT, count, 2 * count)
    sending = RankStep((), ((partner, first),), ((partner, inputs),), ())
    reducing = RankStep((), ((partner, received),), ((partner, inputs),), (Action(first, received, inputs),))
    sending_sum = RankStep((), ((partner, second),), ((partner, first),), ())
    source, result, work = (np.ones(size, np.float32) for size in (count, 2 * count, count))
    transport, rounds = Messages(comm), max(1, min(ROUNDS, ROUND_ELEMENTS // max(count, 1)))

    def seconds_of(*steps: RankStep) -> float:
        """Return the seconds of a round that runs these steps, without the cost of a call."""
        program = RankProgram(steps * rounds, (), count, 2 * count, count, False, 0)
        run = partial(execute, program, transport, source, result, work=work)
        # The ranks start each loop together: if they drifted, one rank would find the other's data waiting.
        repeats, calls = loops(4 * count * rounds * len(steps))
        batches = ceil(repeats / VISITS)
        seconds = measure_call(run, comm, 2, batches * calls, batches, min, most)
        return max(seconds - overhead, 1e-9) / rounds

    return seconds_of(sending), seconds_of(reducing), seconds_of(reducing, sending_sum)


def local_samples(budget: TimeBudget, largest: int) -> tuple[list[Sample], list[Sample]]:
    """Time reductions and copies as emulated algorithms run them; return the samples of both.

    A sample is ``(bytes, seconds)``. Its time is the median over ranks, and equal on all of them; of several passes the
    least counts. All ranks must call it and run the work at once, because they share the memory.

    Args:
        budget: communicator of all ranks, time limit and progress.
        largest: largest size in bytes. For the sizes see :func:`sample_sizes`; 0 is left out.

    Returns:
        The samples of sums of float32 elements, and those of copies.
    """
    comm = budget.comm
    least_seconds: dict[int, tuple[float, ...]] = {}
    for nbytes, most in budget.measured_sizes(
        "reductions and copies", sample_sizes(largest)[1:], 2, LEAST_SIZES
    ):
        count = nbytes // 4
        arrays = [np.ones(count, np.float32) for _ in range(3)]
        result, source, work = (ArraySpan(which, 0, count) for which in (OUTPUT, INPUT, WORK))
        comm.Barrier()
        seconds = []
        for action in (Action(result, source, work), Action(result, source)):
            program = RankProgram((), (action,) * ACTIONS, count, count, count, False, 0)
            fastest = fastest_seconds(partial(_run_locally, program, arrays), nbytes * ACTIONS, most)
            seconds.append(median(comm.allgather(fastest / ACTIONS)))
        least_seconds[nbytes] = tuple(map(min, least_seconds.get(nbytes, (inf, inf)), seconds))
    rows = sorted(least_seconds.items())
    return [(size, seconds[0]) for size, seconds in rows], [(size, seconds[1]) for size, seconds in rows]


def _run_locally(program: RankProgram, arrays: list[np.ndarray]) -> None:
    """Run a program without messages; ``arrays`` are its result, source and work arrays."""
    result, source, work = arrays
    list(run_rounds(program, source, result, np.add, work))


def call_seconds(comm: Any) -> float:
    """Return the seconds that an emulated collective takes on this rank without any messages.

    This fixed time is spent mostly on binding arrays to the program. The fastest of several calls counts. No
    message is sent. ``comm`` is an mpi4py communicator that includes this rank.
    """
    from spmdsim.worlds.mpi.messages import Messages

    transport = Messages(comm)
    no_rounds, empty = RankProgram((), (), 0, 0, 0, False, 0), np.empty(0, np.float32)
    return fastest_seconds(lambda: execute(no_rounds, transport, empty, empty), 0)


def flops_per_second(most: float) -> float:
    """Return the flop/s of one rank in a product of two 512 x 512 float32 matrices.

    ``most`` is the most seconds of the measurement after the first product.
    """
    n = 512
    a, b, c = (np.ones((n, n), np.float32) for _ in range(3))
    return 2 * n**3 / fastest_seconds(lambda: np.matmul(a, b, out=c), 4 << 20, most)


def fastest_seconds(call: Callable[[], object], nbytes: int, most: float = MOST_SECONDS) -> float:
    """Return the seconds of a call in the fastest of several loops, at least 1e-9.

    The minimum is used because other work on the machine only adds time. One call before the loops is not timed. After
    the first loop, no loop starts if ``most`` seconds are over.

    Args:
        call: the call, without arguments.
        nbytes: bytes that a call moves; they determine the numbers of loops and of calls per loop, see :func:`loops`.
        most: most seconds of the loops (0.3).
    """
    repeats, calls = loops(nbytes)
    call()  # warms caches and connections up
    least_seconds, end = inf, time.perf_counter() + most
    for _ in range(repeats):
        if least_seconds < inf and time.perf_counter() > end:
            break
        start = time.perf_counter()
        for _ in range(calls):
            call()
        least_seconds = min(least_seconds, (time.perf_counter() - start) / calls)
    return max(least_seconds, 1e-9)


def native_table(budget: TimeBudget, largest: int) -> list[Measurement]:
    """Time the MPI library's own collectives, those of :data:`NATIVE`, over all ranks.

    Sizes double from 8 bytes on: with ``largest`` 40 they are 8, 16 and 32, each rounded to equal blocks of float32
    elements. All ranks must call it.

    Args:
        budget: communicator of all ranks, time limit and progress.
        largest: largest message in bytes; below 8 there are no sizes.

    Returns:
        One measurement per collective and size; its time is the least of all passes. The list is equal on all ranks.
    """
    # Small sizes may round to the same case; the table keeps one row per size.
    least_seconds: dict[tuple[str, int], float] = {}
    sizes = [8 << k for k in range(max(largest // 8, 1).bit_length()) if 8 << k <= largest]
    for nbytes, most in budget.measured_sizes("the library's own calls", sizes, len(NATIVE)):
        for name in NATIVE:
            case = fit_case(name, budget.comm, nbytes, np.dtype(np.float32))
            seconds = _native_seconds(case, budget.comm, most)
            least_seconds[name, case.nbytes] = min(seconds, least_seconds.get((name, case.nbytes), inf))
    ranks = budget.comm.Get_size()
    return [
        Measurement(name, "native", ranks, nbytes, call_time)
        for (name, nbytes), call_time in sorted(least_seconds.items())
    ]


def _native_seconds(case: MeasuredCase, comm: Any, most: float) -> float:
    """Return the seconds of MPI's own call in the fastest of 4 to 10 batches of 4 calls.

    ``most`` is the most seconds of all batches.
    """
    call = bind_native_call(case, comm, np.zeros(case.output_count, case.dtype))
    batches = max(4, min(10, (64 << 20) // max(case.nbytes, 1)))
    return measure_call(call, comm, 2, 4 * batches, batches, min, most)


def check_predictions(budget: TimeBudget, largest: int, machine: Machine) -> list[CalibrationCheck]:
    """Measure whole collectives; return the predicted and the measured time of each call.

    The calls are the algorithms of :data:`CHECKED`, and the library's own calls of :data:`NATIVE`. An algorithm is
    predicted by the cost model. A library call is predicted as the time that was measured for the machine file.

    Each measured time is the median over batches. The batches have 5 to 20 calls together, fewer for larger messages or
    if there is no time for them. Each size is measured in several passes. Each pass gives a result of its own, because
    changes from minute to minute are part of a prediction's uncertainty. All ranks must call it.

    Args:
        budget: communicator of all ranks, time limit and progress.
        largest: largest message in bytes; sizes are 64 bytes, 256 bytes and so on.
        machine: the machine that predicts. A library call is checked only if the machine has measured times of it for
            this number of ranks.
    """
    rows: list[CalibrationCheck] = []
    comm, sizes = budget.comm, [size for size in (64 << 2 * k for k in range(20)) if size <= largest]

    def check(
        name: str, case: MeasuredCase, predicted: float, call: Callable[[], object], most: float
    ) -> None:
        """Measure a call for ``most`` seconds, and append its predicted and its measured time to the rows."""
        iterations = max(5, min(20, (32 << 20) // case.nbytes))
        seconds = measure_call(call, comm, 2, iterations, most=most)
        rows.append(CalibrationCheck(name, case.nbytes, predicted, seconds))

    for nbytes, most in budget.measured_sizes("whole collectives", sizes, len(CHECKED) + len(NATIVE)):
        for collective, algorithm in CHECKED:
            schedule = schedule_of(collective, algorithm, comm.Get_size())
            case = fit_case(collective, comm, nbytes, np.dtype(np.float32))
            predicted = emulated_seconds(schedule, machine, case.count, case.dtype.itemsize)
            call = bind_emulated_call(schedule, case, comm, np.zeros(case.output_count, case.dtype))
            check(schedule.name, case, predicted, call, most)
        for collective in NATIVE:
            case = fit_case(collective, comm, nbytes, np.dtype(np.float32))
            measured = machine.measured_seconds(collective, "native", case.size, case.nbytes)
            if measured is not None:
                call = bind_native_call(case, comm, np.zeros(case.output_count, case.dtype))
                check(f"{collective} native", case, measured, call, most)
    return rows


# ---------------------------------------------------------------- operators


def operator_rates(seconds: float) -> tuple[Rate, ...]:
    """Measure each class of operators on this rank; return its seconds per flop or per byte.

    All measurements together take about ``seconds``, but each operator runs twice at least.

    Operators run forward and backward on arrays of 512 x 1024 float32 elements. Results and temporaries are new arrays
    as in programs, which cost more than the arithmetic of most operators.

    Returns:
        A rate per class, the median over its operators; its other number is 0:

        * element-wise operators such as relu, and lookups: seconds per byte;
        * functions such as exp, and operators with several passes such as softmax: seconds per flop.
    """
    x, row = np.linspace(0.1, 1, 1 << 19, dtype=np.float32).reshape(512, 1024), np.ones(1024, np.float32)
    ids, table = np.arange(512), np.ones((2048, 1024), np.float32)
    samples: dict[str, list[Any]] = {
        ELEMENTS: [(ops.relu, (x,), {}), (ops.multiply, (x, x), {})],
        FUNCTIONS: [(ops.exp, (x,), {}), (ops.log, (x,), {}), (ops.tanh, (x,), {})],
        PASSES: [
            (ops.gelu, (x,), {}),
            (ops.softmax, (x,), {"dim": -1}),
            (ops.cross_entropy, (x, ids), {}),
            (ops.layer_norm, (x, row, row), {"epsilon": 1e-5}),
        ],
        "lookup": [(ops.embedding, (5 * ids % 2048, table), {})],
    }
    rates, count = [], sum(map(len, samples.values()))
    most = min(MOST_SECONDS, seconds / (2 * count))  # The other half is for the first calls.
    for kind, rows in samples.items():
        timed = [_operator_rate(function.op, operands, params, most) for function, operands, params in rows]
        per_flop, per_byte = (median(column) for column in zip(*timed))
        rates.append(Rate(kind, per_flop, 0.0) if kind in (FUNCTIONS, PASSES) else Rate(kind, 0.0, per_byte))
    return tuple(rates)


def _operator_rate(
    op: Op, operands: tuple[np.ndarray, ...], params: dict[str, Any], most: float
) -> tuple[float, float]:
    """Return the seconds per flop and per byte of an operator that runs forward and backward.

    The time of :func:`fastest_seconds` is divided by the flops, and by the bytes, that the roofline model counts for
    both directions: 1 ms, 1e6 flops and 4e6 bytes give 1e-9 and 2.5e-10. An operator without gradient runs forward
    only, but the work of its gradient is counted.

    Args:
        op: the operator.
        operands: its operands, whole arrays that no axis splits.
        params: its keyword arguments.
        most: most seconds of the measurement after the first call.
    """
    bound = op.bind([x.shape for x in operands], params)
    unsplit = Strategy.of(Mesh((1,), ("p",)), {})
    context = (Context(bound, unsplit, 0),) if op.contextual else ()
    output = op.forward(*context, *operands, **params)

    def run() -> None:
        result = op.forward(*context, *operands, **params)
        for gradient in op.vjp(*context, output, operands, result, **params) if op.vjp else ():
            if callable(gradient):
                gradient()

    sizes = [x.itemsize for x in operands]
    works = [work(bound, unsplit, sizes) for work in (forward_work, gradient_work)]
    nbytes = sum(work.nbytes for work in works)
    seconds = fastest_seconds(run, int(nbytes), most)
    return seconds / sum(work.flops for work in works), seconds / nbytes
