"""What one executed batch answers, on its way into one block of the worker's slab.

    0        outputs, each 64-byte aligned: the rows of all requests of the batch, one array per output;
             then per request its packed InferResponse, whose tensors point at its rows
    …        the same again for each request that a backend answers by itself, as it must where there are strings
    …        sentences of errors

A backend adds outputs; the loop writes the block and publishes, but for requests that a sender answers. Those of a
warm-up are never written. Runs in a worker; every array is copied once at most.
"""

import functools
import math
from collections.abc import Mapping, Sequence

import numpy as np

from shoal.datatypes import BYTES
from shoal.errors import InternalError, ShoalError, UnavailableError, UnsupportedError
from shoal.request import Parameters
from shoal.shm.layout import NO_BLOCK, pack_span
from shoal.shm.slab import Block
from shoal.workers.memory import Memory
from shoal.workers.plans import Column, OutputLayout, OutputLayouts
from shoal.workers.requests import Request, Share, is_wanted, log_prefix
from shoal.workers.response_sender import OpenBatch, OpenBatches, ResponseSender, WarmupResponseSender
from shoal.workers.response_sender import WrittenResponseSender as Written
from shoal.workers.sentences import sentence_bytes
from shoal.workers.tensors import Array, Output

_NO_STATUSES: Mapping[int, int] = {}
_NO_SENDERS: Mapping[int, ResponseSender] = {}
#: Up to here copying twice, through bytes, is faster than making an array of the block: 0.3 us against 1.0 at 64 bytes.
_SMALL_NBYTES = 4096


class Answers:
    """The answers to the requests of one batch, success until `fail` says otherwise."""

    def __init__(self, num_requests: int, plans: OutputLayouts) -> None:
        self._num_requests = num_requests
        self._plans = plans
        # Changed by the backend, the times directly; `statuses` and `spans` are complete when they are written.
        self.input_end_ns = 0
        self.output_start_ns = 0
        #: Failed requests of the batch: position → the error's wire number.
        self.statuses: Mapping[int, int] = _NO_STATUSES
        #: Per position, where the header or the sentence lies.
        self.spans: Sequence[int] = ()
        #: By position, who answers instead: the loop publishes nothing for these.
        self.senders: Mapping[int, ResponseSender] = _NO_SENDERS
        self._errors: dict[int, ShoalError] = {}
        self._added: list[tuple[OutputLayout, Sequence[Column], Sequence[Array | bytes]]] = []
        self._nbytes = 0

    @property
    def errors(self) -> tuple[ShoalError, ...]:
        """Why requests failed, in the order in which they did."""
        return tuple(self._errors.values())

    def fail(self, position: int, error: ShoalError) -> None:
        """This request fails, the others do not."""
        self._errors[position] = error

    def fail_all(self, error: ShoalError) -> None:
        """Every request that has not failed by itself fails; what was added is dropped."""
        for position in range(self._num_requests):
            self._errors.setdefault(position, error)
        self.drop()

    def drop(self) -> None:
        """What was added is not so."""
        self._added.clear()
        self._nbytes = 0

    def add(self, request: Request, outputs: Mapping[str, Array], parameters: Parameters | None = None) -> None:
        """The whole outputs of one request. Raises InternalError for one of another datatype than configured."""
        if self._plans.states is not None:
            self._plans.states.keep((request,), outputs)
        self._add((request,), outputs, parameters)

    def add_batch(self, requests: Sequence[Request], outputs: Mapping[str, Array]) -> None:
        """The outputs of all `requests` together, in their order one below the other.

        A request whose rows an output does not have fails, as Triton has it. Raises InternalError like `add`.
        """
        if self._plans.states is not None:
            self._plans.states.keep(requests, outputs)
        if self._plans.signature.max_batch_size == 0:
            self._add(requests, outputs)
            return
        requests, outputs = self._fit(requests, outputs)
        if not requests:
            return
        if not self._plans.has_strings:
            self._add(requests, outputs)
            return
        start = 0
        for request in requests:
            end = start + request.parsed.rows
            self._add((request,), {name: array[start:end] for name, array in outputs.items()})
            start = end

    def add_outputs(self, request: Request, outputs: Sequence[Output], parameters: Parameters | None = None) -> None:
        """The outputs of one request to a model whose outputs are not checked: datatypes and shapes go as they are.

        Those that are not configured or not requested are dropped. Raises InternalError for BYTES that are none.
        """
        if self._plans.states is not None:
            self._plans.states.keep((request,), {name: array for name, _, array in outputs})
        columns: list[Column] = []
        pieces: list[Array | bytes] = []
        configured = self._plans.signature.outputs
        for name, datatype, array in outputs:
            if name not in configured or not request.parsed.wants(name):
                continue
            piece = self._plans.encoded(name, array) if datatype is BYTES else array
            pieces.append(piece)
            nbytes = len(piece) if isinstance(piece, bytes) else piece.nbytes
            columns.append((name, datatype.wire, array.shape, nbytes))
        self._plan((request,), columns, pieces, parameters)

    def sender(self, request: Request) -> ResponseSender:
        """From now on this request is answered by the sender alone, by any thread, before or after execute returns."""
        sender = WarmupResponseSender(functools.partial(self.fail, request.position))
        self.senders = {**self.senders, request.position: sender}
        return sender

    def watch(self) -> None:
        """From now on any thread may ask a request of this worker whether it is cancelled. Called by the loop's."""

    def wait_for_senders(self) -> None:
        """Wait until all requests that are left to senders have ended; their ends are not reported."""
        for sender in tuple(self.senders.values()):
            assert isinstance(sender, WarmupResponseSender), "a warm-up's"
            sender.wait()

    def place(self, requests: Sequence[Request], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Array]:
        """Whole outputs of the batch, added before they are there: arrays of undefined contents, to be filled.

        `shapes` are those of batched, non-BYTES outputs with all rows.
        """
        specs = self._plans.signature.outputs
        outputs: dict[str, Array] = {each: np.empty(dims, specs[each].datatype.dtype) for each, dims in shapes.items()}
        self.add_batch(requests, outputs)
        return outputs

    def _add(
        self, requests: Sequence[Request], outputs: Mapping[str, Array], parameters: Parameters | None = None
    ) -> None:
        """Outputs that have the rows of all `requests` and no others, or are those of a single one."""
        columns: list[Column] = []
        pieces: list[Array | bytes] = []
        is_all_wanted = not requests[0].parsed.share[1]
        for name, spec in self._plans.outputs:
            array = outputs.get(name)
            if array is None or not (is_all_wanted or is_wanted(name, requests)):
                continue
            datatype = spec.datatype
            if datatype is BYTES:
                data = self._plans.encoded(name, array)
                pieces.append(data)
                columns.append((name, datatype.wire, array.shape, len(data)))
                continue
            if array.dtype is not datatype.dtype and array.dtype != datatype.dtype:
                raise InternalError(
                    f"model '{self._plans.signature.name}' returned output '{name}' as {array.dtype}, expected "
                    f"{datatype.name}"
                )
            pieces.append(array)
            columns.append((name, datatype.wire, array.shape, array.nbytes))
        self._plan(requests, columns, pieces, parameters)

    def _plan(
        self,
        requests: Sequence[Request],
        columns: Sequence[Column],
        pieces: Sequence[Array | bytes],
        parameters: Parameters | None = None,
    ) -> OutputLayout:
        """Reserve memory for these columns; point each request at its rows of them."""
        if len(requests) == 1:
            shares: tuple[Share, ...] = (requests[0].parsed.share,)
        else:
            shares = tuple([request.parsed.share for request in requests])
        plan = self._plans.plan(self._nbytes, shares, tuple(columns), parameters)
        self._added.append((plan, columns, pieces))
        self._nbytes = plan.end
        if len(requests) == self._num_requests:
            self.spans = plan.spans
        else:
            self.spans = spans = self._some_spans()
            for request, span in zip(requests, plan.spans, strict=True):
                spans[request.position] = span
        return plan

    def _some_spans(self) -> list[int]:
        return list(self.spans or [0] * self._num_requests)

    def _fit(
        self, requests: Sequence[Request], outputs: Mapping[str, Array]
    ) -> tuple[Sequence[Request], dict[str, Array]]:
        """The requests whose rows all wanted outputs have, and these outputs cut to them; the others fail."""
        wanted = {}
        total = sum([request.parsed.rows for request in requests])
        is_all_wanted = not requests[0].parsed.share[1]
        for name, _ in self._plans.outputs:
            array = outputs.get(name)
            if array is None or not (is_all_wanted or is_wanted(name, requests)):
                continue
            got = len(array) if array.ndim else 0
            if got < total:
                requests = self._fail_lacking(requests, name, got)
                if not requests:
                    return requests, {}
                total = sum([request.parsed.rows for request in requests])
            wanted[name] = array
        for name, array in wanted.items():
            if len(array) != total:
                wanted[name] = array[:total]
        return requests, wanted

    def _fail_lacking(self, requests: Sequence[Request], output: str, got: int) -> list[Request]:
        fitting, end = [], 0
        for request in requests:
            end += request.parsed.rows
            if end <= got:
                fitting.append(request)
                continue
            self._errors[request.position] = lacks_rows(request, output, end, got)
        return fitting


def lacks_rows(request: Request, output: str, end: int, got: int) -> UnsupportedError:
    """Triton's sentence about a request whose rows end beyond those of an output."""
    return UnsupportedError(
        f"{log_prefix(request.id)}failed to split the output tensor '{output}' in responses: expected batch size of at "
        f"least {end} in model output, got {got}"
    )


class WrittenAnswers(Answers):
    """Answers on their way to clients, through a block of the worker's slab."""

    def __init__(
        self, num_requests: int, plans: OutputLayouts, instance: str, memory: Memory, batches: OpenBatches | None = None
    ) -> None:
        """Without `batches` there are no senders."""
        Answers.__init__(self, num_requests, plans)  # super() would take 1k instructions more
        self._instance = instance
        self._memory = memory
        self._batches = batches
        # Changed by place and write; by sender.
        self._block: Block | None = None
        self._open_batch: OpenBatch | None = None

    def sender(self, request: Request) -> ResponseSender:
        """A sender for a client's request."""
        assert self._batches is not None, "the answers of a sender have no senders"
        memory = self._memory
        memory.share()
        with memory.lock:
            batch = self._open_batch
            if batch is None:
                batch = self._open_batch = OpenBatch(self._batches, request.batch)
                self.senders = batch.senders
            if (known := self.senders.get(request.position)) is not None:
                return known
            plans, instance = self._plans.of_another_thread(), self._instance  # plans are for one thread
            sender = Written(request, batch, memory, lambda: WrittenAnswers(1, plans, instance, memory))
            batch.add(request.position, sender)
        return sender

    def watch(self) -> None:
        """Let any thread use the worker's memory, as it does to learn of cancellations."""
        self._memory.share()

    def executed(self, times: tuple[int, ...]) -> None:
        """`execute` has returned; senders may go on."""
        if self._open_batch is not None:
            self._open_batch.executed(times)

    def place(self, requests: Sequence[Request], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Array]:
        """An array for an output in the block itself, so that nothing is copied. May wait for a block; raises like
        `write`."""
        specs = self._plans.signature.outputs
        columns: list[Column] = []
        for name, shape in shapes.items():
            datatype = specs[name].datatype
            columns.append((name, datatype.wire, shape, math.prod(shape) * datatype.itemsize))
        plan = self._plan(requests, columns, ())
        nbytes = self._nbytes + (len(self._sentences()) if self._errors else 0)
        self._block = block = self._memory.allocate(nbytes) or self._wait_for_block(nbytes)
        return {
            name: np.ndarray(shape, specs[name].datatype.dtype, block.memory, offset)
            for (name, shape), offset in zip(shapes.items(), plan.offsets, strict=True)
        }

    def write(self) -> int:
        """Fill a block and complete `statuses` and `spans`. Returns the block's reference, 0 where all are sent.

        Raises UnavailableError where there is no memory for too long, InternalError where there can never be enough.
        """
        if len(self.senders) == self._num_requests:
            self.give_back()
            return NO_BLOCK
        sentences = self._sentences() if self._errors else b""
        if not self.spans:  # a backend that sets no output: an empty header is refused by its reader
            self.spans = self._some_spans()
        nbytes = self._nbytes + len(sentences)
        block = self._block
        if block is None or len(block.memory) < nbytes:
            self.give_back()
            block = self._memory.allocate(nbytes) or self._wait_for_block(nbytes)
        return self._write(block, sentences)

    def write_errors(self) -> int:
        """Like `write` after `fail_all`, but never waits and never fails: without memory there is no sentence."""
        self.give_back()
        are_all_sent = len(self.senders) == self._num_requests
        sentences = self._sentences()
        self._errors.clear()  # their tracebacks lead back here, and a cycle would keep the requests' memory mapped
        block = None if are_all_sent else self._memory.allocate_for_errors(len(sentences))
        if block is not None:
            return self._write(block, sentences)
        self.spans = [0] * self._num_requests
        return NO_BLOCK

    # -- the block --------------------------------------------------------------------------------------------------

    def _sentences(self) -> bytes:
        """What lies behind all that was added: the errors' sentences. Completes `statuses` and `spans`."""
        offset, parts = self._nbytes, []
        self.spans = spans = self._some_spans()
        self.statuses = statuses = dict[int, int]()
        written: dict[ShoalError, int] = {}  # once each, however many requests share it
        for position, error in self._errors.items():
            if error not in written:
                part = sentence_bytes(error)
                written[error] = pack_span(offset, len(part))
                parts.append(part)
                offset += len(part)
            statuses[position] = error.wire
            spans[position] = written[error]
        return b"".join(parts)

    def _write(self, block: Block, sentences: bytes) -> int:
        memory = block.memory
        for plan, _, pieces in self._added:
            memory[plan.headers_offset : plan.end] = plan.headers
            # By index: of a batch of one output, zip would be a tenth of writing it.
            for number in range(len(pieces)):
                offset, piece = plan.offsets[number], pieces[number]
                if isinstance(piece, bytes):
                    memory[offset : offset + len(piece)] = piece
                elif (nbytes := piece.nbytes) <= _SMALL_NBYTES:
                    memory[offset : offset + nbytes] = piece.tobytes()
                else:
                    np.copyto(np.ndarray(piece.shape, piece.dtype, memory, offset), piece)
        if sentences:
            memory[self._nbytes : self._nbytes + len(sentences)] = sentences
        self._block = None
        return block.ref

    def _wait_for_block(self, nbytes: int) -> Block:
        try:
            return self._memory.find_block(nbytes)
        except ShoalError as refusal:
            if nbytes <= self._memory.slab.largest_nbytes:
                raise UnavailableError(
                    f"model '{self._plans.signature.name}', instance '{self._instance}': no shared memory for a result "
                    f"of {nbytes} bytes, clients still hold the earlier ones. Raise --shm-worker-slab-mib or "
                    "--shm-oversize-mib"
                ) from refusal
            name, output_nbytes = self._largest_output()
            # That a model's results are too large for the server is not a client's fault.
            kind = UnavailableError if isinstance(refusal, UnavailableError) else InternalError
            raise kind(
                f"output '{name}' of model '{self._plans.signature.name}' is {output_nbytes} bytes, the results of one "
                f"batch do not fit into memory: {refusal}"
            ) from refusal

    def _largest_output(self) -> tuple[str, int]:
        sizes: dict[str, int] = {}
        for _, columns, _ in self._added:
            for name, _, _, nbytes in columns:
                sizes[name] = sizes.get(name, 0) + nbytes
        return max(sizes.items(), key=lambda item: item[1], default=("", 0))

    def give_back(self) -> None:
        """Free the block of `place`: no record has named it yet, so it is still the worker's alone."""
        if self._block is not None:
            self._memory.free(self._block.ref)
            self._block = None
