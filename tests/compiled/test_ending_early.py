"""Parameters agree with their optimiser state after an error or Ctrl-C in a step, and no recording stays open."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from spmdsim import LockStep, Mesh, Tensor, compile, nn, ops, record
from spmdsim.core import Layout
from spmdsim.errors import InputError, SpmdError
from spmdsim.redistribution import plan
from spmdsim.worlds.provenance import Provenance
from spmdsim.worlds.trace import recorder
from spmdsim.worlds.trace.recorder import programs

SGD = nn.SGD, {"rate": 0.1}
MOMENTUM = nn.SGD, {"rate": 0.1, "momentum": 0.9}
ADAM = nn.Adam, {"rate": 0.1}


class Net(nn.Module):
    def __init__(self, mesh: Mesh) -> None:
        self.table = nn.Parameter((8, 4), mesh(None, None), nn.Normal(1.0), np.float32)
        self.linear = nn.Linear(4, 4, mesh(None, None))

    def forward(self, ids: Tensor) -> Tensor:
        return ops.sum(self.linear(ops.embedding(ids, self.table.value)) ** 2)


def trained(
    ranks: int, kind: Any, **options: Any
) -> tuple[Net, nn.Optimiser, Callable[..., Tensor], Callable[..., Tensor]]:
    """Return a network, its optimiser, a training step and a function that builds a tensor of ids."""
    world, mesh = LockStep(ranks), Mesh((ranks,), ("dp",))
    net = Net(mesh).materialise(world, 0)
    optimiser = kind(net.parameters(), **options)

    def step(ids: Tensor) -> Tensor:
        net.zero_grad()
        loss = net(ids)
        nn.backward(loss)
        optimiser.step()
        return loss

    return net, optimiser, step, lambda *ids: Tensor.from_global(np.array(ids), mesh("dp"), world)


def state_of(net: Net, optimiser: nn.Optimiser) -> dict[str, list[np.ndarray]]:
    """Return the value, the update count and the optimiser state of each parameter, by parameter name."""
    return {
        name: [
            parameter.value.full().copy(),
            np.array(optimiser.counts.get(id(parameter), 0)),
            *[shards[0].copy() for shards in optimiser.state.get(id(parameter), [])],
        ]
        for name, parameter in net.named_parameters()
    }


def equal_arrays(one: list[np.ndarray], other: list[np.ndarray]) -> bool:
    return len(one) == len(other) and all(map(np.array_equal, one, other))


@pytest.mark.parametrize("recording", [False, True])
@pytest.mark.parametrize("referenced", [False, True], ids=["unreferenced", "referenced"])
@pytest.mark.parametrize("kind, options", [SGD, MOMENTUM, ADAM], ids=["sgd", "momentum", "adam"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_an_error_in_the_second_step_keeps_the_first_steps_updates(
    ranks: int, kind: Any, options: dict[str, Any], referenced: bool, recording: bool
) -> None:
    """The state equals the state after the eager function, also if the caller references old values."""
    states = []
    for compiled in (False, True):
        net, optimiser, step, ids = trained(ranks, kind, **options)

        def two(first: Tensor, second: Tensor, step: Callable[..., Tensor] = step) -> Tensor:
            step(first)
            return step(second)

        run = compile(two) if compiled else two
        run(ids(1, 2), ids(3, 4))
        run(ids(1, 2), ids(3, 4))
        old = [parameter.value for parameter in net.parameters()] if referenced else []
        with pytest.raises(InputError, match="id 99 is outside") as caught:
            if recording:
                with record():
                    run(ids(1, 2), ids(3, 99))
            else:
                run(ids(1, 2), ids(3, 99))
        note = "two ended after it had updated 3 of 3 parameters, with their optimisers' state"
        if compiled and sys.version_info >= (3, 11):
            assert caught.value.__notes__ == [note.replace("two", run.name)]
        del old
        states.append(state_of(net, optimiser))
        run(ids(1, 2), ids(3, 4))
        states.append(state_of(net, optimiser))
    for name, values in states[0].items():
        assert equal_arrays(values, states[2][name]), name
        assert equal_arrays(states[1][name], states[3][name]), name


class Interrupted(nn.Adam):
    """An optimiser that raises KeyboardInterrupt after `updates` updates."""

    updates = 1 << 30

    def new_value(self, value: np.ndarray, gradient: np.ndarray, state: list[np.ndarray]) -> np.ndarray:
        if self.updates == 0:
            raise KeyboardInterrupt
        self.updates -= 1
        return super().new_value(value, gradient, state)


@pytest.mark.parametrize("finished", range(3))
@pytest.mark.parametrize("mode", ["called", "compiled", "recorded"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_ctrl_c_among_updates_leaves_each_parameter_with_its_own_state(
    ranks: int, mode: str, finished: int
) -> None:
    def interrupt_after(updates: int) -> tuple[dict[str, list[np.ndarray]], dict[str, list[np.ndarray]]]:
        """Return the states before and after a third step that raises after `updates` updates."""

        net, optimiser, step, ids = trained(ranks, Interrupted, rate=0.1)
        run = step if mode == "called" else compile(step)
        run(ids(1, 2))
        run(ids(3, 4))
        before, optimiser.updates = state_of(net, optimiser), updates
        try:
            if mode == "recorded":
                with record():
                    run(ids(5, 6))
            else:
                run(ids(5, 6))
        except KeyboardInterrupt:
            assert updates < 3
        return before, state_of(net, optimiser)

    before, after = interrupt_after(1 << 30)
    _, interrupted = interrupt_after(finished)
    old = [name for name in interrupted if equal_arrays(interrupted[name], before[name])]
    new = [name for name in interrupted if equal_arrays(interrupted[name], after[name])]
    assert not {*old} & {*new} and len(old) + len(new) == 3, (old, new)
    assert len(new) == finished


class Stopped(LockStep):
    """A world that raises KeyboardInterrupt after `remaining` steps."""

    remaining = 1 << 30

    def run(self, step: Any, shards: Any) -> Any:
        self.remaining -= 1
        if self.remaining < 0:
            raise KeyboardInterrupt
        return super().run(step, shards)


def split_run(
    mode: str, kind: Any, options: dict[str, Any], steps: int, remaining: int
) -> list[dict[str, list[np.ndarray]]]:
    """Train with a sharded optimiser state and return states of the network.

    Args:
        mode: "called", "compiled" or "recorded".
        steps: the number of optimiser steps in one call.
        remaining: the number of collectives before Ctrl-C. If it is negative, nothing interrupts the run.

    Returns:
        The state after the interrupt, or the states before and after each step of an uninterrupted call.
    """
    world, mesh = Stopped(2), Mesh((2,), ("dp",))
    net = Net(mesh).materialise(world, 0)
    optimiser = kind(net.parameters(), state_layout=nn.sharded_over("dp"), **options)

    def step(*ids: Tensor) -> None:
        for one in ids:
            net.zero_grad()
            nn.backward(net(one))
            optimiser.step()

    ids = Tensor.from_global(np.array([1, 2]), mesh("dp"), world)
    states = []
    if mode == "called":
        run: Callable[..., None] = step
    else:
        run = compile(step)
    run(*[ids] * steps)
    run(*[ids] * steps)
    states.append(state_of(net, optimiser))
    if remaining < 0:
        for _ in range(steps):
            step(ids)
            states.append(state_of(net, optimiser))
        return states
    world.remaining = remaining
    with pytest.raises(KeyboardInterrupt):
        if mode == "recorded":
            with record():
                run(*[ids] * steps)
        else:
            run(*[ids] * steps)
    world.remaining = 1 << 30
    return [state_of(net, optimiser)]


@pytest.mark.parametrize("kind, options", [MOMENTUM, ADAM], ids=["momentum", "adam"])
@pytest.mark.parametrize("mode", ["called", "compiled", "recorded"])
@pytest.mark.parametrize("steps", [1, 2])
def test_ctrl_c_between_an_update_and_its_gather_leaves_parameters_with_their_own_state(
    mode: str, steps: int, kind: Any, options: dict[str, Any]
) -> None:
    """Value and sharded state of each parameter belong to one step, whichever collective is interrupted."""
    states = split_run(mode, kind, options, steps, -1)
    reached_steps: set[int] = set()
    for remaining in range(4 * steps):
        (state_now,) = split_run(mode, kind, options, steps, remaining)
        for name, values in state_now.items():
            at = [k for k, state in enumerate(states) if equal_arrays(values, state[name])]
            assert len(at) == 1, (remaining, name)
            reached_steps.update(at)
    assert reached_steps >= {*range(steps)}


@pytest.fixture
def world() -> Iterator[LockStep]:
    world = LockStep(2)
    world.provenance = Provenance()  # Worlds whose ranks compare their calls have it too.
    yield world
    assert not (world.call_provenance or programs or recorder.open_traces or recorder.under_way)


def test_a_step_posted_before_an_error_is_not_in_the_next_recording(world: LockStep) -> None:
    src, dst = Mesh((2,), ("x",))("x"), Layout.replicated(Mesh((2,), ("x",)), 1)
    (step,) = plan(src, dst, (4,), "float64").steps
    with pytest.raises(ZeroDivisionError), record():
        world.post(step, [np.zeros(2), np.ones(2)])
        raise ZeroDivisionError
    with record() as trace:
        pass
    assert not trace.events


def test_a_refused_function_leaves_no_open_recording(world: LockStep) -> None:
    tensor = Tensor.ones((4,), layout=Mesh((2,), ("x",))("x"), world=world)
    with pytest.raises(SpmdError):
        compile(lambda x: x.full())(tensor)
