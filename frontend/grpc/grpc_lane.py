"""gRPC on a lane: connections, their calls, and the answers that leave at the end of each pass of the loop.

The lane answers whatever cannot block: inference, streams of it, health, metadata, configuration, statistics. Calls
that wait for the supervisor, for a model's readiness check or for memory take the road, one by one (road_call.py).
"""

import logging
import math
import select
import socket
from collections.abc import Container, Mapping, Sequence
from typing import Final

from shoal.errors import UnavailableError
from shoal.frontend.access_log import CANCELLED, GrpcCalls
from shoal.frontend.front_end import FrontEnd
from shoal.frontend.grpc.call import OpenCall, Opening, RefusedCall, Service, open_call
from shoal.frontend.grpc.call_lane import CallLane
from shoal.frontend.grpc.connection import GrpcConnection, Recall
from shoal.frontend.grpc.deadlines import Deadlines
from shoal.frontend.grpc.http2.events import DataReceived, Event, PingAcked, RequestStarted, StreamReset
from shoal.frontend.grpc.http2.expected_frames import ExpectedFrames
from shoal.frontend.grpc.http2.frames import HEAD_BYTES, BrokenError
from shoal.frontend.grpc.http2.limits import Limits
from shoal.frontend.grpc.known_call import KnownCall, learn
from shoal.frontend.grpc.messages import REFLECTION_PATHS
from shoal.frontend.grpc.open_streams import TOO_MANY_OPEN, bounds, longest_idle
from shoal.frontend.grpc.reflection_call import ReflectionCall
from shoal.frontend.grpc.service import METHODS, MODEL_STREAM_INFER, shutting_down
from shoal.frontend.grpc.stream_call import StreamCall
from shoal.frontend.grpc.submission import RegionTemplate
from shoal.frontend.grpc.torchserve.methods import STREAM_PREDICTIONS, STREAM_PREDICTIONS_2
from shoal.frontend.grpc.unary import UnaryCall
from shoal.frontend.kept_memory import HOLD_S, SEND_S, KeptMemory
from shoal.frontend.lane_loop import HEAD_S, LINGER_S, TICK_S, GunicornHandle

_log = logging.getLogger("shoal")

#: A message of which fewer bytes are still to come is not received directly into its block: a read into private memory,
#: which also takes the bytes behind the message, costs a tenth of the instructions.
_DIRECT_BYTES = 32 * 1024
#: Calls that are streams, by their paths; all others are unary.
_KINDS: dict[str, type[StreamCall] | type[ReflectionCall]] = {
    **dict.fromkeys((MODEL_STREAM_INFER, STREAM_PREDICTIONS, STREAM_PREDICTIONS_2), StreamCall),
    **dict.fromkeys(REFLECTION_PATHS, ReflectionCall),
}
_IN: Final = select.EPOLLIN
_OUT: Final = select.EPOLLOUT
_GONE: Final = select.EPOLLHUP | select.EPOLLERR


class GrpcLane(CallLane):
    """Every gRPC connection of one lane."""

    def __init__(self, front_end: FrontEnd, gunicorn: GunicornHandle) -> None:
        super().__init__(front_end, gunicorn)
        self._settings = self._state.grpc
        self._max_connections = min(self._max_connections, self._settings.max_connections or self._max_connections)
        self._limits = Limits(
            max_ping_strikes=self._settings.http2_max_ping_strikes,
            min_recv_ping_interval_without_data_s=self._settings.http2_min_recv_ping_interval_without_data / 1000,
            keepalive_permit_without_calls=self._settings.keepalive_permit_without_calls,
            max_pings_without_data=self._settings.http2_max_pings_without_data,
        )
        self._triton = Service(METHODS, self.inference.submission)
        self._services = self._torchserve_services()
        self._frames = ExpectedFrames()
        self._kept = KeptMemory()
        self._recall = Recall(self._port, self._cut)
        self._port.on_recall = self._on_recall
        # The fields below are changed by every pass of the loop.
        self._deadlines = Deadlines()
        self._bounds = bounds(self._limits, 0, 0, 0)  # those of each connection

    def _torchserve_services(self) -> dict[str, Service]:
        """The services of TorchServe's endpoints, by the endpoints' names."""
        if not self._state.torchserve_grpc_apis:
            return {}
        from shoal.frontend.grpc.torchserve.predictions import TorchServePredictions  # imported here: few servers
        from shoal.frontend.grpc.torchserve.service import methods_of  # need them, and they take 1 MiB

        predictions = TorchServePredictions(self._state, self._port)
        return {
            name: Service(methods_of(apis, self._state.torchserve), predictions)
            for name, apis in self._state.torchserve_grpc_apis.items()
        }

    def _forget_admitted(self) -> None:
        for connection in self._connections.values():
            connection.known = connection.headers = None
            for call in list(connection.calls.values()):
                if isinstance(call, StreamCall):
                    self._authorise_anew(connection, call)

    def _forget_regions(self) -> None:
        for connection in self._connections.values():
            known = connection.known
            if isinstance(connection.template, RegionTemplate):
                connection.template = None
            if known is not None and isinstance(known.template, RegionTemplate):
                connection.known = None

    def _authorise_anew(self, connection: GrpcConnection, call: StreamCall) -> None:
        """End a stream whose API key is not admitted any more: no other check reaches the messages of an open
        stream."""
        opening = open_call(self._state, connection.service, call.opening.metadata, connection.peer)
        if isinstance(opening, Opening):
            call.opening = opening
        elif isinstance(opening, RefusedCall):
            call.finish(*opening)
            self.note_output(connection)

    # --- connections come and go ---

    def _add(self, accepted: socket.socket, data: bytes, *, is_new: bool) -> None:
        accepted.setblocking(False)
        if accepted.family != socket.AF_UNIX:
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = GrpcConnection(
            accepted, self._limits, self.now_s, self.inference.release_token, self._kept, self.buffers.unfinished,
            self._services.get(self._endpoint_of(accepted), self._triton) if self._services else self._triton,
        )  # fmt: skip
        if self._state.log_access:
            connection.access = GrpcCalls(connection.peer)
        connection.silent_until_s = self._head_ends_s
        connection.http2.bound(*self._bounds[:2])
        age_s = self._settings.max_connection_age / 1000
        connection.age_ends_s = self.now_s + age_s if age_s else 0.0
        # Our SETTINGS wait for the client's first bytes: a client of HTTP/1 must get an answer in HTTP/1.
        if self._watch(accepted, connection) and self._stops_at_s:
            connection.go_away()
            self.note_output(connection)

    def _give_up(self, connection: GrpcConnection) -> None:
        _log.exception("a connection is closed, since serving it failed")
        self.close(connection)

    # --- bytes come in ---

    def _serve(self, connection: GrpcConnection, event: int) -> None:
        if event == _IN:
            self._read(connection)
            return
        if event & _GONE:
            self.close(connection)
            return
        if event & _OUT:
            self.note_output(connection)
        if event & _IN:
            self._read(connection)

    def _read(self, connection: GrpcConnection) -> None:
        connection.begun_s = self.now_s
        connection.silent_until_s = 0.0
        if connection.has_target and self._receive_into_target(connection):
            return
        data = connection.read()
        if data:
            known = connection.known
            if known is not None:
                data = self._take_known(connection, known, data)
            if data:
                events = connection.http2.receive(data, self.now_s)
                self._handle(connection, events)
                if len(events) > 1 and isinstance(events[0], RequestStarted):
                    self._learn(connection, data, events)
        elif data is not None:
            self.close(connection)

    def _take_known(self, connection: GrpcConnection, known: KnownCall, data: bytes) -> bytes:
        """Submit the calls whose bytes fit the template of an earlier call, and return the bytes that follow them."""
        position, http2 = 0, connection.http2
        num_data = known.layout.size - HEAD_BYTES
        while (read := known.read(data, position)) is not None:
            if known.template.num_changes != self._state.models.num_changes:
                break
            stream_id, block, id_, tensors = read
            try:
                stream = http2.open_whole(stream_id, block, num_data)
            except BrokenError as error:
                http2.fail(error)
                break
            if stream is False:
                break
            position += HEAD_BYTES + len(block)
            if stream is None:
                break
            opening = known.opening_with(stream.headers)
            if opening is None:  # the calls have other headers now: a call with these has to be learnt
                connection.known = None
                http2.go_on(stream, num_data)
                self._begin(connection, stream_id, stream.headers)
                break
            if connection.access is not None:
                connection.access.begin(stream_id, opening.metadata, self.now_s)
            connection.calls[stream_id] = call = UnaryCall(self, connection, stream_id, opening)
            if opening.timeout_s is not None:
                self._deadlines.add(self.now_s + opening.timeout_s, connection, stream_id, call)
            position += HEAD_BYTES + num_data
            if not call.infer_known(known.template, id_, tensors):  # False: the call is parsed as any other
                call.take(data[position - num_data : position])
        return data[position:] if position else data

    def _learn(self, connection: GrpcConnection, data: bytes, events: Sequence[Event]) -> None:
        """Keep the template of a call, so that the next call is recognised, if the call before this one had that
        template, too."""
        started = events[0]  # calls that came with the first one may have other headers
        call = connection.calls.get(started.stream_id) if isinstance(started, RequestStarted) else None
        template = call.template if isinstance(call, UnaryCall) else None
        if isinstance(call, UnaryCall) and template is not None and template is connection.template:
            connection.known = learn(data, events, call.opening, template)
        connection.template = template

    def _receive_into_target(self, connection: GrpcConnection) -> bool:
        """Receive the next bytes into the memory of their call; False, with nothing received, if the next bytes may be
        others than the message's, or are too few to be worth a read of their own."""
        frames, http2 = self._frames, connection.http2
        expected = http2.expected
        call = None if expected is None else connection.calls.get(expected[0])
        target = None if call is None else call.target
        if expected is None or call is None or target is None:
            connection.has_target = any(each.target is not None for each in connection.calls.values())
            return False
        if frames.expect(target, *expected) < _DIRECT_BYTES:
            return False
        nbytes = connection.read_into(frames.buffers)
        if nbytes == 0:
            self.close(connection)
        elif nbytes > 0:
            received, num_alike, rest = frames.split(nbytes)
            events = http2.received_directly(received, num_alike)
            call.received_into_target(received)
            self._handle(connection, events + http2.receive(rest, self.now_s) if rest else events)
        return True

    def _handle(self, connection: GrpcConnection, events: list[Event]) -> None:
        calls = connection.calls
        for event in events:
            if isinstance(event, DataReceived):
                stream_id, data, is_end = event
                call = calls.get(stream_id)
                if call is not None and data:
                    call.take(data)
                    call = calls.get(stream_id)  # `take` may have replaced or ended the call
                if call is not None and is_end:
                    call.end()
            elif isinstance(event, RequestStarted):
                call = self._begin(connection, event.stream_id, event.headers)
                if call is not None and event.end_stream:
                    call.end()
            elif isinstance(event, StreamReset):
                call = calls.pop(event.stream_id, None)
                if call is not None:
                    call.cancel()
                if connection.access is not None:
                    connection.access.end(event.stream_id, CANCELLED)
            elif isinstance(event, PingAcked):
                connection.pinged_s = 0.0
        http2 = connection.http2
        if http2.is_failed:
            connection.is_ending = True
            connection.end_calls()
        if http2.has_output:
            self.note_output(connection)

    def _begin(self, connection: GrpcConnection, stream_id: int, headers: Mapping[str, str]) -> OpenCall | None:
        """The call that a request's headers begin; None if the headers are refused."""
        if connection.headers is not headers:
            connection.opening = opening = open_call(self._state, connection.service, headers, connection.peer)
            # TorchServe's tokens expire, so calls with one are checked anew though their headers are equal.
            has_token = isinstance(opening, Opening) and opening.method.token and self._state.torchserve.token_file
            connection.headers = None if has_token else headers
        opening = connection.opening
        if connection.access is not None and not isinstance(opening, bytes):
            connection.access.begin(stream_id, headers, self.now_s)
        if not isinstance(opening, Opening):
            if isinstance(opening, RefusedCall):
                connection.refuse(stream_id, *opening)
            else:  # not a call of gRPC: `opening` is the block of an HTTP response
                connection.http2.send_headers(stream_id, opening, end_stream=True)
            return None
        call: OpenCall = _KINDS.get(opening.method.path, UnaryCall)(self, connection, stream_id, opening)
        connection.calls[stream_id] = call
        if opening.timeout_s is not None:
            self._deadlines.add(self.now_s + opening.timeout_s, connection, stream_id, call)
        return call

    # --- answers go out ---

    def _deliver(self) -> None:
        self.inference.deliver()
        if self.parking.waiting:
            self.parking.resume()

    def _on_recall(self, segments: Container[int], is_urgent: bool) -> None:
        self._recall.recall(self._connections.values(), segments, self.now_s, is_urgent=is_urgent)

    def _finish_pass(self) -> None:
        self._patience_s = self._deadlines.expire(self.now_s, TICK_S) if self._deadlines else TICK_S
        dirty, self._dirty = self._dirty, []
        for connection in dirty:
            if self._connections.get(connection.fd) is not connection:
                continue  # closed in this pass; another connection may have its descriptor
            try:
                self._flush(connection)
            except Exception:  # noqa: BLE001  outermost: an unexpected exception closes one connection, not all
                self._give_up(connection)

    def _flush(self, connection: GrpcConnection) -> None:
        if not connection.flush(self.now_s):
            self.close(connection)
            return
        is_blocked = bool(connection.unsent)
        if is_blocked != connection.is_blocked:
            connection.is_blocked = is_blocked
            self._poller.modify(connection.fd, _IN | _OUT if is_blocked else _IN)
        if connection.is_ending and connection.is_over and not is_blocked and not connection.is_shut:
            # Bytes that the client still sends are read for LINGER_S: closing the socket with bytes unread would reset
            # the connection, and lose the last output.
            connection.ends_s = self.now_s + LINGER_S
            connection.shut()

    # --- time passes ---

    def _tick(self) -> None:
        now_s = self.now_s
        self._recall.given_up.log(now_s)
        self._deadlines.forget_ended()
        self.admissions.expire(now_s)
        for connection in longest_idle(self._connections.values(), self._max_connections, now_s):
            connection.go_away()
            self.note_output(connection)
            connection.ends_s = now_s + LINGER_S
        for connection in list(self._connections.values()):
            is_silent = 0.0 < connection.silent_until_s <= now_s or connection.http2.waits_since(now_s - HEAD_S)
            if is_silent or 0.0 < connection.ends_s <= now_s:
                self.close(connection)
                continue
            for call in list(connection.calls.values()):
                call.expire(now_s)
                if self._stops_at_s:
                    call.end_idle(shutting_down())
                    self.note_output(connection)
            if not self._relieve(connection):
                self.close(connection)
                continue
            self._keep_alive(connection)
            self._age(connection)
        self._share_bounds()

    def _share_bounds(self) -> None:
        """Give each connection its share of the streams and header lists that all connections may have open
        together."""
        http2 = [connection.http2 for connection in self._connections.values()]
        num_streams = sum([len(each.streams.open) for each in http2])
        shared = bounds(self._limits, len(http2), num_streams, sum([each.header_nbytes for each in http2]))
        if shared != self._bounds:
            self._bounds = shared
            for each in http2:
                each.bound(*shared[:2])
        for connection in self._connections.values() if shared.is_over else ():
            num_open = len(connection.http2.streams.open)
            self._take_back(connection, shared.kept(num_open, connection.http2.header_nbytes))

    def _take_back(self, connection: GrpcConnection, num_kept: int) -> None:
        """Keep the oldest `num_kept` streams; end those of the others that wait for the client to send messages or to
        take the response."""
        for stream_id in list(connection.http2.streams.open)[num_kept:]:
            call = connection.calls.get(stream_id)
            if call is None:
                connection.cut(stream_id)
            else:
                call.end_idle(UnavailableError(TOO_MANY_OPEN))
            self.note_output(connection)

    def _relieve(self, connection: GrpcConnection) -> bool:
        """Release workers' memory that is held for a client who does not read. False if the client's socket has taken
        nothing for so long that the connection is to be closed."""
        for stream_id in connection.relieve(self.now_s):
            self._cut(connection, stream_id)
        most_s = SEND_S if self._kept.share_bytes > 0 else HOLD_S
        return not connection.unsent or self.now_s - connection.progress_s < most_s

    def _cut(self, connection: GrpcConnection, stream_id: int) -> None:
        call = connection.calls.get(stream_id)
        if call is not None:
            call.cancel()
        connection.cut(stream_id)
        self.note_output(connection)

    def _keep_alive(self, connection: GrpcConnection) -> None:
        """Ping a silent client, and close the connection of a client that does not answer."""
        settings, now_s = self._settings, self.now_s
        if connection.pinged_s:
            if now_s >= connection.pinged_s + settings.keepalive_timeout / 1000:
                self.close(connection)
        elif (
            now_s >= connection.begun_s + settings.keepalive_time / 1000
            and (connection.calls or settings.keepalive_permit_without_calls)
            and connection.http2.ping()
        ):
            connection.pinged_s = now_s
            self.note_output(connection)

    def _age(self, connection: GrpcConnection) -> None:
        """End a connection that has reached its maximum age, so that clients spread over servers that have been
        added."""
        if 0.0 < connection.age_ends_s <= self.now_s:
            connection.go_away()
            self.note_output(connection)
            grace_s = self._settings.max_connection_age_grace / 1000
            connection.age_ends_s = 0.0
            connection.ends_s = self.now_s + grace_s if grace_s else 0.0

    def _refuse_all(self) -> None:
        for connection in list(self._connections.values()):
            for call in list(connection.calls.values()):
                call.expire(math.inf)
            self.note_output(connection)

    def _begin_to_stop(self) -> None:
        for connection in self._connections.values():
            connection.go_away()
            self.note_output(connection)
