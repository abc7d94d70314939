"""What gRPC's clients hold of a worker's results, where the worker lacks memory: copied, or given up (slow_readers.py).

One thread, the lane's.
"""

from collections.abc import Callable, Container, Iterable

from shoal.frontend.grpc.connection import GrpcConnection, Token
from shoal.frontend.slow_readers import HOLD_S, MAX_KEPT_BYTES, GivenUp
from shoal.shm.port import Port


class Recall:
    """Of all connections of a lane; `close` ends one."""

    def __init__(self, port: Port, close: Callable[[GrpcConnection], None]) -> None:
        self._port = port
        self._close = close
        self.given_up = GivenUp("calls")
        # Changed by recall: of replies for which there was no room, since when.
        self._since_s: dict[Token, float] = {}
        # Changed by both: bytes that were copied, when they were counted last.
        self._num_kept = 0
        self._counted_s = 0.0

    def recall(
        self, connections: Iterable[GrpcConnection], segments: Container[int], now_s: float, *, is_urgent: bool
    ) -> list[GrpcConnection]:
        """Copy what is unsent of results in these segments, and give them back.

        Where there is no room for a copy, and it is urgent, their streams end with RESOURCE_EXHAUSTED, but none before
        its time. Returns the connections of these.
        """
        waiting = [each for each in connections if each.is_waited_for]
        before, self._since_s = self._since_s, {}
        changed = []
        for connection in waiting:
            held = [token for token in connection.tokens if self._port.lies_in(*token, segments)]
            if not held or self.keep(connection, waiting, now_s):
                continue
            since_s = {token: before.get(token, now_s) for token in held}
            over = [token for token in held if now_s - since_s[token] >= HOLD_S] if is_urgent else []
            self._since_s.update(since_s)
            if over:
                self._give_up(connection, over, now_s)
                changed.append(connection)
        return changed

    def keep(self, connection: GrpcConnection, connections: Iterable[GrpcConnection], now_s: float) -> bool:
        """Copy what a connection has not sent, and give its blocks back; False where there is no room for it.

        `connections` are all that may have such copies; they are counted once in a pass of the loop.
        """
        if self._counted_s != now_s:
            self._counted_s = now_s
            self._num_kept = sum([each.num_kept for each in connections if each.is_waited_for])
        num_more = connection.num_unsent - connection.num_kept
        if self._num_kept + num_more > MAX_KEPT_BYTES:
            return False
        connection.keep_unsent()
        self._num_kept += num_more
        return True

    def _give_up(self, connection: GrpcConnection, tokens: list[Token], now_s: float) -> None:
        if connection.give_up(tokens):
            for _ in tokens:
                self.given_up.add(now_s)
        else:
            self.given_up.add(now_s)
            self._close(connection)
