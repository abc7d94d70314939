"""A running server as the verbs that operate it see it: Triton's repository endpoints, and Shoal's own for instances.

Speaks HTTP with the standard library, since a command should answer at once and nothing more is needed. Knows no flags
and prints nothing.
"""

import http.client
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlsplit

#: Longer than this no server, not even a distant one, takes to accept a connection (ours).
CONNECT_TIMEOUT_S = 5.0

Row = dict[str, Any]


class RefusedError(Exception):
    """The server said no; the message is its own sentence."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


class NoResponseError(Exception):
    """The server did not answer, or not in time."""


class UnreachableError(NoResponseError):
    """There is no model server at that URL."""


class RemoteServer:
    """One server, by its URL. Every method is one request, and raises RefusedError or NoAnswerError."""

    def __init__(self, url: str, *, timeout_s: float, headers: Mapping[str, str]) -> None:
        """`timeout_s`: from a request to its answer. Raises ValueError for what is no URL of a server."""
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"'{url}' is not the URL of a server, as in http://127.0.0.1:8000")
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self.url = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"
        self._path = parts.path.rstrip("/")
        self._timeout_s = timeout_s
        self._headers = dict(headers)
        self._connection = kind(parts.hostname, parts.port, timeout=min(CONNECT_TIMEOUT_S, timeout_s))

    def close(self) -> None:
        """Hang up."""
        self._connection.close()

    def index(self) -> list[Row]:
        """Every version of every model, and models that were never loaded: the repository index."""
        rows: list[Row] = self._ask("POST", "/v2/repository/index", list)
        return rows

    def load(self, model: str, config: str | None = None) -> None:
        """Load a model, or load it again; returns when it serves. `config` is JSON that takes config.pbtxt's place."""
        parameters = {} if config is None else {"parameters": {"config": config}}
        self._request("POST", f"{_path_of(model)}/load", parameters)

    def unload(self, model: str, *, unload_dependents: bool = False) -> None:
        """Begin to unload a model: what it has accepted is still answered."""
        parameters = {"parameters": {"unload_dependents": unload_dependents}}
        self._request("POST", f"{_path_of(model)}/unload", parameters)

    def instances(self, model: str) -> Row:
        """Every instance of every version of a model, and how many there may be."""
        found: Row = self._ask("GET", f"{_path_of(model)}/instances", dict)
        return found

    def explanation(self, model: str) -> Row:
        """Why the last batches of a model had their size."""
        found: Row = self._ask("GET", f"{_path_of(model)}/batches", dict)
        return found

    def scale(self, model: str, count: int) -> Row:
        """Have `count` instances of each version of a model; returns when they serve, as `instances` does."""
        found: Row = self._ask("POST", f"{_path_of(model)}/instances", dict, {"count": count, "wait": True})
        return found

    def _ask(self, method: str, path: str, kind: type, body: Row | None = None) -> Any:
        answer = self._request(method, path, body)
        try:
            value = json.loads(answer)
        except ValueError:
            value = None
        if not isinstance(value, kind):
            raise self._not_a_model_server()
        return value

    def _request(self, method: str, path: str, body: Row | None = None) -> bytes:
        """The body of the answer with status 200."""
        if self._connection.sock is None:  # the first time, and after a server that closes
            self._connect()
        text = None if body is None else json.dumps(body)
        try:
            self._connection.request(method, self._path + path, text, self._headers)
            response = self._connection.getresponse()
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
            raise RefusedError(response.status, _sentence(response, answer))
        return answer

    def _connect(self) -> None:
        try:
            self._connection.connect()
        except OSError as error:
            raise UnreachableError(f"No server answers at {self.url}: {error.strerror or error}.") from None
        self._connection.sock.settimeout(self._timeout_s)

    def _not_a_model_server(self) -> UnreachableError:
        return UnreachableError(f"What answers at {self.url} is not a model server.")


def _path_of(model: str) -> str:
    return f"/v2/repository/models/{quote(model, safe='')}"


def _sentence(response: http.client.HTTPResponse, answer: bytes) -> str:
    """What Triton's error object says; of any other body, its beginning."""
    try:
        return str(json.loads(answer)["error"])
    except (ValueError, LookupError, TypeError):
        text = answer[:200].decode(errors="replace").strip()
        return f"status {response.status} {response.reason}" + (f": {text}" if text else "")
