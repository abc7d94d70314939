"""The HTTP client: `Client("http://host:port")`, or https://. Its errors are distinguished by HTTP status alone."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from http.client import HTTPException
from typing import Any

from shoal import errors
from shoal.client.remote import RemoteClient, RemoteResponse
from shoal.client.request_arguments import RequestArguments, takes
from shoal.client.result import Result
from shoal.errors import ConnectionLostError, InvalidArgumentError, ShoalError, TimedOutError, UnsupportedError

_BY_STATUS = {str(each.http_status): each for each in errors.BY_WIRE.values() if each.http_status != 400}

#: tritonclient's sentence for an error or a redirection without a body, such as a proxy's.
_NO_SENTENCE = "client received an empty response from the server."
#: Words of geventhttpclient's errors for an answer that ends too early.
_CUT_SHORT = ("closed", "EOF", "Incomplete")


class HttpClient(RemoteClient):
    """A client by means of tritonclient.http, whose clients belong to one thread and have one timeout for each
    connection."""

    scheme = "http"

    @takes(RequestArguments)
    def stream(self, asked: RequestArguments) -> Iterator[Result]:
        """Not possible; raises UnsupportedError: HTTP has no stream of tensors."""
        raise UnsupportedError(
            f"HTTP has no stream of tensors: ask model '{asked.model}' at a grpc:// URL, or at the server's socket"
        )

    def _connect(self, timeout_s: float | None) -> Any:
        limits = {} if timeout_s is None else {"network_timeout": timeout_s}
        return self._triton.InferenceServerClient(self._address, **limits)

    def _read(self, answer: Any) -> RemoteResponse:
        response = answer.get_response()
        outputs = [(each["name"], each["datatype"]) for each in response.get("outputs", ())]
        return RemoteResponse(str(response.get("model_version", "")), outputs, response.get("parameters", {}))

    def _limits(self, asked: RequestArguments) -> dict[str, Any]:
        return {}

    def _get(self, subject: str, arguments: Sequence[str]) -> dict[str, Any]:
        answer = None
        with suppress(ValueError):  # raised by the JSON decoder
            answer = self._call(lambda client: getattr(client, f"get_{subject}")(*arguments))
        if not isinstance(answer, dict):
            raise self._no_model_server()
        return answer

    def _call(self, call: Callable[[Any], Any], timeout_s: float | None = None) -> Any:
        try:
            return super()._call(call, timeout_s)
        except HTTPException as error:
            if any(word in str(error) for word in _CUT_SHORT):
                raise ConnectionLostError(f"{self._address} hung up") from error
            raise self._no_model_server() from error  # the answer is not HTTP, such as a gRPC server's
        except ValueError as error:
            if "request URI" not in str(error):  # geventhttpclient's word for a path with blanks; else an answer's
                raise
            raise InvalidArgumentError(f"'version' or 'model' has a character that no URL has: {error}") from None

    def _cut_when_late(self, timeout_s: float | None) -> AbstractContextManager[object]:
        """Overridden because tritonclient's own timeout does not limit a whole call: it begins once for connecting, and
        anew for each piece of an answer."""
        from gevent import Timeout  # tritonclient.http's sockets are gevent's

        timeout: AbstractContextManager[object] = Timeout(timeout_s, TimeoutError)
        return timeout

    def _error(self, status: str, sentence: str, details: str) -> ShoalError:
        if "timed out" in sentence:
            return TimedOutError(sentence)
        if "while decoding the response" in sentence:  # tritonclient's words
            words = details[:200].strip().rstrip(".")
            is_shown = not words.startswith(("<", "{", "["))  # neither HTML nor JSON
            return self._no_model_server(words if is_shown else "")
        if sentence == _NO_SENTENCE:
            return self._no_model_server(f"status {status}")
        return _BY_STATUS.get(status, InvalidArgumentError)(sentence)  # 400 is most often a wrong argument


class HttpsClient(HttpClient):
    """A client over TLS; $SSL_CERT_FILE names the certificates that may sign the server's."""

    scheme = "https"
    protocol = "http"

    def _connect(self, timeout_s: float | None) -> Any:
        limits = {} if timeout_s is None else {"network_timeout": timeout_s}
        trusted = os.environ.get("SSL_CERT_FILE")
        options = {} if trusted is None else {"ssl_options": {"ca_certs": trusted}}
        return self._triton.InferenceServerClient(self._address, ssl=True, **options, **limits)
