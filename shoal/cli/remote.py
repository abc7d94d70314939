"""A running server, for the verbs that operate it: Triton's repository endpoints, and Shoal's own for instances.

Speaks HTTP by the standard library, which starts quickly and is enough. Knows no flags and prints nothing.
"""

import http.client
import json
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

from shoal.cli import answers
from shoal.server_url import split_url

if TYPE_CHECKING:
    import ssl

DEFAULT_URL = "http://127.0.0.1:8000"
#: Seconds in which even a distant server accepts a connection (ours).
CONNECT_TIMEOUT_S = 5.0

Row = dict[str, Any]
T = TypeVar("T")


class RefusedError(Exception):
    """The server refused the request; the message is the server's sentence."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


class NoResponseError(Exception):
    """The server did not answer, or not in time."""


class UnreachableError(NoResponseError):
    """No model server answers at the URL."""


class RemoteServer:
    """A server, by its URL. Every method sends one request, and raises RefusedError or NoResponseError."""

    def __init__(
        self, url: str, *, timeout_s: float, headers: Mapping[str, str], tls: "ssl.SSLContext | None" = None
    ) -> None:
        """`timeout_s` bounds the time from a request to its answer; `tls` is for https:// (None: Python's default).
        Raises ValueError for a text that is no URL of a server."""
        parts = split_url(url if "://" in url else f"http://{url}", ("http", "https"), url)
        self.url = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"
        self._path = parts.path.rstrip("/")
        self._timeout_s = timeout_s
        self._headers = dict(headers)
        patience_s = min(CONNECT_TIMEOUT_S, timeout_s)
        self._connection = (
            http.client.HTTPSConnection(parts.host, parts.port, timeout=patience_s, context=tls)
            if parts.scheme == "https"
            else http.client.HTTPConnection(parts.host, parts.port, timeout=patience_s)
        )

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def index(self) -> list[Row]:
        """The repository index: every version of every model, and models that were never loaded."""
        return self._ask("POST", "/v2/repository/index", answers.INDEX)

    def load(self, model: str, config: str | None = None) -> None:
        """Load a model, or load it again; returns when the model serves. `config` is JSON in place of config.pbtxt."""
        parameters = {} if config is None else {"parameters": {"config": config}}
        self._request("POST", f"{_path_of(model)}/load", parameters)

    def unload(self, model: str, *, unload_dependents: bool = False) -> None:
        """Begin to unload a model: accepted requests are still answered."""
        parameters = {"parameters": {"unload_dependents": unload_dependents}}
        self._request("POST", f"{_path_of(model)}/unload", parameters)

    def instances(self, model: str) -> Row:
        """Every instance of every version of a model, and the bounds of their number."""
        return self._ask("GET", f"{_path_of(model)}/instances", answers.INSTANCES)

    def explanation(self, model: str) -> Row:
        """The explanation of a model's last batches and their sizes."""
        return self._ask("GET", f"{_path_of(model)}/batches", answers.EXPLANATION)

    def finished_requests(self, model: str, limit: int) -> Row:
        """The slowest and the failed requests of the last minutes, of one model or of all (""), at most `limit` of
        either kind."""
        path = f"/v2/debug/requests?model={_quoted(model)}&limit={limit}"
        return self._ask("GET", path, answers.FINISHED_REQUESTS)

    def recording(self, asked: Row | None) -> Row:
        """The folder of the server's recordings, and the rules by which it records; if `asked` is given, after the
        server has carried it out."""
        return self._ask("GET" if asked is None else "POST", "/v2/recording", answers.RECORDING, asked)

    def shadow(self, model: str, asked: Row) -> Row:
        """The server's shadows, or those of one model; if `asked` is not empty, after the server has carried it out."""
        query = f"?model={_quoted(model)}" if model else ""
        if asked:
            return self._ask("POST", "/v2/shadow", answers.SHADOWS, {"model": model, **asked})
        return self._ask("GET", f"/v2/shadow{query}", answers.SHADOWS)

    def rollout(self, model: str, asked: Row | None = None) -> Row:
        """The state of a model's rollout; if `asked` is given, after the server has carried it out."""
        path = f"{_served(model, '')}/rollout"
        return self._ask("GET" if asked is None else "POST", path, answers.ROLLOUT, asked)

    def statistics(self) -> list[Row]:
        """The statistics of all models, as GET /v2/models/stats lists them under `model_stats`."""
        rows = self._ask("GET", "/v2/models/stats", answers.STATISTICS).get("model_stats")
        if not isinstance(rows, list):
            raise self._not_a_model_server()
        return rows

    def log_settings(self) -> Row:
        """The settings of the server's log."""
        return self._ask("GET", "/v2/logging", answers.LOG_SETTINGS)

    def log_lines(self, count: int, after: int) -> Row:
        """The last lines of the server's log file behind a position, at most `count`, and the position behind them."""
        return self._ask("GET", f"/v2/debug/log?lines={count}&after={after}", answers.LOG_LINES)

    def model_statistics(self, model: str, version: str = "") -> Row:
        """The statistics of a version of a model, in the form of `statistics`; without `version`, of the first."""
        rows = self._ask("GET", f"{_served(model, version)}/stats", answers.STATISTICS).get("model_stats")
        if not isinstance(rows, list) or not rows:
            raise self._not_a_model_server()
        row: Row = rows[0]
        return row

    def model_config(self, model: str, version: str = "") -> Row:
        """The completed configuration of a model."""
        return self._ask("GET", f"{_served(model, version)}/config", answers.CONFIG)

    def scale(self, model: str, count: int) -> Row:
        """Scale each version of a model to `count` instances; returns `instances` when they serve."""
        return self._ask("POST", f"{_path_of(model)}/instances", answers.INSTANCES, {"count": count, "wait": True})

    def _ask(self, method: str, path: str, shape: T, body: Row | None = None) -> T:
        """The JSON with which a request is answered. Raises UnreachableError for an answer that is not of `shape`."""
        answer = self._request(method, path, body)
        try:
            value: T = answered(json.loads(answer), shape, self.url)
        except (ValueError, RecursionError):
            raise self._not_a_model_server() from None
        return value

    def _request(self, method: str, path: str, body: Row | None = None) -> bytes:
        """Send a request; returns the body of an answer with status 200."""
        if self._connection.sock is None:  # the first request, or the first after the server has closed
            self._connect()
        text = None if body is None else json.dumps(body)
        try:
            with self._cut_when_late():
                self._connection.request(method, self._path + path, text, self._headers)
                with self._connection.getresponse() as response:
                    answer = response.read()
        except TimeoutError:
            raise NoResponseError(
                f"No answer from {self.url} within {self._timeout_s:g} s (--timeout). What was asked may still be done."
            ) from None
        except OSError as error:
            raise NoResponseError(f"{self.url} hung up: {error.strerror or error}.") from None
        except http.client.HTTPException:
            raise self._not_a_model_server() from None
        if response.status != 200:
            title = f"status {response.status} {response.reason}"
            text = answer[:200].decode(errors="replace").strip()
            if text.startswith("<") or response.status < 400:  # a page of a web server or proxy, or a redirection
                raise UnreachableError(f"What answers at {self.url} is not a model server: {title}.")
            if text and not text.startswith(("{", "[")):  # a proxy's text, or what a port of gRPC answers to HTTP
                raise UnreachableError(f"What answers at {self.url} is not a model server: {text.rstrip('.')}.")
            raise RefusedError(response.status, sentence_of(answer, title))
        return answer

    @contextmanager
    def _cut_when_late(self) -> Iterator[None]:
        """Cut the connection when the time for an answer is over, and raise TimeoutError: the socket's own timeout
        begins anew with each byte."""
        is_late = threading.Event()
        connection: socket.socket = self._connection.sock

        def cut() -> None:
            is_late.set()
            with suppress(OSError):  # the connection has ended by itself
                connection.shutdown(socket.SHUT_RDWR)

        timer = threading.Timer(self._timeout_s, cut)
        timer.daemon = True
        timer.start()
        try:
            yield
        except (OSError, http.client.HTTPException):
            if not is_late.is_set():
                raise
        finally:
            timer.cancel()
        if is_late.is_set():
            raise TimeoutError

    def _connect(self) -> None:
        try:
            self._connection.connect()
        except OSError as error:
            raise UnreachableError(f"No server answers at {self.url}: {error.strerror or error}.") from None
        self._connection.sock.settimeout(self._timeout_s)

    def _not_a_model_server(self) -> UnreachableError:
        return UnreachableError(f"What answers at {self.url} is not a model server.")


class _Answered(Row):
    """An object in a server's answer. To read a member that the object lacks raises UnreachableError: another program,
    or another version of Shoal, has answered."""

    def __init__(self, url: str, members: Row) -> None:
        super().__init__(members)
        self._url = url

    def __missing__(self, name: str) -> Any:
        raise UnreachableError(f"What answers at {self._url} is no Shoal server of this version: it says no '{name}'.")


def answered(value: Any, shape: Any, url: str, name: str = "") -> Any:
    """The JSON that `url` has answered, with _Answered in place of its objects. Raises UnreachableError where the JSON
    is not of the `shape` (answers.py). `name` is that of the member whose value this is, "" for the whole answer."""
    if isinstance(shape, tuple):
        fitting = [each for each in shape if _is_like(value, each)]
        shape = fitting[0] if fitting else shape
    if not _is_like(value, shape):
        if not name:
            raise UnreachableError(f"What answers at {url} is not a model server.")
        said = f"it says something else by '{name}'"
        raise UnreachableError(f"What answers at {url} is no Shoal server of this version: {said}.")
    if isinstance(value, list):
        each_shape = shape[0] if isinstance(shape, list) else object
        return [answered(each, each_shape, url, name) for each in value]
    if isinstance(value, dict):
        shapes: dict[Any, Any] = shape if isinstance(shape, dict) else {}
        others = shapes.get(str, object)
        return _Answered(url, {key: answered(each, shapes.get(key, others), url, key) for key, each in value.items()})
    return value


def _is_like(value: Any, shape: Any) -> bool:
    """Whether a value is of a shape; the elements and members of the value are not looked at."""
    if isinstance(shape, tuple):
        return any(_is_like(value, each) for each in shape)
    if isinstance(shape, type):
        return isinstance(value, shape)
    if isinstance(shape, dict | list):
        return isinstance(value, type(shape))
    if isinstance(shape, range):
        return isinstance(value, int) and value in shape
    return value is None if shape is None else isinstance(value, str) and value in shape


def _quoted(name: str) -> str:
    """A name as part of a URL, with the bytes that were typed: if they are no UTF-8, the server says what is wrong."""
    return quote(name, safe="", errors="surrogateescape")


def _served(model: str, version: str) -> str:
    return f"/v2/models/{_quoted(model)}" + (f"/versions/{_quoted(version)}" if version else "")


def _path_of(model: str) -> str:
    return f"/v2/repository/models/{_quoted(model)}"


def sentence_of(answer: bytes, title: str) -> str:
    """The sentence in Triton's error object; for any other body, `title`, which names the status, and the beginning of
    the body."""
    try:
        return str(json.loads(answer)["error"])
    except (ValueError, LookupError, TypeError):
        text = answer[:200].decode(errors="replace").strip()
        return title + (f": {text}" if text else "")
