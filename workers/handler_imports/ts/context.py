"""The context of a handler: one object per worker, with the requests of the current batch.

Handlers store values of their own on it, so it takes any attribute.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ts.metrics.metrics_store import MetricsStore

CONTENT_TYPE = "content-type"


class RequestHeaders(dict[str, Any]):
    """A request's headers by name, as the client has sent them, and an entry {"content-type": …} by the name of each
    data field.

    A name is found whatever its case, and with `_` for `-`: clients, proxies and WSGI servers change both.
    """

    def __missing__(self, name: str) -> Any:
        wanted = _folded(name)
        for key, value in self.items():
            if _folded(key) == wanted:
                return value
        raise KeyError(name)

    def get(self, name: str, default: Any = None) -> Any:
        """The header's value, `default` if the request has none."""
        try:
            return self[name]
        except KeyError:
            return default

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.get(name, self) is not self


def _folded(name: object) -> str:
    return str(name).lower().replace("_", "-")


class RequestProcessor:
    """One request of a batch: its headers, and the status and headers of its response."""

    def __init__(self, request_header: Mapping[str, Any]) -> None:
        self._status_code = 200
        self._reason_phrase: str | None = ""
        self._response_header: dict[str, str] = {}
        self._request_header = request_header

    def get_request_property(self, key: str) -> Any:
        """A header of the request; None if it has none of this name."""
        return self._request_header.get(key)

    def get_request_properties(self) -> Mapping[str, Any]:
        return self._request_header

    def report_status(self, code: int, reason_phrase: str | None = None) -> None:
        self._status_code = code
        self._reason_phrase = reason_phrase

    def get_response_status_code(self) -> int:
        """The status of the response; 200 if the handler has set none."""
        return self._status_code

    def get_response_status_phrase(self) -> str | None:
        return self._reason_phrase

    def add_response_property(self, key: str, value: str) -> None:
        self._response_header[key] = value

    def get_response_headers(self) -> dict[str, str]:
        return self._response_header

    def get_response_header(self, key: str) -> str | None:
        return self._response_header.get(key)


class Context:
    """The model, its properties, and the requests of the current batch.

    `send_intermediate` sends a part of a streamed response to each request; the worker sets it, outside of a server it
    is None.
    """

    def __init__(
        self,
        model_name: str | None,
        model_dir: str | None,
        manifest: dict[str, Any] | None,
        batch_size: int | None,
        gpu: int | None,
        mms_version: str | None,
        limit_max_image_pixels: bool = True,
        metrics: MetricsStore | None = None,
        model_yaml_config: dict[str, Any] | None = None,
    ) -> None:
        self.model_name = model_name
        self.manifest = manifest
        self._system_properties: dict[str, Any] = {
            "model_dir": model_dir,
            "gpu_id": gpu,
            "batch_size": batch_size,
            "server_name": "MMS",
            "server_version": mms_version,
            "limit_max_image_pixels": limit_max_image_pixels,
        }
        self.model_yaml_config: dict[str, Any] = {} if model_yaml_config is None else model_yaml_config
        self.metrics = metrics
        self.header_key_sequence_id = "ts_request_sequence_id"
        self.header_key_sequence_start = "ts_request_sequence_start"
        self.header_key_sequence_end = "ts_request_sequence_end"
        #: For continuous batching: per request a function of the request's result, which returns False while the
        #: request is to be executed again; None if the handler has set none.
        self.stopping_criteria: Sequence[Callable[[Any], bool]] | None = None
        #: In TorchServe a worker's socket to TorchServe's front end; always None here, since handlers only pass it on.
        self.cl_socket: Any = None
        self.send_intermediate: Callable[[Sequence[Any], str, int], None] | None = None
        # These fields are set for each batch.
        self.request_ids: dict[int, str] | None = None
        self.request_processor: list[RequestProcessor] | None = None

    @property
    def system_properties(self) -> dict[str, Any]:
        """Properties of the worker: model_dir, gpu_id (None on a CPU), batch_size, server_name, server_version,
        limit_max_image_pixels."""
        return self._system_properties

    # -- the requests of the batch, by their index --

    def get_request_id(self, idx: int = 0) -> str | None:
        """The id that the server has given a request."""
        return (self.request_ids or {}).get(idx)

    def get_request_header(self, idx: int, key: str) -> Any:
        """A header of a request; None if it has none of this name."""
        return self._of(idx).get_request_property(key)

    def get_all_request_header(self, idx: int) -> Mapping[str, Any]:
        return self._of(idx).get_request_properties()

    def get_sequence_id(self, idx: int) -> str:
        """The id of the sequence that a request belongs to; "" if none."""
        return self.get_request_header(idx, self.header_key_sequence_id) or ""

    # -- the responses to these requests --

    def set_response_content_type(self, idx: int, value: str) -> None:
        self.set_response_header(idx, CONTENT_TYPE, value)

    def get_response_content_type(self, idx: int) -> str | None:
        """The content type of one response; None if the handler has set none."""
        return self._of(idx).get_response_header(CONTENT_TYPE)

    def set_response_header(self, idx: int, key: str, value: str) -> None:
        self._of(idx).add_response_property(key, value)

    def get_response_headers(self, idx: int) -> dict[str, str]:
        """The headers of one response that the handler has set."""
        return self._of(idx).get_response_headers()

    def set_response_status(self, code: int = 200, phrase: str = "", idx: int = 0) -> None:
        """Set the status of the response to the request `idx`; other responses keep their statuses."""
        self._of(idx).report_status(code, reason_phrase=phrase)

    def set_all_response_status(self, code: int = 200, phrase: str = "") -> None:
        for processor in self.request_processor or ():
            processor.report_status(code, reason_phrase=phrase)

    def get_response_status(self, idx: int) -> tuple[int, str | None]:
        processor = self._of(idx)
        return processor.get_response_status_code(), processor.get_response_status_phrase()

    def _of(self, idx: int) -> RequestProcessor:
        if self.request_processor is None:
            raise RuntimeError("there is no batch: a context has requests only while `handle` runs")
        return self.request_processor[idx]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Context) and self.__dict__ == other.__dict__

    __hash__ = object.__hash__
