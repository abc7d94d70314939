"""TorchServe's Predictions over gRPC: a request of named inputs becomes the fields of a prediction, and an answer,
which is bytes, becomes a PredictionResponse.

The inputs, in the message's order, are joined to one BYTES element, as the fields of an HTTP form are
(frontend/torchserve). An error ends a call of StreamPredictions; in StreamPredictions2 it is a message with a status,
and the stream goes on. A model that answers in parts has each part sent as a message of the stream; for Predictions the
road joins the parts. Front ends of gRPC.
"""

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from shoal.api_keys import ApiKey
from shoal.errors import ShoalError
from shoal.frontend.access.authorisation import check_lane, check_model
from shoal.frontend.call import HandlerCall
from shoal.frontend.grpc import wire
from shoal.frontend.grpc.road_inference import Rendered
from shoal.frontend.grpc.service import GrpcCall, parse, refuse_while_exiting
from shoal.frontend.grpc.submission import MessageTemplate
from shoal.frontend.grpc.torchserve.errors import CallError, failed, refused
from shoal.frontend.grpc.torchserve.messages import PredictionResponse, PredictionsRequest
from shoal.frontend.grpc.torchserve.methods import STREAM_PREDICTIONS_2
from shoal.frontend.prepared import PreparedRequest, RoadOnlyError, submit_copy
from shoal.frontend.state import ServerState
from shoal.frontend.torchserve import errors
from shoal.frontend.torchserve.inference_api import find_version
from shoal.frontend.torchserve.models import look_up, parameter
from shoal.frontend.torchserve.predictions import (
    SEQUENCE_ID,
    Asked,
    answered,
    description,
    element_of,
    in_sequence,
    new_id,
    prepare,
)
from shoal.shm.port import Port, Reply
from shoal.shm.shares import NoRoomError
from shoal.shm.slab import Block
from shoal.star.models import ModelEntry
from shoal.star.refusal import answered as answer_in

if TYPE_CHECKING:
    from shoal.frontend.road.transport import Transport

_RESOURCE_EXHAUSTED, _INVALID_ARGUMENT = 8, 3
#: The tag of `prediction` in a PredictionResponse.
_PREDICTION = b"\x0a"


class SubmittedPrediction(NamedTuple):
    """The part of a request that is kept until its last reply has come."""

    found: PreparedRequest
    version: str  # the version as the client named it; "" for the default version
    sequence_id: str

    @property
    def prepared(self) -> PreparedRequest:
        return self.found

    @property
    def recognised_by(self) -> MessageTemplate | None:
        """None, since messages are parsed each time."""
        return None


class TorchServePredictions:
    """One lane's predictions on their way in and their replies on their way out. Implements InferenceProtocol."""

    def __init__(self, state: ServerState, port: Port) -> None:
        self._state = state
        self._port = port

    def submit(
        self,
        message: bytes | memoryview,
        _metadata: Mapping[str, str],
        block: Block | None = None,
        _offset: int = 0,
        *,
        is_stream: bool,
        deadline_ns: int = 0,
        key: ApiKey | None = None,
    ) -> tuple[int, SubmittedPrediction]:
        """Implements `InferenceProtocol.submit`. Raises RoadOnlyError for a request that only the road can answer."""
        start_ns = time.monotonic_ns()
        try:
            request = read(self._state, message)
        finally:
            if block is not None:  # the parsed request copies the block's bytes
                self._port.slab.free(block.ref)
        model, version = request.model_name, request.model_version
        if key is not None:
            check_lane(key, is_stream=is_stream)
        check_model(key, model)
        try:
            entry = look_up(self._state, model, version)
            if not is_stream and entry.is_decoupled:
                raise RoadOnlyError(f"model '{model}' answers in parts")
            prepared = _prepared(request, entry)
            number = submit_copy(self._port, prepared, start_ns, deadline_ns)
        except (RoadOnlyError, NoRoomError):
            raise
        except ShoalError as error:
            fault = errors.refusal_of(error, model, version)
            if fault.status == 404 and not is_stream:  # the road asks the supervisor whether the model has 0 workers
                raise RoadOnlyError(fault.message) from None
            raise refused(error, model, version) from None
        return number, SubmittedPrediction(prepared, version, request.sequenceId or str(prepared.correlation_id or ""))

    def model_of(self, message: bytes | memoryview) -> int:
        try:
            request = parse(PredictionsRequest, message)
            return look_up(self._state, request.model_name, request.model_version).model_id
        except ShoalError:
            return 0

    def response(
        self, asked: SubmittedPrediction, reply: Reply, *, stream: bool = False, final: bool = True
    ) -> wire.Chunks:
        entry = asked.found.entry
        try:
            _, response, block = answer_in(entry, asked.found.id, reply)
            body = answered(response, block).body
        except ShoalError as error:
            raise failed(error, entry.name, asked.version) from None
        return _response(body, asked.sequence_id)

    # --- streams ---

    def empty_final(self, _asked: SubmittedPrediction) -> None:
        """None: TorchServe's protocol has no such message."""

    def ends_with_error(self, path: str, _metadata: Mapping[str, str]) -> bool:
        return path != STREAM_PREDICTIONS_2

    def refused_message(self, error: ShoalError, message: bytes | memoryview) -> bytes:
        try:
            sequence_id = str(PredictionsRequest.FromString(message).sequenceId)
        except Exception:  # noqa: BLE001  protobuf's DecodeError, of bytes that may be anything
            sequence_id = ""
        return _with_status(error, sequence_id)

    def refused_request(self, error: ShoalError, asked: SubmittedPrediction, *, final: bool) -> bytes:
        return _with_status(error, asked.sequence_id)


def read(state: ServerState, message: bytes | memoryview) -> Any:
    """The PredictionsRequest in a message. Raises ShoalError for a message that is too large, or names no model."""
    refuse_while_exiting(state)
    limit = state.torchserve.max_request_size
    if len(message) > limit:
        raise CallError(_RESOURCE_EXHAUSTED, f"gRPC message exceeds maximum size {limit}: {len(message)}")
    request = parse(PredictionsRequest, message)
    if not request.model_name:
        error = errors.refused(400, "BadRequestException", "Parameter model_name is required.")
        raise refused(error, "", None)
    return request


def _prepared(request: Any, entry: ModelEntry) -> PreparedRequest:
    fields = [(name, "", value) for name, value in request.input.items()]
    header = parameter(entry, "ts_header_key_sequence_id", SEQUENCE_ID)
    headers = {header: request.sequenceId} if request.sequenceId else {}
    sequence_id = in_sequence(entry, headers)
    request_id = new_id()
    described = description(Asked(), "", headers, request_id, fields)
    return prepare(entry, request_id, described, element_of([value for _, _, value in fields]), sequence_id)


def _response(body: bytes | memoryview, sequence_id: str = "") -> wire.Chunks:
    """A PredictionResponse around a body."""
    head = (_PREDICTION + wire.varint(len(body))) if body else b""
    tail = PredictionResponse(sequenceId=sequence_id).SerializeToString() if sequence_id else b""
    return [head, body, tail] if tail else [head, body]


def _with_status(error: ShoalError, sequence_id: str) -> bytes:
    """A PredictionResponse that says that a request has failed."""
    message, _, _ = str(error).partition("\n")
    response = PredictionResponse(status={"code": error.grpc_status, "message": message})
    if sequence_id:
        response.sequenceId = sequence_id
    made: bytes = response.SerializeToString()
    return made


# ---------------------------------------------------------------------------------------------------------------
# On the road


def predictions(call: GrpcCall, message: bytes | memoryview, transport: "Transport") -> Rendered:
    """Answer a PredictionsRequest as road_inference.model_infer does a ModelInferRequest; the parts of an answer are
    joined."""
    request = read(call.state, message)
    model, version = request.model_name, request.model_version
    check_model(call.key, model)
    asked = HandlerCall(call.state, transport, call.metadata, memoryview(b""), model, version or None, "")
    try:
        prepared = _prepared(request, find_version(asked, model))
    except ShoalError as error:
        raise refused(error, model, version) from None
    body = bytearray()
    try:
        for part in transport.stream(prepared):
            if part.error is not None:
                raise part.error
            if part.answer is not None:
                try:
                    body += answered(part.answer.response, part.answer.block).body
                finally:
                    part.answer.release()
    except ShoalError as error:
        raise failed(error, model, version) from None
    return Rendered(_response(bytes(body), request.sequenceId or str(prepared.correlation_id or "")), None)
