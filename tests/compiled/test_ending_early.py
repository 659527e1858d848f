"""What a step leaves that ends early, refused or by Ctrl-C: parameters and what their optimiser knows of them agree, and nobody is told more."""

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
    """A network, its optimiser, a step, and what makes ids."""
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
    """Per parameter its value, how often it was updated, and its state."""
    return {
        name: [
            parameter.value.full().copy(),
            np.array(optimiser.counts.get(id(parameter), 0)),
            *[shards[0].copy() for shards in optimiser.state.get(id(parameter), [])],
        ]
        for name, parameter in net.named_parameters()
    }


def alike(one: list[np.ndarray], other: list[np.ndarray]) -> bool:
    return len(one) == len(other) and all(map(np.array_equal, one, other))


@pytest.mark.parametrize("recording", [False, True])
@pytest.mark.parametrize("kept", [False, True], ids=["sole", "kept"])
@pytest.mark.parametrize("kind, options", [SGD, MOMENTUM, ADAM], ids=["sgd", "momentum", "adam"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_what_is_refused_between_two_steps_leaves_the_first_one_done(
    ranks: int, kind: Any, options: dict[str, Any], kept: bool, recording: bool
) -> None:
    """As the function does, whoever has the old parameters at hand."""
    left = []
    for compiled in (False, True):
        net, optimiser, step, ids = trained(ranks, kind, **options)

        def two(first: Tensor, second: Tensor, step: Callable[..., Tensor] = step) -> Tensor:
            step(first)
            return step(second)

        run = compile(two) if compiled else two
        run(ids(1, 2), ids(3, 4))
        run(ids(1, 2), ids(3, 4))
        old = [parameter.value for parameter in net.parameters()] if kept else []
        with pytest.raises(InputError, match="id 99 is outside") as caught:
            if recording:
                with record():
                    run(ids(1, 2), ids(3, 99))
            else:
                run(ids(1, 2), ids(3, 99))
        said = "two ended after it had updated 3 of 3 parameters, with their optimisers' state"
        if compiled and sys.version_info >= (3, 11):
            assert caught.value.__notes__ == [said.replace("two", run.name)]
        del old
        left.append(state_of(net, optimiser))
        run(ids(1, 2), ids(3, 4))
        left.append(state_of(net, optimiser))
    for name, values in left[0].items():
        assert alike(values, left[2][name]), name
        assert alike(left[1][name], left[3][name]), name


class Interrupted(nn.Adam):
    """Whose updates end after so many."""

    updates = 1 << 30

    def new_value(self, value: np.ndarray, gradient: np.ndarray, state: list[np.ndarray]) -> np.ndarray:
        if self.updates == 0:
            raise KeyboardInterrupt
        self.updates -= 1
        return super().new_value(value, gradient, state)


@pytest.mark.parametrize("done", range(3))
@pytest.mark.parametrize("way", ["called", "compiled", "recorded"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_ctrl_c_among_updates_leaves_each_parameter_with_its_own_state(
    ranks: int, way: str, done: int
) -> None:
    def stopped(updates: int) -> tuple[dict[str, list[np.ndarray]], dict[str, list[np.ndarray]]]:
        net, optimiser, step, ids = trained(ranks, Interrupted, rate=0.1)
        run = step if way == "called" else compile(step)
        run(ids(1, 2))
        run(ids(3, 4))
        before, optimiser.updates = state_of(net, optimiser), updates
        try:
            if way == "recorded":
                with record():
                    run(ids(5, 6))
            else:
                run(ids(5, 6))
        except KeyboardInterrupt:
            assert updates < 3
        return before, state_of(net, optimiser)

    before, after = stopped(1 << 30)
    _, now = stopped(done)
    old = [name for name in now if alike(now[name], before[name])]
    new = [name for name in now if alike(now[name], after[name])]
    assert not {*old} & {*new} and len(old) + len(new) == 3, (old, new)
    assert len(new) == done


class Stopped(LockStep):
    """A world that ends with Ctrl-C at one of its steps."""

    left = 1 << 30

    def run(self, step: Any, shards: Any) -> Any:
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt
        return super().run(step, shards)


def split_run(
    way: str, kind: Any, options: dict[str, Any], steps: int, left: int
) -> list[dict[str, list[np.ndarray]]]:
    """States after each of some steps with a split state, then that after so many collectives of as many steps in one call."""
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
    if way == "called":
        run: Callable[..., None] = step
    else:
        run = compile(step)
    run(*[ids] * steps)
    run(*[ids] * steps)
    states.append(state_of(net, optimiser))
    if left < 0:
        for _ in range(steps):
            step(ids)
            states.append(state_of(net, optimiser))
        return states
    world.left = left
    with pytest.raises(KeyboardInterrupt):
        if way == "recorded":
            with record():
                run(*[ids] * steps)
        else:
            run(*[ids] * steps)
    world.left = 1 << 30
    return [state_of(net, optimiser)]


@pytest.mark.parametrize("kind, options", [MOMENTUM, ADAM], ids=["momentum", "adam"])
@pytest.mark.parametrize("way", ["called", "compiled", "recorded"])
@pytest.mark.parametrize("steps", [1, 2])
def test_ctrl_c_between_an_update_and_its_gather_leaves_parameters_with_their_own_state(
    way: str, steps: int, kind: Any, options: dict[str, Any]
) -> None:
    """A state that is split further goes on with the value that all ranks have, or not at all."""
    states = split_run(way, kind, options, steps, -1)
    seen: set[int] = set()
    for left in range(4 * steps):
        (now,) = split_run(way, kind, options, steps, left)
        for name, values in now.items():
            at = [k for k, state in enumerate(states) if alike(values, state[name])]
            assert len(at) == 1, (left, name)
            seen.update(at)
    assert seen >= {*range(steps)}


@pytest.fixture
def world() -> Iterator[LockStep]:
    world = LockStep(2)
    world.provenance = Provenance()  # as worlds whose ranks compare what they call
    yield world
    assert not (world.call_provenance or programs or recorder.open_traces or recorder.under_way)


def stops(*_: object, **__: object) -> Any:
    raise KeyboardInterrupt


def test_what_an_error_left_under_way_is_not_in_the_next_recording(world: LockStep) -> None:
    src, dst = Mesh((2,), ("x",))("x"), Layout.replicated(Mesh((2,), ("x",)), 1)
    (step,) = plan(src, dst, (4,), "float64").steps
    with pytest.raises(ZeroDivisionError), record():
        world.post(step, [np.zeros(2), np.ones(2)])
        raise ZeroDivisionError
    with record() as trace:
        pass
    assert not trace.events


def test_a_function_that_is_refused_is_told_of_nothing_more(world: LockStep) -> None:
    tensor = Tensor.ones((4,), layout=Mesh((2,), ("x",))("x"), world=world)
    with pytest.raises(SpmdError):
        compile(lambda x: x.full())(tensor)
