"""The answers of one executed batch, on their way into one block of the worker's slab.

    0        outputs, each 64-byte aligned: the rows of all requests of the batch, one array per output;
             then per request its packed InferResponse, whose tensors point at its rows
    …        outputs and InferResponse of each request answered separately, as it must be if outputs are strings
    …        error messages

A backend adds outputs; the worker's loop writes them into the block and publishes the answers, except for requests that
a sender answers. Answers of a warm-up are never written. Runs in a worker; a large array is copied once at most.
"""

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from shoal.datatypes import BYTES
from shoal.errors import InternalError, ShoalError, UnavailableError, UnsupportedError
from shoal.fault import IS_ARMED, reached
from shoal.request import Parameters, unpack_response
from shoal.shm.layout import NO_BLOCK, pack_span, unpack_span
from shoal.shm.slab import Block
from shoal.star.validation import log_prefix
from shoal.workers.cuda_regions import CudaRegions
from shoal.workers.memory import Memory
from shoal.workers.plans import Column, OutputLayout, OutputLayouts
from shoal.workers.requests import Request, Share, is_wanted
from shoal.workers.response_sender import OpenBatch, OpenBatches, ResponseSender, WarmupResponseSender
from shoal.workers.response_sender import WrittenResponseSender as Written
from shoal.workers.sentences import sentence_bytes
from shoal.workers.tensors import Array, Output

_NO_STATUSES: Final[Mapping[int, int]] = {}
_NO_SENDERS: Final[Mapping[int, ResponseSender]] = {}
#: An output of up to this size is copied twice, through a bytes object, which is faster than making an array over the
#: block: 0.3 us against 1.0 for 64 bytes.
_SMALL_NBYTES: Final = 4096


class RequestOutput(NamedTuple):
    """An output of one request: the datatype's wire number, the shape with the request's rows, and the bytes."""

    datatype: int
    shape: tuple[int, ...]
    data: bytes


class Answers:
    """The answers to the requests of one batch: each a success until `fail` is called for its request."""

    def __init__(self, num_requests: int, plans: OutputLayouts) -> None:
        self._num_requests = num_requests
        self._plans = plans
        # Changed by the backend, which sets the times directly; `statuses` and `spans` are complete once written.
        self.input_end_ns = 0
        self.output_start_ns = 0
        #: Failed requests of the batch: position → the error's wire number.
        self.statuses: Mapping[int, int] = _NO_STATUSES
        #: Per position, the span in the block where the header or the error's sentence lies.
        self.spans: Sequence[int] = ()
        #: Senders by their requests' positions: the loop publishes nothing for these requests.
        self.senders: Mapping[int, ResponseSender] = _NO_SENDERS
        self._errors: dict[int, ShoalError] = {}
        self._added: list[tuple[OutputLayout, Sequence[Column], Sequence[Array | bytes], Sequence[Request]]] = []
        self._nbytes = 0

    @property
    def errors(self) -> tuple[ShoalError, ...]:
        """The errors of failed requests, in the order in which they failed."""
        return tuple(self._errors.values())

    def add_position(self) -> int:
        """Add a position behind all others, for a row that is executed with the batch but belongs to none of its
        requests; returns the position."""
        self._num_requests += 1
        return self._num_requests - 1

    def fail(self, position: int, error: ShoalError) -> None:
        """Answer the request at this position of the batch with an error."""
        self._errors[position] = error

    def fail_all(self, error: ShoalError) -> None:
        """Answer every request that has not failed yet with this error, and discard all outputs added."""
        for position in range(self._num_requests):
            self._errors.setdefault(position, error)
        self.drop()

    def drop(self) -> None:
        """Discard all outputs added for this batch."""
        self._added.clear()
        self._nbytes = 0

    def add(self, request: Request, outputs: Mapping[str, Array], parameters: Parameters | None = None) -> None:
        """Add the whole outputs of one request, in its rows' order; the arrays are copied by `write`. Raises
        InternalError if an array's datatype differs from the configured one."""
        if self._plans.states is not None:
            self._plans.states.keep((request,), outputs)
        self._add((request,), outputs, parameters)

    def add_batch(self, requests: Sequence[Request], outputs: Mapping[str, Array]) -> None:
        """Add the outputs of all `requests` together, each output one array with the requests' rows one after
        another.

        As in Triton, a request fails if an output has too few rows for it. Raises InternalError as `add` does.
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
        """Add the outputs of one request to a model whose outputs are not checked: datatypes and shapes stay as the
        model made them.

        Outputs that are not configured or not requested are discarded. Raises InternalError for an array of BYTES with
        elements that are no strings.
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

    def outputs_of(self, position: int) -> dict[str, "RequestOutput"] | None:
        """Copies of the outputs of the request at this position of the batch, before `write`; None if the
        request failed or its sender answers it."""
        if position in self._errors:
            return None
        for layout, columns, pieces, requests in self._added:
            for request, span in zip(requests, layout.spans, strict=True):
                if request.position == position:
                    return self._copied(layout, columns, pieces, span)
        return None

    def _copied(
        self, layout: OutputLayout, columns: Sequence[Column], pieces: Sequence[Array | bytes], span: int
    ) -> dict[str, "RequestOutput"]:
        start, nbytes = unpack_span(span)
        start -= layout.headers_offset
        refs = unpack_response(layout.headers[start : start + nbytes], layout.end).outputs
        starts = {column[0]: index for index, column in enumerate(columns)}
        outputs = {}
        for ref in refs:
            index = starts[ref.name]
            piece = self._piece(layout, columns, pieces, index)
            offset = ref.offset - layout.offsets[index]
            data = bytes(piece[offset : offset + ref.nbytes])
            outputs[ref.name] = RequestOutput(ref.datatype, ref.shape, data)
        return outputs

    def _piece(
        self, layout: OutputLayout, columns: Sequence[Column], pieces: Sequence[Array | bytes], index: int
    ) -> memoryview:
        """The bytes of an output of the whole batch."""
        del layout, columns
        piece = pieces[index]
        if isinstance(piece, bytes):
            return memoryview(piece)
        return np.ascontiguousarray(piece).reshape(-1).view(np.uint8).data  # memoryview.cast refuses empty arrays

    def sender(self, request: Request) -> ResponseSender:
        """The sender that alone answers this request from now on, from any thread, before or after `execute`
        returns."""
        sender = WarmupResponseSender(functools.partial(self.fail, request.position))
        self.senders = {**self.senders, request.position: sender}
        return sender

    def watch(self) -> None:
        """Let any thread ask from now on whether a request of this worker is cancelled. Called by the loop's thread."""

    def wait_for_senders(self) -> None:
        """Wait until all requests that are left to senders have ended. For a warm-up, whose senders report no end by
        themselves."""
        for sender in tuple(self.senders.values()):
            assert isinstance(sender, WarmupResponseSender), "only a warm-up waits for senders"
            sender.wait()

    def place(self, requests: Sequence[Request], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Array]:
        """Add outputs of the whole batch that are not computed yet: arrays with undefined contents, which the caller
        fills.

        `shapes` are those of batched, non-BYTES outputs with all rows.
        """
        specs = self._plans.signature.outputs
        outputs: dict[str, Array] = {each: np.empty(dims, specs[each].datatype.dtype) for each, dims in shapes.items()}
        self.add_batch(requests, outputs)
        return outputs

    def _add(
        self, requests: Sequence[Request], outputs: Mapping[str, Array], parameters: Parameters | None = None
    ) -> None:
        """Add outputs that have the rows of all `requests` and no others, or are those of a single request."""
        columns: list[Column] = []
        pieces: list[Array | bytes] = []
        wanted_first = requests[0].parsed.share[1]  # names; empty: all outputs are requested
        for name, spec in self._plans.outputs:
            array = outputs.get(name)
            if array is None or (wanted_first and name not in wanted_first and not is_wanted(name, requests)):
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
        """Reserve memory for these outputs; point each request at its rows in them."""
        if len(requests) == 1:
            shares: tuple[Share, ...] = (requests[0].parsed.share,)
        else:
            shares = tuple([request.parsed.share for request in requests])
        plan = self._plans.plan(self._nbytes, shares, tuple(columns), parameters)
        self._added.append((plan, columns, pieces, requests))
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
        """The requests whose rows all wanted outputs have, and these outputs cut to those rows; the other requests
        fail."""
        wanted = {}
        total = sum([request.parsed.rows for request in requests])
        wanted_first = requests[0].parsed.share[1]  # names; empty: all outputs are requested
        for name, _ in self._plans.outputs:
            array = outputs.get(name)
            if array is None or (wanted_first and name not in wanted_first and not is_wanted(name, requests)):
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
    """The error, in Triton's words, for a request whose rows end beyond those of an output."""
    return UnsupportedError(
        f"{log_prefix(request.id)}failed to split the output tensor '{output}' in responses: expected batch size of at "
        f"least {end} in model output, got {got}"
    )


class WrittenAnswers(Answers):
    """Answers that are written into a block of the worker's slab, for clients."""

    _senders: dict[int, ResponseSender]  # the dict behind `senders`; made with the first sender

    def __init__(
        self, num_requests: int, plans: OutputLayouts, instance: str, memory: Memory, batches: OpenBatches | None = None
    ) -> None:
        """Without `batches`, no request can be left to a sender."""
        Answers.__init__(self, num_requests, plans)  # super() would take 1k instructions more
        self._instance = instance
        self._memory = memory
        self._batches = batches
        # Changed by place, write and sender.
        self._block: Block | None = None
        self._open_batch: OpenBatch | None = None

    def sender(self, request: Request) -> ResponseSender:
        """The sender that alone answers this client's request from now on."""
        assert self._batches is not None, "answers that a sender sends have no senders of their own"
        memory, kind = self._memory, type(self)
        memory.share()
        with memory.lock:
            batch = self._open_batch
            if batch is None:
                batch = self._open_batch = OpenBatch(self._batches, request.batch)
                self.senders = self._senders = {}
            if (known := self._senders.get(request.position)) is not None:
                return known
            plans, instance = self._plans.of_another_thread(), self._instance  # threads cannot share plans
            sender = Written(request, batch, memory, lambda: kind(1, plans, instance, memory))
            self._senders[request.position] = sender
            batch.opened()
        return sender

    def watch(self) -> None:
        """Share the worker's memory between threads, so that any of them can ask whether a request is cancelled."""
        self._memory.share()

    def executed(self, times: tuple[int, ...]) -> None:
        """Note that `execute` has returned with these compute time points (ns); senders may report the end of their
        requests."""
        if self._open_batch is not None:
            self._open_batch.executed(times)

    def place(self, requests: Sequence[Request], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Array]:
        """Arrays for outputs in the block itself, so that no output is copied. May wait for a block; raises as
        `write` does."""
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

    def _piece(
        self, layout: OutputLayout, columns: Sequence[Column], pieces: Sequence[Array | bytes], index: int
    ) -> memoryview:
        """The bytes of an output of the whole batch, also if `place` has put the output into the block."""
        if self._block is None or pieces:
            return super()._piece(layout, columns, pieces, index)
        start = layout.offsets[index]
        return self._block.memory[start : start + columns[index][3]]

    def write(self) -> int:
        """Fill a block and complete `statuses` and `spans`. Returns the block's reference, 0 if senders answer all
        requests.

        The batcher frees the block once its replies are released. Raises UnavailableError if there is no memory for too
        long, InternalError if there can never be enough.
        """
        if len(self.senders) == self._num_requests:
            self.give_back()
            return NO_BLOCK
        sentences = self._sentences() if self._errors else b""
        if not self.spans:  # no output at all: clients refuse a reply with an empty header
            self.spans = self._some_spans()
        nbytes = self._nbytes + len(sentences)
        block = self._block
        if block is None or len(block.memory) < nbytes:
            self.give_back()
            block = self._memory.allocate(nbytes) or self._wait_for_block(nbytes)
        ref = self._write(block, sentences)
        if IS_ARMED:
            reached("written")
        return ref

    def write_errors(self) -> int:
        """Write the errors after `fail_all`, without ever waiting or failing: if there is no memory, the errors have
        no sentences."""
        self.give_back()
        are_all_sent = len(self.senders) == self._num_requests
        sentences = self._sentences()
        self._errors.clear()  # tracebacks refer to this object: the cycle would keep the requests' memory mapped
        block = None if are_all_sent else self._memory.allocate_for_errors(len(sentences))
        if block is not None:
            return self._write(block, sentences)
        self.spans = [0] * self._num_requests
        return NO_BLOCK

    # -- the block --------------------------------------------------------------------------------------------------

    def _sentences(self) -> bytes:
        """The errors' sentences, to be written behind all outputs. Completes `statuses` and `spans`."""
        offset, parts = self._nbytes, []
        self.spans = spans = self._some_spans()
        self.statuses = statuses = dict[int, int]()
        written: dict[ShoalError, int] = {}  # one sentence for each error, however many requests share it
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
        for plan, _, pieces, _ in self._added:
            memory[plan.headers_offset : plan.end] = plan.headers
            # By index: for a batch with one output, zip would take a tenth of the whole write.
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
        if self._memory.cuda is not None:
            try:
                self._deliver(memory, self._memory.cuda)
            except BaseException:
                self._memory.free(block.ref)
                self._block = None
                raise
        self._block = None
        return block.ref

    def _deliver(self, memory: memoryview, regions: CudaRegions) -> None:
        """Copy outputs from the block into clients' GPU memory. An output that does not fit stays in the block, and its
        front end answers with an error."""
        outputs = []
        for plan, _, _, requests in self._added:
            for request, span in zip(requests, plan.spans, strict=True):
                if not request.parsed.targets:
                    continue
                start, nbytes = unpack_span(span)
                refs = {ref.name: ref for ref in unpack_response(memory[start : start + nbytes], len(memory)).outputs}
                for target in request.parsed.targets:
                    ref = refs.get(target.name)
                    if ref is not None and ref.nbytes <= target.nbytes:
                        outputs.append((target, memory[ref.offset : ref.offset + ref.nbytes]))
        regions.write(outputs)

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
        for _, columns, _, _ in self._added:
            for name, _, _, nbytes in columns:
                sizes[name] = sizes.get(name, 0) + nbytes
        return max(sizes.items(), key=lambda item: item[1], default=("", 0))

    def give_back(self) -> None:
        """Free the block of `place`, which no record has named, so it still belongs to the worker alone."""
        if self._block is not None:
            self._memory.free(self._block.ref)
            self._block = None
