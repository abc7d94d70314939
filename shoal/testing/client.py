"""The client of a test's star, for the test and its models: requests go through a real port, replies become responses.

Models use this client as they use `shoal.star.client.StarClient` in a worker. All methods run under the star's lock, in
the thread that submits or lets time pass. Responses are copied, so that no memory stays in use.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from shoal import errors
from shoal.errors import CancelledError, ShoalError, UnavailableError
from shoal.reasons import ModelGoneError
from shoal.request import unpack_response
from shoal.shm.layout import NO_DIGEST
from shoal.shm.pieces import whole
from shoal.shm.port import Port, Reply
from shoal.shm.ring import RingFullError
from shoal.star.client import HeldBlock, HeldResponse, OnAnswer
from shoal.star.models import ModelTable
from shoal.star.outgoing import OutgoingRequest
from shoal.star.questions import Ask
from shoal.star.refusal import refusal
from shoal.star.request_digest import request_digest
from shoal.testing.simulation import Simulation


@dataclass(slots=True, eq=False)
class OpenRequest:
    """A submitted request whose last reply has not come yet."""

    outgoing: OutgoingRequest
    on_answer: OnAnswer | None  # None: a call that its model has cancelled
    is_unwanted: Callable[[], bool]
    keep: object  # objects that must stay until the last reply
    is_call: bool  # made by a model, not by the test


class LocalClient:
    """The only client of its star."""

    #: Calls of models have no timeout but their clients' deadlines: a call that can never be answered is a StuckError.
    request_timeout_s = 1e9
    #: Answers models' requests to load or unload models; set before the first model is loaded.
    ask: Ask

    def __init__(self, simulation: Simulation, port: Port) -> None:
        self._simulation = simulation
        self._port = port
        self.now_ns = simulation.time_ns
        self.models = ModelTable()
        # Changed under the lock: number → request; block → number of calls that name it.
        self.open: dict[int, OpenRequest] = {}
        self._lent: Counter[int] = Counter()

    def submit(
        self,
        outgoing: OutgoingRequest,
        on_answer: OnAnswer,
        deadline_ns: int = 0,
        is_unwanted: Callable[[], bool] = lambda: False,
        keep: object = None,
        parent: int = 0,
        *,
        is_call: bool = True,
    ) -> int:
        """Queue a request, or have it refused at once; returns its number. Raises ShoalError if there is no room.

        A request of the test (not `is_call`) may be answered from the cache, as a front end's may. There are no traces.
        """
        del deadline_ns, parent
        ask, entry = outgoing.ask, outgoing.entry
        with self._simulation.changed:
            block = self._port.allocate(outgoing.nbytes, entry.model_id)
            try:
                span = outgoing.write(block.memory)
                digest = NO_DIGEST if is_call or not entry.is_cached else request_digest(block.memory, span)
                number = self._port.submit(outgoing, ask, block, span, self.now_ns(), digest, ask.answer_by_ns)
            except RingFullError:
                self._port.slab.free(block.ref)
                raise UnavailableError("Exceeds maximum queue size") from None
            self._port.flush()
            self.open[number] = OpenRequest(outgoing, on_answer, is_unwanted, keep, is_call)
            self._simulation.admit()
        return number

    def cancel(self, number: int) -> None:
        """Cancel a request: a queued one fails, and the model of an executing one is notified. Open calls that are no
        longer wanted are cancelled, too; their models get CancelledError at once."""
        with self._simulation.changed:
            request = self.open.get(number)
            if request is None or request.on_answer is None:
                return
            self._port.cancel(number)
            self._port.flush()
            self._simulation.admit()
            if request.is_call and number in self.open:
                on_answer, request.on_answer = request.on_answer, None
                on_answer(CancelledError("Request was cancelled"), True)
            others = [(other, each) for other, each in self.open.items() if other != number]
        for other, each in others:
            if each.is_unwanted():
                self.cancel(other)

    def deliver(self) -> None:
        """Pass on the replies that have arrived, and release their memory."""
        for reply in self._port.poll():
            request = self.open[reply.number]
            if reply.is_final:
                del self.open[reply.number]
            if request.on_answer is not None:
                request.on_answer(self._answer(request, reply), reply.is_final)
            if reply.block is not None:
                self._port.release(reply.number, reply.part, prompt=False)
        self._port.flush()

    def _answer(self, request: OpenRequest, reply: Reply) -> HeldResponse | ShoalError | None:
        block, header, ask = reply.block, reply.header, request.outgoing.ask
        if reply.is_empty:
            return None
        if block is None or header is None:
            error = refusal(request.outgoing.entry, ask.id, reply, ask.correlation_id)
            # Unlike a worker, this client does not send a call again when its model is gone: a test that unloads a
            # model sees the failure.
            return UnavailableError(str(error)) if isinstance(error, ModelGoneError) else error
        if reply.status:
            return self._simulation.with_cause(errors.from_wire(reply.status, str(header, "utf-8", "replace")))
        try:
            response = unpack_response(header, len(block))
        except ShoalError as error:
            return error
        return HeldResponse(response, HeldBlock((len(block),), np.uint8, bytes(whole(block))), 0)

    # --- tensors of executing requests that models pass on ---

    def lend(self, refs: Iterable[int]) -> None:
        """Add one use by a model's call to each block; `give_back` takes it away."""
        with self._simulation.changed:
            self._lent.update(refs)

    def give_back(self, refs: Iterable[int]) -> None:
        """Take away one use of each block: the call that named them is answered."""
        with self._simulation.changed:
            self._lent -= Counter(refs)
            self._simulation.changed.notify_all()

    def has_lent(self, refs: Iterable[int]) -> bool:
        """Whether a call that has not been answered names one of these blocks."""
        return any(ref in self._lent for ref in refs)

    def wait_until_returned(self, refs: Sequence[int]) -> None:
        """Let time pass until no open call names one of these blocks."""
        if self.has_lent(refs):
            self._simulation.run_until(lambda: not self.has_lent(refs))
