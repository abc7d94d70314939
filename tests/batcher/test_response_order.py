"""The order of responses: none is sent before all earlier requests have ended, and each is sent once."""

from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.batcher.response_order import ResponseOrder, keeps_order


def test_only_who_asks_for_it_waits() -> None:
    assert keeps_order({"dynamic_batching": {"preserve_ordering": True}})
    assert not keeps_order({"dynamic_batching": {}})
    assert not keeps_order({})


def test_the_second_waits_for_the_first() -> None:
    order: ResponseOrder[str] = ResponseOrder()
    assert not order.begin([1, 2])
    assert order.begin([3])
    assert order.admit(3, "c", is_last=True) == []
    assert order.admit(2, "b", is_last=True) == []
    assert order.admit(1, "a", is_last=True) == ["a", "b", "c"]
    assert not order.begin([4])


def test_of_whose_turn_it_is_every_response_goes_at_once() -> None:
    order: ResponseOrder[str] = ResponseOrder()
    order.begin([1, 2])
    assert order.admit(2, "b1", is_last=False) == []
    assert order.admit(1, "a1", is_last=False) == ["a1"]
    assert order.admit(1, "a2", is_last=True) == ["a2", "b1"]
    assert order.admit(2, "b2", is_last=True) == ["b2"]


def test_who_never_had_an_instance_is_answered_at_once() -> None:
    order: ResponseOrder[str] = ResponseOrder()
    order.begin([1])
    assert order.admit(9, "rejected", is_last=True) == ["rejected"]


def test_an_instance_that_dies_takes_no_place_away() -> None:
    order: ResponseOrder[str] = ResponseOrder()
    order.begin([1])
    order.begin([2])
    order.begin([1])
    assert order.admit(2, "b", is_last=True) == []
    assert order.admit(1, "a", is_last=True) == ["a", "b"]


def test_no_response_waits_for_a_forgotten_request() -> None:
    order: ResponseOrder[str] = ResponseOrder()
    order.begin([10, 20, 11, 21])
    assert order.admit(20, "b", is_last=True) == []
    assert order.admit(11, "c", is_last=True) == []
    assert order.forget(lambda key: key < 20) == ["b"]
    assert order.admit(21, "d", is_last=True) == ["d"]
    assert not order.begin([10])


@settings(max_examples=100)
@given(st.permutations([(key, part) for key in range(5) for part in range(3)]))
def test_any_schedule_of_responses_comes_out_in_order(schedule: list[tuple[int, int]]) -> None:
    order: ResponseOrder[tuple[int, int]] = ResponseOrder()
    order.begin(range(5))
    said = dict.fromkeys(range(5), 0)
    received = []
    for key, _ in schedule:
        received += order.admit(key, (key, said[key]), is_last=said[key] == 2)
        said[key] += 1
        # All that it may say is said: that of the first ones that are over, and that of the one after them.
        first_open = next((each for each in said if said[each] < 3), 5)
        assert received == [(each, part) for each in said if each <= first_open for part in range(said[each])]
