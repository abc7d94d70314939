"""The sending half of an HTTP/2 connection: responses framed as windows and frame size allow, fairly between streams.

A small response that fits goes out at once. Everything else waits in its stream's queue and is framed by `output`, one
turn per stream. Large memory is never copied. Actions on a stream that has ended (the client may reset a stream at any
time) have no effect, except that `output` returns the tokens given with them. Pure.
"""

from collections import deque
from collections.abc import Sequence
from typing import Any

from shoal.frontend.grpc.http2 import frames
from shoal.frontend.grpc.http2.events import Sent
from shoal.frontend.grpc.http2.frames import DATA, END_STREAM, ResponseHeaderBlocks, pack_head
from shoal.frontend.grpc.http2.limits import Limits, greeting
from shoal.frontend.grpc.http2.streams import Chunk, Queue, Stream, Streams

#: Pieces up to this size are joined with their neighbours: a copy of 4 KiB costs less than another entry of a sendmsg.
_JOINED_BYTES = 4096
#: Most bytes of DATA that one `output` takes from the streams, and that one stream sends in its turn while others wait.
_OUTPUT_BYTES, _TURN_BYTES = 1024 * 1024, 64 * 1024


class Sending:
    """The output, the queues of the streams, and the send windows of connection and streams."""

    __slots__ = (
        "_block_prefix",
        "_max_frame",
        "_num_counted",
        "_pieces",
        "_ready",
        "_small",
        "_tokens",
        "initial_window",
        "lent_bytes",
        "num_answers",
        "num_ended",
        "num_queued",
        "num_sent",
        "streams",
        "window",
    )

    def __init__(self, limits: Limits) -> None:
        self.streams = Streams()
        # The fields below are changed by all methods of this class.
        #: Bytes that the connection may still send, and that a new stream may send.
        self.window = frames.DEFAULT_WINDOW
        self.initial_window = frames.DEFAULT_WINDOW
        self._max_frame = frames.DEFAULT_MAX_FRAME
        self._block_prefix = b""  # to stand before the next header block: the HPACK table's new size
        self._ready: deque[Stream] = deque()  # streams with data and a window for it, in the order of their turns
        # The output: `_pieces`, then `_small`; and the tokens of pieces that lie in the output or were dropped.
        self._pieces: list[Chunk] = []
        self._small: list[Chunk] = [*greeting(limits)]
        self._tokens: list[Any] = []
        self._num_counted = 0  # how many of `_pieces` `join_waiting` has counted
        #: How many HEADERS and DATA frames were made, and how many responses were completed, since the connection
        #: began; and how many answers (see `answer`) were made since the last `output`.
        self.num_sent = 0
        self.num_ended = 0
        self.num_answers = 0
        #: Bytes of all streams' data that `output` has not returned yet; and bytes of the messages among them that have
        #: a token, and so lie in another process's memory.
        self.num_queued = self.lent_bytes = 0

    # --- responses ---

    def respond(
        self,
        stream_id: int,
        headers_block: bytes,
        chunks: Sequence[Chunk],
        trailers_block: bytes,
        token: Any = None,
        now_s: float = 0.0,
    ) -> None:
        """Send a whole response. The header blocks are HPACK that refers to the static table only; `chunks` are the
        message's bytes.

        `token` comes out of `output` with the response's end: until the end is sent the chunks must stay unchanged.
        """
        if sum(map(len, chunks)) + len(headers_block) + len(trailers_block) <= _JOINED_BYTES:
            blocks = ResponseHeaderBlocks.of(headers_block, trailers_block)
            if self.respond_at_once(stream_id, blocks, chunks, sum(map(len, chunks))):
                if token is not None:
                    self._tokens.append(token)
                return
        self.send_headers(stream_id, headers_block)
        self.send_data(stream_id, chunks, token, now_s)
        self.send_trailers(stream_id, trailers_block)

    def respond_at_once(
        self, stream_id: int, blocks: ResponseHeaderBlocks, chunks: Sequence[Chunk], nbytes: int
    ) -> bool:
        """Send a whole response of `nbytes` bytes, with its chunks copied, if the response fits in a frame and nothing
        delays it. False, without effect, otherwise.

        This has the effect of the three calls in `respond`, but takes 3 µs where they take 11 (measured).
        """
        stream = self.streams.open.get(stream_id)
        if (
            stream is None
            or nbytes > frames.DEFAULT_MAX_FRAME
            or nbytes > stream.send_window
            or nbytes > self.window
            or stream.queue is not None
            or self._ready  # other streams wait for their turns
            or self._block_prefix
        ):
            return False
        headers_head, headers, trailers_head, trailers = blocks
        number, data_head = stream_id.to_bytes(4, "big"), pack_head(nbytes << 8 | DATA, 0, stream_id)
        self._small.append(
            b"".join((headers_head, number, headers, data_head, *chunks, trailers_head, number, trailers))
        )
        self.window -= nbytes
        self.num_sent += 1
        self._end(stream)
        return True

    def send_headers(self, stream_id: int, block: bytes, *, end_stream: bool = False) -> None:
        """Send the header block that begins a response, once and before any data; with `end_stream` the block is the
        whole response."""
        stream = self.streams.open.get(stream_id)
        if stream is None:
            return
        if self._block_prefix:
            block, self._block_prefix = self._block_prefix + block, b""
        self._put(frames.headers(stream_id, block, END_STREAM if end_stream else 0, self._max_frame))
        self.num_sent += 1
        if end_stream:
            self._end(stream)

    def send_data(self, stream_id: int, chunks: Sequence[Chunk], token: Any = None, now_s: float = 0.0) -> None:
        """Queue data behind the stream's queued data; `token` is as in `respond`, and `now_s` is the present time,
        which the token's mark keeps (Sent)."""
        stream = self.streams.open.get(stream_id)
        if stream is None:
            if token is not None:
                self._tokens.append(token)
            return
        queue = stream.queue
        if queue is None:
            queue = stream.queue = Queue()
        nbytes = 0
        for chunk in chunks:
            if len(chunk):
                queue.pieces.append(chunk)
                nbytes += len(chunk)
        queue.nbytes += nbytes
        self.num_queued += nbytes
        if token is not None:
            queue.pieces.append(Sent(token, nbytes, now_s))
            queue.num_lent += 1
            self.lent_bytes += nbytes
        self._make_ready(stream)

    def send_trailers(self, stream_id: int, block: bytes) -> None:
        """Send the end of a response, behind all its data. A client that is still sending gets an RST_STREAM."""
        stream = self.streams.open.get(stream_id)
        if stream is not None and stream.queue is not None and stream.queue.nbytes:
            stream.queue.trailers = block
        else:
            self.send_headers(stream_id, block, end_stream=True)

    def reset(self, stream_id: int, error_code: int) -> None:
        """Send RST_STREAM; queued data is dropped, and `output` returns the tokens of that data."""
        stream = self.streams.open.get(stream_id)
        if stream is not None:
            self.refuse(stream_id, error_code, is_ended_by_peer=stream.is_ended_by_peer)
            self.drop(stream)

    def is_shut(self, stream_id: int) -> bool:
        """Whether the client's windows let no more data of a stream go out."""
        stream = self.streams.open.get(stream_id)
        return stream is None or self.window <= 0 or stream.send_window <= 0

    def unsent_nbytes(self, stream_id: int) -> int:
        """Number of bytes of the stream's data that `output` has not returned yet."""
        queue = self.streams.queue_of(stream_id)
        return 0 if queue is None else queue.nbytes

    # --- actions for the receiving half ---

    def refuse(self, number: int, error_code: int, *, is_ended_by_peer: bool) -> None:
        """Send RST_STREAM; frames that the client still sends on the stream are ignored."""
        self.answer(frames.rst_stream(number, error_code))
        if not is_ended_by_peer:
            self.streams.leave(number)

    def drop(self, stream: Stream) -> None:
        self._tokens += self._empty(stream)
        del self.streams.open[stream.number]

    def _empty(self, stream: Stream) -> list[Any]:
        """Drop a stream's queue. Returns its tokens."""
        queue, stream.queue = stream.queue, None
        if queue is None:
            return []
        if queue.is_ready:
            self._ready.remove(stream)
        self.num_queued -= queue.nbytes
        return self._taken_out([each for each in queue.pieces if isinstance(each, Sent)])

    def _taken_out(self, marks: Sequence[Sent]) -> list[Any]:
        """The tokens of marks that were taken out of a queue; the messages with these tokens no longer count as
        lent."""
        self.lent_bytes -= sum([each.nbytes for each in marks])
        return [each.token for each in marks]

    def drop_all(self) -> None:
        for stream in list(self.streams.open.values()):
            self.drop(stream)

    def answer(self, frame: bytes) -> None:
        """Send a frame about the connection, or one that answers a frame of the client's."""
        self._small.append(frame)
        self.num_answers += 1

    def update_window(self, number: int, increment: int) -> None:
        """Let the client send `increment` more bytes; stream 0 is the connection."""
        self._small.append(frames.window_update(number, increment))

    def keep(self, stream: Stream, most_bytes: int) -> list[Any]:
        """Copy a stream's queued messages that lie in another process's memory, from the first and at most
        `most_bytes` bytes. Returns their tokens, which `output` then does not return."""
        return [] if stream.queue is None else self._taken_out(stream.queue.keep(most_bytes))

    def take_tokens(self) -> list[Any]:
        """The tokens of data that was dropped since the last `output`, for code that does not wait for the next
        `output`."""
        tokens, self._tokens = self._tokens, []
        return tokens

    def cut(self, stream_id: int, block: bytes) -> list[Any]:
        """End a response with `block` in place of its queued data. Returns the tokens of that data, which `output`
        then does not return."""
        stream = self.streams.open.get(stream_id)
        tokens = [] if stream is None else self._empty(stream)
        self.send_headers(stream_id, block, end_stream=True)
        return tokens

    def widen(self, stream: Stream, nbytes: int) -> bool:
        """Let `nbytes` more bytes of the stream go out; False if its window exceeds the RFC's limit."""
        stream.send_window += nbytes
        self._make_ready(stream)
        return stream.send_window <= frames.MAX_WINDOW

    def apply(self, values: dict[int, int]) -> bool:
        """Apply the client's SETTINGS, whose values are within their bounds; False if a stream's window exceeds the
        RFC's limit."""
        self._max_frame = values.get(frames.MAX_FRAME_SIZE, self._max_frame)
        if values.get(frames.HEADER_TABLE_SIZE, frames.DEFAULT_HEADER_TABLE) < frames.DEFAULT_HEADER_TABLE:
            # We put nothing into the table that the client keeps for our header blocks, and have to say so when the
            # client reduces the size of that table (RFC 7541, 4.2).
            self._block_prefix = b"\x20"
        initial_window = values.get(frames.INITIAL_WINDOW_SIZE, self.initial_window)
        difference = initial_window - self.initial_window
        self.initial_window = initial_window
        # RFC 9113, 6.9.2: the setting changes the windows of open streams, too.
        is_within_bounds = True
        if difference:
            for stream in list(self.streams.open.values()):
                is_within_bounds &= self.widen(stream, difference)
        self.answer(frames.SETTINGS_ACK)
        return is_within_bounds

    # --- output ---

    def output(self) -> tuple[list[Chunk], list[Any]]:
        """A bounded part of the bytes that may go out now, in order; and the tokens of the data that is sent or dropped
        with them.

        To be called until it returns nothing or the socket is full, and each time only after the last result has been
        written to the socket: the number of answers since the last call then shows whether a client floods the server
        without reading. Small pieces are joined, large ones are not copied.
        """
        if self._ready:
            self._take_turns()
        self._join()
        output = self._pieces, self._tokens
        self._pieces, self._tokens, self.num_answers = [], [], 0
        self._num_counted = 0
        return output

    def small_output(self) -> bytes:
        """The output if it consists of small pieces alone; otherwise b"", and no effect."""
        small = self._small
        if self._ready or self._pieces or self._tokens or not small:
            return b""
        self._small, self.num_answers = [], 0
        return b"".join(small)

    def _put(self, piece: Chunk) -> None:
        if len(piece) <= _JOINED_BYTES:
            self._small.append(piece)
        else:
            self._join()
            self._pieces.append(piece)

    def join_waiting(self) -> int:
        """Join the small pieces that wait for an `output`; returns how many bytes have come to wait since the last
        call."""
        self._join()
        nbytes = sum([len(piece) for piece in self._pieces[self._num_counted :]])
        self._num_counted = len(self._pieces)
        return nbytes

    def _join(self) -> None:
        if self._small:
            self._pieces.append(b"".join(self._small))
            self._small.clear()

    @property
    def has_output(self) -> bool:
        """Whether `output` would return anything."""
        return bool(self._small or self._pieces or self._tokens or (self._ready and self.window > 0))

    def _make_ready(self, stream: Stream) -> None:
        """Let a stream take turns if it has data and a window for it. Marks alone need no turn."""
        queue = stream.queue
        if queue is None or queue.is_ready:
            return
        if not queue.nbytes:
            self._pass_marks(queue)
        elif stream.send_window > 0:
            queue.is_ready = True
            self._ready.append(stream)

    def _take_turns(self) -> None:
        ready = self._ready
        left = _OUTPUT_BYTES
        while ready and left > 0 and self.window > 0:
            stream = ready.popleft()
            queue = stream.queue
            assert queue is not None
            queue.is_ready = False
            if stream.send_window > 0:  # SETTINGS may have reduced the window meanwhile
                turn = min(left, _TURN_BYTES if ready else left, queue.nbytes, stream.send_window, self.window)
                self._take_turn(stream, queue, turn)
                left -= turn
                self._make_ready(stream)

    def _take_turn(self, stream: Stream, queue: Queue, nbytes: int) -> None:
        """Frame `nbytes` bytes of a stream, and the marks and trailers behind them, which need no window."""
        stream.send_window -= nbytes
        self.window -= nbytes
        queue.nbytes -= nbytes
        queue.num_taken += nbytes
        self.num_queued -= nbytes
        while nbytes > 0:
            in_frame = min(nbytes, self._max_frame)
            first = queue.pieces[0]
            if in_frame == self._max_frame and not isinstance(first, Sent) and len(first) > in_frame:
                passed = self._pass_frames(stream.number, memoryview(first), nbytes)
                queue.pieces[0] = memoryview(first)[passed:]
                nbytes -= passed
                continue
            nbytes -= in_frame
            self._small.append(pack_head(in_frame << 8 | DATA, 0, stream.number))
            self.num_sent += 1
            self._pass_data(queue, in_frame)
        self._pass_marks(queue)
        if queue.trailers is not None and not queue.nbytes:
            self.send_headers(stream.number, queue.trailers, end_stream=True)

    def _pass_data(self, queue: Queue, nbytes: int) -> None:
        """Move `nbytes` bytes from the queue into the output."""
        waiting = queue.pieces
        while nbytes:
            piece = waiting.popleft()
            if isinstance(piece, Sent):
                self._pass_mark(queue, piece)
                continue
            if len(piece) > nbytes:
                rest = memoryview(piece)
                waiting.appendleft(rest[nbytes:])
                piece = rest[:nbytes]
            self._put(piece)
            nbytes -= len(piece)

    def _pass_frames(self, number: int, piece: memoryview, nbytes: int) -> int:
        """Frame as many whole frames as a piece and `nbytes` bytes allow, at least one. Returns the number of bytes
        framed.

        This has the effect of the loop in `_take_turn`, but takes a fifth of its time. At least one byte of the piece
        is left to that loop.
        """
        in_frame = self._max_frame
        num_frames = min(len(piece) - 1, nbytes) // in_frame
        head = pack_head(in_frame << 8 | DATA, 0, number)
        framed: list[Chunk] = [head] * (2 * num_frames - 1)  # all but the first head, which is joined to earlier pieces
        framed[::2] = [piece[start : start + in_frame] for start in range(0, num_frames * in_frame, in_frame)]
        self._small.append(head)
        self._join()
        self._pieces += framed
        self.num_sent += num_frames
        return num_frames * in_frame

    def _pass_marks(self, queue: Queue) -> None:
        """Move marks at the head of the queue into the output, behind their data."""
        waiting = queue.pieces
        while waiting and isinstance(first := waiting[0], Sent):
            self._pass_mark(queue, first)
            waiting.popleft()

    def _pass_mark(self, queue: Queue, mark: Sent) -> None:
        self._tokens.append(mark.token)
        queue.num_lent -= 1
        self.lent_bytes -= mark.nbytes

    def _end(self, stream: Stream) -> None:
        """End the server's side of a stream whose response is complete."""
        self.num_ended += 1
        if not stream.is_ended_by_peer:
            # The client need not send the rest of the request (RFC 9113, 8.1).
            self.refuse(stream.number, frames.NO_ERROR, is_ended_by_peer=False)
        del self.streams.open[stream.number]
