"""frontend/http/incoming.py: who gets room when, and who waits no longer, on a clock that is handed in."""

import socket
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.frontend.http.connection import HttpConnection
from shoal.frontend.http.http_head import Head, parse_head
from shoal.frontend.http.incoming import LONGEST_S, MAX_WAITING, PATIENCE_S, WaitingBodies, WaitingBody

STEP_S = PATIENCE_S / 2


def _head() -> Head:
    head = parse_head(b"POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 9000000\r\n\r\n")
    assert head is not None
    return head


HEAD = _head()


class Room:
    """A lane's memory: so many more bodies find room in it."""

    def __init__(self) -> None:
        self.num = 0
        self.begun: list[WaitingBody] = []
        self.bodies = WaitingBodies(self.begin)

    def begin(self, body: WaitingBody) -> bool:
        if not self.num:
            return False
        self.num -= 1
        self.begun.append(body)
        return True


@pytest.fixture
def client() -> Iterator[socket.socket]:
    with socket.socket() as made:
        yield made


def body(client: socket.socket, since_s: float = 0.0) -> WaitingBody:
    return WaitingBody(HttpConnection(client, since_s, 0.0), HEAD, b"", 0, since_s)


def test_bodies_get_room_in_the_order_in_which_they_came(client: socket.socket) -> None:
    room = Room()
    waiting = [body(client) for _ in range(4)]
    assert all(map(room.bodies.add, waiting))
    assert room.bodies.look(STEP_S) == ([], [])
    room.num = 2
    assert room.bodies.look(STEP_S) == (waiting[:2], [])
    room.num = 3
    assert room.bodies.look(STEP_S) == (waiting[2:], [])
    assert (len(room.bodies.bodies), room.num) == (0, 1)


def test_a_body_waits_as_long_as_others_find_room(client: socket.socket) -> None:
    room = Room()
    first, second, third = body(client), body(client), body(client)
    for each in (first, second, third):
        room.bodies.add(each)
    room.num = 1
    assert room.bodies.look(PATIENCE_S - 0.01) == ([first], [])
    assert room.bodies.look(PATIENCE_S + 0.01) == ([], [])
    assert room.bodies.look(2 * PATIENCE_S) == ([], [second, third])
    assert not room.bodies.bodies


def test_where_one_has_waited_in_vain_others_do_not_wait_until_there_is_room(client: socket.socket) -> None:
    room = Room()
    assert room.bodies.add(first := body(client))
    assert room.bodies.look(PATIENCE_S) == ([], [first])
    late = body(client, PATIENCE_S)
    assert not room.bodies.begin(late)
    assert not room.bodies.add(late)
    room.num = 1
    assert room.bodies.begin(late)
    assert not room.bodies.begin(other := body(client, PATIENCE_S))
    assert room.bodies.add(other)
    room.num = 1
    assert not room.bodies.begin(late)  # behind the one that waits
    assert room.bodies.look(PATIENCE_S) == ([other], [])


def test_what_is_forgotten_gets_no_room_and_too_many_are_not_taken(client: socket.socket) -> None:
    room = Room()
    waiting = [body(client) for _ in range(MAX_WAITING)]
    assert all(map(room.bodies.add, waiting))
    assert not room.bodies.add(body(client))
    room.bodies.forget(waiting[0].connection)
    room.bodies.forget(waiting[0].connection)
    assert room.bodies.add(late := body(client))
    room.num = MAX_WAITING
    assert room.bodies.look(0.0) == ([*waiting[1:], late], [])


@given(st.lists(st.tuples(st.integers(0, 2), st.booleans()), max_size=60))
def test_every_body_begins_or_is_given_up_once_and_in_time(steps: list[tuple[int, bool]]) -> None:
    room, now_s = Room(), 0.0
    waiting: dict[HttpConnection, WaitingBody] = {}
    with socket.socket() as client:
        for num_free, is_new in [*steps, *[(0, False)] * 25]:
            now_s += STEP_S
            if is_new and room.bodies.add(each := body(client, now_s)):
                waiting[each.connection] = each
            room.num = num_free
            begun, given_up = room.bodies.look(now_s)
            for each in (*begun, *given_up):
                del waiting[each.connection]  # raises KeyError the second time
            assert all(now_s - each.since_s < LONGEST_S for each in waiting.values())
            assert not (given_up and room.num), "one was given up though there was room"
    assert not waiting
