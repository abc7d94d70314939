"""frontend/grpc/http2: any schedule of calls, answers, windows and cancellations brings every byte over, in order."""

from typing import Any

from h2 import events as h2_events
from h2.settings import SettingCodes
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.frontend.grpc.http2.events import DataReceived, RequestStarted, StreamReset
from shoal.frontend.grpc.http2.limits import Limits
from tests.frontend.grpc.http2.peer import STATUS_200, TRAILERS, Client, taken

INITIAL_WINDOW = SettingCodes.INITIAL_WINDOW_SIZE

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("call"), st.integers(0, 3000), st.booleans()),
        st.tuples(st.just("more"), st.integers(0, 3000), st.booleans()),
        st.tuples(st.just("respond"), st.integers(0, 6000), st.booleans()),
        st.tuples(st.just("say"), st.integers(0, 6000), st.booleans()),
        st.tuples(st.just("end"), st.just(0), st.booleans()),
        st.tuples(st.just("cancel"), st.just(0), st.booleans()),
        st.tuples(st.just("reset"), st.just(0), st.booleans()),
        st.tuples(st.just("allow"), st.integers(1, 5000), st.booleans()),
        st.tuples(st.just("initial"), st.integers(0, 20_000), st.booleans()),
        st.tuples(st.just("exchange"), st.just(0), st.booleans()),
    ),
    max_size=30,
)


class Schedule:
    """Client and server act step by step; what each side has sent must have arrived at the other."""

    def __init__(self, split: int) -> None:
        self.client = Client(Limits(stream_window=2000, connection_window=70_000), {INITIAL_WINDOW: 500})
        self.split = split
        self.asked: dict[int, bytearray] = {}
        self.heard: dict[int, bytearray] = {}
        self.said: dict[int, bytearray] = {}
        self.open: list[int] = []  # on the server's side
        self.asking: list[int] = []
        self.gone: set[int] = set()
        self.tokens: set[int] = set()
        self.num_tokens = 0

    def step(self, kind: str, nbytes: int, flag: bool) -> None:
        getattr(self, kind)(nbytes, flag)

    def call(self, nbytes: int, flag: bool) -> None:
        stream_id = self.client.call(ends=False)
        self.asked[stream_id] = bytearray()
        self.asking.append(stream_id)
        self.more(nbytes, flag)

    def more(self, nbytes: int, flag: bool) -> None:
        if self.asking:
            stream_id = self.asking[-1 if flag else 0]
            nbytes = min(nbytes, self.client.h2.local_flow_control_window(stream_id))
            said = bytes((len(self.asked[stream_id]) + at) % 251 for at in range(nbytes))
            self.asked[stream_id] += said
            self.client.h2.send_data(stream_id, said, end_stream=flag)
            if flag:
                self.asking.remove(stream_id)

    def token(self) -> int:
        self.num_tokens += 1
        self.tokens.add(self.num_tokens)
        return self.num_tokens

    def chosen(self, flag: bool) -> int | None:
        return self.open[-1 if flag else 0] if self.open else None

    def say(self, nbytes: int, flag: bool, *, whole: bool = False) -> None:
        stream_id = self.chosen(flag)
        if stream_id is None:
            return
        is_first = stream_id not in self.said
        said = self.said.setdefault(stream_id, bytearray())
        new = bytes((len(said) + at) % 241 for at in range(nbytes))
        said += new
        chunks: list[bytes | memoryview] = [new[: nbytes // 3], memoryview(new)[nbytes // 3 :]]
        if whole and is_first:
            self.client.connection.respond(stream_id, STATUS_200, chunks, TRAILERS, self.token())
        else:
            if is_first:
                self.client.connection.send_headers(stream_id, STATUS_200)
            self.client.connection.send_data(stream_id, chunks, self.token())
            if whole:
                self.client.connection.send_trailers(stream_id, TRAILERS)
        if whole:
            self.open.remove(stream_id)

    def respond(self, nbytes: int, flag: bool) -> None:
        self.say(nbytes, flag, whole=True)

    def end(self, nbytes: int, flag: bool) -> None:
        self.say(0, flag, whole=True)

    def cancel(self, nbytes: int, flag: bool) -> None:
        if self.asking:
            stream_id = self.asking.pop(-1 if flag else 0)
            self.client.h2.reset_stream(stream_id, 8)
            self.gone.add(stream_id)

    def reset(self, nbytes: int, flag: bool) -> None:
        stream_id = self.chosen(flag)
        if stream_id is not None:
            self.open.remove(stream_id)
            self.client.connection.reset(stream_id, 2)
            self.gone.add(stream_id)

    def allow(self, nbytes: int, flag: bool) -> None:
        streams = [each for each in self.asked if each not in self.gone and each in self.client.h2.streams]
        if flag or not streams:
            self.client.h2.increment_flow_control_window(nbytes)
        elif not self.client.h2.streams[streams[-1]].closed:
            self.client.h2.increment_flow_control_window(nbytes, streams[-1])

    def initial(self, nbytes: int, flag: bool) -> None:
        self.client.h2.update_settings({INITIAL_WINDOW: nbytes})

    def exchange(self, nbytes: int = 0, flag: bool = True) -> None:
        while True:
            to_server = self.client.h2.data_to_send()
            for at in range(0, len(to_server), self.split):
                for event in self.client.connection.receive(to_server[at : at + self.split], 0.0):
                    self.take(event)
            assert not self.client.connection.is_failed
            to_client, tokens = taken(self.client.connection)
            self.tokens -= set(tokens)
            if to_client:
                self.client.seen += self.client.h2.receive_data(to_client)
            for event in self.client.seen:
                if isinstance(event, h2_events.StreamReset) and event.stream_id in self.asking:
                    self.asking.remove(event.stream_id)  # a client whose stream is reset stops sending
            if not to_server and not to_client:
                return

    def take(self, event: Any) -> None:
        if isinstance(event, RequestStarted):
            self.open.append(event.stream_id)
            self.heard[event.stream_id] = bytearray()
        elif isinstance(event, DataReceived):
            self.heard[event.stream_id] += event.data
            self.client.connection.credit(event.stream_id, len(event.data))
        elif isinstance(event, StreamReset) and event.stream_id in self.open:
            self.open.remove(event.stream_id)

    def finish(self) -> None:
        self.exchange()
        for stream_id in list(self.open):
            self.respond(0, False)
            del stream_id
        self.client.h2.increment_flow_control_window(1 << 24)
        self.client.h2.update_settings({INITIAL_WINDOW: 1 << 24})
        self.exchange()


@settings(max_examples=60)
@given(STEPS, st.sampled_from([1, 7, 1000, 1 << 20]))
def test_any_schedule_brings_every_byte_over_in_order(steps: list[tuple[str, int, bool]], split: int) -> None:
    schedule = Schedule(split)
    for step in steps:
        schedule.step(*step)
    schedule.finish()
    assert schedule.tokens == set()
    assert len(schedule.client.connection.streams.open) == 0
    for stream_id, said in schedule.said.items():
        if stream_id not in schedule.gone:
            assert schedule.client.body(stream_id) == said
            assert isinstance(schedule.client.response(stream_id)[-1], h2_events.StreamEnded | h2_events.StreamReset)
    for stream_id, asked in schedule.asked.items():
        assert bytes(asked).startswith(bytes(schedule.heard.get(stream_id, b"")))
