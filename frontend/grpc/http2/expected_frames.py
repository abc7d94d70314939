"""One read that puts a large message where it belongs, though its frames' heads lie in between. Pure.

Most clients cut a message into frames of 16 KiB. Once one has begun, so many bytes are certain to be its data; behind
them frames like it are expected, and whether they came is seen afterwards, by their heads. What else came is returned,
to be parsed: it lies where data was expected, and is overwritten by what does belong there.
"""

from shoal.frontend.grpc.http2.frames import HEAD_BYTES, pack_head

#: The most of one read, since others wait meanwhile; and the least that is expected where little came the last time.
_MAX_BYTES, _MIN_BYTES = 512 * 1024, 64 * 1024
_MAX_FRAMES = 64
#: For what follows the last frame that is expected: mostly the message's last one, which is shorter.
_REST_BYTES = 32 * 1024


class ExpectedFrames:
    """The buffers of the read; one for all connections of a thread."""

    def __init__(self) -> None:
        # Changed by the read, and by `expect`.
        self._heads = bytearray(_MAX_FRAMES * HEAD_BYTES)
        self._rest = memoryview(bytearray(_REST_BYTES))
        view = memoryview(self._heads)
        self._each_head = [view[start : start + HEAD_BYTES] for start in range(0, len(view), HEAD_BYTES)]
        self._buffers: list[memoryview] = []
        self._num_certain = self._length = 0
        self._head = b""
        self._num_expected = _MAX_BYTES  # twice what came the last time: each place that is expected has its price

    def expect(self, target: memoryview, stream_id: int, num_certain: int, length: int, num_alike: int) -> int:
        """Expect the rest of a frame, and up to so many like it, of `length`, in `target`. How many bytes of them.

        They are expected as far as they lie in `target` altogether.
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
        """What is to be received into, in this order."""
        return self._buffers

    def split(self, nbytes: int) -> tuple[int, int, bytes]:
        """So many bytes have come. How many of the target are its stream's, in how many frames that began; the rest."""
        self._num_expected = min(max(2 * nbytes, _MIN_BYTES), _MAX_BYTES)
        more, length = nbytes - self._num_certain, self._length
        if more <= 0:
            return nbytes, 0, b""
        buffers, step = self._buffers, HEAD_BYTES + length
        num_expected = len(buffers) // 2 - 1
        num_frames = min(num_expected, (more + length) // step)  # whose heads have come
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
