"""One read that receives a large message into its block, although the heads of its frames lie in between. Pure.

Most clients cut a message into frames of 16 KiB. Once a frame has begun, its rest is certain to be data of the message.
Behind that, frames like it are expected; whether they came is found afterwards, by their heads. Other bytes that came
instead are returned, to be parsed: they lie where data was expected, and the data overwrites them when it comes.
"""

from shoal.frontend.grpc.http2.frames import HEAD_BYTES, pack_head

#: The most bytes of one read, since other connections wait meanwhile; and the fewest bytes for which buffers are
#: prepared, even after a read that brought less.
_MAX_BYTES, _MIN_BYTES = 512 * 1024, 64 * 1024
_MAX_FRAMES = 64
#: Room for the bytes behind the last expected frame: mostly the message's last frame, which is shorter.
_REST_BYTES = 32 * 1024


class ExpectedFrames:
    """The buffers of one read of a large message; one object for all connections of a thread."""

    def __init__(self) -> None:
        # The fields below are changed by the read, and by `expect`.
        self._heads = bytearray(_MAX_FRAMES * HEAD_BYTES)
        self._rest = memoryview(bytearray(_REST_BYTES))
        view = memoryview(self._heads)
        self._each_head = [view[start : start + HEAD_BYTES] for start in range(0, len(view), HEAD_BYTES)]
        self._buffers: list[memoryview] = []
        self._num_certain = self._length = 0
        self._head = b""
        self._num_expected = _MAX_BYTES  # twice the bytes of the last read: each further buffer costs time

    def expect(self, target: memoryview, stream_id: int, num_certain: int, length: int, num_alike: int) -> int:
        """Prepare the buffers for the rest of a frame (`num_certain` bytes), and up to `num_alike` frames like it, of
        `length` bytes, in `target`. Returns how many bytes of data are expected.

        Only frames whose payload lies wholly in `target` are expected.
        """
        self._head = pack_head(length << 8, 0, stream_id)
        start = self._num_certain = min(num_certain, len(target))
        self._length = length
        self._buffers = buffers = [target[:start]]
        if length and start == num_certain:
            most = min(num_alike, (min(len(target), self._num_expected) - start) // length)
            for head in self._each_head[: max(most, 0)]:
                buffers += (head, target[start : start + length])
                start += length
            buffers.append(self._rest)
        return start

    @property
    def buffers(self) -> list[memoryview]:
        """The buffers to receive into, in this order."""
        return self._buffers

    def split(self, nbytes: int) -> tuple[int, int, bytes]:
        """Sort `nbytes` received bytes. Returns how many bytes of the target are the stream's data, how many expected
        frames have begun in them, and the bytes that are no data of expected frames."""
        self._num_expected = min(max(2 * nbytes, _MIN_BYTES), _MAX_BYTES)
        more, length = nbytes - self._num_certain, self._length
        if more <= 0:
            return nbytes, 0, b""
        buffers, step = self._buffers, HEAD_BYTES + length
        num_expected = len(buffers) // 2 - 1
        num_frames = min(num_expected, (more + length) // step)  # frames whose heads have come
        heads, head = self._heads, self._head
        if not heads.startswith(head * num_frames):
            num_frames = next(i for i in range(num_frames) if not heads.startswith(head, i * HEAD_BYTES))
        in_frames = min(more, num_frames * step)
        rest, left = [], more - in_frames
        for buffer in buffers[1 + 2 * num_frames :]:
            if left <= 0:
                break
            rest.append(buffer[:left])
            left -= len(buffer)
        return nbytes - (more - in_frames) - num_frames * HEAD_BYTES, num_frames, b"".join(rest)
