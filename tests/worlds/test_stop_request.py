"""A request to stop is set by a signal or a rank, all ranks agree on it, and earlier handlers come back."""

from __future__ import annotations

import signal
import threading

import pytest

from spmdsim import LockStep, StopRequest
from spmdsim.errors import InputError, UsageTypeError, WorldError


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_sets_the_request_and_later_handlers_are_the_earlier_ones(number):
    before = signal.getsignal(number)
    with StopRequest(world=LockStep(4)) as stop:
        answers = [stop.is_set()]
        assert repr(stop) == "StopRequest(SIGTERM, SIGUSR1; not set)"
        signal.raise_signal(number)
        signal.raise_signal(number)
        answers += [stop.is_set(), stop.is_set()]
    assert answers == [False, True, True]
    assert signal.getsignal(number) == before
    assert stop.is_set() and repr(stop) == "StopRequest(SIGTERM, SIGUSR1; set)"


def test_only_the_named_signals_set_the_request():
    heard = []
    before = signal.signal(signal.SIGUSR1, lambda *_: heard.append(1))
    try:
        with StopRequest([signal.SIGUSR2], LockStep(2)) as stop:
            signal.raise_signal(signal.SIGUSR1)
            assert not stop.is_set() and heard == [1]
            signal.raise_signal(signal.SIGUSR2)
            assert stop.is_set()
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_handlers_come_back_after_an_error():
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(ZeroDivisionError), StopRequest():
        1 / 0
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize("number", [signal.SIGKILL, 0, 1000, "SIGTERM"])
def test_signals_without_handlers_are_refused(number):
    with pytest.raises(InputError, match="StopRequest: signals must be signals that can have a handler, got"):
        StopRequest([number])


def test_one_number_is_no_list_of_signals():
    with pytest.raises(UsageTypeError, match="StopRequest: signals must be"):
        StopRequest(signal.SIGTERM)


def test_another_thread_cannot_enter_but_can_set_the_request():
    errors = []

    def enter():
        try:
            with StopRequest():
                pass
        except WorldError as error:
            errors.append(str(error))

    with StopRequest(world=LockStep(2)) as stop:
        for target in enter, stop.set:
            thread = threading.Thread(target=target, name="loader")
            thread.start()
            thread.join()
        assert stop.is_set()
    assert len(errors) == 1 and "must be entered in the main thread, got thread 'loader'" in errors[0]


@pytest.mark.ranks(3)
def test_all_ranks_agree_when_one_has_the_request(world):
    for setting_rank in range(world.size):
        stop = StopRequest(world=world)
        answers = []
        for step in range(4):
            if step == 2 and setting_rank in world.ranks:
                stop.set()
            answers.append(stop.is_set())
        assert answers == [False, False, True, True]


@pytest.mark.mpi(min_size=2)
def test_a_call_is_one_reduction_until_the_answer_is_true():
    from spmdsim import MPIWorld

    stop, counts = StopRequest(world=MPIWorld()), []
    for step in range(4):
        stop.set() if step == 2 else None
        stop.is_set()
        counts.append(stop.world.control["agreement"].calls)
    assert [count - counts[0] for count in counts] == [0, 1, 2, 2]
