"""A stream's order: every answer goes out once, as soon as all earlier ones have, whatever order they come in."""

from hypothesis import given
from hypothesis import strategies as st

from shoal.frontend.grpc.stream_call import StreamOrder


@given(st.integers(0, 12).flatmap(lambda count: st.permutations(range(count))))
def test_answers_leave_in_the_order_of_their_requests_and_none_waits_in_vain(finished: list[int]) -> None:
    order: StreamOrder[int] = StreamOrder()
    tickets = [order.enter() for _ in finished]
    left: list[int] = []
    for done, index in enumerate(finished):
        left += order.answer(tickets[index], index)
        so_far = set(finished[: done + 1])
        assert left == list(range(next(n for n in range(len(finished) + 1) if n not in so_far)))
        assert len(order) == len(finished) - len(left)


@given(st.lists(st.booleans(), max_size=40))
def test_requests_come_and_go_at_any_time(enters: list[bool]) -> None:
    order: StreamOrder[int] = StreamOrder()
    waiting: list[int] = []
    left: list[int] = []
    for enter in enters:
        if enter or not waiting:
            waiting.append(order.enter())
        else:
            ticket = waiting.pop()
            left += order.answer(ticket, ticket)
    for ticket in list(waiting):
        left += order.answer(ticket, ticket)
    assert left == sorted(left) == list(range(len(left)))
    assert len(order) == 0


def test_a_stream_that_ends_gives_back_what_waited() -> None:
    order: StreamOrder[str] = StreamOrder()
    first, second, third = order.enter(), order.enter(), order.enter()
    assert order.answer(third, "c") == []
    assert order.answer(second, "b") == []
    assert sorted(order.drain()) == ["b", "c"]
    assert len(order) == 0
    assert first == 0
