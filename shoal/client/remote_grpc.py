"""The gRPC client: `Client("grpc://host:port")`. Answers that are messages take the form of HTTP's JSON."""

import queue
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from shoal import errors
from shoal.client.remote import RemoteClient, RemoteResponse
from shoal.client.request_arguments import RequestArguments, takes
from shoal.client.result import Result
from shoal.errors import ConnectionLostError, InternalError, InvalidArgumentError, ShoalError, TimedOutError

_BY_STATUS = {
    "UNKNOWN": errors.UnknownError,
    "INVALID_ARGUMENT": errors.InvalidArgumentError,
    "NOT_FOUND": errors.NotFoundError,
    "UNAVAILABLE": errors.UnavailableError,
    "UNIMPLEMENTED": errors.UnsupportedError,
    "ALREADY_EXISTS": errors.AlreadyExistsError,
    "CANCELLED": errors.CancelledError,
    "DEADLINE_EXCEEDED": TimedOutError,
}
#: The beginnings of the errors of gRPC servers that do not have the service: of grpcio, of gRPC for Java, and of gRPC
#: for Go.
_NO_METHOD = ("Method not found", "unknown service", "unknown method")
_FINAL = "triton_final_response"
#: tritonclient's answers to a stream: a result and None, or None and an error.
_Answers: TypeAlias = "queue.SimpleQueue[tuple[Any, Any]]"


class GrpcClient(RemoteClient):
    """A client on tritonclient.grpc."""

    scheme = "grpc"

    @takes(RequestArguments)
    def stream(self, asked: RequestArguments) -> Iterator[Result]:
        """Like `Client.stream`."""
        asked.check()
        inputs, arguments = self._inputs(asked), self._arguments(asked)
        answers: _Answers = queue.SimpleQueue()
        client = self._connect(None)  # a client of its own: tritonclient's has one stream at a time
        # The header makes the server send errors with their status, not only their text.
        client.start_stream(lambda result, error: answers.put((result, error)), headers={"triton_grpc_error": "true"})
        client.async_stream_infer(asked.model, inputs, **arguments, enable_empty_final_response=True)
        results = self._answers(asked, client, answers)
        # Closes a stream whose iterator is dropped before its first answer is requested: then its `finally` does not
        # run.
        weakref.finalize(results, client.stop_stream, cancel_requests=True)
        return results

    def _answers(self, asked: RequestArguments, client: Any, answers: _Answers) -> Iterator[Result]:
        try:
            while True:
                try:
                    limit_s = self._limit_s(asked)
                    answer, error = answers.get(timeout=None if limit_s is None else max(0.0, limit_s))
                except queue.Empty:
                    raise TimedOutError(f"Request timeout expired: no answer from model '{asked.model}'") from None
                if error is not None:
                    raise self._known(error)
                response = answer.get_response()
                is_final = response.parameters[_FINAL].bool_param
                if response.outputs or not is_final:
                    yield self._result(asked.model, answer)
                if is_final:
                    return
        finally:
            client.stop_stream(cancel_requests=True)
            client.close()

    def _connect(self, timeout_s: float | None) -> Any:
        del timeout_s  # each call has its own timeout
        return self._triton.InferenceServerClient(self._address)

    def _read(self, answer: Any) -> RemoteResponse:
        response = answer.get_response()
        outputs = [(each.name, each.datatype) for each in response.outputs]
        parameters = {
            name: getattr(value, value.WhichOneof("parameter_choice"))
            for name, value in response.parameters.items()
            if name != _FINAL
        }
        return RemoteResponse(response.model_version, outputs, parameters)

    def _limits(self, asked: RequestArguments) -> dict[str, Any]:
        return {"client_timeout": self._limit_s(asked)}

    def _limit_s(self, asked: RequestArguments) -> float | None:
        return self.timeout_s if asked.timeout is None else asked.timeout

    def _get(self, subject: str, arguments: Sequence[str]) -> dict[str, Any]:
        limit = {"client_timeout": self.timeout_s}
        message = self._call(lambda client: getattr(client, f"get_{subject}")(*arguments, **limit))
        return plain(message.config if subject == "model_config" else message)

    def _error(self, status: str, sentence: str, details: str) -> ShoalError:
        word = status.rpartition(".")[2]
        if word == "UNAVAILABLE" and "received from peer" not in details:
            return ConnectionLostError(f"no server is found at {self._address}: {sentence}")
        if word == "UNIMPLEMENTED" and sentence.startswith(_NO_METHOD):
            return self._no_model_server()
        if not word:  # tritonclient has refused an argument
            return InvalidArgumentError(sentence)
        return _BY_STATUS.get(word, InternalError)(sentence)


def plain(message: Any) -> dict[str, Any]:
    """A protobuf message in the form of HTTP's JSON: all fields except unset messages, and numbers as numbers."""
    known = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if hasattr(value, "items"):
            value = {key: _plain_value(value[key], field) for key in value}
        elif hasattr(value, "extend"):
            value = [_plain_value(each, field) for each in value]
        elif field.message_type is not None and not message.HasField(field.name):
            continue
        else:
            value = _plain_value(value, field)
        known[field.name] = value
    return known


def _plain_value(value: Any, field: Any) -> Any:
    if hasattr(value, "DESCRIPTOR"):
        return plain(value)
    return field.enum_type.values_by_number[value].name if field.enum_type is not None else value
