"""Calls that wait for room: each model's in order, the models in turns, none for another model's room."""

from itertools import groupby
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.frontend.grpc import parking as parking_module
from shoal.frontend.grpc.call import AskingCall
from shoal.frontend.grpc.inbox import ReceivedMessage
from shoal.frontend.grpc.parking import Parking

SLOW, OTHER, IDLE = 1, 2, 3


class Room:
    """A port of which only that is known which models have room, and for how many requests."""

    def __init__(self) -> None:
        self.left: dict[int, int] = {}
        self.is_ample = False

    def has_place(self, model: int) -> bool:
        return self.left.get(model, 0) > 0

    def has_memory(self, _model: int) -> bool:
        return True


#: A protocol whose messages begin with the number of their model.
PROTOCOL: Any = SimpleNamespace(model_of=lambda message: message[0])


class Calls:
    """Calls by number; what each asks is noted in `asked`."""

    def __init__(self) -> None:
        self.room = Room()
        self.parking = Parking(self.room)  # type: ignore[arg-type]
        self.asked: list[tuple[int, int]] = []
        self._num = 0

    def park(self, model: int, nbytes: int) -> "Call":
        self._num += 1
        call = Call(self, self._num, model)
        self.parking.park(call, model, nbytes)
        return call

    def come(self, model: int, nbytes: int = 1) -> bool:
        """A call to a model; whether it waits."""
        self._num += 1
        call = Call(self, self._num, model)
        received = ReceivedMessage(bytes([model]) * nbytes, None, 0, is_compressed=False)
        waits_for = self.parking.must_wait(received, PROTOCOL) or call.resume()
        if waits_for:
            self.parking.park(call, waits_for, nbytes)
        return bool(waits_for)


class Call(AskingCall):
    def __init__(self, calls: Calls, number: int, model: int) -> None:
        self._calls = calls
        self._number = number
        self._model = model

    def resume(self) -> int:
        left = self._calls.room.left
        if left.get(self._model, 0) <= 0:
            return self._model
        left[self._model] -= 1
        self._calls.asked.append((self._model, self._number))
        return 0


@pytest.fixture
def calls() -> Calls:
    return Calls()


def test_a_call_to_a_model_that_has_room_waits_for_no_other(calls: Calls) -> None:
    calls.room.left = {IDLE: 1}
    assert [calls.come(SLOW) for _ in range(3)] == [True] * 3
    assert not calls.come(IDLE)
    assert calls.asked == [(IDLE, 4)]
    assert list(calls.parking.waiting) == [SLOW]


def test_no_call_overtakes_an_earlier_one_to_its_model(calls: Calls) -> None:
    calls.come(SLOW)
    calls.room.left = {SLOW: 2}
    assert calls.come(SLOW)
    calls.parking.resume()
    assert calls.asked == [(SLOW, 1), (SLOW, 2)]
    assert not calls.parking.waiting


def test_models_take_turns(calls: Calls) -> None:
    for model in (SLOW, SLOW, SLOW, OTHER, OTHER, OTHER):
        calls.come(model)
    calls.room.left = {SLOW: 2, OTHER: 3}
    calls.parking.resume()
    assert [model for model, _ in calls.asked] == [SLOW, OTHER, SLOW, OTHER, OTHER]
    calls.room.left = {SLOW: 1}
    calls.parking.resume()
    assert calls.asked[-1] == (SLOW, 3)


def test_what_waits_for_one_model_leaves_memory_for_another(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parking_module, "MAX_PARKED_BYTES", 120)
    message = ReceivedMessage(bytes([SLOW]) * 10, None, 0, is_compressed=False)
    while calls.parking.must_wait(message, PROTOCOL):
        assert calls.come(SLOW, 10)
    assert not calls.parking.may_wait(SLOW, message)
    assert calls.parking._nbytes == 80  # two thirds
    assert calls.come(OTHER, 10)


def test_a_call_that_ends_while_it_waits_keeps_nothing(calls: Calls) -> None:
    first, second = calls.park(SLOW, 10), calls.park(SLOW, 20)
    calls.parking.leave(first, SLOW)
    assert calls.parking._nbytes == 20
    calls.parking.leave(first, SLOW)  # it has left
    calls.room.left = {SLOW: 2}
    calls.parking.resume()
    assert calls.asked == [(SLOW, 2)]
    calls.parking.leave(second, SLOW)  # it has gone on
    calls.parking.leave(calls.park(OTHER, 10), OTHER)
    assert (calls.parking._nbytes, calls.parking.waiting, len(calls.parking._turns)) == (0, {}, 0)


def test_messages_of_streams_count_as_calls_do(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parking_module, "MAX_PARKED_BYTES", 120)
    message = ReceivedMessage(bytes([SLOW]) * 10, None, 0, is_compressed=False)
    kept = []
    while (counted := calls.parking.keep(message, PROTOCOL)) is not None:
        kept.append(counted)
    assert len(kept) == 8  # two thirds
    assert not calls.parking.may_wait(SLOW, message)
    for each in kept:
        calls.parking.drop(*each)
    assert calls.parking._nbytes == 0


@given(st.lists(st.tuples(st.sampled_from(["come", "room"]), st.integers(1, 4)), max_size=200))
def test_whatever_comes_goes_on_in_its_models_order_and_waits_only_without_room(
    schedule: list[tuple[str, int]],
) -> None:
    calls = Calls()
    for what, model in schedule:
        if what == "come":
            calls.come(model)
        else:
            calls.room.left[model] = calls.room.left.get(model, 0) + 1
            calls.parking.resume()
        assert not any(calls.room.has_place(each) and each in calls.parking.waiting for each in range(1, 5))
    by_model = {
        model: [number for _, number in of_it] for model, of_it in groupby(sorted(calls.asked), lambda each: each[0])
    }
    for model, numbers in by_model.items():
        assert numbers == [number for each, number in calls.asked if each == model]
    calls.room.left = dict.fromkeys(range(1, 5), 1000)
    calls.parking.resume()
    assert len(calls.asked) == sum(what == "come" for what, _ in schedule)
    assert (calls.parking._nbytes, calls.parking.waiting, len(calls.parking._turns)) == (0, {}, 0)
