"""The limits that a client has on one HTTP/2 connection: sizes, numbers, and the rate of frames without use. Pure."""

from typing import NamedTuple

from shoal.frontend.grpc.http2 import frames


class Limits(NamedTuple):
    """Bounds of one connection. Some are announced to the client in SETTINGS, see `greeting`."""

    #: Bytes of one header list: decoded as RFC 9113 10.5.1 counts (32 bytes beside each field) and encoded, with its
    #: CONTINUATIONs. gRPC's own limit for metadata is 16 KiB, too.
    max_header_bytes: int = 16 * 1024
    #: Bytes of the header lists of all open streams together, counted in the same way; equal lists count once, and
    #: small ones not at all. Ours: room for 250 different tokens of 4 KiB.
    max_open_header_bytes: int = 1024 * 1024
    #: Streams open at one time. Ours: far above h2load's 100 per connection and perf_analyzer's usual concurrency.
    max_streams: int = 1024
    #: Bytes that a client may send on a stream beyond what was credited. Ours: a 4 MiB tensor without waiting.
    stream_window: int = 4 * 1024 * 1024
    #: Bytes that a client may send on all streams together beyond what was credited. Ours: four streams' windows.
    connection_window: int = 16 * 1024 * 1024
    #: Bytes of a frame's payload. Ours: so large that a large tensor comes in few frames.
    max_frame: int = 1024 * 1024
    #: CONTINUATION frames of one header list. Ours: an honest client fills its frames, and needs two at most.
    max_continuations: int = 16
    #: Parameters in one SETTINGS frame; RFC 9113 knows six, gRPC two more.
    max_settings: int = 64
    #: Bytes of the debug data in a GOAWAY.
    max_debug_bytes: int = 1024
    #: Streams that the client may cancel (a token bucket): the burst, the rate per second, and one more for each call
    #: answered. nghttp2 has 1000 and 33/s; ours is wider, since a client whose deadlines pass cancels all streams it
    #: has open.
    reset_burst: int = 2000
    resets_per_s: float = 200.0
    #: Frames without content (SETTINGS, PING, WINDOW_UPDATE, PRIORITY, empty DATA, unknown ones) that the client may
    #: send (a token bucket): the burst, the rate, and so many more for each frame that we sent. Ours: 2000 such frames
    #: a second cost 0.6 % of a core (3 µs each, measured).
    nuisance_burst: int = 10_000
    nuisances_per_s: float = 2000.0
    nuisances_per_frame_sent: float = 4.0
    #: The server's acknowledgements and resets that the client has not read yet. Ours.
    max_unsent_answers: int = 10_000
    #: The number of pings that may come too early, the seconds that must lie between two pings, and whether the same
    #: seconds hold for a connection without open calls (if not, two hours must lie between its pings). Triton's flags
    #: and defaults; by gRPC core's rules the count begins again when we send HEADERS or DATA.
    max_ping_strikes: int = 2
    min_recv_ping_interval_without_data_s: float = 300.0
    keepalive_permit_without_calls: bool = False
    #: The most pings that we send without HEADERS or DATA between them; 0: no limit. Triton's flag and default, gRPC
    #: core's rule.
    max_pings_without_data: int = 2


def greeting(limits: Limits) -> list[bytes]:
    """The server's first frames: its SETTINGS, and a WINDOW_UPDATE for the connection, whose window no setting sets."""
    values = {
        frames.MAX_CONCURRENT_STREAMS: limits.max_streams,
        frames.INITIAL_WINDOW_SIZE: limits.stream_window,
        frames.MAX_FRAME_SIZE: limits.max_frame,
        frames.MAX_HEADER_LIST_SIZE: limits.max_header_bytes,
    }
    pieces = [frames.settings(values)]
    if limits.connection_window > frames.DEFAULT_WINDOW:
        pieces.append(frames.window_update(0, limits.connection_window - frames.DEFAULT_WINDOW))
    return pieces
