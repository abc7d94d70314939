"""Requests in segments of their own: a request thread asks and waits, another hears what the supervisor says."""

import os
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from shoal.control import Channel
from shoal.errors import InvalidArgumentError, UnavailableError
from shoal.messages import shared
from shoal.shm import segment
from shoal.shm.layout import OVERSIZE, Geometry
from shoal.shm.segment import SegmentView
from shoal.shm.slab import Block, SlabView
from shoal.shm.whole_slabs import KEEP_S
from shoal.star.shared_port import ClientOversizeBlocks
from tests.messages import receive


class Harness:
    """The supervisor's end of the connection, and request threads."""

    def __init__(self, channels: tuple[Channel, Channel], pool: ThreadPoolExecutor, wait_s: float = 10.0) -> None:
        self.supervisor, self.channel = channels
        self.blocks = ClientOversizeBlocks(self.channel.send, wait_s)
        self._pool = pool

    def allocate(self, nbytes: int) -> "Future[Block]":
        return self._pool.submit(self.blocks.allocate, nbytes, 3)

    def heard(self) -> Any:
        return receive(self.supervisor)[0]

    def say(self, message: Any) -> None:
        """The supervisor says it, the listening thread passes it on."""
        self.supervisor.send(message)
        self.blocks.receive(receive(self.channel)[0])

    def grant(self, request: int, owner: int, *, keep: bool = False) -> SegmentView:
        fd = segment.create(OVERSIZE, owner, Geometry(0, 3 * 4096), sealed=True)
        view = SegmentView.attach(segment.read_only(fd))
        self.say(shared.PayloadGranted(request, owner, keep, fd))
        os.close(fd)
        return view


@pytest.fixture
def channels() -> Iterator[tuple[Channel, Channel]]:
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    here.settimeout(10)
    with here, there:
        yield Channel(here), Channel(there)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as threads:
        yield threads


def test_a_block_is_there_once_its_readers_have_it(channels: tuple[Channel, Channel], pool: ThreadPoolExecutor) -> None:
    star = Harness(channels, pool)
    first = star.allocate(9000)
    assert star.heard() == shared.PayloadWanted(request=1, nbytes=9000, model_id=3)
    view = star.grant(1, 80)
    assert star.heard() == shared.PayloadMapped(80)
    assert not first.done()
    star.say(shared.PayloadReady(80))
    block = first.result()
    assert (block.ref, len(block.memory)) == (0x000050_00000_00001, 3 * 4096)
    block.memory[-4:] = b"last"
    opened = SlabView(view).open(block.ref)
    assert opened is not None
    assert bytes(opened[-4:]) == b"last"
    star.blocks.free(block.ref)
    assert star.heard() == shared.PayloadReleased(80)


def test_one_that_may_be_kept_is_there_for_the_next_request_to_its_model(
    channels: tuple[Channel, Channel], pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    star = Harness(channels, pool)
    now_s = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    assert star.blocks.look() is None
    asked = star.allocate(9000)
    star.heard()
    star.grant(1, 80, keep=True)
    star.heard()
    star.say(shared.PayloadReady(80))
    first = asked.result()
    star.blocks.free(first.ref, keep=True)
    second = star.blocks.allocate(9000, 3)  # nobody is asked
    assert (first.ref, second.ref) == (0x000050_00000_00001, 0x000050_00000_00003)
    star.blocks.free(second.ref, keep=True)
    assert star.blocks.look() == KEEP_S
    now_s += KEEP_S
    assert star.blocks.look() is None
    assert star.heard() == shared.PayloadReleased(80)


def test_each_thread_hears_what_is_meant_for_it(channels: tuple[Channel, Channel], pool: ThreadPoolExecutor) -> None:
    star = Harness(channels, pool)
    first, second = star.allocate(5000), star.allocate(6000)
    sizes = {message.request: message.nbytes for message in (star.heard(), star.heard())}
    for request, owner in ((2, 82), (1, 81)):
        star.grant(request, owner)
        assert star.heard() == shared.PayloadMapped(owner)
        star.say(shared.PayloadReady(owner))
    owners = {5000: first.result().ref >> 40, 6000: second.result().ref >> 40}
    assert owners == {sizes[1]: 81, sizes[2]: 82}


@pytest.mark.parametrize(("wire", "kind"), [(4, InvalidArgumentError), (5, UnavailableError)])
def test_a_refusal_is_raised(
    channels: tuple[Channel, Channel], pool: ThreadPoolExecutor, wire: int, kind: type[Exception]
) -> None:
    star = Harness(channels, pool)
    refused = star.allocate(9000)
    star.heard()
    star.say(shared.PayloadRefused(request=1, wire=wire, sentence="raise --shm-oversize-mib"))
    with pytest.raises(kind, match=r"^raise --shm-oversize-mib$"):
        refused.result()


def test_what_comes_too_late_is_given_back(
    channels: tuple[Channel, Channel], pool: ThreadPoolExecutor, num_descriptors: Callable[[], int]
) -> None:
    star = Harness(channels, pool, wait_s=0.01)
    before = num_descriptors()
    sentence = r"^Request timeout expired: no shared memory for 9000 bytes within 0\.01 s \(--request-timeout-secs\)$"
    with pytest.raises(UnavailableError, match=sentence):
        star.blocks.allocate(9000, 3)
    star.heard()
    star.grant(1, 80)
    assert star.heard() == shared.PayloadReleased(80)
    star.say(shared.PayloadReady(80))
    star.say(shared.PayloadRefused(request=1, wire=5, sentence="no"))
    assert num_descriptors() == before


def test_a_block_that_no_reader_maps_in_time_is_given_back(
    channels: tuple[Channel, Channel], pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    star = Harness(channels, pool)
    now_s = [time.monotonic()]

    def send(message: Any) -> None:
        star.channel.send(message)
        if isinstance(message, shared.PayloadMapped):
            now_s[0] += 10.0  # the time is up

    star.blocks._send = send
    monkeypatch.setattr("shoal.star.shared_port.time", SimpleNamespace(monotonic=lambda: now_s[0]))
    late = star.allocate(9000)
    star.heard()
    star.grant(1, 80)
    with pytest.raises(UnavailableError, match=r"^Request timeout expired"):
        late.result()
    assert [type(star.heard()) for _ in range(2)] == [shared.PayloadMapped, shared.PayloadReleased]
    star.say(shared.PayloadReady(80))


def test_an_allocation_that_is_lost_while_its_readers_map_it_fails(
    channels: tuple[Channel, Channel], pool: ThreadPoolExecutor
) -> None:
    """As at the end of --exit-timeout-secs, with a worker that executes: the request was submitted, and never
    answered."""
    star = Harness(channels, pool)
    lost = star.allocate(9000)
    star.heard()
    star.grant(1, 80)
    assert star.heard() == shared.PayloadMapped(80)
    star.blocks.lose(UnavailableError("the server ends"))
    with pytest.raises(UnavailableError, match=r"^the server ends$"):
        lost.result()
    assert star.heard() == shared.PayloadReleased(80)
