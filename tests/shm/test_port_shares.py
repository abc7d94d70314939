"""A client's places and slab, divided among models: those that wait leave room for the others."""

import random

import pytest

from shoal.shm.doorbell import Doorbell
from shoal.shm.layout import CLIENT, LINK, WORKER, Geometry
from shoal.shm.port import Port
from shoal.shm.ring import RingReader, RingWriter
from shoal.shm.shares import RECORDS_PER_REQUEST, NoRoomError
from shoal.shm.slab import Block
from tests.shm.port_star import MakePair
from tests.submitted import submit

SLOW, OTHER, IDLE = 3, 4, 5
MAX = 8


class Client:
    """A port of eight requests to one model, with a slab of 64 units, and the batcher's ends of its rings."""

    def __init__(self, make: MakePair, small_capacity: int = 0) -> None:
        client, client_view = make(CLIENT, 5, Geometry(MAX * RECORDS_PER_REQUEST, 64 * 4096, small_capacity))
        link, link_view = make(LINK, 1, Geometry(64, 0))
        make(WORKER, 9, Geometry(0, 4096))
        self.segment = client
        self.port = Port(client, link_view, Doorbell.create(), MAX)
        self.seen = RingReader(link, client_view)
        self.replies = RingWriter(link, client_view)

    def ask(self, model: int, nbytes: int = 1) -> int:
        return submit(self.port, model, self.port.allocate(nbytes, model))

    def ask_all(self, model: int, nbytes: int = 1) -> list[int]:
        """As many as may be."""
        asked = []
        try:
            while True:
                asked.append(self.ask(model, nbytes))
        except NoRoomError as error:
            assert error.model == model
        return asked

    def answer(self, *numbers: int) -> None:
        for number in numbers:
            self.replies.push((4, number, 5, *[0] * 13))
            self.replies.publish()
            assert [reply.number for reply in self.port.poll()] == [number]


#: Records of a small ring with room for four requests.
SMALL = 4 * 7


@pytest.fixture(params=[0, SMALL])
def client(segment_pair: MakePair, request: pytest.FixtureRequest) -> Client:
    return Client(segment_pair, request.param)


def test_a_client_without_memory_for_its_full_ring_has_the_places_of_the_small_one(
    segment_pair: MakePair, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client(segment_pair, SMALL)
    with monkeypatch.context() as patch:
        patch.setattr(client.segment, "make_ring_present", lambda: False)
        asked = client.ask_all(SLOW)
        assert len(asked) == 4
        assert not client.port.has_place(OTHER)
        client.answer(asked[0])
        client.ask(OTHER)
    assert len(client.ask_all(SLOW)) == MAX - 3
    client.port.flush()
    assert len(client.seen.drain()) == 4 + 1 + MAX - 3


def test_a_client_at_rest_makes_room_before_it_is_needed(segment_pair: MakePair) -> None:
    client = Client(segment_pair, SMALL)
    ring = client.port._writer
    for _ in range(2):
        client.ask(SLOW)
        client.port.prepare()
    assert ring.is_small
    client.ask(SLOW)
    client.port.prepare()
    assert not ring.is_small


def test_models_that_have_all_they_may_leave_places_for_one_that_has_none(client: Client) -> None:
    slow, other = client.ask_all(SLOW), client.ask_all(OTHER)
    assert (len(slow), len(other)) == (MAX, MAX)
    for _ in range(20):
        client.answer(client.ask(IDLE))
    client.answer(slow[0])
    assert len(client.ask_all(SLOW)) == 1
    assert not client.port.has_place(SLOW)


def test_ever_more_models_share_the_places(client: Client) -> None:
    asked = [client.ask_all(model) for model in range(1, 6)]
    assert [len(each) for each in asked] == [MAX, MAX, MAX, 6, 2]  # each takes two thirds of what it finds free
    client.answer(*asked[0][:2])
    assert not client.port.has_place(1)  # two are free, and it still has six
    assert client.port.has_place(5)


def test_what_was_counted_while_places_were_scarce_is_right_afterwards(client: Client) -> None:
    for _ in range(3):
        asked = [*client.ask_all(SLOW), *client.ask_all(OTHER)]
        assert len(asked) == 2 * MAX
        client.answer(*asked)
        assert client.port.has_place(SLOW)
        assert client.port.is_ample
    assert client.port.slab.num_taken == 0


def test_a_models_requests_leave_memory_for_one_that_holds_none(client: Client) -> None:
    slow = client.ask_all(SLOW, 8 * 4096)
    assert len(slow) == 6  # two thirds of eight blocks
    assert client.port.has_place(SLOW)
    assert not client.port.has_memory(SLOW)
    client.answer(client.ask(IDLE, 8 * 4096))
    client.answer(slow[0])
    assert len(client.ask_all(SLOW, 8 * 4096)) == 1


def test_a_block_that_was_taken_before_its_model_was_known_is_looked_at_once_it_is(client: Client) -> None:
    client.ask_all(SLOW)
    block = client.port.allocate(1)
    with pytest.raises(NoRoomError):
        client.port.admit(SLOW, block)
    client.port.admit(IDLE, block)
    assert client.port.slab.free(block.ref)
    assert client.port.slab.free_nbytes == 64 * 4096 - MAX * 4096


@pytest.mark.parametrize("seed", range(20))
def test_a_body_is_admitted_where_its_block_would_be_allocated_now(client: Client, seed: int) -> None:
    """Bodies of any size, of two models, begun, completed and answered in any order."""
    schedule = random.Random(seed)
    port, begun, asked = client.port, list[tuple[int, Block]](), list[int]()
    num_admitted = 0
    for _ in range(300):
        event = schedule.randrange(3)
        if event == 0:
            model, num_units = schedule.choice([SLOW, OTHER]), 1 << schedule.randrange(5)
            if (block := port.slab.allocate(num_units * 4096)) is not None:  # as for a model that is not known yet
                begun.append((model, block))
        elif event == 1 and begun:
            model, block = begun.pop(schedule.randrange(len(begun)))
            try:
                port.admit(model, block)
                is_admitted = True
            except NoRoomError:
                is_admitted = False
            nbytes = len(block.memory)
            assert port.slab.free(block.ref)
            expected = port.has_place(model) and port.has_memory(model)
            assert is_admitted == expected
            if is_admitted:
                num_admitted += 1
                asked.append(client.ask(model, nbytes))
        elif event == 2 and asked:
            client.answer(asked.pop(schedule.randrange(len(asked))))
    assert num_admitted > 20
    client.answer(*asked)
    for _, block in begun:
        assert port.slab.free(block.ref)
    assert port.slab.num_taken == 0


def test_a_body_that_alone_leaves_little_free_is_admitted(client: Client) -> None:
    """A model holds half of the slab, and a body of its own a quarter: what the body takes it does not lack."""
    client.ask(SLOW, 32 * 4096)
    block = client.port.allocate(16 * 4096, SLOW)
    client.port.admit(SLOW, block)
    assert client.port.slab.free(block.ref)
