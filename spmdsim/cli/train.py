"""``spmdsim train``: train the tutorial's network on all ranks, beside one process.

:func:`main` starts the ranks, :func:`_train` is the loop over steps, and :func:`_run_step` is one step.
"""

from __future__ import annotations

import argparse
import json
import math
from contextlib import nullcontext
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

from spmdsim import printing
from spmdsim.cli import output
from spmdsim.cli.launch import create_world, start_ranks
from spmdsim.cli.main import (
    HOSTS,
    PICTURES,
    amount,
    choice,
    command,
    declare_flag,
    positive,
    value,
    varied,
    whole_number,
)
from spmdsim.cli.output import refuse_options
from spmdsim.errors import InputError, many
from spmdsim.tables import Table

if TYPE_CHECKING:
    from spmdsim.cases.network import Images, Network, StepwiseReference
    from spmdsim.worlds.base import World
    from spmdsim.worlds.trace import Trace

#: Element type of the comparison in one process, by the element type of the training.
WIDER = {"float32": "float64", "float64": "longdouble"}

EXAMPLES = """\
examples:
  mpirun -n 8 spmdsim train                         the simple strategies on handwritten digits
  spmdsim train -n 8 --strategies advanced --compare
  spmdsim train -n 8 --data ~/mnist --epochs 10     MNIST's IDX files (or DATA_PATH)
  spmdsim train -n 8 --steps 5 --perfetto step.json --machine machine.json   a whole step beside its prediction
"""


@command(
    "Train the 784-512-512-10 network of the operator-level parallel tutorial.",
    EXAMPLES,
    "-n",
    "--world",
    *HOSTS,
    choice(
        "--strategies",
        ("simple", "advanced", "data"),
        "strategies of the products: the tutorial's simple or advanced cuts, or data parallel (simple)",
        "simple",
    ),
    value("--data", "FOLDER", "folder with MNIST's IDX files"),
    value("--epochs", "", "passes through all samples (1)", positive, default=1),
    value("--steps", "", "number of steps after which the training stops", positive),
    value("--batch", "", "samples of a step, for all ranks together (32)", positive, default=32),
    value("--rate", "", "learning rate (0.01)", amount, default=1e-2),
    value(
        "--seed", "", "seed of the initial weights and of the order of samples (1)", whole_number, default=1
    ),
    choice("--dtype", ("float32", "float64"), "element type (float32)", "float32"),
    value("--every", "STEPS", "steps between printed losses (10)", positive, default=10),
    declare_flag("--compare", "also train in one process, and compare losses and weights"),
    value("--log-dir", "DIR", "one log per rank: DIR/worker_N.log"),
    *PICTURES,
    value(
        "--perfetto",
        "FILE",
        "write the last step, predicted and measured side by side, as a timeline for ui.perfetto.dev",
        output.writable,
    ),
    value("--machine", "NAME|FILE", "machine of the prediction (laptop)", default="laptop"),
    varied("--json", help="print losses and verdicts as JSON"),
)
def main(args: argparse.Namespace) -> int:
    """Train the network; return 0, or 1 if a comparison fails or the loss is no longer finite.

    Outside of an MPI job, start this command on ``-n`` ranks and return the exit code of the job. In a job, all
    ranks call it.

    Args:
        args: the command's arguments.

    Raises:
        InputError: If an option has no effect, or the machine, the images or the batch is wrong.
        WorldError: If MPI is needed and cannot be used.
    """
    from spmdsim.launch.logs import open_rank_log

    if args.perfetto is None:
        refuse_options(args, "--machine", "--perfetto, whose prediction has its prices")
    if (code := start_ranks(args, args.log_dir, partial(_prepare, args))) is not None:
        return code
    world = create_world(args)
    images, network = _prepare(args, world.size)
    with open_rank_log(args.log_dir, world.ranks[0]):
        return _train_and_report(args, world, images, network)


def _prepare(args: argparse.Namespace, rank_count: int) -> tuple[Images, Network]:
    """Return the images, and the network without weights, for ``rank_count`` ranks.

    With ``--perfetto`` the file of ``--machine`` is read too, so that its errors occur before the training.

    Args:
        args: the command's arguments: ``data``, ``batch``, ``strategies``, ``dtype``, ``perfetto`` and ``machine``.
        rank_count: number of ranks.

    Raises:
        InputError: If the machine or the images cannot be read, or a batch is larger than the number of images or
            smaller than the number of ranks.
    """
    from spmdsim.cases.network import Network, load_images

    if args.perfetto is not None:
        from spmdsim.cost import load_machine

        load_machine(args.machine)  # Only to raise errors of --machine before the training.
    images = load_images(args.data)
    if args.batch > images.count:
        raise InputError(
            f"a batch of {args.batch} is more than the {many(images.count, 'image')} of {images.name}"
        )
    return images, Network(args.strategies, rank_count, args.batch, args.dtype)


def _train_and_report(args: argparse.Namespace, world: World, images: Images, network: Network) -> int:
    """Create the weights from the seed, train the network, and print losses and verdicts.

    ``--json`` prints only the JSON document of :func:`_train`. If the loss becomes infinite or NaN, a remark about it
    follows on stderr. All ranks must call it.

    Args:
        args: the command's arguments.
        world: the ranks.
        images: the training data.
        network: the network; its weights are created in place.

    Returns:
        0, or 1 if a comparison fails or the loss is no longer finite.
    """
    import numpy as np

    network.materialise(world, args.seed)
    if not args.json:
        _print_setup(args, world, images, network)
    with np.errstate(all="ignore"):  # An overflow is reported once, by the loss.
        report = _train(args, world, images, network)
    if args.json:
        output.emit_json(report)
    if "diverged" in report:
        step = report["diverged"]
        lower = f"a lower --rate than {args.rate:g} may help"
        output.remark(f"the training diverged: the loss is {report['losses'][step]} at step {step}; {lower}")
    return 0 if report["ok"] else 1


def _print_setup(args: argparse.Namespace, world: World, images: Images, network: Network) -> None:
    """Print the data, and a table with the slices of the input and of each weight on each rank.

    A row has a rank, its coordinates in the mesh, and its slices. A line above the table has the number of images,
    the batch, the learning rate and the strategies. If the strategies had to differ from those of MindSpore's
    tutorial, a second line states how.

    Args:
        args: the command's arguments: ``batch``, ``rate`` and ``strategies``.
        world: the ranks.
        images: the training data.
        network: the network with its layouts.
    """
    from spmdsim.figures.layout_picture import box_text

    printing.say(
        f"{images.name}: {many(images.count, 'image')}; batch {args.batch}, rate {args.rate:g}, {args.strategies} strategies "
        f"on {many(world.size, 'rank')} ({type(world).__name__})"
    )
    if network.adaptation:
        printing.say(network.adaptation)
    mesh = network.input_layout.mesh
    shapes: dict[str, tuple[tuple[int, ...], Any]] = {"input x": ((args.batch, 784), network.input_layout)}
    shapes |= {f"{name}_weight": (p.shape, p.layout) for name, p in network.named_parameters()}
    rows = []
    for rank in range(world.size):
        slices = [box_text(layout.bounds(shape, rank)) for shape, layout in shapes.values()]
        rows.append([rank, mesh.coords(rank), *slices])
    title = f"device {mesh.axes} and slices"
    printing.say(Table(("rank", "device", *shapes), rows, title, right=(0,)), "")


def _train(args: argparse.Namespace, world: World, images: Images, network: Network) -> dict[str, Any]:
    """Train for ``--epochs``, or until ``--steps``; return losses and verdicts as plain values.

    The training stops early if the loss is not finite. In each epoch, images that do not fill a batch are left out. All
    ranks must call it.

    * Without ``--json``, the loss is printed at every ``--every``-th step of an epoch.
    * With ``--compare``, one process computes each step again, from the weights that the network has before the step.

    Args:
        args: the command's arguments.
        world: the ranks.
        images: the training data.
        network: the network; its weights are changed in place.

    Returns:
        A dict with these keys:

        * "ranks" and "strategies";
        * "losses": the loss of each step;
        * "ok": False if a verdict fails or the last loss is not finite;
        * "diverged": the number of the last step; only if its loss is not finite;
        * with ``--compare`` also "differences", one per loss, and the keys of :func:`_compare_with_reference`.
    """
    import numpy as np

    from spmdsim.cases.network import StepwiseReference
    from spmdsim.worlds.trace import Trace, record

    dtype = np.dtype(args.dtype)
    reference = StepwiseReference(world, _read_weights(network), args.rate) if args.compare else None
    losses: list[float] = []
    differences, trace = [], Trace()
    # Record every step, because the last step is known only when it is over.
    records_trace = args.perfetto is not None or output.wants_pictures(args)
    for epoch, i in product(range(args.epochs), range(images.count // args.batch)):
        if len(losses) == args.steps or _has_diverged(losses):
            break
        rows = slice(i * args.batch, (i + 1) * args.batch)
        weights = [] if reference is None else _read_weights(network)
        with record() if records_trace else nullcontext(trace) as trace:
            loss = _run_step(args, world, images, network, rows, dtype)
        losses.append(loss)
        comparison_text = ""
        if reference is not None:
            x = images.pixels.read((rows, slice(0, 784))).astype(dtype)
            reference_loss = reference.step(weights, x, images.labels.read((rows,)))
            differences.append(abs(loss - reference_loss))
            comparison_text = f", one process in {WIDER[args.dtype]} differs by {differences[-1]:.1e}"
        if (i % args.every == 0 or not math.isfinite(loss)) and not args.json:
            printing.say(f"epoch: {epoch} step: {i}, loss is {loss:.7f}{comparison_text}")
    _write_step(args, world, trace, losses)
    report = {"ranks": world.size, "strategies": args.strategies, "losses": losses, "ok": True}
    if reference is not None:
        report |= {"differences": differences, **_compare_with_reference(args, network, reference, losses)}
    if _has_diverged(losses):
        report |= {"diverged": len(losses) - 1, "ok": False}
    return report


def _has_diverged(losses: list[float]) -> bool:
    """Return True if the last loss is not finite; False without losses."""
    return bool(losses) and not math.isfinite(losses[-1])


def _read_weights(network: Network) -> list[Any]:
    """Return the global arrays of all parameters, in the network's order.

    All ranks must call it, because it gathers the shards.
    """
    return [parameter.value.full() for parameter in network.parameters()]


def _write_step(args: argparse.Namespace, world: World, trace: Trace, losses: list[float]) -> None:
    """Write the last training step as a timeline (``--perfetto``) and as pictures, if requested.

    The timeline has the measured step, and the same step as the cost model predicts it. The picture has the losses of
    all steps, and the measured step below. If ``--perfetto`` is set, all ranks must call it, because rank 0 gathers
    their records.

    Args:
        args: the command's arguments: ``perfetto``, ``machine``, ``svg`` and ``html``.
        world: the ranks.
        trace: the record of the step on this process's ranks.
        losses: the loss of each step.
    """
    from spmdsim.cost import load_machine

    if args.perfetto is not None:
        from spmdsim.figures.timelines import step_timeline

        machine = load_machine(args.machine)
        traces = world.gather_objects([trace]) if len(world.ranks) == 1 else [trace]
        if output.write_file(args.perfetto, json.dumps(step_timeline(traces, machine, repr(world)))):
            output.remark(f"wrote {args.perfetto}")
    if output.wants_pictures(args):
        from spmdsim.figures.timeline_figures import losses_figure

        title = f"step {len(losses) - 1} of the training on {many(world.size, 'rank')}"
        output.write_pictures(args, losses_figure(losses), trace, title=title)


def _run_step(
    args: argparse.Namespace, world: World, images: Images, network: Network, rows: slice, dtype: Any
) -> float:
    """Run one training step on the images of ``rows``; return its loss.

    The step computes gradients and updates the weights by SGD. Each rank reads only its slice of the images. The loss
    is the mean cross entropy before the update, equal on all ranks. All ranks must call it.

    Args:
        args: the command's arguments: ``batch`` and ``rate``.
        world: the ranks.
        images: the training data.
        network: the network; its weights and gradients are changed in place.
        rows: the images of the batch, ``batch`` of them.
        dtype: element type of the input.
    """
    from spmdsim import nn
    from spmdsim.arrays import Tensor, ops
    from spmdsim.core import Mesh

    def shift(batch_rows: slice) -> slice:
        """Return the rows of the images for rows of the batch."""
        return slice(rows.start + batch_rows.start, rows.start + batch_rows.stop)

    def read_pixels(index: tuple[slice, ...]) -> Any:
        return images.pixels.read((shift(index[0]), index[1]))

    def read_labels(index: tuple[slice, ...]) -> Any:
        return images.labels.read((shift(index[0]),))

    all_ranks = Mesh((world.size,), ("dp",))
    x = Tensor.from_global(read_pixels, network.input_layout, world, shape=(args.batch, 784), dtype=dtype)
    y = Tensor.from_global(read_labels, all_ranks("dp"), world, shape=(args.batch,), dtype="int64")
    network.zero_grad()
    loss = ops.cross_entropy(network(x), y)
    nn.backward(loss)
    nn.SGD(network.parameters(), args.rate).step()
    return float(loss.item())


def _compare_with_reference(
    args: argparse.Namespace, network: Network, reference: StepwiseReference, losses: list[float]
) -> dict[str, Any]:
    """Compare losses and weights with those of one process; return the verdicts.

    The limit of a difference follows from the rounding errors, which the reference measures. Without ``--json`` the
    verdicts are also printed. All ranks must call it.

    Args:
        args: the command's arguments: ``json``.
        network: the trained network.
        reference: the training in one process.
        losses: the loss of each step.

    Returns:
        A dict with these keys:

        * "max_loss_difference" and "tolerance": the largest difference of a loss, and its limit;
        * "ok": True if all verdicts hold;
        * "verdicts": a text for "losses", and one for each parameter by its name.
    """
    import numpy as np

    from spmdsim.arrays import Tensor
    from spmdsim.arrays.check import check
    from spmdsim.core import Mesh

    true_losses, weights = reference.measure_rounding()
    replicated = Mesh((reference.world.size,), ("dp",))(None)
    loss_tensor = Tensor.from_global(np.array(losses), replicated, reference.world)
    verdicts = {"losses": check(loss_tensor, true_losses)} | {
        name: check(parameter.value, weight)
        for (name, parameter), weight in zip(network.named_parameters(), weights)
    }
    ok = all(verdicts.values())
    if not args.json:
        printing.say(
            *[f"{name}: {verdict}" for name, verdict in verdicts.items()],
            "the run equals the single process" if ok else "the run DIFFERS from the single process",
        )
    return {
        "max_loss_difference": verdicts["losses"].max_error,
        "tolerance": verdicts["losses"].tolerance,
        "ok": ok,
        "verdicts": {name: str(verdict) for name, verdict in verdicts.items()},
    }
