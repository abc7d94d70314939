"""frontend/grpc/http2/expected_frames.py: whatever comes among a message's frames, each byte ends where it belongs."""

import random

import pytest

from shoal.frontend.grpc.http2.connection import Http2Connection
from shoal.frontend.grpc.http2.events import DataReceived, Event, StreamReset
from shoal.frontend.grpc.http2.expected_frames import ExpectedFrames
from shoal.frontend.grpc.http2.limits import Limits
from tests.frontend.grpc.http2.peer import DATA, WINDOW_UPDATE, calling, frame, number, opened, scatter

LIMITS = Limits(stream_window=200_000, connection_window=1_000_000)


class Reader:
    """A connection whose stream 1 has a message that is received in place, as a lane reads it."""

    def __init__(self, num_bytes: int) -> None:
        self.connection: Http2Connection = opened(LIMITS)
        calling(self.connection, 1, 3)
        self.frames = ExpectedFrames()
        self.message = memoryview(bytearray(num_bytes))
        self.received = 0
        self.other = b""
        self.has_ended = self.is_reset = False
        self.num_direct = 0

    def read(self, data: bytes, most: int) -> int:
        """Read bytes that have come, at most so many; returns how many were read."""
        connection, expected = self.connection, self.connection.expected
        target = self.message[self.received :]
        if expected is None or expected[0] != 1 or not target:
            self.hear(connection.receive(data[:most], 0.0))
            return min(most, len(data))
        self.frames.expect(target, *expected)
        nbytes = scatter(data[:most], self.frames.buffers)
        received, num_alike, rest = self.frames.split(nbytes)
        self.received += received
        self.num_direct += received
        self.hear(connection.received_directly(received, num_alike))
        self.hear(connection.receive(rest, 0.0))
        return nbytes

    def hear(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, StreamReset):
                self.is_reset = True
                continue
            assert isinstance(event, DataReceived)
            if event.stream_id == 1:
                end = self.received + len(event.data)
                self.message[self.received : end] = event.data
                self.received = end
                self.has_ended |= event.end_stream
            else:
                self.other += event.data


@pytest.mark.parametrize("seed", range(60))
def test_whatever_comes_in_between_and_in_whatever_pieces(seed: int) -> None:
    dice = random.Random(seed)
    message, other = dice.randbytes(dice.randrange(1, 150_000)), b""
    frame_nbytes = dice.choice((1000, 5000, 16_384))
    said, window = b"", 0
    for start in range(0, len(message), frame_nbytes):
        piece = message[start : start + frame_nbytes]
        said += frame(DATA, start + frame_nbytes >= len(message), 1, piece)
        way = dice.randrange(12)
        if way == 0:
            said += frame(WINDOW_UPDATE, 0, 0, number(7))
            window += 7
        elif way == 1:
            more = dice.randbytes(dice.choice((1, frame_nbytes)))
            said += frame(DATA, 0, 3, more)
            other += more
    reader = Reader(len(message))
    while said:
        said = said[reader.read(said, dice.choice((1, 5, 20, 3000, 40_000, 1 << 20))) :]
    assert (bytes(reader.message), reader.other, reader.has_ended) == (message, other, True)
    data_frames = reader.connection._receiving.data_frames
    assert not data_frames.is_within_frame
    assert reader.connection.window == opened(LIMITS).window + window
    assert data_frames.spare == LIMITS.connection_window // 2 - len(message) - len(other)


def test_frames_that_are_alike_come_in_one_read() -> None:
    message = random.Random(0).randbytes(10 * 16_384 + 100)
    said = b"".join([frame(DATA, 0, 1, message[start : start + 16_384]) for start in range(0, 10 * 16_384, 16_384)])
    said += frame(DATA, 1, 1, message[-100:])
    reader = Reader(len(message))
    said = said[reader.read(said, 1000) :]
    assert reader.read(said, 1 << 20) == len(said)
    assert (bytes(reader.message), reader.has_ended) == (message, True)
    assert reader.num_direct == 10 * 16_384 - 991  # all but the beginning, and the last frame


def test_no_more_is_expected_than_the_windows_hold() -> None:
    reader = Reader(1 << 20)
    nbytes = 16_384
    data = frame(DATA, 0, 1, bytes(nbytes))
    reader.read(data[:100], 100)
    assert reader.connection.expected == (1, nbytes - 91, nbytes, (LIMITS.stream_window - nbytes) // nbytes)
    said = (data * 20)[100:]
    while not reader.is_reset:  # it sent more than it might
        said = said[reader.read(said, 1 << 20) :]
    assert reader.received == LIMITS.stream_window // nbytes * nbytes
