"""Calls that came while there was no room for their requests: the calls of each model wait, in their order, until
replies make room.

HTTP/1.1 has one request per connection, which can wait in the socket; a client of gRPC may have a thousand calls on
each connection, so they wait here. Only the memory of waiting messages is bounded: calls whose messages would exceed it
are refused. Each model has a queue of its own, a share of that memory (shm/shares.py), and its turn when there is room
again, so that no call waits because another model is slow. One thread, the lane's.
"""

from collections import OrderedDict, deque

from shoal.frontend.grpc.call import AskingCall
from shoal.frontend.grpc.inbox import ReceivedMessage
from shoal.frontend.grpc.inference_protocol import InferenceProtocol
from shoal.shm.port import Port
from shoal.shm.shares import may_take

#: Bytes of the messages of all waiting calls together (ours: ten thousand messages of a few kilobytes).
MAX_PARKED_BYTES = 64 << 20


class Parking:
    """All calls of a lane that wait for room."""

    def __init__(self, port: Port) -> None:
        self._port = port
        #: By the model's number, the calls that wait and the bytes of each call's message; empty most of the time. Only
        #: the methods of this class change it.
        self.waiting: dict[int, OrderedDict[AskingCall, int]] = {}
        # Changed with `waiting`: the bytes of messages that wait for each model, and for all models; the models in the
        # order of their turns.
        self._nbytes_of: dict[int, int] = {}
        self._nbytes = 0
        self._turns: deque[int] = deque()

    def must_wait(self, received: ReceivedMessage, protocol: InferenceProtocol) -> int:
        """The number of the model that a message of a protocol has to wait for, because there is no room for the
        message, or because earlier calls to the model wait. 0 if the message need not wait.

        Also 0 if waiting would take too much memory: the request is then refused when it is submitted.
        """
        port = self._port
        if not self.waiting and port.is_ample:
            return 0
        model = _model_of(received, protocol)
        if model in self.waiting or not (port.has_place(model) and port.has_memory(model)):
            return model if self._has_space(model, len(received.data)) else 0
        return 0

    def may_wait(self, model: int, received: ReceivedMessage) -> bool:
        """Whether a message for which there was no room may wait. A message that lay in a block may not: the refused
        submission has freed the block."""
        return received.block is None and self._has_space(model, len(received.data))

    def _has_space(self, model: int, nbytes: int) -> bool:
        free_nbytes = MAX_PARKED_BYTES - self._nbytes
        return nbytes <= free_nbytes and may_take(self._nbytes_of.get(model, 0), free_nbytes)

    def leave(self, call: AskingCall, model: int) -> None:
        """Forget a call that has ended, if it still waits for this model."""
        waiting = self.waiting.get(model)
        if waiting is not None and call in waiting:
            self._remove(model, waiting, waiting.pop(call))

    def keep(self, received: ReceivedMessage, protocol: InferenceProtocol) -> tuple[int, int] | None:
        """Count a message that waits behind others of its stream. Returns the arguments for `drop`, which is to be
        called when the message waits no longer; returns None if the message would take too much memory."""
        model, nbytes = _model_of(received, protocol), len(received.data)
        if not self._has_space(model, nbytes):
            return None
        self._count(model, nbytes)
        return model, nbytes

    def drop(self, model: int, nbytes: int) -> None:
        """Stop counting a message that `keep` has counted."""
        self._count(model, -nbytes)

    def _count(self, model: int, nbytes: int) -> None:
        self._nbytes += nbytes
        self._nbytes_of[model] = self._nbytes_of.get(model, 0) + nbytes
        if not self._nbytes_of[model]:
            del self._nbytes_of[model]

    def park(self, call: AskingCall, model: int, nbytes: int, *, is_first: bool = False) -> None:
        """Let a call wait whose message takes `nbytes` bytes; with `is_first`, in front of its model's other calls."""
        waiting = self.waiting.get(model)
        if waiting is None:
            waiting = self.waiting[model] = OrderedDict()
            self._turns.append(model)
        waiting[call] = nbytes
        if is_first:
            waiting.move_to_end(call, last=False)
        self._count(model, nbytes)

    def _remove(self, model: int, waiting: "OrderedDict[AskingCall, int]", nbytes: int) -> None:
        self._count(model, -nbytes)
        if not waiting:
            del self.waiting[model]
            self._turns.remove(model)

    def resume(self) -> None:
        """Resume waiting calls after replies have come: one call of each model in turn, until no model has room
        left."""
        port, turns = self._port, self._turns
        num_refused = 0
        while num_refused < len(turns):
            model = turns[0]
            turns.rotate(-1)
            if not (port.has_place(model) and port.has_memory(model)):
                num_refused += 1
                continue
            waiting = self.waiting[model]
            call, nbytes = waiting.popitem(last=False)
            self._remove(model, waiting, nbytes)
            lacking = call.resume()
            if lacking:
                self.park(call, lacking, nbytes, is_first=True)
                num_refused += 1
            else:
                num_refused = 0


def _model_of(received: ReceivedMessage, protocol: InferenceProtocol) -> int:
    """The number of the model that a message is for; 0 if that is unknown before the message is parsed."""
    return 0 if received.is_compressed else protocol.model_of(received.data)
