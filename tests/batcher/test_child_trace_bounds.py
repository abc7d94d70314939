"""How many requests that are made for a traced one a front end is sent, and what has room before them."""

import select

from shoal.batcher.child_traces import TraceRoot
from shoal.shm.layout import CANCEL, CHILD_TRACE, REPLY, TRACE, B, Geometry, T
from tests.batcher.calls import Calls
from tests.batcher.ensemble_star import DOUBLE
from tests.batcher.star import GEOMETRY
from tests.batcher.streaming_ensemble import streaming

#: Of the batcher's ring to a front end: how many children may be unread, how many of these only where others are below
#: them, and all of it, with room for replies.
NUM_UNREAD, NUM_KEPT, WIDE = 512, 100, Geometry(512 + 8, 0)


def test_children_leave_room_for_replies_and_wake_their_reader_when_there_is_little() -> None:
    star = Calls(link_geometry=WIDE)
    item = star.ask()
    star.call(item[B.KEY])
    (outer,) = star.second.received()
    for number in range(2, NUM_UNREAD):
        star.call(outer[B.KEY], number)
        star.caller.send(CANCEL, number)
        star.exchange.step(500)
        star.caller.received()
        is_woken = bool(select.select([star.front_end.bell], [], [], 0)[0])
        assert is_woken == (number - 2 >= NUM_UNREAD // 2)
    star.answer(star.second, outer)
    star.answer(star.worker, item)
    told = star.front_end.received()
    assert [record[0] for record in told] == [CHILD_TRACE] * (NUM_UNREAD - NUM_KEPT + 1) + [REPLY]
    assert told[-2][T.KEY] == outer[B.KEY]  # which all others are below


def test_children_give_way_to_replies_that_wait_for_room() -> None:
    star = Calls()
    capacity = GEOMETRY.ring_capacity
    for number in range(1, capacity + 3):
        star.answer(star.worker, star.ask(number, traced=False))
    item = star.ask(capacity + 3)
    star.call_and_answer(item[B.KEY])
    star.answer(star.worker, item)
    told = star.front_end.received()
    star.exchange.step(5_000)
    told += star.front_end.received()
    assert [record[:2] for record in told] == [(REPLY, number) for number in range(1, capacity + 4)]


def test_bounds_of_a_trace_leave_room_for_children_that_others_are_below() -> None:
    root = TraceRoot(7)
    assert root.room(5000) == (900, 412)
    assert root.room(5000, is_decoupled_step=True) == (1000, 512)
    for key in range(900):
        root.note_sent(5000 + key // 450)
    assert [root.room(key) for key in (4999, 5000, 5001, 5002)] == [(0, 412), (100, 512), (100, 512), (0, 412)]
    for _ in range(100):
        root.note_sent(7)
    assert root.room(5000) == (0, 512)


def test_a_call_of_many_children_is_in_the_trace_with_them() -> None:
    star = Calls()
    item = star.ask()
    star.call(item[B.KEY])
    (outer,) = star.second.received()
    told = []
    for number in range(2, 1000):
        star.call(outer[B.KEY], number)
        star.caller.send(CANCEL, number)
        star.exchange.step(500)
        star.caller.received()
        told += star.front_end.received()
    star.answer(star.second, outer)
    told += star.front_end.received()
    assert len(told) == 901
    assert (told[-1][T.KEY], told[-1][T.PARENT]) == (outer[B.KEY], 0)
    assert {record[T.PARENT] for record in told[:-1]} == {outer[B.KEY]}


def test_a_step_that_streams_is_in_a_trace_that_has_no_room_for_the_steps_after_it() -> None:
    star = streaming()
    client = star.exchange.clients[star.client.owner]
    client.is_front_end = True
    star.ask()
    star.client.send(TRACE, 1)
    item = star.item(star.double)
    star.respond(star.double, item)
    for _ in range(900):
        client.traced[1].root.note_sent(0)
    star.answer(star.add, star.item(star.add))
    star.end(star.double, item)
    told = [record for record in star.client.received() if record[0] == CHILD_TRACE]
    assert [(record[T.KEY], record[T.MODEL]) for record in told] == [(item[B.KEY], DOUBLE)]
