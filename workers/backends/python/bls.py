"""Business logic scripting: requests that a model makes to other models, and what they inherit. Runs in a worker.

With the model's first call of another model, or of the supervisor, the worker joins the star a second time, as a
client. A large tensor that lies in the server's memory is lent, not copied: a tensor of a request that is being
executed is lent until the calls made for that request are answered, a tensor of another model's response for as long as
an array over it exists. The requests for which a call is made are its parents: the call inherits their remaining time
and priority, and is cancelled when all of them are.
"""

import json
import threading
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING

import numpy as np
from triton_python_backend_utils import InferenceResponse, Tensor
from triton_python_backend_utils.bls import needs_decoupled
from triton_python_backend_utils.datatypes import string_elements
from triton_python_backend_utils.errors import as_triton_error
from triton_python_backend_utils.model_request import ModelRequest
from triton_python_backend_utils.tensor import TensorSource

from shoal.datatypes import BY_WIRE, BYTES, encode_bytes_tensor
from shoal.deterministic import alone_flag
from shoal.errors import InternalError, ShoalError, UnavailableError
from shoal.reasons import ModelGoneError
from shoal.request import PLACED, Parameters
from shoal.shm.layout import NO_BLOCK
from shoal.star.client import HeldResponse, StarClient
from shoal.star.models import ModelEntry, client_shape
from shoal.star.outgoing import Input, RawRequest, check
from shoal.workers.backends.python.gpu_calls import GpuCalls
from shoal.workers.requests import Request

if TYPE_CHECKING:
    from triton_python_backend_utils.runtime import OnResponse

#: Tensors of fewer bytes are copied, not lent: the called model's worker must parse each request with a lent tensor, as
#: the lent block differs from request to request, and parsing costs as much as copying so many bytes (ours).
LEND_NBYTES = 32 * 1024
#: The share of the server's time limit for a request that calls made for the request may use (ours).
_SHARE = 0.9
#: A call is sent again up to so many times if the called model is reloaded meanwhile; then the call fails (ours).
_MAX_RELOADS = 3


@dataclass(slots=True, eq=False)
class Parents:
    """The requests of the batch in execution: calls that are made during the execution inherit from them."""

    requests: Sequence[Request]
    can_lend: bool  # whether these requests stay unanswered until the calls made for them are answered
    is_watched: bool  # whether any thread may ask whether the requests are cancelled
    watch: Callable[[], None] = lambda: None  # makes cancellation visible to any thread; called by the executing thread
    thread: int = 0  # ident of the executing thread

    def begin_call(self) -> None:
        """Note that a call is made for these requests, so that from now on cancellation of the requests is seen."""
        if not self.is_watched and threading.get_ident() == self.thread:
            self.watch()
            self.is_watched = True

    @property
    def refs(self) -> list[int]:
        """The blocks of the requests' tensors."""
        return [ref for request in self.requests for ref in request.refs]

    def deadline_ns(self, now_ns: int, request_timeout_ns: int) -> int:
        """The monotonic time in ns at which calls are given up: when the last client gives up. For a client without a
        deadline it is a little before the server gives up, so that the model can still report the reason."""
        deadlines = [
            request.deadline_ns or request.accepted_ns + int(request_timeout_ns * _SHARE) for request in self.requests
        ]
        return max(deadlines, default=now_ns + request_timeout_ns)

    def timeout_us(self, now_ns: int) -> int:
        """The time in µs that a call may wait in a queue, by the timeouts of the requests' clients; 0 if a client
        has none."""
        deadlines = [request.deadline_ns for request in self.requests]
        return max(1, (max(deadlines) - now_ns) // 1000) if deadlines and 0 not in deadlines else 0

    def answer_by_ns(self) -> int:
        """The monotonic time in ns after which no client waits for an answer; 0 = never."""
        deadlines = [request.answer_by_ns for request in self.requests]
        return max(deadlines) if deadlines and 0 not in deadlines else 0

    def priority(self) -> int:
        """The highest priority, which is the smallest number; 0 if no request has one."""
        return min([request.priority for request in self.requests if request.priority], default=0)

    def trace_context(self) -> Parameters:
        """The span that the requests belong to, from clients' headers; empty if there are several."""
        if len(self.requests) != 1:
            return {}
        return {key: value for key, value in self.requests[0].parameters.items() if key in _TRACE_CONTEXT}

    def are_cancelled(self) -> bool:
        """Whether no client waits for any of these requests any more."""
        return self.is_watched and all(request.is_cancelled() for request in self.requests)


_TRACE_CONTEXT = frozenset({"traceparent", "tracestate"})
NO_PARENTS = Parents((), can_lend=False, is_watched=False)
#: The parents of the calls that this thread or coroutine makes. In a thread that a model starts, calls have no parents.
current_parents: ContextVar[Parents] = ContextVar("parents", default=NO_PARENTS)


class BlsCall:
    """One request of a model to another, sent again if the called model is reloaded on the way."""

    def __init__(
        self,
        client: StarClient,
        caller: str,
        request: ModelRequest,
        decoupled: bool,
        on_response: "OnResponse",
        gpu: GpuCalls | None = None,
    ) -> None:
        """`gpu` is given if tensors may stay on the instance's GPU."""
        self._client = client
        self._caller = caller
        self._request = request
        self._decoupled = decoupled
        self._on_response = on_response
        self._gpu = gpu
        self._parents = current_parents.get()
        self._parents.begin_call()
        timeout_ns = int(client.request_timeout_s * 1e9)
        self._deadline_ns = self._parents.deadline_ns(client.now_ns(), timeout_ns)
        # These fields are changed by attempt.
        self._entry: ModelEntry | None = None
        self._number = 0
        self._num_attempts = 0
        # Changed by attempt: places of the inputs that stay on the GPU, by name, and objects that hold these inputs.
        self._places: dict[str, bytes] = {}
        self._kept: list[object] = []
        # Changed by the first attempt and the last response: the blocks that are lent for the call meanwhile.
        self._refs: frozenset[int] = frozenset()
        # This field is changed by cancel.
        self._is_cancelled = False

    def attempt(self) -> None:
        """Find the model, validate the request and submit it. The error of an attempt that fails becomes the call's
        response."""
        self._num_attempts += 1
        name = self._request._model_name
        try:
            self._entry = self._find()
            outgoing = check(self._entry, self._ask())
            if self._gpu is not None:
                stays = () if self._decoupled else self._gpu.stays(self._entry, self._request)
                outgoing = replace(outgoing, places=self._places, stays=stays)
            if not self._refs:
                self._refs = outgoing.refs
                self._client.lend(self._refs)
            # The client of the star keeps these until the last reply: responses whose tensors are lent, inputs on the
            # GPU.
            keep = [each._source.keep for each in self._request._inputs if each._source is not None] + self._kept
            self._number = self._client.submit(
                outgoing, self._answer, self._deadline_ns, self._parents.are_cancelled, keep, self._request._trace._key
            )
        except Exception as error:  # noqa: BLE001 - the thread that waits for the response has no deadline
            self._fail(_known(error, f"Model {name} - Error when running inference: "), is_final=True)
        else:
            if self._is_cancelled:  # cancelled while this attempt was made, or between two attempts
                self._client.cancel(self._number)

    def cancel(self) -> None:
        """Cancel the call: the model does not want the remaining responses."""
        self._is_cancelled = True
        self._client.cancel(self._number)

    def _find(self) -> ModelEntry:
        name = self._request._model_name
        entry = self._lookup() if self._num_attempts == 1 else None
        if entry is None:
            # The model may just have been loaded. Once the supervisor's answer has come, all messages that it sent
            # before are applied, those about loaded models among them.
            self._client.ask("ping", {})
            entry = self._lookup()
        if entry is None:
            raise UnavailableError(f"Failed for execute the inference request. Model '{name}' is not ready.")
        if entry.is_decoupled and not self._decoupled:
            raise InternalError(needs_decoupled(str(name)))
        return entry

    def _lookup(self) -> ModelEntry | None:
        version = self._request._model_version
        try:
            return self._client.models.lookup(self._request._model_name, None if version == -1 else str(version))
        except ShoalError:
            return None

    def _ask(self) -> RawRequest:
        request, parents = self._request, self._parents
        parameters = {**parents.trace_context(), **_context(request), **request._parameters}
        placed = {} if self._gpu is None else self._placed(self._gpu)
        return RawRequest(
            request._request_id,
            [placed.get(tensor._name) or self._input(tensor) for tensor in request._inputs]
            if placed
            else [self._input(tensor) for tensor in request._inputs],
            tuple(request._requested_output_names),
            parameters,
            parents.priority(),
            request._timeout or parents.timeout_us(self._client.now_ns()),
            request._correlation_id,
            request._flags | alone_flag(parameters),
            parents.answer_by_ns(),
        )

    def _placed(self, gpu: GpuCalls) -> dict[str, Input]:
        """The inputs that lie on the GPU and that the called model takes there, by name."""
        self._places, self._kept, inputs = {}, [], {}
        for tensor in self._request._inputs if self._entry is not None and gpu.takes(self._entry) else ():
            if (placed := gpu.place(tensor, can_lend=self._parents.can_lend)) is not None:
                inputs[tensor._name], self._places[tensor._name], kept = placed
                self._kept.append(kept)
        return inputs

    def _input(self, tensor: Tensor) -> Input:
        name, datatype, shape = tensor._name, tensor._datatype, tuple(tensor._shape)
        if datatype is not BYTES:
            array = tensor._host()
            data = array.reshape(-1).view(np.uint8).data
        elif tensor._data is not None:
            data = tensor._data
        else:
            data = memoryview(encode_bytes_tensor(string_elements(tensor._host())))
        source = tensor._source
        if source is None or source.nbytes < LEND_NBYTES or not (source.keep is not None or self._parents.can_lend):
            return Input(name, datatype, shape, data)
        return Input(name, datatype, shape, data, source.ref, source.offset)

    # --- responses: in the listening thread, which never waits ---

    def _answer(self, answer: HeldResponse | ShoalError | None, is_final: bool) -> None:
        response = None
        try:
            if isinstance(answer, ModelGoneError) and self._num_attempts <= _MAX_RELOADS:
                threading.Thread(target=self.attempt, name="bls-again", daemon=True).start()
                return
            if isinstance(answer, HeldResponse):
                response = InferenceResponse(self._tensors(answer), parameters=answer.response.parameters)
        except Exception as error:  # noqa: BLE001 - the thread that waits for the response has no deadline
            answer = _known(error)
        if isinstance(answer, ShoalError):
            self._fail(answer, is_final)
        else:
            self._deliver(response, is_final or response is None)

    def _fail(self, error: ShoalError, is_final: bool) -> None:
        entry = self._entry
        calls_itself = entry is not None and entry.name == self._caller and entry.num_instances == 1
        if calls_itself and self._client.now_ns() >= self._deadline_ns:
            error = UnavailableError(
                f"{error}; model '{self._caller}' has called itself, and its only instance waits for that call. Give "
                "it more instances, or make execute a coroutine that awaits async_exec()"
            )
        self._deliver(InferenceResponse(error=as_triton_error(error)), is_final)

    def _deliver(self, response: InferenceResponse | None, is_final: bool) -> None:
        on_response = self._on_response
        if is_final:
            self._client.give_back(self._refs)
            # The receiver of responses refers to this call by `cancel`. If this call went on referring to the receiver,
            # the cycle would keep memory until the garbage collector finds it.
            self._on_response, self._refs = lambda _response, _is_final: None, frozenset()
        on_response(response, is_final)

    def _tensors(self, answer: HeldResponse) -> list[Tensor]:
        assert self._entry is not None
        response, block, block_ref = answer
        if self._decoupled:
            # A stream's responses are copied, so that the other model gets its memory back at once: the iterator keeps
            # all responses.
            block, block_ref = block.copy(), NO_BLOCK
        tensors = []
        for ref in response.outputs:
            name, wire, _, offset, nbytes = ref
            datatype, shape = BY_WIRE[wire & ~PLACED], client_shape(self._entry, ref)
            source = TensorSource(block_ref, offset, nbytes, block) if block_ref else None
            if wire & PLACED and self._gpu is not None and source is not None:
                tensors.append(self._gpu.open(name, datatype, shape, source, block.data))
            elif datatype is BYTES:
                tensors.append(Tensor._made(name, datatype, shape, None, block.data[offset : offset + nbytes], source))
            elif prod(shape) * datatype.itemsize != nbytes:
                raise InternalError(f"output tensor shape does not match size of output for '{name}'")
            else:
                array = np.ndarray(shape, datatype.dtype, block, offset)
                tensors.append(Tensor._made(name, datatype, shape, array, None, source))
        return tensors


def _known(error: Exception, prefix: str = "") -> ShoalError:
    """A new ShoalError with the text of `error`: the original's traceback leads to the model's arrays, and would
    keep them alive."""
    if isinstance(error, ShoalError):
        return type(error)(f"{prefix}{error}")
    return InternalError(f"{prefix}{type(error).__name__}: {error}")


def _context(request: ModelRequest) -> Parameters:
    """The trace context that a model has passed on as its request's `trace`; empty if there is none."""
    context = request._trace.get_context()
    return {} if context is None else {key: str(value) for key, value in json.loads(context).items()}
