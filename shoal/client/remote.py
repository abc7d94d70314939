"""The calls of `shoal.Client` over the network, by means of tritonclient, which must be installed.

No memory is shared: `empty` returns an ordinary array, every output is the caller's own, and `copy` has no effect. This
file has what both protocols share; the rest is in remote_http.py and remote_grpc.py.
"""

import os
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal import bf16, reasons
from shoal.client.arrays import elements, made_array, no_datatype
from shoal.client.request_arguments import RequestArguments, checked_shape, checked_text, takes
from shoal.client.result import Result
from shoal.client.sync import Client, question_about
from shoal.datatypes import BF16, BY_NAME, BYTES, checked_nbytes
from shoal.errors import (
    ConnectionLostError,
    InvalidArgumentError,
    ShoalError,
    TimedOutError,
    UnavailableError,
    UnsupportedError,
)
from shoal.passwords import shown_url
from shoal.request import Parameters

#: Client's methods → the ends of tritonclient's get_… methods.
_SUBJECTS = {
    "server_metadata": "server_metadata",
    "model_metadata": "model_metadata",
    "model_config": "model_config",
    "statistics": "inference_statistics",
}
#: tritonclient's sentences when its own timeout has passed, over HTTP and over gRPC.
_LATE = ("timed out", "Deadline Exceeded")


class RemoteResponse(NamedTuple):
    """A tritonclient response; `outputs` are names and datatypes."""

    model_version: str
    outputs: Iterable[tuple[str, str]]
    parameters: Parameters


class RemoteClient(Client):
    """A client over the network: `Client("http://host:port")` and `Client("grpc://host:port")`."""

    scheme: ClassVar[str]
    protocol: ClassVar[str] = ""  # the name of tritonclient's module, if it is not the scheme

    def __init_subclass__(cls) -> None:
        Client._remote[cls.scheme] = cls

    def __init__(self, place: str) -> None:
        super().__init__(place)
        authority, slash, path = place.partition("://")[2].partition("/")
        self._address = (authority.rpartition("@")[2] + slash + path).rstrip("/")
        try:
            self._triton = import_module(f"tritonclient.{self.protocol or self.scheme}")
        except (ImportError, RuntimeError) as error:  # RuntimeError: tritonclient is there, but lacks a package
            package = f"tritonclient[{self.protocol or self.scheme}]"
            raise ConnectionLostError(
                f"{shown_url(place)} needs pip install '{package}', which is not there: {error}"
            ) from error
        # Changed by _client and close: the connections of each thread and process, which are used by that thread only.
        self._local = threading.local()

    # --- what differs by protocol ---

    @abstractmethod
    def _connect(self, timeout_s: float | None) -> Any:
        """tritonclient's client for calls with this timeout, in seconds."""

    @abstractmethod
    def _limits(self, asked: RequestArguments) -> dict[str, Any]:
        """Arguments of tritonclient's `infer` that limit the client's wait, and are not sent to the server."""

    @abstractmethod
    def _read(self, answer: Any) -> RemoteResponse:
        """The parts of tritonclient's InferResult."""

    @abstractmethod
    def _get(self, subject: str, arguments: Sequence[str]) -> dict[str, Any]:
        """The answer of tritonclient's get_… method, in the form of HTTP's JSON."""

    @abstractmethod
    def _error(self, status: str, sentence: str, details: str) -> ShoalError:
        """The ShoalError for tritonclient's exception."""

    # --- inference ---

    @takes(RequestArguments)
    def infer(self, asked: RequestArguments) -> Result:
        """Like `Client.infer`; `copy` has no effect."""
        asked.check()
        if asked.timing:
            raise UnsupportedError(
                "tritonclient keeps no headers of responses, and so no times: ask at the server's socket, or send the "
                "header X-Shoal-Timing with another client"
            )
        inputs, arguments = self._inputs(asked), self._arguments(asked)
        arguments |= self._limits(asked)
        answer = self._call(lambda client: client.infer(asked.model, inputs, **arguments), asked.timeout)
        return self._result(asked.model, answer)

    def _arguments(self, asked: RequestArguments) -> dict[str, Any]:
        """Arguments of tritonclient's calls, except model and inputs, of a checked request."""
        outputs = [self._triton.InferRequestedOutput(each) for each in asked.outputs or ()]
        return {
            "model_version": asked.version,
            "outputs": outputs or None,
            "request_id": asked.request_id,
            "sequence_id": asked.sequence_id,
            "sequence_start": bool(asked.sequence_start),
            "sequence_end": bool(asked.sequence_end),
            "priority": asked.priority,
            "timeout": asked.timeout_us or None,
            "parameters": asked.parameters,
        }

    def _inputs(self, asked: RequestArguments) -> list[Any]:
        known = self.model_metadata(asked.model, version=asked.version) if _needs_metadata(asked.inputs) else None
        datatypes = {each["name"]: each["datatype"] for each in known["inputs"]} if known else {}
        given = []
        for name, value in asked.inputs.items():
            wanted = BY_NAME.get(datatypes.get(name, ""))
            array = value if isinstance(value, np.ndarray) else made_array(name, value, wanted)
            if wanted is BF16 and array.dtype == BF16.dtype:
                word, array = BF16.name, _as_bf16(array)
            else:
                word = _word_of(name, array)
            tensor = self._triton.InferInput(name, list(array.shape), word)
            if word == BYTES.name:
                array = np.array(elements(name, array), np.object_).reshape(array.shape)
            tensor.set_data_from_numpy(array)
            given.append(tensor)
        return given

    def _result(self, model: str, answer: Any) -> Result:
        response = self._read(answer)
        arrays = {name: _own(answer.as_numpy(name), datatype) for name, datatype in response.outputs}
        return Result(model, response.model_version, arrays, response.parameters)

    def empty(self, model: str, name: str, shape: Sequence[int], *, version: str | int = "") -> NDArray[Any]:
        """An uninitialised ordinary array of the input's datatype. Raises NotFoundError, InvalidArgumentError."""
        dims, wanted = checked_shape(shape), checked_text("name", name)
        for tensor in self.model_metadata(model, version=version)["inputs"]:
            if tensor["name"] == wanted:
                datatype = BY_NAME[tensor["datatype"]]
                checked_nbytes(dims, datatype.itemsize)
                return np.empty(dims, datatype.dtype)
        raise InvalidArgumentError(f"unexpected inference input '{name}' for model '{model}'")

    # --- the server ---

    def is_live(self) -> bool:
        """Whether the server answers. Raises no error."""
        try:
            return bool(self._call(lambda client: client.is_server_live()))
        except ShoalError:
            return False

    def is_ready(self, model: str = "", *, version: str | int = "") -> bool:
        """Whether all models can answer, or one of them. Raises NotFoundError for an unknown model."""
        asked = question_about(model, version)
        if not model:
            return bool(self._call(lambda client: client.is_server_ready()))
        if self._call(lambda client: client.is_model_ready(*asked.values())):
            return True
        try:  # the answer "not ready" gives no reason; for an unknown model this raises NotFoundError
            self.model_metadata(model, version=version)
        except UnavailableError:
            return False
        return False

    def model_config(self, model: str, *, version: str | int = "") -> dict[str, Any]:
        """Like `Client.model_config`."""
        config: dict[str, Any] = self._ask("model_config", model, version)
        return config

    def _ask(self, verb: str, model: str = "", version: str | int = "") -> Any:
        asked = question_about(model, version)
        return self._get(_SUBJECTS[verb], [*asked.values()] if verb != "server_metadata" else ())

    # --- the connection ---

    def _call(self, call: Callable[[Any], Any], timeout_s: float | None = None) -> Any:
        from tritonclient.utils import InferenceServerException

        timeout_s = self.timeout_s if timeout_s is None else timeout_s
        if timeout_s is not None and timeout_s <= 0:  # a deadline has passed; tritonclient would fail
            raise self._late(timeout_s)
        try:
            with self._cut_when_late(timeout_s):
                return call(self._client(timeout_s))
        except InferenceServerException as error:
            known = self._known(error)
            raise (self._late(timeout_s) if str(known) in _LATE else known) from error
        except TimeoutError as error:
            raise self._late(timeout_s) from error
        except OSError as error:
            why = error.strerror or error  # without the error's number
            raise ConnectionLostError(f"no server is found at {self._address}: {why}") from error

    def _cut_when_late(self, timeout_s: float | None) -> AbstractContextManager[object]:
        """A context manager that raises TimeoutError in a call that is not answered in time. This one does nothing,
        since tritonclient itself raises an error over gRPC; HttpClient has another."""
        del timeout_s
        return nullcontext()

    def _late(self, timeout_s: float | None) -> TimedOutError:
        within = "" if timeout_s is None else f" within {timeout_s:g} s"
        return TimedOutError(f"Request timeout expired: no answer from {self._address}{within}")

    def _no_model_server(self, words: str = "") -> ConnectionLostError:
        said = f": {words}" if words else ""
        return ConnectionLostError(f"what answers at {self._address} is not a model server{said}")

    def _known(self, error: Any) -> ShoalError:
        known = self._error(str(error.status() or ""), str(error.message()), str(error.debug_details() or ""))
        is_late = isinstance(known, UnavailableError) and str(known) == reasons.TIMED_OUT
        return TimedOutError(str(known)) if is_late else known

    def _client(self, timeout_s: float | None) -> Any:
        if self._is_closed:
            raise ConnectionLostError("the client is closed")
        clients: dict[tuple[int, float | None], Any] = self._local.__dict__.setdefault("clients", {})
        key = os.getpid(), timeout_s
        if key not in clients:
            clients[key] = self._connect(timeout_s)
        return clients[key]

    def close(self) -> None:
        """Close this thread's connections; no further call is possible."""
        self._is_closed = True
        for client in self._local.__dict__.pop("clients", {}).values():
            client.close()


def _needs_metadata(inputs: Mapping[str, Any]) -> bool:
    """Whether a datatype must be looked up: for lists, and for arrays that may be BF16."""
    return any(not isinstance(each, np.ndarray) or each.dtype == BF16.dtype for each in inputs.values())


def _word_of(name: str, array: NDArray[Any]) -> str:
    from tritonclient.utils import np_to_triton_dtype

    word = BYTES.name if array.dtype.kind in "OSU" else np_to_triton_dtype(array.dtype)
    if word is None:
        raise no_datatype(name, array.dtype)
    return str(word)


def _as_bf16(words: NDArray[Any]) -> NDArray[Any]:
    """BF16 words in the form that tritonclient takes: an array of ml_dtypes' bfloat16 or, for older versions, of
    float32."""
    from tritonclient.utils import triton_to_np_dtype

    wanted = np.dtype(triton_to_np_dtype(BF16.name))
    return words.view(wanted) if wanted.itemsize == 2 else bf16.values_of(words)


def _own(array: NDArray[Any], datatype: str) -> NDArray[Any]:
    """An output of tritonclient as an array that the caller owns."""
    if datatype == BF16.name and array.dtype != BF16.dtype:
        array = array.view(np.uint16) if array.itemsize == 2 else bf16.words_of(array)
    return array if array.flags.writeable else array.copy()
